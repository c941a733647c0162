/* Decoder of tokenizer.json: what bytes each token stands for. */
#ifndef MX_TEXT_DETOK_H
#define MX_TEXT_DETOK_H

#include "base/error.h"
#include "text/tok_json.h"
#include "text/tok_vocab.h"

/* Fills in the bytes of every token of `v` as the "decoder" value `spec` maps them: ByteLevel, or
 * Replace (strings), ByteFallback and Fuse in a Sequence. Errors: FORMAT, UNSUPPORTED, LIMIT. */
mtplx_status mx_decoder_apply(const json_t *spec, struct mx_vocab *v, mtplx_error *err);

#endif
