/* Jinja parser: recursive descent from tokens to the syntax tree.
 *
 * Precedence, loosest first: `a if b else c`, or, and, not, comparison (chained, with in / not in),
 * + -, ~, * / // %, **, unary + -, then attribute, subscript, call, filter and test. `**` is
 * left-associative and `-2 ** 2` is 4, as in jinja2.
 *
 * Invariants
 *  1. Every function that can nest calls enter(), so the C stack is bounded by MX_J_MAX_NESTING.
 *     Chains (operators, filters, elif) are loops.
 *  2. A NULL result means the error was written. */
#include "base/utf8.h"
#include "text/jinja_int.h"

#include <stdio.h>
#include <string.h>

/* Interned variable names, open addressing. */
struct names {
    int *slots; /* id + 1 */
    size_t mask;
};

struct parser {
    struct mx_jinja *j;
    struct mx_jlexer lex;
    struct mx_jtoken cur, ahead;
    bool has_ahead;
    struct mx_arena *arena;
    mtplx_error *err;
    int depth;
    int loops;                  /* enclosing loops within the current macro */
    struct mx_jmacrodef *macro; /* innermost macro being parsed, or NULL */
    struct names names;
    size_t names_cap;
};

/* ---- Tokens, errors, memory --------------------------------------------------------------- */

static void *nomem(struct parser *p)
{
    mx_error_nomem(p->err, p->j->name, p->arena->used);
    return NULL;
}

static void *alloc(struct parser *p, size_t n, size_t size)
{
    void *m = mx_arena_alloc(p->arena, n * size);
    return m ? m : nomem(p);
}

/* Writes the error at the current line; NULL, so that `return fail(...)` reads well. */
__attribute__((format(printf, 2, 3))) static void *fail(struct parser *p, const char *fmt, ...)
{
    char msg[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    mx_jsyntax(p->err, p->j->name, p->cur.line, "%s", msg);
    return NULL;
}

static bool next(struct parser *p)
{
    if (p->has_ahead) {
        p->cur = p->ahead;
        p->has_ahead = false;
    } else {
        p->cur = mx_jlex_next(&p->lex);
    }
    return p->cur.type != MX_JT_ERROR;
}

static const struct mx_jtoken *look(struct parser *p)
{
    if (!p->has_ahead) {
        p->ahead = mx_jlex_next(&p->lex);
        p->has_ahead = true;
    }
    return &p->ahead;
}

static bool at(const struct parser *p, enum mx_jtok t)
{
    return p->cur.type == t;
}

static bool at_name(const struct parser *p, const char *s)
{
    return p->cur.type == MX_JT_NAME && p->cur.len == strlen(s) &&
           memcmp(p->cur.p, s, p->cur.len) == 0;
}

static void *unexpected(struct parser *p, const char *wanted)
{
    if (at(p, MX_JT_ERROR))
        return NULL; /* the lexer has said it */
    int n = p->cur.len > 40 ? 40 : (int)p->cur.len;
    if (at(p, MX_JT_NAME))
        return fail(p, "expected %s, got '%.*s'", wanted, n, p->cur.p);
    return fail(p, "expected %s, got '%s'", wanted, mx_jtok_name(p->cur.type));
}

static bool expect(struct parser *p, enum mx_jtok t)
{
    if (!at(p, t)) {
        char wanted[24];
        snprintf(wanted, sizeof wanted, "'%s'", mx_jtok_name(t));
        unexpected(p, wanted);
        return false;
    }
    return next(p);
}

static bool expect_name(struct parser *p, const char *s)
{
    if (!at_name(p, s)) {
        unexpected(p, s);
        return false;
    }
    return next(p);
}

/* Takes the token if it is there. On a lexer error the current token becomes MX_JT_ERROR, which no
 * caller accepts, so the error surfaces at the next expectation. */
static bool accept(struct parser *p, enum mx_jtok t)
{
    if (!at(p, t))
        return false;
    next(p);
    return true;
}

static bool accept_name(struct parser *p, const char *s)
{
    if (!at_name(p, s))
        return false;
    next(p);
    return true;
}

static bool enter(struct parser *p)
{
    if (++p->depth <= MX_J_MAX_NESTING)
        return true;
    fail(p, "blocks or expressions are nested deeper than %d", MX_J_MAX_NESTING);
    return false;
}

static void leave(struct parser *p)
{
    p->depth--;
}

static struct mx_jnode *node(struct parser *p, enum mx_jkind kind, int line)
{
    struct mx_jnode *n = alloc(p, 1, sizeof *n);
    if (n) {
        n->kind = kind;
        n->line = line;
    }
    return n;
}

/* Makes room for element n of a growing array; arrays double at powers of two. */
static void *room(struct parser *p, void *v, size_t n, size_t size)
{
    if (n != 0 && (n < 4 || (n & (n - 1)) != 0))
        return v;
    void *grown = alloc(p, n == 0 ? 4 : 2 * n, size);
    if (grown && n)
        memcpy(grown, v, n * size);
    return grown;
}

static bool push(struct parser *p, struct mx_jnodes *l, struct mx_jnode *n)
{
    struct mx_jnode **v = n ? room(p, l->v, l->n, sizeof *v) : NULL;
    if (!v)
        return false;
    l->v = v;
    l->v[l->n++] = n;
    return true;
}

static struct mx_jnode *items_node(struct parser *p, enum mx_jkind kind, int line, size_t n, ...)
{
    struct mx_jnode *res = node(p, kind, line);
    if (!res)
        return NULL;
    res->u.items.v = alloc(p, n, sizeof(void *));
    if (!res->u.items.v)
        return NULL;
    va_list ap;
    va_start(ap, n);
    for (size_t i = 0; i < n; i++)
        res->u.items.v[i] = va_arg(ap, struct mx_jnode *);
    va_end(ap);
    res->u.items.n = n;
    return res;
}

static const struct mx_jstr *text(struct parser *p, const char *s, size_t len)
{
    struct mx_jstr *t = alloc(p, 1, sizeof *t);
    if (t)
        *t = (struct mx_jstr){.p = s, .len = len, .ascii = mx_jascii(s, len)};
    return t;
}

/* ---- Variable names ----------------------------------------------------------------------- */

static size_t hash_name(const char *s, size_t n)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 1099511628211u;
    return (size_t)(h ^ h >> 32);
}

