/* Brings a conversation, as clients send it, into the one form that chat templates get. */
#include "text/messages.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_MESSAGES = 16384, DEFAULT_DEPTH = 128 };

struct normaliser {
    const struct mx_messages_options *o;
    mtplx_error *err;
    size_t i;         /* of the message being read */
    json_t *out;      /* messages so far */
    json_t *names;    /* tools called so far: id to name */
    bool opening;     /* nothing but system messages so far */
    size_t last_user; /* of `out`, SIZE_MAX: none */
};

/* ---- Errors ---- */

/* "messages[i]" and the rest of the sentence. Returns false. */
static bool refuse(struct normaliser *n, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static bool refuse(struct normaliser *n, const char *fmt, ...)
{
    char text[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    mx_error(n->err, MTPLX_ERR_ARGUMENT, "messages[%zu]%s", n->i, text);
    return false;
}

static bool no_memory(struct normaliser *n)
{
    mx_error_nomem(n->err, "the messages", 0);
    return false;
}

/* A member that is not null, or NULL. */
static json_t *member(const json_t *object, const char *name)
{
    json_t *v = json_object_get(object, name);
    return json_is_null(v) ? NULL : v;
}

/* Whether v nests at most `depth` levels deep. */
static bool is_shallow(const json_t *v, int depth)
{
    size_t i;
    const char *key;
    json_t *e;
    if (!json_is_object(v) && !json_is_array(v))
        return true;
    if (depth == 0)
        return false;
    json_array_foreach(v, i, e)
    {
        if (!is_shallow(e, depth - 1))
            return false;
    }
    if (json_is_object(v)) {
        json_object_foreach((json_t *)(uintptr_t)v, key, e)
        {
            if (!is_shallow(e, depth - 1))
                return false;
        }
    }
    return true;
}

/* ---- Content ---- */

/* A message being made. */
struct draft {
    const char *role;
    struct mx_strbuf content, reasoning;
    bool has_content, has_reasoning;
};

static void append_part(struct mx_strbuf *b, bool *has, const json_t *text)
{
    if (*has)
        mx_strbuf_putc(b, '\n');
    mx_strbuf_append(b, json_string_value(text), json_string_length(text));
    *has = true;
}

enum part_kind { PART_TEXT, PART_REASONING, PART_MEDIA };

struct part_type {
    const char *type, *field; /* field: what holds the text, or how the kind of media is called */
    enum part_kind kind;
};

static const struct part_type *find_part(const char *type)
{
    static const struct part_type types[] = {
        {"text", "text", PART_TEXT},
        {"input_text", "text", PART_TEXT},
        {"output_text", "text", PART_TEXT},
        {"refusal", "refusal", PART_TEXT},
        {"thinking", "thinking", PART_REASONING},
        {"reasoning", "text", PART_REASONING},
        {"image_url", "images", PART_MEDIA},
        {"input_image", "images", PART_MEDIA},
        {"image", "images", PART_MEDIA},
        {"input_audio", "audio", PART_MEDIA},
        {"audio", "audio", PART_MEDIA},
        {"audio_url", "audio", PART_MEDIA},
        {"video_url", "videos", PART_MEDIA},
        {"input_video", "videos", PART_MEDIA},
        {"video", "videos", PART_MEDIA},
        {"file", "files", PART_MEDIA},
        {"input_file", "files", PART_MEDIA},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(type, types[i].type) == 0)
            return &types[i];
    }
    return NULL;
}

static bool take_part(struct normaliser *n, struct draft *d, const json_t *part, size_t k)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    if (!json_is_object(part))
        return refuse(n, ".content[%zu] must be an object", k);
    if (!type)
        return refuse(n, ".content[%zu].type must be a string", k);
    const struct part_type *t = find_part(type);
    if (!t)
        return refuse(n, ".content[%zu].type '%.60s' is not known: send parts of type 'text'", k,
                      type);
    if (t->kind == PART_MEDIA)
        return refuse(n, ".content[%zu]: this model takes no %s; send text parts only", k,
                      t->field);
    const json_t *text = json_object_get(part, t->field);
    if (!json_is_string(text))
        return refuse(n, ".content[%zu].%s must be a string", k, t->field);
    if (t->kind == PART_TEXT)
        append_part(&d->content, &d->has_content, text);
    else if (strcmp(d->role, "assistant") == 0)
        append_part(&d->reasoning, &d->has_reasoning, text);
    else
        return refuse(n, ".content[%zu].type '%s' belongs to messages of the assistant", k, type);
    return true;
}

