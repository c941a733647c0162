/* Watching connections from the side: what the HTTP library does not do.
 *
 * libmicrohttpd looks away from a suspended connection, so a client that has gone is not noticed
 * while its request waits or decodes; and its timeouts start anew with every byte, so one byte a
 * second holds a connection for ever. This thread sleeps in epoll until a watched client hangs up,
 * and wakes for a tick, while there are connections, to hold deadlines and keep streams alive.
 *
 * A deadline is kept by shutting the socket down; the library then closes it in its own time. A
 * slot is closed before its descriptor is, under the same lock, so no other socket is ever hit. */
#ifndef MX_SERVE_WATCH_H
#define MX_SERVE_WATCH_H

#include "serve/exchange.h"

enum mx_watch_phase {
    MX_WATCH_FREE = 0,
    MX_WATCH_HEAD, /* until the next request's head is complete */
    MX_WATCH_BODY, /* a body is coming in */
    MX_WATCH_RUN,  /* a request is prepared, run, or answered */
};

struct mx_watch_times {
    uint64_t tick_ns;
    uint64_t keep_alive_ns;    /* silence of an event stream before a comment */
    uint64_t head_ns, body_ns; /* longest time in a phase; an eighth while places are short */
    uint64_t stall_ns;         /* a client that takes nothing for so long is cut off; 0: never */
};

struct mx_watch;
/* Room for `max` connections. */
struct mx_watch *mx_watch_new(size_t max, const struct mx_watch_times *t, mtplx_error *err);
/* Every slot must be closed, or its connection be gone for good. */
void mx_watch_free(struct mx_watch *w);

/* A slot for a connection, or -1 when none is left. */
int mx_watch_open(struct mx_watch *w, int fd);
void mx_watch_close(struct mx_watch *w, int slot);
/* Enters a phase; RUN with its exchange, which is told when the client hangs up. */
void mx_watch_enter(struct mx_watch *w, int slot, enum mx_watch_phase phase, struct mx_exchange *x);
/* Tells all exchanges that their clients are gone. */
void mx_watch_cut_all(struct mx_watch *w);
/* Shuts connections down that wait for a request's head. */
void mx_watch_cut_idle(struct mx_watch *w);

#endif
