/* Drafting: one MTP step for several sequences in one pass.
 *
 * The first step since a commit also appends the lag (accepted tokens of the last cycle with their
 * true hiddens), so history costs no pass of its own unless the lag is long. */
#include "runtime/forward.h"
#include "runtime/history.h"

#include <string.h>

/* Rows the step needs for a sequence: the lag plus the token, or the token alone. */
static size_t step_rows(const mtplx_seq *s)
{
    return s->n_drafts == 0 ? (size_t)s->n_lag : 1;
}

static mtplx_status check_seq(const mtplx_model *m, const mtplx_seq *s, int32_t token,
                              mtplx_error *err)
{
    if (!s || s->model != m || s->pending || s->n_tokens == 0)
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "a sequence can draft only with committed tokens and no pending rows");
    if (s->n_lag == 0) /* Q4: cut */
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "a sequence restored in the middle of a snapshot reads a token before it "
                        "can draft");
    if (s->n_drafts >= MTPLX_MAX_DEPTH)
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "at most %d drafts between commits; mtplx_seq_commit(seq, 0) ends drafting",
                        MTPLX_MAX_DEPTH);
    if (token < 0 || token >= m->geometry.vocab)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "token %d is outside the vocabulary of %d", token,
                        m->geometry.vocab);
    return MTPLX_OK;
}

static mtplx_status check_seqs(const mtplx_model *m, mtplx_seq *const *seqs, const int32_t *tokens,
                               size_t n, mtplx_error *err)
{
    if (!m->geometry.has_mtp)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "%s has no MTP head loaded to draft with",
                        m->path);
    if (n == 0)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "a draft step needs at least one sequence");
    for (size_t i = 0; i < n; i++) {
        mtplx_status st = check_seq(m, seqs[i], tokens[i], err);
        if (st != MTPLX_OK)
            return st;
        for (size_t j = i + 1; j < n; j++)
            if (seqs[j] == seqs[i])
                return mx_error(err, MTPLX_ERR_ARGUMENT,
                                "a sequence can take part in a draft step only once");
    }
    return MTPLX_OK;
}

static mtplx_status reserve_step(mtplx_model *m, mtplx_seq *const *seqs, size_t n,
                                 const struct mx_want *want, mtplx_error *err)
{
    size_t dim = (size_t)m->geometry.hidden * sizeof(float);
    size_t vocab = (size_t)m->geometry.vocab * sizeof(float);
    size_t rows = n * MX_MAX_LAG;
    mtplx_status st;
    for (size_t i = 0; i < n; i++) {
        int64_t entries = (int64_t)seqs[i]->n_tokens + MX_MAX_PENDING;
        st = mx_kv_reserve(&seqs[i]->mtp, entries, err);
        if (st != MTPLX_OK)
            return st;
    }
    if ((st = mx_batch_reserve(&m->mtp_batch, rows, err)) != MTPLX_OK ||
        (st = mx_devbuf_need(m, &m->pairs, rows * dim, err)) != MTPLX_OK ||
        (st = mx_devbuf_need(m, &m->drafts, rows * dim, err)) != MTPLX_OK ||
        (st = mx_devbuf_need(m, &m->hidden, n * dim, err)) != MTPLX_OK ||
        (st = mx_devbuf_need(m, &m->logits, n * vocab, err)) != MTPLX_OK)
        return st;
    return want->argmax ? MTPLX_OK : mx_hostbuf_need(&m->out_logits, n * vocab, err);
}

/* Tokens, positions and MTP inputs of one sequence, from row `at` of the batch. */
static void fill_rows(mtplx_seq *s, int32_t token, struct mx_batch_mem *mem, size_t at, int seg)
{
    mtplx_model *m = s->model;
    size_t rows = step_rows(s), dim = (size_t)m->geometry.hidden;
    int64_t entry = s->mtp.len + s->n_drafts;
    const float *hidden = s->n_drafts == 0 ? s->lag : s->draft_hidden;
    for (size_t i = 0; i < rows; i++) {
        mem->tokens[at + i] = i + 1 < rows ? s->tokens[(size_t)s->mtp.len + 1 + i] : token;
        for (size_t a = 0; a < 3; a++)
            mem->positions[3 * (at + i) + a] = (int32_t)(entry + (int64_t)i);
    }
    m->device->ops->copy(m->device, m->pairs.data + at * dim, hidden, rows * dim * sizeof(float));
    mem->segs[seg] = (struct mx_seg){
        .row0 = (int)at, .rows = (int)rows, .kv_len = entry, .kv_blocks = s->mtp.blocks};
}

