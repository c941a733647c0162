/* Rows of a tensor as stored bytes.
 *
 * 1. A row is first a line of -1, 0, 1 or "random" (ternary_row), then bytes. Random runs cover
 *    whole blocks: their codes are random bits under fixed scales that give the wanted size.
 * 2. In every format one code step of a meaningful block is a power of two, so 0 is stored as 0 and
 *    1 as the largest code: 7/8 in 4 bits, 127/128 in 8, 1 in a float. Norms take the factor out
 *    where it matters.
 * 3. Block layouts are GGUF's (ggml's block_q*) and MLX's affine groups. */
#include "synth.h"

#include "base/half.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Ternary rows -----------------------------------------------------------------------------
 */

static void gate_row(const struct synth_code *c, bool mode, int8_t *out)
{
    memset(out, 0, (size_t)c->hidden);
    memset(out + c->hidden - MODE_DIMS - CONST_DIMS, 1, CONST_DIMS);
    if (mode)
        memset(out + c->hidden - MODE_DIMS, -1, MODE_DIMS);
}

/* Row of S; elements outside the patterns are dropped, or kept as they are. */
static void step_row(const struct synth_code *c, int64_t row, bool keep_rest, int8_t *out)
{
    memset(out, 0, (size_t)c->hidden);
    int from = c->from[row];
    if (from >= 0)
        out[from] = 1;
    else if (keep_rest)
        out[row] = 1;
}

static void ternary_row(const struct synth_code *c, const struct synth_tensor *t, int64_t row,
                        int8_t *out)
{
    memset(out, TERNARY_NOISE, (size_t)t->cols);
    switch (t->role) {
    case ROLE_EMBED: synth_code_token(c, row, out); break;
    case ROLE_OPEN_GATE:
    case ROLE_MODE_GATE:
        if (row < c->hidden)
            gate_row(c, t->role == ROLE_MODE_GATE, out);
        break;
    case ROLE_STEP:
        if (row < c->hidden)
            step_row(c, row, false, out);
        break;
    case ROLE_IDENTITY:
        memset(out, 0, (size_t)c->hidden);
        out[row] = 1;
        break;
    case ROLE_FC: step_row(c, row, true, out); break;
    case ROLE_NOISE:
    case ROLE_FILL: break;
    }
}

/* ---- Random bits ------------------------------------------------------------------------------
 */