static bool grow_names(struct parser *p)
{
    size_t size = p->names.slots ? 2 * (p->names.mask + 1) : 64;
    int *slots = alloc(p, size, sizeof *slots);
    if (!slots)
        return false;
    for (int id = 0; id < p->j->n_names; id++) {
        const struct mx_jstr *s = p->j->names[id];
        size_t k = hash_name(s->p, s->len) & (size - 1);
        while (slots[k])
            k = (k + 1) & (size - 1);
        slots[k] = id + 1;
    }
    p->names = (struct names){.slots = slots, .mask = size - 1};
    return true;
}

/* Id of a variable name, or -1 when out of memory. */
static int intern(struct parser *p, const char *s, size_t len)
{
    struct mx_jinja *j = p->j;
    if (!p->names.slots || 2 * (size_t)j->n_names > p->names.mask)
        if (!grow_names(p))
            return -1;
    size_t k = hash_name(s, len) & p->names.mask;
    for (; p->names.slots[k]; k = (k + 1) & p->names.mask) {
        const struct mx_jstr *t = j->names[p->names.slots[k] - 1];
        if (t->len == len && memcmp(t->p, s, len) == 0)
            return p->names.slots[k] - 1;
    }
    const struct mx_jstr **v = room(p, j->names, (size_t)j->n_names, sizeof *v);
    const struct mx_jstr *t = v ? text(p, s, len) : NULL;
    if (!t)
        return -1;
    j->names = v;
    j->names[j->n_names] = t;
    p->names.slots[k] = j->n_names + 1;
    return j->n_names++;
}

/* A NAME node for the current token; notes the special names a macro body mentions. */
static struct mx_jnode *name_node(struct parser *p)
{
    struct mx_jnode *n = node(p, MX_JN_NAME, p->cur.line);
    int id = n ? intern(p, p->cur.p, p->cur.len) : -1;
    if (id < 0)
        return NULL;
    n->u.name.id = id;
    n->u.name.name = p->j->names[id];
    if (p->macro) {
        p->macro->uses_caller |= id == p->j->id_caller;
        p->macro->uses_varargs |= id == p->j->id_varargs;
        p->macro->uses_kwargs |= id == p->j->id_kwargs;
    }
    return n;
}

static bool reserved(const struct parser *p)
{
    static const char *const names[] = {"true", "True", "false", "False", "none", "None"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (at_name(p, names[i]))
            return true;
    }
    return false;
}

/* ---- Primary expressions ------------------------------------------------------------------ */

static struct mx_jnode *expression(struct parser *p);
static struct mx_jnode *unary(struct parser *p, bool with_filter);
static struct mx_jnode *or_expr(struct parser *p);
static struct mx_jnode *postfix(struct parser *p, struct mx_jnode *n);

static struct mx_jnode *constant(struct parser *p, struct mx_jval v)
{
    struct mx_jnode *n = node(p, MX_JN_CONST, p->cur.line);
    if (n)
        n->u.value = v;
    return n && next(p) ? n : NULL;
}

static struct mx_jnode *name_or_constant(struct parser *p)
{
    if (at_name(p, "true") || at_name(p, "True"))
        return constant(p, mx_jbool(true));
    if (at_name(p, "false") || at_name(p, "False"))
        return constant(p, mx_jbool(false));
    if (at_name(p, "none") || at_name(p, "None"))
        return constant(p, mx_jnone());
    struct mx_jnode *n = name_node(p);
    return n && next(p) ? n : NULL;
}

/* Adjacent literals are one string. */
static struct mx_jnode *string(struct parser *p)
{
    int line = p->cur.line;
    const char *s = p->cur.p;
    size_t len = p->cur.len;
    if (!next(p))
        return NULL;
    size_t cap = 0;
    char *buf = NULL;
    while (at(p, MX_JT_STRING)) {
        if (!buf || len + p->cur.len > cap) {
            cap = 2 * (len + p->cur.len) + 16;
            char *grown = alloc(p, cap, 1);
            if (!grown)
                return NULL;
            memcpy(grown, s, len);
            s = buf = grown;
        }
        memcpy(buf + len, p->cur.p, p->cur.len);
        len += p->cur.len;
        if (!next(p))
            return NULL;
    }
    struct mx_jnode *n = node(p, MX_JN_CONST, line);
    const struct mx_jstr *t = n ? text(p, s, len) : NULL;
    if (!t)
        return NULL;
    n->u.value = mx_jstrval(t);
    return n;
}

/* Comma-separated expressions up to `close`, a trailing comma allowed. */
static bool list_items(struct parser *p, enum mx_jtok close, struct mx_jnodes *out, bool *comma)
{
    *comma = false;
    while (!at(p, close)) {
        if (out->n && !expect(p, MX_JT_COMMA))
            return false;
        *comma |= out->n > 0;
        if (at(p, close))
            break;
        if (!push(p, out, expression(p)))
            return false;
    }
    return expect(p, close);
}

