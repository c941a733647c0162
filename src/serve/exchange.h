/* An exchange: one HTTP request and its reply, independent of the HTTP library.
 *
 * Handlers run on a small pool of preparation threads, so a slow template or schema delays other
 * preparations but neither the model nor open streams. A reply is sent whole, or streamed; from any
 * thread, and later than the handler's return as long as a reference is held. Writes never block: a
 * stream has a buffer with a stated maximum, and its backlog can be asked for.
 *
 * Every handler must lead to exactly one of: mx_exchange_send(), mx_exchange_fail(), or
 * mx_exchange_begin() .. mx_exchange_end(). When the last reference goes without any, the client
 * gets a 500. */
#ifndef MX_SERVE_EXCHANGE_H
#define MX_SERVE_EXCHANGE_H

#include "base/error.h"

#include <jansson.h>

struct mx_exchange;
struct mx_app;

/* An API error before it is put into the envelope of a route's dialect. */
struct mx_api_error {
    int status;        /* HTTP */
    const char *type;  /* OpenAI's error.type; NULL: from the status. Static */
    const char *code;  /* error.code, or NULL. Static */
    char param[96];    /* the field at fault, or "" */
    char message[600]; /* one sentence */
    int retry_after;   /* seconds; 0: no header */
    json_t *details;   /* more members for the error object, owned; or NULL */
};
/* Fills e and returns false, so that `return mx_api_fail(...)` reads well. `param` may be NULL. */
bool mx_api_fail(struct mx_api_error *e, int status, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* From a library error: ARGUMENT, FORMAT, UNSUPPORTED 400; LIMIT 503; MEMORY 507; CANCELLED 503;
 * else 500. */
bool mx_api_fail_from(struct mx_api_error *e, const mtplx_error *err, const char *param);

enum mx_dialect { MX_DIALECT_OPENAI = 0, MX_DIALECT_ANTHROPIC };

/* A handler. Runs on a preparation thread; holds a reference for its duration only. */
typedef void mx_handler(struct mx_app *app, struct mx_exchange *x);

struct mx_exchange *mx_exchange_ref(struct mx_exchange *x);
void mx_exchange_unref(struct mx_exchange *x);

/* ---- The request -------------------------------------------------------------------------- */

const char *mx_exchange_method(const struct mx_exchange *x);
const char *mx_exchange_path(const struct mx_exchange *x);
/* The part of the path that a route's {id} stands for, or "". */
const char *mx_exchange_id(const struct mx_exchange *x);
/* The pattern of the route, "" when there is none: for logs and metrics. Static. */
const char *mx_exchange_route(const struct mx_exchange *x);
/* Value of a header (any case) or of a query parameter, or NULL. Valid while x is. */
const char *mx_exchange_header(struct mx_exchange *x, const char *name);
const char *mx_exchange_query(struct mx_exchange *x, const char *name);
/* The parsed body: an object on routes that want one (anything else was refused before the handler
 * ran), else NULL. Borrowed from the handler, for its duration. */
const json_t *mx_exchange_body(const struct mx_exchange *x);
size_t mx_exchange_body_bytes(const struct mx_exchange *x);
/* Unique id of the request, "req_" and 24 hex digits. It is in the X-Request-Id header of the
 * reply. */
const char *mx_exchange_request_id(const struct mx_exchange *x);
/* Whose request this is: a short hash of the API key, or the client's address. */
const char *mx_exchange_client(const struct mx_exchange *x);
/* True when the request came with a valid key, or no key is configured: routes that are open to all
 * tell the others less. */
bool mx_exchange_authorized(const struct mx_exchange *x);
/* When the request's head was complete, on mx_now_ns()'s clock. */
uint64_t mx_exchange_started_ns(const struct mx_exchange *x);

/* ---- The reply ---------------------------------------------------------------------------- */

/* Adds a header to the reply; before send or begin. Text with control characters is dropped. */
void mx_exchange_set_header(struct mx_exchange *x, const char *name, const char *value);

/* A whole reply; `body` is copied. */
void mx_exchange_send(struct mx_exchange *x, int status, const char *type, const void *body,
                      size_t n);
/* The same with compact JSON; steals `body`. NULL (out of memory) becomes a 500. */
void mx_exchange_send_json(struct mx_exchange *x, int status, json_t *body);
/* An error in the envelope of the route's dialect. Takes over e->details. False, with nothing sent
 * and *e as it was, when a reply has begun. */
bool mx_exchange_fail(struct mx_exchange *x, struct mx_api_error *e);
/* The envelope alone, for an error inside a stream. New reference, or NULL. */
json_t *mx_exchange_error_json(const struct mx_exchange *x, const struct mx_api_error *e);

/* A stream (text/event-stream and the like): header at once, then what is written, until end.
 * While nothing is written for some seconds an SSE stream gets a comment line as keep-alive. */
void mx_exchange_begin(struct mx_exchange *x, int status, const char *type);
/* False when the client is gone or its backlog is over the maximum; the data is dropped then. */
bool mx_exchange_write(struct mx_exchange *x, const void *data, size_t n);
/* One SSE event: "event: <name>" (name may be NULL) and "data: <json>". Writes as a whole. */
bool mx_exchange_event(struct mx_exchange *x, const char *name, const char *data, size_t n);
void mx_exchange_end(struct mx_exchange *x);

/* Bytes written that the client has not taken. */
size_t mx_exchange_backlog(struct mx_exchange *x);
/* Backlog above which a producer should pause; the hard maximum is MX_STREAM_MAX. */
#define MX_STREAM_HIGH (256u << 10)
#define MX_STREAM_MAX (8u << 20)

/* Calls fn(arg, value) once when the client has gone away before the reply was complete: at once
 * when it is gone already, never after mx_exchange_end() or send(), which wait for a call that runs
 * on another thread: hold no lock over them that fn takes. Any thread. */
typedef void mx_gone_fn(void *arg, uint64_t value);
void mx_exchange_on_gone(struct mx_exchange *x, mx_gone_fn *fn, void *arg, uint64_t value);
bool mx_exchange_gone(struct mx_exchange *x);
/* Called when a backlog has fallen below MX_STREAM_HIGH / 2 after having been above MX_STREAM_HIGH.
 */
void mx_exchange_on_drained(struct mx_exchange *x, mx_gone_fn *fn, void *arg, uint64_t value);

/* Notes a line of the request log: members are merged into the record that is written when the
 * reply is complete. Steals `members`. */
void mx_exchange_note(struct mx_exchange *x, json_t *members);

#endif
