/* The int8 products as panels.h defines them, in plain C: what the vector kernels are checked
 * against, bit for bit, by tests and by the self-check at load. */
#include "base/half.h"
#include "device/cpu/panels.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum {
    OUTS = MX_PANEL_OUTS,
    STEPS = MX_PANEL_BLOCK / 4,
    STEP_BYTES = 4 * OUTS,
};

static int nearest_even(float v)
{
    return (int)rintf(v);
}

static void quantise_group(const float *x, int n, int8_t *code, float *scale, float *sum,
                           int32_t *neg8, int32_t *neg8q)
{
    float top = 0;
    bool finite = true;
    for (int i = 0; i < n; i++) {
        finite = finite && fabsf(x[i]) <= FLT_MAX;
        top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
    }
    bool live = finite && top >= MX_Q8_TINY;
    float inv = live ? 127.0f / top : 0.0f;
    int32_t total = 0;
    for (int i = 0; i < n; i++) {
        code[i] = (int8_t)(live ? nearest_even(x[i] * inv) : 0);
        total += code[i];
        if (i % 16 == 0)
            neg8q[i / 16] = 0;
        neg8q[i / 16] -= 8 * code[i];
    }
    *scale = finite ? (live ? top / 127.0f : 0.0f) : NAN;
    *sum = *scale * (float)total;
    *neg8 = -8 * total;
}

static void scalar_quantise(const float *x, int64_t in, int group, struct mx_q8_block *q)
{
    for (int64_t k = 0; k < in; k += MX_PANEL_BLOCK, q++) {
        float v[MX_PANEL_BLOCK] = {0};
        int64_t n = in - k < MX_PANEL_BLOCK ? in - k : MX_PANEL_BLOCK;
        memcpy(v, x + k, (size_t)n * sizeof *v);
        for (int g = 0; g < 64 / group; g++)
            quantise_group(v + g * group, group, q->code + g * group, q->scale + g, q->sum + g,
                           q->neg8 + g, q->neg8q + g * group / 16);
    }
}

/* Field of `width` bits of a plane: output o, input k of the block. */
static int field(const uint8_t *plane, int width, int o, int k)
{
    int per = 8 / width, step = k / 4;
    return plane[step / per * STEP_BYTES + 4 * o + k % 4] >> (step % per * width) &
           ((1 << width) - 1);
}

static int code_at(int bits, const uint8_t *block, int o, int k)
{
    int plane = STEPS * STEP_BYTES / 8; /* bytes of one bit of all codes */
    switch (bits) {
    case 3: return field(block, 2, o, k) | field(block + 2 * plane, 1, o, k) << 2;
    case 5: return field(block, 4, o, k) | field(block + 4 * plane, 1, o, k) << 4;
    case 6: return field(block, 4, o, k) | field(block + 4 * plane, 2, o, k) << 4;
    default: return field(block, bits, o, k);
    }
}

static float half_at(bool bf16, const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return bf16 ? mx_bf16_to_f32(h) : mx_f16_to_f32(h);
}

/* Scale and bias of sub-block s of output o; `p` behind the codes, `head` at the header. */
static void scales_at(const struct mx_panels *p, const uint8_t *sc, const uint8_t *head, int s,
                      int o, float *scale, float *bias)
{
    *bias = 0;
    switch (p->scaling) {
    case MX_PANEL_AFFINE:
        *scale = half_at(p->bf16, sc + 4 * OUTS * s + 2 * o);
        *bias = half_at(p->bf16, sc + 4 * OUTS * s + 2 * OUTS + 2 * o);
        return;
    case MX_PANEL_SCALED: *scale = half_at(false, sc + 2 * OUTS * s + 2 * o); return;
    case MX_PANEL_SUPER:
        *scale = half_at(false, head + 2 * o) * (float)sc[2 * OUTS * s + o];
        *bias = -half_at(false, head + 2 * OUTS + 2 * o) * (float)sc[2 * OUTS * s + OUTS + o];
        return;
    case MX_PANEL_SUPER6:
        *scale = half_at(false, head + 2 * o) * (float)(int8_t)sc[OUTS * s + o];
        return;
    }
}

static float block_sum(const struct mx_panels *p, const uint8_t *block, const uint8_t *head, int o,
                       const struct mx_q8_block *x, float acc)
{
    int per = MX_PANEL_BLOCK / p->subs;
    bool zero = p->scaling == MX_PANEL_SCALED || p->scaling == MX_PANEL_SUPER6;
    for (int s = 0; s < p->subs; s++) {
        int32_t isum = 0, xsum = 0;
        for (int k = s * per; k < (s + 1) * per; k++) {
            isum += code_at(p->bits, block, o, k) * x->code[k];
            xsum += x->code[k];
        }
        if (zero)
            isum -= (8 << p->zero_shift) * xsum;
        float scale = 0, bias;
        int g = p->subs == 4 ? s / 2 : s;
        scales_at(p, block + p->bits * STEPS * STEP_BYTES / 8, head, s, o, &scale, &bias);
        acc = fmaf(scale * x->scale[g], (float)isum, acc);
        if (p->scaling == MX_PANEL_AFFINE || p->scaling == MX_PANEL_SUPER)
            acc = fmaf(bias, x->sum[g], acc);
    }
    return acc;
}

static float output(const struct mx_panels *p, int64_t o, const struct mx_q8_block *x)
{
    const uint8_t *at = p->data + (size_t)(o / OUTS) * p->panel_bytes, *head = at;
    float acc = 0;
    for (int64_t b = 0; b < p->blocks; b++, at += p->block_bytes) {
        if (p->header_bytes && b % 4 == 0) {
            head = at;
            at += p->header_bytes;
        }
        acc = block_sum(p, at, head, (int)(o % OUTS), x + b, acc);
    }
    return acc;
}

static void scalar_product(const struct mx_panels *p, int64_t first, int64_t n,
                           const struct mx_q8_block *q, int64_t ldq, int rows, float *y,
                           int64_t ldy)
{
    int64_t end = (first + n) * OUTS < p->out ? (first + n) * OUTS : p->out;
    for (int r = 0; r < rows; r++)
        for (int64_t o = first * OUTS; o < end; o++)
            y[r * ldy + o] = output(p, o, q + r * ldq);
}

const struct mx_q8_kernels mx_q8_scalar = {
    .name = "scalar",
    .quantise = scalar_quantise,
    .product = scalar_product,
};
