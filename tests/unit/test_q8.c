/* Panels and int8 kernels: packing against the formats' own de-quantisation, every instruction set
 * of this machine against the scalar definition bit for bit, row invariance, ragged shapes, values
 * that are not numbers, and the self-check finding a broken kernel. */
#include "base/half.h"
#include "device/common.h"
#include "device/cpu/cpu.h"
#include "device/cpu/cpu_check.h"
#include "device/cpu/kernels.h"
#include "format/gguf_quant.h"
#include "format/mlxq.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Weights of every format ---------------------------------------------------------------- */

struct format {
    const char *name;
    enum mx_weight_kind kind;
    int bits, group;      /* MLX */
    enum mx_dtype sdtype; /* MLX */
    int type;             /* GGUF */
};

static const struct format formats[] = {
    {"mlx 2 g32", MX_W_MLXQ, 2, 32, MX_F16, 0},   {"mlx 2 g64", MX_W_MLXQ, 2, 64, MX_BF16, 0},
    {"mlx 3 g32", MX_W_MLXQ, 3, 32, MX_BF16, 0},  {"mlx 3 g64", MX_W_MLXQ, 3, 64, MX_F16, 0},
    {"mlx 4 g32", MX_W_MLXQ, 4, 32, MX_F16, 0},   {"mlx 4 g64", MX_W_MLXQ, 4, 64, MX_BF16, 0},
    {"mlx 4 g128", MX_W_MLXQ, 4, 128, MX_F16, 0}, {"mlx 5 g32", MX_W_MLXQ, 5, 32, MX_F16, 0},
    {"mlx 5 g64", MX_W_MLXQ, 5, 64, MX_BF16, 0},  {"mlx 6 g32", MX_W_MLXQ, 6, 32, MX_BF16, 0},
    {"mlx 6 g64", MX_W_MLXQ, 6, 64, MX_F16, 0},   {"mlx 8 g32", MX_W_MLXQ, 8, 32, MX_F16, 0},
    {"mlx 8 g64", MX_W_MLXQ, 8, 64, MX_BF16, 0},  {"mlx 8 g128", MX_W_MLXQ, 8, 128, MX_BF16, 0},
    {"Q4_0", MX_W_GGUF, 0, 0, 0, MX_GGUF_Q4_0},   {"Q4_1", MX_W_GGUF, 0, 0, 0, MX_GGUF_Q4_1},
    {"Q5_0", MX_W_GGUF, 0, 0, 0, MX_GGUF_Q5_0},   {"Q5_1", MX_W_GGUF, 0, 0, 0, MX_GGUF_Q5_1},
    {"Q8_0", MX_W_GGUF, 0, 0, 0, MX_GGUF_Q8_0},   {"Q4_K", MX_W_GGUF, 0, 0, 0, MX_GGUF_Q4_K},
    {"Q5_K", MX_W_GGUF, 0, 0, 0, MX_GGUF_Q5_K},   {"Q6_K", MX_W_GGUF, 0, 0, 0, MX_GGUF_Q6_K},
};
enum { FORMATS = sizeof formats / sizeof *formats };

static const struct mx_q8_kernels *kernels[4];
static int n_kernels;

static uint64_t seed;

static uint8_t noise(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint8_t)(seed >> 56);
}

static void put_half(uint8_t *p, float v)
{
    uint16_t h = mx_f32_to_f16(v);
    memcpy(p, &h, sizeof h);
}

/* Sane 16-bit fields of a GGUF block, so that results are numbers. */
static void fix_block(int type, uint8_t *b)
{
    float d = 0.01f + (float)noise() / 4096;
    if (type == MX_GGUF_Q6_K) {
        put_half(b + 208, d);
        return;
    }
    put_half(b, d);
    if (type != MX_GGUF_Q4_0 && type != MX_GGUF_Q5_0 && type != MX_GGUF_Q8_0)
        put_half(b + 2, (float)noise() / 512);
}

struct owned {
    struct mx_weight w;
    uint8_t *data;
    uint8_t *scales, *biases;
};

