/* A turn: one request for text, whatever API it came through.
 *
 * The dialects (chat completions, completions, responses, messages) translate their body into a
 * mx_turn_request and the events of the answer back into their own objects. Everything between is
 * here: normalising messages, the chat template, tokens, grammar, the engine, detokenising,
 * reasoning, tool calls, stop strings, usage.
 *
 * Events come on the engine's thread, in order, one choice's interleaved with another's. The text
 * of an event is valid during the call. */
#ifndef MX_SERVE_TURN_H
#define MX_SERVE_TURN_H

#include "engine/engine.h"
#include "serve/app.h"
#include "serve/exchange.h"

enum mx_turn_kind {
    MX_TURN_TEXT = 0,   /* visible text */
    MX_TURN_REASONING,  /* reasoning text */
    MX_TURN_TOOL_BEGIN, /* call number `call` of tool `name` with id `call_id` */
    MX_TURN_TOOL_ARGS,  /* a piece of its arguments */
    MX_TURN_TOOL_END,
    MX_TURN_PROGRESS, /* `read` of `of` prompt tokens are read */
    MX_TURN_FINISH,   /* a choice has ended: `finish` */
    MX_TURN_CLOSE,    /* the last event of a turn; nothing may be used after it */
};

enum mx_turn_reason {
    MX_REASON_STOP = 0,      /* the model ended its answer */
    MX_REASON_STOP_SEQUENCE, /* a stop string, see stop_index */
    MX_REASON_LENGTH,
    MX_REASON_TOOL_CALLS, /* the model ended its answer and called tools */
    MX_REASON_CANCELLED,
    MX_REASON_ERROR, /* see error */
};

struct mx_turn_finish {
    enum mx_turn_reason reason;
    int stop_index; /* which stop string, or -1 */
    int tool_calls;
    struct mx_api_error error;
    size_t prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens;
    const struct mx_job_result *job;
};

struct mx_turn_event {
    enum mx_turn_kind kind;
    int choice;
    const char *text;
    size_t n;
    int call;
    const char *call_id; /* "call_" and 24 characters */
    const char *name;
    size_t read, of;
    const struct mx_turn_finish *finish;
    /* Answer tokens that this event's text came from, where logprobs were asked for: index of the
     * first, and how many (0: counted with an earlier or later event). */
    size_t token, n_tokens;
    const mtplx_gen *gen;  /* for mtplx_gen_logprobs(); NULL: never started */
    const int32_t *prompt; /* ids of the prompt; NULL for CLOSE */
    size_t n_prompt;
};

typedef void mx_turn_fn(void *arg, const struct mx_turn_event *ev);

enum mx_tool_choice {
    MX_TOOL_CHOICE_AUTO = 0,
    MX_TOOL_CHOICE_NONE,
    MX_TOOL_CHOICE_REQUIRED,
    MX_TOOL_CHOICE_NAMED,
};

enum mx_format {
    MX_FORMAT_TEXT = 0,
    MX_FORMAT_JSON, /* any object */
    MX_FORMAT_SCHEMA,
    MX_FORMAT_REGEX,
    MX_FORMAT_GBNF,
};

enum mx_tristate { MX_UNSET = 0, MX_ON, MX_OFF };

/* How clients of an API send an answer back in their next turn. */
enum mx_resend {
    MX_RESEND_UNKNOWN = 0,
    MX_RESEND_MESSAGE, /* one message: all its text, its calls */
    MX_RESEND_PIECES,  /* in its pieces, which become a message again: content blocks, items */
};

#define MX_TURN_STOPS 16

/* Zero-initialise with mx_turn_defaults(). Everything is borrowed until mx_turn_start() returns. */
struct mx_turn_request {
    const json_t *messages; /* OpenAI chat messages; or one of the next two */
    const char *prompt;     /* text */
    size_t prompt_len;
    const json_t *prompt_ids; /* array of token ids */

