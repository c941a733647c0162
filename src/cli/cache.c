/* mtplx cache check|ls|gc|clear: looking after the session cache on disk.
 *
 * All of them open the directory as a server would. While one has it, it is only looked at: check
 * and ls report what they see, gc and clear say that it is in use. */
#include "session/cold_admin.h"

#include "base/strbuf.h"
#include "cli/commands.h"
#include "cli/signals.h"
#include "cli/size.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    EXIT_BAD = 3, /* check found damage */
};

enum { CACHE_DIR, CACHE_JSON, CACHE_OWN, CACHE_YES, CACHE_MOST_FLAGS };

#define DIR_FLAG                                                                                   \
    {                                                                                              \
        .name = "dir", .kind = MX_CLI_TEXT, .value = "DIR", .env = "MTPLX_SSD_SESSION_CACHE_DIR",  \
        .fallback = "$XDG_CACHE_HOME/mtplx/sessions or ~/.cache/mtplx/sessions",                   \
        .help = "Where the cache is."                                                              \
    }
#define JSON_FLAG                                                                                  \
    {                                                                                              \
        .name = "json", .kind = MX_CLI_SWITCH, .help = "Print one JSON object."                    \
    }
#define SESSION_FLAG                                                                               \
    {                                                                                              \
        .name = "session", .kind = MX_CLI_TEXT, .value = "LABEL", .help = "Of this session only."  \
    }

static const struct mx_cli_flag check_flags[] = {
    [CACHE_DIR] = DIR_FLAG,
    [CACHE_JSON] = JSON_FLAG,
};
static const struct mx_cli_flag ls_flags[] = {
    [CACHE_DIR] = DIR_FLAG,
    [CACHE_JSON] = JSON_FLAG,
    [CACHE_OWN] = SESSION_FLAG,
};
static const struct mx_cli_flag gc_flags[] = {
    [CACHE_DIR] = DIR_FLAG,
    [CACHE_JSON] = JSON_FLAG,
    [CACHE_OWN] = {.name = "max-size",
                   .kind = MX_CLI_TEXT,
                   .value = "SIZE",
                   .env = "MTPLX_SSD_SESSION_CACHE_MAX_SIZE",
                   .fallback = "a quarter of what is free",
                   .help = "Drop the least recently used states until the rest fits."},
};
static const struct mx_cli_flag clear_flags[] = {
    [CACHE_DIR] = DIR_FLAG,
    [CACHE_JSON] = JSON_FLAG,
    [CACHE_OWN] = SESSION_FLAG,
    [CACHE_YES] = {.name = "yes",
                   .kind = MX_CLI_SWITCH,
                   .letter = 'y',
                   .help = "Do it. Without this, clear only says what it would remove."},
};

/* ---- One run ------------------------------------------------------------------------------ */

struct run {
    const char *who; /* "cache check" */
    const struct mx_cli_args *args;
    struct mx_cli_out *out;
    struct mx_cold *c;
    struct mx_cold_stats stats;
    json_t *json; /* with --json */
    json_t *lines;
    mtplx_error err;
};

static bool wants_json(const struct run *r)
{
    return r->args->values[CACHE_JSON].on;
}

/* What the store did on its own, or found: part of the result, so to standard output. */
static void say(void *arg, const char *line)
{
    struct run *r = arg;
    if (r->lines)
        json_array_append_new(r->lines, json_string(line));
    else {
        mx_cli_write_model_text(r->out, line, strlen(line));
        mx_cli_puts(r->out, "\n");
    }
}

static void put_number(struct run *r, const char *name, uint64_t n)
{
    if (r->json)
        json_object_set_new(r->json, name, json_integer((json_int_t)n));
}

