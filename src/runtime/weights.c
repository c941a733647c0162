/* Softmax weights of a row of logits.
 *
 * A vocabulary has up to 250,000 entries and a speculative cycle needs the sum of the weights for
 * every drafted and every verified row, so the exponential is the price of sampling. Two versions:
 *
 *   exact      double precision, for the weights that become probabilities and for the sum when a
 *              decision is close;
 *   estimate   single precision with a proved error bound, five times faster, for the sum when it
 *              only has to tell that a mass is clearly below or clearly above top_p.
 *
 * The estimate is written with the 16-byte vector extension that gcc and clang share, so that it
 * needs no build flags and its lanes, hence the order of every addition, are fixed by the source.
 *
 * Invariants
 *  1. Sums run in one fixed order; a tail is padded with -inf (weight 0).
 *  2. Comparisons are written so that NaN fails them and is treated like -inf. */
#include "runtime/weights.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef float v4f __attribute__((vector_size(16)));
typedef int32_t v4i __attribute__((vector_size(16)));
typedef int64_t v2i __attribute__((vector_size(16)));
typedef uint32_t v4u __attribute__((vector_size(16)));

enum {
    BLOCK = 512,            /* floats added in single precision before they go to a double */
    STEP = MX_LOGITS_BLOCK, /* floats per step of the vector loops */
};

static inline v4f load4(const float *x)
{
    v4f v;
    memcpy(&v, x, sizeof v);
    return v;
}

static inline v4f select4(v4i mask, v4f yes, v4f no)
{
    return (v4f)((mask & (v4i)yes) | (~mask & (v4i)no));
}

static inline v4f splat4(float x)
{
    return (v4f){x, x, x, x};
}

float mx_logits_max(const float *x, size_t n)
{
    float best[STEP];
    for (int j = 0; j < STEP; j++)
        best[j] = -INFINITY;
    size_t i = 0;
    for (; i + STEP <= n; i += STEP)
        for (int j = 0; j < STEP; j++)
            best[j] = x[i + (size_t)j] > best[j] ? x[i + (size_t)j] : best[j];
    for (; i < n; i++)
        best[0] = x[i] > best[0] ? x[i] : best[0];
    float m = best[0];
    for (int j = 1; j < STEP; j++)
        m = best[j] > m ? best[j] : m;
    return m;
}

/* True when one of x[0..STEP) is at least `floor`. */
static inline bool any_at_least(const float *x, v4f f)
{
    v2i hit =
        (v2i)((load4(x) >= f) | (load4(x + 4) >= f) | (load4(x + 8) >= f) | (load4(x + 12) >= f));
    return (hit[0] | hit[1]) != 0;
}

size_t mx_logits_skip(const float *x, size_t i, size_t n, float floor)
{
    v4f f = splat4(floor);
    while (n - i >= STEP && !any_at_least(x + i, f))
        i += STEP;
    return i;
}

/* libm's exponential: measured against a hand-vectorised polynomial in double (0.70 ms for 248,320
 * logits with 16-byte vectors) it takes 0.87 ms, which does not pay for another exponential. */
static inline double weight(float x, double max, double inv_t)
{
    double t = ((double)x - max) * inv_t;
    return t >= -MX_WEIGHTS_REACH ? exp(t) : 0;
}

void mx_weights(const float *x, size_t n, float max, double inv_t, double *w)
{
    for (size_t i = 0; i < n; i++)
        w[i] = weight(x[i], (double)max, inv_t);
}

double mx_weights_sum(const float *x, size_t n, float max, double inv_t)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += weight(x[i], (double)max, inv_t);
    return sum;
}

/* 2^t for t <= 0: t = k + r with k the nearest integer, left in the low bits by adding 1.5 * 2^23;
 * 2^r by the Taylor polynomial of degree 5 of exp(r ln 2), 2^k by writing the exponent field. Below
 * 2^-126 it returns 2^-126, which no sum that contains the largest weight, 1, can notice.
 *
 * Error bound, u = 2^-24: t carries 3u relative from (x - max), the rounded scale and the product,
 * at |t| <= 126 that is 378u absolute and 378u ln 2 < 1.6e-5 relative in 2^t; the polynomial's
 * remainder (ln(2)/2)^6/6! < 2.5e-6; its evaluation < 12u. Adding BLOCK/16 terms per lane costs
 * less than 32u. Together below 2.2e-5 < MX_WEIGHTS_SLACK, and sums of positive numbers keep the
 * relative error of their terms. */
static inline v4f exp2_single(v4f t)
{
    static const float c[6] = {1.0f,           0x1.62e430p-1f, 0x1.ebfbe0p-3f,
                               0x1.c6b08ep-5f, 0x1.3b2ab6p-7f, 0x1.5d87fep-10f};
    const v4f floor = splat4(-126.0f), round_to_int = splat4(0x1.8p23f);
    t = select4(t >= floor, t, floor);
    v4f z = t + round_to_int;
    v4f r = t - (z - round_to_int);
    v4f e = splat4(c[5]);
    for (int d = 4; d >= 0; d--)
        e = e * r + splat4(c[d]);
    v4u scale = ((v4u)z << 23) + (v4u)splat4(1.0f);
    return e * (v4f)scale;
}

/* Sum of up to BLOCK weights; n is a multiple of STEP. */
static inline double estimate_block(const float *x, size_t n, v4f max, v4f scale)
{
    v4f sum[4] = {splat4(0), splat4(0), splat4(0), splat4(0)};
    for (size_t i = 0; i < n; i += STEP)
        for (int j = 0; j < 4; j++)
            sum[j] += exp2_single((load4(x + i + 4 * j) - max) * scale);
    double total = 0;
    for (int j = 0; j < 16; j++)
        total += (double)sum[j / 4][j % 4];
    return total;
}

double mx_weights_estimate(const float *x, size_t n, float max, double inv_t)
{
    const v4f m = splat4(max), scale = splat4((float)(inv_t * 0x1.71547652b82fep+0));
    double total = 0;
    size_t i = 0, whole = n - n % STEP;
    while (i < whole) {
        size_t take = whole - i < BLOCK ? whole - i : BLOCK;
        total += estimate_block(x + i, take, m, scale);
        i += take;
    }
    float pad[STEP];
    for (size_t j = 0; j < STEP; j++)
        pad[j] = i + j < n ? x[i + j] : -INFINITY;
    return total + estimate_block(pad, STEP, m, scale);
}
