/* The cpu device: threaded ops over the kernels of one instruction set (kernels.h). */
#ifndef MX_DEVICE_CPU_CPU_H
#define MX_DEVICE_CPU_CPU_H

#include "base/threads.h"
#include "device/device.h"

struct mx_cpu_kernels;

struct mx_cpu {
    struct mx_device base;
    const struct mx_cpu_kernels *k;
    struct mx_pool *pool;
    float *scratch; /* [threads][MX_CPU_SCRATCH] */
};

/* Floats of scratch per thread; ops lay their own structures over it and never nest. Pages that no
 * op needs are never touched. */
#define MX_CPU_SCRATCH (256 * 1024)

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

struct mx_device *mx_cpu_open(const struct mx_cpu_kernels *kernels, int threads, mtplx_error *err);

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
