/* Loading: the MTP head from every place it may live, raw and baked norms, load options (no MTP,
 * adapters apart and merged, re-quantised projections), and checkpoints that lie.
 *
 * Variants are made from tests/golden/qwen3_5_text in a temporary directory. */
#include "golden.h"

#include "base/half.h"
#include "format/mlxq.h"
#include "runtime/model.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#define BASE "tests/golden/qwen3_5_text"

static char tmp[64];

static int setup(void **state)
{
    (void)state;
    snprintf(tmp, sizeof tmp, "/tmp/mtplx-load-XXXXXX");
    return mkdtemp(tmp) ? 0 : -1;
}

static void remove_tree(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    while (d && (e = readdir(d))) {
        char path[512];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (unlink(path) != 0) {
            remove_tree(path);
            rmdir(path);
        }
    }
    if (d)
        closedir(d);
}

static int teardown(void **state)
{
    (void)state;
    remove_tree(tmp);
    return rmdir(tmp);
}

static char *in_tmp(const char *name)
{
    static char buf[4][256];
    static int i;
    i = (i + 1) % 4;
    snprintf(buf[i], sizeof buf[i], "%s/%s", tmp, name);
    return buf[i];
}

static void copy_config(const char *find, const char *replace)
{
    size_t len;
    mtplx_error err = {0};
    char *text = mx_file_read(src_path(BASE "/config.json"), 1 << 20, &len, &err);
    char *at = find ? strstr(text, find) : NULL;
    assert_true(!find || at);
    FILE *f = fopen(in_tmp("config.json"), "w");
    if (at)
        fprintf(f, "%.*s%s%s", (int)(at - text), text, replace, at + strlen(find));
    else
        fputs(text, f);
    fclose(f);
    free(text);
}

/* What to do with each tensor of the base while it is written anew. */
typedef bool keep_fn(const char *name);

struct edit {
    keep_fn *keep;       /* NULL: all */
    const char *strip;   /* leading text removed from names */
    const char *prefix;  /* text put in front */
    const char *name;    /* one tensor to change */
    int64_t rows;        /* its new first dimension, 0: unchanged */
    enum mx_dtype dtype; /* its new dtype label (same width), 0: unchanged */
    const char *negate;  /* one BF16 tensor whose signs are flipped */
    double norm_shift;   /* added to every norm that is stored as w - 1 */
};

static bool is_mtp(const char *name)
{
    return strncmp(name, "mtp.", 4) == 0;
}

static bool is_trunk(const char *name)
{
    return !is_mtp(name);
}

static bool is_shifted_norm(const char *name)
{
    return strstr(name, "norm") && !strstr(name, "linear_attn.norm");
}

static void write_variant(const char *file, const struct edit *e)
{
    struct mx_safetensors st;
    mtplx_error err = {0};
    uint16_t *copies[256];
    size_t n_copies = 0;
    assert_int_equal(mx_safetensors_open(&st, src_path(BASE "/model.safetensors"), &err), MTPLX_OK);
    struct mx_st_writer *w = mx_st_writer_new("pt", &err);
    for (size_t i = 0; i < st.count; i++) {
        struct mx_tensor t = st.tensors[i];
        char name[256];
        const char *base = t.name;
        if (e->keep && !e->keep(t.name))
            continue;
        if (e->strip && strncmp(base, e->strip, strlen(e->strip)) == 0)
            base += strlen(e->strip);
        snprintf(name, sizeof name, "%s%s", e->prefix ? e->prefix : "", base);
        if (e->norm_shift != 0 && is_shifted_norm(t.name)) {
            size_t n = t.bytes / 2;
            uint16_t *c = copies[n_copies++] = malloc(t.bytes);
            for (size_t k = 0; k < n; k++)
                c[k] = mx_f32_to_bf16(
                    (float)(mx_dtype_load(t.dtype, t.data, (int64_t)k) + e->norm_shift));
            t.data = c;
        }
        if (e->negate && strcmp(e->negate, t.name) == 0) {
            uint16_t *c = copies[n_copies++] = malloc(t.bytes);
            for (size_t k = 0; k < t.bytes / 2; k++)
                c[k] = ((const uint16_t *)t.data)[k] ^ 0x8000;
            t.data = c;
        }
        if (e->name && strcmp(e->name, t.name) == 0) {
            if (e->rows)
                t.shape[0] = e->rows;
            if (e->dtype)
                t.dtype = e->dtype;
            if (!e->rows && !e->dtype)
                continue; /* dropped */
        }
        assert_int_equal(mx_st_writer_add(w, name, t.dtype, t.ndim, t.shape, t.data, &err),
                         MTPLX_OK);
    }
    if (mx_st_writer_finish(w, in_tmp(file), &err) != MTPLX_OK)
        fail_msg("%s", err.message);
    mx_st_writer_free(w);
    mx_safetensors_close(&st);
    while (n_copies)
        free(copies[--n_copies]);
}

