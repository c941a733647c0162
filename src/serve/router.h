/* The table of routes, and finding the one that a request is for. */
#ifndef MX_SERVE_ROUTER_H
#define MX_SERVE_ROUTER_H

#include "serve/exchange.h"

enum {
    MX_ROUTE_BODY = 1, /* the body must be a JSON object */
    MX_ROUTE_OPEN = 2, /* answered without a key, and not rate-limited */
    /* Answered by a thread of its own, so that it works while long preparations go on: for handlers
     * that take little time. */
    MX_ROUTE_QUICK = 4,
    MX_ROUTE_EXACT = 8, /* a slash at the end of the path is an id that got lost: refused */
};

/* In a pattern, {id} stands for one part of the path, and at its end for all the rest (names of
 * models may hold slashes). Of two patterns that match the earlier one counts. GET includes HEAD.
 */
struct mx_route {
    const char *method, *pattern;
    mx_handler *handler;
    enum mx_dialect dialect;
    unsigned flags;
};

/* Whether a path is of the pattern; then id[0..*n) is the part that {id} stands for. */
bool mx_route_matches(const char *pattern, const char *path, const char **id, size_t *n);

/* NULL: the path is unknown (`allow` empty), or has other methods (`allow` lists them for the Allow
 * header). */
const struct mx_route *mx_route_find(const struct mx_route *routes, size_t n_routes,
                                     const char *method, const char *path, const char **id,
                                     size_t *id_len, char allow[80]);

/* The routes of mtplx: routes.c. */
extern const struct mx_route mx_routes[];
extern const size_t mx_routes_count;

#endif
