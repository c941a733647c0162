/* What was dropped and is not written yet. See leave.h. */
#include "session/leave.h"

#include "session/bank_int.h"

static uint64_t block_bytes(const struct mx_kv_block *k)
{
    return mx_kv_pool_block_bytes(k->pool);
}

bool mx_leave_may(const struct mx_bank *b, const struct mx_entry *e)
{
    uint64_t most = b->ceiling / MX_LEAVE_PART, bytes = mx_bank_whole_bytes(e->s, e->own);
    return b->leaving.bytes <= most && bytes <= most - b->leaving.bytes;
}

static void count(struct mx_bank *b, struct mx_kv_block *const *blocks, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (mx_held_add(&b->leaving.blocks, blocks[i], NULL) && !mx_held_has(&b->held, blocks[i]))
            b->leaving.bytes += block_bytes(blocks[i]);
}

static void discount(struct mx_bank *b, struct mx_kv_block *const *blocks, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        mx_held_drop(&b->leaving.blocks, blocks[i]);
        if (!mx_held_has(&b->leaving.blocks, blocks[i]) && !mx_held_has(&b->held, blocks[i]))
            b->leaving.bytes -= block_bytes(blocks[i]);
    }
}

bool mx_leave_add(struct mx_bank *b, struct mx_entry *e)
{
    const mtplx_snapshot *s = e->s;
    if (!b->o.cold || atomic_load_explicit(&s->refs, memory_order_acquire) == 1 ||
        !mx_held_reserve(&b->leaving.blocks, s->n_kv + s->n_mtp))
        return false;
    count(b, s->kv, s->n_kv);
    count(b, s->mtp, s->n_mtp);
    b->leaving.bytes += e->own;
    e->older = b->leaving.first;
    b->leaving.first = e;
    return true;
}

void mx_leave_reap(struct mx_bank *b, bool all, struct mx_trash *t)
{
    for (struct mx_entry **at = &b->leaving.first; *at;) {
        struct mx_entry *e = *at;
        if (!all && atomic_load_explicit(&e->s->refs, memory_order_acquire) > 1) {
            at = &e->older;
            continue;
        }
        *at = e->older;
        discount(b, e->s->kv, e->s->n_kv);
        discount(b, e->s->mtp, e->s->n_mtp);
        b->leaving.bytes -= e->own;
        e->older = t->first;
        t->first = e;
    }
}

void mx_leave_held(struct mx_bank *b, const struct mx_kv_block *k)
{
    if (mx_held_has(&b->leaving.blocks, k))
        b->leaving.bytes -= block_bytes(k);
}

void mx_leave_dropped(struct mx_bank *b, const struct mx_kv_block *k)
{
    if (mx_held_has(&b->leaving.blocks, k))
        b->leaving.bytes += block_bytes(k);
}
