/* Inside of the cold tier: what its files share. cold.h has the invariants.
 *
 *   cold.c           opening, closing, look-ups, put, drop, statistics
 *   cold_dir.c       the directory: permissions, lock, object files, free space
 *   cold_index.c     all objects in memory, and who needs whom
 *   cold_manifest.c  the same in SQLite
 *   cold_reconcile.c files against rows, at open
 *   cold_evict.c     what has to go
 *   cold_writer.c    the thread that writes
 *   cold_read.c      reading and checking
 *   cold_ahead.c     reading before it is asked for
 *   cold_record.c    bytes of one object
 *
 * Objects form a forest: a block hangs below the block before it, a snapshot below the last block
 * that it needs. Whatever is in the index has all its ancestors there, so a snapshot in the index
 * is complete; a block without anything below it is needed by nobody.
 *
 * Locks: `mu` guards the index, the queue and the counters, and is never held during I/O. The
 * manifest is used by the thread that opens and closes, and by the writer in between. */
#ifndef MX_SESSION_COLD_INT_H
#define MX_SESSION_COLD_INT_H

#include "session/cold.h"
#include "session/cold_record.h"

#include <pthread.h>

struct sqlite3;
struct mx_cold_ahead;

/* ---- Directory ---------------------------------------------------------------------------- */

struct mx_cold_dir {
    char path[256]; /* resolved: no symbolic link in it */
    int fd, objects, lock;
    bool locked;   /* by us: we may write */
    bool readonly; /* the file system is */
    long other;    /* process that has the lock, 0: unknown */
};

#define MX_COLD_NAME 56 /* "ab/" + 32 hex + "." + 16 hex + ".b" + "~" of temporary ones, NUL */

/* Makes or opens the directory and tries the lock; d->locked says whether it is ours. */
mtplx_status mx_cold_dir_open(struct mx_cold_dir *d, const char *path, mtplx_error *err);
void mx_cold_dir_close(struct mx_cold_dir *d);
/* The directory used when none is named, into out[256]. */
mtplx_status mx_cold_dir_default(char *out, size_t cap, mtplx_error *err);
/* Whether an open directory looks like one of the cold tier's. */
bool mx_cold_dir_is_cache(int fd);
/* An object's file below objects/. */
void mx_cold_name(char *out, enum mx_cold_kind kind, struct mx_cold_key key,
                  const struct mx_cold_identity *id);
/* Whether `name` (without its folder) is one that mx_cold_name() makes. */
bool mx_cold_name_parse(const char *name, enum mx_cold_kind *kind, struct mx_cold_key *key,
                        uint64_t *identity);
uint64_t mx_cold_identity_tag(const struct mx_cold_identity *id);
/* -1 with errno. The temporary file stands in the folder of its object. */
int mx_cold_dir_create(struct mx_cold_dir *d, const char *name, char *temp);
int mx_cold_dir_open_object(struct mx_cold_dir *d, const char *name);
/* Syncs the folder of an object. */
bool mx_cold_dir_sync(struct mx_cold_dir *d, const char *name);
bool mx_cold_dir_space(struct mx_cold_dir *d, uint64_t *free_bytes, uint64_t *all_bytes);

/* ---- Index -------------------------------------------------------------------------------- */

enum mx_cold_entry_state { MX_COLD_ENTRY_QUEUED = 0, MX_COLD_ENTRY_LIVE };

struct mx_cold_entry {
    struct mx_cold_key key;
    uint8_t kind, point;
    uint16_t identity; /* index; 0: ours */
    enum mx_cold_entry_state state;
    bool mark;    /* of one pass: its file was seen; spared by eviction */
    bool dropped; /* QUEUED only: remove when its batch is done */
    int64_t row;  /* in the manifest */
    uint64_t bytes /* of its file */, used, created /* ms since 1970 */;
    uint64_t n_tokens;
    struct mx_cold_entry *next; /* of the hash bucket */
    struct mx_cold_entry *parent, *child, *left,
        *right;    /* left, right: other children of the parent */
    char *session; /* SNAPSHOT */
    struct mx_cold_key scope;
};

#define MX_COLD_ENTRIES 262144 /* most objects; more are evicted like bytes */
#define MX_COLD_IDENTITIES 1024

struct mx_cold_index {
    struct mx_cold_entry **buckets;
    size_t n_buckets, n;
    uint64_t snapshots, blocks, bytes; /* LIVE ones */
    struct mx_cold_identity *identities;
    int n_identities;
};

mtplx_status mx_cold_index_init(struct mx_cold_index *x, const struct mx_cold_identity *ours,
                                mtplx_error *err);
void mx_cold_index_free(struct mx_cold_index *x);
/* Index of an identity, added when it is new; -1: no memory or too many. */
int mx_cold_index_identity(struct mx_cold_index *x, const struct mx_cold_identity *id);
struct mx_cold_entry *mx_cold_index_find(const struct mx_cold_index *x, int kind,
                                         struct mx_cold_key key, int identity);
