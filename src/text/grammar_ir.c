/* Expressions of a grammar: an arena of nodes, and rules by number.
 *
 * Nodes are shared freely: an expression may hang below several others. Nesting is bounded here, so
 * that what walks over expressions may recurse. */
#include "base/utf8.h"
#include "text/grammar_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    BUILD_BYTES = 256 << 20,
    RULES_MAX = 1 << 18,
    SPECIALS_MAX = 64,
};

void mx_gbuild_init(struct mx_gbuild *b, mtplx_error *err)
{
    *b = (struct mx_gbuild){.err = err};
    mx_arena_init(&b->arena, BUILD_BYTES);
    for (size_t i = 0; i < sizeof b->json_rule / sizeof *b->json_rule; i++)
        b->json_rule[i] = -1;
}

void mx_gbuild_free(struct mx_gbuild *b)
{
    mx_arena_free(&b->arena);
}

void *mx_gfail(struct mx_gbuild *b, mtplx_status status, const char *fmt, ...)
{
    if (!b->failed) {
        char text[sizeof b->err->message];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        mx_error(b->err, status, "%s", text);
        b->failed = true;
    }
    return NULL;
}

void *mx_galloc(struct mx_gbuild *b, size_t bytes)
{
    void *p = b->failed ? NULL : mx_arena_alloc(&b->arena, bytes);
    if (!p)
        mx_gfail(b, MTPLX_ERR_LIMIT,
                 "the grammar needs more than %d MiB while it is compiled; make it smaller",
                 BUILD_BYTES >> 20);
    return p;
}

/* ---- Nodes ---- */

static struct mx_gexpr *node(struct mx_gbuild *b, enum mx_gkind kind)
{
    struct mx_gexpr *x = mx_galloc(b, sizeof *x);
    if (x)
        *x = (struct mx_gexpr){.kind = kind, .depth = 1};
    return x;
}

struct mx_gexpr *mx_gx_fail(struct mx_gbuild *b)
{
    return node(b, MX_GX_FAIL);
}

struct mx_gexpr *mx_gx_empty(struct mx_gbuild *b)
{
    return node(b, MX_GX_EMPTY);
}

struct mx_gexpr *mx_gx_lit(struct mx_gbuild *b, const char *s, size_t n)
{
    if (n == 0)
        return mx_gx_empty(b);
    struct mx_gexpr *x = n <= MX_GX_STATES ? node(b, MX_GX_LIT) : NULL;
    char *copy = x ? mx_galloc(b, n) : NULL;
    if (!copy)
        return mx_gfail(b, MTPLX_ERR_LIMIT, "a literal of the grammar is too long");
    memcpy(copy, s, n);
    x->u.text = copy;
    x->n = (int)n;
    return x;
}

struct mx_gexpr *mx_gx_str(struct mx_gbuild *b, const char *s)
{
    return mx_gx_lit(b, s, strlen(s));
}

struct mx_gexpr *mx_gx_chars(struct mx_gbuild *b, const struct mx_cpset *s)
{
    if (s->n == 0)
        return mx_gx_fail(b);
    struct mx_gexpr *x = node(b, MX_GX_CHARS);
    if (x) {
        x->u.ranges = s->v;
        x->n = s->n;
    }
    return x;
}

struct mx_gexpr *mx_gx_range(struct mx_gbuild *b, uint32_t lo, uint32_t hi)
{
    struct mx_cpset s = {.arena = &b->arena};
    if (!mx_cpset_add(&s, lo, hi))
        return mx_gfail(b, MTPLX_ERR_LIMIT, "the grammar is too large");
    return mx_gx_chars(b, &s);
}

static struct mx_gexpr *group(struct mx_gbuild *b, enum mx_gkind kind, int n,
                              struct mx_gexpr *const *kids)
{
    int depth = 0;
    for (int i = 0; i < n; i++) {
        if (!kids[i])
            return mx_gfail(b, MTPLX_ERR_MEMORY, "out of memory for a grammar");
        if (kids[i]->depth > depth)
            depth = kids[i]->depth;
    }
    if (n == 1)
        return kids[0];
    if (depth >= MX_GX_DEPTH)
        return mx_gfail(b, MTPLX_ERR_LIMIT, "the grammar nests more than %d levels deep",
                        MX_GX_DEPTH);
    struct mx_gexpr *x = node(b, kind);
    struct mx_gexpr **copy = x ? mx_galloc(b, (size_t)n * sizeof *copy) : NULL;
    if (!copy)
        return NULL;
    memcpy(copy, kids, (size_t)n * sizeof *copy);
    x->u.kids = copy;
    x->n = n;
    x->depth = depth + 1;
    return x;
}