static struct owned make_weight(const struct format *f, int64_t out, int64_t in)
{
    struct owned o = {.w = {.kind = f->kind, .out = out, .in = in}};
    bool mlx = f->kind == MX_W_MLXQ;
    size_t row = mlx ? mx_mlxq_row_bytes(f->bits, in) : mx_gguf_row_bytes(f->type, in);
    size_t bytes = (size_t)out * row;
    o.data = malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        o.data[i] = noise();
    o.w.data = o.data;
    if (!mlx) {
        o.w.gguf_type = f->type;
        size_t block = (size_t)mx_gguf_block_bytes(f->type);
        for (size_t i = 0; i < bytes; i += block)
            fix_block(f->type, o.data + i);
        return o;
    }
    size_t groups = (size_t)(out * in / f->group);
    o.scales = malloc(2 * groups);
    o.biases = malloc(2 * groups);
    for (size_t i = 0; i < groups; i++) {
        float s = ((float)noise() - 100) / 2048, b = ((float)noise() - 128) / 64;
        uint16_t hs = f->sdtype == MX_BF16 ? mx_f32_to_bf16(s) : mx_f32_to_f16(s);
        uint16_t hb = f->sdtype == MX_BF16 ? mx_f32_to_bf16(b) : mx_f32_to_f16(b);
        memcpy(o.scales + 2 * i, &hs, 2);
        memcpy(o.biases + 2 * i, &hb, 2);
    }
    o.w.scales = o.scales;
    o.w.biases = o.biases;
    o.w.bits = f->bits;
    o.w.group = f->group;
    o.w.sdtype = f->sdtype;
    return o;
}

static void free_weight(struct owned *o)
{
    free(o->data);
    free(o->scales);
    free(o->biases);
}

static void weight_row(const struct mx_weight *w, int64_t r, float *out)
{
    if (w->kind == MX_W_GGUF) {
        const uint8_t *p = w->data;
        mx_gguf_dequant_row(w->gguf_type, p + (size_t)r * mx_gguf_row_bytes(w->gguf_type, w->in),
                            w->in, out);
        return;
    }
    size_t side = 2 * (size_t)(r * w->in / w->group);
    mx_mlxq_dequant_row((const uint8_t *)w->data + (size_t)r * mx_mlxq_row_bytes(w->bits, w->in),
                        (const uint8_t *)w->scales + side, (const uint8_t *)w->biases + side,
                        w->sdtype, w->bits, w->group, w->in, out);
}

static struct mx_panels pack(const struct mx_weight *w)
{
    struct mx_panels p;
    assert_true(mx_panels_layout(w, &p));
    p.data = malloc((size_t)p.count * p.panel_bytes);
    mx_panels_pack(w, &p, 0, p.count);
    return p;
}

static float *make_rows(int rows, int64_t in)
{
    float *x = malloc((size_t)rows * (size_t)in * sizeof *x);
    for (int64_t i = 0; i < rows * in; i++)
        x[i] = ((float)noise() - 128) / (float)(1 + noise() % 64);
    return x;
}

static struct mx_q8_block *quantise(const struct mx_q8_kernels *k, const struct mx_panels *p,
                                    const float *x, int rows)
{
    int64_t n = mx_q8_blocks(p->in);
    struct mx_q8_block *q = calloc((size_t)(rows * n), sizeof *q);
    for (int r = 0; r < rows; r++)
        k->quantise(x + r * p->in, p->in, mx_panels_group(p), q + r * n);
    return q;
}

/* ---- Tests ---------------------------------------------------------------------------------- */

static int64_t usable_in(const struct format *f, int64_t in)
{
    int64_t unit = f->kind == MX_W_MLXQ ? f->group : mx_gguf_block_values(f->type);
    return (in + unit - 1) / unit * unit;
}

/* The scalar definition over panels is the product of the stored weights with the rounded
 * activations. */
static void test_definition(void **state)
{
    (void)state;
    for (int i = 0; i < FORMATS; i++) {
        int64_t in = usable_in(&formats[i], 352), out = 21;
        struct owned o = make_weight(&formats[i], out, in);
        struct mx_panels p = pack(&o.w);
        float *x = make_rows(1, in), *row = malloc((size_t)in * sizeof *row), y[21];
        struct mx_q8_block *q = quantise(&mx_q8_scalar, &p, x, 1);
        mx_q8_scalar.product(&p, 0, p.count, q, mx_q8_blocks(in), 1, y, out);
        for (int64_t r = 0; r < out; r++) {
            double want = 0, size = 0;
            weight_row(&o.w, r, row);
            for (int64_t k = 0; k < in; k++) {
                const struct mx_q8_block *b = &q[k / 64];
                int g = mx_panels_group(&p) == 64 ? 0 : (int)(k % 64 / 32);
                double v = (double)b->scale[g] * b->code[k % 64];
                want += (double)row[k] * v;
                size += fabs((double)row[k] * v);
                assert_true(fabs(v - (double)x[k]) <= (double)b->scale[g] * 0.51);
            }
            if (!(fabs((double)y[r] - want) <= 1e-5 * size + 1e-6))
                fail_msg("%s: output %d is %g instead of %g", formats[i].name, (int)r, (double)y[r],
                         want);
        }
        free(q);
        free(x);
        free(row);
        free(p.data);
        free_weight(&o);
    }
}

