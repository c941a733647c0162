/* The trained nano model against its recorded float32 reference (tests/golden/nano_reference.json):
 * rendered prompts, prompt ids, greedy continuation, first-token log-probabilities, the exact
 * number of verify cycles and accepted/drafted drafts at depths 1 to 4, and the perplexity of
 * ppl.txt under the bf16 weights and under the embedded quantised copy. */
#include "golden.h"

#include "base/file.h"

#include <jansson.h>

#define MARGIN 0.1   /* below this a low-precision KV cache may pick the other token */
#define MARGIN_8 1.0 /* the same for 8-bit weights */

static json_t *reference;
static mtplx_model *models[2]; /* bf16 on ref and cpu, or NULL */
static mtplx_model *nano;      /* as shipped, on cpu */
static const char *const devices[] = {"ref", "cpu"};

static int setup(void **state)
{
    (void)state;
    json_error_t e;
    reference = json_load_file(src_path("tests/golden/nano_reference.json"), 0, &e);
    assert_non_null(reference);
    for (int i = 0; i < 2 && nano_bf16(); i++)
        models[i] =
            load_or_fail(nano_bf16(), &(mtplx_load_options){.device = devices[i], .threads = 1});
    nano = load_or_fail(src_path("models/nano"), &(mtplx_load_options){.threads = 1});
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    json_decref(reference);
    mtplx_model_free(models[0]);
    mtplx_model_free(models[1]);
    mtplx_model_free(nano);
    return 0;
}

static size_t ids_of(const json_t *array, int32_t *out, size_t max)
{
    size_t n = json_array_size(array);
    assert_true(n <= max);
    for (size_t i = 0; i < n; i++)
        out[i] = (int32_t)json_integer_value(json_array_get(array, i));
    return n;
}

static void test_prompts(void **state)
{
    (void)state;
    size_t index;
    const json_t *p;
    json_array_foreach(json_object_get(reference, "prompts"), index, p)
    {
        int32_t want[512];
        size_t len, count, n = ids_of(json_object_get(p, "prompt_ids"), want, 512);
        mtplx_error err = {0};
        char *messages = json_dumps(json_object_get(p, "messages"), 0);
        const json_t *tool_list = json_object_get(p, "tools");
        char *tools = json_is_array(tool_list) ? json_dumps(tool_list, 0) : NULL;
        const char *kwargs = json_is_true(json_object_get(p, "enable_thinking"))
                                 ? "{\"enable_thinking\": true}"
                                 : "{\"enable_thinking\": false}";
        char *text = mtplx_chat_render(nano, messages, tools, kwargs, true, &len, &err);
        if (!text)
            fail_msg("render: %s", err.message);
        assert_string_equal(text, json_string_value(json_object_get(p, "prompt")));
        int32_t *ids = mtplx_encode(nano, text, len, false, &count, &err);
        assert_non_null(ids);
        assert_int_equal(count, n);
        assert_memory_equal(ids, want, n * sizeof *ids);
        mtplx_free(ids);
        mtplx_free(text);
        free(messages);
        free(tools);
    }
}

struct run {
    int32_t ids[128];
    size_t n;
    uint64_t cycles, accepted[MTPLX_MAX_DEPTH], drafted[MTPLX_MAX_DEPTH];
};

/* Decodes until `want` tokens are out, counting as the reference does: drafts past the end of the
 * text count as drafted but not accepted. */
static void decode(mtplx_model *m, const int32_t *prompt, size_t n, int depth, size_t want,
                   struct run *r)
{
    mtplx_error err = {0};
    mtplx_gen_options o = {.depth = depth, .ignore_stop = true};
    mtplx_seq *s = mtplx_seq_new(m, &err);
    mtplx_gen *g = mtplx_gen_new(s, prompt, n, &o, &err);
    const int32_t *out = NULL;
    size_t have = 0;
    memset(r, 0, sizeof *r);
    assert_non_null(g);
    while (have < want) {
        size_t before = have;
        mtplx_gen_stats was = *mtplx_gen_get_stats(g);
        assert_int_equal(mtplx_gen_step(g, &err), MTPLX_OK);
        out = mtplx_gen_tokens(g, &have);
        const mtplx_gen_stats *now = mtplx_gen_get_stats(g);
        r->cycles += now->cycles - was.cycles;
        for (int d = 0; d < depth && before > 0; d++) {
            bool inside = before + (size_t)d < want, prefix = d == 0;
            if (d > 0) /* every earlier position accepted and inside the text */
                prefix =
                    now->accepted[d - 1] > was.accepted[d - 1] && before + (size_t)d - 1 < want;
            r->drafted[d] += prefix;
            r->accepted[d] += prefix && inside && now->accepted[d] > was.accepted[d];
        }
    }
    r->n = want;
    memcpy(r->ids, out, want * sizeof *out);
    mtplx_gen_free(g);
    mtplx_seq_free(s);
}

