/* GGUF block quantisation: de-quantiser and quantisers.
 *
 * De-quantising. A binary16 scale has 11 significant bits, a sub-block scale at most 7 and a code
 * at most 7, so every product is exact in float32; only the subtraction of a minimum rounds. Any
 * order of evaluation gives the same bits, which lets kernels reorder.
 *
 * Quantising. Each block or sub-block picks the grid that spans its extremes, rounds the grid to
 * what the format stores and then the codes to the stored grid, so that scale rounding is not paid
 * twice. No search: these serve tests, benchmarks and synthetic files. */
#include "format/gguf_quant.h"

#include "base/half.h"

#include <math.h>
#include <string.h>

enum { SUPER = 256, SMALL = 32 };

/* ---- Types -------------------------------------------------------------------------------- */

struct type_info {
    const char *name;
    int values, bytes;
};

static const struct type_info types[] = {
    [MX_GGUF_F32] = {"F32", 0, 0},
    [MX_GGUF_F16] = {"F16", 0, 0},
    [MX_GGUF_Q4_0] = {"Q4_0", SMALL, 18},
    [MX_GGUF_Q4_1] = {"Q4_1", SMALL, 20},
    [MX_GGUF_Q5_0] = {"Q5_0", SMALL, 22},
    [MX_GGUF_Q5_1] = {"Q5_1", SMALL, 24},
    [MX_GGUF_Q8_0] = {"Q8_0", SMALL, 34},
    [9] = {"Q8_1", 0, 0},
    [MX_GGUF_Q2_K] = {"Q2_K", SUPER, 84},
    [MX_GGUF_Q3_K] = {"Q3_K", SUPER, 110},
    [MX_GGUF_Q4_K] = {"Q4_K", SUPER, 144},
    [MX_GGUF_Q5_K] = {"Q5_K", SUPER, 176},
    [MX_GGUF_Q6_K] = {"Q6_K", SUPER, 210},
    [15] = {"Q8_K", 0, 0},
    [16] = {"IQ2_XXS", 0, 0},
    [17] = {"IQ2_XS", 0, 0},
    [18] = {"IQ3_XXS", 0, 0},
    [19] = {"IQ1_S", 0, 0},
    [MX_GGUF_IQ4_NL] = {"IQ4_NL", SMALL, 18},
    [21] = {"IQ3_S", 0, 0},
    [22] = {"IQ2_S", 0, 0},
    [MX_GGUF_IQ4_XS] = {"IQ4_XS", SUPER, 136},
    [24] = {"I8", 0, 0},
    [25] = {"I16", 0, 0},
    [26] = {"I32", 0, 0},
    [27] = {"I64", 0, 0},
    [28] = {"F64", 0, 0},
    [29] = {"IQ1_M", 0, 0},
    [MX_GGUF_BF16] = {"BF16", 0, 0},
    [34] = {"TQ1_0", 0, 0},
    [35] = {"TQ2_0", 0, 0},
    [39] = {"MXFP4", 0, 0},
    [40] = {"NVFP4", 0, 0},
    [41] = {"Q1_0", 0, 0},
    [42] = {"Q2_0", 0, 0},
};

static const struct type_info *info(int type)
{
    static const struct type_info unknown = {"unknown", 0, 0};
    bool known = type >= 0 && (size_t)type < sizeof types / sizeof *types && types[type].name;
    return known ? &types[type] : &unknown;
}

const char *mx_gguf_type_name(int type)
{
    return info(type)->name;
}

int mx_gguf_block_values(int type)
{
    return info(type)->values;
}

int mx_gguf_block_bytes(int type)
{
    return info(type)->bytes;
}

size_t mx_gguf_row_bytes(int type, int64_t in)
{
    const struct type_info *t = info(type);
    if (t->values == 0 || in <= 0 || in % t->values != 0 || in / t->values > INT64_MAX / 1024)
        return 0;
    return (size_t)(in / t->values) * (size_t)t->bytes;
}

/* ---- De-quantising ------------------------------------------------------------------------ */

