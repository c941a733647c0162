/* JSON Schema (2020-12) -> expressions.
 *
 * Supported: boolean schemas; type (one or a list), nullable, enum, const; properties, required,
 * additionalProperties; items, prefixItems, minItems, maxItems; minLength, maxLength, pattern,
 * format (date, time, date-time, duration, email, hostname, ipv4, ipv6, uuid, uri); minimum,
 * maximum, exclusiveMinimum, exclusiveMaximum, multipleOf (whole numbers up to 1,000); anyOf, oneOf
 * (branches that visibly exclude one another), allOf, $ref into the schema, $defs, recursion.
 *
 *   1. What is generated always validates. Where a schema allows more than can be generated well,
 *      less is generated: properties come in the order of the schema; an object that names its
 *      properties has others only when additionalProperties says so, spelled without escapes; a
 *      schema that has keywords of some types and no type has those types; numbers with bounds have
 *      no exponent and at most six decimals; format narrows to common forms; and dates stop at
 *      February 28.
 *   2. A keyword that restricts values and is not supported is refused with its place. Unknown
 *      keywords and notes (title, description, default, ...) are ignored.
 *   3. Objects, arrays and targets of references are rules, so that nesting and recursion cost
 *      nothing but stack of the machine. */
#include "text/grammar_schema.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct mx_swhere below(const struct mx_swhere *w, const char *key)
{
    return (struct mx_swhere){w, key, 0};
}

static struct mx_gexpr *str(struct mx_schema *s, const char *text)
{
    return mx_gx_str(s->b, text);
}

/* ---- Refused keywords ---- */

static const char *const unsupported[] = {"not",
                                          "if",
                                          "then",
                                          "else",
                                          "dependentRequired",
                                          "dependencies",
                                          "contains",
                                          "minContains",
                                          "maxContains",
                                          "dependentSchemas",
                                          "propertyNames",
                                          "$dynamicRef",
                                          "$recursiveRef",
                                          "unevaluatedItems",
                                          "patternProperties"};

static bool check_keywords(struct mx_schema *s, const json_t *x, const struct mx_swhere *w)
{
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++)
        if (json_object_get(x, unsupported[i])) {
            mx_schema_fail(s, w, MTPLX_ERR_UNSUPPORTED, "the keyword %s is not supported",
                           unsupported[i]);
            return false;
        }
    const json_t *rest = json_object_get(x, "unevaluatedProperties");
    if (rest && !json_is_boolean(rest)) {
        mx_schema_fail(s, w, MTPLX_ERR_UNSUPPORTED,
                       "unevaluatedProperties is supported as true or false only");
        return false;
    }
    return true;
}

/* A count keyword, or `none` where absent; -2 with the build failed. */
static int count_of(struct mx_schema *s, const json_t *x, const char *key, int none,
                    const struct mx_swhere *w)
{
    const json_t *v = json_object_get(x, key);
    double n = json_number_value(v);
    if (!v)
        return none;
    if (!json_is_number(v) || n < 0 || n != floor(n)) {
        mx_schema_fail(s, w, MTPLX_ERR_ARGUMENT, "%s has to be a whole number that is not negative",
                       key);
        return -2;
    }
    return n > MX_GX_REPEAT ? MX_GX_REPEAT : (int)n;
}

/* ---- Literals ---- */

static struct mx_gexpr *json_literal(struct mx_schema *s, const json_t *v)
{
    if (json_is_string(v))
        return mx_gjson_literal(s->b, json_string_value(v), json_string_length(v));
    if (s->b->gemma && (json_is_object(v) || json_is_array(v)))
        return mx_gfail(s->b, MTPLX_ERR_UNSUPPORTED,
                        "objects and lists in enum or const are not supported for this syntax of "
                        "tool calls");
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (!text)
        return mx_gfail(s->b, MTPLX_ERR_MEMORY, "out of memory for a schema");
    struct mx_gexpr *x = mx_gx_str(s->b, text);
    free(text);
    return x;
}

