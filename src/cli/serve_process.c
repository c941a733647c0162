/* Running servers of this machine. */
#include "cli/serve_process.h"

#include "base/file.h"
#include "base/strbuf.h"

#include <errno.h>
#include <jansson.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

enum { ANSWER_MAX = 256 << 10, ANSWER_SECONDS = 2 };

/* ---- Records ------------------------------------------------------------------------------ */

static char *under(const char *base, const char *rest)
{
    return base && *base == '/' ? mx_path_join(base, rest) : NULL;
}

static char *record_dir(void)
{
    const char *state = getenv("MTPLX_STATE_DIR");
    char *dir = under(getenv("XDG_RUNTIME_DIR"), "mtplx");
    if (!dir && state)
        return under(state, "run");
    if (!dir)
        dir = under(getenv("XDG_CACHE_HOME"), "mtplx/run");
    return dir ? dir : under(getenv("HOME"), ".cache/mtplx/run");
}

static char *record_path(int port, bool make_dir)
{
    char name[32];
    char *dir = record_dir();
    if (!dir)
        return NULL;
    for (char *slash = dir + 1; make_dir && (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(dir, 0700);
        *slash = '/';
    }
    if (make_dir)
        mkdir(dir, 0700);
    snprintf(name, sizeof name, "serve-%d.json", port);
    char *path = mx_path_join(dir, name);
    free(dir);
    return path;
}

uint64_t mx_serve_process_start(int pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    text[n] = '\0';
    /* "pid (name) state ...": the name may hold anything, so it ends at the last bracket. */
    const char *name = strchr(text, '('), *at = strrchr(text, ')');
    if (!name || !at || strncmp(name + 1, "mtplx", 5) != 0 || at[1] == '\0' || at[2] == 'Z')
        return 0;
    /* The start time is field 22; the state behind the name is field 3. */
    at += 2;
    for (int field = 3; field < 22 && at; field++) {
        at = strchr(at, ' ');
        at = at ? at + 1 : NULL;
    }
    return at ? strtoull(at, NULL, 10) : 0;
}

void mx_serve_record_write(int port)
{
    char text[128];
    uint64_t start = mx_serve_process_start((int)getpid());
    char *path = start ? record_path(port, true) : NULL;
    if (!path)
        return;
    int n = snprintf(text, sizeof text, "{\"pid\":%d,\"start\":%llu,\"port\":%d}\n", (int)getpid(),
                     (unsigned long long)start, port);
    mode_t old = umask(077);
    mx_file_write(path, text, (size_t)n, NULL);
    umask(old);
    free(path);
}

static bool read_record(int port, struct mx_serve_record *out)
{
    char *path = record_path(port, false);
    size_t n = 0;
    char *text = path ? mx_file_read(path, 4096, &n, NULL) : NULL;
    json_t *o = text ? json_loadb(text, n, 0, NULL) : NULL;
    json_int_t pid = json_integer_value(json_object_get(o, "pid"));
    json_int_t start = json_integer_value(json_object_get(o, "start"));
    bool ok = pid > 1 && pid < 1 << 30 && start > 0;
    if (ok)
        *out = (struct mx_serve_record){(int)pid, (uint64_t)start};
    json_decref(o);
    free(text);
    free(path);
    return ok;
}

bool mx_serve_record_read(int port, struct mx_serve_record *out)
{
    return read_record(port, out) && mx_serve_process_start(out->pid) == out->start;
}

void mx_serve_record_remove(int port)
{
    struct mx_serve_record r;
    if (!read_record(port, &r) || r.pid != (int)getpid())
        return;
    char *path = record_path(port, false);
    if (path)
        unlink(path);
    free(path);
}

/* ---- Asking ------------------------------------------------------------------------------- */

static int dial(const char *host, int port)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list, *a;
    struct timeval limit = {.tv_sec = ANSWER_SECONDS};
    char service[16];
    int fd = -1;
    snprintf(service, sizeof service, "%d", port);
    if (getaddrinfo(host, service, &hints, &list) != 0)
        return -1;
    for (a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    return fd;
}

/* The whole answer to a request for /health, head and all. */
static void exchange(int fd, struct mx_strbuf *answer)
{
    static const char request[] = "GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n";
    char buf[4096];
    ssize_t n = 0;
    if (send(fd, request, sizeof request - 1, MSG_NOSIGNAL) != (ssize_t)sizeof request - 1)
        return;
    while ((n = recv(fd, buf, sizeof buf, 0)) > 0 && mx_strbuf_append(answer, buf, (size_t)n))
        ;
}

enum mx_serve_answer mx_serve_ask(const char *host, int port, int *pid)
{
    struct mx_strbuf answer;
    *pid = 0;
    int fd = dial(host, port);
    if (fd < 0)
        return MX_SERVE_SILENT;
    mx_strbuf_init(&answer, ANSWER_MAX);
    exchange(fd, &answer);
    close(fd);
    const char *body = answer.data ? strstr(answer.data, "\r\n\r\n") : NULL;
    json_t *o = body ? json_loads(body + 4, 0, NULL) : NULL;
    bool ours = json_is_string(json_object_get(o, "model")) && json_object_get(o, "ok");
    json_int_t p = json_integer_value(json_object_get(json_object_get(o, "startup"), "pid"));
    if (ours && p > 1 && p < 1 << 30)
        *pid = (int)p;
    json_decref(o);
    mx_strbuf_free(&answer);
    return ours ? MX_SERVE_MTPLX : MX_SERVE_OTHER;
}
