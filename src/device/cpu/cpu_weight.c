/* cpu device: weights of the fast profile.
 *
 * Quantised weights are repacked into panels (panels.h), dense ones copied as they are, both into
 * memory that asks for huge pages: a decode step streams all weights, and with 4 KB pages the
 * translation of addresses, not the memory, sets its speed. The pages of the file that were read on
 * the way are given back, so that the peak stays near one copy of the weights. */
#include "device/common.h"
#include "device/cpu/cpu.h"
#include "device/cpu/cpu_check.h"
#include "device/cpu/kernels.h"
#include "format/gguf_quant.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SMALL_DENSE ((size_t)1 << 20) /* smaller dense weights stay where they are */
#define BIND_ROWS 16                  /* activations every bound weight has room for */

/* ---- Memory ------------------------------------------------------------------------------- */

#define HUGE_PAGE ((size_t)2 << 20)
#define CHUNK ((size_t)64 << 20)

/* Weights share chunks of memory that start at a huge page, because most are smaller than one, and
 * a mapping of its own for each would leave its ends, or all of it, on small pages. A chunk goes
 * when the last weight in it goes; pages that no weight touches are never there. */
struct mx_cpu_chunk {
    struct mx_cpu_chunk *next;
    char *base;
    size_t size, used;
    int live; /* weights in it */
};

/* Zeroed memory that starts at a huge page; NULL when there is none. */
static char *map_aligned(size_t bytes)
{
    size_t room = bytes + HUGE_PAGE;
    char *p = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    size_t before = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    if (before)
        munmap(p, before);
    munmap(p + before + bytes, HUGE_PAGE - before);
    mx_host_huge(p + before, bytes);
    return p + before;
}

static struct mx_cpu_chunk *new_chunk(struct mx_cpu *cpu, size_t bytes)
{
    struct mx_cpu_chunk *c = malloc(sizeof *c);
    size_t size = bytes > CHUNK ? (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE : CHUNK;
    char *base = c ? map_aligned(size) : NULL;
    if (!base) {
        free(c);
        return NULL;
    }
    *c = (struct mx_cpu_chunk){.next = cpu->chunks, .base = base, .size = size};
    cpu->chunks = c;
    return c;
}

/* Memory for a weight, aligned to a cache line, and the chunk that it lies in. */
static void *weight_alloc(struct mx_cpu *cpu, size_t bytes, struct mx_cpu_chunk **chunk)
{
    struct mx_cpu_chunk *c = cpu->chunks;
    while (c && c->size - c->used < bytes)
        c = c->next;
    if (!c && !(c = new_chunk(cpu, bytes)))
        return NULL;
    void *p = c->base + c->used;
    c->used += (bytes + 63) / 64 * 64;
    c->used = c->used < c->size ? c->used : c->size;
    c->live++;
    *chunk = c;
    return p;
}

static void weight_release(struct mx_cpu *cpu, struct mx_cpu_chunk *chunk)
{
    struct mx_cpu_chunk **at = &cpu->chunks;
    if (--chunk->live > 0)
        return;
    while (*at != chunk)
        at = &(*at)->next;
    *at = chunk->next;
    munmap(chunk->base, chunk->size);
    free(chunk);
}

/* Gives back the pages that lie wholly inside a range of a read-only file mapping. */
static void drop_pages(const void *data, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = ((uintptr_t)data + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)data + bytes) / page * page;
    if (end > first)
        madvise((void *)first, end - first, MADV_DONTNEED);
}

static void drop_source(const struct mx_weight *w)
{
    if (!w->mapped)
        return;
    drop_pages(w->data, (size_t)w->out * mx_weight_row_bytes(w));
    if (w->kind == MX_W_MLXQ) {
        size_t side =
            (size_t)w->out * (size_t)(w->in / w->group) * (size_t)mx_dtype_bytes(w->sdtype);
        drop_pages(w->scales, side);
        drop_pages(w->biases, side);
    }
}

/* ---- Filling ------------------------------------------------------------------------------- */

#define PACK_BYTES ((size_t)1 << 19) /* about what one task writes */

struct fill_job {
    const struct mx_weight *w;
    struct mx_cpu_weight *bound;
    int64_t per_task; /* panels or bytes */
};

static void pack_task(void *arg, int task, int thread)
{
    const struct fill_job *job = arg;
    (void)thread;
    int64_t first = task * job->per_task, left = job->bound->panels.count - first;
    mx_panels_pack(job->w, &job->bound->panels, first, left < job->per_task ? left : job->per_task);
}

static void copy_task(void *arg, int task, int thread)
{
    const struct fill_job *job = arg;
    (void)thread;
    size_t first = (size_t)(task * job->per_task), left = job->bound->bytes - first;
    size_t n = left < (size_t)job->per_task ? left : (size_t)job->per_task;
    memcpy((char *)job->bound->memory + first, (const char *)job->w->data + first, n);
}

static void fill(struct mx_cpu *cpu, const struct mx_weight *w, struct mx_cpu_weight *bound)
{
    struct fill_job job = {.w = w, .bound = bound};
    if (bound->panels.data) {
        job.per_task = (int64_t)(PACK_BYTES / bound->panels.panel_bytes) + 1;
        mx_pool_run(cpu->pool, pack_task, &job,
                    (int)((bound->panels.count + job.per_task - 1) / job.per_task));
        return;
    }
    job.per_task = (int64_t)PACK_BYTES;
    mx_pool_run(cpu->pool, copy_task, &job, (int)((bound->bytes + PACK_BYTES - 1) / PACK_BYTES));
}

