/* Compiles expressions into the states of a byte machine with a stack.
 *
 * An expression is emitted with the state that follows it, from the end to the start, so every
 * target is known when it is written down; rules are emitted once and called.
 *
 *   1. Sets of code points become ranges of bytes; the states for continuation bytes are shared.
 *   2. Alternatives that are all literals (enumerations) become one trie.
 *   3. Short repetitions are written out, long ones count in a stack frame.
 *   4. A rule that can reach itself without reading a byte is refused: the machine's closure would
 *      not end.
 *   5. The height of a state is the smallest number of frames with which its rule can be completed;
 *      states that cannot be completed at all have none and are never entered. */
#include "text/grammar_int.h"

#include <stdlib.h>
#include <string.h>

enum {
    WRITTEN_OUT = 64, /* states that a bounded repetition may cost before it counts instead */
    CONT_CACHE = 64,  /* a power of two */
};

struct cont_slot {
    uint32_t target, state;
    int left;
};

struct compiler {
    struct mx_gbuild *b;
    struct mx_gprog *p;
    mtplx_error *err;
    mtplx_status status;
    uint32_t ret, dead;
    uint32_t *rule_start; /* placeholder SPLIT of each rule */
    int *queue;           /* rules met; emitted in this order */
    bool *queued;
    int n_queue;
    int8_t *nullable; /* of rules: 0, 1; -1 not known */
    struct cont_slot cont[CONT_CACHE];
};

/* ---- Growing arrays ---- */

static bool grow(struct compiler *c, void **v, uint32_t *cap, uint32_t need, size_t size)
{
    if (need <= *cap)
        return true;
    if (c->status)
        return false;
    if (need > MX_GX_STATES) {
        c->status = mx_error(c->err, MTPLX_ERR_LIMIT,
                             "the grammar is too large: more than %d states; make it smaller",
                             MX_GX_STATES);
        return false;
    }
    uint32_t n = *cap ? 2 * *cap : 64;
    while (n < need)
        n *= 2;
    void *w = realloc(*v, n * size);
    if (!w) {
        c->status = mx_error_nomem(c->err, "a grammar", n * size);
        return false;
    }
    *v = w;
    *cap = n;
    return true;
}

static uint32_t new_state(struct compiler *c, enum mx_gstate_kind kind, uint32_t a, uint32_t b)
{
    struct mx_gprog *p = c->p;
    if (!grow(c, (void **)&p->states, &p->cap_states, p->n_states + 1, sizeof *p->states))
        return 0;
    p->states[p->n_states] =
        (struct mx_gstate){.kind = (uint8_t)kind, .height = MX_HEIGHT_NONE, .a = a, .b = b};
    return p->n_states++;
}

/* Edges of a state are written in one go, right after new_state(). */
static void add_edge(struct compiler *c, uint32_t state, uint8_t lo, uint8_t hi, uint32_t to)
{
    struct mx_gprog *p = c->p;
    if (!grow(c, (void **)&p->edges, &p->cap_edges, p->n_edges + 1, sizeof *p->edges))
        return;
    p->edges[p->n_edges++] = (struct mx_gedge){lo, hi, to};
    p->states[state].b++;
}

static uint32_t new_bytes(struct compiler *c)
{
    return new_state(c, MX_ST_BYTES, c->p->n_edges, 0);
}

static uint32_t new_byte(struct compiler *c, uint8_t byte, uint32_t to)
{
    uint32_t s = new_bytes(c);
    add_edge(c, s, byte, byte, to);
    return s;
}

static uint32_t new_targets(struct compiler *c, uint32_t n)
{
    struct mx_gprog *p = c->p;
    if (!grow(c, (void **)&p->targets, &p->cap_targets, p->n_targets + n, sizeof *p->targets))
        return 0;
    uint32_t at = p->n_targets;
    memset(p->targets + at, 0, n * sizeof *p->targets);
    p->n_targets += n;
    return at;
}

static uint32_t new_split(struct compiler *c, uint32_t x, uint32_t y)
{
    uint32_t at = new_targets(c, 2);
    if (c->status)
        return 0;
    c->p->targets[at] = x;
    c->p->targets[at + 1] = y;
    return new_state(c, MX_ST_SPLIT, at, 2);
}

