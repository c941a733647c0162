/* Counters, their exposition and the settings of the server, without a server: bounded tables under
 * hostile names, every line of the Prometheus text parsed back, settings all or nothing. */
#include "exchange_rig.h"

#include "serve/api.h"
#include "serve/metrics_int.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void near_to(double value, double want, double tolerance)
{
    if (!(fabs(value - want) <= tolerance))
        fail_msg("%.17g is not %.17g", value, want);
}

/* ---- Parsing the exposition --------------------------------------------------------------- */

struct family {
    char name[80], type[16];
    bool help;
    int samples;
};

struct exposition {
    struct family families[128];
    int n;
    int samples;
};

static struct family *find_family(struct exposition *x, const char *name, size_t n)
{
    for (int i = 0; i < x->n; i++)
        if (strlen(x->families[i].name) == n && strncmp(x->families[i].name, name, n) == 0)
            return &x->families[i];
    return NULL;
}

static size_t name_length(const char *s)
{
    size_t n = 0;
    while (isalnum((unsigned char)s[n]) || s[n] == '_' || s[n] == ':')
        n++;
    return isdigit((unsigned char)s[0]) ? 0 : n;
}

static void parse_comment(struct exposition *x, const char *line)
{
    bool help = strncmp(line, "# HELP ", 7) == 0;
    assert_true(help || strncmp(line, "# TYPE ", 7) == 0);
    const char *name = line + 7;
    size_t n = name_length(name);
    assert_true(n > 0 && name[n] == ' ' && name[n + 1] != '\0');
    struct family *f = find_family(x, name, n);
    if (help) {
        assert_null(f); /* once for each family, before its TYPE */
        f = &x->families[x->n++];
        snprintf(f->name, sizeof f->name, "%.*s", (int)n, name);
        f->help = true;
        return;
    }
    assert_non_null(f);
    assert_string_equal(f->type, "");
    assert_int_equal(f->samples, 0);
    snprintf(f->type, sizeof f->type, "%s", name + n + 1);
}

/* {name="value",...}; returns what follows. */
static const char *parse_labels(const char *p)
{
    assert_int_equal(*p, '{');
    do {
        size_t n = name_length(++p);
        assert_true(n > 0);
        p += n;
        assert_memory_equal(p, "=\"", 2);
        for (p += 2; *p != '"'; p++) {
            assert_int_not_equal(*p, '\0');
            if (*p == '\\')
                assert_non_null(strchr("n\"\\", *++p));
        }
        p++;
    } while (*p == ',');
    assert_int_equal(*p, '}');
    return p + 1;
}

static struct family *sample_family(struct exposition *x, const char *line, size_t n)
{
    static const char *const endings[] = {"", "_bucket", "_sum", "_count"};
    for (int i = 0; i < 4; i++) {
        size_t m = strlen(endings[i]);
        if (n <= m || strncmp(line + n - m, endings[i], m) != 0)
            continue;
        struct family *f = find_family(x, line, n - m);
        if (f && (i == 0) == (strcmp(f->type, "histogram") != 0))
            return f;
    }
    return NULL;
}

static void parse_sample(struct exposition *x, const char *line)
{
    size_t n = name_length(line);
    assert_true(n > 0);
    struct family *f = sample_family(x, line, n);
    if (!f)
        fail_msg("no HELP and TYPE before: %s", line);
    const char *p = line + n;
    if (*p == '{')
        p = parse_labels(p);
    assert_int_equal(*p, ' ');
    char *end;
    double v = strtod(p + 1, &end);
    assert_true(end != p + 1 && *end == '\0' && v >= 0);
    if (strcmp(f->type, "counter") == 0)
        assert_string_equal(f->name + strlen(f->name) - 6, "_total");
    f->samples++;
    x->samples++;
}

static void parse(struct exposition *x, char *text)
{
    memset(x, 0, sizeof *x);
    assert_int_equal(text[strlen(text) - 1], '\n');
    char *end;
    for (char *line = text; *line; line = end + 1) {
        end = strchr(line, '\n');
        *end = '\0';
        if (*line == '#')
            parse_comment(x, line);
        else
            parse_sample(x, line);
        *end = '\n';
    }
    for (int i = 0; i < x->n; i++)
        assert_string_not_equal(x->families[i].type, "");
}

