/* Reading objects. Nothing in a file is believed: whose it is, what it is of, sizes and checksums
 * are compared with what was asked for, and what fails goes, with all that needs it. */
#include "session/cold_ahead.h"
#include "session/cold_int.h"

#include "base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/sysmacros.h> /* major, minor */
#endif

/* Looks an object up; false: it is not there. */
static bool look_up(struct mx_cold *c, enum mx_cold_kind kind, struct mx_cold_key key)
{
    pthread_mutex_lock(&c->mu);
    const struct mx_cold_entry *e = mx_cold_index_find(&c->index, kind, key, 0);
    bool there = e && e->state == MX_COLD_ENTRY_LIVE;
    pthread_mutex_unlock(&c->mu);
    return there;
}

static mtplx_status check_header(const struct mx_cold *c, const struct mx_record *r,
                                 enum mx_cold_kind kind, struct mx_cold_key key,
                                 const int32_t *tokens, size_t n_tokens, mtplx_error *err)
{
    if (r->kind != kind || !mx_cold_key_equal(r->key, key))
        return mx_error(err, MTPLX_ERR_FORMAT, "it is another object");
    if (memcmp(&r->identity, &c->o.identity, sizeof r->identity) != 0)
        return mx_error(err, MTPLX_ERR_FORMAT, "it is of another model or setting");
    if (r->n_tokens != n_tokens || memcmp(r->tokens, tokens, n_tokens * sizeof *tokens) != 0)
        return mx_error(err, MTPLX_ERR_FORMAT, "it is of other tokens");
    return MTPLX_OK;
}

struct wish { /* what mx_cold_read() was asked for */
    enum mx_cold_kind kind;
    struct mx_cold_key key;
    const int32_t *tokens;
    size_t n_tokens;
    struct mx_cold_part *parts;
    int n_parts;
};

static mtplx_status check_record(const struct mx_cold *c, const struct mx_record *r,
                                 const struct wish *w, uint64_t bytes, mtplx_error *err)
{
    mtplx_status s = check_header(c, r, w->kind, w->key, w->tokens, w->n_tokens, err);
    if (!s && (r->bytes != bytes || r->n_parts != w->n_parts))
        s = mx_error(err, MTPLX_ERR_FORMAT, "it has another size than it says");
    return s;
}

static mtplx_status read_memory(const struct mx_cold *c, const uint8_t *data, size_t bytes,
                                const struct wish *w, mtplx_error *err)
{
    struct mx_record r;
    mtplx_status s = mx_record_parse(data, bytes, bytes, &r, err);
    if (s)
        return s;
    s = check_record(c, &r, w, bytes, err);
    if (!s)
        s = mx_record_unpack(data, bytes, &r, w->parts, 0, w->n_parts, err);
    mx_record_free(&r);
    return s;
}

static mtplx_status read_file(const struct mx_cold *c, int fd, const struct wish *w,
                              mtplx_error *err)
{
    struct stat st;
    struct mx_record r;
    if (fstat(fd, &st) != 0)
        return mx_error(err, MTPLX_ERR_IO, "reading failed: %s", strerror(errno));
    mtplx_status s = mx_record_open(fd, 0, (uint64_t)st.st_size, &r, err);
    if (s)
        return s;
    s = check_record(c, &r, w, (uint64_t)st.st_size, err);
    if (!s)
        s = mx_record_read(fd, 0, &r, w->parts, 0, w->n_parts, err);
    mx_record_free(&r);
    return s;
}

/* A file that is gone is as bad as a damaged one; what the system cannot open now it may later. */
static mtplx_status open_error(int error, mtplx_error *err)
{
    bool gone = error == ENOENT || error == ELOOP || error == ENOTDIR;
    return mx_error(err, gone ? MTPLX_ERR_FORMAT : MTPLX_ERR_IO, "opening failed: %s",
                    strerror(error));
}

static struct mx_cold_ahead *ahead_of(struct mx_cold *c, bool make)
{
    pthread_mutex_lock(&c->mu);
    if (!c->ahead && make)
        c->ahead = mx_cold_ahead_new(&c->dir);
    struct mx_cold_ahead *a = c->ahead;
    pthread_mutex_unlock(&c->mu);
    return a;
}

static mtplx_status read_object(struct mx_cold *c, const char *name, const struct wish *w,
                                mtplx_error *err)
{
    int error = mx_cold_fault(c, MX_COLD_OP_READ);
    if (error)
        return mx_error(err, MTPLX_ERR_IO, "reading failed: %s", strerror(error));
    struct mx_cold_ahead *a = ahead_of(c, false);
    size_t bytes = 0;
    const uint8_t *data = a ? mx_cold_ahead_take(a, name, &bytes) : NULL;
    if (data) {
        mtplx_status s = read_memory(c, data, bytes, w, err);
        mx_cold_ahead_done(a, data);
        return s;
    }
    int fd = mx_cold_dir_open_object(&c->dir, name);
    if (fd < 0)
        return open_error(errno, err);
    mtplx_status s = read_file(c, fd, w, err);
    close(fd);
    return s;
}

