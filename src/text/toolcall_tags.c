/* Readers of calls whose parameters stand between tags: Qwen's XML, GLM, DSML, MiniMax.
 *
 *  1. A value ends at its closing tag only if a further parameter or the end of the call follows,
 * so that a file with the tag in it can be written.
 *  2. Values that are strings by schema go out while they stream; others once they are complete.
 *  3. A parameter that is there twice counts once, as it was first: that may be on its way already,
 *     and which of two equal keys of an object counts depends on who reads it. */
#include "text/toolcall_int.h"

#include <string.h>

enum state { NAME = 0, TAGS, KEY, VALUE_TAG, VALUE };

/* Blanks between a value's closing tag and the next tag. */
enum { MAX_GAP = 256 };

struct dialect {
    const char *name_end;  /* behind the name; NULL: a newline or a tag (GLM) */
    const char *tags[4];   /* a parameter, the end of the call, the end of what it stands in */
    const char *key_end;   /* behind a key */
    const char *value_tag; /* between key and value, or NULL */
    const char *value_end;
    bool newlines;   /* a newline on either side of a value is not part of it */
    bool closed;     /* the end of the call is the end of what it stands in */
    bool attributes; /* key_end is the key's quote; string=".."> follows */
};

static const struct dialect qwen = {
    .name_end = ">",
    .tags = {"<parameter=", "</function>", "</tool_call>"},
    .key_end = ">",
    .value_end = "</parameter>",
    .newlines = true,
};
static const struct dialect glm = {
    .tags = {"<arg_key>", "</tool_call>"},
    .key_end = "</arg_key>",
    .value_tag = "<arg_value>",
    .value_end = "</arg_value>",
    .closed = true,
};
static const struct dialect dsml = {
    .name_end = "\">",
    .tags = {"<｜DSML｜parameter name=\"", "</｜DSML｜invoke>"},
    .key_end = "\"",
    .value_end = "</｜DSML｜parameter>",
    .attributes = true,
};
static const struct dialect minimax = {
    .name_end = "\">",
    .tags = {"<parameter name=\"", "</invoke>"},
    .key_end = "\">",
    .value_end = "</parameter>",
    .newlines = true,
};

static const struct dialect *dialect_of(const struct mx_tool_item *item)
{
    return item->dialect;
}

/* ---- The end of a value ---- */

enum { GAP_OTHER = MX_TOOL_OTHER, GAP_PREFIX = MX_TOOL_PREFIX };

/* What s[0..n) is to the end of a value with the tag that follows: the tag's index, GAP_PREFIX or
 * GAP_OTHER. *tag becomes the place of the tag that follows, 0 while there is none. */
static int match_end(const struct dialect *d, const char *s, size_t n, size_t *tag)
{
    size_t close = strlen(d->value_end), i = d->newlines && s[0] == '\n';
    size_t k = n - i < close ? n - i : close;
    *tag = 0;
    if (memcmp(s + i, d->value_end, k) != 0)
        return GAP_OTHER;
    i += k;
    if (k < close)
        return GAP_PREFIX;
    for (size_t gap = i; i < n && mx_tool_is_blank(s[i]); i++) {
        if (i - gap == MAX_GAP)
            return GAP_OTHER;
    }
    *tag = i;
    return i == n ? GAP_PREFIX : mx_tool_match(d->tags, s + i, n - i);
}

/* A byte of a value that is known to be one. */
static void take_value(struct mx_tool_item *item, char c)
{
    bool first = !item->started;
    item->started = true;
    if (item->ignored || (first && c == '\n' && dialect_of(item)->newlines))
        return;
    if (item->quoted)
        mx_json_put_escaped(&item->args, c);
    else
        mx_strbuf_putc(&item->token, c);
}

static void end_value(struct mx_tool_item *item)
{
    if (!item->ignored && item->quoted)
        mx_strbuf_putc(&item->args, '"');
    else if (!item->ignored)
        mx_tool_coerce(item->types, item->token.data ? item->token.data : "", item->token.len,
                       &item->args);
    item->opened = true;
    mx_strbuf_clear(&item->token);
    mx_strbuf_clear(&item->ahead);
}

