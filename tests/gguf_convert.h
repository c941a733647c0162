/* Converts a Qwen3.5 checkpoint directory to GGUF the way the usual converter does: block names,
 * norms with 1 added, -exp(A_log), value heads of the recurrent layers tiled instead of grouped.
 *
 * Written from the description of the format, not from the reader: names are spelled out again. */
#ifndef TESTS_GGUF_CONVERT_H
#define TESTS_GGUF_CONVERT_H

#include "gguf_writer.h"

#include "format/checkpoint.h"
#include "format/config.h"
#include "format/mlxq.h"

#include <math.h>
#include <stdlib.h>

struct conversion {
    int type;              /* of matrices whose rows are whole blocks; the others are F32 */
    int mix_type;          /* of ffn_down, when not 0 */
    bool no_mtp;           /* leave the MTP block out */
    bool no_text;          /* leave the tokenizer out */
    bool shared_norm;      /* leave nextn.shared_head_norm out */
    const char *skip_key;  /* metadata key to leave out */
    const char *skip_name; /* GGUF tensor to leave out */
};

struct converter {
    struct gguf_writer w;
    const struct conversion *how;
    struct mx_config cfg;
    struct mx_checkpoint *ck;
    const char *prefix; /* of the trunk in the source */
    bool raw_norms;
    int layers, key_heads, value_heads, dk, dv;
};

static inline int gc_int(const struct converter *c, const char *key)
{
    int v = 0;
    mtplx_error err = {0};
    if (mx_config_int(&c->cfg, key, 0, INT32_MAX, &v, &err) != MTPLX_OK)
        fail_msg("%s", err.message);
    return v;
}

static inline const struct mx_tensor *gc_find(const struct converter *c, const char *name)
{
    char full[256];
    snprintf(full, sizeof full, "%s%s", strncmp(name, "layers", 6) == 0 ? c->prefix : "", name);
    return mx_checkpoint_find(c->ck, full);
}

/* Row r of a tensor as float32, whatever it is stored as; vectors are one row. */
static inline void gc_row(const struct converter *c, const struct mx_tensor *t, int64_t r,
                          int64_t in, float *out)
{
    char path[256];
    struct mx_quant_spec q;
    if (t->dtype != MX_U32) {
        for (int64_t i = 0; i < in; i++)
            out[i] = mx_dtype_load(t->dtype, t->data, r * in + i);
        return;
    }
    size_t n = strlen(t->name) - strlen(".weight");
    snprintf(path, sizeof path, "%.*s", (int)n, t->name);
    assert_int_equal(mx_config_quant(&c->cfg, path, &q, NULL), MTPLX_OK);
    snprintf(path + n, sizeof path - n, ".scales");
    const struct mx_tensor *scales = mx_checkpoint_find(c->ck, path);
    snprintf(path + n, sizeof path - n, ".biases");
    const struct mx_tensor *biases = mx_checkpoint_find(c->ck, path);
    assert_true(scales && biases);
    size_t side = (size_t)(r * (in / q.group_size)) * (size_t)mx_dtype_bytes(scales->dtype);
    mx_mlxq_dequant_row((const uint8_t *)t->data + (size_t)r * mx_mlxq_row_bytes(q.bits, in),
                        (const uint8_t *)scales->data + side, (const uint8_t *)biases->data + side,
                        scales->dtype, q.bits, q.group_size, in, out);
}

/* Source index of tiled value head h: the j-th of key head k stands at j * key_heads + k. */
static inline int gc_source_head(const struct converter *c, int h)
{
    return h % c->key_heads * (c->value_heads / c->key_heads) + h / c->key_heads;
}

/* Where element i comes from when elements from `start` on are value heads of `dim` elements. */
static inline int64_t gc_source(const struct converter *c, int64_t i, int64_t start, int dim)
{
    if (dim == 0 || i < start)
        return i;
    return start + (int64_t)gc_source_head(c, (int)((i - start) / dim)) * dim + (i - start) % dim;
}

struct gc_order {
    int64_t row_start;
    int row_dim, col_dim; /* 0: in order */
};