static struct mx_gexpr *literals(struct mx_schema *s, const json_t *x, int types,
                                 const struct mx_swhere *w)
{
    static const char *const deep[] = {"pattern", "format",      "properties",          "required",
                                       "items",   "prefixItems", "additionalProperties"};
    const json_t *only = json_object_get(x, "const"), *list = json_object_get(x, "enum");
    struct mx_gxlist alts = {0};
    if (list && !json_is_array(list))
        return mx_schema_fail(s, w, MTPLX_ERR_ARGUMENT, "enum has to be a list");
    for (size_t i = 0; i < sizeof deep / sizeof *deep; i++)
        if (json_object_get(x, deep[i]))
            return mx_schema_fail(s, w, MTPLX_ERR_UNSUPPORTED,
                                  "enum or const beside %s is not supported", deep[i]);
    if (only && mx_schema_allows(x, types, only))
        mx_gxlist_put(s->b, &alts, json_literal(s, only));
    const json_t *rest = only ? x : mx_schema_without(s, x, "enum");
    for (size_t i = 0; !only && rest && i < json_array_size(list); i++)
        if (mx_schema_step(s, w) && mx_schema_allows(rest, types, json_array_get(list, i)))
            mx_gxlist_put(s->b, &alts, json_literal(s, json_array_get(list, i)));
    return mx_gx_alt(s->b, alts.n, alts.v);
}

/* ---- Strings ---- */

#define LABEL "[A-Za-z0-9]{1,20}(?:-[A-Za-z0-9]{1,20})?"
#define DATE                                                                                       \
    "[12]\\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])"                                    \
    "|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))"
#define TIME                                                                                       \
    "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-](?:0\\d|1[0-3]):[0-5]\\d)"
#define OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define HEX4 "[0-9A-Fa-f]{1,4}"
#define CLOCK "(?:\\d{1,4}H(?:\\d{1,4}M(?:\\d{1,4}S)?)?|\\d{1,4}M(?:\\d{1,4}S)?|\\d{1,4}S)"

static const struct {
    const char *name, *re; /* NULL: known, and not supported */
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"duration", "^P(?:\\d{1,4}W|(?:\\d{1,4}Y(?:\\d{1,4}M(?:\\d{1,4}D)?)?|\\d{1,4}M(?:\\d{1,4}D)?"
                 "|\\d{1,4}D)(?:T" CLOCK ")?|T" CLOCK ")$"},
    {"email", "^[A-Za-z0-9]{1,20}(?:[._+-][A-Za-z0-9]{1,20}){0,2}@" LABEL "(?:\\." LABEL
              "){0,2}\\.[A-Za-z]{2,10}$"},
    {"hostname", "^" LABEL "(?:\\." LABEL "){0,3}\\.[A-Za-z]{2,10}$"},
    {"ipv4", "^" OCTET "(?:\\." OCTET "){3}$"},
    {"ipv6",
     "^(?:(?:" HEX4 ":){7}" HEX4 "|(?:" HEX4 ":){1,6}:" HEX4 "|::(?:" HEX4 ":){0,5}" HEX4 "|::)$"},
    {"uuid", "^[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}$"},
    {"uri", "^https?://" LABEL "(?:\\." LABEL "){0,3}\\.[A-Za-z]{2,10}(?::[1-9]\\d{0,3})?"
            "(?:/[A-Za-z0-9._~-]{1,40}){0,8}/?(?:\\?[A-Za-z0-9=&_.-]{1,80})?$"},
    {"uri-reference", NULL},
    {"uri-template", NULL},
    {"iri", NULL},
    {"iri-reference", NULL},
    {"idn-email", NULL},
    {"idn-hostname", NULL},
    {"json-pointer", NULL},
    {"relative-json-pointer", NULL},
    {"regex", NULL},
};

/* The expression of format; *known: the name is one of the standard's. */
static const char *format_of(const char *name, bool *known)
{
    *known = false;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(name, formats[i].name) == 0) {
            *known = true;
            return formats[i].re;
        }
    return NULL;
}

static struct mx_gexpr *matched_string(struct mx_schema *s, const char *re, size_t len, int min,
                                       int max, const struct mx_swhere *w)
{
    struct mx_gexpr *x =
        mx_gregex(s->b, re, len, s->b->gemma ? MX_RE_MARKUP : MX_RE_JSON, mx_schema_where(s, w));
    if (!x)
        return NULL;
    int64_t least, most;
    mx_gregex_length(x, !s->b->gemma, &least, &most);
    if (least < min || (max >= 0 && (most < 0 || most > max)))
        return mx_schema_fail(
            s, w, MTPLX_ERR_UNSUPPORTED,
            "minLength or maxLength beside a pattern or format whose texts are "
            "not within them is not supported; write the length into the pattern");
    return MX_GX_SEQ(s->b, mx_gjson_quote(s->b), x, mx_gjson_quote(s->b));
}

