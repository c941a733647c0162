/* Responses API: the conversation of a request, as items, into chat messages.
 *
 *   1. The conversation is: instructions, the items before (of previous_response_id: what that
 *      response had before it, its input, its output), and the input. Instructions are those of
 *      this request only, as the API documents.
 *   2. Items are kept as they came, but for ids they had none of and contents that were plain
 *      strings: so the store can show them and give them to the next response.
 *   3. Items that only OpenAI's servers can make or read are errors where the answer depends on
 *      them, and are counted and left out where they are records of hosted tools. */
#include "serve/chat_build.h"
#include "serve/fields.h"
#include "serve/responses_int.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLACE = 128, MAX_NAME = 256, MAX_ITEMS = 100000, MAX_REFERENCES = 256 };

/* Stored text that the references of one request may make the server read. */
static const size_t MAX_REFERRED = (size_t)64 << 20;

struct reader {
    struct mx_chat_build build;
    struct mx_responses_request *r;
    struct mx_api_error *e;
    unsigned references;
    size_t referred; /* bytes of the records they led to */
};

static bool is(const char *type, const char *name)
{
    return strcmp(type, name) == 0;
}

static bool need_string(const struct mx_fields *f, const char *name, size_t max, const char **out)
{
    return mx_field_need(f, name) && mx_field_string(f, name, max, out);
}

static bool no_memory(struct mx_api_error *e)
{
    return mx_api_fail(e, 507, "input", "Out of memory for the input items");
}

/* ---- Ids and sealed reasoning ------------------------------------------------------------- */

static const char *tail_of(const char *request_id)
{
    return strncmp(request_id, "req_", 4) == 0 ? request_id + 4 : request_id;
}

void mx_response_id(char out[MX_RESPONSE_ID], const char *kind, const char *request_id)
{
    snprintf(out, MX_RESPONSE_ID, "%s_%.40s", kind, tail_of(request_id));
}

void mx_response_item_id(char out[MX_RESPONSE_ID], const char *kind, const char *request_id,
                         size_t place)
{
    snprintf(out, MX_RESPONSE_ID, "%s_%.40s%04zx", kind, tail_of(request_id), place & 0xffff);
}

static const char seal_mark[] = "mtplx1.";

char *mx_reasoning_seal(const char *text, size_t n)
{
    const int variant = sodium_base64_VARIANT_URLSAFE_NO_PADDING;
    const size_t mark = sizeof seal_mark - 1;
    size_t max = sodium_base64_ENCODED_LEN(n, variant);
    char *out = malloc(mark + max);
    if (!out)
        return NULL;
    memcpy(out, seal_mark, mark);
    sodium_bin2base64(out + mark, max, (const unsigned char *)text, n, variant);
    return out;
}

char *mx_reasoning_unseal(const char *sealed, size_t *n)
{
    const size_t mark = sizeof seal_mark - 1;
    if (strncmp(sealed, seal_mark, mark) != 0)
        return NULL;
    size_t len = strlen(sealed + mark);
    unsigned char *out = malloc(len + 1);
    if (out && sodium_base642bin(out, len, sealed + mark, len, NULL, n, NULL,
                                 sodium_base64_VARIANT_URLSAFE_NO_PADDING) == 0)
        return (char *)out;
    free(out);
    return NULL;
}

/* ---- Contents ----------------------------------------------------------------------------- */

/* The text of one part, added with a line end between parts. */
static bool read_part(const struct mx_fields *f, struct mx_strbuf *out)
{
    const char *type = NULL, *text = NULL;
    if (!json_is_object(f->o))
        return mx_api_fail(f->e, 400, f->path, "'%s' must be an object with a type", f->path);
    if (!need_string(f, "type", MAX_NAME, &type))
        return false;
    if (is(type, "input_image") || is(type, "image_url"))
        return mx_api_fail(f->e, 400, f->path, "'%s' is an image, but this server reads text only",
                           f->path);
    bool refusal = is(type, "refusal");
    if (!refusal && !is(type, "input_text") && !is(type, "output_text") && !is(type, "text") &&
        !is(type, "reasoning_text") && !is(type, "summary_text"))
        return mx_api_fail(f->e, 400, f->path,
                           "'%s' is of type '%.60s', but this server reads text only", f->path,
                           type);
    if (!need_string(f, refusal ? "refusal" : "text", SIZE_MAX, &text))
        return false;
    if (out->len > 0 && *text && out->data[out->len - 1] != '\n')
        mx_strbuf_putc(out, '\n');
    mx_strbuf_puts(out, text);
    return true;
}

