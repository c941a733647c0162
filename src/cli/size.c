/* Sizes on the command line. */
#include "cli/size.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint64_t mx_cli_size(const char *text)
{
    static const char units[] = "KMGT";
    char *end;
    errno = 0;
    double n = strtod(text, &end);
    if (errno || end == text || !(n > 0) || n > 1e15)
        return 0;
    const char *unit = *end ? strchr(units, *end & ~0x20) : NULL;
    if (unit && *unit) {
        for (; unit >= units; unit--)
            n *= 1024;
        end++;
        if (*end == 'i')
            end++;
    }
    if (*end == 'B' || *end == 'b')
        end++;
    return *end == '\0' && n < 1e18 ? (uint64_t)n : 0;
}
