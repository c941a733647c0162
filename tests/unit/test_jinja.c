/* Jinja interpreter: agreement with jinja2 on the golden cases, error texts, hostile templates. */
#include "base/utf8.h"
#include "text/jinja.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* ---- Helpers ------------------------------------------------------------------------------ */

static json_t *load(const char *name)
{
    const char *root = getenv("MTPLX_SRC");
    char path[1024];
    json_error_t e;
    snprintf(path, sizeof path, "%s/tests/golden/%s", root ? root : ".", name);
    json_t *json = json_load_file(path, JSON_ALLOW_NUL, &e);
    if (!json)
        fail_msg("%s: %s", path, e.text);
    return json;
}

static mtplx_status render_with(const char *source, size_t len, const json_t *globals,
                                const struct mx_jinja_limits *limits, struct mx_strbuf *out,
                                mtplx_error *err)
{
    *err = (mtplx_error){0};
    struct mx_jinja *j = mx_jinja_parse(source, len, "t", err);
    if (!j)
        return err->status;
    mtplx_status status = mx_jinja_render(j, globals, limits, 1700000000, out, err);
    assert_int_equal(status, err->status);
    mx_jinja_free(j);
    return status;
}

/* Renders without variables and compares. */
static void check(const char *source, const char *expected)
{
    struct mx_strbuf out;
    mtplx_error err;
    mx_strbuf_init(&out, 0);
    if (render_with(source, strlen(source), NULL, NULL, &out, &err) != MTPLX_OK)
        fail_msg("%s: %s", source, err.message);
    assert_string_equal(out.data ? out.data : "", expected);
    mx_strbuf_free(&out);
}

/* The template must fail with this status and a message that begins like this. */
static void check_error(const char *source, const struct mx_jinja_limits *limits,
                        mtplx_status status, const char *message)
{
    struct mx_strbuf out;
    mtplx_error err;
    mx_strbuf_init(&out, 0);
    render_with(source, strlen(source), NULL, limits, &out, &err);
    mx_strbuf_free(&out);
    if (strncmp(err.message, message, strlen(message)) != 0)
        fail_msg("%.200s: '%s' instead of '%s'", source, err.message, message);
    assert_int_equal(err.status, status);
}

/* `n` copies of a, then middle, then n copies of b. */
static char *nested(const char *a, const char *middle, const char *b, size_t n)
{
    size_t la = strlen(a), lb = strlen(b), lm = strlen(middle);
    char *s = malloc(n * (la + lb) + lm + 1), *w = s;
    assert_non_null(s);
    for (size_t i = 0; i < n; i++, w += la)
        memcpy(w, a, la);
    memcpy(w, middle, lm);
    w += lm;
    for (size_t i = 0; i < n; i++, w += lb)
        memcpy(w, b, lb);
    *w = '\0';
    return s;
}

/* ---- Golden cases ------------------------------------------------------------------------- */

static void golden_case(const json_t *c, const json_t *globals)
{
    const json_t *t = json_object_get(c, "template");
    const json_t *expected = json_object_get(c, "expected");
    const char *error = json_string_value(json_object_get(c, "error"));
    struct mx_strbuf out;
    mtplx_error err;
    mx_strbuf_init(&out, 0);
    mtplx_status status =
        render_with(json_string_value(t), json_string_length(t), globals, NULL, &out, &err);
    if (expected) {
        if (status != MTPLX_OK)
            fail_msg("%s: %s", json_string_value(t), err.message);
        if (out.len != json_string_length(expected) ||
            (out.len && memcmp(out.data, json_string_value(expected), out.len) != 0))
            fail_msg("%s: '%s' instead of '%s'", json_string_value(t), out.data,
                     json_string_value(expected));
    } else {
        assert_int_not_equal(status, MTPLX_OK);
        assert_int_equal(strncmp(err.message, "t ", 2), 0);
        if (strcmp(err.message + 2, error) != 0)
            fail_msg("%s: '%s' instead of '%s'", json_string_value(t), err.message + 2, error);
    }
    mx_strbuf_free(&out);
}

