/* Floor 0: errors, arena, strings, files, UTF-8, clock, random numbers. */
#include "base/arena.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/half.h"
#include "base/rng.h"
#include "base/strbuf.h"
#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- Errors ------------------------------------------------------------------------------- */

static void error_formats_and_prefixes(void **state)
{
    (void)state;
    mtplx_error err = {0};
    assert_int_equal(mx_error(&err, MTPLX_ERR_IO, "a %d", 7), MTPLX_ERR_IO);
    assert_int_equal(err.status, MTPLX_ERR_IO);
    assert_string_equal(err.message, "a 7");
    mx_error_prefix(&err, "ctx %s", "x");
    assert_string_equal(err.message, "ctx x: a 7");
    mx_error(&err, MTPLX_ERR_FORMAT, "again: %s", err.message); /* reads what it replaces */
    assert_string_equal(err.message, "again: ctx x: a 7");
    assert_int_equal(mx_error(NULL, MTPLX_ERR_LIMIT, "x"), MTPLX_ERR_LIMIT);
    mx_error_prefix(NULL, "x");
    mtplx_error ok = {0};
    mx_error_prefix(&ok, "x");
    assert_string_equal(ok.message, "");
    assert_int_equal(mx_error_nomem(&err, "kv", 12), MTPLX_ERR_MEMORY);
    assert_non_null(strstr(err.message, "12 bytes for kv"));
}

static void error_is_one_line_of_utf8(void **state)
{
    (void)state;
    mtplx_error err = {0};
    mx_error(&err, MTPLX_ERR_IO, "a\nb\x1b[0m\xff\xc3\xa4\xc2\x85z");
    assert_string_equal(err.message, "a b [0m?\xc3\xa4  z");
    char big[4000];
    memset(big, 'x', sizeof big);
    big[sizeof big - 1] = '\0';
    mx_error(&err, MTPLX_ERR_IO, "%s", big);
    assert_int_equal(strlen(err.message), sizeof err.message - 1);
    for (size_t i = 0; i + 3 < sizeof big; i += 3)
        memcpy(big + i, "\xe2\x82\xac", 3);
    mx_error(&err, MTPLX_ERR_IO, "%s", big);
    assert_true(mx_utf8_valid(err.message, strlen(err.message)));
    assert_true(strlen(err.message) >= sizeof err.message - 4);
    mx_error_prefix(&err, "%s", big);
    assert_true(mx_utf8_valid(err.message, strlen(err.message)));
}

static void status_names(void **state)
{
    (void)state;
    assert_string_equal(mtplx_status_name(MTPLX_OK), "ok");
    assert_string_equal(mtplx_status_name(MTPLX_ERR_CANCELLED), "cancelled");
    assert_string_equal(mtplx_status_name((mtplx_status)99), "unknown");
    assert_string_equal(mtplx_version(), MTPLX_VERSION);
    mtplx_free(NULL);
}

/* ---- Arena and strings -------------------------------------------------------------------- */

static void arena_is_zeroed_and_aligned(void **state)
{
    (void)state;
    struct mx_arena a;
    mx_arena_init(&a, 0);
    for (size_t n = 0; n < 3000; n += 7) {
        unsigned char *p = mx_arena_alloc(&a, n);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(p[i], 0);
        memset(p, 0xaa, n); /* overlap with a later allocation would show there */
    }
    unsigned char *big = mx_arena_alloc(&a, 1 << 20);
    assert_non_null(big);
    memset(big, 1, 1 << 20);
    assert_string_equal(mx_arena_strdup(&a, "hello"), "hello");
    assert_string_equal(mx_arena_strndup(&a, "hello", 3), "hel");
    assert_string_equal(mx_arena_printf(&a, "%d-%s", 5, "x"), "5-x");
    mx_arena_free(&a);
    assert_int_equal(a.used, 0);
    mx_arena_free(&a);
}

static void arena_respects_limit(void **state)
{
    (void)state;
    struct mx_arena a;
    mx_arena_init(&a, 100);
    assert_non_null(mx_arena_alloc(&a, 90)); /* rounds to 96 */
    assert_null(mx_arena_alloc(&a, 10));
    assert_null(mx_arena_alloc(&a, SIZE_MAX));
    assert_null(mx_arena_alloc(&a, SIZE_MAX - 15));
    assert_null(mx_arena_strndup(&a, "", SIZE_MAX));
    assert_int_equal(a.used, 96);
    mx_arena_free(&a);
}