static struct mx_jnode *parenthesis(struct parser *p)
{
    int line = p->cur.line;
    struct mx_jnodes items = {0};
    bool comma;
    if (!next(p) || !list_items(p, MX_JT_RPAREN, &items, &comma))
        return NULL;
    if (items.n == 1 && !comma)
        return items.v[0];
    struct mx_jnode *n = node(p, MX_JN_TUPLE, line);
    if (n)
        n->u.items = items;
    return n;
}

static struct mx_jnode *list_literal(struct parser *p)
{
    bool comma;
    struct mx_jnode *n = node(p, MX_JN_LIST, p->cur.line);
    return n && next(p) && list_items(p, MX_JT_RBRACKET, &n->u.items, &comma) ? n : NULL;
}

static struct mx_jnode *dict_literal(struct parser *p)
{
    struct mx_jnode *n = node(p, MX_JN_DICT, p->cur.line);
    if (!n || !next(p))
        return NULL;
    while (!at(p, MX_JT_RBRACE)) {
        if (n->u.items.n && !expect(p, MX_JT_COMMA))
            return NULL;
        if (at(p, MX_JT_RBRACE))
            break;
        if (!push(p, &n->u.items, expression(p)) || !expect(p, MX_JT_COLON) ||
            !push(p, &n->u.items, expression(p)))
            return NULL;
    }
    return expect(p, MX_JT_RBRACE) ? n : NULL;
}

static struct mx_jnode *primary(struct parser *p)
{
    switch (p->cur.type) {
    case MX_JT_NAME: return name_or_constant(p);
    case MX_JT_STRING: return string(p);
    case MX_JT_INT: return constant(p, mx_jint(p->cur.i));
    case MX_JT_FLOAT: return constant(p, mx_jfloat(p->cur.f));
    case MX_JT_LPAREN: return parenthesis(p);
    case MX_JT_LBRACKET: return list_literal(p);
    case MX_JT_LBRACE: return dict_literal(p);
    default: return unexpected(p, "an expression");
    }
}

/* ---- Calls, attributes, subscripts, filters, tests ---------------------------------------- */

static bool push_arg(struct parser *p, struct mx_jarglist *l, struct mx_jarg a)
{
    struct mx_jarg *v = a.e ? room(p, l->v, l->n, sizeof *v) : NULL;
    if (!v)
        return false;
    l->v = v;
    l->v[l->n++] = a;
    return true;
}

static bool argument(struct parser *p, struct mx_jarglist *out, enum mx_jargkind *last)
{
    struct mx_jarg a = {.kind = MX_JA_POS};
    if (at(p, MX_JT_MUL) || at(p, MX_JT_POW)) {
        a.kind = at(p, MX_JT_MUL) ? MX_JA_STAR : MX_JA_DSTAR;
        if (!next(p))
            return false;
    } else if (at(p, MX_JT_NAME) && look(p)->type == MX_JT_ASSIGN) {
        a.kind = MX_JA_KW;
        a.name = text(p, p->cur.p, p->cur.len);
        if (!a.name || !next(p) || !next(p))
            return false;
    }
    if (a.kind < *last && a.kind != MX_JA_KW) {
        fail(p, "positional argument follows keyword argument");
        return false;
    }
    *last = a.kind > *last ? a.kind : *last;
    a.e = expression(p);
    return push_arg(p, out, a);
}

/* From "(" through ")". */
static bool arguments(struct parser *p, struct mx_jarglist *out)
{
    enum mx_jargkind last = MX_JA_POS;
    if (!expect(p, MX_JT_LPAREN))
        return false;
    while (!at(p, MX_JT_RPAREN)) {
        if (out->n && !expect(p, MX_JT_COMMA))
            return false;
        if (at(p, MX_JT_RPAREN))
            break;
        if (!argument(p, out, &last))
            return false;
    }
    return expect(p, MX_JT_RPAREN);
}

static struct mx_jnode *call_suffix(struct parser *p, struct mx_jnode *callee)
{
    struct mx_jnode *n = node(p, MX_JN_CALL, p->cur.line);
    if (!n)
        return NULL;
    n->u.call.e = callee;
    return arguments(p, &n->u.call.args) ? n : NULL;
}

static struct mx_jnode *attribute(struct parser *p, struct mx_jnode *obj)
{
    int line = p->cur.line;
    if (!next(p))
        return NULL;
    if (at(p, MX_JT_INT)) {
        struct mx_jnode *key = constant(p, mx_jint(p->cur.i));
        return key ? items_node(p, MX_JN_INDEX, line, 2, obj, key) : NULL;
    }
    if (!at(p, MX_JT_NAME))
        return unexpected(p, "a name or number after '.'");
    struct mx_jnode *n = node(p, MX_JN_ATTR, line);
    const struct mx_jstr *name = n ? text(p, p->cur.p, p->cur.len) : NULL;
    if (!name || !next(p))
        return NULL;
    n->u.attr.e = obj;
    n->u.attr.name = name;
    return n;
}

static struct mx_jnode *slice_part(struct parser *p, bool *ok)
{
    if (at(p, MX_JT_COLON) || at(p, MX_JT_RBRACKET) || at(p, MX_JT_COMMA))
        return NULL;
    struct mx_jnode *e = expression(p);
    *ok = *ok && e;
    return e;
}

/* One subscript: an expression or start:stop:step. */
static struct mx_jnode *subscript_item(struct parser *p, struct mx_jnode *obj, int line,
                                       bool *is_slice)
{
    bool ok = true;
    struct mx_jnode *part[3] = {0};
    part[0] = slice_part(p, &ok);
    *is_slice = ok && at(p, MX_JT_COLON);
    if (!*is_slice)
        return ok ? (part[0] ? part[0] : unexpected(p, "a subscript")) : NULL;
    for (int i = 1; i < 3 && ok && at(p, MX_JT_COLON); i++) {
        ok = next(p);
        if (ok)
            part[i] = slice_part(p, &ok);
    }
    return ok ? items_node(p, MX_JN_SLICE, line, 4, obj, part[0], part[1], part[2]) : NULL;
}

