/* The kernels, over a vector of 16 floats that the including file defines.
 *
 * The including file (kernels_<isa>.c) defines, all `static inline`:
 *   struct v16                          16 floats
 *   v_zero, v_set1, v_load, v_store     whole vectors, any alignment
 *   v_load_n, v_store_n                 the first n lanes, 0 < n < 16; other lanes load as 0
 *   v_add, v_sub, v_mul, v_div, v_fma   v_fma(a, b, c) = a * b + c
 *   v_max                               a > b ? a : b per lane, so a NaN in a gives b
 *   v_min                               a < b ? a : b
 *   v_select_gt(x, limit, a, b)         x > limit ? a : b per lane
 *   v_exp2_bits(m)                      2^i for lanes whose low bits hold the integer i (see v_exp)
 *   v_sum4(a, b, c, d, out)             four sums, each in the tree of kernels.h
 *   v_sum, v_hmax                       one sum, largest lane
 *   v_bf16, v_f16                       16 stored halves to float
 *   v_to_f16                            float to 16 stored halves (only where KV is f16)
 *   f_f16                               one stored half to float
 *   struct affine, affine_of(bits, scale, bias), v_codes(bits, p, affine)
 *                                       scale * q + bias of 16 codes from the 2 * bits bytes at p
 *   struct vpart                        1 / V_PARTS of a v16: as much as is best kept in registers
 *   p_zero, p_load, p_fma               as above
 *   v_join(parts)                       a v16 from its V_PARTS parts, lanes in order
 * and the macros
 *   V_ISA "name", V_TABLE               the names of the set
 *   V_KV_F16 0 or 1                     KV type: float32 or float16
 *   V_PARTS                             1, 2 or 4
 *   V_OUTS, V_ROWS                      block of product(), in accumulators of type vpart
 *   V_DIRECT_BLOCK                      accumulators of type v16 that fit the registers
 *   V_DIRECT_ROWS                       kernels.h, direct_rows; at most 6
 *   V_DIRECT_OUTS(kind, rows)           outputs at a time of direct(), at most V_DIRECT_BLOCK /
 *                                       rows; kind as below, MLXQ when <= 8
 *   V_MIX                               accumulators of mix(), V_SCAN columns / 16 of scan()
 *
 * B1  A sum is carried in one v16 (or stated otherwise), ascending, and reduced by the tree. How
 * many outputs, rows or columns are in flight is free: it never enters a sum. B2  A ragged end is
 * loaded with zeros in the missing lanes. */

#include "base/half.h"
#include "device/common.h"
#include "device/cpu/kernels.h"
#include "format/gguf_quant.h"

#include <math.h>

#define ALWAYS static inline __attribute__((always_inline))

/* Loops over a block of accumulators must vanish, or the block lives in memory. */
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

/* ---- Helpers over the vocabulary ---------------------------------------------------------- */

/* Up to 16 lanes; n >= 16 loads all. */
ALWAYS struct v16 v_load_upto(const float *p, int64_t n)
{
    return n >= 16 ? v_load(p) : v_load_n(p, (int)n);
}

ALWAYS void v_store_upto(float *p, int64_t n, struct v16 v)
{
    if (n >= 16)
        v_store(p, v);
    else
        v_store_n(p, (int)n, v);
}

/* e^x to 1.1 ulp: x = i ln2 + r, |r| <= ln2 / 2, e^r by a polynomial through Chebyshev nodes.
 * Adding 1.5 * 2^23 leaves the integer nearest to x / ln2 in the low bits. 0 below -87.3 (no
 * denormals), infinity above 88.72, NaN for NaN. */
ALWAYS struct v16 v_exp(struct v16 x)
{
    const struct v16 magic = v_set1(0x1.8p23f), top = v_set1(88.7228f), bottom = v_set1(-87.3f);
    struct v16 c = v_min(top, v_max(bottom, x)); /* NaN stays: it is the second operand */
    struct v16 m = v_fma(c, v_set1(0x1.715476p+0f), magic);
    m = v_min(v_set1(0x1.8p23f + 127.0f), m);
    struct v16 i = v_sub(m, magic);
    struct v16 r = v_fma(i, v_set1(-0x1.62ep-1f), c);
    r = v_fma(i, v_set1(-0x1.0bfbe8p-15f), r);
    struct v16 p = v_set1(0x1.6d1606p-10f);
    p = v_fma(p, r, v_set1(0x1.12106cp-7f));
    p = v_fma(p, r, v_set1(0x1.555516p-5f));
    p = v_fma(p, r, v_set1(0x1.5554d8p-3f));
    p = v_fma(p, r, v_set1(0.5f));
    p = v_fma(p, v_mul(r, r), r);
    p = v_add(p, v_set1(1.0f));
    p = v_mul(p, v_exp2_bits(m));
    p = v_select_gt(x, top, v_set1(INFINITY), p);
    return v_select_gt(bottom, x, v_zero(), p);
}

