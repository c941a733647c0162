/* Sampler, counts and acceptance against slow oracles: a full sort of the whole vocabulary with
 * libm's softmax, arrays of counts, and sums over every pair of tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "runtime/counts.h"
#include "runtime/sampler.h"
#include "runtime/weights.h"

#define TOLERANCE 1e-12
#define LENGTH(a) (sizeof(a) / sizeof *(a))

/* ---- Deterministic randomness ------------------------------------------------------------- */

struct dice {
    uint64_t seed, next;
};

static double roll(struct dice *d)
{
    return mx_rng_uniform(d->seed, d->next++, MX_RNG_TARGET);
}

static int roll_int(struct dice *d, int n)
{
    return (int)(roll(d) * n);
}

static float roll_normal(struct dice *d, double sigma)
{
    double u = 1 - roll(d), v = roll(d);
    return (float)(sigma * sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

enum shape { BULK, PEAKED, TIES, EQUAL, HOLES, HUGE_VALUES, TINY_VALUES, ZEROS, ASCENDING, SHAPES };

static float make_logit(struct dice *d, enum shape shape, int i)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 3.0f};
    float x = roll_normal(d, 3);
    switch (shape) {
    case PEAKED: return roll(d) < 0.02 ? x + 20 : x;
    case TIES: return (float)roll_int(d, 5);
    case EQUAL: return -7.25f;
    case HOLES: return roll(d) < 0.3 ? odd[roll_int(d, roll(d) < 0.97 ? 1 : 6)] : x;
    case HUGE_VALUES: return roll(d) < 0.5 ? x * 1e38f : (roll(d) < 0.5 ? FLT_MAX : -FLT_MAX);
    case TINY_VALUES: return x * 1e-41f;
    case ZEROS: return roll(d) < 0.5 ? 0.0f : -0.0f;
    case ASCENDING: return (float)i * 0.01f;
    default: return x;
    }
}

static void make_row(struct dice *d, enum shape shape, float *x, int vocab)
{
    for (int i = 0; i < vocab; i++)
        x[i] = make_logit(d, shape, i);
}

/* ---- The oracle --------------------------------------------------------------------------- */

struct candidate {
    int32_t id;
    double x, w;
};

/* How often each token was seen, one place per token. */
struct tally {
    const int *completion, *prompt;
};

static int by_rank(const void *a, const void *b)
{
    const struct candidate *l = a, *r = b;
    if (l->x != r->x)
        return l->x > r->x ? -1 : 1;
    return l->id < r->id ? -1 : l->id > r->id;
}

static double oracle_logit(const mtplx_sampling *cfg, const struct tally *t, const float *logits,
                           int i)
{
    double x = (double)logits[i];
    if (isnan(x))
        return -INFINITY;
    x = fmin(x, (double)FLT_MAX);
    if (!t || x == -INFINITY)
        return x;
    if (t->completion[i] + t->prompt[i] > 0)
        x = x > 0 ? x / cfg->repetition_penalty : x * cfg->repetition_penalty;
    if (t->completion[i] > 0)
        x -= cfg->presence_penalty + cfg->frequency_penalty * t->completion[i];
    return (double)(float)fmax(fmin(x, (double)FLT_MAX), -(double)FLT_MAX);
}

/* Softmax over everything, full sort, filters one after the other. Returns how many are kept, in
 * order, with their probability in w. */
static int oracle(const mtplx_sampling *cfg, const struct tally *t, const float *logits, int vocab,
                  struct candidate *c)
{
    for (int i = 0; i < vocab; i++)
        c[i] = (struct candidate){.id = i, .x = oracle_logit(cfg, t, logits, i)};
    qsort(c, (size_t)vocab, sizeof *c, by_rank);
    if (c[0].x == -INFINITY || cfg->temperature <= 0) {
        c[0].w = 1;
        return 1;
    }
    double z = 0, top = c[0].x;
    for (int i = 0; i < vocab; i++) {
        double arg = (c[i].x - top) / cfg->temperature;
        c[i].w = arg >= -708 ? exp(arg) : 0;
    }
    for (int i = vocab - 1; i >= 0; i--)
        z += c[i].w;
    int kept = 0;
    double before = 0, sum = 0;
    for (int i = 0; i < vocab; i++) {
        bool top_p = cfg->top_p >= 1 || before < cfg->top_p * z;
        bool top_k = cfg->top_k == 0 || i < cfg->top_k;
        before += c[i].w;
        if (c[i].w <= 0 || !top_p || !top_k || c[i].w < cfg->min_p)
            continue;
        assert_int_equal(kept, i); /* every filter keeps a prefix of the ranking */
        sum += c[i].w;
        kept++;
    }
    for (int i = 0; i < kept; i++)
        c[i].w /= sum;
    return kept;
}

