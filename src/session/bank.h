/* Session bank: what the model has read before, so that no token is prefilled twice.
 *
 * The bank is a set of snapshots, indexed by a tree over blocks of MX_KV_BLOCK tokens, one for each
 * scope (index.h). Looking up a prompt walks its blocks from the front, comparing tokens: the walk
 * ends where nothing known goes on like it, and the longest snapshot along the way whose tokens the
 * prompt starts with is the one to restore. Chained hashes name prefixes only where their tokens
 * are not in RAM: on disk, and in the memory of what was dropped.
 *
 * Invariants
 *   K1  What is restored has exactly the prompt's first tokens, so that the continuation has the
 *       tokens of a cold run (row invariance; snapshots are bit for bit).
 *   K2  Only requests of the same scope (who may know of each other's prompts: an API key) share
 *       prefixes: whether a prompt was read before can be told from the time it takes.
 *   K3  bytes == own bytes of all snapshots + bytes of the distinct KV blocks they hold, those
 *       included that were dropped and wait for the disk, and stays within the budget after every
 *       call; what is pinned or in use is dropped last.
 *   K4  A snapshot that is dropped never takes a restore point away from a longer one: snapshots
 *       are self-contained. One is superseded only by others that leave no larger gap between
 *       restore points than thinning allows (thin.h).
 *
 * Threads: every call is safe from any thread. Snapshots are freed outside the bank's lock. */
#ifndef MX_SESSION_BANK_H
#define MX_SESSION_BANK_H

#include "runtime/snapshot.h"
#include "session/miss.h"

struct mx_bank;
struct mx_cold; /* the SSD tier: cold.h */

struct mx_bank_options {
    mtplx_model *model;      /* outlives the bank */
    uint64_t budget;         /* bytes of all; required */
    uint64_t session_cap;    /* bytes of one session, a block counting for the session that
                                brought it; its newest snapshot stays anyhow. 0: two thirds of the
                                budget */
    uint64_t ttl_ns;         /* a snapshot not used for so long is dropped; 0: an hour;
                                UINT64_MAX: never */
    uint64_t pin_ns;         /* one used within so long is dropped after all others; 0: 600 s */
    size_t spacing;          /* tokens between restore points near the end of a prompt; 0: 256, or
                                more where the recurrent state is large (plan.c) */
    int max_points;          /* restore points that thinning leaves of one conversation; 0: 12 */
    struct mx_cold *cold;    /* NULL: RAM only; outlives the bank */
    uint64_t (*clock)(void); /* NULL: mx_now_ns() */
};

/* What a snapshot is to its conversation: some are worth more. */
enum mx_point {
    MX_POINT_CHUNK = 0, /* somewhere inside a prompt: thinned first */
    MX_POINT_BORDER,    /* before a message */
    MX_POINT_SYSTEM,    /* before the first message of the user: shared by conversations */
    MX_POINT_PROMPT,    /* before the last token of a prompt */
    MX_POINT_ANSWER,    /* the end of an answer */
};

struct mx_bank *mx_bank_new(const struct mx_bank_options *o, mtplx_error *err);
/* Writes to the cold tier what is due there, as long as that takes at most a few seconds. NULL is
 * allowed. */
void mx_bank_free(struct mx_bank *b);

struct mx_bank_hit {
    mtplx_snapshot *snapshot; /* the caller's reference; NULL: nothing to restore */
    enum mx_restore_kind kind;
    enum mx_cache_miss miss;
    size_t known;  /* leading tokens of the prompt that are known; with PREFIX_DIVERGENCE the index
                      of the token that differs */
    uint64_t hits; /* times that the entry was restored, this time included */
    /* More is on disk than in RAM: tokens that mx_bank_load() would bring; 0: no. */
    size_t cold_tokens;
};
/* The longest restore point of a prompt, at most n - 1 tokens. `scope` and `session` as for
 * mx_bank_put(). */
void mx_bank_find(struct mx_bank *b, const char *scope, const char *session, const int32_t *tokens,
                  size_t n, struct mx_bank_hit *hit);

