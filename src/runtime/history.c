/* Committed history: see history.h, and Q3 to Q5 of seq.h for what must hold afterwards. */
#include "runtime/history.h"

#include <string.h>

static size_t align16(size_t n)
{
    return (n + 15) & ~(size_t)15;
}

mtplx_status mx_batch_reserve(struct mx_hostbuf *b, size_t rows, mtplx_error *err)
{
    return mx_hostbuf_need(b, align16(rows * 4 * sizeof(int32_t)) + rows * sizeof(struct mx_seg),
                           err);
}

struct mx_batch_mem mx_batch_mem(const struct mx_hostbuf *b, size_t rows)
{
    int32_t *tokens = b->data;
    uint8_t *segs = (uint8_t *)b->data + align16(rows * 4 * sizeof(int32_t));
    return (struct mx_batch_mem){tokens, tokens + rows, (struct mx_seg *)(void *)segs};
}

mtplx_status mx_history_reserve(mtplx_model *m, size_t rows, mtplx_error *err)
{
    if (!m->geometry.has_mtp)
        return MTPLX_OK;
    size_t most = rows + MX_MAX_LAG, max = (size_t)m->exec.max_rows;
    mtplx_status st = mx_batch_reserve(&m->mtp_batch, most < max ? most : max, err);
    if (st != MTPLX_OK)
        return st;
    return mx_devbuf_need(m, &m->pairs, most * (size_t)m->geometry.hidden * sizeof(float), err);
}

void mx_mtp_run(mtplx_seq *s, int64_t at, const int32_t *tokens, const float *hidden, size_t n,
                float *hidden_out)
{
    mtplx_model *m = s->model;
    size_t dim = (size_t)m->geometry.hidden, max = (size_t)m->exec.max_rows;
    for (size_t done = 0, count; done < n; done += count) {
        count = n - done < max ? n - done : max;
        struct mx_batch_mem mem = mx_batch_mem(&m->mtp_batch, count);
        for (size_t i = 0; i < count; i++) {
            mem.tokens[i] = tokens[done + i];
            for (size_t a = 0; a < 3; a++)
                mem.positions[3 * i + a] = (int32_t)(at + (int64_t)(done + i));
        }
        mem.segs[0] = (struct mx_seg){
            .rows = (int)count, .kv_len = at + (int64_t)done, .kv_blocks = s->mtp.blocks};
        struct mx_batch b = {(int)count, 1, mem.tokens, mem.positions, mem.segs};
        m->family->mtp_forward(m->arch, &m->exec, &b, hidden + done * dim,
                               hidden_out ? hidden_out + done * dim : NULL);
    }
}

/* Q5: the first draft's entry is history if that token is what came. */
static void settle_drafts(mtplx_seq *s, int32_t token)
{
    if (s->n_drafts > 0 && s->first_draft == token) {
        s->mtp.len++;
        s->n_lag = 0;
    }
    s->n_drafts = 0;
}

/* Appends the entries of every token but the last: pairs are the lag rows, then hidden[0 .. n-1).
 */
static void append_now(mtplx_seq *s, const float *hidden, size_t n)
{
    mtplx_model *m = s->model;
    const struct mx_device_ops *ops = m->device->ops;
    size_t dim = (size_t)m->geometry.hidden, lag = (size_t)s->n_lag;
    float *pairs = m->pairs.data;
    size_t count = s->n_tokens - 1 - (size_t)s->mtp.len;
    if (lag)
        ops->copy(m->device, pairs, s->lag, lag * dim * sizeof(float));
    if (n > 1)
        ops->copy(m->device, pairs + lag * dim, hidden, (n - 1) * dim * sizeof(float));
    if (count)
        mx_mtp_run(s, s->mtp.len, s->tokens + s->mtp.len + 1, pairs, count, NULL);
    s->mtp.len += (int64_t)count;
    ops->copy(m->device, s->lag, hidden + (n - 1) * dim, dim * sizeof(float));
    s->n_lag = 1;
}

void mx_history_flush(mtplx_seq *s)
{
    mtplx_model *m = s->model;
    size_t dim = (size_t)m->geometry.hidden, count = (size_t)s->n_lag - 1;
    if (s->n_drafts > 0 || s->n_lag <= MX_LONG_LAG)
        return;
    mx_mtp_run(s, s->mtp.len, s->tokens + s->mtp.len + 1, s->lag, count, NULL);
    s->mtp.len += (int64_t)count;
    m->device->ops->copy(m->device, s->lag, s->lag + count * dim, dim * sizeof(float));
    s->n_lag = 1;
}

void mx_history_commit(mtplx_seq *s, const int32_t *tokens, const float *hidden, size_t n)
{
    mtplx_model *m = s->model;
    size_t dim = (size_t)m->geometry.hidden;
    memcpy(s->tokens + s->n_tokens, tokens, n * sizeof *tokens);
    settle_drafts(s, s->tokens[s->n_tokens]);
    s->n_tokens += n;
    s->kv.len = (int64_t)s->n_tokens;
    if (!m->geometry.has_mtp)
        return;
    if (n > MX_MAX_PENDING || (size_t)s->n_lag + n > MX_MAX_LAG) {
        append_now(s, hidden, n);
        return;
    }
    m->device->ops->copy(m->device, s->lag + (size_t)s->n_lag * dim, hidden,
                         n * dim * sizeof(float));
    s->n_lag += (int)n;
}
