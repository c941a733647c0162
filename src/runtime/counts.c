/* Token counts and the penalties made from them.
 *
 * An open-addressing hash table with linear probing: a context of 100,000 tokens holds a few
 * thousand distinct ids, so a table is smaller than an array over the vocabulary, needs no
 * vocabulary size and is walked quickly when the penalties are applied to a row.
 *
 * Invariants
 *  1. A slot is empty (id < 0) or holds a token that was seen: in_prompt or completion > 0.
 *  2. No slot between a token's home and its slot is empty; removal shifts later entries back, so
 *     there are no tombstones and drafted tokens taken back leave no trace.
 *  3. At most half of the slots are used, and their number is a power of two. */
#include "runtime/counts.h"

#include <math.h>
#include <stdlib.h>

#include "runtime/weights.h"

enum { FIRST_SLOTS = 256 };

struct slot {
    int32_t id;
    uint32_t completion; /* occurrences in the completion, in-block drafts included */
    bool in_prompt;
};

struct mx_counts {
    struct slot *slots;
    size_t mask; /* number of slots - 1 */
    size_t used;
};

static struct slot *new_slots(size_t n)
{
    if (n > SIZE_MAX / sizeof(struct slot))
        return NULL;
    struct slot *s = malloc(n * sizeof *s);
    for (size_t i = 0; s && i < n; i++)
        s[i] = (struct slot){.id = -1};
    return s;
}

struct mx_counts *mx_counts_new(mtplx_error *err)
{
    struct mx_counts *c = malloc(sizeof *c);
    struct slot *slots = new_slots(FIRST_SLOTS);
    if (!c || !slots) {
        free(c);
        free(slots);
        mx_error_nomem(err, "token counts", FIRST_SLOTS * sizeof *slots);
        return NULL;
    }
    *c = (struct mx_counts){.slots = slots, .mask = FIRST_SLOTS - 1};
    return c;
}

void mx_counts_free(struct mx_counts *c)
{
    if (!c)
        return;
    free(c->slots);
    free(c);
}

void mx_counts_clear(struct mx_counts *c)
{
    for (size_t i = 0; i <= c->mask; i++)
        c->slots[i] = (struct slot){.id = -1};
    c->used = 0;
}

/* Where `id` would stand in an uncrowded table: the finaliser of MurmurHash3, which spreads the
 * runs of neighbouring ids that a prompt full of one script or of digits has. */
static size_t home(const struct mx_counts *c, int32_t id)
{
    uint32_t h = (uint32_t)id;
    h = (h ^ (h >> 16)) * 0x85ebca6bu;
    h = (h ^ (h >> 13)) * 0xc2b2ae35u;
    return (h ^ (h >> 16)) & c->mask;
}

/* The slot of `id`, or the empty slot where it belongs. Ends because of invariant 3. */
static size_t find(const struct mx_counts *c, int32_t id)
{
    size_t i = home(c, id);
    while (c->slots[i].id >= 0 && c->slots[i].id != id)
        i = (i + 1) & c->mask;
    return i;
}

static mtplx_status grow(struct mx_counts *c, mtplx_error *err)
{
    size_t n = c->mask + 1;
    struct slot *slots = n <= SIZE_MAX / 2 ? new_slots(2 * n) : NULL;
    if (!slots)
        return mx_error_nomem(err, "token counts", 2 * n * sizeof *slots);
    struct mx_counts next = {.slots = slots, .mask = 2 * n - 1, .used = c->used};
    for (size_t i = 0; i < n; i++)
        if (c->slots[i].id >= 0)
            slots[find(&next, c->slots[i].id)] = c->slots[i];
    free(c->slots);
    *c = next;
    return MTPLX_OK;
}

mtplx_status mx_counts_reserve(struct mx_counts *c, size_t distinct, mtplx_error *err)
{
    mtplx_status status = MTPLX_OK;
    while (status == MTPLX_OK && 2 * (distinct + 1) > c->mask + 1)
        status = grow(c, err);
    return status;
}

uint64_t mx_counts_bytes(size_t distinct)
{
    size_t slots = FIRST_SLOTS;
    while (2 * (distinct + 1) > slots && slots <= SIZE_MAX / 2)
        slots *= 2;
    return sizeof(struct mx_counts) + (uint64_t)slots * sizeof(struct slot);
}

