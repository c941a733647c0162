/* cpu device: head norms, rotary embedding, KV store, causal attention.
 *
 * Attention runs over the cache in blocks of BLOCK entries anchored at absolute position 0, with
 * the online softmax of Milakov and Gimelshein (2018). A task is one KV head, up to MAX_HEADS query
 * heads that share it and a few consecutive rows: it turns a block of K and V into float once and
 * serves all its (row, head) pairs, each over the entries that it may see.
 *
 * A long context is cut into at most MAX_SPANS spans, whose length follows from the position of the
 * row alone. A span has a softmax of its own, and spans are merged in ascending order. So one task
 * can take all spans of a row or each span can be a task of its own, whichever keeps the threads
 * busy: a decode step of a model with two KV heads has two tasks, and all other threads idle, when
 * its spans are not shared out. What a pair computes depends on its own position only, so the size
 * of a task is free. */
#include "device/common.h"
#include "device/cpu/cpu.h"
#include "device/cpu/kernels.h"

#include <math.h>
#include <string.h>

#define BLOCK 64
#define MAX_HEADS 16
#define MAX_ROWS 8
#define MIN_SPAN 512 /* entries; a multiple of BLOCK */
#define MAX_SPANS 32

_Static_assert((2 * BLOCK + MAX_ROWS * MAX_HEADS) * MX_KV_MAX_HEAD_DIM <= MX_CPU_SCRATCH,
               "a block of K and V and the sums of a span fit");

struct qkv_job {
    struct mx_cpu *cpu;
    const struct mx_qkv *a;
};

/* Storing a quantised entry is a few hundred nanoseconds beside a row of products: portable code
 * does, and gives all instruction sets the same codes. */
static void store_entry(const struct mx_cpu_kernels *k, const struct mx_kv_layout *l,
                        const float *x, void *entry)
{
    if (l->format == k->kv_format)
        k->kv_store(x, entry, l->head_dim);
    else
        mx_kv_pack(l->format, x, l->head_dim, entry);
}

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
        store_entry(k, l, key, mx_kv_entry(l, s, a->layer, 0, h, at));
        store_entry(k, l, a->v + from, mx_kv_entry(l, s, a->layer, 1, h, at));
    }
}

void mx_cpu_qkv(struct mx_device *d, const struct mx_qkv *a)
{
    struct mx_cpu *cpu = (struct mx_cpu *)d;
    struct qkv_job job = {.cpu = cpu, .a = a};
    int64_t heads = (a->q ? a->heads : 0) + 2 * a->kv->kv_heads;
    mx_cpu_run(cpu, qkv_row, &job, a->batch->n, a->batch->n * heads * a->kv->head_dim * 2);
}

/* ---- Attention ------------------------------------------------------------------------------ */

/* How a call is cut into tasks. */
struct attention_job {
    struct mx_cpu *cpu;
    const struct mx_attention *a;
    int group;      /* query heads per KV head */
    int head_tiles; /* per KV head */
    int rows;       /* per task, at most */
    int parts;      /* tasks that share the spans of a tile; 1: partial sums stay in scratch */
};

/* One task's share. */
struct share {
    const struct mx_seg *seg;
    int row, rows; /* within the batch */
    int kv_head;
    int head, heads;    /* query heads */
    int64_t first, end; /* cache entries */
};

/* A softmax over some entries of one (row, head): the largest score, the sum of exponentials
 * relative to it, and the same sum weighted with the values, [head_dim]. */
struct partial {
    float top, total;
    float *y;
};

static int64_t entries_of(const struct share *sh, int r)
{
    return sh->seg->kv_len + (sh->row + r - sh->seg->row0) + 1;
}

/* Entries of a span for a row that sees `entries` of them. */
static int64_t span_of(int64_t entries)
{
    int64_t span = MIN_SPAN;
    while (entries > span * MAX_SPANS)
        span *= 2;
    return span;
}

static int row_tiles(const struct attention_job *job, const struct mx_seg *s)
{
    return (s->rows + job->rows - 1) / job->rows;
}

/* Part `part` of the spans of a tile. Rows of a tile may differ in the length of their spans, whose
 * borders are those of the longest then. */
static void find_entries(const struct attention_job *job, int part, struct share *sh)
{
    int64_t all = entries_of(sh, sh->rows - 1), span = span_of(all);
    int64_t spans = (all + span - 1) / span;
    sh->first = spans * part / job->parts * span;
    sh->end = spans * (part + 1) / job->parts * span;
    sh->end = sh->end < all ? sh->end : all;
}

