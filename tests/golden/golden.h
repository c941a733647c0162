/* Shared by the golden tests: fixtures, comparison by relative error, and sequence helpers. */
#ifndef TESTS_GOLDEN_H
#define TESTS_GOLDEN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "format/safetensors.h"
#include "mtplx.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sanitizers make model code several times slower: the same tests then run on fewer cases. */
#if defined(__SANITIZE_ADDRESS__)
#define SLOW_BUILD 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SLOW_BUILD 1
#endif
#endif
#ifndef SLOW_BUILD
#define SLOW_BUILD 0
#endif

/* A number from the environment, else `fast`, else `slow` in a sanitizer build. */
static inline int budget(const char *env, int fast, int slow)
{
    const char *s = getenv(env);
    return s ? (int)strtol(s, NULL, 10) : SLOW_BUILD ? slow : fast;
}

static inline const char *src_root(void)
{
    const char *r = getenv("MTPLX_SRC");
    return r ? r : ".";
}

static inline char *src_path(const char *rest)
{
    static char buf[8][512];
    static int i;
    i = (i + 1) % 8;
    snprintf(buf[i], sizeof buf[i], "%s/%s", src_root(), rest);
    return buf[i];
}

static inline mtplx_model *load_or_fail(const char *path, const mtplx_load_options *o)
{
    mtplx_error err = {0};
    setenv("MTPLX_STATE_DIR", "off", 0); /* tests learn nothing for the user */
    mtplx_model *m = mtplx_model_load(path, o, &err);
    if (!m)
        fail_msg("load %s: %s", path, err.message);
    return m;
}

static inline const struct mx_tensor *golden(const struct mx_safetensors *st, const char *name)
{
    const struct mx_tensor *t = mx_safetensors_find(st, name);
    if (!t)
        fail_msg("golden tensor %s is missing", name);
    return t;
}

/* The bf16 weights models/nano was quantised from, or NULL: they are too big to ship. */
static inline const char *nano_bf16(void)
{
    const char *s = getenv("MTPLX_NANO_BF16");
    return s && *s ? s : NULL;
}

/* max |a - b| / max |b|. */
static inline double rel_error(const float *a, const float *b, size_t n)
{
    double worst = 0, scale = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]), s = fabs((double)b[i]);
        if (!(d <= worst))
            worst = d; /* NaN sticks */
        if (s > scale)
            scale = s;
    }
    return worst / scale;
}

#endif
