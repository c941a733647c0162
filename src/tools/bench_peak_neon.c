/* Independent fused multiply-adds in 128-bit registers: sixteen chains hide the latency of four
 * units. */
#include "tools/bench_machine.h"

#include <arm_neon.h>

static float run(int64_t iterations)
{
    float32x4_t a[16], scale = vdupq_n_f32(0.5f), add = vdupq_n_f32(1);
    for (int j = 0; j < 16; j++)
        a[j] = vdupq_n_f32((float)j);
    for (int64_t i = 0; i < iterations; i++)
        for (int j = 0; j < 16; j++)
            a[j] = vfmaq_f32(add, a[j], scale);
    for (int j = 1; j < 16; j++)
        a[0] = vaddq_f32(a[0], a[j]);
    return vaddvq_f32(a[0]);
}

const struct mx_peak mx_peak_neon = {"neon", 16 * 4 * 2, run};
