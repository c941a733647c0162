/* Grammars under speculation: greedy answers are the same at every depth, sampled ones obey at any
 * temperature, batches answer as their members alone, and what a grammar leaves no choice about is
 * drafted without the head. (The sampled law is tested in test_engine_law.c.) */
#include "golden.h"

#include "runtime/gen_int.h"

#include <pthread.h>
#include <regex.h>
#include <time.h>

enum { NEW_TOKENS = 48, MAX_PROMPT = 300 };

static const char *const rules[] = {
    "\\{\"name\": \"[a-zA-Z ]*\", \"age\": [0-9]+\\}",
    "[0-9]+, [0-9]+, [0-9]+",
    "The answer to the question about the fox and the dog is [0-9]+\\.",
    "x[a-zA-Z ]*y",
};
enum { RULES = sizeof rules / sizeof *rules };

static mtplx_model *open_model(int draft_vocab)
{
    mtplx_load_options o = {.threads = 1, .draft_vocab = draft_vocab};
    return load_or_fail(src_path("models/nano"), &o);
}

static mtplx_grammar *compile(mtplx_model *m, const char *rule)
{
    mtplx_error err = {0};
    mtplx_grammar *g = mtplx_grammar_new(m, MTPLX_GRAMMAR_REGEX, rule, strlen(rule), NULL, &err);
    if (!g)
        fail_msg("%s: %s", rule, err.message);
    return g;
}

static size_t make_prompt(mtplx_model *m, int index, int32_t *out)
{
    static const char *const asks[] = {"Give me a JSON object with a name and an age",
                                       "Count from 1 to 20", "Tell me a short story about a fox"};
    char messages[256];
    size_t len, n;
    snprintf(messages, sizeof messages, "[{\"role\":\"user\",\"content\":\"%s\"}]",
             asks[index % 3]);
    char *text =
        mtplx_chat_render(m, messages, NULL, "{\"enable_thinking\":false}", true, &len, NULL);
    int32_t *ids = mtplx_encode(m, text, len, false, &n, NULL);
    assert_non_null(ids);
    assert_true(n <= MAX_PROMPT);
    memcpy(out, ids, n * sizeof *ids);
    mtplx_free(ids);
    mtplx_free(text);
    return n;
}

struct answer {
    int32_t ids[NEW_TOKENS];
    size_t n;
    mtplx_finish finish;
    mtplx_gen_stats stats;
    size_t length; /* of the sequence afterwards */
};

static void take(mtplx_gen *g, mtplx_seq *s, struct answer *a)
{
    const int32_t *ids = mtplx_gen_tokens(g, &a->n);
    assert_true(a->n <= NEW_TOKENS);
    memcpy(a->ids, ids, a->n * sizeof *ids);
    a->finish = mtplx_gen_finish(g);
    a->stats = *mtplx_gen_get_stats(g);
    a->length = mtplx_seq_length(s);
}

static void run(mtplx_model *m, const int32_t *prompt, size_t n, const mtplx_gen_options *o,
                struct answer *a)
{
    mtplx_error err = {0};
    mtplx_seq *s = mtplx_seq_new(m, NULL);
    mtplx_gen *g = mtplx_gen_new(s, prompt, n, o, &err);
    if (!g)
        fail_msg("%s", err.message);
    while (mtplx_gen_finish(g) == MTPLX_FINISH_NONE)
        if (mtplx_gen_step(g, &err) != MTPLX_OK)
            fail_msg("%s", err.message);
    take(g, s, a);
    mtplx_gen_free(g);
    mtplx_seq_free(s);
}

/* An answer that ended by itself matches as a whole. */
static void check_obeys(mtplx_model *m, const char *rule, const struct answer *a)
{
    char whole[256];
    size_t len;
    regex_t re;
    if (a->finish != MTPLX_FINISH_STOP)
        return;
    assert_true(mtplx_model_is_stop_token(m, a->ids[a->n - 1]));
    char *text = mtplx_decode(m, a->ids, a->n - 1, false, &len, NULL);
    snprintf(whole, sizeof whole, "^%s$", rule);
    assert_int_equal(regcomp(&re, whole, REG_EXTENDED | REG_NOSUB), 0);
    if (regexec(&re, text, 0, NULL, 0) != 0)
        fail_msg("%s does not match %s", text, rule);
    regfree(&re);
    mtplx_free(text);
}