static struct mx_gexpr *string(struct mx_schema *s, const json_t *x, const struct mx_swhere *w)
{
    const json_t *pattern = json_object_get(x, "pattern"), *format = json_object_get(x, "format");
    int min = count_of(s, x, "minLength", 0, w), max = count_of(s, x, "maxLength", -1, w);
    bool known = false;
    if (min == -2 || max == -2)
        return NULL;
    if ((pattern && !json_is_string(pattern)) || (format && !json_is_string(format)))
        return mx_schema_fail(s, w, MTPLX_ERR_ARGUMENT, "pattern and format have to be strings");
    const char *re = format ? format_of(json_string_value(format), &known) : NULL;
    if (known && (!re || pattern))
        return mx_schema_fail(s, w, MTPLX_ERR_UNSUPPORTED, "the format %.40s is not supported%s",
                              json_string_value(format), re ? " beside a pattern" : "");
    struct mx_swhere at = below(w, pattern ? "pattern" : "format");
    if (pattern)
        return matched_string(s, json_string_value(pattern), json_string_length(pattern), min, max,
                              &at);
    if (re)
        return matched_string(s, re, strlen(re), min, max, &at);
    if (max >= 0 && max < min)
        return mx_gx_fail(s->b);
    return min == 0 && max < 0 ? mx_gjson_string(s->b) : mx_gjson_string_len(s->b, min, max);
}

/* ---- Numbers ---- */

struct bounds {
    double lo, hi;
    bool open_lo, open_hi, any;
};

static bool bound(struct mx_schema *s, const json_t *x, const char *key, double *v,
                  const struct mx_swhere *w)
{
    const json_t *n = json_object_get(x, key);
    if (!n)
        return false;
    if (!json_is_number(n))
        mx_schema_fail(s, w, MTPLX_ERR_UNSUPPORTED, "%s has to be a number", key);
    *v = json_number_value(n);
    return true;
}

static struct bounds bounds_of(struct mx_schema *s, const json_t *x, const struct mx_swhere *w)
{
    struct bounds b = {.lo = -HUGE_VAL, .hi = HUGE_VAL};
    double v;
    if (bound(s, x, "minimum", &v, w)) {
        b.lo = v;
        b.any = true;
    }
    if (bound(s, x, "exclusiveMinimum", &v, w) && v >= b.lo) {
        b.lo = v;
        b.open_lo = b.any = true;
    }
    if (bound(s, x, "maximum", &v, w)) {
        b.hi = v;
        b.any = true;
    }
    if (bound(s, x, "exclusiveMaximum", &v, w) && v <= b.hi) {
        b.hi = v;
        b.open_hi = b.any = true;
    }
    if (bound(s, x, "exclusiveMinimum", &v, w) || bound(s, x, "exclusiveMaximum", &v, w))
        b.any = true;
    return b;
}

static struct mx_gexpr *integers(struct mx_schema *s, const struct bounds *b, int64_t multiple)
{
    double most = (double)MX_GNUM_MAX, lo = ceil(b->lo), hi = floor(b->hi);
    if (b->open_lo && lo == b->lo)
        lo += 1;
    if (b->open_hi && hi == b->hi)
        hi -= 1;
    lo = lo < -most ? -most : lo;
    hi = hi > most ? most : hi;
    if (!(lo <= hi) || lo > most || hi < -most)
        return mx_gx_fail(s->b);
    if (!b->any && multiple == 1)
        return mx_gjson_integer(s->b);
    return mx_gnum_integers(s->b, (int64_t)lo, (int64_t)hi, multiple);
}

static struct mx_gexpr *number(struct mx_schema *s, const json_t *x, bool integer,
                               const struct mx_swhere *w)
{
    struct bounds b = bounds_of(s, x, w);
    const json_t *multiple = json_object_get(x, "multipleOf");
    double m = json_number_value(multiple);
    if (multiple && (!json_is_number(multiple) || m <= 0))
        return mx_schema_fail(s, w, MTPLX_ERR_ARGUMENT, "multipleOf has to be a positive number");
    if (multiple && m == 1.0)
        integer = true;
    else if (multiple && (m != floor(m) || m > 1000) && !(integer && 1 / m == floor(1 / m)))
        return mx_schema_fail(s, w, MTPLX_ERR_UNSUPPORTED,
                              "multipleOf is supported for whole numbers up to 1,000");
    if (s->b->failed)
        return NULL;
    if (integer || multiple)
        return integers(s, &b, multiple && m >= 1 ? (int64_t)m : 1);
    return b.any ? mx_gnum_decimals(s->b, b.lo, b.open_lo, b.hi, b.open_hi) : mx_gjson_number(s->b);
}

