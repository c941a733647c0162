/* The engine with its session bank, on the trained model (with sanitizers on a small fixture): what
 * was read before is not read again, and whatever was restored, shared or read ahead, the tokens
 * are those of the bare loop that knows no bank. */
#include "golden.h"

#include "engine_rig.h"
#include "runtime/generate.h"
#include "session/cold_state.h"

#include <ftw.h>
#include <sys/stat.h>

enum { MOST = 4096, LONG = SLOW_BUILD ? 900 : 1200, SYSTEM = SLOW_BUILD ? 600 : 700 };
enum { MOST_BEFORE = 256 };

static mtplx_model *model;

/* Answers of the bare loop, for requests that several tests or turns ask alike. */
static struct before {
    int32_t *prompt, want[RIG_TOKENS];
    size_t n, count;
    mtplx_gen_options o;
} asked_before[MOST_BEFORE];
static size_t n_asked;

static int setup(void **state)
{
    (void)state;
    const char *path = SLOW_BUILD ? "tests/golden/qwen3_5_text" : "models/nano";
    model = load_or_fail(src_path(path), &(mtplx_load_options){.threads = 2});
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_asked; i++)
        free(asked_before[i].prompt);
    n_asked = 0;
    mtplx_model_free(model);
    return 0;
}

/* ---- Requests ----------------------------------------------------------------------------- */

struct ask {
    int32_t prompt[MOST];
    size_t n;
    struct mx_job_options o;
    struct rig_probe probe;
    uint64_t id;
};

static mtplx_gen_options greedy(int tokens)
{
    return (mtplx_gen_options){.depth = 3, .max_tokens = tokens, .ignore_stop = true};
}

static mtplx_gen_options seeded(int tokens, uint64_t seed)
{
    mtplx_gen_options o = greedy(tokens);
    o.sampling = (mtplx_sampling){.temperature = 0.9, .top_p = 0.95, .seed = seed};
    return o;
}

/* Zeroed, with n tokens that follow from the seed. */
static struct ask *ask_new(uint32_t seed, size_t n)
{
    struct ask *a = calloc(1, sizeof *a);
    assert_non_null(a);
    assert_true(n <= MOST);
    rig_prompt(model, seed, a->prompt, n);
    rig_probe(&a->probe, 1);
    a->n = n;
    a->o.gen = greedy(12);
    return a;
}

/* A copy of the first n tokens of a prompt. */
static struct ask *ask_like(const struct ask *from, size_t n)
{
    struct ask *a = ask_new(1, n);
    memcpy(a->prompt, from->prompt, n * sizeof *a->prompt);
    a->o.gen = from->o.gen;
    return a;
}

/* Prompt and answer of a finished request, and `more` tokens that follow from the seed. */
static struct ask *next_turn(const struct ask *from, uint32_t seed, size_t more)
{
    const struct rig_choice *c = &from->probe.choice[0];
    struct ask *a = ask_like(from, from->n);
    assert_true(a->n + c->n + more <= MOST);
    memcpy(a->prompt + a->n, c->ids, c->n * sizeof *a->prompt);
    rig_prompt(model, seed, a->prompt + a->n + c->n, more);
    a->n += c->n + more;
    return a;
}

static void submit(struct mx_engine *e, struct ask *a)
{
    a->o.prompt = a->prompt;
    a->o.n_prompt = a->n;
    a->id = rig_submit(e, &a->o, &a->probe);
}

static const struct mx_job_result *result(const struct ask *a)
{
    return &a->probe.choice[0].result;
}

static bool same_options(const mtplx_gen_options *a, const mtplx_gen_options *b)
{
    return a->max_tokens == b->max_tokens && a->sampling.temperature == b->sampling.temperature &&
           a->sampling.seed == b->sampling.seed && a->prompt_logprobs == b->prompt_logprobs;
}

