/* Depth policies on simulated machines and texts: whatever the machine costs and the text accepts,
 * auto is hardly slower than plain decoding and than the best fixed depth, with and without noise,
 * from the first token and after a change of text; learned state helps and, when wrong, is
 * corrected; hostile state does no harm. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "runtime/depth.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH(a) (sizeof(a) / sizeof *(a))

/* ---- The world ---------------------------------------------------------------------------- */

struct machine {
    const char *name;
    double rows[MTPLX_MAX_DEPTH + 1]; /* time of 1 .. 9 rows */
    double draft;
    double noise;    /* standard deviation of log time */
    double outliers; /* share of passes that take ten times as long */
    double growth;   /* extra share of every time for each 1,000 tokens of context */
};

static const struct machine flat = {
    "flat", {1, 1.05, 1.10, 1.15, 1.20, 1.25, 1.30, 1.35, 1.40}, 0.05, 0, 0, 0};
static const struct machine steep = {
    "steep", {1, 1.4, 1.7, 2.1, 2.45, 2.8, 3.2, 3.5, 3.9}, 0.33, 0, 0, 0};
static const struct machine linear = {"compute-bound", {1, 2, 3, 4, 5, 6, 7, 8, 9}, 0.3, 0, 0, 0};
static const struct machine stair = {
    "stair", {1, 1.02, 1.04, 1.06, 1.8, 1.82, 1.84, 1.86, 2.6}, 0.06, 0, 0, 0};

struct text {
    const char *name;
    double p[MTPLX_MAX_DEPTH];
};

static const struct text perfect = {"100 %", {1, 1, 1, 1, 1, 1, 1, 1}};
static const struct text hopeless = {"0 %", {0, 0, 0, 0, 0, 0, 0, 0}};
static const struct text code = {"code", {.93, .91, .90, .89, .88, .87, .86, .85}};
static const struct text prose = {"prose", {.65, .55, .45, .40, .35, .3, .3, .3}};
static const struct text uneven = {"uneven", {.9, .4, .9, .9, .9, .9, .9, .9}};
static const struct text *const texts[] = {&perfect, &hopeless, &code, &prose, &uneven};

struct world {
    const struct machine *m;
    uint64_t draws;
    double scale;        /* ns of a one-row pass */
    double time, tokens; /* as they came */
    /* What the chosen depths take and bring on average, in one-row passes: the quality of the
     * decisions without the luck of noise and acceptance. */
    double fair_time, fair_tokens;
    uint64_t plain, cycles, probes;
};

static double draw(struct world *w)
{
    return mx_rng_uniform(12345, w->draws++, MX_RNG_TARGET);
}

static double jitter(struct world *w)
{
    double z = sqrt(-2 * log(1 - draw(w))) * cos(6.283185307179586 * draw(w));
    double slow = draw(w) < w->m->outliers ? 10 : 1;
    return slow * exp(w->m->noise * z);
}

static double true_rows(const struct world *w, int n)
{
    double grown = 1 + w->m->growth * w->tokens / 1000;
    return w->scale * grown * w->m->rows[n - 1];
}

static double fair_tokens(const struct text *t, int k)
{
    double tokens = 1, reach = 1;
    for (int i = 0; i < k; i++) {
        reach *= t->p[i];
        tokens += reach;
    }
    return tokens;
}

static double fair_time(const struct machine *m, int k)
{
    return m->rows[k] + k * m->draft;
}

static double fixed_rate(const struct machine *m, const struct text *t, int k)
{
    return fair_tokens(t, k) / fair_time(m, k);
}

static double best_rate(const struct machine *m, const struct text *t)
{
    double best = 0;
    for (int k = 0; k <= MTPLX_MAX_DEPTH; k++)
        best = fmax(best, fixed_rate(m, t, k));
    return best;
}

