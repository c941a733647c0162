/* Jinja expressions: evaluation of the tree, argument binding, calls.
 *
 * Every nested evaluation passes mx_jenter() and pays one step. */
#include "text/jinja_int.h"

#include <string.h>

/* ---- Variables ---------------------------------------------------------------------------- */

struct mx_jval mx_jlookup(struct mx_jrun *r, struct mx_jscope *sc, int id)
{
    for (; sc; sc = sc->up) {
        for (size_t i = sc->n; i-- > 0;) {
            if (sc->v[i].id == id)
                return sc->v[i].v;
        }
        r->steps += sc->n / 8;
    }
    return r->globals[id];
}

static void eval_name(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n,
                      struct mx_jval *out)
{
    *out = mx_jlookup(r, sc, n->u.name.id);
    if (out->type == MX_J_MISSING)
        *out = mx_jundef(MX_JU_NAME, 0, n->u.name.name);
}

/* ---- Literals and operators --------------------------------------------------------------- */

static bool eval_items(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n,
                       struct mx_jval *out)
{
    struct mx_jlist *l = mx_jlist_new(r, n->u.items.n);
    if (!l)
        return false;
    for (; l->n < n->u.items.n; l->n++) {
        if (!mx_jeval(r, sc, n->u.items.v[l->n], &l->v[l->n]))
            return false;
    }
    *out = mx_jlistval(n->kind == MX_JN_LIST ? MX_J_LIST : MX_J_TUPLE, l);
    return true;
}

static bool eval_dict(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n,
                      struct mx_jval *out)
{
    struct mx_jdict *d = mx_jdict_new(r, n->u.items.n / 2);
    if (!d)
        return false;
    for (size_t i = 0; i < n->u.items.n; i += 2) {
        struct mx_jval key, value;
        if (!mx_jeval(r, sc, n->u.items.v[i], &key) ||
            !mx_jeval(r, sc, n->u.items.v[i + 1], &value))
            return false;
        r->line = n->line;
        if (!mx_jdict_set(r, d, &key, &value))
            return false;
    }
    *out = (struct mx_jval){.type = MX_J_DICT, .u.d = d};
    return true;
}

static bool eval_arith(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n,
                       struct mx_jval *out)
{
    struct mx_jval acc, b;
    if (!mx_jeval(r, sc, n->u.chain.first, &acc))
        return false;
    for (size_t i = 0; i < n->u.chain.n; i++) {
        if (!mx_jeval(r, sc, n->u.chain.terms[i].e, &b))
            return false;
        r->line = n->u.chain.terms[i].e->line;
        struct mx_jval res;
        if (!mx_jarith(r, n->u.chain.terms[i].op, &acc, &b, &res))
            return false;
        acc = res;
    }
    *out = acc;
    return true;
}

static bool eval_compare(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n,
                         struct mx_jval *out)
{
    struct mx_jval a, b;
    bool holds = true;
    if (!mx_jeval(r, sc, n->u.chain.first, &a))
        return false;
    for (size_t i = 0; i < n->u.chain.n && holds; i++) {
        if (!mx_jeval(r, sc, n->u.chain.terms[i].e, &b))
            return false;
        r->line = n->line;
        if (!mx_jrelation(r, n->u.chain.terms[i].op, &a, &b, &holds))
            return false;
        a = b;
    }
    *out = mx_jbool(holds);
    return true;
}

static bool eval_concat(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n,
                        struct mx_jval *out)
{
    struct mx_jout o = {0};
    for (size_t i = 0; i < n->u.items.n; i++) {
        struct mx_jval v;
        if (!mx_jeval(r, sc, n->u.items.v[i], &v) || !mx_jprint(r, &o, &v))
            return false;
    }
    return mx_jout_str(r, &o, out);
}

/* and / or yield the operand that decided. */
static bool eval_logic(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n,
                       struct mx_jval *out)
{
    bool stop_at = n->kind == MX_JN_OR;
    for (size_t i = 0; i < n->u.items.n; i++) {
        if (!mx_jeval(r, sc, n->u.items.v[i], out))
            return false;
        if (mx_jtruth(out) == stop_at)
            return true;
    }
    return true;
}

static bool eval_cond(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n,
                      struct mx_jval *out)
{
    struct mx_jval cond;
    if (!mx_jeval(r, sc, n->u.items.v[0], &cond))
        return false;
    const struct mx_jnode *chosen = n->u.items.v[mx_jtruth(&cond) ? 1 : 2];
    if (chosen)
        return mx_jeval(r, sc, chosen, out);
    *out = mx_jundef(MX_JU_NO_ELSE, 0, NULL);
    return true;
}

static bool eval_unary(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n,
                       struct mx_jval *out)
{
    struct mx_jval v;
    if (!mx_jeval(r, sc, n->u.items.v[0], &v))
        return false;
    r->line = n->line;
    if (n->kind != MX_JN_NOT)
        return mx_jnegate(r, &v, n->kind == MX_JN_NEG, out);
    *out = mx_jbool(!mx_jtruth(&v));
    return true;
}

