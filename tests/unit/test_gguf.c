/* GGUF files: the reader on good and hostile bytes, finding files, split models, the config made
 * from metadata, and the tokenizer against tokenizer.json. */
#include "gguf_convert.h"

#include "format/gguf_model.h"
#include "text/chat.h"
#include "text/tokenizer.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char tmp[64];

static int setup(void **state)
{
    (void)state;
    snprintf(tmp, sizeof tmp, "/tmp/mtplx-ggufu-XXXXXX");
    return mkdtemp(tmp) ? 0 : -1;
}

static char *in_tmp(const char *name)
{
    static char buf[8][256];
    static int i;
    i = (i + 1) % 8;
    snprintf(buf[i], sizeof buf[i], "%s/%s", tmp, name);
    return buf[i];
}

static const char *const made[] = {"a.gguf",
                                   "b.gguf",
                                   "mmproj-a.gguf",
                                   "config.json",
                                   "model.bin",
                                   "s-00001-of-00002.gguf",
                                   "s-00002-of-00002.gguf",
                                   "a-00001-of-00003.gguf"};

static void clean(void)
{
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        unlink(in_tmp(made[i]));
}

static int teardown(void **state)
{
    (void)state;
    clean();
    return rmdir(tmp);
}

static char *source_path(const char *name)
{
    const char *src = getenv("MTPLX_SRC");
    return mx_path_join(src && *src ? src : ".", name);
}

static void touch(const char *name)
{
    FILE *f = fopen(in_tmp(name), "wb");
    assert_non_null(f);
    fclose(f);
}

/* ---- Good files --------------------------------------------------------------------------- */

static void put_small(struct gguf_writer *w)
{
    static const float row[32] = {1, -2, 3};
    static const uint8_t bools[] = {1, 0, 1};
    int64_t ne[4] = {32, 2, 1, 1};
    double d = -2.5;
    int64_t big = INT64_MIN;
    gw_put_str(w, "general.architecture", "test");
    gw_put_u32(w, "u32", 4000000000u);
    gw_put_f32(w, "f32", 0.5f);
    gw_key(w, "f64", MX_GV_F64);
    mx_strbuf_append(&w->pairs, &d, sizeof d);
    gw_key(w, "i64", MX_GV_I64);
    mx_strbuf_append(&w->pairs, &big, sizeof big);
    gw_key(w, "u64", MX_GV_U64);
    gw_u64(&w->pairs, UINT64_MAX);
    gw_key(w, "i8", MX_GV_I8);
    mx_strbuf_putc(&w->pairs, (char)-7);
    gw_put_i32s(w, "ints", (const int32_t[]){-1, 2, INT32_MIN}, 3);
    gw_array(w, "bools", MX_GV_BOOL, 3);
    mx_strbuf_append(&w->pairs, bools, 3);
    gw_array(w, "strings", MX_GV_STRING, 3);
    gw_string(&w->pairs, "a", 1);
    gw_string(&w->pairs, "", 0);
    gw_string(&w->pairs, "x\0y", 3);
    gw_info(w, "second", 2, ne, MX_GGUF_Q8_0);
    gw_row(w, MX_GGUF_Q8_0, row, 32);
    gw_row(w, MX_GGUF_Q8_0, row, 32);
    gw_info(w, "first", 1, ne, MX_GGUF_F32);
    gw_row(w, MX_GGUF_F32, row, 32);
    gw_info(w, "other", 1, ne, 16); /* a type of unknown size */
    mx_strbuf_append(&w->data, row, 66);
}

static void small_file(struct mx_strbuf *out)
{
    struct gguf_writer w;
    gw_init(&w);
    put_small(&w);
    gw_finish(&w, out);
    gw_free(&w);
}

