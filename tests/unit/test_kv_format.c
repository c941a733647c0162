/* KV entry formats: sizes, what comes back, values at the edge, and that the kernels of every
 * instruction set read the same floats as the portable code. Then the words that choose one. */
#include "base/half.h"
#include "device/cpu/cpu.h"
#include "device/cpu/kernels.h"
#include "device/kv_format.h"
#include "runtime/kv_option.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GROUP MX_KV_GROUP
#define FORMATS 3
static const enum mx_kv_format formats[FORMATS] = {MX_KV_Q8, MX_KV_Q6, MX_KV_Q4};

static uint32_t seed = 1;

static float frand(void) /* [-1, 1) */
{
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) * 0x1p-23f - 1.0f;
}

/* Packs and unpacks n values through buffers of exactly the right size. */
static void round_trip(enum mx_kv_format f, const float *x, int n, float *y)
{
    void *entry = malloc(mx_kv_bytes(f, n));
    assert_non_null(entry);
    mx_kv_pack(f, x, n, entry);
    mx_kv_unpack(f, entry, n, y);
    free(entry);
}

static void test_sizes(void **state)
{
    (void)state;
    assert_int_equal(mx_kv_bytes(MX_KV_F32, 80), 320);
    assert_int_equal(mx_kv_bytes(MX_KV_F16, 80), 160);
    assert_int_equal(mx_kv_bytes(MX_KV_Q8, 128), 136);
    assert_int_equal(mx_kv_bytes(MX_KV_Q6, 128), 112);
    assert_int_equal(mx_kv_bytes(MX_KV_Q4, 128), 80);
    struct mx_kv_layout l = {MX_KV_Q4, 64, 3, 2, 128};
    assert_int_equal(mx_kv_entry_bytes(&l), 80);
    assert_int_equal(mx_kv_token_bytes(&l), 80 * 12);
    assert_int_equal(mx_kv_block_bytes(&l), 80 * 12 * 64);
}

/* Stored bits, written out by hand: the layout is a promise (files hold it). */
static void test_layout(void **state)
{
    float x[GROUP];
    uint8_t p[64];
    uint16_t h;
    (void)state;
    for (int i = 0; i < GROUP; i++)
        x[i] = (float)(i % 16) - 3.0f;
    mx_kv_pack(MX_KV_Q4, x, GROUP, p);
    memcpy(&h, p, 2);
    assert_int_equal(h, mx_f32_to_f16(1.0f));
    memcpy(&h, p + 2, 2);
    assert_int_equal(h, mx_f32_to_f16(-3.0f));
    for (int i = 0; i < 16; i++)
        assert_int_equal(p[4 + i], (2 * i % 16) | (2 * i + 1) % 16 << 4);
    for (int i = 0; i < GROUP; i++)
        x[i] = i == 31 ? 63.0f : (float)i;
    mx_kv_pack(MX_KV_Q6, x, GROUP, p);
    static const uint8_t six[6] = {0x40, 0x20, 0x0c, 0x44, 0x61, 0x1c}; /* codes 0 .. 7 */
    assert_memory_equal(p + 4, six, 6);
    for (int i = 0; i < GROUP; i++)
        x[i] = i == 0 ? -127.0f : (float)i;
    mx_kv_pack(MX_KV_Q8, x, GROUP, p);
    assert_int_equal(p[2], 1);
    assert_int_equal(p[3], 129);
    assert_int_equal(p[33], 159);
}

static void test_plain(void **state)
{
    float x[37], y[37];
    (void)state;
    for (int i = 0; i < 37; i++)
        x[i] = frand();
    round_trip(MX_KV_F32, x, 37, y);
    assert_memory_equal(x, y, sizeof x);
    round_trip(MX_KV_F16, x, 37, y);
    for (int i = 0; i < 37; i++)
        assert_true(y[i] == mx_f16_to_f32(mx_f32_to_f16(x[i])));
}

