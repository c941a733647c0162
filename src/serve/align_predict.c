/* The beginning of a conversation's next prompt, from a request and its answer.
 *
 * A template may render a message otherwise once another follows it (earlier reasoning is left
 * out), so a stand-in follows: a result for an answer with calls, a message of the user else. The
 * prediction ends where the stand-in's message opens. */
#include "serve/align.h"
#include "serve/borders.h"
#include "serve/chat_build.h"
#include "serve/turn_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum piece_kind { TEXT, REASONING, CALL_ID, CALL_NAME, CALL_ARGS };

/* Part of an answer; its bytes stand behind those of the pieces before. */
struct piece {
    enum piece_kind kind;
    size_t n;
};

struct mx_align_saved {
    char *request; /* JSON text: messages, tools, kwargs */
    char *effort;
    enum mx_tristate thinking;
    int preserve_thinking;
    enum mx_tool_choice tool_choice;
    enum mx_resend resend;
    bool reasoning; /* comes back */

    struct mx_strbuf bytes;
    struct piece *pieces;
    size_t n, cap;
    bool failed;
};

/* ---- Keeping ------------------------------------------------------------------------------ */

/* Bytes of messages for each token of a prompt; more is what the template does not show. */
enum { BYTES_PER_TOKEN = 64, BYTES_FREE = 64 << 10 };

static bool predictable(const struct mx_turn_request *r)
{
    return r->resend != MX_RESEND_UNKNOWN && r->messages && !r->raw && !r->prompt_only &&
           !r->continue_final && !r->no_reuse && r->choices <= 1;
}

/* Whether an assistant message has reasoning; *any: it is one. */
static bool has_reasoning(const json_t *message, bool *any)
{
    static const char *const names[] = {"reasoning_content", "reasoning", "thinking"};
    const char *role = json_string_value(json_object_get(message, "role"));
    if (!role || strcmp(role, "assistant") != 0)
        return false;
    *any = true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (json_string_length(json_object_get(message, names[i])) > 0)
            return true;
    const char *content = json_string_value(json_object_get(message, "content"));
    return content && strncmp(content, "<think>", 7) == 0;
}

/* What the client did with earlier answers it does with this one. */
static bool returns_reasoning(const struct mx_turn_request *r)
{
    bool any = false;
    size_t i;
    json_t *m;
    json_array_foreach((json_t *)(uintptr_t)r->messages, i, m)
    {
        if (has_reasoning(m, &any))
            return true;
    }
    return any ? false : r->resend_reasoning;
}

static char *request_text(const struct mx_turn_request *r, size_t n_prompt)
{
    json_t *o = json_pack("{s:O,s:O*,s:O*}", "messages", r->messages, "tools", r->tools, "kwargs",
                          r->kwargs);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (!text || strlen(text) <= BYTES_FREE + BYTES_PER_TOKEN * n_prompt)
        return text;
    free(text);
    return NULL;
}

struct mx_align_saved *mx_align_save(const struct mx_turn_request *r, size_t n_prompt)
{
    struct mx_align_saved *s = predictable(r) ? calloc(1, sizeof *s) : NULL;
    if (!s)
        return NULL;
    mx_strbuf_init(&s->bytes, 0);
    s->thinking = r->thinking;
    s->preserve_thinking = r->preserve_thinking;
    s->tool_choice = r->tool_choice;
    s->resend = r->resend;
    s->reasoning = returns_reasoning(r);
    s->effort = r->reasoning_effort ? strdup(r->reasoning_effort) : NULL;
    s->request = request_text(r, n_prompt);
    if (s->request && (s->effort || !r->reasoning_effort))
        return s;
    mx_align_saved_free(s);
    return NULL;
}

void mx_align_saved_free(struct mx_align_saved *s)
{
    if (!s)
        return;
    free(s->request);
    free(s->effort);
    free(s->pieces);
    mx_strbuf_free(&s->bytes);
    free(s);
}

size_t mx_align_saved_bytes(const struct mx_align_saved *s)
{
    return s ? sizeof *s + strlen(s->request) + s->bytes.len + s->cap * sizeof *s->pieces : 0;
}

static void add_piece(struct mx_align_saved *s, enum piece_kind kind, const char *text, size_t n,
                      bool fresh)
{
    if (fresh || s->n == 0 || s->pieces[s->n - 1].kind != kind) {
        if (s->n == s->cap) {
            size_t cap = s->cap ? 2 * s->cap : 8;
            struct piece *more = realloc(s->pieces, cap * sizeof *more);
            if (!more) {
                s->failed = true;
                return;
            }
            s->pieces = more;
            s->cap = cap;
        }
        s->pieces[s->n++] = (struct piece){kind, 0};
    }
    if (mx_strbuf_append(&s->bytes, text, n))
        s->pieces[s->n - 1].n += n;
    else
        s->failed = true;
}

