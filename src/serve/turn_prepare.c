/* A request becomes a turn: prompt tokens, limits, grammar, choices.
 *
 * What the answer must obey, by precedence:
 *   1. tool_choice required or named: a call (in the template's syntax), its arguments held to the
 *      tool's schema where the schema can be, else to any object.
 *   2. A response format: the format. Tools that are declared besides are not called then.
 *   3. tools with strict: true and tool_choice auto: free text, but a call that is begun holds to
 *      its schema.
 * Where the prompt ends inside reasoning, reasoning may come first; it ends by itself, or when it
 * has used about half of what the answer may have. */
#include "serve/turn_int.h"

#include "runtime/constraint.h"
#include "serve/borders.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of reasoning before a grammar for each token of the answer: half of its length, at about
 * four bytes a token. */
enum { PRELUDE_BYTES = 2, PRELUDE_MIN = 256 };

/* ---- Limits ------------------------------------------------------------------------------- */

static bool limit_tokens(struct mx_app *app, const struct mx_turn_request *r, size_t n_prompt,
                         mtplx_gen_options *gen, struct mx_api_error *e)
{
    struct mx_app_settings s = mx_app_get_settings(app);
    size_t window = (size_t)mtplx_model_get_info(app->model)->context_length;
    *gen = r->gen;
    if (n_prompt >= window) {
        /* Clients that shorten conversations look for the words of the two APIs. */
        mx_api_fail(e, 400, r->messages ? "messages" : "prompt",
                    "prompt is too long: %zu tokens > %zu maximum. This model's maximum context "
                    "length is %zu tokens, and an answer needs at least one; shorten the prompt",
                    n_prompt, window - 1, window);
        e->code = "context_length_exceeded";
        return false;
    }
    size_t left = window - n_prompt;
    int wanted = gen->max_tokens > 0 ? gen->max_tokens : s.max_tokens;
    if (s.max_tokens > 0 && wanted > s.max_tokens)
        wanted = s.max_tokens;
    if (r->prompt_only)
        wanted = 1;
    gen->max_tokens = wanted > 0 && (size_t)wanted < left ? wanted : (int)left;
    return true;
}

/* ---- Grammar ------------------------------------------------------------------------------ */

static bool forced(const struct mx_turn_request *r)
{
    return r->tool_choice == MX_TOOL_CHOICE_REQUIRED || r->tool_choice == MX_TOOL_CHOICE_NAMED;
}

static bool any_strict(const json_t *tools)
{
    size_t i;
    json_t *t;
    json_array_foreach(tools, i, t)
    {
        const json_t *f = json_object_get(t, "function");
        if (json_is_true(json_object_get(f, "strict")) ||
            json_is_true(json_object_get(t, "strict")))
            return true;
    }
    return false;
}

static struct mx_grammar *tools_grammar(struct mx_app *app, const struct mx_turn_request *r,
                                        struct mx_grammar_frame *f, mtplx_error *err)
{
    struct mx_grammar_tools t = {
        .syntax = app->tools,
        .tools = r->tools,
        .only = r->tool_choice == MX_TOOL_CHOICE_NAMED ? r->tool_name : NULL,
        .parallel = r->parallel_tool_calls && r->tool_choice != MX_TOOL_CHOICE_NAMED,
        .strict_all = forced(r)};
    if (!forced(r))
        f->trigger = mx_tool_syntax_start(app->tools);
    struct mx_grammar *g = mx_grammar_from_tools(&t, f, err);
    if (g || !t.strict_all)
        return g;
    t.strict_all = false; /* a schema outside of what is supported is no error where not strict */
    *err = (mtplx_error){0};
    return mx_grammar_from_tools(&t, f, err);
}

static struct mx_grammar *format_grammar(const struct mx_turn_request *r,
                                         const struct mx_grammar_frame *f, mtplx_error *err)
{
    switch (r->format) {
    case MX_FORMAT_JSON: return mx_grammar_json_object(f, err);
    case MX_FORMAT_SCHEMA: return mx_grammar_from_schema(r->schema, f, err);
    case MX_FORMAT_REGEX: return mx_grammar_from_regex(r->format_text, r->format_len, f, err);
    case MX_FORMAT_GBNF: return mx_grammar_from_gbnf(r->format_text, r->format_len, f, err);
    case MX_FORMAT_TEXT: break;
    }
    return NULL;
}

mtplx_grammar *mx_turn_grammar(struct mx_app *app, const struct mx_turn_request *r,
                               struct mx_api_error *e)
{
    const struct mx_grammar_frame whole = {0};
    mtplx_error err = {0};
    if (r->format == MX_FORMAT_TEXT)
        return NULL;
    struct mx_grammar *rules = format_grammar(r, &whole, &err);
    mtplx_grammar *g = rules ? mx_grammar_wrap(app->model, rules, &err) : NULL;
    if (!g)
        mx_turn_fail_input(e, &err, "response_format");
    return g;
}

static bool check_tools(const struct mx_app *app, const struct mx_turn_request *r,
                        struct mx_api_error *e)
{
    size_t i;
    json_t *t;
    if (!forced(r))
        return true;
    if (json_array_size(r->tools) == 0)
        return mx_api_fail(e, 400, "tool_choice",
                           "'tool_choice' asks for a tool call, but 'tools' declares none");
    if (app->tools == MX_TOOLS_NONE)
        return mx_api_fail(e, 400, "tool_choice",
                           "The chat template of this model has no syntax for tool calls, so none "
                           "can be required");
    if (r->tool_choice == MX_TOOL_CHOICE_REQUIRED)
        return true;
    json_array_foreach(r->tools, i, t)
    {
        const json_t *f = json_object_get(t, "function");
        const char *name = json_string_value(json_object_get(f ? f : t, "name"));
        if (name && r->tool_name && strcmp(name, r->tool_name) == 0)
            return true;
    }
    return mx_api_fail(e, 400, "tool_choice",
                       "'tool_choice' names the tool '%.80s', which 'tools' "
                       "does not declare",
                       r->tool_name ? r->tool_name : "");
}

