/* Byte-pair encoding of one word.
 *
 * Words are short, so most are answered by a direct-mapped cache that lives for one encode call.
 * A miss is merged in place: up to SMALL_WORD symbols by scanning for the lowest rank, longer ones
 * with a binary heap over a linked list, which keeps a megabyte without a word break at
 * O(n log n).
 *
 * Invariants:
 *   1. In a merged list, a node's pair_rank is the rank of the pair that starts at it, or NO_RANK.
 *   2. A heap entry (rank, i) is stale unless node i has that pair_rank; ranks name pairs uniquely.
 */
#include "text/bpe.h"

#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_RANK UINT32_MAX
#define SMALL_WORD 48
#define CACHE_KEY 22
#define CACHE_IDS 10
#define CACHE_MAX 8192

struct cache_entry {
    uint8_t len, n; /* len 0: empty */
    char key[CACHE_KEY];
    int32_t ids[CACHE_IDS];
};

struct heap_entry {
    uint32_t rank, at;
};

/* A symbol of a long word and the pair that starts at it. */
struct node {
    uint32_t prev,
        next; /* neighbours; UINT32_MAX before the head, the symbol count after the tail */
    uint32_t pair_rank; /* NO_RANK: no merge, or the symbol is gone */
    int32_t sym, pair_id;
};

/* Arrays of a word's symbols, reused from word to word. */
struct mx_bpe_work {
    struct cache_entry *cache;
    uint32_t n_cache; /* power of two, or 0 */
    int32_t *sym;     /* [cap_sym] */
    size_t n_sym, cap_sym;
    struct node *nodes; /* [cap_list] */
    size_t cap_list;
    struct heap_entry *heap;
    size_t n_heap, cap_heap;
    struct mx_strbuf mapped; /* a word in the byte-level alphabet */
};

/* ---- Loading ---- */

static uint32_t pair_slot(const struct mx_bpe *b, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    key = (key ^ b->vocab->seed) * 0x9e3779b97f4a7c15u; /* the seed: see mx_vocab_init() */
    key = (key ^ key >> 32) * 0xd6e8feb86659fd93u;
    return (uint32_t)(key >> 32) & (b->n_merges - 1);
}

/* The rule for a pair, or NULL. */
static const struct mx_bpe_merge *find_merge(const struct mx_bpe *b, int32_t left, int32_t right)
{
    uint32_t mask = b->n_merges - 1;
    for (uint32_t i = pair_slot(b, left, right);; i = (i + 1) & mask) {
        const struct mx_bpe_merge *m = &b->merges[i];
        if (m->id < 0)
            return NULL;
        if (m->left == left && m->right == right)
            return m;
    }
}

/* A repeated pair takes the later rank, as in the reference tokenizer. */
static void put_merge(struct mx_bpe *b, struct mx_bpe_merge m)
{
    uint32_t mask = b->n_merges - 1, i = pair_slot(b, m.left, m.right);
    while (b->merges[i].id >= 0 && (b->merges[i].left != m.left || b->merges[i].right != m.right))
        i = (i + 1) & mask;
    b->merges[i] = m;
}

static mtplx_status alloc_merges(struct mx_bpe *b, size_t count, const char *field,
                                 mtplx_error *err)
{
    if (count > (1u << 28))
        return mx_error(err, MTPLX_ERR_FORMAT, "%s has %zu entries, too many", field, count);
    uint32_t n = 16;
    while (n < count * 2)
        n *= 2;
    b->merges = malloc(n * sizeof *b->merges);
    if (!b->merges)
        return mx_error_nomem(err, "the merge table", n * sizeof *b->merges);
    b->n_merges = n;
    memset(b->merges, 0xff, n * sizeof *b->merges);
    return MTPLX_OK;
}

struct span {
    const char *s;
    size_t n;
};

/* "left right", with one space. */
static bool split_text(const char *s, size_t n, struct span part[2])
{
    const char *space = memchr(s, ' ', n);
    if (!space || memchr(space + 1, ' ', n - (size_t)(space + 1 - s)))
        return false;
    part[0] = (struct span){s, (size_t)(space - s)};
    part[1] = (struct span){space + 1, n - part[0].n - 1};
    return true;
}

