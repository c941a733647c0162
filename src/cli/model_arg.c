/* The model directory or GGUF file that a command line names. */
#include "cli/model_arg.h"

#include "base/file.h"
#include "format/gguf_model.h"
#include "runtime/kv_option.h"

#include <ctype.h>
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

int mx_draft_vocab_arg(const char *text)
{
    char *end;
    if (strcmp(text, "full") == 0)
        return -1;
    if (!isdigit((unsigned char)text[0]))
        return 0;
    errno = 0;
    long n = strtol(text, &end, 10);
    return *end == '\0' && errno == 0 && n <= 1 << 24 ? (int)n : 0;
}

mtplx_status mx_kv_quant_arg(const struct mx_cli_args *args, int flag, mtplx_kv_quant *out,
                             mtplx_error *err)
{
    const struct mx_cli_value *v = &args->values[flag], *alias = v + 1;
    const char *name = v->source == MX_CLI_ENVIRONMENT ? MX_KV_QUANT_ENV : "--kv-quant";
    mtplx_kv_quant a, b;
    *out = MTPLX_KV_AUTO;
    if (v->source == MX_CLI_EXPLICIT && alias->source == MX_CLI_EXPLICIT &&
        mx_kv_quant_word(v->text, &a) && (!mx_kv_quant_word(alias->text, &b) || a != b))
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "--kv-quant %.32s and --paged-kv-quantization %.32s are one setting with "
                        "two values: leave one out",
                        v->text, alias->text);
    if (v->source != MX_CLI_EXPLICIT && alias->source == MX_CLI_EXPLICIT) {
        v = alias;
        name = "--paged-kv-quantization";
    }
    if (v->source == MX_CLI_DEFAULT || mx_kv_quant_word(v->text, out))
        return MTPLX_OK;
    return mx_error(err, MTPLX_ERR_ARGUMENT, "%s takes %s, not \"%.32s\"", name,
                    MX_KV_QUANT_CHOICES, v->text);
}

mtplx_depth_policy mx_depth_policy_arg(const char *word)
{
    static const struct {
        const char *name;
        mtplx_depth_policy policy;
    } policies[] = {
        {"auto", MTPLX_DEPTH_AUTO},
        {"streak", MTPLX_DEPTH_STREAK},
        {"expected_value", MTPLX_DEPTH_EXPECTED_VALUE},
        {"cost", MTPLX_DEPTH_COST},
        {"position_ema", MTPLX_DEPTH_POSITION_EMA},
    };
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++)
        if (strcmp(word, policies[i].name) == 0)
            return policies[i].policy;
    return MTPLX_DEPTH_FIXED;
}

mtplx_model *mx_model_arg_load(const char *path, const mtplx_load_options *options,
                               mtplx_error *err)
{
    mtplx_model *model = NULL;
    char *embedded = path ? NULL : mtplx_embedded_model_path(err);
    if (!path && !embedded) {
        mx_error_prefix(err, "no --model given and no built-in model");
        return NULL;
    }
    if (mx_model_arg_check(path ? path : embedded, err) == MTPLX_OK)
        model = mtplx_model_load(path ? path : embedded, options, err);
    mtplx_free(embedded);
    return model;
}