static void strbuf_grows_and_bounds(void **state)
{
    (void)state;
    struct mx_strbuf b;
    mx_strbuf_init(&b, 10);
    assert_true(mx_strbuf_puts(&b, "abc"));
    assert_true(mx_strbuf_putc(&b, 'd'));
    assert_true(mx_strbuf_printf(&b, "%03d", 5));
    assert_string_equal(b.data, "abcd005");
    assert_false(mx_strbuf_puts(&b, "1234"));
    assert_true(b.failed);
    assert_false(mx_strbuf_putc(&b, 'x')); /* stays failed */
    assert_string_equal(b.data, "abcd005");
    size_t len = 99;
    assert_null(mx_strbuf_steal(&b, &len));
    assert_int_equal(len, 0);

    mx_strbuf_init(&b, 0);
    for (int i = 0; i < 10000; i++)
        assert_true(mx_strbuf_append(&b, "a\0b", 3));
    assert_int_equal(b.len, 30000);
    assert_int_equal(b.data[30000], 0);
    mx_strbuf_clear(&b);
    assert_int_equal(b.len, 0);
    assert_string_equal(b.data, "");
    assert_false(mx_strbuf_append(&b, "x", SIZE_MAX - 1));
    mx_strbuf_free(&b);

    mx_strbuf_init(&b, 0);
    char *s = mx_strbuf_steal(&b, &len);
    assert_string_equal(s, "");
    assert_int_equal(len, 0);
    free(s);
    assert_true(mx_strbuf_puts(&b, "reuse"));
    s = mx_strbuf_steal(&b, NULL);
    assert_string_equal(s, "reuse");
    free(s);
    mx_strbuf_free(&b);
}

/* ---- Files -------------------------------------------------------------------------------- */

static char tmp[] = "/tmp/mtplx-base-XXXXXX";

static int make_tmp(void **state)
{
    (void)state;
    return mkdtemp(tmp) ? 0 : -1;
}

static int drop_tmp(void **state)
{
    (void)state;
    return rmdir(tmp); /* fails when a test left a temporary file behind */
}

static void file_round_trip(void **state)
{
    (void)state;
    mtplx_error err = {0};
    char *path = mx_path_join(tmp, "f");
    assert_false(mx_file_exists(path));
    assert_int_equal(mx_file_write(path, "a\0bc", 4, &err), MTPLX_OK);
    assert_int_equal(mx_file_write(path, "d\0efg", 5, &err), MTPLX_OK); /* replaces */
    assert_true(mx_file_exists(path));
    assert_false(mx_dir_exists(path));
    size_t len;
    char *data = mx_file_read(path, 5, &len, &err);
    assert_int_equal(len, 5);
    assert_memory_equal(data, "d\0efg", 6);
    free(data);
    assert_null(mx_file_read(path, 4, &len, &err));
    assert_int_equal(err.status, MTPLX_ERR_LIMIT);
    struct mx_map m;
    assert_int_equal(mx_map_open(&m, path, &err), MTPLX_OK);
    assert_int_equal(m.size, 5);
    assert_memory_equal(m.data, "d\0efg", 5);
    mx_map_close(&m);
    mx_map_close(&m);
    const struct mx_part parts[] = {{"xy", 2}, {NULL, 0}, {"z", 1}};
    assert_int_equal(mx_file_write_parts(path, parts, 3, &err), MTPLX_OK);
    data = mx_file_read(path, 100, NULL, &err);
    assert_string_equal(data, "xyz");
    free(data);
    unlink(path);
    free(path);
}

static void file_keeps_mode_of_replaced_file(void **state)
{
    (void)state;
    char *path = mx_path_join(tmp, "secret");
    struct stat sb;
    assert_int_equal(mx_file_write(path, "a", 1, NULL), MTPLX_OK);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(mx_file_write(path, "b", 1, NULL), MTPLX_OK);
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0600);
    unlink(path);
    free(path);
}

