/* Chat rendering: the checkpoint's own template applied to a conversation.
 *
 * The template is read from chat_template.jinja, else the `chat_template` of tokenizer_config.json
 * (a string, or a list of {name, template} of which "default" is taken, "tool_use" when tools are
 * given and it exists), else chat_template.json. */
#ifndef MX_TEXT_CHAT_H
#define MX_TEXT_CHAT_H

#include "base/error.h"
#include "base/strbuf.h"

#include "format/gguf.h"

#include <jansson.h>

struct mx_chat;

/* NULL with err->status == MTPLX_OK when the directory has no template (a base model). */
struct mx_chat *mx_chat_open(const char *dir, mtplx_error *err);
/* The template in a GGUF file's metadata (tokenizer.chat_template), with the same convention. */
struct mx_chat *mx_chat_open_gguf(const struct mx_gguf *g, mtplx_error *err);
void mx_chat_free(struct mx_chat *c);

struct mx_chat_request {
    const json_t *messages; /* array of objects; content may be a string, null or a list of parts */
    const json_t *tools;    /* array or NULL */
    const json_t *kwargs;   /* object of extra variables or NULL */
    bool add_generation_prompt;
};
/* Checks the shape of the request (each message an object with a string role, ...) and renders. */
mtplx_status mx_chat_render(const struct mx_chat *c, const struct mx_chat_request *r,
                            struct mx_strbuf *out, mtplx_error *err);

/* The source of the template that a request with or without tools is rendered with. */
const char *mx_chat_template_text(const struct mx_chat *c, bool tools);
/* True when the template itself mentions `word` (e.g. "enable_thinking"). */
bool mx_chat_mentions(const struct mx_chat *c, const char *word);

#endif
