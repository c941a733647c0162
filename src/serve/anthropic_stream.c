/* Messages API: the events of a turn into a message, whole or streamed.
 *
 * One machine of content blocks serves both: a block is open, or none is; pieces of another kind
 * close it and open the next. A stream gets an event for each step, a whole reply collects the JSON
 * text of its blocks. Per piece, one escaping copy into a buffer that is kept: no tree.
 *
 *   1. The stream is: message_start, ping, blocks (start, deltas, stop), message_delta,
 *      message_stop; or at any place an error, which is the last event then.
 *   2. Blank text between blocks is no block of its own: templates put line ends between thinking,
 *      text and calls, and clients send blocks back as they got them.
 *   3. The head of a stream goes out when the turn was accepted, while its prompt waits and is
 *      read; so both the preparation thread and the engine's may send it, whoever is first.
 *   4. The answer dies with its second reference: the handler's and that of the turn's events. */
#include "base/clock.h"
#include "serve/anthropic_int.h"
#include "serve/blanks.h"
#include "serve/openai_reply.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* What clients give back with thinking. There is nothing to verify: thinking is plain text here. */
#define SIGNATURE "bXRwbHg="

#define PING_NS 5000000000ull
#define MAX_ANSWER ((size_t)64 << 20)

enum block { BLOCK_NONE = 0, BLOCK_THINKING, BLOCK_TEXT, BLOCK_TOOL };

struct mx_messages_answer {
    struct mx_exchange *x;
    atomic_int refs;
    bool stream, hide_thinking, stats;
    char *model, *stops[MX_TURN_STOPS]; /* owned */

    pthread_mutex_t lock; /* begun */
    bool begun;

    /* The rest belongs to the engine's thread. */
    bool started; /* message_start is out */
    enum block open;
    int index;                /* of the open or next block */
    size_t prompt_tokens;     /* as far as known */
    uint64_t last_ns;         /* when something was written */
    struct mx_strbuf event;   /* the event being written */
    struct mx_strbuf content; /* whole: blocks so far */
    struct mx_strbuf args;    /* whole: arguments of the open call */
    size_t mark;              /* whole: where the open call starts in content */
    struct mx_blanks blanks;  /* held back, see 2 */
};

/* ---- Life --------------------------------------------------------------------------------- */

static void free_answer(struct mx_messages_answer *a)
{
    for (int i = 0; i < MX_TURN_STOPS; i++)
        free(a->stops[i]);
    free(a->model);
    mx_strbuf_free(&a->event);
    mx_strbuf_free(&a->content);
    mx_strbuf_free(&a->args);
    pthread_mutex_destroy(&a->lock);
    mx_exchange_unref(a->x);
    free(a);
}

struct mx_messages_answer *mx_messages_answer_new(struct mx_exchange *x,
                                                  const struct mx_messages_request *r)
{
    struct mx_messages_answer *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->x = mx_exchange_ref(x);
    a->stream = r->stream;
    a->hide_thinking = r->hide_thinking;
    a->stats = r->stats;
    atomic_init(&a->refs, 2);
    pthread_mutex_init(&a->lock, NULL);
    mx_strbuf_init(&a->event, MAX_ANSWER);
    mx_strbuf_init(&a->content, MAX_ANSWER);
    mx_strbuf_init(&a->args, MAX_ANSWER);
    a->model = strdup(r->model);
    bool ok = a->model != NULL;
    for (int i = 0; ok && i < r->turn.n_stop; i++)
        ok = (a->stops[i] = strdup(r->turn.stop[i])) != NULL;
    if (ok)
        return a;
    free_answer(a);
    return NULL;
}

void mx_messages_answer_unref(struct mx_messages_answer *a)
{
    if (atomic_fetch_sub(&a->refs, 1) == 1)
        free_answer(a);
}

void mx_messages_answer_begin(struct mx_messages_answer *a)
{
    pthread_mutex_lock(&a->lock);
    if (a->stream && !a->begun)
        mx_exchange_begin(a->x, 200, "text/event-stream");
    a->begun = true;
    pthread_mutex_unlock(&a->lock);
}

/* ---- Events ------------------------------------------------------------------------------- */

/* Sends a->event under a name and empties it. */
static void send_event(struct mx_messages_answer *a, const char *name)
{
    if (!a->event.failed)
        mx_exchange_event(a->x, name, a->event.data, a->event.len);
    mx_strbuf_clear(&a->event);
    a->last_ns = mx_now_ns();
}

