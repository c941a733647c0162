/* Feeding the cold tier. The rules are in spill.h. */
#include "session/spill.h"

#include "base/clock.h"
#include "session/cold_state.h"

#include <stdlib.h>
#include <string.h>

#define SECOND 1000000000ull
#define IDLE_NS (3 * SECOND)
#define PAUSE_NS (60 * SECOND)
/* So many tokens more are worth writing before a pause. */
#define MUCH 1024
/* Tokens at the end of a prompt that open the answer, at most: templates may write others there
 * when they come to it again. */
#define OPENING 32
/* Conversations that are looked at in one tick. */
#define MOST_CHAINS 16

/* ---- Gathering ---------------------------------------------------------------------------- */

static bool on_disk(const struct mx_bank *b, const struct mx_entry *e)
{
    return mx_cold_has(b->o.cold, MX_COLD_SNAPSHOT, e->key);
}

/* Without memory it is left out: a later drop may offer it again. */
static void gather(struct mx_bank *b, struct mx_entry *e, struct mx_trash *t)
{
    e->settled = e->wanted = true;
    struct mx_offer *o = on_disk(b, e) ? NULL : calloc(1, sizeof *o);
    if (!o)
        return;
    o->s = mx_snapshot_ref(e->s);
    o->key = e->key;
    o->point = e->point;
    o->cleared = atomic_load(&b->cleared);
    mx_copy_label(o->scope, mx_index_scope(&e->item));
    mx_copy_label(o->session, e->session->label);
    o->next = t->offers;
    t->offers = o;
}

struct chosen {
    struct mx_entry *prompt, *border, *system;
    struct mx_entry *opening; /* the border before what opens the prompt's answer */
    size_t written;           /* tokens of the longest point written before */
};

/* Looks through what leads to an entry in its conversation, longest first. */
static struct chosen choose(struct mx_bank *b, struct mx_entry *leaf, bool settle)
{
    struct chosen c = {0};
    struct mx_walk w;
    mx_index_walk(&b->index, mx_index_scope(&leaf->item), leaf->item.tokens, leaf->item.n, &w);
    for (struct mx_item *it; (it = mx_index_next(&w));) {
        struct mx_entry *e = mx_entry_of(it);
        if (e->session != leaf->session && e->point != MX_POINT_SYSTEM)
            continue;
        if (e->wanted && e->item.n > c.written)
            c.written = e->item.n;
        if (e->point == MX_POINT_PROMPT && !c.prompt)
            c.prompt = e;
        if (e->point == MX_POINT_BORDER && !c.border)
            c.border = e;
        if (e->point == MX_POINT_BORDER && !c.opening && c.prompt &&
            e->item.n + OPENING >= c.prompt->item.n)
            c.opening = e;
        if (e->point == MX_POINT_SYSTEM && !c.system)
            c.system = e;
        e->settled |= settle;
    }
    return c;
}

static void gather_chain(struct mx_bank *b, struct mx_entry *leaf, struct mx_trash *t)
{
    struct chosen c = choose(b, leaf, true);
    struct mx_entry *second = c.prompt ? c.prompt : c.border;
    /* A few tokens shorter, and of use to prompts that open the answer in another way, too. */
    if (c.opening && c.prompt != leaf)
        second = c.opening;
    gather(b, leaf, t);
    if (second && second != leaf && !second->wanted)
        gather(b, second, t);
    if (c.system && c.system != leaf && !c.system->wanted)
        gather(b, c.system, t);
}

/* Whether two items have their first n tokens in common. */
static bool agree(const struct mx_item *a, const struct mx_item *b, size_t n)
{
    return a->n >= n && b->n >= n && memcmp(a->tokens, b->tokens, n * sizeof *a->tokens) == 0;
}

/* How many tokens the messages are that the last answer on the way to an entry answers; 0: nobody
 * knows any more. */
static size_t messages_of(struct mx_bank *b, struct mx_entry *e)
{
    struct chosen c = choose(b, e, false);
    if (c.prompt)
        return c.prompt->item.n > OPENING ? c.prompt->item.n - OPENING : 0;
    return c.border ? c.border->item.n : 0;
}

