/* Context copy: the n-gram index and the rules of when to use it. See copy.h. */
#include "runtime/copy.h"

#include <stdlib.h>
#include <string.h>

enum {
    MIN_SLOTS = 1 << 8,
    MAX_SLOTS = 1 << 18, /* two tables of 1 MiB: the latest quarter of a million tokens */
    PROBATION = 3,       /* tokens of a first block */
    PROBATION_ROUNDS = 2,
    JUDGED_ROUNDS = 3,
    FIRST_BACKOFF = 64,
    MOST_BACKOFF = 4096,
    FIRST_PATIENCE = 32,
    MOST_PATIENCE = 1024,
};

#define LEAST 0.35   /* mean acceptance below which copying is suspended */
#define GOOD 0.6     /* and from which the back-off starts over */
#define MEMORY 0.9   /* discount of a generation's counts */
#define RECORD 0.995 /* of the model's */
#define PRIOR_TESTS 4.0

struct mx_copy {
    size_t mask;      /* slots of each table - 1 */
    size_t indexed;   /* tokens seen */
    int32_t *ends[2]; /* by hash of SHORT and LONG tokens: index after the run; 0: none */
};

static const int lengths[2] = {MX_COPY_SHORT, MX_COPY_LONG};

/* ---- Index -------------------------------------------------------------------------------- */

static size_t slots_for(size_t tokens)
{
    size_t slots = MIN_SLOTS;
    while (slots < MAX_SLOTS && slots < 2 * tokens)
        slots *= 2;
    return slots;
}

uint64_t mx_copy_bytes(size_t tokens)
{
    const struct mx_copy *c = NULL;
    return sizeof *c + 2 * (uint64_t)slots_for(tokens) * sizeof *c->ends[0];
}

struct mx_copy *mx_copy_new(size_t tokens, mtplx_error *err)
{
    size_t slots = slots_for(tokens);
    struct mx_copy *c = calloc(1, sizeof *c);
    if (c) {
        c->mask = slots - 1;
        c->ends[0] = calloc(slots, sizeof *c->ends[0]);
        c->ends[1] = calloc(slots, sizeof *c->ends[1]);
        if (c->ends[0] && c->ends[1])
            return c;
    }
    mx_copy_free(c);
    mx_error_nomem(err, "the context-copy index", 2 * slots * sizeof(int32_t));
    return NULL;
}

void mx_copy_free(struct mx_copy *c)
{
    if (!c)
        return;
    free(c->ends[0]);
    free(c->ends[1]);
    free(c);
}

/* A timeline with a tail that is not part of the token array yet. */
struct line {
    const int32_t *tokens;
    size_t n;
    const int32_t *tail;
};

static int32_t at(const struct line *l, size_t i)
{
    return i < l->n ? l->tokens[i] : l->tail[i - l->n];
}

/* Hash of the `count` tokens before index `end`. */
static size_t hash(const struct line *l, size_t end, int count)
{
    uint64_t h = 0x9e3779b97f4a7c15u;
    for (size_t i = end - (size_t)count; i < end; i++)
        h = (h ^ (uint32_t)at(l, i)) * 0xff51afd7ed558ccdu;
    return (size_t)(h ^ (h >> 32));
}

void mx_copy_update(struct mx_copy *c, const int32_t *tokens, size_t n)
{
    struct line l = {tokens, n, NULL};
    if (n < c->indexed) {
        for (int t = 0; t < 2; t++)
            memset(c->ends[t], 0, (c->mask + 1) * sizeof *c->ends[t]);
        c->indexed = 0;
    }
    for (size_t end = c->indexed + 1; end <= n; end++)
        for (int t = 0; t < 2; t++)
            if (end >= (size_t)lengths[t])
                c->ends[t][hash(&l, end, lengths[t]) & c->mask] = (int32_t)end;
    c->indexed = n;
}

/* Tokens before `end` that equal those before `total`, counted backwards. */
static int match_length(const struct line *l, size_t end, size_t total)
{
    int k = 0;
    while (k < MX_COPY_COMPARE && (size_t)k < end &&
           at(l, end - 1 - (size_t)k) == at(l, total - 1 - (size_t)k))
        k++;
    return k;
}