struct bench {
    int vocab;
    struct mx_sampler *s;
    struct mx_dist d;
    struct candidate *c;
    float *x;
};

static void bench_open(struct bench *b, int vocab)
{
    *b = (struct bench){.vocab = vocab};
    b->s = mx_sampler_new(vocab, NULL);
    b->c = calloc((size_t)vocab, sizeof *b->c);
    b->x = calloc((size_t)vocab, sizeof *b->x);
    assert_non_null(b->s);
    assert_non_null(b->c);
    assert_non_null(b->x);
    assert_int_equal(mx_dist_reserve(&b->d, vocab, NULL), MTPLX_OK);
}

static void bench_close(struct bench *b)
{
    mx_sampler_free(b->s);
    mx_dist_free(&b->d);
    free(b->c);
    free(b->x);
}

static void describe(const mtplx_sampling *cfg, int vocab, int shape)
{
    print_message("vocab %d shape %d: t=%g top_p=%.17g top_k=%d min_p=%g rep=%g pres=%g freq=%g\n",
                  vocab, shape, cfg->temperature, cfg->top_p, cfg->top_k, cfg->min_p,
                  cfg->repetition_penalty, cfg->presence_penalty, cfg->frequency_penalty);
}

/* Samples b->x and compares with the oracle: same ids, same order, same probabilities. */
static void check_row(struct bench *b, const mtplx_sampling *cfg, const struct mx_counts *counts,
                      const struct tally *t, int shape)
{
    int n = oracle(cfg, t, b->x, b->vocab, b->c);
    mx_sample_dist(b->s, cfg, counts, b->x, b->vocab, &b->d);
    double sum = 0, lost = 0; /* compensated: 248,320 terms must add no error of their own */
    bool same = b->d.n == n;
    for (int i = 0; i < n && same; i++) {
        same = b->d.ids[i] == b->c[i].id && b->d.p[i] > 0 &&
               fabs(b->d.p[i] - b->c[i].w) <= TOLERANCE * b->c[i].w + 1e-300;
        double term = b->d.p[i] - lost, next = sum + term;
        lost = (next - sum) - term;
        sum = next;
    }
    if (!same)
        describe(cfg, b->vocab, shape);
    assert_int_equal(b->d.n, n);
    assert_true(same);
    assert_true(fabs(sum - 1) < TOLERANCE);
    assert_int_equal(mx_sample_argmax(cfg, counts, b->x, b->vocab), b->c[0].id);
}

/* ---- Settings ----------------------------------------------------------------------------- */

static const mtplx_sampling plain = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};

static void expect_refusal(mtplx_sampling cfg, const char *field)
{
    const char *message = mx_sampling_check(&cfg);
    assert_non_null(message);
    assert_int_equal(strncmp(message, field, strlen(field)), 0);
}

/* Refuses every value of `bad` and NaN in the double at `offset`. */
static void expect_refusals(size_t offset, const char *field, const double *bad, size_t n)
{
    for (size_t i = 0; i <= n; i++) {
        mtplx_sampling cfg = plain;
        double value = i < n ? bad[i] : NAN;
        memcpy((char *)&cfg + offset, &value, sizeof value);
        expect_refusal(cfg, field);
    }
}

