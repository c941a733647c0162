/* Shared by the tests of states on disk: conversations of the smallest fixture, their answers from
 * scratch and from a snapshot, and a cold tier in a directory of its own. */
#ifndef TESTS_COLD_RIG_H
#define TESTS_COLD_RIG_H

#include "golden/golden.h"

#include "base/clock.h"
#include "runtime/snapshot.h"
#include "session/cold_state.h"
#include "session/state_parts.h"

#include <dirent.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#define TINY "tests/golden/qwen3_5_text"
#define TINY_VOCAB 320

enum { RIG_ANSWER = 12, RIG_MAX = 1200, RIG_TALKS = 5 };

/* ---- Conversations ------------------------------------------------------------------------ */

static inline uint32_t rig_next(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33);
}

/* Tokens of conversation `talk`; all start with the same 200. */
static inline void rig_tokens(int talk, int32_t *out, size_t n)
{
    uint64_t s = 17;
    for (size_t i = 0; i < n; i++) {
        if (i == 200)
            s = 1000 + (uint64_t)talk;
        out[i] = 3 + (int32_t)(rig_next(&s) % (TINY_VOCAB - 3));
    }
}

static inline mtplx_gen_options rig_options(bool sampled)
{
    mtplx_gen_options o = {.max_tokens = RIG_ANSWER, .depth = 3, .ignore_stop = true};
    if (sampled)
        o.sampling = (mtplx_sampling){
            .temperature = 0.9, .top_p = 0.95, .repetition_penalty = 1, .seed = 11};
    return o;
}

/* The token that a test goes on with after a state. */
static inline int32_t rig_follow(const int32_t *tokens, size_t n)
{
    return 3 + (tokens[n - 1] * 7 + (int32_t)n) % (TINY_VOCAB - 3);
}

/* Runs an answer to the end; the sequence then holds all but its last token. */
static inline void rig_run(mtplx_seq *s, const int32_t *prompt, size_t n,
                           const mtplx_gen_options *o, int32_t *out)
{
    mtplx_error err = {0};
    size_t k = 0;
    mtplx_gen *g = mtplx_gen_new(s, prompt, n, o, &err);
    while (g && mtplx_gen_finish(g) == MTPLX_FINISH_NONE)
        if (mtplx_gen_step(g, &err) != MTPLX_OK)
            break;
    if (!g || err.status != MTPLX_OK)
        fail_msg("generating: %s", err.message);
    const int32_t *ids = mtplx_gen_tokens(g, &k);
    if (out)
        memcpy(out, ids, k * sizeof *ids);
    mtplx_gen_free(g);
}

/* What follows tokens[0..n) and rig_follow(), read from scratch. */
static inline void rig_cold(mtplx_model *m, const int32_t *tokens, size_t n, bool sampled,
                            int32_t out[RIG_ANSWER])
{
    mtplx_gen_options o = rig_options(sampled);
    int32_t *prompt = malloc((n + 1) * sizeof *prompt);
    memcpy(prompt, tokens, n * sizeof *prompt);
    prompt[n] = rig_follow(tokens, n);
    mtplx_seq *s = mtplx_seq_new(m, NULL);
    rig_run(s, prompt, n + 1, &o, out);
    mtplx_seq_free(s);
    free(prompt);
}

/* The same from a snapshot. */
static inline void rig_warm(const mtplx_snapshot *snap, bool sampled, int32_t out[RIG_ANSWER])
{
    mtplx_gen_options o = rig_options(sampled);
    int32_t next = rig_follow(snap->tokens, snap->n);
    mtplx_seq *s = mtplx_seq_restore(snap, NULL);
    if (!s)
        fail_msg("a snapshot could not be restored");
    rig_run(s, &next, 1, &o, out);
    mtplx_seq_free(s);
}

static inline void rig_same_answers(mtplx_model *m, const mtplx_snapshot *snap)
{
    int32_t want[RIG_ANSWER], got[RIG_ANSWER];
    for (int sampled = 0; sampled < 2; sampled++) {
        rig_cold(m, snap->tokens, snap->n, sampled, want);
        rig_warm(snap, sampled, got);
        assert_memory_equal(got, want, sizeof want);
    }
}

/* A snapshot after tokens[0..n): greedy decoding leaves the sequence there when its answer is of
 * one token. */
static inline mtplx_snapshot *rig_snapshot(mtplx_model *m, const int32_t *tokens, size_t n)
{
    mtplx_gen_options o = {.max_tokens = 1, .depth = 3, .ignore_stop = true};
    mtplx_seq *s = mtplx_seq_new(m, NULL);
    rig_run(s, tokens, n, &o, NULL);
    mtplx_snapshot *snap = mtplx_seq_snapshot(s, NULL);
    mtplx_seq_free(s);
    if (!snap || snap->n != n)
        fail_msg("no snapshot of %zu tokens", n);
    return snap;
}

/* ---- A directory and its tier ------------------------------------------------------------- */

struct rig_log {
    int lines;
    char last[300], all[4000];
};

static inline void rig_log_line(void *arg, const char *line)
{
    struct rig_log *log = arg;
    log->lines++;
    snprintf(log->last, sizeof log->last, "%s", line);
    size_t used = strlen(log->all);
    snprintf(log->all + used, sizeof log->all - used, "%s\n", line);
}

static inline char *rig_dir(const char *name)
{
    const char *base = getenv("TMPDIR");
    char *path = malloc(500);
    snprintf(path, 500, "%s/mtplx-%s-XXXXXX", base && *base ? base : "/tmp", name);
    if (!mkdtemp(path))
        fail_msg("%s: cannot be made", path);
    return path;
}

static inline int rig_remove_one(const char *path, const struct stat *sb, int type, struct FTW *f)
{
    (void)sb, (void)type, (void)f;
    remove(path);
    return 0;
}

static inline void rig_empty(const char *path)
{
    nftw(path, rig_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static inline void rig_remove(char *path)
{
    rig_empty(path);
    free(path);
}

static inline struct mx_cold_options rig_cold_options(const mtplx_model *m, const char *dir,
                                                      struct rig_log *log)
{
    struct mx_cold_options o = {.dir = dir,
                                .mode = MX_COLD_ON,
                                .hourly_bytes = UINT64_MAX,
                                .floor_bytes = 1,
                                .min_tokens = 1,
                                .log = log ? rig_log_line : NULL,
                                .log_arg = log};
    mx_cold_identify(m, &o.identity);
    return o;
}

static inline struct mx_cold *rig_open(const mtplx_model *m, const char *dir, struct rig_log *log)
{
    struct mx_cold_options o = rig_cold_options(m, dir, log);
    mtplx_error err = {0};
    struct mx_cold *c = mx_cold_open(&o, &err);
    if (!c)
        fail_msg("%s: %s", dir, err.message);
    return c;
}

#define RIG_WAIT ((uint64_t)20000000000)

static inline bool rig_put(struct mx_cold *c, mtplx_snapshot *s)
{
    return mx_cold_put_snapshot(c, s, 4, "scope", "session");
}

#endif
