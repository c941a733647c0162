/* Snapshots on disk: a state that was written, read in another model instance and continued gives
 * the tokens of a run from scratch; states of other models are told apart; whatever the bytes of a
 * file say, what comes of it is either that state or an error. */
#include "cold_rig.h"

#include <fcntl.h>
#include <sys/mount.h>

static mtplx_model *tiny(void)
{
    mtplx_load_options o = {.threads = 1};
    return load_or_fail(src_path(TINY), &o);
}

/* Bytes of the state that count: blocks behind the last entry do not. */
static void same_state(const mtplx_snapshot *a, const mtplx_snapshot *b)
{
    struct mx_state_view x, y;
    assert_int_equal(mx_state_view_open(&x, a, NULL), MTPLX_OK);
    assert_int_equal(mx_state_view_open(&y, b, NULL), MTPLX_OK);
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->next_pos, b->next_pos);
    assert_int_equal(a->mtp_len, b->mtp_len);
    assert_int_equal(a->n_lag, b->n_lag);
    assert_int_equal(a->n_kv, b->n_kv);
    assert_int_equal(a->n_mtp, b->n_mtp);
    assert_memory_equal(a->tokens, b->tokens, a->n * sizeof *a->tokens);
    for (size_t i = 0; i < x.shape.whole; i++) {
        assert_memory_equal(x.kv[i], y.kv[i], x.shape.kv_bytes);
        if (x.mtp[i])
            assert_memory_equal(x.mtp[i], y.mtp[i], x.shape.mtp_bytes);
    }
    assert_memory_equal(x.parts[0], y.parts[0], x.shape.bytes[0]);
    assert_memory_equal(a->rec, b->rec, x.shape.slab_bytes);
    mx_state_view_close(&x);
    mx_state_view_close(&y);
}

/* ---- Restart ------------------------------------------------------------------------------ */

static const size_t lengths[] = {64, 65, 66, 127, 128, 129, 191, 200, 321, 700};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

static void write_lengths(const char *dir, const int32_t *tokens)
{
    mtplx_model *m = tiny();
    struct mx_cold *c = rig_open(m, dir, NULL);
    for (int i = 0; i < LENGTHS; i++) {
        mtplx_snapshot *s = rig_snapshot(m, tokens, lengths[i]);
        assert_true(rig_put(c, s));
        mtplx_snapshot_free(s);
    }
    assert_true(mx_cold_flush(c, RIG_WAIT));
    mx_cold_close(c, RIG_WAIT);
    mtplx_model_free(m);
}

static void test_restart(void **state)
{
    (void)state;
    char *dir = rig_dir("restart");
    int32_t tokens[RIG_MAX];
    rig_tokens(1, tokens, RIG_MAX);
    write_lengths(dir, tokens);
    mtplx_model *m = tiny();
    struct mx_cold *c = rig_open(m, dir, NULL);
    mtplx_snapshot *have = NULL;
    for (int i = 0; i < LENGTHS; i++) {
        size_t n = lengths[i];
        mtplx_error err = {0};
        assert_int_equal(mx_cold_find(c, "scope", tokens, n + 1, 0), n);
        mtplx_snapshot *s = mx_cold_load(c, m, "scope", tokens, n, have, NULL, &err);
        if (!s)
            fail_msg("%zu tokens: %s", n, err.message);
        for (size_t b = 0; have && b < have->n / MX_KV_BLOCK; b++)
            assert_ptr_equal(s->kv[b], have->kv[b]);
        mtplx_snapshot *fresh = rig_snapshot(m, tokens, n);
        same_state(s, fresh);
        if (!SLOW_BUILD || i % 3 == 0)
            rig_same_answers(m, s);
        mtplx_snapshot_free(fresh);
        mtplx_snapshot_free(have);
        have = s;
    }
    mtplx_snapshot_free(have);
    mx_cold_close(c, 0);
    mtplx_model_free(m);
    rig_remove(dir);
}

/* States at the end of an answer, where drafts were accepted and rejected, and where hidden states
 * wait for the MTP head. */
