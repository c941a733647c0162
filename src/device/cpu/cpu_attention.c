/* cpu device: head norms, rotary embedding, KV store, causal attention.
 *
 * Attention runs over the cache in blocks of BLOCK entries anchored at absolute position 0, with
 * the online softmax of Milakov and Gimelshein (2018). A task is one KV head, up to MAX_HEADS query
 * heads that share it and a few consecutive rows: it turns a block of K and V into float once and
 * serves all its (row, head) pairs, each over the entries that it may see. What a pair computes
 * depends on its own position only, so the size of a task is free. */
#include "device/common.h"
#include "device/cpu/cpu.h"
#include "device/cpu/kernels.h"

#include <math.h>
#include <string.h>

#define BLOCK 64
#define MAX_HEADS 16
#define MAX_ROWS 8

_Static_assert(2 * BLOCK * MX_KV_MAX_HEAD_DIM <= MX_CPU_SCRATCH, "a block of K and V fits");

struct qkv_job {
    struct mx_cpu *cpu;
    const struct mx_qkv *a;
};

static void qkv_row(void *arg, int r, int thread)
{
    const struct qkv_job *job = arg;
    const struct mx_qkv *a = job->a;
    const struct mx_cpu_kernels *k = job->cpu->k;
    const struct mx_kv_layout *l = a->kv;
    const struct mx_seg *s = mx_seg_of_row(a->batch, r);
    const int32_t *pos = a->batch->positions + 3 * (int64_t)r;
    int64_t at = s->kv_len + (r - s->row0);
    float *cosine = mx_cpu_scratch(job->cpu, thread), *sine = cosine + a->n_freq;
    float *key = sine + a->n_freq;
    for (int j = 0; j < a->n_freq; j++) {
        float angle = (float)pos[a->axis[j]] * a->inv_freq[j];
        cosine[j] = cosf(angle);
        sine[j] = sinf(angle);
    }
    for (int h = 0; a->q && h < a->heads; h++) {
        float *q = a->q + r * a->ldq + (int64_t)h * a->q_stride;
        k->head(q, a->q_norm, a->eps, l->head_dim, a->n_freq, cosine, sine, q);
    }
    for (int h = 0; h < l->kv_heads; h++) {
        int64_t from = ((int64_t)r * l->kv_heads + h) * l->head_dim;
        k->head(a->k + from, a->k_norm, a->eps, l->head_dim, a->n_freq, cosine, sine, key);
        k->kv_store(key, mx_kv_entry(l, s, a->layer, 0, h, at), l->head_dim);
        k->kv_store(a->v + from, mx_kv_entry(l, s, a->layer, 1, h, at), l->head_dim);
    }
}

void mx_cpu_qkv(struct mx_device *d, const struct mx_qkv *a)
{
    struct mx_cpu *cpu = (struct mx_cpu *)d;
    struct qkv_job job = {.cpu = cpu, .a = a};
    int64_t heads = (a->q ? a->heads : 0) + 2 * a->kv->kv_heads;
    mx_cpu_run(cpu, qkv_row, &job, a->batch->n, a->batch->n * heads * a->kv->head_dim * 2);
}

/* How a call is cut into tasks. */
struct attention_job {
    struct mx_cpu *cpu;
    const struct mx_attention *a;
    int group;      /* query heads per KV head */
    int head_tiles; /* per KV head */
    int rows;       /* per task, at most */
};

/* One task's share, and the running softmax of its pairs. */
struct share {
    const struct mx_seg *seg;
    int row, rows; /* within the batch */
    int kv_head;
    int head, heads; /* query heads */
    float top[MAX_ROWS][MAX_HEADS], total[MAX_ROWS][MAX_HEADS];
};

static int row_tiles(const struct attention_job *job, const struct mx_seg *s)
{
    return (s->rows + job->rows - 1) / job->rows;
}

static void find_share(const struct attention_job *job, int task, struct share *sh)
{
    int per_rows = job->a->kv->kv_heads * job->head_tiles;
    int tile = task / per_rows, part = task % per_rows;
    const struct mx_seg *s = job->a->batch->segs;
    for (; tile >= row_tiles(job, s); s++)
        tile -= row_tiles(job, s);
    sh->seg = s;
    sh->row = s->row0 + tile * job->rows;
    int left = s->row0 + s->rows - sh->row;
    sh->rows = left < job->rows ? left : job->rows;
    sh->kv_head = part / job->head_tiles;
    int first = part % job->head_tiles * MAX_HEADS;
    sh->head = sh->kv_head * job->group + first;
    sh->heads = job->group - first < MAX_HEADS ? job->group - first : MAX_HEADS;
    for (int r = 0; r < MAX_ROWS; r++) {
        for (int h = 0; h < MAX_HEADS; h++) {
            sh->top[r][h] = -INFINITY;
            sh->total[r][h] = 0.0f;
        }
    }
}

