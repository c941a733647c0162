/* Building blocks shared by families: weights of a block, and the ops that run it.
 *
 * Every function takes rows in device memory and scratch the caller owns; none allocates. Shapes
 * are stated per argument as [rows][columns]. */
#ifndef MX_FAMILIES_BLOCKS_H
#define MX_FAMILIES_BLOCKS_H

#include "families/family.h"
#include "families/loader.h"

/* y[n][out] = W x[n][in] for several matrices that share x, LoRA terms included.
 * `tmp` [n][rank + out] is needed only where a LoRA is kept apart. */
struct mx_product {
    const struct mx_linear *lin;
    float *y;
};
void mx_linear_apply(struct mx_device *d, const struct mx_product *p, int count, const float *x,
                     int n, float *tmp);

/* ---- Gated full attention ----------------------------------------------------------------- */

struct mx_attn_block {
    struct mx_linear q, k, v, o;
    float *q_norm, *k_norm; /* [head_dim] full factor, or NULL */
    int heads, q_stride;    /* q_stride = head_dim, or 2 * head_dim with an output gate */
    bool gated;
    float scale, eps;
};

/* Rotary embedding tables in device memory. */
struct mx_rope {
    int n_freq;
    float *inv_freq; /* [n_freq] */
    uint8_t *axis;   /* [n_freq]: 0 t, 1 h, 2 w */
};

/* Scratch: q [n][heads * q_stride], k and v [n][kv_heads * head_dim], att [n][heads * head_dim],
 * tmp [n][LoRA rank + outputs]. y [n][hidden] may not overlap them. With y NULL only keys and
 * values are computed and stored (MTP history rows). */
void mx_attn_run(struct mx_device *d, const struct mx_attn_block *a, const struct mx_rope *rope,
                 const struct mx_kv_layout *kv, int layer, const struct mx_batch *b, const float *x,
                 float *q, float *k, float *v, float *att, float *tmp, float *y);

mtplx_status mx_attn_load(struct mx_loader *l, const char *prefix, const char *module, int hidden,
                          int kv_heads, int head_dim, float norm_add, struct mx_attn_block *a,
                          mtplx_error *err);

/* Frequencies theta^(-2j / (2 n_freq)) and the mRoPE axis of each (sections NULL: text only). */
mtplx_status mx_rope_load(struct mx_loader *l, double theta, int n_freq, const int sections[3],
                          bool interleaved, struct mx_rope *r, mtplx_error *err);

/* ---- Gated DeltaNet ----------------------------------------------------------------------- */

struct mx_gdn_block {
    struct mx_linear qkv, z, b, a, out;
    float *conv;      /* [kernel][conv_dim] */
    float *neg_exp_a; /* [value heads] */
    float *dt_bias;   /* [value heads] */
    float *norm;      /* [dv] */
    float eps;
};

/* Scratch: qkv [n][conv_dim], z [n][Hv * dv], ba [n][2 * Hv], core [n][Hv * dv]. */
void mx_gdn_run(struct mx_device *d, const struct mx_gdn_block *g, const struct mx_gdn_layout *lay,
                int layer, const struct mx_batch *b, const float *x, float *qkv, float *z,
                float *ba, float *core, float *y);

mtplx_status mx_gdn_load(struct mx_loader *l, const char *prefix, const char *module, int hidden,
                         const struct mx_gdn_layout *lay, struct mx_gdn_block *g, mtplx_error *err);

/* ---- SwiGLU MLP --------------------------------------------------------------------------- */

struct mx_mlp_block {
    struct mx_linear gate, up, down;
};

/* Scratch: gate and up [n][ff], tmp [n][LoRA rank + outputs]. */
void mx_mlp_run(struct mx_device *d, const struct mx_mlp_block *m, const float *x, int n,
                float *gate, float *up, float *tmp, float *y);

mtplx_status mx_mlp_load(struct mx_loader *l, const char *prefix, const char *module, int hidden,
                         int ff, struct mx_mlp_block *m, mtplx_error *err);

#endif
