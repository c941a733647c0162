/* The session bank over a real model: what it restores goes on bit for bit like a cold run, after
 * edits, forks and appends, with prefixes that other sequences computed, through captures and
 * through the public interface. */
#include "golden.h"

#include "runtime/forward.h"
#include "session/bank_int.h"
#include "session/cold_state.h"

#include <ftw.h>
#include <unistd.h>

enum { MOST = 600, VOCAB = 320, OPENING = 80 };

static uint32_t noise_state = 1;

static uint32_t noise(uint32_t below)
{
    noise_state = noise_state * 1664525u + 1013904223u;
    return (noise_state >> 8) % below;
}

static void random_tokens(int32_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (int32_t)noise(VOCAB);
}

static mtplx_model *open_tiny(void)
{
    mtplx_load_options o = {.device = "cpu", .threads = 2, .max_rows = 128};
    return load_or_fail(src_path("tests/golden/qwen3_5_text"), &o);
}

static void feed(mtplx_seq *s, const int32_t *tokens, size_t n)
{
    mtplx_row rows[128];
    mtplx_error err = {0};
    for (size_t at = mtplx_seq_length(s); at < n;) {
        size_t k = n - at < 128 ? n - at : 128;
        for (size_t i = 0; i < k; i++)
            rows[i] = (mtplx_row){.seq = s, .token = tokens[at + i]};
        if (mtplx_forward(s->model, rows, k, MTPLX_COMMIT, false, NULL, &err) != MTPLX_OK)
            fail_msg("forward: %s", err.message);
        at += k;
    }
}

/* Reads the rest of the prompt and drafts: logits of trunk and head, which depend on the KV blocks,
 * the recurrent state, the MTP cache and the lag. */
struct probe {
    float next[VOCAB], draft[2][VOCAB];
};

static struct probe probe(mtplx_seq *s, const int32_t *tokens, size_t n)
{
    struct probe p;
    mtplx_forward_result r;
    mtplx_error err = {0};
    feed(s, tokens, n - 1);
    mtplx_row last = {.seq = s, .token = tokens[n - 1], .want_logits = true};
    if (mtplx_forward(s->model, &last, 1, MTPLX_COMMIT, false, &r, &err) != MTPLX_OK)
        fail_msg("forward: %s", err.message);
    memcpy(p.next, r.logits, sizeof p.next);
    for (int i = 0; i < 2; i++) {
        int32_t token = 5 + i;
        assert_int_equal(mtplx_draft(s->model, &s, &token, 1, &r, NULL), MTPLX_OK);
        memcpy(p.draft[i], r.logits, sizeof p.draft[i]);
    }
    mtplx_seq_free(s);
    return p;
}

static void check_equal(const struct probe *a, const struct probe *b)
{
    assert_memory_equal(a->next, b->next, sizeof a->next);
    assert_memory_equal(a->draft[0], b->draft[0], sizeof a->draft[0]);
    assert_memory_equal(a->draft[1], b->draft[1], sizeof a->draft[1]);
}

static struct probe cold_probe(mtplx_model *m, const int32_t *tokens, size_t n)
{
    return probe(mtplx_seq_new(m, NULL), tokens, n);
}

/* ---- Through captures --------------------------------------------------------------------- */

/* One request as a server makes it: restore, plan, read, keep captures and the end. */
static size_t request(struct mx_bank *b, mtplx_model *m, const int32_t *tokens, size_t n)
{
    struct mx_bank_hit hit;
    size_t at[MX_MAX_CAPTURES], borders[] = {0, OPENING, n * 3 / 4};
    enum mx_point points[MX_MAX_CAPTURES];
    mtplx_snapshot *made[MX_MAX_CAPTURES];
    mx_bank_find(b, "", "chat", tokens, n, &hit);
    mtplx_seq *s = hit.snapshot ? mx_snapshot_restore(hit.snapshot, NULL) : mtplx_seq_new(m, NULL);
    size_t from = mtplx_seq_length(s);
    mx_snapshot_unref(hit.snapshot);
    size_t planned = mx_bank_plan(b, from, n, borders, 3, at, points, MX_MAX_CAPTURES);
    for (size_t i = 0; i < planned; i++)
        mx_seq_want_capture(s, at[i]);
    feed(s, tokens, n);
    size_t taken = mx_seq_take_captured(s, made, MX_MAX_CAPTURES);
    assert_int_equal(taken, planned);
    for (size_t i = 0; i < taken; i++) {
        assert_int_equal(made[i]->n, at[i]);
        mx_bank_put(b, made[i], points[i], "", "chat");
    }
    mtplx_snapshot *end = mx_snapshot_take_over(s, NULL);
    assert_non_null(end);
    mx_bank_put(b, end, MX_POINT_ANSWER, "", "chat");
    return from;
}

