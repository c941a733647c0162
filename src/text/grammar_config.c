/* The machine: configurations and their steps, found lazily and kept.
 *
 * A configuration is the set of all stacks a text may have led to. Stacks share their lower frames;
 * frames, stacks and configurations are hash-consed, so equal ones have equal ids and a step is one
 * look into a table once it was taken before.
 *
 *   1. A configuration holds at most OUT_MAX stacks. Of an ambiguous grammar that has more the rest
 *      is dropped: what is then accepted is still in the grammar, and every stack that is kept can
 *      be completed on its own. The choice depends on the configuration and the byte only, so masks
 *      and matchers agree.
 *   2. A state is entered only when its height fits into the frames that are left.
 *   3. A counted repetition is a frame whose count is the number of rounds done. Without an upper
 *      bound it stops counting at the lower one.
 *   4. Ids stay valid until mx_gmachine_collect(), which keeps what is pinned or has a mask. */
#include "text/grammar_int.h"

#include <stdlib.h>
#include <string.h>

enum {
    OUT_MAX = 1024,
    STEPS_MAX = 1 << 16, /* of one closure */
    CONFIG_SLOTS = 1 << 12,
    NODE_SLOTS = 1 << 14,
    CONFIGS_MAX = 1 << 13,
    NODES_MAX = 1 << 16,
};
#define CALL_FRAME UINT32_MAX /* count of a frame that is no repetition */

/* ---- Memory ---- */

static bool grow(struct mx_gmachine *m, void **v, uint32_t *cap, uint32_t need, size_t size)
{
    if (need <= *cap)
        return true;
    uint32_t n = *cap ? 2 * *cap : 64;
    void *w = need > UINT32_MAX / 4 ? NULL : realloc(*v, n * size);
    if (!w) {
        m->nomem = true;
        return false;
    }
    *v = w;
    *cap = n;
    return true;
}

static uint32_t mix(uint32_t h, uint32_t v)
{
    h = (h ^ v) * 0x9e3779b1u;
    return h ^ h >> 15;
}

/* ---- Frames ---- */

static uint32_t push(struct mx_gmachine *m, uint32_t state, uint32_t count, uint32_t parent)
{
    uint32_t slot = mix(mix(mix(7, state), count), parent) % NODE_SLOTS;
    for (uint32_t i = m->node_slots[slot]; i; i = m->nodes[i].next)
        if (m->nodes[i].state == state && m->nodes[i].count == count &&
            m->nodes[i].parent == parent)
            return i;
    uint32_t id = m->free_node;
    if (id) {
        m->free_node = m->nodes[id].next;
    } else {
        if (!grow(m, (void **)&m->nodes, &m->cap_nodes, m->n_nodes + 1, sizeof *m->nodes))
            return 0;
        id = m->n_nodes++;
    }
    m->nodes[id] = (struct mx_gnode){.state = state,
                                     .count = count,
                                     .parent = parent,
                                     .next = m->node_slots[slot],
                                     .depth = (uint16_t)(m->nodes[parent].depth + 1),
                                     .used = 1};
    m->node_slots[slot] = id;
    m->live_nodes++;
    return id;
}

/* ---- Closure ---- */

static uint32_t elem_hash(struct mx_gelem e)
{
    return mix(mix(3, e.state), e.node);
}

static void rehash(struct mx_gmachine *m)
{
    uint32_t cap = m->seen_cap ? 2 * m->seen_cap : 256;
    uint32_t *seen = calloc(cap, sizeof *seen);
    if (!seen) {
        m->nomem = true;
        return;
    }
    for (uint32_t i = 0; i < m->n_met; i++) {
        uint32_t at = elem_hash(m->met[i]) & (cap - 1);
        while (seen[at])
            at = (at + 1) & (cap - 1);
        seen[at] = i + 1;
    }
    free(m->seen);
    m->seen = seen;
    m->seen_cap = cap;
}

