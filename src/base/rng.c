/* Philox4x32-10 and the uniform draw on top of it.
 *
 * Counter layout of a draw (part of the reproducibility promise; never change it):
 *   counter = {position low, position high, purpose, 0}, key = {seed low, seed high}. */
#include "base/rng.h"

enum {
    ROUNDS = 10,
};

/* Multipliers and Weyl increments of the paper's Philox4x32. */
static const uint32_t M0 = 0xd2511f53u, M1 = 0xcd9e8d57u;
static const uint32_t W0 = 0x9e3779b9u, W1 = 0xbb67ae85u;

void mx_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int r = 0; r < ROUNDS; r++) {
        uint64_t p0 = (uint64_t)M0 * c0, p1 = (uint64_t)M1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += W0;
        k1 += W1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

double mx_rng_uniform(uint64_t seed, uint64_t position, enum mx_rng_purpose purpose)
{
    const uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), (uint32_t)purpose,
                                 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t out[4];
    mx_philox4x32(counter, key, out);
    uint64_t bits = (uint64_t)out[1] << 32 | out[0];
    return (double)(bits >> 11) * 0x1p-53;
}