static void check_restored(struct mx_bank *b, mtplx_model *m, const int32_t *tokens, size_t n)
{
    struct mx_bank_hit hit;
    mx_bank_find(b, "", "", tokens, n, &hit);
    if (!hit.snapshot)
        return;
    struct probe warm = probe(mx_snapshot_restore(hit.snapshot, NULL), tokens, n);
    struct probe cold = cold_probe(m, tokens, n);
    check_equal(&warm, &cold);
    mx_snapshot_unref(hit.snapshot);
}

/* Random conversations: appended to, edited anywhere, asked again, begun anew; under a budget that
 * holds a few of them. */
static void test_conversations(void **state)
{
    mtplx_error err = {0};
    mtplx_model *m = open_tiny();
    struct mx_bank_options o = {.model = m, .budget = 3 << 20, .spacing = 64};
    struct mx_bank *b = mx_bank_new(&o, &err);
    int32_t tokens[MOST], same[OPENING];
    size_t n = 0, read = 0, asked = 0;
    int rounds = budget("MTPLX_BANK_ROUNDS", 60, 15);
    (void)state;
    assert_non_null(b);
    random_tokens(same, OPENING);
    for (int i = 0; i < rounds; i++) {
        uint32_t what = noise(6);
        if (n < 50 || n > MOST - 100 || what == 0) { /* a new conversation, the same opening */
            memcpy(tokens, same, sizeof same);
            n = 100 + noise(200);
            random_tokens(tokens + OPENING, n - OPENING);
        } else if (what < 4) {
            size_t more = 1 + noise(80);
            random_tokens(tokens + n, more);
            n += more;
        } else if (what == 4) {
            size_t at = noise((uint32_t)n);
            tokens[at] = (int32_t)((uint32_t)(tokens[at] + 1) % VOCAB);
        }
        check_restored(b, m, tokens, n);
        read += n - request(b, m, tokens, n);
        asked += n;
        check_restored(b, m, tokens, n);
    }
    assert_true(read * 2 < asked); /* most of it needed no reading */
    assert_true(mx_bank_bytes(b) <= o.budget);
    mx_bank_free(b);
    mtplx_model_free(m);
}

/* Two sequences compute the same prefix: it is stored once, and both go on as before. */
static void test_interned(void **state)
{
    mtplx_error err = {0};
    mtplx_model *m = open_tiny();
    struct mx_bank_options o = {.model = m, .budget = UINT64_MAX};
    struct mx_bank *b = mx_bank_new(&o, &err);
    int32_t first[300], second[300];
    struct mx_bank_stats one, two;
    (void)state;
    random_tokens(first, 300);
    memcpy(second, first, sizeof first);
    random_tokens(second + 256, 44);
    for (int i = 0; i < 2; i++) {
        mtplx_seq *s = mtplx_seq_new(m, NULL);
        feed(s, i ? second : first, 300);
        mx_bank_put(b, mx_snapshot_take_over(s, &err), MX_POINT_ANSWER, "", i ? "b" : "a");
        mx_bank_get_stats(b, i ? &two : &one);
    }
    assert_int_equal(one.blocks, 10);
    assert_int_equal(two.blocks, 10 + 3); /* 256 tokens are 4 trunk blocks and 3 of the head */
    assert_int_equal(b->newest->s->kv[3] == b->oldest->s->kv[3], true);
    for (int i = 0; i < 2; i++) {
        int32_t tokens[330];
        memcpy(tokens, i ? second : first, sizeof first);
        random_tokens(tokens + 300, 30);
        struct mx_bank_hit hit;
        mx_bank_find(b, "", "", tokens, 330, &hit);
        assert_int_equal(hit.snapshot->n, 300);
        assert_int_equal(hit.miss, MX_MISS_NONE);
        assert_int_equal(hit.kind, MX_RESTORE_EXACT);
        mx_snapshot_unref(hit.snapshot);
        check_restored(b, m, tokens, 330);
    }
    mx_bank_free(b);
    mtplx_model_free(m);
}

