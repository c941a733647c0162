/* Error sentences, and the three library-wide functions of the public API.
 *
 * Invariants:
 *   1. A message is NUL-terminated valid UTF-8 on one line: names from hostile files may hold
 *      control characters or broken bytes, and messages travel into terminals and JSON.
 *   2. Arguments may point into the message being replaced: text is formatted aside, then copied.
 */
#include "base/error.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGE_SIZE sizeof(((mtplx_error *)0)->message)

/* Copies `src` into the message under invariant 1; what does not fit is cut between characters. */
static void store(mtplx_error *err, const char *src)
{
    size_t n = strlen(src), out = 0;
    size_t i = 0;
    while (i < n) {
        uint32_t cp;
        int used = mx_utf8_decode(src + i, n - i, &cp);
        bool bad = used <= 0;
        size_t width = bad ? 1 : (size_t)used;
        if (out + width >= MESSAGE_SIZE)
            break;
        if (bad)
            err->message[out] = '?';
        else if (cp < 0x20 || (cp >= 0x7f && cp < 0xa0))
            memset(err->message + out, ' ', width);
        else
            memcpy(err->message + out, src + i, width);
        out += width;
        i += width;
    }
    err->message[out] = '\0';
}

mtplx_status mx_error(mtplx_error *err, mtplx_status status, const char *fmt, ...)
{
    if (!err)
        return status;
    char text[2 * MESSAGE_SIZE];
    va_list ap;
    va_start(ap, fmt);
    if (vsnprintf(text, sizeof text, fmt, ap) < 0)
        text[0] = '\0';
    va_end(ap);
    err->status = status;
    store(err, text);
    return status;
}

void mx_error_prefix(mtplx_error *err, const char *fmt, ...)
{
    if (!err || err->status == MTPLX_OK)
        return;
    char text[3 * MESSAGE_SIZE];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, MESSAGE_SIZE, fmt, ap);
    va_end(ap);
    if (n < 0)
        return;
    size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, ": %s", err->message);
    store(err, text);
}

mtplx_status mx_error_nomem(mtplx_error *err, const char *what, size_t bytes)
{
    return mx_error(err, MTPLX_ERR_MEMORY, "out of memory: %zu bytes for %s", bytes, what);
}

const char *mtplx_status_name(mtplx_status status)
{
    switch (status) {
    case MTPLX_OK: return "ok";
    case MTPLX_ERR_ARGUMENT: return "argument";
    case MTPLX_ERR_IO: return "io";
    case MTPLX_ERR_FORMAT: return "format";
    case MTPLX_ERR_UNSUPPORTED: return "unsupported";
    case MTPLX_ERR_MEMORY: return "memory";
    case MTPLX_ERR_LIMIT: return "limit";
    case MTPLX_ERR_CANCELLED: return "cancelled";
    }
    return "unknown";
}

const char *mtplx_version(void)
{
    return MTPLX_VERSION;
}

void mtplx_free(void *p)
{
    free(p);
}
