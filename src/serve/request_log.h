/* The request log: one JSON object a line for every reply. Never text of prompts or answers, never
 * keys. */
#ifndef MX_SERVE_REQUEST_LOG_H
#define MX_SERVE_REQUEST_LOG_H

#include "serve/exchange.h"

struct mx_request_log;
/* Appends to a file, made for its owner only. Errors: IO. */
struct mx_request_log *mx_request_log_open(const char *path, mtplx_error *err);
void mx_request_log_close(struct mx_request_log *l);
/* Writes the line of a reply that is over, with what mx_exchange_note() merged. Thread-safe. */
void mx_request_log_write(struct mx_request_log *l, struct mx_exchange *x, int status,
                          uint64_t duration_ns);

#endif
