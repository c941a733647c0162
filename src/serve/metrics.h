/* Counters of the server: what the engine's own do not hold. All functions are thread-safe. */
#ifndef MX_SERVE_METRICS_H
#define MX_SERVE_METRICS_H

#include "serve/turn.h"

struct mx_metrics;
struct mx_metrics *mx_metrics_new(void);
/* Ends what mx_metrics_stop() ends, then frees. NULL is allowed. */
void mx_metrics_free(struct mx_metrics *m);
/* Ends the streams of /v1/mtplx/metrics/stream and refuses new ones: before the HTTP server is
 * freed, so that their clients see an orderly end. */
void mx_metrics_stop(struct mx_metrics *m);

/* A reply is complete (or broken off: status 499): called by the HTTP side for every request.
 * `route` is the pattern, not the path, so that clients cannot make up new ones. */
void mx_metrics_request(struct mx_metrics *m, const char *route, int status, uint64_t ns,
                        size_t body_bytes);
/* A job was queued for request `id`: called by the turn once mx_engine_submit() has succeeded. */
void mx_metrics_started(struct mx_metrics *m, const char *id, uint64_t job);
/* A choice has ended: called by the turn for every FINISH. `id` is the request's. */
void mx_metrics_finish(struct mx_metrics *m, const char *id, const char *client,
                       const struct mx_turn_finish *f);
/* What a turn's tool-call parser saw, and fields that no dialect knows. */
void mx_metrics_tools(struct mx_metrics *m, const struct mx_toolcall_counts *c);
void mx_metrics_unknown_fields(struct mx_metrics *m, unsigned n);

/* Jobs of a request id, newest first, at most `max`: ended ones may be among them. An id is matched
 * by what follows its last '_' or '-', so "chatcmpl-<hex>" finds the job of "req_<hex>". */
int mx_metrics_jobs(struct mx_metrics *m, const char *id, uint64_t *jobs, int max);
/* The request id of a job into out[40], "" when it is not known. */
void mx_metrics_request_of(struct mx_metrics *m, uint64_t job, char out[40]);

#endif
