/* Running servers of this machine: a record of each, and asking one who it is.
 *
 * The record of a server is a file for its owner only, named after its port, in
 * $XDG_RUNTIME_DIR/mtplx, else $MTPLX_STATE_DIR/run, else $XDG_CACHE_HOME/mtplx/run or
 * $HOME/.cache/mtplx/run (MTPLX_STATE_DIR=off: no record). It holds the start time of the process,
 * so that a number that the system has given to another process since is not taken for it. */
#ifndef MX_CLI_SERVE_PROCESS_H
#define MX_CLI_SERVE_PROCESS_H

#include "base/error.h"

struct mx_serve_record {
    int pid;
    uint64_t start; /* in clock ticks after boot */
};

/* Of this process; quietly nothing where there is no place for it. */
void mx_serve_record_write(int port);
void mx_serve_record_remove(int port);
/* The record of a port, when its process still runs. */
bool mx_serve_record_read(int port, struct mx_serve_record *out);

/* Start time of a process of this program; 0 when there is none of that number. */
uint64_t mx_serve_process_start(int pid);

enum mx_serve_answer {
    MX_SERVE_SILENT = 0, /* nobody listens, or answers in time */
    MX_SERVE_OTHER,      /* something that is not mtplx, or speaks HTTPS */
    MX_SERVE_MTPLX,
};
/* Asks for /health. *pid: of the server, 0 when it does not tell. */
enum mx_serve_answer mx_serve_ask(const char *host, int port, int *pid);

#endif
