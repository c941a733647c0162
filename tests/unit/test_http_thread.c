/* The HTTP side under many threads: clients that ask, stream and hang up, producers that write from
 * threads of their own, and a server that stops in the middle of it. Every request must be told of
 * at most once, every stream that was read to its end must be whole, and nothing may be lost. */
#include "serve/http.h"

#include "base/clock.h"
#include "serve/exchange_int.h"

#include "unit/http_client.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>

#include <cmocka.h>

enum { CLIENTS = 8, ROUNDS = 40, EVENTS = 30 };

/* cmocka's assertions belong to the thread of the test. */
#define MUST(ok) ((ok) ? (void)0 : give_up(__LINE__, #ok))

static void give_up(int line, const char *what)
{
    fprintf(stderr, "test_http_thread.c:%d: %s does not hold\n", line, what);
    abort();
}

struct tally {
    atomic_int made, gone, ended, done, freed;
};

static struct tally tally;
static struct mx_app *const app = (struct mx_app *)&tally;

/* A producer: a thread for each stream, as if the engine were many. */
struct producer {
    struct mx_exchange *x;
    atomic_int gone, drained;
    unsigned seed;
    bool whole; /* one reply instead of a stream */
};

static void on_gone(void *arg, uint64_t value)
{
    struct producer *p = arg;
    MUST(value == 1);
    MUST(atomic_fetch_add(&p->gone, 1) == 0);
    atomic_fetch_add(&tally.gone, 1);
}

static void on_drained(void *arg, uint64_t value)
{
    struct producer *p = arg;
    MUST(value == 2);
    atomic_fetch_add(&p->drained, 1);
}

static void nap(unsigned *seed, unsigned most_us)
{
    *seed = *seed * 1664525u + 1013904223u;
    if (*seed >> 30)
        usleep((*seed >> 8) % most_us);
}

static void produce_stream(struct producer *p)
{
    char text[64];
    mx_exchange_begin(p->x, 200, "text/event-stream");
    for (int i = 0; i < EVENTS; i++) {
        int n = snprintf(text, sizeof text, "{\"i\":%d}", i);
        if (!mx_exchange_event(p->x, NULL, text, (size_t)n))
            break;
        nap(&p->seed, 400);
    }
    mx_exchange_end(p->x);
}

static void *produce(void *arg)
{
    struct producer *p = arg;
    nap(&p->seed, 2000);
    if (p->whole)
        mx_exchange_send_json(p->x, 200, json_pack("{s:i}", "n", EVENTS));
    else
        produce_stream(p);
    atomic_fetch_add(&tally.ended, 1);
    /* From here on no callback may come: p goes. */
    mx_exchange_unref(p->x);
    free(p);
    return NULL;
}

static void start(struct mx_exchange *x, bool whole)
{
    struct producer *p = calloc(1, sizeof *p);
    pthread_t t;
    p->x = mx_exchange_ref(x);
    p->whole = whole;
    p->seed = (unsigned)atomic_fetch_add(&tally.made, 1) * 7919u;
    mx_exchange_on_gone(x, on_gone, p, 1);
    mx_exchange_on_drained(x, on_drained, p, 2);
    pthread_create(&t, NULL, produce, p);
    pthread_detach(t);
}

static void stream(struct mx_app *a, struct mx_exchange *x)
{
    (void)a;
    start(x, false);
}

static void whole(struct mx_app *a, struct mx_exchange *x)
{
    (void)a;
    start(x, true);
}

static void echo(struct mx_app *a, struct mx_exchange *x)
{
    (void)a;
    mx_exchange_note(x, json_pack("{s:i}", "n", 1));
    mx_exchange_send_json(x, 200, json_deep_copy(mx_exchange_body(x)));
}

static void done(struct mx_app *a, struct mx_exchange *x, int status, uint64_t ns)
{
    (void)a;
    (void)ns;
    MUST(status == 200 || status == 499 || status == 503);
    MUST(mx_exchange_request_id(x) != NULL);
    atomic_fetch_add(&tally.done, 1);
}

static const struct mx_route routes[] = {
    {"POST", "/echo", echo, MX_DIALECT_OPENAI, MX_ROUTE_BODY},
    {"GET", "/stream", stream, MX_DIALECT_OPENAI, 0},
    {"GET", "/whole", whole, MX_DIALECT_OPENAI, MX_ROUTE_QUICK},
};

