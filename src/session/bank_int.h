/* Inside of the session bank. What it promises is in bank.h.
 *
 *   bank.c      put, accounting         find.c    lookup
 *   evict.c     what goes first         status.c  statistics, lists, dropping, pinning
 *   plan.c      where to capture        thin.c    which restore points to keep
 *   spill.c     what goes to disk       load.c    what comes from there
 *   leave.c     what was dropped and is not written yet
 *
 * Invariants
 *   E1  An entry is in the index, in the list by last use, in its session's list, and its blocks
 *       are counted in `held`; or it is trash: in none of them, freed once the lock is released; or
 *       it is leaving (leave.h).
 *   E2  A session's record lives as long as it has entries or is charged for blocks. */
#ifndef MX_SESSION_BANK_INT_H
#define MX_SESSION_BANK_INT_H

#include "session/bank.h"
#include "session/grave.h"
#include "session/held.h"
#include "session/index.h"
#include "session/leave.h"
#include "session/pressure.h"

#include <pthread.h>

#define MX_LABEL_BYTES 128
#define MX_SESSION_BUCKETS 1024

struct mx_session {
    struct mx_session *next; /* of its bucket */
    char label[MX_LABEL_BYTES];
    struct mx_entry *entries;
    size_t n_entries;
    uint64_t bytes; /* own bytes of its entries and blocks that it brought */
    bool pinned;
};

struct mx_entry {
    struct mx_item item; /* in the index */
    mtplx_snapshot *s;
    struct mx_session *session;
    struct mx_entry *newer, *older;         /* by last use; `older` links trash too */
    struct mx_entry *next_of, *previous_of; /* of the session */
    uint64_t id, own, hits, made_ns, used_ns;
    struct mx_cold_key key; /* with a cold tier */
    enum mx_point point;
    bool settled;   /* it has been decided whether the cold tier gets it (spill.h) */
    bool wanted;    /* it does */
    size_t opening; /* of a PROMPT: tokens before the answer's message; 0: not known (stale.c) */
    bool stale;     /* its conversation went on otherwise */
};

struct mx_bank {
    struct mx_bank_options o; /* with defaults filled in */
    bool can_cut;
    size_t spacing; /* of CHUNK points, see plan.c */

    pthread_mutex_t offering; /* held for each offer to the cold tier, never with `lock` */
    _Atomic uint64_t cleared; /* times that the cold tier was told to drop what it has */

    pthread_mutex_t lock; /* of all below */
    struct mx_index index;
    struct mx_held held;
    struct mx_graves graves;
    struct mx_session *sessions[MX_SESSION_BUCKETS];
    struct mx_entry *newest, *oldest;
    uint64_t own_bytes, block_bytes, next_id, ceiling;
    struct mx_leaving leaving;
    struct mx_gauge gauge;
    uint64_t removed, trimmed;  /* entries removed, and by the last return of memory */
    struct mx_bank_stats stats; /* counters; the rest is filled in when asked for */
};

/* Work that is left for when the lock is released: entries to free, offers to the cold tier. */
struct mx_trash {
    struct mx_entry *first;
    struct mx_offer *offers;
};
void mx_trash_burn(struct mx_bank *b, struct mx_trash *t);

/* mx_bank_put() by who has seen no more than `refs` references to the snapshot, this one included:
 * when there are no others, its blocks may be replaced by equal ones (S2 of snapshot.h). */
void mx_bank_insert(struct mx_bank *b, mtplx_snapshot *s, enum mx_point point, const char *scope,
                    const char *session, int refs);
/* A lookup without counting it; takes the lock. `use`: it counts as a use of the entry. `witness`,
 * when wanted, is a reference to the snapshot that has most in common with the prompt, or NULL. */
void mx_bank_look_up(struct mx_bank *b, const char *scope, const int32_t *tokens, size_t n,
                     bool use, struct mx_bank_hit *hit, mtplx_snapshot **witness);
/* Where nothing is known, says whether the disk knows it under another identity. */
void mx_bank_look_elsewhere(const struct mx_bank *b, const char *scope, const int32_t *tokens,
                            size_t n, struct mx_bank_hit *hit);

static inline uint64_t mx_bank_now(const struct mx_bank *b)
{
    return b->o.clock();
}

static inline uint64_t mx_bank_held_bytes(const struct mx_bank *b)
{
    return b->own_bytes + b->block_bytes + b->leaving.bytes;
}

static inline struct mx_entry *mx_entry_of(struct mx_item *it)
{
    return (struct mx_entry *)(void *)it; /* its first member */
}

/* Copies a scope or label of at most MX_LABEL_BYTES - 1 bytes; NULL is "". */
void mx_copy_label(char *to, const char *label);

/* What a snapshot with so many own bytes would take if it shared nothing. */
uint64_t mx_bank_whole_bytes(const mtplx_snapshot *s, uint64_t own);

/* The rest wants the lock. */

/* Takes an entry out of everything, into the trash; adds one to *count. `why` EVICTED or EXPIRED
 * leaves a mark for later lookups. */
void mx_bank_remove(struct mx_bank *b, struct mx_entry *e, enum mx_cache_miss why, uint64_t *count,
                    struct mx_trash *t);
/* Drops what a new prompt's conversation has left behind: stale.c. */
void mx_bank_drop_stale(struct mx_bank *b, struct mx_entry *e, struct mx_trash *t);
struct mx_session *mx_bank_session(struct mx_bank *b, const char *label);
/* Marks an entry and what leads to it in its conversation as used now. */
void mx_bank_touch(struct mx_bank *b, struct mx_entry *e, uint64_t now);

/* Drops what is expired. */
void mx_bank_expire(struct mx_bank *b, uint64_t now, struct mx_trash *t);
/* Drops entries until all hold at most `bytes`. */
void mx_bank_fit(struct mx_bank *b, uint64_t bytes, uint64_t now, uint64_t *count,
                 struct mx_trash *t);
/* Drops entries of a session until it is within the cap, but never `newest`. */
void mx_bank_fit_session(struct mx_bank *b, struct mx_session *s, const struct mx_entry *newest,
                         uint64_t now, struct mx_trash *t);

/* How many tokens apart CHUNK points are for a model (see plan.c). */
size_t mx_plan_spacing(uint64_t slab_bytes, uint64_t block_bytes, size_t spacing);

#endif
