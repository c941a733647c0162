/* The cpu device: threaded ops over the kernels of one instruction set (kernels.h). */
#ifndef MX_DEVICE_CPU_CPU_H
#define MX_DEVICE_CPU_CPU_H

#include "base/threads.h"
#include "device/cpu/panels.h"
#include "device/device.h"

struct mx_cpu_chunk;
struct mx_cpu_kernels;

struct mx_cpu {
    struct mx_device base;
    const struct mx_cpu_kernels *k;
    const struct mx_q8_kernels *q8; /* NULL: the fast profile is the exact one */
    struct mx_pool *pool;
    float *scratch; /* [threads][MX_CPU_SCRATCH] */
    float *spans;   /* [MX_CPU_SPAN_FLOATS]: partial sums of an attention shared out by spans */

    /* int8 activations of one product group, blocks of 64 inputs. */
    struct mx_q8_block *acts;
    int64_t act_blocks;          /* capacity */
    int64_t act_width;           /* blocks of the widest bound weight */
    struct mx_cpu_chunk *chunks; /* memory of weights, cpu_weight.c */
    uint64_t checked, broken;    /* formats whose int8 kernels were checked, and failed */
};

/* What weight_bind() hangs on a weight in the fast profile: a copy in large pages. */
struct mx_cpu_weight {
    struct mx_weight dense;  /* 16- and 32-bit weights: the same with `data` in the copy */
    struct mx_panels panels; /* quantised ones; data is NULL for dense */
    void *memory;
    size_t bytes;
    struct mx_cpu_chunk *chunk; /* where memory lies */
};

mtplx_status mx_cpu_weight_bind(struct mx_device *d, struct mx_weight *w, mtplx_error *err);
void mx_cpu_weight_unbind(struct mx_device *d, struct mx_weight *w);

/* Room for the activations of `rows` rows of the widest bound weight; grows only. */
mtplx_status mx_cpu_reserve_acts(struct mx_cpu *cpu, int rows, mtplx_error *err);

/* Floats of scratch per thread; ops lay their own structures over it and never nest. The largest
 * use is a recurrent state of MX_GDN_MAX_DIM squared; pages that no op needs are never touched. */
#define MX_CPU_SCRATCH (1152 * 1024)

/* Enough for a verify block of the largest models; more rows are not shared out. */
#define MX_CPU_SPAN_FLOATS (4 * 1024 * 1024)

static inline float *mx_cpu_scratch(struct mx_cpu *cpu, int thread)
{
    return cpu->scratch + (size_t)thread * MX_CPU_SCRATCH;
}

/* Below this many floats of element-wise work, waking the pool costs more than it saves. */
#define MX_CPU_SMALL 32768

/* Runs on the calling thread when the whole job is small. Tasks must not care. */
static inline void mx_cpu_run(struct mx_cpu *cpu, mx_pool_fn *fn, void *arg, int tasks,
                              int64_t work)
{
    if (work >= MX_CPU_SMALL) {
        mx_pool_run(cpu->pool, fn, arg, tasks);
        return;
    }
    for (int task = 0; task < tasks; task++)
        fn(arg, task, 0);
}

/* q8: int8 kernels of the fast profile, or NULL. */
struct mx_device *mx_cpu_open(const struct mx_cpu_kernels *kernels, const struct mx_q8_kernels *q8,
                              int threads, mtplx_error *err);

/* Fills in int8, formats and broken. */
void mx_cpu_probe(struct mx_cpu *cpu, struct mx_device_probe *p);

void mx_cpu_embed(struct mx_device *d, const struct mx_weight *w, const int32_t *tokens, int n,
                  float *y, int64_t ldy);
void mx_cpu_matmul(struct mx_device *d, const struct mx_matmul *m, int count, const float *x,
                   int64_t ldx, int n);
void mx_cpu_qkv(struct mx_device *d, const struct mx_qkv *a);
void mx_cpu_attention(struct mx_device *d, const struct mx_attention *a);
void mx_cpu_gated_delta(struct mx_device *d, const struct mx_gdn *a);
void mx_cpu_gated_delta_commit(struct mx_device *d, const struct mx_gdn_layout *l, float *slab,
                               const float *tape, int keep);

#endif