static struct mx_jnode *subscript(struct parser *p, struct mx_jnode *obj)
{
    int line = p->cur.line;
    bool is_slice;
    if (!next(p))
        return NULL;
    struct mx_jnode *key = subscript_item(p, obj, line, &is_slice);
    if (!key)
        return NULL;
    if (is_slice)
        return expect(p, MX_JT_RBRACKET) ? key : NULL;
    if (at(p, MX_JT_COMMA)) {
        struct mx_jnode *t = items_node(p, MX_JN_TUPLE, line, 0);
        if (!t || !push(p, &t->u.items, key))
            return NULL;
        while (accept(p, MX_JT_COMMA)) {
            if (!push(p, &t->u.items, expression(p)))
                return NULL;
        }
        key = t;
    }
    return expect(p, MX_JT_RBRACKET) ? items_node(p, MX_JN_INDEX, line, 2, obj, key) : NULL;
}

/* name(.name)* of a filter or test. */
static const struct mx_jstr *dotted_name(struct parser *p, const char *what)
{
    if (!at(p, MX_JT_NAME))
        return unexpected(p, what);
    const char *from = p->cur.p;
    size_t len = p->cur.len;
    if (!next(p))
        return NULL;
    while (at(p, MX_JT_DOT)) {
        if (!next(p) || !at(p, MX_JT_NAME))
            return unexpected(p, what);
        len = (size_t)(p->cur.p - from) + p->cur.len;
        if (!next(p))
            return NULL;
    }
    return text(p, from, len);
}

/* After "|": one filter applied to `in` (NULL: the text of a block). */
static struct mx_jnode *filter(struct parser *p, struct mx_jnode *in)
{
    struct mx_jnode *n = node(p, MX_JN_FILTER, p->cur.line);
    const struct mx_jstr *name = n ? dotted_name(p, "a filter name") : NULL;
    if (!name)
        return NULL;
    n->u.call.e = in;
    n->u.call.name = name;
    n->u.call.filter = mx_jfind_filter(name);
    if (at(p, MX_JT_LPAREN) && !arguments(p, &n->u.call.args))
        return NULL;
    return n;
}

/* May the current token start the argument of a test written without parentheses? */
static bool starts_test_argument(const struct parser *p)
{
    switch (p->cur.type) {
    case MX_JT_NAME: return !at_name(p, "else") && !at_name(p, "or") && !at_name(p, "and");
    case MX_JT_STRING:
    case MX_JT_INT:
    case MX_JT_FLOAT:
    case MX_JT_LBRACKET:
    case MX_JT_LBRACE: return true;
    default: return false;
    }
}

/* After "is". */
static struct mx_jnode *test(struct parser *p, struct mx_jnode *in)
{
    struct mx_jnode *n = node(p, MX_JN_TEST, p->cur.line);
    if (!n)
        return NULL;
    n->u.call.negate = accept_name(p, "not");
    const struct mx_jstr *name = dotted_name(p, "a test name");
    if (!name)
        return NULL;
    n->u.call.e = in;
    n->u.call.name = name;
    n->u.call.test = mx_jfind_test(name);
    if (at(p, MX_JT_LPAREN))
        return arguments(p, &n->u.call.args) ? n : NULL;
    if (!starts_test_argument(p))
        return n;
    if (at_name(p, "is"))
        return fail(p, "tests cannot be chained with 'is'");
    struct mx_jarg a = {.kind = MX_JA_POS, .e = primary(p)};
    if (a.e)
        a.e = postfix(p, a.e);
    return push_arg(p, &n->u.call.args, a) ? n : NULL;
}

static struct mx_jnode *postfix(struct parser *p, struct mx_jnode *n)
{
    while (n) {
        if (at(p, MX_JT_DOT))
            n = attribute(p, n);
        else if (at(p, MX_JT_LBRACKET))
            n = subscript(p, n);
        else if (at(p, MX_JT_LPAREN))
            n = call_suffix(p, n);
        else
            return n;
    }
    return NULL;
}

static struct mx_jnode *filters_and_tests(struct parser *p, struct mx_jnode *n)
{
    while (n) {
        if (accept(p, MX_JT_PIPE))
            n = filter(p, n);
        else if (accept_name(p, "is"))
            n = test(p, n);
        else if (at(p, MX_JT_LPAREN))
            n = call_suffix(p, n);
        else
            return n;
    }
    return NULL;
}

/* ---- Operators ---------------------------------------------------------------------------- */

static struct mx_jnode *unary(struct parser *p, bool with_filter)
{
    if (!enter(p))
        return NULL;
    struct mx_jnode *n;
    int line = p->cur.line;
    if (at(p, MX_JT_SUB) || at(p, MX_JT_ADD)) {
        enum mx_jkind kind = at(p, MX_JT_SUB) ? MX_JN_NEG : MX_JN_POS;
        n = next(p) ? unary(p, false) : NULL;
        n = n ? items_node(p, kind, line, 1, n) : NULL;
    } else {
        n = primary(p);
    }
    n = n ? postfix(p, n) : NULL;
    if (n && with_filter)
        n = filters_and_tests(p, n);
    leave(p);
    return n;
}

struct level {
    enum mx_jtok tok;
    enum mx_jop op;
};

/* Grows `n` into a chain node of this kind by one more operator and operand. */
static struct mx_jnode *chain(struct parser *p, struct mx_jnode *n, enum mx_jkind kind, bool fresh,
                              enum mx_jop op, struct mx_jnode *e, int line)
{
    if (!e)
        return NULL;
    if (fresh) {
        struct mx_jnode *first = n;
        n = node(p, kind, line);
        if (!n)
            return NULL;
        n->u.chain.first = first;
    }
    struct mx_jterm *v = room(p, n->u.chain.terms, n->u.chain.n, sizeof *v);
    if (!v)
        return NULL;
    n->u.chain.terms = v;
    v[n->u.chain.n++] = (struct mx_jterm){.op = op, .e = e};
    return n;
}

