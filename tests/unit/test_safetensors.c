/* safetensors reader and writer: reference files, a round trip, and every way a header can lie. */
#include "base/half.h"
#include "base/rng.h"
#include "format/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char *fixture(const char *name)
{
    const char *root = getenv("MTPLX_SRC");
    return mx_path_join(root ? root : ".", name);
}

/* Builds a file from a header and `section` bytes counting up from 0. malloc'ed. */
static uint8_t *build(const char *header, size_t section, size_t *size)
{
    size_t n = strlen(header);
    *size = 8 + n + section;
    uint8_t *p = malloc(*size);
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)((uint64_t)n >> (8 * i));
    memcpy(p + 8, header, n);
    for (size_t i = 0; i < section; i++)
        p[8 + n + i] = (uint8_t)i;
    return p;
}

static void expect_ok(const char *header, size_t section, size_t count)
{
    size_t size;
    uint8_t *p = build(header, section, &size);
    struct mx_safetensors st;
    mtplx_error err = {0};
    if (mx_safetensors_parse(&st, p, size, "t", &err) != MTPLX_OK)
        fail_msg("%s: refused: %s", header, err.message);
    assert_int_equal(st.count, count);
    mx_safetensors_close(&st);
    free(p);
}

static void expect_error(const char *header, size_t section, mtplx_status status, const char *part)
{
    size_t size;
    uint8_t *p = build(header, section, &size);
    struct mx_safetensors st;
    mtplx_error err = {0};
    mtplx_status got = mx_safetensors_parse(&st, p, size, "m.safetensors", &err);
    if (got == MTPLX_OK)
        fail_msg("accepted: %s", header);
    if (got != status || got != err.status || !strstr(err.message, part))
        fail_msg("%s: status %d, message '%s' lacks '%s'", header, got, err.message, part);
    if (strncmp(err.message, "m.safetensors: ", 15) != 0)
        fail_msg("message does not name the file: %s", err.message);
    assert_null(st.tensors);
    mx_safetensors_close(&st); /* harmless */
    assert_int_equal(mx_safetensors_parse(&st, p, size, "t", NULL), status);
    free(p);
}

#define F(h, s, part) expect_error(h, s, MTPLX_ERR_FORMAT, part)
#define U(h, s, part) expect_error(h, s, MTPLX_ERR_UNSUPPORTED, part)

/* One tensor "x" with the given fields. */
#define X(fields) "{\"x\":{" fields "}}"
#define OFF(a, b) "\"data_offsets\":[" #a "," #b "]"

/* ---- Well-formed -------------------------------------------------------------------------- */

static void reads_reference_files(void **state)
{
    (void)state;
    mtplx_error err = {0};
    struct mx_safetensors st;
    char *path = fixture("tests/golden/qwen3_5_text/golden.safetensors");
    assert_int_equal(mx_safetensors_open(&st, path, &err), MTPLX_OK);
    assert_int_equal(st.count, 21);
    assert_string_equal(st.metadata_format, "pt");
    const struct mx_tensor *t = mx_safetensors_find(&st, "hidden_states");
    assert_non_null(t);
    assert_int_equal(t->dtype, MX_F32);
    assert_int_equal(t->ndim, 3);
    assert_int_equal(t->shape[0], 8);
    assert_int_equal(t->shape[1], 24);
    assert_int_equal(t->shape[2], 64);
    assert_int_equal(t->bytes, 8 * 24 * 64 * 4);
    assert_string_equal(t->file, path);
    const struct mx_tensor *freq = mx_safetensors_find(&st, "rope_inv_freq");
    assert_true(mx_dtype_load(MX_F32, freq->data, 0) == 1.0f); /* base^0 */
    assert_null(mx_safetensors_find(&st, "hidden_state"));
    assert_null(mx_safetensors_find(&st, ""));
    for (size_t i = 1; i < st.count; i++)
        assert_true(strcmp(st.tensors[i - 1].name, st.tensors[i].name) < 0);
    mx_safetensors_close(&st);
    free(path);
}