struct mx_gexpr *mx_gx_seq(struct mx_gbuild *b, int n, struct mx_gexpr *const *kids)
{
    return n ? group(b, MX_GX_SEQ, n, kids) : mx_gx_empty(b);
}

struct mx_gexpr *mx_gx_alt(struct mx_gbuild *b, int n, struct mx_gexpr *const *kids)
{
    return n ? group(b, MX_GX_ALT, n, kids) : mx_gx_fail(b);
}

struct mx_gexpr *mx_gx_rep(struct mx_gbuild *b, struct mx_gexpr *x, int min, int max)
{
    if (!x)
        return NULL;
    if (max == 0)
        return mx_gx_empty(b);
    if (min == 1 && max == 1)
        return x;
    if (x->depth >= MX_GX_DEPTH)
        return mx_gfail(b, MTPLX_ERR_LIMIT, "the grammar nests more than %d levels deep",
                        MX_GX_DEPTH);
    struct mx_gexpr *r = node(b, MX_GX_REP);
    struct mx_gexpr **kids = r ? mx_galloc(b, sizeof *kids) : NULL;
    if (!kids)
        return NULL;
    kids[0] = x;
    r->u.kids = kids;
    r->n = 1;
    r->min = min;
    r->max = max;
    r->depth = x->depth + 1;
    return r;
}

struct mx_gexpr *mx_gx_opt(struct mx_gbuild *b, struct mx_gexpr *x)
{
    return mx_gx_rep(b, x, 0, 1);
}

struct mx_gexpr *mx_gx_ref(struct mx_gbuild *b, int rule)
{
    struct mx_gexpr *x = rule < 0 ? NULL : node(b, MX_GX_REF);
    if (x)
        x->ref = rule;
    return x;
}

static int special_index(struct mx_gbuild *b, const char *text)
{
    for (int i = 0; i < b->n_specials; i++)
        if (strcmp(b->specials[i], text) == 0)
            return i;
    if (!b->specials)
        b->specials = mx_galloc(b, SPECIALS_MAX * sizeof *b->specials);
    char *copy = b->specials ? mx_arena_strdup(&b->arena, text) : NULL;
    if (!copy || b->n_specials == SPECIALS_MAX) {
        mx_gfail(b, MTPLX_ERR_LIMIT, "the grammar names too many special tokens");
        return -1;
    }
    b->specials[b->n_specials] = copy;
    return b->n_specials++;
}

struct mx_gexpr *mx_gx_marker(struct mx_gbuild *b, const char *text)
{
    int i = special_index(b, text);
    struct mx_gexpr *x = i < 0 ? NULL : node(b, MX_GX_SPECIAL);
    if (!x)
        return NULL;
    x->ref = i;
    return MX_GX_ALT(b, mx_gx_str(b, text), x);
}

struct mx_gexpr *mx_gx_auto(struct mx_gbuild *b, const struct mx_gauto *a)
{
    struct mx_gexpr *x = a ? node(b, MX_GX_AUTO) : NULL;
    if (x)
        x->u.machine = a;
    return x;
}

