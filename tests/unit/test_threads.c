/* Worker pool: every task runs exactly once, results are visible after mx_pool_run(), sleeping
 * workers wake up, shutdown is clean; CPU count under cgroup quotas. Also run with
 * -fsanitize=thread. */
#include "base/threads.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define MAX_TASKS 2000

struct job {
    int runs[MAX_TASKS]; /* plain ints: a task run twice or seen late is a data race */
    int threads;
    atomic_int bad_thread;
};

static void count_run(void *arg, int task, int thread)
{
    struct job *j = arg;
    j->runs[task]++;
    if (thread < 0 || thread >= j->threads)
        atomic_store(&j->bad_thread, 1);
}

static void run_and_check(struct mx_pool *p, struct job *j, int tasks)
{
    memset(j->runs, 0, sizeof j->runs);
    j->threads = mx_pool_threads(p);
    mx_pool_run(p, count_run, j, tasks);
    for (int i = 0; i < MAX_TASKS; i++)
        assert_int_equal(j->runs[i], i < tasks);
    assert_int_equal(atomic_load(&j->bad_thread), 0);
}

static void test_every_task_once(void **state)
{
    (void)state;
    static struct job j;
    static const int tasks[] = {0, 1, 2, 3, 7, 64, 1999, MAX_TASKS};
    for (int threads = 1; threads <= 5; threads++) {
        struct mx_pool *p = mx_pool_new(threads, NULL);
        assert_non_null(p);
        assert_int_equal(mx_pool_threads(p), threads);
        for (int round = 0; round < 20; round++)
            run_and_check(p, &j, tasks[round % 8]);
        mx_pool_free(p);
    }
}

/* Results of a run are the input of the next, as in a forward pass. */
struct chain {
    uint64_t in[16], out[16];
};

static void mix(void *arg, int task, int thread)
{
    struct chain *c = arg;
    (void)thread;
    uint64_t sum = (uint64_t)task;
    for (int i = 0; i < 16; i++)
        sum = sum * 31 + c->in[i];
    c->out[task] = sum;
}

static uint64_t run_chain(int threads, int rounds)
{
    struct chain c = {.in = {1}};
    struct mx_pool *p = mx_pool_new(threads, NULL);
    assert_non_null(p);
    for (int i = 0; i < rounds; i++) {
        mx_pool_run(p, mix, &c, 16);
        memcpy(c.in, c.out, sizeof c.in);
    }
    mx_pool_free(p);
    return c.in[7];
}

static void test_back_to_back(void **state)
{
    (void)state;
    uint64_t want = run_chain(1, 2000);
    for (int threads = 2; threads <= 4; threads++)
        assert_int_equal(run_chain(threads, 2000), want);
}

static void nap(long us)
{
    struct timespec t = {.tv_nsec = us * 1000};
    nanosleep(&t, NULL);
}

/* Pauses around the spin time, so that runs meet workers that spin, fall asleep and sleep. */
static void test_sleep_and_wake(void **state)
{
    (void)state;
    static struct job j;
    struct mx_pool *p = mx_pool_new(4, NULL);
    assert_non_null(p);
    for (int i = 0; i < 60; i++) {
        run_and_check(p, &j, 2 + i % 9);
        nap(i * 7 % 90);
    }
    nap(20000);
    run_and_check(p, &j, 100);
    mx_pool_free(p);
}

struct naps {
    atomic_int finished;
};

static void take_nap(void *arg, int task, int thread)
{
    struct naps *n = arg;
    (void)thread;
    nap(task % 3 * 200);
    atomic_fetch_add(&n->finished, 1);
}

/* Tasks far longer than the spin: the caller sleeps, and returns only when all are done. */
static void test_long_tasks(void **state)
{
    (void)state;
    struct mx_pool *p = mx_pool_new(3, NULL);
    assert_non_null(p);
    for (int i = 0; i < 20; i++) {
        struct naps n = {0};
        mx_pool_run(p, take_nap, &n, 7);
        assert_int_equal(atomic_load(&n.finished), 7);
    }
    mx_pool_free(p);
}

static void test_new_and_free(void **state)
{
    (void)state;
    static struct job j;
    for (int i = 0; i < 30; i++) {
        struct mx_pool *p = mx_pool_new(1 + i % 4, NULL);
        assert_non_null(p);
        if (i % 2)
            run_and_check(p, &j, 5);
        mx_pool_free(p);
    }
    mx_pool_free(NULL);
}

