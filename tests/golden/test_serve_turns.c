/* Conversations over HTTP with turn alignment: what the second turn has to read, who may restore
 * whose prompts, and that reading ahead gives way to requests. */
#include "serve_rig.h"

#include "base/strbuf.h"
#include "serve/borders.h"
#include "serve/metrics_int.h"
#include "serve/turn_int.h"

static struct rig rig;

/* ---- Asking ------------------------------------------------------------------------------- */

#define CHAT "/v1/chat/completions"

/* A chat of messages (JSON text, without brackets); `more` are further members, with a comma. */
static json_t *chat(const char *messages, const char *more)
{
    struct mx_strbuf b;
    int status = 0;
    mx_strbuf_init(&b, 0);
    mx_strbuf_printf(&b, "{\"messages\":[%s],\"max_tokens\":60%s}", messages, more);
    json_t *v = rig_post(&rig, CHAT, b.data, &status);
    if (status != 200)
        fail_msg("status %d: %s", status, json_dumps(v, 0));
    mx_strbuf_free(&b);
    return v;
}

static struct mx_align_stats stats(void)
{
    struct mx_align_stats s;
    mx_align_get_stats(rig.app.align, &s);
    return s;
}

/* Waits until what was offered by now has been dealt with: `n` predictions in all. */
static struct mx_align_stats settled(uint64_t n)
{
    struct mx_align_stats s = stats();
    for (int i = 0; i < 6000 && (s.predicted + s.unpredicted < n || s.waiting > 0); i++) {
        usleep(10000);
        s = stats();
    }
    assert_int_equal(s.waiting, 0);
    return s;
}

/* Where the last message of a request begins in its prompt, counted in tokens. */
static size_t last_message(const json_t *messages, const json_t *tools, bool think)
{
    struct mx_turn_request r;
    struct mx_turn_prompt p;
    struct mx_api_error e = {0};
    size_t count = 0;
    mx_turn_defaults(&rig.app, &r);
    r.messages = messages;
    r.tools = tools;
    r.thinking = think ? MX_ON : MX_UNSET;
    assert_true(mx_turn_prompt_make(&rig.app, &r, &p, &e));
    size_t *borders = mx_borders_find(&rig.app, p.ids, p.n, &count);
    assert_true(count >= 2);
    size_t at = borders[count - 2];
    free(borders);
    mx_turn_prompt_free(&p);
    return at;
}

#define ASK "{\"role\":\"user\",\"content\":\"What is the capital of Norway?\"}"
#define MORE "{\"role\":\"user\",\"content\":\"What is the capital of Italy?\"}"

/* ---- Alignment ---------------------------------------------------------------------------- */

/* Asks, waits, and sends the reply back with another message behind it. Returns how many tokens
 * before that message the second request had to read. */
static size_t two_turns(const char *ask_first, const char *then, const char *more, bool think,
                        const char *reasoning)
{
    struct mx_align_stats before = stats(), s;
    json_t *first = chat(ask_first, more);
    json_t *reply = at(first, "choices.0.message");
    s = settled(before.predicted + before.unpredicted + 1);
    assert_int_equal(s.predicted, before.predicted + 1);
    assert_int_equal(s.finished + s.aligned, before.finished + before.aligned + 1);
    if (reasoning) {
        assert_non_null(at(reply, "reasoning_content"));
        json_object_del(reply, "reasoning_content"); /* as most clients do */
    }
    struct mx_strbuf b;
    mx_strbuf_init(&b, 0);
    char *text = json_dumps(reply, 0);
    mx_strbuf_printf(&b, "%s,%s,%s", ask_first, text, then);
    json_t *second = chat(b.data, more);
    free(text);
    text = strdup(b.data);
    mx_strbuf_clear(&b);
    mx_strbuf_printf(&b, "{\"m\":[%s]%s}", text, more);
    json_t *body = json_loads(b.data, 0, NULL);
    assert_non_null(body);
    size_t known = last_message(at(body, "m"), at(body, "tools"), think);
    size_t cached = (size_t)int_at(second, "usage.prompt_tokens_details.cached_tokens");
    s = settled(before.predicted + before.unpredicted + 2);
    assert_int_equal(s.matched, before.matched + 1);
    assert_int_equal(s.mismatched, before.mismatched);

    /* And not read from the bank, it says the same. */
    mx_bank_drop(mx_engine_bank(rig.app.engine), NULL, 0, false);
    json_t *cold = chat(text, more);
    assert_int_equal(int_at(cold, "usage.prompt_tokens_details.cached_tokens"), 0);
    assert_true(
        json_equal(at(cold, "choices.0.message.content"), at(second, "choices.0.message.content")));
    settled(before.predicted + before.unpredicted + 3);
    free(text);
    mx_strbuf_free(&b);
    json_decref(body);
    json_decref(first);
    json_decref(second);
    json_decref(cold);
    assert_true(cached <= known);
    return known - cached;
}

/* The template writes empty reasoning tags before an answer, and leaves them out in the next turn:
 * without alignment the answer would be read again. */
static void test_empty_tags(void **state)
{
    (void)state;
    assert_int_equal(two_turns(ASK, MORE, "", false, NULL), 0);
}

static void test_reasoning_stripped(void **state)
{
    (void)state;
    assert_int_equal(two_turns("{\"role\":\"user\",\"content\":\"What is 3+4?\"}", MORE,
                               ",\"enable_thinking\":true", true, "reasoning"),
                     0);
}

