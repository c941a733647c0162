/* The engine's calls from outside. What runs is in owner.c and run.c; the invariants are in
 * engine.h and engine_int.h. */
#include "base/clock.h"
#include "base/memory.h"
#include "engine/engine_int.h"
#include "runtime/sampler.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- Settings ----------------------------------------------------------------------------- */

static mtplx_status check_settings(const struct mx_engine_settings *s, size_t max_rows,
                                   mtplx_error *err)
{
    if ((int)s->mode < MX_ENGINE_SERIAL || s->mode > MX_ENGINE_MTP_BATCH)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "mode %d is not an engine mode", (int)s->mode);
    if (s->max_active < 1 || s->max_active > MX_MAX_ACTIVE)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "max_active %d is outside 1..%d", s->max_active,
                        MX_MAX_ACTIVE);
    if (s->max_queue < 1 || s->max_queue > 1000000)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "max_queue %d is outside 1..1000000",
                        s->max_queue);
    if (s->prefill_chunk < 1 || (size_t)s->prefill_chunk > max_rows)
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "prefill_chunk %d is outside 1..%zu, the model's max_rows",
                        s->prefill_chunk, max_rows);
    return MTPLX_OK;
}

void mx_engine_get_settings(struct mx_engine *e, struct mx_engine_settings *s)
{
    pthread_mutex_lock(&e->lock);
    *s = e->settings;
    pthread_mutex_unlock(&e->lock);
}

mtplx_status mx_engine_set_settings(struct mx_engine *e, const struct mx_engine_settings *s,
                                    mtplx_error *err)
{
    mtplx_status st = check_settings(s, e->max_rows, err);
    if (st != MTPLX_OK)
        return st;
    pthread_mutex_lock(&e->lock);
    e->settings = *s;
    e->poked = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    return MTPLX_OK;
}

/* ---- Creation ----------------------------------------------------------------------------- */

static mtplx_status configure(struct mx_engine *e, const struct mx_engine_options *o,
                              mtplx_error *err)
{
    const mtplx_model_info *info = mtplx_model_get_info(o->model);
    e->model = o->model;
    e->max_rows = mx_model_max_rows(o->model);
    e->context = (size_t)info->context_length;
    e->settings = (struct mx_engine_settings){.mode = o->mode,
                                              .max_active = o->max_active ? o->max_active : 8,
                                              .prefill_chunk = o->prefill_chunk ? o->prefill_chunk
                                                                                : (int)e->max_rows};
    e->settings.max_queue = o->max_queue ? o->max_queue : 8 * e->settings.max_active;
    e->max_queue_owner = o->max_queue_owner;
    if (e->max_queue_owner < 0)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "max_queue_owner must not be negative");
    e->memory_limit = o->memory_limit ? o->memory_limit
                                      : mx_memory_budget(mx_memory_usable(), info->weight_bytes);
    e->jobs_end = &e->jobs;
    e->next_id = 1;
    e->warm_rows = MX_WARM_ROWS;
    e->now = e->settings;
    return check_settings(&e->settings, e->max_rows, err);
}

static mtplx_status make_bank(struct mx_engine *e, const struct mx_engine_options *o,
                              mtplx_error *err)
{
    struct mx_bank_options b = o->bank;
    if (o->no_bank)
        return MTPLX_OK;
    if (!b.model)
        b.model = o->model;
    if (!b.budget)
        b.budget = e->memory_limit / 2;
    if (b.budget > e->memory_limit)
        b.budget = e->memory_limit;
    e->bank = mx_bank_new(&b, err);
    e->cold = e->bank ? b.cold : NULL;
    return e->bank ? MTPLX_OK : err->status;
}

struct mx_bank *mx_engine_bank(struct mx_engine *e)
{
    return e->bank;
}

struct mx_cold *mx_engine_cold(struct mx_engine *e)
{
    return e->cold;
}

static void init_sync(struct mx_engine *e)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->wake, &attr);
    pthread_cond_init(&e->changed, &attr);
    pthread_cond_init(&e->loads, &attr);
    pthread_condattr_destroy(&attr);
}

static void destroy(struct mx_engine *e)
{
    mx_bank_free(e->bank);
    pthread_cond_destroy(&e->loads);
    pthread_cond_destroy(&e->changed);
    pthread_cond_destroy(&e->wake);
    pthread_mutex_destroy(&e->lock);
    mx_queue_free(&e->queue);
    free(e);
}

