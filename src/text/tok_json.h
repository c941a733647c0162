/* Typed access to JSON objects with one-sentence errors, for the parts of tokenizer.json. */
#ifndef MX_TEXT_TOK_JSON_H
#define MX_TEXT_TOK_JSON_H

#include "base/error.h"

#include <jansson.h>

/* Each getter looks up `key` in `obj`; `where` names the object in messages. A missing or null
 * field gives the default (optional ones) or a FORMAT error; a wrong type is always an error. */
mtplx_status mx_tok_bool(const json_t *obj, const char *where, const char *key, bool fallback,
                         bool *out, mtplx_error *err);
/* Borrowed string. Optional: *out is NULL when missing. */
mtplx_status mx_tok_string(const json_t *obj, const char *where, const char *key, bool required,
                           const char **out, size_t *len, mtplx_error *err);
/* Borrowed array, required. */
mtplx_status mx_tok_array(const json_t *obj, const char *where, const char *key, json_t **out,
                          mtplx_error *err);
/* Checks that `obj` is an object and returns its required "type". */
mtplx_status mx_tok_type(const json_t *obj, const char *where, const char **type, mtplx_error *err);

#endif
