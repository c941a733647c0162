/* The tool-call parser: the same events come out however the text is cut up; what is no call is
 * text, byte for byte; arguments are what the model wrote, in the types of the schema. */
#include "text/toolcall.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/strbuf.h"

/* ---- Helpers ---- */

static const char tools_text[] =
    "[{'type':'function','function':{'name':'get','parameters':{'type':'object','properties':{"
    "'city':{'type':'string'},'days':{'type':'integer'},'ratio':{'type':'number'},"
    "'deep':{'type':'boolean'},'list':{'type':'array','items':{'type':'string'}},"
    "'map':{'type':'object'},'maybe':{'anyOf':[{'type':'string'},{'type':'null'}]},"
    "'mixed':{'type':['string','integer']},'free':{},'ref':{'$ref':'#/$defs/n'},"
    "'unit':{'enum':['c','f']}},'$defs':{'n':{'type':'integer'}}}}},"
    "{'type':'function','function':{'name':'ping'}}]";

/* JSON with ' for ". */
static json_t *parse(const char *text)
{
    char *copy = strdup(text);
    for (char *c = copy; *c; c++) {
        if (*c == '\'')
            *c = '"';
    }
    json_t *v = json_loads(copy, 0, NULL);
    free(copy);
    assert_non_null(v);
    return v;
}

/* Events as text: T(..), B0(name), A0(..), E0; neighbours of T and A joined. */
struct log {
    struct mx_strbuf text;
    int last; /* event, -1 at first */
};

static void record(void *arg, enum mx_tool_event event, int call, const char *text, size_t n)
{
    struct log *l = arg;
    bool joins = event == MX_TOOL_TEXT || event == MX_TOOL_ARGS;
    if (joins && (int)event == l->last)
        l->text.data[--l->text.len] = '\0';
    else if (event == MX_TOOL_TEXT)
        mx_strbuf_puts(&l->text, "T(");
    else
        mx_strbuf_printf(&l->text, "%c%d(", "TBAE"[event], call);
    mx_strbuf_append(&l->text, text, n);
    mx_strbuf_putc(&l->text, ')');
    l->last = (int)event;
}

struct run {
    struct mx_toolcall_options o;
    struct mx_toolcall_counts counts;
    char *log;
};

/* Pushes text[0..n) cut at `cut` and in pieces of `step` bytes behind it. */
static void run_cut(struct run *r, const char *text, size_t n, size_t cut, size_t step)
{
    struct log l = {.last = -1};
    mtplx_error err = {0};
    struct mx_toolcall *t = mx_toolcall_new(&r->o, record, &l, &err);
    assert_non_null(t);
    for (size_t i = 0, k; i < n; i += k) {
        k = i < cut ? cut - i : step;
        k = k < n - i ? k : n - i;
        assert_true(mx_toolcall_push(t, text + i, k));
    }
    assert_true(mx_toolcall_finish(t));
    r->counts = *mx_toolcall_get_counts(t);
    mx_toolcall_free(t);
    mx_strbuf_puts(&l.text, "");
    r->log = mx_strbuf_steal(&l.text, NULL);
}

/* Runs a text whole, cut in two everywhere, and in steps; all must agree with `expected`. */
static void run_all(struct run *r, const char *text, size_t n, const char *expected)
{
    for (size_t cut = 0; cut <= n; cut++) {
        run_cut(r, text, n, cut, n + 1);
        assert_string_equal(r->log, expected);
        free(r->log);
    }
    for (size_t step = 1; step < 9 && step <= n; step++) {
        run_cut(r, text, n, 0, step);
        assert_string_equal(r->log, expected);
        free(r->log);
    }
}

static struct mx_toolcall_counts check_hold(enum mx_tool_syntax syntax, size_t hold,
                                            const char *text, const char *expected)
{
    struct run r = {.o = {.syntax = syntax, .tools = parse(tools_text), .hold_bytes = hold}};
    run_all(&r, text, strlen(text), expected);
    json_decref((json_t *)(uintptr_t)r.o.tools);
    return r.counts;
}

