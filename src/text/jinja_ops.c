/* Jinja operators: arithmetic, relations, membership, attributes, subscripts, slices. Results and
 * error texts follow Python; integers are 64 bits wide and overflow is an error. */
#include "base/utf8.h"
#include "text/jinja_int.h"

#include <math.h>
#include <string.h>

/* ---- Arithmetic --------------------------------------------------------------------------- */

static const char *op_name(enum mx_jop op)
{
    static const char *const names[] = {
        [MX_JOP_ADD] = "+",  [MX_JOP_SUB] = "-",       [MX_JOP_MUL] = "*",
        [MX_JOP_DIV] = "/",  [MX_JOP_FLOORDIV] = "//", [MX_JOP_MOD] = "%",
        [MX_JOP_POW] = "**", [MX_JOP_EQ] = "==",       [MX_JOP_NE] = "!=",
        [MX_JOP_LT] = "<",   [MX_JOP_LE] = "<=",       [MX_JOP_GT] = ">",
        [MX_JOP_GE] = ">=",  [MX_JOP_IN] = "in",       [MX_JOP_NOT_IN] = "not in",
    };
    return names[op];
}

static bool overflow(struct mx_jrun *r, enum mx_jop op)
{
    return mx_jfail(r, "integer result of %s does not fit into 64 bits", op_name(op));
}

static bool int_pow(struct mx_jrun *r, int64_t base, int64_t exp, struct mx_jval *out)
{
    int64_t v = 1;
    while (exp > 0) {
        if (exp & 1 && __builtin_mul_overflow(v, base, &v))
            return overflow(r, MX_JOP_POW);
        exp >>= 1;
        if (exp && __builtin_mul_overflow(base, base, &base))
            return overflow(r, MX_JOP_POW);
    }
    *out = mx_jint(v);
    return true;
}

/* Quotient rounded towards minus infinity; the remainder has the divisor's sign. */
static bool int_floordiv(struct mx_jrun *r, enum mx_jop op, int64_t a, int64_t b,
                         struct mx_jval *out)
{
    if (b == 0)
        return mx_jfail(r, "integer division or modulo by zero");
    if (b == -1) { /* INT64_MIN / -1 is the one overflow */
        if (op == MX_JOP_MOD)
            *out = mx_jint(0);
        else if (a == INT64_MIN)
            return overflow(r, op);
        else
            *out = mx_jint(-a);
        return true;
    }
    int64_t q = a / b, m = a % b;
    if (m != 0 && (m < 0) != (b < 0)) {
        q--;
        m += b;
    }
    *out = mx_jint(op == MX_JOP_MOD ? m : q);
    return true;
}

static bool int_arith(struct mx_jrun *r, enum mx_jop op, int64_t a, int64_t b, struct mx_jval *out)
{
    int64_t v = 0;
    bool over = false;
    switch (op) {
    case MX_JOP_ADD: over = __builtin_add_overflow(a, b, &v); break;
    case MX_JOP_SUB: over = __builtin_sub_overflow(a, b, &v); break;
    case MX_JOP_MUL: over = __builtin_mul_overflow(a, b, &v); break;
    case MX_JOP_POW: return int_pow(r, a, b, out);
    default: return int_floordiv(r, op, a, b, out);
    }
    if (over)
        return overflow(r, op);
    *out = mx_jint(v);
    return true;
}

static double float_mod(double a, double b)
{
    double m = fmod(a, b);
    if (m == 0)
        return copysign(0.0, b);
    return (m < 0) != (b < 0) ? m + b : m;
}

/* The order of the steps is CPython's, so that the last digit agrees too. */
static double float_floordiv(double a, double b)
{
    double m = fmod(a, b), q = (a - m) / b;
    if (m != 0 && (m < 0) != (b < 0))
        q -= 1;
    if (q == 0)
        return copysign(0.0, a / b);
    double f = floor(q);
    return q - f > 0.5 ? f + 1 : f;
}

