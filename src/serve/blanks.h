/* Blank text at the start of a block or item, held back until it is known whether text follows.
 *
 * Templates put line ends between reasoning, text and calls. Alone they are no block of their own:
 * clients send blocks back as they got them, and some refuse empty ones. */
#ifndef MX_SERVE_BLANKS_H
#define MX_SERVE_BLANKS_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct mx_blanks {
    char text[64];
    size_t n;
};

/* True when s[0..n) is blank and was held back; else what is held goes in front of it. */
static inline bool mx_blanks_hold(struct mx_blanks *b, const char *s, size_t n)
{
    if (n > sizeof b->text - b->n)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!memchr(" \n\r\t", s[i], 4))
            return false;
    }
    memcpy(b->text + b->n, s, n);
    b->n += n;
    return true;
}

#endif
