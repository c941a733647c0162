/* Running jobs: passes, tokens to sinks, the end of answers. On the owner thread, without the lock.
 *
 * The choices of a job share its prompt: choice 0 reads all but the last token, then the others
 * fork its sequence and every choice reads the last token for itself. By row invariance each gets
 * the tokens that a job of its own with that seed would have got. */
#include "base/clock.h"
#include "engine/engine_int.h"

#include <string.h>

struct list {
    struct mx_answer *at[MX_MAX_ACTIVE];
    size_t n;
};

/* ---- The end of answers ------------------------------------------------------------------- */

static mtplx_finish finish_of(enum mx_job_end end)
{
    switch (end) {
    case MX_END_STOP:
    case MX_END_SINK: return MTPLX_FINISH_STOP;
    case MX_END_LENGTH: return MTPLX_FINISH_LENGTH;
    case MX_END_ERROR: return MTPLX_FINISH_ERROR;
    default: return MTPLX_FINISH_CANCELLED;
    }
}

static void fill_result(const struct mx_job *j, const struct mx_answer *a, enum mx_job_end end,
                        struct mx_job_result *r)
{
    uint64_t now = mx_now_ns(), start = j->submitted_ns;
    size_t n = 0;
    if (a->gen) {
        mtplx_gen_tokens(a->gen, &n);
        r->stats = *mtplx_gen_get_stats(a->gen);
    }
    r->end = end;
    r->error = a->error;
    r->queue_ns = (j->admitted_ns ? j->admitted_ns : now) - start;
    r->ttft_ns = j->first_ns ? j->first_ns - start : 0;
    r->total_ns = now - start;
    r->prompt_tokens = j->opt.n_prompt;
    r->cached_tokens = j->cached;
    r->completion_tokens = j->opt.kind == MX_JOB_WARM ? 0 : n;
    r->miss = j->miss;
    r->restored = j->restored;
    r->known_tokens = j->known;
    r->from_disk = j->reuse.from_disk && j->restored != MX_RESTORE_NONE;
    r->restore_ns = j->reuse.ns;
    r->mean_width = a->cycles ? (double)a->width / (double)a->cycles : 0;
    r->embedding = end == MX_END_STOP ? j->embed.out : NULL;
    r->dims = r->embedding ? j->embed.dims : 0;
}

static void count_answer(struct mx_engine *e, const struct mx_answer *a,
                         const struct mx_job_result *r)
{
    if (a->job->opt.kind == MX_JOB_WARM)
        return;
    e->mine.misses[r->miss] += a->index == 0 && a->job->admitted_ns;
    for (int i = 0; i < MTPLX_MAX_DEPTH; i++) {
        e->mine.drafted[i] += r->stats.drafted[i];
        e->mine.accepted_drafts[i] += r->stats.accepted[i];
    }
}

/* Ends an answer with `keep` of its tokens. */
static void end_answer(struct mx_engine *e, struct mx_answer *a, enum mx_job_end end, size_t keep)
{
    struct mx_job *j = a->job;
    if (a->done)
        return;
    a->done = true;
    j->open--;
    if (end > j->worst)
        j->worst = end;
    if (a->gen && (end == MX_END_SINK || mtplx_gen_finish(a->gen) == MTPLX_FINISH_NONE))
        mx_gen_end(a->gen, finish_of(end), keep);
    struct mx_job_result r = {.end = end};
    fill_result(j, a, end, &r);
    count_answer(e, a, &r);
    j->opt.sink->done(j->opt.arg, a->index, a->gen, &r);
    mtplx_gen_free(a->gen);
    a->gen = NULL;
    mx_reuse_keep(e, a);
}

static void fail(struct mx_engine *e, struct mx_answer *a, const mtplx_error *error)
{
    a->error = *error;
    end_answer(e, a, MX_END_ERROR, SIZE_MAX);
}

