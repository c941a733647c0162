/* Session bank: putting snapshots in, accounting for them, freeing them. See bank.h, bank_int.h. */
#include "session/bank_int.h"

#include "base/clock.h"
#include "session/spill.h"
#include "session/thin.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Restore points of one conversation that are looked at when it is thinned. */
#define MOST_THINNED 128
/* How long freeing waits for the cold tier. */
#define PATIENCE_NS 3000000000ull

/* ---- Life --------------------------------------------------------------------------------- */

static void fill_defaults(struct mx_bank_options *o)
{
    o->ttl_ns = o->ttl_ns ? o->ttl_ns : 3600000000000ull;
    o->pin_ns = o->pin_ns ? o->pin_ns : 600000000000ull;
    o->max_points = o->max_points ? o->max_points : 12;
    o->clock = o->clock ? o->clock : mx_now_ns;
}

struct mx_bank *mx_bank_new(const struct mx_bank_options *o, mtplx_error *err)
{
    if (!o->model || o->budget == 0) {
        mx_error(err, MTPLX_ERR_ARGUMENT,
                 "a session bank needs a model and a budget above 0 bytes");
        return NULL;
    }
    struct mx_bank *b = calloc(1, sizeof *b);
    if (!b) {
        mx_error_nomem(err, "the session bank", sizeof *b);
        return NULL;
    }
    const mtplx_model *m = o->model;
    b->o = *o;
    fill_defaults(&b->o);
    b->can_cut = mx_snapshot_can_cut(m);
    b->spacing = mx_plan_spacing(mx_seq_slab_floats(m) * sizeof(float),
                                 mx_kv_block_bytes(&m->geometry.kv), o->spacing);
    pthread_mutex_init(&b->lock, NULL);
    pthread_mutex_init(&b->offering, NULL);
    mx_gauge_init(&b->gauge);
    b->ceiling = b->o.budget;
    return b;
}

