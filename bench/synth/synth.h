/* Synthetic Qwen3.5 checkpoints: real geometries, random weights, and one thing that means
 * something.
 *
 * Speed does not depend on what weights say, but a speculative decoder's speed depends on how many
 * drafts are right. So the greedy output of these models is a chain: after token t comes t + 1. How
 * often the MTP head agrees is chosen when the file is written, and the file's size is the same
 * whatever was chosen.
 *
 * How the chain is built (code.c holds the vectors, plan.c the matrices):
 *   1. A token's embedding is a vector of +1 and -1: for every prime p of a list, p elements hold a
 *      fixed random pattern rotated by t. Rotating every block by one, the matrix S, therefore
 *      turns the embedding of t into that of t + 1, for all t at once, and different tokens are
 *      nearly orthogonal.
 *   2. The rest of the vector is constant, but for MODE_DIMS elements that say whether the MTP
 *      head is to be right after this token.
 *   3. The feed-forward block of the trunk's last layer computes x + c S x with c near 6: its gate
 *      looks at the constant elements only and is open for every token. The head has the embeddings
 *      as rows (tied, or as a copy), so t + 1 has the largest logit.
 *   4. The MTP head's fc takes S times its token's embedding: the right draft. Its feed-forward
 *      block is gated by the mode elements; where they are negative it adds c S x once more,
 *      and the draft is t + 2 places ahead, which is wrong.
 *   5. All other matrices are random, at full size on their input side and scaled to a few percent
 *      on their way back into the residual stream, so that they are computed but do not matter.
 *
 * All matrices that mean something hold -1, 0 and 1 only, which every format stores exactly up to
 * one factor. */
#ifndef BENCH_SYNTH_H
#define BENCH_SYNTH_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---- Geometry ---------------------------------------------------------------------------------
 */

struct synth_geometry {
    int layers, hidden, ff, heads, kv_heads, head_dim;
    int key_heads, value_heads, state; /* Gated DeltaNet; `state` is the head dim of both kinds */
    int vocab, context;
    bool tied, mtp;
};

#define SYNTH_CONV 4     /* width of the causal convolution */
#define SYNTH_INTERVAL 4 /* every fourth layer is full attention */

/* "0.8b", "2b", "4b", "9b", "27b", "1b", "nano"; false when there is none of that name. */
bool synth_preset(const char *name, struct synth_geometry *g);

/* Refuses geometries that the plan cannot fill (ranges, divisibility, a vocabulary too large for
 * the width). */
mtplx_status synth_geometry_check(const struct synth_geometry *g, mtplx_error *err);

/* ---- Token codes ------------------------------------------------------------------------------
 */

#define MODE_DIMS 8
#define CONST_DIMS 8 /* at least; what the primes leave over is constant too */
#define MAX_PRIMES 96

struct synth_code {
    int hidden, vocab;
    int primes[MAX_PRIMES], start[MAX_PRIMES], n_primes;
    int coded;       /* elements 0..coded-1 hold the rotating patterns */
    int8_t *pattern; /* [coded] */
    int *from;       /* [hidden]: row i of S has its 1 in column from[i]; -1: empty row */
    double accept;   /* share of tokens after which the MTP head is right */
    uint64_t seed;
};

/* Chooses primes and patterns; fails when two tokens of the vocabulary would look alike. */
mtplx_status synth_code_init(struct synth_code *c, int hidden, int vocab, double accept,
                             uint64_t seed, mtplx_error *err);
void synth_code_free(struct synth_code *c);

/* The embedding of a token: [hidden] values of -1 and 1. */
void synth_code_token(const struct synth_code *c, int64_t token, int8_t *out);

/* ---- Tensors ----------------------------------------------------------------------------------
 */

enum synth_type {
    SYNTH_F32,
    SYNTH_F16,
    SYNTH_BF16,
    SYNTH_Q4_0,
    SYNTH_Q8_0,
    SYNTH_Q4_K,
    SYNTH_Q5_K,
    SYNTH_Q6_K,
    SYNTH_MLX, /* codes, scales and biases are three tensors */
};

