/* Fuzz target: two bytes choose style, prompt and cuts; the rest is an answer. Cut in any way it
 * must give the same parts, reasoning before visible text, and no more bytes than went in. */
#include "text/reasoning.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct parts {
    struct mx_strbuf part[2];
};

static void on_part(void *arg, enum mx_answer_part part, const char *text, size_t n)
{
    struct parts *p = arg;
    if (n == 0 || (part == MX_PART_REASONING && p->part[MX_PART_ANSWER].len > 0))
        abort();
    mx_strbuf_append(&p->part[part], text, n);
}

static void run(struct parts *p, uint8_t kind, const char *text, size_t n, size_t step)
{
    static const char *const prompts[] = {"", "<think>\n", "<think>\n\n</think>\n\n",
                                          "<|channel>thought\n"};
    const char *prompt = prompts[kind / 4 % 4];
    struct mx_reasoning r;
    *p = (struct parts){0};
    mx_reasoning_init(&r, (enum mx_reasoning_style)(kind % 3), prompt, strlen(prompt), on_part, p);
    for (size_t i = 0; i < n; i += step) {
        if (!mx_reasoning_push(&r, text + i, step < n - i ? step : n - i))
            abort();
    }
    mx_reasoning_finish(&r);
    mx_reasoning_free(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    const char *text = (const char *)data + 2;
    struct parts a, b;
    run(&a, data[0], text, size - 2, size);
    run(&b, data[0], text, size - 2, 1 + data[1] % 16);
    if (a.part[0].len + a.part[1].len > size - 2)
        abort();
    for (int i = 0; i < 2; i++) {
        if (a.part[i].len != b.part[i].len ||
            (a.part[i].len && memcmp(a.part[i].data, b.part[i].data, a.part[i].len) != 0))
            abort();
        mx_strbuf_free(&a.part[i]);
        mx_strbuf_free(&b.part[i]);
    }
    return 0;
}
