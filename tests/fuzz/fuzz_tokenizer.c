/* Fuzz target: the tokenizer.
 *
 * The first byte chooses: even, the rest is a tokenizer.json, which encodes and decodes a short
 * text when it loads; odd, the rest is text for a fixed tokenizer, with round trip and streaming
 * checked. */
#include "base/utf8.h"
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Byte-level letters, a few merges, overlapping added tokens with every flag. */
static const char fixed[] =
    "{\"added_tokens\":[{\"id\":20,\"content\":\"<s>\",\"special\":true,\"normalized\":false},"
    "{\"id\":21,\"content\":\"<s\",\"lstrip\":true,\"rstrip\":true,\"normalized\":false},"
    "{\"id\":22,\"content\":\"  \",\"rstrip\":true,\"normalized\":false},"
    "{\"id\":23,\"content\":\"\\u00e9\",\"single_word\":true}],"
    "\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?i:'s|'t)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?"
    "[\\\\p{L}\\\\p{M}]+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+"
    "|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\","
    "\"add_prefix_space\":false,\"use_regex\":false}]},\"decoder\":{\"type\":\"ByteLevel\"},"
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"a\":1,\"b\":2,\"c\":3,"
    "\"ab\":4,\"abc\":5,\"\xc4\xa0\":6,\"\xc4\xa0\x61\":7,\"aa\":8,\"\xc3\x83\":9},"
    "\"merges\":[\"a b\",\"ab c\",\"\xc4\xa0 a\",\"a a\"]}}";

static void check_stream(const struct mx_tokenizer *t, const struct mx_ids *ids)
{
    struct mx_strbuf whole, sum;
    struct mx_detok d;
    mx_strbuf_init(&whole, 0);
    mx_strbuf_init(&sum, 0);
    mx_detok_init(&d, t, true);
    mx_tokenizer_decode(t, ids->v, ids->n, true, &whole, NULL);
    for (size_t i = 0; i <= ids->n; i++) {
        size_t len;
        const char *s = i < ids->n ? mx_detok_push(&d, ids->v[i], &len) : mx_detok_flush(&d, &len);
        if (!s || !mx_utf8_valid(s, len))
            abort();
        mx_strbuf_append(&sum, s, len);
    }
    if (sum.len != whole.len || (sum.len > 0 && memcmp(sum.data, whole.data, sum.len) != 0))
        abort();
    mx_detok_free(&d);
    mx_strbuf_free(&whole);
    mx_strbuf_free(&sum);
}

static void use(const struct mx_tokenizer *t, const char *text, size_t len)
{
    for (int plain = 0; plain < 2; plain++) {
        struct mx_ids ids = {0};
        mtplx_error err = {0};
        mtplx_status status = mx_tokenizer_encode(t, text, len, plain != 0, &ids, &err);
        if (status != err.status || (status && ids.n > 0))
            abort();
        for (size_t i = 0; i < ids.n; i++)
            if (ids.v[i] < 0 || ids.v[i] >= mx_tokenizer_size(t))
                abort();
        check_stream(t, &ids);
        mx_ids_free(&ids);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    bool text = data[0] & 1;
    const char *json = text ? fixed : (const char *)data + 1;
    mtplx_error err = {0};
    struct mx_tokenizer *t =
        mx_tokenizer_parse(json, text ? sizeof fixed - 1 : size - 1, "fuzz", &err);
    if (!t && (text || err.status == MTPLX_OK || err.message[0] == '\0'))
        abort();
    static const char sample[] = "ab c  e\xcc\x81 <s>x 12's\n\n\xff";
    if (t && text)
        use(t, (const char *)data + 1, size - 1);
    else if (t)
        use(t, sample, sizeof sample - 1);
    mx_tokenizer_free(t);
    return 0;
}