static bool split_merge(const json_t *entry, struct span part[2])
{
    if (json_is_string(entry))
        return split_text(json_string_value(entry), json_string_length(entry), part);
    if (!json_is_array(entry) || json_array_size(entry) != 2)
        return false;
    for (size_t i = 0; i < 2; i++) {
        const json_t *p = json_array_get(entry, i);
        if (!json_is_string(p))
            return false;
        part[i] = (struct span){json_string_value(p), json_string_length(p)};
    }
    return true;
}

static int32_t find_joined(const struct mx_vocab *v, const struct span part[2])
{
    char buf[256], *joined = buf;
    size_t n = part[0].n + part[1].n;
    if (n > MX_TOKEN_LEN_MAX)
        return -1;
    if (n > sizeof buf && !(joined = malloc(n)))
        return -1;
    memcpy(joined, part[0].s, part[0].n);
    memcpy(joined + part[0].n, part[1].s, part[1].n);
    int32_t id = mx_vocab_find(v, joined, n, MX_TOKEN_MODEL);
    if (joined != buf)
        free(joined);
    return id;
}

/* Where an entry stands, for messages. */
struct place {
    const char *field;
    size_t index;
};

/* Ids of the two sides of a rule. */
static mtplx_status find_sides(const struct mx_bpe *b, const struct span part[2], struct place at,
                               int32_t ids[2], mtplx_error *err)
{
    for (int i = 0; i < 2; i++) {
        ids[i] = mx_vocab_find(b->vocab, part[i].s, part[i].n, MX_TOKEN_MODEL);
        if (ids[i] < 0)
            return mx_error(err, MTPLX_ERR_FORMAT,
                            "%s[%zu] names \"%.*s\", which is not in the vocabulary", at.field,
                            at.index, (int)(part[i].n > 64 ? 64 : part[i].n), part[i].s);
    }
    return MTPLX_OK;
}

static mtplx_status load_merge(struct mx_bpe *b, const json_t *entry, size_t index, uint32_t rank,
                               mtplx_error *err)
{
    struct span part[2];
    int32_t ids[2] = {-1, -1};
    if (!split_merge(entry, part))
        return mx_error(err, MTPLX_ERR_FORMAT,
                        "model.merges[%zu] is neither \"left right\" nor a pair of strings", index);
    mtplx_status status = find_sides(b, part, (struct place){"model.merges", index}, ids, err);
    if (status)
        return status;
    int32_t id = find_joined(b->vocab, part);
    if (id < 0)
        return mx_error(err, MTPLX_ERR_FORMAT,
                        "model.merges[%zu] joins to a token that is not in model.vocab", index);
    put_merge(b, (struct mx_bpe_merge){ids[0], ids[1], rank, id});
    return MTPLX_OK;
}

/* Old files carried a "#version" line over from merges.txt; it is no rule. */
static bool is_version_line(const json_t *entry)
{
    return json_is_string(entry) && strncmp(json_string_value(entry), "#version", 8) == 0;
}

static mtplx_status load_merges(struct mx_bpe *b, const json_t *model, mtplx_error *err)
{
    json_t *list;
    mtplx_status status = mx_tok_array(model, "model", "merges", &list, err);
    if (!status)
        status = alloc_merges(b, json_array_size(list), "model.merges", err);
    uint32_t rank = 0;
    for (size_t i = 0; !status && i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        if (!is_version_line(entry))
            status = load_merge(b, entry, i, rank++, err);
    }
    return status;
}

static void load_alphabet(struct mx_bpe *b)
{
    mx_byte_map_init(&b->bytes);
    for (int i = 0; i < 256; i++) {
        char sym[8];
        int n = mx_utf8_encode(b->bytes.cp[i], sym);
        b->byte_ids[i] = mx_vocab_find(b->vocab, sym, (size_t)n, MX_TOKEN_MODEL);
        n = snprintf(sym, sizeof sym, "<0x%02X>", (unsigned)i);
        b->fallback[i] = mx_vocab_find(b->vocab, sym, (size_t)n, MX_TOKEN_MODEL);
    }
}

