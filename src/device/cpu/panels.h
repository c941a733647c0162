/* Quantised weights repacked for int8 kernels: panels of 16 outputs.
 *
 * A row of weights has no room for several outputs at a time: their scales are scattered and every
 * sum ends in a horizontal add. A panel interleaves 16 outputs four inputs at a time, so that one
 * vector lane is one output from the first product to the store, scales are vectors, and a whole
 * panel is one ascending stream of bytes.
 *
 * Layout. A panel is a sequence of blocks of 64 inputs (the last one padded with zero codes and
 * scales). A step is 4 inputs of the 16 outputs, 64 bytes in the order [output][input]; a block has
 * 16. Its codes are bit planes of vectors of 64 bytes:
 *   8 bits  one vector a step
 *   4 bits  8 vectors; vector j holds step 2j in the low and 2j + 1 in the high halves of its bytes
 *   2 bits  4 vectors; vector j holds steps 4j .. 4j + 3, lowest bits first
 *   1 bit   2 vectors; vector j holds steps 8j .. 8j + 7
 * 3 bits are a plane of 2 and one of 1; 5 of 4 and 1; 6 of 4 and 2 (low bits first). Scales follow
 * the codes, `subs` vectors of 16 a block, ascending inputs:
 *   AFFINE  scale[16], bias[16] as stored 16-bit floats;                w = scale q + bias
 *   SCALED  scale[16] as binary16;                                     w = scale (q - zero)
 *   SUPER   scale[16], min[16] as bytes, two of each;                  w = d scale q - dmin min
 *   SUPER6  scale[16] as signed bytes, four of them;                   w = d scale (q - 32)
 * and SUPER kinds have before every fourth block d[16] and dmin[16] (or padding) as binary16. No
 * format grows by more than 3 % against what the file stores (MLX groups of 128 repeat their scale:
 * 6 % at 4 bits).
 *
 * Activations are int8 with one scale for every 32 or 64 inputs of a row (symmetric, nearest even).
 * With isum the exact integer sum of code products over a sub-block, an output is, in ascending
 * sub-blocks and with fused multiply-adds,
 *   acc = fma(scale * xscale, isum - zero * xsum, acc);  then, where there is a bias or min,
 *   acc = fma(bias, xscale * xsum, acc)
 * so its bits depend on the row alone: not on the instruction set, on how rows are grouped or on
 * threads. */
#ifndef MX_DEVICE_CPU_PANELS_H
#define MX_DEVICE_CPU_PANELS_H

#include "device/device.h"

#define MX_PANEL_OUTS 16
#define MX_PANEL_BLOCK 64 /* inputs */

/* Largest magnitude of a group of activations that still counts; below, all codes are zero. */
#define MX_Q8_TINY 0x1p-100f

enum mx_panel_scaling {
    MX_PANEL_AFFINE,
    MX_PANEL_SCALED,
    MX_PANEL_SUPER,
    MX_PANEL_SUPER6,
};

struct mx_panels {
    int64_t out, in;
    int64_t count;  /* panels */
    int64_t blocks; /* of a panel; a multiple of 4 for SUPER kinds */
    int bits;       /* 2, 3, 4, 5, 6 or 8 */
    enum mx_panel_scaling scaling;
    int subs;       /* scales a block: 1, 2, or 4 (SUPER6) */
    int zero_shift; /* SCALED, SUPER6: the zero point is 8 << zero_shift */
    bool bf16;      /* AFFINE: scales and biases are bfloat16, else binary16 */
    size_t block_bytes, header_bytes, panel_bytes;
    uint8_t *data;
};

/* 64 inputs of one row of activations. `group` of the quantiser is 32 or 64: with 64 only the first
 * entry of pairs is used. */
struct mx_q8_block {
    int8_t code[64];
    float scale[2];
    float sum[2];     /* scale * sum of codes */
    int32_t neg8[2];  /* -8 * sum of codes, for zero points */
    int32_t neg8q[4]; /* the same per 16 inputs */
    int32_t unused[6];
};
_Static_assert(sizeof(struct mx_q8_block) == 128, "two cache lines");

/* Inputs that share an activation scale for weights of these panels. */
static inline int mx_panels_group(const struct mx_panels *p)
{
    return p->subs == 1 ? 64 : 32;
}

/* Blocks of activations of a row of `in` inputs. */
static inline int64_t mx_q8_blocks(int64_t in)
{
    return (in + MX_PANEL_BLOCK - 1) / MX_PANEL_BLOCK;
}

/* Fills in everything but `data` for a weight; false when its kind has no panel form (dense, MLX
 * with float32 scales). `w` must have passed mx_weight_check(). */
bool mx_panels_layout(const struct mx_weight *w, struct mx_panels *p);

/* Repacks panels first .. first + n of a weight into p->data. Thread-safe for disjoint panels. */
void mx_panels_pack(const struct mx_weight *w, const struct mx_panels *p, int64_t first, int64_t n);

/* Kernels over panels of one instruction set. */
struct mx_q8_kernels {
    const char *name; /* "vnni", "avx2", ... */
    /* Quantises one row: `in` floats into mx_q8_blocks(in) blocks, zeros beyond `in`. A NaN or
     * infinite input makes the scale of its group NaN, hence every output of the row. */
    void (*quantise)(const float *x, int64_t in, int group, struct mx_q8_block *q);
    /* y[r * ldy + o] for all outputs o of panels first .. first + n and r < rows. Row r of the
     * activations starts at q + r * ldq. */
    void (*product)(const struct mx_panels *p, int64_t first, int64_t n,
                    const struct mx_q8_block *q, int64_t ldq, int rows, float *y, int64_t ldy);
};

extern const struct mx_q8_kernels mx_q8_scalar; /* the definition above, spelled out; slow */
#if defined(__x86_64__)
extern const struct mx_q8_kernels mx_q8_amx, mx_q8_vnni512, mx_q8_avx2;
#elif defined(__aarch64__)
extern const struct mx_q8_kernels mx_q8_neondot, mx_q8_neoni8mm;
#endif

#endif
