/* Choice of a device, and what the host-memory devices share. */
#include "device/device.h"

#include "device/common.h"
#include "device/cpu/cpu.h"
#include "device/cpu/cpu_check.h"
#include "device/cpu/kernels.h"
#include "device/ref/ref.h"
#include "format/gguf_quant.h"
#include "format/mlxq.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- Memory ------------------------------------------------------------------------------- */

#define HOST_ALIGN 64u
#define HUGE_PAGE ((size_t)2 << 20)

void mx_host_huge(void *p, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = ((uintptr_t)p + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)p + bytes) / page * page;
    if (bytes >= HUGE_PAGE && end > first)
        madvise((void *)first, end - first, MADV_HUGEPAGE); /* a wish: small pages work too */
#else
    (void)p, (void)bytes;
#endif
}

/* What stands before the memory that is handed out. */
struct host_head {
    char *raw;
    size_t mapped; /* bytes of a mapping of its own, or 0: from calloc */
};

/* Large pieces (KV blocks, recurrent slabs) get mappings of their own and go back to the system
 * when they are freed. malloc would serve them from its heap once it has seen a few come and go,
 * and what one long conversation took would stay with the process. Sanitizers watch what malloc
 * hands out. */
#if defined(__SANITIZE_ADDRESS__)
#define MAP_FROM SIZE_MAX
#else
#define MAP_FROM ((size_t)256 << 10)
#endif

_Static_assert(sizeof(struct host_head) <= HOST_ALIGN, "the head fits before aligned memory");

/* Zeroed; calloc instead of aligned_alloc + memset: untouched pages stay unmapped. */
static struct host_head host_pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
    if (bytes >= MAP_FROM && whole >= bytes) {
        void *p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p != MAP_FAILED) {
            mx_host_huge(p, whole); /* all of it: neighbours that differ cannot be merged */
            return (struct host_head){p, whole};
        }
    }
    char *raw = calloc(1, bytes); /* also where a process has all the mappings it may have */
    if (raw)
        mx_host_huge(raw, bytes);
    return (struct host_head){raw, 0};
}

void *mx_host_alloc(struct mx_device *d, size_t bytes)
{
    (void)d;
    if (bytes > SIZE_MAX - 2 * HOST_ALIGN)
        return NULL;
    struct host_head h = host_pages(bytes + 2 * HOST_ALIGN);
    if (!h.raw)
        return NULL;
    uintptr_t at = ((uintptr_t)h.raw + 2 * HOST_ALIGN - 1) & ~(uintptr_t)(HOST_ALIGN - 1);
    char *p = h.raw + (at - (uintptr_t)h.raw);
    memcpy(p - sizeof h, &h, sizeof h);
    return p;
}

