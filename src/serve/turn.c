/* The life of a turn: submission, the engine's calls, the end.
 *
 * Invariants
 *   1. A turn has two owners: mx_turn_submit(), which still learns the job's id, and the engine,
 *      until the last done(). Whoever is last frees it.
 *   2. For every accepted turn each choice gets one FINISH, and the turn one CLOSE behind them.
 *   3. A client that does not read holds only its own choices; after STALL_NS it counts as gone. */
#include "serve/turn_int.h"

#include "base/clock.h"
#include "serve/metrics.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>

static const uint64_t STALL_NS = 120ull * 1000000000;

static void unref(struct mx_turn *t)
{
    if (atomic_fetch_sub(&t->refs, 1) == 1)
        mx_turn_free(t);
}

/* ---- Calls of the engine ------------------------------------------------------------------ */

static size_t on_tokens(void *arg, int choice, const mtplx_gen *gen, const int32_t *ids,
                        size_t from, size_t n)
{
    struct mx_turn *t = arg;
    struct mx_choice *c = &t->choices[choice];
    c->gen = gen;
    return mx_choice_tokens(c, ids, from, n);
}

static bool on_blocked(void *arg, int choice)
{
    struct mx_turn *t = arg;
    (void)choice;
    if (!t->exchange || mx_exchange_backlog(t->exchange) <= MX_STREAM_HIGH) {
        t->blocked_since = 0;
        return false;
    }
    uint64_t now = mx_now_ns(), job = atomic_load(&t->job);
    if (t->blocked_since == 0)
        t->blocked_since = now;
    if (now - t->blocked_since > STALL_NS && job)
        mx_engine_cancel(t->app->engine, job);
    return true;
}

static void on_progress(void *arg, size_t read, size_t of)
{
    struct mx_turn *t = arg;
    mx_choice_emit(&t->choices[0],
                   &(struct mx_turn_event){.kind = MX_TURN_PROGRESS, .read = read, .of = of});
}

/* ---- The end of a choice ------------------------------------------------------------------ */

static enum mx_turn_reason reason_of(const struct mx_choice *c, const struct mx_job_result *r)
{
    if (c->failed)
        return MX_REASON_ERROR;
    if (c->turn->prompt_only && c->ended)
        return MX_REASON_LENGTH; /* the prompt was read; there is no answer to end otherwise */
    if (c->stops.found >= 0)
        return MX_REASON_STOP_SEQUENCE;
    bool broken = c->open_call || c->broken_call;
    switch (r->end) {
    case MX_END_STOP:
        if (broken)
            return MX_REASON_LENGTH; /* a call was shown in part: the answer is not whole */
        return c->calls > 0 ? MX_REASON_TOOL_CALLS : MX_REASON_STOP;
    case MX_END_SINK: return c->calls > 0 ? MX_REASON_TOOL_CALLS : MX_REASON_STOP;
    case MX_END_LENGTH: return MX_REASON_LENGTH;
    case MX_END_CANCELLED: return MX_REASON_CANCELLED;
    case MX_END_DEADLINE:
    case MX_END_SHUTDOWN:
    case MX_END_ERROR: break;
    }
    return MX_REASON_ERROR;
}

static void fill_error(const struct mx_choice *c, const struct mx_job_result *r,
                       struct mx_api_error *e)
{
    if (c->failed)
        mx_api_fail(e, 507, NULL, "Out of memory while the answer was written");
    else if (r->end == MX_END_DEADLINE)
        mx_api_fail(e, 504, NULL, "The request took longer than this server allows");
    else if (r->end == MX_END_SHUTDOWN)
        mx_api_fail(e, 503, NULL, "The server is shutting down");
    else
        mx_api_fail_from(e, &r->error, NULL);
}

