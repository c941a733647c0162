/* Messages API: POST /v1/messages and POST /v1/messages/count_tokens.
 *
 * The body is translated (anthropic_request.c), the turn runs, its events are written
 * (anthropic_stream.c). Headers such as anthropic-version and anthropic-beta are accepted whatever
 * they say. */
#include "serve/anthropic_int.h"
#include "serve/api.h"
#include "serve/metrics.h"
#include "serve/openai_params.h"

/* Without a word about thinking the API does not think; a server that was told to think by default
 * does. Thinking goes in front of a begun answer, so that cannot be gone on with. */
static void settle_thinking(struct mx_messages_request *r, const struct mx_app_settings *s)
{
    if (r->turn.thinking == MX_UNSET && s->thinking != MX_ON)
        r->turn.thinking = MX_OFF;
    if (r->turn.continue_final)
        r->turn.thinking = MX_OFF;
}

/* Translates the exchange's body. What all dialects have in common comes first, in `common`: the
 * controls that the operator lets clients have, mtplx's own fields, headers. */
static bool prepare(struct mx_app *app, struct mx_exchange *x, bool counting,
                    struct mx_openai_params *common, struct mx_messages_request *r,
                    struct mx_api_error *e)
{
    const struct mx_app_settings settings = mx_app_get_settings(app);
    mx_exchange_set_header(x, "request-id", mx_exchange_request_id(x)); /* the API's own name */
    if (!mx_openai_read(app, x, common, e))
        return false;
    r->turn = common->turn;
    r->turn.n_stop = 0;
    r->turn.choices = 1;
    r->stats = common->stats;
    if (!mx_messages_parse(mx_exchange_body(x), counting, r, e))
        return false;
    r->turn.gen.sampling = common->turn.gen.sampling;
    settle_thinking(r, &settings);
    if (r->ignored > 0 && app->metrics)
        mx_metrics_unknown_fields(app->metrics, r->ignored);
    return true;
}

/* Starts the turn; the answer's references are the caller's and the events'. */
static bool start(struct mx_app *app, struct mx_exchange *x, struct mx_messages_request *r,
                  struct mx_api_error *e)
{
    struct mx_messages_answer *a = mx_messages_answer_new(x, r);
    if (!a)
        return mx_api_fail(e, 507, NULL, "out of memory for an answer");
    r->turn.resend = MX_RESEND_PIECES;
    r->turn.resend_reasoning = !r->hide_thinking;
    r->turn.event = mx_messages_answer_event;
    r->turn.arg = a;
    bool ok = mx_turn_start(app, x, &r->turn, e) != 0;
    if (ok)
        mx_messages_answer_begin(a);
    else
        mx_messages_answer_unref(a);
    mx_messages_answer_unref(a);
    return ok;
}

void mx_api_messages(struct mx_app *app, struct mx_exchange *x)
{
    struct mx_openai_params common = {0};
    struct mx_messages_request r = {0};
    struct mx_api_error e = {0};
    if (!prepare(app, x, false, &common, &r, &e) || !start(app, x, &r, &e))
        mx_exchange_fail(x, &e);
    mx_messages_request_free(&r);
    mx_openai_params_free(&common);
}

void mx_api_count_tokens(struct mx_app *app, struct mx_exchange *x)
{
    struct mx_openai_params common = {0};
    struct mx_messages_request r = {0};
    struct mx_api_error e = {0};
    size_t tokens = 0;
    if (!prepare(app, x, true, &common, &r, &e) || !mx_turn_count(app, &r.turn, &tokens, &e))
        mx_exchange_fail(x, &e);
    else
        mx_exchange_send_json(x, 200, json_pack("{s:I}", "input_tokens", (json_int_t)tokens));
    mx_messages_request_free(&r);
    mx_openai_params_free(&common);
}
