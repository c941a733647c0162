/* Qwen3.5 against float32 reference outputs (tests/golden/README.md): every hidden state, logits,
 * MTP logits at depths 1 to 3, chained drafts, mRoPE positions and the long case, on the ref and
 * the fast device; and the same rows cut into every chunking, which must not change one bit.
 *
 * The tolerance is stated per device. The worst error of each fixture is printed. */
#include "golden.h"

#include "runtime/forward.h"
#include "runtime/history.h"

#define T_MAX 160

struct fixture {
    const char *name, *device;
    double tolerance;
    mtplx_model *m;
    struct mx_safetensors st;
    int t, hidden, vocab, layers;
    const int32_t *ids;
    bool rounded; /* int8 activations: errors are judged by their mean square */
    double worst;
};

/* The cpu device stores KV entries as f16; its fast profile rounds activations to int8 where
 * weights are quantised, which the tiny random fixtures amplify (their recurrent outputs nearly
 * cancel before a norm); on trained weights test_nano holds it to the same text and likelihood. */
static const struct {
    const char *device, *label;
    mtplx_profile profile;
    double tolerance;
} devices[] = {{"ref", "ref", MTPLX_PROFILE_EXACT, 2e-5},
               {"cpu", "cpu exact", MTPLX_PROFILE_EXACT, 2e-3},
               {"cpu", "cpu fast", MTPLX_PROFILE_FAST, 0.2}};
enum { DEVICES = sizeof devices / sizeof *devices };

/* Root mean square of the error over that of the values. */
static double rms_error(const float *have, const float *want, size_t n)
{
    double e = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        e += pow((double)have[i] - (double)want[i], 2);
        size += pow((double)want[i], 2);
    }
    return sqrt(e / size);
}

static void note(struct fixture *f, const char *what, const float *have, const float *want,
                 size_t n)
{
    double e = f->rounded ? rms_error(have, want, n) : rel_error(have, want, n);
    if (!(e <= f->tolerance))
        fail_msg("%s on %s: %s is off by %.3g (allowed %.3g)", f->name, f->device, what, e,
                 f->tolerance);
    if (e > f->worst)
        f->worst = e;
}

static void compare(struct fixture *f, const char *name, const float *have)
{
    const struct mx_tensor *t = golden(&f->st, name);
    note(f, name, have, t->data, t->bytes / sizeof(float));
}

static void open_fixture(struct fixture *f, const char *name, int device)
{
    char path[256];
    mtplx_error err = {0};
    mtplx_load_options o = {
        .device = devices[device].device, .threads = 1, .profile = devices[device].profile};
    snprintf(path, sizeof path, "%s/tests/golden/%s", src_root(), name);
    f->name = name;
    f->device = devices[device].label;
    f->tolerance = devices[device].tolerance;
    f->rounded = devices[device].profile == MTPLX_PROFILE_FAST;
    f->worst = 0;
    f->m = load_or_fail(path, &o);
    snprintf(path, sizeof path, "%s/tests/golden/%s/golden.safetensors", src_root(), name);
    if (mx_safetensors_open(&f->st, path, &err) != MTPLX_OK)
        fail_msg("%s", err.message);
    const struct mx_tensor *ids = golden(&f->st, "input_ids");
    f->t = (int)ids->shape[1];
    f->ids = ids->data;
    f->hidden = f->m->geometry.hidden;
    f->vocab = f->m->geometry.vocab;
    f->layers = f->m->geometry.layers;
}

static void close_fixture(struct fixture *f)
{
    print_message("%-24s %-9s worst relative error %.2e\n", f->name, f->device, f->worst);
    mx_safetensors_close(&f->st);
    mtplx_model_free(f->m);
}

static mtplx_seq *new_seq(mtplx_model *m)
{
    mtplx_error err = {0};
    mtplx_seq *s = mtplx_seq_new(m, &err);
    assert_non_null(s);
    return s;
}

