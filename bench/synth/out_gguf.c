/* GGUF files (version 3): header, metadata, tensor table, data aligned to 32 bytes.
 *
 * The mix of types follows what llama-quantize chooses for this architecture: see mix_type. The
 * vocabulary is a placeholder of the right size: bytes, numbered words and three special tokens, so
 * that programs which insist on a tokenizer load the file. */
#include "synth.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 32
#define SPECIALS 3
#define BYTES 256

enum { KV_U32 = 4, KV_I32 = 5, KV_F32 = 6, KV_BOOL = 7, KV_STRING = 8, KV_ARRAY = 9 };

/* Numbers of ggml_type and of llama_ftype. */
static const uint32_t type_numbers[] = {
    [SYNTH_F32] = 0,  [SYNTH_F16] = 1,   [SYNTH_BF16] = 30, [SYNTH_Q4_0] = 2,
    [SYNTH_Q8_0] = 8, [SYNTH_Q4_K] = 12, [SYNTH_Q5_K] = 13, [SYNTH_Q6_K] = 14,
};
static const struct {
    enum synth_type type;
    uint32_t number;
} mixes[] = {
    [MIX_Q4_0] = {SYNTH_Q4_0, 2},  [MIX_Q4_K_M] = {SYNTH_Q4_K, 15}, [MIX_Q5_K_M] = {SYNTH_Q5_K, 17},
    [MIX_Q6_K] = {SYNTH_Q6_K, 18}, [MIX_Q8_0] = {SYNTH_Q8_0, 7},    [MIX_F16] = {SYNTH_F16, 1},
};

/* ---- Types ------------------------------------------------------------------------------------
 */

