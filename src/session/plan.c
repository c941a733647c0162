/* Where a prompt should be captured.
 *
 * Restore points are: the last token but one of the prompt (the same prompt again costs one token),
 * the last borders between messages (an edit of one of the last messages), the end of the first
 * message, which is the system prompt where there is one (a new conversation), and CHUNK points on
 * multiples of MX_KV_BLOCK, the first at most `spacing` from the end, each further one at most
 * twice as far as the one before.
 *
 * Guarantee, with what thinning (thin.h) leaves of earlier prompts: an edit at distance d before
 * the end of a prompt costs at most max(spacing, d) tokens before the edit, plus what rounding to a
 * block and leaving out points close to another one add: at most MX_KV_BLOCK + APART tokens.
 *
 * Spacing. A restore point costs a copy of the recurrent state, whatever its distance. The default
 * of 256 tokens is doubled until that copy is no larger than the KV cache of sixteen times as many
 * tokens: 256 it is for the shapes of 1B (19 MB of state, 14 KB of KV a token) and 4B (50 MB, 36
 * KB). Models without recurrent state can be cut anywhere and need the last point only. */
#include "session/bank_int.h"

#include <string.h>

/* Restore points closer than this to a better one are left out. */
#define APART 16
#define LAST_BORDERS 4
#define MOST_PLANNED 64

size_t mx_plan_spacing(uint64_t slab_bytes, uint64_t block_bytes, size_t spacing)
{
    uint64_t token_bytes = block_bytes / MX_KV_BLOCK;
    if (spacing) /* closer than a block, rounding would take points past the end */
        return spacing > MX_KV_BLOCK ? spacing : MX_KV_BLOCK;
    for (spacing = 256; spacing < 4096; spacing *= 2)
        if (slab_bytes / 16 / spacing <= token_bytes)
            break;
    return spacing;
}

struct plan {
    size_t from, n, count, most;
    size_t at[MOST_PLANNED];
    enum mx_point point[MOST_PLANNED];
};

/* Adds a point unless one that was added earlier is less than `apart` tokens away. */
static void add_apart(struct plan *p, size_t at, enum mx_point point, size_t apart)
{
    if (at <= p->from || at >= p->n || p->count == p->most)
        return;
    for (size_t i = 0; i < p->count; i++) {
        size_t gap = p->at[i] < at ? at - p->at[i] : p->at[i] - at;
        if (gap < apart)
            return;
    }
    p->at[p->count] = at;
    p->point[p->count++] = point;
}

static void add(struct plan *p, size_t at, enum mx_point point)
{
    add_apart(p, at, point, APART);
}

/* The last border is where the answer's own message begins, a few tokens before the end of the
 * prompt. What comes back of the answer next turn often differs right behind it (reasoning is left
 * out), so that the last token's point is of no use then: it stands however close that is. */
static void add_borders(struct plan *p, const size_t *borders, size_t n)
{
    size_t first = n && borders[0] == 0 ? 1 : 0;
    while (n > first && borders[n - 1] >= p->n)
        n--;
    if (n > first)
        add_apart(p, borders[n - 1], MX_POINT_BORDER, 1);
    if (n > first + 1)
        add_apart(p, borders[first], MX_POINT_SYSTEM, 1);
    for (size_t i = n; i-- > 0 && n - i <= LAST_BORDERS;)
        add(p, borders[i], MX_POINT_BORDER);
}

static void add_chunks(struct plan *p, size_t spacing)
{
    for (size_t d = spacing; d < p->n;) {
        size_t at = (p->n - d + MX_KV_BLOCK - 1) / MX_KV_BLOCK * MX_KV_BLOCK,
               twice = 2 * (p->n - at);
        add(p, at, MX_POINT_CHUNK);
        d = twice > d + MX_KV_BLOCK ? twice : d + MX_KV_BLOCK;
    }
}

static void swap(struct plan *p, size_t i, size_t j)
{
    size_t at = p->at[i];
    enum mx_point point = p->point[i];
    p->at[i] = p->at[j];
    p->point[i] = p->point[j];
    p->at[j] = at;
    p->point[j] = point;
}

size_t mx_bank_plan(const struct mx_bank *b, size_t from, size_t n, const size_t *borders,
                    size_t n_borders, size_t *out, enum mx_point *points, size_t most)
{
    struct plan p = {.from = from, .n = n, .most = most < MOST_PLANNED ? most : MOST_PLANNED};
    if (n < 2)
        return 0;
    add(&p, n - 1, MX_POINT_PROMPT);
    if (!b->can_cut) {
        add_borders(&p, borders, n_borders);
        add_chunks(&p, b->spacing);
    }
    for (size_t i = 1; i < p.count; i++)
        for (size_t j = i; j > 0 && p.at[j] < p.at[j - 1]; j--)
            swap(&p, j, j - 1);
    for (size_t i = 0; i < p.count; i++) {
        out[i] = p.at[i];
        points[i] = p.point[i];
    }
    return p.count;
}