static struct mx_toolcall_counts check(enum mx_tool_syntax syntax, const char *text,
                                       const char *expected)
{
    return check_hold(syntax, 0, text, expected);
}

/* The text comes out as it is, as one piece of text. */
static struct mx_toolcall_counts check_text(enum mx_tool_syntax syntax, const char *text)
{
    struct mx_strbuf b;
    mx_strbuf_init(&b, 0);
    mx_strbuf_printf(&b, "T(%s)", text);
    struct mx_toolcall_counts c = check(syntax, text, b.data);
    mx_strbuf_free(&b);
    return c;
}

#define XML(body) "<tool_call>\n<function=get>\n" body "</function>\n</tool_call>"
#define PARAM(key, value) "<parameter=" key ">\n" value "\n</parameter>\n"

/* ---- Qwen's XML ---- */

static void test_xml_calls(void **state)
{
    (void)state;
    struct mx_toolcall_counts c;
    c = check(MX_TOOLS_QWEN_XML, "Let me look.\n\n" XML(PARAM("city", "Rome")) "\n",
              "T(Let me look.)B0(get)A0({\"city\":\"Rome\"})E0()");
    assert_int_equal(c.parsed, 1);
    assert_int_equal(c.malformed, 0);
    c = check(MX_TOOLS_QWEN_XML, XML(PARAM("city", "a")) "\n" XML(PARAM("days", "2")) "\nDone.",
              "B0(get)A0({\"city\":\"a\"})E0()B1(get)A1({\"days\":2})E1()T(\nDone.)");
    assert_int_equal(c.parsed, 2);
    check(MX_TOOLS_QWEN_XML, XML(""), "B0(get)A0({})E0()");
    check(MX_TOOLS_QWEN_XML,
          "<tool_call><function=get><parameter=city>Rome</parameter>"
          "</function></tool_call>",
          "B0(get)A0({\"city\":\"Rome\"})E0()");
    /* Two functions in one call, none around it, and one end less. */
    check(MX_TOOLS_QWEN_XML,
          "<tool_call><function=get></function>\n<function=ping></function>\n"
          "</tool_call>x",
          "B0(get)A0({})E0()B1(ping)A1({})E1()T(x)");
    check(MX_TOOLS_QWEN_XML, "a <function=ping>\n</function>\n</tool_call> b",
          "T(a)B0(ping)A0({})E0()T( b)");
    check(MX_TOOLS_QWEN_XML, "<function=ping></function>\n b", "B0(ping)A0({})E0()T(\n b)");
    check(MX_TOOLS_QWEN_XML, "<tool_call><function=get>" PARAM("city", "x") "</tool_call>",
          "B0(get)A0({\"city\":\"x\"})E0()");
    /* The JSON form that other models of the family write. */
    check(MX_TOOLS_QWEN_XML, "<tool_call>\n{\"name\": \"ping\"}\n</tool_call>",
          "B0(ping)A0({})E0()");
}

static void test_xml_values(void **state)
{
    (void)state;
    check(MX_TOOLS_QWEN_XML, XML(PARAM("city", "\n a \"b\"\\\t<c>\n\n")),
          "B0(get)A0({\"city\":\"\\n a \\\"b\\\"\\\\\\t<c>\\n\\n\"})E0()");
    check(MX_TOOLS_QWEN_XML, XML(PARAM("city", "")), "B0(get)A0({\"city\":\"\"})E0()");
    check(MX_TOOLS_QWEN_XML, XML("<parameter=city>\n</parameter>\n"),
          "B0(get)A0({\"city\":\"\"})E0()");
    check(MX_TOOLS_QWEN_XML, XML(PARAM("city", "a</parameter> b </parameter>\n<x>")),
          "B0(get)A0({\"city\":\"a</parameter> b </parameter>\\n<x>\"})E0()");
    check(MX_TOOLS_QWEN_XML, XML(PARAM("city", "<tool_call>\n<function=ping>\n</function>")),
          "B0(get)A0({\"city\":\"<tool_call>\\n<function=ping>\\n</function>\"})E0()");
    check(MX_TOOLS_QWEN_XML, XML(PARAM("city", "Zürich 日本")),
          "B0(get)A0({\"city\":\"Zürich 日本\"})E0()");
    check(MX_TOOLS_QWEN_XML, XML(PARAM("city", "5") PARAM("city", "6")),
          "B0(get)A0({\"city\":\"5\"})E0()");
    check(MX_TOOLS_QWEN_XML, XML(PARAM("days", "5") PARAM("days", "6") PARAM("city", "6")),
          "B0(get)A0({\"days\":5,\"city\":\"6\"})E0()");
}

