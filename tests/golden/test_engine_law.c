/* The sampled law of the whole engine: tokens emitted by mtplx_gen on the trained nano model follow
 * the target model's distribution, whatever the draft depth. (tests/unit/test_law.c does the same
 * for the acceptance scheme alone, with far more draws.)
 *
 * A prompt is prefilled once; every trial forks it, decodes three tokens with its own seed and is
 * counted in a cell of the joint law. The expected probabilities are computed from plain forward
 * passes over every reachable context, with a filter written anew here. Chi-square over cells with
 * an expectation of at least 5, others pooled. 400 trials a setting by default;
 * MTPLX_LAW_TRIALS=20000 for the long run. */
#include "golden.h"

#include "runtime/constraint.h"
#include "runtime/model.h"

#define TOP 4 /* tokens kept per position, so that 4 x 4 x 4 contexts can be enumerated */
#define CELLS (TOP * TOP * TOP)

struct kept {
    int32_t id[TOP];
    double p[TOP];
};

static int trials(void)
{
    return budget("MTPLX_LAW_TRIALS", 400, 60);
}

/* Upper tail of chi-square by Wilson and Hilferty's cube-root normal approximation: good to a few
 * percent at the far tail, which is all a pass/fail bound of 1e-7 needs. */
static double chi_square_tail(double x, int dof)
{
    double k = dof;
    if (dof < 1)
        return 1;
    double z = (cbrt(x / k) - (1 - 2 / (9 * k))) / sqrt(2 / (9 * k));
    return 0.5 * erfc(z / sqrt(2));
}

static void filter(const float *logits, int vocab, const mtplx_sampling *s, struct kept *out)
{
    double sum = 0, most = -1e30, total = 0, before = 0;
    static bool used[1 << 18];
    memset(used, 0, (size_t)vocab);
    for (int i = 0; i < vocab; i++)
        most = logits[i] > most ? logits[i] : most;
    for (int i = 0; i < vocab; i++)
        sum += exp((logits[i] - most) / s->temperature);
    for (int k = 0; k < TOP; k++) {
        int best = -1;
        for (int i = 0; i < vocab; i++)
            if (!used[i] && (best < 0 || logits[i] > logits[best]))
                best = i;
        used[best] = true;
        double p = exp((logits[best] - most) / s->temperature) / sum;
        out->id[k] = best;
        out->p[k] = before < s->top_p ? p : 0;
        before += p;
        total += out->p[k];
    }
    for (int k = 0; k < TOP; k++)
        out->p[k] /= total;
}

/* Answers obey this one; NULL: none. */
static mtplx_grammar *held;

/* Strikes out what the grammar forbids after tokens[1 .. n); false where it forbids one of those.
 */
static bool strike_out(mtplx_model *m, const int32_t *tokens, int n, float *logits, int vocab)
{
    struct mx_matcher *matcher = mx_grammar_start(held, m, NULL);
    bool ok = matcher;
    for (int i = 1; i < n && ok; i++)
        ok = mx_matcher_accept(matcher, tokens[i]);
    const uint64_t *mask = ok ? mx_matcher_mask(matcher) : NULL;
    for (int i = 0; i < vocab && mask; i++)
        if (!(mask[i / 64] >> (i % 64) & 1))
            logits[i] = -INFINITY;
    mx_matcher_free(matcher);
    return ok;
}

static void law_after(mtplx_seq *base, const int32_t *tokens, int n, const mtplx_sampling *s,
                      int vocab, mtplx_model *m, struct kept *out)
{
    mtplx_error err = {0};
    mtplx_forward_result r;
    mtplx_row rows[4];
    mtplx_seq *seq = mtplx_seq_fork(base, &err);
    for (int i = 0; i < n; i++)
        rows[i] = (mtplx_row){seq, tokens[i], i == n - 1, NULL};
    assert_int_equal(mtplx_forward(m, rows, (size_t)n, MTPLX_COMMIT, false, &r, &err), MTPLX_OK);
    float *logits = malloc((size_t)vocab * sizeof *logits);
    memcpy(logits, r.logits, (size_t)vocab * sizeof *logits);
    if (!held || strike_out(m, tokens, n, logits, vocab))
        filter(logits, vocab, s, out);
    else
        *out = (struct kept){{0}, {0}};
    free(logits);
    mtplx_seq_free(seq);
}

