/* cpu device: matrix products and embedding lookup.
 *
 * Work is split over threads by outputs, in tasks of about the same number of weight bytes. How
 * a product runs depends on the weight:
 *
 *   panels    quantised weights of the fast profile: the rows are rounded to int8 once for all
 *             products of the group, then whole panels are multiplied with all rows;
 *   direct    a few rows, float32: from stored weights straight to registers;
 *   unpacked  more rows, float32: MX_CPU_UNPACK_OUTS outputs by MX_CPU_CHUNK inputs are turned into
 *             float, which stays in the first-level cache, and multiplied with all rows; rows come
 *             in blocks that stay in the second level.
 *
 * Direct and unpacked give the same bits (kernels.h), so the choice is free. */
#include "device/common.h"
#include "device/cpu/cpu.h"
#include "device/cpu/kernels.h"

#include <assert.h>

#define BLOCK_ROWS 64
#define DIRECT_PARTS 3    /* more are slower than converting the weights once */
#define FIRST_LEVEL 16384 /* bytes of weights to keep in the first-level cache */
#define MAX_PRODUCTS 8    /* of a group; more are run in several groups */
#define TASKS_A_THREAD 8  /* enough to even out, few enough to be cheap */
#define TASK_BYTES 16384  /* of weights, at least */

/* One product as it is run: the weight as stored, or what the fast profile made of it. */
struct product {
    const struct mx_matmul *m;
    const struct mx_weight *w;      /* float products */
    const struct mx_panels *panels; /* NULL: float */
    int64_t tile;                   /* outputs per task, a multiple of MX_PANEL_OUTS */
    int tasks;
};

struct product_job {
    struct mx_cpu *cpu;
    struct product products[MAX_PRODUCTS];
    int count;
    const float *x;
    int64_t ldx;
    int n;
    const struct mx_q8_block *acts;
    int64_t act_ld;
};

/* ---- Float products ------------------------------------------------------------------------- */

/* At most MX_CPU_UNPACK_OUTS outputs from o0, `rows` rows. */
static void unpacked(const struct product_job *job, const struct product *p, int64_t o0, int outs,
                     int row0, int rows, float *buffer)
{
    const struct mx_cpu_kernels *k = job->cpu->k;
    const float *x = job->x + row0 * job->ldx;
    float *y = p->m->y + row0 * p->m->ldy + o0;
    for (int64_t at = 0; at < p->w->in; at += MX_CPU_CHUNK) {
        int64_t len = p->w->in - at < MX_CPU_CHUNK ? p->w->in - at : MX_CPU_CHUNK;
        for (int o = 0; o < outs; o++)
            k->unpack(p->w, o0 + o, at, len, buffer + o * MX_CPU_CHUNK);
        k->product(buffer, MX_CPU_CHUNK, outs, x + at, job->ldx, rows, len, at > 0, y, p->m->ldy);
    }
}

/* All rows at once or, if they are too many for the registers, in equal parts; then over few
 * outputs at a time, so that later parts find the weights in the first-level cache. */
static void direct_tile(const struct product_job *job, const struct product *p, int64_t o,
                        int64_t end)
{
    const struct mx_cpu_kernels *k = job->cpu->k;
    int parts = (job->n + k->direct_rows - 1) / k->direct_rows;
    int64_t outs = end - o;
    if (parts > 1) {
        outs = FIRST_LEVEL / (int64_t)mx_weight_row_bytes(p->w) / 4 * 4;
        outs = outs < 4 ? 4 : outs;
    }
    for (; o < end; o += outs) {
        int n = (int)(end - o < outs ? end - o : outs);
        for (int part = 0; part < parts; part++) {
            int row = job->n * part / parts, rows = job->n * (part + 1) / parts - row;
            k->direct(p->w, o, n, job->x + row * job->ldx, job->ldx, rows,
                      p->m->y + row * p->m->ldy, p->m->ldy);
        }
    }
}

