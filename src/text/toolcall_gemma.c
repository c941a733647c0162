/* Reader of Gemma's calls: call:NAME{key:VALUE,..}<tool_call|>
 *
 *  1. Keys are bare or between <|"|>, strings are between <|"|>, lists and objects nest.
 *  2. A bare value that is JSON is that, any other is a string: the model left out its marks.
 *  3. A key of the arguments that is there twice breaks the call; below, objects are as written. */
#include "text/toolcall_int.h"

#include <string.h>

enum state {
    CALL = 0,
    NAME,
    FIRST_KEY, /* or the end of the object */
    KEY,
    KEY_TEXT,
    COLON, /* behind a key between marks */
    FIRST_ITEM,
    VALUE,
    BARE,
    MARKED,     /* text between marks */
    MARKED_KEY, /* the same, of a key */
    AFTER,
    BEHIND,
};

static const char *const mark[] = {"<|\"|>", NULL};

/* Takes a byte of a tag; blanks may stand before it. */
static int take_tag(struct mx_tool_item *item, char c, const char *const *tags)
{
    if (item->ahead.len == 0 && mx_tool_is_blank(c))
        return MX_TOOL_PREFIX;
    mx_strbuf_putc(&item->ahead, c);
    int tag = mx_tool_match(tags, item->ahead.data, item->ahead.len);
    if (tag >= 0)
        mx_strbuf_clear(&item->ahead);
    return tag;
}

/* ---- Containers ---- */

static enum mx_item_step open_container(struct mx_tool_item *item, char c)
{
    if (item->depth == MX_JSON_STREAM_DEPTH)
        return MX_ITEM_BROKEN;
    item->nested[item->depth++] = (unsigned char)c;
    item->opened = true;
    item->state = c == '{' ? FIRST_KEY : FIRST_ITEM;
    mx_strbuf_putc(&item->args, c);
    return MX_ITEM_MORE;
}

static enum mx_item_step close_container(struct mx_tool_item *item, char c)
{
    if (item->nested[--item->depth] != (c == '}' ? '{' : '['))
        return MX_ITEM_BROKEN;
    mx_strbuf_putc(&item->args, c);
    item->state = item->depth > 0 ? AFTER : BEHIND;
    return MX_ITEM_MORE;
}

static enum mx_item_step step_after(struct mx_tool_item *item, char c)
{
    if (mx_tool_is_blank(c))
        return MX_ITEM_MORE;
    if (c == '}' || c == ']')
        return close_container(item, c);
    if (c != ',')
        return MX_ITEM_BROKEN;
    mx_strbuf_putc(&item->args, c);
    item->state = item->nested[item->depth - 1] == '{' ? KEY : VALUE;
    return MX_ITEM_MORE;
}

/* ---- Keys ---- */

static void trim_token(struct mx_tool_item *item)
{
    while (item->token.len > 0 && mx_tool_is_blank(item->token.data[item->token.len - 1]))
        item->token.data[--item->token.len] = '\0';
}

static enum mx_item_step end_key(struct mx_tool_item *item)
{
    const char *key = item->token.data;
    if (item->token.len == 0 || memchr(key, 0, item->token.len))
        return MX_ITEM_BROKEN;
    if (item->depth == 1) {
        if (!item->seen)
            item->seen = json_object();
        if (json_object_get(item->seen, key))
            return MX_ITEM_BROKEN;
        item->args.failed |= json_object_set_new(item->seen, key, json_true()) != 0;
    }
    mx_json_quote(&item->args, key, item->token.len);
    mx_strbuf_putc(&item->args, ':');
    mx_strbuf_clear(&item->token);
    item->state = VALUE;
    return MX_ITEM_MORE;
}

static enum mx_item_step step_key_text(struct mx_tool_item *item, char c)
{
    if (c == ':') {
        trim_token(item);
        return end_key(item);
    }
    if (item->token.len == MX_TOOL_KEY_MAX || (c && strchr("{}[],<\"", c)))
        return MX_ITEM_BROKEN;
    mx_strbuf_putc(&item->token, c);
    return MX_ITEM_MORE;
}

/* Before a key. */
static enum mx_item_step step_key(struct mx_tool_item *item, char c)
{
    if (item->ahead.len > 0 || c == '<') {
        int tag = take_tag(item, c, mark);
        if (tag == 0)
            item->state = MARKED_KEY;
        return tag == MX_TOOL_OTHER ? MX_ITEM_BROKEN : MX_ITEM_MORE;
    }
    if (mx_tool_is_blank(c))
        return MX_ITEM_MORE;
    if (c == '}' && item->state == FIRST_KEY)
        return close_container(item, c);
    item->state = KEY_TEXT;
    return step_key_text(item, c);
}