static void reads_values(void **state)
{
    (void)state;
    struct mx_strbuf file;
    struct mx_gguf g;
    mtplx_error err = {0};
    int64_t i = 5;
    double d = 0;
    small_file(&file);
    if (mx_gguf_parse(&g, file.data, file.len, "small", &err) != MTPLX_OK)
        fail_msg("%s", err.message);
    assert_int_equal(mx_gguf_int(&g, "absent", &i, &err), MTPLX_OK);
    assert_int_equal(i, 5);
    assert_int_equal(mx_gguf_int(&g, "u32", &i, &err), MTPLX_OK);
    assert_int_equal(i, 4000000000);
    assert_int_equal(mx_gguf_int(&g, "i64", &i, &err), MTPLX_OK);
    assert_true(i == INT64_MIN);
    assert_int_equal(mx_gguf_int(&g, "i8", &i, &err), MTPLX_OK);
    assert_int_equal(i, -7);
    assert_int_equal(mx_gguf_float(&g, "f32", &d, &err), MTPLX_OK);
    assert_true(d == 0.5);
    assert_int_equal(mx_gguf_float(&g, "f64", &d, &err), MTPLX_OK);
    assert_true(d == -2.5);
    assert_int_equal(mx_gguf_float(&g, "i8", &d, &err), MTPLX_OK);
    assert_true(d == -7);
    const struct mx_gguf_pair *p;
    assert_int_equal(mx_gguf_ints(&g, "ints", &p, &err), MTPLX_OK);
    assert_true(p->count == 3 && mx_gguf_int_at(p, 2, &i) && i == INT32_MIN);
    assert_int_equal(mx_gguf_ints(&g, "bools", &p, &err), MTPLX_OK);
    assert_true(mx_gguf_int_at(p, 2, &i) && i == 1);
    assert_int_equal(mx_gguf_strings(&g, "strings", &p, &err), MTPLX_OK);
    const uint8_t *at = p->data;
    size_t n;
    assert_memory_equal(mx_gguf_next_string(&at, &n), "a", 1);
    mx_gguf_next_string(&at, &n);
    assert_int_equal(n, 0);
    assert_memory_equal(mx_gguf_next_string(&at, &n), "x\0y", 3);
    const struct mx_gguf_tensor *t = mx_gguf_tensor(&g, "second");
    assert_true(t && t->ndim == 2 && t->ne[0] == 32 && t->ne[1] == 2 && t->bytes == 68);
    assert_int_equal(mx_gguf_tensor(&g, "other")->bytes, 0);
    assert_null(mx_gguf_tensor(&g, "third"));
    assert_int_equal(*(const float *)mx_gguf_tensor(&g, "first")->data, 1);
    mx_gguf_close(&g);
    mx_strbuf_free(&file);
}

static void wrong_types_name_the_key(void **state)
{
    (void)state;
    struct mx_strbuf file;
    struct mx_gguf g;
    mtplx_error err = {0};
    const struct mx_gguf_pair *p;
    const char *s;
    size_t n;
    int64_t i;
    double d;
    small_file(&file);
    assert_int_equal(mx_gguf_parse(&g, file.data, file.len, "small", &err), MTPLX_OK);
    assert_int_equal(mx_gguf_int(&g, "u64", &i, &err), MTPLX_ERR_FORMAT);
    assert_non_null(strstr(err.message, "small: metadata key 'u64' must be an integer"));
    assert_int_equal(mx_gguf_int(&g, "f32", &i, &err), MTPLX_ERR_FORMAT);
    assert_int_equal(mx_gguf_int(&g, "ints", &i, &err), MTPLX_ERR_FORMAT);
    assert_int_equal(mx_gguf_float(&g, "strings", &d, &err), MTPLX_ERR_FORMAT);
    assert_int_equal(mx_gguf_float(&g, "general.architecture", &d, &err), MTPLX_ERR_FORMAT);
    assert_int_equal(mx_gguf_string(&g, "u32", &s, &n, &err), MTPLX_ERR_FORMAT);
    assert_int_equal(mx_gguf_strings(&g, "general.architecture", &p, &err), MTPLX_ERR_FORMAT);
    assert_int_equal(mx_gguf_strings(&g, "ints", &p, &err), MTPLX_ERR_FORMAT);
    assert_int_equal(mx_gguf_ints(&g, "strings", &p, &err), MTPLX_ERR_FORMAT);
    assert_int_equal(mx_gguf_ints(&g, "u32", &p, &err), MTPLX_ERR_FORMAT);
    mx_gguf_close(&g);
    mx_strbuf_free(&file);
}

/* ---- Hostile files ------------------------------------------------------------------------ */

static void assert_bad(const void *data, size_t size, const char *text)
{
    struct mx_gguf g;
    mtplx_error err = {0};
    void *copy = malloc(size ? size : 1); /* at its exact size, for AddressSanitizer */
    memcpy(copy, data, size);
    mtplx_status st = mx_gguf_parse(&g, copy, size, "bad.gguf", &err);
    if (st == MTPLX_OK || !strstr(err.message, "bad.gguf") || !strstr(err.message, text))
        fail_msg("expected \"%s\", got \"%s\"", text, st == MTPLX_OK ? "success" : err.message);
    free(copy);
}

