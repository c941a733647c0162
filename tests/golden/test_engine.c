/* The engine on the trained model (with sanitizers on a small fixture): answers are those of the
 * job run alone, whatever the company, the mode and the order; turns are fair; every end comes
 * exactly once. */
#include "golden.h"

#include "device/device.h"
#include "engine_rig.h"
#include "runtime/generate.h"
#include "runtime/model.h"

static mtplx_model *model;

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
    mtplx_model_free(model);
    return 0;
}

/* Grammars need the tokenizer that the fixture lacks: these tests have the trained model always. */
static mtplx_model *fixture;

static int trained_model(void **state)
{
    (void)state;
    fixture = model;
    model = load_or_fail(src_path("models/nano"), &(mtplx_load_options){.threads = 2});
    return 0;
}

static int usual_model(void **state)
{
    (void)state;
    mtplx_model_free(model);
    model = fixture;
    return 0;
}

#define trained_test(f) cmocka_unit_test_setup_teardown(f, trained_model, usual_model)

static const enum mx_engine_mode modes[] = {MX_ENGINE_SERIAL, MX_ENGINE_COOPERATIVE,
                                            MX_ENGINE_AR_BATCH, MX_ENGINE_MTP_BATCH};

/* ---- N1: company changes nothing ---------------------------------------------------------- */

enum { JOBS = 24, MAX_PROMPT = 700 };

struct case_ {
    int32_t prompt[MAX_PROMPT], want[RIG_TOKENS];
    size_t n, n_want;
    mtplx_gen_options gen;
    struct rig_probe probe;
    bool cancel;
};

static void make_case(struct case_ *c, int i)
{
    uint32_t s = (uint32_t)i + 77;
    c->n = i % 5 == 0 ? 300 + rig_noise(&s) % 400 : 1 + rig_noise(&s) % 60;
    rig_prompt(model, (uint32_t)i, c->prompt, c->n);
    c->gen = (mtplx_gen_options){.depth = i % 4,
                                 .policy = i % 3 == 2 ? MTPLX_DEPTH_AUTO : MTPLX_DEPTH_FIXED,
                                 .max_tokens = 1 + (int)(rig_noise(&s) % 48),
                                 .context_copy = i % 6 == 1,
                                 .ignore_stop = i % 2};
    if (i % 3 == 1) {
        c->gen.sampling = (mtplx_sampling){.temperature = 0.8, .top_p = 0.9, .seed = s};
        c->gen.context_copy = false;
    }
    if (i % 7 == 3)
        c->gen.sampling.repetition_penalty = 1.2;
    c->cancel = i % 8 == 5;
}

static void reference(struct case_ *c, enum mx_engine_mode mode)
{
    mtplx_gen_options o = c->gen;
    if (mode == MX_ENGINE_AR_BATCH) {
        o.depth = 0;
        o.context_copy = false;
    }
    c->n_want = rig_alone(model, c->prompt, c->n, &o, c->want);
}

static void run_cases(struct case_ *cases, enum mx_engine_mode mode)
{
    struct mx_engine *e = rig_engine(&(struct mx_engine_options){
        .model = model, .mode = mode, .max_active = 6, .max_queue = JOBS, .prefill_chunk = 64});
    uint32_t s = 5;
    uint64_t ids[JOBS];
    for (int i = 0; i < JOBS; i++) {
        struct case_ *c = &cases[i];
        char owner[2] = {(char)('a' + i % 3), 0};
        rig_probe(&c->probe, 1);
        struct mx_job_options o = {.prompt = c->prompt,
                                   .n_prompt = c->n,
                                   .gen = c->gen,
                                   .owner = owner,
                                   .priority = i % 3 - 1};
        ids[i] = rig_submit(e, &o, &c->probe);
        if (rig_noise(&s) % 3 == 0)
            rig_wait(&cases[rig_noise(&s) % (uint32_t)(i + 1)].probe, 0, 3);
        if (c->cancel)
            mx_engine_cancel(e, ids[rig_noise(&s) % 2 ? i : i / 2 * 2 + 1]);
    }
    assert_true(mx_engine_drain(e, UINT64_MAX));
    for (int i = 0; i < JOBS; i++) {
        rig_wait_done(&cases[i].probe);
        const struct rig_choice *c = &cases[i].probe.choice[0];
        if (c->result.end == MX_END_CANCELLED) {
            assert_true(c->n <= cases[i].n_want);
            assert_memory_equal(c->ids, cases[i].want, c->n * sizeof *c->ids);
            continue;
        }
        assert_int_equal(c->result.end <= MX_END_LENGTH, 1);
        rig_equal(c, cases[i].want, cases[i].n_want);
        assert_int_equal(c->result.completion_tokens, c->n);
        assert_int_equal(c->result.prompt_tokens, cases[i].n);
        assert_int_equal(cases[i].probe.last_read, cases[i].n);
    }
    mx_engine_free(e);
}

static void test_company(void **state)
{
    (void)state;
    struct case_ *cases = calloc(JOBS, sizeof *cases);
    assert_non_null(cases);
    for (int i = 0; i < JOBS; i++)
        make_case(&cases[i], i);
    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
        for (int i = 0; i < JOBS; i++)
            reference(&cases[i], modes[m]);
        run_cases(cases, modes[m]);
    }
    free(cases);
}

/* ---- Helpers ------------------------------------------------------------------------------ */

/* A prompt, its job and what came of it. */
struct item {
    int32_t *prompt;
    size_t n;
    struct mx_job_options o;
    struct rig_probe probe;
    uint64_t id;
};

