/* MLX affine quantisation: packing against a bit-by-bit oracle, the reference checkpoints, and the
 * quantiser against the plain rule. */
#include "base/half.h"
#include "base/rng.h"
#include "format/checkpoint.h"
#include "format/config.h"
#include "format/mlxq.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const int all_bits[] = {2, 3, 4, 5, 6, 8};
static const int all_groups[] = {32, 64, 128};
static const enum mx_dtype all_sdtypes[] = {MX_F16, MX_BF16, MX_F32};

enum {
    IN = 256,
};

static double uniform(uint64_t *at)
{
    return mx_rng_uniform(7, (*at)++, MX_RNG_TARGET);
}

/* Roughly normal: sum of 12 uniforms. */
static float gauss(uint64_t *at)
{
    double s = -6;
    for (int i = 0; i < 12; i++)
        s += uniform(at);
    return (float)s;
}

/* ---- Packing ------------------------------------------------------------------------------ */

static void check_says_why(void **state)
{
    (void)state;
    assert_null(mx_mlxq_check(4, 64, 512));
    assert_null(mx_mlxq_check(3, 32, 32));
    assert_non_null(mx_mlxq_check(1, 64, 512));
    assert_non_null(mx_mlxq_check(7, 64, 512));
    assert_non_null(mx_mlxq_check(16, 64, 512));
    assert_non_null(mx_mlxq_check(4, 16, 512));
    assert_non_null(mx_mlxq_check(4, 0, 512));
    assert_non_null(mx_mlxq_check(4, 64, 96));
    assert_non_null(mx_mlxq_check(4, 64, 0));
    assert_non_null(mx_mlxq_check(4, 64, -64));
    assert_non_null(mx_mlxq_check(4, 64, INT64_MAX / 64 * 64));
    assert_int_equal(mx_mlxq_row_bytes(3, 64), 24);
    assert_int_equal(mx_mlxq_row_bytes(8, 64), 64);
}

/* Code k straight from the definition: bits [k*bits, (k+1)*bits) of the little-endian stream. */
static uint32_t oracle_get(const uint8_t *row, int bits, int k)
{
    uint32_t v = 0;
    for (int b = 0; b < bits; b++) {
        int at = k * bits + b;
        v |= (uint32_t)(row[at / 8] >> (at % 8) & 1) << b;
    }
    return v;
}

static void unpacking_follows_the_bit_stream(void **state)
{
    (void)state;
    uint64_t at = 0;
    for (size_t b = 0; b < 6; b++) {
        int bits = all_bits[b];
        size_t bytes = mx_mlxq_row_bytes(bits, IN);
        uint8_t *row = malloc(bytes); /* exact size: ASan sees a read past the row */
        for (size_t i = 0; i < bytes; i++)
            row[i] = (uint8_t)(uniform(&at) * 256);
        for (int k = 0; k < IN; k++)
            assert_int_equal(mx_mlxq_get(row, bits, k), oracle_get(row, bits, k));
        for (int k0 = 0; k0 < IN; k0 += 8) {
            for (int n = 0; n <= IN - k0; n += n < 20 ? 1 : 33) {
                uint8_t codes[IN];
                memset(codes, 0xee, sizeof codes);
                mx_mlxq_unpack(row, bits, k0, n, codes);
                for (int i = 0; i < n; i++)
                    assert_int_equal(codes[i], oracle_get(row, bits, k0 + i));
                if (n < IN)
                    assert_int_equal(codes[n], 0xee);
            }
        }
        free(row);
    }
}

static void dequantise_follows_the_formula(void **state)
{
    (void)state;
    uint64_t at = 1000;
    uint8_t row[IN];
    float scales[IN / 32], biases[IN / 32], out[IN];
    for (size_t b = 0; b < 6; b++) {
        for (size_t g = 0; g < 3; g++) {
            for (int i = 0; i < IN; i++)
                row[i] = (uint8_t)(uniform(&at) * 256);
            for (int i = 0; i < IN / 32; i++) {
                scales[i] = gauss(&at);
                biases[i] = gauss(&at);
            }
            mx_mlxq_dequant_row(row, scales, biases, MX_F32, all_bits[b], all_groups[g], IN, out);
            for (int k = 0; k < IN; k++) {
                int i = k / all_groups[g];
                float want = scales[i] * (float)oracle_get(row, all_bits[b], k) + biases[i];
                assert_true(fabsf(out[k] - want) <= 1e-6f * fabsf(want) + 1e-7f);
            }
        }
    }
}

/* ---- Quantiser ---------------------------------------------------------------------------- */

