/* Random scripts over the engine with its session bank and cold tier: conversations are begun,
 * continued, edited, forked, cancelled and sent again, alone and at once, while budgets shrink,
 * entries are dropped and the engine, at times the model too, is closed and opened again. Every
 * answer must have the tokens of a cold run of the same request.
 *
 * A script follows from its number. MTPLX_SCRIPTS=500 runs so many, MTPLX_SCRIPT_FIRST=N from
 * number N on. A failure prints the number and the operations. */
#include "golden.h"

#include "engine_rig.h"
#include "session/cold_state.h"

#include <ftw.h>
#include <unistd.h>

enum {
    CONVERSATIONS = 3,
    MAX_PROMPT = 1100,
    MAX_ANSWER = 24,
    MAX_CHOICES = 2,
    MAX_NOTES = 8192,
    ROOMY = 1 << 30, /* bytes: no script fills it */
};

/* ---- State ---------------------------------------------------------------------------------- */

/* ids[0..n_prompt) were sent last, ids[n_prompt..n) is the answer to them. */
struct conversation {
    int32_t ids[MAX_PROMPT + MAX_ANSWER];
    size_t n, n_prompt;
    char name[16];
    int settled; /* value of script.disturbed when its answer was complete; -1: never */
};

struct reference {
    struct reference *next;
    uint64_t key;
    size_t n;
    int32_t ids[MAX_ANSWER];
};

struct script {
    uint32_t number, rng;
    const char *path;
    mtplx_load_options load;
    mtplx_model *model;
    struct mx_engine *engine;
    enum mx_engine_mode mode;
    struct mx_cold *cold;
    char dir[64]; /* of the cold tier; "": none */
    uint64_t budget;
    struct conversation conversations[CONVERSATIONS];
    struct reference *references;
    int disturbed;        /* counts what may have dropped entries */
    int scopes;           /* used once each */
    pthread_mutex_t lock; /* of the notes: the cold tier's writer adds its warnings */
    char notes[MAX_NOTES];
    size_t n_notes;
    bool finished;
};

static struct script *script;

/* Over all scripts: a test that restores nothing shows nothing. */
static struct {
    int scripts, requests, restored, from_disk, predicted, cancelled;
    uint64_t prompt_tokens, cached_tokens, kinds[4], misses[MX_MISS_COUNT];
} tally;

static uint32_t draw(struct script *s, uint32_t below)
{
    return rig_noise(&s->rng) % below;
}

static bool chance(struct script *s, uint32_t percent)
{
    return draw(s, 100) < percent;
}

__attribute__((format(printf, 2, 3))) static void note(struct script *s, const char *fmt, ...)
{
    va_list ap;
    pthread_mutex_lock(&s->lock);
    va_start(ap, fmt);
    int n = vsnprintf(s->notes + s->n_notes, MAX_NOTES - s->n_notes, fmt, ap);
    va_end(ap);
    if (n > 0 && s->n_notes + (size_t)n < MAX_NOTES)
        s->n_notes += (size_t)n;
    pthread_mutex_unlock(&s->lock);
}

/* ---- Cold runs ------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t h, const void *data, size_t n)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

static uint64_t request_key(const int32_t *prompt, size_t n, const mtplx_gen_options *o)
{
    double law[] = {o->sampling.temperature, o->sampling.top_p, o->sampling.repetition_penalty};
    uint64_t more[] = {o->sampling.seed,          (uint64_t)o->sampling.top_k,
                       (uint64_t)o->depth,        (uint64_t)o->policy,
                       (uint64_t)o->context_copy, (uint64_t)o->max_tokens,
                       (uint64_t)o->ignore_stop};
    uint64_t h = mix(0xcbf29ce484222325u, prompt, n * sizeof *prompt);
    return mix(mix(h, law, sizeof law), more, sizeof more);
}

/* What the bare loop answers on a fresh sequence. */
static const struct reference *cold_run(struct script *s, const int32_t *prompt, size_t n,
                                        mtplx_gen_options o)
{
    int32_t ids[RIG_TOKENS];
    if (s->mode == MX_ENGINE_AR_BATCH) {
        o.depth = 0;
        o.context_copy = false;
    }
    uint64_t key = request_key(prompt, n, &o);
    for (struct reference *r = s->references; r; r = r->next)
        if (r->key == key)
            return r;
    struct reference *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->key = key;
    r->n = rig_alone(s->model, prompt, n, &o, ids);
    assert_true(r->n <= MAX_ANSWER);
    memcpy(r->ids, ids, r->n * sizeof *ids);
    r->next = s->references;
    s->references = r;
    return r;
}