/* ---- Objects ---- */

struct property {
    const char *name;
    const json_t *schema;
    bool required;
};

struct object {
    struct property *v;
    int n, required;
    const json_t *rest; /* schema of other properties, or NULL: none */
};

static bool named(const struct object *o, const char *name, struct property **out)
{
    for (int i = 0; i < o->n; i++)
        if (strcmp(o->v[i].name, name) == 0) {
            *out = &o->v[i];
            return true;
        }
    return false;
}

/* Names required but not described come last. */
static bool read_required(struct mx_schema *s, const json_t *x, struct object *o,
                          const struct mx_swhere *w)
{
    const json_t *list = json_object_get(x, "required"), *rest;
    rest = json_object_get(x, "additionalProperties");
    if (list && !json_is_array(list))
        return mx_schema_fail(s, w, MTPLX_ERR_ARGUMENT, "required has to be a list of names");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        struct property *p;
        if (!mx_schema_step(s, w))
            return false;
        if (!name)
            return mx_schema_fail(s, w, MTPLX_ERR_ARGUMENT, "required has to be a list of names");
        if (!named(o, name, &p)) {
            p = &o->v[o->n++];
            *p = (struct property){.name = name, .schema = rest ? rest : json_true()};
        }
        o->required += !p->required;
        p->required = true;
    }
    return true;
}

static bool read_object(struct mx_schema *s, const json_t *x, struct object *o,
                        const struct mx_swhere *w)
{
    json_t *props = json_object_get(x, "properties"), *v;
    const json_t *rest = json_object_get(x, "additionalProperties");
    const json_t *closed = json_object_get(x, "unevaluatedProperties");
    const char *key;
    if (props && !json_is_object(props))
        return mx_schema_fail(s, w, MTPLX_ERR_ARGUMENT, "properties has to be an object");
    size_t most = json_object_size(props) + json_array_size(json_object_get(x, "required"));
    o->v = mx_galloc(s->b, (most + 1) * sizeof *o->v);
    if (!o->v)
        return false;
    json_object_foreach(props, key, v) o->v[o->n++] = (struct property){.name = key, .schema = v};
    if (!read_required(s, x, o, w))
        return false;
    o->rest = rest ? rest : o->n == 0 && !json_is_false(closed) ? json_true() : NULL;
    if (json_is_false(o->rest))
        o->rest = NULL;
    return true;
}

static bool check_counts(struct mx_schema *s, const json_t *x, const struct object *o,
                         const struct mx_swhere *w)
{
    int min = count_of(s, x, "minProperties", 0, w), max = count_of(s, x, "maxProperties", -1, w);
    if (min == -2 || max == -2)
        return false;
    if (min > o->required || (max >= 0 && (o->rest || max < o->n)))
        return mx_schema_fail(s, w, MTPLX_ERR_UNSUPPORTED,
                              "minProperties and maxProperties are supported where required and "
                              "properties imply them");
    return true;
}

static struct mx_gexpr *pair(struct mx_schema *s, struct mx_gexpr *key, const json_t *schema,
                             const struct mx_swhere *w)
{
    return MX_GX_SEQ(s->b, key, str(s, ":"), mx_gjson_ws(s->b), mx_schema_value(s, schema, w));
}

static struct mx_gexpr *other_pair(struct mx_schema *s, const struct object *o,
                                   const struct mx_swhere *w)
{
    struct mx_swhere at = below(w, "additionalProperties");
    const char **names = mx_galloc(s->b, ((size_t)o->n + 1) * sizeof *names);
    if (!names)
        return NULL;
    for (int i = 0; i < o->n; i++)
        names[i] = o->v[i].name;
    return pair(s, o->n ? mx_gjson_other_key(s->b, names, o->n) : mx_gjson_any_key(s->b), o->rest,
                &at);
}

/* Rule first + 2 i: property i or a later one follows; first + 2 i + 1: a comma and one of these
 * follow, or the end. */
