/* mtplx ask: one prompt, one answer. */
#include "base/error.h"
#include "base/utf8.h"
#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/grammar_arg.h"
#include "cli/model_arg.h"
#include "cli/prompt.h"
#include "cli/signals.h"
#include "cli/stats.h"

#include "mtplx.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    ASK_MODEL,
    ASK_SYSTEM,
    ASK_MAX_TOKENS,
    ASK_THINK,
    ASK_JSON,
    ASK_STATS,
    ASK_QUIET,
    ASK_DEPTH,
    ASK_DEPTH_POLICY,
    ASK_COPY,
    ASK_MTP,
    ASK_TEMPERATURE,
    ASK_TOP_P,
    ASK_TOP_K,
    ASK_MIN_P,
    ASK_PRESENCE,
    ASK_FREQUENCY,
    ASK_REPETITION,
    ASK_SEED,
    ASK_SCHEMA,
    ASK_GRAMMAR,
    ASK_REGEX,
    ASK_DEVICE,
    ASK_THREADS,
    ASK_PROFILE,
    ASK_CHUNK,
    ASK_KV_QUANT,
    ASK_PAGED_KV, /* follows its short name */
    ASK_MTP_ADAPTER,
    ASK_MERGE_ADAPTER,
    ASK_MTP_REQUANT,
    ASK_DRAFT_VOCAB,
    ASK_DRAFT_REQUANT,
    ASK_PROJ_REQUANT,
    ASK_FLAGS,
};

/* A seed asks for the same answer in every run, so nothing that is learned may have a say. */
enum { SEEDED_DEPTH = 3, SEEDED_DRAFT_VOCAB = 32768 };

#define CHECKPOINT "the checkpoint's own"

