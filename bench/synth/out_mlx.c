/* MLX checkpoints: config.json and one model.safetensors, matrices in affine groups with bf16
 * scales, or dense bf16. The MTP head is in the same file under "mtp.", in the same format. There
 * is no tokenizer: prompts are token ids. */
#include "synth.h"

#include "base/file.h"
#include "base/strbuf.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define HEADER_LIMIT (64u << 20)

/* ---- config.json ------------------------------------------------------------------------------
 */

static void put_config(struct mx_strbuf *b, const struct synth_geometry *g, struct synth_mlx mlx)
{
    int half = g->head_dim / 8, h = (half + 1) / 3, w = half / 3;
    mx_strbuf_printf(b,
                     "{\n"
                     "  \"architectures\": [\"Qwen3_5ForCausalLM\"],\n"
                     "  \"model_type\": \"qwen3_5_text\",\n"
                     "  \"vocab_size\": %d,\n"
                     "  \"hidden_size\": %d,\n"
                     "  \"intermediate_size\": %d,\n"
                     "  \"num_hidden_layers\": %d,\n"
                     "  \"num_attention_heads\": %d,\n"
                     "  \"num_key_value_heads\": %d,\n"
                     "  \"head_dim\": %d,\n",
                     g->vocab, g->hidden, g->ff, g->layers, g->heads, g->kv_heads, g->head_dim);
    mx_strbuf_printf(b,
                     "  \"hidden_act\": \"silu\",\n"
                     "  \"max_position_embeddings\": %d,\n"
                     "  \"rms_norm_eps\": 1e-6,\n"
                     "  \"tie_word_embeddings\": %s,\n"
                     "  \"attention_bias\": false,\n"
                     "  \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1e7,\n"
                     "    \"partial_rotary_factor\": 0.25, \"mrope_section\": [%d, %d, %d],\n"
                     "    \"mrope_interleaved\": true},\n",
                     g->context, g->tied ? "true" : "false", half - h - w, h, w);
    mx_strbuf_printf(b,
                     "  \"full_attention_interval\": %d,\n"
                     "  \"linear_conv_kernel_dim\": %d,\n"
                     "  \"linear_key_head_dim\": %d,\n"
                     "  \"linear_value_head_dim\": %d,\n"
                     "  \"linear_num_key_heads\": %d,\n"
                     "  \"linear_num_value_heads\": %d,\n"
                     "  \"mtp_num_hidden_layers\": %d,\n",
                     SYNTH_INTERVAL, SYNTH_CONV, g->state, g->state, g->key_heads, g->value_heads,
                     g->mtp);
    if (mlx.bits < 16)
        mx_strbuf_printf(b, "  \"quantization\": {\"group_size\": %d, \"bits\": %d},\n", mlx.group,
                         mlx.bits);
    mx_strbuf_printf(b, "  \"eos_token_id\": %d\n}\n", g->vocab - 1);
}

/* ---- model.safetensors ------------------------------------------------------------------------
 */

