/* POST /v1/embeddings: pooled final-norm hidden states, at length 1.
 *
 * Every input is a job of the engine. A few are queued at a time, the next whenever one ends, so
 * that a long list neither fills the queue nor keeps others out. Vectors are pooled by the mean, or
 * with "pooling": "last" from the last token. */
#include "serve/api.h"
#include "serve/fields.h"
#include "serve/json_out.h"
#include "serve/metrics.h"
#include "serve/openai_reply.h"

#include <math.h>
#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

enum { INPUTS_MAX = 2048, WINDOW = 4 };

static const char known[] = "model input encoding_format dimensions user pooling priority";

struct input {
    int32_t *ids;
    size_t n;
    float *vector; /* once read */
    uint64_t job;  /* 0: not queued yet */
    struct embeddings *e;
};

struct embeddings {
    struct mx_app *app;
    struct mx_exchange *x;
    char *model;
    enum mx_job_kind kind;
    bool base64;
    int priority;
    size_t dims, tokens;
    struct input *inputs;
    int n;

    pthread_mutex_t lock;
    int next, running; /* first input not queued yet; inputs that are */
    bool failed;
    struct mx_api_error error;
};

static void free_all(struct embeddings *e)
{
    for (int i = 0; e->inputs && i < e->n; i++) {
        free(e->inputs[i].ids);
        free(e->inputs[i].vector);
    }
    free(e->inputs);
    free(e->model);
    pthread_mutex_destroy(&e->lock);
    mx_exchange_unref(e->x);
    free(e);
}

/* ---- The request -------------------------------------------------------------------------- */

static bool take_ids(const struct mx_fields *f, struct embeddings *e, struct input *in,
                     const json_t *list)
{
    size_t i, n = json_array_size(list);
    int vocab = mtplx_model_get_info(e->app->model)->vocab_size;
    json_t *v;
    in->ids = malloc((n ? n : 1) * sizeof *in->ids);
    if (!in->ids)
        return mx_api_fail(f->e, 507, "input", "Out of memory for %zu token ids", n);
    json_array_foreach(list, i, v)
    {
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id >= vocab)
            return mx_api_fail(f->e, 400, "input",
                               "Token ids in 'input' must be integers between 0 and %d", vocab - 1);
        in->ids[in->n++] = (int32_t)id;
    }
    return true;
}

static bool take_input(const struct mx_fields *f, struct embeddings *e, int i, const json_t *v)
{
    struct input *in = &e->inputs[i];
    size_t window = (size_t)mtplx_model_get_info(e->app->model)->context_length;
    in->e = e;
    if (json_is_string(v)) {
        mtplx_error err = {0};
        in->ids = mtplx_encode(e->app->model, json_string_value(v), json_string_length(v), false,
                               &in->n, &err);
        if (!in->ids)
            return mx_api_fail_from(f->e, &err, "input");
    } else if (!take_ids(f, e, in, v)) {
        return false;
    }
    if (in->n == 0)
        return mx_api_fail(f->e, 400, "input", "Element %d of 'input' is empty", i);
    if (in->n > window)
        return mx_api_fail(f->e, 400, "input",
                           "Element %d of 'input' has %zu tokens, more than the %zu of this "
                           "model's context window",
                           i, in->n, window);
    e->tokens += in->n;
    return true;
}

/* A string, or token ids, or an array of either. */
static bool read_inputs(const struct mx_fields *f, struct embeddings *e)
{
    const json_t *input = json_object_get(f->o, "input"), *first = json_array_get(input, 0);
    bool one = json_is_string(input) || json_is_integer(first);
    size_t n = one ? 1 : json_array_size(input);
    if (n == 0 || (!one && !json_is_string(first) && !json_is_array(first)))
        return mx_api_fail(f->e, 400, "input",
                           "'input' must be a string, an array of strings, an array of token ids "
                           "or an array of such arrays");
    if (n > INPUTS_MAX)
        return mx_api_fail(f->e, 400, "input", "'input' must have at most %d elements, but has %zu",
                           INPUTS_MAX, n);
    e->inputs = calloc(n, sizeof *e->inputs);
    if (!e->inputs)
        return mx_api_fail(f->e, 507, "input", "Out of memory for 'input'");
    e->n = (int)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = one ? input : json_array_get(input, i);
        if (!json_is_array(v) && !json_is_string(v))
            return mx_api_fail(f->e, 400, "input",
                               "Element %zu of 'input' must be a string or an array of token ids",
                               i);
        if (!take_input(f, e, (int)i, v))
            return false;
    }
    return true;
}

