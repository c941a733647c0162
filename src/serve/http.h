/* The HTTP side below mx_server_start(): with any table of routes, for tests as well. */
#ifndef MX_SERVE_HTTP_H
#define MX_SERVE_HTTP_H

#include "serve/router.h"
#include "serve/server.h"
#include "serve/watch.h"

struct mx_http_setup {
    const struct mx_route *routes;
    size_t n_routes;
    struct mx_watch_times times; /* zeros: the defaults */
    size_t queue;                /* exchanges that wait for a preparation thread; 0: 256 */
    size_t max_uploads;          /* bytes of bodies that are coming in or wait; 0: 8 bodies */
    /* A reply is over, by whatever end; may be NULL. */
    void (*done)(struct mx_app *app, struct mx_exchange *x, int status, uint64_t ns);
};

/* mx_server_start() with these routes and times. */
struct mx_server *mx_http_start(struct mx_app *app, const struct mx_server_options *o,
                                const struct mx_http_setup *setup, mtplx_error *err);

/* A listening socket on host:port, and the port it got. Errors: ARGUMENT (no such address), IO (the
 * port is taken). -1 on failure. */
int mx_listen(const char *host, int port, int *bound, mtplx_error *err);
/* Raises the limit of open files towards `connections` and some; returns how many connections fit.
 */
int mx_raise_file_limit(int connections);

#endif
