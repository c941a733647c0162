/* AArch64 vocabulary of q8_body.h for processors with dot products: a vector is half a step, eight
 * outputs in two registers. The including file defines Q_SIGNED (1: sdot, which takes both sides as
 * signed; 0: usdot of the i8mm extension), Q_NAME and Q_TABLE. */
#include "device/cpu/panels.h"

#include <arm_neon.h>
#include <float.h>
#include <math.h>

#define Q_LANES 8
#define Q_ROWS 4
#define Q_FLUSH(bits) 16

#define INLINE static inline __attribute__((always_inline))

struct qw {
    uint8x16_t a, b;
};
struct qi {
    int32x4_t a, b;
};
struct qf {
    float32x4_t a, b;
};

INLINE struct qw w_load(const uint8_t *p)
{
    return (struct qw){vld1q_u8(p), vld1q_u8(p + 16)};
}

INLINE struct qw w_and(struct qw w, int mask)
{
    uint8x16_t m = vdupq_n_u8((uint8_t)mask);
    return (struct qw){vandq_u8(w.a, m), vandq_u8(w.b, m)};
}

INLINE struct qw w_or(struct qw v, struct qw w)
{
    return (struct qw){vorrq_u8(v.a, w.a), vorrq_u8(v.b, w.b)};
}

INLINE struct qw w_down(struct qw w, int n)
{
    int8x16_t by = vdupq_n_s8((int8_t)-n);
    return (struct qw){vshlq_u8(w.a, by), vshlq_u8(w.b, by)};
}

INLINE struct qw w_up(struct qw w, int n)
{
    int8x16_t by = vdupq_n_s8((int8_t)n);
    return (struct qw){vshlq_u8(w.a, by), vshlq_u8(w.b, by)};
}

INLINE struct qi i_start(int32_t n)
{
    return (struct qi){vdupq_n_s32(n), vdupq_n_s32(n)};
}

INLINE int32x4_t dot4(int bits, int32x4_t acc, uint8x16_t w, int8x16_t x)
{
#if Q_SIGNED
    if (bits == 8)
        w = veorq_u8(w, vdupq_n_u8(0x80));
    return vdotq_s32(acc, vreinterpretq_s8_u8(w), x);
#else
    (void)bits;
    return vusdotq_s32(acc, w, x);
#endif
}

INLINE struct qi i_dot(int bits, struct qi acc, struct qw w, const int8_t *x)
{
    int32_t four;
    __builtin_memcpy(&four, x, sizeof four);
    int8x16_t xv = vreinterpretq_s8_s32(vdupq_n_s32(four));
    return (struct qi){dot4(bits, acc.a, w.a, xv), dot4(bits, acc.b, w.b, xv)};
}

INLINE struct qi i_flush(int bits, struct qi acc)
{
    (void)bits;
    return acc;
}

INLINE struct qf i_float(struct qi acc)
{
    return (struct qf){vcvtq_f32_s32(acc.a), vcvtq_f32_s32(acc.b)};
}

INLINE struct qf f_set1(float f)
{
    return (struct qf){vdupq_n_f32(f), vdupq_n_f32(f)};
}

INLINE struct qf f_zero(void)
{
    return f_set1(0.0f);
}

INLINE struct qf f_mul(struct qf x, struct qf y)
{
    return (struct qf){vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b)};
}

INLINE struct qf f_fma(struct qf x, struct qf y, struct qf z)
{
    return (struct qf){vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b)};
}

INLINE struct qf f_half(bool bf16, const uint8_t *p)
{
    uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8(p));
    if (bf16)
        return (struct qf){vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)),
                           vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(h), 16))};
    float16x8_t f = vreinterpretq_f16_u16(h);
    return (struct qf){vcvt_f32_f16(vget_low_f16(f)), vcvt_f32_f16(vget_high_f16(f))};
}

INLINE struct qf f_u8(const uint8_t *p)
{
    uint16x8_t h = vmovl_u8(vld1_u8(p));
    return (struct qf){vcvtq_f32_u32(vmovl_u16(vget_low_u16(h))),
                       vcvtq_f32_u32(vmovl_u16(vget_high_u16(h)))};
}

INLINE struct qf f_i8(const uint8_t *p)
{
    int16x8_t h = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
    return (struct qf){vcvtq_f32_s32(vmovl_s16(vget_low_s16(h))),
                       vcvtq_f32_s32(vmovl_s16(vget_high_s16(h)))};
}

INLINE void f_store(float *p, struct qf v)
{
    vst1q_f32(p, v.a);
    vst1q_f32(p + 4, v.b);
}

INLINE void f_store_n(float *p, int n, struct qf v)
{
    float lanes[Q_LANES];
    f_store(lanes, v);
    for (int i = 0; i < n; i++)
        p[i] = lanes[i];
}

/* ---- Activations ---------------------------------------------------------------------------- */

/* 16 floats to codes; returns their sum. */
INLINE int32_t codes16(const float *x, float inv, int8_t *code)
{
    int32x4_t q[4];
    for (int i = 0; i < 4; i++)
        q[i] = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4 * i), inv));
    int16x8_t lo = vcombine_s16(vqmovn_s32(q[0]), vqmovn_s32(q[1]));
    int16x8_t hi = vcombine_s16(vqmovn_s32(q[2]), vqmovn_s32(q[3]));
    vst1q_s8(code, vcombine_s8(vqmovn_s16(lo), vqmovn_s16(hi)));
    return vaddvq_s32(vaddq_s32(vaddq_s32(q[0], q[1]), vaddq_s32(q[2], q[3])));
}

/* Largest magnitude of n floats, found among bit patterns, where infinities and NaN are larger than
 * all numbers. */
INLINE float largest(const float *x, int n)
{
    uint32x4_t most = vdupq_n_u32(0);
    for (int i = 0; i < n; i += 4)
        most = vmaxq_u32(most, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + i))));
    uint32_t bits = vmaxvq_u32(most);
    float top;
    __builtin_memcpy(&top, &bits, sizeof top);
    return top;
}

#include "device/cpu/q8_quantise.h"

#include "device/cpu/q8_body.h"
