/* A raw HTTP client for the tests of the server: what it sends is up to the test, byte for byte. */
#ifndef HTTP_CLIENT_H
#define HTTP_CLIENT_H

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

struct reply {
    int status; /* 0: the connection ended before a whole head */
    char head[8192];
    char *body; /* decoded; free it */
    size_t n;
    bool whole; /* the body came to its end */
};

static inline int dial(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static inline bool put_all(int fd, const void *data, size_t n)
{
    const char *p = data;
    while (n > 0) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k <= 0)
            return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

static inline bool put_text(int fd, const char *text)
{
    return put_all(fd, text, strlen(text));
}

/* What one read brings within `ms`; 0 at the end, -1 when nothing came. */
static inline ssize_t get_some(int fd, char *buf, size_t n, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, ms) <= 0)
        return -1;
    ssize_t k = recv(fd, buf, n, 0);
    return k < 0 ? 0 : k;
}

static inline bool get_byte(int fd, char *c)
{
    return get_some(fd, c, 1, 8000) == 1;
}

static inline const char *head_value(const struct reply *r, const char *name)
{
    static _Thread_local char value[1024];
    size_t n = strlen(name);
    for (const char *line = strstr(r->head, "\r\n"); line; line = strstr(line + 2, "\r\n")) {
        const char *at = line + 2;
        if (strncasecmp(at, name, n) == 0 && at[n] == ':') {
            at += n + 1 + strspn(at + n + 1, " ");
            size_t len = strcspn(at, "\r\n");
            snprintf(value, sizeof value, "%.*s", (int)len, at);
            return value;
        }
    }
    return NULL;
}

static inline bool get_line(int fd, char *line, size_t size)
{
    size_t n = 0;
    while (n + 1 < size && get_byte(fd, &line[n])) {
        if (line[n++] == '\n') {
            line[n] = '\0';
            return true;
        }
    }
    line[n] = '\0';
    return false;
}

static inline bool get_body(int fd, struct reply *r, size_t n)
{
    r->body = realloc(r->body, r->n + n + 1);
    for (size_t end = r->n + n; r->n < end;) {
        ssize_t k = get_some(fd, r->body + r->n, end - r->n, 8000);
        if (k <= 0)
            return false;
        r->n += (size_t)k;
    }
    r->body[r->n] = '\0';
    return true;
}

static inline bool get_chunks(int fd, struct reply *r)
{
    char line[64];
    while (get_line(fd, line, sizeof line)) {
        size_t n = strtoul(line, NULL, 16);
        if (n > 0 && !get_body(fd, r, n))
            return false;
        if (!get_line(fd, line, sizeof line))
            return false;
        if (n == 0)
            return true;
    }
    return false;
}

static inline bool get_head(int fd, struct reply *r)
{
    size_t n = 0;
    *r = (struct reply){.body = calloc(1, 1)};
    while (n + 1 < sizeof r->head && get_byte(fd, &r->head[n])) {
        n++;
        if (n >= 4 && memcmp(r->head + n - 4, "\r\n\r\n", 4) == 0) {
            r->status = (int)strtol(r->head + 9, NULL, 10);
            return true;
        }
    }
    return false;
}

static inline struct reply get_reply(int fd, bool no_body)
{
    struct reply r;
    if (!get_head(fd, &r))
        return r;
    const char *length = head_value(&r, "Content-Length");
    const char *coding = head_value(&r, "Transfer-Encoding");
    if (no_body || r.status == 204)
        r.whole = true;
    else if (coding && strcasecmp(coding, "chunked") == 0)
        r.whole = get_chunks(fd, &r);
    else if ((length = head_value(&r, "Content-Length")))
        r.whole = get_body(fd, &r, strtoul(length, NULL, 10));
    return r;
}

/* One request on a connection of its own. `extra`: header lines, each with its line end. */
static inline struct reply ask(int port, const char *method, const char *path, const char *extra,
                               const char *body)
{
    char head[20000];
    int fd = dial(port);
    snprintf(head, sizeof head, "%s %s HTTP/1.1\r\n%s%sContent-Length: %zu\r\n\r\n", method, path,
             strstr(extra, "Host:") ? "" : "Host: localhost\r\n", extra, strlen(body));
    put_text(fd, head);
    put_text(fd, body);
    struct reply r = get_reply(fd, strcmp(method, "HEAD") == 0);
    close(fd);
    return r;
}

static inline int ask_status(int port, const char *method, const char *path, const char *extra,
                             const char *body)
{
    struct reply r = ask(port, method, path, extra, body);
    free(r.body);
    return r.status;
}

#endif