static void start(const char *find, const char *replace)
{
    remove_tree(tmp);
    copy_config(find, replace);
}

/* MTP logits after a fixed prefix: tells heads apart, and good norms from bad. */
static void draft_logits(mtplx_model *m, float *out)
{
    static const int32_t ids[] = {5, 9, 100, 31, 7};
    mtplx_row rows[5];
    mtplx_forward_result r;
    mtplx_error err = {0};
    int32_t token = 44;
    mtplx_seq *s = mtplx_seq_new(m, &err);
    for (int i = 0; i < 5; i++)
        rows[i] = (mtplx_row){s, ids[i], false, NULL};
    assert_int_equal(mtplx_forward(m, rows, 5, MTPLX_COMMIT, false, NULL, &err), MTPLX_OK);
    if (mtplx_draft(m, &s, &token, 1, &r, &err) != MTPLX_OK)
        fail_msg("%s", err.message);
    memcpy(out, r.logits, 320 * sizeof *out);
    mtplx_seq_free(s);
}

static void base_logits(float *out)
{
    mtplx_model *m = load_or_fail(src_path(BASE), NULL);
    draft_logits(m, out);
    mtplx_model_free(m);
}

static void check_same_head(double tolerance)
{
    float want[320], have[320];
    mtplx_model *m = load_or_fail(tmp, NULL);
    assert_true(mtplx_model_get_info(m)->has_mtp);
    base_logits(want);
    draft_logits(m, have);
    assert_true(rel_error(have, want, 320) <= tolerance);
    mtplx_model_free(m);
}

static void test_mtp_places(void **state)
{
    (void)state;
    static const struct {
        const char *file, *strip, *prefix;
    } places[] = {
        {"mtp.safetensors", NULL, NULL},
        {"mtp.safetensors", "mtp.", "language_model.mtp."},
        {"mtp/weights.safetensors", NULL, NULL},
        {"mtp/weights.safetensors", "mtp.", NULL}, /* bare names, as drafter repositories have */
        {"model-mtp.safetensors", NULL, NULL},
        {"model-mtp.safetensors", "mtp.", NULL},
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        start(NULL, NULL);
        mkdir(in_tmp("mtp"), 0700);
        write_variant("model.safetensors", &(struct edit){.keep = is_trunk});
        write_variant(
            places[i].file,
            &(struct edit){.keep = is_mtp, .strip = places[i].strip, .prefix = places[i].prefix});
        check_same_head(0);
        mtplx_model *m = load_or_fail(tmp, NULL);
        assert_non_null(strstr(mtplx_model_get_info(m)->mtp_source, places[i].file));
        mtplx_model_free(m);
    }
}

static void test_mtp_named_by_config(void **state)
{
    (void)state;
    start("\"vocab_size\"", "\"mlx_lm_extra_tensors\": {\"mtp_file\": \"extra.st\"}, "
                            "\"vocab_size\"");
    write_variant("model.safetensors", &(struct edit){.keep = is_trunk});
    write_variant("extra.st", &(struct edit){.keep = is_mtp});
    check_same_head(0);
}

