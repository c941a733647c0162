/* The thread that writes the cold tier, one batch (a snapshot and its new blocks) at a time:
 *
 *   1. every object into a temporary file beside its place, synced
 *   2. all renamed, their folders synced
 *   3. all rows in one transaction, the snapshot's last
 *   4. the entries become visible
 *
 * When a step fails the batch is undone: files removed, entries dropped, one warning for the cause,
 * and no writing for a minute. */
#include "session/cold_int.h"

#include "base/clock.h"
#include "session/cold_ahead.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

#define HOUR_MS 3600000
#define TICK_NS 5000000000ull /* how often touches are written */
#define SLICE_NS 500000000ull /* of reconciling */
#define GIB ((uint64_t)1 << 30)

/* ---- Warnings ----------------------------------------------------------------------------- */

void mx_cold_warn(struct mx_cold *c, enum mx_cold_cause cause, const char *detail)
{
    static const char *const lines[MX_COLD_CAUSE_COUNT] = {
        [MX_COLD_CAUSE_FULL] = "the disk is full",
        [MX_COLD_CAUSE_RO] = "the directory cannot be written",
        [MX_COLD_CAUSE_IO] = "writing failed",
        [MX_COLD_CAUSE_FLOOR] = "too little space is free",
        [MX_COLD_CAUSE_SIZE] =
            "a conversation is larger than the maximum or a quarter of what is free",
        [MX_COLD_CAUSE_BUDGET] = "the hourly write budget is used up",
        [MX_COLD_CAUSE_QUEUE] = "more is to be written than the disk takes",
    };
    uint64_t now = mx_cold_now_ms(c);
    pthread_mutex_lock(&c->mu);
    bool say = !c->warned[cause] && (!c->warned_ms[cause] || now - c->warned_ms[cause] >= HOUR_MS ||
                                     cause < MX_COLD_CAUSE_FLOOR);
    c->warned[cause] = true;
    if (say)
        c->warned_ms[cause] = now;
    pthread_mutex_unlock(&c->mu);
    if (say)
        mx_cold_log(c, "cold tier: %s%s%s: snapshots are left out of %s meanwhile", lines[cause],
                    detail ? ": " : "", detail ? detail : "", c->dir.path);
}

static void pause_for(struct mx_cold *c, enum mx_cold_cause cause, const char *detail)
{
    pthread_mutex_lock(&c->mu);
    c->paused = cause;
    c->paused_ms = mx_cold_now_ms(c);
    if (cause == MX_COLD_CAUSE_FLOOR || cause == MX_COLD_CAUSE_FULL)
        c->stats.skipped_floor++;
    else
        c->stats.errors++;
    pthread_mutex_unlock(&c->mu);
    mx_cold_warn(c, cause, detail);
}

static void recovered(struct mx_cold *c)
{
    pthread_mutex_lock(&c->mu);
    bool was = c->paused != MX_COLD_CAUSE_NONE;
    c->paused = MX_COLD_CAUSE_NONE;
    memset(c->warned, 0, sizeof c->warned);
    pthread_mutex_unlock(&c->mu);
    if (was)
        mx_cold_log(c, "cold tier: writing to %s works again", c->dir.path);
}

static enum mx_cold_cause cause_of(int error)
{
    if (error == ENOSPC || error == EDQUOT)
        return MX_COLD_CAUSE_FULL;
    return error == EROFS || error == EACCES || error == EPERM ? MX_COLD_CAUSE_RO
                                                               : MX_COLD_CAUSE_IO;
}

/* ---- Space and budget --------------------------------------------------------------------- */

static bool space(struct mx_cold *c, uint64_t *free_bytes, uint64_t *all_bytes)
{
    return c->hooks.space ? c->hooks.space(c->hooks.arg, free_bytes, all_bytes)
                          : mx_cold_dir_space(&c->dir, free_bytes, all_bytes);
}

static bool above_floor(struct mx_cold *c, uint64_t bytes)
{
    uint64_t free_bytes;
    uint64_t all;
    if (!space(c, &free_bytes, &all))
        return false;
    uint64_t least = c->o.floor_bytes;
    if (!least)
        least = all / 20 < 4 * GIB ? all / 20 : 4 * GIB;
    return free_bytes >= bytes && free_bytes - bytes >= least;
}