/* Forwards ids[at .. at+n) and copies logits and hidden rows out. */
static void push(mtplx_seq *s, const int32_t *ids, int n, mtplx_forward_mode mode,
                 const int32_t (*pos)[3], float *logits, float *hidden)
{
    mtplx_row rows[T_MAX];
    mtplx_forward_result r;
    mtplx_error err = {0};
    mtplx_model *m = s->model;
    for (int i = 0; i < n; i++)
        rows[i] = (mtplx_row){s, ids[i], logits != NULL, pos ? pos[i] : NULL};
    if (mtplx_forward(m, rows, (size_t)n, mode, hidden != NULL, &r, &err) != MTPLX_OK)
        fail_msg("forward: %s", err.message);
    if (logits)
        memcpy(logits, r.logits, (size_t)n * (size_t)m->geometry.vocab * sizeof *logits);
    if (hidden)
        memcpy(hidden, r.hidden, (size_t)n * (size_t)m->geometry.hidden * sizeof *hidden);
}

static void check_layer(void *arg, int layer, const float *residual, int n)
{
    struct fixture *f = arg;
    char what[32];
    size_t count = (size_t)n * (size_t)f->hidden;
    if (layer < 0) {
        compare(f, "embed", residual);
        return;
    }
    snprintf(what, sizeof what, "hidden_states[%d]", layer);
    const float *want = golden(&f->st, "hidden_states")->data;
    note(f, what, residual, want + (size_t)layer * count, count);
}

static void check_trunk(struct fixture *f)
{
    float *logits = malloc((size_t)f->t * (size_t)f->vocab * sizeof *logits);
    float *hidden = malloc((size_t)f->t * (size_t)f->hidden * sizeof *hidden);
    mtplx_seq *s = new_seq(f->m);
    f->m->exec.trace = check_layer;
    f->m->exec.trace_arg = f;
    push(s, f->ids, f->t, MTPLX_COMMIT, NULL, logits, hidden);
    f->m->exec.trace = NULL;
    compare(f, "final_norm", hidden);
    compare(f, "logits", logits);
    mtplx_seq_free(s);
    free(logits);
    free(hidden);
}

static void check_mrope(struct fixture *f)
{
    int32_t pos[T_MAX][3];
    const int32_t *p = golden(&f->st, "mrope_position_ids")->data;
    float *logits = malloc((size_t)f->t * (size_t)f->vocab * sizeof *logits);
    for (int i = 0; i < f->t; i++)
        for (int a = 0; a < 3; a++)
            pos[i][a] = p[a * f->t + i];
    mtplx_seq *s = new_seq(f->m);
    push(s, f->ids, f->t, MTPLX_COMMIT, (const int32_t(*)[3])pos, logits, NULL);
    compare(f, "mrope_logits", logits);
    mtplx_seq_free(s);
    free(logits);
}

static void check_long(struct fixture *f)
{
    const struct mx_tensor *ids = golden(&f->st, "long_input_ids");
    int n = (int)ids->shape[1];
    float *logits = malloc((size_t)n * (size_t)f->vocab * sizeof *logits);
    float *hidden = malloc((size_t)n * (size_t)f->hidden * sizeof *hidden);
    mtplx_seq *s = new_seq(f->m);
    push(s, ids->data, n, MTPLX_COMMIT, NULL, logits, hidden);
    compare(f, "long_logits", logits + (size_t)(n - 8) * (size_t)f->vocab);
    compare(f, "long_final_norm", hidden + (size_t)(n - 8) * (size_t)f->hidden);
    mtplx_seq_free(s);
    free(logits);
    free(hidden);
}

/* Teacher-forced MTP depths: each has a cache of its own. */
static void check_mtp_depths(struct fixture *f)
{
    size_t rows = (size_t)f->t, h = (size_t)f->hidden, v = (size_t)f->vocab;
    struct mx_device *d = f->m->device;
    float *in = d->ops->alloc(d, rows * h * sizeof *in);
    float *out = d->ops->alloc(d, rows * h * sizeof *out);
    float *dev_logits = d->ops->alloc(d, rows * v * sizeof *dev_logits);
    float *logits = malloc(rows * v * sizeof *logits);
    float *hidden = malloc(rows * h * sizeof *hidden);
    mtplx_seq *s = new_seq(f->m);
    push(s, f->ids, f->t, MTPLX_COMMIT, NULL, NULL, hidden);
    d->ops->upload(d, in, hidden, rows * h * sizeof *in);
    for (int k = 1; k <= 3; k++) {
        char name[32];
        int32_t tokens[T_MAX];
        mtplx_seq *own = new_seq(f->m);
        assert_int_equal(mx_kv_reserve(&own->mtp, f->t, NULL), MTPLX_OK);
        for (int i = 0; i < f->t; i++)
            tokens[i] = f->ids[(i + k) % f->t];
        mx_mtp_run(own, 0, tokens, in, rows, out);
        d->ops->download(d, hidden, out, rows * h * sizeof *hidden);
        f->m->family->logits(f->m->arch, &f->m->exec, out, f->t, dev_logits);
        d->ops->download(d, logits, dev_logits, rows * v * sizeof *logits);
        snprintf(name, sizeof name, "mtp_hidden_%d", k);
        compare(f, name, hidden);
        snprintf(name, sizeof name, "mtp_logits_%d", k);
        compare(f, name, logits);
        d->ops->copy(d, in, out, rows * h * sizeof *in);
        mtplx_seq_free(own);
    }
    mtplx_seq_free(s);
    d->ops->free(d, in);
    d->ops->free(d, out);
    d->ops->free(d, dev_logits);
    free(logits);
    free(hidden);
}

