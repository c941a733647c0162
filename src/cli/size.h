/* Sizes on the command line. */
#ifndef MX_CLI_SIZE_H
#define MX_CLI_SIZE_H

#include <stdint.h>

/* "512M", "8G", "1.5GiB", or bytes; units are powers of 1,024. 0 when it is none of them. */
uint64_t mx_cli_size(const char *text);

#endif
