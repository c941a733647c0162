/* Generations for a scheduler: prompts that share prefill passes, prefill and cycles called apart,
 * failures that stay with their generation, endings from outside, log-probabilities, logit bias and
 * what things take in memory. Every answer is compared with that of the same request alone. */
#include "golden.h"

#include "runtime/gen_int.h"

enum { NEW_TOKENS = 24, MAX_PROMPT = 600 };

static mtplx_model *open_model(int max_rows)
{
    mtplx_load_options o = {.threads = 1, .max_rows = max_rows};
    return load_or_fail(src_path("models/nano"), &o);
}

/* A chat prompt, cut or repeated to `want` tokens unless 0. */
static size_t make_prompt(mtplx_model *m, const char *ask, size_t want, int32_t *out)
{
    char messages[256];
    size_t len, n;
    snprintf(messages, sizeof messages, "[{\"role\":\"user\",\"content\":\"%s\"}]", ask);
    char *text =
        mtplx_chat_render(m, messages, NULL, "{\"enable_thinking\":false}", true, &len, NULL);
    assert_non_null(text);
    int32_t *ids = mtplx_encode(m, text, len, false, &n, NULL);
    assert_non_null(ids);
    want = want ? want : n;
    for (size_t i = 0; i < want; i++)
        out[want - 1 - i] = ids[(n - 1) - i % n]; /* the end of the template stays at the end */
    mtplx_free(ids);
    mtplx_free(text);
    return want;
}

static mtplx_gen *start(mtplx_seq *s, const int32_t *prompt, size_t n, const mtplx_gen_options *o)
{
    mtplx_error err = {0};
    mtplx_gen *g = mtplx_gen_new(s, prompt, n, o, &err);
    if (!g)
        fail_msg("%s", err.message);
    return g;
}

static void run(mtplx_gen *g)
{
    mtplx_error err = {0};
    while (mtplx_gen_finish(g) == MTPLX_FINISH_NONE)
        if (mtplx_gen_step(g, &err) != MTPLX_OK)
            fail_msg("%s", err.message);
}

static size_t answer(mtplx_model *m, const int32_t *prompt, size_t n, const mtplx_gen_options *o,
                     int32_t *out)
{
    size_t k;
    mtplx_seq *s = mtplx_seq_new(m, NULL);
    mtplx_gen *g = start(s, prompt, n, o);
    run(g);
    const int32_t *ids = mtplx_gen_tokens(g, &k);
    memcpy(out, ids, k * sizeof *ids);
    mtplx_gen_free(g);
    mtplx_seq_free(s);
    return k;
}

static bool any_running(mtplx_gen *const *gens, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (mtplx_gen_finish(gens[i]) == MTPLX_FINISH_NONE)
            return true;
    return false;
}

/* ---- Shared prefill ----------------------------------------------------------------------- */

enum { GENS = 10 };

struct batch {
    int32_t prompt[GENS][MAX_PROMPT], alone[GENS][NEW_TOKENS];
    size_t n[GENS], k[GENS];
    mtplx_seq *seqs[GENS];
    mtplx_gen *gens[GENS];
};

/* Requests of all kinds: greedy and sampled, penalties, bias, log-probabilities, every depth. */
static mtplx_gen_options request(int i)
{
    static const mtplx_logit_bias bias[] = {{300, 4}, {301, -100}, {5, 2.5f}};
    mtplx_gen_options o = {.max_tokens = NEW_TOKENS, .depth = i % 5, .ignore_stop = i % 2};
    o.sampling = (mtplx_sampling){.temperature = i % 3 ? 0.9 : 0,
                                  .top_p = i % 4 ? 0.95 : 1,
                                  .repetition_penalty = i % 5 == 2 ? 1.1 : 1,
                                  .seed = (uint64_t)i};
    o.context_copy = i == 6;
    if (i == 4 || i == 9) {
        o.logit_bias = bias;
        o.n_logit_bias = sizeof bias / sizeof *bias;
    }
    o.logprobs = i == 7 || i == 9 ? 4 : 0;
    o.prompt_logprobs = i == 9;
    return o;
}