static bool take_content(struct normaliser *n, struct draft *d, const json_t *m)
{
    const json_t *content = member(m, "content");
    bool optional = strcmp(d->role, "assistant") == 0 || strcmp(d->role, "tool") == 0;
    size_t k;
    json_t *part;
    if (!content && optional)
        content = member(m, "refusal");
    if (!content)
        return optional || refuse(n, ".content must be a string or an array of parts");
    if (!json_is_string(content) && !json_is_array(content))
        return refuse(n, ".content must be a string or an array of parts");
    if (json_is_string(content))
        append_part(&d->content, &d->has_content, content);
    json_array_foreach(content, k, part)
    {
        if (!take_part(n, d, part, k))
            return false;
    }
    return true;
}

/* ---- Reasoning ---- */

static void on_part(void *arg, enum mx_answer_part part, const char *text, size_t len)
{
    struct mx_strbuf *parts = arg;
    mx_strbuf_append(&parts[part], text, len);
}

/* Takes reasoning off the start of the content, if it is there between tags. */
static void split_content(struct draft *d, enum mx_reasoning_style style)
{
    struct mx_strbuf parts[2];
    struct mx_reasoning r;
    mx_strbuf_init(&parts[0], 0);
    mx_strbuf_init(&parts[1], 0);
    mx_reasoning_init(&r, style, "", 0, on_part, parts);
    if (!mx_reasoning_push(&r, d->content.data, d->content.len))
        d->content.failed = true;
    bool open = mx_reasoning_inside(&r);
    mx_reasoning_finish(&r);
    mx_reasoning_free(&r);
    d->content.failed |= parts[0].failed || parts[1].failed;
    if (!open && parts[1].len < d->content.len && !d->content.failed) {
        struct mx_strbuf content = d->content, reasoning = d->reasoning;
        d->content = parts[1];
        d->reasoning = parts[0];
        d->has_reasoning = parts[0].len > 0;
        parts[0] = content;
        parts[1] = reasoning;
    }
    mx_strbuf_free(&parts[0]);
    mx_strbuf_free(&parts[1]);
}

static bool take_reasoning(struct normaliser *n, struct draft *d, const json_t *m)
{
    static const char *const fields[] = {"reasoning_content", "reasoning", "thinking"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const json_t *text = member(m, fields[i]);
        if (text && !json_is_string(text))
            return refuse(n, ".%s must be a string", fields[i]);
        if (json_string_length(text) > 0 && !d->has_reasoning)
            append_part(&d->reasoning, &d->has_reasoning, text);
    }
    if (!d->has_reasoning && d->has_content && d->content.len > 0 &&
        n->o->style != MX_REASONING_NONE)
        split_content(d, n->o->style);
    return true;
}

/* ---- Tool calls ---- */

/* Arguments as an object, a new reference; NULL when memory is out. */
static json_t *make_arguments(const json_t *args)
{
    if (!args)
        return json_object();
    if (json_is_object(args))
        return json_incref((json_t *)(uintptr_t)args);
    const char *s = json_string_value(args);
    size_t len = json_string_length(args);
    while (len > 0 && strchr(" \t\r\n", s[len - 1]) && s[len - 1])
        len--;
    if (len == 0)
        return json_object();
    json_t *v = json_loadb(s, len, JSON_ALLOW_NUL, NULL);
    if (json_is_object(v))
        return v;
    json_decref(v);
    return json_pack("{s:O}", "arguments", (json_t *)(uintptr_t)args);
}

