/* Tokenizer: golden ids, pipeline semantics, hostile files, streaming.
 *
 * Small tokenizers are written inline. Expected ids of the pipeline cases follow the reference
 * tokenizer (Hugging Face tokenizers). */
#include "base/clock.h"
#include "base/file.h"
#include "base/utf8.h"
#include "text/tok_regex.h"
#include "text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

static char *source_path(const char *name)
{
    const char *src = getenv("MTPLX_SRC");
    return mx_path_join(src && *src ? src : ".", name);
}

static struct mx_tokenizer *nano(void)
{
    mtplx_error err = {0};
    char *dir = source_path("models/nano");
    struct mx_tokenizer *t = mx_tokenizer_open(dir, &err);
    if (!t)
        fail_msg("%s", err.message);
    free(dir);
    return t;
}

static json_t *golden(const char *name)
{
    json_error_t e;
    char *path = source_path(name);
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &e);
    if (!root)
        fail_msg("%s: %s", path, e.text);
    free(path);
    return root;
}

static struct mx_ids encode(const struct mx_tokenizer *t, const char *s, size_t n, bool plain)
{
    struct mx_ids ids = {0};
    mtplx_error err = {0};
    if (mx_tokenizer_encode(t, s, n, plain, &ids, &err))
        fail_msg("%s", err.message);
    return ids;
}

static void assert_ids(const struct mx_ids *ids, const json_t *want, const char *text)
{
    bool same = ids->n == json_array_size(want);
    for (size_t i = 0; same && i < ids->n; i++)
        same = ids->v[i] == json_integer_value(json_array_get(want, i));
    if (!same)
        fail_msg("wrong ids for \"%s\"", text);
}

static void assert_decodes(const struct mx_tokenizer *t, const struct mx_ids *ids, bool skip,
                           const json_t *want)
{
    struct mx_strbuf out;
    mx_strbuf_init(&out, 0);
    assert_int_equal(mx_tokenizer_decode(t, ids->v, ids->n, skip, &out, NULL), MTPLX_OK);
    assert_int_equal(out.len, json_string_length(want));
    if (out.len)
        assert_memory_equal(out.data, json_string_value(want), out.len);
    mx_strbuf_free(&out);
}

/* ---- Golden cases ---- */

static void golden_cases(void **state)
{
    (void)state;
    struct mx_tokenizer *t = nano();
    json_t *root = golden("tests/golden/tokenizer/cases.json"), *c;
    json_t *cases = json_object_get(root, "cases");
    assert_int_equal(mx_tokenizer_size(t), json_integer_value(json_object_get(root, "vocab_size")));
    assert_int_equal(json_array_size(cases), 60);
    size_t i;
    json_array_foreach(cases, i, c)
    {
        const json_t *text = json_object_get(c, "text");
        struct mx_ids ids = encode(t, json_string_value(text), json_string_length(text), false);
        assert_ids(&ids, json_object_get(c, "ids"), json_string_value(text));
        assert_ids(&ids, json_object_get(c, "ids_default"), json_string_value(text));
        assert_decodes(t, &ids, false, json_object_get(c, "decoded"));
        assert_decodes(t, &ids, true, json_object_get(c, "decoded_skip_special"));
        mx_ids_free(&ids);
    }
    json_decref(root);
    mx_tokenizer_free(t);
}

static void golden_chats(void **state)
{
    (void)state;
    struct mx_tokenizer *t = nano();
    json_t *root = golden("tests/golden/tokenizer/chat_cases.json"), *c;
    assert_int_equal(json_array_size(root), 8);
    size_t i;
    json_array_foreach(root, i, c)
    {
        const json_t *text = json_object_get(c, "text");
        struct mx_ids ids = encode(t, json_string_value(text), json_string_length(text), false);
        assert_ids(&ids, json_object_get(c, "ids"), json_string_value(text));
        mx_ids_free(&ids);
    }
    json_decref(root);
    mx_tokenizer_free(t);
}

static void token_queries(void **state)
{
    (void)state;
    struct mx_tokenizer *t = nano();
    size_t len;
    int32_t end = mx_tokenizer_find(t, "<|im_end|>"), think = mx_tokenizer_find(t, "<think>");
    assert_int_equal(end, 8182);
    assert_true(mx_tokenizer_is_special(t, end) && mx_tokenizer_is_added(t, end));
    assert_true(!mx_tokenizer_is_special(t, think) && mx_tokenizer_is_added(t, think));
    assert_memory_equal(mx_tokenizer_bytes(t, end, &len), "<|im_end|>", 10);
    assert_int_equal(len, 10);
    int32_t space = mx_tokenizer_find(t, "\xc4\xa0"); /* the byte-level space */
    assert_false(mx_tokenizer_is_added(t, space));
    assert_string_equal(mx_tokenizer_bytes(t, space, &len)[0] == ' ' && len == 1 ? "ok" : "", "ok");
    assert_int_equal(mx_tokenizer_find(t, "no such token"), -1);
    assert_int_equal(mx_tokenizer_find(t, ""), -1);
    const int32_t bad[] = {-1, INT32_MIN, INT32_MAX, mx_tokenizer_size(t)};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mx_tokenizer_bytes(t, bad[i], &len);
        assert_int_equal(len, 0);
        assert_false(mx_tokenizer_is_special(t, bad[i]));
    }
    mx_tokenizer_free(t);
}