ALWAYS struct v16 v_sigmoid(struct v16 x)
{
    return v_div(v_set1(1.0f), v_add(v_set1(1.0f), v_exp(v_sub(v_zero(), x))));
}

ALWAYS struct v16 v_silu(struct v16 x)
{
    return v_mul(x, v_sigmoid(x));
}

static float sum_of_squares(const float *x, int64_t n)
{
    struct v16 s = v_zero();
    for (int64_t i = 0; i < n; i += 16) {
        struct v16 v = v_load_upto(x + i, n - i);
        s = v_fma(v, v, s);
    }
    return v_sum(s);
}

/* ---- Weights to float --------------------------------------------------------------------- */

/* How far ahead of its loads a block of `bytes` stored bytes asks for memory. Blocks of short rows
 * ask for the same place in a block to come, at least 4 KB away; long rows run far enough for the
 * distance to stay inside them. Measured on weights that fit no cache: +40 to +100 % on 16-bit
 * weights, nothing lost on others. */
static size_t fetch_distance(size_t bytes)
{
    return bytes > 16384 ? 2048 : (4096 + bytes - 1) / bytes * bytes;
}

/* Asks for the lines of `bytes` bytes; the address may lie behind the weight. */
ALWAYS void fetch(const uint8_t *p, size_t distance, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        __builtin_prefetch((const void *)((uintptr_t)p + distance + i));
}

static void floats_of_halves(const uint8_t *p, bool bf16, int64_t n, float *out)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        v_store(out + i, bf16 ? v_bf16(p + 2 * i) : v_f16(p + 2 * i));
    for (; i < n; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, sizeof h);
        out[i] = bf16 ? mx_bf16_to_f32(h) : mx_f16_to_f32(h);
    }
}

/* Most groups of one row in a chunk. */
#define MAX_GROUPS (MX_CPU_CHUNK / 32)

/* n scales or biases from index i. */
static void load_stored(enum mx_dtype t, const void *data, int64_t i, int64_t n, float *out)
{
    const uint8_t *p = data;
    if (t == MX_F32)
        memcpy(out, p + 4 * i, (size_t)n * sizeof *out);
    else
        floats_of_halves(p + 2 * i, t == MX_BF16, n, out);
}

/* Values k0 .. k0+len of a row, all in one chunk. */
ALWAYS void unpack_codes(const struct mx_weight *w, int bits, int64_t row, int64_t k0, int64_t len,
                         float *out)
{
    float scales[MAX_GROUPS], biases[MAX_GROUPS];
    const uint8_t *p = (const uint8_t *)w->data + (size_t)((row * w->in + k0) / 8 * bits);
    int64_t g = (row * w->in + k0) / w->group, groups = len / w->group;
    load_stored(w->sdtype, w->scales, g, groups, scales);
    load_stored(w->sdtype, w->biases, g, groups, biases);
    for (int64_t i = 0; i < groups; i++) {
        struct affine a = affine_of(bits, scales[i], biases[i]);
        for (int j = 0; j < w->group; j += 16, p += 2 * bits, out += 16)
            v_store(out, v_codes(bits, p, a));
    }
}

/* Blocks of a row from value k0 on, which starts a block. */
static const uint8_t *gguf_blocks(const struct mx_weight *w, int64_t row, int64_t k0)
{
    return (const uint8_t *)w->data + (size_t)row * mx_gguf_row_bytes(w->gguf_type, w->in) +
           (size_t)k0 / (size_t)mx_gguf_block_values(w->gguf_type) *
               (size_t)mx_gguf_block_bytes(w->gguf_type);
}

/* Asks for the same chunk of the row that is unpacked MX_CPU_UNPACK_OUTS calls later. */
static void fetch_chunk(const struct mx_weight *w, int64_t row, int64_t k0, int64_t len)
{
    if (w->kind == MX_W_GGUF) {
        fetch(gguf_blocks(w, row, k0), MX_CPU_UNPACK_OUTS * mx_gguf_row_bytes(w->gguf_type, w->in),
              mx_gguf_row_bytes(w->gguf_type, len));
        return;
    }
    size_t bits = w->kind == MX_W_MLXQ ? (size_t)w->bits : w->kind == MX_W_F32 ? 32 : 16;
    size_t row_bytes = (size_t)w->in * bits / 8;
    const uint8_t *p = (const uint8_t *)w->data + (size_t)row * row_bytes + (size_t)k0 * bits / 8;
    fetch(p, MX_CPU_UNPACK_OUTS * row_bytes, (size_t)len * bits / 8);
}

