/* What is saved by not reading a prompt again: time to first token of a long prompt cold,
 * identical, and as the beginning of a next turn; after a restart; and the rate of reading states
 * from disk.
 *
 *   bench_reuse [MODEL [TOKENS [TURN [ROUNDS [DIR]]]]]     (models/nano, 4000, 20, 5, none)
 *
 * Prompts are token ids. Every round asks for each kind of warm prompt once; a share is of the
 * median of two cold prompts, one before and one after the rounds. With DIR, on the disk in
 * question, states are written to a cold tier there, the engine is closed and opened again, and
 * loading through the session bank takes turns with plain reads of a file of the same size. The
 * files' pages leave the page cache before every read (fadvise; as root, drop_caches too). */
#include "median.h"

#include "base/clock.h"
#include "engine/engine.h"
#include "session/cold_state.h"

#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_ROUNDS = 25, ANSWER = 4, READ_BYTES = 4 << 20 };
#define NO_LIMIT (UINT64_C(600) * 1000000000u)

static mtplx_model *model;
static size_t tokens = 4000, turn = 20;
static int rounds = 5;
static char dir[4096]; /* of the cold tier; "": none */

static void die(const char *what, const mtplx_error *err)
{
    fprintf(stderr, "bench_reuse: %s: %s\n", what, err->message);
    exit(1);
}

/* ---- Requests ----------------------------------------------------------------------------- */

struct reply {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ended;
    int32_t ids[ANSWER];
    size_t n;
    struct mx_job_result result;
};

static size_t on_tokens(void *arg, int choice, const mtplx_gen *gen, const int32_t *ids,
                        size_t from, size_t n)
{
    struct reply *r = arg;
    (void)choice, (void)gen;
    for (size_t i = 0; i < n && from + i < ANSWER; i++)
        r->ids[r->n++] = ids[i];
    return SIZE_MAX;
}

static void on_done(void *arg, int choice, const mtplx_gen *gen, const struct mx_job_result *result)
{
    struct reply *r = arg;
    (void)choice, (void)gen;
    pthread_mutex_lock(&r->lock);
    r->result = *result;
    r->ended = true;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

static struct reply ask(struct mx_engine *e, const int32_t *prompt, size_t n)
{
    static const struct mx_job_sink sink = {on_tokens, on_done, NULL, NULL};
    struct reply r = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    mtplx_error err = {0};
    struct mx_job_options o = {.prompt = prompt,
                               .n_prompt = n,
                               .gen = {.max_tokens = ANSWER, .ignore_stop = true},
                               .owner = "bench",
                               .sink = &sink,
                               .arg = &r};
    if (!mx_engine_submit(e, &o, &err))
        die("request", &err);
    pthread_mutex_lock(&r.lock);
    while (!r.ended)
        pthread_cond_wait(&r.changed, &r.lock);
    pthread_mutex_unlock(&r.lock);
    if (r.result.end > MX_END_LENGTH)
        die("answer", &r.result.error);
    return r;
}

static void noise(uint32_t seed, int32_t *out, size_t n)
{
    uint32_t vocab = (uint32_t)mtplx_model_get_info(model)->vocab_size;
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        out[i] = (int32_t)((seed >> 8) % vocab);
    }
}

/* ---- Cold tier ---------------------------------------------------------------------------- */

static int forget_pages(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)at;
    int fd = kind == FTW_F ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fdatasync(fd);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
    return 0;
}

