/* Chat rendering: finds the checkpoint's template, checks a conversation, renders it.
 *
 * What the template sees is what Hugging Face's apply_chat_template() gives it: messages, tools and
 * documents (None when not given), add_generation_prompt, the special tokens and the caller's extra
 * variables. Two things are adapted, because requests come in OpenAI's wire form while templates
 * are written for Python objects:
 *
 *  1. `arguments` of a tool call that are a JSON object in a string become that object. A template
 *     that fails on the object (it concatenates the text) is rendered again with the string.
 *  2. `content` is given in the form the template can take. Which ones those are is found out when
 *     the chat is opened, by rendering one message in each form and looking for its text: lists of
 *     parts are joined (with newlines) for templates that only take strings, and strings become a
 *     list of one text part for those that only take lists. */
#include "text/chat.h"
#include "base/file.h"
#include "text/jinja.h"

#include <stdlib.h>
#include <string.h>

enum content_form { CONTENT_ANY, CONTENT_STRING, CONTENT_PARTS };

struct template
{
    char *source;
    struct mx_jinja *jinja;
    enum content_form form;
};

struct mx_chat {
    struct template main, tool_use; /* tool_use: source NULL when there is none */
    json_t *tokens;                 /* bos_token, eos_token, ...: strings */
};

enum { MAX_JSON = 64 << 20, MAX_TEMPLATE = 4 << 20 };

/* ---- Reading ------------------------------------------------------------------------------ */

/* Contents of dir/name, or NULL: with err OK when there is no such file. */
static char *read_optional(const char *dir, const char *name, size_t max, size_t *len,
                           mtplx_error *err)
{
    char *path = mx_path_join(dir, name), *text = NULL;
    if (!path)
        mx_error_nomem(err, "a path", strlen(dir));
    else if (mx_file_exists(path))
        text = mx_file_read(path, max, len, err);
    free(path);
    return text;
}

static json_t *read_json(const char *dir, const char *name, mtplx_error *err)
{
    size_t len;
    json_error_t je;
    char *text = read_optional(dir, name, MAX_JSON, &len, err);
    if (!text)
        return NULL;
    json_t *json = json_loadb(text, len, 0, &je);
    free(text);
    if (!json)
        mx_error(err, MTPLX_ERR_FORMAT, "%s/%s line %d: %s", dir, name, je.line, je.text);
    else if (!json_is_object(json))
        mx_error(err, MTPLX_ERR_FORMAT, "%s/%s must hold a JSON object", dir, name);
    if (json && !json_is_object(json)) {
        json_decref(json);
        return NULL;
    }
    return json;
}

static bool set_template(struct template *t, const char *source, const char *name, mtplx_error *err)
{
    t->source = strdup(source);
    if (!t->source) {
        mx_error_nomem(err, name, strlen(source));
        return false;
    }
    t->jinja = mx_jinja_parse(source, strlen(source), name, err);
    return t->jinja != NULL;
}

/* The list form: [{"name": "default", "template": "..."}, {"name": "tool_use", ...}]. */
static bool set_named(struct mx_chat *c, const json_t *list, const char *file, mtplx_error *err)
{
    size_t i;
    json_t *e;
    json_array_foreach(list, i, e)
    {
        const char *name = json_string_value(json_object_get(e, "name"));
        const char *source = json_string_value(json_object_get(e, "template"));
        if (!name || !source) {
            mx_error(err, MTPLX_ERR_FORMAT,
                     "%s: chat_template[%zu] must have a name and a template", file, i);
            return false;
        }
        struct template *t = strcmp(name, "default") == 0    ? &c->main
                             : strcmp(name, "tool_use") == 0 ? &c->tool_use
                                                             : NULL;
        if (t && !t->source && !set_template(t, source, file, err))
            return false;
    }
    if (c->main.source || json_array_size(list) == 0)
        return true;
    mx_error(err, MTPLX_ERR_FORMAT, "%s: chat_template has no entry named 'default'", file);
    return false;
}

