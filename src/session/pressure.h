/* Memory pressure: how much of its budget the bank may use right now.
 *
 * Read at most once a second from what the machine and the cgroup have left of what this process
 * may use. Below a tenth the pressure is HIGH, below a twentieth CRITICAL; it falls by a level only
 * half as much again above the threshold, so that freeing a little does not end it. While it is
 * HIGH the ceiling shrinks by a quarter each time, to an eighth of the budget; CRITICAL halves it,
 * to a 64th; without pressure it grows back by a sixteenth of the budget. */
#ifndef MX_SESSION_PRESSURE_H
#define MX_SESSION_PRESSURE_H

#include "session/bank.h"

struct mx_gauge {
    enum mx_pressure level;
    uint64_t read_ns; /* when it was read last */
    uint64_t ceiling; /* UINT64_MAX: not lowered */
    /* Bytes left of what may be used; false: unknown. */
    bool (*read)(uint64_t *left, uint64_t *usable);
};

void mx_gauge_init(struct mx_gauge *g);
/* The level for so much being left, coming from `now`. */
enum mx_pressure mx_pressure_next(enum mx_pressure now, uint64_t left, uint64_t usable);
/* The ceiling after one more second of pressure, for a bank of so many bytes. */
uint64_t mx_pressure_ceiling(enum mx_pressure level, uint64_t ceiling, uint64_t bytes,
                             uint64_t budget);
/* Reads and follows; at most once a second of `now`. Returns the ceiling, at most the budget. */
uint64_t mx_gauge_update(struct mx_gauge *g, uint64_t now, uint64_t bytes, uint64_t budget);

#endif
