/* An exchange: the object, and what a handler reads of the request. reply.c has the reply. */
#include "serve/exchange_int.h"

#include "base/clock.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- Pairs -------------------------------------------------------------------------------- */

bool mx_pairs_add(struct mx_pairs *p, const char *name, const char *value)
{
    if (p->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 16;
        struct mx_pair *items = realloc(p->items, cap * sizeof *items);
        if (!items)
            return false;
        p->items = items;
        p->cap = cap;
    }
    struct mx_pair pair = {strdup(name), strdup(value)};
    if (!pair.name || !pair.value) {
        free(pair.name);
        free(pair.value);
        return false;
    }
    p->items[p->n++] = pair;
    return true;
}

const char *mx_pairs_get(const struct mx_pairs *p, const char *name, bool any_case)
{
    for (size_t i = 0; i < p->n; i++) {
        const char *have = p->items[i].name;
        if ((any_case ? strcasecmp(have, name) : strcmp(have, name)) == 0)
            return p->items[i].value;
    }
    return NULL;
}

void mx_pairs_free(struct mx_pairs *p)
{
    for (size_t i = 0; i < p->n; i++) {
        free(p->items[i].name);
        free(p->items[i].value);
    }
    free(p->items);
    *p = (struct mx_pairs){0};
}

/* ---- Object ------------------------------------------------------------------------------- */

static void make_request_id(char out[32])
{
    unsigned char raw[12];
    memcpy(out, "req_", 4);
    randombytes_buf(raw, sizeof raw);
    sodium_bin2hex(out + 4, 28, raw, sizeof raw);
}

static void destroy(struct mx_exchange *x)
{
    free(x->method);
    free(x->path);
    free(x->id);
    mx_pairs_free(&x->headers);
    mx_pairs_free(&x->query);
    mx_pairs_free(&x->reply_headers);
    mx_strbuf_free(&x->text);
    mx_outbox_free(&x->out);
    json_decref(x->body);
    json_decref(x->notes);
    free(x->type);
    pthread_cond_destroy(&x->calm);
    pthread_mutex_destroy(&x->lock);
    free(x);
}

struct mx_exchange *mx_exchange_new(const struct mx_exchange_hooks *hooks, const char *method,
                                    const char *path)
{
    struct mx_exchange *x = sodium_init() < 0 ? NULL : calloc(1, sizeof *x);
    if (!x)
        return NULL;
    atomic_init(&x->users, 1);
    atomic_init(&x->refs, 1);
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->calm, NULL);
    mx_strbuf_init(&x->text, 0);
    make_request_id(x->request_id);
    x->slot = -1;
    x->authorized = true;
    x->route = "";
    x->started_ns = mx_now_ns();
    x->method = strdup(method);
    x->path = strdup(path);
    x->id = strdup("");
    if (!x->method || !x->path || !x->id) {
        destroy(x);
        return NULL;
    }
    x->hooks = hooks;
    return x;
}

void mx_exchange_hold(struct mx_exchange *x)
{
    atomic_fetch_add_explicit(&x->refs, 1, memory_order_relaxed);
}

void mx_exchange_drop(struct mx_exchange *x)
{
    if (atomic_fetch_sub_explicit(&x->refs, 1, memory_order_acq_rel) == 1)
        destroy(x);
}

struct mx_exchange *mx_exchange_ref(struct mx_exchange *x)
{
    atomic_fetch_add_explicit(&x->users, 1, memory_order_relaxed);
    return x;
}

void mx_exchange_unref(struct mx_exchange *x)
{
    if (atomic_fetch_sub_explicit(&x->users, 1, memory_order_acq_rel) != 1)
        return;
    mx_exchange_abandon(x);
    mx_exchange_drop(x);
}

/* ---- The request -------------------------------------------------------------------------- */

const char *mx_exchange_method(const struct mx_exchange *x)
{
    return x->method;
}

const char *mx_exchange_path(const struct mx_exchange *x)
{
    return x->path;
}

const char *mx_exchange_id(const struct mx_exchange *x)
{
    return x->id;
}

const char *mx_exchange_route(const struct mx_exchange *x)
{
    return x->route;
}

const char *mx_exchange_header(struct mx_exchange *x, const char *name)
{
    return mx_pairs_get(&x->headers, name, true);
}

const char *mx_exchange_query(struct mx_exchange *x, const char *name)
{
    return mx_pairs_get(&x->query, name, false);
}

const json_t *mx_exchange_body(const struct mx_exchange *x)
{
    return x->body;
}

size_t mx_exchange_body_bytes(const struct mx_exchange *x)
{
    return x->body_bytes;
}

const char *mx_exchange_request_id(const struct mx_exchange *x)
{
    return x->request_id;
}

const char *mx_exchange_client(const struct mx_exchange *x)
{
    return x->client;
}

bool mx_exchange_authorized(const struct mx_exchange *x)
{
    return x->authorized;
}

uint64_t mx_exchange_started_ns(const struct mx_exchange *x)
{
    return x->started_ns;
}

void mx_exchange_note(struct mx_exchange *x, json_t *members)
{
    pthread_mutex_lock(&x->lock);
    if (x->notes)
        json_object_update(x->notes, members);
    else
        x->notes = json_incref(members);
    pthread_mutex_unlock(&x->lock);
    json_decref(members);
}