static void cycle(struct world *w, struct mx_depth *d, const struct text *t)
{
    struct mx_depth_ask ask = {MTPLX_MAX_DEPTH, 1, (size_t)w->tokens, 0, 0, false};
    struct mx_depth_plan plan = mx_depth_next(d, &ask);
    struct mx_costs *costs = d->model ? &d->model->costs : NULL;
    double scale = true_rows(w, 1), ns = 0;
    assert_in_range(plan.depth, 0, MTPLX_MAX_DEPTH);
    for (int i = 0; i < plan.depth; i++) {
        double step = scale * w->m->draft * jitter(w);
        ns += step;
        if (costs)
            mx_cost_feed(costs, i ? MX_COST_NEXT : MX_COST_FIRST, 1, ask.context, step);
    }
    double verify = true_rows(w, plan.depth + 1) * jitter(w);
    ns += verify;
    if (costs)
        mx_cost_feed(costs, MX_COST_VERIFY, plan.depth + 1, ask.context, verify);
    int accepted = 0;
    while (accepted < plan.depth && draw(w) < t->p[accepted])
        accepted++;
    struct mx_depth_cycle c = {plan.depth, 0,          accepted + (accepted < plan.depth),
                               accepted,   plan.probe, ns};
    mx_depth_feed(d, &c);
    w->time += ns;
    w->tokens += accepted + 1;
    w->fair_time += fair_time(w->m, plan.depth);
    w->fair_tokens += fair_tokens(t, plan.depth);
    w->plain += plan.depth == 0;
    w->probes += plan.probe;
    w->cycles++;
}

/* Tokens per one-row pass. */
static double rate_since(const struct world *w, const struct world *before)
{
    return (w->fair_tokens - before->fair_tokens) / (w->fair_time - before->fair_time);
}

static void run_tokens(struct world *w, struct mx_depth *d, const struct text *t, double tokens)
{
    for (double end = w->tokens + tokens; w->tokens < end;)
        cycle(w, d, t);
}

/* ---- auto --------------------------------------------------------------------------------- */

/* Speed of auto over `tokens` tokens after `skipped`, relative to plain and to the best depth. */
static void measure(const struct machine *m, const struct text *t, double skipped, double tokens,
                    double *plain, double *best)
{
    struct mx_depth_model model;
    struct mx_depth d;
    struct world w = {.m = m, .scale = 3e6};
    mx_depth_model_init(&model);
    mx_depth_init(&d, MTPLX_DEPTH_AUTO, MTPLX_MAX_DEPTH, &model);
    run_tokens(&w, &d, t, skipped);
    struct world before = w;
    run_tokens(&w, &d, t, tokens);
    double rate = rate_since(&w, &before);
    *plain = rate;
    *best = rate / best_rate(m, t);
    print_message("  %-14s %-8s noise %.2f outliers %.2f: %.3f of plain, %.3f of the best fixed "
                  "depth, last %d, plain cycles %.0f %%\n",
                  m->name, t->name, m->noise, m->outliers, *plain, *best, d.last,
                  100.0 * (double)(w.plain - before.plain) / (double)(w.cycles - before.cycles));
}

static void check_steady(double noise, double outliers, double least)
{
    const struct machine *const machines[] = {&flat, &steep, &linear, &stair};
    for (size_t i = 0; i < LENGTH(machines); i++)
        for (size_t j = 0; j < LENGTH(texts); j++) {
            struct machine m = *machines[i];
            double plain, best;
            m.noise = noise;
            m.outliers = outliers;
            measure(&m, texts[j], 100, 20000, &plain, &best);
            assert_true(plain >= least);
            assert_true(best >= least);
        }
}

static void test_steady(void **state)
{
    (void)state;
    check_steady(0, 0, 0.97);
    check_steady(0.05, 0, 0.97);
}

/* One pass in twenty is preempted and takes ten times as long. */
static void test_outliers(void **state)
{
    (void)state;
    check_steady(0.05, 0.05, 0.97);
}

/* ---- Changes ------------------------------------------------------------------------------ */

static struct mx_depth_model learned(const struct machine *m, const struct text *t)
{
    struct mx_depth_model model;
    struct mx_depth d;
    struct world w = {.m = m, .scale = 3e6};
    mx_depth_model_init(&model);
    mx_depth_init(&d, MTPLX_DEPTH_AUTO, MTPLX_MAX_DEPTH, &model);
    run_tokens(&w, &d, t, 2000);
    return model;
}

/* Loss in one-row passes against the best depth over `tokens` tokens of a new answer, the mean of
 * many. */