/* ---- Requests ------------------------------------------------------------------------------- */

struct request {
    struct conversation *c;
    int32_t prompt[MAX_PROMPT];
    size_t n;
    mtplx_gen_options gen;
    struct mx_job_options job;
    size_t borders[4];
    char scope[16];
    size_t expect; /* cached tokens; SIZE_MAX: cannot be told */
    uint64_t id;
    struct rig_probe probe;
};

static mtplx_gen_options random_options(struct script *s)
{
    mtplx_gen_options o = {.depth = (int)draw(s, 6),
                           .context_copy = chance(s, 40),
                           .max_tokens = 1 + (int)draw(s, MAX_ANSWER),
                           .ignore_stop = chance(s, 50)};
    if (chance(s, 50)) {
        o.sampling = (mtplx_sampling){.temperature = 0.6 + 0.1 * draw(s, 5),
                                      .top_p = chance(s, 50) ? 0.9 : 1,
                                      .top_k = chance(s, 50) ? 20 : 0,
                                      .seed = draw(s, 1000)};
    } else if (chance(s, 50)) {
        o.policy = MTPLX_DEPTH_AUTO;
    }
    if (chance(s, 15))
        o.sampling.repetition_penalty = 1.1;
    return o;
}

static struct request *new_request(struct script *s, struct conversation *c)
{
    struct request *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->c = c;
    r->n = c->n;
    r->expect = SIZE_MAX;
    memcpy(r->prompt, c->ids, r->n * sizeof *r->prompt);
    r->gen = random_options(s);
    snprintf(r->scope, sizeof r->scope, "key");
    size_t at = 0;
    for (size_t i = 0; i < 4; i++) {
        at += 1 + draw(s, 200);
        if (at < r->n && chance(s, 70))
            r->borders[r->job.n_borders++] = at;
    }
    r->job.choices = chance(s, 10) ? MAX_CHOICES : 1;
    r->job.no_reuse = chance(s, 4);
    return r;
}

static void submit(struct script *s, struct request *r)
{
    r->job.prompt = r->prompt;
    r->job.n_prompt = r->n;
    r->job.gen = r->gen;
    r->job.owner = r->job.session = r->c->name;
    r->job.scope = r->scope;
    r->job.borders = r->borders;
    rig_probe(&r->probe, r->job.kind == MX_JOB_WARM ? 1 : r->job.choices);
    r->id = rig_submit(s->engine, &r->job, &r->probe);
    note(s, " %zu tokens, %s depth %d%s%s%s;", r->n,
         r->gen.sampling.temperature > 0 ? "sampled" : "greedy", r->gen.depth,
         r->gen.context_copy ? " copy" : "", r->job.choices > 1 ? " two choices" : "",
         r->job.no_reuse ? " no reuse" : "");
}

static void check_tokens(struct script *s, const struct request *r, int choice)
{
    const struct rig_choice *got = &r->probe.choice[choice];
    mtplx_gen_options o = r->gen;
    o.sampling.seed += (uint64_t)choice;
    const struct reference *want = cold_run(s, r->prompt, r->n, o);
    bool part = got->result.end == MX_END_CANCELLED;
    if (got->result.end > MX_END_LENGTH && !part)
        fail_msg("%s ended with %d: %s", r->c->name, (int)got->result.end,
                 got->result.error.message);
    if ((part ? got->n > want->n : got->n != want->n) ||
        memcmp(got->ids, want->ids, got->n * sizeof *want->ids) != 0)
        fail_msg("%s: choice %d differs from its cold run (%zu tokens of %zu, %zu of %zu restored)",
                 r->c->name, choice, got->n, want->n, got->result.cached_tokens, r->n);
}

static void count(const struct request *r)
{
    const struct mx_job_result *result = &r->probe.choice[0].result;
    tally.requests++;
    tally.restored += result->cached_tokens > 0;
    tally.from_disk += result->from_disk;
    tally.predicted += r->expect != SIZE_MAX;
    tally.cancelled += result->end == MX_END_CANCELLED;
    tally.prompt_tokens += result->prompt_tokens;
    tally.cached_tokens += result->cached_tokens;
    tally.kinds[result->restored]++;
    tally.misses[result->miss]++;
}

