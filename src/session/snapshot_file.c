/* A snapshot in one file: mtplx_snapshot_save() and mtplx_snapshot_load().
 *
 * The file is the records that the cold tier would write, one after the other: the snapshot's, then
 * those of its whole blocks in order (docs/SSD-FORMAT.md). Nothing follows the last one. */
#include "session/cold_record.h"
#include "session/cold_state.h"
#include "session/state_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FILE_SCOPE "" /* files have no owner but who can read them */

static mtplx_status io_error(mtplx_error *err, const char *path, const char *what)
{
    return mx_error(err, MTPLX_ERR_IO, "%s: cannot %s: %s", path, what, strerror(errno));
}

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* What the records of a file have in common, and where the walk through them is. */
struct walk {
    int fd;
    uint64_t at, size;
    struct mx_cold_identity identity;
    struct mx_cold_key scope, key, parent;
};

static void start_walk(struct walk *w, const mtplx_model *m)
{
    mx_cold_identify(m, &w->identity);
    w->scope = w->key = mx_cold_chain_start(FILE_SCOPE);
}

/* The key of the snapshot object, and the last block's before it. */
static struct mx_cold_key snapshot_key(const struct walk *w, const int32_t *tokens, size_t n,
                                       struct mx_cold_key *parent)
{
    struct mx_cold_key key = w->key;
    size_t done = 0;
    *parent = (struct mx_cold_key){0};
    for (; done + MX_KV_BLOCK <= n; done += MX_KV_BLOCK)
        *parent = key = mx_cold_chain(key, tokens + done, MX_KV_BLOCK);
    return done < n ? mx_cold_chain(key, tokens + done, n - done) : key;
}

/* ---- Saving ------------------------------------------------------------------------------- */

static mtplx_status write_record(struct walk *w, struct mx_record *r,
                                 const struct mx_cold_part *parts, int n_parts, mtplx_error *err)
{
    r->identity = w->identity;
    r->scope = w->scope;
    mtplx_status st = mx_record_write(w->fd, w->at, r, parts, n_parts, err);
    w->at += r->bytes;
    return st;
}

static mtplx_status write_block(struct walk *w, const struct mx_state_view *v, size_t i,
                                const int32_t *tokens, mtplx_error *err)
{
    const struct mx_cold_part parts[] = {{v->kv[i], v->shape.kv_bytes},
                                         {v->mtp[i], v->shape.mtp_bytes}};
    struct mx_record r = {.kind = MX_COLD_BLOCK,
                          .parent = w->parent,
                          .key = mx_cold_chain(w->key, tokens, MX_KV_BLOCK),
                          .tokens = tokens,
                          .n_tokens = MX_KV_BLOCK};
    w->parent = w->key = r.key;
    return write_record(w, &r, parts, mx_state_pairs(&v->shape, i) ? 2 : 1, err);
}

static mtplx_status write_all(struct walk *w, const mtplx_snapshot *s,
                              const struct mx_state_view *v, mtplx_error *err)
{
    struct mx_cold_part parts[MX_STATE_PARTS];
    for (int i = 0; i < v->shape.parts; i++)
        parts[i] = (struct mx_cold_part){v->parts[i], v->shape.bytes[i]};
    struct mx_record r = {
        .kind = MX_COLD_SNAPSHOT, .created = now_ms(), .tokens = s->tokens, .n_tokens = s->n};
    r.key = snapshot_key(w, s->tokens, s->n, &r.parent);
    mtplx_status st = write_record(w, &r, parts, v->shape.parts, err);
    for (size_t i = 0; v->shape.kv_bytes && i < v->shape.whole && st == MTPLX_OK; i++)
        st = write_block(w, v, i, s->tokens + i * MX_KV_BLOCK, err);
    return st;
}

/* Through a temporary file beside it. A private one: the file holds a conversation. */
static mtplx_status write_file(struct walk *w, const mtplx_snapshot *s,
                               const struct mx_state_view *v, const char *path, mtplx_error *err)
{
    struct stat there;
    if (lstat(path, &there) == 0 && !S_ISREG(there.st_mode) && !S_ISLNK(there.st_mode))
        return mx_error(err, MTPLX_ERR_IO, "%s: not a regular file, so not replaced", path);
    size_t room = strlen(path) + sizeof ".XXXXXX.tmp";
    char *temp = malloc(room);
    if (!temp)
        return mx_error_nomem(err, path, room);
    snprintf(temp, room, "%s.XXXXXX.tmp", path);
    w->fd = mkostemps(temp, 4, O_CLOEXEC); /* 0600 */
    if (w->fd < 0) {
        io_error(err, path, "create a temporary file beside it");
        free(temp);
        return MTPLX_ERR_IO;
    }
    mtplx_status st = write_all(w, s, v, err);
    if (st != MTPLX_OK)
        mx_error_prefix(err, "%s", path);
    /* A record may leave more behind itself than it needs. */
    if (st == MTPLX_OK && ftruncate(w->fd, (off_t)w->at) != 0)
        st = io_error(err, path, "cut");
    if (st == MTPLX_OK && fsync(w->fd) != 0)
        st = io_error(err, path, "sync");
    if (close(w->fd) != 0 && st == MTPLX_OK)
        st = io_error(err, path, "close");
    if (st == MTPLX_OK && rename(temp, path) != 0)
        st = io_error(err, path, "replace");
    if (st != MTPLX_OK)
        unlink(temp);
    free(temp);
    return st;
}

