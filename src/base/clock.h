/* Monotonic time. */
#ifndef MX_BASE_CLOCK_H
#define MX_BASE_CLOCK_H

#include <stdint.h>

uint64_t mx_now_ns(void);

/* Peak resident memory of this process in bytes (0 where unknown). */
uint64_t mx_peak_rss(void);

#endif
