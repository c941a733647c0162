/* The cold tier: what is written comes back or is dropped, and nothing else ever comes back. */
#include "cold_rig.h"

#include <errno.h>

/* ---- Writing and reading ------------------------------------------------------------------ */

static void test_round_trip(void **state)
{
    struct rig *r = *state;
    struct mx_cold *c = open_rig(r);
    static const size_t lengths[] = {1, 63, 64, 65, 128, 700};
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < 6; i++) {
            struct talk t = talk(i + 1, lengths[i]);
            if (!pass)
                put_ok(c, &t);
            assert_true(has(c, &t));
            assert_int_equal(check_talk(c, &t), 0);
            assert_false(put_talk(c, &t)); /* there already */
        }
        assert_no_orphans(r, c);
        c = reopen(r, c);
    }
    struct talk other = talk(99, 64);
    assert_false(has(c, &other));
    assert_int_equal(check_talk(c, &other), 1);
    assert_int_equal(log_lines(r), 0);
    mx_cold_close(c, 0);
}

static void test_sharing(void **state)
{
    struct rig *r = *state;
    struct mx_cold *c = open_rig(r);
    struct talk a = talk(1, 64 * 10 + 5);
    struct talk b = a;
    b.own = 2;
    b.shared = 64 * 7 + 3;
    struct talk longer = a;
    longer.n = 64 * 12;
    assert_true(put_talk(c, &a)); /* the others are queued behind what they share */
    assert_true(put_talk(c, &b));
    assert_true(put_talk(c, &longer));
    assert_true(mx_cold_flush(c, 20 * SECOND));
    struct mx_cold_stats s = stats_of(c);
    assert_int_equal(s.snapshots, 3);
    assert_int_equal(s.blocks, 10 + 3 + 2);
    assert_int_equal(check_talk(c, &a) | check_talk(c, &b) | check_talk(c, &longer), 0);
    /* Another scope shares nothing. */
    struct talk elsewhere = a;
    elsewhere.scope = "other";
    elsewhere.session = "t";
    assert_false(has(c, &elsewhere));
    put_ok(c, &elsewhere);
    assert_int_equal(stats_of(c).blocks, 25);
    assert_int_equal(mx_cold_drop(c, "t"), 1);
    assert_false(has(c, &elsewhere));
    assert_no_orphans(r, c);
    assert_int_equal(stats_of(c).blocks, 15);
    assert_int_equal(mx_cold_drop(c, NULL), 3);
    assert_no_orphans(r, c);
    assert_int_equal(each_file(r->dir, NULL, NULL), 0);
    assert_int_equal(stats_of(c).bytes, 0);
    mx_cold_close(c, 0);
}

static void test_identity(void **state)
{
    struct rig *r = *state;
    struct mx_cold *c = open_rig(r);
    struct talk t = talk(1, 200);
    put_ok(c, &t);
    struct mx_cold_key key = talk_key(&t);
    static const char parts[] = "mtp";
    for (int i = 0; i < 3; i++) {
        struct mx_cold_options was = r->o;
        uint8_t *part = i == 0   ? r->o.identity.model
                        : i == 1 ? r->o.identity.text
                                 : r->o.identity.policy;
        part[15] ^= 1;
        c = reopen(r, c);
        assert_false(mx_cold_has(c, MX_COLD_SNAPSHOT, key));
        assert_int_equal(mx_cold_elsewhere(c, MX_COLD_SNAPSHOT, key), parts[i]);
        assert_int_equal(check_talk(c, &t), 1);
        r->o = was;
    }
    r->o.identity.policy[0] ^= 8; /* both side by side */
    c = reopen(r, c);
    put_ok(c, &t);
    assert_int_equal(check_talk(c, &t), 0);
    r->o.identity.policy[0] ^= 8;
    c = reopen(r, c);
    assert_int_equal(check_talk(c, &t), 0);
    assert_int_equal(stats_of(c).snapshots, 2);
    assert_no_orphans(r, c);
    mx_cold_close(c, 0);
}