/* ---- The public interface ----------------------------------------------------------------- */

static void test_public(void **state)
{
    mtplx_error err = {0};
    mtplx_model *m = open_tiny();
    mtplx_bank_options o = {.max_bytes = 8 << 20};
    mtplx_bank *b = mtplx_bank_new(m, &o, &err);
    int32_t tokens[400];
    (void)state;
    assert_non_null(b);
    random_tokens(tokens, 400);
    mtplx_seq *s = mtplx_bank_restore(b, tokens, 400, &err);
    assert_non_null(s);
    assert_int_equal(mtplx_seq_length(s), 0);
    assert_int_equal(mtplx_bank_keep(b, s, &err), MTPLX_ERR_ARGUMENT); /* no tokens */
    assert_int_equal(mtplx_bank_keep(b, s, NULL), MTPLX_ERR_ARGUMENT);
    feed(s, tokens, 300);
    assert_int_equal(mtplx_bank_keep(b, s, &err), MTPLX_OK);
    mtplx_seq_free(s);
    s = mtplx_bank_restore(b, tokens, 300, &err); /* the last token has to be read */
    assert_int_equal(mtplx_seq_length(s), 0);
    mtplx_seq_free(s);
    s = mtplx_bank_restore(b, tokens, 400, &err);
    assert_int_equal(mtplx_seq_length(s), 300);
    mtplx_bank_free(b); /* the sequence stays valid */
    struct probe warm = probe(s, tokens, 400), cold = cold_probe(m, tokens, 400);
    check_equal(&warm, &cold);
    o.ttl_s = -1;
    assert_null(mtplx_bank_new(m, &o, &err));
    assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);
    b = mtplx_bank_new(m, NULL, &err);
    assert_non_null(b);
    s = mtplx_bank_restore(b, tokens, 0, &err);
    assert_int_equal(mtplx_seq_length(s), 0);
    mtplx_seq_free(s);
    mtplx_bank_free(b);
    mtplx_bank_free(NULL);
    mtplx_model_free(m);
}

/* ---- With a cold tier --------------------------------------------------------------------- */

static char dir[64];

static void new_dir(void)
{
    snprintf(dir, sizeof dir, "/tmp/mtplx-bank-XXXXXX");
    assert_non_null(mkdtemp(dir));
}

static int unlink_any(const char *path, const struct stat *st, int flag, struct FTW *at)
{
    (void)st;
    (void)flag;
    (void)at;
    return remove(path);
}

static void remove_dir(void)
{
    assert_int_equal(nftw(dir, unlink_any, 8, FTW_DEPTH | FTW_PHYS), 0);
}

static int spoilt;

/* Turns a bit in the middle of every object. */
static int spoil(const char *path, const struct stat *st, int flag, struct FTW *at)
{
    (void)at;
    if (flag != FTW_F || st->st_size < 200 || strstr(path, "manifest"))
        return 0;
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, st->st_size / 2, SEEK_SET);
    int c = fgetc(f);
    fseek(f, st->st_size / 2, SEEK_SET);
    fputc(c ^ 4, f);
    fclose(f);
    spoilt++;
    return 0;
}

static struct mx_cold *open_cold(mtplx_model *m, enum mx_cold_mode mode)
{
    mtplx_error err = {0};
    struct mx_cold_options o = {
        .dir = dir, .mode = mode, .min_tokens = 64, .floor_bytes = 1, .hourly_bytes = UINT64_MAX};
    mx_cold_identify(m, &o.identity);
    struct mx_cold *c = mx_cold_open(&o, &err);
    if (!c)
        fail_msg("%s", err.message);
    return c;
}

static uint64_t test_time = 1;

static uint64_t test_clock(void)
{
    return test_time;
}

static struct mx_bank *bank_over(mtplx_model *m, struct mx_cold *c, uint64_t bytes)
{
    struct mx_bank_options o = {
        .model = m, .budget = bytes, .cold = c, .spacing = 64, .clock = test_clock};
    struct mx_bank *b = mx_bank_new(&o, NULL);
    assert_non_null(b);
    return b;
}

static uint64_t written(struct mx_cold *c)
{
    struct mx_cold_stats s;
    assert_true(mx_cold_flush(c, 5000000000ull));
    mx_cold_get_stats(c, &s);
    return s.snapshots;
}

