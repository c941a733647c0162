/* The routes beside the dialects over HTTP, on the nano model: what is told matches what was done,
 * hostile ids and bodies are refused by name, the metrics stream is bounded and ends. */
#include "serve_rig.h"

#include "serve/metrics_int.h"

static struct rig rig;

static json_t *get_json(const char *path)
{
    struct reply r = ask(rig.port, "GET", path, "Accept: application/json\r\n", "");
    assert_int_equal(r.status, 200);
    json_t *v = json_loadb(r.body, r.n, 0, NULL);
    assert_non_null(v);
    free(r.body);
    return v;
}

static void refused(const char *path, const char *body, int want, const char *param)
{
    int status = 0;
    json_t *v = rig_post(&rig, path, body, &status);
    if (status != want)
        fail_msg("%s %s: status %d", path, body, status);
    assert_string_equal(text_at(v, "error.param"), param);
    json_decref(v);
}

static void refused_delete(const char *path, int want, const char *param)
{
    struct reply r = ask(rig.port, "DELETE", path, "", "");
    if (r.status != want)
        fail_msg("DELETE %s: status %d", path, r.status);
    json_t *v = json_loadb(r.body, r.n, 0, NULL);
    assert_string_equal(text_at(v, "error.param"), param);
    json_decref(v);
    free(r.body);
}

static json_t *post(const char *path, const char *body)
{
    int status = 0;
    json_t *v = rig_post(&rig, path, body, &status);
    if (status != 200)
        fail_msg("%s: status %d, %s", path, status, json_dumps(v, 0));
    return v;
}

static void answer_once(void)
{
    json_decref(post("/v1/chat/completions",
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"What is the capital of "
                     "Norway?\"}],\"max_tokens\":20}"));
}

/* ---- Telling ------------------------------------------------------------------------------ */

static void test_models_and_health(void **state)
{
    (void)state;
    json_t *list = get_json("/v1/models");
    json_t *one = get_json("/v1/models/nano");
    assert_true(json_equal(at(list, "data.0"), one));
    assert_int_equal(int_at(one, "context_length"), 8192);
    assert_int_equal(int_at(one, "max_model_len"), 8192);
    assert_string_equal(text_at(one, "architecture"), "qwen3_5");
    json_t *health = get_json("/health");
    assert_true(json_is_true(at(health, "ok")));
    assert_int_equal(int_at(health, "startup.pid"), getpid());
    assert_non_null(strstr(text_at(health, "model_path"), "nano"));
    assert_string_equal(text_at(health, "scheduler.config.mode"), "mtp_batch");
    assert_int_equal(ask_status(rig.port, "GET", "/v1/models/other", "", ""), 404);
    json_decref(list);
    json_decref(one);
    json_decref(health);
}

static void test_metrics_follow_answers(void **state)
{
    (void)state;
    json_t *before = get_json("/metrics");
    answer_once();
    json_t *after = get_json("/metrics");
    assert_int_equal(int_at(after, "counters.accepted"), int_at(before, "counters.accepted") + 1);
    assert_int_equal(int_at(after, "latest.completion_tokens"), 11);
    assert_int_equal(int_at(after, "latest.prompt_tokens"), 20);
    assert_string_equal(text_at(after, "latest.finish_reason"), "stop");
    json_t *history = get_json("/v1/mtplx/prefill_history");
    assert_string_equal(text_at(history, "history.0.id"), text_at(after, "latest.id"));
    struct reply r = ask(rig.port, "GET", "/metrics", "", "");
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body, "\nmtplx_answers_total{reason=\"stop\"} "));
    assert_non_null(strstr(r.body, "\nmtplx_ttft_seconds_bucket{le=\"+Inf\"} "));
    free(r.body);
    json_decref(before);
    json_decref(after);
    json_decref(history);
}

/* The snapshot once nothing runs: a job ends just after its answer has been sent. */
static json_t *idle_snapshot(void)
{
    json_t *s = get_json("/v1/mtplx/snapshot");
    for (int i = 0; i < 500 && int_at(s, "active") != 0; i++) {
        json_decref(s);
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
        s = get_json("/v1/mtplx/snapshot");
    }
    return s;
}

