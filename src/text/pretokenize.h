/* Pre-tokenizer: cuts text into the words that BPE works on.
 *
 * Reads Split, ByteLevel, Digits, Whitespace, WhitespaceSplit, Punctuation and Sequence. All of
 * them come down to a list of stages that each cut every piece of the stage before. The byte-level
 * alphabet itself is BPE's business: stages see text. */
#ifndef MX_TEXT_PRETOKENIZE_H
#define MX_TEXT_PRETOKENIZE_H

#include "base/error.h"
#include "text/tok_json.h"
#include "text/tok_regex.h"

#define MX_PRETOK_STAGES 16

/* What becomes of the matches of a split pattern. */
enum mx_split_behavior {
    MX_SPLIT_ISOLATED,
    MX_SPLIT_REMOVED,
    MX_SPLIT_MERGED_WITH_PREVIOUS,
    MX_SPLIT_MERGED_WITH_NEXT,
    MX_SPLIT_CONTIGUOUS,
};

struct mx_pretok_stage {
    bool prefix_space; /* put a space before pieces that lack one; the rest is unused then */
    struct mx_regex re;
    enum mx_split_behavior behavior;
    bool invert; /* matches and gaps change roles */
};

struct mx_pretok {
    struct mx_pretok_stage stages[MX_PRETOK_STAGES];
    size_t n;
    bool byte_level; /* words go through the byte-level alphabet */
};

/* `spec` is the "pre_tokenizer" value; NULL and null mean one word. Errors: FORMAT, UNSUPPORTED,
 * MEMORY. On error *p is freed. */
mtplx_status mx_pretok_load(struct mx_pretok *p, const json_t *spec, mtplx_error *err);
void mx_pretok_free(struct mx_pretok *p);

/* Scratch of one encode call. */
struct mx_pretok_work {
    struct mx_regex_work *regex;
    struct mx_strbuf prefixed;
};

typedef mtplx_status mx_word_fn(void *ctx, const char *s, size_t n, mtplx_error *err);

/* Calls `fn` on the non-empty words of s[0..n) in order; a word is valid during the call. */
mtplx_status mx_pretok_run(const struct mx_pretok *p, struct mx_pretok_work *w, const char *s,
                           size_t n, mx_word_fn *fn, void *ctx, mtplx_error *err);

#endif