/* After the pass: the lag is history, the last row's output is the next step's hidden state. */
static void settle_step(mtplx_seq *s, int32_t token, const float *last)
{
    mtplx_model *m = s->model;
    const struct mx_device_ops *ops = m->device->ops;
    size_t dim = (size_t)m->geometry.hidden;
    ops->copy(m->device, s->draft_hidden, last, dim * sizeof(float));
    if (s->n_drafts++ > 0)
        return;
    s->first_draft = token;
    s->mtp.len = (int64_t)s->n_tokens - 1;
    if (s->n_lag > 1)
        ops->copy(m->device, s->lag, s->lag + (size_t)(s->n_lag - 1) * dim, dim * sizeof(float));
    s->n_lag = 1;
}

/* Sequences seqs[0 .. n) whose rows fit one pass. */
static void run_group(mtplx_model *m, mtplx_seq *const *seqs, const int32_t *tokens, size_t n,
                      size_t rows, float *hidden_out)
{
    size_t dim = (size_t)m->geometry.hidden;
    struct mx_batch_mem mem = mx_batch_mem(&m->mtp_batch, rows);
    for (size_t i = 0, at = 0; i < n; i++) {
        fill_rows(seqs[i], tokens[i], &mem, at, (int)i);
        at += step_rows(seqs[i]);
    }
    struct mx_batch b = {(int)rows, (int)n, mem.tokens, mem.positions, mem.segs};
    m->family->mtp_forward(m->arch, &m->exec, &b, m->pairs.data, m->drafts.data);
    for (size_t i = 0, at = 0; i < n; i++) {
        at += step_rows(seqs[i]);
        settle_step(seqs[i], tokens[i], m->drafts.data + (at - 1) * dim);
        m->device->ops->copy(m->device, hidden_out + i * dim, seqs[i]->draft_hidden,
                             dim * sizeof(float));
    }
}

/* Logits of k rows, over the draft vocabulary or the whole one. */
static void draft_logits(mtplx_model *m, bool full, const float *hidden, int k, float *out)
{
    struct mx_device *d = m->device;
    struct mx_matmul product = {&m->draft.head, out, m->draft.n};
    if (full || !m->draft.head.data)
        m->family->logits(m->arch, &m->exec, hidden, k, out);
    else
        d->ops->matmul(d, &product, 1, hidden, m->geometry.hidden, k);
}

static void draft_argmax(mtplx_model *m, size_t width, size_t n, int32_t *ids)
{
    struct mx_device *d = m->device;
    d->ops->argmax(d, m->logits.data, (int64_t)width, (int)n, (int)width, ids);
    for (size_t i = 0; m->draft.ids && width == (size_t)m->draft.n && i < n; i++)
        ids[i] = m->draft.ids[ids[i]];
}

mtplx_status mx_draft(mtplx_model *m, mtplx_seq *const *seqs, const int32_t *tokens, size_t n,
                      const struct mx_want *want, mtplx_forward_result *result, mtplx_error *err)
{
    struct mx_device *d = m->device;
    size_t dim = (size_t)m->geometry.hidden, max = (size_t)m->exec.max_rows;
    size_t vocab = (size_t)(want->full ? m->geometry.vocab : m->draft.n);
    mtplx_status st = check_seqs(m, seqs, tokens, n, err);
    if (st != MTPLX_OK || (st = reserve_step(m, seqs, n, want, err)) != MTPLX_OK)
        return st;
    for (size_t i = 0; i < n; i++)
        mx_history_flush(seqs[i]);
    for (size_t i = 0, k; i < n; i += k) {
        size_t rows = 0;
        for (k = 0; i + k < n && rows + step_rows(seqs[i + k]) <= max; k++)
            rows += step_rows(seqs[i + k]);
        run_group(m, seqs + i, tokens + i, k, rows, m->hidden.data + i * dim);
        draft_logits(m, want->full, m->hidden.data + i * dim, (int)k, m->logits.data + i * vocab);
    }
    d->ops->sync(d);
    if (want->argmax)
        draft_argmax(m, vocab, n, want->ids);
    else
        d->ops->download(d, m->out_logits.data, m->logits.data, n * vocab * sizeof(float));
    if (result)
        *result = (mtplx_forward_result){.logits = want->argmax ? NULL : m->out_logits.data,
                                         .logits_rows = n};
    return MTPLX_OK;
}

mtplx_status mtplx_draft(mtplx_model *m, mtplx_seq *const *seqs, const int32_t *tokens, size_t n,
                         mtplx_forward_result *result, mtplx_error *err)
{
    struct mx_want want = {.full = true};
    mtplx_model_lock(m);
    mtplx_status st = mx_draft(m, seqs, tokens, n, &want, result, err);
    mtplx_model_unlock(m);
    return st;
}