/* What is read ahead is what is read, from a disk (past its cache) as from memory. */
static void test_prefetch(void **state)
{
    struct rig *r = *state;
    char on_disk[] = "/tmp/mtplx-ahead-XXXXXX";
    assert_non_null(mkdtemp(on_disk));
    r->o.dir = on_disk;
    struct mx_cold *c = open_rig(r);
    struct talk t = talk(1, 64 * 20);
    struct talk other = talk(9, 64);
    t.block_bytes = 100000;
    put_ok(c, &t);
    mx_cold_prefetch(c, MX_COLD_SNAPSHOT, talk_key(&other)); /* not there */
    for (int pass = 0; pass < 4; pass++) {
        struct talk_objects *o = talk_objects(&t, false);
        if (pass < 3)
            each_file(on_disk, forget_file, NULL);
        for (size_t i = 0; i < o->n; i++) /* more than there are places for */
            mx_cold_prefetch(c, o->w[i].kind, o->w[i].key);
        free_objects(o);
        assert_int_equal(check_talk(c, &t), 0);
    }
    struct nth n;
    flip(file_at(on_disk, 3, &n), 5000);
    struct talk_objects *o = talk_objects(&t, false);
    for (size_t i = 0; i < o->n; i++)
        mx_cold_prefetch(c, o->w[i].kind, o->w[i].key);
    free_objects(o);
    assert_int_equal(check_talk(c, &t), 1);
    mx_cold_close(c, SECOND);
    remove_tree(on_disk);
}

/* ---- Budgets ------------------------------------------------------------------------------ */

static void test_budget(void **state)
{
    struct rig *r = *state;
    r->o.hourly_bytes = 40000;
    struct mx_cold *c = open_rig(r);
    struct talk a = talk(1, 64 * 4);
    struct talk b = talk(2, 64 * 4);
    put_ok(c, &a);
    assert_false(put_talk(c, &b));
    assert_int_equal(stats_of(c).skipped_budget, 1);
    assert_int_equal(log_lines(r), 1);
    for (int i = 0; i < 3; i++) { /* starting again gives no new budget */
        c = reopen(r, c);
        assert_false(put_talk(c, &b));
    }
    set_u64(r, &r->now_ms, r->now_ms + 1800 * 1000);
    put_ok(c, &b);
    assert_false(put_talk(c, &(struct talk){.own = 3, .n = 200, .block_bytes = 9000}));
    assert_int_equal(check_talk(c, &b), 0);
    assert_no_orphans(r, c);
    mx_cold_close(c, 0);
}

static void test_floor(void **state)
{
    struct rig *r = *state;
    r->free_bytes = 4ull << 30;
    struct mx_cold *c = open_rig(r);
    struct talk a = talk(1, 300);
    struct talk b = talk(2, 300);
    for (int i = 0; i < 3; i++) {
        put_talk(c, &a);
        mx_cold_flush(c, 20 * SECOND);
    }
    assert_false(has(c, &a));
    assert_int_equal(log_lines(r), 1);
    assert_int_equal(stats_of(c).skipped_floor, 3);
    assert_false(stats_of(c).writable);
    set_u64(r, &r->free_bytes, 8ull << 30);
    assert_false(put_talk(c, &a)); /* not before a minute is over */
    set_u64(r, &r->now_ms, r->now_ms + 61000);
    put_ok(c, &a);
    put_ok(c, &b);
    assert_int_equal(log_lines(r), 2);
    assert_true(stats_of(c).writable);
    assert_no_orphans(r, c);
    mx_cold_close(c, 0);
}

/* Whatever step fails: nothing stays, one warning, and it goes on after a minute. */
static void test_write_errors(void **state)
{
    struct rig *r = *state;
    static const int errors[] = {ENOSPC, EROFS, EIO};
    struct mx_cold *c = open_rig(r);
    struct talk old = talk(50, 200);
    put_ok(c, &old);
    int id = 1;
    for (int i = 0; i < 3; i++)
        for (int op = MX_COLD_OP_WRITE; op <= MX_COLD_OP_COMMIT; op++, id++) {
            struct talk t = talk(id, 300);
            int lines = log_lines(r);
            set_fault(r, errors[i], (enum mx_cold_op)op);
            for (int n = 0; n < 3; n++) {
                put_talk(c, &t);
                mx_cold_flush(c, 20 * SECOND);
            }
            assert_int_equal(log_lines(r), lines + 1);
            assert_false(has(c, &t));
            assert_int_equal(check_talk(c, &old), 0);
            assert_no_orphans(r, c);
            set_fault(r, 0, MX_COLD_OP_WRITE);
            set_u64(r, &r->now_ms, r->now_ms + 61000);
            put_ok(c, &t);
            assert_int_equal(check_talk(c, &t), 0);
            assert_int_equal(log_lines(r), lines + 2);
        }
    mx_cold_close(c, 0);
}

