/* Shared internals of the Jinja interpreter (jinja_*.c): tokens, syntax tree, values, run state.
 *
 * Pipeline: jinja_lex.c cuts the source into tokens, jinja_parse.c builds an immutable tree in the
 * template's arena, jinja_exec.c walks the statements and jinja_eval.c the expressions.
 *
 * Invariants
 *  1. The tree and everything it points to (constants included) never changes after parsing, so
 *     threads may share it.
 *  2. Every value of a render lives in that render's arena, or in the tree, or in the caller's
 *     JSON; all three outlive the render. Nothing is freed before its end.
 *  3. Values are immutable but for namespaces, cyclers, joiners, loops and the read position of
 *     generators. Cycles can only pass through a namespace, and every recursive walk over values
 *     counts its depth.
 *  4. All strings are valid UTF-8.
 *  5. Whatever takes time in proportion to a value's size pays for it through mx_jstep(), and
 *     whatever takes memory through mx_jalloc(), so the limits hold for any template.
 *
 * Functions returning bool return false after an error was written (with the template line). */
#ifndef MX_TEXT_JINJA_INT_H
#define MX_TEXT_JINJA_INT_H

#include "base/arena.h"
#include "text/jinja.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Limits that are properties of the language rather than of a render ------------------- */

enum {
    MX_J_MAX_SOURCE = 4 << 20,
    MX_J_MAX_NESTING = 200,   /* brackets, blocks and operators inside each other in the source */
    MX_J_MAX_JSON = 1 << 20,  /* bytes from_json reads: its parser's memory is not the arena's */
    MX_J_MAX_RANGE = 100000,  /* as jinja2's sandbox */
    MX_J_DEPTH_PER_CALL = 10, /* nested evaluations allowed per unit of max_depth */
};

/* ---- Values ------------------------------------------------------------------------------- */

enum mx_jtype {
    MX_J_MISSING = 0, /* an argument or variable that is not there; never visible to a template */
    MX_J_UNDEF,
    MX_J_NONE,
    MX_J_BOOL,
    MX_J_INT,
    MX_J_FLOAT,
    MX_J_STR,
    MX_J_LIST,
    MX_J_TUPLE,
    MX_J_VIEW, /* dict.keys(), .values(), .items(): iterable, sized, not indexable */
    MX_J_GEN,  /* result of a lazy filter: iterable once */
    MX_J_DICT,
    MX_J_RANGE,
    MX_J_NAMESPACE,
    MX_J_MACRO,
    MX_J_FUNC,  /* a global function */
    MX_J_BOUND, /* a method bound to its object */
    MX_J_LOOP,
    MX_J_CYCLER,
    MX_J_JOINER,
};

/* Why a value is undefined; with `of` (the type asked) and the name it makes the error text. */
enum mx_jwhy {
    MX_JU_NAME,      /* no such variable */
    MX_JU_ATTR,      /* no such attribute or key */
    MX_JU_INDEX,     /* no such element */
    MX_JU_PARAM,     /* macro parameter not given */
    MX_JU_NO_ELSE,   /* conditional expression without else */
    MX_JU_EMPTY,     /* first/last/min/max of nothing */
    MX_JU_FORBIDDEN, /* a method that would change its object */
};

/* Space behind a string that one later string may grow into: a chain of `s = s + x` then costs
 * amortised linear time and memory instead of quadratic. */
struct mx_jspace {
    char *data;
    size_t used, cap;
};

struct mx_jstr {
    const char *p; /* not NUL-terminated */
    size_t len;    /* bytes */
    struct mx_jspace *space;
    bool ascii;
    bool safe; /* marked by |safe: `+` HTML-escapes what is added to it */
};

