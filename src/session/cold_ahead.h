/* Reading ahead of mx_cold_read(): cold_ahead.c. At most eight objects of at most 8 MiB each are
 * held. Threads: every call is safe from any thread. */
#ifndef MX_SESSION_COLD_AHEAD_H
#define MX_SESSION_COLD_AHEAD_H

#include "session/cold_int.h"

struct mx_cold_ahead;
/* `dir` outlives it. NULL: no memory. */
struct mx_cold_ahead *mx_cold_ahead_new(struct mx_cold_dir *dir);
/* NULL is allowed. */
void mx_cold_ahead_free(struct mx_cold_ahead *a);
/* Asks for an object's file by its name below objects/; forgotten when there is no place. */
void mx_cold_ahead_ask(struct mx_cold_ahead *a, const char *name);
/* The bytes of a file that was asked for, waiting while it is being read; to be given back. NULL:
 * it was not asked for, or is better read by the caller. */
const uint8_t *mx_cold_ahead_take(struct mx_cold_ahead *a, const char *name, size_t *bytes);
void mx_cold_ahead_done(struct mx_cold_ahead *a, const uint8_t *data);
/* Throws away what nobody came for. */
void mx_cold_ahead_tidy(struct mx_cold_ahead *a);

#endif
