/* GGUF blocks: every type against blocks worked out by hand, quantisers against error bounds and
 * hostile values, and the devices against the scalar de-quantiser. */
#include "base/half.h"
#include "base/rng.h"
#include "device/device.h"
#include "format/gguf_quant.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const int readable[] = {MX_GGUF_Q4_0, MX_GGUF_Q4_1, MX_GGUF_Q5_0,   MX_GGUF_Q5_1,
                               MX_GGUF_Q8_0, MX_GGUF_Q4_K, MX_GGUF_Q5_K,   MX_GGUF_Q6_K,
                               MX_GGUF_Q2_K, MX_GGUF_Q3_K, MX_GGUF_IQ4_NL, MX_GGUF_IQ4_XS};
#define READABLE (sizeof readable / sizeof *readable)

static uint64_t at;

static float gauss(void)
{
    double s = -6;
    for (int i = 0; i < 12; i++)
        s += mx_rng_uniform(11, at++, MX_RNG_TARGET);
    return (float)s;
}

static void put_half(uint8_t *p, float v)
{
    uint16_t h = mx_f32_to_f16(v);
    memcpy(p, &h, sizeof h);
}

/* ---- Types -------------------------------------------------------------------------------- */

static void sizes(void **state)
{
    (void)state;
    static const int bytes[] = {18, 20, 22, 24, 34, 144, 176, 210, 84, 110, 18, 136};
    for (size_t i = 0; i < READABLE; i++) {
        int n = mx_gguf_block_values(readable[i]);
        assert_int_equal(n, i < 5 || readable[i] == MX_GGUF_IQ4_NL ? 32 : 256);
        assert_int_equal(mx_gguf_block_bytes(readable[i]), bytes[i]);
        assert_int_equal(mx_gguf_row_bytes(readable[i], 3 * n), 3 * bytes[i]);
        assert_int_equal(mx_gguf_row_bytes(readable[i], n + 1), 0);
        assert_int_equal(mx_gguf_row_bytes(readable[i], 0), 0);
        assert_int_equal(mx_gguf_row_bytes(readable[i], -n), 0);
        assert_int_equal(mx_gguf_row_bytes(readable[i], INT64_MAX / n * n), 0);
    }
    static const int others[] = {MX_GGUF_F32, MX_GGUF_F16, MX_GGUF_BF16, 4,        5,
                                 9,           99,          -1,           INT32_MAX};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_int_equal(mx_gguf_block_values(others[i]), 0);
        assert_int_equal(mx_gguf_row_bytes(others[i], 256), 0);
        assert_non_null(mx_gguf_type_name(others[i]));
        assert_false(mx_gguf_can_quant(others[i]));
    }
    assert_string_equal(mx_gguf_type_name(MX_GGUF_Q4_K), "Q4_K");
    assert_string_equal(mx_gguf_type_name(16), "IQ2_XXS");
    assert_string_equal(mx_gguf_type_name(99), "unknown");
}

/* ---- Blocks worked out by hand ------------------------------------------------------------ */

static void assert_value(const float *out, int i, double want)
{
    if (out[i] != (float)want)
        fail_msg("value %d is %.9g, not %.9g", i, out[i], want);
}