/* The first and last eighth of the layers and every third between, the MTP layer counted. */
static bool has_more_bits(int layer, int layers)
{
    return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

/* llama-quantize's choice: the output matrix, or the embeddings where they serve as one, in Q6_K
 * at least; in the _M mixes attn_v, attn_qkv and ffn_down of some layers in Q6_K; one-dimensional
 * tensors and the convolution in F32. */
static enum synth_type mix_type(const struct synth_tensor *t, enum synth_mix mix, bool tied,
                                int layers)
{
    enum synth_type type = mixes[mix].type;
    if (t->kind == KIND_VECTOR)
        return SYNTH_F32;
    if (type == SYNTH_F16 || type == SYNTH_Q8_0)
        return type;
    if (t->kind == KIND_HEAD || (t->kind == KIND_EMBED && tied))
        return SYNTH_Q6_K;
    bool mixed = mix == MIX_Q4_K_M || mix == MIX_Q5_K_M;
    if (mixed && (t->kind == KIND_VALUE || t->kind == KIND_DOWN) && has_more_bits(t->layer, layers))
        return SYNTH_Q6_K;
    return type;
}

static mtplx_status choose_types(struct synth_plan *p, const struct synth_geometry *g,
                                 enum synth_mix mix, mtplx_error *err)
{
    for (size_t i = 0; i < p->count; i++) {
        struct synth_tensor *t = &p->tensors[i];
        t->type = mix_type(t, mix, g->tied, g->layers + g->mtp);
        int block = synth_block(t->type, NULL);
        if (t->cols % block != 0 || (t->role != ROLE_NOISE && block > 1 && g->hidden % block != 0))
            return mx_error(err, MTPLX_ERR_ARGUMENT,
                            "%s: rows of %" PRId64 " are not whole blocks of %d; choose another "
                            "--type or geometry",
                            t->gguf, t->cols, block);
        if (strstr(t->gguf, ".ssm_a") && t->kind == KIND_VECTOR && t->role == ROLE_FILL)
            t->gain = -expf(t->gain);
    }
    return MTPLX_OK;
}

/* ---- Metadata ---------------------------------------------------------------------------------
 */

struct out {
    FILE *f;
    uint64_t pairs; /* metadata entries written or counted */
    bool counting;  /* a dry pass, to know the number of entries first */
};

static void put(struct out *o, const void *data, size_t n)
{
    if (!o->counting)
        fwrite(data, 1, n, o->f);
}

static void put_u32(struct out *o, uint32_t v)
{
    put(o, &v, sizeof v);
}

static void put_u64(struct out *o, uint64_t v)
{
    put(o, &v, sizeof v);
}

static void put_text(struct out *o, const char *s)
{
    put_u64(o, strlen(s));
    put(o, s, strlen(s));
}

static void put_key(struct out *o, const char *key, uint32_t type)
{
    o->pairs++;
    put_text(o, key);
    put_u32(o, type);
}

static void kv_text(struct out *o, const char *key, const char *value)
{
    put_key(o, key, KV_STRING);
    put_text(o, value);
}

static void kv_u32(struct out *o, const char *key, int value)
{
    put_key(o, key, KV_U32);
    put_u32(o, (uint32_t)value);
}

static void kv_f32(struct out *o, const char *key, float value)
{
    put_key(o, key, KV_F32);
    put(o, &value, sizeof value);
}

static void kv_bool(struct out *o, const char *key, bool value)
{
    uint8_t byte = value;
    put_key(o, key, KV_BOOL);
    put(o, &byte, 1);
}

static void kv_array(struct out *o, const char *key, uint32_t type, uint64_t count)
{
    put_key(o, key, KV_ARRAY);
    put_u32(o, type);
    put_u64(o, count);
}

/* Token i: a byte in GPT-2's printable spelling, "Gw" + number with a leading blank's mark, or a
 * special token at the end. */
static void token_text(int i, int vocab, char *out, size_t size)
{
    static const char *const specials[SPECIALS] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    if (i >= vocab - SPECIALS) {
        snprintf(out, size, "%s", specials[i - (vocab - SPECIALS)]);
        return;
    }
    if (i >= BYTES) {
        snprintf(out, size, i == BYTES ? "\xc4\xa0w" : "\xc4\xa0w%d", i);
        return;
    }
    /* Printable bytes stand for themselves, in order; the others follow as U+0100 upwards. */
    static const int printable[3][2] = {{33, 126}, {161, 172}, {174, 255}};
    int left = i, code = 0;
    for (int r = 0; r < 3 && code == 0; r++) {
        int n = printable[r][1] - printable[r][0] + 1;
        if (left < n)
            code = printable[r][0] + left;
        left -= n;
    }
    if (code == 0)
        code = 256 + left;
    if (code < 128)
        snprintf(out, size, "%c", code);
    else
        snprintf(out, size, "%c%c", 0xc0 | code >> 6, 0x80 | (code & 63));
}

static void put_tokenizer(struct out *o, int vocab)
{
    char text[32];
    kv_text(o, "tokenizer.ggml.model", "gpt2");
    kv_text(o, "tokenizer.ggml.pre", "qwen35");
    kv_array(o, "tokenizer.ggml.tokens", KV_STRING, (uint64_t)vocab);
    for (int i = 0; i < vocab && !o->counting; i++) {
        token_text(i, vocab, text, sizeof text);
        put_text(o, text);
    }
    kv_array(o, "tokenizer.ggml.token_type", KV_I32, (uint64_t)vocab);
    for (int i = 0; i < vocab && !o->counting; i++)
        put_u32(o, i < vocab - SPECIALS ? 1 : 3); /* normal, control */
    kv_array(o, "tokenizer.ggml.merges", KV_STRING, 1);
    put_text(o, "\xc4\xa0 w");
    kv_u32(o, "tokenizer.ggml.eos_token_id", vocab - 1);
    kv_u32(o, "tokenizer.ggml.padding_token_id", vocab - SPECIALS);
    kv_bool(o, "tokenizer.ggml.add_bos_token", false);
    kv_text(o, "tokenizer.chat_template",
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
            "{% endfor %}<|im_start|>assistant\n");
}

static void put_metadata(struct out *o, const struct synth_geometry *g, enum synth_mix mix)
{
    int half = g->head_dim / 8; /* rotary pairs: a quarter of the head, two by two */
    kv_text(o, "general.architecture", "qwen35");
    kv_text(o, "general.name", "synthetic");
    kv_u32(o, "general.file_type", (int)mixes[mix].number);
    kv_u32(o, "general.quantization_version", 2);
    kv_u32(o, "qwen35.block_count", g->layers + g->mtp);
    kv_u32(o, "qwen35.context_length", g->context);
    kv_u32(o, "qwen35.embedding_length", g->hidden);
    kv_u32(o, "qwen35.feed_forward_length", g->ff);
    kv_u32(o, "qwen35.attention.head_count", g->heads);
    kv_u32(o, "qwen35.attention.head_count_kv", g->kv_heads);
    kv_u32(o, "qwen35.attention.key_length", g->head_dim);
    kv_u32(o, "qwen35.attention.value_length", g->head_dim);
    kv_f32(o, "qwen35.attention.layer_norm_rms_epsilon", 1e-6f);
    kv_f32(o, "qwen35.rope.freq_base", 1e7f);
    kv_u32(o, "qwen35.rope.dimension_count", 2 * half);
    kv_array(o, "qwen35.rope.dimension_sections", KV_I32, 4);
    put_u32(o, (uint32_t)(half - (half + 1) / 3 - half / 3));
    put_u32(o, (uint32_t)((half + 1) / 3));
    put_u32(o, (uint32_t)(half / 3));
    put_u32(o, 0);
    kv_u32(o, "qwen35.ssm.conv_kernel", SYNTH_CONV);
    kv_u32(o, "qwen35.ssm.state_size", g->state);
    kv_u32(o, "qwen35.ssm.group_count", g->key_heads);
    kv_u32(o, "qwen35.ssm.time_step_rank", g->value_heads);
    kv_u32(o, "qwen35.ssm.inner_size", g->value_heads * g->state);
    kv_u32(o, "qwen35.full_attention_interval", SYNTH_INTERVAL);
    if (g->mtp)
        kv_u32(o, "qwen35.nextn_predict_layers", 1);
    put_tokenizer(o, g->vocab);
}

/* ---- Tensors ----------------------------------------------------------------------------------
 */

static uint64_t aligned(uint64_t n)
{
    return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static uint64_t tensor_bytes(const struct synth_tensor *t)
{
    return (uint64_t)t->rows * synth_row_bytes(t, (struct synth_mlx){0}, PART_DATA);
}

static void put_table(struct out *o, const struct synth_plan *p)
{
    uint64_t at = 0;
    for (size_t i = 0; i < p->count; i++) {
        const struct synth_tensor *t = &p->tensors[i];
        put_text(o, t->gguf);
        put_u32(o, t->rows > 1 ? 2 : 1);
        put_u64(o, (uint64_t)t->cols);
        if (t->rows > 1)
            put_u64(o, (uint64_t)t->rows);
        put_u32(o, type_numbers[t->type]);
        put_u64(o, at);
        at += aligned(tensor_bytes(t));
    }
}

static void pad(FILE *f, uint64_t from)
{
    for (uint64_t i = from; i < aligned(from); i++)
        fputc(0, f);
}

mtplx_status synth_write_gguf(const char *path, const struct synth_geometry *g,
                              struct synth_plan *p, struct synth_encoder *e, enum synth_mix mix,
                              mtplx_error *err)
{
    mtplx_status status = choose_types(p, g, mix, err);
    FILE *f = status == MTPLX_OK ? synth_open(path, err) : NULL;
    if (!f)
        return status != MTPLX_OK ? status : MTPLX_ERR_IO;
    struct out count = {.counting = true}, o = {.f = f};
    put_metadata(&count, g, mix);
    put(&o, "GGUF", 4);
    put_u32(&o, 3);
    put_u64(&o, p->count);
    put_u64(&o, count.pairs);
    put_metadata(&o, g, mix);
    put_table(&o, p);
    pad(f, (uint64_t)ftello(f));
    for (size_t i = 0; i < p->count && status == MTPLX_OK; i++) {
        status = synth_write_tensor(e, &p->tensors[i], PART_DATA, f, path, err);
        pad(f, tensor_bytes(&p->tensors[i]));
    }
    return synth_close(f, path, status, err);
}
