/* Jinja values: construction in the render's arena, JSON import, Python's truth, equality, order,
 * hashing, length and iteration.
 *
 * Every walk over nested values goes through mx_jenter(), so that values nested by a template
 * (x = [x] in a loop) end in an error instead of a stack overflow. */
#include "base/utf8.h"
#include "text/jinja_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Errors and budgets ------------------------------------------------------------------- */

static bool fail_with(struct mx_jrun *r, mtplx_status status, const char *fmt, va_list ap)
{
    char text[480];
    vsnprintf(text, sizeof text, fmt, ap);
    mx_error(r->err, status, "%s line %d: %s", r->j->name, r->line, text);
    return false;
}

bool mx_jfail(struct mx_jrun *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fail_with(r, MTPLX_ERR_FORMAT, fmt, ap);
    va_end(ap);
    return false;
}

bool mx_jraise(struct mx_jrun *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fail_with(r, MTPLX_ERR_ARGUMENT, fmt, ap);
    va_end(ap);
    return false;
}

bool mx_jfail_limit(struct mx_jrun *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fail_with(r, MTPLX_ERR_LIMIT, fmt, ap);
    va_end(ap);
    return false;
}

bool mx_jfail_undef(struct mx_jrun *r, const struct mx_jval *v)
{
    const struct mx_jstr none = {.p = "?", .len = 1}, *name = v->u.s ? v->u.s : &none;
    int n = name->len > 200 ? 200 : (int)name->len;
    struct mx_jval of = {.type = v->of};
    const char *type = of.type == MX_J_NONE ? "None" : mx_jtype_name(&of);
    const char *object = of.type == MX_J_NONE ? "" : " object";
    switch (v->why) {
    case MX_JU_ATTR: return mx_jfail(r, "'%s%s' has no attribute '%.*s'", type, object, n, name->p);
    case MX_JU_INDEX: return mx_jfail(r, "%s%s has no element %.*s", type, object, n, name->p);
    case MX_JU_PARAM: return mx_jfail(r, "parameter '%.*s' was not provided", n, name->p);
    case MX_JU_NO_ELSE:
        return mx_jfail(r, "the condition of an inline if was false and it has no else");
    case MX_JU_EMPTY: return mx_jfail(r, "no item: the sequence was empty");
    case MX_JU_FORBIDDEN:
        return mx_jfail(r,
                        "'%.*s' would change a %s, which the sandbox forbids; build a new value "
                        "or use a namespace",
                        n, name->p, type);
    default: return mx_jfail(r, "'%.*s' is undefined", n, name->p);
    }
}

bool mx_jstep(struct mx_jrun *r, size_t cost)
{
    r->steps += cost;
    if (r->steps > r->max_steps || cost > r->max_steps)
        return mx_jfail_limit(r, "the template takes more than %llu steps",
                              (unsigned long long)r->max_steps);
    return true;
}

bool mx_jenter(struct mx_jrun *r)
{
    if (++r->depth <= r->max_depth)
        return true;
    r->depth--;
    return mx_jfail_limit(r, "calls, expressions or values are nested deeper than %d",
                          r->max_depth);
}

void *mx_jalloc(struct mx_jrun *r, size_t n, size_t size)
{
    size_t bytes;
    void *p = NULL;
    if (!__builtin_mul_overflow(n, size, &bytes))
        p = mx_arena_alloc(&r->arena, bytes);
    if (!p)
        mx_jfail_limit(r, "the template needs more than %zu bytes of memory", r->arena.limit);
    return p;
}

/* ---- Strings ------------------------------------------------------------------------------ */

bool mx_jascii(const char *p, size_t len)
{
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        uint64_t w;
        memcpy(&w, p + i, 8);
        if (w & 0x8080808080808080u)
            return false;
    }
    for (; i < len; i++) {
        if ((unsigned char)p[i] >= 0x80)
            return false;
    }
    return true;
}

