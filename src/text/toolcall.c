/* The driver of the tool-call parser: finds markers, decides what is emitted.
 *
 *  1. What is emitted depends on the bytes only, never on how they were cut into pieces (pieces of
 *     text and arguments are joined or cut as they come).
 *  2. Bytes are disposed of in order: buf[start..pos) has been read and is neither text nor call
 *     yet. While a call is held, mark is the place of its first byte.
 *  3. A call is held until it is complete, so that one that turns out not to be a call is text,
 * byte for byte. A call that has grown past `hold` bytes, with a declared name and arguments that
 *     have begun, is let go: BEGIN and the arguments so far are emitted, and more as it comes.
 *     Should it break after that, nothing can be taken back: no END follows, the call counts as
 *     malformed, and text goes on at the byte that broke it.
 *  4. What broke is looked through for calls again from the byte behind the one it started with, if
 *     it is short; so a broken call does not hide the next one. The work for a byte is bounded.
 *  5. A call of a tool that is not declared is text up to its end, so that nothing inside of it
 *     counts as a call.
 *  6. Blanks before a call, between calls, and behind the last one at the end of the answer are not
 *     visible text.
 *  7. A call right behind a backtick is quoted, and text like one of an undeclared tool. In a
 * fenced block it is a call: models put calls there more often than examples of declared tools. */
#include "text/toolcall.h"

#include "base/strbuf.h"
#include "base/utf8.h"
#include "text/toolcall_int.h"

#include <stdlib.h>
#include <string.h>

enum { DEFAULT_CALLS = 128, DEFAULT_BYTES = 8 << 20, DEFAULT_HOLD = 1 << 10 };

/* ---- Syntaxes ---- */

/* How one call starts inside of what the calls of a turn stand in. */
struct item_start {
    const char *text;
    const struct mx_tool_reader *reader;
    bool bare;  /* it may also stand alone */
    bool taken; /* the last byte of `text` is the call's first */
};

struct syntax {
    const char *name;
    const char *start;    /* what a grammar waits for */
    const char *hints[2]; /* any of them in a chat template says that it asks for this syntax */
    const char *opens[3]; /* of what the calls of a turn stand in */
    struct item_start items[3];
    const char *closes[3];
};

static const struct syntax syntaxes[] = {
    [MX_TOOLS_NONE] = {.name = "none"},
    [MX_TOOLS_HERMES] =
        {
            .name = "hermes",
            .start = "<tool_call>",
            .hints = {"<tool_call>"},
            .opens = {"<tool_call>"},
            .items = {{.text = "{", .reader = &mx_tool_reader_json, .taken = true},
                      {.text = "<function=", .reader = &mx_tool_reader_qwen}},
            .closes = {"</tool_call>"},
        },
    [MX_TOOLS_QWEN_XML] =
        {
            .name = "qwen_xml",
            .start = "<tool_call>",
            .hints = {"<function="},
            .opens = {"<tool_call>"},
            .items = {{.text = "<function=", .reader = &mx_tool_reader_qwen, .bare = true},
                      {.text = "{", .reader = &mx_tool_reader_json, .taken = true}},
            .closes = {"</tool_call>"},
        },
    [MX_TOOLS_GLM] =
        {
            .name = "glm",
            .start = "<tool_call>",
            .hints = {"<arg_key>"},
            .items = {{.text = "<tool_call>", .reader = &mx_tool_reader_glm, .bare = true}},
        },
    [MX_TOOLS_GEMMA4] =
        {
            .name = "gemma4",
            .start = "<|tool_call>",
            .hints = {"<|tool_call>", "<tool_call|>"},
            .items = {{.text = "<|tool_call>", .reader = &mx_tool_reader_gemma, .bare = true}},
        },
    [MX_TOOLS_DEEPSEEK_V3] =
        {
            .name = "deepseek_v3",
            .start = "<｜tool▁calls▁begin｜>",
            .hints = {"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"},
            .opens = {"<｜tool▁calls▁begin｜>"},
            .items = {{.text = "<｜tool▁call▁begin｜>",
                       .reader = &mx_tool_reader_deepseek,
                       .bare = true}},
            .closes = {"<｜tool▁calls▁end｜>"},
        },
    [MX_TOOLS_DSML] =
        {
            .name = "dsml",
            .start = "<｜DSML｜tool_calls>",
            .hints = {"｜DSML｜"},
            .opens = {"<｜DSML｜tool_calls>", "<｜DSML｜function_calls>"},
            .items = {{.text = "<｜DSML｜invoke name=\"", .reader = &mx_tool_reader_dsml}},
            .closes = {"</｜DSML｜tool_calls>", "</｜DSML｜function_calls>"},
        },
    [MX_TOOLS_MINIMAX] =
        {
            .name = "minimax",
            .start = "<minimax:tool_call>",
            .hints = {"<minimax:tool_call>", "minimax:tool_call"},
            .opens = {"<minimax:tool_call>"},
            .items = {{.text = "<invoke name=\"", .reader = &mx_tool_reader_minimax}},
            .closes = {"</minimax:tool_call>"},
        },
};

