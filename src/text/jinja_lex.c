/* Jinja lexer: template source to tokens, with jinja2's whitespace rules built in.
 *
 * The source alternates between text (root state) and tags. Rules, with trim_blocks and
 * lstrip_blocks on:
 *  1. `-` inside a tag's delimiter removes all whitespace on that side.
 *  2. A newline directly after `%}` or `#}` is dropped, unless the tag ends in `+%}` or `+#}`.
 *  3. Whitespace between the start of a line and `{%` or `{#` is dropped, unless the tag starts
 *     with `{%+`. A line also starts right after a tag whose own text ended in a newline (rules 1
 *     and 2). `{{` is never stripped this way.
 *  4. Inside brackets the closing delimiter of the tag is not recognised, so `{{ {"a": {}} }}`
 *     works.
 * The source is valid UTF-8 and its newlines are already "\n". */
#include "base/utf8.h"
#include "text/jinja_int.h"

#include <stdio.h>
#include <string.h>

#include <utf8proc.h>

bool mx_jsyntax(mtplx_error *err, const char *name, int line, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    mx_error(err, MTPLX_ERR_FORMAT, "%s line %d: %s", name, line, text);
    return false;
}

void mx_jlex_init(struct mx_jlexer *l, const struct mx_jinja *j, struct mx_arena *arena,
                  mtplx_error *err)
{
    *l = (struct mx_jlexer){
        .src = j->src,
        .name = j->name,
        .len = j->len,
        .line = 1,
        .state = MX_JL_ROOT,
        .line_starting = true,
        .arena = arena,
        .err = err,
    };
}

static const char *const tok_names[] = {
    [MX_JT_EOF] = "end of template",
    [MX_JT_ERROR] = "error",
    [MX_JT_DATA] = "text",
    [MX_JT_VAR_BEGIN] = "{{",
    [MX_JT_VAR_END] = "}}",
    [MX_JT_BLOCK_BEGIN] = "{%",
    [MX_JT_BLOCK_END] = "%}",
    [MX_JT_NAME] = "name",
    [MX_JT_STRING] = "string",
    [MX_JT_INT] = "integer",
    [MX_JT_FLOAT] = "float",
    [MX_JT_ADD] = "+",
    [MX_JT_SUB] = "-",
    [MX_JT_MUL] = "*",
    [MX_JT_DIV] = "/",
    [MX_JT_FLOORDIV] = "//",
    [MX_JT_MOD] = "%",
    [MX_JT_POW] = "**",
    [MX_JT_TILDE] = "~",
    [MX_JT_EQ] = "==",
    [MX_JT_NE] = "!=",
    [MX_JT_LT] = "<",
    [MX_JT_LE] = "<=",
    [MX_JT_GT] = ">",
    [MX_JT_GE] = ">=",
    [MX_JT_ASSIGN] = "=",
    [MX_JT_LPAREN] = "(",
    [MX_JT_RPAREN] = ")",
    [MX_JT_LBRACKET] = "[",
    [MX_JT_RBRACKET] = "]",
    [MX_JT_LBRACE] = "{",
    [MX_JT_RBRACE] = "}",
    [MX_JT_DOT] = ".",
    [MX_JT_COMMA] = ",",
    [MX_JT_COLON] = ":",
    [MX_JT_PIPE] = "|",
    [MX_JT_SEMICOLON] = ";",
};

const char *mx_jtok_name(enum mx_jtok t)
{
    return tok_names[t];
}

/* ---- Whitespace --------------------------------------------------------------------------- */

