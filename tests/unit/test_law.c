/* The emitted tokens follow the target law: exactly, and whatever the draft says.
 *
 * Two kinds of evidence. In closed form, the law that mx_spec_accept() and mx_spec_residual() put
 * on one token is measured by bisecting their uniforms, and must be p to 1e-12. By simulation, the
 * full cycle of draft, verify, residual and bonus, keyed by (seed, position, purpose) as the engine
 * keys it, emits 200,000 tokens for each setting and depth, and chi-square tests compare them with
 * p given the tokens before and given how the previous token came about. The latter would see a
 * uniform of a discarded draft that leaks into the cycle after it (see accept.c).
 *
 * A test that cannot fail proves nothing, so deliberately wrong schemes run through the same code
 * and every one must be found out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "runtime/copy.h"
#include "runtime/row.h"
#include "runtime/sampler.h"

#define LENGTH(a) (sizeof(a) / sizeof *(a))

enum {
    VOCAB = 14,
    CONTEXTS = VOCAB * VOCAB, /* the last two tokens, older * VOCAB + newer */
    TOKENS = 200000,
};

/* About 450 p-values are compared with this, so that a correct program with an unlucky seed fails
 * with probability below 1e-6. */
static const double ALPHA = 1e-9;

/* ---- Chi-square --------------------------------------------------------------------------- */

/* Regularised upper incomplete gamma function Q(a, x): the series of P for x < a + 1, else the
 * continued fraction of Q by Lentz's method (Abramowitz and Stegun 6.5.29 and 6.5.31). */
static double gamma_q(double a, double x)
{
    if (x <= 0)
        return 1;
    double front = exp(a * log(x) - x - lgamma(a));
    if (x < a + 1) {
        double term = 1 / a, sum = term;
        for (int n = 1; term > sum * 1e-17; n++) {
            term *= x / (a + n);
            sum += term;
        }
        return 1 - front * sum;
    }
    double b = x + 1 - a, c = 1e300, d = 1 / b, h = d, delta = 0;
    for (int i = 1; i < 100000 && fabs(delta - 1) > 1e-15; i++) {
        double an = -i * (i - a);
        b += 2;
        d = 1 / (an * d + b);
        c = b + an / c;
        delta = c * d;
        h *= delta;
    }
    return front * h;
}

struct chi_square {
    double statistic;
    int freedom;
    bool impossible; /* something of probability 0 was observed */
};

static double p_value(const struct chi_square *t)
{
    if (t->impossible)
        return 0;
    return t->freedom > 0 ? gamma_q(t->freedom / 2.0, t->statistic / 2) : 1;
}

/* Adds one multinomial sample. Cells that expect fewer than 5 are pooled, and the pool too when it
 * is that small. */
static void add_sample(struct chi_square *t, const uint32_t *seen, const double *law)
{
    double n = 0, statistic = 0, pool_expected = 0, pool_seen = 0;
    int cells = 0;
    for (int x = 0; x < VOCAB; x++)
        n += seen[x];
    for (int x = 0; x < VOCAB; x++) {
        double expected = n * law[x];
        t->impossible |= law[x] <= 0 && seen[x] > 0;
        if (expected < 5) {
            pool_expected += expected;
            pool_seen += seen[x];
            continue;
        }
        statistic += (seen[x] - expected) * (seen[x] - expected) / expected;
        cells++;
    }
    if (pool_expected >= 5) {
        statistic += (pool_seen - pool_expected) * (pool_seen - pool_expected) / pool_expected;
        cells++;
    }
    if (cells < 2)
        return;
    t->statistic += statistic;
    t->freedom += cells - 1;
}

static void gamma_matches_tables(void **state)
{
    (void)state;
    static const struct {
        double freedom, statistic, p;
    } table[] = {{1, 3.841458820694124, 0.05},   {2, 4.605170185988092, 0.1},
                 {10, 29.58829844507442, 0.001}, {100, 124.3421134004052, 0.05},
                 {100, 77.92946517, 0.95},       {1000, 1106.968999, 0.01}};
    for (size_t i = 0; i < LENGTH(table); i++) {
        double p = gamma_q(table[i].freedom / 2, table[i].statistic / 2);
        assert_true(fabs(p - table[i].p) < 1e-6);
    }
    assert_true(fabs(gamma_q(1, 30) - exp(-30)) < 1e-24); /* the far tail, relative */
}

/* ---- A model small enough to know everything about ---------------------------------------- */

