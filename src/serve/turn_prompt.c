/* The prompt of a turn: messages normalised, rendered by the checkpoint's template, tokenised. */
#include "serve/turn_int.h"

#include "runtime/model.h"
#include "serve/plain_text.h"
#include "text/messages.h"

#include <stdlib.h>
#include <string.h>

enum { TEXT_MAX = 64 << 20 };

/* The place that a sentence starts with ("messages[2].role ..."), as the field at fault. */
static void place_of(struct mx_api_error *e, const mtplx_error *err)
{
    size_t n = strlen(e->param);
    if (n == 0 || strncmp(err->message, e->param, n) != 0 || err->message[n] != '[')
        return;
    n += strspn(err->message + n, "[]._0123456789abcdefghijklmnopqrstuvwxyz");
    if (n < sizeof e->param) {
        memcpy(e->param, err->message, n);
        e->param[n] = '\0';
    }
}

bool mx_turn_fail_input(struct mx_api_error *e, const mtplx_error *err, const char *param)
{
    mx_api_fail_from(e, err, param);
    place_of(e, err);
    if (err->status == MTPLX_ERR_LIMIT)
        e->status = 400;
    return false;
}

/* ---- Template variables ------------------------------------------------------------------- */

static enum mx_tristate thinking_of(struct mx_app *app, const struct mx_turn_request *r)
{
    struct mx_app_settings s = mx_app_get_settings(app);
    return r->thinking != MX_UNSET ? r->thinking : (enum mx_tristate)s.thinking;
}

static enum mx_thinking policy_of(struct mx_app *app, const struct mx_turn_request *r)
{
    int policy = r->preserve_thinking;
    return (enum mx_thinking)(policy >= 0 ? policy : mx_app_get_settings(app).preserve_thinking);
}

/* The request's own variables win over what its other fields say. `thinking` is how some templates
 * spell enable_thinking. */
static json_t *make_kwargs(struct mx_app *app, const struct mx_turn_request *r)
{
    enum mx_tristate thinking = thinking_of(app, r);
    json_t *k = json_object();
    bool ok = k != NULL;
    if (ok && thinking != MX_UNSET)
        ok = json_object_set_new(k, "enable_thinking", json_boolean(thinking == MX_ON)) == 0 &&
             json_object_set_new(k, "thinking", json_boolean(thinking == MX_ON)) == 0;
    if (ok && r->reasoning_effort)
        ok = json_object_set_new(k, "reasoning_effort", json_string(r->reasoning_effort)) == 0;
    if (ok && r->kwargs)
        ok = json_object_update(k, (json_t *)(uintptr_t)r->kwargs) == 0;
    if (ok && mx_thinking_set_kwargs(policy_of(app, r), k))
        return k;
    json_decref(k);
    return NULL;
}

/* ---- Rendering ---------------------------------------------------------------------------- */

/* The text of a message that the template shows: its string, or its last text part. */
static const json_t *text_of(const json_t *message)
{
    const json_t *content = json_object_get(message, "content");
    if (json_is_array(content))
        content = json_object_get(json_array_get(content, json_array_size(content) - 1), "text");
    return json_is_string(content) ? content : NULL;
}

static char *reversed(const char *s, size_t n)
{
    char *r = malloc(n ? n : 1);
    for (size_t i = 0; r && i < n; i++)
        r[i] = s[n - 1 - i];
    return r;
}

/* Where s[0..n) ends in the text for the last time; 0: it is not there. SIZE_MAX: memory is out.
 * The first place in the reversed text, since stepping from hit to hit is quadratic in texts such
 * as "aaaa". */
static size_t last_end(const struct mx_strbuf *text, const char *s, size_t n)
{
    char *all = reversed(text->data, text->len), *part = reversed(s, n);
    size_t end = SIZE_MAX;
    if (all && part) {
        const char *hit = n > 0 ? memmem(all, text->len, part, n) : NULL;
        end = hit ? text->len - (size_t)(hit - all) : 0;
    }
    free(all);
    free(part);
    return end;
}

/* Cuts the rendered text behind the last message's own text, so that the answer goes on there. */
static bool cut_behind_final(const json_t *messages, struct mx_strbuf *text, struct mx_api_error *e)
{
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    const json_t *content = text_of(last);
    if (!role || strcmp(role, "assistant") != 0 || !content)
        return mx_api_fail(e, 400, "messages",
                           "To continue the final message, the last of 'messages' must be an "
                           "assistant message with text");
    const char *s = json_string_value(content);
    size_t n = json_string_length(content);
    while (n > 0 && strchr(" \t\r\n", s[n - 1]))
        n--;
    while (n > 0 && strchr(" \t\r\n", *s)) {
        s++;
        n--;
    }
    size_t end = last_end(text, s, n);
    if (end == SIZE_MAX)
        return mx_api_fail(e, 507, "messages", "Out of memory for the final message");
    if (end == 0)
        return mx_api_fail(e, 400, "messages",
                           "The chat template of this model does not show the final message, so "
                           "it cannot be continued");
    text->len = end;
    text->data[text->len] = '\0';
    return true;
}

