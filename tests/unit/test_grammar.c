/* Grammars: what they accept and refuse, masks against brute force, undo, walks at random. */
#include "base/clock.h"
#include "base/utf8.h"
#include "text/grammar.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schema_verdicts),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