/* Entries among which all with that key are, linked by `next`. */
struct mx_cold_entry *mx_cold_index_chain(const struct mx_cold_index *x, struct mx_cold_key key);
/* Adds below `parent` (NULL: a root); not there yet. NULL: no memory. */
struct mx_cold_entry *mx_cold_index_add(struct mx_cold_index *x, int kind, struct mx_cold_key key,
                                        int identity, struct mx_cold_entry *parent);
void mx_cold_index_live(struct mx_cold_index *x, struct mx_cold_entry *e, uint64_t bytes);
/* Removes an entry without children and frees it. */
void mx_cold_index_remove(struct mx_cold_index *x, struct mx_cold_entry *e);
/* Takes an entry from its parent; it stays in the table. */
void mx_cold_index_detach(struct mx_cold_entry *e);
/* Calls fn for every entry; fn must not add or remove. */
void mx_cold_index_each(struct mx_cold_index *x, void (*fn)(struct mx_cold_entry *e, void *arg),
                        void *arg);
/* What a file takes: whole pages. */
static inline uint64_t mx_cold_disk_bytes(uint64_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}
bool mx_cold_key_zero(struct mx_cold_key k);
bool mx_cold_key_equal(struct mx_cold_key a, struct mx_cold_key b);

/* ---- Store -------------------------------------------------------------------------------- */

/* Rows and files to remove, in this order. */
struct mx_cold_garbage {
    int64_t row;
    char name[MX_COLD_NAME];
};

struct mx_cold_touched {
    int64_t row;
    uint64_t used;
};
#define MX_COLD_TOUCHES 4096
#define MX_COLD_RETRY_MS 60000 /* of not writing after a failure */

struct mx_cold_batch { /* one mx_cold_put() */
    struct mx_cold_batch *next;
    struct mx_cold_write *objects; /* only those to be written */
    struct mx_cold_entry **entries;
    size_t n;
    uint64_t bytes; /* at most */
    void (*release)(void *arg);
    void *arg;
    char *scope, *session;
};

enum mx_cold_op {
    MX_COLD_OP_WRITE,
    MX_COLD_OP_SYNC,
    MX_COLD_OP_RENAME,
    MX_COLD_OP_COMMIT,
    MX_COLD_OP_READ
};
/* Replaced in tests. */
struct mx_cold_hooks {
    int (*fault)(void *arg, enum mx_cold_op op); /* an errno to fail with; 0 */
    bool (*space)(void *arg, uint64_t *free_bytes, uint64_t *all_bytes);
    uint64_t (*now_ms)(void *arg); /* since 1970 */
    void *arg;
};

enum mx_cold_cause {
    MX_COLD_CAUSE_NONE = 0,
    MX_COLD_CAUSE_FULL,   /* no space left, or a quota */
    MX_COLD_CAUSE_RO,     /* read-only */
    MX_COLD_CAUSE_IO,     /* anything else */
    MX_COLD_CAUSE_FLOOR,  /* too little free */
    MX_COLD_CAUSE_SIZE,   /* of one snapshot and its blocks, against max_bytes */
    MX_COLD_CAUSE_BUDGET, /* written too much in an hour */
    MX_COLD_CAUSE_QUEUE,
    MX_COLD_CAUSE_COUNT
};

struct mx_cold {
    struct mx_cold_options o;
    struct mx_cold_hooks hooks;
    struct mx_cold_dir dir;
    struct sqlite3 *db;
    int db_error;                /* an errno: why the last change failed */
    struct mx_cold_ahead *ahead; /* made when first asked for, under mu */
    bool admin;                  /* no writer thread: cold_admin.h */
    bool has_writer, reconciled;
    int cursor; /* of reconciling */
    pthread_t writer;
    pthread_mutex_t mu;
    pthread_cond_t wake, idle; /* CLOCK_MONOTONIC */

    /* Guarded by mu. */
    struct mx_cold_index index;
    struct mx_cold_batch *head, *tail;
    bool busy, stop;
    uint64_t deadline_ns; /* of stopping */
    struct mx_cold_garbage *garbage;
    size_t n_garbage, garbage_cap;
    bool scrub;        /* what was dropped is to be unreadable in the manifest */
    uint64_t sweep_ns; /* not before: removing rows failed */
    int64_t next_row;
    uint64_t last_used;
    struct mx_cold_touched *touches; /* not in the manifest yet */
    size_t n_touches;
    enum mx_cold_cause paused;
    uint64_t paused_ms; /* when; no writing for a minute */
    bool warned[MX_COLD_CAUSE_COUNT];
    uint64_t warned_ms[MX_COLD_CAUSE_COUNT];
    double budget;      /* bytes that may be written now */
    uint64_t budget_ms; /* when that was so */
    uint64_t effective_max;
    struct mx_cold_stats stats; /* counters only */
};

