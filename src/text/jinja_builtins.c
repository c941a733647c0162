/* Jinja tests, global functions, special attributes, and the binding of call arguments. */
#include "base/utf8.h"
#include "text/jinja_int.h"

#include <string.h>
#include <time.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* ---- Arguments ---------------------------------------------------------------------------- */

static size_t count_names(const char *const *names)
{
    size_t n = 0;
    while (names[n])
        n++;
    return n;
}

static bool bind_kw(struct mx_jrun *r, const char *what, const struct mx_jkw *kw,
                    const char *const *names, struct mx_jval *out)
{
    int len = kw->name->len > 60 ? 60 : (int)kw->name->len;
    for (size_t i = 0; names[i]; i++) {
        if (!mx_jstr_is(kw->name, names[i]))
            continue;
        if (out[i].type != MX_J_MISSING)
            return mx_jfail(r, "%s got multiple values for argument '%s'", what, names[i]);
        out[i] = kw->v;
        return true;
    }
    return mx_jfail(r, "%s got an unexpected keyword argument '%.*s'", what, len, kw->name->p);
}

bool mx_jbind(struct mx_jrun *r, const char *what, const struct mx_jargs *a,
              const char *const *names, size_t required, struct mx_jval *out)
{
    size_t n = count_names(names);
    if (a->npos > n)
        return mx_jfail(r, "%s takes at most %zu argument(s), %zu given", what, n, a->npos);
    for (size_t i = 0; i < n; i++)
        out[i] = i < a->npos ? a->pos[i] : (struct mx_jval){0};
    for (size_t i = 0; i < a->nkw; i++) {
        if (!bind_kw(r, what, &a->kw[i], names, out))
            return false;
    }
    for (size_t i = 0; i < required; i++) {
        if (out[i].type == MX_J_MISSING)
            return mx_jfail(r, "%s is missing its argument '%s'", what, names[i]);
    }
    return true;
}

bool mx_jarg_int(struct mx_jrun *r, const char *what, const struct mx_jval *v, int64_t *out)
{
    if (v->type == MX_J_MISSING || v->type == MX_J_NONE || mx_jas_int(v, out))
        return true;
    if (v->type == MX_J_UNDEF)
        return mx_jfail_undef(r, v);
    return mx_jfail(r, "%s must be an integer, not %s", what, mx_jtype_name(v));
}

bool mx_jarg_str(struct mx_jrun *r, const char *what, const struct mx_jval *v,
                 const struct mx_jstr **out)
{
    *out = v->type == MX_J_STR ? v->u.s : NULL;
    if (v->type == MX_J_MISSING || v->type == MX_J_NONE || v->type == MX_J_STR)
        return true;
    if (v->type == MX_J_UNDEF)
        return mx_jfail_undef(r, v);
    return mx_jfail(r, "%s must be a string, not %s", what, mx_jtype_name(v));
}

/* ---- Tests of type ------------------------------------------------------------------------ */

#define TEST(name)                                                                                 \
    static bool name(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,      \
                     bool *out)

static bool plain(struct mx_jrun *r, const struct mx_jargs *a, bool res, bool *out)
{
    static const char *const names[] = {NULL};
    *out = res;
    return mx_jbind(r, "test", a, names, 0, NULL);
}

TEST(t_defined)
{
    return plain(r, a, self->type != MX_J_UNDEF, out);
}

TEST(t_undefined)
{
    return plain(r, a, self->type == MX_J_UNDEF, out);
}

TEST(t_none)
{
    return plain(r, a, self->type == MX_J_NONE, out);
}

TEST(t_boolean)
{
    return plain(r, a, self->type == MX_J_BOOL, out);
}

TEST(t_true)
{
    return plain(r, a, self->type == MX_J_BOOL && self->u.b, out);
}

TEST(t_false)
{
    return plain(r, a, self->type == MX_J_BOOL && !self->u.b, out);
}

TEST(t_integer)
{
    return plain(r, a, self->type == MX_J_INT, out);
}

TEST(t_float)
{
    return plain(r, a, self->type == MX_J_FLOAT, out);
}

/* In Python a bool is a number. */
TEST(t_number)
{
    double f;
    return plain(r, a, mx_jas_float(self, &f), out);
}

