/* Masks: which tokens a configuration allows.
 *
 * The trie of the vocabulary is walked with a configuration for every byte on the way down; what
 * the machine refuses is skipped with all below it. Inside of strings and free text almost all
 * tokens are allowed, which would make the walk long, so text is taken in bulk:
 *
 *   1. A configuration is text when every character but a few leads to one and the same next
 *      configuration, which may be itself. Whatever follows such a chain for n characters allows
 *      every token of at most n characters without those few.
 *   2. Those tokens are set first, from lists made once; the walk skips their subtrees.
 *   3. Counters matter to a token only as far as it is long, so configurations are looked up with
 *      their counters reduced (mx_gmachine_clip), and a string of 1,000 characters has few masks.
 *
 * New steps of a very ambiguous grammar are long, and others wait while a mask is made: what a
 * grammar may spend on them is limited. Each mask brings some credit, so that ordinary grammars
 * never run out; without credit there are no new masks. */
#include "text/grammar_int.h"

#include <stdlib.h>
#include <string.h>

enum {
    MASK_BYTES = 24 << 20, /* of all masks of a grammar */
    MASKS_MIN = 64,
    MASKS_MAX = 2048,
    ENDLESS = 256, /* characters of a chain that does not end */
    UNCLEAN = UINT16_MAX,
    CREDIT = 1 << 21, /* that a mask brings: about 40 ms */
};

static void set_bit(uint64_t *bits, int32_t id)
{
    bits[(uint32_t)id / 64] |= UINT64_C(1) << ((uint32_t)id % 64);
}

static void clear_bit(uint64_t *bits, int32_t id)
{
    bits[(uint32_t)id / 64] &= ~(UINT64_C(1) << ((uint32_t)id % 64));
}

/* ---- Chains of text ---- */

/* Characters without `stops` that may follow, up to `limit`; ENDLESS when the chain is a loop. */
static int chain_length(struct mx_gmachine *m, uint32_t config, uint64_t stops, int limit)
{
    int n = 0;
    while (n < limit) {
        if (!mx_gmachine_text(m, config) || (m->configs[config].text_stops & ~stops))
            return n;
        if (m->configs[config].text_next == config)
            return ENDLESS;
        config = m->configs[config].text_next;
        n++;
    }
    return n;
}

/* True when all below node x is text to `config`. */
static bool all_text(struct mx_gmachine *m, const struct mx_tnode *x, uint32_t config)
{
    if (!x->utf8 || x->chars >= ENDLESS - 1 || !mx_gmachine_text(m, config))
        return false;
    if (m->configs[config].text_stops & x->set)
        return false;
    return chain_length(m, config, ~x->set, x->chars) >= x->chars;
}

static const uint64_t *base_of(struct mx_gmasks *k, uint64_t stops)
{
    const struct mx_token_table *t = k->table;
    if (stops == mx_token_json_stops())
        return t->json_text;
    for (size_t i = 0; i < sizeof k->bases / sizeof *k->bases; i++)
        if (k->bases[i].bits && k->bases[i].stops == stops)
            return k->bases[i].bits;
    struct mx_gbase *b = &k->bases[k->next_base];
    if (!b->bits)
        b->bits = malloc((size_t)t->words * sizeof *b->bits);
    if (!b->bits)
        return NULL;
    k->next_base = (k->next_base + 1) % (int)(sizeof k->bases / sizeof *k->bases);
    b->stops = stops;
    memset(b->bits, 0, (size_t)t->words * sizeof *b->bits);
    for (uint32_t i = 0; i < t->chars_end[255]; i++)
        if (!(t->by_chars_set[i] & stops))
            set_bit(b->bits, t->by_chars[i]);
    return b->bits;
}

/* Sets the tokens that are text of at most `chain` characters. */
static bool set_text(struct mx_gmasks *k, uint64_t *bits, uint64_t stops, int chain)
{
    const struct mx_token_table *t = k->table;
    uint32_t end = t->chars_end[chain < ENDLESS ? chain : ENDLESS - 1], all = t->chars_end[255];
    if (end < all / 4) {
        for (uint32_t i = 0; i < end; i++)
            if (!(t->by_chars_set[i] & stops))
                set_bit(bits, t->by_chars[i]);
        return true;
    }
    const uint64_t *base = base_of(k, stops);
    if (!base)
        return false;
    memcpy(bits, base, (size_t)t->words * sizeof *bits);
    for (uint32_t i = end; i < all; i++)
        clear_bit(bits, t->by_chars[i]);
    return true;
}

