/* Splits a streamed answer into reasoning and visible text.
 *
 * Styles differ in their tags only; where an answer starts (inside reasoning, behind it, or not
 * known yet) follows from the end of the prompt, since templates often write the opening tag. */
#ifndef MX_TEXT_REASONING_H
#define MX_TEXT_REASONING_H

#include "base/strbuf.h"

enum mx_reasoning_style {
    MX_REASONING_NONE = 0, /* everything is visible */
    MX_REASONING_THINK,    /* <think>..</think>: Qwen, GLM, DeepSeek, Laguna ("poolside_v1") */
    MX_REASONING_GEMMA4,   /* <|channel>thought ..<channel|> */
};

/* The style of a name of --reasoning-parser (qwen3, deepseek, glm, step3p5, poolside_v1, gemma4,
 * none), or -1. */
int mx_reasoning_style_named(const char *name);
/* The style that a chat template's text speaks of. */
enum mx_reasoning_style mx_reasoning_style_of(const char *template_text);
/* The string that ends reasoning ("</think>"), or NULL. */
const char *mx_reasoning_end(enum mx_reasoning_style style);

enum mx_answer_part { MX_PART_REASONING = 0, MX_PART_ANSWER };
typedef void mx_part_fn(void *arg, enum mx_answer_part part, const char *text, size_t n);

struct mx_reasoning {
    enum mx_reasoning_style style;
    int state;
    struct mx_strbuf held;
    mx_part_fn *emit;
    void *arg;
};

/* `prompt` is the rendered prompt (its end is looked at). */
void mx_reasoning_init(struct mx_reasoning *r, enum mx_reasoning_style style, const char *prompt,
                       size_t len, mx_part_fn *emit, void *arg);
void mx_reasoning_free(struct mx_reasoning *r);
/* False when memory is out. Emits what is certain; holds back what could be the start of a tag. */
bool mx_reasoning_push(struct mx_reasoning *r, const char *text, size_t n);
/* End of the answer: emits what was held back. */
void mx_reasoning_finish(struct mx_reasoning *r);
/* True while the answer is inside reasoning. */
bool mx_reasoning_inside(const struct mx_reasoning *r);

#endif
