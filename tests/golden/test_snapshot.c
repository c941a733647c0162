/* Snapshots: a restored sequence goes on bit for bit like one that read the tokens itself, whatever
 * happened to the original since, and blocks are shared until somebody writes. */
#include "golden.h"

#include "runtime/forward.h"
#include "runtime/generate.h"
#include "runtime/snapshot.h"

#include <jansson.h>
#include <pthread.h>
#include <unistd.h>

enum { MOST = 700, VOCAB = 320, STEPS = 3, NEW_TOKENS = 24 };

static int32_t ids[MOST];

static mtplx_model *open_at(const char *path, const char *device, int max_rows)
{
    mtplx_load_options o = {.device = device, .threads = 2, .max_rows = max_rows};
    uint32_t x = 12345;
    for (int i = 0; i < MOST; i++) {
        x = x * 1664525u + 1013904223u;
        ids[i] = (int32_t)((x >> 16) % VOCAB);
    }
    return load_or_fail(path, &o);
}

static mtplx_model *open_tiny(const char *device, int max_rows)
{
    return open_at(src_path("tests/golden/qwen3_5_text"), device, max_rows);
}

static mtplx_seq *new_seq(mtplx_model *m)
{
    mtplx_seq *s = mtplx_seq_new(m, NULL);
    assert_non_null(s);
    return s;
}

static void feed(mtplx_seq *s, const int32_t *tokens, size_t n)
{
    mtplx_row rows[MOST];
    mtplx_error err = {0};
    for (size_t i = 0; i < n; i++)
        rows[i] = (mtplx_row){.seq = s, .token = tokens[i]};
    if (mtplx_forward(s->model, rows, n, MTPLX_COMMIT, false, NULL, &err) != MTPLX_OK)
        fail_msg("forward: %s", err.message);
}

/* Feeds ids up to n tokens in passes of `step`. */
static void feed_to(mtplx_seq *s, size_t n, size_t step)
{
    while (mtplx_seq_length(s) < n) {
        size_t at = mtplx_seq_length(s), k = n - at < step ? n - at : step;
        feed(s, ids + at, k);
    }
}

static mtplx_seq *cold(mtplx_model *m, size_t n)
{
    mtplx_seq *s = new_seq(m);
    feed_to(s, n, MOST);
    return s;
}

static mtplx_snapshot *snap(mtplx_seq *s)
{
    mtplx_error err = {0};
    mtplx_snapshot *p = mtplx_seq_snapshot(s, &err);
    if (!p)
        fail_msg("snapshot: %s", err.message);
    return p;
}

static mtplx_seq *restore(const mtplx_snapshot *p)
{
    mtplx_error err = {0};
    mtplx_seq *s = mtplx_seq_restore(p, &err);
    if (!s)
        fail_msg("restore: %s", err.message);
    return s;
}

/* What a sequence thinks: logits and hidden of the token that comes next in ids, then of a chain of
 * drafts, which read the MTP cache and the lag. */
struct probe {
    float logits[1 + STEPS][VOCAB], hidden[64];
};

static struct probe probe(mtplx_seq *s)
{
    struct probe p;
    mtplx_forward_result r;
    mtplx_seq *t = mtplx_seq_fork(s, NULL);
    mtplx_row row = {.seq = t, .token = ids[mtplx_seq_length(s)], .want_logits = true};
    assert_int_equal(mtplx_forward(s->model, &row, 1, MTPLX_COMMIT, true, &r, NULL), MTPLX_OK);
    memcpy(p.logits[0], r.logits, sizeof p.logits[0]);
    memcpy(p.hidden, r.hidden, sizeof p.hidden);
    for (int i = 0; i < STEPS; i++) {
        int32_t token = ids[mtplx_seq_length(s) + 1 + (size_t)i];
        assert_int_equal(mtplx_draft(s->model, &t, &token, 1, &r, NULL), MTPLX_OK);
        memcpy(p.logits[1 + i], r.logits, sizeof p.logits[0]);
    }
    mtplx_seq_free(t);
    return p;
}

static void check_like(mtplx_seq *s, const struct probe *want, size_t n, const char *what)
{
    struct probe have = probe(s);
    assert_int_equal(mtplx_seq_length(s), n);
    if (memcmp(have.hidden, want->hidden, sizeof have.hidden) != 0)
        fail_msg("%s, %zu tokens: another hidden state", what, n);
    for (int i = 0; i <= STEPS; i++)
        if (memcmp(have.logits[i], want->logits[i], sizeof have.logits[i]) != 0)
            fail_msg("%s, %zu tokens: other logits at step %d", what, n, i);
}

