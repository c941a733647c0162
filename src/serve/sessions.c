/* /admin: what the session bank holds, and how to pin it and to forget it.
 *
 * A session is named by its label, an entry by its number. */
#include "serve/api.h"
#include "serve/metrics_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static json_t *totals(struct mx_app *app)
{
    struct mx_bank *b = mx_status_bank_of(app);
    struct mx_bank_stats s = {0};
    json_t *sessions = mx_status_sessions(app);
    if (b)
        mx_bank_get_stats(b, &s);
    return json_pack("{s:o, s:I, s:I, s:I, s:I}", "sessions", sessions, "count",
                     (json_int_t)json_array_size(sessions), "entries", (json_int_t)s.entries,
                     "bytes", (json_int_t)s.bytes, "budget_bytes", (json_int_t)s.budget);
}

void mx_api_sessions(struct mx_app *app, struct mx_exchange *x)
{
    mx_exchange_set_header(x, "Cache-Control", "no-store");
    mx_exchange_send_json(x, 200, totals(app));
}

/* ---- Forgetting --------------------------------------------------------------------------- */

/* Entries are numbers as the list has them; 0: it is none. */
static uint64_t number_of(const char *id)
{
    char *end;
    if (*id < '0' || *id > '9')
        return 0;
    errno = 0;
    unsigned long long n = strtoull(id, &end, 10);
    return *end || errno ? 0 : n;
}

/* Whether those on disk are meant too. False: it was refused. */
static bool read_cold(struct mx_exchange *x, bool *cold)
{
    const char *v = mx_exchange_query(x, "cold");
    struct mx_api_error e = {0};
    *cold = v && (strcmp(v, "true") == 0 || strcmp(v, "1") == 0);
    if (!v || *cold || strcmp(v, "false") == 0 || strcmp(v, "0") == 0)
        return true;
    mx_api_fail(&e, 400, "cold", "the parameter 'cold' is true or false, not \"%.32s\"", v);
    mx_exchange_fail(x, &e);
    return false;
}

static void not_found(struct mx_exchange *x)
{
    struct mx_api_error e = {0};
    mx_api_fail(&e, 404, "id", "no session or entry %.60s is kept: GET /admin/sessions lists them",
                mx_exchange_id(x));
    mx_exchange_fail(x, &e);
}

void mx_api_session_clear(struct mx_app *app, struct mx_exchange *x)
{
    struct mx_bank *b = mx_status_bank_of(app);
    const char *id = mx_exchange_id(x);
    uint64_t number = number_of(id);
    bool cold;
    if (!read_cold(x, &cold))
        return;
    int n = b && *id ? mx_bank_drop(b, id, 0, cold) : 0;
    if (b && n == 0 && number != 0)
        n = mx_bank_drop(b, NULL, number, cold);
    if (n == 0) {
        not_found(x);
        return;
    }
    mx_exchange_send_json(
        x, 200, json_pack("{s:s, s:i, s:b, s:b}", "id", id, "cleared", n, "ok", 1, "cold", cold));
}

void mx_api_cache_clear(struct mx_app *app, struct mx_exchange *x)
{
    struct mx_bank *b = mx_status_bank_of(app);
    bool cold;
    if (!read_cold(x, &cold))
        return;
    int n = b ? mx_bank_drop(b, NULL, 0, cold) : 0;
    mx_exchange_send_json(x, 200, json_pack("{s:i, s:b}", "cleared", n, "cold", cold));
}

/* ---- Pinning ------------------------------------------------------------------------------ */

static void pin(struct mx_app *app, struct mx_exchange *x, bool on)
{
    struct mx_bank *b = mx_status_bank_of(app);
    const char *id = mx_exchange_id(x);
    int n = b && *id ? mx_bank_pin(b, id, on) : 0;
    if (n > 0)
        mx_exchange_send_json(
            x, 200, json_pack("{s:s, s:b, s:i}", "id", id, "pinned", (int)on, "entries", n));
    else
        not_found(x);
}

void mx_api_session_pin(struct mx_app *app, struct mx_exchange *x)
{
    pin(app, x, true);
}

void mx_api_session_unpin(struct mx_app *app, struct mx_exchange *x)
{
    pin(app, x, false);
}

/* ---- Statistics --------------------------------------------------------------------------- */

void mx_api_cache(struct mx_app *app, struct mx_exchange *x)
{
    struct mx_engine_snapshot *s = mx_status_snapshot(app);
    struct mx_metrics_data *d = mx_metrics_copy(app->metrics);
    json_t *o = NULL;
    if (s && d)
        o = json_pack("{s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "prompt_tokens",
                      (json_int_t)s->counters.prompt_tokens, "cached_tokens",
                      (json_int_t)s->counters.cached_tokens, "misses", mx_status_misses(d), "bank",
                      mx_status_bank(app), "ssd", mx_status_cold(app), "turn_alignment",
                      mx_status_align(app), "memory", mx_status_memory(s));
    free(s);
    free(d);
    mx_exchange_set_header(x, "Cache-Control", "no-store");
    mx_exchange_send_json(x, 200, o);
}