static void truncated_anywhere(void **state)
{
    (void)state;
    struct mx_strbuf file;
    small_file(&file);
    for (size_t n = 0; n + 1 < file.len - 64; n++)
        assert_bad(file.data, n, "");
    mx_strbuf_free(&file);
}

/* Every byte of the header set to values that lie; whatever is accepted must be readable. */
static void bytes_changed(void **state)
{
    (void)state;
    static const uint8_t values[] = {0, 1, 0x7f, 0x80, 0xff};
    struct mx_strbuf file;
    small_file(&file);
    for (size_t i = 0; i < file.len - 200; i++)
        for (size_t k = 0; k < sizeof values; k++) {
            struct mx_gguf g;
            char was = file.data[i];
            file.data[i] = (char)values[k];
            if (mx_gguf_parse(&g, file.data, file.len, "bad.gguf", NULL) == MTPLX_OK)
                mx_gguf_close(&g);
            file.data[i] = was;
        }
    mx_strbuf_free(&file);
}

struct raw {
    struct mx_strbuf b;
};

static void raw_head(struct raw *r, uint32_t version, uint64_t tensors, uint64_t pairs)
{
    mx_strbuf_init(&r->b, 0);
    mx_strbuf_append(&r->b, "GGUF", 4);
    gw_u32(&r->b, version);
    gw_u64(&r->b, tensors);
    gw_u64(&r->b, pairs);
}

static void raw_bad(struct raw *r, const char *text)
{
    assert_bad(r->b.data, r->b.len, text);
    mx_strbuf_free(&r->b);
}

static void headers_that_lie(void **state)
{
    (void)state;
    struct raw r;
    assert_bad("GGML", 4, "not a GGUF file");
    assert_bad("", 0, "not a GGUF file");
    raw_head(&r, 1, 0, 0);
    raw_bad(&r, "versions 2 and 3");
    raw_head(&r, 0x03000000, 0, 0);
    raw_bad(&r, "big-endian");
    raw_head(&r, 3, UINT64_MAX, 0);
    raw_bad(&r, "more tensors");
    raw_head(&r, 3, 0, UINT64_MAX);
    raw_bad(&r, "more metadata pairs");
    raw_head(&r, 3, 0, 2);
    raw_bad(&r, "more metadata pairs");
}

static void metadata_that_lies(void **state)
{
    (void)state;
    static const struct {
        uint32_t type, element;
        uint64_t count;
        const char *text;
    } cases[] = {
        {13, 0, 0, "'key': the type of the value is unknown"},
        {UINT32_MAX, 0, 0, "unknown"},
        {MX_GV_ARRAY, 99, 1, "unknown"},
        {MX_GV_ARRAY, MX_GV_ARRAY, 1, "arrays of arrays"},
        {MX_GV_ARRAY, MX_GV_U8, UINT64_MAX, "longer than what is left"},
        {MX_GV_ARRAY, MX_GV_F64, UINT64_MAX / 8 + 1, "longer than what is left"},
        {MX_GV_ARRAY, MX_GV_STRING, 1ull << 61, "longer than what is left"},
        {MX_GV_ARRAY, MX_GV_STRING, 2, "a string is longer"},
        {MX_GV_ARRAY, MX_GV_BOOL, 8, "neither 0 nor 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct raw r;
        raw_head(&r, 3, 0, 1);
        gw_string(&r.b, "key", 3);
        gw_u32(&r.b, cases[i].type);
        gw_u32(&r.b, cases[i].element);
        gw_u64(&r.b, cases[i].count);
        for (int k = 0; k < 40; k++)
            mx_strbuf_putc(&r.b, 9);
        raw_bad(&r, cases[i].text);
    }
    struct raw r;
    raw_head(&r, 3, 0, 1);
    gw_string(&r.b, "a\0b", 3);
    for (int k = 0; k < 40; k++)
        mx_strbuf_putc(&r.b, 0);
    raw_bad(&r, "not UTF-8");
}

static void add_bad(struct gguf_writer *w, const char *text)
{
    struct mx_strbuf file;
    gw_finish(w, &file);
    assert_bad(file.data, file.len, text);
    mx_strbuf_free(&file);
    gw_free(w);
}

static void tables_that_lie(void **state)
{
    (void)state;
    static const struct {
        uint32_t ndim, type;
        int64_t ne[4];
        const char *text;
    } cases[] = {
        {0, 0, {0}, "1 to 4 dimensions"},
        {4, 0, {1, 1, 1, 0}, "a dimension is zero"},
        {4, 0, {1 << 20, 1 << 20, 1 << 20, 1 << 20}, "too large"},
        {2, 0, {-1, 1}, "a dimension is zero or"},
        {2, 0, {1ll << 40, 1ll << 40}, "too large"},
        {1, 0, {1ll << 47}, "past the end"},
        {2, MX_GGUF_Q4_K, {128, 2}, "multiple of the type's block"},
        {1, UINT32_MAX, {32}, "unknown"},
    };
    struct gguf_writer w;
    float row[64] = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gw_init(&w);
        gw_info(&w, "t", cases[i].ndim, cases[i].ne, cases[i].type);
        gw_row(&w, MX_GGUF_F32, row, 64);
        add_bad(&w, cases[i].text);
    }
    const int64_t ne = 16;
    gw_init(&w); /* twice the same name */
    gw_info(&w, "t", 1, &ne, 0);
    gw_row(&w, MX_GGUF_F32, row, 16);
    gw_info(&w, "t", 1, &ne, 0);
    gw_row(&w, MX_GGUF_F32, row, 16);
    add_bad(&w, "this tensor twice");
    gw_init(&w); /* twice the same key */
    gw_put_u32(&w, "k", 1);
    gw_put_u32(&w, "k", 1);
    add_bad(&w, "'k': the metadata has this key twice");
    gw_init(&w); /* the second starts inside the first */
    gw_info(&w, "t", 1, &(int64_t){32}, 0);
    gw_row(&w, MX_GGUF_F32, row, 16);
    gw_info(&w, "u", 1, &ne, 0);
    gw_row(&w, MX_GGUF_F32, row, 64);
    add_bad(&w, "overlaps");
    gw_init(&w);
    gw_put_u32(&w, "general.alignment", 24);
    add_bad(&w, "power of two");
    gw_init(&w);
    gw_put_str(&w, "general.alignment", "32");
    add_bad(&w, "must be an integer");
    gw_init(&w); /* offsets are multiples of 32 only */
    gw_put_u32(&w, "general.alignment", 64);
    gw_info(&w, "t", 1, &ne, 0);
    gw_row(&w, MX_GGUF_F32, row, 24);
    gw_info(&w, "u", 1, &ne, 0);
    gw_row(&w, MX_GGUF_F32, row, 64);
    add_bad(&w, "not aligned");
}