/* The next step of a tool loop goes on from the end of the answer, but for its closing token. */
static void test_tool_loop(void **state)
{
    (void)state;
    size_t missing = two_turns(
        "{\"role\":\"user\",\"content\":\"What is the weather in Lisbon?\"}",
        "{\"role\":\"tool\",\"tool_call_id\":\"x\",\"content\":\"sunny\"}",
        ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"description\":"
        "\"Get the current weather of a city\",\"parameters\":{\"type\":\"object\",\"properties\":"
        "{\"city\":{\"type\":\"string\",\"description\":\"City name\"}},\"required\":[\"city\"]}}"
        "}]",
        false, NULL);
    assert_true(missing < 4);
}

/* What the client changes is counted, and does no harm. */
static void test_mismatch(void **state)
{
    (void)state;
    struct mx_align_stats before = stats();
    json_decref(chat(ASK, ""));
    settled(before.predicted + before.unpredicted + 1);
    json_decref(chat(ASK ",{\"role\":\"assistant\",\"content\":\"No idea.\"}," MORE, ""));
    assert_int_equal(stats().mismatched, before.mismatched + 1);
    assert_int_equal(stats().matched, before.matched);
    settled(before.predicted + before.unpredicted + 2);
}

/* A request takes the engine at once; the reading is taken up again behind it. */
static void test_gives_way(void **state)
{
    (void)state;
    enum { ITEMS = SLOW_BUILD ? 300 : 1200 };
    struct mx_turn_request r;
    struct mx_turn_prompt p;
    struct mx_api_error e = {0};
    struct mx_strbuf b;
    size_t n_borders = 0;
    mx_strbuf_init(&b, 0);
    for (int i = 0; i < ITEMS; i++)
        mx_strbuf_printf(&b, "item %d ", i);
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", b.data);
    mx_turn_defaults(&rig.app, &r);
    r.messages = messages;
    r.resend = MX_RESEND_MESSAGE;
    assert_true(mx_turn_prompt_make(&rig.app, &r, &p, &e));
    size_t *borders = mx_borders_find(&rig.app, p.ids, p.n, &n_borders);
    struct mx_align_offer o = {.saved = mx_align_save(&r, p.n),
                               .prompt = p.ids,
                               .n_prompt = p.n,
                               .base = borders[n_borders - 1],
                               .base_hash =
                                   mx_align_hash(rig.app.align, p.ids, borders[n_borders - 1]),
                               .scope = "",
                               .label = "long"};
    struct mx_align_stats before = stats(), s;
    o.prompt[0] ^= 1; /* so that nothing of the prediction seems to be there */
    p.ids = NULL;
    mx_align_offer(rig.app.align, &o);
    for (int i = 0; i < 400 && stats().started == before.started; i++)
        usleep(5000);
    json_decref(chat(ASK, ""));
    s = settled(before.predicted + before.unpredicted + 2);
    assert_true(s.abandoned > before.abandoned);
    assert_true(s.finished >= before.finished + 1);
    assert_int_equal(s.failed, before.failed);
    assert_true(s.tokens > before.tokens + ITEMS);
    free(borders);
    mx_turn_prompt_free(&p);
    mx_strbuf_free(&b);
    json_decref(messages);
}

/* ---- Scopes ------------------------------------------------------------------------------- */

static long long cached_with(int port, const char *key)
{
    char head[128];
    snprintf(head, sizeof head, "Content-Type: application/json\r\nAuthorization: Bearer %s\r\n",
             key);
    struct reply r = ask(port, "POST", CHAT, head,
                         "{\"messages\":[{\"role\":\"user\",\"content\":\"What is the capital of "
                         "Portugal?\"}],\"max_tokens\":20}");
    assert_int_equal(r.status, 200);
    json_t *v = json_loadb(r.body, r.n, 0, NULL);
    long long n = int_at(v, "usage.prompt_tokens_details.cached_tokens");
    json_decref(v);
    free(r.body);
    return n;
}

static void test_scopes(void **state)
{
    (void)state;
    static const char *const keys[] = {"first-key", "second-key"};
    struct mx_server_options so = {.host = "127.0.0.1", .api_keys = keys, .n_api_keys = 2};
    mtplx_error err = {0};
    struct mx_server *server = mx_server_start(&rig.app, &so, &err);
    assert_non_null(server);
    int port = mx_server_port(server);
    assert_int_equal(cached_with(port, keys[0]), 0);
    assert_true(cached_with(port, keys[0]) > 10);
    assert_int_equal(cached_with(port, keys[1]), 0);
    assert_true(cached_with(port, keys[1]) > 10);
    json_t *sessions = mx_status_sessions(&rig.app);
    const char *id = text_at(sessions, "0.id");
    assert_int_equal(strncmp(id, "key-", 4), 0);
    assert_null(strstr(id, "second"));
    json_decref(sessions);
    mx_server_free(server);
}

/* ---- Ending ------------------------------------------------------------------------------- */

/* What it reads is given up, what is offered later is dropped. */
static void test_stops(void **state)
{
    (void)state;
    json_decref(chat(ASK, ""));
    uint64_t t0 = mx_now_ns();
    mx_align_stop(rig.app.align);
    assert_true(mx_now_ns() - t0 < 2000000000u);
    struct mx_align_stats before = stats();
    json_decref(chat(MORE, ""));
    assert_int_equal(stats().waiting, before.waiting);
    mx_align_stop(rig.app.align);
}

static int start(void **state)
{
    mtplx_error err = {0};
    (void)state;
    rig_start(&rig);
    rig.app.align = mx_align_new(&rig.app, &err);
    assert_non_null(rig.app.align);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    mx_align_stop(rig.app.align);
    struct mx_align *align = rig.app.align;
    rig_stop(&rig);
    mx_align_free(align);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty_tags), cmocka_unit_test(test_reasoning_stripped),
        cmocka_unit_test(test_tool_loop),  cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_gives_way),  cmocka_unit_test(test_scopes),
        cmocka_unit_test(test_stops),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
