/* One token of an answer: the law it is drawn from, the draw, and its place in the answer. */
#include "base/clock.h"
#include "runtime/gen_int.h"

bool mx_gen_emit(mtplx_gen *g, int32_t token, const float *logits)
{
    uint64_t now = mx_now_ns();
    if (g->matcher && !mx_matcher_accept(g->matcher, token)) {
        g->finish = MTPLX_FINISH_ERROR;
        return false;
    }
    if (g->n_out == 0) {
        g->first_ns = now;
        g->stats.first_token_ns = now - g->started_ns;
    }
    if (g->logprobs)
        mx_logprobs_set(g->logprobs, g->n_out, logits, g->seq->model->geometry.vocab, token);
    g->out[g->n_out++] = token;
    if (!g->opt.ignore_stop) /* benchmarks are not what a user asks for */
        mx_misses_note(g->seq->model->misses, token);
    g->stats.generated_tokens = g->n_out;
    g->stats.decode_ns = now - g->first_ns;
    bool stops = !g->opt.ignore_stop || g->matcher; /* behind it there is no grammar to obey */
    if (stops && mtplx_model_is_stop_token(g->seq->model, token))
        g->finish = MTPLX_FINISH_STOP;
    else if (g->n_out >= g->cap_out)
        g->finish = MTPLX_FINISH_LENGTH;
    return g->finish == MTPLX_FINISH_NONE;
}

void mx_gen_count(mtplx_gen *g, int32_t token)
{
    if (g->counting)
        mx_counts_add(g->counts, token, false, NULL); /* room was reserved */
}

double mx_gen_uniform(const mtplx_gen *g, uint64_t position, enum mx_rng_purpose purpose)
{
    return mx_rng_uniform(g->opt.sampling.seed, position, purpose);
}

/* ---- Laws --------------------------------------------------------------------------------- */

/* A row as the filters are to see it. */
struct view {
    const float *logits;
    const int32_t *ids; /* token of each place; NULL: the place */
    int n;
    const struct mx_counts *counts; /* penalties that the sampler still has to apply */
};

/* What a row comes to: *token is certain, or the view goes to the filters. */
enum sight { OPEN, CERTAIN };

/* Rows that only penalties change are left to the sampler, which need not copy them. A token that
 * the grammar leaves no choice about is certain, and so is, for a draft, the lowest one of the mask
 * where the draft vocabulary has none of it (gen_grammar.c). */
static enum sight look(mtplx_gen *g, struct view *v, int32_t *token)
{
    struct mx_row_rules r = {.cfg = &g->opt.sampling, .counts = g->counts, .bias = g->bias};
    bool only = false;
    v->counts = g->counts;
    r.mask = mx_gen_mask(g);
    *token = 0;
    if (r.mask)
        *token = mx_mask_first(r.mask, g->seq->model->geometry.vocab, &only);
    if (only)
        return CERTAIN;
    if (!r.bias && !r.mask)
        return OPEN;
    if (!mx_row_apply(&r, v->logits, v->ids, v->n, g->row)) {
        *token = *token < 0 ? 0 : *token; /* an empty mask: the matcher will refuse anything */
        return CERTAIN;
    }
    v->logits = g->row;
    v->counts = NULL;
    return OPEN;
}

/* The greedy token, or the law in d. */
static int32_t decide(mtplx_gen *g, struct view *v, struct mx_dist *d)
{
    int32_t token;
    enum sight sight = look(g, v, &token);
    if (sight == CERTAIN && !g->greedy)
        mx_dist_point(d, token);
    if (sight == CERTAIN)
        return token;
    if (g->greedy)
        return mx_sample_argmax_of(&g->opt.sampling, v->counts, v->logits, v->ids, v->n);
    mx_sample_dist_of(g->sampler, &g->opt.sampling, v->counts, v->logits, v->ids, v->n, d);
    return 0;
}

void mx_gen_target(mtplx_gen *g, const float *logits, struct mx_dist *d)
{
    struct view v = {.logits = logits, .n = g->seq->model->geometry.vocab};
    decide(g, &v, d);
}

int32_t mx_gen_argmax(mtplx_gen *g, const float *logits)
{
    struct view v = {.logits = logits, .n = g->seq->model->geometry.vocab};
    return decide(g, &v, NULL);
}

int32_t mx_gen_draft(mtplx_gen *g, const float *logits, int step)
{
    const struct mx_draft_vocab *vocab = &g->seq->model->draft;
    struct view v = {.logits = logits, .ids = vocab->ids, .n = vocab->n};
    int32_t token = decide(g, &v, &g->q[step]);
    if (!g->greedy) {
        uint64_t position = g->seq->n_tokens + 1 + (uint64_t)step;
        token = mx_dist_draw(&g->q[step], mx_gen_uniform(g, position, MX_RNG_DRAFT));
    }
    mx_gen_try(g, token);
    return token;
}

int32_t mx_gen_draw(mtplx_gen *g, const float *logits, uint64_t position)
{
    if (g->greedy)
        return mx_gen_argmax(g, logits);
    mx_gen_target(g, logits, &g->p);
    return mx_dist_draw(&g->p, mx_gen_uniform(g, position, MX_RNG_TARGET));
}