static void check_value(const char *key, const char *value, const char *expected)
{
    struct mx_strbuf in, out;
    mx_strbuf_init(&in, 0);
    mx_strbuf_init(&out, 0);
    mx_strbuf_printf(&in,
                     "<tool_call>\n<function=get>\n<parameter=%s>\n%s\n</parameter>\n"
                     "</function>\n</tool_call>",
                     key, value);
    mx_strbuf_printf(&out, "B0(get)A0({\"%s\":%s})E0()", key, expected);
    check(MX_TOOLS_QWEN_XML, in.data, out.data);
    mx_strbuf_free(&in);
    mx_strbuf_free(&out);
}

static void test_types(void **state)
{
    (void)state;
    check_value("city", "42", "\"42\"");
    check_value("city", "null", "\"null\"");
    check_value("city", "\"x\"", "\"\\\"x\\\"\"");
    check_value("days", " 42 ", "42");
    check_value("days", "4.0", "4.0");
    check_value("days", "4.5", "\"4.5\"");
    check_value("days", "many", "\"many\"");
    check_value("days", "123456789012345678901234567890", "123456789012345678901234567890");
    check_value("ratio", "1.10", "1.10");
    check_value("ratio", "3", "3");
    check_value("ratio", "01", "\"01\"");
    check_value("deep", "true", "true");
    check_value("deep", "False", "false");
    check_value("deep", "1", "\"1\"");
    check_value("list", "[\"a\", {\"b\": [1]}]", "[\"a\", {\"b\": [1]}]");
    check_value("list", "[\"a\nb\"]", "[\"a\\nb\"]");
    check_value("list", "[\"a\",]", "\"[\\\"a\\\",]\"");
    check_value("list", "{}", "\"{}\"");
    check_value("map", "{\"a\": 1}", "{\"a\": 1}");
    check_value("maybe", "null", "null");
    check_value("maybe", "none", "\"none\"");
    check_value("maybe", "5", "\"5\"");
    check_value("mixed", "5", "5");
    check_value("mixed", "5a", "\"5a\"");
    check_value("mixed", "null", "\"null\"");
    check_value("free", "{\"a\": [true]}", "{\"a\": [true]}");
    check_value("free", "words", "\"words\"");
    check_value("unknown", "7", "7");
    check_value("ref", "8", "8");
    check_value("ref", "x", "\"x\"");
    check_value("unit", "5", "\"5\"");
}