/* Greedy drafting after a real prefill, as the engine does it. */
static void check_chain(struct fixture *f)
{
    const struct mx_tensor *tokens = golden(&f->st, "chain_tokens");
    const struct mx_tensor *want = golden(&f->st, "chain_logits");
    const int32_t *chain = tokens->data;
    mtplx_seq *s = new_seq(f->m);
    push(s, f->ids, f->t, MTPLX_COMMIT, NULL, NULL, NULL);
    for (int i = 0; i < (int)want->shape[0]; i++) {
        mtplx_forward_result r;
        mtplx_error err = {0};
        if (mtplx_draft(f->m, &s, &chain[i], 1, &r, &err) != MTPLX_OK)
            fail_msg("draft: %s", err.message);
        note(f, "chain_logits", r.logits, (const float *)want->data + i * f->vocab,
             (size_t)f->vocab);
        int best = 0;
        for (int j = 1; j < f->vocab; j++)
            if (r.logits[j] > r.logits[best])
                best = j;
        if (!f->rounded) /* random weights: the two best logits are close */
            assert_int_equal(best, chain[i + 1]);
    }
    mtplx_seq_free(s);
}

static void run_fixture(const char *name, bool mtp)
{
    for (int d = 0; d < DEVICES; d++) {
        struct fixture f;
        open_fixture(&f, name, d);
        assert_int_equal(f.m->geometry.has_mtp, mtp);
        check_trunk(&f);
        check_mrope(&f);
        check_long(&f);
        if (mtp) {
            check_mtp_depths(&f);
            check_chain(&f);
        }
        close_fixture(&f);
    }
}

static void test_text(void **state)
{
    (void)state;
    run_fixture("qwen3_5_text", true);
}

static void test_vl(void **state)
{
    (void)state;
    run_fixture("qwen3_5_vl", true);
}

static void test_vl_tied(void **state)
{
    (void)state;
    run_fixture("qwen3_5_vl_tied", true);
}

static void test_mlx4(void **state)
{
    (void)state;
    run_fixture("qwen3_5_text_mlx4", false);
}

static void test_mlx_mixed(void **state)
{
    (void)state;
    run_fixture("qwen3_5_text_mlx_mixed", true);
}

/* ---- Row invariance ----------------------------------------------------------------------- */

/* The long case in chunks of every size: logits of the last row equal the one-pass ones bit for
 * bit, and so do the MTP logits that follow. */
static void check_chunk(struct fixture *f, const int32_t *ids, int n, int chunk, const float *want,
                        const float *want_mtp)
{
    float *logits = malloc((size_t)chunk * (size_t)f->vocab * sizeof *logits);
    mtplx_seq *s = new_seq(f->m);
    for (int at = 0, k; at < n; at += k) {
        k = n - at < chunk ? n - at : chunk;
        push(s, ids + at, k, MTPLX_COMMIT, NULL, logits, NULL);
        if (at + k == n)
            assert_memory_equal(logits + (size_t)(k - 1) * (size_t)f->vocab, want,
                                (size_t)f->vocab * sizeof *want);
    }
    if (want_mtp) {
        mtplx_forward_result r;
        assert_int_equal(mtplx_draft(f->m, &s, ids, 1, &r, NULL), MTPLX_OK);
        assert_memory_equal(r.logits, want_mtp, (size_t)f->vocab * sizeof *want_mtp);
    }
    mtplx_seq_free(s);
    free(logits);
}

