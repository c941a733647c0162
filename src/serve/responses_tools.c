/* Responses API: tools and tool_choice into those of a turn.
 *
 * Functions are flat here, and nested in chat completions. A custom tool takes free text: to the
 * model it is a function with one string, and its calls are turned back (responses_stream.c). Tools
 * that OpenAI's servers run are refused: an answer that was to search and did not is worse than
 * none. */
#include "serve/fields.h"
#include "serve/responses_int.h"

#include <stdio.h>
#include <string.h>

enum { PLACE = 128, MAX_NAME = 256, MAX_TOOLS = 1024 };

static bool is(const char *type, const char *name)
{
    return strcmp(type, name) == 0;
}

static bool need_string(const struct mx_fields *f, const char *name, size_t max, const char **out)
{
    return mx_field_need(f, name) && mx_field_string(f, name, max, out);
}

static bool no_memory(struct mx_api_error *e)
{
    return mx_api_fail(e, 507, "tools", "Out of memory for the tools");
}

/* ---- Tools -------------------------------------------------------------------------------- */

/* Appends a function tool; steals `parameters`. */
static bool append(const struct mx_fields *f, struct mx_responses_request *r, const char *name,
                   const char *description, json_t *parameters, bool strict)
{
    if (!*name) {
        json_decref(parameters);
        return mx_api_fail(f->e, 400, f->path, "'%s.name' is empty", f->path);
    }
    json_t *function = json_pack("{s:s,s:s*,s:o}", "name", name, "description", description,
                                 "parameters", parameters);
    if (function && strict && json_object_set_new(function, "strict", json_true()) != 0) {
        json_decref(function);
        return no_memory(f->e);
    }
    json_t *tool = json_pack("{s:s,s:o}", "type", "function", "function", function);
    return (tool && json_array_append_new(r->tools, tool) == 0) || no_memory(f->e);
}

static bool read_function(const struct mx_fields *f, struct mx_responses_request *r)
{
    const char *name = NULL, *description = NULL;
    const json_t *parameters = NULL;
    bool strict = false;
    if (!need_string(f, "name", MAX_NAME, &name) ||
        !mx_field_string(f, "description", SIZE_MAX, &description) ||
        !mx_field_object(f, "parameters", &parameters) || !mx_field_bool(f, "strict", &strict))
        return false;
    json_t *schema = parameters ? json_incref((json_t *)(uintptr_t)parameters)
                                : json_pack("{s:s,s:{}}", "type", "object", "properties");
    return append(f, r, name, description, schema, strict);
}

static bool read_custom(const struct mx_fields *f, struct mx_responses_request *r)
{
    const char *name = NULL, *description = NULL, *type = "text";
    struct mx_fields format = {NULL, f->path, f->e};
    if (!need_string(f, "name", MAX_NAME, &name) ||
        !mx_field_string(f, "description", SIZE_MAX, &description) ||
        !mx_field_object(f, "format", &format.o) ||
        (format.o && !mx_field_string(&format, "type", MAX_NAME, &type)))
        return false;
    if (!is(type, "text"))
        return mx_api_fail(f->e, 400, f->path,
                           "'%s.format' is a grammar, which custom tools cannot have here; leave "
                           "it out, or use a function tool",
                           f->path);
    if (!r->custom)
        r->custom = json_object();
    if (!r->custom || json_object_set_new(r->custom, name, json_true()) != 0)
        return no_memory(f->e);
    json_t *schema = json_pack("{s:s,s:{s:{s:s}},s:[s]}", "type", "object", "properties", "input",
                               "type", "string", "required", "input");
    return append(f, r, name, description, schema, false);
}

static bool read_tool(const struct mx_fields *f, struct mx_responses_request *r)
{
    const char *type = NULL;
    if (!json_is_object(f->o))
        return mx_api_fail(f->e, 400, f->path, "'%s' must be an object", f->path);
    if (!need_string(f, "type", MAX_NAME, &type))
        return false;
    if (is(type, "function"))
        return read_function(f, r);
    if (is(type, "custom"))
        return read_custom(f, r);
    return mx_api_fail(f->e, 400, f->path,
                       "'%s' is a hosted tool of type '%.60s', which this server does not run; use "
                       "function or custom tools",
                       f->path, type);
}