static void plain_text_has_no_added_tokens(void **state)
{
    (void)state;
    struct mx_tokenizer *t = nano();
    const char *text = "a<|im_end|>b<think>";
    struct mx_ids ids = encode(t, text, strlen(text), true);
    for (size_t i = 0; i < ids.n; i++)
        assert_false(mx_tokenizer_is_added(t, ids.v[i]));
    json_t *want = json_string(text);
    assert_decodes(t, &ids, true, want);
    json_decref(want);
    mx_ids_free(&ids);
    mx_tokenizer_free(t);
}

/* ---- Inline tokenizers ---- */

static struct mx_tokenizer *parse(const char *json)
{
    mtplx_error err = {0};
    struct mx_tokenizer *t = mx_tokenizer_parse(json, strlen(json), "t.json", &err);
    if (!t)
        fail_msg("%s", err.message);
    return t;
}

/* Compares the ids of `text` with the `n` that follow, and checks nothing else. */
static void check(const struct mx_tokenizer *t, const char *text, size_t n, ...)
{
    struct mx_ids ids = encode(t, text, strlen(text), false);
    va_list ap;
    va_start(ap, n);
    bool same = ids.n == n;
    for (size_t i = 0; i < n; i++)
        same = va_arg(ap, int) == (same ? ids.v[i] : -1) && same;
    va_end(ap);
    if (!same) {
        for (size_t i = 0; i < ids.n; i++)
            print_message("%d ", ids.v[i]);
        fail_msg("wrong ids for \"%s\"", text);
    }
    mx_ids_free(&ids);
}

/* Letters a..e and some merges; "pre" and "added" are spliced in. */
static struct mx_tokenizer *letters(const char *normalizer, const char *pre, const char *added)
{
    char json[4096];
    snprintf(json, sizeof json,
             "{\"added_tokens\":[%s],\"normalizer\":%s,\"pre_tokenizer\":%s,"
             "\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,"
             "\"b\":1,\"c\":2,\"d\":3,\"ab\":4,\"cd\":5,\"abcd\":6,\" \":7,\"bc\":8,\"1\":9,"
             "\"\xc3\xa9\":10,\"e\":11,\".\":12,\"aa\":13,\"aaaa\":14},\"merges\":[\"a b\","
             "[\"c\",\"d\"],\"b c\",[\"ab\",\"cd\"],\"a a\",\"aa aa\"]}}",
             added, normalizer, pre);
    return parse(json);
}

static void merges_by_rank(void **state)
{
    (void)state;
    struct mx_tokenizer *t = letters("null", "null", "");
    check(t, "abcd", 1, 6);
    check(t, "bcd", 2, 1, 5); /* c d has the lower rank */
    check(t, "abc", 2, 4, 2);
    check(t, "bca", 2, 8, 0);
    check(t, "aaaaaa", 2, 14, 13);
    check(t, "aaa", 2, 13, 0); /* leftmost first */
    check(t, "axb", 1, 4);     /* no symbol and no unk_token: x is dropped before merging */
    check(t, "", 0);
    mx_tokenizer_free(t);
}

/* The two merging algorithms agree: the long one is reached by repeating a word without a break. */
static void short_and_long_words_agree(void **state)
{
    (void)state;
    struct mx_tokenizer *t = letters("null", "null", "");
    char text[400];
    uint32_t x = 12345;
    for (int round = 0; round < 200; round++) {
        size_t n = 49 + (size_t)round;
        for (size_t i = 0; i < n; i++) {
            x = x * 1664525u + 1013904223u;
            text[i] = "abcd"[x >> 30];
        }
        struct mx_ids whole = encode(t, text, n, false);
        struct mx_ids parts = {
            0}; /* no rule has a d on its left, so a cut after it changes nothing */
        size_t start = 0;
        for (size_t i = 1; i <= n; i++) {
            if (i < n && text[i - 1] != 'd')
                continue;
            assert_int_equal(mx_tokenizer_encode(t, text + start, i - start, false, &parts, NULL),
                             MTPLX_OK);
            start = i;
        }
        assert_int_equal(whole.n, parts.n);
        assert_memory_equal(whole.v, parts.v, whole.n * sizeof *whole.v);
        mx_ids_free(&whole);
        mx_ids_free(&parts);
    }
    mx_tokenizer_free(t);
}