static void check_depth(const json_t *p, const char *device, int depth, const struct run *r)
{
    char key[8];
    snprintf(key, sizeof key, "%d", depth);
    const json_t *want = json_object_get(json_object_get(p, "mtp_greedy"), key);
    const char *name = json_string_value(json_object_get(p, "name"));
    assert_non_null(want);
    if ((uint64_t)json_integer_value(json_object_get(want, "cycles")) != r->cycles)
        fail_msg("%s on %s, depth %d: %llu cycles, the reference has %lld", name, device, depth,
                 (unsigned long long)r->cycles,
                 (long long)json_integer_value(json_object_get(want, "cycles")));
    for (int d = 0; d < depth; d++) {
        long long a =
            json_integer_value(json_array_get(json_object_get(want, "accepted"), (size_t)d));
        long long q =
            json_integer_value(json_array_get(json_object_get(want, "drafted"), (size_t)d));
        if ((uint64_t)a != r->accepted[d] || (uint64_t)q != r->drafted[d])
            fail_msg("%s on %s, depth %d, position %d: %llu/%llu accepted/drafted, the reference "
                     "has %lld/%lld",
                     name, device, depth, d + 1, (unsigned long long)r->accepted[d],
                     (unsigned long long)r->drafted[d], a, q);
    }
}

/* `margin`: prompts whose reference is less decided than this need not agree. */
static void check_prompt(const json_t *p, mtplx_model *m, double margin)
{
    int32_t prompt[512], want[128];
    struct run r;
    size_t n = ids_of(json_object_get(p, "prompt_ids"), prompt, 512);
    size_t k = ids_of(json_object_get(p, "greedy_ids"), want, 128);
    const char *name = json_string_value(json_object_get(p, "name"));
    const char *device = mtplx_model_get_info(m)->device;
    bool exact = json_number_value(json_object_get(p, "min_margin")) > margin;
    for (int depth = 0; depth <= 4; depth += SLOW_BUILD ? 3 : 1) {
        decode(m, prompt, n, depth, k, &r);
        if (exact && memcmp(r.ids, want, k * sizeof *want) != 0)
            fail_msg("%s on %s, depth %d: greedy ids differ", name, device, depth);
        if (exact && depth > 0)
            check_depth(p, device, depth, &r);
    }
    if (!exact)
        print_message("%s on %s: margin %.3f, ids %s\n", name, device,
                      json_number_value(json_object_get(p, "min_margin")),
                      memcmp(r.ids, want, k * sizeof *want) == 0 ? "equal" : "differ");
}

static void check_prompts(mtplx_model *m, double margin)
{
    size_t index;
    const json_t *p;
    if (!m)
        skip();
    json_array_foreach(json_object_get(reference, "prompts"), index, p)
    {
        if (!SLOW_BUILD || index % 5 == 0)
            check_prompt(p, m, margin);
    }
}

/* The ref device works in float32 throughout, so near-ties resolve as recorded too. */
static void test_greedy_ref(void **state)
{
    (void)state;
    check_prompts(models[0], 0);
}

static void test_greedy_cpu(void **state)
{
    (void)state;
    check_prompts(models[1], MARGIN);
}

static void test_greedy_shipped(void **state)
{
    (void)state;
    check_prompts(nano, MARGIN_8);
}

static double log_sum_exp(const float *x, int n)
{
    double most = x[0], sum = 0;
    for (int i = 1; i < n; i++)
        most = x[i] > most ? x[i] : most;
    for (int i = 0; i < n; i++)
        sum += exp(x[i] - most);
    return most + log(sum);
}