static void test_snapshot_and_capabilities(void **state)
{
    (void)state;
    json_t *s = idle_snapshot();
    assert_string_equal(text_at(s, "model.id"), "nano");
    assert_int_equal(int_at(s, "active"), 0);
    assert_int_equal(json_array_size(at(s, "jobs")), 0);
    json_t *c = get_json("/v1/mtplx/app/capabilities");
    assert_true(json_is_true(at(c, "features.mtp")));
    struct reply page = ask(rig.port, "GET", "/", "Accept: text/html\r\n", "");
    assert_non_null(strstr(page.body, "<h1>mtplx</h1>"));
    free(page.body);
    json_decref(s);
    json_decref(c);
}

/* ---- Changing ----------------------------------------------------------------------------- */

static void test_settings(void **state)
{
    (void)state;
    json_t *before = get_json("/v1/mtplx/settings");
    json_t *after = post("/v1/mtplx/settings", "{\"depth\":1,\"max_active\":2,\"top_k\":7}");
    assert_int_equal(int_at(after, "settings.depth"), 1);
    assert_int_equal(int_at(after, "settings.max_active"), 2);
    answer_once();
    refused("/v1/mtplx/settings", "{\"depth\":2,\"top_k\":\"x\"}", 400, "top_k");
    refused("/v1/mtplx/settings", "{\"port\":2}", 400, "port");
    refused("/v1/mtplx/settings", "{\"nonsense\":2}", 400, "nonsense");
    json_t *kept = get_json("/v1/mtplx/settings");
    assert_true(json_equal(kept, after));
    char *text = json_dumps(at(before, "settings"), 0);
    json_t *restored = post("/v1/mtplx/settings", text);
    assert_true(json_equal(restored, before));
    free(text);
    json_decref(before);
    json_decref(after);
    json_decref(kept);
    json_decref(restored);
}

static void test_cancel_unknown(void **state)
{
    (void)state;
    static const char *const ids[] = {
        "0", "999999", "-1", "18446744073709551616", "req_none", "%00", "..", "req_", "1x"};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        char path[128];
        snprintf(path, sizeof path, "/v1/mtplx/cancel/%s", ids[i]);
        int status = ask_status(rig.port, "POST", path, "", "");
        if (status != 404 && status != 400)
            fail_msg("%s: %d", path, status);
        snprintf(path, sizeof path, "/admin/sessions/%s/clear", ids[i]);
        status = ask_status(rig.port, "POST", path, "", "");
        /* A path ends at %00, and /admin/sessions is one with other methods. */
        if (status != 404 && status != 400 && status != 405)
            fail_msg("%s: %d", path, status);
    }
}

/* The sessions once there are `n`: a state is kept after its answer has been sent. */
static json_t *sessions(int n)
{
    json_t *s = get_json("/admin/sessions");
    for (int i = 0; i < 200 && int_at(s, "count") != n; i++) {
        json_decref(s);
        usleep(25000);
        s = get_json("/admin/sessions");
    }
    assert_int_equal(int_at(s, "count"), n);
    return s;
}

#define COUNTING                                                                                   \
    "\"one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "  \
    "sixteen seventeen eighteen nineteen twenty\""

