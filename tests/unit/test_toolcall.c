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
    "'unit':{'enum':['c','f']},'const':{'const':5},'null':{'type':'string','nullable':true},"
    "'all':{'allOf':[{'type':['string','integer']},{'type':['integer','null']}]},"
    "'loop':{'$ref':'#/properties/loop'},'deep_ref':{'$ref':'#/$defs/a~1b/anyOf/1'},"
    "'shape':{'properties':{}},'items':{'items':{}},'away':{'$ref':'other.json#/x'}},"
    "'$defs':{'n':{'type':'integer'},'a/b':{'anyOf':[{'type':'string'},{'type':'boolean'}]}}}}},"
    "{'type':'function','function':{'name':'more','parameters':{'additionalProperties':{"
    "'type':'string'}}}},"
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
    struct mx_strbuf text, args; /* args: of the last call */
    int last;                    /* event, -1 at first */
};

/* The arguments of a complete call are one JSON object. */
static void assert_object(const struct mx_strbuf *b)
{
    json_error_t e;
    json_t *v = json_loadb(b->data, b->len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &e);
    assert_true(json_is_object(v));
    json_decref(v);
}

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
    if (event == MX_TOOL_BEGIN)
        mx_strbuf_clear(&l->args);
    else if (event == MX_TOOL_ARGS)
        mx_strbuf_append(&l->args, text, n);
    else if (event == MX_TOOL_END)
        assert_object(&l->args);
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
    mx_strbuf_free(&l.args);
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
    check_value("const", "5", "5");
    check_value("const", "6x", "\"6x\"");
    check_value("null", "null", "null");
    check_value("null", "7", "\"7\"");
    check_value("all", "7", "7");
    check_value("all", "null", "\"null\"");
    check_value("loop", "7", "7");
    check_value("deep_ref", "true", "true");
    check_value("deep_ref", "7", "\"7\"");
    check_value("shape", "{}", "{}");
    check_value("shape", "[]", "\"[]\"");
    check_value("items", "[1]", "[1]");
    check_value("away", "[1]", "[1]");
    check(MX_TOOLS_QWEN_XML, "<function=more><parameter=x>7</parameter></function>",
          "B0(more)A0({\"x\":\"7\"})E0()");
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

/* ---- Other syntaxes ---- */

static void test_glm(void **state)
{
    (void)state;
    struct mx_toolcall_counts c;
    c = check(MX_TOOLS_GLM,
              "Hm.\n<tool_call>get\n<arg_key>city</arg_key>\n<arg_value> New\nYork\n</arg_value>\n"
              "<arg_key>days</arg_key><arg_value>3</arg_value>\n</tool_call>\n<tool_call>ping"
              "</tool_call>",
              "T(Hm.)B0(get)A0({\"city\":\" New\\nYork\\n\",\"days\":3})E0()B1(ping)A1({})E1()");
    assert_int_equal(c.parsed, 2);
    check(MX_TOOLS_GLM, "<tool_call>\nping\n</tool_call>", "B0(ping)A0({})E0()");
    check(MX_TOOLS_GLM, "<tool_call>get\n<arg_key>days</arg_key>\n<arg_value>3</arg_value></tool",
          "B0(get)A0({\"days\":3})E0()");
    check(MX_TOOLS_GLM,
          "<tool_call>get\n<arg_key>city</arg_key>\n<arg_value>a</arg_value>b</arg_value>"
          "</tool_call>",
          "B0(get)A0({\"city\":\"a</arg_value>b\"})E0()");
    check_text(MX_TOOLS_GLM, "<tool_call>get\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>");
    check_text(MX_TOOLS_GLM, "<tool_call>get\n<arg_key>days</arg_key>\n3</tool_call>");
    check_text(MX_TOOLS_GLM, "the <tool_call> of get");
    c = check_text(MX_TOOLS_GLM, "<tool_call>nope\n</tool_call>");
    assert_int_equal(c.unknown_tool, 1);
}

#define GEMMA(body) "<|tool_call>call:" body "<tool_call|>"

