/* Messages API: bodies into turns, and the events of turns into messages, without a model. */
#include "exchange_rig.h"

#include "serve/anthropic_int.h"
#include "serve/stops.h"

/* ---- Requests ----------------------------------------------------------------------------- */

/* The body of a request of these messages. */
static json_t *body_of(const char *messages)
{
    json_t *body = json_pack("{s:s,s:i}", "model", "m", "max_tokens", 9);
    json_object_set_new(body, "messages", parse_json(messages));
    return body;
}

#define TOOL_USE "{'type':'tool_use','id':'toolu_1','name':'f','input':{'a':1}}"
#define CALL                                                                                       \
    "{'id':'toolu_1','type':'function','function':{'name':'f','arguments':'{\\\"a\\\":1}'}}"

static const struct translation {
    const char *messages, *want;
} translations[] = {
    {"[{'role':'user','content':'hi'}]", "[{'role':'user','content':'hi'}]"},
    {"[{'role':'user','content':[{'type':'text','text':'a','cache_control':{'type':'ephemeral'}},"
     "{'type':'text','text':'b'}]}]",
     "[{'role':'user','content':'a\\nb'}]"},
    /* turns of one role are one turn */
    {"[{'role':'user','content':'a'},{'role':'user','content':'b'}]",
     "[{'role':'user','content':'a\\nb'}]"},
    {"[{'role':'user','content':''}]", "[{'role':'user','content':''}]"},
    {"[{'role':'user','content':'a'},{'role':'assistant','content':[]},"
     "{'role':'user','content':[]}]",
     "[{'role':'user','content':'a'},{'role':'assistant','content':''},"
     "{'role':'user','content':''}]"},
    /* nothing has been begun */
    {"[{'role':'user','content':'a'},{'role':'assistant','content':[]}]",
     "[{'role':'user','content':'a'}]"},
    {"[{'role':'user','content':'a'},{'role':'assistant','content':[{'type':'thinking',"
     "'thinking':'h'},{'type':'text','text':' \\n'}]}]",
     "[{'role':'user','content':'a'}]"},
    /* thinking, text and a call; then its result, and what the user says */
    {"[{'role':'user','content':'q'},{'role':'assistant','content':["
     "{'type':'thinking','thinking':'hm','signature':'x'},{'type':'text','text':'t'}," TOOL_USE
     "]},{'role':'user','content':[{'type':'tool_result','tool_use_id':'toolu_1','content':'42'},"
     "{'type':'text','text':'go on'}]}]",
     "[{'role':'user','content':'q'},{'role':'assistant','content':'t','reasoning_content':'hm',"
     "'tool_calls':[" CALL "]},{'role':'tool','tool_call_id':'toolu_1','content':'42'},"
     "{'role':'user','content':'go on'}]"},
    /* the order of blocks is kept */
    {"[{'role':'user','content':[{'type':'text','text':'a'},"
     "{'type':'tool_result','tool_use_id':'i'},{'type':'text','text':'b'}]}]",
     "[{'role':'user','content':'a'},{'role':'tool','tool_call_id':'i','content':''},"
     "{'role':'user','content':'b'}]"},
    {"[{'role':'user','content':[{'type':'tool_result','tool_use_id':'i','is_error':true,"
     "'content':[{'type':'text','text':'no'},{'type':'text','text':'file'}]}]}]",
     "[{'role':'tool','tool_call_id':'i','content':'Error: no\\nfile'}]"},
    {"[{'role':'user','content':[{'type':'tool_result','tool_use_id':'i','is_error':true,"
     "'content':'<tool_use_error>x</tool_use_error>'}]}]",
     "[{'role':'tool','tool_call_id':'i','content':'<tool_use_error>x</tool_use_error>'}]"},
    {"[{'role':'user','content':[{'type':'tool_result','tool_use_id':'i','is_error':true}]}]",
     "[{'role':'tool','tool_call_id':'i','content':'Error: '}]"},
    /* documents that are text */
    {"[{'role':'user','content':[{'type':'document','title':'T','context':'C','source':"
     "{'type':'text','media_type':'text/plain','data':'body'}},{'type':'text','text':'q'}]}]",
     "[{'role':'user','content':'T\\nC\\nbody\\nq'}]"},
    {"[{'role':'user','content':[{'type':'document','source':{'type':'content','content':"
     "[{'type':'text','text':'one'}]}}]}]",
     "[{'role':'user','content':'one'}]"},
    {"[{'role':'user','content':[{'type':'search_result','title':'T','source':'S','content':"
     "[{'type':'text','text':'x'}]}]}]",
     "[{'role':'user','content':'T\\nS\\nx'}]"},
    /* what only Anthropic's servers make has no meaning here */
    {"[{'role':'user','content':'q'},{'role':'assistant','content':["
     "{'type':'redacted_thinking','data':'zz'},{'type':'server_tool_use','id':'s','name':'w',"
     "'input':{}},{'type':'web_search_tool_result','tool_use_id':'s','content':[]},"
     "{'type':'text','text':'t'}]},{'role':'user','content':'r'}]",
     "[{'role':'user','content':'q'},{'role':'assistant','content':'t'},"
     "{'role':'user','content':'r'}]"},
    {"[{'role':'user','content':'a'},{'role':'system','content':'s'},"
     "{'role':'user','content':'b'}]",
     "[{'role':'user','content':'a'},{'role':'system','content':'s'},"
     "{'role':'user','content':'b'}]"},
};

