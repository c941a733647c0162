/* Writing JSON straight into a buffer. */
#include "serve/json_out.h"

#include "base/utf8.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static bool plain(unsigned char c)
{
    return c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
}

static void escape_byte(struct mx_strbuf *b, unsigned char c)
{
    switch (c) {
    case '"': mx_json_raw(b, "\\\""); break;
    case '\\': mx_json_raw(b, "\\\\"); break;
    case '\n': mx_json_raw(b, "\\n"); break;
    case '\r': mx_json_raw(b, "\\r"); break;
    case '\t': mx_json_raw(b, "\\t"); break;
    default: mx_strbuf_printf(b, "\\u%04x", c); break;
    }
}

/* One character at s that is not plain ASCII; bytes used. */
static size_t escape_one(struct mx_strbuf *b, const char *s, size_t n)
{
    uint32_t cp = 0;
    if ((unsigned char)*s < 0x80) {
        escape_byte(b, (unsigned char)*s);
        return 1;
    }
    int used = mx_utf8_decode(s, n, &cp);
    if (used <= 0) {
        mx_json_raw(b, "\xef\xbf\xbd");
        return 1;
    }
    if (cp == 0x2028 || cp == 0x2029)
        mx_strbuf_printf(b, "\\u%04x", (unsigned)cp);
    else
        mx_strbuf_append(b, s, (size_t)used);
    return (size_t)used;
}

bool mx_json_escape(struct mx_strbuf *b, const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        size_t start = i;
        while (i < n && plain((unsigned char)s[i]))
            i++;
        if (i > start)
            mx_strbuf_append(b, s + start, i - start);
        if (i < n)
            i += escape_one(b, s + i, n - i);
    }
    return !b->failed;
}

bool mx_json_string(struct mx_strbuf *b, const char *s, size_t n)
{
    mx_strbuf_putc(b, '"');
    mx_json_escape(b, s, n);
    return mx_strbuf_putc(b, '"');
}

bool mx_json_float(struct mx_strbuf *b, float v)
{
    char text[40];
    if (!isfinite(v))
        return mx_json_raw(b, "null");
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)v);
        if (strtof(text, NULL) == v)
            break;
    }
    return mx_strbuf_puts(b, text);
}

static int dump(const char *s, size_t n, void *arg)
{
    return mx_strbuf_append(arg, s, n) ? 0 : -1;
}

bool mx_json_value(struct mx_strbuf *b, const json_t *v)
{
    if (!v)
        return mx_json_raw(b, "null");
    return json_dump_callback(v, dump, b, JSON_COMPACT | JSON_ENCODE_ANY) == 0;
}