static void test_gemma(void **state)
{
    (void)state;
    check(MX_TOOLS_GEMMA4, "a " GEMMA("get{city:<|\"|>New <b> \"York\"<|\"|>,days:3,deep:true}"),
          "T(a)B0(get)A0({\"city\":\"New <b> \\\"York\\\"\",\"days\":3,\"deep\":true})E0()");
    check(MX_TOOLS_GEMMA4,
          GEMMA("get{map:{a:[1, -2.5e3,[],{}],<|\"|>b c<|\"|> : null }, list:[<|\"|><|\"|>]}")
              GEMMA("ping{}"),
          "B0(get)A0({\"map\":{\"a\":[1,-2.5e3,[],{}],\"b c\":null},\"list\":[\"\"]})E0()"
          "B1(ping)A1({})E1()");
    check(MX_TOOLS_GEMMA4, GEMMA("get{city:New York ,days:1 }"),
          "B0(get)A0({\"city\":\"New York\",\"days\":1})E0()");
    check(MX_TOOLS_GEMMA4, "<|tool_call>call:ping{}", "B0(ping)A0({})E0()");
    check(MX_TOOLS_GEMMA4, "<|tool_call>call:ping{}<tool_", "B0(ping)A0({})E0()");
    static const char *const broken[] = {
        GEMMA("get{city}"),    GEMMA("get{city:}"),
        GEMMA("get{:1}"),      GEMMA("get{a:1,}"),
        GEMMA("get{a:[1}}"),   GEMMA("get{a:[1,]}"),
        GEMMA("get{a:1,a:2}"), GEMMA("get{a:<|\"|>b}"),
        GEMMA("get{a:1}}"),    GEMMA("{}"),
        GEMMA("get{a:\"b\"}"), GEMMA("nope{a:1}"),
        GEMMA("get "),         "<|tool_call>get{}<tool_call|>",
    };
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        check_text(MX_TOOLS_GEMMA4, broken[i]);
}

#define V3_CALL(body) "<｜tool▁call▁begin｜>" body "<｜tool▁call▁end｜>"
#define V3(calls) "<｜tool▁calls▁begin｜>" calls "<｜tool▁calls▁end｜>"

static void test_deepseek(void **state)
{
    (void)state;
    check(MX_TOOLS_DEEPSEEK_V3,
          "Wait.\n\n" V3(
              V3_CALL("get<｜tool▁sep｜>{\"a\": \"é\"}") "\n" V3_CALL("ping<｜tool▁sep｜>{}")),
          "T(Wait.)B0(get)A0({\"a\": \"é\"})E0()B1(ping)A1({})E1()");
    check(MX_TOOLS_DEEPSEEK_V3, V3(V3_CALL("function<｜tool▁sep｜>get\n```json\n{\"a\": 1}\n```")),
          "B0(get)A0({\"a\": 1})E0()");
    check(MX_TOOLS_DEEPSEEK_V3, V3_CALL("ping<｜tool▁sep｜>{}") " x", "B0(ping)A0({})E0()T( x)");
    check(MX_TOOLS_DEEPSEEK_V3, "<｜tool▁calls▁begin｜>" V3_CALL("ping<｜tool▁sep｜>{}"),
          "B0(ping)A0({})E0()");
    check_text(MX_TOOLS_DEEPSEEK_V3, V3_CALL("get<｜tool▁sep｜>[]"));
    check_text(MX_TOOLS_DEEPSEEK_V3, V3_CALL("get<｜tool▁sep｜>"));
    check_text(MX_TOOLS_DEEPSEEK_V3, V3_CALL("<｜tool▁sep｜>{}"));
    check_text(MX_TOOLS_DEEPSEEK_V3, V3_CALL("get<｜tool▁sep｜>{\"a\":1} x"));
    check_text(MX_TOOLS_DEEPSEEK_V3, "<｜User｜> <｜tool▁cal");
}

#define DSML(body) "<｜DSML｜tool_calls>\n" body "</｜DSML｜tool_calls>"
#define INVOKE(name, body) "<｜DSML｜invoke name=\"" name "\">\n" body "</｜DSML｜invoke>\n"
#define PARAMETER(key, string, value)                                                              \
    "<｜DSML｜parameter name=\"" key "\"" string ">" value "</｜DSML｜parameter>\n"

static void test_dsml(void **state)
{
    (void)state;
    check(MX_TOOLS_DSML,
          DSML(INVOKE("get", PARAMETER("days", " string=\"true\"", "3")
                                 PARAMETER("city", " string=\"false\"", "{\"a\": 1}")
                                     PARAMETER("deep", " string=\"false\"", "\"x\"")
                                         PARAMETER("ratio", "", "4")) INVOKE("ping", "")),
          "B0(get)A0({\"days\":\"3\",\"city\":{\"a\": 1},\"deep\":\"x\",\"ratio\":4})E0()"
          "B1(ping)A1({})E1()");
    check(MX_TOOLS_DSML, "<｜DSML｜function_calls>" INVOKE("ping", "") "</｜DSML｜function_calls>",
          "B0(ping)A0({})E0()");
    check(MX_TOOLS_DSML, "<｜DSML｜function_calls>" INVOKE("ping", ""), "B0(ping)A0({})E0()");
    check_text(MX_TOOLS_DSML, INVOKE("ping", ""));
    check_text(MX_TOOLS_DSML, DSML(INVOKE("get", PARAMETER("a", " string=\"no\"", "b"))));
    check_text(MX_TOOLS_DSML, DSML(INVOKE("nope", "")));
}

