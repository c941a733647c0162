/* Fuzz target: the input is the body of a request to one of OpenAI's routes, by its first byte. The
 * engine refuses every job, so whatever is well-formed is read, rendered, tokenised and compiled to
 * a grammar, and then ends with 503; all else must end with a 4xx whose body is JSON and names its
 * cause. */
#include "serve/api.h"
#include "serve/exchange_int.h"
#include "serve/metrics.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct mx_app app;

static void start(void)
{
    mtplx_error err = {0};
    setenv("MTPLX_STATE_DIR", "off", 1);
    const char *root = getenv("MTPLX_SRC");
    char path[512];
    snprintf(path, sizeof path, "%s/models/nano", root ? root : ".");
    app.model = mtplx_model_load(path, &(mtplx_load_options){.threads = 1}, &err);
    if (!app.model || sodium_init() < 0) {
        fprintf(stderr, "%s (run it at the root of the source, or set MTPLX_SRC)\n", err.message);
        abort();
    }
    app.engine = mx_engine_new(&(struct mx_engine_options){.model = app.model}, &err);
    app.metrics = mx_metrics_new();
    if (!app.engine || !app.metrics || pthread_mutex_init(&app.lock, NULL) != 0)
        abort();
    mx_engine_drain(app.engine, 1);
    app.model_id = "nano";
    mx_app_read_template(&app);
    app.settings.client_controls = true;
}

/* The reply as a whole; valid until the next call. */
static char *take(struct mx_exchange *x)
{
    static char text[1 << 20];
    size_t n = mx_exchange_take(x, text, sizeof text - 1, false);
    if (n == MX_TAKE_CUT || n == MX_TAKE_END)
        abort();
    text[n] = '\0';
    return text;
}

static void check(struct mx_exchange *x)
{
    json_t *v = json_loads(take(x), 0, NULL);
    const json_t *e = json_object_get(v, "error");
    const char *message = json_string_value(json_object_get(e, "message"));
    if (!message || strlen(message) < 8)
        abort();
    if (x->status != 503 && (x->status < 400 || x->status > 499)) {
        fprintf(stderr, "status %d: %s\n", x->status, message);
        abort();
    }
    json_decref(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static mx_handler *const handlers[] = {mx_api_chat_completions, mx_api_completions,
                                           mx_api_embeddings};
    if (!app.model)
        start();
    if (size == 0)
        return 0;
    json_t *body = json_loadb((const char *)data + 1, size - 1, JSON_REJECT_DUPLICATES, NULL);
    struct mx_exchange *x = json_is_object(body) ? mx_exchange_new(NULL, "POST", "/") : NULL;
    if (x) {
        x->body = json_incref(body);
        handlers[data[0] % 3](&app, x);
        check(x);
        mx_exchange_unref(x);
    }
    json_decref(body);
    return 0;
}
