/* Responses API: bodies into turns, and the events of turns into responses, without a model. */
#include "exchange_rig.h"

#include "serve/responses_int.h"

#define REQUEST "req_0123456789abcdef01234567"
#define HEX "0123456789abcdef01234567"

/* ---- Requests ----------------------------------------------------------------------------- */

static void init_request(struct mx_responses_request *r, struct mx_response_store *s)
{
    memset(r, 0, sizeof *r);
    r->turn.parallel_tool_calls = true;
    r->model = "m";
    r->responses = s;
    r->client = "client";
    r->request_id = REQUEST;
}

static const struct translation {
    const char *body, *want;
} translations[] = {
    {"{'input':'hi'}", "[{'role':'user','content':'hi'}]"},
    {"{'input':'hi','instructions':'Be brief.'}",
     "[{'role':'system','content':'Be brief.'},{'role':'user','content':'hi'}]"},
    {"{'input':[{'role':'developer','content':'d'},{'role':'user','content':["
     "{'type':'input_text','text':'a'},{'type':'input_text','text':'b'}]}],'instructions':'i'}",
     "[{'role':'system','content':'i\\n\\nd'},{'role':'user','content':'a\\nb'}]"},
    /* an answer of several items is one turn */
    {"{'input':[{'role':'user','content':'q'},"
     "{'type':'reasoning','id':'rs_1','summary':[],'content':[{'type':'reasoning_text',"
     "'text':'hm'}]},{'type':'message','role':'assistant','id':'msg_1','status':'completed',"
     "'content':[{'type':'output_text','text':'t','annotations':[]}]},"
     "{'type':'function_call','call_id':'call_1','name':'f','arguments':'{}'},"
     "{'type':'function_call','call_id':'call_2','name':'g','arguments':'{}'},"
     "{'type':'function_call_output','call_id':'call_1','output':'1'},"
     "{'type':'function_call_output','call_id':'call_2','output':["
     "{'type':'input_text','text':'2'}]}]}",
     "[{'role':'user','content':'q'},{'role':'assistant','content':'t','reasoning_content':'hm',"
     "'tool_calls':[{'id':'call_1','type':'function','function':{'name':'f','arguments':'{}'}},"
     "{'id':'call_2','type':'function','function':{'name':'g','arguments':'{}'}}]},"
     "{'role':'tool','tool_call_id':'call_1','content':'1'},"
     "{'role':'tool','tool_call_id':'call_2','content':'2'}]"},
    {"{'input':[{'type':'custom_tool_call','call_id':'c','name':'f','input':'x y'},"
     "{'type':'custom_tool_call_output','call_id':'c','output':'z'}]}",
     "[{'role':'assistant','content':'','tool_calls':[{'id':'c','type':'function','function':"
     "{'name':'f','arguments':'{\\'input\\':\\'x y\\'}'}}]},"
     "{'role':'tool','tool_call_id':'c','content':'z'}]"},
    /* reasoning whose text is gone: the summary stands for it */
    {"{'input':[{'type':'reasoning','summary':[{'type':'summary_text','text':'s'}],"
     "'encrypted_content':'of another server'},{'role':'assistant','content':'t'},"
     "{'role':'user','content':'u'}]}",
     "[{'role':'assistant','content':'t','reasoning_content':'s'},{'role':'user','content':'u'}]"},
    /* sealed reasoning: 'hm' */
    {"{'input':[{'type':'reasoning','summary':[],'encrypted_content':'mtplx1.aG0'},"
     "{'role':'assistant','content':'t'},{'role':'user','content':'u'}]}",
     "[{'role':'assistant','content':'t','reasoning_content':'hm'},"
     "{'role':'user','content':'u'}]"},
    /* broken, not UTF-8, and holding a NUL: as if there were none */
    {"{'input':[{'type':'reasoning','summary':[],'encrypted_content':'mtplx1.%%'},"
     "{'type':'reasoning','summary':[],'encrypted_content':'mtplx1._w'},"
     "{'type':'reasoning','summary':[],'encrypted_content':'mtplx1.AA'},"
     "{'role':'user','content':'u'}]}",
     "[{'role':'user','content':'u'}]"},
    {"{'input':[{'type':'web_search_call','id':'ws','status':'completed'},"
     "{'role':'user','content':'u'}]}",
     "[{'role':'user','content':'u'}]"},
};

