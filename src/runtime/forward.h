/* The ragged forward pass and the MTP head's two uses of it: history and drafting.
 *
 * These run under the model's lock, which the caller holds. */
#ifndef MX_RUNTIME_FORWARD_H
#define MX_RUNTIME_FORWARD_H

#include "runtime/seq.h"

/* The text position after a row: one past its largest axis. */
static inline int32_t mx_position_after(const int32_t p[3])
{
    int32_t most = p[0] > p[1] ? p[0] : p[1];
    return (most > p[2] ? most : p[2]) + 1;
}

/* What the caller wants of a pass besides state. */
struct mx_want {
    bool hidden;  /* result->hidden */
    bool argmax;  /* ids of the rows that want logits into `ids`, instead of result->logits */
    int32_t *ids; /* [n] */
    bool full;    /* mx_draft: logits of the whole vocabulary, not of the draft vocabulary */
};

mtplx_status mx_forward(mtplx_model *m, const mtplx_row *rows, size_t n, mtplx_forward_mode mode,
                        const struct mx_want *want, mtplx_forward_result *result, mtplx_error *err);

mtplx_status mx_seq_commit(mtplx_seq *s, size_t keep, mtplx_error *err);

/* One draft step for several sequences: row i feeds tokens[i] to the MTP head of seqs[i], after the
 * last committed token on the first step since a commit and after the previous draft later on.
 * Pending history is appended in the same pass. Results are as for mx_forward, one row each; logits
 * are [n][model->draft.n], of the tokens model->draft.ids, unless want->full. Ids are tokens. */
mtplx_status mx_draft(mtplx_model *m, mtplx_seq *const *seqs, const int32_t *tokens, size_t n,
                      const struct mx_want *want, mtplx_forward_result *result, mtplx_error *err);

#endif
