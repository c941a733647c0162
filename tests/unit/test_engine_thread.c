/* The engine under many threads: submitting, cancelling, looking, changing settings, clearing,
 * prompts that begin alike, prompts read ahead, states read from disk.
 * Every job ends once, and what was not cancelled has the tokens of a job alone. Meant for the
 * build with the thread sanitizer; small enough for it. */
#include "engine_rig.h"

#include "base/clock.h"
#include "session/cold_state.h"

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CLIENTS = 4, ROUNDS = 8, PROMPT = 24, TOKENS = 12, SHARED = 320 };

static mtplx_model *model;
static struct mx_engine *engine;
/* Short ones, and ones with the same SHARED tokens before them. */
struct round {
    int32_t prompt[SHARED + PROMPT], want[RIG_TOKENS];
    size_t n, n_want;
};
static struct round shorts[ROUNDS], longs[ROUNDS], *rounds;
static atomic_bool over;
static atomic_int finished, cancelled, failures;

static mtplx_gen_options options(void)
{
    return (mtplx_gen_options){.depth = 2, .max_tokens = TOKENS, .ignore_stop = true};
}

/* No assertions: cmocka's jumps belong to the main thread. */
static void one_job(int round, uint32_t *s)
{
    struct rig_probe *p = malloc(sizeof *p);
    mtplx_error err = {0};
    char owner[2] = {(char)('a' + rig_noise(s) % 2), 0};
    if (!p)
        return;
    rig_probe(p, 1 + round % 2);
    struct mx_job_options o = {.prompt = rounds[round].prompt,
                               .n_prompt = rounds[round].n,
                               .gen = options(),
                               .owner = owner,
                               .choices = p->choices,
                               .sink = &rig_sink,
                               .arg = p};
    uint64_t id = mx_engine_submit(engine, &o, &err);
    if (id && rig_noise(s) % 4 == 0)
        mx_engine_cancel(engine, id);
    mx_engine_poke(engine);
    pthread_mutex_lock(&p->lock);
    while (id && p->open)
        pthread_cond_wait(&p->changed, &p->lock);
    for (int i = 0; id && i < p->choices; i++) {
        const struct rig_choice *c = &p->choice[i];
        bool stopped = c->result.end == MX_END_CANCELLED || c->result.end == MX_END_SHUTDOWN;
        size_t n = stopped ? c->n : rounds[round].n_want;
        if (c->dones != 1 || p->wrong || c->n != n ||
            memcmp(c->ids, rounds[round].want, n * sizeof *c->ids))
            atomic_fetch_add(&failures, 1);
        atomic_fetch_add(stopped ? &cancelled : &finished, 1);
    }
    pthread_mutex_unlock(&p->lock);
    free(p);
}

static void *client(void *arg)
{
    uint32_t s = (uint32_t)(uintptr_t)arg + 1;
    for (int i = 0; i < (rounds == shorts ? 6 * ROUNDS : ROUNDS / 2); i++)
        one_job((int)(rig_noise(&s) % ROUNDS), &s);
    return NULL;
}

/* Reads ahead what the clients ask for, while they do. */
static void *predictor(void *arg)
{
    uint32_t s = 7;
    (void)arg;
    while (!atomic_load(&over)) {
        struct rig_probe *p = malloc(sizeof *p);
        if (!p)
            break;
        rig_probe(p, 1);
        struct round *r = &rounds[rig_noise(&s) % ROUNDS];
        struct mx_job_options o = {.kind = MX_JOB_WARM,
                                   .prompt = r->prompt,
                                   .n_prompt = r->n,
                                   .session = rig_noise(&s) % 2 ? "a" : "b",
                                   .sink = &rig_sink,
                                   .arg = p};
        uint64_t id = mx_engine_submit(engine, &o, NULL);
        usleep(1000);
        pthread_mutex_lock(&p->lock);
        while (id && p->open)
            pthread_cond_wait(&p->changed, &p->lock);
        if (id && (p->choice[0].dones != 1 || p->choice[0].n))
            atomic_fetch_add(&failures, 1);
        pthread_mutex_unlock(&p->lock);
        free(p);
    }
    return NULL;
}