/* ---- Eviction ----------------------------------------------------------------------------- */

static void test_eviction(void **state)
{
    struct rig *r = *state;
    r->o.max_bytes = 400 * 1024; /* 4 of these with 10 blocks of 8 KiB */
    struct mx_cold *c = open_rig(r);
    struct talk t[8];
    for (int i = 0; i < 8; i++) {
        t[i] = talk(i + 1, 64 * 10);
        t[i].point = i == 1 ? 2 : 0; /* a system prompt */
        if (i == 4)
            mx_cold_touch(c, talk_key(&t[0]));
        set_u64(r, &r->now_ms, r->now_ms + 1000);
        put_ok(c, &t[i]);
        assert_true(stats_of(c).bytes <= r->o.max_bytes);
        if (i == 4) /* the one used last before is the first to go, not the first written */
            assert_true(has(c, &t[0]) && !has(c, &t[2]));
    }
    assert_true(has(c, &t[1]) && has(c, &t[7]) && !has(c, &t[0]));
    for (int i = 2; i < 7; i++)
        assert_true(!has(c, &t[i]) || has(c, &t[i + 1]));
    assert_true(stats_of(c).evicted >= 4);
    assert_no_orphans(r, c);
    /* A quarter of what is free and used is the most. */
    r->o.floor_bytes = 1;
    r->o.max_bytes = 0;
    c = reopen(r, c);
    uint64_t all = 1000 * 1024;
    set_u64(r, &r->free_bytes, all - stats_of(c).bytes);
    put_ok(c, &t[2]);
    assert_true(stats_of(c).bytes <= all / 4);
    assert_int_equal(check_talk(c, &t[2]), 0);
    assert_no_orphans(r, c);
    mx_cold_close(c, 0);
}

/* A conversation that outgrows the tier is refused, and costs no other its place; what fits is
 * written meanwhile. */
static void test_too_large(void **state)
{
    struct rig *r = *state;
    r->o.max_bytes = 400 * 1024; /* blocks of 8 KiB, snapshots too */
    struct mx_cold *c = open_rig(r);
    struct talk other = talk(1, 64 * 10);
    struct talk grown = talk(2, 64 * 25);
    struct talk small = talk(3, 64 * 2);
    put_ok(c, &other);
    put_ok(c, &grown);
    grown.n = 64 * 50;
    put_talk(c, &grown);
    mx_cold_flush(c, 20 * SECOND);
    assert_false(has(c, &grown));
    assert_int_equal(stats_of(c).evicted, 0);
    grown.n = 64 * 25;
    assert_true(has(c, &other) && has(c, &grown));
    assert_int_equal(log_lines(r), 1);
    assert_true(stats_of(c).writable);
    put_ok(c, &small);
    assert_true(has(c, &small));
    /* One alone that is larger than all. */
    struct talk huge = talk(4, 64 * 60);
    put_talk(c, &huge);
    mx_cold_flush(c, 20 * SECOND);
    assert_false(has(c, &huge));
    assert_true(has(c, &other) && has(c, &grown) && has(c, &small));
    assert_int_equal(log_lines(r), 1);
    assert_no_orphans(r, c);
    mx_cold_close(c, 0);
}

/* A clock that is set back makes nothing wait for it, and gives no budget. */
static void test_clock_set_back(void **state)
{
    struct rig *r = *state;
    const uint64_t year = 365ull * 24 * 3600 * 1000;
    struct mx_cold *c = open_rig(r);
    struct talk a = talk(1, 300);
    struct talk b = talk(2, 300);
    set_fault(r, EIO, MX_COLD_OP_WRITE);
    put_talk(c, &a);
    mx_cold_flush(c, 20 * SECOND);
    set_fault(r, 0, MX_COLD_OP_WRITE);
    assert_false(stats_of(c).writable);
    set_u64(r, &r->now_ms, r->now_ms - year);
    put_ok(c, &a);
    set_u64(r, &r->now_ms, r->now_ms - year);
    put_ok(c, &b);
    c = reopen(r, c);
    assert_int_equal(check_talk(c, &a), 0);
    assert_int_equal(check_talk(c, &b), 0);
    assert_no_orphans(r, c);
    r->o.hourly_bytes = 10000; /* less than a conversation of this size */
    c = reopen(r, c);
    struct talk d = talk(4, 300);
    set_u64(r, &r->now_ms, r->now_ms - year);
    assert_false(put_talk(c, &d));
    assert_int_equal(stats_of(c).skipped_budget, 1);
    mx_cold_close(c, 0);
}