static char *expose(struct mx_metrics *m, const struct mx_engine_snapshot *s)
{
    struct mx_app app = {.model_id = "a \"model\"\\with\nall", .created = 5};
    struct mx_metrics_data *d = mx_metrics_copy(m);
    struct mx_strbuf b;
    assert_non_null(d);
    mx_strbuf_init(&b, 1u << 20);
    mx_metrics_text(&b, d, s, &app);
    free(d);
    assert_false(b.failed);
    return mx_strbuf_steal(&b, NULL);
}

/* Value of the sample that starts so. */
static double value_of(const char *text, const char *sample)
{
    const char *p = text;
    size_t n = strlen(sample);
    while ((p = strstr(p, sample)) && (p[n] != ' ' || (p != text && p[-1] != '\n')))
        p += n;
    if (!p)
        fail_msg("no sample %s", sample);
    return strtod(p + n, NULL);
}

/* ---- Counters ----------------------------------------------------------------------------- */

static struct mx_engine_snapshot *snapshot(void)
{
    struct mx_engine_snapshot *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->settings.max_active = 8;
    s->memory_limit = 1u << 30;
    s->queued = 3;
    s->counters.accepted = 12;
    s->counters.width[1] = 5;
    s->counters.width[4] = 7;
    s->counters.drafted[0] = 10;
    s->counters.accepted_drafts[0] = 9;
    s->counters.ttft_hist[0] = 2;
    s->counters.ttft_hist[10] = 3;
    s->counters.ttft_hist[MX_ENGINE_HIST - 1] = 1;
    s->counters.ttft_ns = UINT64_C(2500000000);
    return s;
}

static void test_text(void **state)
{
    (void)state;
    struct mx_metrics *m = mx_metrics_new();
    struct mx_engine_snapshot *s = snapshot();
    struct exposition x;
    mx_metrics_request(m, "POST /v1/chat/completions", 200, UINT64_C(3000000), 100);
    mx_metrics_request(m, "POST /v1/chat/completions", 200, UINT64_C(900000), 11);
    mx_metrics_request(m, "evil\"} 1\nfake 2\\", 404, 1, 0);
    mx_metrics_unknown_fields(m, 4);
    mx_metrics_tools(m, &(struct mx_toolcall_counts){.parsed = 2, .stray = 1});
    char *text = expose(m, s);
    parse(&x, text);
    assert_true(x.samples > 100);
    near_to(
        value_of(text,
                 "mtplx_http_requests_total{route=\"POST /v1/chat/completions\",status=\"200\"}"),
        2, 0);
    near_to(value_of(text, "mtplx_http_body_bytes_total"), 111, 0);
    near_to(value_of(text, "mtplx_http_request_seconds_bucket{le=\"0.001\"}"), 2, 0);
    near_to(value_of(text, "mtplx_http_request_seconds_bucket{le=\"0.004\"}"), 3, 0);
    near_to(value_of(text, "mtplx_http_request_seconds_count"), 3, 0);
    near_to(value_of(text, "mtplx_ttft_seconds_bucket{le=\"0.001\"}"), 2, 0);
    near_to(value_of(text, "mtplx_ttft_seconds_bucket{le=\"1.024\"}"), 5, 0);
    near_to(value_of(text, "mtplx_ttft_seconds_bucket{le=\"+Inf\"}"), 6, 0);
    near_to(value_of(text, "mtplx_ttft_seconds_count"), 6, 0);
    near_to(value_of(text, "mtplx_ttft_seconds_sum"), 2.5, 1e-9);
    near_to(value_of(text, "mtplx_cycles_total{answers=\"4\"}"), 7, 0);
    near_to(value_of(text, "mtplx_tool_calls_total{result=\"parsed\"}"), 2, 0);
    near_to(value_of(text, "mtplx_unknown_fields_total"), 4, 0);
    assert_non_null(strstr(text, "model=\"a \\\"model\\\"\\\\with\\nall\""));
    free(text);
    free(s);
    mx_metrics_free(m);
}

/* Buckets never fall, and the last is the count. */
static void test_histogram_cumulative(void **state)
{
    (void)state;
    struct mx_metrics *m = mx_metrics_new();
    struct mx_engine_snapshot *s = snapshot();
    char *text = expose(m, s);
    double last = 0;
    int buckets = 0;
    const char *p = text;
    while ((p = strstr(p, "\nmtplx_ttft_seconds_bucket{le=\""))) {
        p = strchr(p, ' ');
        double v = strtod(p, NULL);
        assert_true(v >= last);
        last = v;
        buckets++;
    }
    assert_int_equal(buckets, MX_ENGINE_HIST);
    near_to(last, value_of(text, "mtplx_ttft_seconds_count"), 0);
    free(text);
    free(s);
    mx_metrics_free(m);
}

