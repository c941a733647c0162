/* Conversations as clients send them come out in the one form that templates get, and what is no
 * conversation is refused in a sentence that names the place. */
#include "text/messages.h"
#include "text/toolcall.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- Helpers ---- */

/* JSON with ' for ". */
static json_t *parse(const char *text)
{
    json_error_t e;
    char *copy = strdup(text);
    for (char *c = copy; *c; c++) {
        if (*c == '\'')
            *c = '"';
    }
    json_t *v = json_loads(copy, JSON_ALLOW_NUL, &e);
    if (!v)
        fail_msg("%s: %s", text, e.text);
    free(copy);
    return v;
}

static void check_with(const struct mx_messages_options *o, const char *in, const char *expected)
{
    mtplx_error err = {0};
    json_t *m = parse(in), *want = parse(expected), *out;
    json_t *before = json_deep_copy(m);
    if (mx_messages_normalise(m, o, &out, &err) != MTPLX_OK)
        fail_msg("%s: %s", in, err.message);
    char *a = json_dumps(out, JSON_SORT_KEYS), *b = json_dumps(want, JSON_SORT_KEYS);
    assert_string_equal(a, b);
    assert_true(json_equal(m, before)); /* the request is the caller's */
    free(a);
    free(b);
    json_decref(m);
    json_decref(before);
    json_decref(want);
    json_decref(out);
}

static void check(const char *in, const char *expected)
{
    const struct mx_messages_options o = {.style = MX_REASONING_THINK};
    check_with(&o, in, expected);
}

static void check_refused_with(const struct mx_messages_options *o, const char *in,
                               mtplx_status status, const char *message)
{
    mtplx_error err = {0};
    json_t *m = parse(in), *out = m;
    assert_int_equal(mx_messages_normalise(m, o, &out, &err), status);
    assert_string_equal(err.message, message);
    assert_null(out);
    json_decref(m);
}

static void check_refused(const char *in, const char *message)
{
    const struct mx_messages_options o = {0};
    check_refused_with(&o, in, MTPLX_ERR_ARGUMENT, message);
}

#define USER "{'role':'user','content':'u'}"

/* ---- Tests ---- */

static void test_roles(void **state)
{
    (void)state;
    check("[{'role':'user','content':'hi','name':'bo','extra':1}]",
          "[{'role':'user','content':'hi','name':'bo'}]");
    check("[{'role':'developer','content':'a'},{'role':'system','content':''},"
          "{'role':'system','content':'b'}," USER ",{'role':'system','content':'c'}]",
          "[{'role':'system','content':'a\\n\\nb'}," USER ",{'role':'system','content':'c'}]");
    const struct mx_messages_options first = {.system_first = true};
    check_with(&first,
               "[{'role':'system','content':'a'}," USER ",{'role':'developer','content':'c'}]",
               "[{'role':'system','content':'a'}," USER ",{'role':'user','content':'c'}]");
    check_with(&first, "[" USER ",{'role':'system','content':'c'}]",
               "[" USER ",{'role':'user','content':'c'}]");
    check("[" USER ",{'role':'assistant','function_call':{'name':'f','arguments':'{}'}},"
          "{'role':'function','name':'f','content':'r'}]",
          "[" USER ",{'role':'assistant','content':'','tool_calls':[{'type':'function','function':"
          "{'name':'f','arguments':{}}}]},{'role':'tool','name':'f','content':'r'}]");
}

static void test_content(void **state)
{
    (void)state;
    check("[{'role':'user','content':[{'type':'text','text':'a'},{'type':'input_text','text':'b'},"
          "{'type':'output_text','text':''}]}]",
          "[{'role':'user','content':'a\\nb\\n'}]");
    check("[{'role':'user','content':[]}]", "[{'role':'user','content':''}]");
    check("[" USER ",{'role':'assistant','content':[{'type':'refusal','refusal':'no'}]}]",
          "[" USER ",{'role':'assistant','content':'no'}]");
    check("[" USER ",{'role':'assistant','content':null,'refusal':'no'}]",
          "[" USER ",{'role':'assistant','content':'no'}]");
    check("[" USER ",{'role':'assistant'},{'role':'tool','content':null}]",
          "[" USER ",{'role':'assistant','content':''},{'role':'tool','content':''}]");
    check("[{'role':'user','content':'a\\u0000b'}]", "[{'role':'user','content':'a\\u0000b'}]");
}

