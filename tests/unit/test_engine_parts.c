/* Parts of the engine that need no model: the queue, the planning of passes, names, memory limits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/memory.h"
#include "engine/queue.h"
#include "engine/sched.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Queue -------------------------------------------------------------------------------- */

static void push(struct mx_queue *q, struct mx_queue_item *it, const char *owner, int priority)
{
    assert_int_equal(mx_queue_push(q, it, owner, priority, NULL), MTPLX_OK);
}

static struct mx_queue_item *take(struct mx_queue *q)
{
    struct mx_queue_item *it = mx_queue_peek(q);
    if (it)
        mx_queue_take(q, it);
    return it;
}

static void test_queue_fifo(void **state)
{
    (void)state;
    struct mx_queue q = {0};
    struct mx_queue_item it[5];
    for (int i = 0; i < 5; i++)
        push(&q, &it[i], "a", 0);
    mx_queue_remove(&q, &it[2]);
    mx_queue_remove(&q, &it[4]);
    assert_int_equal(mx_queue_waiting(&q, "a"), 3);
    assert_int_equal(mx_queue_waiting(&q, "b"), 0);
    assert_ptr_equal(take(&q), &it[0]);
    assert_ptr_equal(take(&q), &it[1]);
    push(&q, &it[2], "a", 0);
    assert_ptr_equal(take(&q), &it[3]);
    assert_ptr_equal(take(&q), &it[2]);
    assert_null(take(&q));
    for (int i = 0; i < 4; i++)
        mx_queue_leave(&q, &it[i]);
    assert_null(q.owners); /* nothing is remembered of owners that are gone */
    mx_queue_free(&q);
}

static void test_queue_turns(void **state)
{
    (void)state;
    struct mx_queue q = {0};
    struct mx_queue_item a[6], b[2], c[1];
    for (int i = 0; i < 6; i++)
        push(&q, &a[i], "a", 0);
    assert_ptr_equal(take(&q), &a[0]);
    assert_ptr_equal(take(&q), &a[1]);
    for (int i = 0; i < 2; i++)
        push(&q, &b[i], "b", 0);
    push(&q, &c[0], "c", 0);
    struct mx_queue_item *const want[] = {&b[0], &c[0], &b[1], &a[2], &a[3]};
    for (int i = 0; i < 5; i++)
        assert_ptr_equal(take(&q), want[i]);
    mx_queue_leave(&q, &a[0]); /* a has three running, b two: a new one of b's goes first */
    struct mx_queue_item more;
    push(&q, &more, "b", 0);
    assert_string_equal(mx_queue_owner_name(&more), "b");
    assert_ptr_equal(take(&q), &more);
    assert_ptr_equal(take(&q), &a[4]);
    mx_queue_free(&q);
}

/* Owners that come and go do not keep one waiting that was served before they came. */
static void test_queue_newcomers(void **state)
{
    (void)state;
    enum { N = 40 };
    struct mx_queue q = {0};
    struct mx_queue_item old[2], passing[N];
    char name[16];
    push(&q, &old[0], "old", 0);
    push(&q, &old[1], "old", 0);
    assert_ptr_equal(take(&q), &old[0]);
    push(&q, &passing[0], "0", 0); /* has waited while another was served: goes first */
    mx_queue_leave(&q, &old[0]);
    struct mx_queue_item *last = take(&q);
    assert_ptr_equal(last, &passing[0]);
    int at = -1;
    for (int i = 1; i < N && at < 0; i++) {
        snprintf(name, sizeof name, "%d", i);
        push(&q, &passing[i], name, 0);
        mx_queue_leave(&q, last);
        last = take(&q);
        if (last == &old[1])
            at = i;
    }
    assert_in_range(at, 1, 2);
    mx_queue_free(&q);
}

static void test_queue_classes(void **state)
{
    (void)state;
    enum { N = 60 };
    struct mx_queue q = {0};
    struct mx_queue_item high[N], low, lowest;
    push(&q, &lowest, "z", -1);
    push(&q, &low, "y", 0);
    for (int i = 0; i < N; i++)
        push(&q, &high[i], "a", 1);
    int at_low = -1, at_lowest = -1;
    for (int i = 0; i < N + 2; i++) {
        struct mx_queue_item *it = take(&q);
        if (it == &low)
            at_low = i;
        if (it == &lowest)
            at_lowest = i;
    }
    assert_int_equal(at_low, MX_QUEUE_PATIENCE);
    assert_in_range(at_lowest, MX_QUEUE_PATIENCE + 1, 2 * MX_QUEUE_PATIENCE);
    assert_int_equal(q.waiting, 0);
    mx_queue_free(&q);
}

/* ---- Passes ------------------------------------------------------------------------------- */