static const struct mx_cli_flag flags[ASK_FLAGS] = {
    [ASK_MODEL] = {.name = "model",
                   .kind = MX_CLI_TEXT,
                   .letter = 'm',
                   .value = "DIR",
                   .env = "MTPLX_MODEL",
                   .fallback = "the built-in nano model",
                   .help = "Checkpoint directory, Hugging Face or MLX layout, "
                           "or a GGUF file."},
    [ASK_SYSTEM] = {.name = "system",
                    .kind = MX_CLI_TEXT,
                    .may_be_empty = true,
                    .value = "TEXT",
                    .env = "MTPLX_SYSTEM",
                    .help = "System message."},
    [ASK_MAX_TOKENS] = {.name = "max-tokens",
                        .kind = MX_CLI_INT,
                        .letter = 'n',
                        .min = 1,
                        .max = 1 << 30,
                        .env = "MTPLX_MAX_TOKENS",
                        .fallback = "until the model stops or its context is full",
                        .help = "Longest answer, reasoning included."},
    [ASK_THINK] = {.name = "think",
                   .kind = MX_CLI_SWITCH,
                   .negatable = true,
                   .env = "MTPLX_THINK",
                   .fallback = "what the chat template does",
                   .help = "Let the model reason first, and show it; or do not."},
    [ASK_JSON] = {.name = "json",
                  .kind = MX_CLI_SWITCH,
                  .help = "Print one JSON object instead of streaming text."},
    [ASK_STATS] = {.name = "stats",
                   .kind = MX_CLI_SWITCH,
                   .env = "MTPLX_STATS",
                   .help = "Print speed and acceptance figures to standard error."},
    [ASK_QUIET] = {.name = "quiet",
                   .kind = MX_CLI_SWITCH,
                   .letter = 'q',
                   .help = "Nothing but the answer: no reasoning, no notes."},
    [ASK_DEPTH] = {.name = "depth",
                   .kind = MX_CLI_CHOICE,
                   .choices = "auto 0 1 2 3 4 5 6 7 8",
                   .letter = 'd',
                   .env = "MTPLX_DEPTH",
                   .fallback = "auto, or 3 when a seed is given",
                   .help = "Tokens drafted ahead by the MTP head; 0 decodes plainly, auto follows "
                           "measured speed and acceptance. Greedy output does not depend on it."},
    [ASK_DEPTH_POLICY] = {.name = "depth-policy",
                          .kind = MX_CLI_CHOICE,
                          .choices = MX_DEPTH_POLICIES,
                          .env = "MTPLX_DEPTH_POLICY",
                          .fallback = "none with a number as --depth, else auto",
                          .help = "How each cycle's depth is chosen; --depth is then the largest."},
    [ASK_COPY] = {.name = "context-copy",
                  .kind = MX_CLI_CHOICE,
                  .choices = "on off",
                  .env = "MTPLX_CONTEXT_COPY",
                  .fallback = "on, but with --depth 0 off",
                  .help = "Also draft by copying what followed earlier occurrences of the last "
                          "tokens in prompt and answer."},
    [ASK_MTP] = {.name = "mtp",
                 .kind = MX_CLI_SWITCH,
                 .negatable = true,
                 .env = "MTPLX_MTP",
                 .fallback = "on",
                 .help = "Load and use the MTP head."},
    [ASK_TEMPERATURE] = {.name = "temperature",
                         .kind = MX_CLI_REAL,
                         .letter = 't',
                         .max = 100,
                         .env = "MTPLX_TEMPERATURE",
                         .fallback = CHECKPOINT,
                         .help = "Sampling temperature; 0 is greedy."},
    [ASK_TOP_P] = {.name = "top-p",
                   .kind = MX_CLI_REAL,
                   .above_min = true,
                   .max = 1,
                   .env = "MTPLX_TOP_P",
                   .fallback = CHECKPOINT,
                   .help = "Keep the likeliest tokens up to this mass; 1 is off."},
    [ASK_TOP_K] = {.name = "top-k",
                   .kind = MX_CLI_INT,
                   .max = 1 << 24,
                   .env = "MTPLX_TOP_K",
                   .fallback = CHECKPOINT,
                   .help = "Keep this many tokens; 0 is off."},
    [ASK_MIN_P] = {.name = "min-p",
                   .kind = MX_CLI_REAL,
                   .max = 1,
                   .env = "MTPLX_MIN_P",
                   .fallback = CHECKPOINT,
                   .help = "Drop tokens below this share of the likeliest one's probability."},
    [ASK_PRESENCE] = {.name = "presence-penalty",
                      .kind = MX_CLI_REAL,
                      .min = -2,
                      .max = 2,
                      .env = "MTPLX_PRESENCE_PENALTY",
                      .fallback = "0",
                      .help = "Taken from the logit of every token already in the answer."},
    [ASK_FREQUENCY] = {.name = "frequency-penalty",
                       .kind = MX_CLI_REAL,
                       .min = -2,
                       .max = 2,
                       .env = "MTPLX_FREQUENCY_PENALTY",
                       .fallback = "0",
                       .help = "The same, once for each time the token occurred."},
    [ASK_REPETITION] = {.name = "repetition-penalty",
                        .kind = MX_CLI_REAL,
                        .above_min = true,
                        .max = 10,
                        .env = "MTPLX_REPETITION_PENALTY",
                        .fallback = CHECKPOINT,
                        .help = "Weakens tokens seen in prompt or answer; 1 is off."},
    [ASK_SEED] = {.name = "seed",
                  .kind = MX_CLI_UINT64,
                  .env = "MTPLX_SEED",
                  .fallback = "0",
                  .help = "Seed of the sampler: the same seed gives the same answer, unless "
                          "--depth auto lets measured times have a say."},
    [ASK_SCHEMA] = {.name = "json-schema",
                    .kind = MX_CLI_TEXT,
                    .value = "FILE",
                    .help = "The answer is JSON of this schema, after any reasoning."},
    [ASK_GRAMMAR] = {.name = "grammar",
                     .kind = MX_CLI_TEXT,
                     .value = "FILE",
                     .help = "The answer obeys this grammar (GBNF or EBNF; the rule root)."},
    [ASK_REGEX] = {.name = "regex",
                   .kind = MX_CLI_TEXT,
                   .value = "PATTERN",
                   .help = "The answer as a whole matches this regular expression."},
    [ASK_DEVICE] = {.name = "device",
                    .kind = MX_CLI_CHOICE,
                    .choices = "auto cpu ref",
                    .env = "MTPLX_DEVICE",
                    .fallback = "auto",
                    .help = "What computes; ref is the slow float32 reference."},
    [ASK_THREADS] = {.name = "threads",
                     .kind = MX_CLI_INT,
                     .letter = 'j',
                     .max = 1024,
                     .env = "MTPLX_THREADS",
                     .fallback = "0",
                     .help = "Worker threads; 0 is one for each usable CPU."},
    [ASK_PROFILE] = {.name = "profile",
                     .kind = MX_CLI_CHOICE,
                     .choices = "fast exact",
                     .env = "MTPLX_PROFILE",
                     .fallback = "fast",
                     .help = "exact keeps activations in float32; fast rounds them to int8 where "
                             "weights are quantised."},
    [ASK_CHUNK] = {.name = "prefill-chunk",
                   .kind = MX_CLI_INT,
                   .min = 32,
                   .max = 4096,
                   .env = "MTPLX_PREFILL_CHUNK_SIZE",
                   .fallback = "256",
                   .help = "Prompt tokens read in one pass. The output does not depend on it."},
    [ASK_KV_QUANT] = MX_KV_QUANT_FLAG,
    [ASK_PAGED_KV] = MX_PAGED_KV_FLAG,
    [ASK_MTP_ADAPTER] = {.name = "mtp-adapter",
                         .kind = MX_CLI_TEXT,
                         .value = "PATH",
                         .env = "MTPLX_MTP_ADAPTER",
                         .help = "LoRA adapter for the MTP head."},
    [ASK_MERGE_ADAPTER] = {.name = "merge-mtp-adapter",
                           .kind = MX_CLI_SWITCH,
                           .env = "MTPLX_MERGE_MTP_ADAPTER",
                           .help = "Fold the adapter into the head's weights at load."},
    [ASK_MTP_REQUANT] = {.name = "mtp-requant",
                         .kind = MX_CLI_CHOICE,
                         .choices = "keep q4 q8",
                         .env = "MTPLX_MTP_REQUANT",
                         .fallback = "keep",
                         .help = "Re-quantise the MTP head's projections at load."},
    [ASK_DRAFT_VOCAB] = {.name = "draft-vocab",
                         .kind = MX_CLI_TEXT,
                         .value = "full|N",
                         .env = "MTPLX_DRAFT_VOCAB",
                         .fallback = "32768, or full where the vocabulary is smaller",
                         .help =
                             "Draft only the N likeliest tokens; the default takes in what earlier "
                             "answers missed. Never changes the law of the answer, greedy output "
                             "not at all."},
    [ASK_DRAFT_REQUANT] = {.name = "draft-requant",
                           .kind = MX_CLI_CHOICE,
                           .choices = "keep q4 q8",
                           .env = "MTPLX_DRAFT_REQUANT",
                           .fallback = "keep",
                           .help = "Re-quantise the drafting copy of the output head at load."},
    [ASK_PROJ_REQUANT] = {.name = "proj-requant",
                          .kind = MX_CLI_CHOICE,
                          .choices = "keep q4 q8",
                          .env = "MTPLX_PROJ_REQUANT",
                          .fallback = "keep",
                          .help = "Re-quantise the MLP projections at load; changes the output."},
};

