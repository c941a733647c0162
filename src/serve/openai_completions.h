/* The reply side of completions: several turns, one reply. */
#ifndef MX_SERVE_OPENAI_COMPLETIONS_H
#define MX_SERVE_OPENAI_COMPLETIONS_H

#include "serve/openai_params.h"

#define MX_COMPLETIONS_MAX 128 /* answers of one request */

struct mx_completions_options {
    bool echo;
    int logprobs; /* alternatives; -1: none are wanted */
    int n;        /* answers to a prompt */
    int answers;  /* in all */
    int turns;    /* that will be started */
};

/* A reply has an owner for each turn, and the handler. */
struct mx_completions;
struct mx_completions *mx_completions_new(struct mx_app *app, struct mx_exchange *x,
                                          const struct mx_openai_params *p,
                                          const struct mx_completions_options *o);
/* Argument for mx_completions_event() of turn `turn`, whose answers are `first` and on; `prompt` is
 * its text, or NULL when it was given as tokens. Valid as long as the reply. */
void *mx_completions_slot(struct mx_completions *r, int turn, int first, const json_t *prompt);
void mx_completions_event(void *arg, const struct mx_turn_event *ev);
/* The reply fails with this error, unless it has failed already. */
void mx_completions_refuse(struct mx_completions *r, const struct mx_api_error *e);
/* The jobs of the turns that were started: all end when the client goes away. Before release. */
void mx_completions_watch(struct mx_completions *r, const uint64_t *jobs, int n);
/* Gives up `n` owners: the handler, and turns that were not started. The last one out sends. */
void mx_completions_release(struct mx_completions *r, int n);

#endif
