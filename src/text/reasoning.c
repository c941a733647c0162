/* Splits a streamed answer into reasoning and visible text. */
#include "text/reasoning.h"

#include <string.h>

enum state {
    UNKNOWN, /* nothing but blanks so far */
    BEGIN,   /* inside, nothing but blanks so far */
    INSIDE,
    END, /* behind the closing tag, nothing but newlines so far */
    ANSWER,
};

enum { MAX_BLANKS = 256 };

/* ---- Styles ---- */

struct tags {
    const char *open, *close;
};

static const struct tags tags_of[] = {
    [MX_REASONING_NONE] = {NULL, NULL},
    [MX_REASONING_THINK] = {"<think>", "</think>"},
    [MX_REASONING_GEMMA4] = {"<|channel>thought", "<channel|>"},
};

int mx_reasoning_style_named(const char *name)
{
    static const struct {
        const char *name;
        enum mx_reasoning_style style;
    } names[] = {
        {"none", MX_REASONING_NONE},         {"think", MX_REASONING_THINK},
        {"qwen3", MX_REASONING_THINK},       {"deepseek", MX_REASONING_THINK},
        {"glm", MX_REASONING_THINK},         {"step3p5", MX_REASONING_THINK},
        {"poolside_v1", MX_REASONING_THINK}, {"gemma4", MX_REASONING_GEMMA4},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i].name) == 0)
            return names[i].style;
    }
    return -1;
}

enum mx_reasoning_style mx_reasoning_style_of(const char *template_text)
{
    if (!template_text)
        return MX_REASONING_NONE;
    if (strstr(template_text, "<|channel>"))
        return MX_REASONING_GEMMA4;
    if (strstr(template_text, "<think>") || strstr(template_text, "</think>"))
        return MX_REASONING_THINK;
    return MX_REASONING_NONE;
}

const char *mx_reasoning_end(enum mx_reasoning_style style)
{
    return tags_of[style].close;
}

/* ---- Bytes ---- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static size_t trimmed(const char *s, size_t n)
{
    while (n > 0 && is_blank(s[n - 1]))
        n--;
    return n;
}

/* What is left of s[0..n) when the blanks at its end, MAX_BLANKS at most, are held back or dropped.
 * The limit keeps the work for a byte bounded when a model writes nothing but newlines. */
static size_t without_blanks(const char *s, size_t n)
{
    size_t least = n > MAX_BLANKS ? n - MAX_BLANKS : 0;
    while (n > least && is_blank(s[n - 1]))
        n--;
    return n;
}

static bool ends_with(const char *s, size_t n, const char *tag)
{
    size_t t = strlen(tag);
    return n >= t && memcmp(s + n - t, tag, t) == 0;
}

/* Bytes at the end of s[0..n) that are a proper prefix of `tag`. */
static size_t partial_tag(const char *s, size_t n, const char *tag)
{
    size_t k = strlen(tag) - 1;
    for (k = k < n ? k : n; k > 0; k--) {
        if (memcmp(s + n - k, tag, k) == 0)
            return k;
    }
    return 0;
}

/* ---- Quotes ---- */

/* What stands before a place of the text on its line. */
struct quoting {
    char last;
    bool ticks, quotes;
};

static struct quoting quoting_at(const struct mx_reasoning *r, size_t n)
{
    struct quoting q = {r->last, r->ticks, r->quotes};
    for (size_t i = 0; i < n; i++) {
        char c = r->held.data[i];
        if (c == '\n')
            q.ticks = q.quotes = false;
        q.ticks ^= c == '`';
        q.quotes ^= c == '"';
        q.last = c;
    }
    return q;
}

/* Whether a tag is quoted, by what stands before it and the byte behind it. */
static bool is_quoted(struct quoting q, char next)
{
    return (next == '`' && q.ticks) || (next == '"' && q.quotes) ||
           (next == '\'' && q.last == '\'');
}

/* Whether it could be, with the right byte behind it. */
static bool may_be_quoted(struct quoting q)
{
    return q.ticks || q.quotes || q.last == '\'';
}

/* ---- Steps ---- */

/* Forgets the first n bytes held. */
static void drop(struct mx_reasoning *r, size_t n)
{
    if (n == 0 || !r->held.data)
        return;
    struct quoting q = quoting_at(r, n);
    r->last = q.last;
    r->ticks = q.ticks;
    r->quotes = q.quotes;
    r->held.len -= n;
    memmove(r->held.data, r->held.data + n, r->held.len + 1);
}

static void emit(struct mx_reasoning *r, enum mx_answer_part part, size_t n)
{
    if (n > 0)
        r->emit(r->arg, part, r->held.data, n);
    drop(r, n);
}

