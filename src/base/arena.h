/* Arena: many small allocations with one lifetime, freed together.
 *
 * Used for everything that lives as long as a model, a parsed template or a request. Memory is
 * zeroed and aligned to 16 bytes. A limit of 0 means unlimited; past the limit allocation fails,
 * which is how hostile templates and headers stay bounded. Not thread-safe. */
#ifndef MX_BASE_ARENA_H
#define MX_BASE_ARENA_H

#include <stddef.h>

struct mx_arena {
    struct mx_arena_block *head;
    size_t used;  /* bytes handed out */
    size_t limit; /* 0 = unlimited */
};

void mx_arena_init(struct mx_arena *a, size_t limit);
void mx_arena_free(struct mx_arena *a);

/* Zeroed memory, or NULL when the limit or the system is exhausted. */
void *mx_arena_alloc(struct mx_arena *a, size_t bytes);
char *mx_arena_strndup(struct mx_arena *a, const char *s, size_t n);
char *mx_arena_strdup(struct mx_arena *a, const char *s);
char *mx_arena_printf(struct mx_arena *a, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif
