/* The preparation threads. */
#include "serve/prepare.h"

#include <pthread.h>
#include <stdlib.h>

struct lane {
    struct mx_exchange **ring;
    size_t cap, head, n;
    pthread_cond_t filled;
};

struct mx_preparer {
    pthread_mutex_t lock;
    bool stop;
    struct lane lanes[MX_LANES];
    pthread_t *threads;
    int n_threads;
    mx_prepare_fn *fn;
    void *arg;
};

struct start {
    struct mx_preparer *p;
    struct lane *lane;
};

/* Waits for the next exchange of a lane; NULL at the end. */
static struct mx_exchange *next(struct mx_preparer *p, struct lane *l)
{
    struct mx_exchange *x = NULL;
    pthread_mutex_lock(&p->lock);
    while (!p->stop && l->n == 0)
        pthread_cond_wait(&l->filled, &p->lock);
    if (!p->stop) {
        x = l->ring[l->head];
        l->head = (l->head + 1) % l->cap;
        l->n--;
    }
    pthread_mutex_unlock(&p->lock);
    return x;
}

static void *run(void *arg)
{
    struct start s = *(struct start *)arg;
    struct mx_exchange *x;
    free(arg);
    while ((x = next(s.p, s.lane))) {
        s.p->fn(s.p->arg, x);
        mx_exchange_unref(x);
    }
    return NULL;
}

static bool start(struct mx_preparer *p, struct lane *l)
{
    struct start *s = malloc(sizeof *s);
    if (!s)
        return false;
    *s = (struct start){p, l};
    if (pthread_create(&p->threads[p->n_threads], NULL, run, s) != 0) {
        free(s);
        return false;
    }
    p->n_threads++;
    return true;
}

struct mx_preparer *mx_preparer_new(int threads, size_t queue, mx_prepare_fn *fn, void *arg,
                                    mtplx_error *err)
{
    struct mx_preparer *p = calloc(1, sizeof *p);
    bool ok = p != NULL;
    if (!p) {
        mx_error_nomem(err, "the preparation threads", sizeof *p);
        return NULL;
    }
    p->fn = fn;
    p->arg = arg;
    pthread_mutex_init(&p->lock, NULL);
    p->threads = calloc((size_t)threads + 1, sizeof *p->threads);
    ok = p->threads != NULL;
    for (int i = 0; i < MX_LANES; i++) {
        struct lane *l = &p->lanes[i];
        pthread_cond_init(&l->filled, NULL);
        l->cap = queue;
        l->ring = calloc(queue, sizeof(struct mx_exchange *));
        ok = ok && l->ring;
    }
    for (int i = 0; ok && i < threads; i++)
        ok = start(p, &p->lanes[MX_LANE_SLOW]);
    if (ok && start(p, &p->lanes[MX_LANE_QUICK]))
        return p;
    mx_error(err, MTPLX_ERR_MEMORY, "cannot start %d preparation threads", threads + 1);
    mx_preparer_free(p);
    return NULL;
}

void mx_preparer_free(struct mx_preparer *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    for (int i = 0; i < MX_LANES; i++)
        pthread_cond_broadcast(&p->lanes[i].filled);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    for (int i = 0; i < MX_LANES; i++) {
        struct lane *l = &p->lanes[i];
        for (; l->n > 0; l->n--, l->head = (l->head + 1) % l->cap)
            mx_exchange_unref(l->ring[l->head]);
        free(l->ring);
        pthread_cond_destroy(&l->filled);
    }
    free(p->threads);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

bool mx_preparer_submit(struct mx_preparer *p, enum mx_lane lane, struct mx_exchange *x)
{
    struct lane *l = &p->lanes[lane];
    pthread_mutex_lock(&p->lock);
    bool ok = !p->stop && l->n < l->cap;
    if (ok) {
        l->ring[(l->head + l->n++) % l->cap] = x;
        pthread_cond_signal(&l->filled);
    }
    pthread_mutex_unlock(&p->lock);
    return ok;
}