static bool read_request(struct embeddings *e, struct mx_api_error *error)
{
    struct mx_fields f = {mx_exchange_body(e->x), "", error};
    int format = 0, pooling = 0;
    int hidden = mtplx_model_get_info(e->app->model)->hidden_size;
    int64_t dims = hidden, priority = 0;
    const char *model = e->app->model_id;
    if (!mx_field_string(&f, "model", 512, &model) ||
        !mx_field_choice(&f, "encoding_format", "float base64", &format) ||
        !mx_field_choice(&f, "pooling", "mean last", &pooling) ||
        !mx_field_int(&f, "dimensions", 1, hidden, &dims) ||
        !mx_field_int(&f, "priority", -1, 1, &priority) || !mx_field_need(&f, "input"))
        return false;
    e->model = strdup(model);
    e->base64 = format == 1;
    e->kind = pooling == 1 ? MX_JOB_EMBED_LAST : MX_JOB_EMBED_MEAN;
    e->dims = (size_t)dims;
    e->priority = (int)priority;
    if (priority > 0 && !mx_app_get_settings(e->app).client_controls)
        e->priority = 0;
    if (!e->model)
        return mx_api_fail(error, 507, NULL, "Out of memory for a reply");
    return read_inputs(&f, e);
}

/* ---- The reply ---------------------------------------------------------------------------- */

static void write_vector(struct mx_strbuf *b, const struct embeddings *e, const float *v)
{
    if (!e->base64) {
        for (size_t i = 0; i < e->dims; i++) {
            mx_strbuf_putc(b, i ? ',' : '[');
            mx_json_float(b, v[i]);
        }
        mx_strbuf_putc(b, ']');
        return;
    }
    size_t bytes = e->dims * sizeof *v;
    size_t len = sodium_base64_ENCODED_LEN(bytes, sodium_base64_VARIANT_ORIGINAL);
    char *text = malloc(len);
    b->failed = b->failed || !text;
    if (text)
        sodium_bin2base64(text, len, (const unsigned char *)v, bytes,
                          sodium_base64_VARIANT_ORIGINAL);
    if (text)
        mx_json_string(b, text, strlen(text));
    free(text);
}

static void send_vectors(struct embeddings *e)
{
    struct mx_strbuf b;
    mx_strbuf_init(&b, MX_OPENAI_REPLY_MAX);
    mx_json_raw(&b, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < e->n; i++) {
        mx_strbuf_printf(
            &b, "%s{\"object\":\"embedding\",\"index\":%d,\"embedding\":", i ? "," : "", i);
        write_vector(&b, e, e->inputs[i].vector);
        mx_strbuf_putc(&b, '}');
    }
    mx_json_raw(&b, "],\"model\":");
    mx_json_string(&b, e->model, strlen(e->model));
    mx_strbuf_printf(&b, ",\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu}}", e->tokens,
                     e->tokens);
    if (!b.failed) {
        mx_exchange_note(e->x, json_pack("{s:I}", "prompt_tokens", (json_int_t)e->tokens));
        mx_exchange_send(e->x, 200, "application/json", b.data, b.len);
    } else {
        mx_api_fail(&e->error, 507, NULL, "Out of memory for the vectors");
        mx_exchange_fail(e->x, &e->error);
    }
    mx_strbuf_free(&b);
}

static void finish(struct embeddings *e)
{
    pthread_mutex_lock(&e->lock); /* the client may be leaving at this moment */
    bool failed = e->failed;
    pthread_mutex_unlock(&e->lock);
    if (failed)
        mx_exchange_fail(e->x, &e->error);
    else
        send_vectors(e);
    free_all(e);
}

/* ---- Jobs --------------------------------------------------------------------------------- */

/* The first `dims` of the vector, at length 1. */
static float *normalised(const struct mx_job_result *r, size_t dims)
{
    double sum = 0;
    float *v = r->dims >= dims ? malloc(dims * sizeof *v) : NULL;
    for (size_t i = 0; v && i < dims; i++)
        sum += (double)r->embedding[i] * (double)r->embedding[i];
    double scale = sum > 0 ? 1 / sqrt(sum) : 0;
    for (size_t i = 0; v && i < dims; i++)
        v[i] = (float)(r->embedding[i] * scale);
    return v;
}

/* The first failure counts; what is queued besides is of no use then. */
static void fail_with(struct embeddings *e, const struct mx_api_error *error)
{
    pthread_mutex_lock(&e->lock);
    if (!e->failed)
        e->error = *error;
    e->failed = true;
    for (int i = 0; i < e->n; i++)
        if (e->inputs[i].job)
            mx_engine_cancel(e->app->engine, e->inputs[i].job);
    pthread_mutex_unlock(&e->lock);
}

