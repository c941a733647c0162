/* Reports of the benchmark: table, JSON and CSV of the same figures. */
#include "tools/bench.h"

#include "base/strbuf.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- Derived figures --------------------------------------------------------------------------
 */

/* GB/s of weights at which plain decoding runs. */
static double decode_rate(const struct mx_bench_result *r)
{
    return (double)r->row_bytes * r->depths[0].rate.median / 1e9;
}

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

/* GFLOP/s of the fastest prefill. */
static double prefill_rate(const struct mx_bench_result *r)
{
    double best = 0;
    for (int i = 0; i < r->n_prefill; i++)
        best = r->prefill[i].plain.median > best ? r->prefill[i].plain.median : best;
    return best * r->prefill_flops / 1e9;
}

static double acceptance(const struct mx_bench_depth *d, int i)
{
    return d->drafted[i] ? (double)d->accepted[i] / (double)d->drafted[i] : 0;
}

/* ---- Table ------------------------------------------------------------------------------------
 */

static void put_machine(struct mx_strbuf *b, const mtplx_model_info *info,
                        const struct mx_bench_result *r)
{
    mx_strbuf_printf(b, "%s\n  %s, %s, %d thread%s, %d rounds of %d tokens\n", info->path,
                     info->quantization, info->device, info->threads, info->threads == 1 ? "" : "s",
                     r->rounds, r->tokens);
    mx_strbuf_puts(b, "  machine: ");
    if (r->stream_rate > 0)
        mx_strbuf_printf(b, "stream read %.1f GB/s (%zu MiB buffer), ", r->stream_rate,
                         r->stream_bytes >> 20);
    mx_strbuf_printf(b, "float32 peak %.0f GFLOP/s (%s)\n", r->peak_rate, r->peak_name);
    mx_strbuf_printf(b, "  weights read: %.1f MB by a decode step", (double)r->row_bytes / 1e6);
    if (r->draft_bytes > 0)
        mx_strbuf_printf(b, ", %.1f MB by a draft step", (double)r->draft_bytes / 1e6);
    mx_strbuf_puts(b, "\n");
}

static void put_decode(struct mx_strbuf *b, const struct mx_bench_result *r)
{
    const struct mx_bench_spread *s = &r->depths[0].rate;
    double gbs = decode_rate(r);
    mx_strbuf_printf(b, "\nPlain decoding: %.1f tok/s (%.1f to %.1f), %.1f GB/s of weights",
                     s->median, s->low, s->high, gbs);
    if (r->stream_rate > 0)
        mx_strbuf_printf(b, ", %.0f%% of stream read", 100 * share(gbs, r->stream_rate));
    mx_strbuf_printf(b, "\n\nCost of an n-row pass, one row is 1 (%.2f ms):\n ",
                     r->row_ns.median / 1e6);
    for (int n = 2; n <= MX_BENCH_ROWS; n++)
        mx_strbuf_printf(b, " c(%d) %.2f", n, r->rows[n].median);
    mx_strbuf_puts(b, "\n");
}

static void put_depth(struct mx_strbuf *b, const struct mx_bench_depth *d, int depth)
{
    mx_strbuf_printf(b, "  %5d %8.1f %6.2f (%.2f-%.2f) ", depth, d->rate.median, d->ratio.median,
                     d->ratio.low, d->ratio.high);
    if (depth == 0) {
        mx_strbuf_puts(b, "\n");
        return;
    }
    mx_strbuf_printf(b, "%9.2f %6.3f %7.2f  ", d->predicted, d->draft.median, d->tokens_per_cycle);
    for (int i = 0; i < depth && d->drafted[i] > 0; i++)
        mx_strbuf_printf(b, " %3.0f", 100 * acceptance(d, i));
    mx_strbuf_puts(b, "\n");
}

static void put_auto(struct mx_strbuf *b, const struct mx_bench_depth *d)
{
    if (d->measured)
        mx_strbuf_printf(b, "   auto %8.1f %6.2f (%.2f-%.2f) %16s %7.2f\n", d->rate.median,
                         d->ratio.median, d->ratio.low, d->ratio.high, "", d->tokens_per_cycle);
}