static void test_input(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof translations / sizeof *translations; i++) {
        struct mx_responses_request r;
        struct mx_api_error e = {0};
        char *text = requote(translations[i].body);
        json_t *body = parse_json(text);
        init_request(&r, NULL);
        if (!mx_responses_parse(body, &r, &e))
            fail_msg("%s: %s", text, e.message);
        assert_json(r.messages, translations[i].want);
        assert_ptr_equal(r.turn.messages, r.messages);
        mx_responses_request_free(&r);
        json_decref(body);
        free(text);
    }
}

/* Input items as they are stored: with ids, types and lists of parts. */
static void test_stored_items(void **state)
{
    (void)state;
    struct mx_responses_request r;
    struct mx_api_error e = {0};
    json_t *body = parse_json("{\"input\":[{\"role\":\"user\",\"content\":\"a\"},"
                              "{\"role\":\"assistant\",\"content\":\"b\",\"id\":\"own\"},"
                              "{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":"
                              "\"d\"}]}");
    init_request(&r, NULL);
    assert_true(mx_responses_parse(body, &r, &e));
    assert_json(r.input, "[{'type':'message','role':'user','id':'msg_" HEX "8000','content':["
                         "{'type':'input_text','text':'a'}]},"
                         "{'type':'message','role':'assistant','id':'own','content':["
                         "{'type':'output_text','text':'b','annotations':[]}]},"
                         "{'type':'function_call_output','call_id':'c','output':'d','id':"
                         "'fco_" HEX "8002'}]");
    assert_json(r.context, "[]");
    mx_responses_request_free(&r);
    json_decref(body);
}

static void test_settings(void **state)
{
    (void)state;
    struct mx_responses_request r;
    struct mx_api_error e = {0};
    char *text = requote(
        "{'model':'x','input':'q','max_output_tokens':33,'temperature':0.5,'top_p':0.25,"
        "'stream':true,'store':false,'top_logprobs':3,'user':'u','prompt_cache_key':'k',"
        "'reasoning':{'effort':'low','summary':'auto'},'parallel_tool_calls':false,"
        "'include':['reasoning.encrypted_content'],'metadata':{'a':'b'},'unheard_of':1,"
        "'text':{'verbosity':'low','format':{'type':'json_schema','name':'n','strict':true,"
        "'schema':{'type':'object'}}},"
        "'tools':[{'type':'function','name':'f','description':'d','parameters':{'type':'object'},"
        "'strict':true},{'type':'custom','name':'c'},{'type':'function','name':'p',"
        "'parameters':null,'strict':null}],'tool_choice':{'type':'function','name':'f'}}");
    json_t *body = parse_json(text);
    init_request(&r, NULL);
    if (!mx_responses_parse(body, &r, &e))
        fail_msg("%s", e.message);
    assert_json(r.turn.tools,
                "[{'type':'function','function':{'name':'f','description':'d','parameters':"
                "{'type':'object'},'strict':true}},{'type':'function','function':{'name':'c',"
                "'parameters':{'type':'object','properties':{'input':{'type':'string'}},"
                "'required':['input']}}},{'type':'function','function':{'name':'p','parameters':"
                "{'type':'object','properties':{}}}}]");
    assert_json(r.custom, "{'c':true}");
    assert_int_equal(r.turn.tool_choice, MX_TOOL_CHOICE_NAMED);
    assert_string_equal(r.turn.tool_name, "f");
    assert_int_equal(r.turn.format, MX_FORMAT_SCHEMA);
    assert_json(r.turn.schema, "{'type':'object'}");
    assert_int_equal(r.turn.thinking, MX_ON);
    assert_string_equal(r.turn.reasoning_effort, "low");
    assert_int_equal(r.turn.gen.max_tokens, 33);
    assert_int_equal(r.turn.gen.logprobs, 4);
    assert_string_equal(r.turn.session, "k");
    assert_string_equal(r.model, "x");
    assert_true(r.stream && !r.store && r.encrypted && !r.turn.parallel_tool_calls);
    assert_int_equal(r.ignored, 1);
    mx_responses_request_free(&r);
    json_decref(body);
    free(text);
}