static double start_loss(const struct machine *m, const struct text *before, const struct text *t,
                         double tokens)
{
    enum { ANSWERS = 50 };
    struct mx_depth_model model = learned(m, before);
    struct world w = {.m = m, .scale = 3e6, .draws = 1 << 20};
    for (int i = 0; i < ANSWERS; i++) {
        struct mx_depth_model fresh = model;
        struct mx_depth d;
        mx_depth_init(&d, MTPLX_DEPTH_AUTO, MTPLX_MAX_DEPTH, &fresh);
        run_tokens(&w, &d, t, tokens);
    }
    double loss = (w.fair_time - w.fair_tokens / best_rate(m, t)) / ANSWERS;
    print_message("  %-14s %-8s after %-8s: %.1f passes lost in the first %.0f tokens\n", m->name,
                  t->name, before->name, loss, tokens);
    return loss;
}

/* An answer unlike all before it costs a few passes until it is understood. */
static void test_new_answers(void **state)
{
    (void)state;
    assert_true(start_loss(&flat, &code, &hopeless, 100) < 5);
    assert_true(start_loss(&steep, &code, &hopeless, 100) < 6);
    assert_true(start_loss(&steep, &code, &prose, 100) < 6);
    assert_true(start_loss(&linear, &code, &hopeless, 100) < 6);
    assert_true(start_loss(&flat, &code, &prose, 100) < 5);
    assert_true(start_loss(&flat, &hopeless, &code, 100) < 7);
    assert_true(start_loss(&steep, &hopeless, &code, 100) < 12);
    assert_true(start_loss(&steep, &code, &code, 100) < 5);
    assert_true(start_loss(&flat, &code, &code, 100) < 4);
}

/* Stretches of 400 tokens of different text in one answer. */
static void test_changing_text(void **state)
{
    (void)state;
    const struct machine *const machines[] = {&flat, &steep, &stair};
    for (size_t i = 0; i < LENGTH(machines); i++) {
        struct machine m = *machines[i];
        struct mx_depth_model model;
        struct mx_depth d;
        struct world w = {.m = &m, .scale = 3e6};
        double best = 0;
        m.noise = 0.05;
        m.outliers = 0.02;
        mx_depth_model_init(&model);
        mx_depth_init(&d, MTPLX_DEPTH_AUTO, MTPLX_MAX_DEPTH, &model);
        for (int k = 0; k < 40; k++) {
            const struct text *t = k % 4 == 0   ? &code
                                   : k % 4 == 1 ? &prose
                                   : k % 4 == 2 ? &code
                                                : &hopeless;
            double before = w.fair_tokens;
            run_tokens(&w, &d, t, 400);
            best += (w.fair_tokens - before) / best_rate(&m, t);
        }
        print_message("  %-14s changing text: %.3f of plain, %.3f of the best depth of each "
                      "stretch\n",
                      m.name, w.fair_tokens / w.fair_time, best / w.fair_time);
        assert_true(w.fair_tokens / w.fair_time > 0.97);
        assert_true(best / w.fair_time > 0.93);
    }
}

/* Times grow fivefold with the context while one answer runs. */
static void test_growing_context(void **state)
{
    (void)state;
    const struct machine *const machines[] = {&flat, &steep};
    for (size_t i = 0; i < LENGTH(machines); i++)
        for (size_t j = 0; j < LENGTH(texts); j++) {
            struct machine m = *machines[i];
            double plain, best;
            m.noise = 0.05;
            m.growth = 0.2;
            measure(&m, texts[j], 100, 20000, &plain, &best);
            assert_true(plain >= 0.97 && best >= 0.97);
        }
}

/* What another machine taught, far off in both directions, does not outlast a few hundred tokens.
 */
static void test_wrong_state(void **state)
{
    (void)state;
    const struct machine *const machines[] = {&flat, &steep, &linear};
    for (size_t i = 0; i < LENGTH(machines); i++)
        for (size_t j = 0; j < LENGTH(machines); j++) {
            struct mx_depth_model model = learned(machines[j], i == 0 ? &hopeless : &code), read;
            struct mx_depth d;
            struct world w = {.m = machines[i], .scale = 1e8, .draws = 1 << 22};
            json_t *section = mx_depth_model_write(&model);
            mx_depth_model_init(&read);
            mx_depth_model_read(&read, section);
            json_decref(section);
            mx_depth_init(&d, MTPLX_DEPTH_AUTO, MTPLX_MAX_DEPTH, &read);
            run_tokens(&w, &d, &code, 400);
            double early = w.fair_tokens / w.fair_time / best_rate(w.m, &code);
            struct world before = w;
            run_tokens(&w, &d, &code, 4000);
            double late = rate_since(&w, &before) / best_rate(w.m, &code);
            print_message("  %-14s with the state of %-14s: %.3f, then %.3f of the best\n",
                          w.m->name, machines[j]->name, early, late);
            assert_true(late > 0.96);
            assert_true(early > 0.6);
        }
}

