/* config.json: lookup order, ranges, quantisation overrides, malformed input. */
#include "base/file.h"
#include "format/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char *fixture(const char *name)
{
    const char *root = getenv("MTPLX_SRC");
    return mx_path_join(root ? root : ".", name);
}

static void parse(struct mx_config *c, const char *json)
{
    mtplx_error err = {0};
    if (mx_config_parse(c, json, strlen(json), "c.json", &err) != MTPLX_OK)
        fail_msg("%s: %s", json, err.message);
}

static void opens_reference_configs(void **state)
{
    (void)state;
    mtplx_error err = {0};
    struct mx_config c;
    int v = 0;
    char *dir = fixture("tests/golden/qwen3_5_text_mlx_mixed"); /* nested text_config */
    assert_int_equal(mx_config_open(&c, dir, &err), MTPLX_OK);
    assert_int_equal(mx_config_int(&c, "hidden_size", 1, 1000, &v, &err), MTPLX_OK);
    assert_int_equal(v, 64); /* of text_config, not of vision_config */
    assert_int_equal(mx_config_int(&c, "image_token_id", 0, 1000, &v, &err), MTPLX_OK);
    assert_int_equal(v, 316); /* only at the root */
    const char *s;
    assert_int_equal(mx_config_str(&c, "model_type", &s, &err), MTPLX_OK);
    assert_string_equal(s, "qwen3_5_text");
    struct mx_quant_spec q;
    assert_int_equal(mx_config_quant(&c, "language_model.model.layers.0.mlp.up_proj", &q, &err),
                     MTPLX_OK);
    assert_int_equal(q.bits, 4);
    assert_int_equal(q.group_size, 32);
    assert_int_equal(mx_config_quant(&c, "language_model.lm_head", &q, &err), MTPLX_OK);
    assert_int_equal(q.bits, 8);
    assert_int_equal(q.group_size, 64);
    assert_string_equal(q.mode, "affine");
    mx_config_close(&c);
    free(dir);
    dir = fixture("models/nano");
    assert_int_equal(mx_config_open(&c, dir, &err), MTPLX_OK);
    assert_ptr_equal(c.root, c.text);
    assert_int_equal(mx_config_quant(&c, "x", &q, &err), MTPLX_OK);
    assert_int_equal(q.bits, 8);
    mx_config_close(&c);
    free(dir);
    dir = fixture("tests/golden/qwen3_5_text");
    assert_int_equal(mx_config_open(&c, dir, &err), MTPLX_OK);
    assert_int_equal(mx_config_quant(&c, "x", &q, &err), MTPLX_OK);
    assert_int_equal(q.bits, 0);
    mx_config_close(&c);
    free(dir);
}

static void integers(void **state)
{
    (void)state;
    mtplx_error err = {0};
    struct mx_config c;
    int v = -7;
    parse(&c, "{\"a\":5,\"f\":8.0,\"g\":8.5,\"s\":\"5\",\"n\":null,\"b\":true,\"big\":4294967296,"
              "\"huge\":1e300,\"text_config\":{\"a\":6,\"z\":null},\"z\":3}");
    assert_int_equal(mx_config_int(&c, "a", 0, 10, &v, &err), MTPLX_OK);
    assert_int_equal(v, 6);
    assert_int_equal(mx_config_int(&c, "z", 0, 10, &v, &err), MTPLX_OK); /* null is absent */
    assert_int_equal(v, 3);
    assert_int_equal(mx_config_int(&c, "f", 0, 10, &v, &err), MTPLX_OK);
    assert_int_equal(v, 8);
    static const char *const bad[] = {"g", "s", "b", "big", "huge", "n", "missing"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        v = 77;
        assert_int_equal(mx_config_int(&c, bad[i], INT64_MIN, INT64_MAX, &v, &err),
                         MTPLX_ERR_FORMAT);
        assert_int_equal(v, 77);
        assert_non_null(strstr(err.message, "c.json: field '"));
        assert_non_null(strstr(err.message, bad[i]));
    }
    assert_int_equal(mx_config_int(&c, "a", 7, 10, &v, &err), MTPLX_ERR_FORMAT);
    assert_string_equal(err.message, "c.json: field 'a' is 6 but must be in 7..10");
    assert_int_equal(mx_config_int_or(&c, "missing", 0, 10, 4, &v, &err), MTPLX_OK);
    assert_int_equal(v, 4);
    assert_int_equal(mx_config_int_or(&c, "n", 0, 10, 9, &v, &err), MTPLX_OK);
    assert_int_equal(v, 9);
    assert_int_equal(mx_config_int_or(&c, "s", 0, 10, 9, &v, NULL), MTPLX_ERR_FORMAT);
    mx_config_close(&c);
    mx_config_close(&c);
}

