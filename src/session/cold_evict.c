/* What has to go when the cold tier is full: snapshots by last use, then blocks that nobody needs.
 *
 * A snapshot before the first message of the user is shared by conversations and costs little more
 * than its slab, so those of our identity go last, unless nobody used them for a week. */
#include "session/cold_int.h"

#include <stdlib.h>

#define WEEK_MS (7ull * 24 * 3600 * 1000)
#define POINT_SYSTEM 2 /* MX_POINT_SYSTEM of bank.h, which stands above */

struct candidates {
    struct mx_cold_entry **list;
    size_t n, cap;
    uint64_t old; /* used before: SYSTEM is no excuse */
};

static void collect(struct mx_cold_entry *e, void *arg)
{
    struct candidates *k = arg;
    if (e->kind == MX_COLD_SNAPSHOT && e->state == MX_COLD_ENTRY_LIVE && k->n < k->cap)
        k->list[k->n++] = e;
    e->mark = e->point == POINT_SYSTEM && e->identity == 0 && e->used >= k->old;
}

static int by_worth(const void *a, const void *b)
{
    const struct mx_cold_entry *x = *(struct mx_cold_entry *const *)a;
    const struct mx_cold_entry *y = *(struct mx_cold_entry *const *)b;
    if (x->mark != y->mark)
        return x->mark ? 1 : -1;
    return x->used < y->used ? -1 : x->used > y->used;
}

/* With mu. Goes a little below the limit, so that not every batch has to sort. */
static void evict(struct mx_cold *c, uint64_t keep_bytes, size_t keep_entries)
{
    uint64_t now = mx_cold_now_ms(c);
    struct candidates k = {.cap = c->index.snapshots, .old = now > WEEK_MS ? now - WEEK_MS : 0};
    k.list = calloc(k.cap + 1, sizeof(struct mx_cold_entry *));
    if (!k.list)
        return;
    mx_cold_index_each(&c->index, collect, &k);
    qsort(k.list, k.n, sizeof *k.list, by_worth);
    for (size_t i = 0; i < k.n && (c->index.bytes > keep_bytes || c->index.n > keep_entries); i++) {
        struct mx_cold_entry *up = k.list[i]->parent;
        mx_cold_cut(c, k.list[i]);
        mx_cold_prune(c, up);
        c->stats.evicted++;
    }
    free(k.list);
}

/* With mu. Bytes of what an entry hangs below, which nothing that goes would free. */
static uint64_t bytes_above(const struct mx_cold_entry *e)
{
    uint64_t n = 0;
    for (e = e ? e->parent : NULL; e; e = e->parent)
        n += e->state == MX_COLD_ENTRY_LIVE ? mx_cold_disk_bytes(e->bytes) : 0;
    return n;
}

bool mx_cold_make_room(struct mx_cold *c, uint64_t more, const struct mx_cold_entry *e)
{
    uint64_t most = mx_cold_limit(c);
    if (more > most)
        return false;
    uint64_t keep = most - more;
    pthread_mutex_lock(&c->mu);
    /* Too long a conversation must not cost all others their places, and then not fit. */
    bool possible = bytes_above(e) <= keep;
    if (possible && (c->index.bytes > keep || c->index.n > MX_COLD_ENTRIES))
        evict(c, keep - keep / 32, MX_COLD_ENTRIES - MX_COLD_ENTRIES / 32);
    bool fits = possible && c->index.bytes <= keep;
    pthread_mutex_unlock(&c->mu);
    mx_cold_sweep(c);
    return fits;
}
