/* Nearest word for a mistyped flag, choice or command. */
#ifndef MX_CLI_SUGGEST_H
#define MX_CLI_SUGGEST_H

#include <stddef.h>

/* Edit distance with insertions, deletions, substitutions and swaps of neighbours (optimal string
 * alignment; Damerau 1964). Words longer than 63 bytes count as infinitely far. */
size_t mx_cli_distance(const char *a, const char *b);

/* Keeps the better of *best (may be NULL) and `candidate` for `word`; *distance starts at SIZE_MAX.
 * Candidates too far away to be a typo of `word` are ignored. */
void mx_cli_suggest(const char *word, const char *candidate, const char **best, size_t *distance);

#endif
