/* What the replies of chat completions and completions have in common. */
#include "serve/openai_reply.h"

#include "runtime/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mx_openai_id(const char *prefix, const char *request_id, char out[48])
{
    const char *tail = strchr(request_id, '_');
    snprintf(out, 48, "%s%.32s", prefix, tail ? tail + 1 : request_id);
}

void mx_openai_head(struct mx_strbuf *b, const char *id, const char *object, int64_t created,
                    const char *model)
{
    mx_strbuf_printf(b, "\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", id, object,
                     (long long)created);
    mx_json_string(b, model, strlen(model));
    mx_strbuf_printf(b, ",\"system_fingerprint\":\"mtplx-%s\"", mtplx_version());
}

/* ---- Log-probabilities -------------------------------------------------------------------- */

float mx_openai_logprob(float v)
{
    return isfinite(v) && v > -9999.0f ? v : -9999.0f;
}

void mx_openai_token_text(struct mx_strbuf *b, const mtplx_model *m, int32_t token)
{
    size_t n = 0;
    mx_strbuf_putc(b, '"');
    if (m->tokenizer) {
        const char *s = mx_tokenizer_bytes(m->tokenizer, token, &n);
        mx_json_escape(b, s, n);
    }
    mx_strbuf_putc(b, '"');
}

static void token_bytes(struct mx_strbuf *b, const mtplx_model *m, int32_t token)
{
    size_t n = 0;
    const char *s = m->tokenizer ? mx_tokenizer_bytes(m->tokenizer, token, &n) : "";
    mx_strbuf_putc(b, '[');
    for (size_t i = 0; i < n; i++)
        mx_strbuf_printf(b, i ? ",%u" : "%u", (unsigned char)s[i]);
    mx_strbuf_putc(b, ']');
}

static void token_object(struct mx_strbuf *b, const mtplx_model *m, int32_t token, float logprob)
{
    mx_json_raw(b, "{\"token\":");
    mx_openai_token_text(b, m, token);
    mx_json_raw(b, ",\"logprob\":");
    mx_json_float(b, mx_openai_logprob(logprob));
    mx_json_raw(b, ",\"bytes\":");
    token_bytes(b, m, token);
}

void mx_openai_chat_logprobs(struct mx_strbuf *b, const mtplx_model *m, const mtplx_gen *gen,
                             size_t from, size_t n, bool comma)
{
    size_t count = 0;
    const int32_t *ids = gen ? mtplx_gen_tokens(gen, &count) : NULL;
    for (size_t i = from; i < from + n && i < count; i++) {
        const mtplx_token_logprob *top = NULL;
        float own = 0;
        int k = mtplx_gen_logprobs(gen, i, &own, &top);
        if (k < 0)
            continue;
        if (comma)
            mx_strbuf_putc(b, ',');
        comma = true;
        token_object(b, m, ids[i], own);
        mx_json_raw(b, ",\"top_logprobs\":[");
        for (int j = 0; j < k; j++) {
            if (j > 0)
                mx_strbuf_putc(b, ',');
            token_object(b, m, top[j].token, top[j].logprob);
            mx_strbuf_putc(b, '}');
        }
        mx_json_raw(b, "]}");
    }
}

/* ---- Errors ------------------------------------------------------------------------------- */

bool mx_openai_failure(const struct mx_turn_finish *f, struct mx_api_error *e)
{
    if (f->reason == MX_REASON_CANCELLED) {
        mx_api_fail(e, 499, NULL, "The request was cancelled");
        e->code = "request_cancelled";
        return true;
    }
    if (f->reason != MX_REASON_ERROR)
        return false;
    *e = f->error;
    return true;
}

void mx_openai_stream_done(struct mx_exchange *x)
{
    mx_exchange_event(x, NULL, "[DONE]", 6);
    mx_exchange_end(x);
}

void mx_openai_stream_error(struct mx_exchange *x, const struct mx_api_error *e)
{
    json_t *body = mx_exchange_error_json(x, e);
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    if (text)
        mx_exchange_event(x, NULL, text, strlen(text));
    free(text);
    json_decref(body);
    mx_openai_stream_done(x);
}
