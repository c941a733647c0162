/* Wide distributions. See wide.h.
 *
 * Residuals. The mass of (p - q)+ in a block is the block's mass less what p and q have in common,
 * the sum of min(p, q). That needs a look at q's tokens only, of which a draft vocabulary has eight
 * times fewer than p; and where both laws cover the same places it is one pass over two arrays. The
 * subtraction leaves an error of 1e-16 of the block's mass, as every sum here does: the emitted law
 * is off by that, not by a share of the residual, since a residual of mass R is drawn from with
 * probability R. Inside the chosen block the terms themselves are added. */
#include "runtime/wide.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/sampler.h"
#include "runtime/weights.h"

typedef double v2d __attribute__((vector_size(16)));

enum { BLOCK = MX_WEIGHTS_BLOCK };

static int block_count(const struct mx_wide *d)
{
    return (int)mx_weights_blocks((size_t)d->n);
}

/* End of a block's places. */
static int block_end(const struct mx_wide *d, int b)
{
    return d->n - b * BLOCK < BLOCK ? d->n : (b + 1) * BLOCK;
}

/* ---- Storage ------------------------------------------------------------------------------ */

void mx_wide_free(struct mx_wide *d)
{
    free(d->w);
    free(d->scale);
    free(d->mass);
    free(d->common);
    *d = (struct mx_wide){0};
}

mtplx_status mx_wide_reserve(struct mx_wide *d, int cap, mtplx_error *err)
{
    if (cap <= d->cap)
        return MTPLX_OK;
    size_t n = (size_t)cap, blocks = mx_weights_blocks(n);
    mx_wide_free(d);
    d->w = calloc(n, sizeof *d->w);
    d->scale = calloc(blocks, sizeof *d->scale);
    d->mass = calloc(blocks, sizeof *d->mass);
    d->common = calloc(blocks, sizeof *d->common);
    if (!d->w || !d->scale || !d->mass || !d->common) {
        mx_wide_free(d);
        return mx_error_nomem(err, "a distribution", n * sizeof *d->w);
    }
    d->cap = cap;
    return MTPLX_OK;
}

uint64_t mx_wide_bytes(int cap)
{
    const struct mx_wide *d = NULL;
    size_t n = (size_t)cap, blocks = mx_weights_blocks(n);
    return n * sizeof *d->w + blocks * (sizeof *d->scale + sizeof *d->mass + sizeof *d->common);
}

/* ---- Law ---------------------------------------------------------------------------------- */

/* Block masses and scales of the whole row, once the largest logit (in scale[]: of each block) is
 * known. */
static void normalise(struct mx_wide *d, float max, double inv_t)
{
    double z = 0;
    for (int b = 0; b < block_count(d); b++) {
        double t = (d->scale[b] - (double)max) * inv_t;
        d->scale[b] = t >= -MX_WEIGHTS_REACH ? exp(t) : 0;
        z += d->mass[b] * d->scale[b];
    }
    for (int b = 0; b < block_count(d); b++) {
        d->scale[b] /= z;
        d->mass[b] *= d->scale[b];
    }
}

bool mx_wide_fill(struct mx_wide *d, const float *x, const int32_t *ids, int n, double inv_t)
{
    float max = -INFINITY;
    d->n = n;
    d->ids = ids;
    for (int b = 0; b < block_count(d) && max <= FLT_MAX; b++) {
        size_t at = (size_t)b * BLOCK, size = (size_t)block_end(d, b) - at;
        float m = mx_logits_max(x + at, size);
        d->scale[b] = (double)m;
        d->mass[b] = mx_weights_single(x + at, size, m, inv_t, d->w + at);
        max = m > max ? m : max;
    }
    if (!(max >= -FLT_MAX) || max > FLT_MAX) {
        d->n = 0;
        return false;
    }
    normalise(d, max, inv_t);
    return true;
}

int mx_wide_place(const struct mx_wide *d, int32_t id)
{
    if (id < 0 || (!d->ids && id >= d->n))
        return -1;
    if (!d->ids)
        return id;
    int low = 0, high = d->n;
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (d->ids[mid] < id)
            low = mid + 1;
        else
            high = mid;
    }
    return low < d->n && d->ids[low] == id ? low : -1;
}

double mx_wide_at(const struct mx_wide *d, int place)
{
    return place < 0 ? 0 : (double)d->w[place] * d->scale[place / BLOCK];
}

static int32_t token_at(const struct mx_wide *d, int place)
{
    return d->ids ? d->ids[place] : place;
}

