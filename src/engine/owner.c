/* The owner thread: turn after turn while there is work, asleep otherwise.
 *
 * One turn: end what was cancelled or is late, admit, at most one prefill pass, one decode cycle.
 * So neither prompts nor answers starve each other (N2), and everything from outside takes effect
 * within one turn. */
#include "base/clock.h"
#include "engine/engine_int.h"

#include <time.h>

/* Learned state is saved when that much time has passed, and nothing runs. */
#define SAVE_NS ((uint64_t)300 * 1000000000)
/* All readers are behind: how long until they are asked again without being poked. */
#define BLOCKED_NS ((uint64_t)20 * 1000000)

static void sleep_for(struct mx_engine *e, uint64_t ns)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    ns += (uint64_t)t.tv_nsec;
    t.tv_sec += (time_t)(ns / 1000000000);
    t.tv_nsec = (long)(ns % 1000000000);
    pthread_cond_timedwait(&e->wake, &e->lock, &t);
}

static void save_if_due(struct mx_engine *e)
{
    if (!e->learned || mx_now_ns() - e->saved_ns < SAVE_NS)
        return;
    pthread_mutex_unlock(&e->lock);
    mx_model_save_state(e->model);
    e->saved_ns = mx_now_ns();
    e->learned = false;
    pthread_mutex_lock(&e->lock);
}

/* Until there is something to do. `idle`: the last turn found nothing. The lock is held. */
static void wait_for_work(struct mx_engine *e, bool idle)
{
    while (!e->n_jobs && !e->quit) {
        save_if_due(e);
        if (e->n_jobs || e->quit)
            break;
        if (e->learned)
            sleep_for(e, SAVE_NS);
        else
            pthread_cond_wait(&e->wake, &e->lock);
    }
    if (idle && e->n_jobs && !e->poked)
        sleep_for(e, BLOCKED_NS);
    e->poked = false;
}

/* ---- Endings from outside ----------------------------------------------------------------- */

/* How a job has to end now; false: it may go on. The lock is held. */
static bool verdict(const struct mx_engine *e, const struct mx_job *j, uint64_t now,
                    enum mx_job_end *end)
{
    if (e->stopping)
        *end = MX_END_SHUTDOWN;
    else if (j->cancelled)
        *end = MX_END_CANCELLED;
    else if (j->opt.deadline_ns && now >= j->opt.deadline_ns)
        *end = MX_END_DEADLINE;
    else
        return false;
    return true;
}

/* Marks jobs that have to end; waiting ones leave the queue. The lock is held. */
static struct mx_job *find_ended(struct mx_engine *e)
{
    uint64_t now = mx_now_ns();
    struct mx_job *gone = NULL;
    for (struct mx_job *j = e->jobs; j; j = j->next) {
        if (!verdict(e, j, now, &j->verdict))
            continue;
        if (!j->active)
            mx_queue_remove(&e->queue, &j->item);
        j->next_gone = gone;
        gone = j;
    }
    return gone;
}

static void end_them(struct mx_engine *e, struct mx_job *gone)
{
    while (gone) {
        struct mx_job *j = gone;
        gone = j->next_gone;
        mx_job_end_all(e, j, j->verdict, NULL);
        if (!j->active)
            mx_job_retire(e, j);
    }
}

static void retire_done(struct mx_engine *e)
{
    int n = 0;
    for (int i = 0; i < e->n_active; i++) {
        if (e->active[i]->open)
            e->active[n++] = e->active[i];
        else
            mx_job_retire(e, e->active[i]);
    }
    e->n_active = n;
}

/* ---- Turns -------------------------------------------------------------------------------- */

/* What is decided under the lock. False: the engine is being freed and nothing is left. */
static bool look(struct mx_engine *e, bool idle, struct mx_job **gone)
{
    pthread_mutex_lock(&e->lock);
    if (e->busy_since_ns)
        e->mine.busy_ns += mx_now_ns() - e->busy_since_ns;
    mx_engine_publish(e);
    wait_for_work(e, idle);
    e->busy_since_ns = mx_now_ns();
    e->now = e->settings;
    *gone = find_ended(e);
    bool more = e->n_jobs || !e->quit;
    pthread_mutex_unlock(&e->lock);
    return more;
}

/* Admits and starts. */
static bool admit(struct mx_engine *e)
{
    struct mx_trash trash = {.n = 0};
    pthread_mutex_lock(&e->lock);
    int n = mx_engine_admit(e, &trash);
    pthread_mutex_unlock(&e->lock);
    mx_trash_empty(&trash);
    for (int i = e->n_active - n; i < e->n_active; i++)
        mx_job_start(e, e->active[i]);
    return n > 0;
}

void *mx_engine_thread(void *engine)
{
    struct mx_engine *e = engine;
    struct mx_job *gone;
    bool idle = true;
    e->saved_ns = mx_now_ns();
    while (look(e, idle, &gone)) {
        idle = gone == NULL;
        end_them(e, gone);
        retire_done(e);
        if (admit(e))
            idle = false;
        if (mx_run_prefill(e))
            idle = false;
        if (mx_run_decode(e))
            idle = false;
        retire_done(e);
    }
    return NULL;
}
