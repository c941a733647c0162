/* Prefix index: a tree of token blocks with sorted branches. See index.h. */
#include "session/index.h"

#include "runtime/model.h"

#include <stdlib.h>
#include <string.h>

/* What hangs off a node: a node of one more block (len == MX_KV_BLOCK), or an item with less than
 * a block of tokens behind the node's. */
struct branch {
    const int32_t *tokens;
    size_t len;
    struct mx_node *node; /* NULL: an item */
    struct mx_item *item;
};

struct mx_node {
    struct mx_node *parent; /* NULL: a root */
    struct branch *branches;
    size_t n, cap;
    size_t depth; /* blocks up to its end */
    char *scope;  /* of a root */
    int32_t tokens[MX_KV_BLOCK];
};

static size_t common_prefix(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b)
{
    size_t n = n_a < n_b ? n_a : n_b, i = 0;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

/* ---- Branches ----------------------------------------------------------------------------- */

/* <0, 0, >0: the branch comes before q, is equal, comes behind it. */
static int order(const struct branch *c, const int32_t *q, size_t len)
{
    size_t same = common_prefix(c->tokens, c->len, q, len);
    if (same < c->len && same < len)
        return c->tokens[same] < q[same] ? -1 : 1;
    return c->len < len ? -1 : c->len > len;
}

/* How many branches come before q or are equal to it. */
static size_t upper(const struct mx_node *node, const int32_t *q, size_t len)
{
    size_t lo = 0, hi = node->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (order(&node->branches[mid], q, len) <= 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The branch that is q, or NULL. */
static struct branch *exactly(const struct mx_node *node, const int32_t *q, size_t len)
{
    size_t at = upper(node, q, len);
    struct branch *c = at ? &node->branches[at - 1] : NULL;
    return c && order(c, q, len) == 0 ? c : NULL;
}

static bool insert(struct mx_node *node, const struct branch *c)
{
    if (node->n == node->cap) {
        size_t cap = node->cap ? 2 * node->cap : 2;
        struct branch *grown = realloc(node->branches, cap * sizeof *grown);
        if (!grown)
            return false;
        node->branches = grown;
        node->cap = cap;
    }
    size_t at = upper(node, c->tokens, c->len);
    memmove(&node->branches[at + 1], &node->branches[at], (node->n - at) * sizeof *c);
    node->branches[at] = *c;
    node->n++;
    return true;
}

static void cut_off(struct mx_node *node, struct branch *c)
{
    node->n--;
    size_t at = (size_t)(c - node->branches);
    memmove(c, c + 1, (node->n - at) * sizeof *c);
}

/* ---- Roots -------------------------------------------------------------------------------- */

/* Where the scope's root is, or would be. */
static size_t root_place(const struct mx_index *x, const char *scope, bool *found)
{
    size_t lo = 0, hi = x->n_roots;
    *found = false;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strcmp(x->roots[mid]->scope, scope);
        if (c == 0) {
            *found = true;
            return mid;
        }
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static struct mx_node *root_of(const struct mx_index *x, const char *scope)
{
    bool found;
    size_t at = root_place(x, scope, &found);
    return found ? x->roots[at] : NULL;
}

static void free_node(struct mx_node *node)
{
    free(node->branches);
    free(node->scope);
    free(node);
}

static struct mx_node *root_need(struct mx_index *x, const char *scope)
{
    bool found;
    size_t at = root_place(x, scope, &found);
    if (found)
        return x->roots[at];
    if (x->n_roots == x->cap_roots) {
        size_t cap = x->cap_roots ? 2 * x->cap_roots : 4;
        struct mx_node **grown = (struct mx_node **)realloc((void *)x->roots, cap * sizeof *grown);
        if (!grown)
            return NULL;
        x->roots = grown;
        x->cap_roots = cap;
    }
    struct mx_node *root = calloc(1, sizeof *root);
    if (!root || !(root->scope = strdup(scope))) {
        free(root);
        return NULL;
    }
    memmove((void *)&x->roots[at + 1], (void *)&x->roots[at], (x->n_roots - at) * sizeof *x->roots);
    x->roots[at] = root;
    x->n_roots++;
    return root;
}

static void drop_root(struct mx_index *x, struct mx_node *root)
{
    bool found;
    size_t at = root_place(x, root->scope, &found);
    x->n_roots--;
    memmove((void *)&x->roots[at], (void *)&x->roots[at + 1], (x->n_roots - at) * sizeof *x->roots);
    free_node(root);
}

void mx_index_close(struct mx_index *x)
{
    free((void *)x->roots);
    memset(x, 0, sizeof *x);
}

const char *mx_index_scope(const struct mx_item *it)
{
    const struct mx_node *node = it->node;
    while (node->parent)
        node = node->parent;
    return node->scope;
}

/* ---- Items -------------------------------------------------------------------------------- */

/* Takes a node away that nothing hangs off, and so on upwards. */
static void prune(struct mx_index *x, struct mx_node *node)
{
    while (node->n == 0) {
        struct mx_node *parent = node->parent;
        if (!parent) {
            drop_root(x, node);
            return;
        }
        cut_off(parent, exactly(parent, node->tokens, MX_KV_BLOCK));
        free_node(node);
        node = parent;
    }
}

static struct mx_node *child_need(struct mx_node *node, const int32_t *block)
{
    struct branch *c = exactly(node, block, MX_KV_BLOCK);
    if (c)
        return c->node;
    struct mx_node *child = calloc(1, sizeof *child);
    if (!child)
        return NULL;
    child->parent = node;
    child->depth = node->depth + 1;
    memcpy(child->tokens, block, sizeof child->tokens);
    struct branch b = {.tokens = child->tokens, .len = MX_KV_BLOCK, .node = child};
    if (!insert(node, &b)) {
        free_node(child);
        return NULL;
    }
    return child;
}

bool mx_index_add(struct mx_index *x, const char *scope, struct mx_item *it)
{
    struct mx_node *node = root_need(x, scope), *next = node;
    size_t at = 0;
    for (; next && it->n - at >= MX_KV_BLOCK; at += MX_KV_BLOCK) {
        next = child_need(node, it->tokens + at);
        node = next ? next : node;
    }
    struct branch b = {.tokens = it->tokens + at, .len = it->n - at, .item = it};
    if (!next || !insert(node, &b)) {
        if (node)
            prune(x, node);
        return false;
    }
    it->node = node;
    return true;
}

void mx_index_remove(struct mx_index *x, struct mx_item *it)
{
    struct mx_node *node = it->node;
    struct branch *c = node->branches;
    while (c->item != it)
        c++;
    cut_off(node, c);
    it->node = NULL;
    prune(x, node);
}

/* What goes on like it stands right behind it. */
bool mx_index_extended(const struct mx_item *it)
{
    const struct mx_node *node = it->node;
    size_t at = node->depth * MX_KV_BLOCK, len = it->n - at;
    size_t next = upper(node, it->tokens + at, len);
    if (next == node->n)
        return false;
    const struct branch *c = &node->branches[next];
    return common_prefix(c->tokens, c->len, it->tokens + at, len) == len;
}

/* ---- Lookup ------------------------------------------------------------------------------- */

/* Any item at or below what a branch leads to (I1). */
static struct mx_item *item_below(const struct branch *c)
{
    while (c->node)
        c = &c->node->branches[0];
    return c->item;
}

/* The branch with the longest prefix in common with q: one of its neighbours in order. */
static void find_witness(struct mx_walk *w, const int32_t *q, size_t len)
{
    const struct mx_node *node = w->node;
    size_t at = upper(node, q, len), best = 0;
    const struct branch *c = NULL;
    for (size_t i = at ? at - 1 : 0; i < node->n && i <= at; i++) {
        const struct branch *b = &node->branches[i];
        size_t same = common_prefix(b->tokens, b->len, q, len);
        if (!c || same > best) {
            c = b;
            best = same;
        }
    }
    w->common = node->depth * MX_KV_BLOCK + best;
    w->witness = c && w->common ? item_below(c) : NULL;
}

void mx_index_walk(const struct mx_index *x, const char *scope, const int32_t *tokens, size_t n,
                   struct mx_walk *w)
{
    *w = (struct mx_walk){.tokens = tokens, .limit = n};
    w->node = root_of(x, scope);
    if (!w->node)
        return;
    size_t at = 0;
    for (; n - at >= MX_KV_BLOCK; at += MX_KV_BLOCK) {
        const struct branch *c = exactly(w->node, tokens + at, MX_KV_BLOCK);
        if (!c)
            break;
        w->node = c->node;
    }
    find_witness(w, tokens + at, n - at);
}

/* The longest item of a node that q starts with. Each step either finds it or shortens q to what
 * it has in common with its predecessor: any longer prefix of q would stand between the two. */
static struct mx_item *longest_item(const struct mx_node *node, const int32_t *q, size_t len)
{
    for (;;) {
        size_t at = upper(node, q, len);
        if (at == 0)
            return NULL;
        const struct branch *c = &node->branches[at - 1];
        size_t same = common_prefix(c->tokens, c->len, q, len);
        if (same == c->len)
            return c->item;
        len = same;
    }
}

struct mx_item *mx_index_next(struct mx_walk *w)
{
    for (; w->node; w->node = w->node->parent) {
        size_t at = w->node->depth * MX_KV_BLOCK;
        if (w->limit < at)
            continue;
        size_t len = w->limit - at < MX_KV_BLOCK - 1 ? w->limit - at : MX_KV_BLOCK - 1;
        struct mx_item *it = longest_item(w->node, w->tokens + at, len);
        if (it) {
            /* Nothing shorter than no token at all: end with the root. */
            w->limit = it->n ? it->n - 1 : 0;
            w->node = it->n ? w->node : NULL;
            return it;
        }
    }
    return NULL;
}
