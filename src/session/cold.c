/* The cold tier from outside: opening and closing, look-ups, queueing, statistics. */
#include "session/cold_int.h"

#include "base/clock.h"
#include "session/cold_ahead.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GIB ((uint64_t)1 << 30)
#define BLOCK_TOKENS 64            /* MX_KV_BLOCK, of which this floor knows nothing else */
#define RECONCILE_NS 2000000000ull /* of opening; the writer does the rest */
#define REBUILD_NS 30000000000ull

int mx_cold_mode_named(const char *name)
{
    static const char *const names[] = {"off", "on", "write-only"};
    for (int i = 0; name && i < 3; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    return -1;
}

void mx_cold_log(struct mx_cold *c, const char *fmt, ...)
{
    char line[700];
    if (!c->o.log)
        return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    c->o.log(c->o.log_arg, line);
}

uint64_t mx_cold_now_ms(const struct mx_cold *c)
{
    if (c->hooks.now_ms)
        return c->hooks.now_ms(c->hooks.arg);
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

uint64_t mx_cold_stamp(struct mx_cold *c)
{
    uint64_t now = mx_cold_now_ms(c);
    c->last_used = now > c->last_used ? now : c->last_used + 1;
    return c->last_used;
}

int mx_cold_fault(const struct mx_cold *c, enum mx_cold_op op)
{
    return c->hooks.fault ? c->hooks.fault(c->hooks.arg, op) : 0;
}

/* ---- Removing ----------------------------------------------------------------------------- */

void mx_cold_entry_name(const struct mx_cold *c, const struct mx_cold_entry *e, char *out)
{
    mx_cold_name(out, (enum mx_cold_kind)e->kind, e->key, &c->index.identities[e->identity]);
}

/* Without memory the row and its file stay until the next open finds them again. */
static void add_garbage(struct mx_cold *c, const struct mx_cold_entry *e)
{
    if (!c->dir.locked)
        return;
    if (c->n_garbage == c->garbage_cap) {
        size_t cap = c->garbage_cap ? c->garbage_cap * 2 : 64;
        struct mx_cold_garbage *more = realloc(c->garbage, cap * sizeof *more);
        if (!more)
            return;
        c->garbage = more;
        c->garbage_cap = cap;
    }
    struct mx_cold_garbage *g = &c->garbage[c->n_garbage++];
    g->row = e->row;
    mx_cold_entry_name(c, e, g->name);
}

static void discard(struct mx_cold *c, struct mx_cold_entry *e)
{
    if (e->state == MX_COLD_ENTRY_LIVE) {
        add_garbage(c, e);
        mx_cold_index_remove(&c->index, e);
    } else {
        e->dropped = true;
        mx_cold_index_detach(e);
    }
}

int mx_cold_cut(struct mx_cold *c, struct mx_cold_entry *top)
{
    int snapshots = 0;
    for (struct mx_cold_entry *e = top, *up;; e = up) {
        while (e->child)
            e = e->child;
        up = e == top ? NULL : e->parent;
        snapshots += e->kind == MX_COLD_SNAPSHOT && e->state == MX_COLD_ENTRY_LIVE;
        discard(c, e);
        if (!up)
            break;
    }
    pthread_cond_signal(&c->wake);
    return snapshots;
}

void mx_cold_prune(struct mx_cold *c, struct mx_cold_entry *e)
{
    while (e && e->kind == MX_COLD_BLOCK && e->state == MX_COLD_ENTRY_LIVE && !e->child) {
        struct mx_cold_entry *up = e->parent;
        discard(c, e);
        e = up;
    }
}

/* ---- Opening ------------------------------------------------------------------------------ */

static void set_defaults(struct mx_cold_options *o)
{
    if (!o->max_bytes)
        o->max_bytes = 16 * GIB;
    if (!o->hourly_bytes)
        o->hourly_bytes = 16 * GIB;
    if (!o->queue_bytes)
        o->queue_bytes = GIB;
    if (!o->min_tokens)
        o->min_tokens = 512;
}

static void init_conditions(struct mx_cold *c)
{
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_mutex_init(&c->mu, NULL);
    pthread_cond_init(&c->wake, &a);
    pthread_cond_init(&c->idle, &a);
    pthread_condattr_destroy(&a);
}

struct pick {
    const char *session; /* of snapshots; NULL: all */
    int kind;
    struct mx_cold_entry **list;
    size_t n, cap;
};

static void pick_leaf(struct mx_cold_entry *e, void *arg)
{
    struct pick *p = arg;
    if (e->kind == p->kind && !e->child && !e->dropped && p->n < p->cap &&
        (!p->session || (e->session && strcmp(e->session, p->session) == 0)))
        p->list[p->n++] = e;
}

/* Leaves of a kind, at most as many as there is memory for. */
static struct pick pick(struct mx_cold *c, int kind, const char *session)
{
    struct pick p = {.kind = kind, .session = session, .cap = c->index.n};
    p.list = calloc(p.cap + 1, sizeof(struct mx_cold_entry *));
    if (p.list)
        mx_cold_index_each(&c->index, pick_leaf, &p);
    return p;
}

/* Blocks that no snapshot needs are of no use. */
void mx_cold_prune_all(struct mx_cold *c)
{
    struct pick p = pick(c, MX_COLD_BLOCK, NULL);
    for (size_t i = 0; i < p.n; i++)
        mx_cold_prune(c, p.list[i]);
    free(p.list);
}

static mtplx_status open_store(struct mx_cold *c, mtplx_error *err)
{
    bool rebuild = false;
    mtplx_status s = mx_cold_dir_open(&c->dir, c->o.dir, err);
    if (!s)
        s = mx_cold_index_init(&c->index, &c->o.identity, err);
    if (!s)
        s = mx_cold_manifest_open(c, &rebuild, err);
    if (s)
        return s;
    uint64_t now = mx_cold_now_ms(c);
    if (!c->budget_ms || c->budget_ms > now)
        c->budget_ms = now;
    if (!c->dir.locked) {
        mx_cold_manifest_close(c);
        mx_cold_log(c, "cold tier: %s %s: it is read as it is now, and not written", c->dir.path,
                    c->dir.readonly ? "cannot be written" : "is in use by another process");
        return MTPLX_OK;
    }
    if (rebuild)
        mx_cold_rebuild(c, mx_now_ns() + REBUILD_NS);
    mx_cold_prune_all(c);
    uint64_t until = c->admin ? UINT64_MAX : mx_now_ns() + RECONCILE_NS;
    c->reconciled = mx_cold_reconcile(c, &c->cursor, until);
    mx_cold_sweep(c);
    return MTPLX_OK;
}

static void free_store(struct mx_cold *c)
{
    mx_cold_ahead_free(c->ahead);
    mx_cold_manifest_close(c);
    mx_cold_dir_close(&c->dir);
    mx_cold_index_free(&c->index);
    pthread_mutex_destroy(&c->mu);
    pthread_cond_destroy(&c->wake);
    pthread_cond_destroy(&c->idle);
    free(c->garbage);
    free(c->touches);
    free(c);
}

struct mx_cold *mx_cold_open_with(const struct mx_cold_options *o,
                                  const struct mx_cold_hooks *hooks, bool admin, mtplx_error *err)
{
    if (o->mode == MX_COLD_OFF)
        return NULL;
    struct mx_cold *c = calloc(1, sizeof *c);
    if (!c) {
        mx_error_nomem(err, "the cold tier", sizeof *c);
        return NULL;
    }
    c->o = *o;
    c->admin = admin;
    c->hooks = hooks ? *hooks : (struct mx_cold_hooks){0};
    c->dir = (struct mx_cold_dir){.fd = -1, .objects = -1, .lock = -1};
    c->next_row = 1;
    set_defaults(&c->o);
    c->budget = (double)c->o.hourly_bytes;
    c->effective_max = c->o.max_bytes;
    init_conditions(c);
    if (open_store(c, err)) {
        free_store(c);
        return NULL;
    }
    c->touches = malloc(MX_COLD_TOUCHES * sizeof *c->touches);
    if (c->dir.locked && !c->admin) {
        c->has_writer = c->touches && pthread_create(&c->writer, NULL, mx_cold_writer, c) == 0;
        if (!c->has_writer) {
            mx_error_nomem(err, "the writer of the cold tier", 1 << 20);
            free_store(c);
            return NULL;
        }
    }
    return c;
}

struct mx_cold *mx_cold_open(const struct mx_cold_options *o, mtplx_error *err)
{
    if (err)
        *err = (mtplx_error){0};
    return mx_cold_open_with(o, NULL, false, err);
}

void mx_cold_close(struct mx_cold *c, uint64_t wait_ns)
{
    if (!c)
        return;
    if (c->has_writer) {
        pthread_mutex_lock(&c->mu);
        uint64_t now = mx_now_ns();
        c->deadline_ns = wait_ns > UINT64_MAX - now ? UINT64_MAX : now + wait_ns;
        c->stop = true;
        pthread_cond_signal(&c->wake);
        pthread_mutex_unlock(&c->mu);
        pthread_join(c->writer, NULL);
    }
    free_store(c);
}

/* ---- Queueing ----------------------------------------------------------------------------- */

void mx_cold_free_batch(struct mx_cold_batch *b)
{
    if (!b)
        return;
    if (b->release)
        b->release(b->arg);
    free(b->objects);
    free(b->entries);
    free(b->scope);
    free(b->session);
    free(b);
}

static struct mx_cold_batch *new_batch(const struct mx_cold_write *objects, size_t n)
{
    struct mx_cold_batch *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    const struct mx_cold_write *last = &objects[n - 1];
    b->objects = calloc(n, sizeof *b->objects);
    b->entries = calloc(n, sizeof(struct mx_cold_entry *));
    b->scope = strdup(last->scope ? last->scope : "");
    b->session = strndup(last->session ? last->session : "", MX_RECORD_LABEL - 1);
    if (b->objects && b->entries && b->scope && b->session)
        return b;
    mx_cold_free_batch(b);
    return NULL;
}

static bool well_formed(const struct mx_cold_write *o, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (o[i].kind != (i + 1 < n ? MX_COLD_BLOCK : MX_COLD_SNAPSHOT) || o[i].n_parts < 0 ||
            o[i].n_parts > MX_COLD_MAX_PARTS || o[i].n_tokens > MX_RECORD_TOKENS ||
            o[i].point < 0 || o[i].point > UINT8_MAX)
            return false;
    return n > 0;
}

/* The entry that an object hangs below, in *up; false: it is not there. */
static bool find_parent(struct mx_cold *c, const struct mx_cold_write *objects, size_t i, size_t n,
                        struct mx_cold_entry **up)
{
    struct mx_cold_key key = objects[i].parent;
    if (i + 1 == n && i > 0)
        key = objects[i - 1].key;
    *up = NULL;
    if (mx_cold_key_zero(key))
        return true;
    *up = mx_cold_index_find(&c->index, MX_COLD_BLOCK, key, 0);
    return *up && !(*up)->dropped;
}

static void undo(struct mx_cold *c, struct mx_cold_batch *b)
{
    while (b->n)
        mx_cold_index_remove(&c->index, b->entries[--b->n]);
    b->bytes = 0;
}

static uint64_t bound_of(const struct mx_cold_batch *b, const struct mx_cold_write *w)
{
    struct mx_record r = {.n_tokens = w->n_tokens};
    snprintf(r.session, sizeof r.session, "%s", b->session);
    return mx_record_bound(&r, w->parts, w->n_parts);
}

static bool add_object(struct mx_cold *c, struct mx_cold_batch *b, const struct mx_cold_write *w,
                       struct mx_cold_entry *up)
{
    struct mx_cold_entry *e = mx_cold_index_add(&c->index, w->kind, w->key, 0, up);
    if (!e)
        return false;
    e->n_tokens = w->n_tokens;
    if (w->kind == MX_COLD_SNAPSHOT) {
        e->point = (uint8_t)w->point;
        e->session = strdup(b->session);
        e->scope = mx_cold_chain_start(b->scope);
    }
    b->objects[b->n] = *w;
    b->objects[b->n].scope = b->scope;
    b->objects[b->n].session = b->session;
    b->entries[b->n++] = e;
    b->bytes += bound_of(b, w);
    return true;
}

/* Adds what is not there yet to the index and the batch. */
static bool plan(struct mx_cold *c, struct mx_cold_batch *b, const struct mx_cold_write *objects,
                 size_t n)
{
    bool ok = true;
    for (size_t i = 0; ok && i < n; i++) {
        struct mx_cold_entry *up;
        struct mx_cold_entry *e = mx_cold_index_find(&c->index, objects[i].kind, objects[i].key, 0);
        if (e)
            ok = !e->dropped && i + 1 < n;
        else
            ok = find_parent(c, objects, i, n, &up) && add_object(c, b, &objects[i], up);
    }
    if (!ok)
        undo(c, b);
    return ok;
}

/* Whether there is room for a batch; why not is counted and, the first time, said. */
static enum mx_cold_cause admit(struct mx_cold *c, const struct mx_cold_batch *b)
{
    uint64_t now = mx_cold_now_ms(c);
    /* Unsigned: a clock that was set back ends the pause too. */
    if (c->paused && now - c->paused_ms < MX_COLD_RETRY_MS)
        return c->paused;
    if (c->stats.queued && c->stats.queued_bytes + b->bytes > c->o.queue_bytes)
        return MX_COLD_CAUSE_QUEUE;
    if (c->o.hourly_bytes != UINT64_MAX &&
        mx_cold_budget(c) < (double)c->stats.queued_bytes + (double)b->bytes)
        return MX_COLD_CAUSE_BUDGET;
    return MX_COLD_CAUSE_NONE;
}

static void count_skipped(struct mx_cold *c, enum mx_cold_cause cause)
{
    if (cause == MX_COLD_CAUSE_QUEUE)
        c->stats.skipped_queue++;
    else if (cause == MX_COLD_CAUSE_BUDGET)
        c->stats.skipped_budget++;
    else if (cause == MX_COLD_CAUSE_FLOOR || cause == MX_COLD_CAUSE_FULL)
        c->stats.skipped_floor++;
    else
        c->stats.errors++;
}

static void enqueue(struct mx_cold *c, struct mx_cold_batch *b)
{
    if (c->tail)
        c->tail->next = b;
    else
        c->head = b;
    c->tail = b;
    c->stats.queued++;
    c->stats.queued_bytes += b->bytes;
    pthread_cond_signal(&c->wake);
}

/* With mu. */
static bool try_put(struct mx_cold *c, struct mx_cold_batch *b, const struct mx_cold_write *objects,
                    size_t n, enum mx_cold_cause *cause)
{
    struct mx_cold_entry *there =
        mx_cold_index_find(&c->index, MX_COLD_SNAPSHOT, objects[n - 1].key, 0);
    if (there && there->state == MX_COLD_ENTRY_LIVE)
        mx_cold_touch_entry(c, there);
    if (there || c->stop || !plan(c, b, objects, n))
        return false;
    *cause = admit(c, b);
    if (*cause) {
        count_skipped(c, *cause);
        undo(c, b);
        return false;
    }
    enqueue(c, b);
    return true;
}

bool mx_cold_put(struct mx_cold *c, const struct mx_cold_write *objects, size_t n,
                 void (*release)(void *arg), void *arg)
{
    enum mx_cold_cause cause = MX_COLD_CAUSE_NONE;
    bool ok =
        c && c->has_writer && well_formed(objects, n) && objects[n - 1].n_tokens >= c->o.min_tokens;
    struct mx_cold_batch *b = ok ? new_batch(objects, n) : NULL;
    if (b) {
        pthread_mutex_lock(&c->mu);
        ok = try_put(c, b, objects, n, &cause);
        if (ok) {
            b->release = release;
            b->arg = arg;
        }
        pthread_mutex_unlock(&c->mu);
    }
    if (b && ok)
        return true;
    mx_cold_free_batch(b);
    if (cause == MX_COLD_CAUSE_QUEUE || cause == MX_COLD_CAUSE_BUDGET)
        mx_cold_warn(c, cause, NULL);
    if (release)
        release(arg);
    return false;
}

static void wait_until(struct mx_cold *c, pthread_cond_t *cond, uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000ull), (long)(ns % 1000000000ull)};
    pthread_cond_timedwait(cond, &c->mu, &t);
}