/* Verify blocks of random size with random junk drafts and random commits. */
static void check_verify(struct fixture *f, const int32_t *ids, int n, uint32_t seed,
                         const float *want, const float *want_mtp)
{
    float *logits = malloc(MX_MAX_PENDING * (size_t)f->vocab * sizeof *logits);
    mtplx_seq *s = new_seq(f->m);
    for (int at = 0; at < n;) {
        int32_t block[MX_MAX_PENDING];
        seed = seed * 1664525u + 1013904223u;
        int rows = 1 + (int)(seed >> 16) % MX_MAX_PENDING;
        int keep = 1 + (int)(seed >> 24) % rows;
        keep = keep < n - at ? keep : n - at;
        for (int i = 0; i < rows; i++)
            block[i] = i < keep ? ids[at + i] : (int32_t)((seed >> 8) % (uint32_t)f->vocab);
        if (want_mtp && at > 0 && (seed & 64)) { /* a draft whose token may or may not come */
            mtplx_forward_result r;
            int32_t tokens[2] = {seed & 128 ? ids[at] : block[rows - 1], 3};
            assert_int_equal(mtplx_draft(f->m, &s, &tokens[0], 1, &r, NULL), MTPLX_OK);
            assert_int_equal(mtplx_draft(f->m, &s, &tokens[1], 1, &r, NULL), MTPLX_OK);
        }
        push(s, block, rows, MTPLX_VERIFY, NULL, logits, NULL);
        assert_int_equal(mtplx_seq_commit(s, (size_t)keep, NULL), MTPLX_OK);
        at += keep;
        if (at == n)
            assert_memory_equal(logits + (size_t)(keep - 1) * (size_t)f->vocab, want,
                                (size_t)f->vocab * sizeof *want);
    }
    if (want_mtp) {
        mtplx_forward_result r;
        assert_int_equal(mtplx_draft(f->m, &s, ids, 1, &r, NULL), MTPLX_OK);
        assert_memory_equal(r.logits, want_mtp, (size_t)f->vocab * sizeof *want_mtp);
    }
    mtplx_seq_free(s);
    free(logits);
}

static void check_invariance(const char *name, int device, bool mtp)
{
    struct fixture f;
    open_fixture(&f, name, device);
    const struct mx_tensor *t = golden(&f.st, "long_input_ids");
    const int32_t *ids = t->data;
    int n = (int)t->shape[1];
    size_t row = (size_t)f.vocab * sizeof(float);
    float *logits = malloc((size_t)n * row), *after = malloc(row);
    mtplx_seq *s = new_seq(f.m);
    push(s, ids, n, MTPLX_COMMIT, NULL, logits, NULL);
    const float *want = logits + (size_t)(n - 1) * (size_t)f.vocab;
    if (mtp) {
        mtplx_forward_result r;
        assert_int_equal(mtplx_draft(f.m, &s, ids, 1, &r, NULL), MTPLX_OK);
        memcpy(after, r.logits, row);
    }
    mtplx_seq_free(s);
    for (int chunk = 1; chunk <= n; chunk += SLOW_BUILD ? 13 : 1)
        check_chunk(&f, ids, n, chunk, want, mtp ? after : NULL);
    for (uint32_t seed = 1; seed <= (SLOW_BUILD ? 6 : 24); seed++)
        check_verify(&f, ids, n, seed, want, mtp ? after : NULL);
    free(logits);
    free(after);
    close_fixture(&f);
}

static void test_chunkings(void **state)
{
    (void)state;
    for (int d = 0; d < DEVICES; d++) {
        check_invariance("qwen3_5_text", d, true);
        check_invariance("qwen3_5_vl_tied", d, true);
        check_invariance("qwen3_5_text_mlx4", d, false);
        check_invariance("qwen3_5_text_mlx_mixed", d, true);
    }
}

