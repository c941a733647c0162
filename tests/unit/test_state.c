/* Learned state on disk: round trips, switches, hostile files, races, directories that refuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/file.h"
#include "runtime/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[256];

/* A fresh directory, not made yet, as MTPLX_STATE_DIR. */
static int setup(void **state)
{
    (void)state;
    static int count;
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/mtplx-state-%ld-%d/a/b", tmp ? tmp : "/tmp", (long)getpid(),
             count++);
    setenv("MTPLX_STATE_DIR", dir, 1);
    return 0;
}

static void remove_tree(char *path, int levels)
{
    for (; levels > 0; levels--) {
        rmdir(path);
        *strrchr(path, '/') = '\0';
    }
}

static int teardown(void **state)
{
    (void)state;
    struct mx_state *s = mx_state_new("one");
    if (s) {
        unlink(mx_state_path(s));
        rmdir(mx_state_path(s));
        mx_state_free(s);
    }
    s = mx_state_new("two");
    if (s)
        unlink(mx_state_path(s));
    mx_state_free(s);
    remove_tree(dir, 3);
    return 0;
}

static json_t *number(int n)
{
    return json_pack("{s:i}", "n", n);
}

static int stored(const char *identity, const char *section)
{
    struct mx_state *s = mx_state_new(identity);
    const json_t *v = mx_state_get(s, section);
    int n = v ? (int)json_integer_value(json_object_get(v, "n")) : -1;
    mx_state_free(s);
    return n;
}

static void store(const char *identity, const char *section, int n)
{
    struct mx_state *s = mx_state_new(identity);
    mx_state_put(s, section, number(n));
    mx_state_free(s);
}

