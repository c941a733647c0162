/* safetensors reader.
 *
 * File: u64 little-endian header length N, N bytes of JSON, data section. The header is read by a
 * scanner of its own rather than a JSON library: it knows the three fields it may meet, allocates
 * only names, and so costs memory and time linear in the header however hostile (a 100 MB header of
 * empty objects would cost a general parser gigabytes).
 *
 * Invariants once mx_safetensors_parse() succeeded:
 *   1. Tensors are sorted by name and names are unique, non-NULL, NUL-terminated UTF-8.
 *   2. bytes == product(shape) * width, and no product of any of the dimensions overflows int64_t.
 *   3. The tensors tile the data section: no overlap, no hole, no trailing bytes. */
#include "format/safetensors.h"

#include "base/utf8.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_LIMIT 100000000u /* the limit of the reference implementation */

/* Names in messages are cut so that the sentence around them survives. */
#define PATH_FMT "%.220s"
#define NAME_FMT "%.100s"

struct span {
    const char *p;
    size_t n;
};

/* One pass over the header. `err` is written once; after that every function returns false. */
struct scan {
    const char *start, *p, *end;
    struct mx_safetensors *st;
    size_t cap; /* of st->tensors */
    bool has_metadata;
    const char *tensor; /* whose entry is being read, or NULL */
    mtplx_error *err;
    mtplx_status status;
};

/* ---- JSON --------------------------------------------------------------------------------- */

static bool fail_json(struct scan *s, const char *what)
{
    size_t at = (size_t)(s->p - s->start);
    if (s->tensor)
        s->status = mx_error(s->err, MTPLX_ERR_FORMAT,
                             PATH_FMT ": tensor '" NAME_FMT "': %s at header byte %zu", s->st->path,
                             s->tensor, what, at);
    else
        s->status = mx_error(s->err, MTPLX_ERR_FORMAT,
                             PATH_FMT ": the header is not valid JSON: %s at header byte %zu",
                             s->st->path, what, at);
    return false;
}

static bool fail_nomem(struct scan *s, size_t bytes)
{
    s->status = mx_error_nomem(s->err, s->st->path, bytes);
    return false;
}

static void skip_space(struct scan *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\r' || *s->p == '\t'))
        s->p++;
}

/* Consumes `c` after white space if it is next. */
static bool accept(struct scan *s, char c)
{
    skip_space(s);
    if (s->p >= s->end || *s->p != c)
        return false;
    s->p++;
    return true;
}

static bool expect(struct scan *s, char c, const char *what)
{
    return accept(s, c) || fail_json(s, what);
}

static bool hex4(const char *p, const char *end, uint32_t *out)
{
    if (end - p < 4)
        return false;
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        uint32_t d;
        if (c >= '0' && c <= '9')
            d = (uint32_t)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            d = (uint32_t)((c | 32) - 'a' + 10);
        else
            return false;
        v = v << 4 | d;
    }
    *out = v;
    return true;
}

/* Decodes \uXXXX (p just behind the 'u'), joining a surrogate pair. Returns the bytes consumed, 0
 * when malformed. NUL is refused: names are C strings. */
static size_t decode_unicode(const char *p, const char *end, uint32_t *cp)
{
    uint32_t hi, lo;
    if (!hex4(p, end, &hi) || hi == 0)
        return 0;
    *cp = hi;
    if (hi < 0xd800 || hi > 0xdfff)
        return 4;
    if (hi > 0xdbff || end - p < 10 || p[4] != '\\' || p[5] != 'u' || !hex4(p + 6, end, &lo))
        return 0;
    if (lo < 0xdc00 || lo > 0xdfff)
        return 0;
    *cp = 0x10000 + ((hi - 0xd800) << 10) + (lo - 0xdc00);
    return 10;
}

/* Decodes raw[0..n), which holds escapes, into arena memory. */
static bool unescape(struct scan *s, struct span raw, struct span *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char *buf = mx_arena_alloc(&s->st->arena, raw.n + 1); /* decoded text is never longer */
    if (!buf)
        return fail_nomem(s, raw.n);
    size_t len = 0;
    const char *p = raw.p, *end = raw.p + raw.n;
    while (p < end) {
        if (*p != '\\') {
            buf[len++] = *p++;
            continue;
        }
        p++; /* the scanner made sure that a character follows */
        const char *simple = *p ? strchr(from, *p) : NULL;
        uint32_t cp;
        size_t used;
        if (simple) {
            buf[len++] = to[simple - from];
            p++;
        } else if (*p == 'u' && (used = decode_unicode(p + 1, end, &cp)) > 0) {
            len += (size_t)mx_utf8_encode(cp, buf + len);
            p += 1 + used;
        } else {
            return fail_json(s, "bad escape in the string ending");
        }
    }
    *out = (struct span){buf, len};
    return true;
}