    const json_t *tools;  /* OpenAI function tools, or NULL */
    const json_t *kwargs; /* chat_template_kwargs, or NULL */
    enum mx_tool_choice tool_choice;
    const char *tool_name; /* NAMED */
    bool parallel_tool_calls;

    enum mx_format format;
    const json_t *schema;    /* SCHEMA */
    const char *format_text; /* REGEX, GBNF */
    size_t format_len;
    mtplx_grammar *grammar; /* instead of the format; outlives the turn */

    enum mx_tristate thinking;    /* enable_thinking for the template */
    const char *reasoning_effort; /* for the template, or NULL */
    int preserve_thinking;        /* enum mx_thinking of text/messages.h; -1: the server's */
    bool continue_final;          /* go on with the last assistant message */
    bool no_generation_prompt;    /* the prompt ends behind the last message */
    /* For the prediction of the next turn (align.h). resend_reasoning: reasoning comes back too,
     * where the conversation so far does not tell. */
    enum mx_resend resend;
    bool resend_reasoning;

    mtplx_gen_options gen; /* sampling, depth, policy, copy, logprobs, bias; max_tokens 0: the
                              server's limit */
    const char *stop[MX_TURN_STOPS];
    int n_stop;
    bool include_stop; /* keep the stop string in the text */
    int choices;
    /* Completions: no reasoning, no tools; special tokens of the prompt text are recognised. */
    bool raw;
    bool prompt_only; /* no answer: the prompt is read for its log-probabilities */

    const char *session; /* client's conversation id, or NULL */
    int priority;
    uint64_t deadline_ns;
    bool no_reuse;

    mx_turn_fn *event;
    void *arg;
};

/* The server's defaults (sampling of the checkpoint or flags, depth, policy) and choices 1. */
void mx_turn_defaults(struct mx_app *app, struct mx_turn_request *r);

/* Prepares the turn and queues it; returns the engine's job id (for mx_engine_cancel()), or 0 with
 * *e filled and no event to come. Events may come before it returns. The exchange is watched: the
 * job is cancelled when its client goes away, and held while its backlog is high. */
uint64_t mx_turn_start(struct mx_app *app, struct mx_exchange *x, const struct mx_turn_request *r,
                       struct mx_api_error *e);

/* The two halves of mx_turn_start(), for turns that are queued later than prepared. What `r` points
 * to is borrowed until the turn was submitted, which takes it over whether that succeeds or not,
 * and is quick enough for the engine's thread. */
struct mx_turn;
struct mx_turn *mx_turn_make(struct mx_app *app, struct mx_exchange *x,
                             const struct mx_turn_request *r, struct mx_api_error *e);
uint64_t mx_turn_submit(struct mx_turn *t, struct mx_api_error *e);
void mx_turn_free(struct mx_turn *t); /* one that was not submitted; NULL is allowed */

/* The grammar of the format of `r`, for raw turns that share it (mx_turn_request.grammar). NULL
 * with e->status 0 where the format is text, else with *e filled. */
mtplx_grammar *mx_turn_grammar(struct mx_app *app, const struct mx_turn_request *r,
                               struct mx_api_error *e);

/* "stop", "length", "tool_calls", ... as chat completions spell it. */
const char *mx_turn_reason_openai(const struct mx_turn_finish *f);
/* The mtplx_stats object of an answer: what was reused of its prompt and why not more, and with
 * `all` speeds, TTFT, acceptance by depth, verify waterfall. New reference, or NULL. */
json_t *mx_turn_stats(const struct mx_turn_finish *f, bool all);
/* OpenAI's usage object (chat spelling). */
json_t *mx_turn_usage(size_t prompt, size_t cached, size_t completion, size_t reasoning);

/* Number of tokens of a chat prompt as the template renders it, without running anything; false
 * with *e filled on an error. */
bool mx_turn_count(struct mx_app *app, const struct mx_turn_request *r, size_t *tokens,
                   struct mx_api_error *e);

#endif