static void test_messages(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof translations / sizeof *translations; i++) {
        struct mx_messages_request r = {0};
        struct mx_api_error e = {0};
        char *in = requote(translations[i].messages), *want = requote(translations[i].want);
        json_t *body = body_of(in);
        if (!mx_messages_parse(body, false, &r, &e))
            fail_msg("%s: %s", in, e.message);
        assert_json(r.messages, want);
        assert_ptr_equal(r.turn.messages, r.messages);
        assert_false(r.turn.continue_final);
        mx_messages_request_free(&r);
        json_decref(body);
        free(in);
        free(want);
    }
}

static void test_request(void **state)
{
    (void)state;
    struct mx_messages_request r = {0};
    struct mx_api_error e = {0};
    json_t *body = parse_json(
        "{\"model\":\"m\",\"max_tokens\":77,\"stream\":true,\"temperature\":0.5,\"top_p\":0.25,"
        "\"top_k\":7,\"stop_sequences\":[\"A\",\"B\"],\"unheard_of\":1,"
        "\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: c=1\"},"
        "{\"type\":\"text\",\"text\":\"Be brief.\",\"cache_control\":{\"type\":\"ephemeral\"}}],"
        "\"metadata\":{\"user_id\":\"user_1_account_2_session_abc\"},"
        "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024,\"display\":\"omitted\"},"
        "\"output_config\":{\"effort\":\"high\",\"format\":{\"type\":\"json_schema\",\"schema\":"
        "{\"type\":\"object\"}}},"
        "\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{\"type\":\"object\"},"
        "\"strict\":true},{\"type\":\"web_search_20250305\",\"name\":\"web_search\"},"
        "{\"type\":\"custom\",\"name\":\"g\",\"input_schema\":{}}],"
        "\"tool_choice\":{\"type\":\"tool\",\"name\":\"g\",\"disable_parallel_tool_use\":true},"
        "\"messages\":[{\"role\":\"user\",\"content\":\"q\"},"
        "{\"role\":\"assistant\",\"content\":\"The\"}]}");
    if (!mx_messages_parse(body, false, &r, &e))
        fail_msg("%s", e.message);
    assert_json(r.messages,
                "[{\"role\":\"system\",\"content\":\"x-anthropic-billing-header: c=1\\n\\nBe "
                "brief.\"},{\"role\":\"user\",\"content\":\"q\"},"
                "{\"role\":\"assistant\",\"content\":\"The\"}]");
    assert_json(r.turn.tools,
                "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\","
                "\"parameters\":{\"type\":\"object\"},\"strict\":true}},"
                "{\"type\":\"function\",\"function\":{\"name\":\"g\",\"parameters\":{}}}]");
    assert_int_equal(r.turn.tool_choice, MX_TOOL_CHOICE_NAMED);
    assert_string_equal(r.turn.tool_name, "g");
    assert_false(r.turn.parallel_tool_calls);
    assert_true(r.turn.continue_final);
    assert_true(r.stream && r.hide_thinking);
    assert_int_equal(r.turn.thinking, MX_ON);
    assert_string_equal(r.turn.reasoning_effort, "high");
    assert_int_equal(r.turn.format, MX_FORMAT_SCHEMA);
    assert_json(r.turn.schema, "{\"type\":\"object\"}");
    assert_int_equal(r.turn.gen.max_tokens, 77);
    assert_int_equal(r.turn.gen.sampling.top_k, 7);
    assert_true(r.turn.gen.sampling.temperature == 0.5 && r.turn.gen.sampling.top_p == 0.25);
    assert_int_equal(r.turn.n_stop, 2);
    assert_string_equal(r.turn.stop[1], "B");
    assert_string_equal(r.turn.session, "abc");
    assert_int_equal(r.ignored, 2); /* unheard_of, and the server's tool */
    mx_messages_request_free(&r);
    json_decref(body);
}

