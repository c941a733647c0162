/* Fuzz target: the GGUF reader and everything that is made from a file: names, config, tokenizer,
 * chat template. What the reader accepts must satisfy its invariants; every byte of every value and
 * tensor is read, so that ASan sees a range that lies. */
#include "base/utf8.h"
#include "format/gguf_model.h"
#include "text/chat.h"
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t sink;

static void require(bool ok)
{
    if (!ok)
        abort();
}

static void read_all(const void *data, uint64_t n)
{
    uint8_t sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum ^= ((const uint8_t *)data)[i];
    sink = sum;
}

static void check_pair(const struct mx_gguf *g, size_t i)
{
    const struct mx_gguf_pair *p = &g->pairs[i];
    const uint8_t *at = p->data;
    int64_t v;
    require(mx_gguf_find(g, p->key) == p && mx_utf8_valid(p->key, strlen(p->key)));
    for (uint64_t k = 0; k < p->count; k++) {
        size_t n;
        if (p->type == MX_GV_STRING) {
            const char *s = mx_gguf_next_string(&at, &n);
            read_all(s, n);
        } else {
            mx_gguf_int_at(p, k, &v);
        }
    }
}

static void check_tensor(const struct mx_gguf *g, size_t i)
{
    const struct mx_gguf_tensor *t = &g->tensors[i];
    require(mx_gguf_tensor(g, t->name) == t && mx_utf8_valid(t->name, strlen(t->name)));
    require(t->ndim >= 1 && t->ndim <= MX_GGUF_DIMS);
    read_all(t->data, t->bytes);
    if (mx_gguf_block_values(t->type) && t->ne[0] <= 4096) {
        float row[4096];
        mx_gguf_dequant_row(t->type, t->data, t->ne[0], row);
    }
}

static void check_error(const mtplx_error *err)
{
    require(err->status != MTPLX_OK && mx_utf8_valid(err->message, strlen(err->message)));
}

static void check_text(const struct mx_gguf *g)
{
    mtplx_error err = {0};
    struct mx_tokenizer *t = mx_tokenizer_open_gguf(g, &err);
    if (!t && err.status != MTPLX_OK)
        check_error(&err);
    if (t) {
        static const char text[] = "Hello, w\xc3\xb6rld! <|im_start|> 12";
        struct mx_ids ids = {0};
        mx_tokenizer_encode(t, text, sizeof text - 1, false, &ids, NULL);
        mx_ids_free(&ids);
    }
    mx_tokenizer_free(t);
    struct mx_chat *chat = mx_chat_open_gguf(g, &err);
    if (!chat && err.status != MTPLX_OK)
        check_error(&err);
    mx_chat_free(chat);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mtplx_error err = {0};
    struct mx_gguf g;
    if (mx_gguf_parse(&g, data, size, "fuzz.gguf", &err) != MTPLX_OK) {
        check_error(&err);
        require(strstr(err.message, "fuzz.gguf") != NULL);
        return 0;
    }
    for (size_t i = 0; i < g.n_pairs; i++)
        check_pair(&g, i);
    for (size_t i = 0; i < g.n_tensors; i++)
        check_tensor(&g, i);
    check_text(&g);
    mx_gguf_close(&g);

    struct mx_gguf_model *m = mx_gguf_model_parse(data, size, "fuzz.gguf", &err);
    json_t *config = m ? mx_gguf_model_config(m, &err) : NULL;
    if (!config)
        check_error(&err);
    json_decref(config);
    mx_gguf_model_close(m);
    return 0;
}