static void put_depths(struct mx_strbuf *b, const mtplx_model_info *info,
                       const struct mx_bench_result *r)
{
    if (!info->has_mtp) {
        mx_strbuf_puts(b, "\nNo MTP head: plain decoding only.\n");
        return;
    }
    mx_strbuf_puts(b, "\n  depth    tok/s  x plain (range)   predicted      d  tok/cyc   accepted %"
                      " by position\n");
    for (int k = 0; k <= MTPLX_MAX_DEPTH; k++)
        if (r->depths[k].measured)
            put_depth(b, &r->depths[k], k);
    put_auto(b, &r->automatic);
    mx_strbuf_puts(b, "  auto: the default policy. d: a draft step in plain steps; predicted: E / "
                      "(c(k+1) + k d), E the tokens"
                      " per cycle\n  of the acceptance\n");
}

static void put_prefill(struct mx_strbuf *b, const struct mx_bench_result *r)
{
    if (r->n_prefill == 0)
        return;
    mx_strbuf_puts(b, "\nPrefill\n");
    for (int i = 0; i < r->n_prefill; i++) {
        const struct mx_bench_point *p = &r->prefill[i];
        if (*p->skipped)
            mx_strbuf_printf(b, "  %6d tokens  skipped: %s\n", p->length, p->skipped);
        else
            mx_strbuf_printf(b, "  %6d tokens %8.1f tok/s (%.1f to %.1f)\n", p->length,
                             p->plain.median, p->plain.low, p->plain.high);
    }
    mx_strbuf_printf(b, "  at best %.1f GFLOP/s, %.0f%% of the float32 peak\n", prefill_rate(r),
                     100 * share(prefill_rate(r), r->peak_rate));
}

static void put_context(struct mx_strbuf *b, const struct mx_bench_result *r)
{
    if (r->n_context == 0)
        return;
    mx_strbuf_puts(b, "\nDecoding behind a context\n");
    for (int i = 0; i < r->n_context; i++) {
        const struct mx_bench_point *p = &r->context[i];
        if (*p->skipped) {
            mx_strbuf_printf(b, "  %6d tokens  skipped: %s\n", p->length, p->skipped);
            continue;
        }
        mx_strbuf_printf(b, "  %6d tokens %8.1f tok/s plain", p->length, p->plain.median);
        if (p->drafted.n > 0)
            mx_strbuf_printf(b, ", %.1f at depth %d", p->drafted.median, r->best_depth);
        mx_strbuf_puts(b, "\n");
    }
}

static void put_stream_row(struct mx_strbuf *b, const char *what, const struct mx_bench_streams *s)
{
    mx_strbuf_printf(b, "  %-8s %8.1f tok/s together, %.1f alone: x %.2f (%.2f-%.2f)\n", what,
                     s->two.median, s->one.median, s->ratio.median, s->ratio.low, s->ratio.high);
}

static void put_streams(struct mx_strbuf *b, const struct mx_bench_result *r)
{
    char depth[16];
    mx_strbuf_puts(b, "\nTwo streams\n");
    put_stream_row(b, "plain", &r->plain_streams);
    snprintf(depth, sizeof depth, "depth %d", r->best_depth);
    if (r->drafted_streams.two.n > 0)
        put_stream_row(b, depth, &r->drafted_streams);
}

char *mx_bench_text(const mtplx_model *model, const struct mx_bench_result *r)
{
    const mtplx_model_info *info = mtplx_model_get_info(model);
    struct mx_strbuf b;
    mx_strbuf_init(&b, 0);
    put_machine(&b, info, r);
    put_decode(&b, r);
    put_depths(&b, info, r);
    put_prefill(&b, r);
    put_context(&b, r);
    put_streams(&b, r);
    return mx_strbuf_steal(&b, NULL);
}

/* ---- JSON -------------------------------------------------------------------------------------
 */

static json_t *spread_json(const struct mx_bench_spread *s)
{
    if (s->n == 0)
        return json_null();
    return json_pack("{s:f, s:f, s:f, s:i}", "median", s->median, "low", s->low, "high", s->high,
                     "samples", s->n);
}

/* null for what is not UTF-8, such as an odd path. */
static json_t *text_json(const char *s)
{
    json_t *text = s ? json_string(s) : NULL;
    return text ? text : json_null();
}

