/* Watching connections from the side. */
#include "serve/watch.h"

#include "base/clock.h"
#include "serve/exchange_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

struct slot {
    int fd;
    uint32_t generation; /* tells an event of a former user */
    enum mx_watch_phase phase;
    uint64_t since;
    struct mx_exchange *x; /* held */
};

struct mx_watch {
    struct mx_watch_times times;
    int epoll, bell; /* the bell wakes the thread: the first connection, or the end */
    pthread_t thread;
    pthread_mutex_t lock;
    bool stop;
    size_t max, used;
    struct slot *slots;
    int *spare; /* stack of free slots */
    size_t n_spare;
    struct live {
        struct mx_exchange *x;
        int slot;
    } * live; /* of the thread: exchanges of one tick */
};

enum { BELL = -1, EVENTS = 64 };

static uint64_t event_id(const struct mx_watch *w, int slot)
{
    return (uint64_t)w->slots[slot].generation << 32 | (uint32_t)slot;
}

static void ring(struct mx_watch *w)
{
    uint64_t one = 1;
    ssize_t n = write(w->bell, &one, sizeof one);
    (void)n; /* a full counter rings as well */
}

static void silence(struct mx_watch *w)
{
    uint64_t count;
    ssize_t n = read(w->bell, &count, sizeof count);
    (void)n; /* it is not blocking */
}

/* ---- Slots -------------------------------------------------------------------------------- */

int mx_watch_open(struct mx_watch *w, int fd)
{
    int slot = -1;
    pthread_mutex_lock(&w->lock);
    if (w->n_spare > 0) {
        slot = w->spare[--w->n_spare];
        struct slot *s = &w->slots[slot];
        s->fd = fd;
        s->generation++;
        s->phase = MX_WATCH_HEAD;
        s->since = mx_now_ns();
        if (w->used++ == 0)
            ring(w);
    }
    pthread_mutex_unlock(&w->lock);
    return slot;
}

/* Returns the exchange that the slot held. */
static struct mx_exchange *leave_run(struct mx_watch *w, struct slot *s)
{
    struct mx_exchange *x = s->x;
    if (s->phase == MX_WATCH_RUN)
        epoll_ctl(w->epoll, EPOLL_CTL_DEL, s->fd, NULL);
    s->x = NULL;
    return x;
}

void mx_watch_close(struct mx_watch *w, int slot)
{
    if (slot < 0)
        return;
    pthread_mutex_lock(&w->lock);
    struct slot *s = &w->slots[slot];
    struct mx_exchange *x = leave_run(w, s);
    s->phase = MX_WATCH_FREE;
    s->fd = -1;
    w->spare[w->n_spare++] = slot;
    w->used--;
    pthread_mutex_unlock(&w->lock);
    if (x)
        mx_exchange_drop(x);
}

void mx_watch_enter(struct mx_watch *w, int slot, enum mx_watch_phase phase, struct mx_exchange *x)
{
    if (slot < 0)
        return;
    pthread_mutex_lock(&w->lock);
    struct slot *s = &w->slots[slot];
    struct mx_exchange *old = leave_run(w, s);
    s->phase = phase;
    s->since = mx_now_ns();
    if (phase == MX_WATCH_RUN) {
        struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLONESHOT,
                                 .data.u64 = event_id(w, slot)};
        mx_exchange_hold(x);
        s->x = x;
        epoll_ctl(w->epoll, EPOLL_CTL_ADD, s->fd, &ev);
    }
    pthread_mutex_unlock(&w->lock);
    if (old)
        mx_exchange_drop(old);
}

/* ---- The thread --------------------------------------------------------------------------- */

static void hung_up(struct mx_watch *w, uint64_t id)
{
    struct mx_exchange *x = NULL;
    size_t slot = (uint32_t)id;
    pthread_mutex_lock(&w->lock);
    if (slot < w->max && event_id(w, (int)slot) == id && w->slots[slot].x) {
        x = w->slots[slot].x;
        mx_exchange_hold(x);
    }
    pthread_mutex_unlock(&w->lock);
    if (x) {
        mx_exchange_set_gone(x);
        mx_exchange_drop(x);
    }
}

/* When most places are taken, those who hold one without a request have to be quick. */
static bool overdue(const struct mx_watch *w, const struct slot *s, uint64_t now)
{
    uint64_t hurry = w->used > w->max / 4 * 3 ? 8 : 1;
    uint64_t limit = s->phase == MX_WATCH_HEAD   ? w->times.head_ns
                     : s->phase == MX_WATCH_BODY ? w->times.body_ns
                                                 : UINT64_MAX;
    limit /= hurry;
    /* A phase may have begun after the clock was read. */
    return s->phase != MX_WATCH_FREE && now > s->since && now - s->since > limit;
}