/* ---- Walk ---- */

struct walk {
    struct mx_gmasks *k;
    struct mx_gmachine *m;
    const struct mx_trie *trie;
    uint64_t *bits;
    uint64_t stops; /* of the text at the root; ~0: it is none */
    int chain;
};

static void set_range(const struct mx_trie *t, uint64_t *bits, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        set_bit(bits, t->order[i]);
}

/* True when the subtree of x needs no walk: it is set already, or is now. */
static bool take_in_bulk(struct walk *w, const struct mx_tnode *x, uint32_t config, uint16_t chars)
{
    const struct mx_trie *t = w->trie;
    if (chars != UNCLEAN && x->utf8 && !(x->set & w->stops) && x->chars < ENDLESS - 1 &&
        (w->chain == ENDLESS || chars + x->chars <= w->chain))
        return true;
    uint32_t n = t->nodes[x->skip].first - x->first;
    if (n < 4 || !all_text(w->m, x, config))
        return false;
    set_range(t, w->bits, x->first, x->first + n);
    return true;
}

static uint16_t chars_after(const struct walk *w, const struct mx_tnode *x, uint16_t chars)
{
    if (chars == UNCLEAN || (UINT64_C(1) << mx_token_class(x->byte)) & w->stops)
        return UNCLEAN;
    return (uint16_t)(chars + ((x->byte & 0xc0) != 0x80));
}

static bool walk_trie(struct walk *w)
{
    const struct mx_trie *t = w->trie;
    uint32_t *at = w->k->walk;
    uint16_t *chars = w->k->chars;
    uint32_t i = 0;
    while (i < t->n_nodes) {
        if (w->m->credit < 0)
            return false;
        const struct mx_tnode *x = &t->nodes[i];
        uint32_t from = at[x->depth - 1];
        if (take_in_bulk(w, x, from, chars[x->depth - 1])) {
            i = x->skip;
            continue;
        }
        uint32_t to = mx_gmachine_step(w->m, from, x->byte);
        if (to == MX_CONFIG_NONE)
            return false;
        if (to == MX_CONFIG_DEAD) {
            i = x->skip;
            continue;
        }
        at[x->depth] = to;
        chars[x->depth] = chars_after(w, x, chars[x->depth - 1]);
        set_range(t, w->bits, x->first, t->nodes[i + 1].first);
        if (mx_gmachine_full(w->m))
            mx_gmachine_collect(w->m, at, x->depth + 1);
        i++;
    }
    return true;
}

/* True when no character of text may follow a chain of `n`: what is longer is not allowed. */
static bool chain_is_all(struct mx_gmachine *m, uint32_t config, uint64_t stops, int n)
{
    while (n-- > 0)
        config = m->configs[config].text_next;
    for (int b = 0; b < 256; b++) {
        bool text = b < 0x80 ? !(UINT64_C(1) << mx_token_class((uint8_t)b) & stops) : b > 0xc1;
        if (text && mx_gmachine_step(m, config, (uint8_t)b) != MX_CONFIG_DEAD)
            return false;
    }
    return true;
}

/* Sets what is text at the root; the rest is walked, in the smaller trie where that holds it. */
static bool start_with_text(struct walk *w, uint32_t config)
{
    const struct mx_token_table *t = w->k->table;
    w->stops = w->m->configs[config].text_stops;
    w->chain = chain_length(w->m, config, w->stops, ENDLESS - 1);
    if (w->chain >= t->max_depth)
        w->chain = ENDLESS;
    w->k->chars[0] = 0;
    if (w->stops == mx_token_json_stops() &&
        (w->chain == ENDLESS || chain_is_all(w->m, config, w->stops, w->chain)))
        w->trie = &t->marked;
    return set_text(w->k, w->bits, w->stops, w->chain);
}

