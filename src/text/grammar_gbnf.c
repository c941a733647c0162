/* GBNF and EBNF -> expressions.
 *
 * A rule is `name ::= alternatives`, or `name = alternatives ;`. Terms: "literal" or 'literal' with
 * the escapes \n \r \t \\ \" \' \[ \] \xHH \uHHHH \UHHHHHHHH, [classes] with ranges and ^, . for
 * any character, (groups), names; behind a term * + ? {m} {m,} {m,n}; a comma may stand between
 * terms. Comments run from # to the end of the line. Line ends mean nothing else: a rule ends where
 * the next begins. The text matches the rule "root". Left recursion is refused by the compiler. */
#include "base/utf8.h"
#include "text/grammar_int.h"

#include <stdlib.h>
#include <string.h>

enum { NESTING = 60, NAME_MAX_LEN = 128 };

struct gbnf {
    struct mx_gbuild *b;
    const char *s;
    size_t at, len;
    json_t *names;  /* name -> rule */
    size_t *places; /* by rule: where it was first named */
    int cap_places;
    int depth;
};

static void *refuse_at(struct gbnf *g, size_t at, mtplx_status status, const char *what)
{
    size_t line = 1, start = 0;
    for (size_t i = 0; i < at && i < g->len; i++)
        if (g->s[i] == '\n') {
            line++;
            start = i + 1;
        }
    size_t end = at < g->len ? at : g->len;
    return mx_gfail(g->b, status, "grammar, line %zu, column %zu: %s", line,
                    mx_utf8_count(g->s + start, end - start) + 1, what);
}

static void *bad(struct gbnf *g, const char *what)
{
    return refuse_at(g, g->at, MTPLX_ERR_ARGUMENT, what);
}

/* ---- Words ---- */

static void skip(struct gbnf *g)
{
    while (g->at < g->len) {
        char c = g->s[g->at];
        if (c == '#')
            while (g->at < g->len && g->s[g->at] != '\n')
                g->at++;
        else if (c == ' ' || c == '\t' || c == '\n' || c == '\r')
            g->at++;
        else
            break;
    }
}

static bool name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static size_t name_length(const struct gbnf *g)
{
    size_t n = 0;
    while (g->at + n < g->len && name_char(g->s[g->at + n]))
        n++;
    return n;
}

/* Length of the sign of definition at the current place; 0: none. */
static size_t definition(const struct gbnf *g)
{
    if (g->len - g->at >= 3 && memcmp(g->s + g->at, "::=", 3) == 0)
        return 3;
    return g->at < g->len && g->s[g->at] == '=' ? 1 : 0;
}

static bool rule_starts(struct gbnf *g)
{
    size_t at = g->at, n = name_length(g);
    if (n == 0)
        return false;
    g->at += n;
    skip(g);
    bool starts = definition(g) > 0;
    g->at = at;
    return starts;
}

/* The rule of a name of n bytes at the current place; made when it is new. */
static int rule_named(struct gbnf *g, size_t n)
{
    char name[NAME_MAX_LEN + 1];
    if (n > NAME_MAX_LEN) {
        bad(g, "a name longer than 128 characters");
        return -1;
    }
    memcpy(name, g->s + g->at, n);
    name[n] = 0;
    const json_t *known = json_object_get(g->names, name);
    if (known)
        return (int)json_integer_value(known);
    int rule = mx_grule_new(g->b);
    if (rule < 0)
        return -1;
    if (rule >= g->cap_places) {
        int cap = 2 * rule + 16;
        size_t *v = realloc(g->places, (size_t)cap * sizeof *v);
        if (!v) {
            mx_gfail(g->b, MTPLX_ERR_MEMORY, "out of memory for a grammar");
            return -1;
        }
        g->places = v;
        g->cap_places = cap;
    }
    g->places[rule] = g->at;
    if (json_object_set_new(g->names, name, json_integer(rule))) {
        mx_gfail(g->b, MTPLX_ERR_MEMORY, "out of memory for a grammar");
        return -1;
    }
    return rule;
}

/* ---- Characters ---- */

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool hex(struct gbnf *g, int n, uint32_t *cp)
{
    *cp = 0;
    for (int i = 0; i < n; i++) {
        int v = g->at < g->len ? hex_value(g->s[g->at]) : -1;
        if (v < 0 || *cp > MX_CP_MAX)
            return false;
        *cp = *cp * 16 + (uint32_t)v;
        g->at++;
    }
    return *cp <= MX_CP_MAX && (*cp < 0xd800 || *cp > 0xdfff);
}