static size_t leading_blanks(const struct mx_reasoning *r)
{
    size_t n = 0;
    while (n < r->held.len && is_blank(r->held.data[n]))
        n++;
    return n;
}

/* Each step handles what is held in the current state and returns true when the rest must be looked
 * at again. */

static bool step_unknown(struct mx_reasoning *r)
{
    const char *open = tags_of[r->style].open;
    size_t skip = leading_blanks(r), rest = r->held.len - skip, tag = strlen(open);
    size_t n = rest < tag ? rest : tag;
    if (skip > MAX_BLANKS || memcmp(r->held.data + skip, open, n) != 0) {
        r->state = ANSWER;
        return true;
    }
    if (n < tag)
        return false;
    drop(r, skip + tag);
    r->state = BEGIN;
    return true;
}

static bool step_begin(struct mx_reasoning *r)
{
    drop(r, leading_blanks(r));
    if (r->held.len == 0)
        return false;
    r->state = INSIDE;
    return true;
}

/* A closing tag at held[n]. */
static bool step_tag(struct mx_reasoning *r, size_t n)
{
    const char *s = r->held.data;
    struct quoting q = quoting_at(r, n);
    size_t behind = n + strlen(tags_of[r->style].close), text = without_blanks(s, n);
    if (may_be_quoted(q) && behind == r->held.len) {
        emit(r, MX_PART_REASONING, text);
        return false;
    }
    if (may_be_quoted(q) && is_quoted(q, s[behind])) {
        emit(r, MX_PART_REASONING, behind);
        return true;
    }
    emit(r, MX_PART_REASONING, text);
    drop(r, behind - text);
    r->state = END;
    return true;
}

static bool step_inside(struct mx_reasoning *r)
{
    const char *s = r->held.data, *close = tags_of[r->style].close;
    const char *end = memmem(s, r->held.len, close, strlen(close));
    if (end)
        return step_tag(r, (size_t)(end - s));
    /* Blanks may turn out to be the last ones, and then are dropped. */
    emit(r, MX_PART_REASONING, without_blanks(s, r->held.len - partial_tag(s, r->held.len, close)));
    return false;
}

static bool step_end(struct mx_reasoning *r)
{
    size_t n = 0;
    while (n < r->held.len && (r->held.data[n] == '\n' || r->held.data[n] == '\r'))
        n++;
    drop(r, n);
    if (r->held.len == 0)
        return false;
    r->state = ANSWER;
    return true;
}

static bool step(struct mx_reasoning *r)
{
    switch ((enum state)r->state) {
    case UNKNOWN: return step_unknown(r);
    case BEGIN: return step_begin(r);
    case INSIDE: return step_inside(r);
    case END: return step_end(r);
    case ANSWER: emit(r, MX_PART_ANSWER, r->held.len); return false;
    }
    return false;
}

/* ---- Interface ---- */

void mx_reasoning_init(struct mx_reasoning *r, enum mx_reasoning_style style, const char *prompt,
                       size_t len, mx_part_fn *emit_part, void *arg)
{
    const struct tags *tags = &tags_of[style];
    *r = (struct mx_reasoning){.style = style, .state = UNKNOWN, .emit = emit_part, .arg = arg};
    mx_strbuf_init(&r->held, 0);
    if (style == MX_REASONING_NONE) {
        r->state = ANSWER;
        return;
    }
    size_t n = trimmed(prompt, len);
    if (ends_with(prompt, n, tags->open))
        r->state = BEGIN;
    else if (ends_with(prompt, n, tags->close))
        r->state = END;
}

void mx_reasoning_free(struct mx_reasoning *r)
{
    mx_strbuf_free(&r->held);
}

bool mx_reasoning_push(struct mx_reasoning *r, const char *text, size_t n)
{
    if (n == 0)
        return true;
    if (!mx_strbuf_append(&r->held, text, n))
        return false;
    while (r->held.len > 0 && step(r))
        ;
    return true;
}

bool mx_reasoning_inside(const struct mx_reasoning *r)
{
    return r->state == BEGIN || r->state == INSIDE;
}

void mx_reasoning_finish(struct mx_reasoning *r)
{
    const char *close = tags_of[r->style].close;
    size_t n = without_blanks(r->held.data ? r->held.data : "", r->held.len);
    bool inside = mx_reasoning_inside(r);
    /* A tag at the very end waits for the byte behind it: nothing there means that it counts. */
    if (inside && n > 0 && ends_with(r->held.data, n, close))
        n = without_blanks(r->held.data, n - strlen(close));
    if (n > 0)
        emit(r, inside ? MX_PART_REASONING : MX_PART_ANSWER, n);
    mx_strbuf_clear(&r->held);
}