static void test_plan_prefill(void **state)
{
    (void)state;
    size_t rows[8];
    const size_t one[] = {1000};
    assert_int_equal(mx_plan_prefill(one, 1, 256, rows), 256);
    assert_int_equal(rows[0], 256);
    const size_t mixed[] = {4000, 500, 30, 100};
    assert_int_equal(mx_plan_prefill(mixed, 4, 256, rows), 194);
    assert_int_equal(rows[0], 64);
    assert_int_equal(rows[1], 0); /* it would not be complete, and two others are */
    assert_int_equal(rows[2], 30);
    assert_int_equal(rows[3], 100);
    const size_t little[] = {10, 5, 5};
    assert_int_equal(mx_plan_prefill(little, 3, 256, rows), 20);
    assert_int_equal(rows[0] + rows[1] + rows[2], 20);
    assert_int_equal(mx_plan_prefill(mixed, 4, 1, rows), 1);
    assert_int_equal(rows[0], 1);
    assert_int_equal(mx_plan_prefill(mixed, 0, 1, rows), 0);
    assert_int_equal(mx_plan_prefill(mixed, 4, 0, rows), 0);
    const size_t equal[] = {50, 50, 50};
    assert_int_equal(mx_plan_prefill(equal, 3, 120, rows), 100);
    assert_int_equal(rows[0], 50); /* of equals the one that waits longest */
    assert_int_equal(rows[1], 50);
    const size_t large[] = {900, 800};
    assert_int_equal(mx_plan_prefill(large, 2, 256, rows), 256);
    assert_int_equal(rows[0], 64);
    assert_int_equal(rows[1], 192); /* nobody is complete: the pass is full */
}

/* The sum fits, nobody gets more than is left, the first always gets some. */
static void test_plan_prefill_any(void **state)
{
    (void)state;
    uint32_t s = 1;
    for (int round = 0; round < 20000; round++) {
        size_t left[MX_MAX_ACTIVE], rows[MX_MAX_ACTIVE], sum = 0, all = 0;
        s = s * 1664525u + 1013904223u;
        size_t n = 1 + (s >> 8) % MX_MAX_ACTIVE, most = 1 + (s >> 16) % 600;
        for (size_t i = 0; i < n; i++) {
            s = s * 1664525u + 1013904223u;
            left[i] = 1 + (s >> 8) % 700;
            all += left[i];
        }
        size_t got = mx_plan_prefill(left, n, most, rows);
        for (size_t i = 0; i < n; i++) {
            assert_true(rows[i] <= left[i]);
            sum += rows[i];
        }
        assert_int_equal(sum, got);
        assert_true(got <= most && got <= all);
        size_t complete = 0;
        for (size_t i = 0; i < n; i++)
            complete += rows[i] == left[i];
        if (complete == 0) /* nobody's first token waits for a full pass in vain */
            assert_int_equal(got, most);
        assert_true(rows[0] >= 1 && (rows[0] >= most / 4 || rows[0] == left[0]));
        size_t who = mx_plan_prefill_one(left, n, most, (uint64_t)round, rows);
        for (size_t i = 0; i < n; i++)
            assert_true(i == who ? rows[i] >= 1 && rows[i] <= most : rows[i] == 0);
    }
}

static void test_numbers(void **state)
{
    (void)state;
    assert_int_equal(mx_hist_bucket(0), 0);
    assert_int_equal(mx_hist_bucket(999999), 0);
    assert_int_equal(mx_hist_bucket(1000000), 1);
    assert_int_equal(mx_hist_bucket(1999999), 1);
    assert_int_equal(mx_hist_bucket(2000000), 2);
    assert_int_equal(mx_hist_bucket(UINT64_MAX), MX_ENGINE_HIST - 1);
    assert_int_equal(mx_retry_seconds(0, 8, 0), 1);
    assert_int_equal(mx_retry_seconds(15, 8, 2000000000), 5);
    assert_int_equal(mx_retry_seconds(1000000, 1, UINT64_MAX), 60);
    assert_int_equal(mx_retry_seconds(3, 0, 1), 1);
}

static void test_names(void **state)
{
    (void)state;
    for (int i = 0; i <= MX_ENGINE_MTP_BATCH; i++)
        assert_int_equal(mx_engine_mode_named(mx_engine_mode_name((enum mx_engine_mode)i)), i);
    assert_int_equal(mx_engine_mode_named("ar-batch"), MX_ENGINE_AR_BATCH);
    assert_int_equal(mx_engine_mode_named("hyper"), MX_ENGINE_MTP_BATCH);
    assert_int_equal(mx_engine_mode_named("serial2"), -1);
    assert_int_equal(mx_engine_mode_named("ser"), -1);
    assert_int_equal(mx_engine_mode_named(""), -1);
    assert_string_equal(mx_engine_mode_name((enum mx_engine_mode)77), "unknown");
    assert_string_equal(mx_cache_miss_name(MX_MISS_PREFIX_DIVERGENCE),
                        "prefix_divergence_at_token");
    assert_string_equal(mx_cache_miss_name((enum mx_cache_miss)99), "unknown");
}