/* One character of a literal or class, escapes resolved. */
static bool character(struct gbnf *g, uint32_t *cp)
{
    int used = mx_utf8_decode(g->s + g->at, g->len - g->at, cp);
    if (used <= 0)
        return false;
    g->at += (size_t)used;
    if (*cp != '\\')
        return true;
    if (g->at >= g->len)
        return false;
    char c = g->s[g->at++];
    switch (c) {
    case 'n': *cp = '\n'; return true;
    case 'r': *cp = '\r'; return true;
    case 't': *cp = '\t'; return true;
    case 'x': return hex(g, 2, cp);
    case 'u': return hex(g, 4, cp);
    case 'U': return hex(g, 8, cp);
    default: *cp = (uint8_t)c; return strchr("\\\"'[]-^./", c) != NULL;
    }
}

static struct mx_gexpr *literal(struct gbnf *g, char quote)
{
    struct mx_strbuf t;
    size_t start = g->at++;
    uint32_t cp;
    char utf8[4];
    mx_strbuf_init(&t, 1 << 20);
    while (g->at < g->len && g->s[g->at] != quote && !g->b->failed) {
        if (!character(g, &cp))
            bad(g, "an escape that is not known in a literal");
        else
            mx_strbuf_append(&t, utf8, (size_t)mx_utf8_encode(cp, utf8));
    }
    if (g->at >= g->len && !g->b->failed)
        refuse_at(g, start, MTPLX_ERR_ARGUMENT, "a literal that does not end");
    g->at++;
    struct mx_gexpr *x = g->b->failed ? NULL : mx_gx_lit(g->b, t.len ? t.data : "", t.len);
    mx_strbuf_free(&t);
    return x;
}

static struct mx_gexpr *class(struct gbnf *g)
{
    struct mx_cpset s = {.arena = &g->b->arena};
    size_t start = g->at++;
    bool complement = g->at < g->len && g->s[g->at] == '^', ok = true;
    g->at += complement;
    while (ok && g->at < g->len && g->s[g->at] != ']') {
        uint32_t lo, hi;
        if (!character(g, &lo))
            return bad(g, "an escape that is not known in a class");
        hi = lo;
        if (g->at + 1 < g->len && g->s[g->at] == '-' && g->s[g->at + 1] != ']') {
            g->at++;
            if (!character(g, &hi) || hi < lo)
                return bad(g, "a range that runs backwards or has an unknown escape");
        }
        ok = mx_cpset_add(&s, lo, hi);
    }
    if (g->at >= g->len)
        return refuse_at(g, start, MTPLX_ERR_ARGUMENT, "a class that does not end");
    g->at++;
    ok = ok && mx_cpset_negate(&s) && (complement || mx_cpset_negate(&s));
    return ok ? mx_gx_chars(g->b, &s) : mx_gfail(g->b, MTPLX_ERR_LIMIT, "the grammar is too large");
}

static struct mx_gexpr *any(struct gbnf *g)
{
    struct mx_cpset s = {.arena = &g->b->arena};
    g->at++;
    return mx_cpset_negate(&s) ? mx_gx_chars(g->b, &s)
                               : mx_gfail(g->b, MTPLX_ERR_LIMIT, "the grammar is too large");
}

/* ---- Terms ---- */

static struct mx_gexpr *alternatives(struct gbnf *g);

static struct mx_gexpr *group(struct gbnf *g)
{
    size_t start = g->at++;
    if (++g->depth > NESTING)
        return refuse_at(g, start, MTPLX_ERR_LIMIT, "groups nested too deep");
    struct mx_gexpr *x = alternatives(g);
    g->depth--;
    if (x && (g->at >= g->len || g->s[g->at] != ')'))
        return refuse_at(g, start, MTPLX_ERR_ARGUMENT, "a group that does not end");
    g->at++;
    return x;
}

static struct mx_gexpr *atom(struct gbnf *g)
{
    char c = g->s[g->at];
    size_t n = name_length(g);
    if (c == '"' || c == '\'')
        return literal(g, c);
    if (c == '[')
        return class(g);
    if (c == '.')
        return any(g);
    if (c == '(')
        return group(g);
    if (n == 0)
        return bad(g, "a literal, class, group or name is wanted here");
    int rule = rule_named(g, n);
    g->at += n;
    return rule < 0 ? NULL : mx_gx_ref(g->b, rule);
}

static int64_t count(struct gbnf *g)
{
    int64_t n = -1;
    while (g->at < g->len && g->s[g->at] >= '0' && g->s[g->at] <= '9') {
        n = n < 0 ? 0 : n;
        n = n > MX_GX_REPEAT ? n : n * 10 + (g->s[g->at] - '0');
        g->at++;
    }
    return n;
}