bool mx_cold_flush(struct mx_cold *c, uint64_t wait_ns)
{
    uint64_t now = mx_now_ns();
    uint64_t until = wait_ns > INT64_MAX - now ? INT64_MAX : now + wait_ns;
    pthread_mutex_lock(&c->mu);
    bool work;
    while ((work = c->has_writer && (c->head || c->busy || c->n_garbage)) && mx_now_ns() < until)
        wait_until(c, &c->idle, until);
    pthread_mutex_unlock(&c->mu);
    return !work;
}

/* ---- Looking up --------------------------------------------------------------------------- */

bool mx_cold_has(struct mx_cold *c, enum mx_cold_kind kind, struct mx_cold_key key)
{
    if (!c || c->o.mode != MX_COLD_ON)
        return false;
    pthread_mutex_lock(&c->mu);
    const struct mx_cold_entry *e = mx_cold_index_find(&c->index, kind, key, 0);
    bool there = e && e->state == MX_COLD_ENTRY_LIVE;
    pthread_mutex_unlock(&c->mu);
    return there;
}

uint64_t mx_cold_ends(struct mx_cold *c, struct mx_cold_key border)
{
    uint64_t ends = 0;
    if (!c || c->o.mode != MX_COLD_ON)
        return 0;
    pthread_mutex_lock(&c->mu);
    const struct mx_cold_entry *e = mx_cold_index_find(&c->index, MX_COLD_BLOCK, border, 0);
    for (e = e ? e->child : NULL; e; e = e->right)
        if (e->kind == MX_COLD_SNAPSHOT && e->state == MX_COLD_ENTRY_LIVE)
            ends |= (uint64_t)1 << (e->n_tokens % BLOCK_TOKENS);
    pthread_mutex_unlock(&c->mu);
    return ends;
}

