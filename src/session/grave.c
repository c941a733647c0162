/* A set-associative memory of dropped prefixes. See grave.h. */
#include "session/grave.h"

#include "runtime/model.h"

#include <string.h>

static size_t set_of(const struct mx_cold_key *k)
{
    return ((size_t)k->b[0] | (size_t)k->b[1] << 8) % MX_GRAVE_SETS;
}

static int way_of(const struct mx_grave_set *s, const struct mx_cold_key *k)
{
    for (int i = 0; i < MX_GRAVE_WAYS; i++)
        if (s->why[i] && memcmp(&s->keys[i], k, sizeof *k) == 0)
            return i;
    return -1;
}

void mx_grave_dig(struct mx_graves *g, const char *scope, const int32_t *tokens, size_t n,
                  enum mx_cache_miss why)
{
    if (n < MX_KV_BLOCK)
        return;
    struct mx_cold_key k = mx_cold_chain(mx_cold_chain_start(scope), tokens, n - n % MX_KV_BLOCK);
    struct mx_grave_set *s = &g->sets[set_of(&k)];
    int way = way_of(s, &k);
    if (way < 0) {
        way = s->oldest;
        s->oldest = (uint8_t)((s->oldest + 1) % MX_GRAVE_WAYS);
    }
    s->keys[way] = k;
    s->why[way] = (uint8_t)why;
    g->n++;
}

size_t mx_grave_find(const struct mx_graves *g, const char *scope, const int32_t *tokens, size_t n,
                     enum mx_cache_miss *why)
{
    size_t found = 0;
    if (g->n == 0)
        return 0;
    struct mx_cold_key k = mx_cold_chain_start(scope);
    for (size_t at = 0; n - at >= MX_KV_BLOCK; at += MX_KV_BLOCK) {
        k = mx_cold_chain(k, tokens + at, MX_KV_BLOCK);
        const struct mx_grave_set *s = &g->sets[set_of(&k)];
        int way = way_of(s, &k);
        if (way >= 0) {
            found = at + MX_KV_BLOCK;
            *why = (enum mx_cache_miss)s->why[way];
        }
    }
    return found;
}
