/* Log-probabilities of tokens under the model's own law: softmax of the raw logits at temperature
 * 1, natural logarithm, the sum over the vocabulary in double precision. */
#ifndef MX_RUNTIME_LOGPROBS_H
#define MX_RUNTIME_LOGPROBS_H

#include "base/error.h"

/* What a token that cannot come is said to have, so that every figure is finite. */
#define MX_LOGPROB_LEAST (-9999.0f)

/* Records of the tokens of one text, in blocks that stay where they are. */
struct mx_logprobs;

/* Room for the records of `most` tokens with `width` alternatives each, in time: blocks are made by
 * mx_logprobs_reserve(). */
struct mx_logprobs *mx_logprobs_new(size_t most, int width, mtplx_error *err);
void mx_logprobs_free(struct mx_logprobs *l);
uint64_t mx_logprobs_bytes(size_t most, int width);

/* Makes records 0 .. n - 1 exist, so that setting them cannot fail. n is cut to `most`. */
mtplx_status mx_logprobs_reserve(struct mx_logprobs *l, size_t n, mtplx_error *err);

/* Record `index` (reserved): `token` came out of this row. Alternatives are the `width` likeliest
 * tokens, equal ones by id; the token itself may be among them. */
void mx_logprobs_set(struct mx_logprobs *l, size_t index, const float *logits, int vocab,
                     int32_t token);

/* How many alternatives record `index` has, -1 when it was never set. */
int mx_logprobs_get(const struct mx_logprobs *l, size_t index, float *own,
                    const mtplx_token_logprob **top);

#endif
