/* Opening tokens of messages: learned from renderings, then looked for. */
#include "serve/borders.h"

#include "runtime/model.h"

#include <stdlib.h>
#include <string.h>

/* ---- Learning ----------------------------------------------------------------------------- */

/* Texts that no template has. */
static const char *const texts[] = {"qzxalpha", "qzxbeta", "qzxgamma"};

enum { TEXTS = sizeof texts / sizeof *texts, TEXT_MAX = 8 << 20 };

/* One of: user, assistant, user; or user, call, result. */
static json_t *conversation(bool tools)
{
    if (!tools)
        return json_pack("[{s:s,s:s},{s:s,s:s},{s:s,s:s}]", "role", "user", "content", texts[0],
                         "role", "assistant", "content", texts[1], "role", "user", "content",
                         texts[2]);
    return json_pack("[{s:s,s:s},{s:s,s:s,s:[{s:s,s:s,s:{s:s,s:{}}}]},{s:s,s:s,s:s,s:s}]", "role",
                     "user", "content", texts[0], "role", "assistant", "content", texts[1],
                     "tool_calls", "id", "call_0", "type", "function", "function", "name", "f",
                     "arguments", "role", "tool", "tool_call_id", "call_0", "name", "f", "content",
                     texts[2]);
}

static void add_opener(struct mx_app *app, int32_t id)
{
    for (int i = 0; i < app->n_openers; i++)
        if (app->openers[i] == id)
            return;
    if (app->n_openers < MX_APP_OPENERS)
        app->openers[app->n_openers++] = id;
}

/* The special token of a piece of text, or -1. */
static int32_t token_of(const struct mx_app *app, const char *text, size_t n)
{
    struct mx_ids ids = {0};
    mtplx_error err = {0};
    int32_t id = -1;
    if (mx_tokenizer_encode(app->model->tokenizer, text, n, false, &ids, &err) == MTPLX_OK)
        for (size_t i = 0; i < ids.n && id < 0; i++)
            if (mx_tokenizer_is_special(app->model->tokenizer, ids.v[i]))
                id = ids.v[i];
    mx_ids_free(&ids);
    return id;
}

/* Looks at what stands behind a text, up to the next one: text[from..to). */
static void look_between(struct mx_app *app, const char *text, size_t from, size_t to)
{
    size_t start, end;
    while (mx_tokenizer_next_special(app->model->tokenizer, text, to, from, &start, &end)) {
        int32_t id = token_of(app, text + start, end - start);
        if (id >= 0 && !mtplx_model_is_stop_token(app->model, id)) {
            add_opener(app, id);
            return;
        }
        from = end;
    }
}

static void look_at(struct mx_app *app, const struct mx_strbuf *text)
{
    size_t from = 0;
    for (int i = 0; i < TEXTS; i++) {
        const char *hit = memmem(text->data + from, text->len - from, texts[i], strlen(texts[i]));
        if (!hit)
            return; /* a template that changes or hides texts */
        size_t at = (size_t)(hit - text->data);
        if (i > 0)
            look_between(app, text->data, from, at);
        from = at + strlen(texts[i]);
    }
    look_between(app, text->data, from, text->len); /* the generation prompt */
}

void mx_borders_learn(struct mx_app *app)
{
    app->n_openers = 0;
    if (!app->model->chat || !app->model->tokenizer)
        return;
    for (int tools = 0; tools < 2; tools++) {
        mtplx_error err = {0};
        struct mx_strbuf text;
        json_t *messages = conversation(tools == 1);
        struct mx_chat_request q = {.messages = messages, .add_generation_prompt = true};
        mx_strbuf_init(&text, TEXT_MAX);
        if (messages && mx_chat_render(app->model->chat, &q, &text, &err) == MTPLX_OK && text.len)
            look_at(app, &text);
        mx_strbuf_free(&text);
        json_decref(messages);
    }
}

/* ---- Finding ------------------------------------------------------------------------------ */

static bool opens(const struct mx_app *app, int32_t id)
{
    for (int i = 0; i < app->n_openers; i++)
        if (app->openers[i] == id)
            return true;
    return false;
}

size_t *mx_borders_find(const struct mx_app *app, const int32_t *ids, size_t n, size_t *count)
{
    size_t found = 0, at = 0;
    *count = 0;
    for (size_t i = 1; i < n; i++)
        found += opens(app, ids[i]);
    size_t *list = found > 0 ? malloc(found * sizeof *list) : NULL;
    if (!list)
        return NULL;
    for (size_t i = 1; i < n; i++)
        if (opens(app, ids[i]))
            list[at++] = i;
    *count = at;
    return list;
}
