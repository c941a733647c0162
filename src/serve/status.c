/* What the server tells about itself, as JSON: views of the engine's snapshot and of the counters
 * that /metrics, the snapshot, the feed and the admin routes put together.
 *
 * Durations are seconds (or ms where the name says so), sizes bytes, rates per second. */
#include "base/clock.h"
#include "base/utf8.h"
#include "serve/metrics_int.h"

#include <stdlib.h>
#include <string.h>

static double seconds(uint64_t ns)
{
    return (double)ns * 1e-9;
}

static double per_second(uint64_t n, uint64_t ns)
{
    return ns > 0 ? (double)n / seconds(ns) : 0;
}

static json_t *number(uint64_t n)
{
    return json_integer((json_int_t)n);
}

/* A string from outside: a name that was cut inside a code point must not cost the whole reply. */
static json_t *text(const char *s)
{
    char clean[64];
    size_t n = strnlen(s, sizeof clean);
    if (mx_utf8_valid(s, n))
        return json_stringn(s, n);
    for (size_t i = 0; i < n; i++)
        clean[i] = (unsigned char)s[i] < 0x80 ? s[i] : '?';
    return json_stringn(clean, n);
}

struct mx_engine_snapshot *mx_status_snapshot(struct mx_app *app)
{
    struct mx_engine_snapshot *s = calloc(1, sizeof *s);
    if (s)
        mx_engine_get_snapshot(app->engine, s);
    return s;
}

const char *mx_status_reason(enum mx_turn_reason reason)
{
    static const char *const names[MX_METRICS_REASONS] = {
        [MX_REASON_STOP] = "stop",           [MX_REASON_STOP_SEQUENCE] = "stop_sequence",
        [MX_REASON_LENGTH] = "length",       [MX_REASON_TOOL_CALLS] = "tool_calls",
        [MX_REASON_CANCELLED] = "cancelled", [MX_REASON_ERROR] = "error",
    };
    return (unsigned)reason < MX_METRICS_REASONS ? names[reason] : "unknown";
}

/* ---- Answers ------------------------------------------------------------------------------ */

/* Positions up to the last one that was drafted. */
static json_t *acceptance(const uint64_t *drafted, const uint64_t *accepted)
{
    json_t *list = json_array();
    int last = MTPLX_MAX_DEPTH;
    while (last > 0 && drafted[last - 1] == 0)
        last--;
    for (int i = 0; i < last; i++)
        json_array_append_new(
            list, json_pack("{s:i, s:I, s:I, s:f}", "position", i + 1, "drafted",
                            (json_int_t)drafted[i], "accepted", (json_int_t)accepted[i], "rate",
                            drafted[i] ? (double)accepted[i] / (double)drafted[i] : 0.0));
    return list;
}

json_t *mx_status_answer(const struct mx_answer_record *a)
{
    const mtplx_gen_stats *st = &a->stats;
    uint64_t read = st->prompt_tokens;
    uint64_t decoded = st->generated_tokens > 1 ? st->generated_tokens - 1 : 0;
    json_t *o = json_pack(
        "{s:o, s:o, s:I, s:s, s:s, s:s, s:b, s:i, s:I, s:I, s:I, s:I, s:I}", "id", text(a->id),
        "client", text(a->client), "time_ms", (json_int_t)a->time, "finish_reason",
        mx_status_reason(a->reason), "cache_miss", mx_cache_miss_name(a->miss), "cache_restored",
        mx_restore_kind_name(a->restored), "cache_from_disk", (int)a->from_disk, "tool_calls",
        a->tool_calls, "prompt_tokens", (json_int_t)a->prompt_tokens, "cached_tokens",
        (json_int_t)a->cached_tokens, "known_tokens", (json_int_t)a->known_tokens,
        "completion_tokens", (json_int_t)a->completion_tokens, "reasoning_tokens",
        (json_int_t)a->reasoning_tokens);
    json_t *more = json_pack(
        "{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:f, s:o}", "queue_s", seconds(a->queue_ns),
        "cache_restore_s", seconds(a->restore_ns), "ttft_s", seconds(a->ttft_ns), "total_s",
        seconds(a->total_ns), "prefill_s", seconds(st->prefill_ns), "prefill_tokens_per_s",
        per_second(read, st->prefill_ns), "decode_tokens_per_s", per_second(decoded, st->decode_ns),
        "mean_width", a->mean_width, "cycles", (json_int_t)st->cycles, "tokens_per_cycle",
        st->cycles ? (double)st->generated_tokens / (double)st->cycles : 0.0, "acceptance",
        acceptance(st->drafted, st->accepted));
    if (o && more)
        json_object_update(o, more);
    json_decref(more);
    return o;
}

