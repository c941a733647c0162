/* The model directory that a command line names. */
#ifndef MX_CLI_MODEL_ARG_H
#define MX_CLI_MODEL_ARG_H

#include "base/error.h"

/* Checks that `path` is a directory with a config.json, with a sentence that says what is wrong
 * otherwise. Errors: ARGUMENT. */
mtplx_status mx_model_arg_check(const char *path, mtplx_error *err);

/* The profile that a flag names; NULL, when it was not given, leaves the choice to the library. */
mtplx_profile mx_profile_arg(const char *word);

#endif
