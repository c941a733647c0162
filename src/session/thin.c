/* Geometric thinning of restore points. The rule and its guarantee are in thin.h. */
#include "session/thin.h"

/* Newest borders and prompts that are kept whatever the distance. */
#define KEPT_TURNS 2

static bool is_fixed(struct mx_thin *points, size_t count, size_t i)
{
    enum mx_point p = points[i].point;
    int longer = 0;
    if (i + 1 == count)
        return true;
    if (p == MX_POINT_CHUNK)
        return false;
    for (size_t j = i + 1; j < count; j++)
        longer += points[j].point == p;
    return longer < (p == MX_POINT_BORDER || p == MX_POINT_PROMPT ? KEPT_TURNS : 1);
}

/* How far behind a kept point at distance a the next one may be. */
static size_t reach(size_t a, size_t spacing, size_t slack)
{
    size_t r = a > spacing ? a : spacing;
    return r > SIZE_MAX / slack ? SIZE_MAX : r * slack;
}

#define NO_POINT SIZE_MAX

/* The point to keep after points[from], which is at distance a, going towards the start: a fixed
 * one within reach, else the farthest, else the next; none when the start itself is within reach.
 */
static size_t next_kept(const struct mx_thin *points, size_t from, size_t a, size_t r, size_t end)
{
    size_t far = from ? from - 1 : NO_POINT, message = NO_POINT;
    for (size_t i = from; i-- > 0;) {
        size_t gap = end - points[i].n - a;
        if (gap > r)
            return message != NO_POINT ? message : far;
        if (points[i].keep)
            return i;
        far = i;
        if (points[i].point != MX_POINT_CHUNK && gap >= r / 2)
            message = i;
    }
    if (points[from].n <= r)
        return NO_POINT;
    return message != NO_POINT ? message : far;
}

static size_t walk(struct mx_thin *points, size_t count, size_t spacing, size_t slack)
{
    size_t end = points[count - 1].n, kept = 0;
    for (size_t i = 0; i < count; i++)
        points[i].keep = is_fixed(points, count, i);
    for (size_t i = count - 1; i != NO_POINT;) {
        size_t a = end - points[i].n;
        points[i].keep = true;
        i = next_kept(points, i, a, reach(a, spacing, slack), end);
    }
    for (size_t i = 0; i < count; i++)
        kept += points[i].keep;
    return kept;
}

/* Whether a larger bound could drop more: at 2^32 nothing but the fixed points is left. */
#define MOST_SLACK ((size_t)1 << 31)

size_t mx_thin(struct mx_thin *points, size_t count, size_t spacing, size_t most)
{
    if (count == 0)
        return 0;
    size_t kept = walk(points, count, spacing, 1);
    for (size_t slack = 2; kept > most && slack <= MOST_SLACK; slack *= 2)
        kept = walk(points, count, spacing, slack);
    return kept;
}
