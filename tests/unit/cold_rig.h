/* Made-up conversations for tests of the cold tier: every byte follows from the tokens, so whatever
 * is read back can be checked without keeping it. */
#ifndef TEST_COLD_RIG_H
#define TEST_COLD_RIG_H

#include "session/cold_int.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK 64
#define SECOND 1000000000ull
#define MOST_OBJECTS 64

/* tokens[i] follows from where the conversation forks: the first `shared` ones from `base`. */
struct talk {
    int base, own;
    size_t shared, n;
    size_t block_bytes, slab_bytes;
    int point;
    const char *session, *scope;
};

static int32_t talk_token(const struct talk *t, size_t i)
{
    uint32_t h = (uint32_t)(i < t->shared ? t->base : t->own) * 2654435761u + (uint32_t)i * 40503u;
    return (int32_t)((h ^ h >> 15) % 150000);
}

/* Half of the bytes vary little: some parts compress, some do not. */
static void fill_bytes(uint8_t *p, size_t n, struct mx_cold_key key, int part)
{
    uint64_t s;
    memcpy(&s, key.b, sizeof s);
    s += (uint64_t)part * 77 + 1;
    for (size_t i = 0; i < n; i++) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        p[i] = part & 1 ? (uint8_t)(s & 3) : (uint8_t)s;
    }
}

struct talk_objects {
    int32_t *tokens;
    struct mx_cold_write w[MOST_OBJECTS];
    struct mx_cold_key keys[MOST_OBJECTS];
    size_t n;
    _Atomic int *released;
};

static void add_part(struct mx_cold_write *w, size_t bytes, bool fill)
{
    uint8_t *p = malloc(bytes + 1);
    if (fill)
        fill_bytes(p, bytes, w->key, w->n_parts + 10 * (int)w->kind);
    else
        memset(p, 0xee, bytes);
    w->parts[w->n_parts++] = (struct mx_cold_part){p, bytes};
}

static struct talk_objects *talk_objects(const struct talk *t, bool fill)
{
    struct talk_objects *o = calloc(1, sizeof *o);
    struct mx_cold_key k = mx_cold_chain_start(t->scope);
    struct mx_cold_key up = {{0}};
    o->tokens = malloc(t->n * sizeof *o->tokens);
    for (size_t i = 0; i < t->n; i++)
        o->tokens[i] = talk_token(t, i);
    for (size_t at = 0; at + BLOCK <= t->n; at += BLOCK) {
        k = mx_cold_chain(k, o->tokens + at, BLOCK);
        struct mx_cold_write *w = &o->w[o->n];
        *w = (struct mx_cold_write){.kind = MX_COLD_BLOCK,
                                    .key = k,
                                    .parent = up,
                                    .tokens = o->tokens + at,
                                    .n_tokens = BLOCK,
                                    .scope = t->scope};
        add_part(w, t->block_bytes, fill);
        add_part(w, t->block_bytes / 2, fill);
        o->keys[o->n++] = up = k;
    }
    if (t->n % BLOCK)
        k = mx_cold_chain(k, o->tokens + t->n / BLOCK * BLOCK, t->n % BLOCK);
    struct mx_cold_write *w = &o->w[o->n];
    *w = (struct mx_cold_write){.kind = MX_COLD_SNAPSHOT,
                                .key = k,
                                .parent = up,
                                .tokens = o->tokens,
                                .n_tokens = t->n,
                                .point = t->point,
                                .session = t->session,
                                .scope = t->scope};
    add_part(w, t->slab_bytes, fill);
    add_part(w, 100, fill);
    add_part(w, 0, fill);
    o->keys[o->n++] = k;
    return o;
}

static void free_objects(void *arg)
{
    struct talk_objects *o = arg;
    if (o->released)
        ++*o->released;
    for (size_t i = 0; i < o->n; i++)
        for (int p = 0; p < o->w[i].n_parts; p++)
            free((void *)(uintptr_t)o->w[i].parts[p].data);
    free(o->tokens);
    free(o);
}

static struct mx_cold_key talk_key(const struct talk *t)
{
    struct talk_objects *o = talk_objects(t, false);
    struct mx_cold_key k = o->keys[o->n - 1];
    free_objects(o);
    return k;
}

static bool put_talk(struct mx_cold *c, const struct talk *t)
{
    struct talk_objects *o = talk_objects(t, true);
    return mx_cold_put(c, o->w, o->n, free_objects, o);
}

/* Reads all of a conversation; 0: it is there as it should be, 1: something is missing or was
 * dropped, 2: wrong bytes came back. */
static int check_talk(struct mx_cold *c, const struct talk *t)
{
    struct talk_objects *o = talk_objects(t, false);
    struct talk_objects *want = talk_objects(t, true);
    int result = 0;
    for (size_t i = 0; i < o->n && !result; i++) {
        struct mx_cold_write *w = &o->w[i];
        mtplx_error err = {0};
        if (mx_cold_read(c, w->kind, w->key, w->tokens, w->n_tokens, w->parts, w->n_parts, &err))
            result = 1;
        for (int p = 0; p < w->n_parts && !result; p++)
            if (memcmp(w->parts[p].data, want->w[i].parts[p].data, w->parts[p].bytes) != 0)
                result = 2;
    }
    free_objects(o);
    free_objects(want);
    return result;
}

/* ---- Directories -------------------------------------------------------------------------- */

/* Calls fn for each object file, path relative to dir; how many there are. */
static int each_file(const char *dir, void (*fn)(const char *path, void *arg), void *arg)
{
    int n = 0;
    for (int i = 0; i < 256; i++) {
        char folder[300];
        snprintf(folder, sizeof folder, "%s/objects/%02x", dir, (unsigned)i);
        DIR *d = opendir(folder);
        for (struct dirent *e; d && (e = readdir(d));) {
            char path[600];
            if (e->d_name[0] == '.')
                continue;
            n++;
            snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
            if (fn)
                fn(path, arg);
        }
        if (d)
            closedir(d);
    }
    return n;
}

static void remove_path(const char *path, void *arg)
{
    (void)arg;
    unlink(path);
}

static void remove_tree(const char *dir)
{
    static const char *const files[] = {"lock", "manifest.db", "manifest.db-wal", "manifest.db-shm",
                                        "manifest.db.bad"};
    char path[300];
    each_file(dir, remove_path, NULL);
    for (unsigned i = 0; i < 256; i++) {
        snprintf(path, sizeof path, "%s/objects/%02x", dir, i);
        rmdir(path);
    }
    snprintf(path, sizeof path, "%s/objects", dir);
    rmdir(path);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    rmdir(dir);
}

#endif
