/* The ragged forward pass: rows of several sequences through the trunk in one call, cut into chunks
 * of at most max_rows. The invariants of the state it moves are in seq.h. */
#include "runtime/forward.h"

#include "runtime/capture.h"
#include "runtime/history.h"

#include <stdlib.h>
#include <string.h>

#define MAX_POSITION (1 << 28) /* rotary angles of more mean nothing in float32 */

/* ---- Checks and memory -------------------------------------------------------------------- */

/* Rows of the sequence that starts at row i. */
static size_t run_length(const mtplx_row *rows, size_t n, size_t i)
{
    size_t k = 1;
    while (i + k < n && rows[i + k].seq == rows[i].seq)
        k++;
    return k;
}

static mtplx_status check_run(const mtplx_model *m, const mtplx_row *rows, size_t count,
                              mtplx_forward_mode mode, mtplx_error *err)
{
    const mtplx_seq *s = rows[0].seq;
    if (!s || s->model != m)
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "a row's sequence is NULL or belongs to another model");
    if (s->pending)
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "a sequence has %d pending rows; call mtplx_seq_commit first", s->pending);
    if (mode == MTPLX_VERIFY && count > MX_MAX_PENDING)
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "a verify pass takes at most %d rows of a sequence, not %zu",
                        MX_MAX_PENDING, count);
    if (s->n_tokens + count > (size_t)m->geometry.context)
        return mx_error(err, MTPLX_ERR_LIMIT,
                        "%zu more tokens after %zu exceed the context window of %d", count,
                        s->n_tokens, m->geometry.context);
    if (s->next_pos > MAX_POSITION - (int32_t)count)
        return mx_error(err, MTPLX_ERR_LIMIT, "positions past %d are not supported", MAX_POSITION);
    for (size_t i = 0; i < count; i++)
        for (int a = 0; a < 3 && rows[i].position; a++)
            if (rows[i].position[a] < 0 || rows[i].position[a] > MAX_POSITION)
                return mx_error(err, MTPLX_ERR_ARGUMENT, "position %d is outside 0..%d",
                                rows[i].position[a], MAX_POSITION);
    if (m->geometry.has_mtp && s->n_tokens && s->n_lag == 0 && /* Q4: cut */
        rows[0].token != s->tokens[s->n_tokens])
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "a sequence restored in the middle of a snapshot goes on with token %d of "
                        "that snapshot, not with %d",
                        s->tokens[s->n_tokens], rows[0].token);
    for (size_t i = 0; i < count; i++)
        if (rows[i].token < 0 || rows[i].token >= m->geometry.vocab)
            return mx_error(err, MTPLX_ERR_ARGUMENT, "token %d is outside the vocabulary of %d",
                            rows[i].token, m->geometry.vocab);
    return MTPLX_OK;
}

static mtplx_status check_rows(const mtplx_model *m, const mtplx_row *rows, size_t n,
                               mtplx_forward_mode mode, mtplx_error *err)
{
    if (mode != MTPLX_COMMIT && mode != MTPLX_VERIFY)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "%d is not a forward mode", (int)mode);
    if (n == 0 || n > INT32_MAX)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "a forward pass takes 1 to %d rows, not %zu",
                        INT32_MAX, n);
    for (size_t i = 0, k; i < n; i += k) {
        k = run_length(rows, n, i);
        mtplx_status st = check_run(m, rows + i, k, mode, err);
        if (st != MTPLX_OK)
            return st;
        for (size_t j = i + k; j < n; j++)
            if (rows[j].seq == rows[i].seq)
                return mx_error(err, MTPLX_ERR_ARGUMENT,
                                "rows of a sequence must be contiguous in a forward pass");
    }
    return MTPLX_OK;
}

static mtplx_status grow_tokens(mtplx_seq *s, size_t more, mtplx_error *err)
{
    size_t want = s->n_tokens + more;
    if (want <= s->cap_tokens)
        return MTPLX_OK;
    size_t cap = want + want / 2 + 64;
    int32_t *grown = realloc(s->tokens, cap * sizeof *grown);
    if (!grown)
        return mx_error_nomem(err, "a sequence's tokens", cap * sizeof *grown);
    s->tokens = grown;
    s->cap_tokens = cap;
    return MTPLX_OK;
}

static mtplx_status reserve_run(mtplx_seq *s, size_t count, mtplx_forward_mode mode,
                                mtplx_error *err)
{
    int64_t entries = (int64_t)(s->n_tokens + count);
    mtplx_status st;
    if ((st = mx_kv_reserve(&s->kv, entries, err)) != MTPLX_OK ||
        (st = mx_kv_reserve(&s->mtp, entries + MX_MAX_PENDING, err)) != MTPLX_OK ||
        (st = grow_tokens(s, count, err)) != MTPLX_OK)
        return st;
    return mode == MTPLX_VERIFY ? mx_seq_need_verify(s, err) : MTPLX_OK;
}

