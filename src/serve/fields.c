/* Reading the fields of a request body.
 *
 * Invariants
 *   1. Absent and null are the same: the caller's default stays.
 *   2. Nothing is coerced, but for numbers without a fraction where an integer is wanted (some
 *      clients have no integers): "5" is no number and 1 is no boolean.
 *   3. A string that is handed out has no NUL byte in it, so its length is what strlen() says. */
#include "serve/fields.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PATH_MAX_LEN = 160, WORDS_SHOWN = 400 };

/* ---- Saying what is wrong ----------------------------------------------------------------- */

static void place(const struct mx_fields *f, const char *name, char out[PATH_MAX_LEN])
{
    bool inner = f->path && *f->path;
    snprintf(out, PATH_MAX_LEN, "%s%s%s", inner ? f->path : "", inner ? "." : "", name);
}

static const char *kind_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER:
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    case JSON_NULL: return "null";
    }
    return "something else";
}

static bool wrong_kind(const struct mx_fields *f, const char *name, const char *want,
                       const json_t *v)
{
    char at[PATH_MAX_LEN];
    place(f, name, at);
    return mx_api_fail(f->e, 400, at, "'%s' must be %s, not %s", at, want, kind_of(v));
}

/* The member, or NULL when it is absent or null. */
static const json_t *member(const struct mx_fields *f, const char *name)
{
    const json_t *v = json_object_get(f->o, name);
    return json_is_null(v) ? NULL : v;
}

/* ---- Numbers ------------------------------------------------------------------------------ */

bool mx_field_number(const struct mx_fields *f, const char *name, double low, double high,
                     double *out)
{
    const json_t *v = member(f, name);
    if (!v)
        return true;
    if (!json_is_number(v))
        return wrong_kind(f, name, "a number", v);
    double x = json_number_value(v);
    if (!(x >= low && x <= high)) {
        char at[PATH_MAX_LEN];
        place(f, name, at);
        return mx_api_fail(f->e, 400, at, "'%s' must be between %g and %g, but is %g", at, low,
                           high, x);
    }
    *out = x;
    return true;
}

/* The value as an integer; false when it has a fraction or does not fit. */
static bool integral(const json_t *v, int64_t *out)
{
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    double x = json_real_value(v);
    if (!(fabs(x) < 9007199254740992.0) || x != floor(x))
        return false;
    *out = (int64_t)x;
    return true;
}

bool mx_field_int(const struct mx_fields *f, const char *name, int64_t low, int64_t high,
                  int64_t *out)
{
    const json_t *v = member(f, name);
    int64_t x = 0;
    if (!v)
        return true;
    if (!json_is_number(v))
        return wrong_kind(f, name, "an integer", v);
    if (!integral(v, &x))
        return wrong_kind(f, name, "an integer", v);
    if (x < low || x > high) {
        char at[PATH_MAX_LEN];
        place(f, name, at);
        return mx_api_fail(f->e, 400, at, "'%s' must be between %lld and %lld, but is %lld", at,
                           (long long)low, (long long)high, (long long)x);
    }
    *out = x;
    return true;
}

/* ---- Words -------------------------------------------------------------------------------- */

bool mx_field_bool(const struct mx_fields *f, const char *name, bool *out)
{
    const json_t *v = member(f, name);
    if (!v)
        return true;
    if (!json_is_boolean(v))
        return wrong_kind(f, name, "true or false", v);
    *out = json_is_true(v);
    return true;
}

bool mx_field_string(const struct mx_fields *f, const char *name, size_t max, const char **out)
{
    const json_t *v = member(f, name);
    char at[PATH_MAX_LEN];
    if (!v)
        return true;
    if (!json_is_string(v))
        return wrong_kind(f, name, "a string", v);
    size_t n = json_string_length(v);
    place(f, name, at);
    if (n > max)
        return mx_api_fail(f->e, 400, at, "'%s' must have at most %zu bytes, but has %zu", at, max,
                           n);
    if (strlen(json_string_value(v)) != n)
        return mx_api_fail(f->e, 400, at, "'%s' must not hold a NUL character", at);
    *out = json_string_value(v);
    return true;
}

/* Place of s[0..n) among words separated by single blanks, or -1. */
static int word_index(const char *words, const char *s, size_t n)
{
    for (int i = 0; *words; i++) {
        size_t len = strcspn(words, " ");
        if (len == n && memcmp(words, s, n) == 0)
            return i;
        words += len + (words[len] == ' ');
    }
    return -1;
}

/* "auto none required" as "auto, none, required". */
static void list_words(const char *words, char out[WORDS_SHOWN])
{
    size_t n = 0;
    for (const char *p = words; *p && n + 3 < WORDS_SHOWN; p++) {
        if (*p == ' ')
            out[n++] = ',';
        out[n++] = *p;
    }
    out[n] = '\0';
}

bool mx_field_choice(const struct mx_fields *f, const char *name, const char *words, int *out)
{
    const json_t *v = member(f, name);
    if (!v)
        return true;
    if (!json_is_string(v))
        return wrong_kind(f, name, "a string", v);
    int i = word_index(words, json_string_value(v), json_string_length(v));
    if (i < 0) {
        char at[PATH_MAX_LEN], list[WORDS_SHOWN];
        place(f, name, at);
        list_words(words, list);
        return mx_api_fail(f->e, 400, at, "'%s' must be one of %s, not '%.60s'", at, list,
                           json_string_value(v));
    }
    *out = i;
    return true;
}

/* ---- Containers --------------------------------------------------------------------------- */

bool mx_field_object(const struct mx_fields *f, const char *name, const json_t **out)
{
    const json_t *v = member(f, name);
    if (!v)
        return true;
    if (!json_is_object(v))
        return wrong_kind(f, name, "an object", v);
    *out = v;
    return true;
}

bool mx_field_array(const struct mx_fields *f, const char *name, size_t max, const json_t **out)
{
    const json_t *v = member(f, name);
    if (!v)
        return true;
    if (!json_is_array(v))
        return wrong_kind(f, name, "an array", v);
    if (json_array_size(v) > max) {
        char at[PATH_MAX_LEN];
        place(f, name, at);
        return mx_api_fail(f->e, 400, at, "'%s' must have at most %zu elements, but has %zu", at,
                           max, json_array_size(v));
    }
    *out = v;
    return true;
}

bool mx_field_need(const struct mx_fields *f, const char *name)
{
    char at[PATH_MAX_LEN];
    if (member(f, name))
        return true;
    place(f, name, at);
    return mx_api_fail(f->e, 400, at, "'%s' is missing", at);
}

unsigned mx_fields_unknown(const json_t *o, const char *words)
{
    const char *key;
    json_t *v;
    unsigned n = 0;
    json_object_foreach((json_t *)(uintptr_t)o, key, v)
    {
        n += word_index(words, key, strlen(key)) < 0;
    }
    return n;
}