static void golden_cases_agree_with_jinja2(void **state)
{
    (void)state;
    json_t *golden = load("jinja/cases.json"), *cases = json_object_get(golden, "cases"), *c;
    size_t i;
    setenv("TZ", "UTC", 1);
    tzset();
    assert_true(json_array_size(cases) > 1000);
    json_array_foreach(cases, i, c) golden_case(c, json_object_get(golden, "globals"));
    json_decref(golden);
}

/* ---- Language ----------------------------------------------------------------------------- */

static void strings_are_code_points(void **state)
{
    (void)state;
    check("{{ 'aé€😀b'|length }}{{ 'aé€😀b'[3] }}{{ 'aé€😀b'[-2:] }}{{ 'aé€😀b'[::-1] }}", "5😀😀bb😀€éa");
    check("{{ 'éa'.find('a') }}{{ 'straße'.upper() }}{{ 'ÀÉ'|lower }}{{ '😀'.center(3, '*') }}",
          "1STRASSEàé*😀*");
    check("{{ '\xe2\x80\x83x\xc2\xa0'.strip() }}|{{ 'xäy'.strip('xä') }}", "x|y");
}

static void grown_strings_do_not_share_their_ends(void **state)
{
    (void)state;
    /* Both c and d extend b, whose memory has room behind it. */
    check("{% set a = 'x' * 70 %}{% set b = a + '1' %}{% set c = b + '2' %}{% set d = b + '3' %}"
          "{{ b[-2:] }} {{ c[-2:] }} {{ d[-2:] }} {{ (c + 'y')[-3:] }} {{ c[-2:] }}",
          "x1 12 13 12y 12");
}

static void generators_are_read_once(void **state)
{
    (void)state;
    check("{% set g = [1, 2, 3]|map('string') %}{{ g|first }}{{ g|list }}{{ g|list }}",
          "1['2', '3'][]");
    check_error("{{ ([1]|map('string'))|length }}", NULL, MTPLX_ERR_FORMAT,
                "t line 1: object of type 'generator' has no len()");
}

static void macros_keep_their_scope(void **state)
{
    (void)state;
    check("{% set ns = namespace() %}{% for i in [1, 2] %}{% set k = i * 10 %}"
          "{% macro m() %}{{ k }}{% endmacro %}{% set ns.m = m %}{{ ns.m() }};{% endfor %}"
          "{{ ns.m() is string }}",
          "10;20;True");
}

static void newlines_are_normalised(void **state)
{
    (void)state;
    check("a\r\nb\rc\n", "a\nb\nc");
    check("a\n\n", "a\n");
    check("", "");
    check("\n", "");
}

static void variables_of_every_json_type(void **state)
{
    (void)state;
    json_t *g = json_loads(
        "{\"a\": [1, 2.0, true, null, \"x\\u0000y\", {\"k\": []}], \"s\": \"x\\u0000y\"}",
        JSON_ALLOW_NUL, NULL);
    const char *source = "{{ a }}{{ s|length }}{{ s }}";
    struct mx_strbuf out;
    mtplx_error err;
    mx_strbuf_init(&out, 0);
    assert_int_equal(render_with(source, strlen(source), g, NULL, &out, &err), MTPLX_OK);
    static const char expected[] = "[1, 2.0, True, None, 'x\\x00y', {'k': []}]3x\0y";
    assert_int_equal(out.len, sizeof expected - 1);
    assert_memory_equal(out.data, expected, out.len);
    mx_strbuf_free(&out);
    json_decref(g);
}

static void variables_override_functions(void **state)
{
    (void)state;
    json_t *g = json_loads("{\"range\": 5}", 0, NULL);
    struct mx_strbuf out;
    mtplx_error err;
    mx_strbuf_init(&out, 0);
    mx_strbuf_puts(&out, "kept ");
    assert_int_equal(render_with("{{ range }}", 11, g, NULL, &out, &err), MTPLX_OK);
    assert_string_equal(out.data, "kept 5");
    mx_strbuf_free(&out);
    json_decref(g);
}

