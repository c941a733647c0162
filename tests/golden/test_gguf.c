/* GGUF models against the checkpoints that they are made from: the golden fixtures and the nano
 * model, converted in the test (tests/gguf_convert.h), trunk and MTP head.
 *
 * Stored as F32 nothing is lost, but value heads stand in another order, so sums of the output
 * projection of the recurrent layers run in another order: equal to rounding, not to the bit. */
#include "golden.h"

#include "gguf_convert.h"
#include "runtime/model.h"
#include "tools/inspect.h"

#include <unistd.h>

#define NANO "models/nano"

static char tmp[64];
static char file[96];

static int setup(void **state)
{
    (void)state;
    snprintf(tmp, sizeof tmp, "/tmp/mtplx-gguf-XXXXXX");
    if (!mkdtemp(tmp))
        return -1;
    snprintf(file, sizeof file, "%s/model.gguf", tmp);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(file);
    return rmdir(tmp);
}

static void convert(const char *source, struct conversion how)
{
    struct converter c;
    gc_begin(&c, src_path(source), &how);
    if (!how.no_text)
        gc_tokenizer(&c.w, src_path(source), "qwen2");
    gw_write(&c.w, file);
    gc_end(&c);
}

#define FIXTURE(t) ((struct conversion){.type = t, .no_text = true})

/* ---- Logits ------------------------------------------------------------------------------- */

enum { PREFIX = 24 };

/* Trunk logits of every row and the logits of three chained drafts behind them; malloc'ed. */
static float *all_logits(mtplx_model *m)
{
    mtplx_row rows[PREFIX];
    mtplx_forward_result r;
    mtplx_error err = {0};
    size_t vocab = (size_t)m->geometry.vocab;
    float *out = malloc((PREFIX + 3) * vocab * sizeof *out);
    mtplx_seq *s = mtplx_seq_new(m, &err);
    for (int i = 0; i < PREFIX; i++)
        rows[i] = (mtplx_row){s, (i * 37 + 5) % 300, true, NULL};
    if (mtplx_forward(m, rows, PREFIX, MTPLX_COMMIT, false, &r, &err) != MTPLX_OK)
        fail_msg("%s", err.message);
    memcpy(out, r.logits, PREFIX * vocab * sizeof *out);
    for (int i = 0; i < 3; i++) {
        static const int32_t tokens[] = {44, 7, 190};
        if (mtplx_draft(m, &s, &tokens[i], 1, &r, &err) != MTPLX_OK)
            fail_msg("%s", err.message);
        memcpy(out + (size_t)(PREFIX + i) * vocab, r.logits, vocab * sizeof *out);
    }
    mtplx_seq_free(s);
    return out;
}

static void compare_models(const char *source, const char *device, double tolerance)
{
    mtplx_load_options o = {.device = device, .threads = 1, .profile = MTPLX_PROFILE_EXACT};
    mtplx_model *a = load_or_fail(src_path(source), &o), *b = load_or_fail(file, &o);
    assert_true(a->geometry.has_mtp && b->geometry.has_mtp);
    assert_int_equal(a->geometry.vocab, b->geometry.vocab);
    assert_int_equal(a->geometry.context, b->geometry.context);
    assert_int_equal(a->geometry.kv.layers, b->geometry.kv.layers);
    size_t vocab = (size_t)a->geometry.vocab;
    float *want = all_logits(a), *have = all_logits(b);
    double trunk = rel_error(have, want, PREFIX * vocab);
    double head = rel_error(have + PREFIX * vocab, want + PREFIX * vocab, 3 * vocab);
    print_message("%-32s %-4s trunk %.2e, MTP %.2e\n", source, device, trunk, head);
    assert_true(trunk <= tolerance && head <= tolerance);
    free(want);
    free(have);
    mtplx_model_free(a);
    mtplx_model_free(b);
}

static void same_logits_as_f32(void **state)
{
    (void)state;
    static const char *const sources[] = {"tests/golden/qwen3_5_text", "tests/golden/qwen3_5_vl",
                                          "tests/golden/qwen3_5_vl_tied"};
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        convert(sources[i], FIXTURE(MX_GGUF_F32));
        compare_models(sources[i], "ref", 1e-5);
        compare_models(sources[i], "cpu", 2e-3);
    }
}

static void near_logits_as_stored(void **state)
{
    (void)state;
    const char *source = "tests/golden/qwen3_5_text";
    convert(source, FIXTURE(MX_GGUF_BF16)); /* what the source stores */
    compare_models(source, "ref", 1e-5);
    convert(source, FIXTURE(MX_GGUF_F16));
    compare_models(source, "ref", 1e-2);
    convert(source, FIXTURE(MX_GGUF_Q8_0));
    compare_models(source, "ref", 0.1);
    compare_models(source, "cpu", 0.1);
}