static void other_types(void **state)
{
    (void)state;
    mtplx_error err = {0};
    struct mx_config c;
    double d;
    bool b;
    const char *s;
    parse(&c, "{\"eps\":1e-6,\"i\":3,\"t\":true,\"s\":\"x\",\"a\":[]}");
    assert_int_equal(mx_config_float_or(&c, "eps", 0, 1, 2, &d, &err), MTPLX_OK);
    assert_true(d == 1e-6);
    assert_int_equal(mx_config_float_or(&c, "i", 0, 10, 2, &d, &err), MTPLX_OK);
    assert_true(d == 3);
    assert_int_equal(mx_config_float_or(&c, "none", 0, 1, 2, &d, &err), MTPLX_OK);
    assert_true(d == 2);
    assert_int_equal(mx_config_float_or(&c, "i", 0, 1, 2, &d, &err), MTPLX_ERR_FORMAT);
    assert_int_equal(mx_config_float_or(&c, "t", 0, 1, 2, &d, &err), MTPLX_ERR_FORMAT);
    assert_int_equal(mx_config_bool_or(&c, "t", false, &b, &err), MTPLX_OK);
    assert_true(b);
    assert_int_equal(mx_config_bool_or(&c, "none", true, &b, &err), MTPLX_OK);
    assert_true(b);
    assert_int_equal(mx_config_bool_or(&c, "i", true, &b, &err), MTPLX_ERR_FORMAT);
    assert_int_equal(mx_config_str(&c, "s", &s, &err), MTPLX_OK);
    assert_string_equal(s, "x");
    assert_int_equal(mx_config_str(&c, "none", &s, &err), MTPLX_OK);
    assert_null(s);
    assert_int_equal(mx_config_str(&c, "a", &s, &err), MTPLX_ERR_FORMAT);
    assert_true(json_is_array(mx_config_get(&c, "a")));
    mx_config_close(&c);
}

static void quantisation(void **state)
{
    (void)state;
    mtplx_error err = {0};
    struct mx_config c;
    struct mx_quant_spec q;
    parse(&c, "{\"quantization\":{\"bits\":4,\"group_size\":64,\"off\":false,\"on\":true,"
              "\"more\":{\"bits\":8},\"fp\":{\"mode\":\"mxfp4\",\"group_size\":32},"
              "\"bad\":7,\"neg\":{\"bits\":-1},\"str\":{\"mode\":1}},"
              "\"quantization_config\":{\"bits\":2,\"group_size\":32}}");
    static const struct {
        const char *path;
        int bits, group;
        const char *mode;
    } want[] = {{"other", 4, 64, "affine"},
                {"on", 4, 64, "affine"},
                {"off", 0, 0, "affine"},
                {"more", 8, 64, "affine"},
                {"fp", 4, 32, "mxfp4"}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        assert_int_equal(mx_config_quant(&c, want[i].path, &q, &err), MTPLX_OK);
        assert_int_equal(q.bits, want[i].bits);
        assert_int_equal(q.group_size, want[i].group);
        assert_string_equal(q.mode, want[i].mode);
    }
    assert_int_equal(mx_config_quant(&c, "bad", &q, &err), MTPLX_ERR_FORMAT);
    assert_int_equal(mx_config_quant(&c, "neg", &q, &err), MTPLX_ERR_FORMAT);
    assert_non_null(strstr(err.message, "in 'neg'"));
    assert_int_equal(q.bits, 0);
    assert_int_equal(mx_config_quant(&c, "str", &q, &err), MTPLX_ERR_FORMAT);
    mx_config_close(&c);

    parse(&c, "{\"quantization_config\":{\"bits\":6,\"group_size\":32,\"mode\":\"affine\"}}");
    assert_int_equal(mx_config_quant(&c, "x", &q, &err), MTPLX_OK);
    assert_int_equal(q.bits, 6);
    mx_config_close(&c);
    parse(&c, "{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128}}");
    assert_int_equal(mx_config_quant(&c, "x", &q, &err), MTPLX_OK);
    assert_int_equal(q.bits, 0); /* not an MLX object */
    mx_config_close(&c);
    parse(&c, "{\"quantization\":{\"bits\":4}}");
    assert_int_equal(mx_config_quant(&c, "x", &q, &err), MTPLX_ERR_FORMAT);
    mx_config_close(&c);
    parse(&c, "{\"quantization\":[4]}");
    assert_int_equal(mx_config_quant(&c, "x", &q, &err), MTPLX_ERR_FORMAT);
    mx_config_close(&c);
}

