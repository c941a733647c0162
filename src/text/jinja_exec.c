/* Jinja statements: scopes, loops, macros, blocks, and the public parse and render functions.
 *
 * Scoping as in jinja2: the template's top level and `if` share one scope; each round of a loop,
 * each macro call and each with, set, filter, call and generation block has its own, whose
 * assignments end with it. Macros see the scope they were defined in, as it is when they run. */
#include "base/utf8.h"
#include "text/jinja_int.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum flow { FLOW_ERROR, FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

static enum flow exec_body(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnodes *body);

static enum flow flow(bool ok)
{
    return ok ? FLOW_NEXT : FLOW_ERROR;
}

/* ---- Scopes and assignment ---------------------------------------------------------------- */

/* In the arena, because macros defined inside may outlive the block. */
static struct mx_jscope *new_scope(struct mx_jrun *r, struct mx_jscope *up)
{
    struct mx_jscope *sc = mx_jalloc(r, 1, sizeof *sc);
    if (sc)
        sc->up = up;
    return sc;
}

static bool set_var(struct mx_jrun *r, struct mx_jscope *sc, int id, const struct mx_jval *v)
{
    if (!sc) {
        r->globals[id] = *v;
        return true;
    }
    for (size_t i = 0; i < sc->n; i++) {
        if (sc->v[i].id == id) {
            sc->v[i].v = *v;
            return true;
        }
    }
    if (sc->n == sc->cap) {
        size_t cap = sc->cap ? 2 * sc->cap : 4;
        struct mx_jvar *grown = mx_jalloc(r, cap, sizeof *grown);
        if (!grown)
            return false;
        if (sc->n)
            memcpy(grown, sc->v, sc->n * sizeof *grown);
        sc->v = grown;
        sc->cap = cap;
    }
    sc->v[sc->n++] = (struct mx_jvar){.id = id, .v = *v};
    return mx_jstep(r, sc->n / 8);
}

static bool set_attr(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *target,
                     const struct mx_jval *v)
{
    struct mx_jval ns = mx_jlookup(r, sc, target->u.nsref.id);
    struct mx_jval key = mx_jstrval(target->u.nsref.attr);
    r->line = target->line;
    if (ns.type != MX_J_NAMESPACE)
        return mx_jfail(r, "cannot assign attribute on non-namespace object");
    return mx_jdict_set(r, ns.u.d, &key, v);
}

static bool assign(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *target,
                   const struct mx_jval *v)
{
    if (target->kind == MX_JN_NAME)
        return set_var(r, sc, target->u.name.id, v);
    if (target->kind == MX_JN_NSREF)
        return set_attr(r, sc, target, v);
    const struct mx_jval *items;
    size_t n, want = target->u.items.n;
    r->line = target->line;
    if (!mx_jiterable(v))
        return mx_jfail(r, "cannot unpack non-iterable %s object", mx_jtype_name(v));
    if (!mx_jiterate(r, v, &items, &n))
        return false;
    if (n < want)
        return mx_jfail(r, "not enough values to unpack (expected %zu, got %zu)", want, n);
    if (n > want)
        return mx_jfail(r, "too many values to unpack (expected %zu)", want);
    for (size_t i = 0; i < n; i++) {
        if (!assign(r, sc, target->u.items.v[i], &items[i]))
            return false;
    }
    return true;
}

/* Runs a body in a scope of its own with its output captured as a string. */
static bool capture(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnodes *body,
                    struct mx_jval *out)
{
    struct mx_jout o = {0}, *outer = r->out;
    r->out = &o;
    bool ok = exec_body(r, sc, body) != FLOW_ERROR;
    r->out = outer;
    return ok && mx_jout_str(r, &o, out);
}

/* ---- Loops -------------------------------------------------------------------------------- */

static bool filter_items(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n,
                         const struct mx_jval **items, size_t *count)
{
    struct mx_jlist *kept = mx_jlist_new(r, 0);
    if (!kept)
        return false;
    for (size_t i = 0; i < *count; i++) {
        struct mx_jval holds;
        sc->n = 0;
        if (!assign(r, sc, n->u.loop.target, &(*items)[i]) ||
            !mx_jeval(r, sc, n->u.loop.filter, &holds))
            return false;
        if (mx_jtruth(&holds) && !mx_jlist_push(r, kept, &(*items)[i]))
            return false;
    }
    *items = kept->v;
    *count = kept->n;
    return true;
}

