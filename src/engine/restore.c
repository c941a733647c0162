/* What the session bank gives a job, and what it gets of it.
 *
 * An admitted job is looked up. More of its state on disk than in RAM: the loader fetches it while
 * the others go on. Another job is just reading what both begin with: it is let to, captured where
 * the two part, and this one looks again. Else a sequence is restored from what was found, and the
 * rest of the prompt is read, with captures at the points that the bank plans.
 *
 * Invariants
 *   R1  A restored sequence has exactly the prompt's first tokens, at most all but one (all of a
 *       warm job's), so that the answer is that of a cold run (row invariance; snapshots are bit
 *       for bit).
 *   R2  Nothing of a job that bypasses the bank gets into it, and nothing of it into such a job.
 *   R3  Only jobs of one scope follow each other, as only they share what the bank has (K2).
 *   R4  Who follows gains at least LEAST_SHARED tokens, and waits for fewer rows than it would have
 *       had to read. */
#include "base/clock.h"
#include "engine/engine_int.h"

#include <string.h>

/* Shorter sequences are not worth an entry. */
#define LEAST_TOKENS 16
/* Tokens that another job must be about to read for one to follow it. */
#define LEAST_SHARED 256
/* Of two capture points so close one is enough. */
#define NEAR 64
/* How often a job follows before it goes on alone. */
#define MOST_WAITS 8
/* Points that are planned for a job; the rest is for those that follow it. */
#define PLANNED (MX_MAX_CAPTURES - 8)
/* The disk is not waited for longer. */
#define LOAD_NS ((uint64_t)20 * 1000000000)

static bool is_warm(const struct mx_job *j)
{
    return j->opt.kind == MX_JOB_WARM;
}

void mx_reuse_drop(struct mx_reuse *r)
{
    mx_snapshot_unref(r->hit.snapshot);
    r->hit.snapshot = NULL;
}

static size_t found(const struct mx_reuse *r)
{
    return r->hit.snapshot ? r->hit.snapshot->n : 0;
}

/* ---- Captures ----------------------------------------------------------------------------- */

static void want(struct mx_job *j, size_t at, enum mx_point point)
{
    struct mx_reuse *r = &j->reuse;
    size_t i = r->n;
    if (r->n == MX_MAX_CAPTURES)
        return;
    for (; i > 0 && r->at[i - 1] > at; i--) {
        r->at[i] = r->at[i - 1];
        r->point[i] = r->point[i - 1];
    }
    r->at[i] = at;
    r->point[i] = point;
    r->n++;
    mx_seq_want_capture(j->answers[0].seq, at);
}

/* Whether the bank could hold a snapshot of the prompt beside the reservations. */
static bool has_room(const struct mx_engine *e, const struct mx_job *j)
{
    return e->memory_limit - e->reserved > mx_snapshot_own_bytes_for(e->model, j->opt.n_prompt);
}

static void plan_captures(struct mx_engine *e, struct mx_job *j)
{
    size_t at[PLANNED], from = mtplx_seq_length(j->answers[0].seq);
    enum mx_point points[PLANNED];
    if (!e->bank || mx_job_bypasses(j) || !has_room(e, j))
        return;
    size_t n = mx_bank_plan(e->bank, from, j->opt.n_prompt, j->opt.borders, j->opt.n_borders, at,
                            points, PLANNED);
    for (size_t i = 0; i < n; i++)
        if (points[i] != MX_POINT_PROMPT || !is_warm(j)) /* that one is kept as a whole */
            want(j, at[i], points[i]);
}

static enum mx_point point_at(const struct mx_reuse *r, size_t n)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->at[i] == n)
            return r->point[i];
    return MX_POINT_CHUNK;
}

static void put(struct mx_engine *e, const struct mx_job *j, mtplx_snapshot *s, enum mx_point point)
{
    mx_bank_put(e->bank, s, point, j->opt.scope, j->opt.session);
}

