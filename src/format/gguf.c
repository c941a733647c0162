/* GGUF reader.
 *
 * One pass over the header with a bounds-checked cursor; nothing is allocated but two tables, whose
 * entry counts are bounded by the bytes that are left, and the names.
 *
 * Invariants once mx_gguf_parse() succeeded:
 *   1. Pairs and tensors are sorted; keys and names are unique, NUL-terminated UTF-8.
 *   2. The elements of a pair lie inside the map, also the bytes of every string of an array.
 *   3. A tensor with bytes > 0 lies inside the data section and overlaps no other; its bytes are
 *      those of its dimensions and type. One with bytes == 0 has a type of unknown size and only
 *      its first byte is known to be inside. */
#include "format/gguf.h"

#include "base/utf8.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PAIRS 65536u
#define MAX_TENSORS (1u << 20)
#define MAX_NAME 1024u
#define MAX_ELEMENTS                                                                               \
    (INT64_C(1) << 48) /* of 8 bytes: sums of sizes and offsets can not overflow                   \
                        */
#define DEFAULT_ALIGNMENT 32
#define MAX_ALIGNMENT (1 << 20)
#define MIN_PAIR_BYTES 13u   /* empty key, type, one byte */
#define MIN_TENSOR_BYTES 32u /* empty name, no. of dimensions, one dimension, type, offset */

/* Names in messages are cut so that the sentence around them survives. */
#define PATH_FMT "%.220s"
#define NAME_FMT "%.100s"

/* `err` is written once; after that every function returns false. */
struct cursor {
    const uint8_t *start, *at, *end;
    struct mx_gguf *g;
    const char *what; /* the pair or tensor being read, for messages, or NULL */
    mtplx_error *err;
    mtplx_status status;
};

/* ---- Primitive reads ---------------------------------------------------------------------- */

static bool fail(struct cursor *c, const char *why)
{
    if (c->what)
        c->status = mx_error(c->err, MTPLX_ERR_FORMAT, PATH_FMT ": '" NAME_FMT "': %s", c->g->path,
                             c->what, why);
    else
        c->status = mx_error(c->err, MTPLX_ERR_FORMAT, PATH_FMT ": %s", c->g->path, why);
    return false;
}

static bool fail_nomem(struct cursor *c, size_t bytes)
{
    c->status = mx_error_nomem(c->err, c->g->path, bytes);
    return false;
}

static size_t left(const struct cursor *c)
{
    return (size_t)(c->end - c->at);
}

/* Unaligned little-endian integers, which is what hosts are. */
static uint64_t load_uint(const uint8_t *p, size_t bytes)
{
    uint64_t v = 0;
    memcpy(&v, p, bytes);
    return v;
}

static bool take_uint(struct cursor *c, size_t bytes, uint64_t *out)
{
    if (left(c) < bytes)
        return fail(c, "the file ends inside its header; it is truncated");
    *out = load_uint(c->at, bytes);
    c->at += bytes;
    return true;
}

static bool take_string(struct cursor *c, const uint8_t **s, uint64_t *n)
{
    if (!take_uint(c, 8, n))
        return false;
    if (*n > left(c))
        return fail(c, "a string is longer than what is left of the file");
    *s = c->at;
    c->at += *n;
    return true;
}

/* A key or tensor name, copied and terminated. */
static bool take_name(struct cursor *c, const char *kind, const char **out)
{
    const uint8_t *s;
    uint64_t n;
    if (!take_string(c, &s, &n))
        return false;
    if (n == 0 || n > MAX_NAME || memchr(s, 0, n) || !mx_utf8_valid((const char *)s, n)) {
        c->status =
            mx_error(c->err, MTPLX_ERR_FORMAT,
                     PATH_FMT ": a %s at byte %zu is empty, longer than %u bytes or not UTF-8",
                     c->g->path, kind, (size_t)(s - c->start), MAX_NAME);
        return false;
    }
    *out = mx_arena_strndup(&c->g->arena, (const char *)s, n);
    return *out || fail_nomem(c, n);
}

