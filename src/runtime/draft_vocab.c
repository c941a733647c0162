/* Choosing and loading the draft vocabulary. See draft_vocab.h.
 *
 * A choice sorts one key a token, (tier, rank in the tier, id), and takes the smallest. Everything
 * the ranks come from may be hostile (tokenizer.json, the record of earlier answers): it can make a
 * bad choice, which costs acceptance, and nothing else. */
#include "runtime/draft_vocab.h"

#include <stdlib.h>
#include <string.h>

enum tier {
    REQUIRED, /* always chosen */
    OBSERVED, /* by frequency in earlier answers */
    MERGED,   /* by merge rank */
    PLAIN,    /* by id */
    UNUSED,   /* ids without a token: rows that only pad the matrix */
};

/* A vocabulary has at most 2^24 tokens (the families check it). */
#define ID_BITS 24

static uint64_t make_key(enum tier tier, uint32_t rank, int id)
{
    return (uint64_t)tier << 56 | (uint64_t)rank << ID_BITS | (uint64_t)id;
}

static enum tier key_tier(uint64_t key)
{
    return (enum tier)(key >> 56);
}

static int key_id(uint64_t key)
{
    return (int)(key & ((1 << ID_BITS) - 1));
}

int mx_draft_vocab_size(int vocab, int option)
{
    int want = option == 0 ? MX_DRAFT_VOCAB : option;
    return want < 0 || want > vocab ? vocab : want;
}

/* Bytes are what a text in an unusual script is written with, and take over where no longer token
 * fits, so they are needed although their frequency is unknown. */
static bool required(const struct mx_tokenizer *t, int id)
{
    size_t len;
    mx_tokenizer_bytes(t, id, &len);
    return len == 1 || mx_tokenizer_is_added(t, id);
}

static void rank_by_tokenizer(const struct mx_tokenizer *t, uint64_t *keys, uint32_t *ranks,
                              int vocab)
{
    mx_tokenizer_ranks(t, ranks, (size_t)vocab);
    for (int id = 0; id < vocab; id++) {
        size_t len;
        mx_tokenizer_bytes(t, id, &len);
        if (required(t, id))
            keys[id] = make_key(REQUIRED, 0, id);
        else if (ranks[id] != MX_NO_RANK)
            keys[id] = make_key(MERGED, ranks[id], id);
        else if (len == 0)
            keys[id] = make_key(UNUSED, 0, id);
    }
}

static void fill_keys(const struct mx_draft_tokens *from, uint64_t *keys, uint32_t *ranks)
{
    for (int id = 0; id < from->vocab; id++)
        keys[id] = make_key(PLAIN, 0, id);
    if (from->tokenizer)
        rank_by_tokenizer(from->tokenizer, keys, ranks, from->vocab);
    for (int i = 0; i < from->n_stops; i++)
        if (from->stops[i] >= 0 && from->stops[i] < from->vocab)
            keys[from->stops[i]] = make_key(REQUIRED, 0, from->stops[i]);
    for (size_t i = 0; i < from->n_observed && i < UINT32_MAX; i++) {
        int32_t id = from->observed[i];
        if (id >= 0 && id < from->vocab && key_tier(keys[id]) > OBSERVED)
            keys[id] = make_key(OBSERVED, (uint32_t)i, id);
    }
}

static int compare_keys(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The tokens of the n smallest keys, ascending. */
static int32_t *take(uint64_t *keys, int vocab, int n)
{
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    uint8_t *chosen = calloc((size_t)vocab, 1);
    if (ids && chosen) {
        qsort(keys, (size_t)vocab, sizeof *keys, compare_keys);
        for (int i = 0; i < n; i++)
            chosen[key_id(keys[i])] = 1;
        for (int id = 0, k = 0; id < vocab && k < n; id++)
            if (chosen[id])
                ids[k++] = id;
    } else {
        free(ids);
        ids = NULL;
    }
    free(chosen);
    return ids;
}

mtplx_status mx_draft_vocab_choose(const struct mx_draft_tokens *from, int want, int32_t **ids,
                                   int *n, mtplx_error *err)
{
    int vocab = from->vocab, needed = 0;
    *ids = NULL;
    *n = vocab;
    if (want >= vocab)
        return MTPLX_OK;
    uint64_t *keys = malloc((size_t)vocab * sizeof *keys);
    uint32_t *ranks = malloc((size_t)vocab * sizeof *ranks);
    if (keys && ranks) {
        fill_keys(from, keys, ranks);
        for (int id = 0; id < vocab; id++)
            needed += key_tier(keys[id]) == REQUIRED;
        want = want > needed ? want : needed;
        if (want < vocab && (*ids = take(keys, vocab, want)))
            *n = want;
    }
    bool ok = keys && ranks && (*ids || want >= vocab);
    free(keys);
    free(ranks);
    return ok ? MTPLX_OK : mx_error_nomem(err, "the draft vocabulary", (size_t)vocab * 12);
}

/* The copy of the head, in device memory when done. A re-quantised one replaces the gathered rows.
 */
static mtplx_status load_head(struct mx_draft_vocab *d, struct mx_loader *l,
                              const struct mx_weight *head, mtplx_error *err)
{
    struct mx_weight w = *head;
    mtplx_proj_quant quant = l->options->draft_head_quant;
    w.bound = NULL;
    mtplx_status st = d->ids ? mx_load_rows(l, head, d->ids, d->n, &w, err) : MTPLX_OK;
    struct mx_weight rows = w;
    if (st == MTPLX_OK && quant != MTPLX_PROJ_KEEP)
        st = mx_load_requant(l, &w, quant, "the draft head", err);
    if (st != MTPLX_OK)
        return st;
    if (w.data != rows.data && d->ids)
        mx_load_drop(l, &rows);
    if (w.data == head->data)
        return MTPLX_OK; /* all rows, and as small already: the model's own head serves */
    d->head = w;
    return mx_load_bind(l, &d->head, err);
}

mtplx_status mx_draft_vocab_load(struct mx_draft_vocab *d, struct mx_loader *l,
                                 const struct mx_weight *head, const struct mx_draft_tokens *from,
                                 mtplx_error *err)
{
    *d = (struct mx_draft_vocab){.n = from->vocab};
    if (!head)
        return MTPLX_OK;
    int32_t *ids;
    int want = mx_draft_vocab_size(from->vocab, l->options->draft_vocab);
    mtplx_status st = mx_draft_vocab_choose(from, want, &ids, &d->n, err);
    if (st != MTPLX_OK)
        return st;
    int32_t *kept = NULL;
    if (ids && !(kept = mx_load_host(l, (size_t)d->n * sizeof *kept, "the draft vocabulary", err)))
        st = MTPLX_ERR_MEMORY;
    if (kept)
        memcpy(kept, ids, (size_t)d->n * sizeof *kept);
    free(ids);
    d->ids = kept;
    return st == MTPLX_OK ? load_head(d, l, head, err) : st;
}
