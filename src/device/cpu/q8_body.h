/* The int8 kernels, over a small vocabulary that the including file (q8_<isa>.c) defines:
 *
 *   Q_LANES                 outputs of a vector: 16, 8 or 4
 *   Q_ROWS                  most rows in registers at a time
 *   struct qw               Q_LANES * 4 bytes of codes: output by output, 4 inputs each
 *     w_load(p), w_and(w, mask byte), w_or(a, b)
 *     w_down(w, n), w_up(w, n)   shifts; bits that cross bytes are masked away afterwards
 *   struct qi               running integer sums of Q_LANES outputs
 *     i_start(n)            n in every lane
 *     i_dot(bits, acc, w, x)   acc += codes . the 4 signed bytes at x, per output; with
 *                           Q_SIGNED, codes of 8 bits count as signed, 128 less
 *     i_flush(bits, acc)    called every Q_FLUSH(bits) steps, a power of two
 *     i_float(acc)
 *   struct qf               Q_LANES floats
 *     f_zero, f_set1, f_mul, f_fma, f_store, f_store_n
 *     f_half(bf16, p)       Q_LANES stored 16-bit floats
 *     f_u8(p), f_i8(p)      Q_LANES bytes
 *   Q_SIGNED                see i_dot
 *   Q_NAME, Q_TABLE         "vnni", the table to define
 *   q8_quantise             the kernel of panels.h
 *
 * Lanes are outputs and groups are taken in ascending order, so the result is the definition in
 * panels.h whatever Q_LANES, Q_ROWS and Q_FLUSH are. */
#include "device/cpu/q8_shape.h"

/* One block of 64 inputs into the accumulators of all rows. */
ALWAYS void block_rows(struct q8_shape sh, bool bf16, const uint8_t *p, int lane, struct qf d,
                       struct qf dmin, const struct mx_q8_block *x, int64_t ldx, struct qf *acc)
{
    UNROLL
    for (int s = 0; s < sh.subs; s++) {
        struct qi sum[Q_ROWS];
        UNROLL
        for (int r = 0; r < sh.rows; r++)
            sum[r] = i_start(zero_term(sh, x + r * ldx, s));
        UNROLL
        for (int j = 0; j < STEPS / sh.subs; j++) {
            int i = s * (STEPS / sh.subs) + j;
            struct qw w = step_codes(sh.bits, p + 4 * lane, i);
            UNROLL
            for (int r = 0; r < sh.rows; r++)
                sum[r] = i_dot(sh.bits, sum[r], w, x[r * ldx].code + 4 * i);
            if ((j + 1) % Q_FLUSH(sh.bits) == 0 || j + 1 == STEPS / sh.subs) {
                UNROLL
                for (int r = 0; r < sh.rows; r++)
                    sum[r] = i_flush(sh.bits, sum[r]);
            }
        }
        struct q8_scales w = load_scales(sh, bf16, p + code_bytes(sh.bits), s, lane, d, dmin);
        int g = sh.subs == 4 ? s / 2 : s;
        UNROLL
        for (int r = 0; r < sh.rows; r++) {
            const struct mx_q8_block *xr = x + r * ldx;
            struct qf f = i_float(sum[r]);
            acc[r] = f_fma(f_mul(w.scale, f_set1(xr->scale[g])), f, acc[r]);
            if (sh.scaling == MX_PANEL_AFFINE || sh.scaling == MX_PANEL_SUPER)
                acc[r] = f_fma(w.bias, f_set1(xr->sum[g]), acc[r]);
        }
    }
}

/* Asks for the lines of the block that comes AHEAD bytes later. */
#define AHEAD 8192
ALWAYS void fetch_block(const uint8_t *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        __builtin_prefetch((const void *)((uintptr_t)p + AHEAD + i));
}

/* Q_LANES outputs of a panel, all rows. */
ALWAYS void panel_lanes(struct q8_shape sh, const struct mx_panels *p, const uint8_t *at, int lane,
                        const struct mx_q8_block *x, int64_t ldx, struct qf *acc)
{
    bool super = sh.scaling == MX_PANEL_SUPER || sh.scaling == MX_PANEL_SUPER6;
    struct qf d = f_zero(), dmin = f_zero();
    size_t bytes = p->block_bytes;
    UNROLL
    for (int r = 0; r < sh.rows; r++)
        acc[r] = f_zero();
    for (int64_t b = 0; b < p->blocks; b++, x++, at += bytes) {
        if (super && b % SUPER_BLOCKS == 0) {
            d = f_half(false, at + 2 * lane);
            if (sh.scaling == MX_PANEL_SUPER)
                dmin = f_mul(f_set1(-1.0f), f_half(false, at + 2 * (MX_PANEL_OUTS + lane)));
            at += p->header_bytes;
        }
        if (lane == 0)
            fetch_block(at, bytes);
        block_rows(sh, p->bf16, at, lane, d, dmin, x, ldx, acc);
    }
}

