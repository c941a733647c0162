/* The listening socket, and the limit of open files. */
#include "serve/http.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 1024, OTHER_FILES = 256, LEAST = 16 };

static int try_bind(const struct addrinfo *a)
{
    int on = 1;
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static int port_of(int fd)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    char port[NI_MAXSERV];
    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0 ||
        getnameinfo((struct sockaddr *)&a, n, NULL, 0, port, sizeof port, NI_NUMERICSERV) != 0)
        return 0;
    int value = 0;
    for (const char *c = port; *c; c++)
        value = value * 10 + (*c - '0');
    return value;
}

int mx_listen(const char *host, int port, int *bound, mtplx_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list, *a;
    char service[16];
    int fd = -1;
    snprintf(service, sizeof service, "%d", port);
    int rc = getaddrinfo(host, service, &hints, &list);
    if (rc != 0) {
        mx_error(err, MTPLX_ERR_ARGUMENT, "--host %.100s is not an address of this machine: %s",
                 host, gai_strerror(rc));
        return -1;
    }
    for (a = list; a && fd < 0; a = a->ai_next)
        fd = try_bind(a);
    int why = errno;
    freeaddrinfo(list);
    if (fd >= 0)
        *bound = port_of(fd);
    else if (why == EADDRINUSE)
        mx_error(err, MTPLX_ERR_IO, "port %d of %.100s is taken: choose another --port", port,
                 host);
    else
        mx_error(err, MTPLX_ERR_IO, "cannot listen on %.100s port %d: %s", host, port,
                 strerror(why));
    return fd;
}

int mx_raise_file_limit(int connections)
{
    struct rlimit r;
    rlim_t want = (rlim_t)connections + OTHER_FILES;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0)
        return connections;
    if (r.rlim_cur < want) {
        rlim_t hard = r.rlim_max;
        r.rlim_cur = hard == RLIM_INFINITY || hard > want ? want : hard;
        setrlimit(RLIMIT_NOFILE, &r);
    }
    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur >= want)
        return connections;
    return r.rlim_cur > OTHER_FILES + LEAST ? (int)(r.rlim_cur - OTHER_FILES) : LEAST;
}
