/* Jinja methods: those of Python's str, dict, list and tuple that cannot change their object. */
#include "text/jinja_int.h"

#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

static const struct mx_jstr *str(const struct mx_jval *self)
{
    return self->u.s;
}

/* ---- str: whitespace, case, padding ------------------------------------------------------- */

static bool strip_sides(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                        bool left, bool right, struct mx_jval *out)
{
    static const char *const names[] = {"chars", NULL};
    struct mx_jval v[1];
    return mx_jbind(r, "strip", a, names, 0, v) && mx_jstrip(r, str(self), v, left, right, out);
}

static bool m_strip(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    struct mx_jval *out)
{
    return strip_sides(r, self, a, true, true, out);
}

static bool m_lstrip(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                     struct mx_jval *out)
{
    return strip_sides(r, self, a, true, false, out);
}

static bool m_rstrip(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                     struct mx_jval *out)
{
    return strip_sides(r, self, a, false, true, out);
}

static bool no_arguments(struct mx_jrun *r, const char *what, const struct mx_jargs *a)
{
    static const char *const names[] = {NULL};
    return mx_jbind(r, what, a, names, 0, NULL);
}

static bool m_upper(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    struct mx_jval *out)
{
    return no_arguments(r, "upper", a) && mx_jrecase(r, str(self), MX_JC_UPPER, out);
}

static bool m_lower(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    struct mx_jval *out)
{
    return no_arguments(r, "lower", a) && mx_jrecase(r, str(self), MX_JC_LOWER, out);
}

static bool m_title(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    struct mx_jval *out)
{
    return no_arguments(r, "title", a) && mx_jrecase(r, str(self), MX_JC_TITLE, out);
}

static bool m_capitalize(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                         struct mx_jval *out)
{
    return no_arguments(r, "capitalize", a) && mx_jrecase(r, str(self), MX_JC_CAPITALIZE, out);
}

static bool m_swapcase(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                       struct mx_jval *out)
{
    return no_arguments(r, "swapcase", a) && mx_jrecase(r, str(self), MX_JC_SWAP, out);
}

static bool pad(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                enum mx_jalign align, struct mx_jval *out)
{
    static const char *const names[] = {"width", "fillchar", NULL};
    struct mx_jval v[2];
    const struct mx_jstr *fill;
    int64_t width = 0;
    return mx_jbind(r, "justify", a, names, 1, v) && mx_jarg_int(r, "width", &v[0], &width) &&
           mx_jarg_str(r, "fillchar", &v[1], &fill) &&
           mx_jpad(r, str(self), width, align, fill, out);
}

static bool m_ljust(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    struct mx_jval *out)
{
    return pad(r, self, a, MX_JALIGN_LEFT, out);
}

static bool m_rjust(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    struct mx_jval *out)
{
    return pad(r, self, a, MX_JALIGN_RIGHT, out);
}

static bool m_center(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                     struct mx_jval *out)
{
    return pad(r, self, a, MX_JALIGN_CENTER, out);
}

/* Zeros go between a sign and the rest. */
static bool m_zfill(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    struct mx_jval *out)
{
    static const char *const names[] = {"width", NULL};
    const struct mx_jstr *s = str(self);
    struct mx_jval v[1];
    struct mx_jout o = {0};
    int64_t width = 0;
    if (!mx_jbind(r, "zfill", a, names, 1, v) || !mx_jarg_int(r, "width", v, &width))
        return false;
    size_t sign = s->len && (s->p[0] == '-' || s->p[0] == '+');
    int64_t have = (int64_t)mx_jstr_count(s), zeros = width > have ? width - have : 0;
    return mx_jput(r, &o, s->p, sign) && mx_jfill(r, &o, '0', zeros) &&
           mx_jput(r, &o, s->p + sign, s->len - sign) && mx_jout_str(r, &o, out);
}

/* ---- str: splitting and joining ----------------------------------------------------------- */

static bool split(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                  bool from_right, struct mx_jval *out)
{
    static const char *const names[] = {"sep", "maxsplit", NULL};
    struct mx_jval v[2];
    const struct mx_jstr *sep;
    int64_t max = -1;
    struct mx_jlist *l = mx_jlist_new(r, 0);
    if (!l || !mx_jbind(r, "split", a, names, 0, v) || !mx_jarg_str(r, "sep", &v[0], &sep) ||
        !mx_jarg_int(r, "maxsplit", &v[1], &max) ||
        !mx_jsplit(r, str(self), sep, max, from_right, l))
        return false;
    *out = mx_jlistval(MX_J_LIST, l);
    return true;
}

