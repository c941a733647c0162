/* What happens to a row before the filters (penalties, bias, masks), and log-probabilities of one,
 * against plain loops. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "runtime/logprobs.h"
#include "runtime/row.h"

enum { VOCAB = 1111, WORDS = (VOCAB + 63) / 64 };

static const mtplx_sampling plain = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};

static double uniform(uint64_t a, uint64_t b)
{
    return mx_rng_uniform(a, b, MX_RNG_TARGET);
}

/* Logits with a few that are no numbers. */
static void make_row(uint64_t seed, float *row)
{
    for (uint64_t i = 0; i < VOCAB; i++) {
        row[i] = (float)(20 * uniform(seed, i) - 10);
        if (uniform(seed, 5000 + i) < 0.01)
            row[i] = i % 2 ? NAN : -INFINITY;
    }
}

/* Words that are empty, full, sparse and dense. */
static void make_mask(uint64_t seed, uint64_t *mask)
{
    static const double density[] = {0, 1, 0.05, 0.9, 0.5};
    memset(mask, 0, WORDS * sizeof *mask);
    for (uint64_t i = 0; i < VOCAB; i++) {
        double p = density[(i / 64 + seed) % 5];
        if (uniform(seed, 9000 + i) < p)
            mask[i / 64] |= (uint64_t)1 << i % 64;
    }
}

static void same(float a, float b)
{
    assert_true((isnan(a) && isnan(b)) || a == b);
}

static void masks_strike_out(void **state)
{
    (void)state;
    float row[VOCAB], out[VOCAB];
    uint64_t mask[WORDS];
    int32_t ids[VOCAB];
    for (uint64_t seed = 0; seed < 20; seed++) {
        make_row(seed, row);
        make_mask(seed, mask);
        struct mx_row_rules r = {.cfg = &plain, .mask = mask};
        assert_true(mx_row_apply(&r, row, NULL, VOCAB, out));
        for (int i = 0; i < VOCAB; i++)
            same(out[i], mx_mask_has(mask, i) ? row[i] : -INFINITY);
        int n = 0;
        for (int i = 0; i < VOCAB; i++)
            if (uniform(seed, 20000 + (uint64_t)i) < 0.3)
                ids[n++] = i;
        assert_true(mx_row_apply(&r, row, ids, n, out)); /* row[i] is that of ids[i] */
        for (int i = 0; i < n; i++)
            same(out[i], mx_mask_has(mask, ids[i]) ? row[i] : -INFINITY);
    }
}

static void masks_and_places_may_miss_each_other(void **state)
{
    (void)state;
    float row[3] = {1, 2, 3}, out[3];
    const int32_t ids[3] = {4, 70, 1000};
    uint64_t mask[WORDS] = {1};
    struct mx_row_rules r = {.cfg = &plain, .mask = mask};
    assert_false(mx_row_apply(&r, row, ids, 3, out));
    mask[1] = (uint64_t)1 << (70 - 64);
    assert_true(mx_row_apply(&r, row, ids, 3, out));
    assert_true(out[0] == -INFINITY && out[1] == 2 && out[2] == -INFINITY);
}

static void allowed_tokens_without_numbers_stay_possible(void **state)
{
    (void)state;
    float row[4] = {5, NAN, -INFINITY, 3}, out[4];
    uint64_t mask[1] = {0x6};
    struct mx_row_rules r = {.cfg = &plain, .mask = mask};
    assert_true(mx_row_apply(&r, row, NULL, 4, out));
    assert_true(out[0] == -INFINITY && out[3] == -INFINITY);
    assert_true(out[1] == -FLT_MAX && out[2] == -FLT_MAX);
}

static void first_and_only_token(void **state)
{
    (void)state;
    uint64_t mask[WORDS] = {0};
    bool only;
    assert_int_equal(mx_mask_first(mask, VOCAB, &only), -1);
    assert_false(only);
    mask[3] = 0x10;
    assert_int_equal(mx_mask_first(mask, VOCAB, &only), 3 * 64 + 4);
    assert_true(only);
    mask[17] = 1;
    assert_int_equal(mx_mask_first(mask, VOCAB, &only), 3 * 64 + 4);
    assert_false(only);
    mask[17] = 0;
    mask[3] = 0x30;
    assert_int_equal(mx_mask_first(mask, VOCAB, &only), 3 * 64 + 4);
    assert_false(only);
}

