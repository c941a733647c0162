/* What an answer says about itself: finish reason, usage, mtplx_stats. */
#include "serve/turn.h"

static double seconds(uint64_t ns)
{
    return (double)ns * 1e-9;
}

static double rate(double n, double s)
{
    return s > 0 && n > 0 ? n / s : 0.0;
}

const char *mx_turn_reason_openai(const struct mx_turn_finish *f)
{
    switch (f->reason) {
    case MX_REASON_STOP:
    case MX_REASON_STOP_SEQUENCE: return "stop";
    case MX_REASON_LENGTH: return "length";
    case MX_REASON_TOOL_CALLS: return "tool_calls";
    case MX_REASON_CANCELLED: return "cancelled";
    case MX_REASON_ERROR: return "error";
    }
    return "error";
}

json_t *mx_turn_usage(size_t prompt, size_t cached, size_t completion, size_t reasoning)
{
    return json_pack("{s:I,s:I,s:I,s:{s:I},s:{s:I}}", "prompt_tokens", (json_int_t)prompt,
                     "completion_tokens", (json_int_t)completion, "total_tokens",
                     (json_int_t)prompt + (json_int_t)completion, "prompt_tokens_details",
                     "cached_tokens", (json_int_t)cached, "completion_tokens_details",
                     "reasoning_tokens", (json_int_t)reasoning);
}

/* ---- mtplx_stats -------------------------------------------------------------------------- */

/* [{depth, drafted, accepted, rate}, ...] up to the deepest position that was drafted. */
static json_t *by_depth(const mtplx_gen_stats *s)
{
    json_t *list = json_array();
    for (int d = 0; d < MTPLX_MAX_DEPTH && s->drafted[d] > 0; d++)
        json_array_append_new(list, json_pack("{s:i,s:I,s:I,s:f}", "depth", d + 1, "drafted",
                                              (json_int_t)s->drafted[d], "accepted",
                                              (json_int_t)s->accepted[d], "rate",
                                              (double)s->accepted[d] / (double)s->drafted[d]));
    return list;
}

static json_t *histogram(const uint64_t *v, int n)
{
    json_t *list = json_array();
    while (n > 0 && v[n - 1] == 0)
        n--;
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_integer((json_int_t)v[i]));
    return list;
}

static json_t *waterfall(const mtplx_gen_stats *s)
{
    return json_pack("{s:f,s:f,s:f,s:f}", "draft", seconds(s->draft_ns), "verify",
                     seconds(s->verify_ns), "sample", seconds(s->sample_ns), "commit",
                     seconds(s->commit_ns));
}

static json_t *copies(const mtplx_gen_stats *s)
{
    return json_pack("{s:I,s:I,s:I}", "cycles", (json_int_t)s->copy_cycles, "tested",
                     (json_int_t)s->copy_tested, "accepted", (json_int_t)s->copy_accepted);
}

static json_t *speeds(const struct mx_turn_finish *f)
{
    const struct mx_job_result *r = f->job;
    const mtplx_gen_stats *s = &r->stats;
    double fresh = (double)(f->prompt_tokens - f->cached_tokens), after_first = 0;
    if (s->generated_tokens > 1)
        after_first = (double)(s->generated_tokens - 1);
    return json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "queue_s", seconds(r->queue_ns), "ttft_s",
                     seconds(r->ttft_ns), "total_s", seconds(r->total_ns), "prefill_s",
                     seconds(s->prefill_ns), "prefill_tok_s", rate(fresh, seconds(s->prefill_ns)),
                     "decode_tok_s", rate(after_first, seconds(s->decode_ns)), "end_to_end_tok_s",
                     rate((double)f->completion_tokens, seconds(r->total_ns)));
}

/* What was reused of the prompt, and why not more. */
static json_t *reuse(const struct mx_turn_finish *f)
{
    const struct mx_job_result *r = f->job;
    return json_pack("{s:I,s:I,s:I,s:I,s:s,s:s,s:b,s:f}", "prompt_tokens",
                     (json_int_t)f->prompt_tokens, "cached_tokens", (json_int_t)f->cached_tokens,
                     "new_prefill_tokens", (json_int_t)(f->prompt_tokens - f->cached_tokens),
                     "known_tokens", (json_int_t)r->known_tokens, "cache_miss_reason",
                     mx_cache_miss_name(r->miss), "cache_restored",
                     mx_restore_kind_name(r->restored), "cache_from_disk", (int)r->from_disk,
                     "cache_restore_ms", (double)r->restore_ns * 1e-6);
}

static json_t *counts(const struct mx_turn_finish *f)
{
    const struct mx_job_result *r = f->job;
    return json_pack("{s:I,s:I,s:f,s:f}", "generated_tokens", (json_int_t)f->completion_tokens,
                     "cycles", (json_int_t)r->stats.cycles, "tokens_per_forward",
                     r->stats.cycles && r->stats.generated_tokens > 0
                         ? (double)(r->stats.generated_tokens - 1) / (double)r->stats.cycles
                         : 0.0,
                     "batch_mean_width", r->mean_width);
}

static bool add(json_t *o, json_t *more)
{
    bool ok = o && more && json_object_update(o, more) == 0;
    json_decref(more);
    return ok;
}

json_t *mx_turn_stats(const struct mx_turn_finish *f, bool all)
{
    if (!f->job)
        return NULL;
    const mtplx_gen_stats *s = &f->job->stats;
    json_t *o = reuse(f);
    bool ok = o != NULL;
    if (ok && all)
        ok = add(o, counts(f)) && add(o, speeds(f)) &&
             json_object_set_new(o, "acceptance_by_depth", by_depth(s)) == 0 &&
             json_object_set_new(o, "depths", histogram(s->depths, MTPLX_MAX_DEPTH + 1)) == 0 &&
             json_object_set_new(o, "waterfall_s", waterfall(s)) == 0 &&
             json_object_set_new(o, "context_copy", copies(s)) == 0;
    if (ok)
        return o;
    json_decref(o);
    return NULL;
}