static struct mx_jstr *new_str(struct mx_jrun *r, const char *p, size_t len, bool ascii)
{
    struct mx_jstr *s = mx_jalloc(r, 1, sizeof *s);
    if (s)
        *s = (struct mx_jstr){.p = p, .len = len, .ascii = ascii};
    return s;
}

bool mx_jstr_view(struct mx_jrun *r, const char *p, size_t len, struct mx_jval *out)
{
    if (!mx_jstep(r, len / 256))
        return false;
    struct mx_jstr *s = new_str(r, p, len, mx_jascii(p, len));
    if (s)
        *out = mx_jstrval(s);
    return s != NULL;
}

bool mx_jstr_copy(struct mx_jrun *r, const char *p, size_t len, struct mx_jval *out)
{
    char *q = mx_jalloc(r, len, 1);
    if (!q)
        return false;
    if (len)
        memcpy(q, p, len);
    return mx_jstr_view(r, q, len, out);
}

bool mx_jstr_sub(struct mx_jrun *r, const struct mx_jstr *s, size_t from, size_t to,
                 struct mx_jval *out)
{
    if (from == 0 && to == s->len) {
        *out = mx_jstrval(s);
        return true;
    }
    struct mx_jstr *t;
    if (!s->ascii)
        return mx_jstr_view(r, s->p + from, to - from, out);
    t = new_str(r, s->p + from, to - from, true);
    if (t)
        *out = mx_jstrval(t);
    return t != NULL;
}

/* A longer string gets free space behind it; when it is the last user of that space, `+` only
 * appends. The bytes of the left operand never change. */
bool mx_jstr_concat(struct mx_jrun *r, const struct mx_jstr *a, const struct mx_jstr *b,
                    struct mx_jval *out)
{
    if (a->len == 0 || b->len == 0) {
        *out = mx_jstrval(a->len ? a : b);
        return true;
    }
    size_t total;
    if (__builtin_add_overflow(a->len, b->len, &total))
        return mx_jfail_limit(r, "string is too long");
    struct mx_jspace *sp = a->space;
    bool fits = sp && a->p + a->len == sp->data + sp->used && sp->cap - sp->used >= b->len;
    if (!mx_jstep(r, (fits ? b->len : total) / 256))
        return false;
    if (!fits) {
        size_t cap = total < 64 || total > SIZE_MAX / 2 ? total : 2 * total;
        sp = mx_jalloc(r, 1, sizeof *sp);
        char *data = sp ? mx_jalloc(r, cap, 1) : NULL;
        if (!data)
            return false;
        *sp = (struct mx_jspace){.data = data, .used = a->len, .cap = cap};
        memcpy(data, a->p, a->len);
    }
    memcpy(sp->data + sp->used, b->p, b->len);
    sp->used += b->len;
    struct mx_jstr *s = new_str(r, sp->data + sp->used - total, total, a->ascii && b->ascii);
    if (!s)
        return false;
    s->space = sp;
    *out = mx_jstrval(s);
    return true;
}

bool mx_jstr_mark_safe(struct mx_jrun *r, struct mx_jval *v)
{
    if (v->u.s->safe)
        return true;
    struct mx_jstr *s = mx_jalloc(r, 1, sizeof *s);
    if (!s)
        return false;
    *s = *v->u.s;
    s->safe = true;
    v->u.s = s;
    return true;
}

bool mx_jstr_is(const struct mx_jstr *s, const char *text)
{
    return s->len == strlen(text) && memcmp(s->p, text, s->len) == 0;
}

size_t mx_jstr_count(const struct mx_jstr *s)
{
    return s->ascii ? s->len : mx_utf8_count(s->p, s->len);
}

size_t mx_jstr_offset(const struct mx_jstr *s, size_t k)
{
    if (s->ascii)
        return k < s->len ? k : s->len;
    size_t at = 0;
    while (at < s->len && k > 0) {
        at++;
        while (at < s->len && ((unsigned char)s->p[at] & 0xc0) == 0x80)
            at++;
        k--;
    }
    return at;
}

/* ---- Lists -------------------------------------------------------------------------------- */