struct mx_jval {
    uint8_t type;
    uint8_t why; /* MX_J_UNDEF: enum mx_jwhy */
    uint8_t of;  /* MX_J_UNDEF: type of the object that was asked; MX_J_VIEW: 'k', 'v' or 'i' */
    union {
        bool b;
        int64_t i;
        double f;
        const struct mx_jstr *s; /* also the name of an undefined value (may be NULL) */
        struct mx_jlist *l;      /* list, tuple, view, generator */
        struct mx_jdict *d;      /* dict, namespace */
        struct mx_jrange *r;
        struct mx_jmacro *macro;
        const struct mx_jdef *func;
        struct mx_jbound *bound;
        struct mx_jloop *loop;
        struct mx_jcycler *cycler;
        struct mx_jjoiner *joiner;
    } u;
};

struct mx_jlist {
    struct mx_jval *v;
    size_t n, cap;
    size_t pos; /* generators: elements already taken */
};

/* Insertion-ordered hash map. Keys compare as in Python: 1, 1.0 and true are one key. */
struct mx_jentry {
    struct mx_jval key, value;
    uint64_t hash;
};
struct mx_jdict {
    struct mx_jentry *v;
    size_t n, cap;
    uint32_t *index; /* open addressing, entry number + 1; NULL while the dict is small */
    size_t mask;
};

struct mx_jrange {
    int64_t start, stop, step;
    size_t n;
};

/* Element i. Unsigned, because i * step may pass 2^63 where the element itself does not. */
static inline int64_t mx_jrange_at(const struct mx_jrange *g, size_t i)
{
    return (int64_t)((uint64_t)g->start + i * (uint64_t)g->step);
}

struct mx_jbound {
    struct mx_jval self;
    const struct mx_jdef *def;
};

struct mx_jcycler {
    const struct mx_jval *v;
    size_t n, pos;
};

struct mx_jjoiner {
    struct mx_jval sep;
    bool used;
};

/* ---- Calls -------------------------------------------------------------------------------- */

struct mx_jrun;

struct mx_jkw {
    const struct mx_jstr *name;
    struct mx_jval v;
};
struct mx_jargs {
    const struct mx_jval *pos;
    size_t npos;
    const struct mx_jkw *kw;
    size_t nkw;
};

/* Filters and methods take the object as `self`; global functions get NULL. */
typedef bool mx_jfn(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                    struct mx_jval *out);
typedef bool mx_jtestfn(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                        bool *out);

struct mx_jdef {
    const char *name;
    mx_jfn *fn;
    bool keeps_safe; /* the result of a string marked safe is marked too */
};
struct mx_jtestdef {
    const char *name;
    mx_jtestfn *fn;
};

/* ---- Syntax tree -------------------------------------------------------------------------- */

enum mx_jkind {
    /* expressions */
    MX_JN_CONST,
    MX_JN_NAME,
    MX_JN_LIST,
    MX_JN_TUPLE,
    MX_JN_DICT, /* items: key, value, key, value, ... */
    MX_JN_NOT,
    MX_JN_NEG,
    MX_JN_POS,
    MX_JN_ARITH,   /* chain of left-associative operators of one precedence */
    MX_JN_COMPARE, /* chain: a < b <= c */
    MX_JN_CONCAT,
    MX_JN_AND,
    MX_JN_OR,
    MX_JN_COND, /* items: condition, value, else or NULL */
    MX_JN_ATTR,
    MX_JN_INDEX, /* items: object, subscript */
    MX_JN_SLICE, /* items: object, start, stop, step (NULL where absent) */
    MX_JN_CALL,
    MX_JN_FILTER,
    MX_JN_TEST,
    /* statements */
    MX_JN_DATA,
    MX_JN_OUTPUT,
    MX_JN_IF,
    MX_JN_FOR,
    MX_JN_SET,
    MX_JN_SET_BLOCK,
    MX_JN_MACRO,
    MX_JN_CALL_BLOCK,
    MX_JN_FILTER_BLOCK,
    MX_JN_WITH,
    MX_JN_GROUP, /* {% generation %}: just its body */
    MX_JN_BREAK,
    MX_JN_CONTINUE,
    MX_JN_NSREF, /* assignment target ns.attr */
};