/* Byte 3 is 0xa5 and byte 15 is 0x1f: values 3, 19, 15 and 31. */
static void small_blocks(void **state)
{
    (void)state;
    uint8_t b[34] = {0};
    float out[32];
    put_half(b, 0.5f);
    b[2 + 3] = 0xa5;
    b[2 + 15] = 0x1f;
    mx_gguf_dequant_row(MX_GGUF_Q4_0, b, 32, out);
    assert_value(out, 0, -4);   /* (0 - 8) / 2 */
    assert_value(out, 3, -1.5); /* (5 - 8) / 2 */
    assert_value(out, 19, 1);   /* (10 - 8) / 2 */
    assert_value(out, 15, 3.5);
    assert_value(out, 31, -3.5);

    memset(b, 0, sizeof b);
    put_half(b, 0.25f);
    put_half(b + 2, -3);
    b[4 + 3] = 0xa5;
    mx_gguf_dequant_row(MX_GGUF_Q4_1, b, 32, out);
    assert_value(out, 0, -3);
    assert_value(out, 3, -1.75);
    assert_value(out, 19, -0.5);

    memset(b, 0, sizeof b);
    put_half(b, 2);
    b[2] = 1 << 3; /* high bit of value 3 */
    b[5] = 1 << 7; /* and of value 31 */
    b[6 + 3] = 0xa5;
    b[6 + 15] = 0x1f;
    mx_gguf_dequant_row(MX_GGUF_Q5_0, b, 32, out);
    assert_value(out, 0, -32);
    assert_value(out, 3, 10); /* 2 * (16 + 5 - 16) */
    assert_value(out, 19, -12);
    assert_value(out, 31, 2); /* 2 * (16 + 1 - 16) */

    memset(b, 0, sizeof b);
    put_half(b, 2);
    put_half(b + 2, 100);
    b[4] = 1 << 3;
    b[8 + 3] = 0xa5;
    mx_gguf_dequant_row(MX_GGUF_Q5_1, b, 32, out);
    assert_value(out, 3, 142);
    assert_value(out, 19, 120);

    memset(b, 0, sizeof b);
    put_half(b, 0.125f);
    b[2] = 0x80;
    b[2 + 31] = 0x7f;
    mx_gguf_dequant_row(MX_GGUF_Q8_0, b, 32, out);
    assert_value(out, 0, -16);
    assert_value(out, 31, 127 * 0.125);
}

/* Scales of sub-blocks 1 (below 4) and 6 (above), see gguf_quant.h. */
static void set_scales(uint8_t s[12])
{
    s[1] = 33; /* scale 1 */
    s[5] = 7;  /* min 1 */
    s[10] = (45 & 15) | (50 & 15) << 4;
    s[2] = (uint8_t)((45 >> 4) << 6); /* scale 6 = 45 */
    s[6] = (uint8_t)((50 >> 4) << 6); /* min 6 = 50 */
}

static void k_blocks(void **state)
{
    (void)state;
    uint8_t b[210] = {0};
    float out[256];
    put_half(b, 0.5f);
    put_half(b + 2, 0.25f);
    set_scales(b + 4);
    b[16 + 4] = 0x9c;           /* bytes 0..31: value 4 of sub-blocks 0 and 1 */
    b[16 + 32 * 3 + 31] = 0x2d; /* value 31 of sub-blocks 6 and 7 */
    mx_gguf_dequant_row(MX_GGUF_Q4_K, b, 256, out);
    assert_value(out, 4, 0);
    assert_value(out, 32 + 4, 0.5 * 33 * 9 - 0.25 * 7);
    assert_value(out, 32 + 5, -0.25 * 7);
    assert_value(out, 6 * 32 + 31, 0.5 * 45 * 13 - 0.25 * 50);
    assert_value(out, 7 * 32 + 31, 0);

    memset(b, 0, sizeof b);
    put_half(b, 0.5f);
    put_half(b + 2, 0.25f);
    set_scales(b + 4);
    b[16 + 4] = 1 << 1;  /* high bit of value 4 of sub-block 1 */
    b[16 + 31] = 1 << 6; /* and of value 31 of sub-block 6 */
    b[48 + 4] = 0x9c;
    b[48 + 32 * 3 + 31] = 0x2d;
    mx_gguf_dequant_row(MX_GGUF_Q5_K, b, 256, out);
    assert_value(out, 32 + 4, 0.5 * 33 * 25 - 0.25 * 7);
    assert_value(out, 6 * 32 + 31, 0.5 * 45 * 29 - 0.25 * 50);

    memset(b, 0, sizeof b);
    put_half(b + 208, 0.5f);
    for (int i = 0; i < 16; i++)
        b[192 + i] = (uint8_t)(int8_t)(i - 8);
    b[3] = 0x5a;             /* half 0, values 3 (low) and 64 + 3 (high) */
    b[64 + 32 + 7] = 0xf1;   /* half 1, values 32 + 7 and 96 + 7 */
    b[128 + 3] = 2 | 1 << 4; /* bits 4..5 of values 3 and 67 */
    b[128 + 32 + 7] = 3 << 2;
    mx_gguf_dequant_row(MX_GGUF_Q6_K, b, 256, out);
    assert_value(out, 3, 0.5 * -8 * (32 + 10 - 32));
    assert_value(out, 67, 0.5 * (67 / 16 - 8) * (16 + 5 - 32));
    assert_value(out, 128 + 39, 0.5 * ((128 + 39) / 16 - 8) * (48 + 1 - 32));
    assert_value(out, 128 + 103, 0.5 * ((128 + 103) / 16 - 8) * (15 - 32));
    assert_value(out, 0, 0.5 * -8 * -32);
}

