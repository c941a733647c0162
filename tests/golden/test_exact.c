/* Exactness of the speculative loop: greedy text with MTP at depths 1 to 8 equals greedy text
 * without MTP, token for token, over prompts of all kinds and lengths; a batch answers as its
 * members would alone; seeded sampling does not depend on batching.
 *
 * A quick selection of short prompts runs by default. MTPLX_EXACT_PROMPTS=200 runs the whole set,
 * up to 4,000 tokens; MTPLX_EXACT_DEVICE=ref|cpu restricts the device, MTPLX_EXACT_THREADS sets the
 * threads (default 1). */
#include "golden.h"

#include "base/file.h"

#define NEW_TOKENS 40
#define WHOLE_SET 200
#define MAX_PROMPT 4000

enum kind { CHAT, PROSE, CODE, NOISE, LOOP, KINDS };

static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Tokens of a text file from a random offset, repeated when it is too short. */
static void from_text(mtplx_model *m, const char *file, size_t want, uint32_t *seed, int32_t *out)
{
    size_t len, n, at;
    mtplx_error err = {0};
    char *text = mx_file_read(src_path(file), 1 << 22, &len, &err);
    if (!text)
        fail_msg("%s", err.message);
    int32_t *ids = mtplx_encode(m, text, len, false, &n, &err);
    assert_non_null(ids);
    at = next(seed) % n;
    for (size_t i = 0; i < want; i++)
        out[i] = ids[(at + i) % n];
    mtplx_free(ids);
    free(text);
}

static size_t chat_prompt(mtplx_model *m, int index, int32_t *out)
{
    static const char *const asks[] = {
        "Sort these numbers: 8, 3, 9, 1",
        "Write a Python function that adds two numbers",
        "What is the capital of France?",
        "Tell me a short story about a fox",
        "Count from 1 to 20",
        "Give me a JSON object with a name and an age",
        "Explain the core idea of native-MTP in 2 sentences",
        "Wie geht es dir? \xc3\xa4\xc3\xb6",
        "Define the word anchor",
        "Convert to CSV: name Ann age 3; name Bob age 4",
    };
    char messages[512];
    size_t len, n;
    mtplx_error err = {0};
    snprintf(messages, sizeof messages, "[{\"role\":\"user\",\"content\":\"%s (%d)\"}]",
             asks[index % 10], index);
    char *text = mtplx_chat_render(
        m, messages, NULL, index % 3 ? "{\"enable_thinking\":false}" : "{\"enable_thinking\":true}",
        true, &len, &err);
    assert_non_null(text);
    int32_t *ids = mtplx_encode(m, text, len, false, &n, &err);
    assert_non_null(ids);
    memcpy(out, ids, n * sizeof *ids);
    mtplx_free(ids);
    mtplx_free(text);
    return n;
}

static size_t make_prompt(mtplx_model *m, int index, int32_t *out)
{
    static const size_t lengths[] = {1,  2,   3,   5,   9,   17,  33,  63,  64,   65,
                                     97, 129, 200, 255, 256, 257, 511, 700, 1500, MAX_PROMPT};
    uint32_t seed = 77u + (uint32_t)index;
    size_t n = lengths[(size_t)index / KINDS % 20];
    int vocab = mtplx_model_get_info(m)->vocab_size;
    switch (index % KINDS) {
    case CHAT: return chat_prompt(m, index, out);
    case PROSE: from_text(m, "tests/golden/ppl.txt", n, &seed, out); return n;
    case CODE: from_text(m, "src/runtime/generate.c", n, &seed, out); return n;
    case NOISE:
        for (size_t i = 0; i < n; i++)
            out[i] = (int32_t)(next(&seed) % (uint32_t)vocab);
        return n;
    default:
        for (size_t i = 0, period = 1 + next(&seed) % 12; i < n; i++)
            out[i] = i < period ? (int32_t)(next(&seed) % (uint32_t)vocab) : out[i - period];
        return n;
    }
}