struct mx_jlist *mx_jlist_new(struct mx_jrun *r, size_t cap)
{
    struct mx_jlist *l = mx_jalloc(r, 1, sizeof *l);
    if (!l || cap == 0)
        return l;
    l->v = mx_jalloc(r, cap, sizeof *l->v);
    l->cap = cap;
    return l->v ? l : NULL;
}

bool mx_jlist_push(struct mx_jrun *r, struct mx_jlist *l, const struct mx_jval *v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 8;
        struct mx_jval *grown = mx_jalloc(r, cap, sizeof *grown);
        if (!grown || !mx_jstep(r, l->n / 16))
            return false;
        if (l->n)
            memcpy(grown, l->v, l->n * sizeof *grown);
        l->v = grown;
        l->cap = cap;
    }
    l->v[l->n++] = *v;
    return true;
}

struct mx_jval mx_jlistval(enum mx_jtype type, struct mx_jlist *l)
{
    return (struct mx_jval){.type = (uint8_t)type, .u.l = l};
}

bool mx_jtuple(struct mx_jrun *r, const struct mx_jval *v, size_t n, struct mx_jval *out)
{
    struct mx_jlist *l = mx_jlist_new(r, n);
    if (!l)
        return false;
    if (n)
        memcpy(l->v, v, n * sizeof *v);
    l->n = n;
    *out = mx_jlistval(MX_J_TUPLE, l);
    return true;
}

/* ---- Dicts -------------------------------------------------------------------------------- */

enum { SMALL_DICT = 8 }; /* up to here a linear scan beats an index */

static uint64_t mix(uint64_t h, uint64_t w)
{
    h = (h ^ w) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static uint64_t hash_bytes(uint64_t seed, const char *p, size_t len)
{
    uint64_t h = mix(seed, len), w;
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        memcpy(&w, p + i, 8);
        h = mix(h, w);
    }
    w = 0;
    if (i < len)
        memcpy(&w, p + i, len - i);
    return mix(h, w);
}

/* Numbers that compare equal hash alike: whole floats as the integer. */
static uint64_t hash_number(uint64_t seed, double f)
{
    if (f >= -9e18 && f <= 9e18 && f == floor(f))
        return mix(seed, (uint64_t)(int64_t)f);
    uint64_t w;
    memcpy(&w, &f, 8);
    return mix(seed ^ 1, w);
}

static bool hash_value(struct mx_jrun *r, const struct mx_jval *v, uint64_t *out)
{
    switch (v->type) {
    case MX_J_STR:
        *out = hash_bytes(r->seed, v->u.s->p, v->u.s->len);
        return mx_jstep(r, v->u.s->len / 256);
    case MX_J_BOOL: *out = mix(r->seed, v->u.b); return true;
    case MX_J_INT: *out = mix(r->seed, (uint64_t)v->u.i); return true;
    case MX_J_FLOAT: *out = hash_number(r->seed, v->u.f); return true;
    case MX_J_TUPLE: {
        if (!mx_jenter(r) || !mx_jstep(r, v->u.l->n))
            return false;
        uint64_t h = r->seed ^ v->type, w;
        bool ok = true;
        for (size_t i = 0; ok && i < v->u.l->n; i++) {
            ok = hash_value(r, &v->u.l->v[i], &w);
            h = ok ? mix(h, w) : h;
        }
        mx_jleave(r);
        *out = h;
        return ok;
    }
    case MX_J_LIST:
    case MX_J_VIEW:
    case MX_J_DICT: return mx_jfail(r, "unhashable type: '%s'", mx_jtype_name(v));
    case MX_J_UNDEF:
    case MX_J_NONE: *out = mix(r->seed, 0x100u + v->type); return true;
    case MX_J_RANGE: *out = mix(r->seed ^ v->type, v->u.r->n); return true;
    default: *out = mix(r->seed ^ v->type, (uint64_t)(uintptr_t)v->u.s); return true;
    }
}

