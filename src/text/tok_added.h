/* Added tokens: finding them in text.
 *
 * A set holds the patterns that are matched on one form of the text (raw or normalised). At a
 * position the longest pattern wins; matches do not overlap. */
#ifndef MX_TEXT_TOK_ADDED_H
#define MX_TEXT_TOK_ADDED_H

#include "base/error.h"

/* Longest pattern in bytes; it bounds the time spent at one position. */
#define MX_ADDED_LEN_MAX 512

struct mx_added_token {
    const char *text; /* owned by the set */
    uint32_t len;
    int32_t id;
    bool single_word; /* only where no word character touches it */
    bool lstrip;      /* takes the white space before it along */
    bool rstrip;      /* and after it */
};

struct mx_added_set {
    struct mx_added_token *v; /* sorted by text once ready */
    size_t n, cap;
    uint32_t first[257]; /* patterns that start with byte b: v[first[b]]..v[first[b + 1] - 1] */
};

/* Copies a pattern into the set; `text` must not be empty. Errors: UNSUPPORTED (too long), MEMORY.
 */
mtplx_status mx_added_put(struct mx_added_set *set, struct mx_added_token token, mtplx_error *err);
/* Sorts and indexes; of equal patterns the one put first stays. */
void mx_added_ready(struct mx_added_set *set);
void mx_added_free(struct mx_added_set *set);

struct mx_added_match {
    size_t start, end; /* with stripped white space */
    int32_t id;
};

/* Walks over the tokens in s[0..n), valid UTF-8. Zero-initialise, then set set, s and n. */
struct mx_added_iter {
    const struct mx_added_set *set;
    const char *s;
    size_t n;
    size_t at;                   /* where the next search starts */
    size_t done;                 /* end of the last token */
    size_t strip_from, strip_to; /* white space that an rstrip has scanned already */
};
bool mx_added_next(struct mx_added_iter *it, struct mx_added_match *m);

#endif
