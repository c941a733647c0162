/* The reply of chat completions.
 *
 * Invariants
 *   1. Nothing of a stream is sent before the turn's first event, so that what fails before that (a
 *      full queue, memory) has its own HTTP status. Later errors are a chunk with `error`.
 *   2. A chunk is put together in one buffer that is kept: no allocation for each token.
 *   3. Every choice of a stream gets its role first and its finish reason last. */
#include "serve/openai_chat.h"

#include "serve/openai_reply.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* An answer; a stream keeps no text. */
struct answer {
    struct mx_strbuf content, reasoning, calls, logprobs;
    bool has_content, open_call, started;
    int n_calls;
    const char *reason;
};

struct mx_chat_reply {
    struct mx_app *app;
    struct mx_exchange *x;
    bool stream, usage, stats, logprobs;
    int n;
    char id[48];
    char *model;
    int64_t created;
    bool begun, failed;
    struct mx_api_error error;
    size_t prompt, cached, completion, reasoning;
    json_t *all_stats; /* one for each choice that has ended */
    struct mx_strbuf head, chunk;
    struct answer answers[MX_MAX_CHOICES];
};

struct mx_chat_reply *mx_chat_reply_new(struct mx_app *app, struct mx_exchange *x,
                                        const struct mx_openai_params *p)
{
    struct mx_chat_reply *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->app = app;
    r->x = mx_exchange_ref(x);
    r->stream = p->stream;
    r->usage = p->usage;
    r->stats = p->stats;
    r->logprobs = p->turn.gen.logprobs > 0;
    r->n = p->turn.choices;
    r->created = (int64_t)time(NULL);
    r->model = strdup(p->model);
    r->all_stats = json_array();
    mx_openai_id("chatcmpl-", mx_exchange_request_id(x), r->id);
    mx_strbuf_init(&r->head, 0);
    mx_strbuf_init(&r->chunk, MX_OPENAI_REPLY_MAX);
    mx_strbuf_putc(&r->head, '{');
    mx_openai_head(&r->head, r->id, r->stream ? "chat.completion.chunk" : "chat.completion",
                   r->created, p->model);
    if (r->model && r->all_stats && !r->head.failed)
        return r;
    mx_chat_reply_free(r);
    return NULL;
}

void mx_chat_reply_free(struct mx_chat_reply *r)
{
    if (!r)
        return;
    for (int i = 0; i < MX_MAX_CHOICES; i++) {
        struct answer *a = &r->answers[i];
        mx_strbuf_free(&a->content);
        mx_strbuf_free(&a->reasoning);
        mx_strbuf_free(&a->calls);
        mx_strbuf_free(&a->logprobs);
    }
    mx_strbuf_free(&r->head);
    mx_strbuf_free(&r->chunk);
    json_decref(r->all_stats);
    json_decref(r->error.details);
    free(r->model);
    mx_exchange_unref(r->x);
    free(r);
}

/* ---- Chunks ------------------------------------------------------------------------------- */

static void begin(struct mx_chat_reply *r)
{
    if (!r->begun)
        mx_exchange_begin(r->x, 200, "text/event-stream");
    r->begun = true;
}

/* A chunk up to the inside of its delta. */
static struct mx_strbuf *open_chunk(struct mx_chat_reply *r, int choice)
{
    struct mx_strbuf *b = &r->chunk;
    mx_strbuf_clear(b);
    mx_strbuf_append(b, r->head.data, r->head.len);
    mx_strbuf_printf(b, ",\"choices\":[{\"index\":%d,\"delta\":{", choice);
    return b;
}

static void put_stats(struct mx_strbuf *b, json_t *stats)
{
    if (!stats)
        return;
    mx_json_raw(b, ",\"mtplx_stats\":");
    mx_json_value(b, stats);
    json_decref(stats);
}

/* Closes it behind the delta; `f` NULL while the answer goes on. */
static void send_chunk(struct mx_chat_reply *r, const struct mx_turn_event *ev,
                       const struct mx_turn_finish *f)
{
    const char *reason = f ? mx_turn_reason_openai(f) : NULL;
    struct mx_strbuf *b = &r->chunk;
    mx_json_raw(b, "},\"logprobs\":");
    if (r->logprobs && ev && ev->n_tokens > 0) {
        mx_json_raw(b, "{\"content\":[");
        mx_openai_chat_logprobs(b, r->app->model, ev->gen, ev->token, ev->n_tokens, false);
        mx_json_raw(b, "],\"refusal\":null}");
    } else {
        mx_json_raw(b, "null");
    }
    mx_json_raw(b, ",\"finish_reason\":");
    if (reason)
        mx_json_string(b, reason, strlen(reason));
    else
        mx_json_raw(b, "null");
    mx_json_raw(b, "}]");
    if (r->usage)
        mx_json_raw(b, ",\"usage\":null");
    if (f && !r->stats)
        put_stats(b, mx_turn_stats(f, false));
    mx_json_raw(b, "}");
    if (!b->failed)
        mx_exchange_event(r->x, NULL, b->data, b->len);
}