/* What one run of the command works with. */
struct ask {
    const struct mx_cli_args *args;
    struct mx_cli_out *out;
    mtplx_model *model;
    struct mx_strbuf question;
    char *prompt; /* the question in the chat template */
    size_t prompt_len;
    mtplx_kv_quant kv_quant;
    mtplx_error err;
};

static bool given(const struct ask *a, int flag)
{
    return a->args->values[flag].source != MX_CLI_DEFAULT;
}

static bool on(const struct ask *a, int flag)
{
    return a->args->values[flag].on;
}

static void note(const struct ask *a, const char *sentence)
{
    if (!on(a, ASK_QUIET))
        mx_cli_complain("ask", "%s", sentence);
}

/* ---- Settings ----------------------------------------------------------------------------- */

static mtplx_proj_quant requant(const struct ask *a, int flag)
{
    const char *word = given(a, flag) ? a->args->values[flag].text : "keep";
    return strcmp(word, "q4") == 0   ? MTPLX_PROJ_Q4
           : strcmp(word, "q8") == 0 ? MTPLX_PROJ_Q8
                                     : MTPLX_PROJ_KEEP;
}

static mtplx_status check_draft_vocab(struct ask *a)
{
    const struct mx_cli_value *v = &a->args->values[ASK_DRAFT_VOCAB];
    if (v->source == MX_CLI_DEFAULT || mx_draft_vocab_arg(v->text) != 0)
        return MTPLX_OK;
    return mx_error(
        &a->err, MTPLX_ERR_ARGUMENT, "%s takes full or an integer from 1 to %d, not \"%.40s\"",
        v->source == MX_CLI_EXPLICIT ? "--draft-vocab" : "MTPLX_DRAFT_VOCAB", 1 << 24, v->text);
}