static bool m_split(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    struct mx_jval *out)
{
    return split(r, self, a, false, out);
}

static bool m_rsplit(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                     struct mx_jval *out)
{
    return split(r, self, a, true, out);
}

static bool m_splitlines(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                         struct mx_jval *out)
{
    static const char *const names[] = {"keepends", NULL};
    struct mx_jval v[1];
    struct mx_jlist *l = mx_jlist_new(r, 0);
    if (!l || !mx_jbind(r, "splitlines", a, names, 0, v) ||
        !mx_jsplitlines(r, str(self), mx_jtruth(v), l))
        return false;
    *out = mx_jlistval(MX_J_LIST, l);
    return true;
}

static bool m_join(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                   struct mx_jval *out)
{
    static const char *const names[] = {"iterable", NULL};
    struct mx_jval v[1];
    const struct mx_jval *items;
    size_t n;
    return mx_jbind(r, "join", a, names, 1, v) && mx_jiterate(r, v, &items, &n) &&
           mx_jjoin(r, str(self), items, n, true, out);
}

static bool partition(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                      bool last, struct mx_jval *out)
{
    static const char *const names[] = {"sep", NULL};
    const struct mx_jstr *s = str(self), *sep;
    struct mx_jval v[1], part[3];
    int64_t hit;
    if (!mx_jbind(r, "partition", a, names, 1, v) || !mx_jarg_str(r, "sep", v, &sep))
        return false;
    if (!sep || sep->len == 0)
        return mx_jfail(r, "empty separator");
    if (!mx_jfind(r, s, sep, 0, s->len, last, &hit))
        return false;
    size_t at = hit >= 0 ? (size_t)hit : last ? 0 : s->len;
    size_t behind = hit >= 0 ? at + sep->len : at;
    return mx_jstr_sub(r, s, 0, at, &part[0]) && mx_jstr_sub(r, s, at, behind, &part[1]) &&
           mx_jstr_sub(r, s, behind, s->len, &part[2]) && mx_jtuple(r, part, 3, out);
}

static bool m_partition(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                        struct mx_jval *out)
{
    return partition(r, self, a, false, out);
}

static bool m_rpartition(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                         struct mx_jval *out)
{
    return partition(r, self, a, true, out);
}

/* ---- str: searching ----------------------------------------------------------------------- */

/* Python's start and end arguments (code points, negative from the end) as byte offsets. */
static bool window(struct mx_jrun *r, const struct mx_jstr *s, const struct mx_jval *start,
                   const struct mx_jval *end, size_t *from, size_t *to)
{
    int64_t n = (int64_t)mx_jstr_count(s), i = 0, j = n;
    if (!mx_jarg_int(r, "start", start, &i) || !mx_jarg_int(r, "end", end, &j))
        return false;
    i = i < 0 ? i + n : i;
    j = j < 0 ? j + n : j;
    i = i < 0 ? 0 : i;
    j = j < 0 ? 0 : j > n ? n : j;
    *to = mx_jstr_offset(s, (size_t)j);
    *from = i > n ? s->len + 1 : mx_jstr_offset(s, (size_t)i);
    return mx_jstep(r, s->len / 256);
}

struct search {
    const struct mx_jstr *sub;
    size_t from, to;
};

static const char *const search_names[] = {"sub", "start", "end", NULL};

static bool search_args(struct mx_jrun *r, const char *what, const struct mx_jval *self,
                        const struct mx_jargs *a, struct search *q)
{
    struct mx_jval v[3];
    if (!mx_jbind(r, what, a, search_names, 1, v) || !mx_jarg_str(r, what, &v[0], &q->sub) ||
        !window(r, str(self), &v[1], &v[2], &q->from, &q->to))
        return false;
    return q->sub || mx_jfail(r, "%s: must be str, not None", what);
}

/* The code point index of the match, -1 when there is none. */
static bool find(struct mx_jrun *r, const char *what, const struct mx_jval *self,
                 const struct mx_jargs *a, bool last, int64_t *out)
{
    struct search q;
    if (!search_args(r, what, self, a, &q) ||
        !mx_jfind(r, str(self), q.sub, q.from, q.to, last, out))
        return false;
    if (*out > 0 && !str(self)->ascii) {
        const struct mx_jstr before = {.p = str(self)->p, .len = (size_t)*out};
        *out = (int64_t)mx_jstr_count(&before);
    }
    return true;
}

static bool m_find(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                   struct mx_jval *out)
{
    *out = mx_jint(-1);
    return find(r, "find", self, a, false, &out->u.i);
}