/* A snapshot of n tokens is what a cold run of them would be. */
static void check_snapshot(mtplx_snapshot *p, size_t n, const char *what)
{
    size_t count;
    const int32_t *tokens = mtplx_snapshot_tokens(p, &count);
    assert_int_equal(count, n);
    assert_memory_equal(tokens, ids, n * sizeof *ids);
    assert_int_equal(p->n_kv, mx_kv_blocks_for((int64_t)n));
    assert_true(p->mtp_len <= (int64_t)n - 1);
    assert_int_equal(p->n_lag, (int64_t)n - p->mtp_len);
    mtplx_seq *c = cold(p->model, n), *s = restore(p);
    struct probe want = probe(c);
    check_like(s, &want, n, what);
    feed_to(c, n + 90, MOST);
    feed_to(s, n + 90, 7);
    want = probe(c);
    check_like(s, &want, n + 90, what);
    mtplx_seq_free(c);
    mtplx_seq_free(s);
}

static uint64_t sum_of(struct mx_device *d, struct mx_kv_block *const *blocks, size_t n, uint64_t h)
{
    for (size_t i = 0; i < n; i++) {
        size_t bytes = mx_kv_pool_block_bytes(blocks[i]->pool);
        uint8_t *copy = malloc(bytes);
        d->ops->download(d, copy, blocks[i]->data, bytes);
        for (size_t k = 0; k < bytes; k++)
            h = (h ^ copy[k]) * 0x100000001b3u;
        free(copy);
    }
    return h;
}

/* Of every byte in a snapshot's blocks, also behind its end: B1 says that none of them changes. */
static uint64_t block_sum(const mtplx_snapshot *p)
{
    struct mx_device *d = p->model->device;
    return sum_of(d, p->mtp, p->n_mtp, sum_of(d, p->kv, p->n_kv, 0xcbf29ce484222325u));
}

static uint64_t used_bytes(struct mx_kv_pool *p)
{
    uint64_t used, idle;
    mx_kv_pool_bytes(p, &used, &idle);
    return used;
}

static void close_model(mtplx_model *m)
{
    assert_int_equal(used_bytes(m->kv_pool), 0); /* every block is back */
    assert_int_equal(used_bytes(m->mtp_pool), 0);
    mtplx_model_free(m);
}

/* ---- Take and restore --------------------------------------------------------------------- */

static const char *const devices[] = {"ref", "cpu"};

static void test_restore(void **state)
{
    (void)state;
    static const size_t lengths[] = {1, 2, 6, 63, 64, 65, 128, 200};
    for (int d = SLOW_BUILD; d < 2; d++) {
        mtplx_model *m = open_tiny(devices[d], 0);
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i += SLOW_BUILD ? 3 : 1) {
            size_t n = lengths[i];
            mtplx_seq *s = new_seq(m);
            feed_to(s, n, i % 2 ? 3 : MOST); /* short passes leave a lag */
            struct probe want = probe(s);
            mtplx_snapshot *p = snap(s);
            uint64_t sum = block_sum(p);
            check_like(s, &want, n, "after a snapshot");
            check_snapshot(p, n, "fresh");
            feed(s, ids + 300, 100); /* another way on: copies the block it writes */
            check_snapshot(p, n, "original went on");
            mtplx_seq_reset(s);
            feed(s, ids + 100, 150);
            check_snapshot(p, n, "original was reset");
            mtplx_seq *a = restore(p), *b = restore(p);
            feed(a, ids + 400, 30);
            assert_true(block_sum(p) == sum);
            mtplx_snapshot_free(p);
            mtplx_seq_free(s);
            mtplx_seq_free(a);
            check_like(b, &want, n, "all others are gone");
            mtplx_seq_free(b);
        }
        close_model(m);
    }
}

static void test_take_over(void **state)
{
    (void)state;
    mtplx_model *m = open_tiny("cpu", 0);
    for (size_t n = 1; n < 140; n += SLOW_BUILD ? 63 : 23) {
        mtplx_snapshot *p = mx_snapshot_take_over(cold(m, n), NULL);
        assert_non_null(p);
        check_snapshot(p, n, "taken over");
        mtplx_snapshot *q = mx_snapshot_ref(p);
        mx_snapshot_unref(p);
        check_snapshot(q, n, "taken over");
        mx_snapshot_unref(q);
    }
    mtplx_error err = {0};
    assert_null(mx_snapshot_take_over(new_seq(m), &err));
    assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);
    close_model(m);
}

static void test_errors(void **state)
{
    (void)state;
    mtplx_model *m = open_tiny("cpu", 0);
    mtplx_seq *s = new_seq(m);
    mtplx_error err = {0};
    assert_null(mtplx_seq_snapshot(s, &err));
    assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);
    feed(s, ids, 5);
    mtplx_row row = {.seq = s, .token = 1};
    assert_int_equal(mtplx_forward(m, &row, 1, MTPLX_VERIFY, false, NULL, NULL), MTPLX_OK);
    assert_null(mtplx_seq_snapshot(s, &err));
    assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "pending"));
    assert_int_equal(mtplx_seq_commit(s, 0, NULL), MTPLX_OK);
    mtplx_snapshot *p = snap(s);
    check_snapshot(p, 5, "after a rejected block");
    mtplx_snapshot_free(p);
    mtplx_snapshot_free(NULL);
    mtplx_seq_free(s);
    close_model(m);
}

