/* Writing JSON straight into a buffer: for what is written once a token, where building and walking
 * a tree would cost more than the text. */
#ifndef MX_SERVE_JSON_OUT_H
#define MX_SERVE_JSON_OUT_H

#include "base/strbuf.h"

#include <jansson.h>

/* s[0..n) as the inside of a JSON string, without quotes. Valid UTF-8 stays as it is; bytes that
 * are not become U+FFFD. U+2028 and U+2029 are escaped, which JavaScript once needed. */
bool mx_json_escape(struct mx_strbuf *b, const char *s, size_t n);
/* The same with quotes. */
bool mx_json_string(struct mx_strbuf *b, const char *s, size_t n);
/* A finite number, shortest form that reads back the same float; else null. */
bool mx_json_float(struct mx_strbuf *b, float v);
/* A jansson value in compact form; NULL becomes null. */
bool mx_json_value(struct mx_strbuf *b, const json_t *v);
/* Text of the program: no escaping. */
#define mx_json_raw(b, literal) mx_strbuf_append((b), (literal), sizeof(literal) - 1)

#endif
