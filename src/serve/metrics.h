/* Counters of the server: what the engine's own do not hold. All functions are thread-safe. */
#ifndef MX_SERVE_METRICS_H
#define MX_SERVE_METRICS_H

#include "serve/turn.h"

struct mx_metrics;
struct mx_metrics *mx_metrics_new(void);
void mx_metrics_free(struct mx_metrics *m);

/* A reply is complete (or broken off: status 499): called by the HTTP side for every request. */
void mx_metrics_request(struct mx_metrics *m, const char *route, int status, uint64_t ns,
                        size_t body_bytes);
/* A choice has ended: called by the turn for every FINISH. `id` is the request's. */
void mx_metrics_finish(struct mx_metrics *m, const char *id, const char *client,
                       const struct mx_turn_finish *f);
/* What a turn's tool-call parser saw, and fields that no dialect knows. */
void mx_metrics_tools(struct mx_metrics *m, const struct mx_toolcall_counts *c);
void mx_metrics_unknown_fields(struct mx_metrics *m, unsigned n);

#endif
