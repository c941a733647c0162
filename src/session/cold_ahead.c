/* Reading ahead: two threads fetch whole objects that will be asked for.
 *
 * Small files read one after the other leave a disk idle between them, and pages of the page cache
 * cost as much time as the disk does. So objects that are not cached are read past the cache
 * (O_DIRECT), two at a time, into memory from which mx_cold_read() checks and copies them.
 *
 * A place is WANTED, then READING, then READY until it is taken; what nobody takes is thrown away
 * when the place is needed, or after a while. */
#include "session/cold_ahead.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define PLACES 8
#define THREADS 2
#define MOST ((size_t)8 << 20) /* of a file; larger ones are left to the kernel */
#define PAGE ((size_t)4096)
#define STALE_NS 5000000000ull

enum place_state { PLACE_FREE = 0, PLACE_WANTED, PLACE_READING, PLACE_READY };

struct place {
    enum place_state state;
    char name[MX_COLD_NAME];
    uint8_t *data;
    size_t bytes;
    uint64_t since; /* when it was asked for */
};

struct mx_cold_ahead {
    struct mx_cold_dir *dir;
    pthread_mutex_t mu;
    pthread_cond_t work, ready;
    pthread_t threads[THREADS];
    int n_threads;
    bool stop;
    struct place places[PLACES];
};

/* ---- Files -------------------------------------------------------------------------------- */

/* Whether the page cache has a file, going by its last byte. */
static bool is_cached(int fd, off_t size)
{
#ifdef RWF_NOWAIT
    uint8_t byte;
    struct iovec v = {&byte, 1};
    return size > 0 && preadv2(fd, &v, 1, size - 1, RWF_NOWAIT) == 1;
#else
    (void)fd;
    (void)size;
    return true;
#endif
}