void mx_bank_free(struct mx_bank *b)
{
    struct mx_trash trash = {0};
    if (!b)
        return;
    pthread_mutex_lock(&b->lock);
    mx_spill_all(b, &trash);
    pthread_mutex_unlock(&b->lock);
    mx_spill_offer(b, &trash, PATIENCE_NS);
    pthread_mutex_lock(&b->lock);
    while (b->newest)
        mx_bank_remove(b, b->newest, MX_MISS_NONE, &b->stats.dropped_asked, &trash);
    mx_leave_reap(b, true, &trash);
    pthread_mutex_unlock(&b->lock);
    mx_trash_burn(b, &trash);
    mx_held_close(&b->leaving.blocks);
    mx_index_close(&b->index);
    mx_held_close(&b->held);
    pthread_mutex_destroy(&b->offering);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

void mx_trash_burn(struct mx_bank *b, struct mx_trash *t)
{
    mx_spill_offer(b, t, 0);
    while (t->first) {
        struct mx_entry *e = t->first;
        t->first = e->older;
        mx_snapshot_unref(e->s);
        free(e);
    }
}

/* ---- Sessions ----------------------------------------------------------------------------- */

void mx_copy_label(char *to, const char *label)
{
    size_t n = label ? strnlen(label, MX_LABEL_BYTES - 1) : 0;
    if (n)
        memcpy(to, label, n);
    to[n] = '\0';
}

static struct mx_session **place_of(struct mx_bank *b, const char *label)
{
    return &b->sessions[XXH3_64bits(label, strlen(label)) % MX_SESSION_BUCKETS];
}

struct mx_session *mx_bank_session(struct mx_bank *b, const char *label)
{
    char key[MX_LABEL_BYTES];
    mx_copy_label(key, label);
    struct mx_session *s = *place_of(b, key);
    while (s && strcmp(s->label, key) != 0)
        s = s->next;
    return s;
}

static struct mx_session *session_need(struct mx_bank *b, const char *label)
{
    struct mx_session *s = mx_bank_session(b, label);
    if (s || !(s = calloc(1, sizeof *s)))
        return s;
    mx_copy_label(s->label, label);
    struct mx_session **place = place_of(b, s->label);
    s->next = *place;
    *place = s;
    return s;
}

/* Frees the record of a session that is over (E2). */
static void session_release(struct mx_bank *b, struct mx_session *s)
{
    if (s->n_entries || s->bytes)
        return;
    struct mx_session **place = place_of(b, s->label);
    while (*place != s)
        place = &(*place)->next;
    *place = s->next;
    free(s);
}

static void session_link(struct mx_session *s, struct mx_entry *e)
{
    e->session = s;
    e->next_of = s->entries;
    if (s->entries)
        s->entries->previous_of = e;
    s->entries = e;
    s->n_entries++;
    s->bytes += e->own;
}

static void session_unlink(struct mx_session *s, struct mx_entry *e)
{
    *(e->previous_of ? &e->previous_of->next_of : &s->entries) = e->next_of;
    if (e->next_of)
        e->next_of->previous_of = e->previous_of;
    s->n_entries--;
    s->bytes -= e->own;
}

/* ---- The list by last use ----------------------------------------------------------------- */

static void list_add(struct mx_bank *b, struct mx_entry *e)
{
    e->newer = NULL;
    e->older = b->newest;
    *(b->newest ? &b->newest->newer : &b->oldest) = e;
    b->newest = e;
}

static void list_remove(struct mx_bank *b, struct mx_entry *e)
{
    *(e->newer ? &e->newer->older : &b->newest) = e->older;
    *(e->older ? &e->older->newer : &b->oldest) = e->newer;
}

void mx_bank_touch(struct mx_bank *b, struct mx_entry *e, uint64_t now)
{
    struct mx_walk w;
    mx_index_walk(&b->index, mx_index_scope(&e->item), e->item.tokens, e->item.n, &w);
    for (struct mx_item *it; (it = mx_index_next(&w));) {
        struct mx_entry *p = mx_entry_of(it);
        if (p->session != e->session && p->point != MX_POINT_SYSTEM)
            continue;
        p->used_ns = now;
        list_remove(b, p);
        list_add(b, p);
    }
}

/* ---- Blocks ------------------------------------------------------------------------------- */

static uint64_t block_bytes(const struct mx_kv_block *k)
{
    return mx_kv_pool_block_bytes(k->pool);
}

static void hold(struct mx_bank *b, struct mx_session *s, struct mx_kv_block *const *blocks,
                 size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!mx_held_add(&b->held, blocks[i], s))
            continue;
        b->block_bytes += block_bytes(blocks[i]);
        s->bytes += block_bytes(blocks[i]);
        mx_leave_held(b, blocks[i]);
    }
}

/* Takes back what hold() did. Records of other sessions that are over by that go. */
static void let_go(struct mx_bank *b, const struct mx_session *s, struct mx_kv_block *const *blocks,
                   size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct mx_session *owner = mx_held_drop(&b->held, blocks[i]);
        if (!owner)
            continue;
        b->block_bytes -= block_bytes(blocks[i]);
        owner->bytes -= block_bytes(blocks[i]);
        mx_leave_dropped(b, blocks[i]);
        if (owner != s)
            session_release(b, owner);
    }
}

/* Points blocks[i] at the same block of the other, which goes to old[]. */
static void adopt(struct mx_kv_block **blocks, struct mx_kv_block *const *theirs, size_t i,
                  struct mx_kv_block **old, size_t *n_old)
{
    if (blocks[i] == theirs[i])
        return;
    old[(*n_old)++] = blocks[i];
    blocks[i] = mx_kv_block_ref(theirs[i]);
}

/* Stores equal prefixes once: points the blocks of a snapshot that nobody else has seen yet (S2) at
 * those of an entry with `common` tokens in common. A trunk block is determined by the tokens up to
 * its end, and so is what a shorter snapshot needs of it. Entry i of the MTP cache pairs token
 * i + 1 with what went before, so a block of 64 needs one token more. */
static size_t intern(mtplx_snapshot *s, const mtplx_snapshot *held, size_t common,
                     struct mx_kv_block **old)
{
    size_t n_old = 0;
    for (size_t i = 0; i < s->n_kv && i < held->n_kv; i++) {
        size_t end = (i + 1) * MX_KV_BLOCK;
        if ((end < s->n ? end : s->n) <= common)
            adopt(s->kv, held->kv, i, old, &n_old);
    }
    for (size_t i = 0; i < s->n_mtp && i < held->n_mtp; i++) {
        int64_t end = (int64_t)(i + 1) * MX_KV_BLOCK;
        end = end < s->mtp_len ? end : s->mtp_len;
        if ((size_t)end + 1 <= common && end <= held->mtp_len)
            adopt(s->mtp, held->mtp, i, old, &n_old);
    }
    return n_old;
}

