/* Reading ahead: warm jobs, which put a prompt into the session bank while nothing else is to do.
 *
 * A warm job's prompt is what the next turn of a conversation probably begins with. It is read in
 * passes so short that whoever comes meanwhile hardly waits, and given up then: what was read stays
 * in the bank, and the next turn, or the next warm job, goes on from there. Each conversation has
 * at most one warm job in line, the newest.
 *
 * The prompt is read to its end, and the state behind its last token is kept. So looking it up asks
 * for one token more than it has (R1 of restore.c). */
#include "base/clock.h"
#include "engine/engine_int.h"

#include <string.h>

/* Warm jobs in line, in all. */
#define MOST_WAITING 32
/* Rows of a pass, and how long one should take. */
#define LEAST_ROWS 8
#define MOST_ROWS 64
#define PASS_NS ((uint64_t)100 * 1000000)

/* ---- The line ----------------------------------------------------------------------------- */

static bool same_session(const struct mx_job *a, const struct mx_job *b)
{
    return strcmp(a->opt.scope, b->opt.scope) == 0 && strcmp(a->opt.session, b->opt.session) == 0;
}

void mx_warm_supersede(struct mx_engine *e, const struct mx_job *j)
{
    for (struct mx_job *w = e->warm_first; w; w = w->next_warm)
        w->cancelled |= same_session(w, j);
}

mtplx_status mx_warm_push(struct mx_engine *e, struct mx_job *j, mtplx_error *err)
{
    struct mx_job **end = &e->warm_first;
    if (e->n_warm_waiting >= MOST_WAITING)
        return mx_error(err, MTPLX_ERR_LIMIT, "%d prompts wait to be read ahead already",
                        e->n_warm_waiting);
    mx_warm_supersede(e, j);
    while (*end)
        end = &(*end)->next_warm;
    *end = j;
    e->n_warm_waiting++;
    e->n_warm++;
    return MTPLX_OK;
}

void mx_warm_remove(struct mx_engine *e, struct mx_job *j)
{
    struct mx_job **p = &e->warm_first;
    while (*p != j)
        p = &(*p)->next_warm;
    *p = j->next_warm;
    e->n_warm_waiting--;
}

bool mx_warm_over(const struct mx_engine *e, const struct mx_job *j)
{
    return j == e->warm && e->n_jobs > e->n_warm;
}

/* ---- Passes ------------------------------------------------------------------------------- */

/* The size of the next pass, by the time that this one took. */
static void adapt(struct mx_engine *e, size_t rows, uint64_t ns)
{
    if (ns > PASS_NS && e->warm_rows > LEAST_ROWS)
        e->warm_rows /= 2;
    else if (ns < PASS_NS / 4 && rows == e->warm_rows && e->warm_rows < MOST_ROWS)
        e->warm_rows *= 2;
}

/* Rows of the next pass; 0: there is nothing to read, or somebody has come. */
static size_t next_rows(struct mx_engine *e)
{
    struct mx_job *j = e->warm;
    if (!j || !j->open || !j->answers[0].gen)
        return 0;
    pthread_mutex_lock(&e->lock);
    bool over = mx_warm_over(e, j) || j->cancelled || e->draining;
    pthread_mutex_unlock(&e->lock);
    size_t left = mx_gen_prompt_left(j->answers[0].gen);
    size_t rows = e->warm_rows < e->max_rows ? e->warm_rows : e->max_rows;
    return over ? 0 : left < rows ? left : rows;
}

bool mx_run_warm(struct mx_engine *e)
{
    size_t rows = next_rows(e);
    if (!rows)
        return false;
    mtplx_error err = {0};
    struct mx_job *j = e->warm;
    struct mx_answer *a = &j->answers[0];
    uint64_t t0 = mx_now_ns();
    mx_reuse_make_room(e, j, rows);
    mtplx_status st = mx_gen_prefill_many(&a->gen, &rows, 1, &err);
    adapt(e, rows, mx_now_ns() - t0);
    if (st != MTPLX_OK) {
        mx_job_end_all(e, j, MX_END_ERROR, &err);
        return true;
    }
    e->mine.warm_tokens += rows;
    mx_reuse_collect(e, a);
    mx_job_tell(j);
    if (mx_gen_prompt_left(a->gen) == 0)
        mx_job_end_all(e, j, MX_END_STOP, NULL);
    return true;
}
