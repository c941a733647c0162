/* Tokenizer throughput: MB/s of encoding and decoding a text file, and load time.
 *
 * usage: bench_tokenizer [MODEL_DIR] [TEXT_FILE] [MEGABYTES]
 * The text is repeated to MEGABYTES (default 8) and encoded in one call on one core. */
#include "base/clock.h"
#include "base/file.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>

#define ROUNDS 3

static double seconds_since(uint64_t start_ns)
{
    return (double)(mx_now_ns() - start_ns) * 1e-9;
}

static bool repeat_file(const char *path, size_t bytes, struct mx_strbuf *text, mtplx_error *err)
{
    size_t len;
    char *file = mx_file_read(path, (size_t)1 << 30, &len, err);
    if (!file)
        return false;
    do
        mx_strbuf_append(text, file, len);
    while (len > 0 && text->len < bytes && !text->failed);
    free(file);
    return !text->failed;
}

static mtplx_status run(const struct mx_tokenizer *t, const struct mx_strbuf *text,
                        mtplx_error *err)
{
    double mb = (double)text->len * 1e-6, encode_s = 1e30, decode_s = 1e30;
    struct mx_ids ids = {0};
    struct mx_strbuf out;
    mtplx_status status = MTPLX_OK;
    mx_strbuf_init(&out, 0);
    for (int i = 0; i < ROUNDS && !status; i++) {
        ids.n = 0;
        mx_strbuf_clear(&out);
        uint64_t start = mx_now_ns();
        status = mx_tokenizer_encode(t, text->data, text->len, false, &ids, err);
        double s = seconds_since(start);
        encode_s = s < encode_s ? s : encode_s;
        start = mx_now_ns();
        if (!status)
            status = mx_tokenizer_decode(t, ids.v, ids.n, false, &out, err);
        s = seconds_since(start);
        decode_s = s < decode_s ? s : decode_s;
    }
    if (!status)
        printf("%.2f MB, %zu tokens (%.2f bytes each)\nencode %8.1f MB/s\ndecode %8.1f MB/s\n", mb,
               ids.n, (double)text->len / (double)ids.n, mb / encode_s, mb / decode_s);
    mx_ids_free(&ids);
    mx_strbuf_free(&out);
    return status;
}

int main(int argc, char **argv)
{
    const char *dir = argc > 1 ? argv[1] : "models/nano";
    const char *path = argc > 2 ? argv[2] : "tests/golden/ppl.txt";
    size_t bytes = (size_t)(argc > 3 ? strtoul(argv[3], NULL, 10) : 8) * 1000000;
    mtplx_error err = {0};
    uint64_t start = mx_now_ns();
    struct mx_tokenizer *t = mx_tokenizer_open(dir, &err);
    if (t)
        printf("load   %8.1f ms, %d ids\n", seconds_since(start) * 1e3, mx_tokenizer_size(t));
    struct mx_strbuf text;
    mx_strbuf_init(&text, 0);
    bool ok = t && repeat_file(path, bytes, &text, &err) && run(t, &text, &err) == MTPLX_OK;
    if (!ok)
        fprintf(stderr, "bench_tokenizer: %s\n", err.message);
    mx_strbuf_free(&text);
    mx_tokenizer_free(t);
    return ok ? 0 : 1;
}
