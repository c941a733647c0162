/* The model directory that a command line names. */
#ifndef MX_CLI_MODEL_ARG_H
#define MX_CLI_MODEL_ARG_H

#include "base/error.h"

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

/* Loads the model at `path`, or the one that ships with mtplx when it is NULL. Errors: ARGUMENT,
 * and those of mtplx_model_load(). */
mtplx_model *mx_model_arg_load(const char *path, const mtplx_load_options *options,
                               mtplx_error *err);

#endif
