/* Captures: see capture.h for the steps and snapshot.h for what callers see. */
#include "runtime/capture.h"

#include "runtime/forward.h"

#include <stdlib.h>
#include <string.h>

struct mx_captures {
    size_t wants[MX_MAX_CAPTURES]; /* token counts, ascending */
    int n_wants;
    /* Of the running pass: [0, n_settled) have their lag. */
    mtplx_snapshot *open[MX_MAX_CAPTURES];
    int n_open, n_settled;
    struct mx_rec_capture rows[MX_MAX_CAPTURES]; /* of the running chunk */
    mtplx_snapshot *done[MX_MAX_CAPTURES];
    int n_done;
};

/* ---- Asking ------------------------------------------------------------------------------- */

static void drop_wants(struct mx_captures *c, int count)
{
    c->n_wants -= count;
    memmove(c->wants, c->wants + count, (size_t)c->n_wants * sizeof *c->wants);
}

/* Those that decoding has passed over. */
static void drop_passed(struct mx_captures *c, size_t n_tokens)
{
    int count = 0;
    while (count < c->n_wants && c->wants[count] <= n_tokens)
        count++;
    drop_wants(c, count);
}

void mx_seq_want_capture(mtplx_seq *s, size_t at)
{
    if (at <= s->n_tokens)
        return;
    if (!s->captures && !(s->captures = calloc(1, sizeof *s->captures)))
        return;
    struct mx_captures *c = s->captures;
    drop_passed(c, s->n_tokens);
    int i = 0;
    while (i < c->n_wants && c->wants[i] < at)
        i++;
    if (c->n_wants == MX_MAX_CAPTURES || (i < c->n_wants && c->wants[i] == at))
        return;
    memmove(c->wants + i + 1, c->wants + i, (size_t)(c->n_wants - i) * sizeof *c->wants);
    c->wants[i] = at;
    c->n_wants++;
}

size_t mx_seq_take_captured(mtplx_seq *s, mtplx_snapshot **out, size_t most)
{
    struct mx_captures *c = s->captures;
    size_t have = c ? (size_t)c->n_done : 0, n = have < most ? have : most;
    if (n == 0)
        return 0;
    memcpy((void *)out, (const void *)c->done, n * sizeof *out);
    c->n_done -= (int)n;
    memmove((void *)c->done, (const void *)(c->done + n), (size_t)c->n_done * sizeof *out);
    return n;
}

void mx_captures_free(mtplx_seq *s)
{
    struct mx_captures *c = s->captures;
    if (!c)
        return;
    for (int i = 0; i < c->n_open; i++)
        mx_snapshot_unref(c->open[i]);
    for (int i = 0; i < c->n_done; i++)
        mx_snapshot_unref(c->done[i]);
    free(c);
    s->captures = NULL;
}

/* ---- Making ------------------------------------------------------------------------------- */

static mtplx_snapshot *open_one(struct mx_captures *c, mtplx_model *m, size_t at)
{
    mtplx_snapshot *snap;
    if (c->n_open + c->n_done == MX_MAX_CAPTURES || !(snap = mx_snapshot_new(m, true)))
        return NULL;
    snap->n = at;
    c->open[c->n_open++] = snap;
    return snap;
}

void mx_capture_begin(mtplx_seq *s, struct mx_seg *seg)
{
    struct mx_captures *c = s->captures;
    int wants = 0, rows = 0;
    drop_passed(c, s->n_tokens);
    for (; wants < c->n_wants && c->wants[wants] <= s->n_tokens + (size_t)seg->rows; wants++) {
        mtplx_snapshot *snap = open_one(c, s->model, c->wants[wants]);
        int row = (int)(c->wants[wants] - s->n_tokens) - 1;
        if (snap && snap->rec)
            c->rows[rows++] = (struct mx_rec_capture){.row = row, .slab = snap->rec};
    }
    drop_wants(c, wants);
    seg->captures = c->rows;
    seg->n_captures = rows;
}

/* The hiddens that were not paired after snap->n tokens: rows of the sequence's lag where the chunk
 * was short enough to stay there, else the last one alone, which the MTP cache has gone past. */
static bool settle_one(const mtplx_seq *s, mtplx_snapshot *snap, const float *last)
{
    int64_t n = (int64_t)snap->n;
    if (!s->model->geometry.has_mtp)
        return true;
    if (s->mtp.len < n) {
        snap->mtp_len = s->mtp.len;
        return mx_snapshot_set_lag(snap, s->lag, (int)(n - s->mtp.len));
    }
    snap->mtp_len = n - 1;
    return mx_snapshot_set_lag(snap, last, 1);
}

/* Takes open[i] out of the list. */
static void drop_open(struct mx_captures *c, int i)
{
    mx_snapshot_unref(c->open[i]);
    c->n_open--;
    memmove((void *)(c->open + i), (const void *)(c->open + i + 1),
            (size_t)(c->n_open - i) * sizeof *c->open);
}

void mx_capture_settle(mtplx_seq *s, size_t rows, const int32_t *positions, const float *hidden)
{
    struct mx_captures *c = s->captures;
    size_t first = s->n_tokens - rows, dim = (size_t)s->model->geometry.hidden;
    while (c->n_settled < c->n_open) {
        mtplx_snapshot *snap = c->open[c->n_settled];
        size_t row = snap->n - 1 - first;
        snap->next_pos = mx_position_after(positions + 3 * row);
        if (settle_one(s, snap, hidden + row * dim))
            c->n_settled++;
        else
            drop_open(c, c->n_settled);
    }
}

void mx_capture_finish(mtplx_seq *s)
{
    struct mx_captures *c = s->captures;
    for (int i = 0; i < c->n_open; i++) {
        if (mx_snapshot_set_history(c->open[i], s))
            c->done[c->n_done++] = c->open[i];
        else
            mx_snapshot_unref(c->open[i]);
    }
    c->n_open = c->n_settled = 0;
}