static inline bool gc_skipped(const struct converter *c, const char *gguf)
{
    return c->how->skip_name && strcmp(c->how->skip_name, gguf) == 0;
}

/* A matrix [out][in] in the type asked for, rows and columns reordered. */
static inline void gc_matrix(struct converter *c, const char *hf, const char *gguf, int64_t out,
                             int64_t in, struct gc_order o)
{
    const struct mx_tensor *t = gc_find(c, hf);
    if (!t)
        fail_msg("the source lacks %s", hf);
    bool mix = c->how->mix_type && strstr(gguf, "ffn_down");
    int type = mix ? c->how->mix_type : c->how->type;
    if (mx_gguf_block_values(type) && in % mx_gguf_block_values(type) != 0)
        type = MX_GGUF_F32;
    if (gc_skipped(c, gguf))
        return;
    float *row = malloc((size_t)in * sizeof *row), *moved = malloc((size_t)in * sizeof *row);
    gw_info(&c->w, gguf, 2, (const int64_t[]){in, out}, (uint32_t)type);
    for (int64_t r = 0; r < out; r++) {
        gc_row(c, t, gc_source(c, r, o.row_start, o.row_dim), in, row);
        for (int64_t i = 0; i < in; i++)
            moved[i] = row[gc_source(c, i, 0, o.col_dim)];
        gw_row(&c->w, type, moved, in);
    }
    free(row);
    free(moved);
}

/* A vector of n: `add` to each, or the negative exponential, heads reordered. */
static inline void gc_vector(struct converter *c, const char *hf, const char *gguf, int64_t n,
                             float add, bool neg_exp, int head_dim)
{
    const struct mx_tensor *t = gc_find(c, hf);
    if (!t)
        fail_msg("the source lacks %s", hf);
    if (gc_skipped(c, gguf))
        return;
    float *v = malloc((size_t)n * sizeof *v), *moved = malloc((size_t)n * sizeof *v);
    gc_row(c, t, 0, n, v);
    for (int64_t i = 0; i < n; i++) {
        float x = v[gc_source(c, i, 0, head_dim)];
        moved[i] = neg_exp ? -expf(x) : x + add;
    }
    gw_info(&c->w, gguf, 1, &n, MX_GGUF_F32);
    gw_row(&c->w, MX_GGUF_F32, moved, n);
    free(v);
    free(moved);
}

static inline void gc_norm(struct converter *c, const char *hf, const char *gguf, int64_t n)
{
    gc_vector(c, hf, gguf, n, c->raw_norms ? 1.0f : 0.0f, false, 0);
}

#define GC_NAMES(hf_rest, gguf_rest)                                                               \
    (snprintf(hf, sizeof hf, "%s%d.%s", source, index, hf_rest),                                   \
     snprintf(gguf, sizeof gguf, "blk.%d.%s", block, gguf_rest))

static inline void gc_attention(struct converter *c, const char *source, int index, int block)
{
    char hf[128], gguf[128];
    int hidden = gc_int(c, "hidden_size"), hd = gc_int(c, "head_dim");
    int q = gc_int(c, "num_attention_heads") * hd, kv = gc_int(c, "num_key_value_heads") * hd;
    const struct gc_order as_is = {0};
    GC_NAMES("self_attn.q_proj.weight", "attn_q.weight");
    gc_matrix(c, hf, gguf, 2 * q, hidden, as_is);
    GC_NAMES("self_attn.k_proj.weight", "attn_k.weight");
    gc_matrix(c, hf, gguf, kv, hidden, as_is);
    GC_NAMES("self_attn.v_proj.weight", "attn_v.weight");
    gc_matrix(c, hf, gguf, kv, hidden, as_is);
    GC_NAMES("self_attn.o_proj.weight", "attn_output.weight");
    gc_matrix(c, hf, gguf, hidden, q, as_is);
    GC_NAMES("self_attn.q_norm.weight", "attn_q_norm.weight");
    gc_norm(c, hf, gguf, hd);
    GC_NAMES("self_attn.k_norm.weight", "attn_k_norm.weight");
    gc_norm(c, hf, gguf, hd);
}