static void test_allowed_tools(void **state)
{
    (void)state;
    struct mx_responses_request r;
    struct mx_api_error e = {0};
    char *text = requote("{'input':'q','tools':[{'type':'function','name':'f'},{'type':'function',"
                         "'name':'g'}],'tool_choice':{'type':'allowed_tools','mode':'required',"
                         "'tools':[{'type':'function','name':'g'}]}}");
    json_t *body = parse_json(text);
    init_request(&r, NULL);
    assert_true(mx_responses_parse(body, &r, &e));
    assert_int_equal(json_array_size(r.turn.tools), 1);
    assert_int_equal(r.turn.tool_choice, MX_TOOL_CHOICE_REQUIRED);
    mx_responses_request_free(&r);
    json_decref(body);
    free(text);
}

/* A body like the smallest one but for one field, and what the error says. */
static const struct refusal {
    const char *field, *json, *says;
} refusals[] = {
    {"input", "null", "input"},
    {"input", "7", "input"},
    {"input", "[]", "nothing to answer"},
    {"input", "[7]", "input[0]"},
    {"input", "[{'type':5}]", "input[0].type"},
    {"input", "[{'type':'telepathy'}]", "telepathy"},
    {"input", "[{'role':'robot','content':'x'}]", "input[0].role"},
    {"input", "[{'role':'user'}]", "input[0].content"},
    {"input", "[{'role':'user','content':7}]", "input[0].content"},
    {"input", "[{'role':'user','content':['x']}]", "input[0].content[0]"},
    {"input", "[{'role':'user','content':[{'type':'input_text'}]}]", "input[0].content[0].text"},
    {"input", "[{'role':'user','content':[{'type':'input_image','image_url':'x'}]}]",
     "input[0].content[0]' is an image"},
    {"input", "[{'role':'user','content':[{'type':'input_file'}]}]", "input_file"},
    {"input", "[{'type':'function_call','name':'f','arguments':'{}'}]", "input[0].call_id"},
    {"input", "[{'type':'function_call','call_id':'c','name':'f','arguments':{}}]",
     "input[0].arguments"},
    {"input", "[{'type':'function_call_output','call_id':'c'}]", "input[0].output"},
    {"input", "[{'type':'item_reference','id':'msg_1'}]", "refers to item 'msg_1'"},
    {"input", "[{'id':'rs_0123456789abcdef012345670000'}]", "refers to item"},
    {"input", "[{'type':'item_reference'}]", "input[0].id"},
    {"instructions", "['x']", "instructions"},
    {"model", "7", "model"},
    {"max_output_tokens", "0", "max_output_tokens"},
    {"max_output_tokens", "'9'", "max_output_tokens"},
    {"temperature", "3", "temperature"},
    {"top_p", "'1'", "top_p"},
    {"top_logprobs", "21", "top_logprobs"},
    {"stream", "'yes'", "stream"},
    {"store", "1", "store"},
    {"background", "true", "background"},
    {"conversation", "'c'", "conversation"},
    {"prompt", "{'id':'p'}", "prompt"},
    {"truncation", "'some'", "truncation"},
    {"metadata", "{'a':1}", "metadata.a"},
    {"include", "'x'", "include"},
    {"include", "[1]", "include[0]"},
    {"reasoning", "'high'", "reasoning"},
    {"reasoning", "{'effort':'huge'}", "reasoning.effort"},
    {"text", "{'format':{'type':'xml'}}", "text.format.type"},
    {"text", "{'format':{'type':'json_schema','schema':{}}}", "text.format.name"},
    {"text", "{'format':{'type':'json_schema','name':'n'}}", "text.format.schema"},
    {"tools", "{}", "tools"},
    {"tools", "[{}]", "tools[0].type"},
    {"tools", "[{'type':'web_search'}]", "hosted tool of type 'web_search'"},
    {"tools", "[{'type':'function'}]", "tools[0].name"},
    {"tools", "[{'type':'function','name':''}]", "tools[0].name"},
    {"tools", "[{'type':'function','name':'f','parameters':'x'}]", "tools[0].parameters"},
    {"tools", "[{'type':'custom','name':'f','format':{'type':'grammar'}}]", "tools[0].format"},
    {"tool_choice", "7", "tool_choice"},
    {"tool_choice", "'maybe'", "tool_choice"},
    {"tool_choice", "'required'", "tools"},
    {"tool_choice", "{'type':'function','name':'f'}", "'tool_choice.name' is 'f'"},
    {"tool_choice", "{'type':'file_search'}", "hosted tool"},
    {"tool_choice", "{'type':'allowed_tools','tools':[{'name':'f'}]}", "tool_choice.tools[0]"},
    {"parallel_tool_calls", "'no'", "parallel_tool_calls"},
    {"previous_response_id", "5", "previous_response_id"},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        struct mx_responses_request r;
        struct mx_api_error e = {0};
        char *value = requote(refusals[i].json);
        json_t *body = json_pack("{s:s}", "input", "hi");
        json_object_set_new(body, refusals[i].field, parse_json(value));
        init_request(&r, NULL);
        if (mx_responses_parse(body, &r, &e))
            fail_msg("%s = %s was taken", refusals[i].field, value);
        assert_int_equal(e.status, 400);
        if (!strstr(e.message, refusals[i].says))
            fail_msg("%s = %s: %s", refusals[i].field, value, e.message);
        mx_responses_request_free(&r);
        json_decref(body);
        free(value);
    }
}

