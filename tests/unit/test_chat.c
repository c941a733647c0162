/* Chat rendering: the nano model's golden conversations, where templates come from, request checks,
 * and the adaptations between OpenAI's wire form and what templates take. */
#include "text/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- Helpers ------------------------------------------------------------------------------ */

static void source_path(char *out, size_t size, const char *name)
{
    const char *root = getenv("MTPLX_SRC");
    snprintf(out, size, "%s/%s", root ? root : ".", name);
}

static json_t *parse(const char *text)
{
    json_error_t e;
    json_t *json = json_loads(text, JSON_DECODE_ANY, &e);
    if (!json)
        fail_msg("%s: %s", text, e.text);
    return json;
}

/* A directory for one test, with the files a checkpoint may have. */
struct dir {
    char path[64];
};

static const char *const dir_files[] = {"chat_template.jinja", "tokenizer_config.json",
                                        "chat_template.json", "special_tokens_map.json"};

static void dir_make(struct dir *d)
{
    snprintf(d->path, sizeof d->path, "/tmp/mtplx-chat-XXXXXX");
    assert_non_null(mkdtemp(d->path));
}

static void dir_put(const struct dir *d, const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", d->path, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    fclose(f);
}

static void dir_remove(const struct dir *d)
{
    char path[128];
    for (size_t i = 0; i < sizeof dir_files / sizeof *dir_files; i++) {
        snprintf(path, sizeof path, "%s/%s", d->path, dir_files[i]);
        unlink(path);
    }
    rmdir(d->path);
}

/* Opens a chat whose directory holds only this template. */
static struct mx_chat *open_template(const char *source)
{
    struct dir d;
    mtplx_error err;
    dir_make(&d);
    dir_put(&d, "chat_template.jinja", source);
    struct mx_chat *c = mx_chat_open(d.path, &err);
    dir_remove(&d);
    if (!c)
        fail_msg("%s", err.message);
    return c;
}

static mtplx_status render(const struct mx_chat *c, const char *messages, const char *tools,
                           const char *kwargs, struct mx_strbuf *out, mtplx_error *err)
{
    json_t *m = parse(messages), *t = tools ? parse(tools) : NULL;
    json_t *k = kwargs ? parse(kwargs) : NULL;
    const struct mx_chat_request q = {
        .messages = m, .tools = t, .kwargs = k, .add_generation_prompt = true};
    char *before = json_dumps(m, JSON_ENCODE_ANY);
    mtplx_status status = mx_chat_render(c, &q, out, err);
    char *after = json_dumps(m, JSON_ENCODE_ANY);
    assert_string_equal(before, after); /* the request is the caller's */
    free(before);
    free(after);
    json_decref(m);
    json_decref(t);
    json_decref(k);
    return status;
}

static void check(const struct mx_chat *c, const char *messages, const char *tools,
                  const char *kwargs, const char *expected)
{
    struct mx_strbuf out;
    mtplx_error err;
    mx_strbuf_init(&out, 0);
    if (render(c, messages, tools, kwargs, &out, &err) != MTPLX_OK)
        fail_msg("%s: %s", messages, err.message);
    assert_string_equal(out.data ? out.data : "", expected);
    mx_strbuf_free(&out);
}

static void check_error(const struct mx_chat *c, const char *messages, const char *tools,
                        const char *kwargs, mtplx_status status, const char *message)
{
    struct mx_strbuf out;
    mtplx_error err;
    mx_strbuf_init(&out, 0);
    assert_int_equal(render(c, messages, tools, kwargs, &out, &err), status);
    assert_string_equal(err.message, message);
    mx_strbuf_free(&out);
}

/* ---- The nano model ----------------------------------------------------------------------- */

/* Members of a golden case that are not part of the request proper are extra variables. */
static json_t *extra_variables(json_t *c)
{
    static const char *const known[] = {"messages", "tools", "add_generation_prompt", "text",
                                        "ids"};
    json_t *kwargs = json_copy(c);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        json_object_del(kwargs, known[i]);
    return kwargs;
}

