/* Sequences: memory of one timeline. The invariants are in seq.h. */
#include "runtime/capture.h"
#include "runtime/forward.h"

#include <stdlib.h>
#include <string.h>

/* ---- KV caches ---------------------------------------------------------------------------- */

static mtplx_status grow_table(struct mx_kv_cache *c, size_t want, mtplx_error *err)
{
    size_t cap = want + want / 2 + 8, bytes = cap * sizeof *c->blocks;
    if (want <= c->cap_blocks)
        return MTPLX_OK;
    void **blocks = (void **)realloc((void *)c->blocks, bytes);
    if (!blocks)
        return mx_error_nomem(err, "the KV block table", bytes);
    c->blocks = blocks;
    struct mx_kv_block **own = (struct mx_kv_block **)realloc((void *)c->own, bytes);
    if (!own)
        return mx_error_nomem(err, "the KV block table", bytes);
    c->own = own;
    c->cap_blocks = cap;
    return MTPLX_OK;
}

static void put_block(struct mx_kv_cache *c, size_t i, struct mx_kv_block *b)
{
    c->own[i] = b;
    c->blocks[i] = b->data;
}

/* Copy on write. */
static mtplx_status own_block(struct mx_kv_cache *c, size_t i, mtplx_error *err)
{
    struct mx_kv_block *b = mx_kv_block_copy(c->own[i]);
    if (!b)
        return mx_error_nomem(err, "a KV cache block", mx_kv_pool_block_bytes(c->pool));
    mx_kv_block_unref(c->own[i]);
    put_block(c, i, b);
    return MTPLX_OK;
}

mtplx_status mx_kv_reserve(struct mx_kv_cache *c, int64_t entries, mtplx_error *err)
{
    size_t want = mx_kv_blocks_for(entries), at = (size_t)c->len / MX_KV_BLOCK;
    mtplx_status st = MTPLX_OK;
    if (!c->pool || mx_kv_pool_block_bytes(c->pool) == 0)
        return MTPLX_OK;
    if (at < c->n_blocks && mx_kv_block_shared(c->own[at])) /* Q6: no later one is */
        st = own_block(c, at, err);
    if (st != MTPLX_OK || want <= c->n_blocks || (st = grow_table(c, want, err)) != MTPLX_OK)
        return st;
    while (c->n_blocks < want) {
        struct mx_kv_block *b = mx_kv_block_new(c->pool);
        if (!b)
            return mx_error_nomem(err, "a KV cache block", mx_kv_pool_block_bytes(c->pool));
        put_block(c, c->n_blocks++, b);
    }
    return MTPLX_OK;
}

mtplx_status mx_kv_share(struct mx_kv_cache *c, struct mx_kv_block *const *blocks, int64_t len,
                         mtplx_error *err)
{
    size_t n = c->pool && mx_kv_pool_block_bytes(c->pool) ? mx_kv_blocks_for(len) : 0;
    mtplx_status st = grow_table(c, n, err);
    if (st != MTPLX_OK)
        return st;
    for (size_t i = 0; i < n; i++)
        put_block(c, i, mx_kv_block_ref(blocks[i]));
    c->n_blocks = n;
    c->len = len;
    return MTPLX_OK;
}

static void kv_free(struct mx_kv_cache *c)
{
    for (size_t i = 0; i < c->n_blocks; i++)
        mx_kv_block_unref(c->own[i]);
    free((void *)c->blocks);
    free((void *)c->own);
}

/* Empties a cache and keeps the blocks that nobody else holds. */
static void kv_reset(struct mx_kv_cache *c)
{
    size_t kept = 0;
    for (size_t i = 0; i < c->n_blocks; i++) {
        if (mx_kv_block_shared(c->own[i]))
            mx_kv_block_unref(c->own[i]);
        else
            put_block(c, kept++, c->own[i]);
    }
    c->n_blocks = kept;
    c->len = 0;
}

/* ---- Sequences ---------------------------------------------------------------------------- */

size_t mx_seq_slab_floats(const mtplx_model *m)
{
    const struct mx_gdn_layout *g = &m->geometry.gdn;
    return (size_t)g->layers * (size_t)mx_gdn_layer_floats(g);
}

size_t mx_seq_tape_floats(const mtplx_model *m)
{
    const struct mx_gdn_layout *g = &m->geometry.gdn;
    return (size_t)g->layers * (size_t)g->tape_rows * (size_t)mx_gdn_tape_floats(g);
}

static float *floats(mtplx_model *m, size_t n)
{
    return m->device->ops->alloc(m->device, n * sizeof(float));
}

mtplx_status mx_seq_need_verify(mtplx_seq *s, mtplx_error *err)
{
    mtplx_model *m = s->model;
    size_t slab = mx_seq_slab_floats(m), hidden = (size_t)m->geometry.hidden;
    if (slab && !s->tape)
        s->tape = floats(m, mx_seq_tape_floats(m));
    if (!s->pending_hidden)
        s->pending_hidden = floats(m, MX_MAX_PENDING * hidden);
    if ((slab && !s->tape) || !s->pending_hidden)
        return mx_error_nomem(err, "the verify state", mx_seq_tape_floats(m) * sizeof(float));
    return MTPLX_OK;
}

