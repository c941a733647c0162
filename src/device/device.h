/* Device: a table of coarse ops over device memory.
 *
 * One header, several sibling implementations (ref, cpu; a GPU later), chosen at run time. The
 * `ref` device is plain portable C in float32 and is the oracle the others are tested against.
 *
 * Invariants
 *   D1  Device memory is addressed by plain pointers in the device's own address space. Host code
 *       may do arithmetic on them but dereferences none; it moves data with upload/download/copy.
 *   D2  Ops neither allocate nor fail nor read back: shapes were validated when weights were bound,
 *       scratch was reserved by reserve(). So a whole step can be recorded and replayed. (argmax
 * and download are the two ways results leave the device: they wait for earlier ops.) D3  Row
 * invariance: every output element has one fixed reduction order, which depends on the row's own
 * data and absolute position only, never on the number of rows or segments in the call, on the
 * thread count, or on how rows were cut into calls. D4  Matrices are row-major; "[n][d]" with a
 * leading dimension `ld*` in elements (floats). D5  Activations, recurrent states and logits are
 * float32. KV entries have the format of the layout: kv_format, or a quantised one. D6  Batches
 * (tokens, positions, segments, block tables) are host memory, read before an op returns. Memory
 * functions may be called from any thread; ops from one at a time.
 *
 * Weights stay where the checkpoint maps them (host memory); weight_bind() lets a device copy or
 * repack them once. */
#ifndef MX_DEVICE_DEVICE_H
#define MX_DEVICE_DEVICE_H

#include "base/error.h"
#include "device/kv_format.h"
#include "format/dtype.h"

enum mx_weight_kind {
    MX_W_F32 = 1,
    MX_W_F16,
    MX_W_BF16,
    MX_W_MLXQ, /* MLX affine, see format/mlxq.h */
    MX_W_GGUF, /* blocks of one of the types in format/gguf_quant.h */
};

/* A matrix [out][in]; y = W x. */
struct mx_weight {
    enum mx_weight_kind kind;
    int64_t out, in;
    const void *data;     /* dense elements, or packed codes */
    const void *scales;   /* MLXQ: [out][in / group] */
    const void *biases;   /* MLXQ: same */
    enum mx_dtype sdtype; /* MLXQ: type of scales and biases */
    int bits, group;      /* MLXQ */
    int gguf_type;        /* GGUF: enum mx_gguf_type; `data` is rows of blocks as stored */
    bool mapped;          /* lies in a file mapping: a device that has made a copy may drop pages */
    bool lookup_only;     /* for embed() alone, never multiplied */
    void *bound;          /* owned by the device, set by weight_bind */
};

/* One product of a group that shares its input rows. */
struct mx_matmul {
    const struct mx_weight *w;
    float *y; /* [n][ldy] */
    int64_t ldy;
};

/* KV cache geometry: a block holds `block_tokens` positions of every layer:
 * [layer][K then V][kv_head][token in block] entries, which kv_format.h describes. */
#define MX_KV_MAX_HEAD_DIM 1024 /* loaders reject more */
struct mx_kv_layout {
    enum mx_kv_format format; /* the device's own (struct mx_device) or a quantised one */
    int block_tokens;
    int layers, kv_heads, head_dim;
};
/* One head of one position, K or V. */
static inline size_t mx_kv_entry_bytes(const struct mx_kv_layout *l)
{
    return mx_kv_bytes(l->format, l->head_dim);
}
/* One position: every layer and head, K and V. */
static inline size_t mx_kv_token_bytes(const struct mx_kv_layout *l)
{
    return 2 * (size_t)l->layers * (size_t)l->kv_heads * mx_kv_entry_bytes(l);
}
static inline size_t mx_kv_block_bytes(const struct mx_kv_layout *l)
{
    return (size_t)l->block_tokens * mx_kv_token_bytes(l);
}

/* A copy of the recurrent state in the middle of a segment: the slab (all layers) after row `row`
 * of the segment. */
struct mx_rec_capture {
    int row;
    float *slab;
};

/* The rows of one sequence inside a call: rows row0 .. row0+rows-1 of every [n][..] array. */
struct mx_seg {
    int row0, rows;
    int64_t kv_len;         /* cache entries before row0; row r is stored at kv_len + (r - row0) */
    void *const *kv_blocks; /* block table, covers kv_len + rows positions */
    const float *rec_in;    /* recurrent slab before row0 (all layers) */
    float *rec_out;         /* slab after the last row, may be rec_in; NULL: not kept */
    float *tape;            /* NULL, or where every row leaves what a replay needs (all layers) */
    const struct mx_rec_capture *captures; /* host array, rows ascending; needs rec_out */
    int n_captures;
};