/* How far another identity is from ours: the first part that differs, the later the nearer. */
static char differing(const struct mx_cold_identity *a, const struct mx_cold_identity *b)
{
    if (memcmp(a->model, b->model, sizeof a->model) != 0)
        return 'm';
    return memcmp(a->text, b->text, sizeof a->text) != 0 ? 't' : 'p';
}

char mx_cold_elsewhere(struct mx_cold *c, enum mx_cold_kind kind, struct mx_cold_key key)
{
    char nearest = 0;
    if (!c || c->o.mode != MX_COLD_ON)
        return 0;
    pthread_mutex_lock(&c->mu);
    for (const struct mx_cold_entry *e = mx_cold_index_chain(&c->index, key); e; e = e->next) {
        if (e->identity == 0 || e->kind != kind || e->state != MX_COLD_ENTRY_LIVE ||
            !mx_cold_key_equal(e->key, key))
            continue;
        char d = differing(&c->index.identities[0], &c->index.identities[e->identity]);
        if (!nearest || d == 'p' || (d == 't' && nearest == 'm'))
            nearest = d;
    }
    pthread_mutex_unlock(&c->mu);
    return nearest;
}

void mx_cold_touch_entry(struct mx_cold *c, struct mx_cold_entry *e)
{
    e->used = mx_cold_stamp(c);
    if (c->touches && c->n_touches < MX_COLD_TOUCHES)
        c->touches[c->n_touches++] = (struct mx_cold_touched){e->row, e->used};
}

