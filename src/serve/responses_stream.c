/* Responses API: the events of a turn into a response, whole or streamed.
 *
 * One machine of output items serves both: an item is open, or none is. Its text is escaped once,
 * as it comes, and then copied into what closes the item, into the output, and into the stored
 * response. Only a stream sends events, numbered from 0.
 *
 *   1. The stream is: created, in_progress, items (added, part added, deltas, text done, part done,
 *      item done), and completed, incomplete or failed, with the whole response.
 *   2. A response that is to be stored has a pending record from before its turn is queued; the
 *      last event completes it. One whose client went away is taken back.
 *   3. The head of a stream goes out when the turn was accepted, so both the preparation thread and
 *      the engine's may send it, whoever is first.
 *   4. The answer dies with its second reference: the handler's and that of the turn's events. */
#include "serve/blanks.h"
#include "serve/openai_reply.h"
#include "serve/responses_int.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum item { ITEM_NONE = 0, ITEM_REASONING, ITEM_MESSAGE, ITEM_CALL, ITEM_CUSTOM };

struct mx_responses_answer {
    struct mx_app *app;
    struct mx_exchange *x;
    atomic_int refs;
    bool stream, store, encrypted, logprobs, stats;
    char id[MX_RESPONSE_ID];
    int64_t created;
    struct mx_strbuf echo; /* what the request said, as the response repeats it */
    json_t *custom;        /* names of custom tools, or NULL */

    pthread_mutex_t lock; /* begun */
    bool begun;

    /* The rest belongs to the engine's thread, once begun. */
    unsigned sequence; /* of the next event */
    enum item open;
    int index; /* of the open or next item */
    char item_id[MX_RESPONSE_ID];
    char call_id[MX_RESPONSE_ID];
    struct mx_strbuf name;   /* of the open call, as a JSON string */
    struct mx_strbuf body;   /* escaped text of the open item */
    struct mx_strbuf raw;    /* the same unescaped, where that is needed */
    struct mx_strbuf probs;  /* logprob objects of the open item */
    struct mx_strbuf event;  /* the event being written */
    struct mx_strbuf output; /* items that are done */
    struct mx_blanks blanks; /* before a message */
};

static const char *const kinds[] = {"", "rs", "msg", "fc", "ctc"};

/* ---- Echo --------------------------------------------------------------------------------- */

/* Fields that are repeated as they came, and what they are when they did not. */
static void echo_given(struct mx_strbuf *b, const json_t *body)
{
    static const struct {
        const char *name, *otherwise;
    } fields[] = {
        {"instructions", "null"},
        {"max_output_tokens", "null"},
        {"max_tool_calls", "null"},
        {"metadata", "{}"},
        {"parallel_tool_calls", "true"},
        {"previous_response_id", "null"},
        {"prompt_cache_key", "null"},
        {"reasoning", "{\"effort\":null,\"summary\":null}"},
        {"safety_identifier", "null"},
        {"store", "true"},
        {"tool_choice", "\"auto\""},
        {"tools", "[]"},
        {"top_logprobs", "0"},
        {"truncation", "\"disabled\""},
        {"user", "null"},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const json_t *v = json_object_get(body, fields[i].name);
        mx_strbuf_printf(b, ",\"%s\":", fields[i].name);
        if (v && !json_is_null(v))
            mx_json_value(b, v);
        else
            mx_strbuf_puts(b, fields[i].otherwise);
    }
}

static void echo_text(struct mx_strbuf *b, const json_t *body)
{
    const json_t *text = json_object_get(body, "text");
    const json_t *format = json_object_get(text, "format");
    const json_t *verbosity = json_object_get(text, "verbosity");
    mx_json_raw(b, ",\"text\":{\"format\":");
    if (format && !json_is_null(format))
        mx_json_value(b, format);
    else
        mx_json_raw(b, "{\"type\":\"text\"}");
    mx_json_raw(b, ",\"verbosity\":");
    if (verbosity && !json_is_null(verbosity))
        mx_json_value(b, verbosity);
    else
        mx_json_raw(b, "\"medium\"");
    mx_strbuf_putc(b, '}');
}

