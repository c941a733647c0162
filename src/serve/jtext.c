/* JSON text without a tree: strings are copied in runs, and only what JSON forbids is escaped. */
#include "serve/jtext.h"

#include <string.h>

static void escape_one(struct mx_strbuf *b, unsigned char c)
{
    static const char named[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    const char *at = memchr(named, c, sizeof named - 1);
    if (at) {
        mx_strbuf_putc(b, '\\');
        mx_strbuf_putc(b, letters[at - named]);
    } else {
        mx_strbuf_printf(b, "\\u%04x", c);
    }
}

void mx_jtext_escape(struct mx_strbuf *b, const char *s, size_t n)
{
    size_t from = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        mx_strbuf_append(b, s + from, i - from);
        escape_one(b, c);
        from = i + 1;
    }
    if (n > from)
        mx_strbuf_append(b, s + from, n - from);
}

void mx_jtext_string(struct mx_strbuf *b, const char *s)
{
    if (!s) {
        mx_strbuf_puts(b, "null");
        return;
    }
    mx_strbuf_putc(b, '"');
    mx_jtext_escape(b, s, strlen(s));
    mx_strbuf_putc(b, '"');
}

static int append(const char *s, size_t n, void *b)
{
    return mx_strbuf_append(b, s, n) ? 0 : -1;
}

void mx_jtext_value(struct mx_strbuf *b, const json_t *value)
{
    if (!value)
        mx_strbuf_puts(b, "null");
    else if (json_dump_callback(value, append, b, JSON_COMPACT | JSON_ENCODE_ANY) != 0)
        b->failed = true;
}

bool mx_jtext_blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (s[i] != ' ' && s[i] != '\n' && s[i] != '\t' && s[i] != '\r')
            return false;
    }
    return true;
}
