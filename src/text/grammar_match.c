/* Grammars and matchers.
 *
 * A grammar owns the program, the machine and the masks; one mutex guards the last two, which every
 * matcher of the grammar uses and fills. A matcher is a ring of configurations: what was accepted
 * can be taken back by going round the other way. */
#include "text/grammar_int.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct mask_set {
    struct mx_gmasks masks;
    struct mask_set *next;
};

struct mx_grammar {
    atomic_int refs;
    struct mx_gprog prog;
    pthread_mutex_t lock;
    struct mx_gmachine machine;
    struct mask_set *sets; /* one for each token table in use, and the last that was */
};

struct place {
    uint32_t config;
    bool ended;     /* a stop token was accepted */
    size_t prelude; /* bytes of it so far */
};

struct mx_matcher {
    struct mx_grammar *g;
    struct mx_gmasks *masks;
    const struct mx_token_table *table;
    struct place ring[MX_MATCHER_UNDO + 1];
    int at, held; /* places before `at` that can be gone back to */
    struct mx_gmask *mask;
    bool failed;    /* the last mask could not be made */
    uint64_t *none; /* no token at all */
};

/* ---- Grammars ---- */

struct mx_grammar *mx_grammar_finish(struct mx_gbuild *b, struct mx_gexpr *x,
                                     const struct mx_grammar_frame *f, mtplx_error *err)
{
    struct mx_grammar *g = NULL;
    int root = mx_grule_new(b);
    mx_grule_set(b, root, x);
    if (b->failed || !x || root < 0) {
        if (!b->failed)
            mx_error_nomem(err, "a grammar", sizeof *g);
    } else if (!(g = calloc(1, sizeof *g))) {
        mx_error_nomem(err, "a grammar", sizeof *g);
    } else if (mx_gprog_compile(b, root, f, &g->prog, err)) {
        free(g);
        g = NULL;
    }
    mx_gbuild_free(b);
    if (!g)
        return NULL;
    if (!mx_gmachine_init(&g->machine, &g->prog) || pthread_mutex_init(&g->lock, NULL)) {
        mx_error_nomem(err, "a grammar", sizeof *g);
        mx_gmachine_free(&g->machine);
        mx_gprog_free(&g->prog);
        free(g);
        return NULL;
    }
    atomic_init(&g->refs, 1);
    return g;
}

struct mx_grammar *mx_grammar_ref(struct mx_grammar *g)
{
    if (g)
        atomic_fetch_add(&g->refs, 1);
    return g;
}