static void k_unpack(const struct mx_weight *w, int64_t row, int64_t k0, int64_t len, float *out)
{
    const uint8_t *data = w->data;
    size_t at = (size_t)(row * w->in + k0);
    fetch_chunk(w, row, k0, len);
    switch (w->kind) {
    case MX_W_F32: memcpy(out, data + 4 * at, (size_t)len * sizeof *out); return;
    case MX_W_F16: floats_of_halves(data + 2 * at, false, len, out); return;
    case MX_W_BF16: floats_of_halves(data + 2 * at, true, len, out); return;
    case MX_W_GGUF: mx_gguf_dequant_row(w->gguf_type, gguf_blocks(w, row, k0), len, out); return;
    case MX_W_MLXQ: break;
    }
    switch (w->bits) {
    case 2: unpack_codes(w, 2, row, k0, len, out); return;
    case 3: unpack_codes(w, 3, row, k0, len, out); return;
    case 4: unpack_codes(w, 4, row, k0, len, out); return;
    case 5: unpack_codes(w, 5, row, k0, len, out); return;
    case 6: unpack_codes(w, 6, row, k0, len, out); return;
    default: unpack_codes(w, 8, row, k0, len, out); return;
    }
}

/* ---- Products ----------------------------------------------------------------------------- */

/* Reduces a block of up to 29 accumulators [outs][rows] and adds it to (or puts it in) y. */
ALWAYS void reduce_block(const struct v16 *acc, int outs, int rows, bool add, float *y, int64_t ldy)
{
    float sums[32];
    int n = outs * rows;
    UNROLL
    for (int i = 0; i < n; i += 4)
        v_sum4(acc[i], i + 1 < n ? acc[i + 1] : acc[i], i + 2 < n ? acc[i + 2] : acc[i],
               i + 3 < n ? acc[i + 3] : acc[i], sums + i);
    UNROLL
    for (int i = 0; i < n; i++) {
        float *to = y + i % rows * ldy + i / rows;
        *to = add ? *to + sums[i] : sums[i];
    }
}

/* One part of the lanes of every sum of a block, over the whole vectors of len. */
ALWAYS void product_part(const float *w, int64_t ldw, int outs, const float *x, int64_t ldx,
                         int rows, int64_t len, int part, struct vpart (*sums)[V_PARTS])
{
    struct vpart acc[V_OUTS * V_ROWS];
    UNROLL
    for (int i = 0; i < outs * rows; i++)
        acc[i] = p_zero();
    w += part * (16 / V_PARTS);
    x += part * (16 / V_PARTS);
    for (int64_t k = 0; k + 16 <= len; k += 16) {
        struct vpart wv[V_OUTS];
        UNROLL
        for (int o = 0; o < outs; o++)
            wv[o] = p_load(w + o * ldw + k);
        UNROLL
        for (int r = 0; r < rows; r++) {
            struct vpart xv = p_load(x + r * ldx + k);
            UNROLL
            for (int o = 0; o < outs; o++)
                acc[o * rows + r] = p_fma(wv[o], xv, acc[o * rows + r]);
        }
    }
    UNROLL
    for (int i = 0; i < outs * rows; i++)
        sums[i][part] = acc[i];
}

/* The lanes of a sum are independent until its end, so a set with small registers runs over the
 * data once per part and has a larger block, which loads less per multiplication. */
ALWAYS void product_block(const float *w, int64_t ldw, int outs, const float *x, int64_t ldx,
                          int rows, int64_t len, bool add, float *y, int64_t ldy)
{
    struct vpart sums[V_OUTS * V_ROWS][V_PARTS];
    struct v16 acc[V_OUTS * V_ROWS];
    UNROLL
    for (int part = 0; part < V_PARTS; part++)
        product_part(w, ldw, outs, x, ldx, rows, len, part, sums);
    UNROLL
    for (int i = 0; i < outs * rows; i++)
        acc[i] = v_join(sums[i]);
    if (len % 16 != 0) {
        int64_t k = len / 16 * 16;
        for (int i = 0; i < outs * rows; i++)
            acc[i] = v_fma(v_load_n(w + i / rows * ldw + k, (int)(len - k)),
                           v_load_n(x + i % rows * ldx + k, (int)(len - k)), acc[i]);
    }
    reduce_block(acc, outs, rows, add, y, ldy);
}

/* Outputs one block wide, all rows. */
ALWAYS void product_columns(const float *w, int64_t ldw, int outs, const float *x, int64_t ldx,
                            int rows, int64_t len, bool add, float *y, int64_t ldy)
{
    for (; rows >= V_ROWS; rows -= V_ROWS, x += V_ROWS * ldx, y += V_ROWS * ldy)
        product_block(w, ldw, outs, x, ldx, V_ROWS, len, add, y, ldy);
    switch (rows) {
#if V_ROWS > 5
    case 5: product_block(w, ldw, outs, x, ldx, 5, len, add, y, ldy); break;
#endif
#if V_ROWS > 4
    case 4: product_block(w, ldw, outs, x, ldx, 4, len, add, y, ldy); break;
#endif
#if V_ROWS > 3
    case 3: product_block(w, ldw, outs, x, ldx, 3, len, add, y, ldy); break;
#endif
#if V_ROWS > 2
    case 2: product_block(w, ldw, outs, x, ldx, 2, len, add, y, ldy); break;
#endif
    case 1: product_block(w, ldw, outs, x, ldx, 1, len, add, y, ldy); break;
    default: break;
    }
}