static const struct syntax *syntax_of(enum mx_tool_syntax s)
{
    return &syntaxes[(size_t)s < sizeof syntaxes / sizeof *syntaxes ? s : MX_TOOLS_NONE];
}

enum mx_tool_syntax mx_tool_syntax_of(const char *template_text)
{
    static const enum mx_tool_syntax order[] = {
        MX_TOOLS_DSML, MX_TOOLS_DEEPSEEK_V3, MX_TOOLS_MINIMAX, MX_TOOLS_GEMMA4,
        MX_TOOLS_GLM,  MX_TOOLS_QWEN_XML,    MX_TOOLS_HERMES};
    for (size_t i = 0; template_text && i < sizeof order / sizeof *order; i++) {
        for (int k = 0; k < 2; k++) {
            const char *hint = syntaxes[order[i]].hints[k];
            if (hint && strstr(template_text, hint))
                return order[i];
        }
    }
    return MX_TOOLS_NONE;
}

const char *mx_tool_syntax_name(enum mx_tool_syntax s)
{
    return syntax_of(s)->name;
}

const char *mx_tool_syntax_start(enum mx_tool_syntax s)
{
    return syntax_of(s)->start;
}

/* ---- What readers share ---- */

bool mx_tool_is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

int mx_tool_match(const char *const *list, const char *s, size_t n)
{
    int found = MX_TOOL_OTHER;
    for (int i = 0; list[i]; i++) {
        size_t len = strlen(list[i]);
        if (n > len || memcmp(list[i], s, n) != 0)
            continue;
        if (n == len)
            return i;
        found = MX_TOOL_PREFIX;
    }
    return found;
}

bool mx_tool_ends_with(const struct mx_strbuf *b, const char *tail)
{
    size_t n = strlen(tail);
    return b->len >= n && memcmp(b->data + b->len - n, tail, n) == 0;
}

void mx_tool_shift(struct mx_strbuf *b, size_t n)
{
    if (n == 0)
        return;
    b->len -= n;
    memmove(b->data, b->data + n, b->len + 1);
}

/* ---- The parser ---- */

enum state {
    TEXT,
    MARKER, /* buf[mark..] may become a marker */
    INNER,  /* what the calls stand in has begun: the first call must follow */
    CALL,
    NEXT, /* behind a call: a further one, or the end of what they stand in */
};

enum fate {
    UNDECIDED, /* the name is not complete */
    WANTED,
    UNKNOWN,  /* of an undeclared tool, or quoted: becomes text */
    UNWANTED, /* is dropped */
};

struct declared {
    const char *name;
    const json_t *schema;
};

struct mx_toolcall {
    const struct syntax *syntax;
    struct declared *tools;
    size_t n_tools;
    int max_calls;
    size_t max_bytes, hold;
    mx_tool_fn *emit;
    void *arg;
    struct mx_toolcall_counts counts;