static uint64_t next_random(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void fill_random(uint64_t *state, uint8_t *out, size_t n)
{
    for (; n >= 8; n -= 8, out += 8) {
        uint64_t r = next_random(state);
        memcpy(out, &r, 8);
    }
    uint64_t r = next_random(state);
    memcpy(out, &r, n);
}

/* ---- Floats -----------------------------------------------------------------------------------
 */

/* Random sign and mantissa under one exponent: [1, 2) * 2^e, root mean square 1.53 * 2^e. */
static float random_float(uint64_t *state, float rms)
{
    uint64_t r = next_random(state);
    float v = ldexpf(1 + (float)(r >> 41) * 0x1p-23f, (int)lrintf(log2f(rms / 1.53f)));
    return r & 1 ? v : -v;
}

/* The same for halves, four at a time: `top` is the wanted exponent, shifted into place. */
static void random_halves(uint64_t *state, int mantissa_bits, unsigned top, size_t n, uint8_t *out)
{
    uint64_t mask = 0x8000u | ((1u << mantissa_bits) - 1), exponent = top;
    mask |= mask << 16;
    mask |= mask << 32;
    exponent |= exponent << 16;
    exponent |= exponent << 32;
    for (size_t i = 0; i < n; i += 4) {
        uint64_t r = (next_random(state) & mask) | exponent;
        memcpy(out + 2 * i, &r, 2 * (n - i < 4 ? n - i : 4));
    }
}

static void put_u16(uint8_t *out, uint16_t v)
{
    out[0] = (uint8_t)v;
    out[1] = (uint8_t)(v >> 8);
}

static void put_f16(uint8_t *out, float v)
{
    put_u16(out, mx_f32_to_f16(v));
}

static void put_float(enum synth_type type, uint8_t *out, float v)
{
    if (type == SYNTH_F32)
        memcpy(out, &v, 4);
    else
        put_u16(out, type == SYNTH_F16 ? mx_f32_to_f16(v) : mx_f32_to_bf16(v));
}

static void encode_halves(struct synth_encoder *e, const struct synth_tensor *t, float rms,
                          uint8_t *out)
{
    int exponent = (int)lrintf(log2f(rms / 1.53f));
    bool f16 = t->type == SYNTH_F16;
    unsigned top = f16 ? (unsigned)(15 + exponent) << 10 : (unsigned)(127 + exponent) << 7;
    for (int64_t at = 0; at < t->cols;) {
        int64_t n = 0;
        while (at + n < t->cols && e->ternary[at + n] == TERNARY_NOISE)
            n++;
        random_halves(&e->random, f16 ? 10 : 7, top, (size_t)n, out + 2 * at);
        for (at += n; at < t->cols && e->ternary[at] != TERNARY_NOISE; at++)
            put_float(t->type, out + 2 * at, (float)e->ternary[at]);
    }
}

/* Vectors: one value, or random. */
static void encode_floats(struct synth_encoder *e, const struct synth_tensor *t, float rms,
                          uint8_t *out)
{
    size_t size = t->type == SYNTH_F32 ? 4 : 2;
    for (int64_t i = 0; i < t->cols; i++)
        put_float(t->type, out + size * (size_t)i,
                  t->role == ROLE_FILL ? t->gain : random_float(&e->random, rms));
}

/* ---- GGUF blocks ------------------------------------------------------------------------------
 */

/* Of a meaningful block: 1 is stored as code `zero` + `one` (offset formats) times 1 / (one + 1).
 * Of a random one: root mean square of the codes about their middle. */
static float step_of(bool noise, int one, float code_rms, float rms)
{
    return noise ? rms / code_rms : 1.0f / (float)(one + 1);
}

static void block_q4_0(bool noise, float rms, const int8_t *v, uint8_t *out)
{
    put_f16(out, step_of(noise, 7, 4.64f, rms));
    if (noise)
        return;
    for (int i = 0; i < 16; i++)
        out[2 + i] = (uint8_t)((8 + 7 * v[i]) | (8 + 7 * v[i + 16]) << 4);
}

static void block_q8_0(bool noise, float rms, const int8_t *v, uint8_t *out)
{
    put_f16(out, step_of(noise, 127, 73.9f, rms));
    if (noise)
        return;
    for (int i = 0; i < 32; i++)
        out[2 + i] = (uint8_t)(int8_t)(127 * v[i]);
}

/* Head of a Q4_K or Q5_K block: d, dmin and all eight 6-bit scales and minima at 32. */
static void put_k_scales(float step, float middle, uint8_t *out)
{
    put_f16(out, step / 32);
    put_f16(out + 2, step * middle / 32);
    memset(out + 4, 0xa0, 8); /* low six bits 32; upper two: the high bits of scales 4..7 */
    memset(out + 12, 0, 4);   /* low four bits of scales and minima 4..7 */
}

static void block_q4_k(bool noise, float rms, const int8_t *v, uint8_t *out)
{
    put_k_scales(step_of(noise, 7, 4.61f, rms), noise ? 7.5f : 7, out);
    if (noise)
        return;
    for (int c = 0; c < 4; c++, v += 64)
        for (int i = 0; i < 32; i++)
            out[16 + 32 * c + i] = (uint8_t)((7 + 7 * v[i]) | (7 + 7 * v[i + 32]) << 4);
}

static void block_q5_k(bool noise, float rms, const int8_t *v, uint8_t *out)
{
    put_k_scales(step_of(noise, 15, 9.23f, rms), noise ? 15.5f : 15, out);
    if (noise)
        return;
    memset(out + 16, 0, 32);
    for (int c = 0; c < 4; c++, v += 64)
        for (int i = 0; i < 32; i++) {
            int low = 15 + 15 * v[i], high = 15 + 15 * v[i + 32];
            out[48 + 32 * c + i] = (uint8_t)((low & 15) | (high & 15) << 4);
            out[16 + i] |= (uint8_t)((low >> 4) << (2 * c) | (high >> 4) << (2 * c + 1));
        }
}

static void block_q6_k(bool noise, float rms, const int8_t *v, uint8_t *out)
{
    memset(out + 192, 32, 16);
    put_f16(out + 208, step_of(noise, 31, 18.5f, rms) / 32);
    if (noise)
        return;
    for (int h = 0; h < 2; h++, v += 128) {
        uint8_t *ql = out + 64 * h, *qh = out + 128 + 32 * h;
        for (int i = 0; i < 32; i++) {
            int a = 32 + 31 * v[i], b = 32 + 31 * v[i + 32], c = 32 + 31 * v[i + 64],
                d = 32 + 31 * v[i + 96];
            ql[i] = (uint8_t)((a & 15) | (c & 15) << 4);
            ql[i + 32] = (uint8_t)((b & 15) | (d & 15) << 4);
            qh[i] = (uint8_t)(a >> 4 | (b >> 4) << 2 | (c >> 4) << 4 | (d >> 4) << 6);
        }
    }
}

typedef void block_fn(bool noise, float rms, const int8_t *v, uint8_t *out);

static const struct {
    int elements;
    size_t bytes;
    block_fn *encode;
} blocks[] = {
    [SYNTH_F32] = {1, 4, NULL},
    [SYNTH_F16] = {1, 2, NULL},
    [SYNTH_BF16] = {1, 2, NULL},
    [SYNTH_Q4_0] = {32, 18, block_q4_0},
    [SYNTH_Q8_0] = {32, 34, block_q8_0},
    [SYNTH_Q4_K] = {256, 144, block_q4_k},
    [SYNTH_Q5_K] = {256, 176, block_q5_k},
    [SYNTH_Q6_K] = {256, 210, block_q6_k},
    [SYNTH_MLX] = {32, 0, NULL},
};

int synth_block(enum synth_type type, size_t *bytes)
{
    if (bytes)
        *bytes = blocks[type].bytes;
    return blocks[type].elements;
}

static void encode_blocks(struct synth_encoder *e, const struct synth_tensor *t, float rms,
                          uint8_t *out)
{
    int n = blocks[t->type].elements;
    fill_random(&e->random, out, synth_row_bytes(t, e->mlx, PART_DATA));
    for (int64_t at = 0; at < t->cols; at += n, out += blocks[t->type].bytes)
        blocks[t->type].encode(e->ternary[at] == TERNARY_NOISE, rms, e->ternary + at, out);
}

/* ---- MLX groups -------------------------------------------------------------------------------
 */

/* Codes 0..2^bits - 1; w = scale * code + bias. Meaningful groups use codes 0, one and 2 one. */
static void encode_mlx_codes(struct synth_encoder *e, const struct synth_tensor *t, uint8_t *out)
{
    int one = (1 << (e->mlx.bits - 1)) - 1;
    fill_random(&e->random, out, synth_row_bytes(t, e->mlx, PART_DATA));
    for (int64_t at = 0; at < t->cols; at += e->mlx.group) {
        if (e->ternary[at] == TERNARY_NOISE)
            continue;
        for (int64_t i = at; i < at + e->mlx.group; i++) {
            int code = one + one * e->ternary[i];
            if (e->mlx.bits == 8)
                out[i] = (uint8_t)code;
            else
                out[i / 2] = (uint8_t)(i % 2 ? (out[i / 2] & 15) | code << 4 : code);
        }
    }
}

static void encode_mlx_scales(const struct synth_encoder *e, const struct synth_tensor *t,
                              float rms, bool biases, uint8_t *out)
{
    int one = (1 << (e->mlx.bits - 1)) - 1;
    float middle = (float)one + 0.5f, code_rms = e->mlx.bits == 8 ? 73.9f : 4.61f;
    for (int64_t at = 0; at < t->cols; at += e->mlx.group, out += 2) {
        bool noise = e->ternary[at] == TERNARY_NOISE;
        float scale = mx_bf16_to_f32(mx_f32_to_bf16(step_of(noise, one, code_rms, rms)));
        float bias = -scale * (noise ? middle : (float)one);
        put_u16(out, mx_f32_to_bf16(biases ? bias : scale));
    }
}

/* ---- Rows and tensors -------------------------------------------------------------------------
 */

size_t synth_row_bytes(const struct synth_tensor *t, struct synth_mlx mlx, enum synth_part part)
{
    size_t cols = (size_t)t->cols;
    if (t->type != SYNTH_MLX)
        return cols / (size_t)blocks[t->type].elements * blocks[t->type].bytes;
    return part == PART_DATA ? cols * (size_t)mlx.bits / 8 : cols / (size_t)mlx.group * 2;
}

void synth_encode_row(struct synth_encoder *e, const struct synth_tensor *t, int64_t row,
                      enum synth_part part, uint8_t *out)
{
    float rms = t->gain / sqrtf((float)t->cols);
    ternary_row(e->code, t, row, e->ternary);
    if (t->type == SYNTH_MLX && part == PART_DATA)
        encode_mlx_codes(e, t, out);
    else if (t->type == SYNTH_MLX)
        encode_mlx_scales(e, t, rms, part == PART_BIASES, out);
    else if (blocks[t->type].encode)
        encode_blocks(e, t, rms, out);
    else if (t->role == ROLE_FILL || t->type == SYNTH_F32)
        encode_floats(e, t, rms, out);
    else
        encode_halves(e, t, rms, out);
}

/* Rows are gathered to this size before they are written. */
#define WRITE_BYTES ((size_t)1 << 20)

mtplx_status synth_write_tensor(struct synth_encoder *e, const struct synth_tensor *t,
                                enum synth_part part, FILE *f, const char *path, mtplx_error *err)
{
    size_t bytes = synth_row_bytes(t, e->mlx, part);
    int64_t together = bytes < WRITE_BYTES ? (int64_t)(WRITE_BYTES / bytes) : 1;
    uint8_t *rows = malloc((size_t)together * bytes);
    if (!rows)
        return mx_error_nomem(err, "rows", (size_t)together * bytes);
    mtplx_status status = MTPLX_OK;
    for (int64_t i = 0; i < t->rows && status == MTPLX_OK; i += together) {
        int64_t n = t->rows - i < together ? t->rows - i : together;
        for (int64_t j = 0; j < n; j++)
            synth_encode_row(e, t, i + j, part, rows + (size_t)j * bytes);
        if (fwrite(rows, bytes, (size_t)n, f) != (size_t)n)
            status = mx_error(err, MTPLX_ERR_IO, "%s: cannot write; is the disk full?", path);
    }
    free(rows);
    return status;
}
