/* The fields that OpenAI's chat completions and completions have in common, and mtplx's own. */
#ifndef MX_SERVE_OPENAI_PARAMS_H
#define MX_SERVE_OPENAI_PARAMS_H

#include "serve/fields.h"
#include "serve/turn.h"

/* Names of the fields that mx_openai_read() looks at or that are ignored on purpose. */
#define MX_OPENAI_COMMON                                                                           \
    "model max_tokens temperature top_p top_k min_p n stop seed logit_bias presence_penalty "      \
    "frequency_penalty repetition_penalty stream stream_options user metadata prompt_cache_key "   \
    "store service_tier depth generation_mode draft_policy priority mtplx_stats "                  \
    "include_stop_str_in_output safety_identifier prompt_cache_retention"

struct mx_openai_params {
    struct mx_turn_request turn;
    mtplx_logit_bias *bias; /* what turn.gen points to; owned */
    const char *model;      /* as the request names it, or the server's */
    bool stream, usage;     /* stream; with usage in the stream */
    bool stats;             /* mtplx_stats is wanted */
    int64_t max_tokens;     /* as given; -1: not, or without limit */
};

/* Fills *p from the defaults, the body and the headers. False with *e filled. Free it either way.
 */
bool mx_openai_read(struct mx_app *app, struct mx_exchange *x, struct mx_openai_params *p,
                    struct mx_api_error *e);
void mx_openai_params_free(struct mx_openai_params *p);

/* Chat only: tools, tool_choice, parallel_tool_calls, response_format and its aliases. *tools gets
 * a new list (of those allowed) or NULL; it must outlive the use of r, and so must what *schema
 * gets (a parsed guided_json). */
bool mx_openai_read_tools(const struct mx_fields *f, struct mx_turn_request *r, json_t **tools);
bool mx_openai_read_format(const struct mx_fields *f, struct mx_turn_request *r, json_t **schema);

#endif
