/* Jinja filters. Those that are lazy in jinja2 (map, select, batch, ...) compute at once here but
 * give a MX_J_GEN value, which like a generator has no length and can be read once. */
#include "base/utf8.h"
#include "text/jinja_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

static bool gen(struct mx_jlist *l, struct mx_jval *out)
{
    *out = mx_jlistval(MX_J_GEN, l);
    return true;
}

/* The filtered value as a string (Python's str()). */
static bool as_str(struct mx_jrun *r, const struct mx_jval *v, const struct mx_jstr **out)
{
    struct mx_jval s;
    if (!mx_jto_str(r, v, &s))
        return false;
    *out = s.u.s;
    return true;
}

/* The filtered value where only a string will do. */
static bool need_str(struct mx_jrun *r, const char *what, const struct mx_jval *v,
                     const struct mx_jstr **out)
{
    if (v->type == MX_J_UNDEF)
        return mx_jfail_undef(r, v);
    *out = v->type == MX_J_STR ? v->u.s : NULL;
    return *out || mx_jfail(r, "%s needs a string, not %s", what, mx_jtype_name(v));
}

/* ---- Text --------------------------------------------------------------------------------- */

static bool recase(struct mx_jrun *r, const struct mx_jval *self, enum mx_jcase how,
                   struct mx_jval *out)
{
    const struct mx_jstr *s;
    return as_str(r, self, &s) && mx_jrecase(r, s, how, out);
}

static bool f_upper(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    struct mx_jval *out)
{
    static const char *const names[] = {NULL};
    return mx_jbind(r, "upper", a, names, 0, NULL) && recase(r, self, MX_JC_UPPER, out);
}

static bool f_lower(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    struct mx_jval *out)
{
    static const char *const names[] = {NULL};
    return mx_jbind(r, "lower", a, names, 0, NULL) && recase(r, self, MX_JC_LOWER, out);
}

static bool f_capitalize(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                         struct mx_jval *out)
{
    static const char *const names[] = {NULL};
    return mx_jbind(r, "capitalize", a, names, 0, NULL) && recase(r, self, MX_JC_CAPITALIZE, out);
}

/* Unlike str.title(): words end only at whitespace, - and opening brackets. */
static bool f_title(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    struct mx_jval *out)
{
    const struct mx_jstr *s;
    struct mx_jout o = {0};
    (void)a;
    if (!as_str(r, self, &s) || !mx_jstep(r, s->len / 8))
        return false;
    bool first = true;
    for (size_t at = 0; at < s->len;) {
        uint32_t cp = 0;
        int n = mx_utf8_decode(s->p + at, s->len - at, &cp);
        struct mx_jval c;
        const struct mx_jstr one = {.p = s->p + at, .len = n > 0 ? (size_t)n : 1};
        if (!mx_jrecase(r, &one, first ? MX_JC_UPPER : MX_JC_LOWER, &c) ||
            !mx_jput(r, &o, c.u.s->p, c.u.s->len))
            return false;
        first = mx_jspace_cp(cp) || (cp < 0x80 && cp && strchr("-({[<", (int)cp));
        at += one.len;
    }
    return mx_jout_str(r, &o, out);
}

static bool f_trim(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                   struct mx_jval *out)
{
    static const char *const names[] = {"chars", NULL};
    struct mx_jval v[1];
    const struct mx_jstr *s;
    return mx_jbind(r, "trim", a, names, 0, v) && as_str(r, self, &s) &&
           mx_jstrip(r, s, v, true, true, out);
}

static bool f_string(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                     struct mx_jval *out)
{
    (void)a;
    return mx_jto_str(r, self, out);
}

static bool f_safe(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                   struct mx_jval *out)
{
    (void)a;
    return mx_jto_str(r, self, out) && mx_jstr_mark_safe(r, out);
}

static bool f_escape(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                     struct mx_jval *out)
{
    (void)a;
    return mx_jescape(r, self, out);
}

static bool f_replace(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                      struct mx_jval *out)
{
    static const char *const names[] = {"old", "new", "count", NULL};
    struct mx_jval v[3];
    const struct mx_jstr *s, *from, *to;
    int64_t count = -1;
    return mx_jbind(r, "replace", a, names, 2, v) && as_str(r, self, &s) &&
           as_str(r, &v[0], &from) && as_str(r, &v[1], &to) &&
           mx_jarg_int(r, "count", &v[2], &count) && mx_jreplace(r, s, from, to, count, out);
}

static bool f_center(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                     struct mx_jval *out)
{
    static const char *const names[] = {"width", NULL};
    struct mx_jval v[1];
    const struct mx_jstr *s;
    int64_t width = 80;
    return mx_jbind(r, "center", a, names, 0, v) && as_str(r, self, &s) &&
           mx_jarg_int(r, "width", v, &width) && mx_jpad(r, s, width, MX_JALIGN_CENTER, NULL, out);
}

static bool f_format(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                     struct mx_jval *out)
{
    const struct mx_jstr *s;
    struct mx_jval args;
    if (a->npos && a->nkw)
        return mx_jfail(r, "can't handle positional and keyword arguments at the same time");
    if (!as_str(r, self, &s))
        return false;
    if (!a->nkw)
        return mx_jtuple(r, a->pos, a->npos, &args) && mx_jpercent(r, s, &args, out);
    struct mx_jdict *d = mx_jdict_new(r, a->nkw);
    for (size_t i = 0; d && i < a->nkw; i++) {
        struct mx_jval key = mx_jstrval(a->kw[i].name);
        if (!mx_jdict_set(r, d, &key, &a->kw[i].v))
            return false;
    }
    args = (struct mx_jval){.type = MX_J_DICT, .u.d = d};
    return d && mx_jpercent(r, s, &args, out);
}

