/* What kernels over panels share, whatever multiplies: the codes of a step, the scales of a
 * sub-block, the term of the zero point. Over the vocabulary of q8_body.h, which the including file
 * defines. */
#ifndef MX_DEVICE_CPU_Q8_SHAPE_H
#define MX_DEVICE_CPU_Q8_SHAPE_H

#include "device/cpu/panels.h"

#include <string.h>

#define ALWAYS static inline __attribute__((always_inline))
/* Instrumented loops of gcc are no loops that it knows how to unroll, which it warns about. */
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define STEP_BYTES (4 * MX_PANEL_OUTS)
#define STEPS (MX_PANEL_BLOCK / 4)
#define SUPER_BLOCKS 4

/* What is fixed at compile time in every instance. */
struct q8_shape {
    int bits;
    enum mx_panel_scaling scaling;
    int subs, zero_shift, rows;
};

/* Bytes of the codes of a block. */
ALWAYS int code_bytes(int bits)
{
    return bits * STEPS * STEP_BYTES / 8;
}

/* Field `width` bits wide of a plane at step `i`, moved to bit `to`. */
ALWAYS struct qw plane_field(const uint8_t *plane, int width, int i, int to)
{
    int per = 8 / width, at = i % per * width;
    struct qw v = w_load(plane + i / per * STEP_BYTES);
    if (at > to)
        v = w_down(v, at - to);
    else if (at < to)
        v = w_up(v, to - at);
    return w_and(v, ((1 << width) - 1) << to);
}

/* Codes of step `i`; `p` stands at the block's first vector plus the lanes wanted. */
ALWAYS struct qw step_codes(int bits, const uint8_t *p, int i)
{
    switch (bits) {
    case 2: return plane_field(p, 2, i, 0);
    case 3: return w_or(plane_field(p, 2, i, 0), plane_field(p + code_bytes(2), 1, i, 2));
    case 4: return plane_field(p, 4, i, 0);
    case 5: return w_or(plane_field(p, 4, i, 0), plane_field(p + code_bytes(4), 1, i, 4));
    case 6: return w_or(plane_field(p, 4, i, 0), plane_field(p + code_bytes(4), 2, i, 4));
    default: return w_load(p + i * STEP_BYTES);
    }
}

/* Scale and, for kinds that have one, bias of sub-block `s`; `p` stands behind the codes. */
struct q8_scales {
    struct qf scale, bias;
};

ALWAYS struct q8_scales load_scales(struct q8_shape sh, bool bf16, const uint8_t *p, int s,
                                    int lane, struct qf d, struct qf dmin)
{
    struct q8_scales r;
    switch (sh.scaling) {
    case MX_PANEL_AFFINE:
        p += s * 4 * MX_PANEL_OUTS + 2 * lane;
        r.scale = f_half(bf16, p);
        r.bias = f_half(bf16, p + 2 * MX_PANEL_OUTS);
        return r;
    case MX_PANEL_SCALED:
        r.scale = r.bias = f_half(false, p + s * 2 * MX_PANEL_OUTS + 2 * lane);
        return r;
    case MX_PANEL_SUPER:
        p += s * 2 * MX_PANEL_OUTS + lane;
        r.scale = f_mul(d, f_u8(p));
        r.bias = f_mul(dmin, f_u8(p + MX_PANEL_OUTS));
        return r;
    default: r.scale = r.bias = f_mul(d, f_i8(p + s * MX_PANEL_OUTS + lane)); return r;
    }
}

/* What the zero point subtracts, -zero * sum of the sub-block's activations, and what signed codes
 * lack. */
ALWAYS int32_t zero_term(struct q8_shape sh, const struct mx_q8_block *x, int s)
{
    int32_t lost = Q_SIGNED && sh.bits == 8 ? -16 * x->neg8[s] : 0;
    if (sh.scaling == MX_PANEL_SCALED)
        return x->neg8[s] * (1 << sh.zero_shift) + lost;
    if (sh.scaling == MX_PANEL_SUPER6)
        return x->neg8q[s] * (1 << sh.zero_shift);
    return lost;
}

#endif