static void golden_conversations(void **state)
{
    (void)state;
    char path[1024];
    mtplx_error err;
    source_path(path, sizeof path, "models/nano");
    struct mx_chat *chat = mx_chat_open(path, &err);
    assert_non_null(chat);
    source_path(path, sizeof path, "tests/golden/tokenizer/chat_cases.json");
    json_t *cases = json_load_file(path, 0, NULL), *c;
    assert_int_equal(json_array_size(cases), 8);
    size_t i;
    json_array_foreach(cases, i, c)
    {
        json_t *kwargs = extra_variables(c);
        const struct mx_chat_request q = {
            .messages = json_object_get(c, "messages"),
            .tools = json_object_get(c, "tools"),
            .kwargs = kwargs,
            .add_generation_prompt = json_is_true(json_object_get(c, "add_generation_prompt")),
        };
        struct mx_strbuf out;
        mx_strbuf_init(&out, 0);
        assert_int_equal(mx_chat_render(chat, &q, &out, &err), MTPLX_OK);
        assert_string_equal(out.data, json_string_value(json_object_get(c, "text")));
        mx_strbuf_free(&out);
        json_decref(kwargs);
    }
    assert_true(mx_chat_mentions(chat, "enable_thinking"));
    assert_false(mx_chat_mentions(chat, "reasoning_effort"));
    check(chat,
          "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\" a\"},"
          "{\"type\":\"text\",\"text\":\"b \"}]}]",
          NULL, "{\"enable_thinking\":true}",
          "<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\n<think>\n");
    json_decref(cases);
    mx_chat_free(chat);
}

/* ---- Where the template comes from -------------------------------------------------------- */

static const char hi[] = "[{\"role\":\"user\",\"content\":\"hi\"}]";

static void a_base_model_has_no_template(void **state)
{
    (void)state;
    struct dir d;
    mtplx_error err;
    dir_make(&d);
    assert_null(mx_chat_open(d.path, &err));
    assert_int_equal(err.status, MTPLX_OK);
    dir_put(&d, "tokenizer_config.json", "{\"eos_token\": \"x\", \"chat_template\": null}");
    assert_null(mx_chat_open(d.path, &err));
    assert_int_equal(err.status, MTPLX_OK);
    dir_remove(&d);
}

static void check_dir(const struct dir *d, const char *tools, const char *expected)
{
    mtplx_error err;
    struct mx_chat *c = mx_chat_open(d->path, &err);
    if (!c)
        fail_msg("%s", err.message);
    check(c, hi, tools, NULL, expected);
    mx_chat_free(c);
}

static void template_files_in_their_order(void **state)
{
    (void)state;
    struct dir d;
    dir_make(&d);
    dir_put(&d, "chat_template.json", "{\"chat_template\": \"json {{ messages[0].content }}\"}");
    check_dir(&d, NULL, "json hi");
    dir_put(&d, "tokenizer_config.json",
            "{\"chat_template\": \"config {{ messages[0].content }}\"}");
    check_dir(&d, NULL, "config hi");
    dir_put(&d, "chat_template.jinja", "jinja {{ messages[0].content }}\n");
    check_dir(&d, NULL, "jinja hi");
    dir_remove(&d);
}