bool mx_jspace_cp(uint32_t cp)
{
    if (cp < 0x80)
        return cp == ' ' || (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x1f);
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

size_t mx_jspace_at(const char *p, size_t n)
{
    uint32_t cp;
    int used = mx_utf8_decode(p, n, &cp);
    return used > 0 && mx_jspace_cp(cp) ? (size_t)used : 0;
}

size_t mx_jspace_before(const char *p, size_t n)
{
    size_t k = n;
    while (k > 0 && n - k < 4) {
        k--;
        if (((unsigned char)p[k] & 0xc0) != 0x80)
            break;
    }
    return k < n && mx_jspace_at(p + k, n - k) == n - k ? n - k : 0;
}

static size_t rstrip(const char *p, size_t n)
{
    size_t k;
    while ((k = mx_jspace_before(p, n)) > 0)
        n -= k;
    return n;
}

/* ---- Moving through the source ------------------------------------------------------------ */

static int count_lines(const char *p, size_t n)
{
    int k = 0;
    for (const char *end = p + n; (p = memchr(p, '\n', (size_t)(end - p))) != NULL; p++)
        k++;
    return k;
}

static void advance(struct mx_jlexer *l, size_t to)
{
    l->line += count_lines(l->src + l->pos, to - l->pos);
    l->pos = to;
}

static void skip_space(struct mx_jlexer *l)
{
    size_t at = l->pos, k;
    while ((k = mx_jspace_at(l->src + at, l->len - at)) > 0)
        at += k;
    advance(l, at);
}

static bool looking_at(const struct mx_jlexer *l, size_t at, const char *s)
{
    size_t n = strlen(s);
    return l->len - at >= n && memcmp(l->src + at, s, n) == 0;
}

static void push(struct mx_jlexer *l, enum mx_jtok type, int line, const char *p, size_t len)
{
    l->queue[(l->q_head + l->q_len) % 3] =
        (struct mx_jtoken){.type = type, .line = line, .p = p, .len = len};
    l->q_len++;
}

static struct mx_jtoken failed(struct mx_jlexer *l)
{
    return (struct mx_jtoken){.type = MX_JT_ERROR, .line = l->line};
}

/* Leaves a tag whose closing delimiter begins at pos and is `n` bytes long: strips what `sign` and
 * trim_blocks say. */
static void leave_tag(struct mx_jlexer *l, size_t n, char sign, bool trims_newline)
{
    l->pos += n;
    if (sign == '-')
        skip_space(l);
    else if (sign != '+' && trims_newline && looking_at(l, l->pos, "\n"))
        advance(l, l->pos + 1);
    l->line_starting = l->pos > 0 && l->src[l->pos - 1] == '\n';
    l->state = MX_JL_ROOT;
}

/* End of the text src[from, to) before a tag that begins at `to` with this sign. */
static size_t trim_text(const struct mx_jlexer *l, size_t from, size_t to, char sign, bool lstrips)
{
    const char *p = l->src + from;
    size_t n = to - from;
    if (sign == '-')
        return from + rstrip(p, n);
    if (sign == '+' || !lstrips)
        return to;
    size_t start = n;
    while (start > 0 && p[start - 1] != '\n')
        start--;
    if (start == 0 && !l->line_starting)
        return to;
    for (size_t at = start; at < n;) {
        size_t k = mx_jspace_at(p + at, n - at);
        if (k == 0)
            return to;
        at += k;
    }
    return from + start;
}

/* Queues the text up to `to` (untrimmed end `at`) and moves to `at`. */
static void push_text(struct mx_jlexer *l, size_t to, size_t at)
{
    if (to > l->pos)
        push(l, MX_JT_DATA, l->line, l->src + l->pos, to - l->pos);
    advance(l, at);
}

/* ---- Root state --------------------------------------------------------------------------- */

/* Position of the next "{{", "{%" or "{#", or len. */
static size_t find_tag(const struct mx_jlexer *l)
{
    size_t at = l->pos;
    while (at + 1 < l->len) {
        const char *p = memchr(l->src + at, '{', l->len - at - 1);
        if (!p)
            break;
        at = (size_t)(p - l->src);
        if (p[1] == '{' || p[1] == '%' || p[1] == '#')
            return at;
        at++;
    }
    return l->len;
}

static char sign_at(const struct mx_jlexer *l, size_t at)
{
    return at < l->len && (l->src[at] == '-' || l->src[at] == '+') ? l->src[at] : 0;
}

static size_t after_space(const struct mx_jlexer *l, size_t at)
{
    size_t k;
    while ((k = mx_jspace_at(l->src + at, l->len - at)) > 0)
        at += k;
    return at;
}

static bool skip_comment(struct mx_jlexer *l)
{
    int line = l->line;
    size_t body = l->pos;
    const char *end = memmem(l->src + body, l->len - body, "#}", 2);
    if (!end)
        return mx_jsyntax(l->err, l->name, line, "comment is never closed with '#}'");
    size_t at = (size_t)(end - l->src);
    char sign = at > body ? sign_at(l, at - 1) : 0;
    advance(l, at);
    leave_tag(l, 2, sign, true);
    return true;
}

/* After "{%" and its sign: is this `raw %}`? Then *end is where the raw text begins. */
static bool is_raw(const struct mx_jlexer *l, size_t at, size_t *end)
{
    at = after_space(l, at);
    if (!looking_at(l, at, "raw"))
        return false;
    at = after_space(l, at + 3);
    if (looking_at(l, at, "-%}"))
        *end = after_space(l, at + 3);
    else if (looking_at(l, at, "%}"))
        *end = at + 2;
    else
        return false;
    return true;
}

/* Is there `{% endraw %}` at `at`? Stores its signs and where its closing delimiter begins. */
static bool is_endraw(const struct mx_jlexer *l, size_t at, char *open, char *close, size_t *end)
{
    if (!looking_at(l, at, "{%"))
        return false;
    *open = sign_at(l, at + 2);
    at = after_space(l, at + 2 + (*open != 0));
    if (!looking_at(l, at, "endraw"))
        return false;
    at = after_space(l, at + 6);
    *close = sign_at(l, at);
    *end = at + (*close != 0);
    return looking_at(l, *end, "%}");
}

static bool lex_raw(struct mx_jlexer *l, size_t begin)
{
    int line = l->line;
    advance(l, begin);
    l->line_starting = l->src[begin - 1] == '\n';
    for (size_t at = begin; at < l->len; at++) {
        const char *p = memchr(l->src + at, '{', l->len - at);
        if (!p)
            break;
        at = (size_t)(p - l->src);
        char open, close;
        size_t end;
        if (!is_endraw(l, at, &open, &close, &end))
            continue;
        push_text(l, trim_text(l, l->pos, at, open, true), at);
        advance(l, end);
        leave_tag(l, 2, close, true);
        return true;
    }
    return mx_jsyntax(l->err, l->name, line, "raw block is never closed with '{%% endraw %%}'");
}

/* Consumes text and one opening delimiter; may queue nothing (a comment without text). */
static bool lex_root(struct mx_jlexer *l)
{
    size_t at = find_tag(l);
    if (at == l->len) {
        push_text(l, at, at);
        push(l, MX_JT_EOF, l->line, "", 0);
        return true;
    }
    char kind = l->src[at + 1], sign = sign_at(l, at + 2);
    push_text(l, trim_text(l, l->pos, at, sign, kind != '{'), at);
    size_t body = at + 2 + (sign != 0);
    l->line_starting = false;
    size_t raw;
    if (kind == '%' && is_raw(l, body, &raw))
        return lex_raw(l, raw);
    l->pos = body;
    if (kind == '#')
        return skip_comment(l);
    l->state = kind == '{' ? MX_JL_VAR : MX_JL_BLOCK;
    l->n_open = 0;
    push(l, kind == '{' ? MX_JT_VAR_BEGIN : MX_JT_BLOCK_BEGIN, l->line, l->src + at, 2);
    return true;
}

/* ---- Literals ----------------------------------------------------------------------------- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* End of `digits(_digits)*` from `at`; `at` itself when there is no digit. */
static size_t digits_end(const struct mx_jlexer *l, size_t at)
{
    size_t end = at;
    while (at < l->len && is_digit(l->src[at])) {
        while (at < l->len && is_digit(l->src[at]))
            at++;
        end = at;
        if (at < l->len && l->src[at] == '_')
            at++;
    }
    return end;
}

/* End of a float that starts at pos, or 0 when the number there is not a float. */
static size_t float_end(const struct mx_jlexer *l, size_t whole)
{
    size_t at = whole;
    if (l->pos > 0 && l->src[l->pos - 1] == '.')
        return 0;
    if (looking_at(l, at, ".")) {
        size_t end = digits_end(l, at + 1);
        if (end > at + 1)
            at = end;
    }
    size_t mantissa = at;
    if (at < l->len && (l->src[at] == 'e' || l->src[at] == 'E')) {
        size_t from = at + 1 + (sign_at(l, at + 1) != 0);
        size_t end = digits_end(l, from);
        if (end > from)
            at = end;
    }
    return at > whole ? at : mantissa > whole ? mantissa : 0;
}

static int digit_value(char c)
{
    if (is_digit(c))
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
}

static bool int_value(struct mx_jlexer *l, size_t from, size_t to, int base, int64_t *out)
{
    int64_t v = 0;
    for (size_t i = from; i < to; i++) {
        if (l->src[i] == '_')
            continue;
        if (__builtin_mul_overflow(v, base, &v) ||
            __builtin_add_overflow(v, digit_value(l->src[i]), &v))
            return mx_jsyntax(l->err, l->name, l->line,
                              "integer literal does not fit into 64 bits");
    }
    *out = v;
    return true;
}

/* End of `(_?digit)+` in this base from `at`. */
static size_t based_end(const struct mx_jlexer *l, size_t at, int base)
{
    for (;;) {
        size_t d = at + (at < l->len && l->src[at] == '_');
        if (d >= l->len || digit_value(l->src[d]) >= base)
            return at;
        at = d + 1;
    }
}

static struct mx_jtoken lex_number(struct mx_jlexer *l)
{
    struct mx_jtoken t = {.type = MX_JT_INT, .line = l->line, .p = l->src + l->pos};
    size_t whole = digits_end(l, l->pos), end = float_end(l, whole);
    if (end) {
        t.type = MX_JT_FLOAT;
        if (!mx_jparse_float(t.p, end - l->pos, &t.f))
            return failed(l);
    } else {
        char x = l->pos + 1 < l->len ? (char)(l->src[l->pos + 1] | 0x20) : 0;
        int base = l->src[l->pos] != '0' ? 10 : x == 'x' ? 16 : x == 'o' ? 8 : x == 'b' ? 2 : 10;
        size_t from = l->pos;
        end = based_end(l, from, base);
        if (base != 10) {
            end = based_end(l, from + 2, base);
            from = end > from + 2 ? from + 2 : from;
            end = end > l->pos + 2 ? end : l->pos + 1;
        } else if (l->src[from] == '0') {
            end = based_end(l, from, 1); /* zeros only: 01 is two tokens */
        }
        if (!int_value(l, from, end, base, &t.i))
            return failed(l);
    }
    t.len = end - l->pos;
    l->pos = end;
    return t;
}

/* Reads `n` hex digits at p; -1 when there are not that many. */
static int64_t hex_value(const char *p, size_t left, int n)
{
    int64_t v = 0;
    for (int i = 0; i < n; i++) {
        if ((size_t)i >= left || digit_value(p[i]) >= 16)
            return -1;
        v = v * 16 + digit_value(p[i]);
    }
    return v;
}

/* One escape: p points after the backslash. Appends to *out, returns bytes read or -1. */
static int unescape(const char *p, size_t left, char **out)
{
    static const char simple[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    for (const char *s = simple; *s; s += 2) {
        if (s[0] == p[0]) {
            *(*out)++ = s[1];
            return 1;
        }
    }
    if (p[0] == '\n')
        return 1;
    if (p[0] >= '0' && p[0] <= '7') {
        int n = 0;
        uint32_t v = 0;
        while (n < 3 && (size_t)n < left && p[n] >= '0' && p[n] <= '7')
            v = v * 8 + (uint32_t)(p[n++] - '0');
        *out += mx_utf8_encode(v, *out);
        return n;
    }
    int n = p[0] == 'x' ? 2 : p[0] == 'u' ? 4 : p[0] == 'U' ? 8 : 0;
    if (n == 0) {
        if (p[0] == 'N')
            return -1; /* named characters are not supported */
        *(*out)++ = '\\';
        return 0;
    }
    int64_t v = hex_value(p + 1, left - 1, n);
    if (v < 0 || v > 0x10ffff || (v >= 0xd800 && v < 0xe000))
        return -1;
    *out += mx_utf8_encode((uint32_t)v, *out);
    return n + 1;
}

static struct mx_jtoken lex_string(struct mx_jlexer *l)
{
    char quote = l->src[l->pos];
    size_t at = l->pos + 1;
    bool escapes = false;
    while (at < l->len && l->src[at] != quote) {
        bool esc = l->src[at] == '\\';
        escapes |= esc;
        at += 1 + esc;
    }
    if (at >= l->len) {
        mx_jsyntax(l->err, l->name, l->line, "string is never closed with %c", quote);
        return failed(l);
    }
    struct mx_jtoken t = {
        .type = MX_JT_STRING, .line = l->line, .p = l->src + l->pos + 1, .len = at - l->pos - 1};
    if (escapes) {
        char *buf = mx_arena_alloc(l->arena, t.len + 4), *w = buf;
        if (!buf) {
            mx_error_nomem(l->err, "a template string", t.len);
            return failed(l);
        }
        for (size_t i = 0; i < t.len;) {
            if (t.p[i] != '\\') {
                *w++ = t.p[i++];
                continue;
            }
            int n = unescape(t.p + i + 1, t.len - i - 1, &w);
            if (n < 0) {
                mx_jsyntax(l->err, l->name, l->line, "invalid escape sequence in a string");
                return failed(l);
            }
            i += 1 + (size_t)n;
        }
        t.p = buf;
        t.len = (size_t)(w - buf);
    }
    advance(l, at + 1);
    return t;
}

/* Bytes of the identifier character at `at` (0: none). */
static size_t word_at(const struct mx_jlexer *l, size_t at)
{
    if (at >= l->len)
        return 0;
    char c = l->src[at];
    if (is_digit(c) || c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return 1;
    uint32_t cp;
    int used = (unsigned char)c < 0x80 ? 0 : mx_utf8_decode(l->src + at, l->len - at, &cp);
    if (used <= 0)
        return 0;
    utf8proc_category_t cat = utf8proc_category((utf8proc_int32_t)cp);
    return cat >= UTF8PROC_CATEGORY_LU && cat <= UTF8PROC_CATEGORY_NL ? (size_t)used : 0;
}

static struct mx_jtoken lex_name(struct mx_jlexer *l)
{
    struct mx_jtoken t = {.type = MX_JT_NAME, .line = l->line, .p = l->src + l->pos};
    size_t at = l->pos, k;
    while ((k = word_at(l, at)) > 0)
        at += k;
    t.len = at - l->pos;
    l->pos = at;
    return t;
}

/* ---- Operators and the inside of tags ----------------------------------------------------- */

static const struct {
    char text[3];
    enum mx_jtok type;
} operators[] = {
    /* two characters before one */
    {"//", MX_JT_FLOORDIV}, {"**", MX_JT_POW},      {"==", MX_JT_EQ},      {"!=", MX_JT_NE},
    {"<=", MX_JT_LE},       {">=", MX_JT_GE},       {"+", MX_JT_ADD},      {"-", MX_JT_SUB},
    {"*", MX_JT_MUL},       {"/", MX_JT_DIV},       {"%", MX_JT_MOD},      {"~", MX_JT_TILDE},
    {"<", MX_JT_LT},        {">", MX_JT_GT},        {"=", MX_JT_ASSIGN},   {"(", MX_JT_LPAREN},
    {")", MX_JT_RPAREN},    {"[", MX_JT_LBRACKET},  {"]", MX_JT_RBRACKET}, {"{", MX_JT_LBRACE},
    {"}", MX_JT_RBRACE},    {".", MX_JT_DOT},       {",", MX_JT_COMMA},    {":", MX_JT_COLON},
    {"|", MX_JT_PIPE},      {";", MX_JT_SEMICOLON},
};

static bool track_brackets(struct mx_jlexer *l, char c)
{
    char close = c == '(' ? ')' : c == '[' ? ']' : c == '{' ? '}' : 0;
    if (close) {
        if (l->n_open == MX_J_MAX_NESTING)
            return mx_jsyntax(l->err, l->name, l->line, "brackets are nested deeper than %d",
                              MX_J_MAX_NESTING);
        l->open[l->n_open++] = close;
    } else if (c == ')' || c == ']' || c == '}') {
        if (l->n_open == 0)
            return mx_jsyntax(l->err, l->name, l->line, "unexpected '%c'", c);
        if (l->open[--l->n_open] != c)
            return mx_jsyntax(l->err, l->name, l->line, "unexpected '%c', expected '%c'", c,
                              l->open[l->n_open]);
    }
    return true;
}

static struct mx_jtoken lex_operator(struct mx_jlexer *l)
{
    struct mx_jtoken t = {.line = l->line, .p = l->src + l->pos};
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        if (!looking_at(l, l->pos, operators[i].text))
            continue;
        if (!track_brackets(l, operators[i].text[0]))
            return failed(l);
        t.type = operators[i].type;
        t.len = strlen(operators[i].text);
        l->pos += t.len;
        return t;
    }
    mx_jsyntax(l->err, l->name, l->line, "unexpected character '%.*s'",
               (int)(l->len - l->pos < 4 ? l->len - l->pos : 4), t.p);
    return failed(l);
}

/* Consumes the tag's closing delimiter if it is next. */
static bool lex_end(struct mx_jlexer *l, struct mx_jtoken *t)
{
    bool var = l->state == MX_JL_VAR;
    const char *close = var ? "}}" : "%}";
    char sign = sign_at(l, l->pos);
    if (var && sign == '+')
        sign = 0;
    size_t n = sign ? 1 : 0;
    if (l->n_open > 0 || !looking_at(l, l->pos + n, close))
        return false;
    *t = (struct mx_jtoken){.type = var ? MX_JT_VAR_END : MX_JT_BLOCK_END, .line = l->line};
    leave_tag(l, n + 2, sign, !var);
    return true;
}

static struct mx_jtoken lex_tag(struct mx_jlexer *l)
{
    skip_space(l);
    struct mx_jtoken t;
    if (l->pos >= l->len) {
        mx_jsyntax(l->err, l->name, l->line, "tag is never closed with '%s'",
                   l->state == MX_JL_VAR ? "}}" : "%}");
        return failed(l);
    }
    if (lex_end(l, &t))
        return t;
    char c = l->src[l->pos];
    if (is_digit(c))
        return lex_number(l);
    if (c == '"' || c == '\'')
        return lex_string(l);
    return word_at(l, l->pos) ? lex_name(l) : lex_operator(l);
}

struct mx_jtoken mx_jlex_next(struct mx_jlexer *l)
{
    while (l->q_len == 0) {
        if (l->state != MX_JL_ROOT)
            return lex_tag(l);
        if (!lex_root(l))
            return failed(l);
    }
    struct mx_jtoken t = l->queue[l->q_head];
    l->q_head = (l->q_head + 1) % 3;
    l->q_len--;
    return t;
}
