/* Independent fused multiply-adds in 512-bit registers: twelve chains hide the latency of two
 * units. */
#include "tools/bench_machine.h"

#include <immintrin.h>

static float run(int64_t iterations)
{
    __m512 a[12], scale = _mm512_set1_ps(0.5f), add = _mm512_set1_ps(1);
    for (int j = 0; j < 12; j++)
        a[j] = _mm512_set1_ps((float)j);
    for (int64_t i = 0; i < iterations; i++)
        for (int j = 0; j < 12; j++)
            a[j] = _mm512_fmadd_ps(a[j], scale, add);
    for (int j = 1; j < 12; j++)
        a[0] = _mm512_add_ps(a[0], a[j]);
    return _mm512_cvtss_f32(a[0]);
}

const struct mx_peak mx_peak_avx512 = {"avx512", 12 * 16 * 2, run};