/* ---- Bias --------------------------------------------------------------------------------- */

static void bias_is_added_after_penalties(void **state)
{
    (void)state;
    mtplx_sampling s = plain;
    s.repetition_penalty = 2;
    struct mx_counts *counts = mx_counts_new(NULL);
    assert_int_equal(mx_counts_add(counts, 7, false, NULL), MTPLX_OK);
    const mtplx_logit_bias entries[] = {{7, 1.5f}, {900, -2}, {3, -100}, {900, 4}, {12, 2}};
    struct mx_bias *b = mx_bias_new(entries, 5, VOCAB, NULL);
    float row[VOCAB], out[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        row[i] = 3;
    row[12] = -INFINITY;
    struct mx_row_rules r = {.cfg = &s, .counts = counts, .bias = b};
    assert_true(mx_row_apply(&r, row, NULL, VOCAB, out));
    assert_true(out[7] == 3.0f / 2 + 1.5f); /* the other order would give 2.25 */
    assert_true(out[900] == 3 + 4);         /* the last entry counts */
    assert_true(out[3] == -INFINITY && out[12] == -INFINITY && out[0] == 3);
    const int32_t ids[] = {3, 8, 900}; /* places of a part of the vocabulary */
    assert_true(mx_row_apply(&r, row, ids, 3, out));
    assert_true(out[0] == -INFINITY && out[1] == 3 && out[2] == 7);
    mx_bias_free(b);
    mx_counts_free(counts);
}

static void certain_tokens_exclude_the_others(void **state)
{
    (void)state;
    const mtplx_logit_bias entries[] = {{40, 100}, {5, 120}, {6, 3}};
    struct mx_bias *b = mx_bias_new(entries, 3, VOCAB, NULL);
    float row[VOCAB], out[VOCAB];
    uint64_t mask[WORDS] = {(uint64_t)1 << 40 | 3};
    make_row(3, row);
    row[40] = 1;
    row[5] = 2;
    row[0] = 0.5f;
    struct mx_row_rules r = {.cfg = &plain, .bias = b};
    assert_true(mx_row_apply(&r, row, NULL, VOCAB, out));
    for (int i = 0; i < VOCAB; i++)
        assert_true(out[i] == (i == 40 ? 1 : i == 5 ? 2 : -INFINITY));
    r.mask = mask; /* only what the mask leaves */
    assert_true(mx_row_apply(&r, row, NULL, VOCAB, out));
    for (int i = 0; i < VOCAB; i++)
        assert_true(out[i] == (i == 40 ? 1 : -INFINITY));
    mask[0] = 1; /* none of the certain ones may come: the mask goes first */
    assert_true(mx_row_apply(&r, row, NULL, VOCAB, out));
    assert_true(out[0] == 0.5f && out[40] == -INFINITY);
    mx_bias_free(b);
}

static void a_mask_outlives_bans(void **state)
{
    (void)state;
    const mtplx_logit_bias entries[] = {{1, -100}, {2, -100}};
    struct mx_bias *b = mx_bias_new(entries, 2, VOCAB, NULL);
    float row[4] = {9, 1, 2, 9}, out[4];
    uint64_t mask[1] = {0x6};
    struct mx_row_rules r = {.cfg = &plain, .bias = b, .mask = mask};
    assert_true(mx_row_apply(&r, row, NULL, 4, out));
    assert_true(out[0] == -INFINITY && out[1] == 1 && out[2] == 2 && out[3] == -INFINITY);
    mx_bias_free(b);
}

static void wrong_biases_are_refused(void **state)
{
    (void)state;
    static const mtplx_logit_bias wrong[] = {{-1, 0}, {VOCAB, 0}, {INT32_MAX, 0}, {4, NAN}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        mtplx_error err = {0};
        assert_null(mx_bias_new(&wrong[i], 1, VOCAB, &err));
        assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);
    }
    const mtplx_logit_bias odd = {4, -INFINITY};
    struct mx_bias *b = mx_bias_new(&odd, 1, VOCAB, NULL);
    assert_non_null(b);
    mx_bias_free(b);
}