static void named_templates(void **state)
{
    (void)state;
    struct dir d;
    dir_make(&d);
    dir_put(&d, "tokenizer_config.json",
            "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"{{\"},"
            "{\"name\": \"tool_use\", \"template\": \"tools {{ tools|length }}\"},"
            "{\"name\": \"default\", \"template\": \"plain {{ tools }}\"}]}");
    check_dir(&d, NULL, "plain None");
    check_dir(&d, "[]", "plain []");
    check_dir(&d, "[{}, {}]", "tools 2");
    dir_remove(&d);
}

static void special_tokens(void **state)
{
    (void)state;
    struct dir d;
    dir_make(&d);
    dir_put(&d, "chat_template.jinja",
            "{{ [bos_token, eos_token, pad_token is defined, unk_token] }}");
    check_dir(&d, NULL, "['', '', False, Undefined]");
    dir_put(
        &d, "tokenizer_config.json",
        "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"</s>\", \"pad_token\": null}");
    check_dir(&d, NULL, "['<s>', '</s>', False, Undefined]");
    dir_put(&d, "special_tokens_map.json", "{\"bos_token\": \"no\", \"unk_token\": \"<unk>\"}");
    check_dir(&d, NULL, "['<s>', '</s>', False, '<unk>']");
    dir_remove(&d);
}

static void check_open_error(const char *name, const char *text, const char *message)
{
    struct dir d;
    mtplx_error err;
    dir_make(&d);
    dir_put(&d, name, text);
    assert_null(mx_chat_open(d.path, &err));
    dir_remove(&d);
    assert_int_equal(err.status, MTPLX_ERR_FORMAT);
    if (!strstr(err.message, message))
        fail_msg("'%s' does not contain '%s'", err.message, message);
    assert_null(mx_chat_open("/nonexistent", NULL));
}

static void broken_files(void **state)
{
    (void)state;
    check_open_error("chat_template.jinja", "a\n{% if %}",
                     "chat_template.jinja line 2: expected an expression, got '%}'");
    check_open_error("chat_template.jinja", "\xff", "chat_template.jinja is not valid UTF-8");
    check_open_error("tokenizer_config.json", "{\n\"a\"", "/tokenizer_config.json line 2: ");
    check_open_error("tokenizer_config.json", "[]", "must hold a JSON object");
    check_open_error("tokenizer_config.json", "{\"chat_template\": 5}",
                     "chat_template must be a string or a list");
    check_open_error("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"x\"}]}",
                     "chat_template[0] must have a name and a template");
    check_open_error("tokenizer_config.json",
                     "{\"chat_template\": [{\"name\": \"x\", \"template\": \"\"}]}",
                     "no entry named 'default'");
    check_open_error("special_tokens_map.json", "nonsense", "special_tokens_map.json line 1");
}

/* ---- Requests ----------------------------------------------------------------------------- */

static void requests_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *messages, *tools, *kwargs, *message;
    } cases[] = {
        {"{}", NULL, NULL, "messages must be an array of at least one message"},
        {"[]", NULL, NULL, "messages must be an array of at least one message"},
        {"[1]", NULL, NULL, "messages[0] must be an object"},
        {"[{\"content\":\"x\"}]", NULL, NULL, "messages[0].role must be a string"},
        {"[{\"role\":\"user\",\"content\":\"x\"},{\"role\":1}]", NULL, NULL,
         "messages[1].role must be a string"},
        {"[{\"role\":\"user\",\"content\":5}]", NULL, NULL,
         "messages[0].content must be a string, null or an array of parts"},
        {"[{\"role\":\"user\",\"content\":{}}]", NULL, NULL,
         "messages[0].content must be a string, null or an array of parts"},
        {"[{\"role\":\"user\",\"content\":[\"x\"]}]", NULL, NULL,
         "messages[0].content[0] must be an object"},
        {"[{\"role\":\"user\",\"content\":[{}]}]", NULL, NULL,
         "messages[0].content[0].type must be a string"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", NULL, NULL,
         "messages[0].content[0].text must be a string"},
        {"[{\"role\":\"a\",\"tool_calls\":{}}]", NULL, NULL,
         "messages[0].tool_calls must be an array"},
        {"[{\"role\":\"a\",\"tool_calls\":[1]}]", NULL, NULL,
         "messages[0].tool_calls[0] must be an object"},
        {"[{\"role\":\"a\",\"tool_calls\":[{}]}]", NULL, NULL,
         "messages[0].tool_calls[0].function is missing"},
        {"[{\"role\":\"a\",\"tool_calls\":[{\"function\":1}]}]", NULL, NULL,
         "messages[0].tool_calls[0].function must be an object"},
        {"[{\"role\":\"a\",\"tool_calls\":[{\"function\":{\"name\":1}}]}]", NULL, NULL,
         "messages[0].tool_calls[0].function.name must be a string"},
        {hi, "{}", NULL, "tools must be an array"},
        {hi, NULL, "[]", "the extra variables of a chat template must be an object"},
        {hi, NULL, "{\"messages\":[]}",
         "'messages' cannot be an extra variable of a chat template"},
        {hi, NULL, "{\"tools\":[]}", "'tools' cannot be an extra variable of a chat template"},
    };
    struct mx_chat *c = open_template("{{ messages[0].content }}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_error(c, cases[i].messages, cases[i].tools, cases[i].kwargs, MTPLX_ERR_ARGUMENT,
                    cases[i].message);
    mx_chat_free(c);
}