struct model {
    bool masked; /* half of the tokens are forbidden, others in each context */
    struct mx_dist p[CONTEXTS], q[CONTEXTS];
    struct mx_dist wide_q[CONTEXTS]; /* q before its filters: for a planted mistake */
    double law[CONTEXTS][VOCAB];
};

struct setting {
    const char *name;
    mtplx_sampling target, draft;
    int order; /* tokens that the laws depend on: 1 or 2 */
    int drafts;
    int32_t draft_ids[VOCAB]; /* the tokens that the draft can say; all when drafts is 0 */
};

static double uniform(uint64_t a, uint64_t b)
{
    return mx_rng_uniform(a, b, MX_RNG_TARGET);
}

/* Logits of the context; the draft's are the target's with noise, as a good but imperfect head. */
static void make_logits(int context, int order, float *target, float *draft)
{
    uint64_t key = (uint64_t)(order == 1 ? context % VOCAB : context + 1000);
    for (uint64_t x = 0; x < VOCAB; x++) {
        target[x] = (float)(5 * uniform(key, x));
        draft[x] = target[x] + (float)(3 * uniform(key, 100 + x) - 1.5);
    }
    target[key % VOCAB] = target[(key + 5) % VOCAB]; /* a tie, broken by id */
}

/* Tokens that a grammar would allow in a context: about half, never none. */
static uint64_t context_mask(int context)
{
    uint64_t mask = (uint64_t)1 << context % VOCAB;
    for (uint64_t x = 0; x < VOCAB; x++)
        if (uniform((uint64_t)context, 500 + x) < 0.5)
            mask |= (uint64_t)1 << x;
    return mask;
}

/* The row of n tokens under the mask; false when it has none of them. */
static bool hold(const mtplx_sampling *cfg, uint64_t mask, const int32_t *ids, int n, float *row)
{
    float out[VOCAB];
    struct mx_row_rules r = {.cfg = cfg, .mask = &mask};
    bool any = mx_row_apply(&r, row, ids, n, out);
    memcpy(row, out, (size_t)n * sizeof *row);
    return any;
}

/* q, over part of the vocabulary where the setting says so; a point mass where that and the mask
 * have nothing in common. */
static void draft_dist(struct mx_sampler *sampler, const struct setting *s,
                       const mtplx_sampling *cfg, const float *draft, const uint64_t *mask,
                       struct mx_dist *q)
{
    float part[VOCAB];
    const int32_t *ids = s->drafts ? s->draft_ids : NULL;
    int n = s->drafts ? s->drafts : VOCAB;
    for (int i = 0; i < n; i++)
        part[i] = draft[ids ? ids[i] : i];
    if (mask && !hold(cfg, *mask, ids, n, part))
        mx_dist_point(q, __builtin_ctzll(*mask));
    else
        mx_sample_dist_of(sampler, cfg, NULL, part, ids, n, q);
}

static void model_open(struct model *m, const struct setting *s, bool masked)
{
    struct mx_sampler *sampler = mx_sampler_new(VOCAB, NULL);
    mtplx_sampling wide = s->draft;
    wide.top_p = 1;
    wide.top_k = 0;
    wide.min_p = 0;
    assert_non_null(sampler);
    memset(m, 0, sizeof *m);
    m->masked = masked;
    for (int c = 0; c < CONTEXTS; c++) {
        float target[VOCAB], draft[VOCAB];
        uint64_t bits = context_mask(s->order == 1 ? c % VOCAB : c), *mask = masked ? &bits : NULL;
        make_logits(c, s->order, target, draft);
        if (masked)
            assert_true(hold(&s->target, bits, NULL, VOCAB, target));
        assert_int_equal(mx_dist_reserve_for(&m->p[c], &s->target, VOCAB, NULL), MTPLX_OK);
        assert_int_equal(mx_dist_reserve_for(&m->q[c], &s->draft, VOCAB, NULL), MTPLX_OK);
        assert_int_equal(mx_dist_reserve_for(&m->wide_q[c], &wide, VOCAB, NULL), MTPLX_OK);
        mx_sample_dist(sampler, &s->target, NULL, target, VOCAB, &m->p[c]);
        draft_dist(sampler, s, &s->draft, draft, mask, &m->q[c]);
        draft_dist(sampler, s, &wide, draft, mask, &m->wide_q[c]);
        for (int x = 0; x < VOCAB; x++) {
            m->law[c][x] = mx_dist_prob(&m->p[c], x);
            assert_true(!masked || bits >> x & 1 || m->law[c][x] == 0);
        }
    }
    mx_sampler_free(sampler);
}

