/* Session bank: budgets, steering and status. See bank.h. */
#include "session/spill.h"

#include "base/memory.h"
#include "runtime/model.h"

#include <string.h>

/* Parts of what the bank may use: what each pool of free blocks keeps at most, and what is made on
 * the way into the bank without room being made for it. */
#define POOL_PART 64
#define SLACK_PART 32

const char *mx_pressure_name(enum mx_pressure p)
{
    static const char *const names[] = {"none", "high", "critical"};
    return (unsigned)p < sizeof names / sizeof *names ? names[p] : "unknown";
}

const char *mx_point_name(enum mx_point p)
{
    static const char *const names[] = {"chunk", "border", "system", "prompt", "answer"};
    return (unsigned)p < sizeof names / sizeof *names ? names[p] : "unknown";
}

/* How long forgetting what is on disk may take before the caller hears of it all the same. */
static const uint64_t drop_wait_ns = 5000000000u;

/* ---- Budgets ------------------------------------------------------------------------------ */

/* Free KV blocks that are kept for the next sequence count as memory of the bank's making: where
 * its budget is small few are, and none where memory is short. */
static void trim(struct mx_bank *b, uint64_t keep)
{
    const mtplx_model *m = b->o.model;
    if (m->kv_pool)
        mx_kv_pool_trim(m->kv_pool, keep);
    if (m->mtp_pool)
        mx_kv_pool_trim(m->mtp_pool, keep);
    mx_memory_trim();
}

void mx_bank_tick(struct mx_bank *b)
{
    struct mx_trash trash = {0};
    pthread_mutex_lock(&b->lock);
    uint64_t now = mx_bank_now(b);
    mx_bank_expire(b, now, &trash);
    mx_leave_reap(b, false, &trash);
    b->ceiling = mx_gauge_update(&b->gauge, now, mx_bank_held_bytes(b), b->o.budget);
    mx_bank_fit(b, b->ceiling, now, &b->stats.dropped_pressure, &trash);
    mx_spill_idle(b, now, &trash);
    uint64_t removed = b->removed, keep = b->ceiling / POOL_PART;
    bool calm = b->gauge.level == MX_PRESSURE_NONE, stale = removed != b->trimmed || !calm;
    b->trimmed = removed;
    pthread_mutex_unlock(&b->lock);
    mx_trash_burn(b, &trash);
    if (stale)
        trim(b, calm ? keep : 0);
}

void mx_bank_make_room(struct mx_bank *b, uint64_t bytes)
{
    struct mx_trash trash = {0};
    pthread_mutex_lock(&b->lock);
    uint64_t slack = b->ceiling / SLACK_PART;
    if (bytes > slack && bytes <= b->ceiling) /* more than that will not be kept */
        mx_bank_fit(b, b->ceiling - (bytes - slack), mx_bank_now(b), &b->stats.dropped_budget,
                    &trash);
    pthread_mutex_unlock(&b->lock);
    mx_trash_burn(b, &trash);
}

void mx_bank_shrink(struct mx_bank *b, uint64_t bytes)
{
    struct mx_trash trash = {0};
    pthread_mutex_lock(&b->lock);
    mx_bank_fit(b, bytes, mx_bank_now(b), &b->stats.dropped_budget, &trash);
    pthread_mutex_unlock(&b->lock);
    mx_trash_burn(b, &trash);
}

void mx_bank_set_budget(struct mx_bank *b, uint64_t bytes)
{
    struct mx_trash trash = {0};
    pthread_mutex_lock(&b->lock);
    b->o.budget = bytes;
    b->ceiling = b->gauge.ceiling < bytes ? b->gauge.ceiling : bytes;
    mx_bank_fit(b, b->ceiling, mx_bank_now(b), &b->stats.dropped_budget, &trash);
    pthread_mutex_unlock(&b->lock);
    mx_trash_burn(b, &trash);
}

