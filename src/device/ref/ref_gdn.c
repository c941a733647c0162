/* Reference device: Gated DeltaNet.
 *
 * One task is one value head of one segment: it walks the rows in order and does exactly
 *
 *   m = (alpha S)^T k;  delta = beta (v - m);  S = alpha S + k delta^T;  o = S^T q
 *
 * for prefill, decode and verify alike, so nothing depends on how rows were cut into calls. Key
 * heads shared by several value heads are convolved once per value head, which costs a few percent
 * and keeps tasks independent. Conv tails are written in a second pass, because every task reads
 * the old tail and rec_out may be rec_in.
 *
 * gated_delta_commit() replays S = alpha S + k delta^T from the tape through the same function, so
 * the state is bit-identical to having run only those rows. */
#include "device/common.h"
#include "device/ref/ref.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define MAX_DIM MX_GDN_MAX_DIM
#define L2_EPS 1e-6f

static float softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

/* silu(conv) of channels c0 .. c0+n for the segment's row t. */
static void conv_row(const struct mx_gdn *a, const struct mx_seg *s, int t, int64_t c0, int n,
                     float *out)
{
    int taps = a->layout->kernel;
    int64_t dim = mx_gdn_conv_dim(a->layout);
    const float *tail = s->rec_in + a->layer * mx_gdn_layer_floats(a->layout);
    for (int i = 0; i < n; i++) {
        float sum = 0.0f;
        for (int j = 0; j < taps; j++) {
            int at = t - (taps - 1) + j;
            float x = at < 0 ? tail[(at + taps - 1) * dim + c0 + i]
                             : a->qkv[(s->row0 + at) * a->ldqkv + c0 + i];
            sum += a->conv[j * dim + c0 + i] * x;
        }
        out[i] = sum * mx_ref_sigmoid(sum);
    }
}

static void l2_normalise(float *x, int n, float factor)
{
    float scale = 1.0f / sqrtf(mx_ref_dot(x, x, n) + L2_EPS) * factor;
    for (int i = 0; i < n; i++)
        x[i] *= scale;
}

/* m = (alpha S)^T k */
static void state_read(const float *state, int dk, int dv, float alpha, const float *k, float *m)
{
    memset(m, 0, (size_t)dv * sizeof *m);
    for (int i = 0; i < dk; i++) {
        for (int j = 0; j < dv; j++)
            m[j] += alpha * state[i * dv + j] * k[i];
    }
}

/* out = alpha S + k delta^T; out may be S. */
static void state_update(const float *state, float *out, int dk, int dv, float alpha,
                         const float *k, const float *delta)
{
    for (int i = 0; i < dk; i++) {
        for (int j = 0; j < dv; j++)
            out[i * dv + j] = alpha * state[i * dv + j] + k[i] * delta[j];
    }
}

/* y = rmsnorm(o) * norm * silu(z), y may be o. */
static void gated_norm(const struct mx_gdn *a, const float *o, const float *z, float *y)
{
    int dv = a->layout->dv;
    float scale = 1.0f / sqrtf(mx_ref_dot(o, o, dv) / (float)dv + a->eps);
    for (int j = 0; j < dv; j++)
        y[j] = o[j] * scale * a->norm[j] * (z[j] * mx_ref_sigmoid(z[j]));
}

static void head_to_tape(const struct mx_gdn *a, const struct mx_seg *s, int t, int h,
                         const float *k, const float *delta, float alpha)
{
    const struct mx_gdn_layout *l = a->layout;
    struct mx_gdn_tape_row row = mx_gdn_tape_at(l, s->tape, a->layer, t);
    int key_head = mx_gdn_key_head(l, h);
    int first = l->tiled_heads ? key_head : key_head * (l->value_heads / l->key_heads);
    if (h == first)
        memcpy(row.k + (int64_t)key_head * l->dk, k, (size_t)l->dk * sizeof *k);
    memcpy(row.delta + (int64_t)h * l->dv, delta, (size_t)l->dv * sizeof *delta);
    row.alpha[h] = alpha;
}

static void head_row(const struct mx_gdn *a, const struct mx_seg *s, int t, int h,
                     const float *state, float *state_out)
{
    const struct mx_gdn_layout *l = a->layout;
    int key_head = mx_gdn_key_head(l, h), dk = l->dk, dv = l->dv;
    int64_t keys = (int64_t)l->key_heads * dk, r = s->row0 + t;
    float q[MAX_DIM], k[MAX_DIM], v[MAX_DIM], delta[MAX_DIM];
    conv_row(a, s, t, (int64_t)key_head * dk, dk, q);
    conv_row(a, s, t, keys + (int64_t)key_head * dk, dk, k);
    conv_row(a, s, t, 2 * keys + (int64_t)h * dv, dv, v);
    l2_normalise(q, dk, 1.0f / sqrtf((float)dk));
    l2_normalise(k, dk, 1.0f);
    float beta = mx_ref_sigmoid(a->b[r * a->ldba + h]);
    float alpha = expf(a->neg_exp_a[h] * softplus(a->a[r * a->ldba + h] + a->dt_bias[h]));
    state_read(state, dk, dv, alpha, k, delta);
    for (int j = 0; j < dv; j++)
        delta[j] = beta * (v[j] - delta[j]);
    state_update(state, state_out, dk, dv, alpha, k, delta);
    if (s->tape)
        head_to_tape(a, s, t, h, k, delta, alpha);
    float *y = a->y + (r * l->value_heads + h) * dv;
    state_read(state_out, dk, dv, 1.0f, q, y);
    gated_norm(a, y, a->z + r * a->ldz + (int64_t)h * dv, y);
}