static void model_close(struct model *m)
{
    for (int c = 0; c < CONTEXTS; c++) {
        mx_dist_free(&m->p[c]);
        mx_dist_free(&m->q[c]);
        mx_dist_free(&m->wide_q[c]);
    }
}

/* ---- The speculative loop ----------------------------------------------------------------- */

enum scheme {
    EXACT,
    VARYING_DEPTH,      /* exact: the depth depends on what was emitted */
    WRONG_ALWAYS,       /* accepts whenever p > q / 2 */
    WRONG_GENEROUS,     /* accepts with 1.05 p / q */
    WRONG_RESIDUAL,     /* after a rejection draws from p */
    WRONG_ROW,          /* verifies against the next row */
    WRONG_Q,            /* divides by q before its filters */
    WRONG_COIN,         /* flips the acceptance coin with the draft's uniform */
    WRONG_RESIDUAL_KEY, /* draws the residual with the draft's uniform */
    WRONG_DEPTH,        /* lets a discarded draft choose the next depth */
};

/* How the token before came about; part of what the law must not depend on. */
enum origin { DRAWN, ACCEPTED, CORRECTED, ORIGINS };

struct tally {
    uint32_t seen[ORIGINS][CONTEXTS][VOCAB];
};

struct run {
    const struct model *m;
    enum scheme scheme;
    int depth; /* of the settings */
    uint64_t seed, position;
    int context; /* of the token at `position` */
    enum origin origin;
    bool hesitant; /* a discarded draft had a low q (WRONG_DEPTH) */
    struct tally *out;
};

static int next_context(int context, int token)
{
    return context % VOCAB * VOCAB + token;
}

static void emit(struct run *r, int token, enum origin origin)
{
    r->out->seen[r->origin][r->context][token]++;
    r->context = next_context(r->context, token);
    r->origin = origin;
    r->position++;
}

static bool accepts(const struct run *r, int context, int token, int following, uint64_t position)
{
    const struct mx_dist *p = &r->m->p[context], *q = &r->m->q[context];
    double u = mx_rng_uniform(r->seed, position, MX_RNG_ACCEPT);
    switch (r->scheme) {
    case WRONG_ALWAYS:
        return mx_dist_prob(p, token) > 0.5 * mx_dist_prob(q, token) ||
               mx_spec_accept(p, q, token, u);
    case WRONG_GENEROUS: return mx_spec_accept(p, q, token, u / 1.05);
    case WRONG_ROW: return mx_spec_accept(&r->m->p[following], q, token, u);
    case WRONG_Q: return mx_spec_accept(p, &r->m->wide_q[context], token, u);
    case WRONG_COIN:
        return mx_spec_accept(p, q, token, mx_rng_uniform(r->seed, position, MX_RNG_DRAFT));
    default: return mx_spec_accept(p, q, token, u);
    }
}

static int correction(const struct run *r)
{
    enum mx_rng_purpose purpose = r->scheme == WRONG_RESIDUAL_KEY ? MX_RNG_DRAFT : MX_RNG_RESIDUAL;
    double u = mx_rng_uniform(r->seed, r->position, purpose);
    if (r->scheme == WRONG_RESIDUAL)
        return mx_dist_draw(&r->m->p[r->context], u);
    return mx_spec_residual(&r->m->p[r->context], &r->m->q[r->context], u);
}

static int choose_depth(const struct run *r)
{
    if (r->scheme == VARYING_DEPTH)
        return (int)(r->origin * 3 + (unsigned)r->context) % (r->depth + 1);
    return r->scheme == WRONG_DEPTH && r->hesitant ? 0 : r->depth;
}

/* One cycle, keyed as the engine does. Position t is that of the token emitted next. */
static void cycle(struct run *r)
{
    int depth = choose_depth(r), draft[MTPLX_MAX_DEPTH], context[MTPLX_MAX_DEPTH + 1];
    context[0] = r->context;
    for (int i = 0; i < depth; i++) {
        double u = mx_rng_uniform(r->seed, r->position + (uint64_t)i, MX_RNG_DRAFT);
        draft[i] = mx_dist_draw(&r->m->q[context[i]], u);
        context[i + 1] = next_context(context[i], draft[i]);
    }
    r->hesitant = false;
    for (int i = 0; i < depth; i++) {
        if (!accepts(r, context[i], draft[i], context[i + 1], r->position)) {
            r->hesitant =
                i + 1 < depth && mx_dist_prob(&r->m->q[context[i + 1]], draft[i + 1]) < 0.2;
            emit(r, correction(r), CORRECTED);
            return;
        }
        emit(r, draft[i], ACCEPTED);
    }
    double u = mx_rng_uniform(r->seed, r->position, MX_RNG_TARGET);
    emit(r, mx_dist_draw(&r->m->p[r->context], u), DRAWN);
}

