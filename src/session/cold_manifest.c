/* The manifest: the index of the cold tier as an SQLite database in WAL mode.
 *
 * It holds nothing that the headers of the files do not hold too, except when a snapshot was used
 * last and the write budget; so a damaged one is set aside and made anew from the files. Durability
 * is NORMAL: a power failure may lose the last commits, whose files the next open then removes.
 * Deleted rows are overwritten, and the log is emptied after what was asked to be forgotten: labels
 * of conversations do not stay readable in either. */
#include "session/cold_int.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUSY_MS 2000

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS identities("
    " id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE);"
    "CREATE TABLE IF NOT EXISTS objects("
    " id INTEGER PRIMARY KEY, kind INTEGER NOT NULL, key BLOB NOT NULL,"
    " identity INTEGER NOT NULL REFERENCES identities(id), parent BLOB, bytes INTEGER NOT NULL,"
    " tokens INTEGER NOT NULL, created INTEGER NOT NULL, UNIQUE(key, kind, identity));"
    "CREATE TABLE IF NOT EXISTS snapshots("
    " object INTEGER PRIMARY KEY REFERENCES objects(id), session TEXT NOT NULL,"
    " scope BLOB NOT NULL, point INTEGER NOT NULL, used INTEGER NOT NULL);"
    "CREATE TABLE IF NOT EXISTS budget("
    " one INTEGER PRIMARY KEY CHECK(one = 1), level REAL NOT NULL, at INTEGER NOT NULL);";

/* ---- Statements --------------------------------------------------------------------------- */

/* Keeps the cause of a failure; always false. */
static bool failed(struct mx_cold *c)
{
    int code = c->db ? sqlite3_errcode(c->db) & 0xff : SQLITE_ERROR;
    int cause = c->db ? sqlite3_system_errno(c->db) : 0;
    c->db_error = code == SQLITE_FULL || cause == ENOSPC         ? ENOSPC
                  : code == SQLITE_READONLY                      ? EROFS
                  : code == SQLITE_BUSY || code == SQLITE_LOCKED ? EBUSY
                  : code == SQLITE_NOMEM                         ? ENOMEM
                                                                 : EIO;
    return false;
}

static sqlite3_stmt *prepare(struct mx_cold *c, const char *sql)
{
    sqlite3_stmt *s = NULL;
    if (!c->db || sqlite3_prepare_v2(c->db, sql, -1, &s, NULL) != SQLITE_OK)
        failed(c);
    return s;
}

/* Runs a statement that returns no rows, and frees it. */
static bool run(struct mx_cold *c, sqlite3_stmt *s)
{
    if (!s)
        return false;
    int rc = sqlite3_step(s);
    bool ok = rc == SQLITE_DONE || rc == SQLITE_ROW || failed(c);
    sqlite3_finalize(s);
    return ok;
}

static bool exec(struct mx_cold *c, const char *sql)
{
    return (c->db && sqlite3_exec(c->db, sql, NULL, NULL, NULL) == SQLITE_OK) || failed(c);
}

static int64_t number(struct mx_cold *c, const char *sql, int64_t otherwise)
{
    sqlite3_stmt *s = prepare(c, sql);
    int64_t v = otherwise;
    if (s && sqlite3_step(s) == SQLITE_ROW)
        v = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    return v;
}

bool mx_cold_manifest_begin(struct mx_cold *c)
{
    return exec(c, "BEGIN IMMEDIATE");
}

bool mx_cold_manifest_end(struct mx_cold *c, bool commit)
{
    if (commit && exec(c, "COMMIT"))
        return true;
    int cause = c->db_error;
    exec(c, "ROLLBACK");
    c->db_error = cause;
    return false;
}

/* ---- Changes ------------------------------------------------------------------------------ */

static bool insert_snapshot(struct mx_cold *c, const struct mx_cold_entry *e)
{
    sqlite3_stmt *s = prepare(c, "INSERT INTO snapshots(object, session, scope, point, used)"
                                 " VALUES(?, ?, ?, ?, ?)");
    if (!s)
        return false;
    sqlite3_bind_int64(s, 1, e->row);
    sqlite3_bind_text(s, 2, e->session ? e->session : "", -1, SQLITE_STATIC);
    sqlite3_bind_blob(s, 3, e->scope.b, sizeof e->scope.b, SQLITE_STATIC);
    sqlite3_bind_int(s, 4, e->point);
    sqlite3_bind_int64(s, 5, (int64_t)e->used);
    return run(c, s);
}

bool mx_cold_manifest_insert(struct mx_cold *c, const struct mx_cold_entry *e,
                             const struct mx_cold_identity *id)
{
    sqlite3_stmt *s = prepare(c, "INSERT OR IGNORE INTO identities(hash) VALUES(?)");
    if (!s)
        return false;
    sqlite3_bind_blob(s, 1, id, sizeof *id, SQLITE_STATIC);
    if (!run(c, s))
        return false;
    s = prepare(c, "INSERT INTO objects(id, kind, key, identity, parent, bytes, tokens, created)"
                   " VALUES(?, ?, ?, (SELECT id FROM identities WHERE hash = ?), ?, ?, ?, ?)");
    if (!s)
        return false;
    sqlite3_bind_int64(s, 1, e->row);
    sqlite3_bind_int(s, 2, e->kind);
    sqlite3_bind_blob(s, 3, e->key.b, sizeof e->key.b, SQLITE_STATIC);
    sqlite3_bind_blob(s, 4, id, sizeof *id, SQLITE_STATIC);
    if (e->parent)
        sqlite3_bind_blob(s, 5, e->parent->key.b, sizeof e->key.b, SQLITE_STATIC);
    sqlite3_bind_int64(s, 6, (int64_t)e->bytes);
    sqlite3_bind_int64(s, 7, (int64_t)e->n_tokens);
    sqlite3_bind_int64(s, 8, (int64_t)e->created);
    return run(c, s) && (e->kind != MX_COLD_SNAPSHOT || insert_snapshot(c, e));
}

static bool change_row(struct mx_cold *c, const char *sql, int64_t row, int64_t value)
{
    sqlite3_stmt *s = prepare(c, sql);
    if (!s)
        return false;
    sqlite3_bind_int64(s, 1, row);
    if (sqlite3_bind_parameter_count(s) > 1)
        sqlite3_bind_int64(s, 2, value);
    return run(c, s);
}

bool mx_cold_manifest_delete(struct mx_cold *c, int64_t row)
{
    return change_row(c, "DELETE FROM snapshots WHERE object = ?", row, 0) &&
           change_row(c, "DELETE FROM objects WHERE id = ?", row, 0);
}

bool mx_cold_manifest_used(struct mx_cold *c, int64_t row, uint64_t used)
{
    return change_row(c, "UPDATE snapshots SET used = ?2 WHERE object = ?1", row, (int64_t)used);
}

bool mx_cold_manifest_budget(struct mx_cold *c, double level, uint64_t ms)
{
    sqlite3_stmt *s = prepare(c, "INSERT INTO budget(one, level, at) VALUES(1, ?, ?) ON CONFLICT"
                                 "(one) DO UPDATE SET level = excluded.level, at = excluded.at");
    if (!s)
        return false;
    sqlite3_bind_double(s, 1, level);
    sqlite3_bind_int64(s, 2, (int64_t)ms);
    return run(c, s);
}

int mx_cold_manifest_errno(struct mx_cold *c)
{
    return c->db_error ? c->db_error : EIO;
}

bool mx_cold_manifest_scrub(struct mx_cold *c, bool all)
{
    if (all) { /* an empty manifest is made anew in no time; on a full disk it is not */
        unlinkat(c->dir.fd, "manifest.db.bad", 0);
        exec(c, "VACUUM");
    }
    return number(c, "PRAGMA wal_checkpoint(TRUNCATE)", 1) == 0;
}

void mx_cold_manifest_shrink(struct mx_cold *c)
{
    exec(c, "VACUUM");
    exec(c, "PRAGMA wal_checkpoint(TRUNCATE)");
}

/* ---- Loading ------------------------------------------------------------------------------ */

/* Copies a column of exactly n bytes. */
static bool column_bytes(sqlite3_stmt *s, int column, void *out, size_t n)
{
    const void *b = sqlite3_column_blob(s, column);
    if (!b || (size_t)sqlite3_column_bytes(s, column) != n)
        return false;
    memcpy(out, b, n);
    return true;
}

static void fill(struct mx_cold *c, struct mx_cold_entry *e, sqlite3_stmt *s)
{
    e->row = sqlite3_column_int64(s, 0);
    e->n_tokens = (uint64_t)sqlite3_column_int64(s, 6);
    e->created = (uint64_t)sqlite3_column_int64(s, 7);
    e->used = (uint64_t)sqlite3_column_int64(s, 11);
    if (e->used > c->last_used)
        c->last_used = e->used;
    if (e->kind == MX_COLD_SNAPSHOT) {
        const unsigned char *session = sqlite3_column_text(s, 8);
        e->session = strdup(session ? (const char *)session : "");
        column_bytes(s, 9, e->scope.b, sizeof e->scope.b);
        e->point = (uint8_t)sqlite3_column_int(s, 10);
    }
    mx_cold_index_live(&c->index, e, (uint64_t)sqlite3_column_int64(s, 5));
}

/* False: the row is no good. Parents have smaller ids, so they are here already. */
static bool load_row(struct mx_cold *c, sqlite3_stmt *s)
{
    int kind = sqlite3_column_int(s, 1);
    struct mx_cold_key key;
    struct mx_cold_key up;
    struct mx_cold_identity id;
    bool has_parent = sqlite3_column_type(s, 4) != SQLITE_NULL;
    bool snapshot = sqlite3_column_type(s, 8) != SQLITE_NULL;
    if (!column_bytes(s, 2, key.b, sizeof key.b) || !column_bytes(s, 3, &id, sizeof id) ||
        (has_parent && !column_bytes(s, 4, up.b, sizeof up.b)) ||
        (kind != MX_COLD_BLOCK && kind != MX_COLD_SNAPSHOT) || snapshot != (kind == 2) ||
        sqlite3_column_int64(s, 5) < 0 || sqlite3_column_int64(s, 6) < 0)
        return false;
    /* A manifest of ours has hardly more than the limit. */
    if (c->index.n >= 2 * MX_COLD_ENTRIES)
        return false;
    int identity = mx_cold_index_identity(&c->index, &id);
    if (identity < 0 || mx_cold_index_find(&c->index, kind, key, identity))
        return false;
    struct mx_cold_entry *parent =
        has_parent ? mx_cold_index_find(&c->index, MX_COLD_BLOCK, up, identity) : NULL;
    if (has_parent && !parent)
        return false;
    struct mx_cold_entry *e = mx_cold_index_add(&c->index, kind, key, identity, parent);
    if (e)
        fill(c, e, s);
    return e != NULL;
}

/* Rows that are no good are deleted; their files go when files are compared with the index. */
static bool delete_bad(struct mx_cold *c, const int64_t *rows, size_t n)
{
    if (!n || !c->dir.locked)
        return true;
    bool ok = mx_cold_manifest_begin(c);
    for (size_t i = 0; ok && i < n; i++)
        ok = mx_cold_manifest_delete(c, rows[i]);
    return mx_cold_manifest_end(c, ok);
}

/* Without memory the row stays until the next time. */
static void note(int64_t **rows, size_t *n, int64_t row)
{
    int64_t *more = *n & (*n - 1) ? *rows : realloc(*rows, (*n ? *n * 2 : 1) * sizeof *more);
    if (!more)
        return;
    *rows = more;
    more[(*n)++] = row;
}

static bool load(struct mx_cold *c)
{
    sqlite3_stmt *s = prepare(
        c, "SELECT o.id, o.kind, o.key, i.hash, o.parent, o.bytes, o.tokens, o.created, s.session,"
           " s.scope, s.point, s.used FROM objects o LEFT JOIN identities i ON i.id = o.identity"
           " LEFT JOIN snapshots s ON s.object = o.id ORDER BY o.id");
    int64_t *bad = NULL;
    size_t n = 0;
    int rc = SQLITE_ERROR;
    while (s && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        int64_t row = sqlite3_column_int64(s, 0);
        if (row >= c->next_row)
            c->next_row = row + 1;
        if (!load_row(c, s))
            note(&bad, &n, row);
    }
    sqlite3_finalize(s);
    bool ok = rc == SQLITE_DONE && delete_bad(c, bad, n);
    free(bad);
    if (!ok)
        return false;
    s = prepare(c, "SELECT level, at FROM budget");
    if (s && sqlite3_step(s) == SQLITE_ROW) {
        double level = sqlite3_column_double(s, 0);
        c->budget = level > 0 ? level : 0;
        c->budget_ms = (uint64_t)sqlite3_column_int64(s, 1);
    }
    sqlite3_finalize(s);
    return true;
}

/* ---- Opening ------------------------------------------------------------------------------ */

static void file_path(const struct mx_cold *c, char *out, size_t cap, const char *suffix)
{
    snprintf(out, cap, "%s/manifest.db%s", c->dir.path, suffix);
}

void mx_cold_manifest_close(struct mx_cold *c)
{
    sqlite3_close(c->db);
    c->db = NULL;
}

/* A file system that cannot be written has no place for the WAL's index: what the WAL holds is not
 * seen then. The path goes into a URI with everything but plain characters escaped. */
static bool open_immutable(struct mx_cold *c)
{
    char path[300];
    char uri[1024] = "file:";
    size_t n = strlen(uri);
    file_path(c, path, sizeof path, "");
    for (const char *p = path; *p; p++)
        n += (size_t)snprintf(uri + n, sizeof uri - n, "%%%02x", (unsigned char)*p);
    snprintf(uri + n, sizeof uri - n, "?immutable=1");
    return sqlite3_open_v2(uri, &c->db, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, NULL) == SQLITE_OK;
}

static bool open_file(struct mx_cold *c)
{
    char path[300];
    if (c->dir.readonly)
        return open_immutable(c);
    if (c->dir.locked) { /* SQLite would make it readable for all */
        int fd = openat(c->dir.fd, "manifest.db", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0)
            return false;
        bool ours = fchmod(fd, 0600) == 0;
        close(fd);
        if (!ours)
            return false;
    }
    file_path(c, path, sizeof path, "");
    int flags = c->dir.locked ? SQLITE_OPEN_READWRITE : SQLITE_OPEN_READONLY;
    if (sqlite3_open_v2(path, &c->db, flags | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_NOFOLLOW, NULL) !=
        SQLITE_OK)
        return false;
    sqlite3_busy_timeout(c->db, BUSY_MS);
    return true;
}

/* On a full disk there is no room for the WAL's index either. Alone with the manifest SQLite keeps
 * it in memory, so that what is there can be read, and removed to make room. */
static bool open_alone(struct mx_cold *c)
{
    sqlite3_close(c->db);
    c->db = NULL;
    return c->dir.locked && open_file(c) && exec(c, "PRAGMA locking_mode = EXCLUSIVE");
}

/* The manifest may be anything: it must be SQLite's, whole and of a known version. */
enum found { FOUND_NONE, FOUND_OK, FOUND_NEWER, FOUND_OLDER, FOUND_BAD };

static enum found look(struct mx_cold *c, int64_t *version)
{
    if (!open_file(c))
        return FOUND_BAD;
    *version = number(c, "PRAGMA user_version", -1);
    if (*version < 0 && sqlite3_system_errno(c->db) == ENOSPC && open_alone(c))
        *version = number(c, "PRAGMA user_version", -1);
    int64_t tables = number(c, "SELECT count(*) FROM sqlite_master", -1);
    if (*version < 0 || tables < 0)
        return FOUND_BAD;
    if (*version > MX_COLD_MANIFEST_VERSION)
        return FOUND_NEWER;
    if (!tables)
        return FOUND_NONE;
    if (*version < MX_COLD_MANIFEST_VERSION)
        return FOUND_OLDER;
    sqlite3_stmt *s = prepare(c, "PRAGMA quick_check(1)");
    const char *text =
        s && sqlite3_step(s) == SQLITE_ROW ? (const char *)sqlite3_column_text(s, 0) : NULL;
    bool ok = text && strcmp(text, "ok") == 0;
    sqlite3_finalize(s);
    return ok ? FOUND_OK : FOUND_BAD;
}

static void set_aside(struct mx_cold *c)
{
    mx_cold_manifest_close(c);
    renameat(c->dir.fd, "manifest.db", c->dir.fd, "manifest.db.bad");
    unlinkat(c->dir.fd, "manifest.db-wal", 0);
    unlinkat(c->dir.fd, "manifest.db-shm", 0);
}

static bool set_modes(struct mx_cold *c)
{
    return exec(c, "PRAGMA journal_mode = WAL") && exec(c, "PRAGMA synchronous = NORMAL") &&
           exec(c, "PRAGMA secure_delete = ON");
}

static bool create(struct mx_cold *c)
{
    char version[48];
    snprintf(version, sizeof version, "PRAGMA user_version = %d", MX_COLD_MANIFEST_VERSION);
    return set_modes(c) && mx_cold_manifest_begin(c) &&
           mx_cold_manifest_end(c, exec(c, schema) && exec(c, version));
}

static mtplx_status no_manifest(struct mx_cold *c, mtplx_error *err)
{
    int cause = c->db ? sqlite3_system_errno(c->db) : errno;
    mx_error(err, MTPLX_ERR_IO, "cannot open %s/manifest.db: %s", c->dir.path,
             cause ? strerror(cause) : sqlite3_errmsg(c->db));
    mx_cold_manifest_close(c);
    return MTPLX_ERR_IO;
}

/* Forgets what a failed load left. */
static mtplx_status start_over(struct mx_cold *c, mtplx_error *err)
{
    mx_cold_index_free(&c->index);
    c->next_row = 1;
    c->last_used = 0;
    return mx_cold_index_init(&c->index, &c->o.identity, err);
}

mtplx_status mx_cold_manifest_open(struct mx_cold *c, bool *rebuild, mtplx_error *err)
{
    int64_t version = 0;
    enum found found = look(c, &version);
    *rebuild = found != FOUND_OK;
    if (found == FOUND_NEWER) {
        mx_cold_manifest_close(c);
        return mx_error(err, MTPLX_ERR_FORMAT,
                        "%s was written by a newer version (format %lld, this build knows %d): "
                        "name another directory with --ssd-session-cache-dir",
                        c->dir.path, (long long)version, MX_COLD_MANIFEST_VERSION);
    }
    if (!c->dir.locked) { /* somebody else's, or read-only: as far as it can be read */
        if ((found == FOUND_OK && load(c)) || found == FOUND_NONE)
            return MTPLX_OK;
        return no_manifest(c, err);
    }
    if (found == FOUND_OK && set_modes(c) && load(c))
        return MTPLX_OK;
    if (found != FOUND_NONE) {
        int code = c->db ? sqlite3_errcode(c->db) : SQLITE_CANTOPEN;
        bool later = code == SQLITE_BUSY || code == SQLITE_FULL || code == SQLITE_NOMEM ||
                     (code & 0xff) == SQLITE_IOERR;
        if (later)
            return no_manifest(c, err);
        mx_cold_log(c, "cold tier: the manifest in %s is %s: set aside, made anew from the files",
                    c->dir.path, found == FOUND_OLDER ? "of an older version" : "damaged");
        set_aside(c);
        if (start_over(c, err))
            return MTPLX_ERR_MEMORY;
        if (!open_file(c))
            return no_manifest(c, err);
    }
    *rebuild = true;
    return create(c) ? MTPLX_OK : no_manifest(c, err);
}
