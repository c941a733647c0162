/* The aligner: one thread that predicts next turns and has the difference read.
 *
 * A *task* is an answer that waits for its prediction or for its reading job; a *turn entry* is
 * what remains of it until the next turn comes: lengths and hashes. One reading job runs at a time.
 */
#include "serve/align.h"

#include "base/clock.h"

#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_TASKS = 32,
    MAX_ENTRIES = 256,
    MIN_GAIN = 4, /* tokens; less costs the next turn nothing */
    MAX_TRIES = 4,
};

static const size_t max_bytes = (size_t)64 << 20;
static const uint64_t first_pause_ns = 200 * UINT64_C(1000000);

struct task {
    struct task *next;
    uint64_t entry, due_ns;
    size_t bytes;
    int tries;
    struct mx_align_offer o; /* the strings are below */
    char scope[64], label[64];
    struct mx_align_prediction p; /* ids NULL: not predicted yet */
};

struct entry {
    uint64_t id; /* 0: free */
    uint64_t label, base_hash, hash;
    size_t base, n; /* n 0: not predicted yet */
};

struct mx_align {
    struct mx_app *app;
    unsigned char key[crypto_shorthash_KEYBYTES];
    pthread_t thread;
    bool started;

    pthread_mutex_t lock; /* what follows */
    pthread_cond_t changed;
    bool stop;
    struct task *tasks, **tail;
    int n_tasks;
    size_t bytes;
    uint64_t next_id;
    struct entry entries[MAX_ENTRIES];
    size_t next_entry;
    struct mx_align_stats stats;

    /* The reading job: 0, none; `running` from before its submission until done() came. */
    uint64_t job, running_entry;
    bool running, cancelled;
    struct mx_job_result result;
};

static uint64_t hash_of(const struct mx_align *a, const void *data, size_t n)
{
    unsigned char h[crypto_shorthash_BYTES];
    uint64_t v;
    crypto_shorthash(h, data, n, a->key);
    memcpy(&v, h, sizeof v);
    return v;
}

uint64_t mx_align_hash(const struct mx_align *a, const int32_t *ids, size_t n)
{
    return hash_of(a, ids, n * sizeof *ids);
}

static uint64_t hash_label(const struct mx_align *a, const char *scope, const char *label)
{
    return hash_of(a, scope, strlen(scope)) ^ hash_of(a, label, strlen(label)) * 3;
}

/* ---- Entries ------------------------------------------------------------------------------ */

static struct entry *entry_of(struct mx_align *a, uint64_t id)
{
    for (size_t i = 0; i < MAX_ENTRIES; i++)
        if (a->entries[i].id == id)
            return &a->entries[i];
    return NULL;
}

/* Whether the entry's conversation goes on with this prompt: behind the place where its answer
 * began, another message follows. */
static bool continues(const struct mx_align *a, const struct entry *e, const int32_t *ids,
                      size_t last_border)
{
    return last_border > e->base && e->base_hash == mx_align_hash(a, ids, e->base);
}

static void drop_entry(struct mx_align *a, struct entry *e)
{
    if (a->running && a->running_entry == e->id) {
        a->cancelled = true;
        if (a->job)
            mx_engine_cancel(a->app->engine, a->job);
    }
    e->id = 0;
}

/* Another answer to the same prompt takes the place of the one before. */
static uint64_t add_entry(struct mx_align *a, const struct mx_align_offer *o)
{
    uint64_t label = hash_label(a, o->scope, o->label);
    for (size_t i = 0; i < MAX_ENTRIES; i++) {
        struct entry *e = &a->entries[i];
        if (e->id && e->label == label && e->base == o->base && e->base_hash == o->base_hash)
            drop_entry(a, e);
    }
    struct entry *e = &a->entries[a->next_entry++ % MAX_ENTRIES];
    *e = (struct entry){
        .id = ++a->next_id, .label = label, .base = o->base, .base_hash = o->base_hash};
    return e->id;
}

void mx_align_arrived(struct mx_align *a, const char *scope, const char *label, const int32_t *ids,
                      size_t n, const size_t *borders, size_t n_borders)
{
    if (!a || n_borders == 0)
        return;
    uint64_t want = hash_label(a, scope, label);
    pthread_mutex_lock(&a->lock);
    for (size_t i = 0; i < MAX_ENTRIES; i++) {
        struct entry *e = &a->entries[i];
        if (e->id == 0 || e->label != want)
            continue;
        bool matched = e->n > 0 && n > e->n && mx_align_hash(a, ids, e->n) == e->hash;
        if (!matched && !continues(a, e, ids, borders[n_borders - 1]))
            continue;
        a->stats.matched += matched;
        a->stats.mismatched += !matched && e->n > 0;
        a->stats.unpredicted += e->n == 0;
        drop_entry(a, e);
    }
    pthread_mutex_unlock(&a->lock);
}

/* ---- Tasks -------------------------------------------------------------------------------- */

