/* Repacking into panels (panels.h). Portable C: packing runs once at load, at memory speed or
 * nearly so. */
#include "device/cpu/panels.h"

#include "base/half.h"
#include "device/common.h"
#include "format/gguf_quant.h"
#include "format/mlxq.h"

#include <string.h>

enum {
    OUTS = MX_PANEL_OUTS,
    STEPS = MX_PANEL_BLOCK / 4,
    STEP_BYTES = 4 * OUTS,
    SUPER_BLOCKS = 4, /* blocks between two headers of SUPER kinds */
};

/* ---- Layout ------------------------------------------------------------------------------- */

static bool gguf_layout(int type, struct mx_panels *p)
{
    p->subs = 2;
    p->scaling = MX_PANEL_SCALED;
    switch (type) {
    case MX_GGUF_Q4_0: p->bits = 4; return true;
    case MX_GGUF_Q5_0:
        p->bits = 5;
        p->zero_shift = 1;
        return true;
    case MX_GGUF_Q8_0:
        p->bits = 8;
        p->zero_shift = 4;
        return true;
    case MX_GGUF_Q4_1:
    case MX_GGUF_Q5_1:
        p->bits = type == MX_GGUF_Q4_1 ? 4 : 5;
        p->scaling = MX_PANEL_AFFINE;
        return true;
    case MX_GGUF_Q4_K:
    case MX_GGUF_Q5_K:
        p->bits = type == MX_GGUF_Q4_K ? 4 : 5;
        p->scaling = MX_PANEL_SUPER;
        return true;
    case MX_GGUF_Q6_K:
        p->bits = 6;
        p->scaling = MX_PANEL_SUPER6;
        p->subs = 4;
        p->zero_shift = 2;
        return true;
    default: return false;
    }
}

static size_t scale_bytes(const struct mx_panels *p)
{
    switch (p->scaling) {
    case MX_PANEL_AFFINE: return (size_t)p->subs * OUTS * 4;
    case MX_PANEL_SCALED: return (size_t)p->subs * OUTS * 2;
    case MX_PANEL_SUPER: return (size_t)p->subs * OUTS * 2;
    case MX_PANEL_SUPER6: return (size_t)p->subs * OUTS;
    }
    return 0;
}

bool mx_panels_layout(const struct mx_weight *w, struct mx_panels *p)
{
    *p = (struct mx_panels){.out = w->out, .in = w->in};
    if (w->kind == MX_W_MLXQ && w->sdtype != MX_F32) {
        p->bits = w->bits;
        p->scaling = MX_PANEL_AFFINE;
        p->subs = w->group == 32 ? 2 : 1;
        p->bf16 = w->sdtype == MX_BF16;
    } else if (w->kind != MX_W_GGUF || !gguf_layout(w->gguf_type, p)) {
        return false;
    }
    bool super = p->scaling == MX_PANEL_SUPER || p->scaling == MX_PANEL_SUPER6;
    p->count = (w->out + OUTS - 1) / OUTS;
    p->blocks = mx_q8_blocks(w->in);
    p->header_bytes = super ? 64 : 0;
    p->block_bytes = (size_t)p->bits * STEPS * STEP_BYTES / 8 + scale_bytes(p);
    p->panel_bytes =
        (size_t)p->blocks * p->block_bytes + (size_t)(p->blocks / SUPER_BLOCKS) * p->header_bytes;
    return true;
}

/* ---- One block of one output ------------------------------------------------------------------
 */

/* The 64 codes of one output in a block, and its scales as stored or, for SUPER kinds, bytes. */
struct column {
    uint8_t code[MX_PANEL_BLOCK];
    uint16_t scale[2], bias[2];
    uint8_t sub_scale[4], sub_min[2];
    uint16_t d, dmin;
};

