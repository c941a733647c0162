/* MLX affine quantisation: w = scale * q + bias per group of `group` inputs, q of `bits` bits
 * packed as one little-endian bit stream a row (reference: ml-explore/mlx quantized kernels).
 *
 * bits in {2,3,4,5,6,8}, group in {32,64,128}; in * bits divisible by 32, in divisible by group. */
#ifndef MX_FORMAT_MLXQ_H
#define MX_FORMAT_MLXQ_H

#include "base/error.h"
#include "format/dtype.h"

#include <stddef.h>

/* NULL-terminated reason why (bits, group, in) is not a valid combination, or NULL when it is. */
const char *mx_mlxq_check(int bits, int group, int64_t in);

/* Packed bytes of one row of `in` values. */
size_t mx_mlxq_row_bytes(int bits, int64_t in);

/* Value k of a packed row. */
uint32_t mx_mlxq_get(const uint8_t *row, int bits, int64_t k);

/* Unpacks `n` codes starting at element k0 (k0 * bits divisible by 8). */
void mx_mlxq_unpack(const uint8_t *row, int bits, int64_t k0, int n, uint8_t *codes);

/* De-quantises a whole row: packed codes plus `in / group` scales and biases of type `sdtype`. */
void mx_mlxq_dequant_row(const uint8_t *row, const void *scales, const void *biases,
                         enum mx_dtype sdtype, int bits, int group, int64_t in, float *out);

/* Quantises a row of float32 (valid by mx_mlxq_check) into mx_mlxq_row_bytes() bytes and in / group
 * scales and biases of type `sdtype` (F16, BF16 or F32). Scale and bias are rounded to `sdtype`
 * before the codes are chosen, so that the codes fit what is stored. Each group's grid is searched
 * for the smallest squared error and is never worse than MLX's own min/max rule; the result depends
 * on the group alone. Scales may be negative or, in constant groups, zero. NaN counts as 0 and
 * infinities saturate. Thread-safe, no allocation. */
void mx_mlxq_quant_row(const float *in_row, int64_t in, int bits, int group, enum mx_dtype sdtype,
                       uint8_t *row, void *scales, void *biases);

#endif
