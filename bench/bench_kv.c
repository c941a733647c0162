/* What quantised KV caches cost in accuracy and time, against the device's own type.
 *
 *   bench_kv [--context N] [--rounds N] [--threads N] [--text FILE] [MODEL]
 *
 * Accuracy, over all predictions of the text (default: tests/golden/ppl.txt) in one sequence: mean
 * NLL per token, its difference to the plain cache, perplexity, mean KL divergence from the plain
 * cache's distributions, and the share of tokens that both find likeliest. Then the number of
 * tokens, of several greedy answers, before the first that differs. Speed: one-row passes and
 * passes of 16 rows behind `context` tokens, all formats taking turns; medians of ratios within
 * rounds. Without --context there is no speed, and without a tokenizer no accuracy. */
#include "median.h"

#include "base/clock.h"
#include "base/file.h"
#include "mtplx.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FORMATS = 4, ANSWER = 96, MAX_ROUNDS = 101, WIDE = 16, CHUNK = 128 };

static const mtplx_kv_quant quants[FORMATS] = {MTPLX_KV_OFF, MTPLX_KV_Q8, MTPLX_KV_Q6, MTPLX_KV_Q4};

static const char *const prompts[] = {
    "Write a Python function that adds two numbers",
    "Explain the core idea of native-MTP in 2 sentences",
    "Tell me a short story about a fox",
    "What is the capital of France, and why?",
    "List five uses of a paper clip",
    "Write a letter to a friend about the weather",
    "How do I boil an egg?",
    "Describe a river bank in spring",
};
enum { PROMPTS = sizeof prompts / sizeof *prompts };

struct setup {
    const char *model, *text;
    int context, rounds, threads;
};

static void die(const char *what, const mtplx_error *err)
{
    fprintf(stderr, "bench_kv: %s: %s\n", what, err->message);
    exit(1);
}

/* ---- Accuracy ----------------------------------------------------------------------------- */

/* Log-probabilities, in place; returns the likeliest. */
static int normalise(float *row, int vocab)
{
    double sum = 0;
    int best = 0;
    for (int i = 1; i < vocab; i++)
        best = row[i] > row[best] ? i : best;
    for (int i = 0; i < vocab; i++)
        sum += exp((double)row[i] - (double)row[best]);
    float z = row[best] + (float)log(sum);
    for (int i = 0; i < vocab; i++)
        row[i] -= z;
    return best;
}

struct tally {
    double nll, divergence;
    size_t n, same;
};

/* Adds what a chunk of rows says about the tokens after it; `plain` are the plain cache's. */
static void add_rows(struct tally *t, const float *plain, const float *rows, int vocab,
                     const int32_t *next, size_t n)
{
    float *q = malloc((size_t)vocab * sizeof *q), *p = malloc((size_t)vocab * sizeof *p);
    for (size_t r = 0; r < n && p && q; r++) {
        memcpy(p, plain + r * (size_t)vocab, (size_t)vocab * sizeof *p);
        memcpy(q, rows + r * (size_t)vocab, (size_t)vocab * sizeof *q);
        int best = normalise(p, vocab);
        t->same += best == normalise(q, vocab);
        t->nll -= (double)q[next[r]];
        for (int i = 0; i < vocab; i++)
            t->divergence += exp((double)p[i]) * ((double)p[i] - (double)q[i]);
        t->n++;
    }
    free(p);
    free(q);
}

static const float *read_rows(mtplx_model *m, mtplx_seq *s, const int32_t *ids, size_t n)
{
    mtplx_row rows[CHUNK];
    mtplx_forward_result res;
    mtplx_error err = {0};
    for (size_t i = 0; i < n; i++)
        rows[i] = (mtplx_row){s, ids[i], true, NULL};
    if (mtplx_forward(m, rows, n, MTPLX_COMMIT, false, &res, &err) != MTPLX_OK)
        die("forward", &err);
    return res.logits;
}