static void put_echo(struct mx_strbuf *b, const json_t *body, const struct mx_responses_request *r)
{
    mx_json_raw(b, ",\"model\":");
    mx_json_string(b, r->model, strlen(r->model));
    mx_strbuf_printf(b, ",\"temperature\":%.6g,\"top_p\":%.6g", r->turn.gen.sampling.temperature,
                     r->turn.gen.sampling.top_p);
    mx_json_raw(b, ",\"background\":false,\"service_tier\":\"default\"");
    echo_given(b, body);
    echo_text(b, body);
}

/* ---- The response object ------------------------------------------------------------------ */

static void put_error(struct mx_strbuf *b, const struct mx_api_error *e)
{
    if (!e) {
        mx_json_raw(b, "null");
        return;
    }
    mx_strbuf_printf(b, "{\"code\":\"%s\",\"message\":",
                     e->status == 429 || e->status == 503 ? "rate_limit_exceeded" : "server_error");
    mx_json_string(b, e->message, strlen(e->message));
    mx_strbuf_putc(b, '}');
}

static void put_usage(struct mx_strbuf *b, const struct mx_turn_finish *f)
{
    mx_strbuf_printf(b,
                     "{\"input_tokens\":%zu,\"input_tokens_details\":{\"cached_tokens\":%zu},"
                     "\"output_tokens\":%zu,\"output_tokens_details\":{\"reasoning_tokens\":%zu},"
                     "\"total_tokens\":%zu}",
                     f->prompt_tokens, f->cached_tokens, f->completion_tokens, f->reasoning_tokens,
                     f->prompt_tokens + f->completion_tokens);
}

/* `f` NULL: still in progress. */
static void put_response(const struct mx_responses_answer *a, struct mx_strbuf *b,
                         const char *status, const struct mx_turn_finish *f,
                         const struct mx_api_error *e)
{
    bool cut = f && f->reason == MX_REASON_LENGTH;
    mx_strbuf_printf(b, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,", a->id,
                     (long long)a->created);
    mx_strbuf_printf(b, "\"status\":\"%s\",\"completed_at\":", status);
    if (f && !e && !cut)
        mx_strbuf_printf(b, "%lld", (long long)time(NULL));
    else
        mx_json_raw(b, "null");
    mx_json_raw(b, ",\"error\":");
    put_error(b, e);
    mx_strbuf_printf(b, ",\"incomplete_details\":%s",
                     cut ? "{\"reason\":\"max_output_tokens\"}" : "null");
    mx_json_raw(b, ",\"output\":[");
    mx_strbuf_append(b, a->output.len ? a->output.data : "", a->output.len);
    mx_strbuf_putc(b, ']');
    mx_strbuf_append(b, a->echo.data, a->echo.len);
    mx_json_raw(b, ",\"usage\":");
    if (f)
        put_usage(b, f);
    else
        mx_json_raw(b, "null");
    json_t *stats = f && !e ? mx_turn_stats(f, a->stats) : NULL;
    if (stats) {
        mx_json_raw(b, ",\"mtplx_stats\":");
        mx_json_value(b, stats);
        json_decref(stats);
    }
    mx_strbuf_putc(b, '}');
    b->failed |= a->output.failed || a->echo.failed;
}

/* ---- Store -------------------------------------------------------------------------------- */

static bool add_pending(struct mx_responses_answer *a, const struct mx_responses_request *r)
{
    char *input = json_dumps(r->input, JSON_COMPACT),
         *context = json_dumps(r->context, JSON_COMPACT);
    struct mx_strbuf response;
    mx_strbuf_init(&response, MX_OPENAI_REPLY_MAX);
    put_response(a, &response, "in_progress", NULL, NULL);
    const struct mx_response_record record = {.id = a->id,
                                              .client = mx_exchange_client(a->x),
                                              .response = response.data,
                                              .input = input,
                                              .context = context,
                                              .pending = true};
    bool ok =
        input && context && !response.failed && mx_response_store_add(a->app->responses, &record);
    mx_strbuf_free(&response);
    free(input);
    free(context);
    return ok;
}

static void remove_record(struct mx_responses_answer *a)
{
    if (a->store)
        mx_response_store_remove(a->app->responses, mx_exchange_client(a->x), a->id);
}

/* ---- Life --------------------------------------------------------------------------------- */

