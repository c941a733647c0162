/* Stop strings: found in a text that comes in pieces, whatever the pieces are.
 *
 * The match that is complete first wins; of those complete at the same byte the longest. So the
 * result is a function of the text alone, and nothing has to be awaited but the rest of a match. */
#ifndef MX_SERVE_STOPS_H
#define MX_SERVE_STOPS_H

#include "base/strbuf.h"

#include <stdint.h>

#define MX_MAX_STOPS_REQUEST 16
#define MX_STOP_LEN_MAX 4096

/* The strings of a request with their tables; immutable once made, shared by its choices. */
struct mx_stop_set {
    int n;
    char *text[MX_MAX_STOPS_REQUEST]; /* owned */
    size_t len[MX_MAX_STOPS_REQUEST];
    /* fail[k][i]: length of the longest proper prefix of string k that ends its first i + 1 bytes
     */
    uint16_t *fail[MX_MAX_STOPS_REQUEST];
};
/* Copies; empty strings are left out (their place counts). At most MX_MAX_STOPS_REQUEST strings of
 * 1..MX_STOP_LEN_MAX bytes. False without memory; free it either way. */
bool mx_stop_set_init(struct mx_stop_set *s, const char *const *strings, int n);
void mx_stop_set_free(struct mx_stop_set *s);

/* One text being searched. Bytes that could be the start of a match are held back. */
struct mx_stop_match {
    const struct mx_stop_set *set;
    uint16_t state[MX_MAX_STOPS_REQUEST];
    struct mx_strbuf held;
    int found; /* index of the string that was found, or -1 */
};
void mx_stop_match_init(struct mx_stop_match *m, const struct mx_stop_set *set);
void mx_stop_match_free(struct mx_stop_match *m);

typedef void mx_stop_emit(void *arg, const char *text, size_t n);
/* Takes a piece and emits what is certain. After a match: the text before it (and the match itself
 * with `include`), and the rest of the piece is dropped; further pieces too. False when memory is
 * out. */
bool mx_stop_push(struct mx_stop_match *m, const char *text, size_t n, bool include,
                  mx_stop_emit *emit, void *arg);
/* Emits what is held back and starts afresh: no match goes across this place. */
void mx_stop_release(struct mx_stop_match *m, mx_stop_emit *emit, void *arg);

#endif
