/* POST /tokenize and /detokenize, in the spellings of llama.cpp's server (content, with_pieces) and
 * of vLLM's (prompt or messages, return_token_strs) at once. */
#include "base/utf8.h"
#include "runtime/model.h"
#include "serve/api.h"
#include "serve/app.h"
#include "serve/fields.h"
#include "serve/turn_int.h"

#include <stdlib.h>
#include <string.h>

#define TEXT_MAX ((size_t)64 << 20)
#define TOKENS_MAX ((size_t)1 << 22)

/* ---- Text to tokens ----------------------------------------------------------------------- */

struct pieces {
    bool objects; /* with_pieces: tokens are {id, piece} */
    bool strings; /* return_token_strs: a list beside the ids */
};

/* A token's text, or the list of its bytes where they are not UTF-8 by themselves. */
static json_t *piece_json(const mtplx_model *m, int32_t id)
{
    size_t n = 0;
    const char *bytes = mx_tokenizer_bytes(m->tokenizer, id, &n);
    if (n == 0)
        return json_string("");
    if (mx_utf8_valid(bytes, n))
        return json_stringn(bytes, n);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer((unsigned char)bytes[i]));
    return list;
}

static json_t *token_string(const mtplx_model *m, int32_t id)
{
    size_t n = 0;
    char *text = mtplx_decode(m, &id, 1, false, &n, NULL);
    json_t *s = text ? json_stringn(text, n) : json_string("");
    mtplx_free(text);
    return s;
}

static json_t *tokens_json(const struct mx_app *app, const int32_t *ids, size_t n,
                           const struct pieces *want)
{
    json_t *tokens = json_array();
    json_t *strings = want->strings ? json_array() : NULL;
    for (size_t i = 0; i < n; i++) {
        json_t *token = json_integer(ids[i]);
        if (want->objects)
            token = json_pack("{s:o, s:o}", "id", token, "piece", piece_json(app->model, ids[i]));
        json_array_append_new(tokens, token);
        if (strings)
            json_array_append_new(strings, token_string(app->model, ids[i]));
    }
    json_t *o = json_pack("{s:o, s:I, s:i}", "tokens", tokens, "count", (json_int_t)n,
                          "max_model_len", mtplx_model_get_info(app->model)->context_length);
    if (strings && json_object_set_new(o, "token_strs", strings) != 0) {
        json_decref(o);
        return NULL;
    }
    return o;
}

/* Reads one of several names of a text; false and no error when none is there. */
static bool read_text(const struct mx_fields *f, const char **text, size_t *n)
{
    static const char *const names[] = {"content", "text", "prompt", "input"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *v = json_object_get(f->o, names[i]);
        if (!v || json_is_null(v))
            continue;
        if (!json_is_string(v))
            return mx_api_fail(f->e, 400, names[i], "'%s' must be a string", names[i]);
        *text = json_string_value(v);
        *n = json_string_length(v);
        if (*n > TEXT_MAX)
            return mx_api_fail(f->e, 400, names[i], "'%s' has %zu bytes, more than %zu", names[i],
                               *n, TEXT_MAX);
        return true;
    }
    return mx_api_fail(f->e, 400, "content",
                       "one of content, text, prompt, input and messages is needed");
}

/* A conversation as the chat routes run it: normalised, rendered, tokenised. */
static json_t *tokenize_messages(struct mx_app *app, const struct mx_fields *f,
                                 const json_t *messages, const struct pieces *want)
{
    struct mx_turn_request r;
    struct mx_turn_prompt p;
    json_t *o = NULL;
    mx_turn_defaults(app, &r);
    r.messages = messages;
    if (!mx_field_array(f, "tools", 1024, &r.tools) ||
        !mx_field_object(f, "chat_template_kwargs", &r.kwargs) ||
        !mx_field_bool(f, "continue_final_message", &r.continue_final))
        return NULL;
    if (mx_turn_prompt_make(app, &r, &p, f->e)) {
        o = tokens_json(app, p.ids, p.n, want);
        if (!o)
            mx_api_fail(f->e, 500, NULL, "out of memory for %zu tokens", p.n);
    }
    mx_turn_prompt_free(&p);
    return o;
}