static void start_choice(struct mx_chat_reply *r, int choice)
{
    if (r->answers[choice].started)
        return;
    r->answers[choice].started = true;
    mx_json_raw(open_chunk(r, choice), "\"role\":\"assistant\",\"content\":\"\"");
    send_chunk(r, NULL, NULL);
}

static void text_chunk(struct mx_chat_reply *r, const struct mx_turn_event *ev)
{
    struct mx_strbuf *b = open_chunk(r, ev->choice);
    if (ev->kind == MX_TURN_REASONING)
        mx_json_raw(b, "\"reasoning_content\":");
    else
        mx_json_raw(b, "\"content\":");
    mx_json_string(b, ev->text, ev->n);
    send_chunk(r, ev, NULL);
}

static void call_chunk(struct mx_chat_reply *r, const struct mx_turn_event *ev)
{
    struct mx_strbuf *b = open_chunk(r, ev->choice);
    mx_strbuf_printf(b, "\"tool_calls\":[{\"index\":%d,", ev->call);
    if (ev->kind == MX_TURN_TOOL_BEGIN) {
        mx_strbuf_printf(
            b, "\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", ev->call_id);
        mx_json_string(b, ev->name, strlen(ev->name));
        mx_json_raw(b, ",\"arguments\":\"\"}}]");
    } else {
        mx_json_raw(b, "\"function\":{\"arguments\":");
        mx_json_string(b, ev->text, ev->n);
        mx_json_raw(b, "}}]");
    }
    send_chunk(r, NULL, NULL);
}

static void finish_chunk(struct mx_chat_reply *r, const struct mx_turn_event *ev)
{
    if (r->failed)
        return;
    open_chunk(r, ev->choice);
    send_chunk(r, NULL, ev->finish);
}

static void stream_event(struct mx_chat_reply *r, const struct mx_turn_event *ev)
{
    if (!r->failed)
        begin(r);
    if (ev->kind == MX_TURN_PROGRESS || !r->begun)
        return;
    start_choice(r, ev->choice);
    switch (ev->kind) {
    case MX_TURN_TEXT:
    case MX_TURN_REASONING: text_chunk(r, ev); break;
    case MX_TURN_TOOL_BEGIN:
    case MX_TURN_TOOL_ARGS: call_chunk(r, ev); break;
    case MX_TURN_FINISH: finish_chunk(r, ev); break;
    case MX_TURN_TOOL_END:
    case MX_TURN_PROGRESS:
    case MX_TURN_CLOSE: break;
    }
}

/* ---- Whole answers ------------------------------------------------------------------------ */

static void begin_call(struct answer *a, const struct mx_turn_event *ev)
{
    struct mx_strbuf *b = &a->calls;
    if (a->open_call)
        mx_json_raw(b, "\"}}");
    a->open_call = true;
    if (a->n_calls++ > 0)
        mx_strbuf_putc(b, ',');
    mx_strbuf_printf(b,
                     "{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", ev->call_id);
    mx_json_string(b, ev->name, strlen(ev->name));
    mx_json_raw(b, ",\"arguments\":\"");
}

static void end_call(struct answer *a)
{
    if (a->open_call)
        mx_json_raw(&a->calls, "\"}}");
    a->open_call = false;
}

static void keep_text(struct mx_chat_reply *r, struct answer *a, const struct mx_turn_event *ev)
{
    a->has_content = true;
    mx_json_escape(&a->content, ev->text, ev->n);
    if (!r->logprobs || ev->n_tokens == 0)
        return;
    mx_openai_chat_logprobs(&a->logprobs, r->app->model, ev->gen, ev->token, ev->n_tokens,
                            a->logprobs.len > 0);
}

static void keep_event(struct mx_chat_reply *r, const struct mx_turn_event *ev)
{
    struct answer *a = &r->answers[ev->choice];
    switch (ev->kind) {
    case MX_TURN_TEXT: keep_text(r, a, ev); break;
    case MX_TURN_REASONING: mx_json_escape(&a->reasoning, ev->text, ev->n); break;
    case MX_TURN_TOOL_BEGIN: begin_call(a, ev); break;
    case MX_TURN_TOOL_ARGS: mx_json_escape(&a->calls, ev->text, ev->n); break;
    case MX_TURN_TOOL_END: end_call(a); break;
    case MX_TURN_FINISH:
        end_call(a);
        a->reason = mx_turn_reason_openai(ev->finish);
        break;
    case MX_TURN_PROGRESS:
    case MX_TURN_CLOSE: break;
    }
}

static void write_quoted(struct mx_strbuf *b, const struct mx_strbuf *escaped)
{
    mx_strbuf_putc(b, '"');
    if (escaped->len > 0)
        mx_strbuf_append(b, escaped->data, escaped->len);
    mx_strbuf_putc(b, '"');
}