/* Drafts and verify rows lie behind the end, also over a block border, and are nobody's history. */
static void test_while_drafting(void **state)
{
    (void)state;
    mtplx_model *m = open_tiny("cpu", 0);
    for (size_t n = 58; n < 68; n += SLOW_BUILD ? 3 : 1) {
        mtplx_seq *s = cold(m, n);
        struct probe want = probe(s);
        mtplx_row rows[4];
        for (size_t i = 0; i < 4; i++) {
            int32_t token = ids[n + i];
            assert_int_equal(mtplx_draft(m, &s, &token, 1, NULL, NULL), MTPLX_OK);
            rows[i] = (mtplx_row){.seq = s, .token = token};
        }
        mtplx_snapshot *p = snap(s);
        uint64_t sum = block_sum(p);
        assert_int_equal(mtplx_forward(m, rows, 4, MTPLX_VERIFY, false, NULL, NULL), MTPLX_OK);
        assert_int_equal(mtplx_seq_commit(s, 3, NULL), MTPLX_OK);
        assert_true(block_sum(p) == sum);
        mtplx_seq *back = restore(p), *c = cold(m, n + 3);
        check_like(back, &want, n, "taken between drafts");
        check_snapshot(p, n, "taken between drafts");
        want = probe(c);
        check_like(s, &want, n + 3, "committed afterwards");
        mtplx_seq_free(c);
        mtplx_seq_free(back);
        mtplx_seq_free(s);
        mtplx_snapshot_free(p);
    }
    close_model(m);
}

/* ---- Captures ----------------------------------------------------------------------------- */

static size_t take_all(mtplx_seq *s, mtplx_snapshot **out)
{
    size_t n = mx_seq_take_captured(s, out, MX_MAX_CAPTURES);
    assert_int_equal(mx_seq_take_captured(s, out + n, MX_MAX_CAPTURES), 0);
    return n;
}

static void check_captures(mtplx_model *m, size_t step)
{
    static const size_t at[] = {1, 2, 5, 31, 32, 33, 63, 64, 65, 100, 128, 129, 199, 200};
    enum { N = sizeof at / sizeof *at };
    mtplx_snapshot *got[MX_MAX_CAPTURES];
    mtplx_seq *s = new_seq(m);
    for (size_t i = 0; i < N; i++)
        mx_seq_want_capture(s, at[(i * 5) % N]);
    mx_seq_want_capture(s, 64); /* again */
    feed_to(s, 200, step);
    assert_int_equal(take_all(s, got), N);
    uint64_t sums[N];
    for (size_t i = 0; i < N; i++)
        sums[i] = block_sum(got[i]);
    feed(s, ids + 300, 70); /* the original goes on */
    mtplx_seq_free(s);
    for (size_t i = 0; i < N; i++) {
        assert_true(block_sum(got[i]) == sums[i]);
        check_snapshot(got[i], at[i], "captured");
        mtplx_snapshot_free(got[i]);
    }
}

static void test_captures(void **state)
{
    (void)state;
    static const struct {
        const char *device;
        int max_rows;
        size_t step;
    } cases[] = {{"cpu", 256, MOST}, {"cpu", 64, MOST}, {"cpu", 32, 3},
                 {"cpu", 256, 1},    {"ref", 64, MOST}, {"cpu", 48, 6}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += SLOW_BUILD ? 6 : 1) {
        mtplx_model *m = open_tiny(cases[i].device, cases[i].max_rows);
        check_captures(m, cases[i].step);
        close_model(m);
    }
}

/* Several sequences in one ragged pass of several chunks, each with wants of its own. */
static void test_ragged_captures(void **state)
{
    (void)state;
    static const size_t before[] = {0, 10, 64, 0}, rows_of[] = {90, 3, 70, 40};
    static const size_t counts[] = {MX_MAX_CAPTURES, 1, 8, 0};
    mtplx_model *m = open_tiny("cpu", 64);
    mtplx_seq *seqs[4];
    mtplx_row rows[MOST];
    size_t n = 0;
    for (int i = 0; i < 4; i++) {
        seqs[i] = new_seq(m);
        feed_to(seqs[i], before[i], MOST);
        for (size_t k = 1; i < 3 && k <= rows_of[i]; k += 1 + (size_t)i * 4)
            mx_seq_want_capture(seqs[i], before[i] + k);
        for (size_t k = 0; k < rows_of[i]; k++)
            rows[n++] = (mtplx_row){.seq = seqs[i], .token = ids[before[i] + k]};
    }
    assert_int_equal(mtplx_forward(m, rows, n, MTPLX_COMMIT, false, NULL, NULL), MTPLX_OK);
    for (int i = 0; i < 4; i++) {
        mtplx_snapshot *got[MX_MAX_CAPTURES];
        size_t count = take_all(seqs[i], got);
        assert_int_equal(count, counts[i]);
        mtplx_seq_free(seqs[i]);
        for (size_t k = 0; k < count; k++) {
            if (!SLOW_BUILD || k % 8 == 0)
                check_snapshot(got[k], before[i] + 1 + k * (1 + (size_t)i * 4), "ragged");
            mtplx_snapshot_free(got[k]);
        }
    }
    close_model(m);
}