static void item_init(struct item *it, uint32_t seed, size_t n, int tokens)
{
    memset(it, 0, sizeof *it);
    it->prompt = malloc((n + 1) * sizeof *it->prompt);
    assert_non_null(it->prompt);
    it->n = n;
    rig_prompt(model, seed, it->prompt, n);
    rig_probe(&it->probe, 1);
    it->o = (struct mx_job_options){.prompt = it->prompt,
                                    .n_prompt = n,
                                    .gen = {.depth = 2, .max_tokens = tokens, .ignore_stop = true}};
}

static void item_submit(struct mx_engine *e, struct item *it)
{
    it->id = rig_submit(e, &it->o, &it->probe);
}

/* Its tokens are those of the bare loop. */
static void item_check(const struct item *it)
{
    int32_t want[RIG_TOKENS];
    size_t n = rig_alone(model, it->prompt, it->n, &it->o.gen, want);
    rig_equal(&it->probe.choice[0], want, n);
}

static enum mx_job_end end_of(const struct item *it)
{
    return it->probe.choice[0].result.end;
}

static struct mx_engine *engine(int max_active)
{
    return rig_engine(&(struct mx_engine_options){
        .model = model, .mode = MX_ENGINE_MTP_BATCH, .max_active = max_active});
}

/* A job that holds its place until it is let go. */
static void hold(struct mx_engine *e, struct item *it, const char *owner)
{
    item_init(it, 1, 10, 8);
    it->o.owner = owner;
    atomic_store(&it->probe.blocked, true);
    item_submit(e, it);
    rig_wait(&it->probe, 0, 1);
}

static void let_go(struct mx_engine *e, struct item *it)
{
    atomic_store(&it->probe.blocked, false);
    mx_engine_poke(e);
}

static struct mx_engine_snapshot look(struct mx_engine *e)
{
    static struct mx_engine_snapshot s;
    mx_engine_get_snapshot(e, &s);
    return s;
}

/* ---- Order -------------------------------------------------------------------------------- */

/* A short prompt that arrives while a long one is read: submitted between two passes, it has its
 * first token after the next one. */
struct arrival {
    struct mx_engine *e;
    struct item *late, *first;
    size_t passes, at_token;
};

static void arrive(void *arg, size_t read, size_t of)
{
    struct arrival *a = arg;
    (void)read;
    (void)of;
    if (++a->passes == 3)
        item_submit(a->e, a->late);
    if (a->passes > 3 && a->late->probe.choice[0].n == 0)
        a->at_token = a->passes;
}

static size_t arrival_tokens(void *arg, int choice, const mtplx_gen *gen, const int32_t *ids,
                             size_t from, size_t n)
{
    (void)arg, (void)choice, (void)gen, (void)ids, (void)from, (void)n;
    return SIZE_MAX;
}

static void arrival_done(void *arg, int choice, const mtplx_gen *gen, const struct mx_job_result *r)
{
    rig_done(&((struct arrival *)arg)->first->probe, choice, gen, r);
}

static void first_token_passes(bool busy)
{
    static const struct mx_job_sink sink = {arrival_tokens, arrival_done, NULL, arrive};
    struct item first, late, busy_one;
    struct mx_engine *e = rig_engine(&(struct mx_engine_options){
        .model = model, .mode = MX_ENGINE_MTP_BATCH, .prefill_chunk = 64});
    struct arrival a = {.e = e, .late = &late, .first = &first};
    item_init(&first, 1, 4000, 2);
    item_init(&late, 2, 40, 4);
    item_init(&busy_one, 3, 10, 400);
    if (busy) {
        item_submit(e, &busy_one);
        rig_wait(&busy_one.probe, 0, 1);
    }
    first.o.sink = &sink;
    first.o.arg = &a;
    assert_true(mx_engine_submit(e, &first.o, NULL) != 0);
    rig_wait_done(&first.probe);
    assert_int_equal(end_of(&first), MX_END_LENGTH);
    rig_wait_done(&late.probe);
    item_check(&late);
    assert_true(a.at_token <= 4); /* passes of which the late one was not yet in */
    assert_true(a.passes >= 15);  /* it did not have to wait for these */
    mx_engine_free(e);
    free(first.prompt);
    free(late.prompt);
    free(busy_one.prompt);
}

static void test_first_token(void **state)
{
    (void)state;
    first_token_passes(false);
    first_token_passes(true);
}

static void test_owners_in_turns(void **state)
{
    (void)state;
    enum { MANY = 50 };
    struct item held, one, *many = calloc(MANY, sizeof *many);
    atomic_uint_least64_t order = 0;
    struct mx_engine *e = rig_engine(&(struct mx_engine_options){
        .model = model, .mode = MX_ENGINE_MTP_BATCH, .max_active = 1, .max_queue = 2 * MANY});
    hold(e, &held, "a");
    for (int i = 0; i < MANY; i++) {
        item_init(&many[i], 7, 5, 2);
        many[i].o.owner = "a";
        many[i].probe.order = &order;
        item_submit(e, &many[i]);
    }
    item_init(&one, 9, 5, 2);
    one.o.owner = "b";
    one.probe.order = &order;
    item_submit(e, &one);
    struct mx_engine_snapshot s = look(e);
    while (s.jobs[0].state != MX_JOB_DECODE) /* published once a turn */
        s = look(e);
    assert_int_equal(s.queued, MANY + 1);
    assert_int_equal(s.active, 1);
    assert_int_equal(s.jobs[0].id, held.id);
    assert_int_equal(s.jobs[1].id, many[0].id);
    assert_string_equal(s.jobs[1].owner, "a");
    let_go(e, &held);
    assert_true(mx_engine_drain(e, UINT64_MAX));
    assert_int_equal(one.probe.first_order, 1);
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(many[i].probe.first_order, i + 2);
        free(many[i].prompt);
    }
    mx_engine_free(e);
    free(one.prompt);
    free(held.prompt);
    free(many);
}