static json_t *model_json(const mtplx_model_info *info)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:i, s:I, s:I, s:b}", "path", text_json(info->path),
                     "architecture", text_json(info->architecture), "quantization",
                     text_json(info->quantization), "device", text_json(info->device), "threads",
                     info->threads, "parameters", (json_int_t)info->parameters, "mtp_parameters",
                     (json_int_t)info->mtp_parameters, "has_mtp", info->has_mtp);
}

static json_t *machine_json(const struct mx_bench_result *r)
{
    return json_pack("{s:f, s:I, s:f, s:s}", "stream_read_gb_per_second", r->stream_rate,
                     "stream_buffer_bytes", (json_int_t)r->stream_bytes,
                     "float32_peak_gflop_per_second", r->peak_rate, "float32_peak_instructions",
                     r->peak_name);
}

static json_t *weights_json(const struct mx_bench_result *r)
{
    double gbs = decode_rate(r);
    return json_pack("{s:I, s:I, s:f, s:f, s:f, s:f, s:f}", "bytes_per_decode_step",
                     (json_int_t)r->row_bytes, "bytes_per_draft_step", (json_int_t)r->draft_bytes,
                     "decode_gb_per_second", gbs, "share_of_stream_read",
                     share(gbs, r->stream_rate), "prefill_flop_per_token", r->prefill_flops,
                     "prefill_gflop_per_second", prefill_rate(r), "share_of_float32_peak",
                     share(prefill_rate(r), r->peak_rate));
}

static json_t *rows_json(const struct mx_bench_result *r)
{
    json_t *list = json_array();
    for (int n = 1; n <= MX_BENCH_ROWS; n++)
        json_array_append_new(list,
                              json_pack("{s:i, s:o}", "rows", n, "cost", spread_json(&r->rows[n])));
    return list;
}

static json_t *depths_json(const struct mx_bench_result *r)
{
    json_t *list = json_array();
    for (int k = 0; k <= MTPLX_MAX_DEPTH; k++) {
        const struct mx_bench_depth *d = &r->depths[k];
        if (!d->measured)
            continue;
        json_t *by_position = json_array();
        for (int i = 0; i < k && d->drafted[i] > 0; i++)
            json_array_append_new(by_position,
                                  json_pack("{s:I, s:I}", "drafted", (json_int_t)d->drafted[i],
                                            "accepted", (json_int_t)d->accepted[i]));
        json_array_append_new(
            list,
            json_pack("{s:i, s:o, s:o, s:o, s:f, s:f, s:f, s:o}", "depth", k, "tokens_per_second",
                      spread_json(&d->rate), "ratio_to_plain", spread_json(&d->ratio),
                      "draft_step_cost", spread_json(&d->draft), "tokens_per_cycle",
                      d->tokens_per_cycle, "expected_tokens_per_cycle", d->expected,
                      "predicted_ratio", d->predicted, "positions", by_position));
    }
    return list;
}

static json_t *auto_json(const struct mx_bench_depth *d)
{
    if (!d->measured)
        return json_null();
    return json_pack("{s:o, s:o, s:f}", "tokens_per_second", spread_json(&d->rate),
                     "ratio_to_plain", spread_json(&d->ratio), "tokens_per_cycle",
                     d->tokens_per_cycle);
}

static json_t *points_json(const struct mx_bench_point *p, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(
            list, json_pack("{s:i, s:o, s:o, s:o}", "tokens", p[i].length, "plain",
                            spread_json(&p[i].plain), "drafted", spread_json(&p[i].drafted),
                            "skipped", *p[i].skipped ? json_string(p[i].skipped) : json_null()));
    return list;
}

static json_t *streams_json(const struct mx_bench_streams *s)
{
    if (s->two.n == 0)
        return json_null();
    return json_pack("{s:o, s:o, s:o}", "one", spread_json(&s->one), "two", spread_json(&s->two),
                     "ratio", spread_json(&s->ratio));
}

char *mx_bench_json(const mtplx_model *model, const struct mx_bench_result *r)
{
    json_t *o = json_pack(
        "{s:s, s:o, s:o, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
        "mtplx_version", mtplx_version(), "model", model_json(mtplx_model_get_info(model)),
        "machine", machine_json(r), "rounds", r->rounds, "tokens", r->tokens, "best_depth",
        r->best_depth, "weights", weights_json(r), "row_pass_ns", spread_json(&r->row_ns), "rows",
        rows_json(r), "depths", depths_json(r), "auto", auto_json(&r->automatic), "prefill",
        points_json(r->prefill, r->n_prefill), "context", points_json(r->context, r->n_context),
        "two_streams_plain", streams_json(&r->plain_streams), "two_streams_drafted",
        streams_json(&r->drafted_streams));
    char *text = o ? json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) : NULL;
    json_decref(o);
    return text;
}