void mx_align_saved_event(struct mx_align_saved *s, const struct mx_turn_event *ev)
{
    if (!s || s->failed || ev->choice != 0)
        return;
    switch (ev->kind) {
    case MX_TURN_TEXT: add_piece(s, TEXT, ev->text, ev->n, false); break;
    case MX_TURN_REASONING: add_piece(s, REASONING, ev->text, ev->n, false); break;
    case MX_TURN_TOOL_BEGIN:
        add_piece(s, CALL_ID, ev->call_id, strlen(ev->call_id), true);
        add_piece(s, CALL_NAME, ev->name, strlen(ev->name), true);
        add_piece(s, CALL_ARGS, "", 0, true);
        break;
    case MX_TURN_TOOL_ARGS: add_piece(s, CALL_ARGS, ev->text, ev->n, false); break;
    case MX_TURN_TOOL_END:
    case MX_TURN_PROGRESS:
    case MX_TURN_FINISH:
    case MX_TURN_CLOSE: break;
    }
}

/* ---- The answer as it comes back ---------------------------------------------------------- */

static bool blank(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!memchr(" \n\r\t", text[i], 4))
            return false;
    return true;
}

/* A call from the three pieces at `at`; `text` is that of the first. */
static void add_call(const struct mx_align_saved *s, size_t at, const char *text,
                     struct mx_chat_build *b)
{
    const struct piece *p = &s->pieces[at];
    if (at + 2 >= s->n)
        return;
    char *id = strndup(text, p[0].n), *name = strndup(text + p[0].n, p[1].n);
    char *args = strndup(text + p[0].n + p[1].n, p[2].n);
    if (id && name && args)
        mx_chat_build_call(b, id, name, args);
    else
        b->failed = true;
    free(id);
    free(name);
    free(args);
}

static void build_pieces(const struct mx_align_saved *s, struct mx_chat_build *b)
{
    const char *text = s->bytes.data ? s->bytes.data : "";
    bool whole = s->resend == MX_RESEND_MESSAGE;
    mx_chat_build_role(b, MX_CHAT_ASSISTANT);
    b->touched = true;
    for (size_t i = 0; i < s->n; text += s->pieces[i].n, i++) {
        const struct piece *p = &s->pieces[i];
        if (p->kind == REASONING && s->reasoning)
            mx_chat_build_reasoning(b, text, p->n);
        else if (p->kind == TEXT && whole)
            mx_strbuf_append(&b->text, text, p->n);
        else if (p->kind == TEXT && !blank(text, p->n))
            mx_chat_build_text(b, text, p->n);
        else if (p->kind == CALL_ID)
            add_call(s, i, text, b);
    }
}

/* The first call's id, or "". */
static void first_call(const struct mx_align_saved *s, char id[64])
{
    size_t at = 0;
    id[0] = '\0';
    for (size_t i = 0; i < s->n; at += s->pieces[i].n, i++)
        if (s->pieces[i].kind == CALL_ID) {
            snprintf(id, 64, "%.*s", (int)s->pieces[i].n, s->bytes.data + at);
            return;
        }
}

/* The stand-in for what follows. */
static json_t *stand_in(const struct mx_align_saved *s)
{
    char id[64];
    first_call(s, id);
    if (id[0])
        return json_pack("{s:s,s:s,s:s}", "role", "tool", "tool_call_id", id, "content", "x");
    return json_pack("{s:s,s:s}", "role", "user", "content", "x");
}

static bool append_answer(const struct mx_align_saved *s, json_t *messages)
{
    struct mx_chat_build b;
    mx_chat_build_init(&b);
    build_pieces(s, &b);
    json_t *answer = mx_chat_build_finish(&b);
    bool ok = answer && json_array_extend(messages, answer) == 0 &&
              json_array_append_new(messages, stand_in(s)) == 0;
    json_decref(answer);
    mx_chat_build_free(&b);
    return ok;
}

/* ---- Predicting --------------------------------------------------------------------------- */

static bool render(struct mx_app *app, const struct mx_align_saved *s, const json_t *request,
                   struct mx_turn_prompt *p)
{
    struct mx_api_error e = {0};
    struct mx_turn_request r = {
        .messages = json_object_get(request, "messages"),
        .tools = json_object_get(request, "tools"),
        .kwargs = json_object_get(request, "kwargs"),
        .tool_choice = s->tool_choice,
        .thinking = s->thinking,
        .reasoning_effort = s->effort,
        .preserve_thinking = s->preserve_thinking,
        .no_generation_prompt = true,
    };
    bool ok = append_answer(s, json_object_get(request, "messages")) &&
              mx_turn_prompt_make(app, &r, p, &e);
    json_decref(e.details);
    return ok;
}

bool mx_align_predict(struct mx_app *app, const struct mx_align_saved *s,
                      struct mx_align_prediction *p)
{
    struct mx_turn_prompt prompt = {0};
    *p = (struct mx_align_prediction){0};
    json_t *request = s->failed ? NULL : json_loads(s->request, JSON_ALLOW_NUL, NULL);
    if (request && render(app, s, request, &prompt))
        p->borders = mx_borders_find(app, prompt.ids, prompt.n, &p->n_borders);
    json_decref(request);
    if (p->borders) {
        p->n = p->borders[p->n_borders - 1];
        p->ids = prompt.ids;
        prompt.ids = NULL;
    }
    mx_turn_prompt_free(&prompt);
    return p->ids != NULL;
}

void mx_align_prediction_free(struct mx_align_prediction *p)
{
    free(p->ids);
    free(p->borders);
    *p = (struct mx_align_prediction){0};
}
