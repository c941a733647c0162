/* Rules of the session bank one by one: scopes, equal prefixes, superseding, caps, order of
 * dropping, time to live, pins, pressure, marks of what was dropped, damage, lists. */
#include "unit/bank_rig.h"

#include <stdio.h>

#define SECOND 1000000000ull

/* A conversation of its own: `n` tokens that start like no other id's. */
static void tokens_of(int id, int32_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (int32_t)(1000 * id + (int)i % 97);
}

static void put_of(struct rig *r, int id, size_t n, enum mx_point point, const char *session)
{
    int32_t t[LONGEST];
    tokens_of(id, t, n);
    rig_put(r, t, n, point, "", session);
}

/* Restored tokens of conversation `id`, asked for n tokens and another one behind. */
static size_t restored_of(struct rig *r, int id, size_t n)
{
    int32_t t[LONGEST + 1];
    tokens_of(id, t, n);
    t[n] = -5;
    return rig_restored(r, "", t, n + 1);
}

static enum mx_cache_miss miss_of(struct rig *r, int id, size_t n)
{
    int32_t t[LONGEST];
    tokens_of(id, t, n);
    struct mx_bank_hit hit = rig_find(r, "", t, n);
    mx_snapshot_unref(hit.snapshot);
    return hit.miss;
}

static struct mx_bank_stats stats(struct rig *r)
{
    struct mx_bank_stats s;
    mx_bank_get_stats(r->bank, &s);
    return s;
}

static void test_scopes(void **state)
{
    struct rig r;
    int32_t t[200];
    (void)state;
    rig_open(&r, (struct mx_bank_options){0}, true);
    tokens_of(1, t, 200);
    rig_put(&r, t, 150, MX_POINT_ANSWER, "alice", "s");
    assert_int_equal(rig_restored(&r, "alice", t, 200), 150);
    struct mx_bank_hit hit = rig_find(&r, "bob", t, 200);
    assert_null(hit.snapshot);
    assert_int_equal(hit.known, 0);
    assert_int_equal(hit.miss, MX_MISS_NEW_SESSION);
    assert_int_equal(rig_restored(&r, NULL, t, 200), 0);
    rig_put(&r, t, 150, MX_POINT_ANSWER, NULL, NULL);
    assert_int_equal(rig_restored(&r, "", t, 200), 150);
    assert_int_equal(stats(&r).entries, 2); /* nothing is shared across scopes */
    char longer[300];
    memset(longer, 'x', sizeof longer); /* 127 bytes count */
    longer[299] = '\0';
    rig_put(&r, t, 150, MX_POINT_ANSWER, longer, longer);
    longer[127] = '\0';
    assert_int_equal(rig_restored(&r, longer, t, 200), 150);
    rig_recount(&r);
    rig_close(&r);
}

static void test_refreshed(void **state)
{
    struct rig r;
    struct mx_bank_view v;
    (void)state;
    rig_open(&r, (struct mx_bank_options){0}, true);
    put_of(&r, 1, 150, MX_POINT_CHUNK, "a");
    rig_time += SECOND;
    put_of(&r, 1, 150, MX_POINT_PROMPT, "b");
    assert_int_equal(stats(&r).entries, 1);
    assert_int_equal(stats(&r).refreshed, 1);
    assert_int_equal(mx_bank_list(r.bank, &v, 1), 1);
    assert_int_equal(v.point, MX_POINT_PROMPT);
    assert_int_equal(v.idle_ns, 0);
    assert_int_equal(v.age_ns, SECOND);
    assert_string_equal(v.session, "a");
    put_of(&r, 1, 150, MX_POINT_CHUNK, "a"); /* not worth less than before */
    mx_bank_list(r.bank, &v, 1);
    assert_int_equal(v.point, MX_POINT_PROMPT);
    rig_close(&r);
}

static void test_interning(void **state)
{
    struct rig r;
    int32_t t[200];
    (void)state;
    rig_open(&r, (struct mx_bank_options){0}, true);
    put_of(&r, 1, 192, MX_POINT_ANSWER, "a"); /* 3 blocks, and 3 of the head (191 entries) */
    assert_int_equal(stats(&r).blocks, 6);
    tokens_of(1, t, 200);
    for (int i = 130; i < 200; i++)
        t[i] = 9; /* two blocks in common; the head's second one needs token 128 too */
    rig_put(&r, t, 200, MX_POINT_ANSWER, "", "b");
    assert_int_equal(stats(&r).blocks, 6 + 2 + 2);
    t[128] = 9; /* two blocks in common, but not token 128 */
    rig_put(&r, t, 200, MX_POINT_ANSWER, "", "c");
    assert_int_equal(stats(&r).blocks, 10 + 2 + 3);
    /* A beginning needs no block of its own at all. */
    put_of(&r, 1, 100, MX_POINT_ANSWER, "d");
    assert_int_equal(stats(&r).blocks, 15);
    /* Who is used by others is left as it is. */
    tokens_of(1, t, 120);
    mtplx_snapshot *s = rig_snapshot(&r, t, 120, NULL);
    mx_bank_put(r.bank, mx_snapshot_ref(s), MX_POINT_ANSWER, "", "e");
    assert_int_equal(stats(&r).blocks, 15 + 4);
    mx_snapshot_unref(s);
    rig_recount(&r);
    assert_int_equal(rig_used(&r) > 0, true);
    rig_close(&r);
}

