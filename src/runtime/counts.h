/* Penalties: how token counts change logits. The view of mx_counts that only the sampler needs. */
#ifndef MX_RUNTIME_COUNTS_H
#define MX_RUNTIME_COUNTS_H

#include "runtime/sampler.h"

/* True when some logit may differ after penalties. `c` may be NULL. */
bool mx_counts_active(const struct mx_counts *c, const mtplx_sampling *cfg);

/* True when `id` was seen in the prompt or the completion. */
bool mx_counts_seen(const struct mx_counts *c, int32_t id);

/* Applies the penalties to row[n] in place, whose places stand for the ascending tokens ids[n], or
 * for themselves when ids is NULL. Seen tokens that have no place are ignored. */
void mx_counts_apply(const struct mx_counts *c, const mtplx_sampling *cfg, float *row,
                     const int32_t *ids, int n);

/* The place of the seen token with the highest penalised logit (ties to the lower) and that logit
 * in *value; 0 and -inf when every one is NaN or -inf. */
int mx_counts_best(const struct mx_counts *c, const mtplx_sampling *cfg, const float *logits,
                   const int32_t *ids, int n, float *value);

#endif
