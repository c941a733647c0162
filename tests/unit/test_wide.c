/* Wide distributions: their weights against libm, their draws, and the law of acceptance and
 * residual for every pairing of wide laws, parts of a vocabulary and lists. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "runtime/sampler.h"
#include "runtime/weights.h"

enum { N = 1300 }; /* two whole blocks and part of a third */

static const mtplx_sampling plain = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};

static double uniform(uint64_t a, uint64_t b)
{
    return mx_rng_uniform(a, b, MX_RNG_TARGET);
}

static void make_row(float *x, int n, uint64_t seed, double spread)
{
    for (int i = 0; i < n; i++)
        x[i] = (float)(spread * (uniform(seed, (uint64_t)i) + uniform(seed, 5000u + (uint64_t)i)));
}

/* A law made as the engine makes it. */
static struct mx_dist law(const mtplx_sampling *cfg, const float *x, const int32_t *ids, int n,
                          int vocab)
{
    struct mx_sampler *s = mx_sampler_new(vocab, NULL);
    struct mx_dist d = {0};
    assert_non_null(s);
    assert_int_equal(mx_dist_reserve_for(&d, cfg, vocab, NULL), MTPLX_OK);
    mx_sample_dist_of(s, cfg, NULL, x, ids, n, &d);
    mx_sampler_free(s);
    return d;
}

/* ---- Weights ------------------------------------------------------------------------------ */

static void weights_keep_their_bound(void **state)
{
    (void)state;
    float x[MX_WEIGHTS_BLOCK], w[MX_WEIGHTS_BLOCK];
    double worst = 0;
    for (int round = 0; round < 400; round++) {
        double reach = round % 4 ? 4 : 87, inv_t = round % 3 ? 1 : 1 / 0.7, sum = 0;
        size_t n = (size_t)(MX_WEIGHTS_BLOCK - round % 40);
        for (size_t i = 0; i < n; i++)
            x[i] = (float)(3 - reach * uniform((uint64_t)round, i));
        x[round % (int)n] = 3;
        double total = mx_weights_single(x, n, 3, inv_t, w);
        for (size_t i = 0; i < n; i++) {
            double off = 3 - (double)x[i], want = exp(-off * inv_t);
            double bound = 4e-7 + off * inv_t * 0x1p-22;
            sum += (double)w[i];
            if (want < 0x1p-126)
                continue;
            double error = fabs((double)w[i] / want - 1);
            worst = fmax(worst, error - off * inv_t * 0x1p-22);
            assert_true(error <= bound);
        }
        assert_true(fabs(total / sum - 1) < 1e-13);
        assert_true(w[round % (int)n] == 1);
    }
    print_message("largest error beside that of the argument: %.2g\n", worst);
    const float odd[] = {0, -INFINITY, NAN, -FLT_MAX, -200, -87.4f};
    mx_weights_single(odd, 6, 0, 1, w);
    assert_true(w[0] == 1 && w[1] == 0 && w[2] == 0 && w[3] == 0 && w[4] == 0 && w[5] == 0);
}

static void block_maxima_and_argmax(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 15, 16, 17, 511, 512, 513, 1024, N};
    float x[N], max[4];
    for (uint64_t seed = 0; seed < 60; seed++) {
        int n = sizes[seed % 10];
        make_row(x, n, seed, 4);
        if (seed % 3 == 0)
            for (int i = 0; i < n; i++)
                x[i] = floorf(x[i]); /* ties */
        if (seed % 4 == 1)
            x[(int)(uniform(seed, 1) * n)] = NAN;
        if (seed % 5 == 1)
            x[(int)(uniform(seed, 2) * n)] = seed % 2 ? INFINITY : FLT_MAX;
        if (seed % 5 == 1)
            x[(int)(uniform(seed, 3) * n)] = INFINITY;
        size_t best = 0;
        for (int i = n - 1; i >= 0; i--)
            if (mx_logit_clamp(x[i]) >= mx_logit_clamp(x[best]) || isnan(x[best]))
                best = isnan(x[i]) ? best : (size_t)i;
        assert_int_equal(mx_logits_argmax(x, (size_t)n), best);
        assert_true(mx_logits_block_max(x, (size_t)n, max) == mx_logits_max(x, (size_t)n));
        for (int b = 0; b * MX_WEIGHTS_BLOCK < n; b++) {
            int at = b * MX_WEIGHTS_BLOCK, size = n - at < MX_WEIGHTS_BLOCK ? n - at : 512;
            assert_true(max[b] == mx_logits_max(x + at, (size_t)size));
        }
    }
    const float none[] = {NAN, -INFINITY, NAN};
    assert_int_equal(mx_logits_argmax(none, 3), 0);
    const float low[] = {NAN, -INFINITY, -FLT_MAX};
    assert_int_equal(mx_logits_argmax(low, 3), 2);
}

