/* AArch64 NEON vocabulary of kernels_body.h: a v16 is four registers of 4 lanes. */
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

struct v16 {
    float32x4_t q[4];
};

#define EACH for (int i = 0; i < 4; i++)

static inline struct v16 v_set1(float f)
{
    float32x4_t v = vdupq_n_f32(f);
    return (struct v16){{v, v, v, v}};
}

static inline struct v16 v_zero(void)
{
    return v_set1(0.0f);
}

static inline struct v16 v_load(const float *p)
{
    return (struct v16){{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
}

static inline void v_store(float *p, struct v16 x)
{
    EACH vst1q_f32(p + 4 * i, x.q[i]);
}

static inline struct v16 v_load_n(const float *p, int n)
{
    float lanes[16] = {0};
    memcpy(lanes, p, (size_t)n * sizeof *p);
    return v_load(lanes);
}

static inline void v_store_n(float *p, int n, struct v16 x)
{
    float lanes[16];
    v_store(lanes, x);
    memcpy(p, lanes, (size_t)n * sizeof *p);
}

static inline struct v16 v_add(struct v16 x, struct v16 y)
{
    EACH x.q[i] = vaddq_f32(x.q[i], y.q[i]);
    return x;
}

static inline struct v16 v_sub(struct v16 x, struct v16 y)
{
    EACH x.q[i] = vsubq_f32(x.q[i], y.q[i]);
    return x;
}

static inline struct v16 v_mul(struct v16 x, struct v16 y)
{
    EACH x.q[i] = vmulq_f32(x.q[i], y.q[i]);
    return x;
}

static inline struct v16 v_div(struct v16 x, struct v16 y)
{
    EACH x.q[i] = vdivq_f32(x.q[i], y.q[i]);
    return x;
}

static inline struct v16 v_fma(struct v16 x, struct v16 y, struct v16 z)
{
    EACH z.q[i] = vfmaq_f32(z.q[i], x.q[i], y.q[i]);
    return z;
}

/* Compare and select, because vmaxq_f32 treats NaN differently. */
static inline struct v16 v_max(struct v16 x, struct v16 y)
{
    EACH y.q[i] = vbslq_f32(vcgtq_f32(x.q[i], y.q[i]), x.q[i], y.q[i]);
    return y;
}

static inline struct v16 v_min(struct v16 x, struct v16 y)
{
    EACH y.q[i] = vbslq_f32(vcltq_f32(x.q[i], y.q[i]), x.q[i], y.q[i]);
    return y;
}

static inline struct v16 v_select_gt(struct v16 x, struct v16 limit, struct v16 y, struct v16 z)
{
    EACH z.q[i] = vbslq_f32(vcgtq_f32(x.q[i], limit.q[i]), y.q[i], z.q[i]);
    return z;
}

static inline struct v16 v_exp2_bits(struct v16 m)
{
    EACH
    {
        int32x4_t bits = vaddq_s32(vreinterpretq_s32_f32(m.q[i]), vdupq_n_s32(127));
        m.q[i] = vreinterpretq_f32_s32(vshlq_n_s32(bits, 23));
    }
    return m;
}

/* 16 lanes to 4: (i, i+8), then (i, i+4). */
static inline float32x4_t fold_to_4(struct v16 x)
{
    return vaddq_f32(vaddq_f32(x.q[0], x.q[2]), vaddq_f32(x.q[1], x.q[3]));
}

/* (i, i+2) of two vectors: two sums of x, then two of y. */
static inline float32x4_t fold_to_2(float32x4_t x, float32x4_t y)
{
    return vaddq_f32(vcombine_f32(vget_low_f32(x), vget_low_f32(y)),
                     vcombine_f32(vget_high_f32(x), vget_high_f32(y)));
}

static inline void v_sum4(struct v16 a, struct v16 b, struct v16 c, struct v16 d, float out[4])
{
    float32x4_t ab = fold_to_2(fold_to_4(a), fold_to_4(b));
    float32x4_t cd = fold_to_2(fold_to_4(c), fold_to_4(d));
    vst1q_f32(out, vpaddq_f32(ab, cd));
}

static inline float v_sum(struct v16 a)
{
    float out[4];
    v_sum4(a, a, a, a, out);
    return out[0];
}

static inline float v_hmax(struct v16 a)
{
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.q[0], a.q[1]), vmaxq_f32(a.q[2], a.q[3])));
}

static inline struct v16 v_bf16(const void *p)
{
    struct v16 r;
    uint16x8_t h[2];
    memcpy(h, p, sizeof h);
    EACH
    {
        uint16x4_t part = i % 2 ? vget_high_u16(h[i / 2]) : vget_low_u16(h[i / 2]);
        r.q[i] = vreinterpretq_f32_u32(vshll_n_u16(part, 16));
    }
    return r;
}