static const struct level *find_level(const struct parser *p, const struct level *l, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (at(p, l[i].tok))
            return &l[i];
    }
    return NULL;
}

static struct mx_jnode *power(struct parser *p)
{
    struct mx_jnode *n = unary(p, true);
    for (bool fresh = true; n && at(p, MX_JT_POW); fresh = false) {
        int line = p->cur.line;
        n = chain(p, n, MX_JN_ARITH, fresh, MX_JOP_POW, next(p) ? unary(p, true) : NULL, line);
    }
    return n;
}

static struct mx_jnode *product(struct parser *p)
{
    static const struct level levels[] = {{MX_JT_MUL, MX_JOP_MUL},
                                          {MX_JT_DIV, MX_JOP_DIV},
                                          {MX_JT_FLOORDIV, MX_JOP_FLOORDIV},
                                          {MX_JT_MOD, MX_JOP_MOD}};
    struct mx_jnode *n = power(p);
    const struct level *l;
    for (bool fresh = true; n && (l = find_level(p, levels, 4)) != NULL; fresh = false) {
        int line = p->cur.line;
        n = chain(p, n, MX_JN_ARITH, fresh, l->op, next(p) ? power(p) : NULL, line);
    }
    return n;
}

static struct mx_jnode *concat(struct parser *p)
{
    struct mx_jnode *n = product(p);
    if (!n || !at(p, MX_JT_TILDE))
        return n;
    struct mx_jnode *all = node(p, MX_JN_CONCAT, p->cur.line);
    if (!all || !push(p, &all->u.items, n))
        return NULL;
    while (accept(p, MX_JT_TILDE)) {
        if (!push(p, &all->u.items, product(p)))
            return NULL;
    }
    return all;
}

static struct mx_jnode *sum(struct parser *p)
{
    static const struct level levels[] = {{MX_JT_ADD, MX_JOP_ADD}, {MX_JT_SUB, MX_JOP_SUB}};
    struct mx_jnode *n = concat(p);
    const struct level *l;
    for (bool fresh = true; n && (l = find_level(p, levels, 2)) != NULL; fresh = false) {
        int line = p->cur.line;
        n = chain(p, n, MX_JN_ARITH, fresh, l->op, next(p) ? concat(p) : NULL, line);
    }
    return n;
}

/* Recognises and takes a comparison operator. */
static bool comparison_op(struct parser *p, enum mx_jop *op)
{
    static const struct level levels[] = {{MX_JT_EQ, MX_JOP_EQ}, {MX_JT_NE, MX_JOP_NE},
                                          {MX_JT_LT, MX_JOP_LT}, {MX_JT_LE, MX_JOP_LE},
                                          {MX_JT_GT, MX_JOP_GT}, {MX_JT_GE, MX_JOP_GE}};
    const struct level *l = find_level(p, levels, 6);
    if (l) {
        *op = l->op;
    } else if (at_name(p, "in")) {
        *op = MX_JOP_IN;
    } else if (at_name(p, "not") && look(p)->type == MX_JT_NAME && look(p)->len == 2 &&
               memcmp(look(p)->p, "in", 2) == 0) {
        *op = MX_JOP_NOT_IN;
        next(p);
    } else {
        return false;
    }
    next(p); /* a lexer error shows at the operand */
    return true;
}

static struct mx_jnode *comparison(struct parser *p)
{
    struct mx_jnode *n = sum(p);
    enum mx_jop op;
    int line = p->cur.line;
    for (bool fresh = true; n && comparison_op(p, &op); fresh = false)
        n = chain(p, n, MX_JN_COMPARE, fresh, op, sum(p), line);
    return n;
}

static struct mx_jnode *not_expr(struct parser *p)
{
    if (!at_name(p, "not"))
        return comparison(p);
    int line = p->cur.line;
    if (!enter(p))
        return NULL;
    struct mx_jnode *n = next(p) ? not_expr(p) : NULL;
    leave(p);
    return n ? items_node(p, MX_JN_NOT, line, 1, n) : NULL;
}

static struct mx_jnode *logic(struct parser *p, const char *word, enum mx_jkind kind,
                              struct mx_jnode *(*operand)(struct parser *))
{
    struct mx_jnode *n = operand(p);
    if (!n || !at_name(p, word))
        return n;
    struct mx_jnode *all = node(p, kind, p->cur.line);
    if (!all || !push(p, &all->u.items, n))
        return NULL;
    while (accept_name(p, word)) {
        if (!push(p, &all->u.items, operand(p)))
            return NULL;
    }
    return all;
}

static struct mx_jnode *and_expr(struct parser *p)
{
    return logic(p, "and", MX_JN_AND, not_expr);
}

static struct mx_jnode *or_expr(struct parser *p)
{
    return logic(p, "or", MX_JN_OR, and_expr);
}

static struct mx_jnode *conditional(struct parser *p)
{
    struct mx_jnode *n = or_expr(p);
    while (n && at_name(p, "if")) {
        int line = p->cur.line;
        struct mx_jnode *cond = next(p) ? or_expr(p) : NULL, *otherwise = NULL;
        if (!cond)
            return NULL;
        if (accept_name(p, "else") && !(otherwise = expression(p)))
            return NULL;
        n = items_node(p, MX_JN_COND, line, 3, cond, n, otherwise);
    }
    return n;
}

static struct mx_jnode *expression(struct parser *p)
{
    if (!enter(p))
        return NULL;
    struct mx_jnode *n = conditional(p);
    leave(p);
    return n;
}

