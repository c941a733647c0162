/* Pre-tokenizer.
 *
 * Invariants:
 *   1. At most one stage has prefix_space, so one scratch buffer serves all stages.
 *   2. No stage follows a ByteLevel: it would have to see text in the byte-level alphabet. */
#include "text/pretokenize.h"

#include <stdio.h>
#include <string.h>

/* The pattern that ByteLevel applies unless use_regex is false. */
#define GPT2_PATTERN                                                                               \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* Word characters of UTS #18 annex C, which Whitespace means by \w. */
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}"

/* ---- Loading ---- */

/* The next free stage, or NULL with an UNSUPPORTED error. */
static struct mx_pretok_stage *add_stage(struct mx_pretok *p, const char *where, mtplx_error *err)
{
    if (p->byte_level) {
        mx_error(err, MTPLX_ERR_UNSUPPORTED, "%s follows a ByteLevel, which must come last", where);
        return NULL;
    }
    if (p->n == MX_PRETOK_STAGES) {
        mx_error(err, MTPLX_ERR_UNSUPPORTED, "%s: more than %d steps are not supported", where,
                 MX_PRETOK_STAGES);
        return NULL;
    }
    struct mx_pretok_stage *stage = &p->stages[p->n++];
    *stage = (struct mx_pretok_stage){0};
    return stage;
}

static mtplx_status add_split(struct mx_pretok *p, const char *where, const char *pattern,
                              size_t len, bool literal, enum mx_split_behavior behavior,
                              bool invert, mtplx_error *err)
{
    struct mx_pretok_stage *stage = add_stage(p, where, err);
    if (!stage)
        return MTPLX_ERR_UNSUPPORTED;
    stage->behavior = behavior;
    stage->invert = invert;
    mtplx_status status = mx_regex_compile(&stage->re, pattern, len, literal, err);
    if (status)
        mx_error_prefix(err, "%s", where);
    return status;
}

static mtplx_status add_fixed(struct mx_pretok *p, const char *where, const char *pattern,
                              enum mx_split_behavior behavior, bool invert, mtplx_error *err)
{
    return add_split(p, where, pattern, strlen(pattern), false, behavior, invert, err);
}

static mtplx_status read_behavior(const json_t *spec, const char *where,
                                  enum mx_split_behavior *out, mtplx_error *err)
{
    static const struct {
        const char *name;
        enum mx_split_behavior behavior;
    } names[] = {{"Isolated", MX_SPLIT_ISOLATED},
                 {"Removed", MX_SPLIT_REMOVED},
                 {"MergedWithPrevious", MX_SPLIT_MERGED_WITH_PREVIOUS},
                 {"MergedWithNext", MX_SPLIT_MERGED_WITH_NEXT},
                 {"Contiguous", MX_SPLIT_CONTIGUOUS}};
    const char *name;
    size_t len;
    *out = MX_SPLIT_ISOLATED;
    mtplx_status status = mx_tok_string(spec, where, "behavior", false, &name, &len, err);
    if (status || !name)
        return status;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        *out = names[i].behavior;
        if (strcmp(name, names[i].name) == 0)
            return MTPLX_OK;
    }
    return mx_error(err, MTPLX_ERR_UNSUPPORTED, "%s.behavior \"%.32s\" is not known", where, name);
}

