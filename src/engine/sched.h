/* What the next passes take: pure decisions over numbers, so that tests can play any load. */
#ifndef MX_ENGINE_SCHED_H
#define MX_ENGINE_SCHED_H

#include "engine/engine.h"

/* Shares `budget` rows of a prefill pass among n prompts with left[i] tokens to read, the longest
 * waiting one first in the list: rows[i] of each, 0 for those that have to wait. The longest
 * waiting one gets at least a quarter of the rows (as far as it has that many left), the shortest
 * rests get theirs next (N3). Behind prompts that this pass completes nobody gets a part, so that
 * the pass is short and their first tokens come soon. n is at most MX_MAX_ACTIVE. Returns the sum.
 */
size_t mx_plan_prefill(const size_t *left, size_t n, size_t budget, size_t *rows);

/* Gives all rows to one of the prompts, where passes are not shared: in turns by `turn` the longest
 * waiting one and the one with the shortest rest. Returns its index; rows are as above. */
size_t mx_plan_prefill_one(const size_t *left, size_t n, size_t budget, uint64_t turn,
                           size_t *rows);

/* The bucket of a duration in a histogram of MX_ENGINE_HIST buckets. */
int mx_hist_bucket(uint64_t ns);

/* Seconds until a place may be free: `ahead` jobs of `job_ns` each, `width` at a time; 1..60. */
int mx_retry_seconds(int ahead, int width, uint64_t job_ns);

#endif
