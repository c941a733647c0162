/* The HTTP side over real loopback sockets, with handlers of its own: bodies, limits, keys, Host
 * and Origin, rate limits, streams, hang-ups, and crowds of idle connections. */
#include "serve/http.h"

#include "base/clock.h"
#include "serve/auth.h"
#include "serve/body.h"
#include "serve/exchange_int.h"
#include "serve/guard.h"

#include "unit/http_client.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmocka.h>

#define MS 1000000ull

/* ---- Handlers ----------------------------------------------------------------------------- */

/* What handlers and tests share: handlers only see a mx_app pointer, which is this. */
struct bench {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct mx_exchange *held; /* by hang() or stream(), for the test to write to */
    uint64_t gone_at;
    uint64_t gone_value;
    int drained, done;
    int last_status;
};

static struct bench bench = {.lock = PTHREAD_MUTEX_INITIALIZER,
                             .changed = PTHREAD_COND_INITIALIZER};
static struct mx_app *const app = (struct mx_app *)&bench;

static void echo(struct mx_app *a, struct mx_exchange *x)
{
    assert_ptr_equal(a, app);
    mx_exchange_note(x, json_pack("{s:s}", "model", "echo"));
    mx_exchange_send_json(x, 200, json_deep_copy(mx_exchange_body(x)));
}

static void tell(struct mx_app *a, struct mx_exchange *x)
{
    (void)a;
    const char *q = mx_exchange_query(x, "q"), *h = mx_exchange_header(x, "x-thing");
    mx_exchange_set_header(x, "X-Good", "yes");
    mx_exchange_set_header(x, "X-Bad", "a\r\nSet-Cookie: b");
    mx_exchange_send_json(x, 200,
                          json_pack("{s:s, s:s, s:s, s:s?, s:s?, s:s, s:b}", "method",
                                    mx_exchange_method(x), "path", mx_exchange_path(x), "id",
                                    mx_exchange_id(x), "q", q, "h", h, "client",
                                    mx_exchange_client(x), "auth", mx_exchange_authorized(x)));
}