static bool float_arith(struct mx_jrun *r, enum mx_jop op, double a, double b, struct mx_jval *out)
{
    double v = 0;
    if (b == 0 && (op == MX_JOP_DIV || op == MX_JOP_FLOORDIV || op == MX_JOP_MOD))
        return mx_jfail(r, "division by zero");
    switch (op) {
    case MX_JOP_ADD: v = a + b; break;
    case MX_JOP_SUB: v = a - b; break;
    case MX_JOP_MUL: v = a * b; break;
    case MX_JOP_DIV: v = a / b; break;
    case MX_JOP_POW:
        if (a == 0 && b < 0)
            return mx_jfail(r, "0.0 cannot be raised to a negative power");
        v = pow(a, b);
        if (isnan(v) && !isnan(a) && !isnan(b))
            return mx_jfail(r, "a fractional power of a negative number is complex");
        if (isinf(v) && !isinf(a) && !isinf(b))
            return mx_jfail(r, "float result of ** is out of range");
        break;
    case MX_JOP_MOD: v = float_mod(a, b); break;
    default: v = float_floordiv(a, b); break;
    }
    *out = mx_jfloat(v);
    return true;
}

static bool repeat_str(struct mx_jrun *r, const struct mx_jstr *s, int64_t n, struct mx_jval *out)
{
    size_t total;
    if (n <= 0 || s->len == 0)
        return mx_jstr_view(r, "", 0, out);
    if (__builtin_mul_overflow(s->len, (size_t)n, &total) || !mx_jstep(r, total / 64))
        return mx_jfail_limit(r, "repeated string is too long");
    char *p = mx_jalloc(r, total, 1);
    if (!p)
        return false;
    for (size_t i = 0; i < (size_t)n; i++)
        memcpy(p + i * s->len, s->p, s->len);
    return mx_jstr_view(r, p, total, out);
}

static bool repeat_list(struct mx_jrun *r, const struct mx_jval *a, int64_t n, struct mx_jval *out)
{
    const struct mx_jlist *l = a->u.l;
    size_t total = 0;
    if (n > 0 && (__builtin_mul_overflow(l->n, (size_t)n, &total) || !mx_jstep(r, total)))
        return mx_jfail_limit(r, "repeated list is too long");
    struct mx_jlist *res = mx_jlist_new(r, total);
    if (!res)
        return false;
    for (; res->n < total; res->n++)
        res->v[res->n] = l->v[res->n % l->n];
    *out = mx_jlistval(a->type, res);
    return true;
}

static bool is_seq(const struct mx_jval *v)
{
    return v->type == MX_J_LIST || v->type == MX_J_TUPLE;
}

static bool repeat(struct mx_jrun *r, const struct mx_jval *a, const struct mx_jval *b,
                   struct mx_jval *out, bool *done)
{
    int64_t n;
    const struct mx_jval *what = a->type == MX_J_STR || is_seq(a) ? a : b;
    *done = (what->type == MX_J_STR || is_seq(what)) && mx_jas_int(what == a ? b : a, &n);
    if (!*done)
        return true;
    return what->type == MX_J_STR ? repeat_str(r, what->u.s, n, out) : repeat_list(r, what, n, out);
}

static bool concat_lists(struct mx_jrun *r, const struct mx_jval *a, const struct mx_jval *b,
                         struct mx_jval *out)
{
    struct mx_jlist *l = mx_jlist_new(r, a->u.l->n + b->u.l->n);
    if (!l || !mx_jstep(r, (a->u.l->n + b->u.l->n) / 8))
        return false;
    if (a->u.l->n)
        memcpy(l->v, a->u.l->v, a->u.l->n * sizeof *l->v);
    if (b->u.l->n)
        memcpy(l->v + a->u.l->n, b->u.l->v, b->u.l->n * sizeof *l->v);
    l->n = a->u.l->n + b->u.l->n;
    *out = mx_jlistval(a->type, l);
    return true;
}

static bool add_strings(struct mx_jrun *r, const struct mx_jval *a, const struct mx_jval *b,
                        struct mx_jval *out)
{
    struct mx_jval x = *a, y = *b;
    bool safe = a->u.s->safe || b->u.s->safe;
    if (safe && !a->u.s->safe && !mx_jescape(r, a, &x))
        return false;
    if (safe && !b->u.s->safe && !mx_jescape(r, b, &y))
        return false;
    return mx_jstr_concat(r, x.u.s, y.u.s, out) && (!safe || mx_jstr_mark_safe(r, out));
}

static bool no_operator(struct mx_jrun *r, enum mx_jop op, const struct mx_jval *a,
                        const struct mx_jval *b)
{
    if (op == MX_JOP_ADD && (a->type == MX_J_STR || is_seq(a)))
        return mx_jfail(r, "can only concatenate %s (not \"%s\") to %s", mx_jtype_name(a),
                        mx_jtype_name(b), mx_jtype_name(a));
    return mx_jfail(r, "unsupported operand type(s) for %s: '%s' and '%s'", op_name(op),
                    mx_jtype_name(a), mx_jtype_name(b));
}

