/* cpu device: self-check of kernels at load.
 *
 * Kernels are chosen by what the processor says it has. A hypervisor that lies, a miscompiled
 * file or a broken core would otherwise show as wrong text, so the chosen ones first have to
 * reproduce small products: float kernels to rounding, int8 kernels bit for bit. Under a
 * millisecond altogether. */
#include "device/cpu/cpu_check.h"

#include "device/common.h"
#include "device/cpu/kernels.h"
#include "device/cpu/panels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    IN = 256,
    OUTS = MX_PANEL_OUTS + 1, /* a whole panel and a ragged one */
    ROWS = 17,                /* one more than any kernel takes at a time */
    BLOCKS = IN / MX_PANEL_BLOCK,
};

/* A fixed sequence of bytes (Knuth's MMIX generator). */
static uint8_t next_byte(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint8_t)(*state >> 56);
}

static float next_float(uint64_t *state)
{
    return ((float)next_byte(state) - 128.0f) / 32.0f;
}

static bool near(float a, float b)
{
    return fabsf(a - b) <= 1e-4f * (1.0f + fabsf(b)); /* false for NaN */
}

/* ---- Float kernels -------------------------------------------------------------------------- */

static bool products_right(const struct mx_cpu_kernels *k, const float *w, const float *x)
{
    enum { O = 5, R = 3, LEN = 77 };
    float y[R * O];
    struct mx_weight dense = {.kind = MX_W_F32, .out = O, .in = 64, .data = w};
    k->product(w, LEN, O, x, LEN, R, LEN, false, y, O);
    for (int i = 0; i < R * O; i++) {
        float want = 0;
        for (int j = 0; j < LEN; j++)
            want += w[i % O * LEN + j] * x[i / O * LEN + j];
        if (!near(y[i], want))
            return false;
    }
    k->direct(&dense, 0, O, x, 64, 1, y, O);
    for (int o = 0; o < O; o++) {
        float want = 0;
        for (int j = 0; j < 64; j++)
            want += w[o * 64 + j] * x[j];
        if (!near(y[o], want))
            return false;
    }
    return true;
}

static bool elements_right(const struct mx_cpu_kernels *k, const float *w, const float *x)
{
    enum { N = 37 };
    float y[N], squares = 0;
    for (int i = 0; i < N; i++)
        squares += x[i] * x[i];
    k->rmsnorm(x, w, 1e-6f, y, N);
    for (int i = 0; i < N; i++)
        if (!near(y[i], x[i] / sqrtf(squares / N + 1e-6f) * w[i]))
            return false;
    k->swiglu(x, w, y, N);
    for (int i = 0; i < N; i++)
        if (!near(y[i], x[i] / (1.0f + expf(-x[i])) * w[i]))
            return false;
    return k->argmax(x, N) >= 0 && k->argmax(x, N) < N;
}

bool mx_cpu_check_floats(const struct mx_cpu_kernels *k)
{
    float w[512], x[512];
    uint64_t state = 1;
    for (int i = 0; i < 512; i++) {
        w[i] = next_float(&state);
        x[i] = next_float(&state);
    }
    return products_right(k, w, x) && elements_right(k, w, x);
}

/* ---- int8 kernels --------------------------------------------------------------------------- */

/* Panels of a format filled with noise. Any bytes are valid codes and byte scales; 16-bit scales
 * are kept in a sane range, so that no NaN hides a difference. */
static void fill_noise(struct mx_panels *p, uint64_t *state)
{
    size_t bytes = (size_t)p->count * p->panel_bytes;
    for (size_t i = 0; i < bytes; i++)
        p->data[i] = next_byte(state);
    size_t codes = (size_t)p->bits * MX_PANEL_BLOCK * MX_PANEL_OUTS / 8;
    bool halves = p->scaling == MX_PANEL_AFFINE || p->scaling == MX_PANEL_SCALED;
    uint8_t *at = p->data;
    for (int64_t i = 0; i < p->count * p->blocks; i++) {
        if (p->header_bytes && i % p->blocks % 4 == 0) {
            for (size_t j = 1; j < p->header_bytes; j += 2)
                at[j] = 0x2c;
            at += p->header_bytes;
        }
        for (size_t j = codes + 1; halves && j < p->block_bytes; j += 2)
            at[j] = p->bf16 ? 0x3c : 0x2c;
        at += p->block_bytes;
    }
}

bool mx_cpu_check_q8(const struct mx_q8_kernels *q8, const struct mx_panels *format)
{
    struct mx_panels p = *format;
    struct mx_q8_block acts[ROWS * BLOCKS], want_acts[ROWS * BLOCKS];
    float x[ROWS * IN], y[ROWS * OUTS], want[ROWS * OUTS];
    uint64_t state = 2;
    memset(acts, 0, sizeof acts);
    memset(want_acts, 0, sizeof want_acts);
    p.in = IN;
    p.out = OUTS;
    p.count = 2;
    p.blocks = BLOCKS;
    p.panel_bytes = BLOCKS * p.block_bytes + BLOCKS / 4 * p.header_bytes;
    p.data = malloc((size_t)p.count * p.panel_bytes);
    if (!p.data)
        return false;
    fill_noise(&p, &state);
    for (int i = 0; i < ROWS * IN; i++)
        x[i] = next_float(&state);
    for (int r = 0; r < ROWS; r++) {
        q8->quantise(x + r * IN, IN, mx_panels_group(&p), acts + r * BLOCKS);
        mx_q8_scalar.quantise(x + r * IN, IN, mx_panels_group(&p), want_acts + r * BLOCKS);
    }
    mx_q8_scalar.product(&p, 0, p.count, want_acts, BLOCKS, ROWS, want, OUTS);
    const uint8_t *have_bytes = (const uint8_t *)acts, *want_bytes = (const uint8_t *)want_acts;
    bool same = memcmp(have_bytes, want_bytes, sizeof acts) == 0; /* NaN counts too */
    for (int n = 1; n <= ROWS && same; n += n < 8 ? 1 : 3) {
        q8->product(&p, 0, p.count, acts, BLOCKS, n, y, OUTS);
        same = memcmp(y, want, (size_t)(n * OUTS) * sizeof *y) == 0;
    }
    free(p.data);
    return same;
}
