/* Portable vocabulary of kernels_body.h: four vectors of 4 floats in the extension of gcc and
 * clang, which becomes SSE2, NEON or plain scalar code. No fused multiply-add, so results differ in
 * the last bits from the other sets. */
#include "base/half.h"

#include <stdint.h>
#include <string.h>

struct vpart {
    float v __attribute__((vector_size(16)));
};

struct v16 {
    struct vpart p[4];
};

#define INLINE static inline __attribute__((always_inline))
#define PARTS for (int i = 0; i < 4; i++)
#define LANES for (int i = 0; i < 16; i++)

INLINE struct vpart p_load(const float *p)
{
    struct vpart r;
    memcpy(&r, p, sizeof r);
    return r;
}

INLINE struct vpart p_zero(void)
{
    return (struct vpart){{0.0f, 0.0f, 0.0f, 0.0f}};
}

INLINE struct vpart p_fma(struct vpart a, struct vpart b, struct vpart c)
{
    return (struct vpart){a.v * b.v + c.v};
}

INLINE struct v16 v_join(const struct vpart p[4])
{
    return (struct v16){{p[0], p[1], p[2], p[3]}};
}

INLINE struct v16 v_set1(float f)
{
    struct vpart p = {{f, f, f, f}};
    return (struct v16){{p, p, p, p}};
}

INLINE struct v16 v_zero(void)
{
    return v_set1(0.0f);
}

INLINE struct v16 v_load(const float *p)
{
    return (struct v16){{p_load(p), p_load(p + 4), p_load(p + 8), p_load(p + 12)}};
}

INLINE void v_store(float *p, struct v16 a)
{
    memcpy(p, &a, sizeof a);
}

INLINE struct v16 v_load_n(const float *p, int n)
{
    float lanes[16] = {0};
    memcpy(lanes, p, (size_t)n * sizeof *p);
    return v_load(lanes);
}

INLINE void v_store_n(float *p, int n, struct v16 a)
{
    memcpy(p, &a, (size_t)n * sizeof *p);
}

INLINE struct v16 v_add(struct v16 a, struct v16 b)
{
    PARTS a.p[i].v += b.p[i].v;
    return a;
}

INLINE struct v16 v_sub(struct v16 a, struct v16 b)
{
    PARTS a.p[i].v -= b.p[i].v;
    return a;
}

INLINE struct v16 v_mul(struct v16 a, struct v16 b)
{
    PARTS a.p[i].v *= b.p[i].v;
    return a;
}

INLINE struct v16 v_div(struct v16 a, struct v16 b)
{
    PARTS a.p[i].v /= b.p[i].v;
    return a;
}

INLINE struct v16 v_fma(struct v16 a, struct v16 b, struct v16 c)
{
    PARTS c.p[i] = p_fma(a.p[i], b.p[i], c.p[i]);
    return c;
}

/* Comparing vectors gives -1 or 0 per lane; casting one to another type keeps its bits. */
struct bits4 {
    int32_t v __attribute__((vector_size(16)));
};

INLINE struct vpart p_pick(struct bits4 mask, struct vpart a, struct vpart b)
{
    struct bits4 bits = {(mask.v & (__typeof__(mask.v))a.v) | (~mask.v & (__typeof__(mask.v))b.v)};
    return (struct vpart){(__typeof__(a.v))bits.v};
}

INLINE struct v16 v_select_gt(struct v16 x, struct v16 limit, struct v16 a, struct v16 b)
{
    PARTS
    {
        struct bits4 mask = {x.p[i].v > limit.p[i].v};
        b.p[i] = p_pick(mask, a.p[i], b.p[i]);
    }
    return b;
}

INLINE struct v16 v_max(struct v16 a, struct v16 b)
{
    return v_select_gt(a, b, a, b);
}

INLINE struct v16 v_min(struct v16 a, struct v16 b)
{
    return v_select_gt(b, a, a, b);
}

INLINE struct v16 v_exp2_bits(struct v16 m)
{
    PARTS
    {
        struct bits4 bits = {(__typeof__(bits.v))m.p[i].v};
        bits.v = (bits.v + 127) << 23;
        m.p[i].v = (__typeof__(m.p[i].v))bits.v;
    }
    return m;
}

INLINE float v_sum(struct v16 a)
{
    struct vpart s = {(a.p[0].v + a.p[2].v) + (a.p[1].v + a.p[3].v)};
    return (s.v[0] + s.v[2]) + (s.v[1] + s.v[3]);
}

INLINE void v_sum4(struct v16 a, struct v16 b, struct v16 c, struct v16 d, float out[4])
{
    out[0] = v_sum(a);
    out[1] = v_sum(b);
    out[2] = v_sum(c);
    out[3] = v_sum(d);
}

INLINE float v_hmax(struct v16 a)
{
    float lanes[16];
    v_store(lanes, a);
    float most = lanes[0];
    LANES most = lanes[i] > most ? lanes[i] : most;
    return most;
}

INLINE struct v16 v_bf16(const void *p)
{
    uint16_t h[16];
    uint32_t bits[16];
    struct v16 r;
    memcpy(h, p, sizeof h);
    LANES bits[i] = (uint32_t)h[i] << 16;
    memcpy(&r, bits, sizeof r);
    return r;
}

INLINE struct v16 v_f16(const void *p)
{
    uint16_t h[16];
    float lanes[16];
    memcpy(h, p, sizeof h);
    LANES lanes[i] = mx_f16_to_f32(h[i]);
    return v_load(lanes);
}

INLINE float f_f16(const void *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return mx_f16_to_f32(h);
}

struct affine {
    float scale, bias;
};

INLINE struct affine affine_of(int bits, float scale, float bias)
{
    (void)bits;
    return (struct affine){scale, bias};
}

/* Four codes out of a window of bits; built in registers, because four narrow stores and a wide
 * load would stall. */
#define CODE(w, bits, i) (float)(int32_t)((w) >> (bits) * (i)&mask)
#define CODES4(w, bits, i)                                                                         \
    {                                                                                              \
        {                                                                                          \
            CODE(w, bits, i), CODE(w, bits, (i) + 1), CODE(w, bits, (i) + 2),                      \
                CODE(w, bits, (i) + 3)                                                             \
        }                                                                                          \
    }

/* 8 codes are `bits` whole bytes. */
INLINE uint64_t window(int bits, const uint8_t *p)
{
    uint64_t w = 0;
    for (int i = 0; i < bits; i++)
        w |= (uint64_t)p[i] << (8 * i);
    return w;
}

INLINE struct v16 v_codes(int bits, const uint8_t *p, struct affine a)
{
    if (bits == 8) { /* compilers widen whole bytes well */
        float lanes[16];
        LANES lanes[i] = (float)p[i];
        return v_fma(v_load(lanes), v_set1(a.scale), v_set1(a.bias));
    }
    uint32_t mask = (1u << bits) - 1;
    uint64_t lo = window(bits, p), hi = window(bits, p + bits);
    struct v16 q = {
        {CODES4(lo, bits, 0), CODES4(lo, bits, 4), CODES4(hi, bits, 0), CODES4(hi, bits, 4)}};
    return v_fma(q, v_set1(a.scale), v_set1(a.bias));
}

#define V_ISA "generic"
#define V_TABLE mx_kernels_generic
#define V_KV_F16 0
#define V_PARTS 4
#define V_OUTS 2
#define V_ROWS 4
#define V_DIRECT_BLOCK 2
#define V_DIRECT_ROWS 2
#define V_DIRECT_OUTS(kind, rows) (2 / (rows))
#define V_MIX 2
#define V_SCAN 1
#include "device/cpu/kernels_body.h"
