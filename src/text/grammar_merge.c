/* Schemas that apply together: $ref with siblings, allOf, branches beside keywords.
 *
 * Two schemas are merged keyword by keyword into one object. Where two keywords cannot be merged
 * into one, the schema is refused: nothing is dropped. Merged schemas are owned by the compilation.
 */
#include "base/utf8.h"
#include "text/grammar_schema.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Places ---- */

static void write_where(struct mx_strbuf *t, const struct mx_swhere *w)
{
    if (!w)
        return;
    write_where(t, w->up);
    if (w->key)
        mx_strbuf_printf(t, "/%s", w->key);
    else
        mx_strbuf_printf(t, "/%zu", w->index);
}

const char *mx_schema_where(struct mx_schema *s, const struct mx_swhere *w)
{
    struct mx_strbuf t;
    mx_strbuf_init(&t, 300);
    mx_strbuf_puts(&t, s->root_where);
    write_where(&t, w);
    const char *text = t.data ? mx_arena_strdup(&s->b->arena, t.data) : NULL;
    mx_strbuf_free(&t);
    return text ? text : "a schema";
}

void *mx_schema_fail(struct mx_schema *s, const struct mx_swhere *w, mtplx_status status,
                     const char *fmt, ...)
{
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return mx_gfail(s->b, status, "%s: %s", mx_schema_where(s, w), text);
}

bool mx_schema_step(struct mx_schema *s, const struct mx_swhere *w)
{
    if (++s->steps > MX_SCHEMA_STEPS)
        mx_schema_fail(s, w, MTPLX_ERR_LIMIT, "the schema is too large once it is written out");
    return !s->b->failed;
}

/* ---- References ---- */

/* One part of a JSON pointer, unescaped in place. */
static void unescape(char *part)
{
    char *out = part;
    for (char *p = part; *p; p++) {
        if (*p == '~' && (p[1] == '0' || p[1] == '1')) {
            *out++ = p[1] == '0' ? '~' : '/';
            p++;
        } else if (*p == '%' && strlen(p) > 2 && strspn(p + 1, "0123456789abcdefABCDEF") >= 2) {
            char hex[3] = {p[1], p[2], 0};
            *out++ = (char)strtol(hex, NULL, 16);
            p += 2;
        } else {
            *out++ = *p;
        }
    }
    *out = 0;
}

static const json_t *follow(const json_t *at, const char *part)
{
    if (json_is_object(at))
        return json_object_get(at, part);
    char *end;
    unsigned long i = strtoul(part, &end, 10);
    return json_is_array(at) && *part && !*end ? json_array_get(at, i) : NULL;
}

const json_t *mx_schema_target(struct mx_schema *s, const json_t *ref, const struct mx_swhere *w)
{
    const char *text = json_string_value(ref);
    if (!text)
        return mx_schema_fail(s, w, MTPLX_ERR_ARGUMENT, "$ref has to be a string");
    if (text[0] != '#' || (text[1] && text[1] != '/'))
        return mx_schema_fail(s, w, MTPLX_ERR_UNSUPPORTED,
                              "$ref \"%.100s\": only pointers into the schema itself (#/...) are "
                              "supported",
                              text);
    const json_t *at = s->root;
    char *copy = mx_arena_strdup(&s->b->arena, text[1] ? text + 2 : ""), *part = copy;
    if (!copy)
        return mx_schema_fail(s, w, MTPLX_ERR_LIMIT, "the schema is too large");
    while (text[1] && part && at) {
        char *slash = strchr(part, '/');
        if (slash)
            *slash = 0;
        unescape(part);
        at = follow(at, part);
        part = slash ? slash + 1 : NULL;
    }
    if (!at)
        return mx_schema_fail(s, w, MTPLX_ERR_ARGUMENT, "$ref \"%.100s\" points to nothing", text);
    return at;
}

/* ---- Types ---- */

static int type_named(const char *name)
{
    static const char *const names[] = {"null",   "boolean", "object", "array",
                                        "string", "number",  "integer"};
    for (int i = 0; name && i < 7; i++)
        if (strcmp(name, names[i]) == 0)
            return 1 << i;
    return 0;
}

