/* The waiting line: jobs of several owners, in turns.
 *
 * Each priority class has a list of owners, each owner a first-in-first-out queue in each class.
 *
 * Invariants
 *   W1  Inside a class the owner with the fewest running jobs goes first, of those the one that was
 *       served longest ago: somebody's fifty jobs delay another's one by at most the job whose
 *       place it takes. Who is new counts as served just before the one served last, so that
 *       owners who come and go keep nobody waiting.
 *   W2  Higher classes go first, but a class that was passed over MX_QUEUE_PATIENCE times goes
 *       next, so nothing waits for ever.
 *   W3  An owner is known while it has waiting or running jobs.
 *
 * Not thread-safe: the engine's lock is held. The items are the caller's. */
#ifndef MX_ENGINE_QUEUE_H
#define MX_ENGINE_QUEUE_H

#include "base/error.h"

enum { MX_QUEUE_CLASSES = 3, MX_QUEUE_PATIENCE = 8 };

struct mx_queue_owner;

/* Embedded in what is queued. */
struct mx_queue_item {
    struct mx_queue_item *next;
    struct mx_queue_owner *owner; /* set by mx_queue_push() until mx_queue_leave() */
    int class_;                   /* 0..MX_QUEUE_CLASSES - 1, the highest first */
};

struct mx_queue {
    struct mx_queue_owner *owners;
    int waiting;
    int passed[MX_QUEUE_CLASSES];
    uint64_t clock; /* counts services */
};

void mx_queue_free(struct mx_queue *q);

/* Items of an owner that wait. */
int mx_queue_waiting(const struct mx_queue *q, const char *owner);

/* Appends to the owner's queue in the class of the priority (-1, 0, 1). Errors: MEMORY. */
mtplx_status mx_queue_push(struct mx_queue *q, struct mx_queue_item *item, const char *owner,
                           int priority, mtplx_error *err);

/* Whose turn it is, or NULL. */
struct mx_queue_item *mx_queue_peek(const struct mx_queue *q);
/* Takes what mx_queue_peek() told: it counts as running for its owner until mx_queue_leave(). */
void mx_queue_take(struct mx_queue *q, struct mx_queue_item *item);
/* Removes a waiting item; it is gone for the queue. */
void mx_queue_remove(struct mx_queue *q, struct mx_queue_item *item);
/* A taken item has ended. */
void mx_queue_leave(struct mx_queue *q, struct mx_queue_item *item);

/* The owner's name; valid while the item is waiting or running. */
const char *mx_queue_owner_name(const struct mx_queue_item *item);

#endif