static void test_blocked_readers(void **state)
{
    (void)state;
    struct item held, other;
    struct mx_engine *e = engine(4);
    hold(e, &held, "a");
    item_init(&other, 4, 30, 40);
    item_submit(e, &other);
    rig_wait_done(&other.probe);
    item_check(&other);
    assert_true(held.probe.choice[0].n < 8);
    let_go(e, &held);
    rig_wait_done(&held.probe);
    item_check(&held);
    mx_engine_free(e);
    free(held.prompt);
    free(other.prompt);
}

/* ---- Endings ------------------------------------------------------------------------------ */

static void test_deadlines(void **state)
{
    (void)state;
    struct item past, soon;
    struct mx_engine *e = engine(4);
    item_init(&past, 1, 10, 4);
    past.o.deadline_ns = 1;
    item_submit(e, &past);
    rig_wait_done(&past.probe);
    assert_int_equal(end_of(&past), MX_END_DEADLINE);
    assert_false(past.probe.choice[0].had_gen);
    item_init(&soon, 2, 10, 400);
    atomic_store(&soon.probe.blocked, true); /* so it cannot be done before */
    soon.o.deadline_ns = mx_now_ns() + 30000000;
    item_submit(e, &soon);
    rig_wait_done(&soon.probe);
    assert_int_equal(end_of(&soon), MX_END_DEADLINE);
    assert_true(mx_engine_drain(e, UINT64_MAX));
    assert_int_equal(look(e).counters.expired, 2);
    mx_engine_free(e);
    free(past.prompt);
    free(soon.prompt);
}

static void test_full_queues(void **state)
{
    (void)state;
    struct item held, it[4];
    mtplx_error err = {0};
    struct mx_engine *e = rig_engine(&(struct mx_engine_options){.model = model,
                                                                 .mode = MX_ENGINE_MTP_BATCH,
                                                                 .max_active = 1,
                                                                 .max_queue = 3,
                                                                 .max_queue_owner = 2});
    hold(e, &held, "x");
    for (int i = 0; i < 4; i++) {
        item_init(&it[i], 5, 6, 2);
        it[i].o.owner = i < 3 ? "a" : "b";
        it[i].o.sink = &rig_sink;
    }
    item_submit(e, &it[0]);
    item_submit(e, &it[1]);
    assert_int_equal(mx_engine_submit(e, &it[2].o, &err), 0);
    assert_int_equal(err.status, MTPLX_ERR_LIMIT);
    assert_non_null(strstr(err.message, "this client"));
    item_submit(e, &it[3]);
    it[2].o.owner = "c";
    assert_int_equal(mx_engine_submit(e, &it[2].o, &err), 0);
    assert_int_equal(err.status, MTPLX_ERR_LIMIT);
    assert_int_equal(look(e).counters.refused_queue, 2);
    assert_in_range(mx_engine_retry_after(e), 1, 60);
    assert_true(mx_engine_cancel(e, it[0].id)); /* a waiting one makes a place */
    rig_wait_done(&it[0].probe);
    assert_int_equal(end_of(&it[0]), MX_END_CANCELLED);
    let_go(e, &held);
    assert_true(mx_engine_drain(e, UINT64_MAX));
    assert_false(mx_engine_cancel(e, it[0].id));
    assert_int_equal(mx_engine_submit(e, &it[2].o, &err), 0);
    assert_int_equal(err.status, MTPLX_ERR_CANCELLED);
    mx_engine_free(e);
    free(held.prompt);
    for (int i = 0; i < 4; i++)
        free(it[i].prompt);
}

/* A burst into an idle engine is not refused for want of a turn of the owner thread. */
static void test_burst(void **state)
{
    (void)state;
    enum { N = 5 };
    struct item it[N + 1];
    mtplx_error err = {0};
    struct mx_engine *e = rig_engine(&(struct mx_engine_options){
        .model = model, .mode = MX_ENGINE_MTP_BATCH, .max_active = 4, .max_queue = 1});
    for (int i = 0; i <= N; i++) {
        item_init(&it[i], 5, 6, 4);
        it[i].o.sink = &rig_sink;
        it[i].o.arg = &it[i].probe;
        atomic_store(&it[i].probe.blocked, true);
        if (i < N)
            item_submit(e, &it[i]);
    }
    assert_int_equal(mx_engine_submit(e, &it[N].o, &err), 0);
    assert_int_equal(err.status, MTPLX_ERR_LIMIT);
    for (int i = 0; i < N; i++)
        let_go(e, &it[i]);
    assert_true(mx_engine_drain(e, UINT64_MAX));
    mx_engine_free(e);
    for (int i = 0; i <= N; i++)
        free(it[i].prompt);
}

static void test_shutdown(void **state)
{
    (void)state;
    enum { N = 12 };
    struct item it[N];
    struct mx_engine *e = engine(4);
    for (int i = 0; i < N; i++) {
        item_init(&it[i], (uint32_t)i, i == 1 ? 3000 : 20, 500);
        item_submit(e, &it[i]);
    }
    rig_wait(&it[0].probe, 0, 1);
    mx_engine_free(e);
    for (int i = 0; i < N; i++) {
        rig_wait_done(&it[i].probe);
        assert_int_equal(end_of(&it[i]), MX_END_SHUTDOWN);
        free(it[i].prompt);
    }
}

static void test_drain_timeout(void **state)
{
    (void)state;
    struct item held;
    struct mx_engine *e = engine(2);
    hold(e, &held, "a");
    assert_false(mx_engine_drain(e, 20000000));
    rig_wait_done(&held.probe);
    assert_int_equal(end_of(&held), MX_END_SHUTDOWN);
    assert_true(mx_engine_drain(e, 0));
    mx_engine_free(e);
    free(held.prompt);
}

