/* Made-up conversations for tests of the cold tier: every byte follows from the tokens, so whatever
 * is read back can be checked without keeping it. */
#ifndef TEST_COLD_RIG_H
#define TEST_COLD_RIG_H

#include "session/cold_int.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

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

static inline int32_t talk_token(const struct talk *t, size_t i)
{
    uint32_t h = (uint32_t)(i < t->shared ? t->base : t->own) * 2654435761u + (uint32_t)i * 40503u;
    return (int32_t)((h ^ h >> 15) % 150000);
}

/* Half of the bytes vary little: some parts compress, some do not. */
static inline void fill_bytes(uint8_t *p, size_t n, struct mx_cold_key key, int part)
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

static inline void add_part(struct mx_cold_write *w, size_t bytes, bool fill)
{
    uint8_t *p = malloc(bytes + 1);
    if (fill)
        fill_bytes(p, bytes, w->key, w->n_parts + 10 * (int)w->kind);
    else
        memset(p, 0xee, bytes);
    w->parts[w->n_parts++] = (struct mx_cold_part){p, bytes};
}

static inline struct talk_objects *talk_objects(const struct talk *t, bool fill)
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

static inline void free_objects(void *arg)
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

static inline struct mx_cold_key talk_key(const struct talk *t)
{
    struct talk_objects *o = talk_objects(t, false);
    struct mx_cold_key k = o->keys[o->n - 1];
    free_objects(o);
    return k;
}

static inline bool put_talk(struct mx_cold *c, const struct talk *t)
{
    struct talk_objects *o = talk_objects(t, true);
    return mx_cold_put(c, o->w, o->n, free_objects, o);
}

/* Reads all of a conversation; 0: it is there as it should be, 1: something is missing or was
 * dropped, 2: wrong bytes came back. */
static inline int check_talk(struct mx_cold *c, const struct talk *t)
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
static inline int each_file(const char *dir, void (*fn)(const char *path, void *arg), void *arg)
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

struct nth { /* of each_file() */
    int i;
    char path[600];
};

static inline void take_nth(const char *path, void *arg)
{
    struct nth *n = arg;
    if (n->i-- == 0)
        snprintf(n->path, sizeof n->path, "%s", path);
}

static inline char *file_at(const char *dir, int i, struct nth *n)
{
    *n = (struct nth){.i = i};
    each_file(dir, take_nth, n);
    return n->path;
}

static inline void flip(const char *path, long at)
{
    int fd = open(path, O_RDWR);
    uint8_t b = 0;
    assert_int_equal(pread(fd, &b, 1, at), 1);
    b ^= 0x10;
    assert_int_equal(pwrite(fd, &b, 1, at), 1);
    close(fd);
}

