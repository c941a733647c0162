/* Looking after a cold tier from outside the server: `mtplx cache`.
 *
 * A store opened here has no writer thread; what these functions remove is gone when they return.
 * While a server has the directory, it is opened for looking only: mx_cold_get_stats() has
 * writable == false then, and whatever would change something fails with a sentence. */
#ifndef MX_SESSION_COLD_ADMIN_H
#define MX_SESSION_COLD_ADMIN_H

#include "session/cold.h"

/* Opens what is there: IO when there is no such directory (NULL: the default one). Compares files
 * and manifest like mx_cold_open(), as long as that takes; `log` as there. Close with
 * mx_cold_close(). max_bytes: as in the options. */
struct mx_cold *mx_cold_admin_open(const char *dir, uint64_t max_bytes,
                                   void (*log)(void *arg, const char *line), void *arg,
                                   mtplx_error *err);

struct mx_cold_item { /* a snapshot */
    char session[128];
    struct mx_cold_key key, scope; /* scope: mx_cold_chain_start() of it */
    struct mx_cold_identity identity;
    int point; /* enum mx_point */
    uint64_t tokens;
    uint64_t bytes;         /* of its own file */
    uint64_t chain_bytes;   /* of the blocks below it, shared ones counted in full */
    uint64_t created, used; /* milliseconds since 1970 */
};
/* Up to `most` snapshots, last used first; how many there are. */
size_t mx_cold_list(struct mx_cold *c, struct mx_cold_item *out, size_t most);

struct mx_cold_report {
    uint64_t files, bytes; /* checked */
    uint64_t bad;          /* failed */
    uint64_t snapshots;    /* dropped */
    uint64_t removed;      /* files without an entry */
    uint64_t evicted;      /* snapshots */
    uint64_t freed;        /* bytes */
};
/* Reads every file and checks names, headers, sizes and checksums. What fails is dropped when the
 * directory is ours, and `line` gets a sentence about each. `cancel` may be NULL. CANCELLED. */
mtplx_status mx_cold_check_all(struct mx_cold *c, void (*line)(void *arg, const char *text),
                               void *arg, const atomic_bool *cancel, struct mx_cold_report *r,
                               mtplx_error *err);
/* Compares files and entries again, evicts down to what is allowed, shrinks the manifest. */
mtplx_status mx_cold_gc(struct mx_cold *c, struct mx_cold_report *r, mtplx_error *err);
/* Removes all snapshots (session NULL) or a session's. */
mtplx_status mx_cold_clear(struct mx_cold *c, const char *session, struct mx_cold_report *r,
                           mtplx_error *err);

#endif