static void check_equal(const struct answer *a, const struct answer *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, a->n * sizeof *a->ids);
    assert_int_equal(a->finish, b->finish);
}

/* ---- Greedy ------------------------------------------------------------------------------- */

static void check_depths(mtplx_model *m, const int32_t *prompt, size_t n, mtplx_gen_options o,
                         const char *rule, struct answer *plain)
{
    struct answer a;
    o.depth = 0;
    run(m, prompt, n, &o, plain);
    check_obeys(m, rule, plain);
    for (o.depth = 1; o.depth <= MTPLX_MAX_DEPTH; o.depth += SLOW_BUILD ? 4 : 1) {
        run(m, prompt, n, &o, &a);
        check_equal(&a, plain);
        assert_int_equal(a.length, plain->length);
    }
    o.depth = 4;
    o.policy = MTPLX_DEPTH_AUTO;
    o.context_copy = true;
    run(m, prompt, n, &o, &a);
    check_equal(&a, plain);
}

static void test_greedy(void **state)
{
    (void)state;
    int32_t prompt[MAX_PROMPT];
    int ended = 0;
    for (int part = 0; part < 2; part++) {
        mtplx_model *m = open_model(part); /* 1: as few draft tokens as there can be */
        for (int i = 0; i < RULES; i++) {
            struct answer plain;
            mtplx_gen_options o = {.max_tokens = NEW_TOKENS, .grammar = compile(m, rules[i])};
            size_t n = make_prompt(m, i, prompt);
            check_depths(m, prompt, n, o, rules[i], &plain);
            ended += plain.finish == MTPLX_FINISH_STOP;
            o.sampling.repetition_penalty = 1.2;
            o.sampling.frequency_penalty = 0.5;
            check_depths(m, prompt, n, o, rules[i], &plain);
            mtplx_grammar_free(o.grammar);
        }
        mtplx_model_free(m);
    }
    assert_true(ended >= RULES); /* most answers are short enough to end */
}

/* A stop token ends the answer, asked or not: nothing could follow. */
static void test_ends_where_the_grammar_does(void **state)
{
    (void)state;
    int32_t prompt[MAX_PROMPT];
    mtplx_model *m = open_model(0);
    mtplx_gen_options o = {.max_tokens = NEW_TOKENS, .ignore_stop = true};
    struct answer a;
    o.grammar = compile(m, "yes");
    size_t n = make_prompt(m, 0, prompt);
    for (o.depth = 0; o.depth < 4; o.depth++) {
        run(m, prompt, n, &o, &a);
        assert_int_equal(a.finish, MTPLX_FINISH_STOP);
        check_obeys(m, "yes", &a);
    }
    mtplx_grammar_free(o.grammar);
    mtplx_model_free(m);
}

/* ---- Sampled ------------------------------------------------------------------------------ */

static void test_sampled(void **state)
{
    (void)state;
    int32_t prompt[MAX_PROMPT];
    struct answer a;
    uint64_t tokens = 0, cycles = 0;
    for (int part = 0; part < 2; part++) {
        mtplx_model *m = open_model(part);
        for (int i = 0; i < (SLOW_BUILD ? 8 : 36); i++) {
            const char *rule = rules[i % RULES];
            mtplx_gen_options o = {.max_tokens = NEW_TOKENS, .depth = i % 9};
            o.sampling = (mtplx_sampling){.temperature = 1.5, .seed = (uint64_t)i};
            o.sampling.top_p = i % 3 ? 1 : 0.9;
            o.sampling.top_k = i % 4 == 3 ? 20 : 0;
            o.policy = i % 5 ? MTPLX_DEPTH_FIXED : MTPLX_DEPTH_AUTO;
            o.context_copy = i % 2;
            o.grammar = compile(m, rule);
            size_t n = make_prompt(m, i, prompt);
            run(m, prompt, n, &o, &a);
            check_obeys(m, rule, &a);
            tokens += a.stats.generated_tokens;
            cycles += a.stats.cycles;
            mtplx_grammar_free(o.grammar);
        }
        mtplx_model_free(m);
    }
    print_message("sampled at 1.5 under grammars: %.2f tokens per verify\n",
                  (double)tokens / (double)cycles);
    assert_true(tokens > cycles);
}

/* ---- Batches ------------------------------------------------------------------------------ */

