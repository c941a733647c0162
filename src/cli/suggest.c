/* Nearest word for a mistyped flag, choice or command. */
#include "cli/suggest.h"

#include <stdint.h>
#include <string.h>

enum { MAX_WORD = 63 };

static size_t min3(size_t a, size_t b, size_t c)
{
    size_t m = a < b ? a : b;
    return m < c ? m : c;
}

size_t mx_cli_distance(const char *a, const char *b)
{
    size_t na = strlen(a), nb = strlen(b);
    if (na > MAX_WORD || nb > MAX_WORD)
        return SIZE_MAX;

    /* d[i][j]: distance of the first i bytes of a to the first j bytes of b. */
    size_t d[MAX_WORD + 1][MAX_WORD + 1];
    for (size_t i = 0; i <= na; i++)
        d[i][0] = i;
    for (size_t j = 0; j <= nb; j++)
        d[0][j] = j;
    for (size_t i = 1; i <= na; i++) {
        for (size_t j = 1; j <= nb; j++) {
            size_t change = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            d[i][j] = min3(d[i - 1][j] + 1, d[i][j - 1] + 1, change);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d[i][j] = min3(d[i][j], d[i - 2][j - 2] + 1, SIZE_MAX);
        }
    }
    return d[na][nb];
}

void mx_cli_suggest(const char *word, const char *candidate, const char **best, size_t *distance)
{
    size_t n = strlen(word), limit = n < 4 ? 1 : n < 8 ? 2 : 3;
    size_t d = mx_cli_distance(word, candidate);
    if (d > limit || d >= *distance)
        return;
    *best = candidate;
    *distance = d;
}
