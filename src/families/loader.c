/* Loader: see loader.h. Matrices stay in the mapped file; only vectors (norms, biases), which are
 * tiny, are converted to float32. */
#include "families/loader.h"

#include "base/half.h"
#include "format/gguf_quant.h"
#include "format/mlxq.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Ownership ---------------------------------------------------------------------------- */

void mx_weights_init(struct mx_weights *w, struct mx_device *device)
{
    memset(w, 0, sizeof *w);
    mx_arena_init(&w->arena, 0);
    w->device = device;
}

void mx_weights_free(struct mx_weights *w)
{
    struct mx_device *d = w->device;
    for (size_t i = 0; i < w->n_bound; i++)
        d->ops->weight_unbind(d, w->bound[i]);
    for (size_t i = 0; i < w->n_device; i++)
        d->ops->free(d, w->device_mem[i]);
    for (size_t i = 0; i < w->n_host; i++)
        free(w->host_mem[i]);
    free((void *)w->bound);
    free((void *)w->device_mem);
    free((void *)w->host_mem);
    mx_arena_free(&w->arena);
    memset(w, 0, sizeof *w);
}

/* Appends a pointer to one of the three ownership lists. */
static bool own(void ***list, size_t *n, size_t *cap, void *p)
{
    if (*n == *cap) {
        size_t want = *cap ? *cap * 2 : 64;
        void **grown = (void **)realloc((void *)*list, want * sizeof **list);
        if (!grown)
            return false;
        *list = grown;
        *cap = want;
    }
    (*list)[(*n)++] = p;
    return true;
}

mtplx_status mx_load_bind(struct mx_loader *l, struct mx_weight *w, mtplx_error *err)
{
    struct mx_weights *ws = l->weights;
    mtplx_status st = l->device->ops->weight_bind(l->device, w, err);
    if (st != MTPLX_OK)
        return st;
    if (!own((void ***)&ws->bound, &ws->n_bound, &ws->cap_bound, w)) {
        l->device->ops->weight_unbind(l->device, w);
        return mx_error_nomem(err, "the weight table", sizeof(void *));
    }
    return MTPLX_OK;
}

void *mx_load_host(struct mx_loader *l, size_t bytes, const char *what, mtplx_error *err)
{
    struct mx_weights *ws = l->weights;
    void *p = malloc(bytes ? bytes : 1);
    if (!p || !own(&ws->host_mem, &ws->n_host, &ws->cap_host, p)) {
        free(p);
        mx_error_nomem(err, what, bytes);
        return NULL;
    }
    return p;
}

float *mx_load_const(struct mx_loader *l, const void *host, size_t bytes, mtplx_error *err)
{
    struct mx_weights *ws = l->weights;
    struct mx_device *d = l->device;
    void *p = d->ops->alloc(d, bytes);
    if (!p || !own(&ws->device_mem, &ws->n_device, &ws->cap_device, p)) {
        if (p)
            d->ops->free(d, p);
        mx_error_nomem(err, "a weight vector", bytes);
        return NULL;
    }
    d->ops->upload(d, p, host, bytes);
    return p;
}

/* ---- Lookup and checks -------------------------------------------------------------------- */

const struct mx_tensor *mx_load_find(const struct mx_loader *l, const char *prefix,
                                     const char *name)
{
    char full[MX_NAME_MAX];
    int n = snprintf(full, sizeof full, "%s%s", prefix, name);
    if (n < 0 || (size_t)n >= sizeof full)
        return NULL;
    return mx_checkpoint_find(l->ck, full);
}

static bool is_float(enum mx_dtype t)
{
    return t == MX_F16 || t == MX_BF16 || t == MX_F32;
}