static void test_minimax(void **state)
{
    (void)state;
    check(MX_TOOLS_MINIMAX,
          "Go.\n<minimax:tool_call>\n<invoke name=\"get\">\n<parameter "
          "name=\"city\">Rome</parameter>\n"
          "<parameter name=\"days\">2</parameter>\n</invoke>\n<invoke name=\"ping\"></invoke>\n"
          "</minimax:tool_call>\n",
          "T(Go.)B0(get)A0({\"city\":\"Rome\",\"days\":2})E0()B1(ping)A1({})E1()");
    check_text(MX_TOOLS_MINIMAX, "<invoke name=\"get\"></invoke>");
    check_text(MX_TOOLS_MINIMAX, "<minimax:tool_call><invoke name=\"get\"><x></invoke>");
}

static void test_syntax_of_templates(void **state)
{
    (void)state;
    assert_int_equal(mx_tool_syntax_of(NULL), MX_TOOLS_NONE);
    assert_int_equal(mx_tool_syntax_of("{{ messages }}"), MX_TOOLS_NONE);
    assert_int_equal(mx_tool_syntax_of("<tool_call>\n{\"name\":"), MX_TOOLS_HERMES);
    assert_int_equal(mx_tool_syntax_of("<tool_call>\n<function=x>"), MX_TOOLS_QWEN_XML);
    assert_int_equal(mx_tool_syntax_of("<tool_call>' + n + '<arg_key>"), MX_TOOLS_GLM);
    assert_int_equal(mx_tool_syntax_of("'<|tool_call>call:'"), MX_TOOLS_GEMMA4);
    assert_int_equal(mx_tool_syntax_of("<｜tool▁calls▁begin｜>"), MX_TOOLS_DEEPSEEK_V3);
    assert_int_equal(mx_tool_syntax_of("<｜DSML｜tool_calls>"), MX_TOOLS_DSML);
    assert_int_equal(mx_tool_syntax_of("<minimax:tool_call> <tool_call>"), MX_TOOLS_MINIMAX);
    for (int s = MX_TOOLS_NONE; s <= MX_TOOLS_MINIMAX; s++) {
        assert_non_null(mx_tool_syntax_name((enum mx_tool_syntax)s));
        assert_int_equal(mx_tool_syntax_start((enum mx_tool_syntax)s) == NULL, s == MX_TOOLS_NONE);
    }
}

/* ---- Limits and policies ---- */

static void test_long_calls_stream(void **state)
{
    (void)state;
    struct mx_toolcall_counts c;
    c = check_hold(MX_TOOLS_QWEN_XML, 30, "a\n" XML(PARAM("city", "a long text that goes on")),
                   "T(a)B0(get)A0({\"city\":\"a long text that goes on\"})E0()");
    assert_int_equal(c.parsed, 1);
    /* What cannot be taken back has no end. */
    c = check_hold(
        MX_TOOLS_QWEN_XML, 30, XML(PARAM("city", "a long text that goes on") "oops"),
        "B0(get)A0({\"city\":\"a long text that goes on\\n</parameter>\\noops</function>\\n"
        "</tool_call>)");
    assert_int_equal(c.malformed, 1);
    c = check_hold(MX_TOOLS_QWEN_XML, 30,
                   XML(PARAM("days", "1") "<parameter=city>\na<parameter=</parameter>\n<para"),
                   "B0(get)A0({\"days\":1,\"city\":\"a<parameter=</parameter>\\n<para</function>\\n"
                   "</tool_call>)");
    c = check_hold(MX_TOOLS_HERMES, 10,
                   HERMES("{\"name\":\"get\",\"arguments\":{\"a\":\"xyz\",}}")
                       HERMES("{\"name\":\"ping\"}"),
                   "B0(get)A0({\"a\":\"xyz\",)T(}}\n</tool_call>)B1(ping)A1({})E1()");
    assert_int_equal(c.malformed, 1);
    assert_int_equal(c.parsed, 1);
    check_hold(MX_TOOLS_HERMES, 10, HERMES("{\"name\":\"get\",\"arguments\":{\"a\":1}}}"),
               "B0(get)A0({\"a\":1})T(}\n</tool_call>)");
    check_hold(MX_TOOLS_HERMES, 10, "<tool_call>{\"name\":\"get\",\"arguments\":{\"a\":[1, ",
               "B0(get)A0({\"a\":[1, )");
    /* Without a name nothing can be let go. */
    check_hold(MX_TOOLS_HERMES, 10, HERMES("{\"arguments\":{\"a\":\"xyz\"},\"name\":\"get\"}"),
               "B0(get)A0({\"a\":\"xyz\"})E0()");
    check_hold(MX_TOOLS_GEMMA4, 4, GEMMA("get{city:<|\"|>Rome"),
               "B0(get)A0({\"city\":\"Rome<tool_call|>)");
}

