/* The loader: a thread that reads states from the cold tier, so that decoding goes on meanwhile.
 *
 * A load has copies of all it needs. The owner thread asks for one and takes over the result; where
 * the job ends before, it leaves the load behind, and the loader frees it as soon as it can: the
 * read that is under way is told to stop. While the disk hangs in a read that was given up, jobs go
 * on without it. */
#include "base/clock.h"
#include "engine/engine_int.h"

#include <stdlib.h>
#include <string.h>

struct mx_load {
    struct mx_load *next;
    int32_t *tokens;
    size_t n;
    char *scope, *session;
    atomic_bool cancel;
    bool done, left; /* shared: hit is filled; nobody waits any more */
    struct mx_bank_hit hit;
    uint64_t asked_ns;
};

static void load_free(struct mx_load *l)
{
    if (!l)
        return;
    mx_snapshot_unref(l->hit.snapshot);
    free(l->tokens);
    free(l->scope);
    free(l->session);
    free(l);
}

static struct mx_load *load_new(const struct mx_job *j)
{
    struct mx_load *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->n = j->opt.n_prompt;
    l->tokens = malloc(l->n * sizeof *l->tokens);
    l->scope = strdup(j->opt.scope);
    l->session = strdup(j->opt.session);
    l->asked_ns = mx_now_ns();
    if (!l->tokens || !l->scope || !l->session) {
        load_free(l);
        return NULL;
    }
    memcpy(l->tokens, j->opt.prompt, l->n * sizeof *l->tokens);
    return l;
}

bool mx_load_start(struct mx_engine *e, struct mx_job *j)
{
    struct mx_load *l = e->cold ? load_new(j) : NULL;
    if (!l)
        return false;
    pthread_mutex_lock(&e->lock);
    bool late = e->loader_late;
    struct mx_load **end = &e->to_load;
    while (*end)
        end = &(*end)->next;
    *end = late ? NULL : l;
    pthread_cond_signal(&e->loads);
    pthread_mutex_unlock(&e->lock);
    if (late)
        load_free(l);
    else
        j->reuse.load = l;
    return !late;
}

bool mx_load_take(struct mx_engine *e, struct mx_job *j, struct mx_bank_hit *hit)
{
    struct mx_load *l = j->reuse.load;
    pthread_mutex_lock(&e->lock);
    bool done = l->done;
    pthread_mutex_unlock(&e->lock);
    if (!done)
        return false;
    *hit = l->hit;
    l->hit.snapshot = NULL;
    j->reuse.ns += mx_now_ns() - l->asked_ns;
    j->reuse.load = NULL;
    load_free(l);
    return true;
}

void mx_load_give_up(struct mx_engine *e, struct mx_job *j)
{
    pthread_mutex_lock(&e->lock);
    e->loader_late = e->loader_busy;
    pthread_mutex_unlock(&e->lock);
    mx_load_abandon(e, j);
}

void mx_load_abandon(struct mx_engine *e, struct mx_job *j)
{
    struct mx_load *l = j->reuse.load;
    j->reuse.load = NULL;
    if (!l)
        return;
    pthread_mutex_lock(&e->lock);
    bool done = l->done;
    l->left = true;
    atomic_store(&l->cancel, true);
    pthread_mutex_unlock(&e->lock);
    if (done)
        load_free(l);
}

/* The next load, once there is one; NULL: the engine is being freed. The lock is held. */
static struct mx_load *next_load(struct mx_engine *e)
{
    while (!e->to_load && !e->loader_quit)
        pthread_cond_wait(&e->loads, &e->lock);
    struct mx_load *l = e->to_load;
    if (l)
        e->to_load = l->next;
    return l;
}

void *mx_load_thread(void *engine)
{
    struct mx_engine *e = engine;
    struct mx_load *l;
    pthread_mutex_lock(&e->lock);
    while ((l = next_load(e))) {
        if (!l->left) {
            e->loader_busy = true;
            pthread_mutex_unlock(&e->lock);
            mx_bank_load(e->bank, l->scope, l->session, l->tokens, l->n, &l->cancel, &l->hit);
            pthread_mutex_lock(&e->lock);
            e->loader_busy = e->loader_late = false;
        }
        if (!l->left) {
            l->done = e->poked = true;
            pthread_cond_signal(&e->wake);
            continue;
        }
        pthread_mutex_unlock(&e->lock);
        load_free(l);
        pthread_mutex_lock(&e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}