static struct mx_server *serve(void)
{
    mtplx_error err = {0};
    struct mx_server_options o = {0};
    struct mx_http_setup s = {
        .routes = routes,
        .n_routes = 3,
        .done = done,
        .times = {.tick_ns = 1000000, .keep_alive_ns = 2000000, .stall_ns = 5000000000u},
    };
    struct mx_server *v = mx_http_start(app, &o, &s, &err);
    if (!v)
        fail_msg("%s", err.message);
    return v;
}

struct client {
    pthread_t thread;
    int port;
    unsigned seed;
    bool until_refused;
    int whole, cut;
};

/* Events in order and none missing; comments may stand between them. */
static void check_stream(const struct reply *r)
{
    const char *at = r->body;
    char text[64];
    for (int i = 0; i < EVENTS; i++) {
        snprintf(text, sizeof text, "data: {\"i\":%d}\n\n", i);
        const char *next = strstr(at, text);
        MUST(next != NULL);
        at = next + strlen(text);
    }
}

static void send_get(int fd, const char *path)
{
    char head[100];
    snprintf(head, sizeof head, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
    put_text(fd, head);
}

static bool one_request(struct client *c)
{
    int fd = dial(c->port);
    if (fd < 0)
        return false;
    c->seed = c->seed * 1664525u + 1013904223u;
    unsigned what = c->seed >> 29;
    bool streams = what < 5, hangs_up = what < 2 || what == 7;
    send_get(fd, streams ? "/stream" : "/whole");
    if (hangs_up) {
        nap(&c->seed, 5000);
        c->cut++;
    } else {
        struct reply r = get_reply(fd, false);
        if (r.whole && streams && r.status == 200)
            check_stream(&r);
        c->whole += r.whole;
        MUST(r.whole || c->until_refused);
        free(r.body);
    }
    if (!hangs_up) { /* once more on the same connection */
        put_text(fd,
                 "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\n\r\n{\"a\":1}");
        struct reply r = get_reply(fd, false);
        c->whole += r.whole;
        free(r.body);
    }
    close(fd);
    return true;
}

static void *run_client(void *arg)
{
    struct client *c = arg;
    for (int i = 0; i < ROUNDS || c->until_refused; i++)
        if (!one_request(c))
            break;
    return NULL;
}

static void start_clients(struct client *c, int port, bool until_refused)
{
    for (int i = 0; i < CLIENTS; i++) {
        c[i] = (struct client){.port = port, .seed = (unsigned)i * 97u + 5u};
        c[i].until_refused = until_refused;
        pthread_create(&c[i].thread, NULL, run_client, &c[i]);
    }
}

static void join_clients(struct client *c)
{
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(c[i].thread, NULL);
}

/* Producers end by themselves soon after their clients. */
static void wait_for_producers(void)
{
    for (int i = 0; i < 2000 && atomic_load(&tally.ended) < atomic_load(&tally.made); i++)
        usleep(5000);
    assert_int_equal(atomic_load(&tally.ended), atomic_load(&tally.made));
}

static void test_load(void **state)
{
    (void)state;
    struct client c[CLIENTS];
    int whole_replies = 0, cut = 0;
    memset(&tally, 0, sizeof tally);
    struct mx_server *v = serve();
    start_clients(c, mx_server_port(v), false);
    join_clients(c);
    wait_for_producers();
    assert_true(mx_server_drain(v, 10000000000u));
    for (int i = 0; i < CLIENTS; i++) {
        whole_replies += c[i].whole;
        cut += c[i].cut;
    }
    assert_int_equal(whole_replies, 2 * (CLIENTS * ROUNDS - cut));
    assert_true(atomic_load(&tally.gone) <= cut && cut > 0);
    mx_server_free(v);
}

static void test_stop_under_load(void **state)
{
    (void)state;
    struct client c[CLIENTS];
    for (int i = 0; i < 5; i++) {
        memset(&tally, 0, sizeof tally);
        struct mx_server *v = serve();
        start_clients(c, mx_server_port(v), true);
        usleep(20000 + 7000 * (unsigned)i);
        if (i % 2)
            mx_server_quiesce(v);
        mx_server_free(v);
        join_clients(c);
        wait_for_producers();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load),
        cmocka_unit_test(test_stop_under_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