/* What the bare loop answers; the same request is run once. */
static size_t alone(const struct ask *a, const int32_t **want)
{
    size_t i = 0;
    while (i < n_asked &&
           (asked_before[i].n != a->n || !same_options(&asked_before[i].o, &a->o.gen) ||
            memcmp(asked_before[i].prompt, a->prompt, a->n * sizeof *a->prompt) != 0))
        i++;
    assert_true(i < MOST_BEFORE);
    struct before *k = &asked_before[i];
    if (i == n_asked) {
        *k = (struct before){.prompt = malloc(a->n * sizeof *a->prompt), .n = a->n, .o = a->o.gen};
        assert_non_null(k->prompt);
        memcpy(k->prompt, a->prompt, a->n * sizeof *a->prompt);
        k->count = rig_alone(model, a->prompt, a->n, &a->o.gen, k->want);
        n_asked++;
    }
    *want = k->want;
    return k->count;
}

/* Waits for it, and holds its answer against the bare loop's. */
static void check(struct ask *a)
{
    const int32_t *want;
    rig_wait_done(&a->probe);
    size_t n = alone(a, &want);
    const struct rig_choice *c = &a->probe.choice[0];
    if (c->result.end == MX_END_CANCELLED) {
        assert_true(c->n <= n);
        assert_memory_equal(c->ids, want, c->n * sizeof *want);
    } else {
        assert_true(c->result.end <= MX_END_LENGTH);
        rig_equal(c, want, n);
    }
    assert_true(c->result.cached_tokens < a->n);
    assert_true(c->result.cached_tokens <= c->result.known_tokens);
}

/* Asks, checks and frees; returns the tokens that were not read. */
static size_t asked(struct mx_engine *e, struct ask *a)
{
    submit(e, a);
    check(a);
    size_t cached = result(a)->cached_tokens;
    free(a);
    return cached;
}

static struct mx_engine *engine(int max_active)
{
    return rig_engine(&(struct mx_engine_options){
        .model = model, .mode = MX_ENGINE_MTP_BATCH, .max_active = max_active});
}

static struct mx_engine_snapshot look(struct mx_engine *e)
{
    static struct mx_engine_snapshot s;
    mx_engine_get_snapshot(e, &s);
    return s;
}

static void wait_progress(struct ask *a, size_t read)
{
    pthread_mutex_lock(&a->probe.lock);
    while (a->probe.last_read < read && a->probe.open)
        pthread_cond_wait(&a->probe.changed, &a->probe.lock);
    pthread_mutex_unlock(&a->probe.lock);
}

/* ---- One after the other ------------------------------------------------------------------ */

static void test_same_prompt(void **state)
{
    (void)state;
    struct mx_engine *e = engine(4);
    for (int i = 0; i < 6; i++) {
        struct ask *a = ask_new(4, 700);
        a->o.gen = i % 2 ? seeded(20, (uint64_t)i) : greedy(20);
        submit(e, a);
        check(a);
        assert_int_equal(result(a)->cached_tokens, i ? 699 : 0);
        assert_int_equal(result(a)->miss, i ? MX_MISS_NONE : MX_MISS_NEW_SESSION);
        assert_int_equal(result(a)->restored, i ? MX_RESTORE_EXACT : MX_RESTORE_NONE);
        assert_false(result(a)->from_disk);
        assert_true(result(a)->restore_ns > 0);
        free(a);
    }
    assert_true(mx_engine_drain(e, UINT64_MAX));
    assert_int_equal(look(e).counters.prompt_tokens, 700 + 5);
    assert_int_equal(look(e).counters.cached_tokens, 5 * 699);
    assert_int_equal(look(e).counters.restores, 5);
    assert_int_equal(look(e).counters.misses[MX_MISS_NONE], 5);
    mx_engine_free(e);
}