/* Shuts down what is overdue and collects, held, the exchanges that run. */
static size_t inspect(struct mx_watch *w, uint64_t now)
{
    size_t n = 0;
    pthread_mutex_lock(&w->lock);
    for (size_t i = 0; i < w->max; i++) {
        struct slot *s = &w->slots[i];
        if (s->x) {
            mx_exchange_hold(s->x);
            w->live[n++] = (struct live){s->x, (int)i};
        } else if (overdue(w, s, now)) {
            shutdown(s->fd, SHUT_RDWR);
            s->since = now;
        }
    }
    pthread_mutex_unlock(&w->lock);
    return n;
}

/* Ends the connection that an exchange is on, unless it has moved on. */
static void cut(struct mx_watch *w, const struct live *l)
{
    mx_exchange_set_gone(l->x);
    pthread_mutex_lock(&w->lock);
    if (w->slots[l->slot].x == l->x)
        shutdown(w->slots[l->slot].fd, SHUT_RDWR);
    pthread_mutex_unlock(&w->lock);
}

static uint64_t before(uint64_t now, uint64_t span)
{
    return now > span ? now - span : 0;
}

static void tick(struct mx_watch *w)
{
    uint64_t now = mx_now_ns();
    size_t n = inspect(w, now);
    for (size_t i = 0; i < n; i++) {
        struct live *l = &w->live[i];
        mx_exchange_keep_alive(l->x, before(now, w->times.keep_alive_ns));
        if (w->times.stall_ns && mx_exchange_stalled(l->x, before(now, w->times.stall_ns)))
            cut(w, l);
        mx_exchange_drop(l->x);
    }
}

/* Milliseconds to sleep: for ever while nobody is connected; -2 at the end. */
static int nap(struct mx_watch *w, uint64_t next)
{
    pthread_mutex_lock(&w->lock);
    bool stop = w->stop, idle = w->used == 0;
    pthread_mutex_unlock(&w->lock);
    if (stop)
        return -2;
    uint64_t now = mx_now_ns();
    return idle ? -1 : now >= next ? 0 : (int)((next - now) / 1000000 + 1);
}

static void *watch_thread(void *arg)
{
    struct mx_watch *w = arg;
    struct epoll_event events[EVENTS];
    uint64_t next = mx_now_ns() + w->times.tick_ns;
    for (int ms; (ms = nap(w, next)) != -2;) {
        int n = epoll_wait(w->epoll, events, EVENTS, ms);
        for (int i = 0; i < n; i++) {
            if (events[i].data.u64 == (uint64_t)BELL)
                silence(w);
            else
                hung_up(w, events[i].data.u64);
        }
        if (mx_now_ns() >= next) {
            tick(w);
            next = mx_now_ns() + w->times.tick_ns;
        }
    }
    return NULL;
}

/* ---- Life --------------------------------------------------------------------------------- */

static void release(struct mx_watch *w)
{
    if (w->epoll >= 0)
        close(w->epoll);
    if (w->bell >= 0)
        close(w->bell);
    free(w->slots);
    free(w->spare);
    free(w->live);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

static bool prepare(struct mx_watch *w, size_t max)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = (uint64_t)BELL};
    w->max = max;
    w->slots = calloc(max, sizeof *w->slots);
    w->spare = calloc(max, sizeof *w->spare);
    w->live = calloc(max, sizeof *w->live);
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    w->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!w->slots || !w->spare || !w->live || w->epoll < 0 || w->bell < 0)
        return false;
    for (size_t i = 0; i < max; i++)
        w->spare[w->n_spare++] = (int)(max - 1 - i);
    return epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->bell, &ev) == 0;
}

struct mx_watch *mx_watch_new(size_t max, const struct mx_watch_times *t, mtplx_error *err)
{
    struct mx_watch *w = calloc(1, sizeof *w);
    if (!w) {
        mx_error_nomem(err, "the connection table", sizeof *w);
        return NULL;
    }
    w->times = *t;
    pthread_mutex_init(&w->lock, NULL);
    if (prepare(w, max) && pthread_create(&w->thread, NULL, watch_thread, w) == 0)
        return w;
    mx_error(err, MTPLX_ERR_MEMORY, "cannot watch %zu connections: %s", max, strerror(errno));
    release(w);
    return NULL;
}

void mx_watch_free(struct mx_watch *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_mutex_unlock(&w->lock);
    ring(w);
    pthread_join(w->thread, NULL);
    for (size_t i = 0; i < w->max; i++)
        if (w->slots[i].x)
            mx_exchange_drop(w->slots[i].x);
    release(w);
}

void mx_watch_cut_all(struct mx_watch *w)
{
    for (size_t i = 0; i < w->max; i++) {
        pthread_mutex_lock(&w->lock);
        struct mx_exchange *x = w->slots[i].x;
        if (x)
            mx_exchange_hold(x);
        pthread_mutex_unlock(&w->lock);
        if (x) {
            mx_exchange_set_gone(x);
            mx_exchange_drop(x);
        }
    }
}

void mx_watch_cut_idle(struct mx_watch *w)
{
    pthread_mutex_lock(&w->lock);
    for (size_t i = 0; i < w->max; i++)
        if (w->slots[i].phase == MX_WATCH_HEAD)
            shutdown(w->slots[i].fd, SHUT_RDWR);
    pthread_mutex_unlock(&w->lock);
}