void mx_grammar_unref(struct mx_grammar *g)
{
    if (!g || atomic_fetch_sub(&g->refs, 1) != 1)
        return;
    while (g->sets) {
        struct mask_set *s = g->sets;
        g->sets = s->next;
        mx_gmasks_free(&s->masks, &g->machine);
        free(s);
    }
    mx_gmachine_free(&g->machine);
    mx_gprog_free(&g->prog);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

struct mx_grammar *mx_grammar_json_object(const struct mx_grammar_frame *f, mtplx_error *err)
{
    struct mx_gbuild b;
    mx_gbuild_init(&b, err);
    return mx_grammar_finish(&b, mx_gjson_object(&b), f, err);
}

struct mx_grammar *mx_grammar_from_regex(const char *re, size_t len,
                                         const struct mx_grammar_frame *f, mtplx_error *err)
{
    struct mx_gbuild b;
    mx_gbuild_init(&b, err);
    return mx_grammar_finish(&b, mx_gregex(&b, re, len, MX_RE_WHOLE, "the regular expression"), f,
                             err);
}

struct mx_grammar *mx_grammar_from_schema(const json_t *schema, const struct mx_grammar_frame *f,
                                          mtplx_error *err)
{
    struct mx_gbuild b;
    mx_gbuild_init(&b, err);
    return mx_grammar_finish(&b, mx_gschema(&b, schema, "#"), f, err);
}

/* ---- Mask sets ---- */

/* Drops sets of other tables that no matcher uses, then finds or makes the one for t. A machine's
 * configurations point to masks of one table, so a second table in use gets none. */
static struct mx_gmasks *masks_for(struct mx_grammar *g, const struct mx_token_table *t)
{
    struct mask_set **link = &g->sets;
    while (*link) {
        struct mask_set *s = *link;
        if (s->masks.table == t && s->masks.birth == t->birth)
            return &s->masks;
        if (s->masks.users > 0)
            return NULL;
        *link = s->next;
        mx_gmasks_free(&s->masks, &g->machine);
        free(s);
    }
    struct mask_set *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    if (!mx_gmasks_init(&s->masks, &g->prog, t)) {
        mx_gmasks_free(&s->masks, &g->machine);
        free(s);
        return NULL;
    }
    s->next = g->sets;
    g->sets = s;
    return &s->masks;
}

/* ---- Matchers ---- */

struct mx_matcher *mx_matcher_new(struct mx_grammar *g, const struct mx_token_table *t,
                                  mtplx_error *err)
{
    struct mx_matcher *m = calloc(1, sizeof *m);
    uint64_t *none = calloc((size_t)t->words, sizeof *none);
    struct mx_gmasks *masks = NULL;
    if (m && none) {
        pthread_mutex_lock(&g->lock);
        masks = masks_for(g, t);
        if (masks) {
            masks->users++;
            m->ring[0].config = g->machine.start;
            g->machine.configs[g->machine.start].pins++;
        }
        pthread_mutex_unlock(&g->lock);
    }
    if (!masks) {
        mx_error(err, MTPLX_ERR_MEMORY,
                 "no memory for a matcher, or its grammar is in use with another vocabulary");
        free(m);
        free(none);
        return NULL;
    }
    m->g = mx_grammar_ref(g);
    m->masks = masks;
    m->table = t;
    m->none = none;
    return m;
}

/* The k-th place back. */
static struct place *back(struct mx_matcher *m, int k)
{
    return &m->ring[(m->at - k + MX_MATCHER_UNDO + 1) % (MX_MATCHER_UNDO + 1)];
}

void mx_matcher_free(struct mx_matcher *m)
{
    if (!m)
        return;
    pthread_mutex_lock(&m->g->lock);
    for (int i = 0; i <= m->held; i++)
        m->g->machine.configs[back(m, i)->config].pins--;
    mx_gmask_unpin(m->mask);
    m->masks->users--;
    pthread_mutex_unlock(&m->g->lock);
    mx_grammar_unref(m->g);
    free(m->none);
    free(m);
}

const uint64_t *mx_matcher_mask(struct mx_matcher *m)
{
    const struct place *p = back(m, 0);
    struct mx_gmask *old = m->mask;
    m->mask = NULL;
    pthread_mutex_lock(&m->g->lock);
    mx_gmask_unpin(old);
    if (!p->ended)
        m->mask = mx_gmasks_get(m->masks, &m->g->machine, p->config);
    m->failed = !p->ended && !m->mask;
    pthread_mutex_unlock(&m->g->lock);
    if (!m->mask)
        return m->none;
    return m->mask->all ? NULL : m->mask->bits;
}

static bool in_prelude(const struct mx_gprog *p, const struct mx_gconfig *c)
{
    return p->prelude_free >= 0 && c->n == 1 &&
           p->states[c->elems[0].state].free == p->prelude_free + 1;
}

/* The place after `token`; its config is DEAD or NONE when there is none. */
static struct place next_place(struct mx_matcher *m, int32_t token)
{
    struct mx_gmachine *machine = &m->g->machine;
    const struct mx_gprog *prog = &m->g->prog;
    struct place p = *back(m, 0);
    if (mx_token_is_stop(m->table, token)) {
        if (!machine->configs[p.config].may_end)
            p.config = MX_CONFIG_DEAD;
        p.ended = true;
        return p;
    }
    p.config = mx_gmasks_token(m->masks, machine, p.config, token);
    if (p.config <= MX_CONFIG_DEAD || !in_prelude(prog, &machine->configs[p.config]))
        return p;
    size_t len;
    mx_tokenizer_bytes(m->table->tokenizer, token, &len);
    p.prelude += len;
    if (prog->prelude_max && p.prelude >= prog->prelude_max)
        p.config = mx_gmachine_force(machine, p.config);
    return p;
}

bool mx_matcher_accept(struct mx_matcher *m, int32_t token)
{
    if (back(m, 0)->ended || m->failed)
        return false;
    struct mx_gmachine *machine = &m->g->machine;
    pthread_mutex_lock(&m->g->lock);
    if (mx_gmachine_full(machine))
        mx_gmachine_collect(machine, NULL, 0);
    struct place p = next_place(m, token);
    if (p.config > MX_CONFIG_DEAD) {
        machine->configs[p.config].pins++;
        m->at = (m->at + 1) % (MX_MATCHER_UNDO + 1);
        if (m->held == MX_MATCHER_UNDO)
            machine->configs[m->ring[m->at].config].pins--;
        else
            m->held++;
        m->ring[m->at] = p;
    }
    pthread_mutex_unlock(&m->g->lock);
    return p.config > MX_CONFIG_DEAD;
}

void mx_matcher_rollback(struct mx_matcher *m, int n)
{
    if (n > m->held)
        n = m->held;
    if (n <= 0)
        return;
    pthread_mutex_lock(&m->g->lock);
    for (int i = 0; i < n; i++)
        m->g->machine.configs[back(m, i)->config].pins--;
    pthread_mutex_unlock(&m->g->lock);
    m->at = (m->at - n + MX_MATCHER_UNDO + 1) % (MX_MATCHER_UNDO + 1);
    m->held -= n;
}

bool mx_matcher_may_end(const struct mx_matcher *m)
{
    const struct place *p = &m->ring[m->at];
    if (p->ended)
        return true;
    pthread_mutex_lock(&m->g->lock);
    bool may = m->g->machine.configs[p->config].may_end;
    pthread_mutex_unlock(&m->g->lock);
    return may;
}
