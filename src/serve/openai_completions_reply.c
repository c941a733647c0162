/* The reply of completions.
 *
 * Invariants
 *   1. Turns of one request end in any order; the reply is sent when the last one has, and answers
 *      stand at their index. A turn that ends starts the next. When one fails, no other is started,
 *      and those that run are cancelled.
 *   2. An echoed prompt is shown with an answer's first event, and its log-probabilities with it:
 *      by then the prompt has been read.
 *   3. text_offset counts code points of the text of its answer, prompt included where echoed. */
#include "serve/openai_completions.h"

#include "base/utf8.h"
#include "runtime/model.h"
#include "serve/openai_reply.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The four lists of a logprobs object, without brackets. */
struct lists {
    struct mx_strbuf tokens, own, top, offsets;
};

struct answer {
    struct mx_strbuf text; /* escaped */
    struct lists lists;
    size_t shown; /* code points so far */
    bool started;
    const char *reason;
};

/* A turn. */
struct slot {
    struct mx_completions *r;
    int first;            /* its first answer */
    struct mx_turn *turn; /* not submitted yet */
    uint64_t job;
};

struct mx_completions {
    struct mx_app *app;
    struct mx_exchange *x;
    struct mx_completions_options o;
    bool stream, usage, stats;
    char id[48];
    bool begun; /* the engine's thread only */

    pthread_mutex_t lock;
    int next, running; /* first turn not started yet; turns that are, and the handler */
    bool failed;
    struct mx_api_error error;
    size_t prompt, cached, completion;
    json_t *all_stats;
    struct mx_strbuf head, chunk;
    struct answer *answers;
    struct slot *slots;
};

enum { WINDOW = 8 };

/* ---- Making and freeing ------------------------------------------------------------------- */

static void init_lists(struct lists *l)
{
    mx_strbuf_init(&l->tokens, 0);
    mx_strbuf_init(&l->own, 0);
    mx_strbuf_init(&l->top, 0);
    mx_strbuf_init(&l->offsets, 0);
}

static void clear_lists(struct lists *l)
{
    mx_strbuf_clear(&l->tokens);
    mx_strbuf_clear(&l->own);
    mx_strbuf_clear(&l->top);
    mx_strbuf_clear(&l->offsets);
}

static void free_lists(struct lists *l)
{
    mx_strbuf_free(&l->tokens);
    mx_strbuf_free(&l->own);
    mx_strbuf_free(&l->top);
    mx_strbuf_free(&l->offsets);
}

static void free_reply(struct mx_completions *r)
{
    for (int i = 0; r->answers && i < r->o.answers; i++) {
        mx_strbuf_free(&r->answers[i].text);
        free_lists(&r->answers[i].lists);
    }
    for (int i = 0; r->slots && i < r->o.turns; i++)
        mx_turn_free(r->slots[i].turn);
    mx_strbuf_free(&r->head);
    mx_strbuf_free(&r->chunk);
    json_decref(r->all_stats);
    json_decref(r->error.details);
    if (r->o.request)
        r->o.free(r->o.request);
    free(r->answers);
    free(r->slots);
    pthread_mutex_destroy(&r->lock);
    mx_exchange_unref(r->x);
    free(r);
}

static void on_event(void *arg, const struct mx_turn_event *ev);

static bool make_turns(struct mx_completions *r, struct mx_api_error *e)
{
    for (int i = 0; i < r->o.turns; i++) {
        struct slot *s = &r->slots[i];
        *s = (struct slot){.r = r, .first = i * (r->o.answers / r->o.turns)};
        s->turn = r->o.make(r->o.request, i, on_event, s, e);
        if (!s->turn)
            return false;
    }
    return true;
}