static void byte_fallback_and_unk(void **state)
{
    (void)state;
    const char *head = "{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\","
                       "\"pattern\":{\"String\":\"\xe2\x96\x81\"},\"content\":\" \"},"
                       "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]},"
                       "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"
                       "\"content\":\"\xe2\x96\x81\"},\"model\":{\"type\":\"BPE\",\"vocab\":{"
                       "\"\xe2\x96\x81\":0,\"a\":1,\"<0xC3>\":2,\"<0xA9>\":3,\"?\":4,"
                       "\"\xe2\x96\x81\x61\":5},\"merges\":[\"\xe2\x96\x81 a\"],"
                       "\"unk_token\":\"?\",";
    char json[2048];
    snprintf(json, sizeof json, "%s\"byte_fallback\":true,\"fuse_unk\":true}}", head);
    struct mx_tokenizer *t = parse(json);
    check(t, " a\xc3\xa9", 3, 5, 2, 3);
    check(t,
          "a\xc3\xa8\xc3\xa8"
          "a",
          3, 1, 4, 1); /* no token for byte A8: one fused unknown */
    const int32_t ids[] = {5, 2, 3, 2, 1};
    struct mx_strbuf out;
    mx_strbuf_init(&out, 0);
    assert_int_equal(mx_tokenizer_decode(t, ids, 5, false, &out, NULL), MTPLX_OK);
    assert_string_equal(out.data, " a\xc3\xa9\xef\xbf\xbd"
                                  "a");
    mx_strbuf_free(&out);
    mx_tokenizer_free(t);
    snprintf(json, sizeof json, "%s\"fuse_unk\":false}}", head);
    t = parse(json);
    check(t, "a\xc3\xa8\xc3\xa8", 3, 1, 4, 4);
    mx_tokenizer_free(t);
}

static void ignore_merges_takes_whole_words(void **state)
{
    (void)state;
    struct mx_tokenizer *t =
        parse("{\"decoder\":{\"type\":\"ByteLevel\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\","
              "\"add_prefix_space\":false},\"model\":{\"type\":\"BPE\",\"ignore_merges\":true,"
              "\"vocab\":{\"a\":0,\"b\":1,\"\xc4\xa0\":2,\"\xc4\xa0\x61\x62\":3,\"x\":4},"
              "\"merges\":[]}}");
    check(t, "ab ab", 3, 0, 1, 3);
    mx_tokenizer_free(t);
}

/* ---- Added tokens ---- */

#define ADDED(id, text, flags) "{\"id\":" #id ",\"content\":\"" text "\"" flags "}"
#define RAW ",\"normalized\":false"

static void added_longest_match(void **state)
{
    (void)state;
    struct mx_tokenizer *t = letters("null", "null",
                                     ADDED(20, "<x", RAW) "," ADDED(21, "<x>", RAW) "," ADDED(
                                         22, "<x>y>", RAW) "," ADDED(23, "x>y", RAW));
    check(t, "a<x>b", 3, 0, 21, 1);
    check(t, "<x>y>", 1, 22);
    check(t, "<x>y", 1, 21); /* y itself has no symbol */
    check(t, "<x<x>", 2, 20, 21);
    check(t, "ax>yb", 3, 0, 23, 1);
    check(t, "<x>y><", 1, 22);
    mx_tokenizer_free(t);
}

static void added_flags(void **state)
{
    (void)state;
    struct mx_tokenizer *t = letters(
        "null", "null",
        ADDED(20, "L", RAW ",\"lstrip\":true") "," ADDED(21, "R", RAW ",\"rstrip\":true") "," ADDED(
            22, "wd", RAW ",\"single_word\":true") "," ADDED(23, "  ", RAW));
    check(t, "a \t L b", 4, 0, 20, 7, 1);
    check(t, "a R \n b", 4, 0, 7, 21, 1);
    check(t, "a wd.", 4, 0, 7, 22, 12);
    check(t, "awd", 2, 0, 3); /* touches a letter */
    check(t, "wd\xc3\xa9", 2, 3, 10);
    check(t, "R   L", 3, 21, 23, 20); /* a token inside stripped space is still found */
    mx_tokenizer_free(t);
}

static void added_normalized(void **state)
{
    (void)state;
    struct mx_tokenizer *t =
        letters("{\"type\":\"NFC\"}", "null",
                ADDED(20, "e\\u0301a", ",\"normalized\":true") "," ADDED(21, "e\\u0301b", RAW));
    check(t,
          "\xc3\xa9"
          "a",
          1, 20);
    check(t,
          "e\xcc\x81"
          "a",
          1, 20);
    check(t,
          "e\xcc\x81"
          "b",
          1, 21); /* raw text matches before normalising */
    check(t,
          "\xc3\xa9"
          "b",
          2, 10, 1); /* composed: not the raw pattern */
    check(t, "e\xcc\x81", 1, 10);
    mx_tokenizer_free(t);
}

/* ---- Pre-tokenizers ---- */

/* With ignore_merges each word is one id when the vocabulary has it; here words are shown by the
 * merges they prevent: "ab" is 4 inside a word and 0, 1 across a cut. */
static struct mx_tokenizer *split(const char *pattern, const char *behavior, bool invert)
{
    char pre[512];
    snprintf(pre, sizeof pre,
             "{\"type\":\"Split\",\"pattern\":%s,\"behavior\":\"%s\",\"invert\":%s}", pattern,
             behavior, invert ? "true" : "false");
    return letters("null", pre, "");
}

