/* Types of arguments: what a tool's schema says about them, and text turned into JSON by it.
 *
 *  1. Texts keep their spelling: 1.10 stays 1.10, an object keeps its blanks.
 *  2. A schema that says nothing about a value allows everything. Then, and where a string is one
 * of several types, a value that reads as one of the others is that: a template writes the string
 *     "5" and the number 5 alike, so nobody can tell, and numbers are what such schemas mostly
 * mean.
 *  3. What is of none of the types is a string: the tool's own check can say more about it. */
#include "text/toolcall_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_REF = 16, MAX_NODES = 256 };

struct walk {
    const json_t *root;
    int nodes; /* looked at so far */
};

static unsigned type_named(const char *name)
{
    static const struct {
        const char *name;
        unsigned type;
    } names[] = {{"string", MX_TYPE_TEXT},
                 {"integer", MX_TYPE_INTEGER},
                 {"number", MX_TYPE_NUMBER | MX_TYPE_INTEGER},
                 {"boolean", MX_TYPE_BOOLEAN},
                 {"null", MX_TYPE_NULL},
                 {"object", MX_TYPE_OBJECT},
                 {"array", MX_TYPE_ARRAY}};
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i].name) == 0)
            return names[i].type;
    }
    return 0;
}

static unsigned type_of_value(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: return MX_TYPE_OBJECT;
    case JSON_ARRAY: return MX_TYPE_ARRAY;
    case JSON_STRING: return MX_TYPE_TEXT;
    case JSON_INTEGER: return MX_TYPE_INTEGER;
    case JSON_REAL: return MX_TYPE_NUMBER | MX_TYPE_INTEGER;
    case JSON_TRUE:
    case JSON_FALSE: return MX_TYPE_BOOLEAN;
    case JSON_NULL: break;
    }
    return MX_TYPE_NULL;
}

/* `type`, a name or a list of names. */
static unsigned types_of_type(const json_t *type)
{
    if (json_is_string(type))
        return type_named(json_string_value(type));
    unsigned types = 0;
    size_t i;
    json_t *e;
    json_array_foreach(type, i, e) types |= type_named(json_string_value(e));
    return types;
}

static unsigned types_of_values(const json_t *list)
{
    unsigned types = 0;
    size_t i;
    json_t *e;
    json_array_foreach(list, i, e) types |= type_of_value(e);
    return types;
}

/* ---- References ---- */

/* The member that the next segment of a JSON pointer names; *at moves behind the segment. */
static const json_t *pointer_step(const json_t *v, const char **at)
{
    struct mx_strbuf key;
    const char *s = *at;
    mx_strbuf_init(&key, MX_TOOL_KEY_MAX);
    for (; *s && *s != '/'; s++) {
        bool tilde = *s == '~' && (s[1] == '0' || s[1] == '1');
        mx_strbuf_putc(&key, !tilde ? *s : s[1] == '0' ? '~' : '/');
        s += tilde;
    }
    *at = s;
    if (json_is_array(v))
        v = json_array_get(v, key.data ? strtoul(key.data, NULL, 10) : 0);
    else
        v = key.failed ? NULL : json_object_get(v, key.data ? key.data : "");
    mx_strbuf_free(&key);
    return v;
}

static const json_t *resolve(const struct walk *w, const json_t *schema)
{
    for (int i = 0; i < MAX_REF; i++) {
        const char *ref = json_string_value(json_object_get(schema, "$ref"));
        if (!ref || ref[0] != '#')
            return schema;
        schema = w->root;
        for (ref++; schema && *ref == '/';) {
            ref++;
            schema = pointer_step(schema, &ref);
        }
    }
    return NULL;
}

/* ---- Schemas ---- */

static unsigned types_of(struct walk *w, const json_t *schema, int depth);

/* Of anyOf or oneOf the union, of allOf the intersection. */
static unsigned types_of_list(struct walk *w, const json_t *list, bool all, int depth)
{
    unsigned types = all ? MX_TYPE_ANY : 0;
    size_t i;
    json_t *e;
    json_array_foreach(list, i, e)
    {
        unsigned t = types_of(w, e, depth + 1);
        types = all ? types & t : types | t;
    }
    return types;
}