/* The indentation of indent and tojson: a string, or a number of spaces. */
static bool indentation(struct mx_jrun *r, const struct mx_jval *v, const struct mx_jstr **out)
{
    int64_t n;
    struct mx_jout o = {0};
    struct mx_jval s;
    if (v->type == MX_J_STR) {
        *out = v->u.s;
        return true;
    }
    if (!mx_jas_int(v, &n))
        return mx_jfail(r, "indentation must be a number or a string, not %s", mx_jtype_name(v));
    if (!mx_jfill(r, &o, ' ', n) || !mx_jout_str(r, &o, &s))
        return false;
    *out = s.u.s;
    return true;
}

static bool f_indent(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                     struct mx_jval *out)
{
    static const char *const names[] = {"width", "first", "blank", NULL};
    struct mx_jval v[3], text;
    const struct mx_jstr *s = NULL, *ind = NULL;
    const struct mx_jstr newline = {.p = "\n", .len = 1, .ascii = true};
    struct mx_jlist *lines = mx_jlist_new(r, 0);
    struct mx_jout o = {0};
    if (!lines || !mx_jbind(r, "indent", a, names, 0, v))
        return false;
    if (v[0].type == MX_J_MISSING)
        v[0] = mx_jint(4);
    /* A last newline is doubled so that splitting keeps the empty line behind it. */
    if (!indentation(r, &v[0], &ind) || !need_str(r, "indent", self, &s) ||
        !mx_jstr_concat(r, s, &newline, &text) || !mx_jsplitlines(r, text.u.s, false, lines))
        return false;
    bool first = mx_jtruth(&v[1]), blank = mx_jtruth(&v[2]);
    for (size_t i = 0; i < lines->n; i++) {
        const struct mx_jstr *line = lines->v[i].u.s;
        bool indents = i == 0 ? first : blank || line->len > 0;
        if ((i && !mx_jput(r, &o, "\n", 1)) || (indents && !mx_jput(r, &o, ind->p, ind->len)) ||
            !mx_jput(r, &o, line->p, line->len))
            return false;
    }
    return mx_jout_str(r, &o, out);
}

static bool f_truncate(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                       struct mx_jval *out)
{
    static const char *const names[] = {"length", "killwords", "end", "leeway", NULL};
    static const struct mx_jstr dots = {.p = "...", .len = 3, .ascii = true};
    struct mx_jval v[4], cut;
    const struct mx_jstr *s = NULL, *end = NULL;
    int64_t length = 255, leeway = 5, last = -1;
    if (self->type == MX_J_UNDEF)
        return mx_jstr_view(r, "", 0, out);
    if (!mx_jbind(r, "truncate", a, names, 0, v) || !need_str(r, "truncate", self, &s) ||
        !mx_jarg_int(r, "length", &v[0], &length) || !mx_jarg_str(r, "end", &v[2], &end) ||
        !mx_jarg_int(r, "leeway", &v[3], &leeway))
        return false;
    end = end ? end : &dots;
    int64_t have = (int64_t)mx_jstr_count(s), tail = (int64_t)mx_jstr_count(end);
    if (length < tail)
        return mx_jfail(r, "expected length >= %lld, got %lld", (long long)tail, (long long)length);
    if (leeway < 0 || length > INT64_MAX - leeway)
        return mx_jfail(r, "leeway of truncate is out of range");
    if (have <= length + leeway)
        return mx_jstr_sub(r, s, 0, s->len, out);
    size_t to = mx_jstr_offset(s, (size_t)(length - tail));
    const struct mx_jstr space = {.p = " ", .len = 1};
    if (!mx_jtruth(&v[1]) && !mx_jfind(r, s, &space, 0, to, true, &last))
        return false;
    return mx_jstr_sub(r, s, 0, last >= 0 ? (size_t)last : to, &cut) &&
           mx_jstr_concat(r, cut.u.s, end, out);
}

static bool f_wordcount(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                        struct mx_jval *out)
{
    const struct mx_jstr *s;
    int64_t words = 0;
    bool inside = false;
    (void)a;
    if (!as_str(r, self, &s) || !mx_jstep(r, s->len / 16))
        return false;
    for (size_t at = 0; at < s->len;) {
        uint32_t cp = 0;
        int n = mx_utf8_decode(s->p + at, s->len - at, &cp);
        bool word = n > 0 && mx_jword_cp(cp);
        words += word && !inside;
        inside = word;
        at += n > 0 ? (size_t)n : 1;
    }
    *out = mx_jint(words);
    return true;
}

/* ---- urlencode ---------------------------------------------------------------------------- */

/* `query`: spaces become + and slashes are escaped. */
static bool quote(struct mx_jrun *r, struct mx_jout *o, const struct mx_jval *v, bool query)
{
    const struct mx_jstr *s;
    if (!as_str(r, v, &s) || !mx_jstep(r, s->len / 8))
        return false;
    for (size_t i = 0; i < s->len; i++) {
        unsigned char c = (unsigned char)s->p[i];
        bool alnum = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        char hex[4];
        if (alnum || (c && strchr("_.-~", c)) || (c == '/' && !query)) {
            if (!mx_jput(r, o, s->p + i, 1))
                return false;
        } else if (c == ' ' && query) {
            if (!mx_jput(r, o, "+", 1))
                return false;
        } else {
            snprintf(hex, sizeof hex, "%%%02X", c);
            if (!mx_jput(r, o, hex, 3))
                return false;
        }
    }
    return true;
}

static bool put_pair(struct mx_jrun *r, struct mx_jout *o, const struct mx_jval *k,
                     const struct mx_jval *v, bool first)
{
    return (first || mx_jput(r, o, "&", 1)) && quote(r, o, k, true) && mx_jput(r, o, "=", 1) &&
           quote(r, o, v, true);
}