static void variables_of_a_template(void **state)
{
    (void)state;
    struct mx_chat *c = open_template("{{ [messages|length, tools, documents, custom, "
                                      "add_generation_prompt, bos_token] }}");
    check(c, hi, NULL, NULL, "[1, None, None, Undefined, True, '']");
    check(c, hi, "[{\"a\":1}]", "{\"custom\":{\"x\":[1.5]},\"bos_token\":\"B\",\"documents\":[]}",
          "[1, [{'a': 1}], [], {'x': [1.5]}, True, 'B']");
    mx_chat_free(c);
}

static void the_templates_own_refusal(void **state)
{
    (void)state;
    struct mx_chat *c = open_template("\n{% if messages[0].role != 'user' %}\n"
                                      "{{ raise_exception('no ' + messages[0].role) }}{% endif %}");
    check_error(c, "[{\"role\":\"tool\",\"content\":\"\"}]", NULL, NULL, MTPLX_ERR_ARGUMENT,
                "chat_template.jinja line 3: no tool");
    mx_chat_free(c);
}

/* ---- Adaptations -------------------------------------------------------------------------- */

#define CALLS(args)                                                                                \
    "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"function\":"        \
    "{\"name\":\"f\",\"arguments\":" args "}}]}]"

static void string_arguments_become_objects(void **state)
{
    (void)state;
    struct mx_chat *c = open_template(
        "{% for call in messages[0].tool_calls %}{% set f = call.function or call %}"
        "{% for k, v in f.arguments|items %}{{ k }}={{ v|tojson }};{% endfor %}{{ call.id }}"
        "{% endfor %}");
    check(c, CALLS("\"{\\\"z\\\": 1.0, \\\"a\\\": [null]}\""), NULL, NULL, "z=1.0;a=[null];1");
    check(c, CALLS("{\"q\":\"x\"}"), NULL, NULL, "q=\"x\";1");
    check(c,
          "[{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\",\"arguments\":{}},"
          "{\"function\":{\"name\":\"g\",\"arguments\":\"{\\\"b\\\":2}\"}}]}]",
          NULL, NULL, "b=2;");
    /* Not an object: left as it is, and the template says what it thinks of it. */
    check_error(c, CALLS("\"[1]\""), NULL, NULL, MTPLX_ERR_FORMAT,
                "chat_template.jinja line 1: Can only get item pairs from a mapping.");
    mx_chat_free(c);
}

static void templates_that_concatenate_arguments(void **state)
{
    (void)state;
    struct mx_chat *c = open_template("{{ 'before ' }}{% for call in messages[0].tool_calls %}"
                                      "{{ call.function.name + call.function.arguments }}"
                                      "{% endfor %}{{ messages[1].x.y }}");
    check_error(c, CALLS("\"{\\\"a\\\": 1}\""), NULL, NULL, MTPLX_ERR_FORMAT,
                "chat_template.jinja line 1: can only concatenate str (not \"dict\") to str");
    mx_chat_free(c);
    c = open_template("{{ 'before ' }}{% for call in messages[0].tool_calls %}"
                      "{{ call.function.name + call.function.arguments }}{% endfor %}");
    check(c, CALLS("\"{\\\"a\\\": 1}\""), NULL, NULL, "before f{\"a\": 1}");
    mx_chat_free(c);
}