/* ---- Code points ---- */

/* The state that reads `left` continuation bytes of any value and goes on to `target`. */
static uint32_t continuation(struct compiler *c, int left, uint32_t target)
{
    if (left == 0)
        return target;
    struct cont_slot *s = &c->cont[(target * 3 + (uint32_t)left) % CONT_CACHE];
    if (s->left == left && s->target == target)
        return s->state;
    uint32_t to = continuation(c, left - 1, target);
    uint32_t state = new_bytes(c);
    add_edge(c, state, 0x80, 0xbf, to);
    *s = (struct cont_slot){target, state, left};
    return state;
}

/* The state that reads `left` continuation bytes whose bits are lo..hi. */
static uint32_t continuation_range(struct compiler *c, int left, uint32_t lo, uint32_t hi,
                                   uint32_t target)
{
    uint32_t full = (1u << (6 * left)) - 1;
    if (left == 0 || (lo == 0 && hi == full))
        return continuation(c, left, target);
    int shift = 6 * (left - 1);
    uint32_t mask = (1u << shift) - 1;
    uint32_t a = lo >> shift, z = hi >> shift, to[3];
    uint8_t from[3], upto[3];
    int n = 0;
    if (a == z) {
        to[n] = continuation_range(c, left - 1, lo & mask, hi & mask, target);
        from[n] = upto[n] = (uint8_t)(0x80 | a);
        n++;
    } else {
        if ((lo & mask) != 0) {
            to[n] = continuation_range(c, left - 1, lo & mask, mask, target);
            from[n] = upto[n] = (uint8_t)(0x80 | a++);
            n++;
        }
        uint32_t last = (hi & mask) != mask ? z - 1 : z;
        if (a <= last && last != UINT32_MAX) {
            to[n] = continuation(c, left - 1, target);
            from[n] = (uint8_t)(0x80 | a);
            upto[n] = (uint8_t)(0x80 | last);
            n++;
        }
        if (last != z) {
            to[n] = continuation_range(c, left - 1, 0, hi & mask, target);
            from[n] = upto[n] = (uint8_t)(0x80 | z);
            n++;
        }
    }
    uint32_t s = new_bytes(c);
    for (int i = 0; i < n; i++)
        add_edge(c, s, from[i], upto[i], to[i]);
    return s;
}

/* Edges of a state under construction; its targets are emitted before it. */
struct edge_list {
    struct mx_gedge *v;
    uint32_t n, cap;
};

static void list_edge(struct compiler *c, struct edge_list *l, uint32_t lo, uint32_t hi,
                      uint32_t to)
{
    if (grow(c, (void **)&l->v, &l->cap, l->n + 1, sizeof *l->v))
        l->v[l->n++] = (struct mx_gedge){(uint8_t)lo, (uint8_t)hi, to};
}

/* Code points lo..hi, all with `len` bytes and therefore `len - 1` continuation bytes. */
static void list_length(struct compiler *c, struct edge_list *l, int len, uint32_t lo, uint32_t hi,
                        uint32_t to)
{
    static const uint8_t lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    if (len == 1) {
        list_edge(c, l, lo, hi, to);
        return;
    }
    int left = len - 1, shift = 6 * left;
    uint32_t mask = (1u << shift) - 1;
    while (lo <= hi) {
        uint32_t top = lo >> shift, upto = lo | mask;
        if ((lo & mask) == 0 && (hi >> shift) > top) {
            uint32_t last = (hi & mask) == mask ? hi >> shift : (hi >> shift) - 1;
            list_edge(c, l, lead[len] | top, lead[len] | last, continuation(c, left, to));
            lo = (last + 1) << shift;
            continue;
        }
        upto = upto < hi ? upto : hi;
        list_edge(c, l, lead[len] | top, lead[len] | top,
                  continuation_range(c, left, lo & mask, upto & mask, to));
        lo = upto + 1;
    }
}

static void list_range(struct compiler *c, struct edge_list *l, uint32_t lo, uint32_t hi,
                       uint32_t to)
{
    static const struct mx_cprange parts[] = {
        {0, 0x7f}, {0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, MX_CP_MAX}};
    static const int length[] = {1, 2, 3, 3, 4};
    for (int i = 0; i < 5; i++) {
        uint32_t a = lo > parts[i].lo ? lo : parts[i].lo;
        uint32_t z = hi < parts[i].hi ? hi : parts[i].hi;
        if (a <= z)
            list_length(c, l, length[i], a, z, to);
    }
}

