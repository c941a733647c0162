/* Fuzz target: the first byte says what the rest is: a JSON schema, a regular expression, GBNF, or
 * tools. It must end in a grammar or in an error with its sentence. What compiles is walked for
 * some tokens of a small vocabulary: every mask has a token, the matcher takes it, and after it was
 * taken back the mask is the same. */
#include "text/grammar.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A byte-level tokenizer whose tokens are the 256 bytes and a few longer ones. */
static struct mx_tokenizer *tokenizer(void)
{
    struct mx_strbuf t;
    mx_strbuf_init(&t, 0);
    mx_strbuf_puts(&t, "{\"model\":{\"type\":\"BPE\",\"vocab\":{");
    uint32_t other = 256;
    for (int b = 0; b < 256; b++) {
        bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        mx_strbuf_printf(&t, "%s\"\\u%04x\":%d", b ? "," : "", plain ? (uint32_t)b : other++, b);
    }
    mx_strbuf_puts(&t,
                   ",\"\\\"}\":256,\"ab\":257,\"\\u0120x\":258},\"merges\":[]},\"added_tokens\":["
                   "{\"id\":259,\"content\":\"<end>\",\"special\":true},"
                   "{\"id\":260,\"content\":\"<tool_call>\",\"special\":true}],"
                   "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                   "\"decoder\":{\"type\":\"ByteLevel\"}}");
    struct mx_tokenizer *out = mx_tokenizer_parse(t.data, t.len, "fuzz", NULL);
    mx_strbuf_free(&t);
    return out;
}

static struct mx_grammar *compile(int kind, const char *s, size_t n, mtplx_error *err)
{
    static const struct mx_grammar_frame frame = {.prelude_end = "</t>", .prelude_max = 9};
    if (kind % 4 == 1)
        return mx_grammar_from_regex(s, n, kind & 8 ? &frame : NULL, err);
    if (kind % 4 == 2)
        return mx_grammar_from_gbnf(s, n, NULL, err);
    json_t *v = json_loadb(s, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    struct mx_grammar_tools tools = {.syntax = MX_TOOLS_HERMES + (kind >> 2) % 7,
                                     .tools = v,
                                     .parallel = kind & 128,
                                     .strict_all = true};
    struct mx_grammar *g = NULL;
    if (!v)
        mx_error(err, MTPLX_ERR_FORMAT, "not JSON");
    else
        g = kind % 4 ? mx_grammar_from_tools(&tools, NULL, err)
                     : mx_grammar_from_schema(v, NULL, err);
    json_decref(v);
    return g;
}

static void walk(struct mx_grammar *g, const struct mx_token_table *t, uint32_t seed)
{
    struct mx_matcher *m = mx_matcher_new(g, t, NULL);
    for (int i = 0; m && i < 24; i++) {
        uint64_t copy[5];
        const uint64_t *mask = mx_matcher_mask(m);
        if (!mask)
            break;
        memcpy(copy, mask, sizeof copy);
        seed = seed * 1664525u + 1013904223u;
        int at = (int)(seed >> 8) % 300, left = 300;
        while (left > 0 && !(copy[at / 64] >> (at % 64) & 1)) {
            at = (at + 1) % 300;
            left--;
        }
        if (left == 0 || !mx_matcher_accept(m, at))
            abort();
        mx_matcher_rollback(m, 1);
        if (memcmp(copy, mx_matcher_mask(m), sizeof copy) != 0 || !mx_matcher_accept(m, at))
            abort();
        if (at == 259)
            break;
    }
    mx_matcher_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int32_t stop = 259;
    mtplx_error err = {0};
    if (size < 2 || size > 4096)
        return 0;
    struct mx_grammar *g = compile(data[0], (const char *)data + 1, size - 1, &err);
    if (!g) {
        if (err.status == MTPLX_OK || !err.message[0])
            abort();
        return 0;
    }
    struct mx_tokenizer *tok = tokenizer();
    struct mx_token_table *t = tok ? mx_token_table_new(tok, 300, &stop, 1, NULL) : NULL;
    if (!t)
        abort();
    walk(g, t, (uint32_t)size * 2654435761u + data[size - 1]);
    mx_token_table_free(t);
    mx_tokenizer_free(tok);
    mx_grammar_unref(g);
    return 0;
}