/* The call {name, arguments} with its id, as a new object; `where` is its place in the message. */
static json_t *make_call(struct normaliser *n, const json_t *f, const json_t *id, const char *where)
{
    const json_t *name = json_object_get(f, "name"), *args = member(f, "arguments");
    if (json_string_length(name) == 0) {
        refuse(n, "%s.name must be a string that is not empty", where);
        return NULL;
    }
    if (args && !json_is_string(args) && !json_is_object(args)) {
        refuse(n, "%s.arguments must be a string that holds a JSON object", where);
        return NULL;
    }
    json_t *arguments = make_arguments(args);
    int depth = n->o->max_depth > 0 ? n->o->max_depth : DEFAULT_DEPTH;
    if (arguments && !is_shallow(arguments, depth)) {
        json_decref(arguments);
        mx_error(n->err, MTPLX_ERR_LIMIT,
                 "messages[%zu]%s.arguments nests more than %d levels deep", n->i, where, depth);
        return NULL;
    }
    json_t *call = json_pack("{s:s,s:{s:O,s:o}}", "type", "function", "function", "name", name,
                             "arguments", arguments);
    bool ok =
        call &&
        (!id || (json_object_set(call, "id", (json_t *)(uintptr_t)id) == 0 &&
                 json_object_set(n->names, json_string_value(id), (json_t *)(uintptr_t)name) == 0));
    if (ok)
        return call;
    json_decref(call);
    no_memory(n);
    return NULL;
}

static json_t *take_call(struct normaliser *n, const json_t *call, size_t k)
{
    char where[64];
    const json_t *f = json_object_get(call, "function"), *id = member(call, "id");
    const json_t *type = member(call, "type");
    snprintf(where, sizeof where, ".tool_calls[%zu]", k);
    if (!json_is_object(call))
        refuse(n, "%s must be an object", where);
    else if (type && (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0))
        refuse(n, "%s.type must be 'function'", where);
    else if (id && !json_is_string(id))
        refuse(n, "%s.id must be a string", where);
    else if (f && !json_is_object(f))
        refuse(n, "%s.function must be an object", where);
    else if (!f && !json_object_get(call, "name"))
        refuse(n, "%s.function is missing", where);
    else {
        if (f)
            snprintf(where, sizeof where, ".tool_calls[%zu].function", k);
        return make_call(n, f ? f : call, id, where);
    }
    return NULL;
}

/* The calls of a message as a new list, or NULL; false after an error. */
static bool take_calls(struct normaliser *n, const json_t *m, json_t **out)
{
    const json_t *calls = member(m, "tool_calls"), *old = member(m, "function_call");
    size_t k;
    json_t *e;
    *out = NULL;
    if (calls && !json_is_array(calls))
        return refuse(n, ".tool_calls must be an array");
    if (old && !json_is_object(old))
        return refuse(n, ".function_call must be an object");
    if (json_array_size(calls) == 0 && !old)
        return true;
    *out = json_array();
    json_array_foreach(calls, k, e)
    {
        json_t *call = take_call(n, e, k);
        if (!call)
            return false;
        if (json_array_append_new(*out, call) != 0)
            return no_memory(n);
    }
    if (json_array_size(calls) > 0)
        return *out || no_memory(n);
    json_t *call = make_call(n, old, NULL, ".function_call");
    return call && (json_array_append_new(*out, call) == 0 || no_memory(n));
}

/* ---- Messages ---- */

static const char *role_of(const char *role)
{
    static const char *const roles[][2] = {
        {"system", "system"},       {"developer", "system"}, {"user", "user"},
        {"assistant", "assistant"}, {"tool", "tool"},        {"function", "tool"},
    };
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        if (strcmp(role, roles[i][0]) == 0)
            return roles[i][1];
    }
    return NULL;
}