void mx_job_end_all(struct mx_engine *e, struct mx_job *j, enum mx_job_end end,
                    const mtplx_error *error)
{
    for (int i = 0; i < j->choices; i++)
        if (!j->answers[i].done) {
            if (error)
                j->answers[i].error = *error;
            end_answer(e, &j->answers[i], end, SIZE_MAX);
        }
}

/* ---- The start ---------------------------------------------------------------------------- */

static mtplx_gen_options options_of(const struct mx_engine *e, const struct mx_answer *a)
{
    mtplx_gen_options o = a->job->opt.gen;
    if (a->job->opt.kind == MX_JOB_WARM) /* the token that the prompt's end brings is dropped */
        return (mtplx_gen_options){.max_tokens = 1};
    o.sampling.seed += (uint64_t)a->index;
    if (e->now.mode == MX_ENGINE_AR_BATCH) {
        o.depth = 0;
        o.context_copy = false;
    }
    return o;
}

/* Gives an answer its generation, on its sequence, for the prompt's tokens behind that. */
static mtplx_status make_gen(struct mx_engine *e, struct mx_answer *a, mtplx_error *err)
{
    mtplx_gen_options o = options_of(e, a);
    size_t have = mtplx_seq_length(a->seq);
    a->gen = mtplx_gen_new(a->seq, a->job->opt.prompt + have, a->job->opt.n_prompt - have, &o, err);
    return a->gen ? MTPLX_OK : err->status;
}

bool mx_job_embeds(const struct mx_job *j)
{
    return j->opt.kind == MX_JOB_EMBED_MEAN || j->opt.kind == MX_JOB_EMBED_LAST;
}

bool mx_job_bypasses(const struct mx_job *j)
{
    return j->opt.no_reuse || mx_job_embeds(j) || j->opt.gen.prompt_logprobs;
}

size_t mx_job_read(const struct mx_job *j)
{
    const struct mx_answer *a = &j->answers[0];
    return a->gen ? j->opt.n_prompt - mx_gen_prompt_left(a->gen) : 0;
}

/* The other choices, once the first has read all but the last token. */
static void fork_choices(struct mx_engine *e, struct mx_job *j)
{
    mtplx_error err = {0};
    j->forked = true;
    for (int i = 1; i < j->choices; i++) {
        struct mx_answer *a = &j->answers[i];
        a->seq = mtplx_seq_fork(j->answers[0].seq, &err);
        if (!a->seq || make_gen(e, a, &err) != MTPLX_OK)
            fail(e, a, &err);
    }
}

static bool must_fork(const struct mx_job *j)
{
    const struct mx_answer *a = &j->answers[0];
    return j->choices > 1 && !j->forked && a->gen && mx_gen_prompt_left(a->gen) == 1;
}

void mx_job_run(struct mx_engine *e, struct mx_job *j)
{
    mtplx_error err = {0};
    struct mx_answer *a = &j->answers[0];
    if (a->seq || (a->seq = mtplx_seq_new(e->model, &err)))
        make_gen(e, a, &err);
    if (err.status != MTPLX_OK)
        mx_job_end_all(e, j, MX_END_ERROR, &err);
    else if (must_fork(j))
        fork_choices(e, j);
}

static void start_embedding(struct mx_engine *e, struct mx_job *j)
{
    mtplx_error err = {0};
    mx_embed_start(e, j, &err);
    if (err.status != MTPLX_OK)
        mx_job_end_all(e, j, MX_END_ERROR, &err);
}

void mx_job_look_up(struct mx_engine *e, struct mx_job *j)
{
    j->admitted_ns = mx_now_ns();
    if (j->opt.kind != MX_JOB_WARM) {
        e->mine.queue_ns += j->admitted_ns - j->submitted_ns;
        e->mine.queue_hist[mx_hist_bucket(j->admitted_ns - j->submitted_ns)]++;
    }
    mx_reuse_find(e, j);
}

void mx_job_start(struct mx_engine *e, struct mx_job *j)
{
    if (mx_job_embeds(j))
        start_embedding(e, j);
    else
        mx_reuse_start(e, j);
}

