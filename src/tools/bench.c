/* The benchmark's measurements, see the header.
 *
 *  1. A sequence that was measured on is never used again: every measurement runs on a fork.
 *  2. The first token of a generation is not timed: its step is a prefill.
 *  3. The weights that passes read are counted by a meter, in passes of their own that are not
 *     timed. */
#include "tools/bench.h"

#include "base/clock.h"
#include "runtime/forward.h"
#include "tools/bench_machine.h"
#include "tools/bench_meter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNK = 256,           /* rows of a filling pass */
    ROW_REPEATS = 5,       /* c(n) samples per round: passes are short */
    STREAM_REPEATS = 5,    /* of the machine's probes */
    POINT_SECONDS = 10,    /* stop repeating a prefill length after this */
    PATIENCE_SECONDS = 60, /* longest fill of a context unless the caller is patient */
};

struct bench {
    mtplx_model *model;
    const struct mx_bench_options *o;
    struct mx_bench_result *r;
    mtplx_seq *base; /* the prompt but for its last token */
    mtplx_error *err;
};

/* One measured generation. */
struct answer {
    double ns_per_token, ns_per_draft;
    mtplx_gen_stats stats;
};

/* ---- Small things -----------------------------------------------------------------------------
 */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct mx_bench_spread mx_bench_spread(double *v, int n)
{
    if (n == 0)
        return (struct mx_bench_spread){0};
    qsort(v, (size_t)n, sizeof *v, by_value);
    double median = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
    return (struct mx_bench_spread){median, v[0], v[n - 1], n};
}

double mx_bench_expected(const uint64_t *drafted, const uint64_t *accepted, int depth)
{
    double expected = 1, all = 1;
    for (int i = 0; i < depth && drafted[i] > 0; i++) {
        all *= (double)accepted[i] / (double)drafted[i];
        expected += all;
    }
    return expected;
}

static mtplx_status cancelled(const struct bench *b)
{
    if (!b->o->cancel || !*b->o->cancel)
        return MTPLX_OK;
    return mx_error(b->err, MTPLX_ERR_CANCELLED, "the benchmark was interrupted");
}

static void progress(const struct bench *b, const char *what)
{
    if (b->o->progress)
        b->o->progress(b->o->progress_arg, what);
}

/* Token `i` of the endless prompt. */
static int32_t prompt_token(const struct bench *b, size_t i)
{
    return b->o->prompt[i % b->o->prompt_len];
}

static int32_t last_token(const struct bench *b)
{
    return b->o->prompt[b->o->prompt_len - 1];
}

/* Extends a sequence to `length` tokens of the endless prompt. */
static mtplx_status fill(const struct bench *b, mtplx_seq *s, size_t length)
{
    mtplx_row rows[CHUNK];
    mtplx_status st = MTPLX_OK;
    size_t at = mtplx_seq_length(s);
    while (at < length && st == MTPLX_OK) {
        size_t n = length - at < CHUNK ? length - at : CHUNK;
        for (size_t i = 0; i < n; i++)
            rows[i] = (mtplx_row){.seq = s, .token = prompt_token(b, at + i)};
        st = cancelled(b);
        if (st == MTPLX_OK)
            st = mtplx_forward(b->model, rows, n, MTPLX_COMMIT, false, NULL, b->err);
        at += n;
    }
    return st;
}

/* ---- Generations ------------------------------------------------------------------------------
 */

static mtplx_gen *start(const struct bench *b, mtplx_seq *s, int depth)
{
    int32_t token = last_token(b);
    mtplx_gen_options o = {
        .depth = depth, .max_tokens = b->o->tokens, .ignore_stop = true, .cancel = b->o->cancel};
    if (depth == MX_BENCH_AUTO) {
        o.depth = MTPLX_MAX_DEPTH;
        o.policy = MTPLX_DEPTH_AUTO;
    }
    return mtplx_gen_new(s, &token, 1, &o, b->err);
}

/* Draft steps of the next cycle: no more than can still be used. */
static int drafts_of_cycle(const struct bench *b, const mtplx_gen *g, int depth)
{
    size_t made;
    if (depth == MX_BENCH_AUTO)
        return 0; /* unknown before the cycle */
    mtplx_gen_tokens(g, &made);
    int left = b->o->tokens - (int)made;
    return made == 0 ? 0 : left <= depth ? left - 1 : depth;
}