/* An expression or a tuple without parentheses. `conditional_allowed` is false where `if` has
 * another meaning (for ... in x if y). */
static struct mx_jnode *tuple(struct parser *p, bool conditional_allowed, const char *stop)
{
    int line = p->cur.line;
    struct mx_jnode *n = conditional_allowed ? expression(p) : or_expr(p);
    if (!n || !at(p, MX_JT_COMMA))
        return n;
    struct mx_jnode *all = node(p, MX_JN_TUPLE, line);
    if (!all || !push(p, &all->u.items, n))
        return NULL;
    while (accept(p, MX_JT_COMMA)) {
        if (at(p, MX_JT_VAR_END) || at(p, MX_JT_BLOCK_END) || (stop && at_name(p, stop)))
            break;
        if (!push(p, &all->u.items, conditional_allowed ? expression(p) : or_expr(p)))
            return NULL;
    }
    return all;
}

/* ---- Assignment targets ------------------------------------------------------------------- */

static struct mx_jnode *target_item(struct parser *p, bool with_namespace);

static struct mx_jnode *target_list(struct parser *p, bool with_namespace)
{
    int line = p->cur.line;
    struct mx_jnode *n = target_item(p, with_namespace);
    if (!n || !at(p, MX_JT_COMMA))
        return n;
    struct mx_jnode *all = node(p, MX_JN_TUPLE, line);
    if (!all || !push(p, &all->u.items, n))
        return NULL;
    while (accept(p, MX_JT_COMMA)) {
        if (!at(p, MX_JT_NAME) && !at(p, MX_JT_LPAREN))
            break;
        if (at_name(p, "in") || !push(p, &all->u.items, target_item(p, with_namespace)))
            break;
    }
    return at(p, MX_JT_ERROR) ? NULL : all;
}

static struct mx_jnode *namespace_ref(struct parser *p, const struct mx_jnode *name)
{
    struct mx_jnode *n = node(p, MX_JN_NSREF, name->line);
    if (!n || !next(p))
        return NULL;
    if (!at(p, MX_JT_NAME))
        return unexpected(p, "an attribute name");
    n->u.nsref.id = name->u.name.id;
    n->u.nsref.name = name->u.name.name;
    n->u.nsref.attr = text(p, p->cur.p, p->cur.len);
    return n->u.nsref.attr && next(p) ? n : NULL;
}

static struct mx_jnode *target_item(struct parser *p, bool with_namespace)
{
    if (at(p, MX_JT_LPAREN)) {
        if (!enter(p))
            return NULL;
        struct mx_jnode *n = next(p) ? target_list(p, with_namespace) : NULL;
        leave(p);
        return n && expect(p, MX_JT_RPAREN) ? n : NULL;
    }
    if (!at(p, MX_JT_NAME))
        return unexpected(p, "a variable to assign to");
    if (reserved(p))
        return fail(p, "cannot assign to '%.*s'", (int)p->cur.len, p->cur.p);
    struct mx_jnode *n = name_node(p);
    if (!n || !next(p))
        return NULL;
    return with_namespace && at(p, MX_JT_DOT) ? namespace_ref(p, n) : n;
}

/* ---- Statements --------------------------------------------------------------------------- */

static bool body(struct parser *p, const char *const *ends, struct mx_jnodes *out);

/* A body up to one of `ends`, the end tag's name and its "%}". */
static bool body_to(struct parser *p, const char *end, struct mx_jnodes *out)
{
    const char *const ends[] = {end, NULL};
    return body(p, ends, out) && next(p) && expect(p, MX_JT_BLOCK_END);
}

static struct mx_jnode *if_branch(struct parser *p, bool has_cond)
{
    struct mx_jnode *n = node(p, MX_JN_IF, p->cur.line);
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    if (!n)
        return NULL;
    if (has_cond && !(n->u.branch.cond = tuple(p, false, NULL)))
        return NULL;
    if (!expect(p, MX_JT_BLOCK_END) || !body(p, has_cond ? ends : ends + 2, &n->u.branch.body))
        return NULL;
    return n;
}

static struct mx_jnode *parse_if(struct parser *p)
{
    struct mx_jnode *first = if_branch(p, true), *last = first;
    while (last && !at_name(p, "endif")) {
        bool has_cond = at_name(p, "elif");
        last->u.branch.next = next(p) ? if_branch(p, has_cond) : NULL;
        last = last->u.branch.next;
    }
    return last && next(p) && expect(p, MX_JT_BLOCK_END) ? first : NULL;
}

static bool mentions_loop(const struct parser *p, const struct mx_jnode *target)
{
    if (target->kind == MX_JN_NAME)
        return target->u.name.id == p->j->id_loop;
    for (size_t i = 0; target->kind == MX_JN_TUPLE && i < target->u.items.n; i++) {
        if (mentions_loop(p, target->u.items.v[i]))
            return true;
    }
    return false;
}

static bool for_bodies(struct parser *p, struct mx_jnode *n)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    p->loops++;
    bool ok = body(p, ends, &n->u.loop.body);
    p->loops--;
    if (!ok)
        return false;
    if (at_name(p, "else"))
        return next(p) && expect(p, MX_JT_BLOCK_END) && body_to(p, "endfor", &n->u.loop.otherwise);
    return next(p) && expect(p, MX_JT_BLOCK_END);
}