/* Explicit positions survive a verify pass: blocks of three with one row kept, against one pass. */
static void test_verify_positions(void **state)
{
    (void)state;
    struct fixture f;
    int32_t pos[T_MAX][3];
    open_fixture(&f, "qwen3_5_text", 0);
    const int32_t *p = golden(&f.st, "mrope_position_ids")->data;
    const float *want = golden(&f.st, "mrope_logits")->data;
    float *logits = malloc(3 * (size_t)f.vocab * sizeof *logits);
    for (int i = 0; i < f.t; i++)
        for (int a = 0; a < 3; a++)
            pos[i][a] = p[a * f.t + i];
    mtplx_seq *s = new_seq(f.m);
    for (int i = 0; i < f.t; i++) {
        int n = f.t - i < 3 ? f.t - i : 3;
        push(s, f.ids + i, n, MTPLX_VERIFY, (const int32_t(*)[3])pos + i, logits, NULL);
        note(&f, "mrope_logits in verify blocks", logits, want + (size_t)i * (size_t)f.vocab,
             (size_t)f.vocab);
        assert_int_equal(mtplx_seq_commit(s, 1, NULL), MTPLX_OK);
    }
    mtplx_seq_free(s);
    free(logits);
    close_fixture(&f);
}

/* A fork taken in the middle of drafting goes on as its original does. */
static void test_fork_while_drafting(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, "qwen3_5_text", 1);
    size_t row = (size_t)f.vocab * sizeof(float);
    float *a = malloc(row), *b = malloc(row);
    mtplx_forward_result r;
    int32_t token = 17;
    mtplx_seq *s = new_seq(f.m);
    push(s, f.ids, f.t, MTPLX_COMMIT, NULL, NULL, NULL);
    assert_int_equal(mtplx_draft(f.m, &s, &token, 1, &r, NULL), MTPLX_OK);
    mtplx_seq *fork = mtplx_seq_fork(s, NULL);
    assert_non_null(fork);
    mtplx_seq *both[2] = {s, fork};
    for (int i = 0; i < 2; i++) {
        push(both[i], &token, 1, MTPLX_COMMIT, NULL, i ? b : a, NULL);
        assert_memory_equal(a, i ? b : a, row);
    }
    for (int i = 0; i < 2; i++) {
        int32_t next = 4;
        assert_int_equal(mtplx_draft(f.m, &both[i], &next, 1, &r, NULL), MTPLX_OK);
        memcpy(i ? b : a, r.logits, row);
    }
    assert_memory_equal(a, b, row);
    mtplx_seq_free(s);
    mtplx_seq_free(fork);
    free(a);
    free(b);
    close_fixture(&f);
}

/* Several sequences in one pass, of different lengths, equal the same sequences alone. */
static void test_ragged_batch(void **state)
{
    (void)state;
    for (int d = 0; d < DEVICES; d++) {
        struct fixture f;
        open_fixture(&f, "qwen3_5_text", d);
        const int32_t *ids = golden(&f.st, "long_input_ids")->data;
        static const int lens[] = {1, 7, 70, 23};
        mtplx_row rows[T_MAX];
        mtplx_seq *seqs[4];
        mtplx_forward_result r;
        size_t n = 0, row = (size_t)f.vocab * sizeof(float);
        for (int i = 0; i < 4; i++) {
            seqs[i] = new_seq(f.m);
            for (int j = 0; j < lens[i]; j++)
                rows[n++] = (mtplx_row){seqs[i], ids[i * 5 + j], j == lens[i] - 1, NULL};
        }
        assert_int_equal(mtplx_forward(f.m, rows, n, MTPLX_COMMIT, false, &r, NULL), MTPLX_OK);
        float *together = malloc(4 * row), *alone = malloc(70 * row);
        memcpy(together, r.logits, 4 * row);
        for (int i = 0; i < 4; i++) {
            mtplx_seq *s = new_seq(f.m);
            push(s, ids + i * 5, lens[i], MTPLX_COMMIT, NULL, alone, NULL);
            assert_memory_equal(alone + (size_t)(lens[i] - 1) * (size_t)f.vocab,
                                together + i * f.vocab, row);
            mtplx_seq_free(s);
        }
        for (int i = 0; i < 4; i++)
            mtplx_seq_free(seqs[i]);
        free(together);
        free(alone);
        close_fixture(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_vl),
        cmocka_unit_test(test_vl_tied),
        cmocka_unit_test(test_mlx4),
        cmocka_unit_test(test_mlx_mixed),
        cmocka_unit_test(test_chunkings),
        cmocka_unit_test(test_ragged_batch),
        cmocka_unit_test(test_verify_positions),
        cmocka_unit_test(test_fork_while_drafting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