#define REFUSE(field, ...)                                                                         \
    do {                                                                                           \
        const double bad[] = {__VA_ARGS__};                                                        \
        expect_refusals(offsetof(mtplx_sampling, field), #field, bad, LENGTH(bad));                \
    } while (0)

static void settings_name_the_field(void **state)
{
    (void)state;
    assert_null(mx_sampling_check(&plain));
    REFUSE(temperature, -0.1, 100.1, INFINITY, -INFINITY);
    REFUSE(top_p, 0, -0.5, 1.0000001, INFINITY);
    REFUSE(min_p, -1e-9, 1.1, INFINITY);
    REFUSE(presence_penalty, -2.1, 2.1, INFINITY, -INFINITY);
    REFUSE(frequency_penalty, -2.1, 2.1, INFINITY, -INFINITY);
    REFUSE(repetition_penalty, 0, -1, 10.1, INFINITY);
    mtplx_sampling cfg = plain;
    cfg.top_k = -1;
    expect_refusal(cfg, "top_k");
    cfg = (mtplx_sampling){.temperature = 100,
                           .top_p = DBL_MIN,
                           .top_k = INT_MAX,
                           .min_p = 1,
                           .presence_penalty = -2,
                           .frequency_penalty = 2,
                           .repetition_penalty = 10};
    assert_null(mx_sampling_check(&cfg));
}

static void greedy_is_temperature_zero(void **state)
{
    (void)state;
    mtplx_sampling cfg = plain;
    assert_false(mx_sampling_greedy(&cfg));
    cfg.temperature = 0;
    assert_true(mx_sampling_greedy(&cfg));
    cfg.temperature = -1;
    assert_true(mx_sampling_greedy(&cfg));
}

/* ---- Distributions ------------------------------------------------------------------------ */

static void dist_look_up_and_draw(void **state)
{
    (void)state;
    struct mx_dist d = {0};
    assert_int_equal(mx_dist_draw(&d, 0.5), 0);
    assert_int_equal(mx_dist_reserve(&d, 3, NULL), MTPLX_OK);
    const int32_t ids[] = {7, 2, 9};
    const double p[] = {0.5, 0.25, 0.25};
    memcpy(d.ids, ids, sizeof ids);
    memcpy(d.p, p, sizeof p);
    d.n = 3;
    assert_true(mx_dist_prob(&d, 7) == 0.5);
    assert_true(mx_dist_prob(&d, 9) == 0.25);
    assert_true(mx_dist_prob(&d, 3) == 0);
    assert_true(mx_dist_prob(&d, -1) == 0);
    assert_int_equal(mx_dist_draw(&d, 0), 7);
    assert_int_equal(mx_dist_draw(&d, nextafter(0.5, 0)), 7);
    assert_int_equal(mx_dist_draw(&d, 0.5), 2);
    assert_int_equal(mx_dist_draw(&d, 0.75), 9);
    assert_int_equal(mx_dist_draw(&d, nextafter(1, 0)), 9);
    assert_int_equal(mx_dist_draw(&d, NAN), 9);
    assert_int_equal(mx_dist_draw(&d, 17), 9);
    assert_int_equal(mx_dist_draw(&d, -17), 7);
    assert_int_equal(mx_dist_reserve(&d, 100, NULL), MTPLX_OK);
    assert_true(mx_dist_prob(&d, 9) == 0.25); /* growing keeps what is there */
    assert_int_equal(mx_dist_reserve(&d, 5, NULL), MTPLX_OK);
    assert_int_equal(d.cap, 100);
    mtplx_error err;
    assert_int_equal(mx_dist_reserve(&d, -1, &err), MTPLX_ERR_ARGUMENT);
    mx_dist_free(&d);
    assert_int_equal(d.cap, 0);
    mx_dist_free(NULL);
}

static void sampler_refuses_no_vocabulary(void **state)
{
    (void)state;
    mtplx_error err;
    assert_null(mx_sampler_new(0, &err));
    assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);
    assert_null(mx_sampler_new(INT_MIN, NULL));
    mx_sampler_free(NULL);
}

/* ---- Against the oracle ------------------------------------------------------------------- */

static double pick(struct dice *d, const double *from, int n)
{
    return from[roll_int(d, n)];
}

