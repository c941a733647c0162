/* The vocabulary as a trie in preorder, and by kinds of text.
 *
 * Characters fall into 64 classes (mx_token_class): lower-case letters and punctuation one each, so
 * that a set of classes says which tokens are plain text to a state that stops at a few characters.
 * Class 63 stands for all that is not ASCII. */
#include "base/clock.h"
#include "base/utf8.h"
#include "text/grammar_int.h"

#include <stdlib.h>
#include <string.h>

enum { CLASS_CONTROL, CLASS_NEWLINE, CLASS_SPACE, CLASS_DIGIT, CLASS_UPPER, CLASS_LOWER };
enum { CLASS_PUNCT = CLASS_LOWER + 26, CLASS_OTHER = 63, CHARS_MAX = 255, TOKEN_MAX = 4096 };

int mx_token_class(uint8_t c)
{
    if (c >= 0x80)
        return CLASS_OTHER;
    if (c == '\n')
        return CLASS_NEWLINE;
    if (c < ' ' || c == 0x7f)
        return CLASS_CONTROL;
    if (c == ' ')
        return CLASS_SPACE;
    if (c >= '0' && c <= '9')
        return CLASS_DIGIT;
    if (c >= 'A' && c <= 'Z')
        return CLASS_UPPER;
    if (c >= 'a' && c <= 'z')
        return CLASS_LOWER + (c - 'a');
    /* 15 before the digits, 7 before A, 6 before a, 4 behind z */
    int base = c < '0' ? c - '!' : c < 'A' ? 15 + c - ':' : c < 'a' ? 22 + c - '[' : 28 + c - '{';
    return CLASS_PUNCT + base;
}

uint64_t mx_token_json_stops(void)
{
    return UINT64_C(1) << mx_token_class(0) | UINT64_C(1) << mx_token_class('\n') |
           UINT64_C(1) << mx_token_class('"') | UINT64_C(1) << mx_token_class('\\');
}

bool mx_token_is_stop(const struct mx_token_table *t, int32_t id)
{
    for (int i = 0; i < t->n_stops; i++)
        if (t->stops[i] == id)
            return true;
    return false;
}

/* ---- Sorting ---- */

struct entry {
    const uint8_t *s;
    uint32_t len;
    int32_t id;
};