/* False: nothing to look at. *rc is the exit code then. */
static bool open_run(struct run *r, const char *who, const struct mx_cli_args *args,
                     struct mx_cli_out *out, uint64_t max_bytes, int *rc)
{
    *r = (struct run){.who = who, .args = args, .out = out};
    if (wants_json(r)) {
        r->json = json_object();
        r->lines = json_array();
    }
    *rc = MX_EXIT_FAILURE;
    r->c = mx_cold_admin_open(args->values[CACHE_DIR].text, max_bytes, say, r, &r->err);
    if (!r->c) {
        mx_cli_complain(who, "%s", r->err.message);
        json_decref(r->json);
        json_decref(r->lines);
        return false;
    }
    mx_cold_get_stats(r->c, &r->stats);
    if (r->json)
        json_object_set_new(r->json, "directory", json_string(r->stats.dir));
    return true;
}

/* Prints the JSON object, or the complaint about a failure, and closes. */
static int close_run(struct run *r, mtplx_status st, int rc)
{
    mx_cold_get_stats(r->c, &r->stats);
    if (st != MTPLX_OK) {
        rc = mx_cli_signal_exit();
        if (!rc) {
            mx_cli_complain(r->who, "%s", r->err.message);
            rc = MX_EXIT_FAILURE;
        }
    } else if (r->json) {
        json_object_set(r->json, "messages", r->lines);
        json_object_set_new(r->json, "in_use", json_boolean(!r->stats.writable));
        put_number(r, "snapshots", r->stats.snapshots);
        put_number(r, "blocks", r->stats.blocks);
        put_number(r, "bytes", r->stats.bytes);
        char *text = json_dumps(r->json, JSON_INDENT(2));
        if (text)
            mx_cli_printf(r->out, "%s\n", text);
        else
            r->out->error = ENOMEM;
        free(text);
    }
    mx_cold_close(r->c, UINT64_MAX);
    json_decref(r->json);
    json_decref(r->lines);
    return rc;
}

static const char *human(char buf[32], uint64_t n)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double x = (double)n;
    size_t u = 0;
    while (x >= 1024 && u + 1 < sizeof units / sizeof *units) {
        x /= 1024;
        u++;
    }
    snprintf(buf, 32, u == 0 ? "%.0f %s" : "%.1f %s", x, units[u]);
    return buf;
}

static const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

static void print_total(struct run *r)
{
    char size[32];
    mx_cold_get_stats(r->c, &r->stats);
    if (r->json)
        return;
    mx_cli_printf(r->out, "%llu snapshot%s and %llu block%s, %s, in %s%s%s%s\n",
                  (unsigned long long)r->stats.snapshots, plural(r->stats.snapshots),
                  (unsigned long long)r->stats.blocks, plural(r->stats.blocks),
                  human(size, r->stats.bytes), r->stats.dir, r->stats.writable ? "" : " (",
                  r->stats.why, r->stats.writable ? "" : ")");
}

/* ---- check -------------------------------------------------------------------------------- */

static int run_check(const struct mx_cli_args *args, struct mx_cli_out *out)
{
    struct mx_cold_report rep = {0};
    struct run r;
    int rc;
    if (!open_run(&r, "cache check", args, out, UINT64_MAX, &rc))
        return rc;
    mtplx_status st = mx_cold_check_all(r.c, say, &r, mx_cli_stop_flag(), &rep, &r.err);
    put_number(&r, "checked_files", rep.files);
    put_number(&r, "checked_bytes", rep.bytes);
    uint64_t lost = r.stats.dropped_bad; /* found when opening */
    put_number(&r, "bad_files", rep.bad);
    put_number(&r, "lost_files", lost);
    put_number(&r, "dropped_snapshots", rep.snapshots);
    if (st == MTPLX_OK && !r.json) {
        char size[32];
        mx_cli_printf(out, "%llu file%s, %s checked: ", (unsigned long long)rep.files,
                      plural(rep.files), human(size, rep.bytes));
        if (rep.bad)
            mx_cli_printf(out, "%llu bad, %s\n", (unsigned long long)rep.bad,
                          r.stats.writable ? "dropped" : "not dropped, the cache is in use");
        else if (lost)
            mx_cli_puts(out, "what is left is sound\n");
        else
            mx_cli_puts(out, "all sound\n");
        print_total(&r);
    }
    return close_run(&r, st, rep.bad || lost ? EXIT_BAD : MX_EXIT_OK);
}