/* What a want does not survive: decoding past it, a reset; forks do not inherit it. */
static void test_dropped_captures(void **state)
{
    (void)state;
    mtplx_model *m = open_tiny("cpu", 0);
    mtplx_snapshot *got[MX_MAX_CAPTURES];
    mtplx_seq *s = cold(m, 10);
    mx_seq_want_capture(s, 10); /* is that long */
    mx_seq_want_capture(s, 12); /* committed from a verify block */
    mx_seq_want_capture(s, 20);
    mtplx_row rows[3] = {{.seq = s, .token = ids[10]}, {.seq = s, .token = ids[11]}, {.seq = s}};
    assert_int_equal(mtplx_forward(m, rows, 3, MTPLX_VERIFY, false, NULL, NULL), MTPLX_OK);
    assert_int_equal(mtplx_seq_commit(s, 2, NULL), MTPLX_OK);
    assert_int_equal(take_all(s, got), 0);
    mtplx_seq *f = mtplx_seq_fork(s, NULL);
    feed_to(s, 30, MOST);
    feed_to(f, 30, MOST);
    assert_int_equal(take_all(f, got), 0);
    assert_int_equal(take_all(s, got), 1);
    check_snapshot(got[0], 20, "wanted before");
    mtplx_snapshot_free(got[0]);
    mtplx_seq_free(f);

    for (size_t i = 0; i < 2 * MX_MAX_CAPTURES; i++)
        mx_seq_want_capture(s, 31 + i);
    feed_to(s, 40, MOST);
    assert_int_equal(mx_seq_take_captured(s, got, 2), 2); /* shortest first, the rest stays */
    check_snapshot(got[0], 31, "first");
    check_snapshot(got[1], 32, "second");
    mtplx_snapshot_free(got[0]);
    mtplx_snapshot_free(got[1]);
    mtplx_seq_reset(s);
    feed_to(s, 60, MOST);
    assert_int_equal(take_all(s, got), 0);
    mx_seq_want_capture(s, 70);
    feed_to(s, 80, MOST);
    mtplx_seq_free(s); /* with a snapshot that nobody took */
    close_model(m);
}

/* A pass that is refused changes nothing; the next one captures. */
static void test_refused_pass(void **state)
{
    (void)state;
    mtplx_model *m = open_tiny("cpu", 0);
    mtplx_snapshot *got[MX_MAX_CAPTURES];
    mtplx_seq *s = cold(m, 10);
    mx_seq_want_capture(s, 11);
    mtplx_row rows[2] = {{.seq = s, .token = ids[10]}, {.seq = s, .token = VOCAB}};
    assert_int_equal(mtplx_forward(m, rows, 2, MTPLX_COMMIT, false, NULL, NULL),
                     MTPLX_ERR_ARGUMENT);
    assert_int_equal(take_all(s, got), 0);
    feed_to(s, 12, MOST);
    assert_int_equal(take_all(s, got), 1);
    check_snapshot(got[0], 11, "after a refusal");
    mtplx_snapshot_free(got[0]);
    mtplx_seq_free(s);
    close_model(m);
}

/* ---- Forks and sharing -------------------------------------------------------------------- */

static void test_forks_diverge(void **state)
{
    (void)state;
    mtplx_model *m = open_tiny("cpu", 0);
    for (size_t n = 60; n <= 68; n += SLOW_BUILD ? 4 : 1) {
        mtplx_seq *a = cold(m, n), *want = cold(m, n), *other = cold(m, n);
        mtplx_seq *b = mtplx_seq_fork(a, NULL), *c = mtplx_seq_fork(b, NULL);
        feed(a, ids + n, 20);
        feed(want, ids + n, 20);
        feed(b, ids + 400, 20);
        feed(other, ids + 400, 20);
        struct probe p = probe(want), q = probe(other);
        check_like(a, &p, n + 20, "original");
        check_like(b, &q, n + 20, "fork");
        mtplx_seq_free(a);
        mtplx_seq_free(b);
        feed(c, ids + n, 20);
        check_like(c, &p, n + 20, "fork of a fork");
        mtplx_seq_free(c);
        mtplx_seq_free(want);
        mtplx_seq_free(other);
    }
    close_model(m);
}

