/* Depth policies: the common interface and the default policy (auto). See depth.h for the terms.
 *
 * auto plans the depth of the highest expected rate, and now and then another one to keep its
 * figures true:
 *
 *   warm-up   In a new process the first cycles include a plain one and one of depth 1; on a
 *             machine that nothing is known of, three of each. So both ends of the trade are
 *             measured before anything is believed.
 *   probe     At depth 0 nothing tells whether drafting would pay again. A cycle of depth 1 asks,
 *             after 8 plain ones, then 16, ... up to an interval at which it costs PROBE_SHARE of
 *             the time; an accepted one that brings drafting near to paying halves it.
 *   look      At other depths, each LOOK_EVERY cycles one goes to a neighbouring depth whose rate
 *             is expected to be close, which keeps the times and deep acceptances in between fresh.
 *
 * A depth is kept until another is better by HYSTERESIS.
 *
 * In a batch of B generations each plans as if all B chose its depth: k then costs a pass of
 * B (k + 1) rows and draft steps of B rows, for B E(k) tokens. That prices the rows of a shared
 * pass by the slope of the cost curve where the batch stands on it, which is what matters; that the
 * others may choose another depth is neglected. A cycle to learn from costs everyone: one that
 * drafts makes the shared pass one to be verified and committed, whoever asked. So in a batch each
 * asks B times more rarely, and all together as often as one alone. */
#include "runtime/depth.h"

#include <math.h>
#include <stddef.h>

#define HYSTERESIS 1.01
#define PROBE_SHARE 0.007
#define CLOSE 0.9   /* rate of a neighbour worth a look */
#define UNSURE 0.75 /* the same where the time is an old run's or a guess */
#define FAR 0.5     /* the same for the rare look at any depth */
#define START_DEPTH 2

enum {
    FIRST_INTERVAL = 8,
    MOST_INTERVAL = 512,
    LOOK_EVERY = 48,
    LOOK_EARLY = 16, /* within the first cycles of a generation */
    EARLY = 64,
    WARM_CYCLES = 10,
    RAMP = 3,
    UNKNOWN_SAMPLES = 3,
};

void mx_depth_init(struct mx_depth *d, mtplx_depth_policy policy, int most,
                   struct mx_depth_model *model)
{
    *d = (struct mx_depth){
        .policy = policy, .most = most, .model = model, .interval = FIRST_INTERVAL};
    d->last = most < START_DEPTH ? most : START_DEPTH;
    mx_accept_init(&d->accept, model ? &model->record : NULL);
    mx_rules_init(d);
}

/* Times that a plan is made of, looked up once. */
struct times {
    double verify[MTPLX_MAX_DEPTH + 1]; /* by drafts of each generation */
    double first, next;
};

static struct times times_of(const struct mx_depth_model *m, int most, int peers, size_t context)
{
    const struct mx_costs *c = &m->costs;
    struct times t = {.first = mx_cost(c, MX_COST_FIRST, peers, context),
                      .next = mx_cost(c, MX_COST_NEXT, peers, context)};
    for (int k = 0; k <= most; k++)
        t.verify[k] = mx_cost(c, MX_COST_VERIFY, peers * (k + 1), context);
    if (mx_cost_samples(c, MX_COST_NEXT, peers) == 0 && t.next > t.first)
        t.next = t.first; /* which did more work */
    return t;
}

static double time_of(const struct times *t, int k)
{
    return t->verify[k] + (k > 0) * t->first + (k > 1) * (k - 1) * t->next;
}

double mx_depth_time(const struct mx_depth_model *m, int k, int peers, size_t context)
{
    struct times t = times_of(m, k, peers, context);
    return time_of(&t, k) / peers; /* the share of one */
}

/* ---- auto --------------------------------------------------------------------------------- */

/* Expected rates of all depths: tokens of the batch per ns. */
static void rates_of(const struct mx_depth *d, const struct mx_depth_ask *ask,
                     const struct times *t, double *rate)
{
    double tokens = 1, reach = 1;
    for (int k = 0; k <= ask->most; k++) {
        rate[k] = ask->peers * tokens / time_of(t, k);
        if (k < ask->most) {
            reach *= mx_accept_p(&d->accept, k);
            tokens += reach;
        }
    }
}

/* The best depth. An answer begins with a shallow one, since what it is like is not known: too deep
 * costs more than too shallow. */
