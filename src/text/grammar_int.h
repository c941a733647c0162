/* Inside of grammars: from an expression tree over rules to a byte machine with a stack.
 *
 *   grammar_ir.c       expressions: built by the front ends below
 *   grammar_charset.c  sets of code points
 *   grammar_compile.c  expressions -> states (struct mx_gprog), checked for left recursion and for
 *                      dead ends
 *   grammar_config.c   the machine: configurations (sets of stacks), hash-consed and stepped lazily
 *   grammar_tokens.c   the vocabulary as a trie
 *   grammar_mask.c     masks of configurations
 *   grammar_match.c    grammars and matchers: the public functions
 *   grammar_json.c     JSON building blocks;  grammar_number.c  ranges of numbers
 *   grammar_schema.c   JSON schemas;          grammar_merge.c   schemas that apply together
 *   grammar_regex.c, grammar_gbnf.c, grammar_tools.c
 *
 * Invariants:
 *   1. Every state of a program can reach the end of its rule within `height` further stack
 *      frames. The machine enters a state only where that many are left, so that a text which was
 *      accepted so far can always be completed.
 *   2. Limits below bound the memory of a compilation; the machine's are in grammar_config.c. */
#ifndef MX_TEXT_GRAMMAR_INT_H
#define MX_TEXT_GRAMMAR_INT_H

#include "base/arena.h"
#include "base/error.h"
#include "text/grammar.h"

enum {
    MX_GX_DEPTH = 200,         /* nesting of expressions */
    MX_GX_STATES = 1 << 20,    /* states of a program, and edges */
    MX_GX_STACK = 256,         /* frames of a stack */
    MX_GX_REPEAT = 1000000000, /* largest bound of a repetition */
    MX_GX_MACHINE = 16 << 20,  /* bytes of a machine's configurations, about */
    MX_GX_CREDIT = 1 << 25,    /* most stacks looked at for a mask: about half a second */
    MX_CP_MAX = 0x10ffff,
};

/* ---- Sets of code points ------------------------------------------------------------------------
 */

struct mx_cprange {
    uint32_t lo, hi;
};
/* Sorted, disjoint and not adjacent once normalised. */
struct mx_cpset {
    struct mx_cprange *v;
    int n, cap;
    struct mx_arena *arena;
};
/* False when memory is out (all of these). */
bool mx_cpset_add(struct mx_cpset *s, uint32_t lo, uint32_t hi);
void mx_cpset_normalise(struct mx_cpset *s);
/* Complement within the scalar values (no surrogates). */
bool mx_cpset_negate(struct mx_cpset *s);
bool mx_cpset_has(const struct mx_cpset *s, uint32_t cp);

/* ---- Expressions --------------------------------------------------------------------------------
 */

enum mx_gkind {
    MX_GX_FAIL,    /* matches nothing */
    MX_GX_EMPTY,   /* matches the empty text */
    MX_GX_LIT,     /* bytes */
    MX_GX_CHARS,   /* one code point of a set */
    MX_GX_SEQ,     /* kids one after another */
    MX_GX_ALT,     /* one of the kids */
    MX_GX_REP,     /* kids[0], min to max times; max -1: no bound */
    MX_GX_REF,     /* a rule */
    MX_GX_SPECIAL, /* one special token */
    MX_GX_AUTO,    /* a small machine over code points */
};

struct mx_gauto_edge {
    int from, to;
    uint32_t lo, hi;
};
/* State 0 is the start. Sets of edges that leave a state may overlap. */
struct mx_gauto {
    int n_states;
    bool *accept;
    struct mx_gauto_edge *edges;
    int n_edges, cap_edges;
};

struct mx_gexpr {
    enum mx_gkind kind;
    int depth;
    int n; /* kids, ranges, or bytes */
    int min, max;
    int ref; /* rule, or index of the special token's text */
    union {
        struct mx_gexpr **kids;
        const struct mx_cprange *ranges;
        const char *text;
        const struct mx_gauto *machine;
    } u;
};

