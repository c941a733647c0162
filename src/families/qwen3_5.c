/* Qwen3.5 dense family (also 3.6 and 3.8 dense, which share graph and model_type).
 *
 * A hybrid decoder: Gated DeltaNet layers with a gated full-attention layer every few, SwiGLU MLPs,
 * zero-centred RMSNorms, and an MTP head of one gated attention layer that reads
 * fc([norm(embed(next token)) ; norm(hidden)]) and shares embedding and output head with the trunk.
 *
 * Source of the graph: transformers `modeling_qwen3_5`, checked against recorded outputs in
 * tests/golden. Tensor names: docs/ARCHITECTURE.md, "Checkpoints". */
#include "families/blocks.h"

#include <math.h>

#include <stdio.h>
#include <string.h>

enum scratch {
    S_RESIDUAL, /* [n][hidden] */
    S_X,        /* [n][hidden]: normed input of a block */
    S_Y,        /* [n][hidden]: output of a block */
    S_WIDE,     /* q, or qkv, or MLP gate */
    S_WIDE2,    /* k then v, or z, or MLP up */
    S_CORE,     /* attention or delta output */
    S_SMALL,    /* b and a of Gated DeltaNet */
    S_PAIR,     /* [n][2 * hidden]: MTP fc input */
    S_LORA,     /* LoRA intermediates */
    S_COUNT,
};

struct layer {
    bool full; /* full attention, else Gated DeltaNet */
    int slot;  /* index among the layers of its kind */
    float *input_norm, *post_norm;
    struct mx_attn_block attn;
    struct mx_gdn_block gdn;
    struct mx_mlp_block mlp;
};

struct mtp {
    struct mx_linear fc;
    float *norm_embedding, *norm_hidden, *norm;
    struct layer layer;
};

struct qwen {
    struct mx_geometry g;
    float eps;
    struct mx_linear embed, head; /* head aliases embed when tied */
    float *norm;
    struct layer *layers;
    struct mx_rope rope;
    struct mtp mtp;
};

/* ---- Configuration ------------------------------------------------------------------------ */

struct shape {
    int hidden, layers, vocab, context, ff, heads, kv_heads, head_dim, interval;
    int key_heads, value_heads, dk, dv, kernel, mtp_layers, n_freq;
    int sections[3];
    bool interleaved, has_sections;
    bool tied, mtp_embeddings;
    double eps, theta, partial;
};

static mtplx_status read_sizes(const struct mx_config *c, struct shape *s, mtplx_error *err)
{
    const struct {
        const char *key;
        int min, max, *out;
    } fields[] = {
        {"hidden_size", 1, 1 << 20, &s->hidden},
        {"num_hidden_layers", 1, 4096, &s->layers},
        {"vocab_size", 1, 1 << 24, &s->vocab},
        {"max_position_embeddings", 1, 1 << 26, &s->context},
        {"intermediate_size", 1, 1 << 20, &s->ff},
        {"num_attention_heads", 1, 4096, &s->heads},
        {"num_key_value_heads", 1, 4096, &s->kv_heads},
        {"head_dim", 2, MX_KV_MAX_HEAD_DIM, &s->head_dim},
        {"linear_num_key_heads", 1, 4096, &s->key_heads},
        {"linear_num_value_heads", 1, 4096, &s->value_heads},
        {"linear_key_head_dim", 1, MX_GDN_MAX_DIM, &s->dk},
        {"linear_value_head_dim", 1, MX_GDN_MAX_DIM, &s->dv},
        {"linear_conv_kernel_dim", 2, 16, &s->kernel},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        mtplx_status st =
            mx_config_int(c, fields[i].key, fields[i].min, fields[i].max, fields[i].out, err);
        if (st != MTPLX_OK)
            return st;
    }
    if (s->heads % s->kv_heads != 0)
        return mx_error(err, MTPLX_ERR_FORMAT,
                        "%s: num_attention_heads %d is not a multiple of num_key_value_heads %d",
                        c->path, s->heads, s->kv_heads);
    if (s->value_heads % s->key_heads != 0)
        return mx_error(
            err, MTPLX_ERR_FORMAT,
            "%s: linear_num_value_heads %d is not a multiple of linear_num_key_heads %d", c->path,
            s->value_heads, s->key_heads);
    return MTPLX_OK;
}

