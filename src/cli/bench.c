/* mtplx bench: what a model does on this machine, and why. */
#include "tools/bench.h"

#include "base/file.h"
#include "base/strbuf.h"
#include "cli/commands.h"
#include "cli/model_arg.h"
#include "cli/signals.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    BENCH_ROUNDS,
    BENCH_TOKENS,
    BENCH_DEPTHS,
    BENCH_PROMPT,
    BENCH_PROMPT_TOKENS,
    BENCH_PREFILL,
    BENCH_CONTEXT,
    BENCH_QUICK,
    BENCH_JSON,
    BENCH_CSV,
    BENCH_QUIET,
    BENCH_MTP,
    BENCH_DEVICE,
    BENCH_THREADS,
    BENCH_PROFILE,
    BENCH_KV_QUANT,
    BENCH_PAGED_KV, /* follows its short name */
    BENCH_FLAGS,
};

#define MAX_LENGTH (1 << 24)

static const struct mx_cli_flag flags[BENCH_FLAGS] = {
    [BENCH_ROUNDS] = {.name = "rounds",
                      .kind = MX_CLI_INT,
                      .letter = 'r',
                      .min = 1,
                      .max = MX_BENCH_ROUNDS,
                      .fallback = "5, quick 2",
                      .help = "Rounds; each runs every variant once, medians are printed."},
    [BENCH_TOKENS] = {.name = "tokens",
                      .kind = MX_CLI_INT,
                      .letter = 'n',
                      .min = 4,
                      .max = 1 << 20,
                      .fallback = "64, quick 24",
                      .help = "Tokens decoded in a measurement."},
    [BENCH_DEPTHS] = {.name = "depths",
                      .kind = MX_CLI_TEXT,
                      .value = "LIST",
                      .fallback = "0..8, quick 0..3",
                      .help = "Draft depths to measure, as in 1,2,4..8; 0 always is."},
    [BENCH_PROMPT] = {.name = "prompt",
                      .kind = MX_CLI_TEXT,
                      .value = "TEXT",
                      .help = "Prompt to answer, in the chat template where there is one. "
                              "Acceptance depends on it."},
    [BENCH_PROMPT_TOKENS] = {.name = "prompt-tokens",
                             .kind = MX_CLI_INT,
                             .min = 1,
                             .max = MAX_LENGTH,
                             .fallback = "64, without --prompt",
                             .help = "Make a prompt of that many consecutive token ids."},
    [BENCH_PREFILL] = {.name = "prefill",
                       .kind = MX_CLI_TEXT,
                       .value = "LIST",
                       .fallback = "32,128,512,2048, quick 32,128",
                       .help = "Prompt lengths whose reading is timed."},
    [BENCH_CONTEXT] = {.name = "context",
                       .kind = MX_CLI_TEXT,
                       .value = "LIST",
                       .fallback = "128,4096,32768 as far as they fill within a minute, quick 128",
                       .help = "Context lengths behind which decoding is timed."},
    [BENCH_QUICK] = {.name = "quick",
                     .kind = MX_CLI_SWITCH,
                     .help = "A short run with rougher figures."},
    [BENCH_JSON] = {.name = "json",
                    .kind = MX_CLI_TEXT,
                    .value = "FILE",
                    .help = "Write all figures as JSON; - is standard output, without the table."},
    [BENCH_CSV] = {.name = "csv",
                   .kind = MX_CLI_TEXT,
                   .value = "FILE",
                   .help = "Write all figures as CSV; - is standard output, without the table."},
    [BENCH_QUIET] = {.name = "quiet",
                     .kind = MX_CLI_SWITCH,
                     .letter = 'q',
                     .help = "No progress on standard error."},
    [BENCH_MTP] = {.name = "mtp",
                   .kind = MX_CLI_SWITCH,
                   .negatable = true,
                   .env = "MTPLX_MTP",
                   .fallback = "on",
                   .help = "Load and use the MTP head."},
    [BENCH_DEVICE] = {.name = "device",
                      .kind = MX_CLI_CHOICE,
                      .choices = "auto cpu ref",
                      .env = "MTPLX_DEVICE",
                      .fallback = "auto",
                      .help = "What computes; ref is the slow float32 reference."},
    [BENCH_THREADS] = {.name = "threads",
                       .kind = MX_CLI_INT,
                       .letter = 'j',
                       .max = 1024,
                       .env = "MTPLX_THREADS",
                       .fallback = "0",
                       .help = "Worker threads; 0 is one for each usable CPU."},
    [BENCH_PROFILE] = {.name = "profile",
                       .kind = MX_CLI_CHOICE,
                       .choices = "fast exact",
                       .env = "MTPLX_PROFILE",
                       .fallback = "fast",
                       .help = "As in `mtplx ask`."},
    [BENCH_KV_QUANT] = MX_KV_QUANT_FLAG,
    [BENCH_PAGED_KV] = MX_PAGED_KV_FLAG,
};

