/* Regular expressions -> expressions.
 *
 * Syntax: literals, . [..] [^..] \d \w \s and their complements, \t \n \r \f \v \0 \xHH \uHHHH
 * \u{H..} \cX, escaped punctuation, groups ( ) (?: ) (?<name> ), |, the quantifiers * + ? {m} {m,}
 * {m,n} (lazy and greedy ones match the same texts), and the anchors ^ and $ at the ends of a
 * top-level alternative. Look-around, back references, \b and \p are refused.
 *
 * Inside of a JSON string or of markup an expression may match anywhere unless it is anchored, as
 * JSON Schema's pattern does; a string spells characters with the escapes they need. */
#include "base/utf8.h"
#include "text/grammar_int.h"

#include <string.h>

enum { NESTING = 60 };

struct regex {
    struct mx_gbuild *b;
    const char *s;
    size_t at, len;
    enum mx_gregex_mode mode;
    const char *where;
    int depth;
};

static void *refuse(struct regex *r, mtplx_status status, const char *what)
{
    return mx_gfail(r->b, status, "%s: %s at character %zu of the regular expression", r->where,
                    what, mx_utf8_count(r->s, r->at < r->len ? r->at : r->len) + 1);
}

static void *bad(struct regex *r, const char *what)
{
    return refuse(r, MTPLX_ERR_ARGUMENT, what);
}

static bool more(const struct regex *r)
{
    return r->at < r->len;
}

static bool next_is(const struct regex *r, char c)
{
    return more(r) && r->s[r->at] == c;
}

static uint32_t take(struct regex *r)
{
    uint32_t cp = 0;
    int used = mx_utf8_decode(r->s + r->at, r->len - r->at, &cp);
    r->at += used > 0 ? (size_t)used : 1;
    return cp;
}

static void add(struct regex *r, struct mx_cpset *s, uint32_t lo, uint32_t hi)
{
    if (!mx_cpset_add(s, lo, hi))
        mx_gfail(r->b, MTPLX_ERR_LIMIT, "%s: the regular expression is too large", r->where);
}

static void negate(struct regex *r, struct mx_cpset *s)
{
    if (!mx_cpset_negate(s))
        mx_gfail(r->b, MTPLX_ERR_LIMIT, "%s: the regular expression is too large", r->where);
}

static struct mx_gexpr *chars(struct regex *r, struct mx_cpset *s)
{
    mx_cpset_normalise(s);
    if (r->mode == MX_RE_MARKUP) {
        negate(r, s);
        add(r, s, '<', '<');
        negate(r, s);
    }
    return r->mode == MX_RE_JSON ? mx_gjson_chars(r->b, s) : mx_gx_chars(r->b, s);
}

/* ---- Escapes ---- */

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* `n` hex digits, or any number up to a closing brace when n is 0. */
static bool hex(struct regex *r, int n, uint32_t *cp)
{
    int used = 0;
    *cp = 0;
    while (more(r) && (n == 0 ? r->s[r->at] != '}' : used < n)) {
        int v = hex_value(r->s[r->at]);
        if (v < 0 || used == 6)
            return false;
        *cp = *cp * 16 + (uint32_t)v;
        r->at++;
        used++;
    }
    if (n == 0 && more(r))
        r->at++;
    return n == 0 ? used > 0 : used == n;
}

static bool unicode(struct regex *r, uint32_t *cp)
{
    if (next_is(r, '{')) {
        r->at++;
        return hex(r, 0, cp) && *cp <= MX_CP_MAX;
    }
    if (!hex(r, 4, cp))
        return false;
    uint32_t low;
    if (*cp >= 0xd800 && *cp < 0xdc00 && r->len - r->at >= 6 && r->s[r->at] == '\\' &&
        r->s[r->at + 1] == 'u') {
        r->at += 2;
        if (!hex(r, 4, &low) || low < 0xdc00 || low > 0xdfff)
            return false;
        *cp = 0x10000 + ((*cp - 0xd800) << 10) + (low - 0xdc00);
    }
    return *cp < 0xd800 || *cp > 0xdfff;
}