static void test_sessions(void **state)
{
    (void)state;
    json_decref(post("/admin/cache/clear", ""));
    json_decref(sessions(0));
    json_decref(
        post("/v1/completions", "{\"prompt\":" COUNTING ",\"user\":\"erik\",\"max_tokens\":3}"));
    json_decref(sessions(1));
    json_decref(post("/v1/completions", "{\"prompt\":\"A river is\",\"max_tokens\":3}"));
    json_t *s = sessions(2), *cache = get_json("/admin/cache");
    assert_string_equal(text_at(s, "sessions.1.id"), "erik");
    assert_int_equal(strncmp(text_at(s, "sessions.0.id"), "text-", 5), 0);
    assert_int_equal(int_at(cache, "bank.entries"), int_at(s, "entries"));
    assert_int_equal(int_at(cache, "bank.bytes"), int_at(s, "bytes"));
    assert_true(int_at(s, "sessions.1.tokens") > 20);
    assert_true(int_at(s, "sessions.1.bytes") > 0);
    assert_non_null(at(s, "sessions.1.entries.0.point"));
    assert_string_equal(text_at(cache, "ssd.mode"), "off");
    json_decref(s);
    json_decref(cache);

    /* What is not quite asked for forgets nothing. */
    refused_delete("/admin/sessions/", 404, "id");
    refused_delete("/admin/sessions//", 404, "id");
    refused_delete("//admin/sessions/?cold=true", 404, "id");
    refused_delete("/admin/sessions?cold=maybe", 400, "cold");
    refused_delete("/admin/sessions?cold=", 400, "cold");
    refused_delete("/admin/sessions/erik?cold=maybe", 400, "cold");
    refused_delete("/admin/sessions/olga?cold=true", 404, "id");
    json_decref(get_json("/admin//sessions/"));
    s = sessions(2);
    assert_int_equal(int_at(s, "sessions.1.entries_on_disk"), 0);
    assert_true(json_is_false(at(s, "sessions.1.entries.0.on_disk")));
    json_decref(s);

    json_t *v = post("/admin/sessions/erik/pin", "");
    assert_true(int_at(v, "entries") > 0);
    json_decref(v);
    s = sessions(2);
    assert_true(json_is_true(at(s, "sessions.1.pinned")) ||
                json_is_true(at(s, "sessions.0.pinned")));
    json_decref(s);
    json_decref(post("/admin/sessions/erik/unpin", ""));
    assert_int_equal(ask_status(rig.port, "POST", "/admin/sessions/olga/pin", "", ""), 404);

    /* One entry by its number, then the rest by the session's name. */
    char path[64];
    s = sessions(2);
    snprintf(path, sizeof path, "/admin/sessions/%lld", int_at(s, "sessions.0.entries.0.id"));
    assert_int_equal(ask_status(rig.port, "DELETE", path, "", ""), 200);
    assert_int_equal(ask_status(rig.port, "DELETE", path, "", ""), 404);
    json_decref(s);
    assert_int_equal(ask_status(rig.port, "DELETE", "/admin/sessions/erik", "", ""), 200);
    assert_int_equal(ask_status(rig.port, "DELETE", "/admin/sessions/erik", "", ""), 404);
    assert_int_equal(ask_status(rig.port, "DELETE", "//admin/sessions?cold=true", "", ""), 200);
    json_decref(sessions(0));
}

static void test_told_in_answers(void **state)
{
    (void)state;
    const char *body = "{\"prompt\":" COUNTING ",\"max_tokens\":3}";
    json_decref(post("/v1/completions", body));
    json_decref(sessions(1));
    json_t *v = post("/v1/completions", body);
    long long n = int_at(v, "usage.prompt_tokens");
    assert_int_equal(int_at(v, "usage.prompt_tokens_details.cached_tokens"), n - 1);
    assert_int_equal(int_at(v, "mtplx_stats.cached_tokens"), n - 1);
    assert_int_equal(int_at(v, "mtplx_stats.new_prefill_tokens"), 1);
    assert_string_equal(text_at(v, "mtplx_stats.cache_miss_reason"), "none");
    assert_string_equal(text_at(v, "mtplx_stats.cache_restored"), "exact");
    assert_true(json_is_false(at(v, "mtplx_stats.cache_from_disk")));
    assert_null(at(v, "mtplx_stats.cycles"));
    json_decref(v);
    v = rig_stream(&rig, "/v1/chat/completions",
                   "{\"stream\":true,\"max_tokens\":2,\"messages\":[{\"role\":\"user\","
                   "\"content\":\"Hi\"}]}");
    size_t last = json_array_size(v) - 2; /* before [DONE] */
    assert_string_equal(text_at(json_array_get(v, last), "mtplx_stats.cache_miss_reason"),
                        "new_session");
    assert_string_equal(text_at(json_array_get(v, last), "choices.0.finish_reason"), "length");
    json_decref(v);
    struct reply r = ask(rig.port, "GET", "/metrics", "", "");
    assert_non_null(strstr(r.body, "\nmtplx_session_bank_hits_total "));
    assert_non_null(strstr(r.body, "\nmtplx_session_bank_lookups_total{reason=\"new_session\"} "));
    free(r.body);
}

/* ---- Tokens ------------------------------------------------------------------------------- */

