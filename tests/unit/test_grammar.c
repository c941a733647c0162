/* Grammars: what they accept and refuse, masks against brute force, undo, walks at random. */
#include "base/clock.h"
#include "base/utf8.h"
#include "text/grammar.h"
#include "unit/random_schema.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct fixture {
    struct mx_tokenizer *tokenizer;
    struct mx_token_table *table;
    int32_t stop;
};
static struct fixture fx;

static int set_up(void **state)
{
    (void)state;
    mtplx_error err = {0};
    const char *src = getenv("MTPLX_SRC");
    char dir[4096];
    snprintf(dir, sizeof dir, "%s/models/nano", src && *src ? src : ".");
    fx.tokenizer = mx_tokenizer_open(dir, &err);
    if (!fx.tokenizer)
        return -1;
    fx.stop = mx_tokenizer_find(fx.tokenizer, "<|im_end|>");
    fx.table = mx_token_table_new(fx.tokenizer, 8192, &fx.stop, 1, &err);
    return fx.table ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    mx_token_table_free(fx.table);
    mx_tokenizer_free(fx.tokenizer);
    return 0;
}

/* ---- Accepting texts ---- */

static struct mx_matcher *matcher(struct mx_grammar *g)
{
    mtplx_error err = {0};
    struct mx_matcher *m = mx_matcher_new(g, fx.table, &err);
    if (!m)
        fail_msg("%s", err.message);
    return m;
}

/* Feeds a text; true when all of it was accepted. Special tokens count where `special`. */
static bool feed(struct mx_matcher *m, const char *text, bool special)
{
    struct mx_ids ids = {0};
    assert_int_equal(mx_tokenizer_encode(fx.tokenizer, text, strlen(text), !special, &ids, NULL),
                     MTPLX_OK);
    bool ok = true;
    for (size_t i = 0; i < ids.n && ok; i++) {
        const uint64_t *mask = mx_matcher_mask(m);
        bool allowed = !mask || (mask[ids.v[i] / 64] >> (ids.v[i] % 64) & 1);
        ok = mx_matcher_accept(m, ids.v[i]);
        if (ok != allowed)
            fail_msg("mask and matcher disagree on token %d of %s", ids.v[i], text);
    }
    mx_ids_free(&ids);
    return ok;
}

static bool matches(struct mx_grammar *g, const char *text)
{
    struct mx_matcher *m = matcher(g);
    bool ok = feed(m, text, false) && mx_matcher_may_end(m);
    mx_matcher_free(m);
    return ok;
}

static struct mx_grammar *from_schema(const char *text)
{
    json_error_t e;
    mtplx_error err = {0};
    json_t *schema = json_loads(text, JSON_DECODE_ANY, &e);
    if (!schema)
        fail_msg("%s: %s", text, e.text);
    struct mx_grammar *g = mx_grammar_from_schema(schema, NULL, &err);
    json_decref(schema);
    if (!g)
        fail_msg("%s: %s", text, err.message);
    return g;
}

struct verdict {
    const char *grammar, *yes[8], *no[8];
};

static void check_verdict(struct mx_grammar *g, const struct verdict *v)
{
    for (int i = 0; i < 8 && v->yes[i]; i++)
        if (!matches(g, v->yes[i]))
            fail_msg("%s does not accept %s", v->grammar, v->yes[i]);
    for (int i = 0; i < 8 && v->no[i]; i++)
        if (matches(g, v->no[i]))
            fail_msg("%s accepts %s", v->grammar, v->no[i]);
    mx_grammar_unref(g);
}

