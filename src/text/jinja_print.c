/* Jinja output: Python's str(), repr(), json.dumps() and `%` formatting, written either to the
 * caller's buffer or to a growing string in the render's arena.
 *
 * Numbers are formatted and read without depending on the process locale. */
#include "base/utf8.h"
#include "text/jinja_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

/* ---- Output ------------------------------------------------------------------------------- */

static bool grow(struct mx_jrun *r, struct mx_jout *o, size_t n)
{
    size_t need, cap = o->cap > SIZE_MAX / 2 ? o->cap : 2 * o->cap;
    if (__builtin_add_overflow(o->len, n, &need))
        return mx_jfail_limit(r, "string is too long");
    if (cap < need)
        cap = need;
    if (cap < 64)
        cap = 64;
    char *p = mx_jalloc(r, cap, 1);
    if (!p)
        return false;
    if (o->len)
        memcpy(p, o->p, o->len);
    o->p = p;
    o->cap = cap;
    return true;
}

static bool put_final(struct mx_jrun *r, struct mx_strbuf *sb, const char *p, size_t n)
{
    size_t written = sb->len - r->out_start;
    if (n > r->max_output - written)
        return mx_jfail_limit(r, "the output is longer than %zu bytes", r->max_output);
    if (mx_strbuf_append(sb, p, n))
        return true;
    mx_error_nomem(r->err, "the rendered template", n);
    return false;
}

bool mx_jput(struct mx_jrun *r, struct mx_jout *o, const char *p, size_t n)
{
    if (n == 0)
        return true;
    if (!mx_jstep(r, n / 256))
        return false;
    if (o->sb)
        return put_final(r, o->sb, p, n);
    if (n > o->cap - o->len && !grow(r, o, n))
        return false;
    memcpy(o->p + o->len, p, n);
    o->len += n;
    return true;
}

bool mx_jputs(struct mx_jrun *r, struct mx_jout *o, const char *s)
{
    return mx_jput(r, o, s, strlen(s));
}

bool mx_jput_cp(struct mx_jrun *r, struct mx_jout *o, uint32_t cp)
{
    char buf[4];
    return mx_jput(r, o, buf, (size_t)mx_utf8_encode(cp, buf));
}

bool mx_jfill(struct mx_jrun *r, struct mx_jout *o, char c, int64_t n)
{
    char block[64];
    memset(block, c, sizeof block);
    /* A fill that cannot fit fails before it starts instead of after writing gigabytes. */
    if (n > 0 && (uint64_t)n > (o->sb ? r->max_output : r->arena.limit))
        return mx_jfail_limit(r, "string is too long");
    while (n > 0) {
        size_t k = n < 64 ? (size_t)n : 64;
        if (!mx_jput(r, o, block, k))
            return false;
        n -= (int64_t)k;
    }
    return true;
}

bool mx_jout_str(struct mx_jrun *r, struct mx_jout *o, struct mx_jval *out)
{
    return mx_jstr_view(r, o->p ? o->p : "", o->len, out);
}

/* ---- Floats ------------------------------------------------------------------------------- */

/* Shortest digits that read back as f > 0, and the decimal exponent of the first one. Fifteen
 * digits identify any decimal of at most fifteen, so shorter ones only need their zeros removed;
 * subnormal numbers have less precision and are tried from one digit up. */
static int shortest_digits(double f, char *digits, int *exp10)
{
    char buf[40];
    int prec = f < 2.3e-308 ? 1 : 15;
    for (; prec <= 17; prec++) {
        snprintf(buf, sizeof buf, "%.*e", prec - 1, f);
        if (prec == 17 || strtod(buf, NULL) == f)
            break;
    }
    int n = 0;
    const char *p = buf;
    for (; *p && *p != 'e'; p++) {
        if (*p >= '0' && *p <= '9')
            digits[n++] = *p;
    }
    *exp10 = *p ? (int)strtol(p + 1, NULL, 10) : 0;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    return n;
}

static char *put_digits(char *w, const char *d, int from, int to, int n)
{
    for (int i = from; i < to; i++)
        *w++ = i >= 0 && i < n ? d[i] : '0';
    return w;
}