/* ---- Metadata ----------------------------------------------------------------------------- */

/* Bytes of a scalar; 0 for strings, arrays and unknown types. */
static size_t value_bytes(uint64_t type)
{
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < sizeof bytes ? bytes[type] : 0;
}

static bool take_elements(struct cursor *c, struct mx_gguf_pair *p)
{
    size_t each = value_bytes(p->type);
    if (p->count > left(c) / (each ? each : 8))
        return fail(c, "the value is longer than what is left of the file");
    p->data = c->at;
    if (each) {
        c->at += p->count * each;
        for (uint64_t i = 0; p->type == MX_GV_BOOL && i < p->count; i++)
            if (p->data[i] > 1)
                return fail(c, "a bool is neither 0 nor 1");
        return true;
    }
    for (uint64_t i = 0; i < p->count; i++) {
        const uint8_t *s;
        uint64_t n;
        if (!take_string(c, &s, &n))
            return false;
    }
    return true;
}

static bool take_pair(struct cursor *c, struct mx_gguf_pair *p)
{
    uint64_t type;
    c->what = NULL;
    if (!take_name(c, "metadata key", &p->key))
        return false;
    c->what = p->key;
    if (!take_uint(c, 4, &type))
        return false;
    p->count = 1;
    if (type == MX_GV_ARRAY) {
        p->is_array = true;
        if (!take_uint(c, 4, &type) || !take_uint(c, 8, &p->count))
            return false;
        if (type == MX_GV_ARRAY)
            return fail(c, "arrays of arrays are not supported");
    }
    if (type > MX_GV_F64)
        return fail(c, "the type of the value is unknown");
    p->type = (enum mx_gguf_value)type;
    return take_elements(c, p);
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct mx_gguf_pair *)a)->key, ((const struct mx_gguf_pair *)b)->key);
}

static bool take_pairs(struct cursor *c, uint64_t count)
{
    struct mx_gguf *g = c->g;
    if (count > MAX_PAIRS || count > left(c) / MIN_PAIR_BYTES)
        return fail(c, "the header counts more metadata pairs than the file can hold");
    g->pairs = calloc(count ? count : 1, sizeof *g->pairs);
    if (!g->pairs)
        return fail_nomem(c, count * sizeof *g->pairs);
    for (; g->n_pairs < count; g->n_pairs++)
        if (!take_pair(c, &g->pairs[g->n_pairs]))
            return false;
    qsort(g->pairs, g->n_pairs, sizeof *g->pairs, by_key);
    for (size_t i = 1; i < g->n_pairs; i++) {
        c->what = g->pairs[i].key;
        if (strcmp(g->pairs[i - 1].key, c->what) == 0)
            return fail(c, "the metadata has this key twice");
    }
    c->what = NULL;
    return true;
}

/* ---- Tensor table ------------------------------------------------------------------------- */

/* Bytes of an element of a dense type, 0 for blocks and unknown ids. */
static int64_t dense_bytes(int type)
{
    switch (type) {
    case MX_GGUF_F32:
    case 26: return 4; /* I32 */
    case MX_GGUF_F16:
    case MX_GGUF_BF16:
    case 25: return 2; /* I16 */
    case 24: return 1; /* I8 */
    case 27:           /* I64 */
    case 28: return 8; /* F64 */
    default: return 0;
    }
}

static bool take_dims(struct cursor *c, struct mx_gguf_tensor *t)
{
    uint64_t ndim, ne;
    int64_t product = 1;
    if (!take_uint(c, 4, &ndim))
        return false;
    if (ndim < 1 || ndim > MX_GGUF_DIMS)
        return fail(c, "a tensor must have 1 to 4 dimensions");
    t->ndim = (int)ndim;
    for (int i = 0; i < MX_GGUF_DIMS; i++)
        t->ne[i] = 1;
    for (int i = 0; i < t->ndim; i++) {
        if (!take_uint(c, 8, &ne))
            return false;
        if (ne < 1 || ne > (uint64_t)MAX_ELEMENTS || product > MAX_ELEMENTS / (int64_t)ne)
            return fail(c, "a dimension is zero or the tensor is too large");
        t->ne[i] = (int64_t)ne;
        product *= t->ne[i];
    }
    return true;
}