/* The `chat_template` member of a JSON file, if there is one. */
static bool set_from_json(struct mx_chat *c, const json_t *json, const char *file, mtplx_error *err)
{
    const json_t *t = json_object_get(json, "chat_template");
    if (!t || json_is_null(t))
        return true;
    if (json_is_array(t))
        return set_named(c, t, file, err);
    if (json_is_string(t))
        return set_template(&c->main, json_string_value(t), file, err);
    mx_error(err, MTPLX_ERR_FORMAT, "%s: chat_template must be a string or a list", file);
    return false;
}

/* ---- Special tokens ----------------------------------------------------------------------- */

/* Takes the special tokens of `json` that are not known yet: strings, or objects with `content`. */
static bool take_tokens(json_t *tokens, const json_t *json)
{
    static const char *const names[] = {"bos_token", "eos_token", "pad_token", "unk_token",
                                        "sep_token", "cls_token", "mask_token"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *t = json_object_get(json, names[i]);
        if (json_is_object(t))
            t = json_object_get(t, "content");
        if (json_is_string(t) && !json_object_get(tokens, names[i]) &&
            json_object_set(tokens, names[i], t) != 0)
            return false;
    }
    return true;
}

/* bos_token and eos_token are always strings: templates add them to text without asking. */
static bool default_tokens(json_t *tokens)
{
    static const char *const names[] = {"bos_token", "eos_token"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!json_object_get(tokens, names[i]) &&
            json_object_set_new(tokens, names[i], json_string("")) != 0)
            return false;
    }
    return true;
}

/* ---- What content the template takes ------------------------------------------------------ */

static const char probe_word[] = "qzprobe";

/* Does a conversation of one user message with this content show up in the output as text? */
static bool probe_with(const struct mx_chat *c, const struct template *t, json_t *content,
                       json_t *tools)
{
    const struct mx_jinja_limits limits = {
        .max_output = 1 << 20, .max_memory = 16 << 20, .max_steps = 1000000};
    json_t *globals =
        json_pack("{s:[{s:s,s:O}],s:o,s:n,s:b}", "messages", "role", "user", "content", content,
                  "tools", tools, "documents", "add_generation_prompt", 1);
    struct mx_strbuf out;
    mtplx_error ignored = {0};
    mx_strbuf_init(&out, 0);
    bool shown = globals && json_object_update(globals, c->tokens) == 0 &&
                 mx_jinja_render(t->jinja, globals, &limits, 1, &out, &ignored) == MTPLX_OK &&
                 out.data && strstr(out.data, probe_word) && !strstr(out.data, "'text'") &&
                 !strstr(out.data, "\"text\"");
    mx_strbuf_free(&out);
    json_decref(globals);
    return shown;
}

/* Templates for tool use may fail without a list of tools. */
static bool probe(const struct mx_chat *c, const struct template *t, json_t *content)
{
    bool shown = probe_with(c, t, content, json_null()) || probe_with(c, t, content, json_array());
    json_decref(content);
    return shown;
}

/* Does the source ask what kind of value a content is? */
static bool asks_for_kind(const char *source)
{
    static const char *const questions[] = {
        "content is string",    "content is not string",    "content is iterable",
        "content'] is string",  "content'] is not string",  "content'] is iterable",
        "content\"] is string", "content\"] is not string", "content\"] is iterable",
    };
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) {
        if (strstr(source, questions[i]))
            return true;
    }
    return false;
}

static void find_form(const struct mx_chat *c, struct template *t)
{
    if (!t->jinja)
        return;
    bool parts = probe(c, t, json_pack("[{s:s,s:s}]", "type", "text", "text", probe_word));
    bool string = probe(c, t, json_string(probe_word));
    if (parts && string)
        t->form = CONTENT_ANY;
    else if (parts || string)
        t->form = parts ? CONTENT_PARTS : CONTENT_STRING;
    else /* the template refuses so short a conversation: its source has to tell */
        t->form = asks_for_kind(t->source) ? CONTENT_ANY : CONTENT_STRING;
}

/* ---- Opening ------------------------------------------------------------------------------ */

