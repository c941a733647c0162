/* Shared blocks: see blocks.h. Maths and tensor names follow the Qwen3.5 reference graph
 * (transformers `qwen3_5`), which Qwen3-Next shares. */
#include "families/blocks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_PRODUCTS 4

void mx_linear_apply(struct mx_device *d, const struct mx_product *p, int count, const float *x,
                     int n, float *tmp)
{
    struct mx_matmul m[MAX_PRODUCTS] = {{0}};
    for (int i = 0; i < count; i++)
        m[i] = (struct mx_matmul){&p[i].lin->w, p[i].y, p[i].lin->w.out};
    d->ops->matmul(d, m, count, x, p[0].lin->w.in, n);
    for (int i = 0; i < count; i++) {
        const struct mx_lora *lora = p[i].lin->lora;
        if (!lora)
            continue;
        /* tmp holds A x and, behind it, B (A x) before it is added with the adapter's scale. */
        float *up = tmp + (int64_t)n * lora->rank;
        struct mx_matmul down = {&lora->a, tmp, lora->rank};
        struct mx_matmul back = {&lora->b, up, lora->b.out};
        d->ops->matmul(d, &down, 1, x, lora->a.in, n);
        d->ops->matmul(d, &back, 1, tmp, lora->rank, n);
        d->ops->axpy(d, lora->scale, up, lora->b.out, p[i].y, lora->b.out, n, (int)lora->b.out);
    }
}

/* The matrices of a block, "<prefix><module>.<name>.weight" each. */
struct matrix {
    const char *name;
    int64_t out, in;
    struct mx_linear *lin;
};

static mtplx_status load_matrices(struct mx_loader *l, const char *prefix, const char *module,
                                  const struct matrix *mats, size_t count, mtplx_error *err)
{
    for (size_t i = 0; i < count; i++) {
        char name[MX_NAME_MAX];
        snprintf(name, sizeof name, "%s.%s", module, mats[i].name);
        mtplx_status st =
            mx_load_linear(l, prefix, name, mats[i].out, mats[i].in, mats[i].lin, err);
        if (st != MTPLX_OK)
            return st;
    }
    return MTPLX_OK;
}

/* ---- Gated full attention ----------------------------------------------------------------- */

void mx_attn_run(struct mx_device *d, const struct mx_attn_block *a, const struct mx_rope *rope,
                 const struct mx_kv_layout *kv, int layer, const struct mx_batch *b, const float *x,
                 float *q, float *k, float *v, float *att, float *tmp, float *y)
{
    struct mx_product p[] = {{&a->k, k}, {&a->v, v}, {&a->q, q}};
    mx_linear_apply(d, p, y ? 3 : 2, x, b->n, tmp);
    struct mx_qkv store = {
        .batch = b,
        .kv = kv,
        .layer = layer,
        .heads = a->heads,
        .q_stride = a->q_stride,
        .q = y ? q : NULL,
        .ldq = (int64_t)a->heads * a->q_stride,
        .k = k,
        .v = v,
        .q_norm = a->q_norm,
        .k_norm = a->k_norm,
        .eps = a->eps,
        .n_freq = rope->n_freq,
        .inv_freq = rope->inv_freq,
        .axis = rope->axis,
    };
    d->ops->qkv(d, &store);
    if (!y)
        return;
    struct mx_attention att_args = {
        .batch = b,
        .kv = kv,
        .layer = layer,
        .heads = a->heads,
        .q_stride = a->q_stride,
        .q = q,
        .ldq = (int64_t)a->heads * a->q_stride,
        .scale = a->scale,
        .gated = a->gated,
        .y = att,
    };
    d->ops->attention(d, &att_args);
    struct mx_product out = {&a->o, y};
    mx_linear_apply(d, &out, 1, att, b->n, tmp);
}

