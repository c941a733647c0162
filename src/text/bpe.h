/* Byte-pair encoding of one word: symbols, then merges by rank (lowest first, leftmost on ties).
 *
 * struct mx_bpe is immutable after loading and shared between threads; struct mx_bpe_work belongs
 * to one encode call. */
#ifndef MX_TEXT_BPE_H
#define MX_TEXT_BPE_H

#include "base/error.h"
#include "text/tok_json.h"
#include "text/tok_vocab.h"
#include "text/tokenizer.h"

/* One rule: the pair (left, right) becomes `id`; id < 0 marks a free slot. */
struct mx_bpe_merge {
    int32_t left, right;
    uint32_t rank;
    int32_t id;
};

struct mx_bpe {
    const struct mx_vocab *vocab; /* borrowed */
    struct mx_bpe_merge *merges;  /* open addressing, at most half full */
    uint32_t n_merges;            /* power of two */
    bool byte_level; /* symbols are bytes in the byte-level alphabet, else characters */
    bool byte_fallback, ignore_merges, fuse_unk;
    int32_t unk;           /* id of unk_token, or -1 */
    int32_t byte_ids[256]; /* byte level: id of each byte's symbol, or -1 */
    int32_t fallback[256]; /* ids of <0x00>..<0xFF>, or -1 */
    struct mx_byte_map bytes;
};

struct mx_bpe_work;

/* Reads model.merges and the options of the "model" object; `vocab` must hold model.vocab already
 * and outlive *b. Errors: FORMAT (merges naming unknown tokens), UNSUPPORTED, MEMORY. */
mtplx_status mx_bpe_load(struct mx_bpe *b, const json_t *model, const struct mx_vocab *vocab,
                         bool byte_level, mtplx_error *err);

/* The same for byte-level BPE without a JSON file: begin with room for `merges` rules, then put
 * them in order of rank. A rule is "left right"; one whose result is no token can never show in an
 * answer and is left out. `field` names the list in messages. Errors: FORMAT, MEMORY. */
mtplx_status mx_bpe_begin(struct mx_bpe *b, const struct mx_vocab *vocab, size_t merges,
                          const char *field, mtplx_error *err);
mtplx_status mx_bpe_put(struct mx_bpe *b, const char *text, size_t len, uint32_t rank,
                        const char *field, mtplx_error *err);

void mx_bpe_free(struct mx_bpe *b);

/* Scratch for one call; `text_len` sizes the word cache. NULL when out of memory. */
struct mx_bpe_work *mx_bpe_work_new(size_t text_len);
void mx_bpe_work_free(struct mx_bpe_work *w);

/* Appends the ids of the word s[0..n), valid UTF-8 before any byte-level mapping. Characters with
 * no symbol, no byte fallback and no unk_token are dropped, as the reference tokenizer does. Time
 * is O(n log n). Errors: LIMIT (a word of more than 2^31 - 1 symbols), MEMORY. */
mtplx_status mx_bpe_encode(const struct mx_bpe *b, struct mx_bpe_work *w, const char *s, size_t n,
                           struct mx_ids *out, mtplx_error *err);

/* Room for `extra` more ids. */
bool mx_ids_reserve(struct mx_ids *ids, size_t extra);

#endif