static void set_failure(struct embeddings *e, const struct mx_job_result *r)
{
    struct mx_api_error error;
    if (r->end == MX_END_CANCELLED)
        mx_api_fail(&error, 499, NULL, "The request was cancelled");
    else if (r->end == MX_END_DEADLINE)
        mx_api_fail(&error, 504, NULL, "The request took longer than this server allows");
    else if (r->end == MX_END_SHUTDOWN)
        mx_api_fail(&error, 503, NULL, "The server is shutting down");
    else if (r->end == MX_END_ERROR)
        mx_api_fail_from(&error, &r->error, NULL);
    else
        mx_api_fail(&error, 507, NULL, "Out of memory for the vectors");
    fail_with(e, &error);
}

static void on_gone(void *arg, uint64_t unused)
{
    struct mx_api_error error;
    (void)unused;
    mx_api_fail(&error, 499, NULL, "The request was cancelled");
    fail_with(arg, &error);
}

static void submit_more(struct embeddings *e);

static void on_done(void *arg, int choice, const mtplx_gen *gen, const struct mx_job_result *r)
{
    struct input *in = arg;
    struct embeddings *e = in->e;
    (void)choice;
    (void)gen;
    if (r->embedding && r->end != MX_END_ERROR && r->end != MX_END_CANCELLED)
        in->vector = normalised(r, e->dims);
    if (!in->vector)
        set_failure(e, r);
    submit_more(e);
    pthread_mutex_lock(&e->lock);
    bool last = --e->running == 0;
    pthread_mutex_unlock(&e->lock);
    if (last)
        finish(e);
}

static size_t on_tokens(void *arg, int choice, const mtplx_gen *gen, const int32_t *ids,
                        size_t from, size_t n)
{
    (void)arg, (void)choice, (void)gen, (void)ids, (void)from, (void)n;
    return 0; /* an embedding has no answer */
}

static const struct mx_job_sink embed_sink = {.tokens = on_tokens, .done = on_done};

static uint64_t submit(struct embeddings *e, struct input *in, struct mx_api_error *error)
{
    mtplx_error err = {0};
    struct mx_job_options o = {
        .kind = e->kind,
        .prompt = in->ids,
        .n_prompt = in->n,
        .choices = 1,
        .owner = mx_exchange_client(e->x),
        .priority = e->priority,
        .deadline_ns = e->app->deadline_ns ? mx_exchange_started_ns(e->x) + e->app->deadline_ns : 0,
        .no_reuse = true,
        .sink = &embed_sink,
        .arg = in,
    };
    uint64_t id = mx_engine_submit(e->app->engine, &o, &err);
    if (!id) {
        mx_api_fail_from(error, &err, NULL);
        error->retry_after = error->status >= 500 ? mx_engine_retry_after(e->app->engine) : 0;
    }
    return id;
}

/* Queues the next input, when there is one and the reply can still come. The caller is counted in
 * `running`, so that the reply does not go meanwhile. */
static void submit_more(struct embeddings *e)
{
    pthread_mutex_lock(&e->lock);
    bool more = e->next < e->n && !e->failed;
    struct input *in = &e->inputs[e->next];
    e->next += more;
    e->running += more;
    pthread_mutex_unlock(&e->lock);
    struct mx_api_error error = {0};
    if (!more)
        return;
    uint64_t job = submit(e, in, &error);
    if (!job)
        fail_with(e, &error);
    pthread_mutex_lock(&e->lock);
    in->job = job;
    e->running -= job == 0;
    if (e->failed && job)
        mx_engine_cancel(e->app->engine, job);
    pthread_mutex_unlock(&e->lock);
}

static void start(struct embeddings *e)
{
    e->running = 1; /* this thread */
    mx_exchange_on_gone(e->x, on_gone, e, 0);
    for (int i = 0; i < WINDOW; i++)
        submit_more(e);
    pthread_mutex_lock(&e->lock);
    bool last = --e->running == 0;
    pthread_mutex_unlock(&e->lock);
    if (last)
        finish(e);
}

void mx_api_embeddings(struct mx_app *app, struct mx_exchange *x)
{
    struct mx_api_error error = {0};
    struct embeddings *e = calloc(1, sizeof *e);
    if (app->metrics)
        mx_metrics_unknown_fields(app->metrics, mx_fields_unknown(mx_exchange_body(x), known));
    if (!e) {
        mx_api_fail(&error, 507, NULL, "Out of memory for a reply");
        mx_exchange_fail(x, &error);
        return;
    }
    e->app = app;
    e->x = mx_exchange_ref(x);
    pthread_mutex_init(&e->lock, NULL);
    if (read_request(e, &error)) {
        start(e);
        return;
    }
    mx_exchange_fail(x, &error);
    free_all(e);
}