/* ---- Tokens ------------------------------------------------------------------------------- */

static void note_first(struct mx_engine *e, struct mx_job *j)
{
    if (j->first_ns)
        return;
    j->first_ns = mx_now_ns();
    e->mine.ttft_ns += j->first_ns - j->submitted_ns;
    e->mine.ttft_hist[mx_hist_bucket(j->first_ns - j->submitted_ns)]++;
}

/* Gives new tokens to the sink, and ends the answer where it or the sink has an end. */
static void deliver(struct mx_engine *e, struct mx_answer *a, const mtplx_error *error)
{
    struct mx_job *j = a->job;
    size_t n, from = a->sent, keep = SIZE_MAX;
    const int32_t *ids = mtplx_gen_tokens(a->gen, &n);
    if (n > from) {
        note_first(e, j);
        a->sent = n;
        j->completion += n - from;
        e->mine.completion_tokens += n - from;
        keep = j->opt.sink->tokens(j->opt.arg, a->index, a->gen, ids + from, from, n - from);
    }
    mtplx_finish finish = mtplx_gen_finish(a->gen);
    if (keep != SIZE_MAX)
        end_answer(e, a, MX_END_SINK, keep);
    else if (finish == MTPLX_FINISH_ERROR)
        fail(e, a, error);
    else if (finish != MTPLX_FINISH_NONE)
        end_answer(e, a, finish == MTPLX_FINISH_STOP ? MX_END_STOP : MX_END_LENGTH, SIZE_MAX);
}

/* ---- Prefill ------------------------------------------------------------------------------ */

static bool decoding(const struct mx_answer *a)
{
    return !a->done && a->gen && mx_gen_prompt_left(a->gen) == 0;
}

/* Rows that an answer may take now: the first of several choices leaves the last token. */
static size_t rows_wanted(const struct mx_answer *a)
{
    if (a->done || !a->gen)
        return 0;
    return mx_gen_prompt_left(a->gen) - (a->job->choices > 1 && !a->job->forked);
}

/* The same up to the place that a job that begins like it waits for. */
static size_t rows_planned(const struct mx_answer *a)
{
    size_t rows = rows_wanted(a), read = mx_job_read(a->job), goal = a->job->reuse.awaited;
    return a->index == 0 && goal > read && goal - read < rows ? goal - read : rows;
}

/* Answers that read their prompts, longest waiting first; whether others are being decoded. */
static bool find_readers(const struct mx_engine *e, struct list *l)
{
    bool others = false;
    l->n = 0;
    for (int i = 0; i < e->n_active; i++)
        for (int c = 0; c < e->active[i]->choices; c++) {
            struct mx_answer *a = &e->active[i]->answers[c];
            if (decoding(a))
                others = true;
            else if (rows_wanted(a) && l->n < MX_MAX_ACTIVE)
                l->at[l->n++] = a;
        }
    return others;
}

/* Texts to be embedded, longest waiting first. */
static size_t find_texts(const struct mx_engine *e, struct mx_job **jobs)
{
    size_t n = 0;
    for (int i = 0; i < e->n_active; i++)
        if (mx_embed_left(e->active[i]))
            jobs[n++] = e->active[i];
    return n;
}

/* `turn` counts the passes of this kind. */
static void plan(const struct mx_engine *e, const size_t *left, size_t n, size_t budget,
                 uint64_t *turn, size_t *rows)
{
    ++*turn;
    if (e->now.mode == MX_ENGINE_COOPERATIVE)
        mx_plan_prefill_one(left, n, budget, *turn, rows);
    else
        mx_plan_prefill(left, n, budget, rows);
}