static void test_tokens(void **state)
{
    (void)state;
    json_t *a = post("/tokenize", "{\"content\":\"Gr\\u00fc\\u00dfe \\u4e16\\u754c<|im_end|>\"}");
    json_t *b = post("/tokenize", "{\"prompt\":\"Gr\\u00fc\\u00dfe \\u4e16\\u754c<|im_end|>\","
                                  "\"return_token_strs\":true}");
    assert_true(json_equal(at(a, "tokens"), at(b, "tokens")));
    assert_int_equal(int_at(a, "count"), json_array_size(at(a, "tokens")));
    assert_int_equal(json_array_size(at(b, "token_strs")), int_at(a, "count"));
    json_t *body = json_pack("{s:O}", "tokens", at(a, "tokens"));
    char *text = json_dumps(body, 0);
    json_t *back = post("/detokenize", text);
    assert_string_equal(text_at(back, "content"), "Grüße 世界<|im_end|>");
    free(text);
    json_decref(a);
    json_decref(b);
    json_decref(body);
    json_decref(back);
}

static void test_tokens_refused(void **state)
{
    (void)state;
    refused("/tokenize", "{}", 400, "content");
    refused("/tokenize", "{\"text\":7}", 400, "text");
    refused("/tokenize", "{\"content\":\"x\",\"with_pieces\":1}", 400, "with_pieces");
    refused("/tokenize", "{\"messages\":{}}", 400, "messages");
    refused("/tokenize", "{\"messages\":[{\"role\":\"x\",\"content\":\"\"}]}", 400,
            "messages[0].role");
    refused("/detokenize", "{}", 400, "tokens");
    refused("/detokenize", "{\"tokens\":\"x\"}", 400, "tokens");
    refused("/detokenize", "{\"tokens\":[1,-1]}", 400, "tokens[1]");
    refused("/detokenize", "{\"tokens\":[8192]}", 400, "tokens[0]");
    refused("/detokenize", "{\"tokens\":[1.5]}", 400, "tokens[0]");
    refused("/detokenize", "{\"tokens\":[9223372036854775807]}", 400, "tokens[0]");
}

/* ---- The stream --------------------------------------------------------------------------- */

/* Closing, so that the end of a stream is seen at once. */
#define STREAM                                                                                     \
    "GET /v1/mtplx/metrics/stream HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

/* Reads until `n` events have come; false when the connection ended before. */
static bool events(int fd, int n)
{
    char buf[65536];
    while (n > 0) {
        ssize_t got = get_some(fd, buf, sizeof buf - 1, 8000);
        if (got <= 0)
            return false;
        buf[got] = '\0';
        for (char *p = buf; (p = strstr(p, "event: metrics")); p++)
            n--;
    }
    return true;
}

static int subscribers(void)
{
    struct mx_metrics_data *d = mx_metrics_copy(rig.app.metrics);
    int n = d->subscribers;
    free(d);
    return n;
}

static void wait_for_subscribers(int n)
{
    for (int i = 0; i < 200 && subscribers() != n; i++)
        usleep(25000);
    assert_int_equal(subscribers(), n);
}

static void test_stream_is_bounded(void **state)
{
    (void)state;
    int fds[32];
    for (int i = 0; i < 32; i++) {
        fds[i] = dial(rig.port);
        assert_true(fds[i] >= 0 && put_text(fds[i], STREAM));
    }
    wait_for_subscribers(32);
    assert_int_equal(ask_status(rig.port, "GET", "/v1/mtplx/metrics/stream", "", ""), 503);
    assert_true(events(fds[0], 3));
    assert_true(events(fds[31], 3));
    for (int i = 0; i < 31; i++)
        close(fds[i]);
    wait_for_subscribers(1);
    assert_true(events(fds[31], 2));
    close(fds[31]);
    wait_for_subscribers(0);
}

/* Ends the streams of the rig for good, so it comes last. */
static void test_stream_ends(void **state)
{
    (void)state;
    int fd = dial(rig.port);
    assert_true(put_text(fd, STREAM));
    assert_true(events(fd, 1));
    mx_metrics_stop(rig.app.metrics);
    assert_false(events(fd, 1000));
    close(fd);
    assert_int_equal(subscribers(), 0);
    assert_int_equal(ask_status(rig.port, "GET", "/v1/mtplx/metrics/stream", "", ""), 503);
}

static int start(void **state)
{
    (void)state;
    rig_start(&rig);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    rig_stop(&rig);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models_and_health),
        cmocka_unit_test(test_metrics_follow_answers),
        cmocka_unit_test(test_snapshot_and_capabilities),
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_cancel_unknown),
        cmocka_unit_test(test_sessions),
        cmocka_unit_test(test_told_in_answers),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_tokens_refused),
        cmocka_unit_test(test_stream_is_bounded),
        cmocka_unit_test(test_stream_ends),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