struct mx_batch {
    int n, n_segs;
    const int32_t *tokens;    /* [n] */
    const int32_t *positions; /* [n][3]: rope positions t, h, w */
    const struct mx_seg *segs;
};

/* Norm of q and k heads, rotary embedding, store of k and v into the cache.
 * q rows: per head `q_stride` floats of which the first head_dim are the query (the rest, a gate,
 * is left alone). Rotary: half-split pairs (j, j + n_freq), j < n_freq, angle =
 * positions[axis[j]] * inv_freq[j]; dims >= 2 * n_freq pass through. RMSNorm over head_dim with the
 * full weight (1 + w already applied). */
struct mx_qkv {
    const struct mx_batch *batch;
    const struct mx_kv_layout *kv;
    int layer; /* index into kv->layers */
    int heads, q_stride;
    float *q; /* [n][ldq], normalised and rotated in place; NULL: history rows only */
    int64_t ldq;
    const float *k, *v;           /* [n][kv_heads * head_dim] */
    const float *q_norm, *k_norm; /* [head_dim], device memory; NULL: no norm */
    float eps;
    int n_freq;
    const float *inv_freq; /* [n_freq], device memory */
    const uint8_t *axis;   /* [n_freq] 0..2, device memory */
};

/* Causal grouped-query attention of each row over cache entries 0 .. its own. */
struct mx_attention {
    const struct mx_batch *batch;
    const struct mx_kv_layout *kv;
    int layer;
    int heads, q_stride;
    const float *q; /* [n][ldq] as left by qkv */
    int64_t ldq;
    float scale;
    bool gated; /* multiply by sigmoid(gate); gate = the head_dim floats after a query */
    float *y;   /* [n][heads * head_dim] */
};

/* Gated DeltaNet (Yang et al. 2024), one layer: causal depthwise conv + silu, q/k L2 norm, decayed
 * delta rule, gated RMS norm. Slab of a sequence: per layer [conv tail: (K-1)][conv_dim] oldest
 * first, then [Hv][dk][dv] state; layer l starts at l * mx_gdn_layer_floats(). Tape row per layer:
 * [conv_dim pre-conv inputs][Hk*dk normalised k][Hv*dv delta][Hv alpha]; the tape is
 * [layer][row][mx_gdn_tape_floats()] with tape_rows rows a layer. */
#define MX_GDN_MAX_DIM 1024 /* largest dk and dv; loaders reject more */
struct mx_gdn_layout {
    int layers, key_heads, value_heads, dk, dv, kernel;
    bool tiled_heads; /* value head h uses key head h % Hk (GGUF) instead of h / (Hv/Hk) */
    int tape_rows;
};
static inline int64_t mx_gdn_conv_dim(const struct mx_gdn_layout *g)
{
    return 2 * (int64_t)g->key_heads * g->dk + (int64_t)g->value_heads * g->dv;
}
static inline int64_t mx_gdn_conv_floats(const struct mx_gdn_layout *g)
{
    return (g->kernel - 1) * mx_gdn_conv_dim(g);
}
static inline int64_t mx_gdn_layer_floats(const struct mx_gdn_layout *g)
{
    return mx_gdn_conv_floats(g) + (int64_t)g->value_heads * g->dk * g->dv;
}
static inline int64_t mx_gdn_tape_floats(const struct mx_gdn_layout *g)
{
    return mx_gdn_conv_dim(g) + (int64_t)g->key_heads * g->dk + (int64_t)g->value_heads * g->dv +
           g->value_heads;
}

struct mx_gdn {
    const struct mx_batch *batch;
    const struct mx_gdn_layout *layout;
    int layer;
    const float *qkv; /* [n][ldqkv]: pre-conv q heads, k heads, v heads */
    int64_t ldqkv;
    const float *z; /* [n][ldz]: Hv * dv output gates */
    int64_t ldz;
    const float *b, *a; /* [n][ldba]: Hv each */
    int64_t ldba;
    const float *conv;      /* [kernel][conv_dim], device memory; last tap = current row */
    const float *neg_exp_a; /* [Hv]: -exp(A_log) */
    const float *dt_bias;   /* [Hv] */
    const float *norm;      /* [dv] plain weight */
    float eps;
    float *y; /* [n][Hv * dv] */
};

struct mx_device;

struct mx_device_ops {
    /* Memory. alloc returns zeroed memory aligned to 64 bytes, or NULL. */
    void *(*alloc)(struct mx_device *d, size_t bytes);
    void (*free)(struct mx_device *d, void *p);
    void (*upload)(struct mx_device *d, void *dst, const void *src, size_t bytes);
    void (*download)(struct mx_device *d, void *dst, const void *src, size_t bytes);
    void (*copy)(struct mx_device *d, void *dst, const void *src, size_t bytes);