static void k_product(const float *w, int64_t ldw, int outs, const float *x, int64_t ldx, int rows,
                      int64_t len, bool add, float *y, int64_t ldy)
{
    int o = 0;
    for (; o + V_OUTS <= outs; o += V_OUTS)
        product_columns(w + o * ldw, ldw, V_OUTS, x, ldx, rows, len, add, y + o, ldy);
#if V_OUTS > 1
    for (; o < outs; o++)
        product_columns(w + o * ldw, ldw, 1, x, ldx, rows, len, add, y + o, ldy);
#endif
}

/* ---- Products straight from stored weights ------------------------------------------------ */

/* Kinds of the switch below: bits of MLXQ, or one of these. */
#define KIND_F32 32
#define KIND_F16 16
#define KIND_BF16 17

ALWAYS size_t kind_bytes16(int kind) /* stored bytes of 16 weights */
{
    return kind == KIND_F32 ? 64 : kind == KIND_F16 || kind == KIND_BF16 ? 32 : (size_t)kind * 2;
}

ALWAYS struct v16 kind_load(int kind, const uint8_t *p, struct affine a)
{
    if (kind == KIND_F32) {
        struct v16 v;
        memcpy(&v, p, sizeof v);
        return v;
    }
    if (kind == KIND_F16)
        return v_f16(p);
    if (kind == KIND_BF16)
        return v_bf16(p);
    return v_codes(kind, p, a);
}

/* Scales and biases of a chunk of a block of outputs, [outs][groups in the chunk]. */
struct chunk_scales {
    float scale[V_DIRECT_BLOCK * MAX_GROUPS], bias[V_DIRECT_BLOCK * MAX_GROUPS];
};

/* `g` is the first group of the first output; a row has `stride` groups. Rows that fit one chunk
 * have their scales side by side. */
static void load_scales(const struct mx_weight *w, int64_t g, int outs, int64_t groups,
                        int64_t stride, struct chunk_scales *cs)
{
    int64_t run = groups == stride ? outs * groups : groups;
    for (int64_t i = 0; i < outs * groups; i += run, g += stride) {
        load_stored(w->sdtype, w->scales, g, run, cs->scale + i);
        load_stored(w->sdtype, w->biases, g, run, cs->bias + i);
    }
}

/* One chunk of an [outs][rows] block: `codes` stands at the chunk's first input of the first
 * output. */
ALWAYS void direct_chunk(const struct mx_weight *w, int kind, int outs, const uint8_t *codes,
                         const struct chunk_scales *cs, const float *x, int64_t ldx, int rows,
                         int64_t len, bool add, float *y, int64_t ldy)
{
    struct v16 acc[V_DIRECT_BLOCK];
    struct affine a[V_DIRECT_BLOCK] = {0};
    size_t step = kind_bytes16(kind), row_bytes = (size_t)(w->in / 16) * step;
    size_t ahead = fetch_distance((size_t)outs * row_bytes);
    int64_t run = kind <= 8 ? w->group : len, groups = len / run;
    UNROLL
    for (int i = 0; i < outs * rows; i++)
        acc[i] = v_zero();
    for (int64_t i = 0; i < groups; i++) {
        UNROLL
        for (int o = 0; o < outs; o++) {
            if (kind > 8)
                break;
            a[o] = affine_of(kind, cs->scale[o * groups + i], cs->bias[o * groups + i]);
            fetch(codes + (size_t)o * row_bytes, ahead, (size_t)(run / 16) * step);
        }
        for (int64_t k = 0; k < run; k += 16, codes += step, x += 16) {
            struct v16 wv[V_DIRECT_BLOCK];
            UNROLL
            for (int o = 0; o < outs; o++) {
                if (kind > 8)
                    fetch(codes + (size_t)o * row_bytes, ahead, step);
                wv[o] = kind_load(kind, codes + (size_t)o * row_bytes, a[o]);
            }
            UNROLL
            for (int r = 0; r < rows; r++) {
                struct v16 xv = v_load(x + r * ldx);
                UNROLL
                for (int o = 0; o < outs; o++)
                    acc[o * rows + r] = v_fma(wv[o], xv, acc[o * rows + r]);
            }
        }
    }
    reduce_block(acc, outs, rows, add, y, ldy);
}

