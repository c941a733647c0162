/* Request bodies: from bytes to a JSON object.
 *
 * jansson would accept what must not come in (deep nesting, bodies that become a hundred times as
 * large in memory) and refuse what clients do send: escapes that no UTF-8 text can hold, since
 * JavaScript cuts strings inside a surrogate pair and tools print NUL bytes. One pass over the text
 * settles both before it is parsed: such an escape becomes U+FFFD in place. */
#ifndef MX_SERVE_BODY_H
#define MX_SERVE_BODY_H

#include "serve/exchange.h"

enum {
    MX_BODY_DEPTH = 200,      /* nested arrays and objects */
    MX_BODY_VALUES = 1 << 20, /* values and names in all */
};

/* Looks through text[0..n) and replaces what no UTF-8 text can hold. False with *e filled: not
 * UTF-8, nested too deep, too many values. */
bool mx_body_clean(char *text, size_t n, struct mx_api_error *e);

/* Cleans and parses; an empty body counts as {}. New reference, or NULL with *e filled (400 naming
 * line and column; 413). Of repeated names the last counts. */
json_t *mx_body_parse(char *text, size_t n, struct mx_api_error *e);

#endif