static const struct verdict schemas[] = {
    {"true",
     {"{}", "[1,2]", "\"a\"", "-1.5e3", "null", "{\"a\": {\"b\": []}}", "\"\\ud83d\\ude00\""},
     {"", "{", "01", "\"\\ud83d\"", "\"\\u0000\"", "\"a\nb\"", "nul", "[1,]"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}"
     ","
     "\"c\":{\"type\":\"null\"}},\"required\":[\"b\"],\"additionalProperties\":false}",
     {"{\"b\":\"x\"}", "{\"a\":1,\"b\":\"x\"}", "{\"a\": 1, \"b\": \"x\", \"c\": null}",
      "{\n  \"b\": \"\"\n}"},
     {"{}", "{\"a\":1}", "{\"b\":\"x\",\"a\":1}", "{\"a\":1,\"b\":\"x\",\"d\":1}",
      "{\"a\":1.5,\"b\":\"\"}", "{\"a\":1 ,\"b\":\"\"}", "{,\"b\":\"\"}"}},
    {"{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"integer\"}},"
     "\"additionalProperties\":{\"type\":\"boolean\"}}",
     {"{}", "{\"ab\":1}", "{\"ab\":1,\"x\":true}", "{\"a\":true}", "{\"abc\":true,\"\":false}"},
     {"{\"ab\":true}", "{\"x\":1}", "{\"\\u0061b\":true}"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":4}",
     {"[1,2]", "[1, 2, 3, 4]"},
     {"[]", "[1]", "[1,2,3,4,5]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"string\"},{\"type\":\"null\"}],\"items\":"
     "{\"type\":\"boolean\"},\"minItems\":1}",
     {"[\"a\"]", "[\"a\",null]", "[\"a\",null,true,false]"},
     {"[]", "[null]", "[\"a\",true]"}},
    {"{\"enum\":[\"red\",\"redder\",\"blue\",3,null,{\"a\":1}]}",
     {"\"red\"", "\"redder\"", "\"blue\"", "3", "null", "{\"a\":1}"},
     {"\"re\"", "\"redde\"", "33", "\"green\""}},
    {"{\"type\":\"integer\",\"enum\":[1,\"x\",2.0,2.5,30]}", {"1", "2.0", "30"}, {"\"x\"", "2.5"}},
    {"{\"anyOf\":[{\"type\":\"string\",\"maxLength\":2},{\"type\":\"null\"}]}",
     {"\"ab\"", "\"\\n\xc3\xa9\"", "null", "\"\""},
     {"\"abc\"", "1"}},
    {"{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a\"},\"x\":{\"type\":"
     "\"integer\"}},\"required\":[\"k\",\"x\"]},{\"type\":\"object\",\"properties\":{\"k\":"
     "{\"const\":\"b\"}},\"required\":[\"k\"]}]}",
     {"{\"k\":\"a\",\"x\":1}", "{\"k\":\"b\"}"},
     {"{\"k\":\"a\"}", "{\"k\":\"b\",\"x\":1}"}},
    {"{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"minimum\":3,\"type\":\"integer\"}},"
     "\"required\":[\"a\"]},{\"properties\":{\"a\":{\"maximum\":5},\"b\":{\"type\":\"null\"}},"
     "\"required\":[\"b\"]}]}",
     {"{\"a\":4,\"b\":null}"},
     {"{\"a\":2,\"b\":null}", "{\"a\":6,\"b\":null}", "{\"a\":4}"}},
    {"{\"$ref\":\"#/$defs/"
     "n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":"
     "\"integer\"},\"next\":{\"anyOf\":[{\"$ref\":\"#/$defs/n\"},{\"type\":\"null\"}]}},"
     "\"required\":[\"v\",\"next\"],\"additionalProperties\":false}}}",
     {"{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"},
     {"{\"v\":1,\"next\":{\"v\":2}}"}},
    {"{\"type\":\"integer\",\"minimum\":-12,\"maximum\":305}",
     {"-12", "-9", "0", "7", "99", "305", "300"},
     {"-13", "306", "1000", "-0", "007", "1.0", "-120"}},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":9,\"multipleOf\":7}",
     {"14", "21", "700"},
     {"7", "0", "15"}},
    {"{\"type\":\"number\",\"minimum\":0.5,\"exclusiveMaximum\":12.25}",
     {"0.5", "1", "12.249999", "12.2", "0.75", "9.999999", "12"},
     {"0.4", "12.25", "0", "-1", "13", "12.3", "0.49"}},
    {"{\"type\":\"number\",\"minimum\":-1.5,\"maximum\":1.5}",
     {"-1.5", "1.5", "0", "-0.25", "1.499", "-1"},
     {"-1.6", "1.51", "2", "-2"}},
    {"{\"type\":\"string\",\"pattern\":\"^[a-c]{2,3}\\\"?$\"}",
     {"\"ab\"", "\"abc\"", "\"ab\\\"\""},
     {"\"a\"", "\"abcd\"", "\"ab\"\""}},
    {"{\"type\":\"string\",\"pattern\":\"b\"}", {"\"b\"", "\"abc\"", "\"\\nb\\\\\""}, {"\"ac\""}},
    {"{\"type\":\"string\",\"format\":\"date\"}",
     {"\"2024-02-28\"", "\"1999-12-31\""},
     {"\"2024-13-01\"", "\"2024-04-31\"", "\"2024-2-3\""}},
    {"{\"type\":\"string\",\"format\":\"date-time\"}",
     {"\"2024-02-28T23:59:59Z\"", "\"2024-02-28T00:00:00.5+02:00\""},
     {"\"2024-02-28\"", "\"2024-02-28T24:00:00Z\""}},
    {"{\"type\":\"string\",\"format\":\"uuid\"}",
     {"\"123e4567-e89b-12d3-a456-426614174000\""},
     {"\"123e4567\""}},
    {"{\"type\":\"string\",\"format\":\"ipv4\"}",
     {"\"127.0.0.1\"", "\"255.255.255.255\""},
     {"\"256.0.0.1\"", "\"1.2.3\""}},
    {"{\"type\":[\"string\",\"null\"],\"minLength\":3,\"maxLength\":100000}",
     {"\"abc\"", "null", "\"a long enough text\""},
     {"\"ab\""}},
    {"{\"type\":\"string\",\"maxLength\":20,\"minLength\":18}",
     {"\"123456789012345678\"", "\"the end of the day 2\""},
     {"\"12345678901234567\"", "\"the end of the days 2\""}},
};

static void schema_verdicts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++)
        check_verdict(from_schema(schemas[i].grammar), &schemas[i]);
}

