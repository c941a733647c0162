/* Files against the index, folder by folder: what has no entry is removed, entries without a whole
 * file are dropped. And, when there is no manifest, the index made from the files. */
#include "session/cold_int.h"

#include "base/clock.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDERS 256

/* An open folder of objects; NULL: there is none. */
static DIR *open_folder(struct mx_cold *c, int i)
{
    char name[3];
    snprintf(name, sizeof name, "%02x", (unsigned)i);
    int fd = openat(c->dir.objects, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    DIR *d = fdopendir(fd);
    if (!d)
        close(fd);
    return d;
}

/* ---- Reconciling -------------------------------------------------------------------------- */

/* The entry of a file. Different identities with one tag are as good as impossible. */
static struct mx_cold_entry *entry_of(struct mx_cold *c, enum mx_cold_kind kind,
                                      struct mx_cold_key key, uint64_t tag)
{
    struct mx_cold_entry *e = mx_cold_index_chain(&c->index, key);
    for (; e; e = e->next)
        if (e->kind == kind && mx_cold_key_equal(e->key, key) &&
            mx_cold_identity_tag(&c->index.identities[e->identity]) == tag)
            break;
    return e;
}

/* Whether a name is one of ours, and one to remove. Names that we do not make are left alone. */
static bool check_name(struct mx_cold *c, int folder, const char *name)
{
    enum mx_cold_kind kind;
    struct mx_cold_key key;
    uint64_t tag;
    char plain[MX_COLD_NAME];
    size_t n = strnlen(name, MX_COLD_NAME);
    if (n == 52 && name[51] == '~') { /* a temporary file of a writer that ended */
        snprintf(plain, sizeof plain, "%.51s", name);
        return mx_cold_name_parse(plain, &kind, &key, &tag);
    }
    if (!mx_cold_name_parse(name, &kind, &key, &tag) || key.b[0] != folder)
        return false;
    struct stat st;
    char path[MX_COLD_NAME + 4];
    snprintf(path, sizeof path, "%02x/%s", (unsigned)folder, name);
    bool whole =
        fstatat(c->dir.objects, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode);
    pthread_mutex_lock(&c->mu);
    struct mx_cold_entry *e = entry_of(c, kind, key, tag);
    whole = whole && e && e->state == MX_COLD_ENTRY_LIVE && e->bytes == (uint64_t)st.st_size;
    if (whole)
        e->mark = true;
    pthread_mutex_unlock(&c->mu);
    return !whole;
}

static void check_folder(struct mx_cold *c, int i)
{
    DIR *d = open_folder(c, i);
    if (!d)
        return;
    for (struct dirent *f; (f = readdir(d));)
        if (check_name(c, i, f->d_name) && unlinkat(dirfd(d), f->d_name, 0) == 0) {
            pthread_mutex_lock(&c->mu);
            c->stats.orphans++;
            pthread_mutex_unlock(&c->mu);
        }
    closedir(d);
}

struct missing {
    struct mx_cold_entry **list;
    size_t n, cap;
};

static void collect_unseen(struct mx_cold_entry *e, void *arg)
{
    struct missing *m = arg;
    if (e->state == MX_COLD_ENTRY_LIVE && !e->mark && m->n < m->cap)
        m->list[m->n++] = e;
}

/* Entries without files go, and what needs them. Cutting one may free others of the list, so they
 * are looked for again. */
static int drop_unseen(struct mx_cold *c)
{
    struct missing m = {.cap = c->index.n};
    m.list = calloc(m.cap + 1, sizeof(struct mx_cold_entry *));
    if (!m.list)
        return 0;
    mx_cold_index_each(&c->index, collect_unseen, &m);
    struct mx_cold_key *keys = calloc(m.n + 1, sizeof *keys);
    int *kinds = calloc(m.n + 1, sizeof *kinds);
    int *ids = calloc(m.n + 1, sizeof *ids);
    for (size_t i = 0; keys && kinds && ids && i < m.n; i++) {
        keys[i] = m.list[i]->key;
        kinds[i] = m.list[i]->kind;
        ids[i] = m.list[i]->identity;
    }
    for (size_t i = 0; keys && kinds && ids && i < m.n; i++) {
        struct mx_cold_entry *e = mx_cold_index_find(&c->index, kinds[i], keys[i], ids[i]);
        struct mx_cold_entry *up = e ? e->parent : NULL;
        if (e && e->state == MX_COLD_ENTRY_LIVE)
            mx_cold_cut(c, e);
        mx_cold_prune(c, up);
    }
    free(m.list);
    free(keys);
    free(kinds);
    free(ids);
    return (int)m.n;
}

bool mx_cold_reconcile(struct mx_cold *c, int *cursor, uint64_t deadline_ns)
{
    while (*cursor < FOLDERS) {
        if (mx_now_ns() >= deadline_ns)
            return false;
        check_folder(c, (*cursor)++);
    }
    pthread_mutex_lock(&c->mu);
    int missing = drop_unseen(c);
    c->stats.dropped_bad += (uint64_t)missing;
    uint64_t orphans = c->stats.orphans;
    pthread_mutex_unlock(&c->mu);
    mx_cold_sweep(c);
    if (missing || orphans)
        mx_cold_log(c,
                    "cold tier: %s: removed %llu file%s that no entry needs, dropped %d "
                    "entr%s without a whole file",
                    c->dir.path, (unsigned long long)orphans, orphans == 1 ? "" : "s", missing,
                    missing == 1 ? "y" : "ies");
    return true;
}

/* ---- Rebuilding --------------------------------------------------------------------------- */

struct found {
    struct mx_cold_key key, parent, scope;
    int kind, identity, point;
    uint64_t bytes, created, n_tokens;
    char *session;
    enum { FRESH = 0, OPEN, DONE, BAD } state;
};

struct finds {
    struct found *list;
    size_t n, cap;
};

static bool find_more(struct finds *f)
{
    if (f->n < f->cap)
        return true;
    size_t cap = f->cap ? f->cap * 2 : 256;
    struct found *more = cap > MX_COLD_ENTRIES ? NULL : realloc(f->list, cap * sizeof *more);
    if (!more)
        return false;
    f->list = more;
    f->cap = cap;
    return true;
}

static void keep_header(struct mx_cold *c, struct finds *f, const struct mx_record *r)
{
    int identity = mx_cold_index_identity(&c->index, &r->identity);
    if (identity < 0 || !find_more(f))
        return;
    f->list[f->n++] = (struct found){.key = r->key,
                                     .parent = r->parent,
                                     .scope = r->scope,
                                     .kind = (int)r->kind,
                                     .identity = identity,
                                     .point = r->point,
                                     .bytes = r->bytes,
                                     .created = r->created,
                                     .n_tokens = r->n_tokens,
                                     .session = strdup(r->session)};
}

static void read_header(struct mx_cold *c, struct finds *f, int folder, const char *name)
{
    enum mx_cold_kind kind;
    struct mx_cold_key key;
    uint64_t tag;
    char path[MX_COLD_NAME + 4];
    struct stat st;
    struct mx_record r;
    if (!mx_cold_name_parse(name, &kind, &key, &tag) || key.b[0] != folder)
        return;
    snprintf(path, sizeof path, "%02x/%s", (unsigned)folder, name);
    int fd = mx_cold_dir_open_object(&c->dir, path);
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && !mx_record_open(fd, 0, (uint64_t)st.st_size, &r, NULL)) {
        if (r.kind == kind && mx_cold_key_equal(r.key, key) && r.bytes == (uint64_t)st.st_size &&
            mx_cold_identity_tag(&r.identity) == tag)
            keep_header(c, f, &r);
        mx_record_free(&r);
    }
    close(fd);
}