static void accepts_odd_but_valid(void **state)
{
    (void)state;
    expect_ok("{}", 0, 0);
    expect_ok("{}   \n", 0, 0);
    expect_ok("{ \"__metadata__\" : { \"format\" : \"mlx\" , \"a\" : \"b\" } }", 0, 0);
    expect_ok("{\"__metadata__\":{}}", 0, 0);
}

static void accepts_scalars_and_empties(void **state)
{
    (void)state;
    expect_ok(X("\"dtype\":\"F32\",\"shape\":[]," OFF(0, 4)), 4, 1);
    expect_ok(X("\"dtype\":\"F32\",\"shape\":[0]," OFF(0, 0)), 0, 1);
    expect_ok(X("\"dtype\":\"F32\",\"shape\":[3,0,7]," OFF(0, 0)), 0, 1);
    expect_ok(X(OFF(0, 4) ",\"shape\":[4],\"dtype\":\"U8\""), 4, 1); /* any order of fields */
    expect_ok(X("\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,2]," OFF(0, 2)), 2, 1);
    expect_ok("{\"\":{\"dtype\":\"BOOL\",\"shape\":[2]," OFF(0, 2) "}}", 2, 1); /* empty name */
    expect_ok("{\"b\":{\"dtype\":\"U8\",\"shape\":[2]," OFF(
                  2, 4) "},"
                        "\"e\":{\"dtype\":\"F64\",\"shape\":[0]," OFF(
                            2, 2) "},"
                                  "\"a\":{\"dtype\":\"I8\",\"shape\":[2]," OFF(0, 2) "}}",
              4, 3);
}

static void knows_every_type(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int bytes;
    } types[] = {{"BOOL", 1}, {"U8", 1},      {"I8", 1},      {"U16", 2},
                 {"I16", 2},  {"U32", 4},     {"I32", 4},     {"U64", 8},
                 {"I64", 8},  {"F16", 2},     {"BF16", 2},    {"F32", 4},
                 {"F64", 8},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char h[200];
        snprintf(h, sizeof h, "{\"x\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[0,%d]}}",
                 types[i].name, 3 * types[i].bytes);
        expect_ok(h, 3 * (size_t)types[i].bytes, 1);
        enum mx_dtype t = mx_dtype_parse(types[i].name);
        assert_string_equal(mx_dtype_name(t), types[i].name);
        assert_int_equal(mx_dtype_bytes(t), types[i].bytes);
    }
    assert_int_equal(mx_dtype_parse("NONE"), MX_DTYPE_NONE);
    assert_int_equal(mx_dtype_parse(""), MX_DTYPE_NONE);
    assert_int_equal(mx_dtype_bytes((enum mx_dtype)1000), 0);
    assert_int_equal(mx_dtype_bytes((enum mx_dtype) - 1), 0);
}

static void loads_floats(void **state)
{
    (void)state;
    uint16_t half[2] = {0x3c00, 0xc000}, bf[2] = {0x3f80, 0xc000};
    float f[2] = {0.25f, -3};
    double d[2] = {0.5, 1e300};
    assert_true(mx_dtype_load(MX_F16, half, 1) == -2.0f);
    assert_true(mx_dtype_load(MX_BF16, bf, 0) == 1.0f);
    assert_true(mx_dtype_load(MX_F32, f, 1) == -3.0f);
    assert_true(mx_dtype_load(MX_F64, d, 0) == 0.5f);
    uint8_t odd[5];
    memcpy(odd + 1, f, 4);
    assert_true(mx_dtype_load(MX_F32, odd + 1, 0) == 0.25f); /* any alignment */
}

static void decodes_escapes_in_names(void **state)
{
    (void)state;
    size_t size;
    struct mx_safetensors st;
    uint8_t *p =
        build("{\"a\\n\\\"\\u00e4\\ud83d\\ude00\\/\":{\"dty\\u0070e\":\"U8\",\"shape\":[1],"
              "\"data_offsets\":[0,1]}}",
              1, &size);
    assert_int_equal(mx_safetensors_parse(&st, p, size, "t", NULL), MTPLX_OK);
    assert_string_equal(st.tensors[0].name, "a\n\"\xc3\xa4\xf0\x9f\x98\x80/");
    mx_safetensors_close(&st);
    free(p);
}