/* Every instruction set, any number of rows, any cut of panels: the same bits. */
static void check_bits(const struct mx_q8_kernels *k, const struct format *f, int64_t out,
                       int64_t in)
{
    enum { ROWS = 37 };
    struct owned o = make_weight(f, out, in);
    struct mx_panels p = pack(&o.w);
    int64_t n = mx_q8_blocks(in);
    float *x = make_rows(ROWS, in);
    float *want = malloc((size_t)(ROWS * out) * sizeof *want),
          *y = malloc((size_t)(ROWS * out) * 4);
    struct mx_q8_block *q = quantise(k, &p, x, ROWS), *qs = quantise(&mx_q8_scalar, &p, x, ROWS);
    assert_memory_equal(q, qs, (size_t)(ROWS * n) * sizeof *q);
    mx_q8_scalar.product(&p, 0, p.count, q, n, ROWS, want, out);
    for (int rows = 1; rows <= ROWS; rows += rows < 20 ? 1 : 6) {
        memset(y, 0xff, (size_t)(ROWS * out) * 4);
        int64_t half = p.count / 2;
        k->product(&p, 0, half, q, n, rows, y, out);
        k->product(&p, half, p.count - half, q, n, rows, y, out);
        if (memcmp(y, want, (size_t)(rows * out) * 4) != 0)
            fail_msg("%s: %s, %d rows of %d x %d differ from the definition", k->name, f->name,
                     rows, (int)out, (int)in);
    }
    free(q);
    free(qs);
    free(x);
    free(want);
    free(y);
    free(p.data);
    free_weight(&o);
}

static void test_bits(void **state)
{
    (void)state;
    static const int64_t outs[] = {1, 16, 37}, ins[] = {32, 64, 288};
    for (int k = 0; k < n_kernels; k++)
        for (int i = 0; i < FORMATS; i++)
            for (int j = 0; j < 3; j++)
                check_bits(kernels[k], &formats[i], outs[j], usable_in(&formats[i], ins[j]));
}

/* Infinite and missing numbers must not become plausible ones; tiny ones become zero. */
static void test_not_numbers(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < n_kernels; k++) {
        for (int i = 0; i < 3; i++) {
            struct mx_q8_block q[2], want[2];
            float x[96] = {1, 2, 3};
            x[40] = bad[i];
            memset(q, 0, sizeof q);
            memset(want, 0, sizeof want);
            kernels[k]->quantise(x, 96, 32, q);
            mx_q8_scalar.quantise(x, 96, 32, want);
            assert_memory_equal(q->code, want->code, 64);
            assert_true(isfinite(q[0].scale[0]) && isnan(q[0].scale[1]));
            assert_true(q[1].scale[0] == 0 && q[1].scale[1] == 0);
        }
        struct mx_q8_block q[1];
        float tiny[64];
        for (int i = 0; i < 64; i++)
            tiny[i] = 1e-40f;
        kernels[k]->quantise(tiny, 64, 64, q);
        assert_true(q->scale[0] == 0 && q->code[0] == 0 && q->sum[0] == 0);
    }
}

static void test_formats_without_panels(void **state)
{
    (void)state;
    struct mx_panels p;
    struct mx_weight dense = {.kind = MX_W_BF16, .out = 4, .in = 64};
    struct mx_weight f32_scales = {
        .kind = MX_W_MLXQ, .out = 4, .in = 64, .bits = 4, .group = 64, .sdtype = MX_F32};
    struct mx_weight unknown = {.kind = MX_W_GGUF, .out = 4, .in = 256, .gguf_type = 99};
    assert_false(mx_panels_layout(&dense, &p));
    assert_false(mx_panels_layout(&f32_scales, &p));
    assert_false(mx_panels_layout(&unknown, &p));
}

/* Packed weights are not much larger than stored ones. */
static void test_size(void **state)
{
    (void)state;
    for (int i = 0; i < FORMATS; i++) {
        struct mx_panels p;
        struct owned o = make_weight(&formats[i], 64, 1024);
        assert_true(mx_panels_layout(&o.w, &p));
        double stored = 64.0 * (double)mx_weight_row_bytes(&o.w);
        if (o.w.kind == MX_W_MLXQ)
            stored += 64.0 * 1024 / o.w.group * 4;
        double ratio = (double)p.count * (double)p.panel_bytes / stored;
        assert_true(ratio < (formats[i].group == 128 ? 1.07 : 1.03) && ratio > 0.99);
        free_weight(&o);
    }
}

