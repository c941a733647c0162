/* Microseconds per row of the sampler, by vocabulary size and settings.
 *
 *   bench_sampler [repetitions]
 *
 * Rows imitate a language model: a Gaussian bulk and a few tokens that stand out, more or less of
 * them from row to row, so that confident and hesitant rows are both in the mean. `argmax` is the
 * floor: one scan of the row. `accept` is one acceptance test and one residual draw between two
 * neighbouring rows' distributions. The ns/token column is the dist column over the vocabulary. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/rng.h"
#include "runtime/sampler.h"

enum { ROWS = 8 };

struct setting {
    const char *name;
    mtplx_sampling cfg;
};

static const struct setting settings[] = {
    {"greedy", {.temperature = 0, .top_p = 1, .repetition_penalty = 1}},
    {"t=0.6 p=0.95 k=20",
     {.temperature = 0.6, .top_p = 0.95, .top_k = 20, .repetition_penalty = 1}},
    {"t=0.7 p=0.8", {.temperature = 0.7, .top_p = 0.8, .repetition_penalty = 1}},
    {"t=1.0 p=0.95", {.temperature = 1, .top_p = 0.95, .repetition_penalty = 1}},
    {"t=1.0 min_p=0.05", {.temperature = 1, .top_p = 1, .min_p = 0.05, .repetition_penalty = 1}},
    {"t=1.0 p=1 k=0", {.temperature = 1, .top_p = 1, .repetition_penalty = 1}},
};

/* A standard normal from two uniforms (Box and Muller). */
static double normal(uint64_t row, uint64_t i)
{
    double u = 1 - mx_rng_uniform(row, i, MX_RNG_DRAFT), v = mx_rng_uniform(row, i, MX_RNG_ACCEPT);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

static void make_row(float *x, int vocab, uint64_t row)
{
    for (int i = 0; i < vocab; i++)
        x[i] = (float)(2.2 * normal(row, (uint64_t)i));
    int peaks = 1 << (row % 6);
    for (int i = 0; i < peaks; i++) {
        double at = mx_rng_uniform(row, (uint64_t)i, MX_RNG_TARGET) * vocab;
        x[(int)at] = (float)(18 - 0.3 * i + normal(row, (uint64_t)vocab + (uint64_t)i));
    }
}

static double time_argmax(const mtplx_sampling *cfg, const float *rows, int vocab, int reps)
{
    volatile int32_t sink = 0;
    uint64_t start = mx_now_ns();
    for (int r = 0; r < reps; r++)
        sink = mx_sample_argmax(cfg, NULL, rows + (size_t)(r % ROWS) * (size_t)vocab, vocab);
    (void)sink;
    return (double)(mx_now_ns() - start) / 1e3 / reps;
}

static double time_dist(struct mx_sampler *s, const mtplx_sampling *cfg, const float *rows,
                        int vocab, struct mx_dist *d, int reps)
{
    uint64_t start = mx_now_ns();
    for (int r = 0; r < reps; r++)
        mx_sample_dist(s, cfg, NULL, rows + (size_t)(r % ROWS) * (size_t)vocab, vocab,
                       &d[r % ROWS]);
    return (double)(mx_now_ns() - start) / 1e3 / reps;
}

static double time_accept(const struct mx_dist *d, int reps)
{
    volatile int32_t sink = 0;
    uint64_t start = mx_now_ns();
    for (int r = 0; r < reps; r++) {
        const struct mx_dist *p = &d[r % ROWS], *q = &d[(r + 1) % ROWS];
        double u = mx_rng_uniform(1, (uint64_t)r, MX_RNG_DRAFT);
        sink = mx_spec_accept(p, q, mx_dist_draw(q, u), u);
        sink = mx_spec_residual(p, q, u);
    }
    (void)sink;
    return (double)(mx_now_ns() - start) / 1e3 / reps;
}

static int bench_vocab(int vocab, int reps)
{
    struct mx_dist d[ROWS] = {{0}};
    struct mx_sampler *s = mx_sampler_new(vocab, NULL);
    float *rows = malloc((size_t)vocab * ROWS * sizeof *rows);
    bool ok = s && rows;
    for (int r = 0; r < ROWS && ok; r++) {
        ok = mx_dist_reserve(&d[r], vocab, NULL) == MTPLX_OK &&
             mx_wide_reserve(&d[r].wide, vocab, NULL) == MTPLX_OK;
        make_row(rows + (size_t)r * (size_t)vocab, vocab, (uint64_t)r);
    }
    for (size_t i = 0; i < sizeof settings / sizeof *settings && ok; i++) {
        const mtplx_sampling *cfg = &settings[i].cfg;
        time_dist(s, cfg, rows, vocab, d, ROWS); /* touches the memory */
        double dist = time_dist(s, cfg, rows, vocab, d, reps);
        double kept = 0;
        for (int r = 0; r < ROWS; r++)
            kept += (double)(d[r].n + d[r].wide.n) / ROWS;
        printf("%7d  %-18s %9.1f %9.1f %9.1f %10.1f %8.2f\n", vocab, settings[i].name,
               time_argmax(cfg, rows, vocab, reps), dist, time_accept(d, reps), kept,
               dist * 1e3 / vocab);
    }
    for (int r = 0; r < ROWS; r++)
        mx_dist_free(&d[r]);
    mx_sampler_free(s);
    free(rows);
    return ok ? 0 : 1;
}

int main(int argc, char **argv)
{
    static const int vocabs[] = {8192, 151936, 248320};
    long reps = argc > 1 ? strtol(argv[1], NULL, 10) : 64;
    if (reps < ROWS || reps > 1000000) {
        fprintf(stderr, "usage: bench_sampler [repetitions >= %d]\n", ROWS);
        return 2;
    }
    printf("%7s  %-18s %9s %9s %9s %10s %8s\n", "vocab", "settings", "argmax us", "dist us",
           "accept us", "kept", "ns/token");
    for (size_t i = 0; i < sizeof vocabs / sizeof *vocabs; i++)
        if (bench_vocab(vocabs[i], (int)reps) != 0) {
            fprintf(stderr, "bench_sampler: out of memory\n");
            return 1;
        }
    return 0;
}