/* Reading stored weights again for every few rows is cheaper than converting them once, up to a
 * point that was measured: three times for 16-bit weights, twice for packed codes. */
static bool direct_pays(const struct mx_cpu_kernels *k, const struct mx_weight *w, int rows)
{
    if (w->kind == MX_W_GGUF)
        return false; /* read through unpack() only */
    int parts = w->kind == MX_W_MLXQ ? 2 : DIRECT_PARTS;
    return rows <= parts * k->direct_rows && w->in % 32 == 0;
}

static void float_tile(const struct product_job *job, const struct product *p, int64_t first,
                       int64_t end, int thread)
{
    if (direct_pays(job->cpu->k, p->w, job->n)) {
        direct_tile(job, p, first, end);
        return;
    }
    float *buffer = mx_cpu_scratch(job->cpu, thread);
    for (int row = 0; row < job->n; row += BLOCK_ROWS) {
        int rows = job->n - row < BLOCK_ROWS ? job->n - row : BLOCK_ROWS;
        for (int64_t o = first; o < end; o += MX_CPU_UNPACK_OUTS)
            unpacked(job, p, o, (int)(end - o < MX_CPU_UNPACK_OUTS ? end - o : MX_CPU_UNPACK_OUTS),
                     row, rows, buffer);
    }
}

/* ---- Tasks ---------------------------------------------------------------------------------- */

static void product_task(void *arg, int task, int thread)
{
    const struct product_job *job = arg;
    const struct product *p = job->products;
    for (; task >= p->tasks; p++)
        task -= p->tasks;
    int64_t first = task * p->tile, out = p->m->w->out;
    int64_t end = first + p->tile < out ? first + p->tile : out;
    if (!p->panels) {
        float_tile(job, p, first, end, thread);
        return;
    }
    int64_t panel = first / MX_PANEL_OUTS, last = (end + MX_PANEL_OUTS - 1) / MX_PANEL_OUTS;
    job->cpu->q8->product(p->panels, panel, last - panel, job->acts, job->act_ld, job->n, p->m->y,
                          p->m->ldy);
}

static struct product choose(const struct mx_matmul *m)
{
    struct product p = {.m = m, .w = m->w};
    const struct mx_cpu_weight *bound = m->w->bound;
    if (bound && bound->panels.data)
        p.panels = &bound->panels;
    else if (bound)
        p.w = &bound->dense;
    return p;
}

static int64_t unit_bytes(const struct product *p) /* of MX_PANEL_OUTS outputs */
{
    return p->panels ? (int64_t)p->panels->panel_bytes
                     : MX_PANEL_OUTS * (int64_t)mx_weight_row_bytes(p->w);
}

static int64_t units(const struct product *p)
{
    return (p->m->w->out + MX_PANEL_OUTS - 1) / MX_PANEL_OUTS;
}

/* Cuts all products into tasks of about equal bytes; returns their number. */
static int cut(struct product_job *job)
{
    int64_t bytes = 0;
    int tasks = 0;
    for (int i = 0; i < job->count; i++)
        bytes += units(&job->products[i]) * unit_bytes(&job->products[i]);
    int64_t share = bytes / (TASKS_A_THREAD * job->cpu->base.threads);
    share = share < TASK_BYTES ? TASK_BYTES : share;
    for (int i = 0; i < job->count; i++) {
        struct product *p = &job->products[i];
        int64_t per = (share + unit_bytes(p) - 1) / unit_bytes(p);
        p->tile = per * MX_PANEL_OUTS;
        p->tasks = (int)((units(p) + per - 1) / per);
        tasks += p->tasks;
    }
    return tasks;
}

/* ---- Activations ---------------------------------------------------------------------------- */

struct quantise_job {
    const struct mx_q8_kernels *q8;
    const float *x;
    int64_t ldx, in, ld;
    int group;
    struct mx_q8_block *acts;
};

static void quantise_row(void *arg, int r, int thread)
{
    const struct quantise_job *job = arg;
    (void)thread;
    job->q8->quantise(job->x + r * job->ldx, job->in, job->group, job->acts + r * job->ld);
}

