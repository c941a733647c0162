/* Softmax weights of a row of logits.
 *
 * A vocabulary has up to 250,000 entries and a speculative cycle needs the sum of the weights for
 * every drafted and every verified row, so the exponential is the price of sampling. Versions:
 *
 *   exact      double precision, for the weights that become probabilities of a filtered row and
 * for the sum when a decision is close; estimate   single precision with a proved error bound, for
 * the sum when it only has to tell that a mass is clearly below or clearly above top_p; bounds from
 * the largest logit of every block alone, for the same when that is enough; single     single
 * precision for the weights of an unfiltered row (runtime/wide.h).
 *
 * The single-precision ones are written with the vector extension that gcc and clang share, so that
 * they need no build flags and their lanes, hence the order of every addition, are fixed by the
 * source: a row has the same weights on every machine.
 *
 * Invariants
 *  1. Sums run in one fixed order; a tail is padded with -inf (weight 0).
 *  2. Comparisons are written so that NaN fails them and is treated like -inf. */
#include "runtime/weights.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef float v4f __attribute__((vector_size(16)));
typedef double v4d __attribute__((vector_size(32)));
typedef int32_t v4i __attribute__((vector_size(16)));
typedef int64_t v2i __attribute__((vector_size(16)));
typedef uint32_t v4u __attribute__((vector_size(16)));

enum {
    BLOCK = MX_WEIGHTS_BLOCK, /* floats added in single precision before they go to a double */
    STEP = MX_LOGITS_BLOCK,   /* floats per step of the vector loops */
};

static inline v4f load4(const float *x)
{
    v4f v;
    memcpy(&v, x, sizeof v);
    return v;
}

static inline v4f splat4(float x)
{
    return (v4f){x, x, x, x};
}

/* a where it is greater, else b: so b where a is NaN. Spelled by lane, which compilers turn into
 * the machine's maximum; they do not do that for masks. */
static inline v4f max4(v4f a, v4f b)
{
    v4f m;
    for (int j = 0; j < 4; j++)
        m[j] = a[j] > b[j] ? a[j] : b[j];
    return m;
}

float mx_logits_max(const float *x, size_t n)
{
    v4f a = splat4(-INFINITY), b = a, c = a, d = a;
    size_t i = 0;
    for (; i + STEP <= n; i += STEP) {
        a = max4(load4(x + i), a);
        b = max4(load4(x + i + 4), b);
        c = max4(load4(x + i + 8), c);
        d = max4(load4(x + i + 12), d);
    }
    a = max4(max4(a, b), max4(c, d));
    float m = -INFINITY;
    for (int j = 0; j < 4; j++)
        m = a[j] > m ? a[j] : m;
    for (; i < n; i++)
        m = x[i] > m ? x[i] : m;
    return m;
}

float mx_logits_block_max(const float *x, size_t n, float *max)
{
    float most = -INFINITY;
    for (size_t i = 0; i < n; i += BLOCK) {
        float m = mx_logits_max(x + i, n - i < BLOCK ? n - i : BLOCK);
        max[i / BLOCK] = m;
        most = m > most ? m : most;
    }
    return most;
}