static struct mx_gexpr *object_rules(struct mx_schema *s, const struct object *o,
                                     const struct mx_swhere *w)
{
    struct mx_gbuild *b = s->b;
    struct mx_swhere props = below(w, "properties");
    struct mx_gexpr *ws = mx_gjson_ws(b), *end = MX_GX_SEQ(b, ws, str(s, "}"));
    int first = -1, left = o->required;
    for (int i = 0; i < 2 * (o->n + 1); i++) {
        int rule = mx_grule_new(b);
        first = i ? first : rule;
    }
    if (b->failed)
        return NULL;
    for (int i = 0; i <= o->n && !b->failed; i++) {
        int here = first + 2 * i;
        struct mx_gexpr *next = MX_GX_SEQ(b, str(s, ","), ws, mx_gx_ref(b, here));
        mx_grule_set(b, here + 1, left ? next : MX_GX_ALT(b, next, end));
        if (i == o->n) {
            mx_grule_set(b, here,
                         o->rest ? MX_GX_SEQ(b, other_pair(s, o, w), mx_gx_ref(b, here + 1))
                                 : mx_gx_fail(b));
            break;
        }
        const struct property *p = &o->v[i];
        struct mx_swhere at = below(&props, p->name);
        struct mx_gexpr *key = mx_gjson_key(b, p->name, strlen(p->name));
        struct mx_gexpr *it = MX_GX_SEQ(b, pair(s, key, p->schema, &at), mx_gx_ref(b, here + 3));
        mx_grule_set(b, here, p->required ? it : MX_GX_ALT(b, it, mx_gx_ref(b, here + 2)));
        left -= p->required;
    }
    struct mx_gexpr *inner = mx_gx_ref(b, first);
    if (o->required == 0)
        inner = MX_GX_ALT(b, inner, str(s, "}"));
    return MX_GX_SEQ(b, str(s, "{"), ws, inner);
}

static struct mx_gexpr *object(struct mx_schema *s, const json_t *x, const struct mx_swhere *w)
{
    struct object o = {0};
    if (!read_object(s, x, &o, w) || !check_counts(s, x, &o, w))
        return NULL;
    if (o.n == 0 && json_is_true(o.rest))
        return mx_gjson_object(s->b);
    int rule = mx_grule_new(s->b);
    mx_grule_set(s->b, rule, object_rules(s, &o, w));
    return mx_gx_ref(s->b, rule);
}

/* ---- Arrays ---- */

struct array {
    const json_t *prefix, *items; /* items NULL: none behind the prefix */
    int n, min, max;
};

static bool read_array(struct mx_schema *s, const json_t *x, struct array *a,
                       const struct mx_swhere *w)
{
    a->prefix = json_object_get(x, "prefixItems");
    a->items = json_object_get(x, "items");
    if (json_is_array(a->items) || (a->prefix && !json_is_array(a->prefix)))
        return mx_schema_fail(s, w, MTPLX_ERR_UNSUPPORTED,
                              "lists of schemas for items belong into prefixItems");
    a->n = (int)json_array_size(a->prefix);
    a->min = count_of(s, x, "minItems", 0, w);
    a->max = count_of(s, x, "maxItems", -1, w);
    if (a->min == -2 || a->max == -2)
        return false;
    if (!a->items && (a->n == 0 || a->min > a->n))
        a->items = json_true();
    if (json_is_false(a->items))
        a->items = NULL;
    if (!a->items && (a->max < 0 || a->max > a->n))
        a->max = a->n;
    if (json_is_true(json_object_get(x, "uniqueItems")) && !(a->max >= 0 && a->max <= 1))
        return mx_schema_fail(s, w, MTPLX_ERR_UNSUPPORTED, "uniqueItems is not supported");
    return true;
}

/* All items behind the prefix, and the end. */
static struct mx_gexpr *array_rest(struct mx_schema *s, const struct array *a,
                                   const struct mx_swhere *w)
{
    struct mx_gbuild *b = s->b;
    struct mx_swhere at = below(w, "items");
    struct mx_gexpr *ws = mx_gjson_ws(b), *end = MX_GX_SEQ(b, ws, str(s, "]"));
    if (!a->items || (a->max >= 0 && a->max <= a->n))
        return mx_gx_fail(b);
    struct mx_gexpr *item = mx_schema_value(s, a->items, &at);
    int min = a->min - a->n - 1, max = a->max < 0 ? -1 : a->max - a->n - 1;
    struct mx_gexpr *more = MX_GX_SEQ(b, str(s, ","), ws, item);
    return MX_GX_SEQ(b, item, mx_gx_rep(b, more, min > 0 ? min : 0, max), end);
}

