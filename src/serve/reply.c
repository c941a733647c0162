/* The reply of an exchange: whole or streamed, its backlog, and who is told that the client left.
 */
#include "serve/exchange_int.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

/* ---- Outbox ------------------------------------------------------------------------------- */

/* Room for n more bytes at the end. */
static bool reserve(struct mx_outbox *o, size_t n)
{
    size_t used = o->len - o->off;
    if (o->off > 0 && (used == 0 || o->off >= used)) {
        memmove(o->data, o->data + o->off, used);
        o->off = 0;
        o->len = used;
    }
    if (o->cap - o->len >= n)
        return true;
    size_t cap = o->cap ? o->cap : 1024;
    while (cap - o->len < n)
        cap *= 2;
    char *data = realloc(o->data, cap);
    if (!data)
        return false;
    o->data = data;
    o->cap = cap;
    return true;
}

bool mx_outbox_put(struct mx_outbox *o, const void *data, size_t n, size_t max)
{
    if (n > max || o->len - o->off > max - n || !reserve(o, n))
        return false;
    if (n > 0)
        memcpy(o->data + o->len, data, n);
    o->len += n;
    return true;
}

size_t mx_outbox_take(struct mx_outbox *o, void *to, size_t max)
{
    size_t n = o->len - o->off;
    if (n > max)
        n = max;
    if (n > 0)
        memcpy(to, o->data + o->off, n);
    o->off += n;
    return n;
}

void mx_outbox_free(struct mx_outbox *o)
{
    free(o->data);
    *o = (struct mx_outbox){0};
}

static size_t waiting(const struct mx_exchange *x)
{
    return x->out.len - x->out.off;
}

static bool complete(const struct mx_exchange *x)
{
    return x->state == MX_REPLY_WHOLE || x->state == MX_REPLY_ENDED;
}

/* ---- Wake-ups and callbacks --------------------------------------------------------------- */

static void wake(struct mx_exchange *x)
{
    if (!x->parked)
        return;
    x->parked = false;
    x->taken_ns = mx_now_ns();
    if (x->hooks && x->hooks->wake)
        x->hooks->wake(x);
}

static void park(struct mx_exchange *x)
{
    x->parked = true;
    if (x->hooks && x->hooks->park)
        x->hooks->park(x);
}

/* Calls back without the lock, which is held before and after. */
static void call(struct mx_exchange *x, int kind)
{
    struct mx_callback *cb = &x->on[kind];
    if (!cb->fn || cb->running)
        return;
    struct mx_callback now = *cb;
    cb->running = true;
    cb->thread = pthread_self();
    if (kind == MX_ON_GONE)
        cb->fn = NULL;
    pthread_mutex_unlock(&x->lock);
    now.fn(now.arg, now.value);
    pthread_mutex_lock(&x->lock);
    cb->running = false;
    pthread_cond_broadcast(&x->calm);
}

/* With the reply complete no callback starts; this waits for those that run elsewhere. */
static void settle(struct mx_exchange *x)
{
    for (int i = 0; i < MX_ON_KINDS; i++) {
        struct mx_callback *cb = &x->on[i];
        cb->fn = NULL;
        while (cb->running && !pthread_equal(cb->thread, pthread_self()))
            pthread_cond_wait(&x->calm, &x->lock);
    }
}

static void set_gone(struct mx_exchange *x)
{
    if (x->gone)
        return;
    x->gone = true;
    wake(x);
    x->lost = !complete(x);
    if (x->lost)
        call(x, MX_ON_GONE);
}

void mx_exchange_set_gone(struct mx_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    set_gone(x);
    pthread_mutex_unlock(&x->lock);
}

bool mx_exchange_gone(struct mx_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool gone = x->gone;
    pthread_mutex_unlock(&x->lock);
    return gone;
}

static void set_callback(struct mx_exchange *x, int kind, mx_gone_fn *fn, void *arg, uint64_t value)
{
    struct mx_callback *cb = &x->on[kind];
    cb->fn = complete(x) ? NULL : fn;
    cb->arg = arg;
    cb->value = value;
}

void mx_exchange_on_gone(struct mx_exchange *x, mx_gone_fn *fn, void *arg, uint64_t value)
{
    pthread_mutex_lock(&x->lock);
    set_callback(x, MX_ON_GONE, fn, arg, value);
    if (x->gone)
        call(x, MX_ON_GONE);
    pthread_mutex_unlock(&x->lock);
}