size_t mx_logits_argmax(const float *x, size_t n)
{
    float most = -INFINITY;
    size_t block = 0;
    for (size_t i = 0; i < n; i += BLOCK) {
        float m = mx_logit_clamp(mx_logits_max(x + i, n - i < BLOCK ? n - i : BLOCK));
        if (m > most) {
            most = m;
            block = i;
        }
    }
    for (size_t i = block; i < n && most > -INFINITY; i++)
        if (x[i] >= most)
            return i;
    return 0;
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

/* 2^t for t <= 0, and 0 for t below -126, -inf and NaN: t = k + r with k the nearest integer, left
 * in the low bits by adding 1.5 * 2^23; 2^r by a polynomial, 2^k by adding to the exponent field.
 *
 * Error, u = 2^-24: r is exact. The polynomial is the minimax one of degree 5 for the relative
 * error (7.5e-8) with rounded coefficients, together below 1.6e-7 (tests/unit/test_sampler.c
 * measures it); evaluating it costs less than 3u, so 2^t has less than 4e-7. */
static inline v4f exp2_single(v4f t)
{
    static const float c[6] = {1.0f,           0x1.62e428p-1f, 0x1.ebf918p-3f,
                               0x1.c6b6e4p-5f, 0x1.3d0c52p-7f, 0x1.5c08e6p-10f};
    const v4f round_to_int = splat4(0x1.8p23f);
    v4i normal = t >= splat4(-126.0f);
    v4f z = t + round_to_int;
    v4f r = t - (z - round_to_int);
    v4f e = splat4(c[5]);
    for (int d = 4; d >= 0; d--)
        e = e * r + splat4(c[d]);
    return (v4f)((((v4u)z << 23) + (v4u)e) & (v4u)normal);
}

/* Sum of up to BLOCK weights; n is a multiple of STEP.
 *
 * Error bound of the estimate: t carries 3u relative from (x - max), the rounded scale and the
 * product, at |t| <= 126 that is 378u absolute and 378u ln 2 < 1.6e-5 relative in 2^t; the
 * exponential less than 4e-7; adding BLOCK/16 terms per lane less than 32u = 2e-6. Together below
 * 2e-5 < MX_WEIGHTS_SLACK, and sums of positive numbers keep the relative error of their terms.
 * What is cut off below 2^-126 no sum that contains the largest weight, 1, can notice. */
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

/* The STEP logits at x[i] of which n are there, padded with weight 0. */
static inline void pad_tail(const float *x, size_t i, size_t n, float pad[STEP])
{
    for (size_t j = 0; j < STEP; j++)
        pad[j] = i + j < n ? x[i + j] : -INFINITY;
}

static inline float log2_scale(double inv_t)
{
    return (float)(inv_t * 0x1.71547652b82fep+0);
}

double mx_weights_estimate(const float *x, size_t n, float max, double inv_t)
{
    const v4f m = splat4(max), scale = splat4(log2_scale(inv_t));
    double total = 0;
    size_t i = 0, whole = n - n % STEP;
    while (i < whole) {
        size_t take = whole - i < BLOCK ? whole - i : BLOCK;
        total += estimate_block(x + i, take, m, scale);
        i += take;
    }
    float pad[STEP];
    pad_tail(x, i, n, pad);
    return total + estimate_block(pad, STEP, m, scale);
}

void mx_weights_bounds(const float *x, const float *block_max, size_t n, float max, double inv_t,
                       double *low, double *high)
{
    const double negligible = 1e-4; /* beside the largest weight, 1: 500 blocks are 5 percent */
    double known = 0, least = 0, most = 0;
    for (size_t b = 0; b < mx_weights_blocks(n); b++) {
        size_t at = b * BLOCK, size = n - at < BLOCK ? n - at : BLOCK;
        double w = weight(block_max[b], (double)max, inv_t), bound = w * (double)size;
        if (bound > negligible) {
            known += mx_weights_estimate(x + at, size, max, inv_t);
        } else {
            least += w;
            most += bound;
        }
    }
    *low = known * (1 - MX_WEIGHTS_SLACK) + least * (1 - 1e-12);
    *high = known * (1 + MX_WEIGHTS_SLACK) + most * (1 + 1e-12);
}

/* Weights of 4 logits to w; adds them to *sum in double precision. */
static inline void single4(const float *x, v4f max, v4f scale, float *w, v4d *sum)
{
    v4f e = exp2_single((load4(x) - max) * scale);
    memcpy(w, &e, sizeof e);
    *sum += __builtin_convertvector(e, v4d);
}

double mx_weights_single(const float *x, size_t n, float max, double inv_t, float *w)
{
    const v4f m = splat4(max), scale = splat4(log2_scale(inv_t));
    v4d a = {0, 0, 0, 0}, b = {0, 0, 0, 0};
    size_t i = 0;
    for (; i + STEP <= n; i += STEP) {
        single4(x + i, m, scale, w + i, &a);
        single4(x + i + 4, m, scale, w + i + 4, &b);
        single4(x + i + 8, m, scale, w + i + 8, &a);
        single4(x + i + 12, m, scale, w + i + 12, &b);
    }
    if (i < n) {
        float pad[STEP], out[STEP];
        pad_tail(x, i, n, pad);
        for (size_t j = 0; j < STEP; j += 4)
            single4(pad + j, m, scale, out + j, &a);
        memcpy(w + i, out, (n - i) * sizeof *w);
    }
    a += b;
    return (a[0] + a[1]) + (a[2] + a[3]);
}