static uint32_t list_state(struct compiler *c, struct edge_list *l)
{
    uint32_t s = new_bytes(c);
    for (uint32_t i = 0; i < l->n; i++)
        add_edge(c, s, l->v[i].lo, l->v[i].hi, l->v[i].to);
    free(l->v);
    return s;
}

static uint32_t emit_chars(struct compiler *c, const struct mx_gexpr *x, uint32_t next)
{
    struct edge_list l = {0};
    for (int i = 0; i < x->n; i++)
        list_range(c, &l, x->u.ranges[i].lo, x->u.ranges[i].hi, next);
    return list_state(c, &l);
}

/* ---- Small machines ---- */

/* Each state of the machine gets a SPLIT as its entry, made first: edges run in circles. */
static uint32_t emit_auto(struct compiler *c, const struct mx_gauto *a, uint32_t next)
{
    uint32_t base = c->p->n_states;
    for (int i = 0; i < a->n_states; i++) {
        uint32_t at = new_targets(c, a->accept[i] ? 2 : 1);
        new_state(c, MX_ST_SPLIT, at, a->accept[i] ? 2 : 1);
    }
    struct edge_list *lists = calloc((size_t)a->n_states, sizeof *lists);
    if (!lists && !c->status)
        c->status = mx_error_nomem(c->err, "a grammar", (size_t)a->n_states * sizeof *lists);
    for (int i = 0; i < a->n_edges && !c->status; i++) {
        const struct mx_gauto_edge *e = &a->edges[i];
        list_range(c, &lists[e->from], e->lo, e->hi, base + (uint32_t)e->to);
    }
    for (int i = 0; i < a->n_states && lists; i++) {
        uint32_t s = list_state(c, &lists[i]);
        if (c->status)
            continue;
        uint32_t at = c->p->states[base + (uint32_t)i].a;
        c->p->targets[at] = s;
        if (a->accept[i])
            c->p->targets[at + 1] = next;
    }
    free(lists);
    return base;
}

/* ---- Alternatives ---- */

static int by_text(const void *a, const void *b)
{
    const struct mx_gexpr *x = *(struct mx_gexpr *const *)a, *y = *(struct mx_gexpr *const *)b;
    int n = x->n < y->n ? x->n : y->n;
    int d = memcmp(x->u.text, y->u.text, (size_t)n);
    return d ? d : (x->n > y->n) - (x->n < y->n);
}

static uint32_t emit_tail(struct compiler *c, const char *s, int n, uint32_t next)
{
    for (int i = n - 1; i >= 0 && !c->status; i--)
        next = new_byte(c, (uint8_t)s[i], next);
    return next;
}

/* Sorted literals v[0..n) from byte `at` on. */
static uint32_t emit_trie(struct compiler *c, struct mx_gexpr **v, int n, int at, int depth,
                          uint32_t next)
{
    if (depth > 4 * MX_GX_DEPTH && !c->status)
        c->status = mx_error(c->err, MTPLX_ERR_LIMIT,
                             "literals of the grammar share prefixes of too many lengths");
    if (c->status)
        return 0;
    int shared = at;
    while (shared < v[0]->n && shared < v[n - 1]->n &&
           v[0]->u.text[shared] == v[n - 1]->u.text[shared])
        shared++;
    bool ends = false;
    int i = 0;
    while (i < n && v[i]->n == shared) {
        ends = true;
        i++;
    }
    uint32_t state = next;
    if (i < n) {
        struct edge_list l = {0};
        while (i < n) {
            int from = i;
            uint8_t byte = (uint8_t)v[from]->u.text[shared];
            while (i < n && (uint8_t)v[i]->u.text[shared] == byte)
                i++;
            list_edge(c, &l, byte, byte,
                      emit_trie(c, v + from, i - from, shared + 1, depth + 1, next));
        }
        state = list_state(c, &l);
        if (ends)
            state = new_split(c, state, next);
    }
    return emit_tail(c, v[0]->u.text + at, shared - at, state);
}

