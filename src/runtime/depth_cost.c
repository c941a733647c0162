/* Times of passes, estimated while they run: see depth.h.
 *
 *  1. Estimates are kept as logarithms: a residual of 0.1 is 10 % at any speed.
 *  2. A residual counts up to three times the usual spread (at least 15 %), so that a preempted
 * pass (ten times too slow, one in twenty) moves nothing. Six clipped residuals of one sign in a
 * row are no outliers but a new truth, which is then taken over in half-steps.
 *  3. A time that was never measured follows the shape, moved so that it passes through the
 *     measured neighbours. It does not decrease with n. */
#include "runtime/depth.h"

#include <math.h>
#include <stdlib.h>

/* Priors in units of a one-row pass, for a bandwidth-bound machine. Optimistic: what looks cheap is
 * tried, and then measured. */
#define PRIOR_ROW 0.10   /* each row after the first */
#define PRIOR_DRAFT 0.08 /* a draft step for one sequence */
#define PRIOR_SEQ 0.10   /* each sequence after the first, in units of that */

#define FIRST_SURPRISE 0.25 /* of the logarithm: 28 % slower than expected */

enum {
    SAMPLE_CAP = 64,
    SNAP_AFTER = 6,
    YOUNG = 8, /* samples up to which a node may be far off, being new or another run's */
};

static const int nodes_at[MX_COST_NODES] = {1,  2,  3,  4,  5,  6,  7,   8,   9,   12,
                                            16, 24, 32, 48, 64, 96, 128, 192, 320, 576};

int mx_cost_node_at(int i)
{
    return nodes_at[i];
}

/* Index of the node nearest to n. */
static int node_of(int n)
{
    int i = 0;
    while (i + 1 < MX_COST_NODES && abs(nodes_at[i + 1] - n) <= abs(nodes_at[i] - n))
        i++;
    return i;
}

static int context_of(size_t context)
{
    int b = 0;
    for (size_t limit = 1024; b + 1 < MX_COST_CONTEXTS && context >= limit; limit *= 4)
        b++;
    return b;
}

static double prior(enum mx_cost_kind kind, int n)
{
    if (kind == MX_COST_VERIFY)
        return 1 + PRIOR_ROW * (n - 1);
    return PRIOR_DRAFT * (1 + PRIOR_SEQ * (n - 1));
}

void mx_costs_init(struct mx_costs *c)
{
    *c = (struct mx_costs){.spread = 0.1};
    for (int b = 0; b < MX_COST_CONTEXTS; b++)
        for (int kind = 0; kind < MX_COST_KINDS; kind++)
            for (int i = 0; i < MX_COST_NODES; i++)
                c->shape[b][kind][i] = log(prior((enum mx_cost_kind)kind, nodes_at[i]));
}

/* The shape at any n: linear in n between nodes. */
static double shape(const struct mx_costs *c, enum mx_cost_kind kind, int n, int context)
{
    const double *v = c->shape[context][kind];
    int i = 0;
    while (i + 2 < MX_COST_NODES && nodes_at[i + 1] <= n)
        i++;
    double part = (double)(n - nodes_at[i]) / (nodes_at[i + 1] - nodes_at[i]);
    double low = exp(v[i]), high = exp(v[i + 1]);
    return log(fmax(low + part * (high - low), 1e-6));
}

/* The node of this n in the nearest context that has one, or NULL. */
static const struct mx_cost_node *known(const struct mx_costs *c, enum mx_cost_kind kind, int node,
                                        int context)
{
    for (int away = 0; away < MX_COST_CONTEXTS; away++)
        for (int side = -1; side <= 1; side += 2) {
            int b = context + side * away;
            if (b >= 0 && b < MX_COST_CONTEXTS && c->nodes[b][kind][node].samples > 0)
                return &c->nodes[b][kind][node];
        }
    return NULL;
}

/* Time at n relative to the level: the shape, off by what its measured neighbours are off. */
static double relative(const struct mx_costs *c, enum mx_cost_kind kind, int n, int context)
{
    int low = -1, high = -1;
    double off[2] = {0, 0}, least = -1e9;
    for (int i = 0; i < MX_COST_NODES && high < 0; i++) {
        const struct mx_cost_node *k = known(c, kind, i, context);
        if (!k)
            continue;
        double by = k->at - c->shape[context][kind][i];
        if (nodes_at[i] <= n) {
            low = i;
            off[0] = by;
            least = fmax(least, k->at);
        } else {
            high = i;
            off[1] = by;
        }
    }
    double part = low < 0 ? 1 : 0;
    if (low >= 0 && high >= 0)
        part = (double)(n - nodes_at[low]) / (nodes_at[high] - nodes_at[low]);
    return exp(fmax(least, shape(c, kind, n, context) + off[0] + part * (off[1] - off[0])));
}