static struct mx_jnode *parse_for(struct parser *p)
{
    struct mx_jnode *n = node(p, MX_JN_FOR, p->cur.line);
    if (!n || !(n->u.loop.target = target_list(p, false)))
        return NULL;
    if (mentions_loop(p, n->u.loop.target))
        return fail(p, "cannot assign to the special variable 'loop'");
    if (!expect_name(p, "in") || !(n->u.loop.iter = tuple(p, false, "recursive")))
        return NULL;
    if (accept_name(p, "if") && !(n->u.loop.filter = expression(p)))
        return NULL;
    n->u.loop.recursive = accept_name(p, "recursive");
    return expect(p, MX_JT_BLOCK_END) && for_bodies(p, n) ? n : NULL;
}

/* Filters after a set or filter tag, applied to the block's text. */
static struct mx_jnode *block_filters(struct parser *p, struct mx_jnode *n)
{
    while (accept(p, MX_JT_PIPE)) {
        if (!(n = filter(p, n)))
            return NULL;
    }
    return n;
}

static struct mx_jnode *parse_set(struct parser *p)
{
    struct mx_jnode *n = node(p, MX_JN_SET, p->cur.line);
    if (!n || !(n->u.set.target = target_list(p, true)))
        return NULL;
    if (accept(p, MX_JT_ASSIGN)) {
        n->u.set.value = tuple(p, true, NULL);
        return n->u.set.value && expect(p, MX_JT_BLOCK_END) ? n : NULL;
    }
    n->kind = MX_JN_SET_BLOCK;
    if (at(p, MX_JT_PIPE) && !(n->u.set.value = block_filters(p, NULL)))
        return NULL;
    return expect(p, MX_JT_BLOCK_END) && body_to(p, "endset", &n->u.set.body) ? n : NULL;
}

/* From "(" through ")": the parameters of a macro or call block. */
static bool parameters(struct parser *p, struct mx_jparams *out)
{
    if (!expect(p, MX_JT_LPAREN))
        return false;
    bool optional = false;
    while (!at(p, MX_JT_RPAREN)) {
        if (out->n && !expect(p, MX_JT_COMMA))
            return false;
        if (at(p, MX_JT_RPAREN))
            break;
        struct mx_jnode **names = room(p, out->names, out->n, sizeof *names);
        struct mx_jnode **defaults = room(p, out->defaults, out->n, sizeof *defaults);
        if (!names || !defaults)
            return false;
        out->names = names;
        out->defaults = defaults;
        names[out->n] = at(p, MX_JT_NAME) ? target_item(p, false) : unexpected(p, "a parameter");
        if (!names[out->n])
            return false;
        defaults[out->n] = NULL;
        if (accept(p, MX_JT_ASSIGN)) {
            optional = true;
            if (!(defaults[out->n] = expression(p)))
                return false;
        } else if (names[out->n]->u.name.id == p->j->id_caller) {
            fail(p, "the parameter 'caller' needs a default");
            return false;
        } else if (optional) {
            fail(p, "parameter without a default follows one with a default");
            return false;
        }
        out->n++;
    }
    return expect(p, MX_JT_RPAREN);
}

/* Body of a macro or call block; names the body mentions are noted in n->u.macro. */
static bool macro_body(struct parser *p, struct mx_jnode *n, const char *end)
{
    struct mx_jmacrodef *outer = p->macro;
    int loops = p->loops;
    p->macro = &n->u.macro;
    p->loops = 0;
    bool ok = expect(p, MX_JT_BLOCK_END) && body_to(p, end, &n->u.macro.body);
    p->loops = loops;
    p->macro = outer;
    if (outer) { /* a name used by an inner macro counts for the outer one as well */
        outer->uses_caller |= n->u.macro.uses_caller;
        outer->uses_varargs |= n->u.macro.uses_varargs;
        outer->uses_kwargs |= n->u.macro.uses_kwargs;
    }
    return ok;
}

static struct mx_jnode *parse_macro(struct parser *p)
{
    struct mx_jnode *n = node(p, MX_JN_MACRO, p->cur.line);
    struct mx_jnode *name = n ? target_item(p, false) : NULL;
    if (!name)
        return NULL;
    if (name->kind != MX_JN_NAME)
        return fail(p, "expected the macro's name");
    n->u.macro.name = name->u.name.name;
    n->u.macro.id = name->u.name.id;
    return parameters(p, &n->u.macro.params) && macro_body(p, n, "endmacro") ? n : NULL;
}

static struct mx_jnode *parse_call(struct parser *p)
{
    struct mx_jnode *n = node(p, MX_JN_CALL_BLOCK, p->cur.line);
    struct mx_jnode *m = n ? node(p, MX_JN_MACRO, p->cur.line) : NULL;
    if (!m || (at(p, MX_JT_LPAREN) && !parameters(p, &m->u.macro.params)))
        return NULL;
    n->u.block.call = expression(p);
    n->u.block.macro = m;
    if (!n->u.block.call)
        return NULL;
    if (n->u.block.call->kind != MX_JN_CALL)
        return fail(p, "expected a call in a call block");
    return macro_body(p, m, "endcall") ? n : NULL;
}

static struct mx_jnode *parse_filter(struct parser *p)
{
    struct mx_jnode *n = node(p, MX_JN_FILTER_BLOCK, p->cur.line);
    if (!n || !(n->u.block.call = filter(p, NULL)) ||
        !(n->u.block.call = block_filters(p, n->u.block.call)))
        return NULL;
    return expect(p, MX_JT_BLOCK_END) && body_to(p, "endfilter", &n->u.block.body) ? n : NULL;
}