static void write_message(struct mx_strbuf *b, const struct answer *a)
{
    mx_json_raw(b, "\"message\":{\"role\":\"assistant\",\"content\":");
    if (a->n_calls > 0 && !a->has_content)
        mx_json_raw(b, "null");
    else
        write_quoted(b, &a->content);
    mx_json_raw(b, ",\"refusal\":null");
    if (a->reasoning.len > 0) {
        mx_json_raw(b, ",\"reasoning_content\":");
        write_quoted(b, &a->reasoning);
    }
    if (a->n_calls > 0) {
        mx_json_raw(b, ",\"tool_calls\":[");
        mx_strbuf_append(b, a->calls.data, a->calls.len);
        mx_strbuf_putc(b, ']');
    }
    mx_strbuf_putc(b, '}');
}

static void write_choice(struct mx_chat_reply *r, int i)
{
    struct mx_strbuf *b = &r->chunk;
    const struct answer *a = &r->answers[i];
    mx_strbuf_printf(b, "%s{\"index\":%d,", i ? "," : "", i);
    write_message(b, a);
    mx_json_raw(b, ",\"logprobs\":");
    if (r->logprobs) {
        mx_json_raw(b, "{\"content\":[");
        if (a->logprobs.len > 0)
            mx_strbuf_append(b, a->logprobs.data, a->logprobs.len);
        mx_json_raw(b, "],\"refusal\":null}");
    } else {
        mx_json_raw(b, "null");
    }
    mx_strbuf_printf(b, ",\"finish_reason\":\"%s\"}", a->reason ? a->reason : "stop");
}

static bool answers_failed(const struct mx_chat_reply *r)
{
    bool failed = r->chunk.failed;
    for (int i = 0; i < r->n; i++) {
        const struct answer *a = &r->answers[i];
        failed = failed || a->content.failed || a->reasoning.failed || a->calls.failed ||
                 a->logprobs.failed;
    }
    return failed;
}

/* ---- The end ------------------------------------------------------------------------------ */

static void take_finish(struct mx_chat_reply *r, const struct mx_turn_finish *f)
{
    struct mx_api_error e;
    r->prompt = f->prompt_tokens;
    r->cached = f->cached_tokens;
    r->completion += f->completion_tokens;
    r->reasoning += f->reasoning_tokens;
    json_array_append_new(r->all_stats, mx_turn_stats(f, r->stats));
    if (!r->failed && mx_openai_failure(f, &e)) {
        r->failed = true;
        r->error = e;
    }
}

/* `,"usage":..` and `,"mtplx_stats":..`. Of several choices the first that ended is on top, and all
 * are in `choices`. */
static void write_tail(struct mx_chat_reply *r, bool usage, bool stats)
{
    struct mx_strbuf *b = &r->chunk;
    json_t *v = usage ? mx_turn_usage(r->prompt, r->cached, r->completion, r->reasoning) : NULL;
    if (usage) {
        mx_json_raw(b, ",\"usage\":");
        mx_json_value(b, v);
    }
    json_decref(v);
    if (!stats || json_array_size(r->all_stats) == 0)
        return;
    json_t *top = json_copy(json_array_get(r->all_stats, 0));
    if (r->n > 1)
        json_object_set(top, "choices", r->all_stats);
    put_stats(b, top);
}

static void send_whole(struct mx_chat_reply *r)
{
    struct mx_strbuf *b = &r->chunk;
    mx_strbuf_clear(b);
    mx_strbuf_append(b, r->head.data, r->head.len);
    mx_json_raw(b, ",\"choices\":[");
    for (int i = 0; i < r->n; i++)
        write_choice(r, i);
    mx_strbuf_putc(b, ']');
    write_tail(r, true, true);
    mx_strbuf_putc(b, '}');
    if (!answers_failed(r)) {
        mx_exchange_send(r->x, 200, "application/json", b->data, b->len);
        return;
    }
    mx_api_fail(&r->error, 507, NULL, "Out of memory for the answer");
    mx_exchange_fail(r->x, &r->error);
}

static void end_stream(struct mx_chat_reply *r)
{
    if (r->usage || r->stats) {
        struct mx_strbuf *b = &r->chunk;
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

static void close_reply(struct mx_chat_reply *r)
{
    if (r->failed) { /* as a whole, unless the stream has begun */
        if (!mx_exchange_fail(r->x, &r->error))
            mx_openai_stream_error(r->x, &r->error);
    } else if (r->stream) {
        end_stream(r);
    } else {
        send_whole(r);
    }
    mx_chat_reply_free(r);
}

void mx_chat_reply_event(void *arg, const struct mx_turn_event *ev)
{
    struct mx_chat_reply *r = arg;
    if (ev->kind == MX_TURN_CLOSE) {
        close_reply(r);
        return;
    }
    if (ev->kind == MX_TURN_FINISH)
        take_finish(r, ev->finish);
    if (r->stream)
        stream_event(r, ev);
    else
        keep_event(r, ev);
}
