/* A session bank over a model that never runs: tiny snapshots made by hand, a clock that stands
 * still, and a recount of what the bank says it holds. */
#ifndef TESTS_BANK_RIG_H
#define TESTS_BANK_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "session/bank_int.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK MX_KV_BLOCK
#define LONGEST 700
#define EVER UINT64_MAX

struct rig {
    mtplx_model model;
    struct mx_kv_pool *kv, *mtp;
    struct mx_bank *bank;
};

static _Atomic uint64_t rig_time = 1000000000;

static inline uint64_t rig_clock(void)
{
    return rig_time;
}

static inline bool rig_no_pressure(uint64_t *left, uint64_t *usable)
{
    *left = *usable = 1 << 30;
    return true;
}

static inline uint32_t rig_pick(uint64_t at, uint32_t below)
{
    return (uint32_t)(mx_rng_uniform(77, at, MX_RNG_TARGET) * below);
}

/* `recurrent` false: a model whose snapshots can be cut. */
static inline void rig_open(struct rig *r, struct mx_bank_options o, bool recurrent)
{
    mtplx_error err = {0};
    memset(r, 0, sizeof *r);
    struct mx_geometry *g = &r->model.geometry;
    g->hidden = 4;
    g->has_mtp = true;
    g->kv = g->mtp_kv = (struct mx_kv_layout){MX_KV_F32, BLOCK, 2, 1, 2};
    g->mtp_kv.layers = 1;
    if (recurrent)
        g->gdn = (struct mx_gdn_layout){.layers = 1,
                                        .key_heads = 1,
                                        .value_heads = 1,
                                        .dk = 4,
                                        .dv = 4,
                                        .kernel = 4,
                                        .tape_rows = 1};
    r->model.device = mx_device_open("ref", 1, &err);
    assert_non_null(r->model.device);
    r->kv = mx_kv_pool_new(r->model.device, &g->kv);
    r->mtp = mx_kv_pool_new(r->model.device, &g->mtp_kv);
    assert_non_null(r->kv);
    assert_non_null(r->mtp);
    pthread_mutex_init(&r->model.lock, NULL);
    o.model = &r->model;
    o.budget = o.budget ? o.budget : EVER;
    o.ttl_ns = o.ttl_ns ? o.ttl_ns : EVER;
    o.clock = rig_clock;
    r->bank = mx_bank_new(&o, &err);
    assert_non_null(r->bank);
    r->bank->gauge.read = rig_no_pressure;
}

static inline uint64_t rig_used(struct rig *r)
{
    uint64_t kv, mtp, idle;
    mx_kv_pool_bytes(r->kv, &kv, &idle);
    mx_kv_pool_bytes(r->mtp, &mtp, &idle);
    return kv + mtp;
}

static inline void rig_close(struct rig *r)
{
    mx_bank_free(r->bank);
    assert_int_equal(rig_used(r), 0); /* nothing leaked, nothing freed twice */
    mx_kv_pool_free(r->kv);
    mx_kv_pool_free(r->mtp);
    mx_device_close(r->model.device);
    pthread_mutex_destroy(&r->model.lock);
}

static inline struct mx_kv_block **rig_blocks(struct mx_kv_pool *pool, size_t n,
                                              struct mx_kv_block *const *like, size_t n_like)
{
    struct mx_kv_block **b = (struct mx_kv_block **)calloc(n + 1, sizeof *b);
    assert_non_null(b);
    for (size_t i = 0; i < n; i++)
        b[i] = i < n_like ? mx_kv_block_ref(like[i]) : mx_kv_block_new(pool);
    return b;
}

/* A snapshot of n tokens. It shares the blocks of `like`, of which it is a continuation or a
 * beginning, or has blocks of its own. */
static inline mtplx_snapshot *rig_snapshot(struct rig *r, const int32_t *tokens, size_t n,
                                           const mtplx_snapshot *like)
{
    struct mx_device *d = r->model.device;
    mtplx_snapshot *s = calloc(1, sizeof *s);
    assert_non_null(s);
    atomic_init(&s->refs, 1);
    s->model = &r->model;
    s->tokens = malloc((n + 1) * sizeof *tokens);
    assert_non_null(s->tokens);
    memcpy(s->tokens, tokens, n * sizeof *tokens);
    s->tokens[n] = -1;
    s->n = n;
    s->next_pos = (int32_t)n;
    s->mtp_len = (int64_t)n - 1;
    s->n_kv = (n + BLOCK - 1) / BLOCK;
    s->n_mtp = (n - 1 + BLOCK - 1) / BLOCK;
    s->kv = rig_blocks(r->kv, s->n_kv, like ? like->kv : NULL, like ? like->n_kv : 0);
    s->mtp = rig_blocks(r->mtp, s->n_mtp, like ? like->mtp : NULL, like ? like->n_mtp : 0);
    if (mx_seq_slab_floats(&r->model))
        s->rec = d->ops->alloc(d, mx_seq_slab_floats(&r->model) * sizeof(float));
    s->n_lag = 1;
    s->lag = d->ops->alloc(d, 4 * sizeof(float));
    return s;
}