/* Rule first + 2 i: item i follows; first + 2 i + 1: a comma and item i, or the end. */
static struct mx_gexpr *array_rules(struct mx_schema *s, const struct array *a,
                                    const struct mx_swhere *w)
{
    struct mx_gbuild *b = s->b;
    struct mx_swhere prefix = below(w, "prefixItems");
    struct mx_gexpr *ws = mx_gjson_ws(b), *end = MX_GX_SEQ(b, ws, str(s, "]"));
    int first = -1;
    for (int i = 0; i < 2 * (a->n + 1); i++) {
        int rule = mx_grule_new(b);
        first = i ? first : rule;
    }
    for (int i = 0; i <= a->n && !b->failed; i++) {
        int here = first + 2 * i;
        bool room = a->max < 0 || i < a->max;
        struct mx_gexpr *next =
            room ? MX_GX_SEQ(b, str(s, ","), ws, mx_gx_ref(b, here)) : mx_gx_fail(b);
        mx_grule_set(b, here + 1, i < a->min ? next : MX_GX_ALT(b, next, end));
        if (i == a->n) {
            mx_grule_set(b, here, array_rest(s, a, w));
            break;
        }
        struct mx_swhere at = {&prefix, NULL, (size_t)i};
        mx_grule_set(b, here,
                     MX_GX_SEQ(b, mx_schema_value(s, json_array_get(a->prefix, (size_t)i), &at),
                               mx_gx_ref(b, here + 3)));
    }
    struct mx_gexpr *inner = a->max == 0 ? mx_gx_fail(b) : mx_gx_ref(b, first);
    if (a->min == 0)
        inner = MX_GX_ALT(b, inner, str(s, "]"));
    return MX_GX_SEQ(b, str(s, "["), ws, inner);
}

static struct mx_gexpr *array(struct mx_schema *s, const json_t *x, const struct mx_swhere *w)
{
    struct array a = {0};
    if (!read_array(s, x, &a, w))
        return NULL;
    if (a.max >= 0 && a.max < a.min)
        return mx_gx_fail(s->b);
    if (a.n == 0 && json_is_true(a.items) && a.min == 0 && a.max < 0)
        return mx_gjson_array(s->b);
    int rule = mx_grule_new(s->b);
    mx_grule_set(s->b, rule, array_rules(s, &a, w));
    return mx_gx_ref(s->b, rule);
}

/* ---- Any schema ---- */

/* The types whose keywords a schema without type has; 0: none. */
static int types_of_keywords(const json_t *x)
{
    static const struct {
        const char *key;
        int type;
    } keys[] = {{"properties", MX_T_OBJECT},
                {"required", MX_T_OBJECT},
                {"additionalProperties", MX_T_OBJECT},
                {"minProperties", MX_T_OBJECT},
                {"maxProperties", MX_T_OBJECT},
                {"items", MX_T_ARRAY},
                {"prefixItems", MX_T_ARRAY},
                {"minItems", MX_T_ARRAY},
                {"maxItems", MX_T_ARRAY},
                {"uniqueItems", MX_T_ARRAY},
                {"pattern", MX_T_STRING},
                {"format", MX_T_STRING},
                {"minLength", MX_T_STRING},
                {"maxLength", MX_T_STRING},
                {"minimum", MX_T_NUMBER},
                {"maximum", MX_T_NUMBER},
                {"exclusiveMinimum", MX_T_NUMBER},
                {"exclusiveMaximum", MX_T_NUMBER},
                {"multipleOf", MX_T_NUMBER},
                {"unevaluatedProperties", MX_T_OBJECT}};
    int set = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (json_object_get(x, keys[i].key))
            set |= keys[i].type;
    return set;
}