struct bench_run {
    const struct mx_cli_args *args;
    struct mx_cli_out *out;
    struct mx_bench_options options;
    mtplx_model *model;
    int32_t *prompt;
    mtplx_kv_quant kv_quant;
    mtplx_error err;
};

static const struct mx_cli_value *value(const struct bench_run *b, int flag)
{
    return &b->args->values[flag];
}

/* ---- Lists ------------------------------------------------------------------------------------
 */

/* "1,2,4..8" into at most `most` increasing numbers of [low, high]; their count, or -1. */
static int parse_list(const char *text, long low, long high, int *out, int most)
{
    int n = 0;
    for (const char *p = text;; p++) {
        char *end;
        errno = 0;
        long from = *p >= '0' && *p <= '9' ? strtol(p, &end, 10) : -1, to = from;
        if (from < low || from > high || errno != 0)
            return -1;
        if (strncmp(end, "..", 2) == 0) {
            p = end + 2;
            to = *p >= '0' && *p <= '9' ? strtol(p, &end, 10) : -1;
            if (to < from || to > high || errno != 0)
                return -1;
        }
        for (; from <= to; from++) {
            if (n == most || (n > 0 && from <= out[n - 1]))
                return -1;
            out[n++] = (int)from;
        }
        p = end;
        if (*p == '\0')
            return n;
        if (*p != ',')
            return -1;
    }
}

static mtplx_status list_flag(struct bench_run *b, int flag, const char *fallback, long low,
                              long high, int *out, int *n)
{
    const char *text = value(b, flag)->text ? value(b, flag)->text : fallback;
    *n = parse_list(text, low, high, out, MX_BENCH_POINTS);
    if (*n > 0)
        return MTPLX_OK;
    return mx_error(&b->err, MTPLX_ERR_ARGUMENT,
                    "--%s wants at most %d increasing numbers from %ld to %ld, such as 1,2,4..8, "
                    "not '%.60s'",
                    flags[flag].name, MX_BENCH_POINTS, low, high, text);
}

static mtplx_status read_options(struct bench_run *b)
{
    struct mx_bench_options *o = &b->options;
    bool quick = value(b, BENCH_QUICK)->on;
    int depths[MX_BENCH_POINTS], n = 0;
    o->rounds = value(b, BENCH_ROUNDS)->source ? (int)value(b, BENCH_ROUNDS)->integer
                : quick                        ? 2
                                               : 5;
    o->tokens = value(b, BENCH_TOKENS)->source ? (int)value(b, BENCH_TOKENS)->integer
                : quick                        ? 24
                                               : 64;
    o->stream_bytes = (size_t)(quick ? 128 : 512) << 20;
    o->patient = value(b, BENCH_CONTEXT)->source != MX_CLI_DEFAULT;
    o->cancel = mx_cli_cancel_flag();
    mtplx_status st =
        list_flag(b, BENCH_DEPTHS, quick ? "0..3" : "0..8", 0, MTPLX_MAX_DEPTH, depths, &n);
    for (int i = 0; i < n; i++)
        o->depths[depths[i]] = true;
    if (st == MTPLX_OK)
        st = list_flag(b, BENCH_PREFILL, quick ? "32,128" : "32,128,512,2048", 1, MAX_LENGTH,
                       o->lengths, &o->n_lengths);
    if (st == MTPLX_OK)
        st = list_flag(b, BENCH_CONTEXT, quick ? "128" : "128,4096,32768", 1, MAX_LENGTH,
                       o->contexts, &o->n_contexts);
    if (st == MTPLX_OK && value(b, BENCH_PROMPT)->text && value(b, BENCH_PROMPT_TOKENS)->source)
        st = mx_error(&b->err, MTPLX_ERR_ARGUMENT,
                      "--prompt and --prompt-tokens exclude each other");
    return st;
}

