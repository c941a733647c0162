/* Dropped entries whose memory is not free yet, because the cold tier is still to write them.
 *
 * They are out of the bank for lookups and limits, but their bytes count until the writer lets go
 * of them, so that a slow disk does not take the process beyond the budget: what is dropped for
 * want of memory is offered to the disk only while little of the budget is on its way there.
 *
 * No locking: the bank's. */
#ifndef MX_SESSION_LEAVE_H
#define MX_SESSION_LEAVE_H

#include "session/held.h"

struct mx_bank;
struct mx_entry;
struct mx_trash;

struct mx_leaving {
    struct mx_entry *first; /* linked by `older` */
    struct mx_held blocks;  /* their blocks; those that entries hold too cost nothing here */
    uint64_t bytes;         /* own bytes, and of blocks that no entry holds */
};

/* So much of what the bank may use can be on its way to the disk, as a part of it. */
#define MX_LEAVE_PART 8

/* Whether an entry that is to be dropped may be offered to the cold tier. */
bool mx_leave_may(const struct mx_bank *b, const struct mx_entry *e);
/* Takes over an entry that is out of everything, its blocks not counted any more. False: nothing
 * was done, as nobody else holds the snapshot or for want of memory. */
bool mx_leave_add(struct mx_bank *b, struct mx_entry *e);
/* Moves to the trash what nobody else holds any more, or (`all`) everything. */
void mx_leave_reap(struct mx_bank *b, bool all, struct mx_trash *t);

/* A block has come to be held by an entry, or by none any more. */
void mx_leave_held(struct mx_bank *b, const struct mx_kv_block *k);
void mx_leave_dropped(struct mx_bank *b, const struct mx_kv_block *k);

#endif
