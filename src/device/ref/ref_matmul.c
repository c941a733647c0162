/* Reference device: weights to float, matrix products, embedding lookup.
 *
 * A row of weights is converted in chunks that start at multiples of CHUNK, each once per call, and
 * a product is the sum of its chunks' dot products in ascending order. */
#include "base/half.h"
#include "device/common.h"
#include "device/ref/ref.h"
#include "format/gguf_quant.h"

#define CHUNK 1024  /* a multiple of every group size */
#define TILE_ROWS 8 /* outputs per task */

static float load(enum mx_dtype t, const void *data, int64_t i)
{
    const char *p = data;
    if (t == MX_F32) {
        float f;
        memcpy(&f, p + 4 * i, sizeof f);
        return f;
    }
    uint16_t h;
    memcpy(&h, p + 2 * i, sizeof h);
    return t == MX_BF16 ? mx_bf16_to_f32(h) : mx_f16_to_f32(h);
}

/* n codes of a packed row from element k0; n and k0 are multiples of 32, so a run of 32 codes fills
 * `bits` whole little-endian words. */
static void unpack(const uint8_t *row, int bits, int64_t k0, int64_t n, float *out)
{
    const uint8_t *p = row + k0 * bits / 8;
    uint32_t mask = (1u << bits) - 1;
    uint64_t window = 0;
    int have = 0;
    for (int64_t i = 0; i < n; i++) {
        if (have < bits) {
            window |= (uint64_t)*p++ << have;
            have += 8;
        }
        out[i] = (float)((uint32_t)window & mask);
        window >>= bits;
        have -= bits;
    }
}

static void chunk_mlxq(const struct mx_weight *w, int64_t row, int64_t k0, int64_t n, float *out)
{
    const uint8_t *codes = (const uint8_t *)w->data + (size_t)row * mx_weight_row_bytes(w);
    int64_t group0 = row * (w->in / w->group);
    unpack(codes, w->bits, k0, n, out);
    for (int64_t k = 0; k < n; k += w->group) {
        int64_t g = group0 + (k0 + k) / w->group;
        float scale = load(w->sdtype, w->scales, g);
        float bias = load(w->sdtype, w->biases, g);
        for (int j = 0; j < w->group; j++)
            out[k + j] = scale * out[k + j] + bias;
    }
}

/* Chunks start at multiples of every block. */
static void chunk_gguf(const struct mx_weight *w, int64_t row, int64_t k0, int64_t n, float *out)
{
    const uint8_t *p = (const uint8_t *)w->data + (size_t)row * mx_weight_row_bytes(w);
    int64_t blocks = k0 / mx_gguf_block_values(w->gguf_type);
    mx_gguf_dequant_row(w->gguf_type, p + blocks * mx_gguf_block_bytes(w->gguf_type), n, out);
}

/* Elements k0 .. k0+n of a row as float. */
static void chunk_to_float(const struct mx_weight *w, int64_t row, int64_t k0, int64_t n,
                           float *out)
{
    int64_t at = row * w->in + k0;
    switch (w->kind) {
    case MX_W_F32: memcpy(out, (const char *)w->data + 4 * at, (size_t)n * sizeof *out); break;
    case MX_W_F16:
        for (int64_t i = 0; i < n; i++)
            out[i] = load(MX_F16, w->data, at + i);
        break;
    case MX_W_BF16:
        for (int64_t i = 0; i < n; i++)
            out[i] = load(MX_BF16, w->data, at + i);
        break;
    case MX_W_MLXQ: chunk_mlxq(w, row, k0, n, out); break;
    case MX_W_GGUF: chunk_gguf(w, row, k0, n, out); break;
    }
}

static void output_row(const struct mx_matmul *m, int64_t o, const float *x, int64_t ldx, int n)
{
    float chunk[CHUNK];
    int64_t in = m->w->in;
    for (int64_t k = 0; k < in; k += CHUNK) {
        int64_t len = in - k < CHUNK ? in - k : CHUNK;
        chunk_to_float(m->w, o, k, len, chunk);
        for (int r = 0; r < n; r++) {
            float dot = mx_ref_dot(chunk, x + r * ldx + k, len);
            float *y = &m->y[r * m->ldy + o];
            *y = k == 0 ? dot : *y + dot;
        }
    }
}

struct product_job {
    const struct mx_matmul *m;
    const float *x;
    int64_t ldx;
    int n;
};

static void product_tile(void *arg, int task, int thread)
{
    const struct product_job *job = arg;
    (void)thread;
    int64_t first;
    const struct mx_matmul *m = mx_matmul_tile(job->m, task, TILE_ROWS, &first);
    for (int64_t o = first; o < m->w->out && o < first + TILE_ROWS; o++)
        output_row(m, o, job->x, job->ldx, job->n);
}

void mx_ref_matmul(struct mx_device *d, const struct mx_matmul *m, int count, const float *x,
                   int64_t ldx, int n)
{
    struct mx_ref *ref = (struct mx_ref *)d;
    struct product_job job = {.m = m, .x = x, .ldx = ldx, .n = n};
    mx_pool_run(ref->pool, product_tile, &job, mx_matmul_tiles(m, count, TILE_ROWS));
}

void mx_ref_embed(struct mx_device *d, const struct mx_weight *w, const int32_t *tokens, int n,
                  float *y, int64_t ldy)
{
    (void)d;
    for (int r = 0; r < n; r++)
        chunk_to_float(w, tokens[r], 0, w->in, y + r * ldy);
}
