/* Context copy (prompt lookup): drafts copied from what followed an earlier occurrence of the last
 * tokens, in prompt or answer. Costs no draft step and needs no MTP head.
 *
 * A copied draft is a proposal like any other: its law q is a point mass on the copied token. The
 * acceptance test (accept.c) then accepts with probability p(x), and its residual is p without x,
 * renormalised, so that x comes out with p(x) and every other y with (1 - p(x)) p(y) / (1 - p(x)) =
 * p(y). The argument asks of q only that it is the law the draft was drawn from given what stands
 * before it. A copied token is a function of the committed tokens and of the drafts before it in
 * the block (through the match), so given that prefix it is certain, which is what the point mass
 * says.
 *
 * The index maps the hash of each run of SHORT and of LONG tokens to where its latest occurrence
 * ends. Tables have a fixed size, newer entries replace older ones, and every hit is compared token
 * by token: hash collisions cost a missed copy, never a wrong match length. One push is O(1). */
#ifndef MX_RUNTIME_COPY_H
#define MX_RUNTIME_COPY_H

#include "base/error.h"
#include "runtime/depth.h"

enum {
    MX_COPY_SHORT = 3,
    MX_COPY_LONG = 8,
    MX_COPY_COMPARE = 32, /* match lengths are not measured beyond */
};

struct mx_copy;

/* An index for timelines of up to about `tokens` tokens: longer ones forget their older part. */
struct mx_copy *mx_copy_new(size_t tokens, mtplx_error *err);
void mx_copy_free(struct mx_copy *c);
/* Bytes of such an index. */
uint64_t mx_copy_bytes(size_t tokens);

/* Indexes the tokens that were appended since the last call; tokens[0 .. n) is the whole timeline.
 * A timeline that became shorter is indexed anew. */
void mx_copy_update(struct mx_copy *c, const int32_t *tokens, size_t n);

/* Looks for an earlier occurrence of the end of tokens[0 .. n) + tail[0 .. n_tail) and writes up to
 * `most` tokens that followed it. Runs that reach the end go on into what was copied, so a loop is
 * copied round and round. Returns their number, 0 without a match; *match is its length. `tokens`
 * are those of the last update. n_tail and most are at most MTPLX_MAX_DEPTH + 1. */
int mx_copy_find(const struct mx_copy *c, const int32_t *tokens, size_t n, const int32_t *tail,
                 int n_tail, int32_t *out, int most, int *match);

/* ---- When to copy ------------------------------------------------------------------------- */

/* Record of one generation. Copying starts on probation with a short block, stops when less than
 * 35 % of the copied tokens are accepted over a few rounds, and comes back on probation
 * after a back-off of 64 tokens that doubles, up to 4,096, each time in a row it did not pay. */
struct mx_copy_control {
    double tested[MX_COPY_CLASSES], accepted[MX_COPY_CLASSES]; /* discounted */
    double mean;                                               /* acceptance of late rounds */
    int rounds;                                                /* since copying (re)started */
    size_t backoff, resume;
    int refused, patience; /* offers in a row that were thought too dear, and how many of them */
    struct mx_copy_record *record; /* of the model, or NULL */
};

void mx_copy_control_init(struct mx_copy_control *k, struct mx_copy_record *record);

/* Most tokens to copy at this length of the timeline: 0 while backing off. */
int mx_copy_allowed(const struct mx_copy_control *k, size_t at);

/* Expected acceptance of each token behind a match of that length. After a number of refused offers
 * it is the prior's, so that a bad record is put to the test again. */
double mx_copy_p(const struct mx_copy_control *k, int match);

/* The planner had the offer and chose otherwise. */
void mx_copy_refused(struct mx_copy_control *k);

/* What became of a copied run: drafts looked at, and accepted. */
void mx_copy_feed(struct mx_copy_control *k, int match, int tested, int accepted, size_t at);

#endif