/* ---- Going on with a response ------------------------------------------------------------- */

static void store_first(struct mx_response_store *s, const char *client, bool pending)
{
    char *response = requote("{'id':'resp_" HEX "','output':[{'type':'message','id':'msg_" HEX
                             "0000','role':'assistant','content':[{'type':'output_text',"
                             "'text':'blue'}]}]}");
    char *input = requote("[{'type':'message','id':'msg_" HEX "8000','role':'user','content':["
                          "{'type':'input_text','text':'colour?'}]}]");
    char *context = requote("[{'type':'message','role':'user','content':'before'}]");
    assert_true(mx_response_store_add(s, &(struct mx_response_record){.id = "resp_" HEX,
                                                                      .client = client,
                                                                      .response = response,
                                                                      .input = input,
                                                                      .context = context,
                                                                      .pending = pending}));
    free(response);
    free(input);
    free(context);
}

static bool parse_next(struct mx_response_store *s, const char *body_text,
                       struct mx_responses_request *r, struct mx_api_error *e, json_t **body)
{
    char *text = requote(body_text);
    *body = parse_json(text);
    free(text);
    memset(e, 0, sizeof *e);
    init_request(r, s);
    return mx_responses_parse(*body, r, e);
}

static void test_previous(void **state)
{
    (void)state;
    static const char next[] =
        "{'input':'why?','previous_response_id':'resp_" HEX "','instructions':'new'}";
    struct mx_response_store *s = mx_response_store_new(8, 1 << 20);
    struct mx_responses_request r;
    struct mx_api_error e;
    json_t *body;
    assert_false(parse_next(NULL, next, &r, &e, &body));
    assert_int_equal(e.status, 400);
    assert_string_equal(e.code, "previous_response_not_found");
    mx_responses_request_free(&r);
    json_decref(body);

    store_first(s, "another", false);
    assert_false(parse_next(s, next, &r, &e, &body));
    assert_string_equal(e.code, "previous_response_not_found");
    mx_responses_request_free(&r);
    json_decref(body);

    store_first(s, "client", true);
    assert_false(parse_next(s, next, &r, &e, &body));
    assert_non_null(strstr(e.message, "still being written"));
    mx_responses_request_free(&r);
    json_decref(body);

    store_first(s, "client", false);
    if (!parse_next(s, next, &r, &e, &body))
        fail_msg("%s", e.message);
    assert_json(r.messages,
                "[{'role':'system','content':'new'},{'role':'user','content':'before\\ncolour?'},"
                "{'role':'assistant','content':'blue'},{'role':'user','content':'why?'}]");
    assert_int_equal(json_array_size(r.context), 3);
    assert_int_equal(json_array_size(r.input), 1);
    mx_responses_request_free(&r);
    json_decref(body);
    mx_response_store_free(s);
}