/* A long call comes in many pieces, and each as soon as it can. */
static void test_pieces_are_early(void **state)
{
    (void)state;
    struct log l = {.last = -1};
    json_t *tools = parse(tools_text);
    const struct mx_toolcall_options o = {.syntax = MX_TOOLS_QWEN_XML, .tools = tools};
    struct mx_toolcall *t = mx_toolcall_new(&o, record, &l, NULL);
    const char *head = "<tool_call>\n<function=get>\n<parameter=city>\n";
    assert_true(mx_toolcall_push(t, head, strlen(head)));
    for (int i = 0; i < 2000; i++)
        assert_true(mx_toolcall_push(t, "0123456789", 10));
    assert_in_range(l.text.len, 20000, 20100);
    assert_true(mx_toolcall_finish(t));
    mx_toolcall_free(t);
    json_decref(tools);
    mx_strbuf_free(&l.text);
    mx_strbuf_free(&l.args);
}

static void test_no_tools_declared(void **state)
{
    (void)state;
    struct run r = {.o = {.syntax = MX_TOOLS_QWEN_XML}};
    const char *text = "Hi\n" XML(PARAM("a", "b")) "\n" XML("") " there <tool_call> x";
    run_all(&r, text, strlen(text), "T(Hi there <tool_call> x)");
    assert_int_equal(r.counts.stray, 2);
    text = "Hi\n<tool_call>\n<function=x>\n<parameter=a>\ncut";
    run_all(&r, text, strlen(text), "T(Hi)");
    assert_int_equal(r.counts.stray, 1);
    r.o.syntax = MX_TOOLS_NONE;
    run_all(&r, text, strlen(text), "T(Hi\n<tool_call>\n<function=x>\n<parameter=a>\ncut)");
}

static void test_limits(void **state)
{
    (void)state;
    struct run r = {.o = {.syntax = MX_TOOLS_HERMES, .max_calls = 1, .tools = parse(tools_text)}};
    const char *text = HERMES("{\"name\":\"ping\"}") HERMES("{\"name\":\"get\"}") "end";
    run_all(&r, text, strlen(text), "B0(ping)A0({})E0()T(end)");
    assert_int_equal(r.counts.parsed, 1);
    assert_int_equal(r.counts.dropped, 1);
    r.o.max_bytes = 30;
    text = HERMES("{\"name\":\"ping\",\"arguments\":{\"a\":\"12345678\"}}");
    run_all(&r, text, strlen(text),
            "T(<tool_call>\n{\"name\":\"ping\",\"arguments\":{\"a\":\"12345678\"}}\n</tool_call>)");
    assert_int_equal(r.counts.malformed, 1);
    json_decref((json_t *)(uintptr_t)r.o.tools);
}

static void check_refused(const char *tools, const char *message)
{
    mtplx_error err = {0};
    json_t *v = parse(tools);
    const struct mx_toolcall_options o = {.syntax = MX_TOOLS_HERMES, .tools = v};
    assert_null(mx_toolcall_new(&o, record, NULL, &err));
    assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);
    assert_string_equal(err.message, message);
    json_decref(v);
}

static void test_bad_tools(void **state)
{
    (void)state;
    check_refused("{}", "tools must be an array");
    check_refused("[{}]", "tools[0].name must be a string that is not empty");
    check_refused("[{'function':{'name':'a'}},{'function':{'name':1}}]",
                  "tools[1].function.name must be a string that is not empty");
}

/* ---- Hostile text ---- */

