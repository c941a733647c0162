/* Self-check of the cpu device's kernels (cpu_check.c). Thread-safe. */
#ifndef MX_DEVICE_CPU_CPU_CHECK_H
#define MX_DEVICE_CPU_CPU_CHECK_H

#include <stdbool.h>

struct mx_cpu_kernels;
struct mx_panels;
struct mx_q8_kernels;

/* Whether float kernels compute what they should, to rounding. */
bool mx_cpu_check_floats(const struct mx_cpu_kernels *k);

/* Whether int8 kernels give the bits of mx_q8_scalar for the format of `format` (its sizes and data
 * are not used); false as well when memory is out. */
bool mx_cpu_check_q8(const struct mx_q8_kernels *q8, const struct mx_panels *format);

#endif