void mx_gxlist_put(struct mx_gbuild *b, struct mx_gxlist *l, struct mx_gexpr *x)
{
    if (l->n == l->cap) {
        int cap = l->cap ? 2 * l->cap : 8;
        struct mx_gexpr **v = mx_galloc(b, (size_t)cap * sizeof *v);
        if (!v)
            return;
        if (l->n)
            memcpy(v, l->v, (size_t)l->n * sizeof *v);
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = x;
}

/* ---- Rules ---- */

int mx_grule_new(struct mx_gbuild *b)
{
    if (b->n_rules == b->cap_rules) {
        int cap = b->cap_rules ? 2 * b->cap_rules : 16;
        if (cap > RULES_MAX) {
            mx_gfail(b, MTPLX_ERR_LIMIT, "the grammar has more than %d rules", RULES_MAX);
            return -1;
        }
        struct mx_gexpr **v = mx_galloc(b, (size_t)cap * sizeof *v);
        if (!v)
            return -1;
        if (b->n_rules)
            memcpy(v, b->rules, (size_t)b->n_rules * sizeof *v);
        b->rules = v;
        b->cap_rules = cap;
    }
    b->rules[b->n_rules] = NULL;
    return b->n_rules++;
}

void mx_grule_set(struct mx_gbuild *b, int rule, struct mx_gexpr *x)
{
    if (rule >= 0 && rule < b->n_rules)
        b->rules[rule] = x;
}

/* ---- Small machines ---- */

struct mx_gauto *mx_gauto_new(struct mx_gbuild *b, int n_states)
{
    struct mx_gauto *a = mx_galloc(b, sizeof *a);
    bool *accept = a ? mx_galloc(b, (size_t)n_states * sizeof *accept) : NULL;
    if (!accept)
        return NULL;
    *a = (struct mx_gauto){.n_states = n_states, .accept = accept};
    return a;
}

void mx_gauto_edge(struct mx_gbuild *b, struct mx_gauto *a, int from, int to, uint32_t lo,
                   uint32_t hi)
{
    if (!a || lo > hi)
        return;
    if (a->n_edges == a->cap_edges) {
        int cap = a->cap_edges ? 2 * a->cap_edges : 16;
        struct mx_gauto_edge *v = mx_galloc(b, (size_t)cap * sizeof *v);
        if (!v)
            return;
        if (a->n_edges)
            memcpy(v, a->edges, (size_t)a->n_edges * sizeof *v);
        a->edges = v;
        a->cap_edges = cap;
    }
    a->edges[a->n_edges++] = (struct mx_gauto_edge){from, to, lo, hi};
}

/* Progress of the search for `cps` after progress k and character c: the longest prefix that ends
 * the text seen (Knuth, Morris, Pratt). */
static int advance(const uint32_t *cps, const int *fail, int k, uint32_t c)
{
    while (k > 0 && cps[k] != c)
        k = fail[k];
    return cps[k] == c ? k + 1 : 0;
}

static void search_edges(struct mx_gbuild *b, struct mx_gauto *a, const uint32_t *cps,
                         const int *fail, int n, int k)
{
    struct mx_cpset other = {.arena = &b->arena};
    for (int i = 0; i < n; i++) {
        bool seen = mx_cpset_has(&other, cps[i]);
        if (seen)
            continue;
        mx_cpset_add(&other, cps[i], cps[i]);
        mx_gauto_edge(b, a, k, advance(cps, fail, k, cps[i]), cps[i], cps[i]);
    }
    if (!mx_cpset_negate(&other))
        mx_gfail(b, MTPLX_ERR_LIMIT, "the grammar is too large");
    for (int i = 0; i < other.n; i++)
        mx_gauto_edge(b, a, k, 0, other.v[i].lo, other.v[i].hi);
}

/* The search for a marker; *n: its characters. The last state is the one behind it. */
static struct mx_gauto *search(struct mx_gbuild *b, const char *marker, int *n)
{
    size_t len = strlen(marker), at = 0;
    uint32_t *cps = mx_galloc(b, (len + 1) * sizeof *cps);
    int *fail = mx_galloc(b, (len + 1) * sizeof *fail);
    if (!cps || !fail)
        return NULL;
    *n = 0;
    while (at < len) {
        int used = mx_utf8_decode(marker + at, len - at, &cps[*n]);
        if (used <= 0)
            return mx_gfail(b, MTPLX_ERR_ARGUMENT, "a marker is not valid UTF-8");
        at += (size_t)used;
        ++*n;
    }
    for (int k = 2; k <= *n; k++)
        fail[k] = advance(cps, fail, fail[k - 1], cps[k - 1]);
    struct mx_gauto *a = mx_gauto_new(b, *n + 1);
    for (int k = 0; k < *n && a; k++)
        search_edges(b, a, cps, fail, *n, k);
    return b->failed ? NULL : a;
}

struct mx_gexpr *mx_gx_until(struct mx_gbuild *b, const char *marker)
{
    int n;
    struct mx_gauto *a = search(b, marker, &n);
    if (a)
        a->accept[n] = true;
    return mx_gx_auto(b, a);
}

struct mx_gexpr *mx_gx_without(struct mx_gbuild *b, const char *marker)
{
    int n, kept = 0;
    struct mx_gauto *a = search(b, marker, &n);
    if (!a)
        return NULL;
    for (int i = 0; i < a->n_edges; i++)
        if (a->edges[i].to != n)
            a->edges[kept++] = a->edges[i];
    a->n_edges = kept;
    for (int k = 0; k < n; k++)
        a->accept[k] = true;
    return mx_gx_auto(b, a);
}
