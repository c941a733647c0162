/* Independent fused multiply-adds in 256-bit registers: twelve chains hide the latency of two
 * units. */
#include "tools/bench_machine.h"

#include <immintrin.h>

static float run(int64_t iterations)
{
    __m256 a[12], scale = _mm256_set1_ps(0.5f), add = _mm256_set1_ps(1);
    for (int j = 0; j < 12; j++)
        a[j] = _mm256_set1_ps((float)j);
    for (int64_t i = 0; i < iterations; i++)
        for (int j = 0; j < 12; j++)
            a[j] = _mm256_fmadd_ps(a[j], scale, add);
    for (int j = 1; j < 12; j++)
        a[0] = _mm256_add_ps(a[0], a[j]);
    return _mm256_cvtss_f32(a[0]);
}

const struct mx_peak mx_peak_avx2 = {"avx2", 12 * 8 * 2, run};
