/* A whole server on a loopback port, over the nano model: for tests that talk HTTP to it. */
#ifndef TESTS_SERVE_RIG_H
#define TESTS_SERVE_RIG_H

#include "golden/golden.h"
#include "unit/http_client.h"

#include "base/clock.h"
#include "serve/api.h"
#include "serve/app.h"
#include "serve/metrics.h"
#include "serve/server.h"

#include <sodium.h>
#include <time.h>

struct rig {
    struct mx_app app;
    struct mx_server *server;
    int port;
};

/* Greedy by default, drafts of fixed depth 3. */
static inline void rig_start(struct rig *g)
{
    mtplx_error err = {0};
    memset(g, 0, sizeof *g);
    assert_true(sodium_init() >= 0);
    g->app.model = load_or_fail(src_path("models/nano"), NULL);
    struct mx_engine_options eo = {.model = g->app.model, .mode = MX_ENGINE_MTP_BATCH};
    g->app.engine = mx_engine_new(&eo, &err);
    if (!g->app.engine)
        fail_msg("engine: %s", err.message);
    g->app.model_id = "nano";
    g->app.started_ns = mx_now_ns();
    g->app.created = (int64_t)time(NULL);
    mx_app_read_template(&g->app);
    g->app.metrics = mx_metrics_new();
    g->app.responses = mx_response_store_new(16, 1u << 20);
    pthread_mutex_init(&g->app.lock, NULL);
    g->app.settings = (struct mx_app_settings){
        .sampling = {.temperature = 0, .top_p = 1, .repetition_penalty = 1},
        .depth = 3,
        .mtp = true,
        .client_controls = true,
    };
    struct mx_server_options so = {.host = "127.0.0.1"};
    g->server = mx_server_start(&g->app, &so, &err);
    if (!g->server)
        fail_msg("server: %s", err.message);
    g->port = mx_server_port(g->server);
}

static inline void rig_stop(struct rig *g)
{
    mx_server_quiesce(g->server);
    mx_engine_drain(g->app.engine, 5000000000ull);
    mx_server_free(g->server);
    mx_engine_free(g->app.engine);
    mx_metrics_free(g->app.metrics);
    mx_response_store_free(g->app.responses);
    pthread_mutex_destroy(&g->app.lock);
    mtplx_model_free(g->app.model);
}

/* Posts a body and parses the answer, which the caller drops. */
static inline json_t *rig_post(const struct rig *g, const char *path, const char *body, int *status)
{
    struct reply r = ask(g->port, "POST", path, "Content-Type: application/json\r\n", body);
    json_error_t je;
    json_t *v = json_loadb(r.body, r.n, 0, &je);
    *status = r.status;
    if (!v)
        fail_msg("%s: status %d, %s in: %.400s", path, r.status, je.text, r.body);
    free(r.body);
    return v;
}

/* Posts to a path that streams: the `data` of the events as a list, [DONE] as a string. */
static inline json_t *rig_stream(const struct rig *g, const char *path, const char *body)
{
    struct reply r = ask(g->port, "POST", path, "Content-Type: application/json\r\n", body);
    json_t *list = json_array();
    assert_int_equal(r.status, 200);
    assert_true(r.whole);
    for (char *line = r.body, *end; line && *line; line = end ? end + 1 : NULL) {
        end = strchr(line, '\n');
        if (end)
            *end = '\0';
        if (strncmp(line, "data: ", 6) != 0)
            continue;
        json_t *v =
            strcmp(line + 6, "[DONE]") == 0 ? json_string("[DONE]") : json_loads(line + 6, 0, NULL);
        if (!v)
            fail_msg("not JSON: %s", line);
        json_array_append_new(list, v);
    }
    free(r.body);
    return list;
}

/* The value at a path such as "choices.0.message.content"; NULL when there is none. */
static inline json_t *at(const json_t *v, const char *path)
{
    char step[64];
    while (v && *path) {
        size_t n = strcspn(path, ".");
        snprintf(step, sizeof step, "%.*s", (int)n, path);
        v = json_is_array(v) ? json_array_get(v, strtoul(step, NULL, 10))
                             : json_object_get(v, step);
        path += n + (path[n] == '.');
    }
    return (json_t *)(uintptr_t)v;
}

static inline const char *text_at(const json_t *v, const char *path)
{
    const json_t *t = at(v, path);
    if (!json_is_string(t)) {
        char *all = json_dumps(v, 0);
        fail_msg("no string at %s in %.600s", path, all);
    }
    return json_string_value(t);
}

static inline long long int_at(const json_t *v, const char *path)
{
    const json_t *t = at(v, path);
    if (!json_is_integer(t)) {
        char *all = json_dumps(v, 0);
        fail_msg("no integer at %s in %.600s", path, all);
    }
    return json_integer_value(t);
}

#endif