/* Wide elements may stand at odd addresses: they are neither refused nor copied. */
static void keeps_odd_tensors(void **state)
{
    (void)state;
    static const char even[] = "{\"x\":{\"dtype\":\"U16\",\"shape\":[2],\"data_offsets\":[1,5]},"
                               "\"e\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[1,1]},"
                               "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                               "\"y\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[5,13]},"
                               "\"z\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[13,15]}}";
    char odd[sizeof even + 1];
    snprintf(odd, sizeof odd, "%s ", even);
    for (int k = 0; k < 2; k++) {
        size_t size;
        struct mx_safetensors st;
        uint8_t *p = build(k ? odd : even, 15, &size);
        assert_int_equal(mx_safetensors_parse(&st, p, size, "t", NULL), MTPLX_OK);
        for (size_t i = 0; i < st.count; i++)
            assert_in_range((uintptr_t)st.tensors[i].data, (uintptr_t)p, (uintptr_t)(p + size));
        assert_memory_equal(mx_safetensors_find(&st, "a")->data, "\0", 1);
        assert_memory_equal(mx_safetensors_find(&st, "x")->data, "\1\2\3\4", 4);
        assert_memory_equal(mx_safetensors_find(&st, "y")->data, "\5\6\7\10\11\12\13\14", 8);
        assert_memory_equal(mx_safetensors_find(&st, "z")->data, "\15\16", 2);
        mx_safetensors_close(&st);
        free(p);
    }
}

/* ---- Malformed ---------------------------------------------------------------------------- */

static void refuses_bad_lengths(void **state)
{
    (void)state;
    static const uint8_t raw[][16] = {
        {0},
        {255, 255, 255, 255, 255, 255, 255, 255, '{', '}'},
        {3, 0, 0, 0, 0, 0, 0, 0, '{', '}'},
        {1, 0, 0, 0, 0, 0, 0, 0, '{', '}'},
        {0, 0, 0, 0, 0, 0, 0, 0, '{', '}'},
        {1, 225, 245, 5, 0, 0, 0, 0, '{', '}'}, /* 100,000,001 */
    };
    mtplx_error err;
    struct mx_safetensors st;
    for (size_t n = 0; n < 10; n++)
        assert_int_equal(mx_safetensors_parse(&st, raw[0], n, "t", &err), MTPLX_ERR_FORMAT);
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(mx_safetensors_parse(&st, raw[i], 10, "t", &err), MTPLX_ERR_FORMAT);
    assert_int_equal(mx_safetensors_parse(&st, NULL, 0, "t", &err), MTPLX_ERR_FORMAT);
    static const char lfs[] = "version https://git-lfs.github.com/spec/v1\n";
    assert_int_equal(mx_safetensors_parse(&st, lfs, sizeof lfs, "t", &err), MTPLX_ERR_FORMAT);
    assert_non_null(strstr(err.message, "git lfs pull"));
}

static void refuses_malformed_json(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "[]",
        " {}",
        "{",
        "{\"",
        "{\"x\"",
        "{\"x\":",
        "{\"x\":{",
        "{\"x\":{}",
        "{\"x\":1}",
        "{,}",
        "{\"x\":[]}",
        "{}x",
        "{}{}",
        "{\"a\" 1}",
        "{x:1}",
        "{\"\\q\":{}}",
        "{\"\\u12\":{}}",
        "{\"\\u0000\":{}}",
        "{\"\\ud800\":{}}",
        "{\"\\udc00\":{}}",
        "{\"\\ud800\\u0041\":{}}",
        "{\"a\x01\":{}}",
        "{\"\\",
        "{\"\\u",
        "{\"__metadata__\":1}",
        "{\"__metadata__\":{\"a\":1}}",
        "{\"__metadata__\":{\"a\":\"b\",}}",
        "{\"__metadata__\":{}",
        "{\"__metadata__\":{},}",
        "{\"__metadata__\":{},\"__metadata__\":{}}",
        "{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}",
        "{\"\xff\":{}}",
        "{\"\xc3\":{}}",
        "{\"\xed\xa0\x80\":{}}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        F(bad[i], 0, "");
    F("{\"__metadata__\":{\"a\":\"1\",\"b\":\"\",\"a\":\"2\"}}", 0, "duplicate");
}