static unsigned narrow(unsigned types, unsigned by)
{
    return (types & by) != 0 ? types & by : types;
}

static unsigned types_of(struct walk *w, const json_t *schema, int depth)
{
    unsigned types = MX_TYPE_ANY;
    if (depth > MAX_REF || w->nodes++ > MAX_NODES)
        return types;
    schema = resolve(w, schema);
    const json_t *constant = json_object_get(schema, "const");
    types = narrow(types, types_of_type(json_object_get(schema, "type")));
    types = narrow(types, types_of_list(w, json_object_get(schema, "anyOf"), false, depth));
    types = narrow(types, types_of_list(w, json_object_get(schema, "oneOf"), false, depth));
    types = narrow(types, types_of_list(w, json_object_get(schema, "allOf"), true, depth));
    types = narrow(types, types_of_values(json_object_get(schema, "enum")));
    if (constant)
        types = narrow(types, type_of_value(constant));
    if (types == MX_TYPE_ANY && json_object_get(schema, "properties"))
        types = MX_TYPE_OBJECT;
    if (types == MX_TYPE_ANY && json_object_get(schema, "items"))
        types = MX_TYPE_ARRAY;
    if (json_is_true(json_object_get(schema, "nullable")))
        types |= MX_TYPE_NULL;
    return types;
}

unsigned mx_tool_types(const json_t *schema, const char *key)
{
    struct walk w = {.root = schema};
    schema = resolve(&w, schema);
    const json_t *member = json_object_get(json_object_get(schema, "properties"), key);
    if (!member)
        member = json_object_get(schema, "additionalProperties");
    return types_of(&w, member, 0);
}

/* ---- Values ---- */

static bool is_integral(const char *s, size_t n)
{
    if (!memchr(s, '.', n) && !memchr(s, 'e', n) && !memchr(s, 'E', n))
        return true;
    char digits[64];
    if (n >= sizeof digits)
        return false;
    memcpy(digits, s, n);
    digits[n] = '\0';
    double x = strtod(digits, NULL);
    return isfinite(x) && floor(x) == x;
}

static unsigned type_of_json(enum mx_json_kind kind, const char *s, size_t n)
{
    switch (kind) {
    case MX_JSON_OBJECT: return MX_TYPE_OBJECT;
    case MX_JSON_ARRAY: return MX_TYPE_ARRAY;
    case MX_JSON_STRING: return MX_TYPE_QUOTED;
    case MX_JSON_NUMBER: return is_integral(s, n) ? MX_TYPE_INTEGER : MX_TYPE_NUMBER;
    case MX_JSON_BOOLEAN: return MX_TYPE_BOOLEAN;
    case MX_JSON_NULL: return MX_TYPE_NULL;
    case MX_JSON_NONE: break;
    }
    return 0;
}

static bool equals_nocase(const char *s, size_t n, const char *word)
{
    return n == strlen(word) && strncasecmp(s, word, n) == 0;
}

/* Python's spellings, in which some templates show values to a model. */
static const char *python_word(unsigned types, const char *s, size_t n)
{
    if (types & MX_TYPE_TEXT)
        return NULL;
    if ((types & MX_TYPE_BOOLEAN) && equals_nocase(s, n, "true"))
        return "true";
    if ((types & MX_TYPE_BOOLEAN) && equals_nocase(s, n, "false"))
        return "false";
    if ((types & MX_TYPE_NULL) && n == 4 && memcmp(s, "None", 4) == 0)
        return "null";
    return NULL;
}

void mx_tool_coerce(unsigned types, const char *s, size_t n, struct mx_strbuf *out)
{
    const char *t = s, *end = s + n;
    while (t < end && mx_tool_is_blank(*t))
        t++;
    while (end > t && mx_tool_is_blank(end[-1]))
        end--;
    size_t before = out->len, m = (size_t)(end - t);
    const char *word = python_word(types, t, m);
    if (word) {
        mx_strbuf_puts(out, word);
        return;
    }
    if ((types & ~(unsigned)MX_TYPE_TEXT) != 0) {
        if (types & type_of_json(mx_json_scan(t, m, out), t, m))
            return;
        out->len = before;
    }
    mx_json_quote(out, s, n);
}
