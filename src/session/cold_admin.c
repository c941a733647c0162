/* Listing, checking and cleaning a cold tier: cold_admin.h. */
#include "session/cold_admin.h"

#include "session/cold_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Looking at a directory that no server used must not make it one of ours. */
static bool looks_like_cache(const char *dir)
{
    char path[300];
    int n = snprintf(path, sizeof path, "%s/objects", dir);
    return n > 0 && (size_t)n < sizeof path && access(path, F_OK) == 0;
}

struct mx_cold *mx_cold_admin_open(const char *dir, uint64_t max_bytes,
                                   void (*log)(void *arg, const char *line), void *arg,
                                   mtplx_error *err)
{
    char own[256] = "";
    struct stat st;
    if (err)
        *err = (mtplx_error){0};
    if (!dir || !*dir) {
        if (mx_cold_dir_default(own, sizeof own, err))
            return NULL;
        dir = own;
    }
    if (stat(dir, &st) != 0 || !S_ISDIR(st.st_mode) || !looks_like_cache(dir)) {
        mx_error(err, MTPLX_ERR_IO, "there is no session cache in %s", dir);
        return NULL;
    }
    struct mx_cold_options o = {
        .dir = dir, .mode = MX_COLD_ON, .max_bytes = max_bytes, .log = log, .log_arg = arg};
    return mx_cold_open_with(&o, NULL, true, err);
}

static mtplx_status need_ours(const struct mx_cold *c, mtplx_error *err)
{
    if (c->admin && c->dir.locked)
        return MTPLX_OK;
    char who[48] = "another process";
    if (c->dir.other > 0)
        snprintf(who, sizeof who, "process %ld", c->dir.other);
    return c->dir.readonly ? mx_error(err, MTPLX_ERR_IO, "%s cannot be written", c->dir.path)
                           : mx_error(err, MTPLX_ERR_IO, "%s is in use by %s: stop that first",
                                      c->dir.path, who);
}

/* ---- Listing ------------------------------------------------------------------------------ */

struct entries {
    struct mx_cold_entry **list;
    size_t n, cap;
    int kind; /* 0: all */
};

static void collect(struct mx_cold_entry *e, void *arg)
{
    struct entries *l = arg;
    if (e->state == MX_COLD_ENTRY_LIVE && (!l->kind || e->kind == l->kind) && l->n < l->cap)
        l->list[l->n++] = e;
}

static struct entries all_entries(struct mx_cold *c, int kind)
{
    struct entries l = {.cap = c->index.n, .kind = kind};
    l.list = calloc(l.cap + 1, sizeof(struct mx_cold_entry *));
    if (l.list)
        mx_cold_index_each(&c->index, collect, &l);
    return l;
}

static int last_used_first(const void *a, const void *b)
{
    const struct mx_cold_entry *x = *(struct mx_cold_entry *const *)a;
    const struct mx_cold_entry *y = *(struct mx_cold_entry *const *)b;
    return x->used > y->used ? -1 : x->used < y->used;
}

static void describe(const struct mx_cold *c, const struct mx_cold_entry *e,
                     struct mx_cold_item *out)
{
    *out = (struct mx_cold_item){.key = e->key,
                                 .scope = e->scope,
                                 .identity = c->index.identities[e->identity],
                                 .point = e->point,
                                 .tokens = e->n_tokens,
                                 .bytes = e->bytes,
                                 .created = e->created,
                                 .used = e->used};
    snprintf(out->session, sizeof out->session, "%s", e->session ? e->session : "");
    for (const struct mx_cold_entry *p = e->parent; p; p = p->parent)
        out->chain_bytes += p->bytes;
}

size_t mx_cold_list(struct mx_cold *c, struct mx_cold_item *out, size_t most)
{
    pthread_mutex_lock(&c->mu);
    struct entries l = all_entries(c, MX_COLD_SNAPSHOT);
    if (l.n)
        qsort(l.list, l.n, sizeof *l.list, last_used_first);
    for (size_t i = 0; i < l.n && i < most; i++)
        describe(c, l.list[i], &out[i]);
    pthread_mutex_unlock(&c->mu);
    free(l.list);
    return l.n;
}

/* ---- Checking ----------------------------------------------------------------------------- */

struct target { /* an entry, which may go while its file is read */
    struct mx_cold_key key, parent;
    int kind, identity;
    uint64_t bytes;
    struct mx_cold_identity id;
};

static mtplx_status check_record(const struct target *t, int fd, mtplx_error *err)
{
    struct stat st;
    struct mx_record r;
    if (fstat(fd, &st) != 0)
        return mx_error(err, MTPLX_ERR_IO, "it cannot be read: %s", strerror(errno));
    mtplx_status s = mx_record_open(fd, 0, (uint64_t)st.st_size, &r, err);
    if (s)
        return s;
    if ((int)r.kind != t->kind || !mx_cold_key_equal(r.key, t->key) ||
        memcmp(&r.identity, &t->id, sizeof t->id) != 0)
        s = mx_error(err, MTPLX_ERR_FORMAT, "it is another object");
    else if (!mx_cold_key_equal(r.parent, t->parent))
        s = mx_error(err, MTPLX_ERR_FORMAT, "it follows another block");
    else if (r.bytes != (uint64_t)st.st_size || r.bytes != t->bytes)
        s = mx_error(err, MTPLX_ERR_FORMAT, "it has another size than it says");
    else
        s = mx_record_check(fd, 0, &r, err);
    mx_record_free(&r);
    return s;
}

