/* Checkpoint directories: which files are read, side files, and hostile indices. */
#include "format/checkpoint.h"

#include "base/file.h"
#include "format/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char tmp[] = "/tmp/mtplx-ck-XXXXXX";

static int make_tmp(void **state)
{
    (void)state;
    return mkdtemp(tmp) ? 0 : -1;
}

static const char *const all_files[] = {
    "model.safetensors.index.json",
    "model.safetensors",
    "a.safetensors",
    "b.safetensors",
    "mtp.safetensors",
    "mtp/weights.safetensors",
    "model-mtp.safetensors",
    "extra.safetensors",
    ".hidden.safetensors",
    "link.safetensors",
};

/* Every test starts from an empty directory. */
static int clear_tmp(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof all_files / sizeof *all_files; i++) {
        char *p = mx_path_join(tmp, all_files[i]);
        unlink(p);
        free(p);
    }
    char *sub = mx_path_join(tmp, "mtp");
    rmdir(sub);
    free(sub);
    return 0;
}

static int drop_tmp(void **state)
{
    clear_tmp(state);
    return rmdir(tmp);
}

static void put(const char *name, const char *text)
{
    char *p = mx_path_join(tmp, name);
    assert_int_equal(mx_file_write(p, text, strlen(text), NULL), MTPLX_OK);
    free(p);
}

/* A file whose tensors (space separated names) hold one byte each: `value`. */
static void put_tensors(const char *name, const char *names, uint8_t value)
{
    char buf[500], *rest = NULL, *p = mx_path_join(tmp, name);
    mtplx_error err = {0};
    struct mx_st_writer *w = mx_st_writer_new("pt", &err);
    snprintf(buf, sizeof buf, "%s", names);
    for (char *t = strtok_r(buf, " ", &rest); t; t = strtok_r(NULL, " ", &rest))
        assert_int_equal(mx_st_writer_add(w, t, MX_U8, 1, (int64_t[]){1}, &value, &err), MTPLX_OK);
    assert_int_equal(mx_st_writer_finish(w, p, &err), MTPLX_OK);
    mx_st_writer_free(w);
    free(p);
}

static struct mx_checkpoint *open_ok(const char *config)
{
    mtplx_error err = {0};
    json_t *j = config ? json_loads(config, 0, NULL) : NULL;
    struct mx_checkpoint *ck = mx_checkpoint_open(tmp, j, &err);
    json_decref(j);
    if (!ck)
        fail_msg("%s", err.message);
    return ck;
}

static void open_fails(const char *config, mtplx_status status, const char *a, const char *b)
{
    mtplx_error err = {0};
    json_t *j = config ? json_loads(config, 0, NULL) : NULL;
    assert_null(mx_checkpoint_open(tmp, j, &err));
    assert_null(mx_checkpoint_open(tmp, j, NULL));
    json_decref(j);
    if (err.status != status || !strstr(err.message, a) || !strstr(err.message, b))
        fail_msg("status %d, message '%s' lacks '%s' or '%s'", err.status, err.message, a, b);
}

/* The one byte of a tensor, -1 when there is none. */
static int value(const struct mx_checkpoint *ck, const char *name)
{
    const struct mx_tensor *t = mx_checkpoint_find(ck, name);
    return t ? *(const uint8_t *)t->data : -1;
}

/* ---- Layouts ------------------------------------------------------------------------------ */