static void test_sharing(void **state)
{
    (void)state;
    mtplx_model *m = open_tiny("cpu", 0);
    mtplx_seq *s = new_seq(m), *forks[5];
    for (int i = 0; i < 4; i++)
        feed(s, ids, 500);
    uint64_t one = used_bytes(m->kv_pool), block = mx_kv_pool_block_bytes(m->kv_pool);
    assert_int_equal(one, 32 * block); /* 2,000 tokens */
    for (int i = 0; i < 5; i++)
        forks[i] = mtplx_seq_fork(s, NULL);
    assert_int_equal(used_bytes(m->kv_pool), one);
    for (int i = 0; i < 5; i++)
        feed(forks[i], ids + i, 20);
    for (int i = 0; i < 5; i++)
        assert_true(mx_seq_bytes(forks[i]) <= mx_seq_bytes_for(m, 2020));
    assert_int_equal(used_bytes(m->kv_pool), one + 5 * block); /* the last block of each */
    mtplx_snapshot *p = snap(s);
    assert_true(mtplx_snapshot_bytes(p) >= mx_snapshot_own_bytes(p) + one);
    assert_true(mx_snapshot_own_bytes_for(m, 2000) >= mx_snapshot_own_bytes(p));
    for (int i = 0; i < 5; i++)
        mtplx_seq_free(forks[i]);
    mtplx_seq_free(s);
    assert_int_equal(used_bytes(m->kv_pool), one);
    mtplx_snapshot_free(p);
    uint64_t used, idle;
    mx_kv_pool_bytes(m->kv_pool, &used, &idle);
    assert_true(used == 0 && idle > 0 && idle <= ((uint64_t)32 << 20));
    mx_kv_pool_trim(m->kv_pool, 3 * block);
    mx_kv_pool_bytes(m->kv_pool, &used, &idle);
    assert_int_equal(idle, 3 * block);
    mx_kv_pool_trim(m->kv_pool, 0);
    mx_kv_pool_bytes(m->kv_pool, &used, &idle);
    assert_int_equal(idle, 0);
    close_model(m);
}

/* ---- Without recurrent layers ------------------------------------------------------------- */