static void check_cached(struct script *s, const struct request *r)
{
    const struct mx_job_result *result = &r->probe.choice[0].result;
    note(s, " %zu restored (%s);", result->cached_tokens, mx_cache_miss_name(result->miss));
    assert_true(result->cached_tokens < r->n);
    assert_true(result->restored < 4 && result->miss < MX_MISS_COUNT);
    assert_true((result->cached_tokens > 0) == (result->restored != MX_RESTORE_NONE));
    if (r->expect != SIZE_MAX && result->cached_tokens != r->expect)
        fail_msg("%s: %zu of %zu tokens were restored, not %zu (%s)", r->c->name,
                 result->cached_tokens, r->n, r->expect, mx_cache_miss_name(result->miss));
}

/* Waits for the answer, checks it and makes it part of the conversation. */
static void settle(struct script *s, struct request *r)
{
    struct conversation *c = r->c;
    const struct rig_choice *first = &r->probe.choice[0];
    rig_wait_done(&r->probe);
    for (int i = 0; i < r->probe.choices; i++)
        check_tokens(s, r, i);
    if (first->result.end <= MX_END_LENGTH) {
        check_cached(s, r);
        c->n_prompt = r->n;
        memcpy(c->ids, r->prompt, r->n * sizeof *c->ids);
        memcpy(c->ids + r->n, first->ids, first->n * sizeof *c->ids);
        c->n = r->n + first->n;
        c->settled = r->job.no_reuse || r->job.choices > 1 ? -1 : s->disturbed;
    } else {
        c->settled = -1;
    }
    count(r);
    free(r);
}

static void check_bank(struct script *s)
{
    struct mx_bank_stats st;
    mx_bank_get_stats(mx_engine_bank(s->engine), &st);
    if (st.bytes > st.budget)
        fail_msg("the bank holds %llu bytes of %llu", (unsigned long long)st.bytes,
                 (unsigned long long)st.budget);
}

/* ---- What becomes of a conversation --------------------------------------------------------- */

static void append_noise(struct script *s, struct conversation *c, size_t n)
{
    if (c->n + n > MAX_PROMPT)
        n = MAX_PROMPT - c->n;
    rig_prompt(s->model, draw(s, 1 << 20), c->ids + c->n, n);
    c->n += n;
}

/* Half of the first prompts share one of two beginnings. */
static size_t change_new(struct script *s, struct conversation *c)
{
    size_t shared = chance(s, 50) ? 1 + draw(s, 400) : 0;
    rig_prompt(s->model, 7 + draw(s, 2), c->ids, 400);
    c->n = shared;
    append_noise(s, c, 1 + (chance(s, 40) ? draw(s, 400) : draw(s, 90)));
    note(s, "\n  %s: new, %zu shared,", c->name, shared);
    return SIZE_MAX;
}

static size_t change_append(struct script *s, struct conversation *c)
{
    size_t known = c->n - 1; /* the answer's last token was never read */
    append_noise(s, c, 1 + draw(s, 80));
    note(s, "\n  %s: append,", c->name);
    return known;
}

/* The answer comes back without its first tokens, as when reasoning is left out. */
static size_t change_alter(struct script *s, struct conversation *c)
{
    size_t cut = 1 + draw(s, (uint32_t)(c->n - c->n_prompt));
    memmove(c->ids + c->n_prompt, c->ids + c->n_prompt + cut,
            (c->n - c->n_prompt - cut) * sizeof *c->ids);
    c->n -= cut;
    append_noise(s, c, 1 + draw(s, 80));
    note(s, "\n  %s: %zu tokens of the answer left out,", c->name, cut);
    return SIZE_MAX;
}

static size_t change_edit(struct script *s, struct conversation *c)
{
    size_t at = draw(s, (uint32_t)c->n);
    if (chance(s, 50))
        c->n = at + 1;
    c->ids[at] = (c->ids[at] + 1) % mtplx_model_get_info(s->model)->vocab_size;
    append_noise(s, c, draw(s, 40));
    note(s, "\n  %s: edit at %zu,", c->name, at);
    return SIZE_MAX;
}

static size_t change_none(struct script *s, struct conversation *c)
{
    c->n = c->n_prompt;
    note(s, "\n  %s: the same again,", c->name);
    return c->n - 1;
}