/* Decodes on a fork of `from`. */
static mtplx_status decode(const struct bench *b, const mtplx_seq *from, int depth,
                           struct answer *a)
{
    mtplx_seq *s = mtplx_seq_fork(from, b->err);
    mtplx_gen *g = s ? start(b, s, depth) : NULL;
    mtplx_status st = g ? MTPLX_OK : MTPLX_ERR_MEMORY;
    int drafts = 0;
    while (st == MTPLX_OK && mtplx_gen_finish(g) == MTPLX_FINISH_NONE) {
        drafts += drafts_of_cycle(b, g, depth);
        st = mtplx_gen_step(g, b->err);
    }
    if (st == MTPLX_OK) {
        a->stats = *mtplx_gen_get_stats(g);
        double made = (double)a->stats.generated_tokens - 1;
        a->ns_per_token = made > 0 ? (double)a->stats.decode_ns / made : 1;
        a->ns_per_draft = drafts > 0 ? (double)a->stats.draft_ns / drafts : 0;
    } else if (b->err && b->err->status != MTPLX_OK) {
        st = b->err->status;
    }
    mtplx_gen_free(g);
    mtplx_seq_free(s);
    return st;
}

/* Decodes `n` streams together on forks of the base; tokens per second of all after their first
 * tokens. */
static mtplx_status decode_streams(const struct bench *b, int n, int depth, double *rate)
{
    mtplx_seq *seqs[2] = {0};
    mtplx_gen *gens[2] = {0};
    mtplx_status st = MTPLX_OK;
    for (int i = 0; i < n && st == MTPLX_OK; i++) {
        seqs[i] = mtplx_seq_fork(b->base, b->err);
        gens[i] = seqs[i] ? start(b, seqs[i], depth) : NULL;
        st = gens[i] ? MTPLX_OK : MTPLX_ERR_MEMORY;
    }
    if (st == MTPLX_OK)
        st = mtplx_gen_step_many(gens, (size_t)n, b->err); /* first tokens */
    uint64_t begin = mx_now_ns();
    bool running = true;
    while (st == MTPLX_OK && running) {
        st = mtplx_gen_step_many(gens, (size_t)n, b->err);
        running = false;
        for (int i = 0; i < n; i++)
            running |= mtplx_gen_finish(gens[i]) == MTPLX_FINISH_NONE;
    }
    *rate = (double)n * (b->o->tokens - 1) * 1e9 / (double)(mx_now_ns() - begin + 1);
    for (int i = 0; i < n; i++) {
        mtplx_gen_free(gens[i]);
        mtplx_seq_free(seqs[i]);
    }
    return st;
}

/* ---- Machine and bytes ------------------------------------------------------------------------
 */

static mtplx_status measure_machine(const struct bench *b)
{
    struct mx_bench_result *r = b->r;
    struct mx_pool *pool = mx_pool_new(mtplx_model_get_info(b->model)->threads, b->err);
    if (!pool)
        return MTPLX_ERR_MEMORY;
    r->stream_bytes = mx_bench_stream_bytes(b->o->stream_bytes);
    r->stream_rate = mx_bench_stream(pool, r->stream_bytes, STREAM_REPEATS);
    r->peak_rate = mx_bench_peak(pool, STREAM_REPEATS, &r->peak_name);
    mx_pool_free(pool);
    return MTPLX_OK;
}

/* A verify pass of n rows, forgotten again. */
static mtplx_status row_pass(const struct bench *b, mtplx_seq *s, int n, uint64_t *ns)
{
    mtplx_row rows[MX_BENCH_ROWS];
    int32_t ids[MX_BENCH_ROWS];
    struct mx_want want = {.argmax = true, .ids = ids};
    mtplx_forward_result result;
    for (int i = 0; i < n; i++)
        rows[i] = (mtplx_row){.seq = s, .token = prompt_token(b, (size_t)i), .want_logits = true};
    mtplx_model_lock(b->model);
    uint64_t begin = mx_now_ns();
    mtplx_status st = mx_forward(b->model, rows, (size_t)n, MTPLX_VERIFY, &want, &result, b->err);
    *ns = mx_now_ns() - begin;
    mtplx_model_unlock(b->model);
    return st == MTPLX_OK ? mtplx_seq_commit(s, 0, b->err) : st;
}