static size_t run_gen(mtplx_gen *g, int32_t *out)
{
    mtplx_error err = {0};
    size_t n;
    while (mtplx_gen_finish(g) == MTPLX_FINISH_NONE)
        if (mtplx_gen_step(g, &err) != MTPLX_OK)
            fail_msg("step: %s", err.message);
    const int32_t *ids = mtplx_gen_tokens(g, &n);
    memcpy(out, ids, n * sizeof *ids);
    return n;
}

struct outcome {
    mtplx_gen_stats stats;
    size_t length; /* of the sequence afterwards */
};

static size_t answer(mtplx_seq *base, const int32_t *prompt, size_t n, mtplx_gen_options o,
                     int32_t *out, struct outcome *end)
{
    mtplx_error err = {0};
    mtplx_seq *s = mtplx_seq_fork(base, &err);
    mtplx_gen *g = mtplx_gen_new(s, prompt, n, &o, &err);
    if (!g)
        fail_msg("%s", err.message);
    size_t k = run_gen(g, out);
    if (end)
        *end = (struct outcome){*mtplx_gen_get_stats(g), mtplx_seq_length(s)};
    mtplx_gen_free(g);
    mtplx_seq_free(s);
    return k;
}

/* All but the last prompt token are prefilled once; every depth starts from a fork. */
static mtplx_seq *prefill(mtplx_model *m, const int32_t *prompt, size_t n)
{
    mtplx_error err = {0};
    mtplx_seq *s = mtplx_seq_new(m, &err);
    static mtplx_row rows[MAX_PROMPT];
    for (size_t i = 0; i + 1 < n; i++)
        rows[i] = (mtplx_row){s, prompt[i], false, NULL};
    if (n > 1 && mtplx_forward(m, rows, n - 1, MTPLX_COMMIT, false, NULL, &err) != MTPLX_OK)
        fail_msg("prefill: %s", err.message);
    return s;
}

static mtplx_model *open_model(const char *path, const char *device)
{
    mtplx_load_options o = {.device = device, .threads = budget("MTPLX_EXACT_THREADS", 1, 1)};
    return load_or_fail(path, &o);
}

/* `quick` prompts by default, six apart: every kind and the shorter lengths. */
static void check_model(const char *path, const char *device, int quick)
{
    char where[512]; /* src_path() reuses its buffers */
    if (!path)
        skip();
    snprintf(where, sizeof where, "%s", path);
    path = where;
    static int32_t prompt[MAX_PROMPT];
    const char *only = getenv("MTPLX_EXACT_DEVICE");
    int total = budget("MTPLX_EXACT_PROMPTS", quick, 2);
    int stride = total < WHOLE_SET ? 6 : 1, depth_step = SLOW_BUILD ? 3 : 1;
    uint64_t cycles = 0, tokens = 0;
    size_t longest = 0;
    if (only && strcmp(only, device) != 0)
        skip();
    mtplx_model *m = open_model(path, device);
    int first = budget("MTPLX_EXACT_FIRST", 0, 0), step = budget("MTPLX_EXACT_STEP", 1, 1);
    for (int i = first; i < total; i += step) {
        int32_t plain[NEW_TOKENS], drafted[NEW_TOKENS];
        size_t n = make_prompt(m, i * stride, prompt);
        mtplx_seq *base = prefill(m, prompt, n);
        mtplx_gen_options o = {.max_tokens = NEW_TOKENS, .ignore_stop = i % 2};
        struct outcome plain_stats, stats;
        size_t k = answer(base, prompt + n - 1, 1, o, plain, &plain_stats);
        for (o.depth = 1; o.depth <= MTPLX_MAX_DEPTH; o.depth += depth_step) {
            size_t j = answer(base, prompt + n - 1, 1, o, drafted, &stats);
            if (j != k || memcmp(plain, drafted, k * sizeof *plain) != 0)
                fail_msg("%s on %s, prompt %d (%zu tokens): depth %d changes the greedy answer",
                         path, device, i, n, o.depth);
            assert_int_equal(stats.length, plain_stats.length); /* G4 of generate.c */
            cycles += stats.stats.cycles;
            tokens += stats.stats.generated_tokens;
        }
        longest = n > longest ? n : longest;
        mtplx_seq_free(base);
    }
    print_message(
        "%s on %s: prompts %d, %d .. of %d, up to %zu tokens, depths 1..8 equal plain greedy; "
        "%.2f tokens per verify\n",
        path, device, first, first + step, total, longest, (double)tokens / (double)cycles);
    assert_true(tokens > cycles * 5 / 4); /* drafts are really accepted */
    mtplx_model_free(m);
}