static size_t change_fork(struct script *s, struct conversation *c)
{
    const struct conversation *from = &s->conversations[draw(s, CONVERSATIONS)];
    if (from->n_prompt == 0 || from == c)
        return change_new(s, c);
    memcpy(c->ids, from->ids, from->n * sizeof *c->ids);
    c->n_prompt = from->n_prompt;
    c->n = from->n;
    append_noise(s, c, 1 + draw(s, 60));
    note(s, "\n  %s: fork of %s,", c->name, from->name);
    return SIZE_MAX;
}

/* Changes a conversation and makes the request that follows. */
static struct request *next_request(struct script *s, struct conversation *c)
{
    static size_t (*const changes[])(struct script *, struct conversation *) = {
        change_new,  change_append, change_append, change_append, change_alter,
        change_edit, change_edit,   change_none,   change_none,   change_fork,
    };
    bool begun = c->n_prompt > 0 && c->n > c->n_prompt && c->n + 90 < MAX_PROMPT;
    bool calm = c->settled == s->disturbed && s->budget == ROOMY;
    size_t known =
        begun ? changes[draw(s, sizeof changes / sizeof *changes)](s, c) : change_new(s, c);
    struct request *r = new_request(s, c);
    if (calm)
        r->expect = known;
    if (r->job.no_reuse)
        r->expect = 0;
    return r;
}

/* ---- Operations ----------------------------------------------------------------------------- */

static struct conversation *any_conversation(struct script *s)
{
    return &s->conversations[draw(s, CONVERSATIONS)];
}

static void ask(struct script *s, struct conversation *c)
{
    struct request *r = next_request(s, c);
    submit(s, r);
    settle(s, r);
}

static void do_one(struct script *s)
{
    ask(s, any_conversation(s));
}

/* Several at once, sometimes with the same beginning. */
static void do_burst(struct script *s)
{
    struct request *r[CONVERSATIONS];
    size_t n = 2 + draw(s, CONVERSATIONS - 1);
    note(s, "\n  at once:");
    for (size_t i = 0; i < n; i++) {
        r[i] = next_request(s, &s->conversations[i]);
        submit(s, r[i]);
    }
    for (size_t i = 0; i < n; i++)
        settle(s, r[i]);
}