static bool render(struct mx_app *app, const struct mx_turn_request *r, json_t *messages,
                   struct mx_strbuf *text, struct mx_api_error *e)
{
    mtplx_error err = {0};
    json_t *kwargs = make_kwargs(app, r);
    bool tools = r->tool_choice != MX_TOOL_CHOICE_NONE && json_array_size(r->tools) > 0;
    struct mx_chat_request q = {.messages = messages,
                                .tools = tools ? r->tools : NULL,
                                .kwargs = kwargs,
                                .add_generation_prompt =
                                    !r->continue_final && !r->no_generation_prompt};
    if (!kwargs)
        mx_error_nomem(&err, "template variables", 0);
    else
        mx_chat_render(app->model->chat, &q, text, &err);
    json_decref(kwargs);
    if (err.status != MTPLX_OK)
        return mx_turn_fail_input(e, &err, "messages");
    return !r->continue_final || cut_behind_final(messages, text, e);
}

static bool fail_guard(const struct mx_plain *guard, struct mx_api_error *e)
{
    if (guard->too_many)
        return mx_api_fail(e, 400, "messages",
                           "'messages' hold more than %d different special tokens as text",
                           MX_PLAIN_MAX);
    return mx_api_fail(e, 507, "messages", "Out of memory for 'messages'");
}

static bool render_messages(struct mx_app *app, const struct mx_turn_request *r,
                            struct mx_plain *guard, struct mx_strbuf *text, struct mx_api_error *e)
{
    if (!app->model->chat)
        return mx_api_fail(e, 400, "messages",
                           "This model has no chat template; send plain text to /v1/completions");
    json_t *messages = NULL;
    struct mx_messages_options o = {.thinking = policy_of(app, r),
                                    .style = app->reasoning,
                                    .system_first = app->system_first,
                                    .max_messages = app->max_messages};
    mtplx_error err = {0};
    if (mx_messages_normalise(r->messages, &o, &messages, &err) != MTPLX_OK)
        return mx_turn_fail_input(e, &err, "messages");
    bool ok = mx_plain_messages(guard, messages) || fail_guard(guard, e);
    ok = ok && render(app, r, messages, text, e);
    json_decref(messages);
    return ok;
}

/* ---- Tokens ------------------------------------------------------------------------------- */

static bool encode(struct mx_app *app, const char *s, size_t n, const char *param,
                   struct mx_turn_prompt *p, struct mx_api_error *e)
{
    mtplx_error err = {0};
    p->ids = mtplx_encode(app->model, s, n, false, &p->n, &err);
    return p->ids || mx_turn_fail_input(e, &err, param);
}

static bool take_ids(struct mx_app *app, const json_t *list, struct mx_turn_prompt *p,
                     struct mx_api_error *e)
{
    size_t n = json_array_size(list), i;
    int vocab = mtplx_model_get_info(app->model)->vocab_size;
    json_t *v;
    p->ids = malloc((n ? n : 1) * sizeof *p->ids);
    if (!p->ids)
        return mx_api_fail(e, 507, "prompt", "Out of memory for %zu token ids", n);
    json_array_foreach(list, i, v)
    {
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id >= vocab)
            return mx_api_fail(e, 400, "prompt",
                               "'prompt[%zu]' must be a token id between 0 and %d", i, vocab - 1);
        p->ids[p->n++] = (int32_t)id;
    }
    return true;
}

static bool encode_guarded(struct mx_app *app, const struct mx_plain *guard,
                           struct mx_turn_prompt *p, struct mx_api_error *e)
{
    struct mx_ids ids = {0};
    mtplx_error err = {0};
    const char *text = p->text.data ? p->text.data : "";
    if (guard->n == 0)
        return encode(app, text, p->text.len, "messages", p, e);
    if (mx_plain_encode(guard, text, p->text.len, &ids, &err) != MTPLX_OK) {
        mx_ids_free(&ids);
        return mx_turn_fail_input(e, &err, "messages");
    }
    p->ids = ids.v;
    p->n = ids.n;
    return true;
}

static bool from_messages(struct mx_app *app, const struct mx_turn_request *r,
                          struct mx_turn_prompt *p, struct mx_api_error *e)
{
    struct mx_plain guard;
    mx_plain_init(&guard, app->model->tokenizer);
    bool ok = render_messages(app, r, &guard, &p->text, e) && encode_guarded(app, &guard, p, e);
    mx_plain_free(&guard);
    return ok;
}

bool mx_turn_prompt_make(struct mx_app *app, const struct mx_turn_request *r,
                         struct mx_turn_prompt *p, struct mx_api_error *e)
{
    memset(p, 0, sizeof *p);
    mx_strbuf_init(&p->text, TEXT_MAX);
    bool ok;
    if (r->prompt_ids)
        ok = take_ids(app, r->prompt_ids, p, e);
    else if (r->messages)
        ok = from_messages(app, r, p, e);
    else
        ok = encode(app, r->prompt, r->prompt_len, "prompt", p, e);
    if (ok && p->n == 0)
        return mx_api_fail(e, 400, r->messages ? "messages" : "prompt", "The prompt is empty");
    return ok;
}

void mx_turn_prompt_free(struct mx_turn_prompt *p)
{
    free(p->ids);
    p->ids = NULL;
    mx_strbuf_free(&p->text);
}

bool mx_turn_count(struct mx_app *app, const struct mx_turn_request *r, size_t *tokens,
                   struct mx_api_error *e)
{
    struct mx_turn_prompt p;
    bool ok = mx_turn_prompt_make(app, r, &p, e);
    *tokens = p.n;
    mx_turn_prompt_free(&p);
    return ok;
}