/* conv1d: [C, 1, K] or [C, K, 1] in the source, the same bytes. */
static inline void gc_conv(struct converter *c, const char *hf, const char *gguf, int64_t channels,
                           int kernel)
{
    const struct mx_tensor *t = gc_find(c, hf);
    assert_non_null(t);
    gw_info(&c->w, gguf, 2, (const int64_t[]){kernel, channels}, MX_GGUF_F32);
    for (int64_t ch = 0; ch < channels; ch++) {
        float taps[16];
        gc_row(c, t, gc_source(c, ch, 2 * (int64_t)c->key_heads * c->dk, c->dv), kernel, taps);
        gw_row(&c->w, MX_GGUF_F32, taps, kernel);
    }
}

static inline void gc_linear(struct converter *c, const char *source, int index, int block)
{
    char hf[128], gguf[128];
    int hidden = gc_int(c, "hidden_size"), keys = 2 * c->key_heads * c->dk;
    int values = c->value_heads * c->dv;
    GC_NAMES("linear_attn.in_proj_qkv.weight", "attn_qkv.weight");
    gc_matrix(c, hf, gguf, keys + values, hidden, (struct gc_order){keys, c->dv, 0});
    GC_NAMES("linear_attn.in_proj_z.weight", "attn_gate.weight");
    gc_matrix(c, hf, gguf, values, hidden, (struct gc_order){0, c->dv, 0});
    GC_NAMES("linear_attn.in_proj_b.weight", "ssm_beta.weight");
    gc_matrix(c, hf, gguf, c->value_heads, hidden, (struct gc_order){0, 1, 0});
    GC_NAMES("linear_attn.in_proj_a.weight", "ssm_alpha.weight");
    gc_matrix(c, hf, gguf, c->value_heads, hidden, (struct gc_order){0, 1, 0});
    GC_NAMES("linear_attn.out_proj.weight", "ssm_out.weight");
    gc_matrix(c, hf, gguf, hidden, values, (struct gc_order){0, 0, c->dv});
    GC_NAMES("linear_attn.A_log", "ssm_a");
    gc_vector(c, hf, gguf, c->value_heads, 0, true, 1);
    GC_NAMES("linear_attn.dt_bias", "ssm_dt.bias");
    gc_vector(c, hf, gguf, c->value_heads, 0, false, 1);
    GC_NAMES("linear_attn.norm.weight", "ssm_norm.weight");
    gc_vector(c, hf, gguf, c->dv, 0, false, 0);
    GC_NAMES("linear_attn.conv1d.weight", "ssm_conv1d.weight");
    gc_conv(c, hf, gguf, keys + values, gc_int(c, "linear_conv_kernel_dim"));
}

static inline void gc_block(struct converter *c, const char *source, int index, int block,
                            bool full)
{
    char hf[128], gguf[128];
    int hidden = gc_int(c, "hidden_size"), ff = gc_int(c, "intermediate_size");
    const struct gc_order as_is = {0};
    GC_NAMES("input_layernorm.weight", "attn_norm.weight");
    gc_norm(c, hf, gguf, hidden);
    GC_NAMES("post_attention_layernorm.weight", "post_attention_norm.weight");
    gc_norm(c, hf, gguf, hidden);
    if (full)
        gc_attention(c, source, index, block);
    else
        gc_linear(c, source, index, block);
    GC_NAMES("mlp.gate_proj.weight", "ffn_gate.weight");
    gc_matrix(c, hf, gguf, ff, hidden, as_is);
    GC_NAMES("mlp.up_proj.weight", "ffn_up.weight");
    gc_matrix(c, hf, gguf, ff, hidden, as_is);
    GC_NAMES("mlp.down_proj.weight", "ffn_down.weight");
    gc_matrix(c, hf, gguf, hidden, ff, as_is);
}

