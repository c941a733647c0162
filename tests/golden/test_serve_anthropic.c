/* The Messages API over HTTP, on the nano model: real answers. */
#include "serve_rig.h"

static struct rig rig;

#define MESSAGES "/v1/messages"
#define BASE "{\"model\":\"any\",\"max_tokens\":200,\"temperature\":0,"
#define FACT "\"messages\":[{\"role\":\"user\",\"content\":\"What is the capital of Norway?\"}]"
#define FACT_ANSWER "The capital of Norway is Oslo."
#define QUESTION "{\"role\":\"user\",\"content\":\"What is the weather in Lisbon in celsius?\"}"
#define TOOLS                                                                                      \
    "\"tools\":[{\"name\":\"get_weather\",\"description\":\"Get the current weather of a city\","  \
    "\"input_schema\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\","         \
    "\"description\":\"City name\"},\"unit\":{\"type\":\"string\",\"description\":\"celsius or "   \
    "fahrenheit\"}},\"required\":[\"city\"]}}]"

static json_t *message(const char *body)
{
    int status;
    json_t *v = rig_post(&rig, MESSAGES, body, &status);
    if (status != 200)
        fail_msg("%d: %s", status, json_dumps(v, 0));
    return v;
}

/* The strings at a path of all events, joined. */
static void assert_joined(const json_t *events, const char *path, const char *want)
{
    char all[2048] = "";
    for (size_t i = 0; i < json_array_size(events); i++) {
        const char *s = json_string_value(at(json_array_get(events, i), path));
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s", s ? s : "");
    }
    assert_string_equal(all, want);
}

static const json_t *event_of(const json_t *events, const char *type)
{
    for (size_t i = 0; i < json_array_size(events); i++)
        if (strcmp(text_at(json_array_get(events, i), "type"), type) == 0)
            return json_array_get(events, i);
    fail_msg("no event %s", type);
    return NULL;
}

static void test_whole(void **state)
{
    (void)state;
    json_t *v = message(BASE FACT "}");
    assert_int_equal(strncmp(text_at(v, "id"), "msg_", 4), 0);
    assert_int_equal(json_array_size(at(v, "content")), 1);
    assert_string_equal(text_at(v, "content.0.type"), "text");
    assert_string_equal(text_at(v, "content.0.text"), FACT_ANSWER);
    assert_string_equal(text_at(v, "stop_reason"), "end_turn");
    assert_true(json_is_null(at(v, "stop_sequence")));
    assert_int_equal(int_at(v, "usage.input_tokens") + int_at(v, "usage.cache_read_input_tokens"),
                     20);
    assert_int_equal(int_at(v, "usage.output_tokens"), 11);
    assert_non_null(at(v, "mtplx_stats.cache_miss_reason"));
    assert_null(at(v, "mtplx_stats.acceptance_by_depth"));
    json_decref(v);
    v = message(BASE "\"mtplx_stats\":true," FACT "}");
    assert_non_null(at(v, "mtplx_stats.acceptance_by_depth"));
    json_decref(v);
}

static void test_stream(void **state)
{
    (void)state;
    json_t *v = rig_stream(&rig, MESSAGES, BASE "\"stream\":true," FACT "}");
    assert_string_equal(text_at(v, "0.type"), "message_start");
    assert_int_equal(int_at(v, "0.message.usage.input_tokens"), 20);
    assert_int_equal(json_array_size(at(v, "0.message.content")), 0);
    assert_joined(v, "delta.text", FACT_ANSWER);
    const json_t *delta = event_of(v, "message_delta");
    assert_string_equal(text_at(delta, "delta.stop_reason"), "end_turn");
    assert_int_equal(int_at(delta, "usage.output_tokens"), 11);
    assert_string_equal(text_at(json_array_get(v, json_array_size(v) - 1), "type"), "message_stop");
    json_decref(v);
}

/* A call, its result and the answer. What the first turn read and wrote is not read again. */
static void test_tools(void **state)
{
    (void)state;
    json_t *v = message(BASE TOOLS ",\"messages\":[" QUESTION "]}");
    assert_string_equal(text_at(v, "stop_reason"), "tool_use");
    assert_string_equal(text_at(v, "content.0.type"), "tool_use");
    assert_int_equal(strncmp(text_at(v, "content.0.id"), "toolu_", 6), 0);
    assert_string_equal(text_at(v, "content.0.input.city"), "Lisbon");
    assert_string_equal(text_at(v, "content.0.input.unit"), "celsius");
    long long first = int_at(v, "usage.input_tokens") + int_at(v, "usage.cache_read_input_tokens");

    char *content = json_dumps(at(v, "content"), JSON_COMPACT), body[4096];
    snprintf(body, sizeof body,
             BASE TOOLS ",\"messages\":[" QUESTION ",{\"role\":\"assistant\",\"content\":%s},"
                        "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":"
                        "\"%s\",\"content\":\"{\\\"temperature\\\": 21, \\\"condition\\\": "
                        "\\\"sunny\\\"}\"}]}]}",
             content, text_at(v, "content.0.id"));
    free(content);
    json_t *w = message(body);
    assert_string_equal(text_at(w, "content.0.text"),
                        "It is 21 degrees celsius and sunny in Lisbon.");
    assert_true(int_at(w, "usage.cache_read_input_tokens") >= first);
    json_decref(v);
    json_decref(w);

    v = rig_stream(&rig, MESSAGES, BASE "\"stream\":true," TOOLS ",\"messages\":[" QUESTION "]}");
    assert_joined(v, "delta.stop_reason", "tool_use");
    assert_joined(v, "content_block.name", "get_weather");
    assert_joined(v, "delta.partial_json", "{\"city\":\"Lisbon\",\"unit\":\"celsius\"}");
    json_decref(v);
}

