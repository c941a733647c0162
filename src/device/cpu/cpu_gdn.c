/* cpu device: Gated DeltaNet.
 *
 * A task is one value head of one segment. It prepares up to MAX_ROWS rows (conv, silu, unit q and
 * k, alpha, beta) and then scans them column tile by column tile, so that a tile of the state stays
 * in the first-level cache for all of them. The scan itself is the exact sequential recurrence, row
 * by row, for prefill, decode and verify alike: nothing depends on how rows were cut.
 *
 * Key heads shared by several value heads are prepared once per value head, which keeps tasks
 * independent. A verify pass keeps no state (rec_out NULL): its states live in scratch, which stays
 * in the cache, and a commit replays the tape. That reads the state once more than swapping two
 * slabs would when every draft is accepted, and writes it once less when not. Conv tails are
 * written in a second pass, because every task reads the old tail and rec_out may be rec_in. */
#include "device/common.h"
#include "device/cpu/cpu.h"
#include "device/cpu/kernels.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define MAX_ROWS 16
#define MAX_TAPS 16
#define L2_EPS 1e-6f

_Static_assert((MAX_ROWS * 3 + MX_GDN_MAX_DIM) * MX_GDN_MAX_DIM <= MX_CPU_SCRATCH,
               "rows and state of one head fit the scratch");

struct gdn_job {
    struct mx_cpu *cpu;
    const struct mx_gdn *a;
};

/* The prepared rows of one value head. */
struct head_rows {
    int h, key_head;
    float *q, *k, *v; /* [MAX_ROWS][dk], [..][dk], [..][dv] */
    float alpha[MAX_ROWS], beta[MAX_ROWS];
};

/* Where conv input `at` (negative: in the tail) of a segment starts. */
static const float *conv_input(const struct mx_gdn *a, const struct mx_seg *s, int at)
{
    if (at >= 0)
        return a->qkv + (s->row0 + at) * a->ldqkv;
    return s->rec_in + a->layer * mx_gdn_layer_floats(a->layout) +
           (at + a->layout->kernel - 1) * mx_gdn_conv_dim(a->layout);
}

static void conv_span(const struct gdn_job *job, const struct mx_seg *s, int t, int64_t c0, int n,
                      float *out)
{
    const struct mx_gdn *a = job->a;
    int taps = a->layout->kernel;
    const float *x[MAX_TAPS];
    for (int j = 0; j < taps; j++)
        x[j] = conv_input(a, s, t - (taps - 1) + j) + c0;
    job->cpu->k->conv(x, a->conv + c0, mx_gdn_conv_dim(a->layout), taps, n, out);
}

/* log(1 + e^x) without overflow. */
static float softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

/* Row t of the segment into slot i. */
static void prepare_row(const struct gdn_job *job, const struct mx_seg *s, int t, int i,
                        struct head_rows *hr)
{
    const struct mx_gdn *a = job->a;
    const struct mx_gdn_layout *l = a->layout;
    int dk = l->dk, dv = l->dv, h = hr->h;
    int64_t keys = (int64_t)l->key_heads * dk, at = (int64_t)hr->key_head * dk, r = s->row0 + t;
    conv_span(job, s, t, at, dk, hr->q + i * dk);
    conv_span(job, s, t, keys + at, dk, hr->k + i * dk);
    conv_span(job, s, t, 2 * keys + (int64_t)h * dv, dv, hr->v + i * dv);
    job->cpu->k->unit(hr->q + i * dk, dk, L2_EPS, 1.0f / sqrtf((float)dk));
    job->cpu->k->unit(hr->k + i * dk, dk, L2_EPS, 1.0f);
    hr->beta[i] = 1.0f / (1.0f + expf(-a->b[r * a->ldba + h]));
    hr->alpha[i] = expf(a->neg_exp_a[h] * softplus(a->a[r * a->ldba + h] + a->dt_bias[h]));
}

/* v holds delta by now. */
static void row_to_tape(const struct mx_gdn *a, const struct mx_seg *s, int t, int i,
                        const struct head_rows *hr)
{
    const struct mx_gdn_layout *l = a->layout;
    struct mx_gdn_tape_row row = mx_gdn_tape_at(l, s->tape, a->layer, t);
    int group = l->value_heads / l->key_heads;
    int first = l->tiled_heads ? hr->key_head : hr->key_head * group;
    if (hr->h == first)
        memcpy(row.k + (int64_t)hr->key_head * l->dk, hr->k + i * l->dk,
               (size_t)l->dk * sizeof(float));
    memcpy(row.delta + (int64_t)hr->h * l->dv, hr->v + i * l->dv, (size_t)l->dv * sizeof(float));
    row.alpha[hr->h] = hr->alpha[i];
}

/* Rows of the piece that starts at row t: it ends where a capture wants the state. */
static int piece_rows(const struct mx_seg *s, int t, int capture)
{
    int rows = s->rows - t < MAX_ROWS ? s->rows - t : MAX_ROWS;
    if (capture < s->n_captures && s->captures[capture].row - t + 1 < rows)
        rows = s->captures[capture].row - t + 1;
    return rows;
}