static void test_mtp_by_index(void **state)
{
    (void)state;
    struct mx_safetensors st;
    mtplx_error err = {0};
    start(NULL, NULL);
    write_variant("a.safetensors", &(struct edit){.keep = is_trunk});
    write_variant("b.safetensors", &(struct edit){.keep = is_mtp});
    FILE *f = fopen(in_tmp("model.safetensors.index.json"), "w");
    assert_int_equal(mx_safetensors_open(&st, src_path(BASE "/model.safetensors"), &err), MTPLX_OK);
    fputs("{\"metadata\": {}, \"weight_map\": {", f);
    for (size_t i = 0; i < st.count; i++)
        fprintf(f, "%s\"%s\": \"%c.safetensors\"", i ? ", " : "", st.tensors[i].name,
                is_mtp(st.tensors[i].name) ? 'b' : 'a');
    fputs("}}", f);
    fclose(f);
    mx_safetensors_close(&st);
    check_same_head(0);
}

/* A head in a side file goes before an embedded one, whatever its spelling; what else the side file
 * repeats of the trunk is ignored. */
static void test_side_file_precedence(void **state)
{
    (void)state;
    static const char *const prefixes[] = {"", "mtp.", "language_model.mtp."};
    float plain[320], have[320];
    base_logits(plain);
    for (int i = 0; i < 3; i++) {
        start(NULL, NULL);
        write_variant("model.safetensors", &(struct edit){0});
        write_variant("mtp.safetensors", &(struct edit){.keep = is_mtp,
                                                        .strip = "mtp.",
                                                        .prefix = prefixes[i],
                                                        .negate = "mtp.fc.weight"});
        mtplx_model *m = load_or_fail(tmp, NULL);
        assert_non_null(strstr(mtplx_model_get_info(m)->mtp_source, "mtp.safetensors"));
        draft_logits(m, have);
        assert_true(rel_error(have, plain, 320) > 0.1); /* the other head answered */
        mtplx_model_free(m);
    }
    start(NULL, NULL);
    write_variant("model.safetensors", &(struct edit){.keep = is_trunk});
    write_variant("mtp.safetensors", &(struct edit){.negate = "model.embed_tokens.weight"});
    check_same_head(0);
}

/* A quantised head beside a plain trunk: its bits are read off the shapes. */
static void test_quantised_head(void **state)
{
    (void)state;
    struct mx_safetensors st;
    mtplx_error err = {0};
    void *owned[64];
    size_t n = 0;
    start(NULL, NULL);
    write_variant("model.safetensors", &(struct edit){.keep = is_trunk});
    assert_int_equal(mx_safetensors_open(&st, src_path(BASE "/model.safetensors"), &err), MTPLX_OK);
    struct mx_st_writer *w = mx_st_writer_new("mlx", &err);
    for (size_t i = 0; i < st.count; i++) {
        const struct mx_tensor *t = &st.tensors[i];
        if (!is_mtp(t->name))
            continue;
        if (t->ndim != 2) {
            mx_st_writer_add(w, t->name, t->dtype, t->ndim, t->shape, t->data, &err);
            continue;
        }
        int64_t out = t->shape[0], in = t->shape[1], groups = in / 32;
        uint8_t *codes = owned[n++] = malloc((size_t)(out * in));
        uint16_t *scales = owned[n++] = malloc((size_t)(out * groups) * 2);
        uint16_t *biases = owned[n++] = malloc((size_t)(out * groups) * 2);
        float row[256];
        char name[3][128];
        for (int64_t r = 0; r < out; r++) {
            for (int64_t k = 0; k < in; k++)
                row[k] = mx_dtype_load(t->dtype, t->data, r * in + k);
            mx_mlxq_quant_row(row, in, 8, 32, MX_F16, codes + r * in, scales + r * groups,
                              biases + r * groups);
        }
        int stem = (int)strlen(t->name) - 7;
        snprintf(name[0], sizeof name[0], "%s", t->name);
        snprintf(name[1], sizeof name[1], "%.*s.scales", stem, t->name);
        snprintf(name[2], sizeof name[2], "%.*s.biases", stem, t->name);
        const int64_t packed[2] = {out, in / 4}, side[2] = {out, groups};
        mx_st_writer_add(w, name[0], MX_U32, 2, packed, codes, &err);
        mx_st_writer_add(w, name[1], MX_F16, 2, side, scales, &err);
        mx_st_writer_add(w, name[2], MX_F16, 2, side, biases, &err);
    }
    assert_int_equal(mx_st_writer_finish(w, in_tmp("mtp.safetensors"), &err), MTPLX_OK);
    mx_st_writer_free(w);
    mx_safetensors_close(&st);
    while (n)
        free(owned[--n]);
    check_same_head(0.05);
}

