/* Adaptive depth and context copy in the engine: greedy answers do not depend on them, whatever the
 * times are that the clock tells; a batch answers as its members would alone; copying works without
 * an MTP head; what was learned is kept, and hostile files do no harm.
 *
 * The model's clock is replaced by one that runs at random speeds, so that depths jump about as no
 * real machine makes them. */
#include "golden.h"

#include "base/file.h"
#include "runtime/model.h"

#include <unistd.h>

enum { NEW_TOKENS = 48, MAX_PROMPT = 400 };

static const mtplx_depth_policy policies[] = {
    MTPLX_DEPTH_AUTO, MTPLX_DEPTH_STREAK,       MTPLX_DEPTH_EXPECTED_VALUE,
    MTPLX_DEPTH_COST, MTPLX_DEPTH_POSITION_EMA, MTPLX_DEPTH_FIXED,
};

static uint32_t noise_state;

static uint32_t noise(void)
{
    noise_state = noise_state * 1664525u + 1013904223u;
    return noise_state >> 8;
}

/* Advances by up to a millisecond, and by up to 64 in one call of sixteen. */
static uint64_t random_clock(void)
{
    static uint64_t now = 1;
    return now += 1 + (noise() % 16 ? noise() % 1000000 : noise() % 64000000);
}

/* Code, prose, noise, a loop, or the same passage twice: `n` tokens from a place set by `index`. */
static void make_prompt(mtplx_model *m, int index, int32_t *out, size_t n)
{
    static const char *const files[] = {"src/runtime/generate.c", "tests/golden/ppl.txt"};
    size_t len, count, vocab = (size_t)mtplx_model_get_info(m)->vocab_size;
    mtplx_error err = {0};
    noise_state = 99u + (uint32_t)index;
    char *text = mx_file_read(src_path(files[index % 2]), 1 << 22, &len, &err);
    assert_non_null(text);
    int32_t *ids = mtplx_encode(m, text, len, false, &count, &err);
    assert_non_null(ids);
    size_t at = noise() % (count - n), period = 2 + noise() % 9;
    for (size_t i = 0; i < n; i++)
        switch (index % 5) {
        case 2: out[i] = (int32_t)(noise() % vocab); break;
        case 3: out[i] = i < period ? (int32_t)(noise() % vocab) : out[i - period]; break;
        case 4: out[i] = ids[at + i % (n / 2)]; break;
        default: out[i] = ids[at + i]; break;
        }
    mtplx_free(ids);
    free(text);
}

/* The sequence of a generation goes with it. */
static void finish(mtplx_gen *g, mtplx_seq *s)
{
    mtplx_gen_free(g);
    mtplx_seq_free(s);
}

struct answer {
    int32_t tokens[NEW_TOKENS];
    size_t n, length; /* length: of the sequence afterwards */
    mtplx_gen_stats stats;
};

static void run(mtplx_model *m, const int32_t *prompt, size_t n, mtplx_gen_options o,
                struct answer *a)
{
    mtplx_error err = {0};
    mtplx_seq *s = mtplx_seq_new(m, &err);
    mtplx_gen *g = mtplx_gen_new(s, prompt, n, &o, &err);
    if (!g)
        fail_msg("%s", err.message);
    while (mtplx_gen_finish(g) == MTPLX_FINISH_NONE)
        if (mtplx_gen_step(g, &err) != MTPLX_OK)
            fail_msg("%s", err.message);
    const int32_t *t = mtplx_gen_tokens(g, &a->n);
    memcpy(a->tokens, t, a->n * sizeof *t);
    a->stats = *mtplx_gen_get_stats(g);
    a->length = mtplx_seq_length(s);
    finish(g, s);
}

static void check_equal(const struct answer *a, const struct answer *b, const char *what, int i)
{
    if (a->n != b->n || memcmp(a->tokens, b->tokens, a->n * sizeof *a->tokens) != 0)
        fail_msg("prompt %d: %s changes the greedy answer", i, what);
    assert_int_equal(a->length, b->length);
}

/* ---- Greedy ------------------------------------------------------------------------------- */

static void add_stats(mtplx_gen_stats *sum, const mtplx_gen_stats *s)
{
    for (int d = 0; d <= MTPLX_MAX_DEPTH; d++)
        sum->depths[d] += s->depths[d];
    sum->copy_tested += s->copy_tested;
    sum->copy_accepted += s->copy_accepted;
    sum->probes += s->probes;
}