static struct mx_jnode *parse_with(struct parser *p)
{
    struct mx_jnode *n = node(p, MX_JN_WITH, p->cur.line);
    if (!n)
        return NULL;
    for (size_t i = 0; !at(p, MX_JT_BLOCK_END); i++) {
        if (i && !expect(p, MX_JT_COMMA))
            return NULL;
        struct mx_jnode **targets = room(p, n->u.with.targets, i, sizeof *targets);
        struct mx_jnode **values = room(p, n->u.with.values, i, sizeof *values);
        if (!targets || !values)
            return NULL;
        n->u.with.targets = targets;
        n->u.with.values = values;
        if (!(targets[i] = target_item(p, false)) || !expect(p, MX_JT_ASSIGN) ||
            !(values[i] = expression(p)))
            return NULL;
        n->u.with.n = i + 1;
    }
    return expect(p, MX_JT_BLOCK_END) && body_to(p, "endwith", &n->u.with.body) ? n : NULL;
}

static struct mx_jnode *parse_generation(struct parser *p)
{
    struct mx_jnode *n = node(p, MX_JN_GROUP, p->cur.line);
    return n && expect(p, MX_JT_BLOCK_END) && body_to(p, "endgeneration", &n->u.items) ? n : NULL;
}

static struct mx_jnode *parse_print(struct parser *p)
{
    struct mx_jnode *n = node(p, MX_JN_OUTPUT, p->cur.line);
    if (!n)
        return NULL;
    while (!at(p, MX_JT_BLOCK_END)) {
        if ((n->u.items.n && !expect(p, MX_JT_COMMA)) || !push(p, &n->u.items, expression(p)))
            return NULL;
    }
    return expect(p, MX_JT_BLOCK_END) ? n : NULL;
}

static struct mx_jnode *jump(struct parser *p, enum mx_jkind kind, const char *what)
{
    if (p->loops == 0)
        return fail(p, "'%s' outside a loop", what);
    struct mx_jnode *n = node(p, kind, p->cur.line);
    return n && expect(p, MX_JT_BLOCK_END) ? n : NULL;
}

static struct mx_jnode *parse_break(struct parser *p)
{
    return jump(p, MX_JN_BREAK, "break");
}

static struct mx_jnode *parse_continue(struct parser *p)
{
    return jump(p, MX_JN_CONTINUE, "continue");
}

static struct mx_jnode *no_such_statement(struct parser *p, const char *name, int n)
{
    static const char *const composing[] = {"include", "import", "from", "extends", "block"};
    for (size_t i = 0; i < sizeof composing / sizeof *composing; i++) {
        if ((int)strlen(composing[i]) == n && memcmp(composing[i], name, (size_t)n) == 0)
            return fail(p, "'%s' is not supported: a chat template is one self-contained file",
                        composing[i]);
    }
    return fail(p, "unknown tag '%.*s'", n > 40 ? 40 : n, name);
}

/* After "{%". */
static struct mx_jnode *statement(struct parser *p)
{
    static const struct {
        const char *name;
        struct mx_jnode *(*parse)(struct parser *);
    } table[] = {
        {"if", parse_if},
        {"for", parse_for},
        {"set", parse_set},
        {"macro", parse_macro},
        {"call", parse_call},
        {"filter", parse_filter},
        {"with", parse_with},
        {"generation", parse_generation},
        {"print", parse_print},
        {"break", parse_break},
        {"continue", parse_continue},
    };
    if (!at(p, MX_JT_NAME))
        return unexpected(p, "a tag name");
    struct mx_jtoken name = p->cur;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (at_name(p, table[i].name))
            return next(p) ? table[i].parse(p) : NULL;
    }
    return no_such_statement(p, name.p, (int)(name.len > 100 ? 100 : name.len));
}

static struct mx_jnode *data(struct parser *p)
{
    struct mx_jnode *n = node(p, MX_JN_DATA, p->cur.line);
    if (n) {
        n->u.data.p = p->cur.p;
        n->u.data.len = p->cur.len;
    }
    return n && next(p) ? n : NULL;
}

static struct mx_jnode *variable(struct parser *p)
{
    struct mx_jnode *n = node(p, MX_JN_OUTPUT, p->cur.line);
    if (!n || !next(p) || !push(p, &n->u.items, tuple(p, true, NULL)))
        return NULL;
    return expect(p, MX_JT_VAR_END) ? n : NULL;
}

static bool at_end_tag(const struct parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++) {
        if (at_name(p, *ends))
            return true;
    }
    return false;
}

static bool unclosed(struct parser *p, const char *const *ends)
{
    const char *last = *ends;
    while (*ends)
        last = *ends++;
    fail(p, "the template ends before '{%% %s %%}'", last);
    return false;
}

static bool body_item(struct parser *p, const char *const *ends, struct mx_jnodes *out, bool *done)
{
    switch (p->cur.type) {
    case MX_JT_DATA: return push(p, out, data(p));
    case MX_JT_VAR_BEGIN: return push(p, out, variable(p));
    case MX_JT_BLOCK_BEGIN:
        if (!next(p))
            return false;
        *done = at_end_tag(p, ends);
        return *done || push(p, out, statement(p));
    case MX_JT_EOF: *done = true; return !ends || unclosed(p, ends);
    default: return false;
    }
}

/* Statements up to one of the end tags; its name is then the current token. `ends` NULL: up to the
 * end of the template. */
static bool body(struct parser *p, const char *const *ends, struct mx_jnodes *out)
{
    if (!enter(p))
        return false;
    bool ok = true, done = false;
    while (ok && !done)
        ok = body_item(p, ends, out, &done);
    leave(p);
    return ok;
}

bool mx_jparse(struct mx_jinja *j, mtplx_error *err)
{
    struct parser p = {.j = j, .arena = &j->arena, .err = err};
    mx_jlex_init(&p.lex, j, &j->arena, err);
    j->id_loop = intern(&p, "loop", 4);
    j->id_caller = intern(&p, "caller", 6);
    j->id_varargs = intern(&p, "varargs", 7);
    j->id_kwargs = intern(&p, "kwargs", 6);
    if (j->id_kwargs < 0 || !next(&p))
        return false;
    return body(&p, NULL, &j->body);
}