static float half_at(const uint8_t *p)
{
    return mx_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

static uint32_t u32_at(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Blocks of 32 four- or five-bit codes: w = d * (code - centre) + m. */
static void dequant_small(const uint8_t *nibbles, uint32_t high, float d, int centre, float m,
                          float *out)
{
    for (int j = 0; j < 16; j++) {
        int lo = (nibbles[j] & 15) | (int)(high >> j & 1) << 4;
        int hi = nibbles[j] >> 4 | (int)(high >> (j + 16) & 1) << 4;
        out[j] = d * (float)(lo - centre) + m;
        out[j + 16] = d * (float)(hi - centre) + m;
    }
}

/* Values of the codes of IQ4_NL and IQ4_XS. */
static const int8_t nonlinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};

static void dequant_nonlinear(const uint8_t *nibbles, float d, float *out)
{
    for (int j = 0; j < 16; j++) {
        out[j] = d * (float)nonlinear[nibbles[j] & 15];
        out[j + 16] = d * (float)nonlinear[nibbles[j] >> 4];
    }
}

static void dequant_iq4_xs(const uint8_t *block, float *out)
{
    float d = half_at(block);
    int high = block[2] | block[3] << 8;
    for (int s = 0; s < 8; s++) {
        int scale = (block[4 + s / 2] >> 4 * (s % 2) & 15) | (high >> 2 * s & 3) << 4;
        dequant_nonlinear(block + 8 + 16 * s, d * (float)(scale - 32), out + 32 * s);
    }
}

static void dequant_q8_0(const uint8_t *block, float *out)
{
    float d = half_at(block);
    for (int j = 0; j < SMALL; j++)
        out[j] = d * (float)(int8_t)block[2 + j];
}

/* Sixteen values of Q2_K and Q3_K: two bits at `shift` and, with `high`, a third one at `bit`. */
static void dequant_run2(const uint8_t *codes, int shift, const uint8_t *high, int bit, float step,
                         float base, float *out)
{
    for (int l = 0; l < 16; l++) {
        int q = codes[l] >> shift & 3;
        if (high)
            q |= (high[l] >> bit & 1) << 2;
        out[l] = step * (float)q - base;
    }
}

static void dequant_q2_k(const uint8_t *block, float *out)
{
    float d = half_at(block + 80), dmin = half_at(block + 82);
    for (int s = 0; s < 16; s++)
        dequant_run2(block + 16 + 32 * (s / 8) + 16 * (s % 2), s / 2 % 4 * 2, NULL, 0,
                     d * (float)(block[s] & 15), dmin * (float)(block[s] >> 4), out + 16 * s);
}

static void dequant_q3_k(const uint8_t *block, float *out)
{
    const uint8_t *scales = block + 96;
    float d = half_at(block + 108);
    for (int s = 0; s < 16; s++) {
        int low = s < 8 ? scales[s] & 15 : scales[s - 8] >> 4;
        int scale = (low | (scales[8 + s % 4] >> 2 * (s / 4) & 3) << 4) - 32;
        float step = d * (float)scale;
        dequant_run2(block + 32 + 32 * (s / 8) + 16 * (s % 2), s / 2 % 4 * 2, block + 16 * (s % 2),
                     s / 2, step, 4 * step, out + 16 * s);
    }
}

/* Scale and min of sub-block j of Q4_K and Q5_K. */
static void scale_min(const uint8_t *s, int j, int *scale, int *min)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *min = s[j + 4] >> 4 | (s[j] >> 6) << 4;
    }
}

/* Q4_K (high == NULL) and Q5_K. */
static void dequant_k45(const uint8_t *block, const uint8_t *high, const uint8_t *nibbles,
                        float *out)
{
    float d = half_at(block), dmin = half_at(block + 2);
    for (int s = 0; s < 8; s++) {
        int scale, min;
        scale_min(block + 4, s, &scale, &min);
        float step = d * (float)scale, base = dmin * (float)min;
        for (int l = 0; l < 32; l++) {
            int q = nibbles[32 * (s / 2) + l] >> 4 * (s % 2) & 15;
            if (high)
                q |= (high[l] >> s & 1) << 4;
            out[32 * s + l] = step * (float)q - base;
        }
    }
}

/* Values 32p .. 32p+31 of one half: nibbles at `low`, shifted down by 4 for p >= 2. */
static void dequant_q6_run(const uint8_t *low, const uint8_t *high, const uint8_t *scales, float d,
                           int p, float *out)
{
    for (int s = 0; s < 2; s++) {
        float step = d * (float)(int8_t)scales[s];
        for (int l = 16 * s; l < 16 * s + 16; l++) {
            int q = (low[l] >> 4 * (p / 2) & 15) | (high[l] >> 2 * p & 3) << 4;
            out[l] = step * (float)(q - 32);
        }
    }
}