#define CALL(args)                                                                                 \
    "[" USER ",{'role':'assistant','content':'x','tool_calls':[{'id':'c1','type':'function',"      \
    "'function':{'name':'f','arguments':" args "}}]}]"

static void test_tool_calls(void **state)
{
    (void)state;
    check(CALL("'{\\'a\\': [1, \\'b\\']}'"), CALL("{'a':[1,'b']}"));
    check(CALL("{'a':1}"), CALL("{'a':1}"));
    check(CALL("''"), CALL("{}"));
    check(CALL("' \\n'"), CALL("{}"));
    check(CALL("null"), CALL("{}"));
    check(CALL("'[1]'"), CALL("{'arguments':'[1]'}"));
    check(CALL("'{\\'a\\': \\'b'"), CALL("{'arguments':'{\\'a\\': \\'b'}"));
    check(CALL("'{\\'a\\': \\'\\\\u0000\\'}'"), CALL("{'a':'\\u0000'}"));
    check("[" USER ",{'role':'assistant','tool_calls':[{'name':'f'}]}]",
          "[" USER ",{'role':'assistant','content':'','tool_calls':[{'type':'function','function':"
          "{'name':'f','arguments':{}}}]}]");
    check("[" USER ",{'role':'assistant','tool_calls':[]}]",
          "[" USER ",{'role':'assistant','content':''}]");
    check("[" USER ",{'role':'assistant','tool_calls':null}]",
          "[" USER ",{'role':'assistant','content':''}]");
    /* A result is given the name of its call; other ids are tolerated. */
    check("[" USER ",{'role':'assistant','content':'','tool_calls':[{'id':'i','type':'function',"
          "'function':{'name':'f','arguments':{}}}]},"
          "{'role':'tool','tool_call_id':'i','content':[{'type':'text','text':'r'}]},"
          "{'role':'tool','tool_call_id':'j','content':'s'},{'role':'tool','content':'t'}]",
          "[" USER ",{'role':'assistant','content':'','tool_calls':[{'id':'i','type':'function',"
          "'function':{'name':'f','arguments':{}}}]},"
          "{'role':'tool','tool_call_id':'i','name':'f','content':'r'},"
          "{'role':'tool','tool_call_id':'j','content':'s'},{'role':'tool','content':'t'}]");
}

#define SAID(fields) "[" USER ",{'role':'assistant'," fields "}]"

static void test_reasoning(void **state)
{
    (void)state;
    const char *plain = SAID("'content':'b','reasoning_content':'a'");
    check(SAID("'content':'b','reasoning_content':'a'"), plain);
    check(SAID("'content':'b','reasoning':'a'"), plain);
    check(SAID("'content':'b','thinking':'a','reasoning':null,'reasoning_content':''"), plain);
    check(SAID("'content':'b','reasoning':'a','thinking':'x'"), plain);
    check(SAID("'content':'<think>\\na\\n</think>\\n\\nb'"), plain);
    check(SAID("'content':[{'type':'thinking','thinking':'a'},{'type':'text','text':'b'}]"), plain);
    check(SAID("'content':'<think>\\n\\n</think>\\n\\nb'"), SAID("'content':'b'"));
    check(SAID("'content':'<think>a'"), SAID("'content':'<think>a'"));
    check(SAID("'content':'b <think>a</think>'"), SAID("'content':'b <think>a</think>'"));
    check(SAID("'content':'<think>x</think>b','reasoning':'a'"),
          SAID("'content':'<think>x</think>b','reasoning_content':'a'"));
    check("[{'role':'user','content':'<think>a</think>b'}]",
          "[{'role':'user','content':'<think>a</think>b'}]");
    const struct mx_messages_options none = {.style = MX_REASONING_NONE};
    check_with(&none, SAID("'content':'<think>a</think>b'"), SAID("'content':'<think>a</think>b'"));
    const struct mx_messages_options gemma = {.style = MX_REASONING_GEMMA4};
    check_with(&gemma, SAID("'content':'<|channel>thought\\na<channel|>b'"), plain);
}