static bool arith_other(struct mx_jrun *r, enum mx_jop op, const struct mx_jval *a,
                        const struct mx_jval *b, struct mx_jval *out)
{
    if (op == MX_JOP_MOD && a->type == MX_J_STR)
        return mx_jpercent(r, a->u.s, b, out);
    if (a->type == MX_J_UNDEF || b->type == MX_J_UNDEF)
        return mx_jfail_undef(r, a->type == MX_J_UNDEF ? a : b);
    if (op == MX_JOP_ADD && a->type == MX_J_STR && b->type == MX_J_STR)
        return add_strings(r, a, b, out);
    if (op == MX_JOP_ADD && is_seq(a) && a->type == b->type)
        return concat_lists(r, a, b, out);
    bool done = false;
    if (op == MX_JOP_MUL && (!repeat(r, a, b, out, &done) || done))
        return done;
    return no_operator(r, op, a, b);
}

bool mx_jarith(struct mx_jrun *r, enum mx_jop op, const struct mx_jval *a, const struct mx_jval *b,
               struct mx_jval *out)
{
    int64_t x, y;
    double f, g;
    bool exact = op != MX_JOP_DIV && mx_jas_int(a, &x) && mx_jas_int(b, &y);
    if (exact && !(op == MX_JOP_POW && y < 0))
        return int_arith(r, op, x, y, out);
    if (mx_jas_float(a, &f) && mx_jas_float(b, &g))
        return float_arith(r, op, f, g, out);
    return arith_other(r, op, a, b, out);
}

bool mx_jnegate(struct mx_jrun *r, const struct mx_jval *a, bool minus, struct mx_jval *out)
{
    int64_t i;
    if (mx_jas_int(a, &i)) {
        if (minus && i == INT64_MIN)
            return overflow(r, MX_JOP_SUB);
        *out = mx_jint(minus ? -i : i);
        return true;
    }
    if (a->type == MX_J_FLOAT) {
        *out = mx_jfloat(minus ? -a->u.f : a->u.f);
        return true;
    }
    if (a->type == MX_J_UNDEF)
        return mx_jfail_undef(r, a);
    return mx_jfail(r, "bad operand type for unary %c: '%s'", minus ? '-' : '+', mx_jtype_name(a));
}

/* ---- Relations ---------------------------------------------------------------------------- */

bool mx_jrelation(struct mx_jrun *r, enum mx_jop op, const struct mx_jval *a,
                  const struct mx_jval *b, bool *out)
{
    if (op == MX_JOP_EQ || op == MX_JOP_NE) {
        if (!mx_jequal(r, a, b, out))
            return false;
        *out = *out == (op == MX_JOP_EQ);
        return true;
    }
    if (op == MX_JOP_IN || op == MX_JOP_NOT_IN) {
        if (!mx_jcontains(r, a, b, out))
            return false;
        *out = *out == (op == MX_JOP_IN);
        return true;
    }
    int c = 0;
    if (!mx_jcompare(r, a, b, op_name(op), &c))
        return false;
    if (c == 2) /* NaN: every ordering is false */
        *out = false;
    else
        *out = op == MX_JOP_LT   ? c < 0
               : op == MX_JOP_LE ? c <= 0
               : op == MX_JOP_GT ? c > 0
                                 : c >= 0;
    return true;
}

static bool in_string(struct mx_jrun *r, const struct mx_jval *item, const struct mx_jstr *s,
                      bool *out)
{
    if (item->type == MX_J_UNDEF)
        return mx_jfail_undef(r, item);
    if (item->type != MX_J_STR)
        return mx_jfail(r, "'in <string>' requires string as left operand, not %s",
                        mx_jtype_name(item));
    *out = item->u.s->len == 0 || memmem(s->p, s->len, item->u.s->p, item->u.s->len) != NULL;
    return mx_jstep(r, s->len / 64);
}