static bool open_tokens(struct mx_chat *c, const char *dir, const json_t *config, mtplx_error *err)
{
    c->tokens = json_object();
    json_t *map = read_json(dir, "special_tokens_map.json", err);
    bool ok = c->tokens && take_tokens(c->tokens, config) && take_tokens(c->tokens, map) &&
              default_tokens(c->tokens);
    json_decref(map);
    if (!ok)
        mx_error_nomem(err, "special tokens", 0);
    return ok && err->status == MTPLX_OK;
}

static bool open_template(struct mx_chat *c, const char *dir, const json_t *config,
                          mtplx_error *err)
{
    size_t len;
    char *source = read_optional(dir, "chat_template.jinja", MAX_TEMPLATE, &len, err);
    if (source) {
        bool ok = set_template(&c->main, source, "chat_template.jinja", err);
        free(source);
        return ok;
    }
    if (err->status != MTPLX_OK || !set_from_json(c, config, "tokenizer_config.json", err))
        return false;
    if (c->main.source)
        return true;
    json_t *json = read_json(dir, "chat_template.json", err);
    bool ok = err->status == MTPLX_OK && set_from_json(c, json, "chat_template.json", err);
    json_decref(json);
    return ok;
}

struct mx_chat *mx_chat_open(const char *dir, mtplx_error *err)
{
    mtplx_error local;
    err = err ? err : &local;
    err->status = MTPLX_OK;
    struct mx_chat *c = calloc(1, sizeof *c);
    if (!c) {
        mx_error_nomem(err, "a chat template", sizeof *c);
        return NULL;
    }
    json_t *config = read_json(dir, "tokenizer_config.json", err);
    bool ok = err->status == MTPLX_OK && open_tokens(c, dir, config, err) &&
              open_template(c, dir, config, err) && c->main.jinja;
    json_decref(config);
    if (!ok) {
        mx_chat_free(c);
        return NULL;
    }
    find_form(c, &c->main);
    find_form(c, &c->tool_use);
    return c;
}

/* The string of a token that the metadata names by its id. */
static bool gguf_token(json_t *tokens, const struct mx_gguf *g, const char *key, const char *name,
                       mtplx_error *err)
{
    const struct mx_gguf_pair *list;
    int64_t id = -1;
    if (mx_gguf_int(g, key, &id, err) != MTPLX_OK ||
        mx_gguf_strings(g, "tokenizer.ggml.tokens", &list, err) != MTPLX_OK)
        return false;
    if (!list || id < 0 || (uint64_t)id >= list->count)
        return true;
    const uint8_t *at = list->data;
    const char *s = NULL;
    size_t n = 0;
    for (int64_t i = 0; i <= id; i++)
        s = mx_gguf_next_string(&at, &n);
    json_t *text = json_stringn(s, n); /* NULL when not UTF-8, and then there is no such token */
    return !text || json_object_set_new(tokens, name, text) == 0;
}

static bool gguf_chat(struct mx_chat *c, const struct mx_gguf *g, const char *source, size_t len,
                      mtplx_error *err)
{
    c->tokens = json_object();
    if (!gguf_token(c->tokens, g, "tokenizer.ggml.bos_token_id", "bos_token", err) ||
        !gguf_token(c->tokens, g, "tokenizer.ggml.eos_token_id", "eos_token", err) ||
        !default_tokens(c->tokens)) {
        if (err->status == MTPLX_OK)
            mx_error_nomem(err, "special tokens", 0);
        return false;
    }
    char *text = strndup(source, len);
    if (!text)
        mx_error_nomem(err, "a chat template", len);
    bool ok = text && set_template(&c->main, text, "tokenizer.chat_template", err);
    free(text);
    if (!ok)
        mx_error_prefix(err, "%.220s", g->path);
    return ok;
}

struct mx_chat *mx_chat_open_gguf(const struct mx_gguf *g, mtplx_error *err)
{
    mtplx_error local;
    const char *source = NULL;
    size_t len = 0;
    err = err ? err : &local;
    err->status = MTPLX_OK;
    if (mx_gguf_string(g, "tokenizer.chat_template", &source, &len, err) != MTPLX_OK || len == 0)
        return NULL;
    if (len > MAX_TEMPLATE || memchr(source, 0, len)) {
        mx_error(err, MTPLX_ERR_FORMAT,
                 "%.220s: metadata key 'tokenizer.chat_template' is no text of at most %d bytes",
                 g->path, MAX_TEMPLATE);
        return NULL;
    }
    struct mx_chat *c = calloc(1, sizeof *c);
    if (!c)
        mx_error_nomem(err, "a chat template", sizeof *c);
    if (!c || !gguf_chat(c, g, source, len, err)) {
        mx_chat_free(c);
        return NULL;
    }
    find_form(c, &c->main);
    return c;
}

