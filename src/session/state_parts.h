/* A snapshot as bytes, and back: what the cold tier and snapshot files have in common.
 *
 * A snapshot at n tokens has `whole` = n / MX_KV_BLOCK whole trunk blocks. Block object i is the
 * trunk's block i and the MTP head's block i - 1: both are determined by the tokens up to the end
 * of block i, since an MTP entry pairs a token with the one after it. The rest are its parts:
 *
 *   0     head: numbers, and the lag padded with zeros to MX_MAX_LAG rows
 *   next  the trunk's last block, when n % MX_KV_BLOCK != 0
 *   next  MTP blocks max(whole - 1, 0) to ceil((n - 1) / MX_KV_BLOCK) - 1: at most two; one that
 *         has no entry yet is zeros
 *   last  the recurrent slab, when the model has recurrent layers
 *
 * so that the number and sizes of all parts follow from the model and n alone. Numbers are
 * little-endian; floats and KV entries are as the device has them. Entries behind the end of a last
 * block mean nothing (B2 of kv_pool.h) and are written as zeros.
 *
 * Threads: a view reads an immutable snapshot; a builder belongs to one thread. Neither takes the
 * model's lock. */
#ifndef MX_SESSION_STATE_PARTS_H
#define MX_SESSION_STATE_PARTS_H

#include "runtime/snapshot.h"

#define MX_STATE_PARTS 5 /* at most */

struct mx_state_shape {
    size_t n, whole;
    bool tail;               /* the trunk's last block is not whole */
    size_t mtp_from, mtp_to; /* MTP blocks among the parts, the end excluded */
    size_t head_bytes, kv_bytes /* of a trunk block */, mtp_bytes /* of an MTP block */, slab_bytes;
    int parts;
    size_t bytes[MX_STATE_PARTS];
};
struct mx_state_shape mx_state_shape_of(const mtplx_model *m, size_t n);
/* Whether block object i has an MTP block. */
static inline bool mx_state_pairs(const struct mx_state_shape *sh, size_t i)
{
    return i > 0 && sh->mtp_bytes > 0;
}

/* The bytes of a snapshot in host memory. On a host-memory device most stay where they are, so the
 * snapshot must live as long as the view. */
struct mx_state_view {
    struct mx_state_shape shape;
    const void *parts[MX_STATE_PARTS];
    const void **kv, **mtp; /* [whole] of block objects; mtp[i] NULL: no MTP block */
    void *memory;
};
/* Errors: MEMORY; ARGUMENT for a snapshot that has no bytes of its own: cut from a longer one, so
 * that its MTP head is ahead of its tokens. */
mtplx_status mx_state_view_open(struct mx_state_view *v, const mtplx_snapshot *s, mtplx_error *err);
void mx_state_view_close(struct mx_state_view *v);

/* A snapshot in the making. */
struct mx_state_builder {
    mtplx_snapshot *s;
    struct mx_state_shape shape;
    size_t shared; /* block objects 0 .. shared - 1 came from `have` */
    uint8_t *head;
    struct { /* read to host memory, to be uploaded; empty on a host-memory device */
        void *host, *device;
        size_t bytes;
    } bounce[MX_STATE_PARTS];
    int n_bounce;
};
/* Starts one of tokens[0..n), with the blocks that `have` (or NULL) holds of them. `n` is from 1 to
 * the context window. Errors: MEMORY; LIMIT. The builder is empty then. */
mtplx_status mx_state_begin(struct mx_state_builder *b, mtplx_model *m, const int32_t *tokens,
                            size_t n, const mtplx_snapshot *have, mtplx_error *err);
/* Host memory that the parts, or block object i >= shared (to[1] NULL: no MTP block), are to be
 * read into; each is asked for once, and filled before the next call. Errors: MEMORY. */
mtplx_status mx_state_parts_to(struct mx_state_builder *b, void *to[MX_STATE_PARTS],
                               mtplx_error *err);
mtplx_status mx_state_block_to(struct mx_state_builder *b, size_t i, void *to[2], mtplx_error *err);
/* Checks the head that was read. FORMAT: the sentence says what is wrong. */
mtplx_status mx_state_check(const struct mx_state_builder *b, mtplx_error *err);
/* Whether every token of the checked head stands at its index: its state follows from the tokens.
 */
bool mx_state_text_only(const struct mx_state_builder *b);
/* The finished snapshot, once everything is read and checked; the builder is empty afterwards.
 * Errors: MEMORY. */
mtplx_snapshot *mx_state_end(struct mx_state_builder *b, mtplx_error *err);
/* Gives up. An empty builder is allowed. */
void mx_state_abandon(struct mx_state_builder *b);

#endif