struct scan_job {
    struct mx_ref *ref;
    const struct mx_gdn *a;
};

static void scan_head(void *arg, int task, int thread)
{
    const struct scan_job *job = arg;
    const struct mx_gdn *a = job->a;
    const struct mx_gdn_layout *l = a->layout;
    const struct mx_seg *s = &a->batch->segs[task / l->value_heads];
    int h = task % l->value_heads;
    int64_t at =
        a->layer * mx_gdn_layer_floats(l) + mx_gdn_conv_floats(l) + (int64_t)h * l->dk * l->dv;
    const float *state = s->rec_in + at;
    float *out = s->rec_out ? s->rec_out + at : job->ref->states + thread * MX_REF_STATE;
    for (int t = 0, c = 0; t < s->rows; t++) {
        head_row(a, s, t, h, state, out);
        state = out;
        if (c < s->n_captures && s->captures[c].row == t)
            memcpy(s->captures[c++].slab + at, out, (size_t)(l->dk * l->dv) * sizeof *out);
    }
}

/* out = last K-1 rows of [tail; rows inputs at x]; out may be tail. */
static void shift_tail(const float *tail, const float *x, int64_t ldx, int rows, int keep,
                       int64_t dim, float *out)
{
    size_t bytes = (size_t)dim * sizeof *out;
    for (int i = 0; i < keep; i++) {
        int at = rows + i; /* index into [tail; x] */
        const float *from = at < keep ? tail + at * dim : x + (at - keep) * ldx;
        memmove(out + i * dim, from, bytes);
    }
}

/* Tail, and what the tape keeps of the conv inputs, of one segment. */
static void finish_segment(void *arg, int task, int thread)
{
    const struct mx_gdn *a = arg;
    (void)thread;
    const struct mx_gdn_layout *l = a->layout;
    const struct mx_seg *s = &a->batch->segs[task];
    int64_t dim = mx_gdn_conv_dim(l), at = a->layer * mx_gdn_layer_floats(l);
    const float *x = a->qkv + s->row0 * a->ldqkv;
    for (int c = 0; c < s->n_captures; c++) /* before rec_out, which may be rec_in */
        shift_tail(s->rec_in + at, x, a->ldqkv, s->captures[c].row + 1, l->kernel - 1, dim,
                   s->captures[c].slab + at);
    if (s->rec_out)
        shift_tail(s->rec_in + at, x, a->ldqkv, s->rows, l->kernel - 1, dim, s->rec_out + at);
    for (int t = 0; s->tape && t < s->rows; t++)
        memcpy(mx_gdn_tape_at(l, s->tape, a->layer, t).inputs, x + t * a->ldqkv,
               (size_t)dim * sizeof *x);
}

void mx_ref_gated_delta(struct mx_device *d, const struct mx_gdn *a)
{
    struct mx_ref *ref = (struct mx_ref *)d;
    assert(a->layout->dk <= MAX_DIM && a->layout->dv <= MAX_DIM);
    struct scan_job job = {ref, a};
    mx_pool_run(ref->pool, scan_head, &job, a->batch->n_segs * a->layout->value_heads);
    mx_pool_run(ref->pool, finish_segment, (void *)a, a->batch->n_segs);
}

struct commit_job {
    const struct mx_gdn_layout *layout;
    float *slab;
    const float *tape;
    int keep;
};

static void commit_head(void *arg, int task, int thread)
{
    const struct commit_job *job = arg;
    (void)thread;
    const struct mx_gdn_layout *l = job->layout;
    int layer = task / l->value_heads, h = task % l->value_heads;
    float *state = job->slab + layer * mx_gdn_layer_floats(l) + mx_gdn_conv_floats(l) +
                   (int64_t)h * l->dk * l->dv;
    for (int t = 0; t < job->keep; t++) {
        struct mx_gdn_tape_row row = mx_gdn_tape_at(l, job->tape, layer, t);
        state_update(state, state, l->dk, l->dv, row.alpha[h],
                     row.k + (int64_t)mx_gdn_key_head(l, h) * l->dk,
                     row.delta + (int64_t)h * l->dv);
    }
}

void mx_ref_gated_delta_commit(struct mx_device *d, const struct mx_gdn_layout *l, float *slab,
                               const float *tape, int keep)
{
    struct mx_ref *ref = (struct mx_ref *)d;
    struct commit_job job = {.layout = l, .slab = slab, .tape = tape, .keep = keep};
    if (keep <= 0)
        return;
    mx_pool_run(ref->pool, commit_head, &job, l->layers * l->value_heads);
    for (int layer = 0; layer < l->layers; layer++) {
        float *tail = slab + layer * mx_gdn_layer_floats(l);
        shift_tail(tail, mx_gdn_tape_at(l, tape, layer, 0).inputs, mx_gdn_tape_floats(l), keep,
                   l->kernel - 1, mx_gdn_conv_dim(l), tail);
    }
}
