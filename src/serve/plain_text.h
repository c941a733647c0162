/* Keeps text of messages from being read as special tokens.
 *
 * A message that holds "<|im_end|>" would end its turn in the rendered prompt and could open
 * another in any role. Such texts are replaced by random words before the template runs, and the
 * words by the tokens of the plain text when the prompt is encoded. Messages without such text
 * (nearly all) are left alone, and their prompts are encoded in one go. */
#ifndef MX_SERVE_PLAIN_TEXT_H
#define MX_SERVE_PLAIN_TEXT_H

#include "base/strbuf.h"
#include "text/tokenizer.h"

#include <jansson.h>

#define MX_PLAIN_MAX 256 /* different texts of one request */

struct mx_plain {
    const struct mx_tokenizer *t;
    char word[24]; /* random start of the words that stand in; "" while there are none */
    int n;
    json_t *texts; /* what each stands for */
    bool too_many, failed;
};

void mx_plain_init(struct mx_plain *g, const struct mx_tokenizer *t);
void mx_plain_free(struct mx_plain *g);
/* Replaces in the text of messages (a list of its own, its messages too): content, reasoning, names
 * and arguments of calls. False without memory (`failed`) or over MX_PLAIN_MAX (`too_many`). */
bool mx_plain_messages(struct mx_plain *g, json_t *messages);
/* Encodes a rendered prompt; as mx_tokenizer_encode(). */
mtplx_status mx_plain_encode(const struct mx_plain *g, const char *text, size_t len,
                             struct mx_ids *out, mtplx_error *err);

#endif
