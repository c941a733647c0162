/* The Responses API over HTTP, on the nano model: real answers, stored responses, cancelling. */
#include "serve_rig.h"

#include "base/strbuf.h"

static struct rig rig;

#define RESPONSES "/v1/responses"
#define BASE "{\"model\":\"any\",\"temperature\":0,"
#define FACT "\"input\":\"What is the capital of Norway?\""
#define FACT_ANSWER "The capital of Norway is Oslo."
#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"name\":\"get_weather\",\"description\":\"Get the "        \
    "current "                                                                                     \
    "weather of a city\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":"  \
    "\"string\",\"description\":\"City name\"},\"unit\":{\"type\":\"string\",\"description\":"     \
    "\"celsius or fahrenheit\"}},\"required\":[\"city\"]}}]"

static json_t *create(const char *body)
{
    int status;
    json_t *v = rig_post(&rig, RESPONSES, body, &status);
    if (status != 200)
        fail_msg("%d: %s", status, json_dumps(v, 0));
    return v;
}

/* A request to /v1/responses/{id}{tail}. */
static json_t *call(const char *method, const char *id, const char *tail, int *status)
{
    char path[256];
    json_error_t je;
    snprintf(path, sizeof path, RESPONSES "/%s%s", id, tail);
    struct reply r = ask(rig.port, method, path, "", "");
    json_t *v = json_loadb(r.body, r.n, 0, &je);
    *status = r.status;
    free(r.body);
    return v;
}

static void assert_joined(const json_t *events, const char *path, const char *want)
{
    char all[2048] = "";
    for (size_t i = 0; i < json_array_size(events); i++) {
        const char *s = json_string_value(at(json_array_get(events, i), path));
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s", s ? s : "");
    }
    assert_string_equal(all, want);
}

static const json_t *last_of(const json_t *events)
{
    return json_array_get(events, json_array_size(events) - 1);
}

static void test_whole(void **state)
{
    (void)state;
    json_t *v = create(BASE FACT "}");
    assert_string_equal(text_at(v, "status"), "completed");
    assert_string_equal(text_at(v, "output.0.type"), "message");
    assert_string_equal(text_at(v, "output.0.content.0.text"), FACT_ANSWER);
    assert_int_equal(int_at(v, "usage.input_tokens"), 20);
    assert_int_equal(int_at(v, "usage.output_tokens"), 11);
    assert_int_equal(int_at(v, "usage.total_tokens"), 31);
    json_decref(v);
}

static void test_stream(void **state)
{
    (void)state;
    json_t *v = rig_stream(&rig, RESPONSES, BASE "\"stream\":true," FACT "}");
    assert_string_equal(text_at(v, "0.type"), "response.created");
    assert_joined(v, "delta", FACT_ANSWER);
    for (size_t i = 0; i < json_array_size(v); i++)
        assert_int_equal(int_at(json_array_get(v, i), "sequence_number"), i);
    assert_string_equal(text_at(last_of(v), "type"), "response.completed");
    assert_string_equal(text_at(last_of(v), "response.output.0.content.0.text"), FACT_ANSWER);
    json_decref(v);
}

static void test_reasoning(void **state)
{
    static const char thought[] =
        "Add digit by digit from the right. 3 + 8 = 11; 2 + 5 + 1 = 8. The result is 81.";
    (void)state;
    json_t *v = create(BASE "\"input\":\"What is 23 + 58?\",\"reasoning\":{\"effort\":\"low\"},"
                            "\"include\":[\"reasoning.encrypted_content\"]}");
    assert_string_equal(text_at(v, "output.0.type"), "reasoning");
    assert_string_equal(text_at(v, "output.0.content.0.text"), thought);
    assert_int_equal(strncmp(text_at(v, "output.0.encrypted_content"), "mtplx1.", 7), 0);
    assert_string_equal(text_at(v, "output.1.content.0.text"), "23 + 58 = 81");
    assert_true(int_at(v, "usage.output_tokens_details.reasoning_tokens") > 10);
    json_decref(v);
}

static void test_logprobs(void **state)
{
    (void)state;
    json_t *v = create(BASE "\"top_logprobs\":2," FACT "}");
    const json_t *list = at(v, "output.0.content.0.logprobs");
    char text[256] = "";
    assert_true(json_array_size(list) >= 10);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s", text_at(one, "token"));
        assert_true(json_number_value(at(one, "logprob")) <= 0);
        assert_int_equal(json_array_size(at(one, "top_logprobs")), 2);
    }
    assert_int_equal(strncmp(text, FACT_ANSWER, strlen(FACT_ANSWER)), 0);
    json_decref(v);

    v = rig_stream(&rig, RESPONSES, BASE "\"stream\":true,\"top_logprobs\":1," FACT "}");
    size_t deltas = 0;
    for (size_t i = 0; i < json_array_size(v); i++)
        if (strcmp(text_at(json_array_get(v, i), "type"), "response.output_text.delta") == 0)
            deltas += json_array_size(at(json_array_get(v, i), "logprobs"));
    assert_int_equal(deltas,
                     json_array_size(at(last_of(v), "response.output.0.content.0.logprobs")));
    assert_true(deltas >= 10);
    json_decref(v);
}

