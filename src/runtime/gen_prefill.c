/* Passes over prompt rows: the rows of several generations go through the trunk in one ragged pass.
 * A row's result does not depend on its company, so neither do the tokens. A prompt whose
 * log-probabilities are asked for needs the logits of every row, and goes alone in short passes. */
#include "base/clock.h"
#include "runtime/gen_int.h"

/* Logits of one pass over a scored prompt take at most so much memory. */
#define SCORED_BYTES ((size_t)32 << 20)

/* Rows of the pass, in memory of the model's. Only a prompt's last row is asked for logits, unless
 * the prompt is scored. */
static mtplx_status fill_rows(mtplx_gen *const *gens, const size_t *rows, size_t n, size_t *total,
                              mtplx_error *err)
{
    struct mx_hostbuf *b = &gens[0]->seq->model->prompt_rows;
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        k += rows[i];
    mtplx_status st = mx_hostbuf_need(b, k * sizeof(mtplx_row), err);
    if (st != MTPLX_OK)
        return st;
    mtplx_row *out = b->data;
    *total = k;
    for (size_t i = 0; i < n; i++) {
        const mtplx_gen *g = gens[i];
        for (size_t j = 0; j < rows[i]; j++)
            *out++ = (mtplx_row){.seq = g->seq,
                                 .token = g->prompt[g->done_prompt + j],
                                 .want_logits =
                                     g->prompt_logprobs || g->done_prompt + j + 1 == g->n_prompt};
    }
    return MTPLX_OK;
}

static mtplx_status reserve(mtplx_gen *const *gens, const size_t *rows, size_t n, mtplx_error *err)
{
    mtplx_status st = MTPLX_OK;
    for (size_t i = 0; i < n && st == MTPLX_OK; i++) {
        mtplx_gen *g = gens[i];
        if (g->prompt_logprobs)
            st = mx_logprobs_reserve(g->prompt_logprobs, g->done_prompt + rows[i] + 1, err);
        if (g->logprobs && st == MTPLX_OK)
            st = mx_logprobs_reserve(g->logprobs, 1, err);
    }
    return st;
}

/* Records what the rows say of the prompt tokens after them; returns the last row. */
static const float *score(mtplx_gen *g, size_t rows, const float *logits)
{
    int vocab = g->seq->model->geometry.vocab;
    for (size_t j = 0; j < rows; j++, logits += vocab) {
        size_t index = g->done_prompt + j + 1;
        if (index < g->n_prompt)
            mx_logprobs_set(g->prompt_logprobs, index, logits, vocab, g->prompt[index]);
    }
    return logits - vocab;
}

/* Moves on the generations of a pass that was run; those whose prompt is complete draw. */
static void settle(mtplx_gen *const *gens, const size_t *rows, size_t n, const float *logits)
{
    for (size_t i = 0; i < n; i++) {
        mtplx_gen *g = gens[i];
        if (g->prompt_logprobs)
            logits = score(g, rows[i], logits);
        g->done_prompt += rows[i];
        if (g->done_prompt < g->n_prompt)
            continue;
        int32_t token = mx_gen_draw(g, logits, g->seq->n_tokens);
        mx_gen_count(g, token);
        mx_gen_emit(g, token, logits);
        logits += g->seq->model->geometry.vocab;
    }
}

static mtplx_status run_pass(mtplx_gen *const *gens, const size_t *rows, size_t n, mtplx_error *err)
{
    mtplx_model *m = gens[0]->seq->model;
    struct mx_want want = {0};
    mtplx_forward_result r;
    size_t total;
    uint64_t t0 = mx_now_ns();
    for (size_t i = 0; i < n; i++)
        if (!gens[i]->started_ns)
            gens[i]->started_ns = t0;
    mtplx_status st = fill_rows(gens, rows, n, &total, err);
    if (st == MTPLX_OK)
        st = reserve(gens, rows, n, err);
    if (st == MTPLX_OK)
        st = mx_forward(m, m->prompt_rows.data, total, MTPLX_COMMIT, &want, &r, err);
    if (st != MTPLX_OK)
        return st;
    settle(gens, rows, n, r.logits);
    uint64_t ns = mx_now_ns() - t0;
    for (size_t i = 0; i < n; i++)
        gens[i]->stats.prefill_ns += ns;
    return MTPLX_OK;
}

void mx_gen_prefill_scored(mtplx_gen *g, size_t rows, struct mx_outcome *o)
{
    size_t most = SCORED_BYTES / ((size_t)g->seq->model->geometry.vocab * sizeof(float));
    most = most > 0 ? most : 1;
    /* A cancelled one ends with the next call. */
    while (rows > 0 && g->finish == MTPLX_FINISH_NONE && !(g->opt.cancel && *g->opt.cancel)) {
        size_t take = rows < most ? rows : most;
        mx_gen_prefill(&g, &take, 1, o);
        rows -= take;
    }
}

void mx_gen_prefill(mtplx_gen *const *gens, const size_t *rows, size_t n, struct mx_outcome *o)
{
    mtplx_status st = run_pass(gens, rows, n, n > 1 ? NULL : mx_outcome_error(o));
    if (st == MTPLX_OK) {
        mx_outcome_note_grammars(o, gens, n);
        return;
    }
    for (size_t i = 0; i < n && n > 1; i++)
        mx_gen_prefill(gens + i, rows + i, 1, o);
    if (n > 1)
        return;
    gens[0]->finish = MTPLX_FINISH_ERROR;
    mx_outcome_note(o, st);
}