static void test_answers(void **state)
{
    (void)state;
    char *dir = rig_dir("answers");
    int32_t tokens[RIG_MAX];
    mtplx_model *m = tiny();
    struct mx_cold *c = rig_open(m, dir, NULL);
    for (int talk = 0; talk < (SLOW_BUILD ? 2 : RIG_TALKS); talk++) {
        mtplx_gen_options o = rig_options(talk % 2);
        rig_tokens(talk, tokens, RIG_MAX);
        mtplx_seq *s = mtplx_seq_new(m, NULL);
        rig_run(s, tokens, 230 + 37 * (size_t)talk, &o, NULL);
        mtplx_snapshot *snap = mtplx_seq_snapshot(s, NULL);
        mtplx_seq_free(s);
        assert_true(rig_put(c, snap));
        assert_true(mx_cold_flush(c, RIG_WAIT));
        mtplx_snapshot *back = mx_cold_load(c, m, "scope", snap->tokens, snap->n, NULL, NULL, NULL);
        assert_non_null(back);
        same_state(back, snap);
        rig_same_answers(m, back);
        mtplx_snapshot_free(back);
        mtplx_snapshot_free(snap);
    }
    mx_cold_close(c, 0);
    mtplx_model_free(m);
    rig_remove(dir);
}

/* Every way to store KV entries, through a file and the tier, into another instance. */
static void test_kv_formats(void **state)
{
    (void)state;
    static const mtplx_kv_quant formats[] = {MTPLX_KV_OFF, MTPLX_KV_Q8, MTPLX_KV_Q6, MTPLX_KV_Q4};
    char *dir = rig_dir("formats"), path[700];
    int32_t tokens[RIG_MAX];
    snprintf(path, sizeof path, "%s/state", dir);
    rig_tokens(4, tokens, RIG_MAX);
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        const mtplx_load_options o = {.threads = 1, .kv_quant = formats[i]};
        mtplx_model *m = load_or_fail(src_path(TINY), &o);
        struct mx_cold *c = rig_open(m, dir, NULL);
        mtplx_snapshot *s = rig_snapshot(m, tokens, 300);
        assert_true(rig_put(c, s)); /* not there in this format */
        assert_int_equal(mtplx_snapshot_save(s, path, NULL), MTPLX_OK);
        mtplx_snapshot_free(s);
        mx_cold_close(c, RIG_WAIT);
        mtplx_model_free(m);
        m = load_or_fail(src_path(TINY), &o);
        c = rig_open(m, dir, NULL);
        s = mx_cold_load(c, m, "scope", tokens, 300, NULL, NULL, NULL);
        mtplx_snapshot *file = mtplx_snapshot_load(m, path, NULL);
        assert_true(s && file);
        same_state(s, file);
        rig_same_answers(m, s);
        if (!SLOW_BUILD)
            rig_same_answers(m, file);
        mtplx_snapshot_free(s);
        mtplx_snapshot_free(file);
        mx_cold_close(c, 0);
        mtplx_model_free(m);
    }
    rig_remove(dir);
}

/* ---- Finding ------------------------------------------------------------------------------ */

static void test_find(void **state)
{
    (void)state;
    char *dir = rig_dir("find");
    int32_t tokens[RIG_MAX], other[RIG_MAX];
    rig_tokens(1, tokens, RIG_MAX);
    rig_tokens(2, other, RIG_MAX);
    write_lengths(dir, tokens);
    mtplx_model *m = tiny();
    struct mx_cold *c = rig_open(m, dir, NULL);
    assert_int_equal(mx_cold_find(c, "scope", tokens, 1, 0), 0);
    assert_int_equal(mx_cold_find(c, "scope", tokens, 64, 0), 0);
    assert_int_equal(mx_cold_find(c, "scope", tokens, 66, 0), 65);
    assert_int_equal(mx_cold_find(c, "scope", tokens, 127, 0), 66);
    assert_int_equal(mx_cold_find(c, "scope", tokens, 700, 0), 321);
    assert_int_equal(mx_cold_find(c, "scope", tokens, 701, 0), 700);
    assert_int_equal(mx_cold_find(c, "scope", tokens, 701, 700), 0);
    assert_int_equal(mx_cold_find(c, "scope", tokens, 700, 320), 321);
    assert_int_equal(mx_cold_find(c, "elsewhere", tokens, 701, 0), 0);
    assert_int_equal(mx_cold_find(c, "scope", other, 701, 0), 200);
    other[199] = tokens[199] == 5 ? 6 : 5;
    assert_int_equal(mx_cold_find(c, "scope", other, 701, 0), 191);
    atomic_bool stop = true;
    mtplx_error err = {0};
    assert_null(mx_cold_load(c, m, "scope", tokens, 700, NULL, &stop, &err));
    assert_int_equal(err.status, MTPLX_ERR_CANCELLED);
    assert_null(mx_cold_load(c, m, "scope", tokens, 699, NULL, NULL, &err));
    mx_cold_close(c, 0);
    mtplx_model_free(m);
    rig_remove(dir);
}