int mx_schema_types(struct mx_schema *s, const json_t *schema, const struct mx_swhere *w)
{
    const json_t *type = json_object_get(schema, "type");
    int set = 0;
    if (json_is_string(type)) {
        set = type_named(json_string_value(type));
    } else {
        for (size_t i = 0; i < json_array_size(type); i++) {
            int t = type_named(json_string_value(json_array_get(type, i)));
            set = t && set >= 0 ? set | t : -1;
        }
    }
    if (type && set <= 0) {
        mx_schema_fail(s, w, MTPLX_ERR_ARGUMENT,
                       "type has to be null, boolean, object, array, string, number, integer or a "
                       "list of these");
        return -1;
    }
    if (set && json_is_true(json_object_get(schema, "nullable")))
        set |= MX_T_NULL;
    return set & MX_T_NUMBER ? set | MX_T_INTEGER : set;
}

static json_t *types_json(int set)
{
    static const char *const names[] = {"null",   "boolean", "object", "array",
                                        "string", "number",  "integer"};
    json_t *v = json_array();
    for (int i = 0; i < 7; i++)
        if (set & 1 << i)
            json_array_append_new(v, json_string(names[i]));
    return v;
}

/* ---- Merging ---- */

static json_t *own(struct mx_schema *s, json_t *x)
{
    if (!x || json_array_append_new(s->made, x))
        return mx_gfail(s->b, MTPLX_ERR_MEMORY, "out of memory for a schema");
    return x;
}

static json_t *all_of(const json_t *a, const json_t *b)
{
    return json_pack("{s:[O,O]}", "allOf", (json_t *)a, (json_t *)b);
}

static json_t *merge_additional(const json_t *a, const json_t *b)
{
    if (json_is_false(a) || json_is_false(b))
        return json_false();
    if (json_is_true(a) || json_is_true(b))
        return json_incref((json_t *)(json_is_true(a) ? b : a));
    return all_of(a, b);
}

/* Properties of `from` into `out`; those the other side does not name obey its rule for the rest.
 */
static void merge_properties(json_t *out, const json_t *from, const json_t *other)
{
    const char *key;
    json_t *v, *props = json_object_get(other, "properties");
    json_t *rest = json_object_get(other, "additionalProperties");
    json_object_foreach(json_object_get(from, "properties"), key, v)
    {
        json_t *mine = json_object_get(out, key);
        if (mine)
            json_object_set_new(out, key, all_of(mine, v));
        else if (!json_object_get(props, key) && rest)
            json_object_set_new(out, key, json_is_true(rest) ? json_incref(v) : all_of(v, rest));
        else
            json_object_set(out, key, v);
    }
}

static json_t *merge_lists(const json_t *a, const json_t *b)
{
    json_t *out = json_copy((json_t *)a), *v, *w;
    size_t i, k;
    json_array_foreach(b, i, v)
    {
        bool has = false;
        json_array_foreach(a, k, w) has = has || json_equal(v, w);
        if (!has)
            json_array_append(out, v);
    }
    return out;
}

static json_t *merge_enums(const json_t *a, const json_t *b)
{
    json_t *out = json_array(), *v, *w;
    size_t i, k;
    json_array_foreach(a, i, v) json_array_foreach(b, k, w) if (json_equal(v, w))
        json_array_append(out, v);
    return out;
}

static json_t *merge_multiples(const json_t *a, const json_t *b)
{
    double x = json_number_value(a), y = json_number_value(b);
    if (x < 1 || y < 1 || x > 1e6 || y > 1e6 || x != floor(x) || y != floor(y))
        return NULL;
    int64_t p = (int64_t)x, q = (int64_t)y;
    while (q) {
        int64_t r = p % q;
        p = q;
        q = r;
    }
    return json_integer((int64_t)x / p * (int64_t)y);
}

static bool is_one_of(const char *key, const char *const *names)
{
    for (; *names; names++)
        if (strcmp(key, *names) == 0)
            return true;
    return false;
}

static const char *const lower_bounds[] = {"minimum",  "exclusiveMinimum", "minLength",
                                           "minItems", "minProperties",    NULL};
