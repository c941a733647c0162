/* Inside of a turn: what its preparation leaves, and the way of each choice's tokens to events.
 *
 *   turn.c          the life of a turn: submission, the engine's calls, the end
 *   turn_prepare.c  a request becomes prompt tokens, a grammar and empty choices
 *   turn_prompt.c   messages, template, tokens
 *   turn_label.c    whose prompt it is, for the session bank
 *   turn_stream.c   tokens of a choice become events
 *   turn_report.c   usage and statistics */
#ifndef MX_SERVE_TURN_INT_H
#define MX_SERVE_TURN_INT_H

#include "serve/align.h"
#include "serve/stops.h"
#include "serve/turn.h"

#include <stdatomic.h>

enum { MX_TURN_SCOPE = 24, MX_TURN_LABEL = 48 };

/* Bytes of visible text that came from one token. */
struct mx_span {
    size_t token, first; /* tokens first..token belong together: the earlier ones had no text */
    size_t bytes;
};

/* Spans of bytes in order: those of the front are taken as their text is shown. */
struct mx_spans {
    struct mx_span *v;
    size_t head, n, cap;
};

struct mx_choice {
    struct mx_turn *turn;
    int index;
    const mtplx_gen *gen; /* during a call of the engine */
    mtplx_detok *detok;
    struct mx_reasoning reasoning;
    struct mx_toolcall *tools; /* NULL: visible text is not looked at */
    struct mx_stop_match stops;

    size_t token;            /* answer token being looked at */
    size_t carry;            /* first of the tokens whose text comes with that of `token` */
    size_t pushed;           /* bytes of text so far */
    size_t keep;             /* tokens that count, once `ended` */
    size_t reasoning_tokens; /* of those */
    int calls;               /* tool calls begun */
    bool open_call;          /* the last of them has not ended */
    bool broken_call;        /* one was left without an end */
    char call_id[32];
    bool ended;  /* by a stop string, or the only call */
    bool failed; /* memory was out */

    /* Log-probabilities are asked for: where text came from. */
    bool trace;
    struct mx_spans raw;         /* text behind the detokeniser */
    size_t raw_at;               /* offset of the front of `raw` */
    struct mx_spans ahead;       /* text that stands before the tool-call parser */
    struct mx_strbuf ahead_text; /* that text */
    size_t piece;                /* bytes of the last piece of it */
    struct mx_spans visible;     /* text that stands before the stop matcher */

    /* An event being put together. */
    struct mx_strbuf text;
    enum mx_turn_kind kind;
    size_t first, n_tokens;
};

struct mx_turn {
    struct mx_app *app;
    struct mx_turn_request request; /* what it borrows is gone once the turn is submitted */
    struct mx_exchange *exchange;
    mx_turn_fn *event;
    void *arg;
    atomic_int refs;
    _Atomic uint64_t job; /* 0: not known yet */
    uint64_t blocked_since;

    int32_t *prompt;
    size_t n_prompt;
    size_t *borders; /* where messages of the prompt begin; see borders.h */
    size_t n_borders;
    char scope[MX_TURN_SCOPE], label[MX_TURN_LABEL]; /* see mx_job_options */
    struct mx_align_saved *saved; /* for predicting the next turn; NULL: it is not */
    uint64_t base_hash;           /* of the prompt up to its last border, for the same */
    mtplx_grammar *grammar;
    json_t *tools; /* that may be called, or NULL */
    struct mx_stop_set stops;
    bool include_stop, one_call, prompt_only;
    size_t completion_tokens; /* of all choices that have ended */
    int n_choices, running;
    struct mx_choice choices[MX_MAX_CHOICES];
};

/* A turn ready to be submitted, or NULL with *e filled. `max_tokens` of the answer comes back in
 * *gen, whose arrays are those of `r`. */
struct mx_turn *mx_turn_prepare(struct mx_app *app, struct mx_exchange *x,
                                const struct mx_turn_request *r, mtplx_gen_options *gen,
                                struct mx_api_error *e);

/* As mx_api_fail_from(), for errors that the request's own content caused: a limit that it breaks
 * is a 400. */
bool mx_turn_fail_input(struct mx_api_error *e, const mtplx_error *err, const char *param);

/* A prompt: its tokens, and its text where it came from text (for how the answer starts). */
struct mx_turn_prompt {
    int32_t *ids;
    size_t n;
    struct mx_strbuf text;
};
/* False with *e filled. Free it either way. */
bool mx_turn_prompt_make(struct mx_app *app, const struct mx_turn_request *r,
                         struct mx_turn_prompt *p, struct mx_api_error *e);
void mx_turn_prompt_free(struct mx_turn_prompt *p);

/* Fills scope and label of a turn whose prompt and borders are there. */
void mx_turn_set_label(struct mx_turn *t, const struct mx_turn_request *r);

/* ---- Choices ------------------------------------------------------------------------------ */

bool mx_choice_init(struct mx_choice *c, struct mx_turn *t, int index,
                    const struct mx_turn_request *r, const struct mx_turn_prompt *p,
                    struct mx_api_error *e);
void mx_choice_free(struct mx_choice *c);
/* New tokens; as mx_job_sink.tokens. */
size_t mx_choice_tokens(struct mx_choice *c, const int32_t *ids, size_t from, size_t n);
/* The end: shows what was held back. */
void mx_choice_finish(struct mx_choice *c);
/* Sends an event as it is. */
void mx_choice_emit(struct mx_choice *c, struct mx_turn_event *ev);

#endif
