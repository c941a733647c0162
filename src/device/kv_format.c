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

/* q = the code nearest to (x - low) / scale. */
static void encode(const float x[GROUP], float scale, float low, int most, uint8_t q[GROUP])
{
    float inverse = scale > 0.0f ? 1.0f / scale : 0.0f, top = (float)most;
    for (int i = 0; i < GROUP; i++) {
        float v = (x[i] - low) * inverse;
        v = v > 0.0f ? v : 0.0f;
        v = v < top ? v : top;
        q[i] = (uint8_t)(int)(v + 0.5f);
    }
}

static void pack_group(int bits, const float x[GROUP], uint8_t *p)
{
    float low, high, most = (float)((1 << bits) - 1);
    uint8_t q[GROUP];
    range(x, &low, &high);
    if (!isfinite(low) || !isfinite(high)) {
        size_t scales = bits == 8 ? 2 : 4;
        memset(p, 0xff, scales); /* NaN */
        memset(p + scales, 0, (size_t)(GROUP / 8 * bits));
        return;
    }
    if (bits == 8) {
        float scale = put_half(p, (high > -low ? high : -low) / 127.0f);
        encode(x, scale, -128.0f * scale, 255, q);
        p += 2;
    } else {
        float scale = put_half(p, (high - low) / most);
        low = put_half(p + 2, low);
        encode(x, scale, low, (1 << bits) - 1, q);
        p += 4;
    }
    pack_codes(bits, q, p);
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