static void free_task(struct task *t)
{
    if (!t)
        return;
    mx_align_saved_free(t->o.saved);
    free(t->o.prompt);
    mx_align_prediction_free(&t->p);
    free(t);
}

static void push_task(struct mx_align *a, struct task *t)
{
    t->next = NULL;
    *a->tail = t;
    a->tail = &t->next;
    a->n_tasks++;
    a->bytes += t->bytes;
}

static struct task *take_task(struct mx_align *a, struct task **at)
{
    struct task *t = *at;
    *at = t->next;
    if (a->tail == &t->next)
        a->tail = at;
    a->n_tasks--;
    a->bytes -= t->bytes;
    return t;
}

static void drop_oldest(struct mx_align *a)
{
    while (a->tasks && (a->n_tasks > MAX_TASKS || a->bytes > max_bytes)) {
        free_task(take_task(a, &a->tasks));
        a->stats.dropped++;
    }
}

void mx_align_offer(struct mx_align *a, const struct mx_align_offer *o)
{
    struct task *t = a ? calloc(1, sizeof *t) : NULL;
    if (!t) {
        mx_align_saved_free(o->saved);
        free(o->prompt);
        return;
    }
    t->o = *o;
    snprintf(t->scope, sizeof t->scope, "%s", o->scope);
    snprintf(t->label, sizeof t->label, "%s", o->label);
    t->o.scope = t->scope;
    t->o.label = t->label;
    t->bytes = sizeof *t + mx_align_saved_bytes(o->saved) +
               (o->n_prompt + o->n_answer) * sizeof *o->prompt;
    pthread_mutex_lock(&a->lock);
    bool stopped = a->stop;
    if (!stopped) {
        t->entry = add_entry(a, &t->o);
        push_task(a, t);
        drop_oldest(a);
        pthread_cond_broadcast(&a->changed);
    }
    pthread_mutex_unlock(&a->lock);
    if (stopped)
        free_task(t);
}

/* ---- Predicting --------------------------------------------------------------------------- */