ALWAYS void direct_block(const struct mx_weight *w, int kind, int64_t o, int outs, const float *x,
                         int64_t ldx, int rows, float *y, int64_t ldy)
{
    size_t step = kind_bytes16(kind);
    const uint8_t *codes = (const uint8_t *)w->data + (size_t)(o * (w->in / 16)) * step;
    struct chunk_scales cs;
    for (int64_t k = 0; k < w->in; k += MX_CPU_CHUNK) {
        int64_t len = w->in - k < MX_CPU_CHUNK ? w->in - k : MX_CPU_CHUNK;
        if (kind <= 8)
            load_scales(w, (o * w->in + k) / w->group, outs, len / w->group, w->in / w->group, &cs);
        direct_chunk(w, kind, outs, codes + (size_t)(k / 16) * step, &cs, x + k, ldx, rows, len,
                     k > 0, y + o, ldy);
    }
}

ALWAYS void direct_rows(const struct mx_weight *w, int kind, int64_t o, int n, int block,
                        const float *x, int64_t ldx, int rows, float *y, int64_t ldy)
{
    int64_t end = o + n;
    for (; o + block <= end; o += block)
        direct_block(w, kind, o, block, x, ldx, rows, y, ldy);
    for (; block > 1 && o < end; o++)
        direct_block(w, kind, o, 1, x, ldx, rows, y, ldy);
}

#define DIRECT_CASE(n)                                                                             \
    case n:                                                                                        \
        if (V_DIRECT_ROWS >= (n))                                                                  \
            direct_rows(w, kind, o0, outs, V_DIRECT_OUTS(kind, n), x, ldx, n, y, ldy);             \
        break

ALWAYS void direct_kind(const struct mx_weight *w, int kind, int64_t o0, int outs, const float *x,
                        int64_t ldx, int rows, float *y, int64_t ldy)
{
    switch (rows) {
        DIRECT_CASE(1);
        DIRECT_CASE(2);
        DIRECT_CASE(3);
        DIRECT_CASE(4);
        DIRECT_CASE(5);
        DIRECT_CASE(6);
    default: break;
    }
}

#define DIRECT(name, kind)                                                                         \
    static void name(const struct mx_weight *w, int64_t o0, int outs, const float *x, int64_t ldx, \
                     int rows, float *y, int64_t ldy)                                              \
    {                                                                                              \
        direct_kind(w, kind, o0, outs, x, ldx, rows, y, ldy);                                      \
    }
DIRECT(direct_f32, KIND_F32)
DIRECT(direct_f16, KIND_F16)
DIRECT(direct_bf16, KIND_BF16)
DIRECT(direct_q2, 2)
DIRECT(direct_q3, 3)
DIRECT(direct_q4, 4)
DIRECT(direct_q5, 5)
DIRECT(direct_q6, 6)
DIRECT(direct_q8, 8)

static void k_direct(const struct mx_weight *w, int64_t o0, int outs, const float *x, int64_t ldx,
                     int rows, float *y, int64_t ldy)
{
    switch (w->kind == MX_W_MLXQ ? w->bits : 100 + (int)w->kind) {
    case 2: direct_q2(w, o0, outs, x, ldx, rows, y, ldy); break;
    case 3: direct_q3(w, o0, outs, x, ldx, rows, y, ldy); break;
    case 4: direct_q4(w, o0, outs, x, ldx, rows, y, ldy); break;
    case 5: direct_q5(w, o0, outs, x, ldx, rows, y, ldy); break;
    case 6: direct_q6(w, o0, outs, x, ldx, rows, y, ldy); break;
    case 8: direct_q8(w, o0, outs, x, ldx, rows, y, ldy); break;
    case 100 + MX_W_F16: direct_f16(w, o0, outs, x, ldx, rows, y, ldy); break;
    case 100 + MX_W_BF16: direct_bf16(w, o0, outs, x, ldx, rows, y, ldy); break;
    default: direct_f32(w, o0, outs, x, ldx, rows, y, ldy); break;
    }
}

/* ---- Element-wise ops and norms ----------------------------------------------------------- */

static void k_rmsnorm(const float *x, const float *w, float eps, float *y, int dim)
{
    struct v16 scale = v_set1(1.0f / sqrtf(sum_of_squares(x, dim) / (float)dim + eps));
    for (int i = 0; i < dim; i += 16) {
        struct v16 v = v_mul(v_load_upto(x + i, dim - i), scale);
        v_store_upto(y + i, dim - i, v_mul(v, v_load_upto(w + i, dim - i)));
    }
}

static void k_axpy(float alpha, const float *x, float *y, int dim)
{
    struct v16 a = v_set1(alpha);
    for (int i = 0; i < dim; i += 16) {
        struct v16 v = v_fma(a, v_load_upto(x + i, dim - i), v_load_upto(y + i, dim - i));
        v_store_upto(y + i, dim - i, v);
    }
}