/* ---- ls ----------------------------------------------------------------------------------- */

static void hex(char *out, const uint8_t *b, int n)
{
    for (int i = 0; i < n; i++)
        snprintf(out + 2 * i, 3, "%02x", b[i]);
}

static void time_text(char out[24], uint64_t ms)
{
    time_t t = (time_t)(ms / 1000);
    struct tm tm;
    if (!gmtime_r(&t, &tm) || !strftime(out, 24, "%Y-%m-%d %H:%M", &tm))
        snprintf(out, 24, "?");
}

static json_t *item_json(const struct mx_cold_item *i)
{
    char key[33], model[33];
    hex(key, i->key.b, 16);
    hex(model, i->identity.model, 16);
    json_t *label = json_string(i->session);
    return json_pack("{s:s, s:o, s:s, s:I, s:I, s:I, s:I, s:I}", "key", key, "session",
                     label ? label : json_null(), "model", model, "tokens", (json_int_t)i->tokens,
                     "bytes", (json_int_t)i->bytes, "block_bytes", (json_int_t)i->chain_bytes,
                     "created_ms", (json_int_t)i->created, "used_ms", (json_int_t)i->used);
}

static void print_item(struct run *r, const struct mx_cold_item *i)
{
    char key[33], model[33], size[32], used[24];
    struct mx_strbuf b;
    hex(key, i->key.b, 6);
    hex(model, i->identity.model, 4);
    time_text(used, i->used);
    mx_strbuf_init(&b, 0);
    mx_strbuf_printf(&b, "%s  %8llu tokens  %10s  used %s  model %s  %s\n", key,
                     (unsigned long long)i->tokens, human(size, i->bytes + i->chain_bytes), used,
                     model, i->session);
    if (b.failed)
        r->out->error = ENOMEM;
    else
        mx_cli_write_model_text(r->out, b.data, b.len); /* labels come from clients */
    mx_strbuf_free(&b);
}

static bool selected(const struct run *r, const struct mx_cold_item *i)
{
    const char *session = r->args->values[CACHE_OWN].text;
    return !session || strcmp(session, i->session) == 0;
}

static mtplx_status list(struct run *r)
{
    size_t n = mx_cold_list(r->c, NULL, 0);
    struct mx_cold_item *items = calloc(n + 1, sizeof *items);
    json_t *array = r->json ? json_array() : NULL;
    if (!items) {
        json_decref(array);
        return mx_error_nomem(&r->err, "the list", (n + 1) * sizeof *items);
    }
    size_t got = mx_cold_list(r->c, items, n);
    for (size_t i = 0; i < got && i < n; i++) {
        if (!selected(r, &items[i]))
            continue;
        if (array)
            json_array_append_new(array, item_json(&items[i]));
        else
            print_item(r, &items[i]);
    }
    if (array)
        json_object_set_new(r->json, "entries", array);
    free(items);
    print_total(r);
    return MTPLX_OK;
}

static int run_ls(const struct mx_cli_args *args, struct mx_cli_out *out)
{
    struct run r;
    int rc;
    if (!open_run(&r, "cache ls", args, out, UINT64_MAX, &rc))
        return rc;
    return close_run(&r, list(&r), MX_EXIT_OK);
}

/* ---- gc, clear ---------------------------------------------------------------------------- */

static void report_removed(struct run *r, const struct mx_cold_report *rep)
{
    char size[32];
    put_number(r, "removed_files", rep->removed);
    put_number(r, "dropped_snapshots", rep->snapshots);
    put_number(r, "freed_bytes", rep->freed);
    if (r->json)
        return;
    mx_cli_printf(r->out, "dropped %llu snapshot%s, removed %llu stray file%s, freed %s\n",
                  (unsigned long long)rep->snapshots, plural(rep->snapshots),
                  (unsigned long long)rep->removed, plural(rep->removed), human(size, rep->freed));
    print_total(r);
}

