/* JSON building blocks.
 *
 *   1. White space between tokens is at most one blank, or one line break with an indentation, and
 *      none before a colon or a comma: a model cannot run away in it.
 *   2. Strings are UTF-8; escapes stand for scalar values only (a surrogate comes with its
 * partner), and never for U+0000, which many readers refuse.
 *   3. Numbers have at most 15 digits before the point and 15 behind it and an exponent of at most
 *      two digits, so that they are finite; integers are exact in a double.
 * Any-value rules recurse through the machine's stack, which bounds their nesting. */
#include "base/utf8.h"
#include "text/grammar_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RULE_WS, RULE_STRING, RULE_NUMBER, RULE_VALUE, RULE_OBJECT, RULE_ARRAY, RULE_INTEGER };
enum { INDENT = 40, TABS = 12 };
#define QUOTE "<|\"|>" /* delimits strings in Gemma's tool calls */

/* The rule's reference; *make is set when the caller has to define it. */
static struct mx_gexpr *shared(struct mx_gbuild *b, int which, bool *make)
{
    *make = b->json_rule[which] < 0;
    if (*make)
        b->json_rule[which] = mx_grule_new(b);
    return mx_gx_ref(b, b->json_rule[which]);
}

/* ---- Gemma's form ---- */

struct mx_gexpr *mx_gjson_quote(struct mx_gbuild *b)
{
    return b->gemma ? mx_gx_marker(b, QUOTE) : mx_gx_str(b, "\"");
}

/* Characters of a string of bounded length, without the < of its delimiter. */
static struct mx_gexpr *gemma_char(struct mx_gbuild *b)
{
    struct mx_cpset s = {.arena = &b->arena};
    if (!mx_cpset_add(&s, 0, 0) || !mx_cpset_add(&s, '<', '<') || !mx_cpset_negate(&s))
        return mx_gfail(b, MTPLX_ERR_LIMIT, "the grammar is too large");
    return mx_gx_chars(b, &s);
}

static struct mx_gexpr *gemma_string(struct mx_gbuild *b, int min, int max)
{
    struct mx_gexpr *text =
        min == 0 && max < 0 ? mx_gx_without(b, QUOTE) : mx_gx_rep(b, gemma_char(b), min, max);
    return MX_GX_SEQ(b, mx_gjson_quote(b), text, mx_gjson_quote(b));
}

static struct mx_gexpr *bare_key(struct mx_gbuild *b)
{
    struct mx_cpset first = {.arena = &b->arena}, more = {.arena = &b->arena};
    bool ok = mx_cpset_add(&first, 'A', 'Z') && mx_cpset_add(&first, '_', '_') &&
              mx_cpset_add(&first, 'a', 'z') && mx_cpset_add(&more, '0', '9') &&
              mx_cpset_add(&more, 'A', 'Z') && mx_cpset_add(&more, '_', '_') &&
              mx_cpset_add(&more, 'a', 'z');
    if (!ok)
        return mx_gfail(b, MTPLX_ERR_LIMIT, "the grammar is too large");
    return MX_GX_SEQ(b, mx_gx_chars(b, &first), mx_gx_rep(b, mx_gx_chars(b, &more), 0, 63));
}

struct mx_gexpr *mx_gjson_key(struct mx_gbuild *b, const char *s, size_t n)
{
    return b->gemma ? mx_gx_lit(b, s, n) : mx_gjson_literal(b, s, n);
}

struct mx_gexpr *mx_gjson_any_key(struct mx_gbuild *b)
{
    return b->gemma ? bare_key(b) : mx_gjson_string(b);
}

/* ---- White space ---- */

struct mx_gexpr *mx_gjson_ws(struct mx_gbuild *b)
{
    bool make;
    if (b->gemma)
        return mx_gx_empty(b);
    struct mx_gexpr *ref = shared(b, RULE_WS, &make);
    if (make) {
        struct mx_gexpr *indent = MX_GX_ALT(b, mx_gx_rep(b, mx_gx_str(b, " "), 0, INDENT),
                                            mx_gx_rep(b, mx_gx_str(b, "\t"), 1, TABS));
        struct mx_gexpr *line = MX_GX_SEQ(b, mx_gx_str(b, "\n"), indent);
        mx_grule_set(b, b->json_rule[RULE_WS],
                     MX_GX_ALT(b, mx_gx_empty(b), mx_gx_str(b, " "), line));
    }
    return ref;
}

/* ---- Strings ---- */

