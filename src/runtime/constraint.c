/* mtplx_grammar: compiled rules together with the token table of the model they are held against.
 */
#include "runtime/constraint.h"

#include <jansson.h>
#include <stdlib.h>

#include "runtime/model.h"

struct mtplx_grammar {
    mtplx_model *model;
    struct mx_grammar *rules;
};

/* ---- Handles ------------------------------------------------------------------------------ */

mtplx_status mx_grammar_prepare(mtplx_model *m, mtplx_error *err)
{
    if (!m->tokenizer)
        return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                        "%s has no tokenizer, so no grammar can be held against its tokens",
                        m->path);
    pthread_mutex_lock(&m->table_lock);
    if (!m->token_table)
        m->token_table =
            mx_token_table_new(m->tokenizer, m->geometry.vocab, m->stops, m->n_stops, err);
    bool ok = m->token_table != NULL;
    pthread_mutex_unlock(&m->table_lock);
    return ok ? MTPLX_OK : MTPLX_ERR_MEMORY;
}

mtplx_grammar *mx_grammar_wrap(mtplx_model *m, struct mx_grammar *rules, mtplx_error *err)
{
    if (mx_grammar_prepare(m, err) != MTPLX_OK) {
        mx_grammar_unref(rules);
        return NULL;
    }
    mtplx_grammar *g = malloc(sizeof *g);
    if (!g) {
        mx_grammar_unref(rules);
        mx_error_nomem(err, "a grammar", sizeof *g);
        return NULL;
    }
    *g = (mtplx_grammar){m, rules};
    return g;
}

void mtplx_grammar_free(mtplx_grammar *g)
{
    if (!g)
        return;
    mx_grammar_unref(g->rules);
    free(g);
}

struct mx_matcher *mx_grammar_start(const mtplx_grammar *g, const mtplx_model *m, mtplx_error *err)
{
    if (g->model != m) {
        mx_error(err, MTPLX_ERR_ARGUMENT, "the grammar was made for another model");
        return NULL;
    }
    return mx_matcher_new(g->rules, m->token_table, err);
}

/* ---- Compiling ---------------------------------------------------------------------------- */

static struct mx_grammar *compile_schema(const char *text, size_t len,
                                         const struct mx_grammar_frame *f, mtplx_error *err)
{
    json_error_t where;
    json_t *schema = json_loadb(text, len, JSON_DECODE_ANY, &where);
    if (!schema) {
        mx_error(err, MTPLX_ERR_ARGUMENT, "the JSON schema, line %d, column %d: %s", where.line,
                 where.column, where.text);
        return NULL;
    }
    struct mx_grammar *g = mx_grammar_from_schema(schema, f, err);
    json_decref(schema);
    return g;
}

static struct mx_grammar *compile(mtplx_grammar_kind kind, const char *text, size_t len,
                                  const struct mx_grammar_frame *f, mtplx_error *err)
{
    if (kind != MTPLX_GRAMMAR_JSON && !text) {
        mx_error(err, MTPLX_ERR_ARGUMENT, "a grammar needs its text");
        return NULL;
    }
    switch (kind) {
    case MTPLX_GRAMMAR_JSON: return mx_grammar_json_object(f, err);
    case MTPLX_GRAMMAR_SCHEMA: return compile_schema(text, len, f, err);
    case MTPLX_GRAMMAR_REGEX: return mx_grammar_from_regex(text, len, f, err);
    case MTPLX_GRAMMAR_GBNF: return mx_grammar_from_gbnf(text, len, f, err);
    }
    mx_error(err, MTPLX_ERR_ARGUMENT, "%d is not a kind of grammar", (int)kind);
    return NULL;
}

mtplx_grammar *mtplx_grammar_new(mtplx_model *m, mtplx_grammar_kind kind, const char *text,
                                 size_t len, const char *after, mtplx_error *err)
{
    struct mx_grammar_frame f = {.prelude_end = after};
    struct mx_grammar *rules = compile(kind, text, len, &f, err);
    return rules ? mx_grammar_wrap(m, rules, err) : NULL;
}
