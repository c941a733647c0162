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
 *       The one exception: a sequence restored from a cut snapshot has the MTP entry of its next
 *       token already, mtp.len == n_tokens. tokens[n_tokens] is that token, and no other may come.
 *   Q5  Draft entries lie behind mtp.len. The first pairs a token with a true trunk hidden, so it
 *       becomes history when that very token is committed next; the others are dropped.
 *   Q6  A block that starts at or behind len is the sequence's alone; those before may be shared,
 *       the last of them until mx_kv_reserve(), which comes before every pass. */
#ifndef MX_RUNTIME_SEQ_H
#define MX_RUNTIME_SEQ_H

#include "runtime/model.h"

struct mx_kv_cache {
    struct mx_kv_pool *pool;  /* NULL: the model has no such cache */
    void **blocks;            /* data of the blocks, as kernels want them */
    struct mx_kv_block **own; /* the blocks; one reference each */
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

    struct mx_captures *captures; /* capture.h; NULL: none were asked for */
};

/* Blocks of `entries` positions. */
static inline size_t mx_kv_blocks_for(int64_t entries)
{
    return ((size_t)entries + MX_KV_BLOCK - 1) / MX_KV_BLOCK;
}

/* Makes room for `entries` positions, of which those from len on may be written afterwards: copies
 * the block of entry len if others hold it too. On an error the cache holds what it held. */
mtplx_status mx_kv_reserve(struct mx_kv_cache *c, int64_t entries, mtplx_error *err);

/* Fills an empty cache with `len` entries in blocks that are shared from now on. */
mtplx_status mx_kv_share(struct mx_kv_cache *c, struct mx_kv_block *const *blocks, int64_t len,
                         mtplx_error *err);

/* Tokens of a sequence or snapshot that count: those committed, and the one to come of Q4. */
static inline size_t mx_known_tokens(size_t n, int64_t mtp_len)
{
    return n + (n > 0 && mtp_len == (int64_t)n);
}

size_t mx_seq_slab_floats(const mtplx_model *m);
size_t mx_seq_tape_floats(const mtplx_model *m);

/* Makes tape and pending_hidden exist (first verify pass). */
mtplx_status mx_seq_need_verify(mtplx_seq *s, mtplx_error *err);

#endif