static void enter(struct mx_gmachine *m, uint32_t state, uint32_t node)
{
    const struct mx_gstate *s = &m->prog->states[state];
    if (s->height == MX_HEIGHT_NONE || m->nodes[node].depth + s->height > MX_GX_STACK || m->nomem)
        return;
    if (2 * (m->n_met + 1) > m->seen_cap) {
        rehash(m);
        if (m->nomem)
            return;
    }
    struct mx_gelem e = {state, node};
    uint32_t at = elem_hash(e) & (m->seen_cap - 1);
    for (; m->seen[at]; at = (at + 1) & (m->seen_cap - 1)) {
        const struct mx_gelem *o = &m->met[m->seen[at] - 1];
        if (o->state == state && o->node == node)
            return;
    }
    if (!grow(m, (void **)&m->met, &m->cap_met, m->n_met + 1, sizeof *m->met) ||
        !grow(m, (void **)&m->stack, &m->cap_stack, m->n_stack + 1, sizeof *m->stack))
        return;
    m->met[m->n_met] = e;
    m->seen[at] = ++m->n_met;
    m->stack[m->n_stack++] = m->n_met - 1;
}

/* One more round of repetition `state` is done; `count` before it. */
static void repeat(struct mx_gmachine *m, uint32_t state, uint32_t count, uint32_t parent)
{
    const struct mx_grep *r = &m->prog->reps[m->prog->states[state].a];
    uint32_t done = count + 1;
    if (done >= (uint32_t)r->min)
        enter(m, r->exit, parent);
    if (r->max < 0 && done > (uint32_t)r->min)
        done = (uint32_t)r->min;
    if (r->max < 0 || done < (uint32_t)r->max)
        enter(m, r->body, push(m, state, done, parent));
}

static void look_at(struct mx_gmachine *m, struct mx_gelem e)
{
    const struct mx_gprog *p = m->prog;
    const struct mx_gstate *s = &p->states[e.state];
    switch (s->kind) {
    case MX_ST_SPLIT:
        for (uint32_t i = s->b; i-- > 0;)
            enter(m, p->targets[s->a + i], e.node);
        break;
    case MX_ST_CALL:
        enter(m, s->a,
              p->states[s->b].kind == MX_ST_RET ? e.node : push(m, s->b, CALL_FRAME, e.node));
        break;
    case MX_ST_REP:
        if (p->reps[s->a].min == 0)
            enter(m, p->reps[s->a].exit, e.node);
        enter(m, p->reps[s->a].body, push(m, e.state, 0, e.node));
        break;
    case MX_ST_RET:
        if (e.node == 0) {
            m->out_may_end = true;
        } else {
            struct mx_gnode top = m->nodes[e.node];
            if (top.count == CALL_FRAME)
                enter(m, top.state, top.parent);
            else
                repeat(m, top.state, top.count, top.parent);
        }
        break;
    case MX_ST_BYTES:
    case MX_ST_SPECIAL: m->out[m->n_out++] = e; break;
    default: break;
    }
}

/* Depth first, so that something that reads is found soon even if the closure is cut short. */
static void close_over(struct mx_gmachine *m)
{
    uint32_t steps = 0;
    while (m->n_stack > 0 && m->n_out < OUT_MAX && !m->nomem) {
        if (++steps > STEPS_MAX && (m->n_out > 0 || m->out_may_end))
            break;
        look_at(m, m->met[m->stack[--m->n_stack]]);
    }
}

static void begin(struct mx_gmachine *m)
{
    if (m->n_met > 64) {
        memset(m->seen, 0, m->seen_cap * sizeof *m->seen);
    } else {
        for (uint32_t i = 0; i < m->n_met; i++) {
            uint32_t at = elem_hash(m->met[i]) & (m->seen_cap - 1);
            while (m->seen[at]) {
                m->seen[at] = 0;
                at = (at + 1) & (m->seen_cap - 1);
            }
        }
    }
    m->n_met = m->n_stack = m->n_out = 0;
    m->out_may_end = false;
    m->nomem = false;
}