static void *observer(void *arg)
{
    struct mx_engine_snapshot *s = malloc(sizeof *s);
    struct mx_engine_settings set;
    struct mx_bank_stats bank;
    (void)arg;
    for (uint32_t i = 0; s && !atomic_load(&over); i++) {
        mx_engine_get_snapshot(engine, s);
        mx_engine_get_settings(engine, &set);
        set.max_active = 2 + (int)(i % 4);
        set.prefill_chunk = 4 + (int)(i % 16);
        if (mx_engine_set_settings(engine, &set, NULL) != MTPLX_OK || s->memory_limit == 0)
            atomic_fetch_add(&failures, 1);
        if (i % 8 == 0)
            mx_bank_drop(mx_engine_bank(engine), NULL, 0, false);
        mx_bank_get_stats(mx_engine_bank(engine), &bank);
        mx_engine_retry_after(engine);
        usleep(2000);
    }
    free(s);
    return NULL;
}

static void load(void)
{
    mtplx_error err = {0};
    char path[512];
    const char *root = getenv("MTPLX_SRC");
    snprintf(path, sizeof path, "%s/tests/golden/qwen3_5_text", root ? root : ".");
    setenv("MTPLX_STATE_DIR", "off", 0);
    model = mtplx_model_load(path, &(mtplx_load_options){.threads = 2}, &err);
    if (!model)
        fail_msg("%s", err.message);
    mtplx_gen_options o = options();
    for (uint32_t i = 0; i < ROUNDS; i++) {
        struct round *r = &shorts[i], *l = &longs[i];
        rig_prompt(model, i, r->prompt, r->n = PROMPT);
        r->n_want = rig_alone(model, r->prompt, r->n, &o, r->want);
        rig_prompt(model, 100, l->prompt, SHARED);
        memcpy(l->prompt + SHARED, r->prompt, sizeof *r->prompt * PROMPT);
        l->n = SHARED + PROMPT;
        l->n_want = rig_alone(model, l->prompt, l->n, &o, l->want);
    }
}

static void run(struct round *which, struct mx_cold *cold, bool freed_early)
{
    pthread_t threads[CLIENTS], watch, ahead;
    rounds = which;
    engine = rig_engine(&(struct mx_engine_options){.model = model,
                                                    .mode = MX_ENGINE_MTP_BATCH,
                                                    .max_active = 3,
                                                    .max_queue = 100,
                                                    .bank.cold = cold});
    atomic_store(&over, false);
    for (uintptr_t i = 0; i < CLIENTS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, client, (void *)i), 0);
    assert_int_equal(pthread_create(&watch, NULL, observer, NULL), 0);
    assert_int_equal(pthread_create(&ahead, NULL, predictor, NULL), 0);
    if (freed_early) {
        usleep(20000);
        mx_engine_drain(engine, 1000000);
    }
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&over, true);
    pthread_join(watch, NULL);
    pthread_join(ahead, NULL);
    mx_engine_free(engine);
    assert_int_equal(atomic_load(&failures), 0);
}

static void test_many_threads(void **state)
{
    (void)state;
    run(shorts, NULL, false);
    assert_true(atomic_load(&finished) > 0);
}

static void test_drain_meanwhile(void **state)
{
    (void)state;
    run(shorts, NULL, true);
}

static int remove_one(const char *path, const struct stat *sb, int type, struct FTW *f)
{
    (void)sb, (void)type, (void)f;
    return remove(path);
}

/* Twice over one directory: the second time the disk has it. */
static void test_shared_prompts(void **state)
{
    (void)state;
    char dir[] = "/tmp/mtplx-thread-XXXXXX";
    assert_non_null(mkdtemp(dir));
    struct mx_cold_options o = {.dir = dir, .mode = MX_COLD_ON, .floor_bytes = 1, .min_tokens = 64};
    mx_cold_identify(model, &o.identity);
    for (int i = 0; i < 2; i++) {
        struct mx_cold *c = mx_cold_open(&o, NULL);
        assert_non_null(c);
        run(longs, c, false);
        mx_cold_close(c, 10000000000);
    }
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_threads),
        cmocka_unit_test(test_drain_meanwhile),
        cmocka_unit_test(test_shared_prompts),
    };
    load();
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    mtplx_model_free(model);
    return rc;
}
