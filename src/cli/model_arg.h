/* The model directory that a command line names. */
#ifndef MX_CLI_MODEL_ARG_H
#define MX_CLI_MODEL_ARG_H

#include "base/error.h"
#include "cli/args.h"

/* Checks that `path` is a directory with a config.json, with a sentence that says what is wrong
 * otherwise. Errors: ARGUMENT. */
mtplx_status mx_model_arg_check(const char *path, mtplx_error *err);

/* The profile that a flag names; NULL, when it was not given, leaves the choice to the library. */
mtplx_profile mx_profile_arg(const char *word);

/* Tokens that may be drafted: "full" (-1) or a number; 0 when it is neither. */
int mx_draft_vocab_arg(const char *text);

/* The policy that a word of MX_DEPTH_POLICIES names ("none" is a fixed depth). */
#define MX_DEPTH_POLICIES "none auto streak expected_value cost position_ema"
mtplx_depth_policy mx_depth_policy_arg(const char *word);

/* Rows of a flag table: how KV cache entries are stored, under its short and its long name. */
#define MX_KV_QUANT_FLAG                                                                           \
    {                                                                                              \
        .name = "kv-quant", .kind = MX_CLI_TEXT, .value = "off|q8|q6|q4",                          \
        .env = "MTPLX_PAGED_KV_QUANT", .fallback = "off",                                          \
        .help = "Store the KV cache in 8, 6 or 4 bits: less memory, slightly other answers."       \
    }
#define MX_PAGED_KV_FLAG                                                                           \
    {                                                                                              \
        .name = "paged-kv-quantization", .kind = MX_CLI_TEXT, .value = "off|q8|q6|q4",             \
        .help = "The same as --kv-quant."                                                          \
    }

/* The setting of the two flags at `flag` (the short name) and `flag + 1` in a table; AUTO when
 * neither was given. Errors: ARGUMENT, naming the flag or the variable. */
mtplx_status mx_kv_quant_arg(const struct mx_cli_args *args, int flag, mtplx_kv_quant *out,
                             mtplx_error *err);

/* Loads the model at `path`, or the one that ships with mtplx when it is NULL. Errors: ARGUMENT,
 * and those of mtplx_model_load(). */
mtplx_model *mx_model_arg_load(const char *path, const mtplx_load_options *options,
                               mtplx_error *err);

#endif
