/* Names of the reasons and kinds of a restore, as responses, logs and metrics spell them. */
#include "session/miss.h"

static const char *const misses[MX_MISS_COUNT] = {
    [MX_MISS_NONE] = "none",
    [MX_MISS_NEW_SESSION] = "new_session",
    [MX_MISS_PREFIX_DIVERGENCE] = "prefix_divergence_at_token",
    [MX_MISS_MODEL_MISMATCH] = "model_mismatch",
    [MX_MISS_TEMPLATE_MISMATCH] = "template_mismatch",
    [MX_MISS_POLICY_MISMATCH] = "policy_mismatch",
    [MX_MISS_EVICTED] = "evicted",
    [MX_MISS_EXPIRED] = "expired",
    [MX_MISS_BACKGROUND_BYPASS] = "background_bypass",
    [MX_MISS_SESSION_BUSY] = "session_busy",
    [MX_MISS_SNAPSHOT_DESYNC] = "snapshot_desync",
    [MX_MISS_NO_SNAPSHOT_COVERAGE] = "no_snapshot_coverage",
    [MX_MISS_COLD_CORRUPT] = "cold_corrupt",
    [MX_MISS_COLD_UNREADABLE] = "cold_unreadable",
    [MX_MISS_MEMORY] = "memory",
    [MX_MISS_BYPASS] = "bypass",
    [MX_MISS_DISABLED] = "disabled",
};

const char *mx_cache_miss_name(enum mx_cache_miss m)
{
    return (unsigned)m < MX_MISS_COUNT ? misses[m] : "unknown";
}

const char *mx_restore_kind_name(enum mx_restore_kind k)
{
    static const char *const names[] = {
        [MX_RESTORE_NONE] = "none",
        [MX_RESTORE_EXACT] = "exact",
        [MX_RESTORE_NEAR] = "near",
        [MX_RESTORE_BLOCK] = "block",
    };
    return (unsigned)k < sizeof names / sizeof *names ? names[k] : "unknown";
}
