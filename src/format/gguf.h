/* GGUF files, versions 2 and 3 (https://github.com/ggml-org/ggml, docs/gguf.md): one file with
 * metadata pairs and a tensor table, followed by the tensors' data.
 *
 * Reading maps the file and checks everything before anything can be seen: counts, lengths, value
 * types, every element of every array of strings, dimensions, block sizes, alignment, ranges inside
 * the data section, no overlap. Keys, names and strings point into the map or the arena and live as
 * long as the struct. Data may stand at any address. Thread-safe for reading once open. */
#ifndef MX_FORMAT_GGUF_H
#define MX_FORMAT_GGUF_H

#include "base/arena.h"
#include "base/file.h"
#include "format/gguf_quant.h"

/* Type ids of metadata values. */
enum mx_gguf_value {
    MX_GV_U8 = 0,
    MX_GV_I8 = 1,
    MX_GV_U16 = 2,
    MX_GV_I16 = 3,
    MX_GV_U32 = 4,
    MX_GV_I32 = 5,
    MX_GV_F32 = 6,
    MX_GV_BOOL = 7,
    MX_GV_STRING = 8,
    MX_GV_ARRAY = 9,
    MX_GV_U64 = 10,
    MX_GV_I64 = 11,
    MX_GV_F64 = 12,
};

/* A metadata pair. A scalar is kept as an array of one. */
struct mx_gguf_pair {
    const char *key;
    enum mx_gguf_value type; /* of the value, or of an array's elements; never MX_GV_ARRAY */
    bool is_array;
    uint64_t count;
    const uint8_t *data; /* elements as stored, validated */
};

#define MX_GGUF_DIMS 4

struct mx_gguf_tensor {
    const char *name;
    int type; /* enum mx_gguf_type or an id that this build does not know */
    int ndim;
    int64_t ne[MX_GGUF_DIMS]; /* fastest first: inputs, outputs, ...; 1 beyond ndim */
    const void *data;
    uint64_t bytes; /* 0 when the size of the type is not known */
};

struct mx_gguf {
    struct mx_map map;
    struct mx_arena arena;
    char *path;                 /* in the arena */
    struct mx_gguf_pair *pairs; /* sorted by key */
    size_t n_pairs;
    struct mx_gguf_tensor *tensors; /* sorted by name */
    size_t n_tensors;
};

/* Errors: IO, FORMAT, UNSUPPORTED (version 1, big-endian), MEMORY. On failure `g` is empty. */
mtplx_status mx_gguf_open(struct mx_gguf *g, const char *path, mtplx_error *err);
/* The same on bytes in memory (fuzzing, tests), which must outlive `g`; `name` is used in messages.
 */
mtplx_status mx_gguf_parse(struct mx_gguf *g, const void *data, size_t size, const char *name,
                           mtplx_error *err);
void mx_gguf_close(struct mx_gguf *g);

/* NULL when absent. */
const struct mx_gguf_pair *mx_gguf_find(const struct mx_gguf *g, const char *key);
const struct mx_gguf_tensor *mx_gguf_tensor(const struct mx_gguf *g, const char *name);

/* Scalars. An absent key leaves *out as it is; a present one of another type, or an integer beyond
 * int64_t, is a FORMAT error naming file and key. Integers do for floats, not the reverse. */
mtplx_status mx_gguf_int(const struct mx_gguf *g, const char *key, int64_t *out, mtplx_error *err);
mtplx_status mx_gguf_float(const struct mx_gguf *g, const char *key, double *out, mtplx_error *err);
/* Not NUL-terminated; may hold any bytes. */
mtplx_status mx_gguf_string(const struct mx_gguf *g, const char *key, const char **s, size_t *n,
                            mtplx_error *err);
/* An array of strings, of integers (bools count as 0 and 1); *out is NULL when absent. */
mtplx_status mx_gguf_strings(const struct mx_gguf *g, const char *key,
                             const struct mx_gguf_pair **out, mtplx_error *err);
mtplx_status mx_gguf_ints(const struct mx_gguf *g, const char *key, const struct mx_gguf_pair **out,
                          mtplx_error *err);

/* Element i < count of a pair of numbers; false when it is no integer that fits int64_t. */
bool mx_gguf_int_at(const struct mx_gguf_pair *p, uint64_t i, int64_t *out);

/* Walks over a pair of strings: start with data = p->data, call at most p->count times. */
const char *mx_gguf_next_string(const uint8_t **data, size_t *n);

#endif
