/* Exchanges without a network, for tests of what reads requests and writes replies. */
#ifndef TESTS_EXCHANGE_RIG_H
#define TESTS_EXCHANGE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "serve/exchange_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline json_t *parse_json(const char *text)
{
    json_error_t e;
    json_t *v = json_loads(text, JSON_DECODE_ANY, &e);
    if (!v)
        fail_msg("%s: %s", e.text, text);
    return v;
}

/* The text with double quotes for single ones, to be freed: tables are written with those. */
static inline char *requote(const char *s)
{
    char *out = strdup(s);
    for (char *p = out; *p; p++)
        *p = *p == '\'' ? '"' : *p;
    return out;
}

static inline void assert_json(const json_t *got, const char *want)
{
    char *quoted = requote(want);
    json_t *w = parse_json(quoted);
    if (!json_equal(got, w)) {
        char *text = json_dumps(got, JSON_ENCODE_ANY);
        fail_msg("got  %s\nwant %s", text ? text : "nothing", quoted);
    }
    json_decref(w);
    free(quoted);
}

/* An exchange of a client whose request has a known id. Steals the body. */
static inline struct mx_exchange *rig_exchange(enum mx_dialect dialect, json_t *body)
{
    struct mx_exchange *x = mx_exchange_new(NULL, "POST", "/");
    assert_non_null(x);
    mx_exchange_hold(x);
    x->dialect = dialect;
    x->body = body;
    snprintf(x->request_id, sizeof x->request_id, "req_0123456789abcdef01234567");
    snprintf(x->client, sizeof x->client, "client");
    return x;
}

/* The reply so far: a body, or events as lines of name, blank and data. To be freed. */
static inline char *rig_reply(struct mx_exchange *x)
{
    struct mx_strbuf all, out;
    char piece[4096];
    size_t n;
    mx_strbuf_init(&all, 0);
    mx_strbuf_init(&out, 0);
    mx_strbuf_puts(&all, "");
    while ((n = mx_exchange_take(x, piece, sizeof piece, false)) > 0 && n <= sizeof piece)
        mx_strbuf_append(&all, piece, n);
    if (!x->sse)
        return mx_strbuf_steal(&all, &n);
    char *save = NULL;
    mx_strbuf_puts(&out, "");
    for (char *l = strtok_r(all.data, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
        if (strncmp(l, "event: ", 7) == 0)
            mx_strbuf_printf(&out, "%s ", l + 7);
        else if (strncmp(l, "data: ", 6) == 0)
            mx_strbuf_printf(&out, "%s\n", l + 6);
    }
    mx_strbuf_free(&all);
    return mx_strbuf_steal(&out, &n);
}

static inline void rig_free(struct mx_exchange *x)
{
    assert_int_equal(atomic_load(&x->users), 1);
    mx_exchange_unref(x);
    mx_exchange_drop(x);
}

#endif