static enum flow run_rounds(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n,
                            struct mx_jloop *loop)
{
    struct mx_jval var = {.type = MX_J_LOOP, .u.loop = loop};
    for (; loop->i < loop->n; loop->i++) {
        sc->n = 0;
        if (!mx_jstep(r, 1) || !assign(r, sc, n->u.loop.target, &loop->v[loop->i]) ||
            !set_var(r, sc, r->j->id_loop, &var))
            return FLOW_ERROR;
        enum flow f = exec_body(r, sc, &n->u.loop.body);
        if (f == FLOW_ERROR)
            return f;
        if (f == FLOW_BREAK)
            break;
    }
    return FLOW_NEXT;
}

static enum flow run_loop(struct mx_jrun *r, struct mx_jscope *outer, const struct mx_jnode *n,
                          const struct mx_jval *over, int depth0)
{
    struct mx_jscope *sc = new_scope(r, outer);
    struct mx_jloop *loop = mx_jalloc(r, 1, sizeof *loop);
    const struct mx_jval *items;
    size_t count;
    r->line = n->line;
    if (!sc || !loop || !mx_jiterate(r, over, &items, &count))
        return FLOW_ERROR;
    if (n->u.loop.filter && !filter_items(r, sc, n, &items, &count))
        return FLOW_ERROR;
    sc->n = 0;
    if (count == 0)
        return exec_body(r, sc, &n->u.loop.otherwise);
    *loop = (struct mx_jloop){.node = n, .scope = outer, .v = items, .n = count, .depth0 = depth0};
    return run_rounds(r, sc, n, loop);
}

static enum flow exec_for(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n)
{
    struct mx_jval over;
    if (!mx_jeval(r, sc, n->u.loop.iter, &over))
        return FLOW_ERROR;
    return run_loop(r, sc, n, &over, 0);
}

static bool enter_call(struct mx_jrun *r)
{
    if (r->calls >= r->max_calls)
        return mx_jfail_limit(r, "macro calls are nested deeper than %d", r->max_calls);
    r->calls++;
    return true;
}

/* loop(items): the loop again, over other items, its output as the value. */
bool mx_jcall_loop(struct mx_jrun *r, struct mx_jloop *l, const struct mx_jargs *a,
                   struct mx_jval *out)
{
    if (!l->node->u.loop.recursive)
        return mx_jfail(r, "only a loop marked 'recursive' can be called");
    if (a->npos != 1 || a->nkw)
        return mx_jfail(r, "loop() takes one argument: what to loop over");
    if (!enter_call(r))
        return false;
    struct mx_jout o = {0}, *outer = r->out;
    r->out = &o;
    bool ok = run_loop(r, l->scope, l->node, &a->pos[0], l->depth0 + 1) != FLOW_ERROR;
    r->out = outer;
    r->calls--;
    return ok && mx_jout_str(r, &o, out);
}

/* ---- Macros ------------------------------------------------------------------------------- */

static int name_len(const struct mx_jstr *s)
{
    return s->len > 60 ? 60 : (int)s->len;
}

/* The keyword argument `name`, or NULL; counts it as used. */
static const struct mx_jkw *take_kw(const struct mx_jargs *a, const struct mx_jstr *name,
                                    size_t *used)
{
    for (size_t i = 0; i < a->nkw; i++) {
        if (a->kw[i].name->len == name->len && memcmp(a->kw[i].name->p, name->p, name->len) == 0) {
            (*used)++;
            return &a->kw[i];
        }
    }
    return NULL;
}

static bool bind_params(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jmacrodef *m,
                        const struct mx_jargs *a, size_t *used)
{
    for (size_t i = 0; i < m->params.n; i++) {
        const struct mx_jnode *p = m->params.names[i];
        const struct mx_jkw *kw;
        struct mx_jval v;
        if (!mx_jstep(r, a->nkw))
            return false;
        if (i < a->npos)
            v = a->pos[i];
        else if ((kw = take_kw(a, p->u.name.name, used)) != NULL)
            v = kw->v;
        else if (!m->params.defaults[i])
            v = mx_jundef(MX_JU_PARAM, 0, p->u.name.name);
        else if (!mx_jeval(r, sc, m->params.defaults[i], &v))
            return false;
        if (!set_var(r, sc, p->u.name.id, &v))
            return false;
    }
    return true;
}

