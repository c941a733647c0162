/* Snapshots: the state of a sequence after some of its tokens, immutable and counted.
 *
 * A snapshot at n tokens holds everything that a sequence needs to go on from there as if it had
 * just read those tokens itself, bit for bit: references to the KV blocks of trunk and MTP head
 * (shared with whoever else holds them), a copy of the recurrent slab, and the trunk hiddens that
 * are not paired yet (the lag). Restoring one gives a sequence that shares the blocks and copies
 * the rest.
 *
 * Invariants
 *   S1  kv holds ceil(n / MX_KV_BLOCK) blocks; mtp holds the blocks of mtp_len entries; mtp_len <=
 *       n - 1 and n_lag == n - mtp_len (Q3, Q4 of seq.h). Without an MTP head mtp and lag are
 *       empty.
 *   S2  Nothing in it changes once it was handed out, but for `kv` and `mtp`, which the session
 *       bank may point at equal blocks (same tokens, same bits) before it publishes the snapshot.
 *
 * Captures. Recurrent state exists only at the end of a pass; a sequence can be told to keep it at
 * token counts that a committing pass (prefill) will run across, at no cost but the copy. They are
 * collected afterwards. A capture for which there is no memory is left out without an error. */
#ifndef MX_RUNTIME_SNAPSHOT_H
#define MX_RUNTIME_SNAPSHOT_H

#include "runtime/kv_pool.h"
#include "runtime/seq.h"

struct mtplx_snapshot {
    atomic_int refs;
    mtplx_model *model;
    int32_t *tokens; /* [n] */
    size_t n;
    int32_t next_pos;
    struct mx_kv_block **kv, **mtp;
    size_t n_kv, n_mtp;
    int64_t mtp_len;
    float *rec; /* device memory, mx_seq_slab_floats(model); NULL without recurrent layers */
    float *lag; /* device memory, [n_lag][hidden] */
    int n_lag;
};

/* The state after all committed tokens, at least one. The caller holds the model's lock or is the
 * only user of the model's device. NULL with the reason in err: ARGUMENT (rows pending, no tokens),
 * MEMORY. */
mtplx_snapshot *mx_snapshot_take(mtplx_seq *s, mtplx_error *err);
/* The same, frees the sequence and takes its slab over instead of copying it. On failure the
 * sequence is freed too. */
mtplx_snapshot *mx_snapshot_take_over(mtplx_seq *s, mtplx_error *err);
mtplx_snapshot *mx_snapshot_ref(mtplx_snapshot *s);
void mx_snapshot_unref(mtplx_snapshot *s); /* NULL is allowed; any thread */

/* A new sequence in the state of the snapshot. Takes the model's lock. Errors: MEMORY. */
mtplx_seq *mx_snapshot_restore(const mtplx_snapshot *s, mtplx_error *err);

/* Whether sequences of the model can be restored at any token count before a snapshot's: those
 * without recurrent layers. */
bool mx_snapshot_can_cut(const mtplx_model *m);
/* A new snapshot of the first n tokens, 0 < n < s->n, where mx_snapshot_can_cut(); shares all
 * blocks. It must go on with token s->tokens[n] (whose MTP entry it may have already: S1 becomes
 * mtp_len == n, n_lag == 0, and its tokens[n] is that token; a forward pass with another one is an
 * ARGUMENT error). NULL: no memory, or the tokens were not at the positions of plain text. */
mtplx_snapshot *mx_snapshot_cut(const mtplx_snapshot *s, size_t n);

/* Bytes of what it does not share: slab, lag, tokens, tables. */
uint64_t mx_snapshot_own_bytes(const mtplx_snapshot *s);
/* Those of any snapshot of n tokens of this model; of a KV block object (trunk block and MTP block)
 * and of the recurrent slab. */
uint64_t mx_snapshot_own_bytes_for(const mtplx_model *m, size_t n);

/* ---- Parts, for those who make snapshots (captures, the cold tier) ------------------------- */

/* An empty snapshot with one reference; with an undefined slab where asked for and the model has
 * one. NULL: no memory. */
mtplx_snapshot *mx_snapshot_new(mtplx_model *m, bool slab);
/* Copies `n` rows [hidden] of device memory. False: no memory. */
bool mx_snapshot_set_lag(mtplx_snapshot *s, const float *rows, int n);
/* Tokens and block references of the sequence's first snap->n tokens and snap->mtp_len MTP entries.
 * False: no memory; the snapshot can be freed. */
bool mx_snapshot_set_history(mtplx_snapshot *snap, const mtplx_seq *s);

/* ---- Captures ----------------------------------------------------------------------------- */

#define MX_MAX_CAPTURES 32

/* Asks for a snapshot after `at` tokens. Ignored when the sequence is that long already, when it is
 * asked for already, or when MX_MAX_CAPTURES are. */
void mx_seq_want_capture(mtplx_seq *s, size_t at);
/* The snapshots made since the last call, shortest first, up to `most`; the caller owns them. */
size_t mx_seq_take_captured(mtplx_seq *s, mtplx_snapshot **out, size_t most);

#endif
