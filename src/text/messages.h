/* Brings a conversation, as clients send it, into the one form that chat templates get.
 *
 *  1. Roles are system, user, assistant and tool. `developer` is system, `function` is tool, and an
 *     old `function_call` is a tool call. System messages at the start are one, joined by an empty
 *     line. A later one stays where it is if the template shows it, and is a user message
 * otherwise: moved to the start it would say something else, and no cached prefix would fit any
 * more.
 *  2. Content is a string: texts of a list of parts are joined by newlines. Images, sound and files
 *     are refused. An assistant without content has "".
 *  3. tool_calls are [{id?, type: "function", function: {name, arguments: object}}], since
 * templates iterate over arguments. A string that is no JSON object, such as that of a call that
 * was cut off, becomes {"arguments": the string}; an empty one is {}. A tool message without name
 * gets that of the call it answers.
 *  4. Reasoning of the assistant is in `reasoning_content`, whether it came under that name, as
 *     `reasoning` or `thinking` (field or part), or at the start of the content between the model's
 *     tags. Which messages keep it is the policy.
 *  5. All other fields are dropped. */
#ifndef MX_TEXT_MESSAGES_H
#define MX_TEXT_MESSAGES_H

#include "base/error.h"
#include "text/chat.h"
#include "text/reasoning.h"

#include <jansson.h>

/* Which reasoning of earlier turns the model sees again. */
enum mx_thinking {
    MX_THINKING_AUTO = 0, /* what the template keeps by itself */
    MX_THINKING_ON,       /* all, where the template has a switch for it */
    MX_THINKING_OFF,      /* none */
    MX_THINKING_SCOPED,   /* that behind the last user message: of the tool loop under way */
};
/* The policy called auto, on, off or scoped; or -1. */
int mx_thinking_named(const char *name);
/* Sets the switches of known templates (preserve_thinking, clear_thinking, drop_thinking) in the
 * extra variables of a template, where they are not set yet. False when memory is out. */
bool mx_thinking_set_kwargs(enum mx_thinking policy, json_t *kwargs);

struct mx_messages_options {
    enum mx_thinking thinking;
    enum mx_reasoning_style style; /* tags of reasoning inside content; NONE: leave content alone */
    bool system_first;             /* see mx_messages_system_first() */
    size_t max_messages;           /* 0: 16,384 */
    int max_depth;                 /* of nested values in a message; 0: 128 */
};

/* Whether the template shows system messages only at the start (it refuses, or skips, later ones).
 */
bool mx_messages_system_first(const struct mx_chat *c);

/* A new list into *out. Errors: ARGUMENT (the sentence names the place, such as
 * messages[2].tool_calls[0].function.name), LIMIT, MEMORY. Threads may share what it reads. */
mtplx_status mx_messages_normalise(const json_t *messages, const struct mx_messages_options *o,
                                   json_t **out, mtplx_error *err);

#endif