void mx_reuse_make_room(struct mx_engine *e, const struct mx_job *j, size_t rows)
{
    const struct mx_reuse *r = &j->reuse;
    size_t read = mx_job_read(j);
    uint64_t bytes = 0;
    for (size_t i = 0; i < r->n; i++)
        if (r->at[i] > read && r->at[i] - read <= rows)
            bytes += mx_snapshot_own_bytes_for(e->model, r->at[i]);
    if (bytes)
        mx_bank_make_room(e->bank, bytes);
}

void mx_reuse_collect(struct mx_engine *e, struct mx_answer *a)
{
    mtplx_snapshot *made[MX_MAX_CAPTURES];
    struct mx_job *j = a->job;
    if (!j->reuse.n || !a->seq)
        return;
    size_t n = mx_seq_take_captured(a->seq, made, MX_MAX_CAPTURES);
    for (size_t i = 0; i < n; i++)
        put(e, j, made[i], point_at(&j->reuse, made[i]->n));
    if (n)
        mx_engine_fit_bank(e);
}

/* ---- The start ---------------------------------------------------------------------------- */

/* Makes the job's sequence out of what was found; false when there is no memory for it, or it is
 * not what it should be (R1). */
static bool restore(struct mx_job *j)
{
    struct mx_reuse *r = &j->reuse;
    struct mx_answer *a = &j->answers[0];
    const mtplx_snapshot *s = r->hit.snapshot;
    if (s->n >= j->opt.n_prompt ||
        memcmp(s->tokens, j->opt.prompt, s->n * sizeof *s->tokens) != 0) {
        j->miss = MX_MISS_SNAPSHOT_DESYNC;
        return false;
    }
    a->seq = mx_snapshot_restore(s, NULL);
    if (!a->seq)
        j->miss = MX_MISS_MEMORY;
    return a->seq != NULL;
}

static void count_restore(struct mx_engine *e, const struct mx_job *j)
{
    if (is_warm(j))
        return;
    e->mine.cached_tokens += j->cached;
    e->mine.restores += j->cached > 0;
    e->mine.disk_restores += j->cached > 0 && j->reuse.from_disk;
    e->mine.restore_ns += j->reuse.ns;
}

/* Starts the job with what was found. */
static void begin(struct mx_engine *e, struct mx_job *j)
{
    struct mx_reuse *r = &j->reuse;
    struct mx_answer *a = &j->answers[0];
    mtplx_error err = {0};
    uint64_t t0 = mx_now_ns();
    bool whole = found(r) == j->opt.n_prompt; /* a warm job that has nothing to do */
    r->phase = MX_PHASE_STARTED;
    if (whole || (found(r) && restore(j))) {
        j->restored = r->hit.kind;
        j->cached = found(r);
    }
    mx_reuse_drop(r);
    r->ns += mx_now_ns() - t0;
    count_restore(e, j);
    if (whole) {
        mx_job_end_all(e, j, MX_END_STOP, NULL);
        return;
    }
    if (!a->seq)
        a->seq = mtplx_seq_new(e->model, &err);
    if (!a->seq) {
        mx_job_end_all(e, j, MX_END_ERROR, &err);
        return;
    }
    plan_captures(e, j);
    mx_job_run(e, j);
}

/* ---- Following ---------------------------------------------------------------------------- */

static size_t common_prefix(const struct mx_job *a, const struct mx_job *b)
{
    size_t n = a->opt.n_prompt < b->opt.n_prompt ? a->opt.n_prompt : b->opt.n_prompt, i = 0;
    while (i + 1 < n && a->opt.prompt[i] == b->opt.prompt[i])
        i++;
    return i; /* at most all but one token of either */
}

/* Whether a job reads a prompt of which others may know. */
static bool leads(const struct mx_job *l, const struct mx_job *j)
{
    return l != j && l->reuse.phase == MX_PHASE_STARTED && !mx_job_bypasses(l) &&
           !l->answers[0].done && l->answers[0].gen && mx_gen_prompt_left(l->answers[0].gen) &&
           strcmp(l->opt.scope, j->opt.scope) == 0;
}

/* The job that reads the most of what j needs and has not got, of equals the one that has come
 * farthest, and how many tokens both begin with; NULL: none. One that is behind what j has got
 * would be waited for longer than reading takes (R4). */