static void split_behaviors(void **state)
{
    (void)state;
    const char *a = "{\"String\":\"a\"}";
    struct mx_tokenizer *t = split(a, "Isolated", false);
    check(t, "aabcd", 4, 0, 0, 1, 5);
    mx_tokenizer_free(t);
    t = split(a, "Removed", false);
    check(t, "aabcd", 2, 1, 5);
    mx_tokenizer_free(t);
    t = split(a, "Removed", true);
    check(t, "aabcda", 3, 0, 0, 0);
    mx_tokenizer_free(t);
    t = split(a, "MergedWithPrevious", false);
    check(t, "abcda", 4, 0, 1, 5, 0); /* a | bcda */
    mx_tokenizer_free(t);
    t = split(a, "MergedWithNext", false);
    check(t, "aabcd", 2, 0, 6); /* a | abcd */
    mx_tokenizer_free(t);
    t = split(a, "Contiguous", false);
    check(t, "aab", 2, 13, 1); /* aa | b */
    mx_tokenizer_free(t);
    t = split("{\"Regex\":\"a?\"}", "Isolated", false); /* empty matches cut too */
    check(t, "cd", 2, 2, 3);
    mx_tokenizer_free(t);
}

static void byte_level_prefix_space(void **state)
{
    (void)state;
    struct mx_tokenizer *t =
        parse("{\"decoder\":{\"type\":\"ByteLevel\"},\"pre_tokenizer\":{\"type\":\"Sequence\","
              "\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true},"
              "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}]},\"model\":{\"type\":\"BPE\","
              "\"vocab\":{\"a\":0,\"1\":1,\"\xc4\xa0\":2},\"merges\":[]}}");
    check(t, "a11 a", 8, 2, 0, 2, 1, 2, 1, 2, 0);
    mx_tokenizer_free(t);
}

/* Words of a pattern, as the lengths of the pieces it cuts a text into. */
static void assert_pieces(const char *pattern, const char *text, size_t n, ...)
{
    struct mx_regex re;
    mtplx_error err = {0};
    if (mx_regex_compile(&re, pattern, strlen(pattern), false, &err))
        fail_msg("%s: %s", pattern, err.message);
    struct mx_regex_work *w = mx_regex_work_new(strlen(text));
    struct mx_regex_iter it;
    mx_regex_iter_init(&it, &re, text, strlen(text));
    va_list ap;
    va_start(ap, n);
    for (size_t i = 0; i < n; i++) {
        bool found;
        assert_int_equal(mx_regex_next(w, &it, &found, &err), MTPLX_OK);
        assert_true(found);
        assert_int_equal(it.end - it.start, va_arg(ap, int));
    }
    va_end(ap);
    bool found;
    assert_int_equal(mx_regex_next(w, &it, &found, &err), MTPLX_OK);
    assert_false(found);
    mx_regex_work_free(w);
    mx_regex_free(&re);
}

#define QWEN                                                                                       \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "                          \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"                                                                \
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static void patterns_mean_what_oniguruma_means(void **state)
{
    (void)state;
    assert_pieces(QWEN, "I'Ll it's  x12\n\n", 9, 1, 3, 3, 2, 1, 2, 1, 1, 2);
    assert_pieces(QWEN, "'\xc5\xbf", 1, 3);              /* long s folds to s */
    assert_pieces("\\s", "a\xe1\xa0\x8e\xc2\x85", 1, 2); /* U+0085 is space, U+180E is not */
    assert_pieces("\\w+", "a\xcc\x81_", 1, 4);           /* marks are word characters */
    assert_pieces("\\p{N}{1,3}+", "1234567", 1, 7);      /* a repeated group, not possessive */
    assert_pieces("^a|b$", "a\na\nb\n", 3, 1, 1, 1);     /* lines */
    assert_pieces("\\h+", "xAf9g", 1, 3);                /* hex digits */
    assert_pieces("(?m:a.b)", "a\nb", 1, 3);             /* Ruby's dot-all */
    assert_pieces("\\p{Han}+", "\xe4\xb8\x80\xe3\x80\x81", 1, 3); /* Script, not extensions */
    assert_pieces("[\\u4e00-\\u9fa5]+",
                  "\xe4\xb8\x80"
                  "a",
                  1, 3);
    assert_pieces("[[:punct:]]+", "$+a", 1, 2);
    assert_pieces("\\x{61}+", "aab", 1, 2);
    assert_pieces("(?=b)", "abab", 2, 0, 0);
}

static void unsupported_patterns_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "[a-z&&[^b]]",   "[a[bc]]", "(*SKIP)a", "(?R)",    "(?<n>a)\\g<n>", "a(?i)b",
        "\\Ka",          "\\Qa\\E", "(a",       "[a",      "a\\",           "(?(1)a|b)",
        "\\p{Nonsense}", "[\\W]",   "\\C",      "a{2,2}+", "(?C1)",         "\\u12",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mx_regex re;
        mtplx_error err = {0};
        if (mx_regex_compile(&re, bad[i], strlen(bad[i]), false, &err) != MTPLX_ERR_UNSUPPORTED)
            fail_msg("accepted %s", bad[i]);
        assert_true(err.message[0] != '\0');
    }
}