/* ---- Access ------------------------------------------------------------------------------- */

static bool eval_attr(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n,
                      struct mx_jval *out)
{
    struct mx_jval obj;
    if (!mx_jeval(r, sc, n->u.attr.e, &obj))
        return false;
    r->line = n->line;
    return mx_jgetattr(r, &obj, n->u.attr.name, out);
}

static bool eval_index(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n,
                       struct mx_jval *out)
{
    struct mx_jval obj, key;
    if (!mx_jeval(r, sc, n->u.items.v[0], &obj) || !mx_jeval(r, sc, n->u.items.v[1], &key))
        return false;
    r->line = n->line;
    return mx_jgetitem(r, &obj, &key, out);
}

static bool eval_slice(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n,
                       struct mx_jval *out)
{
    struct mx_jval obj, part[3];
    if (!mx_jeval(r, sc, n->u.items.v[0], &obj))
        return false;
    for (int i = 0; i < 3; i++) {
        part[i] = mx_jnone();
        if (n->u.items.v[i + 1] && !mx_jeval(r, sc, n->u.items.v[i + 1], &part[i]))
            return false;
    }
    r->line = n->line;
    return mx_jslice(r, &obj, part, out);
}

/* ---- Arguments and calls ------------------------------------------------------------------ */

struct argbuf {
    struct mx_jval *pos;
    struct mx_jkw *kw;
    size_t npos, nkw, cap_pos, cap_kw;
};

static bool push_pos(struct mx_jrun *r, struct argbuf *b, const struct mx_jval *v)
{
    if (b->npos == b->cap_pos) {
        size_t cap = b->cap_pos ? 2 * b->cap_pos : 4;
        struct mx_jval *grown = mx_jalloc(r, cap, sizeof *grown);
        if (!grown)
            return false;
        if (b->npos)
            memcpy(grown, b->pos, b->npos * sizeof *grown);
        b->pos = grown;
        b->cap_pos = cap;
    }
    b->pos[b->npos++] = *v;
    return true;
}

static bool push_kw(struct mx_jrun *r, struct argbuf *b, const struct mx_jstr *name,
                    const struct mx_jval *v)
{
    if (b->nkw == b->cap_kw) {
        size_t cap = b->cap_kw ? 2 * b->cap_kw : 4;
        struct mx_jkw *grown = mx_jalloc(r, cap, sizeof *grown);
        if (!grown)
            return false;
        if (b->nkw)
            memcpy(grown, b->kw, b->nkw * sizeof *grown);
        b->kw = grown;
        b->cap_kw = cap;
    }
    b->kw[b->nkw++] = (struct mx_jkw){.name = name, .v = *v};
    return true;
}

static bool push_star(struct mx_jrun *r, struct argbuf *b, const struct mx_jval *v)
{
    const struct mx_jval *items;
    size_t n;
    if (!mx_jiterate(r, v, &items, &n))
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!push_pos(r, b, &items[i]))
            return false;
    }
    return true;
}

static bool push_double_star(struct mx_jrun *r, struct argbuf *b, const struct mx_jval *v)
{
    if (v->type != MX_J_DICT)
        return mx_jfail(r, "argument after ** must be a mapping, not %s", mx_jtype_name(v));
    for (size_t i = 0; i < v->u.d->n; i++) {
        const struct mx_jentry *e = &v->u.d->v[i];
        if (e->key.type != MX_J_STR)
            return mx_jfail(r, "keywords must be strings");
        if (!push_kw(r, b, e->key.u.s, &e->value))
            return false;
    }
    return true;
}

bool mx_jeval_args(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jarglist *l,
                   struct mx_jargs *out)
{
    struct argbuf b = {0};
    *out = (struct mx_jargs){0};
    for (size_t i = 0; i < l->n; i++) {
        struct mx_jval v;
        if (!mx_jeval(r, sc, l->v[i].e, &v))
            return false;
        bool ok = true;
        switch (l->v[i].kind) {
        case MX_JA_POS: ok = push_pos(r, &b, &v); break;
        case MX_JA_KW: ok = push_kw(r, &b, l->v[i].name, &v); break;
        case MX_JA_STAR: ok = push_star(r, &b, &v); break;
        case MX_JA_DSTAR: ok = push_double_star(r, &b, &v); break;
        }
        if (!ok)
            return false;
    }
    *out = (struct mx_jargs){.pos = b.pos, .npos = b.npos, .kw = b.kw, .nkw = b.nkw};
    return true;
}

bool mx_japply_filter(struct mx_jrun *r, const struct mx_jdef *def, const struct mx_jval *v,
                      const struct mx_jargs *a, struct mx_jval *out)
{
    if (!def->fn(r, v, a, out))
        return false;
    if (!def->keeps_safe || v->type != MX_J_STR || !v->u.s->safe || out->type != MX_J_STR)
        return true;
    return mx_jstr_mark_safe(r, out);
}