static size_t common_prefix(const int32_t *a, const int32_t *b, size_t n)
{
    size_t i = 0;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

/* Tokens of the prediction that the next turn would have to read as things are. */
static size_t gain_of(const struct task *t)
{
    size_t held = t->o.n_prompt + t->o.n_answer, from = 0;
    size_t same = common_prefix(t->p.ids, t->o.prompt, held < t->p.n ? held : t->p.n);
    if (same == held)
        return t->p.n - held; /* it goes on from the end of the answer */
    for (size_t i = 0; i < t->p.n_borders && t->p.borders[i] <= same; i++)
        from = t->p.borders[i];
    return t->p.n - from;
}

/* Runs without the lock: it renders and tokenises. True: there is something to read. */
static bool predict(struct mx_align *a, struct task *t)
{
    bool ok = mx_align_predict(a->app, t->o.saved, &t->p) && t->p.n > t->o.base;
    uint64_t hash = ok ? mx_align_hash(a, t->p.ids, t->p.n) : 0;
    bool gain = ok && gain_of(t) >= MIN_GAIN;
    pthread_mutex_lock(&a->lock);
    struct entry *e = entry_of(a, t->entry);
    a->stats.predicted += ok;
    a->stats.unpredicted += !ok;
    a->stats.aligned += ok && !gain;
    if (e && ok) {
        e->hash = hash;
        e->n = t->p.n;
    } else if (e) {
        e->id = 0;
    }
    pthread_mutex_unlock(&a->lock);
    return gain;
}

/* ---- Reading ------------------------------------------------------------------------------ */

static void on_done(void *arg, int choice, const mtplx_gen *gen, const struct mx_job_result *r)
{
    struct mx_align *a = arg;
    (void)choice;
    (void)gen;
    pthread_mutex_lock(&a->lock);
    a->result = *r;
    a->result.embedding = NULL;
    a->running = false;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static const struct mx_job_sink sink = {.done = on_done};

static uint64_t submit(struct mx_align *a, const struct task *t)
{
    mtplx_error err = {0};
    struct mx_job_options o = {
        .kind = MX_JOB_WARM,
        .prompt = t->p.ids,
        .n_prompt = t->p.n,
        .owner = t->label,
        .scope = t->scope,
        .session = t->label,
        .borders = t->p.borders,
        .n_borders = t->p.n_borders,
        .priority = -1,
        .sink = &sink,
        .arg = a,
    };
    return mx_engine_submit(a->app->engine, &o, &err);
}

/* Waits for the job's end; the lock is held but while waiting. */
static void await(struct mx_align *a)
{
    while (a->running) {
        if (a->stop && !a->cancelled) {
            a->cancelled = true;
            mx_engine_cancel(a->app->engine, a->job);
        }
        pthread_cond_wait(&a->changed, &a->lock);
    }
}

/* True: it was interrupted, and is worth another try. Under the lock. */
static bool settle(struct mx_align *a, struct task *t)
{
    const struct mx_job_result *r = &a->result;
    if (r->end != MX_END_CANCELLED && r->end != MX_END_SHUTDOWN && r->end != MX_END_ERROR) {
        a->stats.finished++;
        if (r->prompt_tokens > r->cached_tokens)
            a->stats.tokens += r->prompt_tokens - r->cached_tokens;
        return false;
    }
    a->stats.abandoned += r->end != MX_END_ERROR;
    a->stats.failed += r->end == MX_END_ERROR;
    return r->end == MX_END_CANCELLED && !a->cancelled && !a->stop && ++t->tries < MAX_TRIES;
}

static bool read_ahead(struct mx_align *a, struct task *t)
{
    pthread_mutex_lock(&a->lock);
    bool wanted = !a->stop && entry_of(a, t->entry);
    a->stats.dropped += !wanted;
    a->running = wanted;
    a->running_entry = t->entry;
    a->cancelled = false;
    a->job = 0;
    pthread_mutex_unlock(&a->lock);
    if (!wanted)
        return false;
    uint64_t job = submit(a, t);
    pthread_mutex_lock(&a->lock);
    bool again = false;
    if (job) {
        a->stats.started++;
        a->job = job;
        if (a->running && a->cancelled)
            mx_engine_cancel(a->app->engine, job);
        await(a);
        again = settle(a, t);
    } else {
        a->running = false;
        a->stats.failed++;
    }
    a->job = 0;
    pthread_mutex_unlock(&a->lock);
    return again;
}

/* ---- The thread --------------------------------------------------------------------------- */

static void wait_until(struct mx_align *a, uint64_t due_ns)
{
    struct timespec t;
    uint64_t now = mx_now_ns();
    if (due_ns == UINT64_MAX) {
        pthread_cond_wait(&a->changed, &a->lock);
        return;
    }
    uint64_t ns = due_ns > now ? due_ns - now : 0;
    clock_gettime(CLOCK_REALTIME, &t);
    ns += (uint64_t)t.tv_nsec;
    t.tv_sec += (time_t)(ns / 1000000000u);
    t.tv_nsec = (long)(ns % 1000000000u);
    pthread_cond_timedwait(&a->changed, &a->lock, &t);
}

/* The next task that is due; NULL at the end. */
static struct task *next_task(struct mx_align *a)
{
    struct task *t = NULL;
    pthread_mutex_lock(&a->lock);
    while (!a->stop && !t) {
        uint64_t now = mx_now_ns(), due = UINT64_MAX;
        struct task **at = &a->tasks;
        for (; *at && (*at)->due_ns > now; at = &(*at)->next)
            due = (*at)->due_ns < due ? (*at)->due_ns : due;
        if (*at)
            t = take_task(a, at);
        else
            wait_until(a, due);
    }
    pthread_mutex_unlock(&a->lock);
    return t;
}

static void try_later(struct mx_align *a, struct task *t)
{
    t->due_ns = mx_now_ns() + (first_pause_ns << t->tries);
    pthread_mutex_lock(&a->lock);
    push_task(a, t);
    drop_oldest(a);
    pthread_mutex_unlock(&a->lock);
}

static void *run(void *arg)
{
    struct mx_align *a = arg;
    struct task *t;
    while ((t = next_task(a))) {
        if ((t->p.ids || predict(a, t)) && read_ahead(a, t))
            try_later(a, t);
        else
            free_task(t);
    }
    return NULL;
}

/* ---- Life --------------------------------------------------------------------------------- */

struct mx_align *mx_align_new(struct mx_app *app, mtplx_error *err)
{
    struct mx_align *a = sodium_init() < 0 ? NULL : calloc(1, sizeof *a);
    if (!a) {
        mx_error_nomem(err, "turn alignment", sizeof *a);
        return NULL;
    }
    a->app = app;
    a->tail = &a->tasks;
    crypto_shorthash_keygen(a->key);
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    a->started = pthread_create(&a->thread, NULL, run, a) == 0;
    if (a->started)
        return a;
    mx_align_free(a);
    mx_error(err, MTPLX_ERR_MEMORY, "cannot start the thread of turn alignment");
    return NULL;
}

void mx_align_stop(struct mx_align *a)
{
    if (!a || !a->started)
        return;
    pthread_mutex_lock(&a->lock);
    a->stop = true;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->thread, NULL);
    a->started = false;
}

void mx_align_free(struct mx_align *a)
{
    if (!a)
        return;
    mx_align_stop(a);
    while (a->tasks)
        free_task(take_task(a, &a->tasks));
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

void mx_align_get_stats(struct mx_align *a, struct mx_align_stats *s)
{
    memset(s, 0, sizeof *s);
    if (!a)
        return;
    pthread_mutex_lock(&a->lock);
    *s = a->stats;
    s->waiting = (uint64_t)a->n_tasks + a->running;
    pthread_mutex_unlock(&a->lock);
}
