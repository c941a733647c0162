/* Deciding about a request at its head. The order is that of what a stranger may learn: whether
 * this is the right server, then whether the page may talk to it, then the key, then the rest. */
#include "serve/screen.h"

#include "base/clock.h"
#include "base/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *const known_methods[] = {"GET",    "HEAD",  "POST",   "PUT",
                                            "DELETE", "PATCH", "OPTIONS"};

static const char *header(struct mx_exchange *x, const char *name)
{
    return mx_pairs_get(&x->headers, name, true);
}

static bool refuse(struct mx_exchange *x, struct mx_api_error *e)
{
    mx_exchange_fail(x, e);
    return false;
}

static size_t count_header(const struct mx_exchange *x, const char *name)
{
    size_t n = 0;
    for (size_t i = 0; i < x->headers.n; i++)
        n += strcasecmp(x->headers.items[i].name, name) == 0;
    return n;
}

/* ---- Which server, which page ------------------------------------------------------------- */

static bool check_host(const struct mx_screen *s, struct mx_exchange *x)
{
    struct mx_api_error e;
    const char *host = header(x, "Host");
    size_t n = count_header(x, "Host");
    if (n > 1) {
        mx_api_fail(&e, 400, NULL, "the request has %zu Host headers", n);
        return refuse(x, &e);
    }
    if (!host || mx_guard_host(&s->guard, host))
        return true; /* browsers always send one */
    mx_api_fail(&e, 403, NULL,
                "this server does not answer under the name \"%.100s\" (mtplx serve "
                "--allowed-host adds a name)",
                host);
    return refuse(x, &e);
}

/* Two readings of where the request ends would let one client's bytes be another's request behind a
 * proxy that reads it the other way. What follows on the connection is not looked at. */
static bool check_framing(struct mx_exchange *x)
{
    struct mx_api_error e;
    size_t lengths = count_header(x, "Content-Length");
    if (lengths + count_header(x, "Transfer-Encoding") <= 1)
        return true;
    mx_exchange_set_header(x, "Connection", "close");
    mx_api_fail(&e, 400, NULL, "the request says more than once how long its body is");
    return refuse(x, &e);
}

static void allow_origin(struct mx_exchange *x, const char *origin)
{
    mx_exchange_set_header(x, "Access-Control-Allow-Origin", origin);
    mx_exchange_set_header(x, "Access-Control-Expose-Headers",
                           "X-Request-Id, Request-Id, Retry-After");
}

static bool check_origin(const struct mx_screen *s, struct mx_exchange *x)
{
    struct mx_api_error e;
    const char *origin = header(x, "Origin");
    if (!origin)
        return true;
    mx_exchange_set_header(x, "Vary", "Origin");
    switch (mx_guard_origin(&s->guard, origin, header(x, "Host"))) {
    case MX_ORIGIN_LISTED: allow_origin(x, origin); return true;
    case MX_ORIGIN_SAME: return true;
    case MX_ORIGIN_REFUSED: break;
    }
    mx_api_fail(&e, 403, NULL,
                "pages of \"%.100s\" may not use this server (mtplx serve --cors-origin adds an "
                "origin)",
                origin);
    return refuse(x, &e);
}

/* ---- Who ---------------------------------------------------------------------------------- */

/* The address in x->client stands until a key names the client. */
static void identify(const struct mx_screen *s, struct mx_exchange *x)
{
    char key[16];
    x->authorized = !mx_auth_needed(s->auth);
    if (!x->authorized &&
        mx_auth_check(s->auth, header(x, "Authorization"), header(x, "X-API-Key"), key)) {
        x->authorized = true;
        snprintf(x->client, sizeof x->client, "%s", key);
    }
}

static bool check_key(struct mx_exchange *x)
{
    struct mx_api_error e;
    if (x->authorized)
        return true;
    bool given = header(x, "Authorization") || header(x, "X-API-Key");
    mx_exchange_set_header(x, "WWW-Authenticate", "Bearer realm=\"mtplx\"");
    mx_api_fail(&e, 401, NULL,
                given ? "the API key is not valid for this server"
                      : "this server needs an API key: send it as \"Authorization: Bearer KEY\" or "
                        "\"x-api-key: KEY\"");
    return refuse(x, &e);
}

