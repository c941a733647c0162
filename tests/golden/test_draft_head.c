/* Drafting with part of the vocabulary changes no greedy token, at any depth, on any device, for
 * any kind of output head; draft logits are the very logits of the full head; every token of a
 * stop set can be drafted; the public draft step keeps the full vocabulary. */
#include "golden.h"

#include "base/file.h"
#include "runtime/forward.h"

#include <dirent.h>
#include <unistd.h>

#define NEW_TOKENS 24
#define PROMPT 12

static mtplx_model *open_model(const char *path, const char *device, int draft_vocab,
                               mtplx_proj_quant quant)
{
    mtplx_load_options o = {
        .device = device, .threads = 1, .draft_vocab = draft_vocab, .draft_head_quant = quant};
    return load_or_fail(path, &o);
}

/* Some unrelated tokens, and a run that repeats, so that drafts are accepted and rejected. */
static size_t make_prompt(const mtplx_model *m, uint32_t seed, int32_t *out)
{
    uint32_t vocab = (uint32_t)mtplx_model_get_info(m)->vocab_size;
    for (size_t i = 0; i < PROMPT; i++) {
        seed = seed * 1664525u + 1013904223u;
        out[i] = i > 7 ? out[i - 4] : (int32_t)((seed >> 8) % vocab);
    }
    return PROMPT;
}

static size_t answer(mtplx_model *m, uint32_t prompt, mtplx_gen_options o, int32_t *out,
                     mtplx_gen_stats *stats)
{
    mtplx_error err = {0};
    int32_t ids[PROMPT];
    size_t n = make_prompt(m, prompt, ids), count;
    mtplx_seq *s = mtplx_seq_new(m, &err);
    mtplx_gen *g = mtplx_gen_new(s, ids, n, &o, &err);
    assert_non_null(g);
    while (mtplx_gen_finish(g) == MTPLX_FINISH_NONE)
        if (mtplx_gen_step(g, &err) != MTPLX_OK)
            fail_msg("%s", err.message);
    const int32_t *made = mtplx_gen_tokens(g, &count);
    memcpy(out, made, count * sizeof *out);
    if (stats)
        *stats = *mtplx_gen_get_stats(g);
    mtplx_gen_free(g);
    mtplx_seq_free(s);
    return count;
}

static uint64_t check_greedy(const char *path, const char *device, int draft_vocab,
                             mtplx_proj_quant quant, mtplx_sampling sampling)
{
    int32_t plain[NEW_TOKENS], drafted[NEW_TOKENS];
    uint64_t accepted = 0;
    bool slow = SLOW_BUILD || strcmp(device, "ref") == 0;
    mtplx_model *m = open_model(path, device, draft_vocab, quant);
    for (uint32_t prompt = 0; prompt < (slow ? 1 : 3); prompt++) {
        mtplx_gen_options o = {.sampling = sampling, .max_tokens = NEW_TOKENS, .ignore_stop = true};
        size_t n = answer(m, prompt, o, plain, NULL);
        for (o.depth = 1; o.depth <= MTPLX_MAX_DEPTH; o.depth += slow ? 3 : 1) {
            mtplx_gen_stats stats;
            assert_int_equal(answer(m, prompt, o, drafted, &stats), n);
            if (memcmp(plain, drafted, n * sizeof *plain) != 0)
                fail_msg("%s on %s: depth %d over %d draft tokens changes the greedy answer", path,
                         device, o.depth, draft_vocab);
            accepted += stats.accepted[0];
        }
    }
    mtplx_model_free(m);
    return accepted;
}

static const mtplx_sampling greedy = {.top_p = 1, .repetition_penalty = 1};
static const mtplx_sampling penalised = {
    .top_p = 1, .repetition_penalty = 1.2, .presence_penalty = 0.6, .frequency_penalty = 0.4};

static void nano_is_greedy_with_any_draft_vocabulary(void **state)
{
    (void)state;
    char nano[512];
    snprintf(nano, sizeof nano, "%s", src_path("models/nano"));
    assert_true(check_greedy(nano, "cpu", 256, MTPLX_PROJ_KEEP, greedy) > 0);
    assert_true(check_greedy(nano, "cpu", 1000, MTPLX_PROJ_KEEP, greedy) > 0);
    assert_true(check_greedy(nano, "cpu", -1, MTPLX_PROJ_KEEP, greedy) > 0);
    assert_true(check_greedy(nano, "cpu", 1000, MTPLX_PROJ_Q4, greedy) > 0);
    assert_true(check_greedy(nano, "cpu", -1, MTPLX_PROJ_Q4, penalised) > 0);
    assert_true(check_greedy(nano, "cpu", 1000, MTPLX_PROJ_KEEP, penalised) > 0);
    assert_true(check_greedy(nano, "ref", 500, MTPLX_PROJ_KEEP, greedy) > 0);
}