static void init_buffers(struct mx_responses_answer *a)
{
    struct mx_strbuf *const all[] = {&a->echo,  &a->name,  &a->body,  &a->raw,
                                     &a->probs, &a->event, &a->output};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mx_strbuf_init(all[i], MX_OPENAI_REPLY_MAX);
}

struct mx_responses_answer *mx_responses_answer_new(struct mx_app *app, struct mx_exchange *x,
                                                    const struct mx_responses_request *r)
{
    struct mx_responses_answer *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->app = app;
    a->x = mx_exchange_ref(x);
    a->stream = r->stream;
    a->encrypted = r->encrypted;
    a->logprobs = r->logprobs;
    a->stats = r->stats;
    a->custom = json_incref(r->custom);
    a->created = (int64_t)time(NULL);
    mx_response_id(a->id, "resp", r->request_id);
    atomic_init(&a->refs, 2);
    pthread_mutex_init(&a->lock, NULL);
    init_buffers(a);
    put_echo(&a->echo, mx_exchange_body(x), r);
    a->store = r->store && app->responses && add_pending(a, r);
    return a;
}

void mx_responses_answer_unref(struct mx_responses_answer *a)
{
    if (atomic_fetch_sub(&a->refs, 1) != 1)
        return;
    mx_strbuf_free(&a->echo);
    mx_strbuf_free(&a->name);
    mx_strbuf_free(&a->body);
    mx_strbuf_free(&a->raw);
    mx_strbuf_free(&a->probs);
    mx_strbuf_free(&a->event);
    mx_strbuf_free(&a->output);
    json_decref(a->custom);
    pthread_mutex_destroy(&a->lock);
    mx_exchange_unref(a->x);
    free(a);
}

void mx_responses_answer_drop(struct mx_responses_answer *a)
{
    remove_record(a);
    mx_responses_answer_unref(a);
}

/* ---- Events ------------------------------------------------------------------------------- */

static void open_event(struct mx_responses_answer *a, const char *type)
{
    mx_strbuf_printf(&a->event, "{\"type\":\"%s\",\"sequence_number\":%u", type, a->sequence++);
}

static void send_event(struct mx_responses_answer *a, const char *type)
{
    mx_strbuf_putc(&a->event, '}');
    if (!a->event.failed)
        mx_exchange_event(a->x, type, a->event.data, a->event.len);
    mx_strbuf_clear(&a->event);
}

/* The event's place: of the item, and of its only part where `part` says so. */
static void put_place(struct mx_responses_answer *a, bool part)
{
    mx_strbuf_printf(&a->event, ",\"item_id\":\"%s\",\"output_index\":%d%s", a->item_id, a->index,
                     part ? ",\"content_index\":0" : "");
}

static void send_response(struct mx_responses_answer *a, const char *type, const char *status,
                          const struct mx_turn_finish *f, const struct mx_api_error *e)
{
    open_event(a, type);
    mx_json_raw(&a->event, ",\"response\":");
    put_response(a, &a->event, status, f, e);
    send_event(a, type);
}

/* With the first event, or once the turn is accepted. */
static void begin(struct mx_responses_answer *a)
{
    pthread_mutex_lock(&a->lock);
    if (a->stream && !a->begun) {
        mx_exchange_begin(a->x, 200, "text/event-stream");
        send_response(a, "response.created", "in_progress", NULL, NULL);
        send_response(a, "response.in_progress", "in_progress", NULL, NULL);
    }
    a->begun = true;
    pthread_mutex_unlock(&a->lock);
}

void mx_responses_answer_begin(struct mx_responses_answer *a, uint64_t job)
{
    if (a->store)
        mx_response_store_set_job(a->app->responses, mx_exchange_client(a->x), a->id, job);
    begin(a);
}

/* ---- Items -------------------------------------------------------------------------------- */

static bool is_call(const struct mx_responses_answer *a)
{
    return a->open == ITEM_CALL || a->open == ITEM_CUSTOM;
}

static void put_body(const struct mx_responses_answer *a, struct mx_strbuf *b)
{
    mx_strbuf_append(b, a->body.len ? a->body.data : "", a->body.len);
}

