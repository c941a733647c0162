/* The reference program's depth policies, by its names and constants, for comparison with auto.
 *
 *   streak          one deeper after 4 fully accepted cycles in a row, one shallower after a
 *                   rejection in the first half of the block; never below 1
 *   expected_value  deepen while the chance that the next draft is reached and accepted is worth
 * its measured time, and at least 0.18 cost            the depth of the best expected tokens per
 * measured cycle time of that depth, kept until another is 3 % better; neighbours are probed
 *   position_ema    deepen while a draft's chance to be reached exceeds what it costs at a fixed
 *                   overhead of 0.2 of a pass; 0 when not even the first is worth it
 *
 * expected_value's confidence term (the draft's logit margin) is left out: greedy drafts come as
 * ids without logits, and P1 of depth.h rules it out for sampled ones. */
#include "runtime/depth.h"

#include <math.h>

#define STREAK 4
#define EV_ALPHA 0.12
#define EV_LEAST 0.18
#define EV_MARGIN 1.10
#define EV_WARM 4
#define EV_EXPLORE 32
#define COST_ALPHA 0.08
#define COST_MS 400.0
#define COST_HYSTERESIS 1.03
#define COST_PROBE 4
#define COST_DUTY 0.15
#define POS_ALPHA 0.15
#define POS_OVERHEAD 0.20
#define POS_PROBE 8

static double ev_prior(int i)
{
    static const double first[3] = {0.92, 0.64, 0.32};
    return i < 3 ? first[i] : first[2];
}

void mx_rules_init(struct mx_depth *d)
{
    struct mx_depth_rules *r = &d->rules;
    r->depth = d->most;
    for (int i = 0; i < MTPLX_MAX_DEPTH; i++)
        r->ema[i] = d->policy == MTPLX_DEPTH_POSITION_EMA ? 0.85 * pow(0.98, i) : ev_prior(i);
}

/* Discounts position i by alpha towards what the cycle showed. */
static void feed_ema(struct mx_depth_rules *r, const struct mx_depth_cycle *c, double alpha)
{
    for (int i = 0; i < c->tested; i++)
        r->ema[i] += alpha * ((i < c->accepted) - r->ema[i]);
}

/* ---- streak ------------------------------------------------------------------------------- */

static void streak_feed(struct mx_depth *d, const struct mx_depth_cycle *c)
{
    struct mx_depth_rules *r = &d->rules;
    bool all = c->planned > 0 && c->accepted == c->planned;
    r->streak = all ? r->streak + 1 : 0;
    if (r->streak == STREAK) {
        r->streak = 0;
        r->depth += r->depth < d->most;
    } else if (!all && c->tested > c->accepted && 2 * c->tested <= c->planned + 1) {
        r->depth -= r->depth > 1;
    }
}

/* ---- expected_value ----------------------------------------------------------------------- */

static int ev_next(const struct mx_depth *d, const struct mx_depth_ask *ask)
{
    const struct mx_depth_rules *r = &d->rules;
    double reach = 1, plain = mx_depth_time(d->model, 0, ask->peers, ask->context);
    int k = 0;
    if (r->cycles < EV_WARM || r->cycles % EV_EXPLORE == 0)
        return ask->most;
    for (; k < ask->most; k++) {
        double more = mx_depth_time(d->model, k + 1, ask->peers, ask->context) -
                      mx_depth_time(d->model, k, ask->peers, ask->context);
        reach *= r->ema[k];
        if (k > 0 && reach < fmax(EV_LEAST, more / plain * EV_MARGIN))
            break;
    }
    return k;
}

/* ---- cost --------------------------------------------------------------------------------- */

static double cost_score(const struct mx_depth *d, int k)
{
    double tokens = 1, reach = 1;
    for (int i = 0; i < k; i++) {
        reach *= d->rules.ema[i];
        tokens += reach;
    }
    return d->rules.ms[k] > 0 ? tokens / d->rules.ms[k] : 0;
}

static int cost_next(struct mx_depth *d, const struct mx_depth_ask *ask)
{
    struct mx_depth_rules *r = &d->rules;
    if (r->probing > 0) {
        r->probing--;
        r->probed++;
        return r->probe_depth;
    }
    for (int k = 0; k <= ask->most; k++)
        if (cost_score(d, k) > cost_score(d, r->depth) * COST_HYSTERESIS)
            r->depth = k;
    if ((double)r->probed < COST_DUTY * (double)r->cycles - COST_PROBE) {
        int side = r->cycles / COST_PROBE % 2 ? 1 : -1, k = r->depth + side;
        r->probe_depth = k < 0 ? 1 : k > ask->most ? ask->most - 1 : k;
        r->probing = r->probe_depth >= 0 ? COST_PROBE : 0;
    }
    return r->depth;
}

static void cost_feed(struct mx_depth *d, const struct mx_depth_cycle *c)
{
    double *ms = &d->rules.ms[c->planned], now = c->ns * 1e-6;
    *ms = *ms > 0 ? *ms + (1 - exp(-now / COST_MS)) * (now - *ms) : now;
}

/* ---- position_ema ------------------------------------------------------------------------- */

static int position_next(const struct mx_depth *d, const struct mx_depth_ask *ask)
{
    const struct mx_depth_rules *r = &d->rules;
    double reach = 1, tokens = 0; /* accepted drafts expected of k */
    int k = 0;
    for (; k < ask->most; k++) {
        reach *= r->ema[k];
        if (reach <= POS_OVERHEAD * (1 + tokens) / (1 + k * POS_OVERHEAD))
            break;
        tokens += reach;
    }
    return k == 0 && r->serial >= POS_PROBE && ask->most > 0 ? 1 : k;
}

/* ---- Interface ---------------------------------------------------------------------------- */

int mx_rules_next(struct mx_depth *d, const struct mx_depth_ask *ask)
{
    switch (d->policy) {
    case MTPLX_DEPTH_STREAK: return d->rules.depth;
    case MTPLX_DEPTH_EXPECTED_VALUE: return ev_next(d, ask);
    case MTPLX_DEPTH_COST: return cost_next(d, ask);
    case MTPLX_DEPTH_POSITION_EMA: return position_next(d, ask);
    case MTPLX_DEPTH_FIXED:
    case MTPLX_DEPTH_AUTO: break;
    }
    return d->most;
}

void mx_rules_feed(struct mx_depth *d, const struct mx_depth_cycle *c)
{
    struct mx_depth_rules *r = &d->rules;
    if (c->planned == 0 && c->copied > 0)
        return; /* rows that no draft step made say nothing about a depth */
    r->cycles++;
    r->serial = c->planned > 0 ? 0 : r->serial + 1;
    switch (d->policy) {
    case MTPLX_DEPTH_STREAK: streak_feed(d, c); break;
    case MTPLX_DEPTH_EXPECTED_VALUE: feed_ema(r, c, EV_ALPHA); break;
    case MTPLX_DEPTH_COST:
        feed_ema(r, c, COST_ALPHA);
        cost_feed(d, c);
        break;
    case MTPLX_DEPTH_POSITION_EMA: feed_ema(r, c, POS_ALPHA); break;
    case MTPLX_DEPTH_FIXED:
    case MTPLX_DEPTH_AUTO: break;
    }
}