static void hostile_patterns_end(void **state)
{
    (void)state;
    static const char *const bad[] = {"(a+)+$b", "(?:a|a)*b", "(?:a?){50}a{50}b", "(?:.*.*.*)*x",
                                      "(?:a|aa)+(?=b)"};
    char *text = malloc(100001);
    assert_non_null(text);
    memset(text, 'a', 100000);
    text[100000] = '\0';
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char pattern[64];
        snprintf(pattern, sizeof pattern, "{\"Regex\":\"%s\"}", bad[i]);
        struct mx_tokenizer *t = split(pattern, "Isolated", false);
        struct mx_ids ids = {0};
        mtplx_error err = {0};
        uint64_t start = mx_now_ns();
        mtplx_status status = mx_tokenizer_encode(t, text, 100000, false, &ids, &err);
        assert_true(status == MTPLX_OK || (status == MTPLX_ERR_LIMIT && ids.n == 0));
        assert_true(mx_now_ns() - start < 20000000000u);
        mx_ids_free(&ids);
        mx_tokenizer_free(t);
    }
    free(text);
}

/* ---- Normalisers ---- */

static void normal_forms(void **state)
{
    (void)state;
    struct mx_tokenizer *t = letters("{\"type\":\"NFC\"}", "null", "");
    check(t,
          "abe\xcc\x81"
          "cd",
          3, 4, 10, 5);
    check(t, "\xc3\xa9", 1, 10);
    mx_tokenizer_free(t);
    t = letters("{\"type\":\"NFD\"}", "null", "");
    check(t,
          "\xc3\xa9"
          "a",
          2, 11, 0); /* the mark alone has no symbol */
    mx_tokenizer_free(t);
    t = letters("{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"},{\"type\":\"Prepend\","
                "\"prepend\":\"b\"},{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\\\\s+\"},"
                "\"content\":\"c\"}]}",
                "null", "");
    check(t, "\xef\xbd\x84  \xef\xbd\x81", 4, 1, 3, 2, 0); /* full-width d and a: "bdca" */
    mx_tokenizer_free(t);
}

/* Orders 100,000 marks in a row, which is quadratic when done by exchange. */
static void many_marks_are_fast(void **state)
{
    (void)state;
    struct mx_tokenizer *t = nano();
    size_t n = 200001;
    char *text = malloc(n);
    assert_non_null(text);
    text[0] = 'a';
    for (size_t i = 1; i < n; i += 2)
        memcpy(text + i, i % 4 == 1 ? "\xcc\x81" : "\xcc\xa3", 2); /* classes 230 and 220 */
    uint64_t start = mx_now_ns();
    struct mx_ids ids = encode(t, text, n, false);
    assert_true(mx_now_ns() - start < 5000000000u);
    assert_true(ids.n > 0);
    mx_ids_free(&ids);
    free(text);
    mx_tokenizer_free(t);
}

/* ---- Long, random and invalid text ---- */

static void one_megabyte_word(void **state)
{
    (void)state;
    struct mx_tokenizer *nano_t = nano(), *small = letters("null", "null", "");
    const struct mx_tokenizer *ts[] = {nano_t, small};
    size_t n = 1000000;
    char *text = malloc(n);
    assert_non_null(text);
    for (int round = 0; round < 4; round++) {
        for (size_t i = 0; i < n; i++)
            text[i] = round < 2 ? 'a' : "abcd"[i * 2654435761u >> 13 & 3];
        uint64_t start = mx_now_ns();
        struct mx_ids ids = encode(ts[round & 1], text, n, false);
        assert_true(mx_now_ns() - start < 10000000000u);
        struct mx_strbuf out;
        mx_strbuf_init(&out, 0);
        mx_tokenizer_decode(ts[round & 1], ids.v, ids.n, false, &out, NULL);
        assert_int_equal(out.len, n);
        assert_memory_equal(out.data, text, n);
        mx_strbuf_free(&out);
        mx_ids_free(&ids);
    }
    free(text);
    mx_tokenizer_free(nano_t);
    mx_tokenizer_free(small);
}

/* What encode reads invalid bytes as. */
static void replaced(const char *s, size_t n, struct mx_strbuf *out)
{
    mx_strbuf_clear(out);
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int used = mx_utf8_decode(s + i, n - i, &cp);
        if (used > 0)
            mx_strbuf_append(out, s + i, (size_t)used);
        else
            mx_strbuf_append(out, "\xef\xbf\xbd", 3);
        i += used > 0 ? (size_t)used : 1;
    }
}

static void random_bytes_round_trip(void **state)
{
    (void)state;
    struct mx_tokenizer *t = nano();
    struct mx_strbuf want, got;
    mx_strbuf_init(&want, 0);
    mx_strbuf_init(&got, 0);
    uint32_t x = 1;
    for (int round = 0; round < 3000; round++) {
        char text[64];
        x = x * 1664525u + 1013904223u;
        size_t n = x >> 26;
        for (size_t i = 0; i < n; i++) {
            x = x * 1664525u + 1013904223u;
            /* NFC leaves code points below U+0300 alone: leads up to CB keep the text as it is */
            text[i] = (char)((x >> 24) < 0xcc ? x >> 24 : x >> 25);
        }
        replaced(text, n, &want);
        struct mx_ids ids = encode(t, text, n, round & 1);
        mx_strbuf_clear(&got);
        assert_int_equal(mx_tokenizer_decode(t, ids.v, ids.n, false, &got, NULL), MTPLX_OK);
        assert_int_equal(got.len, want.len);
        if (want.len)
            assert_memory_equal(got.data, want.data, want.len);
        mx_ids_free(&ids);
    }
    mx_strbuf_free(&want);
    mx_strbuf_free(&got);
    mx_tokenizer_free(t);
}

