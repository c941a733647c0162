/* API errors: filling them in, and the envelopes of the dialects.
 *
 * Types and codes are those that the public APIs document for a status. */
#include "serve/exchange_int.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Cuts a text that snprintf() had to shorten back to whole characters, and makes what a client sent
 * and a message quotes valid. */
static void make_utf8(char *s)
{
    size_t n = mx_utf8_complete_prefix(s, strlen(s));
    s[n] = '\0';
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int used = mx_utf8_decode(s + i, n - i, &cp);
        if (used <= 0)
            s[i] = '?';
        i += used > 0 ? (size_t)used : 1;
    }
}

bool mx_api_fail(struct mx_api_error *e, int status, const char *param, const char *fmt, ...)
{
    va_list ap;
    *e = (struct mx_api_error){.status = status};
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    make_utf8(e->param);
    make_utf8(e->message);
    return false;
}

bool mx_api_fail_from(struct mx_api_error *e, const mtplx_error *err, const char *param)
{
    int status = 500;
    switch (err->status) {
    case MTPLX_ERR_ARGUMENT:
    case MTPLX_ERR_FORMAT:
    case MTPLX_ERR_UNSUPPORTED: status = 400; break;
    case MTPLX_ERR_LIMIT:
    case MTPLX_ERR_CANCELLED: status = 503; break;
    case MTPLX_ERR_MEMORY: status = 507; break;
    case MTPLX_OK:
    case MTPLX_ERR_IO: break;
    }
    return mx_api_fail(e, status, param, "%s",
                       err->message[0] ? err->message : "the request failed inside the server");
}

struct kind {
    int status;
    const char *openai_type, *openai_code, *anthropic_type;
};

static const struct kind kinds[] = {
    {400, "invalid_request_error", NULL, "invalid_request_error"},
    {401, "invalid_request_error", "invalid_api_key", "authentication_error"},
    {403, "permission_error", NULL, "permission_error"},
    {404, "invalid_request_error", "not_found", "not_found_error"},
    {413, "invalid_request_error", "request_too_large", "request_too_large"},
    {429, "rate_limit_error", "rate_limit_exceeded", "rate_limit_error"},
    {499, "request_cancelled", "request_cancelled", "api_error"},
    {503, "server_error", "overloaded", "overloaded_error"},
    {504, "server_error", "timeout", "timeout_error"},
    {507, "server_error", "insufficient_memory", "api_error"},
};

static struct kind kind_of(int status)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].status == status)
            return kinds[i];
    if (status >= 500)
        return (struct kind){status, "server_error", NULL, "api_error"};
    return (struct kind){status, "invalid_request_error", NULL, "invalid_request_error"};
}

/* Messages may quote what a client sent. */
static json_t *text(const char *s)
{
    json_t *j = json_string(s);
    return j ? j : json_string("the request failed (its message is not valid UTF-8)");
}

static json_t *text_or_null(const char *s)
{
    return s && *s ? text(s) : json_null();
}

json_t *mx_exchange_error_json(const struct mx_exchange *x, const struct mx_api_error *e)
{
    struct kind k = kind_of(e->status);
    json_t *inner = json_object(), *outer;
    if (x->dialect == MX_DIALECT_ANTHROPIC) {
        json_object_set_new(inner, "type", json_string(k.anthropic_type));
        json_object_set_new(inner, "message", text(e->message));
        outer = json_pack("{s:s, s:o, s:s}", "type", "error", "error", inner, "request_id",
                          x->request_id);
    } else {
        json_object_set_new(inner, "message", text(e->message));
        json_object_set_new(inner, "type", json_string(e->type ? e->type : k.openai_type));
        json_object_set_new(inner, "param", text_or_null(e->param));
        json_object_set_new(inner, "code", text_or_null(e->code ? e->code : k.openai_code));
        outer = json_pack("{s:o}", "error", inner);
    }
    if (outer && e->details)
        json_object_update_missing(json_object_get(outer, "error"), e->details);
    return outer;
}

bool mx_exchange_fail(struct mx_exchange *x, struct mx_api_error *e)
{
    static const char nomem[] = "{\"error\":{\"message\":\"out of memory\",\"type\":"
                                "\"server_error\",\"param\":null,\"code\":null}}";
    char seconds[16];
    if (e->retry_after > 0) {
        snprintf(seconds, sizeof seconds, "%d", e->retry_after);
        mx_exchange_set_header(x, "Retry-After", seconds);
    }
    json_t *body = mx_exchange_error_json(x, e);
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    const char *said = text ? text : nomem;
    bool sent = mx_exchange_try_send(x, e->status, "application/json", said, strlen(said));
    free(text);
    json_decref(body);
    if (!sent)
        return false;
    json_decref(e->details);
    e->details = NULL;
    return true;
}
