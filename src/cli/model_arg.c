/* The model directory or GGUF file that a command line names. */
#include "cli/model_arg.h"

#include "base/file.h"
#include "format/gguf_model.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

mtplx_status mx_model_arg_check(const char *path, mtplx_error *err)
{
    struct stat st;
    if (stat(path, &st) != 0 && errno == ENOENT)
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "there is no directory '%.200s' (a model is a local directory; nothing is "
                        "downloaded)",
                        path);
    if (stat(path, &st) != 0)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "cannot look at '%.200s': %s", path,
                        strerror(errno));
    mtplx_error why = {0};
    char *gguf = mx_gguf_resolve(path, &why);
    free(gguf);
    if (why.status != MTPLX_OK)
        return mx_error(err, why.status, "%s", why.message);
    if (gguf)
        return MTPLX_OK;

    char *config = mx_path_join(path, "config.json");
    if (!config)
        return mx_error_nomem(err, "a path", strlen(path));
    bool found = mx_file_exists(config);
    free(config);
    if (!found)
        return mx_error(
            err, MTPLX_ERR_ARGUMENT,
            "'%.200s' is not a model directory: it has no config.json and no .gguf file", path);
    return MTPLX_OK;
}

mtplx_profile mx_profile_arg(const char *word)
{
    if (!word)
        return MTPLX_PROFILE_AUTO;
    return strcmp(word, "exact") == 0 ? MTPLX_PROFILE_EXACT : MTPLX_PROFILE_FAST;
}