static void refuses_bad_entries(void **state)
{
    (void)state;
    F(X(""), 0, "tensor 'x': its header entry lacks");
    F(X("\"dtype\":\"U8\",\"shape\":[1]"), 1, "tensor 'x': its header entry lacks");
    F(X("\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1]," OFF(0, 1)), 1,
      "'x': its header entry rep");
    F(X("\"dtype\":\"U8\",\"shape\":[1],\"strides\":[1]," OFF(0, 1)), 1, "field other than");
    U(X("\"dtype\":\"F4\",\"shape\":[2]," OFF(0, 1)), 1, "tensor 'x': element type 'F4'");
    U(X("\"dtype\":\"C64\",\"shape\":[1]," OFF(0, 8)), 8, "'C64'");
    U(X("\"dtype\":\"u8\",\"shape\":[1]," OFF(0, 1)), 1, "'u8'");
    U(X("\"dtype\":\"\",\"shape\":[1]," OFF(0, 1)), 1, "''");
    U(X("\"dtype\":\"U8\\u0001AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\",\"shape\":[1]," OFF(0, 1)), 1,
      "element type");
    F(X("\"dtype\":1,\"shape\":[1]," OFF(0, 1)), 1, "expected a string");
    F("{\"x\":{\"dtype\":\"U8\",\"shape\":[1]," OFF(
          0, 1) "},"
                "\"y\":{\"dtype\":\"U8\",\"shape\":[1]," OFF(
                    1, 2) "},"
                          "\"x\":{\"dtype\":\"U8\",\"shape\":[1]," OFF(2, 3) "}}",
      3, "tensor 'x': is declared twice");
}

static void refuses_bad_shapes(void **state)
{
    (void)state;
    F(X("\"dtype\":\"U8\",\"shape\":[-1]," OFF(0, 1)), 1,
      "tensor 'x': expected a non-negative integer");
    F(X("\"dtype\":\"U8\",\"shape\":[1.0]," OFF(0, 1)), 1, "fraction");
    F(X("\"dtype\":\"U8\",\"shape\":[1e2]," OFF(0, 1)), 1, "fraction");
    F(X("\"dtype\":\"U8\",\"shape\":[01]," OFF(0, 1)), 1, "integer");
    F(X("\"dtype\":\"U8\",\"shape\":[1,]," OFF(0, 1)), 1, "integer");
    F(X("\"dtype\":\"U8\",\"shape\":[\"1\"]," OFF(0, 1)), 1, "integer");
    F(X("\"dtype\":\"U8\",\"shape\":1," OFF(0, 1)), 1, "'['");
    F(X("\"dtype\":\"U8\",\"shape\":[9223372036854775808]," OFF(0, 1)), 1, "63 bits");
    F(X("\"dtype\":\"U8\",\"shape\":[99999999999999999999999]," OFF(0, 1)), 1, "63 bits");
    F(X("\"dtype\":\"F64\",\"shape\":[9223372036854775807]," OFF(0, 1)), 1, "overflows");
    F(X("\"dtype\":\"U8\",\"shape\":[4294967296,4294967296]," OFF(0, 0)), 0, "overflows");
    F(X("\"dtype\":\"U8\",\"shape\":[4294967296,4294967296,0]," OFF(0, 0)), 0, "overflows");
    F(X("\"dtype\":\"U8\",\"shape\":[0,4294967296,4294967296]," OFF(0, 0)), 0, "overflows");
    F(X("\"dtype\":\"U8\",\"shape\":[3]," OFF(0, 4)), 4, "take 3 bytes but data_offsets span 4");
    F(X("\"dtype\":\"F32\",\"shape\":[2]," OFF(0, 4)), 4, "take 8 bytes but data_offsets span 4");
    F(X("\"dtype\":\"F32\",\"shape\":[]," OFF(0, 0)), 0, "take 4 bytes");
    U(X("\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1]," OFF(0, 1)), 1,
      "tensor 'x': has more dim");
}