/* ---- Output files -----------------------------------------------------------------------------
 */

static bool is_stdout(const char *path)
{
    return path && strcmp(path, "-") == 0;
}

/* A long run should not end in a file that cannot be written: its directory is looked at first. */
static mtplx_status check_file(struct bench_run *b, const char *path)
{
    if (!path || is_stdout(path))
        return MTPLX_OK;
    if (mx_dir_exists(path))
        return mx_error(&b->err, MTPLX_ERR_ARGUMENT, "'%.200s' is a directory, not a file", path);
    const char *slash = strrchr(path, '/');
    struct mx_strbuf dir;
    mx_strbuf_init(&dir, 0);
    if (slash)
        mx_strbuf_append(&dir, path, (size_t)(slash - path) + 1);
    else
        mx_strbuf_puts(&dir, ".");
    bool good = !dir.failed && mx_dir_exists(dir.data) && access(dir.data, W_OK) == 0;
    mx_strbuf_free(&dir);
    return good ? MTPLX_OK
                : mx_error(&b->err, MTPLX_ERR_ARGUMENT,
                           "'%.200s' cannot be written: its directory is missing or read-only",
                           path);
}

static mtplx_status write_report(struct bench_run *b, const char *path, char *text)
{
    mtplx_status st = MTPLX_OK;
    if (path && !text)
        st = mx_error_nomem(&b->err, "the report", 0);
    else if (is_stdout(path))
        mx_cli_puts(b->out, text);
    else if (path)
        st = mx_file_write(path, text, strlen(text), &b->err);
    free(text);
    return st;
}

static mtplx_status report(struct bench_run *b, const struct mx_bench_result *r)
{
    const char *json = value(b, BENCH_JSON)->text, *csv = value(b, BENCH_CSV)->text;
    mtplx_status st = write_report(b, json, json ? mx_bench_json(b->model, r) : NULL);
    if (st == MTPLX_OK)
        st = write_report(b, csv, csv ? mx_bench_csv(b->model, r) : NULL);
    if (st != MTPLX_OK || is_stdout(json) || is_stdout(csv))
        return st;
    char *text = mx_bench_text(b->model, r);
    if (!text)
        return mx_error_nomem(&b->err, "the report", 0);
    mx_cli_write_model_text(b->out, text, strlen(text)); /* the path may hold anything */
    free(text);
    return MTPLX_OK;
}

/* ---- Model and prompt -------------------------------------------------------------------------
 */

static mtplx_status load_model(struct bench_run *b)
{
    const char *path = b->args->n_words > 0 ? b->args->words[0] : NULL;
    const struct mx_cli_value *mtp = value(b, BENCH_MTP);
    mtplx_load_options options = {.device = value(b, BENCH_DEVICE)->text,
                                  .threads = (int)value(b, BENCH_THREADS)->integer,
                                  .profile = mx_profile_arg(value(b, BENCH_PROFILE)->text),
                                  .kv_quant = b->kv_quant,
                                  .no_mtp = mtp->source != MX_CLI_DEFAULT && !mtp->on};
    mtplx_status st = path ? mx_model_arg_check(path, &b->err) : MTPLX_OK;
    char *embedded = path ? NULL : mtplx_embedded_model_path(&b->err);
    if (st == MTPLX_OK && (path || embedded))
        b->model = mtplx_model_load(path ? path : embedded, &options, &b->err);
    mtplx_free(embedded);
    if (b->model && !mtplx_model_get_info(b->model)->has_mtp &&
        value(b, BENCH_DEPTHS)->source == MX_CLI_EXPLICIT)
        mx_cli_complain("bench", "no MTP head is loaded, so --depths is ignored");
    return b->model ? MTPLX_OK : b->err.status;
}

static mtplx_status encode_prompt(struct bench_run *b, const char *text)
{
    size_t len = strlen(text);
    mtplx_error unused = {0};
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", text);
    char *json = messages ? json_dumps(messages, JSON_COMPACT) : NULL;
    char *prompt = json ? mtplx_chat_render(b->model, json, NULL, NULL, true, &len, &unused) : NULL;
    b->prompt = mtplx_encode(b->model, prompt ? prompt : text, prompt ? len : strlen(text), false,
                             &b->options.prompt_len, &b->err);
    free(json);
    json_decref(messages);
    mtplx_free(prompt);
    return b->prompt ? MTPLX_OK : b->err.status;
}