static void on_gone(void *arg, uint64_t value)
{
    struct bench *b = arg;
    pthread_mutex_lock(&b->lock);
    b->gone_at = mx_now_ns();
    b->gone_value = value;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

static void on_drained(void *arg, uint64_t value)
{
    struct bench *b = arg;
    (void)value;
    pthread_mutex_lock(&b->lock);
    b->drained++;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

static void hold(struct mx_exchange *x)
{
    pthread_mutex_lock(&bench.lock);
    bench.held = mx_exchange_ref(x);
    pthread_cond_broadcast(&bench.changed);
    pthread_mutex_unlock(&bench.lock);
}

/* Leaves the exchange to the test. */
static void hang(struct mx_app *a, struct mx_exchange *x)
{
    (void)a;
    mx_exchange_on_gone(x, on_gone, &bench, 7);
    mx_exchange_on_drained(x, on_drained, &bench, 8);
    hold(x);
}

static void stream(struct mx_app *a, struct mx_exchange *x)
{
    mx_exchange_begin(x, 200, "text/event-stream");
    hang(a, x);
}

static void drop(struct mx_app *a, struct mx_exchange *x)
{
    (void)a;
    (void)x;
}

static void half(struct mx_app *a, struct mx_exchange *x)
{
    (void)a;
    mx_exchange_begin(x, 200, "text/event-stream");
    mx_exchange_event(x, "one", "{}", 2);
}

static void slow(struct mx_app *a, struct mx_exchange *x)
{
    (void)a;
    usleep(150000);
    mx_exchange_send_json(x, 200, json_pack("{s:b}", "slow", 1));
}

static void big(struct mx_app *a, struct mx_exchange *x)
{
    (void)a;
    size_t n = 3 << 20;
    char *text = malloc(n);
    memset(text, 'x', n);
    mx_exchange_send(x, 200, "text/plain", text, n);
    free(text);
}

static const struct mx_route routes[] = {
    {"POST", "/echo", echo, MX_DIALECT_OPENAI, MX_ROUTE_BODY},
    {"POST", "/v1/messages", echo, MX_DIALECT_ANTHROPIC, MX_ROUTE_BODY},
    {"GET", "/health", tell, MX_DIALECT_OPENAI, MX_ROUTE_QUICK | MX_ROUTE_OPEN},
    {"GET", "/things/{id}/parts", tell, MX_DIALECT_OPENAI, MX_ROUTE_QUICK},
    {"GET", "/things/{id}", tell, MX_DIALECT_OPENAI, MX_ROUTE_QUICK},
    {"DELETE", "/things/{id}", tell, MX_DIALECT_OPENAI, MX_ROUTE_QUICK},
    {"GET", "/v1/later", tell, MX_DIALECT_OPENAI, MX_ROUTE_QUICK},
    {"GET", "/hang", hang, MX_DIALECT_OPENAI, 0},
    {"POST", "/hang", hang, MX_DIALECT_OPENAI, MX_ROUTE_BODY},
    {"GET", "/stream", stream, MX_DIALECT_OPENAI, 0},
    {"GET", "/drop", drop, MX_DIALECT_OPENAI, 0},
    {"GET", "/half", half, MX_DIALECT_OPENAI, 0},
    {"GET", "/slow", slow, MX_DIALECT_OPENAI, 0},
    {"GET", "/big", big, MX_DIALECT_OPENAI, 0},
};

static void done(struct mx_app *a, struct mx_exchange *x, int status, uint64_t ns)
{
    struct bench *b = (struct bench *)a;
    assert_true(ns < 60000 * MS);
    assert_non_null(mx_exchange_route(x));
    pthread_mutex_lock(&b->lock);
    b->done++;
    b->last_status = status;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

/* ---- Server ------------------------------------------------------------------------------- */

static struct mx_http_setup setup(void)
{
    return (struct mx_http_setup){
        .routes = routes,
        .n_routes = sizeof routes / sizeof *routes,
        .done = done,
        .times = {.tick_ns = 20 * MS, .keep_alive_ns = 100 * MS},
    };
}

static struct mx_server *serve_with(const struct mx_server_options *o,
                                    const struct mx_http_setup *s)
{
    mtplx_error err = {0};
    bench.held = NULL;
    bench.gone_at = 0;
    bench.drained = bench.done = bench.last_status = 0;
    struct mx_server *v = mx_http_start(app, o, s, &err);
    if (!v)
        fail_msg("%s", err.message);
    assert_true(mx_server_port(v) > 0);
    return v;
}

static struct mx_server *serve(void)
{
    struct mx_server_options o = {0};
    struct mx_http_setup s = setup();
    return serve_with(&o, &s);
}

static bool peek(bool (*test)(void))
{
    pthread_mutex_lock(&bench.lock);
    bool yes = test();
    pthread_mutex_unlock(&bench.lock);
    return yes;
}

static bool wait_for(bool (*test)(void))
{
    struct timespec end;
    bool ok;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 10;
    pthread_mutex_lock(&bench.lock);
    while (!(ok = test()) && pthread_cond_timedwait(&bench.changed, &bench.lock, &end) == 0)
        ;
    pthread_mutex_unlock(&bench.lock);
    return ok;
}

static bool is_held(void)
{
    return bench.held != NULL;
}

static bool is_gone(void)
{
    return bench.gone_at != 0;
}

static bool is_drained(void)
{
    return bench.drained > 0;
}

static bool is_done(void)
{
    return bench.done > 0;
}

/* The exchange that hang() or stream() holds; the caller drops it. */
static struct mx_exchange *held(void)
{
    assert_true(wait_for(is_held));
    struct mx_exchange *x = bench.held;
    bench.held = NULL;
    return x;
}

static int get(int port, const char *path)
{
    return ask_status(port, "GET", path, "", "");
}

/* Checks status and a part of the body. */
static void expect(struct reply r, int status, const char *part)
{
    if (r.status != status || !strstr(r.body, part))
        fail_msg("got %d %s, expected %d with %s", r.status, r.body, status, part);
    free(r.body);
}

/* ---- Tests: requests ---------------------------------------------------------------------- */

static void test_bodies(void **state)
{
    (void)state;
    struct mx_server *v = serve();
    int p = mx_server_port(v);
    expect(ask(p, "POST", "/echo", "", "{\"a\": [1, 2.5, null]}"), 200, "{\"a\":[1,2.5,null]}");
    expect(ask(p, "POST", "/echo", "", ""), 200, "{}");
    expect(ask(p, "POST", "/echo", "", " \r\n"), 200, "{}");
    expect(ask(p, "POST", "/echo", "", "{\"a\":1,\"a\":2}"), 200, "{\"a\":2}");
    expect(ask(p, "POST", "/echo", "Content-Type: application/x-www-form-urlencoded\r\n", "{}"),
           200, "{}");
    expect(ask(p, "POST", "/echo", "", "{\"a\":}"), 400, "line 1, column 6");
    expect(ask(p, "POST", "/echo", "", "[]"), 400, "must be a JSON object");
    expect(ask(p, "POST", "/echo", "", "{\"a\":1} x"), 400, "not valid JSON");
    expect(ask(p, "POST", "/echo", "", "{\"a\":\"\xff\"}"), 400, "not valid UTF-8 at byte 6");
    expect(ask(p, "POST", "/echo", "", "{\"a\":\"x\\u0000\\ud83d\"}"), 200,
           "{\"a\":\"x\xef\xbf\xbd\xef\xbf\xbd\"}");
    expect(ask(p, "POST", "/echo", "Content-Encoding: gzip\r\n", "{}"), 415, "compressed");
    expect(ask(p, "POST", "/echo", "Expect: 100-continue\r\nContent-Encoding: gzip\r\n", ""), 415,
           "compressed");
    char deep[2000];
    size_t n = (size_t)snprintf(deep, sizeof deep, "{\"a\":");
    memset(deep + n, '[', 300);
    deep[n + 300] = '\0';
    expect(ask(p, "POST", "/echo", "", deep), 400, "nested deeper than 200 levels at byte 204");
    mx_server_free(v);
}

static void test_many_values(void **state)
{
    (void)state;
    size_t n = 2 * (size_t)MX_BODY_VALUES + 40;
    struct mx_api_error e;
    char *text = malloc(n + 1);
    memcpy(text, "{\"a\":[1", 7);
    for (size_t i = 7; i < n; i += 2)
        memcpy(text + i, ",1", 2);
    assert_null(mx_body_parse(text, n, &e));
    assert_int_equal(e.status, 413);
    free(text);
}

static void test_clean(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"\"\\ud83d\\ude00\"", "\"\\ud83d\\ude00\""},
        {"\"\\ud83d\"", "\"\\ufffd\""},
        {"\"\\ude00\\ud83d\"", "\"\\ufffd\\ufffd\""},
        {"\"\\u0000\"", "\"\\ufffd\""},
        {"\"\\\\u0000\"", "\"\\\\u0000\""},
        {"\"\\u00", "\"\\u00"},
        {"\"\\", "\"\\"},
        {"\"\\\"[[\"", "\"\\\"[[\""},
        {"\"\\uD83D\\uD83D\\uDE00\"", "\"\\ufffd\\uD83D\\uDE00\""},
    };
    struct mx_api_error e;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = strdup(cases[i][0]);
        assert_true(mx_body_clean(text, strlen(text), &e));
        assert_string_equal(text, cases[i][1]);
        free(text);
    }
}