/* ---- Finding files ------------------------------------------------------------------------ */

static void assert_resolves(const char *path, const char *want)
{
    mtplx_error err = {0};
    char *have = mx_gguf_resolve(path, &err);
    assert_int_equal(err.status, MTPLX_OK);
    if (want)
        assert_string_equal(have, want);
    else
        assert_null(have);
    free(have);
}

static void assert_unclear(const char *path, const char *text)
{
    mtplx_error err = {0};
    assert_null(mx_gguf_resolve(path, &err));
    assert_int_equal(err.status, MTPLX_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, text));
    assert_null(mx_gguf_resolve(path, NULL));
}

static void finds_the_file(void **state)
{
    (void)state;
    clean();
    assert_resolves("/nonexistent", NULL);
    assert_resolves(tmp, NULL);
    touch("a.gguf");
    touch("mmproj-a.gguf");
    assert_resolves(tmp, in_tmp("a.gguf"));
    assert_resolves(in_tmp("a.gguf"), in_tmp("a.gguf"));
    touch("b.gguf");
    assert_unclear(tmp, "holds 2 GGUF files");
    touch("config.json");
    assert_resolves(tmp, NULL);
    assert_resolves(in_tmp("b.gguf"), in_tmp("b.gguf"));
    touch("model.bin");
    assert_unclear(in_tmp("model.bin"), "or a .gguf file");
    clean();
    touch("s-00001-of-00002.gguf");
    touch("s-00002-of-00002.gguf");
    assert_resolves(tmp, in_tmp("s-00001-of-00002.gguf"));
    clean();
}

/* ---- Models ------------------------------------------------------------------------------- */

static struct converter fixture(const struct conversion *how)
{
    struct converter c;
    char *dir = source_path("tests/golden/qwen3_5_text");
    gc_begin(&c, dir, how);
    free(dir);
    return c;
}

static struct mx_gguf_model *open_model(const char *name)
{
    mtplx_error err = {0};
    struct mx_gguf_model *m = mx_gguf_model_open(in_tmp(name), &err);
    if (!m)
        fail_msg("%s", err.message);
    return m;
}

static void assert_no_model(const char *name, const char *text)
{
    mtplx_error err = {0};
    assert_null(mx_gguf_model_open(in_tmp(name), &err));
    if (!strstr(err.message, text))
        fail_msg("expected \"%s\", got \"%s\"", text, err.message);
}

