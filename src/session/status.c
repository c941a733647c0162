/* Session bank: budgets, steering and status. See bank.h. */
#include "session/spill.h"

#include <string.h>

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

void mx_bank_tick(struct mx_bank *b)
{
    struct mx_trash trash = {0};
    pthread_mutex_lock(&b->lock);
    uint64_t now = mx_bank_now(b);
    mx_bank_expire(b, now, &trash);
    b->ceiling = mx_gauge_update(&b->gauge, now, mx_bank_held_bytes(b), b->o.budget);
    mx_bank_fit(b, b->ceiling, now, &b->stats.dropped_pressure, &trash);
    mx_spill_idle(b, now, &trash);
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

int mx_bank_drop(struct mx_bank *b, const char *session, uint64_t id, bool cold)
{
    struct mx_trash trash = {0};
    uint64_t dropped = 0;
    pthread_mutex_lock(&b->lock);
    const struct mx_session *s = session ? mx_bank_session(b, session) : NULL;
    for (struct mx_entry *e = b->oldest, *next; e; e = next) {
        next = e->newer;
        if ((!session || e->session == s) && (!id || e->id == id))
            mx_bank_remove(b, e, MX_MISS_NONE, &dropped, &trash);
    }
    b->stats.dropped_asked += dropped;
    pthread_mutex_unlock(&b->lock);
    mx_trash_burn(b, &trash);
    int on_disk = cold && b->o.cold && !id ? mx_cold_drop(b->o.cold, session) : 0;
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
