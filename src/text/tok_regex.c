/* Regular expressions of tokenizer.json: translation, compilation, bounded matching.
 *
 * What differs between Oniguruma's Ruby syntax and PCRE2, and what is done about it:
 *   - \s: PCRE2 adds U+180E; \w: PCRE2 lacks marks; \h: another meaning; [:punct:] and the like:
 *     other sets. Spelled out as classes. \p{Han}: PCRE2 takes Script_Extensions. Becomes sc:Han.
 *   - ^ and $ match at every line: PCRE2_MULTILINE; the flag m there means s here.
 *   - X{n,m}+ is a repeated group there, a possessive quantifier here. Becomes X{n,} where equal.
 *   - set intersection (&&) and nested classes do not exist in PCRE2. Refused.
 *   - (?i) in the middle of a branch scopes differently. Refused, as are recursion, conditionals
 *     and verbs.
 *
 * How matching is bounded: PCRE2 counts backtracks per start position (MATCH_LIMIT, scaled to the
 * text so that a long run of spaces passes), and searches go in windows of start positions so that
 * the CPU time of the whole call can be checked in between. */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "text/tok_regex.h"

#include <pcre2.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PATTERN_MAX 16384
#define JIT_STACK_MAX (4u << 20)
#define HEAP_LIMIT_KIB 65536
#define BASE_NS 2000000000u /* CPU time of one call: 2 s, and 10 s for each MB of text */
#define NS_PER_BYTE 10000u
#define WINDOW_MIN 32 /* start positions searched between looks at the clock */
#define WINDOW_MAX 8192
#define WINDOW_NS 1000000u
#define CLOCK_EVERY 256 /* searches that succeed at once between looks at the clock */

/* ---- Translation ---- */

#define SPACE_SET                                                                                  \
    "\\p{Z}\\t-\\r\\x{85}\\p{Zs}" /* begins and ends with a property: no range forms */
#define WORD_SET "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define LATIN1_DIGITS                                                                              \
    "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}" /* Oniguruma's \w has these outside a class */
#define HEX_SET "0-9a-fA-F"

struct translate {
    const char *p, *end;
    struct mx_strbuf *out;
    mtplx_error *err;
};

static mtplx_status refuse(const struct translate *t, const char *what)
{
    return mx_error(t->err, MTPLX_ERR_UNSUPPORTED, "the pattern uses %s, which is not supported",
                    what);
}

static const char *shorthand_set(char c, bool in_class)
{
    switch (c | 0x20) {
    case 's': return SPACE_SET;
    case 'w': return in_class ? WORD_SET : WORD_SET LATIN1_DIGITS;
    case 'h': return HEX_SET;
    default: return NULL;
    }
}

static void copy_char(struct translate *t)
{
    mx_strbuf_putc(t->out, *t->p++);
}

/* Whether PCRE2 knows `pattern`; running out of memory fails the translation. */
static bool compiles(struct translate *t, const char *pattern)
{
    int code = 0;
    PCRE2_SIZE at;
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &at, NULL);
    pcre2_code_free(re);
    if (!re && code == PCRE2_ERROR_HEAP_FAILED)
        t->out->failed = true;
    return re != NULL;
}

/* The {...} of \p{...} and \x{...}. A script name means the Script property, where PCRE2 alone
 * would take Script_Extensions; whether a name is a script is asked of PCRE2 itself. */
static void translate_braces(struct translate *t, bool property)
{
    const char *open = t->p + 1;
    while (t->p < t->end && *t->p != '}')
        t->p++;
    bool caret = property && open < t->p && *open == '^';
    int n = (int)(t->p - open - caret);
    const char *name = open + caret;
    char probe[64];
    snprintf(probe, sizeof probe, "\\p{sc:%.*s}", n > 40 ? 40 : n, name);
    bool script = property && n > 2 && n <= 40 && compiles(t, probe);
    mx_strbuf_printf(t->out, "{%s%s%.*s", caret ? "^" : "", script ? "sc:" : "", n, name);
    if (t->p < t->end)
        copy_char(t);
}