static void bounds_hold_the_sum(void **state)
{
    (void)state;
    float x[N], max[4];
    for (uint64_t seed = 0; seed < 200; seed++) {
        int n = 1 + (int)(uniform(seed, 9) * (N - 1));
        make_row(x, n, seed, seed % 2 ? 3 : 30);
        if (seed % 5 == 0)
            x[0] = 90;
        float most = mx_logits_block_max(x, (size_t)n, max);
        double inv_t = 0.2 + 3 * uniform(seed, 10), low, high;
        double z = mx_weights_sum(x, (size_t)n, most, inv_t);
        mx_weights_bounds(x, max, (size_t)n, most, inv_t, &low, &high);
        assert_true(low <= z && z <= high && high < 1.1 * low);
    }
}

/* ---- Laws --------------------------------------------------------------------------------- */

static void check_law(const struct mx_dist *d, const float *x, int n, double temperature)
{
    double z = 0, sum = 0, max = (double)mx_logits_max(x, (size_t)n);
    for (int i = 0; i < n; i++)
        z += x[i] > -INFINITY ? exp(((double)x[i] - max) / temperature) : 0;
    for (int i = 0; i < n; i++) {
        double off = x[i] > -INFINITY ? (max - (double)x[i]) / temperature : INFINITY;
        double p = mx_dist_prob(d, i), want = exp(-off) / z;
        sum += p;
        assert_true(off < 80 ? fabs(p - want) <= want * (2e-6 + off * 0x1p-21) : p <= 1e-30);
    }
    assert_true(fabs(sum - 1) < 1e-13);
    assert_true(mx_dist_prob(d, -1) == 0 && mx_dist_prob(d, n) == 0);
}

static void laws_are_softmax(void **state)
{
    (void)state;
    float x[N];
    for (uint64_t seed = 0; seed < 60; seed++) {
        mtplx_sampling cfg = plain;
        int n = 1 + (int)(uniform(seed, 77) * (N - 1));
        cfg.temperature = seed % 3 ? 0.05 + 2 * uniform(seed, 78) : 100;
        make_row(x, n, seed, 12);
        if (seed % 4 == 1)
            x[n / 2] = NAN;
        if (seed % 4 == 2)
            for (int i = 0; i < n - 1 && i < 600; i++) /* a whole block of nothing */
                x[i] = -INFINITY;
        struct mx_dist d = law(&cfg, x, NULL, n, n);
        assert_non_null(mx_dist_wide(&d));
        check_law(&d, x, n, cfg.temperature);
        mx_dist_free(&d);
    }
}

static void odd_rows_have_laws_too(void **state)
{
    (void)state;
    float x[N];
    make_row(x, N, 1, 5);
    x[700] = INFINITY;
    x[3] = FLT_MAX;
    struct mx_dist d = law(&plain, x, NULL, N, N);
    assert_true(mx_dist_prob(&d, 700) == 0.5 && mx_dist_prob(&d, 3) == 0.5);
    mx_dist_free(&d);
    for (int i = 0; i < N; i++)
        x[i] = i % 2 ? NAN : -INFINITY;
    d = law(&plain, x, NULL, N, N);
    assert_null(mx_dist_wide(&d));
    assert_true(mx_dist_prob(&d, 0) == 1 && mx_dist_draw(&d, 0.9) == 0);
    mx_dist_free(&d);
    for (int i = 0; i < N; i++)
        x[i] = i % 2 ? -FLT_MAX : FLT_MAX;
    mtplx_sampling cold = plain;
    cold.temperature = MX_WEIGHTS_MIN_TEMPERATURE;
    d = law(&cold, x, NULL, N, N);
    assert_true(fabs(mx_dist_prob(&d, 8) - 2.0 / N) < 1e-12 && mx_dist_prob(&d, 9) == 0);
    mx_dist_free(&d);
    cold.temperature = 1e-9; /* below what single precision is proved for: a list */
    d = law(&cold, x, NULL, N, N);
    assert_null(mx_dist_wide(&d));
    mx_dist_free(&d);
}