/* A string. Without escapes the span points into the header, else into the arena. */
static bool parse_string(struct scan *s, struct span *out)
{
    if (!expect(s, '"', "expected a string"))
        return false;
    const char *start = s->p;
    bool escapes = false;
    while (s->p < s->end && *s->p != '"') {
        if ((unsigned char)*s->p < 0x20)
            return fail_json(s, "control character in a string");
        if (*s->p == '\\') {
            escapes = true;
            s->p++;
            if (s->p >= s->end)
                break;
        }
        s->p++;
    }
    if (s->p >= s->end)
        return fail_json(s, "string without end");
    struct span raw = {start, (size_t)(s->p - start)};
    s->p++;
    *out = raw;
    return !escapes || unescape(s, raw, out);
}

/* A non-negative integer of at most 63 bits, the only number the format knows. */
static bool parse_int(struct scan *s, int64_t *out)
{
    skip_space(s);
    const char *start = s->p;
    int64_t v = 0;
    while (s->p < s->end && *s->p >= '0' && *s->p <= '9') {
        int d = *s->p - '0';
        if (v > (INT64_MAX - d) / 10)
            return fail_json(s, "number beyond 63 bits");
        v = v * 10 + d;
        s->p++;
    }
    if (s->p == start || (*start == '0' && s->p - start > 1))
        return fail_json(s, "expected a non-negative integer");
    if (s->p < s->end && (*s->p == '.' || (*s->p | 32) == 'e'))
        return fail_json(s, "expected an integer, found a fraction");
    *out = v;
    return true;
}

/* Steps to the next member of an object whose '{' is consumed: key and colon are read and true is
 * returned; false at '}' or on an error (s->status tells). */
static bool next_member(struct scan *s, bool *first, struct span *key)
{
    if (accept(s, '}'))
        return false;
    if (!*first && !expect(s, ',', "expected ',' or '}'"))
        return false;
    *first = false;
    return parse_string(s, key) && expect(s, ':', "expected ':'");
}

static bool span_is(struct span a, const char *b)
{
    return a.n == strlen(b) && memcmp(a.p, b, a.n) == 0;
}

/* ---- One tensor --------------------------------------------------------------------------- */

static bool fail_tensor(struct scan *s, const char *name, mtplx_status status, const char *what)
{
    s->status =
        mx_error(s->err, status, PATH_FMT ": tensor '" NAME_FMT "': %s", s->st->path, name, what);
    return false;
}

static bool parse_dtype(struct scan *s, struct mx_tensor *t)
{
    struct span v;
    if (!parse_string(s, &v))
        return false;
    char name[16] = "";
    if (v.n < sizeof name)
        memcpy(name, v.p, v.n);
    t->dtype = mx_dtype_parse(name);
    if (t->dtype != MX_DTYPE_NONE)
        return true;
    s->status = mx_error(s->err, MTPLX_ERR_UNSUPPORTED,
                         PATH_FMT ": tensor '" NAME_FMT "': element type '%.*s' is not supported",
                         s->st->path, t->name, v.n < 40 ? (int)v.n : 40, v.p);
    return false;
}

static bool parse_shape(struct scan *s, struct mx_tensor *t)
{
    if (!expect(s, '[', "expected '[' after \"shape\""))
        return false;
    if (accept(s, ']'))
        return true;
    do {
        int64_t v;
        if (!parse_int(s, &v))
            return false;
        if (t->ndim == MX_MAX_DIMS)
            return fail_tensor(s, t->name, MTPLX_ERR_UNSUPPORTED,
                               "has more dimensions than the 8 supported");
        t->shape[t->ndim++] = v;
    } while (accept(s, ','));
    return expect(s, ']', "expected ',' or ']' in a shape");
}