/* ---- Values ---- */

static enum mx_item_step step_bare(struct mx_tool_item *item, char c)
{
    if (c == ',' || c == '}' || c == ']') {
        trim_token(item);
        mx_tool_coerce(MX_TYPE_ANY, item->token.data, item->token.len, &item->args);
        mx_strbuf_clear(&item->token);
        return step_after(item, c);
    }
    if (c && strchr("{[<\"", c))
        return MX_ITEM_BROKEN;
    mx_strbuf_putc(&item->token, c);
    return MX_ITEM_MORE;
}

/* Before a value. */
static enum mx_item_step step_value(struct mx_tool_item *item, char c)
{
    if (item->ahead.len > 0 || c == '<') {
        int tag = take_tag(item, c, mark);
        if (tag == 0) {
            item->state = MARKED;
            mx_strbuf_putc(&item->args, '"');
        }
        return tag == MX_TOOL_OTHER ? MX_ITEM_BROKEN : MX_ITEM_MORE;
    }
    if (mx_tool_is_blank(c))
        return MX_ITEM_MORE;
    if (c == '{' || c == '[')
        return open_container(item, c);
    if (c == ']' && item->state == FIRST_ITEM)
        return close_container(item, c);
    if (c == ',' || c == '}' || c == ']')
        return MX_ITEM_BROKEN;
    item->state = BARE;
    return step_bare(item, c);
}

/* Text between marks, which streams where it is a value. */
static enum mx_item_step step_marked(struct mx_tool_item *item, char c)
{
    bool key = item->state == MARKED_KEY;
    int tag = MX_TOOL_PREFIX;
    mx_strbuf_putc(&item->ahead, c);
    while (item->ahead.len > 0) {
        tag = mx_tool_match(mark, item->ahead.data, item->ahead.len);
        if (tag != MX_TOOL_OTHER)
            break;
        if (key)
            mx_strbuf_putc(&item->token, item->ahead.data[0]);
        else
            mx_json_put_escaped(&item->args, item->ahead.data[0]);
        mx_tool_shift(&item->ahead, 1);
    }
    if (item->token.len > MX_TOOL_KEY_MAX)
        return MX_ITEM_BROKEN;
    if (tag != 0)
        return MX_ITEM_MORE;
    mx_strbuf_clear(&item->ahead);
    if (!key)
        mx_strbuf_putc(&item->args, '"');
    item->state = key ? COLON : AFTER;
    return MX_ITEM_MORE;
}

/* ---- The call ---- */

static enum mx_item_step step_name(struct mx_tool_item *item, char c)
{
    if (c == '{') {
        item->named = item->name.len > 0;
        return item->named ? open_container(item, c) : MX_ITEM_BROKEN;
    }
    if (item->name.len == MX_TOOL_NAME_MAX || mx_tool_is_blank(c) || c == '<')
        return MX_ITEM_BROKEN;
    mx_strbuf_putc(&item->name, c);
    return MX_ITEM_MORE;
}

static enum mx_item_step step_colon(struct mx_tool_item *item, char c)
{
    if (mx_tool_is_blank(c))
        return MX_ITEM_MORE;
    return c == ':' ? end_key(item) : MX_ITEM_BROKEN;
}

static enum mx_item_step step(struct mx_tool_item *item, char c)
{
    static const char *const call[] = {"call:", NULL}, *const end[] = {"<tool_call|>", NULL};
    int tag;
    switch ((enum state)item->state) {
    case CALL:
        tag = take_tag(item, c, call);
        item->state = tag == 0 ? NAME : CALL;
        return tag == MX_TOOL_OTHER ? MX_ITEM_BROKEN : MX_ITEM_MORE;
    case NAME: return step_name(item, c);
    case FIRST_KEY:
    case KEY: return step_key(item, c);
    case KEY_TEXT: return step_key_text(item, c);
    case COLON: return step_colon(item, c);
    case FIRST_ITEM:
    case VALUE: return step_value(item, c);
    case BARE: return step_bare(item, c);
    case MARKED:
    case MARKED_KEY: return step_marked(item, c);
    case AFTER: return step_after(item, c);
    case BEHIND:
        tag = take_tag(item, c, end);
        if (tag == 0)
            return MX_ITEM_CLOSED;
        return tag == MX_TOOL_OTHER ? MX_ITEM_BROKEN : MX_ITEM_MORE;
    }
    return MX_ITEM_BROKEN;
}

static bool end_of_answer(struct mx_tool_item *item)
{
    return item->state == BEHIND;
}

const struct mx_tool_reader mx_tool_reader_gemma = {NULL, step, end_of_answer};