ALWAYS void panels_rows(struct q8_shape sh, const struct mx_panels *p, int64_t first, int64_t n,
                        const struct mx_q8_block *x, int64_t ldx, float *y, int64_t ldy)
{
    for (int64_t i = first; i < first + n; i++) {
        const uint8_t *at = p->data + (size_t)i * p->panel_bytes;
        for (int lane = 0; lane < MX_PANEL_OUTS; lane += Q_LANES) {
            struct qf acc[Q_ROWS];
            int64_t o = i * MX_PANEL_OUTS + lane, left = p->out - o;
            if (left <= 0)
                break;
            panel_lanes(sh, p, at, lane, x, ldx, acc);
            UNROLL
            for (int r = 0; r < sh.rows; r++) {
                if (left >= Q_LANES)
                    f_store(y + r * ldy + o, acc[r]);
                else
                    f_store_n(y + r * ldy + o, (int)left, acc[r]);
            }
        }
    }
}

/* ---- Instances ---------------------------------------------------------------------------------
 */

typedef void rows_fn(const struct mx_panels *p, int64_t first, int64_t n,
                     const struct mx_q8_block *x, int64_t ldx, float *y, int64_t ldy);

#define INSTANCE(name, b, sc, su, z, r)                                                            \
    static void name##_##r(const struct mx_panels *p, int64_t first, int64_t n,                    \
                           const struct mx_q8_block *x, int64_t ldx, float *y, int64_t ldy)        \
    {                                                                                              \
        panels_rows((struct q8_shape){b, sc, su, z, r}, p, first, n, x, ldx, y, ldy);              \
    }

/* Tables are indexed by rows. */
#if Q_ROWS == 8
#define FORMAT(name, b, sc, su, z)                                                                 \
    INSTANCE(name, b, sc, su, z, 1)                                                                \
    INSTANCE(name, b, sc, su, z, 2)                                                                \
    INSTANCE(name, b, sc, su, z, 3)                                                                \
    INSTANCE(name, b, sc, su, z, 4)                                                                \
    INSTANCE(name, b, sc, su, z, 5)                                                                \
    INSTANCE(name, b, sc, su, z, 6)                                                                \
    INSTANCE(name, b, sc, su, z, 7)                                                                \
    INSTANCE(name, b, sc, su, z, 8)                                                                \
    static rows_fn *const name[Q_ROWS + 1] = {NULL,     name##_1, name##_2, name##_3, name##_4,    \
                                              name##_5, name##_6, name##_7, name##_8};
#else
#define FORMAT(name, b, sc, su, z)                                                                 \
    INSTANCE(name, b, sc, su, z, 1)                                                                \
    INSTANCE(name, b, sc, su, z, 2)                                                                \
    INSTANCE(name, b, sc, su, z, 3)                                                                \
    INSTANCE(name, b, sc, su, z, 4)                                                                \
    static rows_fn *const name[Q_ROWS + 1] = {NULL, name##_1, name##_2, name##_3, name##_4};
#endif

#define FORMAT_ENTRY rows_fn *const *
#include "device/cpu/q8_formats.h"

/* A panel of many rows stays in the nearest cache that holds it, so rows are the inner loop. */
static void q8_product(const struct mx_panels *p, int64_t first, int64_t n,
                       const struct mx_q8_block *q, int64_t ldq, int rows, float *y, int64_t ldy)
{
    rows_fn *const *table = format_entry(p);
    int64_t run = rows > Q_ROWS ? 1 : n;
    for (int64_t i = first; i < first + n; i += run) {
        for (int r = 0; r < rows; r += Q_ROWS) {
            int part = rows - r < Q_ROWS ? rows - r : Q_ROWS;
            table[part](p, i, run, q + r * ldq, ldq, y + r * ldy, ldy);
        }
    }
}

const struct mx_q8_kernels Q_TABLE = {
    .name = Q_NAME,
    .quantise = q8_quantise,
    .product = q8_product,
};
