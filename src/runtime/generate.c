/* The speculative loop: prefill, then cycles of draft, verify, accept, commit.
 *
 * State between cycles: the sequence holds every emitted token but the last, which is `pending`: it
 * was emitted but not forwarded. One cycle of depth k:
 *
 *   draft    feed pending to the MTP head, take a draft d1; feed d1, take d2; ... d_k
 *   verify   one trunk pass over [pending, d1 .. d_k]; row i is the target law of d_(i+1)
 *   accept   d1, d2, ... while each passes against its row; the first that fails is replaced by a
 *            draw from the residual (the correction); when all pass, row k gives a bonus token
 *   commit   pending and the accepted drafts stay in the sequence; the new token becomes pending
 *
 * So a cycle emits accepted + 1 tokens for one pass, and the emitted tokens follow the target law
 * whatever the drafts were (Leviathan et al. 2023; the argument is in accept.c).
 *
 * Invariants
 *   G1  Draws are keyed by (seed, index of the token in the timeline, purpose), so depth, batching
 *       and restarts change no draw.
 *   G2  p and q of a position see the same counts, bias and mask: those of everything emitted plus
 *       the drafted prefix.
 *   G3  Generations share passes but no state; each gets the tokens it would have got alone
 *       (sampled ones under the depths they would have had: see G6).
 *   G4  When the answer ends, the sequence holds prompt and answer without the answer's last token,
 *       at every depth.
 *   G5  After a failed pass the generation is over (finish ERROR) and its sequence is back at the
 *       last commit. Nothing can fail between a pass and its commit. A shared pass that fails is
 *       tried again by each generation alone, so that one whose sequence is unusable, or that needs
 *       more memory than there is, ends alone.
 *   G6  The shape of a cycle follows P1 of depth.h: it is planned before the first draft, from
 *       times, tested positions and committed tokens. Only greedy cycles, which draw nothing, may
 *       grow by what was drafted. */
#include "runtime/gen_int.h"

#include <stdlib.h>
#include <string.h>

/* ---- Creation ----------------------------------------------------------------------------- */

bool mx_gen_has_penalties(const mtplx_sampling *s)
{
    return s->presence_penalty != 0 || s->frequency_penalty != 0 || s->repetition_penalty != 1;
}

static mtplx_status check_options(const mtplx_seq *s, size_t count, mtplx_gen_options *o,
                                  mtplx_error *err)
{
    if (o->sampling.repetition_penalty == 0)
        o->sampling.repetition_penalty = 1;
    if (o->sampling.top_p == 0)
        o->sampling.top_p = 1;
    const char *why = mx_sampling_check(&o->sampling);
    if (why)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "%s", why);
    if (o->depth < 0 || o->depth > MTPLX_MAX_DEPTH)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "depth %d is outside 0..%d", o->depth,
                        MTPLX_MAX_DEPTH);
    if (o->max_tokens < 0)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "max_tokens must not be negative");
    if (count == 0)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "the prompt is empty; give at least one token");
    if (s->pending)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "the sequence has pending rows");
    size_t context = (size_t)s->model->geometry.context;
    if (s->n_tokens + count >= context)
        return mx_error(err, MTPLX_ERR_LIMIT,
                        "the prompt has %zu tokens but the context window is %zu and needs room "
                        "for an answer; shorten the prompt",
                        s->n_tokens + count, context);
    if ((int)o->policy < MTPLX_DEPTH_FIXED || o->policy > MTPLX_DEPTH_POSITION_EMA)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "%d is not a depth policy", (int)o->policy);
    if (o->logprobs < 0 || o->logprobs > MTPLX_MAX_LOGPROBS + 1)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "logprobs %d is outside 0..%d", o->logprobs,
                        MTPLX_MAX_LOGPROBS + 1);
    if (!s->model->geometry.has_mtp)
        o->depth = 0;
    return MTPLX_OK;
}

static mtplx_status make_sampler(mtplx_gen *g, mtplx_error *err)
{
    int vocab = g->seq->model->geometry.vocab;
    mtplx_status st;
    g->greedy = mx_sampling_greedy(&g->opt.sampling);
    g->counting = mx_gen_has_penalties(&g->opt.sampling);
    if (g->counting && !(g->counts = mx_counts_new(err)))
        return MTPLX_ERR_MEMORY;
    size_t distinct = g->seq->n_tokens + g->n_prompt + g->cap_out + MX_MAX_PENDING;
    if (distinct > (size_t)vocab)
        distinct = (size_t)vocab;
    if (g->counting && (st = mx_counts_reserve(g->counts, distinct, err)) != MTPLX_OK)
        return st; /* G5: counting a token cannot fail later */
    if (g->greedy)
        return MTPLX_OK;
    if (!(g->sampler = mx_sampler_new(vocab, err)))
        return MTPLX_ERR_MEMORY;
    if ((st = mx_dist_reserve_for(&g->p, &g->opt.sampling, vocab, err)) != MTPLX_OK)
        return st;
    for (int i = 0; i < MTPLX_MAX_DEPTH; i++) {
        if (i < g->opt.depth)
            st = mx_dist_reserve_for(&g->q[i], &g->opt.sampling, vocab, err);
        else /* the law of a copy or of what a grammar forces has one token */
            st = mx_dist_reserve(&g->q[i], g->opt.context_copy || g->opt.grammar, err);
        if (st != MTPLX_OK)
            return st;
    }
    return MTPLX_OK;
}

