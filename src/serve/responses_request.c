/* Responses API: the settings of a request; tools and input have files of their own. */
#include "serve/fields.h"
#include "serve/openai_params.h"
#include "serve/responses_int.h"

#include <limits.h>
#include <string.h>

enum { MAX_NAME = 256, MAX_ID = 4096 };

static const char known_fields[] = MX_OPENAI_COMMON
    " input instructions max_output_tokens max_tool_calls temperature top_p tools tool_choice "
    "parallel_tool_calls text reasoning store previous_response_id metadata stream stream_options "
    "include truncation user safety_identifier prompt_cache_key prompt_cache_retention "
    "top_logprobs background service_tier conversation prompt";

/* ---- Settings ----------------------------------------------------------------------------- */

static bool read_sampling(const struct mx_fields *f, struct mx_responses_request *r)
{
    mtplx_sampling *s = &r->turn.gen.sampling;
    double top_p = -1;
    int64_t max = 0, top = 0;
    if (!mx_field_number(f, "temperature", 0, 2, &s->temperature) ||
        !mx_field_number(f, "top_p", 0, 1, &top_p) ||
        !mx_field_int(f, "max_output_tokens", 1, INT64_MAX, &max) ||
        !mx_field_int(f, "top_logprobs", 0, MTPLX_MAX_LOGPROBS, &top))
        return false;
    if (top_p >= 0)
        s->top_p = top_p > 1e-6 ? top_p : 1e-6; /* 0: the likeliest token alone, not "off" */
    if (max > 0)
        r->turn.gen.max_tokens = max > INT_MAX ? INT_MAX : (int)max;
    r->top_logprobs = (int)top;
    return true;
}

static bool read_reasoning(const struct mx_fields *body, struct mx_responses_request *r)
{
    static const char *const efforts[] = {"none", "minimal", "low", "medium",
                                          "high", "xhigh",   "max"};
    struct mx_fields f = {NULL, "reasoning", body->e};
    int effort = -1, summary = 0;
    if (!mx_field_object(body, "reasoning", &f.o))
        return false;
    if (!f.o)
        return true;
    if (!mx_field_choice(&f, "effort", "none minimal low medium high xhigh max", &effort) ||
        !mx_field_choice(&f, "summary", "auto concise detailed none", &summary) ||
        !mx_field_choice(&f, "generate_summary", "auto concise detailed none", &summary))
        return false;
    if (effort == 0)
        r->turn.thinking = MX_OFF;
    if (effort > 1) /* minimal: what the model does by itself */
        r->turn.thinking = MX_ON;
    if (effort > 0)
        r->turn.reasoning_effort = efforts[effort];
    return true;
}

static bool read_text(const struct mx_fields *body, struct mx_responses_request *r)
{
    static const enum mx_format formats[] = {MX_FORMAT_TEXT, MX_FORMAT_JSON, MX_FORMAT_SCHEMA};
    struct mx_fields text = {NULL, "text", body->e}, f = {NULL, "text.format", body->e};
    const char *name = NULL;
    bool strict = false;
    int which = 0, verbosity = 0;
    if (!mx_field_object(body, "text", &text.o))
        return false;
    if (!text.o)
        return true;
    if (!mx_field_choice(&text, "verbosity", "low medium high", &verbosity) ||
        !mx_field_object(&text, "format", &f.o))
        return false;
    if (!f.o)
        return true;
    if (!mx_field_need(&f, "type") ||
        !mx_field_choice(&f, "type", "text json_object json_schema", &which))
        return false;
    r->turn.format = formats[which];
    if (which != 2)
        return true;
    return mx_field_need(&f, "name") && mx_field_string(&f, "name", MAX_NAME, &name) &&
           mx_field_bool(&f, "strict", &strict) && mx_field_need(&f, "schema") &&
           mx_field_object(&f, "schema", &r->turn.schema);
}