/* Takes a file out of the page cache. */
static inline void forget_file(const char *path, void *arg)
{
    (void)arg;
    int fd = open(path, O_RDONLY);
    fdatasync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

static inline void remove_path(const char *path, void *arg)
{
    (void)arg;
    unlink(path);
}

static inline void remove_tree(const char *dir)
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

/* ---- Rig ---------------------------------------------------------------------------------- */

struct rig {
    char dir[64];
    int lines; /* of the log */
    char last[700];
    pthread_mutex_t mu;
    uint64_t now_ms, free_bytes, all_bytes;
    int fault;
    enum mx_cold_op fault_op;
    struct mx_cold_options o;
};

static inline void on_log(void *arg, const char *line)
{
    struct rig *r = arg;
    pthread_mutex_lock(&r->mu);
    r->lines++;
    snprintf(r->last, sizeof r->last, "%s", line);
    pthread_mutex_unlock(&r->mu);
    if (getenv("TEST_COLD_LOG"))
        fprintf(stderr, "%s\n", line);
}

static inline int setup(void **state)
{
    struct rig *r = calloc(1, sizeof *r);
    /* In memory where there is such a place: syncing thousands of files takes a disk seconds. */
    snprintf(r->dir, sizeof r->dir, "%s/mtplx-cold-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(r->dir));
    pthread_mutex_init(&r->mu, NULL);
    r->now_ms = 1700000000000ull;
    r->all_bytes = 100ull << 30;
    r->free_bytes = 50ull << 30;
    r->o = (struct mx_cold_options){.dir = r->dir,
                                    .mode = MX_COLD_ON,
                                    .min_tokens = 1,
                                    .identity = {{1}, {2}, {3}},
                                    .log = on_log,
                                    .log_arg = r};
    *state = r;
    return 0;
}

static inline int teardown(void **state)
{
    struct rig *r = *state;
    remove_tree(r->dir);
    pthread_mutex_destroy(&r->mu);
    free(r);
    return 0;
}

static inline int hook_fault(void *arg, enum mx_cold_op op)
{
    struct rig *r = arg;
    pthread_mutex_lock(&r->mu);
    int e = op == r->fault_op ? r->fault : 0;
    pthread_mutex_unlock(&r->mu);
    return e;
}

static inline bool hook_space(void *arg, uint64_t *free_bytes, uint64_t *all_bytes)
{
    struct rig *r = arg;
    pthread_mutex_lock(&r->mu);
    *free_bytes = r->free_bytes;
    *all_bytes = r->all_bytes;
    pthread_mutex_unlock(&r->mu);
    return true;
}

static inline uint64_t hook_now(void *arg)
{
    struct rig *r = arg;
    pthread_mutex_lock(&r->mu);
    uint64_t now = r->now_ms;
    pthread_mutex_unlock(&r->mu);
    return now;
}

static inline void set_u64(struct rig *r, uint64_t *what, uint64_t v)
{
    pthread_mutex_lock(&r->mu);
    *what = v;
    pthread_mutex_unlock(&r->mu);
}

static inline void set_fault(struct rig *r, int error, enum mx_cold_op op)
{
    pthread_mutex_lock(&r->mu);
    r->fault = error;
    r->fault_op = op;
    pthread_mutex_unlock(&r->mu);
}

static inline int log_lines(struct rig *r)
{
    pthread_mutex_lock(&r->mu);
    int n = r->lines;
    pthread_mutex_unlock(&r->mu);
    return n;
}

static inline struct mx_cold *open_rig(struct rig *r)
{
    struct mx_cold_hooks h = {hook_fault, hook_space, hook_now, r};
    mtplx_error err = {0};
    struct mx_cold *c = mx_cold_open_with(&r->o, &h, false, &err);
    if (!c)
        fail_msg("%s", err.message);
    return c;
}

static inline struct mx_cold_stats stats_of(struct mx_cold *c)
{
    struct mx_cold_stats s;
    mx_cold_get_stats(c, &s);
    return s;
}

/* A conversation of its own of `n` tokens. */
static inline struct talk talk(int id, size_t n)
{
    return (struct talk){.base = id,
                         .own = id,
                         .n = n,
                         .block_bytes = 3000,
                         .slab_bytes = 5000,
                         .session = "s",
                         .scope = "k"};
}

static inline void put_ok(struct mx_cold *c, const struct talk *t)
{
    assert_true(put_talk(c, t));
    assert_true(mx_cold_flush(c, 20 * SECOND));
}

static inline bool has(struct mx_cold *c, const struct talk *t)
{
    return mx_cold_has(c, MX_COLD_SNAPSHOT, talk_key(t));
}

static inline struct mx_cold *reopen(struct rig *r, struct mx_cold *c)
{
    mx_cold_close(c, 20 * SECOND);
    return open_rig(r);
}

/* Files and entries are the same in number: no orphans, nothing missing. */
static inline void assert_no_orphans(struct rig *r, struct mx_cold *c)
{
    mx_cold_flush(c, 20 * SECOND);
    struct mx_cold_stats s = stats_of(c);
    assert_int_equal(each_file(r->dir, NULL, NULL), s.snapshots + s.blocks);
}

#endif
