/* Softmax weights of a row of logits: w(x) = exp((x - max) / T), the largest weight being 1.
 *
 * Probabilities are weights over their sum, and every filter of the sampler is a statement about
 * weights, so nothing else of the softmax is ever needed. All functions are pure and add in one
 * fixed order: the same row gives the same bits whatever else runs. A logit that is NaN or -inf has
 * weight 0; +inf must have been replaced by the caller (mx_logit_clamp). */
#ifndef MX_RUNTIME_WEIGHTS_H
#define MX_RUNTIME_WEIGHTS_H

#include <float.h>
#include <stdbool.h>
#include <stddef.h>

/* The estimate of mx_weights_estimate() is within this relative distance of the true sum. */
#define MX_WEIGHTS_SLACK 5e-5

/* Logits further than this many temperatures below the largest have weight 0: exp(-708) is the last
 * weight whose powers of two are normal numbers, and 300 orders of magnitude below what a 53-bit
 * uniform can draw. */
#define MX_WEIGHTS_REACH 708.0

/* Temperatures for which that bound is proved. */
#define MX_WEIGHTS_MIN_TEMPERATURE 1e-6

/* Logits of +inf count as the largest float, so that max stays finite; NaN stays NaN. */
static inline float mx_logit_clamp(float x)
{
    return x > FLT_MAX ? FLT_MAX : x;
}

/* Rows are also looked at in blocks of this many logits, so that a second look finds them in the
 * first-level cache, and so that what needs no second look is known by its block's largest. */
enum { MX_WEIGHTS_BLOCK = 512 };
static inline size_t mx_weights_blocks(size_t n)
{
    return (n + MX_WEIGHTS_BLOCK - 1) / MX_WEIGHTS_BLOCK;
}

/* Largest logit, NaN ignored; -inf when there is none. */
float mx_logits_max(const float *x, size_t n);

/* The same, and that of every block of MX_WEIGHTS_BLOCK logits in max[mx_weights_blocks(n)]. */
float mx_logits_block_max(const float *x, size_t n, float *max);

/* Index of the largest logit, the first of equals; +inf and FLT_MAX are equal. 0 when there is none
 * above -inf. */
size_t mx_logits_argmax(const float *x, size_t n);

/* Skips from i whole blocks of MX_LOGITS_BLOCK logits that are all below `floor` (NaN is); returns
 * where the first other block, or an incomplete last one, starts. i <= n. */
enum { MX_LOGITS_BLOCK = 16 };
size_t mx_logits_skip(const float *x, size_t i, size_t n, float floor);

/* w[i] = exp((x[i] - max) * inv_t), relative error about 1e-15 plus that of the argument; 0
 * beyond MX_WEIGHTS_REACH. inv_t must be finite. */
void mx_weights(const float *x, size_t n, float max, double inv_t, double *w);

/* The sum of the n weights in double precision. */
double mx_weights_sum(const float *x, size_t n, float max, double inv_t);

/* The same sum to within MX_WEIGHTS_SLACK, several times faster. Needs
 * 1 / inv_t >= MX_WEIGHTS_MIN_TEMPERATURE. */
double mx_weights_estimate(const float *x, size_t n, float max, double inv_t);

/* Bounds of the same sum that read few of the logits: blocks whose largest logit says that they
 * weigh little are bounded by it. Close together when few tokens hold most of the mass. Needs what
 * mx_weights_estimate() needs. */
void mx_weights_bounds(const float *x, const float *block_max, size_t n, float max, double inv_t,
                       double *low, double *high);

/* w[i] = exp((x[i] - max) * inv_t) in single precision for n <= MX_WEIGHTS_BLOCK logits of at most
 * `max`; returns their sum in double precision, exact to 1e-13. Needs 1 / inv_t >=
 * MX_WEIGHTS_MIN_TEMPERATURE. Weights below 2^-126 are 0.
 *
 * w[i] is, within 4e-7 of itself, the weight of a logit that is off x[i] by at most
 * 2^-22 (max - x[i]), which is what a few roundings to float are worth. */
double mx_weights_single(const float *x, size_t n, float max, double inv_t, float *w);

#endif