static mtplx_sampling random_settings(struct dice *d)
{
    static const double temperatures[] = {1, 0.6, 0.7, 2, 1e-4, 1e-2, 100, 20, 1e-7, 5e-324, 0};
    static const double top_ps[] = {1, 1, 0.95, 0.8, 0.5, 1e-9, DBL_MIN, 0.999999, -1};
    static const double min_ps[] = {0, 0, 0, 0.05, 1e-5, 1, 0.9};
    static const int top_ks[] = {0, 0, 1, 2, 20, 50, 256, 257, 700, INT_MAX};
    mtplx_sampling cfg = plain;
    cfg.temperature = pick(d, temperatures, LENGTH(temperatures));
    cfg.top_p = pick(d, top_ps, LENGTH(top_ps));
    cfg.top_p = cfg.top_p > 0 ? cfg.top_p : 1 - roll(d);
    cfg.top_k = top_ks[roll_int(d, LENGTH(top_ks))];
    cfg.min_p = pick(d, min_ps, LENGTH(min_ps));
    return cfg;
}

static void equals_the_full_sort(void **state)
{
    (void)state;
    static const int vocabs[] = {1, 2, 5, 15, 16, 17, 31, 33, 100, 255, 256, 257, 300, 1000, 3001};
    struct dice dice = {.seed = 11};
    for (size_t v = 0; v < LENGTH(vocabs); v++) {
        struct bench b;
        bench_open(&b, vocabs[v]);
        for (int k = 0; k < (vocabs[v] < 500 ? 600 : 120); k++) {
            int shape = k % SHAPES;
            mtplx_sampling cfg = random_settings(&dice);
            make_row(&dice, (enum shape)shape, b.x, b.vocab);
            check_row(&b, &cfg, NULL, NULL, shape);
        }
        bench_close(&b);
    }
}

/* Wide rows with many small steps: nearly every top-p decision falls inside the estimate's interval
 * and must come out as the double-precision sum says. */
static void close_top_p_decisions(void **state)
{
    (void)state;
    struct bench b;
    bench_open(&b, 4096);
    struct dice dice = {.seed = 12};
    for (int k = 0; k < 60; k++) {
        mtplx_sampling cfg = plain;
        cfg.temperature = 10;
        cfg.top_p = roll(&dice);
        cfg.top_k = k % 3 == 0 ? 200 : 0;
        make_row(&dice, BULK, b.x, b.vocab);
        check_row(&b, &cfg, NULL, NULL, BULK);
    }
    bench_close(&b);
}

/* Logits on and beside the borders of the segments that rows without a small top-k are read in:
 * none may be taken twice or lost. */
static void segment_borders(void **state)
{
    (void)state;
    struct bench b;
    bench_open(&b, 700);
    struct dice dice = {.seed = 21};
    for (int k = 0; k < 40; k++) {
        mtplx_sampling cfg = plain;
        cfg.top_p = k % 2 ? 1 - 1e-9 : 1 - 1e-4;
        for (int i = 0; i < b.vocab; i++) {
            float x = 3.0f - (float)(2 << roll_int(&dice, 5));
            for (int step = roll_int(&dice, 4); step > 0; step--)
                x = nextafterf(x, -FLT_MAX);
            b.x[i] = x;
        }
        b.x[roll_int(&dice, b.vocab)] = 3.0f;
        check_row(&b, &cfg, NULL, NULL, -1);
    }
    bench_close(&b);
}

static void full_vocabulary(void **state)
{
    (void)state;
    static const mtplx_sampling settings[] = {
        {.temperature = 1, .top_p = 1, .repetition_penalty = 1},
        {.temperature = 0.6, .top_p = 0.95, .top_k = 20, .repetition_penalty = 1},
        {.temperature = 1, .top_p = 0.95, .repetition_penalty = 1},
        {.temperature = 1, .top_p = 0.9, .top_k = 5000, .min_p = 1e-6, .repetition_penalty = 1},
    };
    struct bench b;
    bench_open(&b, 248320);
    struct dice dice = {.seed = 13};
    for (size_t i = 0; i < LENGTH(settings); i++) {
        enum shape shape = i % 2 ? PEAKED : HOLES;
        make_row(&dice, shape, b.x, b.vocab);
        check_row(&b, &settings[i], NULL, NULL, (int)shape);
    }
    make_row(&dice, EQUAL, b.x, b.vocab);
    check_row(&b, &settings[0], NULL, NULL, EQUAL);
    check_row(&b, &settings[1], NULL, NULL, EQUAL);
    bench_close(&b);
}