static const char *const upper_bounds[] = {"maximum",  "exclusiveMaximum", "maxLength",
                                           "maxItems", "maxProperties",    NULL};
static const char *const notes[] = {"title",       "description", "default",  "examples",
                                    "$schema",     "$id",         "$comment", "$defs",
                                    "definitions", "deprecated",  "readOnly", "writeOnly",
                                    "nullable",    "$anchor",     NULL};

/* One keyword that both sides have; NULL: they cannot be merged. */
static json_t *merge_keyword(struct mx_schema *s, const char *key, const json_t *a, const json_t *b,
                             const struct mx_swhere *w)
{
    double x = json_number_value(a), y = json_number_value(b);
    if (json_equal(a, b))
        return json_incref((json_t *)a);
    if (is_one_of(key, lower_bounds) && json_is_number(a) && json_is_number(b))
        return json_incref((json_t *)(x > y ? a : b));
    if (is_one_of(key, upper_bounds) && json_is_number(a) && json_is_number(b))
        return json_incref((json_t *)(x < y ? a : b));
    if (strcmp(key, "required") == 0 && json_is_array(a) && json_is_array(b))
        return merge_lists(a, b);
    if (strcmp(key, "enum") == 0 && json_is_array(a) && json_is_array(b))
        return merge_enums(a, b);
    if (strcmp(key, "const") == 0)
        return json_pack("b", 0);
    if (strcmp(key, "additionalProperties") == 0)
        return merge_additional(a, b);
    if (strcmp(key, "items") == 0)
        return all_of(a, b);
    if (strcmp(key, "multipleOf") == 0)
        return merge_multiples(a, b);
    (void)s;
    (void)w;
    return NULL;
}

/* Types first, since `nullable` belongs to the side that says it. */
static bool merge_types(struct mx_schema *s, json_t *out, const json_t *a, const json_t *b,
                        const struct mx_swhere *w)
{
    int x = mx_schema_types(s, a, w), y = mx_schema_types(s, b, w);
    if (x < 0 || y < 0)
        return false;
    if (x && y && !(x & y))
        return json_object_set_new(out, "const", json_null()) == 0 &&
               json_object_set_new(out, "enum", json_array()) == 0;
    int set = x && y ? x & y : x | y;
    if (set)
        json_object_set_new(out, "type", types_json(set));
    return true;
}

static bool merge_into(struct mx_schema *s, json_t *out, const json_t *a, const json_t *b,
                       const struct mx_swhere *w)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)b, key, v)
    {
        json_t *mine = json_object_get(out, key);
        if (!mx_schema_step(s, w))
            return false;
        if (is_one_of(key, notes) || strcmp(key, "type") == 0 || strcmp(key, "properties") == 0)
            continue;
        if (!mine) {
            json_object_set(out, key, v);
            continue;
        }
        if (strcmp(key, "const") == 0 && !json_equal(mine, v)) {
            json_object_set_new(out, "enum", json_array()); /* no value is both */
            continue;
        }
        json_t *both = merge_keyword(s, key, mine, v, w);
        if (!both) {
            mx_schema_fail(s, w, MTPLX_ERR_UNSUPPORTED,
                           "%.60s of schemas that apply together cannot be merged", key);
            return false;
        }
        json_object_set_new(out, key, both);
    }
    bool tuple = json_object_get(a, "prefixItems") || json_object_get(b, "prefixItems");
    if (tuple &&
        !!json_object_get(a, "items") + !!json_object_get(b, "items") +
                !!json_object_get(a, "prefixItems") + !!json_object_get(b, "prefixItems") >
            1 &&
        (json_object_get(a, "items") || json_object_get(a, "prefixItems")) &&
        (json_object_get(b, "items") || json_object_get(b, "prefixItems")) && !json_equal(a, b)) {
        mx_schema_fail(s, w, MTPLX_ERR_UNSUPPORTED,
                       "prefixItems and items of schemas that apply together cannot be merged");
        return false;
    }
    return true;
}

