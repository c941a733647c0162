/* cpu device: life cycle, element-wise ops and norms.
 *
 *   C1  Results never depend on which thread runs a task, on how many threads there are, or on
 *       whether a small job ran on the caller: a task writes its own outputs, and sums live inside
 *       one kernel call (kernels.h).
 *   C2  In the exact profile weights are used where the checkpoint maps them. The fast profile
 * copies them once, at load, into large pages (cpu_weight.c): half the time of a decode step on 4
 * KB pages is address translation. */
#include "device/cpu/cpu.h"

#include "device/common.h"
#include "device/cpu/kernels.h"

#include <stdlib.h>

/* One element-wise op over [n][dim]; which fields are used is up to the task function. */
struct row_job {
    const struct mx_cpu_kernels *k;
    const float *a, *b, *w;
    int64_t lda, ldb;
    float *x, *y;
    int64_t ldx, ldy;
    float scalar;
    int dim;
    int32_t *ids;
};

static void norm_task(void *arg, int r, int thread)
{
    const struct row_job *j = arg;
    (void)thread;
    j->k->rmsnorm(j->a + r * j->lda, j->w, j->scalar, j->y + r * j->ldy, j->dim);
}

static void add_norm_task(void *arg, int r, int thread)
{
    const struct row_job *j = arg;
    (void)thread;
    float *x = j->x + r * j->ldx;
    j->k->axpy(1.0f, j->a + r * j->lda, x, j->dim);
    if (j->y)
        j->k->rmsnorm(x, j->w, j->scalar, j->y + r * j->ldy, j->dim);
}

static void axpy_task(void *arg, int r, int thread)
{
    const struct row_job *j = arg;
    (void)thread;
    j->k->axpy(j->scalar, j->a + r * j->lda, j->y + r * j->ldy, j->dim);
}

static void swiglu_task(void *arg, int r, int thread)
{
    const struct row_job *j = arg;
    (void)thread;
    j->k->swiglu(j->a + r * j->lda, j->b + r * j->ldb, j->y + r * j->ldy, j->dim);
}

static void argmax_task(void *arg, int r, int thread)
{
    const struct row_job *j = arg;
    (void)thread;
    j->ids[r] = j->k->argmax(j->a + r * j->lda, j->dim);
}

static void cpu_rmsnorm(struct mx_device *d, const float *x, int64_t ldx, const float *w, float eps,
                        float *y, int64_t ldy, int n, int dim)
{
    struct mx_cpu *cpu = (struct mx_cpu *)d;
    struct row_job j = {
        .k = cpu->k, .a = x, .lda = ldx, .w = w, .scalar = eps, .y = y, .ldy = ldy, .dim = dim};
    mx_cpu_run(cpu, norm_task, &j, n, (int64_t)n * dim);
}

static void cpu_add_rmsnorm(struct mx_device *d, float *x, int64_t ldx, const float *r, int64_t ldr,
                            const float *w, float eps, float *y, int64_t ldy, int n, int dim)
{
    struct mx_cpu *cpu = (struct mx_cpu *)d;
    struct row_job j = {.k = cpu->k,
                        .a = r,
                        .lda = ldr,
                        .w = w,
                        .scalar = eps,
                        .x = x,
                        .ldx = ldx,
                        .y = y,
                        .ldy = ldy,
                        .dim = dim};
    mx_cpu_run(cpu, add_norm_task, &j, n, (int64_t)n * dim);
}

static void cpu_axpy(struct mx_device *d, float alpha, const float *x, int64_t ldx, float *y,
                     int64_t ldy, int n, int dim)
{
    struct mx_cpu *cpu = (struct mx_cpu *)d;
    struct row_job j = {
        .k = cpu->k, .a = x, .lda = ldx, .scalar = alpha, .y = y, .ldy = ldy, .dim = dim};
    mx_cpu_run(cpu, axpy_task, &j, n, (int64_t)n * dim);
}

