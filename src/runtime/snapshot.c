/* Snapshots: see snapshot.h for what they hold. Captures are in capture.c. */
#include "runtime/snapshot.h"

#include "runtime/forward.h"

#include <stdlib.h>
#include <string.h>

/* ---- Parts -------------------------------------------------------------------------------- */

mtplx_snapshot *mx_snapshot_new(mtplx_model *m, bool slab)
{
    size_t floats = slab ? mx_seq_slab_floats(m) : 0;
    mtplx_snapshot *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    atomic_init(&s->refs, 1);
    s->model = m;
    if (floats && !(s->rec = m->device->ops->alloc(m->device, floats * sizeof(float)))) {
        free(s);
        return NULL;
    }
    return s;
}

bool mx_snapshot_set_lag(mtplx_snapshot *s, const float *rows, int n)
{
    struct mx_device *d = s->model->device;
    size_t bytes = (size_t)n * (size_t)s->model->geometry.hidden * sizeof(float);
    if (n == 0)
        return true;
    s->lag = d->ops->alloc(d, bytes);
    if (!s->lag)
        return false;
    d->ops->copy(d, s->lag, rows, bytes);
    s->n_lag = n;
    return true;
}

/* References to the blocks of the first `len` entries of blocks[0 .. n_blocks). */
static bool share(struct mx_kv_block *const *blocks, size_t n_blocks, int64_t len,
                  struct mx_kv_block ***out, size_t *n_out)
{
    size_t n = mx_kv_blocks_for(len);
    n = n < n_blocks ? n : n_blocks; /* fewer only where the model has no such cache */
    if (n == 0)
        return true;
    *out = (struct mx_kv_block **)malloc(n * sizeof **out);
    if (!*out)
        return false;
    for (size_t i = 0; i < n; i++)
        (*out)[i] = mx_kv_block_ref(blocks[i]);
    *n_out = n;
    return true;
}

static bool set_tokens(mtplx_snapshot *s, const int32_t *tokens)
{
    s->tokens = malloc((s->n + 1) * sizeof *tokens);
    if (!s->tokens)
        return false;
    memcpy(s->tokens, tokens, mx_known_tokens(s->n, s->mtp_len) * sizeof *tokens);
    return true;
}

bool mx_snapshot_set_history(mtplx_snapshot *snap, const mtplx_seq *s)
{
    return set_tokens(snap, s->tokens) &&
           share(s->kv.own, s->kv.n_blocks, (int64_t)snap->n, &snap->kv, &snap->n_kv) &&
           share(s->mtp.own, s->mtp.n_blocks, snap->mtp_len, &snap->mtp, &snap->n_mtp);
}

mtplx_snapshot *mx_snapshot_ref(mtplx_snapshot *s)
{
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    return s;
}

static void free_blocks(struct mx_kv_block **blocks, size_t n)
{
    for (size_t i = 0; i < n; i++)
        mx_kv_block_unref(blocks[i]);
    free((void *)blocks);
}

void mx_snapshot_unref(mtplx_snapshot *s)
{
    if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) > 1)
        return;
    struct mx_device *d = s->model->device;
    free_blocks(s->kv, s->n_kv);
    free_blocks(s->mtp, s->n_mtp);
    if (s->rec)
        d->ops->free(d, s->rec);
    if (s->lag)
        d->ops->free(d, s->lag);
    free(s->tokens);
    free(s);
}

/* ---- Taking ------------------------------------------------------------------------------- */

static bool can_take(const mtplx_seq *s, mtplx_error *err)
{
    if (s->pending)
        mx_error(err, MTPLX_ERR_ARGUMENT,
                 "a sequence has %d pending rows; commit them before taking a snapshot",
                 s->pending);
    else if (s->n_tokens == 0)
        mx_error(err, MTPLX_ERR_ARGUMENT, "a sequence without tokens has no state to keep");
    else
        return true;
    return false;
}

/* All but the slab. */
static bool fill(mtplx_snapshot *snap, const mtplx_seq *s)
{
    snap->n = s->n_tokens;
    snap->next_pos = s->next_pos;
    snap->mtp_len = s->mtp.len;
    return mx_snapshot_set_lag(snap, s->lag, s->n_lag) && mx_snapshot_set_history(snap, s);
}

static mtplx_snapshot *no_memory(const mtplx_model *m, size_t n, mtplx_error *err)
{
    mx_error_nomem(err, "a snapshot", mx_snapshot_own_bytes_for(m, n));
    return NULL;
}

mtplx_snapshot *mx_snapshot_take(mtplx_seq *s, mtplx_error *err)
{
    struct mx_device *d = s->model->device;
    if (!can_take(s, err))
        return NULL;
    mtplx_snapshot *snap = mx_snapshot_new(s->model, true);
    if (!snap || !fill(snap, s)) {
        mx_snapshot_unref(snap);
        return no_memory(s->model, s->n_tokens, err);
    }
    if (snap->rec)
        d->ops->copy(d, snap->rec, s->rec, mx_seq_slab_floats(s->model) * sizeof(float));
    return snap;
}

mtplx_snapshot *mx_snapshot_take_over(mtplx_seq *s, mtplx_error *err)
{
    mtplx_snapshot *snap = NULL;
    if (can_take(s, err)) {
        snap = mx_snapshot_new(s->model, false);
        if (snap && fill(snap, s)) {
            snap->rec = s->rec;
            s->rec = NULL;
        } else {
            mx_snapshot_unref(snap);
            snap = no_memory(s->model, s->n_tokens, err);
        }
    }
    mtplx_seq_free(s);
    return snap;
}

