/* Growing byte string with a stated maximum (after curl's dynbuf): no unbounded growth.
 *
 * `data` is always NUL-terminated once anything was appended and may hold NUL bytes. After a failed
 * append `failed` stays set and further appends do nothing, so callers check once at the end. */
#ifndef MX_BASE_STRBUF_H
#define MX_BASE_STRBUF_H

#include <stdbool.h>
#include <stddef.h>

struct mx_strbuf {
    char *data;
    size_t len, cap;
    size_t max; /* 0 = unlimited */
    bool failed;
};

void mx_strbuf_init(struct mx_strbuf *b, size_t max);
void mx_strbuf_free(struct mx_strbuf *b);
void mx_strbuf_clear(struct mx_strbuf *b); /* keeps the memory, forgets the failure */
bool mx_strbuf_append(struct mx_strbuf *b, const void *s, size_t n);
bool mx_strbuf_puts(struct mx_strbuf *b, const char *s);
bool mx_strbuf_putc(struct mx_strbuf *b, char c);
bool mx_strbuf_printf(struct mx_strbuf *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Hands the memory to the caller (free() it); NULL when an append failed. */
char *mx_strbuf_steal(struct mx_strbuf *b, size_t *len);

#endif
