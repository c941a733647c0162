/* Normaliser.
 *
 * Normal forms work on runs: text below the first code point that a form can touch (U+0300 when
 * composing canonically, U+0080 otherwise) passes as it is. A run starts one character early,
 * because its first mark may compose with that character, and ends before the next low code point,
 * which is a starter that composes with nothing before it.
 *
 * Decomposition and composition tables are utf8proc's. Canonical ordering is done here, since
 * utf8proc orders by exchange, which is quadratic in the number of marks in a row. */
#include "text/tok_norm.h"

#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define GROWTH 32         /* most that normalising may multiply the text by */
#define DECOMPOSED_MAX 32 /* code points of one decomposition; Unicode's longest has 18 */
#define INSERTION_MAX 16  /* marks in a row that are ordered by insertion */

/* ---- Loading ---- */

static mtplx_status load_content(struct mx_norm_step *step, const json_t *spec, const char *where,
                                 const char *key, mtplx_error *err)
{
    const char *content;
    size_t len;
    mtplx_status status = mx_tok_string(spec, where, key, true, &content, &len, err);
    if (status)
        return status;
    mx_strbuf_init(&step->content, 0);
    if (!mx_strbuf_append(&step->content, content, len))
        return mx_error_nomem(err, where, len);
    return MTPLX_OK;
}

static mtplx_status load_replace(struct mx_norm_step *step, const json_t *spec, const char *where,
                                 mtplx_error *err)
{
    step->kind = MX_NORM_REPLACE;
    const json_t *pattern = json_object_get(spec, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    const json_t *text = regex ? regex : json_object_get(pattern, "String");
    if (!json_is_string(text) || json_string_length(text) == 0)
        return mx_error(err, MTPLX_ERR_FORMAT,
                        "%s.pattern is neither {\"Regex\": text} nor {\"String\": text}", where);
    mtplx_status status =
        mx_regex_compile(&step->re, json_string_value(text), json_string_length(text), !regex, err);
    if (status) {
        mx_error_prefix(err, "%s", where);
        return status;
    }
    return load_content(step, spec, where, "content", err);
}

static mtplx_status load_step(struct mx_norm *n, const json_t *spec, const char *where,
                              mtplx_error *err)
{
    static const struct {
        const char *name;
        bool compose, compat;
    } forms[] = {
        {"NFC", true, false}, {"NFD", false, false}, {"NFKC", true, true}, {"NFKD", false, true}};
    const char *type;
    mtplx_status status = mx_tok_type(spec, where, &type, err);
    if (status)
        return status;
    if (n->n == MX_NORM_STEPS)
        return mx_error(err, MTPLX_ERR_UNSUPPORTED, "normalizer has more than %d steps",
                        MX_NORM_STEPS);
    struct mx_norm_step *step = &n->steps[n->n++];
    *step = (struct mx_norm_step){.kind = MX_NORM_FORM};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        step->compose = forms[i].compose;
        step->compat = forms[i].compat;
        if (strcmp(type, forms[i].name) == 0)
            return MTPLX_OK;
    }
    if (strcmp(type, "Replace") == 0)
        return load_replace(step, spec, where, err);
    step->kind = MX_NORM_PREPEND;
    if (strcmp(type, "Prepend") == 0)
        return load_content(step, spec, where, "prepend", err);
    return mx_error(err, MTPLX_ERR_UNSUPPORTED, "%s.type \"%.32s\" is not supported", where, type);
}

static mtplx_status load_sequence(struct mx_norm *n, const json_t *spec, mtplx_error *err)
{
    json_t *list;
    mtplx_status status = mx_tok_array(spec, "normalizer", "normalizers", &list, err);
    for (size_t i = 0; !status && i < json_array_size(list); i++) {
        char where[64];
        snprintf(where, sizeof where, "normalizer.normalizers[%zu]", i);
        status = load_step(n, json_array_get(list, i), where, err);
    }
    return status;
}

mtplx_status mx_norm_load(struct mx_norm *n, const json_t *spec, mtplx_error *err)
{
    *n = (struct mx_norm){0};
    if (!spec || json_is_null(spec))
        return MTPLX_OK;
    const char *type;
    mtplx_status status = mx_tok_type(spec, "normalizer", &type, err);
    if (!status && strcmp(type, "Sequence") == 0)
        status = load_sequence(n, spec, err);
    else if (!status)
        status = load_step(n, spec, "normalizer", err);
    if (status)
        mx_norm_free(n);
    return status;
}

