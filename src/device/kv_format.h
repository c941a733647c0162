/* How a KV cache entry (the head_dim values of one head at one position) is stored.
 *
 *   F32, F16   head_dim values.
 *   Q8         per group of 32 values: scale (float16), then 32 bytes: value = scale * (code -
 * 128), codes 1..255. Q6, Q4     per group of 32 values: scale, low (both float16), then 32 codes
 * of 6 or 4 bits: value = scale * code + low.
 *
 * Codes are a little-endian bit stream: code i starts at bit i * bits of the bytes that follow the
 * scales. Groups lie one after the other without gaps, so entries of consecutive positions are one
 * run of groups; they start at multiples of 2 bytes only. A group takes 34, 28 or 20 bytes.
 *
 *   V1  The stored bits depend on the values of the group alone: not on the batch, the thread or
 *       the instruction set.
 *   V2  scale * code is exact in float32 (11 bits times 8), so that reading rounds once, with or
 *       without fused multiply-add: all devices read the same floats from the same entry.
 *   V3  Any group with a value that is not finite reads as NaN throughout. */
#ifndef MX_DEVICE_KV_FORMAT_H
#define MX_DEVICE_KV_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum mx_kv_format { MX_KV_F32, MX_KV_F16, MX_KV_Q8, MX_KV_Q6, MX_KV_Q4 };

#define MX_KV_GROUP 32

/* "f32", "f16", "q8", "q6" or "q4". */
const char *mx_kv_format_name(enum mx_kv_format f);

/* Bits of a code; 0 for F32 and F16. */
static inline int mx_kv_code_bits(enum mx_kv_format f)
{
    return f == MX_KV_Q8 ? 8 : f == MX_KV_Q6 ? 6 : f == MX_KV_Q4 ? 4 : 0;
}

/* Bytes of n values; n is a multiple of MX_KV_GROUP where the format has groups. */
static inline size_t mx_kv_bytes(enum mx_kv_format f, int64_t n)
{
    int bits = mx_kv_code_bits(f);
    if (bits == 0)
        return (size_t)n * (f == MX_KV_F32 ? 4 : 2);
    return (size_t)(n / MX_KV_GROUP) * ((bits == 8 ? 2 : 4) + MX_KV_GROUP / 8 * (size_t)bits);
}

/* n values to mx_kv_bytes(f, n) bytes and back, in portable C. Neither buffer need be aligned
 * beyond its element. */
void mx_kv_pack(enum mx_kv_format f, const float *x, int64_t n, void *entry);
void mx_kv_unpack(enum mx_kv_format f, const void *entry, int64_t n, float *x);

#endif