static void time_is_the_given_one(void **state)
{
    (void)state;
    setenv("TZ", "UTC", 1);
    tzset();
    check("{{ strftime_now('%Y-%m-%d %H:%M:%S') }}|{{ strftime_now('') }}|",
          "2023-11-14 22:13:20||");
}

/* ---- Errors ------------------------------------------------------------------------------- */

static void errors_name_the_line(void **state)
{
    (void)state;
    check_error("a\nb\n{{ x.y }}", NULL, MTPLX_ERR_FORMAT, "t line 3: 'x' is undefined");
    check_error("{%- if true -%}\n\n{{ raise_exception('no ' ~ 1) }}{% endif %}", NULL,
                MTPLX_ERR_ARGUMENT, "t line 3: no 1");
    check_error("{#\n\n#}{{ 'a\nb' }}{{ [\n1,\n2 + 'x'] }}", NULL, MTPLX_ERR_FORMAT,
                "t line 6: unsupported operand type(s) for +: 'int' and 'str'");
    check_error("{% macro m(a) %}\n{{ a.b.c }}\n{% endmacro %}\n\n{{ m({}) }}", NULL,
                MTPLX_ERR_FORMAT, "t line 2: 'dict object' has no attribute 'b'");
    check_error("{% if x %}\n\n", NULL, MTPLX_ERR_FORMAT,
                "t line 2: the template ends before '{% endif %}'");
    check_error("\n\n{# never", NULL, MTPLX_ERR_FORMAT,
                "t line 3: comment is never closed with '#}'");
    check_error("\n{% raw %}\n", NULL, MTPLX_ERR_FORMAT,
                "t line 2: raw block is never closed with '{% endraw %}'");
    check_error("\n{{ 'a }}", NULL, MTPLX_ERR_FORMAT, "t line 2: string is never closed with '");
    check_error("{{ a", NULL, MTPLX_ERR_FORMAT, "t line 1: tag is never closed with '}}'");
    check_error("{{ a ? b }}", NULL, MTPLX_ERR_FORMAT, "t line 1: unexpected character '? b '");
    check_error("{% include 'x' %}", NULL, MTPLX_ERR_FORMAT,
                "t line 1: 'include' is not supported");
}

static void the_sandbox_refuses_changes(void **state)
{
    (void)state;
    check_error("\n{{ [].append(1) }}", NULL, MTPLX_ERR_FORMAT,
                "t line 2: 'append' would change a list, which the sandbox forbids");
    check_error("{{ {}.update({}) }}", NULL, MTPLX_ERR_FORMAT,
                "t line 1: 'update' would change a dict, which the sandbox forbids");
    check_error("{% set d = {} %}{% set d.x = 1 %}", NULL, MTPLX_ERR_FORMAT,
                "t line 1: cannot assign attribute on non-namespace object");
}

static void integers_do_not_wrap(void **state)
{
    (void)state;
    static const char *const overflowing[] = {
        "{{ 9223372036854775807 + 1 }}",        "{{ -9223372036854775807 - 2 }}",
        "{{ 4294967296 * 4294967296 }}",        "{{ 2 ** 63 }}",
        "{{ -(-9223372036854775807 - 1) }}",    "{{ (-9223372036854775807 - 1) // -1 }}",
        "{{ '9223372036854775808'|int }}",      "{{ 9223372036854775808 }}",
        "{{ (-9223372036854775807 - 1)|abs }}",
    };
    for (size_t i = 0; i < sizeof overflowing / sizeof *overflowing; i++)
        check_error(overflowing[i], NULL, MTPLX_ERR_FORMAT, "t line 1: ");
    check("{{ (-9223372036854775807 - 1) % -1 }}{{ '-9223372036854775808'|int }}",
          "0-9223372036854775808");
    check("{{ range(-9223372036854775807, 9223372036854775807, 9223372036854775807)|list|length }}",
          "2");
}

