/* The session bank, its disk tier and turn alignment, as JSON for the admin routes, the snapshot
 * and the feed. */
#include "base/utf8.h"
#include "serve/align.h"
#include "serve/metrics_int.h"

#include <stdlib.h>
#include <string.h>

enum { LIST_MAX = 4096 };

static double seconds(uint64_t ns)
{
    return (double)ns * 1e-9;
}

static json_t *number(uint64_t n)
{
    return json_integer((json_int_t)n);
}

/* A label, which may have been cut inside a code point. */
static json_t *text(const char *s)
{
    return mx_utf8_valid(s, strlen(s)) ? json_string(s) : json_string("?");
}

struct mx_bank *mx_status_bank_of(const struct mx_app *app)
{
    return app->engine ? mx_engine_bank(app->engine) : NULL;
}

/* ---- The bank ----------------------------------------------------------------------------- */

static json_t *reasons(const struct mx_bank_stats *s)
{
    json_t *o = json_object();
    for (int i = 0; i < MX_MISS_COUNT; i++)
        if (s->misses[i] > 0)
            json_object_set_new(o, mx_cache_miss_name((enum mx_cache_miss)i), number(s->misses[i]));
    return o;
}

static json_t *kinds(const struct mx_bank_stats *s)
{
    json_t *o = json_object();
    for (int i = 0; i < 4; i++)
        json_object_set_new(o, mx_restore_kind_name((enum mx_restore_kind)i), number(s->kinds[i]));
    return o;
}

static json_t *dropped(const struct mx_bank_stats *s)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "budget", (json_int_t)s->dropped_budget,
                     "session_cap", (json_int_t)s->dropped_cap, "ttl", (json_int_t)s->dropped_ttl,
                     "thinning", (json_int_t)s->dropped_thin, "pressure",
                     (json_int_t)s->dropped_pressure, "asked", (json_int_t)s->dropped_asked);
}

json_t *mx_status_bank(const struct mx_app *app)
{
    struct mx_bank *b = mx_status_bank_of(app);
    struct mx_bank_stats s;
    if (!b)
        return json_pack("{s:b}", "enabled", 0);
    mx_bank_get_stats(b, &s);
    return json_pack(
        "{s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:o, s:o, "
        "s:o}",
        "enabled", 1, "entries", (json_int_t)s.entries, "sessions", (json_int_t)s.sessions,
        "blocks", (json_int_t)s.blocks, "bytes", (json_int_t)s.bytes, "block_bytes",
        (json_int_t)s.block_bytes, "peak_bytes", (json_int_t)s.peak_bytes, "budget_bytes",
        (json_int_t)s.budget, "ceiling_bytes", (json_int_t)s.ceiling, "pressure",
        mx_pressure_name(s.pressure), "lookups", (json_int_t)s.lookups, "hits", (json_int_t)s.hits,
        "hit_tokens", (json_int_t)s.hit_tokens, "puts", (json_int_t)s.puts, "refreshed",
        (json_int_t)s.refreshed, "misses", reasons(&s), "restored", kinds(&s), "dropped",
        dropped(&s));
}

/* ---- The disk tier ------------------------------------------------------------------------ */

static json_t *cold_counts(const struct mx_cold_stats *s)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "written",
                     (json_int_t)s->written, "written_bytes", (json_int_t)s->written_bytes, "reads",
                     (json_int_t)s->reads, "read_bytes", (json_int_t)s->read_bytes, "skipped_queue",
                     (json_int_t)s->skipped_queue, "skipped_budget", (json_int_t)s->skipped_budget,
                     "skipped_floor", (json_int_t)s->skipped_floor, "evicted",
                     (json_int_t)s->evicted, "dropped_bad", (json_int_t)s->dropped_bad, "orphans",
                     (json_int_t)s->orphans, "errors", (json_int_t)s->errors, "read_s",
                     seconds(s->read_ns));
}

json_t *mx_status_cold(const struct mx_app *app)
{
    struct mx_cold *c = app->engine ? mx_engine_cold(app->engine) : NULL;
    struct mx_cold_stats s;
    if (!c)
        return json_pack("{s:s}", "mode", "off");
    mx_cold_get_stats(c, &s);
    json_t *o = json_pack("{s:s, s:o, s:b, s:o, s:I, s:I, s:I, s:I, s:I, s:I}", "mode",
                          s.mode == MX_COLD_WRITE_ONLY ? "write-only" : "on", "dir", text(s.dir),
                          "writable", (int)s.writable, "why", text(s.why), "snapshots",
                          (json_int_t)s.snapshots, "blocks", (json_int_t)s.blocks, "bytes",
                          (json_int_t)s.bytes, "max_bytes", (json_int_t)s.max_bytes, "queued",
                          (json_int_t)s.queued, "queued_bytes", (json_int_t)s.queued_bytes);
    json_t *more = cold_counts(&s);
    if (o && more)
        json_object_update(o, more);
    json_decref(more);
    return o;
}