static void test_xml_broken(void **state)
{
    (void)state;
    struct mx_toolcall_counts c;
    c = check_text(MX_TOOLS_QWEN_XML, "<tool_call>\n<function=get>\nno</function>\n</tool_call>");
    assert_int_equal(c.malformed, 1);
    c = check_text(MX_TOOLS_QWEN_XML, XML("<parameter=city>\nRome\n"));
    assert_int_equal(c.malformed, 1);
    c = check_text(MX_TOOLS_QWEN_XML, "a <tool_call> \n b </tool_call> \n");
    assert_int_equal(c.malformed, 0);
    check_text(MX_TOOLS_QWEN_XML, "a <tool_call>\n<function=>\n</function></tool_call>");
    check_text(MX_TOOLS_QWEN_XML, "<tool_call></tool_call>");
    /* What it stands in is broken, but the call is not. */
    check(MX_TOOLS_QWEN_XML, "<tool_call>\n<function=get>\n</function>\nand</tool_call>",
          "T(<tool_call>)B0(get)A0({})E0()T(\nand</tool_call>)");
    check_text(MX_TOOLS_QWEN_XML, "write `<tool_call>\n<function=get>\n</function>\n</tool_call>`");
    check_text(MX_TOOLS_QWEN_XML, "if a <b and <tool_cal, <func");
    check_text(MX_TOOLS_QWEN_XML, "x\n\n ");
    check_text(MX_TOOLS_QWEN_XML, "<tool_call>");
    c = check_text(MX_TOOLS_QWEN_XML,
                   "<tool_call>\n<function=nope>\n" PARAM("a", "b") "</function>\n</tool_call>\n");
    assert_int_equal(c.unknown_tool, 1);
    assert_int_equal(c.malformed, 0);
    /* Nothing inside a call of an unknown tool is a call, and the one behind it is. */
    c = check(
        MX_TOOLS_QWEN_XML,
        "<tool_call>\n<function=nope>\n" PARAM("a", XML("")) "</function>\n</tool_call>\n" XML(""),
        "T(<tool_call>\n<function=nope>\n" PARAM("a", XML("")) "</function>\n</tool_call>)"
                                                               "B0(get)A0({})E0()");
    assert_int_equal(c.unknown_tool, 1);
    assert_int_equal(c.parsed, 1);
    /* A broken call does not hide the next. */
    check(MX_TOOLS_QWEN_XML, "<tool_call>\n<function=get>oops\n" XML(""),
          "T(<tool_call>\n<function=get>oops)B0(get)A0({})E0()");
    check(MX_TOOLS_QWEN_XML, "<<tool_call><tool_call>\n<function=get></function></tool_call>",
          "T(<<tool_call>)B0(get)A0({})E0()");
    check(MX_TOOLS_QWEN_XML, XML("") "\n<tool_call>\nwell",
          "B0(get)A0({})E0()T(\n<tool_call>\nwell)");
}

static void test_xml_ends(void **state)
{
    (void)state;
    check(MX_TOOLS_QWEN_XML, "<tool_call>\n<function=get>\n" PARAM("days", "1") "</function>",
          "B0(get)A0({\"days\":1})E0()");
    check(MX_TOOLS_QWEN_XML,
          "<tool_call>\n<function=get>\n" PARAM("days", "1") "</function>\n</tool_",
          "B0(get)A0({\"days\":1})E0()");
    check(MX_TOOLS_QWEN_XML, "<tool_call>\n<function=get>\n" PARAM("days", "1") "</fun",
          "B0(get)A0({\"days\":1})E0()");
    check(MX_TOOLS_QWEN_XML, "<function=get></function>\n</tool", "B0(get)A0({})E0()");
    check_text(MX_TOOLS_QWEN_XML, "<tool_call>\n<function=get>\n" PARAM("days", "1"));
    check_text(MX_TOOLS_QWEN_XML, "<tool_call>\n<function=get>\n" PARAM("days", "1") "<param");
    check_text(MX_TOOLS_QWEN_XML, "<tool_call>\n<function=get>\n<parameter=city>\nx</para");
    check_text(MX_TOOLS_QWEN_XML, "<tool_call>\n<function=get");
}

/* ---- Hermes ---- */

#define HERMES(json) "<tool_call>\n" json "\n</tool_call>"

