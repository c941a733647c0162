/* Forge quantize on checkpoints made here: what is quantised and what is kept, MTP side files,
 * shards, config overrides, values, refusals. */
#include "format/checkpoint.h"
#include "format/config.h"
#include "format/mlxq.h"
#include "tools/forge_quantize.h"

#include "base/file.h"
#include "base/half.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { OUT = 48, IN = 128 };

static char root[300], in_dir[340], out_dir[340];
static uint16_t matrix[OUT * 160];

static char *path_in(const char *dir, const char *name)
{
    static char path[420];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void write_text(const char *name, const char *text)
{
    assert_int_equal(mx_file_write(path_in(in_dir, name), text, strlen(text), NULL), MTPLX_OK);
}

static void add(struct mx_st_writer *w, const char *name, enum mx_dtype dtype, int ndim, int64_t a,
                int64_t b)
{
    const int64_t shape[] = {a, b};
    assert_int_equal(mx_st_writer_add(w, name, dtype, ndim, shape, matrix, NULL), MTPLX_OK);
}

static void save(struct mx_st_writer *w, const char *name)
{
    assert_int_equal(mx_st_writer_finish(w, path_in(in_dir, name), NULL), MTPLX_OK);
    mx_st_writer_free(w);
}

static void make_input(void)
{
    struct mx_st_writer *w = mx_st_writer_new("pt", NULL);
    add(w, "model.embed_tokens.weight", MX_BF16, 2, OUT, IN);
    add(w, "model.layers.0.mlp.up_proj.weight", MX_BF16, 2, OUT, IN);
    add(w, "model.layers.0.self_attn.odd.weight", MX_BF16, 2, OUT, 96);
    add(w, "model.layers.0.self_attn.no_group.weight", MX_BF16, 2, OUT, 40);
    add(w, "model.layers.0.linear_attn.in_proj_a.weight", MX_BF16, 2, OUT, IN);
    add(w, "model.layers.0.linear_attn.conv1d.weight", MX_BF16, 2, OUT, IN);
    add(w, "model.layers.0.mlp.gate.weight", MX_BF16, 2, OUT, IN);
    add(w, "model.visual.blocks.0.mlp.weight", MX_BF16, 2, OUT, IN);
    add(w, "model.norm.weight", MX_BF16, 1, IN, 0);
    add(w, "model.layers.0.linear_attn.A_log", MX_F32, 1, 4, 0);
    save(w, "model.safetensors");
    w = mx_st_writer_new("pt", NULL);
    add(w, "mtp.fc.weight", MX_BF16, 2, OUT, IN);
    add(w, "mtp.norm.weight", MX_BF16, 1, IN, 0);
    save(w, "extra.safetensors");
    write_text("config.json",
               "{\"model_type\": \"qwen3_5\", \"eps\": 1e-06, \"dtype\": \"bfloat16\", "
               "\"mlx_lm_extra_tensors\": {\"mtp_file\": \"extra.safetensors\"}, "
               "\"text_config\": {\"num_hidden_layers\": 1}}");
    write_text("tokenizer.json", "{}");
    write_text("notes.bin", "not copied");
    write_text(".hidden", "not copied");
}

static void remove_dir(const char *dir)
{
    static const char *const names[] = {"model.safetensors", "extra.safetensors",
                                        "mtp.safetensors",   "config.json",
                                        "tokenizer.json",    "notes.bin",
                                        ".hidden",           "model.safetensors.index.json"};
    char shard[60];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unlink(path_in(dir, names[i]));
    for (int i = 0; i < 200; i++) {
        snprintf(shard, sizeof shard, "model-%05d-of-%05d.safetensors", i / 14 + 1, i % 14 + 1);
        unlink(path_in(dir, shard));
    }
    rmdir(dir);
}

static int set_up(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(root, sizeof root, "%.250s/mtplx-forge-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(root))
        return -1;
    snprintf(in_dir, sizeof in_dir, "%s/in", root);
    snprintf(out_dir, sizeof out_dir, "%s/out", root);
    uint32_t x = 12345;
    for (size_t i = 0; i < sizeof matrix / sizeof *matrix; i++) {
        x = x * 1664525u + 1013904223u;
        matrix[i] = mx_f32_to_bf16((float)(int32_t)x * 0x1p-31f);
    }
    mkdir(in_dir, 0777);
    make_input();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    remove_dir(in_dir);
    remove_dir(out_dir);
    return rmdir(root); /* also proves that nothing was left beside the output */
}

static struct mx_forge_options options(void)
{
    return (struct mx_forge_options){
        .in = in_dir, .out = out_dir, .bits = 4, .group = 64, .threads = 2};
}

static struct mx_checkpoint *open_output(struct mx_config *c)
{
    assert_int_equal(mx_config_open(c, out_dir, NULL), MTPLX_OK);
    struct mx_checkpoint *ck = mx_checkpoint_open(out_dir, c->root, NULL);
    assert_non_null(ck);
    return ck;
}

static bool has(const struct mx_checkpoint *ck, const char *name)
{
    return mx_checkpoint_find(ck, name) != NULL;
}

static void expect_quant(const struct mx_config *c, const char *path, int bits, int group)
{
    struct mx_quant_spec q;
    assert_int_equal(mx_config_quant(c, path, &q, NULL), MTPLX_OK);
    assert_int_equal(q.bits, bits);
    assert_int_equal(q.group_size, group);
}

static void expect_kept(const struct mx_checkpoint *ck, const char *name)
{
    const struct mx_tensor *t = mx_checkpoint_find(ck, name);
    assert_non_null(t);
    assert_int_equal(t->dtype, strstr(name, "A_log") ? MX_F32 : MX_BF16);
    assert_memory_equal(t->data, matrix, (size_t)t->bytes);
}

static void test_what_is_quantised(void **state)
{
    (void)state;
    struct mx_forge_options o = options();
    struct mx_forge_report r;
    struct mx_config c;
    o.embed_bits = 8;
    o.mtp_bits = 5;
    assert_int_equal(mx_forge_quantize(&o, &r, NULL), MTPLX_OK);
    assert_int_equal(r.files, 2);
    assert_int_equal(r.parts[MX_FORGE_EMBEDDING].matrices, 1);
    assert_int_equal(r.parts[MX_FORGE_MLP].matrices, 1);
    assert_int_equal(r.parts[MX_FORGE_ATTENTION].matrices, 1);
    assert_int_equal(r.parts[MX_FORGE_MTP].matrices, 1);
    assert_int_equal(r.kept_tensors, 8);

    struct mx_checkpoint *ck = open_output(&c);
    assert_int_equal(mx_checkpoint_count(ck), 12 + 2 * 4);
    expect_quant(&c, "model.layers.0.mlp.up_proj", 4, 64);
    expect_quant(&c, "model.embed_tokens", 8, 64);
    expect_quant(&c, "mtp.fc", 5, 64);
    expect_quant(&c, "model.layers.0.self_attn.odd", 4, 32);
    expect_kept(ck, "model.norm.weight");
    expect_kept(ck, "model.layers.0.linear_attn.A_log");
    expect_kept(ck, "model.layers.0.linear_attn.in_proj_a.weight");
    expect_kept(ck, "model.layers.0.linear_attn.conv1d.weight");
    expect_kept(ck, "model.layers.0.mlp.gate.weight");
    expect_kept(ck, "model.layers.0.self_attn.no_group.weight");
    expect_kept(ck, "model.visual.blocks.0.mlp.weight");
    expect_kept(ck, "mtp.norm.weight");

    const struct mx_tensor *fc = mx_checkpoint_find(ck, "mtp.fc.weight");
    assert_true(mx_checkpoint_is_side(ck, fc));
    assert_false(mx_checkpoint_is_side(ck, mx_checkpoint_find(ck, "model.norm.weight")));
    assert_non_null(strstr(fc->file, "mtp.safetensors"));
    assert_true(mx_file_exists(path_in(out_dir, "tokenizer.json")));
    assert_false(mx_file_exists(path_in(out_dir, "notes.bin")));
    assert_false(mx_file_exists(path_in(out_dir, ".hidden")));
    assert_true(json_real_value(json_object_get(c.root, "eps")) == 1e-06);
    mx_checkpoint_close(ck);
    mx_config_close(&c);
}

static void test_values_are_those_of_the_codec(void **state)
{
    (void)state;
    struct mx_forge_options o = options();
    struct mx_forge_report r;
    struct mx_config c;
    o.dtype = MX_F16;
    assert_int_equal(mx_forge_quantize(&o, &r, NULL), MTPLX_OK);
    struct mx_checkpoint *ck = open_output(&c);
    const struct mx_tensor *w = mx_checkpoint_find(ck, "model.layers.0.mlp.up_proj.weight");
    const struct mx_tensor *s = mx_checkpoint_find(ck, "model.layers.0.mlp.up_proj.scales");
    const struct mx_tensor *b = mx_checkpoint_find(ck, "model.layers.0.mlp.up_proj.biases");
    assert_int_equal(w->dtype, MX_U32);
    assert_int_equal(s->dtype, MX_F16);
    for (int row = 0; row < OUT; row++) {
        float x[IN];
        uint8_t codes[IN / 2], scales[4], biases[4];
        for (int i = 0; i < IN; i++)
            x[i] = mx_bf16_to_f32(matrix[row * IN + i]);
        mx_mlxq_quant_row(x, IN, 4, 64, MX_F16, codes, scales, biases);
        assert_memory_equal((const uint8_t *)w->data + row * (IN / 2), codes, sizeof codes);
        assert_memory_equal((const uint8_t *)s->data + row * 4, scales, sizeof scales);
        assert_memory_equal((const uint8_t *)b->data + row * 4, biases, sizeof biases);
    }
    const struct mx_tensor *norm = mx_checkpoint_find(ck, "model.norm.weight");
    assert_int_equal(norm->dtype, MX_F16);
    for (int i = 0; i < IN; i++)
        assert_true(mx_dtype_load(MX_F16, norm->data, i) == mx_bf16_to_f32(matrix[i]));
    assert_string_equal(json_string_value(json_object_get(c.root, "dtype")), "float16");
    const struct mx_forge_part_report *p = &r.parts[MX_FORGE_MLP];
    assert_true(p->squared_error > 0 && p->squared_error < 0.01 * p->squared_weight);
    mx_checkpoint_close(ck);
    mx_config_close(&c);
}

static void test_shards(void **state)
{
    (void)state;
    struct mx_forge_options o = options();
    struct mx_forge_report r;
    struct mx_config c;
    o.file_bytes = 8000;
    assert_int_equal(mx_forge_quantize(&o, &r, NULL), MTPLX_OK);
    assert_true(r.files > 4);
    assert_true(mx_file_exists(path_in(out_dir, "model.safetensors.index.json")));
    struct mx_checkpoint *ck = open_output(&c);
    assert_int_equal(mx_checkpoint_count(ck), 12 + 2 * 4);
    assert_true(has(ck, "model.embed_tokens.scales"));
    expect_kept(ck, "model.visual.blocks.0.mlp.weight");
    mx_checkpoint_close(ck);
    mx_config_close(&c);
}

static void test_keep_bits(void **state)
{
    (void)state;
    struct mx_forge_options o = options();
    struct mx_forge_report r;
    struct mx_config c;
    o.embed_bits = o.mtp_bits = MX_FORGE_KEEP_BITS;
    assert_int_equal(mx_forge_quantize(&o, &r, NULL), MTPLX_OK);
    struct mx_checkpoint *ck = open_output(&c);
    expect_kept(ck, "model.embed_tokens.weight");
    expect_kept(ck, "mtp.fc.weight");
    assert_false(has(ck, "mtp.fc.scales"));
    mx_checkpoint_close(ck);
    mx_config_close(&c);
}

static void expect_failure(struct mx_forge_options o, mtplx_status status, const char *part)
{
    struct mx_forge_report r;
    mtplx_error err = {0};
    assert_int_equal(mx_forge_quantize(&o, &r, &err), status);
    assert_non_null(strstr(err.message, part));
    assert_false(mx_dir_exists(out_dir));
}

static void test_refusals(void **state)
{
    (void)state;
    struct mx_forge_options o = options();
    const volatile int stop = 1;
    o.cancel = &stop;
    expect_failure(o, MTPLX_ERR_CANCELLED, "interrupted");
    o = options();
    o.bits = 7;
    expect_failure(o, MTPLX_ERR_ARGUMENT, "bits");
    o.bits = 0;
    expect_failure(o, MTPLX_ERR_ARGUMENT, "bits");
    o = options();
    o.group = 48;
    expect_failure(o, MTPLX_ERR_ARGUMENT, "group");
    o = options();
    o.in = "/nonexistent/model";
    expect_failure(o, MTPLX_ERR_IO, "/nonexistent/model");
}

static void test_values_that_are_not_finite(void **state)
{
    (void)state;
    uint16_t saved = matrix[77];
    matrix[77] = 0x7f80; /* infinity */
    make_input();
    expect_failure(options(), MTPLX_ERR_FORMAT, "not finite");
    matrix[77] = saved;
}

static void test_quantised_inputs(void **state)
{
    (void)state;
    write_text("config.json", "{\"model_type\": \"x\", \"quantization\": {\"bits\": 4}}");
    expect_failure(options(), MTPLX_ERR_UNSUPPORTED, "quantised already");
    write_text("config.json", "{\"model_type\": \"x\"}");
    struct mx_st_writer *w = mx_st_writer_new("pt", NULL);
    add(w, "a.weight", MX_U32, 2, OUT, 16);
    add(w, "a.scales", MX_BF16, 2, OUT, 2);
    save(w, "model.safetensors");
    expect_failure(options(), MTPLX_ERR_UNSUPPORTED, "a.scales");
    w = mx_st_writer_new("pt", NULL);
    add(w, "a.weight", MX_F8_E4M3, 2, OUT, IN);
    save(w, "model.safetensors");
    expect_failure(options(), MTPLX_ERR_UNSUPPORTED, "F8_E4M3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_what_is_quantised, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_values_are_those_of_the_codec, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_shards, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_keep_bits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refusals, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_values_that_are_not_finite, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_quantised_inputs, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