/* What has no file of its own: too short to be found, or at positions that its tokens do not say.
 */
static void test_not_for_disk(void **state)
{
    (void)state;
    char *dir = rig_dir("unfit");
    int32_t tokens[RIG_MAX], at[3] = {0, 4, 7};
    rig_tokens(1, tokens, RIG_MAX);
    mtplx_model *m = tiny();
    struct mx_cold *c = rig_open(m, dir, NULL);
    mtplx_snapshot *s = rig_snapshot(m, tokens, 63);
    assert_false(rig_put(c, s));
    mtplx_snapshot_free(s);
    mtplx_seq *q = mtplx_seq_new(m, NULL);
    mtplx_row rows[80];
    for (int i = 0; i < 80; i++)
        rows[i] = (mtplx_row){.seq = q, .token = tokens[i], .position = i == 9 ? at : NULL};
    mtplx_forward_result r;
    assert_int_equal(mtplx_forward(m, rows, 80, MTPLX_COMMIT, false, &r, NULL), MTPLX_OK);
    s = mtplx_seq_snapshot(q, NULL);
    assert_false(rig_put(c, s));
    mtplx_snapshot_free(s);
    mtplx_seq_free(q);
    mx_cold_close(c, 0);
    mtplx_model_free(m);
    rig_remove(dir);
}

/* Whether all entries of a block from `n` on are zero. */
static bool zeros_behind(const struct mx_kv_layout *l, const uint8_t *block, size_t n)
{
    size_t entry = mx_kv_entry_bytes(l), most = (size_t)l->block_tokens;
    for (size_t at = 0; at < mx_kv_block_bytes(l); at += most * entry)
        for (size_t i = n * entry; i < most * entry; i++)
            if (block[at + i])
                return false;
    return true;
}

/* What another conversation left in a block is not written with this one. */
static void test_nothing_behind(void **state)
{
    (void)state;
    int32_t tokens[RIG_MAX];
    struct mx_state_view v;
    mtplx_model *m = tiny();
    const struct mx_geometry *g = &m->geometry;
    rig_tokens(1, tokens, RIG_MAX);
    mtplx_snapshot_free(rig_snapshot(m, tokens, 320)); /* its blocks are free now, and full */
    rig_tokens(2, tokens, RIG_MAX);
    mtplx_snapshot *s = rig_snapshot(m, tokens, 64 + 5);
    assert_int_equal(mx_state_view_open(&v, s, NULL), MTPLX_OK);
    assert_true(v.shape.tail);
    assert_false(zeros_behind(&g->kv, s->kv[1]->data, 5)); /* there is something to leave out */
    assert_false(zeros_behind(&g->kv, v.parts[1], 4));
    assert_true(zeros_behind(&g->kv, v.parts[1], 5));
    for (size_t i = v.shape.mtp_from; i < v.shape.mtp_to; i++) {
        size_t n = (size_t)s->mtp_len > i * 64 ? (size_t)s->mtp_len - i * 64 : 0;
        if (n < 64)
            assert_true(zeros_behind(&g->mtp_kv, v.parts[2 + i - v.shape.mtp_from], n));
    }
    mx_state_view_close(&v);
    mtplx_snapshot_free(s);
    mtplx_model_free(m);
}

/* An object with sound checksums and wrong numbers. */
static void noop(void *arg)
{
    (void)arg;
}