static bool m_rfind(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    struct mx_jval *out)
{
    *out = mx_jint(-1);
    return find(r, "rfind", self, a, true, &out->u.i);
}

static bool index_of(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                     bool last, struct mx_jval *out)
{
    *out = mx_jint(-1);
    if (!find(r, "index", self, a, last, &out->u.i))
        return false;
    return out->u.i >= 0 || mx_jfail(r, "substring not found");
}

static bool m_index(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    struct mx_jval *out)
{
    return index_of(r, self, a, false, out);
}

static bool m_rindex(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                     struct mx_jval *out)
{
    return index_of(r, self, a, true, out);
}

static bool m_count(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    struct mx_jval *out)
{
    struct search q;
    int64_t n = 0, hit;
    if (!search_args(r, "count", self, a, &q))
        return false;
    if (q.sub->len == 0) {
        const struct mx_jstr part = {.p = str(self)->p + q.from,
                                     .len = q.from <= q.to ? q.to - q.from : 0};
        n = q.from <= q.to ? (int64_t)mx_jstr_count(&part) + 1 : 0;
    }
    while (q.sub->len) {
        if (!mx_jfind(r, str(self), q.sub, q.from, q.to, false, &hit))
            return false;
        if (hit < 0)
            break;
        n++;
        q.from = (size_t)hit + q.sub->len;
    }
    *out = mx_jint(n);
    return true;
}

static bool affix_matches(const struct mx_jstr *s, size_t from, size_t to,
                          const struct mx_jstr *affix, bool end)
{
    if (from > to || to - from < affix->len)
        return false;
    size_t at = end ? to - affix->len : from;
    return affix->len == 0 || memcmp(s->p + at, affix->p, affix->len) == 0;
}

/* startswith and endswith: a string or a tuple of strings. */
static bool has_affix(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                      bool end, struct mx_jval *out)
{
    struct mx_jval v[3];
    size_t from, to;
    if (!mx_jbind(r, end ? "endswith" : "startswith", a, search_names, 1, v) ||
        !window(r, str(self), &v[1], &v[2], &from, &to))
        return false;
    const struct mx_jval *affix = &v[0];
    size_t n = 1;
    if (v[0].type == MX_J_TUPLE) {
        affix = v[0].u.l->v;
        n = v[0].u.l->n;
    }
    bool found = false;
    for (size_t i = 0; i < n && !found; i++) {
        if (affix[i].type != MX_J_STR)
            return mx_jfail(r, "%s first arg must be str or a tuple of str, not %s",
                            end ? "endswith" : "startswith", mx_jtype_name(&affix[i]));
        if (!mx_jstep(r, 1))
            return false;
        found = affix_matches(str(self), from, to, affix[i].u.s, end);
    }
    *out = mx_jbool(found);
    return true;
}

static bool m_startswith(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                         struct mx_jval *out)
{
    return has_affix(r, self, a, false, out);
}

static bool m_endswith(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                       struct mx_jval *out)
{
    return has_affix(r, self, a, true, out);
}

static bool remove_affix(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                         bool end, struct mx_jval *out)
{
    static const char *const names[] = {"affix", NULL};
    const struct mx_jstr *s = str(self), *affix;
    struct mx_jval v[1];
    if (!mx_jbind(r, end ? "removesuffix" : "removeprefix", a, names, 1, v) ||
        !mx_jarg_str(r, "affix", v, &affix))
        return false;
    size_t n = affix && affix_matches(s, 0, s->len, affix, end) ? affix->len : 0;
    return mx_jstr_sub(r, s, end ? 0 : n, end ? s->len - n : s->len, out);
}

static bool m_removeprefix(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                           struct mx_jval *out)
{
    return remove_affix(r, self, a, false, out);
}

static bool m_removesuffix(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                           struct mx_jval *out)
{
    return remove_affix(r, self, a, true, out);
}

static bool m_replace(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                      struct mx_jval *out)
{
    static const char *const names[] = {"old", "new", "count", NULL};
    struct mx_jval v[3];
    const struct mx_jstr *from, *to;
    int64_t count = -1;
    if (!mx_jbind(r, "replace", a, names, 2, v) || !mx_jarg_str(r, "replace", &v[0], &from) ||
        !mx_jarg_str(r, "replace", &v[1], &to) || !mx_jarg_int(r, "count", &v[2], &count))
        return false;
    if (!from || !to)
        return mx_jfail(r, "replace() arguments must be str, not None");
    return mx_jreplace(r, str(self), from, to, count, out);
}

/* ---- str: classes ------------------------------------------------------------------------- */