static mtplx_load_options load_options(const struct ask *a)
{
    const struct mx_cli_value *v = a->args->values;
    return (mtplx_load_options){
        .device = v[ASK_DEVICE].text,
        .threads = (int)v[ASK_THREADS].integer,
        .no_mtp = given(a, ASK_MTP) && !v[ASK_MTP].on,
        .mtp_adapter = v[ASK_MTP_ADAPTER].text,
        .merge_mtp_adapter = v[ASK_MERGE_ADAPTER].on,
        .mtp_proj_quant = requant(a, ASK_MTP_REQUANT),
        .mlp_proj_quant = requant(a, ASK_PROJ_REQUANT),
        .max_rows = (int)v[ASK_CHUNK].integer,
        .profile = mx_profile_arg(v[ASK_PROFILE].text),
        .draft_vocab = given(a, ASK_DRAFT_VOCAB) ? mx_draft_vocab_arg(v[ASK_DRAFT_VOCAB].text)
                       : given(a, ASK_SEED)      ? SEEDED_DRAFT_VOCAB
                                                 : 0,
        .draft_head_quant = requant(a, ASK_DRAFT_REQUANT),
        .kv_quant = a->kv_quant,
    };
}

static void override(const struct ask *a, int flag, double *target)
{
    if (given(a, flag))
        *target = a->args->values[flag].real;
}

static mtplx_sampling sampling(const struct ask *a)
{
    mtplx_sampling s;
    mtplx_model_default_sampling(a->model, &s);
    override(a, ASK_TEMPERATURE, &s.temperature);
    override(a, ASK_TOP_P, &s.top_p);
    override(a, ASK_MIN_P, &s.min_p);
    override(a, ASK_PRESENCE, &s.presence_penalty);
    override(a, ASK_FREQUENCY, &s.frequency_penalty);
    override(a, ASK_REPETITION, &s.repetition_penalty);
    if (given(a, ASK_TOP_K))
        s.top_k = (int)a->args->values[ASK_TOP_K].integer;
    s.seed = a->args->values[ASK_SEED].natural;
    return s;
}

/* Says why a wish to draft cannot be granted. */
static void explain_no_mtp(const struct ask *a)
{
    const struct mx_cli_value *v = &a->args->values[ASK_DEPTH];
    bool wanted = v->source == MX_CLI_EXPLICIT && strcmp(v->text, "0") != 0;
    if (wanted && given(a, ASK_MTP) && !on(a, ASK_MTP))
        note(a, "--depth has no effect together with --no-mtp");
    else if (wanted || on(a, ASK_MTP))
        note(a, "this checkpoint has no MTP head, so nothing is drafted");
}

/* Sampled tokens depend on how deep was drafted, and that on measured times: whoever gives a seed
 * wants the same answer again and gets a fixed depth, unless something else was asked for. */
static void set_depth(const struct ask *a, mtplx_gen_options *o)
{
    const struct mx_cli_value *v = a->args->values;
    bool number = given(a, ASK_DEPTH) && strcmp(v[ASK_DEPTH].text, "auto") != 0;
    bool seeded = given(a, ASK_SEED) && o->sampling.temperature > 0 && !given(a, ASK_DEPTH);
    o->depth = number ? (int)v[ASK_DEPTH].integer : seeded ? SEEDED_DEPTH : MTPLX_MAX_DEPTH;
    o->policy = number || seeded ? MTPLX_DEPTH_FIXED : MTPLX_DEPTH_AUTO;
    if (given(a, ASK_DEPTH_POLICY))
        o->policy = mx_depth_policy_arg(v[ASK_DEPTH_POLICY].text);
    /* --depth 0 alone means plain decoding. */
    o->context_copy =
        given(a, ASK_COPY) ? strcmp(v[ASK_COPY].text, "on") == 0 : !(number && o->depth == 0);
    if (!mtplx_model_get_info(a->model)->has_mtp)
        explain_no_mtp(a);
}

