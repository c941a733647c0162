/* Adaptive depth against fixed depths: tokens per second, ratio to plain decoding and to the best
 * fixed depth, and the depths that were chosen.
 *
 * All settings decode the same answer side by side, STRIDE tokens at a time, so that whatever else
 * the machine does hits all alike; of each stretch the median time over rounds counts. The first
 * round, in which auto may know nothing yet, is reported apart.
 *
 *   bench_depth [MODEL [ROUNDS [TOKENS [FILE ...]]]]     (default: models/nano, 5, 128)
 *
 * Without files: chat prompts for code, prose and a list. With files: each is a prompt that is
 * continued as plain text from its first 256 tokens. Set MTPLX_STATE_DIR=off to start unlearned. */
#include "base/clock.h"
#include "base/file.h"
#include "mtplx.h"
#include "tools/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_ROUNDS = 64,
    STRIDE = 16,
    MOST_STRIDES = 64,
    FILE_TOKENS = 256,
    DEPTHS = MTPLX_MAX_DEPTH + 1,
};

static const char *const prompts[] = {
    "Write a Python function that adds two numbers",
    "Write a Python class for a queue with push and pop",
    "Tell me a short story about a fox",
    "Explain the core idea of native-MTP in 2 sentences",
    "Count from 1 to 50",
};

struct config {
    const char *name;
    int depth;
    mtplx_depth_policy policy;
    bool copy;
};

static const struct config configs[] = {
    {"plain", 0, MTPLX_DEPTH_FIXED, false},     {"1", 1, MTPLX_DEPTH_FIXED, false},
    {"2", 2, MTPLX_DEPTH_FIXED, false},         {"3", 3, MTPLX_DEPTH_FIXED, false},
    {"4", 4, MTPLX_DEPTH_FIXED, false},         {"6", 6, MTPLX_DEPTH_FIXED, false},
    {"8", 8, MTPLX_DEPTH_FIXED, false},         {"auto", 8, MTPLX_DEPTH_AUTO, false},
    {"auto + copy", 8, MTPLX_DEPTH_AUTO, true}, {"copy alone", 0, MTPLX_DEPTH_AUTO, true},
};
enum { CONFIGS = sizeof configs / sizeof *configs, FIXED = 7 };

static void die(const char *what, const mtplx_error *err)
{
    fprintf(stderr, "bench_depth: %s: %s\n", what, err->message);
    exit(1);
}

static double median(const double *v, int n)
{
    double sorted[MOST_ROUNDS];
    memcpy(sorted, v, (size_t)n * sizeof *v);
    return mx_bench_spread(sorted, n).median;
}

static int32_t *chat_prompt(mtplx_model *m, const char *prompt, size_t *n)
{
    char messages[512];
    size_t len;
    mtplx_error err = {0};
    snprintf(messages, sizeof messages, "[{\"role\":\"user\",\"content\":\"%s\"}]", prompt);
    char *text = mtplx_chat_render(m, messages, NULL, NULL, true, &len, &err);
    int32_t *ids = text ? mtplx_encode(m, text, len, false, n, &err) : NULL;
    if (!ids)
        die("prompt", &err);
    mtplx_free(text);
    return ids;
}

static int32_t *file_prompt(mtplx_model *m, const char *path, size_t *n)
{
    size_t len;
    mtplx_error err = {0};
    char *text = mx_file_read(path, 16 << 20, &len, &err);
    int32_t *ids = text ? mtplx_encode(m, text, len, true, n, &err) : NULL;
    if (!ids)
        die("file", &err);
    free(text);
    *n = *n < FILE_TOKENS ? *n : FILE_TOKENS;
    return ids;
}

struct lane {
    mtplx_seq *seq;
    mtplx_gen *gen;
};

static struct lane open_lane(mtplx_model *m, const int32_t *ids, size_t n, const struct config *c,
                             int tokens)
{
    mtplx_error err = {0};
    struct lane l = {.seq = mtplx_seq_new(m, &err)};
    mtplx_gen_options o = {.depth = c->depth,
                           .policy = c->policy,
                           .context_copy = c->copy,
                           .max_tokens = tokens + 1,
                           .ignore_stop = true};
    l.gen = l.seq ? mtplx_gen_new(l.seq, ids, n, &o, &err) : NULL;
    if (!l.gen)
        die("generation", &err);
    return l;
}

/* Steps until `tokens` are there; returns the nanoseconds for each token that came. */
static double advance(struct lane *l, size_t tokens)
{
    mtplx_error err = {0};
    size_t before, now;
    uint64_t t0 = mx_now_ns();
    mtplx_gen_tokens(l->gen, &before);
    for (now = before; now < tokens && mtplx_gen_finish(l->gen) == MTPLX_FINISH_NONE;) {
        if (mtplx_gen_step(l->gen, &err) != MTPLX_OK)
            die("step", &err);
        mtplx_gen_tokens(l->gen, &now);
    }
    return now > before ? (double)(mx_now_ns() - t0) / (double)(now - before) : 0;
}