/* ---- Draws -------------------------------------------------------------------------------- */

int32_t mx_wide_draw(const struct mx_wide *d, double u)
{
    double before = 0;
    int block = 0, last = -1;
    /* The last block with a mass stands in where rounding left the sum a little below u. */
    for (int b = 0; b < block_count(d); b++) {
        if (!(d->mass[b] > 0))
            continue;
        before += last >= 0 ? d->mass[last] : 0;
        block = last = b;
        if (u < before + d->mass[b])
            break;
    }
    int place = block * BLOCK;
    for (int i = place; i < block_end(d, block); i++) {
        double p = mx_wide_at(d, i);
        before += p;
        place = p > 0 ? i : place;
        if (u < before)
            break;
    }
    return token_at(d, place);
}

/* ---- Residual ----------------------------------------------------------------------------- */

static inline v2d load2(const float *x)
{
    return (v2d){(double)x[0], (double)x[1]};
}

/* By lane, which compilers turn into the machine's minimum. */
static inline v2d min2(v2d a, v2d b)
{
    v2d m;
    for (int j = 0; j < 2; j++)
        m[j] = a[j] < b[j] ? a[j] : b[j];
    return m;
}

/* Sum of min(p, q) over one block of two laws over the same places. */
static double common_of_block(const struct mx_wide *p, const struct mx_wide *q, int b)
{
    const float *x = p->w + (size_t)b * BLOCK, *y = q->w + (size_t)b * BLOCK;
    double sp = p->scale[b], sq = q->scale[b], sum = 0;
    int n = block_end(p, b) - b * BLOCK, i = 0;
    v2d even = {0, 0}, odd = {0, 0};
    for (; i + 4 <= n; i += 4) {
        even += min2(load2(x + i) * sp, load2(y + i) * sq);
        odd += min2(load2(x + i + 2) * sp, load2(y + i + 2) * sq);
    }
    for (; i < n; i++)
        sum += fmin((double)x[i] * sp, (double)y[i] * sq);
    return sum + ((even[0] + even[1]) + (odd[0] + odd[1]));
}

static void add_common(const struct mx_wide *p, int32_t id, double q)
{
    int place = mx_wide_place(p, id);
    if (place >= 0)
        p->common[place / BLOCK] += fmin(mx_wide_at(p, place), q);
}

static void fill_common(const struct mx_wide *p, const struct mx_dist *q)
{
    const struct mx_wide *w = mx_dist_wide(q);
    if (w && w->ids == p->ids && w->n == p->n) {
        for (int b = 0; b < block_count(p); b++)
            p->common[b] = common_of_block(p, w, b);
        return;
    }
    memset(p->common, 0, (size_t)block_count(p) * sizeof *p->common);
    for (int i = 0; w && i < w->n; i++)
        add_common(p, token_at(w, i), mx_wide_at(w, i));
    for (int i = 0; !w && i < q->n; i++)
        add_common(p, q->ids[i], q->p[i]);
}

static double excess_of_block(const struct mx_wide *p, int b)
{
    double d = p->mass[b] - p->common[b];
    return d > 0 ? d : 0;
}

/* The token of block b at residual mass `target`; false when no token of it has any. */
static bool draw_excess(const struct mx_wide *p, const struct mx_dist *q, int b, double target,
                        int32_t *token)
{
    double mass = 0;
    bool found = false;
    for (int i = b * BLOCK; i < block_end(p, b); i++) {
        double have = mx_wide_at(p, i);
        double d = have > 0 ? have - mx_dist_prob(q, token_at(p, i)) : 0;
        if (!(d > 0))
            continue;
        mass += d;
        *token = token_at(p, i);
        found = true;
        if (target < mass)
            break;
    }
    return found;
}

bool mx_wide_residual(const struct mx_wide *p, const struct mx_dist *q, double u, int32_t *token)
{
    double total = 0, before = 0;
    bool found = false;
    fill_common(p, q);
    for (int b = 0; b < block_count(p); b++)
        total += excess_of_block(p, b);
    /* A block whose excess is rounding only may hold no token with one: the next stands in. */
    for (int b = 0; total > 0 && b < block_count(p); b++) {
        double here = excess_of_block(p, b);
        if (here > 0 && u * total < before + here &&
            draw_excess(p, q, b, u * total - before, token))
            return true;
        before += here;
    }
    for (int b = block_count(p) - 1; total > 0 && !found && b >= 0; b--)
        found = draw_excess(p, q, b, DBL_MAX, token);
    return found;
}
