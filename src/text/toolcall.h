/* Finds tool calls in visible text as it streams.
 *
 * One incremental machine per syntax (enum mx_tool_syntax in grammar.h). Text that could start a
 * call is held back, never more than the marker or the call it belongs to; what turns out not to be
 * a well-formed call of a declared tool is emitted as text, byte for byte. Arguments are what the
 * model wrote: coerced to the types of the tool's schema where the syntax has no types of its own,
 * never invented.
 *
 * A call is held until it is complete, or longer than `hold_bytes`: then it streams. One that
 * breaks or is cut off after that cannot become text again. It gets no END, and its arguments
 * joined are only the start of a JSON object; the caller ends it as the API has it (finish reason
 * "length", an incomplete item). */
#ifndef MX_TEXT_TOOLCALL_H
#define MX_TEXT_TOOLCALL_H

#include "base/error.h"
#include "text/grammar.h"

/* The syntax that a chat template asks for: the most specific whose markers occur in its text. */
enum mx_tool_syntax mx_tool_syntax_of(const char *template_text);
const char *mx_tool_syntax_name(enum mx_tool_syntax s);
/* The string that starts a call (the trigger for grammars), or NULL. */
const char *mx_tool_syntax_start(enum mx_tool_syntax s);

enum mx_tool_event {
    MX_TOOL_TEXT,  /* visible text */
    MX_TOOL_BEGIN, /* a call of tool `name` starts; its index is `call` */
    MX_TOOL_ARGS,  /* a piece of the call's arguments, JSON text; the pieces joined are one JSON
                      object */
    MX_TOOL_END,   /* the call is complete */
};
/* `call` counts from 0; `text` is the piece, or the name for BEGIN. */
typedef void mx_tool_fn(void *arg, enum mx_tool_event event, int call, const char *text, size_t n);

struct mx_toolcall_options {
    enum mx_tool_syntax syntax;
    const json_t *tools; /* OpenAI function tools; borrowed. NULL or []: calls, of whatever tool,
                            are dropped and counted as stray */
    int max_calls;       /* further calls are dropped and counted; 0: 128 */
    size_t max_bytes;    /* of one call; longer ones are malformed; 0: 8 MiB */
    size_t hold_bytes;   /* of one call that are held back at most, if it can be let go; 0: 1 KiB */
};

struct mx_toolcall_counts {
    unsigned parsed;       /* emitted from BEGIN to END */
    unsigned malformed;    /* not well-formed: text, or without END */
    unsigned unknown_tool; /* of a tool that was not declared: text */
    unsigned stray;        /* dropped: no tool was declared */
    unsigned dropped;      /* beyond max_calls */
};

struct mx_toolcall;
/* Errors: ARGUMENT (the shape of `tools`), MEMORY. */
struct mx_toolcall *mx_toolcall_new(const struct mx_toolcall_options *o, mx_tool_fn *emit,
                                    void *arg, mtplx_error *err);
void mx_toolcall_free(struct mx_toolcall *t);
/* False when memory is out. */
bool mx_toolcall_push(struct mx_toolcall *t, const char *text, size_t n);
/* End of the answer: an unfinished call is completed where only its closing marker is missing, or
 * has begun and is cut off. Any other becomes text, if it was held. */
bool mx_toolcall_finish(struct mx_toolcall *t);
const struct mx_toolcall_counts *mx_toolcall_get_counts(const struct mx_toolcall *t);

#endif