static void find_share(const struct attention_job *job, int task, struct share *sh)
{
    int part = task % job->parts, per_rows = job->a->kv->kv_heads * job->head_tiles;
    task /= job->parts;
    int tile = task / per_rows, place = task % per_rows;
    const struct mx_seg *s = job->a->batch->segs;
    for (; tile >= row_tiles(job, s); s++)
        tile -= row_tiles(job, s);
    sh->seg = s;
    sh->row = s->row0 + tile * job->rows;
    int left = s->row0 + s->rows - sh->row;
    sh->rows = left < job->rows ? left : job->rows;
    sh->kv_head = place / job->head_tiles;
    int first = place % job->head_tiles * MAX_HEADS;
    sh->head = sh->kv_head * job->group + first;
    sh->heads = job->group - first < MAX_HEADS ? job->group - first : MAX_HEADS;
    find_entries(job, part, sh);
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
        job->cpu->k->kv_load(l->format,
                             mx_kv_entry(l, sh->seg, job->a->layer, which, sh->kv_head, at),
                             out + (int64_t)done * l->head_dim, (int64_t)run * l->head_dim);
        done += run;
    }
}

static void clear(struct partial *p, int dim)
{
    p->top = -INFINITY;
    p->total = 0.0f;
    memset(p->y, 0, (size_t)dim * sizeof *p->y);
}

/* to += from, of one (row, head). A partial that has seen nothing (top -infinity) takes the other
 * as it is. */
static void merge(struct partial *to, const struct partial *from, int dim)
{
    if (to->top == -INFINITY) {
        to->top = from->top;
        to->total = from->total;
        memcpy(to->y, from->y, (size_t)dim * sizeof *to->y);
        return;
    }
    float top = to->top > from->top ? to->top : from->top;
    float fade = expf(to->top - top), scale = expf(from->top - top);
    to->top = top;
    to->total = to->total * fade + from->total * scale;
    for (int i = 0; i < dim; i++)
        to->y[i] = to->y[i] * fade + from->y[i] * scale;
}

/* Takes n entries into the partials of row `r` of the share. */
static void attend_row(const struct attention_job *job, const struct share *sh, int r, int n,
                       const float *keys, const float *values, struct partial *partials)
{
    const struct mx_attention *a = job->a;
    const struct mx_cpu_kernels *k = job->cpu->k;
    int dim = a->kv->head_dim;
    float scores[MAX_HEADS][BLOCK];
    const float *q = a->q + (sh->row + r) * a->ldq + (int64_t)sh->head * a->q_stride;
    k->product(keys, dim, n, q, a->q_stride, sh->heads, dim, false, scores[0], BLOCK);
    for (int h = 0; h < sh->heads; h++) {
        float fade;
        struct partial *p = &partials[h];
        float sum = k->softmax(scores[h], n, a->scale, &p->top, &fade);
        p->total = p->total * fade + sum;
        k->mix(scores[h], n, values, dim, fade, p->y);
    }
}

/* Where the partials of the spans of a call that is shared out are kept. */
static struct partial stored_partial(const struct attention_job *job, int row, int head, int span)
{
    int dim = job->a->kv->head_dim;
    int64_t at = ((int64_t)row * job->a->heads + head) * MAX_SPANS + span;
    float *p = job->cpu->spans + at * (dim + 2);
    return (struct partial){p[0], p[1], p + 2};
}

static void store_partial(const struct attention_job *job, int row, int head, int span,
                          const struct partial *from)
{
    struct partial to = stored_partial(job, row, head, span);
    to.y[-2] = from->top;
    to.y[-1] = from->total;
    memcpy(to.y, from->y, (size_t)job->a->kv->head_dim * sizeof *to.y);
}

/* A span of row r is complete: its partials go to the row's total, or are kept for later. */
static void end_span(const struct attention_job *job, const struct share *sh, int r, int64_t span,
                     struct partial *partials, struct partial *totals)
{
    int dim = job->a->kv->head_dim;
    for (int h = 0; h < sh->heads; h++) {
        if (job->parts > 1)
            store_partial(job, sh->row + r, sh->head + h, (int)span, &partials[h]);
        else
            merge(&totals[h], &partials[h], dim);
        clear(&partials[h], dim);
    }
}

static void finish_pair(const struct attention_job *job, int row, int head, float total)
{
    const struct mx_attention *a = job->a;
    int dim = a->kv->head_dim;
    const float *q = a->q + row * a->ldq + (int64_t)head * a->q_stride;
    job->cpu->k->finish(a->y + ((int64_t)row * a->heads + head) * dim, total,
                        a->gated ? q + dim : NULL, dim);
}

