/* Kernels of one instruction set: single-threaded inner loops over host memory.
 *
 * All sets are written once, in kernels_body.h, over a vector of 16 floats; a set supplies that
 * vector (two registers on AVX2, four on NEON, ...). So every set has the same order of every sum:
 * 16 interleaved partial sums in ascending order, added in the tree (i, i+8), (i, i+4), (i, i+2),
 * (i, i+1). Sets with fused multiply-add give the same bits as each other.
 *
 * None of the results depends on how the caller cuts rows, outputs or columns into calls. */
#ifndef MX_DEVICE_CPU_KERNELS_H
#define MX_DEVICE_CPU_KERNELS_H

#include "device/device.h"

/* Products run over chunks of the inputs that start at multiples of this; a result is the sum of
 * its chunks in ascending order. A multiple of every quantisation group. */
#define MX_CPU_CHUNK 1024

/* Rows of weights that are unpacked and multiplied together; unpack() fetches that far ahead. */
#define MX_CPU_UNPACK_OUTS 8

struct mx_cpu_kernels {
    const char *isa;             /* "avx2", what MTPLX_CPU names */
    const char *name;            /* "cpu/avx2" */
    enum mx_kv_format kv_format; /* F32 or F16: what kv_store() writes */
    int direct_rows;             /* most rows for which `direct` beats unpack + product */

    /* Inputs k0 .. k0+len of weight row `row` as float: a chunk, or what is left of the row. k0 is
     * a multiple of MX_CPU_CHUNK, len at most that. */
    void (*unpack)(const struct mx_weight *w, int64_t row, int64_t k0, int64_t len, float *out);
    /* y[r * ldy + o] (+)= sum over k < len of w[o * ldw + k] * x[r * ldx + k]. */
    void (*product)(const float *w, int64_t ldw, int outs, const float *x, int64_t ldx, int rows,
                    int64_t len, bool add, float *y, int64_t ldy);
    /* Whole products of outputs o0 .. o0+outs straight from a stored weight whose `in` is a
     * multiple of 32, for at most direct_rows rows: y[r * ldy + o], o from o0. The same bits as
     * unpack and product chunk by chunk. */
    void (*direct)(const struct mx_weight *w, int64_t o0, int outs, const float *x, int64_t ldx,
                   int rows, float *y, int64_t ldy);

    /* One row of the ops of the same name. */
    void (*rmsnorm)(const float *x, const float *w, float eps, float *y, int dim);
    void (*axpy)(float alpha, const float *x, float *y, int dim);
    void (*swiglu)(const float *gate, const float *up, float *y, int dim);
    int32_t (*argmax)(const float *x, int dim);

    /* One head: RMSNorm unless norm is NULL, then rotation of pairs (j, j + half); y may be x. */
    void (*head)(const float *x, const float *norm, float eps, int dim, int half, const float *cos,
                 const float *sin, float *y);
    /* n values to an entry of kv_format. */
    void (*kv_store)(const float *x, void *entry, int n);
    /* n values of kv_format or of a quantised format, the same floats as mx_kv_unpack() gives. */
    void (*kv_load)(enum mx_kv_format format, const void *entry, float *x, int64_t n);
    /* p[j] = exp(scale * p[j] - top) for j < n <= 64 with top = max(*top, scale * p[j]); stores the
     * new top, returns the sum and stores exp(old top - new top) in *fade. */
    float (*softmax)(float *p, int n, float scale, float *top, float *fade);
    /* y[i] = fade * y[i] + sum over j < n of p[j] * v[j * dim + i]. */
    void (*mix)(const float *p, int n, const float *v, int dim, float fade, float *y);
    /* y = y / total, times sigmoid(gate) unless gate is NULL. */
    void (*finish)(float *y, float total, const float *gate, int dim);

    /* y = silu(sum over j < taps of w[j * ldw + i] * x[j][i]) for i < n. */
    void (*conv)(const float *const *x, const float *w, int64_t ldw, int taps, int n, float *y);
    /* x *= factor / sqrt(sum of x^2 + eps). */
    void (*unit)(float *x, int n, float eps, float factor);
    /* Gated delta rule, one head, `rows` rows: reads state `in` [dk][dv], writes `out` (may be
     * `in`). q, k are [rows][dk]; v [rows][dv] is replaced by delta; y is [rows][ldy]. */
    void (*scan)(const float *in, float *out, int dk, int dv, int rows, const float *q,
                 const float *k, float *v, const float *alpha, const float *beta, float *y,
                 int64_t ldy);
    /* The state updates of scan() alone, from a tape. */
    void (*replay)(float *state, int dk, int dv, int rows, const float *k, const float *delta,
                   const float *alpha, int64_t stride);
    /* y = rmsnorm(y) * norm * silu(z). */
    void (*gated_norm)(float *y, const float *norm, float eps, const float *z, int n);
};

/* Defined in kernels_<isa>.c; those of other architectures are not in the build. */
extern const struct mx_cpu_kernels mx_kernels_generic;
extern const struct mx_cpu_kernels mx_kernels_avx2;
extern const struct mx_cpu_kernels mx_kernels_avx512;
extern const struct mx_cpu_kernels mx_kernels_neon;

#endif