static bool bounds(struct gbnf *g, int *min, int *max)
{
    g->at++;
    skip(g);
    int64_t lo = count(g), hi = lo;
    skip(g);
    if (g->at < g->len && g->s[g->at] == ',') {
        g->at++;
        skip(g);
        hi = count(g);
        skip(g);
    }
    if (lo < 0 || g->at >= g->len || g->s[g->at] != '}' || (hi >= 0 && hi < lo)) {
        bad(g, "{m}, {m,} or {m,n} is wanted here");
        return false;
    }
    g->at++;
    if (lo > MX_GX_REPEAT || hi > MX_GX_REPEAT) {
        refuse_at(g, g->at, MTPLX_ERR_LIMIT, "a repetition that is too large");
        return false;
    }
    *min = (int)lo;
    *max = (int)hi;
    return true;
}

static struct mx_gexpr *term(struct gbnf *g)
{
    struct mx_gexpr *x = atom(g);
    for (skip(g); x && g->at < g->len && strchr("*+?{", g->s[g->at]); skip(g)) {
        char c = g->s[g->at];
        int min = c == '+', max = c == '?' ? 1 : -1;
        if (c != '{')
            g->at++;
        else if (!bounds(g, &min, &max))
            return NULL;
        x = mx_gx_rep(g->b, x, min, max);
    }
    return x;
}

static struct mx_gexpr *sequence(struct gbnf *g)
{
    struct mx_gxlist kids = {0};
    for (skip(g); g->at < g->len && !g->b->failed; skip(g)) {
        if (strchr("|);", g->s[g->at]) || rule_starts(g))
            break;
        mx_gxlist_put(g->b, &kids, term(g));
        if (g->at < g->len && g->s[g->at] == ',')
            g->at++;
    }
    return g->b->failed ? NULL : mx_gx_seq(g->b, kids.n, kids.v);
}

static struct mx_gexpr *alternatives(struct gbnf *g)
{
    struct mx_gxlist alts = {0};
    mx_gxlist_put(g->b, &alts, sequence(g));
    while (!g->b->failed && g->at < g->len && g->s[g->at] == '|') {
        g->at++;
        mx_gxlist_put(g->b, &alts, sequence(g));
    }
    return g->b->failed ? NULL : mx_gx_alt(g->b, alts.n, alts.v);
}

/* ---- Rules ---- */

static void parse_rule(struct gbnf *g)
{
    size_t n = name_length(g);
    if (!rule_starts(g)) {
        bad(g, "a rule is wanted here: name ::= alternatives");
        return;
    }
    int rule = rule_named(g, n);
    if (rule < 0)
        return;
    if (g->b->rules[rule]) {
        bad(g, "a rule of this name exists already");
        return;
    }
    g->at += n;
    skip(g);
    g->at += definition(g);
    struct mx_gexpr *x = alternatives(g);
    if (!x)
        return;
    mx_grule_set(g->b, rule, x);
    if (g->at < g->len && g->s[g->at] == ';')
        g->at++;
    skip(g);
}

static struct mx_gexpr *parse(struct gbnf *g)
{
    if (!mx_utf8_valid(g->s, g->len) || memchr(g->s, 0, g->len))
        return mx_gfail(g->b, MTPLX_ERR_ARGUMENT, "the grammar is not valid UTF-8 or holds a NUL");
    for (skip(g); g->at < g->len && !g->b->failed;)
        parse_rule(g);
    for (int i = 0; i < g->b->n_rules && !g->b->failed; i++)
        if (!g->b->rules[i])
            refuse_at(g, g->places[i], MTPLX_ERR_ARGUMENT, "this rule is not defined anywhere");
    const json_t *root = json_object_get(g->names, "root");
    if (!root && !g->b->failed)
        mx_gfail(g->b, MTPLX_ERR_ARGUMENT, "the grammar has no rule named root");
    return g->b->failed ? NULL : mx_gx_ref(g->b, (int)json_integer_value(root));
}

struct mx_grammar *mx_grammar_from_gbnf(const char *text, size_t len,
                                        const struct mx_grammar_frame *f, mtplx_error *err)
{
    struct mx_gbuild b;
    mx_gbuild_init(&b, err);
    struct gbnf g = {.b = &b, .s = text, .len = len, .names = json_object()};
    struct mx_gexpr *x = g.names ? parse(&g) : NULL;
    json_decref(g.names);
    free(g.places);
    return mx_grammar_finish(&b, x, f, err);
}
