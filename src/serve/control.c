/* The routes that look into and steer the running server: snapshot, settings, cancellation. */
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
    return json_pack(
        "{s:I, s:f, s:s, s:o, s:o, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "time_ms",
        (json_int_t)mx_unix_ms(), "uptime_s", (double)(mx_now_ns() - app->started_ns) * 1e-9,
        "version", mtplx_version(), "model", model_json(app), "scheduler",
        mx_status_scheduler(&s->settings), "active", s->active, "queued", s->queued, "jobs",
        mx_status_jobs(s, app->metrics), "session_bank", mx_status_bank(app), "ssd",
        mx_status_cold(app), "turn_alignment", mx_status_align(app), "memory", mx_status_memory(s),
        "counters", mx_status_counters(s, d), "tool_parse_counters", mx_status_tools(d));
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
