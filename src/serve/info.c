/* What runs here: models, health, capabilities and the landing page. */
#include "base/clock.h"
#include "serve/api.h"
#include "serve/metrics_int.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- Models ------------------------------------------------------------------------------- */

/* Several names for one thing on purpose: clients look for one of them and assume 4,096 tokens when
 * it is absent. */
static json_t *model_json(const struct mx_app *app)
{
    const mtplx_model_info *info = mtplx_model_get_info(app->model);
    char created[32];
    time_t t = (time_t)app->created;
    struct tm tm;
    gmtime_r(&t, &tm);
    strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", &tm);
    json_t *o =
        json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:s, s:b}", "id", app->model_id, "object",
                  "model", "created", (json_int_t)app->created, "owned_by", "mtplx", "type",
                  "model", "display_name", app->model_id, "created_at", created, "loaded", 1);
    json_t *more =
        json_pack("{s:i, s:i, s:i, s:{s:b, s:b, s:b, s:b, s:b}, s:[s], s:b, s:s?, s:s, s:I}",
                  "context_length", info->context_length, "max_model_len", info->context_length,
                  "max_context_length", info->context_length, "capability", "chat",
                  info->has_chat_template, "completion", 1, "embedding", 1, "tools",
                  app->tools != MX_TOOLS_NONE, "reasoning", app->reasoning != MX_REASONING_NONE,
                  "modalities", "text", "supports_vision", 0, "quantization", info->quantization,
                  "architecture", info->architecture, "parameters", (json_int_t)info->parameters);
    if (o && more)
        json_object_update(o, more);
    json_decref(more);
    return o;
}

void mx_api_models(struct mx_app *app, struct mx_exchange *x)
{
    mx_exchange_send_json(x, 200,
                          json_pack("{s:s, s:[o], s:b, s:s, s:s}", "object", "list", "data",
                                    model_json(app), "has_more", 0, "first_id", app->model_id,
                                    "last_id", app->model_id));
}

void mx_api_model(struct mx_app *app, struct mx_exchange *x)
{
    const char *id = mx_exchange_id(x);
    struct mx_api_error e = {0};
    if (strcmp(id, app->model_id) == 0) {
        mx_exchange_send_json(x, 200, model_json(app));
        return;
    }
    mx_api_fail(&e, 404, "model", "no model %.100s is loaded: GET /v1/models lists what is", id);
    e.code = "model_not_found";
    mx_exchange_fail(x, &e);
}

/* ---- Health ------------------------------------------------------------------------------- */

/* Whether a client's address is this machine's. Behind a proxy all have that. */
static bool is_local(const char *client)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, client, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, client, &v6) == 1 &&
           (IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127));
}

static json_t *health_detail(const struct mx_app *app, const struct mx_engine_snapshot *s)
{
    const mtplx_model_info *info = mtplx_model_get_info(app->model);
    return json_pack(
        "{s:s, s:{s:i, s:I, s:f}, s:s, s:s, s:s?, s:{s:o, s:i, s:i}, s:{s:I, s:I, "
        "s:I, s:I}, s:o}",
        "model_path", info->path, "startup", "pid", (int)getpid(), "started_at",
        (json_int_t)app->created, "uptime_s", (double)(mx_now_ns() - app->started_ns) * 1e-9,
        "device", info->device, "profile", info->profile, "device_note", info->device_note,
        "scheduler", "config", mx_status_scheduler(&s->settings), "active", s->active, "queued",
        s->queued, "counts", "accepted", (json_int_t)s->counters.accepted, "finished",
        (json_int_t)s->counters.finished, "cancelled", (json_int_t)s->counters.cancelled, "failed",
        (json_int_t)s->counters.failed, "memory", mx_status_memory(s));
}

void mx_api_health(struct mx_app *app, struct mx_exchange *x)
{
    json_t *o = json_pack("{s:b, s:s, s:s, s:s}", "ok", 1, "status", "ok", "model", app->model_id,
                          "version", mtplx_version());
    if (o && !mx_exchange_authorized(x) && is_local(mx_exchange_client(x)))
        json_object_set_new(o, "startup", json_pack("{s:i}", "pid", (int)getpid())); /* to stop */
    if (o && mx_exchange_authorized(x)) {
        struct mx_engine_snapshot *s = mx_status_snapshot(app);
        json_t *detail = s ? health_detail(app, s) : NULL;
        if (detail)
            json_object_update(o, detail);
        json_decref(detail);
        free(s);
    }
    mx_exchange_set_header(x, "Cache-Control", "no-store");
    mx_exchange_send_json(x, 200, o);
}

/* ---- Capabilities and landing ------------------------------------------------------------- */

#define ENDPOINTS                                                                                  \
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/messages",  \
        "/v1/messages/count_tokens", "/v1/models", "/tokenize", "/detokenize", "/health",          \
        "/metrics", "/v1/mtplx/snapshot", "/v1/mtplx/settings", "/v1/mtplx/cancel/{id}",           \
        "/v1/mtplx/metrics/stream", "/v1/mtplx/prefill_history", "/v1/mtplx/app/capabilities",     \
        "/admin/sessions", "/admin/sessions/{id}", "/admin/sessions/{id}/clear",                   \
        "/admin/sessions/{id}/pin", "/admin/sessions/{id}/unpin", "/admin/cache",                  \
        "/admin/cache/clear"

static json_t *endpoints_json(void)
{
    static const char *const paths[] = {ENDPOINTS};
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        json_array_append_new(list, json_string(paths[i]));
    return list;
}

void mx_api_capabilities(struct mx_app *app, struct mx_exchange *x)
{
    const mtplx_model_info *info = mtplx_model_get_info(app->model);
    mx_exchange_send_json(
        x, 200,
        json_pack("{s:s, s:i, s:s, s:[sss], s:[ssss], s:[ssss], s:{s:b, s:b, s:b, s:b, s:b, s:b}, "
                  "s:o}",
                  "version", mtplx_version(), "api_version", 1, "model", app->model_id, "dialects",
                  "chat_completions", "responses", "messages", "scheduler_modes", "serial",
                  "cooperative", "ar_batch", "mtp_batch", "response_formats", "json_object",
                  "json_schema", "regex", "grammar", "features", "mtp", info->has_mtp, "tools",
                  app->tools != MX_TOOLS_NONE, "reasoning", app->reasoning != MX_REASONING_NONE,
                  "embeddings", 1, "vision", 0, "logprobs", 1, "endpoints", endpoints_json()));
}

static const char page[] =
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>mtplx</title>"
    "<h1>mtplx</h1><p>A local model is being served here. Point an OpenAI client at "
    "<code>/v1</code>, or an Anthropic client at the root.</p><ul>"
    "<li><a href=\"/v1/models\">/v1/models</a><li><a href=\"/health\">/health</a>"
    "<li><a href=\"/metrics\">/metrics</a>"
    "<li><a href=\"/v1/mtplx/snapshot\">/v1/mtplx/snapshot</a></ul></html>\n";

void mx_api_landing(struct mx_app *app, struct mx_exchange *x)
{
    const char *accept = mx_exchange_header(x, "Accept");
    if (accept && strstr(accept, "text/html"))
        mx_exchange_send(x, 200, "text/html; charset=utf-8", page, sizeof page - 1);
    else
        mx_exchange_send_json(x, 200,
                              json_pack("{s:s, s:s, s:s, s:o}", "name", "mtplx", "version",
                                        mtplx_version(), "model", app->model_id, "endpoints",
                                        endpoints_json()));
}