static void nothing_usable_gives_token_zero(void **state)
{
    (void)state;
    static const float bad[] = {-INFINITY, NAN};
    struct bench b;
    bench_open(&b, 40);
    for (int k = 0; k < 8; k++) {
        mtplx_sampling cfg = plain;
        cfg.temperature = k & 1 ? 1 : 0;
        cfg.top_k = k & 2 ? 5 : 0;
        cfg.top_p = k & 4 ? 0.5 : 1;
        for (int i = 0; i < b.vocab; i++)
            b.x[i] = bad[(i + k) % 2];
        mx_sample_dist(b.s, &cfg, NULL, b.x, b.vocab, &b.d);
        assert_int_equal(b.d.n, 1);
        assert_int_equal(b.d.ids[0], 0);
        assert_true(b.d.p[0] == 1);
        assert_int_equal(mx_sample_argmax(&cfg, NULL, b.x, b.vocab), 0);
    }
    assert_int_equal(mx_sample_argmax(&plain, NULL, b.x, 0), 0);
    bench_close(&b);
}

static void infinities_tie_with_the_largest_float(void **state)
{
    (void)state;
    const float x[] = {1, INFINITY, FLT_MAX, -INFINITY, NAN};
    struct bench b;
    bench_open(&b, LENGTH(x));
    memcpy(b.x, x, sizeof x);
    mx_sample_dist(b.s, &plain, NULL, b.x, b.vocab, &b.d);
    assert_int_equal(b.d.n, 2);
    assert_int_equal(b.d.ids[0], 1);
    assert_int_equal(b.d.ids[1], 2);
    assert_true(b.d.p[0] == 0.5 && b.d.p[1] == 0.5);
    bench_close(&b);
}

static void little_room_acts_like_top_k(void **state)
{
    (void)state;
    struct bench b;
    bench_open(&b, 500);
    struct dice dice = {.seed = 14};
    make_row(&dice, BULK, b.x, b.vocab);
    struct mx_dist small = {0};
    mx_sample_dist(b.s, &plain, NULL, b.x, b.vocab, &small);
    assert_int_equal(small.n, 0); /* no room at all: nothing is written */
    assert_int_equal(mx_dist_reserve(&small, 3, NULL), MTPLX_OK);
    mx_sample_dist(b.s, &plain, NULL, b.x, b.vocab, &small);
    mtplx_sampling cfg = plain;
    cfg.top_k = 3;
    mx_sample_dist(b.s, &cfg, NULL, b.x, b.vocab, &b.d);
    assert_int_equal(small.n, 3);
    assert_memory_equal(small.ids, b.d.ids, 3 * sizeof *small.ids);
    assert_memory_equal(small.p, b.d.p, 3 * sizeof *small.p);
    mx_dist_free(&small);
    bench_close(&b);
}

/* Scratch carries nothing from one row to the next. */
static void same_row_same_bits(void **state)
{
    (void)state;
    struct bench b, fresh;
    bench_open(&b, 700);
    bench_open(&fresh, 700);
    struct dice dice = {.seed = 15};
    for (int k = 0; k < 40; k++) {
        mtplx_sampling cfg = random_settings(&dice);
        make_row(&dice, (enum shape)(k % SHAPES), b.x, b.vocab);
        mx_sample_dist(b.s, &cfg, NULL, b.x, b.vocab, &b.d);
        struct mx_sampler *s = mx_sampler_new(700, NULL);
        assert_non_null(s);
        mx_sample_dist(s, &cfg, NULL, b.x, b.vocab, &fresh.d);
        mx_sampler_free(s);
        assert_int_equal(b.d.n, fresh.d.n);
        assert_memory_equal(b.d.ids, fresh.d.ids, (size_t)b.d.n * sizeof *b.d.ids);
        assert_memory_equal(b.d.p, fresh.d.p, (size_t)b.d.n * sizeof *b.d.p);
    }
    bench_close(&b);
    bench_close(&fresh);
}