static const struct mx_tensor *model_tensor(const struct mx_gguf_model *m, const char *name)
{
    for (size_t i = 0; i < m->count; i++)
        if (strcmp(m->tensors[i].name, name) == 0)
            return &m->tensors[i];
    return NULL;
}

static void maps_names_and_shapes(void **state)
{
    (void)state;
    const struct conversion how = {.type = MX_GGUF_Q8_0};
    struct converter c = fixture(&how);
    int64_t ne[2] = {32, 1};
    float row[32] = {0};
    static const char *const strange[] = {"blk.00.attn_norm.weight", "blk.9999.attn_norm.weight",
                                          "blk.x.attn_norm.weight", "model.norm.weight",
                                          "rope_freqs.weight"};
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
        gw_info(&c.w, strange[i], 1, ne, MX_GGUF_F32);
        gw_row(&c.w, MX_GGUF_F32, row, 32);
    }
    gw_write(&c.w, in_tmp("a.gguf"));
    gc_end(&c);
    struct mx_gguf_model *m = open_model("a.gguf");
    assert_true(m->known && m->layers == 8 && m->mtp_layers == 1 && !m->mtp_embeddings);
    const struct mx_tensor *t = model_tensor(m, "model.layers.3.self_attn.q_proj.weight");
    assert_true(t && t->ndim == 2 && t->shape[0] == 512 && t->shape[1] == 64);
    assert_true(t->dtype == MX_DTYPE_NONE && t->gguf_type == MX_GGUF_Q8_0);
    t = model_tensor(m, "model.layers.0.linear_attn.conv1d.weight");
    assert_true(t && t->ndim == 3 && t->shape[0] == 256 && t->shape[1] == 1 && t->shape[2] == 4);
    assert_true(t->dtype == MX_F32 && t->gguf_type == 0);
    assert_non_null(model_tensor(m, "mtp.layers.0.mlp.down_proj.weight"));
    assert_non_null(model_tensor(m, "mtp.pre_fc_norm_hidden.weight"));
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
        char name[64];
        snprintf(name, sizeof name, "gguf.%s", strange[i]);
        assert_non_null(model_tensor(m, name));
    }
    mx_gguf_model_close(m);
    clean();
}

/* The same config, as far as GGUF tells, as the source's own. */
static void makes_the_config(void **state)
{
    (void)state;
    static const char *const ints[] = {"hidden_size",
                                       "num_hidden_layers",
                                       "vocab_size",
                                       "max_position_embeddings",
                                       "intermediate_size",
                                       "num_attention_heads",
                                       "num_key_value_heads",
                                       "head_dim",
                                       "linear_num_key_heads",
                                       "linear_num_value_heads",
                                       "linear_key_head_dim",
                                       "linear_value_head_dim",
                                       "linear_conv_kernel_dim",
                                       "full_attention_interval",
                                       "mtp_num_hidden_layers"};
    const struct conversion how = {.type = MX_GGUF_F16};
    struct converter c = fixture(&how);
    mtplx_error err = {0};
    gw_put_u32(&c.w, "tokenizer.ggml.eos_token_id", 2);
    gw_put_u32(&c.w, "general.sampling.top_k", 7);
    gw_put_f32(&c.w, "general.sampling.temp", 0.75f);
    gw_write(&c.w, in_tmp("a.gguf"));
    struct mx_config cfg;
    if (mx_config_open(&cfg, in_tmp("a.gguf"), &err) != MTPLX_OK)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
        int have = -1;
        assert_int_equal(mx_config_int(&cfg, ints[i], 0, INT32_MAX, &have, &err), MTPLX_OK);
        assert_int_equal(have, gc_int(&c, ints[i]));
    }
    assert_true(json_is_false(mx_config_get(&cfg, "tie_word_embeddings")));
    const json_t *rope = mx_config_get(&cfg, "rope_parameters");
    assert_int_equal(json_array_size(json_object_get(rope, "mrope_section")), 3);
    assert_int_equal(json_integer_value(json_array_get(mx_config_get(&cfg, "eos_token_id"), 0)), 2);
    const json_t *gen = mx_config_get(&cfg, "generation_config");
    assert_int_equal(json_integer_value(json_object_get(gen, "top_k")), 7);
    assert_true(json_real_value(json_object_get(gen, "temperature")) == 0.75);
    mx_config_close(&cfg);
    gc_end(&c);
    clean();
}