static struct mx_gexpr *of_types(struct mx_schema *s, const json_t *x, int types,
                                 const struct mx_swhere *w)
{
    struct mx_gxlist alts = {0};
    struct mx_gbuild *b = s->b;
    if (types & MX_T_OBJECT)
        mx_gxlist_put(b, &alts, object(s, x, w));
    if (types & MX_T_ARRAY)
        mx_gxlist_put(b, &alts, array(s, x, w));
    if (types & MX_T_STRING)
        mx_gxlist_put(b, &alts, string(s, x, w));
    if (types & (MX_T_NUMBER | MX_T_INTEGER))
        mx_gxlist_put(b, &alts, number(s, x, !(types & MX_T_NUMBER), w));
    if (types & MX_T_BOOLEAN)
        mx_gxlist_put(b, &alts, MX_GX_ALT(b, str(s, "true"), str(s, "false")));
    if (types & MX_T_NULL)
        mx_gxlist_put(b, &alts, str(s, "null"));
    return mx_gx_alt(b, alts.n, alts.v);
}

/* True when the schema says nothing about values, but for a reference. */
static bool only_notes(const json_t *schema)
{
    static const char *const notes[] = {"$ref",     "title",      "description", "default",
                                        "examples", "$defs",      "$schema",     "$id",
                                        "$comment", "definitions"};
    size_t n = 0;
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++)
        n += json_object_get(schema, notes[i]) != NULL;
    return n == json_object_size(schema);
}

/* Each branch together with the keywords beside them. */
static struct mx_gexpr *branches(struct mx_schema *s, const json_t *x, const char *key,
                                 const struct mx_swhere *w)
{
    const json_t *list = json_object_get(x, key), *base = mx_schema_without(s, x, key);
    struct mx_swhere at = below(w, key);
    struct mx_gxlist alts = {0};
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n == 0)
        return mx_schema_fail(s, &at, MTPLX_ERR_ARGUMENT, "a list of schemas is wanted here");
    for (size_t i = 0; i < n && base; i++) {
        struct mx_swhere one = {&at, NULL, i};
        for (size_t k = 0; k < i && strcmp(key, "oneOf") == 0; k++)
            if (!mx_schema_step(s, w) ||
                !mx_schema_disjoint(s, json_array_get(list, i), json_array_get(list, k), &one))
                return mx_schema_fail(s, &one, MTPLX_ERR_UNSUPPORTED,
                                      "this branch of oneOf may allow the same values as branch "
                                      "%zu; use anyOf, or a required property with different "
                                      "const values",
                                      k);
        /* A branch alone stays a reference, which may recurse. */
        const json_t *branch = json_array_get(list, i);
        const json_t *both = only_notes(base) ? branch : mx_schema_both(s, base, branch, &one);
        mx_gxlist_put(s->b, &alts, both ? mx_schema_value(s, both, &one) : NULL);
        if (!both)
            return NULL;
    }
    return s->b->failed ? NULL : mx_gx_alt(s->b, alts.n, alts.v);
}

static struct mx_gexpr *flat_value(struct mx_schema *s, const json_t *x, const struct mx_swhere *w)
{
    if (json_is_true(x))
        return mx_gjson_value(s->b);
    if (json_is_false(x))
        return mx_gx_fail(s->b);
    if (!check_keywords(s, x, w))
        return NULL;
    if (json_object_get(x, "anyOf"))
        return branches(s, x, "anyOf", w);
    if (json_object_get(x, "oneOf"))
        return branches(s, x, "oneOf", w);
    int types = mx_schema_types(s, x, w);
    if (types < 0)
        return NULL;
    if (json_object_get(x, "const") || json_object_get(x, "enum"))
        return literals(s, x, types, w);
    if (!types)
        types = types_of_keywords(x);
    return types ? of_types(s, x, types, w) : mx_gjson_value(s->b);
}

static int rule_of(struct mx_schema *s, const json_t *target, bool *make)
{
    *make = false;
    for (int i = 0; i < s->n_refs; i++)
        if (s->refs[i].target == target)
            return s->refs[i].rule;
    if (s->n_refs == s->cap_refs) {
        int cap = s->cap_refs ? 2 * s->cap_refs : 16;
        struct mx_sref *v = mx_galloc(s->b, (size_t)cap * sizeof *v);
        if (!v)
            return -1;
        if (s->n_refs)
            memcpy(v, s->refs, (size_t)s->n_refs * sizeof *v);
        s->refs = v;
        s->cap_refs = cap;
    }
    *make = true;
    s->refs[s->n_refs] = (struct mx_sref){target, mx_grule_new(s->b)};
    return s->refs[s->n_refs++].rule;
}