static void test_references(void **state)
{
    (void)state;
    static const char both[] = "{'input':[{'type':'item_reference','id':'msg_" HEX
                               "8000'},{'id':'msg_" HEX "0000'},{'role':'user','content':'x'}]}";
    struct mx_response_store *s = mx_response_store_new(8, 1 << 20);
    struct mx_responses_request r;
    struct mx_api_error e;
    json_t *body;
    store_first(s, "another", false);
    assert_false(parse_next(s, both, &r, &e, &body));
    mx_responses_request_free(&r);
    json_decref(body);
    store_first(s, "client", false);
    if (!parse_next(s, both, &r, &e, &body))
        fail_msg("%s", e.message);
    assert_json(r.messages, "[{'role':'user','content':'colour?'},"
                            "{'role':'assistant','content':'blue'},{'role':'user','content':'x'}]");
    mx_responses_request_free(&r);
    json_decref(body);
    mx_response_store_free(s);
}

static void test_seal(void **state)
{
    (void)state;
    size_t n = 0;
    char *sealed = mx_reasoning_seal("thought \xc3\xa4", 10);
    char *text = mx_reasoning_unseal(sealed, &n);
    assert_int_equal(n, 10);
    assert_memory_equal(text, "thought \xc3\xa4", 10);
    free(sealed);
    free(text);
    sealed = mx_reasoning_seal("", 0);
    text = mx_reasoning_unseal(sealed, &n);
    assert_int_equal(n, 0);
    free(sealed);
    free(text);
    assert_null(mx_reasoning_unseal("something else", &n));
    assert_null(mx_reasoning_unseal("mtplx1.***", &n));
}

/* ---- Answers ------------------------------------------------------------------------------ */

struct script {
    enum mx_turn_kind kind;
    const char *text; /* TOOL_BEGIN: the name */
};

static const struct script full[] = {{MX_TURN_PROGRESS, NULL},
                                     {MX_TURN_REASONING, "h\n"},
                                     {MX_TURN_REASONING, "m"},
                                     {MX_TURN_TEXT, "\n"},
                                     {MX_TURN_TEXT, "say \"x\""},
                                     {MX_TURN_TEXT, " y"},
                                     {MX_TURN_TOOL_BEGIN, "f"},
                                     {MX_TURN_TOOL_ARGS, "{\"a\":"},
                                     {MX_TURN_TOOL_ARGS, "1}"},
                                     {MX_TURN_TOOL_END, NULL},
                                     {MX_TURN_TEXT, "\n"},
                                     {MX_TURN_TOOL_BEGIN, "c"},
                                     {MX_TURN_TOOL_ARGS, "{\"input\":\"do"},
                                     {MX_TURN_TOOL_ARGS, " it\\n\"}"},
                                     {MX_TURN_TOOL_END, NULL}};

static const struct mx_turn_finish full_end = {.reason = MX_REASON_TOOL_CALLS,
                                               .stop_index = -1,
                                               .prompt_tokens = 10,
                                               .cached_tokens = 4,
                                               .completion_tokens = 20,
                                               .reasoning_tokens = 3};

static struct mx_app app;

/* The exchange of an answer; *reply is what was sent. */
static struct mx_exchange *run(bool stream, bool store, const struct script *s, size_t n,
                               const struct mx_turn_finish *f, char **reply)
{
    struct mx_responses_request r;
    struct mx_exchange *x = rig_exchange(MX_DIALECT_OPENAI, json_pack("{s:s}", "input", "hi"));
    init_request(&r, app.responses);
    r.stream = stream;
    r.store = store;
    r.encrypted = true;
    r.custom = json_pack("{s:b}", "c", 1);
    r.input = json_array();
    r.context = json_array();
    struct mx_responses_answer *a = mx_responses_answer_new(&app, x, &r);
    assert_non_null(a);
    mx_responses_answer_begin(a, 5);
    for (size_t i = 0; i < n; i++) {
        struct mx_turn_event ev = {.kind = s[i].kind,
                                   .text = s[i].text,
                                   .n = s[i].text ? strlen(s[i].text) : 0,
                                   .name = s[i].text,
                                   .call_id = "call_abc"};
        mx_responses_answer_event(a, &ev);
    }
    mx_responses_answer_event(a, &(struct mx_turn_event){.kind = MX_TURN_FINISH, .finish = f});
    mx_responses_answer_event(a, &(struct mx_turn_event){.kind = MX_TURN_CLOSE});
    mx_responses_answer_unref(a);
    mx_responses_request_free(&r);
    *reply = rig_reply(x);
    return x;
}