/* The one part of a message or of reasoning. */
static void put_part(const struct mx_responses_answer *a, struct mx_strbuf *b)
{
    if (a->open == ITEM_REASONING) {
        mx_json_raw(b, "{\"type\":\"reasoning_text\",\"text\":\"");
    } else {
        mx_json_raw(b, "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[");
        mx_strbuf_append(b, a->probs.len ? a->probs.data : "", a->probs.len);
        mx_json_raw(b, "],\"text\":\"");
    }
    put_body(a, b);
    mx_json_raw(b, "\"}");
}

static void put_sealed(const struct mx_responses_answer *a, struct mx_strbuf *b)
{
    char *sealed = mx_reasoning_seal(a->raw.len ? a->raw.data : "", a->raw.len);
    mx_json_raw(b, ",\"encrypted_content\":");
    if (sealed)
        mx_json_string(b, sealed, strlen(sealed));
    else
        mx_json_raw(b, "null");
    free(sealed);
}

/* The open item; `started`: as it is when it is added, without contents. */
static void put_item(const struct mx_responses_answer *a, struct mx_strbuf *b, const char *status,
                     bool started)
{
    static const char *const types[] = {"", "reasoning", "message", "function_call",
                                        "custom_tool_call"};
    mx_strbuf_printf(b, "{\"id\":\"%s\",\"type\":\"%s\",\"status\":\"%s\"", a->item_id,
                     types[a->open], status);
    if (is_call(a)) {
        mx_strbuf_printf(b, ",\"call_id\":\"%s\",\"name\":", a->call_id);
        mx_strbuf_append(b, a->name.data, a->name.len);
        mx_strbuf_printf(b, ",\"%s\":\"", a->open == ITEM_CALL ? "arguments" : "input");
        put_body(a, b);
        mx_json_raw(b, "\"}");
        return;
    }
    mx_strbuf_puts(b, a->open == ITEM_MESSAGE ? ",\"role\":\"assistant\"" : ",\"summary\":[]");
    mx_json_raw(b, ",\"content\":[");
    if (!started)
        put_part(a, b);
    mx_strbuf_putc(b, ']');
    if (a->open == ITEM_REASONING && a->encrypted && !started)
        put_sealed(a, b);
    mx_strbuf_putc(b, '}');
}

static void send_item(struct mx_responses_answer *a, const char *type, const char *status,
                      bool started)
{
    open_event(a, type);
    mx_strbuf_printf(&a->event, ",\"output_index\":%d,\"item\":", a->index);
    put_item(a, &a->event, status, started);
    send_event(a, type);
}

static void send_part(struct mx_responses_answer *a, const char *type)
{
    open_event(a, type);
    put_place(a, true);
    mx_json_raw(&a->event, ",\"part\":");
    put_part(a, &a->event);
    send_event(a, type);
}

static void open_item(struct mx_responses_answer *a, enum item kind)
{
    a->open = kind;
    a->blanks.n = 0;
    mx_strbuf_clear(&a->body);
    mx_strbuf_clear(&a->raw);
    mx_strbuf_clear(&a->probs);
    mx_response_item_id(a->item_id, kinds[kind], mx_exchange_request_id(a->x), (size_t)a->index);
    if (!a->stream)
        return;
    send_item(a, "response.output_item.added", "in_progress", true);
    if (!is_call(a))
        send_part(a, "response.content_part.added");
}

/* The event that says the whole text of the open item. */
static void send_done(struct mx_responses_answer *a)
{
    static const char *const types[] = {
        "", "response.reasoning_text.done", "response.output_text.done",
        "response.function_call_arguments.done", "response.custom_tool_call_input.done"};
    static const char *const members[] = {"", "text", "text", "arguments", "input"};
    open_event(a, types[a->open]);
    put_place(a, !is_call(a));
    if (a->open == ITEM_CALL) {
        mx_json_raw(&a->event, ",\"name\":");
        mx_strbuf_append(&a->event, a->name.data, a->name.len);
    }
    if (a->open == ITEM_MESSAGE) {
        mx_json_raw(&a->event, ",\"logprobs\":[");
        mx_strbuf_append(&a->event, a->probs.len ? a->probs.data : "", a->probs.len);
        mx_strbuf_putc(&a->event, ']');
    }
    mx_strbuf_printf(&a->event, ",\"%s\":\"", members[a->open]);
    put_body(a, &a->event);
    mx_strbuf_putc(&a->event, '"');
    send_event(a, types[a->open]);
}