static void test_bad_thread_counts(void **state)
{
    (void)state;
    static const int bad[] = {-1, -2000000000, 1025, 2000000000};
    for (int i = 0; i < 4; i++) {
        mtplx_error err = {0};
        assert_null(mx_pool_new(bad[i], &err));
        assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);
        assert_non_null(strstr(err.message, "threads"));
    }
    struct mx_pool *p = mx_pool_new(0, NULL);
    assert_non_null(p);
    assert_int_equal(mx_pool_threads(p), mx_cpu_count());
    mx_pool_free(p);
}

/* ---- cgroups ------------------------------------------------------------------------------ */

static char root[] = "/tmp/mtplx-threads-XXXXXX";

static void write_file(const char *name, const char *text)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void make_dir(const char *name)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", root, name);
    assert_int_equal(mkdir(path, 0700), 0);
}

static int cpus_of(const char *membership)
{
    char path[200];
    write_file("self", membership);
    snprintf(path, sizeof path, "%s/self", root);
    return mx_cgroup_cpus(path, root);
}

static void test_cgroup_v2(void **state)
{
    (void)state;
    make_dir("a");
    make_dir("a/b");
    write_file("a/cpu.max", "400000 100000\n");
    write_file("a/b/cpu.max", "max 100000\n");
    assert_int_equal(cpus_of("0::/a/b\n"), 4);
    write_file("a/b/cpu.max", "150000 100000\n");
    assert_int_equal(cpus_of("0::/a/b\n"), 2);
    assert_int_equal(cpus_of("0::/a\n"), 4);
    assert_int_equal(cpus_of("0::/\n"), 0);
    assert_int_equal(cpus_of("0::/a/gone/deep\n"), 4);
    write_file("cpu.max", "50000 100000\n");
    assert_int_equal(cpus_of("0::/a/b\n"), 1);
    assert_int_equal(cpus_of("0::/../../etc\n"), 1);
}

static void test_cgroup_v1(void **state)
{
    (void)state;
    make_dir("cpu");
    make_dir("cpu/job");
    write_file("cpu.max", "max 100000\n");
    write_file("cpu/job/cpu.cfs_quota_us", "250000\n");
    write_file("cpu/job/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cpus_of("5:memory:/job\n4:cpuacct,cpu:/job\n"), 3);
    assert_int_equal(cpus_of("4:cpuset,cpuacct:/job\n"), 0);
    write_file("cpu/job/cpu.cfs_quota_us", "-1\n");
    assert_int_equal(cpus_of("4:cpu:/job\n"), 0);
}

static void test_cgroup_garbage(void **state)
{
    (void)state;
    static const char *const limits[] = {"",
                                         "\n",
                                         "max",
                                         "max max",
                                         "100000",
                                         "0 0",
                                         "5 0",
                                         "-5 -5",
                                         "x y",
                                         "5 -9223372036854775808",
                                         "99999999999999999999 1",
                                         "9223372036854775807 1"};
    static const char *const lines[] = {"", "\n", ":", "::", "0:", "0::", "0::a", "::::::", "0::/"};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        write_file("cpu.max", limits[i]);
        assert_int_equal(cpus_of("0::/\n"), 0);
    }
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        assert_int_equal(cpus_of(lines[i]), 0);
    char *longest = malloc(10001);
    assert_non_null(longest);
    memset(longest, '/', 10000);
    memcpy(longest, "0::", 3);
    longest[10000] = '\0';
    assert_int_equal(cpus_of(longest), 0);
    free(longest);
    assert_int_equal(mx_cgroup_cpus("/nonexistent/file", root), 0);
    assert_true(mx_cpu_count() >= 1);
}

static int make_root(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    static const char *const files[] = {"self",
                                        "cpu.max",
                                        "a/cpu.max",
                                        "a/b/cpu.max",
                                        "cpu/job/cpu.cfs_quota_us",
                                        "cpu/job/cpu.cfs_period_us"};
    static const char *const dirs[] = {"a/b", "a", "cpu/job", "cpu", ""};
    char path[200];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", root, files[i]);
        unlink(path);
    }
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        snprintf(path, sizeof path, "%s/%s", root, dirs[i]);
        rmdir(path);
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_task_once), cmocka_unit_test(test_back_to_back),
        cmocka_unit_test(test_sleep_and_wake),  cmocka_unit_test(test_long_tasks),
        cmocka_unit_test(test_new_and_free),    cmocka_unit_test(test_bad_thread_counts),
        cmocka_unit_test(test_cgroup_v2),       cmocka_unit_test(test_cgroup_v1),
        cmocka_unit_test(test_cgroup_garbage),
    };
    return cmocka_run_group_tests_name("threads", tests, make_root, remove_root);
}