/* \uHHHH, which PCRE2 spells \x{HHHH}. */
static mtplx_status translate_unicode_escape(struct translate *t)
{
    t->p += 2;
    for (int i = 0; i < 4; i++)
        if (t->p + i >= t->end || !isxdigit((unsigned char)t->p[i]))
            return refuse(t, "a \\u escape without four hex digits");
    mx_strbuf_printf(t->out, "\\x{%.4s}", t->p);
    t->p += 4;
    return MTPLX_OK;
}

/* At a backslash. */
static mtplx_status translate_escape(struct translate *t, bool in_class)
{
    if (t->end - t->p < 2)
        return refuse(t, "a backslash at its end");
    char c = t->p[1];
    const char *set = shorthand_set(c, in_class);
    bool negated = set && c >= 'A' && c <= 'Z';
    if (c == 'u')
        return translate_unicode_escape(t);
    if (isalpha((unsigned char)c) && !strchr("sSwWhHdDpPxtrnfvaebBAzZ", c))
        return refuse(t, "an escape other than \\s \\w \\h \\d \\p \\x \\t \\r \\n \\b \\A \\z");
    if (set && in_class && negated && c != 'S')
        return refuse(t, "\\W or \\H inside a character class");
    t->p += 2;
    if (!set || (in_class && negated)) {
        /* Inside a class \S cannot be spelled out; PCRE2's own differs in U+180E alone. */
        mx_strbuf_putc(t->out, '\\');
        mx_strbuf_putc(t->out, c);
        if (strchr("pPx", c) && c != '\0' && t->p < t->end && *t->p == '{')
            translate_braces(t, c != 'x');
    } else if (in_class) {
        mx_strbuf_puts(t->out, set);
    } else {
        mx_strbuf_printf(t->out, "[%s%s]", negated ? "^" : "", set);
    }
    return MTPLX_OK;
}

static bool looking_at(const struct translate *t, const char *s)
{
    size_t n = strlen(s);
    return (size_t)(t->end - t->p) >= n && memcmp(t->p, s, n) == 0;
}

/* At '[' inside a class: only [:name:] is known, spelled out since PCRE2's sets are other ones. */
static mtplx_status translate_posix(struct translate *t)
{
    static const char *const sets[][2] = {
        {"[:alpha:]", "\\p{Alphabetic}"},
        {"[:digit:]", "\\p{Nd}"},
        {"[:alnum:]", "\\p{Alphabetic}\\p{Nd}"},
        {"[:upper:]", "\\p{Uppercase}"},
        {"[:lower:]", "\\p{Lowercase}"},
        {"[:punct:]", "\\p{P}\\p{S}"},
        {"[:space:]", SPACE_SET},
        {"[:word:]", WORD_SET},
        {"[:xdigit:]", HEX_SET},
    };
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        if (!looking_at(t, sets[i][0]))
            continue;
        mx_strbuf_puts(t->out, sets[i][1]);
        t->p += strlen(sets[i][0]);
        return MTPLX_OK;
    }
    return refuse(t, "a character class inside a character class");
}

/* At the '[' of a class. */
static mtplx_status translate_class(struct translate *t)
{
    mtplx_status status = MTPLX_OK;
    copy_char(t);
    if (t->p < t->end && *t->p == '^')
        copy_char(t);
    if (t->p < t->end && *t->p == ']') /* first: an ordinary character */
        copy_char(t);
    while (!status && t->p < t->end && *t->p != ']') {
        if (*t->p == '\\')
            status = translate_escape(t, true);
        else if (*t->p == '[')
            status = translate_posix(t);
        else if (looking_at(t, "&&"))
            status = refuse(t, "the intersection of character classes (&&)");
        else
            copy_char(t);
    }
    if (status)
        return status;
    if (t->p == t->end)
        return refuse(t, "a character class without an end");
    copy_char(t);
    return MTPLX_OK;
}