static void test_tables_are_bounded(void **state)
{
    (void)state;
    struct mx_metrics *m = mx_metrics_new();
    struct mx_engine_snapshot *s = snapshot();
    struct exposition x;
    char name[4096];
    for (int i = 0; i < 1000; i++) {
        memset(name, 'r', sizeof name - 1);
        name[sizeof name - 1] = '\0';
        snprintf(name, 16, "%d", i);
        mx_metrics_request(m, name, 200, 1, 1);
        struct mx_turn_finish f = {.completion_tokens = 3, .prompt_tokens = 2};
        mx_metrics_finish(m, "req_x", name, &f);
    }
    mx_metrics_request(m, NULL, 400, UINT64_MAX, 0);
    struct mx_metrics_data *d = mx_metrics_copy(m);
    assert_int_equal(d->n_routes, MX_METRICS_ROUTES);
    assert_int_equal(d->other_routes, 1001 - MX_METRICS_ROUTES);
    assert_int_equal(d->n_clients, MX_METRICS_CLIENTS);
    assert_string_equal(d->clients[MX_METRICS_CLIENTS - 1].client, "other");
    assert_int_equal(d->clients[MX_METRICS_CLIENTS - 1].answers, 1000 - MX_METRICS_CLIENTS + 1);
    assert_int_equal(d->completion_tokens, 3000);
    assert_int_equal(d->n_recent, MX_METRICS_RECENT);
    free(d);
    char *text = expose(m, s);
    parse(&x, text);
    free(text);
    free(s);
    mx_metrics_free(m);
}

static void test_records(void **state)
{
    (void)state;
    struct mx_metrics *m = mx_metrics_new();
    struct mx_job_result job = {.ttft_ns = 5000000, .miss = MX_MISS_NEW_SESSION};
    job.stats.prefill_ns = 1000000;
    job.stats.prompt_tokens = 10;
    job.stats.drafted[0] = 4;
    job.stats.accepted[0] = 3;
    for (int i = 0; i < 150; i++) {
        char id[32];
        snprintf(id, sizeof id, "req_%d", i);
        struct mx_turn_finish f = {.prompt_tokens = 10, .job = &job, .tool_calls = i};
        mx_metrics_finish(m, id, "\xc3\xa9t\xc3", &f); /* a name cut inside a code point */
        mx_metrics_finish(m, id, "b", &f);             /* its second choice: one prefill */
    }
    struct mx_metrics_data *d = mx_metrics_copy(m);
    assert_int_equal(d->n_prefills, MX_METRICS_PREFILLS);
    assert_int_equal(d->misses[MX_MISS_NEW_SESSION], 300);
    const struct mx_answer_record *a = &d->prefills[(d->next_prefill - 1) % MX_METRICS_PREFILLS];
    assert_string_equal(a->id, "req_149");
    json_t *o = mx_status_answer(a);
    assert_non_null(o);
    assert_string_equal(json_string_value(json_object_get(o, "client")), "??t?");
    json_t *acceptance = json_object_get(o, "acceptance");
    assert_int_equal(json_array_size(acceptance), 1);
    near_to(json_real_value(json_object_get(json_array_get(acceptance, 0), "rate")), 0.75, 0);
    near_to(json_real_value(json_object_get(o, "prefill_tokens_per_s")), 10000, 1e-6);
    json_decref(o);
    free(d);
    mx_metrics_free(m);
}

/* Ids of the dialects share the part behind their prefix; the newest jobs come first. */
static void test_jobs(void **state)
{
    (void)state;
    struct mx_metrics *m = mx_metrics_new();
    uint64_t jobs[4];
    char id[40];
    mx_metrics_started(m, "req_0123456789abcdef01234567", 7);
    mx_metrics_started(m, "req_0123456789abcdef01234567", 8);
    assert_int_equal(mx_metrics_jobs(m, "chatcmpl-0123456789abcdef01234567", jobs, 4), 2);
    assert_int_equal(jobs[0], 8);
    assert_int_equal(jobs[1], 7);
    assert_int_equal(mx_metrics_jobs(m, "req_0123456789abcdef01234567", jobs, 1), 1);
    assert_int_equal(mx_metrics_jobs(m, "", jobs, 4), 0);
    assert_int_equal(mx_metrics_jobs(m, "req_", jobs, 4), 0);
    mx_metrics_request_of(m, 7, id);
    assert_string_equal(id, "req_0123456789abcdef01234567");
    mx_metrics_request_of(m, 0, id);
    assert_string_equal(id, "");
    for (uint64_t i = 0; i < MX_METRICS_JOBS; i++)
        mx_metrics_started(m, "req_ffff", 100 + i);
    assert_int_equal(mx_metrics_jobs(m, "req_0123456789abcdef01234567", jobs, 4), 0);
    mx_metrics_free(m);
}

