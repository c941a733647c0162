/* int8 kernels for AVX-512 with VNNI. */
#include "device/cpu/q8_avx512.h"

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