static void scan_head(void *arg, int task, int thread)
{
    const struct gdn_job *job = arg;
    const struct mx_gdn *a = job->a;
    const struct mx_gdn_layout *l = a->layout;
    const struct mx_cpu_kernels *k = job->cpu->k;
    const struct mx_seg *s = &a->batch->segs[task / l->value_heads];
    int h = task % l->value_heads;
    struct head_rows hr = {.h = h, .key_head = mx_gdn_key_head(l, h)};
    hr.q = mx_cpu_scratch(job->cpu, thread);
    hr.k = hr.q + MAX_ROWS * l->dk;
    hr.v = hr.k + MAX_ROWS * l->dk;
    int64_t at =
        a->layer * mx_gdn_layer_floats(l) + mx_gdn_conv_floats(l) + (int64_t)h * l->dk * l->dv;
    int64_t ldy = (int64_t)l->value_heads * l->dv;
    const float *in = s->rec_in + at;
    float *out = s->rec_out ? s->rec_out + at : hr.v + MAX_ROWS * l->dv;
    for (int t = 0, rows, c = 0; t < s->rows; t += rows) {
        rows = piece_rows(s, t, c);
        for (int i = 0; i < rows; i++)
            prepare_row(job, s, t + i, i, &hr);
        float *y = a->y + (s->row0 + t) * ldy + (int64_t)h * l->dv;
        k->scan(t == 0 ? in : out, out, l->dk, l->dv, rows, hr.q, hr.k, hr.v, hr.alpha, hr.beta, y,
                ldy);
        for (int i = 0; i < rows; i++) {
            const float *z = a->z + (s->row0 + t + i) * a->ldz + (int64_t)h * l->dv;
            k->gated_norm(y + i * ldy, a->norm, a->eps, z, l->dv);
            if (s->tape)
                row_to_tape(a, s, t + i, i, &hr);
        }
        if (c < s->n_captures && s->captures[c].row == t + rows - 1)
            memcpy(s->captures[c++].slab + at, out, (size_t)(l->dk * l->dv) * sizeof *out);
    }
}

/* out = last K-1 rows of [tail; rows inputs at x]; out may be tail. */
static void shift_tail(const float *tail, const float *x, int64_t ldx, int rows, int keep,
                       int64_t dim, float *out)
{
    for (int i = 0; i < keep; i++) {
        int at = rows + i; /* index into [tail; x] */
        const float *from = at < keep ? tail + at * dim : x + (at - keep) * ldx;
        memmove(out + i * dim, from, (size_t)dim * sizeof *out);
    }
}

/* Tail, and what the tape keeps of the conv inputs, of one segment. */
static void finish_segment(void *arg, int task, int thread)
{
    const struct gdn_job *job = arg;
    const struct mx_gdn *a = job->a;
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

void mx_cpu_gated_delta(struct mx_device *d, const struct mx_gdn *a)
{
    struct mx_cpu *cpu = (struct mx_cpu *)d;
    const struct mx_gdn_layout *l = a->layout;
    assert(l->dk <= MX_GDN_MAX_DIM && l->dv <= MX_GDN_MAX_DIM && l->kernel <= MAX_TAPS);
    struct gdn_job job = {.cpu = cpu, .a = a};
    mx_pool_run(cpu->pool, scan_head, &job, a->batch->n_segs * l->value_heads);
    mx_cpu_run(cpu, finish_segment, &job, a->batch->n_segs,
               a->batch->n_segs * l->kernel * mx_gdn_conv_dim(l));
}

struct commit_job {
    struct mx_cpu *cpu;
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
    struct mx_gdn_tape_row row = mx_gdn_tape_at(l, job->tape, layer, 0);
    job->cpu->k->replay(state, l->dk, l->dv, job->keep,
                        row.k + (int64_t)mx_gdn_key_head(l, h) * l->dk,
                        row.delta + (int64_t)h * l->dv, row.alpha + h, mx_gdn_tape_floats(l));
}

static void commit_tail(void *arg, int layer, int thread)
{
    const struct commit_job *job = arg;
    (void)thread;
    const struct mx_gdn_layout *l = job->layout;
    float *tail = job->slab + layer * mx_gdn_layer_floats(l);
    shift_tail(tail, mx_gdn_tape_at(l, job->tape, layer, 0).inputs, mx_gdn_tape_floats(l),
               job->keep, l->kernel - 1, mx_gdn_conv_dim(l), tail);
}

void mx_cpu_gated_delta_commit(struct mx_device *d, const struct mx_gdn_layout *l, float *slab,
                               const float *tape, int keep)
{
    struct mx_cpu *cpu = (struct mx_cpu *)d;
    struct commit_job job = {.cpu = cpu, .layout = l, .slab = slab, .tape = tape, .keep = keep};
    if (keep <= 0)
        return;
    mx_pool_run(cpu->pool, commit_head, &job, l->layers * l->value_heads);
    mx_cpu_run(cpu, commit_tail, &job, l->layers, l->layers * mx_gdn_conv_floats(l));
}
