/* Cold tier: how fast a state comes back from the disk, against reading the same bytes plainly.
 *
 *   bench_cold [--dir DIR] [--blocks 63] [--block-mb 2.2] [--slab-mb 50] [--rounds 5] [--packed]
 *
 * Writes one state (blocks and a snapshot) below DIR and a plain file with as many bytes, then
 * reads both in turn with a cold page cache (posix_fadvise(DONTNEED) after a sync, so no root is
 * needed): one file and the object files by one
 * thread with 1 MiB reads, which is what dd bs=1M does (with and without iflag=direct, the base of
 * the shares), and the state through the tier. --packed
 * makes bytes that compress by a third. DIR should be on the disk in question; what was made is
 * removed. */
#include "base/clock.h"
#include "session/cold_int.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK_TOKENS 64
#define MOST_BLOCKS 4096
#define MIB (1 << 20)
#define AHEAD 4 /* objects asked for before they are read */

struct bench {
    char dir[200], plain[256];
    int n_blocks, rounds;
    size_t block_bytes, slab_bytes;
    bool packed;
    int32_t *tokens;
    struct mx_cold_write *w;
    uint64_t bytes;
};

static void *room(size_t n)
{
    void *p = malloc(n);
    if (!p) {
        fprintf(stderr, "bench_cold: no memory\n");
        exit(1);
    }
    return p;
}

static void fill(uint8_t *p, size_t n, uint64_t seed, bool packed)
{
    uint64_t s = seed * 0x9e3779b97f4a7c15ull + 1;
    for (size_t i = 0; i + 8 <= n; i += 8) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        uint64_t v = packed ? s & 0x1fff1fff1fff1fffull : s;
        memcpy(p + i, &v, 8);
    }
}

static void add_part(struct bench *b, struct mx_cold_write *w, size_t bytes, uint64_t seed)
{
    uint8_t *p = room(bytes + 8);
    memset(p, 0, bytes + 8);
    fill(p, bytes, seed, b->packed);
    w->parts[w->n_parts++] = (struct mx_cold_part){p, bytes};
    b->bytes += bytes;
}

static void make_state(struct bench *b)
{
    size_t n = (size_t)b->n_blocks * BLOCK_TOKENS;
    struct mx_cold_key k = mx_cold_chain_start("bench");
    struct mx_cold_key up = {{0}};
    b->tokens = room(n * sizeof *b->tokens);
    b->w = calloc((size_t)b->n_blocks + 1, sizeof *b->w);
    if (!b->w)
        exit(1);
    for (size_t i = 0; i < n; i++)
        b->tokens[i] = (int32_t)(i * 7919 % 150000);
    for (int i = 0; i <= b->n_blocks; i++) {
        struct mx_cold_write *w = &b->w[i];
        bool block = i < b->n_blocks;
        if (block)
            k = mx_cold_chain(k, b->tokens + (size_t)i * BLOCK_TOKENS, BLOCK_TOKENS);
        *w = (struct mx_cold_write){.kind = block ? MX_COLD_BLOCK : MX_COLD_SNAPSHOT,
                                    .key = k,
                                    .parent = up,
                                    .tokens = b->tokens + (block ? (size_t)i * BLOCK_TOKENS : 0),
                                    .n_tokens = block ? BLOCK_TOKENS : n,
                                    .session = "bench",
                                    .scope = "bench"};
        size_t bytes = block ? b->block_bytes : b->slab_bytes;
        add_part(b, w, block ? bytes * 8 / 9 : bytes, (uint64_t)i * 2 + 1);
        if (block)
            add_part(b, w, bytes - bytes * 8 / 9, (uint64_t)i * 2 + 2);
        up = k;
    }
}

/* ---- Reading ------------------------------------------------------------------------------ */