int mx_copy_find(const struct mx_copy *c, const int32_t *tokens, size_t n, const int32_t *tail,
                 int n_tail, int32_t *out, int most, int *match)
{
    int32_t line_tail[2 * (MTPLX_MAX_DEPTH + 1)];
    size_t total = n + (size_t)n_tail, from = 0;
    struct line l = {tokens, n, line_tail};
    memcpy(line_tail, tail, (size_t)n_tail * sizeof *tail);
    *match = 0;
    for (int t = 1; t >= 0 && from == 0; t--) {
        if (total < (size_t)lengths[t] + 1)
            continue;
        size_t end = (size_t)c->ends[t][hash(&l, total, lengths[t]) & c->mask];
        int k = end > 0 && end < total && end <= n ? match_length(&l, end, total) : 0;
        if (k >= lengths[t]) {
            from = end;
            *match = k;
        }
    }
    if (from == 0)
        return 0;
    for (int i = 0; i < most; i++) /* what is copied lengthens the tail that is copied from */
        line_tail[n_tail + i] = out[i] = at(&l, from + (size_t)i);
    return most;
}

/* ---- When to copy ------------------------------------------------------------------------- */

static int class_of(int match)
{
    return match < MX_COPY_LONG ? 0 : match < 2 * MX_COPY_LONG ? 1 : 2;
}

void mx_copy_control_init(struct mx_copy_control *k, struct mx_copy_record *record)
{
    *k = (struct mx_copy_control){
        .mean = 1, .backoff = FIRST_BACKOFF, .patience = FIRST_PATIENCE, .record = record};
}

int mx_copy_allowed(const struct mx_copy_control *k, size_t at_token)
{
    if (at_token < k->resume)
        return 0;
    return k->rounds < PROBATION_ROUNDS ? PROBATION : MTPLX_MAX_DEPTH;
}

double mx_copy_p(const struct mx_copy_control *k, int match)
{
    static const double priors[MX_COPY_CLASSES] = {0.5, 0.75, 0.85};
    int c = class_of(match);
    double p = priors[c];
    if (k->refused >= k->patience)
        return p;
    if (k->record)
        p = (k->record->accepted[c] + PRIOR_TESTS * p) / (k->record->tested[c] + PRIOR_TESTS);
    return (k->accepted[c] + PRIOR_TESTS * p) / (k->tested[c] + PRIOR_TESTS);
}

void mx_copy_refused(struct mx_copy_control *k)
{
    if (k->refused < k->patience)
        k->refused++;
}

void mx_copy_feed(struct mx_copy_control *k, int match, int tested, int accepted, size_t at_token)
{
    int c = class_of(match);
    if (tested <= 0)
        return;
    if (k->refused >= k->patience) /* it was a test of a bad record */
        k->patience = accepted == tested            ? FIRST_PATIENCE
                      : k->patience < MOST_PATIENCE ? 2 * k->patience
                                                    : MOST_PATIENCE;
    k->refused = 0;
    for (int i = 0; i < tested; i++) {
        k->tested[c] = MEMORY * k->tested[c] + 1;
        k->accepted[c] = MEMORY * k->accepted[c] + (i < accepted);
        if (k->record) {
            k->record->tested[c] = RECORD * k->record->tested[c] + 1;
            k->record->accepted[c] = RECORD * k->record->accepted[c] + (i < accepted);
        }
    }
    k->mean = 0.7 * k->mean + 0.3 * accepted / tested;
    k->rounds++;
    if (k->mean >= GOOD) {
        k->backoff = FIRST_BACKOFF;
    } else if (k->rounds >= JUDGED_ROUNDS && k->mean < LEAST) {
        k->resume = at_token + k->backoff;
        k->backoff = 2 * k->backoff < MOST_BACKOFF ? 2 * k->backoff : MOST_BACKOFF;
        k->rounds = 0;
        k->mean = GOOD;
        for (int i = 0; i < MX_COPY_CLASSES; i++) /* try again as if nothing was known */
            k->tested[i] = k->accepted[i] = 0;
    }
}