/* ---- Regular expressions and GBNF ---- */

static const struct verdict regexes[] = {
    {"^(?:ab|c)+$", {"ab", "c", "abcab"}, {"", "a", "abd"}},
    {"[^a-c\\d]{2,}", {"xy", "x\xc3\xa9\xe2\x82\xac"}, {"x", "xa", "x1"}},
    {"a{0,100000}b", {"b", "aaaaab"}, {"a", "ba"}},
    {"(a?){3}", {"", "a", "aaa"}, {"aaaa", "b"}},
    {"\\u{1f600}|\\x41.", {"\xf0\x9f\x98\x80", "Ab"}, {"A", "A\n", "B"}},
    {"(x(y(z)?)?)?$", {"", "xy", "xyz"}, {"xz"}},
    {"[-a]b[c-]", {"-b-", "abc"}, {"bbb"}},
    {"a??b*?c+?", {"c", "abbcc"}, {"ab"}},
    {"{2}", {"{2}"}, {"2"}},
};

static void regex_verdicts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof regexes / sizeof *regexes; i++) {
        mtplx_error err = {0};
        const char *re = regexes[i].grammar;
        if (strcmp(re, "{2}") == 0)
            re = "\\{2}";
        struct mx_grammar *g = mx_grammar_from_regex(re, strlen(re), NULL, &err);
        if (!g)
            fail_msg("%s: %s", re, err.message);
        check_verdict(g, &regexes[i]);
    }
}

static const struct verdict gbnfs[] = {
    {"root ::= \"a\" b* # comment\nb ::= [0-9]+ \",\"\n", {"a", "a12,", "a1,2,"}, {"a1", ""}},
    {"root = 'x' , ('y' | 'z') ; ", {"xy", "xz"}, {"x", "xyz"}},
    {"root ::= \"(\" root? \")\"", {"()", "((()))"}, {"(", "())"}},
    {"root ::= [^\"\\\\\\n]{2,3} \"\\u00e9\\x21\"",
     {"ab\xc3\xa9!", "abc\xc3\xa9!"},
     {"a\xc3\xa9!"}},
    {"root ::= item (\n  \",\" item\n)*\nitem ::= . | \"end\"\n", {"a", "end,b"}, {"", "a,,b,"}},
    {"root ::= x root | x\nx ::= \"ab\"", {"ab", "abababab"}, {"aba"}},
};

static void gbnf_verdicts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof gbnfs / sizeof *gbnfs; i++) {
        mtplx_error err = {0};
        const char *text = gbnfs[i].grammar;
        struct mx_grammar *g = mx_grammar_from_gbnf(text, strlen(text), NULL, &err);
        if (!g)
            fail_msg("%s: %s", text, err.message);
        check_verdict(g, &gbnfs[i]);
    }
}

/* ---- Refusals ---- */

struct refusal {
    char kind; /* s: schema, r: regex, g: GBNF */
    const char *text;
    mtplx_status status;
    const char *says;
};