/* Mean squared error against that of codes between the least and the largest value. */
static void test_error(void **state)
{
    (void)state;
    for (int k = 0; k < FORMATS; k++) {
        int bits = mx_kv_code_bits(formats[k]);
        double sum = 0, uniform = 0;
        for (int r = 0; r < 500; r++) {
            float x[GROUP], y[GROUP], low = INFINITY, high = -INFINITY, size = expf(4 * frand());
            for (int i = 0; i < GROUP; i++) {
                x[i] = (frand() + frand() + frand() + frand()) * size + (r % 5 ? 0 : 9 * size);
                low = x[i] < low ? x[i] : low;
                high = x[i] > high ? x[i] : high;
            }
            round_trip(formats[k], x, GROUP, y);
            double span = bits == 8 ? 2 * fmax(fabs((double)low), fabs((double)high))
                                    : (double)high - (double)low;
            double step = span / ((1 << bits) - (bits == 8 ? 2 : 1));
            for (int i = 0; i < GROUP; i++) {
                double e = ((double)y[i] - (double)x[i]) / step;
                sum += e * e;
                assert_true(fabs(e) < 1.5);
            }
            uniform += GROUP / 12.0;
        }
        assert_true(sum < (bits == 4 ? 0.9 : bits == 6 ? 1.5 : 1.1) * uniform);
    }
}

static void test_edges(void **state)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    float x[2 * GROUP], y[2 * GROUP];
    (void)state;
    for (int k = 0; k < FORMATS; k++) {
        enum mx_kv_format f = formats[k];
        memset(x, 0, sizeof x);
        round_trip(f, x, 2 * GROUP, y);
        for (int i = 0; i < 2 * GROUP; i++)
            assert_true(y[i] == 0.0f);
        for (int i = 0; i < GROUP; i++) { /* one value: found again to float16 */
            x[i] = -0.3f;
            x[GROUP + i] = 1e-30f; /* too small for any scale */
        }
        round_trip(f, x, 2 * GROUP, y);
        for (int i = 0; i < GROUP; i++) {
            assert_true(fabsf(y[i] + 0.3f) < 3e-4f);
            assert_true(fabsf(y[GROUP + i]) < 1e-6f);
        }
        for (int i = 0; i < 2 * GROUP; i++) /* beyond float16 */
            x[i] = i < GROUP ? 1e38f * frand() : 3.4e38f * (i % 2 ? 1.0f : -1.0f);
        round_trip(f, x, 2 * GROUP, y);
        for (int i = 0; i < 2 * GROUP; i++)
            assert_true(isfinite(y[i]));
        for (size_t o = 0; o < sizeof odd / sizeof *odd; o++) { /* a group at a time is lost */
            for (int i = 0; i < 2 * GROUP; i++)
                x[i] = frand();
            x[17] = odd[o];
            round_trip(f, x, 2 * GROUP, y);
            for (int i = 0; i < GROUP; i++) {
                assert_true(isnan(y[i]));
                assert_false(isnan(y[GROUP + i]));
            }
        }
    }
}

/* The neighbours of a group never matter. */
static void test_groups_are_independent(void **state)
{
    float x[4 * GROUP], y[GROUP], all[4 * GROUP];
    (void)state;
    for (int k = 0; k < FORMATS; k++) {
        for (int i = 0; i < 4 * GROUP; i++)
            x[i] = frand();
        round_trip(formats[k], x, 4 * GROUP, all);
        for (int g = 0; g < 4; g++) {
            round_trip(formats[k], x + g * GROUP, GROUP, y);
            assert_memory_equal(y, all + g * GROUP, sizeof y);
        }
    }
}

static void check_kernels(const struct mx_cpu_kernels *k)
{
    enum { N = 24 * GROUP };
    float *x = malloc(N * sizeof *x), *want = malloc(N * sizeof *x), *got = malloc(N * sizeof *x);
    assert_true(x && want && got);
    for (int round = 0; round < 20; round++) {
        for (int f = 0; f < FORMATS; f++) {
            size_t bytes = mx_kv_bytes(formats[f], N);
            char *raw = malloc(bytes + 2); /* entries start at multiples of 2 only */
            assert_non_null(raw);
            for (int i = 0; i < N; i++)
                x[i] = frand() * expf(3 * frand()) + (float)round * frand();
            mx_kv_pack(formats[f], x, N, raw + 2);
            mx_kv_unpack(formats[f], raw + 2, N, want);
            memset(got, 0xff, N * sizeof *got);
            k->kv_load(formats[f], raw + 2, got, N);
            assert_memory_equal(got, want, N * sizeof *got);
            k->kv_load(formats[f], raw + 2, got, GROUP);
            assert_memory_equal(got, want, N * sizeof *got);
            free(raw);
        }
    }
    free(x);
    free(want);
    free(got);
}

static void test_kernels(void **state)
{
    static const char *const isas[] = {"generic", "avx2", "avx512", "neon"};
    int checked = 0;
    (void)state;
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        setenv("MTPLX_CPU", isas[i], 1);
        struct mx_device *d = mx_device_open("cpu", 1, NULL);
        if (!d)
            continue;
        check_kernels(((struct mx_cpu *)d)->k);
        mx_device_close(d);
        checked++;
    }
    unsetenv("MTPLX_CPU");
    assert_true(checked > 0);
}

