/* Inside of a sequence: one timeline of a model.
 *
 * Invariants
 *   Q1  kv.len == n_tokens: the trunk's KV cache holds exactly the committed tokens; pending rows
 *       lie behind it and are forgotten by not counting them.
 *   Q2  rec is the recurrent state after the committed tokens. A verify pass leaves it alone and
 *       writes the tape; a commit replays the tape onto it.
 *   Q3  The MTP cache entry of token i (i >= 1) pairs it with the trunk hidden of token i - 1.
 *       mtp.len entries stand for tokens 1 .. mtp.len.
 *   Q4  lag holds the trunk hiddens of tokens mtp.len .. n_tokens - 1 (rows lag[0 .. n_lag)), the
 *       ones not yet paired: n_lag == n_tokens - mtp.len, at least 1 once a token is committed.
 *   Q5  Draft entries lie behind mtp.len. The first pairs a token with a true trunk hidden, so it
 *       becomes history when that very token is committed next; the others are dropped. */
#ifndef MX_RUNTIME_SEQ_H
#define MX_RUNTIME_SEQ_H

#include "runtime/model.h"

struct mx_kv_cache {
    void **blocks;
    size_t n_blocks, cap_blocks;
    int64_t len; /* committed entries */
};

struct mtplx_seq {
    mtplx_model *model;
    int32_t *tokens;
    size_t n_tokens, cap_tokens;
    int32_t next_pos; /* text position of the next token */

    struct mx_kv_cache kv, mtp;
    float *rec; /* recurrent slab, NULL without recurrent layers */
    float *tape;

    /* A verify pass waiting for its commit. */
    int pending;
    int32_t pending_tokens[MX_MAX_PENDING];
    int32_t pending_next[MX_MAX_PENDING]; /* next_pos after each row */
    float *pending_hidden;                /* [MX_MAX_PENDING][hidden] */

    float *lag; /* [MX_MAX_LAG][hidden] */
    int n_lag;

    /* Drafting since the last commit. */
    int n_drafts;
    int32_t first_draft;
    float *draft_hidden; /* [hidden]: recursion state of the last draft step */
};

/* Makes room for `entries` positions in a cache of this layout. */
mtplx_status mx_kv_reserve(mtplx_model *m, struct mx_kv_cache *c, const struct mx_kv_layout *l,
                           int64_t entries, mtplx_error *err);

size_t mx_seq_slab_floats(const mtplx_model *m);
size_t mx_seq_tape_floats(const mtplx_model *m);

/* Makes tape and pending_hidden exist (first verify pass). */
mtplx_status mx_seq_need_verify(mtplx_seq *s, mtplx_error *err);

#endif