    struct mx_strbuf buf, text;
    size_t start, pos, mark; /* of buf */
    size_t literal;          /* of buf: what may be a tag, in states INNER and NEXT */
    size_t counted;          /* of buf: calls that start before are parts of a broken one */
    enum state state;
    char last; /* byte of the text before buf[start] */
    char utf8[4];
    size_t n_utf8;

    struct mx_tool_item item;
    const struct mx_tool_reader *reader;
    enum fate fate;
    size_t bytes; /* of the call */
    bool wrapped; /* the call stands in what opens and closes */
    bool let_go;  /* BEGIN was emitted, or, of an unwanted call, it would have been */
    bool quoted;  /* a backtick stands before it */
    bool owed;    /* the call in front of state NEXT is not emitted yet */
    bool behind;  /* a call has ended and nothing but blanks followed */
    int calls;    /* begun */
    bool failed;
};

/* ---- Making one ---- */

static bool take_tool(struct mx_toolcall *t, const json_t *tool, size_t i, mtplx_error *err)
{
    const json_t *f = json_object_get(tool, "function");
    const json_t *holder = f ? f : tool;
    const char *name = json_string_value(json_object_get(holder, "name"));
    if (!name || !*name) {
        mx_error(err, MTPLX_ERR_ARGUMENT, "tools[%zu]%s.name must be a string that is not empty", i,
                 f ? ".function" : "");
        return false;
    }
    t->tools[t->n_tools++] = (struct declared){name, json_object_get(holder, "parameters")};
    return true;
}

static bool take_tools(struct mx_toolcall *t, const json_t *tools, mtplx_error *err)
{
    size_t n = json_array_size(tools);
    if (tools && !json_is_null(tools) && !json_is_array(tools)) {
        mx_error(err, MTPLX_ERR_ARGUMENT, "tools must be an array");
        return false;
    }
    if (n == 0)
        return true;
    t->tools = calloc(n, sizeof *t->tools);
    if (!t->tools) {
        mx_error_nomem(err, "the tools", n * sizeof *t->tools);
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        if (!take_tool(t, json_array_get(tools, i), i, err))
            return false;
    }
    return true;
}

struct mx_toolcall *mx_toolcall_new(const struct mx_toolcall_options *o, mx_tool_fn *emit,
                                    void *arg, mtplx_error *err)
{
    struct mx_toolcall *t = calloc(1, sizeof *t);
    if (!t) {
        mx_error_nomem(err, "a tool-call parser", sizeof *t);
        return NULL;
    }
    t->syntax = syntax_of(o->syntax);
    t->max_calls = o->max_calls > 0 ? o->max_calls : DEFAULT_CALLS;
    t->max_bytes = o->max_bytes > 0 ? o->max_bytes : DEFAULT_BYTES;
    t->hold = o->hold_bytes > 0 ? o->hold_bytes : DEFAULT_HOLD;
    t->emit = emit;
    t->arg = arg;
    if (!take_tools(t, o->tools, err)) {
        mx_toolcall_free(t);
        return NULL;
    }
    return t;
}

static void free_item(struct mx_tool_item *item)
{
    mx_strbuf_free(&item->name);
    mx_strbuf_free(&item->args);
    mx_strbuf_free(&item->token);
    mx_strbuf_free(&item->ahead);
    json_decref(item->seen);
    item->seen = NULL;
}

void mx_toolcall_free(struct mx_toolcall *t)
{
    if (!t)
        return;
    free_item(&t->item);
    mx_strbuf_free(&t->buf);
    mx_strbuf_free(&t->text);
    free(t->tools);
    free(t);
}

const struct mx_toolcall_counts *mx_toolcall_get_counts(const struct mx_toolcall *t)
{
    return &t->counts;
}

/* ---- Emitting ---- */

static void flush_text(struct mx_toolcall *t)
{
    if (t->text.len > 0)
        t->emit(t->arg, MX_TOOL_TEXT, 0, t->text.data, t->text.len);
    mx_strbuf_clear(&t->text);
}

/* Makes buf[start..end) text. */
static void take_text(struct mx_toolcall *t, size_t end)
{
    if (end == t->start)
        return;
    if (!mx_strbuf_append(&t->text, t->buf.data + t->start, end - t->start))
        t->failed = true;
    t->last = t->buf.data[end - 1];
    t->start = end;
    t->behind = false;
}