/* A delta of the body from `from` on, with the logprobs from `probs` on. */
static void send_delta(struct mx_responses_answer *a, size_t from, size_t probs)
{
    static const char *const types[] = {
        "", "response.reasoning_text.delta", "response.output_text.delta",
        "response.function_call_arguments.delta", "response.custom_tool_call_input.delta"};
    if (!a->stream || a->body.failed)
        return;
    open_event(a, types[a->open]);
    put_place(a, !is_call(a));
    if (a->open == ITEM_MESSAGE) {
        mx_json_raw(&a->event, ",\"logprobs\":[");
        if (a->probs.len > probs)
            mx_strbuf_append(&a->event, a->probs.data + probs, a->probs.len - probs);
        mx_strbuf_putc(&a->event, ']');
    }
    mx_json_raw(&a->event, ",\"delta\":\"");
    if (a->body.len > from)
        mx_strbuf_append(&a->event, a->body.data + from, a->body.len - from);
    mx_strbuf_putc(&a->event, '"');
    send_event(a, types[a->open]);
}

/* The text that a custom tool's call was for; where it is not what was asked for, all of it. */
static void unwrap_custom(struct mx_responses_answer *a)
{
    json_t *object =
        a->raw.failed ? NULL : json_loadb(a->raw.len ? a->raw.data : "", a->raw.len, 0, NULL);
    const json_t *input = json_object_get(object, "input");
    if (json_is_string(input))
        mx_json_escape(&a->body, json_string_value(input), json_string_length(input));
    else
        mx_json_escape(&a->body, a->raw.len ? a->raw.data : "", a->raw.len);
    json_decref(object);
    send_delta(a, 0, 0);
}

static void close_item(struct mx_responses_answer *a, const char *status)
{
    if (a->open == ITEM_NONE)
        return;
    if (a->open == ITEM_CUSTOM)
        unwrap_custom(a);
    if (a->stream) {
        send_done(a);
        if (!is_call(a))
            send_part(a, "response.content_part.done");
        send_item(a, "response.output_item.done", status, false);
    }
    if (a->output.len > 0)
        mx_strbuf_putc(&a->output, ',');
    put_item(a, &a->output, status, false);
    a->output.failed |= a->body.failed || a->raw.failed || a->probs.failed;
    a->open = ITEM_NONE;
    a->index++;
}

/* Closes what the next item follows: a call that had no end was cut off. */
static void next_item(struct mx_responses_answer *a)
{
    close_item(a, is_call(a) ? "incomplete" : "completed");
}

/* ---- Pieces ------------------------------------------------------------------------------- */

static void add_text(struct mx_responses_answer *a, const char *s, size_t n,
                     const struct mx_turn_event *ev)
{
    size_t from = a->body.len, probs = a->probs.len;
    mx_json_escape(&a->body, s, n);
    if (a->open == ITEM_REASONING && a->encrypted)
        mx_strbuf_append(&a->raw, s, n);
    if (a->logprobs && a->open == ITEM_MESSAGE && ev->n_tokens > 0) {
        mx_openai_chat_logprobs(&a->probs, a->app->model, ev->gen, ev->token, ev->n_tokens,
                                probs > 0);
        probs += probs > 0 && a->probs.len > probs; /* the comma is not the event's */
    }
    send_delta(a, from, probs);
}

/* Blank text before a message is held back, but not where its tokens are to be accounted for. */
static void on_text(struct mx_responses_answer *a, const struct mx_turn_event *ev)
{
    if (a->open != ITEM_MESSAGE) {
        if (a->open != ITEM_NONE)
            next_item(a);
        if (!a->logprobs && mx_blanks_hold(&a->blanks, ev->text, ev->n))
            return;
        size_t held = a->blanks.n;
        open_item(a, ITEM_MESSAGE);
        if (held > 0)
            add_text(a, a->blanks.text, held, &(struct mx_turn_event){0});
    }
    add_text(a, ev->text, ev->n, ev);
}

static void on_reasoning(struct mx_responses_answer *a, const struct mx_turn_event *ev)
{
    if (a->open != ITEM_REASONING) {
        next_item(a);
        open_item(a, ITEM_REASONING);
    }
    add_text(a, ev->text, ev->n, ev);
}