enum mx_jop {
    MX_JOP_ADD,
    MX_JOP_SUB,
    MX_JOP_MUL,
    MX_JOP_DIV,
    MX_JOP_FLOORDIV,
    MX_JOP_MOD,
    MX_JOP_POW,
    MX_JOP_EQ,
    MX_JOP_NE,
    MX_JOP_LT,
    MX_JOP_LE,
    MX_JOP_GT,
    MX_JOP_GE,
    MX_JOP_IN,
    MX_JOP_NOT_IN,
};

struct mx_jnodes {
    struct mx_jnode **v;
    size_t n;
};

struct mx_jterm {
    enum mx_jop op;
    struct mx_jnode *e;
};

enum mx_jargkind { MX_JA_POS, MX_JA_KW, MX_JA_STAR, MX_JA_DSTAR };

struct mx_jarg {
    enum mx_jargkind kind;
    const struct mx_jstr *name; /* MX_JA_KW */
    struct mx_jnode *e;
};
struct mx_jarglist {
    struct mx_jarg *v;
    size_t n;
};

struct mx_jparams {
    struct mx_jnode **names;    /* MX_JN_NAME */
    struct mx_jnode **defaults; /* NULL: no default */
    size_t n;
};

struct mx_jmacrodef {
    const struct mx_jstr *name; /* NULL for the body of a call block */
    int id;                     /* variable it is assigned to */
    struct mx_jparams params;
    struct mx_jnodes body;
    bool uses_varargs, uses_kwargs, uses_caller;
};

struct mx_jnode {
    enum mx_jkind kind;
    int line;
    union {
        struct mx_jval value; /* CONST */
        struct {
            int id;
            const struct mx_jstr *name;
        } name;                 /* NAME; NSREF uses it for the namespace, with `attr` */
        struct mx_jnodes items; /* LIST, TUPLE, DICT, CONCAT, AND, OR, COND, INDEX, SLICE; NOT, NEG
                                   and POS have one; OUTPUT and GROUP list children */
        struct {
            struct mx_jnode *first;
            struct mx_jterm *terms;
            size_t n;
        } chain; /* ARITH, COMPARE */
        struct {
            struct mx_jnode *e;
            const struct mx_jstr *name;
        } attr; /* ATTR */
        struct {
            int id;
            const struct mx_jstr *name, *attr;
        } nsref;
        struct {
            struct mx_jnode *e; /* the callee, or the filtered or tested value (NULL for the body of
                                   a filter block or block set) */
            struct mx_jarglist args;
            const struct mx_jstr *name; /* FILTER, TEST */
            const struct mx_jdef *filter;
            const struct mx_jtestdef *test;
            bool negate;
        } call;
        struct {
            const char *p;
            size_t len;
        } data;
        struct {
            struct mx_jnode *cond; /* NULL for else */
            struct mx_jnodes body;
            struct mx_jnode *next; /* elif or else, an IF node */
        } branch;
        struct {
            struct mx_jnode *target, *iter, *filter; /* filter may be NULL */
            struct mx_jnodes body, otherwise;
            bool recursive;
        } loop;
        struct {
            struct mx_jnode *target, *value; /* value: SET; for SET_BLOCK a filter chain or NULL */
            struct mx_jnodes body;
        } set;
        struct mx_jmacrodef macro;
        struct {
            struct mx_jnode *call; /* CALL_BLOCK: the call; FILTER_BLOCK: the filter chain */
            struct mx_jnode *macro;
            struct mx_jnodes body;
        } block;
        struct {
            struct mx_jnode **targets, **values;
            size_t n;
            struct mx_jnodes body;
        } with;
    } u;
};

struct mx_jinja {
    struct mx_arena arena;
    const char *name;
    const char *src; /* newlines normalised to \n */
    size_t len;
    struct mx_jnodes body;
    const struct mx_jstr **names; /* variables the template mentions, by id */
    int n_names;
    int id_loop, id_caller, id_varargs, id_kwargs;
};

/* ---- Lexer -------------------------------------------------------------------------------- */

