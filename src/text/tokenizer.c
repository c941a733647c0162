/* Tokenizer: loading tokenizer.json and the encode pipeline.
 *
 * Encoding is text -> added tokens matched on the raw text -> normaliser -> added tokens matched on
 * the normalised text -> pre-tokenizer -> BPE, each step applied to the gaps the one before left.
 * The post_processor is not applied: a BOS and the like belong to the chat template. "truncation"
 * and "padding" are settings of a training run and are not applied either.
 *
 * A file is refused when it holds what would be tokenised differently from the reference; fields
 * that do not change ids are ignored. */
#include "text/tokenizer.h"

#include "base/file.h"
#include "base/utf8.h"
#include "text/detok.h"
#include "text/tok_int.h"
#include "text/tok_json.h"
#include "text/tok_regex.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MAX ((size_t)64 << 20) /* the largest tokenizer.json in use has about 35 MB */

/* Scratch of loading. One regex work for all added tokens bounds the time they take together. */
struct loader {
    struct mx_tokenizer *t;
    struct mx_norm_work norm;
};
#define LOAD_TEXT ((size_t)1 << 20) /* as if all of them were one text of this length */

/* ---- Loading ---- */

static mtplx_status load_vocab(struct mx_tokenizer *t, const json_t *model, mtplx_error *err)
{
    json_t *vocab = json_object_get(model, "vocab"), *id;
    const char *text;
    if (!json_is_object(vocab))
        return mx_error(err, MTPLX_ERR_FORMAT, "model.vocab is not an object");
    json_object_foreach(vocab, text, id)
    {
        if (!json_is_integer(id))
            return mx_error(err, MTPLX_ERR_FORMAT, "model.vocab[\"%.64s\"] is not an integer",
                            text);
        mtplx_status status = mx_vocab_add(&t->vocab, json_integer_value(id), text, strlen(text),
                                           MX_TOKEN_MODEL, "model.vocab", err);
        if (status)
            return status;
    }
    return MTPLX_OK;
}

static mtplx_status check_model_type(const json_t *model, mtplx_error *err)
{
    const char *type;
    size_t len;
    if (!json_is_object(model))
        return mx_error(err, MTPLX_ERR_FORMAT, "model is not an object");
    mtplx_status status = mx_tok_string(model, "model", "type", false, &type, &len, err);
    if (status || (!type && json_object_get(model, "merges"))) /* old BPE files have no type */
        return status;
    if (!type || strcmp(type, "BPE") != 0)
        return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                        "model.type \"%.32s\" is not supported, only BPE", type ? type : "");
    return MTPLX_OK;
}

struct added_spec {
    const char *where;
    const char *content;
    size_t len;
    bool special, normalized;
    struct mx_added_token token;
};

static mtplx_status read_added(const json_t *entry, const char *where, struct added_spec *a,
                               mtplx_error *err)
{
    *a = (struct added_spec){.where = where};
    if (!json_is_object(entry))
        return mx_error(err, MTPLX_ERR_FORMAT, "%s is not an object", where);
    mtplx_status s = mx_tok_string(entry, where, "content", true, &a->content, &a->len, err);
    if (!s)
        s = mx_tok_bool(entry, where, "special", false, &a->special, err);
    if (!s)
        s = mx_tok_bool(entry, where, "normalized", !a->special, &a->normalized, err);
    if (!s)
        s = mx_tok_bool(entry, where, "single_word", false, &a->token.single_word, err);
    if (!s)
        s = mx_tok_bool(entry, where, "lstrip", false, &a->token.lstrip, err);
    if (!s)
        s = mx_tok_bool(entry, where, "rstrip", false, &a->token.rstrip, err);
    return s;
}

