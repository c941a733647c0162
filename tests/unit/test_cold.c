/* The cold tier: what is written comes back or is dropped, and nothing else ever comes back. */
#include "cold_rig.h"

#include "base/clock.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* ---- Rig ---------------------------------------------------------------------------------- */

struct rig {
    char dir[64];
    int lines; /* of the log */
    char last[700];
    pthread_mutex_t mu;
    uint64_t now_ms, free_bytes, all_bytes;
    int fault;
    enum mx_cold_op fault_op;
    struct mx_cold_options o;
};

static void on_log(void *arg, const char *line)
{
    struct rig *r = arg;
    pthread_mutex_lock(&r->mu);
    r->lines++;
    snprintf(r->last, sizeof r->last, "%s", line);
    pthread_mutex_unlock(&r->mu);
    if (getenv("TEST_COLD_LOG"))
        fprintf(stderr, "%s\n", line);
}

static int setup(void **state)
{
    struct rig *r = calloc(1, sizeof *r);
    snprintf(r->dir, sizeof r->dir, "/tmp/mtplx-cold-XXXXXX");
    assert_non_null(mkdtemp(r->dir));
    pthread_mutex_init(&r->mu, NULL);
    r->now_ms = 1700000000000ull;
    r->all_bytes = 100ull << 30;
    r->free_bytes = 50ull << 30;
    r->o = (struct mx_cold_options){.dir = r->dir,
                                    .mode = MX_COLD_ON,
                                    .min_tokens = 1,
                                    .identity = {{1}, {2}, {3}},
                                    .log = on_log,
                                    .log_arg = r};
    *state = r;
    return 0;
}

static int teardown(void **state)
{
    struct rig *r = *state;
    remove_tree(r->dir);
    pthread_mutex_destroy(&r->mu);
    free(r);
    return 0;
}

static int hook_fault(void *arg, enum mx_cold_op op)
{
    struct rig *r = arg;
    pthread_mutex_lock(&r->mu);
    int e = op == r->fault_op ? r->fault : 0;
    pthread_mutex_unlock(&r->mu);
    return e;
}

static bool hook_space(void *arg, uint64_t *free_bytes, uint64_t *all_bytes)
{
    struct rig *r = arg;
    pthread_mutex_lock(&r->mu);
    *free_bytes = r->free_bytes;
    *all_bytes = r->all_bytes;
    pthread_mutex_unlock(&r->mu);
    return true;
}

static uint64_t hook_now(void *arg)
{
    struct rig *r = arg;
    pthread_mutex_lock(&r->mu);
    uint64_t now = r->now_ms;
    pthread_mutex_unlock(&r->mu);
    return now;
}

static void set_u64(struct rig *r, uint64_t *what, uint64_t v)
{
    pthread_mutex_lock(&r->mu);
    *what = v;
    pthread_mutex_unlock(&r->mu);
}

static void set_fault(struct rig *r, int error, enum mx_cold_op op)
{
    pthread_mutex_lock(&r->mu);
    r->fault = error;
    r->fault_op = op;
    pthread_mutex_unlock(&r->mu);
}

static int log_lines(struct rig *r)
{
    pthread_mutex_lock(&r->mu);
    int n = r->lines;
    pthread_mutex_unlock(&r->mu);
    return n;
}

static struct mx_cold *open_rig(struct rig *r)
{
    struct mx_cold_hooks h = {hook_fault, hook_space, hook_now, r};
    mtplx_error err = {0};
    struct mx_cold *c = mx_cold_open_with(&r->o, &h, false, &err);
    if (!c)
        fail_msg("%s", err.message);
    return c;
}

static struct mx_cold_stats stats_of(struct mx_cold *c)
{
    struct mx_cold_stats s;
    mx_cold_get_stats(c, &s);
    return s;
}

/* A conversation of its own of `n` tokens. */
static struct talk talk(int id, size_t n)
{
    return (struct talk){.base = id,
                         .own = id,
                         .n = n,
                         .block_bytes = 3000,
                         .slab_bytes = 5000,
                         .session = "s",
                         .scope = "k"};
}

static void put_ok(struct mx_cold *c, const struct talk *t)
{
    assert_true(put_talk(c, t));
    assert_true(mx_cold_flush(c, 20 * SECOND));
}

static bool has(struct mx_cold *c, const struct talk *t)
{
    return mx_cold_has(c, MX_COLD_SNAPSHOT, talk_key(t));
}

static struct mx_cold *reopen(struct rig *r, struct mx_cold *c)
{
    mx_cold_close(c, 20 * SECOND);
    return open_rig(r);
}

/* Files and entries are the same in number: no orphans, nothing missing. */
static void assert_no_orphans(struct rig *r, struct mx_cold *c)
{
    mx_cold_flush(c, 20 * SECOND);
    struct mx_cold_stats s = stats_of(c);
    assert_int_equal(each_file(r->dir, NULL, NULL), s.snapshots + s.blocks);
}

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
        for (int op = MX_COLD_OP_WRITE; op <= MX_COLD_OP_RENAME; op++, id++) {
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

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_round_trip, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sharing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_identity, setup, teardown),
        cmocka_unit_test_setup_teardown(test_budget, setup, teardown),
        cmocka_unit_test_setup_teardown(test_floor, setup, teardown),
        cmocka_unit_test_setup_teardown(test_write_errors, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
