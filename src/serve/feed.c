/* The live feed of /v1/mtplx/metrics/stream: one thread makes one event every 200 ms and writes it
 * to all subscribers, so a dashboard left open costs the same however many look at it.
 *
 * A subscriber that does not read misses events while its backlog is high, and is ended when that
 * lasts half a minute. Order of locks: the metrics', then the feed's; the thread makes its events
 * with neither held. */
#include "serve/metrics_int.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FEED_MAX 32
#define FEED_TICK_NS 200000000L
#define FEED_PATIENCE 150 /* ticks that a subscriber may miss in a row */

struct subscriber {
    struct mx_exchange *x;
    int missed;
};

struct mx_feed {
    struct mx_app *app;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop;
    int n;
    struct subscriber subs[FEED_MAX];
};

/* Ends and forgets subscriber i. */
static void drop(struct mx_feed *f, int i)
{
    mx_exchange_end(f->subs[i].x);
    mx_exchange_unref(f->subs[i].x);
    f->subs[i] = f->subs[--f->n];
}

/* False when the subscriber is to be dropped. */
static bool deliver(struct subscriber *s, const char *text, size_t n)
{
    if (mx_exchange_gone(s->x))
        return false;
    if (mx_exchange_backlog(s->x) > MX_STREAM_HIGH)
        return ++s->missed < FEED_PATIENCE;
    s->missed = 0;
    return mx_exchange_event(s->x, "metrics", text, n);
}

/* Called and returns with the lock held. */
static void tick(struct mx_feed *f)
{
    pthread_mutex_unlock(&f->lock);
    json_t *event = mx_status_tick(f->app);
    char *text = event ? json_dumps(event, JSON_COMPACT) : NULL;
    json_decref(event);
    pthread_mutex_lock(&f->lock);
    size_t n = text ? strlen(text) : 0;
    for (int i = f->n - 1; text && i >= 0; i--)
        if (!deliver(&f->subs[i], text, n))
            drop(f, i);
    free(text);
}

static void wait_tick(struct mx_feed *f)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += FEED_TICK_NS;
    if (t.tv_nsec >= 1000000000L) {
        t.tv_nsec -= 1000000000L;
        t.tv_sec++;
    }
    while (!f->stop && pthread_cond_timedwait(&f->wake, &f->lock, &t) == 0)
        ;
}

static void *run(void *arg)
{
    struct mx_feed *f = arg;
    pthread_mutex_lock(&f->lock);
    while (!f->stop) {
        if (f->n == 0) {
            pthread_cond_wait(&f->wake, &f->lock);
            continue;
        }
        tick(f);
        wait_tick(f);
    }
    while (f->n > 0)
        drop(f, f->n - 1);
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

static bool init_wake(pthread_cond_t *wake)
{
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr) != 0)
        return false;
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    bool ok = pthread_cond_init(wake, &attr) == 0;
    pthread_condattr_destroy(&attr);
    return ok;
}

struct mx_feed *mx_feed_new(struct mx_app *app)
{
    struct mx_feed *f = calloc(1, sizeof *f);
    if (!f)
        return NULL;
    f->app = app;
    pthread_mutex_init(&f->lock, NULL);
    if (init_wake(&f->wake)) {
        if (pthread_create(&f->thread, NULL, run, f) == 0)
            return f;
        pthread_cond_destroy(&f->wake);
    }
    pthread_mutex_destroy(&f->lock);
    free(f);
    return NULL;
}

void mx_feed_free(struct mx_feed *f)
{
    if (!f)
        return;
    pthread_mutex_lock(&f->lock);
    f->stop = true;
    pthread_cond_signal(&f->wake);
    pthread_mutex_unlock(&f->lock);
    pthread_join(f->thread, NULL);
    pthread_cond_destroy(&f->wake);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

bool mx_feed_add(struct mx_feed *f, struct mx_exchange *x, struct mx_api_error *e)
{
    pthread_mutex_lock(&f->lock);
    for (int i = f->n - 1; i >= 0; i--)
        if (mx_exchange_gone(f->subs[i].x))
            drop(f, i);
    bool room = f->n < FEED_MAX;
    if (room) {
        mx_exchange_begin(x, 200, "text/event-stream");
        f->subs[f->n++] = (struct subscriber){.x = mx_exchange_ref(x)};
        pthread_cond_signal(&f->wake);
    }
    pthread_mutex_unlock(&f->lock);
    if (room)
        return true;
    mx_api_fail(e, 503, NULL, "%d clients follow the metrics already: close one of them", FEED_MAX);
    e->retry_after = 5;
    return false;
}

int mx_feed_count(struct mx_feed *f)
{
    pthread_mutex_lock(&f->lock);
    int n = f->n;
    pthread_mutex_unlock(&f->lock);
    return n;
}
