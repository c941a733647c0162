/* The objects of the cold tier in memory: a hash table over keys, whose entries form a forest. */
#include "session/cold_int.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_BUCKETS 1024

bool mx_cold_key_zero(struct mx_cold_key k)
{
    static const struct mx_cold_key zero;
    return memcmp(k.b, zero.b, sizeof k.b) == 0;
}

bool mx_cold_key_equal(struct mx_cold_key a, struct mx_cold_key b)
{
    return memcmp(a.b, b.b, sizeof a.b) == 0;
}

mtplx_status mx_cold_index_init(struct mx_cold_index *x, const struct mx_cold_identity *ours,
                                mtplx_error *err)
{
    *x = (struct mx_cold_index){.n_buckets = FIRST_BUCKETS};
    x->buckets = calloc(FIRST_BUCKETS, sizeof *x->buckets);
    if (!x->buckets || mx_cold_index_identity(x, ours) < 0)
        return mx_error_nomem(err, "the index of the cold tier", FIRST_BUCKETS * sizeof(void *));
    return MTPLX_OK;
}

void mx_cold_index_free(struct mx_cold_index *x)
{
    for (size_t i = 0; x->buckets && i < x->n_buckets; i++)
        for (struct mx_cold_entry *e = x->buckets[i], *next; e; e = next) {
            next = e->next;
            free(e->session);
            free(e);
        }
    free(x->buckets);
    free(x->identities);
    *x = (struct mx_cold_index){0};
}

int mx_cold_index_identity(struct mx_cold_index *x, const struct mx_cold_identity *id)
{
    for (int i = 0; i < x->n_identities; i++)
        if (memcmp(&x->identities[i], id, sizeof *id) == 0)
            return i;
    if (x->n_identities == MX_COLD_IDENTITIES)
        return -1;
    struct mx_cold_identity *more =
        realloc(x->identities, ((size_t)x->n_identities + 1) * sizeof *more);
    if (!more)
        return -1;
    x->identities = more;
    more[x->n_identities] = *id;
    return x->n_identities++;
}

/* Keys are hashes already. All identities of a key share its bucket. */
static size_t bucket_of(const struct mx_cold_index *x, struct mx_cold_key key)
{
    uint64_t h;
    memcpy(&h, key.b + 4, sizeof h);
    return (size_t)h & (x->n_buckets - 1);
}

struct mx_cold_entry *mx_cold_index_chain(const struct mx_cold_index *x, struct mx_cold_key key)
{
    return x->buckets[bucket_of(x, key)];
}

struct mx_cold_entry *mx_cold_index_find(const struct mx_cold_index *x, int kind,
                                         struct mx_cold_key key, int identity)
{
    struct mx_cold_entry *e = mx_cold_index_chain(x, key);
    while (e && (e->kind != kind || e->identity != identity || !mx_cold_key_equal(e->key, key)))
        e = e->next;
    return e;
}

/* Without memory for more buckets the chains get longer, that is all. */
static void grow(struct mx_cold_index *x)
{
    struct mx_cold_index wider = {.n_buckets = x->n_buckets * 2};
    wider.buckets = calloc(wider.n_buckets, sizeof *wider.buckets);
    if (!wider.buckets)
        return;
    for (size_t i = 0; i < x->n_buckets; i++)
        for (struct mx_cold_entry *e = x->buckets[i], *next; e; e = next) {
            next = e->next;
            struct mx_cold_entry **at = &wider.buckets[bucket_of(&wider, e->key)];
            e->next = *at;
            *at = e;
        }
    free(x->buckets);
    x->buckets = wider.buckets;
    x->n_buckets = wider.n_buckets;
}

struct mx_cold_entry *mx_cold_index_add(struct mx_cold_index *x, int kind, struct mx_cold_key key,
                                        int identity, struct mx_cold_entry *parent)
{
    struct mx_cold_entry *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    if (x->n >= x->n_buckets)
        grow(x);
    e->key = key;
    e->kind = (uint8_t)kind;
    e->identity = (uint16_t)identity;
    struct mx_cold_entry **at = &x->buckets[bucket_of(x, key)];
    e->next = *at;
    *at = e;
    e->parent = parent;
    if (parent) {
        e->right = parent->child;
        if (e->right)
            e->right->left = e;
        parent->child = e;
    }
    x->n++;
    return e;
}

static void count(struct mx_cold_index *x, const struct mx_cold_entry *e, int sign)
{
    uint64_t one = sign > 0 ? 1 : UINT64_MAX;
    if (e->kind == MX_COLD_SNAPSHOT)
        x->snapshots += one;
    else
        x->blocks += one;
    uint64_t bytes = mx_cold_disk_bytes(e->bytes);
    x->bytes += sign > 0 ? bytes : -bytes;
}

void mx_cold_index_live(struct mx_cold_index *x, struct mx_cold_entry *e, uint64_t bytes)
{
    e->state = MX_COLD_ENTRY_LIVE;
    e->bytes = bytes;
    count(x, e, 1);
}

void mx_cold_index_detach(struct mx_cold_entry *e)
{
    if (e->left)
        e->left->right = e->right;
    else if (e->parent)
        e->parent->child = e->right;
    if (e->right)
        e->right->left = e->left;
    e->parent = e->left = e->right = NULL;
}

void mx_cold_index_remove(struct mx_cold_index *x, struct mx_cold_entry *e)
{
    struct mx_cold_entry **at = &x->buckets[bucket_of(x, e->key)];
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    mx_cold_index_detach(e);
    if (e->state == MX_COLD_ENTRY_LIVE)
        count(x, e, -1);
    x->n--;
    free(e->session);
    free(e);
}

void mx_cold_index_each(struct mx_cold_index *x, void (*fn)(struct mx_cold_entry *e, void *arg),
                        void *arg)
{
    for (size_t i = 0; i < x->n_buckets; i++)
        for (struct mx_cold_entry *e = x->buckets[i]; e; e = e->next)
            fn(e, arg);
}