/* A reference that stands alone: the target's rule. */
static struct mx_gexpr *reference(struct mx_schema *s, const json_t *target,
                                  const struct mx_swhere *w)
{
    bool make;
    int rule = rule_of(s, target, &make);
    if (make && rule >= 0)
        mx_grule_set(s->b, rule, mx_schema_value(s, target, w));
    return s->b->failed ? NULL : mx_gx_ref(s->b, rule);
}

struct mx_gexpr *mx_schema_value(struct mx_schema *s, const json_t *schema,
                                 const struct mx_swhere *w)
{
    if (s->depth >= MX_SCHEMA_DEPTH)
        return mx_schema_fail(s, w, MTPLX_ERR_LIMIT, "the schema nests more than %d levels deep",
                              MX_SCHEMA_DEPTH);
    if (!mx_schema_step(s, w))
        return NULL;
    struct mx_gexpr *x = NULL;
    s->depth++;
    const json_t *ref = json_object_get(schema, "$ref");
    if (ref && only_notes(schema)) {
        const json_t *target = mx_schema_target(s, ref, w);
        x = target ? reference(s, target, w) : NULL;
    } else {
        const json_t *one = mx_schema_flat(s, schema, w);
        x = one ? flat_value(s, one, w) : NULL;
    }
    s->depth--;
    return x;
}

/* ---- Parameters of tools ---- */

const char *mx_schema_format(const char *name)
{
    bool known;
    return name ? format_of(name, &known) : NULL;
}

bool mx_schema_keywords(const json_t *x)
{
    return types_of_keywords(x) != 0;
}

bool mx_schema_may_be_string(struct mx_schema *s, const json_t *x, const struct mx_swhere *w)
{
    static const char *const keys[] = {"anyOf", "oneOf"};
    for (int k = 0; k < 2; k++) {
        const json_t *list = json_object_get(x, keys[k]);
        for (size_t i = 0; i < json_array_size(list); i++) {
            const json_t *one = mx_schema_flat(s, json_array_get(list, i), w);
            if (!one || !mx_schema_step(s, w))
                return false;
            if (json_is_true(one))
                return true;
            int types = json_is_object(one) ? mx_schema_types(s, one, w) : MX_T_NULL;
            if (types == 0 || types & MX_T_STRING)
                return true;
        }
    }
    return false;
}

struct mx_gexpr *mx_schema_members(struct mx_schema *s, const json_t *x, const struct mx_swhere *w,
                                   mx_member_fn *member, void *arg)
{
    struct mx_gbuild *b = s->b;
    struct object o = {0};
    if (!check_keywords(s, x, w) || !read_object(s, x, &o, w) || !check_counts(s, x, &o, w))
        return NULL;
    struct mx_swhere props = below(w, "properties");
    /* From the last to the first, each with the rule of those behind it. */
    struct mx_gexpr *rest = mx_gx_empty(b);
    if (o.rest) {
        const char **names = mx_galloc(b, ((size_t)o.n + 1) * sizeof *names);
        for (int i = 0; names && i < o.n; i++)
            names[i] = o.v[i].name;
        rest = mx_gx_rep(b, member(arg, NULL, names, o.n, o.rest, w), 0, -1);
    }
    for (int i = o.n - 1; i >= 0 && !b->failed; i--) {
        struct mx_swhere at = below(&props, o.v[i].name);
        int rule = mx_grule_new(b);
        struct mx_gexpr *one = member(arg, o.v[i].name, NULL, 0, o.v[i].schema, &at);
        mx_grule_set(b, rule, MX_GX_SEQ(b, o.v[i].required ? one : mx_gx_opt(b, one), rest));
        rest = mx_gx_ref(b, rule);
    }
    return b->failed ? NULL : rest;
}

bool mx_schema_open(struct mx_schema *s, struct mx_gbuild *b, const json_t *root, const char *where)
{
    *s = (struct mx_schema){.b = b, .root = root, .root_where = where, .made = json_array()};
    if (!s->made)
        mx_gfail(b, MTPLX_ERR_MEMORY, "out of memory for a schema");
    return s->made != NULL;
}

void mx_schema_close(struct mx_schema *s)
{
    json_decref(s->made);
}

struct mx_gexpr *mx_gschema(struct mx_gbuild *b, const json_t *schema, const char *where)
{
    struct mx_schema s;
    if (!mx_schema_open(&s, b, schema, where))
        return NULL;
    struct mx_gexpr *x = reference(&s, schema, NULL);
    mx_schema_close(&s);
    return x;
}