static void open_batch(mtplx_model *m, struct batch *b)
{
    static const size_t lengths[GENS] = {0, 1, 300, 17, 0, 64, 129, 2, 450, 40};
    for (int i = 0; i < GENS; i++) {
        mtplx_gen_options o = request(i);
        char ask[64];
        snprintf(ask, sizeof ask, "Count from %d to 20", i);
        b->n[i] = make_prompt(m, ask, lengths[i], b->prompt[i]);
        b->k[i] = answer(m, b->prompt[i], b->n[i], &o, b->alone[i]);
        b->seqs[i] = mtplx_seq_new(m, NULL);
        b->gens[i] = start(b->seqs[i], b->prompt[i], b->n[i], &o);
    }
}

static void check_answer(const struct batch *b, int i)
{
    size_t count;
    const int32_t *out = mtplx_gen_tokens(b->gens[i], &count);
    assert_int_equal(count, b->k[i]);
    assert_memory_equal(out, b->alone[i], count * sizeof *out);
}

static void close_batch(struct batch *b)
{
    for (int i = 0; i < GENS; i++) {
        mtplx_gen_free(b->gens[i]);
        mtplx_seq_free(b->seqs[i]);
    }
}

static void test_shared_prefill(void **state)
{
    (void)state;
    static struct batch b;
    static const int rows[] = {256, 32};
    for (int r = 0; r < (SLOW_BUILD ? 1 : 2); r++) {
        mtplx_error err = {0};
        mtplx_model *m = open_model(rows[r]);
        open_batch(m, &b);
        while (any_running(b.gens, GENS))
            if (mtplx_gen_step_many(b.gens, GENS, &err) != MTPLX_OK)
                fail_msg("%s", err.message);
        for (int i = 0; i < GENS; i++)
            check_answer(&b, i);
        close_batch(&b);
        mtplx_model_free(m);
    }
}

/* Odd pieces of prompts, and cycles in between. */
static void test_prefill_and_cycles_apart(void **state)
{
    (void)state;
    static struct batch b;
    mtplx_error err = {0};
    mtplx_model *m = open_model(64);
    assert_int_equal(mx_model_max_rows(m), 64);
    open_batch(m, &b);
    for (int turn = 0; any_running(b.gens, GENS); turn++) {
        mtplx_gen *some[GENS];
        size_t take[GENS], n = 0, room = 64;
        for (int i = 0; i < GENS && room > 0; i++) {
            size_t left = mx_gen_prompt_left(b.gens[i]),
                   piece = (size_t)(turn * 7 + i * 5) % 23 + 1;
            piece = piece < left ? piece : left;
            piece = piece < room ? piece : room;
            if (left == 0 || (turn + i) % 3 == 0)
                continue;
            some[n] = b.gens[i];
            take[n++] = piece;
            room -= piece;
        }
        assert_int_equal(mx_gen_prefill_many(some, take, n, &err), MTPLX_OK);
        if (mx_gen_cycle_many(b.gens, GENS, &err) != MTPLX_OK)
            fail_msg("%s", err.message);
    }
    for (int i = 0; i < GENS; i++) {
        check_answer(&b, i);
        assert_int_equal(mx_gen_prompt_left(b.gens[i]), 0);
    }
    close_batch(&b);
    mtplx_model_free(m);
}