/* Entries first .. first+n of one plane as float, run by run of the block table. */
static void load_entries(const struct attention_job *job, const struct share *sh, int which,
                         int64_t first, int n, float *out)
{
    const struct mx_kv_layout *l = job->a->kv;
    for (int done = 0; done < n;) {
        int64_t at = first + done;
        int run = l->block_tokens - (int)(at % l->block_tokens);
        run = run < n - done ? run : n - done;
        job->cpu->k->kv_load(mx_kv_entry(l, sh->seg, job->a->layer, which, sh->kv_head, at),
                             out + (int64_t)done * l->head_dim, (int64_t)run * l->head_dim);
        done += run;
    }
}

/* Takes n entries into the pairs of row `r` of the share. */
static void attend_row(const struct attention_job *job, struct share *sh, int r, int n,
                       const float *keys, const float *values)
{
    const struct mx_attention *a = job->a;
    const struct mx_cpu_kernels *k = job->cpu->k;
    int dim = a->kv->head_dim;
    float scores[MAX_HEADS][BLOCK];
    int64_t row = sh->row + r;
    const float *q = a->q + row * a->ldq + (int64_t)sh->head * a->q_stride;
    float *y = a->y + (row * a->heads + sh->head) * dim;
    k->product(keys, dim, n, q, a->q_stride, sh->heads, dim, false, scores[0], BLOCK);
    for (int h = 0; h < sh->heads; h++) {
        float fade;
        float sum = k->softmax(scores[h], n, a->scale, &sh->top[r][h], &fade);
        sh->total[r][h] = sh->total[r][h] * fade + sum;
        k->mix(scores[h], n, values, dim, fade, y + (int64_t)h * dim);
    }
}

static int64_t entries_of(const struct share *sh, int r)
{
    return sh->seg->kv_len + (sh->row + r - sh->seg->row0) + 1;
}

static void finish_share(const struct attention_job *job, struct share *sh)
{
    const struct mx_attention *a = job->a;
    int dim = a->kv->head_dim;
    for (int r = 0; r < sh->rows; r++) {
        int64_t row = sh->row + r;
        for (int h = 0; h < sh->heads; h++) {
            const float *q = a->q + row * a->ldq + (int64_t)(sh->head + h) * a->q_stride;
            job->cpu->k->finish(a->y + (row * a->heads + sh->head + h) * dim, sh->total[r][h],
                                a->gated ? q + dim : NULL, dim);
        }
    }
}

static void attention_task(void *arg, int task, int thread)
{
    const struct attention_job *job = arg;
    const struct mx_attention *a = job->a;
    struct share sh;
    find_share(job, task, &sh);
    float *keys = mx_cpu_scratch(job->cpu, thread);
    float *values = keys + BLOCK * a->kv->head_dim;
    for (int r = 0; r < sh.rows; r++)
        memset(a->y + ((int64_t)(sh.row + r) * a->heads + sh.head) * a->kv->head_dim, 0,
               (size_t)sh.heads * (size_t)a->kv->head_dim * sizeof *a->y);
    int64_t all = entries_of(&sh, sh.rows - 1);
    for (int64_t first = 0; first < all; first += BLOCK) {
        int n = all - first < BLOCK ? (int)(all - first) : BLOCK;
        load_entries(job, &sh, 0, first, n, keys);
        load_entries(job, &sh, 1, first, n, values);
        for (int r = 0; r < sh.rows; r++) {
            int64_t seen = entries_of(&sh, r) - first;
            if (seen > 0)
                attend_row(job, &sh, r, seen < n ? (int)seen : n, keys, values);
        }
    }
    finish_share(job, &sh);
}

void mx_cpu_attention(struct mx_device *d, const struct mx_attention *a)
{
    struct mx_cpu *cpu = (struct mx_cpu *)d;
    struct attention_job job = {.cpu = cpu, .a = a, .group = a->heads / a->kv->kv_heads};
    job.head_tiles = (job.group + MAX_HEADS - 1) / MAX_HEADS;
    job.rows = MAX_ROWS;
    int tiles = 0;
    for (int i = 0; i < a->batch->n_segs; i++)
        tiles += row_tiles(&job, &a->batch->segs[i]);
    mx_pool_run(cpu->pool, attention_task, &job, tiles * a->kv->kv_heads * job.head_tiles);
}