/* ---- Binding ------------------------------------------------------------------------------- */

/* A format's bit: bits 2..6 and 8, two groups of AFFINE by two types of scales, three other ways to
 * scale. */
static uint64_t format_bit(const struct mx_panels *p)
{
    unsigned way =
        p->scaling == MX_PANEL_AFFINE ? (p->subs == 1) + 5u * p->bf16 : 1u + (unsigned)p->scaling;
    return UINT64_C(1) << (6 * way + (p->bits == 8 ? 5 : (unsigned)p->bits - 2));
}

/* The self-check of a format, once. */
static bool kernels_work(struct mx_cpu *cpu, const struct mx_panels *p)
{
    uint64_t bit = format_bit(p);
    if (!(cpu->checked & bit)) {
        cpu->checked |= bit;
        if (!mx_cpu_check_q8(cpu->q8, p)) {
            cpu->broken |= bit;
            if (!cpu->base.note)
                cpu->base.note =
                    "int8 kernels of a weight format failed their self-check; it runs in "
                    "float32";
        }
    }
    return !(cpu->broken & bit);
}

void mx_cpu_probe(struct mx_cpu *cpu, struct mx_device_probe *p)
{
    static const int types[] = {MX_GGUF_Q4_0, MX_GGUF_Q4_1, MX_GGUF_Q5_0, MX_GGUF_Q5_1,
                                MX_GGUF_Q8_0, MX_GGUF_Q4_K, MX_GGUF_Q5_K, MX_GGUF_Q6_K};
    enum { MLX = 24, ALL = MLX + sizeof types / sizeof *types };
    if (!cpu->q8)
        return;
    p->int8 = cpu->q8->name;
    for (int i = 0; i < ALL; i++) {
        struct mx_panels form;
        struct mx_weight w = {.kind = MX_W_MLXQ, .out = 16, .in = 256};
        w.bits = i / 4 + 2 < 7 ? i / 4 + 2 : 8;
        w.group = i % 2 ? 64 : 32;
        w.sdtype = i / 2 % 2 ? MX_BF16 : MX_F16;
        if (i >= MLX) {
            w.kind = MX_W_GGUF;
            w.gguf_type = types[i - MLX];
        }
        mx_panels_layout(&w, &form);
        p->formats++;
        p->broken += !kernels_work(cpu, &form);
    }
}

/* Whether the fast profile keeps a copy of this weight; fills in its form and size. */
static bool copy_pays(struct mx_cpu *cpu, const struct mx_weight *w, struct mx_cpu_weight *bound)
{
    if (!cpu->base.fast || !cpu->q8 || w->lookup_only)
        return false;
    if (mx_panels_layout(w, &bound->panels)) {
        if (!kernels_work(cpu, &bound->panels))
            return false;
        bound->bytes = (size_t)bound->panels.count * bound->panels.panel_bytes;
        return true;
    }
    bound->bytes = (size_t)w->out * mx_weight_row_bytes(w);
    return w->kind != MX_W_MLXQ && bound->bytes >= SMALL_DENSE;
}

static mtplx_status make_copy(struct mx_cpu *cpu, struct mx_weight *w, struct mx_cpu_weight form,
                              mtplx_error *err)
{
    struct mx_cpu_weight *bound = malloc(sizeof *bound);
    form.memory = bound ? weight_alloc(cpu, form.bytes, &form.chunk) : NULL;
    if (!form.memory) {
        free(bound);
        return mx_error_nomem(err, "weights in the layout of this processor", form.bytes);
    }
    bool panels = form.panels.bits != 0;
    if (panels) {
        form.panels.data = form.memory;
    } else {
        form.dense = *w;
        form.dense.data = form.memory;
    }
    *bound = form;
    fill(cpu, w, bound);
    drop_source(w);
    w->bound = bound;
    return MTPLX_OK;
}

mtplx_status mx_cpu_weight_bind(struct mx_device *d, struct mx_weight *w, mtplx_error *err)
{
    struct mx_cpu *cpu = (struct mx_cpu *)d;
    struct mx_cpu_weight form = {.memory = NULL};
    w->bound = NULL;
    mtplx_status st = mx_weight_check(w, err);
    if (st != MTPLX_OK || !copy_pays(cpu, w, &form))
        return st;
    if (mx_q8_blocks(w->in) > cpu->act_width)
        cpu->act_width = mx_q8_blocks(w->in);
    if ((st = mx_cpu_reserve_acts(cpu, BIND_ROWS, err)) != MTPLX_OK)
        return st;
    return make_copy(cpu, w, form, err);
}

void mx_cpu_weight_unbind(struct mx_device *d, struct mx_weight *w)
{
    struct mx_cpu_weight *bound = w->bound;
    if (bound)
        weight_release((struct mx_cpu *)d, bound->chunk);
    free(bound);
    w->bound = NULL;
}

mtplx_status mx_cpu_reserve_acts(struct mx_cpu *cpu, int rows, mtplx_error *err)
{
    int64_t want = rows * cpu->act_width;
    if (want <= cpu->act_blocks)
        return MTPLX_OK;
    size_t bytes = (size_t)want * sizeof *cpu->acts;
    struct mx_q8_block *p = mx_host_alloc(&cpu->base, bytes);
    if (!p)
        return mx_error_nomem(err, "activations of the cpu device", bytes);
    mx_host_free(&cpu->base, cpu->acts);
    cpu->acts = p;
    cpu->act_blocks = want;
    return MTPLX_OK;
}