static void k_swiglu(const float *gate, const float *up, float *y, int dim)
{
    for (int i = 0; i < dim; i += 16) {
        struct v16 v = v_silu(v_load_upto(gate + i, dim - i));
        v_store_upto(y + i, dim - i, v_mul(v, v_load_upto(up + i, dim - i)));
    }
}

static int32_t k_argmax(const float *x, int dim)
{
    struct v16 top = v_set1(-INFINITY);
    int i = 0;
    for (; i + 16 <= dim; i += 16)
        top = v_max(v_load(x + i), top);
    float best = v_hmax(top);
    for (; i < dim; i++)
        best = x[i] > best ? x[i] : best;
    for (i = 0; i < dim; i++) {
        if (x[i] == best)
            return i;
    }
    return 0;
}

/* ---- Attention ---------------------------------------------------------------------------- */

/* Rotates pairs (j, j + half) for n <= 16 values of j. */
ALWAYS void rotate16(float *y, int half, int64_t n, const float *cos, const float *sin)
{
    struct v16 lo = v_load_upto(y, n), hi = v_load_upto(y + half, n);
    struct v16 c = v_load_upto(cos, n), s = v_load_upto(sin, n);
    v_store_upto(y, n, v_sub(v_mul(lo, c), v_mul(hi, s)));
    v_store_upto(y + half, n, v_add(v_mul(hi, c), v_mul(lo, s)));
}

static void k_head(const float *x, const float *norm, float eps, int dim, int half,
                   const float *cos, const float *sin, float *y)
{
    if (norm)
        k_rmsnorm(x, norm, eps, y, dim);
    else if (y != x)
        memcpy(y, x, (size_t)dim * sizeof *y);
    for (int j = 0; j < half; j += 16)
        rotate16(y + j, half, half - j, cos + j, sin + j);
}

#if V_KV_F16
static void k_kv_store(const float *x, void *entry, int n)
{
    uint8_t *p = entry, last[32];
    int i = 0;
    for (; i + 16 <= n; i += 16)
        v_to_f16(v_load(x + i), p + 2 * i);
    if (i < n) {
        v_to_f16(v_load_n(x + i, n - i), last);
        memcpy(p + 2 * i, last, 2 * (size_t)(n - i));
    }
}

static void load_plain(const void *entry, float *x, int64_t n)
{
    floats_of_halves(entry, false, n, x);
}
#else
static void k_kv_store(const float *x, void *entry, int n)
{
    memcpy(entry, x, (size_t)n * sizeof *x);
}

static void load_plain(const void *entry, float *x, int64_t n)
{
    memcpy(x, entry, (size_t)n * sizeof *x);
}
#endif

/* n values, a multiple of MX_KV_GROUP, of a quantised format (kv_format.h). */
ALWAYS void load_groups(int bits, const uint8_t *p, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += MX_KV_GROUP) {
        float scale = f_f16(p), low = bits == 8 ? -128.0f * scale : f_f16(p + 2);
        struct affine a = affine_of(bits, scale, low);
        p += bits == 8 ? 2 : 4;
        for (int j = 0; j < MX_KV_GROUP; j += 16, p += 2 * bits)
            v_store(x + i + j, v_codes(bits, p, a));
    }
}

static void k_kv_load(enum mx_kv_format format, const void *entry, float *x, int64_t n)
{
    switch (format) {
    case MX_KV_Q8: load_groups(8, entry, x, n); return;
    case MX_KV_Q6: load_groups(6, entry, x, n); return;
    case MX_KV_Q4: load_groups(4, entry, x, n); return;
    default: load_plain(entry, x, n); return;
    }
}

static float k_softmax(float *p, int n, float scale, float *top, float *fade)
{
    struct v16 most = v_set1(*top), sum = v_zero();
    for (int i = n; i < (n + 15) / 16 * 16; i++) /* p has room for 64 */
        p[i] = -INFINITY;
    for (int i = 0; i < n; i += 16) {
        struct v16 v = v_mul(v_load(p + i), v_set1(scale));
        v_store(p + i, v);
        most = v_max(v, most);
    }
    float next = v_hmax(most);
    float ends[16];
    v_store(ends, v_exp(v_sub(v_set1(*top), v_set1(next))));
    *fade = ends[0];
    *top = next;
    for (int i = 0; i < n; i += 16) {
        struct v16 e = v_exp(v_sub(v_load(p + i), v_set1(next)));
        v_store(p + i, e);
        sum = v_add(sum, e);
    }
    return v_sum(sum);
}

ALWAYS void mix_columns(const float *p, int n, const float *v, int dim, float fade, float *y,
                        int vectors)
{
    struct v16 acc[V_MIX];
    UNROLL
    for (int c = 0; c < vectors; c++)
        acc[c] = v_mul(v_load(y + 16 * c), v_set1(fade));
    for (int j = 0; j < n; j++) {
        struct v16 pj = v_set1(p[j]);
        UNROLL
        for (int c = 0; c < vectors; c++)
            acc[c] = v_fma(pj, v_load(v + (int64_t)j * dim + 16 * c), acc[c]);
    }
    UNROLL
    for (int c = 0; c < vectors; c++)
        v_store(y + 16 * c, acc[c]);
}

