/* Reference device: head norms, rotary embedding, KV store, causal attention.
 *
 * Attention runs over the cache in blocks of BLOCK entries anchored at absolute position 0, with
 * the online softmax of Milakov and Gimelshein (2018): after a block, `top` is the largest score so
 * far, `total` the sum of exp(score - top) and y the sum of exp(score - top) * v. What a row
 * computes depends only on its position and on the entries before it, never on the call (device.h,
 * D3). */
#include "device/common.h"
#include "device/ref/ref.h"

#include <math.h>
#include <string.h>

#define BLOCK 64

/* Normalises and rotates one head; y may be x. */
static void head_norm_rope(const struct mx_qkv *a, const float *x, const float *norm,
                           const int32_t pos[3], float *y)
{
    int dim = a->kv->head_dim, half = a->n_freq;
    float scale = 1.0f;
    if (norm)
        scale = 1.0f / sqrtf(mx_ref_dot(x, x, dim) / (float)dim + a->eps);
    for (int i = 0; i < dim; i++)
        y[i] = norm ? x[i] * scale * norm[i] : x[i];
    for (int j = 0; j < half; j++) {
        float angle = (float)pos[a->axis[j]] * a->inv_freq[j];
        float c = cosf(angle), s = sinf(angle);
        float lo = y[j], hi = y[j + half];
        y[j] = lo * c - hi * s;
        y[j + half] = hi * c + lo * s;
    }
}

static void qkv_row(void *arg, int r, int thread)
{
    const struct mx_qkv *a = arg;
    (void)thread;
    const struct mx_kv_layout *l = a->kv;
    const struct mx_seg *s = mx_seg_of_row(a->batch, r);
    const int32_t *pos = a->batch->positions + 3 * (int64_t)r;
    int64_t at = s->kv_len + (r - s->row0);
    for (int h = 0; a->q && h < a->heads; h++) {
        float *q = a->q + r * a->ldq + (int64_t)h * a->q_stride;
        head_norm_rope(a, q, a->q_norm, pos, q);
    }
    for (int h = 0; h < l->kv_heads; h++) {
        float key[MX_KV_MAX_HEAD_DIM] = {0};
        int64_t from = ((int64_t)r * l->kv_heads + h) * l->head_dim;
        head_norm_rope(a, a->k + from, a->k_norm, pos, key);
        mx_kv_pack(l->format, key, l->head_dim, mx_kv_entry(l, s, a->layer, 0, h, at));
        mx_kv_pack(l->format, a->v + from, l->head_dim, mx_kv_entry(l, s, a->layer, 1, h, at));
    }
}

void mx_ref_qkv(struct mx_device *d, const struct mx_qkv *a)
{
    struct mx_ref *ref = (struct mx_ref *)d;
    mx_pool_run(ref->pool, qkv_row, (void *)a, a->batch->n);
}

struct softmax {
    float top, total;
};

/* Takes in cache entries first .. first+n of the row's KV head. */
static void attend_block(const struct mx_attention *a, const struct mx_seg *s, int kv_head,
                         int64_t first, int n, const float *q, struct softmax *sm, float *y)
{
    int dim = a->kv->head_dim;
    float p[BLOCK], top = sm->top, entry[MX_KV_MAX_HEAD_DIM];
    for (int j = 0; j < n; j++) {
        mx_kv_unpack(a->kv->format, mx_kv_entry(a->kv, s, a->layer, 0, kv_head, first + j), dim,
                     entry);
        p[j] = mx_ref_dot(q, entry, dim) * a->scale;
        top = p[j] > top ? p[j] : top;
    }
    float fade = expf(sm->top - top); /* 0 for the first block, where sm->top is -inf */
    sm->top = top;
    sm->total *= fade;
    for (int i = 0; i < dim; i++)
        y[i] *= fade;
    for (int j = 0; j < n; j++) {
        mx_kv_unpack(a->kv->format, mx_kv_entry(a->kv, s, a->layer, 1, kv_head, first + j), dim,
                     entry);
        float e = expf(p[j] - top);
        sm->total += e;
        for (int i = 0; i < dim; i++)
            y[i] += e * entry[i];
    }
}

static void attend_head(void *arg, int task, int thread)
{
    const struct mx_attention *a = arg;
    (void)thread;
    int r = task / a->heads, h = task % a->heads, dim = a->kv->head_dim;
    const struct mx_seg *s = mx_seg_of_row(a->batch, r);
    const float *q = a->q + r * a->ldq + (int64_t)h * a->q_stride;
    float *y = a->y + ((int64_t)r * a->heads + h) * dim;
    int kv_head = h / (a->heads / a->kv->kv_heads);
    int64_t entries = s->kv_len + (r - s->row0) + 1;
    struct softmax sm = {.top = -INFINITY, .total = 0.0f};
    memset(y, 0, (size_t)dim * sizeof *y);
    for (int64_t first = 0; first < entries; first += BLOCK) {
        int n = entries - first < BLOCK ? (int)(entries - first) : BLOCK;
        attend_block(a, s, kv_head, first, n, q, &sm, y);
    }
    for (int i = 0; i < dim; i++) {
        y[i] /= sm.total;
        if (a->gated)
            y[i] *= mx_ref_sigmoid(q[dim + i]);
    }
}

void mx_ref_attention(struct mx_device *d, const struct mx_attention *a)
{
    struct mx_ref *ref = (struct mx_ref *)d;
    mx_pool_run(ref->pool, attend_head, (void *)a, a->batch->n * a->heads);
}