void mx_norm_free(struct mx_norm *n)
{
    for (size_t i = 0; i < n->n; i++) {
        mx_regex_free(&n->steps[i].re);
        mx_strbuf_free(&n->steps[i].content);
    }
    *n = (struct mx_norm){0};
}

void mx_norm_work_free(struct mx_norm_work *w)
{
    mx_strbuf_free(&w->text[0]);
    mx_strbuf_free(&w->text[1]);
    free(w->cps);
    free(w->sorted);
    *w = (struct mx_norm_work){0};
}

/* ---- Normal forms ---- */

static bool reserve_cps(int32_t **v, size_t *cap, size_t need)
{
    if (need <= *cap)
        return true;
    size_t n = need < 256 ? 256 : need * 2;
    int32_t *grown = n <= SIZE_MAX / sizeof *grown ? realloc(*v, n * sizeof *grown) : NULL;
    if (!grown)
        return false;
    *v = grown;
    *cap = n;
    return true;
}

static int combining_class(int32_t cp)
{
    return utf8proc_get_property(cp)->combining_class;
}

/* Full decomposition of s[0..n) into w->cps, unordered. */
static bool decompose(const struct mx_norm_step *step, struct mx_norm_work *w, const char *s,
                      size_t n)
{
    int options = UTF8PROC_STABLE | (step->compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                  (step->compat ? UTF8PROC_COMPAT : 0);
    int boundclass = UTF8PROC_BOUNDCLASS_START;
    w->n_cps = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0xfffd;
        int used = mx_utf8_decode(s + i, n - i, &cp);
        i += used > 0 ? (size_t)used : 1;
        if (!reserve_cps(&w->cps, &w->cap_cps, w->n_cps + DECOMPOSED_MAX))
            return false;
        utf8proc_ssize_t got = utf8proc_decompose_char((utf8proc_int32_t)cp, w->cps + w->n_cps,
                                                       DECOMPOSED_MAX, options, &boundclass);
        if (got < 0 || got > DECOMPOSED_MAX)
            return false;
        w->n_cps += (size_t)got;
    }
    return true;
}

static void order_few(int32_t *v, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        int32_t cp = v[i];
        int class = combining_class(cp);
        size_t j = i;
        for (; j > 0 && combining_class(v[j - 1]) > class; j--)
            v[j] = v[j - 1];
        v[j] = cp;
    }
}

/* Counting sort by combining class, which is below 256; stable. */
static bool order_many(struct mx_norm_work *w, int32_t *v, size_t n)
{
    size_t at[257] = {0};
    if (!reserve_cps(&w->sorted, &w->cap_sorted, n))
        return false;
    for (size_t i = 0; i < n; i++)
        at[combining_class(v[i]) + 1]++;
    for (int c = 0; c < 256; c++)
        at[c + 1] += at[c];
    for (size_t i = 0; i < n; i++)
        w->sorted[at[combining_class(v[i])]++] = v[i];
    memcpy(v, w->sorted, n * sizeof *v);
    return true;
}

/* Canonical ordering: each run of non-starters is sorted by combining class. */
static bool order(struct mx_norm_work *w)
{
    for (size_t i = 0; i < w->n_cps;) {
        size_t start = i;
        while (i < w->n_cps && combining_class(w->cps[i]) != 0)
            i++;
        if (i - start > INSERTION_MAX) {
            if (!order_many(w, w->cps + start, i - start))
                return false;
        } else {
            order_few(w->cps + start, i - start);
        }
        if (i == start)
            i++;
    }
    return true;
}