static bool f_urlencode(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                        struct mx_jval *out)
{
    struct mx_jout o = {0};
    const struct mx_jval *items, *pair;
    size_t n, two;
    (void)a;
    if (self->type == MX_J_DICT) {
        const struct mx_jdict *d = self->u.d;
        for (size_t i = 0; i < d->n; i++) {
            if (!put_pair(r, &o, &d->v[i].key, &d->v[i].value, i == 0))
                return false;
        }
        return mx_jout_str(r, &o, out);
    }
    if (self->type == MX_J_STR || !mx_jiterable(self))
        return quote(r, &o, self, false) && mx_jout_str(r, &o, out);
    if (!mx_jiterate(r, self, &items, &n))
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!mx_jiterate(r, &items[i], &pair, &two))
            return false;
        if (two != 2)
            return mx_jfail(r, "urlencode expects pairs");
        if (!put_pair(r, &o, &pair[0], &pair[1], i == 0))
            return false;
    }
    return mx_jout_str(r, &o, out);
}

/* ---- Numbers ------------------------------------------------------------------------------ */

static bool f_abs(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                  struct mx_jval *out)
{
    int64_t i;
    (void)a;
    if (mx_jas_int(self, &i))
        return mx_jnegate(r, self, i < 0, out);
    if (self->type == MX_J_UNDEF)
        return mx_jfail_undef(r, self);
    if (self->type != MX_J_FLOAT)
        return mx_jfail(r, "bad operand type for abs(): '%s'", mx_jtype_name(self));
    *out = mx_jfloat(fabs(self->u.f));
    return true;
}

/* Python's float(text): also inf and nan, blanks around. */
static bool text_float(struct mx_jrun *r, const struct mx_jstr *s, double *out, bool *ok)
{
    struct mx_jval t, low;
    if (!mx_jstrip(r, s, NULL, true, true, &t) || !mx_jrecase(r, t.u.s, MX_JC_LOWER, &low))
        return false;
    const struct mx_jstr *p = low.u.s;
    size_t sign = p->len && (p->p[0] == '-' || p->p[0] == '+');
    const struct mx_jstr body = {.p = p->p + sign, .len = p->len - sign};
    *ok = true;
    if (mx_jstr_is(&body, "inf") || mx_jstr_is(&body, "infinity"))
        *out = p->p[0] == '-' ? -INFINITY : INFINITY;
    else if (mx_jstr_is(&body, "nan"))
        *out = NAN;
    else
        *ok = mx_jparse_float(p->p, p->len, out);
    return true;
}

static bool to_float(struct mx_jrun *r, const struct mx_jval *v, double *out, bool *ok)
{
    if (v->type == MX_J_UNDEF)
        return mx_jfail_undef(r, v);
    if (v->type == MX_J_STR)
        return text_float(r, v->u.s, out, ok);
    *ok = mx_jas_float(v, out);
    return true;
}

static bool f_float(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    struct mx_jval *out)
{
    static const char *const names[] = {"default", NULL};
    struct mx_jval v[1];
    double d = 0;
    bool ok = false;
    if (!mx_jbind(r, "float", a, names, 0, v) || !to_float(r, self, &d, &ok))
        return false;
    *out = ok || v[0].type == MX_J_MISSING ? mx_jfloat(ok ? d : 0) : v[0];
    return true;
}

static bool f_int(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                  struct mx_jval *out)
{
    static const char *const names[] = {"default", "base", NULL};
    struct mx_jval v[2];
    int64_t i = 0, base = 10;
    double d = 0;
    bool ok = false;
    if (!mx_jbind(r, "int", a, names, 0, v) || !mx_jarg_int(r, "base", &v[1], &base))
        return false;
    if (base != 0 && (base < 2 || base > 36))
        return mx_jfail(r, "int() base must be >= 2 and <= 36, or 0");
    if (self->type == MX_J_STR && !mx_jparse_int(r, self->u.s, (int)base, &i, &ok))
        return false;
    if (!ok && mx_jas_int(self, &i))
        ok = true;
    if (!ok) {
        if (!to_float(r, self, &d, &ok))
            return false;
        ok = ok && !isnan(d) && !isinf(d);
        if (ok && !(d > -9.2233720368547e18 && d < 9.2233720368547e18))
            return mx_jfail(r, "integer does not fit into 64 bits");
        i = ok ? (int64_t)d : 0;
    }
    *out = ok || v[0].type == MX_J_MISSING ? mx_jint(i) : v[0];
    return true;
}

/* Correct rounding to `prec` decimals, ties to even as the exact binary value has them. */
static double round_decimals(double d, int64_t prec)
{
    char buf[800];
    if (prec > 330 || isnan(d) || isinf(d))
        return d;
    if (prec < 0) {
        if (prec < -310)
            return copysign(0.0, d);
        double p = pow(10.0, (double)-prec);
        return nearbyint(d / p) * p;
    }
    snprintf(buf, sizeof buf, "%.*f", (int)prec, d);
    return strtod(buf, NULL);
}