static bool class_test(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                       enum mx_jclass c, struct mx_jval *out)
{
    if (!no_arguments(r, "character test", a) || !mx_jstep(r, str(self)->len / 16))
        return false;
    *out = mx_jbool(mx_jis_class(str(self), c));
    return true;
}

#define CLASS_METHOD(name, which)                                                                  \
    static bool name(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,      \
                     struct mx_jval *out)                                                          \
    {                                                                                              \
        return class_test(r, self, a, which, out);                                                 \
    }
CLASS_METHOD(m_isalpha, MX_JCL_ALPHA)
CLASS_METHOD(m_isdigit, MX_JCL_DIGIT)
CLASS_METHOD(m_isalnum, MX_JCL_ALNUM)
CLASS_METHOD(m_isspace, MX_JCL_SPACE)
CLASS_METHOD(m_isupper, MX_JCL_UPPER)
CLASS_METHOD(m_islower, MX_JCL_LOWER)
CLASS_METHOD(m_isascii, MX_JCL_ASCII)

/* ---- dict --------------------------------------------------------------------------------- */

static bool view(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a, char kind,
                 struct mx_jval *out)
{
    const struct mx_jdict *d = self->u.d;
    struct mx_jlist *l = mx_jlist_new(r, d->n);
    if (!l || !no_arguments(r, "dict method", a) || !mx_jstep(r, d->n / 4))
        return false;
    for (; l->n < d->n; l->n++) {
        const struct mx_jval pair[2] = {d->v[l->n].key, d->v[l->n].value};
        if (kind != 'i')
            l->v[l->n] = pair[kind == 'v'];
        else if (!mx_jtuple(r, pair, 2, &l->v[l->n]))
            return false;
    }
    *out = mx_jlistval(MX_J_VIEW, l);
    out->of = (uint8_t)kind;
    return true;
}

static bool m_items(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    struct mx_jval *out)
{
    return view(r, self, a, 'i', out);
}

static bool m_keys(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                   struct mx_jval *out)
{
    return view(r, self, a, 'k', out);
}

static bool m_values(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                     struct mx_jval *out)
{
    return view(r, self, a, 'v', out);
}

static bool m_get(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                  struct mx_jval *out)
{
    static const char *const names[] = {"key", "default", NULL};
    struct mx_jval v[2], *found;
    if (!mx_jbind(r, "get", a, names, 1, v) || !mx_jdict_get(r, self->u.d, &v[0], &found))
        return false;
    *out = found ? *found : v[1].type == MX_J_MISSING ? mx_jnone() : v[1];
    return true;
}

/* Values do not change, so a copy is the value itself. */
static bool m_copy(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                   struct mx_jval *out)
{
    *out = *self;
    return no_arguments(r, "copy", a);
}

/* ---- list and tuple ----------------------------------------------------------------------- */

/* Counts equal elements; *first is the index of the first, or -1. */
static bool tally(struct mx_jrun *r, const char *what, const struct mx_jval *self,
                  const struct mx_jargs *a, int64_t *count, int64_t *first)
{
    static const char *const names[] = {"value", NULL};
    struct mx_jval v[1];
    *count = 0;
    *first = -1;
    if (!mx_jbind(r, what, a, names, 1, v))
        return false;
    for (size_t i = 0; i < self->u.l->n; i++) {
        bool same;
        if (!mx_jstep(r, 1) || !mx_jequal(r, &self->u.l->v[i], v, &same))
            return false;
        if (same && *first < 0)
            *first = (int64_t)i;
        *count += same;
    }
    return true;
}

static bool m_list_count(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                         struct mx_jval *out)
{
    int64_t first;
    *out = mx_jint(0);
    return tally(r, "count", self, a, &out->u.i, &first);
}

static bool m_list_index(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                         struct mx_jval *out)
{
    int64_t count;
    *out = mx_jint(0);
    if (!tally(r, "index", self, a, &count, &out->u.i))
        return false;
    return count > 0 || mx_jfail(r, "value is not in the %s", mx_jtype_name(self));
}

/* ---- cycler ------------------------------------------------------------------------------- */

static bool m_next(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                   struct mx_jval *out)
{
    struct mx_jcycler *c = self->u.cycler;
    *out = c->v[c->pos];
    c->pos = (c->pos + 1) % c->n;
    return no_arguments(r, "next", a);
}

static bool m_reset(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    struct mx_jval *out)
{
    self->u.cycler->pos = 0;
    *out = mx_jnone();
    return no_arguments(r, "reset", a);
}

/* ---- loop --------------------------------------------------------------------------------- */

static bool m_cycle(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    struct mx_jval *out)
{
    if (a->npos == 0)
        return mx_jfail(r, "no items for cycling given");
    *out = a->pos[self->u.loop->i % a->npos];
    return true;
}

