/* Fields of OpenAI's requests: sampling, limits, stop strings, and mtplx's own.
 *
 * Ranges are the public API's, but for the temperature, which other servers let go higher. Where
 * the server keeps the controls to itself (settings.client_controls), those of clients are checked
 * and then dropped, and the request log says which. */
#include "serve/openai_params.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { STOP_MAX = 4096, NAME_MAX_BYTES = 512, STOPS = 4 };

/* ---- Sampling ----------------------------------------------------------------------------- */

static bool read_sampling(const struct mx_fields *f, mtplx_sampling *s)
{
    double top_p = -1;
    int64_t top_k = s->top_k, seed = (int64_t)s->seed;
    bool ok = mx_field_number(f, "temperature", 0, 100, &s->temperature) &&
              mx_field_number(f, "top_p", 0, 1, &top_p) &&
              mx_field_int(f, "top_k", -1, INT_MAX, &top_k) &&
              mx_field_number(f, "min_p", 0, 1, &s->min_p) &&
              mx_field_number(f, "presence_penalty", -2, 2, &s->presence_penalty) &&
              mx_field_number(f, "frequency_penalty", -2, 2, &s->frequency_penalty) &&
              mx_field_number(f, "repetition_penalty", 0.01, 10, &s->repetition_penalty) &&
              mx_field_int(f, "seed", INT64_MIN, INT64_MAX, &seed);
    if (!ok)
        return false;
    if (top_p >= 0)
        s->top_p = top_p > 1e-6 ? top_p : 1e-6; /* 0: the likeliest token alone, not "off" */
    s->top_k = top_k > 0 ? (int)top_k : 0;
    s->seed = (uint64_t)seed;
    return true;
}

static bool bias_entry(const struct mx_fields *f, const char *key, const json_t *v, int vocab,
                       mtplx_logit_bias *out)
{
    char *end = NULL;
    long id = strtol(key, &end, 10);
    if (*key < '0' || *key > '9' || *end || id < 0 || id >= vocab)
        return mx_api_fail(f->e, 400, "logit_bias",
                           "'logit_bias' must map token ids from 0 to %d to numbers, and '%.24s' "
                           "is none",
                           vocab - 1, key);
    double x = json_is_number(v) ? json_number_value(v) : 1e9;
    if (!(x >= -100 && x <= 100))
        return mx_api_fail(f->e, 400, "logit_bias",
                           "'logit_bias' of token %ld must be a number between -100 and 100", id);
    *out = (mtplx_logit_bias){(int32_t)id, (float)x};
    return true;
}

static bool read_bias(const struct mx_fields *f, struct mx_app *app, struct mx_openai_params *p)
{
    const json_t *map = NULL;
    const char *key;
    json_t *v;
    size_t n = 0;
    if (!mx_field_object(f, "logit_bias", &map))
        return false;
    if (json_object_size(map) == 0)
        return true;
    if (json_object_size(map) > MTPLX_MAX_LOGIT_BIAS)
        return mx_api_fail(f->e, 400, "logit_bias", "'logit_bias' must have at most %d entries",
                           MTPLX_MAX_LOGIT_BIAS);
    p->bias = calloc(json_object_size(map), sizeof *p->bias);
    if (!p->bias)
        return mx_api_fail(f->e, 507, "logit_bias", "Out of memory for 'logit_bias'");
    json_object_foreach((json_t *)(uintptr_t)map, key, v)
    {
        int vocab = mtplx_model_get_info(app->model)->vocab_size;
        if (!bias_entry(f, key, v, vocab, &p->bias[n++]))
            return false;
    }
    p->turn.gen.logit_bias = p->bias;
    p->turn.gen.n_logit_bias = n;
    return true;
}

/* ---- Stop strings ------------------------------------------------------------------------- */

static bool add_stop(const struct mx_fields *f, struct mx_turn_request *r, const json_t *v)
{
    size_t n = json_string_length(v);
    if (!json_is_string(v) || n > STOP_MAX || strlen(json_string_value(v)) != n)
        return mx_api_fail(f->e, 400, "stop",
                           "'stop' must be a string of at most %d bytes or an array of up to %d of "
                           "them",
                           STOP_MAX, STOPS);
    if (n > 0)
        r->stop[r->n_stop++] = json_string_value(v);
    return true;
}