static void check_greedy(const mtplx_load_options *load, int prompts)
{
    mtplx_model *m = load_or_fail(src_path("models/nano"), load);
    mtplx_gen_stats sum = {0};
    m->clock = random_clock;
    for (int i = 0; i < prompts; i++) {
        int32_t prompt[MAX_PROMPT];
        size_t n = 4 + (size_t)(i * 37 % (MAX_PROMPT - 4));
        struct answer plain, other;
        mtplx_gen_options o = {.max_tokens = NEW_TOKENS, .ignore_stop = i % 2};
        if (i % 4 == 3)
            o.sampling = (mtplx_sampling){.repetition_penalty = 1.1, .presence_penalty = 0.5};
        make_prompt(m, i, prompt, n);
        run(m, prompt, n, o, &plain);
        o.depth = MTPLX_MAX_DEPTH - i % 3;
        for (int p = 0; p < 3; p++) { /* auto with and without copies, and another policy */
            o.policy = policies[p < 2 ? 0 : 1 + i % 5];
            o.context_copy = (i + p) % 2;
            run(m, prompt, n, o, &other);
            check_equal(&plain, &other, "a depth policy", i);
            add_stats(&sum, &other.stats);
        }
    }
    print_message("  depths");
    for (int d = 0; d <= MTPLX_MAX_DEPTH; d++)
        print_message(" %d: %llu", d, (unsigned long long)sum.depths[d]);
    print_message("; %llu of %llu copied tokens accepted, %llu probes\n",
                  (unsigned long long)sum.copy_accepted, (unsigned long long)sum.copy_tested,
                  (unsigned long long)sum.probes);
    for (int d = 0; d <= MTPLX_MAX_DEPTH && !load->no_mtp; d++)
        assert_true(SLOW_BUILD || sum.depths[d] > 0);
    assert_true(SLOW_BUILD || (sum.copy_accepted > 0 && sum.copy_accepted < sum.copy_tested));
    assert_true(load->no_mtp || sum.probes > 0);
    mtplx_model_free(m);
}

static void test_greedy(void **state)
{
    (void)state;
    check_greedy(&(mtplx_load_options){.threads = 1}, budget("MTPLX_EXACT_PROMPTS", 12, 5));
}

static void test_greedy_without_mtp(void **state)
{
    (void)state;
    check_greedy(&(mtplx_load_options){.threads = 1, .no_mtp = true}, SLOW_BUILD ? 2 : 5);
}

/* ---- Batches ------------------------------------------------------------------------------ */

static void test_batch_equals_alone(void **state)
{
    (void)state;
    enum { GENS = 10 };
    mtplx_error err = {0};
    mtplx_model *m = load_or_fail(src_path("models/nano"), &(mtplx_load_options){.threads = 1});
    struct answer alone[GENS];
    static int32_t prompts[GENS][MAX_PROMPT];
    mtplx_seq *seqs[GENS];
    mtplx_gen *gens[GENS];
    m->clock = random_clock;
    for (int i = 0; i < GENS; i++) {
        size_t n = 20 + (size_t)i * 11;
        mtplx_gen_options o = {.max_tokens = NEW_TOKENS - i, .ignore_stop = true};
        make_prompt(m, i, prompts[i], n);
        run(m, prompts[i], n, o, &alone[i]);
        o.depth = i % 9;
        o.policy = policies[i % 6];
        o.context_copy = i % 3 != 0;
        seqs[i] = mtplx_seq_new(m, &err);
        gens[i] = mtplx_gen_new(seqs[i], prompts[i], n, &o, &err);
        assert_non_null(gens[i]);
    }
    for (int round = 0, live = GENS; live > 0; round++) {
        size_t joined = (size_t)(round / 3 + 1) < GENS ? (size_t)(round / 3 + 1) : GENS;
        assert_int_equal(mtplx_gen_step_many(gens, joined, &err), MTPLX_OK);
        live = 0;
        for (int i = 0; i < GENS; i++)
            live += mtplx_gen_finish(gens[i]) == MTPLX_FINISH_NONE;
    }
    for (int i = 0; i < GENS; i++) {
        size_t n;
        const int32_t *t = mtplx_gen_tokens(gens[i], &n);
        assert_int_equal(n, alone[i].n);
        assert_memory_equal(t, alone[i].tokens, n * sizeof *t);
        assert_int_equal(mtplx_seq_length(seqs[i]), alone[i].length);
        finish(gens[i], seqs[i]);
    }
    mtplx_model_free(m);
}

/* A copied block leaves the MTP cache as a plain one does: what is drafted afterwards is the same,
 * bit for bit. */