/* Use is remembered over a restart. */
static void test_touch(void **state)
{
    struct rig *r = *state;
    r->o.max_bytes = 300 * 1024;
    struct mx_cold *c = open_rig(r);
    struct talk a = talk(1, 64 * 10);
    struct talk b = talk(2, 64 * 10);
    struct talk d = talk(3, 64 * 10);
    struct talk e = talk(4, 64 * 10);
    put_ok(c, &a);
    put_ok(c, &b);
    put_ok(c, &d);
    set_u64(r, &r->now_ms, r->now_ms + 1000);
    mx_cold_touch(c, talk_key(&a));
    c = reopen(r, c);
    put_ok(c, &e);
    assert_true(has(c, &a));
    assert_false(has(c, &b));
    mx_cold_close(c, 0);
}

/* A block that snapshots share stays as long as one of them. */
static void test_eviction_shared(void **state)
{
    struct rig *r = *state;
    struct mx_cold *c = open_rig(r);
    struct talk a = talk(1, 64 * 6);
    struct talk b = a;
    b.own = 2;
    b.shared = 64 * 4;
    a.session = "a";
    b.session = "b";
    put_ok(c, &a);
    put_ok(c, &b);
    assert_int_equal(mx_cold_drop(c, "a"), 1);
    assert_int_equal(check_talk(c, &b), 0);
    assert_int_equal(stats_of(c).blocks, 6);
    assert_no_orphans(r, c);
    mx_cold_close(c, 0);
}

/* Whether the manifest or its log has a text. */
static bool manifest_has(const struct rig *r, const char *text)
{
    static const char *const suffixes[] = {"", "-wal", "-shm", ".bad"};
    bool found = false;
    for (int i = 0; i < 4; i++) {
        char path[160];
        snprintf(path, sizeof path, "%s/manifest.db%s", r->dir, suffixes[i]);
        FILE *f = fopen(path, "rb");
        size_t cap = (size_t)4 << 20;
        char *buf = malloc(cap);
        size_t n = f && buf ? fread(buf, 1, cap, f) : 0;
        found |= n > 0 && memmem(buf, n, text, strlen(text)) != NULL;
        free(buf);
        if (f)
            fclose(f);
    }
    return found;
}

/* Names of conversations are not to be read after they were dropped, while the tier is open. */
static void test_names_gone(void **state)
{
    struct rig *r = *state;
    struct mx_cold *c = open_rig(r);
    for (int i = 0; i < 120; i++) {
        char label[40];
        struct talk t = talk(i + 1, 70);
        snprintf(label, sizeof label, i % 3 ? "label-dull-%d" : "label-secret-%d", i);
        t.session = label;
        assert_true(put_talk(c, &t));
    }
    assert_true(mx_cold_flush(c, 20 * SECOND));
    assert_true(manifest_has(r, "label-secret"));
    for (int i = 0; i < 120; i += 3) {
        char label[40];
        snprintf(label, sizeof label, "label-secret-%d", i);
        assert_int_equal(mx_cold_drop(c, label), 1);
    }
    assert_true(mx_cold_flush(c, 20 * SECOND));
    assert_false(manifest_has(r, "label-secret"));
    assert_true(manifest_has(r, "label-dull"));
    char bad[160];
    snprintf(bad, sizeof bad, "%s/manifest.db.bad", r->dir);
    FILE *f = fopen(bad, "w");
    assert_non_null(f);
    fputs("label-old", f);
    fclose(f);
    assert_int_equal(mx_cold_drop(c, NULL), 80);
    assert_true(mx_cold_flush(c, 20 * SECOND));
    assert_false(manifest_has(r, "label-"));
    struct talk t = talk(500, 130);
    put_ok(c, &t);
    assert_int_equal(check_talk(c, &t), 0);
    assert_no_orphans(r, c);
    mx_cold_close(c, 0);
}

