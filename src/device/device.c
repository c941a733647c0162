/* Choice of a device, and what the host-memory devices share. */
#include "device/device.h"

#include "device/common.h"
#include "device/cpu/cpu.h"
#include "device/cpu/kernels.h"
#include "device/ref/ref.h"
#include "format/gguf_quant.h"
#include "format/mlxq.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Memory ------------------------------------------------------------------------------- */

#define HOST_ALIGN 64u

void *mx_host_alloc(struct mx_device *d, size_t bytes)
{
    (void)d;
    if (bytes > SIZE_MAX - 2 * HOST_ALIGN)
        return NULL;
    /* calloc instead of aligned_alloc + memset: untouched pages stay unmapped. */
    char *raw = calloc(1, bytes + 2 * HOST_ALIGN);
    if (!raw)
        return NULL;
    uintptr_t at = ((uintptr_t)raw + 2 * HOST_ALIGN - 1) & ~(uintptr_t)(HOST_ALIGN - 1);
    char *p = raw + (at - (uintptr_t)raw);
    memcpy(p - sizeof raw, &raw, sizeof raw);
    return p;
}

void mx_host_free(struct mx_device *d, void *p)
{
    (void)d;
    if (!p)
        return;
    char *raw;
    memcpy(&raw, (char *)p - sizeof raw, sizeof raw);
    free(raw);
}

void mx_host_copy(struct mx_device *d, void *dst, const void *src, size_t bytes)
{
    (void)d;
    if (bytes > 0)
        memmove(dst, src, bytes);
}

void mx_host_sync(struct mx_device *d)
{
    (void)d;
}

/* ---- Weights ------------------------------------------------------------------------------ */

static mtplx_status check_mlxq(const struct mx_weight *w, mtplx_error *err)
{
    const char *why = mx_mlxq_check(w->bits, w->group, w->in);
    if (why)
        return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                        "MLX weight with %d bits, group %d, %lld "
                        "inputs: %s",
                        w->bits, w->group, (long long)w->in, why);
    if (!w->scales || !w->biases)
        return mx_error(err, MTPLX_ERR_FORMAT, "MLX weight lacks its scales or biases");
    if (w->sdtype != MX_F32 && w->sdtype != MX_F16 && w->sdtype != MX_BF16)
        return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                        "MLX scales of type %s; expected F32, F16 or BF16",
                        mx_dtype_name(w->sdtype));
    return MTPLX_OK;
}

static mtplx_status check_gguf(const struct mx_weight *w, mtplx_error *err)
{
    int values = mx_gguf_block_values(w->gguf_type);
    if (values == 0)
        return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                        "GGUF weight of type %d (%s), which this build "
                        "does not read",
                        w->gguf_type, mx_gguf_type_name(w->gguf_type));
    if (w->in % values != 0)
        return mx_error(err, MTPLX_ERR_FORMAT,
                        "GGUF %s weight with %lld inputs, which are no "
                        "whole blocks of %d",
                        mx_gguf_type_name(w->gguf_type), (long long)w->in, values);
    return MTPLX_OK;
}

mtplx_status mx_weight_check(const struct mx_weight *w, mtplx_error *err)
{
    /* The limit keeps every index times 4 bytes, and the number of tiles, far from overflow. */
    const int64_t limit = INT32_MAX / 2;
    if (w->out < 1 || w->in < 1 || w->out > limit || w->in > limit)
        return mx_error(err, MTPLX_ERR_UNSUPPORTED, "weight of shape [%lld, %lld] is out of range",
                        (long long)w->out, (long long)w->in);
    if (!w->data)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "weight has no data");
    switch (w->kind) {
    case MX_W_F32:
    case MX_W_F16:
    case MX_W_BF16: return MTPLX_OK;
    case MX_W_MLXQ: return check_mlxq(w, err);
    case MX_W_GGUF: return check_gguf(w, err);
    }
    return mx_error(err, MTPLX_ERR_UNSUPPORTED, "weight kind %d is unknown", (int)w->kind);
}

size_t mx_weight_row_bytes(const struct mx_weight *w)
{
    switch (w->kind) {
    case MX_W_F32: return (size_t)w->in * 4;
    case MX_W_MLXQ: return (size_t)w->in * (size_t)w->bits / 8;
    case MX_W_GGUF: return mx_gguf_row_bytes(w->gguf_type, w->in);
    default: return (size_t)w->in * 2;
    }
}

/* ---- Instruction sets --------------------------------------------------------------------- */

#define MAX_ISAS 4

/* Best first; every entry runs on this machine. Returns the count. */
#if defined(__x86_64__)
#include <cpuid.h>

static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static int usable_kernels(const struct mx_cpu_kernels *list[MAX_ISAS])
{
    int n = 0;
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        list[n++] = &mx_kernels_avx512;
    if (avx2)
        list[n++] = &mx_kernels_avx2;
    list[n++] = &mx_kernels_generic;
    return n;
}
#else
static int usable_kernels(const struct mx_cpu_kernels *list[MAX_ISAS])
{
    int n = 0;
#if defined(__aarch64__)
    list[n++] = &mx_kernels_neon;
#endif
    list[n++] = &mx_kernels_generic;
    return n;
}
#endif

static struct mx_device *open_isa(const char *isa, int threads, mtplx_error *err)
{
    if (strcmp(isa, "ref") == 0)
        return mx_ref_open(threads, err);
    const struct mx_cpu_kernels *list[MAX_ISAS];
    int n = usable_kernels(list);
    char have[64] = "ref";
    for (int i = 0; i < n; i++) {
        if (strcmp(list[i]->isa, isa) == 0)
            return mx_cpu_open(list[i], threads, err);
        size_t len = strlen(have);
        snprintf(have + len, sizeof have - len, ", %s", list[i]->isa);
    }
    mx_error(err, MTPLX_ERR_UNSUPPORTED,
             "MTPLX_CPU is \"%.32s\", which this machine does not have; it has %s", isa, have);
    return NULL;
}

struct mx_device *mx_device_open(const char *name, int threads, mtplx_error *err)
{
    if (name && strcmp(name, "ref") == 0)
        return mx_ref_open(threads, err);
    if (name && strcmp(name, "auto") != 0 && strcmp(name, "cpu") != 0) {
        mx_error(err, MTPLX_ERR_UNSUPPORTED,
                 "device \"%.32s\" is unknown; use \"auto\", \"cpu\" or \"ref\"", name);
        return NULL;
    }
    const char *isa = getenv("MTPLX_CPU");
    if (isa && *isa)
        return open_isa(isa, threads, err);
    const struct mx_cpu_kernels *list[MAX_ISAS];
    usable_kernels(list);
    return mx_cpu_open(list[0], threads, err);
}

void mx_device_close(struct mx_device *d)
{
    if (d)
        d->ops->close(d);
}