/* At "(?" with option letters: (?im-x:...) or (?i). Ruby's m is PCRE2's s. */
static mtplx_status translate_options(struct translate *t)
{
    char before = t->out->len > 0 ? t->out->data[t->out->len - 1] : '(';
    copy_char(t);
    copy_char(t);
    while (t->p < t->end && strchr("im-", *t->p) && *t->p != '\0') {
        mx_strbuf_putc(t->out, *t->p == 'm' ? 's' : *t->p);
        t->p++;
    }
    if (t->p == t->end || (*t->p != ':' && *t->p != ')'))
        return refuse(t, "a group other than (?: (?= (?! (?> (?<= (?<! (?i (?m");
    if (*t->p == ')' && !strchr("(:|", before))
        return refuse(t, "an option such as (?i) in the middle of a branch");
    copy_char(t);
    return MTPLX_OK;
}

/* At '('. */
static mtplx_status translate_group(struct translate *t)
{
    static const char *const plain[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"};
    if (looking_at(t, "(*"))
        return refuse(t, "a verb such as (*SKIP)");
    if (!looking_at(t, "(?")) {
        copy_char(t);
        return MTPLX_OK;
    }
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        if (!looking_at(t, plain[i]))
            continue;
        mx_strbuf_puts(t->out, plain[i]);
        t->p += strlen(plain[i]);
        return MTPLX_OK;
    }
    return translate_options(t);
}

/* Reads digits; false when there are none or too many. */
static bool read_count(const char **p, const char *end, unsigned *value)
{
    const char *start = *p;
    for (*value = 0; *p < end && **p >= '0' && **p <= '9' && *p - start < 6; (*p)++)
        *value = *value * 10 + (unsigned)(**p - '0');
    return *p > start;
}

/* At '{'. A repeated count {n,m}+ is read as Ruby does: one or more times n to m, which is n or
 * more where the ranges n..m, 2n..2m, ... leave no gap. */
static mtplx_status translate_brace(struct translate *t)
{
    const char *p = t->p + 1;
    unsigned lo = 0, hi = 0;
    bool has_lo = read_count(&p, t->end, &lo), has_hi = false, comma = p < t->end && *p == ',';
    if (comma) {
        p++;
        has_hi = read_count(&p, t->end, &hi);
    }
    if (p == t->end || *p != '}' || (!has_lo && !has_hi)) {
        copy_char(t); /* not a quantifier */
        return MTPLX_OK;
    }
    p++;
    if (!comma)
        hi = lo;
    bool open_ended = comma && !has_hi;
    if (p < t->end && *p == '?' && !comma)
        return refuse(t, "a quantifier {n}?");
    if (p < t->end && *p == '+') {
        if (!open_ended && (hi < lo || hi < 1 || hi + 1 < 2 * lo))
            return refuse(t, "a quantifier {n,m}+");
        open_ended = true;
        p++;
    }
    t->p = p;
    if (open_ended)
        mx_strbuf_printf(t->out, "{%u,}", lo);
    else if (comma)
        mx_strbuf_printf(t->out, "{%u,%u}", lo, hi);
    else
        mx_strbuf_printf(t->out, "{%u}", lo);
    return MTPLX_OK;
}

mtplx_status mx_regex_translate(const char *pattern, size_t len, struct mx_strbuf *out,
                                mtplx_error *err)
{
    struct translate t = {.p = pattern, .end = pattern + len, .out = out, .err = err};
    mtplx_status status = MTPLX_OK;
    while (!status && t.p < t.end) {
        switch (*t.p) {
        case '\\': status = translate_escape(&t, false); break;
        case '[': status = translate_class(&t); break;
        case '(': status = translate_group(&t); break;
        case '{': status = translate_brace(&t); break;
        default: copy_char(&t); break;
        }
    }
    if (!status && out->failed)
        return mx_error_nomem(err, "a pattern", len);
    return status;
}

/* ---- Compilation ---- */

static mtplx_status compile_error(int code, size_t at, mtplx_error *err)
{
    PCRE2_UCHAR text[128];
    if (code == PCRE2_ERROR_HEAP_FAILED)
        return mx_error_nomem(err, "a pattern", 0);
    if (pcre2_get_error_message(code, text, sizeof text) < 0)
        text[0] = '\0';
    return mx_error(err, MTPLX_ERR_UNSUPPORTED, "the pattern does not compile at offset %zu: %s",
                    at, (const char *)text);
}