/* Both are flat. */
static const json_t *merge(struct mx_schema *s, const json_t *a, const json_t *b,
                           const struct mx_swhere *w)
{
    if (json_is_false(a) || json_is_true(b))
        return a;
    if (json_is_false(b) || json_is_true(a))
        return b;
    json_t *out = own(s, json_object());
    if (!out)
        return NULL;
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)a, key,
                        v) if (!is_one_of(key, notes) && strcmp(key, "type") != 0 &&
                               strcmp(key, "properties") != 0) json_object_set(out, key, v);
    if (!merge_into(s, out, a, b, w) || !merge_types(s, out, a, b, w))
        return NULL;
    if (json_object_get(a, "properties") || json_object_get(b, "properties")) {
        json_t *props = json_object();
        merge_properties(props, a, b);
        merge_properties(props, b, a);
        json_object_set_new(out, "properties", props);
    }
    return out;
}

const json_t *mx_schema_without(struct mx_schema *s, const json_t *schema, const char *key)
{
    json_t *out = own(s, json_copy((json_t *)schema));
    if (out)
        json_object_del(out, key);
    return out;
}

static const json_t *flat(struct mx_schema *s, const json_t *schema, const struct mx_swhere *w,
                          int depth)
{
    if (json_is_boolean(schema))
        return schema;
    if (!json_is_object(schema))
        return mx_schema_fail(s, w, MTPLX_ERR_ARGUMENT, "a schema is an object or a boolean");
    if (depth > MX_SCHEMA_DEPTH)
        return mx_schema_fail(s, w, MTPLX_ERR_LIMIT,
                              "references that are merged run in a circle, or nest too deep");
    if (!mx_schema_step(s, w))
        return NULL;
    const json_t *ref = json_object_get(schema, "$ref"), *all = json_object_get(schema, "allOf");
    if (!ref && !all)
        return schema;
    if (all && !json_is_array(all))
        return mx_schema_fail(s, w, MTPLX_ERR_ARGUMENT, "allOf has to be a list");
    const json_t *out = schema;
    if (ref)
        out = mx_schema_without(s, out, "$ref");
    if (all && out)
        out = mx_schema_without(s, out, "allOf");
    if (ref && out) {
        const json_t *target = mx_schema_target(s, ref, w);
        target = target ? flat(s, target, w, depth + 1) : NULL;
        out = target ? merge(s, target, out, w) : NULL;
    }
    for (size_t i = 0; i < json_array_size(all) && out; i++) {
        struct mx_swhere list = {w, "allOf", 0}, at = {&list, NULL, i};
        const json_t *x = flat(s, json_array_get(all, i), &at, depth + 1);
        out = x ? merge(s, out, x, &at) : NULL;
    }
    return out;
}

const json_t *mx_schema_flat(struct mx_schema *s, const json_t *schema, const struct mx_swhere *w)
{
    return flat(s, schema, w, 0);
}

const json_t *mx_schema_both(struct mx_schema *s, const json_t *a, const json_t *b,
                             const struct mx_swhere *w)
{
    const json_t *x = mx_schema_flat(s, a, w), *y = x ? mx_schema_flat(s, b, w) : NULL;
    return y ? merge(s, x, y, w) : NULL;
}

/* ---- Values ---- */

static int type_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_NULL: return MX_T_NULL;
    case JSON_TRUE:
    case JSON_FALSE: return MX_T_BOOLEAN;
    case JSON_OBJECT: return MX_T_OBJECT;
    case JSON_ARRAY: return MX_T_ARRAY;
    case JSON_STRING: return MX_T_STRING;
    case JSON_INTEGER: return MX_T_INTEGER;
    default: return json_real_value(v) == floor(json_real_value(v)) ? MX_T_INTEGER : MX_T_NUMBER;
    }
}

static bool in_bounds(const json_t *schema, const char *least, const char *most, double x)
{
    const json_t *lo = json_object_get(schema, least), *hi = json_object_get(schema, most);
    return !(json_is_number(lo) && x < json_number_value(lo)) &&
           !(json_is_number(hi) && x > json_number_value(hi));
}

