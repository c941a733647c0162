/* Lookup: the longest restore point of a prompt, and the verdict on it (judge.h). */
#include "session/bank_int.h"
#include "session/cold_state.h"
#include "session/judge.h"

#include <string.h>

/* The longest entry that holds exactly the prompt's first tokens (K1), at most n - 1 of them. One
 * that does not hold what the index says is dropped. */
static struct mx_entry *restore_point(struct mx_bank *b, const char *scope, const int32_t *tokens,
                                      size_t n, struct mx_lookup *l, struct mx_walk *w,
                                      struct mx_trash *t)
{
    for (;;) {
        mx_index_walk(&b->index, scope, tokens, n, w);
        struct mx_walk down = *w;
        down.limit = n - 1;
        struct mx_item *it = mx_index_next(&down);
        struct mx_entry *e = it ? mx_entry_of(it) : NULL;
        if (!e || (e->s->n == it->n && memcmp(e->s->tokens, tokens, it->n * sizeof *tokens) == 0))
            return e;
        l->desync = true;
        mx_bank_remove(b, e, MX_MISS_NONE, &b->stats.dropped_asked, t);
    }
}

/* Models without recurrent layers go on at any token of an entry that is followed by the prompt's
 * next one: a better start than `n` tokens, or NULL. */
static mtplx_snapshot *cut(struct mx_bank *b, const struct mx_walk *w, size_t n, size_t restored,
                           struct mx_entry **e)
{
    size_t at = w->common ? w->common - 1 : 0;
    if (!b->can_cut || !w->witness || at <= restored || at >= n)
        return NULL;
    mtplx_snapshot *s = mx_snapshot_cut(mx_entry_of(w->witness)->s, at);
    if (s)
        *e = mx_entry_of(w->witness);
    return s;
}

static void count(struct mx_bank *b, const struct mx_bank_hit *hit)
{
    b->stats.lookups++;
    b->stats.misses[hit->miss]++;
    b->stats.kinds[hit->kind]++;
    if (hit->snapshot) {
        b->stats.hits++;
        b->stats.hit_tokens += hit->snapshot->n;
    }
}

static void look_up(struct mx_bank *b, const char *scope, const int32_t *tokens, size_t n, bool use,
                    struct mx_bank_hit *hit, mtplx_snapshot **witness, struct mx_trash *t)
{
    struct mx_lookup l = {.n = n};
    struct mx_walk w;
    uint64_t now = mx_bank_now(b);
    mx_bank_expire(b, now, t);
    struct mx_entry *e = restore_point(b, scope, tokens, n, &l, &w, t);
    hit->snapshot = cut(b, &w, n, e ? e->s->n : 0, &e);
    if (e && !hit->snapshot)
        hit->snapshot = mx_snapshot_ref(e->s);
    if (witness && w.witness)
        *witness = mx_snapshot_ref(mx_entry_of(w.witness)->s);
    l.restored = hit->snapshot ? hit->snapshot->n : 0;
    l.known = hit->known = w.common;
    if (l.restored + 1 < n)
        l.gone = mx_grave_find(&b->graves, scope, tokens, n, &l.why_gone);
    hit->miss = mx_judge_miss(&l);
    hit->kind = mx_judge_kind(&l);
    if (e && use) {
        hit->hits = ++e->hits;
        mx_bank_touch(b, e, now);
    }
}

void mx_bank_look_up(struct mx_bank *b, const char *scope, const int32_t *tokens, size_t n,
                     bool use, struct mx_bank_hit *hit, mtplx_snapshot **witness)
{
    struct mx_trash trash = {0};
    memset(hit, 0, sizeof *hit);
    if (n == 0)
        return;
    pthread_mutex_lock(&b->lock);
    look_up(b, scope, tokens, n, use, hit, witness, &trash);
    pthread_mutex_unlock(&b->lock);
    mx_trash_burn(b, &trash);
}

void mx_bank_look_elsewhere(const struct mx_bank *b, const char *scope, const int32_t *tokens,
                            size_t n, struct mx_bank_hit *hit)
{
    if (!b->o.cold || hit->miss != MX_MISS_NEW_SESSION || n <= MX_KV_BLOCK)
        return;
    struct mx_cold_key first = mx_cold_chain(mx_cold_chain_start(scope), tokens, MX_KV_BLOCK);
    switch (mx_cold_elsewhere(b->o.cold, MX_COLD_BLOCK, first)) {
    case 'm': hit->miss = MX_MISS_MODEL_MISMATCH; break;
    case 't': hit->miss = MX_MISS_TEMPLATE_MISMATCH; break;
    case 'p': hit->miss = MX_MISS_POLICY_MISMATCH; break;
    default: break;
    }
}

void mx_bank_find(struct mx_bank *b, const char *scope, const char *session, const int32_t *tokens,
                  size_t n, struct mx_bank_hit *hit)
{
    char key[MX_LABEL_BYTES];
    (void)session;
    mx_copy_label(key, scope);
    mx_bank_look_up(b, key, tokens, n, true, hit, NULL);
    if (n == 0)
        return;
    size_t restored = hit->snapshot ? hit->snapshot->n : 0;
    if (b->o.cold && restored + 1 < n)
        hit->cold_tokens = mx_cold_find(b->o.cold, key, tokens, n, restored);
    if (!hit->cold_tokens)
        mx_bank_look_elsewhere(b, key, tokens, n, hit);
    pthread_mutex_lock(&b->lock);
    count(b, hit);
    pthread_mutex_unlock(&b->lock);
}