static float stored(enum mx_dtype t, float v)
{
    return t == MX_F16    ? mx_f16_to_f32(mx_f32_to_f16(v))
           : t == MX_BF16 ? mx_bf16_to_f32(mx_f32_to_bf16(v))
                          : v;
}

/* Squared error of one group under the plain MLX rule, written down independently. */
static double plain_error(const float *w, int n, int bits, enum mx_dtype t)
{
    float lo = w[0], hi = w[0];
    for (int i = 1; i < n; i++) {
        lo = fminf(lo, w[i]);
        hi = fmaxf(hi, w[i]);
    }
    float top = (float)((1 << bits) - 1), scale = fmaxf((hi - lo) / top, 1e-7f), bias = 0;
    bool low = fabsf(lo) > fabsf(hi);
    float edge = low ? lo : hi;
    scale = low ? scale : -scale;
    float q0 = roundf(edge / scale);
    if (q0 != 0) {
        scale = edge / q0;
        bias = edge;
    }
    scale = stored(t, scale);
    bias = stored(t, bias);
    double sum = 0;
    for (int i = 0; i < n; i++) {
        float q = fminf(fmaxf(rintf((w[i] - bias) / scale), 0), top);
        double d = (double)w[i] - (double)(scale * q + bias);
        sum += d * d;
    }
    return sum;
}

static double squared_error(const float *a, const float *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return sum;
}

struct packed {
    uint8_t row[IN];
    uint8_t scales[IN / 32 * 4], biases[IN / 32 * 4];
    float out[IN];
};

static void quantise(struct packed *p, const float *w, int bits, int group, enum mx_dtype t)
{
    memset(p, 0xcc, sizeof *p);
    mx_mlxq_quant_row(w, IN, bits, group, t, p->row, p->scales, p->biases);
    mx_mlxq_dequant_row(p->row, p->scales, p->biases, t, bits, group, IN, p->out);
}

/* Every weight sits on its nearest level of the stored grid, and no group is worse than plain. */
static void check_row(const float *w, int bits, int group, enum mx_dtype t, double *ratio)
{
    struct packed p;
    quantise(&p, w, bits, group, t);
    double plain = 0, ours = 0;
    for (int g = 0; g < IN / group; g++) {
        const float *wg = w + g * group, *og = p.out + g * group;
        float s = fabsf(mx_dtype_load(t, p.scales, g)), b = mx_dtype_load(t, p.biases, g);
        float s0 = mx_dtype_load(t, p.scales, g), end = b + s0 * (float)((1 << bits) - 1);
        float lo = fminf(b, end), hi = fmaxf(b, end);
        for (int i = 0; i < group; i++)
            if (wg[i] >= lo && wg[i] <= hi)
                assert_true(fabsf(wg[i] - og[i]) <= 0.5f * s * 1.001f + 1e-6f * fabsf(wg[i]));
        double e = squared_error(wg, og, group), e0 = plain_error(wg, group, bits, t);
        if (e > e0 * (1 + 1e-4) + 1e-30)
            fail_msg("%d bits, group %d: squared error %g, plain rule %g", bits, group, e, e0);
        ours += e;
        plain += e0;
    }
    for (int i = (int)mx_mlxq_row_bytes(bits, IN); i < IN; i++)
        assert_int_equal(p.row[i], 0xcc); /* nothing past the row */
    if (ratio)
        *ratio = ours / plain;
}

static void quantiser_beats_the_plain_rule(void **state)
{
    (void)state;
    uint64_t at = 5000;
    double gain4 = 0;
    int rows4 = 0;
    for (int trial = 0; trial < 6; trial++) {
        for (size_t c = 0; c < 6 * 3 * 3; c++) {
            int bits = all_bits[c % 6], group = all_groups[c / 6 % 3];
            float w[IN], spread = powf(10.0f, (float)(trial - 3));
            for (int i = 0; i < IN; i++)
                w[i] = spread * (gauss(&at) + (trial & 1 ? 2.0f : 0.0f));
            double ratio;
            check_row(w, bits, group, all_sdtypes[c / 18], &ratio);
            if (bits == 4) {
                gain4 += ratio;
                rows4++;
            }
        }
    }
    assert_true(gain4 / rows4 < 0.9);
}

static void quantiser_is_deterministic(void **state)
{
    (void)state;
    uint64_t at = 9000;
    float w[IN];
    for (int i = 0; i < IN; i++)
        w[i] = gauss(&at);
    struct packed a, b;
    quantise(&a, w, 4, 64, MX_BF16);
    quantise(&b, w, 4, 64, MX_BF16);
    assert_memory_equal(&a, &b, sizeof a);
}