static void test_mtp_state_after_copies(void **state)
{
    (void)state;
    mtplx_error err = {0};
    mtplx_model *m = load_or_fail(src_path("models/nano"), &(mtplx_load_options){.threads = 1});
    int vocab = mtplx_model_get_info(m)->vocab_size;
    float *first = malloc((size_t)vocab * sizeof *first);
    int32_t prompt[120];
    for (int i = 0; i < 120; i++)
        prompt[i] = 300 + i * 9 % 13; /* the model goes on with it */
    for (int pass = 0; pass < 3; pass++) {
        mtplx_gen_options o = {.max_tokens = 60, .ignore_stop = true, .context_copy = pass > 0};
        o.depth = pass == 2 ? 3 : 0;
        mtplx_seq *s = mtplx_seq_new(m, &err);
        mtplx_gen *g = mtplx_gen_new(s, prompt, 120, &o, &err);
        while (mtplx_gen_finish(g) == MTPLX_FINISH_NONE)
            assert_int_equal(mtplx_gen_step(g, &err), MTPLX_OK);
        size_t n;
        int32_t last = mtplx_gen_tokens(g, &n)[n - 1];
        assert_true(pass == 0 || mtplx_gen_get_stats(g)->copy_accepted > 0);
        mtplx_forward_result r;
        assert_int_equal(mtplx_draft(m, &s, &last, 1, &r, &err), MTPLX_OK);
        if (pass == 0)
            memcpy(first, r.logits, (size_t)vocab * sizeof *first);
        assert_memory_equal(first, r.logits, (size_t)vocab * sizeof *first);
        finish(g, s);
    }
    free(first);
    mtplx_model_free(m);
}

/* ---- Learned state ------------------------------------------------------------------------ */

static void test_learned_state(void **state)
{
    (void)state;
    char dir[300], path[600];
    int32_t prompt[60];
    struct answer a, b;
    const char *tmp = getenv("TMPDIR");
    mtplx_gen_options o = {
        .depth = 8, .policy = MTPLX_DEPTH_AUTO, .max_tokens = 40, .context_copy = true};
    snprintf(dir, sizeof dir, "%s/mtplx-learned-%ld", tmp ? tmp : "/tmp", (long)getpid());
    setenv("MTPLX_STATE_DIR", dir, 1);
    static const char *const hostile[] = {
        "{}",
        "{\"level\":1e300,\"verify\":[[1,2,3]]}",
        "{\"level\":15,\"verify\":[[50,-50,null,\"x\",[],{}]],\"first\":7,\"next\":[7]}",
        "{\"level\":15,\"verify\":[[11.9,-11.9,11.9,-11.9,11.9,-11.9,11.9,-11.9,11.9]]}",
        "{\"tested\":[200,200,200],\"accepted\":[0,0,0],\"copy_tested\":[9],\"copy_accepted\":[10]"
        "}",
        "{\"tested\":[1e308,-1],\"accepted\":\"all\",\"level\":0,\"spread\":-1}",
    };
    mtplx_model *m = load_or_fail(src_path("models/nano"), &(mtplx_load_options){.threads = 1});
    make_prompt(m, 0, prompt, 60);
    run(m, prompt, 60, o, &a);
    snprintf(path, sizeof path, "%s", mx_state_path(m->state));
    assert_false(mx_file_exists(path));
    mtplx_model_free(m);
    assert_true(mx_file_exists(path));
    unlink(path);
    m = load_or_fail(src_path("models/nano"), &(mtplx_load_options){.threads = 1});
    o.ignore_stop = true;
    run(m, prompt, 60, o, &b);
    mtplx_model_free(m);
    assert_false(mx_file_exists(path)); /* a benchmark leaves nothing behind */
    o.ignore_stop = false;
    m = load_or_fail(src_path("models/nano"), &(mtplx_load_options){.threads = 1});
    run(m, prompt, 60, o, &b);
    mtplx_model_free(m);
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        m = load_or_fail(src_path("models/nano"), &(mtplx_load_options){.threads = 1});
        assert_non_null(mx_state_get(m->state, "depth"));
        mx_state_put(m->state, "depth", json_loads(hostile[i], 0, NULL));
        mx_state_save(m->state);
        run(m, prompt, 60, o, &b);
        check_equal(&a, &b, "a hostile state", (int)i);
        mtplx_model_free(m);
    }
    unlink(path);
    rmdir(dir);
    setenv("MTPLX_STATE_DIR", "off", 1);
}

static void test_arguments(void **state)
{
    (void)state;
    mtplx_error err = {0};
    mtplx_model *m = load_or_fail(src_path("models/nano"), &(mtplx_load_options){.threads = 1});
    mtplx_seq *s = mtplx_seq_new(m, &err);
    const int32_t token = 5;
    mtplx_gen_options o = {.policy = (mtplx_depth_policy)99};
    assert_null(mtplx_gen_new(s, &token, 1, &o, &err));
    assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);
    mtplx_seq_free(s);
    mtplx_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_greedy_without_mtp),
        cmocka_unit_test(test_batch_equals_alone),
        cmocka_unit_test(test_mtp_state_after_copies),
        cmocka_unit_test(test_learned_state),
        cmocka_unit_test(test_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
