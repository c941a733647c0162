/* The attention op alone, behind a long context, in every format of the KV cache; formats take
 * turns. Times are processor time, so that a busy machine disturbs little; medians of ratios within
 * rounds, with their quartiles.
 *
 *   bench_attention [ENTRIES [HEAD_DIM [HEADS [KV_HEADS [THREADS]]]]]    (16384 256 8 2 1)
 */
#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FORMATS = 4, ROUNDS = 41, BLOCK = 64 };

struct shape {
    int entries, dim, heads, kv_heads, threads;
};

/* A cache of one format, every entry the same. */
struct cache {
    struct mx_kv_layout layout;
    void **blocks;
};

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void *need(void *p)
{
    if (!p) {
        fputs("bench_attention: out of memory\n", stderr);
        exit(1);
    }
    return p;
}

static float *randoms(size_t n)
{
    static uint32_t seed = 1;
    float *x = need(malloc(n * sizeof *x));
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) * 0x1p-23f - 1.0f;
    }
    return x;
}

static struct cache new_cache(struct mx_device *d, const struct shape *s, enum mx_kv_format f,
                              int rows)
{
    struct cache c = {{f, BLOCK, 1, s->kv_heads, s->dim}, NULL};
    size_t entry = mx_kv_entry_bytes(&c.layout), block = mx_kv_block_bytes(&c.layout);
    int blocks = (s->entries + rows + BLOCK - 1) / BLOCK;
    char *stored = need(malloc(entry));
    float *x = randoms((size_t)s->dim);
    mx_kv_pack(f, x, s->dim, stored);
    c.blocks = need(malloc((size_t)blocks * sizeof *c.blocks));
    for (int b = 0; b < blocks; b++) {
        c.blocks[b] = need(d->ops->alloc(d, block));
        for (size_t at = 0; at < block; at += entry)
            d->ops->upload(d, (char *)c.blocks[b] + at, stored, entry);
    }
    free(stored);
    free(x);
    return c;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const struct cache *caches, double (*ms)[ROUNDS])
{
    for (int f = FORMATS - 1; f >= 0; f--) {
        double ratio[ROUNDS];
        for (int r = 0; r < ROUNDS; r++)
            ratio[r] = ms[0][r] / ms[f][r];
        qsort(ratio, ROUNDS, sizeof *ratio, by_value);
        qsort(ms[f], ROUNDS, sizeof **ms, by_value);
        printf("  %5s %8.3f ms, %.2f (%.2f-%.2f) times as fast as %s\n",
               mx_kv_format_name(caches[f].layout.format), ms[f][ROUNDS / 2], ratio[ROUNDS / 2],
               ratio[ROUNDS / 4], ratio[ROUNDS * 3 / 4],
               mx_kv_format_name(caches[0].layout.format));
    }
}

static void measure(struct mx_device *d, const struct shape *s, int rows)
{
    const enum mx_kv_format formats[FORMATS] = {d->kv_format, MX_KV_Q8, MX_KV_Q6, MX_KV_Q4};
    static double ms[FORMATS][ROUNDS];
    struct cache caches[FORMATS];
    size_t width = (size_t)s->heads * (size_t)s->dim;
    float *q = randoms((size_t)rows * width), *y = randoms((size_t)rows * width);
    for (int f = 0; f < FORMATS; f++)
        caches[f] = new_cache(d, s, formats[f], rows);
    for (int r = 0; r < ROUNDS; r++) {
        for (int f = 0; f < FORMATS; f++) {
            struct mx_seg seg = {.rows = rows, .kv_len = s->entries, .kv_blocks = caches[f].blocks};
            struct mx_batch batch = {.n = rows, .n_segs = 1, .segs = &seg};
            struct mx_attention a = {.batch = &batch,
                                     .kv = &caches[f].layout,
                                     .heads = s->heads,
                                     .q_stride = s->dim,
                                     .q = q,
                                     .ldq = (int64_t)width,
                                     .scale = 0.0625f,
                                     .y = y};
            double start = now_ms();
            d->ops->attention(d, &a);
            ms[f][r] = now_ms() - start;
        }
    }
    printf("%d row%s:\n", rows, rows == 1 ? "" : "s");
    report(caches, ms);
    for (int f = 0; f < FORMATS; f++) {
        for (int b = 0; b * BLOCK < s->entries + rows; b++)
            d->ops->free(d, caches[f].blocks[b]);
        free(caches[f].blocks);
    }
    free(q);
    free(y);
}

int main(int argc, char **argv)
{
    int v[5] = {16384, 256, 8, 2, 1};
    mtplx_error err = {0};
    for (int i = 0; i < 5 && i + 1 < argc; i++)
        v[i] = (int)strtol(argv[i + 1], NULL, 10);
    struct shape s = {v[0], v[1], v[2], v[3], v[4]};
    if (s.entries < 1 || s.dim < MX_KV_GROUP || s.dim > MX_KV_MAX_HEAD_DIM || s.dim % MX_KV_GROUP ||
        s.kv_heads < 1 || s.heads < s.kv_heads || s.heads % s.kv_heads) {
        fputs("bench_attention: HEAD_DIM must be a multiple of 32, HEADS one of KV_HEADS\n",
              stderr);
        return 2;
    }
    struct mx_device *d = mx_device_open("cpu", s.threads, &err);
    if (!d) {
        fprintf(stderr, "bench_attention: %s\n", err.message);
        return 1;
    }
    printf("%s, %d entries of %d values, %d heads over %d\n", d->name, s.entries, s.dim, s.heads,
           s.kv_heads);
    measure(d, &s, 1);
    measure(d, &s, 8);
    mx_device_close(d);
    return 0;
}
