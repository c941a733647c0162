/* The splitter of reasoning and answer: the same parts come out however the text is cut up. */
#include "text/reasoning.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

struct parts {
    char text[2][600];
    size_t n[2];
    bool out_of_order;
};

static void collect(void *arg, enum mx_answer_part part, const char *text, size_t n)
{
    struct parts *p = arg;
    assert_true(n > 0 && p->n[part] + n < sizeof p->text[part]);
    p->out_of_order = p->out_of_order || (part == MX_PART_REASONING && p->n[MX_PART_ANSWER] > 0);
    memcpy(p->text[part] + p->n[part], text, n);
    p->n[part] += n;
}

/* Pushes `text` in pieces of `step` bytes and compares both parts. */
static void split(enum mx_reasoning_style style, const char *prompt, const char *text, size_t step,
                  const char *reasoning, const char *answer)
{
    struct parts p = {0};
    struct mx_reasoning r;
    mx_reasoning_init(&r, style, prompt, strlen(prompt), collect, &p);
    for (size_t i = 0, n = strlen(text); i < n; i += step)
        assert_true(mx_reasoning_push(&r, text + i, step < n - i ? step : n - i));
    mx_reasoning_finish(&r);
    mx_reasoning_free(&r);
    assert_string_equal(p.text[MX_PART_REASONING], reasoning);
    assert_string_equal(p.text[MX_PART_ANSWER], answer);
    assert_false(p.out_of_order);
}

static void check_style(enum mx_reasoning_style style, const char *prompt, const char *text,
                        const char *reasoning, const char *answer)
{
    for (size_t step = 1; step <= strlen(text) + 1; step++)
        split(style, prompt, text, step, reasoning, answer);
}

static void check(const char *prompt, const char *text, const char *reasoning, const char *answer)
{
    check_style(MX_REASONING_THINK, prompt, text, reasoning, answer);
}

static void test_plain_answers(void **state)
{
    (void)state;
    check("", "", "", "");
    check("", "hello", "", "hello");
    check("", "  indented\n", "", "  indented\n");
    check("", "<thin air", "", "<thin air");
    check("", "a <think>b</think> c", "", "a <think>b</think> c");
    check("", "<", "", "<");
}

static void test_answer_that_opens_reasoning(void **state)
{
    (void)state;
    check("", "<think>\nwhy\n</think>\n\nbecause", "why", "because");
    check("", "\n <think>why</think>because", "why", "because");
    check("", "<think></think>x", "", "x");
    check("", "<think>a < b </thin > c</think>\n x </think>", "a < b </thin > c", " x </think>");
}

static void test_prompt_that_opens_reasoning(void **state)
{
    (void)state;
    check("<|im_start|>assistant\n<think>\n", "\nwhy  so\n</think>\n\nyes\n", "why  so", "yes\n");
    check("assistant\n<think>\n\n</think>\n\n", "yes", "", "yes");
    check("assistant\n<think>\n\n</think>\n\n", "<think>literal", "", "<think>literal");
}

static void test_reasoning_that_never_ends(void **state)
{
    (void)state;
    check("<think>", "why\n\n", "why", "");
    check("<think>", "why </thi", "why </thi", "");
    check("<think>", " \n ", "", "");
}

static void test_quoted_tags(void **state)
{
    (void)state;
    check("<think>", "the `</think>` tag\n</think>\nx", "the `</think>` tag", "x");
    check("<think>", "say \"</think>\" or '</think>'.</think>x", "say \"</think>\" or '</think>'.",
          "x");
    check("<think>", "`<think>a</think>` is one</think>x", "`<think>a</think>` is one", "x");
    /* Not quoted: nothing opened on this line, other marks, or nothing behind. */
    check("<think>", "a `b` c</think>`d`", "a `b` c", "`d`");
    check("<think>", "a `b\n</think>`c`", "a `b", "`c`");
    check("<think>", "a `b</think>\nc", "a `b", "c");
    check("<think>", "a \"b</think>`c", "a \"b", "`c");
    check("<think>", "it's</think>'x'", "it's", "'x'");
    check("<think>", "a `</think>", "a `", "");
    check("<think>", "```\n</think>\n```\n", "```", "```\n");
    check("<think>", "use `<tool_call>` or\n<tool_call>\n</think>\nx",
          "use `<tool_call>` or\n<tool_call>", "x");
    check("<think>", "so:\n<tool_call>\n{}\n</tool_call>", "so:\n<tool_call>\n{}\n</tool_call>",
          "");
}