static bool starts_inside(const struct mx_turn *t)
{
    return mx_reasoning_inside(&t->choices[0].reasoning);
}

static bool make_grammar(struct mx_turn *t, const struct mx_turn_request *r, mtplx_gen_options *gen,
                         struct mx_api_error *e)
{
    struct mx_app *app = t->app;
    bool by_tools = forced(r) || (r->format == MX_FORMAT_TEXT && t->tools && any_strict(t->tools));
    mtplx_error err = {0};
    if (r->grammar) {
        gen->grammar = r->grammar;
        return true;
    }
    if (app->tools == MX_TOOLS_NONE)
        by_tools = false;
    if (r->prompt_only || (!by_tools && r->format == MX_FORMAT_TEXT))
        return true;
    struct mx_grammar_frame f = {0};
    if (starts_inside(t)) {
        f.prelude_end = mx_reasoning_end(app->reasoning);
        f.prelude_max = PRELUDE_MIN + (size_t)gen->max_tokens * PRELUDE_BYTES;
    }
    struct mx_grammar *g = by_tools ? tools_grammar(app, r, &f, &err) : format_grammar(r, &f, &err);
    t->grammar = g ? mx_grammar_wrap(app->model, g, &err) : NULL;
    gen->grammar = t->grammar;
    return t->grammar || mx_turn_fail_input(e, &err, by_tools ? "tools" : "response_format");
}

/* ---- The turn ----------------------------------------------------------------------------- */

static struct mx_turn *new_turn(struct mx_app *app, struct mx_exchange *x,
                                const struct mx_turn_request *r)
{
    struct mx_turn *t = calloc(1, sizeof *t);
    bool callable = json_array_size(r->tools) > 0 && r->tool_choice != MX_TOOL_CHOICE_NONE &&
                    (r->format == MX_FORMAT_TEXT || forced(r));
    if (!t)
        return NULL;
    t->app = app;
    t->exchange = x ? mx_exchange_ref(x) : NULL;
    t->event = r->event;
    t->arg = r->arg;
    t->n_choices = r->choices > 1 ? r->choices : 1;
    t->running = t->n_choices;
    t->include_stop = r->include_stop;
    t->prompt_only = r->prompt_only;
    t->one_call = !r->parallel_tool_calls || r->tool_choice == MX_TOOL_CHOICE_NAMED;
    t->tools = callable ? json_incref((json_t *)(uintptr_t)r->tools) : NULL;
    atomic_init(&t->refs, 1);
    return t;
}

void mx_turn_free(struct mx_turn *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->n_choices; i++)
        mx_choice_free(&t->choices[i]);
    mx_stop_set_free(&t->stops);
    mtplx_grammar_free(t->grammar);
    json_decref(t->tools);
    mx_align_saved_free(t->saved);
    free(t->prompt);
    free(t->borders);
    if (t->exchange)
        mx_exchange_unref(t->exchange);
    free(t);
}

/* What the session bank and the prediction of the next turn want to know. */
static void tell_reuse(struct mx_turn *t, const struct mx_turn_request *r)
{
    struct mx_align *a = t->app->align;
    if (r->messages)
        t->borders = mx_borders_find(t->app, t->prompt, t->n_prompt, &t->n_borders);
    mx_turn_set_label(t, r);
    if (!a || t->n_borders == 0 || r->no_reuse)
        return;
    mx_align_arrived(a, t->scope, t->label, t->prompt, t->n_prompt, t->borders, t->n_borders);
    t->saved = mx_align_save(r, t->n_prompt);
    if (t->saved)
        t->base_hash = mx_align_hash(a, t->prompt, t->borders[t->n_borders - 1]);
}

static bool fill(struct mx_turn *t, const struct mx_turn_request *r, struct mx_turn_prompt *p,
                 mtplx_gen_options *gen, struct mx_api_error *e)
{
    if (!mx_turn_prompt_make(t->app, r, p, e) || !limit_tokens(t->app, r, p->n, gen, e))
        return false;
    t->prompt = p->ids;
    t->n_prompt = p->n;
    p->ids = NULL;
    tell_reuse(t, r);
    if (!mx_stop_set_init(&t->stops, r->stop, r->n_stop))
        return mx_api_fail(e, 507, "stop", "Out of memory for the stop strings");
    for (int i = 0; i < t->n_choices; i++)
        if (!mx_choice_init(&t->choices[i], t, i, r, p, e))
            return false;
    return make_grammar(t, r, gen, e);
}

struct mx_turn *mx_turn_prepare(struct mx_app *app, struct mx_exchange *x,
                                const struct mx_turn_request *r, mtplx_gen_options *gen,
                                struct mx_api_error *e)
{
    struct mx_turn_prompt p = {0};
    if (r->choices > MX_MAX_CHOICES) {
        mx_api_fail(e, 400, "n", "'n' must be between 1 and %d", MX_MAX_CHOICES);
        return NULL;
    }
    if (!check_tools(app, r, e))
        return NULL;
    struct mx_turn *t = new_turn(app, x, r);
    if (!t) {
        mx_api_fail(e, 507, NULL, "Out of memory for a turn");
        return NULL;
    }
    bool ok = fill(t, r, &p, gen, e);
    mx_turn_prompt_free(&p);
    if (ok)
        return t;
    mx_turn_free(t);
    return NULL;
}