mtplx_status mx_attn_load(struct mx_loader *l, const char *prefix, const char *module, int hidden,
                          int kv_heads, int head_dim, float norm_add, struct mx_attn_block *a,
                          mtplx_error *err)
{
    char name[MX_NAME_MAX];
    int64_t kv_dim = (int64_t)kv_heads * head_dim;
    const struct matrix mats[] = {
        {"q_proj", (int64_t)a->heads * a->q_stride, hidden, &a->q},
        {"k_proj", kv_dim, hidden, &a->k},
        {"v_proj", kv_dim, hidden, &a->v},
        {"o_proj", hidden, (int64_t)a->heads * head_dim, &a->o},
    };
    mtplx_status st = load_matrices(l, prefix, module, mats, sizeof mats / sizeof *mats, err);
    if (st != MTPLX_OK)
        return st;
    snprintf(name, sizeof name, "%s.q_norm.weight", module);
    st = mx_load_vector(l, prefix, name, head_dim, norm_add, &a->q_norm, err);
    if (st != MTPLX_OK)
        return st;
    snprintf(name, sizeof name, "%s.k_norm.weight", module);
    return mx_load_vector(l, prefix, name, head_dim, norm_add, &a->k_norm, err);
}

/* Interleaved mRoPE gives frequency j to axis j mod 3 while that axis still has sections left, and
 * to t otherwise; the plain form gives them in three consecutive runs. */
static uint8_t mrope_axis(int j, const int sections[3], bool interleaved)
{
    if (!sections)
        return 0;
    if (interleaved)
        return j % 3 != 0 && j < 3 * sections[j % 3] ? (uint8_t)(j % 3) : 0;
    if (j < sections[0])
        return 0;
    return j < sections[0] + sections[1] ? 1 : 2;
}

mtplx_status mx_rope_load(struct mx_loader *l, double theta, int n_freq, const int sections[3],
                          bool interleaved, struct mx_rope *r, mtplx_error *err)
{
    float inv[1024];
    uint8_t axis[1024];
    if (n_freq < 1 || n_freq > 1024)
        return mx_error(err, MTPLX_ERR_UNSUPPORTED, "%s: rotary size %d is outside 2..2048",
                        l->cfg->path, 2 * n_freq);
    for (int j = 0; j < n_freq; j++) {
        inv[j] = (float)(1.0 / pow(theta, (double)j / n_freq));
        axis[j] = mrope_axis(j, sections, interleaved);
    }
    r->n_freq = n_freq;
    r->inv_freq = mx_load_const(l, inv, (size_t)n_freq * sizeof *inv, err);
    if (!r->inv_freq)
        return MTPLX_ERR_MEMORY;
    r->axis = (uint8_t *)mx_load_const(l, axis, (size_t)n_freq, err);
    return r->axis ? MTPLX_OK : MTPLX_ERR_MEMORY;
}

/* ---- Gated DeltaNet ----------------------------------------------------------------------- */

void mx_gdn_run(struct mx_device *d, const struct mx_gdn_block *g, const struct mx_gdn_layout *lay,
                int layer, const struct mx_batch *b, const float *x, float *qkv, float *z,
                float *ba, float *core, float *y)
{
    float *beta = ba, *alpha = ba + (int64_t)b->n * lay->value_heads;
    struct mx_product p[] = {{&g->qkv, qkv}, {&g->z, z}, {&g->b, beta}, {&g->a, alpha}};
    mx_linear_apply(d, p, 4, x, b->n, NULL);
    struct mx_gdn args = {
        .batch = b,
        .layout = lay,
        .layer = layer,
        .qkv = qkv,
        .ldqkv = mx_gdn_conv_dim(lay),
        .z = z,
        .ldz = (int64_t)lay->value_heads * lay->dv,
        .b = beta,
        .a = alpha,
        .ldba = lay->value_heads,
        .conv = g->conv,
        .neg_exp_a = g->neg_exp_a,
        .dt_bias = g->dt_bias,
        .norm = g->norm,
        .eps = g->eps,
        .y = core,
    };
    d->ops->gated_delta(d, &args);
    struct mx_product out = {&g->out, y};
    mx_linear_apply(d, &out, 1, core, b->n, NULL);
}

static void negate_exp(float *v, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        v[i] = -expf(v[i]);
}

