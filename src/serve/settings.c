/* Settings that may be changed while serving: defaults of requests, and the scheduler's.
 *
 * A body is applied as a whole or not at all. A name that cannot be changed, or that nobody knows,
 * is refused by name: a setting that is silently ignored looks like one that does not work. */
#include "serve/fields.h"
#include "serve/metrics_int.h"

#include <string.h>

/* Words in the order of their enums. */
#define POLICIES "fixed auto streak expected_value cost position_ema"
#define GENERATION_MODES "ar mtp"
#define PRESERVE_MODES "auto on off scoped"

static const char *const mutable_names[] = {
    "depth",
    "depth_policy",
    "adaptive_policy", /* an older name of depth_policy */
    "context_copy",
    "generation_mode",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "max_tokens",
    "enable_thinking",
    "preserve_thinking",
    "stats_footer",
    "client_controls",
    "scheduler_mode",
    "max_active",
    "max_queue",
    "prefill_chunk",
};

static const char *const fixed_names[] = {
    "model",
    "model_id",
    "host",
    "port",
    "api_key",
    "api_keys",
    "profile",
    "device",
    "threads",
    "load_mtp",
    "mtp",
    "draft_vocab",
    "verify_core",
    "verify_strategy",
    "context_window",
    "context_length",
    "memory_limit",
    "reasoning_parser",
    "tool_parser",
    "stream_interval",
    "deadline",
    "max_messages",
    "max_body",
    "rate_limit",
    "origins",
    "tls",
};

static bool listed(const char *const *names, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

/* Word `i` of a list separated by blanks, as a string. */
static json_t *word(const char *words, int i)
{
    for (; i > 0 && *words; i--) {
        words += strcspn(words, " ");
        words += *words == ' ';
    }
    return json_stringn(words, strcspn(words, " "));
}

static json_t *thinking_json(int state)
{
    return state == MX_UNSET ? json_null() : json_boolean(state == MX_ON);
}

/* ---- Reading ------------------------------------------------------------------------------ */

static json_t *sampling_json(const struct mx_app_settings *s)
{
    const mtplx_sampling *p = &s->sampling;
    return json_pack("{s:f, s:f, s:i, s:f, s:f, s:f, s:f, s:o}", "temperature", p->temperature,
                     "top_p", p->top_p, "top_k", p->top_k, "min_p", p->min_p, "presence_penalty",
                     p->presence_penalty, "frequency_penalty", p->frequency_penalty,
                     "repetition_penalty", p->repetition_penalty, "seed",
                     s->sampling_seeded ? json_integer((json_int_t)p->seed) : json_null());
}

json_t *mx_settings_values(const struct mx_app_settings *s, const struct mx_engine_settings *e)
{
    json_t *o = sampling_json(s);
    json_t *more = json_pack(
        "{s:i, s:o, s:b, s:o, s:i, s:o, s:o, s:b, s:b, s:s, s:i, s:i, s:i}", "depth", s->depth,
        "depth_policy", word(POLICIES, (int)s->policy), "context_copy", s->context_copy,
        "generation_mode", word(GENERATION_MODES, s->mtp), "max_tokens", s->max_tokens,
        "enable_thinking", thinking_json(s->thinking), "preserve_thinking",
        word(PRESERVE_MODES, s->preserve_thinking), "stats_footer", s->stats_footer,
        "client_controls", s->client_controls, "scheduler_mode", mx_engine_mode_name(e->mode),
        "max_active", e->max_active, "max_queue", e->max_queue, "prefill_chunk", e->prefill_chunk);
    if (o && more)
        json_object_update(o, more);
    json_decref(more);
    return o;
}

static json_t *fixed_json(const struct mx_app *app)
{
    const mtplx_model_info *info = app->model ? mtplx_model_get_info(app->model) : NULL;
    if (!info)
        return json_object();
    return json_pack("{s:s, s:s, s:s, s:i, s:b, s:i}", "model", app->model_id, "device",
                     info->device, "profile", info->profile, "threads", info->threads, "load_mtp",
                     info->has_mtp, "context_window", info->context_length);
}

json_t *mx_settings_json(struct mx_app *app)
{
    struct mx_app_settings s = mx_app_get_settings(app);
    struct mx_engine_settings e = {0};
    mx_engine_get_settings(app->engine, &e);
    json_t *names = json_array();
    for (size_t i = 0; i < sizeof mutable_names / sizeof *mutable_names; i++)
        json_array_append_new(names, json_string(mutable_names[i]));
    return json_pack("{s:o, s:o, s:o}", "settings", mx_settings_values(&s, &e), "immutable",
                     fixed_json(app), "mutable", names);
}

/* ---- Changing ----------------------------------------------------------------------------- */

static bool check_names(const json_t *body, struct mx_api_error *e)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)body, name, value)
    {
        if (listed(mutable_names, sizeof mutable_names / sizeof *mutable_names, name))
            continue;
        if (listed(fixed_names, sizeof fixed_names / sizeof *fixed_names, name))
            return mx_api_fail(e, 400, name, "%s cannot be changed while serving: restart with it",
                               name);
        return mx_api_fail(e, 400, name,
                           "%.60s is not a setting: GET /v1/mtplx/settings lists them", name);
    }
    return true;
}