static void test_routes(void **state)
{
    (void)state;
    struct mx_server *v = serve();
    int p = mx_server_port(v);
    expect(ask(p, "GET", "/things/a%20b?q=1%2B1&z", "X-Thing: t\r\n", ""), 200,
           "\"id\":\"a b\",\"q\":\"1+1\",\"h\":\"t\"");
    expect(ask(p, "GET", "/things/org/model", "", ""), 200, "\"id\":\"org/model\"");
    expect(ask(p, "GET", "/things/a/parts", "", ""), 200, "\"id\":\"a\"");
    expect(ask(p, "GET", "/things/", "", ""), 404, "unknown_url");
    expect(ask(p, "GET", "/nothing", "", ""), 404, "unknown_url");
    expect(ask(p, "GET", "//things///a/", "", ""), 200, "\"id\":\"a\"");
    expect(ask(p, "GET", "/later/", "", ""), 200, "/later");
    expect(ask(p, "GET", "/v1/v1/later", "", ""), 200, "/v1/v1/later");
    expect(ask(p, "POST", "/later", "", "{}"), 405, "not a method");
    expect(ask(p, "GET", "/v1/things/a", "", ""), 404, "unknown_url");
    expect(ask(p, "GET", "/v1/v1/v1/later", "", ""), 404, "unknown_url");
    expect(ask(p, "GET", "//", "", ""), 404, "unknown_url");
    expect(ask(p, "GET", "/th%ffings", "", ""), 400, "UTF-8");
    expect(ask(p, "GET", "/things%00", "", ""), 400, "UTF-8"); /* not /things */
    expect(ask(p, "DELETE", "/things/%00a", "", ""), 400, "UTF-8");
    expect(ask(p, "BREW", "/echo", "", ""), 501, "method");
    struct reply r = ask(p, "PUT", "/things/a", "", "{}");
    assert_string_equal(head_value(&r, "Allow"), "GET, HEAD, DELETE");
    expect(r, 405, "not a method");
    r = ask(p, "HEAD", "/things/a", "", "");
    assert_int_equal(r.status, 200);
    free(r.body);
    r = ask(p, "GET", "/things/a", "", "");
    assert_string_equal(head_value(&r, "X-Good"), "yes");
    assert_null(head_value(&r, "X-Bad"));
    assert_null(head_value(&r, "Set-Cookie"));
    assert_string_equal(head_value(&r, "Cache-Control"), "no-store");
    assert_string_equal(head_value(&r, "X-Content-Type-Options"), "nosniff");
    assert_int_equal(strlen(head_value(&r, "X-Request-Id")), 28);
    assert_null(head_value(&r, "Request-Id"));
    free(r.body);
    expect(ask(p, "GET", "/drop", "", ""), 500, "without an answer");
    r = ask(p, "GET", "/half", "", "");
    assert_int_equal(r.status, 200);
    assert_false(r.whole);
    free(r.body);
    r = ask(p, "GET", "/big", "", "");
    assert_true(r.whole && r.n == 3 << 20);
    free(r.body);
    mx_server_free(v);
}

static void test_envelopes(void **state)
{
    (void)state;
    struct mx_server *v = serve();
    int p = mx_server_port(v);
    struct reply r = ask(p, "POST", "/v1/messages", "", "{");
    char id[64];
    snprintf(id, sizeof id, "\"request_id\":\"%.40s\"", head_value(&r, "Request-Id"));
    assert_non_null(strstr(r.body, id));
    expect(r, 400, "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\"");
    expect(ask(p, "GET", "/none", "anthropic-version: 2023-06-01\r\n", ""), 404,
           "\"type\":\"not_found_error\"");
    expect(ask(p, "POST", "/echo", "", "{"), 400,
           "\"type\":\"invalid_request_error\",\"param\":null,\"code\":null}}");
    mx_server_free(v);
}

static void test_sizes(void **state)
{
    (void)state;
    struct mx_server_options o = {.max_body = 10000};
    struct mx_http_setup s = setup();
    s.max_uploads = 25000;
    struct mx_server *v = serve_with(&o, &s);
    int p = mx_server_port(v);
    char *body = malloc(60001);
    memset(body, ' ', 60000);
    body[60000] = '\0';
    expect(ask(p, "POST", "/echo", "", body + 50000), 200, "{}");
    expect(ask(p, "POST", "/echo", "", body + 49999), 413, "larger than 10000 bytes");
    expect(ask(p, "POST", "/v1/messages", "", body + 25000), 413, "request_too_large");
    struct reply r = ask(p, "POST", "/echo", "", body); /* far too much: cut off, or refused */
    assert_true(r.status == 0 || r.status == 413);
    free(r.body);
    char *wide = malloc(40000);
    memset(wide, 'a', 40000);
    memcpy(wide, "X-Wide: ", 8);
    memcpy(wide + 39990, "\r\n\r\n", 5);
    int fd = dial(p);
    put_text(fd, "GET /health HTTP/1.1\r\nHost: localhost\r\n");
    put_text(fd, wide);
    r = get_reply(fd, false);
    assert_true(r.status == 431 || r.status == 413 || r.status == 0);
    close(fd);
    free(r.body);
    free(wide);

    /* Uploads that are coming in share a budget. */
    int fds[4];
    for (int i = 0; i < 4; i++) {
        fds[i] = dial(p);
        put_text(fds[i], "POST /echo HTTP/1.1\r\nHost: a.localhost\r\nHost: localhost\r\n");
        close(fds[i]);
        fds[i] = dial(p);
        put_text(fds[i], "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\n");
        put_all(fds[i], body, 8000);
        usleep(20000);
    }
    put_all(fds[3], body, 1000);
    expect(get_reply(fds[3], false), 503, "too many large requests");
    for (int i = 0; i < 4; i++)
        close(fds[i]);
    for (int i = 0, ok = 0; !ok && i < 100; i++, usleep(20000))
        ok = ask_status(p, "POST", "/echo", "", body + 51000) == 200;
    expect(ask(p, "POST", "/echo", "", body + 51000), 200, "{}");
    free(body);
    mx_server_free(v);
}

/* Requests whose handlers have returned hold no body, however long their answers take. */
static void test_running_hold_no_body(void **state)
{
    enum { N = 4 };
    struct mx_http_setup s = setup();
    struct mx_exchange *xs[N];
    int fds[N];
    char body[9001];
    (void)state;
    s.max_uploads = 25000;
    struct mx_server *v = serve_with(&(struct mx_server_options){0}, &s);
    memset(body, ' ', sizeof body - 1);
    body[sizeof body - 1] = '\0';
    for (int i = 0; i < N; i++) {
        fds[i] = dial(mx_server_port(v));
        put_text(fds[i], "POST /hang HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\n");
        put_text(fds[i], body);
        xs[i] = held();
    }
    for (int i = 0; i < N; i++) {
        mx_exchange_send(xs[i], 200, "text/plain", "ok", 2);
        mx_exchange_unref(xs[i]);
        expect(get_reply(fds[i], false), 200, "ok");
        close(fds[i]);
    }
    mx_server_free(v);
}

static void test_chunked_and_pipelined(void **state)
{
    (void)state;
    struct mx_server *v = serve();
    int fd = dial(mx_server_port(v));
    put_text(fd, "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
                 "4\r\n{\"a\"\r\n");
    usleep(30000);
    put_text(fd, "3\r\n:1}\r\n0\r\n\r\n");
    expect(get_reply(fd, false), 200, "{\"a\":1}");
    /* The same connection, three requests at once. */
    put_text(fd, "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\n\r\n{\"b\":1}"
                 "GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n"
                 "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\n\r\n{\"c\":1}");
    expect(get_reply(fd, false), 200, "{\"b\":1}");
    expect(get_reply(fd, false), 200, "{\"slow\":true}");
    expect(get_reply(fd, false), 200, "{\"c\":1}");
    put_text(fd, "complete nonsense\r\n\r\n");
    struct reply r = get_reply(fd, false);
    assert_true(r.status == 0 || r.status >= 400);
    free(r.body);
    close(fd);
    assert_int_equal(get(mx_server_port(v), "/health"), 200);
    mx_server_free(v);
}

