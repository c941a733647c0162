/* Typed access to JSON objects for the parts of tokenizer.json. */
#include "text/tok_json.h"

static mtplx_status wrong(const char *where, const char *key, const char *what, mtplx_error *err)
{
    return mx_error(err, MTPLX_ERR_FORMAT, "%s.%s is not %s", where, key, what);
}

mtplx_status mx_tok_bool(const json_t *obj, const char *where, const char *key, bool fallback,
                         bool *out, mtplx_error *err)
{
    const json_t *v = json_object_get(obj, key);
    *out = fallback;
    if (!v || json_is_null(v))
        return MTPLX_OK;
    if (!json_is_boolean(v))
        return wrong(where, key, "true or false", err);
    *out = json_is_true(v);
    return MTPLX_OK;
}

mtplx_status mx_tok_string(const json_t *obj, const char *where, const char *key, bool required,
                           const char **out, size_t *len, mtplx_error *err)
{
    const json_t *v = json_object_get(obj, key);
    *out = NULL;
    *len = 0;
    if (!required && (!v || json_is_null(v)))
        return MTPLX_OK;
    if (!json_is_string(v))
        return wrong(where, key, "a string", err);
    *out = json_string_value(v);
    *len = json_string_length(v);
    return MTPLX_OK;
}

mtplx_status mx_tok_array(const json_t *obj, const char *where, const char *key, json_t **out,
                          mtplx_error *err)
{
    *out = json_object_get(obj, key);
    if (!json_is_array(*out))
        return wrong(where, key, "an array", err);
    return MTPLX_OK;
}

mtplx_status mx_tok_type(const json_t *obj, const char *where, const char **type, mtplx_error *err)
{
    size_t len;
    if (!json_is_object(obj))
        return mx_error(err, MTPLX_ERR_FORMAT, "%s is not an object", where);
    return mx_tok_string(obj, where, "type", true, type, &len, err);
}
