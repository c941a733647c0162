/* Request bodies: the pass before the parser, and the parser's errors in our words. */
#include "serve/body.h"

#include "base/utf8.h"

#include <string.h>

struct scan {
    char *text;
    size_t n, at;
    unsigned depth, values;
    bool in_string;
    struct mx_api_error *e;
};

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The code unit of \uXXXX at `at`, or -1 when there is no such escape. */
static int code_unit(const struct scan *s, size_t at)
{
    int unit = 0;
    if (s->n - at < 6 || at > s->n || s->text[at] != '\\' || s->text[at + 1] != 'u')
        return -1;
    for (size_t i = at + 2; i < at + 6; i++) {
        int d = hex_digit(s->text[i]);
        if (d < 0)
            return -1;
        unit = unit * 16 + d;
    }
    return unit;
}

/* Steps over an escape; NUL and half a surrogate pair become U+FFFD. */
static void escape(struct scan *s)
{
    int unit = code_unit(s, s->at);
    if (unit < 0) {
        s->at += s->at + 1 < s->n ? 2 : 1;
        return;
    }
    bool high = unit >= 0xd800 && unit < 0xdc00;
    int next = high ? code_unit(s, s->at + 6) : -1;
    if (next >= 0xdc00 && next < 0xe000) {
        s->at += 12;
        return;
    }
    if (unit == 0 || (unit >= 0xd800 && unit < 0xe000))
        memcpy(s->text + s->at + 2, "fffd", 4);
    s->at += 6;
}

static bool structure(struct scan *s, char c)
{
    s->at++;
    if (c == '"') {
        s->in_string = true;
        s->values++;
    } else if (c == '[' || c == '{') {
        s->depth++;
        s->values++;
    } else if (c == ',') {
        s->values++;
    } else if ((c == ']' || c == '}') && s->depth > 0) {
        s->depth--;
    }
    if (s->depth > MX_BODY_DEPTH)
        return mx_api_fail(s->e, 400, NULL,
                           "the request body is nested deeper than %d levels at byte %zu",
                           MX_BODY_DEPTH, s->at - 1);
    if (s->values > MX_BODY_VALUES)
        return mx_api_fail(s->e, 413, NULL, "the request body has more than %d values",
                           MX_BODY_VALUES);
    return true;
}

static bool step(struct scan *s)
{
    unsigned char c = (unsigned char)s->text[s->at];
    if (c >= 0x80) {
        uint32_t cp;
        int used = mx_utf8_decode(s->text + s->at, s->n - s->at, &cp);
        if (used <= 0)
            return mx_api_fail(s->e, 400, NULL, "the request body is not valid UTF-8 at byte %zu",
                               s->at);
        s->at += (size_t)used;
    } else if (!s->in_string) {
        return structure(s, (char)c);
    } else if (c == '\\') {
        escape(s);
    } else {
        s->in_string = c != '"';
        s->at++;
    }
    return true;
}

bool mx_body_clean(char *text, size_t n, struct mx_api_error *e)
{
    struct scan s = {.text = text, .n = n, .e = e};
    while (s.at < n)
        if (!step(&s))
            return false;
    return true;
}

static bool blank(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r\n", text[i]) || text[i] == '\0')
            return false;
    return true;
}

json_t *mx_body_parse(char *text, size_t n, struct mx_api_error *e)
{
    json_error_t why;
    if (blank(text, n))
        return json_object();
    if (!mx_body_clean(text, n, e))
        return NULL;
    json_t *body = json_loadb(text, n, 0, &why);
    if (!body) {
        mx_api_fail(e, 400, NULL,
                    "the request body is not valid JSON: %.200s (line %d, column %d, byte %d)",
                    why.text, why.line, why.column, why.position);
        return NULL;
    }
    if (json_is_object(body))
        return body;
    json_decref(body);
    mx_api_fail(e, 400, NULL, "the request body must be a JSON object");
    return NULL;
}
