/* What was dropped: a bounded memory of prefixes that the bank knew once, so that a later miss can
 * say whether the budget or the time to live took it away.
 *
 * Prefixes are whole blocks, named by their links (mx_cold_chain()). Places are limited: 1,024 sets
 * of four, in which the oldest is overwritten. No locking: the owner's. */
#ifndef MX_SESSION_GRAVE_H
#define MX_SESSION_GRAVE_H

#include "session/cold.h"
#include "session/miss.h"

#define MX_GRAVE_SETS 1024
#define MX_GRAVE_WAYS 4

struct mx_graves {
    size_t n; /* ever dug */
    struct mx_grave_set {
        struct mx_cold_key keys[MX_GRAVE_WAYS];
        uint8_t why[MX_GRAVE_WAYS]; /* enum mx_cache_miss; 0: empty */
        uint8_t oldest;
    } sets[MX_GRAVE_SETS];
};

/* Notes that a snapshot of these tokens is gone. Shorter ones than a block are not noted. */
void mx_grave_dig(struct mx_graves *g, const char *scope, const int32_t *tokens, size_t n,
                  enum mx_cache_miss why);
/* The longest prefix of the tokens, in whole blocks, that is gone, and why; 0: none. */
size_t mx_grave_find(const struct mx_graves *g, const char *scope, const int32_t *tokens, size_t n,
                     enum mx_cache_miss *why);

#endif