static void test_greedy_cpu(void **state)
{
    (void)state;
    check_model(src_path("models/nano"), "cpu", 16);
}

static void test_greedy_cpu_bf16(void **state)
{
    (void)state;
    check_model(nano_bf16(), "cpu", 8);
}

static void test_greedy_ref(void **state)
{
    (void)state;
    check_model(src_path("models/nano"), "ref", 4);
}

/* Penalties depend on what was emitted and drafted: the counts must follow both. */
static void test_greedy_penalties(void **state)
{
    (void)state;
    static int32_t prompt[MAX_PROMPT];
    mtplx_model *m = open_model(src_path("models/nano"), NULL);
    int total = SLOW_BUILD ? 2 : 10;
    for (int i = 0; i < total; i++) {
        int32_t plain[NEW_TOKENS], drafted[NEW_TOKENS];
        size_t n = make_prompt(m, i, prompt);
        mtplx_seq *base = prefill(m, prompt, n);
        mtplx_gen_options o = {.max_tokens = NEW_TOKENS, .ignore_stop = true};
        o.sampling = (mtplx_sampling){.top_p = 1,
                                      .repetition_penalty = 1.2,
                                      .presence_penalty = 0.6,
                                      .frequency_penalty = 0.4};
        size_t k = answer(base, prompt + n - 1, 1, o, plain, NULL);
        for (o.depth = 1; o.depth <= MTPLX_MAX_DEPTH; o.depth++) {
            assert_int_equal(answer(base, prompt + n - 1, 1, o, drafted, NULL), k);
            assert_memory_equal(plain, drafted, k * sizeof *plain);
        }
        mtplx_seq_free(base);
    }
    mtplx_model_free(m);
}

/* Twelve generations of different depth, sampler and seed in shared passes, joining at different
 * times, against each alone. */
static void test_batch_equals_alone(void **state)
{
    (void)state;
    enum { GENS = 12 };
    mtplx_error err = {0};
    mtplx_model *m = open_model(src_path("models/nano"), NULL);
    static int32_t prompts[GENS][MAX_PROMPT], alone[GENS][NEW_TOKENS];
    size_t n[GENS], k[GENS];
    mtplx_seq *seqs[GENS];
    mtplx_gen *gens[GENS];
    for (int i = 0; i < GENS; i++) {
        mtplx_gen_options o = {.max_tokens = NEW_TOKENS - i, .depth = i % 9, .ignore_stop = i % 2};
        o.sampling = (mtplx_sampling){.temperature = i % 3 ? 0.9 : 0,
                                      .top_p = 0.95,
                                      .top_k = i % 4 ? 20 : 0,
                                      .repetition_penalty = 1,
                                      .seed = (uint64_t)i};
        n[i] = make_prompt(m, i * 3, prompts[i]);
        seqs[i] = mtplx_seq_new(m, &err);
        k[i] = answer(seqs[i], prompts[i], n[i], o, alone[i], NULL);
        gens[i] = mtplx_gen_new(seqs[i], prompts[i], n[i], &o, &err);
        assert_non_null(gens[i]);
    }
    for (int step = 0, running = 1; running; step++) {
        size_t joined = step < GENS ? (size_t)step + 1 : GENS;
        if (mtplx_gen_step_many(gens, joined, &err) != MTPLX_OK)
            fail_msg("%s", err.message);
        running = joined < GENS;
        for (int i = 0; i < GENS; i++)
            running |= mtplx_gen_finish(gens[i]) == MTPLX_FINISH_NONE;
    }
    for (int i = 0; i < GENS; i++) {
        size_t count;
        const int32_t *out = mtplx_gen_tokens(gens[i], &count);
        assert_int_equal(count, k[i]);
        assert_memory_equal(out, alone[i], count * sizeof *out);
        mtplx_gen_free(gens[i]);
        mtplx_seq_free(seqs[i]);
    }
    mtplx_model_free(m);
}

