/* The reference device: plain portable C, float32 everywhere, the oracle of the others. */
#ifndef MX_DEVICE_REF_REF_H
#define MX_DEVICE_REF_REF_H

#include "base/threads.h"
#include "device/device.h"

/* Floats of the largest recurrent state of a head. */
#define MX_REF_STATE ((int64_t)MX_GDN_MAX_DIM * MX_GDN_MAX_DIM)

struct mx_ref {
    struct mx_device base;
    struct mx_pool *pool;
    float *states; /* [threads][MX_REF_STATE], touched by passes that keep no state */
};

struct mx_device *mx_ref_open(int threads, mtplx_error *err);

/* Sum of a[i] * b[i] in the one order of this device: 16 interleaved partial sums, then a tree. */
float mx_ref_dot(const float *a, const float *b, int64_t n);

float mx_ref_sigmoid(float x);

void mx_ref_embed(struct mx_device *d, const struct mx_weight *w, const int32_t *tokens, int n,
                  float *y, int64_t ldy);
void mx_ref_matmul(struct mx_device *d, const struct mx_matmul *m, int count, const float *x,
                   int64_t ldx, int n);
void mx_ref_qkv(struct mx_device *d, const struct mx_qkv *a);
void mx_ref_attention(struct mx_device *d, const struct mx_attention *a);
void mx_ref_gated_delta(struct mx_device *d, const struct mx_gdn *a);
void mx_ref_gated_delta_commit(struct mx_device *d, const struct mx_gdn_layout *l, float *slab,
                               const float *tape, int keep);

#endif