static void test_policies(void **state)
{
    (void)state;
#define A1 "{'role':'assistant','content':'1','reasoning_content':'r1'}"
#define A2 "{'role':'assistant','content':'2','reasoning_content':'r2'}"
#define TOOL "{'role':'tool','content':'t'}"
    const char *in = "[" USER "," A1 "," USER "," A2 "," TOOL "," A2 "]";
    struct mx_messages_options o = {.thinking = MX_THINKING_AUTO};
    check_with(&o, in, in);
    o.thinking = MX_THINKING_ON;
    check_with(&o, in, in);
    o.thinking = MX_THINKING_SCOPED;
    check_with(&o, in,
               "[" USER ",{'role':'assistant','content':'1'}," USER "," A2 "," TOOL "," A2 "]");
    check_with(&o, "[" A1 "]", "[" A1 "]");
    o.thinking = MX_THINKING_OFF;
    check_with(&o, in,
               "[" USER ",{'role':'assistant','content':'1'}," USER
               ",{'role':'assistant','content':'2'}," TOOL ",{'role':'assistant','content':'2'}]");
    /* A system message that has to be shown as the user's starts no new turn. */
    o = (struct mx_messages_options){.thinking = MX_THINKING_SCOPED, .system_first = true};
    check_with(&o, "[" USER "," A1 ",{'role':'system','content':'s'}]",
               "[" USER "," A1 ",{'role':'user','content':'s'}]");
    assert_int_equal(mx_thinking_named("scoped"), MX_THINKING_SCOPED);
    assert_int_equal(mx_thinking_named("auto"), MX_THINKING_AUTO);
    assert_int_equal(mx_thinking_named("maybe"), -1);
}

static void check_kwargs(enum mx_thinking policy, const char *in, const char *expected)
{
    json_t *kwargs = parse(in), *want = parse(expected);
    assert_true(mx_thinking_set_kwargs(policy, kwargs));
    assert_true(json_equal(kwargs, want));
    json_decref(kwargs);
    json_decref(want);
}

static void test_kwargs(void **state)
{
    (void)state;
    check_kwargs(MX_THINKING_AUTO, "{}", "{}");
    check_kwargs(MX_THINKING_ON, "{'x':1}",
                 "{'x':1,'preserve_thinking':true,'clear_thinking':false,'drop_thinking':false}");
    check_kwargs(MX_THINKING_OFF, "{'clear_thinking':false}",
                 "{'preserve_thinking':false,'clear_thinking':false,'drop_thinking':true}");
}

static void test_refusals(void **state)
{
    (void)state;
    check_refused("{}", "messages must be an array of at least one message");
    check_refused("[]", "messages must be an array of at least one message");
    check_refused("[1]", "messages[0] must be an object");
    check_refused("[{}]", "messages[0].role must be a string");
    check_refused("[" USER ",{'role':'bot'}]", "messages[1].role 'bot' is not known: use system, "
                                               "developer, user, assistant or tool");
    check_refused("[{'role':'user'}]", "messages[0].content must be a string or an array of parts");
    check_refused("[{'role':'user','content':1}]",
                  "messages[0].content must be a string or an array of parts");
    check_refused("[{'role':'assistant','content':{}}]",
                  "messages[0].content must be a string or an array of parts");
    check_refused("[{'role':'user','content':['a']}]", "messages[0].content[0] must be an object");
    check_refused("[{'role':'user','content':[{}]}]",
                  "messages[0].content[0].type must be a string");
    check_refused("[{'role':'user','content':[{'type':'text','text':'a'},{'type':'text'}]}]",
                  "messages[0].content[1].text must be a string");
    check_refused("[{'role':'user','content':[{'type':'image_url','image_url':{'url':'x'}}]}]",
                  "messages[0].content[0]: this model takes no images; send text parts only");
    check_refused("[{'role':'user','content':[{'type':'input_audio'}]}]",
                  "messages[0].content[0]: this model takes no audio; send text parts only");
    check_refused("[{'role':'user','content':[{'type':'smell'}]}]",
                  "messages[0].content[0].type 'smell' is not known: send parts of type 'text'");
    check_refused("[{'role':'user','content':[{'type':'thinking','thinking':'a'}]}]",
                  "messages[0].content[0].type 'thinking' belongs to messages of the assistant");
    check_refused("[{'role':'user','content':'a','name':1}]", "messages[0].name must be a string");
    check_refused("[{'role':'tool','content':'a','tool_call_id':1}]",
                  "messages[0].tool_call_id must be a string");
    check_refused("[{'role':'assistant','reasoning':{}}]",
                  "messages[0].reasoning must be a string");
}