static void joint_law(mtplx_seq *base, int32_t last, const mtplx_sampling *s, int vocab,
                      mtplx_model *m, double cells[CELLS], struct kept *first,
                      struct kept second[TOP], struct kept third[TOP][TOP])
{
    int32_t t[3] = {last, 0, 0};
    law_after(base, t, 1, s, vocab, m, first);
    for (int a = 0; a < TOP; a++) {
        t[1] = first->id[a];
        law_after(base, t, 2, s, vocab, m, &second[a]);
        for (int b = 0; b < TOP; b++) {
            t[2] = second[a].id[b];
            law_after(base, t, 3, s, vocab, m, &third[a][b]);
            for (int c = 0; c < TOP; c++)
                cells[(a * TOP + b) * TOP + c] = first->p[a] * second[a].p[b] * third[a][b].p[c];
        }
    }
}

static int index_of(const struct kept *k, int32_t id)
{
    for (int i = 0; i < TOP; i++)
        if (k->id[i] == id && k->p[i] > 0)
            return i;
    fail_msg("token %d was emitted but has probability 0", id);
    return -1;
}

static double chi_square(const double *want, const int *have, int n, int *dof)
{
    double x = 0, pooled_want = 0, pooled_have = 0;
    *dof = -1;
    for (int i = 0; i < CELLS; i++) {
        double e = want[i] * n;
        if (e < 5) {
            pooled_want += e;
            pooled_have += have[i];
            continue;
        }
        x += (have[i] - e) * (have[i] - e) / e;
        ++*dof;
    }
    if (pooled_want >= 5) {
        x += (pooled_have - pooled_want) * (pooled_have - pooled_want) / pooled_want;
        ++*dof;
    }
    return x;
}

/* A clock that runs at random speeds: adaptive depths then jump about. */
static uint64_t random_clock(void)
{
    static uint64_t now = 1;
    static uint32_t state = 9;
    state = state * 1664525u + 1013904223u;
    return now += 1 + (state >> 12);
}

static void check_setting(mtplx_model *m, mtplx_seq *base, int32_t last, mtplx_sampling s,
                          int depth, bool adaptive)
{
    int vocab = mtplx_model_get_info(m)->vocab_size, n = trials(), dof;
    double want[CELLS];
    int have[CELLS] = {0};
    struct kept first, second[TOP], third[TOP][TOP];
    uint64_t drafted = 0, accepted = 0, copied = 0;
    joint_law(base, last, &s, vocab, m, want, &first, second, third);
    for (int i = 0; i < n; i++) {
        mtplx_error err = {0};
        size_t count;
        s.seed = (uint64_t)i * 0x9e3779b97f4a7c15u + (uint64_t)depth;
        mtplx_gen_options o = {
            .sampling = s, .depth = depth, .max_tokens = 3 + depth, .ignore_stop = true};
        o.policy = adaptive ? MTPLX_DEPTH_AUTO : MTPLX_DEPTH_FIXED;
        o.context_copy = adaptive;
        o.grammar = held;
        mtplx_seq *seq = mtplx_seq_fork(base, &err);
        mtplx_gen *g = mtplx_gen_new(seq, &last, 1, &o, &err);
        do
            assert_int_equal(mtplx_gen_step(g, &err), MTPLX_OK);
        while (mtplx_gen_get_stats(g)->generated_tokens < 3);
        const int32_t *t = mtplx_gen_tokens(g, &count);
        int a = index_of(&first, t[0]), b = index_of(&second[a], t[1]);
        have[(a * TOP + b) * TOP + index_of(&third[a][b], t[2])]++;
        drafted += mtplx_gen_get_stats(g)->drafted[0];
        accepted += mtplx_gen_get_stats(g)->accepted[0];
        copied += mtplx_gen_get_stats(g)->copy_tested;
        mtplx_gen_free(g);
        mtplx_seq_free(seq);
    }
    double x = chi_square(want, have, n, &dof), tail = chi_square_tail(x, dof);
    print_message("T %.1f top-p %.2f depth %d: chi-square %.1f over %d, p %.3g, accepted %.0f %%\n",
                  s.temperature, s.top_p, depth, x, dof, tail,
                  drafted ? 100.0 * (double)accepted / (double)drafted : 0.0);
    assert_true(tail > 1e-7);
    if (adaptive)
        print_message("  of these with adaptive depth, %llu copied tokens tested\n",
                      (unsigned long long)copied);
    assert_true(!adaptive || (copied > 0 && drafted > 0 && drafted < (uint64_t)n));
}