static void opens_the_embedded_model(void **state)
{
    (void)state;
    mtplx_error err = {0};
    const char *root = getenv("MTPLX_SRC");
    char *dir = mx_path_join(root ? root : ".", "models/nano");
    struct mx_checkpoint *ck = mx_checkpoint_open(dir, NULL, &err);
    if (!ck)
        fail_msg("%s", err.message);
    assert_int_equal(mx_checkpoint_count(ck), 123 + 2 * 59); /* 59 matrices with scales, biases */
    assert_string_equal(mx_checkpoint_dir(ck), dir);
    const struct mx_tensor *t = mx_checkpoint_find(ck, "model.embed_tokens.weight");
    assert_non_null(t);
    assert_int_equal(t->dtype, MX_U32);
    assert_int_equal(t->shape[0], 8192);
    assert_int_equal(t->shape[1], 512 / 4);
    assert_false(mx_checkpoint_is_side(ck, t));
    for (size_t i = 0; i < mx_checkpoint_count(ck); i++) {
        const struct mx_tensor *x = mx_checkpoint_at(ck, i);
        assert_ptr_equal(mx_checkpoint_find(ck, x->name), x);
        assert_true(i == 0 || strcmp(mx_checkpoint_at(ck, i - 1)->name, x->name) < 0);
    }
    assert_null(mx_checkpoint_at(ck, mx_checkpoint_count(ck)));
    assert_null(mx_checkpoint_find(ck, "nothing"));
    mx_checkpoint_close(ck);
    mx_checkpoint_close(NULL);
    free(dir);
}

static void reads_the_index_only(void **state)
{
    (void)state;
    put_tensors("a.safetensors", "x y", 1);
    put_tensors("b.safetensors", "z unlisted", 2);
    put_tensors("extra.safetensors", "other", 3);
    put_tensors("model.safetensors", "x old", 4);
    put("model.safetensors.index.json", "{\"weight_map\":{\"x\":\"a.safetensors\","
                                        "\"z\":\"b.safetensors\",\"y\":\"./a.safetensors\"}}");
    struct mx_checkpoint *ck = open_ok(NULL);
    assert_int_equal(mx_checkpoint_count(ck), 4);
    assert_int_equal(value(ck, "x"), 1);
    assert_int_equal(value(ck, "unlisted"), 2);
    assert_int_equal(value(ck, "other"), -1);
    assert_int_equal(value(ck, "old"), -1);
    mx_checkpoint_close(ck);
}

static void reads_model_safetensors_or_all(void **state)
{
    (void)state;
    put_tensors("a.safetensors", "x", 1);
    put_tensors("b.safetensors", "y", 2);
    put(".hidden.safetensors", "not a tensor file");
    struct mx_checkpoint *ck = open_ok(NULL);
    assert_int_equal(mx_checkpoint_count(ck), 2);
    mx_checkpoint_close(ck);
    put_tensors("model.safetensors", "z", 3);
    ck = open_ok(NULL);
    assert_int_equal(mx_checkpoint_count(ck), 1);
    assert_int_equal(value(ck, "z"), 3);
    mx_checkpoint_close(ck);
}

static void adds_side_files(void **state)
{
    (void)state;
    char *sub = mx_path_join(tmp, "mtp");
    mkdir(sub, 0700);
    free(sub);
    put_tensors("model.safetensors", "x", 1);
    put_tensors("mtp.safetensors", "mtp.a", 2);
    put_tensors("mtp/weights.safetensors", "mtp.b", 3);
    put_tensors("model-mtp.safetensors", "mtp.c", 4);
    put_tensors("extra.safetensors", "mtp.d", 5);
    struct mx_checkpoint *ck = open_ok(NULL);
    assert_int_equal(mx_checkpoint_count(ck), 4);
    assert_int_equal(value(ck, "mtp.b"), 3);
    assert_true(mx_checkpoint_is_side(ck, mx_checkpoint_find(ck, "mtp.a")));
    assert_true(mx_checkpoint_is_side(ck, mx_checkpoint_find(ck, "mtp.c")));
    assert_false(mx_checkpoint_is_side(ck, mx_checkpoint_find(ck, "x")));
    mx_checkpoint_close(ck);
    ck = open_ok("{\"mlx_lm_extra_tensors\":{\"mtp_file\":\"extra.safetensors\"}}");
    assert_int_equal(mx_checkpoint_count(ck), 5);
    assert_true(mx_checkpoint_is_side(ck, mx_checkpoint_find(ck, "mtp.d")));
    mx_checkpoint_close(ck);
    ck = open_ok("{\"mlx_lm_extra_tensors\":{\"mtp_file\":\"mtp.safetensors\"}}"); /* once */
    assert_int_equal(mx_checkpoint_count(ck), 4);
    mx_checkpoint_close(ck);
}