/* Reads rows[i] tokens of each. When a shared pass fails each tries alone. */
static void embed_rows(struct mx_engine *e, struct mx_job *const *texts, const size_t *rows,
                       size_t n)
{
    size_t sum = 0;
    mtplx_error err = {0};
    for (size_t i = 0; i < n; i++)
        sum += rows[i];
    if (sum == 0 || mx_embed_pass(e, texts, rows, n, sum, &err) == MTPLX_OK)
        return;
    for (size_t i = 0; i < n && n > 1; i++)
        embed_rows(e, texts + i, rows + i, 1);
    if (n == 1)
        mx_job_end_all(e, texts[0], MX_END_ERROR, &err);
}

static void embed_pass(struct mx_engine *e, struct mx_job *const *texts, size_t n, size_t budget)
{
    size_t left[MX_MAX_ACTIVE], rows[MX_MAX_ACTIVE];
    for (size_t i = 0; i < n; i++)
        left[i] = mx_embed_left(texts[i]);
    plan(e, left, n, budget, &e->embed_turn, rows);
    embed_rows(e, texts, rows, n);
    for (size_t i = 0; i < n; i++) {
        e->mine.prompt_tokens += rows[i];
        if (mx_embed_left(texts[i]) == 0)
            mx_job_end_all(e, texts[i], MX_END_STOP, NULL);
    }
}

void mx_job_tell(struct mx_job *j)
{
    const struct mx_answer *a = &j->answers[0];
    if (j->opt.sink->progress && a->gen)
        j->opt.sink->progress(j->opt.arg, mx_job_read(j), j->opt.n_prompt);
}

/* What a pass over prompts brought to one of them. */
static void after_prefill(struct mx_engine *e, struct mx_answer *a, const mtplx_error *error)
{
    struct mx_job *j = a->job;
    if (a->index == 0) {
        mx_reuse_collect(e, a);
        mx_job_tell(j);
    }
    deliver(e, a, error);
    if (a->done && a->index == 0 && !j->forked && j->choices > 1)
        mx_job_end_all(e, j, MX_END_ERROR, &a->error);
    else if (must_fork(j))
        fork_choices(e, j);
}

/* One pass over rows[i] tokens of each. */
static void prefill_pass(struct mx_engine *e, const struct list *l, const size_t *rows)
{
    mtplx_gen *gens[MX_MAX_ACTIVE];
    size_t taken[MX_MAX_ACTIVE], n = 0;
    struct mx_answer *who[MX_MAX_ACTIVE];
    mtplx_error err = {0};
    for (size_t i = 0; i < l->n; i++) {
        if (!rows[i])
            continue;
        who[n] = l->at[i];
        gens[n] = l->at[i]->gen;
        taken[n++] = rows[i];
        e->mine.prompt_tokens += rows[i];
        if (l->at[i]->index == 0)
            mx_reuse_make_room(e, l->at[i]->job, rows[i]);
    }
    mx_gen_prefill_many(gens, taken, n, &err);
    for (size_t i = 0; i < n; i++)
        after_prefill(e, who[i], &err);
}

bool mx_run_prefill(struct mx_engine *e)
{
    struct list l;
    struct mx_job *texts[MX_MAX_ACTIVE];
    size_t left[MX_MAX_ACTIVE], rows[MX_MAX_ACTIVE];
    bool others = find_readers(e, &l);
    size_t n_texts = find_texts(e, texts);
    size_t budget = others ? (size_t)e->now.prefill_chunk : e->max_rows;
    if (!l.n && !n_texts)
        return false;
    e->mine.prefill_passes++;
    e->learned = true;
    bool embed = n_texts && (e->embed_next || !l.n);
    e->embed_next = !embed;
    if (embed) {
        embed_pass(e, texts, n_texts, budget);
        return true;
    }
    for (size_t i = 0; i < l.n; i++)
        left[i] = rows_planned(l.at[i]);
    plan(e, left, l.n, budget, &e->turn, rows);
    prefill_pass(e, &l, rows);
    return true;
}

/* ---- Decode ------------------------------------------------------------------------------- */