static void shape_text(const struct mx_tensor *t, char *buf, size_t cap)
{
    size_t n = 0;
    buf[0] = 0;
    for (int i = 0; i < t->ndim && n + 24 < cap; i++)
        n += (size_t)snprintf(buf + n, cap - n, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
}

static mtplx_status missing(const struct mx_loader *l, const char *prefix, const char *name,
                            mtplx_error *err)
{
    if (mx_checkpoint_gguf(l->ck))
        return mx_error(err, MTPLX_ERR_FORMAT,
                        "%s: no tensor stands for '%s%s' (its Hugging Face name); the file is "
                        "incomplete",
                        l->cfg->path, prefix, name);
    return mx_error(err, MTPLX_ERR_FORMAT,
                    "%s: tensor '%s%s' is missing; the checkpoint is incomplete or its config.json "
                    "belongs to another model",
                    mx_checkpoint_dir(l->ck), prefix, name);
}

static mtplx_status bad_shape(const struct mx_tensor *t, const char *want, mtplx_error *err)
{
    char have[160];
    shape_text(t, have, sizeof have);
    return mx_error(err, MTPLX_ERR_FORMAT,
                    "%s: tensor '%s' has shape [%s] but the model's sizes imply [%s]", t->file,
                    t->name, have, want);
}

static mtplx_status check_matrix(const struct mx_tensor *t, int64_t out, int64_t in,
                                 mtplx_error *err)
{
    char want[64];
    snprintf(want, sizeof want, "%lld, %lld", (long long)out, (long long)in);
    if (t->ndim != 2 || t->shape[0] != out || t->shape[1] != in)
        return bad_shape(t, want, err);
    return MTPLX_OK;
}

static mtplx_status bad_dtype(const struct mx_tensor *t, const char *want, mtplx_error *err)
{
    return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                    "%s: tensor '%s' has dtype %s; this build reads %s there", t->file, t->name,
                    t->gguf_type ? mx_gguf_type_name(t->gguf_type) : mx_dtype_name(t->dtype), want);
}

/* ---- Matrices ----------------------------------------------------------------------------- */

static mtplx_status dense_weight(const struct mx_tensor *t, int64_t out, int64_t in,
                                 struct mx_weight *w, mtplx_error *err)
{
    if (!is_float(t->dtype))
        return bad_dtype(t, "BF16, F16, F32 or MLX affine U32 with .scales", err);
    mtplx_status st = check_matrix(t, out, in, err);
    if (st != MTPLX_OK)
        return st;
    w->kind = t->dtype == MX_F32 ? MX_W_F32 : t->dtype == MX_F16 ? MX_W_F16 : MX_W_BF16;
    w->data = t->data;
    return MTPLX_OK;
}

static mtplx_status gguf_weight(const struct mx_tensor *t, struct mx_weight *w, mtplx_error *err)
{
    if (!mx_gguf_block_values(t->gguf_type))
        return bad_dtype(
            t, "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL or IQ4_XS", err);
    mtplx_status st = check_matrix(t, w->out, w->in, err);
    if (st != MTPLX_OK)
        return st;
    w->kind = MX_W_GGUF;
    w->data = t->data;
    w->gguf_type = t->gguf_type;
    return MTPLX_OK;
}

/* What the shapes say: codes [out, in * bits / 32], scales [out, in / group]. */
static void quant_from_shapes(const struct mx_tensor *t, const struct mx_tensor *scales, int64_t in,
                              struct mx_quant_spec *q)
{
    bool sane = t->ndim == 2 && scales->ndim == 2 && scales->shape[1] > 0 && in > 0 &&
                t->shape[1] <= in && in % scales->shape[1] == 0 && t->shape[1] * 32 % in == 0;
    q->bits = sane ? (int)(t->shape[1] * 32 / in) : 0;
    q->group_size = sane ? (int)(in / scales->shape[1]) : 0;
}

/* Bits and group of a quantised tensor: config.json, checked against the shapes. MTP heads are
 * often quantised apart from the trunk and described by other keys or by none, so theirs are read
 * off the shapes, which leave no choice. */
static mtplx_status quant_geometry(const struct mx_loader *l, const char *path,
                                   const struct mx_tensor *t, const struct mx_tensor *scales,
                                   int64_t in, struct mx_quant_spec *q, mtplx_error *err)
{
    struct mx_quant_spec shapes;
    mtplx_status st = mx_config_quant(l->cfg, path, q, err);
    if (st != MTPLX_OK)
        return st;
    if (q->bits && strcmp(q->mode, "affine") != 0)
        return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                        "%s: '%s' is quantised in mode '%s'; this build reads 'affine'",
                        l->cfg->path, path, q->mode);
    quant_from_shapes(t, scales, in, &shapes);
    if (l->in_mtp && shapes.bits && !mx_mlxq_check(shapes.bits, shapes.group_size, in)) {
        q->bits = shapes.bits;
        q->group_size = shapes.group_size;
    }
    if (!q->bits)
        return mx_error(err, MTPLX_ERR_FORMAT,
                        "%s: tensor '%s' has .scales but config.json has no 'quantization' entry "
                        "that covers it",
                        t->file, t->name);
    const char *why = mx_mlxq_check(q->bits, q->group_size, in);
    if (why)
        return mx_error(err, MTPLX_ERR_FORMAT, "%s: quantization of '%s' (%d bits, group %d): %s",
                        l->cfg->path, path, q->bits, q->group_size, why);
    if (shapes.bits != q->bits || shapes.group_size != q->group_size)
        return mx_error(err, MTPLX_ERR_FORMAT,
                        "%s: tensor '%s' does not have the packed shape of %d bits in groups of %d "
                        "that config.json states",
                        t->file, t->name, q->bits, q->group_size);
    return MTPLX_OK;
}