/* Entries first .. first+n for all rows of a share that see them. */
static void attend_block(const struct attention_job *job, const struct share *sh, int64_t first,
                         int n, float *keys, struct partial (*partials)[MAX_HEADS],
                         struct partial (*totals)[MAX_HEADS])
{
    float *values = keys + BLOCK * job->a->kv->head_dim;
    load_entries(job, sh, 0, first, n, keys);
    load_entries(job, sh, 1, first, n, values);
    for (int r = 0; r < sh->rows; r++) {
        int64_t all = entries_of(sh, r), seen = all - first < n ? all - first : n;
        if (seen <= 0)
            continue;
        attend_row(job, sh, r, (int)seen, keys, values, partials[r]);
        int64_t span = span_of(all), next = first + seen;
        if (next == all || next % span == 0)
            end_span(job, sh, r, first / span, partials[r], totals[r]);
    }
}

static void attention_task(void *arg, int task, int thread)
{
    const struct attention_job *job = arg;
    const struct mx_attention *a = job->a;
    struct share sh;
    struct partial partials[MAX_ROWS][MAX_HEADS], totals[MAX_ROWS][MAX_HEADS];
    int dim = a->kv->head_dim;
    find_share(job, task, &sh);
    float *keys = mx_cpu_scratch(job->cpu, thread), *sums = keys + 2 * BLOCK * dim;
    for (int r = 0; r < sh.rows; r++) {
        for (int h = 0; h < sh.heads; h++, sums += dim) {
            int64_t at = (int64_t)(sh.row + r) * a->heads + sh.head + h;
            partials[r][h].y = sums;
            totals[r][h] = (struct partial){-INFINITY, 0.0f, a->y + at * dim};
            clear(&partials[r][h], dim);
        }
    }
    for (int64_t first = sh.first; first < sh.end; first += BLOCK)
        attend_block(job, &sh, first, sh.end - first < BLOCK ? (int)(sh.end - first) : BLOCK, keys,
                     partials, totals);
    for (int r = 0; r < sh.rows && job->parts == 1; r++)
        for (int h = 0; h < sh.heads; h++)
            finish_pair(job, sh.row + r, sh.head + h, totals[r][h].total);
}

/* Merges the spans of one (row, head) of a call that was shared out. */
static void merge_task(void *arg, int task, int thread)
{
    const struct attention_job *job = arg;
    const struct mx_attention *a = job->a;
    (void)thread;
    int row = task / a->heads, head = task % a->heads, dim = a->kv->head_dim;
    const struct mx_seg *s = mx_seg_of_row(a->batch, row);
    int64_t all = s->kv_len + (row - s->row0) + 1, span = span_of(all);
    struct partial total = {-INFINITY, 0.0f, a->y + ((int64_t)row * a->heads + head) * dim};
    for (int i = 0; i < (all + span - 1) / span; i++) {
        struct partial p = stored_partial(job, row, head, i);
        merge(&total, &p, dim);
    }
    finish_pair(job, row, head, total.total);
}

/* Tasks that should share the spans of a tile: none when there are tasks for all threads already,
 * or no room for the partials. */
static int span_parts(const struct mx_cpu *cpu, const struct mx_attention *a, int tasks)
{
    int64_t longest = 0;
    for (int i = 0; i < a->batch->n_segs; i++) {
        int64_t all = a->batch->segs[i].kv_len + a->batch->segs[i].rows;
        longest = all > longest ? all : longest;
    }
    int64_t spans = (longest + span_of(longest) - 1) / span_of(longest);
    int64_t floats = (int64_t)a->batch->n * a->heads * MAX_SPANS * (a->kv->head_dim + 2);
    int parts = tasks > 0 ? (2 * cpu->base.threads + tasks - 1) / tasks : 1;
    if (parts < 2 || tasks >= cpu->base.threads || floats > MX_CPU_SPAN_FLOATS)
        return 1;
    return parts < spans ? parts : (int)spans;
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
    int tasks = tiles * a->kv->kv_heads * job.head_tiles;
    job.parts = span_parts(cpu, a, tasks);
    mx_pool_run(cpu->pool, attention_task, &job, tasks * job.parts);
    if (job.parts > 1)
        mx_cpu_run(cpu, merge_task, &job, a->batch->n * a->heads,
                   (int64_t)a->batch->n * a->heads * MAX_SPANS * a->kv->head_dim);
}
