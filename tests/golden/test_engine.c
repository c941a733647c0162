/* The engine on the trained model: answers are those of the job run alone, whatever the company,
 * the mode and the order; turns are fair; every end comes exactly once. */
#include "golden.h"

#include "engine_rig.h"

static mtplx_model *model;

static int setup(void **state)
{
    (void)state;
    model = load_or_fail(src_path("models/nano"), &(mtplx_load_options){.threads = 2});
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    mtplx_model_free(model);
    return 0;
}

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
                                 .max_tokens = 8 + (int)(rig_noise(&s) % 40),
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_company),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