/* ---- The engine --------------------------------------------------------------------------- */

static const char *state_name(enum mx_job_state state)
{
    static const char *const names[] = {"queued", "restoring", "prefill", "decode"};
    return (unsigned)state < sizeof names / sizeof *names ? names[state] : "unknown";
}

static const char *kind_name(enum mx_job_kind kind)
{
    return kind == MX_JOB_GENERATE ? "generate" : kind == MX_JOB_WARM ? "warm" : "embed";
}

static json_t *job_json(const struct mx_job_view *v, struct mx_metrics *m)
{
    char request[40] = "";
    if (m)
        mx_metrics_request_of(m, v->id, request);
    return json_pack("{s:I, s:o, s:o, s:s, s:s, s:i, s:i, s:I, s:I, s:I, s:I, s:f, s:f}", "id",
                     (json_int_t)v->id, "request_id", text(request), "owner", text(v->owner),
                     "state", state_name(v->state), "kind", kind_name(v->kind), "choices",
                     v->choices, "priority", v->priority, "prompt_tokens",
                     (json_int_t)v->prompt_tokens, "read_tokens", (json_int_t)v->read_tokens,
                     "cached_tokens", (json_int_t)v->cached_tokens, "completion_tokens",
                     (json_int_t)v->completion_tokens, "age_s", seconds(v->age_ns),
                     "decode_tokens_per_s", v->tokens_per_s);
}

json_t *mx_status_jobs(const struct mx_engine_snapshot *s, struct mx_metrics *m)
{
    json_t *list = json_array();
    for (int i = 0; i < s->n_jobs; i++)
        json_array_append_new(list, job_json(&s->jobs[i], m));
    return list;
}

json_t *mx_status_memory(const struct mx_engine_snapshot *s)
{
    return json_pack("{s:I, s:I, s:I, s:I}", "limit_bytes", (json_int_t)s->memory_limit,
                     "used_bytes", (json_int_t)s->memory_used, "reserved_bytes",
                     (json_int_t)s->memory_reserved, "peak_resident_bytes",
                     (json_int_t)mx_peak_rss());
}

json_t *mx_status_scheduler(const struct mx_engine_settings *s)
{
    return json_pack("{s:s, s:i, s:i, s:i}", "mode", mx_engine_mode_name(s->mode), "max_active",
                     s->max_active, "max_queue", s->max_queue, "prefill_chunk", s->prefill_chunk);
}

json_t *mx_status_tools(const struct mx_metrics_data *d)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "parsed", (json_int_t)d->tools.parsed,
                     "malformed", (json_int_t)d->tools.malformed, "unknown_tool",
                     (json_int_t)d->tools.unknown_tool, "stray", (json_int_t)d->tools.stray,
                     "dropped", (json_int_t)d->tools.dropped);
}

json_t *mx_status_misses(const struct mx_metrics_data *d)
{
    json_t *o = json_object();
    for (int i = 0; i < MX_METRICS_MISSES; i++)
        json_object_set_new(o, mx_cache_miss_name((enum mx_cache_miss)i), number(d->misses[i]));
    return o;
}

static json_t *widths(const struct mx_engine_counters *c)
{
    json_t *o = json_object();
    for (int i = 1; i <= MX_MAX_ACTIVE; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        if (c->width[i] > 0)
            json_object_set_new(o, name, number(c->width[i]));
    }
    return o;
}

static json_t *reasons(const struct mx_metrics_data *d)
{
    json_t *o = json_object();
    for (int i = 0; i < MX_METRICS_REASONS; i++)
        json_object_set_new(o, mx_status_reason((enum mx_turn_reason)i), number(d->reasons[i]));
    return o;
}

