/* Time of a lookup in a session bank of many sessions.
 *
 * usage: bench_bank [SESSIONS] [TOKENS]
 * Fills a bank with SESSIONS (1,000) conversations of TOKENS (4,000) tokens, six restore points
 * each. A third of them has nothing in common but the scope, a third a system prompt of 512 tokens,
 * a third all but the last 100 tokens. Then looks up prompts that are an earlier one again, go on
 * from one, differ in the middle, or are new. Snapshots are real ones in all but contents: a KV
 * block has 256 bytes. Prints the median, the 99th percentile and the maximum, in microseconds. */
#include "base/clock.h"
#include "session/bank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POINTS 6
#define ROUNDS 20000
#define SYSTEM 512

struct bench {
    mtplx_model model;
    struct mx_kv_pool *kv;
    struct mx_bank *bank;
    int32_t *prompt; /* [tokens + 64] */
    size_t sessions, tokens;
};

static uint32_t mix(uint64_t x)
{
    x = (x ^ x >> 31) * UINT64_C(0x7fb5d329728ea185);
    x = (x ^ x >> 27) * UINT64_C(0x81dadef4bc2dd44d);
    return (uint32_t)(x >> 33);
}

/* The prompt of session i. */
static void make_prompt(struct bench *b, size_t i)
{
    size_t shared = i % 3 == 0 ? 0 : i % 3 == 1 ? SYSTEM : b->tokens - 100;
    for (size_t t = 0; t < b->tokens + 64; t++)
        b->prompt[t] = (int32_t)(mix(t < shared ? t : (i + 1) << 32 | t) % 150000);
}

static mtplx_snapshot *snapshot(struct bench *b, size_t n, const mtplx_snapshot *longer)
{
    mtplx_snapshot *s = calloc(1, sizeof *s);
    size_t blocks = (n + MX_KV_BLOCK - 1) / MX_KV_BLOCK;
    if (!s || !(s->tokens = malloc((n + 1) * sizeof *s->tokens)) ||
        !(s->kv = (struct mx_kv_block **)calloc(blocks + 1, sizeof *s->kv)))
        exit(1);
    atomic_init(&s->refs, 1);
    s->model = &b->model;
    memcpy(s->tokens, b->prompt, n * sizeof *s->tokens);
    s->n = n;
    s->next_pos = (int32_t)n;
    s->n_kv = blocks;
    for (size_t i = 0; i < blocks; i++)
        s->kv[i] = longer ? mx_kv_block_ref(longer->kv[i]) : mx_kv_block_new(b->kv);
    return s;
}

static void fill(struct bench *b)
{
    static const enum mx_point is[POINTS] = {MX_POINT_PROMPT, MX_POINT_BORDER, MX_POINT_CHUNK,
                                             MX_POINT_CHUNK,  MX_POINT_CHUNK,  MX_POINT_SYSTEM};
    for (size_t i = 0; i < b->sessions; i++) {
        const size_t at[POINTS] = {b->tokens - 1,     b->tokens - 150, b->tokens * 7 / 8,
                                   b->tokens * 3 / 4, b->tokens / 2,   b->tokens / 8};
        char label[32];
        snprintf(label, sizeof label, "session %zu", i);
        make_prompt(b, i);
        mtplx_snapshot *all = snapshot(b, at[0], NULL);
        for (int p = POINTS - 1; p > 0; p--)
            mx_bank_put(b->bank, snapshot(b, at[p], all), is[p], "", label);
        mx_bank_put(b->bank, all, is[0], "", label);
    }
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Prepares lookup `round` of a kind; how many tokens it has. */
static size_t make_lookup(struct bench *b, int kind, size_t round)
{
    size_t n = b->tokens;
    make_prompt(b, kind == 3 ? b->sessions + round : mix(round) % b->sessions);
    if (kind == 1)
        n += 64;
    if (kind == 2)
        b->prompt[n / 2 + mix(round) % (n / 4)] = 7;
    return n;
}

static void measure(struct bench *b, int kind, const char *name)
{
    static uint64_t ns[ROUNDS];
    size_t rounds = ROUNDS / 4;
    uint64_t restored = 0;
    for (size_t i = 0; i < rounds; i++) {
        struct mx_bank_hit hit;
        size_t n = make_lookup(b, kind, i);
        uint64_t t0 = mx_now_ns();
        mx_bank_find(b->bank, "", "", b->prompt, n, &hit);
        ns[i] = mx_now_ns() - t0;
        restored += hit.snapshot ? hit.snapshot->n : 0;
        mx_snapshot_unref(hit.snapshot);
    }
    qsort(ns, rounds, sizeof *ns, by_value);
    uint64_t median = ns[rounds / 2], most = ns[rounds - 1], late = ns[rounds / 100 * 99];
    printf("%-24s %8.1f %8.1f %8.1f   %8.0f\n", name, (double)median * 1e-3, (double)late * 1e-3,
           (double)most * 1e-3, (double)restored / (double)rounds);
}

int main(int argc, char **argv)
{
    mtplx_error err = {0};
    struct bench b = {.sessions = argc > 1 ? strtoul(argv[1], NULL, 10) : 1000,
                      .tokens = argc > 2 ? strtoul(argv[2], NULL, 10) : 4000};
    struct mx_bank_options o = {
        .model = &b.model, .budget = UINT64_MAX, .max_points = 32, .spacing = 256};
    if (b.sessions == 0 || b.sessions > 1000000 || b.tokens < 1000 || b.tokens > 1000000) {
        fprintf(stderr, "usage: bench_bank [SESSIONS] [TOKENS, at least 1000]\n");
        return 1;
    }
    b.model.geometry.kv = (struct mx_kv_layout){
        .format = MX_KV_F32, .block_tokens = 1, .layers = 1, .kv_heads = 1, .head_dim = 32};
    b.model.geometry.gdn = (struct mx_gdn_layout){
        .layers = 1, .key_heads = 1, .value_heads = 1, .dk = 4, .dv = 4, .kernel = 4};
    b.model.device = mx_device_open("ref", 1, &err);
    b.kv = b.model.device ? mx_kv_pool_new(b.model.device, &b.model.geometry.kv) : NULL;
    b.bank = b.kv ? mx_bank_new(&o, &err) : NULL;
    b.prompt = malloc((b.tokens + 64) * sizeof *b.prompt);
    if (!b.bank || !b.prompt) {
        fprintf(stderr, "bench_bank: %s\n", err.message);
        free(b.prompt);
        return 1;
    }
    uint64_t t0 = mx_now_ns();
    fill(&b);
    struct mx_bank_stats st;
    mx_bank_get_stats(b.bank, &st);
    printf("%zu sessions of %zu tokens: %llu restore points, %llu blocks, %.1f us a put\n",
           b.sessions, b.tokens, (unsigned long long)st.entries, (unsigned long long)st.blocks,
           (double)(mx_now_ns() - t0) * 1e-3 / (double)st.puts);
    printf("%-24s %8s %8s %8s   %8s\n", "lookup, us", "median", "99 %", "max", "restored");
    measure(&b, 0, "the same prompt");
    measure(&b, 1, "one that goes on");
    measure(&b, 2, "an edit in the middle");
    measure(&b, 3, "a new one");
    mx_bank_free(b.bank);
    mx_kv_pool_free(b.kv);
    mx_device_close(b.model.device);
    free(b.prompt);
    return 0;
}