static void cycle(struct mx_engine *e, struct mx_answer *const *answers, size_t n)
{
    mtplx_gen *gens[MX_MAX_ACTIVE];
    mtplx_error err = {0};
    for (size_t i = 0; i < n; i++) {
        gens[i] = answers[i]->gen;
        answers[i]->width += n;
        answers[i]->cycles++;
    }
    mx_gen_cycle_many(gens, n, &err);
    e->mine.cycles++;
    e->mine.width[n]++;
    for (size_t i = 0; i < n; i++)
        deliver(e, answers[i], &err);
}

/* Whether the reservation covers what one more cycle may add; an answer that cannot grow ends. */
static bool covered(struct mx_engine *e, struct mx_answer *a)
{
    size_t next = mtplx_seq_length(a->seq) + MTPLX_MAX_DEPTH + 1;
    if (next <= a->room || a->room == a->limit || mx_answer_grow(e, a))
        return true;
    end_answer(e, a, MX_END_LENGTH, SIZE_MAX);
    return false;
}

static bool blocked(const struct mx_answer *a)
{
    const struct mx_job_options *o = &a->job->opt;
    return o->sink->blocked && o->sink->blocked(o->arg, a->index);
}

bool mx_run_decode(struct mx_engine *e)
{
    struct list l = {.n = 0};
    bool some = false;
    for (int i = 0; i < e->n_active; i++)
        for (int c = 0; c < e->active[i]->choices && l.n < MX_MAX_ACTIVE; c++) {
            struct mx_answer *a = &e->active[i]->answers[c];
            if (!decoding(a) || blocked(a))
                continue;
            some = true;
            if (covered(e, a))
                l.at[l.n++] = a;
        }
    e->learned |= some;
    if (e->now.mode != MX_ENGINE_COOPERATIVE && l.n)
        cycle(e, l.at, l.n);
    for (size_t i = 0; e->now.mode == MX_ENGINE_COOPERATIVE && i < l.n; i++)
        cycle(e, &l.at[i], 1);
    return some;
}

/* ---- Leaving ------------------------------------------------------------------------------ */

static void unlink_job(struct mx_engine *e, struct mx_job *j)
{
    struct mx_job **p = &e->jobs;
    while (*p != j)
        p = &(*p)->next;
    *p = j->next;
    if (!j->next)
        e->jobs_end = p;
    e->n_jobs--;
}

static void count_job(struct mx_engine *e, const struct mx_job *j, uint64_t now)
{
    struct mx_engine_counters *c = &e->counters;
    uint64_t total = now - j->submitted_ns;
    c->finished += j->worst <= MX_END_SINK;
    c->cancelled += j->worst == MX_END_CANCELLED || j->worst == MX_END_SHUTDOWN;
    c->expired += j->worst == MX_END_DEADLINE;
    c->failed += j->worst == MX_END_ERROR;
    c->total_ns += total;
    c->total_hist[mx_hist_bucket(total)]++;
    if (j->admitted_ns) {
        uint64_t ran = now - j->admitted_ns;
        e->job_ns = e->job_ns ? (7 * e->job_ns + ran) / 8 : ran;
    }
}

static void count_warm(struct mx_engine *e, const struct mx_job *j)
{
    e->counters.warm_jobs++;
    e->counters.warm_finished += j->worst == MX_END_STOP;
}

/* The lock is held. */
static void leave(struct mx_engine *e, struct mx_job *j)
{
    bool warm = j->opt.kind == MX_JOB_WARM;
    unlink_job(e, j);
    mx_engine_publish_counters(e);
    e->n_warm -= warm;
    if (warm)
        count_warm(e, j);
    else
        count_job(e, j, mx_now_ns());
    if (j->active && !warm) {
        mx_queue_leave(&e->queue, &j->item);
        e->n_answers -= j->choices;
    }
}

void mx_job_retire(struct mx_engine *e, struct mx_job *j)
{
    mx_load_abandon(e, j);
    pthread_mutex_lock(&e->lock);
    leave(e, j);
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    mx_job_free(j);
}
