/* The tensors of a Qwen3.5 checkpoint with one MTP layer, in file order, and the geometries.
 *
 * Names are kept in both spellings, GGUF's and that of MLX (whose modules are those of Hugging
 * Face). Norms are all ones in both, since both store the full factor. */
#include "synth.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- Geometry ---------------------------------------------------------------------------------
 */

static const struct {
    const char *name;
    struct synth_geometry g;
} presets[] = {
    {"0.8b", {24, 1024, 3584, 8, 2, 256, 16, 16, 128, 248320, 262144, true, true}},
    {"2b", {24, 2048, 6144, 8, 2, 256, 16, 16, 128, 248320, 262144, true, true}},
    {"4b", {32, 2560, 9216, 16, 4, 256, 16, 32, 128, 248320, 262144, true, true}},
    {"9b", {32, 4096, 12288, 16, 4, 256, 16, 32, 128, 248320, 262144, false, true}},
    {"27b", {64, 5120, 17408, 24, 4, 256, 16, 48, 128, 248320, 262144, false, true}},
    {"1b", {24, 1024, 3584, 8, 2, 256, 16, 16, 128, 248320, 262144, false, true}},
    {"nano", {8, 512, 1280, 4, 2, 128, 2, 4, 128, 8192, 8192, true, true}},
};

bool synth_preset(const char *name, struct synth_geometry *g)
{
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (strcmp(presets[i].name, name) == 0) {
            *g = presets[i].g;
            return true;
        }
    return false;
}

mtplx_status synth_geometry_check(const struct synth_geometry *g, mtplx_error *err)
{
    if (g->hidden % 64 != 0 || g->ff % 64 != 0 || g->head_dim % 32 != 0 || g->state % 32 != 0)
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "--hidden and --ff must be multiples of 64, --head-dim and --state of 32");
    if (g->ff < g->hidden)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "--ff must not be smaller than --hidden");
    if (g->heads % g->kv_heads != 0)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "--heads must be a multiple of --kv-heads");
    if (g->value_heads % g->key_heads != 0)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "--value-heads must be a multiple of --key-heads");
    if (g->layers < SYNTH_INTERVAL)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "--layers must be at least %d, one of each kind",
                        SYNTH_INTERVAL);
    if (g->vocab < 512)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "--vocab must be at least 512");
    return MTPLX_OK;
}

/* ---- Tensors ----------------------------------------------------------------------------------
 */

/* Matrices read the residual stream at full size and write back to it at this share. */
#define BACK 0.02f

#define MAX_BLOCK_TENSORS 16

static struct synth_tensor *add(struct synth_plan *p, enum synth_kind kind, enum synth_role role,
                                int64_t rows, int64_t cols, float gain)
{
    struct synth_tensor *t = &p->tensors[p->count++];
    *t = (struct synth_tensor){
        .role = role, .kind = kind, .layer = -1, .rows = rows, .cols = cols, .gain = gain};
    return t;
}

__attribute__((format(printf, 3, 4))) static void set_name(char *out, size_t size, const char *fmt,
                                                           ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(out, size, fmt, ap);
    va_end(ap);
}

/* A layer's tensor: blk.<layer>.<gguf> and <prefix>layers.<index>.<mlx>. */
struct layer {
    struct synth_plan *plan;
    const struct synth_geometry *g;
    int number;         /* in the GGUF file */
    const char *prefix; /* "model." or "mtp." */
    int index;          /* behind that prefix */
};

static void add_layer_tensor(const struct layer *l, const char *gguf, const char *mlx,
                             enum synth_kind kind, enum synth_role role, int64_t rows, int64_t cols,
                             float gain)
{
    struct synth_tensor *t = add(l->plan, kind, role, rows, cols, gain);
    t->layer = l->number;
    set_name(t->gguf, sizeof t->gguf, "blk.%d.%s", l->number, gguf);
    set_name(t->mlx, sizeof t->mlx, "%slayers.%d.%s", l->prefix, l->index, mlx);
}

static void add_vector(const struct layer *l, const char *gguf, const char *mlx, int64_t n,
                       float value)
{
    add_layer_tensor(l, gguf, mlx, KIND_VECTOR, ROLE_FILL, 1, n, value);
}

static void add_matrix(const struct layer *l, const char *gguf, const char *mlx, int64_t rows,
                       int64_t cols, float gain)
{
    add_layer_tensor(l, gguf, mlx, KIND_MATRIX, ROLE_NOISE, rows, cols, gain);
}

static void add_attention(const struct layer *l)
{
    const struct synth_geometry *g = l->g;
    int64_t d = g->hidden, q = (int64_t)g->heads * g->head_dim,
            kv = (int64_t)g->kv_heads * g->head_dim;
    add_matrix(l, "attn_q.weight", "self_attn.q_proj", 2 * q, d, 1);
    add_matrix(l, "attn_k.weight", "self_attn.k_proj", kv, d, 1);
    add_layer_tensor(l, "attn_v.weight", "self_attn.v_proj", KIND_VALUE, ROLE_NOISE, kv, d, 1);
    add_matrix(l, "attn_output.weight", "self_attn.o_proj", d, q, BACK);
    add_vector(l, "attn_q_norm.weight", "self_attn.q_norm.weight", g->head_dim, 1);
    add_vector(l, "attn_k_norm.weight", "self_attn.k_norm.weight", g->head_dim, 1);
}

