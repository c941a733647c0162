/* AVX-512 (F, BW, VL, DQ) vocabulary of kernels_body.h: a v16 is one register. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

struct v16 {
    __m512 v;
};

static inline struct v16 wrap(__m512 v)
{
    return (struct v16){v};
}

static inline struct v16 v_zero(void)
{
    return wrap(_mm512_setzero_ps());
}

static inline struct v16 v_set1(float f)
{
    return wrap(_mm512_set1_ps(f));
}

static inline struct v16 v_load(const float *p)
{
    return wrap(_mm512_loadu_ps(p));
}

static inline void v_store(float *p, struct v16 a)
{
    _mm512_storeu_ps(p, a.v);
}

static inline struct v16 v_load_n(const float *p, int n)
{
    return wrap(_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p));
}

static inline void v_store_n(float *p, int n, struct v16 a)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a.v);
}

static inline struct v16 v_add(struct v16 a, struct v16 b)
{
    return wrap(_mm512_add_ps(a.v, b.v));
}

static inline struct v16 v_sub(struct v16 a, struct v16 b)
{
    return wrap(_mm512_sub_ps(a.v, b.v));
}

static inline struct v16 v_mul(struct v16 a, struct v16 b)
{
    return wrap(_mm512_mul_ps(a.v, b.v));
}

static inline struct v16 v_div(struct v16 a, struct v16 b)
{
    return wrap(_mm512_div_ps(a.v, b.v));
}

static inline struct v16 v_fma(struct v16 a, struct v16 b, struct v16 c)
{
    return wrap(_mm512_fmadd_ps(a.v, b.v, c.v));
}

static inline struct v16 v_max(struct v16 a, struct v16 b)
{
    return wrap(_mm512_max_ps(a.v, b.v));
}

static inline struct v16 v_min(struct v16 a, struct v16 b)
{
    return wrap(_mm512_min_ps(a.v, b.v));
}

static inline struct v16 v_select_gt(struct v16 x, struct v16 limit, struct v16 a, struct v16 b)
{
    return wrap(_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_GT_OQ), b.v, a.v));
}

static inline struct v16 v_exp2_bits(struct v16 m)
{
    __m512i bits = _mm512_add_epi32(_mm512_castps_si512(m.v), _mm512_set1_epi32(127));
    return wrap(_mm512_castsi512_ps(_mm512_slli_epi32(bits, 23)));
}

/* Lanes i + (i + 8) of two vectors: a in the lower half, b in the upper. */
static inline __m512 fold8(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}

static inline void v_sum4(struct v16 a, struct v16 b, struct v16 c, struct v16 d, float out[4])
{
    __m512 ab = fold8(a.v, b.v), cd = fold8(c.v, d.v);
    __m512 s = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88),
                             _mm512_shuffle_f32x4(ab, cd, 0xdd)); /* one quad per vector */
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0x4e));
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0xb1));
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, s)));
}

static inline float v_sum(struct v16 a)
{
    float out[4];
    v_sum4(a, a, a, a, out);
    return out[0];
}

static inline float v_hmax(struct v16 a)
{
    return _mm512_reduce_max_ps(a.v);
}

static inline struct v16 v_bf16(const void *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p));
    return wrap(_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16)));
}

static inline struct v16 v_f16(const void *p)
{
    return wrap(_mm512_cvtph_ps(_mm256_loadu_si256(p)));
}

