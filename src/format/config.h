/* config.json: typed, checked access.
 *
 * A field is looked up in `text_config` first when that exists, then at the root. Accessors report
 * "<path>: field 'x' ..." with what was expected. */
#ifndef MX_FORMAT_CONFIG_H
#define MX_FORMAT_CONFIG_H

#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>

struct mx_config {
    char *path;
    json_t *root;
    json_t *text; /* text_config, or root */
};

/* Reads <dir>/config.json (64 MB at most), or makes it from the metadata where `dir` means a GGUF
 * file (mx_gguf_resolve()). */
mtplx_status mx_config_open(struct mx_config *c, const char *dir, mtplx_error *err);
/* The same from memory; `name` is used in messages. */
mtplx_status mx_config_parse(struct mx_config *c, const char *json, size_t len, const char *name,
                             mtplx_error *err);
void mx_config_close(struct mx_config *c);

/* NULL when absent or null. */
json_t *mx_config_get(const struct mx_config *c, const char *key);

/* Required integer in [min, max]. */
mtplx_status mx_config_int(const struct mx_config *c, const char *key, int64_t min, int64_t max,
                           int *out, mtplx_error *err);
/* Optional: `fallback` when absent; still an error when present and bad. */
mtplx_status mx_config_int_or(const struct mx_config *c, const char *key, int64_t min, int64_t max,
                              int fallback, int *out, mtplx_error *err);
mtplx_status mx_config_float_or(const struct mx_config *c, const char *key, double min, double max,
                                double fallback, double *out, mtplx_error *err);
mtplx_status mx_config_bool_or(const struct mx_config *c, const char *key, bool fallback, bool *out,
                               mtplx_error *err);
/* Borrowed string, or NULL when absent; error when not a string. */
mtplx_status mx_config_str(const struct mx_config *c, const char *key, const char **out,
                           mtplx_error *err);

/* MLX quantisation of a module path (tensor name without ".weight"): defaults of the
 * `quantization` (or `quantization_config`) object with the path's own entry on top; an entry
 * `false` means not quantised. A `quantization_config` with a quant_method belongs to another tool
 * chain and is ignored. Whether bits, group_size and mode are supported is the caller's question.
 */
struct mx_quant_spec {
    int bits; /* 0: not quantised by config */
    int group_size;
    const char *mode; /* "affine" */
};
mtplx_status mx_config_quant(const struct mx_config *c, const char *module_path,
                             struct mx_quant_spec *out, mtplx_error *err);

/* Reads any JSON file (size limit `max`) with line-numbered errors naming the file. Duplicate keys
 * and more than 8 million values are refused. The caller owns the reference. */
json_t *mx_json_file(const char *path, size_t max, mtplx_error *err);

#endif
