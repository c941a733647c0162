/* config.json: checked access to fields, and JSON files in general.
 *
 * jansson does the parsing. It bounds nesting (2048) and refuses duplicate keys when asked; what it
 * does not bound is memory per input byte (an empty object of two bytes costs about 200), so texts
 * with more than MAX_VALUES structural characters are refused before it sees them. */
#include "format/config.h"

#include "base/file.h"
#include "format/gguf_model.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_LIMIT (64u << 20)

/* The largest tokenizer.json known has about 2 million. */
#define MAX_VALUES 8000000u

/* Every JSON value but the first is preceded by one of these; those inside strings only make the
 * estimate too high. */
static bool too_many_values(const char *s, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += s[i] == ',' || s[i] == '[' || s[i] == '{' || s[i] == ':';
    return n > MAX_VALUES;
}

static json_t *parse_json(const char *text, size_t len, const char *name, mtplx_error *err)
{
    if (too_many_values(text, len)) {
        mx_error(err, MTPLX_ERR_LIMIT, "%s: holds more than %u JSON values", name, MAX_VALUES);
        return NULL;
    }
    json_error_t je;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &je);
    if (root)
        return root;
    if (json_error_code(&je) == json_error_out_of_memory)
        mx_error_nomem(err, name, len);
    else
        mx_error(err, MTPLX_ERR_FORMAT, "%.250s: line %d, column %d: %s", name, je.line, je.column,
                 je.text);
    return NULL;
}

json_t *mx_json_file(const char *path, size_t max, mtplx_error *err)
{
    size_t len;
    char *text = mx_file_read(path, max, &len, err);
    if (!text)
        return NULL;
    json_t *root = parse_json(text, len, path, err);
    free(text);
    return root;
}

/* ---- Opening ------------------------------------------------------------------------------ */

/* Takes over `root`. */
static mtplx_status adopt(struct mx_config *c, json_t *root, const char *name, mtplx_error *err)
{
    c->root = root;
    c->path = strdup(name);
    mtplx_status status = MTPLX_OK;
    if (!c->path) {
        status = mx_error_nomem(err, name, strlen(name) + 1);
    } else if (!json_is_object(root)) {
        status = mx_error(err, MTPLX_ERR_FORMAT, "%s: expected a JSON object", name);
    } else {
        json_t *text = json_object_get(root, "text_config");
        c->text = text && !json_is_null(text) ? text : root;
        if (!json_is_object(c->text))
            status =
                mx_error(err, MTPLX_ERR_FORMAT, "%s: field 'text_config' is not an object", name);
    }
    if (status != MTPLX_OK)
        mx_config_close(c);
    return status;
}

mtplx_status mx_config_parse(struct mx_config *c, const char *json, size_t len, const char *name,
                             mtplx_error *err)
{
    mtplx_error own = {0};
    *c = (struct mx_config){0};
    json_t *root = parse_json(json, len, name, &own);
    if (root)
        return adopt(c, root, name, err);
    if (err)
        *err = own;
    return own.status;
}

static json_t *read_gguf(const char *path, mtplx_error *err)
{
    struct mx_gguf_model *m = mx_gguf_model_open(path, err);
    json_t *root = m ? mx_gguf_model_config(m, err) : NULL;
    mx_gguf_model_close(m);
    return root;
}

mtplx_status mx_config_open(struct mx_config *c, const char *dir, mtplx_error *err)
{
    mtplx_error own = {0};
    *c = (struct mx_config){0};
    char *gguf = mx_gguf_resolve(dir, &own);
    if (own.status != MTPLX_OK) {
        if (err)
            *err = own;
        return own.status;
    }
    char *path = gguf ? gguf : mx_path_join(dir, "config.json");
    if (!path)
        return mx_error_nomem(err, dir, strlen(dir) + 16);
    json_t *root = gguf ? read_gguf(path, &own) : mx_json_file(path, CONFIG_LIMIT, &own);
    mtplx_status status = own.status;
    if (root)
        status = adopt(c, root, path, err);
    else if (err)
        *err = own;
    free(path);
    return status;
}

void mx_config_close(struct mx_config *c)
{
    json_decref(c->root);
    free(c->path);
    *c = (struct mx_config){0};
}

/* ---- Fields ------------------------------------------------------------------------------- */

static json_t *get_from(json_t *object, const char *key)
{
    json_t *v = json_object_get(object, key);
    return v && !json_is_null(v) ? v : NULL;
}

json_t *mx_config_get(const struct mx_config *c, const char *key)
{
    json_t *v = get_from(c->text, key);
    return v ? v : get_from(c->root, key);
}

static mtplx_status bad_field(const struct mx_config *c, const char *key, mtplx_error *err,
                              const char *expected)
{
    return mx_error(err, MTPLX_ERR_FORMAT, "%.250s: field '%.100s' must be %s", c->path, key,
                    expected);
}

/* An integer, also when written as 8192.0. */
static bool integer_value(const json_t *v, int64_t *out)
{
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    double d = json_is_real(v) ? json_real_value(v) : NAN;
    if (!(fabs(d) <= 0x1p53) || d != floor(d))
        return false;
    *out = (int64_t)d;
    return true;
}

