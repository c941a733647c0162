/* Splits a streamed answer into reasoning and answer at <think> and </think>. */
#include "cli/reasoning.h"

#include <string.h>

static const char OPEN[] = "<think>";
static const char CLOSE[] = "</think>";

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

static bool ends_with(const char *s, size_t n, const char *tag)
{
    size_t t = strlen(tag);
    return n >= t && memcmp(s + n - t, tag, t) == 0;
}

void mx_reasoning_init(struct mx_reasoning *r, const char *prompt, size_t len, mx_answer_fn *emit,
                       void *arg)
{
    size_t n = trimmed(prompt, len);
    *r = (struct mx_reasoning){.emit = emit, .arg = arg};
    mx_strbuf_init(&r->held, 0);
    if (ends_with(prompt, n, OPEN))
        r->state = MX_REASONING_BEGIN;
    else if (ends_with(prompt, n, CLOSE))
        r->state = MX_REASONING_END;
}

void mx_reasoning_free(struct mx_reasoning *r)
{
    mx_strbuf_free(&r->held);
}

/* Drops the first n bytes held. */
static void drop(struct mx_reasoning *r, size_t n)
{
    if (n == 0 || !r->held.data)
        return;
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

static const char *find_tag(const char *s, size_t n, const char *tag)
{
    return memmem(s, n, tag, strlen(tag));
}

/* Each step handles what is held in the current state and returns true when the state changed, so
 * that the rest must be looked at again. */

static bool step_unknown(struct mx_reasoning *r)
{
    size_t skip = leading_blanks(r), rest = r->held.len - skip, tag = strlen(OPEN);
    size_t n = rest < tag ? rest : tag;
    if (memcmp(r->held.data + skip, OPEN, n) != 0) {
        r->state = MX_REASONING_ANSWER;
        return true;
    }
    if (n < tag)
        return false;
    drop(r, skip + tag);
    r->state = MX_REASONING_BEGIN;
    return true;
}

static bool step_begin(struct mx_reasoning *r)
{
    drop(r, leading_blanks(r));
    if (r->held.len == 0)
        return false;
    r->state = MX_REASONING_INSIDE;
    return true;
}

static bool step_inside(struct mx_reasoning *r)
{
    const char *s = r->held.data, *end = find_tag(s, r->held.len, CLOSE);
    if (end) {
        size_t n = (size_t)(end - s), text = trimmed(s, n);
        emit(r, MX_ANSWER_PART_REASONING, text);
        drop(r, n - text + strlen(CLOSE));
        r->state = MX_REASONING_END;
        return true;
    }
    /* Blanks may turn out to be the last ones, and then are dropped. */
    size_t n = r->held.len - partial_tag(s, r->held.len, CLOSE);
    emit(r, MX_ANSWER_PART_REASONING, trimmed(s, n));
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
    r->state = MX_REASONING_ANSWER;
    return true;
}

static bool step(struct mx_reasoning *r)
{
    switch (r->state) {
    case MX_REASONING_UNKNOWN: return step_unknown(r);
    case MX_REASONING_BEGIN: return step_begin(r);
    case MX_REASONING_INSIDE: return step_inside(r);
    case MX_REASONING_END: return step_end(r);
    case MX_REASONING_ANSWER: emit(r, MX_ANSWER_PART_ANSWER, r->held.len); return false;
    }
    return false;
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

void mx_reasoning_finish(struct mx_reasoning *r)
{
    size_t n = trimmed(r->held.data ? r->held.data : "", r->held.len);
    bool inside = r->state == MX_REASONING_BEGIN || r->state == MX_REASONING_INSIDE;
    if (n > 0)
        emit(r, inside ? MX_ANSWER_PART_REASONING : MX_ANSWER_PART_ANSWER, n);
    mx_strbuf_clear(&r->held);
}
