/* Between the files of the Responses API: the translated request and the answer being written. */
#ifndef MX_SERVE_RESPONSES_INT_H
#define MX_SERVE_RESPONSES_INT_H

#include "serve/response_store.h"
#include "serve/turn.h"

/* Ids are made of the request's id, "<kind>_" and 24 hex digits; an item's has 4 more, its place
 * among the output, or among the input plus MX_INPUT_ITEM. So an item leads to its response. */
enum { MX_RESPONSE_ID = 64, MX_INPUT_ITEM = 0x8000 };
void mx_response_id(char out[MX_RESPONSE_ID], const char *kind, const char *request_id);
void mx_response_item_id(char out[MX_RESPONSE_ID], const char *kind, const char *request_id,
                         size_t place);

/* ---- Request: responses_request.c --------------------------------------------------------- */

struct mx_responses_request {
    struct mx_turn_request turn; /* what the caller put there are the defaults */

    /* Where earlier responses are found; the caller sets these three. */
    struct mx_response_store *responses; /* NULL: none are */
    const char *client, *request_id;

    json_t *messages, *tools; /* owned; `turn` points to them */
    json_t *context;          /* items of the conversation before, owned */
    json_t *input;            /* this request's items, with ids, owned */
    json_t *custom;           /* object with the names of custom tools, owned; or NULL */
    const char *previous;     /* previous_response_id, or NULL */
    const char *model;        /* as the request names it; the caller's default else */
    bool stream, store;
    bool encrypted; /* reasoning.encrypted_content is wanted */
    bool logprobs;
    bool stats; /* mtplx_stats is wanted; the caller sets it */
    int top_logprobs;
    unsigned ignored; /* fields and items that mean nothing here */
};

/* Translates a body. What `r` holds of it is borrowed. False with *e filled; `r` is to be freed
 * either way. */
bool mx_responses_parse(const json_t *body, struct mx_responses_request *r, struct mx_api_error *e);
/* Drops what was made for the translation; `turn` must not be used after it. */
void mx_responses_request_free(struct mx_responses_request *r);

/* The parts of a request, each with a file of its own. */
bool mx_responses_tools(const json_t *body, struct mx_responses_request *r,
                        struct mx_api_error *e); /* responses_tools.c */
bool mx_responses_input(const json_t *body, struct mx_responses_request *r,
                        struct mx_api_error *e); /* responses_input.c */

/* Reasoning text as the opaque string of encrypted_content, and back: it travels through clients
 * that keep no reasoning text. New strings, or NULL. */
char *mx_reasoning_seal(const char *text, size_t n);
char *mx_reasoning_unseal(const char *sealed, size_t *n);

/* ---- Answer: responses_stream.c ----------------------------------------------------------- */

struct mx_responses_answer;
/* An answer with two references: the caller's and that of the turn's events, which is dropped by
 * MX_TURN_CLOSE. NULL when memory is out. */
struct mx_responses_answer *mx_responses_answer_new(struct mx_app *app, struct mx_exchange *x,
                                                    const struct mx_responses_request *r);
void mx_responses_answer_unref(struct mx_responses_answer *a);
/* The turn was accepted: sends the head of a stream, unless an event has done so, and makes the
 * job known for cancelling. */
void mx_responses_answer_begin(struct mx_responses_answer *a, uint64_t job);
/* The turn was refused: takes the pending record back. */
void mx_responses_answer_drop(struct mx_responses_answer *a);
/* The event function of the turn; `arg` is the answer. */
void mx_responses_answer_event(void *arg, const struct mx_turn_event *ev);

#endif