/* Emits the arguments there are of a call that was let go; forgets those of one not wanted. */
static void flush_args(struct mx_toolcall *t)
{
    struct mx_tool_item *item = &t->item;
    if (item->args.len > 0 && t->fate == WANTED && !t->failed)
        t->emit(t->arg, MX_TOOL_ARGS, t->calls - 1, item->args.data, item->args.len);
    mx_strbuf_clear(&item->args);
}

/* Lets a call go (rule 3); `start` follows what is read from here on. */
static void let_go(struct mx_toolcall *t)
{
    t->start = t->pos;
    if (t->let_go)
        return;
    t->let_go = true;
    flush_text(t); /* what stands before a call is never joined with what stands behind it */
    if (t->fate == WANTED)
        t->emit(t->arg, MX_TOOL_BEGIN, t->calls++, t->item.name.data, t->item.name.len);
}

/* ---- Calls ---- */

static const struct declared *find_tool(const struct mx_toolcall *t, const struct mx_strbuf *name)
{
    for (size_t i = 0; i < t->n_tools; i++) {
        if (strlen(t->tools[i].name) == name->len &&
            memcmp(t->tools[i].name, name->data, name->len) == 0)
            return &t->tools[i];
    }
    return NULL;
}

/* The name of the call is complete. */
static void decide(struct mx_toolcall *t)
{
    const struct declared *tool = find_tool(t, &t->item.name);
    if (t->quoted) {
        t->fate = UNKNOWN;
    } else if (t->n_tools == 0) {
        t->fate = UNWANTED;
    } else if (!tool) {
        t->fate = UNKNOWN;
        t->counts.unknown_tool++;
    } else {
        t->fate = t->calls < t->max_calls ? WANTED : UNWANTED;
        t->item.schema = tool->schema;
    }
}

static void begin_call(struct mx_toolcall *t, const struct item_start *s, bool wrapped)
{
    free_item(&t->item);
    t->item = (struct mx_tool_item){.dialect = s->reader->dialect};
    t->reader = s->reader;
    t->fate = UNDECIDED;
    t->bytes = t->n_utf8 = 0;
    t->wrapped = wrapped;
    t->let_go = false;
    t->state = CALL;
    if (s->taken)
        t->pos--;
}

static void count_unwanted(struct mx_toolcall *t)
{
    unsigned *count = t->n_tools == 0 ? &t->counts.stray : &t->counts.dropped;
    ++*count;
}

/* A call is broken, or not finished. */
static void count_broken(struct mx_toolcall *t)
{
    if (t->let_go && t->fate == UNWANTED)
        count_unwanted(t);
    else if (t->fate != UNKNOWN)
        t->counts.malformed++;
}

/* The call is complete and is what it seems. */
static void complete(struct mx_toolcall *t)
{
    t->owed = false;
    if (t->fate == UNKNOWN)
        return;
    let_go(t);
    t->behind = true;
    if (t->fate == WANTED) {
        flush_args(t);
        t->emit(t->arg, MX_TOOL_END, t->calls - 1, "", 0);
        t->counts.parsed++;
    } else {
        count_unwanted(t);
    }
}

/* What was held, or is being read, is no call. */
static void broken(struct mx_toolcall *t)
{
    size_t at = t->pos - 1; /* the byte that broke it */
    bool reading = t->state == CALL, held = t->fate != UNKNOWN && !t->let_go;
    if ((reading || t->state == NEXT) && (!held || t->mark >= t->counted)) {
        count_broken(t);
        t->counted = at;
    }
    t->state = TEXT;
    t->owed = false;
    if (held) {
        bool again = at - t->mark <= 4 * t->hold;
        take_text(t, again || at == t->mark ? t->mark + 1 : at);
    } else if (reading && t->let_go) {
        t->start = at;
    }
    if (t->let_go)
        flush_args(t);
    t->pos = t->start;
}

/* ---- Bytes ---- */