/* Reasoning is shown when it was asked for, and on a terminal so that a model that thinks on its
 * own does not seem to hang; a pipe gets the bare answer unless --think says otherwise. */
static bool shows_reasoning(const struct ask *a)
{
    if (on(a, ASK_QUIET))
        return false;
    return given(a, ASK_THINK) ? on(a, ASK_THINK) : a->out->tty;
}

/* ---- Model and prompt --------------------------------------------------------------------- */

static mtplx_status load_model(struct ask *a)
{
    mtplx_load_options options = load_options(a);
    a->model = mx_model_arg_load(a->args->values[ASK_MODEL].text, &options, &a->err);
    return a->model ? MTPLX_OK : a->err.status;
}

/* The conversation as JSON text (free() it), or NULL when out of memory. */
static char *messages_json(const struct ask *a)
{
    const char *system = a->args->values[ASK_SYSTEM].text;
    json_t *list = json_array();
    if (system && *system)
        json_array_append_new(list, json_pack("{s:s, s:s}", "role", "system", "content", system));
    json_t *user =
        json_pack("{s:s, s:s%}", "role", "user", "content", a->question.data, a->question.len);
    char *text = NULL;
    if (json_array_append_new(list, user) == 0)
        text = json_dumps(list, JSON_COMPACT);
    json_decref(list);
    return text;
}

/* A base model has no chat template: it continues the plain text. */
static mtplx_status plain_prompt(struct ask *a)
{
    const char *system = a->args->values[ASK_SYSTEM].text;
    struct mx_strbuf b;
    note(a, "this checkpoint has no chat template: it continues the prompt as plain text");
    mx_strbuf_init(&b, 0);
    if (system && *system)
        mx_strbuf_printf(&b, "%s\n\n", system);
    mx_strbuf_append(&b, a->question.data, a->question.len);
    a->prompt = mx_strbuf_steal(&b, &a->prompt_len);
    return a->prompt ? MTPLX_OK : mx_error_nomem(&a->err, "the prompt", a->question.len);
}

static mtplx_status render_prompt(struct ask *a)
{
    const char *kwargs = NULL;
    if (given(a, ASK_THINK))
        kwargs = on(a, ASK_THINK) ? "{\"enable_thinking\":true}" : "{\"enable_thinking\":false}";
    char *messages = messages_json(a);
    if (!messages)
        return mx_error_nomem(&a->err, "the prompt", a->question.len);
    a->prompt = mtplx_chat_render(a->model, messages, NULL, kwargs, true, &a->prompt_len, &a->err);
    free(messages);
    if (a->prompt)
        return MTPLX_OK;
    return a->err.status == MTPLX_ERR_UNSUPPORTED ? plain_prompt(a) : a->err.status;
}

/* ---- Result ------------------------------------------------------------------------------- */

static mtplx_status print_json(struct ask *a, const struct mx_answer *r)
{
    const mtplx_model_info *info = mtplx_model_get_info(a->model);
    const mtplx_gen_stats *s = &r->stats;
    json_int_t in = (json_int_t)s->prompt_tokens, made = (json_int_t)s->generated_tokens;
    json_t *reasoning =
        r->reasoned ? json_stringn(r->reasoning.data, r->reasoning.len) : json_null();
    json_t *path = json_string(info->path); /* NULL when the path is not UTF-8 */
    json_t *o = json_pack("{s:o, s:s%, s:o, s:s, s:{s:I, s:I, s:I}, s:o}", "model",
                          path ? path : json_null(), "answer", r->answer.data ? r->answer.data : "",
                          r->answer.len, "reasoning", reasoning, "finish_reason", r->finish_reason,
                          "usage", "prompt_tokens", in, "completion_tokens", made, "total_tokens",
                          in + made, "stats", mx_stats_json(s));
    char *text = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    json_decref(o);
    if (!text)
        return mx_error_nomem(&a->err, "the answer as JSON", r->answer.len);
    mx_cli_printf(a->out, "%s\n", text);
    free(text);
    return MTPLX_OK;
}