static bool read_stop(const struct mx_fields *f, struct mx_turn_request *r)
{
    const json_t *stop = json_object_get(f->o, "stop");
    size_t i;
    json_t *v;
    if (!stop || json_is_null(stop))
        return true;
    if (!json_is_array(stop))
        return add_stop(f, r, stop);
    if (json_array_size(stop) > STOPS)
        return mx_api_fail(f->e, 400, "stop", "'stop' must have at most %d strings, but has %zu",
                           STOPS, json_array_size(stop));
    json_array_foreach(stop, i, v)
    {
        if (!add_stop(f, r, v))
            return false;
    }
    return true;
}

/* ---- mtplx's own -------------------------------------------------------------------------- */

static bool header_is(struct mx_exchange *x, const char *name, const char *word)
{
    const char *v = mx_exchange_header(x, name);
    return v && strcasecmp(v, word) == 0;
}

static bool header_on(struct mx_exchange *x, const char *name)
{
    return header_is(x, name, "1") || header_is(x, name, "true") || header_is(x, name, "on");
}

/* Who samples with a seed wants the same answer again, which an adaptive depth does not promise:
 * its choices follow measured times. */
enum { SEEDED_DEPTH = 3 };

static void fix_if_seeded(const json_t *body, mtplx_gen_options *gen)
{
    if (!json_is_number(json_object_get(body, "seed")) || gen->sampling.temperature <= 0 ||
        gen->policy == MTPLX_DEPTH_FIXED)
        return;
    gen->policy = MTPLX_DEPTH_FIXED;
    gen->depth = gen->depth < SEEDED_DEPTH ? gen->depth : SEEDED_DEPTH;
}

static bool read_drafting(const struct mx_fields *f, struct mx_app *app, mtplx_gen_options *gen)
{
    static const mtplx_depth_policy policies[] = {
        MTPLX_DEPTH_FIXED,          MTPLX_DEPTH_FIXED, MTPLX_DEPTH_AUTO,        MTPLX_DEPTH_STREAK,
        MTPLX_DEPTH_EXPECTED_VALUE, MTPLX_DEPTH_COST,  MTPLX_DEPTH_POSITION_EMA};
    enum { MODE_MTP, MODE_AR, MODE_AUTO };
    struct mx_app_settings s = mx_app_get_settings(app);
    int64_t depth = -1;
    int mode = -1, policy = -1;
    if (!mx_field_choice(f, "generation_mode", "mtp ar auto", &mode) ||
        !mx_field_int(f, "depth", 0, MTPLX_MAX_DEPTH, &depth) ||
        !mx_field_choice(f, "draft_policy",
                         "fixed none auto streak expected_value cost position_ema", &policy))
        return false;
    if (mode == MODE_MTP || mode == MODE_AUTO) {
        gen->depth = s.depth;
        gen->context_copy = s.context_copy;
    }
    if (mode == MODE_AUTO)
        gen->policy = MTPLX_DEPTH_AUTO;
    if (policy >= 0)
        gen->policy = policies[policy];
    else if (depth < 0)
        fix_if_seeded(f->o, gen);
    else if (json_is_number(json_object_get(f->o, "seed")))
        gen->policy = MTPLX_DEPTH_FIXED;
    if (depth >= 0)
        gen->depth = (int)depth;
    if (mode == MODE_AR) {
        gen->depth = 0;
        gen->context_copy = false;
    }
    return true;
}

/* What only the operator may set, unless clients are let to. */
static const char controls[] = "temperature top_p top_k min_p presence_penalty frequency_penalty "
                               "repetition_penalty depth generation_mode draft_policy";

