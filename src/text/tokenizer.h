/* Tokenizer: tokenizer.json byte-level BPE.
 *
 * Immutable after loading and safe to share between threads. Encoding: added tokens are split out
 * of the raw text first (longest match), the rest is normalised (NFC), cut by the file's own
 * pre-tokenizer patterns (PCRE2, JIT), mapped to byte-level symbols and merged by rank. Nothing is
 * added to the text: a BOS and other framing tokens are the chat template's business. */
#ifndef MX_TEXT_TOKENIZER_H
#define MX_TEXT_TOKENIZER_H

#include "base/error.h"
#include "base/strbuf.h"
#include "format/gguf.h"

struct mx_tokenizer;

/* Reads <dir>/tokenizer.json (and tokenizer_config.json for added tokens it alone lists). */
struct mx_tokenizer *mx_tokenizer_open(const char *dir, mtplx_error *err);
/* The same from memory; `name` is used in messages. */
struct mx_tokenizer *mx_tokenizer_parse(const char *json, size_t len, const char *name,
                                        mtplx_error *err);
/* Builds the tokenizer that a GGUF file's metadata describes (tokenizer.ggml.*: byte-level BPE with
 * the Qwen patterns). NULL with err->status OK when the file has none. */
struct mx_tokenizer *mx_tokenizer_open_gguf(const struct mx_gguf *g, mtplx_error *err);
void mx_tokenizer_free(struct mx_tokenizer *t);

struct mx_ids {
    int32_t *v;
    size_t n, cap;
};
void mx_ids_free(struct mx_ids *ids);

/* Appends the ids of text[0..len) to *out. Invalid UTF-8 is read as U+FFFD per bad byte.
 * `plain`: added tokens in the text are treated as ordinary text. On error *out keeps its ids.
 * Errors: LIMIT (text too long, or a pattern of the file that takes too long on it), MEMORY. */
mtplx_status mx_tokenizer_encode(const struct mx_tokenizer *t, const char *text, size_t len,
                                 bool plain, struct mx_ids *out, mtplx_error *err);

/* Largest id + 1. */
int mx_tokenizer_size(const struct mx_tokenizer *t);
/* Raw bytes of a token after the decoder's mapping (not NUL-terminated); 0 length when unknown. */
const char *mx_tokenizer_bytes(const struct mx_tokenizer *t, int32_t id, size_t *len);
bool mx_tokenizer_is_special(const struct mx_tokenizer *t, int32_t id);
bool mx_tokenizer_is_added(const struct mx_tokenizer *t, int32_t id);
/* The first special token that encoding would recognise in text[from..len), valid UTF-8: bytes
 * *start..*end - 1 (white space that the token takes along included). False when there is none. */
bool mx_tokenizer_next_special(const struct mx_tokenizer *t, const char *text, size_t len,
                               size_t from, size_t *start, size_t *end);
/* ranks[id], id < n: the lowest rank of a merge that makes the token, MX_NO_RANK where none does
 * (bytes, added tokens, unused ids). Ranks follow frequency in the tokenizer's training text. */
#define MX_NO_RANK UINT32_MAX
void mx_tokenizer_ranks(const struct mx_tokenizer *t, uint32_t *ranks, size_t n);
/* Id of an exact token string (as in the vocabulary or added tokens), or -1. */
int32_t mx_tokenizer_find(const struct mx_tokenizer *t, const char *token);

/* Decodes a whole sequence; bytes that are not UTF-8 become U+FFFD (one per maximal bad part, as
 * Rust's from_utf8_lossy does). Unknown ids stand for no text. */
mtplx_status mx_tokenizer_decode(const struct mx_tokenizer *t, const int32_t *ids, size_t n,
                                 bool skip_special, struct mx_strbuf *out, mtplx_error *err);

/* Incremental decoding: concatenating all pushes and the flush equals mx_tokenizer_decode(). */
struct mx_detok {
    const struct mx_tokenizer *t;
    bool skip_special;
    char held[8]; /* bytes of an incomplete code point */
    size_t n_held;
    struct mx_strbuf out;
};
void mx_detok_init(struct mx_detok *d, const struct mx_tokenizer *t, bool skip_special);
void mx_detok_free(struct mx_detok *d);
const char *mx_detok_push(struct mx_detok *d, int32_t id, size_t *len);
const char *mx_detok_flush(struct mx_detok *d, size_t *len);

#endif