/* ---- Queue -------------------------------------------------------------------------------- */

static void count_release(void *arg)
{
    atomic_fetch_add((_Atomic int *)arg, 1);
}

static void test_queue(void **state)
{
    struct rig *r = *state;
    r->o.queue_bytes = 200 * 1024;
    struct mx_cold *c = open_rig(r);
    _Atomic int released = 0;
    int queued = 0;
    struct talk_objects *o[60];
    for (int i = 0; i < 60; i++) {
        struct talk t = talk(i + 1, 64 * 10);
        o[i] = talk_objects(&t, true);
        queued += mx_cold_put(c, o[i]->w, o[i]->n, count_release, &released);
        struct mx_cold_stats s = stats_of(c);
        assert_true(s.queued_bytes <= r->o.queue_bytes || s.queued == 1);
    }
    assert_int_equal(stats_of(c).skipped_queue, 60 - queued);
    assert_true(queued < 60);
    mx_cold_flush(c, 20 * SECOND);
    assert_int_equal(stats_of(c).snapshots, queued);
    assert_int_equal(atomic_load(&released), 60);
    assert_no_orphans(r, c);
    /* Closing without waiting gives up what waits, and leaves nothing half done. */
    r->o.queue_bytes = 0;
    c = reopen(r, c);
    released = 0;
    for (int i = 0; i < 60; i++)
        mx_cold_put(c, o[i]->w, o[i]->n, count_release, &released);
    mx_cold_close(c, 0);
    assert_int_equal(atomic_load(&released), 60);
    c = open_rig(r);
    assert_no_orphans(r, c);
    mx_cold_close(c, 0);
    for (int i = 0; i < 60; i++)
        free_objects(o[i]);
}

static void test_refused(void **state)
{
    struct rig *r = *state;
    r->o.min_tokens = 100;
    struct mx_cold *c = open_rig(r);
    struct talk t = talk(1, 99);
    assert_false(put_talk(c, &t));
    t.n = 100;
    put_ok(c, &t);
    struct talk_objects *o = talk_objects(&(struct talk){.n = 200, .own = 5}, true);
    assert_false(mx_cold_put(c, o->w, 2, NULL, NULL));     /* no snapshot */
    assert_false(mx_cold_put(c, o->w + 1, 3, NULL, NULL)); /* its parent is not there */
    assert_false(mx_cold_put(c, o->w, 0, NULL, NULL));
    assert_int_equal(stats_of(c).blocks, 1);
    free_objects(o);
    mx_cold_close(c, 0);
    mx_cold_close(NULL, 0);
    r->o.mode = MX_COLD_OFF;
    mtplx_error err = {.status = MTPLX_ERR_IO};
    assert_null(mx_cold_open(&r->o, &err));
    assert_int_equal(err.status, MTPLX_OK);
    r->o.mode = MX_COLD_WRITE_ONLY;
    c = open_rig(r);
    assert_false(has(c, &t));
    t.own = t.base = 2;
    put_ok(c, &t);
    assert_int_equal(check_talk(c, &t), 1);
    assert_int_equal(stats_of(c).snapshots, 2);
    mx_cold_close(c, 0);
    assert_int_equal(mx_cold_mode_named("on"), MX_COLD_ON);
    assert_int_equal(mx_cold_mode_named("write-only"), MX_COLD_WRITE_ONLY);
    assert_int_equal(mx_cold_mode_named("yes"), -1);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_round_trip, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sharing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_identity, setup, teardown),
        cmocka_unit_test_setup_teardown(test_prefetch, setup, teardown),
        cmocka_unit_test_setup_teardown(test_budget, setup, teardown),
        cmocka_unit_test_setup_teardown(test_floor, setup, teardown),
        cmocka_unit_test_setup_teardown(test_write_errors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_eviction, setup, teardown),
        cmocka_unit_test_setup_teardown(test_too_large, setup, teardown),
        cmocka_unit_test_setup_teardown(test_clock_set_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_touch, setup, teardown),
        cmocka_unit_test_setup_teardown(test_eviction_shared, setup, teardown),
        cmocka_unit_test_setup_teardown(test_names_gone, setup, teardown),
        cmocka_unit_test_setup_teardown(test_queue, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refused, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