TEST(t_string)
{
    return plain(r, a, self->type == MX_J_STR, out);
}

TEST(t_mapping)
{
    return plain(r, a, self->type == MX_J_DICT, out);
}

TEST(t_iterable)
{
    return plain(r, a, mx_jiterable(self), out);
}

/* Has a length and subscripts; an undefined value counts, as in jinja2. */
TEST(t_sequence)
{
    switch (self->type) {
    case MX_J_UNDEF:
    case MX_J_STR:
    case MX_J_LIST:
    case MX_J_TUPLE:
    case MX_J_DICT:
    case MX_J_RANGE: return plain(r, a, true, out);
    default: return plain(r, a, false, out);
    }
}

TEST(t_callable)
{
    switch (self->type) {
    case MX_J_UNDEF:
    case MX_J_FUNC:
    case MX_J_BOUND:
    case MX_J_MACRO:
    case MX_J_LOOP:
    case MX_J_JOINER: return plain(r, a, true, out);
    default: return plain(r, a, false, out);
    }
}

TEST(t_escaped)
{
    return plain(r, a, self->type == MX_J_STR && self->u.s->safe, out);
}

static bool case_test(struct mx_jrun *r, const struct mx_jval *self, enum mx_jclass c, bool *out)
{
    struct mx_jval s;
    if (!mx_jto_str(r, self, &s) || !mx_jstep(r, s.u.s->len / 16))
        return false;
    *out = mx_jis_class(s.u.s, c);
    return true;
}

TEST(t_lower)
{
    return plain(r, a, false, out) && case_test(r, self, MX_JCL_LOWER, out);
}

TEST(t_upper)
{
    return plain(r, a, false, out) && case_test(r, self, MX_JCL_UPPER, out);
}

/* ---- Tests of value ----------------------------------------------------------------------- */

static bool operand(struct mx_jrun *r, const struct mx_jargs *a, struct mx_jval *v)
{
    static const char *const names[] = {"other", NULL};
    return mx_jbind(r, "test", a, names, 1, v);
}

static bool related(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    enum mx_jop op, bool *out)
{
    struct mx_jval v;
    return operand(r, a, &v) && mx_jrelation(r, op, self, &v, out);
}

TEST(t_eq)
{
    return related(r, self, a, MX_JOP_EQ, out);
}

TEST(t_ne)
{
    return related(r, self, a, MX_JOP_NE, out);
}

TEST(t_lt)
{
    return related(r, self, a, MX_JOP_LT, out);
}

TEST(t_le)
{
    return related(r, self, a, MX_JOP_LE, out);
}

TEST(t_gt)
{
    return related(r, self, a, MX_JOP_GT, out);
}

TEST(t_ge)
{
    return related(r, self, a, MX_JOP_GE, out);
}

TEST(t_in)
{
    return related(r, self, a, MX_JOP_IN, out);
}

static bool remainder_is(struct mx_jrun *r, const struct mx_jval *self, int64_t divisor,
                         int64_t want, bool *out)
{
    const struct mx_jval d = mx_jint(divisor), w = mx_jint(want);
    struct mx_jval rest;
    return mx_jarith(r, MX_JOP_MOD, self, &d, &rest) && mx_jequal(r, &rest, &w, out);
}

TEST(t_even)
{
    return plain(r, a, false, out) && remainder_is(r, self, 2, 0, out);
}

TEST(t_odd)
{
    return plain(r, a, false, out) && remainder_is(r, self, 2, 1, out);
}

TEST(t_divisibleby)
{
    struct mx_jval v, rest;
    const struct mx_jval zero = mx_jint(0);
    return operand(r, a, &v) && mx_jarith(r, MX_JOP_MOD, self, &v, &rest) &&
           mx_jequal(r, &rest, &zero, out);
}

/* Identity; immutable values of one type count as one object when they are equal. */
TEST(t_sameas)
{
    struct mx_jval v;
    *out = false;
    if (!operand(r, a, &v))
        return false;
    if (v.type != self->type)
        return true;
    if (v.type <= MX_J_STR)
        return mx_jequal(r, self, &v, out);
    *out = self->u.s == v.u.s;
    return true;
}

