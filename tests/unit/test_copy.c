/* Context copy: the index against a plain search, loops, odd timelines, memory bounds, and the
 * rules of when to copy. (That copied drafts keep the law is shown in test_law.c.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "runtime/copy.h"

#include <stdlib.h>
#include <string.h>

static uint32_t pick(uint64_t at, uint32_t below)
{
    return (uint32_t)(mx_rng_uniform(5, at, MX_RNG_TARGET) * below);
}

/* The latest end of an earlier run equal to the last `count` tokens of line[0 .. n), or 0. */
static size_t search(const int32_t *line, size_t n, size_t known, size_t count)
{
    for (size_t end = known; end >= count; end--)
        if (end < n && memcmp(line + end - count, line + n - count, count * sizeof *line) == 0)
            return end;
    return 0;
}

/* What the index finds is what a search from the back finds, for growing timelines of few symbols
 * with a tail of one to four tokens. */
static void test_finds_what_a_search_finds(void **state)
{
    (void)state;
    enum { N = 3000 };
    static int32_t line[N + 8];
    struct mx_copy *c = mx_copy_new(N, NULL);
    int hits = 0, missed = 0;
    assert_non_null(c);
    for (size_t i = 0; i < N + 8; i++)
        line[i] = (int32_t)pick(i, i < 1000 ? 4 : 12);
    for (size_t n = 0; n < N; n += 1 + pick(7000 + n, 4)) {
        int32_t out[MTPLX_MAX_DEPTH];
        int tail = 1 + (int)pick(9000 + n, 4), match;
        size_t total = n + (size_t)tail;
        mx_copy_update(c, line, n);
        int k = mx_copy_find(c, line, n, line + n, tail, out, MTPLX_MAX_DEPTH, &match);
        size_t end = search(line, total, n, total >= MX_COPY_LONG ? MX_COPY_LONG : total + 1);
        if (!end)
            end = search(line, total, n, total >= MX_COPY_SHORT ? MX_COPY_SHORT : total + 1);
        assert_true(k == 0 || (end > 0 && k == MTPLX_MAX_DEPTH));
        bool same = k > 0 && memcmp(line + end - match, line + total - match,
                                    (size_t)match * sizeof *line) == 0;
        for (int i = 0; same && i < k && end + (size_t)i < total; i++)
            same = out[i] == line[end + (size_t)i];
        hits += same;
        missed += end > 0 && !same; /* its slot was taken by another run */
        assert_true(k == 0 || (match >= MX_COPY_SHORT && match <= MX_COPY_COMPARE));
    }
    assert_true(missed < hits / 20);
    assert_true(hits > 200);
    mx_copy_free(c);
}

/* A loop of any period is copied round and round, past the end of what is there. */
static void test_loops(void **state)
{
    (void)state;
    for (int period = 1; period <= 12; period++) {
        int32_t line[64], out[MTPLX_MAX_DEPTH];
        int match;
        struct mx_copy *c = mx_copy_new(64, NULL);
        for (int i = 0; i < 64; i++)
            line[i] = 100 + i % period;
        mx_copy_update(c, line, 40);
        assert_int_equal(mx_copy_find(c, line, 40, line + 40, 2, out, MTPLX_MAX_DEPTH, &match),
                         MTPLX_MAX_DEPTH);
        assert_memory_equal(out, line + 42, sizeof out);
        mx_copy_free(c);
    }
}

static void test_short_and_shrunk_timelines(void **state)
{
    (void)state;
    int32_t line[] = {1, 2, 3, 4, 1, 2, 3}, out[4];
    int match;
    struct mx_copy *c = mx_copy_new(0, NULL);
    for (size_t n = 0; n < 4; n++) {
        mx_copy_update(c, line, n);
        assert_int_equal(mx_copy_find(c, line, n, line + n, 1, out, 4, &match), 0);
        assert_int_equal(match, 0);
    }
    mx_copy_update(c, line, 6);
    assert_int_equal(mx_copy_find(c, line, 6, line + 6, 1, out, 4, &match), 4);
    assert_int_equal(match, 3);
    assert_int_equal(out[0], 4);
    assert_int_equal(out[1], 1);
    assert_int_equal(mx_copy_find(c, line, 6, line + 6, 1, out, 0, &match), 0);
    /* Another, shorter timeline: nothing of the old one is left. */
    int32_t other[] = {9, 9, 1, 2, 3};
    mx_copy_update(c, other, 4);
    assert_int_equal(mx_copy_find(c, other, 4, other + 4, 1, out, 4, &match), 0);
    mx_copy_free(c);
    mx_copy_free(NULL);
}