static uint32_t emit(struct compiler *c, const struct mx_gexpr *x, uint32_t next);

static uint32_t emit_literals(struct compiler *c, const struct mx_gexpr *x, uint32_t next)
{
    struct mx_gexpr **v = malloc((size_t)x->n * sizeof *v);
    if (!v) {
        c->status = mx_error_nomem(c->err, "a grammar", (size_t)x->n * sizeof *v);
        return 0;
    }
    memcpy(v, x->u.kids, (size_t)x->n * sizeof *v);
    qsort(v, (size_t)x->n, sizeof *v, by_text);
    uint32_t s = emit_trie(c, v, x->n, 0, 0, next);
    free(v);
    return s;
}

static uint32_t emit_alt(struct compiler *c, const struct mx_gexpr *x, uint32_t next)
{
    bool literals = true;
    for (int i = 0; i < x->n; i++)
        literals = literals && x->u.kids[i]->kind == MX_GX_LIT;
    if (literals && x->n > 1)
        return emit_literals(c, x, next);
    uint32_t *to = malloc((size_t)x->n * sizeof *to);
    if (!to) {
        c->status = mx_error_nomem(c->err, "a grammar", (size_t)x->n * sizeof *to);
        return 0;
    }
    for (int i = 0; i < x->n; i++)
        to[i] = emit(c, x->u.kids[i], next);
    uint32_t at = new_targets(c, (uint32_t)x->n);
    if (!c->status)
        memcpy(c->p->targets + at, to, (size_t)x->n * sizeof *to);
    free(to);
    return new_state(c, MX_ST_SPLIT, at, (uint32_t)x->n);
}

/* ---- Repetitions ---- */

static bool nullable(struct compiler *c, const struct mx_gexpr *x)
{
    switch (x->kind) {
    case MX_GX_EMPTY: return true;
    case MX_GX_REP: return x->min == 0 || nullable(c, x->u.kids[0]);
    case MX_GX_REF: return c->nullable[x->ref] == 1;
    case MX_GX_AUTO: return x->u.machine->accept[0];
    case MX_GX_SEQ:
        for (int i = 0; i < x->n; i++)
            if (!nullable(c, x->u.kids[i]))
                return false;
        return true;
    case MX_GX_ALT:
        for (int i = 0; i < x->n; i++)
            if (nullable(c, x->u.kids[i]))
                return true;
        return false;
    default: return false;
    }
}

/* About how many states a copy of x costs; stops counting at WRITTEN_OUT. */
static int size_of(const struct mx_gexpr *x)
{
    switch (x->kind) {
    case MX_GX_LIT: return x->n < WRITTEN_OUT ? x->n : WRITTEN_OUT;
    case MX_GX_CHARS: return 1 + x->n;
    case MX_GX_AUTO: return x->u.machine->n_edges;
    case MX_GX_SEQ:
    case MX_GX_ALT:
    case MX_GX_REP: {
        int sum = 1;
        for (int i = 0; i < x->n && sum < WRITTEN_OUT; i++)
            sum += size_of(x->u.kids[i]);
        if (x->kind == MX_GX_REP && sum < WRITTEN_OUT)
            sum *= x->max < 0 ? 1 + x->min % WRITTEN_OUT : 1 + x->max % WRITTEN_OUT;
        return sum;
    }
    default: return 1;
    }
}

static uint32_t emit_star(struct compiler *c, const struct mx_gexpr *x, uint32_t next)
{
    uint32_t at = new_targets(c, 2);
    uint32_t loop = new_state(c, MX_ST_SPLIT, at, 2);
    uint32_t body = emit(c, x, loop);
    if (!c->status) {
        c->p->targets[at] = body;
        c->p->targets[at + 1] = next;
    }
    return loop;
}

/* min copies, then a loop or max - min optional ones. */
static uint32_t emit_copies(struct compiler *c, const struct mx_gexpr *x, int min, int max,
                            uint32_t next)
{
    uint32_t s = next;
    if (max < 0) {
        s = emit_star(c, x, next);
    } else {
        for (int i = min; i < max && !c->status; i++)
            s = new_split(c, emit(c, x, s), next);
    }
    for (int i = 0; i < min && !c->status; i++)
        s = emit(c, x, s);
    return s;
}