static int run_gc(const struct mx_cli_args *args, struct mx_cli_out *out)
{
    struct mx_cold_report rep = {0};
    struct run r;
    int rc;
    uint64_t most = UINT64_MAX;
    const char *text = args->values[CACHE_OWN].text;
    if (text && !(most = mx_cli_size(text))) {
        mx_cli_complain("cache gc", "--max-size takes a size such as 512M or 8G, not \"%.40s\"",
                        text);
        return MX_EXIT_USAGE;
    }
    if (!open_run(&r, "cache gc", args, out, most, &rc))
        return rc;
    mtplx_status st = mx_cold_gc(r.c, &rep, &r.err);
    if (st == MTPLX_OK)
        report_removed(&r, &rep);
    return close_run(&r, st, MX_EXIT_OK);
}

/* Without --yes. */
static int refuse_clear(struct run *r)
{
    char size[32];
    const char *session = r->args->values[CACHE_OWN].text;
    if (session)
        mx_error(&r->err, MTPLX_ERR_ARGUMENT,
                 "this removes the states of session \"%.60s\" in %s; add --yes to do it", session,
                 r->stats.dir);
    else
        mx_error(&r->err, MTPLX_ERR_ARGUMENT,
                 "this removes all %llu snapshot%s, %s, in %s; add --yes to do it",
                 (unsigned long long)r->stats.snapshots, plural(r->stats.snapshots),
                 human(size, r->stats.bytes), r->stats.dir);
    return close_run(r, MTPLX_ERR_ARGUMENT, MX_EXIT_FAILURE);
}

static int run_clear(const struct mx_cli_args *args, struct mx_cli_out *out)
{
    struct mx_cold_report rep = {0};
    struct run r;
    int rc;
    if (!open_run(&r, "cache clear", args, out, UINT64_MAX, &rc))
        return rc;
    if (!args->values[CACHE_YES].on)
        return refuse_clear(&r);
    mtplx_status st = mx_cold_clear(r.c, args->values[CACHE_OWN].text, &rep, &r.err);
    if (st == MTPLX_OK)
        report_removed(&r, &rep);
    return close_run(&r, st, MX_EXIT_OK);
}

/* ---- Table -------------------------------------------------------------------------------- */

#define N_FLAGS(table) (int)(sizeof(table) / sizeof *(table))

const struct mx_cli_command mx_cli_cache_check = {
    .name = "cache check",
    .summary = "Read every file of the session cache and check it.",
    .details = "Compares names, headers, sizes and checksums of all files with each other and with "
               "the manifest. What fails is dropped, with everything that needs it, unless a "
               "server is using the cache.\n\n"
               "Exit codes: 0 all sound, 3 something was bad, 1 the cache could not be read.",
    .flags = check_flags,
    .n_flags = N_FLAGS(check_flags),
    .run = run_check,
};

const struct mx_cli_command mx_cli_cache_ls = {
    .name = "cache ls",
    .summary = "List the states in the session cache.",
    .details = "One line for each state, last used first: the start of its key, how many tokens it "
               "is of, its size with the blocks it needs (which others may share), when it was "
               "used, the start of the hash of its model, and the label of its session.",
    .flags = ls_flags,
    .n_flags = N_FLAGS(ls_flags),
    .run = run_ls,
};

const struct mx_cli_command mx_cli_cache_gc = {
    .name = "cache gc",
    .summary = "Remove from the session cache what is of no use or too much.",
    .details = "Removes files without an entry, drops the least recently used states until the "
               "rest fits, and shrinks the manifest. A server does the same by itself; while one "
               "is using the cache, this only says so.",
    .flags = gc_flags,
    .n_flags = N_FLAGS(gc_flags),
    .run = run_gc,
};

const struct mx_cli_command mx_cli_cache_clear = {
    .name = "cache clear",
    .summary = "Remove all states from the session cache, or those of a session.",
    .details = "Conversations that shared their beginning with a session that is removed keep it. "
               "Refused while a server is using the cache: it has DELETE /admin/sessions.",
    .flags = clear_flags,
    .n_flags = N_FLAGS(clear_flags),
    .run = run_clear,
};
