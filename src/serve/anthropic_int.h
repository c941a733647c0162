/* Between the files of the Messages API: the translated request and the answer being written. */
#ifndef MX_SERVE_ANTHROPIC_INT_H
#define MX_SERVE_ANTHROPIC_INT_H

#include "serve/turn.h"

/* ---- Request: anthropic_request.c --------------------------------------------------------- */

struct mx_messages_request {
    struct mx_turn_request turn; /* what the caller put there are the defaults */
    json_t *messages, *tools;    /* owned; `turn` points to them */
    json_t *user;                /* metadata.user_id, where that is JSON; owned, or NULL */
    const char *model;           /* as the request names it */
    bool stream;
    bool stats;         /* mtplx_stats is wanted; the caller sets it */
    bool hide_thinking; /* thinking.display is "omitted": blocks without their text */
    unsigned ignored;   /* fields, blocks and tools that mean nothing here */
};

/* Translates a body. `counting`: for count_tokens, which needs no max_tokens. What `r` holds of the
 * body is borrowed. False with *e filled; `r` is to be freed either way. */
bool mx_messages_parse(const json_t *body, bool counting, struct mx_messages_request *r,
                       struct mx_api_error *e);
/* Drops what was made for the translation; `turn` must not be used after it. */
void mx_messages_request_free(struct mx_messages_request *r);

/* ---- Answer: anthropic_stream.c ----------------------------------------------------------- */

struct mx_messages_answer;
/* An answer with two references: the caller's and that of the turn's events, which is dropped by
 * MX_TURN_CLOSE. NULL when memory is out. */
struct mx_messages_answer *mx_messages_answer_new(struct mx_exchange *x,
                                                  const struct mx_messages_request *r);
void mx_messages_answer_unref(struct mx_messages_answer *a);
/* Sends the head of a stream, unless an event has done so. */
void mx_messages_answer_begin(struct mx_messages_answer *a);
/* The event function of the turn; `arg` is the answer. */
void mx_messages_answer_event(void *arg, const struct mx_turn_event *ev);

#endif
