/* mtplx serve: the HTTP server, from the first step of its start to the last of its end.
 *
 * Signals are blocked in all threads and taken by one that waits for them: before the server is
 * ready the first one ends the program; then the first one drains, the second cancels what still
 * runs, a third ends the program. */
#include "base/clock.h"
#include "base/file.h"
#include "cli/commands.h"
#include "cli/model_arg.h"
#include "cli/serve_flags.h"
#include "cli/serve_process.h"
#include "runtime/constraint.h"
#include "runtime/model.h"
#include "serve/align.h"
#include "serve/api.h"
#include "serve/http.h"
#include "serve/metrics.h"
#include "serve/request_log.h"
#include "session/cold_state.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STEPS = 5, MAX_MESSAGES = 16384, STORED_RESPONSES = 1000 };

static const size_t stored_bytes = (size_t)64 << 20;
static const uint64_t cold_close_ns = 3 * UINT64_C(1000000000);

struct serve {
    const struct mx_cli_args *args;
    struct mx_cli_out *out;
    struct mx_serve_config config;
    struct mx_app app;
    struct mx_server *server;
    struct mx_cold *cold; /* NULL: states are kept in memory only */
    char *model_id;
    uint64_t step_ns;
    int step;
    mtplx_error err;

    pthread_mutex_t lock; /* what follows */
    pthread_cond_t changed;
    bool ready, ended; /* between them there is an engine to speak to */
    int signals;       /* how many came */
    int warm;          /* 1: the warm-up is over */
    char warm_error[200];
};

/* ---- Steps -------------------------------------------------------------------------------- */

static bool quiet(const struct serve *s)
{
    return s->args->values[SERVE_QUIET].on;
}

static void begin_step(struct serve *s, const char *what, const char *more)
{
    s->step++;
    s->step_ns = mx_now_ns();
    if (!quiet(s))
        fprintf(stderr, "[%d/%d] %s%s", s->step, STEPS, what, more);
}

static void end_step(const struct serve *s, bool ok)
{
    if (!quiet(s))
        fprintf(stderr, ok ? " (%.2f s)\n" : " failed\n",
                (double)(mx_now_ns() - s->step_ns) * 1e-9);
}

/* ---- Signals ------------------------------------------------------------------------------ */

/* From here on a signal ends the program, even while this thread waits for the engine. */
static void restore_signals(void)
{
    struct sigaction plain = {.sa_handler = SIG_DFL};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaction(SIGINT, &plain, NULL);
    sigaction(SIGTERM, &plain, NULL);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

/* False at the end of the program. */
static bool signal_came(struct serve *s, int number)
{
    pthread_mutex_lock(&s->lock);
    bool ended = s->ended;
    int n = number == SIGUSR1 ? 0 : ++s->signals;
    if (n > 0 && (!s->ready || n > 2))
        _exit(128 + number);
    if (n == 2)
        restore_signals();
    if (n == 2 && !ended)
        mx_engine_drain(s->app.engine, 0); /* cancels, and so ends the other wait */
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return !ended || n > 0;
}

static void waited_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGUSR1); /* ends the thread once the server has ended */
}

static void *signal_thread(void *arg)
{
    sigset_t set;
    int number = 0;
    waited_signals(&set);
    while (sigwait(&set, &number) == 0 && signal_came(arg, number))
        ;
    return NULL;
}

static void wait_for_signal(struct serve *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->signals == 0)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

/* ---- Starting ----------------------------------------------------------------------------- */

/* Whether the server will be able to open its files. */
static mtplx_status check_files(const struct mx_server_options *o, mtplx_error *err)
{
    const char *const tls[] = {o->tls_cert, o->tls_key};
    for (int i = 0; i < 2; i++)
        if (tls[i] && access(tls[i], R_OK) != 0)
            return mx_error(err, MTPLX_ERR_IO, "cannot read %.200s: %s", tls[i], strerror(errno));
    struct mx_request_log *log = o->log_path ? mx_request_log_open(o->log_path, err) : NULL;
    mx_request_log_close(log);
    return o->log_path && !log ? err->status : MTPLX_OK;
}

/* Finds a taken port, and files that cannot be used, before the minutes of loading rather than
 * after. */