/* The fixture's two attention layers alone, as a checkpoint in `dir`. */
static void write_attention_only(const char *dir)
{
    static const char *const from[] = {".layers.3.", ".layers.7."};
    char path[512], name[256];
    struct mx_safetensors st;
    assert_int_equal(
        mx_safetensors_open(&st, src_path("tests/golden/qwen3_5_text/model.safetensors"), NULL),
        MTPLX_OK);
    struct mx_st_writer *w = mx_st_writer_new("pt", NULL);
    for (size_t i = 0; i < st.count; i++) {
        const struct mx_tensor *t = &st.tensors[i];
        const char *at = strstr(t->name, ".layers."), *rest = t->name;
        int layer = -1;
        for (int k = 0; at && k < 2; k++)
            if (strncmp(at, from[k], strlen(from[k])) == 0)
                layer = k;
        if (at && layer < 0 && strncmp(t->name, "mtp.", 4) != 0)
            continue;
        snprintf(name, sizeof name, "%s", rest);
        if (layer >= 0)
            snprintf(name, sizeof name, "%.*s.layers.%d.%s", (int)(at - rest), rest, layer,
                     at + strlen(from[layer]));
        assert_int_equal(mx_st_writer_add(w, name, t->dtype, t->ndim, t->shape, t->data, NULL),
                         MTPLX_OK);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(mx_st_writer_finish(w, path, NULL), MTPLX_OK);
    mx_st_writer_free(w);
    mx_safetensors_close(&st);
    json_t *c = json_load_file(src_path("tests/golden/qwen3_5_text/config.json"), 0, NULL);
    json_object_set_new(c, "num_hidden_layers", json_integer(2));
    json_object_set_new(c, "layer_types", json_pack("[ss]", "full_attention", "full_attention"));
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(json_dump_file(c, path, 0), 0);
    json_decref(c);
}

static void remove_dir(const char *dir)
{
    static const char *const files[] = {"model.safetensors", "config.json"};
    char path[512];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    rmdir(dir);
}

/* A sequence cut at n tokens, against a cold one; then a snapshot of it. */
static void check_cut(const mtplx_snapshot *p, size_t n)
{
    mtplx_snapshot *cut = mx_snapshot_cut(p, n);
    assert_non_null(cut);
    mtplx_seq *s = restore(cut), *c = cold(p->model, n);
    mtplx_forward_result r;
    mtplx_error err = {0};
    if (cut->mtp_len == (int64_t)n) {
        mtplx_row wrong = {.seq = s, .token = (ids[n] + 1) % VOCAB};
        assert_int_equal(mtplx_forward(p->model, &wrong, 1, MTPLX_COMMIT, false, &r, &err),
                         MTPLX_ERR_ARGUMENT);
        assert_int_equal(mtplx_draft(p->model, &s, &ids[n], 1, &r, &err), MTPLX_ERR_ARGUMENT);
    }
    mtplx_snapshot *again = snap(s);
    mtplx_seq *t = restore(again);
    struct probe want = probe(c);
    check_like(s, &want, n, "cut");
    check_like(t, &want, n, "cut and taken again");
    feed_to(s, n + 50, n % 2 ? 1 : MOST);
    feed_to(t, n + 50, 7);
    feed_to(c, n + 50, MOST);
    want = probe(c);
    check_like(s, &want, n + 50, "cut");
    check_like(t, &want, n + 50, "cut and taken again");
    mtplx_snapshot_free(cut);
    mtplx_snapshot_free(again);
    mtplx_seq_free(s);
    mtplx_seq_free(t);
    mtplx_seq_free(c);
}

static void test_cut(void **state)
{
    (void)state;
    char dir[] = "/tmp/mtplx-snapshot-XXXXXX";
    assert_non_null(mkdtemp(dir));
    write_attention_only(dir);
    mtplx_model *m = open_at(dir, "cpu", 0);
    assert_true(mx_snapshot_can_cut(m));
    for (size_t step = 2; step < MOST; step += 600) { /* with a lag, and without */
        mtplx_seq *s = new_seq(m);
        feed_to(s, 140, step);
        mtplx_snapshot *p = snap(s);
        assert_null(mx_snapshot_cut(p, 0));
        assert_null(mx_snapshot_cut(p, 140));
        for (size_t n = 1; n < 140; n += SLOW_BUILD || n < 60 || (n > 66 && n < 133) ? 13 : 1)
            check_cut(p, n);
        feed(s, ids + 300, 70);
        check_cut(p, 139);
        mtplx_snapshot_free(p);
        mtplx_seq_free(s);
    }
    check_captures(m, SLOW_BUILD ? 5 : MOST);
    int32_t far[3] = {50, 50, 50};
    mtplx_seq *s = cold(m, 10);
    mtplx_row row = {.seq = s, .token = 1, .position = far};
    assert_int_equal(mtplx_forward(m, &row, 1, MTPLX_COMMIT, false, NULL, NULL), MTPLX_OK);
    mtplx_snapshot *p = snap(s);
    assert_null(mx_snapshot_cut(p, 5)); /* where token 5 would stand is not known */
    mtplx_snapshot_free(p);
    mtplx_seq_free(s);
    close_model(m);
    m = open_tiny("cpu", 0);
    s = cold(m, 10);
    p = snap(s);
    assert_false(mx_snapshot_can_cut(m));
    assert_null(mx_snapshot_cut(p, 5));
    mtplx_snapshot_free(p);
    mtplx_seq_free(s);
    close_model(m);
    remove_dir(dir);
}

/* ---- Memory that is not there ------------------------------------------------------------- */

static struct {
    const struct mx_device_ops *real;
    struct mx_device_ops ops;
    int left; /* allocations that succeed */
} scarce;

static void *scarce_alloc(struct mx_device *d, size_t bytes)
{
    return scarce.left-- > 0 ? scarce.real->alloc(d, bytes) : NULL;
}

/* From now on only `n` pieces of device memory can be had; negative: as many as wanted. */
static void limit(mtplx_model *m, int n)
{
    if (!scarce.real) {
        scarce.real = m->device->ops;
        scarce.ops = *scarce.real;
        scarce.ops.alloc = scarce_alloc;
    }
    scarce.left = n;
    m->device->ops = n < 0 ? scarce.real : &scarce.ops;
    mx_kv_pool_trim(m->kv_pool, 0);
    mx_kv_pool_trim(m->mtp_pool, 0);
}

/* A pass for which there is no memory leaves the sequence and those it shares with as they were. */
static void check_scarce_pass(mtplx_model *m, mtplx_seq *s, const struct probe *want, int pieces)
{
    mtplx_row rows[150];
    mtplx_error err = {0};
    mtplx_seq *f = mtplx_seq_fork(s, NULL);
    for (size_t i = 0; i < 150; i++)
        rows[i] = (mtplx_row){.seq = f, .token = ids[100 + i]};
    limit(m, pieces);
    mtplx_status st = mtplx_forward(m, rows, 150, MTPLX_COMMIT, false, NULL, &err);
    limit(m, -1);
    assert_true(st == MTPLX_OK || st == MTPLX_ERR_MEMORY);
    if (st != MTPLX_OK)
        check_like(f, want, 100, "after a pass without memory");
    mtplx_seq *c = cold(m, 250);
    feed_to(f, 250, MOST);
    struct probe end = probe(c);
    check_like(f, &end, 250, "after more memory");
    check_like(s, want, 100, "beside a pass without memory");
    mtplx_seq_free(c);
    mtplx_seq_free(f);
}

static void test_no_memory(void **state)
{
    (void)state;
    mtplx_model *m = open_tiny("cpu", 0);
    mtplx_error err = {0};
    mtplx_seq *s = cold(m, 100);
    struct probe want = probe(s);
    mtplx_seq_free(cold(m, 250)); /* buffers of the model exist */
    for (int pieces = 0; pieces < 9; pieces += SLOW_BUILD ? 4 : 1)
        check_scarce_pass(m, s, &want, pieces);
    mtplx_snapshot *p = snap(s);
    for (int pieces = 0; pieces < 2; pieces++) { /* slab and lag */
        limit(m, pieces);
        assert_null(mtplx_seq_snapshot(s, &err));
        assert_int_equal(err.status, MTPLX_ERR_MEMORY);
        assert_null(mtplx_seq_restore(p, &err));
        assert_int_equal(err.status, MTPLX_ERR_MEMORY);
        limit(m, -1);
    }
    check_like(s, &want, 100, "after failures");
    mtplx_snapshot_free(p);
    mtplx_seq_free(s);
    close_model(m);
}

/* Captures without memory are left out; the pass is as good. */
static void test_scarce_captures(void **state)
{
    (void)state;
    mtplx_model *m = open_tiny("cpu", 0);
    mtplx_seq *c = cold(m, 60);
    struct probe want = probe(c);
    mtplx_seq_free(c);
    size_t most = 0;
    for (int pieces = 3; pieces < 10; pieces++) { /* three KV blocks first */
        mtplx_snapshot *got[MX_MAX_CAPTURES];
        mtplx_seq *s = new_seq(m);
        for (size_t at = 20; at <= 50; at += 15)
            mx_seq_want_capture(s, at);
        limit(m, pieces);
        feed_to(s, 60, MOST);
        limit(m, -1);
        size_t n = take_all(s, got);
        assert_true(n >= most && n <= 3);
        most = n;
        for (size_t i = 0; i < n; i++) {
            check_snapshot(got[i], got[i]->n, "scarce");
            mtplx_snapshot_free(got[i]);
        }
        check_like(s, &want, 60, "scarce");
        mtplx_seq_free(s);
    }
    assert_int_equal(most, 3);
    close_model(m);
}

/* ---- Threads ------------------------------------------------------------------------------ */

/* Restores, forks and drops on a thread of its own, beside the owner's passes. */
static void *restorer(void *arg)
{
    mtplx_snapshot *p = arg;
    for (int i = 0; i < 40; i++) {
        mtplx_seq *s = mx_snapshot_restore(p, NULL);
        mtplx_seq *f = s ? mtplx_seq_fork(s, NULL) : NULL;
        mtplx_row row = {.seq = f, .token = ids[i]};
        if (!f || mtplx_forward(p->model, &row, 1, MTPLX_COMMIT, false, NULL, NULL) != MTPLX_OK)
            return p;
        mtplx_seq_free(s);
        mtplx_model_lock(p->model);
        mtplx_snapshot *q = mx_snapshot_take_over(f, NULL);
        mtplx_model_unlock(p->model);
        if (!q)
            return p;
        mx_snapshot_unref(q);
    }
    mx_snapshot_unref(p);
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    pthread_t threads[2];
    mtplx_model *m = open_tiny("cpu", 32);
    mtplx_seq *s = cold(m, 100);
    mtplx_snapshot *p = snap(s);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, restorer, mx_snapshot_ref(p)), 0);
    for (size_t n = 101; n < 180; n++) {
        mtplx_snapshot *own = mtplx_seq_snapshot(s, NULL);
        mx_seq_want_capture(s, n);
        feed_to(s, n, 1);
        mtplx_snapshot_free(own);
    }
    for (int i = 0; i < 2; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    mtplx_seq_free(s);
    check_snapshot(p, 100, "beside other threads");
    mtplx_snapshot_free(p);
    close_model(m);
}

