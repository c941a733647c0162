/* The figures of a generation, as a block of text and as JSON. */
#ifndef MX_CLI_STATS_H
#define MX_CLI_STATS_H

#include "mtplx.h"

#include <jansson.h>
#include <stdio.h>

/* Derived figures; 0 where there is nothing to divide. */
struct mx_rates {
    double decode;             /* tokens per second after the first one */
    double prefill;            /* prompt tokens per second */
    double first_token;        /* seconds from the start of prefill */
    double tokens_per_forward; /* tokens committed per verify pass */
    double acceptance[MTPLX_MAX_DEPTH];
    int depths; /* draft positions that were ever used */
};

struct mx_rates mx_stats_rates(const mtplx_gen_stats *s);

/* A few lines, each "name  figures". */
void mx_stats_print(const mtplx_gen_stats *s, FILE *f);

/* An object, or NULL when out of memory. */
json_t *mx_stats_json(const mtplx_gen_stats *s);

#endif