/* An undecided context: a few unrelated tokens, after which the model spreads its bets and drafts
 * are accepted some of the time. */
static size_t vague_prompt(int32_t *out)
{
    uint32_t seed = 5;
    size_t n = 12;
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        out[i] = (int32_t)((seed >> 8) % 2000u) + 300;
    }
    return n;
}

static void check_model(int draft_vocab)
{
    mtplx_load_options o = {.threads = 1, .draft_vocab = draft_vocab};
    mtplx_error err = {0};
    int32_t ids[256];
    mtplx_row rows[256];
    mtplx_model *m = load_or_fail(src_path("models/nano"), &o);
    size_t n = vague_prompt(ids);
    mtplx_seq *base = mtplx_seq_new(m, &err);
    for (size_t i = 0; i + 1 < n; i++)
        rows[i] = (mtplx_row){base, ids[i], false, NULL};
    assert_int_equal(mtplx_forward(m, rows, n - 1, MTPLX_COMMIT, false, NULL, &err), MTPLX_OK);
    const mtplx_sampling cold = {
        .temperature = 0.7, .top_p = 0.9, .top_k = TOP, .repetition_penalty = 1};
    const mtplx_sampling hot = {
        .temperature = 1.6, .top_p = 1, .top_k = TOP, .repetition_penalty = 1};
    check_setting(m, base, ids[n - 1], cold, 0, false);
    check_setting(m, base, ids[n - 1], cold, 2, false);
    check_setting(m, base, ids[n - 1], hot, 1, false);
    check_setting(m, base, ids[n - 1], hot, 3, false);
    mtplx_seq_free(base);
    mtplx_model_free(m);
}

/* Prefills all but the last token. */
static mtplx_seq *prefill(mtplx_model *m, const int32_t *ids, size_t n)
{
    mtplx_error err = {0};
    mtplx_row rows[64];
    mtplx_seq *base = mtplx_seq_new(m, &err);
    for (size_t i = 0; i + 1 < n; i++)
        rows[i] = (mtplx_row){base, ids[i], false, NULL};
    assert_int_equal(mtplx_forward(m, rows, n - 1, MTPLX_COMMIT, false, NULL, &err), MTPLX_OK);
    return base;
}

/* The same with adaptive depth and copies. The prompt ends with two tokens that stood in it before,
 * followed by what the model is likely to say next, so that the first token often makes a match. */