/* Sets t->bytes, 0 when the size of the type is not known. */
static bool size_tensor(struct cursor *c, struct mx_gguf_tensor *t)
{
    int64_t rows = t->ne[1] * t->ne[2] * t->ne[3], each = dense_bytes(t->type);
    if (each) {
        t->bytes = (uint64_t)(t->ne[0] * rows * each);
    } else if (mx_gguf_block_values(t->type)) {
        size_t row = mx_gguf_row_bytes(t->type, t->ne[0]);
        if (row == 0)
            return fail(c, "the first dimension is no multiple of the type's block");
        t->bytes = (uint64_t)row * (uint64_t)rows;
    }
    return true;
}

static bool take_tensor(struct cursor *c, struct mx_gguf_tensor *t, uint64_t *offset)
{
    uint64_t type;
    c->what = NULL;
    if (!take_name(c, "tensor name", &t->name))
        return false;
    c->what = t->name;
    if (!take_dims(c, t) || !take_uint(c, 4, &type) || !take_uint(c, 8, offset))
        return false;
    if (type > INT32_MAX)
        return fail(c, "the type of the tensor is unknown");
    t->type = (int)type;
    return size_tensor(c, t);
}

static bool find_alignment(struct cursor *c, uint64_t *out)
{
    int64_t a = DEFAULT_ALIGNMENT;
    c->status = mx_gguf_int(c->g, "general.alignment", &a, c->err);
    if (c->status != MTPLX_OK)
        return false;
    c->what = "general.alignment";
    if (a < 1 || a > MAX_ALIGNMENT || (a & (a - 1)) != 0)
        return fail(c, "must be a power of two of at most 1 MiB");
    c->what = NULL;
    *out = (uint64_t)a;
    return true;
}

/* Offsets are kept in `data` until the start of the data section is known. */
static bool place_tensors(struct cursor *c, const uint64_t *offsets)
{
    struct mx_gguf *g = c->g;
    uint64_t align;
    if (!find_alignment(c, &align))
        return false;
    size_t header = (size_t)(c->at - c->start), size = (size_t)(c->end - c->start);
    size_t pad = (size_t)((align - header % align) % align);
    size_t data = pad < size - header ? header + pad : size;
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct mx_gguf_tensor *t = &g->tensors[i];
        c->what = t->name;
        if (offsets[i] % align != 0)
            return fail(c, "the offset of the tensor is not aligned");
        if (offsets[i] >= size - data || t->bytes > size - data - offsets[i])
            return fail(c, "the tensor reaches past the end of the file; it is truncated");
        t->data = c->start + data + offsets[i];
    }
    c->what = NULL;
    return true;
}

static int by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const struct mx_gguf_tensor *)a)->data;
    uintptr_t y = (uintptr_t)((const struct mx_gguf_tensor *)b)->data;
    return (x > y) - (x < y);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct mx_gguf_tensor *)a)->name,
                  ((const struct mx_gguf_tensor *)b)->name);
}

static bool check_tensors(struct cursor *c)
{
    struct mx_gguf *g = c->g;
    qsort(g->tensors, g->n_tensors, sizeof *g->tensors, by_address);
    for (size_t i = 1; i < g->n_tensors; i++) {
        const struct mx_gguf_tensor *t = &g->tensors[i - 1];
        c->what = g->tensors[i].name;
        uint64_t apart = (uint64_t)((const uint8_t *)g->tensors[i].data - (const uint8_t *)t->data);
        if (apart < (t->bytes ? t->bytes : 1))
            return fail(c, "the tensor overlaps another one");
    }
    qsort(g->tensors, g->n_tensors, sizeof *g->tensors, by_name);
    for (size_t i = 1; i < g->n_tensors; i++) {
        c->what = g->tensors[i].name;
        if (strcmp(g->tensors[i - 1].name, c->what) == 0)
            return fail(c, "the file has this tensor twice");
    }
    return true;
}