/* Metadata that the fixture does not have, added; what the config or its reader says to it. */
static void assert_config(const char *key, uint32_t value, bool array, const char *text)
{
    const struct conversion how = {.type = MX_GGUF_F16, .skip_key = key};
    struct converter c = fixture(&how);
    mtplx_error err = {0};
    const int32_t list[] = {(int32_t)value, 0, 3};
    if (array)
        gw_put_i32s(&c.w, key, list, 3);
    else
        gw_put_u32(&c.w, key, value);
    gw_write(&c.w, in_tmp("a.gguf"));
    gc_end(&c);
    mtplx_model *m = mtplx_model_load(in_tmp("a.gguf"), NULL, &err);
    if (text && (m || !strstr(err.message, text)))
        fail_msg("%s: expected \"%s\", got \"%s\"", key, text, m ? "a model" : err.message);
    if (!text && !m)
        fail_msg("%s: %s", key, err.message);
    mtplx_model_free(m);
    clean();
}

static void refuses_odd_metadata(void **state)
{
    (void)state;
    assert_config("qwen35.attention.head_count_kv", 3, true, "num_key_value_heads 3");
    assert_config("qwen35.attention.head_count", 4, true, "differs between layers");
    assert_config("qwen35.embedding_length", UINT32_MAX, false, "hidden_size");
    assert_config("qwen35.block_count", 0, false, "'qwen35.block_count'");
    assert_config("qwen35.nextn_predict_layers", 9, false, "there are 9 blocks");
    assert_config("qwen35.ssm.inner_size", 127, false, "'qwen35.ssm.inner_size'");
    assert_config("qwen35.rope.dimension_count", 65, false, "exceeds");
    assert_config("qwen35.attention.value_length", 32, false, "differs from");
    assert_config("qwen35.rope.scaling.factor", 4, false, "rope_type 'linear'");
    assert_config("qwen35.rope.scaling.factor", 1, false, NULL);
    assert_config("qwen35.attention.recurrent_layers", 1, true, "fewer entries");
}

static void describes_other_architectures(void **state)
{
    (void)state;
    struct gguf_writer w;
    mtplx_error err = {0};
    gw_init(&w);
    put_small(&w);
    gw_put_u32(&w, "test.block_count", 3);
    gw_put_u32(&w, "test.embedding_length", 99);
    gw_write(&w, in_tmp("a.gguf"));
    gw_free(&w);
    struct mx_config cfg;
    int hidden = 0;
    assert_int_equal(mx_config_open(&cfg, in_tmp("a.gguf"), &err), MTPLX_OK);
    assert_string_equal(json_string_value(mx_config_get(&cfg, "model_type")), "test");
    assert_int_equal(mx_config_int(&cfg, "hidden_size", 0, 100, &hidden, &err), MTPLX_OK);
    assert_int_equal(hidden, 99);
    mx_config_close(&cfg);
    assert_null(mtplx_model_load(in_tmp("a.gguf"), NULL, &err));
    assert_int_equal(err.status, MTPLX_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "model_type 'test'"));
    clean();
}

/* ---- Split models ------------------------------------------------------------------------- */

static void write_part(const char *name, uint32_t no, uint32_t count, const char *tensor)
{
    struct gguf_writer w;
    float row[32] = {(float)no};
    gw_init(&w);
    if (no == 0) {
        gw_put_str(&w, "general.architecture", "qwen35");
        gw_put_u32(&w, "qwen35.block_count", 2);
    }
    gw_put_u32(&w, "split.no", no);
    gw_put_u32(&w, "split.count", count);
    gw_info(&w, tensor, 1, &(int64_t){32}, MX_GGUF_F32);
    gw_row(&w, MX_GGUF_F32, row, 32);
    gw_write(&w, in_tmp(name));
    gw_free(&w);
}

static void opens_split_models(void **state)
{
    (void)state;
    mtplx_error err = {0};
    write_part("s-00001-of-00002.gguf", 0, 2, "blk.0.attn_norm.weight");
    assert_no_model("s-00001-of-00002.gguf", "s-00002-of-00002.gguf");
    write_part("s-00002-of-00002.gguf", 1, 2, "output_norm.weight");
    struct mx_checkpoint *ck = mx_checkpoint_open(tmp, NULL, &err);
    assert_non_null(ck);
    assert_int_equal(mx_checkpoint_count(ck), 2);
    const struct mx_tensor *t = mx_checkpoint_find(ck, "model.norm.weight");
    assert_true(t && strstr(t->file, "s-00002-of-00002.gguf") && *(const float *)t->data == 1);
    assert_false(mx_checkpoint_is_side(ck, t));
    mx_checkpoint_close(ck);
    assert_no_model("s-00002-of-00002.gguf", "name the first part");
    write_part("s-00002-of-00002.gguf", 1, 2, "blk.0.attn_norm.weight");
    assert_null(mx_checkpoint_open(tmp, NULL, &err));
    assert_non_null(strstr(err.message, "is in both"));
    write_part("s-00002-of-00002.gguf", 2, 2, "output_norm.weight");
    assert_no_model("s-00001-of-00002.gguf", "the file name says part 2");
    write_part("a.gguf", 0, 2, "output_norm.weight");
    assert_no_model("a.gguf", "must be named like");
    write_part("a-00001-of-00003.gguf", 0, 2, "output_norm.weight");
    assert_no_model("a-00001-of-00003.gguf", "must be named like");
    clean();
}