/* A call, and the answer to its result: first by previous_response_id, then by sending all items.
 */
static void test_tools(void **state)
{
#define WEATHER "What is the weather in Lisbon in celsius?"
#define RESULT "{\\\"temperature\\\": 21, \\\"condition\\\": \\\"sunny\\\"}"
    static const char answer[] = "It is 21 degrees celsius and sunny in Lisbon.";
    char body[4096];
    (void)state;
    json_t *v = create(BASE TOOLS ",\"input\":\"" WEATHER "\"}");
    assert_string_equal(text_at(v, "output.0.type"), "function_call");
    assert_string_equal(text_at(v, "output.0.arguments"),
                        "{\"city\":\"Lisbon\",\"unit\":\"celsius\"}");
    snprintf(body, sizeof body,
             BASE TOOLS ",\"previous_response_id\":\"%s\",\"input\":[{\"type\":"
                        "\"function_call_output\",\"call_id\":\"%s\",\"output\":\"" RESULT "\"}]}",
             text_at(v, "id"), text_at(v, "output.0.call_id"));
    json_t *w = create(body);
    assert_string_equal(text_at(w, "output.0.content.0.text"), answer);
    assert_true(int_at(w, "usage.input_tokens_details.cached_tokens") >=
                int_at(v, "usage.input_tokens"));
    json_decref(w);

    char *item = json_dumps(at(v, "output.0"), JSON_COMPACT);
    snprintf(body, sizeof body,
             BASE TOOLS ",\"store\":false,\"input\":[{\"role\":\"user\",\"content\":\"" WEATHER
                        "\"},%s,{\"type\":\"function_call_output\",\"call_id\":\"%s\",\"output\":"
                        "\"" RESULT "\"}]}",
             item, text_at(v, "output.0.call_id"));
    free(item);
    w = create(body);
    assert_string_equal(text_at(w, "output.0.content.0.text"), answer);
    json_decref(w);
    json_decref(v);
}

static void test_store(void **state)
{
    int status;
    char body[512];
    (void)state;
    json_t *v = create(BASE FACT ",\"metadata\":{\"a\":\"b\"}}");
    const char *id = text_at(v, "id");
    json_t *w = call("GET", id, "", &status);
    assert_int_equal(status, 200);
    assert_true(json_equal(v, w));
    json_decref(w);

    w = call("GET", id, "/input_items?order=asc&limit=5", &status);
    assert_int_equal(status, 200);
    assert_int_equal(json_array_size(at(w, "data")), 1);
    assert_string_equal(text_at(w, "data.0.content.0.text"), "What is the capital of Norway?");
    assert_string_equal(text_at(w, "first_id"), text_at(w, "last_id"));
    assert_true(json_is_false(at(w, "has_more")));
    json_decref(w);
    json_decref(call("GET", id, "/input_items?limit=0", &status));
    assert_int_equal(status, 400);
    json_decref(call("POST", id, "/cancel", &status));
    assert_int_equal(status, 400);

    /* instructions are not carried over */
    snprintf(body, sizeof body, BASE "\"previous_response_id\":\"%s\"," FACT "}", id);
    w = create(body);
    assert_true(int_at(w, "usage.input_tokens") > 40);
    json_decref(w);

    w = call("DELETE", id, "", &status);
    assert_int_equal(status, 200);
    assert_true(json_is_true(at(w, "deleted")));
    json_decref(w);
    json_decref(call("GET", id, "", &status));
    assert_int_equal(status, 404);
    json_decref(call("DELETE", id, "", &status));
    assert_int_equal(status, 404);
    w = rig_post(&rig, RESPONSES, body, &status);
    assert_int_equal(status, 400);
    assert_string_equal(text_at(w, "error.code"), "previous_response_not_found");
    json_decref(w);
    json_decref(v);

    v = create(BASE "\"store\":false," FACT "}");
    json_decref(call("GET", text_at(v, "id"), "", &status));
    assert_int_equal(status, 404);
    json_decref(v);
}