enum mx_jtok {
    MX_JT_EOF,
    MX_JT_ERROR,
    MX_JT_DATA,
    MX_JT_VAR_BEGIN,
    MX_JT_VAR_END,
    MX_JT_BLOCK_BEGIN,
    MX_JT_BLOCK_END,
    MX_JT_NAME,
    MX_JT_STRING,
    MX_JT_INT,
    MX_JT_FLOAT,
    MX_JT_ADD,
    MX_JT_SUB,
    MX_JT_MUL,
    MX_JT_DIV,
    MX_JT_FLOORDIV,
    MX_JT_MOD,
    MX_JT_POW,
    MX_JT_TILDE,
    MX_JT_EQ,
    MX_JT_NE,
    MX_JT_LT,
    MX_JT_LE,
    MX_JT_GT,
    MX_JT_GE,
    MX_JT_ASSIGN,
    MX_JT_LPAREN,
    MX_JT_RPAREN,
    MX_JT_LBRACKET,
    MX_JT_RBRACKET,
    MX_JT_LBRACE,
    MX_JT_RBRACE,
    MX_JT_DOT,
    MX_JT_COMMA,
    MX_JT_COLON,
    MX_JT_PIPE,
    MX_JT_SEMICOLON,
};

struct mx_jtoken {
    enum mx_jtok type;
    int line;
    const char *p; /* DATA, NAME: the text; STRING: the unescaped text */
    size_t len;
    int64_t i;
    double f;
};

struct mx_jlexer {
    const char *src, *name;
    size_t len, pos;
    int line;
    enum { MX_JL_ROOT, MX_JL_VAR, MX_JL_BLOCK } state;
    bool line_starting;          /* the text consumed so far ends with a newline (or is empty) */
    char open[MX_J_MAX_NESTING]; /* brackets to be closed in this tag, by their closing character */
    int n_open;
    struct mx_jtoken queue[3]; /* one step of the root state may give several tokens */
    int q_head, q_len;
    struct mx_arena *arena;
    mtplx_error *err;
};

void mx_jlex_init(struct mx_jlexer *l, const struct mx_jinja *j, struct mx_arena *arena,
                  mtplx_error *err);
/* MX_JT_ERROR after an error was written. */
struct mx_jtoken mx_jlex_next(struct mx_jlexer *l);
const char *mx_jtok_name(enum mx_jtok t);