static void test_unknown_prefix(void **state)
{
    (void)state;
    start(NULL, NULL);
    write_variant("model.safetensors", &(struct edit){.strip = "model.", .prefix = ""});
    mtplx_error err = {0};
    assert_null(mtplx_model_load(tmp, NULL, &err)); /* no known prefix */
    assert_non_null(strstr(err.message, "embed_tokens.weight"));
}

/* Baked norms in the trunk, the head, or both; the loader must see which. */
static void test_norm_encodings(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        bool trunk = i & 1, head = i & 2;
        start(NULL, NULL);
        write_variant("model.safetensors",
                      &(struct edit){.keep = is_trunk, .norm_shift = trunk ? 1 : 0});
        write_variant("mtp.safetensors",
                      &(struct edit){.keep = is_mtp, .norm_shift = head ? 1 : 0});
        mtplx_model *m = load_or_fail(tmp, NULL);
        const mtplx_model_info *info = mtplx_model_get_info(m);
        assert_string_equal(info->norm_encoding, trunk ? "baked" : "raw");
        assert_string_equal(info->mtp_norm_encoding, head ? "baked" : "raw");
        assert_int_equal(info->norms_ambiguous, trunk); /* the conv layout still says raw */
        mtplx_model_free(m);
        check_same_head(2e-2); /* 1 + w rounds to bf16 */
    }
}

/* ---- Options ------------------------------------------------------------------------------ */

static void test_no_mtp(void **state)
{
    (void)state;
    mtplx_error err = {0};
    mtplx_forward_result r;
    int32_t token = 1;
    mtplx_model *m = load_or_fail(src_path(BASE), &(mtplx_load_options){.no_mtp = true});
    assert_false(mtplx_model_get_info(m)->has_mtp);
    assert_int_equal(mtplx_model_get_info(m)->mtp_parameters, 0);
    mtplx_seq *s = mtplx_seq_new(m, &err);
    mtplx_row row = {s, 3, true, NULL};
    assert_int_equal(mtplx_forward(m, &row, 1, MTPLX_COMMIT, false, &r, &err), MTPLX_OK);
    assert_int_equal(mtplx_draft(m, &s, &token, 1, &r, &err), MTPLX_ERR_ARGUMENT);
    mtplx_seq_free(s);
    mtplx_model_free(m);
}

static void fill(float *v, size_t n, uint32_t seed, float scale)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        v[i] = ((float)(seed >> 8) / 8388608.0f - 1.0f) * scale;
    }
}

/* A rank-2 adapter on one matrix [128][64] in PEFT or mlx-lm layout. */
static void write_adapter(bool mlx, bool half)
{
    static float a[2 * 64], b[128 * 2], ta[64 * 2], tb[2 * 128];
    mtplx_error err = {0};
    fill(a, 128, 3, 0.5f);
    fill(b, 256, 4, 0.5f);
    for (int i = 0; i < 64; i++)
        for (int r = 0; r < 2; r++)
            ta[i * 2 + r] = a[r * 64 + i];
    for (int i = 0; i < 128; i++)
        for (int r = 0; r < 2; r++)
            tb[r * 128 + i] = b[i * 2 + r];
    struct mx_st_writer *w = mx_st_writer_new("pt", &err);
    const int64_t pa[2] = {2, 64}, pb[2] = {128, 2}, ma[2] = {64, 2}, mb[2] = {2, 128};
    if (mlx) {
        mx_st_writer_add(w, "mtp.layers.0.mlp.up_proj.lora_a", MX_F32, 2, ma, ta, &err);
        mx_st_writer_add(w, "mtp.layers.0.mlp.up_proj.lora_b", MX_F32, 2, mb, tb, &err);
    } else {
        mx_st_writer_add(w, "base_model.model.mtp.layers.0.mlp.up_proj.lora_A.weight", MX_F32, 2,
                         pa, a, &err);
        if (!half)
            mx_st_writer_add(w, "base_model.model.mtp.layers.0.mlp.up_proj.lora_B.weight", MX_F32,
                             2, pb, b, &err);
    }
    assert_int_equal(
        mx_st_writer_finish(w, in_tmp(mlx ? "adapters.safetensors" : "adapter_model.safetensors"),
                            &err),
        MTPLX_OK);
    mx_st_writer_free(w);
    FILE *f = fopen(in_tmp("adapter_config.json"), "w");
    fputs(mlx ? "{\"lora_parameters\": {\"scale\": 1.5}}" : "{\"r\": 2, \"lora_alpha\": 3}", f);
    fclose(f);
}