static void fixtures_are_greedy_with_any_draft_vocabulary(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen3_5_text", "qwen3_5_text_mlx4",
                                        "qwen3_5_text_mlx_mixed", "qwen3_5_vl", "qwen3_5_vl_tied"};
    static const int sizes[] = {1, 7, 256, 319, -1};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            char path[512];
            snprintf(path, sizeof path, "%s/tests/golden/%s", src_root(), names[i]);
            check_greedy(path, k % 2 ? "ref" : "cpu", sizes[k],
                         k == 2 ? MTPLX_PROJ_Q8 : MTPLX_PROJ_KEEP, k == 3 ? penalised : greedy);
        }
}

/* ---- Logits ------------------------------------------------------------------------------- */

static mtplx_seq *prefill(mtplx_model *m)
{
    mtplx_error err = {0};
    int32_t ids[PROMPT];
    mtplx_row rows[PROMPT];
    size_t n = make_prompt(m, 3, ids);
    mtplx_seq *s = mtplx_seq_new(m, &err);
    for (size_t i = 0; i < n; i++)
        rows[i] = (mtplx_row){s, ids[i], false, NULL};
    assert_int_equal(mtplx_forward(m, rows, n, MTPLX_COMMIT, false, NULL, &err), MTPLX_OK);
    return s;
}

/* Three draft steps; the logits of the last are left in the model. */
static const float *draft_logits(mtplx_model *m, struct mx_want want)
{
    mtplx_forward_result r = {0};
    mtplx_error err = {0};
    mtplx_seq *s = prefill(m);
    for (int32_t token = 5; token < 8; token++)
        if (mx_draft(m, &s, &token, 1, &want, &r, &err) != MTPLX_OK)
            fail_msg("%s", err.message);
    mtplx_seq_free(s);
    return r.logits;
}

static void check_logits(const char *path, const char *device, int draft_vocab)
{
    mtplx_model *all = open_model(path, device, -1, MTPLX_PROJ_KEEP);
    mtplx_model *part = open_model(path, device, draft_vocab, MTPLX_PROJ_KEEP);
    int vocab = mtplx_model_get_info(all)->vocab_size, n = part->draft.n;
    const float *want = draft_logits(all, (struct mx_want){0});
    const float *have = draft_logits(part, (struct mx_want){0});
    assert_true(n < vocab && part->draft.ids);
    int best = 0;
    for (int i = 0; i < n; i++) {
        assert_true(i == 0 || part->draft.ids[i] > part->draft.ids[i - 1]);
        assert_memory_equal(&have[i], &want[part->draft.ids[i]], sizeof *have);
        best = have[i] > have[best] ? i : best;
    }
    int32_t id = -1;
    draft_logits(part, (struct mx_want){.argmax = true, .ids = &id});
    assert_int_equal(id, part->draft.ids[best]);

    mtplx_forward_result r = {0};
    mtplx_seq *s = prefill(part);
    for (int32_t token = 5; token < 8; token++)
        assert_int_equal(mtplx_draft(part, &s, &token, 1, &r, NULL), MTPLX_OK);
    assert_memory_equal(r.logits, want, (size_t)vocab * sizeof *want);
    mtplx_seq_free(s);
    mtplx_model_free(all);
    mtplx_model_free(part);
}

static void draft_logits_are_those_of_the_full_head(void **state)
{
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s", src_path("models/nano"));
    check_logits(path, "cpu", 700);
    snprintf(path, sizeof path, "%s", src_path("tests/golden/qwen3_5_text_mlx_mixed"));
    check_logits(path, "cpu", 33);
    check_logits(path, "ref", 33);
    snprintf(path, sizeof path, "%s", src_path("tests/golden/qwen3_5_text"));
    check_logits(path, "cpu", 100);
}

/* ---- Facts -------------------------------------------------------------------------------- */

static bool drafts(const mtplx_model *m, int32_t id)
{
    for (int i = 0; i < m->draft.n; i++)
        if ((m->draft.ids ? m->draft.ids[i] : i) == id)
            return true;
    return false;
}