static void test_hermes(void **state)
{
    (void)state;
    struct mx_toolcall_counts c;
    c = check(MX_TOOLS_HERMES,
              "ok " HERMES("{\"name\": \"get\", \"arguments\": {\"a\": [1, 2.5e3]}}"),
              "T(ok)B0(get)A0({\"a\": [1, 2.5e3]})E0()");
    assert_int_equal(c.parsed, 1);
    check(MX_TOOLS_HERMES,
          HERMES("{\"arguments\": {\"a\": \"}\\u00e9\\ud83d\\ude00\"}, \"name\": \"get\"}"),
          "B0(get)A0({\"a\": \"}\\u00e9\\ud83d\\ude00\"})E0()");
    check(MX_TOOLS_HERMES, HERMES("{\"id\": 12, \"name\": \"g\\u0065t\", \"parameters\": {}}"),
          "B0(get)A0({})E0()");
    check(MX_TOOLS_HERMES, HERMES("{\"name\": \"get\", \"arguments\": \"{\\\"a\\\": 1}\"}"),
          "B0(get)A0({\"a\": 1})E0()");
    check(MX_TOOLS_HERMES, HERMES("{\"name\": \"get\", \"arguments\": null}"), "B0(get)A0({})E0()");
    check(MX_TOOLS_HERMES, HERMES("{\"name\": \"get\", \"arguments\": {\"a\": \"x\ny\"}}"),
          "B0(get)A0({\"a\": \"x\\ny\"})E0()");
    check(MX_TOOLS_HERMES, HERMES("{\"name\": \"get\"}") "\n" HERMES("{\"name\": \"ping\"}"),
          "B0(get)A0({})E0()B1(ping)A1({})E1()");
    check(MX_TOOLS_HERMES, "<tool_call>{\"name\": \"get\"}", "B0(get)A0({})E0()");
    check(MX_TOOLS_HERMES, "<tool_call>{\"name\": \"get\"}\n</tool", "B0(get)A0({})E0()");
}

static void test_hermes_broken(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{\"name\": \"get\", \"arguments\": {\"a\": 1}}}",
        "{\"name\": \"get\", \"arguments\": {\"a\": 1}",
        "{\"name\": \"get\", \"arguments\": {\"a\": }}",
        "{\"name\": \"get\", \"arguments\": {\"a\": 1,}}",
        "{\"name\": \"get\", \"arguments\": [1]}",
        "{\"name\": \"get\", \"arguments\": \"[1]\"}",
        "{\"name\": \"get\", \"arguments\": \"{\"}",
        "{\"name\": \"get\", \"arguments\": {\"a\": \"\\ud800\"}}",
        "{\"name\": \"get\", \"arguments\": {\"a\": \"\\udc00\"}}",
        "{\"name\": \"get\", \"arguments\": {\"a\": \"\\x\"}}",
        "{\"name\": \"get\", \"arguments\": {\"a\": 01}}",
        "{\"name\": \"get\", \"arguments\": {\"a\": tru}}",
        "{\"name\": \"get\", \"arguments\": {}, \"arguments\": {}}",
        "{\"name\": \"get\", \"name\": \"get\"}",
        "{\"name\": \"get\",}",
        "{\"name\": 1}",
        "{\"name\": \"\"}",
        "{name: \"get\"}",
        "{}",
        "{",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        struct mx_strbuf b;
        mx_strbuf_init(&b, 0);
        mx_strbuf_printf(&b, "x\n<tool_call>\n%s\n</tool_call>\ny\n", bodies[i]);
        struct mx_toolcall_counts c = check_text(MX_TOOLS_HERMES, b.data);
        assert_int_equal(c.parsed, 0);
        assert_int_equal(c.malformed, 1);
        mx_strbuf_free(&b);
    }
    struct mx_toolcall_counts c = check_text(
        MX_TOOLS_HERMES, HERMES("{\"name\": \"nope\", \"arguments\": {\"a\": \"<tool_call>\"}}"));
    assert_int_equal(c.unknown_tool, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_xml_calls),     cmocka_unit_test(test_xml_values),
        cmocka_unit_test(test_types),         cmocka_unit_test(test_xml_broken),
        cmocka_unit_test(test_xml_ends),      cmocka_unit_test(test_hermes),
        cmocka_unit_test(test_hermes_broken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
