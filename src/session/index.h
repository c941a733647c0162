/* Prefix index: a tree of token blocks, one for each scope, in which snapshots are found by prompt.
 *
 * A node stands for the prefix of a whole number of MX_KV_BLOCK-token blocks; items (snapshots)
 * hang off the node of their last full block with the tokens behind it. What hangs off a node is
 * sorted by tokens, so going down, finding the longest item that a prompt starts with and finding
 * the longest prefix in common with any item are binary searches. Tokens are compared, never
 * hashes, so nothing can be mistaken.
 *
 * Invariants
 *   I1  Every node but a root has something hanging off it, so that there is an item below each.
 *   I2  No two items of a scope have the same tokens.
 *
 * No locking: the owner's. Memory of tokens stays the caller's while an item is in. */
#ifndef MX_SESSION_INDEX_H
#define MX_SESSION_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mx_node;

struct mx_item {
    const int32_t *tokens;
    size_t n;
    struct mx_node *node; /* set by mx_index_add() */
};

struct mx_index {
    struct mx_node **roots; /* sorted by scope */
    size_t n_roots, cap_roots;
};

/* Adds an item; false: no memory. There must be none with these tokens. */
bool mx_index_add(struct mx_index *x, const char *scope, struct mx_item *it);
void mx_index_remove(struct mx_index *x, struct mx_item *it);
/* Frees what an empty index holds. */
void mx_index_close(struct mx_index *x);
/* Whether there is an item that starts with this one's tokens and goes on. */
bool mx_index_extended(const struct mx_item *it);
/* The scope that an item was added with. */
const char *mx_index_scope(const struct mx_item *it);

/* Where a prompt leaves the tree. */
struct mx_walk {
    struct mx_node *node; /* of the deepest block; NULL: nothing of the scope is known */
    const int32_t *tokens;
    size_t limit; /* items of at most so many tokens are wanted */
    /* The longest prefix in common with any item, and such an item; NULL with 0. */
    size_t common;
    struct mx_item *witness;
};
void mx_index_walk(const struct mx_index *x, const char *scope, const int32_t *tokens, size_t n,
                   struct mx_walk *w);
/* The longest item of at most w->limit tokens (n at first) that the prompt starts with, then the
 * next shorter one with each call; NULL: no more. Nothing may be added or removed in between. */
struct mx_item *mx_index_next(struct mx_walk *w);

#endif