static inline struct v16 v_f16(const void *p)
{
    struct v16 r;
    uint16x4_t h[4];
    memcpy(h, p, sizeof h);
    EACH r.q[i] = vcvt_f32_f16(vreinterpret_f16_u16(h[i]));
    return r;
}

static inline float f_f16(const void *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h))), 0);
}

static inline void v_to_f16(struct v16 x, void *p)
{
    uint16x4_t h[4];
    EACH h[i] = vreinterpret_u16_f16(vcvt_f16_f32(x.q[i]));
    memcpy(p, h, sizeof h);
}

struct vpart {
    float32x4_t q[2];
};

static inline struct vpart p_load(const float *p)
{
    return (struct vpart){{vld1q_f32(p), vld1q_f32(p + 4)}};
}

static inline struct vpart p_zero(void)
{
    return (struct vpart){{vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)}};
}

static inline struct vpart p_fma(struct vpart x, struct vpart y, struct vpart z)
{
    z.q[0] = vfmaq_f32(z.q[0], x.q[0], y.q[0]);
    z.q[1] = vfmaq_f32(z.q[1], x.q[1], y.q[1]);
    return z;
}

static inline struct v16 v_join(const struct vpart p[2])
{
    return (struct v16){{p[0].q[0], p[0].q[1], p[1].q[0], p[1].q[1]}};
}

struct affine {
    float32x4_t scale, bias;
};

static inline struct affine affine_of(int bits, float scale, float bias)
{
    (void)bits;
    return (struct affine){vdupq_n_f32(scale), vdupq_n_f32(bias)};
}

/* For codes 4i .. 4i+3: the bytes each lane takes (255: none, reads as 0) and how far it shifts. */
#define BYTES(bits, i) (bits) * (i) / 8, (bits) * (i) / 8 + 1, 255, 255
#define BYTES4(bits, i)                                                                            \
    BYTES(bits, i), BYTES(bits, (i) + 1), BYTES(bits, (i) + 2), BYTES(bits, (i) + 3)
#define SHIFT(bits, i) -((bits) * (i) % 8)
#define SHIFT4(bits, i)                                                                            \
    SHIFT(bits, i), SHIFT(bits, (i) + 1), SHIFT(bits, (i) + 2), SHIFT(bits, (i) + 3)
struct spread {
    uint8_t bytes[64];
    int32_t shifts[16];
};
#define SPREAD(bits)                                                                               \
    {                                                                                              \
        {BYTES4(bits, 0), BYTES4(bits, 4), BYTES4(bits, 8), BYTES4(bits, 12)},                     \
        {                                                                                          \
            SHIFT4(bits, 0), SHIFT4(bits, 4), SHIFT4(bits, 8), SHIFT4(bits, 12)                    \
        }                                                                                          \
    }
static const struct spread spreads[9] = {
    [2] = SPREAD(2), [3] = SPREAD(3), [4] = SPREAD(4),
    [5] = SPREAD(5), [6] = SPREAD(6), [8] = SPREAD(8),
};

static inline __attribute__((always_inline)) struct v16 v_codes(int bits, const uint8_t *p,
                                                                struct affine a)
{
    uint8_t padded[16] = {0};
    memcpy(padded, p, (size_t)(2 * bits)); /* exactly the bytes of 16 codes */
    uint8x16_t all = vld1q_u8(padded);
    uint32x4_t mask = vdupq_n_u32((1u << bits) - 1);
    const struct spread *s = &spreads[bits];
    struct v16 r;
    EACH
    {
        uint32x4_t q = vreinterpretq_u32_u8(vqtbl1q_u8(all, vld1q_u8(s->bytes + 16 * i)));
        q = vandq_u32(vshlq_u32(q, vld1q_s32(s->shifts + 4 * i)), mask);
        r.q[i] = vfmaq_f32(a.bias, vcvtq_f32_u32(q), a.scale);
    }
    return r;
}

#define V_ISA "neon"
#define V_TABLE mx_kernels_neon
#define V_KV_F16 1
#define V_PARTS 2
#define V_OUTS 4
#define V_ROWS 3
#define V_DIRECT_BLOCK 6
#define V_DIRECT_ROWS 6
#define V_DIRECT_OUTS(kind, rows) ((rows) > 2 ? 1 : ((kind) <= 8 ? 2 : 4) / (rows))
#define V_MIX 4
#define V_SCAN 1
#include "device/cpu/kernels_body.h"