/* A longer entry leaves the restore points of a shorter one alone, but for thinning. */
static void test_supersedes_nothing(void **state)
{
    struct rig r;
    (void)state;
    rig_open(&r, (struct mx_bank_options){.spacing = 64}, true);
    put_of(&r, 1, 100, MX_POINT_SYSTEM, "a");
    put_of(&r, 1, 300, MX_POINT_CHUNK, "a");
    put_of(&r, 1, 340, MX_POINT_ANSWER, "a");
    put_of(&r, 1, 600, MX_POINT_PROMPT, "a");
    assert_int_equal(restored_of(&r, 1, 650), 600);
    assert_int_equal(restored_of(&r, 1, 500), 340);
    /* 300 went: it lay between 340, at distance 260, and 100, no farther than that from it. */
    assert_int_equal(restored_of(&r, 1, 320), 100);
    assert_int_equal(restored_of(&r, 1, 200), 100);
    put_of(&r, 1, 640, MX_POINT_ANSWER, "a");
    put_of(&r, 1, 690, MX_POINT_ANSWER, "a"); /* 640 is one of three close to the end */
    assert_true(stats(&r).entries <= 6);
    assert_int_equal(restored_of(&r, 1, 200), 100);
    /* Another session's points are not thinned by this one. */
    put_of(&r, 1, 650, MX_POINT_CHUNK, "b");
    put_of(&r, 1, 695, MX_POINT_ANSWER, "a");
    assert_int_equal(restored_of(&r, 1, 660), 650);
    rig_recount(&r);
    rig_close(&r);
}

static void test_cap(void **state)
{
    struct rig r;
    (void)state;
    rig_open(&r, (struct mx_bank_options){.session_cap = 20000}, true);
    for (int i = 0; i < 10; i++)
        put_of(&r, i, 120, MX_POINT_ANSWER, "greedy");
    put_of(&r, 20, 120, MX_POINT_ANSWER, "modest");
    for (int i = 30; i < 40; i++)
        put_of(&r, i, 120, MX_POINT_ANSWER, "greedy");
    assert_true(mx_bank_session(r.bank, "greedy")->bytes <= 20000);
    assert_true(stats(&r).dropped_cap > 10);
    assert_int_equal(restored_of(&r, 20, 120), 120);
    assert_int_equal(restored_of(&r, 39, 120), 120);
    put_of(&r, 50, 690, MX_POINT_ANSWER, "greedy"); /* more than the cap alone: the newest stays */
    assert_int_equal(restored_of(&r, 50, 690), 690);
    assert_int_equal(mx_bank_session(r.bank, "greedy")->n_entries, 1);
    rig_recount(&r);
    rig_close(&r);
}

/* Six entries of different worth; shrinking drops them in the order of evict.c. */
static void test_order(void **state)
{
    struct rig r;
    (void)state;
    rig_open(&r, (struct mx_bank_options){.pin_ns = 100 * SECOND}, true);
    put_of(&r, 1, 100, MX_POINT_SYSTEM, "old");
    put_of(&r, 2, 100, MX_POINT_CHUNK, "pinned");
    put_of(&r, 3, 100, MX_POINT_CHUNK, "used");
    mtplx_snapshot *in_use = mx_snapshot_ref(r.bank->newest->s);
    rig_time += 150 * SECOND;
    put_of(&r, 4, 100, MX_POINT_PROMPT, "middle");
    put_of(&r, 5, 100, MX_POINT_CHUNK, "middle");
    rig_time += 150 * SECOND;
    put_of(&r, 6, 100, MX_POINT_CHUNK, "recent");
    assert_int_equal(mx_bank_pin(r.bank, "pinned", true), 1);
    assert_int_equal(mx_bank_pin(r.bank, "nobody", true), 0);
    static const int order[] = {1, 5, 4, 6, 3, 2}; /* idle longest first; then a chunk; ... */
    for (size_t i = 0; i < 6; i++) {
        int32_t t[100];
        tokens_of(order[i], t, 100);
        bool there = false;
        for (const struct mx_entry *e = r.bank->newest; e; e = e->older)
            there |= e->s->tokens[0] == t[0];
        assert_true(there);
        mx_bank_shrink(r.bank, mx_bank_bytes(r.bank) - 1);
        for (const struct mx_entry *e = r.bank->newest; e; e = e->older)
            assert_int_not_equal(e->s->tokens[0], t[0]);
        rig_recount(&r);
    }
    assert_int_equal(stats(&r).entries, 0);
    assert_int_equal(stats(&r).bytes, 0);
    mx_snapshot_unref(in_use);
    rig_close(&r);
}