static void file_empty_and_missing(void **state)
{
    (void)state;
    mtplx_error err = {0};
    char *path = mx_path_join(tmp, "empty");
    struct mx_map m;
    assert_int_equal(mx_file_write(path, NULL, 0, &err), MTPLX_OK);
    assert_int_equal(mx_map_open(&m, path, &err), MTPLX_OK);
    assert_int_equal(m.size, 0);
    mx_map_close(&m);
    unlink(path);
    assert_int_equal(mx_map_open(&m, path, &err), MTPLX_ERR_IO);
    assert_non_null(strstr(err.message, "empty: cannot open"));
    assert_null(mx_file_read(path, 10, NULL, &err));
    free(path);
    assert_int_equal(mx_map_open(&m, tmp, &err), MTPLX_ERR_IO); /* a directory */
    assert_int_equal(mx_file_write("/nonexistent-dir/x", "a", 1, &err), MTPLX_ERR_IO);
    assert_int_equal(mx_file_write(tmp, "a", 1, &err), MTPLX_ERR_IO); /* cleans up behind itself */
}

static void file_fifo_does_not_block(void **state)
{
    (void)state;
    mtplx_error err = {0};
    char *path = mx_path_join(tmp, "fifo");
    struct mx_map m;
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(mx_map_open(&m, path, &err), MTPLX_ERR_IO);
    assert_null(mx_file_read(path, 10, NULL, &err));
    assert_non_null(strstr(err.message, "not a regular file"));
    unlink(path);
    free(path);
}

static void paths(void **state)
{
    (void)state;
    const char *cases[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"}, {"/", "b", "/b"}};
    for (size_t i = 0; i < 4; i++) {
        char *p = mx_path_join(cases[i][0], cases[i][1]);
        assert_string_equal(p, cases[i][2]);
        free(p);
    }
    char *dir = mx_exe_dir();
    assert_non_null(dir);
    assert_true(mx_dir_exists(dir));
    free(dir);
}

/* ---- UTF-8 -------------------------------------------------------------------------------- */

static void utf8_round_trips_every_code_point(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp <= 0x10ffff; cp++) {
        if (cp >= 0xd800 && cp < 0xe000)
            continue;
        char s[4];
        uint32_t back = ~cp;
        int n = mx_utf8_encode(cp, s);
        if (mx_utf8_decode(s, (size_t)n, &back) != n || back != cp)
            fail_msg("U+%04X does not round-trip", cp);
        for (int k = 0; k < n; k++)
            if (mx_utf8_decode(s, (size_t)k, &back) != -1)
                fail_msg("U+%04X: %d bytes are not seen as incomplete", cp, k);
    }
}

static void utf8_refuses_malformed(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "\x80",         "\xbf",         "\xc0\x80",         "\xc1\xbf",         "\xe0\x9f\xbf",
        "\xed\xa0\x80", "\xed\xbf\xbf", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80",
        "\xff",         "\xc3(",        "\xe2\x82(",        "\xf0\x9f\x98(",    "\xe0\x80",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint32_t cp;
        assert_int_equal(mx_utf8_decode(bad[i], strlen(bad[i]), &cp), 0);
        assert_false(mx_utf8_valid(bad[i], strlen(bad[i])));
    }
    char s[4];
    assert_int_equal(mx_utf8_encode(0xd800, s), 3);
    assert_memory_equal(s, "\xef\xbf\xbd", 3);
    assert_int_equal(mx_utf8_encode(0x110000, s), 3);
    assert_true(mx_utf8_valid("", 0));
    assert_true(mx_utf8_valid("plain ascii \xe2\x82\xac and more of it", 30));
    assert_false(mx_utf8_valid("plain ascii, then\xe2\x82", 19));
    assert_int_equal(mx_utf8_count("a\xe2\x82\xac\xf0\x9f\x98\x80", 8), 3);
}

static void utf8_complete_prefix(void **state)
{
    (void)state;
    assert_int_equal(mx_utf8_complete_prefix("", 0), 0);
    assert_int_equal(mx_utf8_complete_prefix("ab", 2), 2);
    assert_int_equal(mx_utf8_complete_prefix("a\xe2\x82\xac", 4), 4);
    assert_int_equal(mx_utf8_complete_prefix("a\xe2\x82", 3), 1);
    assert_int_equal(mx_utf8_complete_prefix("a\xe2", 2), 1);
    assert_int_equal(mx_utf8_complete_prefix("\xf0\x9f\x98", 3), 0);
    assert_int_equal(mx_utf8_complete_prefix("a\xff", 2), 2);            /* invalid, not waiting */
    assert_int_equal(mx_utf8_complete_prefix("\xe0\x80", 2), 2);         /* overlong */
    assert_int_equal(mx_utf8_complete_prefix("\x80\x80\x80\x80", 4), 4); /* no lead byte */
    assert_int_equal(mx_utf8_complete_prefix("\xc3\xa4\xc3", 3), 2);
}