static struct mx_job *find_leader(const struct mx_engine *e, const struct mx_job *j, size_t *common)
{
    struct mx_job *best = NULL;
    *common = 0;
    for (int i = 0; i < e->n_active; i++) {
        struct mx_job *l = e->active[i];
        size_t n = leads(l, j) ? common_prefix(l, j) : 0, read = mx_job_read(l);
        if (n > read && read >= found(&j->reuse) && n >= found(&j->reuse) + LEAST_SHARED &&
            (n > *common || (n == *common && read > mx_job_read(best)))) {
            best = l;
            *common = n;
        }
    }
    return best;
}

/* A point of the leader to wait for: one planned shortly before the place where the prompts part,
 * or that place. 0: it takes no more points. */
static size_t choose_goal(struct mx_job *leader, size_t common)
{
    struct mx_reuse *r = &leader->reuse;
    size_t read = mx_job_read(leader);
    for (size_t i = r->n; i > 0; i--)
        if (r->at[i - 1] <= common && r->at[i - 1] > read && common - r->at[i - 1] < NEAR)
            return r->at[i - 1];
    if (r->n == MX_MAX_CAPTURES)
        return 0;
    want(leader, common, MX_POINT_BORDER);
    return common;
}

/* Lets j wait for another's prefill, if there is one that is worth it. */
static bool follow(struct mx_engine *e, struct mx_job *j)
{
    struct mx_reuse *r = &j->reuse;
    size_t common, goal = 0;
    struct mx_job *leader = is_warm(j) ? NULL : find_leader(e, j, &common);
    if (!leader)
        return false;
    if (r->waits < MOST_WAITS && has_room(e, j))
        goal = choose_goal(leader, common);
    if (!goal) {
        j->miss = MX_MISS_SESSION_BUSY;
        return false;
    }
    e->mine.shared_waits += r->waits++ == 0;
    r->phase = MX_PHASE_FOLLOWING;
    r->leader = leader->id;
    r->goal = goal;
    return true;
}

/* The job that j follows, while it has not come to the goal; NULL: no need to wait any more. */
static struct mx_job *leader_of(const struct mx_engine *e, const struct mx_job *j)
{
    for (int i = 0; i < e->n_active; i++) {
        struct mx_job *l = e->active[i];
        if (l->id == j->reuse.leader)
            return leads(l, j) && mx_job_read(l) < j->reuse.goal ? l : NULL;
    }
    return NULL;
}

/* ---- Looking up --------------------------------------------------------------------------- */

/* Takes over what was found in RAM or, `from_disk`, by the loader. */
static void take_hit(struct mx_job *j, const struct mx_bank_hit *hit, bool from_disk)
{
    struct mx_reuse *r = &j->reuse;
    size_t n = hit->snapshot ? hit->snapshot->n : 0;
    j->miss = hit->miss;
    if (hit->known > j->known)
        j->known = hit->known < j->opt.n_prompt ? hit->known : j->opt.n_prompt;
    if (n <= found(r)) { /* what it has is as good */
        mx_snapshot_unref(hit->snapshot);
        return;
    }
    mx_reuse_drop(r);
    r->hit = *hit;
    r->from_disk = from_disk;
}

/* Waits for another prompt, or starts. */
static void settle(struct mx_engine *e, struct mx_job *j)
{
    if (!follow(e, j))
        begin(e, j);
}

void mx_reuse_find(struct mx_engine *e, struct mx_job *j)
{
    struct mx_reuse *r = &j->reuse;
    struct mx_bank_hit hit = {0};
    uint64_t t0 = mx_now_ns();
    if (!e->bank || mx_job_bypasses(j)) {
        j->miss = e->bank ? MX_MISS_BYPASS : MX_MISS_DISABLED;
        return;
    }
    /* A warm job wants its whole prompt: that counts as one with another token behind it. */
    mx_bank_find(e->bank, j->opt.scope, j->opt.session, j->opt.prompt, j->opt.n_prompt + is_warm(j),
                 &hit);
    take_hit(j, &hit, false);
    r->cold = hit.cold_tokens;
    r->ns += mx_now_ns() - t0;
}