static uint32_t emit_rep(struct compiler *c, const struct mx_gexpr *r, uint32_t next)
{
    const struct mx_gexpr *x = r->u.kids[0];
    bool may_be_empty = nullable(c, x);
    int min = may_be_empty ? 0 : r->min, max = r->max;
    int64_t copies = max < 0 ? min + 1 : max;
    if (copies * size_of(x) <= WRITTEN_OUT || (max < 0 && min <= 1) || max == 1)
        return emit_copies(c, x, min, max, next);
    if (may_be_empty) {
        if (!c->status)
            c->status = mx_error(c->err, MTPLX_ERR_LIMIT,
                                 "the grammar repeats something that may be empty %d times; use * "
                                 "or a smaller number",
                                 max);
        return 0;
    }
    struct mx_gprog *p = c->p;
    if (!grow(c, (void **)&p->reps, &p->cap_reps, p->n_reps + 1, sizeof *p->reps))
        return 0;
    uint32_t rep = p->n_reps++;
    p->reps[rep] = (struct mx_grep){.exit = next, .min = min, .max = max};
    uint32_t body = emit(c, x, c->ret);
    p->reps[rep].body = body;
    return new_state(c, MX_ST_REP, rep, 0);
}

/* ---- Expressions and rules ---- */

static uint32_t emit_ref(struct compiler *c, int rule, uint32_t next)
{
    if (!c->queued[rule]) {
        c->queued[rule] = true;
        c->queue[c->n_queue++] = rule;
        uint32_t at = new_targets(c, 1);
        c->rule_start[rule] = new_state(c, MX_ST_SPLIT, at, 1);
    }
    return new_state(c, MX_ST_CALL, c->rule_start[rule], next);
}

static uint32_t emit(struct compiler *c, const struct mx_gexpr *x, uint32_t next)
{
    if (c->status)
        return 0;
    switch (x->kind) {
    case MX_GX_FAIL: return c->dead;
    case MX_GX_EMPTY: return next;
    case MX_GX_LIT: return emit_tail(c, x->u.text, x->n, next);
    case MX_GX_CHARS: return emit_chars(c, x, next);
    case MX_GX_SEQ:
        for (int i = x->n - 1; i >= 0; i--)
            next = emit(c, x->u.kids[i], next);
        return next;
    case MX_GX_ALT: return emit_alt(c, x, next);
    case MX_GX_REP: return emit_rep(c, x, next);
    case MX_GX_REF: return emit_ref(c, x->ref, next);
    case MX_GX_SPECIAL: return new_state(c, MX_ST_SPECIAL, (uint32_t)x->ref, next);
    case MX_GX_AUTO: return emit_auto(c, x->u.machine, next);
    }
    return c->dead;
}

static void find_nullable(struct compiler *c)
{
    bool changed = true;
    while (changed) {
        changed = false;
        for (int i = 0; i < c->b->n_rules; i++) {
            if (c->nullable[i] || !c->b->rules[i] || !nullable(c, c->b->rules[i]))
                continue;
            c->nullable[i] = 1;
            changed = true;
        }
    }
}

static uint32_t emit_rules(struct compiler *c, int root, uint32_t next)
{
    uint32_t start = emit_ref(c, root, next);
    for (int i = 0; i < c->n_queue && !c->status; i++) {
        int rule = c->queue[i];
        uint32_t s = emit(c, c->b->rules[rule], c->ret);
        if (!c->status)
            c->p->targets[c->p->states[c->rule_start[rule]].a] = s;
    }
    return start;
}

/* ---- Left recursion ---- */

struct frame {
    uint32_t state, kid;
};

/* The k-th state that `s` reaches without reading, or none. */
static bool silent_kid(const struct mx_gprog *p, const bool *may_skip, uint32_t s, uint32_t k,
                       uint32_t *to)
{
    const struct mx_gstate *st = &p->states[s];
    switch (st->kind) {
    case MX_ST_SPLIT: *to = k < st->b ? p->targets[st->a + k] : 0; return k < st->b;
    case MX_ST_CALL: *to = k == 0 ? st->a : st->b; return k == 0 || (k == 1 && may_skip[st->a]);
    case MX_ST_REP:
        *to = k == 0 ? p->reps[st->a].body : p->reps[st->a].exit;
        return k == 0 || (k == 1 && p->reps[st->a].min == 0);
    default: return false;
    }
}

