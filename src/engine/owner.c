/* The owner thread: turn after turn while there is work, asleep otherwise.
 *
 * One turn: end what was cancelled or is late, admit, start what has its state now, at most one
 * prefill pass, one decode cycle; where there is nothing of all that, one pass of a warm job. So
 * neither prompts nor answers starve each other (N2), and everything from outside takes effect
 * within one turn. */
#include "base/clock.h"
#include "engine/engine_int.h"

#include <time.h>

/* Learned state is saved when that much time has passed, and nothing runs. */
#define SAVE_NS ((uint64_t)300 * 1000000000)
/* The session bank is told of the time so often, as long as it holds anything. */
#define TICK_NS ((uint64_t)1000000000)
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

/* Both without the lock. */
static void save_if_due(struct mx_engine *e)
{
    if (!e->learned || mx_now_ns() - e->saved_ns < SAVE_NS)
        return;
    mx_model_save_state(e->model);
    e->saved_ns = mx_now_ns();
    e->learned = false;
}

static void tick_if_due(struct mx_engine *e)
{
    if (!e->bank || mx_now_ns() - e->tick_ns < TICK_NS)
        return;
    mx_bank_tick(e->bank);
    mx_engine_fit_bank(e); /* the loader may have brought more than there is room for */
    e->tick_ns = mx_now_ns();
}

/* What an idle engine does. The lock is held, but not meanwhile. */
static void keep_house(struct mx_engine *e)
{
    pthread_mutex_unlock(&e->lock);
    save_if_due(e);
    tick_if_due(e);
    pthread_mutex_lock(&e->lock);
}

/* Until there is something to do. `idle`: the last turn found nothing. The lock is held. */
static void wait_for_work(struct mx_engine *e, bool idle)
{
    while (!e->n_jobs && !e->quit) {
        keep_house(e);
        if (e->n_jobs || e->quit)
            break;
        if (e->bank && mx_bank_bytes(e->bank) > 0)
            sleep_for(e, TICK_NS);
        else if (e->learned)
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
    else if (e->draining && j->opt.kind == MX_JOB_WARM)
        *end = MX_END_SHUTDOWN;
    else if (mx_warm_over(e, j))
        *end = MX_END_CANCELLED;
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
        if (!j->active && j->opt.kind == MX_JOB_WARM)
            mx_warm_remove(e, j);
        else if (!j->active)
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
    if (e->warm && !e->warm->open) {
        mx_job_retire(e, e->warm);
        e->warm = NULL;
    }
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

/* Admits and starts. What is known of the new ones is looked up before the bank makes room for
 * them. */
static bool admit(struct mx_engine *e)
{
    pthread_mutex_lock(&e->lock);
    int n = mx_engine_admit(e);
    bool warm = n == 0 && mx_engine_admit_warm(e);
    pthread_mutex_unlock(&e->lock);
    for (int i = e->n_active - n; i < e->n_active; i++)
        mx_job_look_up(e, e->active[i]);
    if (warm)
        mx_job_look_up(e, e->warm);
    mx_engine_fit_bank(e);
    for (int i = e->n_active - n; i < e->n_active; i++)
        mx_job_start(e, e->active[i]);
    if (warm)
        mx_job_start(e, e->warm);
    return n > 0 || warm;
}

void *mx_engine_thread(void *engine)
{
    struct mx_engine *e = engine;
    struct mx_job *gone;
    bool idle = true;
    e->saved_ns = mx_now_ns();
    while (look(e, idle, &gone)) {
        bool worked = gone != NULL;
        end_them(e, gone);
        retire_done(e);
        worked |= admit(e);
        worked |= mx_reuse_poll(e);
        worked |= mx_run_prefill(e);
        worked |= mx_run_decode(e);
        worked |= mx_run_warm(e);
        retire_done(e);
        tick_if_due(e);
        idle = !worked;
    }
    return NULL;
}
