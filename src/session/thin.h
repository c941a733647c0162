/* Thinning: which restore points of a conversation to keep. Pure logic over token counts.
 *
 * The points of a conversation are prefixes of each other; the longest is its end. Kept whatever
 * the distance: the end, the longest SYSTEM point, the longest ANSWER, the two longest PROMPTs (the
 * turn before is often asked again or edited) and the two longest BORDERs. Going from the end
 * towards the start, of the others those within max(spacing, a) of the last kept one, which is `a`
 * tokens before the end, are replaced by the farthest of them (by the farthest that is no CHUNK,
 * where that is in the farther half: edits happen at messages).
 *
 * Guarantee: where a gap between kept points is new, it is at most max(spacing, a) tokens, `a` the
 * distance of its nearer side from the end. So an edit at distance d before the end costs at most
 * max(spacing, d) tokens before the edit, unless the gap was there before; and as the conversation
 * grows d grows, so that what was thinned once stays within the bound. About 2 log2(length /
 * spacing) points are left; where those are more than `most`, the bound is doubled until they fit
 * or only the points kept whatever the distance are left. */
#ifndef MX_SESSION_THIN_H
#define MX_SESSION_THIN_H

#include "session/bank.h"

struct mx_thin {
    size_t n; /* tokens */
    enum mx_point point;
    bool keep; /* the answer */
};

/* points[0..count) ascend by n. Fills keep; returns how many are kept. */
size_t mx_thin(struct mx_thin *points, size_t count, size_t spacing, size_t most);

#endif