size_t mx_jfloat_repr(double f, char buf[MX_J_FLOAT_SIZE])
{
    if (isnan(f))
        return (size_t)snprintf(buf, MX_J_FLOAT_SIZE, "nan");
    if (isinf(f))
        return (size_t)snprintf(buf, MX_J_FLOAT_SIZE, f < 0 ? "-inf" : "inf");
    char *w = buf, d[24] = "0";
    int e = 0, n = 1;
    if (signbit(f))
        *w++ = '-';
    if (f != 0)
        n = shortest_digits(fabs(f), d, &e);
    if (e < -4 || e >= 16) {
        *w++ = d[0];
        if (n > 1)
            *w++ = '.';
        w = put_digits(w, d, 1, n, n);
        w += snprintf(w, 8, "e%c%02d", e < 0 ? '-' : '+', abs(e));
    } else {
        w = e < 0 ? put_digits(w, "0", 0, 1, 1) : put_digits(w, d, 0, e + 1, n);
        *w++ = '.';
        w = put_digits(w, d, e + 1, n > e + 1 ? n : e + 2, n);
    }
    return (size_t)(w - buf);
}

/* Copies digits (dropping `_`) until something else; counts them. */
static size_t copy_digits(const char *s, size_t n, size_t at, char *buf, size_t *w, int *count)
{
    for (; at < n && ((s[at] >= '0' && s[at] <= '9') || s[at] == '_'); at++) {
        if (s[at] == '_') /* only between digits */
            if (at == 0 || at + 1 == n || s[at - 1] < '0' || s[at - 1] > '9' || s[at + 1] < '0' ||
                s[at + 1] > '9')
                return n + 1;
        if (s[at] == '_')
            continue;
        (*count)++;
        if (*w < 800)
            buf[(*w)++] = s[at];
        else
            return n + 1; /* more digits than any number needs */
    }
    return at;
}

/* The decimal point is folded into the exponent, because strtod() expects the locale's point. */
bool mx_jparse_float(const char *s, size_t n, double *out)
{
    char buf[840];
    size_t w = 0, at = 0;
    int whole = 0, frac = 0, digits = 0;
    long exp = 0;
    if (at < n && (s[at] == '-' || s[at] == '+'))
        buf[w++] = s[at++];
    at = copy_digits(s, n, at, buf, &w, &whole);
    if (at < n && s[at] == '.')
        at = copy_digits(s, n, at + 1, buf, &w, &frac);
    if (whole + frac == 0)
        return false;
    if (at < n && (s[at] == 'e' || s[at] == 'E')) {
        char e[16] = "";
        char ebuf[801];
        size_t ew = 0;
        bool minus = ++at < n && s[at] == '-';
        at += at < n && (s[at] == '-' || s[at] == '+');
        at = copy_digits(s, n, at, ebuf, &ew, &digits);
        if (digits == 0)
            return false;
        memcpy(e, ebuf, ew < 6 ? ew : 6);
        exp = ew > 6 ? 999999 : strtol(e, NULL, 10);
        exp = minus ? -exp : exp;
    }
    if (at != n)
        return false;
    snprintf(buf + w, sizeof buf - w, "e%ld", exp - frac);
    *out = strtod(buf, NULL);
    return true;
}

static bool put_int(struct mx_jrun *r, struct mx_jout *o, int64_t i)
{
    char buf[24];
    return mx_jput(r, o, buf, (size_t)snprintf(buf, sizeof buf, "%" PRId64, i));
}

/* ---- repr --------------------------------------------------------------------------------- */

/* Python's str.isprintable() for one code point. */
static bool printable(uint32_t cp)
{
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    case UTF8PROC_CATEGORY_ZS: return cp == ' ';
    default: return true;
    }
}

static bool repr_cp(struct mx_jrun *r, struct mx_jout *o, uint32_t cp, char quote)
{
    char buf[16];
    if (cp == (unsigned char)quote || cp == '\\')
        return mx_jput(r, o, "\\", 1) && mx_jput_cp(r, o, cp);
    const char *simple = cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : cp == '\t' ? "\\t" : NULL;
    if (simple)
        return mx_jputs(r, o, simple);
    if (printable(cp))
        return mx_jput_cp(r, o, cp);
    const char *fmt = cp < 0x100     ? "\\x%02" PRIx32
                      : cp < 0x10000 ? "\\u%04" PRIx32
                                     : "\\U%08" PRIx32;
    return mx_jput(r, o, buf, (size_t)snprintf(buf, sizeof buf, fmt, cp));
}