static void test_thinking(void **state)
{
    static const char thought[] =
        "Add digit by digit from the right. 3 + 8 = 11; 2 + 5 + 1 = 8. The result is 81.";
#define SUM                                                                                        \
    "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024},\"messages\":[{\"role\":\"user\"," \
    "\"content\":\"What is 23 + 58?\"}]"
    (void)state;
    json_t *v = message(BASE SUM "}");
    assert_string_equal(text_at(v, "content.0.type"), "thinking");
    assert_string_equal(text_at(v, "content.0.thinking"), thought);
    assert_true(strlen(text_at(v, "content.0.signature")) > 0);
    assert_string_equal(text_at(v, "content.1.text"), "23 + 58 = 81");
    assert_int_equal(json_array_size(at(v, "content")), 2);
    assert_true(int_at(v, "usage.output_tokens_details.thinking_tokens") > 10);
    json_decref(v);
    v = rig_stream(&rig, MESSAGES, BASE "\"stream\":true," SUM "}");
    assert_joined(v, "delta.thinking", thought);
    assert_joined(v, "delta.text", "23 + 58 = 81");
    assert_joined(v, "content_block.type", "thinkingtext");
    json_decref(v);
}

/* A begun answer is gone on with. */
static void test_prefill(void **state)
{
    (void)state;
    json_t *v =
        message(BASE "\"messages\":[{\"role\":\"user\",\"content\":\"What is the capital of "
                     "Norway?\"},{\"role\":\"assistant\",\"content\":\"The capital of\"}]}");
    assert_string_equal(text_at(v, "content.0.text"), " Norway is Oslo.");
    json_decref(v);
}

static void test_stop(void **state)
{
    (void)state;
    json_t *v = message(BASE "\"stop_sequences\":[\"zzz\",\" Oslo\"]," FACT "}");
    assert_string_equal(text_at(v, "content.0.text"), "The capital of Norway is");
    assert_string_equal(text_at(v, "stop_reason"), "stop_sequence");
    assert_string_equal(text_at(v, "stop_sequence"), " Oslo");
    json_decref(v);
    v = message("{\"model\":\"any\",\"max_tokens\":3,\"temperature\":0," FACT "}");
    assert_string_equal(text_at(v, "stop_reason"), "max_tokens");
    assert_int_equal(int_at(v, "usage.output_tokens"), 3);
    json_decref(v);
}

/* What is counted is what is charged, tools and thinking included. */
static void test_count(void **state)
{
    static const char *const rests[] = {
        FACT, TOOLS ",\"messages\":[" QUESTION "]", SUM,
        "\"system\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]," FACT};
    (void)state;
    for (size_t i = 0; i < sizeof rests / sizeof *rests; i++) {
        char body[2048];
        int status;
        snprintf(body, sizeof body, BASE "%s}", rests[i]);
        json_t *v = message(body);
        json_t *n = rig_post(&rig, MESSAGES "/count_tokens", body, &status);
        assert_int_equal(status, 200);
        assert_int_equal(int_at(n, "input_tokens"), int_at(v, "usage.input_tokens") +
                                                        int_at(v, "usage.cache_read_input_tokens"));
        json_decref(v);
        json_decref(n);
    }
}

static void test_errors(void **state)
{
    static const char *const bodies[] = {
        "{}",
        "{\"model\":\"any\"," FACT "}",
        BASE "\"messages\":[]}",
        BASE "\"top_k\":\"x\"," FACT "}",
        BASE "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        int status;
        json_t *v = rig_post(&rig, MESSAGES, bodies[i], &status);
        assert_int_equal(status, 400);
        assert_string_equal(text_at(v, "type"), "error");
        assert_string_equal(text_at(v, "error.type"), "invalid_request_error");
        assert_true(strlen(text_at(v, "error.message")) > 0);
        json_decref(v);
    }
}

/* Clients that let the server hold conversations go on without when they are told in these words.
 */
static void test_threads(void **state)
{
    int status;
    (void)state;
    json_t *v =
        rig_post(&rig, MESSAGES, BASE "\"thread\":{\"type\":\"create\"}," FACT "}", &status);
    assert_int_equal(status, 400);
    assert_string_equal(text_at(v, "error.details.error_code"), "thread_unsupported_request");
    assert_string_equal(text_at(v, "error.details.unsupported.0"), "thread");
    json_decref(v);
}

/* A prompt that does not fit is an error before any stream. */
static void test_too_long(void **state)
{
    (void)state;
    struct mx_strbuf b;
    int status;
    mx_strbuf_init(&b, 0);
    mx_strbuf_puts(&b, BASE "\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 9000; i++)
        mx_strbuf_puts(&b, "one two ");
    mx_strbuf_puts(&b, "\"}]}");
    json_t *v = rig_post(&rig, MESSAGES, b.data, &status);
    assert_int_equal(status, 400);
    assert_non_null(strstr(text_at(v, "error.message"), "prompt is too long: "));
    json_decref(v);
    mx_strbuf_free(&b);
}

static int setup(void **state)
{
    (void)state;
    rig_start(&rig);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rig_stop(&rig);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),    cmocka_unit_test(test_stream),
        cmocka_unit_test(test_tools),    cmocka_unit_test(test_thinking),
        cmocka_unit_test(test_prefill),  cmocka_unit_test(test_stop),
        cmocka_unit_test(test_count),    cmocka_unit_test(test_errors),
        cmocka_unit_test(test_too_long), cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
