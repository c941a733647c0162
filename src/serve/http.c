/* The server on libmicrohttpd: its callbacks, and exchanges between them and the handlers.
 *
 * One thread of the library reads requests and writes replies. It never waits: a request whose
 * reply is not there yet has its connection suspended, and whoever adds to the reply resumes it
 * (exchange_int.h, X3). A request goes through on_request() several times:
 *
 *   1. at its head: the exchange is made and screened;
 *   2. for each piece of its body;
 *   3. at its end: it is handed to a preparation thread, and the connection suspended;
 *   4. after the wake-up: the reply is queued. A stream is then read by on_read().
 *
 * on_completed() ends every request that began, whatever happened to it. */
#include "serve/http.h"

#include "base/clock.h"
#include "base/file.h"
#include "serve/body.h"
#include "serve/exchange_int.h"
#include "serve/prepare.h"
#include "serve/request_log.h"
#include "serve/screen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { POOL = 32 << 10, MAX_CONNECTIONS = 4096, PREPARERS = 2, QUEUE = 256, BLOCK = 16 << 10 };

static const char tls_versions[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";
static const size_t max_body_default = (size_t)32 << 20;
static const uint64_t second = 1000000000u;

struct mx_server {
    struct mx_app *app;
    struct mx_http_setup setup;
    struct mx_screen screen;
    struct mx_auth *auth;
    struct mx_rate *rate;
    struct mx_watch *watch;
    struct mx_preparer *preparer;
    struct mx_request_log *log;
    struct MHD_Daemon *daemon;
    char *cert, *key; /* PEM text */
    char *bound;
    int port;
    size_t max_body, max_uploads;
    atomic_size_t uploads; /* bytes of bodies that come in, wait or are in a handler */
    atomic_bool draining, closing;
    int quiesced;         /* the listening socket once it has been taken from the library, or -1 */
    pthread_mutex_t lock; /* in_flight */
    pthread_cond_t fewer;
    size_t in_flight; /* requests that began and are not over */
};

/* ---- Exchanges on connections ------------------------------------------------------------- */

static void park(struct mx_exchange *x)
{
    MHD_suspend_connection(x->conn);
}

static void wake(struct mx_exchange *x)
{
    MHD_resume_connection(x->conn);
}

static const struct mx_exchange_hooks hooks = {.park = park, .wake = wake};

static int slot_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return i && i->socket_context ? (int)(intptr_t)i->socket_context - 1 : -1;
}

static void client_address(struct MHD_Connection *c, char *out, size_t size)
{
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *a = i ? i->client_addr : NULL;
    const void *raw = !a                        ? NULL
                      : a->sa_family == AF_INET ? &((const struct sockaddr_in *)a)->sin_addr
                      : a->sa_family == AF_INET6
                          ? (const void *)&((const struct sockaddr_in6 *)a)->sin6_addr
                          : NULL;
    if (!raw || !inet_ntop(a->sa_family, raw, out, (socklen_t)size))
        out[0] = '\0';
}

static enum MHD_Result add_pair(void *cls, enum MHD_ValueKind kind, const char *name,
                                const char *value)
{
    (void)kind;
    return mx_pairs_add(cls, name, value ? value : "") ? MHD_YES : MHD_NO;
}

static void count_request(struct mx_server *s, int change)
{
    pthread_mutex_lock(&s->lock);
    s->in_flight += (size_t)change;
    if (change < 0)
        pthread_cond_broadcast(&s->fewer);
    pthread_mutex_unlock(&s->lock);
}

static struct mx_exchange *new_exchange(struct mx_server *s, struct MHD_Connection *c,
                                        const char *method, const char *url)
{
    struct mx_exchange *x = mx_exchange_new(&hooks, method, url);
    if (!x)
        return NULL;
    mx_exchange_hold(x);
    x->server = s;
    x->conn = c;
    x->slot = slot_of(c);
    mx_strbuf_init(&x->text, s->max_body);
    client_address(c, x->client, sizeof x->client);
    MHD_get_connection_values(c, MHD_HEADER_KIND, add_pair, &x->headers);
    MHD_get_connection_values(c, MHD_GET_ARGUMENT_KIND, add_pair, &x->query);
    return x;
}