/* A member that is a string or an array of parts; absent and null are empty. */
static bool read_content(const struct mx_fields *f, const char *name, struct mx_strbuf *out)
{
    const json_t *content = json_object_get(f->o, name);
    char path[PLACE];
    mx_strbuf_puts(out, "");
    if (!content || json_is_null(content))
        return true;
    if (json_is_string(content)) {
        mx_strbuf_append(out, json_string_value(content), json_string_length(content));
        return true;
    }
    if (!json_is_array(content))
        return mx_api_fail(f->e, 400, f->path, "'%s.%s' must be a string or an array of parts",
                           f->path, name);
    for (size_t i = 0; i < json_array_size(content); i++) {
        snprintf(path, sizeof path, "%.60s.%s[%zu]", f->path, name, i);
        const struct mx_fields part = {json_array_get(content, i), path, f->e};
        if (!read_part(&part, out))
            return false;
    }
    return true;
}

static const char *text_of(const struct mx_strbuf *b)
{
    return b->len ? b->data : "";
}

/* ---- Items into messages ------------------------------------------------------------------ */

static bool read_message(struct reader *rd, const struct mx_fields *f)
{
    static const enum mx_chat_role roles[] = {MX_CHAT_USER, MX_CHAT_ASSISTANT, MX_CHAT_SYSTEM,
                                              MX_CHAT_SYSTEM};
    struct mx_strbuf text;
    int which = 0;
    if (!mx_field_need(f, "role") ||
        !mx_field_choice(f, "role", "user assistant system developer", &which))
        return false;
    mx_strbuf_init(&text, 0);
    bool ok = mx_field_need(f, "content") && read_content(f, "content", &text);
    if (ok) {
        mx_chat_build_role(&rd->build, roles[which]);
        mx_chat_build_text(&rd->build, text_of(&text), text.len);
        rd->build.failed |= text.failed;
    }
    mx_strbuf_free(&text);
    return ok;
}

/* Reasoning: its text, or the sealed text, or what it was summarised to. */
static bool read_reasoning(struct reader *rd, const struct mx_fields *f)
{
    struct mx_strbuf text;
    const char *sealed = NULL;
    mx_strbuf_init(&text, 0);
    bool ok = mx_field_string(f, "encrypted_content", SIZE_MAX, &sealed) &&
              read_content(f, "content", &text);
    if (ok && text.len == 0 && sealed) {
        size_t n = 0;
        char *open = mx_reasoning_unseal(sealed, &n);
        bool text_only = open && !memchr(open, 0, n);
        json_t *valid = text_only ? json_stringn(open, n) : NULL; /* NULL: not UTF-8 */
        if (valid)
            mx_strbuf_append(&text, open, n);
        json_decref(valid);
        free(open);
    }
    if (ok && text.len == 0)
        ok = read_content(f, "summary", &text);
    if (ok && text.len > 0) {
        mx_chat_build_role(&rd->build, MX_CHAT_ASSISTANT);
        mx_chat_build_reasoning(&rd->build, text.data, text.len);
        rd->build.failed |= text.failed;
    }
    mx_strbuf_free(&text);
    return ok;
}

static bool read_call(struct reader *rd, const struct mx_fields *f)
{
    const char *id = NULL, *name = NULL, *arguments = NULL;
    if (!need_string(f, "call_id", MAX_NAME, &id) || !need_string(f, "name", MAX_NAME, &name) ||
        !need_string(f, "arguments", SIZE_MAX, &arguments))
        return false;
    mx_chat_build_call(&rd->build, id, name, arguments);
    return true;
}

