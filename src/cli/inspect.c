/* mtplx inspect: what a checkpoint is and whether it runs here. */
#include "tools/inspect.h"

#include "base/strbuf.h"
#include "cli/commands.h"
#include "cli/model_arg.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>

enum { INSPECT_JSON, INSPECT_FLAGS };

static const struct mx_cli_flag flags[INSPECT_FLAGS] = {
    [INSPECT_JSON] = {.name = "json", .kind = MX_CLI_SWITCH, .help = "Print one JSON object."},
};

/* ---- JSON --------------------------------------------------------------------------------- */

/* null also for what is not UTF-8, such as an odd path. */
static json_t *text_or_null(const char *s)
{
    json_t *text = s ? json_string(s) : NULL;
    return text ? text : json_null();
}

static json_t *number_or_null(int64_t n)
{
    return n > 0 ? json_integer(n) : json_null();
}

static json_t *dtypes_json(const struct mx_inspect *r)
{
    json_t *o = json_object();
    for (int t = 0; t < MX_INSPECT_DTYPES; t++) {
        const struct mx_inspect_dtype *d = &r->dtypes[t];
        if (d->tensors > 0)
            json_object_set_new(o, mx_inspect_dtype_name(t),
                                json_pack("{s:I, s:I}", "tensors", (json_int_t)d->tensors, "bytes",
                                          (json_int_t)d->bytes));
    }
    return o;
}

static json_t *quants_json(const struct mx_inspect *r)
{
    json_t *list = json_array();
    for (int i = 0; i < r->n_quants; i++) {
        const struct mx_inspect_quant *q = &r->quants[i];
        json_array_append_new(
            list, q->type ? json_pack("{s:s, s:i}", "type", q->type, "matrices", q->matrices)
                          : json_pack("{s:i, s:i, s:i}", "bits", q->bits, "group_size", q->group,
                                      "matrices", q->matrices));
    }
    return list;
}

static json_t *mtp_json(const struct mx_inspect *r)
{
    return json_pack("{s:b, s:o, s:I, s:o, s:o, s:I}", "present", r->has_mtp, "file",
                     text_or_null(r->mtp_source), "parameters", (json_int_t)r->mtp_parameters,
                     "norm_encoding", text_or_null(r->mtp_norms), "draft_vocab",
                     number_or_null(r->draft_vocab), "draft_head_bytes",
                     (json_int_t)r->draft_head_bytes);
}

static json_t *state_json(const struct mx_inspect *r)
{
    json_t *kv = json_object();
    for (int f = 0; f <= MX_KV_Q4; f++)
        if (r->kv_token_bytes[f] > 0)
            json_object_set_new(kv, mx_kv_format_name((enum mx_kv_format)f),
                                json_integer((json_int_t)r->kv_token_bytes[f]));
    return json_pack("{s:o, s:I}", "kv_token_bytes", kv, "recurrent_bytes",
                     (json_int_t)r->recurrent_bytes);
}

static json_t *device_json(const struct mx_inspect *r)
{
    return json_pack("{s:o, s:o, s:i, s:i, s:o}", "name", text_or_null(r->device), "int8_kernels",
                     text_or_null(r->int8_kernels), "formats_checked", r->formats_checked,
                     "formats_broken", r->formats_broken, "note", text_or_null(r->device_note));
}

static json_t *report_json(const struct mx_inspect *r)
{
    json_t *o = json_object(), *reasons = json_array();
    for (int i = 0; i < r->n_reasons; i++)
        json_array_append_new(reasons, json_string(r->reasons[i]));
    json_object_set_new(o, "path", text_or_null(r->path));
    json_object_set_new(o, "verdict", json_string(mx_verdict_name(r->verdict)));
    json_object_set_new(o, "exit_code", json_integer(r->verdict));
    json_object_set_new(o, "reasons", reasons);
    json_object_set_new(o, "architecture", text_or_null(r->architecture));
    json_object_set_new(o, "class", text_or_null(r->class_name));
    json_object_set_new(o, "model_type", text_or_null(r->model_type));
    json_object_set_new(o, "layers", number_or_null(r->layers));
    json_object_set_new(o, "attention_layers", json_integer(r->attention_layers));
    json_object_set_new(o, "recurrent_layers", json_integer(r->recurrent_layers));
    json_object_set_new(o, "hidden_size", number_or_null(r->hidden));
    json_object_set_new(o, "intermediate_size", number_or_null(r->intermediate));
    json_object_set_new(o, "attention_heads", number_or_null(r->heads));
    json_object_set_new(o, "kv_heads", number_or_null(r->kv_heads));
    json_object_set_new(o, "head_dim", number_or_null(r->head_dim));
    json_object_set_new(o, "vocab_size", number_or_null(r->vocab));
    json_object_set_new(o, "context_length", number_or_null(r->context));
    json_object_set_new(o, "tensors", json_integer((json_int_t)r->tensors));
    json_object_set_new(o, "weight_bytes", json_integer((json_int_t)r->bytes));
    json_object_set_new(o, "parameters", json_integer((json_int_t)r->parameters));
    json_object_set_new(o, "state", state_json(r));
    json_object_set_new(o, "dtypes", dtypes_json(r));
    json_object_set_new(o, "quantization", quants_json(r));
    json_object_set_new(o, "norm_encoding", text_or_null(r->trunk_norms));
    json_object_set_new(o, "mtp", mtp_json(r));
    json_object_set_new(o, "tokenizer", json_boolean(r->has_tokenizer));
    json_object_set_new(o, "chat_template", json_boolean(r->has_chat_template));
    json_object_set_new(o, "thinking_switch", json_boolean(r->template_thinks));
    json_object_set_new(o, "device", device_json(r));
    return o;
}

