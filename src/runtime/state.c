/* Learned facts on disk: see state.h.
 *
 * File: {"format": 1, "identity": "...", "sections": {NAME: {...}, ...}}.
 *
 *  1. Reading never blocks and is bounded: regular files of at most MX_STATE_LIMIT bytes only.
 *  2. Writing goes to a private file of a new name (0600) beside the target, then rename.
 *  3. No failure is reported; what could not be kept is not kept. */
#include "runtime/state.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

enum { FORMAT = 1 };

struct mx_state {
    char *identity, *dir, *path;
    json_t *sections; /* NULL until loaded */
    json_t *dirty;    /* names put since the last save */
};

/* ---- Place -------------------------------------------------------------------------------- */

static char *state_dir(void)
{
    const char *own = getenv("MTPLX_STATE_DIR");
    if (own)
        return *own && strcmp(own, "off") != 0 ? strdup(own) : NULL;
    return mx_cache_path("mtplx/state");
}

/* FNV-1a, 64 bits: a name, not a defence; the identity inside the file is what counts. */
static uint64_t hash(const char *s)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *s; s++)
        h = (h ^ (uint8_t)*s) * 0x100000001b3u;
    return h;
}

struct mx_state *mx_state_new(const char *identity)
{
    char name[32];
    struct mx_state *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    snprintf(name, sizeof name, "%016llx.json", (unsigned long long)hash(identity));
    s->dir = state_dir();
    s->path = s->dir ? mx_path_join(s->dir, name) : NULL;
    s->identity = strdup(identity);
    s->dirty = json_object();
    if (s->path && s->identity && s->dirty)
        return s;
    mx_state_free(s);
    return NULL;
}

void mx_state_free(struct mx_state *s)
{
    if (!s)
        return;
    mx_state_save(s);
    json_decref(s->sections);
    json_decref(s->dirty);
    free(s->identity);
    free(s->path);
    free(s->dir);
    free(s);
}

const char *mx_state_path(const struct mx_state *s)
{
    return s ? s->path : NULL;
}

/* ---- Reading ------------------------------------------------------------------------------ */

/* The sections of the file as it is now: a new object, empty when there is nothing usable. */
static json_t *read_sections(const struct mx_state *s)
{
    size_t len;
    char *text = mx_file_read(s->path, MX_STATE_LIMIT, &len, NULL);
    json_t *root = text ? json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL) : NULL;
    free(text);
    const char *identity = json_string_value(json_object_get(root, "identity"));
    json_t *found = json_object_get(root, "sections");
    if (json_integer_value(json_object_get(root, "format")) == FORMAT && json_is_object(found) &&
        identity && strcmp(identity, s->identity) == 0)
        json_incref(found);
    else
        found = json_object();
    json_decref(root);
    return found;
}

const json_t *mx_state_get(struct mx_state *s, const char *section)
{
    if (!s)
        return NULL;
    if (!s->sections)
        s->sections = read_sections(s);
    const json_t *v = json_object_get(s->sections, section);
    return json_is_object(v) ? v : NULL;
}

/* ---- Writing ------------------------------------------------------------------------------ */

void mx_state_put(struct mx_state *s, const char *section, json_t *object)
{
    if (!s || !json_is_object(object)) {
        json_decref(object);
        return;
    }
    if (!s->sections)
        s->sections = read_sections(s);
    json_object_set_new(s->dirty, section, json_true());
    json_object_set_new(s->sections, section, object);
}

/* mkdir -p; new directories are private. */
static void make_dirs(const char *dir)
{
    char path[PATH_MAX];
    size_t n = strlen(dir);
    if (n >= sizeof path)
        return;
    memcpy(path, dir, n + 1);
    for (char *p = path + 1; *p; p++)
        if (*p == '/') {
            *p = '\0';
            (void)mkdir(path, 0700);
            *p = '/';
        }
    (void)mkdir(path, 0700);
}

static bool write_text(int fd, const char *text, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, text, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        text += n;
        len -= (size_t)n;
    }
    return true;
}

/* Not synced: a file that a crash tore fails to parse and counts as empty. */
static void replace_file(const struct mx_state *s, const char *text)
{
    char *name = mx_path_join(s->dir, ".state-XXXXXX");
    size_t len = strlen(text);
    if (!name || len > MX_STATE_LIMIT) {
        free(name);
        return;
    }
    make_dirs(s->dir);
    int fd = mkstemp(name); /* mode 0600 */
    if (fd >= 0) {
        bool ok = write_text(fd, text, len);
        ok = close(fd) == 0 && ok;
        if (!ok || rename(name, s->path) != 0)
            unlink(name);
    }
    free(name);
}

/* What others saved meanwhile, with the sections of this process over it. */
static json_t *merged(const struct mx_state *s)
{
    json_t *now = read_sections(s);
    const char *name;
    json_t *mark;
    json_object_foreach(s->dirty, name, mark)
    {
        json_object_set(now, name, json_object_get(s->sections, name));
    }
    return now;
}

void mx_state_save(struct mx_state *s)
{
    if (!s || !s->sections || json_object_size(s->dirty) == 0)
        return;
    json_t *sections = merged(s);
    json_t *root = json_pack("{s:i, s:s, s:O}", "format", FORMAT, "identity", s->identity,
                             "sections", sections);
    char *text = root ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    if (text)
        replace_file(s, text);
    free(text);
    json_decref(root);
    json_decref(s->sections);
    s->sections = sections;
    json_object_clear(s->dirty);
}

/* ---- Machine ------------------------------------------------------------------------------ */

/* The value of the first "model name" line (x86) or the first "CPU part" line (arm64). */
static void cpu_model(char *out, size_t size)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    snprintf(out, size, "unknown CPU");
    if (!f)
        return;
    for (bool found = false; !found && fgets(line, sizeof line, f);) {
        const char *colon = strchr(line, ':');
        found =
            colon && (strncmp(line, "model name", 10) == 0 || strncmp(line, "CPU part", 8) == 0);
        if (found) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(out, size, "%s", colon + 1 + strspn(colon + 1, " \t"));
        }
    }
    fclose(f);
}

void mx_state_machine(char *buf, size_t size)
{
    char model[128];
    size_t n = strlen(buf);
    cpu_model(model, sizeof model);
    snprintf(buf + n, size - n, "; %s, %ld CPUs", model, sysconf(_SC_NPROCESSORS_ONLN));
}