static void simulate(const struct model *m, enum scheme scheme, int depth, uint64_t seed,
                     struct tally *out)
{
    struct run r = {.m = m, .scheme = scheme, .depth = depth, .seed = seed, .out = out};
    memset(out, 0, sizeof *out);
    while (r.position < TOKENS)
        cycle(&r);
}

/* ---- Adaptive depth and context copy ------------------------------------------------------ */

/* The loop of generate.c with its real planner and index: depths follow acceptance and random
 * times, blocks are drafted by the model's q or copied. */
struct adaptive {
    struct run run;
    struct mx_depth_model model;
    struct mx_depth depth;
    struct mx_copy *index;
    struct mx_copy_control copying;
    int32_t timeline[TOKENS + MTPLX_MAX_DEPTH + 1]; /* the last one is pending */
    struct mx_dist copied[MTPLX_MAX_DEPTH];
    uint64_t copies, copies_accepted, depths[MTPLX_MAX_DEPTH + 1];
    bool wrong; /* a planted mistake: corrects a copied draft from p */
};

static void adaptive_emit(struct adaptive *a, int token, enum origin origin)
{
    a->timeline[a->run.position] = token;
    emit(&a->run, token, origin);
}

/* Random times of a machine on which drafting pays now and then. */
static double random_time(struct adaptive *a, int rows)
{
    uint64_t at = 1000000 + a->run.position;
    return 1e6 * (1 + 0.25 * rows) * (0.5 + mx_rng_uniform(a->run.seed, at, MX_RNG_TARGET));
}

static struct mx_depth_plan adaptive_plan(struct adaptive *a, int32_t *copy, int *match)
{
    size_t known = a->run.position ? (size_t)a->run.position - 1 : 0;
    int32_t pending = a->run.position ? a->timeline[known] : 0;
    bool eager = known % 512 < 256; /* half of the text copies whatever the record says */
    if (eager)
        a->copying.resume = 0;
    int room = mx_copy_allowed(&a->copying, known);
    mx_copy_update(a->index, a->timeline, known);
    struct mx_depth_ask ask = {.most = MTPLX_MAX_DEPTH, .peers = 1, .context = known};
    ask.copy = mx_copy_find(a->index, a->timeline, known, &pending, 1, copy, room, match);
    ask.copy_p = eager ? 0.95 : mx_copy_p(&a->copying, *match);
    struct mx_depth_plan plan = mx_depth_next(&a->depth, &ask);
    if (ask.copy > 0 && plan.copy == 0)
        mx_copy_refused(&a->copying);
    return plan;
}

static void adaptive_learn(struct adaptive *a, const struct mx_depth_plan *plan, int tested,
                           int accepted, int match)
{
    bool copied = plan->copy > 0;
    int n = plan->depth + plan->copy;
    struct mx_depth_cycle c = {.planned = plan->depth,
                               .copied = plan->copy,
                               .tested = copied ? 0 : tested,
                               .accepted = copied ? 0 : accepted,
                               .probe = plan->probe};
    mx_depth_feed(&a->depth, &c);
    mx_cost_feed(&a->model.costs, MX_COST_VERIFY, n + 1, 0, random_time(a, n + 1));
    if (plan->depth > 0)
        mx_cost_feed(&a->model.costs, MX_COST_FIRST, 1, 0, 0.3 * random_time(a, 0));
    if (copied)
        mx_copy_feed(&a->copying, match, tested, accepted, (size_t)a->run.position);
    a->copies += copied ? (uint64_t)tested : 0;
    a->copies_accepted += copied ? (uint64_t)accepted : 0;
    a->depths[n]++;
}