static void cpu_swiglu(struct mx_device *d, const float *gate, int64_t ldg, const float *up,
                       int64_t ldu, float *y, int64_t ldy, int n, int dim)
{
    struct mx_cpu *cpu = (struct mx_cpu *)d;
    struct row_job j = {
        .k = cpu->k, .a = gate, .lda = ldg, .b = up, .ldb = ldu, .y = y, .ldy = ldy, .dim = dim};
    /* an exponential costs about eight plain element operations */
    mx_cpu_run(cpu, swiglu_task, &j, n, 8 * (int64_t)n * dim);
}

static void cpu_argmax(struct mx_device *d, const float *x, int64_t ldx, int n, int dim,
                       int32_t *ids)
{
    struct mx_cpu *cpu = (struct mx_cpu *)d;
    struct row_job j = {.k = cpu->k, .a = x, .lda = ldx, .dim = dim, .ids = ids};
    mx_cpu_run(cpu, argmax_task, &j, n, (int64_t)n * dim);
}

static mtplx_status cpu_reserve(struct mx_device *d, int max_rows, int64_t max_context,
                                mtplx_error *err)
{
    (void)max_context; /* scratch per thread has one size, see MX_CPU_SCRATCH */
    return mx_cpu_reserve_acts((struct mx_cpu *)d, max_rows, err);
}

static void cpu_close(struct mx_device *d)
{
    struct mx_cpu *cpu = (struct mx_cpu *)d;
    mx_pool_free(cpu->pool);
    mx_host_free(d, cpu->scratch);
    mx_host_free(d, cpu->acts);
    mx_host_free(d, cpu->spans);
    free(cpu);
}

static const struct mx_device_ops cpu_ops = {
    .alloc = mx_host_alloc,
    .free = mx_host_free,
    .upload = mx_host_copy,
    .download = mx_host_copy,
    .copy = mx_host_copy,
    .reserve = cpu_reserve,
    .weight_bind = mx_cpu_weight_bind,
    .weight_unbind = mx_cpu_weight_unbind,
    .embed = mx_cpu_embed,
    .matmul = mx_cpu_matmul,
    .rmsnorm = cpu_rmsnorm,
    .add_rmsnorm = cpu_add_rmsnorm,
    .axpy = cpu_axpy,
    .swiglu = cpu_swiglu,
    .qkv = mx_cpu_qkv,
    .attention = mx_cpu_attention,
    .gated_delta = mx_cpu_gated_delta,
    .gated_delta_commit = mx_cpu_gated_delta_commit,
    .argmax = cpu_argmax,
    .sync = mx_host_sync,
    .close = cpu_close,
};

struct mx_device *mx_cpu_open(const struct mx_cpu_kernels *kernels, const struct mx_q8_kernels *q8,
                              int threads, mtplx_error *err)
{
    struct mx_cpu *cpu = calloc(1, sizeof *cpu);
    if (!cpu) {
        mx_error_nomem(err, "cpu device", sizeof *cpu);
        return NULL;
    }
    cpu->pool = mx_pool_new(threads, err);
    if (!cpu->pool) {
        free(cpu);
        return NULL;
    }
    cpu->base.ops = &cpu_ops;
    cpu->base.name = kernels->name;
    cpu->base.kv_format = kernels->kv_format;
    cpu->base.host_memory = true;
    cpu->base.threads = mx_pool_threads(cpu->pool);
    cpu->k = kernels;
    cpu->q8 = q8;
    cpu->base.int8 = q8 ? q8->name : NULL;
    size_t bytes = (size_t)cpu->base.threads * MX_CPU_SCRATCH * sizeof(float);
    cpu->scratch = mx_host_alloc(&cpu->base, bytes);
    cpu->spans = mx_host_alloc(&cpu->base, MX_CPU_SPAN_FLOATS * sizeof(float));
    if (!cpu->scratch || !cpu->spans) {
        mx_error_nomem(err, "scratch of the cpu device", bytes);
        cpu_close(&cpu->base);
        return NULL;
    }
    return &cpu->base;
}