static const char *const scraps[] = {
    "<tool_call>",
    "</tool_call>",
    "<function=get>",
    "<function=nope>",
    "</function>",
    "<parameter=city>",
    "<parameter=days>",
    "</parameter>",
    "{\"name\":\"get\"",
    ",\"arguments\":{",
    "\"a\":",
    "\"x\"",
    "1",
    "}",
    "}}",
    "[",
    "]",
    "\n",
    " ",
    "get",
    "`",
    "\"",
    "\\",
    "\\u00",
    "<",
    ">",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "days",
    "<|tool_call>",
    "call:get{",
    "city:",
    "<|\"|>",
    ",",
    "<tool_call|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "function",
    "```json\n",
    "```",
    "<｜DSML｜tool_calls>",
    "<｜DSML｜invoke name=\"get\">",
    "<｜DSML｜parameter name=\"a\"",
    " string=\"true\">",
    "</｜DSML｜parameter>",
    "</｜DSML｜invoke>",
    "</｜DSML｜tool_calls>",
    "<minimax:tool_call>",
    "<invoke name=\"ping\">",
    "<parameter name=\"city\">",
    "</invoke>",
    "</minimax:tool_call>",
    "\xff",
    "\xe2\x82",
    "é",
    "null",
    "true",
};

static uint64_t next_random(uint64_t *s)
{
    *s = *s * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *s >> 33;
}

/* Text without calls is as it was. */
static void check_log(const struct run *r, const char *text)
{
    const char *at = r->log;
    if (!strstr(at, "B0(") && r->counts.dropped == 0 && r->counts.stray == 0) {
        size_t n = strlen(at);
        assert_true(n == strlen(text) + 3 || n == 0);
        assert_true(n == 0 || memcmp(at + 2, text, n - 3) == 0);
    }
}

static void test_junk(void **state)
{
    (void)state;
    uint64_t seed = 7;
    json_t *tools = parse(tools_text);
    for (int i = 0; i < 6000; i++) {
        struct mx_strbuf text;
        mx_strbuf_init(&text, 0);
        int n = (int)(next_random(&seed) % 24);
        for (int k = 0; k < n; k++)
            mx_strbuf_puts(&text, scraps[next_random(&seed) % (sizeof scraps / sizeof *scraps)]);
        mx_strbuf_puts(&text, "");
        struct run a = {.o = {.syntax = (enum mx_tool_syntax)(next_random(&seed) % 8),
                              .tools = tools,
                              .hold_bytes = 1 + next_random(&seed) % 40}};
        struct run b = a;
        run_cut(&a, text.data, text.len, 0, text.len + 1);
        run_cut(&b, text.data, text.len, next_random(&seed) % (text.len + 1),
                1 + next_random(&seed) % 5);
        assert_string_equal(a.log, b.log);
        assert_memory_equal(&a.counts, &b.counts, sizeof a.counts);
        check_log(&a, text.data);
        free(a.log);
        free(b.log);
        mx_strbuf_free(&text);
    }
    json_decref(tools);
}

/* Work is bounded for each byte, whatever is nested in what. */
static void test_repeated_starts(void **state)
{
    (void)state;
    static const char *const units[] = {"<tool_call>",
                                        "<tool_call>{",
                                        "<function=get>",
                                        "<tool_call><function=get><parameter=city>",
                                        "<tool_call>{\"arguments\":[\"",
                                        "<tool_call>\n\n\n",
                                        "\n",
                                        "`<tool_call>"};
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        struct run r = {.o = {.syntax = MX_TOOLS_QWEN_XML, .tools = parse(tools_text)}};
        struct mx_strbuf text;
        mx_strbuf_init(&text, 0);
        while (text.len < 100000)
            mx_strbuf_puts(&text, units[u]);
        run_cut(&r, text.data, text.len, 0, 100);
        free(r.log);
        mx_strbuf_free(&text);
        json_decref((json_t *)(uintptr_t)r.o.tools);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_xml_calls),
        cmocka_unit_test(test_xml_values),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_xml_broken),
        cmocka_unit_test(test_xml_ends),
        cmocka_unit_test(test_hermes),
        cmocka_unit_test(test_hermes_broken),
        cmocka_unit_test(test_glm),
        cmocka_unit_test(test_gemma),
        cmocka_unit_test(test_deepseek),
        cmocka_unit_test(test_dsml),
        cmocka_unit_test(test_minimax),
        cmocka_unit_test(test_syntax_of_templates),
        cmocka_unit_test(test_long_calls_stream),
        cmocka_unit_test(test_pieces_are_early),
        cmocka_unit_test(test_no_tools_declared),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_bad_tools),
        cmocka_unit_test(test_junk),
        cmocka_unit_test(test_repeated_starts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
