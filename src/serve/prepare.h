/* The preparation threads: they run handlers, away from the HTTP library's thread and the engine's.
 *
 * Two lanes, each with its own bounded queue and threads: one for handlers that take little time,
 * so that status and cancelling work while all others are busy. */
#ifndef MX_SERVE_PREPARE_H
#define MX_SERVE_PREPARE_H

#include "serve/exchange.h"

enum mx_lane { MX_LANE_SLOW = 0, MX_LANE_QUICK, MX_LANES };

struct mx_preparer;
typedef void mx_prepare_fn(void *arg, struct mx_exchange *x);

/* `threads` for the slow lane, one for the quick one; `queue` places in each. */
struct mx_preparer *mx_preparer_new(int threads, size_t queue, mx_prepare_fn *fn, void *arg,
                                    mtplx_error *err);
/* Lets handlers that run finish and drops what waits. */
void mx_preparer_free(struct mx_preparer *p);
/* Takes over the users' reference of x; false, with nothing taken, when the queue is full. */
bool mx_preparer_submit(struct mx_preparer *p, enum mx_lane lane, struct mx_exchange *x);

#endif
