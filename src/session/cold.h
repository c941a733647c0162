/* Cold tier: snapshots on disk, so that a restart or an eviction loses nothing.
 *
 * A directory of immutable object files and an SQLite manifest (docs/SSD-FORMAT.md describes both
 * byte by byte). Two kinds of objects: a block (MX_KV_BLOCK tokens: the trunk's KV block i and the
 * MTP head's block i - 1, both determined by the tokens up to the end of block i), shared by
 * every snapshot with that prefix, and a snapshot (its tokens, what it does not share, the
 * recurrent slab, the lag). The name of an object is a hash of identity, scope and all tokens that
 * determine it, so the same state is written once, whoever computes it.
 *
 * This file knows bytes, keys and files; it knows no model. cold_state.h turns snapshots into
 * objects and back.
 *
 * Invariants
 *   C1  A row of the manifest is committed after its object's file is complete, synced and renamed
 *       into place; a file is removed after its row. So a crash leaves at most files without rows,
 *       which the next open removes, and never a row without its file.
 *   C2  Nothing read is believed: sizes, versions, identity, tokens and checksums are checked, and
 *       what fails is dropped (row, file and every snapshot that needs it) with one log line.
 *   C3  Only the writer thread writes. Requests never wait for it: its queue is bounded, and what
 *       does not fit is left out (and counted).
 *   C4  Directory 0700, files 0600. One process writes a directory at a time (a lock file); others,
 *       and all when the file system is read-only, read what was there when they opened it and
 *       write nothing, with one warning. A directory of another user is refused.
 *   C5  Whatever the disk does (full, read-only, gone, slow), the tier degrades with one warning
 *       for each cause and serving goes on.
 *
 * Threads: every call is safe from any thread. */
#ifndef MX_SESSION_COLD_H
#define MX_SESSION_COLD_H

#include "base/error.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum mx_cold_mode { MX_COLD_OFF = 0, MX_COLD_ON, MX_COLD_WRITE_ONLY };
int mx_cold_mode_named(const char *name); /* on, off, write-only; -1: none of them */

/* What a state depends on besides its tokens, in three parts so that a miss can say which one
 * differs; each a hash. */
struct mx_cold_identity {
    uint8_t model[16];  /* weights and geometry */
    uint8_t text[16];   /* tokenizer and chat template */
    uint8_t policy[16]; /* KV format, MTP head, device and profile: whatever changes bits */
};

struct mx_cold_options {
    const char *dir; /* NULL: $XDG_CACHE_HOME/mtplx/sessions, else ~/.cache/... */
    enum mx_cold_mode mode;
    uint64_t max_bytes;    /* 0: 16 GiB; at most a quarter of what is free is used either way */
    uint64_t hourly_bytes; /* write budget; 0: 16 GiB an hour; UINT64_MAX: none */
    uint64_t floor_bytes;  /* nothing is written when less is free; 0: 4 GiB, or 5 % of a smaller
                              disk */
    uint64_t queue_bytes;  /* most that waits to be written; 0: 1 GiB. A larger snapshot is taken
                              when nothing else waits */
    size_t min_tokens;     /* shorter snapshots are not kept; 0: 512 */
    struct mx_cold_identity identity;
    void (*log)(void *arg, const char *line); /* warnings, one line each; NULL: dropped */
    void *log_arg;
};

struct mx_cold;
/* Opens or makes the directory, reconciles files and rows, starts the writer. NULL for mode OFF
 * (err is MTPLX_OK then) and on failure: ARGUMENT, IO, FORMAT (a manifest of a newer version),
 * MEMORY. */
struct mx_cold *mx_cold_open(const struct mx_cold_options *o, mtplx_error *err);
/* Writes what waits, for at most `wait_ns`, and closes. NULL is allowed. */
void mx_cold_close(struct mx_cold *c, uint64_t wait_ns);

/* ---- Keys --------------------------------------------------------------------------------- */

struct mx_cold_key {
    uint8_t b[16];
};
/* The chain of a scope: its start, and one step over `n` tokens. The key of a block is the chain
 * after its tokens; that of a snapshot the chain after its last, maybe shorter, piece (a snapshot
 * at a block border has the key of that block: the kind tells them apart). The chain does not
 * depend on the identity: a manifest can tell the same tokens under another one. XXH3-128. */
struct mx_cold_key mx_cold_chain_start(const char *scope);
struct mx_cold_key mx_cold_chain(struct mx_cold_key before, const int32_t *tokens, size_t n);

enum mx_cold_kind { MX_COLD_BLOCK = 1, MX_COLD_SNAPSHOT = 2 };