/* A pattern for the normalised text is itself normalised. */
static mtplx_status put_pattern(struct loader *l, struct added_spec *a, mtplx_error *err)
{
    size_t len = a->len;
    a->token.text = a->content;
    if (a->normalized && len <= MX_ADDED_LEN_MAX) {
        mtplx_status status =
            mx_norm_apply(&l->t->norm, &l->norm, a->content, a->len, &a->token.text, &len, err);
        if (status || len == 0)
            return status;
    }
    a->token.len = (uint32_t)len;
    return mx_added_put(a->normalized ? &l->t->normalized : &l->t->raw, a->token, err);
}

/* A token that was added before keeps its first definition. Empty ones match nothing. */
static mtplx_status add_token(struct loader *l, const json_t *entry, int64_t id, const char *where,
                              mtplx_error *err)
{
    struct added_spec a;
    mtplx_status status = read_added(entry, where, &a, err);
    if (status || a.len == 0)
        return status;
    int32_t known = mx_vocab_find(&l->t->vocab, a.content, a.len, MX_TOKEN_ADDED);
    uint8_t flags = (uint8_t)(MX_TOKEN_ADDED | (a.special ? MX_TOKEN_SPECIAL : 0));
    status = mx_vocab_add(&l->t->vocab, id, a.content, a.len, known < 0 ? flags : 0, where, err);
    if (status || known >= 0)
        return status;
    a.token.id = (int32_t)id;
    status = put_pattern(l, &a, err);
    if (status)
        mx_error_prefix(err, "%s", where);
    return status;
}

static mtplx_status load_added(struct loader *l, const json_t *root, mtplx_error *err)
{
    const json_t *list = json_object_get(root, "added_tokens");
    if (!list || json_is_null(list))
        return MTPLX_OK;
    if (!json_is_array(list))
        return mx_error(err, MTPLX_ERR_FORMAT, "added_tokens is not an array");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i), *id = json_object_get(entry, "id");
        char where[48];
        snprintf(where, sizeof where, "added_tokens[%zu]", i);
        if (!json_is_integer(id))
            return mx_error(err, MTPLX_ERR_FORMAT, "%s.id is not an integer", where);
        mtplx_status status = add_token(l, entry, json_integer_value(id), where, err);
        if (status)
            return status;
    }
    return MTPLX_OK;
}

/* added_tokens_decoder of tokenizer_config.json: {"id": {"content": ...}, ...}. */
static mtplx_status load_config_added(struct loader *l, json_t *config, mtplx_error *err)
{
    json_t *map = json_object_get(config, "added_tokens_decoder"), *entry;
    const char *key;
    if (!map || json_is_null(map))
        return MTPLX_OK;
    if (!json_is_object(map))
        return mx_error(err, MTPLX_ERR_FORMAT, "added_tokens_decoder is not an object");
    json_object_foreach(map, key, entry)
    {
        char where[64], *end;
        snprintf(where, sizeof where, "added_tokens_decoder[\"%.24s\"]", key);
        errno = 0;
        long long id = strtoll(key, &end, 10);
        if (errno || end == key || *end)
            return mx_error(err, MTPLX_ERR_FORMAT, "%s is not keyed by an id", where);
        mtplx_status status = add_token(l, entry, id, where, err);
        if (status)
            return status;
    }
    return MTPLX_OK;
}

/* Everything but what tokenizer_config.json may add and what depends on that. */
static mtplx_status load_file(struct loader *l, const json_t *root, mtplx_error *err)
{
    struct mx_tokenizer *t = l->t;
    if (!json_is_object(root))
        return mx_error(err, MTPLX_ERR_FORMAT, "the file is not a JSON object");
    const json_t *model = json_object_get(root, "model");
    mtplx_status s = check_model_type(model, err);
    if (!s)
        s = mx_norm_load(&t->norm, json_object_get(root, "normalizer"), err);
    if (!s)
        s = mx_pretok_load(&t->pretok, json_object_get(root, "pre_tokenizer"), err);
    if (!s)
        s = load_vocab(t, model, err);
    if (!s)
        s = load_added(l, root, err);
    return s ? s : mx_bpe_load(&t->bpe, model, &t->vocab, t->pretok.byte_level, err);
}