bool mx_cold_drop_bad(struct mx_cold *c, enum mx_cold_kind kind, struct mx_cold_key key,
                      int identity, const char *why)
{
    char name[MX_COLD_NAME] = "";
    pthread_mutex_lock(&c->mu);
    struct mx_cold_entry *e = mx_cold_index_find(&c->index, kind, key, identity);
    bool there = e && e->state == MX_COLD_ENTRY_LIVE;
    int snapshots = 0;
    if (there) {
        struct mx_cold_entry *up = e->parent;
        mx_cold_entry_name(c, e, name);
        snapshots = mx_cold_cut(c, e);
        mx_cold_prune(c, up);
        c->stats.dropped_bad++;
    }
    pthread_mutex_unlock(&c->mu);
    if (!there)
        return false;
    if (kind == MX_COLD_BLOCK)
        mx_cold_log(c, "cold tier: dropped %s/objects/%s and the %d snapshot%s that need%s it: %s",
                    c->dir.path, name, snapshots, snapshots == 1 ? "" : "s",
                    snapshots == 1 ? "s" : "", why);
    else
        mx_cold_log(c, "cold tier: dropped %s/objects/%s: %s", c->dir.path, name, why);
    return true;
}

void mx_cold_reject(struct mx_cold *c, enum mx_cold_kind kind, struct mx_cold_key key,
                    const char *why)
{
    mx_cold_drop_bad(c, kind, key, 0, why);
}

static void count(struct mx_cold *c, const struct mx_cold_part *parts, int n_parts, uint64_t began)
{
    uint64_t bytes = 0;
    for (int i = 0; i < n_parts; i++)
        bytes += parts[i].bytes;
    pthread_mutex_lock(&c->mu);
    c->stats.reads++;
    c->stats.read_bytes += bytes;
    c->stats.read_ns += mx_now_ns() - began;
    pthread_mutex_unlock(&c->mu);
}

mtplx_status mx_cold_read(struct mx_cold *c, enum mx_cold_kind kind, struct mx_cold_key key,
                          const int32_t *tokens, size_t n_tokens, struct mx_cold_part *parts,
                          int n_parts, mtplx_error *err)
{
    mtplx_error own = {0};
    char name[MX_COLD_NAME];
    err = err ? err : &own;
    if (!c || c->o.mode != MX_COLD_ON || !look_up(c, kind, key))
        return mx_error(err, MTPLX_ERR_IO, "the cold tier does not have this object");
    uint64_t began = mx_now_ns();
    mx_cold_name(name, kind, key, &c->o.identity);
    struct wish w = {kind, key, tokens, n_tokens, parts, n_parts};
    mtplx_status s = read_object(c, name, &w, err);
    if (s == MTPLX_OK) {
        count(c, parts, n_parts, began);
        return s;
    }
    if (s == MTPLX_ERR_FORMAT || s == MTPLX_ERR_UNSUPPORTED) {
        if (!mx_cold_drop_bad(c, kind, key, 0, err->message))
            return mx_error(err, MTPLX_ERR_IO, "objects/%s was removed meanwhile", name);
        err->status = MTPLX_ERR_FORMAT;
        mx_error_prefix(err, "%s/objects/%s", c->dir.path, name);
        return MTPLX_ERR_FORMAT;
    }
    pthread_mutex_lock(&c->mu);
    c->stats.errors++;
    pthread_mutex_unlock(&c->mu);
    mx_error_prefix(err, "%s/objects/%s", c->dir.path, name);
    return s;
}

/* Kernel read-ahead from which it keeps a disk busy by itself. */
#define FAR_KB 2048

/* The kernel's read-ahead on a device; 0: not known. */
static long read_ahead_kb(dev_t device)
{
    long kb = 0;
#ifdef __linux__
    char path[96];
    for (int part = 0; part < 2 && !kb; part++) { /* a disk, or a partition of one */
        snprintf(path, sizeof path, "/sys/dev/block/%u:%u/%squeue/read_ahead_kb", major(device),
                 minor(device), part ? "../" : "");
        FILE *f = fopen(path, "re");
        char text[32] = "";
        if (f && fgets(text, sizeof text, f))
            kb = strtol(text, NULL, 10);
        if (f)
            fclose(f);
    }
#else
    (void)device;
#endif
    return kb;
}

bool mx_cold_wants_prefetch(const struct mx_cold *c)
{
    struct stat st;
    return c && fstat(c->dir.fd, &st) == 0 && read_ahead_kb(st.st_dev) < FAR_KB;
}

void mx_cold_prefetch(struct mx_cold *c, enum mx_cold_kind kind, struct mx_cold_key key)
{
    char name[MX_COLD_NAME];
    if (!c || c->o.mode != MX_COLD_ON || !look_up(c, kind, key))
        return;
    mx_cold_name(name, kind, key, &c->o.identity);
    struct mx_cold_ahead *a = ahead_of(c, true);
    if (a)
        mx_cold_ahead_ask(a, name);
}