uint64_t mx_cold_limit(struct mx_cold *c)
{
    uint64_t free_bytes;
    uint64_t all;
    uint64_t most = c->o.max_bytes;
    pthread_mutex_lock(&c->mu);
    uint64_t used = c->index.bytes;
    pthread_mutex_unlock(&c->mu);
    if (space(c, &free_bytes, &all) && (free_bytes + used) / 4 < most)
        most = (free_bytes + used) / 4;
    pthread_mutex_lock(&c->mu);
    c->effective_max = most;
    pthread_mutex_unlock(&c->mu);
    return most;
}

double mx_cold_budget(struct mx_cold *c)
{
    uint64_t now = mx_cold_now_ms(c);
    double most = (double)c->o.hourly_bytes;
    if (now > c->budget_ms)
        c->budget += most / HOUR_MS * (double)(now - c->budget_ms);
    c->budget_ms = now;
    if (c->budget > most)
        c->budget = most;
    return c->budget;
}

/* Takes a batch's bytes from the budget, in the manifest too and before anything is written, so
 * that a process that is killed and started over and over does not get a new budget each time. */
static bool spend(struct mx_cold *c, uint64_t bytes)
{
    if (c->o.hourly_bytes == UINT64_MAX)
        return true;
    pthread_mutex_lock(&c->mu);
    double left = mx_cold_budget(c) - (double)bytes;
    bool ok = left >= 0;
    if (ok)
        c->budget = left;
    else
        c->stats.skipped_budget++;
    uint64_t at = c->budget_ms;
    pthread_mutex_unlock(&c->mu);
    if (ok)
        mx_cold_manifest_budget(c, left, at);
    else
        mx_cold_warn(c, MX_COLD_CAUSE_BUDGET, NULL);
    return ok;
}

/* ---- Removing ----------------------------------------------------------------------------- */

static bool delete_rows(struct mx_cold *c, const struct mx_cold_garbage *list, size_t n)
{
    bool ok = mx_cold_manifest_begin(c);
    for (size_t i = 0; ok && i < n; i++)
        ok = mx_cold_manifest_delete(c, list[i].row);
    return mx_cold_manifest_end(c, ok);
}

static void unlink_all(struct mx_cold *c, const struct mx_cold_garbage *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        unlinkat(c->dir.objects, list[i].name, 0);
}

/* With mu. Puts back what could not be removed. */
static void keep_garbage(struct mx_cold *c, struct mx_cold_garbage *list, size_t n)
{
    struct mx_cold_garbage *all = realloc(list, (n + c->n_garbage) * sizeof *all);
    if (!all) { /* the next open finds rows and files */
        free(list);
        return;
    }
    if (c->n_garbage)
        memcpy(all + n, c->garbage, c->n_garbage * sizeof *all);
    free(c->garbage);
    c->garbage = all;
    c->n_garbage += n;
    c->garbage_cap = c->n_garbage;
    c->sweep_ns = mx_now_ns() + TICK_NS;
}

/* Later again when it cannot be done now. */
static void scrub(struct mx_cold *c, bool all)
{
    if (mx_cold_manifest_scrub(c, all))
        return;
    pthread_mutex_lock(&c->mu);
    c->scrub = true;
    c->sweep_ns = mx_now_ns() + TICK_NS;
    pthread_mutex_unlock(&c->mu);
}

/* On a full disk not even a row can be deleted: then files go first, which makes room. Their rows
 * are harmless, since entries were dropped from memory and reading checks. */
void mx_cold_sweep(struct mx_cold *c)
{
    pthread_mutex_lock(&c->mu);
    struct mx_cold_garbage *list = c->garbage;
    size_t n = c->n_garbage;
    c->garbage = NULL;
    c->n_garbage = c->garbage_cap = 0;
    bool unreadable = c->scrub && mx_now_ns() >= c->sweep_ns, all = c->index.n == 0;
    c->scrub &= !unreadable;
    pthread_mutex_unlock(&c->mu);
    bool ok = !n || delete_rows(c, list, n);
    if (!ok && mx_cold_manifest_errno(c) == ENOSPC) {
        unlink_all(c, list, n);
        ok = delete_rows(c, list, n);
    }
    if (ok) {
        unlink_all(c, list, n);
        free(list);
        if (unreadable)
            scrub(c, all);
        return;
    }
    pthread_mutex_lock(&c->mu);
    c->scrub |= unreadable;
    keep_garbage(c, list, n);
    pthread_mutex_unlock(&c->mu);
}

/* ---- Writing ------------------------------------------------------------------------------ */

struct work {
    struct mx_cold_batch *b;
    char (*names)[MX_COLD_NAME];
    size_t written, renamed; /* objects */
    uint64_t bytes;
    int error; /* an errno */
    const char *what;
};

