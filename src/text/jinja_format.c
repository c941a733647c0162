/* Jinja str.format(): replacement fields {}, {0}, {name}, {a.b[c]!r:spec} with Python's format
 * specification for strings, integers and floats. Nested fields inside a specification are not
 * supported. */
#include "base/utf8.h"
#include "text/jinja_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct format {
    struct mx_jrun *r;
    const struct mx_jargs *a;
    size_t next; /* automatic numbering */
    bool manual, automatic;
    struct mx_jout out;
};

/* [[fill]align][sign][#][0][width][,][.precision][type] */
struct spec {
    const char *fill;
    size_t fill_len;
    char align, sign, type, group;
    bool zero, alt;
    int64_t width, prec; /* prec -1: not given */
};

/* ---- Specification ------------------------------------------------------------------------ */

static bool is_align(char c)
{
    return c == '<' || c == '>' || c == '^' || c == '=';
}

static bool number(struct format *f, const char *s, size_t n, size_t *at, int64_t *out)
{
    int64_t v = 0;
    for (; *at < n && s[*at] >= '0' && s[*at] <= '9'; (*at)++) {
        v = v * 10 + (s[*at] - '0');
        if (v > 1 << 30)
            return mx_jfail_limit(f->r, "width or precision of a format is too big");
    }
    *out = v;
    return true;
}

static bool parse_spec(struct format *f, const char *s, size_t n, struct spec *sp)
{
    size_t at = 0;
    uint32_t cp;
    int first = mx_utf8_decode(s, n, &cp);
    *sp = (struct spec){.fill = " ", .fill_len = 1, .prec = -1};
    if (first > 0 && (size_t)first < n && is_align(s[first])) {
        sp->fill = s;
        sp->fill_len = (size_t)first;
        sp->align = s[first];
        at = (size_t)first + 1;
    } else if (n && is_align(s[0])) {
        sp->align = s[at++];
    }
    if (at < n && (s[at] == '+' || s[at] == '-' || s[at] == ' '))
        sp->sign = s[at++];
    if (at < n && s[at] == '#') {
        sp->alt = true;
        at++;
    }
    if (at < n && s[at] == '0') {
        sp->zero = true;
        at++;
    }
    if (!number(f, s, n, &at, &sp->width))
        return false;
    if (at < n && (s[at] == ',' || s[at] == '_'))
        sp->group = s[at++];
    if (at < n && s[at] == '.') {
        at++;
        if (!number(f, s, n, &at, &sp->prec))
            return false;
    }
    if (at < n)
        sp->type = s[at++];
    return at == n || mx_jfail(f->r, "invalid format specifier");
}

/* ---- Writing ------------------------------------------------------------------------------ */

static bool put_fill(struct format *f, const struct spec *sp, int64_t n)
{
    if (sp->fill_len == 1)
        return mx_jfill(f->r, &f->out, sp->fill[0], n);
    for (; n > 0; n--) {
        if (!mx_jstep(f->r, 1) || !mx_jput(f->r, &f->out, sp->fill, sp->fill_len))
            return false;
    }
    return true;
}

/* Sign and body of `columns` code points, padded to the width. */
static bool put_padded(struct format *f, const struct spec *given, const char *sign,
                       const char *body, size_t len, int64_t columns, char default_align)
{
    struct spec sp = *given;
    if (sp.zero && !sp.align) {
        sp.align = default_align == '>' ? '=' : '<';
        sp.fill = "0";
        sp.fill_len = 1;
    }
    char align = sp.align ? sp.align : default_align;
    int64_t pad = sp.width - columns - (int64_t)strlen(sign);
    pad = pad < 0 ? 0 : pad;
    int64_t left = align == '>' ? pad : align == '^' ? pad / 2 : 0;
    int64_t middle = align == '=' ? pad : 0;
    return put_fill(f, &sp, left) && mx_jputs(f->r, &f->out, sign) && put_fill(f, &sp, middle) &&
           mx_jput(f->r, &f->out, body, len) && put_fill(f, &sp, pad - left - middle);
}

static const char *sign_of(const struct spec *sp, bool negative)
{
    return negative ? "-" : sp->sign == '+' ? "+" : sp->sign == ' ' ? " " : "";
}

/* Inserts the thousands separator into the leading digits of `body`; returns the new length. */
static size_t group_digits(const char *body, size_t n, char sep, char *out)
{
    size_t digits = 0, w = 0;
    while (digits < n && body[digits] >= '0' && body[digits] <= '9')
        digits++;
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && i < digits && (digits - i) % 3 == 0)
            out[w++] = sep;
        out[w++] = body[i];
    }
    return w;
}

