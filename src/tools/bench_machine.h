/* What the machine could do at best: stream read bandwidth and float32 arithmetic. Measured in the
 * run that quotes them, with the model's number of threads, so that "share of the peak" compares
 * like with like. */
#ifndef MX_TOOLS_BENCH_MACHINE_H
#define MX_TOOLS_BENCH_MACHINE_H

#include "base/threads.h"

#include <stddef.h>
#include <stdint.h>

/* Bytes that no last-level cache holds: twice the one the system reports, and at least `least`, but
 * no more than 2 GiB. */
size_t mx_bench_stream_bytes(size_t least);

/* Bytes per nanosecond (GB/s) at which the pool's threads read a buffer of `bytes`, each its own
 * part, best of `repeats` passes. 0 when the buffer cannot be had. */
double mx_bench_stream(struct mx_pool *pool, size_t bytes, int repeats);

/* A loop of independent multiply-adds in the widest registers of one instruction set. */
struct mx_peak {
    const char *name; /* "avx2" */
    int flops;        /* of one iteration: a multiply-add counts two */
    float (*run)(int64_t iterations);
};
#if defined(__x86_64__)
extern const struct mx_peak mx_peak_avx2, mx_peak_avx512;
#elif defined(__aarch64__)
extern const struct mx_peak mx_peak_neon;
#endif

/* float32 operations per nanosecond (GFLOP/s) of the pool's threads together, best of `repeats`
 * runs of about 20 ms; *name is the instruction set. Kernels on 8-bit integers may exceed it. */
double mx_bench_peak(struct mx_pool *pool, int repeats, const char **name);

#endif
