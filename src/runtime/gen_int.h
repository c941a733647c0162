/* Inside of a generation: its state, and what the files of the speculative loop share.
 *
 *   generate.c     creation, stepping, what a caller reads
 *   gen_prefill.c  passes over prompt rows
 *   gen_cycle.c    draft, verify, accept, commit
 *   gen_token.c    one token: its law, its draw, its place in the answer
 *   gen_grammar.c  drafts that obey a grammar
 *   memory.c       what a generation takes
 *
 * The loop and the invariants G1 to G6 are described in generate.c. Everything here runs under the
 * model's lock, which the caller holds. */
#ifndef MX_RUNTIME_GEN_INT_H
#define MX_RUNTIME_GEN_INT_H

#include "runtime/constraint.h"
#include "runtime/copy.h"
#include "runtime/depth.h"
#include "runtime/forward.h"
#include "runtime/generate.h"
#include "runtime/logprobs.h"
#include "runtime/row.h"
#include "runtime/sampler.h"

#define MX_GEN_GROUP 64 /* generations of one cycle pass */

struct mtplx_gen {
    mtplx_seq *seq;
    mtplx_gen_options opt;
    bool greedy;   /* argmax, no distributions */
    bool counting; /* penalties are active */

    int32_t *prompt;
    size_t n_prompt, done_prompt;
    int32_t *out;
    size_t n_out, cap_out;
    mtplx_finish finish;

    struct mx_sampler *sampler;
    struct mx_counts *counts;
    struct mx_dist p, q[MTPLX_MAX_DEPTH];
    struct mx_bias *bias; /* NULL: none */
    float *row;           /* [vocab] a row after penalties, bias and mask; NULL: rows stay */

    struct mx_matcher *matcher; /* NULL: no grammar */
    int tried;                  /* drafts it has taken and must give back */
    bool strayed;               /* the drafts went on where it cannot follow */

    struct mx_logprobs *logprobs, *prompt_logprobs; /* NULL: not asked for */

    struct mx_depth policy;
    struct mx_copy *index; /* NULL: no context copy */
    struct mx_copy_control copying;

    /* The cycle being run. */
    struct mx_depth_ask ask;
    struct mx_depth_plan plan;
    int depth, drafted;           /* MTP drafts to make; drafts made, then all with copied ones */
    int made;                     /* MTP drafts among the drafted: the first ones */
    int tested, accepted;         /* drafts looked at, and accepted */
    int match;                    /* length of the match that was copied from */
    bool forced;                  /* the offered copy is the one way on that the grammar leaves */
    int32_t rows[MX_MAX_PENDING]; /* pending, d1 .. dk */

    mtplx_gen_stats stats;
    uint64_t started_ns, first_ns;
};

/* The first failure of a step is what the step reports; the others of the batch go on. */
struct mx_outcome {
    mtplx_status status;
    mtplx_error *err;
};

/* Where a failure may write its sentence: NULL once there is one. */
mtplx_error *mx_outcome_error(const struct mx_outcome *o);
void mx_outcome_note(struct mx_outcome *o, mtplx_status st);
/* Reports the generations that a pass left with finish ERROR because their matcher gave up. */
void mx_outcome_note_grammars(struct mx_outcome *o, mtplx_gen *const *gens, size_t n);

/* generate.c: whether tokens must be counted. */
bool mx_gen_has_penalties(const mtplx_sampling *s);

/* ---- gen_token.c -------------------------------------------------------------------------- */

/* Appends a token to the answer; true when the answer goes on. `logits`: the row it came out of,
 * needed when log-probabilities are kept. A token that the matcher does not take ends the
 * generation with ERROR; see mx_outcome_note_grammars(). */
bool mx_gen_emit(mtplx_gen *g, int32_t token, const float *logits);

/* Counts a completion token for the penalties. Room was reserved. */
void mx_gen_count(mtplx_gen *g, int32_t token);

/* The uniform of that purpose at a timeline index (G1). */
double mx_gen_uniform(const mtplx_gen *g, uint64_t position, enum mx_rng_purpose purpose);

/* Target law of a row of the whole vocabulary, and the token it decides when greedy. */
void mx_gen_target(mtplx_gen *g, const float *logits, struct mx_dist *d);
int32_t mx_gen_argmax(mtplx_gen *g, const float *logits);

/* The same over the draft vocabulary: draft number `step` of the cycle, its law in q[step] unless
 * greedy. */
int32_t mx_gen_draft(mtplx_gen *g, const float *logits, int step);

/* A draw from the target row of the token at `position`. */
int32_t mx_gen_draw(mtplx_gen *g, const float *logits, uint64_t position);

/* ---- gen_grammar.c ------------------------------------------------------------------------ */

/* Tokens that may come next, NULL: all; valid until the matcher is used again. */
const uint64_t *mx_gen_mask(mtplx_gen *g);

/* Tries a draft on the matcher; whether it was taken. */
bool mx_gen_try(mtplx_gen *g, int32_t token);

/* Gives tried drafts back, all but the first `keep`. */
void mx_gen_untry(mtplx_gen *g, int keep);

/* How many of these drafts the grammar allows behind those tried: all without one. */
int mx_gen_cut(mtplx_gen *g, const int32_t *tokens, int n);

/* Up to `most` tokens along the one way in which the text can go on; 0 when there are several. */
int mx_gen_forced(mtplx_gen *g, int32_t *out, int most);

/* ---- gen_prefill.c, gen_cycle.c ----------------------------------------------------------- */

/* The next rows[i] prompt tokens of gens[i], at most max_rows in all, in one pass. When it fails
 * each generation tries alone, so that only those that cannot go on end. */
void mx_gen_prefill(mtplx_gen *const *gens, const size_t *rows, size_t n, struct mx_outcome *o);

/* The same for one generation that keeps the log-probabilities of its prompt. */
void mx_gen_prefill_scored(mtplx_gen *g, size_t rows, struct mx_outcome *o);

/* One cycle of n <= MX_GEN_GROUP running generations; failures are dealt with in the same way. */
void mx_gen_cycle(mtplx_gen *const *gens, size_t n, struct mx_outcome *o);

#endif