/* ---- Tokenizer ---------------------------------------------------------------------------- */

static void check_case(const struct mx_tokenizer *a, const struct mx_tokenizer *b, const char *text,
                       size_t len)
{
    for (int plain = 0; plain < 2; plain++) {
        struct mx_ids x = {0}, y = {0};
        assert_int_equal(mx_tokenizer_encode(a, text, len, plain, &x, NULL), MTPLX_OK);
        assert_int_equal(mx_tokenizer_encode(b, text, len, plain, &y, NULL), MTPLX_OK);
        assert_int_equal(x.n, y.n);
        if (x.n)
            assert_memory_equal(x.v, y.v, x.n * sizeof *x.v);
        mx_ids_free(&x);
        mx_ids_free(&y);
    }
}

static void check_tokens(const struct mx_tokenizer *a, const struct mx_tokenizer *b)
{
    assert_int_equal(mx_tokenizer_size(a), mx_tokenizer_size(b));
    for (int32_t id = 0; id < mx_tokenizer_size(a); id++) {
        size_t n, k;
        const char *x = mx_tokenizer_bytes(a, id, &n), *y = mx_tokenizer_bytes(b, id, &k);
        assert_int_equal(n, k);
        assert_memory_equal(x, y, n);
        assert_int_equal(mx_tokenizer_is_special(a, id), mx_tokenizer_is_special(b, id));
        assert_int_equal(mx_tokenizer_is_added(a, id), mx_tokenizer_is_added(b, id));
    }
}

static void same_tokenizer(void **state)
{
    (void)state;
    char *dir = source_path("models/nano");
    char *path = source_path("tests/golden/tokenizer/cases.json");
    struct gguf_writer w;
    struct mx_strbuf file;
    struct mx_gguf g;
    mtplx_error err = {0};
    gw_init(&w);
    gc_tokenizer(&w, dir, "qwen2");
    gw_put_u32(&w, "tokenizer.ggml.eos_token_id", 8182);
    gw_finish(&w, &file);
    assert_int_equal(mx_gguf_parse(&g, file.data, file.len, "nano", &err), MTPLX_OK);
    struct mx_tokenizer *have = mx_tokenizer_open_gguf(&g, &err);
    if (!have)
        fail_msg("%s", err.message);
    struct mx_tokenizer *want = mx_tokenizer_open(dir, &err);
    check_tokens(have, want);
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, NULL), *e;
    size_t i;
    assert_int_equal(json_array_size(json_object_get(root, "cases")), 60);
    json_array_foreach(json_object_get(root, "cases"), i, e)
    {
        const json_t *text = json_object_get(e, "text");
        check_case(have, want, json_string_value(text), json_string_length(text));
    }
    struct mx_chat *chat = mx_chat_open_gguf(&g, &err), *source = mx_chat_open(dir, &err);
    assert_true(chat && source);
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "Hello");
    struct mx_chat_request request = {.messages = messages, .add_generation_prompt = true};
    struct mx_strbuf x, y;
    mx_strbuf_init(&x, 0);
    mx_strbuf_init(&y, 0);
    assert_int_equal(mx_chat_render(chat, &request, &x, &err), MTPLX_OK);
    assert_int_equal(mx_chat_render(source, &request, &y, &err), MTPLX_OK);
    assert_string_equal(x.data, y.data);
    mx_strbuf_free(&x);
    mx_strbuf_free(&y);
    json_decref(messages);
    json_decref(root);
    mx_chat_free(chat);
    mx_chat_free(source);
    mx_tokenizer_free(have);
    mx_tokenizer_free(want);
    mx_gguf_close(&g);
    mx_strbuf_free(&file);
    gw_free(&w);
    free(dir);
    free(path);
}