static bool put_number(struct format *f, const struct spec *sp, bool negative, const char *prefix,
                       const char *body, size_t n)
{
    char grouped[1200], sign[8];
    if (sp->group) {
        n = group_digits(body, n, sp->group, grouped);
        body = grouped;
    }
    snprintf(sign, sizeof sign, "%s%s", sign_of(sp, negative), prefix);
    return put_padded(f, sp, sign, body, n, (int64_t)n, '>');
}

static bool format_int(struct format *f, const struct spec *sp, int64_t i)
{
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    char body[72];
    size_t n = 0;
    if (sp->prec >= 0)
        return mx_jfail(f->r, "precision not allowed in an integer format");
    switch (sp->type) {
    case 'x':
    case 'X':
    case 'o': {
        const char *fmt = sp->type == 'x' ? "%" PRIx64 : sp->type == 'X' ? "%" PRIX64 : "%" PRIo64;
        const char *prefix = sp->type == 'x' ? "0x" : sp->type == 'X' ? "0X" : "0o";
        n = (size_t)snprintf(body, sizeof body, fmt, u);
        return put_number(f, sp, i < 0, sp->alt ? prefix : "", body, n);
    }
    case 'b': {
        int bits = 1;
        while (bits < 64 && u >> bits)
            bits++;
        while (bits-- > 0)
            body[n++] = (char)('0' + (u >> bits & 1));
        return put_number(f, sp, i < 0, sp->alt ? "0b" : "", body, n);
    }
    case 'c':
        n = (size_t)mx_utf8_encode((uint32_t)i, body);
        return put_padded(f, sp, "", body, n, 1, '<');
    default:
        n = (size_t)snprintf(body, sizeof body, "%" PRIu64, u);
        return put_number(f, sp, i < 0, "", body, n);
    }
}

static bool format_float(struct format *f, const struct spec *sp, double d)
{
    char fmt[] = "%.*g", body[800];
    size_t n;
    double v = fabs(d);
    if (sp->prec > 400)
        return mx_jfail_limit(f->r, "precision of a format is too big");
    if (sp->type == 0 && sp->prec < 0) {
        n = mx_jfloat_repr(v, body);
    } else {
        bool percent = sp->type == '%';
        fmt[3] = percent ? 'f' : sp->type == 0 || sp->type == 'n' ? 'g' : sp->type;
        n = (size_t)snprintf(body, sizeof body - 1, fmt, sp->prec < 0 ? 6 : (int)sp->prec,
                             percent ? v * 100 : v);
        if (percent)
            body[n++] = '%';
    }
    for (size_t i = 0; i < n; i++) { /* the locale's decimal point */
        if (body[i] == ',')
            body[i] = '.';
    }
    return put_number(f, sp, signbit(d) && !isnan(d), "", body, n);
}

static bool format_text(struct format *f, const struct spec *sp, const struct mx_jval *v)
{
    struct mx_jval s;
    if (!mx_jto_str(f->r, v, &s))
        return false;
    size_t len = sp->prec >= 0 ? mx_jstr_offset(s.u.s, (size_t)sp->prec) : s.u.s->len;
    const struct mx_jstr cut = {.p = s.u.s->p, .len = len, .ascii = s.u.s->ascii};
    return put_padded(f, sp, "", cut.p, cut.len, (int64_t)mx_jstr_count(&cut), '<');
}

static bool format_value(struct format *f, const struct mx_jval *v, const char *s, size_t n)
{
    struct spec sp;
    int64_t i;
    double d;
    if (n == 0)
        return mx_jprint(f->r, &f->out, v);
    if (!parse_spec(f, s, n, &sp))
        return false;
    bool real = sp.type && strchr("eEfFgGn%", sp.type) && mx_jas_float(v, &d);
    if (v->type == MX_J_STR && (sp.type == 0 || sp.type == 's'))
        return format_text(f, &sp, v);
    if (v->type == MX_J_FLOAT && (real || sp.type == 0))
        return format_float(f, &sp, v->u.f);
    if (real)
        return format_float(f, &sp, d);
    if (mx_jas_int(v, &i) && (sp.type == 0 || strchr("bcdoxX", sp.type)))
        return format_int(f, &sp, i);
    if (!sp.type)
        return mx_jfail(f->r, "unsupported format string passed to %s.__format__",
                        mx_jtype_name(v));
    return mx_jfail(f->r, "unknown format code '%c' for object of type '%s'", sp.type,
                    mx_jtype_name(v));
}

/* ---- Fields ------------------------------------------------------------------------------- */

static bool positional(struct format *f, size_t i, struct mx_jval *out)
{
    if (i >= f->a->npos)
        return mx_jfail(f->r, "replacement index %zu out of range for positional args", i);
    *out = f->a->pos[i];
    return true;
}

