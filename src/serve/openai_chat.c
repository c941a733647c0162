/* POST /v1/chat/completions: the request side. */
#include "serve/openai_chat.h"
#include "serve/api.h"
#include "serve/metrics.h"

#include <limits.h>
#include <string.h>

static const char known[] =
    MX_OPENAI_COMMON " messages max_completion_tokens logprobs top_logprobs response_format "
                     "guided_json guided_regex guided_grammar grammar tools tool_choice "
                     "parallel_tool_calls reasoning_effort enable_thinking chat_template_kwargs "
                     "continue_final_message preserve_thinking";

/* What a request owns besides its parameters. */
struct owned {
    json_t *tools, *schema;
};

static bool read_logprobs(const struct mx_fields *f, struct mx_turn_request *r)
{
    bool wanted = false;
    int64_t top = -1;
    if (!mx_field_bool(f, "logprobs", &wanted) ||
        !mx_field_int(f, "top_logprobs", 0, MTPLX_MAX_LOGPROBS, &top))
        return false;
    if (top > 0 && !wanted)
        return mx_api_fail(f->e, 400, "top_logprobs", "'top_logprobs' needs 'logprobs' to be true");
    r->gen.logprobs = wanted ? 1 + (top > 0 ? (int)top : 0) : 0;
    return true;
}

static bool read_thinking(const struct mx_fields *f, struct mx_turn_request *r)
{
    static const char efforts[] = "none minimal low medium high xhigh max";
    bool enable = false;
    int effort = -1;
    if (!mx_field_bool(f, "enable_thinking", &enable) ||
        !mx_field_choice(f, "reasoning_effort", efforts, &effort) ||
        !mx_field_object(f, "chat_template_kwargs", &r->kwargs) ||
        !mx_field_bool(f, "continue_final_message", &r->continue_final) ||
        !mx_field_choice(f, "preserve_thinking", "auto on off scoped", &r->preserve_thinking))
        return false;
    if (effort == 0)
        r->thinking = MX_OFF;
    if (effort > 0)
        r->reasoning_effort = json_string_value(json_object_get(f->o, "reasoning_effort"));
    if (json_is_boolean(json_object_get(f->o, "enable_thinking")))
        r->thinking = enable ? MX_ON : MX_OFF;
    return true;
}

static bool read_limit(const struct mx_fields *f, struct mx_openai_params *p)
{
    if (!mx_field_int(f, "max_completion_tokens", -1, INT_MAX, &p->max_tokens))
        return false;
    if (p->max_tokens == 0)
        return mx_api_fail(f->e, 400, "max_tokens", "'max_tokens' must be at least 1");
    p->turn.gen.max_tokens = p->max_tokens > 0 ? (int)p->max_tokens : 0;
    return true;
}

static bool read_request(struct mx_app *app, struct mx_exchange *x, struct mx_openai_params *p,
                         struct owned *own, struct mx_api_error *e)
{
    struct mx_fields f = {mx_exchange_body(x), "", e};
    if (!mx_openai_read(app, x, p, e))
        return false;
    struct mx_turn_request *r = &p->turn;
    return mx_field_need(&f, "messages") &&
           mx_field_array(&f, "messages", SIZE_MAX, &r->messages) && read_limit(&f, p) &&
           read_logprobs(&f, r) && read_thinking(&f, r) &&
           mx_openai_read_tools(&f, r, &own->tools) && mx_openai_read_format(&f, r, &own->schema);
}

static bool start(struct mx_app *app, struct mx_exchange *x, struct mx_openai_params *p,
                  struct mx_api_error *e)
{
    struct mx_chat_reply *reply = mx_chat_reply_new(app, x, p);
    if (!reply)
        return mx_api_fail(e, 507, NULL, "Out of memory for a reply");
    p->turn.resend = MX_RESEND_MESSAGE;
    p->turn.event = mx_chat_reply_event;
    p->turn.arg = reply;
    if (mx_turn_start(app, x, &p->turn, e)) { /* the reply may be gone already */
        if (p->stream) /* head and keep-alives come while it waits in the queue */
            mx_exchange_begin(x, 200, "text/event-stream");
        return true;
    }
    mx_chat_reply_free(reply);
    return false;
}

void mx_api_chat_completions(struct mx_app *app, struct mx_exchange *x)
{
    struct mx_openai_params p = {0};
    struct mx_api_error e = {0};
    struct owned own = {0};
    if (app->metrics)
        mx_metrics_unknown_fields(app->metrics, mx_fields_unknown(mx_exchange_body(x), known));
    if (!read_request(app, x, &p, &own, &e) || !start(app, x, &p, &e))
        mx_exchange_fail(x, &e);
    mx_openai_params_free(&p);
    json_decref(own.tools);
    json_decref(own.schema);
}
