/* Pure logic of the session bank: thinning and its bound, capture plans, the verdict on a lookup
 * row by row, marks of what was dropped, memory pressure. */
#include "unit/bank_rig.h"

#include "session/judge.h"
#include "session/thin.h"

/* ---- Thinning ----------------------------------------------------------------------------- */

#define MOST_POINTS 64

/* What an edit at distance d before the end costs: tokens between the edit and the restore point
 * before it. */
static size_t cost(const struct mx_thin *p, size_t count, size_t d)
{
    size_t end = p[count - 1].n, edit = end - d, best = 0;
    for (size_t i = 0; i < count; i++)
        if (p[i].n <= edit && p[i].n > best)
            best = p[i].n;
    return edit - best;
}

static size_t remove_dropped(struct mx_thin *p, size_t count)
{
    size_t n = 0;
    for (size_t i = 0; i < count; i++)
        if (p[i].keep)
            p[n++] = p[i];
    return n;
}

/* A conversation grows turn by turn, point by point, and is thinned each time: the bound holds for
 * every place of an edit at every moment, and few points are left. */
static void test_growing(void **state)
{
    struct mx_thin p[MOST_POINTS];
    (void)state;
    for (uint64_t seed = 0; seed < 12; seed++) {
        size_t count = 0, end = 0, most_left = 0, spacing = seed % 2 ? 256 : 64;
        for (uint64_t turn = 0; turn < 120; turn++) {
            end += 1 + rig_pick(seed * 1000 + turn, (uint32_t)spacing);
            enum mx_point point = (enum mx_point)rig_pick(seed * 1000 + turn + 500, 5);
            p[count++] = (struct mx_thin){end, point == MX_POINT_SYSTEM ? 0 : point, false};
            size_t kept = mx_thin(p, count, spacing, MOST_POINTS);
            count = remove_dropped(p, count);
            assert_int_equal(count, kept);
            most_left = count > most_left ? count : most_left;
            for (size_t d = 0; d < end; d += 7)
                assert_true(cost(p, count, d) <= (d > spacing ? d : spacing));
        }
        assert_true(most_left <= 24);
    }
}

static void test_fixed(void **state)
{
    struct mx_thin p[] = {
        {100, MX_POINT_SYSTEM, false}, {110, MX_POINT_PROMPT, false}, {120, MX_POINT_BORDER, false},
        {130, MX_POINT_BORDER, false}, {140, MX_POINT_BORDER, false}, {150, MX_POINT_ANSWER, false},
        {160, MX_POINT_CHUNK, false},  {170, MX_POINT_ANSWER, false}, {180, MX_POINT_PROMPT, false},
        {190, MX_POINT_CHUNK, false},
    };
    static const bool kept[] = {1, 1, 0, 1, 1, 0, 0, 1, 1, 1};
    (void)state;
    assert_int_equal(mx_thin(p, 10, 256, 12), 7);
    for (size_t i = 0; i < 10; i++)
        assert_int_equal(p[i].keep, kept[i]);
    assert_int_equal(mx_thin(p, 10, 256, 1), 7); /* those stay */
    assert_int_equal(mx_thin(p, 0, 256, 12), 0);
    assert_int_equal(mx_thin(p, 1, 256, 12), 1);
}

/* Too many points: the bound gives way, the count does not. */
static void test_most(void **state)
{
    struct mx_thin p[1000];
    (void)state;
    for (size_t i = 0; i < 1000; i++)
        p[i] = (struct mx_thin){(i + 1) * 64, MX_POINT_CHUNK, false};
    size_t all = mx_thin(p, 1000, 64, 1000);
    assert_true(all > 6 && all < 24);
    assert_true(mx_thin(p, 1000, 64, 6) <= 6);
    assert_true(p[999].keep);
    assert_true(mx_thin(p, 1000, SIZE_MAX, 6) == 1);
}

/* A message border is preferred to a farther place in the middle of a message. */
static void test_prefers_messages(void **state)
{
    struct mx_thin p[] = {{2600, MX_POINT_CHUNK, false},  {2760, MX_POINT_CHUNK, false},
                          {2800, MX_POINT_BORDER, false}, {2900, MX_POINT_CHUNK, false},
                          {2950, MX_POINT_BORDER, false}, {2970, MX_POINT_BORDER, false},
                          {3000, MX_POINT_PROMPT, false}};
    (void)state;
    mx_thin(p, 7, 256, 12);
    assert_true(p[2].keep);
    assert_false(p[1].keep);
    assert_false(p[3].keep);
}

/* ---- Plans -------------------------------------------------------------------------------- */

