/* The HTTP server: libmicrohttpd below, exchanges above. */
#ifndef MX_SERVE_SERVER_H
#define MX_SERVE_SERVER_H

#include "serve/app.h"

struct mx_server_options {
    const char *host; /* "127.0.0.1"; another address needs a key */
    int port;         /* 0: any free one */
    const char *const *api_keys;
    int n_api_keys;
    const char *const *origins; /* CORS allow-list; "*" allows all. None: same-origin only */
    int n_origins;
    const char *const *hosts; /* further values that the Host header may have */
    int n_hosts;
    const char *tls_cert, *tls_key; /* files; both or none */
    int rate_limit;                 /* requests per minute and client; 0: none */
    size_t max_body;                /* bytes; 0: 32 MiB */
    int max_connections;            /* 0: 4096 */
    int preparers;                  /* preparation threads; 0: 2 */
    const char *log_path;           /* request log JSONL, or NULL */
    /* A client that takes nothing of its reply for so long is cut off; 0: never. */
    uint64_t stall_ns;
};

struct mx_server;
/* Strings and arrays of the options are borrowed until mx_server_free(). Binds and starts
 * answering. Errors: ARGUMENT (no key for a public address, ...), IO (the port is taken, a file),
 * UNSUPPORTED (TLS not in the library), MEMORY. */
struct mx_server *mx_server_start(struct mx_app *app, const struct mx_server_options *o,
                                  mtplx_error *err);
int mx_server_port(const struct mx_server *s);
/* Stops accepting; what is in flight goes on. New requests on open connections get a 503, but for
 * those about the server itself. */
void mx_server_quiesce(struct mx_server *s);
/* Waits until no request is in flight, or the time is over; true when none is. */
bool mx_server_drain(struct mx_server *s, uint64_t timeout_ns);
void mx_server_free(struct mx_server *s);

#endif