static void test_cancel_in_prefill(void **state)
{
    (void)state;
    struct item it, again;
    struct mx_engine *e = engine(2);
    item_init(&it, 1, 3000, 4);
    item_submit(e, &it);
    pthread_mutex_lock(&it.probe.lock);
    while (it.probe.progress_calls < 2)
        pthread_cond_wait(&it.probe.changed, &it.probe.lock);
    pthread_mutex_unlock(&it.probe.lock);
    assert_true(mx_engine_cancel(e, it.id));
    rig_wait_done(&it.probe);
    assert_int_equal(end_of(&it), MX_END_CANCELLED);
    assert_true(it.probe.last_read < it.n);
    item_init(&again, 1, 3000, 4); /* what was read is not read again */
    item_submit(e, &again);
    rig_wait_done(&again.probe);
    item_check(&again);
    assert_true(again.probe.choice[0].result.cached_tokens >= it.probe.last_read);
    mx_engine_free(e);
    free(it.prompt);
    free(again.prompt);
}

static void test_sink_ends(void **state)
{
    (void)state;
    struct item it;
    struct mx_engine *e = engine(2);
    item_init(&it, 3, 20, 50);
    it.probe.stop_at = 6;
    it.probe.keep = 4;
    item_submit(e, &it);
    rig_wait_done(&it.probe);
    assert_int_equal(end_of(&it), MX_END_SINK);
    assert_int_equal(it.probe.choice[0].result.completion_tokens, 4);
    assert_true(it.probe.choice[0].n >= 6 && it.probe.choice[0].n < 12);
    mx_engine_free(e);
    free(it.prompt);
}

static void test_bad_jobs(void **state)
{
    (void)state;
    struct mx_engine *e = engine(2);
    mtplx_error err;
    size_t context = (size_t)mtplx_model_get_info(model)->context_length;
    int32_t ids[2] = {1, 1000000000}, *big = calloc(context, sizeof *big);
    const struct mx_job_options bad[] = {
        {.prompt = ids, .n_prompt = 0},
        {.prompt = ids, .n_prompt = 2},
        {.prompt = big, .n_prompt = context},
        {.prompt = ids, .n_prompt = 1, .choices = 17},
        {.prompt = ids, .n_prompt = 1, .choices = -1},
        {.prompt = ids, .n_prompt = 1, .priority = 2},
        {.prompt = ids, .n_prompt = 1, .kind = (enum mx_job_kind)7},
        {.prompt = ids, .n_prompt = 1, .gen = {.depth = 99}},
        {.prompt = ids, .n_prompt = 1, .gen = {.max_tokens = -1}},
        {.prompt = ids, .n_prompt = 1, .gen = {.logprobs = 99}},
        {.prompt = ids, .n_prompt = 1, .gen = {.policy = (mtplx_depth_policy)99}},
        {.prompt = ids, .n_prompt = 1, .gen = {.n_logit_bias = 100000}},
        {.prompt = ids, .n_prompt = 1, .gen = {.sampling = {.temperature = -1}}},
        {.prompt = ids, .n_prompt = 1, .kind = MX_JOB_EMBED_MEAN, .choices = 2},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mx_job_options o = bad[i];
        o.sink = &rig_sink;
        err.status = MTPLX_OK;
        assert_int_equal(mx_engine_submit(e, &o, &err), 0);
        assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);
    }
    mx_engine_free(e);
    free(big);
}

/* ---- Memory ------------------------------------------------------------------------------- */

static uint64_t bytes_of(const struct item *it, size_t tokens)
{
    return mx_seq_bytes_for(model, it->n + tokens) +
           mx_gen_bytes_for(model, &it->o.gen, it->n, tokens);
}

static mtplx_grammar *grammar(const char *re)
{
    mtplx_error err = {0};
    mtplx_grammar *g = mtplx_grammar_new(model, MTPLX_GRAMMAR_REGEX, re, strlen(re), NULL, &err);
    if (!g)
        fail_msg("%s: %s", re, err.message);
    return g;
}

static struct mx_engine *limited(uint64_t bytes)
{
    return rig_engine(&(struct mx_engine_options){.model = model,
                                                  .mode = MX_ENGINE_MTP_BATCH,
                                                  .max_active = 16,
                                                  .max_queue = 100,
                                                  .memory_limit = bytes});
}

static void test_memory_refusal(void **state)
{
    (void)state;
    struct item it;
    mtplx_error err = {0};
    item_init(&it, 1, 500, 100);
    uint64_t need = bytes_of(&it, 100);
    struct mx_engine *e = limited(need - 1);
    it.o.sink = &rig_sink;
    assert_int_equal(mx_engine_submit(e, &it.o, &err), 0);
    assert_int_equal(err.status, MTPLX_ERR_MEMORY);
    assert_non_null(strstr(err.message, "500 prompt tokens"));
    assert_non_null(strstr(err.message, "memory limit"));
    assert_int_equal(look(e).counters.refused_memory, 1);
    mx_engine_free(e);
    e = limited(need);
    item_submit(e, &it);
    rig_wait_done(&it.probe);
    item_check(&it);
    it.o.gen.grammar = grammar("[a-z]*"); /* its masks take memory too */
    assert_int_equal(mx_engine_submit(e, &it.o, &err), 0);
    assert_int_equal(err.status, MTPLX_ERR_MEMORY);
    mtplx_grammar_free(it.o.gen.grammar);
    mx_engine_free(e);
    free(it.prompt);
}

