/* cpu device: matrix products and embedding lookup.
 *
 * Work is split over threads by outputs. A few rows go straight from stored weights to registers.
 * More rows first turn MX_CPU_UNPACK_OUTS outputs by MX_CPU_CHUNK inputs into float, which stays in
 * the first-level cache, and multiply that with all rows; rows come in blocks that stay in the
 * second level. Both ways give the same bits (kernels.h), so the choice is free. */
#include "device/common.h"
#include "device/cpu/cpu.h"
#include "device/cpu/kernels.h"

#define BLOCK_ROWS 64
#define MAX_TILE 256
#define DIRECT_PARTS 3    /* more are slower than converting the weights once */
#define FIRST_LEVEL 16384 /* bytes of weights to keep in the first-level cache */

struct product_job {
    struct mx_cpu *cpu;
    const struct mx_matmul *m;
    const float *x;
    int64_t ldx;
    int n;
    int64_t tile; /* outputs per task */
};

/* At most MX_CPU_UNPACK_OUTS outputs from o0, `rows` rows. */
static void unpacked(const struct product_job *job, const struct mx_matmul *m, int64_t o0, int outs,
                     int row0, int rows, float *buffer)
{
    const struct mx_cpu_kernels *k = job->cpu->k;
    const float *x = job->x + row0 * job->ldx;
    float *y = m->y + row0 * m->ldy + o0;
    for (int64_t at = 0; at < m->w->in; at += MX_CPU_CHUNK) {
        int64_t len = m->w->in - at < MX_CPU_CHUNK ? m->w->in - at : MX_CPU_CHUNK;
        for (int o = 0; o < outs; o++)
            k->unpack(m->w, o0 + o, at, len, buffer + o * MX_CPU_CHUNK);
        k->product(buffer, MX_CPU_CHUNK, outs, x + at, job->ldx, rows, len, at > 0, y, m->ldy);
    }
}

/* All rows at once or, if they are too many for the registers, in equal parts; then over few
 * outputs at a time, so that later parts find the weights in the first-level cache. */
static void direct_tile(const struct product_job *job, const struct mx_matmul *m, int64_t o,
                        int64_t end)
{
    const struct mx_cpu_kernels *k = job->cpu->k;
    int parts = (job->n + k->direct_rows - 1) / k->direct_rows;
    int64_t outs = end - o;
    if (parts > 1) {
        outs = FIRST_LEVEL / (int64_t)mx_weight_row_bytes(m->w) / 4 * 4;
        outs = outs < 4 ? 4 : outs;
    }
    for (; o < end; o += outs) {
        int n = (int)(end - o < outs ? end - o : outs);
        for (int part = 0; part < parts; part++) {
            int row = job->n * part / parts, rows = job->n * (part + 1) / parts - row;
            k->direct(m->w, o, n, job->x + row * job->ldx, job->ldx, rows, m->y + row * m->ldy,
                      m->ldy);
        }
    }
}

/* Reading stored weights again for every few rows is cheaper than converting them once, up to a
 * point that was measured: three times for 16-bit weights, twice for packed codes. */
static bool direct_pays(const struct mx_cpu_kernels *k, const struct mx_weight *w, int rows)
{
    if (w->kind == MX_W_GGUF)
        return false; /* read through unpack() only */
    int parts = w->kind == MX_W_MLXQ ? 2 : 3;
    return rows <= parts * k->direct_rows && w->in % 32 == 0;
}

static void product_tile(void *arg, int task, int thread)
{
    const struct product_job *job = arg;
    const struct mx_cpu_kernels *k = job->cpu->k;
    int64_t first;
    const struct mx_matmul *m = mx_matmul_tile(job->m, task, job->tile, &first);
    int64_t end = first + job->tile < m->w->out ? first + job->tile : m->w->out;
    if (direct_pays(k, m->w, job->n)) {
        direct_tile(job, m, first, end);
        return;
    }
    float *buffer = mx_cpu_scratch(job->cpu, thread);
    for (int row = 0; row < job->n; row += BLOCK_ROWS) {
        int rows = job->n - row < BLOCK_ROWS ? job->n - row : BLOCK_ROWS;
        for (int64_t o = first; o < end; o += MX_CPU_UNPACK_OUTS)
            unpacked(job, m, o, (int)(end - o < MX_CPU_UNPACK_OUTS ? end - o : MX_CPU_UNPACK_OUTS),
                     row, rows, buffer);
    }
}

/* About eight tasks a thread: enough to even out, few enough to be cheap. */
static int64_t tile_outputs(const struct mx_matmul *m, int count, int threads)
{
    int64_t outs = 0;
    for (int i = 0; i < count; i++)
        outs += m[i].w->out;
    int64_t tile = outs / (8 * threads) / MX_CPU_UNPACK_OUTS * MX_CPU_UNPACK_OUTS;
    return tile < MX_CPU_UNPACK_OUTS ? MX_CPU_UNPACK_OUTS : tile > MAX_TILE ? MAX_TILE : tile;
}

void mx_cpu_matmul(struct mx_device *d, const struct mx_matmul *m, int count, const float *x,
                   int64_t ldx, int n)
{
    struct mx_cpu *cpu = (struct mx_cpu *)d;
    struct product_job job = {.cpu = cpu, .m = m, .x = x, .ldx = ldx, .n = n};
    job.tile = tile_outputs(m, count, d->threads);
    mx_pool_run(cpu->pool, product_tile, &job, mx_matmul_tiles(m, count, job.tile));
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
