/* The model directory that a command line names. */
#include "cli/model_arg.h"

#include "base/file.h"

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
    if (!S_ISDIR(st.st_mode))
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "'%.200s' is a file; give the directory that holds config.json", path);

    char *config = mx_path_join(path, "config.json");
    if (!config)
        return mx_error_nomem(err, "a path", strlen(path));
    bool found = mx_file_exists(config);
    free(config);
    if (!found)
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "'%.200s' is not a model directory: it has no config.json", path);
    return MTPLX_OK;
}
