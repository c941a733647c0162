/* Embedding jobs: the mean of a text's final-norm hidden states, or the last one. Texts share
 * passes; by row invariance a text's embedding does not depend on its company. */
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

size_t mx_embed_left(const struct mx_job *j)
{
    return j->open && j->embed.seq ? j->opt.n_prompt - j->embed.read : 0;
}

/* Takes over `n` rows of hidden states; the mean is made when the text is complete. */
static void take(struct mx_job *j, const float *hidden, size_t n)
{
    struct mx_embedding *m = &j->embed;
    m->read += n;
    if (j->opt.kind == MX_JOB_EMBED_LAST) {
        memcpy(m->out, hidden + (n - 1) * m->dims, m->dims * sizeof *m->out);
        return;
    }
    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; i < m->dims; i++)
            m->sum[i] += (double)hidden[r * m->dims + i];
    for (size_t i = 0; m->read == j->opt.n_prompt && i < m->dims; i++)
        m->out[i] = (float)(m->sum[i] / (double)m->read);
}

static void fill_rows(struct mx_job *const *jobs, const size_t *rows, size_t n, mtplx_row *out)
{
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < rows[i]; k++)
            *out++ = (mtplx_row){.seq = jobs[i]->embed.seq,
                                 .token = jobs[i]->opt.prompt[jobs[i]->embed.read + k]};
}

mtplx_status mx_embed_pass(struct mx_engine *e, struct mx_job *const *jobs, const size_t *rows,
                           size_t n, size_t sum, mtplx_error *err)
{
    mtplx_forward_result r;
    mtplx_row *all = malloc(sum * sizeof *all);
    if (!all)
        return mx_error_nomem(err, "rows of an embedding", sum * sizeof *all);
    fill_rows(jobs, rows, n, all);
    mtplx_model_lock(e->model); /* the result lives in the model */
    mtplx_status st = mtplx_forward(e->model, all, sum, MTPLX_COMMIT, true, &r, err);
    const float *hidden = st == MTPLX_OK ? r.hidden : NULL;
    for (size_t i = 0; hidden && i < n; i++) {
        if (rows[i])
            take(jobs[i], hidden, rows[i]);
        hidden += rows[i] * jobs[i]->embed.dims;
    }
    mtplx_model_unlock(e->model);
    free(all);
    return st;
}