void mx_exchange_on_drained(struct mx_exchange *x, mx_gone_fn *fn, void *arg, uint64_t value)
{
    pthread_mutex_lock(&x->lock);
    set_callback(x, MX_ON_DRAINED, fn, arg, value);
    pthread_mutex_unlock(&x->lock);
}

/* ---- Whole replies ------------------------------------------------------------------------ */

static bool printable(const char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            return false;
    return true;
}

void mx_exchange_set_header(struct mx_exchange *x, const char *name, const char *value)
{
    if (!printable(name) || !printable(value))
        return;
    pthread_mutex_lock(&x->lock);
    if (x->state == MX_REPLY_NONE)
        mx_pairs_add(&x->reply_headers, name, value);
    pthread_mutex_unlock(&x->lock);
}

static void set_head(struct mx_exchange *x, int status, const char *type)
{
    x->status = status;
    x->type = type ? strdup(type) : NULL;
    x->written_ns = x->taken_ns = mx_now_ns();
}

static bool send_locked(struct mx_exchange *x, int status, const char *type, const void *body,
                        size_t n)
{
    static const char nomem[] = "{\"error\":{\"message\":\"out of memory\",\"type\":"
                                "\"server_error\",\"param\":null,\"code\":null}}";
    if (x->state != MX_REPLY_NONE)
        return false;
    if (!mx_outbox_put(&x->out, body, n, SIZE_MAX / 4)) {
        status = 500;
        type = "application/json";
        mx_outbox_put(&x->out, nomem, sizeof nomem - 1, sizeof nomem);
    }
    set_head(x, status, type);
    x->state = MX_REPLY_WHOLE;
    wake(x);
    settle(x);
    return true;
}

bool mx_exchange_try_send(struct mx_exchange *x, int status, const char *type, const void *body,
                          size_t n)
{
    pthread_mutex_lock(&x->lock);
    bool sent = send_locked(x, status, type, body, n);
    pthread_mutex_unlock(&x->lock);
    return sent;
}

void mx_exchange_send(struct mx_exchange *x, int status, const char *type, const void *body,
                      size_t n)
{
    mx_exchange_try_send(x, status, type, body, n);
}

