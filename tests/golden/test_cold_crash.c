/* The cold tier and sudden ends: a process that generates, restores and writes is killed at random
 * points of its work, again and again in the same directory; files are cut, flipped, swapped,
 * removed. Each time the tier opens, and whatever it still gives continues as a run from scratch
 * does, token by token.
 *
 * MTPLX_CRASH_ROUNDS is how often the process is killed, MTPLX_DAMAGE_ROUNDS how often files are
 * damaged, MTPLX_CRASH_SEED where both start. */
#include "cold_rig.h"

#include "session/cold_record.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

enum { FRESH_EVERY = 10, MAX_STATES = 4096 };

static mtplx_model *tiny(void)
{
    mtplx_load_options o = {.threads = 1};
    return load_or_fail(src_path(TINY), &o);
}

static uint64_t first_seed(void)
{
    const char *s = getenv("MTPLX_CRASH_SEED");
    return s ? strtoull(s, NULL, 10) : 1;
}

/* ---- The process that is killed ----------------------------------------------------------- */

/* The longest state on disk, or an empty sequence. */
static mtplx_seq *restore(mtplx_model *m, struct mx_cold *c, const int32_t *prompt, size_t n)
{
    size_t found = mx_cold_find(c, "scope", prompt, n, 0);
    mtplx_snapshot *s = found ? mx_cold_load(c, m, "scope", prompt, found, NULL, NULL, NULL) : NULL;
    mtplx_seq *seq = s ? mtplx_seq_restore(s, NULL) : mtplx_seq_new(m, NULL);
    mtplx_snapshot_free(s);
    return seq;
}

static void keep(struct mx_cold *c, mtplx_seq *seq)
{
    mtplx_snapshot *s = mtplx_seq_snapshot(seq, NULL);
    if (s)
        rig_put(c, s);
    mtplx_snapshot_free(s);
}

/* A turn: the prompt, a state before its answer, the answer, a state behind it. */
static void turn(mtplx_model *m, struct mx_cold *c, uint64_t *seed)
{
    int32_t prompt[RIG_MAX], first;
    size_t n = 80 + rig_next(seed) % (SLOW_BUILD ? 8 : 16) * 37;
    rig_tokens((int)(rig_next(seed) % RIG_TALKS), prompt, n);
    mtplx_seq *seq = restore(m, c, prompt, n);
    size_t known = mtplx_seq_length(seq);
    mtplx_gen_options one = {.max_tokens = 1, .depth = 3, .ignore_stop = true};
    mtplx_gen_options rest = {.max_tokens = 20, .depth = 3, .ignore_stop = true};
    rig_run(seq, prompt + known, n - known, &one, &first);
    keep(c, seq);
    rig_run(seq, &first, 1, &rest, NULL);
    keep(c, seq);
    mtplx_seq_free(seq);
}

/* Says so when it starts, and after every turn; some of them wait for the disk. */
static int child(const char *dir, uint64_t seed)
{
    mtplx_model *m = tiny();
    struct mx_cold_options o = rig_cold_options(m, dir, NULL);
    if (write(STDOUT_FILENO, ".", 1) != 1) /* opening may be interrupted too */
        return 1;
    struct mx_cold *c = mx_cold_open(&o, NULL);
    while (c) {
        turn(m, c, &seed);
        if (rig_next(&seed) % 3 == 0)
            mx_cold_flush(c, RIG_WAIT);
        if (write(STDOUT_FILENO, ".", 1) != 1)
            break;
    }
    return 1;
}

/* After some turns, and then some time in which the next one and the writer go on: both random, so
 * that a slow machine gets as far as a fast one. */
static void run_and_kill(const char *dir, uint64_t *seed)
{
    char number[32], dot;
    int fds[2], status;
    assert_int_equal(pipe(fds), 0);
    snprintf(number, sizeof number, "%u", rig_next(seed));
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fds[1], STDOUT_FILENO);
        execl("/proc/self/exe", "test_cold_crash", "--child", dir, number, (char *)NULL);
        _exit(127);
    }
    close(fds[1]);
    for (uint32_t turns = 1 + rig_next(seed) % 8; turns > 0; turns--)
        if (read(fds[0], &dot, 1) != 1)
            break;
    usleep(rig_next(seed) % 40000);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    close(fds[0]);
    if (!WIFSIGNALED(status))
        fail_msg("the child ended by itself with status %d", status);
}

/* ---- What is left ------------------------------------------------------------------------- */

struct state {
    int32_t *tokens;
    size_t n;
    bool known; /* answers below */
    int32_t answers[2][RIG_ANSWER];
};

static struct state *states;
static size_t n_states;

static void note_state(const int32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n_states; i++)
        if (states[i].n == n && memcmp(states[i].tokens, tokens, n * sizeof *tokens) == 0)
            return;
    if (n_states == MAX_STATES)
        return;
    states[n_states] = (struct state){.tokens = malloc(n * sizeof *tokens), .n = n};
    memcpy(states[n_states++].tokens, tokens, n * sizeof *tokens);
}

