/* Wide distributions: the law of a row that no filter cuts, over all its tokens.
 *
 * Sorting 250,000 tokens to draw one would be waste. A wide law keeps the weights where the logits
 * were, in blocks: a draw finds its block by the blocks' masses and the token inside the block.
 *
 *   probability of place i of block b = (double)w[i] * scale[b]
 *
 * The weights are single precision (mx_weights_single()), relative to the largest of their block;
 * all else is double precision. So the law is softmax of logits rounded a little further than they
 * are, and from there on exact: draws, acceptance tests and residuals use the same numbers, whose
 * sum is 1 to 1e-13.
 *
 * Order of draws: places, that is ascending tokens. (Lists of kept tokens are drawn from in rank
 * order; a place's interval of uniforms is nobody's business but the draw's.) */
#ifndef MX_RUNTIME_WIDE_H
#define MX_RUNTIME_WIDE_H

#include "base/error.h"

struct mx_wide {
    int n, cap;
    const int32_t *ids; /* [n] token of each place, ascending; NULL: the place. Borrowed */
    float *w;           /* [cap] */
    double *scale;      /* [blocks] */
    double *mass;       /* [blocks] probability of the block */
    double *common;     /* [blocks] scratch of mx_wide_residual() */
};

mtplx_status mx_wide_reserve(struct mx_wide *d, int cap, mtplx_error *err);
void mx_wide_free(struct mx_wide *d);
/* Bytes that a reserve of `cap` takes. */
uint64_t mx_wide_bytes(int cap);

/* The law of x[n], n <= cap, at temperature 1 / inv_t >= MX_WEIGHTS_MIN_TEMPERATURE. False, with
 * d->n = 0, when the row has +inf or nothing above -inf. */
bool mx_wide_fill(struct mx_wide *d, const float *x, const int32_t *ids, int n, double inv_t);

/* Place of a token, or -1. */
int mx_wide_place(const struct mx_wide *d, int32_t id);
double mx_wide_at(const struct mx_wide *d, int place);

/* The token at cumulative mass u in [0, 1). */
int32_t mx_wide_draw(const struct mx_wide *d, double u);

struct mx_dist;

/* A draw from normalise(max(p - q, 0)) for wide p and any q; false when that mass is zero. Writes
 * p->common. */
bool mx_wide_residual(const struct mx_wide *p, const struct mx_dist *q, double u, int32_t *token);

#endif