static void wait_read(struct rig_probe *p, size_t calls)
{
    pthread_mutex_lock(&p->lock);
    while (p->open && p->progress_calls < calls)
        pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

static struct request *again(struct script *s, const struct request *r)
{
    struct request *copy = new_request(s, r->c);
    memcpy(copy->prompt, r->prompt, r->n * sizeof *r->prompt);
    copy->n = r->n;
    copy->gen = r->gen;
    return copy;
}

/* Cancelled while its prompt is read, or after a few tokens, and sent again. */
static void do_cancel(struct script *s)
{
    struct request *r = next_request(s, any_conversation(s));
    size_t after = draw(s, 5);
    struct request *second = again(s, r);
    submit(s, r);
    if (after < 3)
        wait_read(&r->probe, after);
    else
        rig_wait(&r->probe, 0, after - 2);
    mx_engine_cancel(s->engine, r->id);
    note(s, " cancelled, and again:");
    if (chance(s, 50)) {
        settle(s, r);
        submit(s, second);
        settle(s, second);
    } else {
        submit(s, second);
        settle(s, r);
        settle(s, second);
    }
}

/* A prompt is read ahead in idle time; the request comes afterwards or in the middle of it. */
static void do_warm(struct script *s)
{
    struct request *r = next_request(s, any_conversation(s));
    struct request *warm = again(s, r);
    warm->job.kind = MX_JOB_WARM;
    warm->job.choices = 1;
    warm->job.no_reuse = false;
    note(s, " warm");
    r->expect = r->job.no_reuse ? 0 : SIZE_MAX;
    submit(s, warm);
    if (chance(s, 60))
        rig_wait_done(&warm->probe);
    else
        wait_read(&warm->probe, draw(s, 3));
    submit(s, r);
    settle(s, r);
    rig_wait_done(&warm->probe);
    assert_int_equal(warm->probe.choice[0].n, 0);
    free(warm);
}

/* Who asks under another key gets no use of what is known. */
static void do_other_scope(struct script *s)
{
    struct request *r = next_request(s, any_conversation(s));
    snprintf(r->scope, sizeof r->scope, "key %d", ++s->scopes);
    r->expect = 0;
    note(s, " under %s", r->scope);
    submit(s, r);
    settle(s, r);
    s->disturbed++;
}

static void do_budget(struct script *s)
{
    static const uint64_t budgets[] = {0, 1 << 18, 1 << 20, 1 << 22, 1 << 24, ROOMY, ROOMY};
    struct mx_bank *b = mx_engine_bank(s->engine);
    s->budget = budgets[draw(s, sizeof budgets / sizeof *budgets)];
    s->disturbed++;
    note(s, "\n  budget %llu", (unsigned long long)s->budget);
    if (s->budget > 0) {
        mx_bank_set_budget(b, s->budget);
    } else {
        s->budget = ROOMY;
        mx_bank_shrink(b, 0);
    }
    mx_bank_tick(b);
    check_bank(s);
}

static void do_drop(struct script *s)
{
    struct mx_bank *b = mx_engine_bank(s->engine);
    const struct conversation *c = any_conversation(s);
    bool all = chance(s, 30), cold = chance(s, 30);
    int n = mx_bank_drop(b, all ? NULL : c->name, 0, cold);
    s->disturbed++;
    note(s, "\n  drop %s%s: %d", all ? "all" : c->name, cold ? ", on disk too" : "", n);
}

/* ---- Opening and closing -------------------------------------------------------------------- */

static void cold_log(void *arg, const char *line)
{
    note(arg, "\n  [%s]", line);
}

static void open_cold(struct script *s)
{
    mtplx_error err = {0};
    struct mx_cold_options o = {.dir = s->dir,
                                .mode = chance(s, 90) ? MX_COLD_ON : MX_COLD_WRITE_ONLY,
                                .max_bytes = chance(s, 30) ? 1 << 22 : 0,
                                .hourly_bytes = UINT64_MAX,
                                .floor_bytes = 1,
                                .queue_bytes = chance(s, 20) ? 1 << 20 : 0,
                                .min_tokens = 32,
                                .log = cold_log,
                                .log_arg = s};
    mx_cold_identify(s->model, &o.identity);
    s->cold = mx_cold_open(&o, &err);
    if (!s->cold)
        fail_msg("cold tier: %s", err.message);
}

static void open_engine(struct script *s)
{
    static const enum mx_engine_mode modes[] = {MX_ENGINE_MTP_BATCH,   MX_ENGINE_MTP_BATCH,
                                                MX_ENGINE_MTP_BATCH,   MX_ENGINE_SERIAL,
                                                MX_ENGINE_COOPERATIVE, MX_ENGINE_AR_BATCH};
    if (!s->model)
        s->model = load_or_fail(src_path(s->path), &s->load);
    if (s->dir[0])
        open_cold(s);
    s->mode = modes[draw(s, sizeof modes / sizeof *modes)];
    s->budget = chance(s, 70) ? ROOMY : 1 << (16 + draw(s, 8));
    s->engine = rig_engine(
        &(struct mx_engine_options){.model = s->model,
                                    .mode = s->mode,
                                    .max_active = 1 + (int)draw(s, 6),
                                    .max_queue = 32,
                                    .prefill_chunk = 8 << draw(s, 4),
                                    .memory_limit = UINT64_C(4) << 30,
                                    .bank = {.budget = s->budget,
                                             .cold = s->cold,
                                             .spacing = chance(s, 50) ? 0 : 64 + draw(s, 128)}});
    s->disturbed++;
    note(s, "\n open: %s, budget %llu%s,", mx_engine_mode_name(s->mode),
         (unsigned long long)s->budget, s->cold ? ", cold tier" : "");
}

static void close_engine(struct script *s)
{
    mx_engine_free(s->engine);
    s->engine = NULL;
    mx_cold_close(s->cold, chance(s, 80) ? UINT64_C(5000000000) : 0);
    s->cold = NULL;
}

/* Afterwards some conversations go on. */
static void do_restart(struct script *s)
{
    if (s->cold && chance(s, 50)) {
        mx_bank_tick(mx_engine_bank(s->engine));
        mx_cold_flush(s->cold, UINT64_C(5000000000));
    }
    close_engine(s);
    note(s, "\n restart");
    if (chance(s, 30)) {
        mtplx_model_free(s->model);
        s->model = NULL;
        s->load.threads = 1 + (int)draw(s, 2);
        note(s, " and reload");
    }
    open_engine(s);
    for (int i = 0; i < CONVERSATIONS; i++)
        if (s->conversations[i].n_prompt > 0 && chance(s, 60))
            ask(s, &s->conversations[i]);
}

/* ---- Scripts -------------------------------------------------------------------------------- */

static void choose_model(struct script *s)
{
    static const char *const paths[] = {
        "models/nano",
        "tests/golden/qwen3_5_text",
        "tests/golden/qwen3_5_text_mlx4",
        "tests/golden/qwen3_5_vl",
        "tests/golden/qwen3_5_text_mlx_mixed",
    };
    static const mtplx_kv_quant kv[] = {MTPLX_KV_OFF, MTPLX_KV_Q8, MTPLX_KV_Q6, MTPLX_KV_Q4};
    size_t n = sizeof paths / sizeof *paths;
    s->path = paths[s->number % n];
    if (SLOW_BUILD && strcmp(s->path, "models/nano") == 0)
        s->path = paths[1];
    s->load.kv_quant = kv[s->number / n % 4];
    s->load.threads = 1 + (int)draw(s, 2);
    s->load.max_rows = chance(s, 50) ? 0 : 64;
    note(s, "script %u: %s, KV %d, max_rows %d", s->number, s->path, (int)s->load.kv_quant,
         s->load.max_rows);
}

static void play(struct script *s)
{
    static void (*const operations[])(struct script *) = {
        do_one,    do_one,         do_one,     do_one,     do_one,  do_one,    do_one,
        do_burst,  do_burst,       do_burst,   do_warm,    do_warm, do_cancel, do_cancel,
        do_budget, do_other_scope, do_restart, do_restart, do_drop,
    };
    size_t steps = 5 + draw(s, 10);
    for (size_t i = 0; i < steps; i++) {
        operations[draw(s, sizeof operations / sizeof *operations)](s);
        check_bank(s);
    }
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

static void end_script(struct script *s)
{
    if (s->engine)
        close_engine(s);
    mtplx_model_free(s->model);
    while (s->references) {
        struct reference *next = s->references->next;
        free(s->references);
        s->references = next;
    }
    if (s->dir[0])
        nftw(s->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(s);
    script = NULL;
}

static void run_script(uint32_t number)
{
    struct script *s = script = calloc(1, sizeof *s);
    assert_non_null(s);
    pthread_mutex_init(&s->lock, NULL);
    s->number = number;
    s->rng = number * 2654435761u + 17;
    for (int i = 0; i < CONVERSATIONS; i++) {
        s->conversations[i].settled = -1;
        snprintf(s->conversations[i].name, sizeof s->conversations[i].name, "talk %c", 'A' + i);
    }
    choose_model(s);
    if (chance(s, 80)) {
        snprintf(s->dir, sizeof s->dir, "/tmp/mtplx-scripts-XXXXXX");
        assert_non_null(mkdtemp(s->dir));
    }
    open_engine(s);
    play(s);
    tally.scripts++;
    s->finished = true;
    end_script(s);
}

/* Runs after a failure too. */
static int tell(void **state)
{
    (void)state;
    if (script) {
        print_message("MTPLX_SCRIPT_FIRST=%u MTPLX_SCRIPTS=1 repeats this:\n%s\n", script->number,
                      script->notes);
        end_script(script);
    }
    return 0;
}

static void test_scripts(void **state)
{
    (void)state;
    uint32_t first = (uint32_t)budget("MTPLX_SCRIPT_FIRST", 0, 0);
    uint32_t n = (uint32_t)budget("MTPLX_SCRIPTS", 20, 5);
    for (uint32_t i = 0; i < n; i++)
        run_script(first + i);
    print_message("%d scripts, %d requests (%d cancelled): %d restored, %d from disk, %d with a "
                  "predicted length; %llu of %llu prompt tokens restored\n",
                  tally.scripts, tally.requests, tally.cancelled, tally.restored, tally.from_disk,
                  tally.predicted, (unsigned long long)tally.cached_tokens,
                  (unsigned long long)tally.prompt_tokens);
    for (int i = 0; i < MX_MISS_COUNT; i++)
        if (tally.misses[i])
            print_message("  %llu %s\n", (unsigned long long)tally.misses[i],
                          mx_cache_miss_name((enum mx_cache_miss)i));
    if (n >= 20) {
        assert_true(tally.restored * 4 > tally.requests);
        assert_true(tally.from_disk * 50 > tally.requests);
        assert_true(tally.predicted * 10 > tally.requests);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_scripts, tell),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
