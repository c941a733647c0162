/* The way of a choice's tokens: text, reasoning split, tool calls, stop strings, events.
 *
 *   token -> detokeniser -> reasoning splitter -> tool-call parser -> stop matcher -> event
 *
 * Invariants
 *   1. Text of one kind that comes in one call of the engine is one event; other kinds, and a gap
 *      in the tokens it came from, start another. So an accepted block costs one event.
 *   2. Every piece is whole UTF-8: the detokeniser holds back parts of code points, and the stages
 *      behind it cut only at what they search for.
 *   3. Stop strings see visible text alone. What is held back for one is shown before a tool call
 *      starts: no match goes across a call.
 *   4. Which token a byte came from is kept only where log-probabilities are asked for. A token
 *      counts with the event that shows its first visible byte; tokens without text of their own
 *      (parts of a code point) count with the token that completes it. */
#include "serve/turn_int.h"

#include "runtime/model.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Spans -------------------------------------------------------------------------------- */

static bool spans_push(struct mx_spans *s, struct mx_span span)
{
    if (s->head > 64 && s->head * 2 > s->n) {
        memmove(s->v, s->v + s->head, (s->n - s->head) * sizeof *s->v);
        s->n -= s->head;
        s->head = 0;
    }
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 32;
        struct mx_span *v = realloc(s->v, cap * sizeof *v);
        if (!v)
            return false;
        s->v = v;
        s->cap = cap;
    }
    s->v[s->n++] = span;
    return true;
}

/* Takes up to n bytes from the front span into *out; false when there is none. */
static bool spans_take(struct mx_spans *s, size_t n, struct mx_span *out)
{
    if (s->head == s->n)
        return false;
    struct mx_span *front = &s->v[s->head];
    *out = *front;
    out->bytes = n < front->bytes ? n : front->bytes;
    front->bytes -= out->bytes;
    if (front->bytes == 0)
        s->head++;
    else
        front->first = front->token + 1; /* counted: the rest belongs to no further token */
    return true;
}

static void spans_drop(struct mx_spans *s, size_t n)
{
    struct mx_span span;
    while (n > 0 && spans_take(s, n, &span))
        n -= span.bytes;
}

static bool spans_move(struct mx_spans *from, struct mx_spans *to, size_t n)
{
    struct mx_span span;
    bool ok = true;
    while (n > 0 && spans_take(from, n, &span)) {
        n -= span.bytes;
        ok = spans_push(to, span) && ok;
    }
    return ok;
}

static void forget_ahead_text(struct mx_choice *c, size_t n)
{
    c->ahead_text.len -= n;
    memmove(c->ahead_text.data, c->ahead_text.data + n, c->ahead_text.len);
}

static void drop_ahead(struct mx_choice *c, size_t n)
{
    spans_drop(&c->ahead, n);
    forget_ahead_text(c, n);
}

/* ---- Events ------------------------------------------------------------------------------- */

void mx_choice_emit(struct mx_choice *c, struct mx_turn_event *ev)
{
    ev->choice = c->index;
    ev->gen = c->gen;
    ev->prompt = c->turn->prompt;
    ev->n_prompt = c->turn->n_prompt;
    mx_align_saved_event(c->turn->saved, ev);
    c->turn->event(c->turn->arg, ev);
}

static void flush(struct mx_choice *c)
{
    if (c->text.failed)
        c->failed = true;
    if (c->text.len > 0)
        mx_choice_emit(c, &(struct mx_turn_event){.kind = c->kind,
                                                  .text = c->text.data,
                                                  .n = c->text.len,
                                                  .call = c->calls - 1,
                                                  .call_id = c->call_id,
                                                  .token = c->first,
                                                  .n_tokens = c->n_tokens});
    mx_strbuf_clear(&c->text);
    c->n_tokens = 0;
}

static void put(struct mx_choice *c, enum mx_turn_kind kind, const char *text, size_t n)
{
    if (c->kind != kind)
        flush(c);
    c->kind = kind;
    mx_strbuf_append(&c->text, text, n);
}

/* Visible text of a span. */
static void put_traced(struct mx_choice *c, const char *text, size_t n, const struct mx_span *s)
{
    size_t tokens = s->token + 1 - s->first;
    bool gap = tokens > 0 && c->n_tokens > 0 && c->first + c->n_tokens != s->first;
    if (gap)
        flush(c);
    put(c, MX_TURN_TEXT, text, n);
    if (tokens > 0 && c->n_tokens == 0)
        c->first = s->first;
    c->n_tokens += tokens;
}

