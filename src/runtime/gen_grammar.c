/* Grammars in the speculative loop. The matcher stands behind the last emitted token; drafts are
 * tried on it one after the other and taken back before the first is tested, so that p and q of a
 * position see the same mask.
 *
 * Drafts never change the shape of a cycle (G6), whatever the grammar says of them:
 *   - where the draft vocabulary has no token of the mask, the lowest allowed one is drafted, as a
 *     point mass; a draft's law may be any that depends on nothing but the text before it;
 *   - behind a drafted stop token nothing is tested any more, so what is drafted there is free.
 * Copies are cut to what the grammar allows. Where the text can go on in one way only (the keys of
 * a JSON object), that way is drafted without the head, in the longest tokens; how to cut it into
 * tokens is still the model's choice, so these are drafts like any other, with a point mass as
 * their law. Both follow from the emitted tokens alone. */
#include "runtime/gen_int.h"

#include <string.h>

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

/* ---- Where there is one way to go on ------------------------------------------------------ */

enum { WAYS = 24 }; /* tokens looked at: a long word has about as many beginnings */

/* The tokens of a mask, or WAYS + 1 when there are more. */
static int list_tokens(const uint64_t *mask, int vocab, int32_t *out)
{
    int n = 0;
    for (int i = 0; i < vocab; i += 64)
        for (uint64_t word = mask[i / 64]; word; word &= word - 1) {
            if (n == WAYS)
                return WAYS + 1;
            out[n++] = i + __builtin_ctzll(word);
        }
    return n;
}

/* The longest of the tokens when all the others are beginnings of it, so that the text can go on in
 * one way only; else -1. Tokens without bytes stand alone. */
static int32_t only_way(const struct mx_tokenizer *t, const int32_t *tokens, int n)
{
    const char *bytes[WAYS];
    size_t len[WAYS];
    int best = 0;
    if (n == 0 || n > WAYS)
        return -1;
    for (int i = 0; i < n; i++) {
        bytes[i] = mx_tokenizer_bytes(t, tokens[i], &len[i]);
        if (n > 1 && (!bytes[i] || mx_tokenizer_is_special(t, tokens[i])))
            return -1;
        best = len[i] > len[best] ? i : best;
    }
    for (int i = 0; i < n && n > 1; i++)
        if (memcmp(bytes[i], bytes[best], len[i]) != 0)
            return -1;
    return tokens[best];
}

int mx_gen_forced(mtplx_gen *g, int32_t *out, int most)
{
    const mtplx_model *m = g->seq->model;
    int tried = g->tried, k = 0;
    int32_t ways[WAYS];
    while (k < most) {
        const uint64_t *mask = mx_gen_mask(g);
        int n = mask ? list_tokens(mask, m->geometry.vocab, ways) : 0;
        int32_t token = only_way(m->tokenizer, ways, n);
        if (token < 0 || !mx_gen_try(g, token))
            break;
        out[k++] = token;
    }
    mx_gen_untry(g, tried);
    return k;
}