static void forget(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    fdatasync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

static void each_object(const char *dir, void (*fn)(const char *path))
{
    for (unsigned i = 0; i < 256; i++) {
        char path[600];
        snprintf(path, sizeof path, "%s/objects/%02x", dir, i);
        DIR *d = opendir(path);
        for (struct dirent *e; d && (e = readdir(d));) {
            snprintf(path, sizeof path, "%s/objects/%02x/%s", dir, i, e->d_name);
            if (e->d_name[0] != '.')
                fn(path);
        }
        if (d)
            closedir(d);
    }
}

/* Reads a file to its end; how many bytes. */
static uint64_t read_through(const char *path, uint8_t *buffer, int flags)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | flags);
    uint64_t done = 0;
    for (ssize_t n; fd >= 0 && (n = read(fd, buffer, MIB)) > 0;)
        done += (uint64_t)n;
    if (fd >= 0)
        close(fd);
    return done;
}

static double rate(uint64_t bytes, uint64_t began)
{
    return (double)bytes / 1e6 / ((double)(mx_now_ns() - began) / 1e9);
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* O_DIRECT reads past the page cache: the disk itself, one request at a time. */
static double read_plain(const struct bench *b, uint8_t *buffer, int flags)
{
    forget(b->plain);
    uint64_t began = mx_now_ns();
    return rate(read_through(b->plain, buffer, flags), began);
}

/* The object files themselves, without looking at what is in them. */
static double read_files(const struct bench *b, uint8_t *buffer)
{
    each_object(b->dir, forget);
    uint64_t began = mx_now_ns();
    uint64_t done = 0;
    struct mx_cold_identity id;
    memset(&id, 0, sizeof id);
    for (int i = 0; i <= b->n_blocks; i++) {
        char name[MX_COLD_NAME];
        char path[300];
        mx_cold_name(name, b->w[i].kind, b->w[i].key, &id);
        snprintf(path, sizeof path, "%s/objects/%s", b->dir, name);
        done += read_through(path, buffer, 0);
    }
    return rate(done, began);
}

static void read_objects(const struct bench *b, struct mx_cold *c, bool ahead)
{
    for (int i = 0; i <= b->n_blocks; i++) {
        const struct mx_cold_write *w = &b->w[i];
        struct mx_cold_part parts[MX_COLD_MAX_PARTS];
        mtplx_error err = {0};
        memcpy(parts, w->parts, sizeof parts);
        for (int k = i ? AHEAD : 1; ahead && k <= AHEAD && i + k <= b->n_blocks; k++)
            mx_cold_prefetch(c, w[k].kind, w[k].key);
        if (mx_cold_read(c, w->kind, w->key, w->tokens, w->n_tokens, parts, w->n_parts, &err)) {
            fprintf(stderr, "bench_cold: %s\n", err.message);
            exit(1);
        }
    }
}

static double read_state(const struct bench *b, struct mx_cold *c, bool ahead)
{
    each_object(b->dir, forget);
    uint64_t began = mx_now_ns();
    read_objects(b, c, ahead);
    return rate(b->bytes, began);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

static bool write_plain(const struct bench *b)
{
    int fd = open(b->plain, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool ok = fd >= 0;
    for (int i = 0; ok && i <= b->n_blocks; i++)
        for (int p = 0; ok && p < b->w[i].n_parts; p++) {
            const struct mx_cold_part *part = &b->w[i].parts[p];
            ok = write(fd, part->data, part->bytes) == (ssize_t)part->bytes;
        }
    if (fd >= 0)
        close(fd);
    return ok;
}

static double read_warm(const struct bench *b, struct mx_cold *c)
{
    read_objects(b, c, false);
    uint64_t began = mx_now_ns();
    read_objects(b, c, false);
    return rate(b->bytes, began);
}

static void compare(struct bench *b, struct mx_cold *c)
{
    enum { DIRECT, PLAIN, FILES, STATE, AHEAD_STATE, WARM, N, MOST = 64 };
    static const char *const names[N] = {"one file, O_DIRECT", "one file",
                                         "the object files",   "state",
                                         "state, prefetched",  "state, in page cache"};
    double v[N][MOST];
    double cpu[N] = {0};
    uint8_t *buffer = aligned_alloc(4096, MIB);
    if (!buffer)
        exit(1);
    int n = b->rounds < MOST ? b->rounds : MOST;
    for (int i = 0; i < n; i++) { /* in turn: other load hits all alike */
        double at = cpu_seconds();
        for (int k = 0; k < N; k++) {
            v[k][i] = k == DIRECT  ? read_plain(b, buffer, O_DIRECT)
                      : k == PLAIN ? read_plain(b, buffer, 0)
                      : k == FILES ? read_files(b, buffer)
                      : k == WARM  ? read_warm(b, c)
                                   : read_state(b, c, k == AHEAD_STATE);
            cpu[k] += cpu_seconds() - at;
            at = cpu_seconds();
        }
    }
    double base = median(v[DIRECT], n);
    for (int k = 0; k < N; k++) {
        double m = median(v[k], n);
        printf("%-22s %8.0f MB/s %5.0f %%   (%.0f to %.0f)  %4.0f ms of CPU\n", names[k], m,
               100 * m / base, v[k][0], v[k][n - 1], 1000 * cpu[k] / n);
    }
    free(buffer);
}

/* ---- Command line ------------------------------------------------------------------------- */

static void say(void *arg, const char *line)
{
    (void)arg;
    fprintf(stderr, "%s\n", line);
}

static bool parse(struct bench *b, int argc, char **argv)
{
    snprintf(b->dir, sizeof b->dir, "bench-cold");
    b->n_blocks = 63;
    b->rounds = 5;
    b->block_bytes = (size_t)(2.2 * 1e6);
    b->slab_bytes = (size_t)50 * 1000 * 1000;
    for (int i = 1; i < argc; i++) {
        const char *v = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--packed") == 0) {
            b->packed = true;
            continue;
        }
        i++;
        if (strcmp(argv[i - 1], "--dir") == 0)
            snprintf(b->dir, sizeof b->dir, "%s", v);
        else if (strcmp(argv[i - 1], "--blocks") == 0)
            b->n_blocks = (int)strtol(v, NULL, 10);
        else if (strcmp(argv[i - 1], "--rounds") == 0)
            b->rounds = (int)strtol(v, NULL, 10);
        else if (strcmp(argv[i - 1], "--block-mb") == 0)
            b->block_bytes = (size_t)(strtod(v, NULL) * 1e6);
        else if (strcmp(argv[i - 1], "--slab-mb") == 0)
            b->slab_bytes = (size_t)(strtod(v, NULL) * 1e6);
        else
            return false;
    }
    snprintf(b->plain, sizeof b->plain, "%s.plain", b->dir);
    return b->n_blocks > 0 && b->n_blocks <= MOST_BLOCKS && b->rounds > 0 && b->block_bytes >= 16 &&
           b->block_bytes < (1u << 30) && b->slab_bytes < (1u << 30);
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    if (!parse(&b, argc, argv)) {
        fprintf(stderr, "usage: bench_cold [--dir DIR] [--blocks N] [--block-mb X] [--slab-mb X] "
                        "[--rounds N] [--packed]\n");
        return 2;
    }
    mtplx_error err = {0};
    struct mx_cold_options o = {.dir = b.dir,
                                .mode = MX_COLD_ON,
                                .hourly_bytes = UINT64_MAX,
                                .queue_bytes = UINT64_MAX,
                                .min_tokens = 1,
                                .log = say};
    struct mx_cold *c = mx_cold_open(&o, &err);
    if (!c) {
        fprintf(stderr, "bench_cold: %s\n", err.message);
        return 1;
    }
    make_state(&b);
    mx_cold_drop(c, NULL);
    uint64_t began = mx_now_ns();
    bool ok = mx_cold_put(c, b.w, (size_t)b.n_blocks + 1, NULL, NULL) &&
              mx_cold_flush(c, UINT64_MAX) && write_plain(&b);
    double took = (double)(mx_now_ns() - began) / 1e9;
    struct mx_cold_stats s;
    mx_cold_get_stats(c, &s);
    if (ok && s.snapshots == 1) {
        printf("%d blocks and a slab, %.1f MB, on disk %.1f MB, written at %.0f MB/s\n", b.n_blocks,
               (double)b.bytes / 1e6, (double)s.bytes / 1e6, (double)b.bytes / 1e6 / took);
        compare(&b, c);
    } else {
        fprintf(stderr, "bench_cold: writing failed: %s\n", s.why);
    }
    mx_cold_drop(c, NULL);
    mx_cold_close(c, UINT64_MAX);
    unlink(b.plain);
    return ok ? 0 : 1;
}