static void send_ping(struct mx_messages_answer *a)
{
    mx_strbuf_puts(&a->event, "{\"type\":\"ping\"}");
    send_event(a, "ping");
}

/* The id of the message is that of its request. */
static void put_id(const struct mx_messages_answer *a, struct mx_strbuf *b)
{
    const char *id = mx_exchange_request_id(a->x);
    mx_strbuf_printf(b, "\"msg_%s\"", strncmp(id, "req_", 4) == 0 ? id + 4 : id);
}

/* Tokens read from the cache are not among the input tokens, as the API documents. */
static void put_usage(struct mx_strbuf *b, size_t prompt, size_t cached, size_t output,
                      size_t thinking)
{
    mx_strbuf_printf(b,
                     "{\"input_tokens\":%zu,\"cache_creation_input_tokens\":0,"
                     "\"cache_read_input_tokens\":%zu,\"output_tokens\":%zu,"
                     "\"output_tokens_details\":{\"thinking_tokens\":%zu},"
                     "\"server_tool_use\":null,\"service_tier\":\"standard\"}",
                     prompt > cached ? prompt - cached : 0, cached, output, thinking);
}

/* Everything of a message before its content. */
static void put_head(const struct mx_messages_answer *a, struct mx_strbuf *b)
{
    mx_strbuf_puts(b, "{\"id\":");
    put_id(a, b);
    mx_strbuf_puts(b, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    mx_json_string(b, a->model, strlen(a->model));
    mx_strbuf_puts(b, ",\"container\":null,\"content\":[");
}

static void start_message(struct mx_messages_answer *a)
{
    mx_messages_answer_begin(a);
    if (a->started)
        return;
    a->started = true;
    if (!a->stream)
        return;
    mx_strbuf_puts(&a->event, "{\"type\":\"message_start\",\"message\":");
    put_head(a, &a->event);
    mx_strbuf_puts(&a->event, "],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
    put_usage(&a->event, a->prompt_tokens, 0, 0, 0);
    mx_strbuf_puts(&a->event, "}}");
    send_event(a, "message_start");
    send_ping(a);
}

/* ---- Blocks ------------------------------------------------------------------------------- */

static struct mx_strbuf *target(struct mx_messages_answer *a)
{
    return a->stream ? &a->event : &a->content;
}

/* What a block is when it starts; a whole reply goes on inside the last string. */
static void put_block_start(struct mx_messages_answer *a, enum block kind,
                            const struct mx_turn_event *ev)
{
    struct mx_strbuf *b = target(a);
    if (kind == BLOCK_TEXT)
        mx_strbuf_puts(b, "{\"type\":\"text\",\"text\":\"");
    else if (kind == BLOCK_THINKING)
        mx_strbuf_puts(b, "{\"type\":\"thinking\",\"thinking\":\"");
    if (kind == BLOCK_TOOL) {
        const char *id = ev->call_id;
        mx_strbuf_puts(b, "{\"type\":\"tool_use\",\"id\":\"toolu_");
        mx_json_escape(b, id + (strncmp(id, "call_", 5) == 0 ? 5 : 0),
                       strlen(id) - (strncmp(id, "call_", 5) == 0 ? 5 : 0));
        mx_strbuf_puts(b, "\",\"name\":");
        mx_json_string(b, ev->name, strlen(ev->name));
        mx_strbuf_puts(b, ",\"input\":");
    }
}

static void open_block(struct mx_messages_answer *a, enum block kind,
                       const struct mx_turn_event *ev)
{
    start_message(a);
    a->open = kind;
    a->blanks.n = 0;
    if (!a->stream) {
        a->mark = a->content.len;
        if (a->content.len > 0)
            mx_strbuf_putc(&a->content, ',');
        put_block_start(a, kind, ev);
        return;
    }
    mx_strbuf_printf(&a->event,
                     "{\"type\":\"content_block_start\",\"index\":%d,\"content_block\":", a->index);
    put_block_start(a, kind, ev);
    if (kind == BLOCK_TOOL)
        mx_strbuf_puts(&a->event, "{}}}");
    else
        mx_strbuf_puts(&a->event, kind == BLOCK_TEXT ? "\"}}" : "\",\"signature\":\"\"}}");
    send_event(a, "content_block_start");
}

/* One delta whose value is a string. */
static void send_delta(struct mx_messages_answer *a, const char *type, const char *member,
                       const char *s, size_t n)
{
    mx_strbuf_printf(&a->event,
                     "{\"type\":\"content_block_delta\",\"index\":%d,\"delta\":{\"type\":\"%s\","
                     "\"%s\":\"",
                     a->index, type, member);
    mx_json_escape(&a->event, s, n);
    mx_strbuf_puts(&a->event, "\"}}");
    send_event(a, "content_block_delta");
}

/* A call of a whole reply: its arguments are an object, or the call was cut off and is left out,
 * since a reply cannot hold half an object. */
static void close_whole_call(struct mx_messages_answer *a)
{
    json_t *input =
        a->args.failed ? NULL : json_loadb(a->args.len ? a->args.data : "", a->args.len, 0, NULL);
    if (json_is_object(input)) {
        mx_strbuf_append(&a->content, a->args.data, a->args.len);
        mx_strbuf_putc(&a->content, '}');
    } else if (!a->content.failed) {
        a->content.len = a->mark;
        a->content.data[a->mark] = '\0';
    }
    json_decref(input);
    mx_strbuf_clear(&a->args);
}

static void close_whole_block(struct mx_messages_answer *a)
{
    if (a->open == BLOCK_TEXT)
        mx_strbuf_puts(&a->content, "\"}");
    else if (a->open == BLOCK_THINKING)
        mx_strbuf_puts(&a->content, "\",\"signature\":\"" SIGNATURE "\"}");
    else
        close_whole_call(a);
}

static void close_block(struct mx_messages_answer *a)
{
    if (a->open == BLOCK_NONE)
        return;
    if (a->stream) {
        if (a->open == BLOCK_THINKING)
            send_delta(a, "signature_delta", "signature", SIGNATURE, sizeof SIGNATURE - 1);
        mx_strbuf_printf(&a->event, "{\"type\":\"content_block_stop\",\"index\":%d}", a->index);
        send_event(a, "content_block_stop");
    } else {
        close_whole_block(a);
    }
    a->open = BLOCK_NONE;
    a->index++;
}

static void put_text(struct mx_messages_answer *a, const char *s, size_t n)
{
    if (a->stream)
        send_delta(a, "text_delta", "text", s, n);
    else
        mx_json_escape(&a->content, s, n);
}

static void on_text(struct mx_messages_answer *a, const struct mx_turn_event *ev)
{
    if (a->open != BLOCK_TEXT) {
        close_block(a);
        if (mx_blanks_hold(&a->blanks, ev->text, ev->n))
            return;
        size_t held = a->blanks.n;
        open_block(a, BLOCK_TEXT, ev);
        if (held > 0)
            put_text(a, a->blanks.text, held);
    }
    put_text(a, ev->text, ev->n);
}

static void on_thinking(struct mx_messages_answer *a, const struct mx_turn_event *ev)
{
    if (a->open != BLOCK_THINKING) {
        close_block(a);
        open_block(a, BLOCK_THINKING, ev);
    }
    if (a->hide_thinking)
        return;
    if (a->stream)
        send_delta(a, "thinking_delta", "thinking", ev->text, ev->n);
    else
        mx_json_escape(&a->content, ev->text, ev->n);
}

static void on_call(struct mx_messages_answer *a, const struct mx_turn_event *ev)
{
    if (ev->kind == MX_TURN_TOOL_BEGIN) {
        close_block(a);
        open_block(a, BLOCK_TOOL, ev);
    } else if (ev->kind == MX_TURN_TOOL_END) {
        close_block(a);
    } else if (a->stream) {
        send_delta(a, "input_json_delta", "partial_json", ev->text, ev->n);
    } else {
        mx_strbuf_append(&a->args, ev->text, ev->n);
    }
}

/* ---- Ending ------------------------------------------------------------------------------- */

static const char *stop_reason(const struct mx_turn_finish *f)
{
    switch (f->reason) {
    case MX_REASON_STOP_SEQUENCE: return "stop_sequence";
    case MX_REASON_LENGTH: return "max_tokens";
    case MX_REASON_TOOL_CALLS: return "tool_use";
    default: return "end_turn";
    }
}

/* stop_reason and stop_sequence, with a comma behind. */
static void put_stop(const struct mx_messages_answer *a, struct mx_strbuf *b,
                     const struct mx_turn_finish *f)
{
    bool known =
        f->reason == MX_REASON_STOP_SEQUENCE && f->stop_index >= 0 && f->stop_index < MX_TURN_STOPS;
    mx_strbuf_printf(b, "\"stop_reason\":\"%s\",\"stop_sequence\":", stop_reason(f));
    if (known)
        mx_json_string(b, a->stops[f->stop_index], strlen(a->stops[f->stop_index]));
    else
        mx_json_raw(b, "null");
}

static void put_totals(const struct mx_messages_answer *a, struct mx_strbuf *b,
                       const struct mx_turn_finish *f)
{
    mx_strbuf_puts(b, ",\"usage\":");
    put_usage(b, f->prompt_tokens, f->cached_tokens, f->completion_tokens, f->reasoning_tokens);
    json_t *stats = mx_turn_stats(f, a->stats);
    if (stats) {
        mx_strbuf_puts(b, ",\"mtplx_stats\":");
        mx_json_value(b, stats);
        json_decref(stats);
    }
    mx_strbuf_putc(b, '}');
}

static void finish_stream(struct mx_messages_answer *a, const struct mx_turn_finish *f)
{
    mx_strbuf_puts(&a->event, "{\"type\":\"message_delta\",\"delta\":{");
    put_stop(a, &a->event, f);
    mx_strbuf_putc(&a->event, '}');
    put_totals(a, &a->event, f);
    send_event(a, "message_delta");
    mx_strbuf_puts(&a->event, "{\"type\":\"message_stop\"}");
    send_event(a, "message_stop");
    mx_exchange_end(a->x);
}

/* An error before the head of a stream is out is a reply of its own. */
static void fail(struct mx_messages_answer *a, struct mx_api_error *e)
{
    pthread_mutex_lock(&a->lock);
    bool begun = a->begun;
    a->begun = true;
    pthread_mutex_unlock(&a->lock);
    if (!a->stream || !begun) {
        mx_exchange_fail(a->x, e);
        return;
    }
    json_t *envelope = mx_exchange_error_json(a->x, e);
    if (envelope) {
        mx_json_value(&a->event, envelope);
        send_event(a, "error");
        json_decref(envelope);
    }
    mx_exchange_end(a->x);
}

static void finish_whole(struct mx_messages_answer *a, const struct mx_turn_finish *f)
{
    struct mx_api_error e = {0};
    struct mx_strbuf *b = &a->event;
    put_head(a, b);
    mx_strbuf_append(b, a->content.data ? a->content.data : "", a->content.len);
    mx_strbuf_puts(b, "],");
    put_stop(a, b, f);
    put_totals(a, b, f);
    if (b->failed || a->content.failed) {
        mx_api_fail(&e, 507, NULL, "out of memory for the answer; ask for fewer tokens");
        mx_exchange_fail(a->x, &e);
        return;
    }
    mx_exchange_send(a->x, 200, "application/json", b->data, b->len);
}

static void on_finish(struct mx_messages_answer *a, const struct mx_turn_finish *f)
{
    struct mx_api_error e = {0};
    if (mx_openai_failure(f, &e)) {
        fail(a, &e);
        return;
    }
    start_message(a);
    close_block(a);
    if (a->stream)
        finish_stream(a, f);
    else
        finish_whole(a, f);
}

/* ---- The turn's events -------------------------------------------------------------------- */

static void on_progress(struct mx_messages_answer *a, const struct mx_turn_event *ev)
{
    a->prompt_tokens = ev->of;
    if (!a->started)
        start_message(a);
    else if (a->stream && mx_now_ns() - a->last_ns > PING_NS)
        send_ping(a);
}

void mx_messages_answer_event(void *arg, const struct mx_turn_event *ev)
{
    struct mx_messages_answer *a = arg;
    switch (ev->kind) {
    case MX_TURN_TEXT: on_text(a, ev); break;
    case MX_TURN_REASONING: on_thinking(a, ev); break;
    case MX_TURN_TOOL_BEGIN:
    case MX_TURN_TOOL_ARGS:
    case MX_TURN_TOOL_END: on_call(a, ev); break;
    case MX_TURN_PROGRESS: on_progress(a, ev); break;
    case MX_TURN_FINISH: on_finish(a, ev->finish); break;
    case MX_TURN_CLOSE: mx_messages_answer_unref(a); break;
    }
}
