/* What the session bank gives to the cold tier, and when.
 *
 * A restore point costs a copy of the recurrent state on disk as well, so only two or three of a
 * conversation are written: its newest point, its newest PROMPT point (or the BORDER just before
 * it; else any BORDER) and its SYSTEM point. An end that the conversation has left behind is none
 * of them. They are chosen once the conversation has been idle: for 3 seconds where it has 1,024
 * tokens more than what was written of it, else for a minute, so that a chat of many quick turns is
 * not written turn by turn; or when they are about to be dropped, or the bank is freed. What led
 * to a chosen point is settled with it and not looked at again. What is idle waits while an eighth
 * of the bank is in the tier's queue.
 *
 * Offers are gathered under the bank's lock and made without it. */
#ifndef MX_SESSION_SPILL_H
#define MX_SESSION_SPILL_H

#include "session/bank_int.h"

struct mx_offer {
    struct mx_offer *next;
    mtplx_snapshot *s;
    struct mx_cold_key key;
    enum mx_point point;
    uint64_t cleared; /* the bank's count when it was gathered: later it is not made any more */
    char scope[MX_LABEL_BYTES], session[MX_LABEL_BYTES];
};

/* With the lock: gathers what is due of conversations that are idle; of an entry that the budget
 * or the time to live takes; of all. Nothing without a cold tier. */
void mx_spill_idle(struct mx_bank *b, uint64_t now, struct mx_trash *t);
void mx_spill_dropped(struct mx_bank *b, struct mx_entry *e, struct mx_trash *t);
void mx_spill_all(struct mx_bank *b, struct mx_trash *t);

/* Without it: offers what was gathered. Where the tier's queue is full, waits for it until
 * `patience` ns are over, all in all. */
void mx_spill_offer(struct mx_bank *b, struct mx_trash *t, uint64_t patience);

#endif