/* A conversation: every turn reads no more than what is new, greedy and seeded. */
static void test_append(void **state)
{
    (void)state;
    for (int sampled = 0; sampled < 2; sampled++) {
        struct mx_engine *e = engine(4);
        struct ask *a = ask_new(5, 300), *b;
        a->o.gen = sampled ? seeded(24, 7) : greedy(24);
        for (uint32_t turn = 1; turn < 6; turn++) {
            submit(e, a);
            check(a);
            b = next_turn(a, turn, 30);
            if (turn > 1)
                assert_int_equal(result(a)->cached_tokens, a->n - 31);
            free(a);
            a = b;
        }
        free(a);
        mx_engine_free(e);
    }
}

/* The last capture at or before `at` of those planned for a prompt of n tokens. */
static size_t planned_before(struct mx_engine *e, size_t n, size_t at)
{
    size_t out[64], best = 0;
    enum mx_point points[64];
    size_t k = mx_bank_plan(mx_engine_bank(e), 0, n, NULL, 0, out, points, 64);
    for (size_t i = 0; i < k; i++)
        if (out[i] <= at)
            best = out[i];
    return best;
}

static void test_edit(void **state)
{
    (void)state;
    static const size_t back[] = {3, 300, 800};
    struct ask *first = ask_new(7, LONG);
    for (size_t i = 0; i < sizeof back / sizeof *back; i++) {
        struct mx_engine *e = engine(4); /* an edited prompt adds points of its own */
        struct ask *a = ask_like(first, LONG), *b = ask_like(first, LONG);
        size_t at = LONG - back[i];
        submit(e, a);
        rig_wait_done(&a->probe);
        free(a);
        b->prompt[at] = (b->prompt[at] + 1) % 200;
        submit(e, b);
        check(b);
        assert_in_range(result(b)->cached_tokens, planned_before(e, LONG, at), at);
        assert_int_equal(result(b)->miss, MX_MISS_PREFIX_DIVERGENCE);
        assert_int_equal(result(b)->known_tokens, at);
        free(b);
        mx_engine_free(e);
    }
    free(first);
}

/* Borders of messages are points to restore from. */
static void test_borders(void **state)
{
    (void)state;
    static const size_t borders[] = {333, 555, 777};
    struct mx_engine *e = engine(4);
    struct ask *a = ask_new(8, 900), *b = ask_like(a, 900);
    a->o.borders = borders;
    a->o.n_borders = 3;
    asked(e, a);
    for (size_t i = 790; i < 900; i++)
        b->prompt[i] = (b->prompt[i] + 1) % 200;
    assert_in_range(asked(e, b), 777, 790);
    mx_engine_free(e);
}

static void test_fork(void **state)
{
    (void)state;
    struct mx_engine *e = engine(4);
    struct ask *root = ask_new(10, 800), *way[2];
    submit(e, root);
    check(root);
    size_t known = root->n + root->probe.choice[0].n - 1;
    for (uint32_t i = 0; i < 2; i++) {
        way[i] = next_turn(root, 20 + i, 40);
        way[i]->o.gen = seeded(16, i);
        submit(e, way[i]);
        check(way[i]);
        /* Thinning may have taken the answer's end in favour of points close by. */
        assert_in_range(result(way[i])->cached_tokens, i ? root->n - 1 : known, known);
    }
    for (uint32_t i = 0; i < 2; i++) { /* and both go on */
        struct ask *a = next_turn(way[i], 30 + i, 25);
        known = way[i]->n + way[i]->probe.choice[0].n - 1;
        assert_int_equal(asked(e, a), known);
        free(way[i]);
    }
    free(root);
    mx_engine_free(e);
}

static void test_scopes(void **state)
{
    (void)state;
    struct mx_engine *e = engine(4);
    static const char *const scopes[] = {"key a", "key b", NULL};
    for (int i = 0; i < 3; i++) {
        struct ask *a = ask_new(11, 400), *b = ask_new(11, 400);
        a->o.scope = b->o.scope = scopes[i];
        a->o.session = "one";
        b->o.session = "another";
        submit(e, a);
        check(a);
        assert_int_equal(result(a)->cached_tokens, 0);
        assert_int_equal(result(a)->miss, MX_MISS_NEW_SESSION);
        free(a);
        assert_int_equal(asked(e, b), 399);
    }
    mx_engine_free(e);
}