static void refuses_bad_ranges(void **state)
{
    (void)state;
    F(X("\"dtype\":\"U8\",\"shape\":[1]," OFF(1, 0)), 1, "before its begin");
    F(X("\"dtype\":\"U8\",\"shape\":[900]," OFF(0, 900)), 800,
      "m.safetensors: tensor 'x': data ends at byte 900 but the data section has only 800 bytes; "
      "the "
      "file is truncated or its header is wrong");
    F(X("\"dtype\":\"U8\",\"shape\":[5]," OFF(0, 5)), 4, "data ends at byte 5 but");
    F(X("\"dtype\":\"U8\",\"shape\":[1]," OFF(-1, 0)), 1, "tensor 'x'");
    F(X("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]"), 1, "two data_offsets");
    F(X("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]"), 1, "two data_offsets");
    F(X("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[]"), 1, "tensor 'x'");
    F(X("\"dtype\":\"U8\",\"shape\":[1]," OFF(9223372036854775807, 9223372036854775807)), 1,
      "data ends at byte");
    F(X("\"dtype\":\"U8\",\"shape\":[1]," OFF(0, 18446744073709551616)), 1, "63 bits");
    F(X("\"dtype\":\"U8\",\"shape\":[1]," OFF(0, 1)), 2, "trailing bytes");
    F("{}", 1, "trailing bytes");
    F(X("\"dtype\":\"U8\",\"shape\":[1]," OFF(1, 2)), 2, "hole");
    F(X("\"dtype\":\"U8\",\"shape\":[0]," OFF(1, 1)), 1, "hole");
}

static void refuses_overlaps(void **state)
{
    (void)state;
    F("{\"x\":{\"dtype\":\"U8\",\"shape\":[4]," OFF(
          0, 4) "},"
                "\"y\":{\"dtype\":\"U8\",\"shape\":[4]," OFF(2, 6) "}}",
      6, "tensor 'y': data begins at byte 2 but the tensor before it ends at 4 (overlap)");
    F("{\"x\":{\"dtype\":\"U8\",\"shape\":[4]," OFF(
          0, 4) "},"
                "\"y\":{\"dtype\":\"U8\",\"shape\":[4]," OFF(0, 4) "}}",
      4, "overlap");
    F("{\"x\":{\"dtype\":\"U8\",\"shape\":[4]," OFF(
          0, 4) "},"
                "\"e\":{\"dtype\":\"U8\",\"shape\":[0]," OFF(2, 2) "}}",
      4, "overlap");
    F("{\"x\":{\"dtype\":\"U8\",\"shape\":[4]," OFF(
          0, 4) "},"
                "\"y\":{\"dtype\":\"U8\",\"shape\":[4]," OFF(6, 10) "}}",
      10, "hole");
}

/* A name of thousands of bytes must not push the reason out of the message. */
static void long_names_keep_the_reason(void **state)
{
    (void)state;
    char *h = malloc(20000);
    int n = snprintf(h, 20000, "{\"");
    memset(h + n, 'x', 10000);
    snprintf(h + n + 10000, 5000, "\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,1]}}");
    F(h, 1, "data_offsets span 1");
    free(h);
}