static mtplx_status read_sections(const struct mx_config *c, const json_t *rope, struct shape *s,
                                  mtplx_error *err)
{
    const json_t *sec = json_object_get(rope, "mrope_section");
    s->interleaved = json_is_true(json_object_get(rope, "mrope_interleaved"));
    if (!sec || json_is_null(sec))
        return MTPLX_OK;
    long long sum = 0;
    for (size_t i = 0; i < 3; i++) {
        const json_t *v = json_array_get(sec, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 4096)
            return mx_error(err, MTPLX_ERR_FORMAT,
                            "%s: mrope_section must be three counts of rotary frequencies",
                            c->path);
        s->sections[i] = (int)json_integer_value(v);
        sum += s->sections[i];
    }
    if (sum != s->n_freq)
        return mx_error(err, MTPLX_ERR_FORMAT,
                        "%s: mrope_section adds up to %lld but there are %d rotary frequencies",
                        c->path, sum, s->n_freq);
    s->has_sections = true;
    return MTPLX_OK;
}

/* rope_parameters {rope_type, rope_theta, partial_rotary_factor, mrope_*}; older files keep
 * rope_theta and partial_rotary_factor beside it and name the object rope_scaling. */
static mtplx_status read_rope(const struct mx_config *c, struct shape *s, mtplx_error *err)
{
    const json_t *rope = mx_config_get(c, "rope_parameters");
    if (!rope)
        rope = mx_config_get(c, "rope_scaling");
    if (rope && !json_is_object(rope))
        return mx_error(err, MTPLX_ERR_FORMAT, "%s: field 'rope_parameters' must be an object",
                        c->path);
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    if (!type)
        type = json_string_value(json_object_get(rope, "type")); /* before transformers 4.43 */
    if (type && strcmp(type, "default") != 0 && strcmp(type, "mrope") != 0)
        return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                        "%s: rope_type '%s' is not supported; remove the context extension or use "
                        "'default'",
                        c->path, type);
    mtplx_status st;
    const json_t *theta = json_object_get(rope, "rope_theta");
    const json_t *partial = json_object_get(rope, "partial_rotary_factor");
    if ((st = mx_config_float_or(c, "rope_theta", 1, 1e12, 0, &s->theta, err)) != MTPLX_OK ||
        (st = mx_config_float_or(c, "partial_rotary_factor", 0.01, 1, 0.25, &s->partial, err)) !=
            MTPLX_OK)
        return st;
    if (theta)
        s->theta = json_number_value(theta);
    if (partial)
        s->partial = json_number_value(partial);
    if (!(s->theta >= 1 && s->theta <= 1e12) || !(s->partial > 0 && s->partial <= 1))
        return mx_error(err, MTPLX_ERR_FORMAT,
                        "%s: rope_theta must be at least 1 and partial_rotary_factor in (0, 1]",
                        c->path);
    s->n_freq = (int)(s->head_dim * s->partial) / 2;
    if (s->n_freq < 1)
        return mx_error(err, MTPLX_ERR_FORMAT, "%s: partial_rotary_factor leaves no rotary dims",
                        c->path);
    return read_sections(c, rope, s, err);
}

static mtplx_status read_shape(const struct mx_config *c, struct shape *s, mtplx_error *err)
{
    mtplx_status st;
    bool gate = true, bias = false;
    const char *act = NULL, *zact = NULL;
    memset(s, 0, sizeof *s);
    if ((st = read_sizes(c, s, err)) != MTPLX_OK || (st = read_rope(c, s, err)) != MTPLX_OK ||
        (st = mx_config_float_or(c, "rms_norm_eps", 0, 1, 1e-6, &s->eps, err)) != MTPLX_OK ||
        (st = mx_config_int_or(c, "full_attention_interval", 1, 4096, 4, &s->interval, err)) !=
            MTPLX_OK ||
        (st = mx_config_int_or(c, "mtp_num_hidden_layers", 0, 8, 0, &s->mtp_layers, err)) !=
            MTPLX_OK ||
        (st = mx_config_bool_or(c, "attn_output_gate", true, &gate, err)) != MTPLX_OK ||
        (st = mx_config_bool_or(c, "attention_bias", false, &bias, err)) != MTPLX_OK ||
        (st = mx_config_bool_or(c, "tie_word_embeddings", false, &s->tied, err)) != MTPLX_OK ||
        (st = mx_config_bool_or(c, "mtp_use_dedicated_embeddings", false, &s->mtp_embeddings,
                                err)) != MTPLX_OK ||
        (st = mx_config_str(c, "hidden_act", &act, err)) != MTPLX_OK ||
        (st = mx_config_str(c, "output_gate_type", &zact, err)) != MTPLX_OK)
        return st;
    /* The wrapper of a VL checkpoint states tying at the root, which then counts. */
    const json_t *tied = json_object_get(c->root, "tie_word_embeddings");
    if (json_is_boolean(tied))
        s->tied = json_is_true(tied);
    if (!gate || bias || (act && strcmp(act, "silu") != 0) ||
        (zact && strcmp(zact, "swish") != 0 && strcmp(zact, "silu") != 0))
        return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                        "%s: attn_output_gate, attention_bias, hidden_act or output_gate_type "
                        "differs from every released Qwen3.5 model",
                        c->path);
    return MTPLX_OK;
}

