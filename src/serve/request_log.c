/* The request log. A line is one write() to a file that is open for appending, so that lines of
 * several processes do not mix. */
#include "serve/request_log.h"

#include "serve/exchange_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct mx_request_log {
    int fd;
};

struct mx_request_log *mx_request_log_open(const char *path, mtplx_error *err)
{
    struct mx_request_log *l = malloc(sizeof *l);
    if (!l) {
        mx_error_nomem(err, "the request log", sizeof *l);
        return NULL;
    }
    l->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (l->fd >= 0)
        return l;
    mx_error(err, MTPLX_ERR_IO, "cannot open the request log %.200s: %s", path, strerror(errno));
    free(l);
    return NULL;
}

void mx_request_log_close(struct mx_request_log *l)
{
    if (l)
        close(l->fd);
    free(l);
}

/* UTC with milliseconds, as RFC 3339 writes it. */
static void time_text(char out[48])
{
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    size_t n = strftime(out, 32, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out + n, 48 - n, ".%03ldZ", now.tv_nsec / 1000000);
}

void mx_request_log_write(struct mx_request_log *l, struct mx_exchange *x, int status,
                          uint64_t duration_ns)
{
    char when[48];
    time_text(when);
    pthread_mutex_lock(&x->lock);
    json_t *o =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:I, s:I, s:f}", "time", when, "id",
                  x->request_id, "client", x->client, "method", x->method, "route", x->route,
                  "status", status, "bytes_in", (json_int_t)x->body_bytes, "bytes_out",
                  (json_int_t)x->sent_bytes, "duration_ms", (double)duration_ns / 1e6);
    if (o && x->notes)
        json_object_update_missing(o, x->notes);
    pthread_mutex_unlock(&x->lock);
    char *text = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(o);
    if (!text)
        return;
    size_t n = strlen(text);
    text[n] = '\n'; /* over the terminator */
    ssize_t done = write(l->fd, text, n + 1);
    (void)done; /* a full disk costs the log, not the request */
    free(text);
}