static void free_template(struct template *t)
{
    mx_jinja_free(t->jinja);
    free(t->source);
}

void mx_chat_free(struct mx_chat *c)
{
    if (!c)
        return;
    free_template(&c->main);
    free_template(&c->tool_use);
    json_decref(c->tokens);
    free(c);
}

const char *mx_chat_template_text(const struct mx_chat *c, bool tools)
{
    return tools && c->tool_use.source ? c->tool_use.source : c->main.source;
}

bool mx_chat_mentions(const struct mx_chat *c, const char *word)
{
    return strstr(c->main.source, word) || (c->tool_use.source && strstr(c->tool_use.source, word));
}

/* ---- Checking a request ------------------------------------------------------------------- */

static bool refuse(mtplx_error *err, size_t i, const char *what)
{
    mx_error(err, MTPLX_ERR_ARGUMENT, "messages[%zu]%s", i, what);
    return false;
}

static bool check_parts(const json_t *parts, size_t i, mtplx_error *err)
{
    size_t k;
    json_t *part;
    json_array_foreach(parts, k, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        const char *what = NULL;
        if (!json_is_object(part))
            what = " must be an object";
        else if (!type)
            what = ".type must be a string";
        else if (strcmp(type, "text") == 0 && !json_is_string(json_object_get(part, "text")))
            what = ".text must be a string";
        if (!what)
            continue;
        mx_error(err, MTPLX_ERR_ARGUMENT, "messages[%zu].content[%zu]%s", i, k, what);
        return false;
    }
    return true;
}

static bool check_calls(const json_t *calls, size_t i, mtplx_error *err)
{
    size_t k;
    json_t *call;
    if (!calls || json_is_null(calls))
        return true;
    if (!json_is_array(calls))
        return refuse(err, i, ".tool_calls must be an array");
    json_array_foreach(calls, k, call)
    {
        json_t *f = json_object_get(call, "function");
        const char *what = NULL;
        if (!json_is_object(call))
            what = " must be an object";
        else if (f && !json_is_object(f))
            what = ".function must be an object";
        else if (!json_is_string(json_object_get(f ? f : call, "name")))
            what = f ? ".function.name must be a string" : ".function is missing";
        if (!what)
            continue;
        mx_error(err, MTPLX_ERR_ARGUMENT, "messages[%zu].tool_calls[%zu]%s", i, k, what);
        return false;
    }
    return true;
}

static bool check_message(const json_t *m, size_t i, mtplx_error *err)
{
    if (!json_is_object(m))
        return refuse(err, i, " must be an object");
    if (!json_is_string(json_object_get(m, "role")))
        return refuse(err, i, ".role must be a string");
    const json_t *content = json_object_get(m, "content");
    if (json_is_array(content) && !check_parts(content, i, err))
        return false;
    if (content && !json_is_null(content) && !json_is_string(content) && !json_is_array(content))
        return refuse(err, i, ".content must be a string, null or an array of parts");
    return check_calls(json_object_get(m, "tool_calls"), i, err);
}

static bool check_request(const struct mx_chat_request *q, mtplx_error *err)
{
    static const char *const reserved[] = {"messages", "tools"};
    const char *what = NULL;
    if (!json_is_array(q->messages) || json_array_size(q->messages) == 0)
        what = "messages must be an array of at least one message";
    else if (q->tools && !json_is_null(q->tools) && !json_is_array(q->tools))
        what = "tools must be an array";
    else if (q->kwargs && !json_is_null(q->kwargs) && !json_is_object(q->kwargs))
        what = "the extra variables of a chat template must be an object";
    if (what) {
        mx_error(err, MTPLX_ERR_ARGUMENT, "%s", what);
        return false;
    }
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++) {
        if (!json_object_get(q->kwargs, reserved[i]))
            continue;
        mx_error(err, MTPLX_ERR_ARGUMENT, "'%s' cannot be an extra variable of a chat template",
                 reserved[i]);
        return false;
    }
    for (size_t i = 0; i < json_array_size(q->messages); i++) {
        if (!check_message(json_array_get(q->messages, i), i, err))
            return false;
    }
    return true;
}