static void step_text(struct mx_toolcall *t, char c)
{
    size_t at = t->pos - 1;
    char before = at > t->start ? t->buf.data[at - 1] : t->last;
    if (mx_tool_is_blank(c))
        return;
    if (c == '<') {
        t->mark = at;
        t->quoted = before == '`';
        t->state = MARKER;
        return;
    }
    take_text(t, t->pos);
}

/* Of buf[from..pos): MX_TOOL_PREFIX, MX_TOOL_OTHER, or a string was matched: *item is the start of
 * a call, or NULL when the string is one of `others`. */
static int match_item(const struct mx_toolcall *t, size_t from, const char *const *others,
                      bool bare_only, const struct item_start **item)
{
    const char *list[8] = {NULL};
    const struct item_start *items[8] = {NULL};
    size_t n = 0, k = 0;
    for (; k < 3 && others[k]; k++)
        list[n++] = others[k];
    for (size_t i = 0; i < 3 && t->syntax->items[i].text; i++) {
        if (bare_only && !t->syntax->items[i].bare)
            continue;
        items[n] = &t->syntax->items[i];
        list[n++] = t->syntax->items[i].text;
    }
    int found = mx_tool_match(list, t->buf.data + from, t->pos - from);
    *item = found >= 0 ? items[found] : NULL;
    return found;
}

static void step_marker(struct mx_toolcall *t)
{
    const struct item_start *item;
    int found = match_item(t, t->mark, t->syntax->opens, true, &item);
    t->let_go = false;
    t->fate = UNDECIDED;
    if (found == MX_TOOL_OTHER) {
        broken(t);
    } else if (item) {
        begin_call(t, item, false);
    } else if (found != MX_TOOL_PREFIX) {
        t->state = INNER;
        t->literal = t->pos;
    }
}

static void step_inner(struct mx_toolcall *t, char c)
{
    static const char *const none[] = {NULL};
    const struct item_start *item;
    if (t->literal == t->pos - 1 && mx_tool_is_blank(c)) {
        t->literal = t->pos;
        return;
    }
    int found = match_item(t, t->literal, none, false, &item);
    if (found == MX_TOOL_OTHER)
        broken(t);
    else if (item)
        begin_call(t, item, true);
}

static void end_call(struct mx_toolcall *t, bool closed)
{
    t->owed = true;
    if (!t->wrapped || closed)
        complete(t);
    t->literal = t->pos;
    t->state = closed ? TEXT : NEXT;
}

/* Arguments have to be UTF-8. False at the byte that cannot be. */
static bool is_utf8(struct mx_toolcall *t, char c)
{
    uint32_t cp;
    t->utf8[t->n_utf8++] = c;
    int used = mx_utf8_decode(t->utf8, t->n_utf8, &cp);
    if (used > 0)
        t->n_utf8 = 0;
    return used != 0 && t->n_utf8 < sizeof t->utf8;
}

static enum mx_item_step read_byte(struct mx_toolcall *t, char c)
{
    if (++t->bytes > t->max_bytes || !is_utf8(t, c))
        return MX_ITEM_BROKEN;
    return t->reader->step(&t->item, c);
}

static void step_call(struct mx_toolcall *t, char c)
{
    const struct mx_tool_item *item = &t->item;
    enum mx_item_step step = read_byte(t, c);
    t->failed |= item->args.failed || item->token.failed || item->ahead.failed || item->name.failed;
    if (step == MX_ITEM_BROKEN) {
        broken(t);
        return;
    }
    if (item->named && t->fate == UNDECIDED)
        decide(t);
    if (t->fate == UNKNOWN)
        mx_strbuf_clear(&t->item.args);
    if (step != MX_ITEM_MORE)
        end_call(t, step == MX_ITEM_CLOSED);
    bool ripe = item->opened && t->bytes > t->hold;
    if (t->fate == UNKNOWN)
        take_text(t, t->pos);
    else if (t->let_go || (ripe && t->fate != UNDECIDED))
        let_go(t);
}

