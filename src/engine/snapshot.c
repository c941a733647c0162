/* Status: what the owner thread publishes once a turn, and consistent copies of it. */
#include "base/clock.h"
#include "engine/engine_int.h"

#include <string.h>

/* Counters are nothing but numbers of one type. */
static void add_counters(struct mx_engine_counters *to, struct mx_engine_counters *from)
{
    enum { N = sizeof *to / sizeof(uint64_t) };
    uint64_t *a = (uint64_t *)to, *b = (uint64_t *)from;
    for (int i = 0; i < N; i++) {
        a[i] += b[i];
        b[i] = 0;
    }
}

static size_t read_tokens(const struct mx_job *j)
{
    const struct mx_answer *a = &j->answers[0];
    if (mx_job_embeds(j))
        return j->embed.read;
    if (a->gen)
        return mx_job_read(j);
    return j->completion ? j->opt.n_prompt : j->view.read_tokens;
}

static uint64_t bytes_of(const struct mx_job *j)
{
    uint64_t sum = j->embed.seq ? mx_seq_bytes(j->embed.seq) : 0;
    for (int i = 0; i < j->choices; i++)
        if (j->answers[i].seq)
            sum += mx_seq_bytes(j->answers[i].seq);
    return sum;
}

static void publish_job(struct mx_job *j, uint64_t now)
{
    struct mx_job_view *v = &j->view;
    v->read_tokens = read_tokens(j);
    v->completion_tokens = j->completion;
    v->cached_tokens = j->cached;
    v->state = j->reuse.phase == MX_PHASE_LOADING ? MX_JOB_RESTORING
               : v->read_tokens < j->opt.n_prompt ? MX_JOB_PREFILL
                                                  : MX_JOB_DECODE;
    v->tokens_per_s = j->first_ns && now > j->first_ns && j->completion
                          ? (double)(j->completion - 1) * 1e9 / (double)(now - j->first_ns)
                          : 0;
}

void mx_engine_publish_counters(struct mx_engine *e)
{
    add_counters(&e->counters, &e->mine);
}

void mx_engine_publish(struct mx_engine *e)
{
    uint64_t now = mx_now_ns();
    mx_engine_publish_counters(e);
    e->used = e->bank ? mx_bank_bytes(e->bank) : 0;
    if (e->warm) {
        publish_job(e->warm, now);
        e->used += bytes_of(e->warm);
    }
    for (int i = 0; i < e->n_active; i++) {
        publish_job(e->active[i], now);
        e->used += bytes_of(e->active[i]);
    }
}

static void view_jobs(const struct mx_engine *e, struct mx_engine_snapshot *s, bool queued,
                      uint64_t now)
{
    int most = (int)(sizeof s->jobs / sizeof *s->jobs);
    for (const struct mx_job *j = e->jobs; j && s->n_jobs < most; j = j->next) {
        if ((j->view.state == MX_JOB_QUEUED) != queued)
            continue;
        s->jobs[s->n_jobs] = j->view;
        s->jobs[s->n_jobs++].age_ns = now - j->submitted_ns;
    }
}

void mx_engine_get_snapshot(struct mx_engine *e, struct mx_engine_snapshot *s)
{
    memset(s, 0, sizeof *s);
    pthread_mutex_lock(&e->lock);
    uint64_t now = mx_now_ns();
    s->settings = e->settings;
    s->counters = e->counters;
    s->memory_limit = e->memory_limit;
    s->memory_used = e->used;
    s->memory_reserved = e->reserved;
    s->queued = e->queue.waiting;
    s->active = e->n_jobs - e->queue.waiting - e->n_warm_waiting;
    view_jobs(e, s, false, now);
    view_jobs(e, s, true, now);
    pthread_mutex_unlock(&e->lock);
}