static void note(struct mx_turn *t, const struct mx_turn_finish *f)
{
    const struct mx_job_result *r = f->job;
    const mtplx_gen_stats *s = &r->stats;
    t->completion_tokens += f->completion_tokens;
    if (!t->exchange)
        return;
    double decode = (double)s->decode_ns * 1e-9;
    mx_exchange_note(
        t->exchange,
        json_pack("{s:s,s:I,s:I,s:I,s:I,s:s,s:s,s:b,s:f,s:s,s:f,s:f,s:f,s:f}", "finish",
                  mx_turn_reason_openai(f), "prompt_tokens", (json_int_t)f->prompt_tokens,
                  "cached_tokens", (json_int_t)f->cached_tokens, "known_tokens",
                  (json_int_t)r->known_tokens, "completion_tokens",
                  (json_int_t)t->completion_tokens, "cache_miss", mx_cache_miss_name(r->miss),
                  "cache_restored", mx_restore_kind_name(r->restored), "cache_from_disk",
                  (int)r->from_disk, "cache_restore_ms", (double)r->restore_ns * 1e-6, "session",
                  t->label, "queue_ms", (double)r->queue_ns * 1e-6, "ttft_ms",
                  (double)r->ttft_ns * 1e-6, "decode_tok_s",
                  decode > 0 && s->generated_tokens > 1 ? ((double)s->generated_tokens - 1) / decode
                                                        : 0.0,
                  "tokens_per_forward",
                  s->cycles ? ((double)s->generated_tokens - 1) / (double)s->cycles : 0.0));
}

static void report(struct mx_choice *c, struct mx_turn_finish *f)
{
    struct mx_turn *t = c->turn;
    struct mx_metrics *m = t->app->metrics;
    note(t, f);
    if (m && c->tools)
        mx_metrics_tools(m, mx_toolcall_get_counts(c->tools));
    if (m && t->exchange)
        mx_metrics_finish(m, mx_exchange_request_id(t->exchange), mx_exchange_client(t->exchange),
                          f);
    mx_choice_emit(c, &(struct mx_turn_event){.kind = MX_TURN_FINISH, .finish = f});
}

/* Takes the tokens along for the prediction of the next turn: prompt and answer but for its last
 * token, which was never read. */
static bool make_offer(struct mx_turn *t, const mtplx_gen *gen, enum mx_turn_reason reason,
                       size_t n_answer, struct mx_align_offer *o)
{
    size_t n = 0;
    bool whole = reason == MX_REASON_STOP || reason == MX_REASON_STOP_SEQUENCE ||
                 reason == MX_REASON_TOOL_CALLS;
    const int32_t *ids = gen ? mtplx_gen_tokens(gen, &n) : NULL;
    if (!t->saved || !whole || !ids || n == 0 || n_answer == 0)
        return false;
    n = (n_answer < n ? n_answer : n) - 1;
    int32_t *all = realloc(t->prompt, (t->n_prompt + n) * sizeof *all);
    if (!all)
        return false;
    memcpy(all + t->n_prompt, ids, n * sizeof *all);
    *o = (struct mx_align_offer){.saved = t->saved,
                                 .prompt = all,
                                 .n_prompt = t->n_prompt,
                                 .n_answer = n,
                                 .base = t->borders[t->n_borders - 1],
                                 .base_hash = t->base_hash,
                                 .scope = t->scope,
                                 .label = t->label};
    t->prompt = NULL;
    t->saved = NULL;
    return true;
}

static void on_done(void *arg, int choice, const mtplx_gen *gen, const struct mx_job_result *r)
{
    struct mx_turn *t = arg;
    struct mx_choice *c = &t->choices[choice];
    c->gen = gen;
    mx_choice_finish(c);
    struct mx_turn_finish f = {
        .reason = reason_of(c, r),
        .stop_index = c->stops.found,
        .tool_calls = c->calls,
        .prompt_tokens = t->n_prompt,
        .cached_tokens = r->cached_tokens,
        .completion_tokens = c->ended ? c->keep : r->completion_tokens,
        .reasoning_tokens = c->reasoning_tokens,
        .job = r,
    };
    if (f.reason == MX_REASON_ERROR)
        fill_error(c, r, &f.error);
    report(c, &f);
    c->gen = NULL;
    if (--t->running > 0)
        return;
    struct mx_align_offer offer;
    t->event(t->arg, &(struct mx_turn_event){.kind = MX_TURN_CLOSE});
    if (make_offer(t, gen, f.reason, f.completion_tokens, &offer))
        mx_align_offer(t->app->align, &offer);
    unref(t);
}