static void test_plan(void **state)
{
    struct rig r;
    size_t at[32], borders[] = {0, 300, 1000, 2000, 2500, 3000, 3500, 3995, 4100};
    enum mx_point points[32];
    (void)state;
    rig_open(&r, (struct mx_bank_options){.spacing = 256}, true);
    size_t n = mx_bank_plan(r.bank, 0, 4000, borders, 9, at, points, 32);
    static const size_t want[] = {300, 896, 2432, 2500, 3000, 3200, 3500, 3584, 3776, 3995, 3999};
    static const enum mx_point is[] = {MX_POINT_SYSTEM, MX_POINT_CHUNK,  MX_POINT_CHUNK,
                                       MX_POINT_BORDER, MX_POINT_BORDER, MX_POINT_CHUNK,
                                       MX_POINT_BORDER, MX_POINT_CHUNK,  MX_POINT_CHUNK,
                                       MX_POINT_BORDER, MX_POINT_PROMPT};
    assert_int_equal(n, 11);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(at[i], want[i]);
        assert_int_equal(points[i], is[i]);
    }
    assert_int_equal(mx_bank_plan(r.bank, 3700, 4000, borders, 9, at, points, 32), 3);
    assert_int_equal(mx_bank_plan(r.bank, 3999, 4000, borders, 9, at, points, 32), 0);
    assert_int_equal(mx_bank_plan(r.bank, 0, 4000, borders, 9, at, points, 2), 2);
    assert_int_equal(at[1], 3999); /* what matters most is planned first */
    assert_int_equal(at[0], 3995);
    assert_int_equal(mx_bank_plan(r.bank, 0, 1, borders, 9, at, points, 32), 0);
    assert_int_equal(mx_bank_plan(r.bank, 0, 0, NULL, 0, at, points, 32), 0);
    assert_int_equal(mx_bank_plan(r.bank, 0, 4000, borders, 9, at, points, 0), 0);
    rig_close(&r);
    rig_open(&r, (struct mx_bank_options){0}, false); /* can be cut anywhere */
    assert_int_equal(mx_bank_plan(r.bank, 0, 4000, borders, 9, at, points, 32), 1);
    assert_int_equal(at[0], 3999);
    rig_close(&r);
}

/* The answer's own message begins a few tokens before the end of the prompt: the place where the
 * next turn goes on otherwise when reasoning is left out. Without it a chat reads its last message
 * twice. */
static void test_plan_last_border(void **state)
{
    struct rig r;
    size_t at[32], borders[] = {0, 12, 495}, bare[] = {0, 495};
    enum mx_point points[32];
    (void)state;
    rig_open(&r, (struct mx_bank_options){.spacing = 256}, true);
    size_t n = mx_bank_plan(r.bank, 0, 500, borders, 3, at, points, 32);
    assert_int_equal(n, 5);
    assert_int_equal(at[0], 12);
    assert_int_equal(points[0], MX_POINT_SYSTEM);
    assert_int_equal(at[3], 495);
    assert_int_equal(points[3], MX_POINT_BORDER);
    assert_int_equal(at[4], 499);
    n = mx_bank_plan(r.bank, 0, 500, bare, 2, at, points, 32); /* no message before the question */
    assert_int_equal(at[n - 2], 495);
    for (size_t i = 0; i < n; i++)
        assert_int_not_equal(points[i], MX_POINT_SYSTEM);
    rig_close(&r);
}

/* Whatever the prompt, from nothing: an edit at distance d costs at most what plan.c promises. */
static void test_plan_bound(void **state)
{
    struct rig r;
    size_t at[64], borders[12];
    enum mx_point points[64];
    (void)state;
    rig_open(&r, (struct mx_bank_options){.spacing = 128}, true);
    for (uint64_t seed = 0; seed < 200; seed++) {
        size_t n = 2 + rig_pick(seed, 5000), n_borders = rig_pick(seed + 1000, 12), b = 0;
        for (size_t i = 0; i < n_borders; i++)
            borders[i] = b += rig_pick(seed * 20 + i, 600);
        size_t count = mx_bank_plan(r.bank, 0, n, borders, n_borders, at, points, 64);
        assert_true(count > 0 && at[count - 1] == n - 1);
        for (size_t i = 1; i < count; i++) /* but for what stands wherever it is */
            if (points[i] == MX_POINT_CHUNK && points[i - 1] == MX_POINT_CHUNK)
                assert_true(at[i] >= at[i - 1] + 16);
        for (size_t d = 1; d < n; d += 3) {
            size_t edit = n - d, best = 0;
            for (size_t i = 0; i < count; i++)
                best = at[i] <= edit ? at[i] : best;
            assert_true(edit - best <= (d > 128 ? d : 128) + BLOCK + 16);
        }
    }
    rig_close(&r);
}

