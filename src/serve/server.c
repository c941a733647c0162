/* The server of mtplx: the HTTP side with its routes. Apart from http.c, so that a program with a
 * table of its own (a test) does not need the handlers. */
#include "serve/server.h"

#include "serve/http.h"
#include "serve/metrics.h"

static void done(struct mx_app *app, struct mx_exchange *x, int status, uint64_t ns)
{
    if (app->metrics)
        mx_metrics_request(app->metrics, mx_exchange_route(x), status, ns,
                           mx_exchange_body_bytes(x));
}

struct mx_server *mx_server_start(struct mx_app *app, const struct mx_server_options *o,
                                  mtplx_error *err)
{
    struct mx_http_setup setup = {
        .routes = mx_routes,
        .n_routes = mx_routes_count,
        .done = done,
    };
    setup.times.stall_ns = o->stall_ns;
    return mx_http_start(app, o, &setup, err);
}