/* A %00 would cut the path off where it stands, and so name another resource: it becomes a byte
 * that no UTF-8 has, which screening refuses. */
static size_t unescape(void *cls, struct MHD_Connection *c, char *text)
{
    (void)cls, (void)c;
    size_t n = MHD_http_unescape(text);
    for (size_t i = 0; i < n; i++)
        if (text[i] == '\0')
            text[i] = (char)0xff;
    return n;
}

static bool replied(struct mx_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool yes = x->state != MX_REPLY_NONE;
    pthread_mutex_unlock(&x->lock);
    return yes;
}

/* ---- Replies ------------------------------------------------------------------------------ */

static ssize_t on_read(void *cls, uint64_t pos, char *buf, size_t max)
{
    struct mx_exchange *x = cls;
    struct mx_server *s = x->server;
    (void)pos;
    size_t n = mx_exchange_take(x, buf, max, true);
    if (n == MX_TAKE_END)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (n == MX_TAKE_CUT)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (n == 0 && atomic_load(&s->closing))
        mx_exchange_set_gone(x);
    return (ssize_t)n;
}

static void on_response_freed(void *cls)
{
    mx_exchange_drop(cls);
}

static struct MHD_Response *make_response(struct mx_exchange *x)
{
    if (x->state == MX_REPLY_WHOLE) {
        x->sent_bytes = x->out.len;
        return MHD_create_response_from_buffer(x->out.len, x->out.data, MHD_RESPMEM_MUST_COPY);
    }
    mx_exchange_hold(x);
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, on_read, x, on_response_freed);
    if (!r)
        mx_exchange_drop(x);
    return r;
}

static void add_headers(struct MHD_Response *r, const struct mx_exchange *x)
{
    if (x->type)
        MHD_add_response_header(r, "Content-Type", x->type);
    MHD_add_response_header(r, "X-Request-Id", x->request_id);
    if (x->dialect == MX_DIALECT_ANTHROPIC)
        MHD_add_response_header(r, "Request-Id", x->request_id);
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    if (!mx_pairs_get(&x->reply_headers, "Cache-Control", true))
        MHD_add_response_header(r, "Cache-Control", "no-store");
    if (x->sse)
        MHD_add_response_header(r, "X-Accel-Buffering", "no"); /* proxies: pass events on at once */
    for (size_t i = 0; i < x->reply_headers.n; i++)
        MHD_add_response_header(r, x->reply_headers.items[i].name, x->reply_headers.items[i].value);
}

static enum MHD_Result queue_reply(struct mx_server *s, struct mx_exchange *x)
{
    enum MHD_Result rc = MHD_NO;
    pthread_mutex_lock(&x->lock);
    struct MHD_Response *r = make_response(x);
    if (r)
        add_headers(r, x);
    if (r && atomic_load(&s->draining))
        MHD_add_response_header(r, "Connection", "close");
    int status = x->status;
    pthread_mutex_unlock(&x->lock);
    if (r) {
        rc = MHD_queue_response(x->conn, (unsigned)status, r);
        MHD_destroy_response(r);
    }
    return rc;
}

/* ---- Requests ----------------------------------------------------------------------------- */

static void fail(struct mx_exchange *x, int status, const char *sentence)
{
    struct mx_api_error e;
    mx_api_fail(&e, status, NULL, "%s", sentence);
    if (status == 503)
        e.retry_after = 1;
    mx_exchange_fail(x, &e);
}

static void uncharge(struct mx_server *s, struct mx_exchange *x)
{
    atomic_fetch_sub(&s->uploads, atomic_exchange(&x->charged, 0));
}

/* A piece of a body. What comes after a refusal is read and dropped, so that the client sees the
 * reply instead of a reset connection, within reason. */
