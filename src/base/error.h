/* Errors: a status code and one sentence, written into a caller-owned mtplx_error.
 *
 * Every fallible internal function takes `mtplx_error *err` last and returns either mtplx_status or
 * a pointer that is NULL on failure. `err` may be NULL when the caller does not want the text. The
 * sentence names the file or field at fault and, where there is one, the fix; it has no trailing
 * newline. The first error written wins at the place it happens; callers add context with
 * mx_error_prefix() instead of overwriting. */
#ifndef MX_BASE_ERROR_H
#define MX_BASE_ERROR_H

#include "mtplx.h"

/* Formats the message and returns `status`, so that `return mx_error(err, ...)` reads well. */
mtplx_status mx_error(mtplx_error *err, mtplx_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "context: " before the message already there (no-op when err is NULL or OK). */
void mx_error_prefix(mtplx_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The one sentence for a failed allocation of `bytes` for `what`. */
mtplx_status mx_error_nomem(mtplx_error *err, const char *what, size_t bytes);

#endif