/* A body like the smallest one but for one field, and what the error says. */
static const struct refusal {
    const char *field, *json, *says;
} refusals[] = {
    {"model", "null", "model"},
    {"model", "5", "model"},
    {"max_tokens", "null", "max_tokens"},
    {"max_tokens", "0", "max_tokens"},
    {"max_tokens", "'9'", "max_tokens"},
    {"messages", "null", "messages"},
    {"messages", "'hi'", "messages"},
    {"messages", "[]", "at least one message"},
    {"messages", "['hi']", "messages[0]"},
    {"messages", "[{'role':'robot','content':'x'}]", "messages[0].role"},
    {"messages", "[{'role':'user'}]", "messages[0].content"},
    {"messages", "[{'role':'user','content':7}]", "messages[0].content"},
    {"messages", "[{'role':'user','content':[7]}]", "messages[0].content[0]"},
    {"messages", "[{'role':'user','content':[{'text':'x'}]}]", "messages[0].content[0].type"},
    {"messages", "[{'role':'user','content':[{'type':'text'}]}]", "messages[0].content[0].text"},
    {"messages", "[{'role':'user','content':[{'type':'text','text':1}]}]",
     "messages[0].content[0].text"},
    {"messages", "[{'role':'user','content':[{'type':'image','source':{}}]}]",
     "messages[0].content[0]: images are not supported"},
    {"messages", "[{'role':'user','content':[{'type':'hologram'}]}]", "hologram"},
    {"messages",
     "[{'role':'user','content':[{'type':'document','source':{'type':'base64','data':'x'}}]}]",
     "messages[0].content[0].source"},
    {"messages", "[{'role':'user','content':[{'type':'tool_use','id':'a','name':'f','input':{}}]}]",
     "assistant message"},
    {"messages", "[{'role':'user','content':[{'type':'tool_result'}]}]",
     "messages[0].content[0].tool_use_id"},
    {"messages",
     "[{'role':'user','content':[{'type':'tool_result','tool_use_id':'a','content':["
     "{'type':'image'}]}]}]",
     "messages[0].content[0].content[0]: images"},
    {"messages",
     "[{'role':'user','content':[{'type':'tool_result','tool_use_id':'a','is_error':'yes'}]}]",
     "is_error"},
    {"messages", "[{'role':'assistant','content':[{'type':'tool_result','tool_use_id':'a'}]}]",
     "messages[0].content[0].tool_use_id|cannot stand in an assistant"},
    {"messages",
     "[{'role':'assistant','content':[{'type':'tool_use','id':'a','name':'f','input':'{}'}]}]",
     "messages[0].content[0].input"},
    {"messages",
     "[{'role':'assistant','content':[{'type':'tool_use','id':'a','name':'f','input':{}}]}]",
     "tool_result must follow"},
    {"messages", "[{'role':'assistant','content':' '}]", "no user message"},
    {"thread", "{'type':'create'}", "thread"},
    {"system", "7", "system"},
    {"system", "[{'type':'image'}]", "system[0]"},
    {"system", "[{'type':'text','text':[]}]", "system[0].text"},
    {"temperature", "1.5", "temperature"},
    {"temperature", "'0'", "temperature"},
    {"top_p", "2", "top_p"},
    {"top_k", "-1", "top_k"},
    {"stop_sequences", "'x'", "stop_sequences"},
    {"stop_sequences", "['']", "stop_sequences[0]"},
    {"stop_sequences", "[1]", "stop_sequences[0]"},
    {"stream", "1", "stream"},
    {"metadata", "[]", "metadata"},
    {"metadata", "{'user_id':5}", "metadata.user_id"},
    {"thinking", "true", "thinking"},
    {"thinking", "{}", "thinking.type"},
    {"thinking", "{'type':'on'}", "thinking.type"},
    {"thinking", "{'type':'enabled','budget_tokens':'x'}", "thinking.budget_tokens"},
    {"output_config", "{'effort':'huge'}", "output_config.effort"},
    {"output_config", "{'format':{'type':'xml'}}", "output_config.format.type"},
    {"output_config", "{'format':{'type':'json_schema'}}", "output_config.format.schema"},
    {"tools", "{}", "tools"},
    {"tools", "[1]", "tools[0]"},
    {"tools", "[{'input_schema':{}}]", "tools[0].name"},
    {"tools", "[{'name':'','input_schema':{}}]", "tools[0]"},
    {"tools", "[{'name':'f'}]", "tools[0].input_schema"},
    {"tools", "[{'name':'f','input_schema':'x'}]", "tools[0].input_schema"},
    {"tool_choice", "'auto'", "tool_choice"},
    {"tool_choice", "{'type':'some'}", "tool_choice.type"},
    {"tool_choice", "{'type':'any'}", "tool_choice"},
    {"tool_choice", "{'type':'tool'}", "tool_choice.name"},
    {"tool_choice", "{'type':'tool','name':'f'}", "tool_choice.name"},
};