mtplx_status mx_counts_add(struct mx_counts *c, int32_t id, bool prompt, mtplx_error *err)
{
    if (id < 0)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "token id %ld is negative; ids start at 0",
                        (long)id);
    size_t i = find(c, id);
    if (c->slots[i].id < 0) {
        if (2 * (c->used + 1) > c->mask + 1) {
            mtplx_status status = grow(c, err);
            if (status)
                return status;
            i = find(c, id);
        }
        c->slots[i] = (struct slot){.id = id};
        c->used++;
    }
    if (prompt)
        c->slots[i].in_prompt = true;
    else if (c->slots[i].completion < UINT32_MAX)
        c->slots[i].completion++;
    return MTPLX_OK;
}

/* Empties slot `i`, moving back every later entry of the run that may stand closer to its home. */
static void vacate(struct mx_counts *c, size_t i)
{
    size_t hole = i;
    for (size_t j = (i + 1) & c->mask; c->slots[j].id >= 0; j = (j + 1) & c->mask) {
        size_t from_home = (j - home(c, c->slots[j].id)) & c->mask;
        if (from_home >= ((j - hole) & c->mask)) {
            c->slots[hole] = c->slots[j];
            hole = j;
        }
    }
    c->slots[hole] = (struct slot){.id = -1};
    c->used--;
}

void mx_counts_remove(struct mx_counts *c, int32_t id)
{
    if (id < 0)
        return;
    size_t i = find(c, id);
    struct slot *s = &c->slots[i];
    if (s->id < 0 || s->completion == 0)
        return;
    s->completion--;
    if (s->completion == 0 && !s->in_prompt)
        vacate(c, i);
}

bool mx_counts_active(const struct mx_counts *c, const mtplx_sampling *cfg)
{
    return c && c->used > 0 &&
           (cfg->presence_penalty != 0 || cfg->frequency_penalty != 0 ||
            cfg->repetition_penalty != 1);
}

bool mx_counts_seen(const struct mx_counts *c, int32_t id)
{
    return c->slots[find(c, id)].id >= 0;
}

/* Computed in double and rounded once; a finite logit stays finite. */
static float penalised(const struct slot *s, const mtplx_sampling *cfg, float logit)
{
    double x = (double)mx_logit_clamp(logit);
    if (cfg->repetition_penalty != 1)
        x = x > 0 ? x / cfg->repetition_penalty : x * cfg->repetition_penalty;
    if (s->completion > 0)
        x -= cfg->presence_penalty + cfg->frequency_penalty * s->completion;
    if (x > (double)FLT_MAX)
        return FLT_MAX;
    if (x < -(double)FLT_MAX)
        return logit < -FLT_MAX ? -INFINITY : -FLT_MAX;
    return (float)x;
}

/* The place of a token in a row, or -1. */
static int place_of(int32_t id, const int32_t *ids, int n)
{
    if (!ids)
        return id < n ? id : -1;
    int low = 0, high = n;
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (ids[mid] < id)
            low = mid + 1;
        else
            high = mid;
    }
    return low < n && ids[low] == id ? low : -1;
}

void mx_counts_apply(const struct mx_counts *c, const mtplx_sampling *cfg, float *row,
                     const int32_t *ids, int n)
{
    for (size_t i = 0; i <= c->mask; i++) {
        const struct slot *s = &c->slots[i];
        int at = s->id >= 0 ? place_of(s->id, ids, n) : -1;
        if (at >= 0)
            row[at] = penalised(s, cfg, row[at]);
    }
}

int mx_counts_best(const struct mx_counts *c, const mtplx_sampling *cfg, const float *logits,
                   const int32_t *ids, int n, float *value)
{
    int best = 0;
    *value = -INFINITY;
    for (size_t i = 0; i <= c->mask; i++) {
        const struct slot *s = &c->slots[i];
        int at = s->id >= 0 ? place_of(s->id, ids, n) : -1;
        if (at < 0)
            continue;
        float x = penalised(s, cfg, logits[at]);
        if (x > *value || (x == *value && x > -INFINITY && at < best)) {
            *value = x;
            best = at;
        }
    }
    return best;
}