static void test_bypass(void **state)
{
    (void)state;
    struct mx_engine *e = engine(4);
    for (int i = 0; i < 4; i++) {
        struct ask *a = ask_new(13, 300);
        a->o.no_reuse = i % 2;
        a->o.gen.prompt_logprobs = i % 2 == 0;
        submit(e, a);
        check(a);
        assert_int_equal(result(a)->cached_tokens, 0);
        assert_int_equal(result(a)->miss, MX_MISS_BYPASS);
        free(a);
    }
    assert_int_equal(mx_bank_bytes(mx_engine_bank(e)), 0);
    mx_engine_free(e);
}

/* ---- Cut short ---------------------------------------------------------------------------- */

static void test_cancelled_prefill(void **state)
{
    (void)state;
    struct mx_engine *e = engine(4);
    struct ask *a = ask_new(14, LONG), *b = ask_like(a, LONG);
    submit(e, a);
    wait_progress(a, 300);
    mx_engine_cancel(e, a->id);
    check(a);
    assert_int_equal(result(a)->end, MX_END_CANCELLED);
    size_t read = a->probe.last_read;
    assert_in_range(read, 300, LONG - 1);
    assert_true(asked(e, b) >= read);
    free(a);
    mx_engine_free(e);
}

static void test_cancelled_answer(void **state)
{
    (void)state;
    struct mx_engine *e = engine(4);
    struct ask *a = ask_new(16, 200);
    a->o.gen = greedy(400);
    submit(e, a);
    rig_wait(&a->probe, 0, 20);
    mx_engine_cancel(e, a->id);
    check(a);
    struct ask *b = next_turn(a, 3, 20);
    size_t n = a->n + a->probe.choice[0].n - 1;
    b->o.gen = greedy(12);
    assert_int_equal(asked(e, b), n);
    free(a);
    mx_engine_free(e);
}

/* ---- Together ----------------------------------------------------------------------------- */

enum { CROWD = 8 };

/* Prompts that begin with the same SYSTEM tokens. */
static void make_crowd(struct ask **a)
{
    struct ask *first = ask_new(17, SYSTEM);
    for (uint32_t i = 0; i < CROWD; i++) {
        a[i] = ask_like(first, SYSTEM);
        a[i]->n += 20 + i;
        rig_prompt(model, 40 + i, a[i]->prompt + SYSTEM, 20 + i);
        a[i]->o.gen = i % 2 ? seeded(24, i) : greedy(24);
    }
    free(first);
}

/* A shared beginning is read once. */
static void test_crowd(void **state)
{
    (void)state;
    struct ask *a[CROWD];
    struct mx_engine *e = engine(CROWD);
    make_crowd(a);
    for (int i = 0; i < CROWD; i++)
        submit(e, a[i]);
    for (int i = 0; i < CROWD; i++) {
        check(a[i]);
        free(a[i]);
    }
    assert_true(mx_engine_drain(e, UINT64_MAX));
    assert_in_range(look(e).counters.prompt_tokens, SYSTEM, SYSTEM + CROWD * 100);
    mx_engine_free(e);
}

/* Who reads for others may be cancelled: another one goes on where it was. Where it has come past
 * the shared beginning by then, each of them reads the tokens since its last point, less than what
 * makes one wait for another. */
static void test_leader_gone(void **state)
{
    (void)state;
    struct ask *a[CROWD];
    struct mx_engine *e = engine(CROWD);
    make_crowd(a);
    submit(e, a[0]);
    wait_progress(a[0], 1);
    for (int i = 1; i < CROWD; i++)
        submit(e, a[i]);
    mx_engine_cancel(e, a[0]->id);
    for (int i = 0; i < CROWD; i++) {
        check(a[i]);
        free(a[i]);
    }
    assert_true(mx_engine_drain(e, UINT64_MAX));
    assert_in_range(look(e).counters.prompt_tokens, SYSTEM, SYSTEM + CROWD * (256 + 100));
    mx_engine_free(e);
}