/* The first part of a field name: nothing, a number or a keyword. */
static bool field_root(struct format *f, const char *s, size_t n, struct mx_jval *out)
{
    size_t digits = 0, i = 0;
    while (digits < n && digits < 8 && s[digits] >= '0' && s[digits] <= '9')
        i = i * 10 + (size_t)(s[digits++] - '0');
    f->automatic |= n == 0;
    f->manual |= n > 0 && digits == n;
    if (f->automatic && f->manual)
        return mx_jfail(f->r, "cannot mix automatic and manual field numbering");
    if (n == 0)
        return positional(f, f->next++, out);
    if (digits == n)
        return positional(f, i, out);
    for (size_t k = 0; k < f->a->nkw; k++) {
        if (f->a->kw[k].name->len == n && memcmp(f->a->kw[k].name->p, s, n) == 0) {
            *out = f->a->kw[k].v;
            return true;
        }
    }
    return mx_jfail(f->r, "format field '%.*s' has no argument", (int)(n > 60 ? 60 : n), s);
}

/* Integer keys index sequences, others are looked up as written. */
static bool field_key(struct format *f, const char *s, size_t n, bool attr, struct mx_jval *v)
{
    struct mx_jval key, obj = *v;
    int64_t i;
    bool is_int = false;
    if (!mx_jstr_copy(f->r, s, n, &key))
        return false;
    if (attr)
        return mx_jgetattr(f->r, &obj, key.u.s, v);
    if (!mx_jparse_int(f->r, key.u.s, 10, &i, &is_int))
        return false;
    if (is_int)
        key = mx_jint(i);
    return mx_jgetitem(f->r, &obj, &key, v);
}

static bool field_value(struct format *f, const char *s, size_t n, struct mx_jval *out)
{
    size_t at = 0;
    while (at < n && s[at] != '.' && s[at] != '[')
        at++;
    if (!field_root(f, s, at, out))
        return false;
    while (at < n) {
        bool attr = s[at] == '.';
        size_t from = ++at;
        while (at < n && (attr ? s[at] != '.' && s[at] != '[' : s[at] != ']'))
            at++;
        if (at == from || (!attr && at == n))
            return mx_jfail(f->r, "malformed format field");
        if (!field_key(f, s + from, at - from, attr, out))
            return false;
        at += !attr;
        if (at < n && s[at] != '.' && s[at] != '[')
            return mx_jfail(f->r, "malformed format field");
    }
    return true;
}

/* The text between braces: name, !conversion, :spec. */
static bool field(struct format *f, const char *s, size_t n)
{
    const char *colon = n ? memchr(s, ':', n) : NULL;
    size_t name = colon ? (size_t)(colon - s) : n, spec = colon ? name + 1 : n;
    char conv = 0;
    if (name >= 2 && s[name - 2] == '!') {
        conv = s[name - 1];
        name -= 2;
        if (conv != 's' && conv != 'r')
            return mx_jfail(f->r, "unknown conversion specifier '%c'", conv);
    }
    struct mx_jval v, converted;
    struct mx_jout o = {0};
    if (!field_value(f, s, name, &v))
        return false;
    if (conv) {
        if (!(conv == 'r' ? mx_jrepr(f->r, &o, &v) : mx_jprint(f->r, &o, &v)) ||
            !mx_jout_str(f->r, &o, &converted))
            return false;
        v = converted;
    }
    return format_value(f, &v, s + spec, n - spec);
}

bool mx_jformat(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                struct mx_jval *out)
{
    const struct mx_jstr *s = self->u.s;
    struct format f = {.r = r, .a = a};
    for (size_t at = 0; at < s->len;) {
        size_t from = at;
        while (at < s->len && s->p[at] != '{' && s->p[at] != '}')
            at++;
        if (!mx_jput(r, &f.out, s->p + from, at - from) || !mx_jstep(r, 1))
            return false;
        if (at == s->len)
            break;
        char c = s->p[at++];
        if (at < s->len && s->p[at] == c) {
            if (!mx_jput(r, &f.out, &c, 1))
                return false;
            at++;
            continue;
        }
        const char *end = c == '{' && at < s->len ? memchr(s->p + at, '}', s->len - at) : NULL;
        if (!end)
            return mx_jfail(r, "single '%c' encountered in format string", c);
        size_t n = (size_t)(end - s->p) - at;
        if (n && memchr(s->p + at, '{', n))
            return mx_jfail(r, "nested fields in a format string are not supported");
        if (!field(&f, s->p + at, n))
            return false;
        at += n + 1;
    }
    return mx_jout_str(r, &f.out, out);
}
