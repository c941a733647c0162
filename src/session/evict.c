/* What the bank drops first.
 *
 * Order, the first difference decides: entries of no pinned session before pinned ones; those that
 * nobody else holds before those in use (dropping them frees little); not used within pin_ns
 * before used; idle longest first, in classes that double from 10 ms on: where all were used of
 * late, as under a budget that is too small for what is going on, it is the oldest that goes and
 * not what was put in last; within a class short ones, which are soon read again, before others;
 * CHUNK before BORDER before PROMPT and ANSWER before SYSTEM points; restored less often first;
 * larger first; idle longest first. */
#include "session/bank_int.h"

#include <stdlib.h>

/* Victims found in one pass over the entries. */
#define BATCH 32
/* Idle times below this are the same: those of the points of a turn, not of the turn before. */
#define CLASS_NS 10000000u
/* Tokens: less than a pass reads at once. */
#define SHORT 128

struct rank {
    struct mx_entry *e;
    int level; /* pinned, in use, recent: the higher the later */
    int age;   /* class of idle time, 0: within CLASS_NS */
    uint64_t idle;
};

static int worth(enum mx_point p)
{
    switch (p) {
    case MX_POINT_CHUNK: return 0;
    case MX_POINT_BORDER: return 1;
    case MX_POINT_SYSTEM: return 3;
    default: return 2;
    }
}

static struct rank rank_of(const struct mx_bank *b, struct mx_entry *e, uint64_t now)
{
    struct rank r = {.e = e, .idle = now > e->used_ns ? now - e->used_ns : 0};
    for (uint64_t idle = r.idle; idle >= CLASS_NS; idle /= 2)
        r.age++;
    bool in_use = atomic_load_explicit(&e->s->refs, memory_order_relaxed) > 1;
    r.level = e->session->pinned ? 3 : in_use ? 2 : r.idle < b->o.pin_ns;
    return r;
}

/* Whether x goes before y. */
static bool before(const struct rank *x, const struct rank *y)
{
    if (x->level != y->level)
        return x->level < y->level;
    if (x->age != y->age)
        return x->age > y->age;
    bool sx = x->e->s->n < SHORT, sy = y->e->s->n < SHORT;
    if (sx != sy)
        return sx;
    int wx = worth(x->e->point), wy = worth(y->e->point);
    if (wx != wy)
        return wx < wy;
    if (x->e->hits != y->e->hits)
        return x->e->hits < y->e->hits;
    if (x->e->own != y->e->own)
        return x->e->own > y->e->own;
    if (x->idle != y->idle)
        return x->idle > y->idle;
    return x->e->id < y->e->id;
}

/* Keeps the first BATCH by order. */
static int take(struct rank *best, int n, const struct rank *r)
{
    int at = n;
    while (at > 0 && before(r, &best[at - 1]))
        at--;
    if (at == BATCH)
        return n;
    n = n < BATCH ? n + 1 : n;
    for (int i = n - 1; i > at; i--)
        best[i] = best[i - 1];
    best[at] = *r;
    return n;
}

/* For qsort(). */
static int by_rank(const void *a, const void *b)
{
    const struct rank *x = a, *y = b;
    return before(x, y) ? -1 : before(y, x);
}

/* Where a batch was not enough: all entries in order, so that dropping most of many does not look
 * through the rest again and again. False: no memory. */
static bool fit_sorted(struct mx_bank *b, uint64_t bytes, uint64_t now, uint64_t *count,
                       struct mx_trash *t)
{
    size_t n = 0, all = (size_t)b->stats.entries;
    struct rank *ranks = malloc((all + 1) * sizeof *ranks);
    if (!ranks)
        return false;
    for (struct mx_entry *e = b->oldest; e && n < all; e = e->newer)
        ranks[n++] = rank_of(b, e, now);
    qsort(ranks, n, sizeof *ranks, by_rank);
    for (size_t i = 0; i < n && mx_bank_held_bytes(b) > bytes; i++)
        mx_bank_remove(b, ranks[i].e, MX_MISS_EVICTED, count, t);
    free(ranks);
    return true;
}

void mx_bank_fit(struct mx_bank *b, uint64_t bytes, uint64_t now, uint64_t *count,
                 struct mx_trash *t)
{
    struct rank best[BATCH];
    if (mx_bank_held_bytes(b) > bytes)
        mx_leave_reap(b, false, t);
    for (int turn = 0; mx_bank_held_bytes(b) > bytes && b->newest; turn++) {
        int n = 0;
        if (turn > 0 && fit_sorted(b, bytes, now, count, t))
            return;
        for (struct mx_entry *e = b->oldest; e; e = e->newer) {
            struct rank r = rank_of(b, e, now);
            n = take(best, n, &r);
        }
        for (int i = 0; i < n && mx_bank_held_bytes(b) > bytes; i++)
            mx_bank_remove(b, best[i].e, MX_MISS_EVICTED, count, t);
    }
}

void mx_bank_fit_session(struct mx_bank *b, struct mx_session *s, const struct mx_entry *newest,
                         uint64_t now, struct mx_trash *t)
{
    struct rank best[BATCH];
    uint64_t cap = b->o.session_cap ? b->o.session_cap : b->o.budget / 3 * 2;
    while (s->bytes > cap && s->n_entries > 1) {
        int n = 0;
        for (struct mx_entry *e = s->entries; e; e = e->next_of) {
            struct rank r = rank_of(b, e, now);
            n = e == newest ? n : take(best, n, &r);
        }
        for (int i = 0; i < n && s->bytes > cap; i++)
            mx_bank_remove(b, best[i].e, MX_MISS_EVICTED, &b->stats.dropped_cap, t);
    }
}

void mx_bank_expire(struct mx_bank *b, uint64_t now, struct mx_trash *t)
{
    if (b->o.ttl_ns == UINT64_MAX)
        return;
    for (struct mx_entry *e = b->oldest, *next; e; e = next) {
        next = e->newer;
        if (now < e->used_ns || now - e->used_ns < b->o.ttl_ns)
            return;
        if (!e->session->pinned)
            mx_bank_remove(b, e, MX_MISS_EXPIRED, &b->stats.dropped_ttl, t);
    }
}
