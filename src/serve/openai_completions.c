/* POST /v1/completions: the request side. Every prompt is a turn of its own; so is every answer
 * where the prompt is scored, since answers that share a prompt's pass have no scores of their own.
 */
#include "serve/openai_completions.h"
#include "serve/api.h"
#include "serve/metrics.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_TOKENS = 16, PROMPT_IDS_MAX = 1 << 24 };

static const char known[] = MX_OPENAI_COMMON
    " prompt suffix echo logprobs best_of response_format guided_json guided_regex guided_grammar "
    "grammar";

struct request {
    struct mx_app *app;
    struct mx_exchange *x; /* the reply holds it */
    struct mx_openai_params p;
    struct mx_completions_options o;
    char *session;          /* owned: turns are queued after the body is gone */
    const json_t *prompt;   /* as it came */
    int n_prompts;          /* 1 when `prompt` is one */
    int per_turn;           /* answers of a turn */
    json_t *schema;         /* owned */
    mtplx_grammar *grammar; /* owned; of all turns */
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

static void free_request(void *arg)
{
    struct request *q = arg;
    mx_openai_params_free(&q->p);
    json_decref(q->schema);
    mtplx_grammar_free(q->grammar);
    free(q->session);
    free(q);
}

static bool keep_session(struct request *q, struct mx_api_error *e)
{
    struct mx_turn_request *r = &q->p.turn;
    q->session = r->session ? strdup(r->session) : NULL;
    if (r->session && !q->session)
        return mx_api_fail(e, 507, NULL, "Out of memory for a request");
    r->session = q->session;
    return true;
}

static bool is_list(const struct request *q)
{
    const json_t *first = json_array_get(q->prompt, 0);
    return json_is_array(first) || json_is_string(first);
}

static struct mx_turn *make_turn(void *arg, int turn, mx_turn_fn *event, void *event_arg,
                                 struct mx_api_error *e)
{
    const struct request *q = arg;
    struct mx_turn_request r = q->p.turn;
    int first = turn * q->per_turn, n = q->p.turn.choices;
    const json_t *prompt = is_list(q) ? json_array_get(q->prompt, (size_t)(first / n)) : q->prompt;
    bool text = json_is_string(prompt);
    r.choices = q->per_turn;
    r.gen.sampling.seed += (uint64_t)(first % n);
    r.prompt = text ? json_string_value(prompt) : NULL;
    r.prompt_len = text ? json_string_length(prompt) : 0;
    r.prompt_ids = text ? NULL : prompt;
    r.event = event;
    r.arg = event_arg;
    r.grammar = q->grammar;
    return mx_turn_make(q->app, q->x, &r, e);
}

/* A grammar is compiled once, however many prompts there are. */
static bool make_grammar(struct request *q, struct mx_api_error *e)
{
    if (!q->p.turn.prompt_only)
        q->grammar = mx_turn_grammar(q->app, &q->p.turn, e);
    return e->status == 0;
}

void mx_api_completions(struct mx_app *app, struct mx_exchange *x)
{
    struct mx_api_error e = {0};
    struct request *q = calloc(1, sizeof *q);
    if (app->metrics)
        mx_metrics_unknown_fields(app->metrics, mx_fields_unknown(mx_exchange_body(x), known));
    if (!q)
        mx_api_fail(&e, 507, NULL, "Out of memory for a request");
    else
        *q = (struct request){.app = app, .x = x};
    if (q && read_request(app, x, q, &e) && keep_session(q, &e) && make_grammar(q, &e)) {
        q->o.make = make_turn;
        q->o.free = free_request;
        q->o.request = q;
        if (mx_completions_run(app, x, &q->p, &q->o, &e))
            return; /* the request may be gone already */
    }
    mx_exchange_fail(x, &e);
    if (q)
        free_request(q);
}