static mtplx_status check_target(struct mx_cold *c, const struct target *t, mtplx_error *err)
{
    char name[MX_COLD_NAME];
    mx_cold_name(name, (enum mx_cold_kind)t->kind, t->key, &t->id);
    int fd = mx_cold_dir_open_object(&c->dir, name);
    if (fd < 0 && errno == ENOENT && !c->dir.locked)
        return MTPLX_OK; /* whoever has the directory removed it meanwhile */
    if (fd < 0)
        return mx_error(err, MTPLX_ERR_IO, "it cannot be opened: %s", strerror(errno));
    mtplx_status s = check_record(t, fd, err);
    close(fd);
    return s;
}

static struct target *all_targets(struct mx_cold *c, size_t *n)
{
    pthread_mutex_lock(&c->mu);
    struct entries l = all_entries(c, 0);
    struct target *t = l.list ? calloc(l.n + 1, sizeof *t) : NULL;
    for (size_t i = 0; t && i < l.n; i++) {
        const struct mx_cold_entry *e = l.list[i];
        t[i] = (struct target){.key = e->key,
                               .kind = e->kind,
                               .identity = e->identity,
                               .bytes = e->bytes,
                               .id = c->index.identities[e->identity]};
        if (e->parent)
            t[i].parent = e->parent->key;
    }
    pthread_mutex_unlock(&c->mu);
    *n = l.n;
    free(l.list);
    return t;
}

static void report_bad(struct mx_cold *c, const struct target *t, const mtplx_error *why,
                       void (*line)(void *arg, const char *text), void *arg)
{
    char name[MX_COLD_NAME];
    char text[700];
    mx_cold_name(name, (enum mx_cold_kind)t->kind, t->key, &t->id);
    snprintf(text, sizeof text, "%s/objects/%s: %s", c->dir.path, name, why->message);
    if (line)
        line(arg, text);
    if (c->dir.locked)
        mx_cold_drop_bad(c, (enum mx_cold_kind)t->kind, t->key, t->identity, why->message);
}

mtplx_status mx_cold_check_all(struct mx_cold *c, void (*line)(void *arg, const char *text),
                               void *arg, const atomic_bool *cancel, struct mx_cold_report *r,
                               mtplx_error *err)
{
    size_t n = 0;
    *r = (struct mx_cold_report){0};
    struct target *t = all_targets(c, &n);
    if (!t)
        return mx_error_nomem(err, "the list of objects", n * sizeof *t);
    struct mx_cold_stats before;
    struct mx_cold_stats after;
    mx_cold_get_stats(c, &before);
    mtplx_status s = MTPLX_OK;
    for (size_t i = 0; !s && i < n; i++) {
        mtplx_error why = {0};
        if (cancel && atomic_load(cancel)) {
            s = mx_error(err, MTPLX_ERR_CANCELLED, "cancelled after %zu of %zu files", i, n);
            break;
        }
        mtplx_status bad = check_target(c, &t[i], &why);
        if (bad == MTPLX_ERR_MEMORY) {
            s = mx_error(err, bad, "%s", why.message);
        } else if (bad) {
            r->bad++;
            report_bad(c, &t[i], &why, line, arg);
        }
        r->files++;
        r->bytes += t[i].bytes;
    }
    free(t);
    if (c->dir.locked && c->admin)
        mx_cold_sweep(c);
    mx_cold_get_stats(c, &after);
    r->snapshots = before.snapshots > after.snapshots ? before.snapshots - after.snapshots : 0;
    return s;
}

/* ---- Cleaning ----------------------------------------------------------------------------- */

static void unmark(struct mx_cold_entry *e, void *arg)
{
    (void)arg;
    e->mark = false;
}

mtplx_status mx_cold_gc(struct mx_cold *c, struct mx_cold_report *r, mtplx_error *err)
{
    *r = (struct mx_cold_report){0};
    mtplx_status s = need_ours(c, err);
    if (s)
        return s;
    struct mx_cold_stats was = c->stats;
    uint64_t bytes = c->index.bytes;
    uint64_t snapshots = c->index.snapshots;
    int cursor = 0;
    mx_cold_index_each(&c->index, unmark, NULL);
    mx_cold_reconcile(c, &cursor, UINT64_MAX);
    mx_cold_prune_all(c);
    mx_cold_make_room(c, 0);
    mx_cold_manifest_shrink(c);
    r->removed = c->stats.orphans - was.orphans;
    r->evicted = c->stats.evicted - was.evicted;
    r->bad = c->stats.dropped_bad - was.dropped_bad;
    r->snapshots = snapshots - c->index.snapshots;
    r->freed = bytes - c->index.bytes;
    return MTPLX_OK;
}

mtplx_status mx_cold_clear(struct mx_cold *c, const char *session, struct mx_cold_report *r,
                           mtplx_error *err)
{
    *r = (struct mx_cold_report){0};
    mtplx_status s = need_ours(c, err);
    if (s)
        return s;
    uint64_t bytes = c->index.bytes;
    r->snapshots = (uint64_t)mx_cold_drop(c, session);
    mx_cold_prune_all(c);
    mx_cold_sweep(c);
    mx_cold_manifest_shrink(c);
    r->freed = bytes - c->index.bytes;
    return c->n_garbage ? mx_error(err, MTPLX_ERR_IO, "%s: removing failed: %s", c->dir.path,
                                   strerror(mx_cold_manifest_errno(c)))
                        : MTPLX_OK;
}
