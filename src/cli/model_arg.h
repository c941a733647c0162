/* The model directory that a command line names. */
#ifndef MX_CLI_MODEL_ARG_H
#define MX_CLI_MODEL_ARG_H

#include "base/error.h"

/* Checks that `path` is a directory with a config.json, with a sentence that says what is wrong
 * otherwise. Errors: ARGUMENT. */
mtplx_status mx_model_arg_check(const char *path, mtplx_error *err);

#endif