void mx_exchange_send_json(struct mx_exchange *x, int status, json_t *body)
{
    static const char broken[] = "{\"error\":{\"message\":\"the reply could not be written\","
                                 "\"type\":\"server_error\",\"param\":null,\"code\":null}}";
    char *text = body ? json_dumps(body, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    if (text)
        mx_exchange_send(x, status, "application/json", text, strlen(text));
    else
        mx_exchange_send(x, 500, "application/json", broken, sizeof broken - 1);
    free(text);
    json_decref(body);
}

/* ---- Streams ------------------------------------------------------------------------------ */

void mx_exchange_begin(struct mx_exchange *x, int status, const char *type)
{
    pthread_mutex_lock(&x->lock);
    if (x->state == MX_REPLY_NONE) {
        set_head(x, status, type);
        x->state = MX_REPLY_STREAM;
        x->sse = strncmp(type, "text/event-stream", 17) == 0;
        x->boundary = true;
        wake(x);
    }
    pthread_mutex_unlock(&x->lock);
}

/* What is common after bytes were put, or did not fit: a stream with a hole is of no use to anyone,
 * so its client is cut off. */
static bool put_done(struct mx_exchange *x, bool ok)
{
    if (!ok) {
        set_gone(x);
        return false;
    }
    x->written_ns = mx_now_ns();
    if (waiting(x) > MX_STREAM_HIGH)
        x->above = true;
    if (waiting(x) > 0)
        wake(x);
    return true;
}

static bool writable(const struct mx_exchange *x)
{
    return x->state == MX_REPLY_STREAM && !x->gone;
}

/* Whether the bytes that wait end with an empty line; short pieces count as inside an event. */
static bool at_boundary(const void *data, size_t n)
{
    return n >= 2 && memcmp((const char *)data + n - 2, "\n\n", 2) == 0;
}

bool mx_exchange_write(struct mx_exchange *x, const void *data, size_t n)
{
    pthread_mutex_lock(&x->lock);
    bool ok = writable(x);
    if (ok && n > 0) {
        ok = put_done(x, mx_outbox_put(&x->out, data, n, MX_STREAM_MAX));
        x->boundary = at_boundary(data, n);
    }
    pthread_mutex_unlock(&x->lock);
    return ok;
}

static bool put(struct mx_exchange *x, const char *s, size_t n)
{
    return mx_outbox_put(&x->out, s, n, MX_STREAM_MAX);
}

/* "data: " before every line of it. */
static bool put_data(struct mx_exchange *x, const char *data, size_t n)
{
    for (;;) {
        const char *end = n > 0 ? memchr(data, '\n', n) : NULL;
        size_t line = end ? (size_t)(end - data) : n;
        if (!put(x, "data: ", 6) || !put(x, data, line) || !put(x, "\n", 1))
            return false;
        if (!end)
            return true;
        data += line + 1;
        n -= line + 1;
    }
}

bool mx_exchange_event(struct mx_exchange *x, const char *name, const char *data, size_t n)
{
    pthread_mutex_lock(&x->lock);
    bool ok = writable(x);
    if (ok) {
        ok = !name || (put(x, "event: ", 7) && put(x, name, strlen(name)) && put(x, "\n", 1));
        ok = put_done(x, ok && put_data(x, data, n) && put(x, "\n", 1));
        x->boundary = true;
    }
    pthread_mutex_unlock(&x->lock);
    return ok;
}

void mx_exchange_end(struct mx_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    if (x->state == MX_REPLY_STREAM) {
        x->state = MX_REPLY_ENDED;
        wake(x);
        settle(x);
    }
    pthread_mutex_unlock(&x->lock);
}

size_t mx_exchange_backlog(struct mx_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    size_t n = waiting(x);
    pthread_mutex_unlock(&x->lock);
    return n;
}

void mx_exchange_abandon(struct mx_exchange *x)
{
    struct mx_api_error e;
    pthread_mutex_lock(&x->lock);
    enum mx_reply_state state = x->state;
    if (state == MX_REPLY_STREAM) {
        x->state = MX_REPLY_ENDED;
        x->broken = true;
        wake(x);
        settle(x);
    }
    pthread_mutex_unlock(&x->lock);
    if (state != MX_REPLY_NONE)
        return;
    mx_api_fail(&e, 500, NULL, "the request was dropped without an answer");
    mx_exchange_fail(x, &e);
}

/* ---- The HTTP side ------------------------------------------------------------------------ */

bool mx_exchange_park(struct mx_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool ok = x->state == MX_REPLY_NONE && !x->gone;
    if (ok)
        park(x);
    pthread_mutex_unlock(&x->lock);
    return ok;
}

static size_t take(struct mx_exchange *x, void *to, size_t max, bool may_park)
{
    size_t n = mx_outbox_take(&x->out, to, max);
    if (n > 0) {
        x->taken_ns = mx_now_ns();
        x->sent_bytes += n;
        if (x->above && waiting(x) < MX_STREAM_HIGH / 2) {
            x->above = false;
            if (!complete(x))
                call(x, MX_ON_DRAINED);
        }
        return n;
    }
    if (complete(x))
        return x->broken || x->lost ? MX_TAKE_CUT : MX_TAKE_END;
    if (x->gone)
        return MX_TAKE_CUT;
    if (may_park)
        park(x);
    return 0;
}

size_t mx_exchange_take(struct mx_exchange *x, void *to, size_t max, bool may_park)
{
    pthread_mutex_lock(&x->lock);
    size_t n = take(x, to, max, may_park);
    pthread_mutex_unlock(&x->lock);
    return n;
}

void mx_exchange_keep_alive(struct mx_exchange *x, uint64_t before)
{
    static const char comment[] = ": keep-alive\n\n";
    pthread_mutex_lock(&x->lock);
    if (writable(x) && x->sse && x->boundary && waiting(x) == 0 && x->written_ns < before)
        put_done(x, put(x, comment, sizeof comment - 1));
    pthread_mutex_unlock(&x->lock);
}

bool mx_exchange_stalled(struct mx_exchange *x, uint64_t before)
{
    pthread_mutex_lock(&x->lock);
    bool stalled = !x->parked && x->state != MX_REPLY_NONE && x->taken_ns < before;
    pthread_mutex_unlock(&x->lock);
    return stalled;
}
