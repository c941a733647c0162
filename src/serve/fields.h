/* Reading the fields of a request body: absent, null and wrong are told apart, and an error names
 * the field ("tools[2].function.name") and what it takes. Wrong types and ranges are a 400.
 *
 * All return false with *e filled on an error; absent and null fields leave *out alone. `path` is
 * the place of `o` in the body, "" for the body itself. */
#ifndef MX_SERVE_FIELDS_H
#define MX_SERVE_FIELDS_H

#include "serve/exchange.h"

struct mx_fields {
    const json_t *o;
    const char *path;
    struct mx_api_error *e;
};

bool mx_field_number(const struct mx_fields *f, const char *name, double low, double high,
                     double *out);
bool mx_field_int(const struct mx_fields *f, const char *name, int64_t low, int64_t high,
                  int64_t *out);
bool mx_field_bool(const struct mx_fields *f, const char *name, bool *out);
/* Borrowed; at most `max` bytes. */
bool mx_field_string(const struct mx_fields *f, const char *name, size_t max, const char **out);
/* One of a list of words separated by single blanks; *out is its place. */
bool mx_field_choice(const struct mx_fields *f, const char *name, const char *words, int *out);
bool mx_field_object(const struct mx_fields *f, const char *name, const json_t **out);
bool mx_field_array(const struct mx_fields *f, const char *name, size_t max, const json_t **out);
/* The same, but absent or null is an error. */
bool mx_field_need(const struct mx_fields *f, const char *name);
/* How many members of `o` are not among the words: unknown fields are ignored and counted. */
unsigned mx_fields_unknown(const json_t *o, const char *words);

#endif
