/* int8 kernels for AArch64 with the dotprod extension (Armv8.2 and later). */
#define Q_SIGNED 1
#define Q_NAME "neon-dotprod"
#define Q_TABLE mx_q8_neondot
#include "device/cpu/q8_neon.h"
