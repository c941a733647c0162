/* Which KV blocks the bank's snapshots hold, how often, and who brought them.
 *
 * Kept here and not in the blocks, because several banks may share a model's blocks. No locking:
 * the owner's. */
#ifndef MX_SESSION_HELD_H
#define MX_SESSION_HELD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mx_kv_block;

struct mx_held_slot {
    const struct mx_kv_block *block; /* NULL: free */
    void *owner;
    size_t count;
};

struct mx_held {
    struct mx_held_slot *slots; /* open addressing, a power of two of them */
    size_t cap, n;
};

/* Makes room for `more` blocks; false: no memory. */
bool mx_held_reserve(struct mx_held *h, size_t more);
/* Counts a block; true: it is new, and noted as brought by `owner`. There must be room. */
bool mx_held_add(struct mx_held *h, const struct mx_kv_block *b, void *owner);
/* Takes one count back. When it was the last one, who brought the block; else NULL. */
void *mx_held_drop(struct mx_held *h, const struct mx_kv_block *b);
bool mx_held_has(const struct mx_held *h, const struct mx_kv_block *b);
void mx_held_close(struct mx_held *h);

#endif