static bool in_range(const struct mx_jval *item, const struct mx_jrange *g)
{
    double f;
    if (!mx_jas_float(item, &f) || f != floor(f) || fabs(f) > 9e18 || g->n == 0)
        return false;
    int64_t i = item->type == MX_J_FLOAT ? (int64_t)f : 0;
    mx_jas_int(item, &i);
    int64_t last = mx_jrange_at(g, g->n - 1);
    if (g->step > 0)
        return i >= g->start && i <= last &&
               ((uint64_t)i - (uint64_t)g->start) % (uint64_t)g->step == 0;
    return i <= g->start && i >= last &&
           ((uint64_t)g->start - (uint64_t)i) % (0 - (uint64_t)g->step) == 0;
}

bool mx_jcontains(struct mx_jrun *r, const struct mx_jval *item, const struct mx_jval *in,
                  bool *out)
{
    *out = false;
    switch (in->type) {
    case MX_J_STR: return in_string(r, item, in->u.s, out);
    case MX_J_RANGE: *out = in_range(item, in->u.r); return true;
    case MX_J_DICT: {
        struct mx_jval *found;
        if (!mx_jdict_get(r, in->u.d, item, &found))
            return false;
        *out = found != NULL;
        return true;
    }
    default: break;
    }
    if (!mx_jiterable(in))
        return mx_jfail(r, "argument of type '%s' is not iterable", mx_jtype_name(in));
    const struct mx_jval *v;
    size_t n;
    if (!mx_jiterate(r, in, &v, &n))
        return false;
    for (size_t i = 0; i < n && !*out; i++) {
        if (!mx_jstep(r, 1) || !mx_jequal(r, item, &v[i], out))
            return false;
    }
    return true;
}

/* ---- Attributes and subscripts ------------------------------------------------------------ */

static bool bind_method(struct mx_jrun *r, const struct mx_jval *obj, const struct mx_jdef *def,
                        struct mx_jval *out)
{
    struct mx_jbound *b = mx_jalloc(r, 1, sizeof *b);
    if (!b)
        return false;
    *b = (struct mx_jbound){.self = *obj, .def = def};
    *out = (struct mx_jval){.type = MX_J_BOUND, .u.bound = b};
    return true;
}

bool mx_jown_attr(struct mx_jrun *r, const struct mx_jval *obj, const struct mx_jstr *name,
                  struct mx_jval *out)
{
    if (obj->type == MX_J_NAMESPACE) {
        struct mx_jval *found;
        if (!mx_jdict_get_str(r, obj->u.d, name, &found))
            return false;
        *out = found ? *found : (struct mx_jval){0};
        return true;
    }
    const struct mx_jdef *def = mx_jfind_method(obj, name);
    if (def)
        return bind_method(r, obj, def, out);
    if (!mx_jforbidden(obj, name))
        return mx_jspecial_attr(r, obj, name, out);
    *out = mx_jundef(MX_JU_FORBIDDEN, obj->type, name);
    return true;
}

bool mx_jgetattr(struct mx_jrun *r, const struct mx_jval *obj, const struct mx_jstr *name,
                 struct mx_jval *out)
{
    if (obj->type == MX_J_UNDEF)
        return mx_jfail_undef(r, obj);
    if (!mx_jown_attr(r, obj, name, out))
        return false;
    if (out->type != MX_J_MISSING)
        return true;
    if (obj->type == MX_J_DICT) {
        struct mx_jval *found;
        if (!mx_jdict_get_str(r, obj->u.d, name, &found))
            return false;
        if (found) {
            *out = *found;
            return true;
        }
    }
    *out = mx_jundef(MX_JU_ATTR, obj->type, name);
    return true;
}

/* Element i of a sequence; *found is false when out of range. */
static bool element(struct mx_jrun *r, const struct mx_jval *obj, int64_t i, struct mx_jval *out,
                    bool *found)
{
    size_t n;
    if (!mx_jlength(r, obj, &n))
        return false;
    if (i < 0)
        i += (int64_t)n;
    *found = i >= 0 && (size_t)i < n;
    if (!*found)
        return true;
    if (obj->type == MX_J_RANGE) {
        *out = mx_jint(mx_jrange_at(obj->u.r, (size_t)i));
        return true;
    }
    if (obj->type != MX_J_STR) {
        *out = obj->u.l->v[i];
        return true;
    }
    const struct mx_jstr *s = obj->u.s;
    size_t from = mx_jstr_offset(s, (size_t)i);
    struct mx_jstr rest = {.p = s->p + from, .len = s->len - from, .ascii = s->ascii};
    return mx_jstr_sub(r, s, from, from + mx_jstr_offset(&rest, 1), out);
}