/* conv1d.weight is [C, 1, K] in Hugging Face files and [C, K, 1] in MLX ones: the same bytes. */
static mtplx_status load_conv(struct mx_loader *l, const char *prefix, const char *name,
                              const struct mx_gdn_layout *lay, float **out, mtplx_error *err)
{
    const struct mx_tensor *t = mx_load_find(l, prefix, name);
    int64_t c = mx_gdn_conv_dim(lay), k = lay->kernel;
    if (!t)
        return mx_error(err, MTPLX_ERR_FORMAT, "%s: tensor '%s%s' is missing",
                        mx_checkpoint_dir(l->ck), prefix, name);
    bool hf = t->ndim == 3 && t->shape[0] == c && t->shape[1] == 1 && t->shape[2] == k;
    bool mlx = t->ndim == 3 && t->shape[0] == c && t->shape[1] == k && t->shape[2] == 1;
    if (!hf && !mlx)
        return mx_error(err, MTPLX_ERR_FORMAT,
                        "%s: tensor '%s' is not [%lld, 1, %lld] or [%lld, %lld, 1] as config.json "
                        "implies",
                        t->file, t->name, (long long)c, (long long)k, (long long)c, (long long)k);
    return mx_load_floats(l, t, c * k, k, 0, NULL, out, err);
}

static mtplx_status load_a_log(struct mx_loader *l, const char *prefix, const char *name,
                               int64_t heads, float **out, mtplx_error *err)
{
    const struct mx_tensor *t = mx_load_find(l, prefix, name);
    if (!t || t->ndim != 1 || t->shape[0] != heads)
        return mx_error(err, MTPLX_ERR_FORMAT, "%s: tensor '%s%s' is missing or not [%lld]",
                        mx_checkpoint_dir(l->ck), prefix, name, (long long)heads);
    bool done = mx_checkpoint_export(l->ck).neg_exp_a;
    return mx_load_floats(l, t, heads, 0, 0, done ? NULL : negate_exp, out, err);
}

mtplx_status mx_gdn_load(struct mx_loader *l, const char *prefix, const char *module, int hidden,
                         const struct mx_gdn_layout *lay, struct mx_gdn_block *g, mtplx_error *err)
{
    char name[MX_NAME_MAX];
    int64_t value_dim = (int64_t)lay->value_heads * lay->dv;
    const struct matrix mats[] = {
        {"in_proj_qkv", mx_gdn_conv_dim(lay), hidden, &g->qkv},
        {"in_proj_z", value_dim, hidden, &g->z},
        {"in_proj_b", lay->value_heads, hidden, &g->b},
        {"in_proj_a", lay->value_heads, hidden, &g->a},
        {"out_proj", hidden, value_dim, &g->out},
    };
    mtplx_status st = load_matrices(l, prefix, module, mats, sizeof mats / sizeof *mats, err);
    if (st != MTPLX_OK)
        return st;
    snprintf(name, sizeof name, "%s.conv1d.weight", module);
    if ((st = load_conv(l, prefix, name, lay, &g->conv, err)) != MTPLX_OK)
        return st;
    snprintf(name, sizeof name, "%s.A_log", module);
    if ((st = load_a_log(l, prefix, name, lay->value_heads, &g->neg_exp_a, err)) != MTPLX_OK)
        return st;
    snprintf(name, sizeof name, "%s.dt_bias", module);
    if ((st = mx_load_vector(l, prefix, name, lay->value_heads, 0, &g->dt_bias, err)) != MTPLX_OK)
        return st;
    snprintf(name, sizeof name, "%s.norm.weight", module);
    return mx_load_vector(l, prefix, name, lay->dv, 0, &g->norm, err);
}

/* ---- SwiGLU MLP --------------------------------------------------------------------------- */

void mx_mlp_run(struct mx_device *d, const struct mx_mlp_block *m, const float *x, int n,
                float *gate, float *up, float *tmp, float *y)
{
    int ff = (int)m->gate.w.out;
    struct mx_product p[] = {{&m->gate, gate}, {&m->up, up}};
    mx_linear_apply(d, p, 2, x, n, tmp);
    d->ops->swiglu(d, gate, ff, up, ff, gate, ff, n, ff);
    struct mx_product out = {&m->down, y};
    mx_linear_apply(d, &out, 1, gate, n, tmp);
}

mtplx_status mx_mlp_load(struct mx_loader *l, const char *prefix, const char *module, int hidden,
                         int ff, struct mx_mlp_block *m, mtplx_error *err)
{
    const struct matrix mats[] = {
        {"gate_proj", ff, hidden, &m->gate},
        {"up_proj", ff, hidden, &m->up},
        {"down_proj", hidden, ff, &m->down},
    };
    return load_matrices(l, prefix, module, mats, sizeof mats / sizeof *mats, err);
}
