/* Snapshots as objects of the cold tier, and back: what cold.h does not know of models. */
#ifndef MX_SESSION_COLD_STATE_H
#define MX_SESSION_COLD_STATE_H

#include "runtime/snapshot.h"
#include "session/cold.h"

/* What a model's states depend on: weights (sampled, with sizes and names; not their path),
 * geometry, tokenizer and template text, KV format, MTP head and adapter, device, instruction set
 * and profile. Reads a few megabytes at most. */
void mx_cold_identify(const mtplx_model *m, struct mx_cold_identity *id);

/* Queues a snapshot; takes a reference of its own. As mx_cold_put(). Whoever holds it still must
 * not need the model's lock to write: on a host-memory device parts point into its memory. */
bool mx_cold_put_snapshot(struct mx_cold *c, mtplx_snapshot *s, int point, const char *scope,
                          const char *session);

/* The longest complete snapshot on disk that tokens[0..n) starts with, longer than `above` and at
 * most n - 1 tokens; 0: none. From memory. */
size_t mx_cold_find(struct mx_cold *c, const char *scope, const int32_t *tokens, size_t n,
                    size_t above);

/* Reads the snapshot of tokens[0..n). Blocks that `have` (a snapshot in RAM with a common prefix,
 * or NULL) holds are shared and not read. NULL with the reason; what failed its checks is dropped
 * from the tier. `cancel` is polled between objects (CANCELLED). */
mtplx_snapshot *mx_cold_load(struct mx_cold *c, mtplx_model *m, const char *scope,
                             const int32_t *tokens, size_t n, const mtplx_snapshot *have,
                             const atomic_bool *cancel, mtplx_error *err);

#endif