/* Those whose prompts must be read as a whole, or are of others, follow nobody. */
static void test_no_followers(void **state)
{
    (void)state;
    struct ask *a[CROWD];
    struct mx_engine *e = engine(CROWD);
    make_crowd(a);
    for (int i = 0; i < 4; i++) {
        a[i]->o.no_reuse = i % 2;
        a[i]->o.scope = i / 2 ? "x" : "y";
        submit(e, a[i]);
    }
    for (int i = 0; i < CROWD; i++) {
        if (i < 4) {
            check(a[i]);
            assert_int_equal(result(a[i])->cached_tokens, 0);
        }
        free(a[i]);
    }
    assert_int_equal(look(e).counters.shared_waits, 0);
    mx_engine_free(e);
}

/* ---- Reading ahead ------------------------------------------------------------------------ */

static struct ask *warm_new(const struct ask *like, const char *session)
{
    struct ask *w = ask_like(like, like->n);
    w->o.kind = MX_JOB_WARM;
    w->o.session = session;
    return w;
}

static enum mx_job_end warm_end(struct ask *w)
{
    rig_wait_done(&w->probe);
    assert_int_equal(w->probe.choice[0].n, 0);
    enum mx_job_end end = result(w)->end;
    free(w);
    return end;
}

static void test_warm(void **state)
{
    (void)state;
    struct mx_engine *e = engine(4);
    struct ask *next = ask_new(19, LONG + 10), *prefix = ask_like(next, LONG);
    struct ask *w = warm_new(prefix, "s");
    submit(e, w);
    assert_int_equal(warm_end(w), MX_END_STOP);
    assert_int_equal(asked(e, next), LONG);
    w = warm_new(prefix, "s"); /* nothing is left to do */
    submit(e, w);
    rig_wait_done(&w->probe);
    assert_int_equal(result(w)->cached_tokens, LONG);
    assert_int_equal(warm_end(w), MX_END_STOP);
    assert_true(mx_engine_drain(e, UINT64_MAX));
    struct mx_engine_snapshot s = look(e);
    const struct mx_engine_counters *c = &s.counters;
    assert_int_equal(c->accepted, 1);
    assert_int_equal(c->finished, 1);
    assert_int_equal(c->prompt_tokens, 10);
    assert_int_equal(c->warm_jobs, 2);
    assert_int_equal(c->warm_finished, 2);
    assert_int_equal(c->warm_tokens, LONG);
    free(prefix);
    mx_engine_free(e);
}

/* Notes the passes of a warm job that begin after somebody else has come. */
struct intruder {
    struct mx_engine *e;
    struct ask *foreground, *warm;
    int passes, late;
};

static void intrude(void *arg, size_t read, size_t of)
{
    struct intruder *in = arg;
    (void)of;
    in->late += in->passes > 3;
    if (++in->passes == 3)
        submit(in->e, in->foreground);
    in->warm->probe.last_read = read;
}

static void intruder_done(void *arg, int choice, const mtplx_gen *gen,
                          const struct mx_job_result *r)
{
    rig_done(&((struct intruder *)arg)->warm->probe, choice, gen, r);
}

static void test_warm_yields(void **state)
{
    (void)state;
    static const struct mx_job_sink sink = {NULL, intruder_done, NULL, intrude};
    struct mx_engine *e = engine(4);
    struct ask *next = ask_new(20, LONG), *other = ask_new(22, 50);
    struct ask *w = warm_new(next, "s");
    struct intruder in = {.e = e, .foreground = other, .warm = w};
    w->o.prompt = w->prompt;
    w->o.n_prompt = w->n;
    w->o.sink = &sink;
    w->o.arg = &in;
    assert_true(mx_engine_submit(e, &w->o, NULL) != 0);
    check(other);
    rig_wait_done(&w->probe);
    size_t read = w->probe.last_read;
    assert_int_equal(in.passes, 3);
    assert_int_equal(in.late, 0);
    assert_in_range(read, 3, LONG - 1);
    assert_int_equal(warm_end(w), MX_END_CANCELLED);
    assert_int_equal(asked(e, next), read); /* what it had read is there */
    free(other);
    mx_engine_free(e);
}

