/* Fuzz target: config.json. The input is parsed and every accessor is asked for every key that the
 * text defines, and for the module paths of the quantisation object. */
#include "format/config.h"

#include "base/utf8.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

static void ask_for(const struct mx_config *c, const char *key)
{
    mtplx_error err = {0};
    int i = 0;
    double d = 0;
    bool b;
    const char *s;
    struct mx_quant_spec q;
    if (mx_config_int(c, key, -5, 100000, &i, &err) == MTPLX_OK)
        require(i >= -5 && i <= 100000);
    if (mx_config_int_or(c, key, INT64_MIN, INT64_MAX, 3, &i, &err) != MTPLX_OK)
        require(strstr(err.message, "fuzz.json") != NULL);
    if (mx_config_float_or(c, key, -1, 1e9, 0, &d, &err) == MTPLX_OK)
        require(d >= -1 && d <= 1e9);
    (void)mx_config_bool_or(c, key, true, &b, &err);
    if (mx_config_str(c, key, &s, &err) == MTPLX_OK && s)
        require(strlen(s) < (size_t)1 << 30);
    if (mx_config_quant(c, key, &q, &err) == MTPLX_OK)
        require(q.mode && q.bits >= 0 && q.bits <= 16 && (q.bits == 0) == (q.group_size == 0));
    require(mx_utf8_valid(err.message, strlen(err.message)));
}

static void ask_for_keys(const struct mx_config *c, json_t *object)
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        ask_for(c, key);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mx_config c;
    mtplx_error err = {0};
    mtplx_status status = mx_config_parse(&c, (const char *)data, size, "fuzz.json", &err);
    if (status != MTPLX_OK) {
        require(err.status == status && strstr(err.message, "fuzz.json"));
        return 0;
    }
    ask_for_keys(&c, c.root);
    ask_for_keys(&c, c.text);
    ask_for_keys(&c, mx_config_get(&c, "quantization"));
    ask_for_keys(&c, mx_config_get(&c, "quantization_config"));
    ask_for(&c, "missing");
    mx_config_close(&c);
    return 0;
}