/* Where all were used of late, age goes before hits and size: what was put in last stays. */
static void test_recent_order(void **state)
{
    struct rig r;
    (void)state;
    rig_open(&r, (struct mx_bank_options){.pin_ns = 100 * SECOND}, true);
    put_of(&r, 1, 200, MX_POINT_ANSWER, "a");
    assert_int_equal(restored_of(&r, 1, 200), 200);
    rig_time += 20 * SECOND;
    put_of(&r, 2, 600, MX_POINT_ANSWER, "b");
    put_of(&r, 3, 100, MX_POINT_ANSWER, "c"); /* as new, but short */
    mx_bank_shrink(r.bank, mx_bank_bytes(r.bank) - 1);
    assert_int_equal(restored_of(&r, 1, 200), 0);
    mx_bank_shrink(r.bank, mx_bank_bytes(r.bank) - 1);
    assert_int_equal(restored_of(&r, 3, 100), 0);
    assert_int_equal(restored_of(&r, 2, 600), 600);
    rig_close(&r);
}

/* Turns that follow each other in a fraction of a second: where the next one goes on from stays,
 * and what ten turns ago left goes. */
static void test_quick_turns(void **state)
{
    struct rig r;
    (void)state;
    rig_open(&r, (struct mx_bank_options){.pin_ns = 100 * SECOND, .session_cap = 60000}, true);
    for (int turn = 0; turn < 20; turn++) {
        put_of(&r, turn, 200, MX_POINT_PROMPT, "a");
        put_of(&r, 100 + turn, 190, MX_POINT_BORDER, "a");
        put_of(&r, 200 + turn, 210, MX_POINT_ANSWER, "a");
        rig_time += SECOND / 20;
        assert_int_equal(restored_of(&r, 100 + turn, 190), 190);
    }
    assert_true(stats(&r).dropped_cap > 20);
    assert_int_equal(restored_of(&r, 3, 200), 0);
    rig_close(&r);
}

/* A chat whose template drops the end of each prompt from the next one: the turns it leaves behind
 * do not pile up, and the last one of them can be asked for again. */
static void test_left_turns(void **state)
{
    enum { TURNS = 20, OPENING = 6, ANSWER = 10, STEP = 30 };
    struct rig r;
    int32_t base[LONGEST], left[TURNS][LONGEST];
    (void)state;
    rig_open(&r, (struct mx_bank_options){0}, true);
    for (int i = 0; i < LONGEST; i++)
        base[i] = (int32_t)rig_pick((uint64_t)i, 1000);
    for (size_t turn = 0; turn < TURNS; turn++) {
        size_t n = 64 + turn * STEP;
        memcpy(left[turn], base, n * sizeof *base);
        for (size_t i = n; i < LONGEST; i++)
            left[turn][i] = 2000 + (int32_t)turn;
        rig_put(&r, base, n - 18, MX_POINT_BORDER, "", "chat"); /* of the question */
        rig_put(&r, base, n, MX_POINT_BORDER, "", "chat");
        rig_put(&r, left[turn], n + OPENING, MX_POINT_PROMPT, "", "chat");
        rig_put(&r, left[turn], n + OPENING + ANSWER, MX_POINT_ANSWER, "", "chat");
        assert_true(stats(&r).entries < 20);
        for (size_t back = 0; back < 2 && back <= turn; back++) {
            size_t m = n - back * STEP + OPENING;
            assert_int_equal(rig_restored(&r, "", left[turn - back], m + 1), m);
            assert_int_equal(rig_restored(&r, "", left[turn - back], m + ANSWER + 1), m + ANSWER);
        }
    }
    /* A question that was edited is no turn that was left behind: both stand. */
    memcpy(left[0], base, LONGEST * sizeof *base);
    for (size_t i = 640; i < LONGEST; i++)
        left[0][i] = 5000;
    rig_put(&r, left[0], 670, MX_POINT_PROMPT, "", "chat");
    size_t n = 64 + (TURNS - 1) * STEP;
    assert_int_equal(rig_restored(&r, "", left[TURNS - 1], n + OPENING + 1), n + OPENING);
    rig_recount(&r);
    rig_close(&r);
}