static bool check_rate(const struct mx_screen *s, struct mx_exchange *x)
{
    struct mx_api_error e;
    int seconds = s->rate ? mx_rate_take(s->rate, x->client, mx_now_ns()) : 0;
    if (seconds == 0)
        return true;
    mx_api_fail(&e, 429, NULL, "too many requests: try again in %d second%s", seconds,
                seconds == 1 ? "" : "s");
    e.retry_after = seconds;
    return refuse(x, &e);
}

/* ---- Where to ----------------------------------------------------------------------------- */

static bool starts_with(const char *s, const char *head)
{
    return strncmp(s, head, strlen(head)) == 0;
}

/* For errors; clients of the Anthropic API always send its version. */
static enum mx_dialect dialect_of(struct mx_exchange *x)
{
    return strstr(x->path, "/messages") || header(x, "anthropic-version") ? MX_DIALECT_ANTHROPIC
                                                                          : MX_DIALECT_OPENAI;
}

static bool no_route(struct mx_exchange *x, const char *allow)
{
    struct mx_api_error e;
    if (*allow) {
        mx_exchange_set_header(x, "Allow", allow);
        mx_api_fail(&e, 405, NULL, "%.20s is not a method of this path (%s)", x->method, allow);
        return refuse(x, &e);
    }
    mx_api_fail(&e, 404, NULL, "there is nothing at %.200s (GET /v1 lists what there is)", x->path);
    e.code = "unknown_url";
    return refuse(x, &e);
}

/* Clients join a base URL and a path in every way there is. "//" counts as "/", and one at the end
 * of a path as none. */
static void tidy_slashes(char *path)
{
    char *out = path;
    for (const char *in = path; *in; in++)
        if (*in != '/' || out == path || out[-1] != '/')
            *out++ = *in;
    if (out > path + 1 && out[-1] == '/')
        out--;
    *out = '\0';
}

/* An id that came out empty must not turn forgetting one into forgetting all. */
static bool lost_id(struct mx_exchange *x)
{
    struct mx_api_error e;
    mx_api_fail(&e, 404, "id",
                "there is no id behind the last slash: leave the slash out (%.20s %.60s) to forget "
                "all",
                x->method, x->path);
    return refuse(x, &e);
}

static bool find_route_at(const struct mx_screen *s, struct mx_exchange *x, const char *path,
                          char allow[80])
{
    const char *id;
    size_t n;
    x->entry = mx_route_find(s->routes, s->n_routes, x->method, path, &id, &n, allow);
    if (!x->entry)
        return false;
    x->route = x->entry->pattern;
    char *copy = strndup(id, n);
    if (copy) {
        free(x->id);
        x->id = copy;
    }
    return true;
}

/* The /v1 of the path may be absent or there twice, as base URLs with and without it give. */
static bool find_route(const struct mx_screen *s, struct mx_exchange *x, char allow[80])
{
    size_t n = strlen(x->path);
    x->slash = n > 1 && x->path[n - 1] == '/';
    tidy_slashes(x->path);
    if (find_route_at(s, x, x->path, allow))
        return true;
    if (*allow)
        return false;
    if (starts_with(x->path, "/v1/"))
        return starts_with(x->path, "/v1/v1/") && find_route_at(s, x, x->path + 3, allow);
    size_t size = strlen(x->path) + sizeof "/v1";
    char *path = malloc(size);
    if (!path)
        return false;
    snprintf(path, size, "/v1%s", x->path);
    bool found = find_route_at(s, x, path, allow);
    free(path);
    return found;
}

static bool bad_path(struct mx_exchange *x)
{
    struct mx_api_error e;
    free(x->path);
    x->path = strdup("/");
    mx_api_fail(&e, 400, NULL, "the path of the request is not valid UTF-8");
    return refuse(x, &e);
}

