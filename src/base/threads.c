/* Worker pool and CPU count.
 *
 * A job is (fn, arg, tasks). Its tasks are dealt out as one range of consecutive ones per thread,
 * so that a thread works through memory in one direction; a thread whose range is empty takes tasks
 * from the others', one at a time, so that a slow or stolen core costs no more than the task it is
 * at. A range is one word, (next, end), and is claimed from by compare-and-swap.
 *
 *   T1  fn, arg and tasks are written only while every range is empty and finished == tasks, and
 *       read only after claiming a task. A claimed task keeps the job alive, so the fields cannot
 *       change under a reader, and a worker that is late by a whole job simply claims from the next
 *       one: a swap that succeeds is a claim, whichever job the range was read in.
 *   T2  The caller returns when finished == tasks. Workers that slept through a short job are not
 *       waited for.
 *   T3  A thread goes to sleep only after it announced so (`sleepers`, `caller_waits`) and looked
 * at the counter once more (`epoch`, `finished`), both sequentially consistent; whoever changes the
 * counter looks at the announcement afterwards. One of the two sees the other: no lost wake-up. */
#include "base/threads.h"

#include "base/cgroup.h"
#include "base/clock.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_THREADS 1024
/* Long enough to bridge the serial ops between two kernels of a decode step, short enough that a
 * stolen core costs little. */
#define SPIN_NS 30000u

/* Tasks next .. end of a thread, (end << 32) | next; a cache line of its own. */
struct range {
    _Alignas(64) atomic_uint_fast64_t word;
};

struct mx_pool {
    mx_pool_fn *fn;
    void *arg;
    int tasks;
    struct range *ranges;           /* [threads] */
    _Alignas(64) atomic_uint epoch; /* jobs so far */
    _Alignas(64) atomic_int finished;
    _Alignas(64) atomic_int sleepers;
    atomic_int caller_waits;
    atomic_bool stop;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    int threads;
    int started; /* workers whose pthread_create succeeded */
    struct worker *workers;
};

struct worker {
    struct mx_pool *pool;
    pthread_t id;
    int index;
};

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Claims a task of a range; returns its index, or -1 when none is left. */
static int claim(struct range *r)
{
    uint_fast64_t word = atomic_load_explicit(&r->word, memory_order_acquire);
    while ((uint32_t)word < (uint32_t)(word >> 32)) {
        if (atomic_compare_exchange_weak_explicit(&r->word, &word, word + 1, memory_order_acq_rel,
                                                  memory_order_acquire))
            return (int)(uint32_t)word;
    }
    return -1;
}

static void run_task(struct mx_pool *p, int task, int thread)
{
    int tasks = p->tasks;
    p->fn(p->arg, task, thread);
    if (atomic_fetch_add(&p->finished, 1) + 1 == tasks && atomic_load(&p->caller_waits)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_signal(&p->done);
        pthread_mutex_unlock(&p->lock);
    }
}

/* Runs tasks until none is left: a thread's own, then those of the threads after it. */
static void run_tasks(struct mx_pool *p, int thread)
{
    for (int i = 0; i < p->threads; i++) {
        struct range *r = &p->ranges[(thread + i) % p->threads];
        for (int task = claim(r); task >= 0; task = claim(r))
            run_task(p, task, thread);
    }
}

static bool worker_ready(struct mx_pool *p, unsigned seen)
{
    return atomic_load(&p->epoch) != seen || atomic_load(&p->stop);
}

static bool job_finished(struct mx_pool *p, unsigned seen)
{
    (void)seen;
    return atomic_load(&p->finished) == p->tasks;
}

/* Polls `ready` for SPIN_NS; the clock is read only now and then because it costs as much as many
 * polls. */
static bool spin_until(bool (*ready)(struct mx_pool *, unsigned), struct mx_pool *p, unsigned seen)
{
    uint64_t deadline = 0;
    for (unsigned i = 0;; i++) {
        if (ready(p, seen))
            return true;
        relax();
        if (i % 32 != 31)
            continue;
        uint64_t now = mx_now_ns();
        if (deadline == 0)
            deadline = now + SPIN_NS;
        else if (now >= deadline)
            return false;
    }
}

static void sleep_for_work(struct mx_pool *p, unsigned seen)
{
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->sleepers, 1);
    while (!worker_ready(p, seen))
        pthread_cond_wait(&p->work, &p->lock);
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->lock);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct mx_pool *p = w->pool;
    for (unsigned seen = 0;;) {
        if (!spin_until(worker_ready, p, seen))
            sleep_for_work(p, seen);
        if (atomic_load(&p->stop))
            return NULL;
        seen =
            atomic_load(&p->epoch); /* before the tasks: a job that comes meanwhile is not missed */
        run_tasks(p, w->index);
    }
}

static void wake_workers(struct mx_pool *p, int tasks)
{
    int asleep = atomic_load(&p->sleepers);
    if (asleep == 0)
        return;
    int wanted = tasks - 1 < asleep ? tasks - 1 : asleep;
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < wanted; i++)
        pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
}

static void wait_for_job(struct mx_pool *p)
{
    if (spin_until(job_finished, p, 0))
        return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->caller_waits, 1);
    while (!job_finished(p, 0))
        pthread_cond_wait(&p->done, &p->lock);
    atomic_store(&p->caller_waits, 0);
    pthread_mutex_unlock(&p->lock);
}

