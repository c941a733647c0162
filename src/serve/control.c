/* The routes that look into and steer the running server: snapshot, settings, cancellation, kept
 * sequences. */
#include "base/clock.h"
#include "serve/api.h"
#include "serve/metrics_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Snapshot ----------------------------------------------------------------------------- */

static json_t *model_json(const struct mx_app *app)
{
    const mtplx_model_info *info = mtplx_model_get_info(app->model);
    return json_pack(
        "{s:s, s:s, s:s?, s:s, s:s, s:s?, s:i, s:I, s:I, s:b, s:i}", "id", app->model_id,
        "architecture", info->architecture, "quantization", info->quantization, "device",
        info->device, "profile", info->profile, "device_note", info->device_note, "context_length",
        info->context_length, "parameters", (json_int_t)info->parameters, "weight_bytes",
        (json_int_t)info->weight_bytes, "mtp", info->has_mtp, "threads", info->threads);
}

static json_t *snapshot_json(struct mx_app *app, const struct mx_engine_snapshot *s,
                             const struct mx_metrics_data *d)
{
    return json_pack("{s:I, s:f, s:s, s:o, s:o, s:i, s:i, s:o, s:o, s:o, s:o, s:o}", "time_ms",
                     (json_int_t)mx_unix_ms(), "uptime_s",
                     (double)(mx_now_ns() - app->started_ns) * 1e-9, "version", mtplx_version(),
                     "model", model_json(app), "scheduler", mx_status_scheduler(&s->settings),
                     "active", s->active, "queued", s->queued, "jobs",
                     mx_status_jobs(s, app->metrics), "sessions", mx_status_kept(s), "memory",
                     mx_status_memory(s), "counters", mx_status_counters(s, d),
                     "tool_parse_counters", mx_status_tools(d));
}

void mx_api_snapshot(struct mx_app *app, struct mx_exchange *x)
{
    struct mx_engine_snapshot *s = mx_status_snapshot(app);
    struct mx_metrics_data *d = mx_metrics_copy(app->metrics);
    mx_exchange_set_header(x, "Cache-Control", "no-store");
    mx_exchange_send_json(x, 200, s && d ? snapshot_json(app, s, d) : NULL);
    free(s);
    free(d);
}

/* ---- Settings ----------------------------------------------------------------------------- */

void mx_api_settings_get(struct mx_app *app, struct mx_exchange *x)
{
    mx_exchange_send_json(x, 200, mx_settings_json(app));
}

void mx_api_settings_set(struct mx_app *app, struct mx_exchange *x)
{
    struct mx_api_error e = {0};
    if (mx_settings_apply(app, mx_exchange_body(x), &e))
        mx_exchange_send_json(x, 200, mx_settings_json(app));
    else
        mx_exchange_fail(x, &e);
}

/* ---- Cancellation ------------------------------------------------------------------------- */

/* A number as the engine gives them, or 0. */
static uint64_t number_of(const char *id)
{
    char *end;
    if (*id < '0' || *id > '9')
        return 0;
    errno = 0;
    unsigned long long n = strtoull(id, &end, 10);
    return *end || errno ? 0 : n;
}

void mx_api_cancel(struct mx_app *app, struct mx_exchange *x)
{
    const char *id = mx_exchange_id(x);
    uint64_t jobs[MX_MAX_ACTIVE];
    struct mx_api_error e = {0};
    int n = 1;
    jobs[0] = number_of(id);
    if (jobs[0] == 0)
        n = mx_metrics_jobs(app->metrics, id, jobs, MX_MAX_ACTIVE);
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        if (mx_engine_cancel(app->engine, jobs[i]))
            json_array_append_new(list, json_integer((json_int_t)jobs[i]));
    if (json_array_size(list) > 0) {
        mx_exchange_send_json(x, 200,
                              json_pack("{s:s, s:b, s:o}", "id", id, "cancelled", 1, "jobs", list));
        return;
    }
    json_decref(list);
    mx_api_fail(&e, 404, "id", "no request or job %.60s is running", id);
    mx_exchange_fail(x, &e);
}

/* ---- Kept sequences ----------------------------------------------------------------------- */

static uint64_t kept_bytes(const struct mx_engine_snapshot *s)
{
    uint64_t bytes = 0;
    for (int i = 0; i < s->n_kept; i++)
        bytes += s->kept[i].bytes;
    return bytes;
}

void mx_api_sessions(struct mx_app *app, struct mx_exchange *x)
{
    struct mx_engine_snapshot *s = mx_status_snapshot(app);
    json_t *o = NULL;
    if (s)
        o = json_pack("{s:o, s:i, s:I}", "sessions", mx_status_kept(s), "count", s->n_kept, "bytes",
                      (json_int_t)kept_bytes(s));
    free(s);
    mx_exchange_send_json(x, 200, o);
}

void mx_api_session_clear(struct mx_app *app, struct mx_exchange *x)
{
    const char *id = mx_exchange_id(x);
    uint64_t number = number_of(id);
    struct mx_api_error e = {0};
    if (number != 0 && mx_engine_drop_kept(app->engine, number)) {
        mx_exchange_send_json(x, 200,
                              json_pack("{s:I, s:b}", "id", (json_int_t)number, "cleared", 1));
        return;
    }
    mx_api_fail(&e, 404, "id", "no session %.60s is kept: GET /admin/sessions lists them", id);
    mx_exchange_fail(x, &e);
}

static json_t *cache_json(const struct mx_engine_snapshot *s, const struct mx_metrics_data *d)
{
    uint64_t tokens = 0;
    uint64_t hits = 0;
    for (int i = 0; i < s->n_kept; i++) {
        tokens += s->kept[i].tokens;
        hits += s->kept[i].hits;
    }
    return json_pack("{s:i, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "entries", s->n_kept, "tokens",
                     (json_int_t)tokens, "bytes", (json_int_t)kept_bytes(s), "hits",
                     (json_int_t)hits, "prompt_tokens", (json_int_t)s->counters.prompt_tokens,
                     "cached_tokens", (json_int_t)s->counters.cached_tokens, "misses",
                     mx_status_misses(d), "memory", mx_status_memory(s));
}

void mx_api_cache(struct mx_app *app, struct mx_exchange *x)
{
    struct mx_engine_snapshot *s = mx_status_snapshot(app);
    struct mx_metrics_data *d = mx_metrics_copy(app->metrics);
    mx_exchange_send_json(x, 200, s && d ? cache_json(s, d) : NULL);
    free(s);
    free(d);
}

void mx_api_cache_clear(struct mx_app *app, struct mx_exchange *x)
{
    mx_exchange_send_json(x, 200,
                          json_pack("{s:i}", "cleared", mx_engine_clear_reuse(app->engine)));
}
