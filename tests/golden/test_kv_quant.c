/* Quantised KV caches on the shipped model: how much accuracy they cost, and that everything which
 * is exact with the plain cache is exact within each format (with sanitizers on a small fixture):
 * MTP against plain decoding, batches, how a prompt is cut, threads, copies of a sequence. */
#include "golden.h"

#include "base/file.h"

enum { FORMATS = 4, REF_TOKENS = 48, ANSWER = 40 };

static const struct format {
    mtplx_kv_quant quant;
    const char *name;
    uint64_t token_bytes;   /* 3 layers (MTP head included), K and V, 2 heads of 128 values */
    double nll, divergence; /* bounds against the plain cache */
} formats[FORMATS] = {
    {MTPLX_KV_OFF, NULL, 0, 0, 0},
    {MTPLX_KV_Q8, "q8", 12 * 4 * 34, 5e-4, 1e-4},
    {MTPLX_KV_Q6, "q6", 12 * 4 * 28, 1e-3, 5e-4},
    {MTPLX_KV_Q4, "q4", 12 * 4 * 20, 1e-2, 6e-3},
};

static mtplx_model *models[FORMATS];
static int32_t *text;
static size_t text_len;

static const char *test_model(void)
{
    return src_path(SLOW_BUILD ? "tests/golden/qwen3_5_text" : "models/nano");
}

/* The text as tokens; as bytes where the model has no tokenizer. */
static int32_t *tokens_of(const char *s, size_t len, size_t *n)
{
    if (!SLOW_BUILD)
        return mtplx_encode(models[0], s, len, false, n, NULL);
    int32_t *out = malloc(len * sizeof *out);
    for (*n = 0; out && *n < len; (*n)++)
        out[*n] = (unsigned char)s[*n];
    return out;
}

static int load_all(void **state)
{
    size_t len;
    (void)state;
    for (int f = 0; f < FORMATS; f++) {
        mtplx_load_options o = {.kv_quant = formats[f].quant, .profile = MTPLX_PROFILE_EXACT};
        models[f] = load_or_fail(test_model(), &o);
    }
    char *file = mx_file_read(src_path("tests/golden/ppl.txt"), 1 << 20, &len, NULL);
    text = file ? tokens_of(file, len, &text_len) : NULL;
    free(file);
    return text ? 0 : -1;
}

static int free_all(void **state)
{
    (void)state;
    for (int f = 0; f < FORMATS; f++)
        mtplx_model_free(models[f]);
    mtplx_free(text);
    return 0;
}

/* Forwards n tokens of the text; the logits of all rows. */
static const float *forward(mtplx_model *m, mtplx_seq *s, size_t at, size_t n)
{
    mtplx_row rows[128];
    mtplx_forward_result r;
    assert_true(n <= 128);
    for (size_t i = 0; i < n; i++)
        rows[i] = (mtplx_row){s, text[at + i], true, NULL};
    assert_int_equal(mtplx_forward(m, rows, n, MTPLX_COMMIT, false, &r, NULL), MTPLX_OK);
    return r.logits;
}

/* ---- Settings ----------------------------------------------------------------------------- */

static void test_info(void **state)
{
    (void)state;
    mtplx_model *m = load_or_fail(src_path("models/nano"), NULL);
    const mtplx_model_info *plain = mtplx_model_get_info(m);
    bool half = strcmp(plain->kv_format, "f16") == 0;
    assert_true(half || strcmp(plain->kv_format, "f32") == 0);
    assert_int_equal(plain->kv_token_bytes, 12 * 128 * (half ? 2 : 4));
    assert_int_equal(plain->recurrent_bytes, 1646592);
    mtplx_model_free(m);
    for (int f = 1; f < FORMATS; f++) {
        m = load_or_fail(src_path("models/nano"),
                         &(mtplx_load_options){.kv_quant = formats[f].quant});
        const mtplx_model_info *i = mtplx_model_get_info(m);
        assert_string_equal(i->kv_format, formats[f].name);
        assert_int_equal(i->kv_token_bytes, formats[f].token_bytes);
        assert_int_equal(i->recurrent_bytes, 1646592);
        mtplx_model_free(m);
    }
}

static void test_environment(void **state)
{
    (void)state;
    mtplx_error err = {0};
    mtplx_load_options o = {.kv_quant = MTPLX_KV_AUTO};
    setenv("MTPLX_PAGED_KV_QUANT", "6bit", 1);
    mtplx_model *m = load_or_fail(test_model(), &o);
    assert_string_equal(mtplx_model_get_info(m)->kv_format, "q6");
    mtplx_model_free(m);
    o.kv_quant = MTPLX_KV_Q4; /* an option goes before it */
    m = load_or_fail(test_model(), &o);
    assert_string_equal(mtplx_model_get_info(m)->kv_format, "q4");
    mtplx_model_free(m);
    setenv("MTPLX_PAGED_KV_QUANT", "q5", 1);
    o.kv_quant = MTPLX_KV_AUTO;
    assert_null(mtplx_model_load(test_model(), &o, &err));
    assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "MTPLX_PAGED_KV_QUANT is \"q5\"; it must be off, q8"));
    unsetenv("MTPLX_PAGED_KV_QUANT");
    o.kv_quant = (mtplx_kv_quant)9;
    assert_null(mtplx_model_load(test_model(), &o, &err));
    assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "kv_quant 9"));
}