static bool parse_offsets(struct scan *s, int64_t range[2])
{
    return expect(s, '[', "expected '[' after \"data_offsets\"") && parse_int(s, &range[0]) &&
           expect(s, ',', "expected two data_offsets") && parse_int(s, &range[1]) &&
           expect(s, ']', "expected exactly two data_offsets");
}

/* Bytes of a tensor with overflow checks; zero dimensions count as one there, so that no partial
 * product can overflow later either. */
static bool tensor_bytes(const struct mx_tensor *t, uint64_t *bytes)
{
    int64_t product = mx_dtype_bytes(t->dtype);
    bool empty = false;
    for (int i = 0; i < t->ndim; i++) {
        int64_t d = t->shape[i];
        empty |= d == 0;
        if (__builtin_mul_overflow(product, d ? d : 1, &product))
            return false;
    }
    *bytes = empty ? 0 : (uint64_t)product;
    return true;
}

/* Checks range against shape and data section, then fills in data and bytes. */
static bool bind_tensor(struct scan *s, struct mx_tensor *t, const int64_t range[2], size_t section)
{
    const char *path = s->st->path;
    uint64_t begin = (uint64_t)range[0], end = (uint64_t)range[1], bytes;
    if (end < begin)
        s->status = mx_error(s->err, MTPLX_ERR_FORMAT,
                             PATH_FMT ": tensor '" NAME_FMT "': data ends at byte %" PRIu64
                                      ", before its begin at %" PRIu64,
                             path, t->name, end, begin);
    else if (end > section)
        s->status = mx_error(s->err, MTPLX_ERR_FORMAT,
                             PATH_FMT ": tensor '" NAME_FMT "': data ends at byte %" PRIu64
                                      " but the data section has only %zu bytes; the file is "
                                      "truncated or its header is wrong",
                             path, t->name, end, section);
    else if (!tensor_bytes(t, &bytes))
        return fail_tensor(s, t->name, MTPLX_ERR_FORMAT, "its shape overflows 63 bits");
    else if (bytes != end - begin)
        s->status = mx_error(s->err, MTPLX_ERR_FORMAT,
                             PATH_FMT ": tensor '" NAME_FMT "': its shape and type %s take %" PRIu64
                                      " bytes but data_offsets span %" PRIu64,
                             path, t->name, mx_dtype_name(t->dtype), bytes, end - begin);
    else {
        t->data = s->end + begin;
        t->bytes = bytes;
        return true;
    }
    return false;
}

enum field {
    DTYPE = 1,
    SHAPE = 2,
    OFFSETS = 4,
    ALL_FIELDS = 7,
};

static enum field field_of(struct span key)
{
    return span_is(key, "dtype")          ? DTYPE
           : span_is(key, "shape")        ? SHAPE
           : span_is(key, "data_offsets") ? OFFSETS
                                          : 0;
}

static bool parse_tensor(struct scan *s, struct mx_tensor *t, size_t section)
{
    struct span key;
    int64_t range[2] = {0, 0};
    unsigned seen = 0;
    bool first = true;
    if (!expect(s, '{', "expected '{' after a tensor name"))
        return false;
    while (next_member(s, &first, &key)) {
        enum field f = field_of(key);
        if (f == 0)
            return fail_tensor(s, t->name, MTPLX_ERR_FORMAT,
                               "its header entry has a field other than dtype, shape and "
                               "data_offsets");
        if (seen & f)
            return fail_tensor(s, t->name, MTPLX_ERR_FORMAT, "its header entry repeats a field");
        seen |= f;
        bool ok = f == DTYPE   ? parse_dtype(s, t)
                  : f == SHAPE ? parse_shape(s, t)
                               : parse_offsets(s, range);
        if (!ok)
            return false;
    }
    if (s->status != MTPLX_OK)
        return false;
    if (seen != ALL_FIELDS)
        return fail_tensor(s, t->name, MTPLX_ERR_FORMAT,
                           "its header entry lacks dtype, shape or data_offsets");
    return bind_tensor(s, t, range, section);
}

/* ---- The header --------------------------------------------------------------------------- */