/* Is p[0] plain in repr and JSON alike? Lets runs of text be copied at once. */
static bool is_plain(char c)
{
    return c >= ' ' && c < 0x7f && c != '"' && c != '\'' && c != '\\';
}

static bool repr_str(struct mx_jrun *r, struct mx_jout *o, const struct mx_jstr *s)
{
    bool single = s->len && memchr(s->p, '\'', s->len), both = single && memchr(s->p, '"', s->len);
    char quote = single && !both ? '"' : '\'';
    if ((s->safe && !mx_jputs(r, o, "Markup(")) || !mx_jput(r, o, &quote, 1))
        return false;
    for (size_t at = 0; at < s->len;) {
        size_t run = at;
        while (run < s->len && is_plain(s->p[run]))
            run++;
        if (!mx_jput(r, o, s->p + at, run - at))
            return false;
        at = run;
        uint32_t cp;
        int k = at < s->len ? mx_utf8_decode(s->p + at, s->len - at, &cp) : 0;
        if (k > 0 && (!mx_jstep(r, 1) || !repr_cp(r, o, cp, quote)))
            return false;
        at += k > 0 ? (size_t)k : at < s->len;
    }
    return mx_jput(r, o, &quote, 1) && (!s->safe || mx_jput(r, o, ")", 1));
}

static bool repr_items(struct mx_jrun *r, struct mx_jout *o, const struct mx_jlist *l)
{
    for (size_t i = 0; i < l->n; i++) {
        if ((i && !mx_jput(r, o, ", ", 2)) || !mx_jrepr(r, o, &l->v[i]))
            return false;
    }
    return true;
}

static bool repr_dict(struct mx_jrun *r, struct mx_jout *o, const struct mx_jdict *d)
{
    if (!mx_jput(r, o, "{", 1))
        return false;
    for (size_t i = 0; i < d->n; i++) {
        if ((i && !mx_jput(r, o, ", ", 2)) || !mx_jrepr(r, o, &d->v[i].key) ||
            !mx_jput(r, o, ": ", 2) || !mx_jrepr(r, o, &d->v[i].value))
            return false;
    }
    return mx_jput(r, o, "}", 1);
}

static bool repr_range(struct mx_jrun *r, struct mx_jout *o, const struct mx_jrange *g)
{
    return mx_jputs(r, o, "range(") && put_int(r, o, g->start) && mx_jput(r, o, ", ", 2) &&
           put_int(r, o, g->stop) &&
           (g->step == 1 || (mx_jput(r, o, ", ", 2) && put_int(r, o, g->step))) &&
           mx_jput(r, o, ")", 1);
}

static bool repr_loop(struct mx_jrun *r, struct mx_jout *o, const struct mx_jloop *l)
{
    return mx_jputs(r, o, "<LoopContext ") && put_int(r, o, (int64_t)l->i + 1) &&
           mx_jput(r, o, "/", 1) && put_int(r, o, (int64_t)l->n) && mx_jput(r, o, ">", 1);
}

static bool repr_macro(struct mx_jrun *r, struct mx_jout *o, const struct mx_jmacrodef *m)
{
    if (!m->name)
        return mx_jputs(r, o, "<Macro anonymous>");
    return mx_jputs(r, o, "<Macro '") && mx_jput(r, o, m->name->p, m->name->len) &&
           mx_jputs(r, o, "'>");
}

static bool repr_container(struct mx_jrun *r, struct mx_jout *o, const struct mx_jval *v)
{
    switch (v->type) {
    case MX_J_LIST:
        return mx_jput(r, o, "[", 1) && repr_items(r, o, v->u.l) && mx_jput(r, o, "]", 1);
    case MX_J_TUPLE:
        return mx_jput(r, o, "(", 1) && repr_items(r, o, v->u.l) &&
               mx_jputs(r, o, v->u.l->n == 1 ? ",)" : ")");
    case MX_J_VIEW:
        return mx_jputs(r, o, mx_jtype_name(v)) && mx_jput(r, o, "([", 2) &&
               repr_items(r, o, v->u.l) && mx_jput(r, o, "])", 2);
    case MX_J_NAMESPACE:
        return mx_jputs(r, o, "<Namespace ") && repr_dict(r, o, v->u.d) && mx_jput(r, o, ">", 1);
    default: return repr_dict(r, o, v->u.d);
    }
}