static void test_wrong_numbers(void **state)
{
    (void)state;
    int32_t tokens[RIG_MAX];
    rig_tokens(1, tokens, RIG_MAX);
    mtplx_model *m = tiny();
    mtplx_snapshot *s = rig_snapshot(m, tokens, 100);
    static const size_t at[] = {0, 4, 8, 16, 24, 31, 40};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        char *dir = rig_dir("numbers");
        struct rig_log log = {0};
        struct mx_cold *c = rig_open(m, dir, &log);
        struct mx_state_view v;
        mx_state_view_open(&v, s, NULL);
        ((uint8_t *)(uintptr_t)v.parts[0])[at[i]] ^= 0x40;
        struct mx_cold_key block = mx_cold_chain(mx_cold_chain_start("scope"), tokens, MX_KV_BLOCK);
        struct mx_cold_write objects[2] = {
            {.kind = MX_COLD_BLOCK,
             .key = block,
             .tokens = tokens,
             .n_tokens = MX_KV_BLOCK,
             .parts = {{v.kv[0], v.shape.kv_bytes}},
             .n_parts = 1,
             .session = "s",
             .scope = "scope"},
            {.kind = MX_COLD_SNAPSHOT,
             .key = mx_cold_chain(block, tokens + MX_KV_BLOCK, 100 - MX_KV_BLOCK),
             .parent = block,
             .tokens = tokens,
             .n_tokens = 100,
             .n_parts = v.shape.parts,
             .session = "s",
             .scope = "scope"}};
        for (int p = 0; p < v.shape.parts; p++)
            objects[1].parts[p] = (struct mx_cold_part){v.parts[p], v.shape.bytes[p]};
        assert_true(mx_cold_put(c, objects, 2, noop, NULL));
        assert_true(mx_cold_flush(c, RIG_WAIT));
        assert_int_equal(mx_cold_find(c, "scope", tokens, 101, 0), 100);
        mtplx_error err = {0};
        assert_null(mx_cold_load(c, m, "scope", tokens, 100, NULL, NULL, &err));
        assert_int_equal(err.status, MTPLX_ERR_FORMAT);
        assert_int_equal(log.lines, 1);
        assert_int_equal(mx_cold_find(c, "scope", tokens, 101, 0), 0);
        mx_cold_close(c, RIG_WAIT);
        mx_state_view_close(&v);
        rig_remove(dir);
    }
    mtplx_snapshot_free(s);
    mtplx_model_free(m);
}

/* ---- Identity ----------------------------------------------------------------------------- */

static struct mx_cold_identity identity_of(const char *path, const mtplx_load_options *o)
{
    struct mx_cold_identity id;
    mtplx_model *m = load_or_fail(path, o);
    uint64_t t0 = mx_now_ns();
    mx_cold_identify(m, &id);
    double ms = (double)(mx_now_ns() - t0) / 1e6;
    if (!SLOW_BUILD && ms > 50)
        print_message("an identity took %.1f ms\n", ms);
    assert_true(ms < 2000);
    mtplx_model_free(m);
    return id;
}

/* Which parts differ: "m", "t", "p" and their combinations. */
static const char *differs(const struct mx_cold_identity *a, const struct mx_cold_identity *b)
{
    static char out[4];
    int n = 0;
    if (memcmp(a->model, b->model, sizeof a->model) != 0)
        out[n++] = 'm';
    if (memcmp(a->text, b->text, sizeof a->text) != 0)
        out[n++] = 't';
    if (memcmp(a->policy, b->policy, sizeof a->policy) != 0)
        out[n++] = 'p';
    out[n] = '\0';
    return out;
}

/* A directory with the files of another as symbolic links. */
static char *linked_model(const char *from)
{
    char *dir = rig_dir("model"), *real = realpath(from, NULL), a[700], b[700];
    DIR *d = opendir(from);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(a, sizeof a, "%s/%s", real, e->d_name);
        snprintf(b, sizeof b, "%s/%s", dir, e->d_name);
        assert_int_equal(symlink(a, b), 0);
    }
    closedir(d);
    free(real);
    return dir;
}

/* Replaces a linked file by a copy with one byte changed. */
static void change(const char *dir, const char *name, long at)
{
    char path[700], *data;
    size_t len;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    data = mx_file_read(path, (size_t)64 << 20, &len, NULL);
    assert_non_null(data);
    data[at < 0 ? (long)len + at : at] ^= 1;
    unlink(path);
    assert_int_equal(mx_file_write(path, data, len, NULL), MTPLX_OK);
    free(data);
}