static int by_bytes(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    uint32_t n = x->len < y->len ? x->len : y->len;
    int d = memcmp(x->s, y->s, n);
    if (d)
        return d;
    if (x->len != y->len)
        return x->len < y->len ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Sorts the tokens into entries, stop and special tokens aside. */
static bool sort_out(struct mx_token_table *t, struct entry *e, uint32_t *n)
{
    int size = mx_tokenizer_size(t->tokenizer);
    for (int32_t id = 0; id < t->vocab && id < size; id++) {
        size_t len;
        const char *s = mx_tokenizer_bytes(t->tokenizer, id, &len);
        if (mx_token_is_stop(t, id) || len == 0 || len > TOKEN_MAX)
            continue;
        t->max_depth = (int)len > t->max_depth ? (int)len : t->max_depth;
        t->known[id / 64] |= UINT64_C(1) << (id % 64);
        if (!mx_tokenizer_is_special(t->tokenizer, id)) {
            e[(*n)++] = (struct entry){(const uint8_t *)s, (uint32_t)len, id};
            continue;
        }
        if ((t->n_specials & (t->n_specials - 1)) == 0) {
            size_t cap = t->n_specials ? 2 * (size_t)t->n_specials : 1;
            void *v = realloc(t->specials, cap * sizeof *t->specials);
            if (!v)
                return false;
            t->specials = v;
        }
        t->specials[t->n_specials++] = (struct mx_tspecial){id, s, len};
    }
    if (*n > 1)
        qsort(e, *n, sizeof *e, by_bytes);
    return true;
}

/* ---- Trie ---- */

static uint32_t shared_prefix(const struct entry *a, const struct entry *b)
{
    uint32_t i = 0;
    while (i < a->len && i < b->len && a->s[i] == b->s[i])
        i++;
    return i;
}

static bool build_nodes(struct mx_trie *t, const struct entry *e, uint32_t n)
{
    uint32_t total = 0;
    for (uint32_t i = 0; i < n; i++)
        total += e[i].len - (i ? shared_prefix(&e[i - 1], &e[i]) : 0);
    t->nodes = calloc((size_t)total + 1, sizeof *t->nodes);
    t->order = malloc(((size_t)n + 1) * sizeof *t->order);
    uint32_t *path = malloc((TOKEN_MAX + 1) * sizeof *path), depth = 0;
    if (!t->nodes || !t->order || !path) {
        free(path);
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t shared = i ? shared_prefix(&e[i - 1], &e[i]) : 0;
        for (; depth > shared; depth--)
            t->nodes[path[depth]].skip = t->n_nodes;
        for (; depth < e[i].len; depth++) {
            path[depth + 1] = t->n_nodes;
            t->nodes[t->n_nodes++] = (struct mx_tnode){
                .byte = e[i].s[depth], .depth = (uint16_t)(depth + 1), .first = i};
        }
        t->order[i] = e[i].id;
    }
    for (; depth > 0; depth--)
        t->nodes[path[depth]].skip = t->n_nodes;
    t->nodes[t->n_nodes].first = n;
    t->nodes[t->n_nodes].skip = t->n_nodes;
    t->n_tokens = n;
    free(path);
    return true;
}

/* ---- Text ---- */

/* Bytes that a UTF-8 character still needs, and which the next may be; -1: not UTF-8. */
struct utf8_place {
    int left;
    uint8_t lo, hi;
};

static struct utf8_place utf8_next(struct utf8_place p, uint8_t b)
{
    static const struct utf8_place bad = {-1, 0, 0};
    if (p.left < 0)
        return bad;
    if (p.left > 0)
        return b < p.lo || b > p.hi ? bad : (struct utf8_place){p.left - 1, 0x80, 0xbf};
    if (b < 0x80)
        return (struct utf8_place){0, 0, 0};
    if (b < 0xc2 || b > 0xf4)
        return bad;
    int left = b < 0xe0 ? 1 : b < 0xf0 ? 2 : 3;
    return (struct utf8_place){left,
                               b == 0xe0   ? 0xa0
                               : b == 0xf0 ? 0x90
                                           : 0x80,
                               b == 0xed   ? 0x9f
                               : b == 0xf4 ? 0x8f
                                           : 0xbf};
}

/* Sets, characters and UTF-8 of all nodes. Children come behind their parents, so one pass down
 * finds the place within a character and one pass up gathers what is below. */
static bool describe(struct mx_trie *t, int max_depth)
{
    struct utf8_place *place = malloc(((size_t)t->n_nodes + 1) * sizeof *place);
    uint32_t *path = calloc((size_t)max_depth + 2, sizeof *path);
    uint32_t *parent = malloc(((size_t)t->n_nodes + 1) * sizeof *parent);
    bool *bad = calloc((size_t)t->n_nodes + 1, sizeof *bad);
    bool ok = place && path && parent && bad;
    for (uint32_t i = 0; i < t->n_nodes && ok; i++) {
        struct mx_tnode *x = &t->nodes[i];
        parent[i] = x->depth > 1 ? path[x->depth - 1] : UINT32_MAX;
        path[x->depth] = i;
        struct utf8_place before = x->depth > 1 ? place[parent[i]] : (struct utf8_place){0, 0, 0};
        place[i] = utf8_next(before, x->byte);
        x->utf8 = before.left == 0;
        bad[i] = place[i].left < 0;
        x->set = UINT64_C(1) << mx_token_class(x->byte);
    }
    for (uint32_t i = t->n_nodes; i-- > 0 && ok;) {
        struct mx_tnode *x = &t->nodes[i];
        if (x->utf8 && x->chars < CHARS_MAX)
            x->chars++;
        x->utf8 = x->utf8 && !bad[i];
        if (parent[i] == UINT32_MAX)
            continue;
        struct mx_tnode *up = &t->nodes[parent[i]];
        up->set |= x->set;
        bad[parent[i]] = bad[parent[i]] || bad[i];
        up->chars = up->chars > x->chars ? up->chars : x->chars;
    }
    free(place);
    free(path);
    free(parent);
    free(bad);
    return ok;
}

/* Characters of a token, counting one that is cut at the end; -1: not UTF-8 or too many. */
static int count_chars(const struct entry *e, uint64_t *set)
{
    struct utf8_place p = {0, 0, 0};
    int n = 0;
    *set = 0;
    for (uint32_t i = 0; i < e->len; i++) {
        n += p.left == 0;
        p = utf8_next(p, e->s[i]);
        if (p.left < 0)
            return -1;
        *set |= UINT64_C(1) << mx_token_class(e->s[i]);
    }
    return n <= CHARS_MAX ? n : -1;
}

/* Counting sort of the tokens that are text. */
static bool sort_by_chars(struct mx_token_table *t, const struct entry *e, uint32_t n)
{
    uint32_t fill[CHARS_MAX + 2] = {0};
    uint64_t set;
    t->by_chars = malloc(((size_t)n + 1) * sizeof *t->by_chars);
    t->by_chars_set = malloc(((size_t)n + 1) * sizeof *t->by_chars_set);
    t->json_text = calloc((size_t)t->words, sizeof *t->json_text);
    if (!t->by_chars || !t->by_chars_set || !t->json_text)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        int chars = count_chars(&e[i], &set);
        if (chars >= 0)
            fill[chars + 1]++;
    }
    for (int k = 0; k <= CHARS_MAX; k++) {
        fill[k + 1] += fill[k];
        t->chars_end[k] = fill[k + 1];
    }
    for (uint32_t i = 0; i < n; i++) {
        int chars = count_chars(&e[i], &set);
        if (chars < 0)
            continue;
        uint32_t at = fill[chars]++;
        t->by_chars[at] = e[i].id;
        t->by_chars_set[at] = set;
        if (!(set & mx_token_json_stops()))
            t->json_text[e[i].id / 64] |= UINT64_C(1) << (e[i].id % 64);
    }
    return true;
}