static void test_round_trip(void **state)
{
    (void)state;
    struct stat sb;
    struct mx_state *s = mx_state_new("one");
    assert_non_null(s);
    assert_null(mx_state_get(s, "depth"));
    mx_state_put(s, "depth", number(7));
    assert_int_equal(json_integer_value(json_object_get(mx_state_get(s, "depth"), "n")), 7);
    assert_int_not_equal(stat(mx_state_path(s), &sb), 0); /* not before a save */
    mx_state_save(s);
    assert_int_equal(stat(mx_state_path(s), &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0600);
    assert_int_equal(stat(dir, &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0700);
    mx_state_free(s);
    assert_int_equal(stored("one", "depth"), 7);
    assert_int_equal(stored("one", "other"), -1);
    assert_int_equal(stored("two", "depth"), -1);
    store("two", "depth", 8);
    store("one", "depth", 9);
    assert_int_equal(stored("one", "depth"), 9);
    assert_int_equal(stored("two", "depth"), 8);
}

/* Nothing put, nothing written: a model that was only loaded leaves no trace. */
static void test_reading_writes_nothing(void **state)
{
    (void)state;
    assert_int_equal(stored("one", "depth"), -1);
    assert_false(mx_dir_exists(dir));
    struct mx_state *s = mx_state_new("one");
    mx_state_put(s, "depth", json_array()); /* not an object: dropped */
    mx_state_put(s, "depth", NULL);
    mx_state_free(s);
    assert_false(mx_dir_exists(dir));
}

static void test_switches(void **state)
{
    (void)state;
    setenv("MTPLX_STATE_DIR", "off", 1);
    assert_null(mx_state_new("one"));
    setenv("MTPLX_STATE_DIR", "", 1);
    assert_null(mx_state_new("one"));
    unsetenv("MTPLX_STATE_DIR");
    setenv("XDG_CACHE_HOME", "/nowhere/cache", 1);
    struct mx_state *s = mx_state_new("one");
    assert_non_null(strstr(mx_state_path(s), "/nowhere/cache/mtplx/state/"));
    mx_state_free(s);
    setenv("XDG_CACHE_HOME", "relative", 1);
    setenv("HOME", "/nowhere", 1);
    s = mx_state_new("one");
    assert_non_null(strstr(mx_state_path(s), "/nowhere/.cache/mtplx/state/"));
    mx_state_free(s);
    setenv("HOME", "", 1);
    assert_null(mx_state_new("one"));
    /* Every function takes "no state". */
    mx_state_put(NULL, "depth", number(1));
    assert_null(mx_state_get(NULL, "depth"));
    mx_state_save(NULL);
    mx_state_free(NULL);
    assert_null(mx_state_path(NULL));
}

static void write_raw(const char *identity, const void *data, size_t len)
{
    store(identity, "depth", 1); /* makes the directory */
    struct mx_state *s = mx_state_new(identity);
    assert_int_equal(mx_file_write(mx_state_path(s), data, len, NULL), MTPLX_OK);
    mx_state_free(s);
}

static void test_hostile_files(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "{",
        "null",
        "[]",
        "{\"format\":1}",
        "{\"format\":2,\"identity\":\"one\",\"sections\":{\"depth\":{\"n\":5}}}",
        "{\"format\":1,\"identity\":\"two\",\"sections\":{\"depth\":{\"n\":5}}}",
        "{\"format\":1,\"identity\":[],\"sections\":{\"depth\":{\"n\":5}}}",
        "{\"format\":1,\"identity\":\"one\",\"sections\":[]}",
        "{\"format\":1,\"identity\":\"one\",\"sections\":{\"depth\":7}}",
        "{\"format\":1,\"identity\":\"one\",\"sections\":{\"depth\":{\"n\":1e999}}}",
        "\xff\xfe\x00",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_raw("one", bad[i], strlen(bad[i]));
        assert_int_equal(stored("one", "depth"), -1);
        store("one", "depth", 3); /* replaced */
        assert_int_equal(stored("one", "depth"), 3);
    }
    /* Deep nesting, and a file over the limit. */
    size_t n = MX_STATE_LIMIT + 1;
    char *big = malloc(n);
    memset(big, '[', n);
    write_raw("one", big, 1 << 20);
    assert_int_equal(stored("one", "depth"), -1);
    memset(big, ' ', n);
    static const char good[] =
        "{\"format\":1,\"identity\":\"one\",\"sections\":{\"depth\":{\"n\":5}}}";
    memcpy(big, good, sizeof good - 1);
    write_raw("one", big, 1 << 20);
    assert_int_equal(stored("one", "depth"), 5);
    write_raw("one", big, n);
    assert_int_equal(stored("one", "depth"), -1);
    free(big);
}

/* Every prefix of a good file is empty or good, never an error. */
static void test_truncation(void **state)
{
    (void)state;
    size_t len;
    store("one", "depth", 5);
    struct mx_state *s = mx_state_new("one");
    char *text = mx_file_read(mx_state_path(s), 4096, &len, NULL);
    assert_non_null(text);
    for (size_t n = 0; n < len; n++) {
        assert_int_equal(mx_file_write(mx_state_path(s), text, n, NULL), MTPLX_OK);
        assert_int_equal(stored("one", "depth"), -1);
    }
    free(text);
    mx_state_free(s);
}

/* A FIFO must not block, a directory or a broken link in the way must not matter. */
static void test_odd_files(void **state)
{
    (void)state;
    store("one", "depth", 5);
    struct mx_state *s = mx_state_new("one");
    const char *path = mx_state_path(s);
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(stored("one", "depth"), -1);
    store("one", "depth", 6);
    assert_int_equal(stored("one", "depth"), 6);
    unlink(path);
    assert_int_equal(symlink("/nowhere/at/all", path), 0);
    assert_int_equal(stored("one", "depth"), -1);
    store("one", "depth", 7);
    assert_int_equal(stored("one", "depth"), 7);
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    store("one", "depth", 8);
    assert_int_equal(stored("one", "depth"), -1);
    mx_state_free(s);
}

static void test_unwritable_directory(void **state)
{
    (void)state;
    setenv("MTPLX_STATE_DIR", "/dev/null/state", 1);
    store("one", "depth", 5);
    assert_int_equal(stored("one", "depth"), -1);
    setenv("MTPLX_STATE_DIR", "/proc/mtplx", 1);
    store("one", "depth", 5);
    assert_int_equal(stored("one", "depth"), -1);
}

/* Two users of different sections keep each other's; of one section the last stands. */
static void test_merge(void **state)
{
    (void)state;
    struct mx_state *a = mx_state_new("one"), *b = mx_state_new("one");
    mx_state_put(a, "depth", number(1));
    mx_state_put(b, "words", number(2));
    mx_state_put(b, "depth", number(3));
    mx_state_free(a);
    mx_state_free(b);
    assert_int_equal(stored("one", "depth"), 3);
    assert_int_equal(stored("one", "words"), 2);
    a = mx_state_new("one");
    mx_state_put(a, "words", number(4));
    mx_state_save(a);
    mx_state_save(a); /* nothing new: nothing written */
    mx_state_free(a);
    assert_int_equal(stored("one", "depth"), 3);
    assert_int_equal(stored("one", "words"), 4);
}

/* Processes that save at once never leave a torn file. */
static void test_race(void **state)
{
    (void)state;
    pid_t children[4];
    store("one", "depth", 1);
    for (int c = 0; c < 4; c++) {
        children[c] = fork();
        assert_true(children[c] >= 0);
        for (int i = 0; children[c] == 0 && i < 50; i++)
            store("one", "depth", 100 * c + i);
        if (children[c] == 0)
            _exit(0);
    }
    for (int i = 0; i < 200; i++)
        assert_true(stored("one", "depth") >= 0);
    for (int c = 0; c < 4; c++)
        assert_int_equal(waitpid(children[c], NULL, 0), children[c]);
    assert_true(stored("one", "depth") >= 0);
}

static void test_machine(void **state)
{
    (void)state;
    char text[300] = "model";
    mx_state_machine(text, sizeof text);
    assert_memory_equal(text, "model; ", 7);
    char tight[10] = "model";
    mx_state_machine(tight, sizeof tight);
    assert_true(strlen(tight) < sizeof tight);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_round_trip, setup, teardown),
        cmocka_unit_test_setup_teardown(test_reading_writes_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hostile_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_truncation, setup, teardown),
        cmocka_unit_test_setup_teardown(test_odd_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unwritable_directory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_merge, setup, teardown),
        cmocka_unit_test_setup_teardown(test_race, setup, teardown),
        cmocka_unit_test(test_machine),
        cmocka_unit_test_setup_teardown(test_switches, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