static void stops_and_markers_can_be_drafted(void **state)
{
    (void)state;
    mtplx_model *m = open_model(src_path("models/nano"), "cpu", 1, MTPLX_PROJ_KEEP);
    const mtplx_model_info *info = mtplx_model_get_info(m);
    assert_true(m->n_stops > 0);
    for (int i = 0; i < m->n_stops; i++)
        assert_true(drafts(m, m->stops[i]));
    assert_true(drafts(m, mx_tokenizer_find(m->tokenizer, "<think>")));
    assert_true(drafts(m, mx_tokenizer_find(m->tokenizer, "<|im_end|>")));
    for (int id = 0; id < info->vocab_size; id++)
        if (mx_tokenizer_is_added(m->tokenizer, id))
            assert_true(drafts(m, id));
    assert_int_equal(info->draft_vocab, m->draft.n);
    assert_in_range(info->draft_vocab, 256, 400);
    /* 8-bit codes of 512 inputs, and two 16-bit numbers for each 64 of them. */
    assert_int_equal(info->draft_head_bytes, (size_t)m->draft.n * (512 + 8 * 4));
    mtplx_model_free(m);
}

static void options_are_checked(void **state)
{
    (void)state;
    mtplx_error err = {0};
    mtplx_load_options o = {.draft_vocab = -2};
    assert_null(mtplx_model_load(src_path("models/nano"), &o, &err));
    assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "draft_vocab"));
    o = (mtplx_load_options){.draft_head_quant = (mtplx_proj_quant)9};
    assert_null(mtplx_model_load(src_path("models/nano"), &o, &err));
    assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);

    o = (mtplx_load_options){.threads = 1};
    mtplx_model *m = load_or_fail(src_path("models/nano"), &o);
    assert_int_equal(mtplx_model_get_info(m)->draft_vocab, 8192);
    assert_int_equal(mtplx_model_get_info(m)->draft_head_bytes, 0);
    mtplx_model_free(m);
    o = (mtplx_load_options){.threads = 1, .no_mtp = true, .draft_vocab = 500};
    m = load_or_fail(src_path("models/nano"), &o);
    assert_int_equal(mtplx_model_get_info(m)->draft_vocab, 0);
    assert_int_equal(mtplx_model_get_info(m)->draft_head_bytes, 0);
    mtplx_model_free(m);
}

/* A batch of greedy, penalised and sampled generations against each alone. */
static void a_batch_equals_its_members(void **state)
{
    (void)state;
    enum { GENS = 6 };
    mtplx_error err = {0};
    int32_t alone[GENS][NEW_TOKENS];
    size_t n[GENS];
    mtplx_seq *seqs[GENS];
    mtplx_gen *gens[GENS];
    mtplx_model *m = open_model(src_path("models/nano"), "cpu", 600, MTPLX_PROJ_KEEP);
    for (uint32_t i = 0; i < GENS; i++) {
        int32_t prompt[PROMPT];
        mtplx_gen_options o = {.max_tokens = NEW_TOKENS, .depth = 1 + (int)i, .ignore_stop = true};
        o.sampling = i % 3 == 2 ? penalised : greedy;
        o.sampling.temperature = i % 2 ? 1 : 0;
        o.sampling.top_k = i == 5 ? 30 : 0;
        o.sampling.seed = i;
        n[i] = answer(m, i, o, alone[i], NULL);
        make_prompt(m, i, prompt);
        seqs[i] = mtplx_seq_new(m, &err);
        gens[i] = mtplx_gen_new(seqs[i], prompt, PROMPT, &o, &err);
    }
    for (bool running = true; running;) {
        assert_int_equal(mtplx_gen_step_many(gens, GENS, &err), MTPLX_OK);
        running = false;
        for (int i = 0; i < GENS; i++)
            running |= mtplx_gen_finish(gens[i]) == MTPLX_FINISH_NONE;
    }
    for (int i = 0; i < GENS; i++) {
        size_t count;
        const int32_t *made = mtplx_gen_tokens(gens[i], &count);
        assert_int_equal(count, n[i]);
        assert_memory_equal(made, alone[i], count * sizeof *made);
        mtplx_gen_free(gens[i]);
        mtplx_seq_free(seqs[i]);
    }
    mtplx_model_free(m);
}

/* ---- Misses ------------------------------------------------------------------------------- */

enum { LARGE = MX_DRAFT_VOCAB + 232, SMALL = 320, HIDDEN = 64 };

/* Rows of a vocabulary matrix over and over; those behind the draft vocabulary are doubled, so that
 * they win. */
static uint16_t *enlarge(const struct mx_tensor *t)
{
    uint16_t *rows = malloc(sizeof *rows * LARGE * HIDDEN);
    for (size_t i = 0; i < LARGE; i++) {
        memcpy(rows + i * HIDDEN, (const uint16_t *)t->data + i % SMALL * HIDDEN, 2 * HIDDEN);
        for (size_t j = 0; i >= MX_DRAFT_VOCAB && j < HIDDEN; j++)
            rows[i * HIDDEN + j] = (uint16_t)(rows[i * HIDDEN + j] + 0x80); /* exponent + 1 */
    }
    return rows;
}

