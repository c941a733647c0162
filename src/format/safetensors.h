/* safetensors files (https://github.com/huggingface/safetensors, "Format").
 *
 * Reading maps the file and checks everything before a tensor can be seen: header length, JSON,
 * dtype, shape against byte range, ranges inside the data section, no overlap, no hole, total size.
 * Tensor data is a pointer into the map at whatever address the file gives it: MLX writes headers
 * without padding, so in half of its files wide elements stand at odd addresses. Readers use memcpy
 * or unaligned loads. Sub-byte types are not supported. */
#ifndef MX_FORMAT_SAFETENSORS_H
#define MX_FORMAT_SAFETENSORS_H

#include "base/arena.h"
#include "base/file.h"
#include "format/dtype.h"

#define MX_MAX_DIMS 8

struct mx_tensor {
    const char *name;
    enum mx_dtype dtype; /* MX_DTYPE_NONE when gguf_type says what it is */
    int gguf_type;       /* enum mx_gguf_type of blocks in a GGUF file, else 0 */
    int ndim;
    int64_t shape[MX_MAX_DIMS];
    const void *data;
    uint64_t bytes;
    const char *file; /* path for messages */
};

struct mx_safetensors {
    struct mx_map map;
    struct mx_arena arena;
    char *path;                /* in the arena */
    struct mx_tensor *tensors; /* malloc'ed, sorted by name */
    size_t count;
    const char *metadata_format; /* "pt", "mlx" or NULL */
};

mtplx_status mx_safetensors_open(struct mx_safetensors *st, const char *path, mtplx_error *err);
/* The same on bytes in memory (fuzzing, tests), which must outlive `st`; `name` is used in
 * messages. On failure of either, `st` is empty and needs no close (close is harmless). */
mtplx_status mx_safetensors_parse(struct mx_safetensors *st, const void *data, size_t size,
                                  const char *name, mtplx_error *err);
void mx_safetensors_close(struct mx_safetensors *st);
const struct mx_tensor *mx_safetensors_find(const struct mx_safetensors *st, const char *name);

/* Writing: declare tensors in any order, then stream them to `path` in the declared order.
 * Offsets are 64-byte aligned only as far as the format permits (no holes), so the header is padded
 * with spaces to a multiple of 64 and tensors should be declared widest element first. */
struct mx_st_writer;
struct mx_st_writer *mx_st_writer_new(const char *metadata_format, mtplx_error *err);
/* `data` must stay valid until mx_st_writer_finish(). */
mtplx_status mx_st_writer_add(struct mx_st_writer *w, const char *name, enum mx_dtype dtype,
                              int ndim, const int64_t *shape, const void *data, mtplx_error *err);
/* Writes path through a temporary file and rename. */
mtplx_status mx_st_writer_finish(struct mx_st_writer *w, const char *path, mtplx_error *err);
void mx_st_writer_free(struct mx_st_writer *w);

#endif