struct call {
    mtplx_model *m;
    const mtplx_row *rows;
    size_t n, logits_rows;
    mtplx_forward_mode mode;
    const struct mx_want *want;
    float *out_logits, *out_hidden; /* host */
    int32_t *out_ids;
};

static mtplx_status reserve_all(struct call *c, mtplx_error *err)
{
    mtplx_model *m = c->m;
    size_t hidden = (size_t)m->geometry.hidden, vocab = (size_t)m->geometry.vocab;
    size_t chunk = c->n < (size_t)m->exec.max_rows ? c->n : (size_t)m->exec.max_rows;
    size_t wide = c->logits_rows < chunk ? c->logits_rows : chunk;
    mtplx_status st;
    for (size_t i = 0, k; i < c->n; i += k) {
        k = run_length(c->rows, c->n, i);
        if ((st = reserve_run(c->rows[i].seq, k, c->mode, err)) != MTPLX_OK)
            return st;
    }
    if ((st = mx_devbuf_need(m, &m->hidden, chunk * hidden * sizeof(float), err)) != MTPLX_OK ||
        (st = mx_devbuf_need(m, &m->logits, wide * vocab * sizeof(float), err)) != MTPLX_OK ||
        (st = mx_history_reserve(m, chunk, err)) != MTPLX_OK ||
        (st = mx_batch_reserve(&m->batch, chunk, err)) != MTPLX_OK)
        return st;
    if (c->want->hidden &&
        (st = mx_hostbuf_need(&m->out_hidden, c->n * hidden * sizeof(float), err)) != MTPLX_OK)
        return st;
    if (!c->want->argmax &&
        (st = mx_hostbuf_need(&m->out_logits, c->logits_rows * vocab * sizeof(float), err)) !=
            MTPLX_OK)
        return st;
    c->out_hidden = m->out_hidden.data;
    c->out_logits = m->out_logits.data;
    c->out_ids = c->want->ids;
    return MTPLX_OK;
}

/* ---- One chunk ---------------------------------------------------------------------------- */

static void fill_position(const mtplx_row *row, int32_t *next, int32_t out[3])
{
    for (int a = 0; a < 3; a++)
        out[a] = row->position ? row->position[a] : *next;
    *next = mx_position_after(out);
}

/* Segments of rows [at, at + count) of the call. A sequence's earlier chunks are committed already,
 * so every segment simply starts at its sequence's length. */
static void build_batch(const struct call *c, size_t at, size_t count, struct mx_batch *b)
{
    struct mx_batch_mem mem = mx_batch_mem(&c->m->batch, count);
    int segs = 0;
    for (size_t i = 0, k; i < count; i += k) {
        mtplx_seq *s = c->rows[at + i].seq;
        int32_t next = s->next_pos;
        bool verify = c->mode == MTPLX_VERIFY;
        k = run_length(c->rows + at, count, i);
        for (size_t j = 0; j < k; j++) {
            const mtplx_row *row = &c->rows[at + i + j];
            mem.tokens[i + j] = row->token;
            fill_position(row, &next, mem.positions + 3 * (i + j));
            if (verify) {
                s->pending_tokens[j] = row->token;
                s->pending_next[j] = next;
            }
        }
        mem.segs[segs++] = (struct mx_seg){
            .row0 = (int)i,
            .rows = (int)k,
            .kv_len = s->kv.len,
            .kv_blocks = s->kv.blocks,
            .rec_in = s->rec,
            .rec_out = verify ? NULL : s->rec,
            .tape = verify ? s->tape : NULL,
        };
        if (s->captures && !verify)
            mx_capture_begin(s, &mem.segs[segs - 1]);
    }
    *b = (struct mx_batch){(int)count, segs, mem.tokens, mem.positions, mem.segs};
}

/* Logits (or argmax) of the chunk's rows that want them, contiguous runs at a time. */
static void emit_logits(struct call *c, size_t at, size_t count)
{
    mtplx_model *m = c->m;
    struct mx_device *d = m->device;
    size_t hidden = (size_t)m->geometry.hidden, vocab = (size_t)m->geometry.vocab;
    for (size_t i = 0; i < count;) {
        size_t k = 0;
        while (i + k < count && c->rows[at + i + k].want_logits)
            k++;
        if (k) {
            m->family->logits(m->arch, &m->exec, m->hidden.data + i * hidden, (int)k,
                              m->logits.data);
            if (c->want->argmax) {
                d->ops->argmax(d, m->logits.data, (int64_t)vocab, (int)k, (int)vocab, c->out_ids);
                c->out_ids += k;
            } else {
                d->ops->download(d, c->out_logits, m->logits.data, k * vocab * sizeof(float));
                c->out_logits += k * vocab;
            }
        }
        i += k ? k : 1;
    }
}

