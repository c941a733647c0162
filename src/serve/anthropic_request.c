/* Messages API: the body of a request into a turn.
 *
 *   1. Order is kept. Results of tools become messages of their own in their place among the blocks
 *      of a user message; neighbours of one role become one turn, as the API documents.
 *   2. What the model said before is given back as it was said: thinking, text and calls go into
 *      the fields that chat templates read, so that a prompt extends the one before it.
 *   3. Nothing is dropped in silence that the answer depends on: what cannot be read (images, files
 *      behind an address) is an error that names the block; hints (cache_control, citations) and
 *      tools that only Anthropic's servers run are counted. */
#include "serve/anthropic_int.h"
#include "serve/chat_build.h"
#include "serve/fields.h"
#include "serve/openai_params.h"
#include "serve/stops.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { PLACE = 128, MAX_TOOLS = 1024, MAX_NAME = 256, MAX_BLOCKS = 100000 };

struct reader {
    struct mx_chat_build build;
    struct mx_messages_request *r;
    struct mx_api_error *e;
};

static bool fail_at(struct mx_api_error *e, const char *path, const char *what)
{
    return mx_api_fail(e, 400, path, "%s: %s", path, what);
}

static bool is(const char *type, const char *name)
{
    return strcmp(type, name) == 0;
}

/* A string that has to be there. */
static bool need_string(const struct mx_fields *f, const char *name, size_t max, const char **out)
{
    return mx_field_need(f, name) && mx_field_string(f, name, max, out);
}

/* An element of an array as an object with a `type`. */
static bool open_block(struct mx_fields *f, const json_t *block, const char **type)
{
    if (!json_is_object(block))
        return fail_at(f->e, f->path, "must be an object with a type");
    f->o = block;
    return need_string(f, "type", MAX_NAME, type);
}

/* ---- Text in blocks ----------------------------------------------------------------------- */

static void add_line(struct mx_strbuf *out, const char *s)
{
    if (!s || !*s)
        return;
    if (out->len > 0 && out->data[out->len - 1] != '\n')
        mx_strbuf_putc(out, '\n');
    mx_strbuf_puts(out, s);
}

static bool flat_content(const struct mx_fields *f, const char *name, int depth,
                         struct mx_strbuf *out);

/* Title and text of a document whose source is text. */
static bool flat_document(const struct mx_fields *f, int depth, struct mx_strbuf *out)
{
    const char *title = NULL, *context = NULL, *type = NULL, *data = NULL;
    const json_t *source = NULL;
    char path[PLACE];
    snprintf(path, sizeof path, "%.80s.source", f->path);
    if (!mx_field_string(f, "title", SIZE_MAX, &title) ||
        !mx_field_string(f, "context", SIZE_MAX, &context) || !mx_field_need(f, "source") ||
        !mx_field_object(f, "source", &source))
        return false;
    const struct mx_fields s = {source, path, f->e};
    if (!need_string(&s, "type", MAX_NAME, &type))
        return false;
    add_line(out, title);
    add_line(out, context);
    if (is(type, "content"))
        return flat_content(&s, "content", depth + 1, out);
    if (!is(type, "text"))
        return fail_at(f->e, path,
                       "only documents of type text are read here; send the document's "
                       "text instead of a file");
    if (!need_string(&s, "data", SIZE_MAX, &data))
        return false;
    add_line(out, data);
    return true;
}

static bool flat_search_result(const struct mx_fields *f, int depth, struct mx_strbuf *out)
{
    const char *title = NULL, *source = NULL;
    if (!mx_field_string(f, "title", SIZE_MAX, &title) ||
        !mx_field_string(f, "source", SIZE_MAX, &source))
        return false;
    add_line(out, title);
    add_line(out, source);
    return flat_content(f, "content", depth + 1, out);
}