TEST(t_filter)
{
    return plain(r, a, self->type == MX_J_STR && mx_jfind_filter(self->u.s) != NULL, out);
}

TEST(t_test)
{
    return plain(r, a, self->type == MX_J_STR && mx_jfind_test(self->u.s) != NULL, out);
}

static const struct mx_jtestdef tests[] = {
    {"!=", t_ne},
    {"<", t_lt},
    {"<=", t_le},
    {"==", t_eq},
    {">", t_gt},
    {">=", t_ge},
    {"boolean", t_boolean},
    {"callable", t_callable},
    {"defined", t_defined},
    {"divisibleby", t_divisibleby},
    {"eq", t_eq},
    {"equalto", t_eq},
    {"escaped", t_escaped},
    {"even", t_even},
    {"false", t_false},
    {"filter", t_filter},
    {"float", t_float},
    {"ge", t_ge},
    {"greaterthan", t_gt},
    {"gt", t_gt},
    {"in", t_in},
    {"integer", t_integer},
    {"iterable", t_iterable},
    {"le", t_le},
    {"lessthan", t_lt},
    {"lower", t_lower},
    {"lt", t_lt},
    {"mapping", t_mapping},
    {"ne", t_ne},
    {"none", t_none},
    {"number", t_number},
    {"odd", t_odd},
    {"sameas", t_sameas},
    {"sequence", t_sequence},
    {"string", t_string},
    {"test", t_test},
    {"true", t_true},
    {"undefined", t_undefined},
    {"upper", t_upper},
};

const struct mx_jtestdef *mx_jfind_test(const struct mx_jstr *name)
{
    for (size_t i = 0; i < COUNT(tests); i++) {
        if (mx_jstr_is(name, tests[i].name))
            return &tests[i];
    }
    return NULL;
}

/* ---- Functions ---------------------------------------------------------------------------- */

static bool fn_range(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                     struct mx_jval *out)
{
    int64_t v[3] = {0, 0, 1};
    (void)self;
    if (a->npos < 1 || a->npos > 3 || a->nkw)
        return mx_jfail(r, "range expected 1 to 3 arguments");
    for (size_t i = 0; i < a->npos; i++) {
        if (a->pos[i].type == MX_J_UNDEF)
            return mx_jfail_undef(r, &a->pos[i]);
        if (!mx_jas_int(&a->pos[i], &v[i]))
            return mx_jfail(r, "'%s' object cannot be interpreted as an integer",
                            mx_jtype_name(&a->pos[i]));
    }
    if (a->npos == 1) {
        v[1] = v[0];
        v[0] = 0;
    }
    if (v[2] == 0)
        return mx_jfail(r, "range() arg 3 must not be zero");
    bool up = v[2] > 0, empty = up ? v[0] >= v[1] : v[0] <= v[1];
    uint64_t span = up ? (uint64_t)v[1] - (uint64_t)v[0] : (uint64_t)v[0] - (uint64_t)v[1];
    uint64_t stride = up ? (uint64_t)v[2] : 0 - (uint64_t)v[2];
    uint64_t n = empty ? 0 : (span - 1) / stride + 1;
    if (n > MX_J_MAX_RANGE)
        return mx_jfail_limit(r, "range of more than %d elements", MX_J_MAX_RANGE);
    struct mx_jrange *g = mx_jalloc(r, 1, sizeof *g);
    if (!g)
        return false;
    *g = (struct mx_jrange){.start = v[0], .stop = v[1], .step = v[2], .n = (size_t)n};
    *out = (struct mx_jval){.type = MX_J_RANGE, .u.r = g};
    return true;
}

/* The entries of a mapping, or of an iterable of pairs. */
static bool add_entries(struct mx_jrun *r, struct mx_jdict *d, const struct mx_jval *from)
{
    const struct mx_jval *items, *pair;
    size_t n, two;
    if (from->type == MX_J_UNDEF)
        return mx_jfail_undef(r, from);
    if (from->type == MX_J_DICT) {
        for (size_t i = 0; i < from->u.d->n; i++) {
            if (!mx_jdict_set(r, d, &from->u.d->v[i].key, &from->u.d->v[i].value))
                return false;
        }
        return true;
    }
    if (!mx_jiterate(r, from, &items, &n))
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!mx_jiterate(r, &items[i], &pair, &two))
            return false;
        if (two != 2)
            return mx_jfail(r,
                            "dictionary update sequence element #%zu has length %zu; 2 is "
                            "required",
                            i, two);
        if (!mx_jdict_set(r, d, &pair[0], &pair[1]))
            return false;
    }
    return true;
}