static void test_batch(void **state)
{
    (void)state;
    enum { GENS = 8 };
    static struct answer alone[GENS];
    mtplx_error err = {0};
    mtplx_model *m = open_model(0);
    mtplx_seq *seqs[GENS];
    mtplx_gen *gens[GENS];
    for (int i = 0; i < GENS; i++) {
        int32_t prompt[MAX_PROMPT];
        mtplx_gen_options o = {.max_tokens = NEW_TOKENS - i, .depth = i % 5};
        o.sampling = (mtplx_sampling){.temperature = i % 2 ? 1.2 : 0, .seed = (uint64_t)i};
        o.grammar = i % 4 < 3 ? compile(m, rules[i % RULES]) : NULL;
        size_t n = make_prompt(m, i, prompt);
        run(m, prompt, n, &o, &alone[i]);
        seqs[i] = mtplx_seq_new(m, NULL);
        gens[i] = mtplx_gen_new(seqs[i], prompt, n, &o, &err);
        assert_non_null(gens[i]);
        mtplx_grammar_free(o.grammar); /* the generation has what it needs */
    }
    for (bool running = true; running;) {
        assert_int_equal(mtplx_gen_step_many(gens, GENS, &err), MTPLX_OK);
        running = false;
        for (int i = 0; i < GENS; i++)
            running |= mtplx_gen_finish(gens[i]) == MTPLX_FINISH_NONE;
    }
    for (int i = 0; i < GENS; i++) {
        struct answer a;
        take(gens[i], seqs[i], &a);
        check_equal(&a, &alone[i]);
        mtplx_gen_free(gens[i]);
        mtplx_seq_free(seqs[i]);
    }
    mtplx_model_free(m);
}

/* ---- No choice ---------------------------------------------------------------------------- */

/* A sentence that is given word for word takes a few passes, not one for each token. */
static void test_forced_tokens(void **state)
{
    (void)state;
    static const char rule[] = "\\{\"configuration\": \\{\"identifier\": [0-9]+\\}\\}";
    int32_t prompt[MAX_PROMPT];
    mtplx_model *m = open_model(0);
    for (int sampled = 0; sampled < 2; sampled++) {
        struct answer plain, drafted;
        mtplx_gen_options o = {.max_tokens = NEW_TOKENS, .grammar = compile(m, rule)};
        size_t n = make_prompt(m, 0, prompt);
        o.sampling.temperature = sampled;
        run(m, prompt, n, &o, &plain);
        assert_int_equal(plain.stats.copy_tested, 0); /* depth 0 is plain */
        o.depth = 2;
        run(m, prompt, n, &o, &drafted);
        check_obeys(m, rule, &drafted);
        if (!sampled)
            check_equal(&plain, &drafted);
        assert_true(drafted.stats.copy_accepted >= 3);
        assert_true(drafted.stats.cycles < plain.stats.cycles || sampled);
        mtplx_grammar_free(o.grammar);
    }
    mtplx_model_free(m);
}

/* ---- Against the caller ------------------------------------------------------------------- */

/* A bias may ban every token that the grammar allows; the grammar stands. */
static void test_bias_yields(void **state)
{
    (void)state;
    static mtplx_logit_bias bans[MTPLX_MAX_LOGIT_BIAS];
    int32_t prompt[MAX_PROMPT];
    struct answer a;
    mtplx_model *m = open_model(0);
    mtplx_gen_options o = {.max_tokens = NEW_TOKENS, .logit_bias = bans};
    for (int32_t t = 0; t < MTPLX_MAX_LOGIT_BIAS; t++) /* single bytes and short words */
        bans[o.n_logit_bias++] = (mtplx_logit_bias){t, -100};
    o.grammar = compile(m, "q[0-9]+z");
    size_t n = make_prompt(m, 0, prompt);
    for (int i = 0; i < 6; i++) {
        o.depth = i;
        o.sampling.temperature = i % 2;
        run(m, prompt, n, &o, &a);
        check_obeys(m, "q[0-9]+z", &a);
    }
    mtplx_grammar_free(o.grammar);
    mtplx_model_free(m);
}