static void encode_appends(void **state)
{
    (void)state;
    struct mx_tokenizer *t = letters("null", "null", "");
    struct mx_ids ids = {0};
    assert_int_equal(mx_tokenizer_encode(t, "ab", 2, false, &ids, NULL), MTPLX_OK);
    assert_int_equal(mx_tokenizer_encode(t, NULL, 0, false, &ids, NULL), MTPLX_OK);
    assert_int_equal(mx_tokenizer_encode(t, "cd", 2, false, &ids, NULL), MTPLX_OK);
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.v[0], 4);
    assert_int_equal(ids.v[1], 5);
    mx_ids_free(&ids);
    mx_tokenizer_free(t);
}

/* ---- Streaming ---- */

/* Pushes ids one by one; every piece must be whole UTF-8 and the sum equal to decode. */
static void check_stream(const struct mx_tokenizer *t, const int32_t *ids, size_t n, bool skip)
{
    struct mx_strbuf want, got;
    struct mx_detok d;
    mx_strbuf_init(&want, 0);
    mx_strbuf_init(&got, 0);
    mx_detok_init(&d, t, skip);
    assert_int_equal(mx_tokenizer_decode(t, ids, n, skip, &want, NULL), MTPLX_OK);
    for (size_t i = 0; i <= n; i++) {
        size_t len;
        const char *s = i < n ? mx_detok_push(&d, ids[i], &len) : mx_detok_flush(&d, &len);
        assert_non_null(s);
        assert_true(mx_utf8_valid(s, len));
        mx_strbuf_append(&got, s, len);
    }
    assert_int_equal(got.len, want.len);
    if (want.len)
        assert_memory_equal(got.data, want.data, want.len);
    mx_detok_free(&d);
    mx_strbuf_free(&want);
    mx_strbuf_free(&got);
}

static void streams_equal_decode(void **state)
{
    (void)state;
    struct mx_tokenizer *t = nano();
    uint32_t x = 7;
    for (int round = 0; round < 2000; round++) {
        int32_t ids[24];
        for (size_t i = 0; i < 24; i++) {
            x = x * 1664525u + 1013904223u;
            /* mostly single bytes, which make broken UTF-8; some outside the vocabulary */
            ids[i] = (int32_t)(x >> 24) + (x & 15 ? 0 : 8000);
        }
        check_stream(t, ids, 24, round & 1);
    }
    json_t *root = golden("tests/golden/tokenizer/cases.json"), *c;
    size_t i;
    json_array_foreach(json_object_get(root, "cases"), i, c)
    {
        const json_t *text = json_object_get(c, "text");
        struct mx_ids ids = encode(t, json_string_value(text), json_string_length(text), false);
        check_stream(t, ids.v, ids.n, false);
        check_stream(t, ids.v, ids.n, true);
        mx_ids_free(&ids);
    }
    json_decref(root);
    mx_tokenizer_free(t);
}

static int32_t byte_id(const struct mx_tokenizer *t, uint8_t byte)
{
    for (int32_t id = 0; id < mx_tokenizer_size(t); id++) {
        size_t len;
        const char *s = mx_tokenizer_bytes(t, id, &len);
        if (len == 1 && (uint8_t)*s == byte)
            return id;
    }
    fail();
    return -1;
}