/* ---- Life ---- */

struct mx_token_table *mx_token_table_new(const struct mx_tokenizer *tokenizer, int vocab,
                                          const int32_t *stops, int n_stops, mtplx_error *err)
{
    if (vocab < 1 || vocab > 1 << 23 || n_stops < 0 || n_stops > 1024) {
        mx_error(err, MTPLX_ERR_ARGUMENT, "a table of %d tokens and %d stop tokens is out of range",
                 vocab, n_stops);
        return NULL;
    }
    struct mx_token_table *t = calloc(1, sizeof *t);
    struct entry *e = malloc((size_t)vocab * sizeof *e);
    uint32_t n = 0;
    bool ok = t && e;
    if (ok) {
        *t = (struct mx_token_table){.tokenizer = tokenizer,
                                     .vocab = vocab,
                                     .words = (vocab + 63) / 64,
                                     .n_stops = n_stops,
                                     .birth = mx_now_ns()};
        t->known = calloc((size_t)t->words, sizeof *t->known);
        t->stops = calloc((size_t)n_stops + 1, sizeof *t->stops);
        ok = t->known && t->stops;
    }
    if (ok && n_stops)
        memcpy(t->stops, stops, (size_t)n_stops * sizeof *stops);
    ok = ok && sort_out(t, e, &n) && build_nodes(&t->all, e, n) &&
         describe(&t->all, t->max_depth) && sort_by_chars(t, e, n);
    uint32_t marked = 0;
    for (uint32_t i = 0; i < n && ok; i++)
        if (!(t->json_text[e[i].id / 64] >> (e[i].id % 64) & 1))
            e[marked++] = e[i];
    ok = ok && build_nodes(&t->marked, e, marked) && describe(&t->marked, t->max_depth);
    free(e);
    if (!ok) {
        mx_error_nomem(err, "the token table", (size_t)vocab * sizeof *e);
        mx_token_table_free(t);
        return NULL;
    }
    return t;
}

void mx_token_table_free(struct mx_token_table *t)
{
    if (!t)
        return;
    free(t->all.nodes);
    free(t->all.order);
    free(t->marked.nodes);
    free(t->marked.order);
    free(t->by_chars);
    free(t->by_chars_set);
    free(t->json_text);
    free(t->specials);
    free(t->stops);
    free(t->known);
    free(t);
}