static void add_linear_attention(const struct layer *l)
{
    const struct synth_geometry *g = l->g;
    int64_t d = g->hidden, value = (int64_t)g->value_heads * g->state,
            conv = 2 * (int64_t)g->key_heads * g->state + value;
    add_layer_tensor(l, "attn_qkv.weight", "linear_attn.in_proj_qkv", KIND_VALUE, ROLE_NOISE, conv,
                     d, 1);
    add_matrix(l, "attn_gate.weight", "linear_attn.in_proj_z", value, d, 1);
    add_matrix(l, "ssm_beta.weight", "linear_attn.in_proj_b", g->value_heads, d, 1);
    add_matrix(l, "ssm_alpha.weight", "linear_attn.in_proj_a", g->value_heads, d, 1);
    add_layer_tensor(l, "ssm_conv1d.weight", "linear_attn.conv1d.weight", KIND_VECTOR, ROLE_NOISE,
                     conv, SYNTH_CONV, 0.5f);
    add_vector(l, "ssm_dt.bias", "linear_attn.dt_bias", g->value_heads, 0);
    /* A_log; the GGUF writer stores -exp(A_log). */
    add_vector(l, "ssm_a", "linear_attn.A_log", g->value_heads, 0);
    add_vector(l, "ssm_norm.weight", "linear_attn.norm.weight", g->state, 1);
    add_matrix(l, "ssm_out.weight", "linear_attn.out_proj", d, value, BACK);
}

/* gate, up and down: noise, or S under the given gate. */
static void add_ffn(const struct layer *l, enum synth_role gate)
{
    int64_t d = l->g->hidden, ff = l->g->ff;
    bool means = gate != ROLE_NOISE;
    add_layer_tensor(l, "ffn_gate.weight", "mlp.gate_proj", KIND_MATRIX, gate, ff, d, 1);
    add_layer_tensor(l, "ffn_up.weight", "mlp.up_proj", KIND_MATRIX, means ? ROLE_STEP : ROLE_NOISE,
                     ff, d, 1);
    add_layer_tensor(l, "ffn_down.weight", "mlp.down_proj", KIND_DOWN,
                     means ? ROLE_IDENTITY : ROLE_NOISE, d, ff, BACK);
}

static void add_block(const struct layer *l, bool full, enum synth_role gate)
{
    int64_t d = l->g->hidden;
    add_vector(l, "attn_norm.weight", "input_layernorm.weight", d, 1);
    add_vector(l, "post_attention_norm.weight", "post_attention_layernorm.weight", d, 1);
    if (full)
        add_attention(l);
    else
        add_linear_attention(l);
    add_ffn(l, gate);
}

static void add_named(struct synth_plan *p, const char *gguf, const char *mlx, enum synth_kind kind,
                      enum synth_role role, int64_t rows, int64_t cols, float gain)
{
    struct synth_tensor *t = add(p, kind, role, rows, cols, gain);
    set_name(t->gguf, sizeof t->gguf, "%s", gguf);
    set_name(t->mlx, sizeof t->mlx, "%s", mlx);
}

/* The last tensor is not one of an MLX layer. */
static void rename_mlx(struct synth_plan *p, const char *name)
{
    struct synth_tensor *t = &p->tensors[p->count - 1];
    set_name(t->mlx, sizeof t->mlx, "%s", name);
}

static void add_mtp(struct synth_plan *p, const struct synth_geometry *g)
{
    struct layer l = {p, g, g->layers, "mtp.", 0};
    int64_t d = g->hidden;
    static const struct {
        const char *gguf, *mlx;
    } norms[] = {
        {"nextn.enorm.weight", "mtp.pre_fc_norm_embedding.weight"},
        {"nextn.hnorm.weight", "mtp.pre_fc_norm_hidden.weight"},
        {"nextn.shared_head_norm.weight", "mtp.norm.weight"},
    };
    add_block(&l, true, ROLE_MODE_GATE);
    add_layer_tensor(&l, "nextn.eh_proj.weight", "", KIND_MATRIX, ROLE_FC, d, 2 * d, BACK);
    rename_mlx(p, "mtp.fc");
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++) {
        add_vector(&l, norms[i].gguf, "", d, 1);
        rename_mlx(p, norms[i].mlx);
    }
}

mtplx_status synth_plan_make(struct synth_plan *p, const struct synth_geometry *g, mtplx_error *err)
{
    int64_t d = g->hidden, v = g->vocab;
    size_t most = 3 + ((size_t)g->layers + 1) * MAX_BLOCK_TENSORS + 4;
    *p = (struct synth_plan){.tensors = calloc(most, sizeof *p->tensors)};
    if (!p->tensors)
        return mx_error_nomem(err, "the list of tensors", most * sizeof *p->tensors);
    add_named(p, "token_embd.weight", "model.embed_tokens", KIND_EMBED, ROLE_EMBED, v, d, 1);
    add_named(p, "output_norm.weight", "model.norm.weight", KIND_VECTOR, ROLE_FILL, 1, d, 1);
    if (!g->tied)
        add_named(p, "output.weight", "lm_head", KIND_HEAD, ROLE_EMBED, v, d, 1);
    for (int i = 0; i < g->layers; i++) {
        struct layer l = {p, g, i, "model.", i};
        add_block(&l, (i + 1) % SYNTH_INTERVAL == 0,
                  i == g->layers - 1 ? ROLE_OPEN_GATE : ROLE_NOISE);
    }
    if (g->mtp)
        add_mtp(p, g);
    return MTPLX_OK;
}

void synth_plan_free(struct synth_plan *p)
{
    free(p->tensors);
    *p = (struct synth_plan){0};
}

uint64_t synth_plan_parameters(const struct synth_plan *p)
{
    uint64_t n = 0;
    for (size_t i = 0; i < p->count; i++)
        n += (uint64_t)(p->tensors[i].rows * p->tensors[i].cols);
    return n;
}