static void estimate_keeps_its_bound(void **state)
{
    (void)state;
    static const double temperatures[] = {1e-6, 1e-3, 0.1, 0.6, 1, 3, 100};
    static const int sizes[] = {1, 15, 16, 17, 511, 512, 513, 20000};
    struct dice dice = {.seed = 16};
    float *x = calloc(20000, sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < LENGTH(sizes) * LENGTH(temperatures) * 4; i++) {
        size_t n = (size_t)sizes[i % LENGTH(sizes)];
        double inv_t = 1 / temperatures[i / LENGTH(sizes) % LENGTH(temperatures)];
        for (size_t j = 0; j < n; j++)
            x[j] = i % 3 ? roll_normal(&dice, i % 3 == 1 ? 4 : 300) : -(float)j * 0.01f;
        x[n / 2] = n > 1 ? NAN : x[n / 2];
        float max = mx_logits_max(x, n);
        double exact = mx_weights_sum(x, n, max, inv_t);
        double estimate = mx_weights_estimate(x, n, max, inv_t);
        assert_true(fabs(estimate - exact) < 0.6 * MX_WEIGHTS_SLACK * exact);
    }
    free(x);
}

/* ---- Penalties ---------------------------------------------------------------------------- */

struct history {
    int completion[600], prompt[600];
};

/* A random history in which some completion tokens were taken back again. */
static struct mx_counts *random_history(struct dice *d, struct history *h, int vocab, int length)
{
    memset(h, 0, sizeof *h);
    struct mx_counts *c = mx_counts_new(NULL);
    assert_non_null(c);
    for (int i = 0; i < length; i++) {
        int id = roll(d) < 0.5 ? roll_int(d, vocab) : roll_int(d, vocab < 6 ? vocab : 6);
        double what = roll(d);
        if (what < 0.3) {
            mx_counts_remove(c, id);
            h->completion[id] -= h->completion[id] > 0;
        } else {
            assert_int_equal(mx_counts_add(c, id, what < 0.5, NULL), MTPLX_OK);
            *(what < 0.5 ? &h->prompt[id] : &h->completion[id]) += 1;
        }
    }
    return c;
}

static void random_penalties(struct dice *d, mtplx_sampling *cfg)
{
    static const double additive[] = {0, 0.5, 1.5, 2, -2, -0.3};
    static const double repetition[] = {1, 1.1, 2, 10, 0.5, 0.01};
    cfg->presence_penalty = pick(d, additive, LENGTH(additive));
    cfg->frequency_penalty = pick(d, additive, LENGTH(additive));
    cfg->repetition_penalty = pick(d, repetition, LENGTH(repetition));
}

static void penalties_equal_the_oracle(void **state)
{
    (void)state;
    static const int vocabs[] = {1, 7, 40, 300, 600};
    struct dice dice = {.seed = 17};
    struct history h;
    for (size_t v = 0; v < LENGTH(vocabs); v++) {
        struct bench b;
        bench_open(&b, vocabs[v]);
        for (int k = 0; k < 300; k++) {
            struct mx_counts *c = random_history(&dice, &h, b.vocab, roll_int(&dice, 1200));
            mtplx_sampling cfg = random_settings(&dice);
            random_penalties(&dice, &cfg);
            make_row(&dice, (enum shape)(k % SHAPES), b.x, b.vocab);
            check_row(&b, &cfg, c, &(struct tally){h.completion, h.prompt}, k % SHAPES);
            mx_counts_free(c);
        }
        bench_close(&b);
    }
}

static void prompt_tokens_feed_repetition_only(void **state)
{
    (void)state;
    mtplx_sampling cfg = plain;
    cfg.temperature = 0;
    cfg.presence_penalty = 2;
    cfg.frequency_penalty = 2;
    const float x[] = {1, 1.5f, -1};
    struct mx_counts *c = mx_counts_new(NULL);
    assert_int_equal(mx_counts_add(c, 1, true, NULL), MTPLX_OK);
    assert_int_equal(mx_sample_argmax(&cfg, c, x, 3), 1);
    cfg.repetition_penalty = 1.6;
    assert_int_equal(mx_sample_argmax(&cfg, c, x, 3), 0);
    cfg.repetition_penalty = 1;
    assert_int_equal(mx_counts_add(c, 1, false, NULL), MTPLX_OK);
    assert_int_equal(mx_sample_argmax(&cfg, c, x, 3), 0);
    mx_counts_remove(c, 1);
    assert_int_equal(mx_sample_argmax(&cfg, c, x, 3), 1);
    assert_true(mx_counts_seen(c, 1)); /* still in the prompt */
    mx_counts_free(c);
}