mtplx_status mx_load_check_quant(const struct mx_loader *l, mtplx_error *err)
{
    const json_t *q = mx_config_get(l->cfg, "quantization_config");
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    if (!method || mx_config_get(l->cfg, "quantization"))
        return MTPLX_OK;
    return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                    "%s: weights are quantised with '%s', which this build does not read; use the "
                    "unquantised checkpoint or an MLX affine conversion of it",
                    l->cfg->path, method);
}

static mtplx_status quant_weight(struct mx_loader *l, const char *path, const struct mx_tensor *t,
                                 const struct mx_tensor *scales, const struct mx_tensor *biases,
                                 struct mx_weight *w, mtplx_error *err)
{
    struct mx_quant_spec q;
    mtplx_status st = quant_geometry(l, path, t, scales, w->in, &q, err);
    if (st != MTPLX_OK)
        return st;
    if (!biases)
        return mx_error(err, MTPLX_ERR_FORMAT, "%s: tensor '%s.biases' is missing beside .scales",
                        t->file, path);
    if (t->dtype != MX_U32)
        return bad_dtype(t, "U32 packed codes", err);
    if (!is_float(scales->dtype) || biases->dtype != scales->dtype)
        return bad_dtype(!is_float(scales->dtype) ? scales : biases,
                         "BF16, F16 or F32 alike for .scales and .biases", err);
    if ((st = check_matrix(t, w->out, w->in * q.bits / 32, err)) != MTPLX_OK ||
        (st = check_matrix(scales, w->out, w->in / q.group_size, err)) != MTPLX_OK ||
        (st = check_matrix(biases, w->out, w->in / q.group_size, err)) != MTPLX_OK)
        return st;
    w->kind = MX_W_MLXQ;
    w->data = t->data;
    w->scales = scales->data;
    w->biases = biases->data;
    w->sdtype = scales->dtype;
    w->bits = q.bits;
    w->group = q.group_size;
    l->weights->bytes += scales->bytes + biases->bytes;
    return MTPLX_OK;
}

static void account(struct mx_loader *l, uint64_t parameters, uint64_t bytes)
{
    l->weights->bytes += bytes;
    if (l->in_mtp)
        l->weights->mtp_parameters += parameters;
    else
        l->weights->parameters += parameters;
}

mtplx_status mx_load_linear(struct mx_loader *l, const char *prefix, const char *module,
                            int64_t out, int64_t in, struct mx_linear *lin, mtplx_error *err)
{
    char path[MX_NAME_MAX], name[MX_NAME_MAX];
    snprintf(path, sizeof path, "%s%s", prefix, module);
    snprintf(name, sizeof name, "%s.weight", module);
    const struct mx_tensor *t = mx_load_find(l, prefix, name);
    if (!t)
        return missing(l, prefix, name, err);
    const struct mx_tensor *scales = mx_load_find(l, path, ".scales");
    memset(lin, 0, sizeof *lin);
    lin->w.out = out;
    lin->w.in = in;
    lin->w.mapped = true;
    lin->w.lookup_only = l->lookup_only;
    mtplx_status st;
    if (t->gguf_type)
        st = gguf_weight(t, &lin->w, err);
    else if (scales)
        st = quant_weight(l, path, t, scales, mx_load_find(l, path, ".biases"), &lin->w, err);
    else
        st = dense_weight(t, out, in, &lin->w, err);
    if (st != MTPLX_OK)
        return st;
    account(l, (uint64_t)(out * in), t->bytes);
    if (l->in_mtp && l->adapter && (st = mx_load_adapter(l, module, lin, err)) != MTPLX_OK)
        return st;
    if (l->requant != MTPLX_PROJ_KEEP &&
        (st = mx_load_requant(l, &lin->w, l->requant, path, err)) != MTPLX_OK)
        return st;
    return mx_load_bind(l, &lin->w, err);
}

void mx_weight_row(const struct mx_weight *w, int64_t row, float *out)
{
    const uint8_t *base = w->data;
    if (w->kind == MX_W_MLXQ) {
        size_t groups = (size_t)(w->in / w->group);
        size_t side = (size_t)row * groups * (size_t)mx_dtype_bytes(w->sdtype);
        mx_mlxq_dequant_row(base + (size_t)row * mx_mlxq_row_bytes(w->bits, w->in),
                            (const uint8_t *)w->scales + side, (const uint8_t *)w->biases + side,
                            w->sdtype, w->bits, w->group, w->in, out);
        return;
    }
    if (w->kind == MX_W_GGUF) {
        base += (size_t)row * mx_gguf_row_bytes(w->gguf_type, w->in);
        mx_gguf_dequant_row(w->gguf_type, base, w->in, out);
        return;
    }
    enum mx_dtype t = w->kind == MX_W_F32 ? MX_F32 : w->kind == MX_W_F16 ? MX_F16 : MX_BF16;
    base += (size_t)row * (size_t)w->in * (size_t)mx_dtype_bytes(t);
    for (int64_t i = 0; i < w->in; i++)
        out[i] = mx_dtype_load(t, base, i);
}