/* Seventy generations: more than one group of a cycle, and more rows than one pass takes. */
static void test_many_generations(void **state)
{
    (void)state;
    enum { GENS = 70, TOKENS = 6 };
    mtplx_error err = {0};
    mtplx_load_options o = {.threads = 1, .max_rows = 32};
    mtplx_model *m = load_or_fail(src_path("models/nano"), &o);
    static mtplx_seq *seqs[GENS];
    static mtplx_gen *gens[GENS];
    static int32_t prompt[MAX_PROMPT], alone[2][TOKENS];
    for (int i = 0; i < GENS; i++) {
        mtplx_gen_options go = {.max_tokens = TOKENS, .depth = 3, .ignore_stop = true};
        size_t n = make_prompt(m, i % 2 ? CHAT + 5 * KINDS : CODE + 2 * KINDS, prompt);
        seqs[i] = mtplx_seq_new(m, &err);
        if (i < 2)
            answer(seqs[i], prompt, n, go, alone[i], NULL);
        gens[i] = mtplx_gen_new(seqs[i], prompt, n, &go, &err);
        assert_non_null(gens[i]);
    }
    for (bool running = true; running;) {
        assert_int_equal(mtplx_gen_step_many(gens, GENS, &err), MTPLX_OK);
        running = false;
        for (int i = 0; i < GENS; i++)
            running |= mtplx_gen_finish(gens[i]) == MTPLX_FINISH_NONE;
    }
    for (int i = 0; i < GENS; i++) {
        size_t count;
        assert_memory_equal(mtplx_gen_tokens(gens[i], &count), alone[i % 2], sizeof alone[0]);
        assert_int_equal(count, TOKENS);
        mtplx_gen_free(gens[i]);
        mtplx_seq_free(seqs[i]);
    }
    mtplx_model_free(m);
}

/* Cancelling one of a batch ends that one; the others go on. */
static void test_cancel(void **state)
{
    (void)state;
    mtplx_error err = {0};
    mtplx_model *m = open_model(src_path("models/nano"), NULL);
    static int32_t prompt[MAX_PROMPT], out[NEW_TOKENS];
    volatile int flag = 0;
    size_t n = make_prompt(m, PROSE + 4 * KINDS, prompt);
    mtplx_gen_options o = {.max_tokens = NEW_TOKENS, .depth = 2, .ignore_stop = true};
    mtplx_seq *a = mtplx_seq_new(m, &err), *b = mtplx_seq_new(m, &err);
    mtplx_gen *gens[2] = {mtplx_gen_new(a, prompt, n, &o, &err)};
    o.cancel = &flag;
    gens[1] = mtplx_gen_new(b, prompt, n, &o, &err);
    for (int i = 0; i < 3; i++)
        assert_int_equal(mtplx_gen_step_many(gens, 2, &err), MTPLX_OK);
    flag = 1;
    assert_int_equal(mtplx_gen_step_many(gens, 2, &err), MTPLX_ERR_CANCELLED);
    assert_int_equal(mtplx_gen_finish(gens[1]), MTPLX_FINISH_CANCELLED);
    assert_int_equal(mtplx_gen_step_many(gens, 2, &err), MTPLX_OK);
    assert_int_equal(run_gen(gens[0], out), NEW_TOKENS);
    assert_int_equal(mtplx_seq_pending(b), 0);
    mtplx_gen_free(gens[0]);
    mtplx_gen_free(gens[1]);
    mtplx_seq_free(a);
    mtplx_seq_free(b);
    mtplx_model_free(m);
}