static void write_config(const char *dir)
{
    char path[600];
    size_t len;
    char *text =
        mx_file_read(src_path("tests/golden/qwen3_5_text/config.json"), 1 << 20, &len, NULL);
    char *at = strstr(text, "\"vocab_size\": 320");
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *f = fopen(path, "w");
    fprintf(f, "%.*s\"vocab_size\": %d%s", (int)(at - text), text, LARGE,
            at + strlen("\"vocab_size\": 320"));
    fclose(f);
    free(text);
}

/* The text fixture with a vocabulary that is larger than the default draft vocabulary. */
static void write_large(const char *dir)
{
    struct mx_safetensors st;
    char path[600];
    uint16_t *made[2] = {NULL, NULL};
    size_t k = 0;
    struct mx_st_writer *w = mx_st_writer_new("pt", NULL);
    write_config(dir);
    assert_int_equal(
        mx_safetensors_open(&st, src_path("tests/golden/qwen3_5_text/model.safetensors"), NULL),
        MTPLX_OK);
    for (size_t i = 0; i < st.count; i++) {
        const struct mx_tensor *t = &st.tensors[i];
        int64_t shape[MX_MAX_DIMS];
        const void *data = t->data;
        memcpy(shape, t->shape, sizeof shape);
        if (strstr(t->name, "embed_tokens") || strstr(t->name, "lm_head")) {
            shape[0] = LARGE;
            data = made[k++] = enlarge(t);
        }
        assert_int_equal(mx_st_writer_add(w, t->name, t->dtype, t->ndim, shape, data, NULL),
                         MTPLX_OK);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(mx_st_writer_finish(w, path, NULL), MTPLX_OK);
    mx_st_writer_free(w);
    mx_safetensors_close(&st);
    free(made[0]);
    free(made[1]);
}

static void remove_dir(const char *path)
{
    DIR *dir = opendir(path);
    for (struct dirent *e = readdir(dir); e; e = readdir(dir))
        unlinkat(dirfd(dir), e->d_name, 0); /* fails for . and .. */
    closedir(dir);
    assert_int_equal(rmdir(path), 0);
}

/* Tokens of an answer that the model cannot draft. */
static int missed(mtplx_model *m)
{
    int32_t out[NEW_TOKENS];
    mtplx_gen_options o = {.sampling = greedy, .max_tokens = NEW_TOKENS, .depth = 2};
    size_t n = answer(m, 1, o, out, NULL);
    int count = 0;
    for (size_t i = 0; i < n; i++)
        count += !drafts(m, out[i]);
    return count;
}

static void tokens_that_were_missed_are_drafted_next_time(void **state)
{
    (void)state;
    char dir[] = "/tmp/mtplx-large-XXXXXX";
    char *old = getenv("MTPLX_STATE_DIR") ? strdup(getenv("MTPLX_STATE_DIR")) : NULL;
    assert_non_null(mkdtemp(dir));
    write_large(dir);
    setenv("MTPLX_STATE_DIR", dir, 1);
    mtplx_model *m = open_model(dir, "cpu", 0, MTPLX_PROJ_KEEP);
    assert_int_equal(m->draft.n, MX_DRAFT_VOCAB);
    assert_true(drafts(m, MX_DRAFT_VOCAB - 2) && !drafts(m, LARGE - 1));
    assert_true(missed(m) > 0);
    assert_true(missed(m) > 0); /* fixed while loaded */
    mtplx_model_free(m);

    m = open_model(dir, "cpu", 0, MTPLX_PROJ_KEEP);
    assert_int_equal(m->draft.n, MX_DRAFT_VOCAB);
    assert_int_equal(missed(m), 0);
    mtplx_model_free(m);
    m = open_model(dir, "cpu", 0, MTPLX_PROJ_KEEP); /* and remembered without new misses */
    assert_int_equal(missed(m), 0);
    mtplx_model_free(m);

    m = open_model(dir, "cpu", MX_DRAFT_VOCAB, MTPLX_PROJ_KEEP); /* asked for: always the same */
    assert_true(missed(m) > 0);
    mtplx_model_free(m);
    remove_dir(dir);
    if (old)
        setenv("MTPLX_STATE_DIR", old, 1);
    else
        unsetenv("MTPLX_STATE_DIR");
    free(old);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nano_is_greedy_with_any_draft_vocabulary),
        cmocka_unit_test(fixtures_are_greedy_with_any_draft_vocabulary),
        cmocka_unit_test(draft_logits_are_those_of_the_full_head),
        cmocka_unit_test(stops_and_markers_can_be_drafted),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(a_batch_equals_its_members),
        cmocka_unit_test(tokens_that_were_missed_are_drafted_next_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