/* What is to be sent along. Other values concern hosted tools and images: nothing to send. */
static bool read_include(const struct mx_fields *f, struct mx_responses_request *r)
{
    const json_t *list = NULL;
    if (!mx_field_array(f, "include", 64, &list))
        return false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *what = json_string_value(json_array_get(list, i));
        if (!what)
            return mx_api_fail(f->e, 400, "include", "'include[%zu]' must be a string", i);
        r->encrypted |= strcmp(what, "reasoning.encrypted_content") == 0;
        r->logprobs |= strcmp(what, "message.output_text.logprobs") == 0;
    }
    r->logprobs |= r->top_logprobs > 0;
    r->turn.gen.logprobs = r->logprobs ? r->top_logprobs + 1 : 0;
    return true;
}

static bool read_metadata(const struct mx_fields *body, struct mx_api_error *e)
{
    const json_t *metadata = NULL;
    const char *key;
    json_t *value;
    if (!mx_field_object(body, "metadata", &metadata))
        return false;
    if (json_object_size(metadata) > 16)
        return mx_api_fail(e, 400, "metadata", "'metadata' has more than 16 pairs");
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value)
    {
        if (!json_is_string(value))
            return mx_api_fail(e, 400, "metadata", "'metadata.%.60s' must be a string", key);
    }
    return true;
}

/* Whose conversation it is: the key that clients give for prompt caching, or their user. */
static bool read_identity(const struct mx_fields *f, struct mx_responses_request *r)
{
    const char *user = NULL, *safety = NULL, *key = NULL;
    if (!mx_field_string(f, "user", MAX_ID, &user) ||
        !mx_field_string(f, "safety_identifier", MAX_ID, &safety) ||
        !mx_field_string(f, "prompt_cache_key", MAX_ID, &key) ||
        !mx_field_string(f, "previous_response_id", MAX_NAME, &r->previous))
        return false;
    r->turn.session = key ? key : user ? user : safety;
    return true;
}

static bool refuse(const struct mx_fields *f, const char *name, const char *instead)
{
    const json_t *v = json_object_get(f->o, name);
    if (!v || json_is_null(v))
        return true;
    return mx_api_fail(f->e, 400, name, "'%s' is not supported by this server; %s", name, instead);
}

static bool read_flags(const struct mx_fields *f, struct mx_responses_request *r)
{
    const json_t *options = NULL;
    bool background = false;
    int truncation = 0;
    r->store = true;
    if (!mx_field_bool(f, "stream", &r->stream) || !mx_field_bool(f, "store", &r->store) ||
        !mx_field_bool(f, "background", &background) ||
        !mx_field_choice(f, "truncation", "auto disabled", &truncation) ||
        !mx_field_object(f, "stream_options", &options))
        return false;
    if (background)
        return mx_api_fail(f->e, 400, "background",
                           "'background' is not supported by this server; stream the response");
    return refuse(f, "conversation", "use previous_response_id") &&
           refuse(f, "prompt", "send its text as instructions and input");
}

bool mx_responses_parse(const json_t *body, struct mx_responses_request *r, struct mx_api_error *e)
{
    const struct mx_fields f = {body, "", e};
    r->ignored += mx_fields_unknown(body, known_fields);
    return mx_field_string(&f, "model", MAX_NAME, &r->model) && read_flags(&f, r) &&
           read_sampling(&f, r) && read_reasoning(&f, r) && read_text(&f, r) &&
           read_include(&f, r) && read_metadata(&f, e) && read_identity(&f, r) &&
           mx_responses_tools(body, r, e) && mx_responses_input(body, r, e);
}

void mx_responses_request_free(struct mx_responses_request *r)
{
    json_decref(r->messages);
    json_decref(r->tools);
    json_decref(r->context);
    json_decref(r->input);
    json_decref(r->custom);
    r->messages = r->tools = r->context = r->input = r->custom = NULL;
}