static mtplx_status check_port(struct serve *s)
{
    const struct mx_server_options *o = &s->config.server;
    int bound, pid;
    begin_step(s, "checking settings and port", "");
    if (check_files(o, &s->err) != MTPLX_OK)
        return s->err.status;
    int fd = mx_listen(o->host, o->port, &bound, &s->err);
    if (fd >= 0) {
        close(fd);
        return MTPLX_OK;
    }
    if (s->err.status == MTPLX_ERR_IO && mx_serve_ask(o->host, o->port, &pid) == MX_SERVE_MTPLX)
        return mx_error(&s->err, MTPLX_ERR_IO,
                        "port %d is taken by an mtplx server that is already running (pid %d): use "
                        "it, end it with mtplx stop --port %d, or choose another --port",
                        o->port, pid, o->port);
    return s->err.status;
}

/* The last part of the model's path, without .gguf. */
static char *name_of(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    size_t at = n;
    while (at > 0 && path[at - 1] != '/')
        at--;
    if (n - at > 5 && strncmp(path + n - 5, ".gguf", 5) == 0)
        n -= 5;
    return strndup(path + at, n - at);
}

static void read_template(struct serve *s)
{
    mx_app_read_template(&s->app);
    if (s->config.tool_syntax >= 0)
        s->app.tools = (enum mx_tool_syntax)s->config.tool_syntax;
    if (s->config.reasoning_style >= 0)
        s->app.reasoning = (enum mx_reasoning_style)s->config.reasoning_style;
}

static mtplx_status load(struct serve *s)
{
    const struct mx_cli_value *v = s->args->values;
    const char *path = v[SERVE_MODEL].text;
    begin_step(s, "loading ", path ? path : "the built-in nano model");
    s->app.model = mx_model_arg_load(path, &s->config.load, &s->err);
    if (!s->app.model)
        return s->err.status;
    if (v[SERVE_CONTEXT_WINDOW].source)
        mx_model_limit_context(s->app.model, (int)v[SERVE_CONTEXT_WINDOW].integer);
    s->model_id = v[SERVE_MODEL_ID].text ? strdup(v[SERVE_MODEL_ID].text)
                                         : name_of(mtplx_model_get_info(s->app.model)->path);
    s->app.model_id = s->model_id;
    read_template(s);
    mx_serve_settings(s->args, s->app.model, &s->app.settings);
    return s->model_id ? MTPLX_OK : mx_error_nomem(&s->err, "the model's name", 64);
}

/* A warning, also in the middle of a step's line. */
static void cold_log(void *arg, const char *line)
{
    struct serve *s = arg;
    pthread_mutex_lock(&s->lock);
    bool ready = s->ready;
    pthread_mutex_unlock(&s->lock);
    if (!ready && !quiet(s))
        fputc('\n', stderr);
    mx_cli_complain("serve", "%s", line);
}

/* A disk that cannot be used costs a warning: states are kept in memory then. */
static void open_cold(struct serve *s)
{
    struct mx_cold_options *o = &s->config.cold;
    mtplx_error err = {0};
    if (o->mode == MX_COLD_OFF)
        return;
    mx_cold_identify(s->app.model, &o->identity);
    o->log = cold_log;
    o->log_arg = s;
    s->cold = mx_cold_open(o, &err);
    if (!s->cold) {
        char line[sizeof err.message + 64];
        snprintf(line, sizeof line, "going on without the SSD session cache: %s", err.message);
        cold_log(s, line);
    }
    s->config.engine.bank.cold = s->cold;
}

static mtplx_status start_engine(struct serve *s)
{
    begin_step(s, "starting the scheduler: ", mx_engine_mode_name(s->config.engine.mode));
    open_cold(s);
    s->config.engine.model = s->app.model;
    s->app.engine = mx_engine_new(&s->config.engine, &s->err);
    if (!s->app.engine)
        return s->err.status;
    s->app.metrics = mx_metrics_new();
    s->app.responses = mx_response_store_new(STORED_RESPONSES, stored_bytes);
    if (!s->app.metrics || !s->app.responses)
        return mx_error_nomem(&s->err, "the server's tables", stored_bytes);
    if (s->config.turn_alignment && mx_engine_bank(s->app.engine))
        s->app.align = mx_align_new(&s->app, &s->err);
    return s->err.status;
}

