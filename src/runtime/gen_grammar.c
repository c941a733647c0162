/* Grammars in the speculative loop. The matcher stands behind the last emitted token; drafts are
 * tried on it one after the other and taken back before the first is tested, so that p and q of a
 * position see the same mask.
 *
 * Drafts never change the shape of a cycle (G6), whatever the grammar says of them:
 *   - where the draft vocabulary has no token of the mask, the lowest allowed one is drafted, as a
 *     point mass; a draft's law may be any that depends on nothing but the text before it;
 *   - behind a drafted stop token nothing is tested any more, so what is drafted there is free.
 * Copies are cut to what the grammar allows, and runs of tokens that it leaves no choice about are
 * drafted without the head: both follow from the emitted tokens alone. */
#include "runtime/gen_int.h"

const uint64_t *mx_gen_mask(mtplx_gen *g)
{
    return g->matcher && !g->strayed ? mx_matcher_mask(g->matcher) : NULL;
}

bool mx_gen_try(mtplx_gen *g, int32_t token)
{
    if (!g->matcher || g->strayed)
        return false;
    bool allowed = mx_matcher_accept(g->matcher, token);
    g->tried += allowed;
    g->strayed = !allowed || mtplx_model_is_stop_token(g->seq->model, token);
    return allowed;
}

void mx_gen_untry(mtplx_gen *g, int keep)
{
    if (!g->matcher)
        return;
    mx_matcher_rollback(g->matcher, g->tried - keep);
    g->tried = keep;
    g->strayed = false;
}

/* Calls that follow a draft which strayed find nothing, so `strayed` is false at the start. */
int mx_gen_cut(mtplx_gen *g, const int32_t *tokens, int n)
{
    int tried = g->tried, k = 0;
    if (!g->matcher)
        return n;
    if (g->strayed)
        return 0;
    while (k < n && mx_gen_try(g, tokens[k]))
        k++;
    mx_gen_untry(g, tried);
    return k;
}

int mx_gen_forced(mtplx_gen *g, int32_t *out, int most)
{
    int tried = g->tried, k = 0, vocab = g->seq->model->geometry.vocab;
    bool only = true;
    while (k < most && only) {
        const uint64_t *mask = mx_gen_mask(g);
        int32_t token = mask ? mx_mask_first(mask, vocab, &only) : -1;
        if (token < 0 || !only || !mx_gen_try(g, token))
            break;
        out[k++] = token;
    }
    mx_gen_untry(g, tried);
    return k;
}