static inline float f_f16(const void *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

static inline void v_to_f16(struct v16 a, void *p)
{
    _mm256_storeu_si256(p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

struct vpart {
    __m512 v;
};

static inline struct vpart p_zero(void)
{
    return (struct vpart){_mm512_setzero_ps()};
}

static inline struct vpart p_load(const float *p)
{
    return (struct vpart){_mm512_loadu_ps(p)};
}

static inline struct vpart p_fma(struct vpart a, struct vpart b, struct vpart c)
{
    return (struct vpart){_mm512_fmadd_ps(a.v, b.v, c.v)};
}

static inline struct v16 v_join(const struct vpart p[1])
{
    return wrap(p[0].v);
}

/* Codes of up to 4 bits come out of a table of all values of the group: a permute looks at the low
 * 4 bits of a lane only, so neither mask nor conversion is needed. */
struct affine {
    __m512 scale, bias; /* scale: the table for bits <= 4 */
};

static inline __attribute__((always_inline)) struct affine affine_of(int bits, float scale,
                                                                     float bias)
{
    struct affine a = {_mm512_set1_ps(scale), _mm512_set1_ps(bias)};
    if (bits <= 4) {
        /* Indices carry the next code in their high bits, hence the repeats. */
        __m512 all = bits == 4
                         ? _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
                     : bits == 3 ? _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7)
                                 : _mm512_setr_ps(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
        a.scale = _mm512_fmadd_ps(all, a.scale, a.bias);
    }
    return a;
}

/* The 2 * bits bytes at p, and nothing behind them. */
static inline __attribute__((always_inline)) __m128i load_bytes(int bits, const uint8_t *p)
{
    uint64_t lo = 0;
    uint32_t w;
    uint16_t h;
    if (bits == 3) {
        memcpy(&w, p, 4);
        memcpy(&h, p + 4, 2);
        lo = w | (uint64_t)h << 32;
        return _mm_cvtsi64_si128((long long)lo);
    }
    memcpy(&lo, p, 8);
    if (bits == 5) {
        memcpy(&h, p + 8, 2);
        return _mm_insert_epi16(_mm_cvtsi64_si128((long long)lo), h, 4);
    }
    memcpy(&w, p + 8, 4);
    return _mm_insert_epi32(_mm_cvtsi64_si128((long long)lo), (int)w, 2);
}

/* Byte pairs that hold code i, in dword i: bytes (bits * i) / 8 and the next. */
#define PAIR(bits, i) (((bits) * (i)) / 8 | (((bits) * (i)) / 8 + 1) << 8 | (int)0x80800000)
#define PAIRS4(bits, i) PAIR(bits, i), PAIR(bits, (i) + 1), PAIR(bits, (i) + 2), PAIR(bits, (i) + 3)
#define PAIRS(bits) PAIRS4(bits, 0), PAIRS4(bits, 4), PAIRS4(bits, 8), PAIRS4(bits, 12)
#define SHIFT4(bits, i)                                                                            \
    ((bits) * (i)) % 8, ((bits) * ((i) + 1)) % 8, ((bits) * ((i) + 2)) % 8, ((bits) * ((i) + 3)) % 8
#define SHIFTS(bits) SHIFT4(bits, 0), SHIFT4(bits, 4), SHIFT4(bits, 8), SHIFT4(bits, 12)

/* A macro around the intrinsic, so that PAIRS and SHIFTS expand before it counts its arguments. */
#define LANES(...) _mm512_setr_epi32(__VA_ARGS__)

/* Codes of any width: every lane gets its two bytes and shifts them down. */
static inline __attribute__((always_inline)) __m512i spread(int bits, const uint8_t *p)
{
    __m512i bytes = _mm512_broadcast_i32x4(load_bytes(bits, p));
    if (bits == 3)
        return _mm512_srlv_epi32(_mm512_shuffle_epi8(bytes, LANES(PAIRS(3))), LANES(SHIFTS(3)));
    if (bits == 5)
        return _mm512_srlv_epi32(_mm512_shuffle_epi8(bytes, LANES(PAIRS(5))), LANES(SHIFTS(5)));
    return _mm512_srlv_epi32(_mm512_shuffle_epi8(bytes, LANES(PAIRS(6))), LANES(SHIFTS(6)));
}

/* Four bits: both words of the 8 bytes broadcast to 8 lanes each. */
static inline __m512i spread4(const uint8_t *p)
{
    int lo, hi;
    memcpy(&lo, p, 4);
    memcpy(&hi, p + 4, 4);
    __m512i words = _mm512_mask_set1_epi32(_mm512_set1_epi32(lo), 0xff00, hi);
    return _mm512_srlv_epi32(
        words, _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28));
}

static inline __m512i spread2(const uint8_t *p)
{
    int all;
    memcpy(&all, p, 4);
    return _mm512_srlv_epi32(
        _mm512_set1_epi32(all),
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30));
}

static inline __attribute__((always_inline)) struct v16 v_codes(int bits, const uint8_t *p,
                                                                struct affine a)
{
    __m512i q;
    if (bits <= 4) {
        q = bits == 4 ? spread4(p) : bits == 3 ? spread(3, p) : spread2(p);
        return wrap(_mm512_permutexvar_ps(q, a.scale));
    }
    if (bits == 8)
        q = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    else
        q = _mm512_and_si512(spread(bits, p), _mm512_set1_epi32((1 << bits) - 1));
    return wrap(_mm512_fmadd_ps(_mm512_cvtepi32_ps(q), a.scale, a.bias));
}

#define V_ISA "avx512"
#define V_TABLE mx_kernels_avx512
#define V_KV_F16 1
#define V_PARTS 1
#define V_OUTS 4
#define V_ROWS 6
#define V_DIRECT_BLOCK 24
#define V_DIRECT_ROWS 6
#define V_DIRECT_OUTS(kind, rows) 4
#define V_MIX 8
#define V_SCAN 4
#include "device/cpu/kernels_body.h"
