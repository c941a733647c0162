/* Normaliser: Unicode normal forms (NFC, NFD, NFKC, NFKD), Replace, Prepend, and sequences. */
#ifndef MX_TEXT_TOK_NORM_H
#define MX_TEXT_TOK_NORM_H

#include "base/error.h"
#include "text/tok_json.h"
#include "text/tok_regex.h"

#define MX_NORM_STEPS 16

enum mx_norm_kind { MX_NORM_FORM, MX_NORM_REPLACE, MX_NORM_PREPEND };

struct mx_norm_step {
    enum mx_norm_kind kind;
    bool compose, compat;     /* FORM */
    struct mx_regex re;       /* REPLACE */
    struct mx_strbuf content; /* REPLACE, PREPEND */
};

struct mx_norm {
    struct mx_norm_step steps[MX_NORM_STEPS];
    size_t n;
};

/* `spec` is the "normalizer" value; NULL and null leave text as it is. Errors: FORMAT, UNSUPPORTED,
 * MEMORY. On error *n is freed. */
mtplx_status mx_norm_load(struct mx_norm *n, const json_t *spec, mtplx_error *err);
void mx_norm_free(struct mx_norm *n);

/* Scratch of one encode call. Zero-initialise. */
struct mx_norm_work {
    struct mx_regex_work *regex; /* borrowed */
    struct mx_strbuf text[2];
    int32_t *cps, *sorted; /* code points of a run being normalised */
    size_t n_cps, cap_cps, cap_sorted;
};
void mx_norm_work_free(struct mx_norm_work *w);

/* Normalises s[0..len), valid UTF-8. *out is `s` itself or lies in the scratch, valid until the
 * next call. Errors: LIMIT (the result outgrows 32 times the text), MEMORY. */
mtplx_status mx_norm_apply(const struct mx_norm *n, struct mx_norm_work *w, const char *s,
                           size_t len, const char **out, size_t *out_len, mtplx_error *err);

#endif
