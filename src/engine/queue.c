/* The waiting line. The invariants are in queue.h. */
#include "engine/queue.h"

#include <stdlib.h>
#include <string.h>

struct fifo {
    struct mx_queue_item *first, *last;
};

struct mx_queue_owner {
    struct mx_queue_owner *next;
    struct fifo lines[MX_QUEUE_CLASSES];
    int waiting, running;
    uint64_t served; /* the queue's clock when one of its items was taken last */
    char name[];
};

void mx_queue_free(struct mx_queue *q)
{
    while (q->owners) {
        struct mx_queue_owner *o = q->owners;
        q->owners = o->next;
        free(o);
    }
}

/* ---- Owners ------------------------------------------------------------------------------- */

static struct mx_queue_owner *find_owner(const struct mx_queue *q, const char *name)
{
    for (struct mx_queue_owner *o = q->owners; o; o = o->next)
        if (strcmp(o->name, name) == 0)
            return o;
    return NULL;
}

static struct mx_queue_owner *add_owner(struct mx_queue *q, const char *name, mtplx_error *err)
{
    size_t len = strlen(name) + 1;
    struct mx_queue_owner *o = calloc(1, sizeof *o + len);
    if (!o) {
        mx_error_nomem(err, "the queue of an owner", sizeof *o + len);
        return NULL;
    }
    memcpy(o->name, name, len);
    o->served = q->clock ? q->clock - 1 : 0; /* before the one served last, behind all that wait */
    o->next = q->owners;
    q->owners = o;
    return o;
}

static void drop_if_idle(struct mx_queue *q, struct mx_queue_owner *o)
{
    if (o->waiting || o->running)
        return;
    struct mx_queue_owner **p = &q->owners;
    while (*p != o)
        p = &(*p)->next;
    *p = o->next;
    free(o);
}

int mx_queue_waiting(const struct mx_queue *q, const char *owner)
{
    const struct mx_queue_owner *o = find_owner(q, owner);
    return o ? o->waiting : 0;
}

const char *mx_queue_owner_name(const struct mx_queue_item *item)
{
    return item->owner->name;
}

/* ---- Items -------------------------------------------------------------------------------- */

mtplx_status mx_queue_push(struct mx_queue *q, struct mx_queue_item *item, const char *owner,
                           int priority, mtplx_error *err)
{
    struct mx_queue_owner *o = find_owner(q, owner);
    if (!o && !(o = add_owner(q, owner, err)))
        return MTPLX_ERR_MEMORY;
    item->owner = o;
    item->next = NULL;
    item->class_ = 1 - priority;
    struct fifo *line = &o->lines[item->class_];
    if (line->last)
        line->last->next = item;
    else
        line->first = item;
    line->last = item;
    o->waiting++;
    q->waiting++;
    return MTPLX_OK;
}

/* The owner of a class whose turn it is (W1), or NULL when nobody waits in it. */
static struct mx_queue_owner *next_owner(const struct mx_queue *q, int class_)
{
    struct mx_queue_owner *best = NULL;
    for (struct mx_queue_owner *o = q->owners; o; o = o->next) {
        if (!o->lines[class_].first)
            continue;
        if (!best || o->running < best->running ||
            (o->running == best->running && o->served <= best->served))
            best = o; /* of equals the last in the list: the one that has been known longest */
    }
    return best;
}

struct mx_queue_item *mx_queue_peek(const struct mx_queue *q)
{
    struct mx_queue_item *first = NULL;
    for (int c = 0; c < MX_QUEUE_CLASSES; c++) {
        struct mx_queue_owner *o = next_owner(q, c);
        if (!o)
            continue;
        if (q->passed[c] >= MX_QUEUE_PATIENCE)
            return o->lines[c].first;
        if (!first)
            first = o->lines[c].first;
    }
    return first;
}

static void unlink_item(struct mx_queue *q, struct mx_queue_item *item)
{
    struct fifo *line = &item->owner->lines[item->class_];
    struct mx_queue_item **p = &line->first, *before = NULL;
    while (*p != item) {
        before = *p;
        p = &before->next;
    }
    *p = item->next;
    if (line->last == item)
        line->last = before;
    item->next = NULL;
    item->owner->waiting--;
    q->waiting--;
}

void mx_queue_take(struct mx_queue *q, struct mx_queue_item *item)
{
    unlink_item(q, item);
    item->owner->running++;
    item->owner->served = ++q->clock;
    for (int c = 0; c < MX_QUEUE_CLASSES; c++)
        q->passed[c] = c == item->class_ || !next_owner(q, c) ? 0 : q->passed[c] + 1;
}

void mx_queue_remove(struct mx_queue *q, struct mx_queue_item *item)
{
    unlink_item(q, item);
    drop_if_idle(q, item->owner);
    item->owner = NULL;
}

void mx_queue_leave(struct mx_queue *q, struct mx_queue_item *item)
{
    item->owner->running--;
    drop_if_idle(q, item->owner);
    item->owner = NULL;
}