/* One block that stands for text: text, document, search_result, tool_reference. */
static bool flat_block(const struct mx_fields *f, const char *type, int depth,
                       struct mx_strbuf *out)
{
    const char *s = NULL;
    if (depth > 2)
        return fail_at(f->e, f->path, "blocks are nested too deeply");
    if (is(type, "document"))
        return flat_document(f, depth, out);
    if (is(type, "search_result"))
        return flat_search_result(f, depth, out);
    if (is(type, "image"))
        return fail_at(f->e, f->path, "images are not supported: this server reads text only");
    if (!is(type, "text") && !is(type, "tool_reference"))
        return mx_api_fail(f->e, 400, f->path, "%s: blocks of type '%.60s' are not supported here",
                           f->path, type);
    if (!need_string(f, is(type, "text") ? "text" : "tool_name", SIZE_MAX, &s))
        return false;
    add_line(out, s);
    return true;
}

/* A member that is a string or an array of blocks, joined into one text. */
static bool flat_content(const struct mx_fields *f, const char *name, int depth,
                         struct mx_strbuf *out)
{
    const json_t *content = json_object_get(f->o, name), *block;
    char path[PLACE];
    size_t i;
    if (!content || json_is_null(content))
        return true;
    if (json_is_string(content)) {
        add_line(out, json_string_value(content));
        return true;
    }
    if (!json_is_array(content))
        return mx_api_fail(f->e, 400, name, "%s.%s must be a string or an array of blocks", f->path,
                           name);
    for (i = 0; i < json_array_size(content); i++) {
        const char *type = NULL;
        block = json_array_get(content, i);
        snprintf(path, sizeof path, "%.70s.%s[%zu]", f->path, name, i);
        struct mx_fields inner = {NULL, path, f->e};
        if (!open_block(&inner, block, &type) || !flat_block(&inner, type, depth, out))
            return false;
    }
    return true;
}

/* ---- Blocks of messages ------------------------------------------------------------------- */

/* The model has to see that a tool failed, and most tools say so themselves. */
static bool says_error(const char *s)
{
    return strncmp(s, "Error", 5) == 0 || strncmp(s, "error", 5) == 0 ||
           strncmp(s, "<tool_use_error>", 16) == 0;
}

static bool read_result(struct reader *rd, const struct mx_fields *f)
{
    struct mx_strbuf text;
    const char *id = NULL;
    bool failed = false;
    mx_strbuf_init(&text, 0);
    mx_strbuf_puts(&text, "");
    bool ok = need_string(f, "tool_use_id", MAX_NAME, &id) &&
              mx_field_bool(f, "is_error", &failed) && flat_content(f, "content", 1, &text);
    if (ok && failed && !says_error(text.data ? text.data : "")) {
        struct mx_strbuf marked;
        mx_strbuf_init(&marked, 0);
        mx_strbuf_puts(&marked, "Error: ");
        mx_strbuf_append(&marked, text.data, text.len);
        mx_strbuf_free(&text);
        text = marked;
    }
    if (ok) {
        rd->build.failed |= text.failed;
        mx_chat_build_result(&rd->build, id, text.data, text.len);
    }
    mx_strbuf_free(&text);
    return ok;
}

static bool read_tool_use(struct reader *rd, const struct mx_fields *f)
{
    const char *id = NULL, *name = NULL;
    const json_t *input = NULL;
    if (!need_string(f, "id", MAX_NAME, &id) || !need_string(f, "name", MAX_NAME, &name) ||
        !mx_field_need(f, "input") || !mx_field_object(f, "input", &input))
        return false;
    char *arguments = json_dumps(input, JSON_COMPACT);
    if (arguments)
        mx_chat_build_call(&rd->build, id, name, arguments);
    else
        rd->build.failed = true;
    free(arguments);
    return true;
}

/* Text, thinking and calls of an assistant turn. What Anthropic's own tools left in a history
 * (server_tool_use and its results) has no meaning for other models. */
static bool read_assistant_block(struct reader *rd, const struct mx_fields *f, const char *type)
{
    const char *s = NULL;
    mx_chat_build_role(&rd->build, MX_CHAT_ASSISTANT);
    if (is(type, "text")) {
        if (!need_string(f, "text", SIZE_MAX, &s))
            return false;
        mx_chat_build_text(&rd->build, s, strlen(s));
        return true;
    }
    if (is(type, "thinking")) {
        if (!need_string(f, "thinking", SIZE_MAX, &s))
            return false;
        mx_chat_build_reasoning(&rd->build, s, strlen(s));
        return true;
    }
    if (is(type, "tool_use"))
        return read_tool_use(rd, f);
    const char *tail = strstr(type, "_tool_result");
    if (is(type, "redacted_thinking") || is(type, "server_tool_use") || is(type, "fallback") ||
        (tail && is(tail, "_tool_result"))) {
        rd->r->ignored++;
        return true;
    }
    return mx_api_fail(f->e, 400, f->path,
                       "%s: a block of type '%.60s' cannot stand in an assistant message", f->path,
                       type);
}