static void bad_bytes_become_one_mark_each_part(void **state)
{
    (void)state;
    struct mx_tokenizer *t = nano();
    static const struct {
        const char *bytes, *text;
    } cases[] = {
        {"\xe2\x82\x41", "\xef\xbf\xbd"
                         "A"}, /* a truncated sequence is one part */
        {"\xe2\x82", "\xef\xbf\xbd"},
        {"\xc3\xc3\xa9", "\xef\xbf\xbd\xc3\xa9"},
        {"\xff\xfe", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* a surrogate: three parts */
        {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
        {"\xf0\x9f\x98", "\xef\xbf\xbd"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t ids[8];
        size_t n = strlen(cases[i].bytes);
        for (size_t k = 0; k < n; k++)
            ids[k] = byte_id(t, (uint8_t)cases[i].bytes[k]);
        struct mx_strbuf out;
        mx_strbuf_init(&out, 0);
        mx_tokenizer_decode(t, ids, n, false, &out, NULL);
        assert_string_equal(out.data, cases[i].text);
        mx_strbuf_free(&out);
        check_stream(t, ids, n, false);
    }
    mx_tokenizer_free(t);
}

static void decode_respects_a_limit(void **state)
{
    (void)state;
    struct mx_tokenizer *t = letters("null", "null", "");
    const int32_t ids[] = {6, 6, 6};
    struct mx_strbuf out;
    mtplx_error err = {0};
    mx_strbuf_init(&out, 8);
    assert_int_equal(mx_tokenizer_decode(t, ids, 3, false, &out, &err), MTPLX_ERR_LIMIT);
    mx_strbuf_free(&out);
    mx_tokenizer_free(t);
}

/* ---- Hostile files ---- */

static void assert_refused(const char *json, mtplx_status status, const char *word)
{
    mtplx_error err = {0};
    struct mx_tokenizer *t = mx_tokenizer_parse(json, strlen(json), "t.json", &err);
    if (t)
        fail_msg("accepted %s", json);
    if (err.status != status || !strstr(err.message, "t.json") || !strstr(err.message, word))
        fail_msg("%s\n gave status %d: %s", json, (int)err.status, err.message);
}

#define MODEL(vocab, merges)                                                                       \
    "\"model\":{\"type\":\"BPE\",\"vocab\":" vocab ",\"merges\":" merges "}"
#define DECODER ",\"decoder\":{\"type\":\"ByteLevel\"}"
#define FILE_OF(vocab, merges) "{" MODEL(vocab, merges) DECODER "}"
#define WITH(field) "{" field "," MODEL("{\"a\":0}", "[]") DECODER "}"

static void malformed_files_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        mtplx_status status;
        const char *word;
    } cases[] = {
        {"", MTPLX_ERR_FORMAT, "JSON"},
        {"[]", MTPLX_ERR_FORMAT, "object"},
        {"{\"model\":", MTPLX_ERR_FORMAT, "JSON"},
        {"{}", MTPLX_ERR_FORMAT, "model"},
        {"{\"model\":{\"type\":\"WordPiece\"}}", MTPLX_ERR_UNSUPPORTED, "WordPiece"},
        {"{\"model\":{\"type\":\"Unigram\"}}", MTPLX_ERR_UNSUPPORTED, "Unigram"},
        {"{\"model\":{\"type\":7}}", MTPLX_ERR_FORMAT, "model.type"},
        {FILE_OF("[]", "[]"), MTPLX_ERR_FORMAT, "model.vocab"},
        {FILE_OF("{\"a\":-1}", "[]"), MTPLX_ERR_FORMAT, "-1"},
        {FILE_OF("{\"a\":99999999999}", "[]"), MTPLX_ERR_FORMAT, "99999999999"},
        {FILE_OF("{\"a\":\"0\"}", "[]"), MTPLX_ERR_FORMAT, "integer"},
        {FILE_OF("{\"a\":0,\"b\":0}", "[]"), MTPLX_ERR_FORMAT, "another token"},
        {FILE_OF("{\"a\":0}", "{}"), MTPLX_ERR_FORMAT, "merges"},
        {FILE_OF("{\"a\":0}", "[\"a\"]"), MTPLX_ERR_FORMAT, "merges[0]"},
        {FILE_OF("{\"a\":0}", "[\"a b\"]"), MTPLX_ERR_FORMAT, "\"b\""},
        {FILE_OF("{\"a\":0,\"b\":1}", "[\"a b\"]"), MTPLX_ERR_FORMAT, "joins"},
        {FILE_OF("{\"a\":0}", "[[\"a\"]]"), MTPLX_ERR_FORMAT, "merges[0]"},
        {FILE_OF("{\"a\":0}", "[[\"a\",1]]"), MTPLX_ERR_FORMAT, "merges[0]"},
        {FILE_OF("{\"a\":0}", "[\"a a a\"]"), MTPLX_ERR_FORMAT, "merges[0]"},
        {"{" MODEL("{\"a\":0}", "[]") "}", MTPLX_ERR_UNSUPPORTED, "decoder"},
        {"{" MODEL("{\"a\":0}", "[]") ",\"decoder\":{\"type\":\"WordPiece\"}}",
         MTPLX_ERR_UNSUPPORTED, "WordPiece"},
        {WITH("\"added_tokens\":{}"), MTPLX_ERR_FORMAT, "added_tokens"},
        {WITH("\"added_tokens\":[1]"), MTPLX_ERR_FORMAT, "added_tokens[0]"},
        {WITH("\"added_tokens\":[{\"id\":1}]"), MTPLX_ERR_FORMAT, "content"},
        {WITH("\"added_tokens\":[{\"id\":0,\"content\":\"b\"}]"), MTPLX_ERR_FORMAT,
         "added_tokens[0]"},
        {WITH("\"added_tokens\":[{\"id\":5,\"content\":\"a\"}]"), MTPLX_ERR_FORMAT, "another id"},
        {WITH("\"added_tokens\":[{\"id\":5,\"content\":\"b\",\"special\":1}]"), MTPLX_ERR_FORMAT,
         "special"},
        {WITH("\"normalizer\":{\"type\":\"Lowercase\"}"), MTPLX_ERR_UNSUPPORTED, "Lowercase"},
        {WITH("\"normalizer\":[]"), MTPLX_ERR_FORMAT, "normalizer"},
        {WITH("\"pre_tokenizer\":{\"type\":\"Metaspace\"}"), MTPLX_ERR_UNSUPPORTED, "Metaspace"},
        {WITH(
             "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},"
             "{\"type\":\"Digits\"}]}"),
         MTPLX_ERR_UNSUPPORTED, "pretokenizers[1]"},
        {WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"}}"),
         MTPLX_ERR_UNSUPPORTED, "pre_tokenizer"},
        {WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":\"x\"}"), MTPLX_ERR_FORMAT,
         "pattern"},
        {WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"x\"},"
              "\"behavior\":\"Odd\"}"),
         MTPLX_ERR_UNSUPPORTED, "Odd"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(cases[i].json, cases[i].status, cases[i].word);
}