static bool f_round(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    struct mx_jval *out)
{
    static const char *const names[] = {"precision", "method", NULL};
    struct mx_jval v[2];
    const struct mx_jstr *method;
    int64_t prec = 0;
    double d;
    if (!mx_jbind(r, "round", a, names, 0, v) || !mx_jarg_int(r, "precision", &v[0], &prec) ||
        !mx_jarg_str(r, "method", &v[1], &method))
        return false;
    bool common = !method || mx_jstr_is(method, "common");
    bool up = method && mx_jstr_is(method, "ceil");
    if (!common && !up && !mx_jstr_is(method, "floor"))
        return mx_jfail(r, "method must be common, ceil or floor");
    if (self->type == MX_J_UNDEF)
        return mx_jfail_undef(r, self);
    if (!mx_jas_float(self, &d))
        return mx_jfail(r, "type %s cannot be rounded", mx_jtype_name(self));
    if (common && self->type != MX_J_FLOAT && prec >= 0) {
        int64_t i = 0;
        mx_jas_int(self, &i);
        *out = mx_jint(i);
        return true;
    }
    double p = pow(10.0, (double)prec);
    d = common ? round_decimals(d, prec) : ((up ? ceil(d * p) : floor(d * p)) + 0.0) / p;
    *out = common && self->type != MX_J_FLOAT ? mx_jint((int64_t)d) : mx_jfloat(d);
    return true;
}

/* ---- Defaults and attributes -------------------------------------------------------------- */

static bool f_default(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                      struct mx_jval *out)
{
    static const char *const names[] = {"default_value", "boolean", NULL};
    struct mx_jval v[2];
    if (!mx_jbind(r, "default", a, names, 0, v))
        return false;
    bool use = self->type == MX_J_UNDEF || (mx_jtruth(&v[1]) && !mx_jtruth(self));
    if (use && v[0].type == MX_J_MISSING)
        return mx_jstr_view(r, "", 0, out);
    *out = use ? v[0] : *self;
    return true;
}

static bool f_attr(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                   struct mx_jval *out)
{
    static const char *const names[] = {"name", NULL};
    struct mx_jval v[1];
    const struct mx_jstr *name;
    if (!mx_jbind(r, "attr", a, names, 1, v) || !as_str(r, v, &name))
        return false;
    if (self->type == MX_J_UNDEF)
        return mx_jfail_undef(r, self);
    if (!mx_jown_attr(r, self, name, out))
        return false;
    if (out->type == MX_J_MISSING)
        *out = mx_jundef(MX_JU_ATTR, self->type, name);
    return true;
}

/* ---- Sequences ---------------------------------------------------------------------------- */

static bool f_length(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                     struct mx_jval *out)
{
    size_t n;
    (void)a;
    if (!mx_jlength(r, self, &n))
        return false;
    *out = mx_jint((int64_t)n);
    return true;
}

static bool copy_items(struct mx_jrun *r, const struct mx_jval *v, struct mx_jlist **out)
{
    const struct mx_jval *items;
    size_t n;
    if (!mx_jiterate(r, v, &items, &n))
        return false;
    struct mx_jlist *l = mx_jlist_new(r, n);
    if (!l)
        return false;
    if (n)
        memcpy(l->v, items, n * sizeof *items);
    l->n = n;
    *out = l;
    return true;
}

static bool f_list(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                   struct mx_jval *out)
{
    struct mx_jlist *l;
    (void)a;
    if (!copy_items(r, self, &l))
        return false;
    *out = mx_jlistval(MX_J_LIST, l);
    return true;
}

static bool f_first(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    struct mx_jval *out)
{
    static const char *const names[] = {NULL};
    const struct mx_jval *items;
    size_t n, pos = self->type == MX_J_GEN ? self->u.l->pos : 0;
    if (!mx_jbind(r, "first", a, names, 0, NULL) || !mx_jiterate(r, self, &items, &n))
        return false;
    if (self->type == MX_J_GEN)
        self->u.l->pos = n ? pos + 1 : pos; /* only one element is taken */
    *out = n ? items[0] : mx_jundef(MX_JU_EMPTY, 0, NULL);
    return true;
}

static bool f_last(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                   struct mx_jval *out)
{
    static const char *const names[] = {NULL};
    const struct mx_jval *items;
    size_t n;
    if (!mx_jbind(r, "last", a, names, 0, NULL))
        return false;
    if (self->type == MX_J_GEN)
        return mx_jfail(r, "'generator' object is not reversible");
    if (!mx_jiterate(r, self, &items, &n))
        return false;
    *out = n ? items[n - 1] : mx_jundef(MX_JU_EMPTY, 0, NULL);
    return true;
}

static bool f_reverse(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                      struct mx_jval *out)
{
    static const char *const names[] = {NULL};
    if (!mx_jbind(r, "reverse", a, names, 0, NULL))
        return false;
    if (self->type == MX_J_STR) {
        const struct mx_jval part[3] = {mx_jnone(), mx_jnone(), mx_jint(-1)};
        return mx_jslice(r, self, part, out);
    }
    struct mx_jlist *l;
    if (!copy_items(r, self, &l))
        return false;
    for (size_t i = 0, j = l->n; i + 1 < j; i++) {
        struct mx_jval t = l->v[--j];
        l->v[j] = l->v[i];
        l->v[i] = t;
    }
    *out = mx_jlistval(self->type == MX_J_GEN ? MX_J_LIST : MX_J_GEN, l);
    return true;
}

/* items with the attribute taken from each, when one is given. */
static bool with_attribute(struct mx_jrun *r, const struct mx_jval *v, const struct mx_jval *attr,
                           struct mx_jlist **out)
{
    if (!copy_items(r, v, out))
        return false;
    bool given = attr->type != MX_J_MISSING && attr->type != MX_J_NONE;
    for (size_t i = 0; given && i < (*out)->n; i++) {
        struct mx_jval e;
        if (!mx_jstep(r, 1) || !mx_jgetpath(r, &(*out)->v[i], attr, NULL, &e))
            return false;
        (*out)->v[i] = e;
    }
    return true;
}

