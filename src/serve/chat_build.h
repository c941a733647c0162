/* Builds OpenAI chat messages from the pieces that other dialects have: blocks of a message, or
 * items of a list.
 *
 * Pieces of one role that follow one another become one message, since chat templates open a turn
 * for every message: texts are joined with line ends, those of the system with empty lines;
 * reasoning and calls go to the assistant message they stand in. The cost is linear in the pieces,
 * whatever their order. */
#ifndef MX_SERVE_CHAT_BUILD_H
#define MX_SERVE_CHAT_BUILD_H

#include "base/strbuf.h"

#include <jansson.h>

enum mx_chat_role {
    MX_CHAT_NONE = 0,
    MX_CHAT_SYSTEM,
    MX_CHAT_USER,
    MX_CHAT_ASSISTANT,
};

struct mx_chat_build {
    json_t *messages, *calls;
    struct mx_strbuf text, reasoning;
    enum mx_chat_role role; /* of the open message */
    bool touched;           /* it has a piece */
    bool failed;            /* memory is out */
};

void mx_chat_build_init(struct mx_chat_build *b);
void mx_chat_build_free(struct mx_chat_build *b);

/* The next pieces are of this role. Messages without a piece are left out. */
void mx_chat_build_role(struct mx_chat_build *b, enum mx_chat_role role);
void mx_chat_build_text(struct mx_chat_build *b, const char *s, size_t n);
void mx_chat_build_reasoning(struct mx_chat_build *b, const char *s, size_t n);
/* A call of the assistant; `arguments` is JSON text. */
void mx_chat_build_call(struct mx_chat_build *b, const char *id, const char *name,
                        const char *arguments);
/* The result of a call: a message of its own. */
void mx_chat_build_result(struct mx_chat_build *b, const char *call_id, const char *s, size_t n);

/* Closes the last message. New reference, or NULL when memory is out. */
json_t *mx_chat_build_finish(struct mx_chat_build *b);

#endif