static bool call_joiner(struct mx_jrun *r, struct mx_jjoiner *j, struct mx_jval *out)
{
    bool first = !j->used;
    j->used = true;
    if (!first) {
        *out = j->sep;
        return true;
    }
    return mx_jstr_view(r, "", 0, out);
}

bool mx_jcall(struct mx_jrun *r, const struct mx_jval *callee, const struct mx_jargs *a,
              struct mx_jval *out)
{
    switch (callee->type) {
    case MX_J_FUNC: return callee->u.func->fn(r, NULL, a, out);
    case MX_J_BOUND:
        return mx_japply_filter(r, callee->u.bound->def, &callee->u.bound->self, a, out);
    case MX_J_MACRO: return mx_jcall_macro(r, callee->u.macro, a, out);
    case MX_J_LOOP: return mx_jcall_loop(r, callee->u.loop, a, out);
    case MX_J_JOINER: return call_joiner(r, callee->u.joiner, out);
    case MX_J_UNDEF: return mx_jfail_undef(r, callee);
    default: return mx_jfail(r, "'%s' object is not callable", mx_jtype_name(callee));
    }
}

static bool eval_call(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n,
                      struct mx_jval *out)
{
    struct mx_jval callee;
    struct mx_jargs a;
    if (!mx_jeval(r, sc, n->u.call.e, &callee) || !mx_jeval_args(r, sc, &n->u.call.args, &a))
        return false;
    r->line = n->line;
    return mx_jcall(r, &callee, &a, out);
}

bool mx_jeval_filter(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n,
                     const struct mx_jval *in, struct mx_jval *out)
{
    struct mx_jval v;
    struct mx_jargs a;
    if (!mx_jenter(r))
        return false;
    /* A filter chain on a block ends in a filter without an operand: it gets the text. */
    bool ok = true;
    if (!n->u.call.e)
        v = *in;
    else if (in && n->u.call.e->kind == MX_JN_FILTER)
        ok = mx_jeval_filter(r, sc, n->u.call.e, in, &v);
    else
        ok = mx_jeval(r, sc, n->u.call.e, &v);
    ok = ok && mx_jeval_args(r, sc, &n->u.call.args, &a);
    mx_jleave(r);
    if (!ok)
        return false;
    r->line = n->line;
    if (!n->u.call.filter)
        return mx_jfail(r, "no filter named '%.*s'",
                        (int)(n->u.call.name->len > 60 ? 60 : n->u.call.name->len),
                        n->u.call.name->p);
    return mx_japply_filter(r, n->u.call.filter, &v, &a, out);
}

static bool eval_test(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n,
                      struct mx_jval *out)
{
    struct mx_jval v;
    struct mx_jargs a;
    bool res = false;
    if (!mx_jeval(r, sc, n->u.call.e, &v) || !mx_jeval_args(r, sc, &n->u.call.args, &a))
        return false;
    r->line = n->line;
    if (!n->u.call.test)
        return mx_jfail(r, "no test named '%.*s'",
                        (int)(n->u.call.name->len > 60 ? 60 : n->u.call.name->len),
                        n->u.call.name->p);
    if (!n->u.call.test->fn(r, &v, &a, &res))
        return false;
    *out = mx_jbool(res != n->u.call.negate);
    return true;
}

/* ---- Dispatch ----------------------------------------------------------------------------- */

static bool eval_nested(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n,
                        struct mx_jval *out)
{
    switch (n->kind) {
    case MX_JN_LIST:
    case MX_JN_TUPLE: return eval_items(r, sc, n, out);
    case MX_JN_DICT: return eval_dict(r, sc, n, out);
    case MX_JN_NOT:
    case MX_JN_NEG:
    case MX_JN_POS: return eval_unary(r, sc, n, out);
    case MX_JN_ARITH: return eval_arith(r, sc, n, out);
    case MX_JN_COMPARE: return eval_compare(r, sc, n, out);
    case MX_JN_CONCAT: return eval_concat(r, sc, n, out);
    case MX_JN_AND:
    case MX_JN_OR: return eval_logic(r, sc, n, out);
    case MX_JN_COND: return eval_cond(r, sc, n, out);
    case MX_JN_ATTR: return eval_attr(r, sc, n, out);
    case MX_JN_INDEX: return eval_index(r, sc, n, out);
    case MX_JN_SLICE: return eval_slice(r, sc, n, out);
    case MX_JN_CALL: return eval_call(r, sc, n, out);
    case MX_JN_FILTER: return mx_jeval_filter(r, sc, n, NULL, out);
    case MX_JN_TEST: return eval_test(r, sc, n, out);
    default: return mx_jfail(r, "not an expression");
    }
}

bool mx_jeval(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n,
              struct mx_jval *out)
{
    r->line = n->line;
    if (!mx_jstep(r, 1))
        return false;
    if (n->kind == MX_JN_CONST) {
        *out = n->u.value;
        return true;
    }
    if (n->kind == MX_JN_NAME) {
        eval_name(r, sc, n, out);
        return true;
    }
    if (!mx_jenter(r))
        return false;
    bool ok = eval_nested(r, sc, n, out);
    mx_jleave(r);
    return ok;
}
