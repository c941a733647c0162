/* Weight traffic of a pass, see the header. */
#include "tools/bench_meter.h"

#include "format/gguf_quant.h"
#include "format/mlxq.h"

/* Stored bytes of one row of a matrix, scales and biases included. */
static uint64_t row_bytes(const struct mx_weight *w)
{
    uint64_t in = (uint64_t)w->in;
    switch (w->kind) {
    case MX_W_F32: return 4 * in;
    case MX_W_F16:
    case MX_W_BF16: return 2 * in;
    case MX_W_MLXQ:
        return mx_mlxq_row_bytes(w->bits, w->in) +
               2 * (in / (uint64_t)w->group) * (uint64_t)mx_dtype_bytes(w->sdtype);
    case MX_W_GGUF: return mx_gguf_row_bytes(w->gguf_type, w->in);
    }
    return 0;
}

static struct mx_meter *meter_of(struct mx_device *d)
{
    return (struct mx_meter *)d->ops; /* ops is its first member */
}

static void metered_matmul(struct mx_device *d, const struct mx_matmul *m, int count,
                           const float *x, int64_t ldx, int n)
{
    struct mx_meter *meter = meter_of(d);
    for (int i = 0; i < count; i++) {
        const struct mx_weight *w = m[i].w;
        meter->bytes += (uint64_t)w->out * row_bytes(w);
        meter->flops += 2 * (uint64_t)w->out * (uint64_t)w->in * (uint64_t)n;
    }
    meter->real->matmul(d, m, count, x, ldx, n);
}

static void metered_embed(struct mx_device *d, const struct mx_weight *w, const int32_t *tokens,
                          int n, float *y, int64_t ldy)
{
    struct mx_meter *meter = meter_of(d);
    meter->bytes += (uint64_t)n * row_bytes(w);
    meter->real->embed(d, w, tokens, n, y, ldy);
}

void mx_meter_attach(struct mx_meter *m, struct mx_device *d)
{
    *m = (struct mx_meter){.ops = *d->ops, .real = d->ops, .device = d};
    m->ops.matmul = metered_matmul;
    m->ops.embed = metered_embed;
    d->ops = &m->ops;
}

void mx_meter_detach(struct mx_meter *m)
{
    m->device->ops = m->real;
}
