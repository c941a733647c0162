/* Tools and formats of chat requests: tools, tool_choice, response_format and its aliases. */
#include "serve/openai_params.h"

#include <stdio.h>
#include <string.h>

enum { TOOLS_MAX = 512, TOOL_NAME_MAX = 256, GRAMMAR_MAX = 1 << 20 };

/* ---- Tools -------------------------------------------------------------------------------- */

static bool check_tool(const struct mx_fields *f, const json_t *tool, size_t i)
{
    char path[64], inner[80];
    int type = 0;
    const json_t *function = NULL, *parameters = NULL;
    const char *name = NULL;
    bool strict = false;
    snprintf(path, sizeof path, "tools[%zu]", i);
    snprintf(inner, sizeof inner, "%s.function", path);
    if (!json_is_object(tool))
        return mx_api_fail(f->e, 400, path, "'%s' must be an object", path);
    struct mx_fields tf = {tool, path, f->e};
    if (!mx_field_choice(&tf, "type", "function", &type) || !mx_field_need(&tf, "function") ||
        !mx_field_object(&tf, "function", &function))
        return false;
    struct mx_fields ff = {function, inner, f->e};
    if (!mx_field_need(&ff, "name") || !mx_field_string(&ff, "name", TOOL_NAME_MAX, &name) ||
        !mx_field_object(&ff, "parameters", &parameters) || !mx_field_bool(&ff, "strict", &strict))
        return false;
    return *name || mx_api_fail(f->e, 400, inner, "'%s.name' must not be empty", inner);
}

static bool check_tools(const struct mx_fields *f, const json_t *tools)
{
    size_t i;
    json_t *t;
    json_array_foreach(tools, i, t)
    {
        if (!check_tool(f, t, i))
            return false;
    }
    return true;
}