/* layer_types when given, else every interval-th layer is full attention. */
static mtplx_status layer_kinds(const struct mx_config *c, const struct shape *s,
                                struct layer *layers, struct mx_geometry *g, mtplx_error *err)
{
    const json_t *types = mx_config_get(c, "layer_types");
    if (types && (!json_is_array(types) || (int)json_array_size(types) != s->layers))
        return mx_error(err, MTPLX_ERR_FORMAT,
                        "%s: layer_types must list exactly num_hidden_layers (%d) names", c->path,
                        s->layers);
    for (int i = 0; i < s->layers; i++) {
        const char *t = json_string_value(json_array_get(types, (size_t)i));
        bool full = (i + 1) % s->interval == 0;
        if (types) {
            full = t && strcmp(t, "full_attention") == 0;
            if (!full && (!t || strcmp(t, "linear_attention") != 0))
                return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                                "%s: layer_types[%d] is '%s'; expected linear_attention or "
                                "full_attention",
                                c->path, i, t ? t : "(not a string)");
        }
        layers[i].full = full;
        layers[i].slot = full ? g->kv.layers++ : g->gdn.layers++;
    }
    return MTPLX_OK;
}

/* ---- Norm convention ---------------------------------------------------------------------- */

/* Mean over the norm vectors of a prefix that are stored either as w - 1 or as w. */
static bool norm_mean(const struct mx_loader *l, const char *prefix, const char *const *names,
                      int layers, double *mean)
{
    double sum = 0;
    int count = 0;
    for (int i = 0; i < layers; i++)
        for (int j = 0; names[j]; j++) {
            char name[MX_NAME_MAX];
            snprintf(name, sizeof name, "layers.%d.%s.weight", i, names[j]);
            const struct mx_tensor *t = mx_load_find(l, prefix, name);
            if (!t)
                continue;
            sum += mx_tensor_mean(t);
            count++;
        }
    *mean = count ? sum / count : 0;
    return count > 0;
}

static const char *const block_norms[] = {"input_layernorm", "post_attention_layernorm", NULL};

/* Raw Hugging Face files store w - 1 (mean near 0) with conv1d as [C, 1, K]; MLX files store w
 * (mean near 1) with conv1d as [C, K, 1]. The values decide, since a wrong shift ruins the output;
 * a layout that says otherwise is reported. */
static void detect_trunk_norms(struct mx_loader *l, const char *prefix, const struct shape *s)
{
    double mean = 0;
    const struct mx_tensor *conv = NULL;
    if (mx_checkpoint_export(l->ck).baked_norms) {
        l->trunk_norms = MX_NORM_BAKED;
        return;
    }
    for (int i = 0; i < s->layers && !conv; i++) {
        char name[MX_NAME_MAX];
        snprintf(name, sizeof name, "layers.%d.linear_attn.conv1d.weight", i);
        conv = mx_load_find(l, prefix, name);
    }
    norm_mean(l, prefix, block_norms, s->layers, &mean);
    l->trunk_norms = mean < 0.5 ? MX_NORM_RAW : MX_NORM_BAKED;
    l->norms_ambiguous = !(mean < 0.3 || mean > 0.7); /* also when it is NaN */
    if (conv && conv->ndim == 3) {
        bool mlx = conv->shape[2] == 1 && conv->shape[1] != 1;
        l->norms_ambiguous |= mlx != (l->trunk_norms == MX_NORM_BAKED);
    }
}

/* An MTP side file may follow either convention whatever the trunk does: the one whose full factor
 * lies closer to the trunk's is taken. */