/* A device with its int8 kernels against one in the exact profile, and its life cycle. */
static void test_device_profiles(void **state)
{
    (void)state;
    struct owned o = make_weight(&formats[4], 40, 96);
    float *x = make_rows(33, 96), *a = malloc(33 * 40 * 4), *b = malloc(33 * 40 * 4);
    for (int threads = 1; threads <= 3; threads++) {
        mtplx_error err = {0};
        struct mx_device *d = mx_device_open("cpu", threads, &err);
        struct mx_cpu *cpu = (struct mx_cpu *)d;
        struct mx_weight fast = o.w, exact = o.w;
        assert_non_null(d);
        assert_int_equal(d->ops->weight_bind(d, &exact, &err), MTPLX_OK);
        d->fast = true;
        assert_int_equal(d->ops->weight_bind(d, &fast, &err), MTPLX_OK);
        assert_null(exact.bound);
        assert_true((fast.bound != NULL) == (cpu->q8 != NULL));
        struct mx_matmul mf = {&fast, a, 40}, me = {&exact, b, 40};
        d->ops->matmul(d, &mf, 1, x, 96, 33); /* more rows than binding reserved */
        d->ops->matmul(d, &me, 1, x, 96, 33);
        for (int r = 0; r < 33; r++) {
            float size = 0;
            for (int k = 0; k < 96; k++)
                size += 3 * fabsf(x[r * 96 + k]); /* no weight is larger than 3 */
            for (int o2 = 0; o2 < 40; o2++)
                assert_true(fabsf(a[r * 40 + o2] - b[r * 40 + o2]) <= 0.02f * size);
        }
        d->ops->weight_unbind(d, &fast);
        d->ops->weight_unbind(d, &exact);
        mx_device_close(d);
    }
    free(x);
    free(a);
    free(b);
    free_weight(&o);
}

/* ---- Self-check ----------------------------------------------------------------------------- */

static void wrong_product(const struct mx_panels *p, int64_t first, int64_t n,
                          const struct mx_q8_block *q, int64_t ldq, int rows, float *y, int64_t ldy)
{
    mx_q8_scalar.product(p, first, n, q, ldq, rows, y, ldy);
    if (rows == 3)
        y[2 * ldy + 1] = nextafterf(y[2 * ldy + 1], 1e9f); /* one bit, in one row count */
}

static void wrong_swiglu(const float *gate, const float *up, float *y, int dim)
{
    mx_kernels_generic.swiglu(gate, up, y, dim);
    y[dim - 1] += 1;
}

static void test_self_check(void **state)
{
    (void)state;
    struct mx_panels p;
    struct owned o = make_weight(&formats[5], 16, 64);
    assert_true(mx_panels_layout(&o.w, &p));
    for (int k = 0; k < n_kernels; k++)
        assert_true(mx_cpu_check_q8(kernels[k], &p));
    struct mx_q8_kernels broken = mx_q8_scalar;
    broken.product = wrong_product;
    assert_false(mx_cpu_check_q8(&broken, &p));
    assert_true(mx_cpu_check_floats(&mx_kernels_generic));
    struct mx_cpu_kernels bad = mx_kernels_generic;
    bad.swiglu = wrong_swiglu;
    assert_false(mx_cpu_check_floats(&bad));
    free_weight(&o);
}

/* A format that fails runs in float32, and the device says so. */
static void test_fallback(void **state)
{
    (void)state;
    struct owned o = make_weight(&formats[4], 40, 96);
    struct mx_q8_kernels broken = mx_q8_scalar;
    mtplx_error err = {0};
    broken.product = wrong_product;
    struct mx_device *d = mx_cpu_open(&mx_kernels_generic, &broken, 1, &err);
    assert_non_null(d);
    d->fast = true;
    assert_int_equal(d->ops->weight_bind(d, &o.w, &err), MTPLX_OK);
    assert_null(o.w.bound);
    assert_non_null(d->note);
    d->ops->weight_unbind(d, &o.w);
    mx_device_close(d);
    free_weight(&o);
}

/* All that this processor runs; the device knows the best. */
static void find_kernels(void)
{
    kernels[n_kernels++] = &mx_q8_scalar;
    struct mx_device *d = mx_device_open("cpu", 1, NULL);
    const struct mx_q8_kernels *best = d ? ((struct mx_cpu *)d)->q8 : NULL;
    mx_device_close(d);
#if defined(__x86_64__)
    if (best)
        kernels[n_kernels++] = &mx_q8_avx2;
    if (best == &mx_q8_amx)
        kernels[n_kernels++] = &mx_q8_vnni512;
    if (best && best != &mx_q8_avx2)
        kernels[n_kernels++] = best;
#elif defined(__aarch64__)
    if (best == &mx_q8_neoni8mm)
        kernels[n_kernels++] = &mx_q8_neondot;
    if (best)
        kernels[n_kernels++] = best;
#endif
    for (int i = 0; i < n_kernels; i++)
        print_message("int8 kernels: %s\n", kernels[i]->name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_definition),  cmocka_unit_test(test_bits),
        cmocka_unit_test(test_not_numbers), cmocka_unit_test(test_formats_without_panels),
        cmocka_unit_test(test_size),        cmocka_unit_test(test_device_profiles),
        cmocka_unit_test(test_self_check),  cmocka_unit_test(test_fallback),
    };
    find_kernels();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