/* Consecutive ids from an eighth of the vocabulary on, where ordinary tokens are. */
static mtplx_status make_prompt(struct bench_run *b, size_t n)
{
    int vocab = mtplx_model_get_info(b->model)->vocab_size;
    b->prompt = malloc(n * sizeof *b->prompt);
    if (!b->prompt)
        return mx_error_nomem(&b->err, "a prompt", n * sizeof *b->prompt);
    for (size_t i = 0; i < n; i++)
        b->prompt[i] = (int32_t)((size_t)(vocab / 8) + i % (size_t)(vocab - vocab / 4));
    b->options.prompt_len = n;
    return MTPLX_OK;
}

static mtplx_status prepare_prompt(struct bench_run *b)
{
    const char *text = value(b, BENCH_PROMPT)->text;
    size_t n =
        value(b, BENCH_PROMPT_TOKENS)->source ? (size_t)value(b, BENCH_PROMPT_TOKENS)->integer : 64;
    mtplx_status st = text ? encode_prompt(b, text) : make_prompt(b, n);
    b->options.prompt = b->prompt;
    return st;
}

/* ---- Run --------------------------------------------------------------------------------------
 */

static void show_progress(void *arg, const char *what)
{
    (void)arg;
    mx_cli_complain("bench", "measuring %s", what);
}

static mtplx_status measure(struct bench_run *b)
{
    struct mx_bench_result r;
    if (!value(b, BENCH_QUIET)->on && isatty(STDERR_FILENO) == 1)
        b->options.progress = show_progress;
    mtplx_status st = mx_bench_run(b->model, &b->options, &r, &b->err);
    return st == MTPLX_OK && !mx_cli_signal() ? report(b, &r) : st;
}

/* Two reports cannot share standard output. */
static mtplx_status check_outputs(struct bench_run *b)
{
    const char *json = value(b, BENCH_JSON)->text, *csv = value(b, BENCH_CSV)->text;
    if (json && csv && is_stdout(json) && is_stdout(csv))
        return mx_error(&b->err, MTPLX_ERR_ARGUMENT,
                        "--json - and --csv - would mix; give one of them a file");
    return MTPLX_OK;
}

static int run(const struct mx_cli_args *args, struct mx_cli_out *out)
{
    struct bench_run b = {.args = args, .out = out};
    int rc = MX_EXIT_USAGE; /* until the command line has proved sound */
    mtplx_status st = read_options(&b);
    if (st == MTPLX_OK)
        st = check_file(&b, value(&b, BENCH_JSON)->text);
    if (st == MTPLX_OK)
        st = check_file(&b, value(&b, BENCH_CSV)->text);
    if (st == MTPLX_OK)
        st = check_outputs(&b);
    if (st == MTPLX_OK)
        st = mx_kv_quant_arg(args, BENCH_KV_QUANT, &b.kv_quant, &b.err);
    if (st == MTPLX_OK) {
        rc = MX_EXIT_FAILURE;
        st = load_model(&b);
    }
    if (st == MTPLX_OK)
        st = prepare_prompt(&b);
    if (st == MTPLX_OK && !mx_cli_signal())
        st = measure(&b);

    if (mx_cli_signal())
        rc = mx_cli_signal_exit();
    else if (st == MTPLX_OK)
        rc = MX_EXIT_OK;
    else
        mx_cli_complain("bench", "%s", b.err.message);
    mtplx_model_free(b.model);
    free(b.prompt);
    return rc;
}

const struct mx_cli_command mx_cli_bench = {
    .name = "bench",
    .operands = "[MODEL]",
    .summary = "Measure decoding, drafting and prefill of a model.",
    .details =
        "Compares plain decoding with drafting at several depths, interleaved in one run, and says "
        "where the time goes: the cost of verifying n rows, of a draft step, acceptance by "
        "position, and the shares of the machine's measured memory bandwidth and arithmetic peak. "
        "MODEL is the built-in nano model unless given.\n\n"
        "Nothing is written before the end, so an interrupt leaves no half-written file.",
    .flags = flags,
    .n_flags = BENCH_FLAGS,
    .max_words = 1,
    .run = run,
};