static mtplx_status load_unk(struct mx_bpe *b, const json_t *model, mtplx_error *err)
{
    const char *unk;
    size_t len;
    b->unk = -1;
    mtplx_status status = mx_tok_string(model, "model", "unk_token", false, &unk, &len, err);
    if (status || !unk)
        return status;
    b->unk = mx_vocab_find(b->vocab, unk, len, MX_TOKEN_MODEL | MX_TOKEN_ADDED);
    if (b->unk < 0)
        return mx_error(err, MTPLX_ERR_FORMAT, "model.unk_token \"%.64s\" is not in model.vocab",
                        unk);
    return MTPLX_OK;
}

/* Word-boundary marks and dropout change what merges mean; no supported family uses them. */
static mtplx_status refuse_variants(const json_t *model, mtplx_error *err)
{
    static const char *const marks[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2; i++) {
        const char *mark;
        size_t len;
        mtplx_status status = mx_tok_string(model, "model", marks[i], false, &mark, &len, err);
        if (status)
            return status;
        if (len > 0)
            return mx_error(err, MTPLX_ERR_UNSUPPORTED, "model.%s \"%.32s\" is not supported",
                            marks[i], mark);
    }
    const json_t *dropout = json_object_get(model, "dropout");
    if (json_is_number(dropout) && json_number_value(dropout) > 0)
        return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                        "model.dropout is set, which makes encoding random; set it to null");
    return MTPLX_OK;
}

mtplx_status mx_bpe_load(struct mx_bpe *b, const json_t *model, const struct mx_vocab *vocab,
                         bool byte_level, mtplx_error *err)
{
    *b = (struct mx_bpe){.vocab = vocab, .byte_level = byte_level, .unk = -1};
    load_alphabet(b);
    mtplx_status s = refuse_variants(model, err);
    if (!s)
        s = mx_tok_bool(model, "model", "byte_fallback", false, &b->byte_fallback, err);
    if (!s)
        s = mx_tok_bool(model, "model", "ignore_merges", false, &b->ignore_merges, err);
    if (!s)
        s = mx_tok_bool(model, "model", "fuse_unk", false, &b->fuse_unk, err);
    if (!s)
        s = load_unk(b, model, err);
    return s ? s : load_merges(b, model, err);
}

mtplx_status mx_bpe_begin(struct mx_bpe *b, const struct mx_vocab *vocab, size_t merges,
                          const char *field, mtplx_error *err)
{
    *b = (struct mx_bpe){.vocab = vocab, .byte_level = true, .unk = -1};
    load_alphabet(b);
    return alloc_merges(b, merges, field, err);
}

mtplx_status mx_bpe_put(struct mx_bpe *b, const char *text, size_t len, uint32_t rank,
                        const char *field, mtplx_error *err)
{
    struct span part[2];
    int32_t ids[2] = {-1, -1};
    if (!split_text(text, len, part))
        return mx_error(err, MTPLX_ERR_FORMAT, "%s[%u] is not \"left right\"", field, rank);
    mtplx_status status = find_sides(b, part, (struct place){field, rank}, ids, err);
    if (status)
        return status;
    int32_t id = find_joined(b->vocab, part);
    if (id >= 0)
        put_merge(b, (struct mx_bpe_merge){ids[0], ids[1], rank, id});
    return MTPLX_OK;
}

void mx_bpe_free(struct mx_bpe *b)
{
    free(b->merges);
    b->merges = NULL;
}

/* ---- Scratch ---- */

struct mx_bpe_work *mx_bpe_work_new(size_t text_len)
{
    struct mx_bpe_work *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    uint32_t n = 0;
    if (text_len >= 256) /* below that clearing a cache costs more than it saves */
        for (n = 64; n < CACHE_MAX && n < text_len / 16;)
            n *= 2;
    if (n > 0)
        w->cache = calloc(n, sizeof *w->cache);
    w->n_cache = w->cache ? n : 0;
    mx_strbuf_init(&w->mapped, 0);
    return w;
}

void mx_bpe_work_free(struct mx_bpe_work *w)
{
    if (!w)
        return;
    free(w->cache);
    free(w->sym);
    free(w->nodes);
    free(w->heap);
    mx_strbuf_free(&w->mapped);
    free(w);
}

/* `array` with room for at least `need` > 0 elements, or NULL, which leaves it as it was. Sizes
 * that overflow fail like a refused allocation. */
