/* The verdict on a lookup: why a prompt was not restored further, and how well it was. Pure logic.
 *
 * With n tokens in the prompt, R of them restored, K the longest prefix that it has in common with
 * any entry, and G the longest prefix that is known to have been dropped (both of its scope), the
 * first row that applies decides:
 *
 *     R >= n - 1                            none: all but the last token
 *     an entry failed its check             snapshot_desync
 *     G > K                                 evicted or expired: more of it was known once
 *     R == K > 0                            none: a plain append, or a fork
 *     R == 0, K is short                    new_session
 *     K == n, G > R                         evicted or expired: the restore point was
 *     K == n                                no_snapshot_coverage
 *     otherwise                             prefix_divergence_at_token: token K differs
 *
 * K is short when it is less than 32 tokens and less than a quarter of the prompt: the opening of a
 * template, which all prompts share. In the last row what has K tokens in common with the prompt
 * must go on otherwise: if it ended there it would be a restore point. */
#ifndef MX_SESSION_JUDGE_H
#define MX_SESSION_JUDGE_H

#include "session/miss.h"

#include <stdbool.h>
#include <stddef.h>

struct mx_lookup {
    size_t n, restored, known, gone;
    enum mx_cache_miss why_gone;
    bool desync;
};

enum mx_cache_miss mx_judge_miss(const struct mx_lookup *l);
enum mx_restore_kind mx_judge_kind(const struct mx_lookup *l);

#endif