static void k_mix(const float *p, int n, const float *v, int dim, float fade, float *y)
{
    int i = 0;
    for (; i + 16 * V_MIX <= dim; i += 16 * V_MIX)
        mix_columns(p, n, v + i, dim, fade, y + i, V_MIX);
    for (; i + 16 <= dim; i += 16)
        mix_columns(p, n, v + i, dim, fade, y + i, 1);
    if (i == dim)
        return;
    struct v16 acc = v_mul(v_load_n(y + i, dim - i), v_set1(fade));
    for (int j = 0; j < n; j++)
        acc = v_fma(v_set1(p[j]), v_load_n(v + (int64_t)j * dim + i, dim - i), acc);
    v_store_n(y + i, dim - i, acc);
}

static void k_finish(float *y, float total, const float *gate, int dim)
{
    for (int i = 0; i < dim; i += 16) {
        struct v16 v = v_div(v_load_upto(y + i, dim - i), v_set1(total));
        if (gate)
            v = v_mul(v, v_sigmoid(v_load_upto(gate + i, dim - i)));
        v_store_upto(y + i, dim - i, v);
    }
}

/* ---- Gated DeltaNet ----------------------------------------------------------------------- */

static void k_conv(const float *const *x, const float *w, int64_t ldw, int taps, int n, float *y)
{
    for (int i = 0; i < n; i += 16) {
        struct v16 s = v_mul(v_load_upto(w + i, n - i), v_load_upto(x[0] + i, n - i));
        for (int j = 1; j < taps; j++)
            s = v_fma(v_load_upto(w + j * ldw + i, n - i), v_load_upto(x[j] + i, n - i), s);
        v_store_upto(y + i, n - i, v_silu(s));
    }
}

static void k_unit(float *x, int n, float eps, float factor)
{
    struct v16 scale = v_set1(1.0f / sqrtf(sum_of_squares(x, n) + eps) * factor);
    for (int i = 0; i < n; i += 16)
        v_store_upto(x + i, n - i, v_mul(v_load_upto(x + i, n - i), scale));
}

/* alpha S + k delta: the one expression that scan() and replay() share. */
ALWAYS struct v16 updated(struct v16 s, struct v16 alpha, float k, struct v16 delta)
{
    return v_fma(v_set1(k), delta, v_mul(alpha, s));
}

/* `lanes` columns of V_SCAN * 16 (or one ragged vector). Sums over i are carried in two v16, even
 * and odd i. One sweep of a row updates the state, reads it with q, and reads it with the next
 * row's k, so a row costs one pass over the state. */
ALWAYS void scan_columns(const float *in, float *out, int dk, int dv, int rows, const float *q,
                         const float *k, float *v, const float *alpha, const float *beta, float *y,
                         int64_t ldy, int vectors, int64_t lanes)
{
    struct v16 m[2 * V_SCAN], o[2 * V_SCAN], delta[V_SCAN];
    UNROLL
    for (int c = 0; c < 2 * vectors; c++)
        m[c] = v_zero();
    for (int i = 0; i < dk; i++) {
        int half = i & 1 ? vectors : 0;
        UNROLL
        for (int c = 0; c < vectors; c++) {
            struct v16 s = v_load_upto(in + (int64_t)i * dv + 16 * c, lanes);
            if (half)
                m[c + vectors] = v_fma(v_set1(k[i]), s, m[c + vectors]);
            else
                m[c] = v_fma(v_set1(k[i]), s, m[c]);
        }
    }
    for (int t = 0; t < rows; t++, in = out, v += dv, y += ldy) {
        const float *kt = k + (int64_t)t * dk, *qt = q + (int64_t)t * dk;
        const float *next = t + 1 < rows ? kt + dk : kt; /* any row: not used after the last */
        struct v16 at = v_set1(alpha[t]);
        UNROLL
        for (int c = 0; c < vectors; c++) {
            struct v16 mc = v_mul(at, v_add(m[c], m[c + vectors]));
            delta[c] = v_mul(v_set1(beta[t]), v_sub(v_load_upto(v + 16 * c, lanes), mc));
            v_store_upto(v + 16 * c, lanes, delta[c]);
        }
        UNROLL
        for (int c = 0; c < 2 * vectors; c++)
            m[c] = o[c] = v_zero();
        int i = 0;
        for (; i + 2 <= dk; i += 2) {
            UNROLL
            for (int c = 0; c < 2 * vectors; c++) {
                int64_t row = i + c / vectors, col = 16 * (c % vectors);
                struct v16 s = v_load_upto(in + row * dv + col, lanes);
                s = updated(s, at, kt[row], delta[c % vectors]);
                v_store_upto(out + row * dv + col, lanes, s);
                o[c] = v_fma(v_set1(qt[row]), s, o[c]);
                m[c] = v_fma(v_set1(next[row]), s, m[c]);
            }
        }
        if (i < dk) {
            UNROLL
            for (int c = 0; c < vectors; c++) {
                struct v16 s = v_load_upto(in + (int64_t)i * dv + 16 * c, lanes);
                s = updated(s, at, kt[i], delta[c]);
                v_store_upto(out + (int64_t)i * dv + 16 * c, lanes, s);
                o[c] = v_fma(v_set1(qt[i]), s, o[c]);
                m[c] = v_fma(v_set1(next[i]), s, m[c]);
            }
        }
        UNROLL
        for (int c = 0; c < vectors; c++)
            v_store_upto(y + 16 * c, lanes, v_add(o[c], o[c + vectors]));
    }
}