/* Adds and removes in random order against arrays, with ids that collide and a table that grows. */
static void counts_equal_arrays(void **state)
{
    (void)state;
    enum { IDS = 3000 };
    static int n[IDS];
    memset(n, 0, sizeof n);
    struct dice dice = {.seed = 18};
    struct mx_counts *c = mx_counts_new(NULL);
    assert_non_null(c);
    for (int k = 0; k < 60000; k++) {
        int i = roll_int(&dice, k < 30000 ? IDS : 200);
        int32_t id = i % 3 ? i : i * 700001; /* spread over the whole range of ids */
        if (roll(&dice) < 0.5) {
            assert_int_equal(mx_counts_add(c, id, false, NULL), MTPLX_OK);
            n[i]++;
        } else {
            mx_counts_remove(c, id);
            n[i] -= n[i] > 0;
        }
        assert_int_equal(mx_counts_seen(c, id), n[i] > 0);
    }
    for (int i = 0; i < IDS; i++)
        assert_int_equal(mx_counts_seen(c, i % 3 ? i : i * 700001), n[i] > 0);
    mx_counts_clear(c);
    for (int i = 0; i < IDS; i++)
        assert_false(mx_counts_seen(c, i % 3 ? i : i * 700001));
    mx_counts_free(c);
}

static void counts_take_hostile_ids(void **state)
{
    (void)state;
    struct mx_counts *c = mx_counts_new(NULL);
    mtplx_error err;
    assert_int_equal(mx_counts_add(c, -1, false, &err), MTPLX_ERR_ARGUMENT);
    assert_int_equal(mx_counts_add(c, INT32_MIN, true, NULL), MTPLX_ERR_ARGUMENT);
    mx_counts_remove(c, -1);
    mx_counts_remove(c, 5);
    assert_int_equal(mx_counts_add(c, INT32_MAX, false, NULL), MTPLX_OK);
    mtplx_sampling cfg = plain;
    cfg.presence_penalty = 1;
    struct bench b;
    bench_open(&b, 3); /* the seen id lies outside this vocabulary */
    b.x[1] = 2;
    mx_sample_dist(b.s, &cfg, c, b.x, 3, &b.d);
    assert_int_equal(b.d.ids[0], 1);
    assert_int_equal(mx_sample_argmax(&cfg, c, b.x, 3), 1);
    bench_close(&b);
    mx_counts_free(c);
    mx_counts_free(NULL);
}

/* ---- Acceptance and residual -------------------------------------------------------------- */

static void accept_edges(void **state)
{
    (void)state;
    int32_t p_ids[] = {1, 2}, q_ids[] = {3, 1};
    double p_p[] = {0.75, 0.25}, q_p[] = {0.5, 0.5};
    struct mx_dist p = {.n = 2, .ids = p_ids, .p = p_p}, q = {.n = 2, .ids = q_ids, .p = q_p};
    assert_true(mx_spec_accept(&p, &q, 1, nextafter(1, 0))); /* p > q: always */
    assert_false(mx_spec_accept(&p, &q, 3, 0));              /* p = 0: never */
    assert_true(mx_spec_accept(&p, &q, 2, 0.9));             /* q = 0, p > 0 */
    assert_false(mx_spec_accept(&p, &q, 8, 0));              /* both 0 */
    assert_true(mx_spec_accept(&q, &p, 1, nextafter(2.0 / 3, 0)));
    assert_false(mx_spec_accept(&q, &p, 1, nextafter(2.0 / 3, 1)));
    assert_true(mx_spec_accept(&p, &p, 2, nextafter(1, 0)));
    assert_int_equal(mx_spec_residual(&p, &q, 0), 1);
    assert_int_equal(mx_spec_residual(&p, &q, 0.49), 1);
    assert_int_equal(mx_spec_residual(&p, &q, 0.51), 2);
    assert_int_equal(mx_spec_residual(&p, &q, nextafter(1, 0)), 2);
    assert_int_equal(mx_spec_residual(&p, &p, 0.8), 2); /* no excess: from p */
    assert_int_equal(mx_spec_residual(&p, &p, 0.7), 1);
}