static void test_hits_protect(void **state)
{
    struct rig r;
    (void)state;
    rig_open(&r, (struct mx_bank_options){0}, true);
    put_of(&r, 1, 100, MX_POINT_ANSWER, "a");
    put_of(&r, 2, 100, MX_POINT_ANSWER, "b");
    assert_int_equal(restored_of(&r, 1, 100), 100);
    mx_bank_shrink(r.bank, mx_bank_bytes(r.bank) - 1);
    assert_int_equal(restored_of(&r, 1, 100), 100);
    assert_int_equal(restored_of(&r, 2, 100), 0);
    struct mx_bank_stats s = stats(&r);
    assert_int_equal(s.lookups, 3);
    assert_int_equal(s.hits, 2);
    assert_int_equal(s.hit_tokens, 200);
    assert_int_equal(s.misses[MX_MISS_NONE], 2);
    assert_int_equal(s.misses[MX_MISS_EVICTED], 1);
    assert_int_equal(s.kinds[MX_RESTORE_EXACT], 2);
    assert_int_equal(s.kinds[MX_RESTORE_NONE], 1);
    rig_close(&r);
}

/* Nothing is kept at the price of everything else. */
static void test_too_large(void **state)
{
    struct rig r;
    (void)state;
    rig_open(&r, (struct mx_bank_options){.budget = 12000}, true);
    put_of(&r, 1, 100, MX_POINT_ANSWER, "a");
    put_of(&r, 2, 690, MX_POINT_ANSWER, "a");
    assert_int_equal(restored_of(&r, 1, 100), 100);
    assert_int_equal(stats(&r).dropped_budget, 1);
    assert_int_equal(miss_of(&r, 2, 690), MX_MISS_EVICTED);
    mx_bank_set_budget(r.bank, 100);
    assert_int_equal(stats(&r).entries, 0);
    assert_int_equal(miss_of(&r, 1, 100), MX_MISS_EVICTED);
    rig_recount(&r);
    rig_close(&r);
}

static void test_ttl(void **state)
{
    struct rig r;
    (void)state;
    rig_open(&r, (struct mx_bank_options){.ttl_ns = 10 * SECOND}, true);
    put_of(&r, 1, 100, MX_POINT_SYSTEM, "a");
    put_of(&r, 1, 150, MX_POINT_ANSWER, "a");
    put_of(&r, 2, 150, MX_POINT_ANSWER, "b");
    put_of(&r, 3, 150, MX_POINT_ANSWER, "c");
    mx_bank_pin(r.bank, "c", true);
    rig_time += 6 * SECOND;
    assert_int_equal(restored_of(&r, 1, 150), 150); /* keeps what leads to it alive too */
    rig_time += 6 * SECOND;
    assert_int_equal(miss_of(&r, 2, 150), MX_MISS_EXPIRED);
    assert_int_equal(stats(&r).entries, 3);
    assert_int_equal(restored_of(&r, 1, 150), 150);
    mx_bank_pin(r.bank, "c", false);
    rig_time += 10 * SECOND;
    mx_bank_tick(r.bank);
    assert_int_equal(stats(&r).entries, 0);
    assert_int_equal(stats(&r).dropped_ttl, 4);
    rig_close(&r);
}

static void test_drop(void **state)
{
    struct rig r;
    struct mx_bank_view v[2];
    (void)state;
    rig_open(&r, (struct mx_bank_options){0}, true);
    for (int i = 0; i < 6; i++)
        put_of(&r, i, 150, MX_POINT_ANSWER, i % 2 ? "odd" : "even");
    assert_int_equal(mx_bank_list(r.bank, v, 2), 6);
    assert_int_equal(mx_bank_drop(r.bank, "nobody", 0, true), 0);
    assert_int_equal(mx_bank_drop(r.bank, "odd", v[1].id, true), 0); /* is not of that session */
    assert_int_equal(mx_bank_drop(r.bank, NULL, v[1].id, true), 1);
    assert_int_equal(mx_bank_drop(r.bank, "even", 0, true), 2);
    assert_int_equal(mx_bank_drop(r.bank, NULL, 0, true), 3);
    assert_int_equal(stats(&r).dropped_asked, 6);
    assert_int_equal(miss_of(&r, 1, 150), MX_MISS_NEW_SESSION); /* asked for: not "evicted" */
    rig_close(&r);
}