static void other_blocks(void **state)
{
    (void)state;
    uint8_t b[136] = {0};
    float out[256];
    put_half(b, 0.5f);
    b[2 + 3] = 0xa5;
    mx_gguf_dequant_row(MX_GGUF_IQ4_NL, b, 32, out);
    assert_value(out, 0, -63.5);
    assert_value(out, 3, -17.5);
    assert_value(out, 19, 12.5);

    memset(b, 0, sizeof b);
    put_half(b, 0.5f);
    b[3] = 2 << 2;   /* high scale bits of sub-block 5 */
    b[4 + 2] = 0xb0; /* its low ones: scale 32 + 11 */
    b[8 + 16 * 5 + 1] = 0x9f;
    mx_gguf_dequant_row(MX_GGUF_IQ4_XS, b, 256, out);
    assert_value(out, 0, 0.5 * -32 * -127);
    assert_value(out, 5 * 32 + 1, 0.5 * 11 * 113);
    assert_value(out, 5 * 32 + 17, 0.5 * 11 * 13);

    memset(b, 0, sizeof b);
    put_half(b + 80, 0.5f);
    put_half(b + 82, 0.25f);
    b[13] = 0x96; /* values 208..223: half 1, pass 2, upper sixteen bytes; scale 6, min 9 */
    b[16 + 32 + 16 + 4] = 3 << 4;
    mx_gguf_dequant_row(MX_GGUF_Q2_K, b, 256, out);
    assert_value(out, 0, 0);
    assert_value(out, 208, -0.25 * 9);
    assert_value(out, 212, 0.5 * 6 * 3 - 0.25 * 9);

    memset(b, 0, sizeof b);
    put_half(b + 108, 0.5f);
    b[96 + 5] = 0xc0;       /* low bits of scale 13 */
    b[96 + 8 + 1] = 3 << 6; /* its high ones: scale 60 - 32 */
    b[16 + 4] = 1 << 6;     /* high bit of value 212: half 1, pass 2, byte 20 */
    b[32 + 32 + 16 + 4] = 3 << 4;
    b[32 + 32 + 16 + 5] = 3 << 4;
    mx_gguf_dequant_row(MX_GGUF_Q3_K, b, 256, out);
    assert_value(out, 0, 0.5 * -32 * -4);
    assert_value(out, 212, 0.5 * 28 * 3);
    assert_value(out, 213, 0.5 * 28 * (3 - 4));
}

/* ---- Quantisers --------------------------------------------------------------------------- */