static struct mx_grammar_arg grammar_arg(const struct ask *a)
{
    const struct mx_cli_value *v = a->args->values;
    return (struct mx_grammar_arg){v[ASK_SCHEMA].text, v[ASK_GRAMMAR].text, v[ASK_REGEX].text};
}

static mtplx_status answer(struct ask *a)
{
    const struct mx_cli_value *v = a->args->values;
    struct mx_grammar_arg rules = grammar_arg(a);
    struct mx_answer_request q = {
        .model = a->model,
        .prompt = a->prompt,
        .prompt_len = a->prompt_len,
        .options = {.sampling = sampling(a),
                    .max_tokens = (int)v[ASK_MAX_TOKENS].integer,
                    .cancel = mx_cli_cancel_flag()},
        .show_reasoning = shows_reasoning(a),
        .collect = v[ASK_JSON].on,
    };
    struct mx_answer r;
    set_depth(a, &q.options);
    mtplx_status st = mx_grammar_arg_compile(&rules, a->model, a->prompt, a->prompt_len,
                                             &q.options.grammar, &a->err);
    if (st != MTPLX_OK)
        return st;
    st = mx_answer_run(&q, a->out, &r, &a->err);
    mtplx_grammar_free(q.options.grammar);
    if (st == MTPLX_OK && v[ASK_JSON].on)
        st = print_json(a, &r);
    if (st == MTPLX_OK && r.reasoned && !r.answered && !mx_cli_signal())
        note(a, "the answer ended inside its reasoning (try more --max-tokens, or --no-think)");
    if (st == MTPLX_OK && v[ASK_STATS].on)
        mx_stats_print(&r.stats, stderr);
    mx_answer_free(&r);
    return st;
}

static mtplx_status check_arguments(struct ask *a)
{
    const char *system = a->args->values[ASK_SYSTEM].text;
    if (system && !mx_utf8_valid(system, strlen(system)))
        return mx_error(&a->err, MTPLX_ERR_ARGUMENT, "--system is not valid UTF-8 text");
    if (given(a, ASK_MERGE_ADAPTER) && on(a, ASK_MERGE_ADAPTER) && !given(a, ASK_MTP_ADAPTER))
        return mx_error(&a->err, MTPLX_ERR_ARGUMENT, "--merge-mtp-adapter needs --mtp-adapter");
    struct mx_grammar_arg rules = grammar_arg(a);
    mtplx_status st = mx_grammar_arg_check(&rules, &a->err);
    if (st == MTPLX_OK)
        st = check_draft_vocab(a);
    return st == MTPLX_OK ? mx_kv_quant_arg(a->args, ASK_KV_QUANT, &a->kv_quant, &a->err) : st;
}

static int run(const struct mx_cli_args *args, struct mx_cli_out *out)
{
    struct ask a = {.args = args, .out = out};
    int rc = MX_EXIT_USAGE; /* until the command line has proved sound */
    mx_strbuf_init(&a.question, 0);
    mtplx_status st = check_arguments(&a);
    if (st == MTPLX_OK)
        st = mx_prompt_gather(args->words, args->n_words, &a.question, &a.err);
    if (st != MTPLX_ERR_ARGUMENT)
        rc = MX_EXIT_FAILURE;
    if (st == MTPLX_OK)
        st = load_model(&a);
    if (st == MTPLX_OK)
        st = render_prompt(&a);
    if (st == MTPLX_OK && !mx_cli_signal())
        st = answer(&a);

    if (mx_cli_signal())
        rc = mx_cli_signal_exit();
    else if (st == MTPLX_OK)
        rc = MX_EXIT_OK;
    else
        mx_cli_complain("ask", "%s", a.err.message);
    mtplx_free(a.prompt);
    mtplx_model_free(a.model);
    mx_strbuf_free(&a.question);
    return rc;
}

const struct mx_cli_command mx_cli_ask = {
    .name = "ask",
    .alias = "run",
    .operands = "PROMPT...",
    .summary = "Answer one prompt and exit.",
    .details = "Answers one prompt. The answer is written to standard output as it is made. Text "
               "piped into standard input is the prompt, or follows it after an empty line; \"-\" "
               "alone reads standard input whatever it is.\n\n"
               "Ctrl-C ends the answer cleanly (exit code 130), a second one at once.",
    .flags = flags,
    .n_flags = ASK_FLAGS,
    .max_words = -1,
    .run = run,
};