/* ---- Answers ------------------------------------------------------------------------------ */

struct answer {
    int32_t tokens[NEW_TOKENS];
    size_t n;
    mtplx_gen_stats stats;
};

/* Reads what the sequence lacks of `prompt` and answers. */
static struct answer generate(mtplx_seq *s, const int32_t *prompt, size_t n,
                              const mtplx_gen_options *o)
{
    struct answer a;
    mtplx_error err = {0};
    size_t at = mtplx_seq_length(s);
    mtplx_gen *g = mtplx_gen_new(s, prompt + at, n - at, o, &err);
    if (!g)
        fail_msg("%s", err.message);
    while (mtplx_gen_finish(g) == MTPLX_FINISH_NONE)
        assert_int_equal(mtplx_gen_step(g, &err), MTPLX_OK);
    const int32_t *tokens = mtplx_gen_tokens(g, &a.n);
    memcpy(a.tokens, tokens, a.n * sizeof *tokens);
    a.stats = *mtplx_gen_get_stats(g);
    mtplx_gen_free(g);
    return a;
}

static void check_answers(const struct answer *a, const struct answer *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->tokens, b->tokens, a->n * sizeof *a->tokens);
    assert_memory_equal(a->stats.drafted, b->stats.drafted, sizeof a->stats.drafted);
    assert_memory_equal(a->stats.accepted, b->stats.accepted, sizeof a->stats.accepted);
}