static void bad_sources_are_refused(void **state)
{
    (void)state;
    mtplx_error err = {0};
    assert_null(mx_jinja_parse("a\xff", 2, "t", &err));
    assert_string_equal(err.message, "t is not valid UTF-8");
    size_t n = (4 << 20) + 1;
    char *big = malloc(n);
    assert_non_null(big);
    memset(big, 'a', n);
    assert_null(mx_jinja_parse(big, n, "t", &err));
    assert_int_equal(err.status, MTPLX_ERR_LIMIT);
    struct mx_jinja *j = mx_jinja_parse(big, n - 1, "t", &err);
    assert_non_null(j);
    mx_jinja_free(j);
    free(big);
    assert_null(mx_jinja_parse("{{", 2, "t", NULL));
}

/* ---- Limits ------------------------------------------------------------------------------- */

static void work_is_bounded(void **state)
{
    (void)state;
    const struct mx_jinja_limits few = {.max_steps = 100000};
    static const char *const endless[] = {
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% set l = range(100000)|list %}{{ (l + l + l)|sort }}",
        "{% set s = 'a' * 1000000 %}{% for i in range(10000) %}{% set t = s|upper %}{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% for i in range(90000) %}{{ s == s + '' }}{% endfor %}",
        "{% set s = 'a' * 50000 %}{{ (s + s).rfind(s + 'b') }}",
        "{% for i in range(100) %}{{ ('a' * 100000).strip('b' * 90000 + 'a') }}{% endfor %}",
        "{% set s = 'ab' * 100000 %}{{ s.replace('', 'x')|length }}{{ s.split('a')|length }}",
    };
    for (size_t i = 0; i < sizeof endless / sizeof *endless; i++)
        check_error(endless[i], &few, MTPLX_ERR_LIMIT, "t line 1: the template takes more than");
}

static void memory_is_bounded(void **state)
{
    (void)state;
    static const char *const greedy[] = {
        "{{ 'a' * 10 ** 9 }}",
        "{{ 'a' * 9223372036854775807 }}",
        "{{ [1] * 10 ** 12 }}",
        "{{ 'a'.center(10 ** 9) }}",
        "{{ 'a'.center(10 ** 18, 'é') }}",
        "{{ 'a'.zfill(10 ** 18) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (10 ** 15, 1) }}",
        "{{ '%.999999999f' % 1.5 }}",
        "{{ '{:>999999999}'.format('x') }}",
        "{{ [[1]]|tojson(indent=10 ** 9) }}",
        "{{ 'a'|indent(10 ** 12, true) }}",
        "{{ [1]|batch(10 ** 12, 'x')|list }}",
        "{{ [1]|slice(10 ** 12)|list }}",
        "{{ range(10 ** 12) }}",
        "{{ ('[' + '[],' * 1000000 + '1]')|from_json }}",
        "{% set ns = namespace(s='ab') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}"
        "{% endfor %}",
        "{% set ns = namespace(s='ab') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}"
        "{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = ns.l + ns.l %}"
        "{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% set x %}{% for i in range(1000) %}{{ s }}{% endfor %}"
        "{% endset %}",
        "{% set ns = namespace(s='x') %}{% for i in range(40) %}"
        "{% set ns.s = ns.s.replace('x', 'xx') %}{% endfor %}",
        "{% set ns = namespace(s=['x']) %}{% for i in range(40) %}"
        "{% set ns.s = [ns.s|string, ns.s] %}{% endfor %}",
    };
    for (size_t i = 0; i < sizeof greedy / sizeof *greedy; i++)
        check_error(greedy[i], NULL, MTPLX_ERR_LIMIT, "t line 1: ");
}

static void output_is_bounded(void **state)
{
    (void)state;
    const struct mx_jinja_limits small = {.max_output = 1000};
    check_error("{% for i in range(1000) %}xx{% endfor %}", &small, MTPLX_ERR_LIMIT,
                "t line 1: the output is longer than 1000 bytes");
    check_error("{{ 'a' * 1001 }}", &small, MTPLX_ERR_LIMIT, "t line 1: the output is longer");
    struct mx_strbuf out;
    mtplx_error err;
    mx_strbuf_init(&out, 0);
    mx_strbuf_puts(&out, "not counted");
    assert_int_equal(render_with("{{ 'a' * 1000 }}", 16, NULL, &small, &out, &err), MTPLX_OK);
    assert_int_equal(out.len, 1011);
    mx_strbuf_free(&out);
}