static bool make_dict(struct mx_jrun *r, const char *what, enum mx_jtype type,
                      const struct mx_jargs *a, struct mx_jval *out)
{
    struct mx_jdict *d = mx_jdict_new(r, a->nkw);
    if (!d)
        return false;
    if (a->npos > 1)
        return mx_jfail(r, "%s expected at most 1 argument, got %zu", what, a->npos);
    if (a->npos == 1 && !add_entries(r, d, &a->pos[0]))
        return false;
    for (size_t i = 0; i < a->nkw; i++) {
        struct mx_jval key = mx_jstrval(a->kw[i].name);
        if (!mx_jdict_set(r, d, &key, &a->kw[i].v))
            return false;
    }
    *out = (struct mx_jval){.type = (uint8_t)type, .u.d = d};
    return true;
}

static bool fn_dict(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    struct mx_jval *out)
{
    (void)self;
    return make_dict(r, "dict", MX_J_DICT, a, out);
}

static bool fn_namespace(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                         struct mx_jval *out)
{
    (void)self;
    return make_dict(r, "namespace", MX_J_NAMESPACE, a, out);
}

static bool fn_cycler(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                      struct mx_jval *out)
{
    (void)self;
    if (a->npos == 0 || a->nkw)
        return mx_jfail(r, "cycler needs at least one item");
    struct mx_jcycler *c = mx_jalloc(r, 1, sizeof *c);
    if (!c)
        return false;
    *c = (struct mx_jcycler){.v = a->pos, .n = a->npos};
    *out = (struct mx_jval){.type = MX_J_CYCLER, .u.cycler = c};
    return true;
}

static bool fn_joiner(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                      struct mx_jval *out)
{
    static const char *const names[] = {"sep", NULL};
    struct mx_jjoiner *j = mx_jalloc(r, 1, sizeof *j);
    (void)self;
    if (!j || !mx_jbind(r, "joiner", a, names, 0, &j->sep))
        return false;
    if (j->sep.type == MX_J_MISSING && !mx_jstr_view(r, ", ", 2, &j->sep))
        return false;
    *out = (struct mx_jval){.type = MX_J_JOINER, .u.joiner = j};
    return true;
}

static bool fn_raise_exception(struct mx_jrun *r, const struct mx_jval *self,
                               const struct mx_jargs *a, struct mx_jval *out)
{
    static const char *const names[] = {"message", NULL};
    struct mx_jval v, s;
    (void)self;
    (void)out;
    if (!mx_jbind(r, "raise_exception", a, names, 1, &v) || !mx_jto_str(r, &v, &s))
        return false;
    return mx_jraise(r, "%.*s", (int)(s.u.s->len > 400 ? 400 : s.u.s->len), s.u.s->p);
}

static bool fn_strftime_now(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                            struct mx_jval *out)
{
    static const char *const names[] = {"format", NULL};
    const struct mx_jstr *f;
    struct mx_jval v;
    struct tm tm;
    char fmt[256], text[1024];
    time_t now = (time_t)r->now;
    (void)self;
    if (!mx_jbind(r, "strftime_now", a, names, 1, &v) || !mx_jarg_str(r, "format", &v, &f))
        return false;
    if (!f || f->len >= sizeof fmt - 1 || memchr(f->p, '\0', f->len))
        return mx_jfail(r, "format of strftime_now must be a string of less than %zu bytes",
                        sizeof fmt - 1);
    /* A leading space tells an empty result from one that does not fit. */
    fmt[0] = ' ';
    memcpy(fmt + 1, f->p, f->len);
    fmt[1 + f->len] = '\0';
    if (!localtime_r(&now, &tm))
        return mx_jfail(r, "the time cannot be shown as local time");
    size_t n = strftime(text, sizeof text, fmt, &tm);
    if (n == 0)
        return mx_jfail_limit(r, "result of strftime_now is too long");
    if (!mx_utf8_valid(text, n))
        return mx_jfail(r, "the locale's date names are not UTF-8");
    return mx_jstr_copy(r, text + 1, n - 1, out);
}