/* ---- Configurations ---- */

static int by_state(const void *a, const void *b)
{
    const struct mx_gelem *x = a, *y = b;
    if (x->state != y->state)
        return x->state < y->state ? -1 : 1;
    return (x->node > y->node) - (x->node < y->node);
}

static bool reads_special(const struct mx_gprog *p, const struct mx_gelem *v, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (p->states[v[i].state].kind == MX_ST_SPECIAL || p->states[v[i].state].free)
            return true;
    return false;
}

static size_t config_bytes(const struct mx_gmachine *m, uint32_t n)
{
    return n * sizeof(struct mx_gelem) + (size_t)m->prog->n_classes * sizeof(uint32_t);
}

static uint32_t new_config(struct mx_gmachine *m, const struct mx_gelem *v, uint32_t n)
{
    char *memory = calloc(1, config_bytes(m, n));
    uint32_t id = m->free_config;
    if (!memory) {
        m->nomem = true;
        return MX_CONFIG_NONE;
    }
    if (id) {
        m->free_config = m->configs[id].next;
    } else {
        if (!grow(m, (void **)&m->configs, &m->cap_configs, m->n_configs + 1, sizeof *m->configs)) {
            free(memory);
            return MX_CONFIG_NONE;
        }
        id = m->n_configs++;
    }
    struct mx_gconfig *c = &m->configs[id];
    *c = (struct mx_gconfig){.elems = (void *)memory, .n = n, .used = 1};
    if (n)
        memcpy(c->elems, v, n * sizeof *v);
    c->trans = (void *)(memory + n * sizeof *v);
    c->special = reads_special(m->prog, v, n);
    m->live_configs++;
    m->live_bytes += config_bytes(m, n);
    return id;
}

static uint32_t intern(struct mx_gmachine *m, struct mx_gelem *v, uint32_t n, bool may_end)
{
    if (m->nomem)
        return MX_CONFIG_NONE;
    if (n == 0 && !may_end)
        return MX_CONFIG_DEAD;
    if (n > 1)
        qsort(v, n, sizeof *v, by_state);
    uint32_t hash = may_end;
    for (uint32_t i = 0; i < n; i++)
        hash = mix(mix(hash, v[i].state), v[i].node);
    uint32_t slot = hash % CONFIG_SLOTS;
    for (uint32_t i = m->config_slots[slot]; i; i = m->configs[i].next) {
        const struct mx_gconfig *c = &m->configs[i];
        if (c->hash == hash && c->n == n && c->may_end == may_end &&
            (n == 0 || memcmp(c->elems, v, n * sizeof *v) == 0))
            return i;
    }
    uint32_t id = new_config(m, v, n);
    if (id == MX_CONFIG_NONE)
        return id;
    m->configs[id].hash = hash;
    m->configs[id].may_end = may_end;
    m->configs[id].next = m->config_slots[slot];
    m->config_slots[slot] = id;
    return id;
}

static uint32_t finish(struct mx_gmachine *m)
{
    close_over(m);
    m->credit -= 16 + (int64_t)m->n_met + m->n_out;
    return intern(m, m->out, m->n_out, m->out_may_end);
}

uint32_t mx_gmachine_step_slow(struct mx_gmachine *m, uint32_t config, int byte_class)
{
    const struct mx_gprog *p = m->prog;
    const struct mx_gconfig *c = &m->configs[config];
    uint8_t byte = p->class_byte[byte_class];
    begin(m);
    for (uint32_t i = c->n; i-- > 0;) {
        const struct mx_gstate *s = &p->states[c->elems[i].state];
        if (s->kind != MX_ST_BYTES)
            continue;
        for (uint32_t k = s->b; k-- > 0;) {
            const struct mx_gedge *e = &p->edges[s->a + k];
            if (byte >= e->lo && byte <= e->hi)
                enter(m, e->to, c->elems[i].node);
        }
    }
    uint32_t to = finish(m);
    m->configs[config].trans[byte_class] = to;
    return to;
}