json_t *mx_status_align(const struct mx_app *app)
{
    struct mx_align_stats s;
    if (!app->align)
        return json_pack("{s:b}", "enabled", 0);
    mx_align_get_stats(app->align, &s);
    return json_pack(
        "{s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "enabled", 1,
        "predicted", (json_int_t)s.predicted, "unpredicted", (json_int_t)s.unpredicted, "aligned",
        (json_int_t)s.aligned, "started", (json_int_t)s.started, "finished", (json_int_t)s.finished,
        "abandoned", (json_int_t)s.abandoned, "failed", (json_int_t)s.failed, "dropped",
        (json_int_t)s.dropped, "tokens", (json_int_t)s.tokens, "matched", (json_int_t)s.matched,
        "mismatched", (json_int_t)s.mismatched, "waiting", (json_int_t)s.waiting);
}

/* ---- Sessions ----------------------------------------------------------------------------- */

static json_t *entry_json(const struct mx_bank_view *v)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:s, s:b, s:b, s:f, s:f}", "id", (json_int_t)v->id,
                     "tokens", (json_int_t)v->tokens, "bytes", (json_int_t)v->bytes, "hits",
                     (json_int_t)v->hits, "point", mx_point_name(v->point), "pinned",
                     (int)v->pinned, "on_disk", (int)v->on_disk, "age_s", seconds(v->age_ns),
                     "idle_s", seconds(v->idle_ns));
}

static int by_session(const void *a, const void *b)
{
    const struct mx_bank_view *x = a, *y = b;
    int order = strcmp(x->session, y->session);
    if (order != 0)
        return order;
    return x->tokens < y->tokens ? -1 : x->tokens > y->tokens;
}

static int by_idle(const void *a, const void *b)
{
    double x = json_real_value(json_object_get(*(json_t *const *)a, "idle_s"));
    double y = json_real_value(json_object_get(*(json_t *const *)b, "idle_s"));
    return x < y ? -1 : x > y;
}

/* One session from its n entries. */
static json_t *session_json(const struct mx_bank_view *v, size_t n)
{
    json_t *list = json_array();
    uint64_t bytes = 0, hits = 0, age = 0, idle = UINT64_MAX;
    size_t tokens = 0, on_disk = 0;
    bool pinned = false;
    for (size_t i = 0; i < n; i++) {
        bytes += v[i].bytes;
        hits += v[i].hits;
        age = v[i].age_ns > age ? v[i].age_ns : age;
        idle = v[i].idle_ns < idle ? v[i].idle_ns : idle;
        tokens = v[i].tokens > tokens ? v[i].tokens : tokens;
        on_disk += v[i].on_disk;
        pinned |= v[i].pinned;
        json_array_append_new(list, entry_json(&v[i]));
    }
    return json_pack("{s:o, s:I, s:I, s:I, s:b, s:I, s:f, s:f, s:o}", "id", text(v->session),
                     "tokens", (json_int_t)tokens, "bytes", (json_int_t)bytes, "hits",
                     (json_int_t)hits, "pinned", (int)pinned, "entries_on_disk",
                     (json_int_t)on_disk, "age_s", seconds(age), "idle_s", seconds(idle), "entries",
                     list);
}

/* Last used first. */
static json_t *ordered(json_t *const *list, size_t n)
{
    json_t *out = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(out, list[i]);
    return out;
}

static json_t *group(struct mx_bank_view *v, size_t n)
{
    json_t **list = calloc(n + 1, sizeof *list);
    size_t sessions = 0;
    if (!list)
        return NULL;
    qsort(v, n, sizeof *v, by_session);
    for (size_t from = 0, to; from < n; from = to) {
        for (to = from + 1; to < n && strcmp(v[to].session, v[from].session) == 0; to++)
            ;
        list[sessions++] = session_json(&v[from], to - from);
    }
    qsort(list, sessions, sizeof(json_t *), by_idle);
    json_t *o = ordered(list, sessions);
    free(list);
    return o;
}

json_t *mx_status_sessions(const struct mx_app *app)
{
    struct mx_bank *b = mx_status_bank_of(app);
    if (!b)
        return json_array();
    struct mx_bank_view *v = calloc(LIST_MAX, sizeof *v);
    if (!v)
        return NULL;
    size_t n = mx_bank_list(b, v, LIST_MAX);
    json_t *o = group(v, n < LIST_MAX ? n : LIST_MAX);
    free(v);
    return o;
}