static mtplx_status count_prefill(const struct bench *b, struct mx_meter *meter)
{
    mtplx_seq *s = mtplx_seq_new(b->model, b->err);
    int rows = mtplx_model_get_info(b->model)->context_length / 2;
    rows = rows < CHUNK ? rows : CHUNK;
    meter->flops = 0;
    mtplx_status st = s ? fill(b, s, (size_t)rows) : MTPLX_ERR_MEMORY;
    b->r->prefill_flops = rows > 0 ? (double)meter->flops / rows : 0;
    mtplx_seq_free(s);
    return st;
}

/* Draft bytes: what a generation at depth 1 reads beyond its verify passes. */
static mtplx_status count_draft(const struct bench *b, struct mx_meter *meter)
{
    struct answer a;
    if (!mtplx_model_get_info(b->model)->has_mtp)
        return MTPLX_OK;
    meter->bytes = 0;
    mtplx_status st = decode(b, b->base, 1, &a);
    if (st != MTPLX_OK || a.stats.cycles < 2)
        return st;
    /* The last cycle drafts when two tokens were left; the first step, a prefill, is a pass too. */
    uint64_t passes = (a.stats.cycles + 1) * b->r->row_bytes, drafts = 0;
    drafts = a.stats.drafted[0];
    if (drafts > 0 && meter->bytes > passes)
        b->r->draft_bytes = (meter->bytes - passes) / drafts;
    return st;
}

static mtplx_status count_bytes(const struct bench *b)
{
    struct mx_meter meter;
    uint64_t ns;
    mtplx_seq *s = mtplx_seq_fork(b->base, b->err);
    if (!s)
        return MTPLX_ERR_MEMORY;
    mx_meter_attach(&meter, b->model->device);
    mtplx_status st = row_pass(b, s, 1, &ns);
    b->r->row_bytes = meter.bytes;
    if (st == MTPLX_OK)
        st = count_draft(b, &meter);
    if (st == MTPLX_OK)
        st = count_prefill(b, &meter);
    mx_meter_detach(&meter);
    mtplx_seq_free(s);
    return st;
}

/* ---- c(n) -------------------------------------------------------------------------------------
 */

static mtplx_status measure_rows(const struct bench *b)
{
    static const int n_max = MX_BENCH_ROWS;
    int samples = b->o->rounds * ROW_REPEATS;
    double *ratio = calloc((size_t)(n_max + 1) * (size_t)samples, sizeof *ratio);
    mtplx_seq *s = mtplx_seq_fork(b->base, b->err);
    mtplx_status st = ratio && s ? MTPLX_OK : mx_error_nomem(b->err, "samples", (size_t)samples);
    for (int i = 0; i < samples && st == MTPLX_OK; i++) {
        uint64_t one = 1, ns;
        st = cancelled(b);
        for (int n = 1; n <= n_max && st == MTPLX_OK; n++) {
            st = row_pass(b, s, n, &ns);
            one = n == 1 ? ns + 1 : one;
            ratio[n * samples + i] = (double)ns / (double)one;
            ratio[i] = (double)one;
        }
    }
    for (int n = 1; n <= n_max && st == MTPLX_OK; n++)
        b->r->rows[n] = mx_bench_spread(ratio + n * samples, samples);
    if (st == MTPLX_OK)
        b->r->row_ns = mx_bench_spread(ratio, samples);
    free(ratio);
    mtplx_seq_free(s);
    return st;
}

/* ---- Depths -----------------------------------------------------------------------------------
 */

struct depth_samples {
    double rate[MX_BENCH_ROUNDS], ratio[MX_BENCH_ROUNDS], draft[MX_BENCH_ROUNDS];
    uint64_t tokens, cycles;
};