/* ---- The other policies ------------------------------------------------------------------- */

static struct mx_depth run_policy(mtplx_depth_policy policy, int most, const struct machine *m,
                                  const struct text *t, double tokens, double *rate)
{
    static struct mx_depth_model model;
    struct mx_depth d;
    struct world w = {.m = m, .scale = 3e6};
    mx_depth_model_init(&model);
    mx_depth_init(&d, policy, most, &model);
    run_tokens(&w, &d, t, tokens);
    *rate = w.fair_tokens / w.fair_time;
    return d;
}

static void test_reference_policies(void **state)
{
    (void)state;
    static const struct {
        mtplx_depth_policy policy;
        const char *name;
    } all[] = {{MTPLX_DEPTH_STREAK, "streak"},
               {MTPLX_DEPTH_EXPECTED_VALUE, "expected_value"},
               {MTPLX_DEPTH_COST, "cost"},
               {MTPLX_DEPTH_POSITION_EMA, "position_ema"}};
    double rate;
    for (size_t i = 0; i < LENGTH(all); i++)
        for (size_t j = 0; j < LENGTH(texts); j++) {
            double here = 0;
            run_policy(all[i].policy, MTPLX_MAX_DEPTH, &flat, texts[j], 4000, &here);
            run_policy(all[i].policy, MTPLX_MAX_DEPTH, &steep, texts[j], 4000, &rate);
            print_message("  %-14s %-8s %.3f of the best on flat, %.3f on steep\n", all[i].name,
                          texts[j]->name, here / best_rate(&flat, texts[j]),
                          rate / best_rate(&steep, texts[j]));
            assert_true(here > 0.5 && rate > 0.3);
            for (int most = 0; most < 3; most++) /* never beyond what is allowed */
                run_policy(all[i].policy, most, &flat, texts[j], 300, &rate);
        }
    /* What each is known for. */
    struct mx_depth d = run_policy(MTPLX_DEPTH_STREAK, 8, &flat, &hopeless, 300, &rate);
    assert_int_equal(d.rules.depth, 1);
    d = run_policy(MTPLX_DEPTH_STREAK, 8, &flat, &perfect, 300, &rate);
    assert_int_equal(d.rules.depth, 8);
    run_policy(MTPLX_DEPTH_POSITION_EMA, 8, &steep, &hopeless, 2000, &rate);
    assert_true(rate > 0.8); /* goes down to plain decoding but for its probes */
    run_policy(MTPLX_DEPTH_FIXED, 3, &flat, &perfect, 300, &rate);
    assert_true(fabs(rate - fixed_rate(&flat, &perfect, 3)) < 1e-9);
}

/* ---- Batches, copies, limits -------------------------------------------------------------- */

/* Rows of a shared pass are free up to eight and cost a full row each from then on: alone one
 * drafts seven deep, eight together do not draft at all. */
static void test_batches(void **state)
{
    (void)state;
    struct mx_depth_model model;
    struct mx_depth d;
    mx_depth_model_init(&model);
    mx_depth_init(&d, MTPLX_DEPTH_AUTO, MTPLX_MAX_DEPTH, &model);
    for (int i = 0; i < 20; i++)
        for (int n = 1; n <= 72; n += n < 9 ? 1 : 7) {
            mx_cost_feed(&model.costs, MX_COST_VERIFY, n, 0, 1e6 * (n <= 8 ? 1 : n - 7));
            mx_cost_feed(&model.costs, MX_COST_FIRST, n, 0, 1e4);
            mx_cost_feed(&model.costs, MX_COST_NEXT, n, 0, 1e4);
        }
    for (int i = 0; i < 100; i++) {
        struct mx_depth_cycle c = {.planned = 8, .tested = 8, .accepted = 8};
        mx_depth_feed(&d, &c);
    }
    struct mx_depth_ask ask = {.most = MTPLX_MAX_DEPTH, .peers = 1};
    d.looked = d.cycles;
    assert_int_equal(mx_depth_next(&d, &ask).depth, 7);
    ask.peers = 8;
    d.looked = d.cycles;
    assert_int_equal(mx_depth_next(&d, &ask).depth, 0);
    ask.peers = 2;
    d.looked = d.cycles;
    assert_int_equal(mx_depth_next(&d, &ask).depth, 3);
}

