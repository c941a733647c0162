/* Writes GGUF files for tests: metadata pairs and tensors in any order, then the whole file at
 * once. Failures end the test. */
#ifndef TESTS_GGUF_WRITER_H
#define TESTS_GGUF_WRITER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/half.h"
#include "base/strbuf.h"
#include "format/gguf.h"

#include <stdio.h>
#include <string.h>

struct gguf_writer {
    struct mx_strbuf pairs, infos, data;
    uint64_t n_pairs, n_tensors;
};

static inline void gw_init(struct gguf_writer *w)
{
    memset(w, 0, sizeof *w);
    mx_strbuf_init(&w->pairs, 0);
    mx_strbuf_init(&w->infos, 0);
    mx_strbuf_init(&w->data, 0);
}

static inline void gw_free(struct gguf_writer *w)
{
    mx_strbuf_free(&w->pairs);
    mx_strbuf_free(&w->infos);
    mx_strbuf_free(&w->data);
}

static inline void gw_u32(struct mx_strbuf *b, uint32_t v)
{
    assert_true(mx_strbuf_append(b, &v, sizeof v));
}

static inline void gw_u64(struct mx_strbuf *b, uint64_t v)
{
    assert_true(mx_strbuf_append(b, &v, sizeof v));
}

static inline void gw_string(struct mx_strbuf *b, const char *s, size_t n)
{
    gw_u64(b, n);
    assert_true(mx_strbuf_append(b, s, n));
}

static inline void gw_key(struct gguf_writer *w, const char *key, uint32_t type)
{
    gw_string(&w->pairs, key, strlen(key));
    gw_u32(&w->pairs, type);
    w->n_pairs++;
}

static inline void gw_put_u32(struct gguf_writer *w, const char *key, uint32_t v)
{
    gw_key(w, key, MX_GV_U32);
    gw_u32(&w->pairs, v);
}

static inline void gw_put_f32(struct gguf_writer *w, const char *key, float v)
{
    gw_key(w, key, MX_GV_F32);
    assert_true(mx_strbuf_append(&w->pairs, &v, sizeof v));
}

static inline void gw_put_str(struct gguf_writer *w, const char *key, const char *s)
{
    gw_key(w, key, MX_GV_STRING);
    gw_string(&w->pairs, s, strlen(s));
}

/* Begins an array; its `count` elements are appended to w->pairs by the caller. */
static inline void gw_array(struct gguf_writer *w, const char *key, uint32_t type, uint64_t count)
{
    gw_key(w, key, MX_GV_ARRAY);
    gw_u32(&w->pairs, type);
    gw_u64(&w->pairs, count);
}

static inline void gw_put_i32s(struct gguf_writer *w, const char *key, const int32_t *v, size_t n)
{
    gw_array(w, key, MX_GV_I32, n);
    assert_true(mx_strbuf_append(&w->pairs, v, n * sizeof *v));
}

/* Table entry of a tensor whose data comes next. */
static inline void gw_info(struct gguf_writer *w, const char *name, uint32_t ndim,
                           const int64_t *ne, uint32_t type)
{
    while (w->data.len % 32 != 0)
        assert_true(mx_strbuf_putc(&w->data, 0));
    gw_string(&w->infos, name, strlen(name));
    gw_u32(&w->infos, ndim);
    for (uint32_t i = 0; i < ndim; i++)
        gw_u64(&w->infos, (uint64_t)ne[i]);
    gw_u32(&w->infos, type);
    gw_u64(&w->infos, w->data.len);
    w->n_tensors++;
}

/* One row of float32 as `type`. */
static inline void gw_row(struct gguf_writer *w, int type, const float *row, int64_t n)
{
    uint8_t block[8192 * 4];
    size_t bytes = mx_gguf_row_bytes(type, n);
    assert_true(n > 0 && n <= 8192);
    if (type == MX_GGUF_F32) {
        assert_true(mx_strbuf_append(&w->data, row, (size_t)n * sizeof *row));
        return;
    }
    if (bytes > 0) {
        mx_gguf_quant_row(type, row, n, block);
        assert_true(mx_strbuf_append(&w->data, block, bytes));
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = type == MX_GGUF_F16 ? mx_f32_to_f16(row[i]) : mx_f32_to_bf16(row[i]);
        assert_true(mx_strbuf_append(&w->data, &h, sizeof h));
    }
}

/* The file, into `out`. */
static inline void gw_finish(const struct gguf_writer *w, struct mx_strbuf *out)
{
    mx_strbuf_init(out, 0);
    assert_true(mx_strbuf_append(out, "GGUF", 4));
    gw_u32(out, 3);
    gw_u64(out, w->n_tensors);
    gw_u64(out, w->n_pairs);
    assert_true(mx_strbuf_append(out, w->pairs.data ? w->pairs.data : "", w->pairs.len));
    assert_true(mx_strbuf_append(out, w->infos.data ? w->infos.data : "", w->infos.len));
    while (out->len % 32 != 0)
        assert_true(mx_strbuf_putc(out, 0));
    assert_true(mx_strbuf_append(out, w->data.data ? w->data.data : "", w->data.len));
}

static inline void gw_write(const struct gguf_writer *w, const char *path)
{
    struct mx_strbuf out;
    gw_finish(w, &out);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(out.data, 1, out.len, f), out.len);
    assert_int_equal(fclose(f), 0);
    mx_strbuf_free(&out);
}

#endif