static const struct refusal refusals[] = {
    {'s', "{\"properties\":{\"a\":{\"not\":{}}}}", MTPLX_ERR_UNSUPPORTED, "#/properties/a"},
    {'s', "{\"type\":\"thing\"}", MTPLX_ERR_ARGUMENT, "type"},
    {'s', "{\"type\":[\"string\",1]}", MTPLX_ERR_ARGUMENT, "type"},
    {'s', "3", MTPLX_ERR_ARGUMENT, "object or a boolean"},
    {'s', "false", MTPLX_ERR_ARGUMENT, "no text"},
    {'s', "{\"$ref\":\"#\"}", MTPLX_ERR_ARGUMENT, "recursive"},
    {'s', "{\"allOf\":[{\"$ref\":\"#\"}]}", MTPLX_ERR_LIMIT, "circle"},
    {'s', "{\"$ref\":\"http://x/y\"}", MTPLX_ERR_UNSUPPORTED, "$ref"},
    {'s', "{\"$ref\":\"#/nowhere\"}", MTPLX_ERR_ARGUMENT, "nothing"},
    {'s', "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
     MTPLX_ERR_ARGUMENT, "no text"},
    {'s', "{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", MTPLX_ERR_ARGUMENT, "no text"},
    {'s', "{\"type\":\"number\",\"multipleOf\":0.3}", MTPLX_ERR_UNSUPPORTED, "multipleOf"},
    {'s', "{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"string\"}]}", MTPLX_ERR_UNSUPPORTED,
     "oneOf"},
    {'s', "{\"type\":\"string\",\"pattern\":\"a(?=b)\"}", MTPLX_ERR_UNSUPPORTED, "#/pattern"},
    {'s', "{\"type\":\"array\",\"uniqueItems\":true}", MTPLX_ERR_UNSUPPORTED, "uniqueItems"},
    {'s', "{\"type\":\"array\",\"minItems\":-1}", MTPLX_ERR_ARGUMENT, "minItems"},
    {'r', "a(b", MTPLX_ERR_ARGUMENT, "character"},
    {'r', "*a", MTPLX_ERR_ARGUMENT, "quantifier"},
    {'r', "a\\b", MTPLX_ERR_UNSUPPORTED, "escape"},
    {'r', "[b-a]", MTPLX_ERR_ARGUMENT, "backwards"},
    {'r', "[abc", MTPLX_ERR_ARGUMENT, "class"},
    {'r', "a{3,1}", MTPLX_ERR_ARGUMENT, "order"},
    {'r', "a$b", MTPLX_ERR_UNSUPPORTED, "anchor"},
    {'r', "\\p{L}", MTPLX_ERR_UNSUPPORTED, "escape"},
    {'r', "(a*){1000}", MTPLX_ERR_LIMIT, "empty"},
    {'r', "a{99999999999}", MTPLX_ERR_LIMIT, "large"},
    {'g', "root ::= root \"a\" | \"a\"", MTPLX_ERR_ARGUMENT, "left-recursive"},
    {'g', "root ::= x root \"a\" | \"a\"\nx ::= \"\" | \"b\"", MTPLX_ERR_ARGUMENT,
     "left-recursive"},
    {'g', "root ::= a\n  b ::= \"x\"", MTPLX_ERR_ARGUMENT, "line 1, column 10"},
    {'g', "x ::= \"a\"", MTPLX_ERR_ARGUMENT, "root"},
    {'g', "root ::= \"a", MTPLX_ERR_ARGUMENT, "line 1"},
    {'g', "root ::= \"a\"\nroot ::= \"b\"", MTPLX_ERR_ARGUMENT, "line 2"},
    {'g', "root ::= \"a\" root", MTPLX_ERR_ARGUMENT, "no text"},
    {'g', "root ::= (((\"a\")", MTPLX_ERR_ARGUMENT, "group"},
    {'g', "", MTPLX_ERR_ARGUMENT, "root"},
};

static struct mx_grammar *compile(char kind, const char *text, mtplx_error *err)
{
    if (kind == 'r')
        return mx_grammar_from_regex(text, strlen(text), NULL, err);
    if (kind == 'g')
        return mx_grammar_from_gbnf(text, strlen(text), NULL, err);
    json_t *schema = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(schema);
    struct mx_grammar *g = mx_grammar_from_schema(schema, NULL, err);
    json_decref(schema);
    return g;
}

static void refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const struct refusal *r = &refusals[i];
        mtplx_error err = {0};
        struct mx_grammar *g = compile(r->kind, r->text, &err);
        if (g || err.status != r->status || !strstr(err.message, r->says))
            fail_msg("%s: status %d, \"%s\"", r->text, (int)err.status, err.message);
    }
}

/* `count` times a piece between a head and a tail. */
static char *repeated(const char *head, const char *piece, int count, const char *tail)
{
    struct mx_strbuf t;
    mx_strbuf_init(&t, 0);
    mx_strbuf_puts(&t, head);
    for (int i = 0; i < count; i++)
        mx_strbuf_puts(&t, piece);
    mx_strbuf_puts(&t, tail);
    return mx_strbuf_steal(&t, NULL);
}