static void on_call_begin(struct mx_responses_answer *a, const struct mx_turn_event *ev)
{
    next_item(a);
    mx_strbuf_clear(&a->name);
    mx_json_string(&a->name, ev->name, strlen(ev->name));
    snprintf(a->call_id, sizeof a->call_id, "%s", ev->call_id);
    open_item(a, json_object_get(a->custom, ev->name) ? ITEM_CUSTOM : ITEM_CALL);
}

static void on_call_args(struct mx_responses_answer *a, const struct mx_turn_event *ev)
{
    if (a->open == ITEM_CUSTOM)
        mx_strbuf_append(&a->raw, ev->text, ev->n);
    else if (a->open == ITEM_CALL)
        add_text(a, ev->text, ev->n, ev);
}

/* ---- Ending ------------------------------------------------------------------------------- */

/* Puts the complete response, which is in `b`, into the store. */
static void complete_record(struct mx_responses_answer *a, const struct mx_strbuf *b)
{
    if (!a->store)
        return;
    const char *client = mx_exchange_client(a->x);
    if (b->failed || !mx_response_store_complete(a->app->responses, client, a->id, b->data))
        mx_response_store_remove(a->app->responses, client, a->id);
}

/* A stream ends with the response in an event, after it was stored. */
static void end_stream(struct mx_responses_answer *a, const char *type, const char *status,
                       const struct mx_turn_finish *f, const struct mx_api_error *e)
{
    put_response(a, &a->event, status, f, e);
    complete_record(a, &a->event);
    mx_strbuf_clear(&a->event);
    send_response(a, type, status, f, e);
    mx_exchange_end(a->x);
}

static void fail(struct mx_responses_answer *a, const struct mx_turn_finish *f,
                 struct mx_api_error *e)
{
    const char *status = f->reason == MX_REASON_CANCELLED ? "cancelled" : "failed";
    pthread_mutex_lock(&a->lock);
    bool begun = a->begun;
    a->begun = true;
    pthread_mutex_unlock(&a->lock);
    if (mx_exchange_gone(a->x))
        remove_record(a);
    if (a->stream && begun) {
        close_item(a, "incomplete");
        end_stream(a, "response.failed", status, f, e);
        return;
    }
    put_response(a, &a->event, status, f, e);
    complete_record(a, &a->event);
    mx_exchange_fail(a->x, e);
}

static void end_whole(struct mx_responses_answer *a, const char *status,
                      const struct mx_turn_finish *f)
{
    struct mx_api_error e = {0};
    put_response(a, &a->event, status, f, NULL);
    complete_record(a, &a->event);
    if (!a->event.failed) {
        mx_exchange_send(a->x, 200, "application/json", a->event.data, a->event.len);
        return;
    }
    mx_api_fail(&e, 507, NULL, "Out of memory for the answer; ask for fewer tokens");
    mx_exchange_fail(a->x, &e);
}

static void on_finish(struct mx_responses_answer *a, const struct mx_turn_finish *f)
{
    struct mx_api_error e = {0};
    if (mx_openai_failure(f, &e)) {
        fail(a, f, &e);
        return;
    }
    bool cut = f->reason == MX_REASON_LENGTH;
    const char *status = cut ? "incomplete" : "completed";
    begin(a);
    close_item(a, cut || is_call(a) ? "incomplete" : "completed");
    if (a->stream)
        end_stream(a, cut ? "response.incomplete" : "response.completed", status, f, NULL);
    else
        end_whole(a, status, f);
}

void mx_responses_answer_event(void *arg, const struct mx_turn_event *ev)
{
    struct mx_responses_answer *a = arg;
    if (ev->kind != MX_TURN_CLOSE && ev->kind != MX_TURN_FINISH)
        begin(a);
    switch (ev->kind) {
    case MX_TURN_TEXT: on_text(a, ev); break;
    case MX_TURN_REASONING: on_reasoning(a, ev); break;
    case MX_TURN_TOOL_BEGIN: on_call_begin(a, ev); break;
    case MX_TURN_TOOL_ARGS: on_call_args(a, ev); break;
    case MX_TURN_TOOL_END: close_item(a, "completed"); break;
    case MX_TURN_FINISH: on_finish(a, ev->finish); break;
    case MX_TURN_PROGRESS: break;
    case MX_TURN_CLOSE: mx_responses_answer_unref(a); break;
    }
}