static json_t *parse_json(const char *text, size_t len, const char *name, mtplx_error *err)
{
    json_error_t e;
    if (len > FILE_MAX) {
        mx_error(err, MTPLX_ERR_LIMIT, "%s: has %zu bytes, more than the %zu supported", name, len,
                 FILE_MAX);
        return NULL;
    }
    json_t *root = json_loadb(text, len, JSON_ALLOW_NUL, &e);
    if (!root && e.line < 0) /* jansson has no place to point at: an allocation failed */
        mx_error_nomem(err, name, len);
    else if (!root)
        mx_error(err, MTPLX_ERR_FORMAT, "%s: not valid JSON at line %d, column %d: %s", name,
                 e.line, e.column, e.text);
    return root;
}

static json_t *read_json(const char *path, mtplx_error *err)
{
    size_t len;
    char *text = mx_file_read(path, FILE_MAX, &len, err);
    json_t *root = text ? parse_json(text, len, path, err) : NULL;
    free(text);
    return root;
}

static mtplx_status load_parts(struct loader *l, const json_t *root, json_t *config,
                               const char *config_name, mtplx_error *err)
{
    struct mx_tokenizer *t = l->t;
    mtplx_status status = load_file(l, root, err);
    if (status) {
        mx_error_prefix(err, "%s", t->name);
        return status;
    }
    if (config)
        status = load_config_added(l, config, err);
    if (status) {
        mx_error_prefix(err, "%s", config_name);
        return status;
    }
    mx_added_ready(&t->raw);
    mx_added_ready(&t->normalized);
    status = mx_decoder_apply(json_object_get(root, "decoder"), &t->vocab, err);
    if (status)
        mx_error_prefix(err, "%s", t->name);
    return status;
}

static struct mx_tokenizer *build(const json_t *root, const char *name, json_t *config,
                                  const char *config_name, mtplx_error *err)
{
    struct mx_tokenizer *t = calloc(1, sizeof *t);
    if (t)
        mx_vocab_init(&t->vocab);
    struct loader l = {.t = t, .norm.regex = mx_regex_work_new(LOAD_TEXT)};
    mtplx_status status = MTPLX_OK;
    if (!t || !l.norm.regex || !(t->name = strdup(name)))
        status = mx_error_nomem(err, "the tokenizer", sizeof *t);
    if (!status)
        status = load_parts(&l, root, config, config_name, err);
    mx_regex_work_free(l.norm.regex);
    mx_norm_work_free(&l.norm);
    if (status == MTPLX_OK)
        return t;
    mx_tokenizer_free(t);
    return NULL;
}

struct mx_tokenizer *mx_tokenizer_parse(const char *json, size_t len, const char *name,
                                        mtplx_error *err)
{
    json_t *root = parse_json(json, len, name, err);
    struct mx_tokenizer *t = root ? build(root, name, NULL, NULL, err) : NULL;
    json_decref(root);
    return t;
}

static struct mx_tokenizer *open_paths(const char *path, const char *config_path, mtplx_error *err)
{
    if (!path || !config_path) {
        mx_error_nomem(err, "a path", 0);
        return NULL;
    }
    struct mx_tokenizer *t = NULL;
    bool has_config = mx_file_exists(config_path);
    json_t *root = read_json(path, err);
    json_t *config = root && has_config ? read_json(config_path, err) : NULL;
    if (root && (config || !has_config))
        t = build(root, path, config, config_path, err);
    json_decref(root);
    json_decref(config);
    return t;
}

struct mx_tokenizer *mx_tokenizer_open(const char *dir, mtplx_error *err)
{
    char *path = mx_path_join(dir, "tokenizer.json");
    char *config_path = mx_path_join(dir, "tokenizer_config.json");
    struct mx_tokenizer *t = open_paths(path, config_path, err);
    free(path);
    free(config_path);
    return t;
}