/* More tokens than slots, and ids of every size: only memory that was reserved is used, the recent
 * part is still found. */
static void test_bounded(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    int32_t *line = malloc(N * sizeof *line), out[4];
    int match;
    struct mx_copy *c = mx_copy_new(16, NULL);
    assert_non_null(line);
    for (size_t i = 0; i < N; i++)
        line[i] = (int32_t)pick(i, INT32_MAX);
    memcpy(line + N - 20, line + N - 60, 20 * sizeof *line);
    mx_copy_update(c, line, N - 1);
    assert_int_equal(mx_copy_find(c, line, N - 1, line + N - 1, 1, out, 4, &match), 4);
    assert_int_equal(match, 20);
    assert_memory_equal(out, line + N - 40, sizeof out);
    mx_copy_free(c);
    free(line);
}

static void test_control(void **state)
{
    (void)state;
    struct mx_copy_record record = {0};
    struct mx_copy_control k;
    mx_copy_control_init(&k, &record);
    assert_in_range(mx_copy_allowed(&k, 0), 1, 4); /* probation */
    double p = mx_copy_p(&k, 3);
    assert_true(mx_copy_p(&k, 8) > p && mx_copy_p(&k, 20) > mx_copy_p(&k, 8));
    for (size_t i = 0; i < 3; i++)
        mx_copy_feed(&k, 20, 3, 3, 10 + i);
    assert_int_equal(mx_copy_allowed(&k, 20), MTPLX_MAX_DEPTH);
    /* Rejections suspend it, for 64 tokens and then for longer and longer. */
    size_t at = 100, pauses[12];
    for (int i = 0; i < 12; i++) {
        int rounds = 0;
        while (mx_copy_allowed(&k, at) > 0 && rounds < 20) {
            mx_copy_feed(&k, 20, 1, 0, at++);
            rounds++;
        }
        assert_in_range(rounds, 3, 8);
        pauses[i] = 0;
        while (mx_copy_allowed(&k, at) == 0) {
            at++;
            pauses[i]++;
        }
        assert_true(pauses[i] <= 4096);
        assert_true(i == 0 || pauses[i] >= pauses[i - 1]);
    }
    assert_in_range(pauses[0], 60, 64);
    assert_true(pauses[11] > 4000);
    /* Good rounds bring the back-off to its start. */
    for (size_t i = 0; i < 6; i++)
        mx_copy_feed(&k, 20, 8, 8, at + i);
    at += 6;
    while (mx_copy_allowed(&k, at) > 0)
        mx_copy_feed(&k, 20, 1, 0, at++);
    size_t pause = 0;
    while (mx_copy_allowed(&k, at + pause) == 0)
        pause++;
    assert_true(pause <= 64);
}

/* A bad record makes copies dear, and is put to the test after enough refusals. */
static void test_refusals(void **state)
{
    (void)state;
    struct mx_copy_record record = {0};
    struct mx_copy_control k;
    for (int i = 0; i < MX_COPY_CLASSES; i++)
        record.tested[i] = 200;
    mx_copy_control_init(&k, &record);
    assert_true(mx_copy_p(&k, 20) < 0.05);
    int refusals = 0;
    while (mx_copy_p(&k, 20) < 0.5 && refusals < 10000) {
        mx_copy_refused(&k);
        refusals++;
    }
    assert_in_range(refusals, 8, 100);
    mx_copy_feed(&k, 20, 1, 0, 500); /* as bad as its record */
    assert_true(mx_copy_p(&k, 20) < 0.1);
    int longer = 0;
    while (mx_copy_p(&k, 20) < 0.5 && longer < 10000) {
        mx_copy_refused(&k);
        longer++;
    }
    assert_true(longer > refusals && longer < 5000);
    mx_copy_feed(&k, 20, 0, 0, 500); /* nothing tested: nothing learned */
    assert_true(mx_copy_p(&k, 20) > 0.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finds_what_a_search_finds),
        cmocka_unit_test(test_loops),
        cmocka_unit_test(test_short_and_shrunk_timelines),
        cmocka_unit_test(test_bounded),
        cmocka_unit_test(test_control),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