static void adaptive_cycle(struct adaptive *a)
{
    struct run *r = &a->run;
    int32_t draft[MTPLX_MAX_DEPTH];
    int context[MTPLX_MAX_DEPTH + 1] = {r->context}, match = 0, i = 0;
    struct mx_depth_plan plan = adaptive_plan(a, draft, &match);
    const struct mx_dist *q[MTPLX_MAX_DEPTH];
    int n = plan.depth + plan.copy;
    for (int k = 0; k < n; k++) {
        q[k] = plan.copy ? &a->copied[k] : &r->m->q[context[k]];
        if (plan.copy)
            a->copied[k].ids[0] = draft[k];
        else
            draft[k] = mx_dist_draw(
                q[k], mx_rng_uniform(r->seed, r->position + (uint64_t)k, MX_RNG_DRAFT));
        context[k + 1] = next_context(context[k], draft[k]);
    }
    for (; i < n; i++) {
        const struct mx_dist *p = &r->m->p[context[i]];
        double u = mx_rng_uniform(r->seed, r->position, MX_RNG_ACCEPT);
        double v = mx_rng_uniform(r->seed, r->position, MX_RNG_RESIDUAL);
        if (mx_spec_accept(p, q[i], draft[i], u)) {
            adaptive_emit(a, draft[i], ACCEPTED);
            continue;
        }
        bool lax = a->wrong && plan.copy > 0;
        adaptive_emit(a, lax ? mx_dist_draw(p, v) : mx_spec_residual(p, q[i], v), CORRECTED);
        adaptive_learn(a, &plan, i + 1, i, match);
        return;
    }
    double u = mx_rng_uniform(r->seed, r->position, MX_RNG_TARGET);
    adaptive_emit(a, mx_dist_draw(&r->m->p[r->context], u), DRAWN);
    adaptive_learn(a, &plan, n, n, match);
}

static struct adaptive *simulate_adaptive(const struct model *m, uint64_t seed, bool wrong,
                                          struct tally *out)
{
    struct adaptive *a = calloc(1, sizeof *a);
    assert_non_null(a);
    memset(out, 0, sizeof *out);
    a->run = (struct run){.m = m, .seed = seed, .out = out};
    a->wrong = wrong;
    a->index = mx_copy_new(TOKENS, NULL);
    assert_non_null(a->index);
    for (int i = 0; i < MTPLX_MAX_DEPTH; i++) {
        assert_int_equal(mx_dist_reserve(&a->copied[i], 1, NULL), MTPLX_OK);
        a->copied[i].n = 1;
        a->copied[i].p[0] = 1;
    }
    mx_depth_model_init(&a->model);
    mx_depth_init(&a->depth, MTPLX_DEPTH_AUTO, MTPLX_MAX_DEPTH, &a->model);
    mx_copy_control_init(&a->copying, &a->model.copies);
    while (a->run.position < TOKENS)
        adaptive_cycle(a);
    return a;
}

static void adaptive_free(struct adaptive *a)
{
    for (int i = 0; i < MTPLX_MAX_DEPTH; i++)
        mx_dist_free(&a->copied[i]);
    mx_copy_free(a->index);
    free(a);
}

/* ---- Verdicts ----------------------------------------------------------------------------- */

static void add_counts(uint32_t *to, const uint32_t *from)
{
    for (int x = 0; x < VOCAB; x++)
        to[x] += from[x];
}

/* The law given the last two tokens, for the origins first..last together. */
static double pairs_p_value(const struct model *m, const struct tally *t, int first, int last)
{
    struct chi_square chi = {0};
    for (int c = 0; c < CONTEXTS; c++) {
        uint32_t seen[VOCAB] = {0};
        for (int o = first; o <= last; o++)
            add_counts(seen, t->seen[o][c]);
        add_sample(&chi, seen, m->law[c]);
    }
    return p_value(&chi);
}

/* The law given the last token: fewer cells, so a sharper test, where the model has order 1. */
static double singles_p_value(const struct model *m, const struct tally *t, int first, int last)
{
    struct chi_square chi = {0};
    for (int b = 0; b < VOCAB; b++) {
        uint32_t seen[VOCAB] = {0};
        for (int o = first; o <= last; o++)
            for (int a = 0; a < VOCAB; a++)
                add_counts(seen, t->seen[o][a * VOCAB + b]);
        add_sample(&chi, seen, m->law[b]);
    }
    return p_value(&chi);
}

/* The smallest p-value of all tests: everything together, then by origin of the token before. */
static double worst_p_value(const struct model *m, const struct tally *t, int order)
{
    double worst = 1;
    for (int o = -1; o < ORIGINS; o++) {
        int first = o < 0 ? 0 : o, last = o < 0 ? ORIGINS - 1 : o;
        worst = fmin(worst, pairs_p_value(m, t, first, last));
        if (order == 1)
            worst = fmin(worst, singles_p_value(m, t, first, last));
    }
    return worst;
}

/* ---- Settings ----------------------------------------------------------------------------- */

#define SAMPLING(t, p, k, m)                                                                       \
    {                                                                                              \
        .temperature = (t), .top_p = (p), .top_k = (k), .min_p = (m), .repetition_penalty = 1      \
    }