static uint16_t half_at(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

/* n codes of a row from k0 on, which is a multiple of 32. */
static void mlx_codes(const uint8_t *row, int bits, int64_t k0, int n, uint8_t *code)
{
    if (bits == 8) {
        memcpy(code, row + k0, (size_t)n);
    } else if (bits == 4) {
        for (int i = 0; i < n / 2; i++) {
            code[2 * i] = row[k0 / 2 + i] & 15;
            code[2 * i + 1] = row[k0 / 2 + i] >> 4;
        }
    } else {
        mx_mlxq_unpack(row, bits, k0, n, code);
    }
}

static void mlx_column(const struct mx_weight *w, int64_t row, int64_t block, struct column *c)
{
    int64_t k0 = block * MX_PANEL_BLOCK, left = w->in - k0;
    int n = left < MX_PANEL_BLOCK ? (int)left : MX_PANEL_BLOCK;
    const uint8_t *codes = w->data;
    mlx_codes(codes + (size_t)row * mx_mlxq_row_bytes(w->bits, w->in), w->bits, k0, n, c->code);
    int subs = w->group == 32 ? (n + 31) / 32 : 1;
    int64_t g = (row * w->in + k0) / w->group;
    for (int s = 0; s < subs; s++) {
        c->scale[s] = half_at((const uint8_t *)w->scales + 2 * (g + s));
        c->bias[s] = half_at((const uint8_t *)w->biases + 2 * (g + s));
    }
}

/* 32 nibbles with value j in the low and j + 16 in the high half of byte j; `high` are bits 4. */
static void nibble_codes(const uint8_t *q, uint32_t high, uint8_t *code)
{
    for (int j = 0; j < 16; j++) {
        code[j] = (uint8_t)((q[j] & 15) | (high >> j & 1) << 4);
        code[j + 16] = (uint8_t)(q[j] >> 4 | (high >> (j + 16) & 1) << 4);
    }
}

static uint32_t word_at(const uint8_t *p)
{
    return (uint32_t)half_at(p) | (uint32_t)half_at(p + 2) << 16;
}

/* One GGUF block of 32 values into half a column. */
static void gguf32(int type, const uint8_t *b, int s, struct column *c)
{
    uint8_t *code = c->code + 32 * s;
    bool biased = type == MX_GGUF_Q4_1 || type == MX_GGUF_Q5_1;
    bool fifth = type == MX_GGUF_Q5_0 || type == MX_GGUF_Q5_1;
    c->scale[s] = half_at(b);
    c->bias[s] = biased ? half_at(b + 2) : 0;
    b += biased ? 4 : 2;
    if (type == MX_GGUF_Q8_0) {
        for (int j = 0; j < 32; j++)
            code[j] = b[j] ^ 0x80;
        return;
    }
    nibble_codes(b + (fifth ? 4 : 0), fifth ? word_at(b) : 0, code);
}

/* Quarter `part` of a block of Q4_K or Q5_K. */
static void gguf_k45(bool five, const uint8_t *b, int part, struct column *c)
{
    const uint8_t *s = b + 4, *high = b + 16, *q = b + (five ? 48 : 16) + 32 * part;
    c->d = half_at(b);
    c->dmin = half_at(b + 2);
    for (int i = 0; i < 2; i++) {
        int j = 2 * part + i;
        c->sub_scale[i] = (uint8_t)(j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        c->sub_min[i] = (uint8_t)(j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4);
    }
    for (int l = 0; l < 32; l++) {
        c->code[l] = q[l] & 15;
        c->code[l + 32] = q[l] >> 4;
    }
    for (int l = 0; five && l < 32; l++) {
        c->code[l] |= (uint8_t)((high[l] >> (2 * part) & 1) << 4);
        c->code[l + 32] |= (uint8_t)((high[l] >> (2 * part + 1) & 1) << 4);
    }
}

/* Quarter `part` of a block of Q6_K: values 64 part .. 64 part + 63. */
static void gguf_k6(const uint8_t *b, int part, struct column *c)
{
    const uint8_t *low = b + 64 * (part / 2), *high = b + 128 + 32 * (part / 2);
    bool upper = part % 2 != 0;
    c->d = half_at(b + 208);
    memcpy(c->sub_scale, b + 192 + 4 * part, 4);
    for (int v = 0; v < 64; v++) {
        int l = v % 32, p = 2 * upper + v / 32;
        uint8_t q = low[l + 32 * (p % 2)];
        c->code[v] = (uint8_t)((upper ? q >> 4 : q & 15) | (high[l] >> (2 * p) & 3) << 4);
    }
}

static void gguf_column(const struct mx_weight *w, int64_t row, int64_t block, struct column *c)
{
    int type = w->gguf_type;
    const uint8_t *base = w->data;
    base += (size_t)row * mx_gguf_row_bytes(type, w->in);
    size_t bytes = (size_t)mx_gguf_block_bytes(type);
    if (mx_gguf_block_values(type) == 32) {
        int64_t all = w->in / 32;
        for (int s = 0; s < 2 && 2 * block + s < all; s++)
            gguf32(type, base + (size_t)(2 * block + s) * bytes, s, c);
        return;
    }
    const uint8_t *b = base + (size_t)(block / SUPER_BLOCKS) * bytes;
    int part = (int)(block % SUPER_BLOCKS);
    if (type == MX_GGUF_Q6_K)
        gguf_k6(b, part, c);
    else
        gguf_k45(type == MX_GGUF_Q5_K, b, part, c);
}

/* ---- Codes to planes --------------------------------------------------------------------------
 */

/* Bits shift .. shift + width of all codes into 64 / (8 / width) / 4 vectors. */
static uint8_t *write_plane(const uint8_t *steps, int shift, int width, uint8_t *out)
{
    int per = 8 / width, vectors = STEPS / per;
    unsigned mask = (1u << width) - 1;
    for (int v = 0; v < vectors; v++, out += STEP_BYTES) {
        const uint8_t *from = steps + v * per * STEP_BYTES;
        for (int i = 0; i < STEP_BYTES; i++) {
            unsigned byte = 0;
            for (int s = 0; s < per; s++)
                byte |= (from[s * STEP_BYTES + i] >> shift & mask) << (s * width);
            out[i] = (uint8_t)byte;
        }
    }
    return out;
}

static uint8_t *write_codes(const uint8_t *steps, int bits, uint8_t *out)
{
    switch (bits) {
    case 2: return write_plane(steps, 0, 2, out);
    case 3: return write_plane(steps, 2, 1, write_plane(steps, 0, 2, out));
    case 4: return write_plane(steps, 0, 4, out);
    case 5: return write_plane(steps, 4, 1, write_plane(steps, 0, 4, out));
    case 6: return write_plane(steps, 4, 2, write_plane(steps, 0, 4, out));
    default: memcpy(out, steps, STEPS * STEP_BYTES); return out + STEPS * STEP_BYTES;
    }
}

static void put_half(uint8_t *out, int o, uint16_t h)
{
    out[2 * o] = (uint8_t)h;
    out[2 * o + 1] = (uint8_t)(h >> 8);
}

static void write_scales(const struct mx_panels *p, const struct column *c, uint8_t *out)
{
    for (int s = 0; s < p->subs; s++) {
        for (int o = 0; o < OUTS; o++) {
            switch (p->scaling) {
            case MX_PANEL_AFFINE:
                put_half(out + 4 * OUTS * s, o, c[o].scale[s]);
                put_half(out + 4 * OUTS * s + 2 * OUTS, o, c[o].bias[s]);
                break;
            case MX_PANEL_SCALED: put_half(out + 2 * OUTS * s, o, c[o].scale[s]); break;
            case MX_PANEL_SUPER:
                out[2 * OUTS * s + o] = c[o].sub_scale[s];
                out[2 * OUTS * s + OUTS + o] = c[o].sub_min[s];
                break;
            case MX_PANEL_SUPER6: out[OUTS * s + o] = c[o].sub_scale[s]; break;
            }
        }
    }
}

static void write_header(const struct column *c, uint8_t *out)
{
    for (int o = 0; o < OUTS; o++) {
        put_half(out, o, c[o].d);
        put_half(out + 2 * OUTS, o, c[o].dmin);
    }
}

static void pack_panel(const struct mx_weight *w, const struct mx_panels *p, int64_t panel)
{
    struct column columns[OUTS];
    uint8_t steps[STEPS * STEP_BYTES];
    uint8_t *out = p->data + (size_t)panel * p->panel_bytes;
    int64_t first = panel * OUTS;
    int outs = p->out - first < OUTS ? (int)(p->out - first) : OUTS;
    for (int64_t b = 0; b < p->blocks; b++) {
        memset(columns, 0, sizeof columns);
        for (int o = 0; o < outs; o++) {
            if (w->kind == MX_W_GGUF)
                gguf_column(w, first + o, b, &columns[o]);
            else
                mlx_column(w, first + o, b, &columns[o]);
        }
        for (int s = 0; s < STEPS; s++)
            for (int o = 0; o < OUTS; o++)
                memcpy(steps + s * STEP_BYTES + 4 * o, columns[o].code + 4 * s, 4);
        if (p->header_bytes && b % SUPER_BLOCKS == 0) {
            write_header(columns, out);
            out += p->header_bytes;
        }
        out = write_codes(steps, p->bits, out);
        write_scales(p, columns, out);
        out += scale_bytes(p);
    }
}

void mx_panels_pack(const struct mx_weight *w, const struct mx_panels *p, int64_t first, int64_t n)
{
    for (int64_t i = first; i < first + n; i++)
        pack_panel(w, p, i);
}
