/* KV blocks: fixed-size pieces of device memory, counted by those who read them.
 *
 * A block holds MX_KV_BLOCK positions of every layer of one cache (trunk or MTP head). Sequences
 * and snapshots share blocks; a sequence's block table names them for the kernels.
 *
 * Invariants
 *   B1  Who writes a block is its only holder: a sequence copies a shared block before it stores
 *       an entry in it (copy on write), so nothing that a snapshot holds ever changes.
 *   B2  Entries behind the end of what a holder counts mean nothing: they may be stale or of
 *       another timeline, and are never read.
 *   B3  A free block goes back to the pool, which keeps a bounded number of them; the rest goes
 *       back to the system.
 *
 * Threads: blocks are made, referenced and dropped by any thread. */
#ifndef MX_RUNTIME_KV_POOL_H
#define MX_RUNTIME_KV_POOL_H

#include "device/device.h"

#include <stdatomic.h>

struct mx_kv_pool;

struct mx_kv_block {
    void *data; /* device memory, mx_kv_block_bytes(layout) */
    struct mx_kv_pool *pool;
    atomic_int refs;
    struct mx_kv_block *next; /* the pool's list of free blocks */
};

/* Both are the pool's for its life. NULL: no memory. */
struct mx_kv_pool *mx_kv_pool_new(struct mx_device *d, const struct mx_kv_layout *l);
/* Every block must be back. NULL is allowed. */
void mx_kv_pool_free(struct mx_kv_pool *p);

/* A block with one reference, contents undefined; NULL: no memory. */
struct mx_kv_block *mx_kv_block_new(struct mx_kv_pool *p);
/* A new block with the same contents; NULL: no memory. */
struct mx_kv_block *mx_kv_block_copy(const struct mx_kv_block *from);
struct mx_kv_block *mx_kv_block_ref(struct mx_kv_block *b);
void mx_kv_block_unref(struct mx_kv_block *b); /* NULL is allowed */
/* Whether others hold it too. */
static inline bool mx_kv_block_shared(const struct mx_kv_block *b)
{
    return atomic_load_explicit(&b->refs, memory_order_acquire) > 1;
}

size_t mx_kv_pool_block_bytes(const struct mx_kv_pool *p);
/* Bytes of blocks in use, and of free ones that are kept. */
void mx_kv_pool_bytes(struct mx_kv_pool *p, uint64_t *used, uint64_t *idle);
/* Gives free blocks back to the system until at most `keep` bytes of them are left. */
void mx_kv_pool_trim(struct mx_kv_pool *p, uint64_t keep);

#endif