static json_t *tokenize_text(const struct mx_app *app, const struct mx_fields *f, const char *text,
                             size_t n, const struct pieces *want)
{
    bool special = true;
    mtplx_error err = {0};
    size_t count = 0;
    if (!mx_field_bool(f, "parse_special", &special))
        return NULL;
    int32_t *ids = mtplx_encode(app->model, text, n, !special, &count, &err);
    if (!ids) {
        mx_api_fail_from(f->e, &err, NULL);
        return NULL;
    }
    json_t *o = tokens_json(app, ids, count, want);
    mtplx_free(ids);
    if (!o)
        mx_api_fail(f->e, 500, NULL, "out of memory for %zu tokens", count);
    return o;
}

/* The checkpoints served here put no token before a text, so add_special (add_special_tokens) is
 * checked and changes nothing. */
static json_t *tokenize(struct mx_app *app, const struct mx_fields *f)
{
    struct pieces want = {0};
    const json_t *messages = NULL;
    const char *text = NULL;
    size_t n = 0;
    bool add = false;
    if (!mx_field_bool(f, "with_pieces", &want.objects) ||
        !mx_field_bool(f, "return_token_strs", &want.strings) ||
        !mx_field_bool(f, "add_special", &add) || !mx_field_bool(f, "add_special_tokens", &add) ||
        !mx_field_array(f, "messages", app->max_messages ? app->max_messages : 1 << 16, &messages))
        return NULL;
    if (messages)
        return tokenize_messages(app, f, messages, &want);
    return read_text(f, &text, &n) ? tokenize_text(app, f, text, n, &want) : NULL;
}

void mx_api_tokenize(struct mx_app *app, struct mx_exchange *x)
{
    struct mx_api_error e = {0};
    const struct mx_fields f = {.o = mx_exchange_body(x), .path = "", .e = &e};
    json_t *o = tokenize(app, &f);
    if (o)
        mx_exchange_send_json(x, 200, o);
    else
        mx_exchange_fail(x, &e);
}

/* ---- Tokens to text ----------------------------------------------------------------------- */

/* The ids of field `tokens` to free(), or NULL with the error filled. */
static int32_t *read_ids(const struct mx_app *app, const struct mx_fields *f, size_t *n)
{
    const json_t *list = NULL;
    int vocab = mtplx_model_get_info(app->model)->vocab_size;
    if (!mx_field_need(f, "tokens") || !mx_field_array(f, "tokens", TOKENS_MAX, &list))
        return NULL;
    *n = json_array_size(list);
    int32_t *ids = calloc(*n + 1, sizeof *ids);
    if (!ids) {
        mx_api_fail(f->e, 500, NULL, "out of memory for %zu tokens", *n);
        return NULL;
    }
    for (size_t i = 0; i < *n; i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id >= vocab) {
            char at[64];
            snprintf(at, sizeof at, "tokens[%zu]", i);
            mx_api_fail(f->e, 400, at, "'%s' must be an integer between 0 and %d", at, vocab - 1);
            free(ids);
            return NULL;
        }
        ids[i] = (int32_t)id;
    }
    return ids;
}

/* The text under every name that clients read it by. */
static json_t *text_json(const char *text, size_t n)
{
    json_t *s = json_stringn(text, n);
    json_t *o = json_pack("{s:O, s:O, s:O}", "content", s, "text", s, "prompt", s);
    json_decref(s);
    return o;
}

void mx_api_detokenize(struct mx_app *app, struct mx_exchange *x)
{
    struct mx_api_error e = {0};
    const struct mx_fields f = {.o = mx_exchange_body(x), .path = "", .e = &e};
    mtplx_error err = {0};
    size_t n = 0;
    size_t len = 0;
    bool skip = false;
    int32_t *ids = mx_field_bool(&f, "skip_special_tokens", &skip) ? read_ids(app, &f, &n) : NULL;
    char *text = ids ? mtplx_decode(app->model, ids, n, skip, &len, &err) : NULL;
    if (ids && !text)
        mx_api_fail_from(&e, &err, "tokens");
    if (text)
        mx_exchange_send_json(x, 200, text_json(text, len));
    else
        mx_exchange_fail(x, &e);
    mtplx_free(text);
    free(ids);
}