/* Moves the chunk's sequences on: committed at once, or pending until mx_seq_commit. */
static void settle_chunk(struct call *c, const struct mx_batch *b, size_t at)
{
    mtplx_model *m = c->m;
    struct mx_device *d = m->device;
    size_t hidden = (size_t)m->geometry.hidden;
    for (int i = 0; i < b->n_segs; i++) {
        size_t row0 = (size_t)b->segs[i].row0, k = (size_t)b->segs[i].rows;
        mtplx_seq *s = c->rows[at + row0].seq;
        const float *rows = m->hidden.data + row0 * hidden;
        if (c->mode == MTPLX_VERIFY) {
            s->pending = (int)k;
            d->ops->copy(d, s->pending_hidden, rows, k * hidden * sizeof(float));
            continue;
        }
        s->next_pos = mx_position_after(b->positions + 3 * (row0 + k - 1));
        mx_history_commit(s, b->tokens + row0, rows, k);
        if (s->captures)
            mx_capture_settle(s, k, b->positions + 3 * row0, rows);
    }
}

static void run_chunk(struct call *c, size_t at, size_t count)
{
    mtplx_model *m = c->m;
    struct mx_batch b;
    build_batch(c, at, count, &b);
    m->family->forward(m->arch, &m->exec, &b, m->hidden.data);
    if (c->want->hidden) {
        size_t floats = count * (size_t)m->geometry.hidden;
        m->device->ops->download(m->device, c->out_hidden, m->hidden.data, floats * sizeof(float));
        c->out_hidden += floats;
    }
    emit_logits(c, at, count);
    settle_chunk(c, &b, at);
}

/* Rows of the next chunk: as many as fit; a verify block is never cut. */
static size_t chunk_rows(const struct call *c, size_t at)
{
    size_t max = (size_t)c->m->exec.max_rows, take = 0;
    if (c->mode == MTPLX_COMMIT)
        return c->n - at < max ? c->n - at : max;
    while (at + take < c->n) {
        size_t k = run_length(c->rows, c->n, at + take);
        if (take + k > max)
            break;
        take += k;
    }
    return take;
}

mtplx_status mx_forward(mtplx_model *m, const mtplx_row *rows, size_t n, mtplx_forward_mode mode,
                        const struct mx_want *want, mtplx_forward_result *result, mtplx_error *err)
{
    struct call c = {.m = m, .rows = rows, .n = n, .mode = mode, .want = want};
    mtplx_status st = check_rows(m, rows, n, mode, err);
    if (st != MTPLX_OK)
        return st;
    for (size_t i = 0; i < n; i++)
        c.logits_rows += rows[i].want_logits;
    if ((st = reserve_all(&c, err)) != MTPLX_OK)
        return st;
    for (size_t at = 0, count; at < n; at += count) {
        count = chunk_rows(&c, at);
        run_chunk(&c, at, count);
    }
    for (size_t i = 0; i < n; i += run_length(rows, n, i))
        if (rows[i].seq->captures)
            mx_capture_finish(rows[i].seq);
    m->device->ops->sync(m->device);
    if (result)
        *result = (mtplx_forward_result){
            .logits = want->argmax ? NULL : m->out_logits.data,
            .logits_rows = c.logits_rows,
            .hidden = want->hidden ? m->out_hidden.data : NULL,
        };
    return MTPLX_OK;
}

/* ---- Commit ------------------------------------------------------------------------------- */

mtplx_status mx_seq_commit(mtplx_seq *s, size_t keep, mtplx_error *err)
{
    mtplx_model *m = s->model;
    struct mx_device *d = m->device;
    if (keep > (size_t)s->pending)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "cannot keep %zu of %d pending rows", keep,
                        s->pending);
    if (s->rec && keep > 0)
        d->ops->gated_delta_commit(d, &m->geometry.gdn, s->rec, s->tape, (int)keep);
    if (keep > 0) {
        s->next_pos = s->pending_next[keep - 1];
        mx_history_commit(s, s->pending_tokens, s->pending_hidden, keep);
    }
    s->n_drafts = 0;
    s->pending = 0;
    return MTPLX_OK;
}

/* ---- Public ------------------------------------------------------------------------------- */

mtplx_status mtplx_forward(mtplx_model *m, const mtplx_row *rows, size_t n, mtplx_forward_mode mode,
                           bool want_hidden, mtplx_forward_result *result, mtplx_error *err)
{
    struct mx_want want = {.hidden = want_hidden};
    mtplx_model_lock(m);
    mtplx_status st = mx_forward(m, rows, n, mode, &want, result, err);
    mtplx_model_unlock(m);
    return st;
}

mtplx_status mtplx_seq_commit(mtplx_seq *s, size_t keep, mtplx_error *err)
{
    mtplx_model_lock(s->model);
    mtplx_status st = mx_seq_commit(s, keep, err);
    mtplx_model_unlock(s->model);
    return st;
}