static const struct setting settings[] = {
    {"t=1", SAMPLING(1, 1, 0, 0), SAMPLING(1, 1, 0, 0), 1, 0, {0}},
    {"t=0.6 p=0.95 k=6", SAMPLING(0.6, 0.95, 6, 0), SAMPLING(0.6, 0.95, 6, 0), 1, 0, {0}},
    {"t=1.5 p=0.7", SAMPLING(1.5, 0.7, 0, 0), SAMPLING(1.5, 0.7, 0, 0), 2, 0, {0}},
    {"t=1 min_p=0.1", SAMPLING(1, 1, 0, 0.1), SAMPLING(1, 1, 0, 0.1), 1, 0, {0}},
    {"t=0.8 k=3", SAMPLING(0.8, 1, 3, 0), SAMPLING(0.8, 1, 3, 0), 2, 0, {0}},
    {"t=1 drafted at t=0.5 k=4", SAMPLING(1, 1, 0, 0), SAMPLING(0.5, 1, 4, 0), 1, 0, {0}},
    {"t=1 p=0.9 drafted greedily", SAMPLING(1, 0.9, 0, 0), SAMPLING(0, 1, 0, 0), 1, 0, {0}},
    {"t=1 drafting 5 tokens", SAMPLING(1, 1, 0, 0), SAMPLING(1, 1, 0, 0), 1, 5, {1, 2, 5, 6, 11}},
    {"t=0.8 p=0.9 drafting 9 tokens",
     SAMPLING(0.8, 0.9, 0, 0),
     SAMPLING(0.8, 0.9, 0, 0),
     2,
     9,
     {0, 3, 4, 5, 7, 8, 10, 12, 13}},
    {"t=1 k=4 drafting 1 token", SAMPLING(1, 1, 4, 0), SAMPLING(1, 1, 4, 0), 1, 1, {9}},
};

static void check_setting(const struct setting *s, bool masked, uint64_t seed)
{
    struct model *m = malloc(sizeof *m);
    struct tally *t = malloc(sizeof *t);
    assert_non_null(m);
    assert_non_null(t);
    model_open(m, s, masked);
    for (int depth = 0; depth <= MTPLX_MAX_DEPTH + 1; depth++) {
        bool varying = depth > MTPLX_MAX_DEPTH;
        simulate(m, varying ? VARYING_DEPTH : EXACT, varying ? 4 : depth, seed + (uint64_t)depth,
                 t);
        double p = worst_p_value(m, t, s->order);
        if (p < ALPHA)
            print_message("%s, depth %d: p-value %g\n", s->name, depth, p);
        assert_true(p >= ALPHA);
    }
    model_close(m);
    free(m);
    free(t);
}

static void every_depth_and_setting_follows_the_law(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(settings); i++)
        check_setting(&settings[i], false, 1000 * (i + 1));
}

/* A grammar forbids tokens to p and q alike. */
static void masked_laws_are_followed(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(settings); i++)
        check_setting(&settings[i], true, 1000 * (i + 100));
}

/* Greedy: one law of one token, so the sequences themselves must be equal. */
static void greedy_ignores_the_depth(void **state)
{
    (void)state;
    static const struct setting greedy = {
        "greedy", SAMPLING(0, 1, 0, 0), SAMPLING(0, 1, 0, 0), 2, 0, {0}};
    struct model *m = malloc(sizeof *m);
    struct tally *t = malloc(sizeof *t);
    assert_non_null(m);
    assert_non_null(t);
    model_open(m, &greedy, false);
    for (int depth = 0; depth <= MTPLX_MAX_DEPTH; depth++) {
        struct run r = {.m = m, .depth = depth, .out = t};
        int context = 0;
        while (r.position < 500) {
            uint64_t before = r.position;
            cycle(&r);
            for (; before < r.position; before++)
                context = next_context(context, m->p[context].ids[0]);
            assert_int_equal(r.context, context);
        }
    }
    model_close(m);
    free(m);
    free(t);
}

/* ---- Planted mistakes --------------------------------------------------------------------- */