static mtplx_status compile(struct mx_regex *re, const char *s, size_t n, uint32_t options,
                            mtplx_error *err)
{
    pcre2_compile_context *ctx = pcre2_compile_context_create(NULL);
    if (!ctx)
        return mx_error_nomem(err, "a pattern", n);
    int code = 0;
    PCRE2_SIZE at = 0;
    pcre2_set_newline(ctx, PCRE2_NEWLINE_LF);
    re->code = pcre2_compile((PCRE2_SPTR)s, n, options | PCRE2_UTF | PCRE2_USE_OFFSET_LIMIT, &code,
                             &at, ctx);
    pcre2_compile_context_free(ctx);
    if (!re->code)
        return compile_error(code, at, err);
    /* Where the system has no JIT the interpreter gives the same matches. */
    pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE);
    return MTPLX_OK;
}

mtplx_status mx_regex_compile(struct mx_regex *re, const char *pattern, size_t len, bool literal,
                              mtplx_error *err)
{
    re->code = NULL;
    if (len > PATTERN_MAX)
        return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                        "the pattern has %zu bytes, more than the %d supported", len, PATTERN_MAX);
    if (literal)
        return compile(re, pattern, len, PCRE2_LITERAL, err);
    struct mx_strbuf translated;
    mx_strbuf_init(&translated, 0);
    mtplx_status status = mx_regex_translate(pattern, len, &translated, err);
    if (!status)
        status = compile(re, translated.data ? translated.data : "", translated.len,
                         PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, err);
    mx_strbuf_free(&translated);
    return status;
}

void mx_regex_free(struct mx_regex *re)
{
    pcre2_code_free(re->code);
    re->code = NULL;
}

/* ---- Matching ---- */

struct mx_regex_work {
    pcre2_match_data *data;
    pcre2_match_context *ctx;
    pcre2_jit_stack *stack; /* made when a pattern outgrows the machine stack PCRE2 uses first */
    uint64_t started_ns, budget_ns;
    unsigned searches;
};

/* CPU time of this thread, so that a busy machine does not turn into errors. */
static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

struct mx_regex_work *mx_regex_work_new(size_t text_len)
{
    struct mx_regex_work *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    w->data = pcre2_match_data_create(1, NULL);
    w->ctx = pcre2_match_context_create(NULL);
    if (!w->data || !w->ctx) {
        mx_regex_work_free(w);
        return NULL;
    }
    uint32_t len = text_len > INT32_MAX ? INT32_MAX : (uint32_t)text_len;
    pcre2_set_match_limit(w->ctx, 100000 + 4 * (len > INT32_MAX / 4 ? INT32_MAX / 4 : len));
    pcre2_set_heap_limit(w->ctx, HEAP_LIMIT_KIB);
    w->started_ns = cpu_ns();
    w->budget_ns = BASE_NS + (uint64_t)len * NS_PER_BYTE;
    return w;
}

void mx_regex_work_free(struct mx_regex_work *w)
{
    if (!w)
        return;
    pcre2_match_data_free(w->data);
    pcre2_match_context_free(w->ctx);
    pcre2_jit_stack_free(w->stack);
    free(w);
}

void mx_regex_iter_init(struct mx_regex_iter *it, const struct mx_regex *re, const char *s,
                        size_t n)
{
    *it = (struct mx_regex_iter){.re = re, .s = s, .n = n, .last_end = SIZE_MAX};
}

static int search_once(struct mx_regex_work *w, const struct mx_regex_iter *it, size_t from)
{
    return pcre2_match(it->re->code, (PCRE2_SPTR)it->s, it->n, from, PCRE2_NO_UTF_CHECK, w->data,
                       w->ctx);
}