/* The residual by definition, every p against every q. */
static int32_t slow_residual(const struct mx_dist *p, const struct mx_dist *q, double u)
{
    double total = 0, mass = 0;
    for (int i = 0; i < p->n; i++)
        total += fmax(p->p[i] - mx_dist_prob(q, p->ids[i]), 0);
    for (int i = 0; i < p->n; i++) {
        mass += fmax(p->p[i] - mx_dist_prob(q, p->ids[i]), 0);
        if (u * total < mass)
            return p->ids[i];
    }
    return -1;
}

static void residual_equals_its_definition(void **state)
{
    (void)state;
    struct bench p, q;
    bench_open(&p, 900);
    bench_open(&q, 900);
    struct dice dice = {.seed = 19};
    for (int k = 0; k < 300; k++) {
        mtplx_sampling cfg = plain;
        cfg.top_k = k % 3 == 0 ? 10 + k : 0;
        make_row(&dice, BULK, p.x, p.vocab);
        for (int i = 0; i < q.vocab; i++)
            q.x[i] = p.x[i] + roll_normal(&dice, 0.5);
        mx_sample_dist(p.s, &cfg, NULL, p.x, p.vocab, &p.d);
        cfg.top_p = k % 2 ? 0.9 : 1;
        mx_sample_dist(q.s, &cfg, NULL, q.x, q.vocab, &q.d);
        double u = roll(&dice);
        assert_int_equal(mx_spec_residual(&p.d, &q.d, u), slow_residual(&p.d, &q.d, u));
    }
    bench_close(&p);
    bench_close(&q);
}

/* Ids beyond the room of the distribution cannot be indexed and are searched. */
static void residual_with_ids_beyond_the_room(void **state)
{
    (void)state;
    enum { N = 64 };
    struct mx_dist p = {0}, q = {0};
    assert_int_equal(mx_dist_reserve(&p, N, NULL), MTPLX_OK);
    assert_int_equal(mx_dist_reserve(&q, N, NULL), MTPLX_OK);
    struct dice dice = {.seed = 20};
    p.n = q.n = N;
    for (int i = 0; i < N; i++) {
        p.ids[i] = 3 * i;
        q.ids[i] = 2 * i;
        p.p[i] = q.p[i] = 1.0 / N;
    }
    for (int k = 0; k < 200; k++) {
        double u = roll(&dice);
        assert_int_equal(mx_spec_residual(&p, &q, u), slow_residual(&p, &q, u));
    }
    mx_dist_free(&p);
    mx_dist_free(&q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settings_name_the_field),
        cmocka_unit_test(greedy_is_temperature_zero),
        cmocka_unit_test(dist_look_up_and_draw),
        cmocka_unit_test(sampler_refuses_no_vocabulary),
        cmocka_unit_test(equals_the_full_sort),
        cmocka_unit_test(close_top_p_decisions),
        cmocka_unit_test(segment_borders),
        cmocka_unit_test(full_vocabulary),
        cmocka_unit_test(nothing_usable_gives_token_zero),
        cmocka_unit_test(infinities_tie_with_the_largest_float),
        cmocka_unit_test(little_room_acts_like_top_k),
        cmocka_unit_test(same_row_same_bits),
        cmocka_unit_test(estimate_keeps_its_bound),
        cmocka_unit_test(penalties_equal_the_oracle),
        cmocka_unit_test(prompt_tokens_feed_repetition_only),
        cmocka_unit_test(counts_equal_arrays),
        cmocka_unit_test(counts_take_hostile_ids),
        cmocka_unit_test(accept_edges),
        cmocka_unit_test(residual_equals_its_definition),
        cmocka_unit_test(residual_with_ids_beyond_the_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