static void detect_mtp_norms(struct mx_loader *l, const char *trunk, const char *mtp,
                             const struct shape *s)
{
    double t = 0, m = 0;
    if (mx_checkpoint_export(l->ck).baked_norms) {
        l->mtp_norms = MX_NORM_BAKED;
        return;
    }
    norm_mean(l, trunk, block_norms, s->layers, &t);
    if (l->trunk_norms == MX_NORM_RAW)
        t += 1;
    if (!norm_mean(l, mtp, block_norms, s->mtp_layers, &m))
        return;
    double raw = m + 1 > t ? m + 1 - t : t - m - 1, baked = m > t ? m - t : t - m;
    l->mtp_norms = raw <= baked ? MX_NORM_RAW : MX_NORM_BAKED;
    if ((raw < baked ? baked - raw : raw - baked) < 0.2)
        l->norms_ambiguous = true;
}

/* ---- Loading ------------------------------------------------------------------------------ */

static mtplx_status load_layer(struct mx_loader *l, const struct qwen *m, const char *prefix,
                               int index, const struct shape *s, float add, struct layer *ly,
                               mtplx_error *err)
{
    char name[MX_NAME_MAX];
    mtplx_status st;
    snprintf(name, sizeof name, "layers.%d.input_layernorm.weight", index);
    if ((st = mx_load_vector(l, prefix, name, s->hidden, add, &ly->input_norm, err)) != MTPLX_OK)
        return st;
    snprintf(name, sizeof name, "layers.%d.post_attention_layernorm.weight", index);
    if ((st = mx_load_vector(l, prefix, name, s->hidden, add, &ly->post_norm, err)) != MTPLX_OK)
        return st;
    l->requant = l->in_mtp ? l->options->mtp_proj_quant : MTPLX_PROJ_KEEP;
    if (ly->full) {
        ly->attn.heads = s->heads;
        ly->attn.q_stride = 2 * s->head_dim;
        ly->attn.gated = true;
        ly->attn.scale = 1.0f / sqrtf((float)s->head_dim);
        ly->attn.eps = m->eps;
        snprintf(name, sizeof name, "layers.%d.self_attn", index);
        st =
            mx_attn_load(l, prefix, name, s->hidden, s->kv_heads, s->head_dim, add, &ly->attn, err);
    } else {
        ly->gdn.eps = m->eps;
        snprintf(name, sizeof name, "layers.%d.linear_attn", index);
        st = mx_gdn_load(l, prefix, name, s->hidden, &m->g.gdn, &ly->gdn, err);
    }
    if (st != MTPLX_OK)
        return st;
    l->requant = l->in_mtp ? l->options->mtp_proj_quant : l->options->mlp_proj_quant;
    snprintf(name, sizeof name, "layers.%d.mlp", index);
    st = mx_mlp_load(l, prefix, name, s->hidden, s->ff, &ly->mlp, err);
    l->requant = MTPLX_PROJ_KEEP;
    return st;
}

static float norm_add(enum mx_norm_encoding e)
{
    return e == MX_NORM_RAW ? 1.0f : 0.0f;
}

/* The MTP head: under "mtp." in whatever wrapper the exporter used, or bare as drafter files have
 * it. A side file was put there to be used, so its head goes before one inside the main files. */
static const char *mtp_prefix(const struct mx_loader *l)
{
    static const char *const prefixes[] = {
        "mtp.", "language_model.mtp.", "model.mtp.", "model.language_model.mtp.", "", NULL};
    for (int side = 1; side >= 0; side--)
        for (int i = 0; prefixes[i]; i++) {
            const struct mx_tensor *t = mx_load_find(l, prefixes[i], "fc.weight");
            if (t && mx_load_find(l, prefixes[i], "pre_fc_norm_hidden.weight") &&
                mx_checkpoint_is_side(l->ck, t) >= side)
                return prefixes[i];
        }
    return NULL;
}