void mx_host_free(struct mx_device *d, void *p)
{
    (void)d;
    if (!p)
        return;
    struct host_head h;
    memcpy(&h, (char *)p - sizeof h, sizeof h);
    if (h.mapped)
        munmap(h.raw, h.mapped);
    else
        free(h.raw);
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

#define MAX_ISAS 5

/* What one instruction set offers: float kernels, and int8 ones for the fast profile or NULL. */
struct isa {
    const char *name, *device; /* "avx2", "cpu/avx2" */
    const struct mx_cpu_kernels *k;
    const struct mx_q8_kernels *q8;
};

/* Best first; every entry runs on this machine. Returns the count. */
#if defined(__x86_64__)
#include <cpuid.h>

static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

#if defined(__linux__)
#include <sys/syscall.h>

/* Tiles are 8 KB of registers that a process has to ask the kernel for. */
static bool has_amx(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    unsigned a, b, c, d, tile = 1u << 24, int8 = 1u << 25;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & tile) && (d & int8) &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#else
static bool has_amx(void)
{
    return false;
}
#endif

static int usable_isas(struct isa list[MAX_ISAS])
{
    int n = 0;
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
    if (vnni && has_amx())
        list[n++] = (struct isa){"amx", "cpu/amx", &mx_kernels_avx512, &mx_q8_amx};
    if (avx512)
        list[n++] = (struct isa){"avx512", "cpu/avx512", &mx_kernels_avx512,
                                 vnni ? &mx_q8_vnni512 : &mx_q8_avx2};
    if (avx2)
        list[n++] = (struct isa){"avx2", "cpu/avx2", &mx_kernels_avx2, &mx_q8_avx2};
    list[n++] = (struct isa){"generic", "cpu/generic", &mx_kernels_generic, NULL};
    return n;
}
#else
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

static const struct mx_q8_kernels *arm_q8(void)
{
    unsigned long dotprod = 1ul << 20, i8mm = 1ul << 13; /* of AT_HWCAP and AT_HWCAP2 */
    if (getauxval(AT_HWCAP2) & i8mm)
        return &mx_q8_neoni8mm;
    return getauxval(AT_HWCAP) & dotprod ? &mx_q8_neondot : NULL;
}
#elif defined(__aarch64__)
static const struct mx_q8_kernels *arm_q8(void)
{
    return &mx_q8_neondot; /* all Apple silicon */
}
#endif

static int usable_isas(struct isa list[MAX_ISAS])
{
    int n = 0;
#if defined(__aarch64__)
    list[n++] = (struct isa){"neon", "cpu/neon", &mx_kernels_neon, arm_q8()};
#endif
    list[n++] = (struct isa){"generic", "cpu/generic", &mx_kernels_generic, NULL};
    return n;
}
#endif

static struct mx_device *open_isa(const struct isa *isa, int threads, mtplx_error *err)
{
    struct mx_device *d = mx_cpu_open(isa->k, isa->q8, threads, err);
    if (d)
        d->name = isa->device;
    return d;
}

/* A forced set runs although it fails the self-check, but says so. */
static struct mx_device *open_checked(const struct isa *isa, int threads, mtplx_error *err)
{
    struct mx_device *d = open_isa(isa, threads, err);
    if (d && !mx_cpu_check_floats(isa->k))
        d->note = "the float kernels that MTPLX_CPU asks for failed their self-check";
    return d;
}

static struct mx_device *open_forced(const char *name, int threads, mtplx_error *err)
{
    if (strcmp(name, "ref") == 0)
        return mx_ref_open(threads, err);
    struct isa list[MAX_ISAS];
    int n = usable_isas(list);
    char have[64] = "ref";
    for (int i = 0; i < n; i++) {
        if (strcmp(list[i].name, name) == 0)
            return open_checked(&list[i], threads, err);
        size_t len = strlen(have);
        snprintf(have + len, sizeof have - len, ", %s", list[i].name);
    }
    mx_error(err, MTPLX_ERR_UNSUPPORTED,
             "MTPLX_CPU is \"%.32s\", which this machine does not have; it has %s", name, have);
    return NULL;
}

/* The first instruction set whose kernels pass the self-check; the last one is plain C. */
static struct mx_device *open_best(int threads, mtplx_error *err)
{
    struct isa list[MAX_ISAS];
    int n = usable_isas(list), i = 0;
    while (i + 1 < n && !mx_cpu_check_floats(list[i].k))
        i++;
    struct mx_device *d = open_isa(&list[i], threads, err);
    if (d && i > 0)
        d->note = "faster kernels that this processor claims to run failed their self-check";
    return d;
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
    return isa && *isa ? open_forced(isa, threads, err) : open_best(threads, err);
}

void mx_device_close(struct mx_device *d)
{
    if (d)
        d->ops->close(d);
}

mtplx_status mx_device_probe(struct mx_device_probe *p, mtplx_error *err)
{
    *p = (struct mx_device_probe){.formats = 0};
    struct mx_device *d = mx_device_open("auto", 1, err);
    if (!d)
        return err ? err->status : MTPLX_ERR_UNSUPPORTED;
    p->device = d->name;
    if (strncmp(d->name, "cpu/", 4) == 0)
        mx_cpu_probe((struct mx_cpu *)d, p);
    p->note = d->note;
    mx_device_close(d);
    return MTPLX_OK;
}