static void test_engine_views(void **state)
{
    (void)state;
    struct mx_metrics *m = mx_metrics_new();
    struct mx_engine_snapshot *s = snapshot();
    struct mx_metrics_data *d = mx_metrics_copy(m);
    s->n_jobs = 1;
    s->jobs[0] = (struct mx_job_view){.id = 3, .state = MX_JOB_DECODE, .owner = "\xff"};
    json_t *counters = mx_status_counters(s, d);
    json_t *jobs = mx_status_jobs(s, m);
    const struct mx_app none = {0};
    json_t *bank = mx_status_bank(&none), *cold = mx_status_cold(&none);
    json_t *align = mx_status_align(&none), *sessions = mx_status_sessions(&none);
    assert_int_equal(json_integer_value(json_object_get(counters, "accepted")), 12);
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(counters, "cycles_by_width"), "4")), 7);
    const json_t *job = json_array_get(jobs, 0);
    assert_string_equal(json_string_value(json_object_get(job, "owner")), "?");
    assert_string_equal(json_string_value(json_object_get(job, "state")), "decode");
    assert_true(json_is_false(json_object_get(bank, "enabled")));
    assert_string_equal(json_string_value(json_object_get(cold, "mode")), "off");
    assert_true(json_is_false(json_object_get(align, "enabled")));
    assert_int_equal(json_array_size(sessions), 0);
    json_decref(counters);
    json_decref(jobs);
    json_decref(bank);
    json_decref(cold);
    json_decref(align);
    json_decref(sessions);
    free(d);
    free(s);
    mx_metrics_free(m);
}

/* ---- Settings ----------------------------------------------------------------------------- */

static bool change(const char *body, struct mx_app_settings *s, struct mx_engine_settings *e,
                   struct mx_api_error *error)
{
    json_t *o = json_loads(body, 0, NULL);
    assert_non_null(o);
    memset(error, 0, sizeof *error);
    bool ok = mx_settings_read(o, s, e, error);
    json_decref(o);
    return ok;
}

static void test_settings_change(void **state)
{
    (void)state;
    struct mx_app_settings s = {.sampling = {.top_p = 1, .repetition_penalty = 1}, .mtp = true};
    struct mx_engine_settings e = {.mode = MX_ENGINE_MTP_BATCH, .max_active = 8};
    struct mx_api_error error;
    assert_true(change("{\"depth\": 3, \"depth_policy\": \"streak\", \"temperature\": 0.5,"
                       "\"top_k\": 20, \"enable_thinking\": false, \"max_active\": 4,"
                       "\"scheduler_mode\": \"hyper\", \"seed\": 9, \"generation_mode\": \"ar\"}",
                       &s, &e, &error));
    assert_int_equal(s.depth, 3);
    assert_int_equal(s.policy, MTPLX_DEPTH_STREAK);
    near_to(s.sampling.temperature, 0.5, 0);
    assert_int_equal(s.sampling.top_k, 20);
    assert_int_equal(s.thinking, MX_OFF);
    assert_int_equal(e.max_active, 4);
    assert_int_equal(e.mode, MX_ENGINE_MTP_BATCH);
    assert_true(s.sampling_seeded);
    assert_false(s.mtp);
    assert_true(
        change("{\"enable_thinking\": null, \"seed\": null, \"depth\": null}", &s, &e, &error));
    assert_int_equal(s.thinking, MX_UNSET);
    assert_false(s.sampling_seeded);
    assert_int_equal(s.depth, 3);
    assert_true(change("{\"adaptive_policy\": \"cost\"}", &s, &e, &error));
    assert_int_equal(s.policy, MTPLX_DEPTH_COST);
}