/* Does the text hold one of the alternatives? */
static bool says(const char *text, const char *alternatives)
{
    for (const char *s = alternatives, *end; *s; s = *end ? end + 1 : end) {
        end = s + strcspn(s, "|");
        if (memmem(text, strlen(text), s, (size_t)(end - s)))
            return true;
    }
    return false;
}

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        struct mx_messages_request r = {0};
        struct mx_api_error e = {0};
        char *value = requote(refusals[i].json);
        json_t *body = body_of("[{\"role\":\"user\",\"content\":\"hi\"}]");
        json_object_set_new(body, refusals[i].field, parse_json(value));
        if (mx_messages_parse(body, false, &r, &e))
            fail_msg("%s = %s was taken", refusals[i].field, value);
        assert_int_equal(e.status, 400);
        json_decref(e.details);
        if (!says(e.message, refusals[i].says))
            fail_msg("%s = %s: %s", refusals[i].field, value, e.message);
        mx_messages_request_free(&r);
        json_decref(body);
        free(value);
    }
}

/* A stop sequence that could only be searched for in part is refused. */
static void test_long_stop(void **state)
{
    char text[MX_STOP_LEN_MAX + 2];
    (void)state;
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    for (int over = 1; over >= 0; over--) {
        struct mx_messages_request r = {0};
        struct mx_api_error e = {0};
        json_t *body = body_of("[{\"role\":\"user\",\"content\":\"hi\"}]");
        text[MX_STOP_LEN_MAX + over] = '\0';
        json_object_set_new(body, "stop_sequences", json_pack("[s]", text));
        assert_int_equal(mx_messages_parse(body, false, &r, &e), !over);
        mx_messages_request_free(&r);
        json_decref(body);
    }
}