static void add_sample(struct mx_bench_depth *d, struct depth_samples *s, int round,
                       const struct answer *a, double plain_ns)
{
    s->rate[round] = 1e9 / a->ns_per_token;
    s->ratio[round] = plain_ns / a->ns_per_token;
    s->draft[round] = a->ns_per_draft / plain_ns;
    s->tokens += a->stats.generated_tokens - 1;
    s->cycles += a->stats.cycles;
    for (int i = 0; i < MTPLX_MAX_DEPTH; i++) {
        d->drafted[i] += a->stats.drafted[i];
        d->accepted[i] += a->stats.accepted[i];
    }
}

static void settle(const struct bench *b, struct mx_bench_depth *d, struct depth_samples *s)
{
    int n = b->o->rounds;
    d->measured = true;
    d->rate = mx_bench_spread(s->rate, n);
    d->ratio = mx_bench_spread(s->ratio, n);
    d->draft = mx_bench_spread(s->draft, n);
    d->tokens_per_cycle = s->cycles ? (double)s->tokens / (double)s->cycles : 0;
}

static void predict(const struct bench *b, int depth)
{
    struct mx_bench_depth *d = &b->r->depths[depth];
    d->expected = mx_bench_expected(d->drafted, d->accepted, depth);
    d->predicted =
        d->expected / (b->r->rows[depth + 1].median + depth * (depth ? d->draft.median : 0));
}

static void choose_best(struct mx_bench_result *r)
{
    r->best_depth = 0;
    for (int k = 1; k <= MTPLX_MAX_DEPTH; k++)
        if (r->depths[k].measured &&
            (r->best_depth == 0 ||
             r->depths[k].ratio.median > r->depths[r->best_depth].ratio.median))
            r->best_depth = k;
}

/* Depth k of the loop below, which ends with the policy: whether it is measured, and its results.
 */
#define AUTO_SLOT (MTPLX_MAX_DEPTH + 1)

static bool wanted(const struct bench *b, int k)
{
    bool any = false;
    if (k == 0)
        return true;
    for (int i = 1; i <= MTPLX_MAX_DEPTH; i++)
        any |= b->o->depths[i];
    return mtplx_model_get_info(b->model)->has_mtp && (k == AUTO_SLOT ? any : b->o->depths[k]);
}

static struct mx_bench_depth *slot(const struct bench *b, int k)
{
    return k == AUTO_SLOT ? &b->r->automatic : &b->r->depths[k];
}

static mtplx_status measure_depths(const struct bench *b)
{
    struct depth_samples *s = calloc(AUTO_SLOT + 1, sizeof *s);
    mtplx_status st = s ? MTPLX_OK : mx_error_nomem(b->err, "samples", sizeof *s);
    for (int round = 0; round < b->o->rounds && st == MTPLX_OK; round++) {
        double plain_ns = 1;
        for (int k = 0; k <= AUTO_SLOT && st == MTPLX_OK; k++) {
            struct answer a;
            if (!wanted(b, k))
                continue;
            st = decode(b, b->base, k == AUTO_SLOT ? MX_BENCH_AUTO : k, &a);
            if (st != MTPLX_OK)
                break;
            plain_ns = k == 0 ? a.ns_per_token : plain_ns;
            add_sample(slot(b, k), &s[k], round, &a, plain_ns);
        }
    }
    for (int k = 0; k <= AUTO_SLOT && st == MTPLX_OK; k++) {
        if (!wanted(b, k))
            continue;
        settle(b, slot(b, k), &s[k]);
        if (k != AUTO_SLOT)
            predict(b, k);
    }
    choose_best(b->r);
    free(s);
    return st;
}

/* ---- Prefill ----------------------------------------------------------------------------------
 */

/* Reads `length` tokens into an empty sequence up to the first token; tokens per second. */
static mtplx_status prefill_once(const struct bench *b, const int32_t *ids, int length,
                                 double *rate)
{
    mtplx_gen_options o = {.max_tokens = 1, .ignore_stop = true, .cancel = b->o->cancel};
    mtplx_seq *s = mtplx_seq_new(b->model, b->err);
    mtplx_gen *g = s ? mtplx_gen_new(s, ids, (size_t)length, &o, b->err) : NULL;
    mtplx_status st = g ? MTPLX_OK : MTPLX_ERR_MEMORY;
    while (st == MTPLX_OK && mtplx_gen_finish(g) == MTPLX_FINISH_NONE)
        st = mtplx_gen_step(g, b->err);
    if (st == MTPLX_OK)
        *rate = length * 1e9 / (double)(mtplx_gen_get_stats(g)->prefill_ns + 1);
    mtplx_gen_free(g);
    mtplx_seq_free(s);
    return st;
}