static bool read_user_block(struct reader *rd, const struct mx_fields *f, const char *type,
                            enum mx_chat_role role)
{
    struct mx_strbuf text;
    if (is(type, "tool_result"))
        return read_result(rd, f);
    if (is(type, "tool_use") || is(type, "thinking"))
        return mx_api_fail(f->e, 400, f->path,
                           "%s: a block of type '%.60s' can only stand in an assistant message",
                           f->path, type);
    mx_strbuf_init(&text, 0);
    bool ok = flat_block(f, type, 0, &text);
    if (ok) {
        mx_chat_build_role(&rd->build, role);
        mx_chat_build_text(&rd->build, text.len ? text.data : "", text.len);
        rd->build.failed |= text.failed;
    }
    mx_strbuf_free(&text);
    return ok;
}

static bool read_blocks(struct reader *rd, const json_t *content, const char *at,
                        enum mx_chat_role role)
{
    char path[PLACE];
    for (size_t i = 0; i < json_array_size(content); i++) {
        struct mx_fields f = {NULL, path, rd->e};
        const char *type = NULL;
        snprintf(path, sizeof path, "%.60s.content[%zu]", at, i);
        if (!open_block(&f, json_array_get(content, i), &type))
            return false;
        bool ok = role == MX_CHAT_ASSISTANT ? read_assistant_block(rd, &f, type)
                                            : read_user_block(rd, &f, type, role);
        if (!ok)
            return false;
    }
    return true;
}

static bool read_message(struct reader *rd, const json_t *m, size_t i)
{
    static const enum mx_chat_role roles[] = {MX_CHAT_USER, MX_CHAT_ASSISTANT, MX_CHAT_SYSTEM};
    char path[PLACE];
    int which = 0;
    snprintf(path, sizeof path, "messages[%zu]", i);
    const struct mx_fields f = {m, path, rd->e};
    if (!json_is_object(m))
        return fail_at(rd->e, path, "must be an object with role and content");
    if (!mx_field_need(&f, "role") || !mx_field_choice(&f, "role", "user assistant system", &which))
        return false;
    const json_t *content = json_object_get(m, "content");
    if (json_array_size(content) > 0)
        return read_blocks(rd, content, path, roles[which]);
    if (!json_is_string(content) && !json_is_array(content))
        return mx_api_fail(rd->e, 400, path, "%s.content must be a string or an array of blocks",
                           path);
    mx_chat_build_role(&rd->build, roles[which]);
    const char *text = json_is_string(content) ? json_string_value(content) : "";
    mx_chat_build_text(&rd->build, text, strlen(text));
    return true;
}

/* ---- System and messages ------------------------------------------------------------------ */

/* One system message of all blocks. */
static bool read_system(struct reader *rd, const json_t *body)
{
    const json_t *system = json_object_get(body, "system");
    const struct mx_fields f = {body, "", rd->e};
    char path[PLACE];
    if (!system || json_is_null(system))
        return true;
    mx_chat_build_role(&rd->build, MX_CHAT_SYSTEM);
    if (json_is_string(system)) {
        if (json_string_length(system) > 0)
            mx_chat_build_text(&rd->build, json_string_value(system), json_string_length(system));
        return true;
    }
    if (!json_is_array(system))
        return mx_api_fail(f.e, 400, "system",
                           "system must be a string or an array of text blocks");
    for (size_t i = 0; i < json_array_size(system); i++) {
        struct mx_fields block = {NULL, path, rd->e};
        const char *type = NULL, *text = NULL;
        snprintf(path, sizeof path, "system[%zu]", i);
        if (!open_block(&block, json_array_get(system, i), &type))
            return false;
        if (!is(type, "text"))
            return fail_at(rd->e, path, "only text blocks can stand in the system prompt");
        if (!need_string(&block, "text", SIZE_MAX, &text))
            return false;
        mx_chat_build_text(&rd->build, text, strlen(text));
    }
    return true;
}

