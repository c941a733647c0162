/* What is decided about a request at its head: whether it may come in at all, and where it goes. */
#ifndef MX_SERVE_SCREEN_H
#define MX_SERVE_SCREEN_H

#include "serve/auth.h"
#include "serve/exchange_int.h"
#include "serve/guard.h"
#include "serve/router.h"

struct mx_screen {
    const struct mx_route *routes;
    size_t n_routes;
    struct mx_guard guard;
    const struct mx_auth *auth;
    struct mx_rate *rate; /* or NULL */
    size_t max_body;
};

/* Sets dialect, client, route and entry of x (method, path and headers are there), and headers of
 * the reply. When the request is refused, or answered at once (a preflight), the reply is complete
 * afterwards. `draining`: nothing new is taken in. */
void mx_screen_request(const struct mx_screen *s, struct mx_exchange *x, bool draining);

#endif
