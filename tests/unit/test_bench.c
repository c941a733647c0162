/* The benchmark: its arithmetic, the weight meter, and one run on the small fixture. */
#include "runtime/forward.h"
#include "tools/bench.h"
#include "tools/bench_machine.h"
#include "tools/bench_meter.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define FIXTURE "tests/golden/qwen3_5_text"

static mtplx_model *load(void)
{
    mtplx_error err = {0};
    mtplx_load_options o = {.device = "ref", .threads = 1};
    mtplx_model *m = mtplx_model_load(FIXTURE, &o, &err);
    if (!m)
        fail_msg("%s", err.message);
    return m;
}

/* ---- Arithmetic -------------------------------------------------------------------------------
 */

static void test_spread(void **state)
{
    double odd[] = {3, 1, 2}, even[] = {4, 1, 3, 2};
    struct mx_bench_spread s = mx_bench_spread(odd, 3);
    assert_true(s.median == 2 && s.low == 1 && s.high == 3 && s.n == 3);
    s = mx_bench_spread(even, 4);
    assert_true(s.median == 2.5 && s.low == 1 && s.high == 4 && s.n == 4);
    s = mx_bench_spread(NULL, 0);
    assert_true(s.median == 0 && s.n == 0);
    (void)state;
}

static void test_expected(void **state)
{
    uint64_t drafted[MTPLX_MAX_DEPTH] = {10, 8, 4}, accepted[MTPLX_MAX_DEPTH] = {8, 4, 0};
    assert_true(mx_bench_expected(drafted, accepted, 0) == 1);
    assert_float_equal(mx_bench_expected(drafted, accepted, 1), 1.8, 1e-12);
    assert_float_equal(mx_bench_expected(drafted, accepted, 2), 2.2, 1e-12);
    assert_float_equal(mx_bench_expected(drafted, accepted, 8), 2.2, 1e-12);
    (void)state;
}

static void test_machine(void **state)
{
    mtplx_error err = {0};
    struct mx_pool *pool = mx_pool_new(2, &err);
    assert_non_null(pool);
    const char *name = NULL;
    assert_true(mx_bench_stream(pool, 1 << 20, 2) > 0);
    assert_true(mx_bench_stream(pool, 100, 2) == 0); /* less than a step for each thread */
    assert_true(mx_bench_peak(pool, 1, &name) > 0);
    assert_non_null(name);
    assert_true(mx_bench_stream_bytes((size_t)1 << 40) == (size_t)2 << 30);
    mx_pool_free(pool);
    (void)state;
}

/* ---- Meter ------------------------------------------------------------------------------------
 */

/* One row reads every trunk matrix once and of the embeddings one row, so less than is loaded; the
 * MTP head is not read; more rows read the same matrices. */
static void test_meter(void **state)
{
    mtplx_error err = {0};
    mtplx_model *m = load();
    mtplx_seq *s = mtplx_seq_new(m, &err);
    struct mx_meter meter;
    const struct mx_device_ops *before = m->device->ops;
    mtplx_forward_result r;
    mtplx_row rows[4];
    uint64_t bytes[5] = {0}, flops[5] = {0};
    for (int n = 1; n <= 4; n += 3) {
        for (int i = 0; i < n; i++)
            rows[i] = (mtplx_row){.seq = s, .token = 1 + i, .want_logits = true};
        mx_meter_attach(&meter, m->device);
        assert_int_equal(mtplx_forward(m, rows, (size_t)n, MTPLX_VERIFY, false, &r, &err), 0);
        mx_meter_detach(&meter);
        assert_int_equal(mtplx_seq_commit(s, 0, &err), 0);
        bytes[n] = meter.bytes;
        flops[n] = meter.flops;
    }
    const mtplx_model_info *info = mtplx_model_get_info(m);
    uint64_t embedding_row = 4u * (uint64_t)info->hidden_size; /* the fixture is float32 or less */
    assert_true(m->device->ops == before);
    assert_true(bytes[1] > 0 && bytes[1] <= info->weight_bytes);
    assert_true(bytes[4] >= bytes[1] && bytes[4] - bytes[1] <= 3 * embedding_row);
    assert_true(flops[4] == 4 * flops[1]);
    mtplx_seq_free(s);
    mtplx_model_free(m);
    (void)state;
}

/* ---- A run ------------------------------------------------------------------------------------
 */

static struct mx_bench_options small_options(void)
{
    static const int32_t prompt[] = {5, 6, 7, 8};
    return (struct mx_bench_options){
        .rounds = 1,
        .tokens = 6,
        .prompt = prompt,
        .prompt_len = 4,
        .depths = {false, true, false, true},
        .lengths = {8, 1 << 20},
        .n_lengths = 2,
        .contexts = {4, 16},
        .n_contexts = 2,
        .stream_bytes = 1 << 20,
    };
}

static void test_run(void **state)
{
    mtplx_error err = {0};
    mtplx_model *m = load();
    struct mx_bench_options o = small_options();
    struct mx_bench_result r;
    if (mx_bench_run(m, &o, &r, &err) != MTPLX_OK)
        fail_msg("%s", err.message);
    assert_true(r.depths[0].measured && r.depths[1].measured && r.depths[3].measured);
    assert_false(r.depths[2].measured);
    assert_true(r.depths[0].ratio.median == 1);
    assert_true(r.best_depth == 1 || r.best_depth == 3);
    assert_true(r.draft_bytes > 0 && r.draft_bytes < r.row_bytes);
    assert_true(r.prefill[0].plain.median > 0 && *r.prefill[1].skipped);
    assert_true(r.context[1].plain.n == 1 && r.context[1].drafted.n == 1);
    assert_true(r.plain_streams.two.n == 1 && r.drafted_streams.two.n == 1);

    char *text = mx_bench_text(m, &r), *json = mx_bench_json(m, &r), *csv = mx_bench_csv(m, &r);
    assert_non_null(strstr(text, "c(2)"));
    json_t *parsed = json_loads(json, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(parsed, "depths")), 3);
    assert_int_equal(json_array_size(json_object_get(parsed, "rows")), MX_BENCH_ROWS);
    json_decref(parsed);
    assert_non_null(strstr(csv, "\ndepth,3,predicted_ratio,"));
    free(text);
    free(json);
    free(csv);
    mtplx_model_free(m);
    (void)state;
}

static void test_refusals(void **state)
{
    mtplx_error err = {0};
    mtplx_model *m = load();
    struct mx_bench_result r;
    struct mx_bench_options o = small_options();
    volatile int cancel = 1;
    o.cancel = &cancel;
    assert_int_equal(mx_bench_run(m, &o, &r, &err), MTPLX_ERR_CANCELLED);
    o = small_options();
    o.rounds = 0;
    assert_int_equal(mx_bench_run(m, &o, &r, &err), MTPLX_ERR_ARGUMENT);
    o = small_options();
    o.prompt_len = (size_t)mtplx_model_get_info(m)->context_length;
    assert_int_equal(mx_bench_run(m, &o, &r, &err), MTPLX_ERR_LIMIT);
    mtplx_model_free(m);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spread),  cmocka_unit_test(test_expected),
        cmocka_unit_test(test_machine), cmocka_unit_test(test_meter),
        cmocka_unit_test(test_run),     cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
