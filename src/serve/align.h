/* Turn alignment: reads what a client will send back before it sends it.
 *
 * The next turn of a conversation seldom begins with the very tokens of this one's prompt and
 * answer: templates leave out earlier reasoning, tool calls are rendered anew from their parsed
 * form. So after an answer has ended, the beginning of the next prompt is predicted: the request's
 * messages, the answer as its API gives it out and takes it back, and a stand-in for the message
 * that follows, rendered and tokenised as any request is, up to where the stand-in begins. Where
 * that is not what was just computed, the difference is read in idle time (MX_JOB_WARM).
 *
 * Invariants
 *   A1  A prediction changes no token of any answer: it only fills the session bank.
 *   A2  Rendering and tokenising run on a thread of their own; the engine's thread hands over what
 *       is there, after the reply has been sent.
 *   A3  What waits is bounded, the oldest is dropped. A prediction whose next turn has come is
 *       dropped; one that other work interrupted is taken up again a few times. */
#ifndef MX_SERVE_ALIGN_H
#define MX_SERVE_ALIGN_H

#include "serve/turn.h"

/* ---- Prediction: align_predict.c ---------------------------------------------------------- */

/* What is kept of a request and its answer; NULL stands for nothing and is taken everywhere. */
struct mx_align_saved;

/* Keeps what a prediction needs of a request with a prompt of n tokens: NULL where none can be made
 * (raw prompts, several choices, messages much longer than their prompt) or memory is out. */
struct mx_align_saved *mx_align_save(const struct mx_turn_request *r, size_t n_prompt);
void mx_align_saved_free(struct mx_align_saved *s);
/* Adds an event of the answer. */
void mx_align_saved_event(struct mx_align_saved *s, const struct mx_turn_event *ev);
size_t mx_align_saved_bytes(const struct mx_align_saved *s);

struct mx_align_prediction {
    int32_t *ids;    /* to free() */
    size_t n;        /* the predicted tokens */
    size_t *borders; /* where messages begin, ascending; the last is n. To free() */
    size_t n_borders;
};
/* The beginning of the next turn's prompt; false where the template or memory does not allow to
 * tell. */
bool mx_align_predict(struct mx_app *app, const struct mx_align_saved *s,
                      struct mx_align_prediction *p);
void mx_align_prediction_free(struct mx_align_prediction *p);

/* ---- The aligner: align.c ----------------------------------------------------------------- */

/* Starts its thread. app->engine is there and outlives it. */
struct mx_align *mx_align_new(struct mx_app *app, mtplx_error *err);
/* Ends its work and its thread; what is offered later is dropped. Before the engine is drained. */
void mx_align_stop(struct mx_align *a);
/* When no turn is left; NULL is allowed. */
void mx_align_free(struct mx_align *a);

/* An answer that has ended. Arrays are taken over with `saved`: to free(). */
struct mx_align_offer {
    struct mx_align_saved *saved;
    int32_t *prompt; /* n_prompt tokens, and behind them n_answer of the answer that were read */
    size_t n_prompt, n_answer;
    size_t base;        /* where the answer's own message begins: the prompt's last border */
    uint64_t base_hash; /* mx_align_hash() of the tokens before */
    const char *scope, *label;
};
uint64_t mx_align_hash(const struct mx_align *a, const int32_t *ids, size_t n);
/* Quick enough for the engine's thread. */
void mx_align_offer(struct mx_align *a, const struct mx_align_offer *o);
/* A prompt has come: tells whether a prediction was right, and drops it. */
void mx_align_arrived(struct mx_align *a, const char *scope, const char *label, const int32_t *ids,
                      size_t n, const size_t *borders, size_t n_borders);

struct mx_align_stats {
    uint64_t predicted;   /* predictions made */
    uint64_t unpredicted; /* answers without: the template does not allow it, or it came too late */
    uint64_t aligned;     /* nothing to read: the next turn begins with what is there already */
    uint64_t started, finished, abandoned, failed; /* reading jobs */
    uint64_t dropped;             /* waited too long, or the next turn came first */
    uint64_t tokens;              /* read in advance */
    uint64_t matched, mismatched; /* next turns that did, did not, begin so */
    uint64_t waiting;
};
void mx_align_get_stats(struct mx_align *a, struct mx_align_stats *s);

#endif