static bool fail(struct work *w, int error, const char *what)
{
    w->error = error ? error : EIO;
    w->what = what;
    return false;
}

static bool given_up(struct mx_cold *c)
{
    pthread_mutex_lock(&c->mu);
    bool over = c->stop && mx_now_ns() >= c->deadline_ns;
    pthread_mutex_unlock(&c->mu);
    return over;
}

static struct mx_record record_of(const struct mx_cold *c, const struct mx_cold_write *o,
                                  const struct mx_cold_entry *e)
{
    struct mx_record r = {.kind = o->kind,
                          .point = o->point,
                          .identity = c->o.identity,
                          .key = o->key,
                          .scope = mx_cold_chain_start(o->scope),
                          .created = mx_cold_now_ms(c),
                          .tokens = o->tokens,
                          .n_tokens = o->n_tokens};
    if (e->parent)
        r.parent = e->parent->key;
    /* Blocks are shared by sessions, so they name none. */
    if (o->kind == MX_COLD_SNAPSHOT)
        snprintf(r.session, sizeof r.session, "%s", o->session);
    return r;
}

static bool write_file(struct mx_cold *c, struct work *w, size_t i, struct mx_record *r)
{
    const struct mx_cold_write *o = &w->b->objects[i];
    char temp[MX_COLD_NAME];
    int error = mx_cold_fault(c, MX_COLD_OP_WRITE);
    int fd = error ? -1 : mx_cold_dir_create(&c->dir, w->names[i], temp);
    if (fd < 0)
        return fail(w, error ? error : errno, "making a file");
    w->written = i + 1;
    mtplx_error err = {0};
    bool ok = mx_record_write(fd, 0, r, o->parts, o->n_parts, &err) == MTPLX_OK &&
              ftruncate(fd, (off_t)r->bytes) == 0;
    if (!ok)
        fail(w, err.status == MTPLX_ERR_MEMORY ? ENOMEM : errno, "writing");
    error = ok ? mx_cold_fault(c, MX_COLD_OP_SYNC) : 0;
    if (ok && (error || fdatasync(fd) != 0))
        ok = fail(w, error ? error : errno, "syncing");
    close(fd);
    return ok;
}

/* The parent of a queued entry may be cut from another thread: it is looked at with mu. */
static bool write_object(struct mx_cold *c, struct work *w, size_t i)
{
    struct mx_cold_entry *e = w->b->entries[i];
    pthread_mutex_lock(&c->mu);
    bool dropped = e->dropped;
    struct mx_record r = record_of(c, &w->b->objects[i], e);
    pthread_mutex_unlock(&c->mu);
    if (dropped)
        return false;
    mx_cold_name(w->names[i], r.kind, r.key, &c->o.identity);
    if (!write_file(c, w, i, &r))
        return false;
    e->bytes = r.bytes;
    e->created = r.created;
    w->bytes += r.bytes;
    return true;
}

static bool publish(struct mx_cold *c, struct work *w)
{
    char temp[MX_COLD_NAME + 1];
    for (size_t i = 0; i < w->b->n; i++) {
        snprintf(temp, sizeof temp, "%s~", w->names[i]);
        int error = mx_cold_fault(c, MX_COLD_OP_RENAME);
        if (error || renameat(c->dir.objects, temp, c->dir.objects, w->names[i]) != 0)
            return fail(w, error ? error : errno, "renaming");
        w->renamed = i + 1;
    }
    /* Keys are hashes: with many objects every folder has one, with few each its own. */
    bool synced[256] = {false};
    for (size_t i = 0; i < w->b->n; i++) {
        uint8_t folder = w->b->objects[i].key.b[0];
        if (!synced[folder] && !mx_cold_dir_sync(&c->dir, w->names[i]))
            return fail(w, errno, "syncing a folder");
        synced[folder] = true;
    }
    return true;
}

static bool any_dropped(const struct mx_cold_batch *b)
{
    for (size_t i = 0; i < b->n; i++)
        if (b->entries[i]->dropped)
            return true;
    return false;
}

/* Gives the entries their rows. The index is read with mu, the manifest written without: the
 * entries of a batch stay, and so do their ancestors unless one of them is dropped, which is seen
 * here or afterwards. */
