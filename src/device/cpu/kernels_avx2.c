/* AVX2 + FMA + F16C vocabulary of kernels_body.h: a v16 is two registers, lanes 0-7 and 8-15. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

struct v16 {
    __m256 a, b;
};

static inline struct v16 wrap(__m256 a, __m256 b)
{
    return (struct v16){a, b};
}

static inline struct v16 v_zero(void)
{
    return wrap(_mm256_setzero_ps(), _mm256_setzero_ps());
}

static inline struct v16 v_set1(float f)
{
    return wrap(_mm256_set1_ps(f), _mm256_set1_ps(f));
}

static inline struct v16 v_load(const float *p)
{
    return wrap(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}

static inline void v_store(float *p, struct v16 x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}

static const int32_t lane_mask[32] = {-1, -1, -1, -1, -1, -1, -1, -1, -1,
                                      -1, -1, -1, -1, -1, -1, -1, 0};

/* All ones in the first n of 16 lanes; half 0 or 1. */
static inline __m256i first_lanes(int n, int half)
{
    return _mm256_loadu_si256((const __m256i *)(lane_mask + 16 - n + 8 * half));
}

static inline struct v16 v_load_n(const float *p, int n)
{
    __m256 b = n > 8 ? _mm256_maskload_ps(p + 8, first_lanes(n, 1)) : _mm256_setzero_ps();
    return wrap(_mm256_maskload_ps(p, first_lanes(n, 0)), b);
}

static inline void v_store_n(float *p, int n, struct v16 x)
{
    _mm256_maskstore_ps(p, first_lanes(n, 0), x.a);
    if (n > 8)
        _mm256_maskstore_ps(p + 8, first_lanes(n, 1), x.b);
}

static inline struct v16 v_add(struct v16 x, struct v16 y)
{
    return wrap(_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b));
}

static inline struct v16 v_sub(struct v16 x, struct v16 y)
{
    return wrap(_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b));
}

static inline struct v16 v_mul(struct v16 x, struct v16 y)
{
    return wrap(_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b));
}

static inline struct v16 v_div(struct v16 x, struct v16 y)
{
    return wrap(_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b));
}

static inline struct v16 v_fma(struct v16 x, struct v16 y, struct v16 z)
{
    return wrap(_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b));
}

static inline struct v16 v_max(struct v16 x, struct v16 y)
{
    return wrap(_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b));
}

static inline struct v16 v_min(struct v16 x, struct v16 y)
{
    return wrap(_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b));
}

static inline struct v16 v_select_gt(struct v16 x, struct v16 limit, struct v16 y, struct v16 z)
{
    return wrap(_mm256_blendv_ps(z.a, y.a, _mm256_cmp_ps(x.a, limit.a, _CMP_GT_OQ)),
                _mm256_blendv_ps(z.b, y.b, _mm256_cmp_ps(x.b, limit.b, _CMP_GT_OQ)));
}

static inline __m256 exp2_half(__m256 m)
{
    __m256i bits = _mm256_add_epi32(_mm256_castps_si256(m), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 23));
}

static inline struct v16 v_exp2_bits(struct v16 m)
{
    return wrap(exp2_half(m.a), exp2_half(m.b));
}

/* 16 lanes to 4: (i, i+8), then (i, i+4). */
static inline __m128 fold_to_4(struct v16 x)
{
    __m256 s = _mm256_add_ps(x.a, x.b);
    return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}

static inline void v_sum4(struct v16 a, struct v16 b, struct v16 c, struct v16 d, float out[4])
{
    __m128 p = fold_to_4(a), q = fold_to_4(b), r = fold_to_4(c), s = fold_to_4(d);
    __m128 pq = _mm_add_ps(_mm_unpacklo_ps(p, q), _mm_unpackhi_ps(p, q)); /* p02 q02 p13 q13 */
    __m128 rs = _mm_add_ps(_mm_unpacklo_ps(r, s), _mm_unpackhi_ps(r, s));
    _mm_storeu_ps(out, _mm_add_ps(_mm_movelh_ps(pq, rs), _mm_movehl_ps(rs, pq)));
}

static inline float v_sum(struct v16 a)
{
    __m128 s = fold_to_4(a);
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static inline float v_hmax(struct v16 a)
{
    __m256 m = _mm256_max_ps(a.a, a.b);
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

static inline __m256 bf16_half(const void *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

static inline struct v16 v_bf16(const void *p)
{
    return wrap(bf16_half(p), bf16_half((const char *)p + 16));
}

static inline struct v16 v_f16(const void *p)
{
    const char *c = p;
    return wrap(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)c)),
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(c + 16))));
}