/* Bias, grammar and log-probabilities. */
static mtplx_status make_extras(mtplx_gen *g, mtplx_error *err)
{
    int vocab = g->seq->model->geometry.vocab, width = g->opt.logprobs - 1;
    width = width > 0 ? width : 0;
    if (g->opt.n_logit_bias) {
        g->bias = mx_bias_new(g->opt.logit_bias, g->opt.n_logit_bias, vocab, err);
        if (!g->bias)
            return MTPLX_ERR_ARGUMENT;
    }
    g->opt.logit_bias = NULL; /* the caller's */
    if (g->opt.grammar && !(g->matcher = mx_grammar_start(g->opt.grammar, g->seq->model, err)))
        return MTPLX_ERR_ARGUMENT;
    g->opt.grammar = NULL;
    if ((g->bias || g->matcher) && !(g->row = malloc((size_t)vocab * sizeof *g->row)))
        return mx_error_nomem(err, "a row of logits", (size_t)vocab * sizeof *g->row);
    if (g->opt.logprobs && !(g->logprobs = mx_logprobs_new(g->cap_out, width, err)))
        return MTPLX_ERR_MEMORY;
    if (g->opt.prompt_logprobs && !(g->prompt_logprobs = mx_logprobs_new(g->n_prompt, width, err)))
        return MTPLX_ERR_MEMORY;
    return MTPLX_OK;
}

/* The depth policy, and the index that copies come from. */
static mtplx_status make_planner(mtplx_gen *g, mtplx_error *err)
{
    mtplx_model *m = g->seq->model;
    bool learns = g->opt.policy != MTPLX_DEPTH_FIXED || g->opt.context_copy;
    mtplx_model_lock(m);
    struct mx_depth_model *shared = learns ? mx_model_depth(m) : NULL;
    mx_depth_init(&g->policy, g->opt.policy, g->opt.depth, shared);
    mx_copy_control_init(&g->copying, shared ? &shared->copies : NULL);
    mtplx_model_unlock(m);
    if (learns && !shared)
        return mx_error_nomem(err, "the depth policy", sizeof *shared);
    size_t tokens = g->seq->n_tokens + g->n_prompt + g->cap_out;
    if (g->opt.context_copy && !(g->index = mx_copy_new(tokens, err)))
        return MTPLX_ERR_MEMORY;
    return MTPLX_OK;
}

static mtplx_status count_prompt(mtplx_gen *g, mtplx_error *err)
{
    mtplx_status st = MTPLX_OK;
    for (size_t i = 0; g->counting && st == MTPLX_OK && i < g->seq->n_tokens; i++)
        st = mx_counts_add(g->counts, g->seq->tokens[i], true, err);
    for (size_t i = 0; g->counting && st == MTPLX_OK && i < g->n_prompt; i++)
        st = mx_counts_add(g->counts, g->prompt[i], true, err);
    return st;
}

static mtplx_status init(mtplx_gen *g, const int32_t *prompt, size_t count, mtplx_error *err)
{
    size_t room = (size_t)g->seq->model->geometry.context - g->seq->n_tokens - count;
    size_t most =
        g->opt.max_tokens && (size_t)g->opt.max_tokens < room ? (size_t)g->opt.max_tokens : room;
    int vocab = g->seq->model->geometry.vocab;
    g->cap_out = most;
    g->prompt = malloc(count * sizeof *prompt);
    g->out = malloc((most + MX_MAX_PENDING) * sizeof *g->out);
    if (!g->prompt || !g->out)
        return mx_error_nomem(err, "a generation", (count + most) * sizeof *prompt);
    for (size_t i = 0; i < count; i++)
        if (prompt[i] < 0 || prompt[i] >= vocab)
            return mx_error(err, MTPLX_ERR_ARGUMENT,
                            "prompt token %d is outside the vocabulary of %d", prompt[i], vocab);
    memcpy(g->prompt, prompt, count * sizeof *prompt);
    g->n_prompt = count;
    g->stats.prompt_tokens = count;
    mtplx_status st = make_sampler(g, err);
    if (st == MTPLX_OK)
        st = make_extras(g, err);
    if (st == MTPLX_OK)
        st = make_planner(g, err);
    return st == MTPLX_OK ? count_prompt(g, err) : st;
}