uint64_t mx_bank_bytes(struct mx_bank *b)
{
    pthread_mutex_lock(&b->lock);
    uint64_t bytes = mx_bank_held_bytes(b);
    pthread_mutex_unlock(&b->lock);
    return bytes;
}

/* ---- Steering ----------------------------------------------------------------------------- */

/* Behind the offer that is being made. */
static int clear_cold(struct mx_bank *b, const char *session)
{
    pthread_mutex_lock(&b->offering);
    int n = mx_cold_drop(b->o.cold, session);
    pthread_mutex_unlock(&b->offering);
    return n;
}

int mx_bank_drop(struct mx_bank *b, const char *session, uint64_t id, bool cold)
{
    struct mx_trash trash = {0};
    uint64_t dropped = 0;
    bool clear = cold && b->o.cold && !id;
    pthread_mutex_lock(&b->lock);
    const struct mx_session *s = session ? mx_bank_session(b, session) : NULL;
    for (struct mx_entry *e = b->oldest, *next; e; e = next) {
        next = e->newer;
        if ((!session || e->session == s) && (!id || e->id == id))
            mx_bank_remove(b, e, MX_MISS_NONE, &dropped, &trash);
    }
    b->stats.dropped_asked += dropped;
    if (clear)
        atomic_fetch_add(&b->cleared, 1);
    pthread_mutex_unlock(&b->lock);
    mx_trash_burn(b, &trash);
    int on_disk = clear ? clear_cold(b, session) : 0;
    if (on_disk) /* who is told that it is gone may pull the plug */
        mx_cold_flush(b->o.cold, drop_wait_ns);
    return on_disk > (int)dropped ? on_disk : (int)dropped;
}

int mx_bank_pin(struct mx_bank *b, const char *session, bool on)
{
    pthread_mutex_lock(&b->lock);
    struct mx_session *s = mx_bank_session(b, session);
    int n = s ? (int)s->n_entries : 0;
    if (s)
        s->pinned = on;
    pthread_mutex_unlock(&b->lock);
    return n;
}

/* ---- Status ------------------------------------------------------------------------------- */

void mx_bank_get_stats(struct mx_bank *b, struct mx_bank_stats *s)
{
    pthread_mutex_lock(&b->lock);
    *s = b->stats;
    s->budget = b->o.budget;
    s->ceiling = b->ceiling;
    s->bytes = mx_bank_held_bytes(b);
    s->block_bytes = b->block_bytes;
    s->blocks = b->held.n;
    s->pressure = b->gauge.level;
    for (size_t i = 0; i < MX_SESSION_BUCKETS; i++)
        for (const struct mx_session *x = b->sessions[i]; x; x = x->next)
            s->sessions += x->n_entries > 0;
    pthread_mutex_unlock(&b->lock);
}

static void view(const struct mx_bank *b, const struct mx_entry *e, uint64_t now,
                 struct mx_bank_view *v)
{
    *v = (struct mx_bank_view){
        .id = e->id,
        .bytes = e->own,
        .hits = e->hits,
        .age_ns = now > e->made_ns ? now - e->made_ns : 0,
        .idle_ns = now > e->used_ns ? now - e->used_ns : 0,
        .tokens = e->item.n,
        .point = e->point,
        .pinned = e->session->pinned,
        .on_disk = mx_cold_has(b->o.cold, MX_COLD_SNAPSHOT, e->key),
    };
    size_t n = strnlen(e->session->label, sizeof v->session - 1);
    memcpy(v->session, e->session->label, n);
    v->session[n] = '\0';
}

size_t mx_bank_list(struct mx_bank *b, struct mx_bank_view *out, size_t most)
{
    pthread_mutex_lock(&b->lock);
    uint64_t now = mx_bank_now(b);
    size_t n = 0;
    for (const struct mx_entry *e = b->newest; e; e = e->older, n++)
        if (n < most)
            view(b, e, now, &out[n]);
    pthread_mutex_unlock(&b->lock);
    return n;
}