static void test_identity(void **state)
{
    (void)state;
    const mtplx_load_options plain = {.threads = 1}, two = {.threads = 2, .max_rows = 64},
                             bare = {.threads = 1, .no_mtp = true},
                             exact = {.threads = 1, .profile = MTPLX_PROFILE_EXACT},
                             ref = {.threads = 1, .device = "ref"},
                             q8 = {.threads = 1, .mlp_proj_quant = MTPLX_PROJ_Q8},
                             q4 = {.threads = 1, .mlp_proj_quant = MTPLX_PROJ_Q4},
                             head = {.threads = 1, .mtp_proj_quant = MTPLX_PROJ_Q4},
                             few = {.threads = 1, .draft_vocab = 500};
    struct mx_cold_identity base = identity_of(src_path("models/nano"), &plain), id;
    const struct {
        const mtplx_load_options *o;
        const char *want;
    } ways[] = {{&plain, ""},
                {&two, ""},
                {&few, ""},
                {&bare, "p"},
                {&exact, "p"},
                {&ref, "p"},
                {&q8, ""} /* as it is stored */,
                {&q4, "p"},
                {&head, "p"}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        id = identity_of(src_path("models/nano"), ways[i].o);
        if (strcmp(differs(&base, &id), ways[i].want) != 0)
            fail_msg("way %zu: \"%s\" differs, not \"%s\"", i, differs(&base, &id), ways[i].want);
    }
    char *dir = linked_model(src_path("models/nano"));
    id = identity_of(dir, &plain);
    assert_string_equal(differs(&base, &id), ""); /* wherever it lies */
    change(dir, "chat_template.jinja", -1);       /* its last line break */
    id = identity_of(dir, &plain);
    assert_string_equal(differs(&base, &id), "t");
    change(dir, "model.safetensors", -3);
    id = identity_of(dir, &plain);
    assert_string_equal(differs(&base, &id), "mt");
    rig_remove(dir);
    id = identity_of(src_path(TINY), &plain);
    assert_string_equal(differs(&base, &id), "mtp");
}

static void expect_elsewhere(const char *dir, const int32_t *tokens, const char *path,
                             const mtplx_load_options *o, char letter)
{
    mtplx_model *m = load_or_fail(path, o);
    struct mx_cold *c = rig_open(m, dir, NULL);
    struct mx_cold_key block = mx_cold_chain(mx_cold_chain_start("scope"), tokens, MX_KV_BLOCK);
    assert_int_equal(mx_cold_find(c, "scope", tokens, 701, 0), 0);
    assert_int_equal(mx_cold_elsewhere(c, MX_COLD_BLOCK, block), letter);
    assert_null(mx_cold_load(c, m, "scope", tokens, 64, NULL, NULL, NULL));
    mx_cold_close(c, 0);
    mtplx_model_free(m);
}

static void test_mismatch(void **state)
{
    (void)state;
    const mtplx_load_options plain = {.threads = 1}, bare = {.threads = 1, .no_mtp = true},
                             ref = {.threads = 1, .device = "ref"},
                             q8 = {.threads = 1, .kv_quant = MTPLX_KV_Q8};
    char *dir = rig_dir("mismatch"), *edited = linked_model(src_path(TINY));
    int32_t tokens[RIG_MAX];
    rig_tokens(1, tokens, RIG_MAX);
    write_lengths(dir, tokens);
    expect_elsewhere(dir, tokens, src_path(TINY), &bare, 'p');
    expect_elsewhere(dir, tokens, src_path(TINY), &ref, 'p');
    mtplx_model *m = tiny();
    bool quantises = m->info.kv_format != NULL;
    mtplx_model_free(m);
    if (quantises)
        expect_elsewhere(dir, tokens, src_path(TINY), &q8, 'p');
    change(edited, "model.safetensors", -3);
    expect_elsewhere(dir, tokens, edited, &plain, 'm');
    rig_remove(edited);
    rig_remove(dir);
}

/* ---- Snapshot files ----------------------------------------------------------------------- */

static char *read_bytes(const char *path, size_t *len)
{
    char *data = mx_file_read(path, (size_t)64 << 20, len, NULL);
    assert_non_null(data);
    return data;
}