static void quantise(struct product_job *job, int64_t in, int group)
{
    struct mx_cpu *cpu = job->cpu;
    struct quantise_job q = {.q8 = cpu->q8,
                             .x = job->x,
                             .ldx = job->ldx,
                             .in = in,
                             .ld = mx_q8_blocks(in),
                             .group = group,
                             .acts = cpu->acts};
    mx_cpu_run(cpu, quantise_row, &q, job->n, (int64_t)job->n * in);
    job->acts = cpu->acts;
    job->act_ld = q.ld;
}

/* ---- Running -------------------------------------------------------------------------------- */

static int act_group(const struct product *p)
{
    return p->panels ? mx_panels_group(p->panels) : 0;
}

/* The products of one activation group, and the float ones with whichever comes first. */
static void run_products(struct product_job *job, const struct product *all, int count, int group,
                         bool floats)
{
    job->count = 0;
    for (int i = 0; i < count; i++)
        if (act_group(&all[i]) == group || (floats && !all[i].panels))
            job->products[job->count++] = all[i];
    if (group)
        quantise(job, all[0].m->w->in, group);
    mx_pool_run(job->cpu->pool, product_task, job, cut(job));
}

/* Most rows of a pass over `count` products. */
static int pass_rows(const struct mx_cpu *cpu, const struct mx_matmul *m, int count, int n)
{
    for (int i = 0; i < count; i++) {
        const struct mx_cpu_weight *bound = m[i].w->bound;
        if (bound && bound->panels.data) {
            int64_t most = cpu->act_blocks / mx_q8_blocks(m[i].w->in);
            return most < n ? (int)most : n;
        }
    }
    return n;
}

static void run_pass(struct mx_cpu *cpu, const struct mx_matmul *m, int count, const float *x,
                     int64_t ldx, int n)
{
    struct product_job job = {.cpu = cpu, .x = x, .ldx = ldx, .n = n};
    struct product all[MAX_PRODUCTS];
    bool want[2] = {false, false}, floats = true;
    for (int i = 0; i < count; i++) {
        all[i] = choose(&m[i]);
        if (all[i].panels)
            want[act_group(&all[i]) / 64] = true;
    }
    for (int g = 0; g < 2; g++) {
        if (!want[g])
            continue;
        run_products(&job, all, count, g ? 64 : 32, floats);
        floats = false;
    }
    if (floats)
        run_products(&job, all, count, 0, true);
}

void mx_cpu_matmul(struct mx_device *d, const struct mx_matmul *m, int count, const float *x,
                   int64_t ldx, int n)
{
    struct mx_cpu *cpu = (struct mx_cpu *)d;
    for (; count > MAX_PRODUCTS; m += MAX_PRODUCTS, count -= MAX_PRODUCTS)
        mx_cpu_matmul(d, m, MAX_PRODUCTS, x, ldx, n);
    int rows = pass_rows(cpu, m, count, n);
    assert(rows > 0 || n == 0);
    for (int r = 0; r < n; r += rows) {
        struct mx_matmul part[MAX_PRODUCTS];
        for (int i = 0; i < count; i++)
            part[i] = (struct mx_matmul){m[i].w, m[i].y + r * m[i].ldy, m[i].ldy};
        run_pass(cpu, part, count, x + r * ldx, ldx, n - r < rows ? n - r : rows);
    }
}

void mx_cpu_embed(struct mx_device *d, const struct mx_weight *w, const int32_t *tokens, int n,
                  float *y, int64_t ldy)
{
    struct mx_cpu *cpu = (struct mx_cpu *)d;
    for (int r = 0; r < n; r++) {
        for (int64_t at = 0; at < w->in; at += MX_CPU_CHUNK) {
            int64_t len = w->in - at < MX_CPU_CHUNK ? w->in - at : MX_CPU_CHUNK;
            cpu->k->unpack(w, tokens[r], at, len, y + r * ldy + at);
        }
    }
}
