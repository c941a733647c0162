/* The Host and Origin headers. */
#include "serve/guard.h"

#include <arpa/inet.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { NAME_MAX_LEN = 256 };

/* Copies the name of "name:port" without brackets, a final dot and the port; false when it is not
 * of that form. */
static bool host_name(const char *host, char out[NAME_MAX_LEN])
{
    size_t n;
    const char *rest;
    if (*host == '[') {
        const char *end = strchr(host, ']');
        if (!end)
            return false;
        n = (size_t)(end - host) - 1;
        host++;
        rest = end + 1;
    } else {
        const char *colon = strchr(host, ':');
        /* More than one colon and no brackets: a bare IPv6 address. */
        n = colon && !strchr(colon + 1, ':') ? (size_t)(colon - host) : strlen(host);
        rest = host + n;
    }
    if (n == 0 || n >= NAME_MAX_LEN)
        return false;
    if (*rest && (*rest != ':' || rest[1 + strspn(rest + 1, "0123456789")] != '\0'))
        return false;
    memcpy(out, host, n);
    out[n] = '\0';
    if (n > 1 && out[n - 1] == '.')
        out[n - 1] = '\0';
    return true;
}

static bool is_address(const char *name)
{
    unsigned char raw[16];
    return inet_pton(AF_INET, name, raw) == 1 || inet_pton(AF_INET6, name, raw) == 1;
}

static bool loopback_name(const char *name)
{
    unsigned char raw[16];
    static const unsigned char one[16] = {[15] = 1};
    if (inet_pton(AF_INET, name, raw) == 1)
        return raw[0] == 127;
    if (inet_pton(AF_INET6, name, raw) == 1)
        return memcmp(raw, one, sizeof one) == 0;
    return strcasecmp(name, "localhost") == 0;
}

bool mx_host_is_loopback(const char *host)
{
    char name[NAME_MAX_LEN];
    return host_name(host, name) && loopback_name(name);
}

bool mx_guard_host(const struct mx_guard *g, const char *host)
{
    char name[NAME_MAX_LEN], listed[NAME_MAX_LEN];
    if (!host_name(host, name))
        return false;
    if (loopback_name(name) || strcasecmp(name, g->bound) == 0)
        return true;
    if (is_address(name) && !mx_host_is_loopback(g->bound))
        return true;
    for (int i = 0; i < g->n_hosts; i++) {
        const char *h = g->hosts[i];
        if (strcmp(h, "*") == 0 || (host_name(h, listed) && strcasecmp(listed, name) == 0))
            return true;
    }
    return false;
}

enum mx_origin mx_guard_origin(const struct mx_guard *g, const char *origin, const char *host)
{
    for (int i = 0; i < g->n_origins; i++)
        if (strcmp(g->origins[i], "*") == 0 || strcasecmp(g->origins[i], origin) == 0)
            return MX_ORIGIN_LISTED;
    const char *name = strncasecmp(origin, "http://", 7) == 0    ? origin + 7
                       : strncasecmp(origin, "https://", 8) == 0 ? origin + 8
                                                                 : NULL;
    return name && host && strcasecmp(name, host) == 0 ? MX_ORIGIN_SAME : MX_ORIGIN_REFUSED;
}
