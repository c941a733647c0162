/* Tool calls in the syntax of a chat template -> expressions.
 *
 *   HERMES       <tool_call>\n{"name": "N", "arguments": {..}}\n</tool_call>
 *   QWEN_XML     <tool_call>\n<function=N>\n(<parameter=K>\nV\n</parameter>\n)*</function>\n
 *                </tool_call>
 *   GLM          <tool_call>N\n(<arg_key>K</arg_key>\n<arg_value>V</arg_value>\n)*</tool_call>
 *   GEMMA4       <|tool_call>call:N{k:v,..}<tool_call|>
 *   DEEPSEEK_V3
 * <｜tool▁calls▁begin｜>(<｜tool▁call▁begin｜>N<｜tool▁sep｜>{..}<｜tool▁call▁end｜>)*
 *                <｜tool▁calls▁end｜>
 *   DSML         <｜DSML｜function_calls>\n(<｜DSML｜invoke name="N">\n(<｜DSML｜parameter name="K"
 *                string="true">V</｜DSML｜parameter>\n)*</｜DSML｜invoke>\n)*</｜DSML｜function_calls>
 *                or the same with tool_calls
 *   MINIMAX      <minimax:tool_call>\n(<invoke name="N">\n(<parameter name="K">V</parameter>\n)*
 *                </invoke>\n)*</minimax:tool_call>
 *
 * In the markup forms a parameter whose schema allows strings is text up to its closing tag, other
 * parameters are JSON; a string parameter with further keywords never holds a "<". With a trigger
 * the constrained text starts with it, so it is taken off the first call's opening. */
#include "text/grammar_schema.h"

#include <stdlib.h>
#include <string.h>

enum { TOOLS_MAX = 1024 };
#define DSML "｜DSML｜"

struct tools {
    struct mx_gbuild *b;
    const struct mx_grammar_tools *t;
    struct mx_schema schema;     /* of the tool under way */
    struct mx_gexpr *head, *mid; /* of a parameter: before its key, and between key and value */
    struct mx_gexpr *mid_text;   /* the same where the value is text */
    struct mx_gexpr *tail;       /* behind the value */
    struct mx_gexpr *end_text;   /* the end of text (its first part, in bytes, is `stop`) */
    const char *stop;
};

static struct mx_gexpr *str(struct tools *t, const char *s)
{
    return mx_gx_str(t->b, s);
}

static struct mx_gexpr *mark(struct tools *t, const char *s)
{
    return mx_gx_marker(t->b, s);
}

/* An optional line break. */
static struct mx_gexpr *gap(struct tools *t)
{
    return mx_gx_opt(t->b, str(t, "\n"));
}

/* ---- Parameters as text ---- */

static bool allows_string(int types)
{
    return types == 0 || types & MX_T_STRING;
}

/* Values of enum and const: strings as they are, others as JSON. */
static struct mx_gexpr *listed(struct tools *t, const json_t *x, int types)
{
    struct mx_gxlist alts = {0};
    const json_t *only = json_object_get(x, "const"), *list = json_object_get(x, "enum");
    const json_t *rest = only ? x : mx_schema_without(&t->schema, x, "enum");
    size_t n = only ? 1 : rest ? json_array_size(list) : 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = only ? only : json_array_get(list, i);
        if (!mx_schema_allows(rest, types, v))
            continue;
        char *text = json_is_string(v) ? NULL : json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
        const char *s = text ? text : json_string_value(v);
        if (s && !strstr(s, t->stop))
            mx_gxlist_put(t->b, &alts, str(t, s));
        free(text);
    }
    return mx_gx_alt(t->b, alts.n, alts.v);
}

static struct mx_gexpr *text_chars(struct tools *t, int min, int max)
{
    struct mx_cpset s = {.arena = &t->b->arena};
    if (!mx_cpset_add(&s, 0, 0) || !mx_cpset_add(&s, '<', '<') || !mx_cpset_negate(&s))
        return mx_gfail(t->b, MTPLX_ERR_LIMIT, "the grammar is too large");
    return mx_gx_rep(t->b, mx_gx_chars(t->b, &s), min, max);
}