static bool plain_set(struct mx_gbuild *b, struct mx_cpset *s)
{
    *s = (struct mx_cpset){.arena = &b->arena};
    return mx_cpset_add(s, 0, 0x1f) && mx_cpset_add(s, '"', '"') && mx_cpset_add(s, '\\', '\\') &&
           mx_cpset_negate(s);
}

static struct mx_gexpr *set_of(struct mx_gbuild *b, const char *ascii)
{
    struct mx_cpset s = {.arena = &b->arena};
    for (; *ascii; ascii++)
        if (!mx_cpset_add(&s, (uint8_t)*ascii, (uint8_t)*ascii))
            return mx_gfail(b, MTPLX_ERR_LIMIT, "the grammar is too large");
    mx_cpset_normalise(&s);
    return mx_gx_chars(b, &s);
}

/* The four digits behind \u of anything but U+0000 and surrogates, or a pair of surrogates. */
static struct mx_gexpr *unicode_escape(struct mx_gbuild *b)
{
    struct mx_gexpr *hex = set_of(b, "0123456789abcdefABCDEF");
    struct mx_gexpr *digit = set_of(b, "123456789abcdefABCDEF");
    struct mx_gexpr *zero = mx_gx_str(b, "0"), *d = set_of(b, "dD");
    struct mx_gexpr *low =
        MX_GX_ALT(b, MX_GX_SEQ(b, zero, zero, zero, digit), MX_GX_SEQ(b, zero, zero, digit, hex),
                  MX_GX_SEQ(b, zero, digit, hex, hex));
    struct mx_gexpr *rest =
        MX_GX_ALT(b, MX_GX_SEQ(b, set_of(b, "123456789abcefABCEF"), hex, hex, hex),
                  MX_GX_SEQ(b, d, set_of(b, "01234567"), hex, hex));
    struct mx_gexpr *pair = MX_GX_SEQ(b, d, set_of(b, "89abAB"), hex, hex, mx_gx_str(b, "\\u"), d,
                                      set_of(b, "cdefCDEF"), hex, hex);
    return MX_GX_SEQ(b, mx_gx_str(b, "u"), MX_GX_ALT(b, low, rest, pair));
}

static struct mx_gexpr *any_char(struct mx_gbuild *b)
{
    struct mx_cpset plain;
    if (!plain_set(b, &plain))
        return mx_gfail(b, MTPLX_ERR_LIMIT, "the grammar is too large");
    return MX_GX_ALT(
        b, mx_gx_chars(b, &plain),
        MX_GX_SEQ(b, mx_gx_str(b, "\\"), MX_GX_ALT(b, set_of(b, "\"\\/bfnrt"), unicode_escape(b))));
}

struct mx_gexpr *mx_gjson_string_len(struct mx_gbuild *b, int min, int max)
{
    if (b->gemma)
        return gemma_string(b, min, max);
    return MX_GX_SEQ(b, mx_gx_str(b, "\""), mx_gx_rep(b, any_char(b), min, max),
                     mx_gx_str(b, "\""));
}

struct mx_gexpr *mx_gjson_string(struct mx_gbuild *b)
{
    bool make;
    struct mx_gexpr *ref = shared(b, RULE_STRING, &make);
    if (make)
        mx_grule_set(b, b->json_rule[RULE_STRING], mx_gjson_string_len(b, 0, -1));
    return ref;
}