mtplx_gen *mtplx_gen_new(mtplx_seq *seq, const int32_t *prompt, size_t count,
                         const mtplx_gen_options *options, mtplx_error *err)
{
    mtplx_gen_options o = options ? *options : (mtplx_gen_options){0};
    if (check_options(seq, count, &o, err) != MTPLX_OK)
        return NULL;
    mtplx_gen *g = calloc(1, sizeof *g);
    if (!g) {
        mx_error_nomem(err, "a generation", sizeof *g);
        return NULL;
    }
    g->seq = seq;
    g->opt = o;
    if (init(g, prompt, count, err) != MTPLX_OK) {
        mtplx_gen_free(g);
        return NULL;
    }
    return g;
}

void mtplx_gen_free(mtplx_gen *g)
{
    if (!g)
        return;
    mx_sampler_free(g->sampler);
    mx_counts_free(g->counts);
    mx_copy_free(g->index);
    mx_bias_free(g->bias);
    mx_matcher_free(g->matcher);
    mx_logprobs_free(g->logprobs);
    mx_logprobs_free(g->prompt_logprobs);
    free(g->row);
    mx_dist_free(&g->p);
    for (int i = 0; i < MTPLX_MAX_DEPTH; i++)
        mx_dist_free(&g->q[i]);
    free(g->prompt);
    free(g->out);
    free(g);
}
/* ---- Stepping ----------------------------------------------------------------------------- */

static mtplx_status check_gens(mtplx_gen *const *gens, size_t n, mtplx_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (gens[i]->seq->model != gens[0]->seq->model)
            return mx_error(err, MTPLX_ERR_ARGUMENT,
                            "generations stepped together must share one model");
        for (size_t j = i + 1; j < n; j++)
            if (gens[j]->seq == gens[i]->seq)
                return mx_error(err, MTPLX_ERR_ARGUMENT,
                                "two generations of one sequence cannot run together");
    }
    return MTPLX_OK;
}

mtplx_error *mx_outcome_error(const struct mx_outcome *o)
{
    return o->status == MTPLX_OK ? o->err : NULL;
}

void mx_outcome_note(struct mx_outcome *o, mtplx_status st)
{
    if (o->status == MTPLX_OK)
        o->status = st;
}

void mx_outcome_note_grammars(struct mx_outcome *o, mtplx_gen *const *gens, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (gens[i]->finish == MTPLX_FINISH_ERROR)
            mx_outcome_note(o, mx_error(mx_outcome_error(o), MTPLX_ERR_MEMORY,
                                        "the grammar could not follow the answer after %zu tokens: "
                                        "it is too ambiguous, out of memory, or allows no token "
                                        "of this model",
                                        gens[i]->n_out));
}

/* Whether the generation takes part in a step. One whose cancel flag is set ends here. */
static bool running(mtplx_gen *g, struct mx_outcome *o)
{
    if (g->finish != MTPLX_FINISH_NONE)
        return false;
    if (!g->opt.cancel || !*g->opt.cancel)
        return true;
    g->finish = MTPLX_FINISH_CANCELLED;
    mx_outcome_note(
        o, mx_error(mx_outcome_error(o), MTPLX_ERR_CANCELLED, "the generation was cancelled"));
    return false;
}

/* Generations that wait to share a prefill pass. */
struct prompts {
    mtplx_gen *gens[MX_GEN_GROUP];
    size_t rows[MX_GEN_GROUP], n;
};

static void prefill_prompts(struct prompts *p, struct mx_outcome *o)
{
    if (p->n)
        mx_gen_prefill(p->gens, p->rows, p->n, o);
    p->n = 0;
}

static void add_prompt(struct prompts *p, mtplx_gen *g, size_t rows, struct mx_outcome *o)
{
    if (g->prompt_logprobs) {
        mx_gen_prefill_scored(g, rows, o);
        return;
    }
    p->gens[p->n] = g;
    p->rows[p->n++] = rows;
    if (p->n == MX_GEN_GROUP)
        prefill_prompts(p, o);
}

/* Prompts share a pass, in order, until it is full. rows NULL: as many as there are. */
static void prefill_all(mtplx_gen *const *gens, const size_t *rows, size_t n, struct mx_outcome *o)
{
    struct prompts p = {.n = 0};
    size_t room = mx_model_max_rows(gens[0]->seq->model);
    for (size_t i = 0; i < n && room > 0; i++) {
        size_t take = mx_gen_prompt_left(gens[i]);
        if (take == 0 || !running(gens[i], o))
            continue;
        take = rows ? rows[i] : take < room ? take : room;
        room -= take;
        add_prompt(&p, gens[i], take, o);
    }
    prefill_prompts(&p, o);
}

