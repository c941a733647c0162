/* Finding the route of a request. */
#include "serve/router.h"

#include <stdio.h>
#include <string.h>

bool mx_route_matches(const char *pattern, const char *path, const char **id, size_t *n)
{
    const char *hole = strstr(pattern, "{id}");
    *id = "";
    *n = 0;
    if (!hole)
        return strcmp(pattern, path) == 0;
    size_t head = (size_t)(hole - pattern);
    const char *tail = hole + 4;
    if (strncmp(pattern, path, head) != 0)
        return false;
    path += head;
    size_t len = *tail ? strcspn(path, "/") : strlen(path);
    if (len == 0 || strcmp(path + len, tail) != 0)
        return false;
    *id = path;
    *n = len;
    return true;
}

static bool method_matches(const char *have, const char *asked)
{
    return strcmp(have, asked) == 0 || (strcmp(asked, "HEAD") == 0 && strcmp(have, "GET") == 0);
}

/* Adds a method to the text of an Allow header once. */
static void allow_method(char allow[80], const char *method)
{
    size_t used = strlen(allow);
    if (!strstr(allow, method))
        snprintf(allow + used, 80 - used, "%s%s", used ? ", " : "", method);
    if (strcmp(method, "GET") == 0)
        allow_method(allow, "HEAD");
}

const struct mx_route *mx_route_find(const struct mx_route *routes, size_t n_routes,
                                     const char *method, const char *path, const char **id,
                                     size_t *id_len, char allow[80])
{
    allow[0] = '\0';
    for (size_t i = 0; i < n_routes; i++) {
        if (!mx_route_matches(routes[i].pattern, path, id, id_len))
            continue;
        if (method_matches(routes[i].method, method))
            return &routes[i];
        allow_method(allow, routes[i].method);
    }
    return NULL;
}