/* Depth-first search for a circle of silent steps that goes through a call. Loops that stay in one
 * frame end by themselves, because the machine's closure meets the same state again. */
static mtplx_status refuse_left_recursion(struct compiler *c)
{
    struct mx_gprog *p = c->p;
    bool *may_skip = calloc(p->n_states, sizeof *may_skip);
    uint8_t *colour = calloc(p->n_states, 1);
    struct frame *stack = malloc((size_t)(p->n_states + 1) * sizeof *stack);
    uint32_t *calls = malloc((size_t)(p->n_states + 1) * sizeof *calls);
    mtplx_status status = MTPLX_OK;
    if (!may_skip || !colour || !stack || !calls)
        status = mx_error_nomem(c->err, "a grammar", p->n_states * sizeof *stack);
    for (int i = 0; !status && i < c->b->n_rules; i++)
        if (c->queued[i] && c->nullable[i] == 1)
            may_skip[c->rule_start[i]] = true;
    for (uint32_t s = 0; s < p->n_states && !status; s++) {
        uint32_t n = 0;
        if (colour[s])
            continue;
        stack[n] = (struct frame){s, 0};
        calls[n++] = 0;
        colour[s] = 1;
        while (n > 0 && !status) {
            struct frame *f = &stack[n - 1];
            uint32_t to, k = f->kid++;
            if (!silent_kid(p, may_skip, f->state, k, &to)) {
                colour[f->state] = 2;
                n--;
                continue;
            }
            bool call = k == 0 && (p->states[f->state].kind == MX_ST_CALL ||
                                   p->states[f->state].kind == MX_ST_REP);
            uint32_t count = calls[n - 1] + call;
            if (colour[to] == 1) {
                uint32_t at = n - 1;
                while (stack[at].state != to)
                    at--;
                if (count != calls[at])
                    status = mx_error(c->err, MTPLX_ERR_ARGUMENT,
                                      "the grammar is left-recursive: a rule can reach itself "
                                      "without reading a character; write the repetition with *");
            } else if (!colour[to]) {
                colour[to] = 1;
                stack[n] = (struct frame){to, 0};
                calls[n++] = count;
            }
        }
    }
    free(may_skip);
    free(colour);
    free(stack);
    free(calls);
    return status;
}

/* ---- Heights ---- */

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static uint32_t height_of(const struct mx_gprog *p, const struct mx_gstate *s)
{
    uint32_t h = MX_HEIGHT_NONE;
    switch (s->kind) {
    case MX_ST_RET: return 0;
    case MX_ST_BYTES:
        for (uint32_t i = 0; i < s->b; i++)
            if (p->states[p->edges[s->a + i].to].height < h)
                h = p->states[p->edges[s->a + i].to].height;
        return h;
    case MX_ST_SPLIT:
        for (uint32_t i = 0; i < s->b; i++)
            if (p->states[p->targets[s->a + i]].height < h)
                h = p->states[p->targets[s->a + i]].height;
        return h;
    case MX_ST_CALL:
        if (p->states[s->b].kind == MX_ST_RET) /* the machine pushes no frame */
            return p->states[s->a].height;
        h = larger(p->states[s->a].height + 1u, p->states[s->b].height);
        return h < MX_HEIGHT_NONE ? h : MX_HEIGHT_NONE;
    case MX_ST_REP: {
        const struct mx_grep *r = &p->reps[s->a];
        uint32_t out = p->states[r->exit].height;
        h = larger(p->states[r->body].height + 1u, out);
        h = r->min == 0 && out < h ? out : h;
        return h < MX_HEIGHT_NONE ? h : MX_HEIGHT_NONE;
    }
    case MX_ST_SPECIAL: return p->states[s->b].height;
    default: return h;
    }
}

/* A special token need not exist in the vocabulary, so it does not keep a state alive: markers are
 * always spelled out beside it. Passes go backwards, the way states were made, so few are needed;
 * heights only fall. */