static void step_next(struct mx_toolcall *t, char c)
{
    const struct item_start *item;
    if (t->literal == t->pos - 1 && mx_tool_is_blank(c) && ++t->bytes <= t->max_bytes) {
        t->literal = t->pos;
        return;
    }
    int found = match_item(t, t->literal, t->syntax->closes, !t->wrapped, &item);
    if (found == MX_TOOL_PREFIX)
        return;
    if (found == MX_TOOL_OTHER) {
        if (t->owed) {
            broken(t);
        } else {
            t->state = TEXT;
            t->pos = t->start;
        }
        return;
    }
    if (t->owed)
        complete(t);
    if (t->fate == UNKNOWN)
        take_text(t, item ? t->literal : t->pos);
    else
        t->start = item ? t->literal : t->pos;
    t->state = TEXT;
    if (item) {
        t->mark = t->literal;
        begin_call(t, item, t->wrapped);
    }
}

static void step(struct mx_toolcall *t)
{
    char c = t->buf.data[t->pos++];
    switch (t->state) {
    case TEXT: step_text(t, c); break;
    case MARKER: step_marker(t); break;
    case INNER: step_inner(t, c); break;
    case CALL: step_call(t, c); break;
    case NEXT: step_next(t, c); break;
    }
}

/* ---- Interface ---- */

/* Moves what is still needed to the front of the buffer. */
static void compact(struct mx_toolcall *t)
{
    size_t n = t->start;
    mx_tool_shift(&t->buf, n);
    t->start = 0;
    t->pos -= n;
    t->mark = t->mark > n ? t->mark - n : 0;
    t->literal = t->literal > n ? t->literal - n : 0;
    t->counted = t->counted > n ? t->counted - n : 0;
}

static bool in_call(const struct mx_toolcall *t)
{
    return t->state == CALL || (t->state == NEXT && t->owed);
}

bool mx_toolcall_push(struct mx_toolcall *t, const char *text, size_t n)
{
    if (t->syntax->name == syntaxes[MX_TOOLS_NONE].name) {
        if (n > 0)
            t->emit(t->arg, MX_TOOL_TEXT, 0, text, n);
        return true;
    }
    if (t->failed || !mx_strbuf_append(&t->buf, text, n))
        t->failed = true;
    while (!t->failed && t->pos < t->buf.len)
        step(t);
    flush_text(t);
    if (t->let_go && in_call(t))
        flush_args(t);
    if (!t->failed)
        compact(t);
    return !t->failed;
}

/* The answer ended inside of a call. */
static void finish_call(struct mx_toolcall *t)
{
    if (t->fate == UNKNOWN)
        return;
    if (t->item.named && (t->reader->end(&t->item) || t->n_tools == 0)) {
        complete(t);
        return;
    }
    count_broken(t);
    if (t->let_go) {
        flush_args(t);
        t->start = t->buf.len;
    }
}

/* The answer ended behind a call, where a closing marker could begin. */
static void finish_next(struct mx_toolcall *t)
{
    const char *rest = t->buf.data + t->literal;
    size_t n = t->buf.len - t->literal;
    if (t->owed)
        complete(t);
    if (t->fate != UNKNOWN && (n == 0 || (n > 1 && rest[1] == '/')))
        t->start = t->buf.len;
    else if (t->fate != UNKNOWN)
        t->start = t->literal;
}

static bool only_blanks(const char *s, size_t n)
{
    while (n > 0 && mx_tool_is_blank(s[n - 1]))
        n--;
    return n == 0;
}

bool mx_toolcall_finish(struct mx_toolcall *t)
{
    if (t->failed)
        return false;
    if (t->buf.len > 0 || t->state != TEXT) {
        if (t->state == CALL)
            finish_call(t);
        else if (t->state == NEXT)
            finish_next(t);
        else if (t->behind && only_blanks(t->buf.data + t->start, t->buf.len - t->start))
            t->start = t->buf.len;
        take_text(t, t->buf.len);
    }
    flush_text(t);
    mx_strbuf_clear(&t->buf);
    t->start = t->pos = t->mark = t->literal = t->counted = 0;
    t->state = TEXT;
    return !t->failed;
}