static int best_depth(const struct mx_depth *d, const struct mx_depth_ask *ask, const double *rate)
{
    int most = d->cycles < RAMP ? START_DEPTH + (int)d->cycles : ask->most;
    most = most < ask->most ? most : ask->most;
    int best = d->last < most ? d->last : most;
    double least = rate[best] * HYSTERESIS;
    for (int k = 0; k <= most; k++)
        if (rate[k] > least) {
            best = k;
            least = rate[k];
        }
    return best;
}

/* Plain cycles between probes so that they cost PROBE_SHARE of the time at the most. */
static uint64_t longest_interval(const struct mx_depth *d, const struct mx_depth_ask *ask)
{
    double plain = mx_depth_time(d->model, 0, ask->peers, ask->context);
    double extra = mx_depth_time(d->model, 1, ask->peers, ask->context) / plain - 1;
    double n = extra / PROBE_SHARE;
    return n < 2 * FIRST_INTERVAL ? 2 * FIRST_INTERVAL
           : n > MOST_INTERVAL    ? MOST_INTERVAL
                                  : (uint64_t)n;
}

/* The depth that the warm-up wants now, or -1. */
static int warm_up(const struct mx_depth *d, const struct mx_depth_ask *ask)
{
    const struct mx_depth_model *m = d->model;
    if (ask->peers > 1 || m->cycles < 2 || m->cycles >= WARM_CYCLES)
        return -1;
    uint64_t want = m->costs.shaped ? 1 : UNKNOWN_SAMPLES;
    if (m->cycles % 3 == 1 && m->plain < want)
        return 0;
    return m->cycles % 3 == 2 && m->shallow < want && ask->most > 0 ? 1 : -1;
}

static bool unsure(const struct mx_depth *d, int k)
{
    return mx_cost_samples(&d->model->costs, MX_COST_VERIFY, k + 1) < UNKNOWN_SAMPLES;
}

/* A depth far from `best`: the most promising of those hardly measured, else each in turn. */
static int far_look(struct mx_depth *d, const struct mx_depth_ask *ask, const double *rate,
                    int best)
{
    int most = -1;
    for (int k = 0; k <= ask->most; k++)
        if (k != best && unsure(d, k) && (most < 0 || rate[k] > rate[most]))
            most = k;
    if (most < 0)
        most = (int)(d->turn++ % (uint64_t)(ask->most + 1));
    return most;
}

/* A depth to look at instead of `best`, or -1: the neighbours in turn, and rarely any other. */
static int look(struct mx_depth *d, const struct mx_depth_ask *ask, const double *rate, int best)
{
    bool new_above = best < ask->most && unsure(d, best + 1);
    uint64_t every = d->cycles < EARLY || new_above ? LOOK_EARLY : LOOK_EVERY;
    if (d->cycles < d->looked + every * (uint64_t)ask->peers)
        return -1;
    d->looked = d->cycles;
    d->look = (d->look + 1) % 4;
    int k = d->look == 3 ? far_look(d, ask, rate, best) : best + (d->look % 2 ? 1 : -1);
    if (k < 0 || k > ask->most || k == best)
        return -1;
    double least = d->look == 3 ? FAR : unsure(d, k) ? UNSURE : CLOSE;
    return rate[k] >= least * rate[best] ? k : -1;
}

/* Copying m tokens takes no draft step: E = 1 + p + .. + p^m for a pass of m + 1 rows. */
static double copy_rate(const struct mx_depth_ask *ask, const struct times *t, int *length)
{
    double best = 0, tokens = 1, reach = 1;
    *length = 0;
    for (int m = 1; m <= ask->copy; m++) {
        reach *= ask->copy_p;
        tokens += reach;
        double rate = tokens * ask->peers / t->verify[m];
        if (rate > best) {
            best = rate;
            *length = m;
        }
    }
    return best;
}

static struct mx_depth_plan plan_auto(struct mx_depth *d, const struct mx_depth_ask *ask)
{
    double rate[MTPLX_MAX_DEPTH + 1];
    int length, asked = -1, most = ask->copy > ask->most ? ask->copy : ask->most;
    struct times t = times_of(d->model, most, ask->peers, ask->context);
    rates_of(d, ask, &t, rate);
    int best = best_depth(d, ask, rate);
    double copying = copy_rate(ask, &t, &length);
    if (copying > rate[best])
        return (struct mx_depth_plan){.copy = length, .rate = copying, .ns = t.verify[length]};
    d->last = best;
    asked = warm_up(d, ask);
    if (asked < 0 && best > 0)
        asked = look(d, ask, rate, best);
    if (asked < 0 && best == 0 && ask->most > 0 &&
        d->plain_run >= d->interval * (uint64_t)ask->peers)
        asked = 1;
    int k = asked >= 0 ? asked : best;
    return (struct mx_depth_plan){
        .depth = k, .probe = asked >= 0 && asked != best, .rate = rate[best], .ns = time_of(&t, k)};
}