/* In line: the newest of a conversation; none for one that has gone on; none after a drain. */
static void test_warm_line(void **state)
{
    (void)state;
    struct mx_engine *e = engine(1);
    struct ask *held = ask_new(23, 10), *p = ask_new(25, 300), *w[4], *go;
    static const char *const sessions[] = {"s", "s", "t", "u"};
    held->o.gen = greedy(8);
    atomic_store(&held->probe.blocked, true);
    submit(e, held);
    rig_wait(&held->probe, 0, 1);
    for (int i = 0; i < 4; i++) {
        w[i] = warm_new(p, sessions[i]);
        submit(e, w[i]);
    }
    rig_wait_done(&w[0]->probe);
    assert_int_equal(warm_end(w[0]), MX_END_CANCELLED);
    assert_int_equal(look(e).queued, 0);
    go = ask_like(p, 200);
    go->o.session = "t";
    submit(e, go);
    rig_wait_done(&w[2]->probe);
    assert_int_equal(warm_end(w[2]), MX_END_CANCELLED);
    atomic_store(&held->probe.blocked, false);
    mx_engine_poke(e);
    assert_int_equal(warm_end(w[1]), MX_END_STOP);
    assert_int_equal(warm_end(w[3]), MX_END_STOP);
    check(go);
    check(held);
    free(go);
    free(held);
    atomic_store(&(held = ask_new(26, 10))->probe.blocked, true);
    submit(e, held);
    rig_wait(&held->probe, 0, 1);
    w[0] = warm_new(p, "v");
    submit(e, w[0]);
    assert_false(mx_engine_drain(e, 1000000));
    assert_int_equal(warm_end(w[0]), MX_END_SHUTDOWN);
    rig_wait_done(&held->probe);
    free(held);
    free(p);
    mx_engine_free(e);
}

/* ---- Memory ------------------------------------------------------------------------------- */

/* Reservations and the bank stay within the limit whenever a pass has been run (E4). */
struct watch {
    struct mx_engine *e;
    struct ask *a;
    uint64_t limit;
    bool over;
};

static void watch_memory(void *arg, size_t read, size_t of)
{
    struct watch *w = arg;
    (void)read;
    (void)of;
    w->over |= look(w->e).memory_reserved + mx_bank_bytes(mx_engine_bank(w->e)) > w->limit;
}

static size_t watched_tokens(void *arg, int choice, const mtplx_gen *gen, const int32_t *ids,
                             size_t from, size_t n)
{
    return rig_tokens(&((struct watch *)arg)->a->probe, choice, gen, ids, from, n);
}

static void watched_done(void *arg, int choice, const mtplx_gen *gen, const struct mx_job_result *r)
{
    rig_done(&((struct watch *)arg)->a->probe, choice, gen, r);
}

static void test_memory(void **state)
{
    (void)state;
    static const struct mx_job_sink sink = {watched_tokens, watched_done, NULL, watch_memory};
    mtplx_gen_options o = greedy(12);
    uint64_t need = mx_seq_bytes_for(model, 312) + mx_gen_bytes_for(model, &o, 300, 12);
    static const double room[] = {1, 1.1, 1.5, 5};
    for (size_t i = 0; i < sizeof room / sizeof *room; i++) {
        uint64_t limit = (uint64_t)((double)need * room[i]);
        struct mx_engine *e = rig_engine(&(struct mx_engine_options){
            .model = model, .mode = MX_ENGINE_MTP_BATCH, .max_active = 4, .memory_limit = limit});
        for (uint32_t k = 0; k < 4; k++) {
            struct ask *a = ask_new(28 + k % 2, 300);
            struct watch w = {.e = e, .a = a, .limit = limit};
            a->o.prompt = a->prompt;
            a->o.n_prompt = a->n;
            a->o.sink = &sink;
            a->o.arg = &w;
            assert_true(mx_engine_submit(e, &a->o, NULL) != 0);
            check(a);
            assert_false(w.over);
            assert_true(mx_bank_bytes(mx_engine_bank(e)) <= limit);
            free(a);
        }
        mx_engine_free(e);
    }
}