void mx_cold_touch(struct mx_cold *c, struct mx_cold_key key)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->mu);
    struct mx_cold_entry *e = mx_cold_index_find(&c->index, MX_COLD_SNAPSHOT, key, 0);
    if (e && e->state == MX_COLD_ENTRY_LIVE)
        mx_cold_touch_entry(c, e);
    pthread_mutex_unlock(&c->mu);
}

/* ---- Dropping ----------------------------------------------------------------------------- */

int mx_cold_drop(struct mx_cold *c, const char *session)
{
    char label[MX_RECORD_LABEL];
    if (!c)
        return 0;
    if (session)
        snprintf(label, sizeof label, "%s", session);
    pthread_mutex_lock(&c->mu);
    struct pick p = pick(c, MX_COLD_SNAPSHOT, session ? label : NULL);
    int n = (int)p.n;
    for (size_t i = 0; i < p.n; i++) {
        struct mx_cold_entry *up = p.list[i]->parent;
        mx_cold_cut(c, p.list[i]);
        mx_cold_prune(c, up);
    }
    if (c->dir.locked && (n || !session)) {
        c->scrub = true;
        pthread_cond_signal(&c->wake);
    }
    pthread_mutex_unlock(&c->mu);
    free(p.list);
    return n;
}

/* ---- Status ------------------------------------------------------------------------------- */

