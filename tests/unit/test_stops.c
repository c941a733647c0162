/* Stop strings against a plain search of the whole text, over every way to cut it. */
#include "serve/stops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void collect(void *arg, const char *text, size_t n)
{
    mx_strbuf_append(arg, text, n);
}

/* The oracle: at the first byte that completes one, the longest. *cut: visible length. */
static int oracle(const char *text, const char *const *stops, int n, size_t *cut)
{
    size_t len = strlen(text);
    for (size_t end = 1; end <= len; end++) {
        int best = -1;
        for (int k = 0; k < n; k++) {
            size_t s = strlen(stops[k]);
            if (s > 0 && s <= end && memcmp(text + end - s, stops[k], s) == 0 &&
                (best < 0 || s > strlen(stops[best])))
                best = k;
        }
        if (best >= 0) {
            *cut = end - strlen(stops[best]);
            return best;
        }
    }
    *cut = len;
    return -1;
}

/* Bit i of `cuts`: a piece ends behind byte i. */
static void check_cut(const char *text, const char *const *stops, int n, unsigned cuts)
{
    struct mx_stop_set set;
    struct mx_stop_match m;
    struct mx_strbuf out;
    size_t len = strlen(text), from = 0, cut;
    int want = oracle(text, stops, n, &cut);
    assert_true(mx_stop_set_init(&set, stops, n));
    mx_stop_match_init(&m, &set);
    mx_strbuf_init(&out, 0);
    for (size_t i = 0; i < len; i++) {
        if (i + 1 < len && !(cuts >> i & 1))
            continue;
        assert_true(mx_stop_push(&m, text + from, i + 1 - from, false, collect, &out));
        from = i + 1;
        assert_true(out.len <= cut); /* never shows a byte of what may become a match */
    }
    mx_stop_release(&m, collect, &out);
    assert_int_equal(m.found, want);
    assert_int_equal(out.len, cut);
    assert_memory_equal(out.data ? out.data : "", text, cut);
    mx_strbuf_free(&out);
    mx_stop_match_free(&m);
    mx_stop_set_free(&set);
}

static void check(const char *text, const char *const *stops, int n)
{
    size_t len = strlen(text);
    for (unsigned cuts = 0; cuts < 1u << (len - 1); cuts++)
        check_cut(text, stops, n, cuts);
}

static void test_all_splits(void **state)
{
    (void)state;
    check("one two END x", (const char *[]){"END"}, 1);
    check("aabaabaaab", (const char *[]){"aabaaab", "baab"}, 2);
    check("xabcd", (const char *[]){"ab", "xabc"}, 2);
    check("xyabz", (const char *[]){"yab", "ab"}, 2);
    check("no stop here", (const char *[]){"herer", "", "stops"}, 3);
    check("abababac", (const char *[]){"ababac"}, 1);
    check("a\xc3\xa9\xe2\x82\xac\xe2\x82\xacz", (const char *[]){"\xe2\x82\xacz"}, 1);
    check("tail EN", (const char *[]){"END"}, 1);
}

/* All texts of 9 letters over {a, b} that a number spells, against sets of short stops. */
static void test_small_alphabet(void **state)
{
    static const char *const sets[][3] = {
        {"aa", "bab", "abba"}, {"bbb", "ab", "aab"}, {"ababb", "babab", "aaaa"}};
    (void)state;
    for (unsigned w = 0; w < 512; w += 3) {
        char text[10] = {0};
        for (int i = 0; i < 9; i++)
            text[i] = (char)('a' + (w >> i & 1));
        for (size_t s = 0; s < 3; s++) {
            check_cut(text, sets[s], 3, 0);
            check_cut(text, sets[s], 3, ~0u);
            check_cut(text, sets[s], 3, w * 37u);
        }
    }
}

static void test_include_and_after(void **state)
{
    struct mx_stop_set set;
    struct mx_stop_match m;
    struct mx_strbuf out;
    (void)state;
    assert_true(mx_stop_set_init(&set, (const char *[]){"<end>"}, 1));
    mx_stop_match_init(&m, &set);
    mx_strbuf_init(&out, 0);
    assert_true(mx_stop_push(&m, "a<e", 3, true, collect, &out));
    assert_int_equal(out.len, 1);
    assert_true(mx_stop_push(&m, "nd>bcd", 6, true, collect, &out));
    assert_true(mx_stop_push(&m, "more", 4, true, collect, &out));
    mx_stop_release(&m, collect, &out);
    assert_int_equal(out.len, 6);
    assert_memory_equal(out.data, "a<end>", 6);
    assert_int_equal(m.found, 0);
    mx_strbuf_free(&out);
    mx_stop_match_free(&m);
    mx_stop_set_free(&set);
}

/* A release in the middle: what was held is text, and no match goes across. */
static void test_release(void **state)
{
    struct mx_stop_set set;
    struct mx_stop_match m;
    struct mx_strbuf out;
    (void)state;
    assert_true(mx_stop_set_init(&set, (const char *[]){"END"}, 1));
    mx_stop_match_init(&m, &set);
    mx_strbuf_init(&out, 0);
    assert_true(mx_stop_push(&m, "xEN", 3, false, collect, &out));
    mx_stop_release(&m, collect, &out);
    assert_true(mx_stop_push(&m, "D", 1, false, collect, &out));
    assert_int_equal(m.found, -1);
    assert_int_equal(out.len, 4);
    mx_strbuf_free(&out);
    mx_stop_match_free(&m);
    mx_stop_set_free(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_splits),
        cmocka_unit_test(test_small_alphabet),
        cmocka_unit_test(test_include_and_after),
        cmocka_unit_test(test_release),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