/* Where two fit the others wait, and the session bank shrinks. */
static void test_memory_waits(void **state)
{
    (void)state;
    enum { N = 6 };
    struct item it[N];
    item_init(&it[0], 1, 200, 60);
    uint64_t need = bytes_of(&it[0], 60), limit = 2 * need + need / 2;
    struct mx_engine *e = limited(limit);
    free(it[0].prompt);
    for (int i = 0; i < N; i++) {
        item_init(&it[i], (uint32_t)i, 200, 60);
        item_submit(e, &it[i]);
    }
    for (int i = 0; i < N; i++) {
        rig_wait(&it[i].probe, 0, 2);
        struct mx_engine_snapshot s = look(e);
        assert_true(s.active <= 2);
        assert_true(s.memory_reserved <= limit);
        assert_true(mx_bank_bytes(mx_engine_bank(e)) <= limit / 2);
    }
    for (int i = 0; i < N; i++) {
        rig_wait_done(&it[i].probe);
        item_check(&it[i]);
        free(it[i].prompt);
    }
    assert_true(mx_engine_drain(e, UINT64_MAX));
    assert_int_equal(look(e).memory_reserved, 0);
    mx_engine_free(e);
}

/* Without max_tokens, or with one that the window cuts, the reservation grows; where it cannot, the
 * answer ends in good order. */
static void check_memory_growth(int max_tokens)
{
    struct item it, free_one;
    int32_t want[RIG_TOKENS];
    item_init(&it, 6, 100, max_tokens);
    size_t most = (size_t)mtplx_model_get_info(model)->context_length;
    uint64_t limit =
        mx_seq_bytes_for(model, it.n + 300) + mx_gen_bytes_for(model, &it.o.gen, it.n, most - it.n);
    struct mx_engine *e = limited(limit);
    item_submit(e, &it);
    rig_wait_done(&it.probe);
    assert_int_equal(end_of(&it), MX_END_LENGTH);
    size_t n = it.probe.choice[0].n;
    assert_in_range(n, 64, 400);
    mtplx_gen_options o = it.o.gen;
    o.max_tokens = (int)n;
    assert_int_equal(rig_alone(model, it.prompt, it.n, &o, want), n);
    rig_equal(&it.probe.choice[0], want, n);
    item_init(&free_one, 6, 100, 20); /* the engine is as good as new */
    item_submit(e, &free_one);
    rig_wait_done(&free_one.probe);
    item_check(&free_one);
    mx_engine_free(e);
    free(it.prompt);
    free(free_one.prompt);
}

static void test_memory_growth(void **state)
{
    (void)state;
    int window = mtplx_model_get_info(model)->context_length;
    check_memory_growth(0);
    check_memory_growth(window - 100);
    check_memory_growth(window);
}

/* ---- Choices, reuse, embeddings ----------------------------------------------------------- */

static void check_choices(struct mx_engine *e, size_t n_prompt)
{
    enum { CHOICES = 4 };
    struct item it;
    int32_t want[RIG_TOKENS];
    item_init(&it, 11, n_prompt, 24);
    it.o.choices = CHOICES;
    it.o.gen.sampling = (mtplx_sampling){.temperature = 1, .seed = 99};
    it.o.gen.sampling.presence_penalty = 0.5;
    rig_probe(&it.probe, CHOICES);
    item_submit(e, &it);
    rig_wait_done(&it.probe);
    for (int i = 0; i < CHOICES; i++) {
        mtplx_gen_options o = it.o.gen;
        o.sampling.seed += (uint64_t)i;
        size_t n = rig_alone(model, it.prompt, it.n, &o, want);
        rig_equal(&it.probe.choice[i], want, n);
    }
    assert_true(it.probe.choice[0].n != it.probe.choice[1].n ||
                memcmp(it.probe.choice[0].ids, it.probe.choice[1].ids,
                       it.probe.choice[0].n * sizeof *want) != 0);
    free(it.prompt);
}

static void test_choices(void **state)
{
    (void)state;
    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
        if (modes[m] == MX_ENGINE_AR_BATCH)
            continue; /* no drafts: other draws */
        struct mx_engine *e = rig_engine(&(struct mx_engine_options){
            .model = model, .mode = modes[m], .max_active = m % 2 ? 2 : 8});
        check_choices(e, 300);
        check_choices(e, 2);
        check_choices(e, 1);
        assert_true(mx_engine_drain(e, UINT64_MAX));
        assert_int_equal(look(e).counters.prompt_tokens, 300 + 2 + 1 + 3 * 3);
        mx_engine_free(e);
    }
}

/* Answers under grammars of their own, some with choices, some cancelled; the grammar goes as soon
 * as the job is done. */
static void test_grammars(void **state)
{
    (void)state;
    enum { N = 9 };
    static const char *const rules[] = {"\\{\"name\": \"[a-z ]*\", \"long key\": [0-9]+\\}",
                                        "(yes|no|maybe so)( indeed)*", "x[a-zA-Z ]*y"};
    struct item it[N];
    struct mx_engine *e = engine(12);
    int32_t want[RIG_TOKENS];
    for (int i = 0; i < N; i++) {
        item_init(&it[i], (uint32_t)i, 40 + (size_t)i, 40);
        it[i].o.choices = i % 3 == 1 ? 3 : 1;
        it[i].o.gen.depth = i % 4;
        it[i].o.gen.logprobs = i % 2;
        it[i].o.gen.sampling = (mtplx_sampling){.temperature = i % 2, .seed = 7, .top_p = 0.95};
        it[i].o.gen.grammar = grammar(rules[i % 3]);
        rig_probe(&it[i].probe, it[i].o.choices);
        item_submit(e, &it[i]);
        if (i % 4 == 3)
            mx_engine_cancel(e, it[i].id);
    }
    for (int i = 0; i < N; i++) {
        rig_wait_done(&it[i].probe);
        mtplx_gen_options o = it[i].o.gen;
        for (int c = 0; c < it[i].o.choices && i % 4 != 3; c++, o.sampling.seed++)
            rig_equal(&it[i].probe.choice[c], want,
                      rig_alone(model, it[i].prompt, it[i].n, &o, want));
        mtplx_grammar_free(it[i].o.gen.grammar);
        free(it[i].prompt);
    }
    assert_true(mx_engine_drain(e, UINT64_MAX));
    assert_int_equal(look(e).memory_reserved, 0);
    mx_engine_free(e);
}

