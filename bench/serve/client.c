/* Blocking sockets, one per request: as many threads as streams are cheap enough for a benchmark.
 */
#include "client.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

struct reply {
    int fd, status;
    bool chunked;
    long long left; /* of the body or the chunk; -1: until the connection closes */
    char buf[65536];
    size_t have, at;
};

static int dial(int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    struct timeval patience = {.tv_sec = 120};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static bool send_all(int fd, const char *data, size_t n)
{
    while (n > 0) {
        ssize_t k = send(fd, data, n, MSG_NOSIGNAL);
        if (k <= 0)
            return false;
        data += k;
        n -= (size_t)k;
    }
    return true;
}

static bool fill(struct reply *r)
{
    if (r->at < r->have)
        return true;
    ssize_t k = recv(r->fd, r->buf, sizeof r->buf, 0);
    r->at = 0;
    r->have = k > 0 ? (size_t)k : 0;
    return k > 0;
}

static bool read_line(struct reply *r, char *line, size_t cap)
{
    size_t n = 0;
    while (fill(r)) {
        char c = r->buf[r->at++];
        if (c == '\n') {
            line[n > 0 && line[n - 1] == '\r' ? n - 1 : n] = '\0';
            return true;
        }
        if (n + 1 < cap)
            line[n++] = c;
    }
    return false;
}

static bool read_head(struct reply *r)
{
    char line[4096];
    if (!read_line(r, line, sizeof line) || strncmp(line, "HTTP/1.1 ", 9) != 0)
        return false;
    r->status = (int)strtol(line + 9, NULL, 10);
    r->left = -1;
    while (read_line(r, line, sizeof line)) {
        if (line[0] == '\0')
            return true;
        if (strncasecmp(line, "content-length:", 15) == 0)
            r->left = strtoll(line + 15, NULL, 10);
        if (strncasecmp(line, "transfer-encoding: chunked", 26) == 0)
            r->chunked = true;
    }
    return false;
}

/* Starts the next chunk; false at the end of the body. */
static bool next_chunk(struct reply *r)
{
    char line[64];
    if (!read_line(r, line, sizeof line))
        return false;
    if (line[0] == '\0' && !read_line(r, line, sizeof line))
        return false;
    r->left = strtoll(line, NULL, 16);
    return r->left > 0;
}

/* 1: complete, 0: broken, -1: ended by fn. */
static int read_body(struct reply *r, client_fn *fn, void *arg)
{
    for (;;) {
        if (r->chunked && r->left <= 0 && !next_chunk(r))
            return r->left == 0;
        if (r->left == 0)
            return 1;
        if (!fill(r))
            return r->left < 0;
        size_t n = r->have - r->at;
        if (r->left >= 0 && n > (size_t)r->left)
            n = (size_t)r->left;
        if (!fn(arg, r->buf + r->at, n))
            return -1;
        r->at += n;
        r->left -= r->left >= 0 ? (long long)n : 0;
    }
}

static int roundtrip(int port, const char *head, const char *body, client_fn *fn, void *arg)
{
    struct reply *r = calloc(1, sizeof *r);
    int outcome = 0;
    r->fd = dial(port);
    if (r->fd >= 0 && send_all(r->fd, head, strlen(head)) && send_all(r->fd, body, strlen(body)) &&
        read_head(r))
        outcome = read_body(r, fn, arg);
    if (r->fd >= 0)
        close(r->fd);
    int status = outcome > 0 ? r->status : outcome;
    free(r);
    return status;
}

int client_post(int port, const char *path, const char *body, client_fn *fn, void *arg)
{
    char head[512];
    snprintf(head, sizeof head,
             "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\nConnection: close\r\n\r\n",
             path, port, strlen(body));
    return roundtrip(port, head, body, fn, arg);
}

int client_get(int port, const char *path, client_fn *fn, void *arg)
{
    char head[512];
    snprintf(head, sizeof head,
             "GET %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n\r\n", path, port);
    return roundtrip(port, head, "", fn, arg);
}

static void sse_line(struct sse *s)
{
    if (s->len > 0 && s->line[s->len - 1] == '\r')
        s->len--;
    s->line[s->len] = '\0';
    if (strncmp(s->line, "data: ", 6) == 0)
        s->event(s->arg, s->line + 6);
    s->len = 0;
}

void sse_feed(struct sse *s, const char *data, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (s->len + 2 > s->cap) {
            s->cap = s->cap ? 2 * s->cap : 4096;
            s->line = realloc(s->line, s->cap);
            if (!s->line)
                abort();
        }
        if (data[i] == '\n')
            sse_line(s);
        else
            s->line[s->len++] = data[i];
    }
}

void sse_free(struct sse *s)
{
    free(s->line);
}
