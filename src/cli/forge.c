/* mtplx forge quantize: an MLX affine copy of a checkpoint. */
#include "tools/forge_quantize.h"

#include "cli/commands.h"
#include "cli/model_arg.h"
#include "cli/signals.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    FORGE_BITS,
    FORGE_GROUP,
    FORGE_EMBED,
    FORGE_MTP,
    FORGE_DTYPE,
    FORGE_SHARD,
    FORGE_FORCE,
    FORGE_THREADS,
    FORGE_JSON,
    FORGE_QUIET,
    FORGE_FLAGS,
};

enum { DEFAULT_BITS = 4, DEFAULT_GROUP = 64 };

static const struct mx_cli_flag flags[FORGE_FLAGS] = {
    [FORGE_BITS] = {.name = "bits",
                    .kind = MX_CLI_CHOICE,
                    .choices = "2 3 4 5 6 8",
                    .value = "B",
                    .fallback = "4",
                    .help = "Bits of a weight."},
    [FORGE_GROUP] = {.name = "group-size",
                     .kind = MX_CLI_CHOICE,
                     .choices = "32 64 128",
                     .value = "G",
                     .fallback = "64",
                     .help = "Weights that share a scale and a bias. A matrix it does not divide "
                             "gets a smaller one."},
    [FORGE_EMBED] = {.name = "embed-bits",
                     .kind = MX_CLI_CHOICE,
                     .choices = "2 3 4 5 6 8 16",
                     .value = "B",
                     .fallback = "as --bits",
                     .help = "Bits of embeddings and output head; 16 leaves them as stored."},
    [FORGE_MTP] = {.name = "mtp-bits",
                   .kind = MX_CLI_CHOICE,
                   .choices = "2 3 4 5 6 8 16",
                   .value = "B",
                   .fallback = "as --bits",
                   .help = "Bits of the MTP head; 16 leaves it as stored."},
    [FORGE_DTYPE] = {.name = "dtype",
                     .kind = MX_CLI_CHOICE,
                     .choices = "bf16 f16",
                     .value = "TYPE",
                     .fallback = "as stored",
                     .help = "Type of scales and biases and of 16-bit tensors that are kept."},
    [FORGE_SHARD] = {.name = "shard-size",
                     .kind = MX_CLI_INT,
                     .min = 1,
                     .max = 2048,
                     .value = "MIB",
                     .fallback = "1024",
                     .help = "Largest weight file; also bounds the memory that is needed."},
    [FORGE_FORCE] = {.name = "force",
                     .kind = MX_CLI_SWITCH,
                     .letter = 'f',
                     .help = "Replace OUT when it exists and holds a model."},
    [FORGE_THREADS] = {.name = "threads",
                       .kind = MX_CLI_INT,
                       .letter = 'j',
                       .max = 1024,
                       .env = "MTPLX_THREADS",
                       .fallback = "0",
                       .help = "Worker threads; 0 is one for each usable CPU."},
    [FORGE_JSON] = {.name = "json",
                    .kind = MX_CLI_SWITCH,
                    .help = "Print the summary as one JSON object."},
    [FORGE_QUIET] = {.name = "quiet",
                     .kind = MX_CLI_SWITCH,
                     .letter = 'q',
                     .help = "Print nothing when it works."},
};

static double relative_error(const struct mx_forge_part_report *p)
{
    return p->squared_weight > 0 ? p->squared_error / p->squared_weight : 0;
}

static double bits_per_weight(uint64_t bytes, uint64_t weights)
{
    return weights > 0 ? 8.0 * (double)bytes / (double)weights : 0;
}

static void print_text(const struct mx_forge_report *r, const char *path, struct mx_cli_out *out)
{
    const double mib = 1 << 20;
    mx_cli_printf(out, "%s: %.1f MiB -> %.1f MiB, %.2f bits per weight, %d file%s\n", path,
                  (double)r->bytes_in / mib, (double)r->bytes_out / mib,
                  bits_per_weight(r->bytes_out, r->weights), r->files, r->files == 1 ? "" : "s");
    mx_cli_printf(out, "  %-17s %9s %10s %7s %16s\n", "part", "matrices", "MiB", "bits",
                  "relative error");
    for (int i = 0; i < MX_FORGE_PARTS; i++) {
        const struct mx_forge_part_report *p = &r->parts[i];
        if (p->matrices > 0)
            mx_cli_printf(out, "  %-17s %9llu %10.1f %7.2f %16.2e\n",
                          mx_forge_part_name((enum mx_forge_part)i),
                          (unsigned long long)p->matrices, (double)p->bytes / mib,
                          bits_per_weight(p->bytes, p->weights), relative_error(p));
    }
    mx_cli_printf(out, "  %-17s %9llu %10.1f\n", "kept as stored",
                  (unsigned long long)r->kept_tensors, (double)r->kept_bytes / mib);
    if (r->skipped_files > 0)
        mx_cli_printf(out, "  %d large file%s not copied\n", r->skipped_files,
                      r->skipped_files == 1 ? " was" : "s were");
}