static bool little_left(uint64_t *left, uint64_t *usable)
{
    *left = 90;
    *usable = 1000;
    return true;
}

static bool unknown(uint64_t *left, uint64_t *usable)
{
    *left = *usable = 0;
    return false;
}

static void test_pressure(void **state)
{
    struct rig r;
    (void)state;
    rig_open(&r, (struct mx_bank_options){.budget = 200000}, true);
    for (int i = 0; i < 15; i++)
        put_of(&r, i, 150, MX_POINT_ANSWER, "a");
    uint64_t before = mx_bank_bytes(r.bank);
    mx_bank_tick(r.bank);
    assert_int_equal(mx_bank_bytes(r.bank), before);
    r.bank->gauge.read = little_left;
    mx_bank_tick(r.bank); /* within the same second nothing is read */
    assert_int_equal(mx_bank_bytes(r.bank), before);
    rig_time += SECOND;
    mx_bank_tick(r.bank);
    assert_int_equal(stats(&r).pressure, MX_PRESSURE_HIGH);
    assert_true(mx_bank_bytes(r.bank) <= before - before / 4);
    assert_int_equal(stats(&r).ceiling, before - before / 4);
    assert_true(stats(&r).dropped_pressure > 0);
    for (int i = 0; i < 15; i++)
        put_of(&r, 50 + i, 150, MX_POINT_ANSWER, "b"); /* the ceiling holds */
    assert_true(mx_bank_bytes(r.bank) <= before - before / 4);
    r.bank->gauge.read = unknown;
    for (int i = 0; i < 20; i++) {
        rig_time += SECOND;
        mx_bank_tick(r.bank);
    }
    assert_int_equal(stats(&r).ceiling, 200000);
    rig_recount(&r);
    rig_close(&r);
}

/* An entry whose tokens are not what the index says is never restored. */
static void test_damage(void **state)
{
    struct rig r;
    int32_t t[200];
    (void)state;
    rig_open(&r, (struct mx_bank_options){0}, true);
    put_of(&r, 1, 100, MX_POINT_SYSTEM, "a");
    put_of(&r, 1, 180, MX_POINT_ANSWER, "a");
    for (struct mx_entry *e = r.bank->newest; e; e = e->older)
        if (e->s->n == 180)
            e->s->tokens[5] ^= 1;
    tokens_of(1, t, 190);
    struct mx_bank_hit hit = rig_find(&r, "", t, 190);
    assert_int_equal(hit.snapshot->n, 100);
    assert_int_equal(hit.miss, MX_MISS_SNAPSHOT_DESYNC);
    mx_snapshot_unref(hit.snapshot);
    assert_int_equal(stats(&r).entries, 1);
    rig_recount(&r);
    rig_close(&r);
}

/* What is not all determined by tokens is not kept. */
static void test_refused(void **state)
{
    struct rig r;
    int32_t t[100];
    (void)state;
    rig_open(&r, (struct mx_bank_options){0}, true);
    tokens_of(1, t, 100);
    mtplx_snapshot *s = rig_snapshot(&r, t, 100, NULL);
    s->next_pos = 400; /* an image stood in there */
    mx_bank_put(r.bank, s, MX_POINT_ANSWER, "", "");
    s = rig_snapshot(&r, t, 100, NULL);
    s->mtp_len = 100; /* it must go on with a certain token */
    mx_bank_put(r.bank, s, MX_POINT_ANSWER, "", "");
    mx_bank_put(r.bank, NULL, MX_POINT_ANSWER, "", "");
    assert_int_equal(stats(&r).entries, 0);
    struct mx_bank_hit hit;
    mx_bank_find(r.bank, "", "", t, 0, &hit);
    assert_null(hit.snapshot);
    assert_int_equal(hit.miss, MX_MISS_NONE);
    mtplx_error err = {0};
    assert_null(mx_bank_new(&(struct mx_bank_options){.model = &r.model}, &err));
    assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scopes),       cmocka_unit_test(test_refreshed),
        cmocka_unit_test(test_interning),    cmocka_unit_test(test_supersedes_nothing),
        cmocka_unit_test(test_cap),          cmocka_unit_test(test_order),
        cmocka_unit_test(test_recent_order), cmocka_unit_test(test_quick_turns),
        cmocka_unit_test(test_left_turns),   cmocka_unit_test(test_hits_protect),
        cmocka_unit_test(test_too_large),    cmocka_unit_test(test_ttl),
        cmocka_unit_test(test_drop),         cmocka_unit_test(test_pressure),
        cmocka_unit_test(test_damage),       cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
