/* Jinja text operations: Python's string methods by code point, shared by filters and methods.
 *
 * Case mapping is by code point (simple mapping, plus the sharp s); Python's context-dependent
 * final sigma is not. */
#include "base/utf8.h"
#include "text/jinja_int.h"

#include <string.h>

#include <utf8proc.h>

/* Decodes the code point at s->p[at]; *next is the offset behind it. */
static uint32_t cp_at(const struct mx_jstr *s, size_t at, size_t *next)
{
    uint32_t cp = 0xfffd;
    int n = mx_utf8_decode(s->p + at, s->len - at, &cp);
    *next = at + (n > 0 ? (size_t)n : 1);
    return cp;
}

static size_t cp_start_before(const struct mx_jstr *s, size_t at)
{
    do
        at--;
    while (at > 0 && ((unsigned char)s->p[at] & 0xc0) == 0x80);
    return at;
}

/* ---- Strip -------------------------------------------------------------------------------- */

/* Is the code point in bytes [from, to) of s one to strip? */
static bool strips(const struct mx_jstr *s, size_t from, size_t to, const struct mx_jstr *chars)
{
    if (!chars)
        return mx_jspace_at(s->p + from, to - from) == to - from;
    return chars->len && memmem(chars->p, chars->len, s->p + from, to - from) != NULL;
}

bool mx_jstrip(struct mx_jrun *r, const struct mx_jstr *s, const struct mx_jval *chars, bool left,
               bool right, struct mx_jval *out)
{
    const struct mx_jstr *set = NULL;
    if (chars && !mx_jarg_str(r, "strip", chars, &set))
        return false;
    size_t from = 0, to = s->len, next, cost = 1 + (set ? set->len / 64 : 0);
    while (left && from < to) {
        cp_at(s, from, &next);
        if (!strips(s, from, next, set))
            break;
        if (!mx_jstep(r, cost))
            return false;
        from = next;
    }
    while (right && to > from) {
        size_t start = cp_start_before(s, to);
        if (!strips(s, start, to, set))
            break;
        if (!mx_jstep(r, cost))
            return false;
        to = start;
    }
    return mx_jstr_sub(r, s, from, to, out);
}

/* ---- Case --------------------------------------------------------------------------------- */

static bool put_upper(struct mx_jrun *r, struct mx_jout *o, uint32_t cp)
{
    if (cp == 0xdf)
        return mx_jput(r, o, "SS", 2);
    return mx_jput_cp(r, o, (uint32_t)utf8proc_toupper((utf8proc_int32_t)cp));
}

static bool put_title(struct mx_jrun *r, struct mx_jout *o, uint32_t cp)
{
    if (cp == 0xdf)
        return mx_jput(r, o, "Ss", 2);
    return mx_jput_cp(r, o, (uint32_t)utf8proc_totitle((utf8proc_int32_t)cp));
}

static bool put_lower(struct mx_jrun *r, struct mx_jout *o, uint32_t cp)
{
    return mx_jput_cp(r, o, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp));
}

static utf8proc_category_t category(uint32_t cp)
{
    return utf8proc_category((utf8proc_int32_t)cp);
}

static bool is_upper(uint32_t cp)
{
    utf8proc_category_t c = category(cp);
    return c == UTF8PROC_CATEGORY_LU || (cp >= 0x2160 && cp < 0x2170) ||
           (cp >= 0x24b6 && cp < 0x24d0);
}

static bool is_lower(uint32_t cp)
{
    return category(cp) == UTF8PROC_CATEGORY_LL || cp == 0xaa || cp == 0xba;
}

static bool is_cased(uint32_t cp)
{
    return is_upper(cp) || is_lower(cp) || category(cp) == UTF8PROC_CATEGORY_LT;
}

static bool recase_cp(struct mx_jrun *r, struct mx_jout *o, uint32_t cp, enum mx_jcase how,
                      bool first)
{
    switch (how) {
    case MX_JC_UPPER: return put_upper(r, o, cp);
    case MX_JC_LOWER: return put_lower(r, o, cp);
    case MX_JC_SWAP: return is_upper(cp) ? put_lower(r, o, cp) : put_upper(r, o, cp);
    default: return first ? put_title(r, o, cp) : put_lower(r, o, cp);
    }
}