/* ---- Taking out --------------------------------------------------------------------------- */

void mx_bank_remove(struct mx_bank *b, struct mx_entry *e, enum mx_cache_miss why, uint64_t *count,
                    struct mx_trash *t)
{
    struct mx_session *s = e->session;
    b->removed++;
    if (why != MX_MISS_NONE) {
        mx_grave_dig(&b->graves, mx_index_scope(&e->item), e->s->tokens, e->s->n, why);
        if (mx_leave_may(b, e))
            mx_spill_dropped(b, e, t);
    }
    mx_index_remove(&b->index, &e->item);
    list_remove(b, e);
    session_unlink(s, e);
    let_go(b, s, e->s->kv, e->s->n_kv);
    let_go(b, s, e->s->mtp, e->s->n_mtp);
    b->own_bytes -= e->own;
    b->stats.entries--;
    session_release(b, s);
    (*count)++;
    if (mx_leave_add(b, e))
        return;
    e->older = t->first;
    t->first = e;
}

/* ---- Putting in --------------------------------------------------------------------------- */

static int value(enum mx_point p)
{
    static const int values[] = {
        [MX_POINT_CHUNK] = 0,  [MX_POINT_BORDER] = 1, [MX_POINT_PROMPT] = 2,
        [MX_POINT_ANSWER] = 3, [MX_POINT_SYSTEM] = 4,
    };
    return (unsigned)p < sizeof values / sizeof *values ? values[p] : 0;
}

/* Links an entry everywhere; false: no memory, nothing done. */
static bool enter(struct mx_bank *b, struct mx_entry *e, const char *scope, const char *session)
{
    if (!mx_held_reserve(&b->held, e->s->n_kv + e->s->n_mtp))
        return false;
    struct mx_session *s = session_need(b, session);
    if (!s || !mx_index_add(&b->index, scope, &e->item)) {
        if (s)
            session_release(b, s);
        return false;
    }
    session_link(s, e);
    list_add(b, e);
    hold(b, s, e->s->kv, e->s->n_kv);
    hold(b, s, e->s->mtp, e->s->n_mtp);
    b->own_bytes += e->own;
    b->stats.entries++;
    return true;
}

/* Thins what leads to a new entry in its conversation. */
static void thin(struct mx_bank *b, const struct mx_entry *e, struct mx_trash *t)
{
    struct mx_entry *chain[MOST_THINNED];
    struct mx_thin points[MOST_THINNED];
    struct mx_walk w;
    size_t n = 0;
    mx_index_walk(&b->index, mx_index_scope(&e->item), e->item.tokens, e->item.n, &w);
    for (struct mx_item *it; n < MOST_THINNED && (it = mx_index_next(&w));)
        if (mx_entry_of(it)->session == e->session)
            chain[n++] = mx_entry_of(it);
    for (size_t i = 0; i < n; i++)
        points[i] = (struct mx_thin){chain[n - 1 - i]->item.n, chain[n - 1 - i]->point, true};
    mx_thin(points, n, b->spacing, (size_t)b->o.max_points);
    for (size_t i = 0; i < n; i++)
        if (!points[i].keep && !e->session->pinned)
            mx_bank_remove(b, chain[n - 1 - i], MX_MISS_NONE, &b->stats.dropped_thin, t);
}

/* A snapshot of these tokens is there: it is as good. */
static void refresh(struct mx_bank *b, struct mx_entry *e, enum mx_point point, uint64_t now)
{
    if (value(point) > value(e->point))
        e->point = point;
    e->stale = false;
    b->stats.refreshed++;
    mx_bank_touch(b, e, now);
}