static bool commit(struct mx_cold *c, struct work *w)
{
    struct mx_cold_batch *b = w->b;
    struct mx_cold_entry *copies = calloc(b->n, sizeof *copies);
    struct mx_cold_entry *ups = calloc(b->n, sizeof *ups);
    bool ok = copies && ups;
    pthread_mutex_lock(&c->mu);
    ok = ok && !any_dropped(b);
    for (size_t i = 0; ok && i < b->n; i++) {
        b->entries[i]->row = c->next_row++;
        b->entries[i]->used = mx_cold_stamp(c);
        copies[i] = *b->entries[i];
        if (copies[i].parent) {
            ups[i] = *copies[i].parent;
            copies[i].parent = &ups[i];
        }
    }
    pthread_mutex_unlock(&c->mu);
    if (ok) {
        int error = mx_cold_fault(c, MX_COLD_OP_COMMIT);
        ok = !error && mx_cold_manifest_begin(c);
        for (size_t i = 0; ok && i < b->n; i++)
            ok = mx_cold_manifest_insert(c, &copies[i], &c->o.identity);
        if (!error && !ok)
            error = mx_cold_manifest_errno(c);
        if (!error && !mx_cold_manifest_end(c, ok))
            error = mx_cold_manifest_errno(c);
        ok = !error || fail(w, error, "writing the manifest");
    }
    free(copies);
    free(ups);
    return ok;
}

/* With mu. Of what was dropped between the commit and now, rows and files go. */
static void make_live(struct mx_cold *c, struct mx_cold_batch *b)
{
    bool dropped = any_dropped(b);
    c->scrub |= dropped;
    for (size_t i = 0; i < b->n; i++) {
        b->entries[i]->dropped = false;
        mx_cold_index_live(&c->index, b->entries[i], b->entries[i]->bytes);
    }
    struct mx_cold_entry *up = b->entries[0]->parent;
    for (size_t i = b->n; dropped && i--;)
        mx_cold_cut(c, b->entries[i]);
    if (dropped)
        mx_cold_prune(c, up);
}

/* With mu. What others queued below a failed batch fails with it. */
static void drop_entries(struct mx_cold *c, struct mx_cold_batch *b)
{
    for (size_t i = b->n; i--;) {
        struct mx_cold_entry *e = b->entries[i];
        struct mx_cold_entry *up = e->parent;
        while (e->child)
            mx_cold_cut(c, e->child);
        mx_cold_index_remove(&c->index, e);
        mx_cold_prune(c, up);
    }
}

static void remove_files(struct mx_cold *c, struct work *w)
{
    char temp[MX_COLD_NAME + 1];
    for (size_t i = 0; i < w->written; i++) {
        snprintf(temp, sizeof temp, "%s~", w->names[i]);
        unlinkat(c->dir.objects, i < w->renamed ? w->names[i] : temp, 0);
    }
}

static uint64_t part_bytes(const struct mx_cold_write *o)
{
    uint64_t n = 0;
    for (int i = 0; i < o->n_parts; i++)
        n += o->parts[i].bytes;
    return n;
}

/* What is larger than the tier may be: others may fit, so there is no pause. */
static bool too_large(struct mx_cold *c)
{
    pthread_mutex_lock(&c->mu);
    c->stats.skipped_floor++;
    pthread_mutex_unlock(&c->mu);
    mx_cold_warn(c, MX_COLD_CAUSE_SIZE, NULL);
    return false;
}

static bool write_batch(struct mx_cold *c, struct work *w)
{
    struct mx_cold_batch *b = w->b;
    pthread_mutex_lock(&c->mu);
    bool dropped = any_dropped(b);
    pthread_mutex_unlock(&c->mu);
    if (dropped)
        return false;
    if (!above_floor(c, b->bytes)) {
        pause_for(c, MX_COLD_CAUSE_FLOOR, NULL);
        return false;
    }
    /* Files end in the middle of a page. */
    if (!mx_cold_make_room(c, b->bytes + b->n * mx_cold_disk_bytes(1), b->entries[0]))
        return too_large(c);
    if (!spend(c, b->bytes))
        return false;
    for (size_t i = 0; i < b->n; i++) {
        if (given_up(c))
            return false;
        if (!above_floor(c, part_bytes(&b->objects[i]))) {
            pause_for(c, MX_COLD_CAUSE_FLOOR, NULL);
            return false;
        }
        if (!write_object(c, w, i))
            return false;
    }
    return publish(c, w) && commit(c, w);
}

