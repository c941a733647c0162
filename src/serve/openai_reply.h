/* What the replies of chat completions and completions have in common. */
#ifndef MX_SERVE_OPENAI_REPLY_H
#define MX_SERVE_OPENAI_REPLY_H

#include "serve/json_out.h"
#include "serve/turn.h"

/* Longest reply: what a client can be sent as a whole. */
#define MX_OPENAI_REPLY_MAX ((size_t)256 << 20)

/* An id: the prefix and what follows "req_" in that of the request, so that logs, answers and
 * cancellations speak of one thing. */
void mx_openai_id(const char *prefix, const char *request_id, char out[48]);
/* `"id":..,"object":..,"created":..,"model":..,"system_fingerprint":..`, without braces. */
void mx_openai_head(struct mx_strbuf *b, const char *id, const char *object, int64_t created,
                    const char *model);

/* The text of a token as the APIs show it (bytes that are no UTF-8 as U+FFFD), escaped and in
 * quotes; special tokens by their name. */
void mx_openai_token_text(struct mx_strbuf *b, const mtplx_model *m, int32_t token);
/* The chat objects of answer tokens [from, from + n), separated by commas: {token, logprob, bytes,
 * top_logprobs}. `comma`: starts with one. */
void mx_openai_chat_logprobs(struct mx_strbuf *b, const mtplx_model *m, const mtplx_gen *gen,
                             size_t from, size_t n, bool comma);
/* Log-probabilities are finite in these APIs: what is none is -9999. */
float mx_openai_logprob(float v);

/* The error that a choice ended with, if it did: broken off (499) or its own. */
bool mx_openai_failure(const struct mx_turn_finish *f, struct mx_api_error *e);
/* Ends a stream with an error chunk and [DONE]. */
void mx_openai_stream_error(struct mx_exchange *x, const struct mx_api_error *e);
void mx_openai_stream_done(struct mx_exchange *x);

#endif