/* Text that obeys a string schema's keywords: by way of its JSON form without quotes. */
static struct mx_gexpr *bounded_text(struct tools *t, const json_t *x, const struct mx_swhere *w)
{
    const json_t *pattern = json_object_get(x, "pattern");
    const json_t *lo = json_object_get(x, "minLength"), *hi = json_object_get(x, "maxLength");
    double min = json_number_value(lo), max = hi ? json_number_value(hi) : -1;
    const char *format = json_string_value(json_object_get(x, "format"));
    const char *re = pattern ? json_string_value(pattern) : mx_schema_format(format);
    if (min < 0 || min > MX_GX_REPEAT || max > MX_GX_REPEAT || (hi && max < 0))
        return mx_schema_fail(&t->schema, w, MTPLX_ERR_ARGUMENT,
                              "minLength and maxLength have to be whole numbers");
    if (!re)
        return text_chars(t, (int)min, (int)max);
    struct mx_gexpr *y =
        mx_gregex(t->b, re, strlen(re), MX_RE_MARKUP, mx_schema_where(&t->schema, w));
    int64_t least, most;
    if (!y)
        return NULL;
    mx_gregex_length(y, false, &least, &most);
    if ((double)least < min || (hi && (most < 0 || (double)most > max)))
        return mx_schema_fail(&t->schema, w, MTPLX_ERR_UNSUPPORTED,
                              "minLength or maxLength beside a pattern or format whose texts are "
                              "not within them is not supported");
    return y;
}

static bool is_bounded(const json_t *x, int types)
{
    return types == MX_T_STRING &&
           (json_object_get(x, "pattern") || json_object_get(x, "minLength") ||
            json_object_get(x, "maxLength") ||
            mx_schema_format(json_string_value(json_object_get(x, "format"))));
}

/* Key, value and closing tag. */
static struct mx_gexpr *with_value(struct tools *t, struct mx_gexpr *key, const json_t *schema,
                                   const struct mx_swhere *w)
{
    struct mx_gbuild *b = t->b;
    const json_t *x = mx_schema_flat(&t->schema, schema, w);
    if (!x)
        return NULL;
    bool object = json_is_object(x);
    int types = object ? mx_schema_types(&t->schema, x, w) : 0;
    bool list = object && (json_object_get(x, "enum") || json_object_get(x, "const"));
    bool branches = object && (json_object_get(x, "anyOf") || json_object_get(x, "oneOf"));
    if (json_is_false(x) || types < 0)
        return mx_gx_fail(b);
    if (list && allows_string(types))
        return MX_GX_SEQ(b, key, t->mid_text, listed(t, x, types), t->end_text, t->tail);
    if (object && is_bounded(x, types))
        return MX_GX_SEQ(b, key, t->mid_text, bounded_text(t, x, w), t->end_text, t->tail);
    bool typed = object && (types || mx_schema_keywords(x) || branches);
    if (!typed || (types && allows_string(types)) ||
        (branches && !types && mx_schema_may_be_string(&t->schema, x, w)))
        return MX_GX_SEQ(b, key, t->mid_text, mx_gx_without(b, t->stop), t->end_text, t->tail);
    return MX_GX_SEQ(b, key, t->mid, mx_schema_value(&t->schema, schema, w), t->end_text, t->tail);
}

/* A name that no tag's syntax gets in the way of. */
static struct mx_gexpr *free_name(struct tools *t)
{
    struct mx_cpset s = {.arena = &t->b->arena};
    bool ok = mx_cpset_add(&s, '0', '9') && mx_cpset_add(&s, 'A', 'Z') &&
              mx_cpset_add(&s, 'a', 'z') && mx_cpset_add(&s, '_', '_') &&
              mx_cpset_add(&s, '-', '-');
    if (!ok)
        return mx_gfail(t->b, MTPLX_ERR_LIMIT, "the grammar is too large");
    mx_cpset_normalise(&s);
    return mx_gx_rep(t->b, mx_gx_chars(t->b, &s), 1, 64);
}

static struct mx_gexpr *member(void *arg, const char *name, const char *const *others, int n,
                               const json_t *schema, const struct mx_swhere *w)
{
    struct tools *t = arg;
    if (!name && n > 0)
        return mx_schema_fail(&t->schema, w, MTPLX_ERR_UNSUPPORTED,
                              "additionalProperties beside properties is not supported for this "
                              "syntax of tool calls");
    (void)others;
    struct mx_gexpr *key = MX_GX_SEQ(t->b, t->head, name ? str(t, name) : free_name(t));
    return with_value(t, key, schema, w);
}

/* ---- Functions ---- */

struct function {
    const char *name;
    const json_t *parameters; /* NULL: not held to a schema */
    const char *where;
};

