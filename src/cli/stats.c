/* The figures of a generation, as a block of text and as JSON. */
#include "cli/stats.h"

#include "base/clock.h"

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

struct mx_rates mx_stats_rates(const mtplx_gen_stats *s)
{
    struct mx_rates r = {0};
    double after_first = s->generated_tokens > 0 ? (double)(s->generated_tokens - 1) : 0;
    r.decode = ratio(after_first * 1e9, (double)s->decode_ns);
    r.prefill = ratio((double)s->prompt_tokens * 1e9, (double)s->prefill_ns);
    r.first_token = (double)s->first_token_ns * 1e-9;
    r.tokens_per_forward = ratio((double)s->generated_tokens, (double)s->cycles);
    while (r.depths < MTPLX_MAX_DEPTH && s->drafted[r.depths] > 0) {
        r.acceptance[r.depths] = ratio((double)s->accepted[r.depths], (double)s->drafted[r.depths]);
        r.depths++;
    }
    return r;
}

static void print_acceptance(const struct mx_rates *r, FILE *f)
{
    fprintf(f, "  acceptance   ");
    for (int i = 0; i < r->depths; i++)
        fprintf(f, "%s%.1f%%", i ? "  " : "", 100 * r->acceptance[i]);
    fputs(r->depths ? " by depth\n" : "no drafts\n", f);
}

/* How many cycles drafted how much. */
static void print_depths(const mtplx_gen_stats *s, FILE *f)
{
    fputs("  depths      ", f);
    for (int i = 0; i <= MTPLX_MAX_DEPTH; i++)
        if (s->depths[i] > 0)
            fprintf(f, " %d: %llu ", i, (unsigned long long)s->depths[i]);
    if (s->predicted_ns > 0)
        fprintf(f, " (%llu to learn; cycles took %.2f of the predicted time)",
                (unsigned long long)s->probes,
                ratio((double)s->measured_ns, (double)s->predicted_ns));
    fputc('\n', f);
    if (s->copy_tested > 0)
        fprintf(f, "  copied       %llu of %llu tokens accepted in %llu cycles\n",
                (unsigned long long)s->copy_accepted, (unsigned long long)s->copy_tested,
                (unsigned long long)s->copy_cycles);
}

void mx_stats_print(const mtplx_gen_stats *s, FILE *f)
{
    struct mx_rates r = mx_stats_rates(s);
    fprintf(f, "  tokens       %llu prompt, %llu generated\n", (unsigned long long)s->prompt_tokens,
            (unsigned long long)s->generated_tokens);
    fprintf(f, "  decode       %.1f tok/s, %.2f tokens per forward, %llu cycles\n", r.decode,
            r.tokens_per_forward, (unsigned long long)s->cycles);
    print_acceptance(&r, f);
    print_depths(s, f);
    fprintf(f, "  first token  %.3f s, prefill %.1f tok/s\n", r.first_token, r.prefill);
    fprintf(f, "  peak memory  %.1f MiB\n", (double)mx_peak_rss() / (1 << 20));
}

static json_int_t count(uint64_t n)
{
    return (json_int_t)n;
}

/* What the depth policy and context copy did. */
static void add_depths(json_t *o, const mtplx_gen_stats *s)
{
    json_t *depths = json_array();
    for (int i = 0; i <= MTPLX_MAX_DEPTH; i++)
        json_array_append_new(depths, json_integer(count(s->depths[i])));
    json_object_set_new(o, "cycles_by_depth", depths);
    json_object_set_new(o, "depth_probes", json_integer(count(s->probes)));
    json_object_set_new(o, "predicted_seconds", json_real((double)s->predicted_ns * 1e-9));
    json_object_set_new(o, "measured_seconds", json_real((double)s->measured_ns * 1e-9));
    json_object_set_new(o, "copy_tested", json_integer(count(s->copy_tested)));
    json_object_set_new(o, "copy_accepted", json_integer(count(s->copy_accepted)));
}

json_t *mx_stats_json(const mtplx_gen_stats *s)
{
    struct mx_rates r = mx_stats_rates(s);
    json_t *acceptance = json_array(), *drafted = json_array(), *accepted = json_array();
    for (int i = 0; i < r.depths; i++) {
        json_array_append_new(acceptance, json_real(r.acceptance[i]));
        json_array_append_new(drafted, json_integer(count(s->drafted[i])));
        json_array_append_new(accepted, json_integer(count(s->accepted[i])));
    }
    json_t *o =
        json_pack("{s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:o, s:o, s:o, s:I}", "tokens_per_second",
                  r.decode, "prefill_tokens_per_second", r.prefill, "first_token_seconds",
                  r.first_token, "tokens_per_forward", r.tokens_per_forward, "cycles",
                  count(s->cycles), "bonus", count(s->bonus), "corrections", count(s->corrections),
                  "acceptance_by_depth", acceptance, "drafted_by_depth", drafted,
                  "accepted_by_depth", accepted, "peak_memory_bytes", count(mx_peak_rss()));
    add_depths(o, s);
    return o;
}
