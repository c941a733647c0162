/* Reference device: life cycle, element-wise ops and norms.
 *
 *   R1  Every sum has one order that depends on its own operands only (device.h, D3): dot products
 *       through mx_ref_dot(), everything else strictly left to right.
 *   R2  The code must be built with -ffp-contract=off and without -ffast-math, so that a compiler
 *       cannot give the same expression two roundings in two places. */
#include "device/ref/ref.h"

#include "device/common.h"

#include <math.h>
#include <stdlib.h>

float mx_ref_dot(const float *a, const float *b, int64_t n)
{
    float s[16] = {0};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        for (int j = 0; j < 16; j++)
            s[j] += a[i + j] * b[i + j];
    }
    for (int j = 0; i < n; i++, j++)
        s[j] += a[i] * b[i];
    for (int width = 8; width > 0; width /= 2) {
        for (int j = 0; j < width; j++)
            s[j] += s[j + width];
    }
    return s[0];
}

float mx_ref_sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static void norm_row(const float *x, const float *w, float eps, float *y, int dim)
{
    float scale = 1.0f / sqrtf(mx_ref_dot(x, x, dim) / (float)dim + eps);
    for (int i = 0; i < dim; i++)
        y[i] = x[i] * scale * w[i];
}

static void ref_rmsnorm(struct mx_device *d, const float *x, int64_t ldx, const float *w, float eps,
                        float *y, int64_t ldy, int n, int dim)
{
    (void)d;
    for (int r = 0; r < n; r++)
        norm_row(x + r * ldx, w, eps, y + r * ldy, dim);
}

static void ref_axpy(struct mx_device *d, float alpha, const float *x, int64_t ldx, float *y,
                     int64_t ldy, int n, int dim)
{
    (void)d;
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < dim; i++)
            y[r * ldy + i] += alpha * x[r * ldx + i];
    }
}

static void ref_add_rmsnorm(struct mx_device *d, float *x, int64_t ldx, const float *r, int64_t ldr,
                            const float *w, float eps, float *y, int64_t ldy, int n, int dim)
{
    ref_axpy(d, 1.0f, r, ldr, x, ldx, n, dim);
    if (y)
        ref_rmsnorm(d, x, ldx, w, eps, y, ldy, n, dim);
}

static void ref_swiglu(struct mx_device *d, const float *gate, int64_t ldg, const float *up,
                       int64_t ldu, float *y, int64_t ldy, int n, int dim)
{
    (void)d;
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < dim; i++) {
            float g = gate[r * ldg + i];
            y[r * ldy + i] = g * mx_ref_sigmoid(g) * up[r * ldu + i];
        }
    }
}

static void ref_argmax(struct mx_device *d, const float *x, int64_t ldx, int n, int dim,
                       int32_t *ids)
{
    (void)d;
    for (int r = 0; r < n; r++) {
        float best = -INFINITY;
        bool found = false;
        ids[r] = 0;
        for (int i = 0; i < dim; i++) {
            float v = x[r * ldx + i];
            if (isnan(v) || (found && v <= best))
                continue;
            found = true;
            best = v;
            ids[r] = i;
        }
    }
}

static mtplx_status ref_reserve(struct mx_device *d, int max_rows, int64_t max_context,
                                mtplx_error *err)
{
    (void)d, (void)max_rows, (void)max_context, (void)err;
    return MTPLX_OK; /* every op works out of a few KB of stack */
}

static mtplx_status ref_weight_bind(struct mx_device *d, struct mx_weight *w, mtplx_error *err)
{
    (void)d;
    w->bound = NULL;
    return mx_weight_check(w, err);
}

static void ref_weight_unbind(struct mx_device *d, struct mx_weight *w)
{
    (void)d;
    w->bound = NULL;
}

static void ref_close(struct mx_device *d)
{
    struct mx_ref *ref = (struct mx_ref *)d;
    mx_pool_free(ref->pool);
    mx_host_free(d, ref->states);
    free(ref);
}

static const struct mx_device_ops ref_ops = {
    .alloc = mx_host_alloc,
    .free = mx_host_free,
    .upload = mx_host_copy,
    .download = mx_host_copy,
    .copy = mx_host_copy,
    .reserve = ref_reserve,
    .weight_bind = ref_weight_bind,
    .weight_unbind = ref_weight_unbind,
    .embed = mx_ref_embed,
    .matmul = mx_ref_matmul,
    .rmsnorm = ref_rmsnorm,
    .add_rmsnorm = ref_add_rmsnorm,
    .axpy = ref_axpy,
    .swiglu = ref_swiglu,
    .qkv = mx_ref_qkv,
    .attention = mx_ref_attention,
    .gated_delta = mx_ref_gated_delta,
    .gated_delta_commit = mx_ref_gated_delta_commit,
    .argmax = ref_argmax,
    .sync = mx_host_sync,
    .close = ref_close,
};

struct mx_device *mx_ref_open(int threads, mtplx_error *err)
{
    struct mx_ref *ref = calloc(1, sizeof *ref);
    if (!ref) {
        mx_error_nomem(err, "reference device", sizeof *ref);
        return NULL;
    }
    ref->pool = mx_pool_new(threads, err);
    if (!ref->pool) {
        free(ref);
        return NULL;
    }
    ref->base.ops = &ref_ops;
    ref->base.name = "ref";
    ref->base.kv_format = MX_KV_F32;
    ref->base.host_memory = true;
    ref->base.threads = mx_pool_threads(ref->pool);
    size_t bytes = (size_t)ref->base.threads * MX_REF_STATE * sizeof *ref->states;
    ref->states = mx_host_alloc(&ref->base, bytes);
    if (!ref->states) {
        mx_error_nomem(err, "reference device", bytes);
        ref_close(&ref->base);
        return NULL;
    }
    return &ref->base;
}