/* "NAME line N: message"; returns false. */
bool mx_jsyntax(mtplx_error *err, const char *name, int line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* ---- Parser ------------------------------------------------------------------------------- */

/* Fills j->body and the names from j->src. */
bool mx_jparse(struct mx_jinja *j, mtplx_error *err);

/* ---- Run state ---------------------------------------------------------------------------- */

struct mx_jvar {
    int id;
    struct mx_jval v;
};

/* Variables of a loop body, macro call or with block. The root's are in mx_jrun.globals. */
struct mx_jscope {
    struct mx_jscope *up; /* NULL: the root is next */
    struct mx_jvar *v;
    size_t n, cap;
};

/* Where output goes: the caller's buffer, or (sb NULL) a growing string in the arena. */
struct mx_jout {
    struct mx_strbuf *sb;
    char *p;
    size_t len, cap;
};

struct mx_jmacro {
    const struct mx_jmacrodef *def;
    struct mx_jscope *scope; /* where it was defined */
};

struct mx_jloop {
    const struct mx_jnode *node;
    struct mx_jscope *scope; /* around the loop, for loop(...) */
    const struct mx_jval *v;
    size_t n, i;
    int depth0;
    struct mx_jval changed; /* last arguments of loop.changed(), a tuple; MISSING at first */
};

struct mx_jrun {
    const struct mx_jinja *j;
    struct mx_arena arena;
    mtplx_error *err;
    int line; /* of what is being evaluated */
    int depth, max_depth;
    int calls, max_calls;
    uint64_t steps, max_steps;
    size_t out_start, max_output;
    struct mx_jout *out;
    struct mx_jval *globals; /* by variable id */
    uint64_t seed;
    int64_t now;
};

/* ---- jinja_value.c: construction, JSON, comparison ---------------------------------------- */

/* Writes "NAME line N: ..." and returns false. */
bool mx_jfail(struct mx_jrun *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The template's own raise_exception(): it refuses the arguments. */
bool mx_jraise(struct mx_jrun *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool mx_jfail_limit(struct mx_jrun *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The error for using an undefined value: "'x' is undefined". */
bool mx_jfail_undef(struct mx_jrun *r, const struct mx_jval *v);

/* Pays for `cost` units of work. */
bool mx_jstep(struct mx_jrun *r, size_t cost);
bool mx_jenter(struct mx_jrun *r);
static inline void mx_jleave(struct mx_jrun *r)
{
    r->depth--;
}

/* Zeroed memory for n objects of `size` bytes. */
void *mx_jalloc(struct mx_jrun *r, size_t n, size_t size);

static inline struct mx_jval mx_jnone(void)
{
    return (struct mx_jval){.type = MX_J_NONE};
}
static inline struct mx_jval mx_jbool(bool b)
{
    return (struct mx_jval){.type = MX_J_BOOL, .u.b = b};
}
static inline struct mx_jval mx_jint(int64_t i)
{
    return (struct mx_jval){.type = MX_J_INT, .u.i = i};
}
static inline struct mx_jval mx_jfloat(double f)
{
    return (struct mx_jval){.type = MX_J_FLOAT, .u.f = f};
}
static inline struct mx_jval mx_jundef(enum mx_jwhy why, uint8_t of, const struct mx_jstr *name)
{
    return (struct mx_jval){.type = MX_J_UNDEF, .why = (uint8_t)why, .of = of, .u.s = name};
}
static inline struct mx_jval mx_jstrval(const struct mx_jstr *s)
{
    return (struct mx_jval){.type = MX_J_STR, .u.s = s};
}

/* A string over memory that outlives the render; the text must be valid UTF-8. */
bool mx_jstr_view(struct mx_jrun *r, const char *p, size_t len, struct mx_jval *out);
bool mx_jstr_copy(struct mx_jrun *r, const char *p, size_t len, struct mx_jval *out);
/* Part [from, to) in bytes of a string, sharing its memory. */
bool mx_jstr_sub(struct mx_jrun *r, const struct mx_jstr *s, size_t from, size_t to,
                 struct mx_jval *out);
bool mx_jstr_concat(struct mx_jrun *r, const struct mx_jstr *a, const struct mx_jstr *b,
                    struct mx_jval *out);
bool mx_jstr_mark_safe(struct mx_jrun *r, struct mx_jval *v);
bool mx_jstr_is(const struct mx_jstr *s, const char *text);
bool mx_jascii(const char *p, size_t len);
/* Code points, and the byte offset of code point k (len when past the end). */
size_t mx_jstr_count(const struct mx_jstr *s);
size_t mx_jstr_offset(const struct mx_jstr *s, size_t k);
/* Python's str.isspace() for one code point. */
bool mx_jspace_cp(uint32_t cp);
/* Bytes of the whitespace character that starts at p[0..n) (0: none). */
size_t mx_jspace_at(const char *p, size_t n);
/* Bytes of the whitespace character that ends at p[n] (0: none). */
size_t mx_jspace_before(const char *p, size_t n);

struct mx_jlist *mx_jlist_new(struct mx_jrun *r, size_t cap);
bool mx_jlist_push(struct mx_jrun *r, struct mx_jlist *l, const struct mx_jval *v);
struct mx_jval mx_jlistval(enum mx_jtype type, struct mx_jlist *l);
/* A tuple of the values given. */
bool mx_jtuple(struct mx_jrun *r, const struct mx_jval *v, size_t n, struct mx_jval *out);

struct mx_jdict *mx_jdict_new(struct mx_jrun *r, size_t cap);
/* Fails when the key is not hashable. */
bool mx_jdict_set(struct mx_jrun *r, struct mx_jdict *d, const struct mx_jval *key,
                  const struct mx_jval *value);
/* *out is NULL when absent. Fails when the key is not hashable. */
bool mx_jdict_get(struct mx_jrun *r, const struct mx_jdict *d, const struct mx_jval *key,
                  struct mx_jval **out);
bool mx_jdict_get_str(struct mx_jrun *r, const struct mx_jdict *d, const struct mx_jstr *key,
                      struct mx_jval **out);
bool mx_jhashable(const struct mx_jval *v);

/* Converts JSON. Strings are shared with `json` unless `copy`. */
bool mx_jfrom_json(struct mx_jrun *r, const json_t *json, bool copy, struct mx_jval *out);

const char *mx_jtype_name(const struct mx_jval *v);
bool mx_jtruth(const struct mx_jval *v);
bool mx_jequal(struct mx_jrun *r, const struct mx_jval *a, const struct mx_jval *b, bool *out);
/* -1, 0, 1 as Python orders; fails for types without an order. */
bool mx_jcompare(struct mx_jrun *r, const struct mx_jval *a, const struct mx_jval *b,
                 const char *op, int *out);
/* Sorts by key. */
struct mx_jkeyed {
    struct mx_jval key, v;
};
bool mx_jsort(struct mx_jrun *r, struct mx_jkeyed *a, size_t n, bool reverse);
/* Number of elements, or false (with an error) for values without a length. */
bool mx_jlength(struct mx_jrun *r, const struct mx_jval *v, size_t *out);
bool mx_jiterable(const struct mx_jval *v);
/* All elements as an array: list elements, dict keys, characters. Consumes a generator. */
bool mx_jiterate(struct mx_jrun *r, const struct mx_jval *v, const struct mx_jval **items,
                 size_t *n);
/* True for int and bool; *out its value. */
bool mx_jas_int(const struct mx_jval *v, int64_t *out);
/* True for int, bool and float. */
bool mx_jas_float(const struct mx_jval *v, double *out);

/* ---- jinja_ops.c: operators, attributes, subscripts --------------------------------------- */

bool mx_jarith(struct mx_jrun *r, enum mx_jop op, const struct mx_jval *a, const struct mx_jval *b,
               struct mx_jval *out);
bool mx_jnegate(struct mx_jrun *r, const struct mx_jval *a, bool minus, struct mx_jval *out);
bool mx_jrelation(struct mx_jrun *r, enum mx_jop op, const struct mx_jval *a,
                  const struct mx_jval *b, bool *out);
bool mx_jcontains(struct mx_jrun *r, const struct mx_jval *item, const struct mx_jval *in,
                  bool *out);
/* a.name: attributes and methods first, then keys. Never fails but for an undefined object. */
bool mx_jgetattr(struct mx_jrun *r, const struct mx_jval *obj, const struct mx_jstr *name,
                 struct mx_jval *out);
/* Methods and attributes proper, without keys; MISSING when there is none. */
bool mx_jown_attr(struct mx_jrun *r, const struct mx_jval *obj, const struct mx_jstr *name,
                  struct mx_jval *out);
/* a[key]: keys and elements first, then attributes. */
bool mx_jgetitem(struct mx_jrun *r, const struct mx_jval *obj, const struct mx_jval *key,
                 struct mx_jval *out);
/* a[from:to:step]; each of the three may be None. */
bool mx_jslice(struct mx_jrun *r, const struct mx_jval *obj, const struct mx_jval *part,
               struct mx_jval *out);
/* The `attribute` argument of filters: "a.b.0" or an integer. `otherwise` (may be NULL) stands in
 * for what is not there. */
bool mx_jgetpath(struct mx_jrun *r, const struct mx_jval *obj, const struct mx_jval *path,
                 const struct mx_jval *otherwise, struct mx_jval *out);

/* ---- jinja_print.c ------------------------------------------------------------------------ */

bool mx_jput(struct mx_jrun *r, struct mx_jout *o, const char *p, size_t n);
bool mx_jputs(struct mx_jrun *r, struct mx_jout *o, const char *s);
bool mx_jput_cp(struct mx_jrun *r, struct mx_jout *o, uint32_t cp);
bool mx_jfill(struct mx_jrun *r, struct mx_jout *o, char c, int64_t n);
/* What was written to an arena output, as a string value. */
bool mx_jout_str(struct mx_jrun *r, struct mx_jout *o, struct mx_jval *out);
/* Python's str(v) and repr(v). */
bool mx_jprint(struct mx_jrun *r, struct mx_jout *o, const struct mx_jval *v);
bool mx_jrepr(struct mx_jrun *r, struct mx_jout *o, const struct mx_jval *v);
bool mx_jto_str(struct mx_jrun *r, const struct mx_jval *v, struct mx_jval *out);
/* repr(float): the shortest digits that read back as the same number. */
enum { MX_J_FLOAT_SIZE = 32 };
size_t mx_jfloat_repr(double f, char buf[MX_J_FLOAT_SIZE]);
/* Reads a decimal number; independent of the locale. False when s is not one. */
bool mx_jparse_float(const char *s, size_t n, double *out);

struct mx_jjson_style {
    bool ascii, sort, pretty;
    const struct mx_jstr *indent; /* per level, when pretty */
    const struct mx_jstr *item_sep, *key_sep;
};
/* Python's json.dumps. */
bool mx_jdumps(struct mx_jrun *r, struct mx_jout *o, const struct mx_jval *v,
               const struct mx_jjson_style *style);
/* Python's `format % args`. */
bool mx_jpercent(struct mx_jrun *r, const struct mx_jstr *fmt, const struct mx_jval *args,
                 struct mx_jval *out);
/* HTML escaping of & < > ' " */
bool mx_jescape(struct mx_jrun *r, const struct mx_jval *v, struct mx_jval *out);

/* ---- jinja_eval.c and jinja_exec.c -------------------------------------------------------- */

bool mx_jeval(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n,
              struct mx_jval *out);
/* Evaluates call arguments, with * and ** spread out. */
bool mx_jeval_args(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jarglist *l,
                   struct mx_jargs *out);
/* A filter node; `in` is the text of the block it ends, NULL in an expression. */
bool mx_jeval_filter(struct mx_jrun *r, struct mx_jscope *sc, const struct mx_jnode *n,
                     const struct mx_jval *in, struct mx_jval *out);
bool mx_jcall(struct mx_jrun *r, const struct mx_jval *callee, const struct mx_jargs *a,
              struct mx_jval *out);
bool mx_jcall_macro(struct mx_jrun *r, struct mx_jmacro *m, const struct mx_jargs *a,
                    struct mx_jval *out);
bool mx_jcall_loop(struct mx_jrun *r, struct mx_jloop *l, const struct mx_jargs *a,
                   struct mx_jval *out);
/* MISSING when no scope has the variable. */
struct mx_jval mx_jlookup(struct mx_jrun *r, struct mx_jscope *sc, int id);

/* ---- jinja_text.c: text operations shared by filters and methods
 * --------------------------------- */

/* `chars` may be NULL, MISSING or None: whitespace. */
bool mx_jstrip(struct mx_jrun *r, const struct mx_jstr *s, const struct mx_jval *chars, bool left,
               bool right, struct mx_jval *out);
enum mx_jcase { MX_JC_UPPER, MX_JC_LOWER, MX_JC_CAPITALIZE, MX_JC_TITLE, MX_JC_SWAP };
bool mx_jrecase(struct mx_jrun *r, const struct mx_jstr *s, enum mx_jcase how, struct mx_jval *out);
/* count < 0: all. */
bool mx_jreplace(struct mx_jrun *r, const struct mx_jstr *s, const struct mx_jstr *from,
                 const struct mx_jstr *to, int64_t count, struct mx_jval *out);
enum mx_jalign { MX_JALIGN_LEFT, MX_JALIGN_RIGHT, MX_JALIGN_CENTER };
/* Pads to `width` code points with `fill` (one code point). */
bool mx_jpad(struct mx_jrun *r, const struct mx_jstr *s, int64_t width, enum mx_jalign align,
             const struct mx_jstr *fill, struct mx_jval *out);
/* sep NULL: runs of whitespace. max < 0: no limit. */
bool mx_jsplit(struct mx_jrun *r, const struct mx_jstr *s, const struct mx_jstr *sep, int64_t max,
               bool from_right, struct mx_jlist *out);
bool mx_jsplitlines(struct mx_jrun *r, const struct mx_jstr *s, bool keep, struct mx_jlist *out);
bool mx_jjoin(struct mx_jrun *r, const struct mx_jstr *sep, const struct mx_jval *items, size_t n,
              bool strings_only, struct mx_jval *out);
/* Byte offset of the first (or last) `sub` within bytes [from, to) of s, or -1. */
bool mx_jfind(struct mx_jrun *r, const struct mx_jstr *s, const struct mx_jstr *sub, size_t from,
              size_t to, bool last, int64_t *out);
enum mx_jclass {
    MX_JCL_ALPHA,
    MX_JCL_DIGIT,
    MX_JCL_ALNUM,
    MX_JCL_SPACE,
    MX_JCL_UPPER,
    MX_JCL_LOWER,
    MX_JCL_ASCII,
};
/* Python's isalpha() and the like. */
bool mx_jis_class(const struct mx_jstr *s, enum mx_jclass c);
/* Is cp part of a word (\w)? */
bool mx_jword_cp(uint32_t cp);
/* Python's int(text, base); *ok is false when the text is no integer. */
bool mx_jparse_int(struct mx_jrun *r, const struct mx_jstr *s, int base, int64_t *out, bool *ok);

/* ---- jinja_filters.c, jinja_methods.c, jinja_format.c, jinja_builtins.c ------------------- */

const struct mx_jdef *mx_jfind_filter(const struct mx_jstr *name);
const struct mx_jtestdef *mx_jfind_test(const struct mx_jstr *name);
const struct mx_jdef *mx_jfind_function(const struct mx_jstr *name);
/* The method `name` of values of v's type, or NULL. */
const struct mx_jdef *mx_jfind_method(const struct mx_jval *v, const struct mx_jstr *name);
/* True for methods the sandbox refuses because they change their object. */
bool mx_jforbidden(const struct mx_jval *v, const struct mx_jstr *name);
/* Attributes of loops, macros, cyclers and groups; MISSING when there is none of that name. */
bool mx_jspecial_attr(struct mx_jrun *r, const struct mx_jval *v, const struct mx_jstr *name,
                      struct mx_jval *out);
const struct mx_jdef *mx_jfind_def(const struct mx_jdef *table, size_t n,
                                   const struct mx_jstr *name);
/* "text".format(...). */
bool mx_jformat(struct mx_jrun *r, const struct mx_jval *self, const struct mx_jargs *a,
                struct mx_jval *out);

/* Binds arguments to `names` (a NULL-terminated list) the way Python does, into out[]; absent ones
 * are MISSING. `required`: how many of the first must be present. `what` is for messages. */
bool mx_jbind(struct mx_jrun *r, const char *what, const struct mx_jargs *a,
              const char *const *names, size_t required, struct mx_jval *out);
/* An integer argument; *out keeps its value when v is MISSING or None. */
bool mx_jarg_int(struct mx_jrun *r, const char *what, const struct mx_jval *v, int64_t *out);
/* A string argument; NULL when v is MISSING or None. */
bool mx_jarg_str(struct mx_jrun *r, const char *what, const struct mx_jval *v,
                 const struct mx_jstr **out);
/* Applies a filter or method and keeps the safe mark of strings where it should. */
bool mx_japply_filter(struct mx_jrun *r, const struct mx_jdef *def, const struct mx_jval *v,
                      const struct mx_jargs *a, struct mx_jval *out);

#endif