static void test_joint_law_adaptive(void **state)
{
    (void)state;
    int32_t vague[16], ids[64];
    struct kept likely;
    mtplx_model *m = load_or_fail(src_path("models/nano"), &(mtplx_load_options){.threads = 1});
    const mtplx_sampling hot = {
        .temperature = 1.6, .top_p = 1, .top_k = TOP, .repetition_penalty = 1};
    size_t n = 0, some = vague_prompt(vague);
    mtplx_seq *base = prefill(m, vague, some);
    law_after(base, &vague[some - 1], 1, &hot, mtplx_model_get_info(m)->vocab_size, m, &likely);
    mtplx_seq_free(base);
    for (int k = 0; k < TOP; k++) {
        ids[n++] = vague[some - 2];
        ids[n++] = vague[some - 1];
        ids[n++] = likely.id[k];
        ids[n++] = likely.id[(k + 1) % TOP];
    }
    memcpy(ids + n, vague, some * sizeof *vague);
    n += some;
    base = prefill(m, ids, n);
    m->clock = random_clock;
    check_setting(m, base, ids[n - 1], hot, 4, true);
    mtplx_seq_free(base);
    mtplx_model_free(m);
}

static void test_joint_law(void **state)
{
    (void)state;
    check_model(0);
}

/* The smallest draft vocabulary there is lacks likely tokens, so that they come from residuals. */
static void test_joint_law_of_few_drafts(void **state)
{
    (void)state;
    check_model(1);
}

/* Under a grammar that lets free choice, single choices and narrow ones follow one another; with
 * the smallest draft vocabulary too, which often has none of the allowed tokens. */
static void test_joint_law_under_a_grammar(void **state)
{
    (void)state;
    static const char *const rules[] = {"[a-zA-Z ]*\\.", "[0-9]+, [a-zA-Z ]*",
                                        "qualification: [a-zA-Z ]*"};
    const mtplx_sampling hot = {
        .temperature = 1.6, .top_p = 1, .top_k = TOP, .repetition_penalty = 1};
    for (int i = 0; i < 6; i++) {
        mtplx_load_options o = {.threads = 1, .draft_vocab = i % 2};
        int32_t ids[16];
        mtplx_error err = {0};
        mtplx_model *m = load_or_fail(src_path("models/nano"), &o);
        size_t n = vague_prompt(ids);
        mtplx_seq *base = prefill(m, ids, n);
        const char *rule = rules[i / 2];
        held = mtplx_grammar_new(m, MTPLX_GRAMMAR_REGEX, rule, strlen(rule), NULL, &err);
        if (!held)
            fail_msg("%s", err.message);
        check_setting(m, base, ids[n - 1], hot, i, false);
        mtplx_grammar_free(held);
        held = NULL;
        mtplx_seq_free(base);
        mtplx_model_free(m);
    }
}

/* ---- No filters --------------------------------------------------------------------------- */

enum { WIDE_TOP = 4, WIDE_VOCAB = 8192 };

/* Probabilities of every token after base and `n` more, at temperature 1. */
static void softmax_after(mtplx_model *m, mtplx_seq *base, const int32_t *tokens, int n, double *p)
{
    mtplx_error err = {0};
    mtplx_forward_result r;
    mtplx_row rows[2];
    mtplx_seq *seq = mtplx_seq_fork(base, &err);
    double sum = 0;
    for (int i = 0; i < n; i++)
        rows[i] = (mtplx_row){seq, tokens[i], i == n - 1, NULL};
    assert_int_equal(mtplx_forward(m, rows, (size_t)n, MTPLX_COMMIT, false, &r, &err), MTPLX_OK);
    for (int i = 0; i < WIDE_VOCAB; i++)
        sum += p[i] = exp((double)r.logits[i] - 20);
    for (int i = 0; i < WIDE_VOCAB; i++)
        p[i] /= sum;
    mtplx_seq_free(seq);
}

static void top_of(const double *p, int32_t *ids)
{
    for (int k = 0; k < WIDE_TOP; k++) {
        ids[k] = -1;
        for (int32_t i = 0; i < WIDE_VOCAB; i++) {
            bool used = false;
            for (int j = 0; j < k; j++)
                used |= ids[j] == i;
            if (!used && (ids[k] < 0 || p[i] > p[ids[k]]))
                ids[k] = i;
        }
    }
}