bool mx_jrepr(struct mx_jrun *r, struct mx_jout *o, const struct mx_jval *v)
{
    char buf[MX_J_FLOAT_SIZE];
    switch (v->type) {
    case MX_J_UNDEF: return mx_jputs(r, o, "Undefined");
    case MX_J_NONE: return mx_jputs(r, o, "None");
    case MX_J_BOOL: return mx_jputs(r, o, v->u.b ? "True" : "False");
    case MX_J_INT: return put_int(r, o, v->u.i);
    case MX_J_FLOAT: return mx_jput(r, o, buf, mx_jfloat_repr(v->u.f, buf));
    case MX_J_STR: return repr_str(r, o, v->u.s);
    case MX_J_RANGE: return repr_range(r, o, v->u.r);
    case MX_J_MACRO: return repr_macro(r, o, v->u.macro->def);
    case MX_J_LOOP: return repr_loop(r, o, v->u.loop);
    case MX_J_LIST:
    case MX_J_TUPLE:
    case MX_J_VIEW:
    case MX_J_DICT:
    case MX_J_NAMESPACE: break;
    default: return mx_jputs(r, o, "<") && mx_jputs(r, o, mx_jtype_name(v)) && mx_jputs(r, o, ">");
    }
    if (!mx_jstep(r, 1) || !mx_jenter(r))
        return false;
    bool ok = repr_container(r, o, v);
    mx_jleave(r);
    return ok;
}

bool mx_jprint(struct mx_jrun *r, struct mx_jout *o, const struct mx_jval *v)
{
    if (v->type == MX_J_STR)
        return mx_jput(r, o, v->u.s->p, v->u.s->len);
    return v->type == MX_J_UNDEF || mx_jrepr(r, o, v);
}

bool mx_jto_str(struct mx_jrun *r, const struct mx_jval *v, struct mx_jval *out)
{
    struct mx_jout o = {0};
    if (v->type == MX_J_STR) {
        *out = *v;
        return true;
    }
    return mx_jprint(r, &o, v) && mx_jout_str(r, &o, out);
}

/* ---- JSON --------------------------------------------------------------------------------- */

static bool json_cp(struct mx_jrun *r, struct mx_jout *o, uint32_t cp, bool ascii)
{
    static const char escapes[] = "\"\"\\\\\nn\rr\tt\bb\ff";
    char buf[16];
    for (const char *e = escapes; *e; e += 2) {
        if (cp == (unsigned char)e[0])
            return mx_jput(r, o, "\\", 1) && mx_jput(r, o, e + 1, 1);
    }
    if (cp >= 0x20 && (cp < 0x80 || !ascii))
        return mx_jput_cp(r, o, cp);
    int n = cp < 0x10000 ? snprintf(buf, sizeof buf, "\\u%04" PRIx32, cp)
                         : snprintf(buf, sizeof buf, "\\u%04" PRIx32 "\\u%04" PRIx32,
                                    0xd800 + ((cp - 0x10000) >> 10), 0xdc00 + (cp & 0x3ff));
    return mx_jput(r, o, buf, (size_t)n);
}

static bool json_str(struct mx_jrun *r, struct mx_jout *o, const struct mx_jstr *s, bool ascii)
{
    if (!mx_jput(r, o, "\"", 1))
        return false;
    for (size_t at = 0; at < s->len;) {
        size_t run = at;
        while (run < s->len && (is_plain(s->p[run]) || s->p[run] == '\'' ||
                                (!ascii && (unsigned char)s->p[run] >= 0x80)))
            run++;
        if (!mx_jput(r, o, s->p + at, run - at))
            return false;
        at = run;
        uint32_t cp;
        int k = at < s->len ? mx_utf8_decode(s->p + at, s->len - at, &cp) : 0;
        if (k > 0 && (!mx_jstep(r, 1) || !json_cp(r, o, cp, ascii)))
            return false;
        at += k > 0 ? (size_t)k : at < s->len;
    }
    return mx_jput(r, o, "\"", 1);
}