static void test_spacing(void **state)
{
    (void)state;
    assert_int_equal(mx_plan_spacing(50 << 20, 36864 * BLOCK, 0), 256); /* a 4B shape */
    assert_int_equal(mx_plan_spacing(50 << 20, 36864 * BLOCK, 64), 64); /* asked for */
    assert_int_equal(mx_plan_spacing(200 << 20, 36864 * BLOCK, 0), 512);
    assert_int_equal(mx_plan_spacing(50 << 20, 36864 * BLOCK, 1), BLOCK);
    assert_int_equal(mx_plan_spacing(1 << 20, 36864 * BLOCK, 0), 256);
    assert_int_equal(mx_plan_spacing((uint64_t)1 << 40, 0, 0), 4096);
    assert_int_equal(mx_plan_spacing(0, 0, 0), 256);
}

/* ---- The verdict -------------------------------------------------------------------------- */

static void test_verdict(void **state)
{
    static const struct {
        struct mx_lookup l; /* n, restored, known, gone, why_gone, desync */
        enum mx_cache_miss miss;
        enum mx_restore_kind kind;
    } rows[] = {
        {{100, 99, 100, 0, 0, false}, MX_MISS_NONE, MX_RESTORE_EXACT},
        {{100, 99, 99, 0, 0, true}, MX_MISS_NONE, MX_RESTORE_EXACT},
        {{1, 0, 0, 0, 0, false}, MX_MISS_NONE, MX_RESTORE_NONE},
        {{100, 50, 80, 0, 0, true}, MX_MISS_SNAPSHOT_DESYNC, MX_RESTORE_BLOCK},
        {{500, 64, 64, 128, MX_MISS_EVICTED, false}, MX_MISS_EVICTED, MX_RESTORE_EXACT},
        {{500, 0, 0, 128, MX_MISS_EXPIRED, false}, MX_MISS_EXPIRED, MX_RESTORE_NONE},
        {{500, 300, 300, 128, MX_MISS_EVICTED, false}, MX_MISS_NONE, MX_RESTORE_EXACT},
        {{500, 5, 5, 0, 0, false}, MX_MISS_NONE, MX_RESTORE_EXACT},
        {{500, 0, 31, 0, 0, false}, MX_MISS_NEW_SESSION, MX_RESTORE_NONE},
        {{500, 0, 0, 0, 0, false}, MX_MISS_NEW_SESSION, MX_RESTORE_NONE},
        {{500, 0, 32, 0, 0, false}, MX_MISS_PREFIX_DIVERGENCE, MX_RESTORE_NONE},
        {{40, 0, 10, 0, 0, false}, MX_MISS_PREFIX_DIVERGENCE, MX_RESTORE_NONE},
        {{40, 0, 9, 0, 0, false}, MX_MISS_NEW_SESSION, MX_RESTORE_NONE},
        {{500, 200, 500, 0, 0, false}, MX_MISS_NO_SNAPSHOT_COVERAGE, MX_RESTORE_BLOCK},
        {{500, 491, 500, 0, 0, false}, MX_MISS_NO_SNAPSHOT_COVERAGE, MX_RESTORE_NEAR},
        {{500, 490, 500, 0, 0, false}, MX_MISS_NO_SNAPSHOT_COVERAGE, MX_RESTORE_BLOCK},
        {{500, 200, 500, 256, MX_MISS_EVICTED, false}, MX_MISS_EVICTED, MX_RESTORE_BLOCK},
        {{500, 200, 500, 192, MX_MISS_EVICTED, false},
         MX_MISS_NO_SNAPSHOT_COVERAGE,
         MX_RESTORE_BLOCK},
        {{500, 200, 300, 256, MX_MISS_EVICTED, false}, MX_MISS_PREFIX_DIVERGENCE, MX_RESTORE_BLOCK},
        {{500, 292, 300, 0, 0, false}, MX_MISS_PREFIX_DIVERGENCE, MX_RESTORE_NEAR},
        {{500, 291, 300, 0, 0, false}, MX_MISS_PREFIX_DIVERGENCE, MX_RESTORE_BLOCK},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (mx_judge_miss(&rows[i].l) != rows[i].miss || mx_judge_kind(&rows[i].l) != rows[i].kind)
            fail_msg("row %zu: %s, %s", i, mx_cache_miss_name(mx_judge_miss(&rows[i].l)),
                     mx_restore_kind_name(mx_judge_kind(&rows[i].l)));
    }
}