static const char *why_not(const struct mx_cold *c)
{
    static const char *const causes[MX_COLD_CAUSE_COUNT] = {
        [MX_COLD_CAUSE_FULL] = "the disk is full",
        [MX_COLD_CAUSE_RO] = "the directory cannot be written",
        [MX_COLD_CAUSE_IO] = "writing failed",
        [MX_COLD_CAUSE_FLOOR] = "too little space is free",
    };
    if (c->dir.readonly)
        return causes[MX_COLD_CAUSE_RO];
    if (!c->dir.locked)
        return "another process writes there";
    return c->paused && causes[c->paused] ? causes[c->paused] : "";
}

void mx_cold_get_stats(struct mx_cold *c, struct mx_cold_stats *s)
{
    if (!c) {
        *s = (struct mx_cold_stats){0};
        return;
    }
    pthread_mutex_lock(&c->mu);
    *s = c->stats;
    s->mode = c->o.mode;
    s->snapshots = c->index.snapshots;
    s->blocks = c->index.blocks;
    s->bytes = c->index.bytes;
    s->max_bytes = c->effective_max;
    snprintf(s->dir, sizeof s->dir, "%s", c->dir.path);
    snprintf(s->why, sizeof s->why, "%s", why_not(c));
    s->writable = !*s->why;
    pthread_mutex_unlock(&c->mu);
}