/* The threads take no signals: they are for the program's own. */
static bool start_thread(struct mx_engine *e, pthread_t *thread, void *(*main_)(void *))
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(thread, NULL, main_, e);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc == 0;
}

/* Ends the threads, those there are; the loader last, as jobs still leave loads to it. */
static void join_threads(struct mx_engine *e, bool owner)
{
    pthread_mutex_lock(&e->lock);
    e->draining = e->stopping = e->quit = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    if (owner)
        pthread_join(e->thread, NULL);
    if (!e->cold)
        return;
    pthread_mutex_lock(&e->lock);
    e->loader_quit = true;
    pthread_cond_signal(&e->loads);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->loader, NULL);
}

static mtplx_status start(struct mx_engine *e, const struct mx_engine_options *o, mtplx_error *err)
{
    mtplx_status st = configure(e, o, err);
    if (st == MTPLX_OK)
        st = make_bank(e, o, err);
    if (st != MTPLX_OK)
        return st;
    if (e->cold && !start_thread(e, &e->loader, mx_load_thread))
        e->cold = NULL;
    else if (start_thread(e, &e->thread, mx_engine_thread))
        return MTPLX_OK;
    join_threads(e, false);
    return mx_error(err, MTPLX_ERR_MEMORY, "the engine's thread could not be started");
}

struct mx_engine *mx_engine_new(const struct mx_engine_options *o, mtplx_error *err)
{
    mtplx_error own = {0};
    struct mx_engine *e = calloc(1, sizeof *e);
    err = err ? err : &own;
    if (!e) {
        mx_error_nomem(err, "the engine", sizeof *e);
        return NULL;
    }
    init_sync(e);
    if (start(e, o, err) != MTPLX_OK) {
        destroy(e);
        return NULL;
    }
    return e;
}

void mx_engine_free(struct mx_engine *e)
{
    if (!e)
        return;
    join_threads(e, true);
    mx_model_save_state(e->model);
    destroy(e);
}

/* ---- Submission --------------------------------------------------------------------------- */

static mtplx_status check_generation(const struct mx_job_options *o, mtplx_error *err)
{
    mtplx_sampling s = o->gen.sampling;
    s.top_p = s.top_p == 0 ? 1 : s.top_p;
    s.repetition_penalty = s.repetition_penalty == 0 ? 1 : s.repetition_penalty;
    const char *why = mx_sampling_check(&s);
    if (why)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "%s", why);
    if (o->gen.depth < 0 || o->gen.depth > MTPLX_MAX_DEPTH)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "depth %d is outside 0..%d", o->gen.depth,
                        MTPLX_MAX_DEPTH);
    if ((int)o->gen.policy < MTPLX_DEPTH_FIXED || o->gen.policy > MTPLX_DEPTH_POSITION_EMA)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "%d is not a depth policy", (int)o->gen.policy);
    if (o->gen.logprobs < 0 || o->gen.logprobs > MTPLX_MAX_LOGPROBS + 1)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "logprobs %d is outside 0..%d", o->gen.logprobs,
                        MTPLX_MAX_LOGPROBS + 1);
    if (o->gen.max_tokens < 0)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "max_tokens must not be negative");
    if (o->gen.n_logit_bias > MTPLX_MAX_LOGIT_BIAS)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "logit_bias has %zu entries, at most %d",
                        o->gen.n_logit_bias, MTPLX_MAX_LOGIT_BIAS);
    return MTPLX_OK;
}

static mtplx_status check_prompt(const struct mx_engine *e, const struct mx_job_options *o,
                                 mtplx_error *err)
{
    int vocab = mtplx_model_get_info(e->model)->vocab_size;
    if (o->n_prompt == 0)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "the prompt is empty; give at least one token");
    bool embeds = o->kind == MX_JOB_EMBED_MEAN || o->kind == MX_JOB_EMBED_LAST;
    size_t most = e->context - !embeds;
    if (o->n_prompt > most)
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "the prompt has %zu tokens but the context window is %zu%s; shorten the "
                        "prompt",
                        o->n_prompt, e->context, !embeds ? " and needs room for an answer" : "");
    for (size_t i = 0; i < o->n_prompt; i++)
        if (o->prompt[i] < 0 || o->prompt[i] >= vocab)
            return mx_error(err, MTPLX_ERR_ARGUMENT,
                            "prompt token %d is outside the vocabulary of %d", (int)o->prompt[i],
                            vocab);
    return MTPLX_OK;
}