static const struct mx_jdef functions[] = {
    {"cycler", fn_cycler, false},
    {"dict", fn_dict, false},
    {"joiner", fn_joiner, false},
    {"namespace", fn_namespace, false},
    {"raise_exception", fn_raise_exception, false},
    {"range", fn_range, false},
    {"strftime_now", fn_strftime_now, false},
};

const struct mx_jdef *mx_jfind_function(const struct mx_jstr *name)
{
    return mx_jfind_def(functions, COUNT(functions), name);
}

/* ---- Special attributes ------------------------------------------------------------------- */

static struct mx_jval neighbour(const struct mx_jloop *l, bool previous)
{
    static const struct mx_jstr none = {.p = "item", .len = 4, .ascii = true};
    if (previous ? l->i == 0 : l->i + 1 >= l->n)
        return mx_jundef(MX_JU_NAME, 0, &none);
    return l->v[previous ? l->i - 1 : l->i + 1];
}

static struct mx_jval loop_attr(const struct mx_jloop *l, const struct mx_jstr *name)
{
    int64_t i = (int64_t)l->i, n = (int64_t)l->n;
    if (mx_jstr_is(name, "index"))
        return mx_jint(i + 1);
    if (mx_jstr_is(name, "index0"))
        return mx_jint(i);
    if (mx_jstr_is(name, "first"))
        return mx_jbool(i == 0);
    if (mx_jstr_is(name, "last"))
        return mx_jbool(i + 1 >= n);
    if (mx_jstr_is(name, "length"))
        return mx_jint(n);
    if (mx_jstr_is(name, "revindex"))
        return mx_jint(n - i);
    if (mx_jstr_is(name, "revindex0"))
        return mx_jint(n - i - 1);
    if (mx_jstr_is(name, "previtem"))
        return neighbour(l, true);
    if (mx_jstr_is(name, "nextitem"))
        return neighbour(l, false);
    if (mx_jstr_is(name, "depth"))
        return mx_jint(l->depth0 + 1);
    if (mx_jstr_is(name, "depth0"))
        return mx_jint(l->depth0);
    return (struct mx_jval){0};
}

static bool macro_attr(struct mx_jrun *r, const struct mx_jmacrodef *m, const struct mx_jstr *name,
                       struct mx_jval *out)
{
    if (mx_jstr_is(name, "name"))
        *out = m->name ? mx_jstrval(m->name) : mx_jnone();
    else if (mx_jstr_is(name, "catch_varargs"))
        *out = mx_jbool(m->uses_varargs);
    else if (mx_jstr_is(name, "catch_kwargs"))
        *out = mx_jbool(m->uses_kwargs);
    else if (mx_jstr_is(name, "caller"))
        *out = mx_jbool(m->uses_caller);
    if (!mx_jstr_is(name, "arguments"))
        return true;
    struct mx_jlist *l = mx_jlist_new(r, m->params.n);
    if (!l)
        return false;
    for (; l->n < m->params.n; l->n++)
        l->v[l->n] = mx_jstrval(m->params.names[l->n]->u.name.name);
    *out = mx_jlistval(MX_J_TUPLE, l);
    return true;
}

bool mx_jspecial_attr(struct mx_jrun *r, const struct mx_jval *v, const struct mx_jstr *name,
                      struct mx_jval *out)
{
    *out = (struct mx_jval){0};
    switch (v->type) {
    case MX_J_LOOP: *out = loop_attr(v->u.loop, name); return true;
    case MX_J_MACRO: return macro_attr(r, v->u.macro->def, name, out);
    case MX_J_CYCLER:
        if (mx_jstr_is(name, "current"))
            *out = v->u.cycler->v[v->u.cycler->pos];
        return true;
    case MX_J_TUPLE: /* groups made by groupby */
        if (v->of == 'g' && mx_jstr_is(name, "grouper"))
            *out = v->u.l->v[0];
        else if (v->of == 'g' && mx_jstr_is(name, "list"))
            *out = v->u.l->v[1];
        return true;
    default: return true;
    }
}
