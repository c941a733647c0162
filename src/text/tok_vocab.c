/* Token table.
 *
 * Invariants:
 *   1. A string is in the hash table at most once, so strings and ids are one to one.
 *   2. The hash table is at most half full.
 *   3. Pool offsets fit 32 bits: the pool is bounded by POOL_MAX. */
#include "text/tok_vocab.h"

#include "base/clock.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

#define POOL_MAX ((size_t)1 << 30)

void mx_vocab_init(struct mx_vocab *v)
{
    *v = (struct mx_vocab){0};
    mx_strbuf_init(&v->pool, POOL_MAX);
    /* Unpredictable enough that a file cannot be written to make every string collide. */
    v->seed = (mx_now_ns() ^ (uint64_t)(uintptr_t)v) * 0x9e3779b97f4a7c15u;
}

void mx_vocab_free(struct mx_vocab *v)
{
    mx_strbuf_free(&v->pool);
    free(v->tokens);
    free(v->flags);
    free(v->slots);
    *v = (struct mx_vocab){0};
}

uint64_t mx_tok_hash(const char *s, size_t len, uint64_t seed)
{
    uint64_t h = seed ^ len;
    for (; len >= 8; s += 8, len -= 8) {
        uint64_t w;
        memcpy(&w, s, 8);
        h = (h ^ w) * 0x9fb21c651e98df25u;
        h ^= h >> 29;
    }
    if (len > 0) {
        uint64_t w = 0;
        memcpy(&w, s, len);
        h = (h ^ w) * 0x9fb21c651e98df25u;
        h ^= h >> 29;
    }
    h *= 0xd6e8feb86659fd93u;
    return h ^ h >> 32;
}

uint8_t mx_vocab_flags(const struct mx_vocab *v, int32_t id)
{
    return id >= 0 && id < v->size ? v->flags[id] : 0;
}

const char *mx_vocab_text(const struct mx_vocab *v, int32_t id, size_t *len)
{
    *len = v->tokens[id].text_len;
    return v->pool.data + v->tokens[id].text;
}

/* The slot that holds the string with hash `h`, or the free one where it belongs. The table has
 * free slots. */
static uint32_t find_slot(const struct mx_vocab *v, const char *s, size_t len, uint32_t h)
{
    uint32_t mask = v->n_slots - 1, i = h & mask;
    for (; v->slots[i].id >= 0; i = (i + 1) & mask) {
        if (v->slots[i].hash != h)
            continue;
        size_t known_len;
        const char *known = mx_vocab_text(v, v->slots[i].id, &known_len);
        if (known_len == len && memcmp(known, s, len) == 0)
            break;
    }
    return i;
}

static uint32_t hash_of(const struct mx_vocab *v, const char *s, size_t len)
{
    return (uint32_t)mx_tok_hash(s, len, v->seed);
}

int32_t mx_vocab_find(const struct mx_vocab *v, const char *s, size_t len, uint8_t flags)
{
    if (v->n_slots == 0 || len > MX_TOKEN_LEN_MAX)
        return -1;
    const struct mx_vocab_slot *slot = &v->slots[find_slot(v, s, len, hash_of(v, s, len))];
    return slot->id >= 0 && (v->flags[slot->id] & flags) ? slot->id : -1;
}

static bool grow_slots(struct mx_vocab *v)
{
    if (v->count < v->n_slots / 2)
        return true;
    uint32_t n = v->n_slots ? v->n_slots * 2 : 1024;
    struct mx_vocab_slot *slots = malloc(n * sizeof *slots);
    if (!slots)
        return false;
    memset(slots, 0xff, n * sizeof *slots);
    for (uint32_t i = 0; i < v->n_slots; i++) {
        uint32_t j = v->slots[i].hash & (n - 1);
        if (v->slots[i].id < 0)
            continue;
        while (slots[j].id >= 0)
            j = (j + 1) & (n - 1);
        slots[j] = v->slots[i];
    }
    free(v->slots);
    v->slots = slots;
    v->n_slots = n;
    return true;
}

static bool grow_tokens(struct mx_vocab *v, int32_t size)
{
    if (size <= v->cap)
        return true;
    int32_t cap = v->cap ? v->cap : 1024;
    while (cap < size)
        cap *= 2;
    struct mx_token *tokens = realloc(v->tokens, (size_t)cap * sizeof *tokens);
    if (!tokens)
        return false;
    v->tokens = tokens;
    uint8_t *flags = realloc(v->flags, (size_t)cap);
    if (!flags)
        return false;
    memset(flags + v->cap, 0, (size_t)(cap - v->cap));
    v->flags = flags;
    v->cap = cap;
    return true;
}

struct entry {
    const char *field, *s;
    size_t len;
    int64_t id;
};

static mtplx_status refuse(const struct entry *e, const char *why, mtplx_error *err)
{
    int shown = (int)(e->len < 64 ? e->len : 64);
    return mx_error(err, MTPLX_ERR_FORMAT, "%s: token \"%.*s\" with id %lld %s", e->field, shown,
                    e->s, (long long)e->id, why);
}

mtplx_status mx_vocab_add(struct mx_vocab *v, int64_t id, const char *s, size_t len, uint8_t flags,
                          const char *field, mtplx_error *err)
{
    const struct entry e = {field, s, len, id};
    if (id < 0 || id > MX_TOKEN_ID_MAX)
        return refuse(&e, "is outside the supported ids 0..4194303", err);
    if (len > MX_TOKEN_LEN_MAX)
        return refuse(&e, "is longer than the supported 65535 bytes", err);
    if (!grow_slots(v) || !grow_tokens(v, (int32_t)id + 1))
        return mx_error_nomem(err, "the token table", (size_t)id);
    uint32_t hash = hash_of(v, s, len);
    struct mx_vocab_slot *slot = &v->slots[find_slot(v, s, len, hash)];
    if (slot->id >= 0 && slot->id != id)
        return refuse(&e, "is in the file under another id too", err);
    if (slot->id >= 0) {
        v->flags[id] |= flags;
        return MTPLX_OK;
    }
    if (v->flags[id])
        return refuse(&e, "has the id of another token", err);
    size_t at = v->pool.len;
    if (!mx_strbuf_append(&v->pool, s, len))
        return mx_error_nomem(err, "the token table", len);
    v->tokens[id] = (struct mx_token){(uint32_t)at, (uint32_t)at, (uint16_t)len, (uint16_t)len};
    v->flags[id] = flags;
    *slot = (struct mx_vocab_slot){hash, (int32_t)id};
    v->count++;
    if (id >= v->size)
        v->size = (int32_t)id + 1;
    return MTPLX_OK;
}

static bool is_printable_byte(int b)
{
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
}

void mx_byte_map_init(struct mx_byte_map *m)
{
    memset(m->byte, 0xff, sizeof m->byte);
    int next = 256;
    for (int b = 0; b < 256; b++) {
        int cp = is_printable_byte(b) ? b : next++;
        m->cp[b] = (uint16_t)cp;
        m->byte[cp] = (int16_t)b;
    }
}