static inline void rig_put(struct rig *r, const int32_t *tokens, size_t n, enum mx_point point,
                           const char *scope, const char *session)
{
    mx_bank_put(r->bank, rig_snapshot(r, tokens, n, NULL), point, scope, session);
}

static inline struct mx_bank_hit rig_find(struct rig *r, const char *scope, const int32_t *tokens,
                                          size_t n)
{
    struct mx_bank_hit hit;
    mx_bank_find(r->bank, scope, "", tokens, n, &hit);
    if (hit.snapshot) {
        assert_true(hit.snapshot->n < n);
        assert_memory_equal(hit.snapshot->tokens, tokens, hit.snapshot->n * sizeof *tokens);
    }
    return hit;
}

/* Restored tokens of a lookup. */
static inline size_t rig_restored(struct rig *r, const char *scope, const int32_t *tokens, size_t n)
{
    struct mx_bank_hit hit = rig_find(r, scope, tokens, n);
    size_t restored = hit.snapshot ? hit.snapshot->n : 0;
    mx_snapshot_unref(hit.snapshot);
    return restored;
}

/* ---- Recount ------------------------------------------------------------------------------ */

static inline int by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t) * (void *const *)a, y = (uintptr_t) * (void *const *)b;
    return x < y ? -1 : x > y;
}

static inline uint64_t distinct_bytes(const void **blocks, size_t n, struct mx_kv_pool *pool,
                                      uint64_t *count)
{
    size_t distinct = 0;
    qsort((void *)blocks, n, sizeof *blocks, by_address);
    for (size_t i = 0; i < n; i++)
        distinct += i == 0 || blocks[i] != blocks[i - 1];
    *count += distinct;
    return distinct * mx_kv_pool_block_bytes(pool);
}

/* Checks K3 and the lists against each other. */
static inline void rig_recount(struct rig *r)
{
    struct mx_bank *b = r->bank;
    struct mx_bank_stats st;
    size_t n = 0, most = 1, n_kv = 0, n_mtp = 0, sessions = 0, in_sessions = 0;
    uint64_t own = 0, charged = 0, blocks = 0;
    for (const struct mx_entry *e = b->newest; e; e = e->older, n++)
        most += e->s->n_kv + e->s->n_mtp;
    const void **kv = (const void **)calloc(most, sizeof *kv);
    const void **mtp = (const void **)calloc(most, sizeof *mtp);
    assert_non_null(kv);
    assert_non_null(mtp);
    for (const struct mx_entry *e = b->newest; e; e = e->older) {
        own += mx_snapshot_own_bytes(e->s);
        for (size_t i = 0; i < e->s->n_kv; i++)
            kv[n_kv++] = e->s->kv[i];
        for (size_t i = 0; i < e->s->n_mtp; i++)
            mtp[n_mtp++] = e->s->mtp[i];
    }
    for (size_t i = 0; i < MX_SESSION_BUCKETS; i++)
        for (const struct mx_session *s = b->sessions[i]; s; s = s->next) {
            sessions += s->n_entries > 0;
            in_sessions += s->n_entries;
            charged += s->bytes;
            assert_true(s->n_entries || s->bytes);
        }
    uint64_t bytes = own + distinct_bytes(kv, n_kv, r->kv, &blocks);
    bytes += distinct_bytes(mtp, n_mtp, r->mtp, &blocks);
    mx_bank_get_stats(b, &st);
    assert_int_equal(st.bytes, bytes);
    assert_int_equal(charged, bytes);
    assert_int_equal(st.entries, n);
    assert_int_equal(in_sessions, n);
    assert_int_equal(st.sessions, sessions);
    assert_int_equal(st.blocks, blocks);
    assert_true(st.bytes <= st.budget);
    free((void *)kv);
    free((void *)mtp);
}

#endif
