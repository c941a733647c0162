/* What happens to a row of logits between the model and the filters of the sampler: penalties, then
 * the caller's bias, then the tokens that a grammar allows. The same for p and q, which is what
 * keeps acceptance exact: both are laws over the row that comes out. */
#ifndef MX_RUNTIME_ROW_H
#define MX_RUNTIME_ROW_H

#include "runtime/counts.h"

/* Biased tokens, ascending, each once (the last entry counts). */
struct mx_bias;
/* Errors: ARGUMENT (a token outside the vocabulary, a bias that is no number), MEMORY. */
struct mx_bias *mx_bias_new(const mtplx_logit_bias *entries, size_t n, int vocab, mtplx_error *err);
void mx_bias_free(struct mx_bias *b);
uint64_t mx_bias_bytes(size_t n);

struct mx_row_rules {
    const mtplx_sampling *cfg;
    const struct mx_counts *counts; /* NULL: no penalties */
    const struct mx_bias *bias;     /* NULL: none */
    const uint64_t *mask;           /* bit t % 64 of word t / 64: token t may come; NULL: all may */
};

/* Writes the row that the filters are to see to out[n]. logits[i] is that of token ids[i], ids
 * ascend; NULL: token i. Excluded tokens become -inf: those outside the mask, those with a bias of
 * -100 or less, and all but the ones with a bias of 100 or more where such a token is left. Where
 * the bias leaves nothing of the mask, the mask goes first and the bias is forgotten. False, with
 * `out` undefined, when the places hold no token of the mask. */
bool mx_row_apply(const struct mx_row_rules *r, const float *logits, const int32_t *ids, int n,
                  float *out);

static inline bool mx_mask_has(const uint64_t *mask, int32_t token)
{
    return mask[token / 64] >> (token % 64) & 1;
}

/* The lowest token of a mask over `vocab` tokens, -1 when it is empty; *only: whether it is the
 * only one. */
int32_t mx_mask_first(const uint64_t *mask, int vocab, bool *only);

#endif