static mtplx_status load_mtp(struct mx_loader *l, struct qwen *m, const char *trunk,
                             const struct shape *s, mtplx_error *err)
{
    struct mtp *h = &m->mtp;
    const char *prefix = mtp_prefix(l);
    mtplx_status st;
    if (!prefix)
        return MTPLX_OK;
    if (s->mtp_layers > 1 || s->mtp_embeddings)
        return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                        "%s: an MTP head of several layers or with its own embeddings is not "
                        "supported (no released model has one); load without MTP",
                        l->cfg->path);
    l->mtp_source = mx_load_find(l, prefix, "fc.weight")->file;
    detect_mtp_norms(l, trunk, prefix, s);
    float add = norm_add(l->mtp_norms);
    l->in_mtp = true;
    l->requant = l->options->mtp_proj_quant;
    h->layer.full = true;
    if ((st = mx_load_linear(l, prefix, "fc", s->hidden, 2 * (int64_t)s->hidden, &h->fc, err)) !=
            MTPLX_OK ||
        (st = mx_load_vector(l, prefix, "pre_fc_norm_embedding.weight", s->hidden, add,
                             &h->norm_embedding, err)) != MTPLX_OK ||
        (st = mx_load_vector(l, prefix, "pre_fc_norm_hidden.weight", s->hidden, add,
                             &h->norm_hidden, err)) != MTPLX_OK ||
        (st = mx_load_vector(l, prefix, "norm.weight", s->hidden, add, &h->norm, err)) != MTPLX_OK)
        return st;
    if ((st = load_layer(l, m, prefix, 0, s, add, &h->layer, err)) != MTPLX_OK)
        return st;
    l->in_mtp = false;
    m->g.has_mtp = true;
    return MTPLX_OK;
}

static const char *trunk_prefix(const struct mx_loader *l)
{
    static const char *const prefixes[] = {"model.language_model.", "language_model.model.",
                                           "model.", NULL};
    for (int i = 0; prefixes[i]; i++)
        if (mx_load_find(l, prefixes[i], "embed_tokens.weight"))
            return prefixes[i];
    return NULL;
}

/* The output head at its three places; embed_tokens itself when tied. */
static mtplx_status load_head(struct mx_loader *l, struct qwen *m, const struct shape *s,
                              mtplx_error *err)
{
    static const char *const prefixes[] = {"", "language_model.", "model.", NULL};
    for (int i = 0; prefixes[i] && !s->tied; i++)
        if (mx_load_find(l, prefixes[i], "lm_head.weight"))
            return mx_load_linear(l, prefixes[i], "lm_head", s->vocab, s->hidden, &m->head, err);
    if (!s->tied)
        return mx_error(err, MTPLX_ERR_FORMAT,
                        "%s: tensor 'lm_head.weight' is missing and tie_word_embeddings is false",
                        mx_checkpoint_dir(l->ck));
    m->head = m->embed;
    return MTPLX_OK;
}

static void fill_geometry(const struct shape *s, struct mx_geometry *g, int lora_floats)
{
    int64_t q = 2 * (int64_t)s->heads * s->head_dim, kv = (int64_t)s->kv_heads * s->head_dim;
    int64_t value = (int64_t)s->value_heads * s->dv, conv = mx_gdn_conv_dim(&g->gdn);
    int64_t wide = q > conv ? q : conv, wide2 = 2 * kv > value ? 2 * kv : value;
    int64_t core = (int64_t)s->heads * s->head_dim;
    g->scratch[S_RESIDUAL] = g->scratch[S_X] = g->scratch[S_Y] = s->hidden;
    g->scratch[S_WIDE] = wide > s->ff ? wide : s->ff;
    g->scratch[S_WIDE2] = wide2 > s->ff ? wide2 : s->ff;
    g->scratch[S_CORE] = core > value ? core : value;
    g->scratch[S_SMALL] = 2 * s->value_heads;
    g->scratch[S_PAIR] = 2 * (int64_t)s->hidden;
    g->scratch[S_LORA] = lora_floats > 0 ? lora_floats : 1;
}

static void init_geometry(const struct shape *s, struct mx_geometry *g)
{
    g->layers = s->layers;
    g->hidden = s->hidden;
    g->vocab = s->vocab;
    g->context = s->context;
    g->kv.kv_heads = g->mtp_kv.kv_heads = s->kv_heads;
    g->kv.head_dim = g->mtp_kv.head_dim = s->head_dim;
    g->mtp_kv.layers = s->mtp_layers;
    g->gdn.key_heads = s->key_heads;
    g->gdn.value_heads = s->value_heads;
    g->gdn.dk = s->dk;
    g->gdn.dv = s->dv;
    g->gdn.kernel = s->kernel;
}