/* ---- Adapting messages -------------------------------------------------------------------- */

/* Text parts joined with newlines, as a new string; NULL after an error. */
static json_t *join_parts(const json_t *parts, size_t i, mtplx_error *err)
{
    struct mx_strbuf b;
    size_t k;
    json_t *part;
    mx_strbuf_init(&b, 0);
    json_array_foreach(parts, k, part)
    {
        const json_t *text = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        if (strcmp(type, "text") != 0) {
            mx_error(err, MTPLX_ERR_ARGUMENT,
                     "messages[%zu].content[%zu] is of type '%.60s', but the chat template of this "
                     "model takes only text",
                     i, k, type);
            mx_strbuf_free(&b);
            return NULL;
        }
        if (k > 0)
            mx_strbuf_putc(&b, '\n');
        mx_strbuf_append(&b, json_string_value(text), json_string_length(text));
    }
    json_t *s = b.failed ? NULL : json_stringn(b.data ? b.data : "", b.len);
    if (!s)
        mx_error_nomem(err, "a message", b.len);
    mx_strbuf_free(&b);
    return s;
}

/* The content in the form the template takes, when it is not in it already. False after an error;
 * *out stays NULL when nothing has to change. */
static bool adapt_content(const json_t *content, enum content_form form, size_t i, json_t **out,
                          mtplx_error *err)
{
    if (form == CONTENT_STRING && json_is_array(content)) {
        *out = join_parts(content, i, err);
        return *out != NULL;
    }
    if (form == CONTENT_PARTS && json_is_string(content)) {
        *out = json_pack("[{s:s,s:s%}]", "type", "text", "text", json_string_value(content),
                         json_string_length(content));
        if (!*out)
            mx_error_nomem(err, "a message", json_string_length(content));
        return *out != NULL;
    }
    return true;
}

/* A tool call whose arguments are an object in a string, with the object; NULL when it is not. */
static json_t *adapt_call(const json_t *call)
{
    const json_t *f = json_object_get(call, "function"), *holder = f ? f : call;
    const json_t *args = json_object_get(holder, "arguments");
    if (!json_is_string(args))
        return NULL;
    json_t *object = json_loadb(json_string_value(args), json_string_length(args), 0, NULL);
    if (!json_is_object(object)) {
        json_decref(object);
        return NULL;
    }
    json_t *copy = json_copy((json_t *)(uintptr_t)call), *inner = copy;
    if (f) {
        inner = json_copy((json_t *)(uintptr_t)f);
        if (json_object_set(copy, "function", inner) != 0) {
            json_decref(copy);
            copy = NULL;
        }
    }
    if (json_object_set_new(inner, "arguments", object) != 0 && copy) {
        json_decref(copy);
        copy = NULL;
    }
    if (f)
        json_decref(inner);
    return copy;
}

/* A copy of the list of calls with objects as arguments; NULL when no call changes. */
static json_t *adapt_calls(const json_t *calls)
{
    json_t *copy = NULL;
    for (size_t k = 0; k < json_array_size(calls); k++) {
        json_t *call = adapt_call(json_array_get(calls, k));
        if (call && !copy)
            copy = json_copy((json_t *)(uintptr_t)calls);
        if (call)
            json_array_set_new(copy, k, call);
    }
    return copy;
}

/* What to render: messages that change are copies, the others are shared with the request. */
struct adapted {
    json_t *messages;
    bool calls_changed;
};

