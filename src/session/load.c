/* Reading from the cold tier what a lookup had promised. */
#include "session/bank_int.h"
#include "session/cold_state.h"
#include "session/judge.h"

/* Entries on disk that may fail their checks before a lookup gives up. */
#define TRIES 3

static enum mx_cache_miss reason_of(mtplx_status st)
{
    switch (st) {
    case MTPLX_ERR_FORMAT: return MX_MISS_COLD_CORRUPT;
    case MTPLX_ERR_MEMORY: return MX_MISS_MEMORY;
    default: return MX_MISS_COLD_UNREADABLE;
    }
}

static size_t restored(const struct mx_bank_hit *hit)
{
    return hit->snapshot ? hit->snapshot->n : 0;
}

/* What a snapshot of n tokens takes beside what is known of them. */
static uint64_t bytes_beside(const mtplx_model *m, size_t n, size_t known)
{
    const struct mx_geometry *g = &m->geometry;
    uint64_t block = mx_kv_block_bytes(&g->kv) + (g->has_mtp ? mx_kv_block_bytes(&g->mtp_kv) : 0);
    size_t blocks = mx_kv_blocks_for((int64_t)n), there = known / MX_KV_BLOCK;
    return mx_snapshot_own_bytes_for(m, n) + block * (blocks > there ? blocks - there : 0);
}

/* The longest snapshot on disk of more tokens than were found; NULL with the reason, if there is
 * one. */
static mtplx_snapshot *read_longest(struct mx_bank *b, const char *scope, const int32_t *tokens,
                                    size_t n, const struct mx_bank_hit *hit,
                                    const mtplx_snapshot *have, const atomic_bool *cancel,
                                    enum mx_cache_miss *why)
{
    for (int i = 0; i < TRIES; i++) {
        mtplx_error err = {0};
        size_t at = mx_cold_find(b->o.cold, scope, tokens, n, restored(hit));
        if (at == 0)
            return NULL;
        mx_bank_make_room(b, bytes_beside(b->o.model, at, hit->known));
        mtplx_snapshot *s =
            mx_cold_load(b->o.cold, b->o.model, scope, tokens, at, have, cancel, &err);
        if (s)
            return s;
        *why = reason_of(err.status);
        if (err.status != MTPLX_ERR_FORMAT)
            return NULL;
    }
    return NULL;
}

/* Puts what was read into the bank and looks again. Where the bank has no room for it, it is
 * restored all the same. Takes over s. */
static void keep(struct mx_bank *b, mtplx_snapshot *s, const char *scope, const char *session,
                 const int32_t *tokens, size_t n, struct mx_bank_hit *hit)
{
    mx_snapshot_unref(hit->snapshot);
    mx_bank_insert(b, mx_snapshot_ref(s), MX_POINT_PROMPT, scope, session, 2);
    mx_bank_look_up(b, scope, tokens, n, true, hit, NULL);
    if (restored(hit) >= s->n) {
        mx_snapshot_unref(s);
        return;
    }
    mx_snapshot_unref(hit->snapshot);
    hit->snapshot = s;
    hit->hits = 1;
    hit->known = hit->known > s->n ? hit->known : s->n;
    struct mx_lookup l = {.n = n, .restored = s->n, .known = hit->known};
    hit->miss = mx_judge_miss(&l);
    hit->kind = mx_judge_kind(&l);
}

/* A lookup that has been counted turned out otherwise. */
static void count_again(struct mx_bank *b, const struct mx_bank_hit *before, size_t had,
                        const struct mx_bank_hit *hit)
{
    struct mx_bank_stats *s = &b->stats;
    pthread_mutex_lock(&b->lock);
    if (s->misses[before->miss] && s->kinds[before->kind]) {
        s->misses[before->miss]--;
        s->kinds[before->kind]--;
        s->misses[hit->miss]++;
        s->kinds[hit->kind]++;
    }
    s->hits += had == 0 && restored(hit) > 0;
    s->hit_tokens += restored(hit) - had;
    pthread_mutex_unlock(&b->lock);
}

void mx_bank_load(struct mx_bank *b, const char *scope, const char *session, const int32_t *tokens,
                  size_t n, const atomic_bool *cancel, struct mx_bank_hit *hit)
{
    char key[MX_LABEL_BYTES];
    mtplx_snapshot *have = NULL;
    enum mx_cache_miss why = MX_MISS_NONE;
    mx_copy_label(key, scope);
    mx_bank_look_up(b, key, tokens, n, false, hit, &have);
    if (b->o.cold && n > 1) {
        struct mx_bank_hit before = *hit;
        size_t had = restored(hit);
        mtplx_snapshot *s = read_longest(b, key, tokens, n, hit, have, cancel, &why);
        if (s)
            keep(b, s, key, session, tokens, n, hit);
        if (why != MX_MISS_NONE && restored(hit) + 1 < n)
            hit->miss = why;
        mx_bank_look_elsewhere(b, key, tokens, n, &before);
        count_again(b, &before, had, hit);
    }
    mx_snapshot_unref(have);
}