static void test_file(void **state)
{
    (void)state;
    char *dir = rig_dir("file"), path[700];
    int32_t tokens[RIG_MAX];
    struct stat sb;
    snprintf(path, sizeof path, "%s/state", dir);
    rig_tokens(3, tokens, RIG_MAX);
    static const size_t counts[] = {1, 2, 63, 64, 200, 500};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i += SLOW_BUILD ? 2 : 1) {
        mtplx_error err = {0};
        mtplx_model *m = tiny();
        mtplx_snapshot *s = rig_snapshot(m, tokens, counts[i]);
        chmod(path, 0644); /* of the one before: replaced, not written into */
        if (mtplx_snapshot_save(s, path, &err) != MTPLX_OK)
            fail_msg("%s", err.message);
        mtplx_snapshot_free(s);
        mtplx_model_free(m);
        assert_int_equal(stat(path, &sb), 0);
        assert_int_equal(sb.st_mode & 0777, 0600);
        m = tiny();
        s = mtplx_snapshot_load(m, path, &err);
        if (!s)
            fail_msg("%s", err.message);
        mtplx_snapshot *fresh = rig_snapshot(m, tokens, counts[i]);
        same_state(s, fresh);
        rig_same_answers(m, s);
        mtplx_snapshot_free(fresh);
        mtplx_snapshot_free(s);
        mtplx_model_free(m);
    }
    DIR *d = opendir(dir);
    int files = 0;
    for (struct dirent *e; (e = readdir(d));)
        files += e->d_name[0] != '.';
    closedir(d);
    assert_int_equal(files, 1);
    rig_remove(dir);
}

static void expect_refused(mtplx_model *m, const char *path, mtplx_status want, const char *part)
{
    mtplx_error err = {0};
    mtplx_snapshot *s = mtplx_snapshot_load(m, path, &err);
    assert_null(s);
    if (err.status != want || !strstr(err.message, part))
        fail_msg("status %d, \"%s\"; wanted %d, \"%s\"", err.status, err.message, want, part);
}

static void test_file_errors(void **state)
{
    (void)state;
    char *dir = rig_dir("errors"), path[700], no[700];
    int32_t tokens[RIG_MAX];
    snprintf(path, sizeof path, "%s/state", dir);
    snprintf(no, sizeof no, "%s/no/state", dir);
    rig_tokens(3, tokens, RIG_MAX);
    mtplx_error err = {0};
    mtplx_model *m = tiny();
    mtplx_snapshot *s = rig_snapshot(m, tokens, 200);
    assert_int_equal(mtplx_snapshot_save(s, path, NULL), MTPLX_OK);
    assert_int_equal(mtplx_snapshot_save(s, no, &err), MTPLX_ERR_IO);
    assert_non_null(strstr(err.message, "no/state"));
    assert_int_equal(mtplx_snapshot_save(s, dir, &err), MTPLX_ERR_IO);
    assert_non_null(strstr(err.message, "not a regular file"));
    assert_int_equal(mtplx_snapshot_save(s, NULL, &err), MTPLX_ERR_ARGUMENT);
    assert_int_equal(mtplx_snapshot_save(NULL, path, &err), MTPLX_ERR_ARGUMENT);
    mtplx_snapshot_free(s);
    expect_refused(m, NULL, MTPLX_ERR_ARGUMENT, "a path");
    expect_refused(NULL, path, MTPLX_ERR_ARGUMENT, "a model");
    expect_refused(m, no, MTPLX_ERR_IO, "no/state");
    expect_refused(m, dir, MTPLX_ERR_IO, "regular");
    snprintf(no, sizeof no, "%s/empty", dir);
    assert_int_equal(mx_file_write(no, "", 0, NULL), MTPLX_OK);
    expect_refused(m, no, MTPLX_ERR_FORMAT, "empty");
    mx_model_limit_context(m, 150);
    expect_refused(m, path, MTPLX_ERR_FORMAT, "context window");
    mtplx_model_free(m);
    const mtplx_load_options bare = {.threads = 1, .no_mtp = true}, plain = {.threads = 1};
    m = load_or_fail(src_path(TINY), &bare);
    expect_refused(m, path, MTPLX_ERR_ARGUMENT, "another way");
    mtplx_model_free(m);
    m = load_or_fail(src_path("tests/golden/qwen3_5_vl"), &plain);
    expect_refused(m, path, MTPLX_ERR_ARGUMENT, "another model");
    mtplx_model_free(m);
    rig_remove(dir);
}