static void test_busy(void **state)
{
    (void)state;
    struct mx_server_options o = {.preparers = 1};
    struct mx_http_setup s = setup();
    s.queue = 2;
    struct mx_server *v = serve_with(&o, &s);
    int p = mx_server_port(v), fds[8], busy = 0, fine = 0;
    for (int i = 0; i < 8; i++) {
        fds[i] = dial(p);
        put_text(fds[i], "GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n");
    }
    uint64_t start = mx_now_ns();
    assert_int_equal(get(p, "/health"), 200); /* a lane of its own */
    assert_true(mx_now_ns() - start < 140 * MS);
    for (int i = 0; i < 8; i++) {
        struct reply r = get_reply(fds[i], false);
        busy += r.status == 503 && head_value(&r, "Retry-After");
        fine += r.status == 200;
        free(r.body);
        close(fds[i]);
    }
    assert_int_equal(busy + fine, 8);
    assert_true(fine >= 2 && busy >= 4);
    mx_server_free(v);
}

/* ---- Tests: safety ------------------------------------------------------------------------ */

static void test_keys(void **state)
{
    (void)state;
    static const char *const keys[] = {"mtplx-right", "second"};
    struct mx_server_options o = {.api_keys = keys, .n_api_keys = 2};
    struct mx_http_setup s = setup();
    struct mx_server *v = serve_with(&o, &s);
    int p = mx_server_port(v);
    static const struct {
        const char *header;
        int status;
    } cases[] = {
        {"", 401},
        {"Authorization: Bearer mtplx-right\r\n", 200},
        {"authorization: bearer   second \r\n", 200},
        {"X-API-Key: second\r\n", 200},
        {"Authorization: Bearer mtplx-righ\r\n", 401},
        {"Authorization: Bearer mtplx-right2\r\n", 401},
        {"Authorization: Bearer \r\n", 401},
        {"Authorization: Basic mtplx-right\r\n", 401},
        {"Authorization: mtplx-right\r\n", 401},
        {"X-API-Key: Bearer second\r\n", 401},
        {"X-API-Key: wrong\r\nAuthorization: Bearer second\r\n", 200},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (ask_status(p, "GET", "/things/a", cases[i].header, "") != cases[i].status)
            fail_msg("case %zu: %s", i, cases[i].header);
    /* Without a key nothing is told about what exists. */
    assert_int_equal(get(p, "/nothing"), 401);
    assert_int_equal(ask_status(p, "PUT", "/things/a", "", ""), 401);
    struct reply r = ask(p, "GET", "/things/a", "", "");
    assert_non_null(head_value(&r, "WWW-Authenticate"));
    expect(r, 401, "\"code\":\"invalid_api_key\"");
    expect(ask(p, "POST", "/v1/messages", "", "{}"), 401, "authentication_error");
    expect(ask(p, "GET", "/health", "", ""), 200, "\"auth\":false");
    expect(ask(p, "GET", "/health", "X-API-Key: second\r\n", ""), 200, "\"auth\":true");
    r = ask(p, "GET", "/things/a", "X-API-Key: second\r\n", "");
    assert_null(strstr(r.body, "second"));
    expect(r, 200, "\"client\":\"key-");
    mx_server_free(v);
}

static void test_public_needs_key(void **state)
{
    (void)state;
    static const char *const hosts[] = {"0.0.0.0", "::", "192.0.2.1", "example.org"};
    mtplx_error err;
    struct mx_http_setup s = setup();
    for (size_t i = 0; i < 4; i++) {
        struct mx_server_options o = {.host = hosts[i]};
        assert_null(mx_http_start(app, &o, &s, &err));
        assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);
        assert_non_null(strstr(err.message, "--api-key"));
    }
    static const char *const bad[] = {"", "two words", "tab\t"};
    for (size_t i = 0; i < 3; i++) {
        struct mx_server_options o = {.api_keys = &bad[i], .n_api_keys = 1};
        assert_null(mx_http_start(app, &o, &s, &err));
        assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);
    }
    struct mx_server *v = serve();
    struct mx_server_options o = {.port = mx_server_port(v)};
    assert_null(mx_http_start(app, &o, &s, &err));
    assert_int_equal(err.status, MTPLX_ERR_IO);
    assert_non_null(strstr(err.message, "taken"));
    o = (struct mx_server_options){.tls_cert = "x"};
    assert_null(mx_http_start(app, &o, &s, &err));
    assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);
    mx_server_free(v);
}

static void test_key_file(void **state)
{
    (void)state;
    char path[] = "/tmp/mtplx-key.XXXXXX";
    struct stat st;
    mtplx_error err;
    close(mkstemp(path));
    unlink(path);
    char *key = mx_key_file(path, &err);
    assert_non_null(key);
    assert_int_equal(strlen(key), 54);
    assert_int_equal(strncmp(key, "mtplx-", 6), 0);
    assert_int_equal(strspn(key + 6, "0123456789abcdef"), 48);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    char *again = mx_key_file(path, &err);
    assert_string_equal(again, key);
    chmod(path, 0640);
    assert_null(mx_key_file(path, &err));
    assert_non_null(strstr(err.message, "chmod 600"));
    chmod(path, 0600);
    assert_int_equal(truncate(path, 0), 0);
    assert_null(mx_key_file(path, &err));
    assert_non_null(strstr(err.message, "not a key"));
    unlink(path);
    assert_null(mx_key_file("/nonexistent/key", &err));
    assert_int_equal(err.status, MTPLX_ERR_IO);
    mx_key_free(again);
    mx_key_free(key);
}