/* Penalties reach a wide law, on the whole vocabulary and on a part of it. */
static void penalties_reach_wide_laws(void **state)
{
    (void)state;
    float x[N], part[N / 2], want[N];
    int32_t ids[N / 2];
    mtplx_sampling cfg = plain;
    cfg.presence_penalty = 1.5;
    struct mx_counts *c = mx_counts_new(NULL);
    struct mx_sampler *s = mx_sampler_new(N, NULL);
    struct mx_dist d = {0};
    make_row(x, N, 4, 3);
    memcpy(want, x, sizeof x);
    for (int32_t id = 5; id < N; id += 90) {
        mx_counts_add(c, id, false, NULL);
        want[id] -= 1.5f;
    }
    assert_int_equal(mx_dist_reserve_for(&d, &cfg, N, NULL), MTPLX_OK);
    mx_sample_dist(s, &cfg, c, x, N, &d);
    assert_non_null(mx_dist_wide(&d));
    check_law(&d, want, N, 1);
    for (int i = 0; i < N / 2; i++) {
        ids[i] = 2 * i + 1;
        part[i] = x[ids[i]];
        want[i * 2] = -INFINITY;
    }
    mx_sample_dist_of(s, &cfg, c, part, ids, N / 2, &d);
    check_law(&d, want, N, 1);
    mx_dist_free(&d);
    mx_counts_free(c);
    mx_sampler_free(s);
}

/* ---- Draws -------------------------------------------------------------------------------- */

/* Draws walk the tokens in order: at every border the next begins. */
static void draws_invert_the_cumulative_law(void **state)
{
    (void)state;
    float x[N];
    make_row(x, N, 6, 4);
    for (int i = 512; i < 1024; i++)
        x[i] = i == 800 ? 6 : -INFINITY;
    x[0] = -INFINITY;
    struct mx_dist d = law(&plain, x, NULL, N, N);
    double before = 0;
    for (int i = 0; i < N; i++) {
        double p = mx_dist_prob(&d, i);
        if (p > 0)
            assert_int_equal(mx_dist_draw(&d, before + p / 2), i);
        before += p;
    }
    assert_int_equal(mx_dist_draw(&d, 0), 1);
    assert_int_equal(mx_dist_draw(&d, nextafter(1, 0)), N - 1);
    assert_int_equal(mx_dist_draw(&d, 17), N - 1);
    assert_int_equal(mx_dist_draw(&d, NAN), N - 1);
    x[N - 1] = x[N - 2] = -INFINITY; /* the last token that can be drawn is not the last */
    mx_dist_free(&d);
    d = law(&plain, x, NULL, N, N);
    assert_int_equal(mx_dist_draw(&d, 17), N - 3);
    mx_dist_free(&d);
}

/* ---- Acceptance and residual -------------------------------------------------------------- */

/* Where the residual draw of a token ends, by bisection from its beginning. */
static double residual_end(const struct mx_dist *p, const struct mx_dist *q, double from, int32_t z)
{
    double low = from, high = 1;
    if (from >= 1 || mx_spec_residual(p, q, from) > z)
        return from;
    for (int i = 0; i < 56; i++) {
        double mid = low + (high - low) / 2;
        if (mid < 1 && mx_spec_residual(p, q, mid) <= z)
            low = mid;
        else
            high = mid;
    }
    return low;
}

/* min(p, q) + P(reject) * residual is p, token by token. */
static void check_residual(const struct mx_dist *p, const struct mx_dist *q, int vocab)
{
    double rejected = 0, from = 0;
    for (int z = 0; z < vocab; z++)
        rejected += fmax(mx_dist_prob(p, z) - mx_dist_prob(q, z), 0);
    for (int z = 0; z < vocab; z++) {
        double pz = mx_dist_prob(p, z), qz = mx_dist_prob(q, z);
        double end = residual_end(p, q, from, z);
        assert_true(fabs(fmin(pz, qz) + rejected * (end - from) - pz) < 1e-12);
        from = end;
    }
    assert_true(fabs(from - 1) < 1e-12);
}

