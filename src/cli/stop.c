/* mtplx stop: ends a server of this machine. */
#include "base/clock.h"
#include "cli/commands.h"
#include "cli/serve_process.h"
#include "serve/guard.h"

#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { STOP_HOST, STOP_PORT, STOP_GRACE, STOP_JSON, STOP_FLAGS };

enum { KILL_SECONDS = 10 };

static const struct mx_cli_flag flags[STOP_FLAGS] = {
    [STOP_HOST] = {.name = "host",
                   .kind = MX_CLI_TEXT,
                   .value = "ADDRESS",
                   .env = "MTPLX_HOST",
                   .fallback = "127.0.0.1",
                   .help = "Address that the server listens on."},
    [STOP_PORT] = {.name = "port",
                   .kind = MX_CLI_INT,
                   .letter = 'p',
                   .min = 1,
                   .max = 65535,
                   .env = "MTPLX_PORT",
                   .fallback = "8000",
                   .help = "Its port."},
    [STOP_GRACE] = {.name = "grace-seconds",
                    .kind = MX_CLI_REAL,
                    .max = 86400,
                    .fallback = "10",
                    .help = "How long it may take to end by itself; then it is killed."},
    [STOP_JSON] = {.name = "json", .kind = MX_CLI_SWITCH, .help = "Print the result as JSON."},
};

struct stop {
    const struct mx_cli_args *args;
    struct mx_cli_out *out;
    const char *host;
    int port;
    double grace;
    int pid;
    int handle; /* of the process, so that its number cannot become another's meanwhile */
    const char *signal;
};

/* ---- Finding it --------------------------------------------------------------------------- */

/* The process of the server: as it says itself, if it is one of this machine, else as recorded. */
static const char *find(struct stop *s)
{
    struct mx_serve_record r;
    int pid;
    bool recorded = mx_serve_record_read(s->port, &r);
    enum mx_serve_answer a = mx_serve_ask(s->host, s->port, &pid);
    bool here = mx_host_is_loopback(s->host) || (recorded && r.pid == pid);
    if (a == MX_SERVE_MTPLX && pid && here && mx_serve_process_start(pid)) {
        s->pid = pid;
        return NULL;
    }
    if (recorded) {
        s->pid = r.pid;
        return NULL;
    }
    return a == MX_SERVE_MTPLX   ? "a server answers there, but it is not a process of this user's "
                                   "machine that can be told apart"
           : a == MX_SERVE_OTHER ? "what answers there is not mtplx"
                                 : "no server is running there";
}

/* ---- Ending it ---------------------------------------------------------------------------- */

static bool ended_within(const struct stop *s, double seconds)
{
    struct pollfd p = {.fd = s->handle, .events = POLLIN};
    uint64_t end = mx_now_ns() + (uint64_t)(seconds * 1e9);
    for (;;) {
        uint64_t now = mx_now_ns();
        int n = poll(&p, 1, now < end ? (int)((end - now) / 1000000) + 1 : 0);
        if (n > 0)
            return true;
        if (n == 0 || errno != EINTR)
            return false;
    }
}

static bool send_signal(const struct stop *s, int number)
{
    return syscall(SYS_pidfd_send_signal, s->handle, number, NULL, 0) == 0;
}

/* NULL when it has ended, else why not. */
static const char *end(struct stop *s)
{
    uint64_t start = mx_serve_process_start(s->pid);
    s->handle = (int)syscall(SYS_pidfd_open, s->pid, 0);
    if (s->handle < 0)
        return errno == ESRCH ? NULL : strerror(errno);
    if (start == 0 || mx_serve_process_start(s->pid) != start)
        return "it has ended meanwhile";
    s->signal = "SIGTERM";
    if (!send_signal(s, SIGTERM))
        return errno == ESRCH ? NULL : strerror(errno);
    if (ended_within(s, s->grace))
        return NULL;
    s->signal = "SIGKILL";
    if (!send_signal(s, SIGKILL))
        return errno == ESRCH ? NULL : strerror(errno);
    return ended_within(s, KILL_SECONDS) ? NULL : "it does not end";
}

/* ---- The command -------------------------------------------------------------------------- */

static int report(const struct stop *s, const char *why, double seconds)
{
    bool json = s->args->values[STOP_JSON].on;
    if (json) {
        json_t *o =
            json_pack("{s:b, s:s?, s:i, s:s?, s:f, s:s?}", "stopped", !why, "host", s->host, "port",
                      s->port, "signal", s->signal, "seconds", seconds, "reason", why);
        json_object_set_new(o, "pid", s->pid ? json_integer(s->pid) : json_null());
        char *text = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(4)) : NULL;
        mx_cli_printf(s->out, "%s\n", text ? text : "{}");
        free(text);
        json_decref(o);
    } else if (!why) {
        mx_cli_printf(s->out, "stopped the server on port %d (pid %d, %s, %.1f s)\n", s->port,
                      s->pid, s->signal ? s->signal : "already ending", seconds);
    } else {
        mx_cli_complain("stop", "port %d of %.100s: %s", s->port, s->host, why);
    }
    return why ? MX_EXIT_FAILURE : MX_EXIT_OK;
}

static int run(const struct mx_cli_args *args, struct mx_cli_out *out)
{
    const struct mx_cli_value *v = args->values;
    struct stop s = {
        .args = args,
        .out = out,
        .host = v[STOP_HOST].source ? v[STOP_HOST].text : "127.0.0.1",
        .port = v[STOP_PORT].source ? (int)v[STOP_PORT].integer : 8000,
        .grace = v[STOP_GRACE].source ? v[STOP_GRACE].real : 10,
        .handle = -1,
    };
    uint64_t start = mx_now_ns();
    const char *why = find(&s);
    if (!why)
        why = end(&s);
    if (s.handle >= 0)
        close(s.handle);
    return report(&s, why, (double)(mx_now_ns() - start) * 1e-9);
}

const struct mx_cli_command mx_cli_stop = {
    .name = "stop",
    .operands = "",
    .summary = "Stop a running server.",
    .details = "Asks the server on a port to end (SIGTERM: it finishes what it is doing) and kills "
               "it when it has not ended after the grace time. Only a process that is a server of "
               "mtplx is touched. Exits with 1 when there is none.",
    .flags = flags,
    .n_flags = STOP_FLAGS,
    .run = run,
};