static struct mx_completions *new_reply(struct mx_app *app, struct mx_exchange *x,
                                        const struct mx_openai_params *p,
                                        const struct mx_completions_options *o,
                                        struct mx_api_error *e)
{
    struct mx_completions *r = calloc(1, sizeof *r);
    if (!r) {
        mx_api_fail(e, 507, NULL, "Out of memory for a reply");
        return NULL;
    }
    r->app = app;
    r->x = mx_exchange_ref(x);
    r->o = *o;
    r->stream = p->stream;
    r->usage = p->usage;
    r->stats = p->stats;
    r->running = 1;
    pthread_mutex_init(&r->lock, NULL);
    r->all_stats = json_array();
    r->answers = calloc((size_t)o->answers, sizeof *r->answers);
    r->slots = calloc((size_t)o->turns, sizeof *r->slots);
    mx_openai_id("cmpl-", mx_exchange_request_id(x), r->id);
    mx_strbuf_init(&r->head, 0);
    mx_strbuf_init(&r->chunk, MX_OPENAI_REPLY_MAX);
    mx_strbuf_putc(&r->head, '{');
    mx_openai_head(&r->head, r->id, "text_completion", (int64_t)time(NULL), p->model);
    for (int i = 0; r->answers && i < o->answers; i++) {
        mx_strbuf_init(&r->answers[i].text, 0);
        init_lists(&r->answers[i].lists);
    }
    if (!r->all_stats || !r->answers || !r->slots || r->head.failed)
        mx_api_fail(e, 507, NULL, "Out of memory for a reply");
    else if (make_turns(r, e))
        return r;
    r->o.request = NULL; /* stays the caller's */
    free_reply(r);
    return NULL;
}

/* ---- Tokens ------------------------------------------------------------------------------- */

static size_t code_points(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)s[i] & 0xc0) != 0x80;
    return count;
}

/* The text of a token in quotes; one that is no text by itself as "bytes:\xe2\x80". */
static void token_name(struct mx_strbuf *b, const mtplx_model *m, int32_t token)
{
    size_t n = 0;
    const char *s = mx_tokenizer_bytes(m->tokenizer, token, &n);
    if (mx_utf8_valid(s, n)) {
        mx_json_string(b, s, n);
        return;
    }
    mx_json_raw(b, "\"bytes:");
    for (size_t i = 0; i < n; i++)
        mx_strbuf_printf(b, "\\\\x%02x", (unsigned char)s[i]);
    mx_strbuf_putc(b, '"');
}

static void list_comma(struct mx_strbuf *b)
{
    if (b->len > 0)
        mx_strbuf_putc(b, ',');
}

/* {"token": logprob, ...}: the token itself and the alternatives. */
static void put_top(struct mx_strbuf *b, const mtplx_model *m, int32_t token, float own,
                    const mtplx_token_logprob *top, int n)
{
    mx_strbuf_putc(b, '{');
    token_name(b, m, token);
    mx_strbuf_putc(b, ':');
    mx_json_float(b, mx_openai_logprob(own));
    for (int i = 0; i < n; i++) {
        if (top[i].token == token)
            continue;
        mx_strbuf_putc(b, ',');
        token_name(b, m, top[i].token);
        mx_strbuf_putc(b, ':');
        mx_json_float(b, mx_openai_logprob(top[i].logprob));
    }
    mx_strbuf_putc(b, '}');
}

/* One token at `offset`; n < 0: there is no probability to tell. Returns its code points. */
static size_t put_token(struct lists *l, const mtplx_model *m, int32_t token, size_t offset,
                        float own, const mtplx_token_logprob *top, int n)
{
    size_t len = 0;
    const char *s = mx_tokenizer_bytes(m->tokenizer, token, &len);
    list_comma(&l->tokens);
    token_name(&l->tokens, m, token);
    list_comma(&l->own);
    list_comma(&l->top);
    if (n < 0) {
        mx_json_raw(&l->own, "null");
        mx_json_raw(&l->top, "null");
    } else {
        mx_json_float(&l->own, mx_openai_logprob(own));
        put_top(&l->top, m, token, own, top, n);
    }
    list_comma(&l->offsets);
    mx_strbuf_printf(&l->offsets, "%zu", offset);
    return code_points(s, len);
}

