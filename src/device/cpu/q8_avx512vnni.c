/* AVX-512 VNNI vocabulary of q8_body.h: a vector is a whole step of a panel, and one instruction
 * multiplies it with the four activations that it broadcasts from memory. */
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

/* 16 inputs from index i of a row; zeros beyond it. */
static inline __m512 load16(const float *x, int64_t i, int64_t in)
{
    int64_t left = in - i;
    if (left >= 16)
        return _mm512_loadu_ps(x + i);
    return left <= 0 ? _mm512_setzero_ps()
                     : _mm512_maskz_loadu_ps((__mmask16)((1u << left) - 1), x + i);
}

/* `vectors` of 16 inputs that share a scale. The largest magnitude is found among bit patterns,
 * where infinities and NaN are larger than all numbers. */
static inline __attribute__((always_inline)) void quantise_group(const __m512 *v, int vectors,
                                                                 int8_t *code, float *scale,
                                                                 float *sum, int32_t *neg8,
                                                                 int32_t *neg8q)
{
    __m512i most = _mm512_setzero_si512();
    for (int i = 0; i < vectors; i++)
        most = _mm512_max_epi32(most, _mm512_castps_si512(_mm512_abs_ps(v[i])));
    float top = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(most))));
    bool finite = top <= FLT_MAX;
    __m512 inv = _mm512_set1_ps(finite && top >= MX_Q8_TINY ? 127.0f / top : 0.0f);
    int32_t total = 0;
    for (int i = 0; i < vectors; i++) {
        __m512i q = _mm512_cvtps_epi32(finite ? _mm512_mul_ps(v[i], inv) : inv);
        _mm_storeu_si128((__m128i *)(code + 16 * i), _mm512_cvtsepi32_epi8(q));
        int32_t part = _mm512_reduce_add_epi32(q);
        neg8q[i] = -8 * part;
        total += part;
    }
    *scale = finite ? (top >= MX_Q8_TINY ? top / 127.0f : 0.0f) : NAN;
    *sum = *scale * (float)total;
    *neg8 = -8 * total;
}

static void q8_quantise(const float *x, int64_t in, int group, struct mx_q8_block *q)
{
    for (int64_t i = 0; i < in; i += MX_PANEL_BLOCK, q++) {
        __m512 v[4];
        for (int j = 0; j < 4; j++)
            v[j] = load16(x, i + 16 * j, in);
        if (group == 64) {
            quantise_group(v, 4, q->code, q->scale, q->sum, q->neg8, q->neg8q);
        } else {
            quantise_group(v, 2, q->code, q->scale, q->sum, q->neg8, q->neg8q);
            quantise_group(v + 2, 2, q->code + 32, q->scale + 1, q->sum + 1, q->neg8 + 1,
                           q->neg8q + 2);
        }
    }
}

#define Q_NAME "avx512-vnni"
#define Q_TABLE mx_q8_vnni512
#include "device/cpu/q8_body.h"