static void cycle_all(mtplx_gen *const *gens, size_t n, struct mx_outcome *o)
{
    mtplx_gen *ready[MX_GEN_GROUP];
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (mx_gen_prompt_left(gens[i]) || !running(gens[i], o))
            continue;
        ready[k++] = gens[i];
        if (k == MX_GEN_GROUP) {
            mx_gen_cycle(ready, k, o);
            k = 0;
        }
    }
    if (k)
        mx_gen_cycle(ready, k, o);
}

/* The cycle comes first, so that a prompt that becomes complete waits for the next step. */
mtplx_status mtplx_gen_step_many(mtplx_gen *const *gens, size_t n, mtplx_error *err)
{
    if (n == 0)
        return MTPLX_OK;
    mtplx_status st = check_gens(gens, n, err);
    if (st != MTPLX_OK)
        return st;
    struct mx_outcome o = {MTPLX_OK, err};
    mtplx_model_lock(gens[0]->seq->model);
    cycle_all(gens, n, &o);
    prefill_all(gens, NULL, n, &o);
    mtplx_model_unlock(gens[0]->seq->model);
    return o.status;
}

mtplx_status mtplx_gen_step(mtplx_gen *g, mtplx_error *err)
{
    return mtplx_gen_step_many(&g, 1, err);
}

/* ---- For the scheduler -------------------------------------------------------------------- */

size_t mx_gen_prompt_left(const mtplx_gen *g)
{
    return g->n_prompt - g->done_prompt;
}

size_t mx_model_max_rows(const mtplx_model *m)
{
    return (size_t)m->exec.max_rows;
}

static mtplx_status check_prompt_rows(mtplx_gen *const *gens, const size_t *rows, size_t n,
                                      mtplx_error *err)
{
    size_t room = mx_model_max_rows(gens[0]->seq->model);
    for (size_t i = 0; i < n; i++) {
        if (gens[i]->finish != MTPLX_FINISH_NONE)
            continue;
        size_t left = mx_gen_prompt_left(gens[i]);
        if (rows[i] == 0 || rows[i] > left)
            return mx_error(err, MTPLX_ERR_ARGUMENT,
                            "%zu prompt rows were asked for of a generation that has %zu left",
                            rows[i], left);
        if (rows[i] > room)
            return mx_error(err, MTPLX_ERR_ARGUMENT, "a prefill pass takes at most %zu rows in all",
                            mx_model_max_rows(gens[0]->seq->model));
        room -= rows[i];
    }
    return MTPLX_OK;
}

mtplx_status mx_gen_prefill_many(mtplx_gen *const *gens, const size_t *rows, size_t n,
                                 mtplx_error *err)
{
    if (n == 0)
        return MTPLX_OK;
    mtplx_status st = check_gens(gens, n, err);
    if (st == MTPLX_OK)
        st = check_prompt_rows(gens, rows, n, err);
    if (st != MTPLX_OK)
        return st;
    struct mx_outcome o = {MTPLX_OK, err};
    mtplx_model_lock(gens[0]->seq->model);
    prefill_all(gens, rows, n, &o);
    mtplx_model_unlock(gens[0]->seq->model);
    return o.status;
}

mtplx_status mx_gen_cycle_many(mtplx_gen *const *gens, size_t n, mtplx_error *err)
{
    if (n == 0)
        return MTPLX_OK;
    mtplx_status st = check_gens(gens, n, err);
    if (st != MTPLX_OK)
        return st;
    struct mx_outcome o = {MTPLX_OK, err};
    mtplx_model_lock(gens[0]->seq->model);
    cycle_all(gens, n, &o);
    mtplx_model_unlock(gens[0]->seq->model);
    return o.status;
}

void mx_gen_end(mtplx_gen *g, mtplx_finish finish, size_t keep)
{
    if (finish == MTPLX_FINISH_NONE)
        return;
    g->finish = finish;
    if (keep < g->n_out)
        g->n_out = keep;
    g->stats.generated_tokens = g->n_out;
}

/* ---- What a caller reads ------------------------------------------------------------------ */

const int32_t *mtplx_gen_tokens(const mtplx_gen *g, size_t *count)
{
    *count = g->n_out;
    return g->out;
}

mtplx_finish mtplx_gen_finish(const mtplx_gen *g)
{
    return g->finish;
}

const mtplx_gen_stats *mtplx_gen_get_stats(const mtplx_gen *g)
{
    return &g->stats;
}

int mtplx_gen_logprobs(const mtplx_gen *g, size_t index, float *own,
                       const mtplx_token_logprob **top)
{
    return index < g->n_out ? mx_logprobs_get(g->logprobs, index, own, top) : -1;
}

int mtplx_gen_prompt_logprobs(const mtplx_gen *g, size_t index, float *own,
                              const mtplx_token_logprob **top)
{
    return mx_logprobs_get(g->prompt_logprobs, index, own, top);
}