static bool m_changed(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                      struct mx_jval *out)
{
    struct mx_jloop *l = self->u.loop;
    struct mx_jval now;
    bool same = false;
    if (!mx_jtuple(r, a->pos, a->npos, &now))
        return false;
    if (l->changed.type != MX_J_MISSING && !mx_jequal(r, &l->changed, &now, &same))
        return false;
    l->changed = now;
    *out = mx_jbool(!same);
    return true;
}

/* ---- Tables ------------------------------------------------------------------------------- */

static const struct mx_jdef str_methods[] = {
    {"capitalize", m_capitalize, true},
    {"casefold", m_lower, true},
    {"center", m_center, true},
    {"count", m_count, false},
    {"endswith", m_endswith, false},
    {"find", m_find, false},
    {"format", mx_jformat, true},
    {"index", m_index, false},
    {"isalnum", m_isalnum, false},
    {"isalpha", m_isalpha, false},
    {"isascii", m_isascii, false},
    {"isdecimal", m_isdigit, false},
    {"isdigit", m_isdigit, false},
    {"islower", m_islower, false},
    {"isnumeric", m_isdigit, false},
    {"isspace", m_isspace, false},
    {"isupper", m_isupper, false},
    {"join", m_join, true},
    {"ljust", m_ljust, true},
    {"lower", m_lower, true},
    {"lstrip", m_lstrip, true},
    {"partition", m_partition, false},
    {"removeprefix", m_removeprefix, true},
    {"removesuffix", m_removesuffix, true},
    {"replace", m_replace, true},
    {"rfind", m_rfind, false},
    {"rindex", m_rindex, false},
    {"rjust", m_rjust, true},
    {"rpartition", m_rpartition, false},
    {"rsplit", m_rsplit, false},
    {"rstrip", m_rstrip, true},
    {"split", m_split, false},
    {"splitlines", m_splitlines, false},
    {"startswith", m_startswith, false},
    {"strip", m_strip, true},
    {"swapcase", m_swapcase, true},
    {"title", m_title, true},
    {"upper", m_upper, true},
    {"zfill", m_zfill, true},
};

static const struct mx_jdef dict_methods[] = {
    {"copy", m_copy, false}, {"get", m_get, false},       {"items", m_items, false},
    {"keys", m_keys, false}, {"values", m_values, false},
};

/* A tuple has no copy(). */
static const struct mx_jdef list_methods[] = {
    {"count", m_list_count, false},
    {"index", m_list_index, false},
    {"copy", m_copy, false},
};

static const struct mx_jdef cycler_methods[] = {
    {"next", m_next, false},
    {"reset", m_reset, false},
};

static const struct mx_jdef loop_methods[] = {
    {"changed", m_changed, false},
    {"cycle", m_cycle, false},
};

const struct mx_jdef *mx_jfind_def(const struct mx_jdef *table, size_t n,
                                   const struct mx_jstr *name)
{
    for (size_t i = 0; i < n; i++) {
        if (mx_jstr_is(name, table[i].name))
            return &table[i];
    }
    return NULL;
}

const struct mx_jdef *mx_jfind_method(const struct mx_jval *v, const struct mx_jstr *name)
{
    switch (v->type) {
    case MX_J_STR: return mx_jfind_def(str_methods, COUNT(str_methods), name);
    case MX_J_DICT: return mx_jfind_def(dict_methods, COUNT(dict_methods), name);
    case MX_J_LIST: return mx_jfind_def(list_methods, COUNT(list_methods), name);
    case MX_J_TUPLE: return mx_jfind_def(list_methods, COUNT(list_methods) - 1, name);
    case MX_J_CYCLER: return mx_jfind_def(cycler_methods, COUNT(cycler_methods), name);
    case MX_J_LOOP: return mx_jfind_def(loop_methods, COUNT(loop_methods), name);
    default: return NULL;
    }
}

static bool listed(const char *const *names, size_t n, const struct mx_jstr *name)
{
    for (size_t i = 0; i < n; i++) {
        if (mx_jstr_is(name, names[i]))
            return true;
    }
    return false;
}

bool mx_jforbidden(const struct mx_jval *v, const struct mx_jstr *name)
{
    static const char *const of_list[] = {"append", "clear",  "extend",  "insert",
                                          "pop",    "remove", "reverse", "sort"};
    static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update"};
    if (v->type == MX_J_LIST)
        return listed(of_list, COUNT(of_list), name);
    return v->type == MX_J_DICT && listed(of_dict, COUNT(of_dict), name);
}
