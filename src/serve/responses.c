/* Responses API: POST /v1/responses, and what can be done with a stored response.
 *
 * Stored responses belong to the client that made them; those of others are not found. */
#include "serve/api.h"
#include "serve/fields.h"
#include "serve/metrics.h"
#include "serve/openai_params.h"
#include "serve/responses_int.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PAGE = 100, DEFAULT_PAGE = 20 };

/* ---- Creating ----------------------------------------------------------------------------- */

/* Translates the exchange's body. What all dialects have in common comes first, in `common`: the
 * controls that the operator lets clients have, mtplx's own fields, headers. */
static bool prepare(struct mx_app *app, struct mx_exchange *x, struct mx_openai_params *common,
                    struct mx_responses_request *r, struct mx_api_error *e)
{
    if (!mx_openai_read(app, x, common, e))
        return false;
    r->turn = common->turn;
    r->turn.choices = 1;
    r->turn.gen.max_tokens = common->max_tokens > 0 ? (int)common->max_tokens : 0;
    r->stats = common->stats;
    r->model = common->model;
    r->responses = app->responses;
    r->client = mx_exchange_client(x);
    r->request_id = mx_exchange_request_id(x);
    if (!mx_responses_parse(mx_exchange_body(x), r, e))
        return false;
    r->turn.gen.sampling = common->turn.gen.sampling;
    if (r->ignored > 0 && app->metrics)
        mx_metrics_unknown_fields(app->metrics, r->ignored);
    return true;
}

static bool start(struct mx_app *app, struct mx_exchange *x, struct mx_responses_request *r,
                  struct mx_api_error *e)
{
    struct mx_responses_answer *a = mx_responses_answer_new(app, x, r);
    if (!a)
        return mx_api_fail(e, 507, NULL, "Out of memory for a response");
    r->turn.resend = MX_RESEND_PIECES;
    r->turn.resend_reasoning = true; /* items are sent back as they came, or found in the store */
    r->turn.event = mx_responses_answer_event;
    r->turn.arg = a;
    uint64_t job = mx_turn_start(app, x, &r->turn, e);
    if (job)
        mx_responses_answer_begin(a, job);
    else
        mx_responses_answer_drop(a);
    mx_responses_answer_unref(a);
    return job != 0;
}

void mx_api_responses(struct mx_app *app, struct mx_exchange *x)
{
    struct mx_openai_params common = {0};
    struct mx_responses_request r = {0};
    struct mx_api_error e = {0};
    if (!prepare(app, x, &common, &r, &e) || !start(app, x, &r, &e))
        mx_exchange_fail(x, &e);
    mx_responses_request_free(&r);
    mx_openai_params_free(&common);
}

/* ---- Stored responses --------------------------------------------------------------------- */

static void not_found(struct mx_exchange *x)
{
    struct mx_api_error e = {0};
    mx_api_fail(&e, 404, NULL, "Response with id '%.100s' not found", mx_exchange_id(x));
    mx_exchange_fail(x, &e);
}

/* The record of the path's id, or NULL with the reply sent. */
static const struct mx_response_record *wanted(struct mx_app *app, struct mx_exchange *x)
{
    const struct mx_response_record *r =
        app->responses
            ? mx_response_store_get(app->responses, mx_exchange_client(x), mx_exchange_id(x))
            : NULL;
    if (!r)
        not_found(x);
    return r;
}

void mx_api_response_get(struct mx_app *app, struct mx_exchange *x)
{
    const char *stream = mx_exchange_query(x, "stream");
    struct mx_api_error e = {0};
    if (stream && strcmp(stream, "true") == 0) {
        mx_api_fail(&e, 400, "stream", "A stored response cannot be streamed; leave 'stream' out");
        mx_exchange_fail(x, &e);
        return;
    }
    const struct mx_response_record *r = wanted(app, x);
    if (!r)
        return;
    mx_exchange_send(x, 200, "application/json", r->response, strlen(r->response));
    mx_response_record_unref(r);
}

void mx_api_response_delete(struct mx_app *app, struct mx_exchange *x)
{
    if (!app->responses ||
        !mx_response_store_remove(app->responses, mx_exchange_client(x), mx_exchange_id(x)))
        not_found(x);
    else
        mx_exchange_send_json(x, 200,
                              json_pack("{s:s,s:s,s:b}", "id", mx_exchange_id(x), "object",
                                        "response", "deleted", 1));
}

/* Ends the job of a response that is being written. What was written until then stays stored. */
void mx_api_response_cancel(struct mx_app *app, struct mx_exchange *x)
{
    const struct mx_response_record *r = wanted(app, x);
    struct mx_api_error e = {0};
    if (!r)
        return;
    uint64_t job = mx_response_store_job(app->responses, r->client, r->id);
    if (!job || !mx_engine_cancel(app->engine, job)) {
        mx_api_fail(&e, 400, NULL, "Response '%.100s' is complete and cannot be cancelled", r->id);
        mx_exchange_fail(x, &e);
    } else {
        json_t *response = json_loads(r->response, 0, NULL);
        json_object_set_new(response, "status", json_string("cancelled"));
        mx_exchange_send_json(x, 200, response);
    }
    mx_response_record_unref(r);
}

/* ---- Input items -------------------------------------------------------------------------- */

/* Where the page starts in the order it is shown: behind the item of `after`. */
static size_t page_start(const json_t *items, const char *after, bool ascending)
{
    size_t n = json_array_size(items);
    for (size_t i = 0; after && i < n; i++) {
        const json_t *item = json_array_get(items, ascending ? i : n - 1 - i);
        const char *id = json_string_value(json_object_get(item, "id"));
        if (id && strcmp(id, after) == 0)
            return i + 1;
    }
    return after ? n : 0;
}

static json_t *page_of(const json_t *items, const char *after, bool ascending, size_t limit)
{
    size_t n = json_array_size(items), from = page_start(items, after, ascending);
    json_t *data = json_array();
    for (size_t i = from; i < n && i - from < limit; i++)
        json_array_append(data, json_array_get(items, ascending ? i : n - 1 - i));
    size_t shown = json_array_size(data);
    const json_t *first = json_object_get(json_array_get(data, 0), "id");
    const json_t *last = shown ? json_object_get(json_array_get(data, shown - 1), "id") : NULL;
    return json_pack("{s:s,s:o,s:O?,s:O?,s:b}", "object", "list", "data", data, "first_id", first,
                     "last_id", last, "has_more", from + shown < n);
}

void mx_api_response_items(struct mx_app *app, struct mx_exchange *x)
{
    const char *order = mx_exchange_query(x, "order"), *limit = mx_exchange_query(x, "limit");
    struct mx_api_error e = {0};
    char *end = NULL;
    long count = limit ? strtol(limit, &end, 10) : DEFAULT_PAGE;
    bool ascending = order && strcmp(order, "asc") == 0;
    if ((limit && (end == limit || *end)) || count < 1 || count > MAX_PAGE)
        mx_api_fail(&e, 400, "limit", "'limit' must be a number between 1 and %d", MAX_PAGE);
    else if (order && !ascending && strcmp(order, "desc") != 0)
        mx_api_fail(&e, 400, "order", "'order' must be 'asc' or 'desc'");
    if (e.status) {
        mx_exchange_fail(x, &e);
        return;
    }
    const struct mx_response_record *r = wanted(app, x);
    if (!r)
        return;
    json_t *items = json_loads(r->input, 0, NULL);
    mx_exchange_send_json(x, 200,
                          page_of(items, mx_exchange_query(x, "after"), ascending, (size_t)count));
    json_decref(items);
    mx_response_record_unref(r);
}