/* `first` tells whether the next code point begins the string (capitalize) or a word (title). */
bool mx_jrecase(struct mx_jrun *r, const struct mx_jstr *s, enum mx_jcase how, struct mx_jval *out)
{
    struct mx_jout o = {0};
    bool first = true;
    if (!mx_jstep(r, s->len / 8))
        return false;
    for (size_t at = 0; at < s->len;) {
        uint32_t cp = cp_at(s, at, &at);
        if (!recase_cp(r, &o, cp, how, first))
            return false;
        first = how == MX_JC_TITLE && !is_cased(cp);
    }
    return mx_jout_str(r, &o, out);
}

/* ---- Classes ------------------------------------------------------------------------------ */

static bool is_letter(uint32_t cp)
{
    utf8proc_category_t c = category(cp);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

/* Decimal digits and the superscripts, subscripts and circled digits Python counts as digits. */
static bool is_digit(uint32_t cp)
{
    return category(cp) == UTF8PROC_CATEGORY_ND || cp == 0xb2 || cp == 0xb3 || cp == 0xb9 ||
           cp == 0x2070 || (cp >= 0x2074 && cp <= 0x2079) || (cp >= 0x2080 && cp <= 0x2089) ||
           (cp >= 0x2460 && cp <= 0x2468);
}

static bool is_alnum(uint32_t cp)
{
    utf8proc_category_t c = category(cp);
    return is_letter(cp) || (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO);
}

bool mx_jword_cp(uint32_t cp)
{
    return cp == '_' || is_alnum(cp);
}

static bool in_class(uint32_t cp, enum mx_jclass c)
{
    switch (c) {
    case MX_JCL_ALPHA: return is_letter(cp);
    case MX_JCL_DIGIT: return is_digit(cp);
    case MX_JCL_ALNUM: return is_alnum(cp);
    case MX_JCL_SPACE: return mx_jspace_cp(cp);
    case MX_JCL_UPPER: return is_upper(cp);
    case MX_JCL_LOWER: return is_lower(cp);
    default: return cp < 0x80;
    }
}

bool mx_jis_class(const struct mx_jstr *s, enum mx_jclass c)
{
    bool case_test = c == MX_JCL_UPPER || c == MX_JCL_LOWER, any = false;
    for (size_t at = 0; at < s->len;) {
        uint32_t cp = cp_at(s, at, &at);
        bool member = in_class(cp, c);
        if (!member && (!case_test || is_cased(cp)))
            return false;
        any |= member;
    }
    return any || c == MX_JCL_ASCII;
}

/* ---- Search and replace ------------------------------------------------------------------- */

static bool find_last(struct mx_jrun *r, const struct mx_jstr *s, const struct mx_jstr *sub,
                      size_t from, size_t to, int64_t *out)
{
    for (size_t at = to - sub->len + 1; at-- > from;) {
        if (s->p[at] != sub->p[0])
            continue;
        if (!mx_jstep(r, 1 + sub->len / 64))
            return false;
        if (memcmp(s->p + at, sub->p, sub->len) == 0) {
            *out = (int64_t)at;
            return true;
        }
    }
    return mx_jstep(r, (to - from) / 64);
}

bool mx_jfind(struct mx_jrun *r, const struct mx_jstr *s, const struct mx_jstr *sub, size_t from,
              size_t to, bool last, int64_t *out)
{
    *out = -1;
    if (from > to || to - from < sub->len)
        return true;
    if (sub->len == 0) {
        *out = (int64_t)(last ? to : from);
        return true;
    }
    if (last)
        return find_last(r, s, sub, from, to, out);
    const char *p = sub->len == 1 ? memchr(s->p + from, sub->p[0], to - from)
                                  : memmem(s->p + from, to - from, sub->p, sub->len);
    if (p)
        *out = p - s->p;
    return mx_jstep(r, 1 + ((p ? (size_t)(p - s->p) : to) - from) / 64);
}

/* An empty `from` matches before every code point and at the end. */
static bool replace_empty(struct mx_jrun *r, const struct mx_jstr *s, const struct mx_jstr *to,
                          int64_t count, struct mx_jval *out)
{
    struct mx_jout o = {0};
    size_t at = 0;
    for (; at <= s->len && count != 0; count--) {
        if (!mx_jstep(r, 1) || !mx_jput(r, &o, to->p, to->len))
            return false;
        if (at == s->len)
            return mx_jout_str(r, &o, out);
        size_t next;
        cp_at(s, at, &next);
        if (!mx_jput(r, &o, s->p + at, next - at))
            return false;
        at = next;
    }
    return mx_jput(r, &o, s->p + at, s->len - at) && mx_jout_str(r, &o, out);
}

bool mx_jreplace(struct mx_jrun *r, const struct mx_jstr *s, const struct mx_jstr *from,
                 const struct mx_jstr *to, int64_t count, struct mx_jval *out)
{
    struct mx_jout o = {0};
    size_t at = 0;
    if (from->len == 0)
        return replace_empty(r, s, to, count, out);
    for (; count != 0; count--) {
        int64_t hit;
        if (!mx_jfind(r, s, from, at, s->len, false, &hit))
            return false;
        if (hit < 0)
            break;
        if (!mx_jput(r, &o, s->p + at, (size_t)hit - at) || !mx_jput(r, &o, to->p, to->len))
            return false;
        at = (size_t)hit + from->len;
    }
    if (at == 0)
        return mx_jstr_sub(r, s, 0, s->len, out);
    return mx_jput(r, &o, s->p + at, s->len - at) && mx_jout_str(r, &o, out);
}

/* ---- Padding ------------------------------------------------------------------------------ */

static bool put_fill(struct mx_jrun *r, struct mx_jout *o, const struct mx_jstr *fill, int64_t n)
{
    if (fill->len == 1)
        return mx_jfill(r, o, fill->p[0], n);
    for (; n > 0; n--) {
        if (!mx_jstep(r, 1) || !mx_jput(r, o, fill->p, fill->len))
            return false;
    }
    return true;
}

bool mx_jpad(struct mx_jrun *r, const struct mx_jstr *s, int64_t width, enum mx_jalign align,
             const struct mx_jstr *fill, struct mx_jval *out)
{
    static const struct mx_jstr space = {.p = " ", .len = 1, .ascii = true};
    const struct mx_jstr *f = fill ? fill : &space;
    struct mx_jout o = {0};
    int64_t have = (int64_t)mx_jstr_count(s);
    if (mx_jstr_count(f) != 1)
        return mx_jfail(r, "the fill character must be exactly one character long");
    if (width <= have)
        return mx_jstr_sub(r, s, 0, s->len, out);
    int64_t pad = width - have, left = 0;
    if (align == MX_JALIGN_RIGHT)
        left = pad;
    else if (align == MX_JALIGN_CENTER) /* Python puts the odd space left of odd widths */
        left = pad / 2 + (pad & width & 1);
    return put_fill(r, &o, f, left) && mx_jput(r, &o, s->p, s->len) &&
           put_fill(r, &o, f, pad - left) && mx_jout_str(r, &o, out);
}

/* ---- Splitting and joining ---------------------------------------------------------------- */

static bool push_sub(struct mx_jrun *r, struct mx_jlist *out, const struct mx_jstr *s, size_t from,
                     size_t to)
{
    struct mx_jval v;
    return mx_jstep(r, 1) && mx_jstr_sub(r, s, from, to, &v) && mx_jlist_push(r, out, &v);
}

static void reverse(struct mx_jlist *l)
{
    for (size_t i = 0, j = l->n; i + 1 < j; i++) {
        struct mx_jval t = l->v[--j];
        l->v[j] = l->v[i];
        l->v[i] = t;
    }
}

static bool split_words(struct mx_jrun *r, const struct mx_jstr *s, int64_t max,
                        struct mx_jlist *out)
{
    size_t at = 0, k;
    for (;;) {
        while ((k = mx_jspace_at(s->p + at, s->len - at)) > 0)
            at += k;
        if (at == s->len)
            return mx_jstep(r, s->len / 32);
        if (max == 0) { /* the rest, without the whitespace at its end */
            size_t end = s->len;
            while ((k = mx_jspace_before(s->p, end)) > 0)
                end -= k;
            return push_sub(r, out, s, at, end);
        }
        size_t from = at;
        while (at < s->len && mx_jspace_at(s->p + at, s->len - at) == 0)
            cp_at(s, at, &at);
        if (!push_sub(r, out, s, from, at))
            return false;
        max--;
    }
}

static bool rsplit_words(struct mx_jrun *r, const struct mx_jstr *s, int64_t max,
                         struct mx_jlist *out)
{
    size_t end = s->len, k;
    for (;; max--) {
        while ((k = mx_jspace_before(s->p, end)) > 0)
            end -= k;
        if (end == 0)
            break;
        if (max == 0) {
            size_t from = 0;
            while ((k = mx_jspace_at(s->p + from, end - from)) > 0)
                from += k;
            if (!push_sub(r, out, s, from, end))
                return false;
            break;
        }
        size_t to = end;
        while (end > 0 && mx_jspace_before(s->p, end) == 0)
            end = cp_start_before(s, end);
        if (!push_sub(r, out, s, end, to))
            return false;
    }
    reverse(out);
    return mx_jstep(r, s->len / 32);
}

bool mx_jsplit(struct mx_jrun *r, const struct mx_jstr *s, const struct mx_jstr *sep, int64_t max,
               bool from_right, struct mx_jlist *out)
{
    if (!sep)
        return from_right ? rsplit_words(r, s, max, out) : split_words(r, s, max, out);
    if (sep->len == 0)
        return mx_jfail(r, "empty separator");
    size_t from = 0, to = s->len;
    for (; max != 0; max--) {
        int64_t hit;
        if (!mx_jfind(r, s, sep, from, to, from_right, &hit))
            return false;
        if (hit < 0)
            break;
        size_t behind = (size_t)hit + sep->len;
        if (!(from_right ? push_sub(r, out, s, behind, to)
                         : push_sub(r, out, s, from, (size_t)hit)))
            return false;
        if (from_right)
            to = (size_t)hit;
        else
            from = behind;
    }
    if (!push_sub(r, out, s, from, to))
        return false;
    if (from_right)
        reverse(out);
    return true;
}

static bool is_line_end(uint32_t cp)
{
    return (cp >= 0x0a && cp <= 0x0d) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

bool mx_jsplitlines(struct mx_jrun *r, const struct mx_jstr *s, bool keep, struct mx_jlist *out)
{
    size_t from = 0;
    for (size_t at = 0; at < s->len;) {
        size_t next;
        uint32_t cp = cp_at(s, at, &next);
        if (!is_line_end(cp)) {
            at = next;
            continue;
        }
        if (cp == '\r' && next < s->len && s->p[next] == '\n')
            next++;
        if (!push_sub(r, out, s, from, keep ? next : at))
            return false;
        from = at = next;
    }
    return mx_jstep(r, s->len / 32) && (from == s->len || push_sub(r, out, s, from, s->len));
}

bool mx_jjoin(struct mx_jrun *r, const struct mx_jstr *sep, const struct mx_jval *items, size_t n,
              bool strings_only, struct mx_jval *out)
{
    struct mx_jout o = {0};
    for (size_t i = 0; i < n; i++) {
        if (strings_only && items[i].type != MX_J_STR)
            return mx_jfail(r, "sequence item %zu: expected str instance, %s found", i,
                            mx_jtype_name(&items[i]));
        if (!mx_jstep(r, 1) || (i && !mx_jput(r, &o, sep->p, sep->len)) ||
            !mx_jprint(r, &o, &items[i]))
            return false;
    }
    return mx_jout_str(r, &o, out);
}

/* ---- Numbers ------------------------------------------------------------------------------ */

static int digit_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
}

/* Skips 0x, 0o or 0b where the base allows it; base 0 takes the base from it. */
static size_t base_prefix(const struct mx_jstr *s, size_t at, int *base)
{
    char c = at + 1 < s->len && s->p[at] == '0' ? (char)(s->p[at + 1] | 0x20) : 0;
    int named = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
    if (named && (*base == 0 || *base == named)) {
        *base = named;
        return at + 2;
    }
    if (*base == 0)
        *base = 10;
    return at;
}

bool mx_jparse_int(struct mx_jrun *r, const struct mx_jstr *s, int base, int64_t *out, bool *ok)
{
    struct mx_jval trimmed;
    *ok = false;
    if (!mx_jstrip(r, s, NULL, true, true, &trimmed))
        return false;
    const struct mx_jstr *t = trimmed.u.s;
    size_t at = 0;
    bool minus = t->len && t->p[0] == '-', digit = false;
    at += t->len && (t->p[0] == '-' || t->p[0] == '+');
    at = base_prefix(t, at, &base);
    int64_t v = 0;
    bool over = false;
    for (; at < t->len; at++) {
        if (t->p[at] == '_' && digit && at + 1 < t->len && t->p[at + 1] != '_')
            continue;
        int d = digit_value(t->p[at]);
        if (d >= base)
            return true;
        digit = true;
        over = over || __builtin_mul_overflow(v, base, &v) ||
               __builtin_sub_overflow(v, d, &v); /* negative: INT64_MIN fits */
    }
    if (!digit)
        return true;
    if (over || (!minus && v == INT64_MIN))
        return mx_jfail(r, "integer does not fit into 64 bits");
    *out = minus ? v : -v;
    *ok = true;
    return true;
}
