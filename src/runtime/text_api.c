/* Public text functions: tokenizer, detokeniser and chat template of a model. */
#include "runtime/model.h"

#include <stdlib.h>
#include <string.h>

static bool need_tokenizer(const mtplx_model *m, mtplx_error *err)
{
    if (m->tokenizer)
        return true;
    mx_error(err, MTPLX_ERR_UNSUPPORTED,
             "%s: no tokenizer.json; copy it from the original checkpoint", m->path);
    return false;
}

int32_t *mtplx_encode(const mtplx_model *m, const char *text, size_t len, bool plain, size_t *count,
                      mtplx_error *err)
{
    struct mx_ids ids = {0};
    *count = 0;
    if (!need_tokenizer(m, err))
        return NULL;
    if (mx_tokenizer_encode(m->tokenizer, text, len, plain, &ids, err) != MTPLX_OK) {
        mx_ids_free(&ids);
        return NULL;
    }
    for (size_t i = 0; i < ids.n; i++)
        if (ids.v[i] >= m->geometry.vocab) {
            mx_error(err, MTPLX_ERR_FORMAT,
                     "%s: tokenizer.json yields token %d but the model's vocabulary ends at %d",
                     m->path, ids.v[i], m->geometry.vocab);
            mx_ids_free(&ids);
            return NULL;
        }
    if (!ids.v)
        ids.v = calloc(1, sizeof *ids.v); /* an empty text is an empty array, not a failure */
    if (!ids.v)
        mx_error_nomem(err, "token ids", sizeof *ids.v);
    *count = ids.n;
    return ids.v;
}

char *mtplx_decode(const mtplx_model *m, const int32_t *ids, size_t count, bool skip_special,
                   size_t *len, mtplx_error *err)
{
    struct mx_strbuf out;
    *len = 0;
    if (!need_tokenizer(m, err))
        return NULL;
    mx_strbuf_init(&out, 0);
    if (mx_tokenizer_decode(m->tokenizer, ids, count, skip_special, &out, err) != MTPLX_OK) {
        mx_strbuf_free(&out);
        return NULL;
    }
    mx_strbuf_append(&out, "", 0);
    char *text = mx_strbuf_steal(&out, len);
    if (!text)
        mx_error_nomem(err, "decoded text", count);
    return text;
}

struct mtplx_detok {
    struct mx_detok d;
};

mtplx_detok *mtplx_detok_new(const mtplx_model *m, bool skip_special)
{
    mtplx_detok *d = m->tokenizer ? calloc(1, sizeof *d) : NULL;
    if (d)
        mx_detok_init(&d->d, m->tokenizer, skip_special);
    return d;
}

void mtplx_detok_free(mtplx_detok *d)
{
    if (!d)
        return;
    mx_detok_free(&d->d);
    free(d);
}

const char *mtplx_detok_push(mtplx_detok *d, int32_t token, size_t *len)
{
    return mx_detok_push(&d->d, token, len);
}

const char *mtplx_detok_flush(mtplx_detok *d, size_t *len)
{
    return mx_detok_flush(&d->d, len);
}

/* ---- Chat --------------------------------------------------------------------------------- */

static json_t *parse_arg(const char *text, const char *name, mtplx_error *err)
{
    json_error_t e;
    json_t *v = json_loads(text, JSON_REJECT_DUPLICATES, &e);
    if (!v)
        mx_error(err, MTPLX_ERR_FORMAT, "%s is not valid JSON: line %d: %s", name, e.line, e.text);
    return v;
}

char *mtplx_chat_render(const mtplx_model *m, const char *messages_json, const char *tools_json,
                        const char *kwargs_json, bool add_generation_prompt, size_t *len,
                        mtplx_error *err)
{
    struct mx_strbuf out;
    char *text = NULL;
    *len = 0;
    if (!m->chat) {
        mx_error(err, MTPLX_ERR_UNSUPPORTED,
                 "%s: no chat template (chat_template.jinja or tokenizer_config.json); this is a "
                 "base model, give it plain text",
                 m->path);
        return NULL;
    }
    json_t *messages = parse_arg(messages_json, "messages", err);
    json_t *tools = messages && tools_json ? parse_arg(tools_json, "tools", err) : NULL;
    json_t *kwargs = messages && kwargs_json ? parse_arg(kwargs_json, "kwargs", err) : NULL;
    bool parsed = messages && (tools || !tools_json) && (kwargs || !kwargs_json);
    struct mx_chat_request r = {messages, tools, kwargs, add_generation_prompt};
    mx_strbuf_init(&out, 0);
    if (parsed && mx_chat_render(m->chat, &r, &out, err) == MTPLX_OK) {
        mx_strbuf_append(&out, "", 0);
        text = mx_strbuf_steal(&out, len);
        if (!text)
            mx_error_nomem(err, "the rendered prompt", 0);
    }
    mx_strbuf_free(&out);
    json_decref(messages);
    json_decref(tools);
    json_decref(kwargs);
    return text;
}
