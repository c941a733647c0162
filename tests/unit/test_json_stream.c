/* The streaming JSON check agrees with a JSON library on what is JSON, and what it copies is the
 * same value. */
#include "text/json_stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <cmocka.h>

static uint64_t next_random(uint64_t *s)
{
    *s = *s * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *s >> 33;
}

static void check(const char *text, enum mx_json_kind kind, const char *copy)
{
    struct mx_strbuf out;
    mx_strbuf_init(&out, 0);
    mx_strbuf_puts(&out, "#");
    assert_int_equal(mx_json_scan(text, strlen(text), &out), kind);
    assert_string_equal(out.data + 1, copy);
    mx_strbuf_free(&out);
}

static void test_values(void **state)
{
    (void)state;
    check(" {\"a\" : [1, -0.5e+3]} \n", MX_JSON_OBJECT, "{\"a\" : [1, -0.5e+3]}");
    check("[]", MX_JSON_ARRAY, "[]");
    check("\"a\tb\n\"", MX_JSON_STRING, "\"a\\tb\\n\"");
    check("-0", MX_JSON_NUMBER, "-0");
    check("12 ", MX_JSON_NUMBER, "12");
    check("true", MX_JSON_BOOLEAN, "true");
    check("null", MX_JSON_NULL, "null");
    static const char *const bad[] = {"",
                                      " ",
                                      "tru",
                                      "nulls",
                                      "1.",
                                      "1e",
                                      "01",
                                      "+1",
                                      "[1,]",
                                      "{\"a\"}",
                                      "{,}",
                                      "[}",
                                      "{\"a\":1",
                                      "1 2",
                                      "'a'",
                                      "\"a",
                                      "\"\\ud800\"",
                                      "\"\\udc00\"",
                                      "\"\\ud800\\n\"",
                                      "\"\\u12g4\"",
                                      "{1:2}",
                                      "{\"a\":1,}",
                                      "--1",
                                      "]"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        check(bad[i], MX_JSON_NONE, "");
}

static void test_depth(void **state)
{
    (void)state;
    char text[2 * (MX_JSON_STREAM_DEPTH + 1) + 1] = "";
    size_t n = MX_JSON_STREAM_DEPTH;
    memset(text, '[', n);
    memset(text + n, ']', n);
    assert_int_equal(mx_json_scan(text, 2 * n, NULL), MX_JSON_ARRAY);
    n++;
    memset(text, '[', n);
    memset(text + n, ']', n);
    assert_int_equal(mx_json_scan(text, 2 * n, NULL), MX_JSON_NONE);
}

/* What the library refuses for reasons that are none of JSON's. */
static bool is_beyond_grammar(const json_error_t *e)
{
    enum json_error_code code = json_error_code(e);
    return code == json_error_numeric_overflow || code == json_error_null_byte_in_key;
}

static void compare(const char *text, size_t n)
{
    json_error_t e;
    struct mx_strbuf out;
    mx_strbuf_init(&out, 0);
    json_t *want = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    bool is_json = mx_json_scan(text, n, &out) != MX_JSON_NONE;
    if (is_json != (want != NULL) && !(is_json && is_beyond_grammar(&e)))
        fail_msg("%.*s: %s", (int)n, text, want ? "is JSON" : e.text);
    if (want) {
        json_t *got = json_loadb(out.data, out.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
        assert_true(json_equal(got, want));
        json_decref(got);
    }
    json_decref(want);
    mx_strbuf_free(&out);
}

static void test_agrees_with_a_library(void **state)
{
    (void)state;
    static const char *const seeds[] = {
        "{\"a\": [1, -2.5e3, null], \"b\\u00e9\": {\"c\": true}}",
        "[\"\\ud83d\\ude00\", \"\\\\\\\"\", 0, -0.1E-2, [], {}]",
        "\"\\u0041\\n\"",
        "123.456",
        " false ",
    };
    static const char alphabet[] = "{}[]\",:0123456789.eE+-tfnrul \\dD8";
    uint64_t seed = 11;
    for (int i = 0; i < 100000; i++) {
        char text[80];
        const char *s = seeds[next_random(&seed) % (sizeof seeds / sizeof *seeds)];
        size_t n = strlen(s);
        memcpy(text, s, n);
        for (uint64_t k = next_random(&seed) % 4; k > 0 && n > 1; k--) {
            size_t at = next_random(&seed) % n;
            if (next_random(&seed) % 3 == 0)
                memmove(text + at, text + at + 1, --n - at);
            else
                text[at] = alphabet[next_random(&seed) % (sizeof alphabet - 1)];
        }
        compare(text, n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_agrees_with_a_library),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
