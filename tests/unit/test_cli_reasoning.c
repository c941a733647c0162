/* The splitter of reasoning and answer: the same parts come out however the text is cut up. */
#include "cli/reasoning.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

struct parts {
    char text[2][400];
    size_t n[2];
    bool out_of_order;
};

static void collect(void *arg, enum mx_answer_part part, const char *text, size_t n)
{
    struct parts *p = arg;
    assert_true(n > 0 && p->n[part] + n < sizeof p->text[part]);
    p->out_of_order =
        p->out_of_order || (part == MX_ANSWER_PART_REASONING && p->n[MX_ANSWER_PART_ANSWER] > 0);
    memcpy(p->text[part] + p->n[part], text, n);
    p->n[part] += n;
}

/* Pushes `text` in pieces of `step` bytes and compares both parts. */
static void split(const char *prompt, const char *text, size_t step, const char *reasoning,
                  const char *answer)
{
    struct parts p = {0};
    struct mx_reasoning r;
    mx_reasoning_init(&r, prompt, strlen(prompt), collect, &p);
    for (size_t i = 0, n = strlen(text); i < n; i += step)
        assert_true(mx_reasoning_push(&r, text + i, step < n - i ? step : n - i));
    mx_reasoning_finish(&r);
    mx_reasoning_free(&r);
    assert_string_equal(p.text[MX_ANSWER_PART_REASONING], reasoning);
    assert_string_equal(p.text[MX_ANSWER_PART_ANSWER], answer);
    assert_false(p.out_of_order);
}

static void check(const char *prompt, const char *text, const char *reasoning, const char *answer)
{
    for (size_t step = 1; step <= strlen(text) + 1; step++)
        split(prompt, text, step, reasoning, answer);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_answers),
        cmocka_unit_test(test_answer_that_opens_reasoning),
        cmocka_unit_test(test_prompt_that_opens_reasoning),
        cmocka_unit_test(test_reasoning_that_never_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
