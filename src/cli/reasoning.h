/* Splits a streamed answer into reasoning and answer at <think> and </think>.
 *
 * A tag may arrive in any number of pieces; what could still become one is held back. Blanks around
 * the reasoning and newlines before the answer are dropped. Only an answer that starts with <think>
 * has reasoning: the tag further on is the model's own words. */
#ifndef MX_CLI_REASONING_H
#define MX_CLI_REASONING_H

#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>

enum mx_answer_part { MX_ANSWER_PART_REASONING, MX_ANSWER_PART_ANSWER };

/* Receives text of one part, in order. */
typedef void mx_answer_fn(void *arg, enum mx_answer_part part, const char *text, size_t n);

enum mx_reasoning_state {
    MX_REASONING_UNKNOWN, /* nothing but blanks so far */
    MX_REASONING_BEGIN,   /* inside, nothing but blanks so far */
    MX_REASONING_INSIDE,
    MX_REASONING_END, /* after </think>, nothing but newlines so far */
    MX_REASONING_ANSWER,
};

struct mx_reasoning {
    enum mx_reasoning_state state;
    struct mx_strbuf held;
    mx_answer_fn *emit;
    void *arg;
};

/* `prompt` is the rendered prompt: when it ends with <think> the answer starts inside reasoning,
 * when it ends with </think> there is none. */
void mx_reasoning_init(struct mx_reasoning *r, const char *prompt, size_t len, mx_answer_fn *emit,
                       void *arg);
/* False when out of memory. */
bool mx_reasoning_push(struct mx_reasoning *r, const char *text, size_t n);
/* The end of the answer: emits what was held back. */
void mx_reasoning_finish(struct mx_reasoning *r);
void mx_reasoning_free(struct mx_reasoning *r);

#endif