/* ---- Restoring ---------------------------------------------------------------------------- */

static mtplx_status restore_into(mtplx_seq *to, const mtplx_snapshot *s, mtplx_error *err)
{
    mtplx_model *m = s->model;
    const struct mx_device_ops *ops = m->device->ops;
    size_t dim = (size_t)m->geometry.hidden, known = mx_known_tokens(s->n, s->mtp_len);
    mtplx_status st;
    if ((st = mx_kv_share(&to->kv, s->kv, (int64_t)s->n, err)) != MTPLX_OK ||
        (st = mx_kv_share(&to->mtp, s->mtp, s->mtp_len, err)) != MTPLX_OK)
        return st;
    to->tokens = malloc((s->n + 1) * sizeof *to->tokens);
    if (!to->tokens)
        return mx_error_nomem(err, "a sequence's tokens", (s->n + 1) * sizeof *to->tokens);
    memcpy(to->tokens, s->tokens, known * sizeof *to->tokens);
    to->n_tokens = s->n;
    to->cap_tokens = s->n + 1;
    to->next_pos = s->next_pos;
    if (s->rec)
        ops->copy(m->device, to->rec, s->rec, mx_seq_slab_floats(m) * sizeof(float));
    if (s->n_lag)
        ops->copy(m->device, to->lag, s->lag, (size_t)s->n_lag * dim * sizeof(float));
    to->n_lag = s->n_lag;
    return MTPLX_OK;
}

mtplx_seq *mx_snapshot_restore(const mtplx_snapshot *s, mtplx_error *err)
{
    mtplx_seq *to = mtplx_seq_new(s->model, err);
    if (!to)
        return NULL;
    mtplx_model_lock(s->model);
    mtplx_status st = restore_into(to, s, err);
    mtplx_model_unlock(s->model);
    if (st == MTPLX_OK)
        return to;
    mtplx_seq_free(to);
    return NULL;
}

/* ---- Cutting ------------------------------------------------------------------------------ */

bool mx_snapshot_can_cut(const mtplx_model *m)
{
    return mx_seq_slab_floats(m) == 0;
}

/* Where the snapshot's MTP cache ends before token n, its lag has the rest. */
mtplx_snapshot *mx_snapshot_cut(const mtplx_snapshot *s, size_t n)
{
    int64_t len = (int64_t)n;
    if (!mx_snapshot_can_cut(s->model) || n == 0 || n >= s->n || s->next_pos != (int32_t)s->n)
        return NULL;
    mtplx_snapshot *cut = mx_snapshot_new(s->model, false);
    if (!cut)
        return NULL;
    cut->n = n;
    cut->next_pos = (int32_t)n;
    if (s->model->geometry.has_mtp)
        cut->mtp_len = s->mtp_len < len ? s->mtp_len : len;
    if (share(s->kv, s->n_kv, len, &cut->kv, &cut->n_kv) &&
        share(s->mtp, s->n_mtp, cut->mtp_len, &cut->mtp, &cut->n_mtp) &&
        (!s->model->geometry.has_mtp ||
         mx_snapshot_set_lag(cut, s->lag, (int)(len - cut->mtp_len))) &&
        set_tokens(cut, s->tokens))
        return cut;
    mx_snapshot_unref(cut);
    return NULL;
}

/* ---- Bytes -------------------------------------------------------------------------------- */

static uint64_t own_bytes(const mtplx_model *m, size_t n, size_t blocks, int lag)
{
    uint64_t floats = mx_seq_slab_floats(m) + (uint64_t)lag * (uint64_t)m->geometry.hidden;
    return sizeof(mtplx_snapshot) + floats * sizeof(float) + (n + 1) * sizeof(int32_t) +
           blocks * sizeof(void *);
}

uint64_t mx_snapshot_own_bytes(const mtplx_snapshot *s)
{
    return own_bytes(s->model, s->n, s->n_kv + s->n_mtp, s->n_lag);
}

uint64_t mx_snapshot_own_bytes_for(const mtplx_model *m, size_t n)
{
    bool mtp = m->geometry.has_mtp;
    return own_bytes(m, n, mx_kv_blocks_for((int64_t)n) * (mtp ? 2 : 1), mtp ? MX_MAX_LAG : 0);
}

/* ---- Public ------------------------------------------------------------------------------- */

mtplx_snapshot *mtplx_seq_snapshot(mtplx_seq *seq, mtplx_error *err)
{
    mtplx_model *m = seq->model;
    mtplx_model_lock(m);
    mtplx_snapshot *s = mx_snapshot_take(seq, err);
    mtplx_model_unlock(m);
    return s;
}

mtplx_seq *mtplx_seq_restore(const mtplx_snapshot *snapshot, mtplx_error *err)
{
    return mx_snapshot_restore(snapshot, err);
}

void mtplx_snapshot_free(mtplx_snapshot *snapshot)
{
    mx_snapshot_unref(snapshot);
}

const int32_t *mtplx_snapshot_tokens(const mtplx_snapshot *snapshot, size_t *count)
{
    *count = snapshot->n;
    return snapshot->tokens;
}

uint64_t mtplx_snapshot_bytes(const mtplx_snapshot *snapshot)
{
    const struct mx_geometry *g = &snapshot->model->geometry;
    return mx_snapshot_own_bytes(snapshot) + snapshot->n_kv * mx_kv_block_bytes(&g->kv) +
           snapshot->n_mtp * mx_kv_block_bytes(&g->mtp_kv);
}