static void residuals_complete_the_law(void **state)
{
    (void)state;
    enum { VOCAB = 600 };
    static float x[VOCAB], y[VOCAB], part[VOCAB];
    int32_t ids[VOCAB];
    mtplx_sampling top = plain;
    top.top_k = 40;
    make_row(x, VOCAB, 8, 5);
    make_row(y, VOCAB, 9, 3);
    int n = 0;
    for (int i = 0; i < VOCAB; i++) {
        y[i] += x[i];
        if (uniform(3, (uint64_t)i) < 0.3)
            ids[n++] = i;
    }
    for (int i = 0; i < n; i++)
        part[i] = y[ids[i]];
    struct mx_dist p = law(&plain, x, NULL, VOCAB, VOCAB);
    struct mx_dist laws[] = {
        law(&plain, y, NULL, VOCAB, VOCAB), /* wide, the same places */
        law(&plain, part, ids, n, VOCAB),   /* wide, a part of them */
        law(&plain, part, ids, 1, VOCAB),   /* one token */
        law(&top, y, NULL, VOCAB, VOCAB),   /* a list */
    };
    struct mx_dist list = law(&top, x, NULL, VOCAB, VOCAB);
    for (size_t i = 0; i < sizeof laws / sizeof *laws; i++) {
        check_residual(&p, &laws[i], VOCAB);
        /* A list against each: draws are in rank order, so only their masses can be compared. */
        double total = 0;
        for (int k = 0; k < 2000; k++) {
            int32_t z = mx_spec_residual(&list, &laws[i], (k + 0.5) / 2000);
            total += mx_dist_prob(&list, z) > mx_dist_prob(&laws[i], z);
        }
        assert_true(total == 2000);
    }
    /* Equal laws leave nothing over: p is drawn from. */
    for (int k = 0; k < 50; k++)
        assert_int_equal(mx_spec_residual(&p, &p, k / 50.0), mx_dist_draw(&p, k / 50.0));
    for (size_t i = 0; i < sizeof laws / sizeof *laws; i++)
        mx_dist_free(&laws[i]);
    mx_dist_free(&list);
    mx_dist_free(&p);
}

/* Laws that differ in the last digits only: the residual is rounding, and still a token of p. */
static void tiny_residuals_stay_in_the_support(void **state)
{
    (void)state;
    float x[N], y[N];
    make_row(x, N, 20, 6);
    for (int i = 0; i < N; i++) {
        x[i] = i % 3 ? x[i] : -INFINITY;
        y[i] = i % 7 ? x[i] : nextafterf(x[i], INFINITY);
    }
    struct mx_dist p = law(&plain, x, NULL, N, N), q = law(&plain, y, NULL, N, N);
    for (int k = 0; k <= 400; k++) {
        int32_t z = mx_spec_residual(&p, &q, k / 400.0001);
        assert_true(z % 3 != 0 && mx_dist_prob(&p, z) > 0);
    }
    mx_dist_free(&p);
    mx_dist_free(&q);
}

/* A distribution may be a list now and wide later, and the other way round. */
static void forms_alternate(void **state)
{
    (void)state;
    float x[N];
    mtplx_sampling cfg = plain;
    struct mx_sampler *s = mx_sampler_new(N, NULL);
    struct mx_dist d = {0};
    make_row(x, N, 30, 5);
    assert_int_equal(mx_dist_reserve(&d, N, NULL), MTPLX_OK);
    assert_int_equal(mx_dist_reserve_for(&d, &cfg, N, NULL), MTPLX_OK);
    for (int k = 0; k < 6; k++) {
        cfg.top_k = k % 2 ? 10 : 0;
        mx_sample_dist(s, &cfg, NULL, x, N, &d);
        assert_int_equal(mx_dist_wide(&d) != NULL, k % 2 == 0);
        assert_int_equal(d.n, k % 2 ? 10 : 0);
    }
    d.n = 1; /* as a copied draft is made */
    d.ids[0] = 9;
    d.p[0] = 1;
    assert_null(mx_dist_wide(&d));
    assert_true(mx_dist_prob(&d, 9) == 1);
    mx_dist_free(&d);
    mx_sampler_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_keep_their_bound),
        cmocka_unit_test(block_maxima_and_argmax),
        cmocka_unit_test(bounds_hold_the_sum),
        cmocka_unit_test(laws_are_softmax),
        cmocka_unit_test(odd_rows_have_laws_too),
        cmocka_unit_test(penalties_reach_wide_laws),
        cmocka_unit_test(draws_invert_the_cumulative_law),
        cmocka_unit_test(residuals_complete_the_law),
        cmocka_unit_test(tiny_residuals_stay_in_the_support),
        cmocka_unit_test(forms_alternate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
