/* GGUF block quantisation: a row is a sequence of blocks of 32 or 256 values, each self-contained.
 *
 * Byte layouts, in order; d, m, dmin are little-endian binary16, q an unsigned code, all multi-byte
 * fields unaligned. Byte j of a nibble array holds value j in its low half.
 *   Q4_0  32 values, 18 B: d, 16 B nibbles; high half of byte j is value j + 16; w = d (q - 8)
 *   Q4_1  32 values, 20 B: d, m, 16 B nibbles as Q4_0;                           w = d q + m
 *   Q5_0  32 values, 22 B: d, u32 high bits (bit j for value j), 16 B nibbles;   w = d (q - 16)
 *   Q5_1  32 values, 24 B: d, m, u32 high bits, 16 B nibbles;                    w = d q + m
 *   Q8_0  32 values, 34 B: d, 32 signed bytes;                                   w = d q
 *   IQ4_NL 32 values, 18 B: as Q4_0, but w = d T[q] with the table T of gguf_quant.c
 *   Q2_K  256 values, 84 B: 16 B scales (low half scale, high half min, each of 16 values), 64 B
 *         codes, d, dmin. Value 128h + 32p + l is bits 2p..2p+1 of code byte 32h + l;
 *         w = d scale q - dmin min
 *   Q3_K  256 values, 110 B: 32 B high bits, 64 B codes as Q2_K, 12 B scales, d. The high bit is
 *         bit 4h + p of byte l;  w = d (scale - 32) (q + 4 high - 4). Scale j of 16: low four bits
 *         from the low half of byte j for j < 8 and the high half of byte j - 8 otherwise, bits
 *         4..5 from bits 2(j/4)..2(j/4)+1 of byte 8 + j % 4
 *   IQ4_XS 256 values, 136 B: d, u16 high scale bits, 4 B low scale bits, 128 B nibbles. Sub-block
 * s of 32 has 16 bytes as IQ4_NL; its scale: half s % 2 of low byte s / 2, bits 4..5 from bits
 *         2s..2s+1;  w = d (scale - 32) T[q]
 *   Q4_K  256 values, 144 B: d, dmin, 12 B scales, 128 B nibbles. Eight sub-blocks of 32; bytes
 *         32c .. 32c+31 hold sub-block 2c low and 2c+1 high;        w = d scale q - dmin min
 *   Q5_K  256 values, 176 B: d, dmin, 12 B scales, 32 B high bits, 128 B nibbles. Nibbles as Q4_K;
 *         bit s of high byte l is bit 4 of value l of sub-block s;  w = d scale q - dmin min
 *   Q6_K  256 values, 210 B: 128 B low nibbles, 64 B high bits, 16 signed bytes of scales, d. Each
 *         half of 128 values has 64 low and 32 high bytes; value 32p + l (p = 0..3): low nibble
 * from byte l + 32 (p % 2), its low half for p < 2 and high half otherwise, bits 4..5 from bits
 *         2p..2p+1 of high byte l;  w = d scale[value / 16] (q - 32)
 * The 12 bytes s of Q4_K and Q5_K hold 6-bit scale and min of sub-block j: for j < 4, s[j] & 63 and
 * s[j+4] & 63; for j >= 4, (s[j+4] & 15) | (s[j-4] >> 6) << 4 and (s[j+4] >> 4) | (s[j] >> 6) << 4.
 *
 * Everything here is thread-safe and allocates nothing. */
#ifndef MX_FORMAT_GGUF_QUANT_H
#define MX_FORMAT_GGUF_QUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Type ids as stored in tensor infos. F32, F16 and BF16 are dense and use enum mx_dtype elsewhere;
 * ids that are not listed are known by name at most. */
enum mx_gguf_type {
    MX_GGUF_F32 = 0,
    MX_GGUF_F16 = 1,
    MX_GGUF_Q4_0 = 2,
    MX_GGUF_Q4_1 = 3,
    MX_GGUF_Q5_0 = 6,
    MX_GGUF_Q5_1 = 7,
    MX_GGUF_Q8_0 = 8,
    MX_GGUF_Q2_K = 10,
    MX_GGUF_Q3_K = 11,
    MX_GGUF_Q4_K = 12,
    MX_GGUF_Q5_K = 13,
    MX_GGUF_Q6_K = 14,
    MX_GGUF_IQ4_NL = 20,
    MX_GGUF_IQ4_XS = 23,
    MX_GGUF_BF16 = 30,
};

/* "Q4_K", also for types that this build cannot read; "unknown" for ids without a name. */
const char *mx_gguf_type_name(int type);

/* Values and bytes of a block; 0 for dense and unsupported types. */
int mx_gguf_block_values(int type);
int mx_gguf_block_bytes(int type);

/* Bytes of a row of `in` values; 0 unless the type is supported and `in` is a positive multiple of
 * its block. */
size_t mx_gguf_row_bytes(int type, int64_t in);

/* De-quantises `in` values (whole blocks) that start at `row`. `type` must be supported. Every
 * product is exact in float32, so values are the correctly rounded results of the formulas above.
 */
void mx_gguf_dequant_row(int type, const void *row, int64_t in, float *out);

/* Whether mx_gguf_quant_row() writes this type: Q4_0, Q8_0, Q4_K, Q5_K and Q6_K. */
bool mx_gguf_can_quant(int type);

/* Quantises `in` float32 values into mx_gguf_row_bytes(type, in) bytes at `row`. NaN counts as 0
 * and magnitudes saturate at what binary16 scales can express. Deterministic, block by block. */
void mx_gguf_quant_row(int type, const float *values, int64_t in, void *row);

#endif
