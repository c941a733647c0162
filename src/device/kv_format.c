/* Formats of KV cache entries in portable C: how every device stores quantised entries, and how the
 * reference device reads them. */
#include "device/kv_format.h"

#include "base/half.h"

#include <math.h>
#include <string.h>

#define GROUP MX_KV_GROUP
#define F16_MAX 65504.0f

const char *mx_kv_format_name(enum mx_kv_format f)
{
    static const char *const names[] = {"f32", "f16", "q8", "q6", "q4"};
    return names[f];
}

/* ---- Halves ------------------------------------------------------------------------------- */

/* Stores v as float16, large values as the largest, and returns what was stored. */
static float put_half(uint8_t *p, float v)
{
    v = v > F16_MAX ? F16_MAX : v < -F16_MAX ? -F16_MAX : v;
    uint16_t h = mx_f32_to_f16(v);
    memcpy(p, &h, sizeof h);
    return mx_f16_to_f32(h);
}

static float get_half(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return mx_f16_to_f32(h);
}

static void pack_halves(const float *x, int64_t n, uint8_t *p)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = mx_f32_to_f16(x[i]);
        memcpy(p + 2 * i, &h, sizeof h);
    }
}

/* ---- Codes -------------------------------------------------------------------------------- */

static void pack_codes(int bits, const uint8_t q[GROUP], uint8_t *p)
{
    if (bits == 8) {
        memcpy(p, q, GROUP);
    } else if (bits == 4) {
        for (int i = 0; i < GROUP / 2; i++)
            p[i] = (uint8_t)(q[2 * i] | q[2 * i + 1] << 4);
    } else {
        for (int i = 0; i < GROUP / 4; i++, q += 4, p += 3) {
            p[0] = (uint8_t)(q[0] | q[1] << 6);
            p[1] = (uint8_t)(q[1] >> 2 | q[2] << 4);
            p[2] = (uint8_t)(q[2] >> 4 | q[3] << 2);
        }
    }
}

static void unpack_codes(int bits, const uint8_t *p, uint8_t q[GROUP])
{
    if (bits == 8) {
        memcpy(q, p, GROUP);
    } else if (bits == 4) {
        for (int i = 0; i < GROUP / 2; i++) {
            q[2 * i] = p[i] & 15;
            q[2 * i + 1] = p[i] >> 4;
        }
    } else {
        for (int i = 0; i < GROUP / 4; i++, q += 4, p += 3) {
            q[0] = p[0] & 63;
            q[1] = (uint8_t)(p[0] >> 6 | p[1] << 2) & 63;
            q[2] = (uint8_t)(p[1] >> 4 | p[2] << 4) & 63;
            q[3] = p[2] >> 2;
        }
    }
}

/* ---- Groups ------------------------------------------------------------------------------- */

/* A float as an integer of the same order, and back: loops over integers become vector code, loops
 * that compare floats do not. NaN comes above (or below) everything. */
static int32_t ordered(float f)
{
    int32_t i;
    memcpy(&i, &f, sizeof i);
    return i ^ (int32_t)((uint32_t)(i >> 31) >> 1);
}

static float of_ordered(int32_t i)
{
    float f;
    i ^= (int32_t)((uint32_t)(i >> 31) >> 1);
    memcpy(&f, &i, sizeof f);
    return f;
}

static void range(const float x[GROUP], float *low, float *high)
{
    int32_t least = INT32_MAX, most = INT32_MIN;
    for (int i = 0; i < GROUP; i++) {
        int32_t v = ordered(x[i]);
        least = v < least ? v : least;
        most = v > most ? v : most;
    }
    *low = of_ordered(least);
    *high = of_ordered(most);
}

/* A group as it will be stored, decoded and coded. */
struct group {
    float scale, low;
    uint8_t halves[4]; /* scale and low */
    uint8_t q[GROUP];
};

/* The codes nearest to the values, given scale and low. */
static void encode(struct group *g, const float x[GROUP], int most)
{
    float inverse = g->scale > 0.0f ? 1.0f / g->scale : 0.0f, top = (float)most;
    for (int i = 0; i < GROUP; i++) {
        float v = (x[i] - g->low) * inverse;
        v = v > 0.0f ? v : 0.0f;
        v = v < top ? v : top;
        g->q[i] = (uint8_t)(int)(v + 0.5f);
    }
}

/* The same with the float16 values nearest to `scale` and `low`. */
static void encode_with(struct group *g, const float x[GROUP], float scale, float low, int most)
{
    g->scale = put_half(g->halves, scale);
    g->low = put_half(g->halves + 2, low);
    encode(g, x, most);
}

/* The sum of LANES interleaved partial sums; a fixed order that compilers can vectorise. */
#define LANES 8
static float total(const float lanes[LANES])
{
    float s = 0.0f;
    for (int l = 0; l < LANES; l++)
        s += lanes[l];
    return s;
}