/* False for an entry that is skipped or malformed. */
static bool read_function(struct tools *t, size_t i, struct function *f)
{
    const json_t *tool = json_array_get(t->t->tools, i), *fn = json_object_get(tool, "function");
    const char *type = json_string_value(json_object_get(tool, "type"));
    if (type && strcmp(type, "function") != 0)
        return false;
    const json_t *parameters = json_object_get(fn, "parameters");
    *f = (struct function){.name = json_string_value(json_object_get(fn, "name"))};
    if (!f->name || !*f->name || strpbrk(f->name, "<>\n\"{}\\")) {
        mx_gfail(t->b, MTPLX_ERR_ARGUMENT,
                 "tools/%zu/function/name has to be a string of letters, digits, _ and -", i);
        return false;
    }
    if (t->t->only && strcmp(f->name, t->t->only) != 0)
        return false;
    bool strict = t->t->strict_all || json_is_true(json_object_get(fn, "strict"));
    f->parameters = strict && json_is_object(parameters) ? parameters : NULL;
    f->where = mx_arena_printf(&t->b->arena, "tools/%zu/function/parameters", i);
    return f->where != NULL;
}

/* Arguments as one JSON object (or in Gemma's form of it). */
static struct mx_gexpr *json_arguments(struct tools *t, const struct function *f)
{
    if (!f->parameters)
        return mx_gjson_object(t->b);
    if (!mx_schema_open(&t->schema, t->b, f->parameters, f->where))
        return NULL;
    json_t *made = json_deep_copy(f->parameters); /* arguments are an object in any case */
    struct mx_gexpr *x = NULL;
    if (!made || json_array_append_new(t->schema.made, made))
        mx_gfail(t->b, MTPLX_ERR_MEMORY, "out of memory for a schema");
    else if (!json_object_get(made, "type"))
        json_object_set_new(made, "type", json_string("object"));
    if (!t->b->failed) {
        t->schema.root = made;
        x = mx_schema_value(&t->schema, made, NULL);
    }
    mx_schema_close(&t->schema);
    return x;
}

static struct mx_gexpr *free_members(struct tools *t)
{
    struct mx_gexpr *key = MX_GX_SEQ(t->b, t->head, free_name(t));
    struct mx_gexpr *one =
        MX_GX_SEQ(t->b, key, t->mid_text, mx_gx_without(t->b, t->stop), t->end_text, t->tail);
    return mx_gx_rep(t->b, one, 0, -1);
}

static struct mx_gexpr *markup_arguments(struct tools *t, const struct function *f)
{
    if (!f->parameters)
        return free_members(t);
    if (!mx_schema_open(&t->schema, t->b, f->parameters, f->where))
        return NULL;
    const json_t *x = mx_schema_flat(&t->schema, f->parameters, NULL);
    struct mx_gexpr *y = NULL;
    if (x && (json_is_boolean(x) || json_object_get(x, "anyOf") || json_object_get(x, "oneOf")))
        mx_schema_fail(&t->schema, NULL, MTPLX_ERR_UNSUPPORTED,
                       "parameters have to be a plain object for this syntax of tool calls");
    else if (x)
        y = mx_schema_members(&t->schema, x, NULL, member, t);
    mx_schema_close(&t->schema);
    return y;
}

/* ---- Syntaxes ---- */

/* What stands around the calls: an opening in pieces and a closing, and whether one opening holds
 * several calls. */
struct syntax {
    const char *open; /* the bytes of the opening up to which a trigger may reach */
    bool shared;
};

static struct syntax syntax_of(enum mx_tool_syntax s)
{
    switch (s) {
    case MX_TOOLS_GEMMA4: return (struct syntax){"<|tool_call>", false};
    case MX_TOOLS_DEEPSEEK_V3: return (struct syntax){"<｜tool▁calls▁begin｜>", true};
    case MX_TOOLS_DSML: return (struct syntax){"<" DSML "function_calls>", true};
    case MX_TOOLS_MINIMAX: return (struct syntax){"<minimax:tool_call>", true};
    default: return (struct syntax){"<tool_call>", false};
    }
}

/* `text` with the special token DSML in it where the vocabulary has one. */
static struct mx_gexpr *dsml(struct tools *t, const char *before, const char *behind)
{
    return MX_GX_SEQ(t->b, str(t, before), mark(t, DSML), str(t, behind));
}