/* ---- The option --------------------------------------------------------------------------- */

static void test_words(void **state)
{
    static const struct {
        const char *word;
        mtplx_kv_quant quant;
    } good[] = {{"off", MTPLX_KV_OFF},  {"None", MTPLX_KV_OFF}, {"0", MTPLX_KV_OFF},
                {"f16", MTPLX_KV_OFF},  {"q8", MTPLX_KV_Q8},    {"Q8_0", MTPLX_KV_Q8},
                {"8bit", MTPLX_KV_Q8},  {"8-bit", MTPLX_KV_Q8}, {"int8", MTPLX_KV_Q8},
                {"8", MTPLX_KV_Q8},     {"q6", MTPLX_KV_Q6},    {"6BIT", MTPLX_KV_Q6},
                {"q4_0", MTPLX_KV_Q4},  {"4", MTPLX_KV_Q4},     {"int4", MTPLX_KV_Q4},
                {"false", MTPLX_KV_OFF}};
    static const char *const bad[] = {"",    "q",    "q5",  "q8_1",  "q88",    "8 bit",
                                      " q8", "on",   "int", "bit",   "q4 ",    "80",
                                      "-8",  "true", "i8",  "qint8", "q8_0bit"};
    mtplx_kv_quant q;
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(mx_kv_quant_word(good[i].word, &q));
        assert_int_equal(q, good[i].quant);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(mx_kv_quant_word(bad[i], &q));
}

static void test_choice(void **state)
{
    enum mx_kv_format f;
    mtplx_error err = {0};
    (void)state;
    unsetenv(MX_KV_QUANT_ENV);
    assert_int_equal(mx_kv_choose(MTPLX_KV_AUTO, MX_KV_F16, &f, &err), MTPLX_OK);
    assert_int_equal(f, MX_KV_F16);
    assert_int_equal(mx_kv_choose(MTPLX_KV_OFF, MX_KV_F32, &f, &err), MTPLX_OK);
    assert_int_equal(f, MX_KV_F32);
    setenv(MX_KV_QUANT_ENV, "q4", 1);
    assert_int_equal(mx_kv_choose(MTPLX_KV_AUTO, MX_KV_F16, &f, &err), MTPLX_OK);
    assert_int_equal(f, MX_KV_Q4);
    assert_int_equal(mx_kv_choose(MTPLX_KV_Q8, MX_KV_F16, &f, &err), MTPLX_OK);
    assert_int_equal(f, MX_KV_Q8);
    setenv(MX_KV_QUANT_ENV, "", 1); /* as good as unset */
    assert_int_equal(mx_kv_choose(MTPLX_KV_AUTO, MX_KV_F16, &f, &err), MTPLX_OK);
    assert_int_equal(f, MX_KV_F16);
    setenv(MX_KV_QUANT_ENV, "lots", 1);
    assert_int_equal(mx_kv_choose(MTPLX_KV_AUTO, MX_KV_F16, &f, &err), MTPLX_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "MTPLX_PAGED_KV_QUANT is \"lots\""));
    unsetenv(MX_KV_QUANT_ENV);
}

static void test_head_dims(void **state)
{
    struct mx_kv_layout l = {MX_KV_Q6, 64, 2, 2, 80};
    mtplx_error err = {0};
    (void)state;
    assert_int_equal(mx_kv_check(&l, &err), MTPLX_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "kv_quant q6 needs"));
    assert_non_null(strstr(err.message, "has 80"));
    l.layers = 0; /* no attention, nothing to store */
    assert_int_equal(mx_kv_check(&l, &err), MTPLX_OK);
    l.layers = 2;
    l.head_dim = 96;
    assert_int_equal(mx_kv_check(&l, &err), MTPLX_OK);
    l.format = MX_KV_F16;
    l.head_dim = 80;
    assert_int_equal(mx_kv_check(&l, &err), MTPLX_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),   cmocka_unit_test(test_layout),
        cmocka_unit_test(test_plain),   cmocka_unit_test(test_error),
        cmocka_unit_test(test_edges),   cmocka_unit_test(test_groups_are_independent),
        cmocka_unit_test(test_kernels), cmocka_unit_test(test_words),
        cmocka_unit_test(test_choice),  cmocka_unit_test(test_head_dims),
    };
    return cmocka_run_group_tests_name("kv format", tests, NULL, NULL);
}