static void put_answer_tokens(struct mx_completions *r, struct answer *a,
                              const struct mx_turn_event *ev)
{
    size_t count = 0, offset = a->shown;
    const int32_t *ids = ev->gen ? mtplx_gen_tokens(ev->gen, &count) : NULL;
    for (size_t i = ev->token; i < ev->token + ev->n_tokens && i < count; i++) {
        const mtplx_token_logprob *top = NULL;
        float own = 0;
        int n = mtplx_gen_logprobs(ev->gen, i, &own, &top);
        offset += put_token(&a->lists, r->app->model, ids[i], offset, own, top, n);
    }
}

static void put_prompt_tokens(struct mx_completions *r, struct answer *a,
                              const struct mx_turn_event *ev)
{
    size_t offset = 0;
    for (size_t i = 0; i < ev->n_prompt; i++) {
        const mtplx_token_logprob *top = NULL;
        float own = 0;
        int n = ev->gen ? mtplx_gen_prompt_logprobs(ev->gen, i, &own, &top) : -1;
        offset += put_token(&a->lists, r->app->model, ev->prompt[i], offset, own, top, n);
    }
}

/* ---- Answers ------------------------------------------------------------------------------ */

static void put_text(struct answer *a, const char *s, size_t n)
{
    mx_json_escape(&a->text, s, n);
    a->shown += code_points(s, n);
}

static void echo_prompt(struct mx_completions *r, struct answer *a, const struct mx_turn_event *ev)
{
    size_t n = 0;
    if (r->o.logprobs >= 0)
        put_prompt_tokens(r, a, ev);
    char *text = mtplx_decode(r->app->model, ev->prompt, ev->n_prompt, false, &n, NULL);
    if (text)
        put_text(a, text, n);
    mtplx_free(text);
}

static void write_choice(struct mx_completions *r, int i, const char *reason)
{
    struct mx_strbuf *b = &r->chunk;
    const struct answer *a = &r->answers[i];
    const struct lists *l = &a->lists;
    mx_strbuf_printf(b, "{\"index\":%d,\"text\":\"", i);
    if (a->text.len > 0)
        mx_strbuf_append(b, a->text.data, a->text.len);
    mx_json_raw(b, "\",\"logprobs\":");
    if (r->o.logprobs >= 0)
        mx_strbuf_printf(b,
                         "{\"tokens\":[%s],\"token_logprobs\":[%s],\"top_logprobs\":[%s],"
                         "\"text_offset\":[%s]}",
                         l->tokens.len ? l->tokens.data : "", l->own.len ? l->own.data : "",
                         l->top.len ? l->top.data : "", l->offsets.len ? l->offsets.data : "");
    else
        mx_json_raw(b, "null");
    if (reason)
        mx_strbuf_printf(b, ",\"finish_reason\":\"%s\"}", reason);
    else
        mx_json_raw(b, ",\"finish_reason\":null}");
}

static void put_stats(struct mx_strbuf *b, json_t *stats)
{
    if (!stats)
        return;
    mx_json_raw(b, ",\"mtplx_stats\":");
    mx_json_value(b, stats);
    json_decref(stats);
}

/* `f` NULL while the answer goes on. */
static void send_chunk(struct mx_completions *r, int i, const struct mx_turn_finish *f)
{
    struct answer *a = &r->answers[i];
    struct mx_strbuf *b = &r->chunk;
    mx_strbuf_clear(b);
    mx_strbuf_append(b, r->head.data, r->head.len);
    mx_json_raw(b, ",\"choices\":[");
    write_choice(r, i, f ? mx_turn_reason_openai(f) : NULL);
    mx_strbuf_putc(b, ']');
    if (r->usage)
        mx_json_raw(b, ",\"usage\":null");
    if (f && !r->stats)
        put_stats(b, mx_turn_stats(f, false));
    mx_strbuf_putc(b, '}');
    if (!b->failed)
        mx_exchange_event(r->x, NULL, b->data, b->len);
    mx_strbuf_clear(&a->text);
    clear_lists(&a->lists);
}