/* An assistant message at the end is a beginning that the model goes on with; one without text is
 * none. */
static bool read_ending(struct mx_messages_request *r, struct mx_api_error *e)
{
    size_t n = json_array_size(r->messages);
    const json_t *last = json_array_get(r->messages, n - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    const char *text = json_string_value(json_object_get(last, "content"));
    if (!role || !is(role, "assistant"))
        return true;
    if (json_object_get(last, "tool_calls"))
        return mx_api_fail(e, 400, "messages",
                           "messages end with a tool_use block; its tool_result must follow in a "
                           "user message");
    r->turn.continue_final = text[strspn(text, " \t\r\n")] != '\0';
    if (r->turn.continue_final)
        return true;
    json_array_remove(r->messages, n - 1);
    return n > 1 || mx_api_fail(e, 400, "messages", "messages hold no user message to answer");
}

static bool read_messages(const json_t *body, struct mx_messages_request *r, struct mx_api_error *e)
{
    struct reader rd = {.r = r, .e = e};
    const struct mx_fields f = {body, "", e};
    const json_t *list = NULL;
    if (!mx_field_need(&f, "messages") || !mx_field_array(&f, "messages", MAX_BLOCKS, &list))
        return false;
    if (json_array_size(list) == 0)
        return mx_api_fail(e, 400, "messages", "messages must hold at least one message");
    mx_chat_build_init(&rd.build);
    bool ok = read_system(&rd, body);
    for (size_t i = 0; ok && i < json_array_size(list); i++)
        ok = read_message(&rd, json_array_get(list, i), i);
    if (ok) {
        r->messages = mx_chat_build_finish(&rd.build);
        ok = r->messages || mx_api_fail(e, 500, NULL, "out of memory for the messages");
    }
    mx_chat_build_free(&rd.build);
    r->turn.messages = r->messages;
    return ok && read_ending(r, e);
}

/* ---- Tools -------------------------------------------------------------------------------- */

static bool add_tool(const struct mx_fields *f, json_t *tools)
{
    const char *name = NULL, *description = NULL;
    const json_t *schema = NULL;
    bool strict = false;
    if (!need_string(f, "name", MAX_NAME, &name) ||
        !mx_field_string(f, "description", SIZE_MAX, &description) ||
        !mx_field_need(f, "input_schema") || !mx_field_object(f, "input_schema", &schema) ||
        !mx_field_bool(f, "strict", &strict))
        return false;
    if (!*name)
        return fail_at(f->e, f->path, "name is empty");
    json_t *function =
        json_pack("{s:s,s:s*,s:O}", "name", name, "description", description, "parameters", schema);
    if (function && strict)
        json_object_set_new(function, "strict", json_true());
    json_t *tool = json_pack("{s:s,s:o}", "type", "function", "function", function);
    if (!tool || json_array_append_new(tools, tool) != 0)
        return mx_api_fail(f->e, 500, NULL, "out of memory for the tools");
    return true;
}

/* Tools with a type of their own (web_search_..., computer_...) have no schema and are run by
 * Anthropic's servers or known by heart to its models; clients send them along with others, and
 * work without. */
static bool read_tools(const struct mx_fields *f, struct mx_messages_request *r)
{
    const json_t *list = NULL;
    char path[PLACE];
    if (!mx_field_array(f, "tools", MAX_TOOLS, &list))
        return false;
    if (!list)
        return true;
    r->tools = json_array();
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *tool = json_array_get(list, i);
        const char *type = NULL;
        snprintf(path, sizeof path, "tools[%zu]", i);
        const struct mx_fields t = {tool, path, f->e};
        if (!json_is_object(tool))
            return fail_at(f->e, path, "must be an object with name and input_schema");
        if (!mx_field_string(&t, "type", MAX_NAME, &type))
            return false;
        if (type && !is(type, "custom"))
            r->ignored++;
        else if (!add_tool(&t, r->tools))
            return false;
    }
    r->turn.tools = json_array_size(r->tools) > 0 ? r->tools : NULL;
    return true;
}

