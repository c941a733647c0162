/* Memory, and who may run.
 *
 * A job is admitted when its reservation fits beside those of the active jobs; the session bank
 * makes room. A reservation counts the whole sequence, also the KV blocks that it shares with the
 * bank: those two are never less than what is held. The reservation covers prompt and max_tokens,
 * so what was admitted has the memory to get to its end. An answer without max_tokens, or with so
 * many that they fill the context window, reserves MX_ROOM_STEP tokens beyond the prompt (less on a
 * small machine) and grows in such steps; where no step fits any more it ends with LENGTH. The head
 * of the line is not overtaken by smaller jobs, so big ones get their turn. */
#include "engine/engine_int.h"
#include "text/grammar.h"

#define MIB 1048576.0
#define LEAST_STEP 64

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Whether the answer may fill the context window. A limit that reaches its end is none: servers
 * and clients set such where they want no limit. */
static bool unlimited(const struct mx_engine *e, const struct mx_job *j)
{
    size_t more = (size_t)j->opt.gen.max_tokens;
    return j->opt.kind == MX_JOB_GENERATE && (!more || more >= e->context - j->opt.n_prompt);
}

/* Tokens that a sequence of the job can get to. */
static size_t most_tokens(const struct mx_engine *e, const struct mx_job *j)
{
    size_t n = j->opt.n_prompt;
    if (j->opt.kind == MX_JOB_WARM)
        return n + 1;
    if (j->opt.kind != MX_JOB_GENERATE)
        return n;
    return unlimited(e, j) ? e->context : n + (size_t)j->opt.gen.max_tokens;
}

/* Bytes that a job holds with sequences of `room` tokens. A generation takes its token arrays at
 * once, for all that it may ever emit. */
static uint64_t job_bytes(const struct mx_engine *e, const struct mx_job *j, size_t room)
{
    uint64_t bytes = mx_seq_bytes_for(e->model, room);
    size_t n = j->opt.n_prompt;
    if (!mx_job_embeds(j))
        bytes += mx_gen_bytes_for(e->model, &j->opt.gen, n, most_tokens(e, j) - n);
    bytes *= (uint64_t)j->choices;
    if (j->opt.gen.grammar) /* one for all */
        bytes += mx_grammar_bytes_most(mtplx_model_get_info(e->model)->vocab_size);
    return bytes;
}

mtplx_status mx_engine_project(const struct mx_engine *e, struct mx_job *j, mtplx_error *err)
{
    size_t most = most_tokens(e, j), n = j->opt.n_prompt, step = MX_ROOM_STEP;
    bool grows = unlimited(e, j);
    uint64_t bytes;
    do {
        j->room = grows ? least(most, n + step) : most;
        bytes = job_bytes(e, j, j->room);
        step /= 2;
    } while (grows && bytes > e->memory_limit && step >= LEAST_STEP);
    for (int i = 0; i < j->choices; i++) {
        j->answers[i].room = j->room;
        j->answers[i].limit = most;
    }
    j->reserved = bytes;
    if (bytes <= e->memory_limit)
        return MTPLX_OK;
    return mx_error(err, MTPLX_ERR_MEMORY,
                    "%zu prompt tokens and room for %zu more in %d answer%s need %.1f MiB, but the "
                    "memory limit is %.1f MiB; shorten the prompt or lower max_tokens",
                    n, j->room - n, j->choices, j->choices == 1 ? "" : "s", (double)bytes / MIB,
                    (double)e->memory_limit / MIB);
}

/* Reserves `bytes` more for a job; false when they do not fit. */
static bool reserve(struct mx_engine *e, uint64_t bytes)
{
    if (bytes > e->memory_limit - e->reserved)
        return false;
    e->reserved += bytes;
    return true;
}

void mx_engine_fit_bank(struct mx_engine *e)
{
    uint64_t room = e->memory_limit - e->reserved; /* nobody else writes it */
    if (e->bank && mx_bank_bytes(e->bank) > room)
        mx_bank_shrink(e->bank, room);
}

static bool has_place(const struct mx_engine *e, const struct mx_job *j)
{
    if (e->now.mode == MX_ENGINE_SERIAL)
        return e->n_active == 0;
    return e->n_answers == 0 || e->n_answers + j->choices <= e->now.max_active;
}

static struct mx_job *job_of(struct mx_queue_item *item)
{
    return (struct mx_job *)((char *)item - offsetof(struct mx_job, item));
}

int mx_engine_admit(struct mx_engine *e)
{
    int admitted = 0;
    struct mx_queue_item *item;
    while ((item = mx_queue_peek(&e->queue))) {
        struct mx_job *j = job_of(item);
        if (e->warm || !has_place(e, j) || !reserve(e, j->reserved))
            break;
        mx_queue_take(&e->queue, item);
        e->active[e->n_active++] = j;
        e->n_answers += j->choices;
        j->active = true;
        j->view.state = MX_JOB_PREFILL;
        admitted++;
    }
    return admitted;
}

bool mx_engine_admit_warm(struct mx_engine *e)
{
    struct mx_job *j = e->warm_first;
    if (e->warm || !j || e->n_active || e->queue.waiting || e->draining)
        return false;
    uint64_t kept = e->bank ? mx_bank_bytes(e->bank) : 0, room = e->memory_limit - e->reserved;
    if (!e->bank || kept > room || j->reserved > room - kept) {
        j->miss = e->bank ? MX_MISS_MEMORY : MX_MISS_DISABLED;
        j->cancelled = e->poked = true; /* it ends with the next turn */
        return false;
    }
    mx_warm_remove(e, j);
    e->reserved += j->reserved;
    e->warm = j;
    j->active = true;
    j->view.state = MX_JOB_PREFILL;
    return true;
}

bool mx_answer_grow(struct mx_engine *e, struct mx_answer *a)
{
    bool grown = false;
    pthread_mutex_lock(&e->lock);
    for (size_t step = MX_ROOM_STEP; !grown && step >= LEAST_STEP; step /= 2) {
        size_t room = least(a->limit, a->room + step);
        uint64_t more = mx_seq_bytes_for(e->model, room) - mx_seq_bytes_for(e->model, a->room);
        grown = reserve(e, more);
        if (grown) {
            a->job->reserved += more;
            a->room = room;
        }
    }
    pthread_mutex_unlock(&e->lock);
    if (grown)
        mx_engine_fit_bank(e);
    return grown;
}