static bool json_float(struct mx_jrun *r, struct mx_jout *o, double f)
{
    char buf[MX_J_FLOAT_SIZE];
    if (isnan(f) || isinf(f))
        return mx_jputs(r, o, isnan(f) ? "NaN" : f < 0 ? "-Infinity" : "Infinity");
    return mx_jput(r, o, buf, mx_jfloat_repr(f, buf));
}

static bool json_newline(struct mx_jrun *r, struct mx_jout *o, const struct mx_jjson_style *st,
                         int level)
{
    if (!st->pretty)
        return true;
    if (!mx_jput(r, o, "\n", 1))
        return false;
    for (int i = 0; i < level; i++) {
        if (!mx_jput(r, o, st->indent->p, st->indent->len))
            return false;
    }
    return true;
}

static bool json_value(struct mx_jrun *r, struct mx_jout *o, const struct mx_jval *v,
                       const struct mx_jjson_style *st, int level);

static bool json_list(struct mx_jrun *r, struct mx_jout *o, const struct mx_jlist *l,
                      const struct mx_jjson_style *st, int level)
{
    if (l->n == 0)
        return mx_jputs(r, o, "[]");
    if (!mx_jput(r, o, "[", 1))
        return false;
    for (size_t i = 0; i < l->n; i++) {
        if (i && !mx_jput(r, o, st->item_sep->p, st->item_sep->len))
            return false;
        if (!json_newline(r, o, st, level + 1) || !json_value(r, o, &l->v[i], st, level + 1))
            return false;
    }
    return json_newline(r, o, st, level) && mx_jput(r, o, "]", 1);
}

static bool json_key(struct mx_jrun *r, struct mx_jout *o, const struct mx_jval *k,
                     const struct mx_jjson_style *st)
{
    if (k->type == MX_J_STR)
        return json_str(r, o, k->u.s, st->ascii);
    if (k->type < MX_J_NONE || k->type > MX_J_FLOAT)
        return mx_jfail(r, "keys must be str, int, float, bool or None, not %s", mx_jtype_name(k));
    return mx_jput(r, o, "\"", 1) && json_value(r, o, k, st, 0) && mx_jput(r, o, "\"", 1);
}

/* Entry numbers in the order of their keys. */
static bool sorted_entries(struct mx_jrun *r, const struct mx_jdict *d, struct mx_jkeyed **out)
{
    struct mx_jkeyed *k = mx_jalloc(r, d->n, sizeof *k);
    if (!k)
        return false;
    for (size_t i = 0; i < d->n; i++)
        k[i] = (struct mx_jkeyed){.key = d->v[i].key, .v = mx_jint((int64_t)i)};
    *out = k;
    return mx_jsort(r, k, d->n, false);
}

static bool json_dict(struct mx_jrun *r, struct mx_jout *o, const struct mx_jdict *d,
                      const struct mx_jjson_style *st, int level)
{
    struct mx_jkeyed *sorted = NULL;
    if (d->n == 0)
        return mx_jputs(r, o, "{}");
    if ((st->sort && !sorted_entries(r, d, &sorted)) || !mx_jput(r, o, "{", 1))
        return false;
    for (size_t i = 0; i < d->n; i++) {
        const struct mx_jentry *e = &d->v[sorted ? (size_t)sorted[i].v.u.i : i];
        if (i && !mx_jput(r, o, st->item_sep->p, st->item_sep->len))
            return false;
        if (!json_newline(r, o, st, level + 1) || !json_key(r, o, &e->key, st) ||
            !mx_jput(r, o, st->key_sep->p, st->key_sep->len) ||
            !json_value(r, o, &e->value, st, level + 1))
            return false;
    }
    return json_newline(r, o, st, level) && mx_jput(r, o, "}", 1);
}