static bool f_join(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                   struct mx_jval *out)
{
    static const char *const names[] = {"d", "attribute", NULL};
    static const struct mx_jstr empty = {.p = "", .ascii = true};
    struct mx_jval v[2];
    const struct mx_jstr *sep = &empty;
    struct mx_jlist *l;
    if (!mx_jbind(r, "join", a, names, 0, v) || !with_attribute(r, self, &v[1], &l))
        return false;
    if (v[0].type != MX_J_MISSING && !as_str(r, &v[0], &sep))
        return false;
    return mx_jjoin(r, sep, l->v, l->n, false, out);
}

static bool f_sum(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                  struct mx_jval *out)
{
    static const char *const names[] = {"attribute", "start", NULL};
    struct mx_jval v[2];
    struct mx_jlist *l;
    if (!mx_jbind(r, "sum", a, names, 0, v) || !with_attribute(r, self, &v[0], &l))
        return false;
    struct mx_jval acc = v[1].type == MX_J_MISSING ? mx_jint(0) : v[1], next;
    for (size_t i = 0; i < l->n; i++) {
        if (!mx_jstep(r, 1) || !mx_jarith(r, MX_JOP_ADD, &acc, &l->v[i], &next))
            return false;
        acc = next;
    }
    *out = acc;
    return true;
}

static bool f_batch(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    struct mx_jval *out)
{
    static const char *const names[] = {"linecount", "fill_with", NULL};
    struct mx_jval v[2];
    const struct mx_jval *items;
    size_t n;
    int64_t size = 0;
    struct mx_jlist *rows = mx_jlist_new(r, 0);
    if (!rows || !mx_jbind(r, "batch", a, names, 1, v) ||
        !mx_jarg_int(r, "linecount", &v[0], &size) || !mx_jiterate(r, self, &items, &n))
        return false;
    if (size < 1)
        return mx_jfail(r, "batch needs a size of at least 1");
    bool fills = v[1].type != MX_J_MISSING && v[1].type != MX_J_NONE;
    for (size_t i = 0; i < n;) {
        struct mx_jlist *row = mx_jlist_new(r, 0);
        for (int64_t k = 0; row && k < size && (i < n || fills); k++, i++) {
            if (!mx_jlist_push(r, row, i < n ? &items[i] : &v[1]) || !mx_jstep(r, 1))
                return false;
        }
        struct mx_jval e = mx_jlistval(MX_J_LIST, row);
        if (!row || !mx_jlist_push(r, rows, &e))
            return false;
    }
    return gen(rows, out);
}

static bool f_slice(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    struct mx_jval *out)
{
    static const char *const names[] = {"slices", "fill_with", NULL};
    struct mx_jval v[2];
    const struct mx_jval *items;
    size_t n, at = 0;
    int64_t count = 0;
    struct mx_jlist *cols = mx_jlist_new(r, 0);
    if (!cols || !mx_jbind(r, "slice", a, names, 1, v) ||
        !mx_jarg_int(r, "slices", &v[0], &count) || !mx_jiterate(r, self, &items, &n))
        return false;
    if (count < 1)
        return mx_jfail(r, "slice needs at least 1 column");
    bool fills = v[1].type != MX_J_MISSING && v[1].type != MX_J_NONE;
    size_t each = n / (uint64_t)count, longer = n % (uint64_t)count;
    for (int64_t c = 0; c < count; c++) {
        size_t take = each + ((uint64_t)c < longer);
        struct mx_jlist *col = mx_jlist_new(r, take + 1);
        if (!col || !mx_jstep(r, 1 + take))
            return false;
        for (size_t k = 0; k < take; k++)
            col->v[col->n++] = items[at++];
        if (fills && (uint64_t)c >= longer)
            col->v[col->n++] = v[1];
        struct mx_jval e = mx_jlistval(MX_J_LIST, col);
        if (!mx_jlist_push(r, cols, &e))
            return false;
    }
    return gen(cols, out);
}

/* ---- Ordering ----------------------------------------------------------------------------- */

/* Strings lowered unless case counts. */
static bool fold(struct mx_jrun *r, const struct mx_jval *v, bool case_sensitive,
                 struct mx_jval *out)
{
    *out = *v;
    return case_sensitive || v->type != MX_J_STR || mx_jrecase(r, v->u.s, MX_JC_LOWER, out);
}

/* How min, max, sort, unique and groupby order items. */
struct order {
    const struct mx_jval *attribute; /* MISSING or None: the item itself */
    bool several;                    /* the attribute may be a list "a,b" */
    bool case_sensitive;
    const struct mx_jval *otherwise; /* for items without the attribute; may be NULL */
};

/* The attributes "a,b" of an item as a tuple. */
static bool several_keys(struct mx_jrun *r, const struct mx_jval *item, const struct order *by,
                         struct mx_jval *out)
{
    const struct mx_jstr comma = {.p = ",", .len = 1};
    struct mx_jlist *parts = mx_jlist_new(r, 0);
    if (!parts || !mx_jsplit(r, by->attribute->u.s, &comma, -1, false, parts))
        return false;
    for (size_t i = 0; i < parts->n; i++) {
        struct mx_jval v;
        if (!mx_jgetpath(r, item, &parts->v[i], NULL, &v) ||
            !fold(r, &v, by->case_sensitive, &parts->v[i]))
            return false;
    }
    *out = mx_jlistval(MX_J_TUPLE, parts);
    return true;
}

static bool order_key(struct mx_jrun *r, const struct mx_jval *item, const struct order *by,
                      struct mx_jval *out)
{
    struct mx_jval v = *item;
    bool given = by->attribute->type != MX_J_MISSING && by->attribute->type != MX_J_NONE;
    if (given && by->several && by->attribute->type == MX_J_STR)
        return several_keys(r, item, by, out);
    if (given && !mx_jgetpath(r, item, by->attribute, by->otherwise, &v))
        return false;
    return fold(r, &v, by->case_sensitive, out);
}