/* Where free text goes when a special token's text passes through its search. */
static uint32_t free_after(const struct mx_gprog *p, uint32_t state, const char *text, size_t len)
{
    const struct mx_gfree *f = &p->frees[p->states[state].free - 1];
    for (size_t i = 0; i < len; i++) {
        const struct mx_gstate *s = &p->states[state];
        uint32_t to = f->state0;
        for (uint32_t k = s->a; k < s->a + s->b; k++)
            if ((uint8_t)text[i] >= p->edges[k].lo && (uint8_t)text[i] <= p->edges[k].hi)
                to = p->edges[k].to;
        if (to < f->state0 || to >= f->state0 + f->n) /* the marker is complete */
            return i + 1 == len ? to : f->state0;
        state = to + f->n;
    }
    return state - f->n;
}

uint32_t mx_gmachine_special(struct mx_gmachine *m, uint32_t config, int special, const char *text,
                             size_t len)
{
    const struct mx_gprog *p = m->prog;
    const struct mx_gconfig *c = &m->configs[config];
    if (!c->special)
        return MX_CONFIG_DEAD;
    begin(m);
    for (uint32_t i = c->n; i-- > 0;) {
        const struct mx_gstate *s = &p->states[c->elems[i].state];
        if (s->free)
            enter(m, free_after(p, c->elems[i].state, text, len), c->elems[i].node);
        else if (s->kind == MX_ST_SPECIAL && (int)s->a == special)
            enter(m, s->b, c->elems[i].node);
    }
    return finish(m);
}

uint32_t mx_gmachine_force(struct mx_gmachine *m, uint32_t config)
{
    const struct mx_gprog *p = m->prog;
    const struct mx_gconfig *c = &m->configs[config];
    const struct mx_gfree *f = &p->frees[p->prelude_free];
    begin(m);
    for (uint32_t i = c->n; i-- > 0;) {
        uint32_t s = c->elems[i].state;
        if (p->states[s].free == p->prelude_free + 1)
            s = f->forced0 - (s - f->state0 - f->n);
        enter(m, s, c->elems[i].node);
    }
    return finish(m);
}

/* ---- Counters ---- */

static uint32_t clip_count(const struct mx_grep *r, uint32_t count, int reach)
{
    uint32_t min = (uint32_t)r->min, max = (uint32_t)r->max, k = (uint32_t)reach;
    if (r->max >= 0 && (max - count <= k || count >= max))
        return count;
    if (count < min)
        return min - count > k && min > k ? 0 : count;
    return min;
}

static uint32_t clip_node(struct mx_gmachine *m, uint32_t node, int reach)
{
    if (node == 0 || m->nomem)
        return 0;
    struct mx_gnode n = m->nodes[node];
    uint32_t parent = clip_node(m, n.parent, reach);
    if (n.count != CALL_FRAME)
        n.count = clip_count(&m->prog->reps[m->prog->states[n.state].a], n.count, reach);
    if (parent == n.parent && n.count == m->nodes[node].count)
        return node;
    return push(m, n.state, n.count, parent);
}

uint32_t mx_gmachine_clip(struct mx_gmachine *m, uint32_t config, int reach)
{
    if (m->prog->n_reps == 0)
        return config;
    const struct mx_gconfig *c = &m->configs[config];
    bool same = true;
    m->nomem = false;
    for (uint32_t i = 0; i < c->n; i++) {
        m->out[i] = (struct mx_gelem){c->elems[i].state, clip_node(m, c->elems[i].node, reach)};
        same = same && m->out[i].node == c->elems[i].node;
    }
    if (same)
        return config;
    uint32_t n = c->n;
    bool may_end = c->may_end;
    qsort(m->out, n, sizeof *m->out, by_state);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (kept == 0 || by_state(&m->out[kept - 1], &m->out[i]) != 0)
            m->out[kept++] = m->out[i];
    return intern(m, m->out, kept, may_end);
}