static void score_text(mtplx_model *const *models, const char *path, struct tally *tallies)
{
    size_t len, n;
    mtplx_error err = {0};
    mtplx_seq *seqs[FORMATS];
    char *text = mx_file_read(path, 1 << 20, &len, &err);
    int32_t *ids = text ? mtplx_encode(models[0], text, len, false, &n, &err) : NULL;
    if (!ids)
        die(path, &err);
    const mtplx_model_info *info = mtplx_model_get_info(models[0]);
    n = n < (size_t)info->context_length ? n : (size_t)info->context_length;
    for (int f = 0; f < FORMATS; f++)
        if (!(seqs[f] = mtplx_seq_new(models[f], &err)))
            die("sequence", &err);
    for (size_t at = 0, k; at + 1 < n; at += k) {
        k = n - 1 - at < CHUNK ? n - 1 - at : CHUNK;
        const float *plain = read_rows(models[0], seqs[0], ids + at, k);
        for (int f = 0; f < FORMATS; f++) {
            const float *rows = f ? read_rows(models[f], seqs[f], ids + at, k) : plain;
            add_rows(&tallies[f], plain, rows, info->vocab_size, ids + at + 1, k);
        }
    }
    for (int f = 0; f < FORMATS; f++)
        mtplx_seq_free(seqs[f]);
    mtplx_free(ids);
    free(text);
}

static size_t answer(mtplx_model *m, const char *prompt, int32_t *out)
{
    char messages[512];
    size_t len, n, got;
    mtplx_error err = {0};
    mtplx_gen_options o = {.depth = 0, .max_tokens = ANSWER, .ignore_stop = true};
    snprintf(messages, sizeof messages, "[{\"role\":\"user\",\"content\":\"%s\"}]", prompt);
    char *text = mtplx_chat_render(m, messages, NULL, NULL, true, &len, &err);
    int32_t *ids = text ? mtplx_encode(m, text, len, false, &n, &err) : NULL;
    mtplx_seq *s = ids ? mtplx_seq_new(m, &err) : NULL;
    mtplx_gen *g = s ? mtplx_gen_new(s, ids, n, &o, &err) : NULL;
    if (!g)
        die("generation", &err);
    while (mtplx_gen_finish(g) == MTPLX_FINISH_NONE)
        if (mtplx_gen_step(g, &err) != MTPLX_OK)
            die("step", &err);
    const int32_t *tokens = mtplx_gen_tokens(g, &got);
    got = got < ANSWER ? got : ANSWER;
    memcpy(out, tokens, got * sizeof *out);
    mtplx_gen_free(g);
    mtplx_seq_free(s);
    mtplx_free(ids);
    mtplx_free(text);
    return got;
}

/* Tokens in common with the plain answers before the first difference, summed. */
static void compare_answers(mtplx_model *const *models, size_t *agreed, size_t *whole)
{
    for (int p = 0; p < PROMPTS; p++) {
        int32_t plain[ANSWER], other[ANSWER];
        size_t n = answer(models[0], prompts[p], plain);
        for (int f = 0; f < FORMATS; f++) {
            size_t got = answer(models[f], prompts[p], other), same = 0;
            while (same < n && same < got && plain[same] == other[same])
                same++;
            agreed[f] += same;
            whole[f] += same == n;
        }
    }
}

static void report_accuracy(mtplx_model *const *models, const char *text)
{
    struct tally t[FORMATS] = {0};
    size_t agreed[FORMATS] = {0}, whole[FORMATS] = {0};
    score_text(models, text, t);
    if (mtplx_model_get_info(models[0])->has_chat_template)
        compare_answers(models, agreed, whole);
    printf("%s, %zu tokens; %d greedy answers of %d\n", text, t[0].n, PROMPTS, ANSWER);
    printf("  cache  B/token       NLL  difference  perplexity  KL divergence  same top  "
           "answer tokens  whole\n");
    for (int f = 0; f < FORMATS; f++) {
        double n = (double)t[f].n, nll = t[f].nll / n;
        const mtplx_model_info *info = mtplx_model_get_info(models[f]);
        printf("  %5s %8llu %9.6f %+11.6f %11.6f %14.3e %8.2f%% %14.1f %6zu\n", info->kv_format,
               (unsigned long long)info->kv_token_bytes, nll, nll - t[0].nll / n, exp(nll),
               t[f].divergence / n, 100 * (double)t[f].same / n,
               (double)agreed[f] / (double)PROMPTS, whole[f]);
    }
}

/* ---- Speed -------------------------------------------------------------------------------- */

static void read_ids(mtplx_model *m, mtplx_seq *s, int n, int first)
{
    mtplx_row rows[256];
    mtplx_error err = {0};
    int vocab = mtplx_model_get_info(m)->vocab_size;
    for (int i = 0; i < n; i++)
        rows[i] = (mtplx_row){s, (first + i) % vocab, false, NULL};
    if (mtplx_forward(m, rows, (size_t)n, MTPLX_COMMIT, false, NULL, &err) != MTPLX_OK)
        die("forward", &err);
}