/* Calls fn for every object file. */
static char **list_files(const char *dir, char ending, size_t *count)
{
    char path[700], **out = NULL;
    *count = 0;
    snprintf(path, sizeof path, "%s/objects", dir);
    DIR *top = opendir(path);
    for (struct dirent *a; top && (a = readdir(top));) {
        if (a->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/objects/%s", dir, a->d_name);
        DIR *sub = opendir(path);
        for (struct dirent *e; sub && (e = readdir(sub));) {
            size_t len = strlen(e->d_name);
            if (len < 3 || e->d_name[0] == '.' || (ending && e->d_name[len - 1] != ending))
                continue;
            out = realloc(out, (*count + 1) * sizeof *out);
            out[*count] = malloc(700);
            snprintf(out[(*count)++], 700, "%s/objects/%s/%s", dir, a->d_name, e->d_name);
        }
        if (sub)
            closedir(sub);
    }
    if (top)
        closedir(top);
    return out;
}

static void free_list(char **files, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(files[i]);
    free(files);
}

/* Tokens of all snapshot files whose header can be read. */
static void note_files(const char *dir)
{
    size_t n;
    char **files = list_files(dir, 's', &n);
    for (size_t i = 0; i < n; i++) {
        struct mx_record r;
        struct stat sb;
        int fd = open(files[i], O_RDONLY);
        if (fd >= 0 && fstat(fd, &sb) == 0 &&
            mx_record_open(fd, 0, (uint64_t)sb.st_size, &r, NULL) == MTPLX_OK) {
            note_state(r.tokens, r.n_tokens);
            mx_record_free(&r);
        }
        if (fd >= 0)
            close(fd);
    }
    free_list(files, n);
}

static void check_answers(mtplx_model *m, struct state *s, const mtplx_snapshot *snap)
{
    int32_t got[RIG_ANSWER];
    for (int sampled = 0; sampled < 2; sampled++) {
        if (!s->known)
            rig_cold(m, s->tokens, s->n, sampled, s->answers[sampled]);
        rig_warm(snap, sampled, got);
        assert_memory_equal(got, s->answers[sampled], sizeof got);
    }
    s->known = true;
}

/* Restores every state there ever was and that is there; how many. */
static size_t check_states(mtplx_model *m, struct mx_cold *c)
{
    size_t restored = 0;
    for (size_t i = 0; i < n_states; i++) {
        struct state *s = &states[i];
        mtplx_error err = {0};
        int32_t *prompt = malloc((s->n + 1) * sizeof *prompt);
        memcpy(prompt, s->tokens, s->n * sizeof *prompt);
        prompt[s->n] = 5;
        bool there = mx_cold_find(c, "scope", prompt, s->n + 1, s->n - 1) == s->n;
        free(prompt);
        if (!there)
            continue;
        mtplx_snapshot *snap = mx_cold_load(c, m, "scope", s->tokens, s->n, NULL, NULL, &err);
        if (!snap) {
            assert_true(err.status == MTPLX_ERR_FORMAT || err.status == MTPLX_ERR_IO);
            continue;
        }
        check_answers(m, s, snap);
        mtplx_snapshot_free(snap);
        restored++;
    }
    return restored;
}

static uint64_t snapshots_of(struct mx_cold *c)
{
    struct mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    return st.snapshots;
}

static void forget_states(void)
{
    for (size_t i = 0; i < n_states; i++)
        free(states[i].tokens);
    n_states = 0;
}

/* ---- Killed ------------------------------------------------------------------------------- */

static void test_killed(void **state)
{
    (void)state;
    int rounds = budget("MTPLX_CRASH_ROUNDS", 8, 3);
    uint64_t seed = first_seed();
    mtplx_model *m = tiny();
    char *dir = rig_dir("crash");
    size_t restored = 0, rounds_with = 0;
    int dropped = 0;
    for (int i = 0; i < rounds; i++) {
        struct rig_log log = {0};
        if (i % FRESH_EVERY == 0)
            rig_empty(dir);
        run_and_kill(dir, &seed);
        struct mx_cold *c = rig_open(m, dir, &log);
        note_files(dir);
        uint64_t rows = snapshots_of(c);
        size_t n = check_states(m, c);
        /* A crash never leaves a row whose file is missing or torn. */
        if (n != rows)
            fail_msg("round %d: %zu of %llu states could be restored\n%s", i, n,
                     (unsigned long long)rows, log.all);
        if (getenv("RIG_VERBOSE"))
            print_message("%d: %zu\n%s", i, n, log.all);
        dropped += log.lines;
        restored += n;
        rounds_with += n > 0;
        mx_cold_close(c, RIG_WAIT);
    }
    print_message("%d kills: %zu states restored in %zu rounds, %d log lines\n", rounds, restored,
                  rounds_with, dropped);
    assert_true(restored > 0);
    rig_remove(dir);
    forget_states();
    mtplx_model_free(m);
}

/* ---- Damaged ------------------------------------------------------------------------------ */

static void write_over(const char *path, const void *data, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0)
        return;
    if (write(fd, data, n) != (ssize_t)n)
        print_message("%s: not written\n", path);
    close(fd);
}

