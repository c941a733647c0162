/* Names of modes, as flags, APIs and metrics spell them. */
#include "engine/engine.h"

#include <string.h>

static const char *const modes[] = {"serial", "cooperative", "ar_batch", "mtp_batch"};

/* Equal, with dashes as good as underscores. */
static bool same(const char *a, const char *b)
{
    for (; *a && *b; a++, b++)
        if ((*a == '-' ? '_' : *a) != *b)
            return false;
    return *a == *b;
}

int mx_engine_mode_named(const char *name)
{
    for (int i = 0; i < (int)(sizeof modes / sizeof *modes); i++)
        if (same(name, modes[i]))
            return i;
    return strcmp(name, "hyper") == 0 ? MX_ENGINE_MTP_BATCH : -1;
}

const char *mx_engine_mode_name(enum mx_engine_mode mode)
{
    return (unsigned)mode < sizeof modes / sizeof *modes ? modes[mode] : "unknown";
}