/* ---- Collection ---- */

bool mx_gmachine_full(const struct mx_gmachine *m)
{
    return m->live_configs > CONFIGS_MAX || m->live_nodes > NODES_MAX ||
           m->live_bytes > MX_GX_MACHINE;
}

bool mx_gmachine_crowded(const struct mx_gmachine *m)
{
    return m->live_configs > CONFIGS_MAX / 2 || m->live_nodes > NODES_MAX / 2 ||
           m->live_bytes > MX_GX_MACHINE / 2;
}

static void mark_nodes(struct mx_gmachine *m, const struct mx_gconfig *c)
{
    for (uint32_t i = 0; i < c->n; i++)
        for (uint32_t n = c->elems[i].node; n && !m->nodes[n].mark; n = m->nodes[n].parent)
            m->nodes[n].mark = 1;
}

static void sweep_configs(struct mx_gmachine *m)
{
    memset(m->config_slots, 0, CONFIG_SLOTS * sizeof *m->config_slots);
    m->free_config = 0;
    m->live_configs = 0;
    m->live_bytes = 0;
    for (uint32_t i = MX_CONFIG_DEAD + 1; i < m->n_configs; i++) {
        struct mx_gconfig *c = &m->configs[i];
        if (c->used && !c->mark && !c->pins && !c->mask) {
            free(c->elems);
            *c = (struct mx_gconfig){0};
        }
        if (!c->used) {
            c->next = m->free_config;
            m->free_config = i;
            continue;
        }
        c->mark = 0;
        c->text = 0;
        memset(c->trans, 0, (size_t)m->prog->n_classes * sizeof *c->trans);
        c->next = m->config_slots[c->hash % CONFIG_SLOTS];
        m->config_slots[c->hash % CONFIG_SLOTS] = i;
        m->live_configs++;
        m->live_bytes += config_bytes(m, c->n);
        mark_nodes(m, c);
    }
}

static void sweep_nodes(struct mx_gmachine *m)
{
    memset(m->node_slots, 0, NODE_SLOTS * sizeof *m->node_slots);
    m->free_node = 0;
    m->live_nodes = 0;
    for (uint32_t i = 1; i < m->n_nodes; i++) {
        struct mx_gnode *n = &m->nodes[i];
        if (!n->mark) {
            *n = (struct mx_gnode){.next = m->free_node};
            m->free_node = i;
            continue;
        }
        uint32_t slot = mix(mix(mix(7, n->state), n->count), n->parent) % NODE_SLOTS;
        n->mark = 0;
        n->next = m->node_slots[slot];
        m->node_slots[slot] = i;
        m->live_nodes++;
    }
}

void mx_gmachine_collect(struct mx_gmachine *m, const uint32_t *roots, int n_roots)
{
    for (int i = 0; i < n_roots; i++)
        m->configs[roots[i]].mark = 1;
    m->configs[m->start].mark = 1;
    m->credit -= (int64_t)m->n_configs + m->n_nodes;
    sweep_configs(m);
    sweep_nodes(m);
}

/* ---- Text ---- */

/* True when every way to end a character with `left` continuation bytes, the next of which is in
 * lo..hi, leads from `config` to `to`. */
static bool tails_lead(struct mx_gmachine *m, uint32_t config, int left, int lo, int hi,
                       uint32_t to)
{
    for (int b = lo; b <= hi; b++) {
        if (b > lo && m->prog->classes[b] == m->prog->classes[b - 1])
            continue;
        uint32_t next = mx_gmachine_step(m, config, (uint8_t)b);
        if (left == 1 ? next != to
                      : next <= MX_CONFIG_DEAD || !tails_lead(m, next, left - 1, 0x80, 0xbf, to))
            return false;
    }
    return true;
}