static json_t *parts_json(const struct mx_forge_report *r)
{
    json_t *list = json_array();
    for (int i = 0; i < MX_FORGE_PARTS; i++) {
        const struct mx_forge_part_report *p = &r->parts[i];
        if (p->matrices > 0)
            json_array_append_new(
                list, json_pack("{s:s, s:I, s:I, s:I, s:f}", "part",
                                mx_forge_part_name((enum mx_forge_part)i), "matrices",
                                (json_int_t)p->matrices, "weights", (json_int_t)p->weights, "bytes",
                                (json_int_t)p->bytes, "relative_squared_error", relative_error(p)));
    }
    return list;
}

static void print_json(const struct mx_forge_report *r, const char *path, struct mx_cli_out *out)
{
    json_t *where = json_string(path); /* NULL when the path is not UTF-8 */
    json_t *o =
        json_pack("{s:o, s:I, s:I, s:f, s:i, s:I, s:I, s:o}", "path", where ? where : json_null(),
                  "bytes_before", (json_int_t)r->bytes_in, "bytes_after", (json_int_t)r->bytes_out,
                  "bits_per_weight", bits_per_weight(r->bytes_out, r->weights), "files", r->files,
                  "kept_tensors", (json_int_t)r->kept_tensors, "kept_bytes",
                  (json_int_t)r->kept_bytes, "parts", parts_json(r));
    char *text = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    json_decref(o);
    if (text)
        mx_cli_printf(out, "%s\n", text);
    else
        out->error = ENOMEM;
    free(text);
}

/* A counter on one line of a terminal; arg is the percentage shown last. */
static void show_progress(void *arg, uint64_t done, uint64_t total)
{
    int *shown = arg, now = total > 0 ? (int)(100.0 * (double)done / (double)total) : 100;
    if (now == *shown)
        return;
    *shown = now;
    fprintf(stderr, "\rquantising %3d%%%s", now, done == total ? "\r               \r" : "");
}

static int number_or(const struct mx_cli_value *v, int fallback)
{
    return v->source == MX_CLI_DEFAULT ? fallback : (int)v->integer;
}

static struct mx_forge_options options(const struct mx_cli_args *args, int *shown)
{
    const struct mx_cli_value *v = args->values;
    struct mx_forge_options o = {
        .in = args->words[0],
        .out = args->words[1],
        .bits = number_or(&v[FORGE_BITS], DEFAULT_BITS),
        .group = number_or(&v[FORGE_GROUP], DEFAULT_GROUP),
        .embed_bits = number_or(&v[FORGE_EMBED], 0),
        .mtp_bits = number_or(&v[FORGE_MTP], 0),
        .force = v[FORGE_FORCE].on,
        .threads = (int)v[FORGE_THREADS].integer,
        .file_bytes = (uint64_t)v[FORGE_SHARD].integer << 20,
        .cancel = mx_cli_cancel_flag(),
        .progress_arg = shown,
    };
    if (v[FORGE_DTYPE].text)
        o.dtype = strcmp(v[FORGE_DTYPE].text, "f16") == 0 ? MX_F16 : MX_BF16;
    if (!v[FORGE_QUIET].on && isatty(STDERR_FILENO) == 1)
        o.progress = show_progress;
    return o;
}

static int run(const struct mx_cli_args *args, struct mx_cli_out *out)
{
    int shown = -1;
    struct mx_forge_options o = options(args, &shown);
    struct mx_forge_report r;
    mtplx_error err = {0};
    mtplx_status st = mx_model_arg_check(o.in, &err);
    if (st == MTPLX_OK)
        st = mx_forge_quantize(&o, &r, &err);
    if (st != MTPLX_OK && shown >= 0)
        fputc('\n', stderr);
    if (st == MTPLX_ERR_CANCELLED)
        return mx_cli_signal_exit();
    if (st != MTPLX_OK) {
        mx_cli_complain("forge quantize", "%s", err.message);
        return MX_EXIT_FAILURE;
    }
    if (args->values[FORGE_JSON].on)
        print_json(&r, o.out, out);
    else if (!args->values[FORGE_QUIET].on)
        print_text(&r, o.out, out);
    return MX_EXIT_OK;
}

const struct mx_cli_command mx_cli_forge_quantize = {
    .name = "forge quantize",
    .operands = "IN OUT",
    .summary = "Write a quantised copy of a checkpoint.",
    .details =
        "Writes an MLX affine copy of the checkpoint directory IN to the new directory OUT, "
        "which appears when it is complete. Norms, convolutions, gates and other small or "
        "sensitive tensors stay as they are. The same input and flags give the same "
        "bytes.\n\n"
        "Greedy answers of the copy differ from the original's; `relative error` is the mean "
        "squared error of the weights over their mean square.",
    .flags = flags,
    .n_flags = FORGE_FLAGS,
    .min_words = 2,
    .max_words = 2,
    .run = run,
};