/* Behind the stop matcher. */
static void show_text(void *arg, const char *text, size_t n)
{
    struct mx_choice *c = arg;
    struct mx_span span;
    while (c->trace && n > 0 && spans_take(&c->visible, n, &span)) {
        put_traced(c, text, span.bytes, &span);
        text += span.bytes;
        n -= span.bytes;
    }
    if (n > 0)
        put(c, MX_TURN_TEXT, text, n);
}

static void release_stops(struct mx_choice *c)
{
    mx_stop_release(&c->stops, show_text, c);
}

static void end_here(struct mx_choice *c)
{
    if (c->ended)
        return;
    c->ended = true;
    c->keep = c->token + 1;
}

/* ---- Visible text ------------------------------------------------------------------------- */

static void push_visible(struct mx_choice *c, const char *text, size_t n)
{
    if (c->ended)
        return;
    if (!mx_stop_push(&c->stops, text, n, c->turn->include_stop, show_text, c))
        c->failed = true;
    if (c->stops.found >= 0)
        end_here(c);
}

/* "call_" and 24 letters and digits. */
static void make_call_id(char out[32])
{
    static const char set[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    size_t n = (size_t)snprintf(out, 32, "call_");
    while (n < 29)
        out[n++] = set[randombytes_uniform(sizeof set - 1)];
    out[n] = '\0';
}

static void begin_call(struct mx_choice *c, int call, const char *name, size_t n)
{
    char tool[512]; /* names are of at most 256 bytes */
    snprintf(tool, sizeof tool, "%.*s", (int)(n < sizeof tool ? n : sizeof tool - 1), name);
    release_stops(c);
    flush(c);
    c->broken_call |= c->open_call;
    c->open_call = true;
    c->calls = call + 1;
    make_call_id(c->call_id);
    mx_choice_emit(
        c, &(struct mx_turn_event){
               .kind = MX_TURN_TOOL_BEGIN, .call = call, .call_id = c->call_id, .name = tool});
}

/* The text of a call is not shown; what is behind it can only be in the piece at hand. */
static void end_call(struct mx_choice *c, int call)
{
    if (c->trace && c->ahead_text.len > c->piece)
        drop_ahead(c, c->ahead_text.len - c->piece);
    c->open_call = false;
    flush(c);
    mx_choice_emit(
        c, &(struct mx_turn_event){.kind = MX_TURN_TOOL_END, .call = call, .call_id = c->call_id});
    if (c->turn->one_call)
        end_here(c);
}

/* Text that the tool-call parser lets through is the next that looks like it: what it drops are
 * markers and calls. */
static void trace_through(struct mx_choice *c, const char *text, size_t n)
{
    const char *from = c->ahead_text.data;
    const char *hit = from ? memmem(from, c->ahead_text.len, text, n) : NULL;
    if (!hit)
        return;
    drop_ahead(c, (size_t)(hit - from));
    if (!spans_move(&c->ahead, &c->visible, n))
        c->failed = true;
    forget_ahead_text(c, n);
}

static void on_tool(void *arg, enum mx_tool_event event, int call, const char *text, size_t n)
{
    struct mx_choice *c = arg;
    if (c->ended)
        return;
    switch (event) {
    case MX_TOOL_TEXT:
        if (c->trace)
            trace_through(c, text, n);
        push_visible(c, text, n);
        break;
    case MX_TOOL_BEGIN: begin_call(c, call, text, n); break;
    case MX_TOOL_ARGS: put(c, MX_TURN_TOOL_ARGS, text, n); break;
    case MX_TOOL_END: end_call(c, call); break;
    }
}

static void visible(struct mx_choice *c, const char *text, size_t n)
{
    if (!c->tools) {
        if (c->trace && !spans_move(&c->raw, &c->visible, n))
            c->failed = true;
        push_visible(c, text, n);
        return;
    }
    if (c->trace) {
        if (!spans_move(&c->raw, &c->ahead, n) || !mx_strbuf_append(&c->ahead_text, text, n))
            c->failed = true;
        c->piece = n;
    }
    if (!mx_toolcall_push(c->tools, text, n))
        c->failed = true;
}

/* Behind the reasoning splitter, which emits parts of what it holds. */
static void on_part(void *arg, enum mx_answer_part part, const char *text, size_t n)
{
    struct mx_choice *c = arg;
    if (c->ended)
        return;
    if (part == MX_PART_REASONING) {
        put(c, MX_TURN_REASONING, text, n);
        return;
    }
    size_t at = c->pushed - c->reasoning.held.len;
    if (c->trace && at > c->raw_at) /* reasoning, tags and blanks */
        spans_drop(&c->raw, at - c->raw_at);
    c->raw_at = at + n;
    visible(c, text, n);
}

/* ---- Tokens ------------------------------------------------------------------------------- */

static void push_text(struct mx_choice *c, const char *text, size_t n)
{
    if (c->trace && !spans_push(&c->raw, (struct mx_span){c->token, c->carry, n}))
        c->failed = true;
    c->carry = c->token + 1;
    c->pushed += n;
    if (!mx_reasoning_push(&c->reasoning, text, n))
        c->failed = true;
}

static void push_token(struct mx_choice *c, int32_t id, bool last)
{
    size_t n = 0;
    const mtplx_model *m = c->turn->app->model;
    if (last && mtplx_model_is_stop_token(m, id))
        return; /* it has no text, even where it is a word */
    bool inside = mx_reasoning_inside(&c->reasoning);
    const char *text = mtplx_detok_push(c->detok, id, &n);
    if (!text)
        c->failed = true;
    else if (n > 0)
        push_text(c, text, n);
    else if (mx_tokenizer_is_special(m->tokenizer, id))
        c->carry = c->token + 1; /* a token without text, not a part of one with */
    c->reasoning_tokens += inside || mx_reasoning_inside(&c->reasoning);
}

size_t mx_choice_tokens(struct mx_choice *c, const int32_t *ids, size_t from, size_t n)
{
    if (c->turn->prompt_only) {
        c->ended = true;
        c->keep = 0;
        return 0;
    }
    for (size_t i = 0; i < n && !c->ended && !c->failed; i++) {
        c->token = from + i;
        push_token(c, ids[i], i + 1 == n);
    }
    flush(c);
    if (c->failed)
        end_here(c);
    return c->ended ? c->keep : SIZE_MAX;
}

void mx_choice_finish(struct mx_choice *c)
{
    size_t n = 0;
    if (c->ended || c->failed)
        return;
    const char *rest = mtplx_detok_flush(c->detok, &n);
    if (rest && n > 0)
        push_text(c, rest, n);
    mx_reasoning_finish(&c->reasoning);
    if (c->tools && !mx_toolcall_finish(c->tools))
        c->failed = true;
    if (c->stops.found < 0)
        release_stops(c);
    flush(c);
}

/* ---- Making and freeing ------------------------------------------------------------------- */

static bool init_tools(struct mx_choice *c, const struct mx_turn_request *r, mtplx_error *err)
{
    struct mx_turn *t = c->turn;
    bool constrained = r->format != MX_FORMAT_TEXT && !t->tools;
    if (r->raw || constrained || t->app->tools == MX_TOOLS_NONE)
        return true;
    struct mx_toolcall_options o = {.syntax = t->app->tools, .tools = t->tools};
    c->tools = mx_toolcall_new(&o, on_tool, c, err);
    return c->tools != NULL;
}

bool mx_choice_init(struct mx_choice *c, struct mx_turn *t, int index,
                    const struct mx_turn_request *r, const struct mx_turn_prompt *p,
                    struct mx_api_error *e)
{
    mtplx_error err = {0};
    c->turn = t;
    c->index = index;
    c->trace = r->gen.logprobs > 0;
    mx_strbuf_init(&c->text, 0);
    mx_strbuf_init(&c->ahead_text, 0);
    mx_stop_match_init(&c->stops, &t->stops);
    mx_reasoning_init(&c->reasoning, r->raw ? MX_REASONING_NONE : t->app->reasoning,
                      p->text.data ? p->text.data : "", p->text.len, on_part, c);
    c->detok = mtplx_detok_new(t->app->model, true);
    if (!c->detok)
        mx_error_nomem(&err, "a detokeniser", 0);
    if (c->detok && init_tools(c, r, &err))
        return true;
    return mx_turn_fail_input(e, &err, "tools");
}

void mx_choice_free(struct mx_choice *c)
{
    if (!c->turn)
        return;
    mtplx_detok_free(c->detok);
    mx_reasoning_free(&c->reasoning);
    mx_toolcall_free(c->tools);
    mx_stop_match_free(&c->stops);
    mx_strbuf_free(&c->text);
    mx_strbuf_free(&c->ahead_text);
    free(c->raw.v);
    free(c->ahead.v);
    free(c->visible.v);
}