static void note_ignored(struct mx_exchange *x, const json_t *body)
{
    const char *key;
    json_t *v, *list = json_array();
    json_object_foreach((json_t *)(uintptr_t)body, key, v)
    {
        json_t *one = json_pack("{s:n}", key);
        if (one && mx_fields_unknown(one, controls) == 0)
            json_array_append_new(list, json_string(key));
        json_decref(one);
    }
    if (json_array_size(list) > 0)
        mx_exchange_note(x, json_pack("{s:O}", "ignored_controls", list));
    json_decref(list);
}

static bool read_controls(struct mx_app *app, struct mx_exchange *x, const struct mx_fields *f,
                          struct mx_openai_params *p)
{
    mtplx_gen_options kept = p->turn.gen;
    if (!read_sampling(f, &p->turn.gen.sampling) || !read_drafting(f, app, &p->turn.gen))
        return false;
    if (mx_app_get_settings(app).client_controls || header_on(x, "X-MTPLX-Allow-Client-Controls"))
        return true;
    if (p->turn.priority > 0)
        p->turn.priority = 0;
    kept.sampling.seed = p->turn.gen.sampling.seed;
    fix_if_seeded(f->o, &kept);
    p->turn.gen = kept;
    note_ignored(x, f->o);
    return true;
}

static void read_headers(struct mx_exchange *x, struct mx_openai_params *p)
{
    p->turn.no_reuse = header_is(x, "X-MTPLX-Cache-Mode", "bypass") ||
                       header_is(x, "X-MTPLX-Cache-Mode", "stateless") ||
                       header_is(x, "X-MTPLX-Cache-Mode", "off");
    if (!p->turn.session)
        p->turn.session = mx_exchange_header(x, "X-MTPLX-Session");
    if (header_on(x, "X-MTPLX-Stats"))
        p->stats = true;
}

/* ---- All of them -------------------------------------------------------------------------- */

static bool read_streaming(const struct mx_fields *f, struct mx_openai_params *p)
{
    const json_t *options = NULL;
    if (!mx_field_bool(f, "stream", &p->stream) || !mx_field_object(f, "stream_options", &options))
        return false;
    struct mx_fields of = {options, "stream_options", f->e};
    return !options || mx_field_bool(&of, "include_usage", &p->usage);
}

static bool read_rest(const struct mx_fields *f, struct mx_openai_params *p)
{
    int64_t n = 1, priority = 0;
    const char *user = NULL, *key = NULL;
    const json_t *metadata = NULL;
    bool ok = mx_field_string(f, "model", NAME_MAX_BYTES, &p->model) &&
              mx_field_int(f, "max_tokens", -1, INT_MAX, &p->max_tokens) &&
              mx_field_int(f, "n", 1, MX_MAX_CHOICES, &n) &&
              mx_field_int(f, "priority", -1, 1, &priority) &&
              mx_field_string(f, "user", NAME_MAX_BYTES, &user) &&
              mx_field_string(f, "prompt_cache_key", NAME_MAX_BYTES, &key) &&
              mx_field_object(f, "metadata", &metadata) &&
              mx_field_bool(f, "mtplx_stats", &p->stats) &&
              mx_field_bool(f, "include_stop_str_in_output", &p->turn.include_stop);
    p->turn.choices = (int)n;
    p->turn.priority = (int)priority;
    p->turn.session = key ? key : user;
    return ok;
}

bool mx_openai_read(struct mx_app *app, struct mx_exchange *x, struct mx_openai_params *p,
                    struct mx_api_error *e)
{
    struct mx_fields f = {mx_exchange_body(x), "", e};
    memset(p, 0, sizeof *p);
    memset(e, 0, sizeof *e);
    mx_turn_defaults(app, &p->turn);
    p->model = app->model_id;
    p->max_tokens = -1;
    p->stats = mx_app_get_settings(app).stats_footer;
    if (!read_rest(&f, p) || !read_streaming(&f, p) || !read_controls(app, x, &f, p) ||
        !read_bias(&f, app, p) || !read_stop(&f, &p->turn))
        return false;
    read_headers(x, p);
    return true;
}

void mx_openai_params_free(struct mx_openai_params *p)
{
    free(p->bias);
    p->bias = NULL;
}