static double timed(mtplx_model *m, mtplx_seq *s, int n, int first)
{
    uint64_t t0 = mx_now_ns();
    read_ids(m, s, n, first);
    return (double)(mx_now_ns() - t0);
}

static void report_ratios(mtplx_model *const *models, const char *what, int tokens,
                          double (*ns)[MAX_ROUNDS], int rounds)
{
    printf("%s: ms, tok/s, speed over the plain cache\n", what);
    for (int f = FORMATS - 1; f >= 0; f--) {
        double ratio[MAX_ROUNDS];
        for (int r = 0; r < rounds; r++)
            ratio[r] = ns[0][r] / ns[f][r];
        double mid = median(ratio, rounds);
        double time = f ? median(ns[f], rounds) : median(ns[0], rounds);
        printf("  %5s %9.3f %9.1f %6.2f (%.2f-%.2f)\n", mtplx_model_get_info(models[f])->kv_format,
               time / 1e6, tokens * 1e9 / time, mid, ratio[rounds / 4], ratio[rounds * 3 / 4]);
    }
}

static void report_speed(mtplx_model *const *models, int context, int rounds)
{
    static double one[FORMATS][MAX_ROUNDS], wide[FORMATS][MAX_ROUNDS];
    mtplx_seq *seqs[FORMATS];
    mtplx_error err = {0};
    for (int f = 0; f < FORMATS; f++) {
        if (!(seqs[f] = mtplx_seq_new(models[f], &err)))
            die("sequence", &err);
        for (int at = 0; at < context; at += 256)
            read_ids(models[f], seqs[f], context - at < 256 ? context - at : 256, at);
    }
    for (int r = 0; r < rounds; r++) {
        for (int f = 0; f < FORMATS; f++)
            one[f][r] = timed(models[f], seqs[f], 1, r);
        for (int f = 0; f < FORMATS && r < 25; f++)
            wide[f][r] = timed(models[f], seqs[f], WIDE, r);
    }
    printf("behind %d tokens\n", context);
    report_ratios(models, "passes of 1 row", 1, one, rounds);
    report_ratios(models, "passes of 16 rows", WIDE, wide, rounds < 25 ? rounds : 25);
    for (int f = 0; f < FORMATS; f++)
        mtplx_seq_free(seqs[f]);
}

/* ---- Command line ------------------------------------------------------------------------- */

static struct setup parse(int argc, char **argv)
{
    struct setup s = {"models/nano", "tests/golden/ppl.txt", 0, 41, 0};
    for (int i = 1; i < argc; i++) {
        const char *v = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--context") == 0)
            s.context = (int)strtol(v, NULL, 10), i++;
        else if (strcmp(argv[i], "--rounds") == 0)
            s.rounds = (int)strtol(v, NULL, 10), i++;
        else if (strcmp(argv[i], "--threads") == 0)
            s.threads = (int)strtol(v, NULL, 10), i++;
        else if (strcmp(argv[i], "--text") == 0)
            s.text = v, i++;
        else
            s.model = argv[i];
    }
    s.rounds = s.rounds < 1 ? 1 : s.rounds > MAX_ROUNDS ? MAX_ROUNDS : s.rounds;
    return s;
}

int main(int argc, char **argv)
{
    struct setup s = parse(argc, argv);
    mtplx_model *models[FORMATS];
    mtplx_error err = {0};
    setenv("MTPLX_STATE_DIR", "off", 0);
    for (int f = 0; f < FORMATS; f++) {
        mtplx_load_options o = {.threads = s.threads, .kv_quant = quants[f]};
        if (!(models[f] = mtplx_model_load(s.model, &o, &err)))
            die("model", &err);
    }
    const mtplx_model_info *info = mtplx_model_get_info(models[0]);
    printf("%s, %s, %s profile, %d threads, %s\n", info->path, info->device, info->profile,
           info->threads, info->quantization);
    if (info->has_tokenizer)
        report_accuracy(models, s.text);
    if (s.context > 0)
        report_speed(models, s.context, s.rounds);
    for (int f = 0; f < FORMATS; f++)
        mtplx_model_free(models[f]);
    return 0;
}