static bool json_value(struct mx_jrun *r, struct mx_jout *o, const struct mx_jval *v,
                       const struct mx_jjson_style *st, int level)
{
    switch (v->type) {
    case MX_J_NONE: return mx_jputs(r, o, "null");
    case MX_J_BOOL: return mx_jputs(r, o, v->u.b ? "true" : "false");
    case MX_J_INT: return put_int(r, o, v->u.i);
    case MX_J_FLOAT: return json_float(r, o, v->u.f);
    case MX_J_STR: return json_str(r, o, v->u.s, st->ascii);
    case MX_J_LIST:
    case MX_J_TUPLE:
    case MX_J_DICT: break;
    default: return mx_jfail(r, "Object of type %s is not JSON serializable", mx_jtype_name(v));
    }
    if (!mx_jstep(r, 1) || !mx_jenter(r))
        return false;
    bool ok = v->type == MX_J_DICT ? json_dict(r, o, v->u.d, st, level)
                                   : json_list(r, o, v->u.l, st, level);
    mx_jleave(r);
    return ok;
}

bool mx_jdumps(struct mx_jrun *r, struct mx_jout *o, const struct mx_jval *v,
               const struct mx_jjson_style *style)
{
    return json_value(r, o, v, style, 0);
}

/* ---- Percent formatting ------------------------------------------------------------------- */

struct spec {
    bool minus, plus, space, zero, alt;
    int64_t width, prec; /* prec -1: not given */
    char conv;
};

struct percent {
    struct mx_jrun *r;
    const struct mx_jstr *fmt;
    size_t at;
    const struct mx_jval *args; /* positional */
    size_t n, next;
    const struct mx_jdict *map; /* for %(name)s */
    struct mx_jout out;
};

static bool percent_next(struct percent *f, struct mx_jval *v)
{
    if (f->next >= f->n)
        return mx_jfail(f->r, "not enough arguments for format string");
    *v = f->args[f->next++];
    return true;
}

static bool percent_number(struct percent *f, int64_t *out)
{
    const struct mx_jstr *s = f->fmt;
    if (f->at < s->len && s->p[f->at] == '*') {
        struct mx_jval v;
        f->at++;
        if (!percent_next(f, &v))
            return false;
        return mx_jas_int(&v, out) || mx_jfail(f->r, "* wants int");
    }
    int64_t n = 0;
    for (; f->at < s->len && s->p[f->at] >= '0' && s->p[f->at] <= '9'; f->at++) {
        n = n * 10 + (s->p[f->at] - '0');
        if (n > 1 << 30)
            return mx_jfail_limit(f->r, "width or precision of a format is too big");
    }
    *out = n;
    return true;
}

static bool percent_spec(struct percent *f, struct spec *sp)
{
    const struct mx_jstr *s = f->fmt;
    for (; f->at < s->len; f->at++) {
        char c = s->p[f->at];
        bool *flag = c == '-'   ? &sp->minus
                     : c == '+' ? &sp->plus
                     : c == ' ' ? &sp->space
                     : c == '0' ? &sp->zero
                     : c == '#' ? &sp->alt
                                : NULL;
        if (!flag)
            break;
        *flag = true;
    }
    if (!percent_number(f, &sp->width))
        return false;
    if (sp->width < 0) {
        sp->minus = true;
        sp->width = -sp->width;
    }
    sp->prec = -1;
    if (f->at < s->len && s->p[f->at] == '.') {
        f->at++;
        if (!percent_number(f, &sp->prec))
            return false;
        sp->prec = sp->prec < 0 ? 0 : sp->prec;
    }
    while (f->at < s->len && strchr("hlL", s->p[f->at]))
        f->at++;
    if (f->at >= s->len)
        return mx_jfail(f->r, "incomplete format");
    sp->conv = s->p[f->at++];
    return true;
}

/* Writes sign, zero or space padding and the body. */
static bool percent_pad(struct percent *f, const struct spec *sp, const char *sign,
                        const char *body, size_t len, int64_t columns, bool numeric)
{
    int64_t fill = sp->width - columns - (int64_t)strlen(sign);
    bool zeros = numeric && sp->zero && !sp->minus;
    if (!sp->minus && !zeros && !mx_jfill(f->r, &f->out, ' ', fill))
        return false;
    if (!mx_jputs(f->r, &f->out, sign) || (zeros && !mx_jfill(f->r, &f->out, '0', fill)))
        return false;
    return mx_jput(f->r, &f->out, body, len) && (!sp->minus || mx_jfill(f->r, &f->out, ' ', fill));
}