static inline void gc_mtp(struct converter *c)
{
    static const char *const names[][2] = {
        {"mtp.pre_fc_norm_embedding.weight", "nextn.enorm.weight"},
        {"mtp.pre_fc_norm_hidden.weight", "nextn.hnorm.weight"},
        {"mtp.norm.weight", "nextn.shared_head_norm.weight"},
    };
    char gguf[128];
    int hidden = gc_int(c, "hidden_size");
    gc_block(c, "mtp.layers.", 0, c->layers, true);
    snprintf(gguf, sizeof gguf, "blk.%d.nextn.eh_proj.weight", c->layers);
    gc_matrix(c, "mtp.fc.weight", gguf, hidden, 2 * (int64_t)hidden, (struct gc_order){0});
    for (int i = 0; i < 2 + !c->how->shared_norm; i++) {
        snprintf(gguf, sizeof gguf, "blk.%d.%s", c->layers, names[i][1]);
        gc_norm(c, names[i][0], gguf, hidden);
    }
}

static inline void gc_meta_int(struct converter *c, const char *key, int v)
{
    char full[96];
    snprintf(full, sizeof full, "qwen35.%s", key);
    if (!c->how->skip_key || strcmp(c->how->skip_key, full) != 0)
        gw_put_u32(&c->w, full, (uint32_t)v);
}

static inline void gc_metadata(struct converter *c)
{
    const json_t *rope = mx_config_get(&c->cfg, "rope_parameters");
    const json_t *sections = json_object_get(rope, "mrope_section");
    int32_t dims[4] = {0};
    double part = json_number_value(json_object_get(rope, "partial_rotary_factor"));
    gw_put_str(&c->w, "general.architecture", "qwen35");
    gw_put_u32(&c->w, "general.alignment", 32);
    gc_meta_int(c, "block_count", c->layers + !c->how->no_mtp);
    if (!c->how->no_mtp)
        gc_meta_int(c, "nextn_predict_layers", 1);
    gc_meta_int(c, "context_length", gc_int(c, "max_position_embeddings"));
    gc_meta_int(c, "embedding_length", gc_int(c, "hidden_size"));
    gc_meta_int(c, "feed_forward_length", gc_int(c, "intermediate_size"));
    gc_meta_int(c, "attention.head_count", gc_int(c, "num_attention_heads"));
    gc_meta_int(c, "attention.head_count_kv", gc_int(c, "num_key_value_heads"));
    gc_meta_int(c, "attention.key_length", gc_int(c, "head_dim"));
    gc_meta_int(c, "attention.value_length", gc_int(c, "head_dim"));
    gc_meta_int(c, "full_attention_interval", gc_int(c, "full_attention_interval"));
    gc_meta_int(c, "rope.dimension_count", (int)(part * gc_int(c, "head_dim")));
    gc_meta_int(c, "ssm.conv_kernel", gc_int(c, "linear_conv_kernel_dim"));
    gc_meta_int(c, "ssm.state_size", c->dk);
    gc_meta_int(c, "ssm.group_count", c->key_heads);
    gc_meta_int(c, "ssm.time_step_rank", c->value_heads);
    gc_meta_int(c, "ssm.inner_size", c->value_heads * c->dv);
    for (size_t i = 0; i < 3; i++)
        dims[i] = (int32_t)json_integer_value(json_array_get(sections, i));
    gw_put_i32s(&c->w, "qwen35.rope.dimension_sections", dims, 4);
    gw_put_f32(&c->w, "qwen35.rope.freq_base",
               (float)json_number_value(json_object_get(rope, "rope_theta")));
    gw_put_f32(&c->w, "qwen35.attention.layer_norm_rms_epsilon",
               (float)json_number_value(mx_config_get(&c->cfg, "rms_norm_eps")));
}

