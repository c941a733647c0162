/* The reply side of chat completions: events in, one object or a stream of chunks out. */
#ifndef MX_SERVE_OPENAI_CHAT_H
#define MX_SERVE_OPENAI_CHAT_H

#include "serve/openai_params.h"

struct mx_chat_reply;
/* NULL without memory. Holds the exchange. */
struct mx_chat_reply *mx_chat_reply_new(struct mx_app *app, struct mx_exchange *x,
                                        const struct mx_openai_params *p);
/* For a turn that was never started; else the CLOSE event frees it. */
void mx_chat_reply_free(struct mx_chat_reply *r);
/* The turn's event function; `arg` is the reply. */
void mx_chat_reply_event(void *arg, const struct mx_turn_event *ev);

#endif
