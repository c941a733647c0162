/* One token of an answer: the law it is drawn from, the draw, and its place in the answer. */
#include "base/clock.h"
#include "runtime/gen_int.h"

bool mx_gen_emit(mtplx_gen *g, int32_t token)
{
    uint64_t now = mx_now_ns();
    if (g->n_out == 0) {
        g->first_ns = now;
        g->stats.first_token_ns = now - g->started_ns;
    }
    g->out[g->n_out++] = token;
    if (!g->opt.ignore_stop) /* benchmarks are not what a user asks for */
        mx_misses_note(g->seq->model->misses, token);
    g->stats.generated_tokens = g->n_out;
    g->stats.decode_ns = now - g->first_ns;
    if (!g->opt.ignore_stop && mtplx_model_is_stop_token(g->seq->model, token))
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

void mx_gen_target(mtplx_gen *g, const float *logits, struct mx_dist *d)
{
    mx_sample_dist(g->sampler, &g->opt.sampling, g->counts, logits, g->seq->model->geometry.vocab,
                   d);
}

int32_t mx_gen_argmax(mtplx_gen *g, const float *logits)
{
    return mx_sample_argmax(&g->opt.sampling, g->counts, logits, g->seq->model->geometry.vocab);
}

int32_t mx_gen_draw(mtplx_gen *g, const float *logits, uint64_t position)
{
    if (g->greedy)
        return mx_gen_argmax(g, logits);
    mx_gen_target(g, logits, &g->p);
    return mx_dist_draw(&g->p, mx_gen_uniform(g, position, MX_RNG_TARGET));
}
