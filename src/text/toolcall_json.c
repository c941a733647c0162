/* Readers of calls whose arguments are a JSON object.
 *
 * The bytes of the object go out as they were written; types are the model's own. Arguments that
 * are an object inside a JSON string are that object. */
#include "text/toolcall_int.h"

#include <string.h>

/* ---- What both share ---- */

/* Takes a byte of an object that is the arguments. */
static enum mx_json_step take_object(struct mx_tool_item *item, char c)
{
    enum mx_json_step s = mx_json_stream_step(&item->json, c, &item->args);
    if (item->json.kind != MX_JSON_NONE && item->json.kind != MX_JSON_OBJECT)
        return MX_JSON_BAD;
    item->opened = item->json.kind == MX_JSON_OBJECT;
    return s;
}

/* ---- {"name": .., "arguments": {..}} ---- */

enum state { OPEN = 0, FIRST, KEY, KEY_TEXT, COLON, VALUE, NEXT };
enum member { OTHER, TOOL_NAME, ARGUMENTS };

/* The text of the JSON string in `token`, or NULL. */
static json_t *token_text(const struct mx_tool_item *item)
{
    json_t *v = json_loadb(item->token.data ? item->token.data : "", item->token.len,
                           JSON_DECODE_ANY, NULL);
    if (json_is_string(v))
        return v;
    json_decref(v);
    return NULL;
}

/* Which member follows; `types` keeps it, and `nested` which were there already. */
static enum mx_item_step end_key(struct mx_tool_item *item)
{
    json_t *text = token_text(item);
    const char *key = json_string_value(text);
    enum member m = OTHER;
    if (key && strcmp(key, "name") == 0)
        m = TOOL_NAME;
    else if (key && (strcmp(key, "arguments") == 0 || strcmp(key, "parameters") == 0))
        m = ARGUMENTS;
    bool bad = !key || (m != OTHER && item->nested[m]);
    json_decref(text);
    item->nested[m] = 1;
    item->types = m;
    item->state = COLON;
    mx_strbuf_clear(&item->token);
    return bad ? MX_ITEM_BROKEN : MX_ITEM_MORE;
}

static enum mx_item_step end_name(struct mx_tool_item *item)
{
    json_t *text = token_text(item);
    size_t n = json_string_length(text);
    bool ok = n > 0 && n <= MX_TOOL_NAME_MAX;
    if (ok)
        mx_strbuf_append(&item->name, json_string_value(text), n);
    json_decref(text);
    item->named = ok;
    return ok ? MX_ITEM_MORE : MX_ITEM_BROKEN;
}

/* Arguments that are no object: null, or an object in a string. */
static enum mx_item_step end_arguments(struct mx_tool_item *item)
{
    if (item->json.kind == MX_JSON_NULL) {
        mx_strbuf_puts(&item->args, "{}");
        return MX_ITEM_MORE;
    }
    json_t *text = token_text(item);
    bool ok = text && mx_json_scan(json_string_value(text), json_string_length(text),
                                   &item->args) == MX_JSON_OBJECT;
    json_decref(text);
    return ok ? MX_ITEM_MORE : MX_ITEM_BROKEN;
}

static enum mx_item_step end_value(struct mx_tool_item *item)
{
    enum mx_item_step step = MX_ITEM_MORE;
    if (item->types == TOOL_NAME)
        step = end_name(item);
    else if (item->types == ARGUMENTS && !item->opened)
        step = end_arguments(item);
    mx_strbuf_clear(&item->token);
    item->state = NEXT;
    return step;
}

static enum mx_item_step end_call(struct mx_tool_item *item)
{
    if (!item->named)
        return MX_ITEM_BROKEN;
    if (!item->nested[ARGUMENTS])
        mx_strbuf_puts(&item->args, "{}");
    return MX_ITEM_DONE;
}

static enum mx_item_step step_next(struct mx_tool_item *item, char c)
{
    if (mx_tool_is_blank(c))
        return MX_ITEM_MORE;
    item->state = KEY;
    return c == '}' ? end_call(item) : c == ',' ? MX_ITEM_MORE : MX_ITEM_BROKEN;
}

static enum mx_item_step step_value(struct mx_tool_item *item, char c)
{
    bool object = c == '{' && item->json.kind == MX_JSON_NONE;
    enum mx_json_step s;
    if (item->types == ARGUMENTS && (object || item->opened))
        s = take_object(item, c);
    else
        s = mx_json_stream_step(&item->json, c, item->types == OTHER ? NULL : &item->token);
    if (s == MX_JSON_MORE)
        return MX_ITEM_MORE;
    if (s == MX_JSON_BAD)
        return MX_ITEM_BROKEN;
    enum mx_item_step step = end_value(item);
    return s == MX_JSON_OVER && step == MX_ITEM_MORE ? step_next(item, c) : step;
}

static enum mx_item_step step_key(struct mx_tool_item *item, char c)
{
    switch (mx_json_stream_step(&item->json, c, &item->token)) {
    case MX_JSON_MORE: return item->token.len > MX_TOOL_KEY_MAX ? MX_ITEM_BROKEN : MX_ITEM_MORE;
    case MX_JSON_DONE: return end_key(item);
    case MX_JSON_OVER:
    case MX_JSON_BAD: break;
    }
    return MX_ITEM_BROKEN;
}