static void test_styles(void **state)
{
    (void)state;
    check_style(MX_REASONING_GEMMA4, "<|turn>model\n", "<|channel>thought\nhm<channel|>yes", "hm",
                "yes");
    check_style(MX_REASONING_GEMMA4, "<|channel>thought\n<channel|>", "yes", "", "yes");
    check_style(MX_REASONING_GEMMA4, "<|turn>model\n", "<|channel>final", "", "<|channel>final");
    check_style(MX_REASONING_NONE, "<think>", "a</think> b ", "", "a</think> b ");
    assert_int_equal(mx_reasoning_style_named("poolside_v1"), MX_REASONING_THINK);
    assert_int_equal(mx_reasoning_style_named("gemma4"), MX_REASONING_GEMMA4);
    assert_int_equal(mx_reasoning_style_named("none"), MX_REASONING_NONE);
    assert_int_equal(mx_reasoning_style_named("Qwen"), -1);
    assert_int_equal(mx_reasoning_style_of("{{ '<think>\\n' }}"), MX_REASONING_THINK);
    assert_int_equal(mx_reasoning_style_of("<|channel>thought <think>"), MX_REASONING_GEMMA4);
    assert_int_equal(mx_reasoning_style_of("plain"), MX_REASONING_NONE);
    assert_string_equal(mx_reasoning_end(MX_REASONING_GEMMA4), "<channel|>");
    assert_null(mx_reasoning_end(MX_REASONING_NONE));
}

/* Blanks that never end are held back up to a limit, however they come. */
static void test_many_blanks(void **state)
{
    (void)state;
    char text[700], reasoning[400];
    memset(text, '\n', sizeof text);
    memcpy(text, "<think>a", 8);
    memcpy(text + 8 + 600, "</think>b", 10);
    reasoning[0] = 'a';
    memset(reasoning + 1, '\n', 600 - MAX_BLANKS);
    reasoning[1 + 600 - MAX_BLANKS] = '\0';
    check("", text, reasoning, "b");
    memset(text, ' ', 400);
    memcpy(text + 400, "<think>a", 9);
    struct parts p = {0};
    struct mx_reasoning r;
    for (size_t step = 1; step <= 410; step++) {
        p = (struct parts){0};
        mx_reasoning_init(&r, MX_REASONING_THINK, "", 0, collect, &p);
        for (size_t i = 0; i < 408; i += step)
            assert_true(mx_reasoning_push(&r, text + i, step < 408 - i ? step : 408 - i));
        mx_reasoning_finish(&r);
        mx_reasoning_free(&r);
        assert_int_equal(p.n[MX_PART_ANSWER], 408);
    }
}

static void test_inside(void **state)
{
    (void)state;
    struct parts p = {0};
    struct mx_reasoning r;
    mx_reasoning_init(&r, MX_REASONING_THINK, "<think>", 7, collect, &p);
    assert_true(mx_reasoning_inside(&r));
    assert_true(mx_reasoning_push(&r, "a</think>", 9));
    assert_false(mx_reasoning_inside(&r));
    mx_reasoning_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_answers),
        cmocka_unit_test(test_answer_that_opens_reasoning),
        cmocka_unit_test(test_prompt_that_opens_reasoning),
        cmocka_unit_test(test_reasoning_that_never_ends),
        cmocka_unit_test(test_quoted_tags),
        cmocka_unit_test(test_styles),
        cmocka_unit_test(test_many_blanks),
        cmocka_unit_test(test_inside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
