/* The engine against the bare loop, and how streams add up: interleaved in one run, so that machine
 * noise hits all alike; medians over rounds.
 *
 *   bench_engine [MODEL [DEPTH [TOKENS [ROUNDS [THREADS]]]]]   (models/nano, 3, 160, 5, all)
 *
 * First table: decode tokens per second of one answer by mtplx_gen_step() and by the engine. Then,
 * for 1, 2, 4, 8 and 16 streams and for plain and adaptive drafting: tokens of all streams per
 * second from where all have their first token to where one has its last, relative to one stream.
 */
#include "median.h"

#include "base/clock.h"
#include "engine/engine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROUNDS = 25, PROMPT = 48, STREAMS = 16 };

static const char *const texts[] = {
    "Write a Python function that reads a CSV file and returns the sum of the second column.",
    "Explain how a four-stroke engine works to a ten-year-old.",
    "Write a short story about a lighthouse keeper and a storm.",
    "List the planets of the solar system with one fact about each of them.",
};

static mtplx_model *model;
static int32_t prompts[STREAMS][PROMPT];
static int tokens = 160, depth = 3, rounds = 5;

static void die(const char *what, const mtplx_error *err)
{
    fprintf(stderr, "bench_engine: %s: %s\n", what, err->message);
    exit(1);
}

static void make_prompts(void)
{
    const mtplx_model_info *info = mtplx_model_get_info(model);
    for (int i = 0; i < STREAMS; i++) {
        const char *text = texts[i % 4];
        size_t n = 0;
        mtplx_error err = {0};
        int32_t *ids =
            info->has_tokenizer ? mtplx_encode(model, text, strlen(text), false, &n, &err) : NULL;
        for (int j = 0; j < PROMPT; j++)
            prompts[i][j] = n ? ids[((size_t)j + (size_t)i / 4) % n]
                              : (7919 * (i + 1) + 104729 * j) % info->vocab_size;
        mtplx_free(ids);
    }
}

static mtplx_gen_options options(bool drafting)
{
    return (mtplx_gen_options){.depth = drafting ? depth : 0,
                               .policy = drafting ? MTPLX_DEPTH_AUTO : MTPLX_DEPTH_FIXED,
                               .max_tokens = tokens,
                               .ignore_stop = true};
}

/* ---- The bare loop ------------------------------------------------------------------------ */

static double bare(bool drafting)
{
    mtplx_error err = {0};
    mtplx_gen_options o = options(drafting);
    mtplx_seq *s = mtplx_seq_new(model, &err);
    mtplx_gen *g = s ? mtplx_gen_new(s, prompts[0], PROMPT, &o, &err) : NULL;
    if (!g)
        die("generation", &err);
    while (mtplx_gen_finish(g) == MTPLX_FINISH_NONE)
        if (mtplx_gen_step(g, &err) != MTPLX_OK)
            die("step", &err);
    double tps = (tokens - 1) * 1e9 / (double)mtplx_gen_get_stats(g)->decode_ns;
    mtplx_gen_free(g);
    mtplx_seq_free(s);
    return tps;
}

/* ---- Streams of the engine ---------------------------------------------------------------- */

struct run {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int streams, started, ended;
    uint64_t all_started_ns, end_ns;
    uint64_t draft_ns, verify_ns, sample_ns, commit_ns, cycles;
    size_t total, before, after; /* tokens by now, when all had started, when one had ended */
};

static size_t on_tokens(void *arg, int choice, const mtplx_gen *gen, const int32_t *ids,
                        size_t from, size_t n)
{
    struct run *r = arg;
    (void)choice, (void)gen, (void)ids;
    r->total += n;
    if (from == 0 && ++r->started == r->streams) {
        r->all_started_ns = mx_now_ns();
        r->before = r->total;
    }
    return SIZE_MAX;
}

