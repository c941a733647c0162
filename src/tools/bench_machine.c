/* Stream bandwidth and arithmetic peak, see the header. */
#include "tools/bench_machine.h"

#include "base/clock.h"
#include "device/common.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef float v4f __attribute__((vector_size(16)));

/* ---- Stream -----------------------------------------------------------------------------------
 */

size_t mx_bench_stream_bytes(size_t least)
{
    long cache = -1;
#ifdef _SC_LEVEL3_CACHE_SIZE
    cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    size_t bytes = cache > 0 ? 2 * (size_t)cache : 0, most = (size_t)2 << 30;
    bytes = bytes > least ? bytes : least;
    return bytes < most ? bytes : most;
}

/* Results of the loops end here, so that no compiler may leave a loop out. */
struct sink {
    _Atomic uint64_t value;
};

struct stream {
    const uint64_t *words;
    size_t count; /* words of one part, a multiple of 16 */
    struct sink sink;
};

static void read_part(void *arg, int task, int thread)
{
    struct stream *s = arg;
    const uint64_t *p = s->words + (size_t)task * s->count;
    uint64_t sum[16] = {0};
    for (size_t i = 0; i < s->count; i += 16)
        for (size_t j = 0; j < 16; j++)
            sum[j] += p[i + j];
    for (size_t j = 1; j < 16; j++)
        sum[0] += sum[j];
    atomic_fetch_add(&s->sink.value, sum[0]);
    (void)thread;
}

double mx_bench_stream(struct mx_pool *pool, size_t bytes, int repeats)
{
    int threads = mx_pool_threads(pool);
    size_t words = bytes / sizeof(uint64_t) / (size_t)threads / 16 * 16;
    size_t total = words * (size_t)threads * sizeof(uint64_t);
    uint64_t *buffer = total ? mx_host_alloc(NULL, total) : NULL; /* huge pages, as weights */
    double best = 0;
    if (!buffer)
        return 0;
    memset(buffer, 0x5a, total);
    struct stream s = {.words = buffer, .count = words};
    for (int r = 0; r < repeats; r++) {
        uint64_t start = mx_now_ns();
        mx_pool_run(pool, read_part, &s, threads);
        double rate = (double)total / (double)(mx_now_ns() - start + 1);
        best = rate > best ? rate : best;
    }
    mx_host_free(NULL, buffer);
    return best;
}

/* ---- Arithmetic -------------------------------------------------------------------------------
 */

static float run_generic(int64_t iterations)
{
    v4f a[12], scale = {0.5f, 0.5f, 0.5f, 0.5f}, add = {1, 1, 1, 1};
    for (int j = 0; j < 12; j++)
        a[j] = add * (float)j;
    for (int64_t i = 0; i < iterations; i++)
        for (int j = 0; j < 12; j++)
            a[j] = a[j] * scale + add;
    for (int j = 1; j < 12; j++)
        a[0] += a[j];
    return a[0][0] + a[0][1] + a[0][2] + a[0][3];
}

static const struct mx_peak peak_generic = {"generic", 12 * 4 * 2, run_generic};

static const struct mx_peak *choose(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f"))
        return &mx_peak_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &mx_peak_avx2;
#elif defined(__aarch64__)
    return &mx_peak_neon;
#endif
    return &peak_generic;
}

struct arithmetic {
    const struct mx_peak *peak;
    int64_t iterations;
    struct sink sink;
};

static void compute_part(void *arg, int task, int thread)
{
    struct arithmetic *a = arg;
    float v = a->peak->run(a->iterations);
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    atomic_fetch_add(&a->sink.value, bits);
    (void)task;
    (void)thread;
}

static double time_of(struct mx_pool *pool, struct arithmetic *a)
{
    uint64_t start = mx_now_ns();
    mx_pool_run(pool, compute_part, a, mx_pool_threads(pool));
    return (double)(mx_now_ns() - start + 1);
}

double mx_bench_peak(struct mx_pool *pool, int repeats, const char **name)
{
    struct arithmetic a = {.peak = choose(), .iterations = 100000};
    double best = 0, ns = time_of(pool, &a);
    a.iterations = (int64_t)(100000 * 20e6 / ns) + 1;
    for (int r = 0; r < repeats; r++) {
        ns = time_of(pool, &a);
        double rate = (double)a.iterations * a.peak->flops * mx_pool_threads(pool) / ns;
        best = rate > best ? rate : best;
    }
    *name = a.peak->name;
    return best;
}
