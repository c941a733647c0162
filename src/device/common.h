/* What the host-memory devices (ref and cpu) share: memory ops, weight checks, KV addressing, the
 * row-to-sequence lookup, the split of a product group into tiles, and the layout of a tape row. */
#ifndef MX_DEVICE_COMMON_H
#define MX_DEVICE_COMMON_H

#include "device/device.h"

/* Zeroed memory aligned to 64 bytes; NULL when there is none. Pages are touched on demand. */
void *mx_host_alloc(struct mx_device *d, size_t bytes);
/* Asks for huge pages where a range is large enough for them: with 4 KB pages, address translation
 * and not memory sets the speed of what streams through it. */
void mx_host_huge(void *p, size_t bytes);
void mx_host_free(struct mx_device *d, void *p);
/* upload, download and copy are all a memmove here. */
void mx_host_copy(struct mx_device *d, void *dst, const void *src, size_t bytes);
void mx_host_sync(struct mx_device *d);

/* Checks what kernels rely on: kind, shape, pointers, bits, group, type of scales. */
mtplx_status mx_weight_check(const struct mx_weight *w, mtplx_error *err);

/* Bytes of one stored row of a weight (packed codes only for MLXQ). */
size_t mx_weight_row_bytes(const struct mx_weight *w);

/* Byte offset of token `tok` of a KV block; which: 0 for K, 1 for V. */
static inline size_t mx_kv_offset(const struct mx_kv_layout *l, int layer, int which, int head,
                                  int tok)
{
    size_t plane = ((size_t)layer * 2 + (size_t)which) * (size_t)l->kv_heads + (size_t)head;
    return (plane * (size_t)l->block_tokens + (size_t)tok) * mx_kv_entry_bytes(l);
}

/* The cache entry at absolute position `pos` of a sequence. */
static inline void *mx_kv_entry(const struct mx_kv_layout *l, const struct mx_seg *s, int layer,
                                int which, int head, int64_t pos)
{
    char *block = s->kv_blocks[pos / l->block_tokens];
    int tok = (int)(pos % l->block_tokens);
    return block + mx_kv_offset(l, layer, which, head, tok);
}

/* The segment that holds row r. */
static inline const struct mx_seg *mx_seg_of_row(const struct mx_batch *b, int r)
{
    const struct mx_seg *s = b->segs;
    while (r >= s->row0 + s->rows)
        s++;
    return s;
}

/* Key head of value head h. */
static inline int mx_gdn_key_head(const struct mx_gdn_layout *l, int h)
{
    return l->tiled_heads ? h % l->key_heads : h / (l->value_heads / l->key_heads);
}

/* Tiles of `rows` outputs over all products of a group, numbered through. */
static inline int mx_matmul_tiles(const struct mx_matmul *m, int count, int64_t rows)
{
    int64_t tiles = 0;
    for (int i = 0; i < count; i++)
        tiles += (m[i].w->out + rows - 1) / rows;
    return (int)tiles;
}

/* The product that tile `tile` belongs to; *first is its first output. */
static inline const struct mx_matmul *mx_matmul_tile(const struct mx_matmul *m, int tile,
                                                     int64_t rows, int64_t *first)
{
    for (;; m++) {
        int64_t tiles = (m->w->out + rows - 1) / rows;
        if (tile < tiles)
            break;
        tile -= (int)tiles;
    }
    *first = tile * rows;
    return m;
}

/* A view of one row of a layer's tape (device.h, Gated DeltaNet). */
struct mx_gdn_tape_row {
    float *inputs, *k, *delta, *alpha;
};
static inline struct mx_gdn_tape_row mx_gdn_tape_at(const struct mx_gdn_layout *l,
                                                    const float *tape, int layer, int row)
{
    float *p = (float *)tape + ((int64_t)layer * l->tape_rows + row) * mx_gdn_tape_floats(l);
    struct mx_gdn_tape_row t = {.inputs = p};
    t.k = t.inputs + mx_gdn_conv_dim(l);
    t.delta = t.k + (int64_t)l->key_heads * l->dk;
    t.alpha = t.delta + (int64_t)l->value_heads * l->dv;
    return t;
}

#endif