static void add_space(struct regex *r, struct mx_cpset *s)
{
    static const struct mx_cprange v[] = {
        {9, 13},          {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
        {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
    for (size_t i = 0; i < sizeof v / sizeof *v; i++)
        add(r, s, v[i].lo, v[i].hi);
}

static void add_word(struct regex *r, struct mx_cpset *s)
{
    add(r, s, '0', '9');
    add(r, s, 'A', 'Z');
    add(r, s, '_', '_');
    add(r, s, 'a', 'z');
}

/* A class escape: \d \D \w \W \s \S. */
static bool class_escape(struct regex *r, char c, struct mx_cpset *s)
{
    struct mx_cpset t = {.arena = &r->b->arena};
    if (c == 'd' || c == 'D')
        add(r, &t, '0', '9');
    else if (c == 'w' || c == 'W')
        add_word(r, &t);
    else if (c == 's' || c == 'S')
        add_space(r, &t);
    else
        return false;
    if (c < 'a')
        negate(r, &t);
    for (int i = 0; i < t.n; i++)
        add(r, s, t.v[i].lo, t.v[i].hi);
    return true;
}

/* The code point of an escape behind its backslash. */
static bool char_escape(struct regex *r, bool in_class, uint32_t *cp)
{
    static const char names[] = "t\tn\nr\rf\fv\v";
    *cp = take(r);
    for (size_t i = 0; i + 1 < sizeof names; i += 2)
        if (*cp == (uint8_t)names[i]) {
            *cp = (uint8_t)names[i + 1];
            return true;
        }
    if (*cp == '0' && !(more(r) && r->s[r->at] >= '0' && r->s[r->at] <= '9')) {
        *cp = 0;
        return true;
    }
    if (*cp == 'b' && in_class) {
        *cp = 8;
        return true;
    }
    if (*cp == 'x')
        return hex(r, 2, cp);
    if (*cp == 'u')
        return unicode(r, cp);
    if (*cp == 'c' && more(r)) {
        *cp = (uint8_t)r->s[r->at++] & 31u;
        return true;
    }
    bool letter = (*cp >= 'a' && *cp <= 'z') || (*cp >= 'A' && *cp <= 'Z');
    return !letter && !(*cp >= '0' && *cp <= '9');
}

/* ---- Classes ---- */

/* One member of a class; false: it was a class escape, already added to s, or an error. */
static bool class_member(struct regex *r, struct mx_cpset *s, uint32_t *cp)
{
    if (!next_is(r, '\\')) {
        *cp = take(r);
        return true;
    }
    r->at++;
    if (more(r) && class_escape(r, r->s[r->at], s)) {
        r->at++;
        return false;
    }
    if (!more(r) || !char_escape(r, true, cp)) {
        refuse(r, MTPLX_ERR_UNSUPPORTED, "an escape that is not supported in a class");
        return false;
    }
    return true;
}

static struct mx_gexpr *parse_class(struct regex *r)
{
    struct mx_cpset s = {.arena = &r->b->arena};
    bool complement = next_is(r, '^');
    r->at += complement;
    while (more(r) && r->s[r->at] != ']' && !r->b->failed) {
        uint32_t lo, hi;
        if (!class_member(r, &s, &lo))
            continue;
        hi = lo;
        if (next_is(r, '-') && r->at + 1 < r->len && r->s[r->at + 1] != ']') {
            size_t dash = r->at++;
            if (next_is(r, '\\') && r->at + 1 < r->len && strchr("dDwWsS", r->s[r->at + 1])) {
                r->at = dash; /* the dash is a member */
            } else if (!class_member(r, &s, &hi)) {
                break;
            }
        }
        if (hi < lo)
            return bad(r, "a range that runs backwards");
        add(r, &s, lo, hi);
        if (next_is(r, '-') && hi == lo && r->at + 1 < r->len && r->s[r->at + 1] == '\\') {
            add(r, &s, '-', '-');
            r->at++;
        }
    }
    if (!next_is(r, ']'))
        return bad(r, "a class that does not end");
    r->at++;
    if (complement)
        negate(r, &s);
    else /* cuts surrogates out */ {
        negate(r, &s);
        negate(r, &s);
    }
    return r->b->failed ? NULL : chars(r, &s);
}

/* ---- Terms ---- */

static struct mx_gexpr *parse_alternatives(struct regex *r, bool top);

static struct mx_gexpr *parse_group(struct regex *r)
{
    if (next_is(r, '?')) {
        r->at++;
        bool named = next_is(r, '<') && r->at + 1 < r->len && r->s[r->at + 1] != '=' &&
                     r->s[r->at + 1] != '!';
        if (named) {
            while (more(r) && r->s[r->at] != '>')
                r->at++;
        } else if (!next_is(r, ':')) {
            return refuse(r, MTPLX_ERR_UNSUPPORTED, "look-around or a flag, not supported,");
        }
        r->at++;
    }
    if (++r->depth > NESTING)
        return refuse(r, MTPLX_ERR_LIMIT, "groups nested too deep");
    struct mx_gexpr *x = parse_alternatives(r, false);
    r->depth--;
    if (!x)
        return NULL;
    if (!next_is(r, ')'))
        return bad(r, "a group that does not end");
    r->at++;
    return x;
}

static struct mx_gexpr *one_char(struct regex *r, uint32_t cp)
{
    struct mx_cpset s = {.arena = &r->b->arena};
    add(r, &s, cp, cp);
    return r->b->failed ? NULL : chars(r, &s);
}

static struct mx_gexpr *parse_escape(struct regex *r)
{
    struct mx_cpset s = {.arena = &r->b->arena};
    uint32_t cp;
    if (!more(r))
        return bad(r, "a backslash with nothing behind it");
    if (class_escape(r, r->s[r->at], &s)) {
        r->at++;
        return r->b->failed ? NULL : chars(r, &s);
    }
    if (!char_escape(r, false, &cp))
        return refuse(r, MTPLX_ERR_UNSUPPORTED, "an escape that is not supported");
    return one_char(r, cp);
}

static struct mx_gexpr *parse_atom(struct regex *r)
{
    struct mx_cpset s = {.arena = &r->b->arena};
    char c = r->s[r->at];
    if (strchr("*+?", c))
        return bad(r, "a quantifier with nothing before it");
    if (c == '^' || c == '$')
        return refuse(r, MTPLX_ERR_UNSUPPORTED, "an anchor that is not at an end");
    if (!strchr("([.\\", c))
        return one_char(r, take(r));
    r->at++;
    if (c == '(')
        return parse_group(r);
    if (c == '[')
        return parse_class(r);
    if (c == '\\')
        return parse_escape(r);
    add(r, &s, '\n', '\n');
    add(r, &s, '\r', '\r');
    add(r, &s, 0x2028, 0x2029);
    negate(r, &s);
    return r->b->failed ? NULL : chars(r, &s);
}

/* {m}, {m,}, {m,n}; false and nothing read when the brace is a literal. */
static bool parse_bounds(struct regex *r, int *min, int *max)
{
    size_t at = r->at + 1;
    int64_t v[2] = {-1, -1};
    int n = 0;
    for (; at < r->len && r->s[at] != '}'; at++) {
        char c = r->s[at];
        if (c == ',' && n == 0)
            n = 1;
        else if (c >= '0' && c <= '9')
            v[n] = v[n] > MX_GX_REPEAT ? v[n] : (v[n] < 0 ? 0 : v[n] * 10) + (c - '0');
        else
            return false;
    }
    if (at >= r->len || v[0] < 0)
        return false;
    if (n == 0)
        v[1] = v[0];
    r->at = at + 1;
    if (v[0] > MX_GX_REPEAT || v[1] > MX_GX_REPEAT)
        refuse(r, MTPLX_ERR_LIMIT, "a quantifier that is too large");
    else if (v[1] >= 0 && v[1] < v[0])
        bad(r, "a quantifier whose bounds are out of order");
    *min = (int)v[0];
    *max = (int)v[1];
    return true;
}

static struct mx_gexpr *parse_term(struct regex *r)
{
    struct mx_gexpr *x = parse_atom(r);
    while (x && more(r)) {
        int min = 0, max = -1;
        char c = r->s[r->at];
        if (c == '*' || c == '+' || c == '?') {
            min = c == '+';
            max = c == '?' ? 1 : -1;
            r->at++;
        } else if (c != '{' || !parse_bounds(r, &min, &max)) {
            break;
        }
        if (r->b->failed)
            return NULL;
        if (next_is(r, '?')) /* lazy: the same texts */
            r->at++;
        else if (next_is(r, '+'))
            return refuse(r, MTPLX_ERR_UNSUPPORTED, "a possessive quantifier, not supported,");
        x = mx_gx_rep(r->b, x, min, max);
        if (more(r) && strchr("*+?", r->s[r->at]))
            return bad(r, "a quantifier behind a quantifier");
    }
    return x;
}

/* Any text, in front of or behind what is not anchored. */
static struct mx_gexpr *anything(struct regex *r)
{
    struct mx_cpset s = {.arena = &r->b->arena};
    negate(r, &s);
    return r->b->failed ? NULL : mx_gx_rep(r->b, chars(r, &s), 0, -1);
}

static struct mx_gexpr *parse_sequence(struct regex *r, bool top)
{
    struct mx_gxlist kids = {0};
    bool from_start = top && next_is(r, '^'), to_end = false;
    r->at += from_start;
    if (top && r->mode != MX_RE_WHOLE && !from_start)
        mx_gxlist_put(r->b, &kids, anything(r));
    while (more(r) && r->s[r->at] != '|' && !r->b->failed) {
        if (r->s[r->at] == ')') {
            if (!top)
                break;
            return bad(r, "a closing parenthesis without its opening one");
        }
        if (top && r->s[r->at] == '$' && (r->at + 1 == r->len || r->s[r->at + 1] == '|')) {
            to_end = true;
            r->at++;
            break;
        }
        mx_gxlist_put(r->b, &kids, parse_term(r));
    }
    if (top && r->mode != MX_RE_WHOLE && !to_end)
        mx_gxlist_put(r->b, &kids, anything(r));
    return r->b->failed ? NULL : mx_gx_seq(r->b, kids.n, kids.v);
}

static struct mx_gexpr *parse_alternatives(struct regex *r, bool top)
{
    struct mx_gxlist alts = {0};
    mx_gxlist_put(r->b, &alts, parse_sequence(r, top));
    while (next_is(r, '|') && !r->b->failed) {
        r->at++;
        mx_gxlist_put(r->b, &alts, parse_sequence(r, top));
    }
    return r->b->failed ? NULL : mx_gx_alt(r->b, alts.n, alts.v);
}

struct mx_gexpr *mx_gregex(struct mx_gbuild *b, const char *re, size_t len,
                           enum mx_gregex_mode mode, const char *where)
{
    struct regex r = {.b = b, .s = re, .len = len, .mode = mode, .where = where};
    if (!mx_utf8_valid(re, len) || memchr(re, 0, len))
        return mx_gfail(b, MTPLX_ERR_ARGUMENT, "%s: not valid UTF-8, or a NUL in it", where);
    return parse_alternatives(&r, true);
}

/* ---- Lengths ---- */

static int64_t times(int64_t n, int64_t k)
{
    return n > 0 && k > INT32_MAX / n ? INT32_MAX : n * k;
}

void mx_gregex_length(const struct mx_gexpr *x, bool json, int64_t *min, int64_t *max)
{
    int64_t lo, hi;
    switch (x->kind) {
    case MX_GX_SEQ:
        *min = *max = 0;
        for (int i = 0; i < x->n; i++) {
            mx_gregex_length(x->u.kids[i], json, &lo, &hi);
            *min += lo;
            *max = *max < 0 || hi < 0 ? -1 : *max + hi;
        }
        break;
    case MX_GX_ALT:
        *min = INT32_MAX;
        *max = 0;
        for (int i = 0; i < x->n; i++) {
            mx_gregex_length(x->u.kids[i], json, &lo, &hi);
            *min = lo < *min ? lo : *min;
            *max = *max < 0 || hi < 0 ? -1 : hi > *max ? hi : *max;
        }
        break;
    case MX_GX_REP:
        mx_gregex_length(x->u.kids[0], json, &lo, &hi);
        *min = times(lo, x->min);
        *max = hi == 0 ? 0 : hi < 0 || x->max < 0 ? -1 : times(hi, x->max);
        break;
    case MX_GX_LIT: /* in a JSON string: the escape of one character */
        *min = *max = json ? 1 : x->n;
        break;
    case MX_GX_CHARS: *min = *max = 1; break;
    default: *min = *max = 0; break;
    }
}
