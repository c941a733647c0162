/* Penalties, bias and mask on a row of logits. See row.h. */
#include "runtime/row.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/weights.h"

/* ---- Bias --------------------------------------------------------------------------------- */

struct mx_bias {
    int n, forced; /* forced: entries of 100 and more */
    mtplx_logit_bias entries[];
};

static const float CERTAIN = 100; /* and more: nothing else; minus that and less: never */

static int by_token(const void *a, const void *b)
{
    int32_t x = ((const mtplx_logit_bias *)a)->token, y = ((const mtplx_logit_bias *)b)->token;
    return (x > y) - (x < y);
}

static mtplx_status check_entry(const mtplx_logit_bias *e, int vocab, mtplx_error *err)
{
    if (e->token < 0 || e->token >= vocab)
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "logit_bias names token %d, but the vocabulary has %d", (int)e->token,
                        vocab);
    if (isnan(e->bias))
        return mx_error(err, MTPLX_ERR_ARGUMENT, "logit_bias of token %d is not a number",
                        (int)e->token);
    return MTPLX_OK;
}

/* Puts an entry in its place among the sorted ones. */
static void insert(struct mx_bias *b, const mtplx_logit_bias *e)
{
    mtplx_logit_bias *old = bsearch(e, b->entries, (size_t)b->n, sizeof *b->entries, by_token);
    if (old) {
        old->bias = e->bias;
        return;
    }
    int i = b->n++;
    for (; i > 0 && b->entries[i - 1].token > e->token; i--)
        b->entries[i] = b->entries[i - 1];
    b->entries[i] = *e;
}

uint64_t mx_bias_bytes(size_t n)
{
    return sizeof(struct mx_bias) + n * sizeof(mtplx_logit_bias);
}

struct mx_bias *mx_bias_new(const mtplx_logit_bias *entries, size_t n, int vocab, mtplx_error *err)
{
    if (n > MTPLX_MAX_LOGIT_BIAS) {
        mx_error(err, MTPLX_ERR_ARGUMENT, "logit_bias has %zu entries; at most %d are allowed", n,
                 MTPLX_MAX_LOGIT_BIAS);
        return NULL;
    }
    for (size_t i = 0; i < n; i++)
        if (check_entry(&entries[i], vocab, err) != MTPLX_OK)
            return NULL;
    struct mx_bias *b = calloc(1, mx_bias_bytes(n));
    if (!b) {
        mx_error_nomem(err, "logit_bias", mx_bias_bytes(n));
        return NULL;
    }
    for (size_t i = 0; i < n; i++)
        insert(b, &entries[i]);
    for (int i = 0; i < b->n; i++)
        b->forced += b->entries[i].bias >= CERTAIN;
    return b;
}

void mx_bias_free(struct mx_bias *b)
{
    free(b);
}

/* The place of a token at or after `from`, or -1. Both tokens and places ascend. */
static int place_from(int32_t token, const int32_t *ids, int n, int from)
{
    if (!ids)
        return token < n ? token : -1;
    int low = from, high = n;
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (ids[mid] < token)
            low = mid + 1;
        else
            high = mid;
    }
    return low < n && ids[low] == token ? low : -1;
}

static float biased(float logit, float bias)
{
    if (bias >= CERTAIN)
        return mx_logit_clamp(logit); /* among themselves they keep their odds */
    return bias <= -CERTAIN ? -INFINITY : mx_logit_clamp(logit) + bias;
}

static void add_bias(const struct mx_bias *b, const int32_t *ids, int n, float *row)
{
    for (int i = 0, at = 0; i < b->n; i++) {
        int p = place_from(b->entries[i].token, ids, n, at);
        if (p < 0)
            continue;
        row[p] = biased(row[p], b->entries[i].bias);
        at = p;
    }
}

/* Leaves only the tokens that are made certain, if the row has any that may come. */
static void force(const struct mx_bias *b, const int32_t *ids, int n, float *row)
{
    int places[MTPLX_MAX_LOGIT_BIAS], found = 0;
    float kept[MTPLX_MAX_LOGIT_BIAS];
    for (int i = 0; i < b->n; i++) {
        int p = b->entries[i].bias >= CERTAIN ? place_from(b->entries[i].token, ids, n, 0) : -1;
        if (p < 0 || !(row[p] >= -FLT_MAX))
            continue;
        places[found] = p;
        kept[found++] = row[p];
    }
    for (int i = 0; i < n && found > 0; i++)
        row[i] = -INFINITY;
    for (int i = 0; i < found; i++)
        row[places[i]] = kept[i];
}