/* Relative error of random rows: about what the code widths allow. */
static void quantisers_are_close(void **state)
{
    (void)state;
    static const struct {
        int type;
        double bound;
    } cases[] = {{MX_GGUF_Q4_0, 0.1},
                 {MX_GGUF_Q8_0, 0.007},
                 {MX_GGUF_Q4_K, 0.09},
                 {MX_GGUF_Q5_K, 0.045},
                 {MX_GGUF_Q6_K, 0.022}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float in[1024], out[1024];
        uint8_t row[2048];
        double error = 0, power = 0;
        assert_true(mx_gguf_can_quant(cases[i].type));
        for (int k = 0; k < 1024; k++)
            in[k] = gauss() * (k < 512 ? 0.02f : 3);
        mx_gguf_quant_row(cases[i].type, in, 1024, row);
        mx_gguf_dequant_row(cases[i].type, row, 1024, out);
        for (int k = 0; k < 512; k++) { /* the small half: blocks must not influence each other */
            error += (double)(in[k] - out[k]) * (in[k] - out[k]);
            power += (double)in[k] * in[k];
        }
        double relative = sqrt(error / power);
        if (!(relative < cases[i].bound && relative > cases[i].bound / 10))
            fail_msg("%s: relative error %.3g", mx_gguf_type_name(cases[i].type), relative);
    }
}

static void quantisers_take_anything(void **state)
{
    (void)state;
    static const float odd[] = {0,      -0.0f,  NAN,   INFINITY, -INFINITY, 3e38f,
                                -3e38f, 1e-40f, 1e-7f, 65504,    1e6f,      -1};
    for (size_t i = 0; i < READABLE; i++) {
        if (!mx_gguf_can_quant(readable[i]))
            continue;
        for (int round = 0; round < 40; round++) {
            float in[256], out[256];
            uint8_t row[256 / 32 * 34];
            for (int k = 0; k < 256; k++)
                in[k] = round < 12 ? odd[round] : odd[(k * 7 + round) % 12];
            mx_gguf_quant_row(readable[i], in, 256, row);
            mx_gguf_dequant_row(readable[i], row, 256, out);
            for (int k = 0; k < 256; k++)
                assert_true(isfinite(out[k]));
            if (round < 2)
                assert_true(out[0] == 0 && out[255] == 0);
        }
    }
}

/* ---- Devices ------------------------------------------------------------------------------ */

enum { OUTS = 37, ROWS = 19 };

/* Random blocks with finite halves, at an odd address. */
static uint8_t *random_rows(int type, int64_t in, uint8_t **raw)
{
    size_t row = mx_gguf_row_bytes(type, in), block = (size_t)mx_gguf_block_bytes(type);
    size_t half = type == MX_GGUF_Q6_K   ? 208
                  : type == MX_GGUF_Q2_K ? 80
                  : type == MX_GGUF_Q3_K ? 108
                                         : 0;
    bool two = type == MX_GGUF_Q4_1 || type == MX_GGUF_Q5_1 || type == MX_GGUF_Q2_K ||
               type == MX_GGUF_Q4_K || type == MX_GGUF_Q5_K;
    *raw = malloc(row * OUTS + 1);
    uint8_t *p = *raw + 1;
    for (size_t i = 0; i < row * OUTS; i++)
        p[i] = (uint8_t)(mx_rng_uniform(3, at++, MX_RNG_TARGET) * 256);
    for (size_t b = 0; b < row * OUTS; b += block) {
        put_half(p + b + half, gauss() * 0.01f);
        if (two)
            put_half(p + b + half + 2, gauss() * 0.01f);
    }
    return p;
}

static void check_product(struct mx_device *d, const struct mx_weight *w, int rows,
                          double tolerance)
{
    float *x = malloc((size_t)rows * (size_t)w->in * sizeof *x);
    float *row = malloc((size_t)w->in * sizeof *row);
    float y[ROWS * OUTS];
    for (int64_t i = 0; i < rows * w->in; i++)
        x[i] = gauss();
    struct mx_matmul m = {w, y, OUTS};
    d->ops->matmul(d, &m, 1, x, w->in, rows);
    for (int o = 0; o < OUTS; o++) {
        mx_gguf_dequant_row(w->gguf_type,
                            (const uint8_t *)w->data +
                                (size_t)o * mx_gguf_row_bytes(w->gguf_type, w->in),
                            w->in, row);
        for (int r = 0; r < rows; r++) {
            double dot = 0, size = 0;
            for (int64_t i = 0; i < w->in; i++) {
                dot += (double)row[i] * x[r * w->in + i];
                size += fabs((double)row[i] * x[r * w->in + i]);
            }
            if (!(fabs(dot - y[r * OUTS + o]) <= tolerance * size))
                fail_msg("%s on %s: output %d of row %d is %g, not %g",
                         mx_gguf_type_name(w->gguf_type), d->name, o, r, y[r * OUTS + o], dot);
        }
    }
    free(x);
    free(row);
}