/* What already lies on a grid comes back exactly: re-quantising is idempotent. */
static void quantiser_reproduces_exact_grids(void **state)
{
    (void)state;
    uint64_t at = 20000;
    for (size_t b = 0; b < 6; b++) {
        for (size_t g = 0; g < 3; g++) {
            int bits = all_bits[b], top = (1 << bits) - 1;
            float w[IN];
            for (int i = 0; i < IN; i++) {
                int q = (int)(uniform(&at) * (top + 1));
                if (i % all_groups[g] < 2)
                    q = i % 2 ? top : 0; /* both ends are in use */
                w[i] = 0.0625f * (float)q - 0.5f;
            }
            struct packed p;
            quantise(&p, w, bits, all_groups[g], MX_F32);
            for (int i = 0; i < IN; i++)
                assert_true(fabsf(p.out[i] - w[i]) < 1e-5f);
        }
    }
}

static void quantiser_handles_degenerate_groups(void **state)
{
    (void)state;
    float w[IN] = {0};
    struct packed p;
    for (size_t t = 0; t < 3; t++) {
        for (size_t b = 0; b < 6; b++) {
            memset(w, 0, sizeof w);
            quantise(&p, w, all_bits[b], 32, all_sdtypes[t]);
            for (int i = 0; i < IN; i++)
                assert_true(p.out[i] == 0.0f);
            for (int i = 0; i < IN; i++)
                w[i] = 0.3f;
            quantise(&p, w, all_bits[b], 32, all_sdtypes[t]);
            for (int i = 0; i < IN; i++)
                assert_true(fabsf(p.out[i] - 0.3f) < 0.002f);
            for (int i = 0; i < IN; i++)
                w[i] = i == 5 ? 100.0f : 0.0f; /* a single outlier */
            check_row(w, all_bits[b], 32, all_sdtypes[t], NULL);
        }
    }
}

static void quantiser_survives_hostile_values(void **state)
{
    (void)state;
    static const float odd[] = {NAN,  INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, FLT_MIN, 0x1p-149f,
                                -0.f, 65504.f,  65536.f,   1e-7f,   -1e-30f,  1.f};
    uint64_t at = 30000;
    for (int trial = 0; trial < 60; trial++) {
        for (size_t t = 0; t < 3; t++) {
            float w[IN];
            for (int i = 0; i < IN; i++)
                w[i] = uniform(&at) < 0.3 ? odd[(int)(uniform(&at) * 13)] : 0.01f * gauss(&at);
            struct packed p;
            int bits = all_bits[trial % 6];
            quantise(&p, w, bits, all_groups[trial % 3], all_sdtypes[t]);
            for (int g = 0; g < IN / all_groups[trial % 3]; g++) {
                assert_true(isfinite(mx_dtype_load(all_sdtypes[t], p.scales, g)));
                assert_true(isfinite(mx_dtype_load(all_sdtypes[t], p.biases, g)));
            }
        }
    }
}

/* ---- Reference checkpoints ---------------------------------------------------------------- */

static char *fixture(const char *name)
{
    const char *root = getenv("MTPLX_SRC");
    char *golden = mx_path_join(root ? root : ".", "tests/golden");
    char *path = mx_path_join(golden, name);
    free(golden);
    return path;
}

/* The original of an MLX tensor: the prefix of the conversion is dropped. */
static const struct mx_tensor *original(const struct mx_checkpoint *ck, const char *name)
{
    static const char prefix[] = "language_model.";
    size_t n = sizeof prefix - 1;
    return mx_checkpoint_find(ck, strncmp(name, prefix, n) == 0 ? name + n : name);
}

struct quantised {
    const struct mx_tensor *weight, *scales, *biases, *source;
    int bits, group;
    int64_t in;
};

/* Rows of a quantised copy lie within half a step of the source, but for the rounding of scale and
 * bias to 16 bits; and our quantiser does at least as well on the same source. */