/* What is told can be sent back, and changes nothing. */
static void test_settings_round_trip(void **state)
{
    (void)state;
    struct mx_app_settings s = {.sampling = {.temperature = 0.7,
                                             .top_p = 0.9,
                                             .top_k = 5,
                                             .min_p = 0.1,
                                             .presence_penalty = 1,
                                             .frequency_penalty = -1,
                                             .repetition_penalty = 1.25,
                                             .seed = 12},
                                .sampling_seeded = true,
                                .depth = 5,
                                .policy = MTPLX_DEPTH_POSITION_EMA,
                                .context_copy = true,
                                .mtp = true,
                                .max_tokens = 100,
                                .thinking = MX_ON,
                                .client_controls = true};
    struct mx_engine_settings e = {
        .mode = MX_ENGINE_COOPERATIVE, .max_active = 3, .max_queue = 9, .prefill_chunk = 64};
    struct mx_app_settings copy = s;
    struct mx_engine_settings engine = e;
    struct mx_api_error error = {0};
    json_t *values = mx_settings_values(&s, &e);
    assert_non_null(values);
    assert_true(mx_settings_read(values, &copy, &engine, &error));
    json_t *again = mx_settings_values(&copy, &engine);
    assert_true(json_equal(values, again));
    json_decref(values);
    json_decref(again);
}

static void test_settings_refused(void **state)
{
    (void)state;
    static const struct {
        const char *body, *param;
    } cases[] = {
        {"{\"depth\": 9}", "depth"},
        {"{\"depth\": \"3\"}", "depth"},
        {"{\"depth\": 1.5}", "depth"},
        {"{\"temperature\": -1}", "temperature"},
        {"{\"temperature\": 3}", "temperature"},
        {"{\"top_p\": 2}", "top_p"},
        {"{\"top_k\": -1}", "top_k"},
        {"{\"min_p\": true}", "min_p"},
        {"{\"repetition_penalty\": 0}", "repetition_penalty"},
        {"{\"presence_penalty\": 5}", "presence_penalty"},
        {"{\"depth_policy\": \"fast\"}", "depth_policy"},
        {"{\"generation_mode\": \"both\"}", "generation_mode"},
        {"{\"enable_thinking\": 1}", "enable_thinking"},
        {"{\"preserve_thinking\": \"some\"}", "preserve_thinking"},
        {"{\"seed\": -4}", "seed"},
        {"{\"max_active\": 0}", "max_active"},
        {"{\"max_active\": 65}", "max_active"},
        {"{\"prefill_chunk\": 0}", "prefill_chunk"},
        {"{\"scheduler_mode\": \"turbo\"}", "scheduler_mode"},
        {"{\"model\": \"other\"}", "model"},
        {"{\"port\": 1}", "port"},
        {"{\"api_key\": \"x\"}", "api_key"},
        {"{\"profile\": \"exact\"}", "profile"},
        {"{\"verify_strategy\": 1}", "verify_strategy"},
        {"{\"Depth\": 1}", "Depth"},
        {"{\"\": 1}", ""},
    };
    struct mx_api_error error;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mx_app_settings s = {.sampling = {.top_p = 1}};
        struct mx_engine_settings e = {.max_active = 8};
        if (change(cases[i].body, &s, &e, &error))
            fail_msg("accepted %s", cases[i].body);
        assert_int_equal(error.status, 400);
        assert_string_equal(error.param, cases[i].param);
        assert_true(error.message[0] != '\0');
    }
}

/* Without its key a client learns nothing about the machine, not even through a proxy on it. */
static void test_health_of_strangers(void **state)
{
    static const char *const clients[] = {"127.0.0.1", "::1", "192.168.1.5", "key-like"};
    struct mx_app app = {.model_id = "nano"};
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        struct mx_exchange *x = rig_exchange(MX_DIALECT_OPENAI, NULL);
        x->authorized = false;
        snprintf(x->client, sizeof x->client, "%s", clients[i]);
        mx_api_health(&app, x);
        char *text = rig_reply(x);
        json_t *v = parse_json(text);
        assert_int_equal(json_object_size(v), i < 2 ? 5 : 4);
        assert_string_equal(json_string_value(json_object_get(v, "status")), "ok");
        json_t *startup = json_object_get(v, "startup");
        assert_int_equal(json_object_size(startup), i < 2 ? 1 : 0);
        json_decref(v);
        free(text);
        rig_free(x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_histogram_cumulative),
        cmocka_unit_test(test_tables_are_bounded),
        cmocka_unit_test(test_records),
        cmocka_unit_test(test_jobs),
        cmocka_unit_test(test_engine_views),
        cmocka_unit_test(test_settings_change),
        cmocka_unit_test(test_settings_round_trip),
        cmocka_unit_test(test_settings_refused),
        cmocka_unit_test(test_health_of_strangers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