static bool read_whole(int fd, uint8_t *to, size_t room, size_t size)
{
    size_t done = 0;
    while (done < size) {
        ssize_t n = pread(fd, to + done, room - done, (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        done += (size_t)n;
        if (done < size && done % PAGE) /* the file shrank meanwhile */
            return false;
    }
    return true;
}

/* The bytes of a file, to be freed; NULL: whoever wants them must read them. */
static uint8_t *fetch(struct mx_cold_dir *dir, const char *name, size_t *bytes)
{
    struct stat st;
    void *data = NULL;
    int fd = mx_cold_dir_open_object(dir, name);
    if (fd < 0)
        return NULL;
    if (fstat(fd, &st) == 0 && st.st_size > 0 && (uint64_t)st.st_size <= MOST) {
        size_t size = (size_t)st.st_size;
        size_t room = (size + PAGE - 1) / PAGE * PAGE;
        bool ok = posix_memalign(&data, PAGE, room) == 0;
#ifdef O_DIRECT
        if (ok && !is_cached(fd, st.st_size) && fcntl(fd, F_SETFL, O_DIRECT) == 0)
            ok = read_whole(fd, data, room, size);
        else
            ok = false; /* the page cache gives it without our help */
#else
        ok = false;
#endif
        if (!ok) {
            free(data);
            data = NULL;
        }
        *bytes = size;
    } else {
        posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED);
    }
    close(fd);
    return data;
}

/* ---- Threads ------------------------------------------------------------------------------ */

static struct place *oldest_wanted(struct mx_cold_ahead *a)
{
    struct place *best = NULL;
    for (int i = 0; i < PLACES; i++)
        if (a->places[i].state == PLACE_WANTED && (!best || a->places[i].since < best->since))
            best = &a->places[i];
    return best;
}

static void *reader(void *arg)
{
    struct mx_cold_ahead *a = arg;
    pthread_mutex_lock(&a->mu);
    while (!a->stop) {
        struct place *p = oldest_wanted(a);
        if (!p) {
            pthread_cond_wait(&a->work, &a->mu);
            continue;
        }
        p->state = PLACE_READING;
        pthread_mutex_unlock(&a->mu);
        size_t bytes = 0;
        uint8_t *data = fetch(a->dir, p->name, &bytes);
        pthread_mutex_lock(&a->mu);
        p->data = data;
        p->bytes = bytes;
        p->state = data ? PLACE_READY : PLACE_FREE;
        pthread_cond_broadcast(&a->ready);
    }
    pthread_mutex_unlock(&a->mu);
    return NULL;
}

struct mx_cold_ahead *mx_cold_ahead_new(struct mx_cold_dir *dir)
{
    struct mx_cold_ahead *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->dir = dir;
    pthread_mutex_init(&a->mu, NULL);
    pthread_cond_init(&a->work, NULL);
    pthread_cond_init(&a->ready, NULL);
    while (a->n_threads < THREADS &&
           pthread_create(&a->threads[a->n_threads], NULL, reader, a) == 0)
        a->n_threads++;
    return a;
}

void mx_cold_ahead_free(struct mx_cold_ahead *a)
{
    if (!a)
        return;
    pthread_mutex_lock(&a->mu);
    a->stop = true;
    pthread_cond_broadcast(&a->work);
    pthread_mutex_unlock(&a->mu);
    for (int i = 0; i < a->n_threads; i++)
        pthread_join(a->threads[i], NULL);
    for (int i = 0; i < PLACES; i++)
        free(a->places[i].data);
    pthread_mutex_destroy(&a->mu);
    pthread_cond_destroy(&a->work);
    pthread_cond_destroy(&a->ready);
    free(a);
}

/* ---- Places ------------------------------------------------------------------------------- */

static void empty(struct place *p)
{
    free(p->data);
    *p = (struct place){.state = PLACE_FREE};
}

static struct place *place_of(struct mx_cold_ahead *a, const char *name)
{
    for (int i = 0; i < PLACES; i++)
        if (a->places[i].state != PLACE_FREE && strcmp(a->places[i].name, name) == 0)
            return &a->places[i];
    return NULL;
}

/* A free place, or one that nobody came for. */
static struct place *room_for(struct mx_cold_ahead *a, uint64_t now)
{
    for (int i = 0; i < PLACES; i++) {
        struct place *p = &a->places[i];
        if (p->state == PLACE_READY && now - p->since > STALE_NS)
            empty(p);
        if (p->state == PLACE_FREE)
            return p;
    }
    return NULL;
}

void mx_cold_ahead_ask(struct mx_cold_ahead *a, const char *name)
{
    pthread_mutex_lock(&a->mu);
    uint64_t now = mx_now_ns();
    struct place *p = a->n_threads && !place_of(a, name) ? room_for(a, now) : NULL;
    if (p) {
        memcpy(p->name, name, strnlen(name, sizeof p->name - 1) + 1);
        p->since = now;
        p->state = PLACE_WANTED;
        pthread_cond_signal(&a->work);
    }
    pthread_mutex_unlock(&a->mu);
}

uint8_t *mx_cold_ahead_take(struct mx_cold_ahead *a, const char *name, size_t *bytes)
{
    uint8_t *data = NULL;
    pthread_mutex_lock(&a->mu);
    struct place *p;
    while ((p = place_of(a, name)) && p->state == PLACE_READING)
        pthread_cond_wait(&a->ready, &a->mu);
    if (p) { /* one that is only WANTED is read sooner by who needs it now */
        data = p->data;
        *bytes = p->bytes;
        p->data = NULL;
        empty(p);
    }
    pthread_mutex_unlock(&a->mu);
    return data;
}

void mx_cold_ahead_tidy(struct mx_cold_ahead *a)
{
    pthread_mutex_lock(&a->mu);
    uint64_t now = mx_now_ns();
    for (int i = 0; i < PLACES; i++)
        if (a->places[i].state == PLACE_READY && now - a->places[i].since > STALE_NS)
            empty(&a->places[i]);
    pthread_mutex_unlock(&a->mu);
}