static mtplx_status check_int(const struct mx_config *c, const char *key, const json_t *v,
                              int64_t min, int64_t max, int *out, mtplx_error *err)
{
    int64_t i;
    if (min < INT32_MIN)
        min = INT32_MIN;
    if (max > INT32_MAX)
        max = INT32_MAX;
    if (!integer_value(v, &i))
        return bad_field(c, key, err, "an integer");
    if (i < min || i > max)
        return mx_error(err, MTPLX_ERR_FORMAT,
                        "%.250s: field '%.100s' is %" PRId64 " but must be in %" PRId64
                        "..%" PRId64,
                        c->path, key, i, min, max);
    *out = (int)i;
    return MTPLX_OK;
}

mtplx_status mx_config_int(const struct mx_config *c, const char *key, int64_t min, int64_t max,
                           int *out, mtplx_error *err)
{
    const json_t *v = mx_config_get(c, key);
    if (!v)
        return mx_error(err, MTPLX_ERR_FORMAT, "%.250s: field '%.100s' is missing", c->path, key);
    return check_int(c, key, v, min, max, out, err);
}

mtplx_status mx_config_int_or(const struct mx_config *c, const char *key, int64_t min, int64_t max,
                              int fallback, int *out, mtplx_error *err)
{
    const json_t *v = mx_config_get(c, key);
    if (v)
        return check_int(c, key, v, min, max, out, err);
    *out = fallback;
    return MTPLX_OK;
}

mtplx_status mx_config_float_or(const struct mx_config *c, const char *key, double min, double max,
                                double fallback, double *out, mtplx_error *err)
{
    const json_t *v = mx_config_get(c, key);
    if (!v) {
        *out = fallback;
        return MTPLX_OK;
    }
    if (!json_is_number(v))
        return bad_field(c, key, err, "a number");
    double d = json_number_value(v);
    if (!(d >= min && d <= max))
        return mx_error(err, MTPLX_ERR_FORMAT, "%.250s: field '%.100s' is %g but must be in %g..%g",
                        c->path, key, d, min, max);
    *out = d;
    return MTPLX_OK;
}

mtplx_status mx_config_bool_or(const struct mx_config *c, const char *key, bool fallback, bool *out,
                               mtplx_error *err)
{
    const json_t *v = mx_config_get(c, key);
    if (v && !json_is_boolean(v))
        return bad_field(c, key, err, "true or false");
    *out = v ? json_is_true(v) : fallback;
    return MTPLX_OK;
}

mtplx_status mx_config_str(const struct mx_config *c, const char *key, const char **out,
                           mtplx_error *err)
{
    const json_t *v = mx_config_get(c, key);
    *out = NULL;
    if (v && !json_is_string(v))
        return bad_field(c, key, err, "a string");
    if (v)
        *out = json_string_value(v);
    return MTPLX_OK;
}

/* ---- Quantisation ------------------------------------------------------------------------- */

/* The MLX object, or NULL. Other tool chains use `quantization_config` too, with a quant_method and
 * their own meaning of `bits`; those are not MLX. */
static const json_t *quant_object(const struct mx_config *c, const char **key)
{
    *key = "quantization";
    const json_t *q = mx_config_get(c, *key);
    if (q)
        return q;
    *key = "quantization_config";
    q = mx_config_get(c, *key);
    return q && json_object_get(q, "quant_method") ? NULL : q;
}

/* Lays bits, group_size and mode of `o` over the spec. `where` names the object in messages. */
static mtplx_status overlay(const struct mx_config *c, const char *where, const json_t *o,
                            struct mx_quant_spec *spec, mtplx_error *err)
{
    const json_t *bits = json_object_get(o, "bits"), *group = json_object_get(o, "group_size"),
                 *mode = json_object_get(o, "mode");
    mtplx_status status = MTPLX_OK;
    if (bits)
        status = check_int(c, "bits", bits, 1, 16, &spec->bits, err);
    if (group && status == MTPLX_OK)
        status = check_int(c, "group_size", group, 1, 65536, &spec->group_size, err);
    if (mode && status == MTPLX_OK && !json_is_string(mode))
        status = bad_field(c, "mode", err, "a string");
    else if (mode && status == MTPLX_OK)
        spec->mode = json_string_value(mode);
    if (status != MTPLX_OK)
        mx_error_prefix(err, "in '%.120s'", where);
    return status;
}

mtplx_status mx_config_quant(const struct mx_config *c, const char *module_path,
                             struct mx_quant_spec *out, mtplx_error *err)
{
    const char *key;
    const struct mx_quant_spec none = {.mode = "affine"};
    struct mx_quant_spec spec = none;
    *out = none;
    const json_t *q = quant_object(c, &key);
    if (!q)
        return MTPLX_OK;
    if (!json_is_object(q))
        return bad_field(c, key, err, "an object");
    mtplx_status status = overlay(c, key, q, &spec, err);
    const json_t *own = json_object_get(q, module_path);
    if (status == MTPLX_OK && json_is_object(own))
        status = overlay(c, module_path, own, &spec, err);
    else if (status == MTPLX_OK && json_is_false(own))
        spec = none;
    else if (status == MTPLX_OK && own && !json_is_true(own) && !json_is_null(own))
        status = bad_field(c, module_path, err, "an object, true or false");
    if (status == MTPLX_OK && (spec.bits == 0) != (spec.group_size == 0))
        status = mx_error(err, MTPLX_ERR_FORMAT,
                          "%.250s: field '%s' gives only one of bits and group_size for '%.100s'",
                          c->path, key, module_path);
    if (status == MTPLX_OK)
        *out = spec;
    return status;
}