static bool is_param(const struct mx_jmacrodef *m, size_t from, const struct mx_jstr *name)
{
    for (size_t i = from; i < m->params.n; i++) {
        const struct mx_jstr *p = m->params.names[i]->u.name.name;
        if (p->len == name->len && memcmp(p->p, name->p, p->len) == 0)
            return true;
    }
    return false;
}

/* caller, varargs and kwargs, for macros that mention them. */
static bool bind_special(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jmacrodef *m,
                         const struct mx_jargs *a, size_t *used)
{
    const struct mx_jstr *caller = r->j->names[r->j->id_caller];
    if (m->uses_caller && !is_param(m, 0, caller)) {
        const struct mx_jkw *kw = take_kw(a, caller, used);
        struct mx_jval v = kw ? kw->v : mx_jundef(MX_JU_NAME, 0, caller);
        if (!set_var(r, sc, r->j->id_caller, &v))
            return false;
    }
    if (m->uses_varargs) {
        size_t extra = a->npos > m->params.n ? a->npos - m->params.n : 0;
        struct mx_jval v;
        if (!mx_jtuple(r, extra ? a->pos + m->params.n : NULL, extra, &v) ||
            !set_var(r, sc, r->j->id_varargs, &v))
            return false;
    }
    if (!m->uses_kwargs)
        return true;
    struct mx_jdict *d = mx_jdict_new(r, 0);
    for (size_t i = 0; d && i < a->nkw; i++) {
        struct mx_jval key = mx_jstrval(a->kw[i].name);
        if (!mx_jstep(r, m->params.n))
            return false;
        if (is_param(m, a->npos, a->kw[i].name) ||
            (m->uses_caller && mx_jstr_is(a->kw[i].name, "caller")))
            continue;
        if (!mx_jdict_set(r, d, &key, &a->kw[i].v))
            return false;
        (*used)++;
    }
    struct mx_jval v = {.type = MX_J_DICT, .u.d = d};
    return d && set_var(r, sc, r->j->id_kwargs, &v);
}

static bool check_arguments(struct mx_jrun *r, const struct mx_jmacrodef *m,
                            const struct mx_jargs *a, size_t used)
{
    static const struct mx_jstr anonymous = {.p = "caller", .len = 6};
    const struct mx_jstr *name = m->name ? m->name : &anonymous;
    if (a->npos > m->params.n && !m->uses_varargs)
        return mx_jfail(r, "macro '%.*s' takes not more than %zu argument(s)", name_len(name),
                        name->p, m->params.n);
    for (size_t i = 0; used < a->nkw && i < a->nkw; i++) {
        const struct mx_jstr *kw = a->kw[i].name;
        if (!mx_jstep(r, m->params.n))
            return false;
        if (is_param(m, a->npos, kw) || (m->uses_caller && mx_jstr_is(kw, "caller")))
            continue;
        return mx_jfail(r, "macro '%.*s' takes no keyword argument '%.*s'", name_len(name), name->p,
                        name_len(kw), kw->p);
    }
    return true;
}

bool mx_jcall_macro(struct mx_jrun *r, struct mx_jmacro *m, const struct mx_jargs *a,
                    struct mx_jval *out)
{
    struct mx_jscope *sc = new_scope(r, m->scope);
    size_t used = 0;
    if (!sc || !enter_call(r))
        return false;
    int line = r->line;
    bool ok = bind_params(r, sc, m->def, a, &used) && bind_special(r, sc, m->def, a, &used);
    r->line = line;
    ok = ok && check_arguments(r, m->def, a, used) && capture(r, sc, &m->def->body, out);
    r->calls--;
    return ok;
}

static bool new_macro(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jmacrodef *def,
                      struct mx_jval *out)
{
    struct mx_jmacro *m = mx_jalloc(r, 1, sizeof *m);
    if (!m)
        return false;
    *m = (struct mx_jmacro){.def = def, .scope = sc};
    *out = (struct mx_jval){.type = MX_J_MACRO, .u.macro = m};
    return true;
}

static bool exec_macro(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n)
{
    struct mx_jval v;
    return new_macro(r, sc, &n->u.macro, &v) && set_var(r, sc, n->u.macro.id, &v);
}

