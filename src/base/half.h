/* Half-precision conversions. bf16 is the upper half of an IEEE float32; f16 is IEEE binary16. */
#ifndef MX_BASE_HALF_H
#define MX_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float mx_bf16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Round to nearest even; NaN stays a (quiet) NaN. */
static inline uint16_t mx_f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u);
    u += 0x7fffu + ((u >> 16) & 1u);
    return (uint16_t)(u >> 16);
}

/* Exact for every binary16 value: normals and subnormals through one float multiply. */
static inline float mx_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t rest = (uint32_t)(h & 0x7fffu) << 13;
    float f;
    if ((h & 0x7c00u) == 0x7c00u) {
        rest |= 0x7f800000u;
        rest |= sign;
        memcpy(&f, &rest, sizeof f);
        return f;
    }
    memcpy(&f, &rest, sizeof f);
    f *= 0x1p112f; /* exponent bias 127 - 15 */
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    u |= sign;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Round to nearest even, overflow to infinity. */
static inline uint16_t mx_f32_to_f16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    uint32_t sign = (u >> 16) & 0x8000u;
    u &= 0x7fffffffu;
    if (u >= 0x47800000u) /* >= 65536, infinity or NaN */
        return (uint16_t)(sign | (u > 0x7f800000u ? 0x7e00u : 0x7c00u));
    if (u < 0x38800000u) { /* subnormal or zero: let the FPU round */
        float magic = 0.5f, a;
        memcpy(&a, &u, sizeof a);
        a += magic;
        memcpy(&u, &a, sizeof u);
        return (uint16_t)(sign | (u - 0x3f000000u));
    }
    u += 0xc8000fffu + ((u >> 13) & 1u); /* rebias by -112 << 23 and round */
    return (uint16_t)(sign | (u >> 13));
}

#endif