/* Inputs made to explode: each ends soon, in an error or a grammar. */
static void hostile(void **state)
{
    (void)state;
    static const struct {
        char kind;
        const char *head, *piece, *tail;
        int count;
    } bombs[] = {
        {'r', "", "(", "a", 100000},
        {'r', "a", "{1,1000}", "", 1},
        {'r', "", "(a{1000}b){1000}", "", 8},
        {'r', "((((((((a{9}){9}){9}){9}){9}){9}){9}){9})", "", "", 0},
        {'r', "", "(a|b|ab)*", "c", 50},
        {'r', "", "[^a]?", "", 3000},
        {'g', "root ::= ", "(", "\"a\"", 100000},
        {'g', "root ::= a b c\na ::= ", "b | c | ", "\"x\"\nb ::= c c | \"y\"\nc ::= \"z\" | \"\"",
         9},
        {'g', "root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"d\"", "", "", 0},
        {'g', "root ::= ", "\"abc\"{1000}", "", 100},
        {'s', "{\"enum\":[1", ",1", "]}", 50000},
        {'s', "{\"type\":\"object\",\"required\":[\"a\"", ",\"a\"", "]}", 50000},
        {'s', "{\"anyOf\":[{}", ",{\"type\":\"object\",\"properties\":{\"a\":{}}}", "]}", 3000},
    };
    for (size_t i = 0; i < sizeof bombs / sizeof *bombs; i++) {
        mtplx_error err = {0};
        char *text = repeated(bombs[i].head, bombs[i].piece, bombs[i].count, bombs[i].tail);
        uint64_t start = mx_now_ns();
        struct mx_grammar *g = compile(bombs[i].kind, text, &err);
        if (g) {
            struct mx_matcher *m = matcher(g);
            feed(m, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false);
            mx_matcher_free(m);
        } else if (err.status == MTPLX_OK) {
            fail_msg("bomb %zu: no error", i);
        }
        mx_grammar_unref(g);
        free(text);
        if (mx_now_ns() - start > UINT64_C(5000000000))
            fail_msg("bomb %zu takes too long", i);
    }
}

static void deep_nesting_can_end(void **state)
{
    (void)state;
    struct mx_grammar *g = compile('s', "true", NULL);
    struct mx_matcher *m = matcher(g);
    int32_t open = mx_tokenizer_find(fx.tokenizer, "["), depth = 0;
    while (depth < 5000 && mx_matcher_accept(m, open))
        depth++;
    assert_in_range(depth, 64, 300);
    int32_t close = mx_tokenizer_find(fx.tokenizer, "]");
    for (int i = 0; i < depth; i++)
        assert_true(mx_matcher_accept(m, close));
    assert_true(mx_matcher_may_end(m));
    mx_matcher_free(m);
    mx_grammar_unref(g);
}

/* Of k letters it has 2^k parses, so its masks take seconds: they are given up, and what was not
 * looked at is not taken for allowed. */
static void too_ambiguous(void **state)
{
    (void)state;
    char text[2048] = "root ::= [!-@] root \"~\" | \"~\"";
    size_t n = strlen(text);
    for (char c = 'a'; c <= 'z'; c++)
        n += (size_t)snprintf(text + n, sizeof text - n, " | \"%c\" root \"^\" | \"%c\" root \"_\"",
                              c, c);
    mtplx_error err = {0};
    struct mx_grammar *g = mx_grammar_from_gbnf(text, n, NULL, &err);
    assert_non_null(g);
    struct mx_matcher *m = matcher(g);
    bool given_up = false;
    for (int step = 0; step < 60 && !given_up; step++) {
        const uint64_t *mask = mx_matcher_mask(m);
        int32_t id = 0;
        assert_non_null(mask);
        while (id < 8192 && !(mask[id / 64] >> (id % 64) & 1))
            id++;
        given_up = id == 8192;
        for (id = 0; id < 8192 && given_up; id++)
            assert_false(mx_matcher_accept(m, id));
        for (id = 8191; id >= 0 && !given_up; id--)
            if (mask[id / 64] >> (id % 64) & 1 && mx_matcher_accept(m, id))
                break;
    }
    assert_true(given_up);
    mx_matcher_free(m);
    mx_grammar_unref(g);
}

/* ---- Frames ---- */

static void prelude(void **state)
{
    (void)state;
    const struct mx_grammar_frame f = {.prelude_end = "</think>", .prelude_max = 40};
    mtplx_error err = {0};
    struct mx_grammar *g = mx_grammar_json_object(&f, &err);
    struct mx_matcher *m = matcher(g);
    const uint64_t *mask = mx_matcher_mask(m);
    assert_non_null(mask);
    assert_false(mask[fx.stop / 64] >> (fx.stop % 64) & 1);
    assert_true(feed(m, "so {\"x\"} </thin", false));
    assert_true(feed(m, "k>\n\n{\"a\": 1}", true));
    assert_true(mx_matcher_may_end(m));
    assert_false(feed(m, "x", false));
    mx_matcher_free(m);
    m = matcher(g); /* too much thinking */
    assert_true(feed(m, "12345678901234567890123456789012345678", false));
    while (feed(m, "9", false))
        continue;
    assert_false(feed(m, " ", false));
    assert_true(feed(m, "</think>{}", false));
    assert_true(mx_matcher_may_end(m));
    mx_matcher_free(m);
    mx_grammar_unref(g);
}

