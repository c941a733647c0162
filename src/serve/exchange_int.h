/* The inside of an exchange, for the HTTP side and for tests of handlers without a socket.
 *
 * Life: the HTTP side makes it at the request's head, fills in the body, hands it to a preparation
 * thread, and takes the reply from it with mx_exchange_take(). A handler and whatever it starts
 * write the reply from their threads.
 *
 * Two counts: `users` are the references of exchange.h; together they hold one of `refs`, the HTTP
 * side another. When the last user goes and the reply is not complete, it is completed as a
 * failure.
 *
 * Invariants
 *   X1  The request part never changes once the handler runs, so it is read without a lock; but the
 *       body is the handler's alone, and freed when it returns: an answer that takes minutes does
 *       not hold the tree of a long conversation.
 *   X2  The reply part belongs to `lock`. Of the callbacks park() and wake() alone come with it
 *       held.
 *   X3  `parked` is set only where nothing is left to take and the reply goes on, and whoever adds
 *       to the reply clears it and calls wake(): no wake-up is lost and none comes twice.
 *   X4  After the reply is complete, or the client is gone, neither callback starts; a call that
 *       runs meanwhile on another thread is waited for. */
#ifndef MX_SERVE_EXCHANGE_INT_H
#define MX_SERVE_EXCHANGE_INT_H

#include "base/strbuf.h"
#include "serve/exchange.h"

#include <pthread.h>
#include <stdatomic.h>

struct mx_route;

struct mx_pair {
    char *name, *value;
};

struct mx_pairs {
    struct mx_pair *items;
    size_t n, cap;
};

/* False when out of memory. Copies. */
bool mx_pairs_add(struct mx_pairs *p, const char *name, const char *value);
/* The first value under a name, or NULL; `any_case` for headers. */
const char *mx_pairs_get(const struct mx_pairs *p, const char *name, bool any_case);
void mx_pairs_free(struct mx_pairs *p);

/* A queue of bytes with a maximum. */
struct mx_outbox {
    char *data;
    size_t off, len, cap; /* data[off..len) waits */
};
bool mx_outbox_put(struct mx_outbox *o, const void *data, size_t n, size_t max);
size_t mx_outbox_take(struct mx_outbox *o, void *to, size_t max);
void mx_outbox_free(struct mx_outbox *o);

enum mx_reply_state {
    MX_REPLY_NONE = 0,
    MX_REPLY_WHOLE,  /* sent as a whole: `out` holds the body */
    MX_REPLY_STREAM, /* begun */
    MX_REPLY_ENDED,  /* a stream that is complete */
};

enum { MX_ON_GONE = 0, MX_ON_DRAINED, MX_ON_KINDS };

struct mx_callback {
    mx_gone_fn *fn;
    void *arg;
    uint64_t value;
    bool running; /* on `thread` */
    pthread_t thread;
};

/* What the HTTP side needs to be told about. */
struct mx_exchange_hooks {
    void (*park)(struct mx_exchange *x); /* nothing to take; with x->lock held */
    void (*wake)(struct mx_exchange *x); /* something to take again; with x->lock held */
};

struct mx_exchange {
    atomic_int users, refs;
    const struct mx_exchange_hooks *hooks; /* NULL in tests */

    /* The request (X1). */
    enum mx_dialect dialect;
    bool slash;      /* the path ended with one, which is gone */
    bool authorized; /* a valid key was given, or none is configured */
    char request_id[32], client[64];
    char *method, *path, *id;
    const char *route; /* pattern, for the log and the metrics; static */
    struct mx_pairs headers, query;
    struct mx_strbuf text; /* body as received, freed once parsed */
    size_t body_bytes;
    json_t *body;
    uint64_t started_ns;

    /* The reply (X2). */
    pthread_mutex_t lock;
    pthread_cond_t calm; /* a callback has returned */
    enum mx_reply_state state;
    int status;
    char *type;
    struct mx_pairs reply_headers;
    struct mx_outbox out;
    uint64_t written_ns, taken_ns; /* last bytes in; last bytes out, or wake-up */
    size_t sent_bytes;             /* taken so far */
    bool sse, boundary;            /* event stream; at the border of two events */
    bool broken;                   /* ended without mx_exchange_end() */
    bool lost;                     /* gone before it was complete */
    bool gone, parked, above;      /* `above`: the backlog has been over MX_STREAM_HIGH */
    struct mx_callback on[MX_ON_KINDS];
    json_t *notes;

    /* The HTTP side's own. */
    void *server, *conn;
    const struct mx_route *entry; /* of the route table, or NULL */
    atomic_size_t charged;        /* bytes of the upload budget */
    int slot;                     /* of the watch, -1: none */
    bool submitted;               /* a preparation thread has the users' reference */
};

/* A request with one user; NULL when out of memory. */
struct mx_exchange *mx_exchange_new(const struct mx_exchange_hooks *hooks, const char *method,
                                    const char *path);
/* The HTTP side's reference. */
void mx_exchange_hold(struct mx_exchange *x);
void mx_exchange_drop(struct mx_exchange *x);

/* The last user is gone: completes the reply as a failure unless it is complete. */
void mx_exchange_abandon(struct mx_exchange *x);

/* mx_exchange_send(), or false when a reply has begun. */
bool mx_exchange_try_send(struct mx_exchange *x, int status, const char *type, const void *body,
                          size_t n);

/* Parks unless a reply has begun or the client is gone; true when parked. */
bool mx_exchange_park(struct mx_exchange *x);

#define MX_TAKE_END SIZE_MAX       /* the reply is complete and taken */
#define MX_TAKE_CUT (SIZE_MAX - 1) /* it will never be complete */
/* Copies up to `max` bytes of the reply and returns how many, or one of the above. 0: none are
 * there yet, and with `park` the exchange is parked. */
size_t mx_exchange_take(struct mx_exchange *x, void *to, size_t max, bool park);

/* The client is gone, or is cut off: calls on_gone unless the reply is complete. */
void mx_exchange_set_gone(struct mx_exchange *x);
/* Writes a comment when an event stream has been silent since before `before`. */
void mx_exchange_keep_alive(struct mx_exchange *x, uint64_t before);
/* True when bytes have been waiting for the client since before `before`. */
bool mx_exchange_stalled(struct mx_exchange *x, uint64_t before);

#endif