static void dequant_q6_k(const uint8_t *block, float *out)
{
    float d = half_at(block + 208);
    for (int half = 0; half < 2; half++)
        for (int p = 0; p < 4; p++)
            dequant_q6_run(block + 64 * half + 32 * (p % 2), block + 128 + 32 * half,
                           block + 192 + 8 * half + 2 * p, d, p, out + 128 * half + 32 * p);
}

static void dequant_block(int type, const uint8_t *b, float *out)
{
    switch (type) {
    case MX_GGUF_Q4_0: dequant_small(b + 2, 0, half_at(b), 8, 0, out); break;
    case MX_GGUF_Q4_1: dequant_small(b + 4, 0, half_at(b), 0, half_at(b + 2), out); break;
    case MX_GGUF_Q5_0: dequant_small(b + 6, u32_at(b + 2), half_at(b), 16, 0, out); break;
    case MX_GGUF_Q5_1:
        dequant_small(b + 8, u32_at(b + 4), half_at(b), 0, half_at(b + 2), out);
        break;
    case MX_GGUF_Q8_0: dequant_q8_0(b, out); break;
    case MX_GGUF_IQ4_NL: dequant_nonlinear(b + 2, half_at(b), out); break;
    case MX_GGUF_IQ4_XS: dequant_iq4_xs(b, out); break;
    case MX_GGUF_Q2_K: dequant_q2_k(b, out); break;
    case MX_GGUF_Q3_K: dequant_q3_k(b, out); break;
    case MX_GGUF_Q4_K: dequant_k45(b, NULL, b + 16, out); break;
    case MX_GGUF_Q5_K: dequant_k45(b, b + 16, b + 48, out); break;
    case MX_GGUF_Q6_K: dequant_q6_k(b, out); break;
    default: break;
    }
}

void mx_gguf_dequant_row(int type, const void *row, int64_t in, float *out)
{
    int values = mx_gguf_block_values(type), bytes = mx_gguf_block_bytes(type);
    const uint8_t *p = row;
    for (int64_t i = 0; values > 0 && i + values <= in; i += values, p += bytes)
        dequant_block(type, p, out + i);
}

/* ---- Quantising: grids -------------------------------------------------------------------- */

/* Largest value kept: 127 steps of the largest binary16. */
#define VALUE_MAX 4.0e6f
#define HALF_MAX 65504.0f

static float sane(float v)
{
    if (isnan(v))
        return 0;
    return v > VALUE_MAX ? VALUE_MAX : v < -VALUE_MAX ? -VALUE_MAX : v;
}

/* Stores v as binary16 and returns what was stored. */
static float put_half(uint8_t *p, float v)
{
    uint16_t h = mx_f32_to_f16(v > HALF_MAX ? HALF_MAX : v < -HALF_MAX ? -HALF_MAX : v);
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
    return mx_f16_to_f32(h);
}

/* Nearest integer of v / step within lo..hi; 0 steps count as code 0. */
static int code_of(float v, float step, int lo, int hi)
{
    float q = step != 0 ? v / step : 0;
    if (!(q > (float)lo))
        return lo;
    return q < (float)hi ? (int)lrintf(q) : hi;
}

/* The value of largest magnitude, with its sign. */
static float extreme(const float *v, int n)
{
    float most = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(v[i]) > fabsf(most))
            most = v[i];
    return most;
}

/* ---- Quantising: blocks of 32 ------------------------------------------------------------- */

/* The extreme value falls on code 0 (-8 steps), so that all 16 codes are used. */
static void quant_q4_0(const float *v, uint8_t *b)
{
    float d = put_half(b, extreme(v, SMALL) / -8);
    for (int j = 0; j < 16; j++)
        b[2 + j] =
            (uint8_t)((code_of(v[j], d, -8, 7) + 8) | (code_of(v[j + 16], d, -8, 7) + 8) << 4);
}

static void quant_q8_0(const float *v, uint8_t *b)
{
    float d = put_half(b, fabsf(extreme(v, SMALL)) / 127);
    for (int j = 0; j < SMALL; j++)
        b[2 + j] = (uint8_t)(int8_t)code_of(v[j], d, -127, 127);
}