/* The tokenizer of a directory: tokenizer.json and chat_template.jinja. */
static inline void gc_tokenizer(struct gguf_writer *w, const char *dir, const char *pre)
{
    char path[512];
    size_t len;
    json_t *id, *entry;
    const char *text;
    size_t i;
    const char *tokens[16384] = {0};
    static int32_t types[16384];
    int32_t n = 0;
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    json_t *root = json_load_file(path, 0, NULL), *model = json_object_get(root, "model");
    assert_non_null(model);
    json_object_foreach(json_object_get(model, "vocab"), text, id)
    {
        int32_t at = (int32_t)json_integer_value(id);
        tokens[at] = text;
        types[at] = 1;
        n = at >= n ? at + 1 : n;
    }
    json_array_foreach(json_object_get(root, "added_tokens"), i, entry)
    {
        int32_t at = (int32_t)json_integer_value(json_object_get(entry, "id"));
        tokens[at] = json_string_value(json_object_get(entry, "content"));
        types[at] = json_is_true(json_object_get(entry, "special")) ? 3 : 4;
        n = at >= n ? at + 1 : n;
    }
    gw_put_str(w, "tokenizer.ggml.model", "gpt2");
    gw_put_str(w, "tokenizer.ggml.pre", pre);
    gw_array(w, "tokenizer.ggml.tokens", MX_GV_STRING, (uint64_t)n);
    for (int32_t k = 0; k < n; k++) {
        char unused[32];
        snprintf(unused, sizeof unused, "[PAD%d]", k);
        types[k] = tokens[k] ? types[k] : 5;
        gw_string(&w->pairs, tokens[k] ? tokens[k] : unused,
                  strlen(tokens[k] ? tokens[k] : unused));
    }
    gw_put_i32s(w, "tokenizer.ggml.token_type", types, (size_t)n);
    const json_t *merges = json_object_get(model, "merges");
    gw_array(w, "tokenizer.ggml.merges", MX_GV_STRING, json_array_size(merges));
    json_array_foreach(merges, i, entry)
    {
        char both[600];
        snprintf(both, sizeof both, "%s %s", json_string_value(json_array_get(entry, 0)),
                 json_string_value(json_array_get(entry, 1)));
        gw_string(&w->pairs, both, strlen(both));
    }
    json_decref(root);
    snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
    char *chat = mx_file_read(path, 1 << 22, &len, NULL);
    assert_non_null(chat);
    gw_put_str(w, "tokenizer.chat_template", chat);
    free(chat);
}

/* Opens `dir` and writes it to c->w; the caller writes the file and calls gc_end(). */
static inline void gc_begin(struct converter *c, const char *dir, const struct conversion *how)
{
    mtplx_error err = {0};
    memset(c, 0, sizeof *c);
    gw_init(&c->w);
    c->how = how;
    if (mx_config_open(&c->cfg, dir, &err) != MTPLX_OK ||
        !(c->ck = mx_checkpoint_open(dir, c->cfg.root, &err)))
        fail_msg("%s", err.message);
    bool vl = mx_checkpoint_find(c->ck, "model.language_model.embed_tokens.weight") != NULL;
    c->prefix = vl ? "model.language_model." : "model.";
    c->layers = gc_int(c, "num_hidden_layers");
    c->key_heads = gc_int(c, "linear_num_key_heads");
    c->value_heads = gc_int(c, "linear_num_value_heads");
    c->dk = gc_int(c, "linear_key_head_dim");
    c->dv = gc_int(c, "linear_value_head_dim");
    c->raw_norms = true; /* every source in the tests is a Hugging Face one or made from one */
    gc_metadata(c);
    char name[256];
    int hidden = gc_int(c, "hidden_size"), vocab = gc_int(c, "vocab_size");
    snprintf(name, sizeof name, "%sembed_tokens.weight", c->prefix);
    gc_matrix(c, name, "token_embd.weight", vocab, hidden, (struct gc_order){0});
    snprintf(name, sizeof name, "%snorm.weight", c->prefix);
    gc_norm(c, name, "output_norm.weight", hidden);
    if (mx_checkpoint_find(c->ck, "lm_head.weight"))
        gc_matrix(c, "lm_head.weight", "output.weight", vocab, hidden, (struct gc_order){0});
    int interval = gc_int(c, "full_attention_interval");
    for (int i = 0; i < c->layers; i++)
        gc_block(c, "layers.", i, i, (i + 1) % interval == 0);
    if (!how->no_mtp)
        gc_mtp(c);
}

static inline void gc_end(struct converter *c)
{
    mx_checkpoint_close(c->ck);
    mx_config_close(&c->cfg);
    gw_free(&c->w);
}

#endif