static void test_hosts(void **state)
{
    (void)state;
    static const char *const listed[] = {"box.local", "other:99"};
    struct mx_guard g = {.bound = "127.0.0.1", .hosts = listed, .n_hosts = 2};
    static const char *const good[] = {"localhost",      "LOCALHOST:80", "localhost.",
                                       "127.0.0.1:8000", "127.5.5.5",    "[::1]",
                                       "[::1]:8000",     "box.local:1",  "other"};
    static const char *const bad[] = {"",
                                      ":80",
                                      "evil.example",
                                      "localhost.evil.example",
                                      "127.0.0.1.evil.example",
                                      "10.0.0.1",
                                      "[::2]",
                                      "[::1",
                                      "localhost:80x",
                                      "localhost:80:80",
                                      "localhost@evil",
                                      "0x7f000001",
                                      "2130706433"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (!mx_guard_host(&g, good[i]))
            fail_msg("%s was refused", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (mx_guard_host(&g, bad[i]))
            fail_msg("%s was taken", bad[i]);
    g.bound = "0.0.0.0";
    assert_true(mx_guard_host(&g, "192.168.1.5:8000") && mx_guard_host(&g, "[fe80::1]:1"));
    assert_false(mx_guard_host(&g, "evil.example"));

    struct mx_server *v = serve();
    int p = mx_server_port(v);
    expect(ask(p, "GET", "/health", "Host: evil.example\r\n", ""), 403, "--allowed-host");
    assert_int_equal(ask_status(p, "GET", "/health", "Host: localhost\r\nHost: evil\r\n", ""), 400);
    int fd = dial(p);
    put_text(fd, "GET /health HTTP/1.0\r\n\r\n");
    expect(get_reply(fd, false), 200, "/health");
    close(fd);
    mx_server_free(v);
}

/* A body whose length is said twice is refused, and nothing behind it is taken for a request. */
static void test_framing(void **state)
{
    static const char *const heads[] = {"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
                                        "Content-Length: 5\r\nContent-Length: 5\r\n"};
    (void)state;
    struct mx_server *v = serve();
    int p = mx_server_port(v);
    for (size_t i = 0; i < 2; i++) {
        char text[300], c;
        int fd = dial(p);
        snprintf(text, sizeof text, "POST /health HTTP/1.1\r\nHost: localhost\r\n%s\r\n0\r\n\r\n%s",
                 heads[i], "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
        put_text(fd, text);
        expect(get_reply(fd, false), 400, "how long its body is");
        assert_false(get_byte(fd, &c));
        close(fd);
    }
    mx_server_free(v);
}

static void test_origins(void **state)
{
    (void)state;
    static const char *const origins[] = {"http://localhost:3000", "https://app.example"};
    struct mx_server_options o = {.origins = origins, .n_origins = 2};
    struct mx_http_setup s = setup();
    struct mx_server *v = serve_with(&o, &s);
    int p = mx_server_port(v);
    char same[200];
    snprintf(same, sizeof same, "Host: localhost:%d\r\nOrigin: http://localhost:%d\r\n", p, p);
    struct reply r = ask(p, "GET", "/health", same, "");
    assert_null(head_value(&r, "Access-Control-Allow-Origin"));
    expect(r, 200, "");
    r = ask(p, "GET", "/health", "Origin: https://app.example\r\n", "");
    assert_string_equal(head_value(&r, "Access-Control-Allow-Origin"), "https://app.example");
    assert_string_equal(head_value(&r, "Vary"), "Origin");
    expect(r, 200, "");
    static const char *const bad[] = {"https://evil.example",  "null",
                                      "http://localhost:3001", "https://app.example.evil",
                                      "http://app.example",    ""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char line[200];
        snprintf(line, sizeof line, "Origin: %s\r\nContent-Type: text/plain\r\n", bad[i]);
        r = ask(p, "POST", "/echo", line, "{}");
        if (r.status != 403 || head_value(&r, "Access-Control-Allow-Origin"))
            fail_msg("%s: %d", line, r.status);
        free(r.body);
    }
    r = ask(p, "OPTIONS", "/echo",
            "Origin: https://app.example\r\nAccess-Control-Request-Method: POST\r\n"
            "Access-Control-Request-Headers: authorization, x-stainless-os\r\n",
            "");
    assert_int_equal(r.status, 204);
    assert_string_equal(head_value(&r, "Access-Control-Allow-Methods"), "POST");
    assert_string_equal(head_value(&r, "Access-Control-Allow-Headers"),
                        "authorization, x-stainless-os");
    assert_string_equal(head_value(&r, "Access-Control-Allow-Origin"), "https://app.example");
    free(r.body);
    assert_int_equal(ask_status(p, "OPTIONS", "/echo", "Origin: https://evil.example\r\n", ""),
                     403);
    assert_int_equal(ask_status(p, "OPTIONS", "/echo", "", ""), 204);
    mx_server_free(v);
}

static void test_rates(void **state)
{
    (void)state;
    struct mx_rate *r = mx_rate_new(6); /* one in ten seconds */
    uint64_t t = 1000 * MS;
    for (int i = 0; i < 6; i++)
        assert_int_equal(mx_rate_take(r, "a", t), 0);
    assert_int_equal(mx_rate_take(r, "a", t), 11);
    assert_int_equal(mx_rate_take(r, "b", t), 0);
    assert_int_equal(mx_rate_take(r, "a", t + 4000 * MS), 7);
    assert_int_equal(mx_rate_take(r, "a", t + 10001 * MS), 0);
    assert_true(mx_rate_take(r, "a", t + 10001 * MS) > 0);
    char name[32];
    for (int i = 0; i < 20000; i++) {
        snprintf(name, sizeof name, "client %d", i);
        assert_int_equal(mx_rate_take(r, name, t), 0);
    }
    mx_rate_free(r);

    struct mx_server_options o = {.rate_limit = 3};
    struct mx_http_setup s = setup();
    struct mx_server *v = serve_with(&o, &s);
    int p = mx_server_port(v);
    for (int i = 0; i < 3; i++)
        assert_int_equal(get(p, "/things/a"), 200);
    struct reply q = ask(p, "POST", "/echo", "", "{}");
    assert_non_null(head_value(&q, "Retry-After"));
    expect(q, 429, "\"code\":\"rate_limit_exceeded\"");
    expect(ask(p, "POST", "/v1/messages", "", "{}"), 429, "rate_limit_error");
    assert_int_equal(get(p, "/health"), 200);
    mx_server_free(v);
}

/* ---- Tests: streams ----------------------------------------------------------------------- */

static int open_stream(int port, const char *path)
{
    char head[200];
    int fd = dial(port);
    snprintf(head, sizeof head, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
    put_text(fd, head);
    return fd;
}

/* Every event is there before the next one is written. */
static void test_stream_flushes(void **state)
{
    (void)state;
    struct mx_server *v = serve();
    int fd = open_stream(mx_server_port(v), "/stream");
    struct mx_exchange *x = held();
    struct reply r;
    char buf[200];
    assert_true(get_head(fd, &r)); /* before the first event */
    free(r.body);
    for (int i = 0; i < 20; i++) {
        assert_true(mx_exchange_event(x, i % 2 ? "tick" : NULL, "{\"a\":\n1}", 8));
        const char *expected = i % 2 ? "25\r\nevent: tick\ndata: {\"a\":\ndata: 1}\n\n\r\n"
                                     : "18\r\ndata: {\"a\":\ndata: 1}\n\n\r\n";
        size_t n = strlen(expected), have = 0;
        while (have < n) {
            ssize_t k = get_some(fd, buf + have, n - have, 2000);
            assert_true(k > 0);
            have += (size_t)k;
        }
        buf[n] = '\0';
        if (strstr(buf, "keep-alive") == NULL)
            assert_memory_equal(buf + 2, expected + 2, n - 2);
    }
    mx_exchange_end(x);
    mx_exchange_unref(x);
    close(fd);
    mx_server_free(v);
}

static void test_keep_alive(void **state)
{
    (void)state;
    struct mx_server *v = serve();
    int fd = open_stream(mx_server_port(v), "/stream");
    struct mx_exchange *x = held();
    usleep(350000);
    mx_exchange_write(x, "data: half", 10); /* inside an event no comment may come */
    usleep(250000);
    mx_exchange_write(x, " done\n\n", 7);
    mx_exchange_end(x);
    mx_exchange_unref(x);
    struct reply r = get_reply(fd, false);
    assert_true(r.whole);
    assert_non_null(strstr(r.body, ": keep-alive\n\n"));
    assert_non_null(strstr(r.body, "data: half done\n\n"));
    int comments = 0;
    for (const char *at = r.body; (at = strstr(at, ": keep-alive")); at++)
        comments++;
    assert_in_range(comments, 1, 4);
    free(r.body);
    close(fd);
    mx_server_free(v);
}

/* A reader that does not read: writes do not block, the backlog grows, and falls when it reads. */
static void test_slow_reader(void **state)
{
    (void)state;
    struct mx_server *v = serve();
    int fd = open_stream(mx_server_port(v), "/stream");
    struct mx_exchange *x = held();
    char block[4096];
    size_t written = 0;
    memset(block, 'b', sizeof block);
    while (mx_exchange_backlog(x) <= MX_STREAM_HIGH && written < 64u << 20) {
        assert_true(mx_exchange_write(x, block, sizeof block));
        written += sizeof block;
    }
    assert_true(mx_exchange_backlog(x) > MX_STREAM_HIGH);
    assert_false(peek(is_drained));
    struct reply r;
    assert_true(get_head(fd, &r));
    for (size_t got = 0; got < written - MX_STREAM_HIGH / 4;) {
        ssize_t k = get_some(fd, block, sizeof block, 5000);
        assert_true(k > 0);
        got += (size_t)k;
    }
    assert_true(wait_for(is_drained));
    assert_true(mx_exchange_backlog(x) < MX_STREAM_HIGH);
    mx_exchange_end(x);
    mx_exchange_unref(x);
    free(r.body);
    close(fd);
    mx_server_free(v);
}

/* Over the maximum the client is cut off instead of being given a stream with a hole. */
static void test_backlog_limit(void **state)
{
    (void)state;
    struct mx_server *v = serve();
    int fd = open_stream(mx_server_port(v), "/stream");
    struct mx_exchange *x = held();
    char *block = calloc(1, 1 << 20);
    size_t n = 0;
    while (mx_exchange_write(x, block, 1 << 20) && n < 64)
        n++;
    assert_true(n >= 8 && n < 64);
    assert_true(wait_for(is_gone));
    assert_false(mx_exchange_write(x, "x", 1));
    assert_true(mx_exchange_gone(x));
    mx_exchange_end(x);
    mx_exchange_unref(x);
    free(block);
    close(fd);
    mx_server_free(v);
}

static void test_stalled_reader(void **state)
{
    (void)state;
    struct mx_server_options o = {0};
    struct mx_http_setup s = setup();
    s.times.stall_ns = 200 * MS;
    struct mx_server *v = serve_with(&o, &s);
    int quiet = open_stream(mx_server_port(v), "/stream"), fd;
    struct mx_exchange *a = held(), *b;
    char *block = calloc(1, 1 << 20);
    fd = open_stream(mx_server_port(v), "/stream");
    b = held();
    for (int i = 0; i < 7; i++)
        mx_exchange_write(b, block, 1 << 20);
    assert_true(wait_for(is_gone));
    assert_true(mx_exchange_gone(b));
    assert_false(mx_exchange_gone(a)); /* waits for its producer: no stall */
    mx_exchange_unref(a);
    mx_exchange_unref(b);
    free(block);
    close(fd);
    close(quiet);
    mx_server_free(v);
}

static void hang_up(const char *path)
{
    struct mx_server *v = serve();
    int fd = open_stream(mx_server_port(v), path);
    struct mx_exchange *x = held();
    usleep(50000);
    assert_false(mx_exchange_gone(x));
    uint64_t closed = mx_now_ns();
    close(fd);
    assert_true(wait_for(is_gone));
    assert_true(bench.gone_at - closed < 500 * MS);
    assert_int_equal(bench.gone_value, 7);
    assert_true(wait_for(is_done));
    assert_int_equal(bench.last_status, 499);
    assert_true(mx_exchange_gone(x));
    mx_exchange_send(x, 200, "text/plain", "late", 4); /* of no use, and harmless */
    mx_exchange_unref(x);
    mx_server_free(v);
}

static void test_hang_up(void **state)
{
    (void)state;
    hang_up("/hang");
    hang_up("/stream");
}

static void test_no_gone_after_send(void **state)
{
    (void)state;
    struct mx_server *v = serve();
    int fd = open_stream(mx_server_port(v), "/hang");
    struct mx_exchange *x = held();
    mx_exchange_send(x, 201, "text/plain", "made", 4);
    expect(get_reply(fd, false), 201, "made");
    close(fd);
    usleep(100000);
    assert_false(peek(is_gone));
    mx_exchange_on_gone(x, on_gone, &bench, 1); /* complete: never */
    assert_false(peek(is_gone));
    mx_exchange_unref(x);
    mx_server_free(v);
}

static void test_head_of_stream(void **state)
{
    (void)state;
    struct mx_server *v = serve();
    struct reply r = ask(mx_server_port(v), "HEAD", "/stream", "", "");
    assert_int_equal(r.status, 200);
    free(r.body);
    struct mx_exchange *x = held();
    assert_true(wait_for(is_gone)); /* nobody will read a stream */
    mx_exchange_unref(x);
    mx_server_free(v);
}

/* Stopping with requests in every state; the exchanges outlive the server. */
static void test_stop_midway(void **state)
{
    (void)state;
    struct mx_server *v = serve();
    int p = mx_server_port(v);
    int a = open_stream(p, "/stream"), b, c = dial(p), d = open_stream(p, "/slow");
    struct mx_exchange *x = held(), *y;
    b = open_stream(p, "/hang");
    y = held();
    put_text(c, "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{");
    usleep(30000);
    mx_server_quiesce(v);
    assert_int_equal(dial(p), -1);
    assert_true(mx_exchange_event(x, NULL, "{}", 2)); /* goes on */
    assert_false(mx_server_drain(v, 50 * MS));
    mx_server_free(v);
    assert_true(mx_exchange_gone(x) && mx_exchange_gone(y));
    assert_false(mx_exchange_event(x, NULL, "{}", 2));
    mx_exchange_end(x);
    mx_exchange_unref(x);
    mx_exchange_unref(y);
    close(a);
    close(b);
    close(c);
    close(d);
}

static void test_draining(void **state)
{
    (void)state;
    struct mx_server *v = serve();
    int p = mx_server_port(v), fd = open_stream(p, "/stream"), other = dial(p);
    struct mx_exchange *x = held();
    put_text(other, "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{");
    usleep(50000);
    mx_server_quiesce(v);
    put_text(other, "}");
    struct reply r = get_reply(other, false);
    assert_string_equal(head_value(&r, "Connection"), "close");
    expect(r, 200, "{}"); /* had come in before */
    mx_exchange_event(x, NULL, "{}", 2);
    mx_exchange_end(x);
    mx_exchange_unref(x);
    r = get_reply(fd, false);
    assert_true(r.whole);
    free(r.body);
    assert_true(mx_server_drain(v, 5000 * MS));
    close(fd);
    close(other);
    mx_server_free(v);
}

/* ---- Tests: crowds ------------------------------------------------------------------------ */

static void test_deadlines(void **state)
{
    (void)state;
    struct mx_server_options o = {0};
    struct mx_http_setup s = setup();
    s.times.head_ns = 300 * MS;
    s.times.body_ns = 300 * MS;
    struct mx_server *v = serve_with(&o, &s);
    int p = mx_server_port(v);
    int idle = dial(p), head = dial(p), body = dial(p), late = open_stream(p, "/hang");
    struct mx_exchange *x = held();
    put_text(body, "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n");
    char buf[100];
    uint64_t start = mx_now_ns();
    /* A byte now and then does not help. */
    for (int i = 0; i < 12; i++, usleep(50000)) {
        (void)!send(head, "G", 1, MSG_NOSIGNAL);
        (void)!send(body, " ", 1, MSG_NOSIGNAL);
    }
    assert_true(get_some(idle, buf, sizeof buf, 3000) == 0);
    assert_true(get_some(head, buf, sizeof buf, 3000) == 0);
    assert_true(get_some(body, buf, sizeof buf, 3000) == 0);
    assert_true(mx_now_ns() - start < 3000 * MS);
    assert_false(mx_exchange_gone(x)); /* a request that runs has all the time it wants */
    mx_exchange_send(x, 200, "text/plain", "ok", 2);
    expect(get_reply(late, false), 200, "ok");
    mx_exchange_unref(x);
    close(idle);
    close(head);
    close(body);
    close(late);
    mx_server_free(v);
}

enum { CROWD = 2000, DRIBBLERS = 200 };

/* Both ends of the connections are files of this process. */
static int crowd_size(void)
{
    struct rlimit r;
    getrlimit(RLIMIT_NOFILE, &r);
    r.rlim_cur = r.rlim_max < 16384 ? r.rlim_max : 16384;
    setrlimit(RLIMIT_NOFILE, &r);
    getrlimit(RLIMIT_NOFILE, &r);
    int most = (int)(r.rlim_cur / 2) - 200;
    return most < CROWD ? most : CROWD;
}

static void test_crowd(void **state)
{
    (void)state;
    struct mx_server *v = serve();
    int p = mx_server_port(v), n = crowd_size();
    int *fds = calloc((size_t)n, sizeof *fds);
    for (int i = 0; i < n; i++) {
        fds[i] = dial(p);
        assert_true(fds[i] >= 0);
        if (i < DRIBBLERS)
            put_text(fds[i], "GET /health HTTP/1.1\r\nX-Slow: ");
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < DRIBBLERS && i < n; i++)
            put_text(fds[i], "z");
        uint64_t start = mx_now_ns();
        expect(ask(p, "POST", "/echo", "", "{\"a\":1}"), 200, "{\"a\":1}");
        assert_true(mx_now_ns() - start < 2000 * MS);
    }
    for (int i = 0; i < n; i++)
        close(fds[i]);
    free(fds);
    assert_int_equal(get(p, "/health"), 200);
    mx_server_free(v);
}

/* All places taken by idle connections: they have to leave early. */
static void test_full_house(void **state)
{
    (void)state;
    struct mx_server_options o = {.max_connections = 64};
    struct mx_http_setup s = setup();
    s.times.head_ns = 4000 * MS;
    struct mx_server *v = serve_with(&o, &s);
    int p = mx_server_port(v), fds[100];
    for (int i = 0; i < 100; i++)
        fds[i] = dial(p);
    uint64_t start = mx_now_ns();
    expect(ask(p, "POST", "/echo", "", "{\"a\":1}"), 200, "{\"a\":1}");
    assert_true(mx_now_ns() - start < 3500 * MS);
    for (int i = 0; i < 100; i++)
        close(fds[i]);
    mx_server_free(v);
}

/* Requests with bytes changed, dropped, repeated or cut, in pieces: whatever comes, the next proper
 * request is answered. */
static void test_garbage(void **state)
{
    (void)state;
    static const char *const seeds[] = {
        "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\n\r\n{\"a\":1}",
        ("POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
         "4\r\n{\"a\"\r\n3\r\n:1}\r\n0\r\n\r\n"),
        "GET /things/a%20b?x=%ff&y HTTP/1.1\r\nHost: [::1]:80\r\nOrigin: null\r\n\r\n",
        "GET /half HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\n\r\n",
    };
    struct mx_server_options o = {.max_body = 4096};
    struct mx_http_setup s = setup();
    struct mx_server *v = serve_with(&o, &s);
    int p = mx_server_port(v);
    uint32_t r = 12345;
    for (int i = 0; i < 1500; i++) {
        char text[1024];
        size_t n = (size_t)snprintf(text, sizeof text, "%s%s", seeds[i % 4], seeds[i / 4 % 4]);
        for (int k = 0; k < 1 + i % 5; k++) {
            r = r * 1664525u + 1013904223u;
            size_t at = (r >> 8) % n;
            switch (r >> 30) {
            case 0: text[at] = (char)(r >> 4); break;
            case 1: memmove(text + at, text + at + 1, n - at - 1); break;
            case 2: text[at] = "\r\n:\" %{["[(r >> 24) & 7]; break;
            default: n = at > 20 ? at : n; break;
            }
        }
        int fd = dial(p);
        put_all(fd, text, n / 2);
        put_all(fd, text + n / 2, n - n / 2);
        if (i % 16 == 0)
            (void)get_some(fd, text, sizeof text, 5);
        close(fd);
    }
    expect(ask(p, "POST", "/echo", "", "{\"a\":1}"), 200, "{\"a\":1}");
    mx_server_free(v);
}

/* ---- Tests: log --------------------------------------------------------------------------- */

static void test_log(void **state)
{
    (void)state;
    char path[] = "/tmp/mtplx-log.XXXXXX", line[1000] = "";
    static const char *const keys[] = {"secret-key"};
    close(mkstemp(path));
    unlink(path);
    struct mx_server_options o = {.log_path = path, .api_keys = keys, .n_api_keys = 1};
    struct mx_http_setup s = setup();
    struct mx_server *v = serve_with(&o, &s);
    ask_status(mx_server_port(v), "POST", "/echo", "X-API-Key: secret-key\r\n",
               "{\"prompt\":\"private words\"}");
    mx_server_free(v);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    FILE *f = fopen(path, "r");
    assert_non_null(fgets(line, sizeof line, f));
    json_t *r = json_loads(line, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(r, "route")), "/echo");
    assert_string_equal(json_string_value(json_object_get(r, "model")), "echo");
    assert_int_equal(json_integer_value(json_object_get(r, "status")), 200);
    assert_int_equal(json_integer_value(json_object_get(r, "bytes_in")), 26);
    assert_int_equal(json_integer_value(json_object_get(r, "bytes_out")), 26);
    assert_null(strstr(line, "secret"));
    assert_null(strstr(line, "private"));
    assert_null(fgets(line, sizeof line, f));
    fclose(f);
    json_decref(r);
    unlink(path);
}

/* ---- Tests: exchanges without a socket ---------------------------------------------------- */

static void test_exchange_alone(void **state)
{
    (void)state;
    char buf[300];
    struct mx_exchange *x = mx_exchange_new(NULL, "GET", "/x");
    mx_exchange_hold(x);
    assert_int_equal(mx_exchange_take(x, buf, sizeof buf, true), 0);
    struct mx_api_error e;
    mx_api_fail(&e, 422, "tools[0].name", "tools[0].name: %s", "too long \xc3\xa9");
    e.details = json_pack("{s:i, s:s}", "limit", 5, "type", "not this");
    mx_exchange_fail(x, &e);
    size_t n = mx_exchange_take(x, buf, sizeof buf - 1, true);
    buf[n] = '\0';
    assert_non_null(strstr(buf, "\"param\":\"tools[0].name\""));
    assert_non_null(strstr(buf, "\"limit\":5"));
    assert_null(strstr(buf, "not this"));
    assert_true(mx_exchange_take(x, buf, sizeof buf, true) == MX_TAKE_END);
    mx_exchange_send(x, 200, "text/plain", "twice", 5); /* the first one counts */
    assert_true(mx_exchange_take(x, buf, sizeof buf, true) == MX_TAKE_END);
    mx_exchange_unref(x);
    mx_exchange_drop(x);

    static const struct {
        mtplx_status from;
        int to;
    } map[] = {{MTPLX_ERR_ARGUMENT, 400}, {MTPLX_ERR_FORMAT, 400}, {MTPLX_ERR_UNSUPPORTED, 400},
               {MTPLX_ERR_LIMIT, 503},    {MTPLX_ERR_MEMORY, 507}, {MTPLX_ERR_CANCELLED, 503},
               {MTPLX_ERR_IO, 500}};
    for (size_t i = 0; i < sizeof map / sizeof *map; i++) {
        mtplx_error err = {map[i].from, "why"};
        assert_false(mx_api_fail_from(&e, &err, NULL));
        assert_int_equal(e.status, map[i].to);
    }
}

static void test_outbox(void **state)
{
    (void)state;
    struct mx_outbox o = {0};
    char in[5000], out[5000];
    unsigned char next_in = 0, next_out = 0;
    for (int i = 0; i < 2000; i++) {
        size_t n = (size_t)(i * 37 % 5000);
        for (size_t k = 0; k < n; k++)
            in[k] = (char)next_in++;
        if (!mx_outbox_put(&o, in, n, 20000))
            next_in = (unsigned char)(next_in - n);
        size_t got = mx_outbox_take(&o, out, (size_t)(i * 53 % 5000));
        for (size_t k = 0; k < got; k++)
            assert_int_equal((unsigned char)out[k], next_out++);
        assert_true(o.len - o.off <= 20000 && o.cap <= 65536);
    }
    mx_outbox_free(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_outbox),
        cmocka_unit_test(test_exchange_alone),
        cmocka_unit_test(test_clean),
        cmocka_unit_test(test_many_values),
        cmocka_unit_test(test_bodies),
        cmocka_unit_test(test_routes),
        cmocka_unit_test(test_envelopes),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_running_hold_no_body),
        cmocka_unit_test(test_chunked_and_pipelined),
        cmocka_unit_test(test_busy),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_public_needs_key),
        cmocka_unit_test(test_key_file),
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_framing),
        cmocka_unit_test(test_origins),
        cmocka_unit_test(test_rates),
        cmocka_unit_test(test_stream_flushes),
        cmocka_unit_test(test_keep_alive),
        cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_backlog_limit),
        cmocka_unit_test(test_stalled_reader),
        cmocka_unit_test(test_hang_up),
        cmocka_unit_test(test_no_gone_after_send),
        cmocka_unit_test(test_head_of_stream),
        cmocka_unit_test(test_stop_midway),
        cmocka_unit_test(test_draining),
        cmocka_unit_test(test_deadlines),
        cmocka_unit_test(test_crowd),
        cmocka_unit_test(test_full_house),
        cmocka_unit_test(test_garbage),
        cmocka_unit_test(test_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