/* What tells conversations apart. */
static void test_sessions(void **state)
{
    static const char *const users[][2] = {
        {"someone", "someone"},
        {"user_1_account__session_abc", "abc"},
        {"{\"device_id\":\"d\",\"session_id\":\"s-1\"}", "s-1"},
        {"{\"session_id\":5}", "{\"session_id\":5}"},
        {"{not JSON", "{not JSON"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof users / sizeof *users; i++) {
        struct mx_messages_request r = {0};
        struct mx_api_error e = {0};
        json_t *body = body_of("[{\"role\":\"user\",\"content\":\"hi\"}]");
        json_object_set_new(body, "metadata", json_pack("{s:s}", "user_id", users[i][0]));
        assert_true(mx_messages_parse(body, false, &r, &e));
        assert_string_equal(r.turn.session, users[i][1]);
        mx_messages_request_free(&r);
        json_decref(body);
    }
}

static void test_count_needs_no_limit(void **state)
{
    (void)state;
    struct mx_messages_request r = {0};
    struct mx_api_error e = {0};
    json_t *body = body_of("[{\"role\":\"user\",\"content\":\"hi\"}]");
    json_object_del(body, "max_tokens");
    assert_true(mx_messages_parse(body, true, &r, &e));
    mx_messages_request_free(&r);
    assert_false(mx_messages_parse(body, false, &r, &e));
    mx_messages_request_free(&r);
    json_decref(body);
}

/* Many small messages of one role are joined in time that is linear in them. */
static void test_many_messages(void **state)
{
    (void)state;
    enum { N = 90000 };
    struct mx_messages_request r = {0};
    struct mx_api_error e = {0};
    json_t *body = body_of("[]"), *list = json_object_get(body, "messages");
    for (int i = 0; i < N; i++)
        json_array_append_new(list,
                              json_pack("{s:s,s:s}", "role", "user", "content", "0123456789"));
    assert_true(mx_messages_parse(body, false, &r, &e));
    assert_int_equal(json_array_size(r.messages), 1);
    json_t *content = json_object_get(json_array_get(r.messages, 0), "content");
    assert_int_equal(json_string_length(content), N * 11 - 1);
    mx_messages_request_free(&r);
    json_decref(body);
}

/* ---- Answers ------------------------------------------------------------------------------ */

struct script {
    enum mx_turn_kind kind;
    const char *text; /* TOOL_BEGIN: the name */
};

static void play(struct mx_messages_answer *a, const struct script *s, size_t n,
                 const struct mx_turn_finish *f)
{
    for (size_t i = 0; i < n; i++) {
        struct mx_turn_event ev = {.kind = s[i].kind,
                                   .text = s[i].text,
                                   .n = s[i].text ? strlen(s[i].text) : 0,
                                   .name = s[i].text,
                                   .call_id = "call_abc",
                                   .read = 4,
                                   .of = 10};
        mx_messages_answer_event(a, &ev);
    }
    mx_messages_answer_event(a, &(struct mx_turn_event){.kind = MX_TURN_FINISH, .finish = f});
    mx_messages_answer_event(a, &(struct mx_turn_event){.kind = MX_TURN_CLOSE});
}

/* The exchange of an answer; *reply is what was sent. */
static struct mx_exchange *run(bool stream, bool hide, const struct script *s, size_t n,
                               const struct mx_turn_finish *f, char **reply)
{
    struct mx_messages_request r = {.stream = stream, .hide_thinking = hide, .model = "m\"1"};
    r.turn.stop[r.turn.n_stop++] = "STOP";
    struct mx_exchange *x = rig_exchange(MX_DIALECT_ANTHROPIC, NULL);
    struct mx_messages_answer *a = mx_messages_answer_new(x, &r);
    assert_non_null(a);
    mx_messages_answer_begin(a);
    play(a, s, n, f);
    mx_messages_answer_unref(a);
    *reply = rig_reply(x);
    return x;
}

static const struct script full[] = {
    {MX_TURN_PROGRESS, NULL},  {MX_TURN_REASONING, "h\n"},  {MX_TURN_REASONING, "m"},
    {MX_TURN_TEXT, "\n\n"},    {MX_TURN_TEXT, "say \"x\""}, {MX_TURN_TEXT, " y"},
    {MX_TURN_TEXT, "\n"},      {MX_TURN_TOOL_BEGIN, "f"},   {MX_TURN_TOOL_ARGS, "{\"a\":"},
    {MX_TURN_TOOL_ARGS, "1}"}, {MX_TURN_TOOL_END, NULL},    {MX_TURN_TEXT, "\n"},
    {MX_TURN_TOOL_BEGIN, "g"}, {MX_TURN_TOOL_ARGS, "{}"},   {MX_TURN_TOOL_END, NULL}};

static const struct mx_turn_finish full_end = {.reason = MX_REASON_TOOL_CALLS,
                                               .stop_index = -1,
                                               .prompt_tokens = 10,
                                               .cached_tokens = 4,
                                               .completion_tokens = 20,
                                               .reasoning_tokens = 3};

static void test_whole(void **state)
{
    (void)state;
    char *reply;
    struct mx_exchange *x = run(false, false, full, sizeof full / sizeof *full, &full_end, &reply);
    assert_int_equal(x->status, 200);
    assert_int_equal(x->state, MX_REPLY_WHOLE);
    json_t *got = parse_json(reply);
    assert_json(json_object_get(got, "content"),
                "[{\"type\":\"thinking\",\"thinking\":\"h\\nm\",\"signature\":\"bXRwbHg=\"},"
                "{\"type\":\"text\",\"text\":\"\\n\\nsay \\\"x\\\" y\\n\"},"
                "{\"type\":\"tool_use\",\"id\":\"toolu_abc\",\"name\":\"f\",\"input\":{\"a\":1}},"
                "{\"type\":\"tool_use\",\"id\":\"toolu_abc\",\"name\":\"g\",\"input\":{}}]");
    assert_json(json_object_get(got, "id"), "\"msg_0123456789abcdef01234567\"");
    assert_json(json_object_get(got, "type"), "\"message\"");
    assert_json(json_object_get(got, "role"), "\"assistant\"");
    assert_json(json_object_get(got, "model"), "\"m\\\"1\"");
    assert_json(json_object_get(got, "stop_reason"), "\"tool_use\"");
    assert_json(json_object_get(got, "stop_sequence"), "null");
    const json_t *usage = json_object_get(got, "usage");
    assert_json(json_object_get(usage, "input_tokens"), "6");
    assert_json(json_object_get(usage, "cache_read_input_tokens"), "4");
    assert_json(json_object_get(usage, "output_tokens"), "20");
    json_decref(got);
    rig_free(x);
    free(reply);
}

static void test_stream(void **state)
{
    (void)state;
    char *reply;
    static const char *const want[] = {
        "message_start {\"type\":\"message_start\"",
        "ping {\"type\":\"ping\"}",
        "content_block_start {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{"
        "\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}",
        "content_block_delta {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":"
        "\"thinking_delta\",\"thinking\":\"h\\n\"}}",
        "content_block_delta {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":"
        "\"thinking_delta\",\"thinking\":\"m\"}}",
        "content_block_delta {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":"
        "\"signature_delta\",\"signature\":\"bXRwbHg=\"}}",
        "content_block_stop {\"type\":\"content_block_stop\",\"index\":0}",
        "content_block_start {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{"
        "\"type\":\"text\",\"text\":\"\"}}",
        "content_block_delta {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":"
        "\"text_delta\",\"text\":\"\\n\\n\"}}",
        "content_block_delta {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":"
        "\"text_delta\",\"text\":\"say \\\"x\\\"\"}}",
        "content_block_delta {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":"
        "\"text_delta\",\"text\":\" y\"}}",
        "content_block_delta {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":"
        "\"text_delta\",\"text\":\"\\n\"}}",
        "content_block_stop {\"type\":\"content_block_stop\",\"index\":1}",
        "content_block_start {\"type\":\"content_block_start\",\"index\":2,\"content_block\":{"
        "\"type\":\"tool_use\",\"id\":\"toolu_abc\",\"name\":\"f\",\"input\":{}}}",
        "content_block_delta {\"type\":\"content_block_delta\",\"index\":2,\"delta\":{\"type\":"
        "\"input_json_delta\",\"partial_json\":\"{\\\"a\\\":\"}}",
        "content_block_delta {\"type\":\"content_block_delta\",\"index\":2,\"delta\":{\"type\":"
        "\"input_json_delta\",\"partial_json\":\"1}\"}}",
        "content_block_stop {\"type\":\"content_block_stop\",\"index\":2}",
        "content_block_start {\"type\":\"content_block_start\",\"index\":3",
        "content_block_delta {\"type\":\"content_block_delta\",\"index\":3,\"delta\":{\"type\":"
        "\"input_json_delta\",\"partial_json\":\"{}\"}}",
        "content_block_stop {\"type\":\"content_block_stop\",\"index\":3}",
        "message_delta {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\","
        "\"stop_sequence\":null},\"usage\":{\"input_tokens\":6,",
        "message_stop {\"type\":\"message_stop\"}",
    };
    struct mx_exchange *x = run(true, false, full, sizeof full / sizeof *full, &full_end, &reply);
    assert_int_equal(x->state, MX_REPLY_ENDED);
    char *save = NULL, *line = strtok_r(reply, "\n", &save);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        if (!line || strncmp(line, want[i], strlen(want[i])) != 0)
            fail_msg("event %zu is %s, not %s", i, line ? line : "none", want[i]);
        json_decref(parse_json(strchr(line, ' ') + 1));
        line = strtok_r(NULL, "\n", &save);
    }
    assert_null(line);
    rig_free(x);
    free(reply);
}