/* Greedy and sampled, at every depth, with penalties and copied drafts. */
static mtplx_gen_options request(int i)
{
    mtplx_gen_options o = {.max_tokens = NEW_TOKENS, .depth = i % 5, .ignore_stop = true};
    o.sampling = (mtplx_sampling){.temperature = i % 2 ? 0.9 : 0,
                                  .repetition_penalty = i % 3 == 2 ? 1.1 : 1,
                                  .seed = (uint64_t)i};
    o.context_copy = i % 4 == 3;
    return o;
}

/* The same answer cold, with captures, and from each of them; returns the cold one's sequence. */
static mtplx_seq *check_request(mtplx_model *m, const int32_t *prompt, size_t n, int i)
{
    mtplx_gen_options o = request(i);
    mtplx_snapshot *got[MX_MAX_CAPTURES];
    mtplx_seq *s = new_seq(m), *t = new_seq(m);
    struct answer plain = generate(s, prompt, n, &o);
    mx_seq_want_capture(t, n / 3);
    mx_seq_want_capture(t, n / 2 + (size_t)i % 8);
    mx_seq_want_capture(t, n - 1);
    struct answer captured = generate(t, prompt, n, &o);
    check_answers(&plain, &captured);
    assert_int_equal(take_all(t, got), 3);
    mtplx_seq_free(t);
    for (int k = 0; k < 3; k++) {
        t = restore(got[k]);
        mtplx_snapshot_free(got[k]);
        struct answer again = generate(t, prompt, n, &o);
        check_answers(&plain, &again);
        mtplx_seq_free(t);
    }
    return s;
}

static void test_answers(void **state)
{
    (void)state;
    enum { PROMPT = 210 };
    mtplx_model *m = open_tiny("cpu", 128);
    for (int i = 0; i < 20; i += SLOW_BUILD ? 6 : 1) {
        mtplx_seq *s = check_request(m, ids, PROMPT, i);
        mtplx_snapshot *end = snap(s);
        mtplx_seq *r = restore(end); /* the next turn */
        feed(r, ids + 500, 30);
        feed(s, ids + 500, 30);
        assert_int_equal(mtplx_seq_length(r), mtplx_seq_length(s));
        assert_memory_equal(mtplx_seq_tokens(r), mtplx_seq_tokens(s),
                            mtplx_seq_length(r) * sizeof *ids);
        struct probe want = probe(s);
        check_like(r, &want, mtplx_seq_length(s), "next turn");
        mtplx_snapshot_free(end);
        mtplx_seq_free(r);
        mtplx_seq_free(s);
    }
    close_model(m);
}

/* A trained model, whose drafts are accepted. */
static void test_trained(void **state)
{
    (void)state;
    static const char messages[] =
        "[{\"role\":\"system\",\"content\":\"You are a patient assistant who counts things, tells "
        "short stories about foxes and writes small programs when somebody asks for one.\"},"
        "{\"role\":\"user\",\"content\":\"Count from 1 to 20, then tell me a story.\"}]";
    mtplx_load_options o = {.threads = 2, .max_rows = 32};
    mtplx_model *m = load_or_fail(src_path("models/nano"), &o);
    size_t len, n;
    char *text =
        mtplx_chat_render(m, messages, NULL, "{\"enable_thinking\":false}", true, &len, NULL);
    assert_non_null(text);
    int32_t *prompt = mtplx_encode(m, text, len, false, &n, NULL);
    assert_true(prompt && n > 40);
    for (int i = SLOW_BUILD; i < 20; i += SLOW_BUILD ? 12 : 3)
        mtplx_seq_free(check_request(m, prompt, n, i));
    mtplx_free(prompt);
    mtplx_free(text);
    close_model(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_restore),          cmocka_unit_test(test_take_over),
        cmocka_unit_test(test_errors),           cmocka_unit_test(test_while_drafting),
        cmocka_unit_test(test_captures),         cmocka_unit_test(test_ragged_captures),
        cmocka_unit_test(test_dropped_captures), cmocka_unit_test(test_refused_pass),
        cmocka_unit_test(test_forks_diverge),    cmocka_unit_test(test_sharing),
        cmocka_unit_test(test_answers),          cmocka_unit_test(test_cut),
        cmocka_unit_test(test_no_memory),        cmocka_unit_test(test_scarce_captures),
        cmocka_unit_test(test_trained),          cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