double mx_cost(const struct mx_costs *c, enum mx_cost_kind kind, int n, size_t context)
{
    return exp(c->level) * relative(c, kind, n, context_of(context));
}

double mx_cost_log(const struct mx_costs *c, enum mx_cost_kind kind, int i, int context)
{
    return log(relative(c, kind, nodes_at[i], context) / relative(c, MX_COST_VERIFY, 1, 0));
}

void mx_costs_reshape(struct mx_costs *c)
{
    struct mx_costs fresh = {.spread = 0.1, .shaped = true};
    for (int b = 0; b < MX_COST_CONTEXTS; b++)
        for (int kind = 0; kind < MX_COST_KINDS; kind++)
            for (int i = 0; i < MX_COST_NODES; i++)
                fresh.shape[b][kind][i] = mx_cost_log(c, (enum mx_cost_kind)kind, i, b);
    *c = fresh;
}

int mx_cost_samples(const struct mx_costs *c, enum mx_cost_kind kind, int n)
{
    int sum = 0;
    for (int b = 0; b < MX_COST_CONTEXTS; b++)
        sum += c->nodes[b][kind][node_of(n)].samples;
    return sum;
}

/* ---- Feeding ------------------------------------------------------------------------------ */

static double clip(double x, double most)
{
    return x > most ? most : x < -most ? -most : x;
}

/* Counts clipped residuals of one sign in a row. Returns, from the sixth on, the least of the run:
 * outliers among them, which know no measure, then do not count for more than the others; else 0.
 */
static double surprise(struct mx_surprise *run, double r, double limit)
{
    if (fabs(r) <= limit) {
        run->length = 0;
        return 0;
    }
    bool same = run->length > 0 && (r > 0) == (run->least > 0);
    run->least = same && fabs(run->least) < fabs(r) ? run->least : r;
    run->length = !same ? 1 : run->length < SNAP_AFTER ? run->length + 1 : SNAP_AFTER;
    return run->length == SNAP_AFTER ? run->least : 0;
}

/* Slow passes are common, fast ones are not: the lower of two samples, the middle of three. */
static double early_estimate(const double *first, int n)
{
    double low = fmin(first[0], first[n - 1]), high = fmax(first[0], first[n - 1]);
    if (n < 3)
        return low;
    return fmax(low, fmin(high, first[1]));
}

static void feed_node(struct mx_cost_node *k, double value, double expected, double spread)
{
    if (k->samples < 3) {
        k->first[k->samples++] = value;
        k->at = early_estimate(k->first, k->samples);
        if (k->samples == 1) /* an unlucky first sample must not scare the planner off for good */
            k->at = fmin(k->at, expected + FIRST_SURPRISE);
        return;
    }
    double r = value - k->at, limit = fmax(3 * spread, k->samples < YOUNG ? 0.5 : 0.15);
    double news = surprise(&k->surprise, r, limit), gain = fmax(1.0 / (k->samples + 1), 0.05);
    k->at += news != 0 ? 0.5 * news : gain * clip(r, limit);
    k->samples += k->samples < SAMPLE_CAP;
}

/* The level takes a tenth of each residual; early on more, since nothing is known yet. */
static void feed_level(struct mx_costs *c, double r)
{
    double limit = fmax(3 * c->spread, 0.15), gain = fmax(1.0 / (c->samples + 1), 0.1);
    double news = surprise(&c->surprise, r, limit), clipped = clip(r, limit);
    c->level += news != 0 ? 0.5 * news : gain * clipped;
    double spread = c->spread + 0.05 * (fabs(clipped) - c->spread);
    c->spread = fmin(fmax(spread, 0.02), 0.3);
    c->samples += c->samples < SAMPLE_CAP;
}

void mx_cost_feed(struct mx_costs *c, enum mx_cost_kind kind, int n, size_t context, double ns)
{
    int b = context_of(context);
    struct mx_cost_node *k = &c->nodes[b][kind][node_of(n)];
    if (!(ns > 0) || !(ns < 1e15) || n < 1)
        return;
    double expected = log(relative(c, kind, n, b)), seen = log(ns);
    if (c->samples == 0) {
        c->level = seen - expected;
        c->samples = 1;
    } else if (k->samples > 0 || known(c, kind, node_of(n), b)) {
        feed_level(c, seen - c->level - expected);
    }
    /* A sample at an n between nodes is moved to its node along the present curve. */
    double shift = log(relative(c, kind, nodes_at[node_of(n)], b)) - expected;
    if (k->samples == 0 && known(c, kind, node_of(n), b)) {
        *k = *known(c, kind, node_of(n), b); /* another context's is a better start than none */
        k->samples = k->samples < 3 ? k->samples : 3;
    }
    feed_node(k, seen - c->level + shift, expected + shift, c->spread);
}
