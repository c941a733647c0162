/* The way of an answer's tokens to events, without an engine: however the tokens come, the events
 * joined are the same, and the tokens they name are those that the visible text came from. */
#include "golden.h"

#include "base/clock.h"
#include "base/strbuf.h"
#include "serve/turn_int.h"

static struct mx_app app;

#define STOP_TOKEN 8182

/* What the events of an answer say, joined. */
struct told {
    struct mx_strbuf text, reasoning, calls, traced;
    int begun, ended;
    size_t last; /* behind the last token that an event named */
    const int32_t *ids;
};

static void on_event(void *arg, const struct mx_turn_event *ev)
{
    struct told *t = arg;
    size_t len;
    switch (ev->kind) {
    case MX_TURN_TEXT:
        mx_strbuf_append(&t->text, ev->text, ev->n);
        assert_true(ev->n_tokens == 0 || ev->token >= t->last);
        for (size_t i = ev->token; i < ev->token + ev->n_tokens; i++) {
            char *s = mtplx_decode(app.model, &t->ids[i], 1, true, &len, NULL);
            mx_strbuf_puts(&t->traced, s);
            mtplx_free(s);
            t->last = i + 1;
        }
        break;
    case MX_TURN_REASONING: mx_strbuf_append(&t->reasoning, ev->text, ev->n); break;
    case MX_TURN_TOOL_BEGIN:
        assert_int_equal(strlen(ev->call_id), 29);
        mx_strbuf_printf(&t->calls, "%s(", ev->name);
        t->begun++;
        break;
    case MX_TURN_TOOL_ARGS: mx_strbuf_append(&t->calls, ev->text, ev->n); break;
    case MX_TURN_TOOL_END:
        mx_strbuf_puts(&t->calls, ")");
        t->ended++;
        break;
    case MX_TURN_PROGRESS:
    case MX_TURN_FINISH:
    case MX_TURN_CLOSE: break;
    }
}

struct answer {
    const char *written; /* by the model */
    const char *text, *reasoning, *calls;
    const char *stop;
    bool thinking, one_call;
    const char *traced; /* NULL: the text */
};

#define CALL(city)                                                                                 \
    "<tool_call>\n<function=get>\n<parameter=city>\n" city "\n</parameter>\n</function>\n"         \
    "</tool_call>"

static const struct answer answers[] = {
    {"Plain text.", "Plain text.", "", "", NULL, false, false, NULL},
    {"Sma\xc3\xb1"
     "ana \xe2\x82\xac \xf0\x9f\x98\x80!",
     "Sma\xc3\xb1"
     "ana \xe2\x82\xac "
     "\xf0\x9f\x98\x80!",
     "", "", NULL, false, false, ""},
    {"I think.\nA lot.\n</think>\n\nThe end.", "The end.", "I think.\nA lot.", "", NULL, true,
     false, NULL},
    {"Say `</think>` and go.</think>x", "x", "Say `</think>` and go.", "", NULL, true, false, NULL},
    {"one two three four", "one two ", "", "", "three", false, false, NULL},
    {"one two three four", "one t", "", "", "wo thr", false, false, "one two"},
    {"stop in thought\n</think>\n\nAnd stop here", "And ", "stop in thought", "", "stop", true,
     false, NULL},
    {CALL("Rome"), "", "", "get({\"city\":\"Rome\"})", NULL, false, false, NULL},
    {"Let me see.\n" CALL("Rome") "\n" CALL("Oslo"), NULL, "",
     "get({\"city\":\"Rome\"})get({\"city\":\"Oslo\"})", NULL, false, false, ""},
    {CALL("Rome") "\n" CALL("Oslo"), "", "", "get({\"city\":\"Rome\"})", NULL, false, true, NULL},
    {"A <tool_call> is a tag.", "A <tool_call> is a tag.", "", "", NULL, false, false, NULL},
    {"hold EN" CALL("Rome"), "hold EN", "", "get({\"city\":\"Rome\"})", "END", false, false, NULL},
    {CALL("END"), "", "", "get({\"city\":\"END\"})", "END", false, false, NULL},
};

static json_t *tools(void)
{
    return json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"parameters\":"
                      "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}}}}}]",
                      0, NULL);
}