static bool has_tool(const json_t *tools, const char *name)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *f = json_object_get(json_array_get(tools, i), "function");
        if (is(json_string_value(json_object_get(f, "name")), name))
            return true;
    }
    return false;
}

static bool read_tool_choice(const struct mx_fields *body, struct mx_messages_request *r)
{
    static const enum mx_tool_choice choices[] = {MX_TOOL_CHOICE_AUTO, MX_TOOL_CHOICE_REQUIRED,
                                                  MX_TOOL_CHOICE_NAMED, MX_TOOL_CHOICE_NONE};
    struct mx_fields f = {NULL, "tool_choice", body->e};
    bool single = false;
    int which = 0;
    r->turn.parallel_tool_calls = true;
    if (!mx_field_object(body, "tool_choice", &f.o))
        return false;
    if (!f.o)
        return true;
    if (!mx_field_need(&f, "type") || !mx_field_choice(&f, "type", "auto any tool none", &which) ||
        !mx_field_bool(&f, "disable_parallel_tool_use", &single))
        return false;
    r->turn.tool_choice = choices[which];
    r->turn.parallel_tool_calls = !single;
    if (choices[which] == MX_TOOL_CHOICE_REQUIRED && !r->turn.tools)
        return fail_at(f.e, "tool_choice", "type 'any' needs at least one tool in tools");
    if (choices[which] != MX_TOOL_CHOICE_NAMED)
        return true;
    if (!need_string(&f, "name", MAX_NAME, &r->turn.tool_name))
        return false;
    if (!has_tool(r->tools, r->turn.tool_name))
        return mx_api_fail(f.e, 400, "tool_choice.name",
                           "tool_choice.name: no tool '%.100s' in "
                           "tools",
                           r->turn.tool_name);
    return true;
}

/* ---- Settings ----------------------------------------------------------------------------- */

static bool read_thinking(const struct mx_fields *body, struct mx_messages_request *r)
{
    static const enum mx_tristate states[] = {MX_ON, MX_OFF, MX_ON};
    struct mx_fields f = {NULL, "thinking", body->e};
    int which = 0, display = 0;
    int64_t budget = 0;
    if (!mx_field_object(body, "thinking", &f.o))
        return false;
    if (!f.o)
        return true;
    if (!mx_field_need(&f, "type") ||
        !mx_field_choice(&f, "type", "enabled disabled adaptive", &which) ||
        !mx_field_int(&f, "budget_tokens", 0, INT_MAX, &budget) ||
        !mx_field_choice(&f, "display", "summarized omitted", &display))
        return false;
    r->turn.thinking = states[which];
    r->hide_thinking = display == 1;
    return true;
}

/* {"type": "json_schema", "schema": ..}: output_config.format, and output_format of the time when
 * it was a beta feature. */
static bool read_format(const struct mx_fields *parent, const char *name, const char *path,
                        struct mx_messages_request *r)
{
    struct mx_fields f = {NULL, path, parent->e};
    int which = 0;
    if (!mx_field_object(parent, name, &f.o))
        return false;
    if (!f.o)
        return true;
    if (!mx_field_need(&f, "type") || !mx_field_choice(&f, "type", "json_schema", &which) ||
        !mx_field_need(&f, "schema") || !mx_field_object(&f, "schema", &r->turn.schema))
        return false;
    r->turn.format = MX_FORMAT_SCHEMA;
    return true;
}

static bool read_output_config(const struct mx_fields *body, struct mx_messages_request *r)
{
    static const char *const efforts[] = {"low", "medium", "high", "xhigh", "max"};
    struct mx_fields f = {NULL, "output_config", body->e};
    int effort = -1;
    if (!read_format(body, "output_format", "output_format", r) ||
        !mx_field_object(body, "output_config", &f.o))
        return false;
    if (!f.o)
        return true;
    if (!mx_field_choice(&f, "effort", "low medium high xhigh max", &effort) ||
        !read_format(&f, "format", "output_config.format", r))
        return false;
    if (effort >= 0)
        r->turn.reasoning_effort = efforts[effort];
    return true;
}

