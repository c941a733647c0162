/* Sets of code points as sorted ranges, in an arena. */
#include "text/grammar_int.h"

#include <stdlib.h>
#include <string.h>

bool mx_cpset_add(struct mx_cpset *s, uint32_t lo, uint32_t hi)
{
    if (s->n == s->cap) {
        int cap = s->cap ? 2 * s->cap : 8;
        struct mx_cprange *v = mx_arena_alloc(s->arena, (size_t)cap * sizeof *v);
        if (!v)
            return false;
        if (s->n)
            memcpy(v, s->v, (size_t)s->n * sizeof *v);
        s->v = v;
        s->cap = cap;
    }
    s->v[s->n++] = (struct mx_cprange){lo, hi};
    return true;
}

static int by_lo(const void *a, const void *b)
{
    const struct mx_cprange *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

void mx_cpset_normalise(struct mx_cpset *s)
{
    if (s->n < 2)
        return;
    qsort(s->v, (size_t)s->n, sizeof *s->v, by_lo);
    int out = 0;
    for (int i = 1; i < s->n; i++) {
        if (s->v[i].lo <= s->v[out].hi + 1) {
            if (s->v[i].hi > s->v[out].hi)
                s->v[out].hi = s->v[i].hi;
        } else {
            s->v[++out] = s->v[i];
        }
    }
    s->n = out + 1;
}

/* lo..hi without the surrogates, which no UTF-8 text holds. */
static bool add_scalars(struct mx_cpset *s, uint32_t lo, uint32_t hi)
{
    bool ok = true;
    if (lo < 0xd800)
        ok = mx_cpset_add(s, lo, hi < 0xd800 ? hi : 0xd7ff);
    if (hi > 0xdfff)
        ok = ok && mx_cpset_add(s, lo > 0xdfff ? lo : 0xe000, hi);
    return ok;
}

bool mx_cpset_negate(struct mx_cpset *s)
{
    mx_cpset_normalise(s);
    struct mx_cpset out = {.arena = s->arena};
    uint32_t next = 0;
    bool ok = true;
    for (int i = 0; i < s->n && ok; i++) {
        if (s->v[i].lo > next)
            ok = add_scalars(&out, next, s->v[i].lo - 1);
        next = s->v[i].hi + 1;
    }
    if (ok && next <= MX_CP_MAX)
        ok = add_scalars(&out, next, MX_CP_MAX);
    *s = out;
    mx_cpset_normalise(s);
    return ok;
}

bool mx_cpset_has(const struct mx_cpset *s, uint32_t cp)
{
    for (int i = 0; i < s->n; i++)
        if (cp >= s->v[i].lo && cp <= s->v[i].hi)
            return true;
    return false;
}