/* ---- Accuracy ----------------------------------------------------------------------------- */

/* Probabilities of logits (p may be NULL); returns the log of their scale. */
static double softmax(const float *x, int n, double *p)
{
    double top = (double)x[0], sum = 0;
    for (int i = 1; i < n; i++)
        top = (double)x[i] > top ? (double)x[i] : top;
    for (int i = 0; i < n; i++) {
        double e = exp((double)x[i] - top);
        sum += e;
        if (p)
            p[i] = e;
    }
    for (int i = 0; p && i < n; i++)
        p[i] /= sum;
    return top + log(sum);
}

/* Adds what one row of logits of each format says about the token that came. */
static void measure(const float *const logits[FORMATS], int n, int32_t next, double *p, double *nll,
                    double *kl)
{
    double z = softmax(logits[0], n, p);
    nll[0] += z - (double)logits[0][next];
    for (int f = 1; f < FORMATS; f++) {
        double zf = softmax(logits[f], n, NULL);
        nll[f] += zf - (double)logits[f][next];
        for (int i = 0; i < n; i++)
            kl[f] += p[i] * ((double)logits[0][i] - z - (double)logits[f][i] + zf);
    }
}

static void test_accuracy(void **state)
{
    (void)state;
    int vocab = mtplx_model_get_info(models[0])->vocab_size;
    size_t most = (size_t)budget("MTPLX_KV_TOKENS", 1280, 256), n = 0;
    double nll[FORMATS] = {0}, kl[FORMATS] = {0};
    mtplx_seq *seqs[FORMATS];
    for (int f = 0; f < FORMATS; f++)
        assert_non_null(seqs[f] = mtplx_seq_new(models[f], NULL));
    double *p = malloc((size_t)vocab * sizeof *p);
    assert_non_null(p);
    for (; n + 64 < text_len && n < most; n += 64) {
        const float *logits[FORMATS];
        for (int f = 0; f < FORMATS; f++)
            logits[f] = forward(models[f], seqs[f], n, 64);
        for (size_t i = 0; i < 64; i++) {
            measure(logits, vocab, text[n + i + 1], p, nll, kl);
            for (int f = 0; f < FORMATS; f++)
                logits[f] += vocab;
        }
    }
    free(p);
    for (int f = 0; f < FORMATS; f++) {
        double change = (nll[f] - nll[0]) / (double)n, k = kl[f] / (double)n;
        print_message("%s: NLL %.6f (%+.6f), KL %.2e\n", mtplx_model_get_info(models[f])->kv_format,
                      nll[f] / (double)n, change, k);
        if (f > 0 && n >= 1200) /* bounds of means hold for many tokens */
            assert_true(fabs(change) <= formats[f].nll && k <= formats[f].divergence);
        assert_true(f == 0 || (k > 0 && k > kl[f - 1] / (double)n)); /* a format of its own */
        mtplx_seq_free(seqs[f]);
    }
}

/* The oracle and the fast kernels store the same kind of entries. */
static void test_reference_device(void **state)
{
    (void)state;
    int vocab = mtplx_model_get_info(models[0])->vocab_size;
    for (int f = 1; f < FORMATS; f++) {
        mtplx_load_options o = {.kv_quant = formats[f].quant, .device = "ref"};
        mtplx_model *ref = load_or_fail(test_model(), &o);
        mtplx_seq *a = mtplx_seq_new(models[f], NULL), *b = mtplx_seq_new(ref, NULL);
        const float *x = forward(models[f], a, 0, REF_TOKENS), *y = forward(ref, b, 0, REF_TOKENS);
        double error = rel_error(x, y, REF_TOKENS * (size_t)vocab);
        print_message("%s: logits of cpu against ref %.1e\n", formats[f].name, error);
        assert_string_equal(mtplx_model_get_info(ref)->kv_format, formats[f].name);
        assert_true(error < (f == 3 ? 0.05 : 0.01)); /* a rounding may fall to the other side */
        mtplx_seq_free(a);
        mtplx_seq_free(b);
        mtplx_model_free(ref);
    }
}

/* ---- Exactness within a format ------------------------------------------------------------ */

