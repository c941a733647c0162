/* Token codes: rotating +1/-1 patterns of prime lengths (synth.h explains their use).
 *
 * 1. The product of any three primes exceeds the vocabulary, so two tokens agree in the phase of
 *    two blocks at most; in the other blocks they differ by a non-trivial rotation of a random
 *    pattern.
 * 2. The inner product of two codes depends only on the difference of their tokens, so all pairs
 *    are checked by looking at each difference once. */
#include "synth.h"

#include <stdlib.h>
#include <string.h>

static uint64_t mix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static bool is_prime(int n)
{
    for (int d = 2; d * d <= n; d++)
        if (n % d == 0)
            return false;
    return n > 1;
}

/* Primes upwards from the smallest whose cube exceeds the vocabulary, while they fit. */
static void choose_primes(struct synth_code *c)
{
    int room = c->hidden - MODE_DIMS - CONST_DIMS, p = 5;
    while ((int64_t)p * p * p <= c->vocab)
        p++;
    for (; c->coded + p <= room && c->n_primes < MAX_PRIMES; p++) {
        if (!is_prime(p))
            continue;
        c->primes[c->n_primes] = p;
        c->start[c->n_primes++] = c->coded;
        c->coded += p;
    }
}

static void choose_patterns(struct synth_code *c)
{
    for (int i = 0; i < c->coded; i++)
        c->pattern[i] = mix64(c->seed * 0x10001u + (uint64_t)i) & 1 ? 1 : -1;
    for (int i = 0; i < c->hidden; i++)
        c->from[i] = -1;
    for (int b = 0; b < c->n_primes; b++)
        for (int j = 0; j < c->primes[b]; j++)
            c->from[c->start[b] + j] = c->start[b] + (j + c->primes[b] - 1) % c->primes[b];
}

/* Largest inner product, without the elements outside the patterns, of two different tokens. */
static int worst_overlap(const struct synth_code *c, int *overlap)
{
    for (int b = 0; b < c->n_primes; b++) {
        const int8_t *s = c->pattern + c->start[b];
        int n = c->primes[b];
        for (int lag = 0; lag < n; lag++) {
            int sum = 0;
            for (int j = 0; j < n; j++)
                sum += s[j] * s[(j + lag) % n];
            overlap[c->start[b] + lag] = sum;
        }
    }
    int worst = -c->coded;
    for (int lag = 1; lag < c->vocab; lag++) {
        int sum = 0;
        for (int b = 0; b < c->n_primes; b++)
            sum += overlap[c->start[b] + lag % c->primes[b]];
        worst = sum > worst ? sum : worst;
    }
    return worst;
}

mtplx_status synth_code_init(struct synth_code *c, int hidden, int vocab, double accept,
                             uint64_t seed, mtplx_error *err)
{
    *c = (struct synth_code){.hidden = hidden, .vocab = vocab, .accept = accept, .seed = seed};
    choose_primes(c);
    c->pattern = calloc((size_t)hidden, 1);
    c->from = calloc((size_t)hidden, sizeof *c->from);
    int *overlap = calloc((size_t)hidden, sizeof *overlap);
    if (!c->pattern || !c->from || !overlap) {
        free(overlap);
        synth_code_free(c);
        return mx_error_nomem(err, "token codes", (size_t)hidden);
    }
    choose_patterns(c);
    /* Half of the code's length leaves room for the modes, the noise and the rounding. */
    int worst = worst_overlap(c, overlap);
    free(overlap);
    if (c->n_primes < 3 || worst > c->coded / 2) {
        synth_code_free(c);
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "%d tokens cannot be told apart in %d elements; use a larger --hidden or a "
                        "smaller --vocab",
                        vocab, hidden);
    }
    return MTPLX_OK;
}

void synth_code_free(struct synth_code *c)
{
    free(c->pattern);
    free(c->from);
    c->pattern = NULL;
    c->from = NULL;
}

static bool is_right_after(const struct synth_code *c, int64_t token)
{
    uint64_t r = mix64(c->seed ^ ((uint64_t)token << 20) ^ 0xacce97u) >> 11;
    return (double)r * 0x1p-53 < c->accept;
}

void synth_code_token(const struct synth_code *c, int64_t token, int8_t *out)
{
    for (int b = 0; b < c->n_primes; b++) {
        int p = c->primes[b], shift = (int)(token % p);
        const int8_t *s = c->pattern + c->start[b];
        memcpy(out + c->start[b] + shift, s, (size_t)(p - shift));
        memcpy(out + c->start[b], s + p - shift, (size_t)shift);
    }
    memset(out + c->coded, 1, (size_t)(c->hidden - c->coded));
    memset(out + c->hidden - MODE_DIMS, is_right_after(c, token) ? 1 : -1, MODE_DIMS);
}
