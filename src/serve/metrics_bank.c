/* The session bank, its disk tier and turn alignment in the exposition of /metrics. */
#include "serve/align.h"
#include "serve/metrics_text.h"

static void bank_drops(struct mx_strbuf *b, const struct mx_bank_stats *s)
{
    const struct {
        const char *cause;
        uint64_t n;
    } causes[] = {{"budget", s->dropped_budget},     {"session_cap", s->dropped_cap},
                  {"ttl", s->dropped_ttl},           {"thinning", s->dropped_thin},
                  {"pressure", s->dropped_pressure}, {"asked", s->dropped_asked}};
    mx_text_family(b, "mtplx_session_bank_dropped_total", "counter", "Entries dropped, by cause.");
    for (size_t i = 0; i < sizeof causes / sizeof *causes; i++)
        mx_text_labelled(b, "mtplx_session_bank_dropped_total", "cause", causes[i].cause,
                         causes[i].n);
}

static void bank_lookups(struct mx_strbuf *b, const struct mx_bank_stats *s)
{
    mx_text_counter(b, "mtplx_session_bank_hits_total", "Prompts that were restored in part.",
                    s->hits);
    mx_text_counter(b, "mtplx_session_bank_hit_tokens_total", "Tokens restored.", s->hit_tokens);
    mx_text_counter(b, "mtplx_session_bank_puts_total", "States kept.", s->puts);
    mx_text_family(b, "mtplx_session_bank_lookups_total", "counter",
                   "Prompts looked up, by why no more was restored.");
    for (int i = 0; i < MX_MISS_COUNT; i++)
        mx_text_labelled(b, "mtplx_session_bank_lookups_total", "reason",
                         mx_cache_miss_name((enum mx_cache_miss)i), s->misses[i]);
    mx_text_family(b, "mtplx_session_bank_restored_total", "counter",
                   "Prompts looked up, by how they were restored.");
    for (int i = 0; i < 4; i++)
        mx_text_labelled(b, "mtplx_session_bank_restored_total", "kind",
                         mx_restore_kind_name((enum mx_restore_kind)i), s->kinds[i]);
}

static void bank_families(struct mx_strbuf *b, struct mx_bank *bank)
{
    struct mx_bank_stats s;
    mx_bank_get_stats(bank, &s);
    mx_text_gauge(b, "mtplx_session_bank_entries", "States kept in memory.", (double)s.entries);
    mx_text_gauge(b, "mtplx_session_bank_sessions", "Conversations they belong to.",
                  (double)s.sessions);
    mx_text_gauge(b, "mtplx_session_bank_bytes", "Memory they take.", (double)s.bytes);
    mx_text_gauge(b, "mtplx_session_bank_block_bytes", "Of that, KV blocks, shared ones once.",
                  (double)s.block_bytes);
    mx_text_gauge(b, "mtplx_session_bank_budget_bytes", "Memory they may take.", (double)s.budget);
    mx_text_gauge(b, "mtplx_session_bank_pressure", "Memory pressure: 0 none, 1 high, 2 critical.",
                  (double)s.pressure);
    bank_drops(b, &s);
    bank_lookups(b, &s);
}

static void cold_traffic(struct mx_strbuf *b, const struct mx_cold_stats *s)
{
    mx_text_counter(b, "mtplx_ssd_cache_written_bytes_total", "Bytes written.", s->written_bytes);
    mx_text_counter(b, "mtplx_ssd_cache_read_bytes_total", "Bytes read.", s->read_bytes);
    mx_text_counter(b, "mtplx_ssd_cache_reads_total", "Objects read.", s->reads);
    mx_text_counter(b, "mtplx_ssd_cache_evicted_total", "States dropped for space.", s->evicted);
    mx_text_counter(b, "mtplx_ssd_cache_dropped_bad_total",
                    "Objects that failed their checks and were dropped.", s->dropped_bad);
    mx_text_counter(b, "mtplx_ssd_cache_errors_total", "Errors of the disk.", s->errors);
    mx_text_family(b, "mtplx_ssd_cache_skipped_total", "counter",
                   "States that were not written, by cause.");
    mx_text_labelled(b, "mtplx_ssd_cache_skipped_total", "cause", "queue", s->skipped_queue);
    mx_text_labelled(b, "mtplx_ssd_cache_skipped_total", "cause", "budget", s->skipped_budget);
    mx_text_labelled(b, "mtplx_ssd_cache_skipped_total", "cause", "floor", s->skipped_floor);
}

static void cold_families(struct mx_strbuf *b, struct mx_cold *cold)
{
    struct mx_cold_stats s;
    mx_cold_get_stats(cold, &s);
    mx_text_gauge(b, "mtplx_ssd_cache_writable", "1 while the directory can be written.",
                  s.writable);
    mx_text_gauge(b, "mtplx_ssd_cache_snapshots", "States on disk.", (double)s.snapshots);
    mx_text_gauge(b, "mtplx_ssd_cache_blocks", "KV blocks on disk.", (double)s.blocks);
    mx_text_gauge(b, "mtplx_ssd_cache_bytes", "Bytes on disk.", (double)s.bytes);
    mx_text_gauge(b, "mtplx_ssd_cache_queued_bytes", "Bytes that wait to be written.",
                  (double)s.queued_bytes);
    cold_traffic(b, &s);
}

static void align_families(struct mx_strbuf *b, struct mx_align *align)
{
    struct mx_align_stats s;
    mx_align_get_stats(align, &s);
    mx_text_counter(b, "mtplx_turn_alignment_predicted_total", "Next turns predicted.",
                    s.predicted);
    mx_text_family(b, "mtplx_turn_alignment_jobs_total", "counter",
                   "Jobs that read ahead in idle time, by outcome.");
    mx_text_labelled(b, "mtplx_turn_alignment_jobs_total", "outcome", "finished", s.finished);
    mx_text_labelled(b, "mtplx_turn_alignment_jobs_total", "outcome", "abandoned", s.abandoned);
    mx_text_labelled(b, "mtplx_turn_alignment_jobs_total", "outcome", "failed", s.failed);
    mx_text_counter(b, "mtplx_turn_alignment_tokens_total", "Tokens read ahead.", s.tokens);
    mx_text_family(b, "mtplx_turn_alignment_turns_total", "counter",
                   "Next turns that came, by whether they began as predicted.");
    mx_text_labelled(b, "mtplx_turn_alignment_turns_total", "prediction", "matched", s.matched);
    mx_text_labelled(b, "mtplx_turn_alignment_turns_total", "prediction", "mismatched",
                     s.mismatched);
}

void mx_metrics_bank_text(struct mx_strbuf *out, const struct mx_app *app)
{
    struct mx_bank *bank = mx_status_bank_of(app);
    struct mx_cold *cold = app->engine ? mx_engine_cold(app->engine) : NULL;
    if (bank)
        bank_families(out, bank);
    if (cold)
        cold_families(out, cold);
    if (app->align)
        align_families(out, app->align);
}