static int by_key(const void *a, const void *b)
{
    const struct found *x = a;
    const struct found *y = b;
    int d = memcmp(x->key.b, y->key.b, sizeof x->key.b);
    d = d ? d : x->kind - y->kind;
    return d ? d : x->identity - y->identity;
}

static struct found *look_for(const struct finds *f, int kind, struct mx_cold_key key, int identity)
{
    struct found want = {.key = key, .kind = kind, .identity = identity};
    return f->n ? bsearch(&want, f->list, f->n, sizeof want, by_key) : NULL;
}

static bool add_found(struct mx_cold *c, struct found *o)
{
    struct mx_cold_entry *up = NULL;
    if (!mx_cold_key_zero(o->parent))
        up = mx_cold_index_find(&c->index, MX_COLD_BLOCK, o->parent, o->identity);
    struct mx_cold_entry *e = mx_cold_index_add(&c->index, o->kind, o->key, o->identity, up);
    if (!e)
        return false;
    e->n_tokens = o->n_tokens;
    e->created = e->used = o->created;
    e->point = (uint8_t)o->point;
    e->scope = o->scope;
    if (o->kind == MX_COLD_SNAPSHOT) {
        e->session = o->session;
        o->session = NULL;
    }
    e->row = c->next_row++;
    mx_cold_index_live(&c->index, e, o->bytes);
    return mx_cold_manifest_insert(c, e, &c->index.identities[o->identity]);
}

/* Adds an object after all its ancestors. `path` has room for all; a cycle or a missing ancestor
 * makes all of them bad. */
static bool add_chain(struct mx_cold *c, const struct finds *f, struct found *o,
                      struct found **path)
{
    size_t n = 0;
    bool whole = true;
    while (o && o->state == FRESH) {
        o->state = OPEN;
        path[n++] = o;
        if (mx_cold_key_zero(o->parent))
            break;
        o = look_for(f, MX_COLD_BLOCK, o->parent, o->identity);
        whole = o && (o->state == FRESH || o->state == DONE);
    }
    bool ok = true;
    while (n--) {
        path[n]->state = whole ? DONE : BAD;
        ok = ok && (!whole || add_found(c, path[n]));
    }
    return ok;
}

static void add_all(struct mx_cold *c, struct finds *f)
{
    struct found **path = calloc(f->n + 1, sizeof(struct found *));
    if (f->n)
        qsort(f->list, f->n, sizeof *f->list, by_key);
    bool ok = path && mx_cold_manifest_begin(c);
    for (size_t i = 0; ok && i < f->n; i++)
        ok = add_chain(c, f, &f->list[i], path);
    mx_cold_manifest_end(c, ok);
    free(path);
}

void mx_cold_rebuild(struct mx_cold *c, uint64_t deadline_ns)
{
    struct finds f = {0};
    for (int i = 0; i < FOLDERS; i++) {
        DIR *d = open_folder(c, i);
        if (!d)
            continue;
        for (struct dirent *e; mx_now_ns() < deadline_ns && (e = readdir(d));)
            read_header(c, &f, i, e->d_name);
        closedir(d);
    }
    add_all(c, &f);
    for (size_t i = 0; i < f.n; i++)
        free(f.list[i].session);
    free(f.list);
}