static enum MHD_Result receive(struct mx_server *s, struct mx_exchange *x, const char *data,
                               size_t n)
{
    x->body_bytes += n;
    if (x->body_bytes / 4 > s->max_body)
        return MHD_NO;
    if (replied(x))
        return MHD_YES;
    if (x->body_bytes > s->max_body) {
        fail(x, 413, "the request body is too large");
    } else if (atomic_fetch_add(&s->uploads, n) + n > s->max_uploads) {
        atomic_fetch_sub(&s->uploads, n);
        fail(x, 503, "too many large requests are coming in at once");
    } else {
        atomic_fetch_add(&x->charged, n);
        if (!mx_strbuf_append(&x->text, data, n))
            fail(x, 503, "out of memory for the request body");
    }
    if (replied(x)) {
        mx_strbuf_free(&x->text);
        uncharge(s, x);
    }
    return MHD_YES;
}

/* The request is complete: on to a preparation thread. */
static void submit(struct mx_server *s, struct mx_exchange *x)
{
    enum mx_lane lane = x->entry->flags & MX_ROUTE_QUICK ? MX_LANE_QUICK : MX_LANE_SLOW;
    x->submitted = true;
    if (mx_preparer_submit(s->preparer, lane, x))
        return;
    x->submitted = false;
    fail(x, 503, "the server is busy preparing other requests");
}

static enum MHD_Result finish_request(struct mx_server *s, struct mx_exchange *x)
{
    if (!x->submitted) {
        mx_watch_enter(s->watch, x->slot, MX_WATCH_RUN, x);
        if (!replied(x))
            submit(s, x);
    }
    if (mx_exchange_park(x)) {
        if (atomic_load(&s->closing))
            mx_exchange_set_gone(x);
        return MHD_YES;
    }
    return replied(x) ? queue_reply(s, x) : MHD_NO;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *n, void **mine)
{
    struct mx_server *s = cls;
    struct mx_exchange *x = *mine;
    (void)version;
    if (!x) {
        if (atomic_load(&s->closing) || !(x = new_exchange(s, c, method, url)))
            return MHD_NO;
        *mine = x;
        count_request(s, 1);
        mx_watch_enter(s->watch, x->slot, MX_WATCH_BODY, NULL);
        mx_screen_request(&s->screen, x, atomic_load(&s->draining));
        const char *expect = mx_exchange_header(x, "Expect");
        return expect && replied(x) ? queue_reply(s, x) : MHD_YES;
    }
    if (*n == 0)
        return finish_request(s, x);
    enum MHD_Result rc = receive(s, x, data, *n);
    *n = 0;
    return rc;
}

/* On a preparation thread. */
static void prepare(void *arg, struct mx_exchange *x)
{
    struct mx_server *s = arg;
    struct mx_api_error e;
    if (mx_exchange_gone(x))
        return;
    if (x->entry->flags & MX_ROUTE_BODY) {
        x->body = mx_body_parse(x->text.data, x->text.len, &e);
        if (!x->body) {
            mx_exchange_fail(x, &e);
            return;
        }
    }
    mx_strbuf_free(&x->text);
    x->entry->handler(s->app, x);
    json_decref(x->body);
    x->body = NULL;
    uncharge(s, x);
}

/* ---- The end of a request ----------------------------------------------------------------- */

static void report(struct mx_server *s, struct mx_exchange *x)
{
    uint64_t ns = mx_now_ns() - x->started_ns;
    pthread_mutex_lock(&x->lock);
    int status = x->lost || x->status == 0 ? 499 : x->broken ? 500 : x->status;
    pthread_mutex_unlock(&x->lock);
    if (s->log)
        mx_request_log_write(s->log, x, status, ns);
    if (s->setup.done)
        s->setup.done(s->app, x, status, ns);
}

static void on_completed(void *cls, struct MHD_Connection *c, void **mine,
                         enum MHD_RequestTerminationCode how)
{
    struct mx_server *s = cls;
    struct mx_exchange *x = *mine;
    (void)c;
    (void)how;
    if (!x)
        return;
    *mine = NULL;
    mx_watch_enter(s->watch, x->slot, MX_WATCH_HEAD, NULL);
    mx_exchange_set_gone(x); /* says nothing when the reply was complete */
    uncharge(s, x);
    report(s, x);
    if (!x->submitted)
        mx_exchange_unref(x);
    mx_exchange_drop(x);
    count_request(s, -1);
}