static bool percent_text(struct percent *f, const struct spec *sp, const struct mx_jval *v)
{
    struct mx_jout o = {0};
    struct mx_jval s;
    bool ok = sp->conv == 's' ? mx_jto_str(f->r, v, &s)
                              : mx_jrepr(f->r, &o, v) && mx_jout_str(f->r, &o, &s);
    if (!ok)
        return false;
    size_t len = s.u.s->len;
    if (sp->prec >= 0)
        len = mx_jstr_offset(s.u.s, (size_t)sp->prec);
    struct mx_jstr cut = {.p = s.u.s->p, .len = len, .ascii = s.u.s->ascii};
    return percent_pad(f, sp, "", cut.p, cut.len, (int64_t)mx_jstr_count(&cut), false);
}

static const char *sign_of(const struct spec *sp, bool negative)
{
    return negative ? "-" : sp->plus ? "+" : sp->space ? " " : "";
}

static bool percent_int(struct percent *f, const struct spec *sp, const struct mx_jval *v)
{
    int64_t i;
    bool decimal = strchr("diu", sp->conv) != NULL;
    if (decimal && v->type == MX_J_FLOAT && v->u.f > -9.2e18 && v->u.f < 9.2e18)
        i = (int64_t)v->u.f;
    else if (!mx_jas_int(v, &i))
        return mx_jfail(f->r, "%%%c format: %s is required, not %s", sp->conv,
                        decimal ? "a real number" : "an integer", mx_jtype_name(v));
    char digits[32], body[64 + 400];
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    const char *fmt = decimal           ? "%" PRIu64
                      : sp->conv == 'o' ? "%" PRIo64
                      : sp->conv == 'x' ? "%" PRIx64
                                        : "%" PRIX64;
    int n = snprintf(digits, sizeof digits, fmt, u);
    if (sp->prec > 400)
        return mx_jfail_limit(f->r, "precision of a format is too big");
    int zeros = sp->prec > n ? (int)sp->prec - n : 0;
    memset(body, '0', (size_t)zeros);
    memcpy(body + zeros, digits, (size_t)n);
    char sign[8];
    const char *prefix = sp->alt && !decimal ? (sp->conv == 'o'   ? "0o"
                                                : sp->conv == 'x' ? "0x"
                                                                  : "0X")
                                             : "";
    snprintf(sign, sizeof sign, "%s%s", sign_of(sp, i < 0), prefix);
    n += zeros;
    return percent_pad(f, sp, sign, body, (size_t)n, n, true);
}

static bool percent_float(struct percent *f, const struct spec *sp, const struct mx_jval *v)
{
    double d;
    if (!mx_jas_float(v, &d))
        return mx_jfail(f->r, "must be real number, not %s", mx_jtype_name(v));
    char fmt[] = "%.*f", body[800];
    fmt[3] = sp->conv;
    if (sp->prec > 400)
        return mx_jfail_limit(f->r, "precision of a format is too big");
    int n = snprintf(body, sizeof body, fmt, sp->prec < 0 ? 6 : (int)sp->prec, fabs(d));
    for (int i = 0; i < n; i++) { /* the locale's decimal point */
        if (body[i] == ',')
            body[i] = '.';
    }
    bool numeric = !isnan(d) && !isinf(d);
    return percent_pad(f, sp, sign_of(sp, signbit(d) && !isnan(d)), body, (size_t)n, n, numeric);
}

static bool percent_char(struct percent *f, const struct spec *sp, const struct mx_jval *v)
{
    int64_t i;
    char buf[4];
    if (v->type == MX_J_STR && mx_jstr_count(v->u.s) == 1)
        return percent_pad(f, sp, "", v->u.s->p, v->u.s->len, 1, false);
    if (!mx_jas_int(v, &i) || i < 0 || i > 0x10ffff)
        return mx_jfail(f->r, "%%c requires int or char");
    return percent_pad(f, sp, "", buf, (size_t)mx_utf8_encode((uint32_t)i, buf), 1, false);
}