struct tokens {
    const char *model, *pre;
    const char *token, *merge;
    int32_t types[3];
    size_t n_types;
    mtplx_status status; /* OK: no tokenizer, no error */
    const char *text;
};

static void check_tokens_case(const struct tokens *c)
{
    struct gguf_writer w;
    struct mx_strbuf file;
    struct mx_gguf g;
    mtplx_error err = {0};
    gw_init(&w);
    if (c->model)
        gw_put_str(&w, "tokenizer.ggml.model", c->model);
    if (c->pre)
        gw_put_str(&w, "tokenizer.ggml.pre", c->pre);
    gw_array(&w, "tokenizer.ggml.tokens", MX_GV_STRING, 3);
    gw_string(&w.pairs, "a", 1);
    gw_string(&w.pairs, "b", 1);
    gw_string(&w.pairs, c->token, strlen(c->token));
    if (c->merge) {
        gw_array(&w, "tokenizer.ggml.merges", MX_GV_STRING, 1);
        gw_string(&w.pairs, c->merge, strlen(c->merge));
    }
    if (c->n_types)
        gw_put_i32s(&w, "tokenizer.ggml.token_type", c->types, c->n_types);
    gw_finish(&w, &file);
    assert_int_equal(mx_gguf_parse(&g, file.data, file.len, "t.gguf", &err), MTPLX_OK);
    struct mx_tokenizer *t = mx_tokenizer_open_gguf(&g, &err);
    if ((t != NULL) != (c->text && !*c->text) || err.status != c->status ||
        (c->text && *c->text && !strstr(err.message, c->text)))
        fail_msg("expected \"%s\", got \"%s\"", c->text ? c->text : "none",
                 t ? "a tokenizer" : err.message);
    mx_tokenizer_free(t);
    mx_gguf_close(&g);
    mx_strbuf_free(&file);
    gw_free(&w);
}

static void odd_tokenizers(void **state)
{
    (void)state;
    static const struct tokens cases[] = {
        {NULL, NULL, "c", NULL, {0}, 0, MTPLX_OK, NULL},
        {"none", NULL, "c", NULL, {0}, 0, MTPLX_OK, NULL},
        {"llama", "default", "c", NULL, {0}, 0, MTPLX_ERR_UNSUPPORTED, "\"llama\""},
        {"gpt2", "llama-bpe", "c", NULL, {0}, 0, MTPLX_ERR_UNSUPPORTED, "\"llama-bpe\""},
        {"gpt2", NULL, "c", NULL, {0}, 0, MTPLX_ERR_UNSUPPORTED, "tokenizer.ggml.pre"},
        {"gpt2", "qwen35", "c", NULL, {0}, 0, MTPLX_OK, ""},
        {"gpt2", "qwen35", "c", NULL, {1, 4, 3}, 3, MTPLX_OK, ""},
        {"gpt2", "qwen35", "c", NULL, {1, 1}, 2, MTPLX_ERR_FORMAT, "2 entries for 3 tokens"},
        {"gpt2", "qwen35", "a", NULL, {0}, 0, MTPLX_ERR_FORMAT, "under another id"},
        {"gpt2", "qwen35", "a", NULL, {1, 1, 5}, 3, MTPLX_OK, ""},
        {"gpt2", "qwen35", "\xff", NULL, {0}, 0, MTPLX_ERR_FORMAT, "tokens[2] is not UTF-8"},
        {"gpt2", "qwen35", "ab", "a b", {0}, 0, MTPLX_OK, ""},
        {"gpt2", "qwen35", "c", "a b", {0}, 0, MTPLX_OK, ""}, /* joins to no token */
        {"gpt2", "qwen35", "c", "a z", {0}, 0, MTPLX_ERR_FORMAT, "merges[0] names \"z\""},
        {"gpt2", "qwen35", "c", "ab", {0}, 0, MTPLX_ERR_FORMAT, "merges[0] is not"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_tokens_case(&cases[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_values),          cmocka_unit_test(wrong_types_name_the_key),
        cmocka_unit_test(truncated_anywhere),    cmocka_unit_test(bytes_changed),
        cmocka_unit_test(headers_that_lie),      cmocka_unit_test(metadata_that_lies),
        cmocka_unit_test(tables_that_lie),       cmocka_unit_test(finds_the_file),
        cmocka_unit_test(maps_names_and_shapes), cmocka_unit_test(makes_the_config),
        cmocka_unit_test(refuses_odd_metadata),  cmocka_unit_test(describes_other_architectures),
        cmocka_unit_test(opens_split_models),    cmocka_unit_test(same_tokenizer),
        cmocka_unit_test(odd_tokenizers),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