/* Logits do not depend on the number of threads, and a reset sequence is as good as a new one. */
static void test_threads_and_reset(void **state)
{
    (void)state;
    static int32_t prompt[MAX_PROMPT], one[NEW_TOKENS], more[NEW_TOKENS];
    mtplx_error err = {0};
    mtplx_gen_options o = {.max_tokens = NEW_TOKENS, .depth = 3, .ignore_stop = true};
    for (int threads = 1; threads <= 3; threads++) {
        mtplx_load_options lo = {.threads = threads};
        mtplx_model *m = load_or_fail(src_path("models/nano"), &lo);
        size_t n = make_prompt(m, NOISE + 9 * KINDS, prompt);
        mtplx_seq *s = mtplx_seq_new(m, &err);
        for (int round = 0; round < 2; round++) {
            mtplx_gen *g = mtplx_gen_new(s, prompt, n, &o, &err);
            run_gen(g, threads == 1 && round == 0 ? one : more);
            mtplx_gen_free(g);
            if (threads > 1 || round > 0)
                assert_memory_equal(one, more, sizeof one);
            mtplx_seq_reset(s);
            assert_int_equal(mtplx_seq_length(s), 0);
        }
        mtplx_seq_free(s);
        mtplx_model_free(m);
    }
}

/* Logits of a verify block behind a context of several attention spans: threads that share the
 * spans out give the bits of one thread that takes them all, and rows alone those of the block. */
static void test_long_context_threads(void **state)
{
    (void)state;
    enum { CONTEXT = 1500, BLOCK = 5 };
    static const int threads[] = {1, 3, 8};
    size_t vocab = 0, bytes = 0;
    float *want = NULL;
    for (int i = 0; i < 4; i++) {
        mtplx_load_options o = {.device = "cpu", .threads = threads[i % 3]};
        mtplx_model *m = load_or_fail(src_path("models/nano"), &o);
        mtplx_seq *s = mtplx_seq_new(m, NULL);
        mtplx_row rows[CONTEXT];
        mtplx_forward_result r;
        vocab = (size_t)mtplx_model_get_info(m)->vocab_size;
        bytes = vocab * sizeof *want;
        for (int j = 0; j < CONTEXT; j++)
            rows[j] = (mtplx_row){s, 300 + j * 7 % 500, false, NULL};
        assert_int_equal(mtplx_forward(m, rows, CONTEXT, MTPLX_COMMIT, false, &r, NULL), MTPLX_OK);
        for (int j = 0; j < BLOCK; j++)
            rows[j].want_logits = true;
        if (i == 0)
            want = malloc(BLOCK * bytes);
        if (i < 3) {
            assert_int_equal(mtplx_forward(m, rows, BLOCK, MTPLX_VERIFY, false, &r, NULL),
                             MTPLX_OK);
            if (i == 0)
                memcpy(want, r.logits, BLOCK * bytes);
            assert_memory_equal(want, r.logits, BLOCK * bytes);
        }
        for (int j = 0; j < BLOCK && i == 3; j++) {
            assert_int_equal(mtplx_forward(m, rows + j, 1, MTPLX_COMMIT, false, &r, NULL),
                             MTPLX_OK);
            assert_memory_equal(want + (size_t)j * vocab, r.logits, bytes);
        }
        mtplx_seq_free(s);
        mtplx_model_free(m);
    }
    free(want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_cpu),
        cmocka_unit_test(test_greedy_cpu_bf16),
        cmocka_unit_test(test_greedy_ref),
        cmocka_unit_test(test_greedy_penalties),
        cmocka_unit_test(test_batch_equals_alone),
        cmocka_unit_test(test_many_generations),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_threads_and_reset),
        cmocka_unit_test(test_long_context_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
