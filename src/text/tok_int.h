/* Inside of a tokenizer, for the files that build one. */
#ifndef MX_TEXT_TOK_INT_H
#define MX_TEXT_TOK_INT_H

#include "text/bpe.h"
#include "text/pretokenize.h"
#include "text/tok_added.h"
#include "text/tok_norm.h"
#include "text/tok_vocab.h"
#include "text/tokenizer.h"

struct mx_tokenizer {
    char *name; /* of the file, for messages */
    struct mx_vocab vocab;
    struct mx_bpe bpe;
    struct mx_norm norm;
    struct mx_pretok pretok;
    struct mx_added_set raw, normalized; /* patterns for the raw and the normalised text */
};

#endif