/* {% call f(args) %}body{% endcall %}: f gets the body as the keyword argument `caller`. */
static bool exec_call_block(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n)
{
    const struct mx_jnode *call = n->u.block.call;
    struct mx_jval callee, res;
    struct mx_jargs a;
    if (!mx_jeval(r, sc, call->u.call.e, &callee) || !mx_jeval_args(r, sc, &call->u.call.args, &a))
        return false;
    struct mx_jkw *kw = mx_jalloc(r, a.nkw + 1, sizeof *kw);
    if (!kw)
        return false;
    if (a.nkw)
        memcpy(kw, a.kw, a.nkw * sizeof *kw);
    kw[a.nkw].name = r->j->names[r->j->id_caller];
    if (!new_macro(r, sc, &n->u.block.macro->u.macro, &kw[a.nkw].v))
        return false;
    a.kw = kw;
    a.nkw++;
    r->line = n->line;
    return mx_jcall(r, &callee, &a, &res) && mx_jprint(r, r->out, &res);
}

/* ---- Other statements --------------------------------------------------------------------- */

static bool exec_output(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n)
{
    for (size_t i = 0; i < n->u.items.n; i++) {
        struct mx_jval v;
        if (!mx_jeval(r, sc, n->u.items.v[i], &v))
            return false;
        r->line = n->line;
        if (!mx_jprint(r, r->out, &v))
            return false;
    }
    return true;
}

static enum flow exec_if(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n)
{
    for (; n; n = n->u.branch.next) {
        struct mx_jval cond = mx_jbool(true);
        if (n->u.branch.cond && !mx_jeval(r, sc, n->u.branch.cond, &cond))
            return FLOW_ERROR;
        if (mx_jtruth(&cond))
            return exec_body(r, sc, &n->u.branch.body);
    }
    return FLOW_NEXT;
}

static bool exec_set(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n)
{
    struct mx_jval v;
    return mx_jeval(r, sc, n->u.set.value, &v) && assign(r, sc, n->u.set.target, &v);
}

static bool exec_set_block(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n)
{
    struct mx_jscope *inner = new_scope(r, sc);
    struct mx_jval v;
    if (!inner || !capture(r, inner, &n->u.set.body, &v))
        return false;
    if (n->u.set.value) {
        struct mx_jval filtered;
        if (!mx_jeval_filter(r, sc, n->u.set.value, &v, &filtered))
            return false;
        v = filtered;
    }
    return assign(r, sc, n->u.set.target, &v);
}

static bool exec_filter_block(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n)
{
    struct mx_jscope *inner = new_scope(r, sc);
    struct mx_jval v, filtered;
    return inner && capture(r, inner, &n->u.block.body, &v) &&
           mx_jeval_filter(r, sc, n->u.block.call, &v, &filtered) &&
           mx_jprint(r, r->out, &filtered);
}

static enum flow exec_with(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n)
{
    struct mx_jscope *inner = new_scope(r, sc);
    if (!inner)
        return FLOW_ERROR;
    for (size_t i = 0; i < n->u.with.n; i++) {
        struct mx_jval v;
        if (!mx_jeval(r, sc, n->u.with.values[i], &v) ||
            !assign(r, inner, n->u.with.targets[i], &v))
            return FLOW_ERROR;
    }
    return exec_body(r, inner, &n->u.with.body);
}

static enum flow exec_group(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n)
{
    struct mx_jscope *inner = new_scope(r, sc);
    return inner ? exec_body(r, inner, &n->u.items) : FLOW_ERROR;
}

static enum flow exec_one(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n)
{
    r->line = n->line;
    switch (n->kind) {
    case MX_JN_DATA: return flow(mx_jput(r, r->out, n->u.data.p, n->u.data.len));
    case MX_JN_OUTPUT: return flow(exec_output(r, sc, n));
    case MX_JN_IF: return exec_if(r, sc, n);
    case MX_JN_FOR: return exec_for(r, sc, n);
    case MX_JN_SET: return flow(exec_set(r, sc, n));
    case MX_JN_SET_BLOCK: return flow(exec_set_block(r, sc, n));
    case MX_JN_MACRO: return flow(exec_macro(r, sc, n));
    case MX_JN_CALL_BLOCK: return flow(exec_call_block(r, sc, n));
    case MX_JN_FILTER_BLOCK: return flow(exec_filter_block(r, sc, n));
    case MX_JN_WITH: return exec_with(r, sc, n);
    case MX_JN_GROUP: return exec_group(r, sc, n);
    case MX_JN_BREAK: return FLOW_BREAK;
    case MX_JN_CONTINUE: return FLOW_CONTINUE;
    default: return flow(mx_jfail(r, "not a statement"));
    }
}