static void find_heights(struct mx_gprog *p)
{
    bool changed = true;
    while (changed) {
        changed = false;
        for (uint32_t i = p->n_states; i-- > 0;) {
            uint32_t h = height_of(p, &p->states[i]);
            changed = changed || h < p->states[i].height;
            p->states[i].height = h < p->states[i].height ? (uint16_t)h : p->states[i].height;
        }
        for (uint32_t i = 0; i < p->n_states; i++) {
            uint32_t h = height_of(p, &p->states[i]);
            changed = changed || h < p->states[i].height;
            p->states[i].height = h < p->states[i].height ? (uint16_t)h : p->states[i].height;
        }
    }
}

static void find_classes(struct mx_gprog *p)
{
    bool cut[257] = {true};
    for (uint32_t i = 0; i < p->n_edges; i++) {
        cut[p->edges[i].lo] = true;
        cut[p->edges[i].hi + 1] = true;
    }
    int n = -1;
    for (int b = 0; b < 256; b++) {
        n += cut[b];
        p->classes[b] = (uint8_t)n;
        p->class_byte[n] = (uint8_t)b;
    }
    p->n_classes = n + 1;
}

/* ---- Frames ---- */

/* Free text that looks for `marker`, byte by byte; the state of progress 0. States: n SPLITs that
 * lead to each progress and, where `stops`, to the end; n that read; n that demand the marker. */
static uint32_t emit_free(struct compiler *c, const char *marker, bool stops, uint32_t done)
{
    struct mx_gprog *p = c->p;
    size_t n = strlen(marker);
    int index = p->n_frees++;
    uint32_t base = p->n_states, fan = stops ? 2 : 1;
    int *fail = calloc(n + 1, sizeof *fail);
    if (!fail) {
        c->status = mx_error_nomem(c->err, "a grammar", n * sizeof *fail);
        return 0;
    }
    for (size_t k = 0; k < n; k++)
        new_state(c, MX_ST_SPLIT, new_targets(c, fan), fan);
    for (size_t k = 0; k < n && !c->status; k++) {
        uint32_t to[256];
        for (int b = 0; b < 256; b++) {
            size_t j = k;
            while (j > 0 && (uint8_t)marker[j] != b)
                j = (size_t)fail[j];
            j += (uint8_t)marker[j] == b;
            to[b] = j == n ? done : base + (uint32_t)j;
            if (b == (uint8_t)marker[k] && k > 0) {
                size_t f = (size_t)fail[k];
                while (f > 0 && (uint8_t)marker[f] != b)
                    f = (size_t)fail[f];
                fail[k + 1] = (int)(f + ((uint8_t)marker[f] == b));
            }
        }
        uint32_t s = new_bytes(c);
        for (int lo = 0, hi; lo < 256; lo = hi) {
            for (hi = lo + 1; hi < 256 && to[hi] == to[lo]; hi++)
                continue;
            add_edge(c, s, (uint8_t)lo, (uint8_t)(hi - 1), to[lo]);
        }
        if (c->status)
            break;
        p->states[s].free = (uint8_t)(index + 1);
        uint32_t at = p->states[base + k].a;
        p->targets[at] = s;
        if (stops)
            p->targets[at + 1] = c->ret;
    }
    free(fail);
    uint32_t forced = done;
    for (size_t k = n; k-- > 0 && !c->status;)
        forced = new_byte(c, (uint8_t)marker[k], forced);
    if (!c->status)
        p->frees[index] = (struct mx_gfree){.state0 = base, .n = (uint32_t)n, .forced0 = forced};
    return base;
}

static uint32_t emit_framed(struct compiler *c, int root, const struct mx_grammar_frame *f,
                            int ws_rule)
{
    struct mx_gprog *p = c->p;
    p->prelude_free = -1;
    uint32_t start;
    if (f && f->trigger) {
        /* The grammar returns to free text, which does not exist yet: through a SPLIT. */
        uint32_t at = new_targets(c, 1), back = new_state(c, MX_ST_SPLIT, at, 1);
        start = emit_free(c, f->trigger, true, emit_rules(c, root, back));
        if (!c->status)
            p->targets[at] = c->b->once ? c->ret : start;
    } else {
        start = emit_rules(c, root, c->ret);
    }
    if (f && f->prelude_end && !c->status) {
        uint32_t ws = f->trigger ? start : emit(c, c->b->rules[ws_rule], start);
        p->prelude_free = p->n_frees;
        p->prelude_max = f->prelude_max;
        start = emit_free(c, f->prelude_end, false, ws);
    }
    return start;
}

