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

/* Where the answer's message of a prompt begins: its last border, which was captured in the same
 * pass or is what the prompt was restored from. 0: it has none close to its end. */
static size_t find_opening(const struct mx_bank *b, const struct mx_entry *e)
{
    struct mx_walk w;
    mx_index_walk(&b->index, mx_index_scope(&e->item), e->item.tokens, e->item.n, &w);
    for (struct mx_item *it; (it = mx_index_next(&w)) && e->item.n - it->n <= OPENING;)
        if (mx_entry_of(it)->point == MX_POINT_BORDER)
            return it->n;
    return 0;
}

/* Whether e has all messages of the earlier prompt, and goes on otherwise than its answer. */
static bool left_behind(const struct mx_entry *prompt, const struct mx_entry *e)
{
    return prompt->opening && prompt->item.n < e->item.n && same_scope(prompt, e) &&
           begins_with(e, prompt, prompt->opening) && !begins_with(e, prompt, prompt->item.n);
}

static const struct mx_entry *last_stale(const struct mx_session *s)
{
    const struct mx_entry *last = NULL;
    for (const struct mx_entry *x = s->entries; x; x = x->next_of)
        if (x->stale && x->point == MX_POINT_PROMPT && (!last || x->item.n > last->item.n))
            last = x;
    return last;
}

void mx_bank_drop_stale(struct mx_bank *b, struct mx_entry *e, struct mx_trash *t)
{
    struct mx_session *s = e->session;
    if (e->point != MX_POINT_PROMPT)
        return;
    e->opening = find_opening(b, e);
    for (struct mx_entry *x = s->entries; x; x = x->next_of)
        if (!x->stale && left_behind(x, e))
            mark_turn(s, x);
    const struct mx_entry *kept = last_stale(s);
    for (struct mx_entry *x = s->entries, *next; x && kept && !s->pinned; x = next) {
        next = x->next_of;
        if (x->stale && !begins_with(x, kept, kept->item.n))
            mx_bank_remove(b, x, MX_MISS_NONE, &b->stats.dropped_thin, t);
    }
}