/* ---- Memory limits ------------------------------------------------------------------------ */

static char root[128];

static void put(const char *name, const char *text)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *s = path + strlen(root) + 1; (s = strchr(s, '/')); s++) {
        *s = '\0';
        mkdir(path, 0700);
        *s = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static uint64_t limit_of(const char *membership)
{
    char path[200];
    put("self", membership);
    snprintf(path, sizeof path, "%s/self", root);
    return mx_cgroup_memory(path, root);
}

static void test_cgroup_memory(void **state)
{
    (void)state;
    char command[160];
    snprintf(root, sizeof root, "/tmp/mtplx_memory_XXXXXX");
    assert_non_null(mkdtemp(root));
    put("one/memory.max", "4000000000\n");
    put("one/two/memory.max", "max\n");
    put("one/small/memory.max", "1000000\n");
    put("odd/memory.max", "-5\n");
    put("word/memory.max", "lots\n");
    put("empty/memory.max", "");
    put("memory/old/memory.limit_in_bytes", "3000000\n");
    put("memory/free/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(limit_of("0::/one\n"), 4000000000u);
    assert_int_equal(limit_of("0::/one/two\n"), 4000000000u); /* a parent's */
    assert_int_equal(limit_of("0::/one/small\n"), 1000000);
    assert_int_equal(limit_of("0::/odd\n"), 0);
    assert_int_equal(limit_of("0::/word\n"), 0);
    assert_int_equal(limit_of("0::/empty\n"), 0);
    assert_int_equal(limit_of("0::/\n"), 0);
    assert_int_equal(limit_of("0::/nowhere\n"), 0);
    assert_int_equal(limit_of("5:cpu,memory:/old\n4:memory2:/one\n"), 3000000);
    assert_int_equal(limit_of("5:cpu:/old\n"), 0);
    assert_int_equal(limit_of("5:memory:/free\n"), 0);
    assert_int_equal(limit_of("0::/one/../one/small\n"), 0);
    assert_int_equal(limit_of("no colons\n:\n::\n"), 0);
    put("memory.max", "777\n"); /* inside a container the mount point is the group */
    assert_int_equal(limit_of("0::/one\n"), 777);
    assert_int_equal(limit_of("0::/\n"), 777);
    assert_int_equal(mx_cgroup_memory("/nonexistent", root), 0);
    static const char *const files[] = {"one/memory.max",
                                        "one/two/memory.max",
                                        "one/small/memory.max",
                                        "odd/memory.max",
                                        "word/memory.max",
                                        "empty/memory.max",
                                        "memory/old/memory.limit_in_bytes",
                                        "memory/free/memory.limit_in_bytes",
                                        "memory.max",
                                        "self",
                                        "one/two",
                                        "one/small",
                                        "one",
                                        "odd",
                                        "word",
                                        "empty",
                                        "memory/old",
                                        "memory/free",
                                        "memory",
                                        "."};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(command, sizeof command, "%s/%s", root, files[i]);
        remove(command);
    }
    rmdir(root);
    assert_true(access(root, F_OK) != 0);
}

static void test_budget(void **state)
{
    (void)state;
    const uint64_t gib = (uint64_t)1 << 30;
    assert_true(mx_memory_total() > 0);
    assert_true(mx_memory_usable() > 0 && mx_memory_usable() <= mx_memory_total());
    assert_int_equal(mx_memory_budget(64 * gib, 20 * gib), 64 * gib - 20 * gib - 64 * gib / 10);
    assert_int_equal(mx_memory_budget(4 * gib, gib), 4 * gib - gib - gib / 2);
    assert_int_equal(mx_memory_budget(16 * gib, 15 * gib), gib);  /* a sixteenth */
    assert_int_equal(mx_memory_budget(16 * gib, 100 * gib), gib); /* mapped weights */
    assert_int_equal(mx_memory_budget(0, gib), gib / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_queue_fifo),      cmocka_unit_test(test_queue_turns),
        cmocka_unit_test(test_queue_newcomers), cmocka_unit_test(test_queue_classes),
        cmocka_unit_test(test_plan_prefill),    cmocka_unit_test(test_plan_prefill_any),
        cmocka_unit_test(test_numbers),         cmocka_unit_test(test_names),
        cmocka_unit_test(test_cgroup_memory),   cmocka_unit_test(test_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
