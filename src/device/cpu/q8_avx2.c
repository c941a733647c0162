/* AVX2 vocabulary of q8_body.h: a vector is half a step, eight outputs.
 *
 * Without a dot-product instruction, vpmaddubsw adds pairs of byte products in 16 bits and
 * saturates there. Codes of 4 bits and fewer stay exact for a run of 8 steps (8 * 2 * 15 * 127 <
 * 2^15), 5 bits for 4 and 6 bits for 2; 8-bit codes are taken as two nibbles with sums of their
 * own. A flush moves the run into the 32-bit sum. */
#include "device/cpu/panels.h"

#include <float.h>
#include <immintrin.h>
#include <math.h>

#define Q_LANES 8
#define Q_ROWS 4
#define Q_SIGNED 0
#define Q_FLUSH(bits) ((bits) == 5 ? 4 : (bits) == 6 ? 2 : 8)

#define INLINE static inline __attribute__((always_inline))

struct qw {
    __m256i v;
};
struct qi {
    __m256i low, high, sum; /* high: high nibbles of 8-bit codes */
};
struct qf {
    __m256 v;
};

INLINE struct qw w_load(const uint8_t *p)
{
    return (struct qw){_mm256_loadu_si256((const __m256i *)p)};
}

INLINE struct qw w_and(struct qw a, int mask)
{
    return (struct qw){_mm256_and_si256(a.v, _mm256_set1_epi8((char)mask))};
}

INLINE struct qw w_or(struct qw a, struct qw b)
{
    return (struct qw){_mm256_or_si256(a.v, b.v)};
}

INLINE struct qw w_down(struct qw a, int n)
{
    return (struct qw){_mm256_srli_epi16(a.v, n)};
}

INLINE struct qw w_up(struct qw a, int n)
{
    return (struct qw){_mm256_slli_epi16(a.v, n)};
}

INLINE struct qi i_start(int32_t n)
{
    __m256i zero = _mm256_setzero_si256();
    return (struct qi){zero, zero, _mm256_set1_epi32(n)};
}

INLINE struct qi i_dot(int bits, struct qi acc, struct qw w, const int8_t *x)
{
    int four;
    __builtin_memcpy(&four, x, sizeof four);
    __m256i xv = _mm256_set1_epi32(four);
    if (bits == 8) {
        struct qw low = w_and(w, 15), high = w_and(w_down(w, 4), 15);
        acc.high = _mm256_add_epi16(acc.high, _mm256_maddubs_epi16(high.v, xv));
        w = low;
    }
    acc.low = _mm256_add_epi16(acc.low, _mm256_maddubs_epi16(w.v, xv));
    return acc;
}

INLINE struct qi i_flush(int bits, struct qi acc)
{
    __m256i ones = _mm256_set1_epi16(1), zero = _mm256_setzero_si256();
    acc.sum = _mm256_add_epi32(acc.sum, _mm256_madd_epi16(acc.low, ones));
    if (bits == 8)
        acc.sum = _mm256_add_epi32(acc.sum, _mm256_madd_epi16(acc.high, _mm256_set1_epi16(16)));
    acc.low = acc.high = zero;
    return acc;
}

INLINE struct qf i_float(struct qi acc)
{
    return (struct qf){_mm256_cvtepi32_ps(acc.sum)};
}

INLINE struct qf f_zero(void)
{
    return (struct qf){_mm256_setzero_ps()};
}

INLINE struct qf f_set1(float f)
{
    return (struct qf){_mm256_set1_ps(f)};
}

INLINE struct qf f_mul(struct qf a, struct qf b)
{
    return (struct qf){_mm256_mul_ps(a.v, b.v)};
}

INLINE struct qf f_fma(struct qf a, struct qf b, struct qf c)
{
    return (struct qf){_mm256_fmadd_ps(a.v, b.v, c.v)};
}

INLINE struct qf f_half(bool bf16, const uint8_t *p)
{
    __m128i h = _mm_loadu_si128((const __m128i *)p);
    if (bf16)
        return (struct qf){_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16))};
    return (struct qf){_mm256_cvtph_ps(h)};
}

INLINE struct qf f_u8(const uint8_t *p)
{
    __m128i b = _mm_loadl_epi64((const __m128i *)p);
    return (struct qf){_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(b))};
}

INLINE struct qf f_i8(const uint8_t *p)
{
    __m128i b = _mm_loadl_epi64((const __m128i *)p);
    return (struct qf){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b))};
}

INLINE void f_store(float *p, struct qf a)
{
    _mm256_storeu_ps(p, a.v);
}

INLINE void f_store_n(float *p, int n, struct qf a)
{
    float lanes[Q_LANES];
    f_store(lanes, a);
    for (int i = 0; i < n; i++)
        p[i] = lanes[i];
}

/* ---- Activations ---------------------------------------------------------------------------- */

INLINE int32_t sum_lanes(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

/* Largest bit pattern of 8: magnitudes are ordered as integers, infinities and NaN above them. */
INLINE float top_lane(__m256i v)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(m));
}

/* 16 floats to codes; returns their sum. */
INLINE int32_t codes16(const float *x, float factor, int8_t *code)
{
    __m256 inv = _mm256_set1_ps(factor);
    __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inv));
    __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), inv));
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)code, bytes);
    return sum_lanes(_mm256_add_epi32(a, b));
}

/* Largest magnitude of n floats, found among bit patterns. */
INLINE float largest(const float *x, int n)
{
    __m256i most = _mm256_setzero_si256(), mask = _mm256_set1_epi32(0x7fffffff);
    for (int i = 0; i < n; i += 8) {
        __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(x + i));
        most = _mm256_max_epi32(most, _mm256_and_si256(bits, mask));
    }
    return top_lane(most);
}

#include "device/cpu/q8_quantise.h"

#define Q_NAME "avx2-int8"
#define Q_TABLE mx_q8_avx2
#include "device/cpu/q8_body.h"