/* Makes the rename durable where the file system can. */
static void sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *dir = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    int fd = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    free(dir);
    if (fd < 0)
        return;
    (void)fsync(fd);
    close(fd);
}

mtplx_status mtplx_snapshot_save(const mtplx_snapshot *s, const char *path, mtplx_error *err)
{
    struct walk w = {.fd = -1};
    struct mx_state_view v;
    if (!s || !path)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "saving a snapshot needs a snapshot and a path");
    mtplx_status st = mx_state_view_open(&v, s, err);
    if (st != MTPLX_OK)
        return st;
    start_walk(&w, s->model);
    st = write_file(&w, s, &v, path, err);
    mx_state_view_close(&v);
    if (st == MTPLX_OK)
        sync_folder(path);
    return st;
}

/* ---- Loading ------------------------------------------------------------------------------ */

/* The record at the walk's place, which must be of this kind and key. */
static mtplx_status open_record(const struct walk *w, enum mx_cold_kind kind, struct mx_record *r,
                                mtplx_error *err)
{
    if (w->at >= w->size)
        return mx_error(err, MTPLX_ERR_FORMAT, "the file ends before its last block");
    mtplx_status st = mx_record_open(w->fd, w->at, w->size - w->at, r, err);
    if (st != MTPLX_OK)
        return st;
    if (r->kind == kind && memcmp(r->scope.b, w->scope.b, sizeof w->scope.b) == 0)
        return MTPLX_OK;
    mx_record_free(r);
    return mx_error(err, MTPLX_ERR_FORMAT,
                    "the record at byte %llu is not the %s of a snapshot file",
                    (unsigned long long)w->at, kind == MX_COLD_SNAPSHOT ? "start" : "next block");
}

static mtplx_status check_identity(const struct walk *w, const struct mx_record *r,
                                   mtplx_error *err)
{
    const struct mx_cold_identity *a = &w->identity, *b = &r->identity;
    const char *other = NULL;
    if (memcmp(a->model, b->model, sizeof a->model) != 0)
        other = "another model: other weights or config";
    else if (memcmp(a->text, b->text, sizeof a->text) != 0)
        other = "a model with another tokenizer or chat template";
    else if (memcmp(a->policy, b->policy, sizeof a->policy) != 0)
        other = "this model run in another way: KV quantisation, MTP head, adapter, device, "
                "profile or version";
    if (!other)
        return MTPLX_OK;
    return mx_error(err, MTPLX_ERR_ARGUMENT, "the snapshot is of %s; load the model as it was",
                    other);
}

static mtplx_status check_tokens(const mtplx_model *m, const struct mx_record *r, mtplx_error *err)
{
    if (r->n_tokens == 0 || r->n_tokens > (size_t)m->geometry.context)
        return mx_error(err, MTPLX_ERR_FORMAT, "%zu tokens do not fit the context window of %d",
                        r->n_tokens, m->geometry.context);
    for (size_t i = 0; i < r->n_tokens; i++)
        if (r->tokens[i] < 0 || r->tokens[i] >= m->geometry.vocab)
            return mx_error(err, MTPLX_ERR_FORMAT, "token %zu is outside the vocabulary", i);
    return MTPLX_OK;
}

static bool key_is(struct mx_cold_key a, struct mx_cold_key b)
{
    return memcmp(a.b, b.b, sizeof a.b) == 0;
}

/* The parts of an open record, which must be these. */
static mtplx_status read_parts(const struct walk *w, const struct mx_record *r, void *const *to,
                               const size_t *bytes, int n, mtplx_error *err)
{
    struct mx_cold_part parts[MX_STATE_PARTS];
    if (r->n_parts != n)
        return mx_error(err, MTPLX_ERR_FORMAT, "the record at byte %llu has %d parts, not %d",
                        (unsigned long long)w->at, r->n_parts, n);
    for (int i = 0; i < n; i++) {
        if (r->parts[i].raw != bytes[i])
            return mx_error(err, MTPLX_ERR_FORMAT,
                            "part %d of the record at byte %llu is of another size than a state's",
                            i, (unsigned long long)w->at);
        parts[i] = (struct mx_cold_part){to[i], bytes[i]};
    }
    return mx_record_read(w->fd, w->at, r, parts, 0, n, err);
}