static bool take_tensors(struct cursor *c, uint64_t count)
{
    struct mx_gguf *g = c->g;
    if (count > MAX_TENSORS || count > left(c) / MIN_TENSOR_BYTES)
        return fail(c, "the header counts more tensors than the file can hold");
    g->tensors = calloc(count ? count : 1, sizeof *g->tensors);
    uint64_t *offsets = calloc(count ? count : 1, sizeof *offsets);
    bool ok = (g->tensors && offsets) || fail_nomem(c, count * sizeof *g->tensors);
    for (; ok && g->n_tensors < count; g->n_tensors += ok)
        ok = take_tensor(c, &g->tensors[g->n_tensors], &offsets[g->n_tensors]);
    c->what = NULL;
    ok = ok && place_tensors(c, offsets) && check_tensors(c);
    free(offsets);
    return ok;
}

/* ---- The file ----------------------------------------------------------------------------- */

static bool take_header(struct cursor *c, uint64_t *tensors, uint64_t *pairs)
{
    uint64_t version;
    if (left(c) < 4 || memcmp(c->at, "GGUF", 4) != 0)
        return fail(c, "this is not a GGUF file");
    c->at += 4;
    if (!take_uint(c, 4, &version))
        return false;
    if (version != 2 && version != 3) {
        bool swapped = (version & 0xffffu) == 0 && version != 0;
        c->status =
            mx_error(c->err, MTPLX_ERR_UNSUPPORTED,
                     PATH_FMT ": %s; this build reads little-endian GGUF versions 2 and 3",
                     c->g->path, swapped ? "the file is big-endian" : "the version is another one");
        return false;
    }
    return take_uint(c, 8, tensors) && take_uint(c, 8, pairs);
}

static mtplx_status parse(struct mx_gguf *g, const void *data, size_t size, mtplx_error *err)
{
    struct cursor c = {.start = data, .at = data, .g = g, .err = err};
    uint64_t tensors, pairs;
    c.end = c.at + size;
    if (take_header(&c, &tensors, &pairs) && take_pairs(&c, pairs))
        take_tensors(&c, tensors);
    return c.status;
}

static mtplx_status begin(struct mx_gguf *g, const char *path, mtplx_error *err)
{
    *g = (struct mx_gguf){0};
    mx_arena_init(&g->arena, 0);
    g->path = mx_arena_strdup(&g->arena, path);
    return g->path ? MTPLX_OK : mx_error_nomem(err, path, strlen(path));
}

mtplx_status mx_gguf_parse(struct mx_gguf *g, const void *data, size_t size, const char *name,
                           mtplx_error *err)
{
    mtplx_status st = begin(g, name, err);
    if (st == MTPLX_OK)
        st = parse(g, data, size, err);
    if (st != MTPLX_OK)
        mx_gguf_close(g);
    return st;
}

mtplx_status mx_gguf_open(struct mx_gguf *g, const char *path, mtplx_error *err)
{
    mtplx_status st = begin(g, path, err);
    if (st == MTPLX_OK)
        st = mx_map_open(&g->map, path, err);
    if (st == MTPLX_OK)
        st = parse(g, g->map.data, g->map.size, err);
    if (st != MTPLX_OK)
        mx_gguf_close(g);
    return st;
}

void mx_gguf_close(struct mx_gguf *g)
{
    mx_map_close(&g->map);
    mx_arena_free(&g->arena);
    free(g->pairs);
    free(g->tensors);
    *g = (struct mx_gguf){0};
}

/* ---- Access ------------------------------------------------------------------------------- */

const struct mx_gguf_pair *mx_gguf_find(const struct mx_gguf *g, const char *key)
{
    const struct mx_gguf_pair want = {.key = key};
    return g->n_pairs ? bsearch(&want, g->pairs, g->n_pairs, sizeof want, by_key) : NULL;
}