static bool read_stops(const struct mx_fields *f, struct mx_messages_request *r)
{
    const json_t *list = NULL;
    if (!mx_field_array(f, "stop_sequences", MX_TURN_STOPS, &list))
        return false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *s = json_array_get(list, i);
        size_t n = json_string_length(s); /* 0: also when it is no string */
        if (n == 0 || n > MX_STOP_LEN_MAX)
            return mx_api_fail(f->e, 400, "stop_sequences",
                               "stop_sequences[%zu] must be a string of 1 to %d bytes", i,
                               MX_STOP_LEN_MAX);
        r->turn.stop[r->turn.n_stop++] = json_string_value(s);
    }
    return true;
}

static bool read_sampling(const struct mx_fields *f, struct mx_messages_request *r)
{
    mtplx_sampling *s = &r->turn.gen.sampling;
    double top_p = -1;
    int64_t top_k = s->top_k;
    if (!mx_field_number(f, "temperature", 0, 1, &s->temperature) ||
        !mx_field_number(f, "top_p", 0, 1, &top_p) || !mx_field_int(f, "top_k", 0, INT_MAX, &top_k))
        return false;
    if (top_p >= 0)
        s->top_p = top_p > 1e-6 ? top_p : 1e-6; /* 0: the likeliest token alone, not "off" */
    s->top_k = (int)top_k;
    return true;
}

/* Who asks: clients put an id of the conversation, or of their user, into metadata.user_id. Claude
 * Code ends it with "_session_<id>", or writes an object with session_id into the string. */
static bool read_metadata(const struct mx_fields *body, struct mx_messages_request *r)
{
    struct mx_fields f = {NULL, "metadata", body->e};
    const char *user = NULL;
    if (!mx_field_object(body, "metadata", &f.o))
        return false;
    if (f.o && !mx_field_string(&f, "user_id", 4096, &user))
        return false;
    if (!user || !*user)
        return true;
    r->user = *user == '{' ? json_loads(user, 0, NULL) : NULL;
    const char *inside = json_string_value(json_object_get(r->user, "session_id"));
    const char *behind = strstr(user, "_session_");
    r->turn.session = inside ? inside : behind ? behind + strlen("_session_") : user;
    return true;
}

static bool read_limits(const struct mx_fields *f, bool counting, struct mx_messages_request *r)
{
    int64_t max = 0;
    if ((!counting && !mx_field_need(f, "max_tokens")) ||
        !mx_field_int(f, "max_tokens", 1, INT64_MAX, &max) ||
        !mx_field_bool(f, "stream", &r->stream))
        return false;
    r->turn.gen.max_tokens = max > INT_MAX ? INT_MAX : (int)max;
    return true;
}

/* Conversations that the server holds: clients send the rest of one, or all of it when they are
 * told so in these words. Answering the rest alone would be an answer to something else. */
static bool refuse_thread(const struct mx_fields *f)
{
    const json_t *thread = json_object_get(f->o, "thread");
    if (!thread || json_is_null(thread))
        return true;
    mx_api_fail(f->e, 400, "thread",
                "thread: this server holds no conversations; send all messages without it");
    f->e->details = json_pack("{s:{s:s,s:[s]}}", "details", "error_code",
                              "thread_unsupported_request", "unsupported", "thread");
    return false;
}

bool mx_messages_parse(const json_t *body, bool counting, struct mx_messages_request *r,
                       struct mx_api_error *e)
{
    static const char known[] =
        MX_OPENAI_COMMON " messages system stop_sequences tools tool_choice thinking output_config "
                         "output_format service_tier container "
                         "cache_control context_management inference_geo speed mcp_servers betas";
    const struct mx_fields f = {body, "", e};
    r->ignored += mx_fields_unknown(body, known);
    return refuse_thread(&f) && mx_field_need(&f, "model") &&
           mx_field_string(&f, "model", MAX_NAME, &r->model) && read_limits(&f, counting, r) &&
           read_sampling(&f, r) && read_stops(&f, r) && read_metadata(&f, r) &&
           read_thinking(&f, r) && read_output_config(&f, r) && read_tools(&f, r) &&
           read_tool_choice(&f, r) && read_messages(body, r, e);
}

void mx_messages_request_free(struct mx_messages_request *r)
{
    json_decref(r->messages);
    json_decref(r->tools);
    json_decref(r->user);
    r->messages = r->tools = r->user = NULL;
}