static bool is_indexed(const struct mx_jval *v)
{
    return v->type == MX_J_STR || is_seq(v) || v->type == MX_J_RANGE;
}

static bool no_element(struct mx_jrun *r, const struct mx_jval *obj, const struct mx_jval *key,
                       struct mx_jval *out)
{
    struct mx_jval name;
    struct mx_jout o = {0};
    if (key->type == MX_J_STR)
        name = *key;
    else if (!mx_jrepr(r, &o, key) || !mx_jout_str(r, &o, &name))
        return false;
    *out = mx_jundef(key->type == MX_J_STR ? MX_JU_ATTR : MX_JU_INDEX, obj->type, name.u.s);
    return true;
}

bool mx_jgetitem(struct mx_jrun *r, const struct mx_jval *obj, const struct mx_jval *key,
                 struct mx_jval *out)
{
    if (obj->type == MX_J_UNDEF)
        return mx_jfail_undef(r, obj);
    int64_t i;
    if (obj->type == MX_J_DICT && mx_jhashable(key)) {
        struct mx_jval *found;
        if (!mx_jdict_get(r, obj->u.d, key, &found))
            return false;
        if (found) {
            *out = *found;
            return true;
        }
    } else if (is_indexed(obj) && mx_jas_int(key, &i)) {
        bool found = false;
        if (!element(r, obj, i, out, &found) || found)
            return found;
        return no_element(r, obj, key, out);
    }
    if (key->type == MX_J_STR) {
        if (!mx_jown_attr(r, obj, key->u.s, out))
            return false;
        if (out->type != MX_J_MISSING)
            return true;
    }
    return no_element(r, obj, key, out);
}

/* ---- Slices ------------------------------------------------------------------------------- */

struct bounds {
    int64_t start, stop, step;
    size_t n; /* elements */
};

static int64_t clamp(int64_t v, int64_t n, int64_t lo, int64_t hi)
{
    if (v < 0)
        v += n;
    return v < lo ? lo : v > hi ? hi : v;
}

/* Python's slice.indices() and the number of elements it selects. */
static bool slice_bounds(struct mx_jrun *r, const struct mx_jval *part, size_t len,
                         struct bounds *b)
{
    int64_t n = (int64_t)len, v[3] = {0, 0, 1};
    for (int i = 0; i < 3; i++) {
        if (part[i].type == MX_J_UNDEF)
            return mx_jfail_undef(r, &part[i]);
        if (part[i].type != MX_J_NONE && !mx_jas_int(&part[i], &v[i]))
            return mx_jfail(r, "slice indices must be integers or None, not %s",
                            mx_jtype_name(&part[i]));
    }
    if (v[2] == 0)
        return mx_jfail(r, "slice step cannot be zero");
    bool up = v[2] > 0;
    int64_t lo = up ? 0 : -1, hi = up ? n : n - 1;
    int64_t start = part[0].type == MX_J_NONE ? (up ? lo : hi) : clamp(v[0], n, lo, hi);
    int64_t stop = part[1].type == MX_J_NONE ? (up ? hi : lo) : clamp(v[1], n, lo, hi);
    b->start = start;
    b->stop = stop;
    b->step = v[2];
    int64_t span = up ? stop - start : start - stop;
    /* -(step + 1) + 1 avoids the overflow of -INT64_MIN */
    uint64_t stride = up ? (uint64_t)v[2] : (uint64_t)(-(v[2] + 1)) + 1;
    b->n = span > 0 ? ((uint64_t)span - 1) / stride + 1 : 0;
    return true;
}

static bool slice_str(struct mx_jrun *r, const struct mx_jstr *s, const struct bounds *b,
                      struct mx_jval *out)
{
    if (!mx_jstep(r, s->len / 256))
        return false;
    if (b->step == 1) {
        size_t from = mx_jstr_offset(s, (size_t)b->start);
        struct mx_jstr rest = {.p = s->p + from, .len = s->len - from, .ascii = s->ascii};
        return mx_jstr_sub(r, s, from, from + (b->n ? mx_jstr_offset(&rest, b->n) : 0), out);
    }
    const struct mx_jval whole = mx_jstrval(s), *c;
    size_t n;
    struct mx_jout o = {0};
    if (!mx_jiterate(r, &whole, &c, &n))
        return false;
    for (size_t i = 0; i < b->n; i++) {
        const struct mx_jstr *e = c[b->start + (int64_t)i * b->step].u.s;
        if (!mx_jput(r, &o, e->p, e->len))
            return false;
    }
    return mx_jout_str(r, &o, out);
}

