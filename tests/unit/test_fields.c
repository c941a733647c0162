/* Fields of request bodies: absent, null, wrong types, ranges, and what the error names. */
#include "serve/fields.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Reads field "x" of a body in one of the ways that a kind names. */
static bool read_as(const char *kind, const struct mx_fields *f)
{
    double d = 0;
    int64_t i = 0;
    bool b = false;
    int c = 0;
    const char *s = NULL;
    const json_t *j = NULL;
    if (strcmp(kind, "number") == 0)
        return mx_field_number(f, "x", -2, 2, &d);
    if (strcmp(kind, "int") == 0)
        return mx_field_int(f, "x", 0, 20, &i);
    if (strcmp(kind, "bool") == 0)
        return mx_field_bool(f, "x", &b);
    if (strcmp(kind, "string") == 0)
        return mx_field_string(f, "x", 8, &s);
    if (strcmp(kind, "choice") == 0)
        return mx_field_choice(f, "x", "auto none required", &c);
    if (strcmp(kind, "object") == 0)
        return mx_field_object(f, "x", &j);
    return mx_field_array(f, "x", 2, &j);
}

static const struct wrong {
    const char *kind, *json, *says;
} wrongs[] = {
    {"number", "{\"x\":\"1\"}", "must be a number, not a string"},
    {"number", "{\"x\":true}", "must be a number, not a boolean"},
    {"number", "{\"x\":[1]}", "must be a number, not an array"},
    {"number", "{\"x\":2.5}", "must be between -2 and 2, but is 2.5"},
    {"number", "{\"x\":-1e300}", "must be between -2 and 2"},
    {"int", "{\"x\":1.5}", "must be an integer"},
    {"int", "{\"x\":1e300}", "must be an integer"},
    {"int", "{\"x\":\"5\"}", "must be an integer, not a string"},
    {"int", "{\"x\":{}}", "must be an integer, not an object"},
    {"int", "{\"x\":21}", "must be between 0 and 20, but is 21"},
    {"int", "{\"x\":-1}", "must be between 0 and 20, but is -1"},
    {"bool", "{\"x\":1}", "must be true or false, not a number"},
    {"bool", "{\"x\":\"true\"}", "must be true or false, not a string"},
    {"string", "{\"x\":5}", "must be a string, not a number"},
    {"string", "{\"x\":\"123456789\"}", "at most 8 bytes, but has 9"},
    {"string", "{\"x\":\"a\\u0000b\"}", "NUL"},
    {"choice", "{\"x\":\"any\"}", "one of auto, none, required, not 'any'"},
    {"choice", "{\"x\":\"aut\"}", "one of auto"},
    {"choice", "{\"x\":\"\"}", "one of auto"},
    {"choice", "{\"x\":\"auto none\"}", "one of auto"},
    {"choice", "{\"x\":7}", "must be a string, not a number"},
    {"object", "{\"x\":[]}", "must be an object, not an array"},
    {"object", "{\"x\":\"{}\"}", "must be an object, not a string"},
    {"array", "{\"x\":{}}", "must be an array, not an object"},
    {"array", "{\"x\":[1,2,3]}", "at most 2 elements, but has 3"},
};

static void test_wrong(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        const struct wrong *w = &wrongs[i];
        json_t *o = json_loads(w->json, JSON_ALLOW_NUL, NULL);
        struct mx_api_error e = {0};
        struct mx_fields f = {o, "tools[2].function", &e};
        assert_non_null(o);
        if (read_as(w->kind, &f))
            fail_msg("%s took %s", w->kind, w->json);
        assert_int_equal(e.status, 400);
        assert_string_equal(e.param, "tools[2].function.x");
        if (!strstr(e.message, w->says))
            fail_msg("%s: '%s' does not say '%s'", w->json, e.message, w->says);
        json_decref(o);
    }
}

static void test_absent(void **state)
{
    static const char *const kinds[] = {"number", "int",    "bool", "string",
                                        "choice", "object", "array"};
    (void)state;
    json_t *none = json_object(), *null = json_pack("{s:n}", "x");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct mx_api_error e = {0};
        assert_true(read_as(kinds[i], &(struct mx_fields){none, "", &e}));
        assert_true(read_as(kinds[i], &(struct mx_fields){null, "", &e}));
        assert_int_equal(e.status, 0);
    }
    struct mx_api_error e = {0};
    assert_false(mx_field_need(&(struct mx_fields){null, "", &e}, "x"));
    assert_string_equal(e.param, "x");
    json_decref(none);
    json_decref(null);
}

static void test_values(void **state)
{
    (void)state;
    json_t *o = json_pack("{s:f,s:i,s:f,s:b,s:s,s:s,s:{},s:[i,i]}", "d", 0.5, "i", 7, "r", 9.0, "b",
                          1, "s", "text", "c", "none", "o", "a", 1, 2);
    struct mx_api_error e = {0};
    struct mx_fields f = {o, "", &e};
    double d = 0;
    int64_t i = 0, r = 0;
    bool b = false;
    int c = -1;
    const char *s = NULL;
    const json_t *ob = NULL, *a = NULL;
    assert_true(mx_field_number(&f, "d", 0, 1, &d) && d == 0.5);
    assert_true(mx_field_number(&f, "i", 0, 8, &d) && d == 7);
    assert_true(mx_field_int(&f, "i", 0, 8, &i) && i == 7);
    assert_true(mx_field_int(&f, "r", 0, 9, &r) && r == 9);
    assert_true(mx_field_bool(&f, "b", &b) && b);
    assert_true(mx_field_string(&f, "s", 4, &s));
    assert_string_equal(s, "text");
    assert_true(mx_field_choice(&f, "c", "auto none", &c) && c == 1);
    assert_true(mx_field_object(&f, "o", &ob) && json_is_object(ob));
    assert_true(mx_field_array(&f, "a", 2, &a) && json_array_size(a) == 2);
    assert_true(mx_field_need(&f, "a"));
    assert_int_equal(mx_fields_unknown(o, "d i r b s c o a"), 0);
    assert_int_equal(mx_fields_unknown(o, "d i r b s"), 3);
    json_decref(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_absent),
        cmocka_unit_test(test_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
