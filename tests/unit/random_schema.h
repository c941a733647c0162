/* Random JSON schemas, the same for a seed everywhere, and a validator for the keywords they use.
 *
 * The validator reads schemas by the specification's words and shares nothing with the grammar
 * compiler: it is the judge of what a grammar lets through. */
#ifndef TESTS_UNIT_RANDOM_SCHEMA_H
#define TESTS_UNIT_RANDOM_SCHEMA_H

#include "base/utf8.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static inline uint32_t rs_next(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*seed >> 33);
}

static inline int rs_below(uint64_t *seed, int n)
{
    return (int)(rs_next(seed) % (uint32_t)n);
}

/* ---- Generator ---- */

static inline json_t *rs_schema(uint64_t *seed, int depth);

static inline json_t *rs_string(uint64_t *seed)
{
    static const char *const formats[] = {"date", "time", "date-time", "uuid", "ipv4", "email"};
    static const char *const patterns[] = {"^[a-z]{1,8}$", "^\\d{3}-\\d{4}$", "^(foo|bar)+$",
                                           "[A-Z]\\w*", "^[^\\s\"]+$"};
    json_t *s = json_pack("{s:s}", "type", "string");
    int lo = rs_below(seed, 6);
    switch (rs_below(seed, 5)) {
    case 0: json_object_set_new(s, "format", json_string(formats[rs_below(seed, 6)])); break;
    case 1: json_object_set_new(s, "pattern", json_string(patterns[rs_below(seed, 5)])); break;
    case 2:
        json_object_set_new(s, "minLength", json_integer(lo));
        json_object_set_new(s, "maxLength", json_integer(lo + rs_below(seed, 40)));
        break;
    default: break;
    }
    return s;
}

static inline json_t *rs_number(uint64_t *seed, bool integer)
{
    json_t *s = json_pack("{s:s}", "type", integer ? "integer" : "number");
    int lo = rs_below(seed, 2000) - 1000, span = rs_below(seed, 3000);
    int shape = rs_below(seed, 4);
    double scale = integer ? 1 : 0.25;
    if (shape & 1)
        json_object_set_new(s, rs_below(seed, 2) ? "minimum" : "exclusiveMinimum",
                            integer ? json_integer(lo) : json_real(lo * scale));
    if (shape & 2)
        json_object_set_new(s, rs_below(seed, 2) ? "maximum" : "exclusiveMaximum",
                            integer ? json_integer(lo + span + 2)
                                    : json_real((lo + span + 2) * scale));
    if (integer && span > 200 && rs_below(seed, 3) == 0)
        json_object_set_new(s, "multipleOf", json_integer(1 + rs_below(seed, 12)));
    return s;
}

static inline json_t *rs_object(uint64_t *seed, int depth)
{
    static const char *const names[] = {
        "name", "na", "id", "value", "x y", "quote\"d", "\xc3\xa9t\xc3\xa9", "items", "n1", "n2"};
    json_t *s = json_pack("{s:s,s:{},s:[]}", "type", "object", "properties", "required");
    int n = rs_below(seed, 5);
    for (int i = 0; i < n; i++) {
        const char *name = names[rs_below(seed, 10)];
        if (json_object_get(json_object_get(s, "properties"), name))
            continue;
        json_object_set_new(json_object_get(s, "properties"), name, rs_schema(seed, depth - 1));
        if (rs_below(seed, 3))
            json_array_append_new(json_object_get(s, "required"), json_string(name));
    }
    int rest = rs_below(seed, 4);
    if (rest < 2)
        json_object_set_new(s, "additionalProperties",
                            rest ? rs_schema(seed, depth - 1) : json_false());
    return s;
}

static inline json_t *rs_array(uint64_t *seed, int depth)
{
    json_t *s = json_pack("{s:s}", "type", "array");
    int lo = rs_below(seed, 3);
    json_object_set_new(s, "items", rs_schema(seed, depth - 1));
    if (rs_below(seed, 2)) {
        json_object_set_new(s, "minItems", json_integer(lo));
        json_object_set_new(s, "maxItems", json_integer(lo + rs_below(seed, 4)));
    }
    if (rs_below(seed, 5) == 0)
        json_object_set_new(s, "prefixItems", json_pack("[o]", rs_schema(seed, depth - 1)));
    return s;
}

static inline json_t *rs_schema(uint64_t *seed, int depth)
{
    switch (rs_below(seed, depth > 0 ? 11 : 6)) {
    case 0: return rs_string(seed);
    case 1: return rs_number(seed, true);
    case 2: return rs_number(seed, false);
    case 3: return json_pack("{s:s}", "type", rs_below(seed, 2) ? "boolean" : "null");
    case 4: return json_pack("{s:[s,s,i,n]}", "enum", "on", "off\n", rs_below(seed, 100));
    case 5: return json_pack("{s:[s,s]}", "type", "string", "null");
    case 6: return rs_array(seed, depth);
    case 7:
        return json_pack("{s:[o,o]}", "anyOf", rs_schema(seed, depth - 1),
                         rs_schema(seed, depth - 1));
    default: return rs_object(seed, depth);
    }
}

/* ---- Validator ---- */

static inline bool rs_valid(const json_t *s, const json_t *v);