static const char full_output[] =
    "[{'id':'rs_" HEX "0000','type':'reasoning','status':'completed','summary':[],'content':["
    "{'type':'reasoning_text','text':'h\\nm'}],'encrypted_content':'mtplx1.aApt'},"
    "{'id':'msg_" HEX "0001','type':'message','status':'completed','role':'assistant','content':["
    "{'type':'output_text','annotations':[],'logprobs':[],'text':'\\nsay \\\"x\\\" y'}]},"
    "{'id':'fc_" HEX "0002','type':'function_call','status':'completed','call_id':'call_abc',"
    "'name':'f','arguments':'{\\\"a\\\":1}'},"
    "{'id':'ctc_" HEX "0003','type':'custom_tool_call','status':'completed',"
    "'call_id':'call_abc','name':'c','input':'do it\\n'}]";

static void assert_completed(const json_t *r)
{
    assert_json(json_object_get(r, "output"), full_output);
    assert_json(json_object_get(r, "id"), "'resp_" HEX "'");
    assert_json(json_object_get(r, "object"), "'response'");
    assert_json(json_object_get(r, "status"), "'completed'");
    assert_json(json_object_get(r, "error"), "null");
    assert_json(json_object_get(r, "incomplete_details"), "null");
    assert_json(json_object_get(r, "model"), "'m'");
    assert_json(json_object_get(r, "tools"), "[]");
    assert_json(json_object_get(r, "text"), "{'format':{'type':'text'},'verbosity':'medium'}");
    assert_json(json_object_get(r, "usage"),
                "{'input_tokens':10,'input_tokens_details':{'cached_tokens':4},'output_tokens':20,"
                "'output_tokens_details':{'reasoning_tokens':3},'total_tokens':30}");
}

static void test_whole(void **state)
{
    (void)state;
    char *reply;
    app.responses = mx_response_store_new(8, 1 << 20);
    struct mx_exchange *x = run(false, true, full, sizeof full / sizeof *full, &full_end, &reply);
    assert_int_equal(x->status, 200);
    json_t *got = parse_json(reply);
    assert_completed(got);
    const struct mx_response_record *r =
        mx_response_store_get(app.responses, "client", "resp_" HEX);
    assert_non_null(r);
    assert_string_equal(r->response, reply);
    assert_false(r->pending);
    mx_response_record_unref(r);
    json_decref(got);
    rig_free(x);
    free(reply);
    mx_response_store_free(app.responses);
    app.responses = NULL;
}

static const char *const full_events[] = {
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.reasoning_text.delta",
    "response.reasoning_text.delta",
    "response.reasoning_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
    "response.output_item.added",
    "response.custom_tool_call_input.delta",
    "response.custom_tool_call_input.done",
    "response.output_item.done",
    "response.completed",
};

/* What a client that only looks at deltas and at items would put together. */
struct replay {
    char text[2][256]; /* reasoning, output */
    char arguments[256];
    json_t *items;
};

static void append_text(char *to, const json_t *event)
{
    const char *delta = json_string_value(json_object_get(event, "delta"));
    assert_non_null(delta);
    snprintf(to + strlen(to), 256 - strlen(to), "%s", delta);
}

static void replay_event(struct replay *r, const char *name, const json_t *event)
{
    if (strcmp(name, "response.reasoning_text.delta") == 0)
        append_text(r->text[0], event);
    else if (strcmp(name, "response.output_text.delta") == 0)
        append_text(r->text[1], event);
    else if (strcmp(name, "response.function_call_arguments.delta") == 0)
        append_text(r->arguments, event);
    else if (strcmp(name, "response.output_item.done") == 0)
        json_array_append(r->items, json_object_get(event, "item"));
    else if (strcmp(name, "response.output_item.added") == 0)
        assert_int_equal(json_integer_value(json_object_get(event, "output_index")),
                         json_array_size(r->items));
    else if (strcmp(name, "response.completed") == 0)
        assert_completed(json_object_get(event, "response"));
}

