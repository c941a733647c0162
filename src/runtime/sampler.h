/* Sampler: logits of one row to a sparse distribution, and draws from it. Knows no model family.
 *
 * Order (mtplx_sampling): repetition, presence and frequency penalties on raw logits; softmax at
 * the temperature in double precision; rank by probability, ties to the lower id; top-p on the full
 * distribution (keep a token while the mass before it is < top_p); top-k; min-p relative to the
 * largest; intersection renormalised; when nothing is left, the argmax. The very same code makes p
 * (target) and q (draft), which is what keeps acceptance exact. */
#ifndef MX_RUNTIME_SAMPLER_H
#define MX_RUNTIME_SAMPLER_H

#include "base/error.h"
#include "base/rng.h"
#include "runtime/wide.h"

/* A distribution. Either a list of the kept tokens, sorted by descending probability then ascending
 * id; a greedy one has one entry of probability 1. Or, with n = 0 and wide.n > 0, a wide one over a
 * whole row. Sums to 1. Storage is owned by the dist and grows only in the reserve functions. */
struct mx_dist {
    int n, cap;
    int32_t *ids;
    double *p;
    int32_t *where; /* scratch of mx_spec_residual(): places by id; means nothing elsewhere */
    struct mx_wide wide;
};
/* Room for a list of `cap` tokens. */
mtplx_status mx_dist_reserve(struct mx_dist *d, int cap, mtplx_error *err);
/* Room for what mx_sample_dist() makes of rows of `vocab` logits under these settings: a list, or a
 * wide distribution where no filter cuts. */
mtplx_status mx_dist_reserve_for(struct mx_dist *d, const mtplx_sampling *cfg, int vocab,
                                 mtplx_error *err);
/* Bytes that this reserves. */
uint64_t mx_dist_bytes_for(const mtplx_sampling *cfg, int vocab);
/* The wide form, or NULL for a list. */
static inline const struct mx_wide *mx_dist_wide(const struct mx_dist *d)
{
    return d->n == 0 && d->wide.n > 0 ? &d->wide : NULL;
}
void mx_dist_free(struct mx_dist *d);
/* Makes d a list of one token; room for one was reserved. */
void mx_dist_point(struct mx_dist *d, int32_t id);
/* p(id), 0 when it is not in the support. */
double mx_dist_prob(const struct mx_dist *d, int32_t id);
/* The token at cumulative mass u in [0, 1), walking a list in stored order and a wide distribution
 * in order of tokens; 0 when d is empty. */
int32_t mx_dist_draw(const struct mx_dist *d, double u);

/* How often each token was seen: sparse counts with O(1) add and remove, so that the in-block
 * drafted prefix can be added for a row and taken back. */
struct mx_counts;
struct mx_counts *mx_counts_new(mtplx_error *err);
void mx_counts_free(struct mx_counts *c);
void mx_counts_clear(struct mx_counts *c);
/* Completion tokens feed presence, frequency and repetition; prompt tokens only repetition. */
mtplx_status mx_counts_add(struct mx_counts *c, int32_t id, bool prompt, mtplx_error *err);
void mx_counts_remove(struct mx_counts *c, int32_t id); /* undoes one completion add */
/* Makes room for `distinct` different ids in all, so that adds up to there cannot fail. */
mtplx_status mx_counts_reserve(struct mx_counts *c, size_t distinct, mtplx_error *err);
/* Bytes of counts with that room. */
uint64_t mx_counts_bytes(size_t distinct);

/* NULL when the settings are in range, else one sentence naming the field. */
const char *mx_sampling_check(const mtplx_sampling *s);
/* Clamps nothing: call mx_sampling_check() first. */
bool mx_sampling_greedy(const mtplx_sampling *s);

/* Scratch for one vocabulary size, reused; no allocation in mx_sample_dist(). */
struct mx_sampler;
struct mx_sampler *mx_sampler_new(int vocab, mtplx_error *err);
void mx_sampler_free(struct mx_sampler *s);
uint64_t mx_sampler_bytes(int vocab);

/* logits[vocab] -> d (room for `vocab` entries reserved by the caller; greedy needs 1; less room
 * acts like a smaller top-k). `counts` may be NULL. Non-finite logits: NaN counts as -inf, +inf as
 * the largest float; if every logit is -inf, token 0. A penalised logit is computed in double and
 * rounded to float once. Tokens more than 708 temperatures below the largest have probability 0.
 *
 * A row that no filter cuts becomes a wide distribution where d has the room
 * (mx_dist_reserve_for()) and the temperature is at least MX_WEIGHTS_MIN_TEMPERATURE. Its weights
 * are single precision, and tokens more than 87 temperatures below the largest of their block have
 * probability 0. */
void mx_sample_dist(struct mx_sampler *s, const mtplx_sampling *cfg, const struct mx_counts *counts,
                    const float *logits, int vocab, struct mx_dist *d);

/* The same over part of the vocabulary: logits[i] is that of token ids[i], ids ascend, and
 * n <= the sampler's vocabulary. The law lives on those tokens: softmax, top-p and the other
 * filters see nothing else. ids NULL: token i. */
void mx_sample_dist_of(struct mx_sampler *s, const mtplx_sampling *cfg,
                       const struct mx_counts *counts, const float *logits, const int32_t *ids,
                       int n, struct mx_dist *d);

/* Highest logit after penalties, ties to the lower id. */
int32_t mx_sample_argmax(const mtplx_sampling *cfg, const struct mx_counts *counts,
                         const float *logits, int vocab);

/* The same over part of the vocabulary, as mx_sample_dist_of() takes it. Returns the token. */
int32_t mx_sample_argmax_of(const mtplx_sampling *cfg, const struct mx_counts *counts,
                            const float *logits, const int32_t *ids, int n);

/* Speculative acceptance (Leviathan et al. 2023; Chen et al. 2023). The proof that the emitted
 * tokens follow p, with truncated supports and with uniforms that a discarded draft has used
 * before, is in accept.c. It binds the caller to this: whether a position is drafted may depend on
 * what was decided at earlier positions, never on a draw made at that position or a later one; so
 * neither the tokens nor the confidence of discarded drafts may steer the next depth.
 *
 * Accepts draft x ~ q against p with probability min(1, p(x)/q(x)), coin u in [0, 1). q(x) <= 0
 * accepts iff p(x) > 0. */
bool mx_spec_accept(const struct mx_dist *p, const struct mx_dist *q, int32_t x, double u);

/* Draw from normalise(max(p - q, 0)); from p when that mass is zero. u in [0, 1). Writes q->where:
 * a distribution belongs to one thread. */
int32_t mx_spec_residual(const struct mx_dist *p, const struct mx_dist *q, double u);

#endif