static void put_entry(struct mx_strbuf *b, const char *name, const char *suffix, const char *dtype,
                      const struct synth_tensor *t, int64_t cols, uint64_t bytes, uint64_t *at)
{
    mx_strbuf_printf(b, "%s\"%s%s\":{\"dtype\":\"%s\",\"shape\":[", *at ? "," : "", name, suffix,
                     dtype);
    if (strstr(name, "conv1d"))
        mx_strbuf_printf(b, "%" PRId64 ",%" PRId64 ",1", t->rows, cols);
    else if (t->kind == KIND_VECTOR)
        mx_strbuf_printf(b, "%" PRId64, cols);
    else
        mx_strbuf_printf(b, "%" PRId64 ",%" PRId64, t->rows, cols);
    mx_strbuf_printf(b, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", *at, *at + bytes);
    *at += bytes;
}

static uint64_t part_bytes(const struct synth_tensor *t, struct synth_mlx mlx, enum synth_part part)
{
    return (uint64_t)t->rows * synth_row_bytes(t, mlx, part);
}

/* Length field and JSON, padded so that the data starts at a multiple of 64. */
static void put_header(struct mx_strbuf *b, const struct synth_plan *p, struct synth_mlx mlx)
{
    uint64_t at = 0;
    mx_strbuf_append(b, "\0\0\0\0\0\0\0\0{", 9);
    for (size_t i = 0; i < p->count; i++) {
        const struct synth_tensor *t = &p->tensors[i];
        const char *weight = t->kind == KIND_VECTOR ? "" : ".weight";
        if (t->type != SYNTH_MLX) {
            put_entry(b, t->mlx, weight, "BF16", t, t->cols, part_bytes(t, mlx, PART_DATA), &at);
            continue;
        }
        put_entry(b, t->mlx, weight, "U32", t, t->cols * mlx.bits / 32,
                  part_bytes(t, mlx, PART_DATA), &at);
        put_entry(b, t->mlx, ".scales", "BF16", t, t->cols / mlx.group,
                  part_bytes(t, mlx, PART_SCALES), &at);
        put_entry(b, t->mlx, ".biases", "BF16", t, t->cols / mlx.group,
                  part_bytes(t, mlx, PART_BIASES), &at);
    }
    mx_strbuf_putc(b, '}');
    while (!b->failed && b->len % 64 != 0)
        mx_strbuf_putc(b, ' ');
    for (int i = 0; i < 8 && !b->failed; i++)
        b->data[i] = (char)((uint64_t)(b->len - 8) >> (8 * i));
}

static mtplx_status write_weights(const char *path, const struct synth_plan *p,
                                  struct synth_encoder *e, mtplx_error *err)
{
    struct mx_strbuf header;
    mx_strbuf_init(&header, HEADER_LIMIT);
    put_header(&header, p, e->mlx);
    mtplx_status status =
        header.failed ? mx_error_nomem(err, "the safetensors header", header.len) : MTPLX_OK;
    FILE *f = status == MTPLX_OK ? synth_open(path, err) : NULL;
    if (!f) {
        mx_strbuf_free(&header);
        return status != MTPLX_OK ? status : MTPLX_ERR_IO;
    }
    fwrite(header.data, 1, header.len, f);
    mx_strbuf_free(&header);
    for (size_t i = 0; i < p->count; i++) {
        int parts = p->tensors[i].type == SYNTH_MLX ? 3 : 1;
        for (int part = 0; part < parts && status == MTPLX_OK; part++)
            status = synth_write_tensor(e, &p->tensors[i], (enum synth_part)part, f, path, err);
    }
    return synth_close(f, path, status, err);
}

/* ---- Both -------------------------------------------------------------------------------------
 */

static mtplx_status choose_types(struct synth_plan *p, const struct synth_geometry *g,
                                 struct synth_mlx mlx, mtplx_error *err)
{
    for (size_t i = 0; i < p->count; i++) {
        struct synth_tensor *t = &p->tensors[i];
        t->type = t->kind == KIND_VECTOR || mlx.bits == 16 ? SYNTH_BF16 : SYNTH_MLX;
        if (t->type == SYNTH_MLX && (t->cols % mlx.group != 0 || g->hidden % mlx.group != 0))
            return mx_error(err, MTPLX_ERR_ARGUMENT,
                            "%s: rows of %" PRId64 " are not whole groups of %d", t->mlx, t->cols,
                            mlx.group);
    }
    return MTPLX_OK;
}

mtplx_status synth_write_mlx(const char *path, const struct synth_geometry *g, struct synth_plan *p,
                             struct synth_encoder *e, mtplx_error *err)
{
    mtplx_status status = choose_types(p, g, e->mlx, err);
    if (status != MTPLX_OK)
        return status;
    if (mkdir(path, 0777) != 0 && !mx_dir_exists(path))
        return mx_error(err, MTPLX_ERR_IO, "%s: cannot make the directory", path);
    char *config = mx_path_join(path, "config.json");
    char *weights = mx_path_join(path, "model.safetensors");
    struct mx_strbuf text;
    mx_strbuf_init(&text, 0);
    put_config(&text, g, e->mlx);
    if (!config || !weights || text.failed)
        status = mx_error_nomem(err, "paths", strlen(path));
    if (status == MTPLX_OK)
        status = write_weights(weights, p, e, err);
    if (status == MTPLX_OK)
        status = mx_file_write(config, text.data, text.len, err);
    mx_strbuf_free(&text);
    free(config);
    free(weights);
    return status;
}