bool mx_jhashable(const struct mx_jval *v)
{
    if (v->type != MX_J_TUPLE)
        return v->type != MX_J_LIST && v->type != MX_J_VIEW && v->type != MX_J_DICT;
    for (size_t i = 0; i < v->u.l->n; i++) {
        const struct mx_jval *e = &v->u.l->v[i];
        if (e->type == MX_J_TUPLE || !mx_jhashable(e))
            return false; /* nested tuples as keys are not worth a recursive walk */
    }
    return true;
}

struct mx_jdict *mx_jdict_new(struct mx_jrun *r, size_t cap)
{
    struct mx_jdict *d = mx_jalloc(r, 1, sizeof *d);
    if (!d || cap == 0)
        return d;
    d->v = mx_jalloc(r, cap, sizeof *d->v);
    d->cap = cap;
    return d->v ? d : NULL;
}

static void index_entry(struct mx_jdict *d, size_t entry)
{
    size_t at = d->v[entry].hash & d->mask;
    while (d->index[at])
        at = (at + 1) & d->mask;
    d->index[at] = (uint32_t)entry + 1;
}

static bool build_index(struct mx_jrun *r, struct mx_jdict *d)
{
    size_t size = 32;
    while (size < 2 * d->cap)
        size *= 2;
    d->index = mx_jalloc(r, size, sizeof *d->index);
    if (!d->index || !mx_jstep(r, d->n))
        return false;
    d->mask = size - 1;
    for (size_t i = 0; i < d->n; i++)
        index_entry(d, i);
    return true;
}

static bool same_key(struct mx_jrun *r, const struct mx_jentry *e, const struct mx_jval *key,
                     uint64_t hash, bool *out)
{
    *out = false;
    return e->hash != hash || mx_jequal(r, &e->key, key, out);
}

/* Finds the entry of `key`; *out is NULL when there is none. */
static bool find_entry(struct mx_jrun *r, const struct mx_jdict *d, const struct mx_jval *key,
                       uint64_t hash, struct mx_jentry **out)
{
    bool same = false;
    *out = NULL;
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++) {
            if (!same_key(r, &d->v[i], key, hash, &same))
                return false;
            if (same) {
                *out = &d->v[i];
                return true;
            }
        }
        return true;
    }
    for (size_t at = hash & d->mask; d->index[at]; at = (at + 1) & d->mask) {
        struct mx_jentry *e = &d->v[d->index[at] - 1];
        if (!mx_jstep(r, 1) || !same_key(r, e, key, hash, &same))
            return false;
        if (same) {
            *out = e;
            return true;
        }
    }
    return true;
}

static bool grow_dict(struct mx_jrun *r, struct mx_jdict *d)
{
    size_t cap = d->cap ? 2 * d->cap : 4;
    if (cap > UINT32_MAX / 2)
        return mx_jfail_limit(r, "dict is too large");
    struct mx_jentry *v = mx_jalloc(r, cap, sizeof *v);
    if (!v || !mx_jstep(r, d->n / 8))
        return false;
    if (d->n)
        memcpy(v, d->v, d->n * sizeof *v);
    d->v = v;
    d->cap = cap;
    return cap <= SMALL_DICT || build_index(r, d);
}

bool mx_jdict_set(struct mx_jrun *r, struct mx_jdict *d, const struct mx_jval *key,
                  const struct mx_jval *value)
{
    uint64_t hash = 0;
    struct mx_jentry *e;
    if (!hash_value(r, key, &hash) || !find_entry(r, d, key, hash, &e))
        return false;
    if (e) {
        e->value = *value;
        return true;
    }
    if (d->n == d->cap && !grow_dict(r, d))
        return false;
    if (d->cap > SMALL_DICT && !d->index && !build_index(r, d))
        return false;
    d->v[d->n] = (struct mx_jentry){.key = *key, .value = *value, .hash = hash};
    if (d->index)
        index_entry(d, d->n);
    d->n++;
    return true;
}

bool mx_jdict_get(struct mx_jrun *r, const struct mx_jdict *d, const struct mx_jval *key,
                  struct mx_jval **out)
{
    uint64_t hash = 0;
    struct mx_jentry *e;
    if (!hash_value(r, key, &hash) || !find_entry(r, d, key, hash, &e))
        return false;
    *out = e ? &e->value : NULL;
    return true;
}