static const char *tool_name(const json_t *tool)
{
    return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

static bool names_tool(const json_t *allowed, const char *name)
{
    size_t i;
    json_t *a;
    json_array_foreach(allowed, i, a)
    {
        const char *n = tool_name(a);
        if (!n)
            n = json_string_value(json_object_get(a, "name"));
        if (n && strcmp(n, name) == 0)
            return true;
    }
    return false;
}

/* {"type": "allowed_tools", "allowed_tools": {"mode": .., "tools": [..]}}: others are left out. */
static bool read_allowed(const struct mx_fields *f, const json_t *choice, struct mx_turn_request *r,
                         json_t *tools)
{
    const json_t *spec = NULL, *list = NULL;
    struct mx_fields cf = {choice, "tool_choice", f->e};
    int mode = 0;
    if (!mx_field_object(&cf, "allowed_tools", &spec))
        return false;
    struct mx_fields af = {spec ? spec : choice, spec ? "tool_choice.allowed_tools" : "tool_choice",
                           f->e};
    if (!mx_field_choice(&af, "mode", "auto required", &mode) || !mx_field_need(&af, "tools") ||
        !mx_field_array(&af, "tools", TOOLS_MAX, &list))
        return false;
    for (size_t i = json_array_size(tools); i-- > 0;)
        if (!names_tool(list, tool_name(json_array_get(tools, i))))
            json_array_remove(tools, i);
    r->tool_choice = mode == 1 ? MX_TOOL_CHOICE_REQUIRED : MX_TOOL_CHOICE_AUTO;
    return true;
}

static bool read_named(const struct mx_fields *f, const json_t *choice, struct mx_turn_request *r)
{
    const json_t *function = NULL;
    struct mx_fields cf = {choice, "tool_choice", f->e};
    if (!mx_field_object(&cf, "function", &function))
        return false;
    struct mx_fields ff = {function ? function : choice,
                           function ? "tool_choice.function" : "tool_choice", f->e};
    r->tool_choice = MX_TOOL_CHOICE_NAMED;
    return mx_field_need(&ff, "name") && mx_field_string(&ff, "name", TOOL_NAME_MAX, &r->tool_name);
}

static bool read_choice(const struct mx_fields *f, struct mx_turn_request *r, json_t *tools)
{
    static const enum mx_tool_choice words[] = {MX_TOOL_CHOICE_AUTO, MX_TOOL_CHOICE_NONE,
                                                MX_TOOL_CHOICE_REQUIRED};
    const json_t *choice = json_object_get(f->o, "tool_choice");
    int word = 0, type = 0;
    if (json_is_object(choice)) {
        struct mx_fields cf = {choice, "tool_choice", f->e};
        if (!mx_field_choice(&cf, "type", "function allowed_tools", &type))
            return false;
        return type == 1 ? read_allowed(f, choice, r, tools) : read_named(f, choice, r);
    }
    if (choice && !json_is_null(choice) && !json_is_string(choice))
        return mx_api_fail(f->e, 400, "tool_choice",
                           "'tool_choice' must be auto, none, required or an object that names a "
                           "function");
    if (!mx_field_choice(f, "tool_choice", "auto none required", &word))
        return false;
    r->tool_choice = words[word];
    return true;
}

bool mx_openai_read_tools(const struct mx_fields *f, struct mx_turn_request *r, json_t **tools)
{
    const json_t *list = NULL;
    *tools = NULL;
    if (!mx_field_array(f, "tools", TOOLS_MAX, &list) || !check_tools(f, list) ||
        !mx_field_bool(f, "parallel_tool_calls", &r->parallel_tool_calls))
        return false;
    if (json_array_size(list) > 0) {
        *tools = json_copy((json_t *)(uintptr_t)list);
        if (!*tools)
            return mx_api_fail(f->e, 507, "tools", "Out of memory for 'tools'");
    }
    if (!read_choice(f, r, *tools))
        return false;
    r->tools = *tools;
    return true;
}

/* ---- Formats ------------------------------------------------------------------------------ */

static bool take_text(const struct mx_fields *f, const char *name, enum mx_format format,
                      struct mx_turn_request *r)
{
    const char *text = NULL;
    if (!mx_field_string(f, name, GRAMMAR_MAX, &text))
        return false;
    if (text) {
        r->format = format;
        r->format_text = text;
        r->format_len = strlen(text);
    }
    return true;
}

static bool read_json_schema(const struct mx_fields *f, struct mx_turn_request *r)
{
    const json_t *spec = NULL;
    const char *name = NULL;
    bool strict = false;
    if (!mx_field_need(f, "json_schema") || !mx_field_object(f, "json_schema", &spec))
        return false;
    struct mx_fields sf = {spec, "response_format.json_schema", f->e};
    if (!mx_field_string(&sf, "name", 256, &name) || !mx_field_bool(&sf, "strict", &strict) ||
        !mx_field_object(&sf, "schema", &r->schema))
        return false;
    r->format = r->schema ? MX_FORMAT_SCHEMA : MX_FORMAT_JSON;
    return true;
}

static bool read_response_format(const struct mx_fields *f, struct mx_turn_request *r)
{
    const json_t *format = NULL;
    int type = 0;
    if (!mx_field_object(f, "response_format", &format) || !format)
        return f->e->status == 0;
    struct mx_fields ff = {format, "response_format", f->e};
    if (!mx_field_need(&ff, "type") ||
        !mx_field_choice(&ff, "type", "text json_object json_schema regex grammar", &type))
        return false;
    switch (type) {
    case 1: r->format = MX_FORMAT_JSON; return true;
    case 2: return read_json_schema(&ff, r);
    case 3: return mx_field_need(&ff, "pattern") && take_text(&ff, "pattern", MX_FORMAT_REGEX, r);
    case 4: return mx_field_need(&ff, "grammar") && take_text(&ff, "grammar", MX_FORMAT_GBNF, r);
    default: return true;
    }
}

/* A schema, or one in a string. */
static bool read_guided_json(const struct mx_fields *f, struct mx_turn_request *r, json_t **schema)
{
    const json_t *v = json_object_get(f->o, "guided_json");
    if (!v || json_is_null(v))
        return true;
    if (json_is_string(v)) {
        *schema =
            json_loadb(json_string_value(v), json_string_length(v), JSON_REJECT_DUPLICATES, NULL);
        v = *schema;
    }
    if (!json_is_object(v))
        return mx_api_fail(f->e, 400, "guided_json",
                           "'guided_json' must be a JSON schema: an object, or a string that holds "
                           "one");
    r->format = MX_FORMAT_SCHEMA;
    r->schema = v;
    return true;
}

bool mx_openai_read_format(const struct mx_fields *f, struct mx_turn_request *r, json_t **schema)
{
    *schema = NULL;
    return read_response_format(f, r) && read_guided_json(f, r, schema) &&
           take_text(f, "guided_regex", MX_FORMAT_REGEX, r) &&
           take_text(f, "guided_grammar", MX_FORMAT_GBNF, r) &&
           take_text(f, "grammar", MX_FORMAT_GBNF, r);
}