static void test_hidden_thinking(void **state)
{
    (void)state;
    char *reply;
    static const struct script s[] = {{MX_TURN_REASONING, "secret"}, {MX_TURN_TEXT, "t"}};
    for (int stream = 0; stream < 2; stream++) {
        struct mx_exchange *x = run(stream, true, s, 2, &full_end, &reply);
        assert_null(strstr(reply, "secret"));
        assert_non_null(strstr(reply, "\"thinking\":\"\""));
        assert_non_null(strstr(reply, "bXRwbHg="));
        rig_free(x);
        free(reply);
    }
}

/* A call that was cut off: no half object in a whole reply, and the length as the reason. */
static void test_cut_call(void **state)
{
    (void)state;
    char *reply;
    static const struct script s[] = {
        {MX_TURN_TEXT, "t"}, {MX_TURN_TOOL_BEGIN, "f"}, {MX_TURN_TOOL_ARGS, "{\"a\":\"b"}};
    const struct mx_turn_finish f = {.reason = MX_REASON_LENGTH, .stop_index = -1};
    struct mx_exchange *x = run(false, false, s, 3, &f, &reply);
    json_t *got = parse_json(reply);
    assert_json(json_object_get(got, "content"), "[{\"type\":\"text\",\"text\":\"t\"}]");
    assert_json(json_object_get(got, "stop_reason"), "\"max_tokens\"");
    json_decref(got);
    rig_free(x);
    free(reply);
    x = run(true, false, s, 3, &f, &reply);
    assert_non_null(strstr(reply, "{\"type\":\"content_block_stop\",\"index\":1}"));
    rig_free(x);
    free(reply);
    x = run(false, false, s + 1, 2, &f, &reply); /* the only block */
    got = parse_json(reply);
    assert_json(json_object_get(got, "content"), "[]");
    json_decref(got);
    rig_free(x);
    free(reply);
}

