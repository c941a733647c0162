/* AVX-512 VNNI vocabulary of q8_body.h: a vector is a whole step of a panel, and one instruction
 * multiplies it with the four activations that it broadcasts from memory. */
#ifndef MX_DEVICE_CPU_Q8_AVX512_H
#define MX_DEVICE_CPU_Q8_AVX512_H

#include "device/cpu/panels.h"

#include <float.h>
#include <immintrin.h>
#include <math.h>

#define Q_LANES 16
#define Q_ROWS 8
#define Q_SIGNED 0
#define Q_FLUSH(bits) 16

struct qw {
    __m512i v;
};
struct qi {
    __m512i v;
};
struct qf {
    __m512 v;
};

static inline struct qw w_load(const uint8_t *p)
{
    return (struct qw){_mm512_loadu_si512(p)};
}

static inline struct qw w_and(struct qw a, int mask)
{
    return (struct qw){_mm512_and_si512(a.v, _mm512_set1_epi8((char)mask))};
}

static inline struct qw w_or(struct qw a, struct qw b)
{
    return (struct qw){_mm512_or_si512(a.v, b.v)};
}

static inline __attribute__((always_inline)) struct qw w_down(struct qw a, int n)
{
    return (struct qw){_mm512_srli_epi16(a.v, (unsigned)n)};
}

static inline __attribute__((always_inline)) struct qw w_up(struct qw a, int n)
{
    return (struct qw){_mm512_slli_epi16(a.v, (unsigned)n)};
}

static inline struct qi i_start(int32_t n)
{
    return (struct qi){_mm512_set1_epi32(n)};
}

static inline struct qi i_dot(int bits, struct qi acc, struct qw w, const int8_t *x)
{
    int four;
    (void)bits;
    __builtin_memcpy(&four, x, sizeof four);
    return (struct qi){_mm512_dpbusd_epi32(acc.v, w.v, _mm512_set1_epi32(four))};
}

static inline struct qi i_flush(int bits, struct qi acc)
{
    (void)bits;
    return acc;
}

static inline struct qf f_zero(void)
{
    return (struct qf){_mm512_setzero_ps()};
}

static inline struct qf f_set1(float f)
{
    return (struct qf){_mm512_set1_ps(f)};
}

static inline struct qf f_mul(struct qf a, struct qf b)
{
    return (struct qf){_mm512_mul_ps(a.v, b.v)};
}

static inline struct qf f_fma(struct qf a, struct qf b, struct qf c)
{
    return (struct qf){_mm512_fmadd_ps(a.v, b.v, c.v)};
}

static inline struct qf i_float(struct qi acc)
{
    return (struct qf){_mm512_cvtepi32_ps(acc.v)};
}

static inline struct qf f_half(bool bf16, const uint8_t *p)
{
    __m256i h = _mm256_loadu_si256((const __m256i *)p);
    if (bf16)
        return (struct qf){_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
    return (struct qf){_mm512_cvtph_ps(h)};
}

static inline struct qf f_u8(const uint8_t *p)
{
    __m128i b = _mm_loadu_si128((const __m128i *)p);
    return (struct qf){_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(b))};
}

static inline struct qf f_i8(const uint8_t *p)
{
    __m128i b = _mm_loadu_si128((const __m128i *)p);
    return (struct qf){_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b))};
}

static inline void f_store(float *p, struct qf a)
{
    _mm512_storeu_ps(p, a.v);
}

static inline void f_store_n(float *p, int n, struct qf a)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a.v);
}

#endif