enum synth_role {
    ROLE_NOISE,     /* random, root mean square gain / sqrt(cols) */
    ROLE_FILL,      /* every element is `gain` */
    ROLE_EMBED,     /* row t: the code of token t */
    ROLE_OPEN_GATE, /* sum of the constant elements, the same for every token */
    ROLE_MODE_GATE, /* 0 where the MTP head is to be right, large where not */
    ROLE_STEP,      /* S */
    ROLE_IDENTITY,  /* writes the first `hidden` inputs back */
    ROLE_FC,        /* S for patterns, identity for the other elements, noise for the hidden half */
};

/* Which matrix it is, as far as the mix of types depends on it. */
enum synth_kind {
    KIND_VECTOR, /* stays float */
    KIND_MATRIX,
    KIND_VALUE, /* attn_v and attn_qkv */
    KIND_DOWN,  /* ffn_down */
    KIND_EMBED,
    KIND_HEAD,
};

struct synth_tensor {
    char gguf[64], mlx[96]; /* names; without ".weight" in mlx where quantised */
    enum synth_role role;
    enum synth_kind kind;
    enum synth_type type; /* set by the writer */
    int layer;            /* -1: none */
    int64_t rows, cols;   /* rows 1: a vector */
    float gain;
};

struct synth_plan {
    struct synth_tensor *tensors;
    size_t count;
};

mtplx_status synth_plan_make(struct synth_plan *p, const struct synth_geometry *g,
                             mtplx_error *err);
void synth_plan_free(struct synth_plan *p);
uint64_t synth_plan_parameters(const struct synth_plan *p);

/* ---- Encoding ---------------------------------------------------------------------------------
 */

/* Value of an element in the ternary rows below: -1, 0, 1, or this: random. Random runs start and
 * end at multiples of `hidden`, so that no block of a format holds both. */
#define TERNARY_NOISE 2

enum synth_part { PART_DATA, PART_SCALES, PART_BIASES };

struct synth_mlx {
    int bits, group;
};

/* State of one writing process. */
struct synth_encoder {
    const struct synth_code *code;
    struct synth_mlx mlx;
    uint64_t random;
    int8_t *ternary; /* [widest row] */
};

/* Bytes of one row of `t` (or of its part, MLX only). */
size_t synth_row_bytes(const struct synth_tensor *t, struct synth_mlx mlx, enum synth_part part);

/* Elements of a block of a type, and its bytes; 1 element for floats. */
int synth_block(enum synth_type type, size_t *bytes);

/* Encodes row `row` of `t` into synth_row_bytes() bytes. */
void synth_encode_row(struct synth_encoder *e, const struct synth_tensor *t, int64_t row,
                      enum synth_part part, uint8_t *out);

/* All rows of a tensor (or of its part) to a stream. */
mtplx_status synth_write_tensor(struct synth_encoder *e, const struct synth_tensor *t,
                                enum synth_part part, FILE *f, const char *path, mtplx_error *err);

/* ---- Files ------------------------------------------------------------------------------------
 */

enum synth_mix { MIX_Q4_0, MIX_Q4_K_M, MIX_Q5_K_M, MIX_Q6_K, MIX_Q8_0, MIX_F16 };

/* A GGUF file at `path`. */
mtplx_status synth_write_gguf(const char *path, const struct synth_geometry *g,
                              struct synth_plan *p, struct synth_encoder *e, enum synth_mix mix,
                              mtplx_error *err);

/* A directory with config.json and model.safetensors; bits 16 is dense bf16. */
mtplx_status synth_write_mlx(const char *path, const struct synth_geometry *g, struct synth_plan *p,
                             struct synth_encoder *e, mtplx_error *err);

/* A stream to "<path>.part" and its end: flushed and renamed to `path`, or removed on failure. */
FILE *synth_open(const char *path, mtplx_error *err);
mtplx_status synth_close(FILE *f, const char *path, mtplx_status status, mtplx_error *err);

#endif