static void test_logprobs_are_the_models_own(void **state)
{
    (void)state;
    int32_t prompt[MAX_PROMPT];
    mtplx_model *m = open_model(0);
    size_t n = make_prompt(m, 2, prompt), k;
    const mtplx_token_logprob *top;
    float own;
    mtplx_gen_options o = {.max_tokens = 6, .depth = 3, .logprobs = 3};
    o.grammar = compile(m, rules[2]);
    mtplx_seq *s = mtplx_seq_new(m, NULL);
    mtplx_gen *g = mtplx_gen_new(s, prompt, n, &o, NULL);
    while (mtplx_gen_finish(g) == MTPLX_FINISH_NONE)
        assert_int_equal(mtplx_gen_step(g, NULL), MTPLX_OK);
    mtplx_gen_tokens(g, &k);
    double least = 0;
    for (size_t i = 0; i < k; i++) {
        assert_int_equal(mtplx_gen_logprobs(g, i, &own, &top), 2);
        assert_true(top[0].logprob >= top[1].logprob && top[0].logprob >= own);
        least = (double)own < least ? (double)own : least;
    }
    assert_true(least < -1); /* not what the model would have said */
    mtplx_gen_free(g);
    mtplx_seq_free(s);
    mtplx_grammar_free(o.grammar);
    mtplx_model_free(m);
}

/* A grammar whose masks cannot be made in time ends the answer; nothing is made up. */
static void test_gives_up(void **state)
{
    (void)state;
    char text[2048] = "root ::= [!-@] root \"~\" | \"~\"";
    size_t len = strlen(text);
    for (char c = 'a'; c <= 'z'; c++)
        len += (size_t)snprintf(text + len, sizeof text - len,
                                " | \"%c\" root \"^\" | \"%c\" root \"_\"", c, c);
    int32_t prompt[MAX_PROMPT];
    mtplx_error err = {0};
    mtplx_model *m = open_model(0);
    size_t n = make_prompt(m, 2, prompt);
    mtplx_gen_options o = {.max_tokens = NEW_TOKENS, .depth = 3};
    o.grammar = mtplx_grammar_new(m, MTPLX_GRAMMAR_GBNF, text, len, NULL, &err);
    assert_non_null(o.grammar);
    mtplx_seq *s = mtplx_seq_new(m, NULL);
    mtplx_gen *g = mtplx_gen_new(s, prompt, n, &o, NULL);
    while (mtplx_gen_finish(g) == MTPLX_FINISH_NONE)
        mtplx_gen_step(g, &err);
    assert_int_equal(mtplx_gen_finish(g), MTPLX_FINISH_ERROR);
    assert_non_null(strstr(err.message, "ambiguous"));
    mtplx_gen_free(g);
    mtplx_seq_free(s);
    mtplx_grammar_free(o.grammar);
    mtplx_model_free(m);
}

static void *compile_elsewhere(void *model)
{
    mtplx_grammar_free(compile(model, "[a-z]+"));
    return NULL;
}

/* A server compiles grammars while passes of the model follow one another without a gap. */
static void test_compiling_waits_for_no_pass(void **state)
{
    (void)state;
    mtplx_model *m = open_model(0);
    pthread_t other;
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 10;
    mtplx_model_lock(m);
    assert_int_equal(pthread_create(&other, NULL, compile_elsewhere, m), 0);
    int rc = pthread_timedjoin_np(other, NULL, &end);
    mtplx_model_unlock(m);
    assert_int_equal(rc, 0);
    mtplx_model_free(m);
}

static void test_arguments(void **state)
{
    (void)state;
    mtplx_error err = {0};
    mtplx_model *m = open_model(0), *other = open_model(0);
    mtplx_gen_options o = {.grammar = compile(other, "a")};
    mtplx_seq *s = mtplx_seq_new(m, NULL);
    int32_t token = 5;
    assert_null(mtplx_gen_new(s, &token, 1, &o, &err));
    assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);
    assert_null(mtplx_grammar_new(m, (mtplx_grammar_kind)9, "a", 1, NULL, &err));
    assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);
    assert_null(mtplx_grammar_new(m, MTPLX_GRAMMAR_SCHEMA, "{\"a\": ", 6, NULL, &err));
    assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "line 1"));
    assert_null(mtplx_grammar_new(m, MTPLX_GRAMMAR_GBNF, NULL, 0, NULL, &err));
    assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);
    mtplx_grammar_free(NULL);
    mtplx_grammar_free(o.grammar);
    mtplx_seq_free(s);
    mtplx_model_free(other);
    mtplx_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_ends_where_the_grammar_does),
        cmocka_unit_test(test_sampled),
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_forced_tokens),
        cmocka_unit_test(test_bias_yields),
        cmocka_unit_test(test_logprobs_are_the_models_own),
        cmocka_unit_test(test_gives_up),
        cmocka_unit_test(test_compiling_waits_for_no_pass),
        cmocka_unit_test(test_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
