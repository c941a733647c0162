/* The verdict on a lookup. The table is in judge.h. */
#include "session/judge.h"

/* Less in common is the opening of a template. */
#define LEAST_COMMON 32
/* A restore point at most so far before the end of what is known is near it. */
#define NEAR_TOKENS 8

static bool all_restored(const struct mx_lookup *l)
{
    return l->restored + 1 >= l->n;
}

enum mx_cache_miss mx_judge_miss(const struct mx_lookup *l)
{
    bool is_short = l->known < LEAST_COMMON && l->known < (l->n + 3) / 4;
    if (all_restored(l))
        return MX_MISS_NONE;
    if (l->desync)
        return MX_MISS_SNAPSHOT_DESYNC;
    if (l->gone > l->known)
        return l->why_gone;
    if (l->restored == l->known && l->restored > 0)
        return MX_MISS_NONE;
    if (l->restored == 0 && is_short)
        return MX_MISS_NEW_SESSION;
    if (l->known == l->n)
        return l->gone > l->restored ? l->why_gone : MX_MISS_NO_SNAPSHOT_COVERAGE;
    return MX_MISS_PREFIX_DIVERGENCE;
}

enum mx_restore_kind mx_judge_kind(const struct mx_lookup *l)
{
    if (l->restored == 0)
        return MX_RESTORE_NONE;
    if (all_restored(l) || l->restored >= l->known)
        return MX_RESTORE_EXACT;
    size_t end = l->known < l->n ? l->known : l->n - 1;
    return end - l->restored <= NEAR_TOKENS ? MX_RESTORE_NEAR : MX_RESTORE_BLOCK;
}
