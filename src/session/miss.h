/* Why a prompt was not restored further than it was: one enum for responses, logs and metrics. */
#ifndef MX_SESSION_MISS_H
#define MX_SESSION_MISS_H

enum mx_cache_miss {
    MX_MISS_NONE = 0,    /* everything known of the prompt was restored: all but its last token, or
                            all that any earlier prompt or answer has in common with it */
    MX_MISS_NEW_SESSION, /* nothing like it is known */
    MX_MISS_PREFIX_DIVERGENCE, /* what is known goes on otherwise, before the end of the prompt;
                                  restored up to a point before that */
    MX_MISS_MODEL_MISMATCH,    /* known on disk, of other weights */
    MX_MISS_TEMPLATE_MISMATCH, /* known on disk, of another tokenizer or chat template */
    MX_MISS_POLICY_MISMATCH,   /* known on disk, run otherwise: KV quantisation, MTP head, device */
    MX_MISS_EVICTED,           /* was known; the budget dropped it */
    MX_MISS_EXPIRED,           /* was known; its time to live was over */
    MX_MISS_BACKGROUND_BYPASS, /* a background job, which does not read from disk */
    MX_MISS_SESSION_BUSY,      /* another request is reading the same prefix right now */
    MX_MISS_SNAPSHOT_DESYNC,   /* an entry did not hold what its index said; it was dropped */
    MX_MISS_NO_SNAPSHOT_COVERAGE, /* the tokens are known, but no state was kept so far along */
    MX_MISS_COLD_CORRUPT,         /* an entry on disk failed its checks; it was dropped */
    MX_MISS_COLD_UNREADABLE,      /* the disk could not be read in time or at all */
    MX_MISS_MEMORY,               /* no memory for restoring */
    MX_MISS_BYPASS, /* the request asked for it (log-probabilities of the prompt, no reuse), or it
                       is an embedding */
    MX_MISS_DISABLED,
    MX_MISS_COUNT
};

/* "none", "new_session", "prefix_divergence_at_token", ... */
const char *mx_cache_miss_name(enum mx_cache_miss m);

/* How a prompt was restored. */
enum mx_restore_kind {
    MX_RESTORE_NONE = 0,
    MX_RESTORE_EXACT, /* the longest known state of that conversation: all but one token of the
                         prompt, or all of an earlier prompt or answer that it extends */
    MX_RESTORE_NEAR,  /* at most 8 tokens before the place where what is known ends */
    MX_RESTORE_BLOCK, /* further back */
};
const char *mx_restore_kind_name(enum mx_restore_kind k);

#endif