static void test_prefill_arguments(void **state)
{
    (void)state;
    static int32_t prompt[MAX_PROMPT], out[NEW_TOKENS];
    mtplx_error err = {0};
    mtplx_model *m = open_model(32);
    mtplx_gen_options o = {.max_tokens = 4};
    size_t n = make_prompt(m, "Hello", 40, prompt), k;
    mtplx_seq *s = mtplx_seq_new(m, NULL), *t = mtplx_seq_new(m, NULL);
    mtplx_gen *gens[2] = {start(s, prompt, n, &o), start(t, prompt, n, &o)};
    const size_t wrong[][2] = {{0, 1}, {41, 1}, {33, 0}, {16, 17}, {1, 41}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(mx_gen_prefill_many(gens, wrong[i], 2, &err), MTPLX_ERR_ARGUMENT);
        assert_int_equal(mx_gen_prompt_left(gens[0]), 40);
        assert_int_equal(mtplx_gen_finish(gens[0]), MTPLX_FINISH_NONE);
    }
    mtplx_gen *twice[2] = {gens[0], gens[0]};
    assert_int_equal(mx_gen_prefill_many(twice, wrong[0], 2, &err), MTPLX_ERR_ARGUMENT);
    assert_int_equal(mx_gen_cycle_many(twice, 2, &err), MTPLX_ERR_ARGUMENT);
    assert_int_equal(mx_gen_prefill_many(gens, NULL, 0, &err), MTPLX_OK);
    assert_int_equal(mx_gen_cycle_many(gens, 2, &err), MTPLX_OK); /* nothing is ready */
    assert_int_equal(mx_gen_prompt_left(gens[0]), 40);
    run(gens[0]);
    assert_int_equal(answer(m, prompt, n, &o, out), 4);
    assert_memory_equal(mtplx_gen_tokens(gens[0], &k), out, 4 * sizeof *out);
    for (int i = 0; i < 2; i++)
        mtplx_gen_free(gens[i]);
    mtplx_seq_free(s);
    mtplx_seq_free(t);
    mtplx_model_free(m);
}

/* ---- One of many goes wrong --------------------------------------------------------------- */

/* Makes a sequence unusable, as a caller would who works on it behind the generation's back. */
static void spoil(mtplx_model *m, mtplx_seq *s)
{
    mtplx_row row = {.seq = s, .token = 1};
    mtplx_forward_result r;
    assert_int_equal(mtplx_forward(m, &row, 1, MTPLX_VERIFY, false, &r, NULL), MTPLX_OK);
}

static void check_spoilt(int at_step)
{
    static struct batch b;
    mtplx_error err = {0};
    mtplx_model *m = open_model(0);
    enum { BAD = 3, GONE = 5 };
    open_batch(m, &b);
    volatile int flag = 0;
    mtplx_gen_options o = request(GONE);
    o.cancel = &flag;
    mtplx_gen_free(b.gens[GONE]);
    b.gens[GONE] = start(b.seqs[GONE], b.prompt[GONE], b.n[GONE], &o);
    int failures = 0;
    for (int step = 0; any_running(b.gens, GENS); step++) {
        if (step == at_step) {
            spoil(m, b.seqs[BAD]);
            flag = 1;
        }
        failures += mtplx_gen_step_many(b.gens, GENS, &err) != MTPLX_OK;
    }
    assert_int_equal(failures, 1);
    assert_int_equal(mtplx_gen_finish(b.gens[BAD]), MTPLX_FINISH_ERROR);
    assert_int_equal(mtplx_gen_finish(b.gens[GONE]), MTPLX_FINISH_CANCELLED);
    for (int i = 0; i < GENS; i++)
        if (i != BAD && i != GONE)
            check_answer(&b, i);
    close_batch(&b);
    mtplx_model_free(m);
}

static void test_a_failure_is_nobody_elses(void **state)
{
    (void)state;
    check_spoilt(0); /* in the shared prefill */
    check_spoilt(8); /* in a shared cycle */
}

/* ---- Endings ------------------------------------------------------------------------------ */