static void unusual_files_are_accepted(void **state)
{
    (void)state;
    struct mx_tokenizer *t = parse(FILE_OF("{\"a\":3000,\"\":1}", "[\"#version: 0.2\",\"a \"]"));
    assert_int_equal(mx_tokenizer_size(t), 3001); /* holes */
    size_t len;
    mx_tokenizer_bytes(t, 2, &len);
    assert_int_equal(len, 0);
    check(t, "aa", 2, 3000, 3000);
    const int32_t ids[] = {2, 3000, 1};
    check_stream(t, ids, 3, false);
    mx_tokenizer_free(t);
    assert_int_equal(mx_tokenizer_parse("{}", 2, "x", NULL) == NULL, true);
    mx_tokenizer_free(NULL);
}

static void long_tokens_are_refused(void **state)
{
    (void)state;
    size_t n = 70000;
    char *json = malloc(n + 400), *word = malloc(n + 1);
    assert_non_null(json);
    assert_non_null(word);
    memset(word, 'x', n);
    word[n] = '\0';
    snprintf(json, n + 400, "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"%s\":0},\"merges\":[]}}",
             word);
    assert_refused(json, MTPLX_ERR_FORMAT, "65535");
    word[1000] = '\0';
    snprintf(json, n + 400,
             "{\"added_tokens\":[{\"id\":1,\"content\":\"%s\",\"normalized\":false}]," MODEL(
                 "{\"a\":0}", "[]") DECODER "}",
             word);
    assert_refused(json, MTPLX_ERR_UNSUPPORTED, "added_tokens[0]");
    free(json);
    free(word);
}

/* Every prefix and many one-byte changes of a small file: no crash, and either a tokenizer that
 * works or an error with a sentence. */
static void damaged_files_do_not_crash(void **state)
{
    (void)state;
    char json[] =
        "{\"added_tokens\":[{\"id\":4,\"content\":\"<s>\",\"special\":true}],\"normalizer\":{"
        "\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
        "\"Split\",\"pattern\":{\"Regex\":\"\\\\s+(?!\\\\S)|\\\\w+\"},\"behavior\":\"Isolated\"},{"
        "\"type\":\"ByteLevel\"}]},\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":"
        "\"BPE\","
        "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\xc4\xa0\":3},\"merges\":[\"a b\"]}}";
    size_t n = sizeof json - 1;
    for (size_t i = 0; i < n * 5; i++) {
        size_t at = i / 5;
        char old = json[at], with[] = {'"', '0', '-', ']', '9'};
        mtplx_error err = {0};
        json[at] = with[i % 5];
        struct mx_tokenizer *t = mx_tokenizer_parse(json, i % 5 ? n : at, "t.json", &err);
        json[at] = old;
        struct mx_ids ids = {0};
        if (t)
            mx_tokenizer_encode(t, "ab <s> ba", 9, false, &ids, NULL);
        else
            assert_true(err.status != MTPLX_OK && err.message[0] != '\0');
        mx_ids_free(&ids);
        mx_tokenizer_free(t);
    }
}

static void missing_directory(void **state)
{
    (void)state;
    mtplx_error err = {0};
    assert_null(mx_tokenizer_open("/nonexistent", &err));
    assert_int_equal(err.status, MTPLX_ERR_IO);
    assert_non_null(strstr(err.message, "tokenizer.json"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_cases),
        cmocka_unit_test(golden_chats),
        cmocka_unit_test(token_queries),
        cmocka_unit_test(plain_text_has_no_added_tokens),
        cmocka_unit_test(merges_by_rank),
        cmocka_unit_test(short_and_long_words_agree),
        cmocka_unit_test(byte_fallback_and_unk),
        cmocka_unit_test(ignore_merges_takes_whole_words),
        cmocka_unit_test(added_longest_match),
        cmocka_unit_test(added_flags),
        cmocka_unit_test(added_normalized),
        cmocka_unit_test(split_behaviors),
        cmocka_unit_test(byte_level_prefix_space),
        cmocka_unit_test(patterns_mean_what_oniguruma_means),
        cmocka_unit_test(unsupported_patterns_are_refused),
        cmocka_unit_test(hostile_patterns_end),
        cmocka_unit_test(normal_forms),
        cmocka_unit_test(many_marks_are_fast),
        cmocka_unit_test(one_megabyte_word),
        cmocka_unit_test(random_bytes_round_trip),
        cmocka_unit_test(encode_appends),
        cmocka_unit_test(streams_equal_decode),
        cmocka_unit_test(bad_bytes_become_one_mark_each_part),
        cmocka_unit_test(decode_respects_a_limit),
        cmocka_unit_test(malformed_files_are_refused),
        cmocka_unit_test(unusual_files_are_accepted),
        cmocka_unit_test(long_tokens_are_refused),
        cmocka_unit_test(damaged_files_do_not_crash),
        cmocka_unit_test(missing_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