const struct mx_gguf_tensor *mx_gguf_tensor(const struct mx_gguf *g, const char *name)
{
    const struct mx_gguf_tensor want = {.name = name};
    return g->n_tensors ? bsearch(&want, g->tensors, g->n_tensors, sizeof want, by_name) : NULL;
}

static mtplx_status wrong(const struct mx_gguf *g, const char *key, const char *what,
                          mtplx_error *err)
{
    return mx_error(err, MTPLX_ERR_FORMAT, PATH_FMT ": metadata key '" NAME_FMT "' must be %s",
                    g->path, key, what);
}

bool mx_gguf_int_at(const struct mx_gguf_pair *p, uint64_t i, int64_t *out)
{
    size_t n = value_bytes(p->type);
    if (n == 0 || p->type == MX_GV_F32 || p->type == MX_GV_F64)
        return false;
    uint64_t v = load_uint(p->data + i * n, n);
    bool is_signed = p->type == MX_GV_I8 || p->type == MX_GV_I16 || p->type == MX_GV_I32;
    if (is_signed && (v >> (8 * n - 1) & 1))
        v |= UINT64_MAX << (8 * n - 1);
    else if (p->type == MX_GV_U64 && v > INT64_MAX)
        return false;
    memcpy(out, &v, sizeof *out);
    return true;
}

mtplx_status mx_gguf_int(const struct mx_gguf *g, const char *key, int64_t *out, mtplx_error *err)
{
    const struct mx_gguf_pair *p = mx_gguf_find(g, key);
    if (p && (p->is_array || !mx_gguf_int_at(p, 0, out)))
        return wrong(g, key, "an integer", err);
    return MTPLX_OK;
}

mtplx_status mx_gguf_float(const struct mx_gguf *g, const char *key, double *out, mtplx_error *err)
{
    const struct mx_gguf_pair *p = mx_gguf_find(g, key);
    int64_t i;
    float f;
    if (!p)
        return MTPLX_OK;
    if (p->is_array)
        return wrong(g, key, "a number", err);
    if (p->type == MX_GV_F64) {
        memcpy(out, p->data, sizeof *out);
    } else if (p->type == MX_GV_F32) {
        memcpy(&f, p->data, sizeof f);
        *out = (double)f;
    } else if (mx_gguf_int_at(p, 0, &i)) {
        *out = (double)i;
    } else {
        return wrong(g, key, "a number", err);
    }
    return MTPLX_OK;
}

const char *mx_gguf_next_string(const uint8_t **data, size_t *n)
{
    *n = (size_t)load_uint(*data, 8);
    const char *s = (const char *)*data + 8;
    *data += 8 + *n;
    return s;
}

mtplx_status mx_gguf_string(const struct mx_gguf *g, const char *key, const char **s, size_t *n,
                            mtplx_error *err)
{
    const struct mx_gguf_pair *p = mx_gguf_find(g, key);
    if (!p)
        return MTPLX_OK;
    if (p->is_array || p->type != MX_GV_STRING)
        return wrong(g, key, "a string", err);
    const uint8_t *at = p->data;
    *s = mx_gguf_next_string(&at, n);
    return MTPLX_OK;
}

mtplx_status mx_gguf_strings(const struct mx_gguf *g, const char *key,
                             const struct mx_gguf_pair **out, mtplx_error *err)
{
    *out = mx_gguf_find(g, key);
    if (*out && (!(*out)->is_array || (*out)->type != MX_GV_STRING))
        return wrong(g, key, "an array of strings", err);
    return MTPLX_OK;
}

mtplx_status mx_gguf_ints(const struct mx_gguf *g, const char *key, const struct mx_gguf_pair **out,
                          mtplx_error *err)
{
    const struct mx_gguf_pair *p = *out = mx_gguf_find(g, key);
    if (p &&
        (!p->is_array || value_bytes(p->type) == 0 || p->type == MX_GV_F32 || p->type == MX_GV_F64))
        return wrong(g, key, "an array of integers", err);
    return MTPLX_OK;
}