static void test_stop_sequence(void **state)
{
    (void)state;
    char *reply;
    const struct mx_turn_finish f = {.reason = MX_REASON_STOP_SEQUENCE, .stop_index = 0};
    struct mx_exchange *x = run(false, false, full, 6, &f, &reply);
    json_t *got = parse_json(reply);
    assert_json(json_object_get(got, "stop_reason"), "\"stop_sequence\"");
    assert_json(json_object_get(got, "stop_sequence"), "\"STOP\"");
    json_decref(got);
    rig_free(x);
    free(reply);
}

static void test_errors(void **state)
{
    (void)state;
    char *reply;
    struct mx_turn_finish f = {.reason = MX_REASON_ERROR};
    mx_api_fail(&f.error, 507, NULL, "no room");
    struct mx_exchange *x = run(false, false, full, 6, &f, &reply);
    assert_int_equal(x->status, 507);
    assert_non_null(strstr(reply, "no room"));
    rig_free(x);
    free(reply);
    x = run(true, false, full, 6, &f, &reply);
    assert_int_equal(x->state, MX_REPLY_ENDED);
    assert_null(strstr(reply, "message_stop"));
    assert_non_null(strstr(reply, "error {\"type\":\"error\""));
    rig_free(x);
    free(reply);
    f.reason = MX_REASON_CANCELLED;
    x = run(false, false, full, 6, &f, &reply);
    assert_int_equal(x->status, 499);
    rig_free(x);
    free(reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),      cmocka_unit_test(test_request),
        cmocka_unit_test(test_refusals),      cmocka_unit_test(test_count_needs_no_limit),
        cmocka_unit_test(test_many_messages), cmocka_unit_test(test_whole),
        cmocka_unit_test(test_stream),        cmocka_unit_test(test_hidden_thinking),
        cmocka_unit_test(test_cut_call),      cmocka_unit_test(test_stop_sequence),
        cmocka_unit_test(test_errors),        cmocka_unit_test(test_long_stop),
        cmocka_unit_test(test_sessions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