/* The prompt and answer of a finished job, and more tokens behind it. */
static void item_next_turn(struct item *next, const struct item *before, size_t more)
{
    const struct rig_choice *c = &before->probe.choice[0];
    item_init(next, 8, before->n + c->n + more, 16);
    memcpy(next->prompt, before->prompt, before->n * sizeof *next->prompt);
    memcpy(next->prompt + before->n, c->ids, c->n * sizeof *next->prompt);
}

/* What a grammar forced and what was sampled leaves a sequence that draws as a cold one does. */
static void test_reuse_sampled(void **state)
{
    (void)state;
    struct item first, next;
    struct mx_engine *e = engine(4);
    for (uint64_t seed = 0; seed < 6; seed++) {
        item_init(&first, 3, 60, 30 + (int)seed);
        first.o.gen.sampling = (mtplx_sampling){.temperature = 1, .seed = seed};
        first.o.gen.depth = 3;
        first.o.gen.grammar = grammar("(the quick brown fox [a-z ]{1,9} jumps over )*");
        item_submit(e, &first);
        rig_wait_done(&first.probe);
        mtplx_grammar_free(first.o.gen.grammar);
        item_next_turn(&next, &first, 20);
        next.o.gen.sampling = first.o.gen.sampling;
        next.o.gen.depth = 3;
        item_submit(e, &next);
        rig_wait_done(&next.probe);
        assert_true(next.probe.choice[0].result.cached_tokens >= first.n);
        item_check(&next);
        free(first.prompt);
        free(next.prompt);
    }
    mx_engine_free(e);
}

static void test_reuse(void **state)
{
    (void)state;
    struct item one, two, three, other, off;
    struct mx_engine *e = engine(4);
    item_init(&one, 2, 200, 16);
    one.o.owner = "ann";
    item_submit(e, &one);
    rig_wait_done(&one.probe);
    assert_int_equal(one.probe.choice[0].result.miss, MX_MISS_NEW_SESSION);

    item_next_turn(&other, &one, 10); /* somebody else's is read whole */
    other.o.owner = other.o.scope = "bob";
    item_submit(e, &other);
    rig_wait_done(&other.probe);
    assert_int_equal(other.probe.choice[0].result.cached_tokens, 0);
    assert_int_equal(other.probe.choice[0].result.miss, MX_MISS_NEW_SESSION);

    item_next_turn(&off, &one, 10);
    off.o.owner = "ann";
    off.o.no_reuse = true;
    item_submit(e, &off);
    rig_wait_done(&off.probe);
    assert_int_equal(off.probe.choice[0].result.miss, MX_MISS_BYPASS);
    assert_int_equal(off.probe.choice[0].result.cached_tokens, 0);

    item_next_turn(&two, &one, 10);
    two.o.owner = "ann";
    item_submit(e, &two);
    rig_wait_done(&two.probe);
    item_check(&two);
    assert_int_equal(two.probe.choice[0].result.miss, MX_MISS_NONE);
    assert_int_equal(two.probe.choice[0].result.restored, MX_RESTORE_EXACT);
    assert_int_equal(two.probe.choice[0].result.cached_tokens, 200 + 16 - 1);

    item_next_turn(&three, &one, 10); /* the same turn again: another seed of the rest diverges */
    three.prompt[205]++;
    three.o.owner = "ann";
    item_submit(e, &three);
    rig_wait_done(&three.probe);
    item_check(&three);
    assert_int_equal(three.probe.choice[0].result.miss, MX_MISS_PREFIX_DIVERGENCE);
    size_t cached = three.probe.choice[0].result.cached_tokens; /* thinning decides */
    assert_in_range(cached, 0, 205);

    assert_true(mx_engine_drain(e, UINT64_MAX));
    struct mx_engine_snapshot s = look(e);
    assert_int_equal(s.counters.cached_tokens, 215 + cached);
    assert_int_equal(s.counters.restores, 1 + (cached > 0));
    assert_true(mx_bank_drop(mx_engine_bank(e), NULL, 0, false) > 0);
    assert_int_equal(mx_bank_drop(mx_engine_bank(e), NULL, 0, false), 0);
    mx_engine_free(e);
    struct item *all[] = {&one, &two, &three, &other, &off};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]->prompt);
}

static void test_reuse_bounds(void **state)
{
    (void)state;
    struct item it[5], off;
    struct mx_engine *e = rig_engine(&(struct mx_engine_options){
        .model = model, .mode = MX_ENGINE_MTP_BATCH, .max_active = 1, .bank.budget = 1 << 20});
    for (uint32_t i = 0; i < 5; i++) {
        item_init(&it[i], i, 40, 4);
        item_submit(e, &it[i]);
        rig_wait_done(&it[i].probe);
        free(it[i].prompt);
    }
    assert_true(mx_engine_drain(e, UINT64_MAX));
    assert_true(mx_bank_bytes(mx_engine_bank(e)) <= 1 << 20);
    mx_engine_free(e);
    e = rig_engine(&(struct mx_engine_options){.model = model, .no_bank = true});
    item_init(&off, 1, 40, 4);
    item_submit(e, &off);
    rig_wait_done(&off.probe);
    assert_int_equal(off.probe.choice[0].result.miss, MX_MISS_DISABLED);
    assert_null(mx_engine_bank(e));
    mx_engine_free(e);
    free(off.prompt);
}

