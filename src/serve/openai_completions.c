/* POST /v1/completions: the request side. Every prompt is a turn of its own; so is every answer
 * where the prompt is scored, since answers that share a prompt's pass have no scores of their own.
 */
#include "serve/openai_completions.h"
#include "serve/api.h"
#include "serve/metrics.h"

#include <limits.h>
#include <string.h>

enum { DEFAULT_TOKENS = 16, PROMPT_IDS_MAX = 1 << 24 };

static const char known[] = MX_OPENAI_COMMON
    " prompt suffix echo logprobs best_of response_format guided_json guided_regex guided_grammar "
    "grammar";

struct request {
    struct mx_openai_params p;
    struct mx_completions_options o;
    const json_t *prompt; /* as it came */
    int n_prompts;        /* 1 when `prompt` is one */
    int per_turn;         /* answers of a turn */
    json_t *schema;       /* owned */
};

/* ---- Reading ------------------------------------------------------------------------------ */

static bool all_are(const json_t *list, json_type type)
{
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v)
    {
        if (json_typeof(v) != type)
            return false;
    }
    return true;
}

static bool read_prompt(const struct mx_fields *f, struct request *q)
{
    const json_t *p = json_object_get(f->o, "prompt");
    const json_t *first = json_array_get(p, 0);
    q->prompt = p;
    q->n_prompts = 1;
    if (json_is_string(p) || (json_is_integer(first) && all_are(p, JSON_INTEGER)))
        return true;
    q->n_prompts = (int)json_array_size(p);
    bool lists = json_is_array(first) && all_are(p, JSON_ARRAY);
    if (!(json_is_string(first) && all_are(p, JSON_STRING)) && !lists)
        return mx_api_fail(f->e, 400, "prompt",
                           "'prompt' must be a string, an array of strings, an array of token ids "
                           "or an array of such arrays");
    if (json_array_size(p) > MX_COMPLETIONS_MAX)
        return mx_api_fail(f->e, 400, "prompt",
                           "'prompt' must have at most %d prompts, but has %zu", MX_COMPLETIONS_MAX,
                           json_array_size(p));
    return true;
}

static bool read_refused(const struct mx_fields *f, struct request *q)
{
    const char *suffix = NULL;
    int64_t best_of = q->p.turn.choices;
    if (!mx_field_string(f, "suffix", SIZE_MAX, &suffix) ||
        !mx_field_int(f, "best_of", 1, INT_MAX, &best_of))
        return false;
    if (suffix && *suffix)
        return mx_api_fail(f->e, 400, "suffix",
                           "'suffix' is not supported: the model continues text, it does not fill "
                           "gaps");
    if (best_of != q->p.turn.choices)
        return mx_api_fail(f->e, 400, "best_of", "'best_of' must be the same as 'n' (%d)",
                           q->p.turn.choices);
    return true;
}

static bool read_scoring(const struct mx_fields *f, struct request *q)
{
    struct mx_turn_request *r = &q->p.turn;
    int64_t logprobs = -1, limit = q->p.max_tokens;
    if (json_is_boolean(json_object_get(f->o, "logprobs")))
        logprobs = json_is_true(json_object_get(f->o, "logprobs")) ? 0 : -1;
    else if (!mx_field_int(f, "logprobs", 0, MTPLX_MAX_LOGPROBS, &logprobs))
        return false;
    if (!mx_field_bool(f, "echo", &q->o.echo))
        return false;
    q->o.logprobs = (int)logprobs;
    r->gen.logprobs = logprobs >= 0 ? 1 + (int)logprobs : 0;
    r->gen.prompt_logprobs = q->o.echo && logprobs >= 0;
    r->no_reuse = r->no_reuse || r->gen.prompt_logprobs;
    r->prompt_only = limit == 0;
    if (!json_is_number(json_object_get(f->o, "max_tokens")))
        limit = DEFAULT_TOKENS;
    r->gen.max_tokens = limit > 0 ? (int)limit : 0;
    return true;
}

static bool read_request(struct mx_app *app, struct mx_exchange *x, struct request *q,
                         struct mx_api_error *e)
{
    struct mx_fields f = {mx_exchange_body(x), "", e};
    if (!mx_openai_read(app, x, &q->p, e) || !mx_field_need(&f, "prompt") || !read_prompt(&f, q) ||
        !read_refused(&f, q) || !read_scoring(&f, q) ||
        !mx_openai_read_format(&f, &q->p.turn, &q->schema))
        return false;
    int n = q->p.turn.choices;
    if ((size_t)n * (size_t)q->n_prompts > MX_COMPLETIONS_MAX)
        return mx_api_fail(e, 400, "n", "'n' times the number of prompts must be at most %d",
                           MX_COMPLETIONS_MAX);
    q->per_turn = q->p.turn.gen.prompt_logprobs ? 1 : n;
    q->o.n = n;
    q->o.answers = n * q->n_prompts;
    q->o.turns = q->o.answers / q->per_turn;
    q->p.turn.raw = true;
    return true;
}

/* ---- Starting ----------------------------------------------------------------------------- */

static bool start_turn(struct mx_app *app, struct mx_exchange *x, const struct request *q,
                       struct mx_completions *reply, int turn, uint64_t *job,
                       struct mx_api_error *e)
{
    struct mx_turn_request r = q->p.turn;
    int first = turn * q->per_turn;
    bool one = q->n_prompts == 1 && !json_is_array(json_array_get(q->prompt, 0)) &&
               !json_is_string(json_array_get(q->prompt, 0));
    const json_t *prompt =
        one ? q->prompt : json_array_get(q->prompt, (size_t)(first / q->p.turn.choices));
    bool text = json_is_string(prompt);
    r.choices = q->per_turn;
    r.gen.sampling.seed += (uint64_t)(first % q->p.turn.choices);
    r.prompt = text ? json_string_value(prompt) : NULL;
    r.prompt_len = text ? json_string_length(prompt) : 0;
    r.prompt_ids = text ? NULL : prompt;
    r.event = mx_completions_event;
    r.arg = mx_completions_slot(reply, turn, first, text ? prompt : NULL);
    *job = mx_turn_start(app, x, &r, e);
    return *job != 0;
}

static void start_all(struct mx_app *app, struct mx_exchange *x, const struct request *q,
                      struct mx_completions *reply)
{
    uint64_t jobs[MX_COMPLETIONS_MAX];
    struct mx_api_error e = {0};
    int n = 0;
    while (n < q->o.turns && start_turn(app, x, q, reply, n, &jobs[n], &e))
        n++;
    if (n < q->o.turns) {
        mx_completions_refuse(reply, &e);
        for (int i = 0; i < n; i++)
            mx_engine_cancel(app->engine, jobs[i]);
    }
    mx_completions_watch(reply, jobs, n);
    mx_completions_release(reply, q->o.turns - n + 1);
}

void mx_api_completions(struct mx_app *app, struct mx_exchange *x)
{
    struct request q = {0};
    struct mx_api_error e = {0};
    if (app->metrics)
        mx_metrics_unknown_fields(app->metrics, mx_fields_unknown(mx_exchange_body(x), known));
    struct mx_completions *reply = NULL;
    if (read_request(app, x, &q, &e)) {
        reply = mx_completions_new(app, x, &q.p, &q.o);
        if (!reply)
            mx_api_fail(&e, 507, NULL, "Out of memory for a reply");
    }
    if (reply)
        start_all(app, x, &q, reply);
    else
        mx_exchange_fail(x, &e);
    mx_openai_params_free(&q.p);
    json_decref(q.schema);
}