void mx_tokenizer_free(struct mx_tokenizer *t)
{
    if (!t)
        return;
    mx_added_free(&t->raw);
    mx_added_free(&t->normalized);
    mx_pretok_free(&t->pretok);
    mx_norm_free(&t->norm);
    mx_bpe_free(&t->bpe);
    mx_vocab_free(&t->vocab);
    free(t->name);
    free(t);
}

/* ---- Tokens ---- */

void mx_ids_free(struct mx_ids *ids)
{
    free(ids->v);
    *ids = (struct mx_ids){0};
}

int mx_tokenizer_size(const struct mx_tokenizer *t)
{
    return t->vocab.size;
}

const char *mx_tokenizer_bytes(const struct mx_tokenizer *t, int32_t id, size_t *len)
{
    *len = 0;
    if (!mx_vocab_flags(&t->vocab, id))
        return "";
    *len = t->vocab.tokens[id].bytes_len;
    return t->vocab.pool.data + t->vocab.tokens[id].bytes;
}

bool mx_tokenizer_is_special(const struct mx_tokenizer *t, int32_t id)
{
    return (mx_vocab_flags(&t->vocab, id) & MX_TOKEN_SPECIAL) != 0;
}

bool mx_tokenizer_is_added(const struct mx_tokenizer *t, int32_t id)
{
    return (mx_vocab_flags(&t->vocab, id) & MX_TOKEN_ADDED) != 0;
}

static bool next_special_of(const struct mx_tokenizer *t, const struct mx_added_set *set,
                            const char *text, size_t len, struct mx_added_match *m)
{
    struct mx_added_iter it = {.set = set, .s = text, .n = len};
    while (mx_added_next(&it, m)) {
        if (mx_tokenizer_is_special(t, m->id))
            return true;
    }
    return false;
}

bool mx_tokenizer_next_special(const struct mx_tokenizer *t, const char *text, size_t len,
                               size_t from, size_t *start, size_t *end)
{
    struct mx_added_match a, b;
    bool in_raw = next_special_of(t, &t->raw, text + from, len - from, &a);
    bool in_norm = next_special_of(t, &t->normalized, text + from, len - from, &b);
    if (!in_raw && !in_norm)
        return false;
    const struct mx_added_match *m = in_raw && (!in_norm || a.start <= b.start) ? &a : &b;
    *start = from + m->start;
    *end = from + m->end;
    return true;
}

void mx_tokenizer_ranks(const struct mx_tokenizer *t, uint32_t *ranks, size_t n)
{
    memset(ranks, 0xff, n * sizeof *ranks);
    for (uint32_t i = 0; i < t->bpe.n_merges; i++) {
        const struct mx_bpe_merge *m = &t->bpe.merges[i];
        if (m->id >= 0 && (size_t)m->id < n && m->rank < ranks[m->id])
            ranks[m->id] = m->rank;
    }
}

int32_t mx_tokenizer_find(const struct mx_tokenizer *t, const char *token)
{
    return mx_vocab_find(&t->vocab, token, strlen(token), MX_TOKEN_MODEL | MX_TOKEN_ADDED);
}

/* ---- Encoding ---- */

/* State of one encode call; the tokenizer itself is only read. */
struct encoder {
    const struct mx_tokenizer *t;
    bool plain;
    struct mx_norm_work norm;
    struct mx_pretok_work pretok;
    struct mx_bpe_work *bpe;
    struct mx_ids *out;
};

static mtplx_status encode_word(void *ctx, const char *s, size_t n, mtplx_error *err)
{
    struct encoder *e = ctx;
    return mx_bpe_encode(&e->t->bpe, e->bpe, s, n, e->out, err);
}

static mtplx_status encode_words(struct encoder *e, const char *s, size_t n, mtplx_error *err)
{
    return mx_pretok_run(&e->t->pretok, &e->pretok, s, n, encode_word, e, err);
}

