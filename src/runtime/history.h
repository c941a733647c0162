/* Committed history and the MTP cache: what happens to a sequence when tokens become final. */
#ifndef MX_RUNTIME_HISTORY_H
#define MX_RUNTIME_HISTORY_H

#include "runtime/seq.h"

/* Host arrays of one call's batch, inside a reusable buffer. The trunk's and the MTP head's batches
 * have one each, since a trunk batch is still read while history is appended. */
struct mx_batch_mem {
    int32_t *tokens, *positions;
    struct mx_seg *segs;
};
mtplx_status mx_batch_reserve(struct mx_hostbuf *b, size_t rows, mtplx_error *err);
struct mx_batch_mem mx_batch_mem(const struct mx_hostbuf *b, size_t rows);

/* Reserves what mx_history_commit may need for up to `rows` rows. */
mtplx_status mx_history_reserve(mtplx_model *m, size_t rows, mtplx_error *err);

/* Appends `n` final tokens with their trunk hiddens [n][hidden] (device memory). The MTP entries of
 * a few tokens are left for the next draft step to append in its own pass (the lag); those of a
 * long run are appended now. Room was reserved by the caller. */
void mx_history_commit(mtplx_seq *s, const int32_t *tokens, const float *hidden, size_t n);

/* A lag that is longer than this is appended in a pass of its own, keys and values only, before a
 * draft step: in the step's pass every row would go through the whole layer. Up to there one pass
 * over the weights is the cheaper way. */
enum { MX_LONG_LAG = 6 };

/* Appends a long lag, all but its last row. The MTP cache and mtp_batch have the room. */
void mx_history_flush(mtplx_seq *s);

/* Runs the MTP head over `n` rows of one sequence, entries `at` .. at+n-1 of its cache. */
void mx_mtp_run(mtplx_seq *s, int64_t at, const int32_t *tokens, const float *hidden, size_t n,
                float *hidden_out);

#endif