/* Whether a conversation has gone on elsewhere since it was at an entry that nothing extends: the
 * same messages were answered again, or the next prompt has the answer in other tokens, as without
 * what the model thought. Such ends are left at every turn, each with a recurrent state. */
static bool left_behind(struct mx_bank *b, struct mx_entry *e)
{
    const char *scope = mx_index_scope(&e->item);
    size_t n = messages_of(b, e);
    for (struct mx_entry *f = n ? e->session->entries : NULL; f; f = f->next_of)
        if (f->id > e->id && f->item.n > n && agree(&f->item, &e->item, n) &&
            !agree(&f->item, &e->item, f->item.n) && strcmp(mx_index_scope(&f->item), scope) == 0)
            return true;
    return false;
}

/* Whether an entry ends its conversation, and nobody has looked at it. */
static bool is_due(struct mx_bank *b, struct mx_entry *e)
{
    if (e->settled || mx_index_extended(&e->item))
        return false;
    e->settled = left_behind(b, e);
    return !e->settled;
}

/* Whether there is a place in the tier's queue beside `more` bytes: what waits there is not dropped
 * for what is new, so that on a slow disk it may only be a part of the bank. */
static bool has_place(const struct mx_bank *b, uint64_t more)
{
    struct mx_cold_stats st;
    mx_cold_get_stats(b->o.cold, &st);
    return st.queued_bytes + more <= b->ceiling / MX_LEAVE_PART;
}

void mx_spill_idle(struct mx_bank *b, uint64_t now, struct mx_trash *t)
{
    int left = MOST_CHAINS;
    uint64_t bytes = 0;
    if (!b->o.cold)
        return;
    for (struct mx_entry *e = b->oldest; e && left > 0; e = e->newer) {
        if (now < e->used_ns || now - e->used_ns < IDLE_NS)
            return;
        if (!is_due(b, e))
            continue;
        left--;
        if (now - e->used_ns < PAUSE_NS && e->item.n < choose(b, e, false).written + MUCH)
            continue;
        if (!has_place(b, bytes))
            return;
        bytes += mx_bank_whole_bytes(e->s, e->own);
        gather_chain(b, e, t);
    }
}

void mx_spill_dropped(struct mx_bank *b, struct mx_entry *e, struct mx_trash *t)
{
    if (!b->o.cold)
        return;
    if (is_due(b, e))
        gather_chain(b, e, t);
    else if (e->wanted || (!e->settled && e->point == MX_POINT_SYSTEM))
        gather(b, e, t);
}

void mx_spill_all(struct mx_bank *b, struct mx_trash *t)
{
    if (b->o.cold) /* what is gathered last is offered first */
        for (struct mx_entry *e = b->oldest; e; e = e->newer)
            mx_spill_dropped(b, e, t);
}

/* ---- Offering ----------------------------------------------------------------------------- */

/* What was gathered before the tier was cleared is not brought to it afterwards. True: it is there,
 * or will be, or has no need to. */
static bool put(struct mx_bank *b, const struct mx_offer *o)
{
    struct mx_cold *c = b->o.cold;
    pthread_mutex_lock(&b->offering);
    bool done = o->cleared != atomic_load(&b->cleared) ||
                mx_cold_put_snapshot(c, o->s, (int)o->point, o->scope, o->session) ||
                mx_cold_has(c, MX_COLD_SNAPSHOT, o->key);
    pthread_mutex_unlock(&b->offering);
    return done;
}

void mx_spill_offer(struct mx_bank *b, struct mx_trash *t, uint64_t patience)
{
    uint64_t until = patience ? mx_now_ns() + patience : 0;
    while (t->offers) {
        struct mx_offer *o = t->offers;
        t->offers = o->next;
        uint64_t now = until ? mx_now_ns() : 0;
        if (!put(b, o) && now < until && mx_cold_flush(b->o.cold, until - now))
            put(b, o);
        mx_snapshot_unref(o->s);
        free(o);
    }
}
