/* A fixed pool of worker threads for data-parallel kernels.
 *
 * mx_pool_run() calls fn(arg, task, thread) for task = 0..tasks-1, each exactly once, on the caller
 * and the workers, and returns when all are done. Which thread runs a task is not defined, so a
 * task must write only its own outputs; results never depend on the thread count (row invariance).
 * Neighbouring tasks mostly go to the same thread, so tasks should be about equally long; threads
 * that are done early take over tasks of others. Workers spin briefly for the next job, then sleep.
 * One mx_pool_run() at a time per pool. */
#ifndef MX_BASE_THREADS_H
#define MX_BASE_THREADS_H

#include "base/error.h"

struct mx_pool;
typedef void mx_pool_fn(void *arg, int task, int thread);

/* `threads` counts the caller; 0 means one per CPU this process may use (affinity and cgroup CPU
 * quota respected), 1 starts no worker. */
struct mx_pool *mx_pool_new(int threads, mtplx_error *err);
void mx_pool_free(struct mx_pool *p);
int mx_pool_threads(const struct mx_pool *p);
void mx_pool_run(struct mx_pool *p, mx_pool_fn *fn, void *arg, int tasks);

/* CPUs this process may use, at least 1. */
int mx_cpu_count(void);

/* The cgroup CPU quota (v2 and v1) rounded up to whole CPUs, 0 for none: the tightest limit along
 * the groups that `membership` (a /proc/<pid>/cgroup file) names below the mount point `root`. */
int mx_cgroup_cpus(const char *membership, const char *root);

#endif
