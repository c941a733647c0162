/* Who may talk to the server from a browser: the Host and Origin headers.
 *
 * A page on the web can make a browser send requests to 127.0.0.1, and with DNS rebinding even read
 * the answers as its own. So the Host header must be a name of this server, never just any name
 * that resolves to it, and a foreign Origin must be on the list. */
#ifndef MX_SERVE_GUARD_H
#define MX_SERVE_GUARD_H

#include <stdbool.h>

struct mx_guard {
    const char *bound; /* address or name that the server was told to bind */
    const char *const *hosts;
    int n_hosts;
    const char *const *origins;
    int n_origins;
};

/* True for localhost and addresses of the loopback network, brackets allowed. */
bool mx_host_is_loopback(const char *host);

/* `host`: the header's value, "name", "name:port", "[::1]:port". Names of the loopback, the bound
 * address and the list are good; "*" in the list allows all. A server that is bound to another than
 * a loopback address also takes any numeric address: rebinding needs a name. */
bool mx_guard_host(const struct mx_guard *g, const char *host);

enum mx_origin {
    MX_ORIGIN_REFUSED = 0,
    MX_ORIGIN_SAME,   /* of this server: needs no CORS headers */
    MX_ORIGIN_LISTED, /* on the list */
};
/* `origin`: the header's value; `host`: a Host header that is good, or NULL. */
enum mx_origin mx_guard_origin(const struct mx_guard *g, const char *origin, const char *host);

#endif