static json_t *statuses(const struct mx_metrics_data *d)
{
    json_t *o = json_object();
    for (int i = 0; i < d->n_routes; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", d->routes[i].status);
        json_t *old = json_object_get(o, name);
        json_object_set_new(o, name,
                            number(d->routes[i].n + (old ? (uint64_t)json_integer_value(old) : 0)));
    }
    return o;
}

json_t *mx_status_counters(const struct mx_engine_snapshot *s, const struct mx_metrics_data *d)
{
    const struct mx_engine_counters *c = &s->counters;
    json_t *o = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "accepted",
        (json_int_t)c->accepted, "finished", (json_int_t)c->finished, "cancelled",
        (json_int_t)c->cancelled, "failed", (json_int_t)c->failed, "expired",
        (json_int_t)c->expired, "refused_queue", (json_int_t)c->refused_queue, "refused_memory",
        (json_int_t)c->refused_memory, "prompt_tokens", (json_int_t)c->prompt_tokens,
        "cached_tokens", (json_int_t)c->cached_tokens, "completion_tokens",
        (json_int_t)c->completion_tokens, "prefill_passes", (json_int_t)c->prefill_passes, "cycles",
        (json_int_t)c->cycles, "busy_s", seconds(c->busy_ns));
    json_t *more = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I}", "acceptance",
        acceptance(c->drafted, c->accepted_drafts), "cycles_by_width", widths(c), "finish_reasons",
        reasons(d), "cache_misses", mx_status_misses(d), "http_statuses", statuses(d),
        "http_requests", (json_int_t)d->http_n, "reasoning_tokens", (json_int_t)d->reasoning_tokens,
        "unknown_fields", (json_int_t)d->unknown_fields);
    if (o && more)
        json_object_update(o, more);
    json_decref(more);
    return o;
}

/* ---- The feed ----------------------------------------------------------------------------- */

static double decode_rate(const struct mx_engine_snapshot *s)
{
    double sum = 0;
    for (int i = 0; i < s->n_jobs; i++)
        if (s->jobs[i].state == MX_JOB_DECODE)
            sum += s->jobs[i].tokens_per_s;
    return sum;
}

static json_t *bank_json(const struct mx_app *app)
{
    struct mx_bank *b = mx_status_bank_of(app);
    struct mx_bank_stats s = {0};
    if (b)
        mx_bank_get_stats(b, &s);
    return json_pack("{s:I, s:I, s:I}", "entries", (json_int_t)s.entries, "bytes",
                     (json_int_t)s.bytes, "budget_bytes", (json_int_t)s.budget);
}

static json_t *tick_json(struct mx_app *app, const struct mx_engine_snapshot *s,
                         const struct mx_metrics_data *d)
{
    const struct mx_engine_counters *c = &s->counters;
    json_t *latest = json_null();
    if (d->n_recent > 0)
        latest = mx_status_answer(&d->recent[(d->next_recent - 1) % MX_METRICS_RECENT]);
    return json_pack("{s:I, s:f, s:i, s:i, s:f, s:{s:I, s:I, s:I, s:I, s:I}, s:o, s:o, s:o, s:o}",
                     "time_ms", (json_int_t)mx_unix_ms(), "uptime_s",
                     seconds(mx_now_ns() - app->started_ns), "active", s->active, "queued",
                     s->queued, "decode_tokens_per_s", decode_rate(s), "totals", "prompt_tokens",
                     (json_int_t)c->prompt_tokens, "cached_tokens", (json_int_t)c->cached_tokens,
                     "completion_tokens", (json_int_t)c->completion_tokens, "finished",
                     (json_int_t)c->finished, "cancelled", (json_int_t)c->cancelled, "memory",
                     mx_status_memory(s), "session_bank", bank_json(app), "jobs",
                     mx_status_jobs(s, app->metrics), "latest", latest);
}

json_t *mx_status_tick(struct mx_app *app)
{
    struct mx_engine_snapshot *s = mx_status_snapshot(app);
    struct mx_metrics_data *d = mx_metrics_copy(app->metrics);
    json_t *o = s && d ? tick_json(app, s, d) : NULL;
    free(s);
    free(d);
    return o;
}