static void test_end(void **state)
{
    (void)state;
    static int32_t prompt[MAX_PROMPT];
    mtplx_model *m = open_model(0);
    size_t n = make_prompt(m, "Count from 1 to 20", 0, prompt), k = 0;
    mtplx_gen_options o = {.max_tokens = NEW_TOKENS, .depth = 3, .logprobs = 1};
    mtplx_seq *s = mtplx_seq_new(m, NULL);
    mtplx_gen *g = start(s, prompt, n, &o);
    while (k < 5) {
        assert_int_equal(mtplx_gen_step(g, NULL), MTPLX_OK);
        mtplx_gen_tokens(g, &k);
    }
    size_t held = mtplx_seq_length(s);
    const mtplx_token_logprob *top;
    float own;
    mx_gen_end(g, MTPLX_FINISH_NONE, 0); /* is no ending */
    assert_int_equal(mtplx_gen_finish(g), MTPLX_FINISH_NONE);
    assert_int_equal(mtplx_gen_logprobs(g, 3, &own, &top), 0);
    mx_gen_end(g, MTPLX_FINISH_STOP, 3);
    assert_int_equal(mtplx_gen_finish(g), MTPLX_FINISH_STOP);
    mtplx_gen_tokens(g, &k);
    assert_int_equal(k, 3);
    assert_int_equal(mtplx_gen_get_stats(g)->generated_tokens, 3);
    assert_int_equal(mtplx_gen_logprobs(g, 2, &own, &top), 0);
    assert_int_equal(mtplx_gen_logprobs(g, 3, &own, &top), -1);
    assert_int_equal(mtplx_seq_length(s), held);
    assert_int_equal(mtplx_seq_pending(s), 0);
    assert_int_equal(mtplx_gen_step(g, NULL), MTPLX_OK); /* left alone */
    mx_gen_end(g, MTPLX_FINISH_LENGTH, 100);
    mtplx_gen_tokens(g, &k);
    assert_int_equal(k, 3);
    assert_int_equal(mtplx_gen_finish(g), MTPLX_FINISH_LENGTH);
    mtplx_gen_free(g);
    mtplx_seq_free(s);
    mtplx_model_free(m);
}

/* ---- Log-probabilities -------------------------------------------------------------------- */

/* log softmax of one entry, the slow way. */
static double reference(const float *logits, int vocab, int32_t token)
{
    double max = -INFINITY, sum = 0;
    for (int i = 0; i < vocab; i++)
        max = (double)logits[i] > max ? (double)logits[i] : max;
    for (int i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - max);
    return (double)logits[token] - max - log(sum);
}

static void check_record(const float *logits, int vocab, int32_t token, int width, int found,
                         float own, const mtplx_token_logprob *top)
{
    assert_int_equal(found, width);
    assert_true(fabs((double)own - reference(logits, vocab, token)) < 1e-5);
    for (int i = 0; i < width; i++) {
        int better = 0;
        for (int t = 0; t < vocab; t++)
            better += logits[t] > logits[top[i].token] ||
                      (logits[t] == logits[top[i].token] && t < top[i].token);
        assert_int_equal(better, i); /* it is the i-th best */
        assert_true(fabs((double)top[i].logprob - reference(logits, vocab, top[i].token)) < 1e-5);
    }
}

/* Records of prompt and answer against mtplx_forward() over the same tokens. */
static void check_logprobs(mtplx_model *m, const mtplx_gen_options *o, const int32_t *prompt,
                           size_t n, mtplx_gen *g)
{
    int vocab = mtplx_model_get_info(m)->vocab_size, width = o->logprobs - 1;
    size_t k;
    const int32_t *out = mtplx_gen_tokens(g, &k);
    mtplx_row *rows = calloc(n + k, sizeof *rows);
    mtplx_seq *s = mtplx_seq_new(m, NULL);
    mtplx_forward_result r;
    for (size_t i = 0; i < n + k; i++)
        rows[i] =
            (mtplx_row){.seq = s, .token = i < n ? prompt[i] : out[i - n], .want_logits = true};
    assert_int_equal(mtplx_forward(m, rows, n + k, MTPLX_COMMIT, false, &r, NULL), MTPLX_OK);
    for (size_t i = 0; i < n + k; i++) {
        const float *row = i ? r.logits + (i - 1) * (size_t)vocab : NULL;
        const mtplx_token_logprob *top;
        float own;
        int found = i < n ? mtplx_gen_prompt_logprobs(g, i, &own, &top)
                          : mtplx_gen_logprobs(g, i - n, &own, &top);
        if (i == 0 || (i < n && !o->prompt_logprobs))
            assert_int_equal(found, -1);
        else
            check_record(row, vocab, rows[i].token, width, found, own, top);
    }
    mtplx_seq_free(s);
    free(rows);
}

