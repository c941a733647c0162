/* Resource limits of the cgroups that a process is in, v2 and v1. */
#ifndef MX_BASE_CGROUP_H
#define MX_BASE_CGROUP_H

#include <stdint.h>

/* The limit set at one directory, in the caller's unit; 0 for none. */
typedef uint64_t mx_cgroup_fn(const char *dir);

/* The tightest limit along the groups that `membership` (a /proc/<pid>/cgroup file) names for
 * `controller` ("cpu", "memory") below the mount point `root`, ancestors included; 0 for none. */
uint64_t mx_cgroup_limit(const char *membership, const char *root, const char *controller,
                         mx_cgroup_fn *fn);

/* The smaller of two limits, where 0 stands for none. */
static inline uint64_t mx_tighter(uint64_t a, uint64_t b)
{
    return a == 0 ? b : b == 0 || a < b ? a : b;
}

#endif