/* ---- From disk ---------------------------------------------------------------------------- */

static char dir[64];

static struct mx_cold *open_cold(void)
{
    mtplx_error err = {0};
    struct mx_cold_options o = {.dir = dir,
                                .mode = MX_COLD_ON,
                                .max_bytes = (uint64_t)1 << 30,
                                .hourly_bytes = UINT64_MAX,
                                .floor_bytes = 1,
                                .min_tokens = 100};
    mx_cold_identify(model, &o.identity);
    struct mx_cold *c = mx_cold_open(&o, &err);
    if (!c)
        fail_msg("%s", err.message);
    return c;
}

static struct mx_engine *cold_engine(struct mx_cold *c)
{
    return rig_engine(&(struct mx_engine_options){
        .model = model, .mode = MX_ENGINE_MTP_BATCH, .max_active = 4, .bank.cold = c});
}

/* Ends engine and disk, so that the next ones know only what was written. */
static void close_cold(struct mx_engine *e, struct mx_cold *c)
{
    mx_engine_free(e);
    assert_true(mx_cold_flush(c, (uint64_t)20 * 1000000000));
    mx_cold_close(c, (uint64_t)20 * 1000000000);
}

static int remove_one(const char *path, const struct stat *sb, int type, struct FTW *f)
{
    (void)sb, (void)type, (void)f;
    return remove(path);
}