static void set_markup(struct tools *t)
{
    struct mx_gbuild *b = t->b;
    struct mx_gexpr *none = mx_gx_empty(b);
    switch (t->t->syntax) {
    case MX_TOOLS_QWEN_XML:
        t->head = str(t, "<parameter=");
        t->mid = t->mid_text = str(t, ">\n");
        t->stop = "\n</parameter>";
        t->end_text = str(t, t->stop);
        t->tail = str(t, "\n");
        break;
    case MX_TOOLS_GLM:
        t->head = mark(t, "<arg_key>");
        t->mid = MX_GX_SEQ(b, mark(t, "</arg_key>"), gap(t), mark(t, "<arg_value>"));
        t->mid_text = t->mid;
        t->stop = "</arg_value>";
        t->end_text = mark(t, t->stop);
        t->tail = gap(t);
        break;
    case MX_TOOLS_DSML:
        t->head = dsml(t, "<", "parameter name=\"");
        t->mid = str(t, "\" string=\"false\">");
        t->mid_text = str(t, "\" string=\"true\">");
        t->stop = "</" DSML "parameter>";
        t->end_text = dsml(t, "</", "parameter>");
        t->tail = str(t, "\n");
        break;
    case MX_TOOLS_MINIMAX:
        t->head = str(t, "<parameter name=\"");
        t->mid = t->mid_text = str(t, "\">");
        t->stop = "</parameter>";
        t->end_text = str(t, t->stop);
        t->tail = str(t, "\n");
        break;
    default: t->tail = none; break;
    }
}

/* One call of f, without what stands around all calls. */
static struct mx_gexpr *call_of(struct tools *t, const struct function *f)
{
    struct mx_gbuild *b = t->b;
    struct mx_gexpr *ws = mx_gjson_ws(b), *name = str(t, f->name);
    switch (t->t->syntax) {
    case MX_TOOLS_HERMES:
        return MX_GX_SEQ(b, gap(t), str(t, "{"), ws, str(t, "\"name\":"), ws,
                         mx_gjson_literal(b, f->name, strlen(f->name)), str(t, ","), ws,
                         str(t, "\"arguments\":"), ws, json_arguments(t, f), ws, str(t, "}"),
                         gap(t), mark(t, "</tool_call>"));
    case MX_TOOLS_QWEN_XML:
        return MX_GX_SEQ(b, str(t, "\n<function="), name, str(t, ">\n"), markup_arguments(t, f),
                         str(t, "</function>\n"), mark(t, "</tool_call>"));
    case MX_TOOLS_GLM:
        return MX_GX_SEQ(b, name, gap(t), markup_arguments(t, f), mark(t, "</tool_call>"));
    case MX_TOOLS_GEMMA4:
        return MX_GX_SEQ(b, str(t, "call:"), name, json_arguments(t, f), mark(t, "<tool_call|>"));
    case MX_TOOLS_DEEPSEEK_V3:
        return MX_GX_SEQ(b, mark(t, "<｜tool▁call▁begin｜>"), name, mark(t, "<｜tool▁sep｜>"),
                         json_arguments(t, f), mark(t, "<｜tool▁call▁end｜>"));
    case MX_TOOLS_DSML:
        return MX_GX_SEQ(b, dsml(t, "<", "invoke name=\""), name, str(t, "\">\n"),
                         markup_arguments(t, f), dsml(t, "</", "invoke>\n"));
    case MX_TOOLS_MINIMAX:
        return MX_GX_SEQ(b, str(t, "<invoke name=\""), name, str(t, "\">\n"),
                         markup_arguments(t, f), str(t, "</invoke>\n"));
    default: return mx_gfail(b, MTPLX_ERR_ARGUMENT, "this tool-call syntax is not known");
    }
}

/* A call of any function. */
static struct mx_gexpr *any_call(struct tools *t)
{
    struct mx_gxlist alts = {0};
    size_t n = json_array_size(t->t->tools);
    if (n > TOOLS_MAX)
        return mx_gfail(t->b, MTPLX_ERR_LIMIT, "there are more than %d tools", TOOLS_MAX);
    for (size_t i = 0; i < n && !t->b->failed; i++) {
        struct function f;
        if (!read_function(t, i, &f))
            continue;
        int rule = mx_grule_new(t->b);
        mx_grule_set(t->b, rule, call_of(t, &f));
        mx_gxlist_put(t->b, &alts, mx_gx_ref(t->b, rule));
    }
    if (alts.n == 0 && !t->b->failed)
        return mx_gfail(t->b, MTPLX_ERR_ARGUMENT, "tools do not hold %s%.60s",
                        t->t->only ? "a function named " : "any function",
                        t->t->only ? t->t->only : "");
    return t->b->failed ? NULL : mx_gx_alt(t->b, alts.n, alts.v);
}