static void on_connection(void *cls, struct MHD_Connection *c, void **context,
                          enum MHD_ConnectionNotificationCode what)
{
    struct mx_server *s = cls;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *i =
            MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
        int slot = i ? mx_watch_open(s->watch, i->connect_fd) : -1;
        *context = (void *)(intptr_t)(slot + 1);
    } else {
        mx_watch_close(s->watch, (int)(intptr_t)*context - 1);
        *context = NULL;
    }
}

/* ---- Life --------------------------------------------------------------------------------- */

static void silent_log(void *cls, const char *fmt, va_list ap)
{
    (void)cls;
    (void)fmt;
    (void)ap;
}

static void set_times(struct mx_watch_times *t)
{
    t->tick_ns = t->tick_ns ? t->tick_ns : second / 2;
    t->keep_alive_ns = t->keep_alive_ns ? t->keep_alive_ns : 5 * second;
    t->head_ns = t->head_ns ? t->head_ns : 60 * second;
    t->body_ns = t->body_ns ? t->body_ns : 120 * second;
}

static void set_screen(struct mx_server *s, const struct mx_server_options *o)
{
    s->screen = (struct mx_screen){
        .routes = s->setup.routes,
        .n_routes = s->setup.n_routes,
        .guard = {.bound = s->bound,
                  .hosts = o->hosts,
                  .n_hosts = o->n_hosts,
                  .origins = o->origins,
                  .n_origins = o->n_origins},
        .auth = s->auth,
        .rate = s->rate,
        .max_body = s->max_body,
    };
}

static mtplx_status read_tls(struct mx_server *s, const struct mx_server_options *o,
                             mtplx_error *err)
{
    if (!o->tls_cert && !o->tls_key)
        return MTPLX_OK;
    if (!o->tls_cert || !o->tls_key)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "TLS needs both --tls-cert and --tls-key");
    if (MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES)
        return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                        "this system's libmicrohttpd was built without TLS");
    s->cert = mx_file_read(o->tls_cert, 1 << 20, NULL, err);
    s->key = s->cert ? mx_file_read(o->tls_key, 1 << 20, NULL, err) : NULL;
    return s->key ? MTPLX_OK : err->status;
}

static mtplx_status start_parts(struct mx_server *s, const struct mx_server_options *o, int limit,
                                mtplx_error *err)
{
    s->auth = mx_auth_new(o->api_keys, o->n_api_keys, err);
    if (!s->auth)
        return err->status;
    if (!mx_host_is_loopback(s->bound) && o->n_api_keys == 0)
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "binding %.100s would let anyone on the network in: set --api-key, "
                        "--api-key-file or MTPLX_API_KEY, or bind 127.0.0.1",
                        s->bound);
    if (o->rate_limit > 0 && !(s->rate = mx_rate_new(o->rate_limit)))
        return mx_error_nomem(err, "the rate limiter", 0);
    if (o->log_path && !(s->log = mx_request_log_open(o->log_path, err)))
        return err->status;
    set_screen(s, o);
    s->watch = mx_watch_new((size_t)limit + 16, &s->setup.times, err);
    if (!s->watch)
        return err->status;
    s->preparer = mx_preparer_new(o->preparers > 0 ? o->preparers : PREPARERS,
                                  s->setup.queue ? s->setup.queue : QUEUE, prepare, s, err);
    return s->preparer ? read_tls(s, o, err) : err->status;
}

static struct MHD_Daemon *start_daemon(struct mx_server *s, int fd, int limit)
{
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, s->cert},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, s->key},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)tls_versions},
        {MHD_OPTION_END, 0, NULL},
    };
    /* On the loopback every client has the same address. */
    int per_address = mx_host_is_loopback(s->bound) ? 0 : limit / 4 + 1;
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC |
                     MHD_USE_ERROR_LOG | (s->cert ? MHD_USE_TLS : 0);
    return MHD_start_daemon(
        flags, 0, NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER, silent_log, NULL,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)limit,
        MHD_OPTION_PER_IP_CONNECTION_LIMIT, (unsigned)per_address,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)POOL, MHD_OPTION_CONNECTION_MEMORY_INCREMENT,
        (size_t)4096, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_NOTIFY_COMPLETED, on_completed, s,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_UNESCAPE_CALLBACK, unescape,
        NULL, MHD_OPTION_ARRAY, s->cert ? tls : tls + 3, MHD_OPTION_END);
}