/* How a string spells what it cannot hold as it is; 0: it can. */
static int escape(uint32_t c, char out[8])
{
    static const char names[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    for (int i = 0; i < (int)sizeof names - 1; i += 2)
        if (c == (uint8_t)names[i]) {
            out[0] = '\\';
            out[1] = names[i + 1];
            return 2;
        }
    return c < 0x20 ? snprintf(out, 8, "\\u%04x", (unsigned)c) : 0;
}

struct mx_gexpr *mx_gjson_literal(struct mx_gbuild *b, const char *s, size_t n)
{
    if (b->gemma)
        return MX_GX_SEQ(b, mx_gjson_quote(b), mx_gx_lit(b, s, n), mx_gjson_quote(b));
    struct mx_strbuf t;
    char e[8];
    mx_strbuf_init(&t, 0);
    mx_strbuf_putc(&t, '"');
    for (size_t i = 0; i < n; i++) {
        int k = escape((uint8_t)s[i], e);
        mx_strbuf_append(&t, k ? e : s + i, k ? (size_t)k : 1);
    }
    mx_strbuf_putc(&t, '"');
    struct mx_gexpr *x = t.failed ? mx_gfail(b, MTPLX_ERR_MEMORY, "out of memory for a grammar")
                                  : mx_gx_lit(b, t.data, t.len);
    mx_strbuf_free(&t);
    return x;
}

struct mx_gexpr *mx_gjson_chars(struct mx_gbuild *b, const struct mx_cpset *s)
{
    struct mx_cpset raw = {.arena = &b->arena};
    struct mx_gxlist alts = {0};
    bool ok = true;
    char e[8];
    for (int i = 0; i < s->n && ok; i++) {
        uint32_t lo = s->v[i].lo, hi = s->v[i].hi;
        for (; lo <= hi && lo <= '\\' && ok; lo++) {
            int k = escape(lo, e);
            if (k && lo > 0)
                mx_gxlist_put(b, &alts, mx_gx_lit(b, e, (size_t)k));
            else if (!k)
                ok = mx_cpset_add(&raw, lo, lo);
        }
        ok = ok && (lo > hi || mx_cpset_add(&raw, lo, hi));
    }
    if (!ok)
        return mx_gfail(b, MTPLX_ERR_LIMIT, "the grammar is too large");
    mx_cpset_normalise(&raw);
    if (raw.n)
        mx_gxlist_put(b, &alts, mx_gx_chars(b, &raw));
    return mx_gx_alt(b, alts.n, alts.v);
}

/* ---- Other keys ---- */

struct name {
    uint32_t *cps;
    int n;
};

static int by_cps(const void *a, const void *b)
{
    const struct name *x = a, *y = b;
    for (int i = 0; i < x->n && i < y->n; i++)
        if (x->cps[i] != y->cps[i])
            return x->cps[i] < y->cps[i] ? -1 : 1;
    return (x->n > y->n) - (x->n < y->n);
}

static bool decode_name(struct mx_gbuild *b, const char *s, struct name *out)
{
    size_t len = strlen(s), at = 0;
    out->cps = mx_galloc(b, (len + 1) * sizeof *out->cps);
    out->n = 0;
    while (out->cps && at < len) {
        int used = mx_utf8_decode(s + at, len - at, &out->cps[out->n]);
        if (used <= 0)
            return false;
        at += (size_t)used;
        out->n++;
    }
    return out->cps != NULL;
}

/* Edges of plain characters from state `from` to `to`, without those of `taken`. */
static void other_edges(struct mx_gbuild *b, struct mx_gauto *a, int from, int to,
                        struct mx_cpset *taken)
{
    bool ok = mx_cpset_add(taken, 0, 0x1f) && mx_cpset_add(taken, '"', '"') &&
              mx_cpset_add(taken, '\\', '\\') &&
              (!b->gemma || (mx_cpset_add(taken, ' ', '/') && mx_cpset_add(taken, ':', '@') &&
                             mx_cpset_add(taken, '{', MX_CP_MAX))) &&
              mx_cpset_negate(taken);
    if (!ok)
        mx_gfail(b, MTPLX_ERR_LIMIT, "the grammar is too large");
    for (int i = 0; i < taken->n && ok; i++)
        mx_gauto_edge(b, a, from, to, taken->v[i].lo, taken->v[i].hi);
}

struct mx_gexpr *mx_gjson_other_key(struct mx_gbuild *b, const char *const *names, int n)
{
    struct name *v = mx_galloc(b, ((size_t)n + 1) * sizeof *v);
    size_t total = 2;
    if (!v)
        return NULL;
    for (int i = 0; i < n; i++) {
        if (!decode_name(b, names[i], &v[i]))
            return mx_gfail(b, MTPLX_ERR_ARGUMENT, "a property name is not valid UTF-8");
        total += (size_t)v[i].n;
    }
    if (total > MX_GX_STATES)
        return mx_gfail(b, MTPLX_ERR_LIMIT, "the names of properties are too long");
    qsort(v, (size_t)n, sizeof *v, by_cps);
    /* State 0: nothing read; 1: differs from all names; the others: a prefix of some. */
    struct mx_gauto *a = mx_gauto_new(b, (int)total);
    int *path = mx_galloc(b, total * sizeof *path), used = 2;
    struct mx_cpset *taken = mx_galloc(b, total * sizeof *taken);
    if (!a || !path || !taken)
        return NULL;
    for (size_t i = 0; i < total; i++) {
        a->accept[i] = true;
        taken[i].arena = &b->arena;
    }
    for (int i = 0; i < n; i++) {
        int shared_len = 0;
        while (i > 0 && shared_len < v[i].n && shared_len < v[i - 1].n &&
               v[i].cps[shared_len] == v[i - 1].cps[shared_len])
            shared_len++;
        for (int k = shared_len; k < v[i].n; k++) {
            int from = k ? path[k - 1] : 0;
            uint32_t c = v[i].cps[k];
            path[k] = used++;
            if (c >= 0x20 && c != '"' && c != '\\')
                mx_gauto_edge(b, a, from, path[k], c, c);
            if (!mx_cpset_add(&taken[from], c, c))
                return mx_gfail(b, MTPLX_ERR_LIMIT, "the grammar is too large");
        }
        a->accept[v[i].n ? path[v[i].n - 1] : 0] = false;
    }
    for (int s = 0; s < used; s++)
        other_edges(b, a, s, 1, &taken[s]);
    if (b->failed)
        return NULL;
    a->n_states = used;
    struct mx_gexpr *quote = mx_gx_str(b, b->gemma ? "" : "\"");
    return MX_GX_SEQ(b, quote, mx_gx_auto(b, a), quote);
}

/* ---- Numbers and values ---- */

struct mx_gexpr *mx_gjson_integer(struct mx_gbuild *b)
{
    bool make;
    struct mx_gexpr *ref = shared(b, RULE_INTEGER, &make);
    if (make)
        mx_grule_set(b, b->json_rule[RULE_INTEGER],
                     mx_gnum_integers(b, -MX_GNUM_MAX, MX_GNUM_MAX, 1));
    return ref;
}

struct mx_gexpr *mx_gjson_number(struct mx_gbuild *b)
{
    bool make;
    struct mx_gexpr *ref = shared(b, RULE_NUMBER, &make);
    if (make) {
        struct mx_gexpr *d = mx_gx_range(b, '0', '9');
        struct mx_gexpr *whole = MX_GX_ALT(
            b, mx_gx_str(b, "0"), MX_GX_SEQ(b, mx_gx_range(b, '1', '9'), mx_gx_rep(b, d, 0, 14)));
        struct mx_gexpr *fraction = MX_GX_SEQ(b, mx_gx_str(b, "."), mx_gx_rep(b, d, 1, 15));
        struct mx_gexpr *exponent =
            MX_GX_SEQ(b, set_of(b, "eE"), mx_gx_opt(b, set_of(b, "+-")), mx_gx_rep(b, d, 1, 2));
        mx_grule_set(b, b->json_rule[RULE_NUMBER],
                     MX_GX_SEQ(b, mx_gx_opt(b, mx_gx_str(b, "-")), whole, mx_gx_opt(b, fraction),
                               mx_gx_opt(b, exponent)));
    }
    return ref;
}

/* open (item (, item)*)? close */
static struct mx_gexpr *list_of(struct mx_gbuild *b, const char *open, struct mx_gexpr *item,
                                const char *close)
{
    struct mx_gexpr *ws = mx_gjson_ws(b);
    struct mx_gexpr *more = MX_GX_SEQ(b, mx_gx_str(b, ","), ws, item);
    struct mx_gexpr *items = MX_GX_SEQ(b, item, mx_gx_rep(b, more, 0, -1), ws);
    return MX_GX_SEQ(b, mx_gx_str(b, open), ws, mx_gx_opt(b, items), mx_gx_str(b, close));
}

struct mx_gexpr *mx_gjson_object(struct mx_gbuild *b)
{
    bool make;
    struct mx_gexpr *ref = shared(b, RULE_OBJECT, &make);
    if (make) {
        struct mx_gexpr *pair =
            MX_GX_SEQ(b, mx_gjson_any_key(b), mx_gx_str(b, ":"), mx_gjson_ws(b), mx_gjson_value(b));
        mx_grule_set(b, b->json_rule[RULE_OBJECT], list_of(b, "{", pair, "}"));
    }
    return ref;
}

struct mx_gexpr *mx_gjson_array(struct mx_gbuild *b)
{
    bool make;
    struct mx_gexpr *ref = shared(b, RULE_ARRAY, &make);
    if (make)
        mx_grule_set(b, b->json_rule[RULE_ARRAY], list_of(b, "[", mx_gjson_value(b), "]"));
    return ref;
}

struct mx_gexpr *mx_gjson_value(struct mx_gbuild *b)
{
    bool make;
    struct mx_gexpr *ref = shared(b, RULE_VALUE, &make);
    if (make)
        mx_grule_set(b, b->json_rule[RULE_VALUE],
                     MX_GX_ALT(b, mx_gjson_object(b), mx_gjson_array(b), mx_gjson_string(b),
                               mx_gjson_number(b), mx_gx_str(b, "true"), mx_gx_str(b, "false"),
                               mx_gx_str(b, "null")));
    return ref;
}
