/* Counter-based random numbers (Philox4x32-10; Salmon et al., "Parallel random numbers: as easy as
 * 1, 2, 3", SC 2011).
 *
 * A draw is a pure function of (seed, position, purpose, index), so no batching, draft depth or
 * restart changes it. */
#ifndef MX_BASE_RNG_H
#define MX_BASE_RNG_H

#include <stdint.h>

enum mx_rng_purpose {
    MX_RNG_DRAFT = 1,    /* draw of a draft token from q */
    MX_RNG_ACCEPT = 2,   /* the coin of the acceptance test */
    MX_RNG_RESIDUAL = 3, /* draw from the residual after a rejection */
    MX_RNG_TARGET = 4,   /* draw from p: plain decoding and the bonus token */
};

/* The raw block: out = philox(counter, key). */
void mx_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Uniform in [0, 1) with 53 random bits. */
double mx_rng_uniform(uint64_t seed, uint64_t position, enum mx_rng_purpose purpose);

#endif