/* ---- Steps ---- */

static enum mx_item_step end_call(struct mx_tool_item *item, bool closed)
{
    mx_strbuf_puts(&item->args, json_object_size(item->seen) > 0 ? "}" : "{}");
    return closed ? MX_ITEM_CLOSED : MX_ITEM_DONE;
}

/* A tag of the dialect was read. */
static enum mx_item_step take_tag(struct mx_tool_item *item, int tag)
{
    mx_strbuf_clear(&item->token);
    if (tag > 0)
        return end_call(item, tag == 2 || dialect_of(item)->closed);
    item->state = KEY;
    return MX_ITEM_MORE;
}

static enum mx_item_step step_tags(struct mx_tool_item *item, char c)
{
    if (item->token.len == 0 && mx_tool_is_blank(c))
        return MX_ITEM_MORE;
    mx_strbuf_putc(&item->token, c);
    int tag = mx_tool_match(dialect_of(item)->tags, item->token.data, item->token.len);
    if (tag == MX_TOOL_OTHER)
        return MX_ITEM_BROKEN;
    return tag == MX_TOOL_PREFIX ? MX_ITEM_MORE : take_tag(item, tag);
}

static enum mx_item_step end_name(struct mx_tool_item *item)
{
    while (item->name.len > 0 && mx_tool_is_blank(item->name.data[item->name.len - 1]))
        item->name.data[--item->name.len] = '\0';
    const char *name = item->name.data;
    if (item->name.len == 0 || memchr(name, ' ', item->name.len))
        return MX_ITEM_BROKEN;
    item->named = true;
    item->state = TAGS;
    return MX_ITEM_MORE;
}

static enum mx_item_step step_name(struct mx_tool_item *item, char c)
{
    const char *end = dialect_of(item)->name_end;
    if (!end && item->name.len == 0 && mx_tool_is_blank(c))
        return MX_ITEM_MORE;
    if (!end && (c == '\n' || c == '<')) {
        enum mx_item_step step = end_name(item);
        return step == MX_ITEM_MORE ? step_tags(item, c) : step;
    }
    if (c == '<' || c == '\n' || item->name.len == MX_TOOL_NAME_MAX)
        return MX_ITEM_BROKEN;
    mx_strbuf_putc(&item->name, c);
    if (!end || !mx_tool_ends_with(&item->name, end))
        return MX_ITEM_MORE;
    item->name.len -= strlen(end);
    item->name.data[item->name.len] = '\0';
    return end_name(item);
}

/* The key is complete: its place in the arguments is made. */
static enum mx_item_step begin_value(struct mx_tool_item *item, unsigned types)
{
    const char *key = item->token.data;
    size_t n = item->token.len;
    if (n == 0 || memchr(key, 0, n))
        return MX_ITEM_BROKEN;
    if (!item->seen)
        item->seen = json_object();
    item->ignored = json_object_get(item->seen, key) != NULL;
    item->types = types;
    item->quoted = types == MX_TYPE_TEXT;
    item->started = false;
    if (!item->ignored) {
        mx_strbuf_putc(&item->args, json_object_size(item->seen) > 0 ? ',' : '{');
        mx_json_quote(&item->args, key, n);
        mx_strbuf_puts(&item->args, item->quoted ? ":\"" : ":");
        if (json_object_set_new(item->seen, key, json_true()) != 0)
            item->args.failed = true;
    }
    item->opened |= item->quoted;
    mx_strbuf_clear(&item->token);
    item->state = VALUE;
    return MX_ITEM_MORE;
}

/* DSML states behind the key whether a value is text or JSON. */
static enum mx_item_step step_attributes(struct mx_tool_item *item, char c)
{
    static const char *const kinds[] = {" string=\"true\">", " string=\"false\">", ">", NULL};
    mx_strbuf_putc(&item->ahead, c);
    int kind = mx_tool_match(kinds, item->ahead.data, item->ahead.len);
    if (kind == MX_TOOL_OTHER)
        return MX_ITEM_BROKEN;
    if (kind == MX_TOOL_PREFIX)
        return MX_ITEM_MORE;
    mx_strbuf_clear(&item->ahead);
    if (kind == 2)
        return begin_value(item, mx_tool_types(item->schema, item->token.data));
    return begin_value(item, kind == 0 ? MX_TYPE_TEXT : MX_TYPE_ANY | MX_TYPE_QUOTED);
}

