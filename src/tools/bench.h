/* The benchmark of a model: what a pass costs, what drafting gains, and how far from the machine's
 * limits both are.
 *
 * What is compared is interleaved: every round runs all variants once, ratios are taken within the
 * round, and medians over the rounds are reported with their range. So a machine that slows down
 * for a while slows down all variants of a round. All decoding is greedy and ignores stop tokens,
 * and starts from copies of the same sequence.
 *
 * Model of the gain: with c(n) the cost of an n-row verify pass and d that of a draft step, both in
 * units of a plain decode step, and E the tokens per cycle that the acceptance by position gives,
 * drafting k tokens multiplies the speed by E / (c(k + 1) + k d). */
#ifndef MX_TOOLS_BENCH_H
#define MX_TOOLS_BENCH_H

#include "mtplx.h"

#define MX_BENCH_ROUNDS 100 /* most */
#define MX_BENCH_POINTS 16  /* most lengths of a list */
#define MX_BENCH_ROWS (MTPLX_MAX_DEPTH + 1)

struct mx_bench_options {
    int rounds; /* 1..MX_BENCH_ROUNDS */
    int tokens; /* decoded per measurement, at least 4 */
    const int32_t *prompt;
    size_t prompt_len;                /* at least 1 */
    bool depths[MTPLX_MAX_DEPTH + 1]; /* to measure; 0 always is */
    int lengths[MX_BENCH_POINTS], n_lengths;
    int contexts[MX_BENCH_POINTS], n_contexts;
    bool patient;        /* fill contexts however long it takes */
    size_t stream_bytes; /* least buffer of the bandwidth probe */
    const volatile int *cancel;
    void (*progress)(void *arg, const char *what); /* or NULL */
    void *progress_arg;
};

struct mx_bench_spread {
    double median, low, high; /* 0 when n is 0 */
    int n;
};

#define MX_BENCH_AUTO (-1) /* stands for the default depth policy where a depth is expected */

struct mx_bench_depth {
    bool measured;
    struct mx_bench_spread rate;  /* tokens per second */
    struct mx_bench_spread ratio; /* of rates, to depth 0 in the same round */
    struct mx_bench_spread draft; /* d: a draft step in plain decode steps of the same round */
    double tokens_per_cycle;
    uint64_t drafted[MTPLX_MAX_DEPTH], accepted[MTPLX_MAX_DEPTH]; /* as in mtplx_gen_stats */
    double expected;                                              /* E */
    double predicted;                                             /* speed-up by the model */
};

/* Prefill of `length` tokens, or decoding behind `length` of them. */
struct mx_bench_point {
    int length;
    char skipped[120]; /* why there are no figures, or "" */
    struct mx_bench_spread plain, drafted;
};

struct mx_bench_streams {
    struct mx_bench_spread one, two; /* tokens per second of all streams together */
    struct mx_bench_spread ratio;    /* two to one, within a round */
};

struct mx_bench_result {
    int rounds, tokens, best_depth; /* best_depth 0: no MTP head, or no depth asked for */

    double stream_rate, peak_rate; /* GB/s and GFLOP/s of the machine; 0: unknown */
    const char *peak_name;
    size_t stream_bytes;
    uint64_t row_bytes, draft_bytes; /* weights read by a plain decode step and a draft step */
    double prefill_flops;            /* per token */

    struct mx_bench_spread row_ns;                     /* a one-row pass */
    struct mx_bench_spread rows[MX_BENCH_ROWS + 1];    /* [n]: c(n) */
    struct mx_bench_depth depths[MTPLX_MAX_DEPTH + 1]; /* [0]: plain decoding */
    struct mx_bench_depth automatic; /* the default policy; nothing predicted, d unknown */
    struct mx_bench_point prefill[MX_BENCH_POINTS], context[MX_BENCH_POINTS];
    int n_prefill, n_context;
    struct mx_bench_streams plain_streams, drafted_streams; /* of decoding, prefill excluded */
};

/* Runs everything. Nothing else may use the model meanwhile. Errors: ARGUMENT, LIMIT (the prompt
 * does not fit), MEMORY, CANCELLED. */
mtplx_status mx_bench_run(mtplx_model *model, const struct mx_bench_options *options,
                          struct mx_bench_result *result, mtplx_error *err);

/* Median and range of v[0 .. n), which is sorted on the way. */
struct mx_bench_spread mx_bench_spread(double *v, int n);

/* E of the acceptance by position: 1 + a1 + a1 a2 + ... over `depth` positions. */
double mx_bench_expected(const uint64_t *drafted, const uint64_t *accepted, int depth);

/* ---- Reports ----------------------------------------------------------------------------------
 */

/* Texts to free(), NULL when out of memory: a table for people, one JSON object, and CSV with a
 * line "section,x,name,median,low,high,rounds" per figure. */
char *mx_bench_text(const mtplx_model *model, const struct mx_bench_result *r);
char *mx_bench_json(const mtplx_model *model, const struct mx_bench_result *r);
char *mx_bench_csv(const mtplx_model *model, const struct mx_bench_result *r);

#endif
