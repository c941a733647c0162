/* What the next passes take. See sched.h. */
#include "engine/sched.h"

#include <string.h>

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* The prompt with the shortest rest that got nothing beyond its guaranteed share yet. */
static size_t shortest(const size_t *left, size_t n, const bool *served)
{
    size_t best = n;
    for (size_t i = 0; i < n; i++)
        if (!served[i] && (best == n || left[i] < left[best]))
            best = i;
    return best;
}

size_t mx_plan_prefill(const size_t *left, size_t n, size_t budget, size_t *rows)
{
    bool served[MX_MAX_ACTIVE] = {false};
    memset(rows, 0, n * sizeof *rows);
    if (n == 0 || budget == 0)
        return 0;
    rows[0] = least(left[0], budget < 4 ? 1 : budget / 4);
    size_t sum = rows[0];
    bool ends = false; /* a prompt will be complete: its first token must not wait for rows that
                          bring nobody to an end */
    for (size_t k = 0; k < n && sum < budget; k++) {
        size_t i = shortest(left, n, served);
        size_t more = least(left[i] - rows[i], budget - sum);
        if (ends && rows[i] + more < left[i])
            break;
        ends = true;
        served[i] = true;
        rows[i] += more;
        sum += more;
    }
    return sum;
}

size_t mx_plan_prefill_one(const size_t *left, size_t n, size_t budget, uint64_t turn, size_t *rows)
{
    bool none[MX_MAX_ACTIVE] = {false};
    size_t i = turn % 4 == 0 ? 0 : shortest(left, n, none);
    memset(rows, 0, n * sizeof *rows);
    rows[i] = least(left[i], budget);
    return i;
}

int mx_hist_bucket(uint64_t ns)
{
    uint64_t top = 1000000;
    int i = 0;
    while (i < MX_ENGINE_HIST - 1 && ns >= top) {
        top *= 2;
        i++;
    }
    return i;
}

int mx_retry_seconds(int ahead, int width, uint64_t job_ns)
{
    double ns = (double)job_ns * (ahead + 1) / (width > 0 ? width : 1);
    double s = ns / 1e9 + 1;
    return s < 1 ? 1 : s > 60 ? 60 : (int)s;
}