static void compare_rows(const struct quantised *q, double *theirs, double *ours)
{
    enum mx_dtype t = q->scales->dtype;
    float *a = malloc((size_t)q->in * 2 * sizeof *a), *w = a + q->in;
    uint8_t *row = malloc(mx_mlxq_row_bytes(q->bits, q->in)), sc[256], bi[256];
    int64_t groups = q->in / q->group;
    assert_true(groups * 4 <= (int64_t)sizeof sc);
    for (int64_t r = 0; r < q->weight->shape[0]; r++) {
        const uint8_t *packed =
            (const uint8_t *)q->weight->data + (size_t)r * mx_mlxq_row_bytes(q->bits, q->in);
        const uint8_t *s = (const uint8_t *)q->scales->data + r * groups * mx_dtype_bytes(t);
        const uint8_t *b = (const uint8_t *)q->biases->data + r * groups * mx_dtype_bytes(t);
        for (int64_t i = 0; i < q->in; i++)
            w[i] = mx_dtype_load(q->source->dtype, q->source->data, r * q->in + i);
        mx_mlxq_dequant_row(packed, s, b, t, q->bits, q->group, q->in, a);
        for (int64_t i = 0; i < q->in; i++) {
            float step = fabsf(mx_dtype_load(t, s, i / q->group));
            float bias = fabsf(mx_dtype_load(t, b, i / q->group));
            float slack = t == MX_BF16 ? 0x1p-8f : 0x1p-11f;
            assert_true(fabsf(a[i] - w[i]) <=
                        0.5f * step + slack * (bias + step * (float)(1 << q->bits)));
        }
        *theirs += squared_error(a, w, (int)q->in);
        mx_mlxq_quant_row(w, q->in, q->bits, q->group, t, row, sc, bi);
        mx_mlxq_dequant_row(row, sc, bi, t, q->bits, q->group, q->in, a);
        *ours += squared_error(a, w, (int)q->in);
    }
    free(row);
    free(a);
}

static void compare_with_source(const char *copy, int expected)
{
    mtplx_error err = {0};
    struct mx_config config;
    char *dir = fixture(copy), *source_dir = fixture("qwen3_5_text");
    assert_int_equal(mx_config_open(&config, dir, &err), MTPLX_OK);
    struct mx_checkpoint *ck = mx_checkpoint_open(dir, config.root, &err);
    struct mx_checkpoint *source = mx_checkpoint_open(source_dir, NULL, &err);
    assert_non_null(ck);
    assert_non_null(source);
    int matrices = 0;
    double theirs = 0, ours = 0;
    for (size_t i = 0; i < mx_checkpoint_count(ck); i++) {
        struct quantised q = {.scales = mx_checkpoint_at(ck, i)};
        char path[200], name[220];
        size_t n = strlen(q.scales->name);
        if (n < 7 || strcmp(q.scales->name + n - 7, ".scales") != 0)
            continue;
        snprintf(path, sizeof path, "%.*s", (int)n - 7, q.scales->name);
        snprintf(name, sizeof name, "%s.biases", path);
        q.biases = mx_checkpoint_find(ck, name);
        snprintf(name, sizeof name, "%s.weight", path);
        q.weight = mx_checkpoint_find(ck, name);
        q.source = original(source, name);
        assert_non_null(q.weight);
        assert_non_null(q.biases);
        assert_non_null(q.source);
        struct mx_quant_spec spec;
        assert_int_equal(mx_config_quant(&config, path, &spec, &err), MTPLX_OK);
        q.bits = spec.bits;
        q.group = spec.group_size;
        q.in = q.source->shape[1];
        assert_null(mx_mlxq_check(q.bits, q.group, q.in));
        assert_int_equal((size_t)q.weight->shape[1] * 4, mx_mlxq_row_bytes(q.bits, q.in));
        assert_int_equal(q.scales->shape[1], q.in / q.group);
        compare_rows(&q, &theirs, &ours);
        matrices++;
    }
    assert_int_equal(matrices, expected);
    assert_true(ours < 0.9 * theirs);
    print_message("%s: squared error %.4g, ours %.4g (%.3f)\n", copy, theirs, ours, ours / theirs);
    mx_checkpoint_close(source);
    mx_checkpoint_close(ck);
    mx_config_close(&config);
    free(source_dir);
    free(dir);
}

static void reference_4_bit_copy(void **state)
{
    (void)state;
    compare_with_source("qwen3_5_text_mlx4", 64);
}

static void reference_mixed_copy(void **state)
{
    (void)state;
    compare_with_source("qwen3_5_text_mlx_mixed", 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_says_why),
        cmocka_unit_test(unpacking_follows_the_bit_stream),
        cmocka_unit_test(dequantise_follows_the_formula),
        cmocka_unit_test(quantiser_beats_the_plain_rule),
        cmocka_unit_test(quantiser_is_deterministic),
        cmocka_unit_test(quantiser_reproduces_exact_grids),
        cmocka_unit_test(quantiser_handles_degenerate_groups),
        cmocka_unit_test(quantiser_survives_hostile_values),
        cmocka_unit_test(reference_4_bit_copy),
        cmocka_unit_test(reference_mixed_copy),
    };
    return cmocka_run_group_tests_name("mlxq", tests, NULL, NULL);
}