/* Matches starting at `from`..`limit`; the larger JIT stack is made on the first need. */
static int search_window(struct mx_regex_work *w, const struct mx_regex_iter *it, size_t from,
                         size_t limit)
{
    pcre2_set_offset_limit(w->ctx, limit);
    int rc = search_once(w, it, from);
    if (rc != PCRE2_ERROR_JIT_STACKLIMIT || w->stack)
        return rc;
    w->stack = pcre2_jit_stack_create(65536, JIT_STACK_MAX, NULL);
    if (!w->stack)
        return PCRE2_ERROR_NOMEMORY;
    pcre2_jit_stack_assign(w->ctx, NULL, w->stack);
    return search_once(w, it, from);
}

/* First start position after `at` that is not inside a code point. */
static size_t next_start(const struct mx_regex_iter *it, size_t at)
{
    do
        at++;
    while (at < it->n && ((uint8_t)it->s[at] & 0xc0) == 0x80);
    return at;
}

static mtplx_status match_error(int rc, mtplx_error *err)
{
    if (rc == PCRE2_ERROR_NOMEMORY)
        return mx_error_nomem(err, "a pattern match", 0);
    return mx_error(err, MTPLX_ERR_LIMIT,
                    "a pattern of the tokenizer takes too many steps on this text (PCRE2 %d)", rc);
}

static mtplx_status check_time(const struct mx_regex_work *w, uint64_t now, mtplx_error *err)
{
    if (now - w->started_ns <= w->budget_ns)
        return MTPLX_OK;
    return mx_error(err, MTPLX_ERR_LIMIT,
                    "the patterns of the tokenizer take more than %.1f s on this text",
                    (double)w->budget_ns * 1e-9);
}

/* Searches on where the first window found nothing, in windows that grow while they are cheap. */
static mtplx_status search_on(struct mx_regex_work *w, const struct mx_regex_iter *it, size_t from,
                              int *rc, mtplx_error *err)
{
    uint64_t before = cpu_ns();
    size_t window = WINDOW_MIN;
    while (*rc == PCRE2_ERROR_NOMATCH && from <= it->n) {
        size_t limit = it->n - from > window ? from + window : it->n;
        *rc = search_window(w, it, from, limit);
        from = next_start(it, limit);
        uint64_t now = cpu_ns();
        mtplx_status status = check_time(w, now, err);
        if (status)
            return status;
        if (now - before < WINDOW_NS && window < WINDOW_MAX)
            window *= 2;
        else if (now - before > WINDOW_NS && window > WINDOW_MIN)
            window /= 2;
        before = now;
    }
    return MTPLX_OK;
}

static mtplx_status search(struct mx_regex_work *w, struct mx_regex_iter *it, bool *found,
                           mtplx_error *err)
{
    size_t limit = it->n - it->at > WINDOW_MIN ? it->at + WINDOW_MIN : it->n;
    int rc = search_window(w, it, it->at, limit);
    mtplx_status status = MTPLX_OK;
    if (++w->searches % CLOCK_EVERY == 0)
        status = check_time(w, cpu_ns(), err);
    if (!status && rc == PCRE2_ERROR_NOMATCH && limit < it->n)
        status = search_on(w, it, next_start(it, limit), &rc, err);
    if (status)
        return status;
    *found = rc >= 0;
    if (rc < 0)
        return rc == PCRE2_ERROR_NOMATCH ? MTPLX_OK : match_error(rc, err);
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(w->data);
    if (span[0] < it->at || span[1] < span[0])
        return match_error(PCRE2_ERROR_BADOFFSET, err);
    it->start = span[0];
    it->end = span[1];
    return MTPLX_OK;
}

mtplx_status mx_regex_next(struct mx_regex_work *w, struct mx_regex_iter *it, bool *found,
                           mtplx_error *err)
{
    *found = false;
    while (it->at <= it->n) {
        mtplx_status status = search(w, it, found, err);
        if (status || !*found)
            return status;
        if (it->start == it->end && it->end == it->last_end) {
            it->at = next_start(it, it->at);
            continue;
        }
        it->at = it->last_end = it->end;
        return MTPLX_OK;
    }
    *found = false;
    return MTPLX_OK;
}