static void test_copies_are_priced(void **state)
{
    (void)state;
    struct mx_depth_model model = learned(&flat, &prose);
    struct mx_depth d;
    struct mx_depth_ask ask = {.most = 8, .peers = 1, .copy = 8, .copy_p = 0.95};
    mx_depth_init(&d, MTPLX_DEPTH_AUTO, 8, &model);
    d.cycles = d.looked = 100;
    struct mx_depth_plan plan = mx_depth_next(&d, &ask);
    assert_true(plan.copy == 8 && plan.depth == 0);
    assert_true(plan.ns > 0 && plan.rate > 0);
    ask.copy_p = 0.1;
    plan = mx_depth_next(&d, &ask);
    assert_true(plan.copy == 0 && plan.depth > 0);
    assert_true(mx_depth_extend(&d, &ask, plan.rate, 1, 7, 0.99) > 3);
    assert_int_equal(mx_depth_extend(&d, &ask, plan.rate, 1, 7, 0.01), 0);
    assert_int_equal(mx_depth_extend(&d, &ask, plan.rate, 1, 0, 0.99), 0);
    ask.most = 0; /* no MTP head, or one token left */
    ask.copy_p = 0.95;
    assert_int_equal(mx_depth_next(&d, &ask).copy, 8);
    ask.copy = 0;
    plan = mx_depth_next(&d, &ask);
    assert_true(plan.copy == 0 && plan.depth == 0);
    mx_depth_init(&d, MTPLX_DEPTH_FIXED, 3, NULL);
    ask = (struct mx_depth_ask){.most = 3, .peers = 1, .copy = 5, .sure = true};
    assert_int_equal(mx_depth_next(&d, &ask).copy, 5);
    ask.sure = false;
    assert_int_equal(mx_depth_next(&d, &ask).depth, 3);
}

/* A plan never exceeds what is left to decode, whatever the policy has in mind. */
static void test_limits(void **state)
{
    (void)state;
    struct mx_depth_model model = learned(&flat, &perfect);
    for (int p = MTPLX_DEPTH_FIXED; p <= MTPLX_DEPTH_POSITION_EMA; p++) {
        struct mx_depth d;
        mx_depth_init(&d, (mtplx_depth_policy)p, 6, &model);
        for (int i = 0; i < 500; i++) {
            struct mx_depth_ask ask = {
                .most = i % 9, .peers = 1 + i % 3, .context = (size_t)i * 999};
            struct mx_depth_plan plan = mx_depth_next(&d, &ask);
            assert_in_range(plan.depth, 0, ask.most < 6 ? ask.most : 6);
            int good = i % 7 < plan.depth ? i % 7 : plan.depth;
            struct mx_depth_cycle c = {plan.depth, 0,          good + (good < plan.depth),
                                       good,       plan.probe, 1e6};
            mx_depth_feed(&d, &c);
        }
    }
}

/* ---- Stored state ------------------------------------------------------------------------- */

static void check_sane(const struct mx_depth_model *m)
{
    double last = 0;
    for (int n = 1; n <= 600; n++) {
        double t = mx_cost(&m->costs, MX_COST_VERIFY, n, 5000);
        assert_true(isfinite(t) && t > 0 && t >= last * (1 - 1e-9));
        last = n < 9 ? t : 0; /* shapes read from a file may decrease further up */
    }
    for (int i = 0; i < MTPLX_MAX_DEPTH; i++)
        assert_true(m->record.accepted[i] >= 0 && m->record.accepted[i] <= m->record.tested[i] &&
                    m->record.tested[i] <= 201);
}