static mtplx_status measure_prefill(const struct bench *b, struct mx_bench_point *p)
{
    double rates[MX_BENCH_ROUNDS];
    int n = 0;
    int32_t *ids = malloc((size_t)p->length * sizeof *ids);
    mtplx_status st = ids ? MTPLX_OK : mx_error_nomem(b->err, "a prompt", (size_t)p->length);
    for (int i = 0; i < p->length && ids; i++)
        ids[i] = prompt_token(b, (size_t)i);
    uint64_t begin = mx_now_ns();
    while (st == MTPLX_OK && n < b->o->rounds &&
           (n == 0 || mx_now_ns() - begin < POINT_SECONDS * 1000000000ull)) {
        st = prefill_once(b, ids, p->length, &rates[n]);
        n++;
    }
    if (st == MTPLX_OK)
        p->plain = mx_bench_spread(rates, n);
    free(ids);
    return st;
}

static bool fits(const struct bench *b, int length, char *why, size_t size)
{
    int window = mtplx_model_get_info(b->model)->context_length;
    if (length + b->o->tokens < window)
        return true;
    snprintf(why, size, "more than the model's window of %d tokens holds", window);
    return false;
}

static mtplx_status measure_lengths(const struct bench *b)
{
    mtplx_status st = MTPLX_OK;
    for (int i = 0; i < b->o->n_lengths && st == MTPLX_OK; i++) {
        struct mx_bench_point *p = &b->r->prefill[b->r->n_prefill++];
        p->length = b->o->lengths[i];
        if (fits(b, p->length, p->skipped, sizeof p->skipped))
            st = measure_prefill(b, p);
    }
    return st;
}

/* ---- Context ----------------------------------------------------------------------------------
 */

static bool worth_filling(const struct bench *b, size_t tokens, char *why, size_t size)
{
    const struct mx_bench_result *r = b->r;
    double rate = 0;
    for (int i = 0; i < r->n_prefill; i++)
        rate = r->prefill[i].plain.n > 0 ? r->prefill[i].plain.median : rate;
    double seconds = rate > 0 ? (double)tokens / rate : 0;
    if (b->o->patient || seconds <= PATIENCE_SECONDS)
        return true;
    snprintf(why, size, "filling it takes about %.0f s; ask for it with --context", seconds);
    return false;
}

static mtplx_status measure_context(const struct bench *b, const mtplx_seq *s,
                                    struct mx_bench_point *p)
{
    double plain[MX_BENCH_ROUNDS], drafted[MX_BENCH_ROUNDS];
    int best = b->r->best_depth, n = b->o->rounds;
    mtplx_status st = MTPLX_OK;
    for (int i = 0; i < n && st == MTPLX_OK; i++) {
        struct answer a;
        if ((st = decode(b, s, 0, &a)) == MTPLX_OK)
            plain[i] = 1e9 / a.ns_per_token;
        if (st == MTPLX_OK && best > 0 && (st = decode(b, s, best, &a)) == MTPLX_OK)
            drafted[i] = 1e9 / a.ns_per_token;
    }
    if (st != MTPLX_OK)
        return st;
    p->plain = mx_bench_spread(plain, n);
    p->drafted = mx_bench_spread(drafted, best > 0 ? n : 0);
    return MTPLX_OK;
}

/* Lengths in increasing order share one sequence that grows. */
static mtplx_status measure_contexts(const struct bench *b)
{
    mtplx_seq *s = mtplx_seq_new(b->model, b->err);
    mtplx_status st = s ? MTPLX_OK : MTPLX_ERR_MEMORY;
    for (int i = 0; i < b->o->n_contexts && st == MTPLX_OK; i++) {
        struct mx_bench_point *p = &b->r->context[b->r->n_context++];
        p->length = b->o->contexts[i];
        size_t missing = (size_t)p->length - mtplx_seq_length(s);
        if (!fits(b, p->length, p->skipped, sizeof p->skipped) ||
            !worth_filling(b, missing, p->skipped, sizeof p->skipped))
            continue;
        st = fill(b, s, (size_t)p->length);
        if (st == MTPLX_OK)
            st = measure_context(b, s, p);
    }
    mtplx_seq_free(s);
    return st;
}