static void finish(struct mx_cold *c, struct work *w, bool ok)
{
    if (!ok)
        remove_files(c, w);
    pthread_mutex_lock(&c->mu);
    if (ok) {
        make_live(c, w->b);
        c->stats.written += w->b->n;
        c->stats.written_bytes += w->bytes;
    } else {
        drop_entries(c, w->b);
    }
    pthread_mutex_unlock(&c->mu);
    if (ok) {
        recovered(c);
    } else if (w->error) {
        char detail[96];
        snprintf(detail, sizeof detail, "%s: %s", w->what, strerror(w->error));
        pause_for(c, cause_of(w->error), detail);
    }
}

static void do_batch(struct mx_cold *c, struct mx_cold_batch *b)
{
    struct work w = {.b = b};
    w.names = calloc(b->n, sizeof *w.names);
    finish(c, &w, w.names && !given_up(c) && write_batch(c, &w));
    free(w.names);
    pthread_mutex_lock(&c->mu);
    c->stats.queued--;
    c->stats.queued_bytes -= b->bytes;
    pthread_mutex_unlock(&c->mu);
    mx_cold_free_batch(b);
}

/* ---- Thread ------------------------------------------------------------------------------- */

static void write_touches(struct mx_cold *c, struct mx_cold_touched *room)
{
    pthread_mutex_lock(&c->mu);
    size_t n = c->n_touches;
    memcpy(room, c->touches, n * sizeof *room);
    c->n_touches = 0;
    pthread_mutex_unlock(&c->mu);
    if (!n || !mx_cold_manifest_begin(c))
        return;
    bool ok = true;
    for (size_t i = 0; ok && i < n; i++)
        ok = mx_cold_manifest_used(c, room[i].row, room[i].used);
    mx_cold_manifest_end(c, ok);
}

/* Memory of what was read ahead and never asked for. */
static void tidy_ahead(struct mx_cold *c)
{
    pthread_mutex_lock(&c->mu);
    struct mx_cold_ahead *a = c->ahead;
    pthread_mutex_unlock(&c->mu);
    if (a)
        mx_cold_ahead_tidy(a);
}

static void lower_priority(void)
{
#ifdef __linux__
    pid_t me = (pid_t)syscall(SYS_gettid);
    setpriority(PRIO_PROCESS, (id_t)me, 10);
    enum { IOPRIO_WHO_PROCESS = 1, BEST_EFFORT = 2, LOWEST = 7, CLASS_SHIFT = 13 };
    syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, me, BEST_EFFORT << CLASS_SHIFT | LOWEST);
#endif
}

static bool sweepable(const struct mx_cold *c)
{
    return (c->n_garbage || c->scrub) && mx_now_ns() >= c->sweep_ns;
}

/* With mu. Waits for work; NULL: only garbage, touches or the end. */
static struct mx_cold_batch *next_batch(struct mx_cold *c, uint64_t tick)
{
    while (!c->head && !c->stop && !sweepable(c) && mx_now_ns() < tick) {
        pthread_cond_broadcast(&c->idle);
        struct timespec t = {(time_t)(tick / 1000000000ull), (long)(tick % 1000000000ull)};
        pthread_cond_timedwait(&c->wake, &c->mu, &t);
    }
    struct mx_cold_batch *b = c->head;
    if (b) {
        c->head = b->next;
        c->tail = c->head ? c->tail : NULL;
    }
    return b;
}

static void reconcile_rest(struct mx_cold *c)
{
    while (!c->reconciled && !given_up(c))
        c->reconciled = mx_cold_reconcile(c, &c->cursor, mx_now_ns() + SLICE_NS);
}

void *mx_cold_writer(void *cold)
{
    struct mx_cold *c = cold;
    struct mx_cold_touched *room = malloc(MX_COLD_TOUCHES * sizeof *room);
    lower_priority();
    reconcile_rest(c);
    uint64_t tick = mx_now_ns() + TICK_NS;
    for (bool over = false; !over;) {
        pthread_mutex_lock(&c->mu);
        struct mx_cold_batch *b = next_batch(c, tick);
        over = !b && c->stop;
        bool sweep = over || b || sweepable(c);
        c->busy = true;
        pthread_mutex_unlock(&c->mu);
        if (sweep)
            mx_cold_sweep(c);
        if (b)
            do_batch(c, b);
        if (room && (over || mx_now_ns() >= tick)) {
            write_touches(c, room);
            tick = mx_now_ns() + TICK_NS;
            tidy_ahead(c);
        }
        pthread_mutex_lock(&c->mu);
        c->busy = false;
        pthread_cond_broadcast(&c->idle);
        pthread_mutex_unlock(&c->mu);
    }
    free(room);
    return NULL;
}