/* Puts a changed member into message i, which is copied first (once). */
static bool replace_member(struct adapted *a, size_t i, bool *copied, const char *name,
                           json_t *value)
{
    json_t *m = json_array_get(a->messages, i);
    if (!*copied) {
        m = json_copy(m);
        if (!m || json_array_set_new(a->messages, i, m) != 0) {
            json_decref(value);
            return false;
        }
        *copied = true;
    }
    return json_object_set_new(m, name, value) == 0;
}

static bool adapt_message(struct adapted *a, size_t i, enum content_form form, bool calls,
                          mtplx_error *err)
{
    const json_t *m = json_array_get(a->messages, i);
    json_t *content = NULL, *list = NULL;
    bool copied = false;
    if (!adapt_content(json_object_get(m, "content"), form, i, &content, err))
        return false;
    if (calls)
        list = adapt_calls(json_object_get(m, "tool_calls"));
    a->calls_changed |= list != NULL;
    bool ok = (!content || replace_member(a, i, &copied, "content", content));
    if (list)
        ok = replace_member(a, i, &copied, "tool_calls", list) && ok;
    if (!ok)
        mx_error_nomem(err, "messages", 0);
    return ok;
}

static bool adapt(const json_t *messages, enum content_form form, bool calls, struct adapted *a,
                  mtplx_error *err)
{
    /* json_copy() takes a non-const pointer but only adds references to the members. */
    *a = (struct adapted){.messages = json_copy((json_t *)(uintptr_t)messages)};
    if (!a->messages) {
        mx_error_nomem(err, "messages", 0);
        return false;
    }
    for (size_t i = 0; i < json_array_size(a->messages); i++) {
        if (!adapt_message(a, i, form, calls, err))
            return false;
    }
    return true;
}

/* ---- Rendering ---------------------------------------------------------------------------- */

static json_t *make_globals(const struct mx_chat *c, const struct mx_chat_request *q,
                            json_t *messages)
{
    bool tools = json_is_array(q->tools);
    json_t *g = json_copy(c->tokens);
    json_t *tool_list = tools ? json_incref((json_t *)(uintptr_t)q->tools) : json_null();
    bool ok = g && json_object_set_new(g, "documents", json_null()) == 0 &&
              json_object_set_new(g, "add_generation_prompt",
                                  json_boolean(q->add_generation_prompt)) == 0;
    if (ok && json_is_object(q->kwargs))
        ok = json_object_update(g, (json_t *)(uintptr_t)q->kwargs) == 0;
    ok = ok && json_object_set(g, "messages", messages) == 0 &&
         json_object_set(g, "tools", tool_list) == 0;
    json_decref(tool_list);
    if (ok)
        return g;
    json_decref(g);
    return NULL;
}

/* One rendering; *again tells that it failed in a way the other form of arguments may cure. */
static mtplx_status render(const struct mx_chat *c, const struct mx_chat_request *q, bool calls,
                           bool *again, struct mx_strbuf *out, mtplx_error *err)
{
    const struct template *t =
        json_array_size(q->tools) > 0 && c->tool_use.jinja ? &c->tool_use : &c->main;
    struct adapted a;
    *again = false;
    if (!adapt(q->messages, t->form, calls, &a, err)) {
        json_decref(a.messages);
        return err->status;
    }
    json_t *globals = make_globals(c, q, a.messages);
    if (!globals)
        mx_error_nomem(err, "messages", 0);
    else if (mx_jinja_render(t->jinja, globals, NULL, 0, out, err) == MTPLX_ERR_FORMAT)
        *again = a.calls_changed;
    json_decref(globals);
    json_decref(a.messages);
    return err->status;
}

mtplx_status mx_chat_render(const struct mx_chat *c, const struct mx_chat_request *r,
                            struct mx_strbuf *out, mtplx_error *err)
{
    mtplx_error local, second = {0};
    err = err ? err : &local;
    err->status = MTPLX_OK;
    if (!check_request(r, err))
        return err->status;
    size_t start = out->len;
    bool again;
    if (render(c, r, true, &again, out, err) == MTPLX_OK || !again)
        return err->status;
    out->len = start;
    if (out->data)
        out->data[start] = '\0';
    if (render(c, r, false, &again, out, &second) == MTPLX_OK)
        err->status = MTPLX_OK;
    return err->status; /* the first error is the one that tells something */
}