/* A call of a custom tool, which is a function of one string here. */
static bool read_custom_call(struct reader *rd, const struct mx_fields *f)
{
    const char *id = NULL, *name = NULL, *input = NULL;
    if (!need_string(f, "call_id", MAX_NAME, &id) || !need_string(f, "name", MAX_NAME, &name) ||
        !need_string(f, "input", SIZE_MAX, &input))
        return false;
    json_t *object = json_pack("{s:s}", "input", input);
    char *arguments = object ? json_dumps(object, JSON_COMPACT) : NULL;
    if (arguments)
        mx_chat_build_call(&rd->build, id, name, arguments);
    else
        rd->build.failed = true;
    free(arguments);
    json_decref(object);
    return true;
}

static bool read_call_output(struct reader *rd, const struct mx_fields *f)
{
    struct mx_strbuf text;
    const char *id = NULL;
    mx_strbuf_init(&text, 0);
    bool ok = need_string(f, "call_id", MAX_NAME, &id) && mx_field_need(f, "output") &&
              read_content(f, "output", &text);
    if (ok) {
        mx_chat_build_result(&rd->build, id, text_of(&text), text.len);
        rd->build.failed |= text.failed;
    }
    mx_strbuf_free(&text);
    return ok;
}

/* What hosted tools leave in a history: nothing that a model without them could go on from. */
static bool is_hosted_record(const char *type)
{
    static const char *const names[] = {"web_search_call",       "file_search_call",
                                        "image_generation_call", "code_interpreter_call",
                                        "mcp_list_tools",        "mcp_call"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (is(type, names[i]))
            return true;
    return false;
}

static bool read_item(struct reader *rd, const struct mx_fields *f)
{
    const char *type = NULL;
    if (!need_string(f, "type", MAX_NAME, &type))
        return false;
    if (is(type, "message"))
        return read_message(rd, f);
    if (is(type, "reasoning"))
        return read_reasoning(rd, f);
    if (is(type, "function_call"))
        return read_call(rd, f);
    if (is(type, "custom_tool_call"))
        return read_custom_call(rd, f);
    if (is(type, "function_call_output") || is(type, "custom_tool_call_output"))
        return read_call_output(rd, f);
    if (!is_hosted_record(type))
        return mx_api_fail(f->e, 400, f->path,
                           "'%s' is an item of type '%.60s', which this server does not know",
                           f->path, type);
    rd->r->ignored++;
    return true;
}

static bool read_items(struct reader *rd, const json_t *items, const char *name)
{
    char path[PLACE];
    for (size_t i = 0; i < json_array_size(items); i++) {
        snprintf(path, sizeof path, "%s[%zu]", name, i);
        const struct mx_fields f = {json_array_get(items, i), path, rd->e};
        if (!read_item(rd, &f))
            return false;
    }
    return true;
}

/* ---- What came before --------------------------------------------------------------------- */

static json_t *parse_array(const char *text)
{
    json_t *a = json_loads(text, 0, NULL);
    if (json_is_array(a))
        return a;
    json_decref(a);
    return NULL;
}

/* The output items of a stored response. New reference, or NULL. */
static json_t *output_of(const struct mx_response_record *record)
{
    json_t *response = json_loads(record->response, 0, NULL);
    json_t *output = json_incref(json_object_get(response, "output"));
    json_decref(response);
    return output;
}

static bool extend(json_t *to, json_t *from)
{
    bool ok = from && json_array_extend(to, from) == 0;
    json_decref(from);
    return ok;
}

/* The items before this request's input: r->context. */
static bool load_previous(struct mx_responses_request *r, struct mx_api_error *e)
{
    r->context = json_array();
    if (!r->context)
        return no_memory(e);
    if (!r->previous)
        return true;
    const struct mx_response_record *record =
        r->responses ? mx_response_store_get(r->responses, r->client, r->previous) : NULL;
    if (!record) {
        mx_api_fail(e, 400, "previous_response_id",
                    "Previous response with id '%.100s' not found; it was not stored, was deleted, "
                    "or had to make room for others",
                    r->previous);
        e->code = "previous_response_not_found";
        return false;
    }
    bool pending = record->pending;
    bool ok = !pending && extend(r->context, parse_array(record->context)) &&
              extend(r->context, parse_array(record->input)) &&
              extend(r->context, output_of(record));
    mx_response_record_unref(record);
    if (pending)
        return mx_api_fail(e, 400, "previous_response_id",
                           "Response '%.100s' is still being written", r->previous);
    return ok || no_memory(e);
}

/* ---- References --------------------------------------------------------------------------- */

static json_t *item_with_id(json_t *items, const char *id)
{
    for (size_t i = 0; i < json_array_size(items); i++) {
        json_t *item = json_array_get(items, i);
        const char *own = json_string_value(json_object_get(item, "id"));
        if (own && is(own, id))
            return json_incref(item);
    }
    return NULL;
}

/* The item that an id stands for: of the conversation before, or of a stored response, whose id is
 * in the item's. New reference, or NULL. */
static json_t *find_item(struct reader *rd, const char *id)
{
    char response_id[MX_RESPONSE_ID];
    json_t *found = item_with_id(rd->r->context, id);
    const char *hex = strchr(id, '_');
    if (found || !hex || strlen(hex) < 6 || !rd->r->responses)
        return found;
    snprintf(response_id, sizeof response_id, "resp_%.*s", (int)strlen(hex + 1) - 4, hex + 1);
    const struct mx_response_record *record =
        mx_response_store_get(rd->r->responses, rd->r->client, response_id);
    if (!record)
        return NULL;
    rd->referred += strlen(record->response) + strlen(record->input);
    bool allowed = rd->referred <= MAX_REFERRED;
    json_t *output = allowed ? output_of(record) : NULL;
    found = item_with_id(output, id);
    json_decref(output);
    if (!found && allowed) {
        json_t *input = parse_array(record->input);
        found = item_with_id(input, id);
        json_decref(input);
    }
    mx_response_record_unref(record);
    return found;
}

static json_t *resolve(struct reader *rd, const struct mx_fields *f)
{
    const char *id = NULL;
    if (!need_string(f, "id", MAX_NAME, &id))
        return NULL;
    if (++rd->references > MAX_REFERENCES) {
        mx_api_fail(f->e, 400, f->path, "Input holds more than %d item references", MAX_REFERENCES);
        return NULL;
    }
    json_t *item = find_item(rd, id);
    if (!item)
        mx_api_fail(f->e, 400, f->path,
                    "'%s' refers to item '%.100s', which is not stored here; send the item itself",
                    f->path, id);
    return item;
}

/* ---- Input -------------------------------------------------------------------------------- */

static const char *id_kind(const char *type)
{
    if (is(type, "reasoning"))
        return "rs";
    if (is(type, "function_call"))
        return "fc";
    if (is(type, "function_call_output"))
        return "fco";
    if (is(type, "custom_tool_call"))
        return "ctc";
    if (is(type, "custom_tool_call_output"))
        return "ctco";
    return is(type, "message") ? "msg" : "item";
}

/* A string as the list of one part that it stands for. */
static bool spread_content(json_t *item)
{
    const json_t *content = json_object_get(item, "content");
    const char *role = json_string_value(json_object_get(item, "role"));
    if (!json_is_string(content))
        return true;
    bool out = role && is(role, "assistant");
    json_t *part =
        json_pack("{s:s,s:O}", "type", out ? "output_text" : "input_text", "text", content);
    if (part && out && json_object_set_new(part, "annotations", json_array()) != 0) {
        json_decref(part);
        return false;
    }
    return part && json_object_set_new(item, "content", json_pack("[o]", part)) == 0;
}

/* An item as it is stored. New reference, or NULL with *e filled. */
static json_t *own_item(struct reader *rd, const struct mx_fields *f, size_t place)
{
    char id[MX_RESPONSE_ID];
    const char *type = NULL, *own_id = NULL;
    if (!json_is_object(f->o)) {
        mx_api_fail(f->e, 400, f->path, "'%s' must be an object", f->path);
        return NULL;
    }
    if (!mx_field_string(f, "type", MAX_NAME, &type) ||
        !mx_field_string(f, "id", MAX_NAME, &own_id))
        return NULL;
    bool message = !type && json_object_get(f->o, "role");
    if (!message && (!type || is(type, "item_reference")))
        return resolve(rd, f);
    type = message ? "message" : type;
    json_t *item = json_copy((json_t *)(uintptr_t)f->o);
    bool ok = item && json_object_set_new(item, "type", json_string(type)) == 0;
    if (ok && !own_id) {
        mx_response_item_id(id, id_kind(type), rd->r->request_id, MX_INPUT_ITEM + place);
        ok = json_object_set_new(item, "id", json_string(id)) == 0;
    }
    if (ok && is(type, "message"))
        ok = spread_content(item);
    if (ok)
        return item;
    json_decref(item);
    no_memory(f->e);
    return NULL;
}

static bool take_list(struct reader *rd, const json_t *list)
{
    char path[PLACE];
    if (json_array_size(list) > MAX_ITEMS)
        return mx_api_fail(rd->e, 400, "input", "'input' has more than %d items", MAX_ITEMS);
    for (size_t i = 0; i < json_array_size(list); i++) {
        snprintf(path, sizeof path, "input[%zu]", i);
        const struct mx_fields f = {json_array_get(list, i), path, rd->e};
        json_t *item = own_item(rd, &f, i);
        if (!item)
            return false;
        if (json_array_append_new(rd->r->input, item) != 0)
            return no_memory(rd->e);
    }
    return true;
}

/* The input as a list of items: r->input. */
static bool take_input(struct reader *rd, const json_t *body)
{
    const json_t *input = json_object_get(body, "input");
    rd->r->input = json_array();
    if (!rd->r->input)
        return no_memory(rd->e);
    if (json_is_array(input))
        return take_list(rd, input);
    if (json_is_string(input)) {
        json_t *list = json_pack("[{s:s,s:O}]", "role", "user", "content", input);
        bool ok = list ? take_list(rd, list) : no_memory(rd->e);
        json_decref(list);
        return ok;
    }
    if (!input || json_is_null(input))
        return mx_api_fail(rd->e, 400, "input", "'input' is missing");
    return mx_api_fail(rd->e, 400, "input", "'input' must be a string or an array of items");
}

static bool read_all(struct reader *rd, const json_t *body)
{
    const struct mx_fields f = {body, "", rd->e};
    const char *instructions = NULL;
    if (!mx_field_string(&f, "instructions", SIZE_MAX, &instructions))
        return false;
    if (instructions && *instructions) {
        mx_chat_build_role(&rd->build, MX_CHAT_SYSTEM);
        mx_chat_build_text(&rd->build, instructions, strlen(instructions));
    }
    return read_items(rd, rd->r->context, "previous_response_id") &&
           read_items(rd, rd->r->input, "input");
}

bool mx_responses_input(const json_t *body, struct mx_responses_request *r, struct mx_api_error *e)
{
    struct reader rd = {.r = r, .e = e};
    if (!load_previous(r, e) || !take_input(&rd, body))
        return false;
    mx_chat_build_init(&rd.build);
    bool ok = read_all(&rd, body);
    if (ok) {
        r->messages = mx_chat_build_finish(&rd.build);
        ok = r->messages || no_memory(e);
    }
    mx_chat_build_free(&rd.build);
    r->turn.messages = r->messages;
    if (ok && json_array_size(r->messages) == 0)
        return mx_api_fail(e, 400, "input", "'input' holds nothing to answer");
    return ok;
}