static void test_first_logprobs(void **state)
{
    (void)state;
    size_t index;
    const json_t *p;
    double worst[2] = {0, 0};
    if (!models[0])
        skip();
    json_array_foreach(json_object_get(reference, "prompts"), index, p)
    {
        int32_t prompt[512];
        mtplx_row rows[512];
        size_t n = ids_of(json_object_get(p, "prompt_ids"), prompt, 512), j;
        for (int d = 0; d < 2; d++) {
            mtplx_forward_result r;
            mtplx_seq *s = mtplx_seq_new(models[d], NULL);
            for (size_t i = 0; i < n; i++)
                rows[i] = (mtplx_row){s, prompt[i], i == n - 1, NULL};
            assert_int_equal(mtplx_forward(models[d], rows, n, MTPLX_COMMIT, false, &r, NULL),
                             MTPLX_OK);
            double z = log_sum_exp(r.logits, mtplx_model_get_info(models[d])->vocab_size);
            const json_t *pair;
            json_array_foreach(json_object_get(p, "top_logprobs"), j, pair)
            {
                json_int_t id = json_integer_value(json_array_get(pair, 0));
                double diff = fabs(r.logits[id] - z - json_number_value(json_array_get(pair, 1)));
                worst[d] = diff > worst[d] ? diff : worst[d];
            }
            mtplx_seq_free(s);
        }
    }
    print_message("first-token log-probabilities: worst difference ref %.2e, cpu %.2e\n", worst[0],
                  worst[1]);
    assert_true(worst[0] < 2e-4);
    assert_true(worst[1] < 2e-2);
}

/* Mean NLL per token of ppl.txt, as tests/golden/README.md defines it. */
static double mean_nll(mtplx_model *m, size_t *tokens)
{
    size_t len, n;
    mtplx_error err = {0};
    mtplx_forward_result r;
    char *text = mx_file_read(src_path("tests/golden/ppl.txt"), 1 << 20, &len, &err);
    int32_t *ids = mtplx_encode(m, text, len, false, &n, &err);
    mtplx_seq *s = mtplx_seq_new(m, &err);
    double sum = 0;
    int vocab = mtplx_model_get_info(m)->vocab_size;
    assert_non_null(ids);
    for (size_t at = 0, k; at + 1 < n; at += k) {
        mtplx_row rows[128];
        k = n - 1 - at < 128 ? n - 1 - at : 128;
        for (size_t i = 0; i < k; i++)
            rows[i] = (mtplx_row){s, ids[at + i], true, NULL};
        assert_int_equal(mtplx_forward(m, rows, k, MTPLX_COMMIT, false, &r, &err), MTPLX_OK);
        for (size_t i = 0; i < k; i++) {
            const float *row = r.logits + i * (size_t)vocab;
            sum += log_sum_exp(row, vocab) - (double)row[ids[at + i + 1]];
        }
    }
    *tokens = n;
    mtplx_seq_free(s);
    mtplx_free(ids);
    free(text);
    return sum / (double)(n - 1);
}

static void test_perplexity(void **state)
{
    (void)state;
    size_t tokens;
    const json_t *want = json_object_get(reference, "perplexity");
    double target = json_number_value(json_object_get(want, "mean_nll"));
    double shipped = mean_nll(nano, &tokens);
    print_message("mean NLL of ppl.txt: reference %.6f, shipped %s %.6f (%+.2f %%)\n", target,
                  mtplx_model_get_info(nano)->quantization, shipped, 100 * (shipped / target - 1));
    assert_int_equal(tokens, json_integer_value(json_object_get(want, "tokens")));
    assert_true(shipped < 1.01 * target && shipped > 0.99 * target);
}

static void test_perplexity_bf16(void **state)
{
    (void)state;
    size_t tokens;
    double target =
        json_number_value(json_object_get(json_object_get(reference, "perplexity"), "mean_nll"));
    if (!models[1])
        skip();
    double have = mean_nll(models[1], &tokens);
    print_message("mean NLL of ppl.txt: reference %.6f, bf16 weights %.6f\n", target, have);
    assert_true(fabs(have - target) < 1e-3 * target);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts),        cmocka_unit_test(test_greedy_ref),
        cmocka_unit_test(test_greedy_cpu),     cmocka_unit_test(test_first_logprobs),
        cmocka_unit_test(test_perplexity),     cmocka_unit_test(test_perplexity_bf16),
        cmocka_unit_test(test_greedy_shipped),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