/* The first two tokens of unfiltered answers: WIDE_TOP x WIDE_TOP likely pairs, and everything else
 * in the last cell. The second token is drafted. */
static void check_wide(mtplx_model *m, mtplx_seq *base, int32_t last)
{
    static double first[WIDE_VOCAB], second[WIDE_VOCAB];
    int32_t a[WIDE_TOP], b[WIDE_TOP][WIDE_TOP];
    double want[CELLS] = {0}, rest = 1;
    int have[CELLS] = {0}, n = 3 * trials(), other = WIDE_TOP * WIDE_TOP, dof;
    uint64_t corrections = 0;
    softmax_after(m, base, &last, 1, first);
    top_of(first, a);
    for (int i = 0; i < WIDE_TOP; i++) {
        softmax_after(m, base, (int32_t[]){last, a[i]}, 2, second);
        top_of(second, b[i]);
        for (int j = 0; j < WIDE_TOP; j++)
            rest -= want[i * WIDE_TOP + j] = first[a[i]] * second[b[i][j]];
    }
    want[other] = rest;
    for (int t = 0; t < n; t++) {
        mtplx_error err = {0};
        size_t count;
        mtplx_gen_options o = {.depth = 1, .max_tokens = 3, .ignore_stop = true};
        o.sampling = (mtplx_sampling){.temperature = 1,
                                      .top_p = 1,
                                      .repetition_penalty = 1,
                                      .seed = (uint64_t)t * 0x9e3779b97f4a7c15u + 99};
        mtplx_seq *seq = mtplx_seq_fork(base, &err);
        mtplx_gen *g = mtplx_gen_new(seq, &last, 1, &o, &err);
        do
            assert_int_equal(mtplx_gen_step(g, &err), MTPLX_OK);
        while (mtplx_gen_get_stats(g)->generated_tokens < 2);
        const int32_t *made = mtplx_gen_tokens(g, &count);
        int cell = other;
        for (int i = 0; i < other; i++)
            if (made[0] == a[i / WIDE_TOP] && made[1] == b[i / WIDE_TOP][i % WIDE_TOP])
                cell = i;
        have[cell]++;
        corrections += mtplx_gen_get_stats(g)->corrections;
        mtplx_gen_free(g);
        mtplx_seq_free(seq);
    }
    double x = chi_square(want, have, n, &dof), tail = chi_square_tail(x, dof);
    print_message("unfiltered: chi-square %.1f over %d, p %.3g, %.0f %% of drafts corrected\n", x,
                  dof, tail, 100.0 * (double)corrections / n);
    assert_true(tail > 1e-7 && corrections > 0);
}

static void test_unfiltered_law(void **state)
{
    (void)state;
    for (int part = 0; part < 2; part++) {
        mtplx_load_options o = {.threads = 1, .draft_vocab = part ? 1000 : 0};
        mtplx_error err = {0};
        int32_t ids[16];
        mtplx_row rows[16];
        mtplx_model *m = load_or_fail(src_path("models/nano"), &o);
        size_t n = vague_prompt(ids);
        mtplx_seq *base = mtplx_seq_new(m, &err);
        for (size_t i = 0; i + 1 < n; i++)
            rows[i] = (mtplx_row){base, ids[i], false, NULL};
        assert_int_equal(mtplx_forward(m, rows, n - 1, MTPLX_COMMIT, false, NULL, &err), MTPLX_OK);
        check_wide(m, base, ids[n - 1]);
        mtplx_seq_free(base);
        mtplx_model_free(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joint_law), cmocka_unit_test(test_joint_law_of_few_drafts),
        cmocka_unit_test(test_unfiltered_law), cmocka_unit_test(test_joint_law_adaptive),
        cmocka_unit_test(test_joint_law_under_a_grammar)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