static void k_scan(const float *in, float *out, int dk, int dv, int rows, const float *q,
                   const float *k, float *v, const float *alpha, const float *beta, float *y,
                   int64_t ldy)
{
    int j = 0;
    for (; j + 16 * V_SCAN <= dv; j += 16 * V_SCAN)
        scan_columns(in + j, out + j, dk, dv, rows, q, k, v + j, alpha, beta, y + j, ldy, V_SCAN,
                     16);
#if V_SCAN > 1
    for (; j + 16 <= dv; j += 16)
        scan_columns(in + j, out + j, dk, dv, rows, q, k, v + j, alpha, beta, y + j, ldy, 1, 16);
#endif
    if (j < dv)
        scan_columns(in + j, out + j, dk, dv, rows, q, k, v + j, alpha, beta, y + j, ldy, 1,
                     dv - j);
}

/* `vectors` times 16 columns, or one ragged vector of `lanes`. */
ALWAYS void replay_columns(float *state, int dk, int dv, int rows, const float *k,
                           const float *delta, const float *alpha, int64_t stride, int vectors,
                           int64_t lanes)
{
    for (int i = 0; i < dk; i++, state += dv) {
        struct v16 s[V_SCAN];
        UNROLL
        for (int c = 0; c < vectors; c++)
            s[c] = v_load_upto(state + 16 * c, lanes);
        for (int t = 0; t < rows; t++) {
            struct v16 at = v_set1(alpha[t * stride]);
            float kt = k[t * stride + i];
            UNROLL
            for (int c = 0; c < vectors; c++)
                s[c] = updated(s[c], at, kt, v_load_upto(delta + t * stride + 16 * c, lanes));
        }
        UNROLL
        for (int c = 0; c < vectors; c++)
            v_store_upto(state + 16 * c, lanes, s[c]);
    }
}

static void k_replay(float *state, int dk, int dv, int rows, const float *k, const float *delta,
                     const float *alpha, int64_t stride)
{
    int j = 0;
    for (; j + 16 * V_SCAN <= dv; j += 16 * V_SCAN)
        replay_columns(state + j, dk, dv, rows, k, delta + j, alpha, stride, V_SCAN, 16);
#if V_SCAN > 1
    for (; j + 16 <= dv; j += 16)
        replay_columns(state + j, dk, dv, rows, k, delta + j, alpha, stride, 1, 16);
#endif
    if (j < dv)
        replay_columns(state + j, dk, dv, rows, k, delta + j, alpha, stride, 1, dv - j);
}

static void k_gated_norm(float *y, const float *norm, float eps, const float *z, int n)
{
    struct v16 scale = v_set1(1.0f / sqrtf(sum_of_squares(y, n) / (float)n + eps));
    for (int i = 0; i < n; i += 16) {
        struct v16 v = v_mul(v_load_upto(y + i, n - i), scale);
        v = v_mul(v, v_load_upto(norm + i, n - i));
        v_store_upto(y + i, n - i, v_mul(v, v_silu(v_load_upto(z + i, n - i))));
    }
}

const struct mx_cpu_kernels V_TABLE = {
    .isa = V_ISA,
    .name = "cpu/" V_ISA,
    .kv_format = V_KV_F16 ? MX_KV_F16 : MX_KV_F32,
    .direct_rows = V_DIRECT_ROWS,
    .unpack = k_unpack,
    .product = k_product,
    .direct = k_direct,
    .rmsnorm = k_rmsnorm,
    .axpy = k_axpy,
    .swiglu = k_swiglu,
    .argmax = k_argmax,
    .head = k_head,
    .kv_store = k_kv_store,
    .kv_load = k_kv_load,
    .softmax = k_softmax,
    .mix = k_mix,
    .finish = k_finish,
    .conv = k_conv,
    .unit = k_unit,
    .scan = k_scan,
    .replay = k_replay,
    .gated_norm = k_gated_norm,
};