static void fail_with(struct mx_completions *r, const struct mx_api_error *e);

static bool has_failed(struct mx_completions *r)
{
    pthread_mutex_lock(&r->lock);
    bool failed = r->failed;
    pthread_mutex_unlock(&r->lock);
    return failed;
}

static void take_finish(struct mx_completions *r, const struct mx_turn_finish *f, bool first)
{
    struct mx_api_error e;
    if (first) { /* answer to a prompt, which counts once */
        r->prompt += f->prompt_tokens;
        r->cached += f->cached_tokens;
    }
    r->completion += f->completion_tokens;
    json_array_append_new(r->all_stats, mx_turn_stats(f, r->stats));
    if (mx_openai_failure(f, &e))
        fail_with(r, &e);
}

/* Text and tokens of the event go to the answer, behind the echoed prompt. */
static void keep_event(struct mx_completions *r, struct answer *a, const struct mx_turn_event *ev)
{
    bool echo = r->o.echo && !a->started;
    a->started = true;
    if (echo)
        echo_prompt(r, a, ev);
    if (ev->kind != MX_TURN_TEXT)
        return;
    if (r->o.logprobs >= 0)
        put_answer_tokens(r, a, ev);
    put_text(a, ev->text, ev->n);
}

static void handle(struct mx_completions *r, const struct slot *slot,
                   const struct mx_turn_event *ev)
{
    int i = slot->first + ev->choice;
    struct answer *a = &r->answers[i];
    bool text = ev->kind == MX_TURN_TEXT, finish = ev->kind == MX_TURN_FINISH;
    if (finish) {
        take_finish(r, ev->finish, i % r->o.n == 0);
        a->reason = mx_turn_reason_openai(ev->finish);
    }
    if (has_failed(r))
        return;
    if (r->stream && !r->begun)
        mx_exchange_begin(r->x, 200, "text/event-stream");
    r->begun = r->stream;
    if (!text && !finish)
        return;
    keep_event(r, a, ev);
    if (r->stream)
        send_chunk(r, i, finish ? ev->finish : NULL);
}

/* ---- The end ------------------------------------------------------------------------------ */

static void write_tail(struct mx_completions *r, bool usage, bool stats)
{
    struct mx_strbuf *b = &r->chunk;
    json_t *v = usage ? mx_turn_usage(r->prompt, r->cached, r->completion, 0) : NULL;
    if (usage) {
        mx_json_raw(b, ",\"usage\":");
        mx_json_value(b, v);
    }
    json_decref(v);
    if (!stats || json_array_size(r->all_stats) == 0)
        return;
    json_t *top = json_copy(json_array_get(r->all_stats, 0));
    if (r->o.answers > 1)
        json_object_set(top, "choices", r->all_stats);
    put_stats(b, top);
}

static void end_stream(struct mx_completions *r)
{
    struct mx_strbuf *b = &r->chunk;
    if (r->usage || r->stats) {
        mx_strbuf_clear(b);
        mx_strbuf_append(b, r->head.data, r->head.len);
        mx_json_raw(b, ",\"choices\":[]");
        write_tail(r, r->usage, r->stats);
        mx_strbuf_putc(b, '}');
        if (!b->failed)
            mx_exchange_event(r->x, NULL, b->data, b->len);
    }
    mx_openai_stream_done(r->x);
}