static int compare_spans(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    int c = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

static bool check_metadata_keys(struct scan *s, struct span *keys, size_t n)
{
    if (n > 1)
        qsort(keys, n, sizeof *keys, compare_spans);
    for (size_t i = 1; i < n; i++)
        if (compare_spans(&keys[i - 1], &keys[i]) == 0)
            return fail_json(s, "duplicate key in \"__metadata__\", ending");
    return true;
}

/* Grows an array so that element n exists. */
static bool grow(struct scan *s, void **array, size_t *cap, size_t n, size_t elem)
{
    if (n < *cap)
        return true;
    size_t cap2 = *cap ? *cap * 2 : 64, bytes;
    if (__builtin_mul_overflow(cap2, elem, &bytes))
        return fail_nomem(s, SIZE_MAX);
    void *p = realloc(*array, bytes);
    if (!p)
        return fail_nomem(s, bytes);
    *array = p;
    *cap = cap2;
    return true;
}

/* String-to-string object; only "format" is kept. */
static bool parse_metadata(struct scan *s)
{
    if (s->has_metadata)
        return fail_json(s, "second \"__metadata__\"");
    s->has_metadata = true;
    if (!expect(s, '{', "expected '{' after \"__metadata__\""))
        return false;
    void *keys = NULL;
    size_t n = 0, cap = 0;
    bool first = true;
    struct span key, value;
    while (next_member(s, &first, &key)) {
        if (!grow(s, &keys, &cap, n, sizeof key) || !parse_string(s, &value))
            break;
        ((struct span *)keys)[n++] = key;
        if (!span_is(key, "format"))
            continue;
        s->st->metadata_format = mx_arena_strndup(&s->st->arena, value.p, value.n);
        if (!s->st->metadata_format) {
            fail_nomem(s, value.n);
            break;
        }
    }
    bool ok = s->status == MTPLX_OK && check_metadata_keys(s, keys, n);
    free(keys);
    return ok;
}

static bool add_tensor(struct scan *s, struct span name, size_t section)
{
    struct mx_safetensors *st = s->st;
    void *array = st->tensors;
    bool ok = grow(s, &array, &s->cap, st->count, sizeof *st->tensors);
    st->tensors = array;
    if (!ok)
        return false;
    struct mx_tensor *t = &st->tensors[st->count];
    *t = (struct mx_tensor){.file = st->path};
    t->name = mx_arena_strndup(&st->arena, name.p, name.n);
    if (!t->name)
        return fail_nomem(s, name.n);
    s->tensor = t->name;
    bool parsed = parse_tensor(s, t, section);
    s->tensor = NULL;
    st->count += parsed;
    return parsed;
}

static bool parse_header(struct scan *s, size_t section)
{
    struct span key;
    bool first = true;
    if (s->p >= s->end || *s->p != '{')
        return fail_json(s, "expected '{'");
    s->p++;
    while (next_member(s, &first, &key)) {
        bool ok = span_is(key, "__metadata__") ? parse_metadata(s) : add_tensor(s, key, section);
        if (!ok)
            return false;
    }
    if (s->status != MTPLX_OK)
        return false;
    skip_space(s);
    return s->p == s->end || fail_json(s, "text after the closing '}'");
}

/* ---- The whole file ----------------------------------------------------------------------- */

static int compare_ranges(const void *a, const void *b)
{
    const struct mx_tensor *x = a, *y = b;
    const char *p = x->data, *q = y->data;
    if (p != q)
        return p < q ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty ones before their neighbour */
}

static int compare_names(const void *a, const void *b)
{
    const struct mx_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Invariant 3. Leaves the tensors in file order. */
static bool check_tiling(struct scan *s, size_t section)
{
    struct mx_safetensors *st = s->st;
    if (st->count > 1)
        qsort(st->tensors, st->count, sizeof *st->tensors, compare_ranges);
    uint64_t at = 0;
    for (size_t i = 0; i < st->count; i++) {
        const struct mx_tensor *t = &st->tensors[i];
        uint64_t begin = (uint64_t)((const char *)t->data - s->end);
        if (begin != at) {
            s->status = mx_error(s->err, MTPLX_ERR_FORMAT,
                                 PATH_FMT ": tensor '" NAME_FMT "': data begins at byte %" PRIu64
                                          " but the tensor before it ends at %" PRIu64 " (%s)",
                                 st->path, t->name, begin, at, begin < at ? "overlap" : "hole");
            return false;
        }
        at = begin + t->bytes;
    }
    if (at == section)
        return true;
    s->status = mx_error(s->err, MTPLX_ERR_FORMAT,
                         PATH_FMT ": the data section has %zu bytes but the tensors end at byte "
                                  "%" PRIu64 "; trailing bytes are not allowed",
                         st->path, section, at);
    return false;
}

/* Sorts by name and refuses duplicates. */
static bool index_names(struct scan *s)
{
    struct mx_safetensors *st = s->st;
    if (st->count > 1)
        qsort(st->tensors, st->count, sizeof *st->tensors, compare_names);
    for (size_t i = 1; i < st->count; i++)
        if (strcmp(st->tensors[i - 1].name, st->tensors[i].name) == 0)
            return fail_tensor(s, st->tensors[i].name, MTPLX_ERR_FORMAT,
                               "is declared twice in the header");
    return true;
}

/* Splits the file: returns the header length, or 0 with the error written. */
static size_t header_length(struct scan *s, const uint8_t *data, size_t size)
{
    const char *path = s->st->path;
    uint64_t n = 0;
    for (size_t i = 0; i < 8 && i < size; i++)
        n |= (uint64_t)data[i] << (8 * i);
    if (size >= 8 && memcmp(data, "version ", 8) == 0)
        s->status = mx_error(s->err, MTPLX_ERR_FORMAT,
                             PATH_FMT ": is a Git LFS pointer, not the tensors; fetch the file "
                                      "with 'git lfs pull'",
                             path);
    else if (size < 10)
        s->status = mx_error(s->err, MTPLX_ERR_FORMAT,
                             PATH_FMT ": has only %zu bytes; a safetensors file has at least 10",
                             path, size);
    else if (n > HEADER_LIMIT)
        s->status = mx_error(s->err, MTPLX_ERR_FORMAT,
                             PATH_FMT ": header length %" PRIu64 " exceeds the limit of %u bytes; "
                                      "this is not a safetensors file",
                             path, n, HEADER_LIMIT);
    else if (n > size - 8)
        s->status = mx_error(s->err, MTPLX_ERR_FORMAT,
                             PATH_FMT ": header length %" PRIu64 " exceeds the file of %zu bytes; "
                                      "the file is truncated",
                             path, n, size);
    else if (n < 2)
        s->status = mx_error(s->err, MTPLX_ERR_FORMAT, PATH_FMT ": the header is empty", path);
    else
        return (size_t)n;
    return 0;
}

static bool parse_file(struct scan *s, const uint8_t *data, size_t size)
{
    size_t n = header_length(s, data, size);
    if (n == 0)
        return false;
    size_t section = size - 8 - n;
    s->start = s->p = (const char *)data + 8;
    s->end = s->start + n;
    if (!mx_utf8_valid(s->start, n))
        return fail_json(s, "the text is not UTF-8, scanned");
    return parse_header(s, section) && check_tiling(s, section) && index_names(s);
}

mtplx_status mx_safetensors_parse(struct mx_safetensors *st, const void *data, size_t size,
                                  const char *name, mtplx_error *err)
{
    *st = (struct mx_safetensors){0};
    mx_arena_init(&st->arena, 0); /* holds names only: bounded by the header */
    st->path = mx_arena_strdup(&st->arena, name);
    if (!st->path)
        return mx_error_nomem(err, name, strlen(name) + 1);
    struct scan s = {.st = st, .err = err};
    if (!parse_file(&s, data, size)) {
        mx_safetensors_close(st);
        return s.status;
    }
    return MTPLX_OK;
}

mtplx_status mx_safetensors_open(struct mx_safetensors *st, const char *path, mtplx_error *err)
{
    struct mx_map map;
    *st = (struct mx_safetensors){0};
    mtplx_status status = mx_map_open(&map, path, err);
    if (status != MTPLX_OK)
        return status;
    status = mx_safetensors_parse(st, map.data, map.size, path, err);
    if (status != MTPLX_OK)
        mx_map_close(&map);
    else
        st->map = map;
    return status;
}

void mx_safetensors_close(struct mx_safetensors *st)
{
    free(st->tensors);
    mx_arena_free(&st->arena);
    mx_map_close(&st->map);
    *st = (struct mx_safetensors){0};
}

static int compare_name_key(const void *key, const void *elem)
{
    const struct mx_tensor *t = elem;
    return strcmp(key, t->name);
}

const struct mx_tensor *mx_safetensors_find(const struct mx_safetensors *st, const char *name)
{
    if (st->count == 0)
        return NULL;
    return bsearch(name, st->tensors, st->count, sizeof *st->tensors, compare_name_key);
}
