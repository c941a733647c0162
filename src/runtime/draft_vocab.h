/* The draft vocabulary: the tokens that the MTP head may draft.
 *
 * With a vocabulary of 250,000 tokens a draft step spends most of its time in the output head,
 * which it shares with the trunk, on tokens that are almost never drafted. So drafts are chosen
 * among the likeliest tokens only, with a copy of the head that has just their rows.
 *
 * Invariants
 *   V1  The target law does not depend on the draft vocabulary: q is a law on it, and acceptance
 *       is exact for any q that the draft was really drawn from (accept.c). Tokens outside have
 *       q = 0 and come out of residual and bonus draws. A greedy draft is only a guess.
 *   V2  It is fixed for the life of a loaded model, so that a draft depends on its own sequence
 *       only, not on what else runs or has run.
 *   V3  ids ascend: order and ties of places are order and ties of tokens. */
#ifndef MX_RUNTIME_DRAFT_VOCAB_H
#define MX_RUNTIME_DRAFT_VOCAB_H

#include "families/loader.h"
#include "text/tokenizer.h"

/* Tokens of the draft vocabulary where the full one has more and no number was asked for. */
#define MX_DRAFT_VOCAB 32768

struct mx_draft_vocab {
    int n;                 /* tokens */
    const int32_t *ids;    /* [n] token of each draft logit; NULL: every token, in order */
    struct mx_weight head; /* [n][hidden], bound; data NULL: the model's own head is used */
};

/* What a choice can go by. */
struct mx_draft_tokens {
    int vocab;
    const struct mx_tokenizer *tokenizer; /* NULL: none */
    const int32_t *stops;                 /* tokens that end answers */
    int n_stops;
    const int32_t *observed; /* tokens seen in earlier answers, the most frequent first */
    size_t n_observed;
};

/* Size of the draft vocabulary for mtplx_load_options.draft_vocab (0: the default, -1: all). */
int mx_draft_vocab_size(int vocab, int option);

/* Chooses `want` tokens, or more where more must be in: stop tokens, added tokens (control tokens,
 * think and tool-call markers) and single bytes always are. Then observed tokens, the most frequent
 * first; then the results of merges in merge order, which is by frequency in the tokenizer's
 * training text; then the lowest ids. *ids (free() it) ascend; NULL with *n = vocab when every
 * token is chosen. Ids out of range are ignored. Errors: MEMORY. */
mtplx_status mx_draft_vocab_choose(const struct mx_draft_tokens *from, int want, int32_t **ids,
                                   int *n, mtplx_error *err);

/* Fills *d: chooses, and copies the head's rows in their stored form or re-quantised; `head` NULL
 * leaves the full vocabulary. Memory and binding belong to the loader's weights. */
mtplx_status mx_draft_vocab_load(struct mx_draft_vocab *d, struct mx_loader *l,
                                 const struct mx_weight *head, const struct mx_draft_tokens *from,
                                 mtplx_error *err);

#endif
