/* Growing byte string with a stated maximum.
 *
 * Invariants:
 *   1. len < cap whenever data is not NULL, and data[len] == '\0'.
 *   2. len <= max when max is not 0.
 *   3. A failed append leaves the content as it was and sets `failed`. */
#include "base/strbuf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mx_strbuf_init(struct mx_strbuf *b, size_t max)
{
    *b = (struct mx_strbuf){.max = max};
}

void mx_strbuf_free(struct mx_strbuf *b)
{
    free(b->data);
    *b = (struct mx_strbuf){.max = b->max};
}

void mx_strbuf_clear(struct mx_strbuf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data)
        b->data[0] = '\0';
}

/* Room for `extra` more bytes and the terminator. Growth is geometric but never past the maximum.
 */
static bool reserve(struct mx_strbuf *b, size_t extra)
{
    if (b->failed)
        return false;
    size_t most = b->max && b->max < PTRDIFF_MAX ? b->max : PTRDIFF_MAX - 1;
    if (extra > most || b->len > most - extra) {
        b->failed = true;
        return false;
    }
    size_t need = b->len + extra + 1;
    if (need <= b->cap)
        return true;
    size_t cap = b->cap * 2;
    if (cap < 64)
        cap = 64;
    if (cap > most + 1)
        cap = most + 1;
    if (cap < need)
        cap = need;
    char *data = realloc(b->data, cap);
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->cap = cap;
    return true;
}

bool mx_strbuf_append(struct mx_strbuf *b, const void *s, size_t n)
{
    if (!reserve(b, n))
        return false;
    if (n)
        memcpy(b->data + b->len, s, n);
    b->len += n;
    b->data[b->len] = '\0';
    return true;
}

bool mx_strbuf_puts(struct mx_strbuf *b, const char *s)
{
    return mx_strbuf_append(b, s, strlen(s));
}

bool mx_strbuf_putc(struct mx_strbuf *b, char c)
{
    return mx_strbuf_append(b, &c, 1);
}

bool mx_strbuf_printf(struct mx_strbuf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    bool ok = n >= 0 && reserve(b, (size_t)n);
    if (ok) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    } else {
        b->failed = true;
    }
    va_end(again);
    va_end(ap);
    return ok;
}

char *mx_strbuf_steal(struct mx_strbuf *b, size_t *len)
{
    if (len)
        *len = 0;
    char *data = NULL;
    if (mx_strbuf_append(b, NULL, 0)) { /* an empty buffer still yields a string */
        data = b->data;
        if (len)
            *len = b->len;
        b->data = NULL;
    }
    mx_strbuf_free(b);
    return data;
}