static size_t warm_tokens(void *arg, int choice, const mtplx_gen *gen, const int32_t *ids,
                          size_t from, size_t n)
{
    (void)arg;
    (void)choice;
    (void)gen;
    (void)ids;
    (void)from;
    (void)n;
    return SIZE_MAX;
}

static void warm_done(void *arg, int choice, const mtplx_gen *gen, const struct mx_job_result *r)
{
    struct serve *s = arg;
    (void)choice;
    (void)gen;
    pthread_mutex_lock(&s->lock);
    s->warm = 1;
    if (r->end == MX_END_ERROR)
        snprintf(s->warm_error, sizeof s->warm_error, "%.199s", r->error.message);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* The first passes touch the weights and teach the depth policy its times. */
static mtplx_status warm_up(struct serve *s)
{
    static const struct mx_job_sink sink = {.tokens = warm_tokens, .done = warm_done};
    static const char text[] = "Once upon a time there was a small model that lived on a laptop.";
    const struct mx_cli_value *v = &s->args->values[SERVE_WARMUP_TOKENS];
    int32_t fallback[1] = {0};
    size_t n = 0;
    int tokens = v->source ? (int)v->integer : 16;
    begin_step(s, "warming up", tokens ? "" : " (skipped)");
    if (tokens == 0)
        return MTPLX_OK;
    int32_t *ids = mtplx_encode(s->app.model, text, sizeof text - 1, false, &n, NULL);
    struct mx_job_options o = {
        .prompt = ids && n > 0 ? ids : fallback,
        .n_prompt = ids && n > 0 ? n : 1,
        .gen = {.max_tokens = tokens,
                .ignore_stop = true,
                .depth = s->app.settings.mtp ? s->app.settings.depth : 0,
                .policy = s->app.settings.policy},
        .no_reuse = true,
        .sink = &sink,
        .arg = s,
    };
    uint64_t id = mx_engine_submit(s->app.engine, &o, &s->err);
    mtplx_free(ids);
    if (id == 0)
        return s->err.status;
    mx_grammar_prepare(s->app.model, NULL); /* meanwhile; without a tokenizer there is none */
    pthread_mutex_lock(&s->lock);
    while (!s->warm)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    if (!s->warm_error[0])
        return MTPLX_OK;
    return mx_error(&s->err, MTPLX_ERR_IO, "the warm-up failed: %s", s->warm_error);
}

static mtplx_status open_port(struct serve *s)
{
    begin_step(s, "opening the port", "");
    s->app.started_ns = mx_now_ns();
    s->app.created = (int64_t)time(NULL);
    s->app.max_messages = MAX_MESSAGES;
    s->app.deadline_ns = (uint64_t)(s->args->values[SERVE_REQUEST_TIMEOUT].real * 1e9);
    s->server = mx_server_start(&s->app, &s->config.server, &s->err);
    return s->server ? MTPLX_OK : s->err.status;
}

static mtplx_status start(struct serve *s)
{
    static mtplx_status (*const steps[STEPS])(struct serve *) = {check_port, load, start_engine,
                                                                 warm_up, open_port};
    for (int i = 0; i < STEPS; i++) {
        mtplx_status st = steps[i](s);
        end_step(s, st == MTPLX_OK);
        if (st != MTPLX_OK)
            return st;
    }
    return MTPLX_OK;
}

static void announce(struct serve *s)
{
    const struct mx_server_options *o = &s->config.server;
    const mtplx_model_info *i = mtplx_model_get_info(s->app.model);
    bool v6 = strchr(o->host, ':') != NULL;
    int port = mx_server_port(s->server);
    pthread_mutex_lock(&s->lock);
    s->ready = true;
    pthread_mutex_unlock(&s->lock);
    mx_serve_record_write(port);
    mx_cli_printf(s->out,
                  "mtplx ready: http%s://%s%s%s:%d/v1 (model %s, %s, %s, context %d, %s%s)\n",
                  o->tls_cert ? "s" : "", v6 ? "[" : "", o->host, v6 ? "]" : "", port, s->model_id,
                  i->device, mx_engine_mode_name(s->config.engine.mode), i->context_length,
                  i->has_mtp && s->app.settings.mtp ? "MTP on" : "MTP off",
                  o->n_api_keys ? ", key needed" : "");
}

/* ---- Ending ------------------------------------------------------------------------------- */

static void drain(struct serve *s)
{
    const struct mx_cli_value *v = &s->args->values[SERVE_DRAIN_SECONDS];
    double seconds = v->source ? v->real : 15;
    if (!quiet(s))
        mx_cli_complain("serve", "stopping: requests may go on for %.0f s", seconds);
    mx_server_quiesce(s->server);
    mx_align_stop(s->app.align); /* what it reads is for turns that will not come */
    bool all = mx_engine_drain(s->app.engine, (uint64_t)(seconds * 1e9));
    mx_metrics_stop(s->app.metrics); /* or its streams would be waited for */
    bool taken = mx_server_drain(s->server, 2000000000u);
    if (!quiet(s))
        mx_cli_complain("serve", all && taken ? "stopped" : "stopped; some answers were cut short");
}

static void release(struct serve *s)
{
    pthread_mutex_lock(&s->lock);
    s->ended = true;
    pthread_mutex_unlock(&s->lock);
    if (s->server)
        mx_serve_record_remove(mx_server_port(s->server));
    mx_server_free(s->server); /* before the engine: it cancels what its clients waited for */
    mx_align_stop(s->app.align);
    mx_engine_free(s->app.engine);
    mx_align_free(s->app.align);
    mx_cold_close(s->cold, cold_close_ns);
    mx_response_store_free(s->app.responses);
    mx_metrics_free(s->app.metrics);
    mtplx_model_free(s->app.model);
    free(s->model_id);
    mx_serve_config_free(&s->config);
}

static int serve(struct serve *s)
{
    mtplx_status st = start(s);
    if (st != MTPLX_OK) {
        mx_cli_complain("serve", "%s", s->err.message);
        return st == MTPLX_ERR_ARGUMENT ? MX_EXIT_USAGE : MX_EXIT_FAILURE;
    }
    announce(s);
    wait_for_signal(s);
    drain(s);
    return MX_EXIT_OK;
}

static int run(const struct mx_cli_args *args, struct mx_cli_out *out)
{
    struct serve s = {.args = args, .out = out};
    pthread_t signals;
    sigset_t set;
    mtplx_status st = mx_serve_configure(args, &s.config, &s.err);
    if (st != MTPLX_OK) {
        mx_cli_complain("serve", "%s", s.err.message);
        mx_serve_config_free(&s.config);
        return st == MTPLX_ERR_ARGUMENT ? MX_EXIT_USAGE : MX_EXIT_FAILURE;
    }
    pthread_mutex_init(&s.lock, NULL);
    pthread_mutex_init(&s.app.lock, NULL);
    pthread_cond_init(&s.changed, NULL);
    waited_signals(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    int rc = MX_EXIT_FAILURE;
    if (pthread_create(&signals, NULL, signal_thread, &s) == 0) {
        rc = serve(&s);
        release(&s);
        pthread_kill(signals, SIGUSR1);
        pthread_join(signals, NULL);
    }
    pthread_cond_destroy(&s.changed);
    pthread_mutex_destroy(&s.app.lock);
    pthread_mutex_destroy(&s.lock);
    return rc;
}

const struct mx_cli_command mx_cli_serve = {
    .name = "serve",
    .operands = "",
    .summary = "Serve the OpenAI and Anthropic APIs over HTTP.",
    .details =
        "Loads a model and answers the APIs of OpenAI (chat completions, completions, responses, "
        "embeddings) and Anthropic (messages). Requests share the model's passes, drafting with "
        "MTP. When the server is ready, one line with its address goes to standard output.\n\n"
        "It listens on 127.0.0.1 only, and asks for no key there. Any other --host needs one.\n\n"
        "SIGTERM or Ctrl-C lets requests finish (--drain-seconds), a second one cancels them. "
        "mtplx stop does the same from another terminal.",
    .flags = mx_serve_flags,
    .n_flags = SERVE_FLAGS,
    .run = run,
};