bool mx_jdict_get_str(struct mx_jrun *r, const struct mx_jdict *d, const struct mx_jstr *key,
                      struct mx_jval **out)
{
    struct mx_jval k = mx_jstrval(key);
    return mx_jdict_get(r, d, &k, out);
}

/* ---- JSON --------------------------------------------------------------------------------- */

static bool from_text(struct mx_jrun *r, const char *p, size_t n, bool copy, struct mx_jval *out)
{
    if (!(copy ? mx_jstr_copy(r, p, n, out) : mx_jstr_view(r, p, n, out)))
        return false;
    if (!out->u.s->ascii && !mx_utf8_valid(p, n))
        return mx_jfail(r, "a string of the input is not valid UTF-8");
    return true;
}

static bool from_array(struct mx_jrun *r, const json_t *json, bool copy, struct mx_jval *out)
{
    size_t n = json_array_size(json);
    struct mx_jlist *l = mx_jlist_new(r, n);
    if (!l)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!mx_jfrom_json(r, json_array_get(json, i), copy, &l->v[i]))
            return false;
        l->n++;
    }
    *out = mx_jlistval(MX_J_LIST, l);
    return true;
}

static bool from_object(struct mx_jrun *r, const json_t *json, bool copy, struct mx_jval *out)
{
    struct mx_jdict *d = mx_jdict_new(r, json_object_size(json));
    if (!d)
        return false;
    /* The iteration functions take a non-const object but do not change it. */
    json_t *object = (json_t *)(uintptr_t)json;
    for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it)) {
        struct mx_jval key, value;
        if (!from_text(r, json_object_iter_key(it), json_object_iter_key_len(it), copy, &key) ||
            !mx_jfrom_json(r, json_object_iter_value(it), copy, &value) ||
            !mx_jdict_set(r, d, &key, &value))
            return false;
    }
    *out = (struct mx_jval){.type = MX_J_DICT, .u.d = d};
    return true;
}

bool mx_jfrom_json(struct mx_jrun *r, const json_t *json, bool copy, struct mx_jval *out)
{
    if (!mx_jstep(r, 1) || !mx_jenter(r))
        return false;
    bool ok = true;
    switch (json ? json_typeof(json) : JSON_NULL) {
    case JSON_OBJECT: ok = from_object(r, json, copy, out); break;
    case JSON_ARRAY: ok = from_array(r, json, copy, out); break;
    case JSON_STRING:
        ok = from_text(r, json_string_value(json), json_string_length(json), copy, out);
        break;
    case JSON_INTEGER: *out = mx_jint(json_integer_value(json)); break;
    case JSON_REAL: *out = mx_jfloat(json_real_value(json)); break;
    case JSON_TRUE: *out = mx_jbool(true); break;
    case JSON_FALSE: *out = mx_jbool(false); break;
    default: *out = mx_jnone(); break;
    }
    mx_jleave(r);
    return ok;
}

/* ---- Properties --------------------------------------------------------------------------- */

const char *mx_jtype_name(const struct mx_jval *v)
{
    switch (v->type) {
    case MX_J_UNDEF: return "Undefined";
    case MX_J_NONE: return "NoneType";
    case MX_J_BOOL: return "bool";
    case MX_J_INT: return "int";
    case MX_J_FLOAT: return "float";
    case MX_J_STR: return "str";
    case MX_J_LIST: return "list";
    case MX_J_TUPLE: return "tuple";
    case MX_J_VIEW: return v->of == 'k' ? "dict_keys" : v->of == 'v' ? "dict_values" : "dict_items";
    case MX_J_GEN: return "generator";
    case MX_J_DICT: return "dict";
    case MX_J_RANGE: return "range";
    case MX_J_NAMESPACE: return "Namespace";
    case MX_J_MACRO: return "Macro";
    case MX_J_FUNC: return "function";
    case MX_J_BOUND: return "builtin_function_or_method";
    case MX_J_LOOP: return "LoopContext";
    case MX_J_CYCLER: return "Cycler";
    case MX_J_JOINER: return "Joiner";
    default: return "value";
    }
}

