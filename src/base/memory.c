/* How much memory this process may use. See memory.h. */
#include "base/memory.h"

#include "base/cgroup.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#define MIB ((uint64_t)1 << 20)

uint64_t mx_memory_total(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
}

/* The number in a file; 0 for none, for "max" and for what stands for no limit in v1. */
static uint64_t read_limit(const char *dir, const char *name)
{
    char path[4400], line[64];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    bool got = fgets(line, sizeof line, f) != NULL;
    fclose(f);
    if (!got || line[0] < '0' || line[0] > '9')
        return 0;
    errno = 0;
    uint64_t v = strtoull(line, NULL, 10);
    return errno || v >= (uint64_t)1 << 60 ? 0 : v;
}

static uint64_t group_limit(const char *dir)
{
    return mx_tighter(read_limit(dir, "memory.max"), read_limit(dir, "memory.limit_in_bytes"));
}

uint64_t mx_cgroup_memory(const char *membership, const char *root)
{
    return mx_cgroup_limit(membership, root, "memory", group_limit);
}

uint64_t mx_memory_usable(void)
{
    return mx_tighter(mx_memory_total(), mx_cgroup_memory("/proc/self/cgroup", "/sys/fs/cgroup"));
}

/* The number behind a word that starts a line of a file; 0 when there is none. */
static uint64_t read_field(const char *path, const char *word)
{
    char line[256];
    uint64_t value = 0;
    size_t len = strlen(word);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    while (!value && fgets(line, sizeof line, f))
        if (strncmp(line, word, len) == 0 && (line[len] == ' ' || line[len] == ':'))
            value = strtoull(line + len + 1, NULL, 10);
    fclose(f);
    return value;
}

uint64_t mx_cgroup_left(const char *dir)
{
    char path[4400];
    uint64_t limit = group_limit(dir);
    if (limit == 0)
        return 0;
    uint64_t used =
        mx_tighter(read_limit(dir, "memory.current"), read_limit(dir, "memory.usage_in_bytes"));
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    uint64_t files =
        mx_tighter(read_field(path, "total_inactive_file"), read_field(path, "inactive_file"));
    used = used > files ? used - files : 0;
    return limit > used ? limit - used : 1;
}

uint64_t mx_memory_available(void)
{
    uint64_t machine = read_field("/proc/meminfo", "MemAvailable") * 1024;
    return mx_tighter(
        machine, mx_cgroup_limit("/proc/self/cgroup", "/sys/fs/cgroup", "memory", mx_cgroup_left));
}

uint64_t mx_memory_budget(uint64_t usable, uint64_t weights)
{
    if (usable == 0)
        return 256 * MIB;
    uint64_t spare = usable / 10 > 512 * MIB ? usable / 10 : 512 * MIB;
    uint64_t least = usable / 16;
    if (weights > usable || spare > usable - weights)
        return least;
    uint64_t left = usable - weights - spare;
    return left > least ? left : least;
}

void mx_memory_trim(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}
