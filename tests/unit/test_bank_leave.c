/* What the bank drops and the disk has not written yet: it counts until it is free. */
#include "bank_rig.h"

#include "session/cold.h"
#include "session/spill.h"

#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>

static char dir[64];

static struct mx_cold *open_cold(size_t min_tokens)
{
    mtplx_error err = {0};
    snprintf(dir, sizeof dir, "/tmp/mtplx-leave-XXXXXX");
    assert_non_null(mkdtemp(dir));
    struct mx_cold_options o = {
        .dir = dir, .mode = MX_COLD_ON, .floor_bytes = 1, .min_tokens = min_tokens};
    struct mx_cold *c = mx_cold_open(&o, &err);
    assert_non_null(c);
    return c;
}

static int remove_one(const char *path, const struct stat *sb, int type, struct FTW *f)
{
    (void)sb, (void)type, (void)f;
    return remove(path);
}

static void close_cold(struct mx_cold *c)
{
    mx_cold_close(c, 5000000000ull);
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void put_of(struct rig *r, int which, size_t n)
{
    int32_t t[LONGEST];
    for (size_t i = 0; i < n; i++)
        t[i] = (int32_t)(which * 1000 + (int)i);
    rig_put(r, t, n, MX_POINT_ANSWER, "", "s");
}

/* Snapshots that a writer holds are counted after they are dropped, blocks that others share once,
 * and freed when the writer is done. */
static void test_counted(void **state)
{
    struct rig r;
    (void)state;
    struct mx_cold *c = open_cold(SIZE_MAX); /* writes nothing */
    rig_open(&r, (struct mx_bank_options){.cold = c}, true);
    put_of(&r, 1, 300);
    mtplx_snapshot *written = mx_snapshot_ref(r.bank->newest->s);
    mtplx_snapshot *longer = rig_snapshot(&r, written->tokens, 200, written);
    mx_bank_put(r.bank, longer, MX_POINT_PROMPT, "", "s");
    longer = mx_snapshot_ref(longer);
    uint64_t bytes = mx_bank_bytes(r.bank), own = mx_snapshot_own_bytes(longer);
    mx_bank_shrink(r.bank, 0);
    assert_null(r.bank->newest);
    assert_int_equal(mx_bank_bytes(r.bank), bytes);
    mx_snapshot_unref(longer);
    mx_bank_tick(r.bank);
    assert_int_equal(mx_bank_bytes(r.bank), bytes - own);
    put_of(&r, 1, 300); /* the same tokens in blocks of its own */
    assert_true(mx_bank_bytes(r.bank) > bytes);
    mx_bank_shrink(r.bank, bytes + 1); /* what can be freed goes */
    assert_null(r.bank->newest);
    mx_snapshot_unref(written);
    mx_bank_tick(r.bank);
    assert_int_equal(mx_bank_bytes(r.bank), 0);
    assert_int_equal(rig_used(&r), 0);
    put_of(&r, 2, 300); /* freed while a writer holds it: its own is the writer's */
    written = mx_snapshot_ref(r.bank->newest->s);
    mx_bank_shrink(r.bank, 0);
    mx_bank_free(r.bank);
    assert_true(rig_used(&r) > 0);
    mx_snapshot_unref(written);
    r.bank = NULL;
    rig_close(&r);
    close_cold(c);
}

/* Dropping most of many keeps the last used, as dropping one by one does. */
static void test_many(void **state)
{
    struct rig r;
    (void)state;
    rig_open(&r, (struct mx_bank_options){.max_points = 1000}, true);
    for (int i = 0; i < 300; i++) {
        put_of(&r, i, 150);
        rig_time += 1000;
    }
    mx_bank_shrink(r.bank, mx_bank_bytes(r.bank) / 10);
    size_t n = 0;
    for (const struct mx_entry *e = r.bank->newest; e; e = e->older, n++)
        assert_int_equal(e->s->tokens[0], (299 - (int)n) * 1000);
    assert_int_equal(n, 30);
    rig_recount(&r);
    rig_close(&r);
}

/* Room is made for what is larger than the slack, not for what will not be kept. */
static void test_room(void **state)
{
    struct rig r;
    (void)state;
    rig_open(&r, (struct mx_bank_options){.budget = 100000, .session_cap = EVER}, true);
    for (int i = 0; i < 40; i++)
        put_of(&r, i, 150);
    uint64_t full = mx_bank_bytes(r.bank);
    assert_in_range(full, 90000, 100000);
    mx_bank_make_room(r.bank, 3000);
    mx_bank_make_room(r.bank, 100001);
    assert_int_equal(mx_bank_bytes(r.bank), full);
    mx_bank_make_room(r.bank, 50000);
    assert_true(mx_bank_bytes(r.bank) <= 100000 - 50000 + 100000 / 32);
    rig_recount(&r);
    rig_close(&r);
}

/* What was on its way to the disk when that was cleared does not come back there. */
static void test_cleared(void **state)
{
    (void)state;
    for (int clear = 0; clear < 2; clear++) {
        struct rig r;
        struct mx_cold *c = open_cold(100);
        struct mx_trash trash = {0};
        struct mx_cold_stats st;
        rig_open(&r, (struct mx_bank_options){.cold = c}, true);
        put_of(&r, 3, 300);
        rig_time += 100 * 1000000000ull;
        pthread_mutex_lock(&r.bank->lock);
        mx_spill_idle(r.bank, rig_time, &trash);
        pthread_mutex_unlock(&r.bank->lock);
        assert_non_null(trash.offers);
        if (clear)
            assert_int_equal(mx_bank_drop(r.bank, NULL, 0, true), 1);
        mx_trash_burn(r.bank, &trash);
        assert_true(mx_cold_flush(c, 5000000000ull));
        mx_cold_get_stats(c, &st);
        assert_int_equal(st.snapshots, !clear);
        rig_close(&r);
        close_cold(c);
    }
}

/* Of ten idle conversations as many are offered at once as fill an eighth of the bank. */
static void test_few_at_once(void **state)
{
    struct rig r;
    struct mx_trash trash = {0};
    size_t n = 0;
    (void)state;
    struct mx_cold *c = open_cold(100);
    rig_open(&r, (struct mx_bank_options){.cold = c}, true);
    for (int i = 0; i < 10; i++)
        put_of(&r, i, 300);
    mx_bank_set_budget(r.bank, mx_bank_bytes(r.bank));
    rig_time += 100 * 1000000000ull;
    pthread_mutex_lock(&r.bank->lock);
    mx_spill_idle(r.bank, rig_time, &trash);
    pthread_mutex_unlock(&r.bank->lock);
    for (const struct mx_offer *o = trash.offers; o; o = o->next)
        n++;
    assert_int_equal(n, 2);
    mx_trash_burn(r.bank, &trash);
    mx_bank_free(r.bank); /* offers the others too */
    close_cold(c);
    r.bank = NULL;
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counted),     cmocka_unit_test(test_cleared),
        cmocka_unit_test(test_few_at_once), cmocka_unit_test(test_many),
        cmocka_unit_test(test_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