static void test_logprobs(void **state)
{
    (void)state;
    static int32_t prompt[MAX_PROMPT];
    mtplx_model *m = open_model(0);
    size_t n = make_prompt(m, "Tell me a story", SLOW_BUILD ? 30 : 90, prompt);
    for (int i = 0; i < 12; i++) {
        mtplx_gen_options o = {.max_tokens = NEW_TOKENS, .depth = i % 4, .ignore_stop = true};
        o.sampling = (mtplx_sampling){.temperature = i % 3 ? 1.2 : 0, .seed = 7, .top_k = i};
        o.logprobs = i % 5 ? 6 : MTPLX_MAX_LOGPROBS + 1;
        o.prompt_logprobs = i % 2;
        mtplx_seq *s = mtplx_seq_new(m, NULL);
        mtplx_gen *g = start(s, prompt, n, &o);
        run(g);
        check_logprobs(m, &o, prompt, n, g);
        mtplx_gen_free(g);
        mtplx_seq_free(s);
    }
    mtplx_error err = {0};
    mtplx_seq *s = mtplx_seq_new(m, NULL);
    mtplx_gen_options o = {.logprobs = MTPLX_MAX_LOGPROBS + 2};
    assert_null(mtplx_gen_new(s, prompt, n, &o, &err));
    assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);
    mtplx_seq_free(s);
    mtplx_model_free(m);
}

/* A prompt that needs more than one pass for the logits of all its rows. */
static void test_long_scored_prompt(void **state)
{
    (void)state;
    enum { LONG = 1100 };
    static int32_t prompt[LONG];
    if (SLOW_BUILD)
        skip();
    mtplx_model *m = open_model(4096);
    mtplx_gen_options o = {.max_tokens = 2, .logprobs = 2, .prompt_logprobs = true};
    size_t n = make_prompt(m, "Tell me a story", LONG, prompt);
    mtplx_seq *s = mtplx_seq_new(m, NULL);
    mtplx_gen *g = start(s, prompt, n, &o);
    assert_int_equal(mtplx_gen_step(g, NULL), MTPLX_OK); /* still one step */
    assert_int_equal(mx_gen_prompt_left(g), 0);
    run(g);
    check_logprobs(m, &o, prompt, n, g);
    mtplx_gen_free(g);
    mtplx_seq_free(s);
    mtplx_model_free(m);
}

/* ---- Logit bias --------------------------------------------------------------------------- */

static void check_same_at_every_depth(mtplx_model *m, const int32_t *prompt, size_t n,
                                      mtplx_gen_options o, int32_t *plain, size_t *k)
{
    int32_t drafted[NEW_TOKENS];
    o.depth = 0;
    *k = answer(m, prompt, n, &o, plain);
    for (o.depth = 1; o.depth <= MTPLX_MAX_DEPTH; o.depth += SLOW_BUILD ? 4 : 1) {
        assert_int_equal(answer(m, prompt, n, &o, drafted), *k);
        assert_memory_equal(plain, drafted, *k * sizeof *plain);
    }
}

static void test_bias(void **state)
{
    (void)state;
    static int32_t prompt[MAX_PROMPT], plain[NEW_TOKENS], other[NEW_TOKENS];
    mtplx_model *m = open_model(0);
    size_t n = make_prompt(m, "Count from 1 to 20", 0, prompt), k, j;
    mtplx_gen_options o = {.max_tokens = NEW_TOKENS, .ignore_stop = true};
    check_same_at_every_depth(m, prompt, n, o, plain, &k);
    mtplx_logit_bias ban[2] = {{plain[0], -100}, {plain[5], -200}};
    o.logit_bias = ban;
    o.n_logit_bias = 2;
    check_same_at_every_depth(m, prompt, n, o, other, &j);
    for (size_t i = 0; i < j; i++)
        assert_true(other[i] != plain[0] && other[i] != plain[5]);
    for (int t = 0; t < 2; t++) { /* banned in sampled answers too */
        o.sampling.temperature = 1.3 + t;
        o.depth = 3 * t;
        j = answer(m, prompt, n, &o, other);
        for (size_t i = 0; i < j; i++)
            assert_true(other[i] != plain[0] && other[i] != plain[5]);
    }
    mtplx_logit_bias force[2] = {{77, 100}, {4000, 150}};
    o.logit_bias = force;
    for (int t = 0; t < 4; t++) {
        o.sampling.temperature = t % 2 ? 2 : 0;
        o.depth = t / 2 * 4;
        j = answer(m, prompt, n, &o, other);
        for (size_t i = 0; i < j; i++)
            assert_true(other[i] == 77 || other[i] == 4000);
    }
    o.sampling.repetition_penalty = 1.3; /* with penalties */
    o.sampling.temperature = 0;
    o.logit_bias = (mtplx_logit_bias[]){{plain[1], 3.5f}, {plain[2], -7}};
    check_same_at_every_depth(m, prompt, n, o, other, &j);
    mtplx_model_free(m);
}