static bool number_allowed(const json_t *schema, double x)
{
    const json_t *lo = json_object_get(schema, "exclusiveMinimum");
    const json_t *hi = json_object_get(schema, "exclusiveMaximum");
    const json_t *multiple = json_object_get(schema, "multipleOf");
    return in_bounds(schema, "minimum", "maximum", x) &&
           !(json_is_number(lo) && x <= json_number_value(lo)) &&
           !(json_is_number(hi) && x >= json_number_value(hi)) &&
           !(json_is_number(multiple) && fmod(x, json_number_value(multiple)) != 0);
}

bool mx_schema_allows(const json_t *schema, int types, const json_t *value)
{
    const json_t *only = json_object_get(schema, "const"), *list = json_object_get(schema, "enum");
    int t = type_of(value);
    if (types && !(types & t) && !(t == MX_T_INTEGER && types & MX_T_NUMBER))
        return false;
    if (only && !json_equal(only, value))
        return false;
    bool listed = !list;
    for (size_t i = 0; i < json_array_size(list); i++)
        listed = listed || json_equal(json_array_get(list, i), value);
    if (!listed)
        return false;
    if (json_is_number(value))
        return number_allowed(schema, json_number_value(value));
    if (json_is_string(value))
        return in_bounds(
            schema, "minLength", "maxLength",
            (double)mx_utf8_count(json_string_value(value), json_string_length(value)));
    if (json_is_array(value))
        return in_bounds(schema, "minItems", "maxItems", (double)json_array_size(value));
    return true;
}

/* ---- Disjointness ---- */

/* The values a schema lists, or NULL. *one: an array that is to be freed. */
static const json_t *listed(const json_t *schema, json_t **made)
{
    const json_t *only = json_object_get(schema, "const"), *list = json_object_get(schema, "enum");
    *made = only ? json_pack("[O]", (json_t *)only) : NULL;
    return only ? *made : list;
}

static bool lists_differ(const json_t *a, const json_t *b)
{
    json_t *made_a, *made_b, *v, *w;
    const json_t *x = listed(a, &made_a), *y = listed(b, &made_b);
    bool differ = x && y;
    size_t i, k;
    json_array_foreach(x, i, v) json_array_foreach(y, k, w) if (json_equal(v, w)) differ = false;
    json_decref(made_a);
    json_decref(made_b);
    return differ;
}

static bool requires(const json_t *schema, const char *key)
{
    const json_t *list = json_object_get(schema, "required");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_is_string(json_array_get(list, i)) &&
            strcmp(json_string_value(json_array_get(list, i)), key) == 0)
            return true;
    return false;
}

/* Objects that both must have a property for which they have no value in common. */
static bool properties_differ(struct mx_schema *s, const json_t *a, const json_t *b,
                              const struct mx_swhere *w)
{
    const char *key;
    json_t *v;
    json_object_foreach(json_object_get(a, "properties"), key, v)
    {
        const json_t *u = json_object_get(json_object_get(b, "properties"), key);
        const json_t *rest = json_object_get(b, "additionalProperties");
        if (requires(a, key) && !u && json_is_false(rest))
            return true;
        if (!u || !requires(a, key) || !requires(b, key))
            continue;
        const json_t *x = mx_schema_flat(s, v, w), *y = x ? mx_schema_flat(s, u, w) : NULL;
        if (json_is_object(x) && json_is_object(y) && lists_differ(x, y))
            return true;
    }
    return false;
}

bool mx_schema_disjoint(struct mx_schema *s, const json_t *a, const json_t *b,
                        const struct mx_swhere *w)
{
    const json_t *x = mx_schema_flat(s, a, w), *y = x ? mx_schema_flat(s, b, w) : NULL;
    if (!y || json_is_boolean(x) || json_is_boolean(y))
        return y && (json_is_false(x) || json_is_false(y));
    int t = mx_schema_types(s, x, w), u = mx_schema_types(s, y, w);
    if (t > 0 && u > 0 && !(t & u))
        return true;
    if (lists_differ(x, y))
        return true;
    bool objects = t == MX_T_OBJECT && u == MX_T_OBJECT;
    return objects && (properties_differ(s, x, y, w) || properties_differ(s, y, x, w));
}