/* Floats per row that the widest LoRA term of the MTP head needs: rank and output side by side. */
static int lora_floats(const struct mtp *h)
{
    int64_t most = 0;
    const struct layer *ly = &h->layer;
    const struct mx_linear *all[] = {&h->fc,      &ly->attn.q,   &ly->attn.k, &ly->attn.v,
                                     &ly->attn.o, &ly->mlp.gate, &ly->mlp.up, &ly->mlp.down};
    for (size_t j = 0; j < sizeof all / sizeof *all; j++)
        if (all[j]->lora && all[j]->lora->rank + all[j]->w.out > most)
            most = all[j]->lora->rank + all[j]->w.out;
    return (int)most;
}

static mtplx_status load_trunk(struct mx_loader *l, struct qwen *m, const char *prefix,
                               const struct shape *s, mtplx_error *err)
{
    mtplx_status st =
        mx_load_linear(l, prefix, "embed_tokens", s->vocab, s->hidden, &m->embed, err);
    if (st != MTPLX_OK || (st = load_head(l, m, s, err)) != MTPLX_OK)
        return st;
    float add = norm_add(l->trunk_norms);
    if ((st = mx_load_vector(l, prefix, "norm.weight", s->hidden, add, &m->norm, err)) != MTPLX_OK)
        return st;
    for (int i = 0; i < s->layers; i++)
        if ((st = load_layer(l, m, prefix, i, s, add, &m->layers[i], err)) != MTPLX_OK)
            return st;
    return MTPLX_OK;
}

static void *load(struct mx_loader *l, struct mx_geometry *g, mtplx_error *err)
{
    struct shape s;
    struct mx_arena *arena = &l->weights->arena;
    if (mx_load_check_quant(l, err) != MTPLX_OK || read_shape(l->cfg, &s, err) != MTPLX_OK)
        return NULL;
    const char *prefix = trunk_prefix(l);
    if (!prefix) {
        mx_error(err, MTPLX_ERR_FORMAT,
                 "%s: no 'embed_tokens.weight' under model., model.language_model. or "
                 "language_model.model.; this is not a complete Qwen3.5 checkpoint",
                 mx_checkpoint_dir(l->ck));
        return NULL;
    }
    struct qwen *m = mx_arena_alloc(arena, sizeof *m);
    if (m)
        m->layers = mx_arena_alloc(arena, (size_t)s.layers * sizeof *m->layers);
    if (!m || !m->layers) {
        mx_error_nomem(err, "the layer table", (size_t)s.layers * sizeof *m->layers);
        return NULL;
    }
    if (s.mtp_layers == 0 && mtp_prefix(l))
        s.mtp_layers = 1; /* exporters drop the count but keep the head */
    m->eps = (float)s.eps;
    m->g = *g; /* the runtime's part: KV type and block size, tape rows */
    init_geometry(&s, &m->g);
    m->g.gdn.tiled_heads = mx_checkpoint_export(l->ck).tiled_heads;
    if (layer_kinds(l->cfg, &s, m->layers, &m->g, err) != MTPLX_OK)
        return NULL;
    detect_trunk_norms(l, prefix, &s);
    if (mx_rope_load(l, s.theta, s.n_freq, s.has_sections ? s.sections : NULL, s.interleaved,
                     &m->rope, err) != MTPLX_OK ||
        load_trunk(l, m, prefix, &s, err) != MTPLX_OK)
        return NULL;
    if (!l->options->no_mtp && s.mtp_layers > 0 && load_mtp(l, m, prefix, &s, err) != MTPLX_OK)
        return NULL;
    fill_geometry(&s, &m->g, m->g.has_mtp ? lora_floats(&m->mtp) : 0);
    *g = m->g;
    return m;
}

/* ---- Running ------------------------------------------------------------------------------ */

/* Runs the mixer of one layer on S_X into S_Y. */
static void run_mixer(const struct qwen *m, struct mx_exec *x, const struct layer *ly,
                      const struct mx_kv_layout *kv, const struct mx_batch *b)
{
    float **s = x->scratch;
    if (!ly->full) {
        mx_gdn_run(x->device, &ly->gdn, &m->g.gdn, ly->slot, b, s[S_X], s[S_WIDE], s[S_WIDE2],
                   s[S_SMALL], s[S_CORE], s[S_Y]);
        return;
    }
    float *k = s[S_WIDE2], *v = k + (int64_t)b->n * kv->kv_heads * kv->head_dim;
    mx_attn_run(x->device, &ly->attn, &m->rope, kv, ly->slot, b, s[S_X], s[S_WIDE], k, v, s[S_CORE],
                s[S_LORA], s[S_Y]);
}