/* Puts the entry in, or returns false. `old` has room for all blocks of the snapshot. */
static bool put(struct mx_bank *b, struct mx_entry *e, const char *scope, const char *session,
                int refs, struct mx_kv_block **old, size_t *n_old, struct mx_trash *t)
{
    uint64_t now = mx_bank_now(b);
    struct mx_walk w;
    b->stats.puts++;
    mx_bank_expire(b, now, t);
    mx_index_walk(&b->index, scope, e->item.tokens, e->item.n, &w);
    struct mx_item *witness = w.witness, *same = mx_index_next(&w);
    if (same && same->n == e->item.n) {
        refresh(b, mx_entry_of(same), e->point, now);
        return false;
    }
    if (witness && old && atomic_load_explicit(&e->s->refs, memory_order_acquire) == refs)
        *n_old = intern(e->s, mx_entry_of(witness)->s, w.common, old);
    e->id = ++b->next_id;
    e->made_ns = e->used_ns = now;
    if (!enter(b, e, scope, session))
        return false;
    mx_bank_touch(b, e, now);
    thin(b, e, t);
    mx_bank_drop_stale(b, e, t);
    mx_bank_fit_session(b, e->session, e, now, t);
    mx_bank_fit(b, b->ceiling, now, &b->stats.dropped_budget, t);
    uint64_t bytes = mx_bank_held_bytes(b);
    b->stats.peak_bytes = bytes > b->stats.peak_bytes ? bytes : b->stats.peak_bytes;
    return true;
}

uint64_t mx_bank_whole_bytes(const mtplx_snapshot *s, uint64_t own)
{
    uint64_t sum = own;
    for (size_t i = 0; i < s->n_kv; i++)
        sum += block_bytes(s->kv[i]);
    for (size_t i = 0; i < s->n_mtp; i++)
        sum += block_bytes(s->mtp[i]);
    return sum;
}

/* Whether the tokens say all about a snapshot (K1): not where rows had positions of their own, nor
 * where the MTP cache has an entry of the token behind it (a cut one goes on with that token only).
 */
static bool can_keep(const struct mx_bank *b, const mtplx_snapshot *s)
{
    return s->n && s->model == b->o.model && s->next_pos == (int64_t)s->n &&
           (s->n_mtp == 0 || s->mtp_len < (int64_t)s->n);
}

void mx_bank_put(struct mx_bank *b, mtplx_snapshot *s, enum mx_point point, const char *scope,
                 const char *session)
{
    mx_bank_insert(b, s, point, scope, session, 1);
}

void mx_bank_insert(struct mx_bank *b, mtplx_snapshot *s, enum mx_point point, const char *scope,
                    const char *session, int refs)
{
    char key[MX_LABEL_BYTES];
    struct mx_trash trash = {0};
    size_t n_old = 0;
    struct mx_entry *e = s && can_keep(b, s) ? calloc(1, sizeof *e) : NULL;
    if (!e) {
        mx_snapshot_unref(s);
        return;
    }
    e->s = s;
    e->item.tokens = s->tokens;
    e->item.n = s->n;
    e->own = mx_snapshot_own_bytes(s);
    e->point = point;
    mx_copy_label(key, scope);
    if (b->o.cold) {
        e->key = mx_cold_chain(mx_cold_chain_start(key), s->tokens, s->n);
        e->settled = e->wanted = mx_cold_has(b->o.cold, MX_COLD_SNAPSHOT, e->key);
    }
    struct mx_kv_block **old =
        (struct mx_kv_block **)malloc((s->n_kv + s->n_mtp + 1) * sizeof *old);
    uint64_t bytes = mx_bank_whole_bytes(s, e->own);
    pthread_mutex_lock(&b->lock);
    bool fits = bytes <= b->ceiling;
    bool kept = fits && put(b, e, key, session, refs, old, &n_old, &trash);
    b->stats.dropped_budget += !fits;
    if (!fits) /* a bank of too little says so, and not that the prompt is new */
        mx_grave_dig(&b->graves, key, s->tokens, s->n, MX_MISS_EVICTED);
    pthread_mutex_unlock(&b->lock);
    for (size_t i = 0; i < n_old; i++)
        mx_kv_block_unref(old[i]);
    free((void *)old);
    if (!kept) {
        e->older = trash.first;
        trash.first = e;
    }
    mx_trash_burn(b, &trash);
}