/* Without an index, top-level side files and the configured one are still side files. */
static void side_files_are_not_main_files(void **state)
{
    (void)state;
    put_tensors("a.safetensors", "x", 1);
    put_tensors("extra.safetensors", "mtp.d", 5);
    put_tensors("mtp.safetensors", "mtp.a", 2);
    struct mx_checkpoint *ck =
        open_ok("{\"mlx_lm_extra_tensors\":{\"mtp_file\":\"extra.safetensors\"}}");
    assert_int_equal(mx_checkpoint_count(ck), 3);
    assert_true(mx_checkpoint_is_side(ck, mx_checkpoint_find(ck, "mtp.d")));
    assert_true(mx_checkpoint_is_side(ck, mx_checkpoint_find(ck, "mtp.a")));
    mx_checkpoint_close(ck);
}

static void a_side_file_in_the_index_is_a_shard(void **state)
{
    (void)state;
    put_tensors("a.safetensors", "x", 1);
    put_tensors("mtp.safetensors", "mtp.a", 2);
    put("model.safetensors.index.json",
        "{\"weight_map\":{\"x\":\"a.safetensors\",\"mtp.a\":\"mtp.safetensors\"}}");
    struct mx_checkpoint *ck = open_ok(NULL);
    assert_int_equal(mx_checkpoint_count(ck), 2);
    assert_false(mx_checkpoint_is_side(ck, mx_checkpoint_find(ck, "mtp.a")));
    mx_checkpoint_close(ck);
}

/* A side file replaces whole modules: no scales of the shard survive beside its weight. */
static void side_files_replace_modules(void **state)
{
    (void)state;
    put_tensors("model.safetensors", "mtp.fc.weight mtp.fc.scales mtp.fc.biases mtp.fcx.weight m",
                1);
    put_tensors("mtp.safetensors", "mtp.fc.weight mtp.new.weight", 2);
    struct mx_checkpoint *ck = open_ok(NULL);
    assert_int_equal(value(ck, "mtp.fc.weight"), 2);
    assert_int_equal(value(ck, "mtp.fc.scales"), -1);
    assert_int_equal(value(ck, "mtp.fc.biases"), -1);
    assert_int_equal(value(ck, "mtp.fcx.weight"), 1);
    assert_int_equal(value(ck, "m"), 1);
    assert_int_equal(mx_checkpoint_count(ck), 4);
    mx_checkpoint_close(ck);
}

static void symbolic_links_are_one_file(void **state)
{
    (void)state;
    char *link_path = mx_path_join(tmp, "link.safetensors");
    put_tensors("a.safetensors", "x", 1);
    assert_int_equal(symlink("a.safetensors", link_path), 0);
    struct mx_checkpoint *ck = open_ok(NULL);
    assert_int_equal(mx_checkpoint_count(ck), 1);
    mx_checkpoint_close(ck);
    free(link_path);
}

/* ---- Errors ------------------------------------------------------------------------------- */

static void refuses_missing_pieces(void **state)
{
    (void)state;
    open_fails(NULL, MTPLX_ERR_FORMAT, tmp, "no tensors");
    put("model.safetensors.index.json", "{\"weight_map\":{}}");
    open_fails(NULL, MTPLX_ERR_FORMAT, tmp, "no tensors");
    put_tensors("a.safetensors", "x", 1);
    put("model.safetensors.index.json",
        "{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\"}}");
    open_fails(NULL, MTPLX_ERR_IO, "b.safetensors", "lacks this file");
    put("model.safetensors.index.json",
        "{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"a.safetensors\"}}");
    open_fails(NULL, MTPLX_ERR_FORMAT, "a.safetensors: tensor 'y' is missing", "index.json");
    put("model.safetensors.index.json", "{\"weight_map\":{\"x\":\"a.safetensors\"}}");
    open_fails("{\"mlx_lm_extra_tensors\":{\"mtp_file\":\"gone.safetensors\"}}", MTPLX_ERR_IO,
               "gone.safetensors", "lacks this file");
    put("a.safetensors", "garbage that is long enough");
    open_fails(NULL, MTPLX_ERR_FORMAT, "a.safetensors", "");
    mtplx_error err = {0};
    assert_null(mx_checkpoint_open("/nonexistent", NULL, &err));
    assert_int_equal(err.status, MTPLX_ERR_IO);
}

