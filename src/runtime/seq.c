/* Sequences: memory of one timeline. The invariants are in seq.h. */
#include "runtime/forward.h"

#include <stdlib.h>
#include <string.h>

mtplx_status mx_kv_reserve(mtplx_model *m, struct mx_kv_cache *c, const struct mx_kv_layout *l,
                           int64_t entries, mtplx_error *err)
{
    size_t want = ((size_t)entries + MX_KV_BLOCK - 1) / MX_KV_BLOCK;
    size_t bytes = mx_kv_block_bytes(l);
    if (l->layers == 0 || want <= c->n_blocks)
        return MTPLX_OK;
    if (want > c->cap_blocks) {
        size_t cap = want + want / 2 + 8;
        void **grown = (void **)realloc((void *)c->blocks, cap * sizeof *grown);
        if (!grown)
            return mx_error_nomem(err, "the KV block table", cap * sizeof *grown);
        c->blocks = grown;
        c->cap_blocks = cap;
    }
    while (c->n_blocks < want) {
        void *p = m->device->ops->alloc(m->device, bytes);
        if (!p)
            return mx_error_nomem(err, "a KV cache block", bytes);
        c->blocks[c->n_blocks++] = p;
    }
    return MTPLX_OK;
}

static void kv_free(mtplx_model *m, struct mx_kv_cache *c)
{
    for (size_t i = 0; i < c->n_blocks; i++)
        m->device->ops->free(m->device, c->blocks[i]);
    free((void *)c->blocks);
}

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
    kv_free(m, &s->kv);
    kv_free(m, &s->mtp);
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
    s->kv.len = s->mtp.len = 0;
    s->pending = s->n_lag = s->n_drafts = 0;
}

static mtplx_status kv_copy(mtplx_model *m, struct mx_kv_cache *to, const struct mx_kv_cache *from,
                            const struct mx_kv_layout *l, mtplx_error *err)
{
    mtplx_status st = mx_kv_reserve(m, to, l, from->len, err);
    if (st != MTPLX_OK)
        return st;
    for (size_t i = 0; i < to->n_blocks; i++)
        m->device->ops->copy(m->device, to->blocks[i], from->blocks[i], mx_kv_block_bytes(l));
    to->len = from->len;
    return MTPLX_OK;
}

static mtplx_status fork_into(mtplx_seq *to, const mtplx_seq *from, mtplx_error *err)
{
    mtplx_model *m = from->model;
    const struct mx_device_ops *ops = m->device->ops;
    size_t slab = mx_seq_slab_floats(m), hidden = (size_t)m->geometry.hidden;
    mtplx_status st;
    if ((st = kv_copy(m, &to->kv, &from->kv, &m->geometry.kv, err)) != MTPLX_OK ||
        (st = kv_copy(m, &to->mtp, &from->mtp, &m->geometry.mtp_kv, err)) != MTPLX_OK)
        return st;
    to->tokens = malloc((from->n_tokens + 1) * sizeof *to->tokens);
    if (!to->tokens)
        return mx_error_nomem(err, "a sequence's tokens", from->n_tokens * sizeof *to->tokens);
    if (from->n_tokens)
        memcpy(to->tokens, from->tokens, from->n_tokens * sizeof *to->tokens);
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