static bool read_tools(const struct mx_fields *f, struct mx_responses_request *r)
{
    const json_t *list = NULL;
    char path[PLACE];
    if (!mx_field_array(f, "tools", MAX_TOOLS, &list))
        return false;
    r->tools = json_array();
    if (!r->tools)
        return no_memory(f->e);
    for (size_t i = 0; i < json_array_size(list); i++) {
        snprintf(path, sizeof path, "tools[%zu]", i);
        const struct mx_fields tool = {json_array_get(list, i), path, f->e};
        if (!read_tool(&tool, r))
            return false;
    }
    return true;
}

/* ---- Choice ------------------------------------------------------------------------------- */

static json_t *tool_named(const json_t *tools, const char *name)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        json_t *tool = json_array_get(tools, i);
        const json_t *f = json_object_get(tool, "function");
        if (is(json_string_value(json_object_get(f, "name")), name))
            return tool;
    }
    return NULL;
}

static bool need_tool(const struct mx_fields *f, const struct mx_responses_request *r,
                      const char **name, json_t **tool)
{
    if (!need_string(f, "name", MAX_NAME, name))
        return false;
    *tool = tool_named(r->tools, *name);
    if (*tool)
        return true;
    return mx_api_fail(f->e, 400, f->path, "'%s.name' is '%.100s', which 'tools' does not declare",
                       f->path, *name);
}

/* {"type": "allowed_tools", "mode": .., "tools": [..]}: the others are not shown to the model. */
static bool allow_tools(const struct mx_fields *f, struct mx_responses_request *r)
{
    const json_t *list = NULL;
    char path[PLACE];
    int mode = 0;
    if (!mx_field_choice(f, "mode", "auto required", &mode) || !mx_field_need(f, "tools") ||
        !mx_field_array(f, "tools", MAX_TOOLS, &list))
        return false;
    json_t *kept = json_array();
    bool ok = kept || no_memory(f->e);
    for (size_t i = 0; ok && i < json_array_size(list); i++) {
        const char *name = NULL;
        json_t *tool = NULL;
        snprintf(path, sizeof path, "tool_choice.tools[%zu]", i);
        const struct mx_fields one = {json_array_get(list, i), path, f->e};
        ok = need_tool(&one, r, &name, &tool) &&
             (json_array_append(kept, tool) == 0 || no_memory(f->e));
    }
    json_decref(r->tools);
    r->tools = kept;
    r->turn.tool_choice = mode == 1 ? MX_TOOL_CHOICE_REQUIRED : MX_TOOL_CHOICE_AUTO;
    return ok;
}

static bool choose_by_object(const struct mx_fields *f, struct mx_responses_request *r)
{
    const char *type = NULL;
    json_t *tool = NULL;
    if (!need_string(f, "type", MAX_NAME, &type))
        return false;
    if (is(type, "allowed_tools"))
        return allow_tools(f, r);
    if (!is(type, "function") && !is(type, "custom"))
        return mx_api_fail(f->e, 400, "tool_choice",
                           "'tool_choice' asks for a hosted tool of type '%.60s', which this "
                           "server does not run",
                           type);
    r->turn.tool_choice = MX_TOOL_CHOICE_NAMED;
    return need_tool(f, r, &r->turn.tool_name, &tool);
}

static bool read_choice(const struct mx_fields *body, struct mx_responses_request *r)
{
    static const enum mx_tool_choice choices[] = {MX_TOOL_CHOICE_AUTO, MX_TOOL_CHOICE_NONE,
                                                  MX_TOOL_CHOICE_REQUIRED};
    const json_t *choice = json_object_get(body->o, "tool_choice");
    const struct mx_fields f = {choice, "tool_choice", body->e};
    int which = 0;
    if (json_is_object(choice))
        return choose_by_object(&f, r);
    if (choice && !json_is_null(choice) && !json_is_string(choice))
        return mx_api_fail(body->e, 400, "tool_choice",
                           "'tool_choice' must be a string or an object");
    if (!mx_field_choice(body, "tool_choice", "auto none required", &which))
        return false;
    r->turn.tool_choice = choices[which];
    return true;
}

bool mx_responses_tools(const json_t *body, struct mx_responses_request *r, struct mx_api_error *e)
{
    const struct mx_fields f = {body, "", e};
    if (!read_tools(&f, r) || !read_choice(&f, r) ||
        !mx_field_bool(&f, "parallel_tool_calls", &r->turn.parallel_tool_calls))
        return false;
    r->turn.tools = json_array_size(r->tools) > 0 ? r->tools : NULL;
    if (r->turn.tool_choice == MX_TOOL_CHOICE_REQUIRED && !r->turn.tools)
        return mx_api_fail(e, 400, "tool_choice",
                           "'tool_choice' asks for a tool call, but 'tools' declares none");
    return true;
}