static bool bad_method(struct mx_exchange *x)
{
    struct mx_api_error e;
    for (size_t i = 0; i < sizeof known_methods / sizeof *known_methods; i++)
        if (strcmp(known_methods[i], x->method) == 0)
            return false;
    free(x->method);
    x->method = strdup("OTHER");
    mx_api_fail(&e, 501, NULL, "the method of the request is not one of HTTP's usual ones");
    refuse(x, &e);
    return true;
}

/* ---- Preflights --------------------------------------------------------------------------- */

/* Header names as a page may ask for them: echoed, so nothing but names and commas. */
static bool header_list(const char *s)
{
    for (; *s; s++)
        if (!strchr("-_, ", *s) && !((*s | 0x20) >= 'a' && (*s | 0x20) <= 'z') &&
            !(*s >= '0' && *s <= '9'))
            return false;
    return true;
}

static bool preflight(struct mx_exchange *x, const char *allow)
{
    const char *wanted = header(x, "Access-Control-Request-Headers");
    mx_exchange_set_header(x, "Allow", allow);
    if (header(x, "Access-Control-Request-Method")) {
        mx_exchange_set_header(x, "Access-Control-Allow-Methods", allow);
        mx_exchange_set_header(x, "Access-Control-Allow-Headers",
                               wanted && strlen(wanted) < 1000 && header_list(wanted)
                                   ? wanted
                                   : "Authorization, Content-Type, X-API-Key, Anthropic-Version");
        mx_exchange_set_header(x, "Access-Control-Max-Age", "600");
        if (header(x, "Access-Control-Request-Private-Network"))
            mx_exchange_set_header(x, "Access-Control-Allow-Private-Network", "true");
    }
    mx_exchange_send(x, 204, NULL, "", 0);
    return false;
}

/* ---- Body --------------------------------------------------------------------------------- */

/* Content-Length; 0 when there is none, SIZE_MAX when it is more than any number here. */
static size_t announced(struct mx_exchange *x)
{
    const char *text = header(x, "Content-Length");
    errno = 0;
    unsigned long long n = text ? strtoull(text, NULL, 10) : 0;
    return errno || n > SIZE_MAX ? SIZE_MAX : (size_t)n;
}

static bool check_body(const struct mx_screen *s, struct mx_exchange *x)
{
    struct mx_api_error e;
    const char *coding = header(x, "Content-Encoding");
    if (announced(x) > s->max_body) {
        mx_api_fail(&e, 413, NULL, "the request body is larger than %zu bytes", s->max_body);
        return refuse(x, &e);
    }
    if (!coding || strcasecmp(coding, "identity") == 0)
        return true;
    mx_api_fail(&e, 415, NULL, "the request body is compressed, which this server does not read");
    return refuse(x, &e);
}

/* ---- All of it ---------------------------------------------------------------------------- */

static bool check_draining(struct mx_exchange *x, bool draining)
{
    struct mx_api_error e;
    if (!draining || (x->entry->flags & MX_ROUTE_QUICK))
        return true;
    mx_api_fail(&e, 503, NULL, "the server is shutting down");
    e.retry_after = 5;
    return refuse(x, &e);
}

void mx_screen_request(const struct mx_screen *s, struct mx_exchange *x, bool draining)
{
    char allow[80] = "";
    bool utf8 = mx_utf8_valid(x->path, strlen(x->path));
    x->dialect = dialect_of(x);
    identify(s, x);
    if (bad_method(x) || !check_framing(x) || !check_host(s, x) || !check_origin(s, x))
        return;
    bool found = utf8 && find_route(s, x, allow);
    if (found && x->entry->dialect == MX_DIALECT_ANTHROPIC)
        x->dialect = MX_DIALECT_ANTHROPIC;
    if (!found && *allow && strcmp(x->method, "OPTIONS") == 0) {
        preflight(x, allow); /* comes without a key */
        return;
    }
    if (!(found && (x->entry->flags & MX_ROUTE_OPEN)) && (!check_key(x) || !check_rate(s, x)))
        return;
    if (!utf8)
        bad_path(x);
    else if (!found)
        no_route(x, allow);
    else if (x->slash && (x->entry->flags & MX_ROUTE_EXACT))
        lost_id(x);
    else if (check_draining(x, draining))
        check_body(s, x);
}