static void restart(struct mx_bank **b, struct mx_cold **c, mtplx_model *m)
{
    mx_bank_free(*b);
    mx_cold_close(*c, 5000000000ull);
    *c = open_cold(m, MX_COLD_ON);
    *b = bank_over(m, *c, UINT64_MAX);
}

static size_t on_disk(struct mx_bank *b)
{
    struct mx_bank_view v[32];
    size_t n = mx_bank_list(b, v, 32), sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += v[i].on_disk;
    return sum;
}

/* A conversation of many quick turns is written once it pauses, and only what is worth it; after a
 * restart it goes on where it was, bit for bit. */
static void test_cold_turns(void **state)
{
    mtplx_model *m = open_tiny();
    new_dir();
    struct mx_cold *c = open_cold(m, MX_COLD_ON);
    struct mx_bank *b = bank_over(m, c, UINT64_MAX);
    int32_t tokens[MOST];
    (void)state;
    random_tokens(tokens, MOST);
    for (size_t n = 100; n <= 500; n += 20) {
        request(b, m, tokens, n);
        test_time += 2000000000ull;
        mx_bank_tick(b);
    }
    assert_int_equal(written(c), 0); /* never idle for three seconds */
    test_time += 5000000000ull;
    mx_bank_tick(b);
    assert_int_equal(written(c), 0); /* nor long enough for so few tokens */
    test_time += 60000000000ull;
    mx_bank_tick(b);
    assert_int_equal(written(c), 3); /* the end, the last prompt, the system prompt */
    assert_int_equal(on_disk(b), 3);
    request(b, m, tokens, 540);
    restart(&b, &c, m);
    assert_int_equal(written(c), 5); /* two more, the system prompt was there */

    struct mx_bank_hit hit;
    struct mx_bank_stats st;
    mx_bank_find(b, "", "chat", tokens, 580, &hit);
    assert_null(hit.snapshot);
    assert_int_equal(hit.cold_tokens, 540);
    assert_int_equal(hit.miss, MX_MISS_NEW_SESSION);
    mx_bank_load(b, "", "chat", tokens, 580, NULL, &hit);
    assert_int_equal(hit.snapshot->n, 540);
    assert_int_equal(hit.known, 540);
    assert_int_equal(hit.miss, MX_MISS_NONE);
    assert_int_equal(hit.kind, MX_RESTORE_EXACT);
    struct probe warm = probe(mx_snapshot_restore(hit.snapshot, NULL), tokens, 580);
    struct probe cold = cold_probe(m, tokens, 580);
    check_equal(&warm, &cold);
    mx_snapshot_unref(hit.snapshot);
    mx_bank_get_stats(b, &st);
    assert_int_equal(st.lookups, 1);
    assert_int_equal(st.hits, 1);
    assert_int_equal(st.misses[MX_MISS_NONE], 1);
    assert_int_equal(st.misses[MX_MISS_NEW_SESSION], 0);
    mx_bank_find(b, "", "chat", tokens, 580, &hit); /* now from RAM */
    assert_int_equal(hit.snapshot->n, 540);
    assert_int_equal(hit.cold_tokens, 0);
    mx_snapshot_unref(hit.snapshot);
    /* A point before shares the blocks that are in RAM. */
    mx_bank_find(b, "", "chat", tokens, 520, &hit);
    assert_int_equal(hit.cold_tokens, 500);
    mx_bank_load(b, "", "chat", tokens, 520, NULL, &hit);
    assert_int_equal(hit.snapshot->n, 500);
    mx_snapshot_unref(hit.snapshot);
    mx_bank_get_stats(b, &st);
    assert_int_equal(st.blocks, 9 + 9);              /* those that are partly filled too */
    mx_bank_find(b, "other", "", tokens, 580, &hit); /* of another scope nothing is known */
    assert_int_equal(hit.cold_tokens, 0);
    assert_int_equal(hit.miss, MX_MISS_NEW_SESSION);
    assert_true(mx_bank_drop(b, "chat", 0, true) >= 5);
    assert_true(mx_cold_flush(c, 0)); /* files and rows are gone, not only to be removed */
    mx_bank_find(b, "", "chat", tokens, 580, &hit);
    assert_int_equal(hit.cold_tokens, 0);
    mx_bank_free(b);
    mx_cold_close(c, 1000000000ull);
    remove_dir();
    mtplx_model_free(m);
}