    /* Reserves scratch for calls of at most max_rows rows, any bound weight, contexts of at most
     * max_context entries. Called after all weights are bound; grows only. */
    mtplx_status (*reserve)(struct mx_device *d, int max_rows, int64_t max_context,
                            mtplx_error *err);

    mtplx_status (*weight_bind)(struct mx_device *d, struct mx_weight *w, mtplx_error *err);
    void (*weight_unbind)(struct mx_device *d, struct mx_weight *w);

    /* y[i] = row tokens[i] of the matrix. */
    void (*embed)(struct mx_device *d, const struct mx_weight *w, const int32_t *tokens, int n,
                  float *y, int64_t ldy);
    /* For each of `count` products: y[i] = W x[i], i < n. All share in and x. */
    void (*matmul)(struct mx_device *d, const struct mx_matmul *m, int count, const float *x,
                   int64_t ldx, int n);
    /* y = x * rsqrt(mean(x^2) + eps) * w, w the full factor [dim]. y may be x. */
    void (*rmsnorm)(struct mx_device *d, const float *x, int64_t ldx, const float *w, float eps,
                    float *y, int64_t ldy, int n, int dim);
    /* x += r, then y = rmsnorm(x) (skipped when y is NULL). */
    void (*add_rmsnorm)(struct mx_device *d, float *x, int64_t ldx, const float *r, int64_t ldr,
                        const float *w, float eps, float *y, int64_t ldy, int n, int dim);
    /* y += alpha * x over [n][dim]. */
    void (*axpy)(struct mx_device *d, float alpha, const float *x, int64_t ldx, float *y,
                 int64_t ldy, int n, int dim);
    /* y = silu(gate) * up over [n][dim]; y may be gate or up. */
    void (*swiglu)(struct mx_device *d, const float *gate, int64_t ldg, const float *up,
                   int64_t ldu, float *y, int64_t ldy, int n, int dim);
    void (*qkv)(struct mx_device *d, const struct mx_qkv *a);
    void (*attention)(struct mx_device *d, const struct mx_attention *a);
    void (*gated_delta)(struct mx_device *d, const struct mx_gdn *a);
    /* slab <- the state after the first `keep` rows of the tape, bit for bit what gated_delta would
     * have left in rec_out had it been given those rows only. All layers. slab is rec_in of then.
     */
    void (*gated_delta_commit)(struct mx_device *d, const struct mx_gdn_layout *l, float *slab,
                               const float *tape, int keep);
    /* ids[i] = argmax of row i (host memory), ties to the lower index. */
    void (*argmax)(struct mx_device *d, const float *x, int64_t ldx, int n, int dim, int32_t *ids);
    /* Waits until results are visible to download(). */
    void (*sync)(struct mx_device *d);
    void (*close)(struct mx_device *d);
};

struct mx_device {
    const struct mx_device_ops *ops;
    const char *name;            /* "ref", "cpu/avx2", "cpu/generic", ... */
    enum mx_kv_format kv_format; /* what this device stores KV entries as: F32 or F16 */
    int threads;
    bool host_memory; /* device memory is host memory, which the host may read and write in place */
    /* Set before the first weight is bound. The fast profile may round activations to int8 where
     * weights are quantised; without it every product takes float32 activations. D3 holds in both,
     * but they give different bits. */
    bool fast;
    const char *int8; /* int8 kernels that the fast profile uses; NULL: it is the exact one here */
    const char *note; /* NULL, or one sentence on what the device had to do without */
};

/* name: NULL or "auto", "cpu", "ref". threads: 0 = one per usable CPU. The environment variable
 * MTPLX_CPU=ref|generic|avx2|avx512|amx|neon forces an instruction set of the cpu device (or the
 * ref device); one that this machine lacks is an UNSUPPORTED error that lists what it has. */
struct mx_device *mx_device_open(const char *name, int threads, mtplx_error *err);
void mx_device_close(struct mx_device *d);

/* What "auto" comes to on this machine, after the self-check of cpu_check.c. */
struct mx_device_probe {
    const char *device;  /* "cpu/avx512" */
    const char *int8;    /* int8 kernels of the fast profile, or NULL */
    int formats, broken; /* weight formats checked, and those that run in float32 for a failure */
    const char *note;    /* as in struct mx_device, or NULL */
};
/* Errors: as mx_device_open(). Takes a few milliseconds. */
mtplx_status mx_device_probe(struct mx_device_probe *p, mtplx_error *err);

#endif