static void print_json(const struct mx_inspect *r, struct mx_cli_out *out)
{
    json_t *o = report_json(r);
    char *text = json_dumps(o, JSON_INDENT(2));
    json_decref(o);
    if (text)
        mx_cli_printf(out, "%s\n", text);
    else
        out->error = ENOMEM;
    free(text);
}

/* ---- Text --------------------------------------------------------------------------------- */

static void human_bytes(struct mx_strbuf *b, uint64_t n)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double x = (double)n;
    size_t u = 0;
    while (x >= 1024 && u + 1 < sizeof units / sizeof *units) {
        x /= 1024;
        u++;
    }
    mx_strbuf_printf(b, u == 0 ? "%.0f %s" : "%.1f %s", x, units[u]);
}

static void human_count(struct mx_strbuf *b, uint64_t n)
{
    double x = (double)n;
    if (n >= 1000000000)
        mx_strbuf_printf(b, "%.2f billion", x / 1e9);
    else if (n >= 1000000)
        mx_strbuf_printf(b, "%.1f million", x / 1e6);
    else
        mx_strbuf_printf(b, "%.0f", x);
}

static void label(struct mx_strbuf *b, const char *name)
{
    mx_strbuf_printf(b, "%-14s", name);
}

static void row(struct mx_strbuf *b, const char *name, const char *text)
{
    label(b, name);
    mx_strbuf_printf(b, "%s\n", text);
}

static void architecture(struct mx_strbuf *b, const struct mx_inspect *r)
{
    label(b, "architecture");
    mx_strbuf_printf(b, "%s (model_type %s%s%s)\n", r->architecture ? r->architecture : "unknown",
                     r->model_type && *r->model_type ? r->model_type : "not stated",
                     r->class_name ? ", " : "", r->class_name ? r->class_name : "");
}

static void part(struct mx_strbuf *b, const char *fmt, int64_t n)
{
    if (n > 0)
        mx_strbuf_printf(b, fmt, (long long)n);
}

static void geometry(struct mx_strbuf *b, const struct mx_inspect *r)
{
    label(b, "layers");
    mx_strbuf_printf(b, "%lld", (long long)r->layers);
    if (r->attention_layers + r->recurrent_layers > 0)
        mx_strbuf_printf(b, " (%lld attention, %lld recurrent)", (long long)r->attention_layers,
                         (long long)r->recurrent_layers);
    mx_strbuf_puts(b, "\n");
    label(b, "geometry");
    mx_strbuf_printf(b, "hidden %lld", (long long)r->hidden);
    part(b, ", MLP %lld", r->intermediate);
    part(b, ", %lld heads", r->heads);
    part(b, ", %lld KV heads", r->kv_heads);
    part(b, ", head dim %lld", r->head_dim);
    mx_strbuf_puts(b, "\n");
    label(b, "vocabulary");
    mx_strbuf_printf(b, "%lld tokens, context %lld\n", (long long)r->vocab, (long long)r->context);
}

static void weights(struct mx_strbuf *b, const struct mx_inspect *r)
{
    bool first = true;
    label(b, "weights");
    human_count(b, r->parameters);
    mx_strbuf_puts(b, " parameters, ");
    human_bytes(b, r->bytes);
    mx_strbuf_printf(b, " in %llu tensors\n", (unsigned long long)r->tensors);
    label(b, "stored as");
    for (int t = 0; t < MX_INSPECT_DTYPES; t++) {
        if (r->dtypes[t].tensors == 0)
            continue;
        mx_strbuf_printf(b, "%s%s ", first ? "" : ", ", mx_inspect_dtype_name(t));
        human_bytes(b, r->dtypes[t].bytes);
        first = false;
    }
    mx_strbuf_puts(b, "\n");
    label(b, "quantisation");
    for (int i = 0; i < r->n_quants; i++) {
        const struct mx_inspect_quant *q = &r->quants[i];
        if (q->type)
            mx_strbuf_printf(b, "%sGGUF %s (%d matrices)", i ? ", " : "", q->type, q->matrices);
        else
            mx_strbuf_printf(b, "%s%d-bit group %d (%d matrices)", i ? ", " : "", q->bits, q->group,
                             q->matrices);
    }
    mx_strbuf_puts(b, r->n_quants ? "\n" : "none\n");
}