static void forget(void)
{
    nftw(dir, forget_pages, 16, FTW_PHYS);
    sync();
    FILE *f = fopen("/proc/sys/vm/drop_caches", "we");
    if (f) {
        fputs("1\n", f);
        fclose(f);
    }
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

static void warn(void *arg, const char *line)
{
    (void)arg;
    fprintf(stderr, "bench_reuse: %s\n", line);
}

static struct mx_cold *open_cold(void)
{
    mtplx_error err = {0};
    struct mx_cold_options o = {
        .dir = dir, .mode = MX_COLD_ON, .hourly_bytes = UINT64_MAX, .log = warn};
    if (!dir[0])
        return NULL;
    mx_cold_identify(model, &o.identity);
    struct mx_cold *c = mx_cold_open(&o, &err);
    if (!c)
        die(dir, &err);
    return c;
}

static struct mx_engine *open_engine(struct mx_cold *cold)
{
    mtplx_error err = {0};
    struct mx_engine_options o = {.model = model, .bank.cold = cold};
    struct mx_engine *e = mx_engine_new(&o, &err);
    if (!e)
        die("engine", &err);
    return e;
}

/* ---- Time to first token ------------------------------------------------------------------ */

static double ms(const struct reply *r)
{
    return (double)r->result.ttft_ns / 1e6;
}

static void row(const char *what, double *v, int n, double cold, const struct reply *r)
{
    double worst = 0, mid = median(v, n);
    for (int i = 0; i < n; i++)
        worst = v[i] > worst ? v[i] : worst;
    printf("%-34s %10.1f ms  %6.2f %%  worst %6.2f %%  %zu of %zu restored%s\n", what, mid,
           100 * mid / cold, 100 * worst / cold, r->result.cached_tokens, r->result.prompt_tokens,
           r->result.from_disk ? " (from disk)" : "");
}

static void measure(int32_t *prompt)
{
    static double same[MAX_ROUNDS], next[MAX_ROUNDS], bare[MAX_ROUNDS];
    int32_t *other = malloc((tokens + turn + ANSWER) * sizeof *other);
    mtplx_error memory = {.message = "no memory"};
    if (!other)
        die("prompt", &memory);
    struct mx_cold *cold = open_cold();
    struct mx_engine *e = open_engine(cold);
    struct reply first = ask(e, prompt, tokens), r[3] = {0};
    double all[2] = {ms(&first)};
    printf("cold, %zu tokens: %.0f ms\n", tokens, all[0]);
    for (int i = 0; i < rounds; i++) {
        r[0] = ask(e, prompt, tokens);
        same[i] = ms(&r[0]);
        memcpy(prompt + tokens, first.ids, first.n * sizeof *prompt);
        noise(1000 + (uint32_t)i, prompt + tokens + first.n, turn);
        r[1] = ask(e, prompt, tokens + first.n + turn);
        next[i] = ms(&r[1]);
        noise(2000 + (uint32_t)i, prompt + tokens, turn);
        r[2] = ask(e, prompt, tokens + turn);
        bare[i] = ms(&r[2]);
    }
    noise(77, other, tokens);
    struct reply last = ask(e, other, tokens);
    all[1] = ms(&last);
    double base = (all[0] + all[1]) / 2;
    printf("cold again, other tokens: %.0f ms; shares are of the mean, %.0f ms\n", all[1], base);
    row("identical", same, rounds, base, &r[0]);
    row("next turn: answer and new tokens", next, rounds, base, &r[1]);
    row("the answer left out, new tokens", bare, rounds, base, &r[2]);
    if (cold) {
        mx_engine_free(e);
        mx_cold_close(cold, NO_LIMIT);
        forget();
        cold = open_cold();
        e = open_engine(cold);
        noise(3000, prompt + tokens + turn, turn); /* what was sent last, and more */
        r[0] = ask(e, prompt, tokens + 2 * turn);
        row("after a restart, new tokens", &(double){ms(&r[0])}, 1, base, &r[0]);
        printf("%-34s %10.1f ms of that for looking up and restoring\n", "",
               (double)r[0].result.restore_ns / 1e6);
    }
    mx_engine_free(e);
    mx_cold_close(cold, NO_LIMIT);
    free(other);
}

/* ---- Rate of restoring -------------------------------------------------------------------- */

/* Bytes that the tier read for it, in *bytes, with the seconds it took. */
static double load_once(const int32_t *prompt, uint64_t *bytes)
{
    mtplx_error err = {0};
    struct mx_bank_hit hit;
    struct mx_cold_stats st;
    atomic_bool cancel = false;
    size_t n = tokens + 2 * turn; /* what was sent after the restart */
    struct mx_cold *cold = open_cold();
    struct mx_bank_options o = {.model = model, .budget = UINT64_C(4) << 30, .cold = cold};
    struct mx_bank *b = mx_bank_new(&o, &err);
    if (!b)
        die("bank", &err);
    forget();
    mx_bank_find(b, "", "bench", prompt, n, &hit);
    uint64_t t0 = mx_now_ns();
    mx_bank_load(b, "", "bench", prompt, n, &cancel, &hit);
    double s = (double)(mx_now_ns() - t0) / 1e9;
    if (!hit.snapshot) {
        err.message[0] = '\0';
        snprintf(err.message, sizeof err.message, "nothing came from disk (%s)",
                 mx_cache_miss_name(hit.miss));
        die("load", &err);
    }
    mx_cold_get_stats(cold, &st);
    *bytes = st.read_bytes;
    mx_snapshot_unref(hit.snapshot);
    mx_bank_free(b);
    mx_cold_close(cold, NO_LIMIT);
    return s;
}

static void write_plain(const char *path, uint64_t bytes)
{
    static unsigned char buf[READ_BYTES];
    uint32_t x = 1;
    FILE *f = fopen(path, "wbe");
    for (uint64_t done = 0; f && done < bytes; done += sizeof buf) {
        for (size_t i = 0; i < sizeof buf; i++)
            buf[i] = (unsigned char)((x = x * 1664525u + 1013904223u) >> 24);
        fwrite(buf, 1, sizeof buf, f);
    }
    if (!f || fflush(f) != 0 || fsync(fileno(f)) != 0 || fclose(f) != 0) {
        fprintf(stderr, "bench_reuse: cannot write %s\n", path);
        exit(1);
    }
}

/* Bytes per second of reading a file from front to back, with or without the page cache. */
static double read_plain(const char *path, int flags)
{
    static _Alignas(4096) unsigned char buf[READ_BYTES];
    uint64_t total = 0;
    ssize_t n;
    forget();
    uint64_t t0 = mx_now_ns();
    int fd = open(path, O_RDONLY | O_CLOEXEC | flags);
    if (fd < 0)
        return 0;
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    while ((n = read(fd, buf, sizeof buf)) > 0)
        total += (uint64_t)n;
    close(fd);
    return (double)total * 1e9 / (double)(mx_now_ns() - t0);
}

static void rate(const int32_t *prompt)
{
    static double loads[MAX_ROUNDS], plain[MAX_ROUNDS], direct[MAX_ROUNDS], share[MAX_ROUNDS];
    char path[sizeof dir + 16];
    uint64_t bytes = 0;
    load_once(prompt, &bytes);
    snprintf(path, sizeof path, "%s/plain", dir);
    write_plain(path, bytes);
    for (int i = 0; i < rounds; i++) {
        double s = load_once(prompt, &bytes);
        loads[i] = (double)bytes / s;
        plain[i] = read_plain(path, 0);
        direct[i] = read_plain(path, O_DIRECT);
        share[i] = loads[i] / (plain[i] > direct[i] ? plain[i] : direct[i]);
    }
    double mid = median(share, rounds);
    printf("load through the bank: %.0f MB at %.0f MB/s; plain reads of a file as big: %.0f MB/s, "
           "O_DIRECT %.0f MB/s; share of the faster, within rounds: %.2f (%.2f-%.2f)\n",
           (double)bytes / 1e6, median(loads, rounds) / 1e6, median(plain, rounds) / 1e6,
           median(direct, rounds) / 1e6, mid, share[0], share[rounds - 1]);
}

static long number(int argc, char **argv, int i, long otherwise, long most)
{
    long v = argc > i ? strtol(argv[i], NULL, 10) : otherwise;
    return v < 1 ? 1 : v > most ? most : v;
}

int main(int argc, char **argv)
{
    mtplx_error err = {0};
    mtplx_load_options load = {0};
    setvbuf(stdout, NULL, _IOLBF, 0);
    tokens = (size_t)number(argc, argv, 2, 4000, 1 << 20);
    turn = (size_t)number(argc, argv, 3, 20, 4096);
    rounds = (int)number(argc, argv, 4, 5, MAX_ROUNDS);
    if (argc > 5) {
        snprintf(dir, sizeof dir, "%.4000s/mtplx-reuse-XXXXXX", argv[5]);
        if (!mkdtemp(dir)) {
            perror(dir);
            return 1;
        }
    }
    model = mtplx_model_load(argc > 1 ? argv[1] : "models/nano", &load, &err);
    int32_t *prompt = malloc((tokens + ANSWER + 2 * turn) * sizeof *prompt);
    if (!model || !prompt)
        die("model", &err);
    noise(5, prompt, tokens);
    measure(prompt);
    if (dir[0]) {
        rate(prompt);
        nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    }
    free(prompt);
    mtplx_model_free(model);
    return 0;
}