/* Whether depth 1 is thought to be nearly worth its time. */
static bool nearly_pays(const struct mx_depth *d)
{
    double plain = mx_depth_time(d->model, 0, d->ask.peers, d->ask.context);
    double drafted = mx_depth_time(d->model, 1, d->ask.peers, d->ask.context);
    return (1 + mx_accept_p(&d->accept, 0)) * plain > CLOSE * drafted;
}

static void feed_auto(struct mx_depth *d, const struct mx_depth_cycle *c)
{
    if (c->planned == 0) {
        d->plain_run += c->copied == 0;
        return;
    }
    d->plain_run = 0;
    if (!c->probe || d->last > 0) {
        d->interval = FIRST_INTERVAL;
    } else if (c->accepted > 0 && nearly_pays(d)) {
        d->interval = d->interval > FIRST_INTERVAL ? d->interval / 2 : FIRST_INTERVAL / 2;
    } else {
        uint64_t most = longest_interval(d, &d->ask);
        d->interval = 2 * d->interval < most ? 2 * d->interval : most;
    }
}

/* ---- Interface ---------------------------------------------------------------------------- */

/* A policy that does not price copied blocks takes those that follow a long match. (So FIXED with
 * copies is a function of the tokens alone: the same seed gives the same answer.) */
static struct mx_depth_plan plan_simple(struct mx_depth *d, const struct mx_depth_ask *ask)
{
    if (ask->copy > 0 && ask->sure)
        return (struct mx_depth_plan){.copy = ask->copy};
    int depth = d->policy == MTPLX_DEPTH_FIXED ? d->most : mx_rules_next(d, ask);
    return (struct mx_depth_plan){.depth = depth < ask->most ? depth : ask->most};
}

struct mx_depth_plan mx_depth_next(struct mx_depth *d, const struct mx_depth_ask *asked)
{
    struct mx_depth_ask ask = *asked;
    if (ask.most > d->most)
        ask.most = d->most;
    d->ask = ask;
    return d->policy == MTPLX_DEPTH_AUTO ? plan_auto(d, &ask) : plan_simple(d, &ask);
}

void mx_depth_feed(struct mx_depth *d, const struct mx_depth_cycle *c)
{
    d->cycles++;
    if (d->policy == MTPLX_DEPTH_FIXED && !d->model)
        return;
    for (int i = 0; i < c->tested; i++) {
        mx_accept_feed(&d->accept, i, i < c->accepted);
        if (d->model)
            mx_accept_note(&d->model->record, i, i < c->accepted);
    }
    if (d->model) {
        d->model->cycles++;
        d->model->plain += c->planned + c->copied == 0;
        d->model->shallow += c->planned + c->copied == 1;
        d->model->changed = true;
    }
    if (d->policy == MTPLX_DEPTH_AUTO)
        feed_auto(d, c);
    else if (d->policy != MTPLX_DEPTH_FIXED)
        mx_rules_feed(d, c);
}

int mx_depth_extend(const struct mx_depth *d, const struct mx_depth_ask *ask, double rate,
                    int drafted, int most, double p)
{
    double reach = 1;
    int extra = 0;
    for (int i = 0; i < drafted; i++)
        reach *= mx_accept_p(&d->accept, i);
    while (extra < most) {
        int rows = ask->peers * (drafted + extra + 1);
        double now = mx_cost(&d->model->costs, MX_COST_VERIFY, rows, ask->context);
        double then = mx_cost(&d->model->costs, MX_COST_VERIFY, rows + ask->peers, ask->context);
        reach *= p;
        if (reach <= rate * (then - now) / ask->peers)
            break;
        extra++;
    }
    return extra;
}

/* ---- Model -------------------------------------------------------------------------------- */

void mx_depth_model_init(struct mx_depth_model *m)
{
    *m = (struct mx_depth_model){0};
    mx_costs_init(&m->costs);
}
