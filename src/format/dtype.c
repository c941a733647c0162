/* Element types: names, widths, loads. Hosts are little-endian, as the stored data is. */
#include "format/dtype.h"

#include "base/half.h"

#include <string.h>

struct dtype_info {
    const char *name;
    int bytes;
};

static const struct dtype_info table[MX_DTYPE_COUNT] = {
    [MX_DTYPE_NONE] = {"NONE", 0}, [MX_BOOL] = {"BOOL", 1},       [MX_U8] = {"U8", 1},
    [MX_I8] = {"I8", 1},           [MX_U16] = {"U16", 2},         [MX_I16] = {"I16", 2},
    [MX_U32] = {"U32", 4},         [MX_I32] = {"I32", 4},         [MX_U64] = {"U64", 8},
    [MX_I64] = {"I64", 8},         [MX_F16] = {"F16", 2},         [MX_BF16] = {"BF16", 2},
    [MX_F32] = {"F32", 4},         [MX_F64] = {"F64", 8},         [MX_F8_E4M3] = {"F8_E4M3", 1},
    [MX_F8_E5M2] = {"F8_E5M2", 1}, [MX_F8_E8M0] = {"F8_E8M0", 1},
};

static const struct dtype_info *info(enum mx_dtype t)
{
    return (unsigned)t < MX_DTYPE_COUNT ? &table[t] : &table[MX_DTYPE_NONE];
}

const char *mx_dtype_name(enum mx_dtype t)
{
    return info(t)->name;
}

int mx_dtype_bytes(enum mx_dtype t)
{
    return info(t)->bytes;
}

enum mx_dtype mx_dtype_parse(const char *name)
{
    for (int t = MX_DTYPE_NONE + 1; t < MX_DTYPE_COUNT; t++)
        if (strcmp(table[t].name, name) == 0)
            return (enum mx_dtype)t;
    return MX_DTYPE_NONE;
}

float mx_dtype_load(enum mx_dtype t, const void *data, int64_t i)
{
    const uint8_t *p = (const uint8_t *)data + i * info(t)->bytes;
    uint16_t h;
    float f;
    double d;
    switch (t) {
    case MX_F16: memcpy(&h, p, sizeof h); return mx_f16_to_f32(h);
    case MX_BF16: memcpy(&h, p, sizeof h); return mx_bf16_to_f32(h);
    case MX_F32: memcpy(&f, p, sizeof f); return f;
    case MX_F64: memcpy(&d, p, sizeof d); return (float)d;
    default: return 0; /* not a float type */
    }
}