static void flip(const char *path, uint64_t *seed)
{
    size_t len;
    char *data = mx_file_read(path, (size_t)64 << 20, &len, NULL);
    if (!data || len == 0) {
        free(data);
        return;
    }
    size_t at =
        rig_next(seed) % 2 ? rig_next(seed) % len : rig_next(seed) % (len < 512 ? len : 512);
    data[at] = (char)(data[at] ^ (1 << (rig_next(seed) % 8)));
    write_over(path, data, len);
    free(data);
}

static void cut(const char *path, uint64_t *seed)
{
    struct stat sb;
    if (stat(path, &sb) == 0 && sb.st_size > 0 &&
        truncate(path, (off_t)(rig_next(seed) % (uint32_t)sb.st_size)) != 0)
        print_message("%s: not cut\n", path);
}

static void swap_files(const char *a, const char *b)
{
    char temp[800];
    snprintf(temp, sizeof temp, "%s.swap", a);
    if (rename(a, temp) == 0 && rename(b, a) == 0)
        rename(temp, b);
}

/* One piece of damage to the directory of a closed tier. */
static void damage(const char *dir, uint64_t *seed)
{
    size_t n;
    char **files = list_files(dir, 0, &n), manifest[700], other[800];
    if (n == 0)
        return;
    const char *a = files[rig_next(seed) % n], *b = files[rig_next(seed) % n];
    snprintf(manifest, sizeof manifest, "%s/manifest.db", dir);
    snprintf(other, sizeof other, "%s/objects/zz", dir);
    switch (rig_next(seed) % 12) {
    case 0:
    case 1: cut(a, seed); break;
    case 2:
    case 3:
    case 4: flip(a, seed); break;
    case 5:
    case 6: swap_files(a, b); break;
    case 7: unlink(a); break;
    case 8:
        unlink(a);
        if (rig_next(seed) % 2 ? mkdir(a, 0700) : symlink(b, a))
            print_message("%s: not replaced\n", a);
        break;
    case 9: flip(manifest, seed); break;
    case 10: cut(manifest, seed); break;
    default: write_over(other, "junk", 4); write_over(a, "", 0);
    }
    free_list(files, n);
}

static void copy_dir(const char *from, const char *to)
{
    size_t n, len;
    char **files = list_files(from, 0, &n), path[1500];
    snprintf(path, sizeof path, "%s/objects", to);
    mkdir(path, 0700);
    for (size_t i = 0; i <= n; i++) {
        const char *rest = i < n ? files[i] + strlen(from) : "/manifest.db";
        char source[1500];
        snprintf(source, sizeof source, "%s%s", from, rest);
        snprintf(path, sizeof path, "%s%s", to, rest);
        char *slash = strrchr(path, '/'),
             *data = mx_file_read(source, (size_t)64 << 20, &len, NULL);
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
        if (data)
            write_over(path, data, len);
        free(data);
    }
    free_list(files, n);
}

static void fill(mtplx_model *m, const char *dir)
{
    struct mx_cold *c = rig_open(m, dir, NULL);
    uint64_t seed = 5;
    for (int i = 0; i < (SLOW_BUILD ? 4 : 8); i++)
        turn(m, c, &seed);
    assert_true(mx_cold_flush(c, RIG_WAIT));
    mx_cold_close(c, RIG_WAIT);
    note_files(dir);
}

static void test_damaged(void **state)
{
    (void)state;
    int rounds = budget("MTPLX_DAMAGE_ROUNDS", 20, 3);
    uint64_t seed = first_seed() + 77;
    mtplx_model *m = tiny();
    char *good = rig_dir("good");
    fill(m, good);
    size_t whole = n_states, restored = 0, damaged = 0;
    int quiet = 0;
    assert_true(whole > 4);
    for (int i = 0; i < rounds; i++) {
        char *dir = rig_dir("damage");
        struct rig_log log = {0};
        copy_dir(good, dir);
        for (uint32_t k = 1 + rig_next(&seed) % 3; k > 0; k--)
            damage(dir, &seed);
        struct mx_cold *c = rig_open(m, dir, &log);
        size_t n = check_states(m, c);
        restored += n;
        damaged += n < whole;
        quiet += n < whole && log.lines == 0;
        /* What was found to be bad is gone: the second look finds nothing new. */
        assert_int_equal(check_states(m, c), n);
        assert_int_equal(snapshots_of(c), n);
        mx_cold_close(c, RIG_WAIT);
        rig_remove(dir);
    }
    print_message("%d times damaged: %zu of %zu states restored, %zu rounds with losses\n", rounds,
                  restored, whole * (size_t)rounds, damaged);
    assert_int_equal(quiet, 0);
    assert_true(restored > 0 && damaged > 0);
    rig_remove(good);
    forget_states();
    mtplx_model_free(m);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_damaged),
    };
    if (argc == 4 && strcmp(argv[1], "--child") == 0)
        return child(argv[2], strtoull(argv[3], NULL, 10));
    states = calloc(MAX_STATES, sizeof *states);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    free(states);
    return rc;
}
