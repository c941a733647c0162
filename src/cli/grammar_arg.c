/* Grammars from the command line. See grammar_arg.h. */
#include "cli/grammar_arg.h"

#include "base/error.h"
#include "base/file.h"
#include "text/reasoning.h"

#include <stdlib.h>
#include <string.h>

enum { FILE_LIMIT = 1 << 20 };

mtplx_status mx_grammar_arg_check(const struct mx_grammar_arg *a, mtplx_error *err)
{
    if (!!a->schema_file + !!a->grammar_file + !!a->regex <= 1)
        return MTPLX_OK;
    return mx_error(err, MTPLX_ERR_ARGUMENT,
                    "only one of --json-schema, --grammar and --regex can be given");
}

static void ignore(void *arg, enum mx_answer_part part, const char *text, size_t n)
{
    (void)arg;
    (void)part;
    (void)text;
    (void)n;
}

/* What ends the reasoning that the prompt has opened, or NULL. */
static const char *reasoning_end(const char *prompt, size_t len)
{
    struct mx_reasoning r;
    mx_reasoning_init(&r, MX_REASONING_THINK, prompt, len, ignore, NULL);
    bool inside = mx_reasoning_inside(&r);
    mx_reasoning_free(&r);
    return inside ? mx_reasoning_end(MX_REASONING_THINK) : NULL;
}

static mtplx_grammar *from_file(mtplx_model *m, mtplx_grammar_kind kind, const char *path,
                                const char *after, mtplx_error *err)
{
    size_t len;
    char *text = mx_file_read(path, FILE_LIMIT, &len, err);
    if (!text)
        return NULL;
    mtplx_grammar *g = mtplx_grammar_new(m, kind, text, len, after, err);
    if (!g)
        mx_error_prefix(err, "%s", path);
    free(text);
    return g;
}

mtplx_status mx_grammar_arg_compile(const struct mx_grammar_arg *a, mtplx_model *m,
                                    const char *prompt, size_t len, mtplx_grammar **grammar,
                                    mtplx_error *err)
{
    const char *after = reasoning_end(prompt, len);
    *grammar = NULL;
    if (a->schema_file)
        *grammar = from_file(m, MTPLX_GRAMMAR_SCHEMA, a->schema_file, after, err);
    else if (a->grammar_file)
        *grammar = from_file(m, MTPLX_GRAMMAR_GBNF, a->grammar_file, after, err);
    else if (a->regex)
        *grammar =
            mtplx_grammar_new(m, MTPLX_GRAMMAR_REGEX, a->regex, strlen(a->regex), after, err);
    else
        return MTPLX_OK;
    return *grammar ? MTPLX_OK : err->status;
}
