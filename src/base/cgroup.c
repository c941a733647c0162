/* Walks the groups of /proc/<pid>/cgroup up to the mount point: a limit anywhere on the way holds.
 */
#include "base/cgroup.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct walk {
    const char *root, *controller;
    mx_cgroup_fn *limit;
};

/* The tightest limit from `mount`/`group` up to and including `mount`. */
static uint64_t tree_limit(const struct walk *w, const char *mount, const char *group)
{
    char dir[4300];
    int n = snprintf(dir, sizeof dir, "%s%s", mount, group);
    if (n < 0 || (size_t)n >= sizeof dir || strstr(group, ".."))
        return w->limit(mount);
    size_t root = strlen(mount);
    uint64_t limit = w->limit(dir);
    while (strlen(dir) > root) {
        *strrchr(dir + root, '/') = '\0';
        limit = mx_tighter(limit, w->limit(dir));
    }
    return limit;
}

/* Whether `name` is one of the comma-separated words of `list`. */
static bool has_word(const char *list, const char *name)
{
    size_t len = strlen(name);
    for (const char *s = list; s; s = strchr(s, ',')) {
        s += *s == ',';
        if (strncmp(s, name, len) == 0 && (s[len] == ',' || s[len] == '\0'))
            return true;
    }
    return false;
}

/* One line: "hierarchy:controllers:/group". Without controllers it is v2's. */
static uint64_t line_limit(const struct walk *w, char *line)
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
    if (!v2 && !has_word(controllers, w->controller))
        return 0;
    snprintf(mount, sizeof mount, "%s%s%s", w->root, v2 ? "" : "/", v2 ? "" : w->controller);
    return tree_limit(w, mount, group);
}

uint64_t mx_cgroup_limit(const char *membership, const char *root, const char *controller,
                         mx_cgroup_fn *fn)
{
    const struct walk w = {root, controller, fn};
    FILE *f = fopen(membership, "re");
    if (!f)
        return 0;
    char line[4200];
    uint64_t limit = 0;
    for (int i = 0; i < 64 && fgets(line, sizeof line, f); i++)
        limit = mx_tighter(limit, line_limit(&w, line));
    fclose(f);
    return limit;
}
