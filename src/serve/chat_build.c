/* Builds OpenAI chat messages: one open message whose pieces are collected until the role changes.
 */
#include "serve/chat_build.h"

#include <string.h>

static const char *const role_names[] = {"", "system", "user", "assistant"};

void mx_chat_build_init(struct mx_chat_build *b)
{
    memset(b, 0, sizeof *b);
    mx_strbuf_init(&b->text, 0);
    mx_strbuf_init(&b->reasoning, 0);
    b->messages = json_array();
    b->failed = !b->messages;
}

void mx_chat_build_free(struct mx_chat_build *b)
{
    json_decref(b->messages);
    json_decref(b->calls);
    mx_strbuf_free(&b->text);
    mx_strbuf_free(&b->reasoning);
    memset(b, 0, sizeof *b);
}

static json_t *buffer_string(const struct mx_strbuf *b)
{
    return b->failed ? NULL : json_stringn(b->len ? b->data : "", b->len);
}

static void push(struct mx_chat_build *b, json_t *message)
{
    if (!message || json_array_append_new(b->messages, message) != 0)
        b->failed = true;
}

static void close_message(struct mx_chat_build *b)
{
    if (b->touched && !b->failed) {
        json_t *m =
            json_pack("{s:s,s:o}", "role", role_names[b->role], "content", buffer_string(&b->text));
        if (m && b->reasoning.len > 0 &&
            json_object_set_new(m, "reasoning_content", buffer_string(&b->reasoning)) != 0)
            b->failed = true;
        if (m && b->calls && json_object_set(m, "tool_calls", b->calls) != 0)
            b->failed = true;
        push(b, m);
    }
    json_decref(b->calls);
    b->calls = NULL;
    b->failed = b->failed || b->text.failed || b->reasoning.failed;
    mx_strbuf_clear(&b->text);
    mx_strbuf_clear(&b->reasoning);
    b->touched = false;
    b->role = MX_CHAT_NONE;
}

void mx_chat_build_role(struct mx_chat_build *b, enum mx_chat_role role)
{
    if (b->role == role)
        return;
    close_message(b);
    b->role = role;
}

static void join(struct mx_strbuf *b, const char *s, size_t n)
{
    if (b->len > 0 && n > 0 && b->data[b->len - 1] != '\n')
        mx_strbuf_putc(b, '\n');
    mx_strbuf_append(b, s, n);
}

void mx_chat_build_text(struct mx_chat_build *b, const char *s, size_t n)
{
    if (b->role == MX_CHAT_SYSTEM && b->text.len > 0 && n > 0)
        join(&b->text, "\n", 1); /* system texts are apart as paragraphs are */
    join(&b->text, s, n);
    b->touched = true;
}

void mx_chat_build_reasoning(struct mx_chat_build *b, const char *s, size_t n)
{
    join(&b->reasoning, s, n);
    b->touched = true;
}

void mx_chat_build_call(struct mx_chat_build *b, const char *id, const char *name,
                        const char *arguments)
{
    mx_chat_build_role(b, MX_CHAT_ASSISTANT);
    if (!b->calls)
        b->calls = json_array();
    json_t *call = json_pack("{s:s,s:s,s:{s:s,s:s}}", "id", id, "type", "function", "function",
                             "name", name, "arguments", arguments);
    if (!call || json_array_append_new(b->calls, call) != 0)
        b->failed = true;
    b->touched = true;
}

void mx_chat_build_result(struct mx_chat_build *b, const char *call_id, const char *s, size_t n)
{
    close_message(b);
    push(b, json_pack("{s:s,s:s,s:s%}", "role", "tool", "tool_call_id", call_id, "content",
                      n ? s : "", n));
}

json_t *mx_chat_build_finish(struct mx_chat_build *b)
{
    close_message(b);
    return b->failed ? NULL : json_incref(b->messages);
}