/* ---- Streams ----------------------------------------------------------------------------------
 */

static mtplx_status measure_streams(const struct bench *b, int depth, struct mx_bench_streams *out)
{
    double rate[2][MX_BENCH_ROUNDS], ratio[MX_BENCH_ROUNDS];
    mtplx_status st = MTPLX_OK;
    int n = b->o->rounds;
    for (int i = 0; i < n && st == MTPLX_OK; i++) {
        for (int k = 0; k < 2 && st == MTPLX_OK; k++)
            st = decode_streams(b, k + 1, depth, &rate[k][i]);
        ratio[i] = rate[1][i] / rate[0][i];
    }
    if (st == MTPLX_OK)
        *out = (struct mx_bench_streams){mx_bench_spread(rate[0], n), mx_bench_spread(rate[1], n),
                                         mx_bench_spread(ratio, n)};
    return st;
}

static mtplx_status measure_all_streams(const struct bench *b)
{
    mtplx_status st = measure_streams(b, 0, &b->r->plain_streams);
    if (st == MTPLX_OK && b->r->best_depth > 0)
        st = measure_streams(b, b->r->best_depth, &b->r->drafted_streams);
    return st;
}

/* ---- All of it --------------------------------------------------------------------------------
 */

static mtplx_status check_options(const struct bench *b)
{
    const mtplx_model_info *info = mtplx_model_get_info(b->model);
    const struct mx_bench_options *o = b->o;
    if (o->rounds < 1 || o->rounds > MX_BENCH_ROUNDS || o->tokens < 4 || o->prompt_len < 1)
        return mx_error(b->err, MTPLX_ERR_ARGUMENT,
                        "the benchmark needs 1 to %d rounds of at least 4 tokens and a prompt",
                        MX_BENCH_ROUNDS);
    if (o->prompt_len + (size_t)o->tokens + MX_BENCH_ROWS >= (size_t)info->context_length)
        return mx_error(b->err, MTPLX_ERR_LIMIT,
                        "%zu prompt tokens and %d to decode do not fit the model's window of %d; "
                        "use fewer",
                        o->prompt_len, o->tokens, info->context_length);
    return MTPLX_OK;
}

static mtplx_status make_base(struct bench *b)
{
    b->base = mtplx_seq_new(b->model, b->err);
    if (!b->base)
        return MTPLX_ERR_MEMORY;
    /* At least one token, for a fork to have something to verify and draft behind. */
    size_t length = b->o->prompt_len > 1 ? b->o->prompt_len - 1 : 1;
    return fill(b, b->base, length);
}

mtplx_status mx_bench_run(mtplx_model *model, const struct mx_bench_options *options,
                          struct mx_bench_result *result, mtplx_error *err)
{
    static const struct {
        const char *what;
        mtplx_status (*measure)(const struct bench *b);
    } parts[] = {
        {"the machine", measure_machine},         {"weights read by a pass", count_bytes},
        {"passes of several rows", measure_rows}, {"decoding by draft depth", measure_depths},
        {"prefill by length", measure_lengths},   {"decoding by context length", measure_contexts},
        {"two streams", measure_all_streams},
    };
    mtplx_error unused = {0};
    struct bench b = {model, options, result, NULL, err ? err : &unused};
    *result = (struct mx_bench_result){.rounds = options->rounds, .tokens = options->tokens};
    mtplx_status st = check_options(&b);
    if (st == MTPLX_OK)
        st = make_base(&b);
    for (size_t i = 0; i < sizeof parts / sizeof *parts && st == MTPLX_OK; i++) {
        progress(&b, parts[i].what);
        st = cancelled(&b);
        if (st == MTPLX_OK)
            st = parts[i].measure(&b);
    }
    mtplx_seq_free(b.base);
    return st;
}