#define PARTS                                                                                      \
    "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"                         \
    "{\"type\":\"text\",\"text\":\"b\"}]}]"

static void parts_for_string_templates(void **state)
{
    (void)state;
    struct mx_chat *c = open_template("{% for m in messages %}{{ m.content }}|{% endfor %}");
    check(c, PARTS, NULL, NULL, "a\nb|");
    check(c, hi, NULL, NULL, "hi|");
    check(c, "[{\"role\":\"user\",\"content\":[]}]", NULL, NULL, "|");
    check_error(c, "[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]", NULL, NULL,
                MTPLX_ERR_ARGUMENT,
                "messages[0].content[0] is of type 'image', but the chat template of this model "
                "takes only text");
    mx_chat_free(c);
    c = open_template("{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}");
    check(c, PARTS, NULL, NULL, "<a\nb>");
    mx_chat_free(c);
}

static void parts_for_templates_that_take_both(void **state)
{
    (void)state;
    struct mx_chat *c = open_template(
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}[{{ p.text if p.type == 'text' else p.type }}]{% endfor %}"
        "{% endif %}{% endfor %}");
    check(c, PARTS, NULL, NULL, "[a][b]");
    check(c, hi, NULL, NULL, "hi");
    check(c, "[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"url\":1}]}]", NULL, NULL,
          "[image]");
    mx_chat_free(c);
    /* A template that refuses the one-message probe: its source shows what it takes. */
    c = open_template("{% if messages|length < 2 %}{{ raise_exception('short') }}{% endif %}"
                      "{% for m in messages %}{{ m.content if m.content is string else "
                      "m.content[0].text }}{% endfor %}");
    check(c,
          "[{\"role\":\"system\",\"content\":\"s\"},"
          "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"t\"}]}]",
          NULL, NULL, "st");
    mx_chat_free(c);
}

static void strings_for_parts_templates(void **state)
{
    (void)state;
    struct mx_chat *c = open_template("{% for m in messages %}{% for p in m.content %}"
                                      "{{ p['text'] }}{% endfor %}{% endfor %}");
    check(c, hi, NULL, NULL, "hi");
    check(c, PARTS, NULL, NULL, "ab");
    check(c, "[{\"role\":\"user\",\"content\":\"\"}]", NULL, NULL, "");
    mx_chat_free(c);
}

static void hostile_templates_open_quickly(void **state)
{
    (void)state;
    struct mx_chat *c = open_template("{% for i in range(100000) %}{% for j in range(100000) %}"
                                      "{% endfor %}{% endfor %}");
    struct mx_strbuf out;
    mtplx_error err;
    mx_strbuf_init(&out, 0);
    assert_int_equal(render(c, hi, NULL, NULL, &out, &err), MTPLX_ERR_LIMIT);
    mx_strbuf_free(&out);
    mx_chat_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_conversations),
        cmocka_unit_test(a_base_model_has_no_template),
        cmocka_unit_test(template_files_in_their_order),
        cmocka_unit_test(named_templates),
        cmocka_unit_test(special_tokens),
        cmocka_unit_test(broken_files),
        cmocka_unit_test(requests_are_checked),
        cmocka_unit_test(variables_of_a_template),
        cmocka_unit_test(the_templates_own_refusal),
        cmocka_unit_test(string_arguments_become_objects),
        cmocka_unit_test(templates_that_concatenate_arguments),
        cmocka_unit_test(parts_for_string_templates),
        cmocka_unit_test(parts_for_templates_that_take_both),
        cmocka_unit_test(strings_for_parts_templates),
        cmocka_unit_test(hostile_templates_open_quickly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