/* One layer: residual in S_RESIDUAL, its normed form in S_X; leaves the next norm of it in `out`.
 */
static void run_layer(const struct qwen *m, struct mx_exec *x, const struct layer *ly,
                      const struct mx_kv_layout *kv, const struct mx_batch *b,
                      const float *next_norm, float *out)
{
    float **s = x->scratch;
    struct mx_device *d = x->device;
    int dim = m->g.hidden;
    run_mixer(m, x, ly, kv, b);
    d->ops->add_rmsnorm(d, s[S_RESIDUAL], dim, s[S_Y], dim, ly->post_norm, m->eps, s[S_X], dim,
                        b->n, dim);
    mx_mlp_run(d, &ly->mlp, s[S_X], b->n, s[S_WIDE], s[S_WIDE2], s[S_LORA], s[S_Y]);
    d->ops->add_rmsnorm(d, s[S_RESIDUAL], dim, s[S_Y], dim, next_norm, m->eps, out, dim, b->n, dim);
}

static void forward(const void *arch, struct mx_exec *x, const struct mx_batch *b, float *hidden)
{
    const struct qwen *m = arch;
    struct mx_device *d = x->device;
    float **s = x->scratch;
    int dim = m->g.hidden, last = m->g.layers - 1;
    d->ops->embed(d, &m->embed.w, b->tokens, b->n, s[S_RESIDUAL], dim);
    if (x->trace)
        x->trace(x->trace_arg, -1, s[S_RESIDUAL], b->n);
    d->ops->rmsnorm(d, s[S_RESIDUAL], dim, m->layers[0].input_norm, m->eps, s[S_X], dim, b->n, dim);
    for (int i = 0; i <= last; i++) {
        const float *next = i < last ? m->layers[i + 1].input_norm : m->norm;
        run_layer(m, x, &m->layers[i], &m->g.kv, b, next, i < last ? s[S_X] : hidden);
        if (x->trace)
            x->trace(x->trace_arg, i, s[S_RESIDUAL], b->n);
    }
}

/* History rows need no query, output or MLP: their hidden state is not used. */
static void store_history(const struct qwen *m, struct mx_exec *x, const struct mx_batch *b)
{
    float **s = x->scratch;
    const struct mx_kv_layout *kv = &m->g.mtp_kv;
    float *k = s[S_WIDE2], *v = k + (int64_t)b->n * kv->kv_heads * kv->head_dim;
    mx_attn_run(x->device, &m->mtp.layer.attn, &m->rope, kv, 0, b, s[S_X], NULL, k, v, NULL,
                s[S_LORA], NULL);
}

static void mtp_forward(const void *arch, struct mx_exec *x, const struct mx_batch *b,
                        const float *hidden_in, float *hidden_out)
{
    const struct qwen *m = arch;
    const struct mtp *h = &m->mtp;
    struct mx_device *d = x->device;
    float **s = x->scratch, *pair = s[S_PAIR];
    int dim = m->g.hidden;
    d->ops->embed(d, &m->embed.w, b->tokens, b->n, s[S_Y], dim);
    d->ops->rmsnorm(d, s[S_Y], dim, h->norm_embedding, m->eps, pair, 2 * dim, b->n, dim);
    d->ops->rmsnorm(d, hidden_in, dim, h->norm_hidden, m->eps, pair + dim, 2 * dim, b->n, dim);
    struct mx_product fc = {&h->fc, s[S_RESIDUAL]};
    mx_linear_apply(d, &fc, 1, pair, b->n, s[S_LORA]);
    d->ops->rmsnorm(d, s[S_RESIDUAL], dim, h->layer.input_norm, m->eps, s[S_X], dim, b->n, dim);
    if (hidden_out)
        run_layer(m, x, &h->layer, &m->g.mtp_kv, b, h->norm, hidden_out);
    else
        store_history(m, x, b);
}

static void logits(const void *arch, struct mx_exec *x, const float *hidden, int n, float *out)
{
    const struct qwen *m = arch;
    struct mx_product p = {&m->head, out};
    mx_linear_apply(x->device, &p, 1, hidden, n, NULL);
}

static const char *const model_types[] = {"qwen3_5", "qwen3_5_text", NULL};

const struct mx_family mx_family_qwen3_5 = {
    .name = "qwen3_5",
    .model_types = model_types,
    .load = load,
    .forward = forward,
    .mtp_forward = mtp_forward,
    .logits = logits,
};