static void check_embed(struct mx_device *d, const struct mx_weight *w)
{
    static const int32_t tokens[] = {OUTS - 1, 0, 5};
    float *have = malloc(3 * (size_t)w->in * sizeof *have);
    float *want = malloc((size_t)w->in * sizeof *want);
    d->ops->embed(d, w, tokens, 3, have, w->in);
    for (int i = 0; i < 3; i++) {
        mx_gguf_dequant_row(w->gguf_type,
                            (const uint8_t *)w->data +
                                (size_t)tokens[i] * mx_gguf_row_bytes(w->gguf_type, w->in),
                            w->in, want);
        assert_memory_equal(have + i * w->in, want, (size_t)w->in * sizeof *want);
    }
    free(have);
    free(want);
}

/* The cpu device may round activations to 8 bits where that is faster. */
static void check_device(const char *isa, double tolerance)
{
    static const int64_t widths[] = {256, 1280, 2304};
    mtplx_error err = {0};
    setenv("MTPLX_CPU", isa, 1);
    struct mx_device *d = mx_device_open("cpu", 2, &err);
    unsetenv("MTPLX_CPU");
    if (!d)
        return; /* not on this machine */
    assert_int_equal(d->ops->reserve(d, 64, 64, &err), MTPLX_OK);
    for (size_t i = 0; i < READABLE; i++)
        for (size_t k = 0; k < sizeof widths / sizeof *widths; k++) {
            uint8_t *raw;
            struct mx_weight w = {.kind = MX_W_GGUF,
                                  .gguf_type = readable[i],
                                  .out = OUTS,
                                  .in = widths[k],
                                  .data = random_rows(readable[i], widths[k], &raw)};
            assert_int_equal(d->ops->weight_bind(d, &w, &err), MTPLX_OK);
            check_product(d, &w, 1, tolerance);
            check_product(d, &w, ROWS, tolerance);
            check_embed(d, &w);
            d->ops->weight_unbind(d, &w);
            free(raw);
        }
    mx_device_close(d);
}

static void devices_agree(void **state)
{
    (void)state;
    static const char *const isas[] = {"generic", "avx2", "avx512", "neon"};
    check_device("ref", 1e-6);
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++)
        check_device(isas[i], 1e-2);
}

static void devices_refuse(void **state)
{
    (void)state;
    uint8_t data[64] = {0};
    mtplx_error err = {0};
    struct mx_device *d = mx_device_open("ref", 1, &err);
    struct mx_weight w = {.kind = MX_W_GGUF, .gguf_type = 16, .out = 1, .in = 256, .data = data};
    assert_int_equal(d->ops->weight_bind(d, &w, &err), MTPLX_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "IQ2_XXS"));
    w.gguf_type = MX_GGUF_Q4_K;
    w.in = 255;
    assert_int_equal(d->ops->weight_bind(d, &w, &err), MTPLX_ERR_FORMAT);
    mx_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),
        cmocka_unit_test(small_blocks),
        cmocka_unit_test(k_blocks),
        cmocka_unit_test(other_blocks),
        cmocka_unit_test(quantisers_are_close),
        cmocka_unit_test(quantisers_take_anything),
        cmocka_unit_test(devices_agree),
        cmocka_unit_test(devices_refuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