static bool normalise_run(const struct mx_norm_step *step, struct mx_norm_work *w, const char *s,
                          size_t n, struct mx_strbuf *out)
{
    if (!decompose(step, w, s, n) || !order(w))
        return false;
    utf8proc_ssize_t count = (utf8proc_ssize_t)w->n_cps;
    if (step->compose)
        count = utf8proc_normalize_utf32(w->cps, count, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    for (utf8proc_ssize_t i = 0; i < count; i++) {
        char c[4];
        mx_strbuf_append(out, c, (size_t)mx_utf8_encode((uint32_t)w->cps[i], c));
    }
    return count >= 0 && !out->failed;
}

/* Bytes from `low_lead` on lead code points that the form may change. */
static size_t find_high(const char *s, size_t n, size_t at, uint8_t low_lead)
{
    while (at < n && ((uint8_t)s[at] < low_lead))
        at++;
    return at;
}

/* First character at or after `at` that leads below low_lead; `at` is a character boundary. */
static size_t find_low(const char *s, size_t n, size_t at, uint8_t low_lead)
{
    while (at < n && ((uint8_t)s[at] >= low_lead || ((uint8_t)s[at] & 0xc0) == 0x80))
        at++;
    return at;
}

static bool apply_form(const struct mx_norm_step *step, struct mx_norm_work *w, const char **s,
                       size_t *n, struct mx_strbuf *out)
{
    uint8_t low_lead = step->compose && !step->compat ? 0xcc : 0x80; /* U+0300 is CC 80 */
    size_t done = 0, high = find_high(*s, *n, 0, low_lead);
    if (high == *n)
        return true;
    while (high < *n) {
        size_t end = find_low(*s, *n, high, low_lead);
        while (high > done && ((uint8_t)(*s)[--high] & 0xc0) == 0x80) /* one character earlier */
            ;
        mx_strbuf_append(out, *s + done, high - done);
        if (!normalise_run(step, w, *s + high, end - high, out))
            return false;
        done = end;
        high = find_high(*s, *n, end, low_lead);
    }
    mx_strbuf_append(out, *s + done, *n - done);
    *s = out->data;
    *n = out->len;
    return !out->failed;
}

/* ---- Steps ---- */

static mtplx_status apply_replace(const struct mx_norm_step *step, struct mx_norm_work *w,
                                  const char **s, size_t *n, struct mx_strbuf *out,
                                  mtplx_error *err)
{
    struct mx_regex_iter it;
    mx_regex_iter_init(&it, &step->re, *s, *n);
    size_t done = 0;
    for (bool found = true; found;) {
        mtplx_status status = mx_regex_next(w->regex, &it, &found, err);
        if (status)
            return status;
        mx_strbuf_append(out, *s + done, (found ? it.start : *n) - done);
        if (found && step->content.len > 0)
            mx_strbuf_append(out, step->content.data, step->content.len);
        done = found ? it.end : *n;
    }
    *s = out->data ? out->data : "";
    *n = out->len;
    return MTPLX_OK;
}

static void apply_prepend(const struct mx_norm_step *step, const char **s, size_t *n,
                          struct mx_strbuf *out)
{
    if (*n == 0 || step->content.len == 0)
        return;
    mx_strbuf_append(out, step->content.data, step->content.len);
    mx_strbuf_append(out, *s, *n);
    *s = out->data;
    *n = out->len;
}

mtplx_status mx_norm_apply(const struct mx_norm *n, struct mx_norm_work *w, const char *s,
                           size_t len, const char **out, size_t *out_len, mtplx_error *err)
{
    size_t max = len < SIZE_MAX / GROWTH - 1024 ? len * GROWTH + 1024 : 0;
    int turn = 0;
    *out = s;
    *out_len = len;
    for (size_t i = 0; i < n->n; i++) {
        const struct mx_norm_step *step = &n->steps[i];
        struct mx_strbuf *b = &w->text[turn];
        mtplx_status status = MTPLX_OK;
        bool ok = true;
        mx_strbuf_clear(b);
        b->max = max;
        switch (step->kind) {
        case MX_NORM_FORM: ok = apply_form(step, w, out, out_len, b); break;
        case MX_NORM_REPLACE: status = apply_replace(step, w, out, out_len, b, err); break;
        case MX_NORM_PREPEND: apply_prepend(step, out, out_len, b); break;
        }
        if (status)
            return status;
        if (!ok || b->failed)
            return mx_error(err, MTPLX_ERR_LIMIT,
                            "normalising this text of %zu bytes takes too much memory", len);
        turn = *out == b->data ? 1 - turn : turn;
    }
    return MTPLX_OK;
}
