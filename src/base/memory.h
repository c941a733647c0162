/* How much memory this process may use. */
#ifndef MX_BASE_MEMORY_H
#define MX_BASE_MEMORY_H

#include <stdint.h>

/* Bytes of RAM of this machine; 0 when unknown. */
uint64_t mx_memory_total(void);

/* The cgroup memory limit in bytes, 0 for none: the tightest "memory.max" (v2) or
 * "memory.limit_in_bytes" (v1) along the groups that `membership` (a /proc/<pid>/cgroup file)
 * names below the mount point `root`. */
uint64_t mx_cgroup_memory(const char *membership, const char *root);

/* The smaller of the two for this process; 0 when neither is known. */
uint64_t mx_memory_usable(void);

/* Bytes that this process could still take without paging others out: what the kernel takes for
 * available, and what the cgroups leave (file pages that can be reclaimed count as left). 0 when
 * unknown; at least 1 otherwise. */
uint64_t mx_memory_available(void);
/* What one cgroup directory leaves, v2 or v1; 0: no limit there; at least 1 otherwise. */
uint64_t mx_cgroup_left(const char *dir);

/* What is left of `usable` for sequences beside `weights` bytes: a tenth, at least 512 MiB, stays
 * free for buffers, the rest of the program and of the machine. At least a sixteenth of `usable`,
 * and 256 MiB where nothing is known. */
uint64_t mx_memory_budget(uint64_t usable, uint64_t weights);

/* Gives pages that the allocator holds free back to the system, where it can be told to. Takes
 * about a millisecond for each 100 MB of small allocations. Any thread. */
void mx_memory_trim(void);

#endif
