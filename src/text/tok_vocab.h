/* Token table: every token of a tokenizer by id, and ids by token string.
 *
 * Model vocabulary and added tokens share one table; flags tell them apart. Strings live in one
 * byte pool, so a vocabulary of 250,000 tokens costs a few megabytes. */
#ifndef MX_TEXT_TOK_VOCAB_H
#define MX_TEXT_TOK_VOCAB_H

#include "base/error.h"
#include "base/strbuf.h"

/* Ids are at most this; the largest vocabularies in use have about 262,000 tokens. */
#define MX_TOKEN_ID_MAX ((1 << 22) - 1)
/* Longest token string in bytes. */
#define MX_TOKEN_LEN_MAX 65535

enum mx_token_flags {
    MX_TOKEN_MODEL = 1,   /* in model.vocab */
    MX_TOKEN_ADDED = 2,   /* in added_tokens */
    MX_TOKEN_SPECIAL = 4, /* added and special: dropped by skip_special */
};

/* Offsets into the pool: the string of the file, and the bytes it decodes to. */
struct mx_token {
    uint32_t text, bytes;
    uint16_t text_len, bytes_len;
};

struct mx_vocab_slot {
    uint32_t hash;
    int32_t id; /* -1: free */
};

struct mx_vocab {
    struct mx_strbuf pool;
    struct mx_token *tokens;     /* by id; unused ids have no flags */
    uint8_t *flags;              /* by id; 0: a hole */
    int32_t size, cap;           /* size: largest id + 1 */
    struct mx_vocab_slot *slots; /* open addressing */
    uint32_t n_slots;            /* power of two */
    uint32_t count;              /* strings in the table */
    uint64_t seed;
};

void mx_vocab_init(struct mx_vocab *v);
void mx_vocab_free(struct mx_vocab *v);

/* Adds a token, or adds flags to one that has the same id and string. `field` names the place in
 * messages. Errors: FORMAT (id out of range or taken by another string, string known under another
 * id or too long), MEMORY. */
mtplx_status mx_vocab_add(struct mx_vocab *v, int64_t id, const char *s, size_t len, uint8_t flags,
                          const char *field, mtplx_error *err);

/* Id of the exact string with any of `flags`, or -1. */
int32_t mx_vocab_find(const struct mx_vocab *v, const char *s, size_t len, uint8_t flags);

/* 0 for holes and for ids outside the table. */
uint8_t mx_vocab_flags(const struct mx_vocab *v, int32_t id);

/* String of a token that exists. */
const char *mx_vocab_text(const struct mx_vocab *v, int32_t id, size_t *len);

/* Byte-level alphabet: every byte has a printable code point. 33..126, 161..172 and 174..255 stand
 * for themselves, the other 68 bytes, in order, for 256, 257, ... */
#define MX_BYTE_CHARS 324
struct mx_byte_map {
    uint16_t cp[256];
    int16_t byte[MX_BYTE_CHARS]; /* -1 where no byte maps to the code point */
};
void mx_byte_map_init(struct mx_byte_map *m);

/* Keyed hash of a byte string; also used by the per-call word cache. */
uint64_t mx_tok_hash(const char *s, size_t len, uint64_t seed);

#endif