/* ---- Quantising: blocks of 256 ------------------------------------------------------------ */

/* Step and offset (w = step * q - offset, offset >= 0) of each sub-block of 32. */
static void sub_grids(const float *v, int top, float step[8], float offset[8])
{
    for (int s = 0; s < 8; s++) {
        float min = 0, max = 0; /* the offset cannot be negative */
        for (int l = 0; l < 32; l++) {
            min = fminf(min, v[32 * s + l]);
            max = fmaxf(max, v[32 * s + l]);
        }
        step[s] = (max - min) / (float)top;
        offset[s] = -min;
    }
}

static void put_scale_min(uint8_t *s, int j, int scale, int min)
{
    if (j < 4) {
        s[j] |= (uint8_t)scale;
        s[j + 4] |= (uint8_t)min;
    } else {
        s[j + 4] |= (uint8_t)((scale & 15) | (min & 15) << 4);
        s[j - 4] |= (uint8_t)((scale >> 4) << 6);
        s[j] |= (uint8_t)((min >> 4) << 6);
    }
}

/* Q4_K (high == NULL, top 15) and Q5_K (top 31). The block is zeroed. */
static void quant_k45(const float *v, int top, uint8_t *block, uint8_t *high, uint8_t *nibbles)
{
    float step[8], offset[8];
    sub_grids(v, top, step, offset);
    float d = put_half(block, extreme(step, 8) / 63);
    float dmin = put_half(block + 2, extreme(offset, 8) / 63);
    for (int s = 0; s < 8; s++) {
        int scale = code_of(step[s], d, 0, 63), min = code_of(offset[s], dmin, 0, 63);
        put_scale_min(block + 4, s, scale, min);
        for (int l = 0; l < 32; l++) {
            int q = code_of(v[32 * s + l] + dmin * (float)min, d * (float)scale, 0, top);
            nibbles[32 * (s / 2) + l] |= (uint8_t)((q & 15) << 4 * (s % 2));
            if (high)
                high[l] |= (uint8_t)((q >> 4) << s);
        }
    }
}

/* Sixteen sub-blocks of 16 with signed scales; each sub-block's extreme value falls on code 0. The
 * block is zeroed. */
static void quant_q6_k(const float *v, uint8_t *b)
{
    float step[16];
    for (int s = 0; s < 16; s++)
        step[s] = extreme(v + 16 * s, 16) / -32;
    float d = put_half(b + 208, fabsf(extreme(step, 16)) / 127);
    for (int i = 0; i < SUPER; i++) {
        int half = i / 128, p = i / 32 % 4, l = i % 32;
        int scale = code_of(step[i / 16], d, -127, 127);
        int q = code_of(v[i], d * (float)scale, -32, 31) + 32;
        b[64 * half + 32 * (p % 2) + l] |= (uint8_t)((q & 15) << 4 * (p / 2));
        b[128 + 32 * half + l] |= (uint8_t)((q >> 4) << 2 * p);
        b[192 + i / 16] = (uint8_t)(int8_t)scale;
    }
}

static void quant_block(int type, const float *v, uint8_t *b)
{
    switch (type) {
    case MX_GGUF_Q4_0: quant_q4_0(v, b); break;
    case MX_GGUF_Q8_0: quant_q8_0(v, b); break;
    case MX_GGUF_Q4_K: quant_k45(v, 15, b, NULL, b + 16); break;
    case MX_GGUF_Q5_K: quant_k45(v, 31, b, b + 16, b + 48); break;
    case MX_GGUF_Q6_K: quant_q6_k(v, b); break;
    default: break;
    }
}

bool mx_gguf_can_quant(int type)
{
    return type == MX_GGUF_Q4_0 || type == MX_GGUF_Q8_0 || type == MX_GGUF_Q4_K ||
           type == MX_GGUF_Q5_K || type == MX_GGUF_Q6_K;
}

void mx_gguf_quant_row(int type, const float *values, int64_t in, void *row)
{
    int n = mx_gguf_block_values(type), bytes = mx_gguf_block_bytes(type);
    uint8_t *p = row;
    float block[SUPER];
    for (int64_t i = 0; n > 0 && i + n <= in; i += n, p += bytes) {
        for (int j = 0; j < n; j++)
            block[j] = sane(values[i + j]);
        memset(p, 0, (size_t)bytes);
        quant_block(type, block, p);
    }
}