static float squared_error(const struct group *g, const float x[GROUP])
{
    float sums[LANES] = {0};
    for (int i = 0; i < GROUP; i += LANES) {
        for (int l = 0; l < LANES; l++) {
            float e = g->scale * (float)g->q[i + l];
            e = e + g->low;
            e = e - x[i + l];
            sums[l] += e * e;
        }
    }
    return total(sums);
}

/* The line through (code, value) of least squared error; false where all codes are one. */
static bool fit(const struct group *g, const float x[GROUP], float *scale, float *low)
{
    float sx[LANES] = {0}, sqx[LANES] = {0};
    int32_t sq = 0, sqq = 0;
    for (int i = 0; i < GROUP; i++) {
        sq += g->q[i];
        sqq += g->q[i] * g->q[i];
    }
    for (int i = 0; i < GROUP; i += LANES) {
        for (int l = 0; l < LANES; l++) {
            sx[l] += x[i + l];
            sqx[l] += x[i + l] * (float)g->q[i + l];
        }
    }
    int32_t spread = GROUP * sqq - sq * sq;
    float x1 = total(sx), qx = total(sqx);
    float cross = (float)GROUP * qx;
    cross -= (float)sq * x1;
    *scale = spread > 0 ? cross / (float)spread : 0.0f;
    *low = (x1 - *scale * (float)sq) * (1.0f / (float)GROUP);
    return *scale > 0.0f && isfinite(*scale) && isfinite(*low);
}

/* Codes between the least and the largest value, then lines fitted to the codes and codes to the
 * lines (Lloyd's alternation); the best of all is kept. Three rounds take two fifths off the
 * divergence that 4-bit entries cause, more rounds hardly anything. */
static void pack_affine(int bits, const float x[GROUP], float low, float high, uint8_t *p)
{
    enum { ROUNDS = 3 };
    struct group g, best;
    int most = (1 << bits) - 1;
    encode_with(&g, x, (high - low) / (float)most, low, most);
    best = g;
    float error = squared_error(&g, x), scale;
    for (int i = 0; i < ROUNDS && fit(&g, x, &scale, &low); i++) {
        encode_with(&g, x, scale, low, most);
        float e = squared_error(&g, x);
        if (e < error) {
            error = e;
            best = g;
        }
    }
    memcpy(p, best.halves, 4);
    pack_codes(bits, best.q, p + 4);
}

/* Codes around 128, which stands for 0. */
static void pack_symmetric(const float x[GROUP], float low, float high, uint8_t *p)
{
    struct group g;
    g.scale = put_half(g.halves, (high > -low ? high : -low) / 127.0f);
    g.low = -128.0f * g.scale;
    encode(&g, x, 255);
    memcpy(p, g.halves, 2);
    pack_codes(8, g.q, p + 2);
}

static void pack_group(int bits, const float x[GROUP], uint8_t *p)
{
    size_t scales = bits == 8 ? 2 : 4;
    float low, high;
    range(x, &low, &high);
    if (!isfinite(low) || !isfinite(high)) {
        memset(p, 0xff, scales); /* NaN */
        memset(p + scales, 0, (size_t)(GROUP / 8 * bits));
    } else if (bits == 8) {
        pack_symmetric(x, low, high, p);
    } else {
        pack_affine(bits, x, low, high, p);
    }
}

static void unpack_group(int bits, const uint8_t *p, float x[GROUP])
{
    uint8_t q[GROUP];
    float scale = get_half(p), low = bits == 8 ? -128.0f * scale : get_half(p + 2);
    unpack_codes(bits, p + (bits == 8 ? 2 : 4), q);
    for (int i = 0; i < GROUP; i++)
        x[i] = scale * (float)q[i] + low;
}

void mx_kv_pack(enum mx_kv_format f, const float *x, int64_t n, void *entry)
{
    int bits = mx_kv_code_bits(f);
    uint8_t *p = entry;
    if (f == MX_KV_F32)
        memcpy(p, x, (size_t)n * sizeof *x);
    else if (f == MX_KV_F16)
        pack_halves(x, n, p);
    else
        for (int64_t i = 0; i < n; i += GROUP, p += mx_kv_bytes(f, GROUP))
            pack_group(bits, x + i, p);
}

void mx_kv_unpack(enum mx_kv_format f, const void *entry, int64_t n, float *x)
{
    int bits = mx_kv_code_bits(f);
    const uint8_t *p = entry;
    if (f == MX_KV_F32)
        memcpy(x, p, (size_t)n * sizeof *x);
    else if (f == MX_KV_F16)
        for (int64_t i = 0; i < n; i++)
            x[i] = get_half(p + 2 * i);
    else
        for (int64_t i = 0; i < n; i += GROUP, p += mx_kv_bytes(f, GROUP))
            unpack_group(bits, p, x + i);
}