/* Nanoseconds per token by setting, stretch and round. */
static double times[16][MOST_STRIDES][MOST_ROUNDS];

static void run_round(mtplx_model *m, const int32_t *ids, size_t n, int count, int strides,
                      int round, mtplx_gen_stats *last)
{
    struct lane lanes[16];
    for (int c = 0; c < count; c++) {
        lanes[c] = open_lane(m, ids, n, &configs[c], strides * STRIDE);
        advance(&lanes[c], 1);
    }
    for (int k = 0; k < strides; k++)
        for (int c = 0; c < count; c++)
            times[c][k][round] = advance(&lanes[c], 1 + (size_t)(k + 1) * STRIDE);
    for (int c = 0; c < count; c++) {
        last[c] = *mtplx_gen_get_stats(lanes[c].gen);
        mtplx_gen_free(lanes[c].gen);
        mtplx_seq_free(lanes[c].seq);
    }
}

/* Seconds per token: the mean over stretches of the median over rounds first .. first + n - 1. */
static double seconds(int c, int strides, int first, int n)
{
    double sum = 0;
    for (int k = 0; k < strides; k++)
        sum += median(times[c][k] + first, n);
    return sum / strides * 1e-9;
}

static void print_config(const struct config *c, double time, double first, double plain,
                         double best, const mtplx_gen_stats *s)
{
    printf("  %-12s %6.0f %8.3f %8.3f %8.3f %8.2f ", c->name, 1 / time, plain / time, best / time,
           first, (double)(s->generated_tokens - 1) / (double)s->cycles);
    for (int d = 0; d < DEPTHS && c->policy != MTPLX_DEPTH_FIXED; d++)
        printf(" %llu", (unsigned long long)s->depths[d]);
    if (s->copy_tested > 0)
        printf("  copied %llu of %llu", (unsigned long long)s->copy_accepted,
               (unsigned long long)s->copy_tested);
    printf("\n");
}

static void bench_prompt(mtplx_model *m, const char *name, const int32_t *ids, size_t n, int rounds,
                         int strides)
{
    mtplx_gen_stats last[CONFIGS];
    double time[CONFIGS], best = 1e9;
    int count = mtplx_model_get_info(m)->has_mtp ? CONFIGS : 1;
    for (int r = 0; r <= rounds; r++)
        run_round(m, ids, n, count, strides, r, last);
    for (int c = 0; c < count; c++) {
        time[c] = seconds(c, strides, 1, rounds);
        best = c < FIXED && time[c] < best ? time[c] : best;
    }
    printf("\n%.60s\n  depth         tok/s  x plain   x best  1st rnd  tok/pass  cycles by depth\n",
           name);
    for (int c = 0; c < count; c++)
        print_config(&configs[c], time[c], seconds(0, strides, 0, 1) / seconds(c, strides, 0, 1),
                     time[0], best, &last[c]);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    mtplx_error err = {0};
    char *shipped = argc > 1 ? NULL : mtplx_embedded_model_path(&err);
    const char *path = argc > 1 ? argv[1] : shipped;
    long rounds = argc > 2 ? strtol(argv[2], NULL, 10) : 5;
    long tokens = argc > 3 ? strtol(argv[3], NULL, 10) : 128;
    mtplx_model *m = path ? mtplx_model_load(path, NULL, &err) : NULL;
    if (!m)
        die("load", &err);
    long strides = tokens / STRIDE;
    if (rounds < 1 || rounds >= MOST_ROUNDS || strides < 1 || strides > MOST_STRIDES) {
        fprintf(stderr, "bench_depth: rounds are 1 to %d, tokens %d to %d\n", MOST_ROUNDS - 1,
                STRIDE, STRIDE * MOST_STRIDES);
        return 2;
    }
    const mtplx_model_info *info = mtplx_model_get_info(m);
    printf("%s (%s) on %s, %d threads\n", info->path, info->quantization, info->device,
           info->threads);
    for (int i = 0; argc > 4 ? i + 4 < argc : i < (int)(sizeof prompts / sizeof *prompts); i++) {
        size_t n;
        const char *name = argc > 4 ? argv[i + 4] : prompts[i];
        int32_t *ids = argc > 4 ? file_prompt(m, name, &n) : chat_prompt(m, name, &n);
        bench_prompt(m, name, ids, n, (int)rounds, (int)strides);
        mtplx_free(ids);
    }
    mtplx_model_free(m);
    mtplx_free(shipped);
    return 0;
}