/* ---- Log-probabilities -------------------------------------------------------------------- */

static void logprobs_are_those_of_the_row(void **state)
{
    (void)state;
    enum { WIDTH = 20, RECORDS = 130 };
    float row[VOCAB], own;
    const mtplx_token_logprob *top, *kept = NULL;
    struct mx_logprobs *l = mx_logprobs_new(RECORDS, WIDTH, NULL);
    assert_int_equal(mx_logprobs_get(l, 0, &own, &top), -1);
    assert_int_equal(mx_logprobs_reserve(l, 1, NULL), MTPLX_OK);
    assert_int_equal(mx_logprobs_get(l, 0, &own, &top), -1);
    for (size_t k = 0; k < RECORDS; k++) {
        double sum = 0;
        int32_t token = (int32_t)(k * 7 % VOCAB);
        make_row(k, row);
        row[token] = 1;
        for (int i = 0; i < VOCAB; i++)
            sum += row[i] > -INFINITY ? exp((double)row[i]) : 0;
        assert_int_equal(mx_logprobs_reserve(l, k + 9, NULL), MTPLX_OK); /* cut to RECORDS */
        mx_logprobs_set(l, k, row, VOCAB, token);
        assert_int_equal(mx_logprobs_get(l, k, &own, &top), WIDTH);
        assert_true(fabs((double)own - (1 - log(sum))) < 1e-6);
        kept = k == 0 ? top : kept;
        for (int i = 0; i < WIDTH; i++) {
            int better = 0;
            float x = row[top[i].token];
            for (int t = 0; t < VOCAB; t++)
                better += row[t] > x || (row[t] == x && t < top[i].token);
            assert_int_equal(better, i);
            assert_true(fabs((double)top[i].logprob - ((double)x - log(sum))) < 1e-6);
        }
    }
    mx_logprobs_get(l, 0, &own, &top);
    assert_ptr_equal(top, kept); /* records do not move */
    assert_int_equal(mx_logprobs_get(l, 1000, &own, &top), -1);
    assert_true(mx_logprobs_bytes(RECORDS, WIDTH) > RECORDS * WIDTH * sizeof *top);
    mx_logprobs_free(l);
    mx_logprobs_free(NULL);
}

static void odd_rows_give_finite_logprobs(void **state)
{
    (void)state;
    float rows[][4] = {{NAN, NAN, NAN, NAN},
                       {-INFINITY, -INFINITY, -INFINITY, -INFINITY},
                       {INFINITY, 0, INFINITY, 1},
                       {0, -INFINITY, NAN, FLT_MAX}};
    static const int found[] = {0, 0, 4, 2};
    struct mx_logprobs *l = mx_logprobs_new(4, 6, NULL);
    assert_int_equal(mx_logprobs_reserve(l, 4, NULL), MTPLX_OK);
    for (size_t i = 0; i < 4; i++) {
        const mtplx_token_logprob *top;
        float own;
        mx_logprobs_set(l, i, rows[i], 4, 1);
        assert_int_equal(mx_logprobs_get(l, i, &own, &top), found[i]);
        assert_true(own == MX_LOGPROB_LEAST);
        for (int k = 0; k < found[i]; k++)
            assert_true(top[k].logprob <= 0 && top[k].logprob >= MX_LOGPROB_LEAST);
    }
    mx_logprobs_free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_strike_out),
        cmocka_unit_test(masks_and_places_may_miss_each_other),
        cmocka_unit_test(allowed_tokens_without_numbers_stay_possible),
        cmocka_unit_test(first_and_only_token),
        cmocka_unit_test(bias_is_added_after_penalties),
        cmocka_unit_test(certain_tokens_exclude_the_others),
        cmocka_unit_test(a_mask_outlives_bans),
        cmocka_unit_test(wrong_biases_are_refused),
        cmocka_unit_test(logprobs_are_those_of_the_row),
        cmocka_unit_test(odd_rows_give_finite_logprobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