static mtplx_status read_block(struct walk *w, struct mx_state_builder *b, size_t i,
                               mtplx_error *err)
{
    const int32_t *tokens = b->s->tokens + i * MX_KV_BLOCK;
    const size_t bytes[2] = {b->shape.kv_bytes, b->shape.mtp_bytes};
    struct mx_record r = {0};
    void *to[2];
    mtplx_status st = open_record(w, MX_COLD_BLOCK, &r, err);
    if (st != MTPLX_OK)
        return st;
    w->key = mx_cold_chain(w->key, tokens, MX_KV_BLOCK);
    if (!key_is(r.key, w->key) || r.n_tokens != MX_KV_BLOCK ||
        memcmp(r.tokens, tokens, MX_KV_BLOCK * sizeof *tokens) != 0 ||
        memcmp(&r.identity, &w->identity, sizeof r.identity) != 0)
        st = mx_error(err, MTPLX_ERR_FORMAT,
                      "block %zu is missing; the one at byte %llu does not belong here", i,
                      (unsigned long long)w->at);
    if (st == MTPLX_OK)
        st = mx_state_block_to(b, i, to, err);
    if (st == MTPLX_OK)
        st = read_parts(w, &r, to, bytes, to[1] ? 2 : 1, err);
    w->at += r.bytes;
    mx_record_free(&r);
    return st;
}

/* From an open snapshot record. */
static mtplx_status read_state(struct walk *w, const struct mx_record *r, mtplx_model *m,
                               struct mx_state_builder *b, mtplx_error *err)
{
    struct mx_cold_key parent;
    void *to[MX_STATE_PARTS];
    mtplx_status st = check_identity(w, r, err);
    if (st == MTPLX_OK)
        st = check_tokens(m, r, err);
    if (st == MTPLX_OK && !key_is(r->key, snapshot_key(w, r->tokens, r->n_tokens, &parent)))
        st = mx_error(err, MTPLX_ERR_FORMAT, "the snapshot's key is not that of its tokens");
    /* What fits no state, or cannot be there, is refused before there is memory for it. */
    struct mx_state_shape sh = {0};
    if (st == MTPLX_OK) {
        sh = mx_state_shape_of(m, r->n_tokens);
        st = mx_state_begin(b, m, r->tokens, r->n_tokens, NULL, err);
    }
    if (st == MTPLX_OK)
        st = mx_state_parts_to(b, to, err);
    if (st == MTPLX_OK)
        st = read_parts(w, r, to, sh.bytes, sh.parts, err);
    if (st == MTPLX_OK)
        st = mx_state_check(b, err);
    w->at += r->bytes;
    for (size_t i = 0; sh.kv_bytes && i < sh.whole && st == MTPLX_OK; i++)
        st = read_block(w, b, i, err);
    if (st == MTPLX_OK && w->at != w->size)
        st = mx_error(err, MTPLX_ERR_FORMAT, "%llu bytes follow the last block",
                      (unsigned long long)(w->size - w->at));
    return st;
}

static mtplx_snapshot *read_file(struct walk *w, mtplx_model *m, mtplx_error *err)
{
    struct mx_state_builder b = {0};
    struct mx_record r = {0};
    mtplx_status st = open_record(w, MX_COLD_SNAPSHOT, &r, err);
    if (st != MTPLX_OK)
        return NULL;
    st = read_state(w, &r, m, &b, err);
    mx_record_free(&r);
    if (st == MTPLX_OK)
        return mx_state_end(&b, err);
    mx_state_abandon(&b);
    return NULL;
}

/* A pipe or device would block or never end. */
static int open_regular(const char *path, uint64_t *size, mtplx_error *err)
{
    struct stat sb;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        io_error(err, path, "open");
        return -1;
    }
    if (fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode)) {
        mx_error(err, MTPLX_ERR_IO, "%s: not a regular file", path);
        close(fd);
        return -1;
    }
    *size = (uint64_t)sb.st_size;
    return fd;
}

mtplx_snapshot *mtplx_snapshot_load(mtplx_model *m, const char *path, mtplx_error *err)
{
    struct walk w = {0};
    mtplx_error local = {0};
    if (!m || !path) {
        mx_error(err, MTPLX_ERR_ARGUMENT, "loading a snapshot needs a model and a path");
        return NULL;
    }
    w.fd = open_regular(path, &w.size, err);
    if (w.fd < 0)
        return NULL;
    start_walk(&w, m);
    mtplx_snapshot *s = read_file(&w, m, &local);
    close(w.fd);
    if (!s && err) {
        *err = local;
        mx_error_prefix(err, "%s", path);
    }
    return s;
}
