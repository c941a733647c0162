/* Inside of a generation, for the scheduler: prefill and decode as separate shared passes.
 *
 * mtplx_gen_step_many() is one prefill pass and one cycle over these. A scheduler decides itself
 * how many prompt rows a pass takes and which generations share it. All calls take the model's
 * lock; generations of one call share one model. */
#ifndef MX_RUNTIME_GENERATE_H
#define MX_RUNTIME_GENERATE_H

#include "mtplx.h"

/* Prompt tokens not forwarded yet; 0 once the first token was drawn. */
size_t mx_gen_prompt_left(const mtplx_gen *g);

/* One pass over the next rows[i] prompt tokens of gens[i], for n generations that have that many
 * left (rows[i] >= 1; the sum at most the model's max_rows). A generation whose prompt is complete
 * draws its first token. A generation whose cancel flag is set ends with CANCELLED and takes no
 * part. When the shared pass fails, each tries alone, and only those that fail again are finished
 * (ERROR). Returns the first failure; ARGUMENT, with nothing changed, for a list or rows that are
 * not as described. Finished ones are skipped. */
mtplx_status mx_gen_prefill_many(mtplx_gen *const *gens, const size_t *rows, size_t n,
                                 mtplx_error *err);
/* Most rows of one prefill pass (load option max_rows). */
size_t mx_model_max_rows(const mtplx_model *m);

/* One draft-verify-commit cycle of generations whose prompt is complete; others and finished ones
 * are skipped. Failures as above. */
mtplx_status mx_gen_cycle_many(mtplx_gen *const *gens, size_t n, mtplx_error *err);

/* Ends a generation from outside between two calls, with `keep` of its tokens counted as the answer
 * (a stop string, a deadline), also when it had finished meanwhile. Its sequence keeps every
 * committed token, so it may hold more than the answer. */
void mx_gen_end(mtplx_gen *g, mtplx_finish finish, size_t keep);

/* ---- Memory, for admission ---------------------------------------------------------------- */

/* Bytes that a new sequence of `tokens` tokens will hold (KV of trunk and MTP head, recurrent
 * state, tape, buffers), and that a generation on it adds (sampler, distributions, token arrays).
 */
uint64_t mx_seq_bytes_for(const mtplx_model *m, size_t tokens);
uint64_t mx_gen_bytes_for(const mtplx_model *m, const mtplx_gen_options *o, size_t prompt,
                          size_t max_tokens);
/* Bytes a sequence holds now. */
uint64_t mx_seq_bytes(const mtplx_seq *s);

/* Writes the learned state of the model (times, acceptance, misses) to its file, as freeing the
 * model does. Takes the lock; not for the decode path. */
void mx_model_save_state(mtplx_model *m);

#endif