/* ---- Mask --------------------------------------------------------------------------------- */

/* Up to 64 logits under one word; from and to may be the same. Words of a mask are mostly empty or
 * full, and cost a fill or a copy; of the others the rarer kind of bit is walked. */
static void mask_word(uint64_t word, const float *from, float *to, int n)
{
    uint64_t all = n < 64 ? ((uint64_t)1 << n) - 1 : UINT64_MAX;
    word &= all;
    if (__builtin_popcountll(word) > 32) {
        if (to != from)
            memcpy(to, from, (size_t)n * sizeof *to);
        for (uint64_t no = ~word & all; no; no &= no - 1)
            to[__builtin_ctzll(no)] = -INFINITY;
        return;
    }
    float kept[32] = {0};
    int k = 0;
    for (uint64_t yes = word; yes; yes &= yes - 1)
        kept[k++] = from[__builtin_ctzll(yes)];
    for (int i = 0; i < n; i++)
        to[i] = -INFINITY;
    k = 0;
    for (uint64_t yes = word; yes; yes &= yes - 1)
        to[__builtin_ctzll(yes)] = kept[k++];
}

static void mask_row(const uint64_t *mask, const float *from, const int32_t *ids, int n, float *to)
{
    for (int i = 0; !ids && i < n; i += 64)
        mask_word(mask[i / 64], from + i, to + i, n - i < 64 ? n - i : 64);
    for (int i = 0; ids && i < n; i++)
        to[i] = mx_mask_has(mask, ids[i]) ? from[i] : -INFINITY;
}

int32_t mx_mask_first(const uint64_t *mask, int vocab, bool *only)
{
    int32_t first = -1;
    for (int i = 0; i < vocab; i += 64) {
        uint64_t word = mask[i / 64];
        bool several = word & (word - 1);
        if (word && first < 0)
            first = i + __builtin_ctzll(word);
        else if (word)
            several = true;
        *only = !several;
        if (several)
            return first;
    }
    *only = first >= 0;
    return first;
}

/* ---- Rows --------------------------------------------------------------------------------- */

/* Whether a token of the mask is left above -inf. The first one usually is. */
static bool any_left(const uint64_t *mask, const float *row, const int32_t *ids, int n)
{
    for (int i = 0; ids && i < n; i++)
        if (row[i] >= -FLT_MAX)
            return true;
    for (int i = 0; !ids && i < n; i += 64)
        for (uint64_t word = mask[i / 64]; word; word &= word - 1) {
            int at = i + __builtin_ctzll(word);
            if (at < n && row[at] >= -FLT_MAX)
                return true;
        }
    return false;
}

/* The mask alone, whatever the logits are: what is no number or -inf counts as the least float. */
static bool mask_only(const uint64_t *mask, const float *logits, const int32_t *ids, int n,
                      float *out)
{
    bool any = false;
    for (int i = 0; i < n; i++) {
        bool may = mx_mask_has(mask, ids ? ids[i] : i);
        float x = logits[i] >= -FLT_MAX ? logits[i] : -FLT_MAX;
        out[i] = may ? x : -INFINITY;
        any |= may;
    }
    return any;
}

bool mx_row_apply(const struct mx_row_rules *r, const float *logits, const int32_t *ids, int n,
                  float *out)
{
    const float *from = logits;
    bool counted = mx_counts_active(r->counts, r->cfg);
    if (counted || r->bias || !r->mask) {
        memcpy(out, logits, (size_t)n * sizeof *out);
        from = out;
    }
    if (counted)
        mx_counts_apply(r->counts, r->cfg, out, ids, n);
    if (r->bias)
        add_bias(r->bias, ids, n, out);
    if (r->mask)
        mask_row(r->mask, from, ids, n, out);
    if (r->mask && !any_left(r->mask, out, ids, n))
        return mask_only(r->mask, logits, ids, n, out);
    if (r->bias && r->bias->forced)
        force(r->bias, ids, n, out);
    return true;
}