/* True when a special token that the grammar does not name may come: in free text. */
static bool reads_any_special(const struct mx_gmachine *m, uint32_t config)
{
    const struct mx_gconfig *c = &m->configs[config];
    for (uint32_t i = 0; i < c->n; i++)
        if (m->prog->states[c->elems[i].state].free)
            return true;
    return false;
}

static bool set_specials(struct mx_gmasks *k, struct mx_gmachine *m, uint32_t config,
                         uint64_t *bits)
{
    const struct mx_token_table *t = k->table;
    if (!m->configs[config].special)
        return true;
    bool any = reads_any_special(m, config);
    for (int i = 0; i < t->n_specials; i++) {
        if (!any && k->special[i] < 0)
            continue;
        uint32_t to =
            mx_gmachine_special(m, config, k->special[i], t->specials[i].text, t->specials[i].len);
        if (to == MX_CONFIG_NONE)
            return false;
        if (to != MX_CONFIG_DEAD)
            set_bit(bits, t->specials[i].id);
    }
    return true;
}

/* Free text that allows all tokens there are. */
static bool allows_all(const struct mx_gmasks *k, const struct mx_gmachine *m, uint32_t config,
                       const uint64_t *bits)
{
    if (!m->configs[config].may_end || !m->configs[config].special)
        return false;
    return memcmp(bits, k->table->known, (size_t)k->table->words * sizeof *bits) == 0;
}

static bool compute(struct mx_gmasks *k, struct mx_gmachine *m, uint32_t config,
                    struct mx_gmask *mask)
{
    const struct mx_token_table *t = k->table;
    struct walk w = {.k = k, .m = m, .trie = &t->all, .bits = mask->bits, .stops = UINT64_MAX};
    memset(mask->bits, 0, (size_t)t->words * sizeof *mask->bits);
    k->walk[0] = config;
    k->chars[0] = UNCLEAN;
    if (mx_gmachine_text(m, config) && !start_with_text(&w, config))
        return false;
    if (!walk_trie(&w) || !set_specials(k, m, config, mask->bits))
        return false;
    mask->all = allows_all(k, m, config, mask->bits);
    if (m->configs[config].may_end)
        for (int i = 0; i < t->n_stops; i++)
            if (t->stops[i] >= 0 && t->stops[i] < t->vocab)
                set_bit(mask->bits, t->stops[i]);
    return true;
}

/* ---- Cache ---- */

static void unlink_mask(struct mx_gmasks *k, struct mx_gmask *x)
{
    if (x->newer)
        x->newer->older = x->older;
    else
        k->newest = x->older;
    if (x->older)
        x->older->newer = x->newer;
    else
        k->oldest = x->newer;
    k->n--;
}

static void link_newest(struct mx_gmasks *k, struct mx_gmask *x)
{
    x->newer = NULL;
    x->older = k->newest;
    if (k->newest)
        k->newest->newer = x;
    else
        k->oldest = x;
    k->newest = x;
    k->n++;
}

/* A mask to fill: a fresh one, or the least recently used that nobody holds. */
static struct mx_gmask *take_mask(struct mx_gmasks *k, struct mx_gmachine *m)
{
    struct mx_gmask *x = k->n >= k->max ? k->oldest : NULL;
    while (x && x->pins)
        x = x->newer;
    if (!x)
        return malloc(sizeof *x + (size_t)k->table->words * sizeof *x->bits);
    unlink_mask(k, x);
    m->configs[x->config].mask = NULL;
    return x;
}

/* Collects, and where the masks hold too much for that to help, drops those that nobody holds. */
static void make_room(struct mx_gmasks *k, struct mx_gmachine *m, uint32_t config)
{
    mx_gmachine_collect(m, &config, 1);
    if (!mx_gmachine_crowded(m))
        return;
    for (struct mx_gmask *x = k->oldest, *newer; x; x = newer) {
        newer = x->newer;
        if (x->pins)
            continue;
        unlink_mask(k, x);
        m->configs[x->config].mask = NULL;
        free(x);
    }
    mx_gmachine_collect(m, &config, 1);
}

