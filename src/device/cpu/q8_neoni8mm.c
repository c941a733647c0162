/* int8 kernels for AArch64 with the i8mm extension: unsigned codes need no correction. */
#define Q_SIGNED 0
#define Q_NAME "neon-i8mm"
#define Q_TABLE mx_q8_neoni8mm
#include "device/cpu/q8_neon.h"