/* Every prefix and many single-byte changes of a real file: accepted or refused, never worse. */
static void survives_mutations(void **state)
{
    (void)state;
    char *path = fixture("tests/golden/qwen3_5_text_mlx4/golden.safetensors");
    size_t size;
    char *data = mx_file_read(path, 1 << 20, &size, NULL);
    assert_non_null(data);
    struct mx_safetensors st;
    for (size_t n = 0; n < size; n += n < 1000 ? 1 : 4999) {
        char *cut = malloc(n ? n : 1); /* exact size for ASan */
        memcpy(cut, data, n);
        assert_int_not_equal(mx_safetensors_parse(&st, cut, n, "t", NULL), MTPLX_OK);
        free(cut);
    }
    for (uint64_t i = 0; i < 3000; i++) {
        size_t at = (size_t)(mx_rng_uniform(3, i, MX_RNG_DRAFT) * 960);
        char was = data[at];
        data[at] = (char)(int)(mx_rng_uniform(3, i, MX_RNG_ACCEPT) * 256);
        if (mx_safetensors_parse(&st, data, size, "t", NULL) == MTPLX_OK)
            mx_safetensors_close(&st);
        data[at] = was;
    }
    free(data);
    free(path);
}

/* Ten thousand tensors, declared in a bad order for naive algorithms. */
static void large_headers(void **state)
{
    (void)state;
    enum {
        N = 10000,
    };
    size_t n = 0, cap = N * 100 + 10;
    char *h = malloc(cap);
    h[n++] = '{';
    for (int i = N - 1; i >= 0; i--)
        n += (size_t)snprintf(
            h + n, cap - n, "%s\"t.%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
            i == N - 1 ? "" : ",", i, i, i + 1);
    snprintf(h + n, cap - n, "}");
    expect_ok(h, N, N);
    free(h);
}

/* ---- Writing ------------------------------------------------------------------------------ */

static char tmp[] = "/tmp/mtplx-st-XXXXXX";

static int make_tmp(void **state)
{
    (void)state;
    return mkdtemp(tmp) ? 0 : -1;
}

static int drop_tmp(void **state)
{
    (void)state;
    return rmdir(tmp);
}

static void writes_what_it_reads(void **state)
{
    (void)state;
    mtplx_error err = {0};
    char *path = mx_path_join(tmp, "w.safetensors");
    const float f[6] = {1, 2, 3, 4, 5, 6};
    const uint8_t u[3] = {7, 8, 9};
    struct mx_st_writer *w = mx_st_writer_new("m\"lx", &err);
    assert_non_null(w);
    assert_int_equal(mx_st_writer_add(w, "b.f", MX_F32, 2, (int64_t[]){2, 3}, f, &err), MTPLX_OK);
    assert_int_equal(mx_st_writer_add(w, "s", MX_F32, 0, NULL, f + 5, &err), MTPLX_OK);
    assert_int_equal(mx_st_writer_add(w, "e", MX_F64, 1, (int64_t[]){0}, NULL, &err), MTPLX_OK);
    assert_int_equal(mx_st_writer_add(w, "a\"\\\n\xc3\xa4", MX_U8, 1, (int64_t[]){3}, u, &err),
                     MTPLX_OK);
    assert_int_equal(mx_st_writer_finish(w, path, &err), MTPLX_OK);
    mx_st_writer_free(w);
    struct mx_safetensors st;
    assert_int_equal(mx_safetensors_open(&st, path, &err), MTPLX_OK);
    assert_int_equal(st.count, 4);
    assert_string_equal(st.metadata_format, "m\"lx");
    const struct mx_tensor *t = mx_safetensors_find(&st, "b.f");
    assert_int_equal(t->shape[1], 3);
    assert_memory_equal(t->data, f, sizeof f);
    assert_int_equal(((const uint8_t *)t->data - st.map.data) % 64, 0);
    assert_memory_equal(mx_safetensors_find(&st, "a\"\\\n\xc3\xa4")->data, u, 3);
    assert_int_equal(mx_safetensors_find(&st, "e")->bytes, 0);
    assert_memory_equal(mx_safetensors_find(&st, "s")->data, f + 5, 4);
    mx_safetensors_close(&st);
    unlink(path);
    free(path);
}

