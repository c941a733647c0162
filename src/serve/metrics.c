/* GET /metrics, its stream and the history of prefills. */
#include "serve/api.h"
#include "serve/metrics_int.h"

#include <stdlib.h>
#include <string.h>

/* A ring's records, the newest first. */
static json_t *ring_json(const struct mx_answer_record *ring, size_t size, size_t n, size_t next)
{
    json_t *list = json_array();
    for (size_t i = 1; i <= n; i++)
        json_array_append_new(list, mx_status_answer(&ring[(next - i) % size]));
    return list;
}

static json_t *metrics_json(const struct mx_engine_snapshot *s, const struct mx_metrics_data *d)
{
    json_t *recent = ring_json(d->recent, MX_METRICS_RECENT, d->n_recent, d->next_recent);
    json_t *first = json_array_get(recent, 0);
    return json_pack("{s:O?, s:o, s:o, s:o}", "latest", first, "recent", recent, "counters",
                     mx_status_counters(s, d), "tool_parse_counters", mx_status_tools(d));
}

static void send_text(struct mx_exchange *x, const struct mx_engine_snapshot *s,
                      const struct mx_metrics_data *d, const struct mx_app *app)
{
    struct mx_strbuf b;
    mx_strbuf_init(&b, 1u << 20);
    mx_metrics_text(&b, d, s, app);
    if (b.failed)
        mx_exchange_send_json(x, 200, NULL);
    else
        mx_exchange_send(x, 200, "text/plain; version=0.0.4; charset=utf-8", b.data, b.len);
    mx_strbuf_free(&b);
}

void mx_api_metrics(struct mx_app *app, struct mx_exchange *x)
{
    const char *accept = mx_exchange_header(x, "Accept");
    struct mx_engine_snapshot *s = mx_status_snapshot(app);
    struct mx_metrics_data *d = mx_metrics_copy(app->metrics);
    mx_exchange_set_header(x, "Cache-Control", "no-store");
    if (!s || !d)
        mx_exchange_send_json(x, 200, NULL);
    else if (accept && strstr(accept, "application/json"))
        mx_exchange_send_json(x, 200, metrics_json(s, d));
    else
        send_text(x, s, d, app);
    free(s);
    free(d);
}

void mx_api_metrics_stream(struct mx_app *app, struct mx_exchange *x)
{
    struct mx_api_error e = {0};
    if (!mx_metrics_subscribe(app->metrics, app, x, &e))
        mx_exchange_fail(x, &e);
}

void mx_api_prefill_history(struct mx_app *app, struct mx_exchange *x)
{
    struct mx_metrics_data *d = mx_metrics_copy(app->metrics);
    json_t *o = NULL;
    if (d)
        o = json_pack("{s:i, s:o}", "capacity", MX_METRICS_PREFILLS, "history",
                      ring_json(d->prefills, MX_METRICS_PREFILLS, d->n_prefills, d->next_prefill));
    free(d);
    mx_exchange_send_json(x, 200, o);
}