void mx_reuse_start(struct mx_engine *e, struct mx_job *j)
{
    struct mx_reuse *r = &j->reuse;
    bool more = r->cold > found(r) && !r->loaded;
    if (!e->bank || mx_job_bypasses(j)) {
        begin(e, j);
        return;
    }
    if (more && !is_warm(j) && mx_load_start(e, j)) {
        r->phase = MX_PHASE_LOADING;
        r->load_until = mx_now_ns() + LOAD_NS;
        return;
    }
    if (more)
        j->miss = is_warm(j) ? MX_MISS_BACKGROUND_BYPASS : MX_MISS_COLD_UNREADABLE;
    settle(e, j);
}

/* What the disk brought; false while it is at it. */
static bool poll_load(struct mx_engine *e, struct mx_job *j)
{
    struct mx_reuse *r = &j->reuse;
    struct mx_bank_hit hit = {0};
    if (mx_load_take(e, j, &hit)) {
        take_hit(j, &hit, true);
    } else if (mx_now_ns() >= r->load_until) {
        mx_load_give_up(e, j);
        j->miss = MX_MISS_COLD_UNREADABLE;
    } else {
        return false;
    }
    r->loaded = true;
    mx_engine_fit_bank(e);
    settle(e, j);
    return true;
}

/* Tells the leaders how far they are waited for. */
static void note_awaited(struct mx_engine *e)
{
    for (int i = 0; i < e->n_active; i++)
        e->active[i]->reuse.awaited = 0;
    for (int i = 0; i < e->n_active; i++) {
        const struct mx_reuse *r = &e->active[i]->reuse;
        struct mx_job *l = r->phase == MX_PHASE_FOLLOWING ? leader_of(e, e->active[i]) : NULL;
        if (l && (!l->reuse.awaited || r->goal < l->reuse.awaited))
            l->reuse.awaited = r->goal;
    }
}

bool mx_reuse_poll(struct mx_engine *e)
{
    bool moved = false;
    for (int i = 0; i < e->n_active; i++) {
        struct mx_job *j = e->active[i];
        if (!j->open)
            continue;
        if (j->reuse.phase == MX_PHASE_LOADING) {
            moved |= poll_load(e, j);
        } else if (j->reuse.phase == MX_PHASE_FOLLOWING && !leader_of(e, j)) {
            mx_reuse_find(e, j);
            mx_reuse_start(e, j);
            moved = true;
        }
    }
    note_awaited(e);
    return moved;
}

/* ---- The end ------------------------------------------------------------------------------ */

static bool worth(const struct mx_engine *e, const struct mx_answer *a)
{
    return e->bank && a->seq && a->index == 0 && !mx_job_bypasses(a->job) &&
           a->error.status == MTPLX_OK && mtplx_seq_length(a->seq) >= LEAST_TOKENS &&
           mtplx_seq_pending(a->seq) == 0;
}

/* An answer's end is where the next turn goes on; a prompt that was not read to its end is only on
 * the way. */
static enum mx_point end_point(const struct mx_job *j, size_t n)
{
    return n >= j->opt.n_prompt ? MX_POINT_ANSWER : MX_POINT_CHUNK;
}

static mtplx_snapshot *snapshot_of(struct mx_engine *e, struct mx_answer *a)
{
    mtplx_model_lock(e->model);
    mtplx_snapshot *s = mx_snapshot_take_over(a->seq, NULL);
    mtplx_model_unlock(e->model);
    return s;
}

static void give_back(struct mx_engine *e, struct mx_job *j)
{
    pthread_mutex_lock(&e->lock);
    uint64_t share = j->active ? j->reserved / (uint64_t)(j->open + 1) : 0;
    j->reserved -= share;
    e->reserved -= share;
    pthread_mutex_unlock(&e->lock);
}

void mx_reuse_keep(struct mx_engine *e, struct mx_answer *a)
{
    struct mx_job *j = a->job;
    mtplx_snapshot *s = NULL;
    if (worth(e, a))
        s = snapshot_of(e, a);
    else
        mtplx_seq_free(a->seq);
    a->seq = NULL;
    give_back(e, j);
    if (!s)
        return;
    put(e, j, s, end_point(j, s->n));
    mx_engine_fit_bank(e);
}