static void *resize(void *array, size_t *cap, size_t need, size_t each)
{
    if (need <= *cap)
        return array;
    size_t n = *cap < SIZE_MAX / 2 && *cap * 2 > need ? *cap * 2 : need;
    void *grown = n <= SIZE_MAX / each ? realloc(array, n * each) : NULL;
    if (grown)
        *cap = n;
    return grown;
}

bool mx_ids_reserve(struct mx_ids *ids, size_t extra)
{
    if (extra == 0)
        return true;
    if (extra > SIZE_MAX - ids->n)
        return false;
    int32_t *v = resize(ids->v, &ids->cap, ids->n + extra, sizeof *v);
    if (v)
        ids->v = v;
    return v != NULL;
}

static mtplx_status append_ids(struct mx_ids *out, const int32_t *ids, size_t n, mtplx_error *err)
{
    if (!mx_ids_reserve(out, n))
        return mx_error_nomem(err, "token ids", n * sizeof *ids);
    if (n > 0)
        memcpy(out->v + out->n, ids, n * sizeof *ids);
    out->n += n;
    return MTPLX_OK;
}

/* ---- Symbols ---- */

/* State of a run of unknown characters: unk_token is emitted when the run ends. */
struct unknown {
    bool pending;
};

static void push_sym(struct mx_bpe_work *w, int32_t id)
{
    w->sym[w->n_sym++] = id;
}

static bool push_fallback(const struct mx_bpe *b, struct mx_bpe_work *w, const char *c, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (b->fallback[(uint8_t)c[i]] < 0)
            return false;
    for (size_t i = 0; i < n; i++)
        push_sym(w, b->fallback[(uint8_t)c[i]]);
    return true;
}

/* `c` is the character as the vocabulary would spell it. The order of the fallback and a pending
 * unk_token is the reference tokenizer's. */
static void push_char(const struct mx_bpe *b, struct mx_bpe_work *w, struct unknown *u, int32_t id,
                      const char *c, size_t n)
{
    if (id >= 0) {
        if (u->pending)
            push_sym(w, b->unk);
        u->pending = false;
        push_sym(w, id);
        return;
    }
    if (b->byte_fallback && push_fallback(b, w, c, n))
        return;
    if (b->unk < 0)
        return;
    if (u->pending && !b->fuse_unk)
        push_sym(w, b->unk);
    u->pending = true;
}

static void push_bytes(const struct mx_bpe *b, struct mx_bpe_work *w, const char *s, size_t n)
{
    struct unknown u = {false};
    for (size_t i = 0; i < n; i++) {
        uint8_t byte = (uint8_t)s[i];
        char c[4];
        int32_t id = b->byte_ids[byte];
        size_t len = id < 0 ? (size_t)mx_utf8_encode(b->bytes.cp[byte], c) : 0;
        push_char(b, w, &u, id, c, len);
    }
    if (u.pending)
        push_sym(w, b->unk);
}

static void push_chars(const struct mx_bpe *b, struct mx_bpe_work *w, const char *s, size_t n)
{
    struct unknown u = {false};
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int used = mx_utf8_decode(s + i, n - i, &cp);
        size_t len = used > 0 ? (size_t)used : 1;
        push_char(b, w, &u, mx_vocab_find(b->vocab, s + i, len, MX_TOKEN_MODEL), s + i, len);
        i += len;
    }
    if (u.pending)
        push_sym(w, b->unk);
}

/* A character yields at most one symbol per byte of its spelling, plus one pending unk_token. */
static mtplx_status load_symbols(const struct mx_bpe *b, struct mx_bpe_work *w, const char *s,
                                 size_t n, mtplx_error *err)
{
    if (n > INT32_MAX / 2)
        return mx_error(err, MTPLX_ERR_LIMIT, "a word of %zu bytes is too long to encode", n);
    int32_t *sym = resize(w->sym, &w->cap_sym, 2 * n + 1, sizeof *sym);
    if (!sym)
        return mx_error_nomem(err, "the symbols of a word", 2 * n * sizeof *sym);
    w->sym = sym;
    w->n_sym = 0;
    if (b->byte_level)
        push_bytes(b, w, s, n);
    else
        push_chars(b, w, s, n);
    return MTPLX_OK;
}

/* ---- Merging: short words ---- */

struct pair {
    uint32_t rank;
    int32_t id;
};