static void send_whole(struct mx_completions *r)
{
    struct mx_strbuf *b = &r->chunk;
    bool failed = false;
    mx_strbuf_clear(b);
    mx_strbuf_append(b, r->head.data, r->head.len);
    mx_json_raw(b, ",\"choices\":[");
    for (int i = 0; i < r->o.answers; i++) {
        const struct answer *a = &r->answers[i];
        const struct lists *l = &a->lists;
        failed = failed || a->text.failed || l->tokens.failed || l->own.failed || l->top.failed ||
                 l->offsets.failed;
        if (i > 0)
            mx_strbuf_putc(b, ',');
        write_choice(r, i, a->reason ? a->reason : "stop");
    }
    mx_strbuf_putc(b, ']');
    write_tail(r, true, true);
    mx_strbuf_putc(b, '}');
    if (!failed && !b->failed) {
        mx_exchange_send(r->x, 200, "application/json", b->data, b->len);
        return;
    }
    mx_api_fail(&r->error, 507, NULL, "Out of memory for the answer");
    mx_exchange_fail(r->x, &r->error);
}

static void close_reply(struct mx_completions *r)
{
    if (has_failed(r)) { /* as a whole, unless the stream has begun */
        if (!mx_exchange_fail(r->x, &r->error))
            mx_openai_stream_error(r->x, &r->error);
    } else if (r->stream) {
        end_stream(r);
    } else {
        send_whole(r);
    }
    free_reply(r);
}

/* ---- Turns -------------------------------------------------------------------------------- */

static void cancel_all(struct mx_completions *r)
{
    for (int i = 0; i < r->o.turns; i++)
        if (r->slots[i].job)
            mx_engine_cancel(r->app->engine, r->slots[i].job);
}

static void fail_with(struct mx_completions *r, const struct mx_api_error *e)
{
    pthread_mutex_lock(&r->lock);
    if (!r->failed)
        r->error = *e;
    r->failed = true;
    cancel_all(r);
    pthread_mutex_unlock(&r->lock);
}

static void on_gone(void *arg, uint64_t unused)
{
    struct mx_api_error e;
    (void)unused;
    mx_api_fail(&e, 499, NULL, "The request was cancelled");
    fail_with(arg, &e);
}

/* A turn has ended, or the handler is done. */
static void leave(struct mx_completions *r)
{
    pthread_mutex_lock(&r->lock);
    bool last = --r->running == 0;
    pthread_mutex_unlock(&r->lock);
    if (last)
        close_reply(r);
}

/* Starts the next turn, if there is one and the reply can still come. The caller runs itself. */
static void start_next(struct mx_completions *r)
{
    struct mx_api_error e = {0};
    pthread_mutex_lock(&r->lock);
    bool more = r->next < r->o.turns && !r->failed;
    struct slot *slot = &r->slots[r->next];
    r->next += more;
    r->running += more;
    pthread_mutex_unlock(&r->lock);
    if (!more)
        return;
    struct mx_turn *turn = slot->turn;
    slot->turn = NULL;
    uint64_t job = mx_turn_submit(turn, &e);
    if (!job) {
        fail_with(r, &e);
        pthread_mutex_lock(&r->lock);
        r->running--; /* never the last: the caller is left */
        pthread_mutex_unlock(&r->lock);
        return;
    }
    pthread_mutex_lock(&r->lock);
    slot->job = job;
    if (r->failed)
        mx_engine_cancel(r->app->engine, job);
    pthread_mutex_unlock(&r->lock);
    mx_exchange_on_gone(r->x, on_gone, r, 0); /* the turn has put its own there */
}

static void on_event(void *arg, const struct mx_turn_event *ev)
{
    const struct slot *slot = arg;
    struct mx_completions *r = slot->r;
    if (ev->kind != MX_TURN_CLOSE) {
        handle(r, slot, ev);
        return;
    }
    start_next(r);
    leave(r);
}

bool mx_completions_run(struct mx_app *app, struct mx_exchange *x, const struct mx_openai_params *p,
                        const struct mx_completions_options *o, struct mx_api_error *e)
{
    struct mx_completions *r = new_reply(app, x, p, o, e);
    if (!r)
        return false;
    for (int i = 0; i < WINDOW; i++)
        start_next(r);
    if (r->stream && !has_failed(r)) /* head and keep-alives come while it waits in the queue */
        mx_exchange_begin(x, 200, "text/event-stream");
    leave(r);
    return true;
}