/* By one forward pass for each 256 rows. */
static void direct_embedding(const struct item *it, bool mean, float *out)
{
    size_t dims = (size_t)mtplx_model_get_info(model)->hidden_size;
    double *sum = calloc(dims, sizeof *sum);
    mtplx_seq *s = mtplx_seq_new(model, NULL);
    assert_non_null(sum);
    for (size_t at = 0; at < it->n;) {
        mtplx_row rows[256];
        mtplx_forward_result r;
        size_t n = it->n - at < 256 ? it->n - at : 256;
        for (size_t i = 0; i < n; i++)
            rows[i] = (mtplx_row){.seq = s, .token = it->prompt[at + i]};
        assert_int_equal(mtplx_forward(model, rows, n, MTPLX_COMMIT, true, &r, NULL), MTPLX_OK);
        for (size_t i = 0; i < n; i++)
            for (size_t d = 0; d < dims; d++)
                sum[d] = (mean ? sum[d] : 0) + (double)r.hidden[i * dims + d];
        at += n;
    }
    for (size_t d = 0; d < dims; d++)
        out[d] = (float)(mean ? sum[d] / (double)it->n : sum[d]);
    mtplx_seq_free(s);
    free(sum);
}

static void test_embeddings(void **state)
{
    (void)state;
    static float want[RIG_DIMS];
    struct item text[4], chat;
    struct mx_engine *e = rig_engine(&(struct mx_engine_options){
        .model = model, .mode = MX_ENGINE_MTP_BATCH, .prefill_chunk = 100});
    item_init(&chat, 3, 50, 60);
    item_submit(e, &chat);
    for (int i = 0; i < 4; i++) {
        item_init(&text[i], (uint32_t)i, i ? (size_t)i * 150 : 1, 0);
        text[i].o.kind = i % 2 ? MX_JOB_EMBED_MEAN : MX_JOB_EMBED_LAST;
        item_submit(e, &text[i]);
    }
    assert_true(mx_engine_drain(e, UINT64_MAX));
    item_check(&chat);
    size_t dims = (size_t)mtplx_model_get_info(model)->hidden_size;
    for (int i = 0; i < 4; i++) {
        rig_wait_done(&text[i].probe);
        assert_int_equal(end_of(&text[i]), MX_END_STOP);
        assert_int_equal(text[i].probe.dims, dims);
        direct_embedding(&text[i], i % 2, want);
        assert_memory_equal(text[i].probe.embedding, want, dims * sizeof *want);
        free(text[i].prompt);
    }
    mx_engine_free(e);
    free(chat.prompt);
}

/* ---- Failures ----------------------------------------------------------------------------- */

static const struct mx_device_ops *good_ops;
static atomic_uint alloc_noise;

/* One allocation of device memory in six fails. */
static void *scarce(struct mx_device *d, size_t bytes)
{
    uint32_t s = atomic_fetch_add(&alloc_noise, 1) * 2654435761u;
    return (s >> 16) % 6 == 0 ? NULL : good_ops->alloc(d, bytes);
}

/* The first KV block fails. */
static void *fails_once(struct mx_device *d, size_t bytes)
{
    bool block = bytes == mx_kv_block_bytes(&model->geometry.kv);
    return block && atomic_fetch_add(&alloc_noise, 1) == 0 ? NULL : good_ops->alloc(d, bytes);
}

/* Texts whose shared pass fails try alone. */
static void test_embeddings_apart(void **state)
{
    (void)state;
    static struct mx_device_ops broken;
    struct item held, text[3];
    struct mx_engine *e = rig_engine(&(struct mx_engine_options){
        .model = model, .mode = MX_ENGINE_MTP_BATCH, .max_active = 3, .max_queue = 8});
    good_ops = model->device->ops;
    broken = *good_ops;
    broken.alloc = fails_once;
    hold(e, &held, "a");
    mx_engine_set_settings(
        e,
        &(struct mx_engine_settings){
            .mode = MX_ENGINE_SERIAL, .max_active = 3, .max_queue = 8, .prefill_chunk = 64},
        NULL);
    for (int i = 0; i < 3; i++) {
        item_init(&text[i], (uint32_t)i, 12, 0);
        text[i].o.kind = MX_JOB_EMBED_MEAN;
        item_submit(e, &text[i]);
    }
    atomic_store(&alloc_noise, 0);
    model->device->ops = &broken;
    mx_engine_set_settings(
        e,
        &(struct mx_engine_settings){
            .mode = MX_ENGINE_MTP_BATCH, .max_active = 4, .max_queue = 8, .prefill_chunk = 64},
        NULL);
    for (int i = 0; i < 3; i++) {
        rig_wait_done(&text[i].probe);
        assert_int_equal(end_of(&text[i]), MX_END_STOP);
        free(text[i].prompt);
    }
    let_go(e, &held);
    rig_wait_done(&held.probe);
    mx_engine_free(e);
    model->device->ops = good_ops;
    atomic_store(&alloc_noise, 0);
    free(held.prompt);
}