static bool any_character_leads(struct mx_gmachine *m, uint32_t config, uint32_t to)
{
    for (int b = 0xc2; b <= 0xf4; b++) {
        bool narrow = b == 0xe0 || b == 0xed || b == 0xf0 || b == 0xf4;
        if (b > 0xc2 && m->prog->classes[b] == m->prog->classes[b - 1] && !narrow && b != 0xe1 &&
            b != 0xee && b != 0xf1)
            continue;
        int left = b < 0xe0 ? 1 : b < 0xf0 ? 2 : 3;
        int lo = b == 0xe0 ? 0xa0 : b == 0xf0 ? 0x90 : 0x80;
        int hi = b == 0xed ? 0x9f : b == 0xf4 ? 0x8f : 0xbf;
        uint32_t next = mx_gmachine_step(m, config, (uint8_t)b);
        if (next <= MX_CONFIG_DEAD || !tails_lead(m, next, left, lo, hi, to))
            return false;
    }
    return true;
}

bool mx_gmachine_text(struct mx_gmachine *m, uint32_t config)
{
    if (m->configs[config].text)
        return m->configs[config].text == 2;
    uint32_t a = mx_gmachine_step(m, config, 'a'), e = mx_gmachine_step(m, config, 'e');
    uint32_t to = a == e ? a : mx_gmachine_step(m, config, 't');
    uint64_t stops = 0;
    bool text = to > MX_CONFIG_DEAD;
    for (int b = 0; b < 0x80 && text; b++)
        if (mx_gmachine_step(m, config, (uint8_t)b) != to)
            stops |= UINT64_C(1) << mx_token_class((uint8_t)b);
    if (text && !any_character_leads(m, config, to))
        stops |= UINT64_C(1) << 63;
    struct mx_gconfig *c = &m->configs[config];
    c->text = text ? 2 : 1;
    c->text_stops = stops;
    c->text_next = to;
    return text;
}

/* ---- Life ---- */

bool mx_gmachine_init(struct mx_gmachine *m, const struct mx_gprog *p)
{
    *m = (struct mx_gmachine){.prog = p, .credit = MX_GX_CREDIT};
    m->config_slots = calloc(CONFIG_SLOTS, sizeof *m->config_slots);
    m->node_slots = calloc(NODE_SLOTS, sizeof *m->node_slots);
    m->out = calloc(OUT_MAX, sizeof *m->out);
    if (!m->config_slots || !m->node_slots || !m->out ||
        !grow(m, (void **)&m->nodes, &m->cap_nodes, 1, sizeof *m->nodes) ||
        !grow(m, (void **)&m->configs, &m->cap_configs, 1, sizeof *m->configs))
        return false;
    rehash(m);
    m->nodes[0] = (struct mx_gnode){.used = 1};
    m->n_nodes = 1;
    m->configs[MX_CONFIG_NONE] = (struct mx_gconfig){0};
    m->n_configs = 1;
    if (m->nomem || new_config(m, m->out, 0) != MX_CONFIG_DEAD)
        return false;
    for (int i = 0; i < p->n_classes; i++)
        m->configs[MX_CONFIG_DEAD].trans[i] = MX_CONFIG_DEAD;
    begin(m);
    enter(m, p->start, 0);
    m->start = finish(m);
    return m->start != MX_CONFIG_NONE;
}

void mx_gmachine_free(struct mx_gmachine *m)
{
    for (uint32_t i = 0; i < m->n_configs; i++)
        free(m->configs[i].elems);
    free(m->configs);
    free(m->nodes);
    free(m->config_slots);
    free(m->node_slots);
    free(m->met);
    free(m->stack);
    free(m->out);
    free(m->seen);
    *m = (struct mx_gmachine){0};
}