static void test_round_trip(void **state)
{
    (void)state;
    struct mx_depth_model model = learned(&steep, &code), read;
    json_t *section = mx_depth_model_write(&model), *again;
    mx_depth_model_init(&read);
    mx_depth_model_read(&read, section);
    check_sane(&read);
    assert_true(read.costs.shaped);
    for (int n = 2; n <= 9; n++) {
        double was = mx_cost(&model.costs, MX_COST_VERIFY, n, 0) /
                     mx_cost(&model.costs, MX_COST_VERIFY, 1, 0);
        double is =
            mx_cost(&read.costs, MX_COST_VERIFY, n, 0) / mx_cost(&read.costs, MX_COST_VERIFY, 1, 0);
        assert_true(fabs(is / was - 1) < 0.02);
    }
    again = mx_depth_model_write(&read);
    assert_true(json_equal(json_object_get(section, "tested"), json_object_get(again, "tested")));
    json_decref(section);
    json_decref(again);
    mx_depth_model_init(&read);
    mx_depth_model_read(&read, NULL);
    assert_false(read.costs.shaped);
    check_sane(&read);
}

static void test_hostile_state(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "{\"verify\":7,\"first\":[],\"next\":{},\"tested\":null,\"accepted\":\"x\"}",
        "{\"verify\":[[1e300,-1e300,null,true,[0],{}]]}",
        "{\"verify\":[[8,-8,8,-8,8,-8,8,-8,8,-8]],\"next\":[[9,9]],\"first\":[[-9]]}",
        "{\"verify\":[[],[],[],[],[],[],[],[],[0,1,2]]}",
        "{\"tested\":[5,200,1e9,-1],\"accepted\":[6,200,3,-1],\"copy_tested\":[1,2,3,4,5]}",
    };
    for (size_t i = 0; i < LENGTH(bad); i++) {
        struct mx_depth_model m;
        struct mx_depth d;
        struct world w = {.m = &flat, .scale = 1e6};
        json_t *section = json_loads(bad[i], 0, NULL);
        assert_non_null(section);
        mx_depth_model_init(&m);
        mx_depth_model_read(&m, section);
        json_decref(section);
        for (int k = 0; k < MTPLX_MAX_DEPTH; k++)
            assert_true(m.record.accepted[k] <= m.record.tested[k]);
        for (int n = 1; n <= 600; n++) {
            double t = mx_cost(&m.costs, MX_COST_VERIFY, n, 0);
            assert_true(isfinite(t) && t > 0);
        }
        mx_depth_init(&d, MTPLX_DEPTH_AUTO, MTPLX_MAX_DEPTH, &m);
        run_tokens(&w, &d, &code, 3000);
        struct world before = w;
        run_tokens(&w, &d, &code, 3000);
        assert_true(rate_since(&w, &before) / best_rate(&flat, &code) > 0.9);
    }
}

/* Times that are none, and numbers of rows beyond every table. */
static void test_odd_times(void **state)
{
    (void)state;
    struct mx_depth_model m;
    mx_depth_model_init(&m);
    const double odd[] = {0, -1, NAN, INFINITY, 1e300, -INFINITY};
    for (size_t i = 0; i < LENGTH(odd); i++)
        mx_cost_feed(&m.costs, MX_COST_VERIFY, 1, 0, odd[i]);
    assert_int_equal(mx_cost_samples(&m.costs, MX_COST_VERIFY, 1), 0);
    mx_cost_feed(&m.costs, MX_COST_VERIFY, 0, 0, 1e6);
    mx_cost_feed(&m.costs, MX_COST_VERIFY, 1 << 30, SIZE_MAX, 1e14);
    mx_cost_feed(&m.costs, MX_COST_VERIFY, 1, 0, 1);
    assert_true(isfinite(mx_cost(&m.costs, MX_COST_VERIFY, 1 << 30, SIZE_MAX)));
    assert_true(isfinite(mx_cost(&m.costs, MX_COST_NEXT, 1, 0)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steady),
        cmocka_unit_test(test_outliers),
        cmocka_unit_test(test_new_answers),
        cmocka_unit_test(test_changing_text),
        cmocka_unit_test(test_growing_context),
        cmocka_unit_test(test_wrong_state),
        cmocka_unit_test(test_reference_policies),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_copies_are_priced),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_hostile_state),
        cmocka_unit_test(test_odd_times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