static mtplx_status start(struct mx_server *s, const struct mx_server_options *o, mtplx_error *err)
{
    int limit = mx_raise_file_limit(o->max_connections > 0 ? o->max_connections : MAX_CONNECTIONS);
    if (!s->bound)
        return mx_error_nomem(err, "the server", 64);
    mtplx_status st = start_parts(s, o, limit, err);
    if (st != MTPLX_OK)
        return st;
    int fd = mx_listen(s->bound, o->port, &s->port, err);
    if (fd < 0)
        return err->status;
    s->daemon = start_daemon(s, fd, limit);
    if (s->daemon)
        return MTPLX_OK;
    close(fd);
    return mx_error(err, MTPLX_ERR_IO, "cannot start the HTTP server%s",
                    s->cert ? " (are --tls-cert and --tls-key a matching pair of PEM files?)" : "");
}

/* Its waits end in time though somebody sets the clock. */
static void init_steady(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

struct mx_server *mx_http_start(struct mx_app *app, const struct mx_server_options *o,
                                const struct mx_http_setup *setup, mtplx_error *err)
{
    mtplx_error local = {0};
    struct mx_server *s = calloc(1, sizeof *s);
    err = err ? err : &local;
    if (!s) {
        mx_error_nomem(err, "the server", sizeof *s);
        return NULL;
    }
    pthread_mutex_init(&s->lock, NULL);
    init_steady(&s->fewer);
    s->app = app;
    s->quiesced = -1;
    s->setup = *setup;
    set_times(&s->setup.times);
    s->bound = strdup(o->host ? o->host : "127.0.0.1");
    s->max_body = o->max_body ? o->max_body : max_body_default;
    s->max_uploads = setup->max_uploads ? setup->max_uploads : 8 * s->max_body;
    if (start(s, o, err) == MTPLX_OK)
        return s;
    mx_server_free(s);
    return NULL;
}

int mx_server_port(const struct mx_server *s)
{
    return s->port;
}

void mx_server_quiesce(struct mx_server *s)
{
    atomic_store(&s->draining, true);
    /* The library's thread may still have its hands on the socket, so it is closed at the end. */
    MHD_socket fd = MHD_quiesce_daemon(s->daemon);
    if (fd != MHD_INVALID_SOCKET) {
        shutdown(fd, SHUT_RDWR); /* connecting is refused from here on */
        s->quiesced = fd;
    }
    mx_watch_cut_idle(s->watch);
}

bool mx_server_drain(struct mx_server *s, uint64_t timeout_ns)
{
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    uint64_t ns = (uint64_t)end.tv_nsec + timeout_ns % second;
    end.tv_sec += (time_t)(timeout_ns / second + ns / second);
    end.tv_nsec = (long)(ns % second);
    pthread_mutex_lock(&s->lock);
    while (s->in_flight > 0 && pthread_cond_timedwait(&s->fewer, &s->lock, &end) == 0)
        ;
    bool none = s->in_flight == 0;
    pthread_mutex_unlock(&s->lock);
    return none;
}

static void wipe_free(char *secret)
{
    if (secret)
        explicit_bzero(secret, strlen(secret));
    free(secret);
}

void mx_server_free(struct mx_server *s)
{
    if (!s)
        return;
    atomic_store(&s->closing, true);
    if (s->daemon) {
        /* The library may not stop while a connection is suspended. */
        mx_watch_cut_all(s->watch);
        MHD_stop_daemon(s->daemon);
    }
    if (s->quiesced >= 0)
        close(s->quiesced);
    mx_preparer_free(s->preparer);
    mx_watch_free(s->watch);
    mx_request_log_close(s->log);
    mx_rate_free(s->rate);
    mx_auth_free(s->auth);
    free(s->cert);
    wipe_free(s->key);
    free(s->bound);
    pthread_cond_destroy(&s->fewer);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
