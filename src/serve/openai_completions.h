/* The reply side of completions: several turns, one reply. */
#ifndef MX_SERVE_OPENAI_COMPLETIONS_H
#define MX_SERVE_OPENAI_COMPLETIONS_H

#include "serve/openai_params.h"

#define MX_COMPLETIONS_MAX 128 /* answers of one request */

struct mx_completions;

/* What a reply keeps of its request, and how it makes turns. */
struct mx_completions_options {
    bool echo;
    int logprobs; /* alternatives; -1: none are wanted */
    int n;        /* answers to a prompt */
    int answers;  /* in all */
    int turns;
    /* A turn with the event function and argument given, or NULL with *e filled. Called on the
     * handler's thread. */
    struct mx_turn *(*make)(void *request, int turn, mx_turn_fn *event, void *arg,
                            struct mx_api_error *e);
    void (*free)(void *request);
    void *request; /* the reply takes it over */
};

/* Makes all turns, and starts them a few at a time, so that a long list of prompts neither fills
 * the queue nor keeps others out; the reply is sent when all have ended. False with *e filled when
 * one cannot be made: then nothing was taken over. */
bool mx_completions_run(struct mx_app *app, struct mx_exchange *x, const struct mx_openai_params *p,
                        const struct mx_completions_options *o, struct mx_api_error *e);

#endif
