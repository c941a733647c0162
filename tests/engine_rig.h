/* Shared by tests of the engine: a sink that records everything, prompts, and the answer that a job
 * would have got alone. */
#ifndef TESTS_ENGINE_RIG_H
#define TESTS_ENGINE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "mtplx.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RIG_TOKENS = 512, RIG_DIMS = 2048 };

struct rig_choice {
    int32_t ids[RIG_TOKENS];
    size_t n;
    int dones;
    bool had_gen;
    struct mx_job_result result;
};

/* One job as its sink sees it. Zero-initialise with rig_probe(). */
struct rig_probe {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int choices, open;
    struct rig_choice choice[MX_MAX_CHOICES];
    size_t stop_at; /* the sink has enough after so many tokens; 0: never */
    size_t keep;    /* and keeps so many */
    atomic_bool blocked;
    size_t last_read, progress_calls;
    uint64_t first_order; /* place in *order at the first token */
    atomic_uint_least64_t *order;
    float embedding[RIG_DIMS];
    size_t dims;
    bool wrong; /* events out of order */
};

static inline void rig_probe(struct rig_probe *p, int choices)
{
    memset(p, 0, sizeof *p);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    p->choices = p->open = choices;
}

static inline size_t rig_tokens(void *arg, int choice, const mtplx_gen *gen, const int32_t *ids,
                                size_t from, size_t n)
{
    struct rig_probe *p = arg;
    struct rig_choice *c = &p->choice[choice];
    size_t all;
    const int32_t *gen_ids = mtplx_gen_tokens(gen, &all);
    pthread_mutex_lock(&p->lock);
    if (from != c->n || c->dones || all < from + n || gen_ids + from != ids)
        p->wrong = true;
    for (size_t i = 0; i < n && c->n < RIG_TOKENS; i++)
        c->ids[c->n++] = ids[i];
    if (p->order && !p->first_order)
        p->first_order = atomic_fetch_add(p->order, 1) + 1;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return p->stop_at && from + n >= p->stop_at ? p->keep : SIZE_MAX;
}

static inline void rig_done(void *arg, int choice, const mtplx_gen *gen,
                            const struct mx_job_result *r)
{
    struct rig_probe *p = arg;
    struct rig_choice *c = &p->choice[choice];
    pthread_mutex_lock(&p->lock);
    c->dones++;
    c->had_gen = gen != NULL;
    c->result = *r;
    if (r->embedding && r->dims <= RIG_DIMS) {
        memcpy(p->embedding, r->embedding, r->dims * sizeof *p->embedding);
        p->dims = r->dims;
    }
    p->open--;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static inline bool rig_blocked(void *arg, int choice)
{
    (void)choice;
    return atomic_load(&((struct rig_probe *)arg)->blocked);
}

static inline void rig_progress(void *arg, size_t read, size_t of)
{
    struct rig_probe *p = arg;
    pthread_mutex_lock(&p->lock);
    if (read < p->last_read || read > of)
        p->wrong = true;
    p->last_read = read;
    p->progress_calls++;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static const struct mx_job_sink rig_sink = {rig_tokens, rig_done, rig_blocked, rig_progress};

/* Until `choice` has at least n tokens (SIZE_MAX: until all choices are done). */
static inline void rig_wait(struct rig_probe *p, int choice, size_t n)
{
    struct timespec until;
    int rc = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 120;
    pthread_mutex_lock(&p->lock);
    while (rc == 0 && p->open && (n == SIZE_MAX || p->choice[choice].n < n))
        rc = pthread_cond_timedwait(&p->changed, &p->lock, &until);
    pthread_mutex_unlock(&p->lock);
    if (rc)
        fail_msg("an answer did not come within two minutes");
}

static inline void rig_wait_done(struct rig_probe *p)
{
    rig_wait(p, 0, SIZE_MAX);
    assert_false(p->wrong);
    for (int i = 0; i < p->choices; i++)
        assert_int_equal(p->choice[i].dones, 1);
}

static inline uint32_t rig_noise(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* n tokens that follow from the seed: noise, or a loop that is easy to guess. */
static inline void rig_prompt(const mtplx_model *m, uint32_t seed, int32_t *out, size_t n)
{
    uint32_t s = seed * 2654435761u + 1;
    size_t period = seed % 3 ? n : 5;
    uint32_t vocab = (uint32_t)mtplx_model_get_info(m)->vocab_size;
    for (size_t i = 0; i < n; i++)
        out[i] = i < period ? (int32_t)(rig_noise(&s) % vocab) : out[i - period];
}

/* The answer to a prompt alone, by the bare loop. Returns how many tokens. */
static inline size_t rig_alone(mtplx_model *m, const int32_t *prompt, size_t n,
                               const mtplx_gen_options *o, int32_t *out)
{
    mtplx_error err = {0};
    size_t count;
    mtplx_seq *s = mtplx_seq_new(m, &err);
    mtplx_gen *g = s ? mtplx_gen_new(s, prompt, n, o, &err) : NULL;
    if (!g)
        fail_msg("reference: %s", err.message);
    while (mtplx_gen_finish(g) == MTPLX_FINISH_NONE)
        if (mtplx_gen_step(g, &err) != MTPLX_OK)
            fail_msg("reference: %s", err.message);
    const int32_t *ids = mtplx_gen_tokens(g, &count);
    assert_true(count <= RIG_TOKENS);
    memcpy(out, ids, count * sizeof *out);
    mtplx_gen_free(g);
    mtplx_seq_free(s);
    return count;
}

static inline struct mx_engine *rig_engine(const struct mx_engine_options *o)
{
    mtplx_error err = {0};
    struct mx_engine *e = mx_engine_new(o, &err);
    if (!e)
        fail_msg("engine: %s", err.message);
    return e;
}

/* Submits with the recording sink; fails the test when it is refused. */
static inline uint64_t rig_submit(struct mx_engine *e, struct mx_job_options *o,
                                  struct rig_probe *p)
{
    mtplx_error err = {0};
    o->sink = &rig_sink;
    o->arg = p;
    uint64_t id = mx_engine_submit(e, o, &err);
    if (!id)
        fail_msg("submit: %s", err.message);
    return id;
}

static inline void rig_equal(const struct rig_choice *c, const int32_t *want, size_t n)
{
    assert_int_equal(c->n, n);
    assert_memory_equal(c->ids, want, n * sizeof *want);
}

#endif
