/* The load option that says how KV cache entries are stored. */
#ifndef MX_RUNTIME_KV_OPTION_H
#define MX_RUNTIME_KV_OPTION_H

#include "base/error.h"
#include "device/device.h"

#define MX_KV_QUANT_ENV "MTPLX_PAGED_KV_QUANT"
#define MX_KV_QUANT_CHOICES "off, q8, q6 or q4"

/* Reads a word: off (none, no, false, disabled, 0, f16), q8, q6, q4 (also written 8, 8bit, 8-bit,
 * int8, q8_0 and so on), in any case. False when it is none of them. */
bool mx_kv_quant_word(const char *word, mtplx_kv_quant *out);

/* The format for a device whose own is `native`. AUTO looks at the environment. Errors: ARGUMENT,
 * which names the option or the variable. */
mtplx_status mx_kv_choose(mtplx_kv_quant q, enum mx_kv_format native, enum mx_kv_format *out,
                          mtplx_error *err);

/* Whether the heads of a cache can be stored as its format asks. Errors: UNSUPPORTED. */
mtplx_status mx_kv_check(const struct mx_kv_layout *l, mtplx_error *err);

#endif
