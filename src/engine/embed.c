/* Embedding jobs: the mean of a text's final-norm hidden states, or the last one. */
#include "engine/engine_int.h"

#include <stdlib.h>
#include <string.h>

void mx_embed_free(struct mx_embedding *m)
{
    mtplx_seq_free(m->seq);
    free(m->sum);
    free(m->out);
    *m = (struct mx_embedding){0};
}

void mx_embed_start(struct mx_engine *e, struct mx_job *j, mtplx_error *err)
{
    struct mx_embedding *m = &j->embed;
    m->dims = (size_t)mtplx_model_get_info(e->model)->hidden_size;
    m->sum = calloc(m->dims, sizeof *m->sum);
    m->out = calloc(m->dims, sizeof *m->out);
    if (!m->sum || !m->out)
        mx_error_nomem(err, "an embedding", m->dims * sizeof *m->sum);
    else
        m->seq = mtplx_seq_new(e->model, err);
}

/* Takes over rows of hidden states. */
static void take(struct mx_job *j, const float *hidden, size_t rows)
{
    struct mx_embedding *m = &j->embed;
    for (size_t r = 0; j->opt.kind == MX_JOB_EMBED_MEAN && r < rows; r++)
        for (size_t i = 0; i < m->dims; i++)
            m->sum[i] += (double)hidden[r * m->dims + i];
    if (j->opt.kind == MX_JOB_EMBED_LAST)
        memcpy(m->out, hidden + (rows - 1) * m->dims, m->dims * sizeof *m->out);
}

mtplx_status mx_embed_pass(struct mx_engine *e, struct mx_job *j, size_t rows, bool *complete,
                           mtplx_error *err)
{
    struct mx_embedding *m = &j->embed;
    mtplx_forward_result r;
    size_t left = j->opt.n_prompt - m->read, n = rows < left ? rows : left;
    mtplx_row *row = malloc(n * sizeof *row);
    if (!row)
        return mx_error_nomem(err, "rows of an embedding", n * sizeof *row);
    for (size_t i = 0; i < n; i++)
        row[i] = (mtplx_row){.seq = m->seq, .token = j->opt.prompt[m->read + i]};
    mtplx_model_lock(e->model);
    mtplx_status st = mtplx_forward(e->model, row, n, MTPLX_COMMIT, true, &r, err);
    if (st == MTPLX_OK)
        take(j, r.hidden, n);
    mtplx_model_unlock(e->model);
    free(row);
    if (st != MTPLX_OK)
        return st;
    m->read += n;
    *complete = m->read == j->opt.n_prompt;
    for (size_t i = 0; *complete && j->opt.kind == MX_JOB_EMBED_MEAN && i < m->dims; i++)
        m->out[i] = (float)(m->sum[i] / (double)m->read);
    return MTPLX_OK;
}
