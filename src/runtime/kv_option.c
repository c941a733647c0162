/* The load option that says how KV cache entries are stored. */
#include "runtime/kv_option.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* "8", "8bit", "8-bit", "q8", "q8_0" or "int8", for the digit. */
static bool spells(const char *word, char digit)
{
    static const char *const before[] = {"q", "int", ""}, *const after[] = {"", "_0", "bit",
                                                                            "-bit"};
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
        size_t len = strlen(before[i]);
        if (strncasecmp(word, before[i], len) != 0 || word[len] != digit)
            continue;
        for (size_t j = 0; j < sizeof after / sizeof *after; j++)
            if (strcasecmp(word + len + 1, after[j]) == 0)
                return true;
    }
    return false;
}

bool mx_kv_quant_word(const char *word, mtplx_kv_quant *out)
{
    static const char *const off[] = {"off", "none", "no", "false", "disabled", "0", "f16"};
    static const struct {
        char digit;
        mtplx_kv_quant quant;
    } quants[] = {{'8', MTPLX_KV_Q8}, {'6', MTPLX_KV_Q6}, {'4', MTPLX_KV_Q4}};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        if (strcasecmp(word, off[i]) == 0) {
            *out = MTPLX_KV_OFF;
            return true;
        }
    }
    for (size_t i = 0; i < sizeof quants / sizeof *quants; i++) {
        if (spells(word, quants[i].digit)) {
            *out = quants[i].quant;
            return true;
        }
    }
    return false;
}

mtplx_status mx_kv_choose(mtplx_kv_quant q, enum mx_kv_format native, enum mx_kv_format *out,
                          mtplx_error *err)
{
    const char *env = getenv(MX_KV_QUANT_ENV);
    if (q == MTPLX_KV_AUTO && env && *env && !mx_kv_quant_word(env, &q))
        return mx_error(err, MTPLX_ERR_ARGUMENT, "%s is \"%.32s\"; it must be %s", MX_KV_QUANT_ENV,
                        env, MX_KV_QUANT_CHOICES);
    switch (q) {
    case MTPLX_KV_AUTO:
    case MTPLX_KV_OFF: *out = native; return MTPLX_OK;
    case MTPLX_KV_Q8: *out = MX_KV_Q8; return MTPLX_OK;
    case MTPLX_KV_Q6: *out = MX_KV_Q6; return MTPLX_OK;
    case MTPLX_KV_Q4: *out = MX_KV_Q4; return MTPLX_OK;
    }
    return mx_error(err, MTPLX_ERR_ARGUMENT, "kv_quant %d is none of auto, off, q8, q6 and q4",
                    (int)q);
}

mtplx_status mx_kv_check(const struct mx_kv_layout *l, mtplx_error *err)
{
    if (l->layers == 0 || mx_kv_code_bits(l->format) == 0 || l->head_dim % MX_KV_GROUP == 0)
        return MTPLX_OK;
    return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                    "kv_quant %s needs attention heads of a multiple of %d values, and this model "
                    "has %d; use kv_quant off",
                    mx_kv_format_name(l->format), MX_KV_GROUP, l->head_dim);
}
