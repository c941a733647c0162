/* Checks one JSON value byte by byte: a stack of containers as bits, and a state. */
#include "text/json_stream.h"

#include <string.h>

enum state {
    VALUE = 0, /* a value must follow */
    FIRST_KEY, /* a key or } */
    FIRST_ITEM,
    KEY,
    COLON,
    AFTER, /* , or the end of the container */
    STRING,
    ESCAPE,
    HEX,
    LITERAL,
    MINUS,
    ZERO,
    DIGITS,
    POINT,
    FRACTION,
    E,
    E_SIGN,
    EXPONENT,
    OVER,
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* ---- Containers ---- */

static bool in_object(const struct mx_json_stream *j)
{
    int top = j->depth - 1;
    return (j->objects[top / 64] >> (top % 64) & 1) != 0;
}

static enum mx_json_step open_container(struct mx_json_stream *j, bool object)
{
    if (j->depth == MX_JSON_STREAM_DEPTH)
        return MX_JSON_BAD;
    uint64_t bit = UINT64_C(1) << (j->depth % 64), *word = &j->objects[j->depth / 64];
    *word = object ? *word | bit : *word & ~bit;
    j->depth++;
    j->state = object ? FIRST_KEY : FIRST_ITEM;
    return MX_JSON_MORE;
}

static enum mx_json_step end_value(struct mx_json_stream *j)
{
    j->state = j->depth > 0 ? AFTER : OVER;
    return j->depth > 0 ? MX_JSON_MORE : MX_JSON_DONE;
}

static enum mx_json_step close_container(struct mx_json_stream *j)
{
    j->depth--;
    return end_value(j);
}

/* ---- Values ---- */

static enum mx_json_step begin_literal(struct mx_json_stream *j, const char *rest)
{
    j->literal = rest;
    j->state = LITERAL;
    return MX_JSON_MORE;
}

static enum mx_json_step begin_string(struct mx_json_stream *j, bool key)
{
    j->key = key;
    j->high = false;
    j->state = STRING;
    return MX_JSON_MORE;
}

static enum mx_json_kind kind_of(char c)
{
    switch (c) {
    case '{': return MX_JSON_OBJECT;
    case '[': return MX_JSON_ARRAY;
    case '"': return MX_JSON_STRING;
    case 't':
    case 'f': return MX_JSON_BOOLEAN;
    case 'n': return MX_JSON_NULL;
    default: return c == '-' || is_digit(c) ? MX_JSON_NUMBER : MX_JSON_NONE;
    }
}

static enum mx_json_step begin_value(struct mx_json_stream *j, char c)
{
    enum mx_json_kind kind = kind_of(c);
    if (j->depth == 0)
        j->kind = kind;
    switch (kind) {
    case MX_JSON_OBJECT: return open_container(j, true);
    case MX_JSON_ARRAY: return open_container(j, false);
    case MX_JSON_STRING: return begin_string(j, false);
    case MX_JSON_BOOLEAN: return begin_literal(j, c == 't' ? "rue" : "alse");
    case MX_JSON_NULL: return begin_literal(j, "ull");
    case MX_JSON_NUMBER:
        j->state = c == '-' ? MINUS : c == '0' ? ZERO : DIGITS;
        return MX_JSON_MORE;
    case MX_JSON_NONE: break;
    }
    return MX_JSON_BAD;
}

/* Between tokens. */
static enum mx_json_step step_structure(struct mx_json_stream *j, char c)
{
    if (is_blank(c))
        return MX_JSON_MORE;
    switch (j->state) {
    case FIRST_ITEM: return c == ']' ? close_container(j) : begin_value(j, c);
    case VALUE: return begin_value(j, c);
    case FIRST_KEY:
        if (c == '}')
            return close_container(j);
        return c == '"' ? begin_string(j, true) : MX_JSON_BAD;
    case KEY: return c == '"' ? begin_string(j, true) : MX_JSON_BAD;
    case COLON: j->state = VALUE; return c == ':' ? MX_JSON_MORE : MX_JSON_BAD;
    case AFTER:
        if (c == (in_object(j) ? '}' : ']'))
            return close_container(j);
        j->state = in_object(j) ? KEY : VALUE;
        return c == ',' ? MX_JSON_MORE : MX_JSON_BAD;
    default: return MX_JSON_BAD;
    }
}

static enum mx_json_step step_string(struct mx_json_stream *j, char c)
{
    if (j->high && c != '\\')
        return MX_JSON_BAD;
    if (c == '\\') {
        j->state = ESCAPE;
    } else if (c == '"') {
        if (!j->key)
            return end_value(j);
        j->state = COLON;
    }
    return MX_JSON_MORE;
}

static enum mx_json_step step_escape(struct mx_json_stream *j, char c)
{
    if (c == 'u') {
        j->hex = 0;
        j->digits = 0;
        j->state = HEX;
        return MX_JSON_MORE;
    }
    j->state = STRING;
    return c && strchr("\"\\/bfnrt", c) && !j->high ? MX_JSON_MORE : MX_JSON_BAD;
}

static enum mx_json_step step_hex(struct mx_json_stream *j, char c)
{
    char lower = (char)(c | 0x20);
    if (is_digit(c))
        j->hex = j->hex * 16 + (unsigned)(c - '0');
    else if (lower >= 'a' && lower <= 'f')
        j->hex = j->hex * 16 + (unsigned)(lower - 'a' + 10);
    else
        return MX_JSON_BAD;
    if (++j->digits < 4)
        return MX_JSON_MORE;
    bool low = j->hex >= 0xdc00 && j->hex <= 0xdfff;
    if (low != j->high)
        return MX_JSON_BAD;
    j->high = j->hex >= 0xd800 && j->hex <= 0xdbff;
    j->state = STRING;
    return MX_JSON_MORE;
}

static enum mx_json_step step_literal(struct mx_json_stream *j, char c)
{
    if (c != *j->literal)
        return MX_JSON_BAD;
    return *++j->literal ? MX_JSON_MORE : end_value(j);
}

/* The state behind byte c of a number, or -1 when it cannot go on with c. */
static int next_in_number(int state, char c)
{
    bool e = c == 'e' || c == 'E', digit = is_digit(c);
    switch (state) {
    case MINUS: return c == '0' ? ZERO : digit ? DIGITS : -1;
    case ZERO: return c == '.' ? POINT : e ? E : -1;
    case DIGITS: return digit ? DIGITS : c == '.' ? POINT : e ? E : -1;
    case POINT: return digit ? FRACTION : -1;
    case FRACTION: return digit ? FRACTION : e ? E : -1;
    case E: return c == '+' || c == '-' ? E_SIGN : digit ? EXPONENT : -1;
    case E_SIGN:
    case EXPONENT: return digit ? EXPONENT : -1;
    default: return -1;
    }
}

static bool number_may_end(int state)
{
    return state == ZERO || state == DIGITS || state == FRACTION || state == EXPONENT;
}

static enum mx_json_step step_number(struct mx_json_stream *j, char c)
{
    int next = next_in_number(j->state, c);
    if (next >= 0) {
        j->state = next;
        return MX_JSON_MORE;
    }
    if (!number_may_end(j->state))
        return MX_JSON_BAD;
    if (end_value(j) == MX_JSON_DONE)
        return MX_JSON_OVER;
    return step_structure(j, c);
}

static enum mx_json_step step_state(struct mx_json_stream *j, char c)
{
    switch (j->state) {
    case STRING: return step_string(j, c);
    case ESCAPE: return step_escape(j, c);
    case HEX: return step_hex(j, c);
    case LITERAL: return step_literal(j, c);
    case MINUS:
    case ZERO:
    case DIGITS:
    case POINT:
    case FRACTION:
    case E:
    case E_SIGN:
    case EXPONENT: return step_number(j, c);
    default: return step_structure(j, c);
    }
}

/* ---- Interface ---- */

enum mx_json_step mx_json_stream_step(struct mx_json_stream *j, char c, struct mx_strbuf *out)
{
    bool string = j->state == STRING && c != '"' && c != '\\';
    enum mx_json_step step = step_state(j, c);
    if (!out || j->kind == MX_JSON_NONE || step == MX_JSON_BAD || step == MX_JSON_OVER)
        return step;
    if (string)
        mx_json_put_escaped(out, c);
    else
        mx_strbuf_putc(out, c);
    return step;
}

bool mx_json_stream_may_end(const struct mx_json_stream *j)
{
    return j->state == OVER || (j->depth == 0 && number_may_end(j->state));
}

enum mx_json_kind mx_json_scan(const char *s, size_t n, struct mx_strbuf *out)
{
    struct mx_json_stream j = {0};
    size_t before = out ? out->len : 0, i = 0;
    enum mx_json_step step = MX_JSON_MORE;
    while (i < n && step == MX_JSON_MORE)
        step = mx_json_stream_step(&j, s[i++], out);
    if (step == MX_JSON_OVER)
        i--;
    while (i < n && is_blank(s[i]))
        i++;
    if (step != MX_JSON_BAD && i == n && mx_json_stream_may_end(&j))
        return j.kind;
    if (out && out->data) {
        out->len = before;
        out->data[before] = '\0';
    }
    return MX_JSON_NONE;
}

void mx_json_put_escaped(struct mx_strbuf *out, char c)
{
    if ((unsigned char)c >= 0x20 && c != '"' && c != '\\')
        mx_strbuf_putc(out, c);
    else if (c == '\n')
        mx_strbuf_puts(out, "\\n");
    else if (c == '\t')
        mx_strbuf_puts(out, "\\t");
    else if (c == '\r')
        mx_strbuf_puts(out, "\\r");
    else if (c == '"' || c == '\\')
        mx_strbuf_printf(out, "\\%c", c);
    else
        mx_strbuf_printf(out, "\\u%04x", (unsigned)(unsigned char)c);
}

void mx_json_quote(struct mx_strbuf *out, const char *s, size_t n)
{
    mx_strbuf_putc(out, '"');
    for (size_t i = 0; i < n; i++)
        mx_json_put_escaped(out, s[i]);
    mx_strbuf_putc(out, '"');
}