/* ---- Writing ------------------------------------------------------------------------------ */

/* A piece of an object's payload; read by the writer thread. */
struct mx_cold_part {
    const void *data;
    size_t bytes;
};

#define MX_COLD_MAX_PARTS 8

struct mx_cold_write {
    enum mx_cold_kind kind;
    struct mx_cold_key key, parent; /* parent: of the block before; all zero: none */
    const int32_t *tokens;          /* BLOCK: its MX_KV_BLOCK tokens; SNAPSHOT: all of them */
    size_t n_tokens;
    struct mx_cold_part parts[MX_COLD_MAX_PARTS];
    int n_parts;
    int point;           /* SNAPSHOT: enum mx_point, for thinning and eviction */
    const char *session; /* SNAPSHOT: label, copied */
    const char *scope;   /* copied */
};
/* Queues a snapshot and the blocks it needs, in order, block objects first; those on disk already
 * are skipped. The first block's parent is all zero, or there already (or queued before). What the
 * snapshot hangs below is the last block of the list, or without one its own `parent`. Parts and
 * tokens stay as they are until release(arg), which is called exactly once, from any thread, when
 * their memory is not needed any more, also when nothing is queued. False: it was left out (full
 * queue, budget, floor, too short, write error, already there). */
bool mx_cold_put(struct mx_cold *c, const struct mx_cold_write *objects, size_t n,
                 void (*release)(void *arg), void *arg);
/* Waits until everything queued is written, at most so long. True: it is. */
bool mx_cold_flush(struct mx_cold *c, uint64_t wait_ns);

/* ---- Reading ------------------------------------------------------------------------------ */

/* Whether a block is there; whether a snapshot is, and complete with all its blocks. From memory;
 * always false in mode WRITE_ONLY. */
bool mx_cold_has(struct mx_cold *c, enum mx_cold_kind kind, struct mx_cold_key key);
/* Where complete snapshots end behind a block border: bit r is set when there is one that goes on
 * for r tokens behind the block with this key, fewer than a block has (64), whichever they are.
 * From memory. */
uint64_t mx_cold_ends(struct mx_cold *c, struct mx_cold_key border);
/* In which part of the identity an object with this key differs from ours, when there is one of
 * another identity: 'm', 't', 'p'; 0: there is none. */
char mx_cold_elsewhere(struct mx_cold *c, enum mx_cold_kind kind, struct mx_cold_key key);

/* Reads and checks one object: its tokens must be `tokens`, and parts must have exactly the sizes
 * of parts[], whose memory is filled (data is written to). Blocking. Errors: IO; FORMAT (dropped
 * meanwhile, with what needs it). */
mtplx_status mx_cold_read(struct mx_cold *c, enum mx_cold_kind kind, struct mx_cold_key key,
                          const int32_t *tokens, size_t n_tokens, struct mx_cold_part *parts,
                          int n_parts, mtplx_error *err);
/* Drops an object whose bytes are sound but whose contents its reader cannot use, as a failed check
 * would: with what needs it, and with a log line that says why. */
void mx_cold_reject(struct mx_cold *c, enum mx_cold_kind kind, struct mx_cold_key key,
                    const char *why);
/* Has the system fetch an object that will be read soon: an ask, which does not wait. */
void mx_cold_prefetch(struct mx_cold *c, enum mx_cold_kind kind, struct mx_cold_key key);
/* Whether that is of use: where the kernel itself reads far ahead (virtual machines often make it
 * read megabytes), plain reads of one object after the other are the faster way. */
bool mx_cold_wants_prefetch(const struct mx_cold *c);
/* Notes that a snapshot was used (eviction order). */
void mx_cold_touch(struct mx_cold *c, struct mx_cold_key key);

/* Removes snapshots and the blocks that only they need: of a session, or all (NULL). How many.
 * Done by the writer thread; the rows are gone from lookups at once. */
int mx_cold_drop(struct mx_cold *c, const char *session);

/* ---- Status ------------------------------------------------------------------------------- */

struct mx_cold_stats {
    enum mx_cold_mode mode;
    bool writable; /* false: read-only, full, or locked by another process */
    char dir[256], why[160] /* of not writable; "" */;
    uint64_t snapshots, blocks, bytes, max_bytes;
    uint64_t queued, queued_bytes;
    uint64_t written, written_bytes, reads, read_bytes, read_ns;
    uint64_t skipped_queue, skipped_budget, skipped_floor, evicted, dropped_bad, orphans, errors;
};
void mx_cold_get_stats(struct mx_cold *c, struct mx_cold_stats *s);

#endif