/* The store of the rig has 16 places. */
static void test_store_is_bounded(void **state)
{
    int status;
    (void)state;
    json_t *first = create(BASE "\"max_output_tokens\":1," FACT "}"), *v = NULL;
    for (int i = 0; i < 16; i++) {
        json_decref(v);
        v = create(BASE "\"max_output_tokens\":1," FACT "}");
    }
    json_decref(call("GET", text_at(first, "id"), "", &status));
    assert_int_equal(status, 404);
    json_decref(call("GET", text_at(v, "id"), "", &status));
    assert_int_equal(status, 200);
    json_decref(first);
    json_decref(v);
}

/* Reads the first event's response id from an open stream. */
static void read_id(int fd, char id[64])
{
    char text[8192] = "";
    size_t n = 0;
    const char *found = NULL;
    while (!found && n + 1 < sizeof text) {
        ssize_t k = get_some(fd, text + n, sizeof text - 1 - n, 8000);
        assert_true(k > 0);
        n += (size_t)k;
        text[n] = '\0';
        found = strstr(text, "\"id\":\"resp_");
    }
    assert_non_null(found);
    snprintf(id, 64, "%.29s", found + 6);
}

/* Reads on until the stream has said `word`. */
static void read_until(int fd, const char *word)
{
    struct mx_strbuf all;
    char piece[4096];
    ssize_t k = 0;
    mx_strbuf_init(&all, 1 << 20);
    mx_strbuf_puts(&all, "");
    while (!strstr(all.data, word) && (k = get_some(fd, piece, sizeof piece, 8000)) > 0)
        mx_strbuf_append(&all, piece, (size_t)k);
    assert_non_null(strstr(all.data, word));
    mx_strbuf_free(&all);
}

/* Cancels a stream while its long prompt is being read; 400 when it was faster. */
static int cancel_stream(const char *body)
{
    char head[256], id[64];
    int fd = dial(rig.port), status, ignored;
    snprintf(head, sizeof head,
             "POST " RESPONSES " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\n\r\n",
             strlen(body));
    put_text(fd, head);
    put_text(fd, body);
    read_id(fd, id);
    json_t *v = call("POST", id, "/cancel", &status);
    if (status == 200) {
        assert_string_equal(text_at(v, "status"), "cancelled");
        read_until(fd, "response.failed");
        json_t *w = call("GET", id, "", &ignored);
        assert_string_equal(text_at(w, "status"), "cancelled");
        json_decref(w);
    }
    json_decref(v);
    close(fd);
    return status;
}

static void test_cancel(void **state)
{
    struct mx_strbuf b;
    int status = 0;
    (void)state;
    mx_strbuf_init(&b, 0);
    for (int tries = 0; tries < 5 && status != 200; tries++) {
        mx_strbuf_clear(&b);
        mx_strbuf_printf(&b, BASE "\"stream\":true,\"input\":\"%d", tries);
        for (int i = 0; i < 3000; i++)
            mx_strbuf_puts(&b, " one two");
        mx_strbuf_puts(&b, "\"}");
        status = cancel_stream(b.data);
    }
    assert_int_equal(status, 200);
    mx_strbuf_free(&b);
}

/* One key cannot read, go on with, or delete what another has made. */
static void test_keys(void **state)
{
    static const char *const keys[] = {"key-of-a", "key-of-b"};
    static const char a[] = "Content-Type: application/json\r\nAuthorization: Bearer key-of-a\r\n";
    static const char b[] = "Content-Type: application/json\r\nAuthorization: Bearer key-of-b\r\n";
    mtplx_error err = {0};
    char path[128], next[256];
    (void)state;
    struct mx_server_options o = {.host = "127.0.0.1", .api_keys = keys, .n_api_keys = 2};
    struct mx_server *s = mx_server_start(&rig.app, &o, &err);
    assert_non_null(s);
    int port = mx_server_port(s);
    struct reply r = ask(port, "POST", RESPONSES, a, BASE FACT "}");
    assert_int_equal(r.status, 200);
    json_t *v = json_loadb(r.body, r.n, 0, NULL);
    free(r.body);
    snprintf(path, sizeof path, RESPONSES "/%s", text_at(v, "id"));
    snprintf(next, sizeof next, BASE "\"previous_response_id\":\"%s\"," FACT "}", text_at(v, "id"));
    assert_int_equal(ask_status(port, "GET", path, b, ""), 404);
    assert_int_equal(ask_status(port, "DELETE", path, b, ""), 404);
    assert_int_equal(ask_status(port, "POST", RESPONSES, b, next), 400);
    assert_int_equal(ask_status(port, "GET", path, "", ""), 401);
    assert_int_equal(ask_status(port, "GET", path, a, ""), 200);
    assert_int_equal(ask_status(port, "POST", RESPONSES, a, next), 200);
    json_decref(v);
    mx_server_free(s);
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
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_reasoning),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_store),
        cmocka_unit_test(test_store_is_bounded),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