static void test_stream(void **state)
{
    (void)state;
    char *reply, *save = NULL;
    struct replay r = {.items = json_array()};
    struct mx_exchange *x = run(true, false, full, sizeof full / sizeof *full, &full_end, &reply);
    assert_int_equal(x->state, MX_REPLY_ENDED);
    char *line = strtok_r(reply, "\n", &save);
    for (size_t i = 0; i < sizeof full_events / sizeof *full_events; i++) {
        size_t n = strlen(full_events[i]);
        if (!line || strncmp(line, full_events[i], n) != 0 || line[n] != ' ')
            fail_msg("event %zu is %s, not %s", i, line ? line : "none", full_events[i]);
        json_t *event = parse_json(line + n + 1);
        assert_int_equal(json_integer_value(json_object_get(event, "sequence_number")), i);
        assert_string_equal(json_string_value(json_object_get(event, "type")), full_events[i]);
        replay_event(&r, full_events[i], event);
        json_decref(event);
        line = strtok_r(NULL, "\n", &save);
    }
    assert_null(line);
    assert_string_equal(r.text[0], "h\nm");
    assert_string_equal(r.text[1], "\nsay \"x\" y");
    assert_string_equal(r.arguments, "{\"a\":1}");
    assert_json(r.items, full_output);
    json_decref(r.items);
    rig_free(x);
    free(reply);
}

static void test_cut(void **state)
{
    (void)state;
    static const struct script s[] = {
        {MX_TURN_TEXT, "t"}, {MX_TURN_TOOL_BEGIN, "f"}, {MX_TURN_TOOL_ARGS, "{\"a\":\"b"}};
    const struct mx_turn_finish f = {.reason = MX_REASON_LENGTH, .stop_index = -1};
    char *reply;
    struct mx_exchange *x = run(false, false, s, 3, &f, &reply);
    json_t *got = parse_json(reply);
    assert_json(json_object_get(got, "status"), "'incomplete'");
    assert_json(json_object_get(got, "incomplete_details"), "{'reason':'max_output_tokens'}");
    const json_t *call = json_array_get(json_object_get(got, "output"), 1);
    assert_json(json_object_get(call, "status"), "'incomplete'");
    assert_json(json_object_get(call, "arguments"), "'{\\\"a\\\":\\\"b'");
    json_decref(got);
    rig_free(x);
    free(reply);
    x = run(true, false, s, 3, &f, &reply);
    assert_non_null(strstr(reply, "\nresponse.incomplete {"));
    rig_free(x);
    free(reply);
}

static void test_errors(void **state)
{
    (void)state;
    struct mx_turn_finish f = {.reason = MX_REASON_ERROR};
    char *reply;
    mx_api_fail(&f.error, 507, NULL, "no room");
    app.responses = mx_response_store_new(8, 1 << 20);
    struct mx_exchange *x = run(false, true, full, 6, &f, &reply);
    assert_int_equal(x->status, 507);
    assert_non_null(strstr(reply, "no room"));
    rig_free(x);
    free(reply);
    x = run(true, true, full, 6, &f, &reply);
    assert_non_null(strstr(reply, "\nresponse.failed {"));
    assert_non_null(strstr(reply, "\"error\":{\"code\":\"server_error\",\"message\":\"no room\"}"));
    const struct mx_response_record *r =
        mx_response_store_get(app.responses, "client", "resp_" HEX);
    assert_non_null(strstr(r->response, "\"status\":\"failed\""));
    mx_response_record_unref(r);
    rig_free(x);
    free(reply);
    mx_response_store_free(app.responses);
    app.responses = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_input),      cmocka_unit_test(test_stored_items),
        cmocka_unit_test(test_settings),   cmocka_unit_test(test_allowed_tools),
        cmocka_unit_test(test_refusals),   cmocka_unit_test(test_previous),
        cmocka_unit_test(test_references), cmocka_unit_test(test_seal),
        cmocka_unit_test(test_whole),      cmocka_unit_test(test_stream),
        cmocka_unit_test(test_cut),        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