static void test_bias_arguments(void **state)
{
    (void)state;
    mtplx_model *m = open_model(0);
    static mtplx_logit_bias many[MTPLX_MAX_LOGIT_BIAS + 1];
    const struct {
        mtplx_logit_bias b;
        const char *says;
    } wrong[] = {{{-1, 1}, "token -1"}, {{8192, 1}, "8192"}, {{5, NAN}, "token 5"}};
    mtplx_seq *s = mtplx_seq_new(m, NULL);
    int32_t token = 5;
    mtplx_error err = {0};
    mtplx_gen_options o = {.logit_bias = many, .n_logit_bias = MTPLX_MAX_LOGIT_BIAS + 1};
    assert_null(mtplx_gen_new(s, &token, 1, &o, &err));
    assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        o = (mtplx_gen_options){.logit_bias = &wrong[i].b, .n_logit_bias = 1};
        assert_null(mtplx_gen_new(s, &token, 1, &o, &err));
        assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);
        assert_non_null(strstr(err.message, wrong[i].says));
    }
    mtplx_seq_free(s);
    mtplx_model_free(m);
}

/* ---- Memory ------------------------------------------------------------------------------- */

/* An estimate is not below what a used sequence holds, and not far above. */
static void test_memory(void **state)
{
    (void)state;
    static int32_t prompt[MAX_PROMPT];
    static const size_t lengths[] = {20, 150, MAX_PROMPT};
    mtplx_model *m = open_model(0);
    for (int i = 0; i < 3; i++) {
        mtplx_gen_options o = {.max_tokens = NEW_TOKENS, .depth = 3, .ignore_stop = true};
        size_t n = make_prompt(m, "Hello", lengths[i], prompt);
        mtplx_seq *s = mtplx_seq_new(m, NULL);
        uint64_t empty = mx_seq_bytes(s);
        mtplx_gen *g = start(s, prompt, n, &o);
        run(g);
        uint64_t held = mx_seq_bytes(s), said = mx_seq_bytes_for(m, n + NEW_TOKENS);
        assert_true(held > empty);
        assert_true(said >= held && (double)said < 1.1 * (double)held);
        mtplx_gen_free(g);
        mtplx_seq_free(s);
    }
    mtplx_gen_options o = {0};
    uint64_t plain = mx_gen_bytes_for(m, &o, 100, 50);
    o.sampling.temperature = 1;
    o.depth = 4;
    uint64_t sampled = mx_gen_bytes_for(m, &o, 100, 50);
    o.logprobs = 21;
    assert_true(plain > 150 * sizeof(int32_t) && sampled > plain + 5 * 8192 * sizeof(float));
    assert_true(mx_gen_bytes_for(m, &o, 100, 50) > sampled + 50 * 20 * 8);
    assert_true(mx_gen_bytes_for(m, &o, 100, 0) > mx_gen_bytes_for(m, &o, 100, 50));
    mtplx_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_prefill),
        cmocka_unit_test(test_prefill_and_cycles_apart),
        cmocka_unit_test(test_prefill_arguments),
        cmocka_unit_test(test_a_failure_is_nobody_elses),
        cmocka_unit_test(test_end),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_long_scored_prompt),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_bias_arguments),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