static void state(struct mx_strbuf *b, const struct mx_inspect *r)
{
    if (r->kv_token_bytes[MX_KV_F16] > 0) {
        label(b, "KV cache");
        human_bytes(b, r->kv_token_bytes[MX_KV_F16]);
        mx_strbuf_puts(b, " a token");
        for (int f = MX_KV_Q8; f <= MX_KV_Q4 && r->kv_token_bytes[f] > 0; f++) {
            mx_strbuf_printf(b, ", %s ", mx_kv_format_name((enum mx_kv_format)f));
            human_bytes(b, r->kv_token_bytes[f]);
        }
        mx_strbuf_puts(b, "\n");
    }
    if (r->recurrent_bytes > 0) {
        label(b, "state");
        human_bytes(b, r->recurrent_bytes);
        mx_strbuf_puts(b, " a sequence\n");
    }
}

static void loaded(struct mx_strbuf *b, const struct mx_inspect *r)
{
    label(b, "MTP head");
    if (r->has_mtp) {
        human_count(b, r->mtp_parameters);
        mx_strbuf_printf(b, " parameters, from %s\n", r->mtp_source ? r->mtp_source : "?");
    } else {
        mx_strbuf_puts(b, "none\n");
    }
    if (r->has_mtp) {
        label(b, "drafts");
        if (r->draft_head_bytes > 0) {
            mx_strbuf_printf(b, "%d of %lld tokens, from a copy of their part of the head: ",
                             r->draft_vocab, (long long)r->vocab);
            human_bytes(b, r->draft_head_bytes);
        } else {
            mx_strbuf_puts(b, "all tokens");
        }
        mx_strbuf_puts(b, "\n");
    }
    label(b, "norms");
    mx_strbuf_printf(b, "%s", r->trunk_norms ? r->trunk_norms : "unknown");
    if (r->mtp_norms)
        mx_strbuf_printf(b, ", MTP %s", r->mtp_norms);
    mx_strbuf_puts(b, "\n");
    label(b, "tokenizer");
    if (r->has_tokenizer)
        mx_strbuf_printf(b, "%d tokens\n", r->tokenizer_size);
    else
        mx_strbuf_puts(b, "none\n");
    row(b, "chat template",
        !r->has_chat_template ? "none"
        : r->template_thinks  ? "yes, with thinking"
                              : "yes");
}

static void device(struct mx_strbuf *b, const struct mx_inspect *r)
{
    if (!r->device)
        return;
    label(b, "device");
    mx_strbuf_puts(b, r->device);
    if (r->int8_kernels)
        mx_strbuf_printf(b, " with %s kernels, %d of %d weight formats pass the self-check",
                         r->int8_kernels, r->formats_checked - r->formats_broken,
                         r->formats_checked);
    mx_strbuf_puts(b, "\n");
    if (r->device_note)
        row(b, "", r->device_note);
}

static void print_text(const struct mx_inspect *r, struct mx_cli_out *out)
{
    struct mx_strbuf b;
    mx_strbuf_init(&b, 0);
    row(&b, "model", r->path);
    architecture(&b, r);
    geometry(&b, r);
    if (r->weights_read)
        weights(&b, r);
    if (r->architecture && r->verdict != MX_UNSUPPORTED)
        loaded(&b, r);
    state(&b, r);
    device(&b, r);
    row(&b, "verdict", mx_verdict_name(r->verdict));
    for (int i = 0; i < r->n_reasons; i++)
        row(&b, "", r->reasons[i]);
    if (b.failed)
        out->error = ENOMEM;
    else
        mx_cli_write_model_text(out, b.data, b.len); /* names come from the checkpoint */
    mx_strbuf_free(&b);
}

static int run(const struct mx_cli_args *args, struct mx_cli_out *out)
{
    struct mx_inspect r = {0};
    mtplx_error err = {0};
    mtplx_status st = mx_model_arg_check(args->words[0], &err);
    if (st == MTPLX_OK)
        st = mx_inspect(&r, args->words[0], &err);
    if (st != MTPLX_OK)
        mx_cli_complain("inspect", "%s", err.message);
    else if (args->values[INSPECT_JSON].on)
        print_json(&r, out);
    else
        print_text(&r, out);
    int rc = st == MTPLX_OK ? (int)r.verdict : MX_EXIT_FAILURE;
    mx_inspect_free(&r);
    return rc;
}

const struct mx_cli_command mx_cli_inspect = {
    .name = "inspect",
    .operands = "MODEL",
    .summary = "Report what a checkpoint is and whether it runs here.",
    .details = "Reads config.json, the headers of the weight files, the tokenizer and the chat "
               "template of the directory MODEL (or the headers of a GGUF file), and binds the "
               "weights as a run would.\n\n"
               "Exit codes: 0 verified, 2 no MTP head, 3 not verified (the report says why; a "
               "broken MTP head may need --no-mtp to run at all), 4 unsupported "
               "architecture, 1 error.",
    .flags = flags,
    .n_flags = INSPECT_FLAGS,
    .min_words = 1,
    .max_words = 1,
    .run = run,
};
