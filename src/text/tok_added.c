/* Added tokens: finding them in text.
 *
 * The sorted array serves as a trie: reading one more byte narrows the range of patterns that start
 * with what was read. A pattern that ends there is the first of its range. */
#include "text/tok_added.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

mtplx_status mx_added_put(struct mx_added_set *set, struct mx_added_token token, mtplx_error *err)
{
    if (token.len > MX_ADDED_LEN_MAX)
        return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                        "added token %d has %u bytes, more than the %d supported", token.id,
                        token.len, MX_ADDED_LEN_MAX);
    if (set->n == set->cap) {
        size_t cap = set->cap ? set->cap * 2 : 64;
        struct mx_added_token *v = realloc(set->v, cap * sizeof *v);
        if (!v)
            return mx_error_nomem(err, "added tokens", cap * sizeof *v);
        set->v = v;
        set->cap = cap;
    }
    char *text = malloc(token.len);
    if (!text)
        return mx_error_nomem(err, "an added token", token.len);
    memcpy(text, token.text, token.len);
    token.text = text;
    set->v[set->n++] = token;
    return MTPLX_OK;
}

void mx_added_free(struct mx_added_set *set)
{
    for (size_t i = 0; i < set->n; i++)
        free((char *)set->v[i].text);
    free(set->v);
    *set = (struct mx_added_set){0};
}

static int compare_tokens(const void *a, const void *b)
{
    const struct mx_added_token *x = a, *y = b;
    int c = memcmp(x->text, y->text, x->len < y->len ? x->len : y->len);
    if (c != 0)
        return c;
    return x->len != y->len ? (x->len < y->len ? -1 : 1) : (x->id > y->id) - (x->id < y->id);
}

void mx_added_ready(struct mx_added_set *set)
{
    if (set->n > 0)
        qsort(set->v, set->n, sizeof *set->v, compare_tokens);
    for (size_t b = 0, i = 0; b <= 256; b++) {
        while (i < set->n && (uint8_t)set->v[i].text[0] < b)
            i++;
        set->first[b] = (uint32_t)i;
    }
}

/* First of v[lo..hi) whose byte at `depth` is at least `byte`; patterns that end there come first.
 */
static uint32_t lower_bound(const struct mx_added_set *set, uint32_t lo, uint32_t hi, size_t depth,
                            int byte)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        const struct mx_added_token *t = &set->v[mid];
        int have = t->len > depth ? (uint8_t)t->text[depth] : -1;
        if (have < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The longest pattern at the start of s[0..n), or NULL. */
static const struct mx_added_token *longest(const struct mx_added_set *set, const char *s, size_t n)
{
    uint8_t byte = (uint8_t)s[0];
    uint32_t lo = set->first[byte], hi = set->first[byte + 1];
    const struct mx_added_token *best = NULL;
    for (size_t depth = 1; lo < hi; depth++) {
        if (set->v[lo].len == depth)
            best = &set->v[lo];
        if (depth == n)
            break;
        byte = (uint8_t)s[depth];
        lo = lower_bound(set, lo, hi, depth, byte);
        hi = lower_bound(set, lo, hi, depth, byte + 1);
    }
    return best;
}

/* Word characters as in UTS #18 annex C. utf8proc has no Alphabetic property, but the symbols that
 * have it are these enclosed letters. */
static bool is_word(uint32_t cp)
{
    if ((cp >= 0x24b6 && cp <= 0x24e9) || (cp >= 0x1f130 && cp <= 0x1f149) ||
        (cp >= 0x1f150 && cp <= 0x1f169) || (cp >= 0x1f170 && cp <= 0x1f189))
        return true;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return cp == 0x200c || cp == 0x200d;
    }
}

static bool is_space(uint32_t cp)
{
    return cp == ' ' || (cp >= 9 && cp <= 13) || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f ||
           cp == 0x205f || cp == 0x3000;
}

/* Start of the code point that ends before `end` > 0. */
static size_t previous(const char *s, size_t end)
{
    do
        end--;
    while (end > 0 && ((uint8_t)s[end] & 0xc0) == 0x80);
    return end;
}

static uint32_t code_point(const char *s, size_t n)
{
    uint32_t cp = 0xfffd;
    mx_utf8_decode(s, n, &cp);
    return cp;
}

static bool touches_word(const struct mx_added_iter *it, size_t start, size_t end)
{
    if (start > 0) {
        size_t before = previous(it->s, start);
        if (is_word(code_point(it->s + before, start - before)))
            return true;
    }
    return end < it->n && is_word(code_point(it->s + end, it->n - end));
}

/* Never back into the last token; forward to its end where that has stripped past `start`. */
static size_t strip_left(const struct mx_added_iter *it, size_t start)
{
    if (start < it->done)
        return it->done;
    while (start > it->done) {
        size_t before = previous(it->s, start);
        if (before < it->done || !is_space(code_point(it->s + before, start - before)))
            break;
        start = before;
    }
    return start;
}

/* Runs of white space are scanned once, however many tokens they hold. */
static size_t strip_right(struct mx_added_iter *it, size_t end)
{
    if (end >= it->strip_from && end <= it->strip_to)
        return it->strip_to;
    it->strip_from = end;
    while (end < it->n) {
        uint32_t cp = 0;
        int used = mx_utf8_decode(it->s + end, it->n - end, &cp);
        if (used <= 0 || !is_space(cp))
            break;
        end += (size_t)used;
    }
    it->strip_to = end;
    return end;
}

static const struct mx_added_token *search(struct mx_added_iter *it)
{
    const uint32_t *first = it->set->first;
    for (; it->at < it->n; it->at++) {
        uint8_t byte = (uint8_t)it->s[it->at];
        if (first[byte] == first[byte + 1])
            continue;
        const struct mx_added_token *t = longest(it->set, it->s + it->at, it->n - it->at);
        if (t)
            return t;
    }
    return NULL;
}

bool mx_added_next(struct mx_added_iter *it, struct mx_added_match *m)
{
    const struct mx_added_token *t;
    if (it->set->n == 0)
        return false;
    while ((t = search(it))) {
        size_t start = it->at, end = start + t->len;
        it->at = end;
        if (t->single_word && touches_word(it, start, end))
            continue;
        if (t->lstrip)
            start = strip_left(it, start);
        if (t->rstrip)
            end = strip_right(it, end);
        if (start >= end) /* all of it is white space that the last token took along */
            continue;
        it->done = end;
        *m = (struct mx_added_match){start, end, t->id};
        return true;
    }
    return false;
}