static void on_done(void *arg, int choice, const mtplx_gen *gen, const struct mx_job_result *res)
{
    struct run *r = arg;
    (void)choice, (void)gen;
    if (res->end == MX_END_ERROR)
        die("answer", &res->error);
    pthread_mutex_lock(&r->lock);
    r->draft_ns += res->stats.draft_ns;
    r->verify_ns += res->stats.verify_ns;
    r->sample_ns += res->stats.sample_ns;
    r->commit_ns += res->stats.commit_ns;
    r->cycles += res->stats.cycles;
    if (r->ended++ == 0) {
        r->end_ns = mx_now_ns();
        r->after = r->total;
    }
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

/* Tokens per second of n streams from where all run to where the first has ended; in *cycle_us the
 * parts of a cycle: draft, verify, sample, commit. */
static double streams(struct mx_engine *e, int n, bool drafting, double *cycle_us)
{
    static const struct mx_job_sink sink = {on_tokens, on_done, NULL, NULL};
    struct run r = {
        .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .streams = n};
    mtplx_error err = {0};
    for (int i = 0; i < n; i++) {
        struct mx_job_options o = {.prompt = prompts[i],
                                   .n_prompt = PROMPT,
                                   .gen = options(drafting),
                                   .no_reuse = true,
                                   .sink = &sink,
                                   .arg = &r};
        if (!mx_engine_submit(e, &o, &err))
            die("submit", &err);
    }
    pthread_mutex_lock(&r.lock);
    while (r.ended < n)
        pthread_cond_wait(&r.changed, &r.lock);
    pthread_mutex_unlock(&r.lock);
    if (cycle_us && r.cycles) {
        cycle_us[0] = (double)r.draft_ns / 1e3 / (double)r.cycles;
        cycle_us[1] = (double)r.verify_ns / 1e3 / (double)r.cycles;
        cycle_us[2] = (double)r.sample_ns * n / 1e3 / (double)r.cycles;
        cycle_us[3] = (double)r.commit_ns * n / 1e3 / (double)r.cycles;
    }
    return (double)(r.after - r.before) * 1e9 / (double)(r.end_ns - r.all_started_ns);
}

static void compare_one(struct mx_engine *e)
{
    printf("one answer        bare tok/s  engine tok/s  engine / bare\n");
    for (int drafting = 0; drafting < 2; drafting++) {
        double a[MAX_ROUNDS], b[MAX_ROUNDS], ratio[MAX_ROUNDS];
        for (int i = 0; i < rounds; i++) {
            a[i] = bare(drafting);
            b[i] = streams(e, 1, drafting, NULL);
            ratio[i] = b[i] / a[i];
        }
        printf("  %-14s %11.1f %13.1f %14.3f\n", drafting ? "adaptive" : "plain", median(a, rounds),
               median(b, rounds), median(ratio, rounds));
    }
}

static void compare_streams(struct mx_engine *e)
{
    static const int counts[] = {1, 2, 4, 8, 16};
    enum { COUNTS = sizeof counts / sizeof *counts };
    static double tps[2][COUNTS][MAX_ROUNDS], ratio[2][COUNTS][MAX_ROUNDS], us[2][COUNTS][4];
    for (int i = 0; i < rounds; i++)
        for (int d = 0; d < 2; d++)
            for (int c = 0; c < COUNTS; c++) {
                tps[d][c][i] = streams(e, counts[c], d, us[d][c]);
                ratio[d][c][i] = tps[d][c][i] / tps[d][0][i];
            }
    printf("\nstreams   plain tok/s  x one   adaptive tok/s  x one\n");
    for (int c = 0; c < COUNTS; c++)
        printf("  %5d %13.1f %6.2f %16.1f %6.2f\n", counts[c], median(tps[0][c], rounds),
               median(ratio[0][c], rounds), median(tps[1][c], rounds), median(ratio[1][c], rounds));
    printf("\nmicroseconds of a cycle, last round\nstreams  drafting     draft    verify    sample"
           "    commit\n");
    for (int d = 0; d < 2; d++)
        for (int c = 0; c < COUNTS; c++)
            printf("  %5d  %-8s %9.0f %9.0f %9.0f %9.0f\n", counts[c], d ? "adaptive" : "plain",
                   us[d][c][0], us[d][c][1], us[d][c][2], us[d][c][3]);
}

static int number(int argc, char **argv, int i, int otherwise)
{
    return argc > i ? (int)strtol(argv[i], NULL, 10) : otherwise;
}

int main(int argc, char **argv)
{
    mtplx_error err = {0};
    mtplx_load_options load = {.threads = number(argc, argv, 5, 0)};
    depth = number(argc, argv, 2, depth);
    tokens = number(argc, argv, 3, tokens);
    rounds = number(argc, argv, 4, rounds);
    if (rounds < 1 || rounds > MAX_ROUNDS || tokens < 8) {
        fprintf(stderr, "bench_engine: 1..%d rounds of at least 8 tokens\n", MAX_ROUNDS);
        return 2;
    }
    model = mtplx_model_load(argc > 1 ? argv[1] : "models/nano", &load, &err);
    if (!model)
        die("load", &err);
    make_prompts();
    struct mx_engine *e = mx_engine_new(&(struct mx_engine_options){.model = model,
                                                                    .mode = MX_ENGINE_MTP_BATCH,
                                                                    .max_active = STREAMS},
                                        &err);
    if (!e)
        die("engine", &err);
    streams(e, 1, true, NULL); /* warm */
    compare_one(e);
    compare_streams(e);
    mx_engine_free(e);
    mtplx_model_free(model);
    return 0;
}
