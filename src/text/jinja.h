/* Jinja: a template interpreter for chat templates.
 *
 * Compatible with jinja2's sandbox as Hugging Face configures it: trim_blocks and lstrip_blocks on,
 * loop controls, `{% generation %}` transparent, tojson without HTML escaping, undefined is falsy
 * and prints as nothing. A parsed template is immutable and may be rendered by several threads.
 *
 * Every error names the line of the template. Hostile templates are bounded by mx_jinja_limits. */
#ifndef MX_TEXT_JINJA_H
#define MX_TEXT_JINJA_H

#include "base/error.h"
#include "base/strbuf.h"

#include <jansson.h>

struct mx_jinja;

struct mx_jinja_limits {
    size_t max_output; /* bytes; 0: 64 MiB */
    size_t max_memory; /* bytes of values alive during a render; 0: 256 MiB */
    long max_steps;    /* evaluated nodes; 0: 50 million */
    int max_depth;     /* nested macro calls, and a tenth of nested evaluations and values; 0: 200,
                          which keeps a render within 512 KiB of stack */
};

/* `name` is used in messages ("chat_template.jinja"). Source limit: 4 MiB. */
struct mx_jinja *mx_jinja_parse(const char *source, size_t len, const char *name, mtplx_error *err);
void mx_jinja_free(struct mx_jinja *j);

/* Renders with the members of `globals` (a JSON object; may be NULL) as variables. Appends to
 * `out`. `now` is the time strftime_now() reports (seconds since the epoch, rendered as local
 * time); 0 means the current time. On error `out` is unspecified. */
mtplx_status mx_jinja_render(const struct mx_jinja *j, const json_t *globals,
                             const struct mx_jinja_limits *limits, int64_t now,
                             struct mx_strbuf *out, mtplx_error *err);

#endif