static enum mx_item_step step_value_tag(struct mx_tool_item *item, char c)
{
    const struct dialect *d = dialect_of(item);
    if (d->attributes)
        return step_attributes(item, c);
    const char *const list[] = {d->value_tag, NULL};
    if (item->ahead.len == 0 && mx_tool_is_blank(c))
        return MX_ITEM_MORE;
    mx_strbuf_putc(&item->ahead, c);
    int tag = mx_tool_match(list, item->ahead.data, item->ahead.len);
    if (tag == MX_TOOL_OTHER)
        return MX_ITEM_BROKEN;
    if (tag == MX_TOOL_PREFIX)
        return MX_ITEM_MORE;
    mx_strbuf_clear(&item->ahead);
    return begin_value(item, mx_tool_types(item->schema, item->token.data));
}

static enum mx_item_step step_key(struct mx_tool_item *item, char c)
{
    const struct dialect *d = dialect_of(item);
    if (c == '\n' || item->token.len == MX_TOOL_KEY_MAX)
        return MX_ITEM_BROKEN;
    mx_strbuf_putc(&item->token, c);
    if (!mx_tool_ends_with(&item->token, d->key_end))
        return MX_ITEM_MORE;
    item->token.len -= strlen(d->key_end);
    item->token.data[item->token.len] = '\0';
    if (memchr(item->token.data, '<', item->token.len))
        return MX_ITEM_BROKEN;
    if (d->value_tag || d->attributes) {
        item->state = VALUE_TAG;
        return MX_ITEM_MORE;
    }
    return begin_value(item, mx_tool_types(item->schema, item->token.data));
}

static enum mx_item_step step_value(struct mx_tool_item *item, char c)
{
    size_t tag;
    int match = GAP_PREFIX;
    /* Whatever else it may be, the first newline is none of the value's bytes. */
    if (!item->started && c == '\n' && item->ahead.len == 0) {
        take_value(item, c);
        return MX_ITEM_MORE;
    }
    mx_strbuf_putc(&item->ahead, c);
    while (item->ahead.len > 0) {
        match = match_end(dialect_of(item), item->ahead.data, item->ahead.len, &tag);
        if (match != GAP_OTHER)
            break;
        take_value(item, item->ahead.data[0]);
        mx_tool_shift(&item->ahead, 1);
    }
    if (match < 0)
        return MX_ITEM_MORE;
    end_value(item);
    return take_tag(item, match);
}

static enum mx_item_step step(struct mx_tool_item *item, char c)
{
    switch ((enum state)item->state) {
    case NAME: return step_name(item, c);
    case TAGS: return step_tags(item, c);
    case KEY: return step_key(item, c);
    case VALUE_TAG: return step_value_tag(item, c);
    case VALUE: return step_value(item, c);
    }
    return MX_ITEM_BROKEN;
}

/* A closing tag that has begun is one: nothing else starts with "</" here. Without it, a further
 * parameter might be missing. */
static bool end(struct mx_tool_item *item)
{
    size_t tag = 0;
    const struct mx_strbuf *b = item->state == VALUE ? &item->ahead : &item->token;
    if (item->state == VALUE && b->len > 0)
        match_end(dialect_of(item), b->data, b->len, &tag);
    bool closing = item->state == TAGS || tag > 0;
    if (!closing || b->len < tag + 2 || memcmp(b->data + tag, "</", 2) != 0)
        return false;
    if (item->state == VALUE)
        end_value(item);
    end_call(item, true);
    return true;
}

const struct mx_tool_reader mx_tool_reader_qwen = {&qwen, step, end};
const struct mx_tool_reader mx_tool_reader_glm = {&glm, step, end};
const struct mx_tool_reader mx_tool_reader_dsml = {&dsml, step, end};
const struct mx_tool_reader mx_tool_reader_minimax = {&minimax, step, end};
