/* Grammars at the runtime's floor: what mtplx_grammar holds, and the token table of a model. */
#ifndef MX_RUNTIME_CONSTRAINT_H
#define MX_RUNTIME_CONSTRAINT_H

#include "mtplx.h"
#include "text/grammar.h"

/* Builds the model's token table, which otherwise the first grammar does (0.1 s at 248k tokens).
 * Any thread, also while the model runs. Errors: UNSUPPORTED (no tokenizer), MEMORY. */
mtplx_status mx_grammar_prepare(mtplx_model *m, mtplx_error *err);

/* A handle of `rules` (takes over the caller's reference; on failure it is dropped). Errors: those
 * of mx_grammar_prepare(). */
mtplx_grammar *mx_grammar_wrap(mtplx_model *m, struct mx_grammar *rules, mtplx_error *err);

/* A matcher at the start of an answer of that model, which keeps what it needs of the grammar.
 * Errors: ARGUMENT (a grammar of another model), MEMORY. */
struct mx_matcher *mx_grammar_start(const mtplx_grammar *g, const mtplx_model *m, mtplx_error *err);

#endif
