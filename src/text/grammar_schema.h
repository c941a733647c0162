/* Inside of JSON schemas: what grammar_schema.c and grammar_merge.c share. */
#ifndef MX_TEXT_GRAMMAR_SCHEMA_H
#define MX_TEXT_GRAMMAR_SCHEMA_H

#include "text/grammar_int.h"

enum {
    MX_SCHEMA_DEPTH = 100,    /* nesting of schemas, references that are merged included */
    MX_SCHEMA_STEPS = 100000, /* schemas looked at and keywords merged */
};

/* A JSON pointer, from its end to its start. */
struct mx_swhere {
    const struct mx_swhere *up;
    const char *key; /* NULL: index */
    size_t index;
};

struct mx_sref {
    const json_t *target;
    int rule;
};

struct mx_schema {
    struct mx_gbuild *b;
    const json_t *root;
    const char *root_where;
    struct mx_sref *refs; /* rules of targets of references; in the build's arena */
    int n_refs, cap_refs;
    json_t *made; /* array that owns merged schemas */
    int depth, steps;
};

bool mx_schema_open(struct mx_schema *s, struct mx_gbuild *b, const json_t *root,
                    const char *where);
void mx_schema_close(struct mx_schema *s);
/* An expression for the values of a schema. */
struct mx_gexpr *mx_schema_value(struct mx_schema *s, const json_t *schema,
                                 const struct mx_swhere *w);
/* The expression of a format that is generated; NULL: none (also for name NULL). */
const char *mx_schema_format(const char *name);
/* True when a schema without type has keywords that imply types. */
bool mx_schema_keywords(const json_t *x);
/* True when a branch of a flat schema's anyOf or oneOf allows strings. */
bool mx_schema_may_be_string(struct mx_schema *s, const json_t *x, const struct mx_swhere *w);
/* One member of an object in another syntax than JSON; name NULL: any that is not in others[0..n).
 */
typedef struct mx_gexpr *mx_member_fn(void *arg, const char *name, const char *const *others, int n,
                                      const json_t *schema, const struct mx_swhere *w);
/* The members of a flat object schema, in order, with nothing between them. */
struct mx_gexpr *mx_schema_members(struct mx_schema *s, const json_t *x, const struct mx_swhere *w,
                                   mx_member_fn *member, void *arg);

/* Fails the build with `place: sentence`; returns NULL. */
void *mx_schema_fail(struct mx_schema *s, const struct mx_swhere *w, mtplx_status status,
                     const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* The text of a pointer, in the build's arena. */
const char *mx_schema_where(struct mx_schema *s, const struct mx_swhere *w);
/* Counts a step of work; false when there were too many. */
bool mx_schema_step(struct mx_schema *s, const struct mx_swhere *w);

/* The schema that a reference points to, or NULL with the build failed. */
const json_t *mx_schema_target(struct mx_schema *s, const json_t *ref, const struct mx_swhere *w);
/* The schema without $ref and allOf at its top: all of them merged into one object, or a boolean.
 * Owned by s, or the schema itself. NULL with the build failed. */
const json_t *mx_schema_flat(struct mx_schema *s, const json_t *schema, const struct mx_swhere *w);
/* The values that both allow. */
const json_t *mx_schema_both(struct mx_schema *s, const json_t *a, const json_t *b,
                             const struct mx_swhere *w);
/* The schema without one keyword. */
const json_t *mx_schema_without(struct mx_schema *s, const json_t *schema, const char *key);

/* Types as a set of bits; 0: no type is named. */
enum {
    MX_T_NULL = 1,
    MX_T_BOOLEAN = 2,
    MX_T_OBJECT = 4,
    MX_T_ARRAY = 8,
    MX_T_STRING = 16,
    MX_T_NUMBER = 32,
    MX_T_INTEGER = 64,
    MX_T_ALL = 127,
};
/* Types that a schema names; -1 with the build failed. */
int mx_schema_types(struct mx_schema *s, const json_t *schema, const struct mx_swhere *w);
/* True when `value` obeys type, const, enum and the bounds of a flat schema. */
bool mx_schema_allows(const json_t *schema, int types, const json_t *value);
/* True when no value can obey both branches of a oneOf (as far as can be seen). */
bool mx_schema_disjoint(struct mx_schema *s, const json_t *a, const json_t *b,
                        const struct mx_swhere *w);

#endif
