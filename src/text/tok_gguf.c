/* Tokenizer from the metadata of a GGUF file.
 *
 * The metadata lists the tokens in order of their ids with a type each, and the merges in order of
 * rank; normaliser and word pattern are named, not spelled out (tokenizer.ggml.pre). Control and
 * user-defined tokens are the added tokens of tokenizer.json: matched on the raw text, control ones
 * special. Unused tokens fill the vocabulary up to the rows of the embedding and stand for nothing.
 *
 * add_bos_token is not applied: framing is the chat template's business (tokenizer.h). */
#include "text/tok_int.h"

#include "base/utf8.h"
#include "text/detok.h"

#include <stdlib.h>
#include <string.h>

#define TOKENS "tokenizer.ggml.tokens"
#define TYPES "tokenizer.ggml.token_type"
#define MERGES "tokenizer.ggml.merges"

enum token_type {
    TYPE_NORMAL = 1,
    TYPE_CONTROL = 3,
    TYPE_USER_DEFINED = 4,
    TYPE_UNUSED = 5,
};

/* ---- Word patterns ------------------------------------------------------------------------ */

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
#define BREAKS "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct {
    const char *name, *pattern;
} patterns[] = {
    {"qwen2", CONTRACTIONS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+" BREAKS},
    {"qwen35",
     CONTRACTIONS "[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]"
                  "+" BREAKS},
};

static const char *find_pattern(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        if (strlen(patterns[i].name) == n && memcmp(patterns[i].name, name, n) == 0)
            return patterns[i].pattern;
    return NULL;
}

/* NFC, then the pattern, then the byte-level alphabet: what tokenizer.json says in those models. */
static mtplx_status load_pattern(struct mx_tokenizer *t, const char *pattern, mtplx_error *err)
{
    json_t *nfc = json_pack("{s:s}", "type", "NFC");
    json_t *pre = json_pack("{s:s,s:[{s:s,s:{s:s},s:s,s:b},{s:s,s:b,s:b,s:b}]}", "type", "Sequence",
                            "pretokenizers", "type", "Split", "pattern", "Regex", pattern,
                            "behavior", "Isolated", "invert", 0, "type", "ByteLevel",
                            "add_prefix_space", 0, "trim_offsets", 0, "use_regex", 0);
    mtplx_status st = nfc && pre ? MTPLX_OK : mx_error_nomem(err, "the tokenizer", 0);
    if (st == MTPLX_OK)
        st = mx_norm_load(&t->norm, nfc, err);
    if (st == MTPLX_OK)
        st = mx_pretok_load(&t->pretok, pre, err);
    json_decref(nfc);
    json_decref(pre);
    return st;
}

static mtplx_status load_pre(struct mx_tokenizer *t, const struct mx_gguf *g, mtplx_error *err)
{
    const char *name = "", *pattern;
    size_t n = 0;
    mtplx_status st = mx_gguf_string(g, "tokenizer.ggml.pre", &name, &n, err);
    if (st != MTPLX_OK)
        return st;
    if (!(pattern = find_pattern(name, n)))
        return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                        "%.220s: tokenizer.ggml.pre is \"%.*s\"; this build knows qwen2 and qwen35",
                        g->path, (int)(n > 32 ? 32 : n), name);
    return load_pattern(t, pattern, err);
}

/* ---- Tokens ------------------------------------------------------------------------------- */

static mtplx_status load_token(struct mx_tokenizer *t, int64_t id, const char *s, size_t n,
                               int64_t type, mtplx_error *err)
{
    bool added = type == TYPE_CONTROL || type == TYPE_USER_DEFINED;
    uint8_t flags = MX_TOKEN_MODEL;
    if (added)
        flags = MX_TOKEN_ADDED | (type == TYPE_CONTROL ? MX_TOKEN_SPECIAL : 0);
    if (type == TYPE_UNUSED || n == 0)
        return MTPLX_OK;
    if (!mx_utf8_valid(s, n))
        return mx_error(err, MTPLX_ERR_FORMAT, TOKENS "[%lld] is not UTF-8", (long long)id);
    mtplx_status st = mx_vocab_add(&t->vocab, id, s, n, flags, TOKENS, err);
    if (st != MTPLX_OK || !added)
        return st;
    struct mx_added_token pattern = {.text = s, .len = (uint32_t)n, .id = (int32_t)id};
    return mx_added_put(&t->raw, pattern, err);
}

static mtplx_status put_tokens(struct mx_tokenizer *t, const struct mx_gguf *g,
                               const struct mx_gguf_pair *tokens, const struct mx_gguf_pair *types,
                               mtplx_error *err)
{
    const uint8_t *at = tokens->data;
    mtplx_status st = MTPLX_OK;
    for (uint64_t i = 0; st == MTPLX_OK && i < tokens->count; i++) {
        size_t n;
        int64_t type = TYPE_NORMAL;
        const char *s = mx_gguf_next_string(&at, &n);
        if (types)
            mx_gguf_int_at(types, i, &type);
        st = load_token(t, (int64_t)i, s, n, type, err);
    }
    if (st != MTPLX_OK)
        mx_error_prefix(err, "%.220s", g->path);
    return st;
}