void mx_pool_run(struct mx_pool *p, mx_pool_fn *fn, void *arg, int tasks)
{
    if (p->started == 0 || tasks < 2) {
        for (int task = 0; task < tasks; task++)
            fn(arg, task, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->tasks = tasks;
    atomic_store_explicit(&p->finished, 0, memory_order_relaxed);
    for (int i = 0; i < p->threads; i++) {
        uint_fast64_t first = (uint_fast64_t)tasks * (unsigned)i / (unsigned)p->threads;
        uint_fast64_t end = (uint_fast64_t)tasks * (unsigned)(i + 1) / (unsigned)p->threads;
        atomic_store_explicit(&p->ranges[i].word, end << 32 | first, memory_order_release);
    }
    atomic_fetch_add(&p->epoch, 1);
    wake_workers(p, tasks);
    run_tasks(p, 0);
    wait_for_job(p);
}

static mtplx_status start_workers(struct mx_pool *p, mtplx_error *err)
{
    int wanted = p->threads - 1;
    if (wanted == 0)
        return MTPLX_OK;
    p->workers = calloc((size_t)wanted, sizeof *p->workers);
    if (!p->workers)
        return mx_error_nomem(err, "worker threads", (size_t)wanted * sizeof *p->workers);
    for (int i = 0; i < wanted; i++) {
        struct worker *w = &p->workers[i];
        w->pool = p;
        w->index = i + 1;
        int rc = pthread_create(&w->id, NULL, worker_main, w);
        if (rc != 0)
            return mx_error(err, MTPLX_ERR_MEMORY,
                            "worker thread %d of %d could not be started (%s); ask for fewer "
                            "threads",
                            i + 1, wanted, strerror(rc));
        p->started++;
    }
    return MTPLX_OK;
}

struct mx_pool *mx_pool_new(int threads, mtplx_error *err)
{
    if (threads < 0 || threads > MAX_THREADS) {
        mx_error(err, MTPLX_ERR_ARGUMENT, "threads is %d; it must be 0 (automatic) to %d", threads,
                 MAX_THREADS);
        return NULL;
    }
    size_t bytes = sizeof(struct mx_pool);
    struct mx_pool *p = aligned_alloc(_Alignof(struct mx_pool), bytes);
    if (!p) {
        mx_error_nomem(err, "thread pool", bytes);
        return NULL;
    }
    memset(p, 0, bytes);
    p->threads = threads ? threads : mx_cpu_count();
    bytes = (size_t)p->threads * sizeof *p->ranges;
    p->ranges = aligned_alloc(_Alignof(struct range), bytes);
    if (!p->ranges) {
        mx_error_nomem(err, "thread pool", bytes);
        free(p);
        return NULL;
    }
    memset(p->ranges, 0, bytes);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    if (start_workers(p, err) != MTPLX_OK) {
        mx_pool_free(p);
        return NULL;
    }
    return p;
}

void mx_pool_free(struct mx_pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stop, true);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->started; i++)
        pthread_join(p->workers[i].id, NULL);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    free(p->workers);
    free(p->ranges);
    free(p);
}

int mx_pool_threads(const struct mx_pool *p)
{
    return p->threads;
}

/* ---- CPU count ---------------------------------------------------------------------------- */

/* CPUs in the affinity mask. The kernel rejects a mask smaller than its own, hence the growth. */
static int affinity_cpus(void)
{
    for (int cpus = 1024; cpus <= 1 << 20; cpus *= 4) {
        cpu_set_t *set = CPU_ALLOC((size_t)cpus);
        if (!set)
            return 1;
        size_t bytes = CPU_ALLOC_SIZE((size_t)cpus);
        int rc = sched_getaffinity(0, bytes, set);
        int count = rc == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (rc == 0)
            return count > 0 ? count : 1;
        if (errno != EINVAL)
            return 1;
    }
    return 1;
}

/* Reads up to `want` integers from a small file; the word "max" (no limit) counts as -1. Returns
 * how many were read. */
static int read_numbers(const char *path, long long *v, int want)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    char line[128];
    int n = 0;
    if (fgets(line, sizeof line, f)) {
        char *s = line;
        for (; n < want; n++) {
            char *end;
            errno = 0;
            v[n] = strtoll(s, &end, 10);
            if (n == 0 && end == s && strncmp(s, "max", 3) == 0) {
                v[n] = -1;
                end = s + 3;
            }
            if (end == s || errno != 0)
                break;
            s = end;
        }
    }
    fclose(f);
    return n;
}

/* quota / period rounded up, or 0 for no limit. */
static int quota_cpus(long long quota, long long period)
{
    if (quota <= 0 || period <= 0)
        return 0;
    long long cpus = quota / period + (quota % period != 0);
    return cpus > MAX_THREADS ? 0 : (int)cpus;
}

/* The limit set at one directory: cgroup v2 "cpu.max", else v1 "cpu.cfs_*_us". */
static uint64_t group_limit(const char *dir)
{
    char path[4400];
    long long v[2];
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    if (read_numbers(path, v, 2) == 2)
        return (uint64_t)quota_cpus(v[0], v[1]);
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", dir);
    if (read_numbers(path, &v[0], 1) != 1)
        return 0;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
    return read_numbers(path, &v[1], 1) == 1 ? (uint64_t)quota_cpus(v[0], v[1]) : 0;
}

int mx_cgroup_cpus(const char *membership, const char *root)
{
    return (int)mx_cgroup_limit(membership, root, "cpu", group_limit);
}

int mx_cpu_count(void)
{
    int cpus = affinity_cpus();
    int quota = mx_cgroup_cpus("/proc/self/cgroup", "/sys/fs/cgroup");
    if (quota > 0 && quota < cpus)
        cpus = quota;
    return cpus < MAX_THREADS ? cpus : MAX_THREADS;
}