/* ---- CSV --------------------------------------------------------------------------------------
 */

static void put_line(struct mx_strbuf *b, const char *section, int x, const char *name,
                     const struct mx_bench_spread *s)
{
    if (s->n > 0)
        mx_strbuf_printf(b, "%s,%d,%s,%.6g,%.6g,%.6g,%d\n", section, x, name, s->median, s->low,
                         s->high, s->n);
}

static void put_value(struct mx_strbuf *b, const char *section, int x, const char *name, double v)
{
    struct mx_bench_spread s = {v, v, v, 1};
    put_line(b, section, x, name, &s);
}

static void put_depth_lines(struct mx_strbuf *b, const struct mx_bench_depth *d, int k)
{
    put_line(b, "depth", k, "tokens_per_second", &d->rate);
    put_line(b, "depth", k, "ratio_to_plain", &d->ratio);
    if (k == 0)
        return;
    put_line(b, "depth", k, "draft_step_cost", &d->draft);
    put_value(b, "depth", k, "tokens_per_cycle", d->tokens_per_cycle);
    put_value(b, "depth", k, "predicted_ratio", d->predicted);
    for (int i = 0; i < k && d->drafted[i] > 0; i++) {
        char name[32];
        snprintf(name, sizeof name, "acceptance_%d", i + 1);
        put_value(b, "depth", k, name, acceptance(d, i));
    }
}

char *mx_bench_csv(const mtplx_model *model, const struct mx_bench_result *r)
{
    struct mx_strbuf b;
    mx_strbuf_init(&b, 0);
    mx_strbuf_puts(&b, "section,x,name,median,low,high,samples\n");
    put_value(&b, "machine", 0, "stream_read_gb_per_second", r->stream_rate);
    put_value(&b, "machine", 0, "float32_peak_gflop_per_second", r->peak_rate);
    put_value(&b, "machine", 0, "threads", mtplx_model_get_info(model)->threads);
    put_value(&b, "weights", 0, "bytes_per_decode_step", (double)r->row_bytes);
    put_value(&b, "weights", 0, "bytes_per_draft_step", (double)r->draft_bytes);
    put_value(&b, "weights", 0, "decode_gb_per_second", decode_rate(r));
    put_value(&b, "weights", 0, "prefill_gflop_per_second", prefill_rate(r));
    put_line(&b, "rows", 1, "ns", &r->row_ns);
    for (int n = 1; n <= MX_BENCH_ROWS; n++)
        put_line(&b, "rows", n, "cost", &r->rows[n]);
    for (int k = 0; k <= MTPLX_MAX_DEPTH; k++)
        if (r->depths[k].measured)
            put_depth_lines(&b, &r->depths[k], k);
    if (r->automatic.measured) {
        put_line(&b, "auto", MTPLX_MAX_DEPTH, "tokens_per_second", &r->automatic.rate);
        put_line(&b, "auto", MTPLX_MAX_DEPTH, "ratio_to_plain", &r->automatic.ratio);
        put_value(&b, "auto", MTPLX_MAX_DEPTH, "tokens_per_cycle", r->automatic.tokens_per_cycle);
    }
    for (int i = 0; i < r->n_prefill; i++)
        put_line(&b, "prefill", r->prefill[i].length, "tokens_per_second", &r->prefill[i].plain);
    for (int i = 0; i < r->n_context; i++) {
        put_line(&b, "context", r->context[i].length, "plain", &r->context[i].plain);
        put_line(&b, "context", r->context[i].length, "drafted", &r->context[i].drafted);
    }
    put_line(&b, "streams", 2, "plain_ratio", &r->plain_streams.ratio);
    put_line(&b, "streams", 2, "plain_tokens_per_second", &r->plain_streams.two);
    put_line(&b, "streams", 2, "drafted_ratio", &r->drafted_streams.ratio);
    put_line(&b, "streams", 2, "drafted_tokens_per_second", &r->drafted_streams.two);
    return mx_strbuf_steal(&b, NULL);
}