static void refuses_malformed(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "{",
        "[]",
        "1",
        "null",
        "{\"a\":1,\"a\":2}",
        "{\"text_config\":[]}",
        "{\"a\":1} x",
        "{\"a\":\"\xff\"}",
        "{\"a\":99999999999999999999}",
        "{\"a\":1e999}",
        "{\"a\":\"\\u0000\"}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mtplx_error err = {0};
        struct mx_config c;
        assert_int_equal(mx_config_parse(&c, bad[i], strlen(bad[i]), "c.json", &err),
                         MTPLX_ERR_FORMAT);
        assert_int_equal(strncmp(err.message, "c.json: ", 8), 0);
        assert_null(c.root);
        assert_int_equal(mx_config_parse(&c, bad[i], strlen(bad[i]), "c.json", NULL),
                         MTPLX_ERR_FORMAT);
        mx_config_close(&c);
    }
    mtplx_error err = {0};
    struct mx_config c;
    mx_config_parse(&c, "{\n\"a\": oops}", 12, "c.json", &err);
    assert_non_null(strstr(err.message, "line 2"));
}

/* Deep nesting and floods of tiny values end in an error, not in a crash or gigabytes. */
static void bounds_depth_and_values(void **state)
{
    (void)state;
    enum {
        DEEP = 1000000,
        MANY = 17000000,
    };
    mtplx_error err = {0};
    struct mx_config c;
    char *s = malloc(MANY);
    memset(s, '[', DEEP);
    assert_int_equal(mx_config_parse(&c, s, DEEP, "c.json", &err), MTPLX_ERR_FORMAT);
    for (size_t i = 0; i < MANY; i++)
        s[i] = i % 2 ? ',' : '1';
    s[0] = '[';
    assert_int_equal(mx_config_parse(&c, s, MANY, "c.json", &err), MTPLX_ERR_LIMIT);
    assert_non_null(strstr(err.message, "c.json"));
    free(s);
}

static char tmp[] = "/tmp/mtplx-config-XXXXXX";

static int make_tmp(void **state)
{
    (void)state;
    return mkdtemp(tmp) ? 0 : -1;
}

static int drop_tmp(void **state)
{
    (void)state;
    return rmdir(tmp);
}

static void json_files(void **state)
{
    (void)state;
    mtplx_error err = {0};
    struct mx_config c;
    assert_int_equal(mx_config_open(&c, tmp, &err), MTPLX_ERR_IO);
    assert_non_null(strstr(err.message, "/config.json"));
    char *path = mx_path_join(tmp, "x.json");
    assert_int_equal(mx_file_write(path, "[1,\n2,\n}", 8, &err), MTPLX_OK);
    assert_null(mx_json_file(path, 100, &err));
    assert_non_null(strstr(err.message, "x.json: line 3"));
    assert_null(mx_json_file(path, 7, &err));
    assert_int_equal(err.status, MTPLX_ERR_LIMIT);
    assert_int_equal(mx_file_write(path, "[1,2]", 5, &err), MTPLX_OK);
    json_t *v = mx_json_file(path, 100, &err);
    assert_int_equal(json_array_size(v), 2);
    json_decref(v);
    unlink(path);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens_reference_configs),
        cmocka_unit_test(integers),
        cmocka_unit_test(other_types),
        cmocka_unit_test(quantisation),
        cmocka_unit_test(refuses_malformed),
        cmocka_unit_test(bounds_depth_and_values),
        cmocka_unit_test(json_files),
    };
    return cmocka_run_group_tests_name("config", tests, make_tmp, drop_tmp);
}
