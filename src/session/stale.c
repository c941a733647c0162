/* Turns that a conversation went on from otherwise.
 *
 * Templates leave out reasoning, or its empty tags, of answers that came back: the next prompt has
 * this one's messages in common and parts with it behind the border of the answer's message, a few
 * tokens before its end. Then its last point and the answer behind that lie beside the
 * conversation, where thinning, which knows prefixes, never comes by, and each turn leaves two of
 * them. They are of use only to who asks for the same turn again; so the last such turn is kept,
 * and those before it are dropped. */
#include "session/bank_int.h"

#include <string.h>

/* A prompt ends at most so far behind the border of the answer's message. */
#define OPENING 32
/* Borders of the new prompt that are looked at. */
#define LAST_BORDERS 4

static bool begins_with(const struct mx_entry *e, const struct mx_entry *with, size_t n)
{
    return e->item.n >= n && memcmp(e->item.tokens, with->item.tokens, n * sizeof(int32_t)) == 0;
}

static bool same_scope(const struct mx_entry *a, const struct mx_entry *b)
{
    return strcmp(mx_index_scope(&a->item), mx_index_scope(&b->item)) == 0;
}

/* Marks a prompt's last point and all that goes on from it. */
static void mark_turn(struct mx_session *s, struct mx_entry *prompt)
{
    for (struct mx_entry *x = s->entries; x; x = x->next_of)
        if (begins_with(x, prompt, prompt->item.n) && same_scope(x, prompt))
            x->stale = true;
}

/* Marks the turn whose answer began at a border of the new prompt, when that went on otherwise. */
static void mark_beside(const struct mx_entry *e, const struct mx_entry *border)
{
    size_t at = border->item.n;
    for (struct mx_entry *x = e->session->entries; x; x = x->next_of)
        if (x->point == MX_POINT_PROMPT && !x->stale && x->item.n > at &&
            x->item.n - at <= OPENING && x->item.n < e->item.n && begins_with(x, border, at) &&
            !begins_with(e, x, x->item.n) && same_scope(x, e))
            mark_turn(e->session, x);
}

static const struct mx_entry *last_stale(const struct mx_session *s)
{
    const struct mx_entry *last = NULL;
    for (const struct mx_entry *x = s->entries; x; x = x->next_of)
        if (x->stale && x->point == MX_POINT_PROMPT && (!last || x->item.n > last->item.n))
            last = x;
    return last;
}

void mx_bank_drop_stale(struct mx_bank *b, const struct mx_entry *e, struct mx_trash *t)
{
    struct mx_walk w;
    int borders = 0;
    if (e->point != MX_POINT_PROMPT || e->session->pinned)
        return;
    mx_index_walk(&b->index, mx_index_scope(&e->item), e->item.tokens, e->item.n, &w);
    for (struct mx_item *it; borders < LAST_BORDERS && (it = mx_index_next(&w));) {
        const struct mx_entry *border = mx_entry_of(it);
        if (border->point != MX_POINT_BORDER || border->session != e->session)
            continue;
        mark_beside(e, border);
        borders++;
    }
    const struct mx_entry *kept = last_stale(e->session);
    for (struct mx_entry *x = e->session->entries, *next; x && kept; x = next) {
        next = x->next_of;
        if (x->stale && !begins_with(x, kept, kept->item.n))
            mx_bank_remove(b, x, MX_MISS_NONE, &b->stats.dropped_thin, t);
    }
}
