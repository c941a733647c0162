/* Captures, the inside: what a committing pass does about the snapshots that a sequence was asked
 * for (snapshot.h).
 *
 * A pass runs in chunks. Before a chunk, begin() makes the snapshots that it will run across and
 * tells the device where to copy the recurrent state. After the chunk is committed, settle() copies
 * the hiddens that are not paired at that point. After the last chunk, finish() adds tokens and
 * block references: not earlier, because the pass goes on writing into the last block.
 *
 * All of it under the model's lock. Callers test s->captures first, which decoding leaves NULL. */
#ifndef MX_RUNTIME_CAPTURE_H
#define MX_RUNTIME_CAPTURE_H

#include "runtime/snapshot.h"

/* seg: the sequence's rows in this chunk; gets its `captures`. */
void mx_capture_begin(mtplx_seq *s, struct mx_seg *seg);
/* The last `rows` committed tokens are the chunk's, with their positions [rows][3] and trunk
 * hiddens [rows][hidden] (device memory). */
void mx_capture_settle(mtplx_seq *s, size_t rows, const int32_t *positions, const float *hidden);
void mx_capture_finish(mtplx_seq *s);

/* Drops all that was asked for or made. */
void mx_captures_free(mtplx_seq *s);

#endif