static const struct mx_job_sink turn_sink = {
    .tokens = on_tokens, .done = on_done, .blocked = on_blocked, .progress = on_progress};

/* ---- Submission --------------------------------------------------------------------------- */

void mx_turn_defaults(struct mx_app *app, struct mx_turn_request *r)
{
    struct mx_app_settings s = mx_app_get_settings(app);
    memset(r, 0, sizeof *r);
    r->gen.sampling = s.sampling;
    if (!s.sampling_seeded)
        randombytes_buf(&r->gen.sampling.seed, sizeof r->gen.sampling.seed);
    r->gen.depth = s.mtp ? s.depth : 0;
    r->gen.policy = s.policy;
    r->gen.context_copy = s.mtp && s.context_copy;
    r->choices = 1;
    r->parallel_tool_calls = true;
    r->preserve_thinking = -1;
}

static void gone(void *arg, uint64_t job)
{
    mx_engine_cancel(arg, job);
}

static void drained(void *arg, uint64_t unused)
{
    (void)unused;
    mx_engine_poke(arg);
}

static uint64_t deadline_of(const struct mx_app *app, struct mx_exchange *x,
                            const struct mx_turn_request *r)
{
    if (r->deadline_ns || !app->deadline_ns)
        return r->deadline_ns;
    return (x ? mx_exchange_started_ns(x) : mx_now_ns()) + app->deadline_ns;
}

static uint64_t submit(struct mx_turn *t, struct mx_api_error *e)
{
    const struct mx_turn_request *r = &t->request;
    char owner[128];
    mtplx_error err = {0};
    snprintf(owner, sizeof owner, "%s%s%s", t->exchange ? mx_exchange_client(t->exchange) : "",
             r->session ? "/" : "", r->session ? r->session : "");
    struct mx_job_options o = {
        .kind = MX_JOB_GENERATE,
        .prompt = t->prompt,
        .n_prompt = t->n_prompt,
        .gen = r->gen,
        .choices = t->n_choices,
        .owner = owner,
        .scope = t->scope,
        .session = t->label,
        .borders = t->borders,
        .n_borders = t->n_borders,
        .priority = r->priority,
        .deadline_ns = deadline_of(t->app, t->exchange, r),
        .no_reuse = r->no_reuse,
        .sink = &turn_sink,
        .arg = t,
    };
    uint64_t id = mx_engine_submit(t->app->engine, &o, &err);
    if (id)
        return id;
    mx_api_fail_from(e, &err, NULL);
    if (e->status == 503 || e->status == 507)
        e->retry_after = mx_engine_retry_after(t->app->engine);
    return 0;
}

struct mx_turn *mx_turn_make(struct mx_app *app, struct mx_exchange *x,
                             const struct mx_turn_request *r, struct mx_api_error *e)
{
    mtplx_gen_options gen;
    struct mx_turn *t = mx_turn_prepare(app, x, r, &gen, e);
    if (t) {
        t->request = *r;
        t->request.gen = gen;
    }
    return t;
}

uint64_t mx_turn_submit(struct mx_turn *t, struct mx_api_error *e)
{
    const struct mx_app *app = t->app;
    struct mx_exchange *x = t->exchange;
    atomic_store(&t->refs, 2);
    uint64_t id = submit(t, e);
    if (!id) {
        mx_turn_free(t);
        return 0;
    }
    atomic_store(&t->job, id);
    if (x) {
        if (app->metrics)
            mx_metrics_started(app->metrics, mx_exchange_request_id(x), id);
        mx_exchange_on_gone(x, gone, app->engine, id);
        mx_exchange_on_drained(x, drained, app->engine, 0);
    }
    unref(t);
    return id;
}

uint64_t mx_turn_start(struct mx_app *app, struct mx_exchange *x, const struct mx_turn_request *r,
                       struct mx_api_error *e)
{
    struct mx_turn *t = mx_turn_make(app, x, r, e);
    return t ? mx_turn_submit(t, e) : 0;
}