static mtplx_status check_job(const struct mx_engine *e, const struct mx_job_options *o,
                              mtplx_error *err)
{
    if ((int)o->kind < MX_JOB_GENERATE || o->kind > MX_JOB_WARM)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "%d is not a kind of job", (int)o->kind);
    if (o->choices < 0 || o->choices > MX_MAX_CHOICES)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "choices %d is outside 1..%d", o->choices,
                        MX_MAX_CHOICES);
    if (o->kind != MX_JOB_GENERATE && o->choices > 1)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "only an answer has choices");
    if (o->priority < -1 || o->priority > 1)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "priority %d is outside -1..1", o->priority);
    mtplx_status st = check_prompt(e, o, err);
    if (st == MTPLX_OK && o->kind == MX_JOB_GENERATE)
        st = check_generation(o, err);
    return st;
}

void mx_job_free(struct mx_job *j)
{
    if (!j)
        return;
    mx_embed_free(&j->embed);
    mx_reuse_drop(&j->reuse);
    const void *const copies[] = {j->opt.prompt, j->opt.gen.logit_bias, j->opt.owner,
                                  j->opt.scope,  j->opt.session,        j->opt.borders};
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++)
        free((void *)copies[i]);
    free(j);
}

static void *copy_of(const void *from, size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (p && bytes)
        memcpy(p, from, bytes);
    return p;
}

static void fill_view(struct mx_job *j)
{
    j->view = (struct mx_job_view){.id = j->id,
                                   .kind = j->opt.kind,
                                   .choices = j->choices,
                                   .priority = j->opt.priority,
                                   .prompt_tokens = j->opt.n_prompt};
    size_t n = strnlen(j->opt.owner, sizeof j->view.owner - 1);
    memcpy(j->view.owner, j->opt.owner, n);
}

static char *string_of(const char *from)
{
    return copy_of(from, strlen(from) + 1);
}

/* Copies what the caller keeps; false when memory is out. The prompt has room for one token more:
 * see warm.c. */
static bool copy_options(struct mx_job *j, const struct mx_job_options *o)
{
    const mtplx_gen_options *g = &o->gen;
    int32_t *prompt = malloc((o->n_prompt + 1) * sizeof *prompt);
    const char *owner = o->owner ? o->owner : "";
    j->opt = *o;
    j->opt.gen.cancel = NULL;
    j->opt.prompt = prompt;
    j->opt.gen.logit_bias = copy_of(g->logit_bias, g->n_logit_bias * sizeof *g->logit_bias);
    j->opt.owner = string_of(owner);
    j->opt.scope = string_of(o->scope ? o->scope : "");
    j->opt.session = string_of(o->session ? o->session : owner);
    j->opt.borders = copy_of(o->borders, o->n_borders * sizeof *o->borders);
    if (!prompt || !j->opt.gen.logit_bias || !j->opt.owner || !j->opt.scope || !j->opt.session ||
        !j->opt.borders)
        return false;
    memcpy(prompt, o->prompt, o->n_prompt * sizeof *prompt);
    prompt[o->n_prompt] = 0;
    return true;
}

static struct mx_job *make_job(const struct mx_job_options *o, mtplx_error *err)
{
    struct mx_job *j = calloc(1, sizeof *j);
    if (!j || !copy_options(j, o)) {
        mx_error_nomem(err, "a job", sizeof *j + o->n_prompt * sizeof *o->prompt);
        mx_job_free(j);
        return NULL;
    }
    j->choices = j->open = o->choices ? o->choices : 1;
    for (int i = 0; i < j->choices; i++)
        j->answers[i] = (struct mx_answer){.job = j, .index = i};
    return j;
}

/* Jobs that will not wait for long: the owner thread has not come to admit them. */
static int free_places(const struct mx_engine *e)
{
    int most = e->settings.mode == MX_ENGINE_SERIAL ? 1 : e->settings.max_active;
    return e->n_answers < most ? most - e->n_answers : 0;
}