static void check_calls_refused(const char *calls, const char *message)
{
    char in[400];
    snprintf(in, sizeof in, "[" USER ",{'role':'assistant','tool_calls':%s}]", calls);
    check_refused(in, message);
}

static void test_refused_calls(void **state)
{
    (void)state;
    check_calls_refused("{}", "messages[1].tool_calls must be an array");
    check_calls_refused("[1]", "messages[1].tool_calls[0] must be an object");
    check_calls_refused("[{}]", "messages[1].tool_calls[0].function is missing");
    check_calls_refused("[{'function':1}]", "messages[1].tool_calls[0].function must be an object");
    check_calls_refused("[{'name':'f'},{'type':'custom'}]",
                        "messages[1].tool_calls[1].type must be 'function'");
    check_calls_refused("[{'id':1,'name':'f'}]", "messages[1].tool_calls[0].id must be a string");
    check_calls_refused("[{'function':{'name':''}}]", "messages[1].tool_calls[0].function.name "
                                                      "must be a string that is not empty");
    check_calls_refused("[{'function':{'name':'f','arguments':[]}}]",
                        "messages[1].tool_calls[0].function.arguments must be a string that holds "
                        "a JSON object");
    check_refused("[{'role':'assistant','function_call':1}]",
                  "messages[0].function_call must be an object");
    check_refused("[{'role':'assistant','function_call':{}}]",
                  "messages[0].function_call.name must be a string that is not empty");
}

static void test_limits(void **state)
{
    (void)state;
    const struct mx_messages_options two = {.max_messages = 2}, flat = {.max_depth = 2};
    check_with(&two, "[" USER "," USER "]", "[" USER "," USER "]");
    check_refused_with(&two, "[" USER "," USER "," USER "]", MTPLX_ERR_LIMIT,
                       "messages has 3 members, more than the limit of 2");
    check_with(&flat, CALL("{'a':[1]}"), CALL("{'a':[1]}"));
    check_refused_with(
        &flat, CALL("{'a':[{}]}"), MTPLX_ERR_LIMIT,
        "messages[1].tool_calls[0].function.arguments nests more than 2 levels deep");
    /* Deep JSON in a string. */
    struct mx_strbuf b;
    mx_strbuf_init(&b, 0);
    mx_strbuf_puts(&b, "[{'role':'assistant','tool_calls':[{'name':'f','arguments':'{\\'a\\':");
    for (int i = 0; i < 1000; i++)
        mx_strbuf_putc(&b, '[');
    for (int i = 0; i < 1000; i++)
        mx_strbuf_putc(&b, ']');
    mx_strbuf_puts(&b, "}'}]}]");
    const struct mx_messages_options o = {0};
    check_refused_with(&o, b.data, MTPLX_ERR_LIMIT,
                       "messages[0].tool_calls[0].arguments nests more than 128 levels deep");
    mx_strbuf_free(&b);
}

/* ---- With templates ---- */

static struct mx_chat *open_template(const char *source)
{
    char dir[] = "/tmp/mtplx-messages-XXXXXX", path[64];
    mtplx_error err;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(source, 1, strlen(source), f), strlen(source));
    fclose(f);
    struct mx_chat *c = mx_chat_open(dir, &err);
    unlink(path);
    rmdir(dir);
    assert_non_null(c);
    return c;
}

static bool system_first(const char *source)
{
    struct mx_chat *c = open_template(source);
    bool first = mx_messages_system_first(c);
    mx_chat_free(c);
    return first;
}

static void test_where_system_messages_may_stand(void **state)
{
    (void)state;
    assert_false(system_first("{% for m in messages %}{{ m.role + m.content }}{% endfor %}"));
    assert_true(system_first("{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
                             "{{ raise_exception('no') }}{% endif %}{{ m.content }}{% endfor %}"));
    assert_true(system_first("{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}"
                             "{% endif %}{% endfor %}"));
}

/* ---- Round trips ---- */

struct call {
    char name[64];
    struct mx_strbuf args;
    int ended;
};

