/* Plain decoding against MTP at every depth, interleaved in one run so that machine noise hits all
 * alike: tokens per second, ratio to plain (median over rounds of the same prompt), tokens per
 * verify pass, and the cost c(n) of an n-row pass in units of one row.
 *
 *   bench_generate [MODEL [DEVICE [THREADS]]]      (default: models/nano, auto)
 */
#include "median.h"

#include "base/clock.h"
#include "mtplx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 5
#define TOKENS 96

static const char *const prompts[] = {
    "Write a Python function that adds two numbers",
    "Explain the core idea of native-MTP in 2 sentences",
    "Tell me a short story about a fox",
};
#define PROMPTS (sizeof prompts / sizeof *prompts)

static void die(const char *what, const mtplx_error *err)
{
    fprintf(stderr, "bench_generate: %s: %s\n", what, err->message);
    exit(1);
}

static int32_t *encode_prompt(mtplx_model *m, const char *prompt, size_t *n)
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

/* Decode tokens per second and tokens per verify of one answer. */
static double decode(mtplx_model *m, const int32_t *ids, size_t n, int depth, double *per_verify)
{
    mtplx_error err = {0};
    mtplx_gen_options o = {.depth = depth, .max_tokens = TOKENS, .ignore_stop = true};
    mtplx_seq *s = mtplx_seq_new(m, &err);
    mtplx_gen *g = s ? mtplx_gen_new(s, ids, n, &o, &err) : NULL;
    if (!g)
        die("generation", &err);
    while (mtplx_gen_finish(g) == MTPLX_FINISH_NONE)
        if (mtplx_gen_step(g, &err) != MTPLX_OK)
            die("step", &err);
    const mtplx_gen_stats *st = mtplx_gen_get_stats(g);
    double tps = (double)(st->generated_tokens - 1) * 1e9 / (double)st->decode_ns;
    *per_verify = (double)(st->generated_tokens - 1) / (double)st->cycles;
    mtplx_gen_free(g);
    mtplx_seq_free(s);
    return tps;
}

static void bench_prompt(mtplx_model *m, const char *prompt, int max_depth)
{
    double tps[MTPLX_MAX_DEPTH + 1][ROUNDS], ratio[MTPLX_MAX_DEPTH + 1][ROUNDS];
    double per_verify[MTPLX_MAX_DEPTH + 1];
    size_t n;
    int32_t *ids = encode_prompt(m, prompt, &n);
    for (int r = 0; r < ROUNDS; r++)
        for (int d = 0; d <= max_depth; d++) {
            tps[d][r] = decode(m, ids, n, d, &per_verify[d]);
            ratio[d][r] = tps[d][r] / tps[0][r];
        }
    printf("\n%s\n  depth  tok/s  x plain  tokens/verify\n", prompt);
    for (int d = 0; d <= max_depth; d++)
        printf("  %5d %6.0f %8.2f %14.2f\n", d, median(tps[d], ROUNDS), median(ratio[d], ROUNDS),
               per_verify[d]);
    mtplx_free(ids);
}

/* c(n): forward of n rows against 1 row, interleaved, at a context of 256. */
static void bench_rows(mtplx_model *m)
{
    enum { MAX = MTPLX_MAX_DEPTH + 1, REPEAT = 25 };
    static double ns[MAX + 1][REPEAT];
    mtplx_error err = {0};
    mtplx_row rows[256];
    mtplx_seq *s = mtplx_seq_new(m, &err);
    for (int i = 0; i < 256; i++)
        rows[i] = (mtplx_row){s, 300 + i, false, NULL};
    if (!s || mtplx_forward(m, rows, 256, MTPLX_COMMIT, false, NULL, &err) != MTPLX_OK)
        die("rows", &err);
    for (int i = 0; i < MAX; i++)
        rows[i].want_logits = true;
    for (int r = 0; r < REPEAT; r++)
        for (int n = 1; n <= MAX; n++) {
            mtplx_forward_result res;
            uint64_t t0 = mx_now_ns();
            if (mtplx_forward(m, rows, (size_t)n, MTPLX_VERIFY, false, &res, &err) != MTPLX_OK)
                die("rows", &err);
            ns[n][r] = (double)(mx_now_ns() - t0);
            mtplx_seq_commit(s, 0, &err);
        }
    double one = median(ns[1], REPEAT);
    double bytes = (double)mtplx_model_get_info(m)->weight_bytes;
    printf("\nc(n), n-row verify pass over one row (%.2f ms, %.1f GB/s of weights):", one / 1e6,
           bytes / one);
    for (int n = 2; n <= MAX; n++)
        printf(" c(%d)=%.2f", n, median(ns[n], REPEAT) / one);
    printf("\n");
    mtplx_seq_free(s);
}

int main(int argc, char **argv)
{
    mtplx_error err = {0};
    mtplx_load_options o = {.device = argc > 2 ? argv[2] : NULL,
                            .threads = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 0};
    char *shipped = argc > 1 ? NULL : mtplx_embedded_model_path(&err);
    const char *path = argc > 1 ? argv[1] : shipped;
    mtplx_model *m = path ? mtplx_model_load(path, &o, &err) : NULL;
    if (!m)
        die("load", &err);
    const mtplx_model_info *info = mtplx_model_get_info(m);
    printf("%s (%s) on %s, %d threads\n", info->path, info->quantization, info->device,
           info->threads);
    bench_rows(m);
    for (size_t i = 0; i < PROMPTS; i++)
        bench_prompt(m, prompts[i], info->has_mtp ? MTPLX_MAX_DEPTH : 0);
    mtplx_model_free(m);
    mtplx_free(shipped);
    return 0;
}