/* Loads a damaged file: it fails, or gives the state that was saved. */
static int try_load(mtplx_model *m, const char *path, const mtplx_snapshot *good)
{
    mtplx_error err = {0};
    mtplx_snapshot *s = mtplx_snapshot_load(m, path, &err);
    if (s) {
        same_state(s, good);
        mtplx_snapshot_free(s);
        return 1;
    }
    assert_true(err.status == MTPLX_ERR_FORMAT || err.status == MTPLX_ERR_ARGUMENT ||
                err.status == MTPLX_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "state"));
    return 0;
}

static int try_bytes(mtplx_model *m, const char *path, const char *data, size_t len,
                     const mtplx_snapshot *good)
{
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0 && write(fd, data, len) == (ssize_t)len);
    assert_int_equal(ftruncate(fd, (off_t)len), 0);
    close(fd);
    return try_load(m, path, good);
}

/* With one bit of the file changed. */
static int try_flip(mtplx_model *m, const char *path, size_t at, int bit,
                    const mtplx_snapshot *good)
{
    char byte = 0;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &byte, 1, (off_t)at) == 1);
    char changed = (char)(byte ^ (1 << bit));
    assert_true(pwrite(fd, &changed, 1, (off_t)at) == 1);
    int accepted = try_load(m, path, good);
    assert_true(pwrite(fd, &byte, 1, (off_t)at) == 1);
    close(fd);
    return accepted;
}

/* Where the records of a file start. */
static size_t record_starts(const char *data, size_t len, size_t *at, size_t most)
{
    size_t n = 0;
    for (size_t i = 0; i + 8 <= len && n < most; i++)
        if (memcmp(data + i, data, 8) == 0)
            at[n++] = i;
    return n;
}

static void test_file_hostile(void **state)
{
    (void)state;
    char *dir = rig_dir("hostile"), path[700];
    int32_t tokens[RIG_MAX];
    snprintf(path, sizeof path, "%s/state", dir);
    rig_tokens(3, tokens, RIG_MAX);
    mtplx_model *m = tiny();
    mtplx_snapshot *s = rig_snapshot(m, tokens, 200);
    assert_int_equal(mtplx_snapshot_save(s, path, NULL), MTPLX_OK);
    size_t len, at[8];
    char *data = read_bytes(path, &len), *bad = malloc(2 * len);
    size_t records = record_starts(data, len, at, 8), step = SLOW_BUILD ? 13 : 1;
    assert_int_equal(records, 4);
    assert_int_equal(try_bytes(m, path, data, len, s), 1);
    /* Every byte of the headers: 512 and the tokens. */
    int accepted = 0;
    for (size_t r = 0; r < records; r++)
        for (size_t i = 0; i < 512 + (r ? 64 : 200) * 4; i += step)
            accepted += try_flip(m, path, at[r] + i, (int)(i % 8), s);
    assert_int_equal(accepted, 0);
    /* Cut at the borders of records and elsewhere; grown. */
    for (size_t r = 0; r < records; r++)
        for (size_t d = 0; d < 3; d++)
            assert_int_equal(try_bytes(m, path, data, at[r] + d * 300, s), 0);
    for (size_t i = 1; i < 40; i++)
        assert_int_equal(try_bytes(m, path, data, len - i * (len / 41) - 1, s), 0);
    memcpy(bad, data, len);
    memcpy(bad + len, data, len);
    assert_int_equal(try_bytes(m, path, bad, len + 1, s), 0);
    assert_int_equal(try_bytes(m, path, bad, 2 * len, s), 0);
    /* Blocks 1 and 2 swapped, one of them twice, the snapshot twice. */
    size_t n1 = at[2] - at[1], n2 = at[3] - at[2];
    memcpy(bad + at[1], data + at[2], n2);
    memcpy(bad + at[1] + n2, data + at[1], n1);
    assert_int_equal(try_bytes(m, path, bad, len, s), 0);
    memcpy(bad, data, len);
    memcpy(bad + at[2], data + at[1], n1 < len - at[2] ? n1 : len - at[2]);
    assert_int_equal(try_bytes(m, path, bad, len, s), 0);
    /* Payload: a flip is found, but for bytes between the parts. */
    accepted = 0;
    uint64_t seed = 5;
    assert_int_equal(try_bytes(m, path, data, len, s), 1);
    for (int i = 0; i < (SLOW_BUILD ? 20 : 200); i++)
        accepted += try_flip(m, path, rig_next(&seed) % len, (int)(rig_next(&seed) % 8), s);
    assert_true(accepted < 60);
    free(bad);
    free(data);
    mtplx_snapshot_free(s);
    mtplx_model_free(m);
    rig_remove(dir);
}