typedef mtplx_status gap_fn(struct encoder *e, const char *s, size_t n, mtplx_error *err);

/* Emits the added tokens of `set` in s[0..n) and gives the gaps between them to `fn`. */
static mtplx_status encode_added(struct encoder *e, const struct mx_added_set *set, const char *s,
                                 size_t n, gap_fn *fn, mtplx_error *err)
{
    struct mx_added_iter it = {.set = set, .s = s, .n = n, .strip_from = SIZE_MAX};
    struct mx_added_match m;
    size_t done = 0;
    while (!e->plain && mx_added_next(&it, &m)) {
        mtplx_status status = done < m.start ? fn(e, s + done, m.start - done, err) : MTPLX_OK;
        if (status)
            return status;
        if (!mx_ids_reserve(e->out, 1))
            return mx_error_nomem(err, "token ids", e->out->n * sizeof *e->out->v);
        e->out->v[e->out->n++] = m.id;
        done = m.end;
    }
    return done < n ? fn(e, s + done, n - done, err) : MTPLX_OK;
}

static mtplx_status encode_raw_gap(struct encoder *e, const char *s, size_t n, mtplx_error *err)
{
    const char *text;
    size_t len;
    mtplx_status status = mx_norm_apply(&e->t->norm, &e->norm, s, n, &text, &len, err);
    return status ? status : encode_added(e, &e->t->normalized, text, len, encode_words, err);
}

/* Copies text with every byte that is not part of a code point replaced by U+FFFD. */
static bool replace_invalid(struct mx_strbuf *out, const char *s, size_t n)
{
    size_t done = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int used = mx_utf8_decode(s + i, n - i, &cp);
        if (used > 0) {
            i += (size_t)used;
            continue;
        }
        mx_strbuf_append(out, s + done, i - done);
        mx_strbuf_append(out, "\xef\xbf\xbd", 3);
        done = ++i;
    }
    return mx_strbuf_append(out, s + done, n - done);
}

static mtplx_status encode_valid(const struct mx_tokenizer *t, const char *s, size_t n, bool plain,
                                 struct mx_ids *out, mtplx_error *err)
{
    struct encoder e = {.t = t, .plain = plain, .out = out};
    size_t before = out->n;
    mtplx_status status = MTPLX_OK;
    e.bpe = mx_bpe_work_new(n);
    e.pretok.regex = e.norm.regex = mx_regex_work_new(n);
    if (!e.bpe || !e.pretok.regex)
        status = mx_error_nomem(err, "encoding", n);
    if (!status)
        status = encode_added(&e, &t->raw, s, n, encode_raw_gap, err);
    if (status)
        out->n = before;
    mx_regex_work_free(e.pretok.regex);
    mx_bpe_work_free(e.bpe);
    mx_norm_work_free(&e.norm);
    mx_strbuf_free(&e.pretok.prefixed);
    return status;
}

mtplx_status mx_tokenizer_encode(const struct mx_tokenizer *t, const char *text, size_t len,
                                 bool plain, struct mx_ids *out, mtplx_error *err)
{
    if (len == 0)
        return MTPLX_OK;
    if (len > INT32_MAX / 4)
        return mx_error(err, MTPLX_ERR_LIMIT, "text of %zu bytes is too long to encode at once",
                        len);
    mtplx_status status;
    if (mx_utf8_valid(text, len)) {
        status = encode_valid(t, text, len, plain, out, err);
    } else {
        struct mx_strbuf valid;
        mx_strbuf_init(&valid, 0);
        status = replace_invalid(&valid, text, len)
                     ? encode_valid(t, valid.data, valid.len, plain, out, err)
                     : mx_error_nomem(err, "encoding", len);
        mx_strbuf_free(&valid);
    }
    if (status)
        mx_error_prefix(err, "%s", t->name);
    return status;
}
