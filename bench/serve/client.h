/* A small HTTP/1.1 client for benchmarks of the server: one POST per connection, streamed reply. */
#ifndef BENCH_SERVE_CLIENT_H
#define BENCH_SERVE_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Pieces of the reply's body as they arrive. False breaks the connection off. */
typedef bool client_fn(void *arg, const char *data, size_t n);

/* Sends `body` to 127.0.0.1:port and feeds the reply to `fn`. Returns the HTTP status, 0 when the
 * connection failed or broke, -1 when `fn` ended it. */
int client_post(int port, const char *path, const char *body, client_fn *fn, void *arg);
int client_get(int port, const char *path, client_fn *fn, void *arg);

/* Collects the "data:" lines of a text/event-stream. */
struct sse {
    char *line;
    size_t len, cap;
    void (*event)(void *arg, const char *data);
    void *arg;
};
void sse_feed(struct sse *s, const char *data, size_t n);
void sse_free(struct sse *s);

#endif