static void init_told(struct told *t, const int32_t *ids)
{
    *t = (struct told){.ids = ids};
    mx_strbuf_init(&t->text, 0);
    mx_strbuf_init(&t->reasoning, 0);
    mx_strbuf_init(&t->calls, 0);
    mx_strbuf_init(&t->traced, 0);
    mx_strbuf_append(&t->text, "", 0);
    mx_strbuf_append(&t->reasoning, "", 0);
    mx_strbuf_append(&t->calls, "", 0);
    mx_strbuf_append(&t->traced, "", 0);
}

static void free_told(struct told *t)
{
    mx_strbuf_free(&t->text);
    mx_strbuf_free(&t->reasoning);
    mx_strbuf_free(&t->calls);
    mx_strbuf_free(&t->traced);
}

/* Feeds the tokens `step` at a time (0: a growing number). */
static void feed(struct mx_choice *c, const int32_t *ids, size_t n, size_t step)
{
    size_t keep = SIZE_MAX;
    for (size_t i = 0, k = 1; i < n && keep == SIZE_MAX; k++) {
        size_t take = step ? step : k;
        take = take < n - i ? take : n - i;
        keep = mx_choice_tokens(c, ids + i, i, take);
        assert_true(keep == SIZE_MAX || (keep > i && keep <= i + take));
        i += take;
    }
    mx_choice_finish(c);
    assert_false(c->failed);
}

static void run(const struct answer *a, size_t step, struct told *told, const int32_t *ids,
                size_t n)
{
    struct mx_turn_request r;
    struct mx_api_error e = {0};
    mtplx_gen_options gen;
    json_t *messages = json_loads("[{\"role\":\"user\",\"content\":\"x\"}]", 0, NULL);
    json_t *list = tools();
    mx_turn_defaults(&app, &r);
    r.messages = messages;
    r.tools = list;
    r.thinking = a->thinking ? MX_ON : MX_OFF;
    r.gen.logprobs = 1;
    r.parallel_tool_calls = !a->one_call;
    if (a->stop)
        r.stop[r.n_stop++] = a->stop;
    r.event = on_event;
    r.arg = told;
    struct mx_turn *t = mx_turn_prepare(&app, NULL, &r, &gen, &e);
    if (!t)
        fail_msg("prepare: %s", e.message);
    feed(&t->choices[0], ids, n, step);
    mx_turn_free(t);
    json_decref(messages);
    json_decref(list);
}

static void check(const struct answer *a)
{
    size_t n;
    struct told first;
    int32_t *ids = mtplx_encode(app.model, a->written, strlen(a->written), false, &n, NULL);
    ids = realloc(ids, (n + 1) * sizeof *ids);
    assert_non_null(ids);
    ids[n++] = STOP_TOKEN;
    init_told(&first, ids);
    run(a, 1, &first, ids, n);
    if (a->text)
        assert_string_equal(first.text.data, a->text);
    assert_string_equal(first.reasoning.data, a->reasoning);
    assert_string_equal(first.calls.data, a->calls);
    assert_int_equal(first.begun, first.ended);
    if (a->stop && !a->traced) /* the last token may reach into what is cut off */
        assert_int_equal(strncmp(first.traced.data, first.text.data, first.text.len), 0);
    else if (!a->traced)
        assert_string_equal(first.traced.data, first.text.data);
    else if (*a->traced)
        assert_string_equal(first.traced.data, a->traced);
    for (size_t step = 0; step <= n; step += step < 4 ? 1 : 3) {
        struct told t;
        init_told(&t, ids);
        run(a, step, &t, ids, n);
        assert_string_equal(t.text.data, first.text.data);
        assert_string_equal(t.reasoning.data, first.reasoning.data);
        assert_string_equal(t.calls.data, first.calls.data);
        assert_string_equal(t.traced.data, first.traced.data);
        free_told(&t);
    }
    free_told(&first);
    free(ids);
}

static void test_answers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        check(&answers[i]);
    }
}