/* The opening without the trigger, for a text that starts with it. */
static struct mx_gexpr *rest_of_opening(struct tools *t, const char *trigger)
{
    const char *open = syntax_of(t->t->syntax).open;
    size_t n = strlen(trigger);
    if (strncmp(open, trigger, n) == 0)
        return str(t, open + n);
    if (t->t->syntax == MX_TOOLS_DSML && strcmp(trigger, "<" DSML "tool_calls>") == 0)
        return mx_gx_empty(t->b);
    return mx_gfail(t->b, MTPLX_ERR_ARGUMENT,
                    "the trigger %.60s does not start a tool call of this syntax (%s)", trigger,
                    open);
}

/* Several calls within one opening and closing. */
static struct mx_gexpr *shared_calls(struct tools *t, struct mx_gexpr *call, const char *trigger)
{
    struct mx_gbuild *b = t->b;
    struct mx_gexpr *calls = mx_gx_rep(b, call, 1, t->t->parallel ? -1 : 1);
    if (t->t->syntax == MX_TOOLS_DEEPSEEK_V3)
        return MX_GX_SEQ(
            b, trigger ? rest_of_opening(t, trigger) : mark(t, syntax_of(t->t->syntax).open), calls,
            mark(t, "<｜tool▁calls▁end｜>"));
    if (t->t->syntax == MX_TOOLS_MINIMAX)
        return MX_GX_SEQ(
            b, trigger ? rest_of_opening(t, trigger) : mark(t, syntax_of(t->t->syntax).open),
            str(t, "\n"), calls, mark(t, "</minimax:tool_call>"));
    struct mx_gxlist alts = {0};
    static const char *const tags[] = {"function_calls>", "tool_calls>"};
    for (int i = 0; i < 2; i++) {
        bool fits = !trigger || strstr(trigger, tags[i]) || !strstr(trigger, "calls>");
        struct mx_gexpr *open = NULL;
        if (!fits)
            continue;
        if (!trigger)
            open = dsml(t, "<", tags[i]);
        else if (strncmp(trigger, "<" DSML, strlen("<" DSML)) == 0)
            open = str(t, strstr(trigger, tags[i]) ? "" : tags[i]);
        else
            open = rest_of_opening(t, trigger);
        mx_gxlist_put(b, &alts, MX_GX_SEQ(b, open, str(t, "\n"), calls, dsml(t, "</", tags[i])));
    }
    return mx_gx_alt(b, alts.n, alts.v);
}

/* Calls one behind another, each with its own opening. */
static struct mx_gexpr *single_calls(struct tools *t, struct mx_gexpr *call, const char *trigger)
{
    struct mx_gbuild *b = t->b;
    struct mx_gexpr *open = mark(t, syntax_of(t->t->syntax).open);
    if (trigger) /* the next call triggers anew */
        return MX_GX_SEQ(b, rest_of_opening(t, trigger), call);
    struct mx_gexpr *first = MX_GX_SEQ(b, open, call);
    if (!t->t->parallel)
        return first;
    return MX_GX_SEQ(b, first, mx_gx_rep(b, MX_GX_SEQ(b, gap(t), first), 0, -1));
}

struct mx_grammar *mx_grammar_from_tools(const struct mx_grammar_tools *t,
                                         const struct mx_grammar_frame *f, mtplx_error *err)
{
    struct mx_gbuild b;
    mx_gbuild_init(&b, err);
    struct tools tools = {.b = &b, .t = t};
    const char *trigger = f ? f->trigger : NULL;
    b.gemma = t->syntax == MX_TOOLS_GEMMA4;
    b.once = !t->parallel;
    set_markup(&tools);
    int rule = mx_grule_new(&b);
    mx_grule_set(&b, rule, any_call(&tools));
    struct mx_gexpr *call = b.failed ? NULL : mx_gx_ref(&b, rule), *x = NULL;
    if (call)
        x = syntax_of(t->syntax).shared ? shared_calls(&tools, call, trigger)
                                        : single_calls(&tools, call, trigger);
    return mx_grammar_finish(&b, x, f, err);
}
