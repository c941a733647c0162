/* The chained hash over blocks of tokens that names prefixes, in RAM and on disk. See cold.h.
 *
 * A link hashes the link before it, then the tokens of a block, or of the last, shorter piece; more
 * tokens than a block has are as many steps. So equal links mean equal scopes, tokens and
 * block borders, up to a collision of 128 bits, which nobody is trusted with (K1 of bank.h). The
 * bytes of a link are part of the format on disk: XXH3-128 in its canonical form, tokens in little
 * endian. */
#include "runtime/model.h"
#include "session/cold.h"

#include <string.h>
#include <xxhash.h>

/* Bytes of a scope that count. */
#define SCOPE_BYTES 127

static struct mx_cold_key canonical(XXH128_hash_t h)
{
    XXH128_canonical_t c;
    struct mx_cold_key k;
    XXH128_canonicalFromHash(&c, h);
    memcpy(k.b, c.digest, sizeof k.b);
    return k;
}

struct mx_cold_key mx_cold_chain_start(const char *scope)
{
    size_t n = scope ? strnlen(scope, SCOPE_BYTES) : 0;
    return canonical(XXH3_128bits(n ? scope : "", n));
}

static void put_le32(unsigned char *p, int32_t token)
{
    uint32_t v = (uint32_t)token;
    p[0] = (unsigned char)v;
    p[1] = (unsigned char)(v >> 8);
    p[2] = (unsigned char)(v >> 16);
    p[3] = (unsigned char)(v >> 24);
}

/* A step over at most MX_KV_BLOCK tokens. */
static struct mx_cold_key step(struct mx_cold_key before, const int32_t *tokens, size_t n)
{
    unsigned char buf[sizeof before.b + 4 * MX_KV_BLOCK];
    memcpy(buf, before.b, sizeof before.b);
    for (size_t i = 0; i < n; i++)
        put_le32(buf + sizeof before.b + 4 * i, tokens[i]);
    return canonical(XXH3_128bits(buf, sizeof before.b + 4 * n));
}

struct mx_cold_key mx_cold_chain(struct mx_cold_key before, const int32_t *tokens, size_t n)
{
    while (n > MX_KV_BLOCK) {
        before = step(before, tokens, MX_KV_BLOCK);
        tokens += MX_KV_BLOCK;
        n -= MX_KV_BLOCK;
    }
    return step(before, tokens, n);
}
