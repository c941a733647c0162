/* Splits a streamed answer into reasoning and visible text.
 *
 * Styles differ in their tags only; where an answer starts (inside reasoning, behind it, or not
 * known yet) follows from the end of the prompt, since templates often write the opening tag.
 *
 *  1. Only an answer that starts with the opening tag has reasoning: the tag further on is the
 *     model's own words. What could still become a tag is held back.
 *  2. Blanks around the reasoning (behind it 256 at most) and newlines before the visible text are
 *     dropped.
 *  3. A closing tag that the model quotes does not end reasoning: the byte behind it is ` or " and
 *     an odd number of that byte stands before it on its line, or it stands right between two '.
 *     A closing tag inside a fenced code block does end it: blocks that are never closed are more
 *     common than blocks that hold the tag, and an answer lost in reasoning is the worse mistake.
 *  4. Reasoning that is never closed is all reasoning, also when it seems to go over into a tool
 *     call: whether the model meant the call or thought about it cannot be known. */
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
    char last;          /* byte before `held` */
    bool ticks, quotes; /* an odd number of ` and " before `held` on its line */
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
