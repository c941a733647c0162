/* Regular expressions of tokenizer.json.
 *
 * The file's patterns are written for the Oniguruma engine in its Ruby syntax. They are translated
 * to PCRE2 (UTF, Unicode properties, JIT); constructs that mean something else there are rewritten
 * or refused. Matching is bounded: a hostile pattern gets an error, not a hang. */
#ifndef MX_TEXT_TOK_REGEX_H
#define MX_TEXT_TOK_REGEX_H

#include "base/error.h"
#include "base/strbuf.h"

struct mx_regex {
    void *code; /* pcre2_code; immutable, shared between threads */
};

/* Compiles a pattern, or with `literal` a plain string. Errors: UNSUPPORTED (with the reason),
 * MEMORY. */
mtplx_status mx_regex_compile(struct mx_regex *re, const char *pattern, size_t len, bool literal,
                              mtplx_error *err);
void mx_regex_free(struct mx_regex *re);

/* Translates Ruby syntax to PCRE2's; exposed for tests. */
mtplx_status mx_regex_translate(const char *pattern, size_t len, struct mx_strbuf *out,
                                mtplx_error *err);

/* Match state of one encode call. `text_len` sets the CPU time that all its searches may use. */
struct mx_regex_work;
struct mx_regex_work *mx_regex_work_new(size_t text_len);
void mx_regex_work_free(struct mx_regex_work *w);

/* Walks over the successive matches in s[0..n), which must be valid UTF-8. */
struct mx_regex_iter {
    const struct mx_regex *re;
    const char *s;
    size_t n;
    size_t at;       /* where the next search starts; past n: exhausted */
    size_t last_end; /* end of the last match, SIZE_MAX before the first */
    size_t start, end;
};
void mx_regex_iter_init(struct mx_regex_iter *it, const struct mx_regex *re, const char *s,
                        size_t n);
/* Finds the next match and sets start and end; *found is false when there is none. An empty match
 * right after the last match is passed over. Errors: LIMIT, MEMORY. */
mtplx_status mx_regex_next(struct mx_regex_work *w, struct mx_regex_iter *it, bool *found,
                           mtplx_error *err);

#endif