static inline float f_f16(const void *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

static inline void v_to_f16(struct v16 x, void *p)
{
    char *c = p;
    _mm_storeu_si128((__m128i *)c, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(c + 16), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}

struct vpart {
    __m256 v;
};

static inline struct vpart p_zero(void)
{
    return (struct vpart){_mm256_setzero_ps()};
}

static inline struct vpart p_load(const float *p)
{
    return (struct vpart){_mm256_loadu_ps(p)};
}

static inline struct vpart p_fma(struct vpart a, struct vpart b, struct vpart c)
{
    return (struct vpart){_mm256_fmadd_ps(a.v, b.v, c.v)};
}

static inline struct v16 v_join(const struct vpart p[2])
{
    return wrap(p[0].v, p[1].v);
}

/* Codes of up to 3 bits come out of a table of all values of the group: a permute looks at the low
 * 3 bits of a lane only, so neither mask nor conversion is needed. */
struct affine {
    __m256 scale, bias; /* scale: the table for bits <= 3 */
};

static inline __attribute__((always_inline)) struct affine affine_of(int bits, float scale,
                                                                     float bias)
{
    struct affine a = {_mm256_set1_ps(scale), _mm256_set1_ps(bias)};
    if (bits <= 3) {
        /* Indices carry the next code in their high bits, hence the repeats. */
        __m256 all = bits == 3 ? _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7)
                               : _mm256_setr_ps(0, 1, 2, 3, 0, 1, 2, 3);
        a.scale = _mm256_fmadd_ps(all, a.scale, a.bias);
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
#define PAIRS(bits, i)                                                                             \
    PAIR(bits, i), PAIR(bits, (i) + 1), PAIR(bits, (i) + 2), PAIR(bits, (i) + 3),                  \
        PAIR(bits, (i) + 4), PAIR(bits, (i) + 5), PAIR(bits, (i) + 6), PAIR(bits, (i) + 7)
#define SHIFT(bits, i) (((bits) * (i)) % 8)
#define SHIFTS(bits)                                                                               \
    SHIFT(bits, 0), SHIFT(bits, 1), SHIFT(bits, 2), SHIFT(bits, 3), SHIFT(bits, 4),                \
        SHIFT(bits, 5), SHIFT(bits, 6), SHIFT(bits, 7)

/* A macro around the intrinsic, so that PAIRS and SHIFTS expand before it counts its arguments. */
#define LANES(...) _mm256_setr_epi32(__VA_ARGS__)

/* Codes first .. first+7 of any width: every lane gets its two bytes and shifts them down. */
static inline __attribute__((always_inline)) __m256i spread(int bits, int first, __m256i bytes)
{
    if (bits == 3)
        return _mm256_srlv_epi32(
            _mm256_shuffle_epi8(bytes, first ? LANES(PAIRS(3, 8)) : LANES(PAIRS(3, 0))),
            LANES(SHIFTS(3)));
    if (bits == 5)
        return _mm256_srlv_epi32(
            _mm256_shuffle_epi8(bytes, first ? LANES(PAIRS(5, 8)) : LANES(PAIRS(5, 0))),
            LANES(SHIFTS(5)));
    return _mm256_srlv_epi32(
        _mm256_shuffle_epi8(bytes, first ? LANES(PAIRS(6, 8)) : LANES(PAIRS(6, 0))),
        LANES(SHIFTS(6)));
}

static inline __m256i word_to_lanes(const uint8_t *p, __m256i shifts)
{
    int w;
    memcpy(&w, p, 4);
    return _mm256_srlv_epi32(_mm256_set1_epi32(w), shifts);
}

/* Codes first .. first+7, with bits of their neighbours above them. */
static inline __attribute__((always_inline)) __m256i codes_half(int bits, int first,
                                                                const uint8_t *p)
{
    if (bits == 8)
        return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + first)));
    if (bits == 4)
        return word_to_lanes(p + first / 2, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    if (bits == 2)
        return word_to_lanes(p, first ? _mm256_setr_epi32(16, 18, 20, 22, 24, 26, 28, 30)
                                      : _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
    return spread(bits, first, _mm256_broadcastsi128_si256(load_bytes(bits, p)));
}

static inline __attribute__((always_inline)) __m256 value_half(int bits, int first,
                                                               const uint8_t *p, struct affine a)
{
    __m256i q = codes_half(bits, first, p);
    if (bits <= 3)
        return _mm256_permutevar8x32_ps(a.scale, q);
    if (bits < 8)
        q = _mm256_and_si256(q, _mm256_set1_epi32((1 << bits) - 1));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(q), a.scale, a.bias);
}

static inline __attribute__((always_inline)) struct v16 v_codes(int bits, const uint8_t *p,
                                                                struct affine a)
{
    return wrap(value_half(bits, 0, p, a), value_half(bits, 8, p, a));
}

#define V_ISA "avx2"
#define V_TABLE mx_kernels_avx2
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
