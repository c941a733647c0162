/* Reading ahead: two threads fetch whole objects that will be asked for.
 *
 * Small files read one after the other leave a disk idle between them, and pages of the page cache
 * cost as much time as the disk does. So objects that are not cached are read past the cache
 * (O_DIRECT), two at a time, into memory from which mx_cold_read() checks and copies them.
 *
 * A place is WANTED, then READING, then READY, then TAKEN while its bytes are used. What nobody
 * takes is thrown away after a while. Free places keep their memory for the next object, since new
 * pages cost as much as reading them does; it goes when nothing was read for a while. */
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

enum place_state { PLACE_FREE = 0, PLACE_WANTED, PLACE_READING, PLACE_READY, PLACE_TAKEN };

struct place {
    enum place_state state;
    char name[MX_COLD_NAME];
    uint8_t *data;
    size_t room, bytes;
    uint64_t since; /* when it was asked for, or became free */
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

/* Memory for a file of `size` bytes and what is read behind its end. */
static bool make_room(struct place *p, size_t size)
{
    size_t room = (size + PAGE - 1) / PAGE * PAGE;
    if (p->room >= room)
        return true;
    void *data = NULL;
    free(p->data);
    p->data = NULL;
    p->room = 0;
    if (posix_memalign(&data, PAGE, room) != 0)
        return false;
    p->data = data;
    p->room = room;
    return true;
}

/* Reads the file of a place. False: whoever wants it must read it, which is as well when the page
 * cache has it. */
static bool fetch(struct mx_cold_dir *dir, struct place *p)
{
    struct stat st;
    bool ok = false;
    int fd = mx_cold_dir_open_object(dir, p->name);
    if (fd < 0)
        return false;
    if (fstat(fd, &st) == 0 && st.st_size > 0 && (uint64_t)st.st_size <= MOST) {
#ifdef O_DIRECT
        p->bytes = (size_t)st.st_size;
        ok = !is_cached(fd, st.st_size) && make_room(p, p->bytes) &&
             fcntl(fd, F_SETFL, O_DIRECT) == 0 && read_whole(fd, p->data, p->room, p->bytes);
#endif
    } else {
        posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED);
    }
    close(fd);
    return ok;
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
        bool ok = fetch(a->dir, p);
        pthread_mutex_lock(&a->mu);
        p->state = ok ? PLACE_READY : PLACE_FREE;
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

static struct place *place_of(struct mx_cold_ahead *a, const char *name)
{
    for (int i = 0; i < PLACES; i++)
        if (a->places[i].state != PLACE_FREE && strcmp(a->places[i].name, name) == 0)
            return &a->places[i];
    return NULL;
}

/* A free place, if possible with memory. */
static struct place *free_place(struct mx_cold_ahead *a)
{
    struct place *best = NULL;
    for (int i = 0; i < PLACES; i++)
        if (a->places[i].state == PLACE_FREE && (!best || a->places[i].room > best->room))
            best = &a->places[i];
    return best;
}

/* With the lock. */
static void drop_stale(struct mx_cold_ahead *a, uint64_t now)
{
    for (int i = 0; i < PLACES; i++) {
        struct place *p = &a->places[i];
        if ((p->state != PLACE_READY && p->state != PLACE_FREE) || now - p->since < STALE_NS)
            continue;
        free(p->data);
        *p = (struct place){.state = PLACE_FREE};
    }
}

void mx_cold_ahead_ask(struct mx_cold_ahead *a, const char *name)
{
    pthread_mutex_lock(&a->mu);
    uint64_t now = mx_now_ns();
    drop_stale(a, now);
    struct place *p = a->n_threads && !place_of(a, name) ? free_place(a) : NULL;
    if (p) {
        memcpy(p->name, name, strnlen(name, sizeof p->name - 1) + 1);
        p->since = now;
        p->state = PLACE_WANTED;
        pthread_cond_signal(&a->work);
    }
    pthread_mutex_unlock(&a->mu);
}

const uint8_t *mx_cold_ahead_take(struct mx_cold_ahead *a, const char *name, size_t *bytes)
{
    const uint8_t *data = NULL;
    pthread_mutex_lock(&a->mu);
    struct place *p;
    while ((p = place_of(a, name)) && p->state == PLACE_READING)
        pthread_cond_wait(&a->ready, &a->mu);
    if (p && p->state == PLACE_READY) {
        p->state = PLACE_TAKEN;
        data = p->data;
        *bytes = p->bytes;
    } else if (p && p->state == PLACE_WANTED) {
        p->state = PLACE_FREE; /* who needs it now reads it sooner */
    }
    pthread_mutex_unlock(&a->mu);
    return data;
}

void mx_cold_ahead_done(struct mx_cold_ahead *a, const uint8_t *data)
{
    pthread_mutex_lock(&a->mu);
    for (int i = 0; i < PLACES; i++)
        if (a->places[i].state == PLACE_TAKEN && a->places[i].data == data) {
            a->places[i].state = PLACE_FREE;
            a->places[i].since = mx_now_ns();
        }
    pthread_mutex_unlock(&a->mu);
}

void mx_cold_ahead_tidy(struct mx_cold_ahead *a)
{
    pthread_mutex_lock(&a->mu);
    drop_stale(a, mx_now_ns());
    pthread_mutex_unlock(&a->mu);
}