static bool read_int(const struct mx_fields *f, const char *name, int low, int high, int *out)
{
    int64_t v = *out;
    if (!mx_field_int(f, name, low, high, &v))
        return false;
    *out = (int)v;
    return true;
}

static bool read_sampling(const struct mx_fields *f, struct mx_app_settings *s)
{
    mtplx_sampling *p = &s->sampling;
    if (!mx_field_number(f, "temperature", 0, 2, &p->temperature) ||
        !mx_field_number(f, "top_p", 0, 1, &p->top_p) ||
        !read_int(f, "top_k", 0, 1 << 20, &p->top_k) ||
        !mx_field_number(f, "min_p", 0, 1, &p->min_p) ||
        !mx_field_number(f, "presence_penalty", -2, 2, &p->presence_penalty) ||
        !mx_field_number(f, "frequency_penalty", -2, 2, &p->frequency_penalty) ||
        !mx_field_number(f, "repetition_penalty", 0.01, 10, &p->repetition_penalty))
        return false;
    int64_t seed = (int64_t)p->seed;
    const json_t *given = json_object_get(f->o, "seed");
    if (!mx_field_int(f, "seed", 0, INT64_MAX, &seed))
        return false;
    if (given)
        s->sampling_seeded = !json_is_null(given);
    p->seed = (uint64_t)seed;
    return true;
}

static bool read_thinking(const struct mx_fields *f, struct mx_app_settings *s)
{
    bool on = s->thinking == MX_ON;
    const json_t *given = json_object_get(f->o, "enable_thinking");
    if (!mx_field_bool(f, "enable_thinking", &on))
        return false;
    if (given)
        s->thinking = json_is_null(given) ? MX_UNSET : on ? MX_ON : MX_OFF;
    return mx_field_choice(f, "preserve_thinking", PRESERVE_MODES, &s->preserve_thinking);
}

static bool read_decoding(const struct mx_fields *f, struct mx_app_settings *s)
{
    int policy = (int)s->policy;
    int mode = s->mtp;
    if (!read_int(f, "depth", 0, MTPLX_MAX_DEPTH, &s->depth) ||
        !mx_field_choice(f, "adaptive_policy", POLICIES, &policy) ||
        !mx_field_choice(f, "depth_policy", POLICIES, &policy) ||
        !mx_field_bool(f, "context_copy", &s->context_copy) ||
        !mx_field_choice(f, "generation_mode", GENERATION_MODES, &mode) ||
        !read_int(f, "max_tokens", 0, 1 << 24, &s->max_tokens) ||
        !mx_field_bool(f, "stats_footer", &s->stats_footer) ||
        !mx_field_bool(f, "client_controls", &s->client_controls))
        return false;
    s->policy = (mtplx_depth_policy)policy;
    s->mtp = mode;
    return true;
}

static bool read_engine(const struct mx_fields *f, struct mx_engine_settings *s)
{
    const char *mode = NULL;
    if (!mx_field_string(f, "scheduler_mode", 32, &mode) ||
        !read_int(f, "max_active", 1, MX_MAX_ACTIVE, &s->max_active) ||
        !read_int(f, "max_queue", 1, 1 << 16, &s->max_queue) ||
        !read_int(f, "prefill_chunk", 1, 1 << 16, &s->prefill_chunk))
        return false;
    int found = mode ? mx_engine_mode_named(mode) : (int)s->mode;
    if (found < 0)
        return mx_api_fail(f->e, 400, "scheduler_mode",
                           "scheduler_mode takes serial, cooperative, ar_batch or mtp_batch");
    s->mode = (enum mx_engine_mode)found;
    return true;
}

bool mx_settings_read(const json_t *body, struct mx_app_settings *s,
                      struct mx_engine_settings *engine, struct mx_api_error *e)
{
    const struct mx_fields f = {.o = body, .path = "", .e = e};
    return check_names(body, e) && read_sampling(&f, s) && read_thinking(&f, s) &&
           read_decoding(&f, s) && read_engine(&f, engine);
}

static bool same_engine(const struct mx_engine_settings *a, const struct mx_engine_settings *b)
{
    return a->mode == b->mode && a->max_active == b->max_active && a->max_queue == b->max_queue &&
           a->prefill_chunk == b->prefill_chunk;
}

bool mx_settings_apply(struct mx_app *app, const json_t *body, struct mx_api_error *e)
{
    mtplx_error err = {0};
    struct mx_engine_settings old = {0};
    pthread_mutex_lock(&app->lock); /* over reading and writing: two changes may come at once */
    mx_engine_get_settings(app->engine, &old);
    struct mx_app_settings s = app->settings;
    struct mx_engine_settings engine = old;
    bool ok = mx_settings_read(body, &s, &engine, e);
    if (ok && !same_engine(&old, &engine) &&
        mx_engine_set_settings(app->engine, &engine, &err) != MTPLX_OK)
        ok = mx_api_fail_from(e, &err, NULL);
    if (ok)
        app->settings = s;
    pthread_mutex_unlock(&app->lock);
    return ok;
}