/* Reads from the cold tier what mx_bank_find() had promised, and fills `hit` anew (what it held is
 * the caller's to release before). Blocks on the disk, so it is not for the owner thread. `cancel`
 * is polled; may be NULL. */
void mx_bank_load(struct mx_bank *b, const char *scope, const char *session, const int32_t *tokens,
                  size_t n, const atomic_bool *cancel, struct mx_bank_hit *hit);

/* Takes over a reference to a snapshot. `session` labels the conversation (caps, views, what is
 * dropped together); `scope` bounds who may restore it. Both are copied, at most 127 bytes count. A
 * snapshot of tokens that the bank has already refreshes the old one instead. Not kept: what its
 * tokens alone do not determine (rows had positions of their own), and what exceeds the budget. */
void mx_bank_put(struct mx_bank *b, mtplx_snapshot *s, enum mx_point point, const char *scope,
                 const char *session);

/* Where a prompt of n tokens, restored up to `from`, should be captured: ascending token counts in
 * (from, n), at most `most`: the last token, the last borders and the first one, and points at
 * distances that double from `spacing`, on multiples of MX_KV_BLOCK. borders: ascending token
 * counts; a 0 is as good as none. points[i] says what each is. */
size_t mx_bank_plan(const struct mx_bank *b, size_t from, size_t n, const size_t *borders,
                    size_t n_borders, size_t *out, enum mx_point *points, size_t most);

/* Drops what is expired and what pressure asks for, feeds the cold tier. Cheap; call it about once
 * a second. */
void mx_bank_tick(struct mx_bank *b);
/* Drops entries until the bank holds at most `bytes`; what is pinned too. */
void mx_bank_shrink(struct mx_bank *b, uint64_t bytes);
/* Makes room for `bytes` that will be put in soon and take memory already before: what goes beyond
 * a small part of the budget is kept free of it, so that the two together stay about within. */
void mx_bank_make_room(struct mx_bank *b, uint64_t bytes);
/* Changes the budget. */
void mx_bank_set_budget(struct mx_bank *b, uint64_t bytes);
uint64_t mx_bank_bytes(struct mx_bank *b);

/* Drops a session's entries, or one entry by id, or all (NULL, 0) of them; how many. With `cold`
 * those on disk too (not by id), and waits a few seconds for their files to be gone. */
int mx_bank_drop(struct mx_bank *b, const char *session, uint64_t id, bool cold);
/* Keeps a session's entries until it is unpinned, whatever the time to live says; how many. */
int mx_bank_pin(struct mx_bank *b, const char *session, bool on);

/* ---- Status ------------------------------------------------------------------------------- */

enum mx_pressure { MX_PRESSURE_NONE = 0, MX_PRESSURE_HIGH, MX_PRESSURE_CRITICAL };
const char *mx_pressure_name(enum mx_pressure p);

struct mx_bank_view { /* an entry */
    uint64_t id, bytes /* own */, hits, age_ns, idle_ns;
    size_t tokens;
    enum mx_point point;
    bool pinned, on_disk;
    char session[48];
};
const char *mx_point_name(enum mx_point p);

struct mx_bank_stats {
    uint64_t budget, ceiling /* budget under pressure */, bytes, block_bytes, peak_bytes;
    uint64_t entries, blocks, sessions;
    uint64_t lookups, hits, puts, refreshed;
    uint64_t hit_tokens; /* tokens that need not be read again */
    uint64_t dropped_budget, dropped_cap, dropped_ttl, dropped_thin, dropped_pressure,
        dropped_asked;
    uint64_t misses[MX_MISS_COUNT]; /* by reason, of lookups */
    uint64_t kinds[4];              /* by enum mx_restore_kind */
    enum mx_pressure pressure;
};
void mx_bank_get_stats(struct mx_bank *b, struct mx_bank_stats *s);
/* Up to `most` entries, last used first; how many there are. */
size_t mx_bank_list(struct mx_bank *b, struct mx_bank_view *out, size_t most);

#endif