struct mx_gbuild {
    struct mx_arena arena;
    mtplx_error *err;
    bool failed;             /* err says why; every function below then returns NULL */
    struct mx_gexpr **rules; /* by number; NULL: reserved and not defined yet */
    int n_rules, cap_rules;
    const char **specials; /* texts of special tokens that expressions name */
    int n_specials, cap_specials;
    bool once;        /* with a trigger: nothing but the end follows a match */
    bool gemma;       /* JSON values are spelled in the form of Gemma's tool calls */
    int json_rule[8]; /* shared rules of grammar_json.c; -1: none yet */
};

void mx_gbuild_init(struct mx_gbuild *b, mtplx_error *err);
void mx_gbuild_free(struct mx_gbuild *b);
/* Records the first failure; returns NULL. */
void *mx_gfail(struct mx_gbuild *b, mtplx_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Memory of the build; fails as LIMIT. */
void *mx_galloc(struct mx_gbuild *b, size_t bytes);

/* All of these take NULL for an expression that failed and hand it on. */
struct mx_gexpr *mx_gx_fail(struct mx_gbuild *b);
struct mx_gexpr *mx_gx_empty(struct mx_gbuild *b);
struct mx_gexpr *mx_gx_lit(struct mx_gbuild *b, const char *s, size_t n);
struct mx_gexpr *mx_gx_str(struct mx_gbuild *b, const char *s);
/* Takes over the ranges of a normalised set that lives in the build's arena. */
struct mx_gexpr *mx_gx_chars(struct mx_gbuild *b, const struct mx_cpset *s);
struct mx_gexpr *mx_gx_range(struct mx_gbuild *b, uint32_t lo, uint32_t hi);
struct mx_gexpr *mx_gx_seq(struct mx_gbuild *b, int n, struct mx_gexpr *const *kids);
struct mx_gexpr *mx_gx_alt(struct mx_gbuild *b, int n, struct mx_gexpr *const *kids);
struct mx_gexpr *mx_gx_rep(struct mx_gbuild *b, struct mx_gexpr *x, int min, int max);
struct mx_gexpr *mx_gx_opt(struct mx_gbuild *b, struct mx_gexpr *x);
struct mx_gexpr *mx_gx_ref(struct mx_gbuild *b, int rule);
/* A marker: the special token of that text, or its bytes. */
struct mx_gexpr *mx_gx_marker(struct mx_gbuild *b, const char *text);
struct mx_gexpr *mx_gx_auto(struct mx_gbuild *b, const struct mx_gauto *a);
/* Free text that does not contain `marker` (valid UTF-8), then the marker. */
struct mx_gexpr *mx_gx_until(struct mx_gbuild *b, const char *marker);
/* The text alone. */
struct mx_gexpr *mx_gx_without(struct mx_gbuild *b, const char *marker);

#define MX_GX_SEQ(b, ...)                                                                          \
    mx_gx_seq(b, (int)(sizeof((struct mx_gexpr *[]){__VA_ARGS__}) / sizeof(struct mx_gexpr *)),    \
              (struct mx_gexpr *[]){__VA_ARGS__})
#define MX_GX_ALT(b, ...)                                                                          \
    mx_gx_alt(b, (int)(sizeof((struct mx_gexpr *[]){__VA_ARGS__}) / sizeof(struct mx_gexpr *)),    \
              (struct mx_gexpr *[]){__VA_ARGS__})

/* A growing list of expressions in the build's arena. */
struct mx_gxlist {
    struct mx_gexpr **v;
    int n, cap;
};
/* Puts NULL too, so that a failure reaches the expression made of the list. */
void mx_gxlist_put(struct mx_gbuild *b, struct mx_gxlist *l, struct mx_gexpr *x);

/* Reserves a rule, to be set later; -1 on failure. */
int mx_grule_new(struct mx_gbuild *b);
void mx_grule_set(struct mx_gbuild *b, int rule, struct mx_gexpr *x);

struct mx_gauto *mx_gauto_new(struct mx_gbuild *b, int n_states);
void mx_gauto_edge(struct mx_gbuild *b, struct mx_gauto *a, int from, int to, uint32_t lo,
                   uint32_t hi);

/* ---- Programs -----------------------------------------------------------------------------------
 */

enum mx_gstate_kind {
    MX_ST_DEAD,    /* nothing leads out */
    MX_ST_BYTES,   /* edges[a .. a + b) */
    MX_ST_SPLIT,   /* targets[a .. a + b) */
    MX_ST_CALL,    /* pushes b, goes to a */
    MX_ST_RET,     /* pops */
    MX_ST_REP,     /* counted repetition reps[a]: entry, and the frame it pushes */
    MX_ST_SPECIAL, /* on special token a goes to b */
};
struct mx_gstate {
    uint8_t kind;
    uint8_t free; /* free text: 1 + index into frees; special tokens are allowed */
    uint16_t height;
    uint32_t a, b;
};
struct mx_gedge {
    uint8_t lo, hi;
    uint32_t to;
};
struct mx_grep {
    uint32_t body, exit;
    int32_t min, max; /* max -1: no bound */
};
/* Free text that looks for a marker. Special tokens pass through it as their text. */
struct mx_gfree {
    uint32_t state0, n; /* SPLITs of progress 0..n-1; the state that reads is n behind each */
    uint32_t forced0;   /* ends the marker from progress 0; from progress k: k less */
};

#define MX_HEIGHT_NONE UINT16_MAX

struct mx_gprog {
    struct mx_gstate *states;
    uint32_t n_states, cap_states;
    struct mx_gedge *edges;
    uint32_t n_edges, cap_edges;
    uint32_t *targets;
    uint32_t n_targets, cap_targets;
    struct mx_grep *reps;
    uint32_t n_reps, cap_reps;
    struct mx_gfree frees[2];
    int n_frees;
    char **specials;
    int n_specials;
    uint32_t start;
    size_t prelude_max;
    int prelude_free;     /* index into frees, or -1 */
    uint8_t classes[256]; /* bytes that no edge tells apart share a class */
    uint8_t class_byte[256];
    int n_classes;
};

/* Compiles rule `root` and the rules it needs, inside frame f (may be NULL). Errors: ARGUMENT (left
 * recursion, matches nothing), LIMIT, MEMORY. */
mtplx_status mx_gprog_compile(struct mx_gbuild *b, int root, const struct mx_grammar_frame *f,
                              struct mx_gprog *p, mtplx_error *err);
void mx_gprog_free(struct mx_gprog *p);
/* Compiles and wraps; frees b. `x` may be NULL when b failed. */
struct mx_grammar *mx_grammar_finish(struct mx_gbuild *b, struct mx_gexpr *x,
                                     const struct mx_grammar_frame *f, mtplx_error *err);

/* ---- Configurations -----------------------------------------------------------------------------
 */

/* A stack's top: a state that reads, and the frames below (0: none). */
struct mx_gelem {
    uint32_t state, node;
};
struct mx_gnode {
    uint32_t state, count, parent;
    uint32_t next; /* in its hash chain, or in the free list */
    uint16_t depth;
    uint8_t used, mark;
};
struct mx_gmask;
struct mx_gconfig {
    struct mx_gelem *elems;
    uint32_t n;
    uint32_t hash, next;
    uint32_t pins;
    uint8_t used, mark;
    bool may_end;
    bool special; /* an element may read a special token */
    /* What mx_gmachine_text() found: 0 not looked at, 1 not text, 2 text. */
    uint8_t text;
    uint64_t text_stops; /* classes of characters (see grammar_tokens.c) that are not text */
    uint32_t text_next;  /* the configuration after one character of text */
    uint32_t *trans;     /* [n_classes]; 0: unknown */
    struct mx_gmask *mask;
};

/* Ids of configurations. */
#define MX_CONFIG_NONE 0u /* not known, or memory is out */
#define MX_CONFIG_DEAD 1u /* the empty set */

struct mx_gmachine {
    const struct mx_gprog *prog;
    struct mx_gconfig *configs;
    uint32_t n_configs, cap_configs, live_configs, free_config;
    size_t live_bytes; /* of configurations */
    struct mx_gnode *nodes;
    uint32_t n_nodes, cap_nodes, live_nodes, free_node;
    uint32_t *config_slots, *node_slots; /* heads of hash chains */
    struct mx_gelem *met;                /* by the closure under way */
    uint32_t n_met, cap_met;
    uint32_t *stack; /* indices into met, still to be looked at */
    uint32_t n_stack, cap_stack;
    struct mx_gelem *out; /* [OUT_MAX] what reads */
    uint32_t n_out;
    uint32_t *seen; /* open addressing: index into met + 1 */
    uint32_t seen_cap;
    bool out_may_end, nomem;
    uint32_t start;
    int64_t credit; /* stacks that may still be looked at for masks; see grammar_mask.c */
};

bool mx_gmachine_init(struct mx_gmachine *m, const struct mx_gprog *p);
void mx_gmachine_free(struct mx_gmachine *m);
/* The configuration after a byte; DEAD when none; NONE when memory is out. */
uint32_t mx_gmachine_step_slow(struct mx_gmachine *m, uint32_t config, int byte_class);
static inline uint32_t mx_gmachine_step(struct mx_gmachine *m, uint32_t config, uint8_t byte)
{
    int c = m->prog->classes[byte];
    uint32_t to = m->configs[config].trans[c];
    return to ? to : mx_gmachine_step_slow(m, config, c);
}
/* The configuration after a special token: its text, and that text's index in the program, or -1.
 */
uint32_t mx_gmachine_special(struct mx_gmachine *m, uint32_t config, int special, const char *text,
                             size_t len);
/* The same with the prelude's end demanded. */
uint32_t mx_gmachine_force(struct mx_gmachine *m, uint32_t config);
/* The same with counters reduced to what matters to texts of at most `reach` characters. */
uint32_t mx_gmachine_clip(struct mx_gmachine *m, uint32_t config, int reach);
/* True when the machine has outgrown its bounds, or half of them. */
bool mx_gmachine_full(const struct mx_gmachine *m);
bool mx_gmachine_crowded(const struct mx_gmachine *m);
/* Forgets all but the configurations that are pinned, have a mask, or are roots. */
void mx_gmachine_collect(struct mx_gmachine *m, const uint32_t *roots, int n_roots);
/* Fills in text, text_stops and text_next; false: not text. */
bool mx_gmachine_text(struct mx_gmachine *m, uint32_t config);

/* ---- Tokens -------------------------------------------------------------------------------------
 */

/* The vocabulary's trie in preorder. */
struct mx_tnode {
    uint64_t set;   /* classes of the ASCII characters at and below it */
    uint32_t skip;  /* the node behind its subtree */
    uint32_t first; /* tokens at and below it: order[first .. tnodes[skip].first) */
    uint8_t byte;
    uint8_t chars;  /* characters from here down to the deepest token, at most 255 */
    uint16_t depth; /* from 1 */
    bool utf8;      /* starts a character, and all below is UTF-8 (the end may be cut) */
};
struct mx_tspecial {
    int32_t id;
    const char *text;
    size_t len;
};
struct mx_trie {
    struct mx_tnode *nodes; /* [n_nodes + 1] */
    uint32_t n_nodes;
    int32_t *order; /* tokens in the order of the trie */
    uint32_t n_tokens;
};
struct mx_token_table {
    const struct mx_tokenizer *tokenizer;
    int vocab, words;
    struct mx_trie all, marked; /* marked: tokens that are not in json_text */
    int max_depth;
    int32_t *by_chars; /* tokens that are UTF-8 from the start, by characters */
    uint64_t *by_chars_set;
    uint64_t *json_text;          /* bits of those that a JSON string holds as they are */
    uint32_t chars_end[257];      /* by_chars[0 .. chars_end[k]) have at most k characters */
    struct mx_tspecial *specials; /* not stops */
    int n_specials;
    int32_t *stops;
    int n_stops;
    uint64_t *known; /* all ids the tokenizer knows */
    uint64_t birth;  /* tells tables at the same address apart */
};
/* Characters of text that a mask of a long counter looks ahead. */
#define MX_REACH 16
int mx_token_class(uint8_t c);
/* The classes that JSON strings stop at: control characters, the quote and the backslash. */
uint64_t mx_token_json_stops(void);
bool mx_token_is_stop(const struct mx_token_table *t, int32_t id);

/* ---- Masks --------------------------------------------------------------------------------------
 */

struct mx_gmask {
    struct mx_gmask *newer, *older;
    uint32_t config, pins;
    bool all; /* every token may come */
    uint64_t bits[];
};
/* Masks of one machine for one table, least recently used go first. */
struct mx_gmasks {
    const struct mx_token_table *table;
    uint64_t birth;
    int users;
    struct mx_gmask *newest, *oldest;
    int n, max;
    int *special; /* for each special token of the table: index of its text in the program, or -1 */
    uint32_t *walk;  /* [max_depth + 2]: configurations on the way down */
    uint16_t *chars; /* the same: characters so far; CHARS_UNCLEAN when not all was text */
    struct mx_gbase {
        uint64_t stops;
        uint64_t *bits; /* tokens that are text without `stops` */
    } bases[4];
    int next_base;
};
bool mx_gmasks_init(struct mx_gmasks *k, const struct mx_gprog *p, const struct mx_token_table *t);
void mx_gmasks_free(struct mx_gmasks *k, struct mx_gmachine *m);
/* The mask of a configuration, pinned (drop with mx_gmask_unpin); NULL when memory or credit is
 * out. */
struct mx_gmask *mx_gmasks_get(struct mx_gmasks *k, struct mx_gmachine *m, uint32_t config);
void mx_gmask_unpin(struct mx_gmask *mask);
/* The configuration after a token that is no stop token, DEAD or NONE. */
uint32_t mx_gmasks_token(const struct mx_gmasks *k, struct mx_gmachine *m, uint32_t config,
                         int32_t token);

/* ---- JSON ---------------------------------------------------------------------------------------
 */

struct mx_gexpr *mx_gjson_quote(struct mx_gbuild *b);  /* of a string */
struct mx_gexpr *mx_gjson_ws(struct mx_gbuild *b);     /* between tokens: bounded, optional */
struct mx_gexpr *mx_gjson_value(struct mx_gbuild *b);  /* any value */
struct mx_gexpr *mx_gjson_object(struct mx_gbuild *b); /* any object */
struct mx_gexpr *mx_gjson_array(struct mx_gbuild *b);
struct mx_gexpr *mx_gjson_string(struct mx_gbuild *b); /* any string */
struct mx_gexpr *mx_gjson_string_len(struct mx_gbuild *b, int min, int max);
struct mx_gexpr *mx_gjson_number(struct mx_gbuild *b);
struct mx_gexpr *mx_gjson_integer(struct mx_gbuild *b);
/* A string (with its quotes) that is none of names[0..n), spelled without escapes. */
struct mx_gexpr *mx_gjson_other_key(struct mx_gbuild *b, const char *const *names, int n);
/* A key of an object. */
struct mx_gexpr *mx_gjson_key(struct mx_gbuild *b, const char *s, size_t n);
struct mx_gexpr *mx_gjson_any_key(struct mx_gbuild *b);
/* The literal of a JSON string with its quotes. */
struct mx_gexpr *mx_gjson_literal(struct mx_gbuild *b, const char *s, size_t n);
/* The characters of a set as a JSON string spells them. */
struct mx_gexpr *mx_gjson_chars(struct mx_gbuild *b, const struct mx_cpset *s);

/* Integers lo..hi that are multiples of `multiple` (1: all); NULL bounds: +-10^15 exclusive. */
struct mx_gexpr *mx_gnum_integers(struct mx_gbuild *b, int64_t lo, int64_t hi, int64_t multiple);
/* Decimals between lo and hi; `open_lo`, `open_hi`: the bound itself is excluded. NULL with the
 * build failed when they hold no number that can be written. */
struct mx_gexpr *mx_gnum_decimals(struct mx_gbuild *b, double lo, bool open_lo, double hi,
                                  bool open_hi);
#define MX_GNUM_MAX INT64_C(999999999999999)

/* ---- Front ends ---------------------------------------------------------------------------------
 */

/* A regular expression; `where` (a JSON pointer) names it in messages. */
enum mx_gregex_mode {
    MX_RE_WHOLE,  /* the whole text matches */
    MX_RE_JSON,   /* inside of a JSON string; may match anywhere */
    MX_RE_MARKUP, /* between tags; may match anywhere, and never a < */
};
struct mx_gexpr *mx_gregex(struct mx_gbuild *b, const char *re, size_t len,
                           enum mx_gregex_mode mode, const char *where);
/* Fewest and most characters that an expression made by mx_gregex() matches; *max -1: no bound.
 * `json`: it was made with MX_RE_JSON. */
void mx_gregex_length(const struct mx_gexpr *x, bool json, int64_t *min, int64_t *max);

/* An expression for the values of a schema; `where` is its JSON pointer. */
struct mx_gexpr *mx_gschema(struct mx_gbuild *b, const json_t *schema, const char *where);

#endif
