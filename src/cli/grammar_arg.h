/* What an answer must obey, as the command line gives it. */
#ifndef MX_CLI_GRAMMAR_ARG_H
#define MX_CLI_GRAMMAR_ARG_H

#include "mtplx.h"

/* At most one is not NULL. */
struct mx_grammar_arg {
    const char *schema_file;  /* --json-schema */
    const char *grammar_file; /* --grammar */
    const char *regex;        /* --regex */
};

/* Whether they can stand together. Errors: ARGUMENT. */
mtplx_status mx_grammar_arg_check(const struct mx_grammar_arg *a, mtplx_error *err);

/* Reads and compiles; *grammar is NULL when nothing was given. An answer that begins inside
 * reasoning, by the end of the rendered prompt, obeys after it. Errors: IO, those of
 * mtplx_grammar_new(). */
mtplx_status mx_grammar_arg_compile(const struct mx_grammar_arg *a, mtplx_model *m,
                                    const char *prompt, size_t len, mtplx_grammar **grammar,
                                    mtplx_error *err);

#endif