static mtplx_status load_tokens(struct mx_tokenizer *t, const struct mx_gguf *g,
                                const struct mx_gguf_pair *tokens, mtplx_error *err)
{
    const struct mx_gguf_pair *types;
    mtplx_status st = mx_gguf_ints(g, TYPES, &types, err);
    if (st == MTPLX_OK && types && types->count != tokens->count)
        st = mx_error(err, MTPLX_ERR_FORMAT, "%.220s: " TYPES " has %llu entries for %llu tokens",
                      g->path, (unsigned long long)types->count, (unsigned long long)tokens->count);
    if (st == MTPLX_OK && tokens->count > MX_TOKEN_ID_MAX)
        st = mx_error(err, MTPLX_ERR_LIMIT, "%.220s: " TOKENS " has %llu entries, too many",
                      g->path, (unsigned long long)tokens->count);
    return st == MTPLX_OK ? put_tokens(t, g, tokens, types, err) : st;
}

static mtplx_status load_merges(struct mx_tokenizer *t, const struct mx_gguf *g, mtplx_error *err)
{
    const struct mx_gguf_pair *merges;
    mtplx_status st = mx_gguf_strings(g, MERGES, &merges, err);
    uint64_t count = merges ? merges->count : 0;
    if (st == MTPLX_OK)
        st = mx_bpe_begin(&t->bpe, &t->vocab, count, MERGES, err);
    const uint8_t *at = merges ? merges->data : NULL;
    for (uint64_t i = 0; st == MTPLX_OK && i < count; i++) {
        size_t n;
        const char *s = mx_gguf_next_string(&at, &n);
        st = mx_bpe_put(&t->bpe, s, n, (uint32_t)i, MERGES, err);
        if (st != MTPLX_OK)
            mx_error_prefix(err, "%.220s", g->path);
    }
    return st;
}

static mtplx_status load_decoder(struct mx_tokenizer *t, mtplx_error *err)
{
    json_t *spec = json_pack("{s:s}", "type", "ByteLevel");
    mtplx_status st =
        spec ? mx_decoder_apply(spec, &t->vocab, err) : mx_error_nomem(err, "the tokenizer", 0);
    json_decref(spec);
    return st;
}

/* ---- Opening ------------------------------------------------------------------------------ */

static mtplx_status load_all(struct mx_tokenizer *t, const struct mx_gguf *g,
                             const struct mx_gguf_pair *tokens, mtplx_error *err)
{
    mtplx_status st = load_pre(t, g, err);
    if (st == MTPLX_OK)
        st = load_tokens(t, g, tokens, err);
    mx_added_ready(&t->raw);
    mx_added_ready(&t->normalized);
    if (st == MTPLX_OK)
        st = load_merges(t, g, err);
    return st == MTPLX_OK ? load_decoder(t, err) : st;
}

/* The tokens, or NULL with err OK when the file has no tokenizer. */
static const struct mx_gguf_pair *find_tokens(const struct mx_gguf *g, mtplx_error *err)
{
    const char *model = "none";
    size_t n = 4;
    const struct mx_gguf_pair *tokens;
    if (mx_gguf_string(g, "tokenizer.ggml.model", &model, &n, err) != MTPLX_OK ||
        mx_gguf_strings(g, TOKENS, &tokens, err) != MTPLX_OK)
        return NULL;
    if ((n == 4 && memcmp(model, "none", 4) == 0) || !tokens || tokens->count == 0)
        return NULL;
    if (n == 4 && memcmp(model, "gpt2", 4) == 0)
        return tokens;
    mx_error(err, MTPLX_ERR_UNSUPPORTED,
             "%.220s: tokenizer.ggml.model is \"%.*s\"; this build knows gpt2", g->path,
             (int)(n > 32 ? 32 : n), model);
    return NULL;
}

struct mx_tokenizer *mx_tokenizer_open_gguf(const struct mx_gguf *g, mtplx_error *err)
{
    mtplx_error local;
    err = err ? err : &local;
    err->status = MTPLX_OK;
    const struct mx_gguf_pair *tokens = find_tokens(g, err);
    if (!tokens)
        return NULL;
    struct mx_tokenizer *t = calloc(1, sizeof *t);
    if (t)
        mx_vocab_init(&t->vocab);
    if (!t || !(t->name = strdup(g->path)))
        mx_error_nomem(err, "the tokenizer", sizeof *t);
    else if (load_all(t, g, tokens, err) == MTPLX_OK)
        return t;
    mx_tokenizer_free(t);
    return NULL;
}