static bool set(struct normaliser *n, json_t *m, const char *name, json_t *value)
{
    return json_object_set_new(m, name, value) == 0 || no_memory(n);
}

static bool set_text(struct normaliser *n, json_t *m, const char *name, const struct mx_strbuf *b)
{
    if (b->failed)
        return no_memory(n);
    return set(n, m, name, json_stringn(b->data ? b->data : "", b->len));
}

/* `name` of any message, and what a tool message answers. */
static bool take_names(struct normaliser *n, const struct draft *d, const json_t *in, json_t *m)
{
    json_t *name = member(in, "name"), *id = member(in, "tool_call_id");
    bool tool = strcmp(d->role, "tool") == 0;
    if (name && !json_is_string(name))
        return refuse(n, ".name must be a string");
    if (tool && id && !json_is_string(id))
        return refuse(n, ".tool_call_id must be a string");
    if (tool && !name && id)
        name = json_object_get(n->names, json_string_value(id));
    if (name && !set(n, m, "name", json_incref(name)))
        return false;
    return !tool || !id || set(n, m, "tool_call_id", json_incref(id));
}

static bool take_assistant(struct normaliser *n, struct draft *d, const json_t *in, json_t *m)
{
    json_t *calls = NULL;
    bool ok = take_reasoning(n, d, in) && take_calls(n, in, &calls);
    if (!ok) {
        json_decref(calls);
        return false;
    }
    ok = !calls || set(n, m, "tool_calls", calls);
    if (ok && d->has_reasoning && n->o->thinking != MX_THINKING_OFF)
        ok = set_text(n, m, "reasoning_content", &d->reasoning);
    return ok;
}

/* Joins the text to the system message at the start. */
static bool join_system(struct normaliser *n, const struct draft *d)
{
    json_t *m = json_array_get(n->out, 0);
    const json_t *text = json_object_get(m, "content");
    struct mx_strbuf b;
    mx_strbuf_init(&b, 0);
    mx_strbuf_append(&b, json_string_value(text), json_string_length(text));
    if (b.len > 0 && d->content.len > 0)
        mx_strbuf_puts(&b, "\n\n");
    mx_strbuf_append(&b, d->content.data, d->content.len);
    b.failed |= d->content.failed;
    bool ok = set_text(n, m, "content", &b);
    mx_strbuf_free(&b);
    return ok;
}

/* Fills m, a new member of `out`, from what the client sent. */
static bool fill(struct normaliser *n, struct draft *d, const json_t *in, json_t *m)
{
    bool system = strcmp(d->role, "system") == 0;
    const char *role = system && !n->opening && n->o->system_first ? "user" : d->role;
    if (!set(n, m, "role", json_string(role)) || !take_names(n, d, in, m))
        return false;
    if (strcmp(d->role, "assistant") == 0 && !take_assistant(n, d, in, m))
        return false;
    n->opening = n->opening && system;
    if (strcmp(d->role, "user") == 0)
        n->last_user = json_array_size(n->out);
    return set_text(n, m, "content", &d->content);
}

static bool take_draft(struct normaliser *n, struct draft *d, const json_t *in)
{
    if (!take_content(n, d, in))
        return false;
    if (n->opening && json_array_size(n->out) > 0 && strcmp(d->role, "system") == 0)
        return join_system(n, d);
    json_t *m = json_object();
    if (!m)
        return no_memory(n);
    if (!fill(n, d, in, m)) {
        json_decref(m);
        return false;
    }
    return json_array_append_new(n->out, m) == 0 || no_memory(n);
}

static bool take_message(struct normaliser *n, const json_t *in)
{
    const json_t *role = json_object_get(in, "role");
    struct draft d = {0};
    if (!json_is_object(in))
        return refuse(n, " must be an object");
    if (!json_is_string(role))
        return refuse(n, ".role must be a string");
    d.role = role_of(json_string_value(role));
    if (!d.role)
        return refuse(n,
                      ".role '%.60s' is not known: use system, developer, user, assistant or tool",
                      json_string_value(role));
    mx_strbuf_init(&d.content, 0);
    mx_strbuf_init(&d.reasoning, 0);
    bool ok = take_draft(n, &d, in);
    mx_strbuf_free(&d.content);
    mx_strbuf_free(&d.reasoning);
    return ok;
}