static struct pair look(const struct mx_bpe *b, int32_t left, int32_t right)
{
    const struct mx_bpe_merge *m = find_merge(b, left, right);
    return m ? (struct pair){m->rank, m->id} : (struct pair){NO_RANK, -1};
}

/* Merges sym[0..n) in place and returns the new count; n <= SMALL_WORD. */
static size_t merge_small(const struct mx_bpe *b, int32_t *sym, size_t n)
{
    struct pair pairs[SMALL_WORD];
    for (size_t i = 0; i + 1 < n; i++)
        pairs[i] = look(b, sym[i], sym[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (pairs[i].rank < pairs[best].rank)
                best = i;
        if (pairs[best].rank == NO_RANK)
            break;
        sym[best] = pairs[best].id;
        size_t tail = n - best - 2;
        memmove(sym + best + 1, sym + best + 2, tail * sizeof *sym);
        if (tail > 0)
            memmove(pairs + best + 1, pairs + best + 2, (tail - 1) * sizeof *pairs);
        n--;
        if (best > 0)
            pairs[best - 1] = look(b, sym[best - 1], sym[best]);
        if (best + 1 < n)
            pairs[best] = look(b, sym[best], sym[best + 1]);
    }
    return n;
}

/* ---- Merging: long words ---- */

static bool less(struct heap_entry a, struct heap_entry b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static void sift_down(struct heap_entry *h, size_t n, size_t i)
{
    struct heap_entry e = h[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && less(h[child + 1], h[child]))
            child++;
        if (!less(h[child], e))
            break;
        h[i] = h[child];
    }
    h[i] = e;
}

static bool reserve_heap(struct mx_bpe_work *w, size_t n)
{
    struct heap_entry *heap = resize(w->heap, &w->cap_heap, n, sizeof *heap);
    if (heap)
        w->heap = heap;
    return heap != NULL;
}

static bool heap_push(struct mx_bpe_work *w, struct heap_entry e)
{
    if (!reserve_heap(w, w->n_heap + 1))
        return false;
    size_t i = w->n_heap++;
    for (; i > 0 && less(e, w->heap[(i - 1) / 2]); i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = e;
    return true;
}

static struct heap_entry heap_pop(struct mx_bpe_work *w)
{
    struct heap_entry top = w->heap[0];
    w->heap[0] = w->heap[--w->n_heap];
    if (w->n_heap > 1)
        sift_down(w->heap, w->n_heap, 0);
    return top;
}

static bool reserve_list(struct mx_bpe_work *w, size_t n)
{
    if (n <= w->cap_list)
        return true;
    struct node *nodes = resize(w->nodes, &w->cap_list, n, sizeof *nodes);
    if (nodes)
        w->nodes = nodes;
    return nodes != NULL;
}

/* Recomputes the pair that starts at symbol i of n and queues it. */
static bool set_pair(const struct mx_bpe *b, struct mx_bpe_work *w, uint32_t i, uint32_t n)
{
    struct node *node = &w->nodes[i];
    struct pair p = {NO_RANK, -1};
    if (node->next != n)
        p = look(b, node->sym, w->nodes[node->next].sym);
    node->pair_rank = p.rank;
    node->pair_id = p.id;
    return p.rank == NO_RANK || heap_push(w, (struct heap_entry){p.rank, i});
}

static bool start_list(const struct mx_bpe *b, struct mx_bpe_work *w, uint32_t n)
{
    if (!reserve_list(w, n))
        return false;
    w->n_heap = 0;
    for (uint32_t i = 0; i < n; i++) /* prev of the head wraps to UINT32_MAX */
        w->nodes[i] = (struct node){i - 1, i + 1, NO_RANK, w->sym[i], -1};
    for (uint32_t i = 0; i < n; i++)
        if (!set_pair(b, w, i, n))
            return false;
    return true;
}

/* Joins symbol i with its right neighbour and queues the two pairs that changed. */
static bool merge_at(const struct mx_bpe *b, struct mx_bpe_work *w, uint32_t i, uint32_t n)
{
    struct node *node = &w->nodes[i], *gone = &w->nodes[node->next];
    node->sym = node->pair_id;
    node->next = gone->next;
    gone->pair_rank = NO_RANK;
    if (node->next != n)
        w->nodes[node->next].prev = i;
    if (!set_pair(b, w, i, n))
        return false;
    return node->prev == UINT32_MAX || set_pair(b, w, node->prev, n);
}

static bool merge_large(const struct mx_bpe *b, struct mx_bpe_work *w)
{
    uint32_t n = (uint32_t)w->n_sym;
    if (!start_list(b, w, n))
        return false;
    while (w->n_heap > 0) {
        struct heap_entry e = heap_pop(w);
        if (w->nodes[e.at].pair_rank == e.rank && !merge_at(b, w, e.at, n))
            return false;
    }
    size_t kept = 0;
    for (uint32_t i = 0; i != n; i = w->nodes[i].next)
        w->sym[kept++] = w->nodes[i].sym;
    w->n_sym = kept;
    return true;
}

/* ---- Words ---- */

/* The word as the vocabulary spells it: characters of the byte-level alphabet, or itself. */
static bool spell(const struct mx_bpe *b, struct mx_bpe_work *w, const char **s, size_t *n)
{
    if (!b->byte_level)
        return true;
    mx_strbuf_clear(&w->mapped);
    for (size_t i = 0; i < *n; i++) {
        char c[4];
        int len = mx_utf8_encode(b->bytes.cp[(uint8_t)(*s)[i]], c);
        mx_strbuf_append(&w->mapped, c, (size_t)len);
    }
    *s = w->mapped.data;
    *n = w->mapped.len;
    return !w->mapped.failed;
}

/* Sets *id to the id of the whole word where model.vocab has it, else to -1. A special token is
 * never spelled out of ordinary text this way. */
static mtplx_status whole_word(const struct mx_bpe *b, struct mx_bpe_work *w, const char *s,
                               size_t n, int32_t *id, mtplx_error *err)
{
    *id = -1;
    if (!b->ignore_merges || n > MX_TOKEN_LEN_MAX)
        return MTPLX_OK;
    if (!spell(b, w, &s, &n))
        return mx_error_nomem(err, "a word", n);
    int32_t found = mx_vocab_find(b->vocab, s, n, MX_TOKEN_MODEL);
    if (found >= 0 && !(mx_vocab_flags(b->vocab, found) & MX_TOKEN_SPECIAL))
        *id = found;
    return MTPLX_OK;
}

/* Leaves the word's ids in w->sym. */
static mtplx_status encode_uncached(const struct mx_bpe *b, struct mx_bpe_work *w, const char *s,
                                    size_t n, mtplx_error *err)
{
    int32_t whole;
    mtplx_status status = load_symbols(b, w, s, n, err);
    if (!status)
        status = whole_word(b, w, s, n, &whole, err);
    if (status)
        return status;
    if (whole >= 0) {
        w->sym[0] = whole;
        w->n_sym = 1;
    } else if (w->n_sym <= SMALL_WORD) {
        w->n_sym = merge_small(b, w->sym, w->n_sym);
    } else if (!merge_large(b, w)) {
        return mx_error_nomem(err, "the symbols of a word", w->n_sym * sizeof *w->sym);
    }
    return MTPLX_OK;
}

static struct cache_entry *cache_slot(struct mx_bpe_work *w, const char *s, size_t n)
{
    if (w->n_cache == 0 || n > CACHE_KEY)
        return NULL;
    return &w->cache[(uint32_t)mx_tok_hash(s, n, 0) & (w->n_cache - 1)];
}

mtplx_status mx_bpe_encode(const struct mx_bpe *b, struct mx_bpe_work *w, const char *s, size_t n,
                           struct mx_ids *out, mtplx_error *err)
{
    if (n == 0)
        return MTPLX_OK;
    struct cache_entry *e = cache_slot(w, s, n);
    if (e && e->len == n && memcmp(e->key, s, n) == 0)
        return append_ids(out, e->ids, e->n, err);
    mtplx_status status = encode_uncached(b, w, s, n, err);
    if (status)
        return status;
    if (e && w->n_sym <= CACHE_IDS) {
        e->len = (uint8_t)n;
        e->n = (uint8_t)w->n_sym;
        memcpy(e->key, s, n);
        memcpy(e->ids, w->sym, w->n_sym * sizeof *w->sym);
    }
    return append_ids(out, w->sym, w->n_sym, err);
}