static void test_adapter(void **state)
{
    (void)state;
    float plain[320], apart[320], merged[320], mlx[320];
    mtplx_load_options o = {.mtp_adapter = tmp};
    base_logits(plain);
    remove_tree(tmp);
    write_adapter(false, false);
    mtplx_model *m = load_or_fail(src_path(BASE), &o);
    draft_logits(m, apart);
    mtplx_model_free(m);
    o.merge_mtp_adapter = true;
    m = load_or_fail(src_path(BASE), &o);
    draft_logits(m, merged);
    mtplx_model_free(m);
    o.merge_mtp_adapter = false;
    o.mtp_adapter = in_tmp("adapter_model.safetensors"); /* a file works as well */
    m = load_or_fail(src_path(BASE), &o);
    draft_logits(m, mlx);
    mtplx_model_free(m);
    assert_memory_equal(mlx, apart, sizeof mlx);
    remove_tree(tmp);
    write_adapter(true, false);
    o.mtp_adapter = tmp;
    m = load_or_fail(src_path(BASE), &o);
    draft_logits(m, mlx);
    mtplx_model_free(m);
    assert_memory_equal(mlx, apart, sizeof mlx);
    assert_true(rel_error(apart, plain, 320) > 1e-2);  /* it does something */
    assert_true(rel_error(merged, apart, 320) < 2e-2); /* bf16 rounding of the sum */
}

static void expect_failure(const char *path, const mtplx_load_options *o, const char *a,
                           const char *b)
{
    mtplx_error err = {0};
    mtplx_model *m = mtplx_model_load(path, o, &err);
    if (m || err.status == MTPLX_OK || !strstr(err.message, a) || !strstr(err.message, b))
        fail_msg("expected an error with '%s' and '%s', got: %s", a, b, err.message);
}

static void test_bad_adapters(void **state)
{
    (void)state;
    mtplx_load_options o = {.mtp_adapter = tmp};
    remove_tree(tmp);
    expect_failure(src_path(BASE), &o, "adapter_model.safetensors", tmp);
    write_adapter(false, true);
    expect_failure(src_path(BASE), &o, "up_proj", "one of its two");
    expect_failure(src_path("tests/golden/qwen3_5_text_mlx4"), &o, "adapter", "the model has none");
    o.mtp_adapter = "/nonexistent/adapter.safetensors";
    expect_failure(src_path(BASE), &o, "/nonexistent", "");
}

static void test_proj_quant(void **state)
{
    (void)state;
    float plain[320], q4[320], q8[320];
    base_logits(plain);
    mtplx_load_options o = {.mtp_proj_quant = MTPLX_PROJ_Q8};
    mtplx_model *m = load_or_fail(src_path(BASE), &o);
    draft_logits(m, q8);
    mtplx_model_free(m);
    o.mtp_proj_quant = MTPLX_PROJ_Q4;
    m = load_or_fail(src_path(BASE), &o);
    draft_logits(m, q4);
    mtplx_model_free(m);
    double e8 = rel_error(q8, plain, 320), e4 = rel_error(q4, plain, 320);
    assert_true(e8 > 0 && e8 < 0.05);
    assert_true(e4 > e8 && e4 < 0.7);
    o = (mtplx_load_options){.mlp_proj_quant = MTPLX_PROJ_Q8};
    m = load_or_fail(src_path(BASE), &o);
    draft_logits(m, q8);
    mtplx_model_free(m);
    e8 = rel_error(q8, plain, 320);
    assert_true(e8 > 0 && e8 < 0.05);
}

/* ---- Files that lie ----------------------------------------------------------------------- */