static void recursion_is_bounded(void **state)
{
    (void)state;
    check_error("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}", NULL, MTPLX_ERR_LIMIT,
                "t line 1: macro calls are nested deeper than 200");
    check_error("{% macro a() %}{% call b() %}{% endcall %}{% endmacro %}"
                "{% macro b() %}{{ caller() }}{{ a() }}{% endmacro %}{{ a() }}",
                NULL, MTPLX_ERR_LIMIT, "t line 1: macro calls are nested deeper than 200");
    check_error("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", NULL, MTPLX_ERR_LIMIT,
                "t line 1: macro calls are nested deeper than 200");
    check("{% macro m(n) %}{% if n %}{{ m(n - 1) }}{% else %}end{% endif %}{% endmacro %}"
          "{{ m(190) }}",
          "end");
    const char *deep = "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}"
                       "{% set ns.x = [ns.x] %}{% endfor %}";
    static const char *const walks[] = {"{{ ns.x }}",
                                        "{{ ns.x|tojson }}",
                                        "{{ ns.x == [ns.x] }}",
                                        "{{ ns.x in [[ns.x]] }}",
                                        "{{ [ns.x, [ns.x]]|sort }}",
                                        "{% set ns.me = ns %}{{ ns }}"};
    for (size_t i = 0; i < sizeof walks / sizeof *walks; i++) {
        char *source = nested(deep, walks[i], "", 1);
        check_error(source, NULL, MTPLX_ERR_LIMIT, "t line 1: calls, expressions or values");
        free(source);
    }
}

static void deep_sources_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *open, *middle, *close;
    } cases[] = {
        {"(", "1", ")"},      {"[", "1", "]"},       {"{1:", "1", "}"}, {"not ", "1", ""},
        {"- ", "1", ""},      {"f(", "", ")"},       {"a[", "1", "]"},  {"1 if 1 else ", "1", ""},
        {"x|map(", "1", ")"}, {"1 is eq ", "1", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *e = nested(cases[i].open, cases[i].middle, cases[i].close, 100000);
        char *source = nested("{{ ", e, " }}", 1);
        struct mx_strbuf out;
        mtplx_error err;
        mx_strbuf_init(&out, 0);
        assert_int_not_equal(render_with(source, strlen(source), NULL, NULL, &out, &err), MTPLX_OK);
        mx_strbuf_free(&out);
        free(e);
        free(source);
    }
    char *blocks = nested("{% if 1 %}", "x", "{% endif %}", 10000);
    check_error(blocks, NULL, MTPLX_ERR_FORMAT, "t line 1: blocks or expressions are nested");
    free(blocks);
    char *filters = nested("|abs", " }}", "", 100000), *source = nested("{{ 1", filters, "", 1);
    check_error(source, NULL, MTPLX_ERR_LIMIT, "t line 1: calls, expressions or values are nested");
    free(filters);
    free(source);
}

/* Long chains of one operator are not deep. */
static void long_chains_are_fine(void **state)
{
    (void)state;
    char *sum = nested("1 + ", "1", "", 5000), *source = nested("{{ ", sum, " }}", 1);
    check(source, "5001");
    free(sum);
    free(source);
    sum = nested("'a' ~ ", "'' ", "", 300);
    source = nested("{{ (", sum, ")|length }}", 1);
    check(source, "300");
    free(sum);
    free(source);
    char *elifs = nested("{% elif 0 %}", "{% else %}x{% endif %}", "", 5000);
    source = nested("{% if 0 %}", elifs, "", 1);
    check(source, "x");
    free(elifs);
    free(source);
}