static bool keyed_items(struct mx_jrun *r, const struct mx_jval *v, const struct order *by,
                        struct mx_jkeyed **out, size_t *n)
{
    const struct mx_jval *items;
    if (!mx_jiterate(r, v, &items, n))
        return false;
    struct mx_jkeyed *k = mx_jalloc(r, *n, sizeof *k);
    if (!k)
        return false;
    for (size_t i = 0; i < *n; i++) {
        k[i].v = items[i];
        if (!mx_jstep(r, 1) || !order_key(r, &items[i], by, &k[i].key))
            return false;
    }
    *out = k;
    return true;
}

static bool list_of(struct mx_jrun *r, const struct mx_jkeyed *k, size_t n, struct mx_jval *out)
{
    struct mx_jlist *l = mx_jlist_new(r, n);
    if (!l)
        return false;
    for (; l->n < n; l->n++)
        l->v[l->n] = k[l->n].v;
    *out = mx_jlistval(MX_J_LIST, l);
    return true;
}

static bool f_sort(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                   struct mx_jval *out)
{
    static const char *const names[] = {"reverse", "case_sensitive", "attribute", NULL};
    struct mx_jval v[3];
    struct mx_jkeyed *k;
    size_t n;
    if (!mx_jbind(r, "sort", a, names, 0, v))
        return false;
    const struct order by = {&v[2], true, mx_jtruth(&v[1]), NULL};
    return keyed_items(r, self, &by, &k, &n) && mx_jsort(r, k, n, mx_jtruth(&v[0])) &&
           list_of(r, k, n, out);
}

static bool f_unique(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                     struct mx_jval *out)
{
    static const char *const names[] = {"case_sensitive", "attribute", NULL};
    struct mx_jval v[2];
    struct mx_jkeyed *k;
    size_t n;
    struct mx_jdict *seen = mx_jdict_new(r, 0);
    struct mx_jlist *kept = mx_jlist_new(r, 0);
    if (!seen || !kept || !mx_jbind(r, "unique", a, names, 0, v))
        return false;
    const struct order by = {&v[1], false, mx_jtruth(&v[0]), NULL};
    if (!keyed_items(r, self, &by, &k, &n))
        return false;
    for (size_t i = 0; i < n; i++) {
        struct mx_jval *found;
        if (!mx_jdict_get(r, seen, &k[i].key, &found))
            return false;
        if (found)
            continue;
        if (!mx_jdict_set(r, seen, &k[i].key, &k[i].key) || !mx_jlist_push(r, kept, &k[i].v))
            return false;
    }
    return gen(kept, out);
}

static bool extreme(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    bool max, struct mx_jval *out)
{
    static const char *const names[] = {"case_sensitive", "attribute", NULL};
    struct mx_jval v[2];
    struct mx_jkeyed *k;
    size_t n, best = 0;
    if (!mx_jbind(r, max ? "max" : "min", a, names, 0, v))
        return false;
    const struct order by = {&v[1], false, mx_jtruth(&v[0]), NULL};
    if (!keyed_items(r, self, &by, &k, &n))
        return false;
    for (size_t i = 1; i < n; i++) {
        int c = 0;
        if (!mx_jstep(r, 1) || !mx_jcompare(r, &k[i].key, &k[best].key, max ? ">" : "<", &c))
            return false;
        if (c == (max ? 1 : -1))
            best = i;
    }
    *out = n ? k[best].v : mx_jundef(MX_JU_EMPTY, 0, NULL);
    return true;
}

static bool f_max(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                  struct mx_jval *out)
{
    return extreme(r, self, a, true, out);
}

static bool f_min(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                  struct mx_jval *out)
{
    return extreme(r, self, a, false, out);
}

static bool pairs_of(struct mx_jrun *r, const struct mx_jdict *d, struct mx_jkeyed **out,
                     bool by_value, bool case_sensitive)
{
    struct mx_jkeyed *k = mx_jalloc(r, d->n, sizeof *k);
    for (size_t i = 0; k && i < d->n; i++) {
        const struct mx_jval pair[2] = {d->v[i].key, d->v[i].value};
        if (!mx_jstep(r, 1) || !mx_jtuple(r, pair, 2, &k[i].v) ||
            !fold(r, &pair[by_value], case_sensitive, &k[i].key))
            return false;
    }
    *out = k;
    return k != NULL;
}

static bool f_dictsort(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                       struct mx_jval *out)
{
    static const char *const names[] = {"case_sensitive", "by", "reverse", NULL};
    struct mx_jval v[3];
    struct mx_jkeyed *k;
    const struct mx_jstr *by;
    if (!mx_jbind(r, "dictsort", a, names, 0, v) || !mx_jarg_str(r, "by", &v[1], &by))
        return false;
    bool by_value = by && mx_jstr_is(by, "value");
    if (by && !by_value && !mx_jstr_is(by, "key"))
        return mx_jfail(r, "you can only sort by either \"key\" or \"value\"");
    if (self->type == MX_J_UNDEF)
        return mx_jfail_undef(r, self);
    if (self->type != MX_J_DICT)
        return mx_jfail(r, "dictsort needs a dict, not %s", mx_jtype_name(self));
    return pairs_of(r, self->u.d, &k, by_value, mx_jtruth(&v[0])) &&
           mx_jsort(r, k, self->u.d->n, mx_jtruth(&v[2])) && list_of(r, k, self->u.d->n, out);
}

/* One group of groupby: a (grouper, list) tuple with those attributes. */
static bool push_group(struct mx_jrun *r, struct mx_jlist *groups, const struct mx_jval *grouper,
                       const struct mx_jkeyed *k, size_t n)
{
    struct mx_jval pair[2] = {*grouper}, group;
    if (!list_of(r, k, n, &pair[1]) || !mx_jtuple(r, pair, 2, &group))
        return false;
    group.of = 'g';
    return mx_jlist_push(r, groups, &group);
}