static enum flow exec_body(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnodes *body)
{
    enum flow f = FLOW_NEXT;
    if (body->n == 0)
        return f;
    if (!mx_jenter(r))
        return FLOW_ERROR;
    for (size_t i = 0; i < body->n && f == FLOW_NEXT; i++)
        f = mx_jstep(r, 1) ? exec_one(r, sc, body->v[i]) : FLOW_ERROR;
    mx_jleave(r);
    return f;
}

/* ---- Public functions --------------------------------------------------------------------- */

/* Copies the source with \r\n and \r as \n and without one trailing newline. */
static bool copy_source(struct mx_jinja *j, const char *source, size_t len)
{
    char *p = mx_arena_alloc(&j->arena, len + 1);
    if (!p)
        return false;
    size_t w = 0;
    for (size_t i = 0; i < len; i++) {
        if (source[i] == '\r' && i + 1 < len && source[i + 1] == '\n')
            continue;
        p[w++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (w > 0 && p[w - 1] == '\n')
        w--;
    j->src = p;
    j->len = w;
    return true;
}

struct mx_jinja *mx_jinja_parse(const char *source, size_t len, const char *name, mtplx_error *err)
{
    if (len > MX_J_MAX_SOURCE) {
        mx_error(err, MTPLX_ERR_LIMIT, "%s is %zu bytes long, more than a template may have (%d)",
                 name, len, MX_J_MAX_SOURCE);
        return NULL;
    }
    if (!mx_utf8_valid(source, len)) {
        mx_error(err, MTPLX_ERR_FORMAT, "%s is not valid UTF-8", name);
        return NULL;
    }
    struct mx_jinja *j = calloc(1, sizeof *j);
    if (!j) {
        mx_error_nomem(err, name, sizeof *j);
        return NULL;
    }
    mx_arena_init(&j->arena, (size_t)512 << 20);
    j->name = mx_arena_strdup(&j->arena, name);
    if (!j->name || !copy_source(j, source, len))
        mx_error_nomem(err, name, len);
    else if (mx_jparse(j, err))
        return j;
    mx_jinja_free(j);
    return NULL;
}

void mx_jinja_free(struct mx_jinja *j)
{
    if (!j)
        return;
    mx_arena_free(&j->arena);
    free(j);
}

/* Only variables the template mentions are converted. */
static bool fill_globals(struct mx_jrun *r, const json_t *globals)
{
    r->globals = mx_jalloc(r, (size_t)r->j->n_names, sizeof *r->globals);
    if (!r->globals)
        return false;
    for (int id = 0; id < r->j->n_names; id++) {
        const struct mx_jstr *name = r->j->names[id];
        const json_t *v = globals ? json_object_getn(globals, name->p, name->len) : NULL;
        const struct mx_jdef *fn = v ? NULL : mx_jfind_function(name);
        if (v && !mx_jfrom_json(r, v, false, &r->globals[id]))
            return false;
        if (fn)
            r->globals[id] = (struct mx_jval){.type = MX_J_FUNC, .u.func = fn};
    }
    return true;
}

mtplx_status mx_jinja_render(const struct mx_jinja *j, const json_t *globals,
                             const struct mx_jinja_limits *limits, int64_t now,
                             struct mx_strbuf *out, mtplx_error *err)
{
    static const struct mx_jinja_limits none;
    const struct mx_jinja_limits *l = limits ? limits : &none;
    mtplx_error local;
    struct mx_jout o = {.sb = out};
    struct mx_jrun r = {
        .j = j,
        .err = err ? err : &local,
        .line = 1,
        .max_calls = l->max_depth > 0 ? l->max_depth : 200,
        .max_steps = l->max_steps > 0 ? (uint64_t)l->max_steps : 50000000,
        .max_output = l->max_output ? l->max_output : (size_t)64 << 20,
        .out_start = out->len,
        .out = &o,
        .now = now ? now : (int64_t)time(NULL),
    };
    r.max_depth = r.max_calls > 100000 ? 1000000 : r.max_calls * MX_J_DEPTH_PER_CALL;
    r.seed = ((uint64_t)(uintptr_t)&r ^ (uint64_t)r.now) * 0x9e3779b97f4a7c15u;
    mx_arena_init(&r.arena, l->max_memory ? l->max_memory : (size_t)256 << 20);
    r.err->status = MTPLX_OK;
    if (fill_globals(&r, globals))
        exec_body(&r, NULL, &j->body);
    mx_arena_free(&r.arena);
    return r.err->status;
}