static void every_planted_mistake_is_found(void **state)
{
    (void)state;
    static const struct {
        enum scheme scheme;
        const char *name;
        int setting;
    } planted[] = {
        {WRONG_ALWAYS, "accepts p > q/2", 0},
        {WRONG_GENEROUS, "accepts 1.05 p/q", 0},
        {WRONG_RESIDUAL, "corrects from p", 0},
        {WRONG_ROW, "verifies against the next row", 0},
        {WRONG_Q, "divides by the unfiltered q", 1},
        {WRONG_COIN, "reuses the draft's uniform as coin", 0},
        {WRONG_RESIDUAL_KEY, "reuses the draft's uniform for the residual", 0},
        {WRONG_DEPTH, "lets discarded drafts choose the depth", 0},
        {WRONG_GENEROUS, "accepts 1.05 p/q, truncated", 1},
        {WRONG_RESIDUAL, "corrects from p, order 2", 2},
    };
    struct model *m = malloc(sizeof *m);
    struct tally *t = malloc(sizeof *t);
    assert_non_null(m);
    assert_non_null(t);
    for (size_t i = 0; i < LENGTH(planted); i++) {
        const struct setting *s = &settings[planted[i].setting];
        model_open(m, s, false);
        simulate(m, planted[i].scheme, 3, 77, t);
        double p = worst_p_value(m, t, s->order);
        if (p >= ALPHA)
            print_message("not found: %s (p-value %g)\n", planted[i].name, p);
        assert_true(p < ALPHA);
        model_close(m);
    }
    free(m);
    free(t);
}

/* Where the depth follows what was accepted and how long it took, and blocks are copied. */
static void adaptive_depth_and_copies_follow_the_law(void **state)
{
    (void)state;
    static const int chosen[] = {0, 1, 2, 5};
    struct model *m = malloc(sizeof *m);
    struct tally *t = malloc(sizeof *t);
    assert_non_null(m);
    assert_non_null(t);
    for (size_t i = 0; i < LENGTH(chosen); i++) {
        const struct setting *s = &settings[chosen[i]];
        int used = 0;
        model_open(m, s, false);
        struct adaptive *a = simulate_adaptive(m, 7000 + i, false, t);
        double p = worst_p_value(m, t, s->order);
        for (int d = 0; d <= MTPLX_MAX_DEPTH; d++)
            used += a->depths[d] > 100;
        print_message("  %s: %d depths in use, %llu of %llu copied tokens accepted, p-value %.3g\n",
                      s->name, used, (unsigned long long)a->copies_accepted,
                      (unsigned long long)a->copies, p);
        assert_true(p >= ALPHA);
        assert_true(used >= 3 && a->copies > 1000);
        assert_true(a->copies_accepted > 0 && a->copies_accepted < a->copies);
        adaptive_free(a);
        adaptive_free(simulate_adaptive(m, 8000 + i, true, t));
        assert_true(worst_p_value(m, t, s->order) < ALPHA);
        model_close(m);
    }
    free(m);
    free(t);
}

/* ---- Closed form -------------------------------------------------------------------------- */

/* The tokens of a law in the order of its draws: lists as they are stored, wide laws by token. */
static int entries(const struct mx_dist *d)
{
    const struct mx_wide *w = mx_dist_wide(d);
    return w ? w->n : d->n;
}

static int32_t entry(const struct mx_dist *d, int i)
{
    const struct mx_wide *w = mx_dist_wide(d);
    return !w ? d->ids[i] : w->ids ? w->ids[i] : i;
}

static bool draws_past(const struct mx_dist *p, const struct mx_dist *q, double u, int rank)
{
    int32_t id = mx_spec_residual(p, q, u);
    int at = 0;
    while (at < entries(p) && entry(p, at) != id)
        at++;
    return at > rank;
}

/* The measure of {u : the residual is one of p's first rank + 1 tokens}; the draw walks p in order,
 * so that set is an interval from 0 and bisection finds its end. */
static double residual_up_to(const struct mx_dist *p, const struct mx_dist *q, int rank)
{
    double low = 0, high = 1;
    if (draws_past(p, q, 0, rank))
        return 0;
    for (int i = 0; i < 60; i++) {
        double mid = low + (high - low) / 2;
        if (mid < 1 && !draws_past(p, q, mid, rank))
            low = mid;
        else
            high = mid;
    }
    return low;
}

/* The measure of {u : x is accepted}, also an interval from 0. */
static double acceptance(const struct mx_dist *p, const struct mx_dist *q, int32_t x)
{
    double low = 0, high = 1;
    if (!mx_spec_accept(p, q, x, 0))
        return 0;
    for (int i = 0; i < 60; i++) {
        double mid = low + (high - low) / 2;
        if (mid < 1 && mx_spec_accept(p, q, x, mid))
            low = mid;
        else
            high = mid;
    }
    return low;
}

