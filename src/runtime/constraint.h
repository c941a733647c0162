/* Grammars at the runtime's floor: what mtplx_grammar holds, and the token table of a model. */
#ifndef MX_RUNTIME_CONSTRAINT_H
#define MX_RUNTIME_CONSTRAINT_H

#include "mtplx.h"
#include "text/grammar.h"

/* A handle of `rules` (takes over the caller's reference; on failure it is dropped). `vocabulary`
 * tables are built once per model, on first use, without the model's lock. Errors: UNSUPPORTED (no
 * tokenizer), MEMORY. */
mtplx_grammar *mx_grammar_wrap(mtplx_model *m, struct mx_grammar *rules, mtplx_error *err);

/* A matcher at the start of an answer of that model, which keeps what it needs of the grammar.
 * Errors: ARGUMENT (a grammar of another model), MEMORY. */
struct mx_matcher *mx_grammar_start(const mtplx_grammar *g, const mtplx_model *m, mtplx_error *err);

#endif
