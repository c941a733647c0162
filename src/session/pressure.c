/* Memory pressure and the ceiling that follows from it. See pressure.h. */
#include "session/pressure.h"

#include "base/memory.h"

#define SECOND 1000000000ull

static bool read_machine(uint64_t *left, uint64_t *usable)
{
    *left = mx_memory_available();
    *usable = mx_memory_usable();
    return *left && *usable;
}

void mx_gauge_init(struct mx_gauge *g)
{
    *g = (struct mx_gauge){.ceiling = UINT64_MAX, .read = read_machine};
}

enum mx_pressure mx_pressure_next(enum mx_pressure now, uint64_t left, uint64_t usable)
{
    uint64_t critical = usable / 20, high = usable / 10;
    if (now >= MX_PRESSURE_CRITICAL)
        critical += critical / 2;
    if (now >= MX_PRESSURE_HIGH)
        high += high / 2;
    return left < critical ? MX_PRESSURE_CRITICAL
           : left < high   ? MX_PRESSURE_HIGH
                           : MX_PRESSURE_NONE;
}

static uint64_t at_least(uint64_t v, uint64_t least)
{
    return v > least ? v : least;
}

uint64_t mx_pressure_ceiling(enum mx_pressure level, uint64_t ceiling, uint64_t bytes,
                             uint64_t budget)
{
    uint64_t now = ceiling < budget ? ceiling : budget;
    uint64_t used = bytes < now ? bytes : now;
    switch (level) {
    case MX_PRESSURE_CRITICAL: return at_least(used / 2, budget / 64);
    case MX_PRESSURE_HIGH: return at_least(used - used / 4, budget / 8);
    default: return budget - now <= budget / 16 ? UINT64_MAX : now + budget / 16;
    }
}

uint64_t mx_gauge_update(struct mx_gauge *g, uint64_t now, uint64_t bytes, uint64_t budget)
{
    uint64_t left, usable;
    if (g->read_ns == 0 || now - g->read_ns >= SECOND) {
        g->read_ns = now ? now : 1;
        g->level =
            g->read(&left, &usable) ? mx_pressure_next(g->level, left, usable) : MX_PRESSURE_NONE;
        g->ceiling = mx_pressure_ceiling(g->level, g->ceiling, bytes, budget);
    }
    return g->ceiling < budget ? g->ceiling : budget;
}
