/* How much memory this process may use. See memory.h. */
#include "base/memory.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static uint64_t tighter(uint64_t a, uint64_t b)
{
    return a == 0 ? b : b == 0 || a < b ? a : b;
}

static uint64_t group_limit(const char *dir)
{
    return tighter(read_limit(dir, "memory.max"), read_limit(dir, "memory.limit_in_bytes"));
}

/* The tightest limit from `mount`/`group` up to and including `mount`. */
static uint64_t tree_limit(const char *mount, const char *group)
{
    char dir[4300];
    int n = snprintf(dir, sizeof dir, "%s%s", mount, group);
    if (n < 0 || (size_t)n >= sizeof dir || strstr(group, ".."))
        return group_limit(mount);
    size_t root = strlen(mount);
    uint64_t limit = group_limit(dir);
    while (strlen(dir) > root) {
        *strrchr(dir + root, '/') = '\0';
        limit = tighter(limit, group_limit(dir));
    }
    return limit;
}

/* Whether "memory" is one of the comma-separated words of `list`. */
static bool has_memory(const char *list)
{
    for (const char *s = list; s; s = strchr(s, ',')) {
        s += *s == ',';
        size_t len = strcspn(s, ",");
        if (len == 6 && memcmp(s, "memory", 6) == 0)
            return true;
    }
    return false;
}

/* One line of /proc/<pid>/cgroup: "hierarchy:controllers:/group". */
static uint64_t line_limit(char *line, const char *root)
{
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group)
        return 0;
    *controllers++ = '\0';
    *group++ = '\0';
    group[strcspn(group, "\n")] = '\0';
    if (*group != '/')
        return 0;
    if (group[1] == '\0')
        *group = '\0';
    char mount[256];
    bool v2 = *controllers == '\0';
    if (!v2 && !has_memory(controllers))
        return 0;
    snprintf(mount, sizeof mount, "%s%s", root, v2 ? "" : "/memory");
    return tree_limit(mount, group);
}

uint64_t mx_cgroup_memory(const char *membership, const char *root)
{
    FILE *f = fopen(membership, "re");
    if (!f)
        return 0;
    char line[4200];
    uint64_t limit = 0;
    for (int i = 0; i < 64 && fgets(line, sizeof line, f); i++)
        limit = tighter(limit, line_limit(line, root));
    fclose(f);
    return limit;
}

uint64_t mx_memory_usable(void)
{
    return tighter(mx_memory_total(), mx_cgroup_memory("/proc/self/cgroup", "/sys/fs/cgroup"));
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