/* ---- Disks that do not take it ------------------------------------------------------------ */

/* Talks go on, whatever the tier does; how many lines it logged. */
static int talk_on(mtplx_model *m, const char *dir, int talks)
{
    struct rig_log log = {0};
    struct mx_cold *c = rig_open(m, dir, &log);
    int32_t tokens[RIG_MAX], answer[RIG_ANSWER], want[RIG_ANSWER];
    for (int i = 0; i < talks; i++) {
        rig_tokens(100 + i, tokens, RIG_MAX);
        mtplx_snapshot *s = rig_snapshot(m, tokens, 400);
        rig_put(c, s);
        mx_cold_flush(c, RIG_WAIT);
        rig_warm(s, false, answer);
        rig_cold(m, tokens, 400, false, want);
        assert_memory_equal(answer, want, sizeof want);
        mtplx_snapshot_free(s);
    }
    struct mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    if (log.lines != 1)
        print_message("%s", log.all);
    mx_cold_close(c, RIG_WAIT);
    return log.lines;
}

static void test_disk_full(void **state)
{
    (void)state;
    char *dir = rig_dir("full");
    if (geteuid() != 0 || mount("tmpfs", dir, "tmpfs", 0, "size=2m,mode=700") != 0) {
        rig_remove(dir);
        skip();
    }
    mtplx_model *m = tiny();
    int lines = talk_on(m, dir, SLOW_BUILD ? 4 : 6);
    umount2(dir, MNT_DETACH);
    mtplx_model_free(m);
    rig_remove(dir);
    assert_int_equal(lines, 1);
}

static void test_read_only(void **state)
{
    (void)state;
    char *dir = rig_dir("readonly");
    int32_t tokens[RIG_MAX];
    if (geteuid() != 0 || mount("tmpfs", dir, "tmpfs", 0, "size=32m,mode=700") != 0) {
        rig_remove(dir);
        skip();
    }
    rig_tokens(1, tokens, RIG_MAX);
    write_lengths(dir, tokens);
    int lines = 0;
    size_t found = 0;
    if (mount("tmpfs", dir, "tmpfs", MS_REMOUNT | MS_RDONLY, NULL) == 0) {
        mtplx_model *m = tiny();
        struct mx_cold *c = rig_open(m, dir, NULL);
        found = mx_cold_find(c, "scope", tokens, 701, 0);
        mtplx_snapshot *s = mx_cold_load(c, m, "scope", tokens, 700, NULL, NULL, NULL);
        assert_non_null(s);
        rig_same_answers(m, s);
        mtplx_snapshot_free(s);
        mx_cold_close(c, 0);
        lines = talk_on(m, dir, SLOW_BUILD ? 1 : 3);
        mtplx_model_free(m);
    }
    umount2(dir, MNT_DETACH);
    rig_remove(dir);
    assert_int_equal(found, 700);
    assert_int_equal(lines, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_restart),        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_kv_formats),     cmocka_unit_test(test_find),
        cmocka_unit_test(test_not_for_disk),   cmocka_unit_test(test_wrong_numbers),
        cmocka_unit_test(test_nothing_behind), cmocka_unit_test(test_identity),
        cmocka_unit_test(test_mismatch),       cmocka_unit_test(test_file),
        cmocka_unit_test(test_file_errors),    cmocka_unit_test(test_file_hostile),
        cmocka_unit_test(test_disk_full),      cmocka_unit_test(test_read_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