/* ---- Numbers ------------------------------------------------------------------------------ */

static void philox_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } kat[] = {
        /* Random123 kat_vectors, philox4x32 with 10 rounds */
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < 3; i++) {
        uint32_t out[4];
        mx_philox4x32(kat[i].counter, kat[i].key, out);
        assert_memory_equal(out, kat[i].out, sizeof out);
    }
}

static void uniform_is_uniform_and_keyed(void **state)
{
    (void)state;
    enum {
        N = 100000,
        BINS = 20,
    };
    int bins[BINS] = {0};
    double sum = 0;
    for (uint64_t i = 0; i < N; i++) {
        double u = mx_rng_uniform(42, i, MX_RNG_TARGET);
        assert_true(u >= 0.0 && u < 1.0);
        sum += u;
        bins[(int)(u * BINS)]++;
    }
    assert_true(sum / N > 0.495 && sum / N < 0.505);
    for (int b = 0; b < BINS; b++) /* 5 sigma around 5000 */
        assert_in_range(bins[b], 4650, 5350);
    double u = mx_rng_uniform(1, 2, MX_RNG_DRAFT);
    assert_true(u == mx_rng_uniform(1, 2, MX_RNG_DRAFT));
    assert_true(u != mx_rng_uniform(1, 2, MX_RNG_ACCEPT));
    assert_true(u != mx_rng_uniform(1, 3, MX_RNG_DRAFT));
    assert_true(u != mx_rng_uniform(2, 2, MX_RNG_DRAFT));
    assert_true(u != mx_rng_uniform(1, 2 + (1ull << 32), MX_RNG_DRAFT));
    assert_true(u != mx_rng_uniform(1 + (1ull << 32), 2, MX_RNG_DRAFT));
}

/* The counter layout is a promise: seed 0, position 0 and purpose 0 is the first known answer. */
static void uniform_uses_the_documented_layout(void **state)
{
    (void)state;
    double u = mx_rng_uniform(0, 0, (enum mx_rng_purpose)0);
    uint64_t bits = (uint64_t)0xe169c58du << 32 | 0x6627e8d5u;
    assert_true(u == (double)(bits >> 11) / 9007199254740992.0);
}

static void half_conversions(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = mx_f16_to_f32((uint16_t)h), b = mx_bf16_to_f32((uint16_t)h);
        if (f == f && mx_f32_to_f16(f) != h)
            fail_msg("f16 %04x does not round-trip", h);
        if (b == b && mx_f32_to_bf16(b) != h)
            fail_msg("bf16 %04x does not round-trip", h);
    }
    assert_int_equal(mx_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(mx_f32_to_f16(0x1p-25f), 0);        /* tie to even */
    assert_int_equal(mx_f32_to_f16(0x1.8p-24f), 2);      /* tie to even */
    assert_int_equal(mx_f32_to_bf16(0x1.01p0f), 0x3f80); /* tie to even */
    assert_int_equal(mx_f32_to_bf16(0x1.03p0f), 0x3f82);
}

static void clock_moves_forward(void **state)
{
    (void)state;
    uint64_t a = mx_now_ns();
    usleep(2000);
    uint64_t b = mx_now_ns();
    assert_true(b - a >= 2000000 && b - a < 60000000000u);
    assert_true(mx_peak_rss() > 100000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_formats_and_prefixes),
        cmocka_unit_test(error_is_one_line_of_utf8),
        cmocka_unit_test(status_names),
        cmocka_unit_test(arena_is_zeroed_and_aligned),
        cmocka_unit_test(arena_respects_limit),
        cmocka_unit_test(strbuf_grows_and_bounds),
        cmocka_unit_test(file_round_trip),
        cmocka_unit_test(file_keeps_mode_of_replaced_file),
        cmocka_unit_test(file_empty_and_missing),
        cmocka_unit_test(file_fifo_does_not_block),
        cmocka_unit_test(paths),
        cmocka_unit_test(utf8_round_trips_every_code_point),
        cmocka_unit_test(utf8_refuses_malformed),
        cmocka_unit_test(utf8_complete_prefix),
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(uniform_is_uniform_and_keyed),
        cmocka_unit_test(uniform_uses_the_documented_layout),
        cmocka_unit_test(half_conversions),
        cmocka_unit_test(clock_moves_forward),
    };
    return cmocka_run_group_tests_name("base", tests, make_tmp, drop_tmp);
}