mtplx_seq *mtplx_seq_new(mtplx_model *m, mtplx_error *err)
{
    size_t slab = mx_seq_slab_floats(m), hidden = (size_t)m->geometry.hidden;
    mtplx_seq *s = calloc(1, sizeof *s);
    if (!s) {
        mx_error_nomem(err, "a sequence", sizeof *s);
        return NULL;
    }
    s->model = m;
    s->kv.pool = m->kv_pool;
    s->mtp.pool = m->mtp_pool;
    if (slab)
        s->rec = floats(m, slab);
    if (m->geometry.has_mtp) {
        s->lag = floats(m, MX_MAX_LAG * hidden);
        s->draft_hidden = floats(m, hidden);
    }
    if ((slab && !s->rec) || (m->geometry.has_mtp && (!s->lag || !s->draft_hidden))) {
        mx_error_nomem(err, "a sequence's state", (slab + hidden) * sizeof(float));
        mtplx_seq_free(s);
        return NULL;
    }
    return s;
}

void mtplx_seq_free(mtplx_seq *s)
{
    if (!s)
        return;
    mtplx_model *m = s->model;
    float *const owned[] = {s->rec, s->tape, s->lag, s->pending_hidden, s->draft_hidden};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        if (owned[i])
            m->device->ops->free(m->device, owned[i]);
    mx_captures_free(s);
    kv_free(&s->kv);
    kv_free(&s->mtp);
    free(s->tokens);
    free(s);
}

size_t mtplx_seq_length(const mtplx_seq *s)
{
    return s->n_tokens;
}

const int32_t *mtplx_seq_tokens(const mtplx_seq *s)
{
    return s->tokens;
}

size_t mtplx_seq_pending(const mtplx_seq *s)
{
    return (size_t)s->pending;
}

/* Uploads zeros piece by piece: resets are rare, never on the decode path, so they need no op. */
void mtplx_seq_reset(mtplx_seq *s)
{
    mtplx_model *m = s->model;
    size_t slab = mx_seq_slab_floats(m);
    if (slab && s->n_tokens) {
        float zeros[4096] = {0};
        for (size_t done = 0; done < slab; done += 4096) {
            size_t n = slab - done < 4096 ? slab - done : 4096;
            m->device->ops->upload(m->device, s->rec + done, zeros, n * sizeof *zeros);
        }
    }
    s->n_tokens = 0;
    s->next_pos = 0;
    kv_reset(&s->kv);
    kv_reset(&s->mtp);
    mx_captures_free(s);
    s->pending = s->n_lag = s->n_drafts = 0;
}

static mtplx_status fork_into(mtplx_seq *to, const mtplx_seq *from, mtplx_error *err)
{
    mtplx_model *m = from->model;
    const struct mx_device_ops *ops = m->device->ops;
    size_t slab = mx_seq_slab_floats(m), hidden = (size_t)m->geometry.hidden;
    mtplx_status st;
    size_t known = mx_known_tokens(from->n_tokens, from->mtp.len);
    if ((st = mx_kv_share(&to->kv, from->kv.own, from->kv.len, err)) != MTPLX_OK ||
        (st = mx_kv_share(&to->mtp, from->mtp.own, from->mtp.len, err)) != MTPLX_OK)
        return st;
    to->tokens = malloc((from->n_tokens + 1) * sizeof *to->tokens);
    if (!to->tokens)
        return mx_error_nomem(err, "a sequence's tokens", from->n_tokens * sizeof *to->tokens);
    if (known)
        memcpy(to->tokens, from->tokens, known * sizeof *to->tokens);
    to->n_tokens = from->n_tokens;
    to->cap_tokens = from->n_tokens + 1;
    to->next_pos = from->next_pos;
    if (slab)
        ops->copy(m->device, to->rec, from->rec, slab * sizeof(float));
    if (from->n_lag)
        ops->copy(m->device, to->lag, from->lag, (size_t)from->n_lag * hidden * sizeof(float));
    to->n_lag = from->n_lag;
    return MTPLX_OK;
}

mtplx_seq *mtplx_seq_fork(const mtplx_seq *from, mtplx_error *err)
{
    if (from->pending) {
        mx_error(err, MTPLX_ERR_ARGUMENT,
                 "a sequence with pending rows cannot be forked; commit "
                 "them first");
        return NULL;
    }
    mtplx_seq *to = mtplx_seq_new(from->model, err);
    if (!to)
        return NULL;
    mtplx_model_lock(from->model);
    mtplx_status st = fork_into(to, from, err);
    mtplx_model_unlock(from->model);
    if (st != MTPLX_OK) {
        mtplx_seq_free(to);
        return NULL;
    }
    return to;
}