bool mx_jtruth(const struct mx_jval *v)
{
    switch (v->type) {
    case MX_J_MISSING:
    case MX_J_UNDEF:
    case MX_J_NONE: return false;
    case MX_J_BOOL: return v->u.b;
    case MX_J_INT: return v->u.i != 0;
    case MX_J_FLOAT: return v->u.f != 0;
    case MX_J_STR: return v->u.s->len != 0;
    case MX_J_LIST:
    case MX_J_TUPLE:
    case MX_J_VIEW: return v->u.l->n != 0;
    case MX_J_DICT: return v->u.d->n != 0;
    case MX_J_RANGE: return v->u.r->n != 0;
    case MX_J_LOOP: return v->u.loop->n != 0;
    default: return true;
    }
}

bool mx_jas_int(const struct mx_jval *v, int64_t *out)
{
    if (v->type == MX_J_BOOL)
        *out = v->u.b;
    else if (v->type == MX_J_INT)
        *out = v->u.i;
    return v->type == MX_J_BOOL || v->type == MX_J_INT;
}

bool mx_jas_float(const struct mx_jval *v, double *out)
{
    int64_t i;
    if (v->type == MX_J_FLOAT)
        *out = v->u.f;
    else if (mx_jas_int(v, &i))
        *out = (double)i;
    else
        return false;
    return true;
}

bool mx_jlength(struct mx_jrun *r, const struct mx_jval *v, size_t *out)
{
    switch (v->type) {
    case MX_J_UNDEF: *out = 0; return true;
    case MX_J_STR: *out = mx_jstr_count(v->u.s); return mx_jstep(r, v->u.s->len / 256);
    case MX_J_LIST:
    case MX_J_TUPLE:
    case MX_J_VIEW: *out = v->u.l->n; return true;
    case MX_J_DICT: *out = v->u.d->n; return true;
    case MX_J_RANGE: *out = v->u.r->n; return true;
    case MX_J_LOOP: *out = v->u.loop->n; return true;
    default: return mx_jfail(r, "object of type '%s' has no len()", mx_jtype_name(v));
    }
}

/* ---- Equality and order ------------------------------------------------------------------- */

/* Exact comparison of an integer with a float, as Python does it (no rounding of the integer). */
static int compare_int_float(int64_t i, double f)
{
    if (f >= 9223372036854775808.0)
        return -1;
    if (f < -9223372036854775808.0)
        return 1;
    int64_t whole = (int64_t)f;
    if (i != whole)
        return i < whole ? -1 : 1;
    double rest = f - (double)whole;
    return rest > 0 ? -1 : rest < 0;
}

/* Both numbers; 2 when unordered (NaN). */
static int compare_numbers(const struct mx_jval *a, const struct mx_jval *b)
{
    int64_t x = 0, y = 0;
    bool xi = mx_jas_int(a, &x), yi = mx_jas_int(b, &y);
    if (xi && yi)
        return x < y ? -1 : x > y;
    if ((!xi && isnan(a->u.f)) || (!yi && isnan(b->u.f)))
        return 2;
    if (xi)
        return compare_int_float(x, b->u.f);
    if (yi)
        return -compare_int_float(y, a->u.f);
    return a->u.f < b->u.f ? -1 : a->u.f > b->u.f;
}

static bool is_number(const struct mx_jval *v)
{
    return v->type == MX_J_BOOL || v->type == MX_J_INT || v->type == MX_J_FLOAT;
}

static bool equal_lists(struct mx_jrun *r, const struct mx_jlist *a, const struct mx_jlist *b,
                        bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) {
        if (!mx_jstep(r, 1) || !mx_jequal(r, &a->v[i], &b->v[i], out))
            return false;
    }
    return true;
}