static void test_lies(void **state)
{
    (void)state;
    static const char *const name = "model.layers.1.mlp.up_proj.weight";
    start(NULL, NULL);
    write_variant("model.safetensors", &(struct edit){.name = name});
    expect_failure(tmp, NULL, name, "missing");
    start(NULL, NULL);
    write_variant("model.safetensors", &(struct edit){.name = name, .rows = 100});
    expect_failure(tmp, NULL, name, "shape [100, 64]");
    start(NULL, NULL);
    write_variant("model.safetensors", &(struct edit){.name = name, .dtype = MX_I16});
    expect_failure(tmp, NULL, name, "dtype I16");
    start(NULL, NULL);
    write_variant("model.safetensors", &(struct edit){.name = "mtp.norm.weight"});
    expect_failure(tmp, NULL, "mtp.norm.weight", "missing");
}

static void test_bad_config(void **state)
{
    (void)state;
    static const char *const cases[][4] = {
        {"\"hidden_size\": 64", "\"hidden_size\": -1", "hidden_size", "config.json"},
        {"\"hidden_size\": 64", "\"hidden_size\": \"64\"", "hidden_size", "config.json"},
        {"\"num_attention_heads\": 4", "\"num_attention_heads\": 3", "num_attention_heads", "3"},
        {"\"full_attention\"\n", "\"sliding\"\n", "layer_types[7]", "sliding"},
        {"\"rope_type\": \"default\"", "\"rope_type\": \"yarn\"", "yarn", "config.json"},
        {"\"model_type\": \"qwen3_5_text\"", "\"model_type\": \"llama\"", "llama", "qwen3_5"},
        {"\"vocab_size\": 320", "\"vocab_size\": 321", "embed_tokens", "[320, 64]"},
        {"\"head_dim\": 64", "\"head_dim\": 2048", "head_dim", "1024"},
        {"\"linear_key_head_dim\": 32", "\"linear_key_head_dim\": 2048", "linear_key_head_dim",
         "1024"},
        {"\"vocab_size\"", "\"quantization_config\": {\"quant_method\": \"fp8\"}, \"vocab_size\"",
         "fp8", "MLX"},
        {"\"rope_type\": \"default\"", "\"type\": \"linear\"", "linear", "rope"},
        {"\"num_hidden_layers\": 8", "\"num_hidden_layers\": 9", "layer_types", "9"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        start(cases[i][0], cases[i][1]);
        write_variant("model.safetensors", &(struct edit){0});
        expect_failure(tmp, NULL, cases[i][2], cases[i][3]);
    }
}

/* Files of MLX's own writer have unpadded headers: every tensor may stand at an odd address. */
static void test_odd_addresses(void **state)
{
    (void)state;
    static const char *const names[] = {BASE, "tests/golden/qwen3_5_text_mlx_mixed"};
    static const char *const devices[] = {"ref", "cpu"};
    for (int i = 0; i < 4; i++) {
        float want[320], have[320];
        char file[256];
        size_t len, config_len;
        mtplx_error err = {0};
        mtplx_load_options o = {.device = devices[i / 2]};
        remove_tree(tmp);
        snprintf(file, sizeof file, "%s/model.safetensors", names[i % 2]);
        char *weights = mx_file_read(src_path(file), 1 << 24, &len, &err);
        snprintf(file, sizeof file, "%s/config.json", names[i % 2]);
        char *config = mx_file_read(src_path(file), 1 << 20, &config_len, &err);
        assert_non_null(weights);
        uint64_t header;
        memcpy(&header, weights, 8);
        size_t at = 8 + (size_t)header;
        uint64_t longer = header + 1 + header % 2; /* an odd number of bytes before the data */
        FILE *f = fopen(in_tmp("model.safetensors"), "w");
        fwrite(&longer, 1, 8, f);
        fwrite(weights + 8, 1, header, f);
        fprintf(f, "%*s", (int)(longer - header), "");
        fwrite(weights + at, 1, len - at, f);
        fclose(f);
        assert_int_equal(mx_file_write(in_tmp("config.json"), config, config_len, &err), MTPLX_OK);
        mtplx_model *even = load_or_fail(src_path(names[i % 2]), &o);
        draft_logits(even, want);
        mtplx_model_free(even);
        mtplx_model *odd = load_or_fail(tmp, &o);
        draft_logits(odd, have);
        mtplx_model_free(odd);
        assert_memory_equal(have, want, sizeof want);
        free(weights);
        free(config);
    }
}

static void test_bad_quantization(void **state)
{
    (void)state;
    size_t len;
    mtplx_error err = {0};
    static const char *const cases[][3] = {
        {"\"bits\": 4", "\"bits\": 7", "7"},
        {"\"bits\": 4", "\"bits\": 8", "packed shape"},
        {"\"mode\": \"affine\"", "\"mode\": \"mxfp4\"", "mxfp4"},
        {"\"group_size\": 64", "\"group_size\": 48", "48"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        remove_tree(tmp);
        char *text = mx_file_read(src_path("tests/golden/qwen3_5_text_mlx4/config.json"), 1 << 20,
                                  &len, &err);
        char *weights = mx_file_read(src_path("tests/golden/qwen3_5_text_mlx4/model.safetensors"),
                                     1 << 24, &len, &err);
        assert_int_equal(mx_file_write(in_tmp("model.safetensors"), weights, len, &err), MTPLX_OK);
        FILE *f = fopen(in_tmp("config.json"), "w");
        for (char *p = text, *at; *p; p = at) { /* both copies of the object */
            at = strstr(p, cases[i][0]);
            if (!at) {
                fputs(p, f);
                break;
            }
            fprintf(f, "%.*s%s", (int)(at - p), p, cases[i][1]);
            at += strlen(cases[i][0]);
        }
        fclose(f);
        free(text);
        free(weights);
        expect_failure(tmp, NULL, cases[i][2], "");
    }
}

static void test_truncated(void **state)
{
    (void)state;
    size_t len;
    mtplx_error err = {0};
    char *weights = mx_file_read(src_path(BASE "/model.safetensors"), 1 << 24, &len, &err);
    for (size_t cut = 0; cut < len; cut += cut < 64 ? 1 : len / 37) {
        start(NULL, NULL);
        FILE *f = fopen(in_tmp("model.safetensors"), "w");
        fwrite(weights, 1, cut, f);
        fclose(f);
        expect_failure(tmp, NULL, "model.safetensors", "");
    }
    free(weights);
}

static void test_forward_arguments(void **state)
{
    (void)state;
    mtplx_error err = {0};
    mtplx_forward_result r;
    mtplx_model *m = load_or_fail(src_path(BASE), NULL);
    mtplx_seq *a = mtplx_seq_new(m, &err), *b = mtplx_seq_new(m, &err);
    mtplx_row rows[12];
    for (int i = 0; i < 12; i++)
        rows[i] = (mtplx_row){a, i, true, NULL};
    assert_int_equal(mtplx_forward(m, rows, 0, MTPLX_COMMIT, false, &r, &err), MTPLX_ERR_ARGUMENT);
    assert_int_equal(mtplx_forward(m, rows, 12, MTPLX_VERIFY, false, &r, &err), MTPLX_ERR_ARGUMENT);
    rows[1].token = 320;
    assert_int_equal(mtplx_forward(m, rows, 2, MTPLX_COMMIT, false, &r, &err), MTPLX_ERR_ARGUMENT);
    rows[1].token = -1;
    assert_int_equal(mtplx_forward(m, rows, 2, MTPLX_COMMIT, false, &r, &err), MTPLX_ERR_ARGUMENT);
    rows[1] = (mtplx_row){b, 1, true, NULL};
    assert_int_equal(mtplx_forward(m, rows, 3, MTPLX_COMMIT, false, &r, &err), MTPLX_ERR_ARGUMENT);
    assert_int_equal(mtplx_seq_length(a), 0);
    rows[1] = (mtplx_row){a, 1, true, NULL};
    assert_int_equal(mtplx_forward(m, rows, 3, MTPLX_VERIFY, false, &r, &err), MTPLX_OK);
    assert_int_equal(mtplx_forward(m, rows, 3, MTPLX_COMMIT, false, &r, &err), MTPLX_ERR_ARGUMENT);
    assert_null(mtplx_seq_fork(a, &err));
    assert_int_equal(mtplx_seq_commit(a, 4, &err), MTPLX_ERR_ARGUMENT);
    assert_int_equal(mtplx_seq_commit(a, 2, &err), MTPLX_OK);
    assert_int_equal(mtplx_seq_length(a), 2);
    int32_t bad[3] = {0, -1, 0}, big[3] = {INT32_MAX, 0, 0}, tokens[2] = {1, 2};
    rows[0].position = bad;
    assert_int_equal(mtplx_forward(m, rows, 1, MTPLX_COMMIT, false, &r, &err), MTPLX_ERR_ARGUMENT);
    rows[0].position = big;
    assert_int_equal(mtplx_forward(m, rows, 1, MTPLX_COMMIT, false, &r, &err), MTPLX_ERR_ARGUMENT);
    mtplx_seq *twice[2] = {a, a}, *none[1] = {NULL};
    assert_int_equal(mtplx_draft(m, twice, tokens, 2, &r, &err), MTPLX_ERR_ARGUMENT);
    assert_int_equal(mtplx_draft(m, none, tokens, 1, &r, &err), MTPLX_ERR_ARGUMENT);
    assert_int_equal(mtplx_draft(m, twice, tokens, 0, &r, &err), MTPLX_ERR_ARGUMENT);
    for (int i = 0; i < MTPLX_MAX_DEPTH; i++)
        assert_int_equal(mtplx_draft(m, &a, tokens, 1, &r, &err), MTPLX_OK);
    assert_int_equal(mtplx_draft(m, &a, tokens, 1, &r, &err), MTPLX_ERR_ARGUMENT);
    assert_int_equal(mtplx_seq_commit(a, 0, &err), MTPLX_OK); /* ends drafting, keeps nothing */
    assert_int_equal(mtplx_draft(m, &a, tokens, 1, &r, &err), MTPLX_OK);
    assert_int_equal(mtplx_seq_length(a), 2);
    mtplx_seq_free(a);
    mtplx_seq_free(b);
    mtplx_model_free(m);
}

/* The context window is a hard end: a generation stops there, a forward past it is refused. */
static void test_context_end(void **state)
{
    (void)state;
    mtplx_error err = {0};
    start("\"max_position_embeddings\": 4096", "\"max_position_embeddings\": 24");
    write_variant("model.safetensors", &(struct edit){0});
    mtplx_model *m = load_or_fail(tmp, NULL);
    for (int depth = 0; depth <= MTPLX_MAX_DEPTH; depth++) {
        int32_t prompt[24] = {1, 3, 4, 5};
        mtplx_gen_options o = {.depth = depth, .ignore_stop = true};
        mtplx_seq *s = mtplx_seq_new(m, &err);
        assert_null(mtplx_gen_new(s, prompt, 24, &o, &err));
        assert_int_equal(err.status, MTPLX_ERR_LIMIT);
        mtplx_gen *g = mtplx_gen_new(s, prompt, 4, &o, &err);
        while (mtplx_gen_finish(g) == MTPLX_FINISH_NONE)
            assert_int_equal(mtplx_gen_step(g, &err), MTPLX_OK);
        assert_int_equal(mtplx_gen_finish(g), MTPLX_FINISH_LENGTH);
        assert_int_equal(mtplx_gen_get_stats(g)->generated_tokens, 20);
        assert_int_equal(mtplx_seq_length(s), 23); /* all but the last token */
        mtplx_row rows[2] = {{s, 1, false, NULL}, {s, 2, false, NULL}};
        assert_int_equal(mtplx_forward(m, rows, 2, MTPLX_COMMIT, false, NULL, &err),
                         MTPLX_ERR_LIMIT);
        assert_int_equal(mtplx_forward(m, rows, 1, MTPLX_COMMIT, false, NULL, &err), MTPLX_OK);
        mtplx_gen_free(g);
        mtplx_seq_free(s);
    }
    mtplx_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mtp_places),        cmocka_unit_test(test_mtp_named_by_config),
        cmocka_unit_test(test_mtp_by_index),      cmocka_unit_test(test_side_file_precedence),
        cmocka_unit_test(test_quantised_head),    cmocka_unit_test(test_unknown_prefix),
        cmocka_unit_test(test_norm_encodings),    cmocka_unit_test(test_no_mtp),
        cmocka_unit_test(test_adapter),           cmocka_unit_test(test_bad_adapters),
        cmocka_unit_test(test_proj_quant),        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_bad_config),        cmocka_unit_test(test_odd_addresses),
        cmocka_unit_test(test_bad_quantization),  cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_forward_arguments), cmocka_unit_test(test_context_end),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