static size_t generate(mtplx_model *m, const int32_t *prompt, size_t n, int depth, int32_t *out)
{
    size_t got;
    mtplx_gen_options o = {.depth = depth, .max_tokens = ANSWER, .ignore_stop = true};
    mtplx_seq *s = mtplx_seq_new(m, NULL);
    mtplx_gen *g = mtplx_gen_new(s, prompt, n, &o, NULL);
    assert_non_null(g);
    while (mtplx_gen_finish(g) == MTPLX_FINISH_NONE)
        assert_int_equal(mtplx_gen_step(g, NULL), MTPLX_OK);
    const int32_t *tokens = mtplx_gen_tokens(g, &got);
    assert_int_equal(got, ANSWER);
    memcpy(out, tokens, got * sizeof *out);
    mtplx_gen_free(g);
    mtplx_seq_free(s);
    return got;
}

static void test_greedy_with_drafts(void **state)
{
    (void)state;
    for (int f = 1; f < FORMATS; f++) {
        for (size_t start = 0; start < 300; start += 150) {
            int32_t plain[ANSWER], drafted[ANSWER];
            generate(models[f], text + start, 90 + start / 10, 0, plain);
            for (int depth = 1; depth <= 4; depth += 3) {
                generate(models[f], text + start, 90 + start / 10, depth, drafted);
                assert_memory_equal(plain, drafted, sizeof plain);
            }
        }
    }
}

static void test_cuts(void **state)
{
    (void)state;
    size_t n = 140, width = (size_t)mtplx_model_get_info(models[0])->vocab_size;
    static const size_t cuts[] = {1, 7, 64, 65, 100};
    for (int f = 1; f < FORMATS; f++) {
        mtplx_seq *s = mtplx_seq_new(models[f], NULL);
        float *whole = malloc(n * width * sizeof *whole);
        assert_non_null(whole);
        for (size_t at = 0, k; at < n; at += k) {
            k = n - at < 128 ? n - at : 128;
            memcpy(whole + at * width, forward(models[f], s, at, k), k * width * sizeof *whole);
        }
        for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
            mtplx_seq_reset(s);
            for (size_t at = 0, k; at < n; at += k) {
                k = n - at < cuts[c] ? n - at : cuts[c];
                assert_memory_equal(forward(models[f], s, at, k), whole + at * width,
                                    k * width * sizeof *whole);
            }
        }
        mtplx_seq_free(s);
        free(whole);
    }
}

/* One row of three sequences of different lengths in one pass, against each alone. */
static void test_batch(void **state)
{
    (void)state;
    enum { SEQS = 3 };
    size_t width = (size_t)mtplx_model_get_info(models[0])->vocab_size;
    for (int f = 1; f < FORMATS; f++) {
        mtplx_seq *seqs[SEQS], *alone[SEQS];
        mtplx_row rows[SEQS];
        mtplx_forward_result r;
        for (int i = 0; i < SEQS; i++) {
            seqs[i] = mtplx_seq_new(models[f], NULL);
            forward(models[f], seqs[i], (size_t)i * 50, 20 + 45 * (size_t)i);
            alone[i] = mtplx_seq_fork(seqs[i], NULL);
            assert_non_null(alone[i]);
            rows[i] = (mtplx_row){seqs[i], text[i], true, NULL};
        }
        assert_int_equal(mtplx_forward(models[f], rows, SEQS, MTPLX_COMMIT, false, &r, NULL),
                         MTPLX_OK);
        float *together = malloc(SEQS * width * sizeof *together);
        assert_non_null(together);
        memcpy(together, r.logits, SEQS * width * sizeof *together);
        for (int i = 0; i < SEQS; i++) {
            assert_memory_equal(forward(models[f], alone[i], (size_t)i, 1),
                                together + (size_t)i * width, width * sizeof *together);
            mtplx_seq_free(alone[i]);
            mtplx_seq_free(seqs[i]);
        }
        free(together);
    }
}

static void test_threads(void **state)
{
    (void)state;
    size_t width = (size_t)mtplx_model_get_info(models[0])->vocab_size;
    for (int f = 1; f < FORMATS; f++) {
        mtplx_load_options o = {.kv_quant = formats[f].quant,
                                .profile = MTPLX_PROFILE_EXACT,
                                .threads = mtplx_model_get_info(models[f])->threads + 1};
        mtplx_model *other = load_or_fail(test_model(), &o);
        mtplx_seq *a = mtplx_seq_new(models[f], NULL), *b = mtplx_seq_new(other, NULL);
        for (size_t at = 0; at < 256; at += 128) {
            const float *x = forward(models[f], a, at, 128), *y = forward(other, b, at, 128);
            assert_memory_equal(x, y, 128 * width * sizeof *x);
        }
        mtplx_seq_free(a);
        mtplx_seq_free(b);
        mtplx_model_free(other);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_accuracy),
        cmocka_unit_test(test_reference_device),
        cmocka_unit_test(test_greedy_with_drafts),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_threads),
    };
    unsetenv("MTPLX_PAGED_KV_QUANT");
    return cmocka_run_group_tests_name("kv quant", tests, load_all, free_all);
}
