/* What metrics.c, status.c and feed.c share about the counters: plain data, copied under the lock.
 */
#ifndef MX_SERVE_METRICS_INT_H
#define MX_SERVE_METRICS_INT_H

#include "base/strbuf.h"
#include "serve/metrics.h"

#define MX_METRICS_ROUTES 128 /* pairs of route and status that are told apart */
#define MX_METRICS_CLIENTS 64 /* clients that are told apart */
#define MX_METRICS_RECENT 32
#define MX_METRICS_PREFILLS 100
#define MX_METRICS_JOBS 1024 /* jobs whose request is remembered */
#define MX_METRICS_REASONS (MX_REASON_ERROR + 1)
#define MX_METRICS_MISSES MX_MISS_COUNT

struct mx_route_count {
    char route[48];
    int status;
    uint64_t n;
};

struct mx_client_count {
    char client[48];
    uint64_t answers, prompt_tokens, cached_tokens, completion_tokens;
};

/* An answer that has ended. */
struct mx_answer_record {
    char id[40], client[48];
    int64_t time; /* Unix time in milliseconds */
    enum mx_turn_reason reason;
    enum mx_cache_miss miss;
    enum mx_restore_kind restored;
    bool from_disk;
    int tool_calls;
    uint64_t prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens;
    uint64_t known_tokens;
    uint64_t queue_ns, ttft_ns, total_ns, restore_ns;
    double mean_width;
    mtplx_gen_stats stats;
};

struct mx_request_job {
    char id[40];
    uint64_t job; /* 0: unused */
};

/* All counters, as one value. */
struct mx_metrics_data {
    struct mx_route_count routes[MX_METRICS_ROUTES];
    int n_routes;
    uint64_t other_routes; /* requests that found no free entry */
    uint64_t http_hist[MX_ENGINE_HIST], http_ns, http_n, body_bytes;

    struct mx_client_count clients[MX_METRICS_CLIENTS];
    int n_clients;

    uint64_t reasons[MX_METRICS_REASONS], misses[MX_METRICS_MISSES];
    uint64_t prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens;
    struct mx_toolcall_counts tools;
    uint64_t unknown_fields;

    /* Rings: entry i of n is at (next - n + i) mod size. */
    struct mx_answer_record recent[MX_METRICS_RECENT], prefills[MX_METRICS_PREFILLS];
    size_t n_recent, next_recent, n_prefills, next_prefill;
    struct mx_request_job jobs[MX_METRICS_JOBS];
    size_t next_job;
    int subscribers;
};

/* A consistent copy to free(), or NULL. */
struct mx_metrics_data *mx_metrics_copy(struct mx_metrics *m);

/* Subscribes an exchange to the feed; false with *e filled when it cannot be. */
bool mx_metrics_subscribe(struct mx_metrics *m, struct mx_app *app, struct mx_exchange *x,
                          struct mx_api_error *e);

/* The feed: one thread that writes an event to every subscriber each 200 ms. */
struct mx_feed;
struct mx_feed *mx_feed_new(struct mx_app *app);
void mx_feed_free(struct mx_feed *f);
bool mx_feed_add(struct mx_feed *f, struct mx_exchange *x, struct mx_api_error *e);
int mx_feed_count(struct mx_feed *f);

/* ---- Views: status.c ---------------------------------------------------------------------- */

/* A snapshot of the engine to free(), or NULL. */
struct mx_engine_snapshot *mx_status_snapshot(struct mx_app *app);
const char *mx_status_reason(enum mx_turn_reason reason);
/* New references, or NULL when memory is out. `m` may be NULL. */
json_t *mx_status_answer(const struct mx_answer_record *a);
json_t *mx_status_jobs(const struct mx_engine_snapshot *s, struct mx_metrics *m);
json_t *mx_status_counters(const struct mx_engine_snapshot *s, const struct mx_metrics_data *d);
json_t *mx_status_memory(const struct mx_engine_snapshot *s);
json_t *mx_status_scheduler(const struct mx_engine_settings *s);
json_t *mx_status_tools(const struct mx_metrics_data *d);
json_t *mx_status_misses(const struct mx_metrics_data *d);
/* The session bank, its disk tier, turn alignment and the bank's sessions: status_bank.c. */
json_t *mx_status_bank(const struct mx_app *app);
json_t *mx_status_cold(const struct mx_app *app);
json_t *mx_status_align(const struct mx_app *app);
json_t *mx_status_sessions(const struct mx_app *app);
struct mx_bank *mx_status_bank_of(const struct mx_app *app); /* NULL: there is none */
/* What the feed sends. */
json_t *mx_status_tick(struct mx_app *app);

/* The exposition in Prometheus's text format, version 0.0.4. */
void mx_metrics_text(struct mx_strbuf *out, const struct mx_metrics_data *d,
                     const struct mx_engine_snapshot *s, const struct mx_app *app);

/* ---- Settings: settings.c ----------------------------------------------------------------- */

/* All settings and whether they may be changed. */
json_t *mx_settings_json(struct mx_app *app);
/* The values of those that may be changed. */
json_t *mx_settings_values(const struct mx_app_settings *s, const struct mx_engine_settings *e);
/* Reads the members of `body` into copies of the settings; false with *e filled when a name or
 * value is wrong (the copies are half changed then). */
bool mx_settings_read(const json_t *body, struct mx_app_settings *s,
                      struct mx_engine_settings *engine, struct mx_api_error *e);
/* Applies the members of `body`, all or none; false with *e filled when a name or value is wrong.
 */
bool mx_settings_apply(struct mx_app *app, const json_t *body, struct mx_api_error *e);

/* Unix time in milliseconds. */
int64_t mx_unix_ms(void);

#endif