static bool f_groupby(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                      struct mx_jval *out)
{
    static const char *const names[] = {"attribute", "default", "case_sensitive", NULL};
    struct mx_jval v[3], grouper;
    struct mx_jkeyed *k;
    size_t n;
    struct mx_jlist *groups = mx_jlist_new(r, 0);
    if (!groups || !mx_jbind(r, "groupby", a, names, 1, v))
        return false;
    const struct order by = {&v[0], false, mx_jtruth(&v[2]), &v[1]};
    if (!keyed_items(r, self, &by, &k, &n))
        return false;
    if (!mx_jsort(r, k, n, false))
        return false;
    for (size_t i = 0, from = 0; i < n; i++) {
        bool same = false;
        if (i + 1 < n && !mx_jequal(r, &k[i].key, &k[i + 1].key, &same))
            return false;
        if (same)
            continue;
        if (!mx_jgetpath(r, &k[from].v, &v[0], &v[1], &grouper) ||
            !push_group(r, groups, &grouper, k + from, i + 1 - from))
            return false;
        from = i + 1;
    }
    *out = mx_jlistval(MX_J_LIST, groups);
    return true;
}

static bool f_items(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    struct mx_jval *out)
{
    struct mx_jlist *l = mx_jlist_new(r, self->type == MX_J_DICT ? self->u.d->n : 0);
    (void)a;
    if (!l)
        return false;
    if (self->type == MX_J_UNDEF)
        return gen(l, out);
    if (self->type != MX_J_DICT)
        return mx_jfail(r, "Can only get item pairs from a mapping.");
    const struct mx_jdict *d = self->u.d;
    for (; l->n < d->n; l->n++) {
        const struct mx_jval pair[2] = {d->v[l->n].key, d->v[l->n].value};
        if (!mx_jtuple(r, pair, 2, &l->v[l->n]))
            return false;
    }
    return gen(l, out);
}

/* ---- map, select, reject ------------------------------------------------------------------ */

static struct mx_jargs rest_of(const struct mx_jargs *a, size_t used)
{
    return (struct mx_jargs){
        .pos = a->npos > used ? a->pos + used : NULL,
        .npos = a->npos > used ? a->npos - used : 0,
        .kw = a->kw,
        .nkw = a->nkw,
    };
}

static bool map_attribute(struct mx_jrun *r, const struct mx_jargs *a, const struct mx_jval *items,
                          size_t n, struct mx_jlist *out)
{
    static const char *const names[] = {"attribute", "default", NULL};
    struct mx_jval v[2], e;
    if (!mx_jbind(r, "map", a, names, 1, v))
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!mx_jgetpath(r, &items[i], &v[0], &v[1], &e) || !mx_jlist_push(r, out, &e))
            return false;
    }
    return true;
}

static bool map_filter(struct mx_jrun *r, const struct mx_jargs *a, const struct mx_jval *items,
                       size_t n, struct mx_jlist *out)
{
    if (a->npos == 0)
        return mx_jfail(r, "map requires a filter argument");
    const struct mx_jval *name = &a->pos[0];
    const struct mx_jargs rest = rest_of(a, 1);
    const struct mx_jdef *def = name->type == MX_J_STR ? mx_jfind_filter(name->u.s) : NULL;
    if (!def && name->type == MX_J_STR)
        return mx_jfail(r, "no filter named '%.*s'",
                        (int)(name->u.s->len > 60 ? 60 : name->u.s->len), name->u.s->p);
    if (!def)
        return mx_jfail(r, "map requires the name of a filter");
    for (size_t i = 0; i < n; i++) {
        struct mx_jval e;
        if (!mx_jstep(r, 1) || !mx_japply_filter(r, def, &items[i], &rest, &e) ||
            !mx_jlist_push(r, out, &e))
            return false;
    }
    return true;
}

/* map can apply map, so it counts its nesting. */
static bool f_map(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                  struct mx_jval *out)
{
    const struct mx_jval *items = NULL;
    size_t n = 0;
    struct mx_jlist *l = mx_jlist_new(r, 0);
    if (!l || (mx_jtruth(self) && !mx_jiterate(r, self, &items, &n)) || !mx_jenter(r))
        return false;
    bool by_attribute = a->npos == 0 && a->nkw > 0 && mx_jstr_is(a->kw[0].name, "attribute");
    by_attribute |= a->npos == 0 && a->nkw > 1 && mx_jstr_is(a->kw[1].name, "attribute");
    bool ok = by_attribute ? map_attribute(r, a, items, n, l) : map_filter(r, a, items, n, l);
    mx_jleave(r);
    return ok && gen(l, out);
}

/* The test named by the first of `a`, applied to v; without a name, v's truth. */
static bool holds(struct mx_jrun *r, const struct mx_jargs *a, const struct mx_jval *v, bool *out)
{
    if (a->npos == 0) {
        *out = mx_jtruth(v);
        return true;
    }
    const struct mx_jval *name = &a->pos[0];
    const struct mx_jargs rest = rest_of(a, 1);
    const struct mx_jtestdef *def = name->type == MX_J_STR ? mx_jfind_test(name->u.s) : NULL;
    if (!def && name->type == MX_J_STR)
        return mx_jfail(r, "no test named '%.*s'", (int)(name->u.s->len > 60 ? 60 : name->u.s->len),
                        name->u.s->p);
    if (!def)
        return mx_jfail(r, "select and reject require the name of a test");
    return def->fn(r, v, &rest, out);
}