/* Bits of a code, scales left out. */
static int stored_bits(const struct mx_weight *w)
{
    switch (w->kind) {
    case MX_W_F32: return 32;
    case MX_W_MLXQ: return w->bits;
    case MX_W_GGUF:
        return 8 * mx_gguf_block_bytes(w->gguf_type) / mx_gguf_block_values(w->gguf_type);
    default: return 16;
    }
}

mtplx_status mx_load_requant(struct mx_loader *l, struct mx_weight *w, mtplx_proj_quant q,
                             const char *name, mtplx_error *err)
{
    int bits = q == MTPLX_PROJ_Q4 ? 4 : 8;
    int group = w->in % 64 == 0 ? 64 : 32;
    if (stored_bits(w) <= bits)
        return MTPLX_OK;
    if (mx_mlxq_check(bits, group, w->in))
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "proj_quant: '%s' has %lld inputs, which no group size divides; load it "
                        "without re-quantisation",
                        name, (long long)w->in);
    size_t row_bytes = mx_mlxq_row_bytes(bits, w->in), groups = (size_t)(w->in / group);
    size_t out = (size_t)w->out;
    uint8_t *codes = mx_load_host(l, out * row_bytes, name, err);
    uint16_t *scales = mx_load_host(l, out * groups * 2, name, err);
    uint16_t *biases = mx_load_host(l, out * groups * 2, name, err);
    float *row = malloc((size_t)w->in * sizeof *row);
    if (!codes || !scales || !biases || !row) {
        free(row);
        return mx_error_nomem(err, name, out * row_bytes);
    }
    for (size_t r = 0; r < out; r++) {
        mx_weight_row(w, (int64_t)r, row);
        mx_mlxq_quant_row(row, w->in, bits, group, MX_F16, codes + r * row_bytes,
                          scales + r * groups, biases + r * groups);
    }
    free(row);
    w->kind = MX_W_MLXQ;
    w->mapped = false;
    w->data = codes;
    w->scales = scales;
    w->biases = biases;
    w->sdtype = MX_F16;
    w->bits = bits;
    w->group = group;
    return MTPLX_OK;
}

/* ---- Vectors ------------------------------------------------------------------------------ */

mtplx_status mx_load_floats(struct mx_loader *l, const struct mx_tensor *t, int64_t count,
                            int64_t columns, float add, void (*map)(float *v, int64_t n),
                            float **out, mtplx_error *err)
{
    if (!is_float(t->dtype))
        return bad_dtype(t, "BF16, F16 or F32", err);
    float *v = malloc((size_t)count * sizeof *v);
    if (!v)
        return mx_error_nomem(err, t->name, (size_t)count * sizeof *v);
    int64_t rows = columns ? count / columns : 1;
    for (int64_t i = 0; i < count; i++)
        v[columns ? i % columns * rows + i / columns : i] =
            mx_dtype_load(t->dtype, t->data, i) + add;
    if (map)
        map(v, count);
    account(l, (uint64_t)count, t->bytes);
    *out = mx_load_const(l, v, (size_t)count * sizeof *v, err);
    free(v);
    return *out ? MTPLX_OK : MTPLX_ERR_MEMORY;
}

mtplx_status mx_load_vector(struct mx_loader *l, const char *prefix, const char *name, int64_t dim,
                            float add, float **out, mtplx_error *err)
{
    const struct mx_tensor *t = mx_load_find(l, prefix, name);
    char want[32];
    if (!t)
        return missing(l, prefix, name, err);
    snprintf(want, sizeof want, "%lld", (long long)dim);
    if (t->ndim != 1 || t->shape[0] != dim)
        return bad_shape(t, want, err);
    return mx_load_floats(l, t, dim, 0, add, NULL, out, err);
}

double mx_tensor_mean(const struct mx_tensor *t)
{
    if (!t || !is_float(t->dtype) || t->bytes == 0)
        return 0;
    int64_t n = (int64_t)(t->bytes / (uint64_t)mx_dtype_bytes(t->dtype));
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)mx_dtype_load(t->dtype, t->data, i);
    return sum / (double)n;
}