/* Takes the reasoning off what stands before the last user message. */
static void scope_reasoning(struct normaliser *n)
{
    for (size_t i = 0; n->last_user != SIZE_MAX && i < n->last_user; i++)
        json_object_del(json_array_get(n->out, i), "reasoning_content");
}

static bool take_all(struct normaliser *n, const json_t *messages)
{
    size_t count = json_array_size(messages);
    size_t most = n->o->max_messages > 0 ? n->o->max_messages : DEFAULT_MESSAGES;
    if (!json_is_array(messages) || count == 0) {
        mx_error(n->err, MTPLX_ERR_ARGUMENT, "messages must be an array of at least one message");
        return false;
    }
    if (count > most) {
        mx_error(n->err, MTPLX_ERR_LIMIT, "messages has %zu members, more than the limit of %zu",
                 count, most);
        return false;
    }
    if (!n->out || !n->names)
        return no_memory(n);
    for (n->i = 0; n->i < count; n->i++) {
        if (!take_message(n, json_array_get(messages, n->i)))
            return false;
    }
    return true;
}

mtplx_status mx_messages_normalise(const json_t *messages, const struct mx_messages_options *o,
                                   json_t **out, mtplx_error *err)
{
    mtplx_error local;
    struct normaliser n = {
        .o = o,
        .err = err ? err : &local,
        .out = json_array(),
        .names = json_object(),
        .opening = true,
        .last_user = SIZE_MAX,
    };
    n.err->status = MTPLX_OK;
    *out = NULL;
    if (take_all(&n, messages)) {
        if (o->thinking == MX_THINKING_SCOPED)
            scope_reasoning(&n);
        *out = json_incref(n.out);
    }
    json_decref(n.out);
    json_decref(n.names);
    return n.err->status;
}

/* ---- Policies and templates ---- */

int mx_thinking_named(const char *name)
{
    static const char *const names[] = {"auto", "on", "off", "scoped"};
    for (int i = 0; i < 4; i++) {
        if (strcmp(name, names[i]) == 0)
            return i;
    }
    return -1;
}

bool mx_thinking_set_kwargs(enum mx_thinking policy, json_t *kwargs)
{
    static const struct {
        const char *name;
        bool keeps; /* its value for keeping */
    } switches[] = {
        {"preserve_thinking", true}, {"clear_thinking", false}, {"drop_thinking", false}};
    bool keep = policy == MX_THINKING_ON || policy == MX_THINKING_SCOPED;
    for (size_t i = 0; policy != MX_THINKING_AUTO && i < 3; i++) {
        if (!json_object_get(kwargs, switches[i].name) &&
            json_object_set_new(kwargs, switches[i].name,
                                json_boolean(keep == switches[i].keeps)) != 0)
            return false;
    }
    return true;
}

bool mx_messages_system_first(const struct mx_chat *c)
{
    static const char word[] = "qzprobe";
    mtplx_error ignored = {0};
    struct mx_strbuf out;
    json_t *messages = json_pack("[{s:s,s:s},{s:s,s:s},{s:s,s:s},{s:s,s:s}]", "role", "user",
                                 "content", "a", "role", "assistant", "content", "b", "role",
                                 "system", "content", word, "role", "user", "content", "c");
    const struct mx_chat_request q = {.messages = messages, .add_generation_prompt = true};
    mx_strbuf_init(&out, 0);
    bool shown = messages && mx_chat_render(c, &q, &out, &ignored) == MTPLX_OK && out.data &&
                 strstr(out.data, word);
    mx_strbuf_free(&out);
    json_decref(messages);
    return !shown;
}