/* Whose memory is out ends with an error, the others as ever, and the engine is as good as new. */
static void test_failures(void **state)
{
    (void)state;
    enum { N = 20 };
    static struct mx_device_ops broken;
    struct item it[N], after;
    int32_t want[RIG_TOKENS];
    int failed = 0, whole = 0;
    struct mx_engine *e = engine(6);
    good_ops = model->device->ops;
    broken = *good_ops;
    broken.alloc = scarce;
    model->device->ops = &broken;
    for (uint32_t i = 0; i < N; i++) {
        item_init(&it[i], i, i % 3 ? 20 : 200, 90);
        if (i % 7 == 6) {
            it[i].o.choices = 3;
            rig_probe(&it[i].probe, 3);
        }
        if (i % 9 == 8)
            it[i].o.kind = MX_JOB_EMBED_MEAN;
        item_submit(e, &it[i]);
    }
    for (int i = 0; i < N; i++)
        rig_wait_done(&it[i].probe);
    item_init(&after, 3, 200, 90);
    atomic_store(&after.probe.blocked, true);
    mx_bank_drop(mx_engine_bank(e), NULL, 0, false);
    model->device->ops = good_ops;
    item_submit(e, &after);
    let_go(e, &after);
    rig_wait_done(&after.probe);
    item_check(&after);
    for (int i = 0; i < N; i++) {
        size_t n = it[i].o.kind ? 0 : rig_alone(model, it[i].prompt, it[i].n, &it[i].o.gen, want);
        for (int k = 0; k < it[i].probe.choices; k++) {
            const struct rig_choice *c = &it[i].probe.choice[k];
            bool error = c->result.end == MX_END_ERROR;
            failed += error;
            whole += !error;
            assert_int_equal(c->result.error.status, error ? MTPLX_ERR_MEMORY : MTPLX_OK);
            assert_true(error ? c->n <= n : c->n == n); /* the seed of a greedy choice is idle */
            assert_memory_equal(c->ids, want, c->n * sizeof *want);
        }
        free(it[i].prompt);
    }
    assert_true(failed > 3 && whole > 3);
    assert_true(mx_engine_drain(e, UINT64_MAX));
    assert_true(look(e).counters.failed > 0);
    assert_int_equal(look(e).memory_reserved, 0);
    mx_engine_free(e);
    free(after.prompt);
}

/* ---- Settings and numbers ----------------------------------------------------------------- */

static void test_settings(void **state)
{
    (void)state;
    struct mx_engine_settings s, bad;
    struct item it[4];
    mtplx_error err = {0};
    struct mx_engine *e = engine(3);
    mx_engine_get_settings(e, &s);
    assert_int_equal(s.max_active, 3);
    assert_int_equal(s.max_queue, 24);
    bad = s;
    bad.max_active = MX_MAX_ACTIVE + 1;
    assert_int_equal(mx_engine_set_settings(e, &bad, &err), MTPLX_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "max_active"));
    bad = s;
    bad.prefill_chunk = 0;
    assert_int_equal(mx_engine_set_settings(e, &bad, &err), MTPLX_ERR_ARGUMENT);
    bad = s;
    bad.mode = (enum mx_engine_mode)9;
    assert_int_equal(mx_engine_set_settings(e, &bad, &err), MTPLX_ERR_ARGUMENT);
    for (uint32_t i = 0; i < 4; i++) { /* modes may change under running greedy answers */
        item_init(&it[i], i, 30, 60);
        item_submit(e, &it[i]);
        rig_wait(&it[i].probe, 0, 2);
        s.mode = modes[i];
        s.max_active = 1 + (int)i;
        assert_int_equal(mx_engine_set_settings(e, &s, &err), MTPLX_OK);
    }
    for (int i = 0; i < 4; i++) {
        rig_wait_done(&it[i].probe);
        item_check(&it[i]);
        free(it[i].prompt);
    }
    mx_engine_free(e);
}

static void test_numbers(void **state)
{
    (void)state;
    enum { N = 4 };
    struct item it[N];
    struct mx_engine *e = engine(N);
    for (uint32_t i = 0; i < N; i++) {
        item_init(&it[i], i, 20, 40);
        item_submit(e, &it[i]);
    }
    assert_true(mx_engine_drain(e, UINT64_MAX));
    struct mx_engine_snapshot s = look(e);
    uint64_t cycles = 0, hist = 0;
    for (int i = 0; i <= MX_MAX_ACTIVE; i++)
        cycles += s.counters.width[i];
    for (int i = 0; i < MX_ENGINE_HIST; i++)
        hist += s.counters.ttft_hist[i];
    assert_int_equal(cycles, s.counters.cycles);
    assert_int_equal(hist, N);
    assert_true(s.counters.width[0] == 0 && s.counters.cycles > 0);
    assert_int_equal(s.counters.completion_tokens, N * 40);
    assert_int_equal(s.counters.prompt_tokens, N * 20);
    assert_int_equal(s.counters.accepted, N);
    assert_int_equal(s.counters.finished, N);
    assert_true(s.counters.drafted[0] > 0 && s.counters.busy_ns > 0);
    for (int i = 0; i < N; i++) {
        const struct mx_job_result *r = &it[i].probe.choice[0].result;
        assert_true(r->mean_width >= 1 && r->mean_width <= N);
        assert_true(r->queue_ns <= r->ttft_ns && r->ttft_ns <= r->total_ns);
        free(it[i].prompt);
    }
    mx_engine_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_company),
        cmocka_unit_test(test_first_token),
        cmocka_unit_test(test_owners_in_turns),
        cmocka_unit_test(test_blocked_readers),
        cmocka_unit_test(test_deadlines),
        cmocka_unit_test(test_full_queues),
        cmocka_unit_test(test_burst),
        cmocka_unit_test(test_shutdown),
        cmocka_unit_test(test_drain_timeout),
        cmocka_unit_test(test_cancel_in_prefill),
        cmocka_unit_test(test_sink_ends),
        cmocka_unit_test(test_bad_jobs),
        trained_test(test_memory_refusal),
        cmocka_unit_test(test_memory_waits),
        cmocka_unit_test(test_memory_growth),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_reuse),
        cmocka_unit_test(test_reuse_bounds),
        cmocka_unit_test(test_embeddings),
        cmocka_unit_test(test_failures),
        trained_test(test_grammars),
        trained_test(test_reuse_sampled),
        cmocka_unit_test(test_embeddings_apart),
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_numbers),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