static void trigger(void **state)
{
    (void)state;
    const struct mx_grammar_frame f = {.trigger = "<<"};
    mtplx_error err = {0};
    struct mx_grammar *g = mx_grammar_from_regex("a[0-9]+;", 8, &f, &err);
    struct mx_matcher *m = matcher(g);
    assert_true(mx_matcher_may_end(m));
    assert_true(feed(m, "free text < a; \xff\xfe <<a12", false));
    assert_false(mx_matcher_may_end(m));
    assert_false(feed(m, "x", false));
    assert_true(feed(m, "3; free again <<a1;", false));
    assert_true(mx_matcher_may_end(m));
    assert_true(mx_matcher_accept(m, fx.stop));
    assert_false(mx_matcher_accept(m, fx.stop));
    mx_matcher_rollback(m, 1);
    assert_true(mx_matcher_accept(m, fx.stop));
    mx_matcher_free(m);
    mx_grammar_unref(g);
}

/* ---- Tools ---- */

static const char tool_list[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"strict\":true,\"parameters\":{"
    "\"type\":"
    "\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},"
    "\"unit\":{\"enum\":[\"c\",\"f\"]}},\"required\":[\"city\",\"days\"],"
    "\"additionalProperties\":false}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"free\"}}]";

static const struct {
    enum mx_tool_syntax syntax;
    const char *yes[3], *no[3];
} calls[] = {
    {MX_TOOLS_HERMES,
     {"<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"Rome\", \"days\": 3}}\n"
      "</tool_call>",
      "<tool_call>{\"name\":\"free\",\"arguments\":{}}</tool_call>\n<tool_call>\n{\"name\": "
      "\"free\", "
      "\"arguments\": {\"a\": [1]}}\n</tool_call>"},
     {"<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>",
      "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>", "{}"}},
    {MX_TOOLS_QWEN_XML,
     {"<tool_call>\n<function=get>\n<parameter=city>\nNew\n\"York\" < 3\n</parameter>\n"
      "<parameter=days>\n3\n</parameter>\n<parameter=unit>\nc\n</parameter>\n</function>\n"
      "</tool_call>",
      "<tool_call>\n<function=free>\n</function>\n</tool_call>\n<tool_call>\n<function=free>\n"
      "<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>"},
     {"<tool_call>\n<function=get>\n<parameter=city>\nx\n</parameter>\n</function>\n</tool_call>",
      "<tool_call>\n<function=get>\n<parameter=city>\nx\n</parameter>\n<parameter=days>\nx\n",
      "<tool_call>\n<function=nope>"}},
    {MX_TOOLS_GLM,
     {"<tool_call>get\n<arg_key>city</arg_key>\n<arg_value>Bonn</arg_value>\n<arg_key>days</"
      "arg_key>"
      "\n<arg_value>2</arg_value>\n</tool_call>",
      "<tool_call>free</tool_call>"},
     {"<tool_call>get</tool_call>"}},
    {MX_TOOLS_GEMMA4,
     {"<|tool_call>call:get{city:<|\"|>Rome<|\"|>,days:3}<tool_call|>",
      "<|tool_call>call:free{a:{b:[1,true,<|\"|>x<|\"|>]}}<tool_call|>"},
     {"<|tool_call>call:get{city:Rome,days:3}<tool_call|>", "<|tool_call>call:get{}<tool_call|>"}},
    {MX_TOOLS_DEEPSEEK_V3,
     {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>{\"city\": \"x\", \"days\": 1}"
      "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
     {"<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>"}},
    {MX_TOOLS_DSML,
     {"<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get\">\n<｜DSML｜parameter name=\"city\" "
      "string=\"true\">a b</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">4"
      "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
      "<｜DSML｜tool_calls>\n<｜DSML｜invoke "
      "name=\"free\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"},
     {"<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"free\">\n</｜DSML｜invoke>\n"
      "</｜DSML｜function_calls>"}},
    {MX_TOOLS_MINIMAX,
     {"<minimax:tool_call>\n<invoke name=\"get\">\n<parameter "
      "name=\"city\">x</parameter>\n<parameter "
      "name=\"days\">1</parameter>\n</invoke>\n</minimax:tool_call>"},
     {"<minimax:tool_call>\n</minimax:tool_call>"}},
};

static void tool_verdicts(void **state)
{
    (void)state;
    json_t *list = json_loads(tool_list, 0, NULL);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        const struct mx_grammar_tools t = {
            .syntax = calls[i].syntax, .tools = list, .parallel = true};
        mtplx_error err = {0};
        struct mx_grammar *g = mx_grammar_from_tools(&t, NULL, &err);
        if (!g)
            fail_msg("syntax %d: %s", (int)t.syntax, err.message);
        for (int k = 0; k < 3 && calls[i].yes[k]; k++)
            if (!matches(g, calls[i].yes[k]))
                fail_msg("refused: %s", calls[i].yes[k]);
        for (int k = 0; k < 3 && calls[i].no[k]; k++)
            if (matches(g, calls[i].no[k]))
                fail_msg("accepted: %s", calls[i].no[k]);
        mx_grammar_unref(g);
    }
    json_decref(list);
}

static void tools_with_trigger(void **state)
{
    (void)state;
    json_t *list = json_loads(tool_list, 0, NULL);
    const struct mx_grammar_frame f = {.prelude_end = "</think>", .trigger = "<tool_call>"};
    struct mx_grammar_tools t = {.syntax = MX_TOOLS_QWEN_XML, .tools = list, .only = "free"};
    mtplx_error err = {0};
    static const char call[] = "<tool_call>\n<function=free>\n</function>\n</tool_call>";
    for (int parallel = 0; parallel < 2; parallel++) {
        t.parallel = parallel;
        struct mx_grammar *g = mx_grammar_from_tools(&t, &f, &err);
        if (!g)
            fail_msg("%s", err.message);
        struct mx_matcher *m = matcher(g);
        assert_true(feed(m, "hm</think>\n\nI will call. ", true));
        assert_true(mx_matcher_may_end(m));
        assert_true(feed(m, call, true));
        assert_true(mx_matcher_may_end(m));
        assert_int_equal(feed(m, "\n", true), parallel);
        assert_int_equal(feed(m, call, true), parallel);
        mx_matcher_free(m);
        mx_grammar_unref(g);
    }
    t.only = "none";
    assert_null(mx_grammar_from_tools(&t, &f, &err));
    assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);
    json_decref(list);
}

/* ---- Walks ---- */

static bool has(const uint64_t *mask, int32_t id)
{
    return !mask || (mask[id / 64] >> (id % 64) & 1);
}

/* A token of the mask: often one that closes something, so that walks end. */
static int32_t pick(const uint64_t *mask, uint64_t *seed, bool close)
{
    static const char *const closers[] = {"\"", "}", "]", "\"}", "\"]", "}}"};
    if (has(mask, fx.stop) && (close || rs_below(seed, 3) == 0))
        return fx.stop;
    if (close || rs_below(seed, 3) == 0)
        for (int i = 0, at = rs_below(seed, 6); i < 6; i++) {
            int32_t id = mx_tokenizer_find(fx.tokenizer, closers[(at + i) % 6]);
            if (id >= 0 && has(mask, id))
                return id;
        }
    int32_t at = rs_below(seed, 8192);
    for (int i = 0; i < 8192; i++, at = (at + 1) % 8192)
        if (has(mask, at))
            return at;
    return -1;
}

static void check_mask(struct mx_matcher *m)
{
    uint64_t copy[128];
    memcpy(copy, mx_matcher_mask(m), sizeof copy);
    for (int32_t id = 0; id < 8192; id++) {
        bool accepted = mx_matcher_accept(m, id);
        if (accepted)
            mx_matcher_rollback(m, 1);
        if (accepted != has(copy, id))
            fail_msg("token %d: mask %d, matcher %d", id, has(copy, id), accepted);
    }
}

/* Walks from the start to a stop token; false when `limit` tokens did not suffice. */
static bool walk(struct mx_matcher *m, uint64_t *seed, int limit, struct mx_strbuf *text,
                 bool check)
{
    for (int i = 0; i < limit; i++) {
        int32_t id = pick(mx_matcher_mask(m), seed, i > limit / 3);
        if (id < 0)
            fail_msg("an empty mask after %s", text->data ? text->data : "");
        if (check && rs_below(seed, 12) == 0)
            check_mask(m);
        assert_true(mx_matcher_accept(m, id));
        if (id == fx.stop)
            return true;
        if (i > 4 && rs_below(seed, 8) == 0) { /* a detour that is taken back */
            int n = 0;
            int32_t other;
            while (n < 5 && (other = pick(mx_matcher_mask(m), seed, false)) >= 0 &&
                   mx_matcher_accept(m, other) && other != fx.stop)
                n++;
            mx_matcher_rollback(m, other == fx.stop ? n + 1 : n);
        }
        size_t len;
        const char *bytes = mx_tokenizer_bytes(fx.tokenizer, id, &len);
        mx_strbuf_append(text, bytes, len);
    }
    return false;
}

static void walks_validate(void **state)
{
    (void)state;
    uint64_t seed = 17;
    int ended = 0, compiled = 0;
    for (int i = 0; i < 300; i++) {
        json_t *schema = rs_schema(&seed, 3);
        mtplx_error err = {0};
        struct mx_grammar *g = mx_grammar_from_schema(schema, NULL, &err);
        struct mx_strbuf text;
        mx_strbuf_init(&text, 0);
        if (!g && strstr(err.message, "no text")) { /* bounds without a multiple in them */
            json_decref(schema);
            continue;
        }
        if (!g)
            fail_msg("%s: %s", json_dumps(schema, 0), err.message);
        compiled++;
        for (int k = 0; k < 2; k++) {
            struct mx_matcher *m = matcher(g);
            mx_strbuf_clear(&text);
            if (walk(m, &seed, 600, &text, i % 10 == 0 && k == 0)) {
                json_t *v = json_loadb(text.data, text.len, JSON_DECODE_ANY, NULL);
                if (!v || !mx_utf8_valid(text.data, text.len) || !rs_valid(schema, v))
                    fail_msg("%s allows %s", json_dumps(schema, 0), text.data);
                json_decref(v);
                ended++;
            }
            mx_matcher_free(m);
        }
        mx_strbuf_free(&text);
        mx_grammar_unref(g);
        json_decref(schema);
    }
    assert_true(compiled > 250);
    assert_true(ended > compiled * 3 / 2);
}

/* Taking back n tokens leaves the masks of a matcher that never saw them. */
static void rollback_is_replay(void **state)
{
    (void)state;
    struct mx_grammar *g = compile('s', schemas[1].grammar, NULL);
    struct mx_matcher *m = matcher(g);
    struct mx_ids ids = {0};
    const char *text = "{\"a\": -12, \"b\": \"some text\", \"c\": null}";
    mx_tokenizer_encode(fx.tokenizer, text, strlen(text), true, &ids, NULL);
    for (size_t i = 0; i < ids.n; i++) {
        uint64_t before[128];
        memcpy(before, mx_matcher_mask(m), sizeof before);
        int n = 0;
        while (n < MX_MATCHER_UNDO && i + (size_t)n < ids.n &&
               mx_matcher_accept(m, ids.v[i + (size_t)n]))
            n++;
        mx_matcher_rollback(m, n);
        assert_memory_equal(before, mx_matcher_mask(m), sizeof before);
        assert_true(mx_matcher_accept(m, ids.v[i]));
    }
    assert_true(mx_matcher_may_end(m));
    mx_ids_free(&ids);
    mx_matcher_free(m);
    mx_grammar_unref(g);
}

/* Counters far beyond what the machine keeps at once: it collects and goes on. */
static void long_texts(void **state)
{
    (void)state;
    struct mx_grammar *g = compile('s',
                                   "{\"type\":\"array\",\"maxItems\":100000,\"items\":{\"type\":"
                                   "\"string\",\"maxLength\":100000}}",
                                   NULL);
    struct mx_matcher *m = matcher(g);
    assert_true(feed(m, "[", false));
    for (int i = 0; i < 60; i++) {
        char *text = repeated(i ? ",\"" : "\"", "lorem ipsum ", 100, "\"");
        assert_true(feed(m, text, false));
        free(text);
    }
    assert_true(feed(m, "]", false));
    assert_true(mx_matcher_may_end(m));
    mx_matcher_free(m);
    mx_grammar_unref(g);
}

static void *walk_in_thread(void *arg)
{
    uint64_t seed = (uintptr_t)arg ^ (uint64_t)(uintptr_t)&seed;
    for (int i = 0; i < 10; i++) {
        struct mx_matcher *m = matcher(arg);
        struct mx_strbuf text;
        mx_strbuf_init(&text, 0);
        walk(m, &seed, 200, &text, false);
        mx_strbuf_free(&text);
        mx_matcher_free(m);
    }
    return NULL;
}

static void shared_by_threads(void **state)
{
    (void)state;
    struct mx_grammar *g = compile('s', "true", NULL);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, walk_in_thread, g), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    mx_grammar_unref(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schema_verdicts), cmocka_unit_test(regex_verdicts),
        cmocka_unit_test(gbnf_verdicts),   cmocka_unit_test(refused),
        cmocka_unit_test(hostile),         cmocka_unit_test(deep_nesting_can_end),
        cmocka_unit_test(prelude),         cmocka_unit_test(trigger),
        cmocka_unit_test(tool_verdicts),   cmocka_unit_test(tools_with_trigger),
        cmocka_unit_test(walks_validate),  cmocka_unit_test(rollback_is_replay),
        cmocka_unit_test(long_texts),      cmocka_unit_test(shared_by_threads),
        cmocka_unit_test(too_ambiguous),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