/* Where every prompt has the answer before it in other tokens, the ends of the answers are left
 * behind: what is written grows with the conversation's blocks, not by two states a turn. */
static void test_cold_left_behind(void **state)
{
    mtplx_model *m = open_tiny();
    new_dir();
    struct mx_cold *c = open_cold(m, MX_COLD_ON);
    struct mx_bank *b = bank_over(m, c, UINT64_MAX);
    int32_t tokens[MOST];
    struct mx_bank_hit hit;
    (void)state;
    random_tokens(tokens, MOST);
    for (size_t n = 100; n <= 500; n += 20) {
        request(b, m, tokens, n);
        tokens[n - 3] = (tokens[n - 3] + 1) % VOCAB;
        test_time += 2000000000ull;
        mx_bank_tick(b);
    }
    test_time += 70000000000ull;
    for (int i = 0; i < 5; i++)
        mx_bank_tick(b);
    assert_int_equal(written(c), 3);
    /* Two branches from the same border, the older one of which is asked again and goes on. */
    tokens[497]--;
    request(b, m, tokens, 520);
    tokens[517]++;
    restart(&b, &c, m);
    assert_true(written(c) <= 5);
    tokens[517]--;
    mx_bank_find(b, "", "chat", tokens, 560, &hit);
    assert_int_equal(hit.cold_tokens, 520);
    mx_bank_free(b);
    mx_cold_close(c, 1000000000ull);
    remove_dir();
    mtplx_model_free(m);
}

/* A prompt ends with what opens the answer, which the next prompt may have in other tokens: what is
 * written of it is the border before that. */
static void test_cold_opening(void **state)
{
    mtplx_model *m = open_tiny();
    new_dir();
    struct mx_cold *c = open_cold(m, MX_COLD_ON);
    struct mx_bank *b = bank_over(m, c, UINT64_MAX);
    int32_t tokens[MOST];
    struct mx_bank_hit hit;
    mtplx_error err;
    (void)state;
    random_tokens(tokens, MOST);
    static const size_t at[] = {296, 300, 320};
    static const enum mx_point points[] = {MX_POINT_BORDER, MX_POINT_PROMPT, MX_POINT_ANSWER};
    mtplx_seq *s = mtplx_seq_new(m, NULL);
    for (int i = 0; i < 3; i++) {
        feed(s, tokens, at[i]);
        mx_bank_put(b, mtplx_seq_snapshot(s, &err), points[i], "", "chat");
    }
    mtplx_seq_free(s);
    restart(&b, &c, m);
    mx_bank_find(b, "", "chat", tokens, 400, &hit);
    assert_int_equal(hit.cold_tokens, 320);
    tokens[298] = (tokens[298] + 1) % VOCAB;
    mx_bank_find(b, "", "chat", tokens, 400, &hit);
    assert_int_equal(hit.cold_tokens, 296);
    assert_int_equal(written(c), 2);
    mx_bank_free(b);
    mx_cold_close(c, 1000000000ull);
    remove_dir();
    mtplx_model_free(m);
}

/* What the budget takes is on disk; where the bank has no room at all it is restored from there all
 * the same. */