static bool pick(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                 bool by_attribute, bool keep, struct mx_jval *out)
{
    const struct mx_jval *items = NULL;
    size_t n = 0;
    struct mx_jlist *l = mx_jlist_new(r, 0);
    if (by_attribute && a->npos == 0)
        return mx_jfail(r, "missing parameter for attribute name");
    const struct mx_jargs rest = by_attribute ? rest_of(a, 1) : *a;
    if (!l || (mx_jtruth(self) && !mx_jiterate(r, self, &items, &n)))
        return false;
    for (size_t i = 0; i < n; i++) {
        struct mx_jval v = items[i];
        bool h = false;
        if (!mx_jstep(r, 1) || (by_attribute && !mx_jgetpath(r, &items[i], &a->pos[0], NULL, &v)) ||
            !holds(r, &rest, &v, &h))
            return false;
        if (h == keep && !mx_jlist_push(r, l, &items[i]))
            return false;
    }
    return gen(l, out);
}

static bool f_select(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                     struct mx_jval *out)
{
    return pick(r, self, a, false, true, out);
}

static bool f_reject(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                     struct mx_jval *out)
{
    return pick(r, self, a, false, false, out);
}

static bool f_selectattr(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                         struct mx_jval *out)
{
    return pick(r, self, a, true, true, out);
}

static bool f_rejectattr(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                         struct mx_jval *out)
{
    return pick(r, self, a, true, false, out);
}

/* ---- JSON --------------------------------------------------------------------------------- */

/* separators=(item, key) */
static bool separators(struct mx_jrun *r, const struct mx_jval *v, struct mx_jjson_style *st)
{
    const struct mx_jval *items;
    size_t n;
    if (v->type == MX_J_MISSING || v->type == MX_J_NONE)
        return true;
    if (!mx_jiterate(r, v, &items, &n))
        return false;
    if (n != 2 || items[0].type != MX_J_STR || items[1].type != MX_J_STR)
        return mx_jfail(r, "separators of tojson must be two strings");
    st->item_sep = items[0].u.s;
    st->key_sep = items[1].u.s;
    return true;
}

static bool f_tojson(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                     struct mx_jval *out)
{
    static const char *const names[] = {"ensure_ascii", "indent", "separators", "sort_keys", NULL};
    static const struct mx_jstr comma_space = {.p = ", ", .len = 2, .ascii = true};
    static const struct mx_jstr comma = {.p = ",", .len = 1, .ascii = true};
    static const struct mx_jstr colon = {.p = ": ", .len = 2, .ascii = true};
    struct mx_jval v[4];
    struct mx_jout o = {0};
    if (!mx_jbind(r, "tojson", a, names, 0, v))
        return false;
    struct mx_jjson_style st = {.ascii = mx_jtruth(&v[0]), .sort = mx_jtruth(&v[3])};
    st.pretty = v[1].type != MX_J_MISSING && v[1].type != MX_J_NONE;
    st.item_sep = st.pretty ? &comma : &comma_space;
    st.key_sep = &colon;
    if (st.pretty && !indentation(r, &v[1], &st.indent))
        return false;
    return separators(r, &v[2], &st) && mx_jdumps(r, &o, self, &st) && mx_jout_str(r, &o, out);
}

static bool f_from_json(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                        struct mx_jval *out)
{
    json_error_t e;
    (void)a;
    if (self->type != MX_J_STR)
        return mx_jfail(r, "from_json needs a string, not %s", mx_jtype_name(self));
    if (self->u.s->len > MX_J_MAX_JSON)
        return mx_jfail_limit(r, "from_json reads at most %d bytes", MX_J_MAX_JSON);
    if (!mx_jstep(r, self->u.s->len / 8))
        return false;
    json_t *json = json_loadb(self->u.s->p, self->u.s->len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    if (!json)
        return mx_jfail(r, "from_json: %s", e.text);
    bool ok = mx_jfrom_json(r, json, true, out);
    json_decref(json);
    return ok;
}

/* ---- Table -------------------------------------------------------------------------------- */

static const struct mx_jdef filters[] = {
    {"abs", f_abs, false},
    {"attr", f_attr, false},
    {"batch", f_batch, false},
    {"capitalize", f_capitalize, true},
    {"center", f_center, true},
    {"count", f_length, false},
    {"d", f_default, false},
    {"default", f_default, false},
    {"dictsort", f_dictsort, false},
    {"e", f_escape, true},
    {"escape", f_escape, true},
    {"first", f_first, false},
    {"float", f_float, false},
    {"format", f_format, true},
    {"from_json", f_from_json, false},
    {"groupby", f_groupby, false},
    {"indent", f_indent, true},
    {"int", f_int, false},
    {"items", f_items, false},
    {"join", f_join, false},
    {"last", f_last, false},
    {"length", f_length, false},
    {"list", f_list, false},
    {"lower", f_lower, true},
    {"map", f_map, false},
    {"max", f_max, false},
    {"min", f_min, false},
    {"reject", f_reject, false},
    {"rejectattr", f_rejectattr, false},
    {"replace", f_replace, false},
    {"reverse", f_reverse, true},
    {"round", f_round, false},
    {"safe", f_safe, false},
    {"select", f_select, false},
    {"selectattr", f_selectattr, false},
    {"slice", f_slice, false},
    {"sort", f_sort, false},
    {"string", f_string, false},
    {"sum", f_sum, false},
    {"title", f_title, false},
    {"tojson", f_tojson, false},
    {"trim", f_trim, true},
    {"truncate", f_truncate, true},
    {"unique", f_unique, false},
    {"upper", f_upper, true},
    {"urlencode", f_urlencode, false},
    {"wordcount", f_wordcount, false},
};

const struct mx_jdef *mx_jfind_filter(const struct mx_jstr *name)
{
    return mx_jfind_def(filters, COUNT(filters), name);
}
