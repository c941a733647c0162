/* Kept sequences: finished ones that a prompt may continue.
 *
 * Invariants
 *   K1  A kept sequence is continued only by a prompt that has all its tokens as a strict prefix,
 *       so that the continuation has the tokens of a cold run (row invariance).
 *   K2  Only its owner may continue it: whether a prompt was read before cannot be told by others
 *       from the time it takes.
 *   K3  The store is the first thing to go when memory is wanted, the one idle longest first. */
#include "base/clock.h"
#include "engine/engine_int.h"

#include <stdlib.h>
#include <string.h>

/* Less is not worth a place. */
#define LEAST_TOKENS 16
/* Prompts that share less than this (a template's opening) do not count as going on otherwise. */
#define LEAST_COMMON 32

static size_t common_prefix(const struct mx_kept *k, const struct mx_job *j)
{
    const int32_t *ids = mtplx_seq_tokens(k->seq);
    size_t n = mtplx_seq_length(k->seq), i = 0;
    while (i < n && i < j->opt.n_prompt && ids[i] == j->opt.prompt[i])
        i++;
    return i;
}

static void remove_at(struct mx_engine *e, int i)
{
    free(e->kept[i].owner);
    e->n_kept--;
    memmove(&e->kept[i], &e->kept[i + 1], (size_t)(e->n_kept - i) * sizeof *e->kept);
}

/* Index of the longest one that the prompt continues, or -1; the longest common start in any. */
static int find(const struct mx_engine *e, const struct mx_job *j, size_t *common)
{
    int best = -1;
    size_t longest = 0;
    *common = 0;
    for (int i = 0; i < e->n_kept; i++) {
        const struct mx_kept *k = &e->kept[i];
        if (strcmp(k->owner, j->opt.owner) != 0)
            continue;
        size_t n = common_prefix(k, j), len = mtplx_seq_length(k->seq);
        *common = n > *common ? n : *common;
        if (n == len && len < j->opt.n_prompt && len > longest) {
            best = i;
            longest = len;
        }
    }
    return best;
}

static bool bypassed(const struct mx_job *j)
{
    return j->opt.no_reuse || j->opt.kind != MX_JOB_GENERATE || j->opt.gen.prompt_logprobs;
}

void mx_reuse_take(struct mx_engine *e, struct mx_job *j)
{
    size_t common;
    if (e->reuse == 0 || bypassed(j)) {
        j->miss = e->reuse == 0 ? MX_MISS_DISABLED : MX_MISS_BYPASS;
        return;
    }
    int i = find(e, j, &common);
    if (i < 0) {
        bool like = common >= LEAST_COMMON || common * 4 >= j->opt.n_prompt;
        j->miss = common && like ? MX_MISS_PREFIX_DIVERGENCE : MX_MISS_NEW_SESSION;
        return;
    }
    j->miss = MX_MISS_NONE;
    j->answers[0].seq = e->kept[i].seq;
    j->hits = e->kept[i].hits + 1;
    j->cached = mtplx_seq_length(e->kept[i].seq);
    remove_at(e, i);
}

uint64_t mx_reuse_bytes(const struct mx_engine *e)
{
    uint64_t sum = 0;
    for (int i = 0; i < e->n_kept; i++)
        sum += e->kept[i].bytes;
    return sum;
}

void mx_reuse_drop_oldest(struct mx_engine *e, struct mx_trash *t)
{
    int oldest = 0;
    for (int i = 1; i < e->n_kept; i++)
        if (e->kept[i].used_ns < e->kept[oldest].used_ns)
            oldest = i;
    t->seqs[t->n++] = e->kept[oldest].seq;
    remove_at(e, oldest);
}

void mx_trash_empty(struct mx_trash *t)
{
    for (int i = 0; i < t->n; i++)
        mtplx_seq_free(t->seqs[i]);
    t->n = 0;
}

static bool worth(const struct mx_engine *e, const struct mx_answer *a)
{
    return e->reuse > 0 && a->index == 0 && !bypassed(a->job) && a->error.status == MTPLX_OK &&
           mtplx_seq_length(a->seq) >= LEAST_TOKENS;
}

/* Puts the sequence into the store; false when it has no room. The lock is held. */
static bool store(struct mx_engine *e, struct mx_answer *a, struct mx_trash *t)
{
    uint64_t now = mx_now_ns(), bytes = mx_seq_bytes(a->seq);
    char *owner = strdup(a->job->opt.owner);
    if (!owner || e->stopping || e->reserved + bytes > e->memory_limit) {
        free(owner);
        return false;
    }
    while (e->n_kept &&
           (e->n_kept >= e->reuse || e->reserved + bytes + mx_reuse_bytes(e) > e->memory_limit))
        mx_reuse_drop_oldest(e, t);
    e->kept[e->n_kept++] = (struct mx_kept){.seq = a->seq,
                                            .owner = owner,
                                            .id = e->next_kept++,
                                            .made_ns = now,
                                            .used_ns = now,
                                            .bytes = bytes,
                                            .hits = a->job->hits};
    return true;
}

void mx_reuse_keep(struct mx_engine *e, struct mx_answer *a)
{
    struct mx_trash trash = {.n = 0};
    struct mx_job *j = a->job;
    pthread_mutex_lock(&e->lock);
    uint64_t share = j->active ? j->reserved / (uint64_t)(j->open + 1) : 0;
    j->reserved -= share;
    e->reserved -= share;
    if (a->seq && worth(e, a) && store(e, a, &trash))
        a->seq = NULL;
    pthread_mutex_unlock(&e->lock);
    mx_trash_empty(&trash);
    mtplx_seq_free(a->seq);
    a->seq = NULL;
}

int mx_engine_clear_reuse(struct mx_engine *e)
{
    struct mx_trash trash = {.n = 0};
    pthread_mutex_lock(&e->lock);
    while (e->n_kept)
        mx_reuse_drop_oldest(e, &trash);
    pthread_mutex_unlock(&e->lock);
    int n = trash.n;
    mx_trash_empty(&trash);
    return n;
}

bool mx_engine_drop_kept(struct mx_engine *e, uint64_t id)
{
    mtplx_seq *seq = NULL;
    pthread_mutex_lock(&e->lock);
    for (int i = 0; i < e->n_kept && !seq; i++)
        if (e->kept[i].id == id) {
            seq = e->kept[i].seq;
            remove_at(e, i);
        }
    pthread_mutex_unlock(&e->lock);
    mtplx_seq_free(seq);
    return seq != NULL;
}
