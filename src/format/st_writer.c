/* safetensors writer: collects declarations, then writes header and data in one atomic replacement.
 *
 * Invariants:
 *   1. Offsets follow the declared order without holes, so what is written passes the reader.
 *   2. 8 + header length is a multiple of 64: data starts cache-line aligned.
 *   3. Tensor data is not copied; only names and shapes are kept. */
#include "format/safetensors.h"

#include "base/strbuf.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_LIMIT 100000000u

struct mx_st_writer {
    struct mx_arena arena;
    char *metadata_format; /* or NULL */
    struct mx_tensor *tensors;
    size_t count, cap;
    uint64_t total; /* bytes declared so far */
};

struct mx_st_writer *mx_st_writer_new(const char *metadata_format, mtplx_error *err)
{
    struct mx_st_writer *w = calloc(1, sizeof *w);
    if (!w) {
        mx_error_nomem(err, "a safetensors writer", sizeof *w);
        return NULL;
    }
    mx_arena_init(&w->arena, 0);
    if (metadata_format) {
        w->metadata_format = mx_arena_strdup(&w->arena, metadata_format);
        if (!w->metadata_format) {
            mx_st_writer_free(w);
            mx_error_nomem(err, "a safetensors writer", strlen(metadata_format));
            return NULL;
        }
    }
    return w;
}

void mx_st_writer_free(struct mx_st_writer *w)
{
    if (!w)
        return;
    mx_arena_free(&w->arena);
    free(w->tensors);
    free(w);
}

static bool size_of(enum mx_dtype dtype, int ndim, const int64_t *shape, uint64_t *bytes)
{
    int64_t product = mx_dtype_bytes(dtype);
    bool empty = false;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0 || __builtin_mul_overflow(product, shape[i] ? shape[i] : 1, &product))
            return false;
        empty |= shape[i] == 0;
    }
    *bytes = empty ? 0 : (uint64_t)product;
    return true;
}

static bool make_room(struct mx_st_writer *w)
{
    if (w->count < w->cap)
        return true;
    size_t cap = w->cap ? w->cap * 2 : 64;
    void *p =
        cap <= SIZE_MAX / sizeof *w->tensors ? realloc(w->tensors, cap * sizeof *w->tensors) : NULL;
    if (!p)
        return false;
    w->tensors = p;
    w->cap = cap;
    return true;
}

mtplx_status mx_st_writer_add(struct mx_st_writer *w, const char *name, enum mx_dtype dtype,
                              int ndim, const int64_t *shape, const void *data, mtplx_error *err)
{
    uint64_t bytes, total;
    if (!mx_utf8_valid(name, strlen(name)) || strcmp(name, "__metadata__") == 0)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "'%.100s' cannot be a tensor name", name);
    if (mx_dtype_bytes(dtype) == 0)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "tensor '%.100s' has no element type", name);
    if (ndim < 0 || ndim > MX_MAX_DIMS)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "tensor '%.100s' has %d dimensions, not 0..%d",
                        name, ndim, MX_MAX_DIMS);
    if (!size_of(dtype, ndim, shape, &bytes) || __builtin_add_overflow(w->total, bytes, &total) ||
        total > INT64_MAX)
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "tensor '%.100s' has a negative or overflowing shape", name);
    if (!make_room(w))
        return mx_error_nomem(err, name, (w->cap + 1) * sizeof *w->tensors);
    struct mx_tensor t = {.dtype = dtype, .ndim = ndim, .data = data, .bytes = bytes};
    t.name = mx_arena_strdup(&w->arena, name);
    if (!t.name)
        return mx_error_nomem(err, name, strlen(name) + 1);
    if (ndim > 0)
        memcpy(t.shape, shape, (size_t)ndim * sizeof *shape);
    w->tensors[w->count++] = t;
    w->total = total;
    return MTPLX_OK;
}

static int compare_names(const void *a, const void *b)
{
    const struct mx_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static mtplx_status check_unique(const struct mx_st_writer *w, const char *path, mtplx_error *err)
{
    if (w->count < 2)
        return MTPLX_OK;
    const struct mx_tensor **sorted = malloc(w->count * sizeof *sorted);
    if (!sorted)
        return mx_error_nomem(err, path, w->count * sizeof *sorted);
    for (size_t i = 0; i < w->count; i++)
        sorted[i] = &w->tensors[i];
    qsort(sorted, w->count, sizeof *sorted, compare_names);
    mtplx_status status = MTPLX_OK;
    for (size_t i = 1; i < w->count && status == MTPLX_OK; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            status = mx_error(err, MTPLX_ERR_ARGUMENT, "%s: tensor '%.100s' was declared twice",
                              path, sorted[i]->name);
    free(sorted);
    return status;
}

static void put_string(struct mx_strbuf *b, const char *s)
{
    mx_strbuf_putc(b, '"');
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            mx_strbuf_putc(b, '\\');
        if ((unsigned char)*s < 0x20)
            mx_strbuf_printf(b, "\\u%04x", (unsigned)*s);
        else
            mx_strbuf_putc(b, *s);
    }
    mx_strbuf_putc(b, '"');
}

static void put_tensor(struct mx_strbuf *b, const struct mx_tensor *t, uint64_t begin)
{
    put_string(b, t->name);
    mx_strbuf_printf(b, ":{\"dtype\":\"%s\",\"shape\":[", mx_dtype_name(t->dtype));
    for (int i = 0; i < t->ndim; i++)
        mx_strbuf_printf(b, "%s%" PRId64, i ? "," : "", t->shape[i]);
    mx_strbuf_printf(b, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin, begin + t->bytes);
}

/* The length field and the padded JSON. */
static void put_header(const struct mx_st_writer *w, struct mx_strbuf *b)
{
    const char *comma = "";
    mx_strbuf_append(b, "\0\0\0\0\0\0\0\0{", 9);
    if (w->metadata_format) {
        mx_strbuf_puts(b, "\"__metadata__\":{\"format\":");
        put_string(b, w->metadata_format);
        mx_strbuf_putc(b, '}');
        comma = ",";
    }
    uint64_t at = 0;
    for (size_t i = 0; i < w->count; i++) {
        mx_strbuf_puts(b, comma);
        put_tensor(b, &w->tensors[i], at);
        at += w->tensors[i].bytes;
        comma = ",";
    }
    mx_strbuf_putc(b, '}');
    while (!b->failed && b->len % 64 != 0)
        mx_strbuf_putc(b, ' ');
    for (int i = 0; i < 8 && !b->failed; i++)
        b->data[i] = (char)((uint64_t)(b->len - 8) >> (8 * i));
}

mtplx_status mx_st_writer_finish(struct mx_st_writer *w, const char *path, mtplx_error *err)
{
    mtplx_status status = check_unique(w, path, err);
    if (status != MTPLX_OK)
        return status;
    struct mx_strbuf header;
    mx_strbuf_init(&header, HEADER_LIMIT);
    put_header(w, &header);
    struct mx_part *parts = calloc(w->count + 1, sizeof *parts);
    if (header.failed || !parts) {
        status =
            mx_error(err, MTPLX_ERR_MEMORY, "%s: out of memory, or a header of more than %u bytes",
                     path, HEADER_LIMIT);
    } else {
        parts[0] = (struct mx_part){header.data, header.len};
        for (size_t i = 0; i < w->count; i++)
            parts[i + 1] = (struct mx_part){w->tensors[i].data, (size_t)w->tensors[i].bytes};
        status = mx_file_write_parts(path, parts, w->count + 1, err);
    }
    free(parts);
    mx_strbuf_free(&header);
    return status;
}
