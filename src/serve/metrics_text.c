/* The exposition of /metrics in Prometheus's text format, version 0.0.4.
 *
 * Every family has HELP and TYPE before its samples, counters end in _total, times are in seconds.
 * Label values are escaped: client names and routes come from outside. */
#include "serve/metrics_text.h"
#include "base/clock.h"

#include <inttypes.h>
#include <stdlib.h>

void mx_text_family(struct mx_strbuf *b, const char *name, const char *type, const char *help)
{
    mx_strbuf_printf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* A label value: backslash, quote and newline are escaped. */
static void label_value(struct mx_strbuf *b, const char *s)
{
    for (; *s; s++) {
        if (*s == '\n')
            mx_strbuf_puts(b, "\\n");
        else if (*s == '"' || *s == '\\')
            mx_strbuf_printf(b, "\\%c", *s);
        else
            mx_strbuf_putc(b, *s);
    }
}

static void label(struct mx_strbuf *b, const char *before, const char *name, const char *value)
{
    mx_strbuf_printf(b, "%s%s=\"", before, name);
    label_value(b, value);
    mx_strbuf_putc(b, '"');
}

void mx_text_labelled(struct mx_strbuf *b, const char *name, const char *key, const char *value,
                      uint64_t n)
{
    mx_strbuf_puts(b, name);
    label(b, "{", key, value);
    mx_strbuf_printf(b, "} %" PRIu64 "\n", n);
}

void mx_text_counter(struct mx_strbuf *b, const char *name, const char *help, uint64_t n)
{
    mx_text_family(b, name, "counter", help);
    mx_strbuf_printf(b, "%s %" PRIu64 "\n", name, n);
}

void mx_text_gauge(struct mx_strbuf *b, const char *name, const char *help, double v)
{
    mx_text_family(b, name, "gauge", help);
    mx_strbuf_printf(b, "%s %.17g\n", name, v);
}

/* Buckets below 1 ms * 2^i, the last one open. */
static void histogram(struct mx_strbuf *b, const char *name, const char *help,
                      const uint64_t hist[MX_ENGINE_HIST], uint64_t sum_ns)
{
    uint64_t n = 0;
    mx_text_family(b, name, "histogram", help);
    for (int i = 0; i < MX_ENGINE_HIST - 1; i++) {
        n += hist[i];
        mx_strbuf_printf(b, "%s_bucket{le=\"%.9g\"} %" PRIu64 "\n", name, 1e-3 * (double)(1u << i),
                         n);
    }
    n += hist[MX_ENGINE_HIST - 1];
    mx_strbuf_printf(b, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, n);
    mx_strbuf_printf(b, "%s_sum %.9f\n%s_count %" PRIu64 "\n", name, (double)sum_ns * 1e-9, name,
                     n);
}

/* ---- Families ----------------------------------------------------------------------------- */

static void server_families(struct mx_strbuf *b, const struct mx_app *app,
                            const struct mx_metrics_data *d)
{
    const mtplx_model_info *info = app->model ? mtplx_model_get_info(app->model) : NULL;
    mx_text_family(b, "mtplx_build_info", "gauge", "What is running; always 1.");
    mx_strbuf_puts(b, "mtplx_build_info");
    label(b, "{", "version", mtplx_version());
    label(b, ",", "model", app->model_id ? app->model_id : "");
    label(b, ",", "architecture", info ? info->architecture : "");
    label(b, ",", "device", info ? info->device : "");
    label(b, ",", "profile", info ? info->profile : "");
    label(b, ",", "quantization", info && info->quantization ? info->quantization : "");
    mx_strbuf_puts(b, "} 1\n");
    mx_text_gauge(b, "mtplx_start_time_seconds", "Unix time of the start.", (double)app->created);
    mx_text_gauge(b, "mtplx_uptime_seconds", "Seconds since the start.",
                  (double)(mx_now_ns() - app->started_ns) * 1e-9);
    mx_text_gauge(b, "mtplx_peak_resident_bytes", "Peak resident memory of the process.",
                  (double)mx_peak_rss());
    mx_text_gauge(b, "mtplx_metrics_subscribers", "Clients of the metrics stream.", d->subscribers);
}

static void http_families(struct mx_strbuf *b, const struct mx_metrics_data *d)
{
    mx_text_family(b, "mtplx_http_requests_total", "counter",
                   "Replies by route and status; 499: the client left.");
    for (int i = 0; i < d->n_routes; i++) {
        mx_strbuf_puts(b, "mtplx_http_requests_total");
        label(b, "{", "route", d->routes[i].route);
        mx_strbuf_printf(b, ",status=\"%d\"} %" PRIu64 "\n", d->routes[i].status, d->routes[i].n);
    }
    if (d->other_routes > 0)
        mx_strbuf_printf(b, "mtplx_http_requests_total{route=\"other\",status=\"0\"} %" PRIu64 "\n",
                         d->other_routes);
    histogram(b, "mtplx_http_request_seconds", "Time from a request's head to its reply's end.",
              d->http_hist, d->http_ns);
    mx_text_counter(b, "mtplx_http_body_bytes_total", "Bytes of request bodies.", d->body_bytes);
    mx_text_counter(b, "mtplx_unknown_fields_total", "Request fields that were ignored as unknown.",
                    d->unknown_fields);
}

static void answer_families(struct mx_strbuf *b, const struct mx_metrics_data *d)
{
    mx_text_family(b, "mtplx_answers_total", "counter", "Answers by reason of their end.");
    for (int i = 0; i < MX_METRICS_REASONS; i++)
        mx_text_labelled(b, "mtplx_answers_total", "reason",
                         mx_status_reason((enum mx_turn_reason)i), d->reasons[i]);
    mx_text_family(b, "mtplx_cache_lookups_total", "counter",
                   "Answers by why no more of their prompt was reused; none: all of it was.");
    for (int i = 0; i < MX_METRICS_MISSES; i++)
        mx_text_labelled(b, "mtplx_cache_lookups_total", "miss",
                         mx_cache_miss_name((enum mx_cache_miss)i), d->misses[i]);
    const struct {
        const char *name;
        unsigned n;
    } calls[] = {{"parsed", d->tools.parsed},
                 {"malformed", d->tools.malformed},
                 {"unknown_tool", d->tools.unknown_tool},
                 {"stray", d->tools.stray},
                 {"dropped", d->tools.dropped}};
    mx_text_family(b, "mtplx_tool_calls_total", "counter",
                   "Tool calls in answers by how they parsed.");
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        mx_text_labelled(b, "mtplx_tool_calls_total", "result", calls[i].name, calls[i].n);
    mx_text_counter(b, "mtplx_reasoning_tokens_total", "Answer tokens that were reasoning.",
                    d->reasoning_tokens);
}

static void client_families(struct mx_strbuf *b, const struct mx_metrics_data *d)
{
    mx_text_family(b, "mtplx_client_answers_total", "counter", "Answers by client.");
    for (int i = 0; i < d->n_clients; i++)
        mx_text_labelled(b, "mtplx_client_answers_total", "client", d->clients[i].client,
                         d->clients[i].answers);
    mx_text_family(b, "mtplx_client_prompt_tokens_total", "counter", "Prompt tokens by client.");
    for (int i = 0; i < d->n_clients; i++)
        mx_text_labelled(b, "mtplx_client_prompt_tokens_total", "client", d->clients[i].client,
                         d->clients[i].prompt_tokens);
    mx_text_family(b, "mtplx_client_completion_tokens_total", "counter",
                   "Answer tokens by client.");
    for (int i = 0; i < d->n_clients; i++)
        mx_text_labelled(b, "mtplx_client_completion_tokens_total", "client", d->clients[i].client,
                         d->clients[i].completion_tokens);
}

static void job_families(struct mx_strbuf *b, const struct mx_engine_counters *c)
{
    mx_text_counter(b, "mtplx_jobs_accepted_total", "Jobs that were queued.", c->accepted);
    mx_text_family(b, "mtplx_jobs_total", "counter", "Jobs that ended, by outcome.");
    mx_text_labelled(b, "mtplx_jobs_total", "outcome", "finished", c->finished);
    mx_text_labelled(b, "mtplx_jobs_total", "outcome", "cancelled", c->cancelled);
    mx_text_labelled(b, "mtplx_jobs_total", "outcome", "failed", c->failed);
    mx_text_labelled(b, "mtplx_jobs_total", "outcome", "expired", c->expired);
    mx_text_family(b, "mtplx_jobs_refused_total", "counter",
                   "Jobs that were not queued, by reason.");
    mx_text_labelled(b, "mtplx_jobs_refused_total", "reason", "queue", c->refused_queue);
    mx_text_labelled(b, "mtplx_jobs_refused_total", "reason", "memory", c->refused_memory);
    histogram(b, "mtplx_queue_seconds", "Time jobs waited for admission.", c->queue_hist,
              c->queue_ns);
    histogram(b, "mtplx_ttft_seconds", "Time from submission to the first token.", c->ttft_hist,
              c->ttft_ns);
    histogram(b, "mtplx_job_seconds", "Time from submission to the end.", c->total_hist,
              c->total_ns);
}

static void pass_families(struct mx_strbuf *b, const struct mx_engine_counters *c)
{
    char n[16];
    mx_text_counter(b, "mtplx_prompt_tokens_total", "Prompt tokens, cached ones included.",
                    c->prompt_tokens);
    mx_text_counter(b, "mtplx_cached_tokens_total", "Prompt tokens that were not read again.",
                    c->cached_tokens);
    mx_text_counter(b, "mtplx_warm_tokens_total", "Prompt tokens read ahead in idle time.",
                    c->warm_tokens);
    mx_text_counter(b, "mtplx_restores_total", "Jobs whose prompt was restored in part.",
                    c->restores);
    mx_text_counter(b, "mtplx_disk_restores_total", "Of these, from disk.", c->disk_restores);
    mx_text_counter(b, "mtplx_completion_tokens_total", "Answer tokens.", c->completion_tokens);
    mx_text_counter(b, "mtplx_prefill_passes_total", "Passes that read prompts.",
                    c->prefill_passes);
    mx_text_family(b, "mtplx_cycles_total", "counter",
                   "Decode cycles by number of answers in them.");
    for (int i = 1; i <= MX_MAX_ACTIVE; i++) {
        snprintf(n, sizeof n, "%d", i);
        if (c->width[i] > 0 || i == 1)
            mx_text_labelled(b, "mtplx_cycles_total", "answers", n, c->width[i]);
    }
    mx_text_family(b, "mtplx_busy_seconds_total", "counter", "Time the engine worked.");
    mx_strbuf_printf(b, "mtplx_busy_seconds_total %.9f\n", (double)c->busy_ns * 1e-9);
    mx_text_family(b, "mtplx_drafts_total", "counter",
                   "Draft positions tested: all earlier ones of the cycle were accepted.");
    for (int i = 0; i < MTPLX_MAX_DEPTH; i++) {
        snprintf(n, sizeof n, "%d", i + 1);
        mx_text_labelled(b, "mtplx_drafts_total", "position", n, c->drafted[i]);
    }
    mx_text_family(b, "mtplx_drafts_accepted_total", "counter", "Draft positions accepted.");
    for (int i = 0; i < MTPLX_MAX_DEPTH; i++) {
        snprintf(n, sizeof n, "%d", i + 1);
        mx_text_labelled(b, "mtplx_drafts_accepted_total", "position", n, c->accepted_drafts[i]);
    }
}

static void engine_gauges(struct mx_strbuf *b, const struct mx_engine_snapshot *s)
{
    mx_text_gauge(b, "mtplx_jobs_queued", "Jobs waiting.", s->queued);
    mx_text_gauge(b, "mtplx_answers_active", "Answers being read for or decoded.", s->active);
    mx_text_gauge(b, "mtplx_answers_active_limit", "Most answers decoded together.",
                  s->settings.max_active);
    mx_text_gauge(b, "mtplx_memory_limit_bytes", "Memory that sequences may take.",
                  (double)s->memory_limit);
    mx_text_gauge(b, "mtplx_memory_used_bytes", "Memory that sequences take.",
                  (double)s->memory_used);
    mx_text_gauge(b, "mtplx_memory_reserved_bytes", "Memory promised to running jobs.",
                  (double)s->memory_reserved);
}

void mx_metrics_text(struct mx_strbuf *out, const struct mx_metrics_data *d,
                     const struct mx_engine_snapshot *s, const struct mx_app *app)
{
    server_families(out, app, d);
    http_families(out, d);
    answer_families(out, d);
    client_families(out, d);
    job_families(out, &s->counters);
    pass_families(out, &s->counters);
    engine_gauges(out, s);
    mx_metrics_bank_text(out, app);
}