/* ---- Facts -------------------------------------------------------------------------------- */

static void states_what_it_is(void **state)
{
    (void)state;
    mtplx_load_options o = {.device = "ref", .threads = 1};
    convert(NANO, (struct conversion){.type = MX_GGUF_Q4_K, .mix_type = MX_GGUF_Q6_K});
    mtplx_model *m = load_or_fail(file, &o), *source = load_or_fail(src_path(NANO), &o);
    const mtplx_model_info *info = mtplx_model_get_info(m), *was = mtplx_model_get_info(source);
    assert_string_equal(info->architecture, "qwen3_5");
    assert_string_equal(info->quantization, "gguf Q4_K (mixed)");
    assert_string_equal(info->norm_encoding, "baked");
    assert_string_equal(info->mtp_norm_encoding, "baked");
    assert_false(info->norms_ambiguous);
    assert_true(info->has_tokenizer && info->has_chat_template && info->has_mtp);
    assert_int_equal(info->parameters, was->parameters);
    assert_int_equal(info->mtp_parameters, was->mtp_parameters);
    assert_true(info->weight_bytes < was->weight_bytes * 3 / 4);
    assert_true(mtplx_model_is_stop_token(m, 8182));
    mtplx_model_free(m);
    mtplx_model_free(source);

    struct mx_inspect r;
    mtplx_error err = {0};
    assert_int_equal(mx_inspect(&r, file, &err), MTPLX_OK);
    assert_int_equal(r.verdict, MX_VERIFIED);
    assert_int_equal(r.n_quants, 2);
    assert_int_equal(r.tokenizer_size, 8192);
    assert_true(r.has_chat_template && r.template_thinks);
    mx_inspect_free(&r);
}

static void works_without_head_or_text(void **state)
{
    (void)state;
    struct conversion how = FIXTURE(MX_GGUF_F16);
    how.no_mtp = true;
    convert("tests/golden/qwen3_5_text", how);
    mtplx_model *m = load_or_fail(file, NULL);
    const mtplx_model_info *info = mtplx_model_get_info(m);
    assert_false(info->has_mtp || info->has_tokenizer || info->has_chat_template);
    assert_string_equal(info->quantization, "gguf F16");
    assert_null(info->mtp_norm_encoding);
    mtplx_model_free(m);
}

/* A head without a norm of its own uses the trunk's final norm. */
static void shares_the_final_norm(void **state)
{
    (void)state;
    struct conversion how = FIXTURE(MX_GGUF_F32);
    how.shared_norm = true;
    convert("tests/golden/qwen3_5_text", how);
    mtplx_model *m = load_or_fail(file, NULL);
    const struct mx_tensor *own = mx_checkpoint_find(m->checkpoint, "mtp.norm.weight");
    const struct mx_tensor *trunk = mx_checkpoint_find(m->checkpoint, "model.norm.weight");
    assert_true(m->geometry.has_mtp && own && trunk && own->data == trunk->data);
    mtplx_model_free(m);
}

/* ---- Answers ------------------------------------------------------------------------------ */

static size_t greedy(mtplx_model *m, int depth, int32_t *out, size_t max)
{
    mtplx_error err = {0};
    size_t n;
    static const char messages[] = "[{\"role\":\"user\",\"content\":\"Count from 1 to 20\"}]";
    size_t len, prompt_n;
    char *text = mtplx_chat_render(m, messages, NULL, NULL, true, &len, &err);
    assert_non_null(text);
    int32_t *prompt = mtplx_encode(m, text, len, false, &prompt_n, &err);
    assert_non_null(prompt);
    mtplx_gen_options o = {.depth = depth, .max_tokens = (int)max};
    mtplx_seq *s = mtplx_seq_new(m, &err);
    mtplx_gen *g = mtplx_gen_new(s, prompt, prompt_n, &o, &err);
    if (!g)
        fail_msg("%s", err.message);
    while (mtplx_gen_finish(g) == MTPLX_FINISH_NONE)
        assert_int_equal(mtplx_gen_step(g, &err), MTPLX_OK);
    const int32_t *ids = mtplx_gen_tokens(g, &n);
    memcpy(out, ids, n * sizeof *ids);
    mtplx_gen_free(g);
    mtplx_seq_free(s);
    mtplx_free(prompt);
    mtplx_free(text);
    return n;
}