static mtplx_status load_split(struct mx_pretok *p, const json_t *spec, const char *where,
                               mtplx_error *err)
{
    enum mx_split_behavior behavior;
    bool invert;
    mtplx_status status = read_behavior(spec, where, &behavior, err);
    if (!status)
        status = mx_tok_bool(spec, where, "invert", false, &invert, err);
    if (status)
        return status;
    const json_t *pattern = json_object_get(spec, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    const json_t *text = regex ? regex : json_object_get(pattern, "String");
    if (!json_is_string(text))
        return mx_error(err, MTPLX_ERR_FORMAT,
                        "%s.pattern is neither {\"Regex\": text} nor {\"String\": text}", where);
    if (!regex && json_string_length(text) == 0)
        return mx_error(err, MTPLX_ERR_UNSUPPORTED, "%s.pattern is an empty string", where);
    return add_split(p, where, json_string_value(text), json_string_length(text), !regex, behavior,
                     invert, err);
}

static mtplx_status load_byte_level(struct mx_pretok *p, const json_t *spec, const char *where,
                                    mtplx_error *err)
{
    bool prefix, regex;
    mtplx_status status = mx_tok_bool(spec, where, "add_prefix_space", true, &prefix, err);
    if (!status)
        status = mx_tok_bool(spec, where, "use_regex", true, &regex, err);
    if (!status && prefix) {
        struct mx_pretok_stage *stage = add_stage(p, where, err);
        if (!stage)
            return MTPLX_ERR_UNSUPPORTED;
        stage->prefix_space = true;
    }
    if (!status && regex)
        status = add_fixed(p, where, GPT2_PATTERN, MX_SPLIT_ISOLATED, false, err);
    if (!status && p->byte_level)
        status = mx_error(err, MTPLX_ERR_UNSUPPORTED, "%s is a second ByteLevel", where);
    p->byte_level = true;
    return status;
}

static mtplx_status load_digits(struct mx_pretok *p, const json_t *spec, const char *where,
                                mtplx_error *err)
{
    bool individual;
    mtplx_status status = mx_tok_bool(spec, where, "individual_digits", false, &individual, err);
    if (status)
        return status;
    return add_fixed(p, where, "\\p{N}", individual ? MX_SPLIT_ISOLATED : MX_SPLIT_CONTIGUOUS,
                     false, err);
}

static mtplx_status load_punctuation(struct mx_pretok *p, const json_t *spec, const char *where,
                                     mtplx_error *err)
{
    enum mx_split_behavior behavior;
    mtplx_status status = read_behavior(spec, where, &behavior, err);
    if (status)
        return status;
    return add_fixed(p, where, "[\\p{P}!-/:-@\\[-`{-~]", behavior, false, err);
}

static mtplx_status load_step(struct mx_pretok *p, const json_t *spec, const char *where,
                              mtplx_error *err)
{
    const char *type;
    mtplx_status status = mx_tok_type(spec, where, &type, err);
    if (status)
        return status;
    if (strcmp(type, "Split") == 0)
        return load_split(p, spec, where, err);
    if (strcmp(type, "ByteLevel") == 0)
        return load_byte_level(p, spec, where, err);
    if (strcmp(type, "Digits") == 0)
        return load_digits(p, spec, where, err);
    if (strcmp(type, "Punctuation") == 0)
        return load_punctuation(p, spec, where, err);
    if (strcmp(type, "Whitespace") == 0)
        return add_fixed(p, where, "[" WORD "]+|[^" WORD "\\s]+", MX_SPLIT_REMOVED, true, err);
    if (strcmp(type, "WhitespaceSplit") == 0)
        return add_fixed(p, where, "\\s", MX_SPLIT_REMOVED, false, err);
    return mx_error(err, MTPLX_ERR_UNSUPPORTED, "%s.type \"%.32s\" is not supported", where, type);
}

static mtplx_status load_sequence(struct mx_pretok *p, const json_t *spec, mtplx_error *err)
{
    json_t *list;
    mtplx_status status = mx_tok_array(spec, "pre_tokenizer", "pretokenizers", &list, err);
    for (size_t i = 0; !status && i < json_array_size(list); i++) {
        char where[64];
        snprintf(where, sizeof where, "pre_tokenizer.pretokenizers[%zu]", i);
        status = load_step(p, json_array_get(list, i), where, err);
    }
    return status;
}

mtplx_status mx_pretok_load(struct mx_pretok *p, const json_t *spec, mtplx_error *err)
{
    *p = (struct mx_pretok){0};
    if (!spec || json_is_null(spec))
        return MTPLX_OK;
    const char *type;
    mtplx_status status = mx_tok_type(spec, "pre_tokenizer", &type, err);
    if (!status && strcmp(type, "Sequence") == 0)
        status = load_sequence(p, spec, err);
    else if (!status)
        status = load_step(p, spec, "pre_tokenizer", err);
    if (status)
        mx_pretok_free(p);
    return status;
}

void mx_pretok_free(struct mx_pretok *p)
{
    for (size_t i = 0; i < p->n; i++)
        mx_regex_free(&p->stages[i].re);
    *p = (struct mx_pretok){0};
}

/* ---- Running ---- */

/* A run through the stages: piece [start, end) of `s` goes to stage `stage`. */
struct run {
    const struct mx_pretok *p;
    struct mx_pretok_work *w;
    mx_word_fn *fn;
    void *ctx;
    mtplx_error *err;
};

static mtplx_status run_stage(const struct run *r, size_t stage, const char *s, size_t n);

/* A match or a gap that may still grow by its neighbour. */
struct item {
    size_t start, end;
    bool match;
};

static bool joins(enum mx_split_behavior behavior, bool held, bool next)
{
    switch (behavior) {
    case MX_SPLIT_MERGED_WITH_PREVIOUS: return !held && next;
    case MX_SPLIT_MERGED_WITH_NEXT: return held && !next;
    case MX_SPLIT_CONTIGUOUS: return held == next;
    case MX_SPLIT_ISOLATED:
    case MX_SPLIT_REMOVED: break;
    }
    return false;
}

struct splitter {
    const struct run *r;
    size_t stage;
    const char *s;
    struct item held;
    bool has_held;
};

static mtplx_status release(struct splitter *sp)
{
    const struct mx_pretok_stage *stage = &sp->r->p->stages[sp->stage];
    if (!sp->has_held)
        return MTPLX_OK;
    sp->has_held = false;
    if ((stage->behavior == MX_SPLIT_REMOVED && sp->held.match) || sp->held.end == sp->held.start)
        return MTPLX_OK;
    return run_stage(sp->r, sp->stage + 1, sp->s + sp->held.start, sp->held.end - sp->held.start);
}

static mtplx_status feed(struct splitter *sp, size_t start, size_t end, bool match)
{
    const struct mx_pretok_stage *stage = &sp->r->p->stages[sp->stage];
    match ^= stage->invert;
    if (sp->has_held && joins(stage->behavior, sp->held.match, match)) {
        sp->held.end = end;
        sp->held.match = match;
        return MTPLX_OK;
    }
    mtplx_status status = release(sp);
    sp->held = (struct item){start, end, match};
    sp->has_held = true;
    return status;
}

static mtplx_status run_split(const struct run *r, size_t stage, const char *s, size_t n)
{
    struct splitter sp = {.r = r, .stage = stage, .s = s};
    struct mx_regex_iter it;
    mx_regex_iter_init(&it, &r->p->stages[stage].re, s, n);
    for (size_t done = 0;;) {
        bool found;
        mtplx_status status = mx_regex_next(r->w->regex, &it, &found, r->err);
        size_t gap_end = found ? it.start : n;
        if (!status && gap_end > done)
            status = feed(&sp, done, gap_end, false);
        if (!status && !found)
            return release(&sp);
        if (!status)
            status = feed(&sp, it.start, it.end, true);
        if (status)
            return status;
        done = it.end;
    }
}

static mtplx_status run_prefix(const struct run *r, size_t stage, const char *s, size_t n)
{
    if (n > 0 && s[0] == ' ')
        return run_stage(r, stage + 1, s, n);
    struct mx_strbuf *b = &r->w->prefixed;
    mx_strbuf_clear(b);
    mx_strbuf_putc(b, ' ');
    if (!mx_strbuf_append(b, s, n))
        return mx_error_nomem(r->err, "a word", n);
    return run_stage(r, stage + 1, b->data, b->len);
}

/* Recursion is as deep as there are stages, at most MX_PRETOK_STAGES. */
static mtplx_status run_stage(const struct run *r, size_t stage, const char *s, size_t n)
{
    if (stage == r->p->n)
        return n > 0 ? r->fn(r->ctx, s, n, r->err) : MTPLX_OK;
    if (r->p->stages[stage].prefix_space)
        return run_prefix(r, stage, s, n);
    return run_split(r, stage, s, n);
}

mtplx_status mx_pretok_run(const struct mx_pretok *p, struct mx_pretok_work *w, const char *s,
                           size_t n, mx_word_fn *fn, void *ctx, mtplx_error *err)
{
    struct run r = {.p = p, .w = w, .fn = fn, .ctx = ctx, .err = err};
    return run_stage(&r, 0, s, n);
}