static void large_dicts_are_not_quadratic(void **state)
{
    (void)state;
    json_t *d = json_object(), *g = json_object();
    char key[32];
    for (int i = 0; i < 50000; i++) {
        snprintf(key, sizeof key, "key%d", i);
        json_object_set_new(d, key, json_integer(i));
    }
    json_object_set_new(g, "d", d);
    const char *source = "{% set ns = namespace(n=0) %}{% for k in d %}"
                         "{% set ns.n = ns.n + d[k] %}{% endfor %}{{ ns.n }}";
    const struct mx_jinja_limits limits = {.max_steps = 2000000};
    struct mx_strbuf out;
    mtplx_error err;
    mx_strbuf_init(&out, 0);
    assert_int_equal(render_with(source, strlen(source), g, &limits, &out, &err), MTPLX_OK);
    assert_string_equal(out.data, "1249975000");
    mx_strbuf_free(&out);
    json_decref(g);
}

/* A string grown by `s = s + x` costs linear memory. */
static void growing_a_string_is_linear(void **state)
{
    (void)state;
    const char *source = "{% set ns = namespace(s='') %}{% for i in range(50000) %}"
                         "{% set ns.s = ns.s + '0123456789' %}{% endfor %}{{ ns.s|length }}";
    const struct mx_jinja_limits limits = {.max_memory = 16 << 20};
    struct mx_strbuf out;
    mtplx_error err;
    mx_strbuf_init(&out, 0);
    assert_int_equal(render_with(source, strlen(source), NULL, &limits, &out, &err), MTPLX_OK);
    assert_string_equal(out.data, "500000");
    mx_strbuf_free(&out);
}

/* ---- Threads ------------------------------------------------------------------------------ */

static void *render_in_thread(void *arg)
{
    struct mx_strbuf out;
    char *text = NULL;
    mx_strbuf_init(&out, 0);
    for (int i = 0; i < 50; i++) {
        mx_strbuf_clear(&out);
        if (mx_jinja_render(arg, NULL, NULL, 0, &out, NULL) != MTPLX_OK)
            break;
    }
    text = mx_strbuf_steal(&out, NULL);
    return text;
}

static void threads_share_a_template(void **state)
{
    (void)state;
    const char *source = "{% macro m(x) %}<{{ x|upper }}>{% endmacro %}{% for c in 'aé' * 20 %}"
                         "{{ m(c) }}{% endfor %}";
    mtplx_error err = {0};
    struct mx_jinja *j = mx_jinja_parse(source, strlen(source), "t", &err);
    assert_non_null(j);
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, render_in_thread, j), 0);
    char *first = NULL;
    for (int i = 0; i < 4; i++) {
        void *text;
        pthread_join(t[i], &text);
        assert_non_null(text);
        if (!first)
            first = text;
        else {
            assert_string_equal(text, first);
            free(text);
        }
    }
    assert_int_equal(strncmp(first, "<A><É><A>", 10), 0);
    free(first);
    mx_jinja_free(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_cases_agree_with_jinja2),
        cmocka_unit_test(strings_are_code_points),
        cmocka_unit_test(grown_strings_do_not_share_their_ends),
        cmocka_unit_test(generators_are_read_once),
        cmocka_unit_test(macros_keep_their_scope),
        cmocka_unit_test(newlines_are_normalised),
        cmocka_unit_test(variables_of_every_json_type),
        cmocka_unit_test(variables_override_functions),
        cmocka_unit_test(time_is_the_given_one),
        cmocka_unit_test(errors_name_the_line),
        cmocka_unit_test(the_sandbox_refuses_changes),
        cmocka_unit_test(integers_do_not_wrap),
        cmocka_unit_test(bad_sources_are_refused),
        cmocka_unit_test(work_is_bounded),
        cmocka_unit_test(memory_is_bounded),
        cmocka_unit_test(output_is_bounded),
        cmocka_unit_test(recursion_is_bounded),
        cmocka_unit_test(deep_sources_are_refused),
        cmocka_unit_test(long_chains_are_fine),
        cmocka_unit_test(large_dicts_are_not_quadratic),
        cmocka_unit_test(growing_a_string_is_linear),
        cmocka_unit_test(threads_share_a_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