static void writer_refuses_nonsense(void **state)
{
    (void)state;
    mtplx_error err = {0};
    char *path = mx_path_join(tmp, "n.safetensors");
    const int64_t neg[1] = {-1}, huge[2] = {INT64_MAX, 2}, one[1] = {1}, most[1] = {INT64_MAX};
    struct mx_st_writer *w = mx_st_writer_new(NULL, &err);
    assert_int_equal(mx_st_writer_add(w, "a", MX_U8, 1, neg, "", &err), MTPLX_ERR_ARGUMENT);
    assert_int_equal(mx_st_writer_add(w, "a", MX_U8, 2, huge, "", &err), MTPLX_ERR_ARGUMENT);
    assert_int_equal(mx_st_writer_add(w, "a", MX_U8, 9, one, "", &err), MTPLX_ERR_ARGUMENT);
    assert_int_equal(mx_st_writer_add(w, "a", MX_U8, -1, one, "", &err), MTPLX_ERR_ARGUMENT);
    assert_int_equal(mx_st_writer_add(w, "a", MX_DTYPE_NONE, 1, one, "", &err), MTPLX_ERR_ARGUMENT);
    assert_int_equal(mx_st_writer_add(w, "\xff", MX_U8, 1, one, "", &err), MTPLX_ERR_ARGUMENT);
    assert_int_equal(mx_st_writer_add(w, "__metadata__", MX_U8, 1, one, "", &err),
                     MTPLX_ERR_ARGUMENT);
    assert_int_equal(mx_st_writer_add(w, "a", MX_U8, 1, one, "x", &err), MTPLX_OK);
    assert_int_equal(mx_st_writer_add(w, "z", MX_U8, 1, most, "x", &err), MTPLX_ERR_ARGUMENT);
    assert_int_equal(mx_st_writer_add(w, "a", MX_U8, 1, one, "y", &err), MTPLX_OK);
    assert_int_equal(mx_st_writer_finish(w, path, &err), MTPLX_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "tensor 'a' was declared twice"));
    assert_false(mx_file_exists(path));
    mx_st_writer_free(w);
    mx_st_writer_free(NULL);
    w = mx_st_writer_new(NULL, &err); /* nothing at all is a valid file */
    assert_int_equal(mx_st_writer_finish(w, path, &err), MTPLX_OK);
    mx_st_writer_free(w);
    struct mx_safetensors st;
    assert_int_equal(mx_safetensors_open(&st, path, &err), MTPLX_OK);
    assert_null(st.metadata_format);
    mx_safetensors_close(&st);
    unlink(path);
    free(path);
}

static void open_names_a_missing_file(void **state)
{
    (void)state;
    mtplx_error err = {0};
    struct mx_safetensors st;
    assert_int_equal(mx_safetensors_open(&st, "/nonexistent/m.safetensors", &err), MTPLX_ERR_IO);
    assert_non_null(strstr(err.message, "/nonexistent/m.safetensors"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_reference_files),
        cmocka_unit_test(accepts_odd_but_valid),
        cmocka_unit_test(accepts_scalars_and_empties),
        cmocka_unit_test(knows_every_type),
        cmocka_unit_test(loads_floats),
        cmocka_unit_test(decodes_escapes_in_names),
        cmocka_unit_test(keeps_odd_tensors),
        cmocka_unit_test(refuses_bad_lengths),
        cmocka_unit_test(refuses_malformed_json),
        cmocka_unit_test(refuses_bad_entries),
        cmocka_unit_test(refuses_bad_shapes),
        cmocka_unit_test(refuses_bad_ranges),
        cmocka_unit_test(refuses_overlaps),
        cmocka_unit_test(long_names_keep_the_reason),
        cmocka_unit_test(survives_mutations),
        cmocka_unit_test(large_headers),
        cmocka_unit_test(writes_what_it_reads),
        cmocka_unit_test(writer_refuses_nonsense),
        cmocka_unit_test(open_names_a_missing_file),
    };
    return cmocka_run_group_tests_name("safetensors", tests, make_tmp, drop_tmp);
}