static inline bool rs_is(const char *type, const json_t *v)
{
    bool whole = json_is_number(v) && json_number_value(v) == floor(json_number_value(v));
    return (strcmp(type, "string") == 0 && json_is_string(v)) ||
           (strcmp(type, "integer") == 0 && whole) ||
           (strcmp(type, "number") == 0 && json_is_number(v)) ||
           (strcmp(type, "boolean") == 0 && json_is_boolean(v)) ||
           (strcmp(type, "null") == 0 && json_is_null(v)) ||
           (strcmp(type, "array") == 0 && json_is_array(v)) ||
           (strcmp(type, "object") == 0 && json_is_object(v));
}

static inline bool rs_type(const json_t *t, const json_t *v)
{
    if (json_is_string(t))
        return rs_is(json_string_value(t), v);
    for (size_t i = 0; i < json_array_size(t); i++)
        if (rs_is(json_string_value(json_array_get(t, i)), v))
            return true;
    return !t;
}

static inline bool rs_limits(const json_t *s, const char *lo, const char *hi, double x, bool open)
{
    const json_t *a = json_object_get(s, lo), *z = json_object_get(s, hi);
    double u = json_number_value(a), w = json_number_value(z);
    return !(a && (x < u || (open && x == u))) && !(z && (x > w || (open && x == w)));
}

static inline bool rs_object_valid(const json_t *s, const json_t *v)
{
    json_t *props = json_object_get(s, "properties"), *rest, *x;
    const char *key;
    rest = json_object_get(s, "additionalProperties");
    json_object_foreach((json_t *)v, key, x)
    {
        const json_t *one = json_object_get(props, key);
        if (one ? !rs_valid(one, x) : rest && !rs_valid(rest, x))
            return false;
    }
    for (size_t i = 0; i < json_array_size(json_object_get(s, "required")); i++) {
        const json_t *name = json_array_get(json_object_get(s, "required"), i);
        if (!json_object_get(v, json_string_value(name)))
            return false;
    }
    return true;
}

static inline bool rs_array_valid(const json_t *s, const json_t *v)
{
    const json_t *prefix = json_object_get(s, "prefixItems"), *items = json_object_get(s, "items");
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *one = i < json_array_size(prefix) ? json_array_get(prefix, i) : items;
        if (one && !rs_valid(one, json_array_get(v, i)))
            return false;
    }
    return rs_limits(s, "minItems", "maxItems", (double)json_array_size(v), false);
}

static inline bool rs_any(const json_t *list, const json_t *v, bool schemas)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        if (schemas ? rs_valid(one, v) : json_equal(one, v))
            return true;
    }
    return !list;
}

/* Shapes of the formats and patterns that the generator uses. */
static inline bool rs_shape(const json_t *s, const char *text)
{
    const char *format = json_string_value(json_object_get(s, "format"));
    const char *pattern = json_string_value(json_object_get(s, "pattern"));
    int a, b, c, d, used = 0;
    size_t n = strlen(text);
    if (format && strcmp(format, "date") == 0)
        return n == 10 && sscanf(text, "%4d-%2d-%2d%n", &a, &b, &c, &used) == 3 && used == 10 &&
               b >= 1 && b <= 12 && c >= 1 && c <= 31;
    if (format && strcmp(format, "ipv4") == 0)
        return sscanf(text, "%3d.%3d.%3d.%3d%n", &a, &b, &c, &d, &used) == 4 && (size_t)used == n &&
               a < 256 && b < 256 && c < 256 && d < 256;
    if (format && strcmp(format, "uuid") == 0)
        return n == 36 && strspn(text, "0123456789abcdefABCDEF-") == 36 && text[8] == '-' &&
               text[23] == '-';
    if (format && strcmp(format, "email") == 0)
        return strchr(text, '@') && strchr(text, '@') == strrchr(text, '@');
    if (pattern && strcmp(pattern, "^[a-z]{1,8}$") == 0)
        return n >= 1 && n <= 8 && strspn(text, "abcdefghijklmnopqrstuvwxyz") == n;
    if (pattern && strcmp(pattern, "^\\d{3}-\\d{4}$") == 0)
        return n == 8 && text[3] == '-' && strspn(text, "0123456789-") == 8;
    if (pattern && strcmp(pattern, "[A-Z]\\w*") == 0)
        return strpbrk(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != NULL;
    if (pattern && strcmp(pattern, "^[^\\s\"]+$") == 0)
        return n > 0 && !strpbrk(text, " \t\r\n\"");
    return true;
}

static inline bool rs_valid(const json_t *s, const json_t *v)
{
    if (json_is_boolean(s))
        return json_is_true(s);
    if (!rs_type(json_object_get(s, "type"), v) || !rs_any(json_object_get(s, "enum"), v, false) ||
        !rs_any(json_object_get(s, "anyOf"), v, true))
        return false;
    if (json_is_object(v))
        return rs_object_valid(s, v);
    if (json_is_array(v))
        return rs_array_valid(s, v);
    if (json_is_string(v))
        return rs_shape(s, json_string_value(v)) &&
               rs_limits(s, "minLength", "maxLength",
                         (double)mx_utf8_count(json_string_value(v), json_string_length(v)), false);
    const json_t *multiple = json_object_get(s, "multipleOf");
    double x = json_number_value(v);
    return !json_is_number(v) || (rs_limits(s, "minimum", "maximum", x, false) &&
                                  rs_limits(s, "exclusiveMinimum", "exclusiveMaximum", x, true) &&
                                  !(multiple && fmod(x, json_number_value(multiple)) != 0));
}

#endif