static bool equal_dicts(struct mx_jrun *r, const struct mx_jdict *a, const struct mx_jdict *b,
                        bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) {
        struct mx_jentry *e;
        if (!mx_jstep(r, 1) || !find_entry(r, b, &a->v[i].key, a->v[i].hash, &e))
            return false;
        if (!e)
            *out = false;
        else if (!mx_jequal(r, &a->v[i].value, &e->value, out))
            return false;
    }
    return true;
}

static bool equal_ranges(const struct mx_jrange *a, const struct mx_jrange *b)
{
    return a->n == b->n &&
           (a->n == 0 || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

bool mx_jequal(struct mx_jrun *r, const struct mx_jval *a, const struct mx_jval *b, bool *out)
{
    *out = false;
    if (is_number(a) && is_number(b)) {
        *out = compare_numbers(a, b) == 0;
        return true;
    }
    if (a->type != b->type)
        return true;
    switch (a->type) {
    case MX_J_MISSING:
    case MX_J_UNDEF:
    case MX_J_NONE: *out = true; return true;
    case MX_J_STR:
        if (a->u.s->len != b->u.s->len)
            return true;
        *out = a->u.s->len == 0 || memcmp(a->u.s->p, b->u.s->p, a->u.s->len) == 0;
        return mx_jstep(r, a->u.s->len / 256);
    case MX_J_RANGE: *out = equal_ranges(a->u.r, b->u.r); return true;
    case MX_J_LIST:
    case MX_J_TUPLE:
    case MX_J_VIEW:
    case MX_J_DICT: break;
    default: *out = a->u.s == b->u.s; return true; /* identity */
    }
    if (a->u.l == b->u.l) {
        *out = true;
        return true;
    }
    if (!mx_jenter(r))
        return false;
    bool ok = a->type == MX_J_DICT ? equal_dicts(r, a->u.d, b->u.d, out)
                                   : equal_lists(r, a->u.l, b->u.l, out);
    mx_jleave(r);
    return ok;
}

static int compare_strings(const struct mx_jstr *a, const struct mx_jstr *b)
{
    /* The byte order of UTF-8 is the order of its code points. */
    size_t n = a->len < b->len ? a->len : b->len;
    int c = n ? memcmp(a->p, b->p, n) : 0;
    return c < 0 ? -1 : c > 0 ? 1 : a->len < b->len ? -1 : a->len > b->len;
}

static bool compare_lists(struct mx_jrun *r, const struct mx_jlist *a, const struct mx_jlist *b,
                          const char *op, int *out)
{
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool same;
        if (!mx_jstep(r, 1) || !mx_jequal(r, &a->v[i], &b->v[i], &same))
            return false;
        if (!same)
            return mx_jcompare(r, &a->v[i], &b->v[i], op, out);
    }
    *out = a->n < b->n ? -1 : a->n > b->n;
    return true;
}

bool mx_jcompare(struct mx_jrun *r, const struct mx_jval *a, const struct mx_jval *b,
                 const char *op, int *out)
{
    if (a->type == MX_J_UNDEF || b->type == MX_J_UNDEF)
        return mx_jfail_undef(r, a->type == MX_J_UNDEF ? a : b);
    if (is_number(a) && is_number(b)) {
        *out = compare_numbers(a, b);
        return true;
    }
    if (a->type == MX_J_STR && b->type == MX_J_STR) {
        *out = compare_strings(a->u.s, b->u.s);
        return mx_jstep(r, a->u.s->len / 256);
    }
    if (a->type != b->type || (a->type != MX_J_LIST && a->type != MX_J_TUPLE))
        return mx_jfail(r, "'%s' not supported between instances of '%s' and '%s'", op,
                        mx_jtype_name(a), mx_jtype_name(b));
    if (!mx_jenter(r))
        return false;
    bool ok = compare_lists(r, a->u.l, b->u.l, op, out);
    mx_jleave(r);
    return ok;
}

/* Merge sort, bottom-up: stable also when reversed, as Python's sorted(). */
bool mx_jsort(struct mx_jrun *r, struct mx_jkeyed *a, size_t n, bool reverse)
{
    struct mx_jkeyed *from = a, *to = mx_jalloc(r, n, sizeof *to);
    if (!to)
        return false;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * width) {
            size_t mid = lo + width < n ? lo + width : n;
            size_t hi = mid + width < n ? mid + width : n;
            for (size_t i = lo, j = mid, k = lo; k < hi; k++) {
                bool right = i == mid;
                if (i < mid && j < hi) {
                    const struct mx_jkeyed *x = reverse ? &from[i] : &from[j];
                    const struct mx_jkeyed *y = reverse ? &from[j] : &from[i];
                    int c = 0;
                    if (!mx_jstep(r, 1) || !mx_jcompare(r, &x->key, &y->key, "<", &c))
                        return false;
                    right = c == -1;
                }
                to[k] = right ? from[j++] : from[i++];
            }
        }
        struct mx_jkeyed *t = from;
        from = to;
        to = t;
    }
    if (from != a)
        memcpy(a, from, n * sizeof *a);
    return true;
}