struct mx_gmask *mx_gmasks_get(struct mx_gmasks *k, struct mx_gmachine *m, uint32_t config)
{
    m->credit = m->credit < MX_GX_CREDIT - CREDIT ? m->credit + CREDIT : MX_GX_CREDIT;
    if (mx_gmachine_full(m))
        make_room(k, m, config);
    config = mx_gmachine_clip(m, config,
                              MX_REACH > k->table->max_depth ? MX_REACH : k->table->max_depth);
    if (config == MX_CONFIG_NONE)
        return NULL;
    struct mx_gmask *x = m->configs[config].mask;
    if (x) {
        unlink_mask(k, x);
    } else {
        x = take_mask(k, m);
        if (!x)
            return NULL;
        *x = (struct mx_gmask){.config = config};
        if (!compute(k, m, config, x)) {
            free(x);
            return NULL;
        }
        m->configs[config].mask = x;
    }
    x->pins++;
    link_newest(k, x);
    return x;
}

void mx_gmask_unpin(struct mx_gmask *mask)
{
    if (mask)
        mask->pins--;
}

/* ---- Tokens ---- */

static int find_special(const struct mx_token_table *t, int32_t id)
{
    int lo = 0, hi = t->n_specials;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (t->specials[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < t->n_specials && t->specials[lo].id == id ? lo : -1;
}

uint32_t mx_gmasks_token(const struct mx_gmasks *k, struct mx_gmachine *m, uint32_t config,
                         int32_t token)
{
    const struct mx_token_table *t = k->table;
    if (token < 0 || token >= t->vocab)
        return MX_CONFIG_DEAD;
    if (!(t->known[token / 64] >> (token % 64) & 1)) /* free text does not mind */
        return m->configs[config].mask && m->configs[config].mask->all ? config : MX_CONFIG_DEAD;
    int special = find_special(t, token);
    if (special >= 0)
        return mx_gmachine_special(m, config, k->special[special], t->specials[special].text,
                                   t->specials[special].len);
    size_t len;
    const uint8_t *s = (const uint8_t *)mx_tokenizer_bytes(t->tokenizer, token, &len);
    for (size_t i = 0; i < len && config > MX_CONFIG_DEAD; i++)
        config = mx_gmachine_step(m, config, s[i]);
    return config;
}

/* ---- Life ---- */

static int masks_most(int words)
{
    size_t n = MASK_BYTES / ((size_t)words * sizeof(uint64_t));
    return n < MASKS_MIN ? MASKS_MIN : n > MASKS_MAX ? MASKS_MAX : (int)n;
}

uint64_t mx_grammar_bytes_most(int vocab)
{
    int words = (vocab + 63) / 64;
    return MX_GX_MACHINE + (uint64_t)masks_most(words) *
                               (sizeof(struct mx_gmask) + (size_t)words * sizeof(uint64_t));
}

bool mx_gmasks_init(struct mx_gmasks *k, const struct mx_gprog *p, const struct mx_token_table *t)
{
    *k = (struct mx_gmasks){.table = t, .birth = t->birth};
    k->max = masks_most(t->words);
    k->special = malloc(((size_t)t->n_specials + 1) * sizeof *k->special);
    k->walk = calloc((size_t)t->max_depth + 2, sizeof *k->walk);
    k->chars = calloc((size_t)t->max_depth + 2, sizeof *k->chars);
    if (!k->special || !k->walk || !k->chars)
        return false;
    for (int i = 0; i < t->n_specials; i++) {
        const struct mx_tspecial *s = &t->specials[i];
        k->special[i] = -1;
        for (int j = p->n_specials; j-- > 0;)
            if (strlen(p->specials[j]) == s->len && memcmp(p->specials[j], s->text, s->len) == 0)
                k->special[i] = j;
    }
    return true;
}

void mx_gmasks_free(struct mx_gmasks *k, struct mx_gmachine *m)
{
    for (struct mx_gmask *x = k->newest, *older; x; x = older) {
        older = x->older;
        m->configs[x->config].mask = NULL;
        free(x);
    }
    for (size_t i = 0; i < sizeof k->bases / sizeof *k->bases; i++)
        free(k->bases[i].bits);
    free(k->special);
    free(k->walk);
    free(k->chars);
    *k = (struct mx_gmasks){0};
}