/* White space between a prelude and the grammar. */
static int gap_rule(struct mx_gbuild *b)
{
    struct mx_cpset s = {.arena = &b->arena};
    if (!mx_cpset_add(&s, '\t', '\n') || !mx_cpset_add(&s, ' ', ' '))
        return -1;
    int rule = mx_grule_new(b);
    mx_grule_set(b, rule, mx_gx_rep(b, mx_gx_chars(b, &s), 0, 4));
    return rule;
}

static bool copy_specials(struct compiler *c)
{
    struct mx_gprog *p = c->p;
    p->specials = calloc((size_t)c->b->n_specials + 1, sizeof *p->specials);
    if (!p->specials)
        return false;
    for (int i = 0; i < c->b->n_specials; i++) {
        p->specials[i] = strdup(c->b->specials[i]);
        if (!p->specials[i])
            return false;
        p->n_specials++;
    }
    return true;
}

static mtplx_status check_frame(const struct mx_grammar_frame *f, mtplx_error *err)
{
    const char *marks[] = {f ? f->trigger : NULL, f ? f->prelude_end : NULL};
    for (int i = 0; i < 2; i++)
        if (marks[i] && (!*marks[i] || strlen(marks[i]) > 256))
            return mx_error(err, MTPLX_ERR_ARGUMENT, "a grammar's %s has to have 1 to 256 bytes",
                            i ? "prelude end" : "trigger");
    return MTPLX_OK;
}

static mtplx_status compile(struct compiler *c, int root, const struct mx_grammar_frame *f)
{
    struct mx_gbuild *b = c->b;
    struct mx_gprog *p = c->p;
    int ws_rule = f && f->prelude_end ? gap_rule(b) : 0;
    size_t n = (size_t)b->n_rules + 1;
    c->rule_start = mx_galloc(b, n * sizeof *c->rule_start);
    c->queue = mx_galloc(b, n * sizeof *c->queue);
    c->queued = mx_galloc(b, n * sizeof *c->queued);
    c->nullable = mx_galloc(b, n);
    if (b->failed || ws_rule < 0 || !c->nullable)
        return c->err && c->err->status ? c->err->status
                                        : mx_error(c->err, MTPLX_ERR_LIMIT, "grammar too large");
    c->dead = new_state(c, MX_ST_DEAD, 0, 0);
    c->ret = new_state(c, MX_ST_RET, 0, 0);
    find_nullable(c);
    p->start = emit_framed(c, root, f, ws_rule);
    if (c->status)
        return c->status;
    if (!copy_specials(c))
        return mx_error_nomem(c->err, "a grammar", (size_t)b->n_specials * sizeof(char *));
    mtplx_status status = refuse_left_recursion(c);
    if (status)
        return status;
    find_heights(p);
    find_classes(p);
    if (p->states[p->start].height == MX_HEIGHT_NONE)
        return mx_error(c->err, MTPLX_ERR_ARGUMENT,
                        "the grammar matches no text at all: its rules never end or contradict "
                        "one another");
    if (p->states[p->start].height > MX_GX_STACK)
        return mx_error(c->err, MTPLX_ERR_LIMIT, "the grammar nests more than %d levels deep",
                        MX_GX_STACK);
    return MTPLX_OK;
}

mtplx_status mx_gprog_compile(struct mx_gbuild *b, int root, const struct mx_grammar_frame *f,
                              struct mx_gprog *p, mtplx_error *err)
{
    struct compiler c = {.b = b, .p = p, .err = err};
    *p = (struct mx_gprog){0};
    mtplx_status status = check_frame(f, err);
    if (!status)
        status = compile(&c, root, f);
    if (status)
        mx_gprog_free(p);
    return status;
}

void mx_gprog_free(struct mx_gprog *p)
{
    free(p->states);
    free(p->edges);
    free(p->targets);
    free(p->reps);
    for (int i = 0; i < p->n_specials; i++)
        free(p->specials[i]);
    free(p->specials);
    *p = (struct mx_gprog){0};
}
