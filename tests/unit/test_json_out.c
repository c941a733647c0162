/* JSON written into a buffer: reads back as what went in, whatever the bytes. */
#include "serve/json_out.h"

#include "base/utf8.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static json_t *read_back(const char *s, size_t n)
{
    struct mx_strbuf b;
    mx_strbuf_init(&b, 0);
    assert_true(mx_json_string(&b, s, n));
    json_t *v = json_loadb(b.data, b.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    mx_strbuf_free(&b);
    assert_non_null(v);
    return v;
}

static void test_round_trip(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp < 0x11000; cp += cp < 0x3000 ? 1 : 97) {
        char text[6] = "x";
        if (cp >= 0xd800 && cp < 0xe000)
            continue;
        size_t n = 1 + (size_t)mx_utf8_encode(cp, text + 1);
        json_t *v = read_back(text, n);
        assert_int_equal(json_string_length(v), n);
        assert_memory_equal(json_string_value(v), text, n);
        json_decref(v);
    }
}

static void test_broken_bytes(void **state)
{
    static const char bad[] = "a\xff\xc3(\xe2\x82\xed\xa0\x80z\xf0\x9f";
    (void)state;
    for (size_t n = 0; n < sizeof bad; n++) {
        json_t *v = read_back(bad, n);
        assert_true(mx_utf8_valid(json_string_value(v), json_string_length(v)));
        json_decref(v);
    }
}

static void test_floats(void **state)
{
    static const float values[] = {0.0f, -1.0f, -0.1f, -2e-05f, -11.65568f, 3.4e38f, -1e-30f};
    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        struct mx_strbuf b;
        mx_strbuf_init(&b, 0);
        assert_true(mx_json_float(&b, values[i]));
        json_t *v = json_loadb(b.data, b.len, JSON_DECODE_ANY, NULL);
        assert_non_null(v);
        assert_true((float)json_number_value(v) == values[i]);
        json_decref(v);
        mx_strbuf_free(&b);
    }
    struct mx_strbuf b;
    mx_strbuf_init(&b, 0);
    mx_json_float(&b, -INFINITY);
    mx_json_float(&b, NAN);
    assert_string_equal(b.data, "nullnull");
    mx_strbuf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_broken_bytes),
        cmocka_unit_test(test_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