struct mx_cold *mx_cold_open_with(const struct mx_cold_options *o,
                                  const struct mx_cold_hooks *hooks, bool admin, mtplx_error *err);
void mx_cold_log(struct mx_cold *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
uint64_t mx_cold_now_ms(const struct mx_cold *c);
/* A later time than any it gave before; call with mu. */
uint64_t mx_cold_stamp(struct mx_cold *c);
int mx_cold_fault(const struct mx_cold *c, enum mx_cold_op op);
/* Removes an entry and all that hang below it; LIVE ones become garbage, QUEUED ones are marked and
 * go with their batch. How many LIVE snapshots went. Call with mu. */
int mx_cold_cut(struct mx_cold *c, struct mx_cold_entry *top);
/* An object that failed its checks goes, and what needs it: one line. False: it was not there any
 * more. Without mu. */
bool mx_cold_drop_bad(struct mx_cold *c, enum mx_cold_kind kind, struct mx_cold_key key,
                      int identity, const char *why);
/* Removes all blocks that no snapshot needs. Call with mu, or alone. */
void mx_cold_prune_all(struct mx_cold *c);
/* Removes blocks from e upward that nothing hangs below. Call with mu. */
void mx_cold_prune(struct mx_cold *c, struct mx_cold_entry *e);
void mx_cold_entry_name(const struct mx_cold *c, const struct mx_cold_entry *e, char *out);

/* ---- Manifest ----------------------------------------------------------------------------- */

#define MX_COLD_MANIFEST_VERSION 1

/* Opens the manifest and loads it into the index. FORMAT: of a newer version. *rebuild: there was
 * none, or one that was set aside: rows are to be made from the files. */
mtplx_status mx_cold_manifest_open(struct mx_cold *c, bool *rebuild, mtplx_error *err);
void mx_cold_manifest_close(struct mx_cold *c);
bool mx_cold_manifest_begin(struct mx_cold *c);
bool mx_cold_manifest_end(struct mx_cold *c, bool commit);
bool mx_cold_manifest_insert(struct mx_cold *c, const struct mx_cold_entry *e,
                             const struct mx_cold_identity *id);
bool mx_cold_manifest_delete(struct mx_cold *c, int64_t row);
bool mx_cold_manifest_used(struct mx_cold *c, int64_t row, uint64_t used);
/* Why the last change failed: an errno. */
int mx_cold_manifest_errno(struct mx_cold *c);
/* Empties the log, which has copies of deleted rows; `all`: nothing is left in the manifest, and so
 * it is made anew, and the one that was set aside goes. False: a reader of another process is in
 * the way, or the disk. */
bool mx_cold_manifest_scrub(struct mx_cold *c, bool all);
/* Folds the log into the database and gives back its free pages. */
void mx_cold_manifest_shrink(struct mx_cold *c);
bool mx_cold_manifest_budget(struct mx_cold *c, double level, uint64_t ms);

/* ---- Writer's work ------------------------------------------------------------------------ */

void *mx_cold_writer(void *cold);
/* Removes the rows, then the files, of all garbage, and empties the manifest's log when they were
 * dropped on demand. Writer or opener only. Rows that cannot be removed are garbage again, for
 * later. */
void mx_cold_sweep(struct mx_cold *c);
/* The most that the tier may take now: the option, or a quarter of what is free and its own. */
uint64_t mx_cold_limit(struct mx_cold *c);
/* Evicts until `more` bytes fit; false: they never do, even without all else but what `e` (NULL:
 * nothing) hangs below; then nothing goes. Without mu. */
bool mx_cold_make_room(struct mx_cold *c, uint64_t more, const struct mx_cold_entry *e);
/* Makes entries and rows from the headers of the files; what it does not get to until `deadline_ns`
 * is lost. */
void mx_cold_rebuild(struct mx_cold *c, uint64_t deadline_ns);
/* Compares files with the index until `deadline_ns`; true: done. `cursor` is where to go on, 0 at
 * first. Opener, or writer before it writes. */
bool mx_cold_reconcile(struct mx_cold *c, int *cursor, uint64_t deadline_ns);
/* Budget as of now. Call with mu. */
double mx_cold_budget(struct mx_cold *c);
/* Releases its memory, frees it. Without mu. */
void mx_cold_free_batch(struct mx_cold_batch *b);
/* One line for each cause until writing works again, and at most one an hour. Without mu. */
void mx_cold_warn(struct mx_cold *c, enum mx_cold_cause cause, const char *detail);
/* With mu. */
void mx_cold_touch_entry(struct mx_cold *c, struct mx_cold_entry *e);

#endif
