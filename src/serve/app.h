/* The application behind the routes: what handlers need besides their exchange. */
#ifndef MX_SERVE_APP_H
#define MX_SERVE_APP_H

#include "engine/engine.h"
#include "text/reasoning.h"
#include "text/toolcall.h"

#include <pthread.h>

struct mx_align;
struct mx_metrics;
struct mx_response_store;

#define MX_APP_OPENERS 8

/* Defaults of requests; may be changed while running (POST /v1/mtplx/settings). */
struct mx_app_settings {
    mtplx_sampling sampling;
    bool sampling_seeded; /* a seed was configured; else every request gets a fresh one */
    int depth;
    mtplx_depth_policy policy;
    bool context_copy;
    bool mtp;              /* false: plain decoding (generation mode ar) */
    int max_tokens;        /* longest answer; 0: the context window */
    int thinking;          /* enum mx_tristate: default of enable_thinking */
    int preserve_thinking; /* enum mx_thinking */
    bool stats_footer;     /* mtplx_stats in every answer, not only where asked for */
    bool client_controls;  /* clients may set sampling, depth and mode */
};

struct mx_app {
    mtplx_model *model;
    struct mx_engine *engine;
    const char *model_id; /* name in /v1/models */
    uint64_t started_ns;  /* mx_now_ns() at start */
    int64_t created;      /* Unix time at start */
    enum mx_tool_syntax tools;
    enum mx_reasoning_style reasoning;
    bool system_first;               /* see mx_messages_system_first() */
    int32_t openers[MX_APP_OPENERS]; /* tokens that open a message: borders.h */
    int n_openers;
    struct mx_align *align; /* NULL: no turn alignment */
    struct mx_metrics *metrics;
    struct mx_response_store *responses;
    size_t max_messages;  /* of one request */
    uint64_t deadline_ns; /* longest life of a request; 0: none */

    pthread_mutex_t lock; /* settings */
    struct mx_app_settings settings;
};

/* Fills `tools`, `reasoning`, `system_first` and `openers` from the model's chat template, which it
 * renders a few times for that. */
void mx_app_read_template(struct mx_app *app);
/* A copy of the settings. */
struct mx_app_settings mx_app_get_settings(struct mx_app *app);

#endif