/* Between the tokens of the outer object. */
static enum mx_item_step step_json(struct mx_tool_item *item, char c)
{
    if (item->state == KEY_TEXT)
        return step_key(item, c);
    if (item->state == VALUE)
        return step_value(item, c);
    if (mx_tool_is_blank(c))
        return MX_ITEM_MORE;
    switch ((enum state)item->state) {
    case OPEN: item->state = FIRST; return c == '{' ? MX_ITEM_MORE : MX_ITEM_BROKEN;
    case FIRST:
    case KEY:
        item->json = (struct mx_json_stream){0};
        item->state = KEY_TEXT;
        return c == '"' ? step_key(item, c) : MX_ITEM_BROKEN;
    case COLON:
        item->json = (struct mx_json_stream){0};
        item->state = VALUE;
        return c == ':' ? MX_ITEM_MORE : MX_ITEM_BROKEN;
    case NEXT: return step_next(item, c);
    case KEY_TEXT:
    case VALUE: break;
    }
    return MX_ITEM_BROKEN;
}

static bool end_json(struct mx_tool_item *item)
{
    (void)item;
    return false; /* the last brace is part of the object, no closing marker */
}

const struct mx_tool_reader mx_tool_reader_json = {NULL, step_json, end_json};

/* ---- DeepSeek V3 ---- */

/* NAME<｜tool▁sep｜>{..}<｜tool▁call▁end｜>, and the older form
 * function<｜tool▁sep｜>NAME\n```json\n{..}\n```<｜tool▁call▁end｜>. */
enum deepseek_state { D_NAME = 0, D_KIND, D_OLD_NAME, D_FENCE, D_OBJECT, D_BEHIND };

static const char sep[] = "<｜tool▁sep｜>";

static bool take_name(struct mx_tool_item *item, char c, const char *end)
{
    mx_strbuf_putc(&item->name, c);
    if (!mx_tool_ends_with(&item->name, end))
        return false;
    item->name.len -= strlen(end);
    item->name.data[item->name.len] = '\0';
    return true;
}

static enum mx_item_step begin_object(struct mx_tool_item *item)
{
    item->named = item->name.len > 0;
    item->state = D_OBJECT;
    return item->named ? MX_ITEM_MORE : MX_ITEM_BROKEN;
}

static enum mx_item_step step_deepseek_name(struct mx_tool_item *item, char c)
{
    bool old = item->state == D_OLD_NAME;
    if (item->name.len >= MX_TOOL_NAME_MAX || (c == '\n' && !old))
        return MX_ITEM_BROKEN;
    if (!take_name(item, c, old ? "\n" : sep))
        return MX_ITEM_MORE;
    if (old) {
        item->state = D_FENCE;
        item->named = item->name.len > 0;
        return item->named ? MX_ITEM_MORE : MX_ITEM_BROKEN;
    }
    if (strcmp(item->name.data, "function") != 0)
        return begin_object(item);
    item->state = D_KIND;
    return MX_ITEM_MORE;
}

/* Behind "function" and the separator: the arguments of a tool of that name, or the name. */
static enum mx_item_step step_kind(struct mx_tool_item *item, char c)
{
    if (c == '{')
        item->named = true;
    else
        mx_strbuf_clear(&item->name);
    item->state = c == '{' ? D_OBJECT : D_OLD_NAME;
    if (c != '{')
        return step_deepseek_name(item, c);
    return take_object(item, c) == MX_JSON_BAD ? MX_ITEM_BROKEN : MX_ITEM_MORE;
}

static enum mx_item_step step_object(struct mx_tool_item *item, char c)
{
    enum mx_json_step s = take_object(item, c);
    if (s == MX_JSON_DONE)
        item->state = D_BEHIND;
    return s == MX_JSON_MORE || s == MX_JSON_DONE ? MX_ITEM_MORE : MX_ITEM_BROKEN;
}

/* Takes a byte of one of the tags, blanks before it apart; the tag's index once it is complete. */
static int take_tag(struct mx_tool_item *item, char c, const char *const *tags)
{
    if (item->token.len == 0 && mx_tool_is_blank(c))
        return MX_TOOL_PREFIX;
    mx_strbuf_putc(&item->token, c);
    int tag = mx_tool_match(tags, item->token.data, item->token.len);
    if (tag >= 0)
        mx_strbuf_clear(&item->token);
    return tag;
}

static enum mx_item_step step_deepseek(struct mx_tool_item *item, char c)
{
    static const char *const fence[] = {"```json", NULL};
    static const char *const behind[] = {"```", "<｜tool▁call▁end｜>", NULL};
    int tag;
    switch ((enum deepseek_state)item->state) {
    case D_NAME:
    case D_OLD_NAME: return step_deepseek_name(item, c);
    case D_KIND: return step_kind(item, c);
    case D_FENCE:
        tag = take_tag(item, c, fence);
        item->state = tag == 0 ? D_OBJECT : D_FENCE;
        return tag == MX_TOOL_OTHER ? MX_ITEM_BROKEN : MX_ITEM_MORE;
    case D_OBJECT: return step_object(item, c);
    case D_BEHIND:
        tag = take_tag(item, c, behind);
        if (tag == 1)
            return MX_ITEM_DONE;
        return tag == MX_TOOL_OTHER ? MX_ITEM_BROKEN : MX_ITEM_MORE;
    }
    return MX_ITEM_BROKEN;
}

static bool end_deepseek(struct mx_tool_item *item)
{
    return item->state == D_BEHIND;
}

const struct mx_tool_reader mx_tool_reader_deepseek = {NULL, step_deepseek, end_deepseek};