/* A state survives a restart of model and engine; a warm job leaves it on disk. */
static void test_disk(void **state)
{
    struct ask *first = ask_new(34, 700), *a, *w;
    snprintf(dir, sizeof dir, "/tmp/mtplx-engine-XXXXXX");
    assert_non_null(mkdtemp(dir));
    struct mx_cold *c = open_cold();
    struct mx_engine *e = cold_engine(c);
    submit(e, first);
    check(first);
    close_cold(e, c);
    for (int i = 0; i < 2; i++) {
        teardown(state);
        setup(state);
        c = open_cold();
        e = cold_engine(c);
        w = warm_new(first, "s");
        submit(e, w);
        rig_wait_done(&w->probe);
        assert_int_equal(result(w)->cached_tokens, 0);
        assert_int_equal(result(w)->miss, MX_MISS_BACKGROUND_BYPASS);
        assert_int_equal(warm_end(w), MX_END_STOP);
        mx_bank_drop(mx_engine_bank(e), NULL, 0, false);
        a = i ? next_turn(first, 3, 20) : ask_like(first, first->n);
        a->o.gen = i ? seeded(16, 8) : greedy(16);
        submit(e, a);
        check(a);
        assert_true(result(a)->from_disk);
        assert_int_equal(result(a)->miss, MX_MISS_NONE);
        assert_int_equal(result(a)->cached_tokens,
                         i ? first->n + first->probe.choice[0].n - 1 : first->n - 1);
        free(a);
        assert_int_equal(look(e).counters.disk_restores, 1);
        for (int k = 0; k < 10; k++) { /* wherever the loader is */
            mx_bank_drop(mx_engine_bank(e), NULL, 0, false);
            a = ask_like(first, first->n);
            a->o.deadline_ns = k % 2 ? mx_now_ns() + (uint64_t)k * 200000 : 0;
            submit(e, a);
            if (k % 2 == 0)
                mx_engine_cancel(e, a->id);
            rig_wait_done(&a->probe);
            free(a);
        }
        close_cold(e, c);
    }
    free(first);
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- Everything at once ------------------------------------------------------------------- */

/* Prompts that grow out of each other, in two scopes, submitted in bursts, some cancelled, some
 * with choices, with warm jobs between them. */
static void test_script(void **state)
{
    (void)state;
    enum { N = SLOW_BUILD ? 24 : 60 };
    struct ask *a[N];
    uint32_t s = 99;
    struct mx_engine *e = rig_engine(&(struct mx_engine_options){.model = model,
                                                                 .mode = MX_ENGINE_MTP_BATCH,
                                                                 .max_active = 5,
                                                                 .max_queue = N,
                                                                 .prefill_chunk = 96});
    for (int i = 0; i < N; i++) {
        const struct ask *from = i ? a[rig_noise(&s) % (uint32_t)i] : NULL;
        size_t keep = from ? rig_noise(&s) % from->n + 1 : 0, more = 1 + rig_noise(&s) % 120;
        if (from && rig_noise(&s) % 3 == 0)
            keep = from->n;
        if (!from || keep + more > 900)
            a[i] = ask_new((uint32_t)i, 200 + rig_noise(&s) % 500);
        else {
            a[i] = ask_like(from, keep);
            rig_prompt(model, (uint32_t)i, a[i]->prompt + keep, more);
            a[i]->n += more;
        }
        a[i]->o.gen = i % 2 ? seeded(8, s) : greedy(8);
        a[i]->o.scope = i % 5 == 4 ? "other" : NULL;
        a[i]->o.kind = i % 6 == 5 ? MX_JOB_WARM : MX_JOB_GENERATE;
        submit(e, a[i]);
        if (rig_noise(&s) % 4 == 0)
            rig_wait_done(&a[rig_noise(&s) % (uint32_t)(i + 1)]->probe);
        if (rig_noise(&s) % 6 == 0)
            mx_engine_cancel(e, a[i]->id);
    }
    for (int i = 0; i < N; i++) {
        rig_wait_done(&a[i]->probe);
        if (a[i]->o.kind == MX_JOB_GENERATE)
            check(a[i]);
        else
            assert_int_equal(a[i]->probe.choice[0].n, 0);
    }
    assert_true(mx_engine_drain(e, UINT64_MAX));
    assert_int_equal(look(e).memory_reserved, 0);
    assert_true(look(e).counters.cached_tokens > 0);
    for (int i = 0; i < N; i++)
        free(a[i]);
    mx_engine_free(e);
}

/* The same beginning for several choices: each draws what it would have drawn alone. */
static void test_choices(void **state)
{
    (void)state;
    struct mx_engine *e = engine(8);
    static int32_t want[RIG_TOKENS];
    for (int turn = 0; turn < 3; turn++) {
        struct ask *a = ask_new(31, 400);
        a->o.choices = 3;
        a->o.gen = seeded(16, 5);
        rig_probe(&a->probe, 3);
        submit(e, a);
        rig_wait_done(&a->probe);
        assert_int_equal(result(a)->cached_tokens, turn ? 399 : 0);
        for (int c = 0; c < 3; c++) {
            mtplx_gen_options o = a->o.gen;
            o.sampling.seed += (uint64_t)c;
            rig_equal(&a->probe.choice[c], want, rig_alone(model, a->prompt, a->n, &o, want));
        }
        free(a);
    }
    mx_engine_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_prompt),
        cmocka_unit_test(test_append),
        cmocka_unit_test(test_edit),
        cmocka_unit_test(test_borders),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_scopes),
        cmocka_unit_test(test_bypass),
        cmocka_unit_test(test_cancelled_prefill),
        cmocka_unit_test(test_cancelled_answer),
        cmocka_unit_test(test_crowd),
        cmocka_unit_test(test_leader_gone),
        cmocka_unit_test(test_no_followers),
        cmocka_unit_test(test_warm),
        cmocka_unit_test(test_warm_yields),
        cmocka_unit_test(test_warm_line),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_disk),
        cmocka_unit_test(test_script),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
