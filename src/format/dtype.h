/* Element types of stored tensors (safetensors names). */
#ifndef MX_FORMAT_DTYPE_H
#define MX_FORMAT_DTYPE_H

#include <stdint.h>

enum mx_dtype {
    MX_DTYPE_NONE = 0,
    MX_BOOL,
    MX_U8,
    MX_I8,
    MX_U16,
    MX_I16,
    MX_U32,
    MX_I32,
    MX_U64,
    MX_I64,
    MX_F16,
    MX_BF16,
    MX_F32,
    MX_F64,
    MX_F8_E4M3,
    MX_F8_E5M2,
    MX_F8_E8M0,
    MX_DTYPE_COUNT,
};

const char *mx_dtype_name(enum mx_dtype t);     /* "BF16" */
int mx_dtype_bytes(enum mx_dtype t);            /* 2 */
enum mx_dtype mx_dtype_parse(const char *name); /* MX_DTYPE_NONE when unknown */

/* Element i of a float tensor (F16, BF16, F32, F64) as float32. */
float mx_dtype_load(enum mx_dtype t, const void *data, int64_t i);

#endif