static bool slice_list(struct mx_jrun *r, const struct mx_jval *obj, const struct bounds *b,
                       struct mx_jval *out)
{
    struct mx_jlist *l = mx_jlist_new(r, b->n);
    if (!l || !mx_jstep(r, b->n / 8))
        return false;
    for (size_t i = 0; i < b->n; i++)
        l->v[l->n++] = obj->u.l->v[b->start + (int64_t)i * b->step];
    *out = mx_jlistval(obj->type, l);
    return true;
}

static bool slice_range(struct mx_jrun *r, const struct mx_jrange *g, const struct bounds *b,
                        struct mx_jval *out)
{
    struct mx_jrange *res = mx_jalloc(r, 1, sizeof *res);
    if (!res)
        return false;
    /* Wraparound can only touch numbers no element uses. */
    uint64_t step = (uint64_t)g->step * (uint64_t)b->step;
    uint64_t start = (uint64_t)g->start + (uint64_t)b->start * (uint64_t)g->step;
    uint64_t stop = (uint64_t)g->start + (uint64_t)b->stop * (uint64_t)g->step;
    *res = (struct mx_jrange){
        .start = (int64_t)start, .stop = (int64_t)stop, .step = (int64_t)step, .n = b->n};
    *out = (struct mx_jval){.type = MX_J_RANGE, .u.r = res};
    return true;
}

bool mx_jslice(struct mx_jrun *r, const struct mx_jval *obj, const struct mx_jval *part,
               struct mx_jval *out)
{
    if (obj->type == MX_J_UNDEF)
        return mx_jfail_undef(r, obj);
    if (!is_indexed(obj))
        return mx_jfail(r, "'%s' object cannot be sliced", mx_jtype_name(obj));
    size_t len;
    struct bounds b = {0};
    if (!mx_jlength(r, obj, &len) || !slice_bounds(r, part, len, &b))
        return false;
    if (obj->type == MX_J_STR)
        return slice_str(r, obj->u.s, &b, out) && (!obj->u.s->safe || mx_jstr_mark_safe(r, out));
    return obj->type == MX_J_RANGE ? slice_range(r, obj->u.r, &b, out)
                                   : slice_list(r, obj, &b, out);
}

/* ---- Paths -------------------------------------------------------------------------------- */

/* One step of a path: digits index a sequence, everything else is a key. */
static bool path_step(struct mx_jrun *r, const struct mx_jval *obj, const struct mx_jstr *path,
                      size_t from, size_t to, struct mx_jval *out)
{
    struct mx_jval key;
    int64_t i = 0;
    bool digits = to > from && to - from < 10;
    for (size_t k = from; k < to && digits; k++) {
        digits = path->p[k] >= '0' && path->p[k] <= '9';
        i = i * 10 + (path->p[k] - '0');
    }
    if (digits)
        key = mx_jint(i);
    else if (!mx_jstr_sub(r, path, from, to, &key))
        return false;
    return mx_jgetitem(r, obj, &key, out);
}

/* Where a step finds nothing, `otherwise` (unless absent or None) takes its place. */
static void or_otherwise(struct mx_jval *v, const struct mx_jval *otherwise)
{
    if (v->type == MX_J_UNDEF && otherwise && otherwise->type > MX_J_NONE)
        *v = *otherwise;
}

bool mx_jgetpath(struct mx_jrun *r, const struct mx_jval *obj, const struct mx_jval *path,
                 const struct mx_jval *otherwise, struct mx_jval *out)
{
    if (path->type != MX_J_STR) {
        if (!mx_jgetitem(r, obj, path, out))
            return false;
        or_otherwise(out, otherwise);
        return true;
    }
    const struct mx_jstr *s = path->u.s;
    struct mx_jval at = *obj;
    for (size_t from = 0; from <= s->len;) {
        const char *dot = from < s->len ? memchr(s->p + from, '.', s->len - from) : NULL;
        size_t to = dot ? (size_t)(dot - s->p) : s->len;
        struct mx_jval next;
        if (!mx_jstep(r, 1) || !path_step(r, &at, s, from, to, &next))
            return false;
        or_otherwise(&next, otherwise);
        at = next;
        from = to + 1;
    }
    *out = at;
    return true;
}