static void refuses_escapes(void **state)
{
    (void)state;
    static const char *const bad[] = {"\"../a.safetensors\"",
                                      "\"/etc/passwd\"",
                                      "\"x/../../a.safetensors\"",
                                      "\"..\"",
                                      "\"\"",
                                      "\"x/..\"",
                                      "5",
                                      "null",
                                      "[]"};
    put_tensors("a.safetensors", "x", 1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[200];
        snprintf(text, sizeof text, "{\"weight_map\":{\"x\":%s}}", bad[i]);
        put("model.safetensors.index.json", text);
        open_fails(NULL, MTPLX_ERR_FORMAT, "tensor 'x'", "not inside the checkpoint");
    }
    put("model.safetensors.index.json", "{\"weight_map\":{\"x\":\"a.safetensors\"}}");
    open_fails("{\"mlx_lm_extra_tensors\":{\"mtp_file\":\"../x\"}}", MTPLX_ERR_FORMAT, "mtp_file",
               "inside");
    open_fails("{\"mlx_lm_extra_tensors\":{\"mtp_file\":3}}", MTPLX_ERR_FORMAT, "mtp_file", "");
    struct mx_checkpoint *ck = open_ok("{\"mlx_lm_extra_tensors\":{\"mtp_file\":null}}");
    mx_checkpoint_close(ck);
    ck = open_ok("{\"mlx_lm_extra_tensors\":7}");
    mx_checkpoint_close(ck);
}

static void refuses_malformed_indices(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "{",
                                      "[]",
                                      "{}",
                                      "{\"weight_map\":[]}",
                                      "{\"weight_map\":null}",
                                      "{\"weight_map\":{\"x\":\"a.safetensors\",\"x\":\"b\"}}"};
    put_tensors("a.safetensors", "x", 1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put("model.safetensors.index.json", bad[i]);
        open_fails(NULL, MTPLX_ERR_FORMAT, "model.safetensors.index.json", "");
    }
}

static void refuses_duplicates(void **state)
{
    (void)state;
    put_tensors("a.safetensors", "x y", 1);
    put_tensors("b.safetensors", "y", 1);
    open_fails(NULL, MTPLX_ERR_FORMAT, "tensor 'y' is in both", "b.safetensors");
}

/* Of two side files the earlier wins, module by module; trunk modules in them do not count. */
static void earlier_side_files_win(void **state)
{
    (void)state;
    put_tensors("model.safetensors", "model.embed.weight", 1);
    put_tensors("mtp.safetensors", "mtp.a.weight model.embed.weight model.embed.scales", 2);
    put_tensors("model-mtp.safetensors", "mtp.a.weight mtp.a.scales mtp.b.weight", 3);
    struct mx_checkpoint *ck = open_ok(NULL);
    assert_int_equal(value(ck, "model.embed.weight"), 1);
    assert_int_equal(value(ck, "model.embed.scales"), -1);
    assert_int_equal(value(ck, "mtp.a.weight"), 2);
    assert_int_equal(value(ck, "mtp.a.scales"), -1);
    assert_int_equal(value(ck, "mtp.b.weight"), 3);
    assert_int_equal(mx_checkpoint_count(ck), 3);
    mx_checkpoint_close(ck);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(f, clear_tmp)
    const struct CMUnitTest tests[] = {
        T(opens_the_embedded_model),       T(reads_the_index_only),
        T(reads_model_safetensors_or_all), T(adds_side_files),
        T(side_files_are_not_main_files),  T(a_side_file_in_the_index_is_a_shard),
        T(side_files_replace_modules),     T(symbolic_links_are_one_file),
        T(refuses_missing_pieces),         T(refuses_escapes),
        T(refuses_malformed_indices),      T(refuses_duplicates),
        T(earlier_side_files_win),
    };
    return cmocka_run_group_tests_name("checkpoint", tests, make_tmp, drop_tmp);
}