static void test_names(void **state)
{
    (void)state;
    for (int i = 0; i < MX_MISS_COUNT; i++)
        for (int j = 0; j < i; j++)
            assert_string_not_equal(mx_cache_miss_name((enum mx_cache_miss)i),
                                    mx_cache_miss_name((enum mx_cache_miss)j));
    assert_string_equal(mx_cache_miss_name(MX_MISS_COUNT), "unknown");
    assert_string_equal(mx_restore_kind_name(MX_RESTORE_BLOCK), "block");
    assert_string_equal(mx_restore_kind_name((enum mx_restore_kind)9), "unknown");
    assert_string_equal(mx_point_name(MX_POINT_ANSWER), "answer");
    assert_string_equal(mx_pressure_name(MX_PRESSURE_CRITICAL), "critical");
}

/* ---- Marks -------------------------------------------------------------------------------- */

static void test_graves(void **state)
{
    struct mx_graves *g = calloc(1, sizeof *g);
    int32_t t[1000];
    enum mx_cache_miss why = MX_MISS_NONE;
    (void)state;
    assert_non_null(g);
    for (int i = 0; i < 1000; i++)
        t[i] = i;
    assert_int_equal(mx_grave_find(g, "a", t, 1000, &why), 0);
    mx_grave_dig(g, "a", t, 63, MX_MISS_EVICTED); /* too short */
    assert_int_equal(mx_grave_find(g, "a", t, 1000, &why), 0);
    mx_grave_dig(g, "a", t, 150, MX_MISS_EVICTED);
    assert_int_equal(mx_grave_find(g, "a", t, 1000, &why), 128);
    assert_int_equal(why, MX_MISS_EVICTED);
    assert_int_equal(mx_grave_find(g, "a", t, 127, &why), 0);
    assert_int_equal(mx_grave_find(g, "b", t, 1000, &why), 0);
    mx_grave_dig(g, "a", t, 128, MX_MISS_EXPIRED); /* the same prefix again */
    assert_int_equal(mx_grave_find(g, "a", t, 1000, &why), 128);
    assert_int_equal(why, MX_MISS_EXPIRED);
    for (int i = 0; i < 100000; i++) { /* bounded: the oldest are forgotten */
        int32_t other[64] = {i, 7};
        mx_grave_dig(g, "a", other, 64, MX_MISS_EVICTED);
    }
    assert_int_equal(mx_grave_find(g, "a", t, 1000, &why), 0);
    free(g);
}

/* ---- Pressure ----------------------------------------------------------------------------- */

static void test_pressure(void **state)
{
    (void)state;
    assert_int_equal(mx_pressure_next(MX_PRESSURE_NONE, 100, 1000), MX_PRESSURE_NONE);
    assert_int_equal(mx_pressure_next(MX_PRESSURE_NONE, 99, 1000), MX_PRESSURE_HIGH);
    assert_int_equal(mx_pressure_next(MX_PRESSURE_HIGH, 149, 1000), MX_PRESSURE_HIGH);
    assert_int_equal(mx_pressure_next(MX_PRESSURE_HIGH, 150, 1000), MX_PRESSURE_NONE);
    assert_int_equal(mx_pressure_next(MX_PRESSURE_HIGH, 49, 1000), MX_PRESSURE_CRITICAL);
    assert_int_equal(mx_pressure_next(MX_PRESSURE_CRITICAL, 74, 1000), MX_PRESSURE_CRITICAL);
    assert_int_equal(mx_pressure_next(MX_PRESSURE_CRITICAL, 75, 1000), MX_PRESSURE_HIGH);

    uint64_t c = mx_pressure_ceiling(MX_PRESSURE_HIGH, UINT64_MAX, 800, 1600);
    assert_int_equal(c, 600);
    assert_int_equal(mx_pressure_ceiling(MX_PRESSURE_HIGH, 210, 210, 1600), 200); /* the least */
    assert_int_equal(mx_pressure_ceiling(MX_PRESSURE_CRITICAL, c, 600, 1600), 300);
    assert_int_equal(mx_pressure_ceiling(MX_PRESSURE_NONE, 600, 0, 1600), 700);
    assert_true(mx_pressure_ceiling(MX_PRESSURE_NONE, 1500, 0, 1600) == UINT64_MAX);
    assert_true(mx_pressure_ceiling(MX_PRESSURE_NONE, UINT64_MAX, 0, 1600) == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_growing),    cmocka_unit_test(test_fixed),
        cmocka_unit_test(test_most),       cmocka_unit_test(test_prefers_messages),
        cmocka_unit_test(test_plan),       cmocka_unit_test(test_plan_last_border),
        cmocka_unit_test(test_plan_bound), cmocka_unit_test(test_spacing),
        cmocka_unit_test(test_verdict),    cmocka_unit_test(test_names),
        cmocka_unit_test(test_graves),     cmocka_unit_test(test_pressure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