static void check_closed_form(const struct mx_dist *p, const struct mx_dist *q)
{
    double rejected = 0, before = 0;
    for (int i = 0; i < entries(q); i++)
        rejected += mx_dist_prob(q, entry(q, i)) * (1 - acceptance(p, q, entry(q, i)));
    for (int i = 0; i < entries(p); i++) {
        int32_t z = entry(p, i);
        double up_to = residual_up_to(p, q, i);
        double law = mx_dist_prob(q, z) * acceptance(p, q, z) + rejected * (up_to - before);
        before = up_to;
        assert_true(fabs(law - mx_dist_prob(p, z)) < 1e-12);
    }
    assert_true(fabs(before - 1) < 1e-12);
    for (int i = 0; i < entries(q); i++)
        assert_true(mx_dist_prob(p, entry(q, i)) > 0 || acceptance(p, q, entry(q, i)) == 0);
}

static void accepted_plus_residual_is_p(void **state)
{
    (void)state;
    struct model *m = malloc(sizeof *m);
    assert_non_null(m);
    for (size_t i = 0; i < LENGTH(settings); i++) {
        model_open(m, &settings[i], false);
        for (int c = 0; c < CONTEXTS; c += settings[i].order == 1 ? 13 : 5) {
            check_closed_form(&m->p[c], &m->q[c]);
            check_closed_form(&m->p[c], &m->q[(c + 7) % CONTEXTS]); /* unrelated laws */
            check_closed_form(&m->p[c], &m->wide_q[c]);
        }
        model_close(m);
    }
    free(m);
}

/* Larger supports go through the index of mx_spec_residual(). Penalties that differ between p and
 * q, as they do when counts include drafted tokens, change nothing. */
static void accepted_plus_residual_is_p_for_large_supports(void **state)
{
    (void)state;
    enum { LARGE = 120 };
    struct mx_sampler *s = mx_sampler_new(LARGE, NULL);
    struct mx_counts *counts = mx_counts_new(NULL);
    struct mx_dist p = {0}, q = {0};
    mtplx_sampling cfg = SAMPLING(1, 1, 0, 0);
    float x[LARGE];
    cfg.presence_penalty = 0.7;
    cfg.frequency_penalty = 0.2;
    cfg.repetition_penalty = 1.2;
    assert_non_null(s);
    assert_non_null(counts);
    assert_int_equal(mx_dist_reserve(&p, LARGE, NULL), MTPLX_OK);
    assert_int_equal(mx_dist_reserve(&q, LARGE, NULL), MTPLX_OK);
    for (uint64_t k = 0; k < 6; k++) {
        cfg.top_p = k % 2 ? 0.97 : 1;
        for (uint64_t i = 0; i < LARGE; i++)
            x[i] = (float)(4 * uniform(k, i));
        mx_sample_dist(s, &cfg, counts, x, LARGE, &p);
        for (uint64_t i = 0; i < LARGE; i++)
            x[i] += (float)uniform(k, 1000 + i);
        for (int i = 0; i < 9; i++)
            assert_int_equal(mx_counts_add(counts, (int32_t)(7 * k) + i / 2, false, NULL),
                             MTPLX_OK);
        mx_sample_dist(s, &cfg, counts, x, LARGE, &q);
        assert_true(p.n * q.n > 2048);
        check_closed_form(&p, &q);
    }
    mx_dist_free(&p);
    mx_dist_free(&q);
    mx_counts_free(counts);
    mx_sampler_free(s);
}

/* A copied draft: q is a point mass on any token, also one that the target filtered out. */
static void a_copied_token_leaves_p(void **state)
{
    (void)state;
    struct model *m = malloc(sizeof *m);
    struct mx_dist q = {0};
    assert_non_null(m);
    assert_int_equal(mx_dist_reserve(&q, 1, NULL), MTPLX_OK);
    q.n = 1;
    q.p[0] = 1;
    for (size_t i = 0; i < LENGTH(settings); i++) {
        model_open(m, &settings[i], false);
        for (int c = 0; c < VOCAB; c++)
            for (q.ids[0] = 0; q.ids[0] < VOCAB; q.ids[0]++)
                check_closed_form(&m->p[c], &q);
        model_close(m);
    }
    mx_dist_free(&q);
    free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gamma_matches_tables),
        cmocka_unit_test(accepted_plus_residual_is_p),
        cmocka_unit_test(accepted_plus_residual_is_p_for_large_supports),
        cmocka_unit_test(a_copied_token_leaves_p),
        cmocka_unit_test(greedy_ignores_the_depth),
        cmocka_unit_test(every_planted_mistake_is_found),
        cmocka_unit_test(every_depth_and_setting_follows_the_law),
        cmocka_unit_test(masked_laws_are_followed),
        cmocka_unit_test(adaptive_depth_and_copies_follow_the_law),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