static void test_cold_evicted(void **state)
{
    mtplx_model *m = open_tiny();
    new_dir();
    struct mx_cold *c = open_cold(m, MX_COLD_ON);
    struct mx_bank *b = bank_over(m, c, UINT64_MAX);
    int32_t tokens[MOST];
    struct mx_bank_hit hit;
    (void)state;
    random_tokens(tokens, MOST);
    request(b, m, tokens, 300);
    mx_bank_shrink(b, 0);
    assert_int_equal(written(c), 3);
    mx_bank_find(b, "", "", tokens, 400, &hit);
    assert_int_equal(hit.miss, MX_MISS_EVICTED);
    assert_int_equal(hit.cold_tokens, 300);
    mx_bank_set_budget(b, 10);
    mx_bank_load(b, "", "", tokens, 400, NULL, &hit);
    assert_int_equal(hit.snapshot->n, 300);
    assert_int_equal(hit.miss, MX_MISS_NONE);
    assert_int_equal(hit.kind, MX_RESTORE_EXACT);
    assert_int_equal(mx_bank_bytes(b), 0);
    struct probe warm = probe(mx_snapshot_restore(hit.snapshot, NULL), tokens, 400);
    struct probe cold = cold_probe(m, tokens, 400);
    check_equal(&warm, &cold);
    mx_snapshot_unref(hit.snapshot);
    atomic_bool cancel;
    atomic_init(&cancel, true);
    mx_bank_load(b, "", "", tokens, 400, &cancel, &hit);
    assert_null(hit.snapshot);
    assert_int_equal(hit.miss, MX_MISS_COLD_UNREADABLE);
    mx_bank_free(b);
    mx_cold_close(c, 1000000000ull);

    /* Written only, nothing is read. */
    c = open_cold(m, MX_COLD_WRITE_ONLY);
    b = bank_over(m, c, UINT64_MAX);
    mx_bank_find(b, "", "", tokens, 400, &hit);
    assert_int_equal(hit.cold_tokens, 0);
    mx_bank_free(b);
    mx_cold_close(c, 1000000000ull);

    /* Damaged, nothing of it is restored. */
    spoilt = 0;
    assert_int_equal(nftw(dir, spoil, 8, FTW_PHYS), 0);
    assert_true(spoilt > 3);
    c = open_cold(m, MX_COLD_ON);
    b = bank_over(m, c, UINT64_MAX);
    mx_bank_find(b, "", "", tokens, 400, &hit);
    if (hit.cold_tokens) {
        mx_bank_load(b, "", "", tokens, 400, NULL, &hit);
        assert_null(hit.snapshot);
        assert_int_equal(hit.miss, MX_MISS_COLD_CORRUPT);
    }
    mx_bank_free(b);
    mx_cold_close(c, 1000000000ull);
    remove_dir();
    mtplx_model_free(m);
}

/* The same directory under a model that runs otherwise: a miss with its reason. */
static void test_cold_mismatch(void **state)
{
    mtplx_model *m = open_tiny();
    mtplx_load_options o = {.device = "ref", .threads = 1, .max_rows = 128};
    new_dir();
    struct mx_cold *c = open_cold(m, MX_COLD_ON);
    struct mx_bank *b = bank_over(m, c, UINT64_MAX);
    int32_t tokens[MOST];
    struct mx_bank_hit hit;
    (void)state;
    random_tokens(tokens, MOST);
    request(b, m, tokens, 300);
    mx_bank_free(b);
    mx_cold_close(c, 5000000000ull);
    mtplx_model_free(m);
    m = load_or_fail(src_path("tests/golden/qwen3_5_text"), &o);
    c = open_cold(m, MX_COLD_ON);
    b = bank_over(m, c, UINT64_MAX);
    mx_bank_find(b, "", "", tokens, 400, &hit);
    assert_null(hit.snapshot);
    assert_int_equal(hit.cold_tokens, 0);
    assert_int_equal(hit.miss, MX_MISS_POLICY_MISMATCH);
    mx_bank_free(b);
    mx_cold_close(c, 1000000000ull);
    remove_dir();
    mtplx_model_free(m);
}

/* Through the public interface: a bank on a directory outlives its process. */
static void test_public_disk(void **state)
{
    mtplx_error err = {0};
    mtplx_model *m = open_tiny();
    new_dir();
    mtplx_bank_options o = {.max_bytes = 8 << 20, .ssd_dir = dir};
    int32_t tokens[MOST];
    (void)state;
    random_tokens(tokens, MOST);
    for (int i = 0; i < 2; i++) {
        mtplx_bank *b = mtplx_bank_new(m, &o, &err);
        if (!b)
            fail_msg("%s", err.message);
        mtplx_seq *s = mtplx_bank_restore(b, tokens, 590, &err);
        assert_int_equal(mtplx_seq_length(s), i ? 550 : 0);
        feed(s, tokens, 550);
        assert_int_equal(mtplx_bank_keep(b, s, &err), MTPLX_OK);
        mtplx_seq_free(s);
        mtplx_bank_free(b);
    }
    o.ssd_dir = "/dev/null/nowhere";
    assert_null(mtplx_bank_new(m, &o, &err));
    assert_int_not_equal(err.status, MTPLX_OK);
    remove_dir();
    mtplx_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conversations),    cmocka_unit_test(test_interned),
        cmocka_unit_test(test_public),           cmocka_unit_test(test_cold_turns),
        cmocka_unit_test(test_cold_left_behind), cmocka_unit_test(test_cold_opening),
        cmocka_unit_test(test_cold_evicted),     cmocka_unit_test(test_cold_mismatch),
        cmocka_unit_test(test_public_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