/* An answer gets what the context window leaves. */
static void test_context_limit(void **state)
{
    struct mx_turn_request r;
    struct mx_api_error e = {0};
    mtplx_gen_options gen;
    (void)state;
    json_t *ids = json_array();
    for (int i = 0; i < 8191; i++)
        json_array_append_new(ids, json_integer(40));
    mx_turn_defaults(&app, &r);
    r.prompt_ids = ids;
    r.raw = true;
    r.event = on_event;
    struct mx_turn *t = mx_turn_prepare(&app, NULL, &r, &gen, &e);
    assert_non_null(t);
    assert_int_equal(gen.max_tokens, 1); /* what is left of 8,192 */
    mx_turn_free(t);
    json_array_append_new(ids, json_integer(40));
    assert_null(mx_turn_prepare(&app, NULL, &r, &gen, &e));
    assert_int_equal(e.status, 400);
    assert_string_equal(e.code, "context_length_exceeded");
    assert_non_null(strstr(e.message, "tokens > 8191 maximum"));
    assert_non_null(strstr(e.message, "maximum context length is 8192 tokens"));
    json_decref(ids);
}

static void test_continue(void **state)
{
    struct mx_turn_request r;
    struct mx_turn_prompt p;
    struct mx_api_error e = {0};
    (void)state;
    json_t *messages = json_loads("[{\"role\":\"user\",\"content\":\"Count\"},"
                                  "{\"role\":\"assistant\",\"content\":\"one, two, \"}]",
                                  0, NULL);
    mx_turn_defaults(&app, &r);
    r.messages = messages;
    r.continue_final = true;
    assert_true(mx_turn_prompt_make(&app, &r, &p, &e));
    const char tail[] = "one, two,";
    assert_true(p.text.len > sizeof tail);
    assert_string_equal(p.text.data + p.text.len - (sizeof tail - 1), tail);
    mx_turn_prompt_free(&p);
    json_array_remove(messages, 1);
    assert_false(mx_turn_prompt_make(&app, &r, &p, &e));
    assert_int_equal(e.status, 400);
    mx_turn_prompt_free(&p);
    json_decref(messages);
}

/* The template refuses system messages that are not first, or shows them: no word is lost. */
static void test_late_system(void **state)
{
    struct mx_turn_request r;
    struct mx_turn_prompt p;
    struct mx_api_error e = {0};
    (void)state;
    json_t *messages = json_loads("[{\"role\":\"user\",\"content\":\"Hi\"},"
                                  "{\"role\":\"assistant\",\"content\":\"Ho\"},"
                                  "{\"role\":\"system\",\"content\":\"Be brief\"},"
                                  "{\"role\":\"user\",\"content\":\"Go\"}]",
                                  0, NULL);
    mx_turn_defaults(&app, &r);
    r.messages = messages;
    assert_true(mx_turn_prompt_make(&app, &r, &p, &e));
    assert_non_null(strstr(p.text.data, app.system_first ? "user\nBe brief" : "system\nBe brief"));
    mx_turn_prompt_free(&p);
    json_decref(messages);
}

/* Texts that occur at every place of the prompt cost no more than others; with one step for each
 * place this takes minutes. */
static void test_continue_long(void **state)
{
    enum { N = 1 << 19 };
    struct mx_turn_request r;
    struct mx_turn_prompt p;
    struct mx_api_error e = {0};
    (void)state;
    char *a = malloc(N + 1);
    memset(a, 'a', N);
    a[N] = '\0';
    json_t *messages = json_pack("[{s:s,s:s},{s:s,s:s}]", "role", "user", "content", a, "role",
                                 "assistant", "content", a + N / 2);
    mx_turn_defaults(&app, &r);
    r.messages = messages;
    r.continue_final = true;
    uint64_t start = mx_now_ns();
    assert_true(mx_turn_prompt_make(&app, &r, &p, &e));
    assert_true(mx_now_ns() - start < 5000000000ull);
    assert_string_equal(p.text.data + p.text.len - N / 2, a + N / 2);
    assert_int_equal(p.text.data[p.text.len - N / 2 - 1], '\n');
    mx_turn_prompt_free(&p);
    json_decref(messages);
    free(a);
}

static int setup(void **state)
{
    (void)state;
    app.model = load_or_fail(src_path("models/nano"), NULL);
    mx_app_read_template(&app);
    app.settings.sampling_seeded = true;
    return pthread_mutex_init(&app.lock, NULL);
}

static int teardown(void **state)
{
    (void)state;
    pthread_mutex_destroy(&app.lock);
    mtplx_model_free(app.model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),     cmocka_unit_test(test_context_limit),
        cmocka_unit_test(test_continue),    cmocka_unit_test(test_continue_long),
        cmocka_unit_test(test_late_system),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