/* Drafting changes no token, in every block type, on the fast device. */
static void drafting_is_exact(void **state)
{
    (void)state;
    static const int types[] = {MX_GGUF_Q4_0, MX_GGUF_Q8_0, MX_GGUF_Q4_K, MX_GGUF_Q5_K,
                                MX_GGUF_Q6_K};
    enum { MAX = 32 };
    for (size_t i = 0; i < (SLOW_BUILD ? 1 : sizeof types / sizeof *types); i++) {
        int32_t plain[MAX], drafted[MAX];
        mtplx_load_options o = {.device = "cpu", .threads = 1};
        convert(NANO, (struct conversion){.type = types[i]});
        mtplx_model *m = load_or_fail(file, &o);
        size_t n = greedy(m, 0, plain, MAX), k = greedy(m, 3, drafted, MAX);
        assert_int_equal(n, k);
        assert_memory_equal(plain, drafted, n * sizeof *plain);
        mtplx_model_free(m);
    }
}

/* A trained model through the whole path: 8-bit MLX source, 8-bit GGUF copy. */
static void is_close_to_its_source(void **state)
{
    (void)state;
    enum { MAX = 8 };
    int32_t want[MAX], have[MAX];
    mtplx_load_options o = {.device = "cpu", .threads = 1};
    convert(NANO, (struct conversion){.type = MX_GGUF_Q8_0});
    compare_models(NANO, "cpu", 0.1);
    mtplx_model *a = load_or_fail(src_path(NANO), &o), *b = load_or_fail(file, &o);
    assert_int_equal(greedy(a, 2, want, MAX), MAX);
    assert_int_equal(greedy(b, 2, have, MAX), MAX);
    assert_memory_equal(want, have, sizeof want);
    mtplx_model_free(a);
    mtplx_model_free(b);
}

/* ---- Load options ------------------------------------------------------------------------- */

static void requantises(void **state)
{
    (void)state;
    convert(NANO, (struct conversion){.type = MX_GGUF_Q8_0, .no_text = true});
    mtplx_load_options o = {.device = "cpu", .threads = 1, .mtp_proj_quant = MTPLX_PROJ_Q4};
    mtplx_model *m = load_or_fail(file, &o);
    float *logits = all_logits(m);
    for (size_t i = 0; i < (size_t)m->geometry.vocab; i++)
        assert_true(isfinite(logits[PREFIX * (size_t)m->geometry.vocab + i]));
    free(logits);
    mtplx_model_free(m);
}

/* ---- Broken files ------------------------------------------------------------------------- */

static void assert_refused(const char *source, struct conversion how, mtplx_status status,
                           const char *text)
{
    mtplx_error err = {0};
    convert(source, how);
    mtplx_model *m = mtplx_model_load(file, NULL, &err);
    if (m || err.status != status || !strstr(err.message, text))
        fail_msg("expected \"%s\", got \"%s\"", text, m ? "a model" : err.message);
}

static void says_what_is_missing(void **state)
{
    (void)state;
    const char *source = "tests/golden/qwen3_5_text";
    struct conversion how = FIXTURE(MX_GGUF_F32);
    how.skip_key = "qwen35.embedding_length";
    assert_refused(source, how, MTPLX_ERR_FORMAT, "metadata key 'qwen35.embedding_length'");
    how.skip_key = "qwen35.ssm.inner_size";
    assert_refused(source, how, MTPLX_ERR_FORMAT, "'qwen35.ssm.inner_size' is missing");
    how.skip_key = "qwen35.block_count";
    assert_refused(source, how, MTPLX_ERR_FORMAT, "'qwen35.block_count' is missing");
    how.skip_key = NULL;
    how.skip_name = "blk.3.attn_q.weight";
    assert_refused(source, how, MTPLX_ERR_FORMAT, "layers.3.self_attn.q_proj.weight");
    how.skip_name = "blk.0.ssm_a";
    assert_refused(source, how, MTPLX_ERR_FORMAT, "linear_attn.A_log");
    how.skip_name = "token_embd.weight";
    assert_refused(source, how, MTPLX_ERR_FORMAT, "vocab_size");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_logits_as_f32),     cmocka_unit_test(near_logits_as_stored),
        cmocka_unit_test(states_what_it_is),      cmocka_unit_test(works_without_head_or_text),
        cmocka_unit_test(shares_the_final_norm),  cmocka_unit_test(drafting_is_exact),
        cmocka_unit_test(is_close_to_its_source), cmocka_unit_test(requantises),
        cmocka_unit_test(says_what_is_missing),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
