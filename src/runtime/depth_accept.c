/* Acceptance of draft positions, followed at several horizons: see depth.h.
 *
 * Each horizon j predicts logit p_i = base_i + theta_j and moves theta_j by rate_j times its error.
 * Weights follow the discounted likelihood of what happened and never vanish, so that a horizon can
 * come back (Herbster and Warmuth, "Tracking the best expert", 1998). On steady text the slow ones
 * win and the estimate is quiet; when the text changes the fast ones take over in a few tests. */
#include "runtime/depth.h"

#include <math.h>

static const double rates[MX_ACCEPT_HORIZONS] = {1.2, 0.4, 0.12, 0.03, 0.12, 0.12};

/* Where theta starts. The last two are there for text unlike the record's: they move only in
 * proportion to their weight, that is while they are believed, so that code after prose or prose
 * after code is recognised in two or three tests. */
static const double starts[MX_ACCEPT_HORIZONS] = {0, 0, 0, 0, -2.5, 1.5};
static const double first_weight[MX_ACCEPT_HORIZONS] = {0.15, 0.2, 0.2, 0.2, 0.15, 0.1};
enum { STANDBY = 4 }; /* the first of them */

#define SHARE 0.02      /* of the weight that is spread anew at each test */
#define MEMORY 0.97     /* discount of past likelihood */
#define MOST_LOGIT 6.0  /* 99.75 % */
#define RECORD 0.995    /* discount of the long record */
#define PRIOR_TESTS 4.0 /* weight of the prior in the record */
#define LEAST_START                                                                                \
    0.2 /* the worst that an answer starts with: the record may be of another kind */

/* What a trained head does on mixed text, roughly; deeper positions are alike once reached. */
static double prior_p(int i)
{
    return i == 0 ? 0.8 : 0.75;
}

static double logit(double p)
{
    return log(p / (1 - p));
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double bounded(double x)
{
    return x > MOST_LOGIT ? MOST_LOGIT : x < -MOST_LOGIT ? -MOST_LOGIT : x;
}

void mx_accept_init(struct mx_accept *a, const struct mx_accept_record *r)
{
    *a = (struct mx_accept){0};
    double before = 0;
    for (int i = 0; i < MTPLX_MAX_DEPTH; i++) {
        /* A position without a record is taken to be like the one before it. */
        double p = i == 0 ? prior_p(0) : fmin(prior_p(i), before + 0.05);
        if (i > 0 && r && r->tested[i - 1] > PRIOR_TESTS)
            p = before;
        if (r)
            p = (r->accepted[i] + PRIOR_TESTS * p) / (r->tested[i] + PRIOR_TESTS);
        before = p;
        a->base[i] = logit(fmin(fmax(p, LEAST_START), 0.99));
    }
    for (int j = 0; j < MX_ACCEPT_HORIZONS; j++) {
        a->theta[j] = starts[j];
        a->weight[j] = first_weight[j];
    }
}

double mx_accept_p(const struct mx_accept *a, int i)
{
    double p = 0;
    for (int j = 0; j < MX_ACCEPT_HORIZONS; j++)
        p += a->weight[j] * sigmoid(bounded(a->base[i] + a->theta[j]));
    return p;
}

void mx_accept_feed(struct mx_accept *a, int i, bool accepted)
{
    double total = 0, x = accepted, mixed = mx_accept_p(a, i);
    for (int j = 0; j < MX_ACCEPT_HORIZONS; j++) {
        double p = sigmoid(bounded(a->base[i] + a->theta[j]));
        double rate = rates[j] * (j < STANDBY ? 1 : a->weight[j]);
        a->weight[j] = pow(a->weight[j], MEMORY) * (accepted ? p : 1 - p);
        total += a->weight[j];
        a->theta[j] = bounded(a->theta[j] + rate * (x - p));
    }
    for (int j = 0; j < MX_ACCEPT_HORIZONS; j++)
        a->weight[j] = (1 - SHARE) * a->weight[j] / total + SHARE / MX_ACCEPT_HORIZONS;
    /* The position's own part: a Newton step of a logistic fit, ever smaller. */
    double gain = fmax(1 / (a->seen[i] + 8), 0.01);
    a->base[i] = bounded(a->base[i] + gain * (x - mixed) / fmax(mixed * (1 - mixed), 0.1));
    a->seen[i]++;
}

void mx_accept_note(struct mx_accept_record *r, int i, bool accepted)
{
    r->tested[i] = RECORD * r->tested[i] + 1;
    r->accepted[i] = RECORD * r->accepted[i] + accepted;
}