/* ---- Iteration ---------------------------------------------------------------------------- */

bool mx_jiterable(const struct mx_jval *v)
{
    switch (v->type) {
    case MX_J_UNDEF:
    case MX_J_STR:
    case MX_J_LIST:
    case MX_J_TUPLE:
    case MX_J_VIEW:
    case MX_J_GEN:
    case MX_J_DICT:
    case MX_J_RANGE:
    case MX_J_LOOP: return true;
    default: return false;
    }
}

static bool characters(struct mx_jrun *r, const struct mx_jstr *s, struct mx_jlist *out)
{
    for (size_t at = 0; at < s->len;) {
        uint32_t cp;
        int k = mx_utf8_decode(s->p + at, s->len - at, &cp);
        size_t n = k > 0 ? (size_t)k : 1;
        struct mx_jval c;
        if (!mx_jstr_view(r, s->p + at, n, &c) || !mx_jlist_push(r, out, &c))
            return false;
        at += n;
    }
    return true;
}

static bool materialise(struct mx_jrun *r, const struct mx_jval *v, struct mx_jlist *out)
{
    if (v->type == MX_J_STR)
        return characters(r, v->u.s, out);
    size_t n = v->type == MX_J_DICT ? v->u.d->n : v->u.r->n;
    for (size_t i = 0; i < n; i++) {
        struct mx_jval e =
            v->type == MX_J_DICT ? v->u.d->v[i].key : mx_jint(mx_jrange_at(v->u.r, i));
        if (!mx_jlist_push(r, out, &e))
            return false;
    }
    return true;
}

bool mx_jiterate(struct mx_jrun *r, const struct mx_jval *v, const struct mx_jval **items,
                 size_t *n)
{
    *items = NULL;
    *n = 0;
    switch (v->type) {
    case MX_J_UNDEF: return true;
    case MX_J_LIST:
    case MX_J_TUPLE:
    case MX_J_VIEW:
        *items = v->u.l->v;
        *n = v->u.l->n;
        return mx_jstep(r, *n / 8);
    case MX_J_GEN:
        *n = v->u.l->n - v->u.l->pos;
        *items = *n ? v->u.l->v + v->u.l->pos : NULL;
        v->u.l->pos = v->u.l->n;
        return mx_jstep(r, *n / 8);
    case MX_J_LOOP: { /* iterating `loop` consumes the rest of the loop */
        struct mx_jloop *l = v->u.loop;
        *n = l->i + 1 < l->n ? l->n - l->i - 1 : 0;
        *items = *n ? l->v + l->i + 1 : NULL;
        return true;
    }
    case MX_J_STR:
    case MX_J_DICT:
    case MX_J_RANGE: break;
    default: return mx_jfail(r, "'%s' object is not iterable", mx_jtype_name(v));
    }
    size_t len = 0;
    if (!mx_jlength(r, v, &len) || !mx_jstep(r, len / 4))
        return false;
    struct mx_jlist *l = mx_jlist_new(r, len);
    if (!l || !materialise(r, v, l))
        return false;
    *items = l->v;
    *n = l->n;
    return true;
}