static void on_event(void *arg, enum mx_tool_event event, int call, const char *text, size_t n)
{
    struct call *c = arg;
    assert_int_equal(call, 0);
    if (event == MX_TOOL_BEGIN)
        snprintf(c->name, sizeof c->name, "%.*s", (int)n, text);
    else if (event == MX_TOOL_ARGS)
        mx_strbuf_append(&c->args, text, n);
    else if (event == MX_TOOL_END)
        c->ended++;
}

/* What the shipped model's template shows of a call reads as the same call. */
static void round_trip(const struct mx_chat *chat, const char *args)
{
    static const char tools_text[] =
        "[{'type':'function','function':{'name':'f','parameters':{'properties':{'s':{'type':"
        "'string'},'i':{'type':'integer'},'n':{'type':'number'},'b':{'type':'boolean'},'l':{'type':"
        "'array'},'o':{'type':'object'},'m':{'type':['string','null']}}}}}]";
    mtplx_error err = {0};
    const struct mx_messages_options o = {.style = MX_REASONING_THINK};
    struct mx_strbuf text;
    struct call c = {0};
    json_t *want = parse(args), *tools = parse(tools_text), *messages;
    char *dumped = json_dumps(want, 0);
    json_t *in = json_pack("[{s:s,s:s},{s:s,s:[{s:s,s:{s:s,s:s}}]}]", "role", "user", "content",
                           "u", "role", "assistant", "tool_calls", "type", "function", "function",
                           "name", "f", "arguments", dumped);
    assert_int_equal(mx_messages_normalise(in, &o, &messages, &err), MTPLX_OK);
    const struct mx_chat_request q = {.messages = messages};
    mx_strbuf_init(&text, 0);
    assert_int_equal(mx_chat_render(chat, &q, &text, &err), MTPLX_OK);
    const struct mx_toolcall_options to = {
        .syntax = mx_tool_syntax_of(mx_chat_template_text(chat, true)), .tools = tools};
    struct mx_toolcall *t = mx_toolcall_new(&to, on_event, &c, &err);
    assert_true(mx_toolcall_push(t, text.data, text.len));
    assert_true(mx_toolcall_finish(t));
    mx_toolcall_free(t);
    assert_int_equal(c.ended, 1);
    assert_string_equal(c.name, "f");
    json_t *got = json_loadb(c.args.data, c.args.len, 0, NULL);
    if (!json_equal(got, want))
        fail_msg("%s came back as %s", dumped, c.args.data);
    free(dumped);
    mx_strbuf_free(&text);
    mx_strbuf_free(&c.args);
    json_decref(got);
    json_decref(want);
    json_decref(in);
    json_decref(messages);
    json_decref(tools);
}

static void test_calls_survive_the_template(void **state)
{
    (void)state;
    char path[1024];
    mtplx_error err;
    const char *root = getenv("MTPLX_SRC");
    snprintf(path, sizeof path, "%s/models/nano", root ? root : ".");
    struct mx_chat *chat = mx_chat_open(path, &err);
    assert_non_null(chat);
    assert_int_equal(mx_tool_syntax_of(mx_chat_template_text(chat, true)), MX_TOOLS_QWEN_XML);
    assert_int_equal(mx_reasoning_style_of(mx_chat_template_text(chat, true)), MX_REASONING_THINK);
    assert_true(mx_messages_system_first(chat));
    static const char *const args[] = {
        "{}",
        "{'s':''}",
        "{'s':'\\n'}",
        "{'s':'\\n\\na\\n\\n'}",
        "{'s':' a \\t','i':-3,'n':1.5e300,'b':true,'l':[1,[],'x'],'o':{'k':{}}}",
        "{'s':'42','m':null,'i':42}",
        "{'s':'</parameter>\\n<x> </function></tool_call>'}",
        "{'s':'a\\\\b \\u00e9 \\ud83d\\ude00 {}[]','m':'text'}",
        "{'s':'<tool_call>\\n<function=f>\\n'}",
    };
    for (size_t i = 0; i < sizeof args / sizeof *args; i++)
        round_trip(chat, args[i]);
    mx_chat_free(chat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_roles),
        cmocka_unit_test(test_content),
        cmocka_unit_test(test_tool_calls),
        cmocka_unit_test(test_reasoning),
        cmocka_unit_test(test_policies),
        cmocka_unit_test(test_kwargs),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_refused_calls),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_calls_survive_the_template),
        cmocka_unit_test(test_where_system_messages_may_stand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
