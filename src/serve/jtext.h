/* JSON text without a tree: what is written for every piece of an answer must be cheap.
 *
 * Input is UTF-8 (what detokenisers, parsers and jansson yield). All append to `b`, whose `failed`
 * tells about memory. */
#ifndef MX_SERVE_JTEXT_H
#define MX_SERVE_JTEXT_H

#include "base/strbuf.h"

#include <jansson.h>

/* The inside of a JSON string. */
void mx_jtext_escape(struct mx_strbuf *b, const char *s, size_t n);
/* A JSON string; `null` for NULL. */
void mx_jtext_string(struct mx_strbuf *b, const char *s);
/* Compact JSON of a value; `null` for NULL. */
void mx_jtext_value(struct mx_strbuf *b, const json_t *value);

/* True when s[0..n) is blanks and line ends only. */
bool mx_jtext_blank(const char *s, size_t n);

#endif