/* Whether there is a place in the queues. The lock is held. */
static mtplx_status check_room(struct mx_engine *e, const struct mx_job *j, mtplx_error *err)
{
    int soon = free_places(e);
    if (e->queue.waiting - soon >= e->settings.max_queue)
        return mx_error(err, MTPLX_ERR_LIMIT, "the queue is full with %d waiting requests",
                        e->queue.waiting);
    int own = mx_queue_waiting(&e->queue, j->opt.owner);
    int most = e->max_queue_owner ? e->max_queue_owner : e->settings.max_queue;
    if (own - soon >= most)
        return mx_error(err, MTPLX_ERR_LIMIT, "%d requests of this client are waiting already",
                        own);
    return MTPLX_OK;
}

/* Puts the job in its line. The lock is held. */
static mtplx_status put_in_line(struct mx_engine *e, struct mx_job *j, mtplx_error *err)
{
    if (e->draining)
        return mx_error(err, MTPLX_ERR_CANCELLED, "the engine is shutting down");
    if (j->opt.kind == MX_JOB_WARM)
        return mx_warm_push(e, j, err);
    mtplx_status st = check_room(e, j, err);
    e->counters.refused_queue += st == MTPLX_ERR_LIMIT;
    if (st == MTPLX_OK)
        st = mx_queue_push(&e->queue, &j->item, j->opt.owner, j->opt.priority, err);
    if (st == MTPLX_OK) {
        e->counters.accepted++;
        mx_warm_supersede(e, j);
    }
    return st;
}

/* Adds the job to the engine; its id, or 0. */
static uint64_t enqueue(struct mx_engine *e, struct mx_job *j, mtplx_error *err)
{
    uint64_t id = 0;
    pthread_mutex_lock(&e->lock);
    if (put_in_line(e, j, err) == MTPLX_OK) {
        id = j->id = e->next_id++;
        fill_view(j);
        *e->jobs_end = j;
        e->jobs_end = &j->next;
        e->n_jobs++;
        e->poked = true;
        pthread_cond_signal(&e->wake);
    }
    pthread_mutex_unlock(&e->lock);
    return id;
}

uint64_t mx_engine_submit(struct mx_engine *e, const struct mx_job_options *o, mtplx_error *err)
{
    if (check_job(e, o, err) != MTPLX_OK)
        return 0;
    struct mx_job *j = make_job(o, err);
    if (!j)
        return 0;
    j->submitted_ns = mx_now_ns();
    if (mx_engine_project(e, j, err) != MTPLX_OK) {
        pthread_mutex_lock(&e->lock);
        e->counters.refused_memory++;
        pthread_mutex_unlock(&e->lock);
        mx_job_free(j);
        return 0;
    }
    uint64_t id = enqueue(e, j, err);
    if (!id)
        mx_job_free(j);
    return id; /* by now the job may be gone */
}

/* ---- Steering ----------------------------------------------------------------------------- */

bool mx_engine_cancel(struct mx_engine *e, uint64_t id)
{
    pthread_mutex_lock(&e->lock);
    struct mx_job *j = e->jobs;
    while (j && j->id != id)
        j = j->next;
    if (j) {
        j->cancelled = e->poked = true;
        pthread_cond_signal(&e->wake);
    }
    pthread_mutex_unlock(&e->lock);
    return j != NULL;
}

void mx_engine_poke(struct mx_engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->poked = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

/* `ns` from now on the clock of the condition variables. */
static struct timespec after(uint64_t ns)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t most = (uint64_t)1 << 56; /* two years: nothing overflows */
    ns = (ns < most ? ns : most) + (uint64_t)t.tv_nsec;
    t.tv_sec += (time_t)(ns / 1000000000);
    t.tv_nsec = (long)(ns % 1000000000);
    return t;
}

bool mx_engine_drain(struct mx_engine *e, uint64_t timeout_ns)
{
    struct timespec until = after(timeout_ns);
    int rc = 0;
    pthread_mutex_lock(&e->lock);
    e->draining = e->poked = true; /* warm jobs end at once */
    pthread_cond_signal(&e->wake);
    while (e->n_jobs && rc == 0)
        rc = pthread_cond_timedwait(&e->changed, &e->lock, &until);
    bool all = e->n_jobs == 0;
    e->stopping = true;
    pthread_cond_signal(&e->wake);
    while (e->n_jobs)
        pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
    return all;
}

int mx_engine_retry_after(struct mx_engine *e)
{
    pthread_mutex_lock(&e->lock);
    int s = mx_retry_seconds(e->queue.waiting, e->settings.max_active, e->job_ns);
    pthread_mutex_unlock(&e->lock);
    return s;
}