/* The value named by %(key); *named tells whether there was a name. */
static bool percent_key(struct percent *f, struct mx_jval *v, bool *named)
{
    const struct mx_jstr *s = f->fmt;
    *named = f->at < s->len && s->p[f->at] == '(';
    if (!*named)
        return true;
    const char *end = memchr(s->p + f->at, ')', s->len - f->at);
    if (!end)
        return mx_jfail(f->r, "incomplete format key");
    if (!f->map)
        return mx_jfail(f->r, "format requires a mapping");
    struct mx_jval key, *found;
    size_t to = (size_t)(end - s->p);
    if (!mx_jstr_sub(f->r, s, f->at + 1, to, &key) || !mx_jdict_get(f->r, f->map, &key, &found))
        return false;
    if (!found)
        return mx_jfail(f->r, "format key '%.*s' is missing",
                        (int)(to - f->at - 1 < 100 ? to - f->at - 1 : 100), s->p + f->at + 1);
    *v = *found;
    f->at = to + 1;
    return true;
}

static bool percent_one(struct percent *f)
{
    struct spec sp = {0};
    struct mx_jval v = {0};
    bool named;
    if (!percent_key(f, &v, &named) || !percent_spec(f, &sp))
        return false;
    if (sp.conv == '%')
        return mx_jput(f->r, &f->out, "%", 1);
    if (!named && !percent_next(f, &v))
        return false;
    switch (sp.conv) {
    case 's':
    case 'r':
    case 'a': return percent_text(f, &sp, &v);
    case 'd':
    case 'i':
    case 'u':
    case 'o':
    case 'x':
    case 'X': return percent_int(f, &sp, &v);
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G': return percent_float(f, &sp, &v);
    case 'c': return percent_char(f, &sp, &v);
    default: return mx_jfail(f->r, "unsupported format character 0x%x", (unsigned char)sp.conv);
    }
}

bool mx_jpercent(struct mx_jrun *r, const struct mx_jstr *fmt, const struct mx_jval *args,
                 struct mx_jval *out)
{
    struct percent f = {.r = r, .fmt = fmt, .args = args, .n = 1};
    if (args->type == MX_J_TUPLE) {
        f.args = args->u.l->v;
        f.n = args->u.l->n;
    } else if (args->type == MX_J_DICT) {
        f.map = args->u.d;
    }
    while (f.at < fmt->len) {
        const char *p = memchr(fmt->p + f.at, '%', fmt->len - f.at);
        size_t to = p ? (size_t)(p - fmt->p) : fmt->len;
        if (!mx_jput(r, &f.out, fmt->p + f.at, to - f.at))
            return false;
        f.at = to + 1;
        if (p && (!mx_jstep(r, 1) || !percent_one(&f)))
            return false;
    }
    /* Anything with subscripts could be a mapping, so it need not be used. */
    bool subscripted =
        f.map || args->type == MX_J_LIST || args->type == MX_J_RANGE || args->type == MX_J_UNDEF;
    if (f.next < f.n && !subscripted)
        return mx_jfail(r, "not all arguments converted during string formatting");
    return mx_jout_str(r, &f.out, out);
}

/* ---- HTML --------------------------------------------------------------------------------- */

bool mx_jescape(struct mx_jrun *r, const struct mx_jval *v, struct mx_jval *out)
{
    struct mx_jval s;
    struct mx_jout o = {0};
    if (!mx_jto_str(r, v, &s))
        return false;
    if (s.u.s->safe) {
        *out = s;
        return true;
    }
    for (size_t i = 0; i < s.u.s->len; i++) {
        char c = s.u.s->p[i];
        const char *e = c == '&'    ? "&amp;"
                        : c == '<'  ? "&lt;"
                        : c == '>'  ? "&gt;"
                        : c == '"'  ? "&#34;"
                        : c == '\'' ? "&#39;"
                                    : NULL;
        if (!(e ? mx_jputs(r, &o, e) : mx_jput(r, &o, &c, 1)))
            return false;
    }
    return mx_jstep(r, s.u.s->len / 16) && mx_jout_str(r, &o, out) && mx_jstr_mark_safe(r, out);
}
