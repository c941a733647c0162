/* Arena allocator: a list of zeroed blocks, bump-allocated from the newest.
 *
 * Invariants:
 *   1. Every returned pointer is a multiple of ALIGN; sizes are rounded up to it, and `used` counts
 *      rounded sizes, so `limit` bounds the memory handed out (slack of a block is at most as much
 *      again).
 *   2. Blocks come from calloc and bytes are handed out once, so memory is zero without a memset.
 *   3. A failed allocation changes nothing. */
#include "base/arena.h"

#include <stdalign.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGN = 16,
    FIRST_BLOCK = 4096,
    LARGEST_STEP = 256 * 1024,
};

struct mx_arena_block {
    struct mx_arena_block *next;
    size_t size, used; /* bytes of `data` */
    alignas(ALIGN) unsigned char data[];
};

void mx_arena_init(struct mx_arena *a, size_t limit)
{
    *a = (struct mx_arena){.limit = limit};
}

void mx_arena_free(struct mx_arena *a)
{
    struct mx_arena_block *b = a->head;
    while (b) {
        struct mx_arena_block *next = b->next;
        free(b);
        b = next;
    }
    a->head = NULL;
    a->used = 0;
}

/* A block for at least `bytes`. Blocks double so that an arena of n bytes takes O(log n) of them;
 * an allocation larger than the step gets a block of its own behind the head, which keeps the
 * head's free tail in use. */
static struct mx_arena_block *add_block(struct mx_arena *a, size_t bytes)
{
    size_t size = a->head ? a->head->size * 2 : FIRST_BLOCK;
    if (size > LARGEST_STEP)
        size = LARGEST_STEP;
    bool own = bytes > size;
    if (own)
        size = bytes;
    if (size > SIZE_MAX - sizeof(struct mx_arena_block))
        return NULL;
    struct mx_arena_block *b = calloc(1, sizeof *b + size);
    if (!b)
        return NULL;
    b->size = size;
    if (own && a->head) {
        b->next = a->head->next;
        a->head->next = b;
    } else {
        b->next = a->head;
        a->head = b;
    }
    return b;
}

void *mx_arena_alloc(struct mx_arena *a, size_t bytes)
{
    if (bytes > SIZE_MAX - ALIGN)
        return NULL;
    size_t n = bytes ? (bytes + ALIGN - 1) / ALIGN * ALIGN : ALIGN;
    if (n > SIZE_MAX - a->used || (a->limit && a->used + n > a->limit))
        return NULL;
    struct mx_arena_block *b = a->head;
    if (!b || b->size - b->used < n) {
        b = add_block(a, n);
        if (!b)
            return NULL;
    }
    void *p = b->data + b->used;
    b->used += n;
    a->used += n;
    return p;
}

char *mx_arena_strndup(struct mx_arena *a, const char *s, size_t n)
{
    if (n == SIZE_MAX)
        return NULL;
    char *p = mx_arena_alloc(a, n + 1);
    if (p && n)
        memcpy(p, s, n);
    return p;
}

char *mx_arena_strdup(struct mx_arena *a, const char *s)
{
    return mx_arena_strndup(a, s, strlen(s));
}

char *mx_arena_printf(struct mx_arena *a, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    char *p = n < 0 ? NULL : mx_arena_alloc(a, (size_t)n + 1);
    if (p)
        vsnprintf(p, (size_t)n + 1, fmt, again);
    va_end(again);
    va_end(ap);
    return p;
}
