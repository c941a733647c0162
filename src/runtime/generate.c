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
 *   G2  p and q of a position see the same counts: everything emitted plus the drafted prefix.
 *   G3  Generations share passes but no state; each gets the tokens it would have got alone
 *       (sampled ones under the depths they would have had: see G6).
 *   G4  When the answer ends, the sequence holds prompt and answer without the answer's last token,
 *       at every depth.
 *   G5  After a failed pass the generation is over (finish ERROR) and its sequence is back at the
 *       last commit. Nothing can fail between a pass and its commit.
 *   G6  The shape of a cycle follows P1 of depth.h: it is planned before the first draft, from
 *       times, tested positions and committed tokens. Only greedy cycles, which draw nothing, may
 *       grow by what was drafted. */
#include "base/clock.h"
#include "runtime/copy.h"
#include "runtime/depth.h"
#include "runtime/forward.h"
#include "runtime/sampler.h"

#include <stdlib.h>
#include <string.h>

struct mtplx_gen {
    mtplx_seq *seq;
    mtplx_gen_options opt;
    bool greedy;   /* argmax, no distributions */
    bool counting; /* penalties are active */

    int32_t *prompt;
    size_t n_prompt, done_prompt;
    mtplx_row *chunk; /* rows of one prefill chunk */
    int32_t *out;
    size_t n_out, cap_out;
    mtplx_finish finish;

    struct mx_sampler *sampler;
    struct mx_counts *counts;
    struct mx_dist p, q[MTPLX_MAX_DEPTH];

    struct mx_depth policy;
    struct mx_copy *index; /* NULL: no context copy */
    struct mx_copy_control copying;

    /* The cycle being run. */
    struct mx_depth_ask ask;
    struct mx_depth_plan plan;
    int depth, drafted;           /* MTP drafts to make; drafts made, then all with copied ones */
    int made;                     /* MTP drafts among the drafted: the first ones */
    int tested, accepted;         /* drafts looked at, and accepted */
    int match;                    /* length of the match that was copied from */
    int32_t rows[MX_MAX_PENDING]; /* pending, d1 .. dk */

    mtplx_gen_stats stats;
    uint64_t started_ns, first_ns;
};

/* ---- Creation ----------------------------------------------------------------------------- */

static bool has_penalties(const mtplx_sampling *s)
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
    if (!s->model->geometry.has_mtp)
        o->depth = 0;
    return MTPLX_OK;
}

static mtplx_status make_sampler(mtplx_gen *g, mtplx_error *err)
{
    int vocab = g->seq->model->geometry.vocab;
    mtplx_status st;
    g->greedy = mx_sampling_greedy(&g->opt.sampling);
    g->counting = has_penalties(&g->opt.sampling);
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
        else /* a copy's q has one token */
            st = mx_dist_reserve(&g->q[i], g->opt.context_copy, err);
        if (st != MTPLX_OK)
            return st;
    }
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
    size_t chunk = (size_t)g->seq->model->exec.max_rows;
    g->chunk = malloc((count < chunk ? count : chunk) * sizeof *g->chunk);
    g->prompt = malloc(count * sizeof *prompt);
    g->out = malloc((most + MX_MAX_PENDING) * sizeof *g->out);
    if (!g->prompt || !g->out || !g->chunk)
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
    mx_dist_free(&g->p);
    for (int i = 0; i < MTPLX_MAX_DEPTH; i++)
        mx_dist_free(&g->q[i]);
    free(g->chunk);
    free(g->prompt);
    free(g->out);
    free(g);
}

/* ---- Emitting ----------------------------------------------------------------------------- */

/* Appends a token to the answer; true when the answer goes on. */
static bool emit(mtplx_gen *g, int32_t token)
{
    uint64_t now = mx_now_ns();
    if (g->n_out == 0) {
        g->first_ns = now;
        g->stats.first_token_ns = now - g->started_ns;
    }
    g->out[g->n_out++] = token;
    if (!g->opt.ignore_stop) /* benchmarks are not what a user asks for */
        mx_misses_note(g->seq->model->misses, token);
    g->stats.generated_tokens = g->n_out;
    g->stats.decode_ns = now - g->first_ns;
    if (!g->opt.ignore_stop && mtplx_model_is_stop_token(g->seq->model, token))
        g->finish = MTPLX_FINISH_STOP;
    else if (g->n_out >= g->cap_out)
        g->finish = MTPLX_FINISH_LENGTH;
    return g->finish == MTPLX_FINISH_NONE;
}

static void count_token(mtplx_gen *g, int32_t token)
{
    if (g->counting)
        mx_counts_add(g->counts, token, false, NULL); /* room was reserved */
}

static double uniform(const mtplx_gen *g, uint64_t position, enum mx_rng_purpose purpose)
{
    return mx_rng_uniform(g->opt.sampling.seed, position, purpose);
}

static void make_dist(mtplx_gen *g, const float *logits, struct mx_dist *d)
{
    mx_sample_dist(g->sampler, &g->opt.sampling, g->counts, logits, g->seq->model->geometry.vocab,
                   d);
}

/* A draw from the target row of the token at `position`. */
static int32_t draw_target(mtplx_gen *g, const float *logits, uint64_t position)
{
    if (g->greedy)
        return mx_sample_argmax(&g->opt.sampling, g->counts, logits, g->seq->model->geometry.vocab);
    make_dist(g, logits, &g->p);
    return mx_dist_draw(&g->p, uniform(g, position, MX_RNG_TARGET));
}

/* ---- Prefill ------------------------------------------------------------------------------ */

static mtplx_status prefill_chunk(mtplx_gen *g, mtplx_error *err)
{
    mtplx_model *m = g->seq->model;
    size_t left = g->n_prompt - g->done_prompt, max = (size_t)m->exec.max_rows;
    size_t n = left < max ? left : max;
    mtplx_row *rows = g->chunk;
    struct mx_want want = {0};
    mtplx_forward_result r;
    uint64_t t0 = mx_now_ns();
    if (!g->started_ns)
        g->started_ns = t0;
    for (size_t i = 0; i < n; i++)
        rows[i] = (mtplx_row){.seq = g->seq, .token = g->prompt[g->done_prompt + i]};
    rows[n - 1].want_logits = n == left;
    mtplx_status st = mx_forward(m, rows, n, MTPLX_COMMIT, &want, &r, err);
    if (st != MTPLX_OK)
        return st;
    g->done_prompt += n;
    if (n == left) {
        int32_t token = draw_target(g, r.logits, g->seq->n_tokens);
        count_token(g, token);
        emit(g, token);
    }
    g->stats.prefill_ns += mx_now_ns() - t0;
    return MTPLX_OK;
}

/* ---- Plan --------------------------------------------------------------------------------- */

/* Tokens still wanted bound the useful depth: a cycle emits up to depth + 1. */
static int most_drafts(const mtplx_gen *g, int most)
{
    size_t left = g->cap_out - g->n_out;
    return left <= (size_t)most ? (int)left - 1 : most;
}

/* Tokens that could be copied behind the `n` last rows of the cycle, into `out`. */
static int find_copy(mtplx_gen *g, int n, int most, int32_t *out)
{
    int allowed = mx_copy_allowed(&g->copying, g->seq->n_tokens);
    most = allowed < most ? allowed : most;
    if (most <= 0)
        return 0;
    return mx_copy_find(g->index, g->seq->tokens, g->seq->n_tokens, g->rows, n, out, most,
                        &g->match);
}

/* Chooses the shape of the cycle: MTP drafts to make, or a block to copy (rows 1 .. drafted). */
static void plan(mtplx_gen *g, size_t peers)
{
    int32_t copy[MTPLX_MAX_DEPTH];
    g->rows[0] = g->out[g->n_out - 1];
    g->drafted = g->made = g->tested = g->accepted = 0;
    g->ask = (struct mx_depth_ask){
        .most = most_drafts(g, g->opt.depth), .peers = (int)peers, .context = g->seq->n_tokens};
    if (g->index) {
        mx_copy_update(g->index, g->seq->tokens, g->seq->n_tokens);
        g->ask.copy = find_copy(g, 1, most_drafts(g, MTPLX_MAX_DEPTH), copy);
        g->ask.copy_p = mx_copy_p(&g->copying, g->match);
        g->ask.sure = g->match >= MX_COPY_LONG;
    }
    g->plan = mx_depth_next(&g->policy, &g->ask);
    g->depth = g->plan.depth;
    memcpy(g->rows + 1, copy, (size_t)g->plan.copy * sizeof *copy);
    if (g->ask.copy > 0 && g->plan.copy == 0)
        mx_copy_refused(&g->copying);
}

/* ---- Draft -------------------------------------------------------------------------------- */

/* Chooses the draft after a step, from the ids or logits of its row. */
static int32_t choose_draft(mtplx_gen *g, int step, int32_t argmax, const float *logits)
{
    if (!logits)
        return argmax;
    const struct mx_draft_vocab *v = &g->seq->model->draft;
    if (g->greedy)
        return mx_sample_argmax_of(&g->opt.sampling, g->counts, logits, v->ids, v->n);
    mx_sample_dist_of(g->sampler, &g->opt.sampling, g->counts, logits, v->ids, v->n, &g->q[step]);
    uint64_t position = g->seq->n_tokens + 1 + (uint64_t)step;
    return mx_dist_draw(&g->q[step], uniform(g, position, MX_RNG_DRAFT));
}

/* Generations of one pass that all take plain argmaxes need no logits on the host. */
static bool all_argmax(mtplx_gen *const *gens, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!gens[i]->greedy || gens[i]->counting)
            return false;
    return true;
}

#define MAX_GROUP 64 /* generations of one pass */

static void feed_cost(mtplx_model *m, enum mx_cost_kind kind, size_t n, size_t context, uint64_t ns)
{
    if (m->depth)
        mx_cost_feed(&m->depth->costs, kind, (int)n, context, (double)ns);
}

static mtplx_status draft_step(mtplx_gen *const *gens, size_t n, int step, mtplx_error *err)
{
    mtplx_gen *active[MAX_GROUP];
    mtplx_seq *seqs[MAX_GROUP];
    int32_t tokens[MAX_GROUP], ids[MAX_GROUP];
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        if (gens[i]->depth > step) {
            active[k] = gens[i];
            seqs[k] = gens[i]->seq;
            tokens[k++] = gens[i]->rows[step];
        }
    if (k == 0)
        return MTPLX_OK;
    mtplx_model *m = seqs[0]->model;
    struct mx_want want = {.argmax = all_argmax(active, k), .ids = ids};
    mtplx_forward_result r;
    uint64_t t0 = m->clock();
    mtplx_status st = mx_draft(m, seqs, tokens, k, &want, &r, err);
    for (size_t i = 0; i < k && st == MTPLX_OK; i++) {
        mtplx_gen *g = active[i];
        const float *logits = r.logits ? r.logits + i * (size_t)m->draft.n : NULL;
        int32_t d = choose_draft(g, step, want.argmax ? ids[i] : 0, logits);
        g->rows[step + 1] = d;
        g->drafted = step + 1;
        count_token(g, d); /* G2; taken back after drafting */
    }
    if (st == MTPLX_OK)
        feed_cost(m, step ? MX_COST_NEXT : MX_COST_FIRST, k, active[0]->ask.context,
                  m->clock() - t0);
    return st;
}

/* Rows drafted by copying: each draft's law is a point mass (copy.h). */
static void take_copies(mtplx_gen *g, int count)
{
    for (int i = g->drafted; i < g->made + count; i++) {
        int32_t token = g->rows[i + 1];
        if (!g->greedy) {
            g->q[i].n = 1;
            g->q[i].ids[0] = token;
            g->q[i].p[0] = 1;
        }
        count_token(g, token); /* G2 */
    }
    g->drafted = g->made + count;
}

/* Behind MTP drafts, what followed an earlier occurrence of them may be worth some rows more. G6:
 * greedy only. */
static void extend(mtplx_gen *g)
{
    int most = most_drafts(g, MTPLX_MAX_DEPTH) - g->made;
    bool may = g->index && g->greedy && g->opt.policy == MTPLX_DEPTH_AUTO && g->made > 0;
    int count = may ? find_copy(g, g->made + 1, most, g->rows + 1 + g->made) : 0;
    if (count > 0)
        count = mx_depth_extend(&g->policy, &g->ask, g->plan.rate, g->made, count,
                                mx_copy_p(&g->copying, g->match));
    take_copies(g, count);
}

static mtplx_status draft(mtplx_gen *const *gens, size_t n, mtplx_error *err)
{
    int most = 0;
    mtplx_status st = MTPLX_OK;
    for (size_t i = 0; i < n; i++) {
        gens[i]->seq->n_drafts = 0; /* a pass that failed may have left some */
        plan(gens[i], n);
        most = gens[i]->depth > most ? gens[i]->depth : most;
    }
    for (int step = 0; step < most && st == MTPLX_OK; step++)
        st = draft_step(gens, n, step, err);
    for (size_t i = 0; i < n && st == MTPLX_OK; i++) {
        gens[i]->made = gens[i]->drafted;
        if (gens[i]->plan.copy > 0)
            take_copies(gens[i], gens[i]->plan.copy);
        else
            extend(gens[i]);
    }
    for (size_t i = 0; i < n; i++)
        for (int j = gens[i]->drafted; gens[i]->counting && j > 0; j--)
            mx_counts_remove(gens[i]->counts, gens[i]->rows[j]);
    return st;
}

/* ---- Accept ------------------------------------------------------------------------------- */

/* Row i against draft i + 1: returns the token that stands there; *accepted says whether it is the
 * draft. */
static int32_t settle_row(mtplx_gen *g, int i, int32_t argmax, const float *logits,
                          uint64_t position, bool *accepted)
{
    int32_t draft = g->rows[i + 1], target;
    if (g->greedy) {
        target = logits ? mx_sample_argmax(&g->opt.sampling, g->counts, logits,
                                           g->seq->model->geometry.vocab)
                        : argmax;
        *accepted = target == draft;
        return target;
    }
    make_dist(g, logits, &g->p);
    *accepted = mx_spec_accept(&g->p, &g->q[i], draft, uniform(g, position, MX_RNG_ACCEPT));
    if (*accepted)
        return draft;
    return mx_spec_residual(&g->p, &g->q[i], uniform(g, position, MX_RNG_RESIDUAL));
}

static void note_tested(mtplx_gen *g, int i, bool accepted)
{
    g->tested++;
    g->accepted += accepted;
    g->stats.corrections += !accepted;
    if (i < g->made) {
        g->stats.drafted[i]++;
        g->stats.accepted[i] += accepted;
    } else {
        g->stats.copy_tested++;
        g->stats.copy_accepted += accepted;
    }
}

/* Walks the verify rows of one generation, emits, and returns how many rows to keep: the pending
 * token and the accepted drafts, but not the answer's last token (G4). `base` is the timeline index
 * of the token row 0 decides. */
static size_t accept_rows(mtplx_gen *g, uint64_t base, const int32_t *ids, const float *logits)
{
    size_t vocab = (size_t)g->seq->model->geometry.vocab;
    for (int i = 0; i < g->drafted; i++) {
        bool accepted = false;
        const float *row = logits ? logits + (size_t)i * vocab : NULL;
        int32_t token = settle_row(g, i, ids ? ids[i] : 0, row, base + (uint64_t)i, &accepted);
        note_tested(g, i, accepted);
        count_token(g, token);
        bool more = emit(g, token);
        /* After a final accepted token the next position stood drafted too. */
        if (accepted && !more && i + 1 < g->made)
            g->stats.drafted[i + 1]++;
        if (!accepted || !more)
            return (size_t)i + 1;
    }
    int k = g->drafted;
    int32_t token =
        g->greedy && ids ? ids[k] : draw_target(g, logits + (size_t)k * vocab, base + (uint64_t)k);
    count_token(g, token);
    g->stats.bonus += k > 0;
    emit(g, token);
    return (size_t)k + 1;
}

/* ---- Verify ------------------------------------------------------------------------------- */

static size_t fill_verify(mtplx_gen *const *gens, size_t n, mtplx_row *rows)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        for (int j = 0; j <= gens[i]->drafted; j++)
            rows[k++] =
                (mtplx_row){.seq = gens[i]->seq, .token = gens[i]->rows[j], .want_logits = true};
    return k;
}

static void accept_all(mtplx_gen *const *gens, size_t n, mtplx_forward_mode mode,
                       const int32_t *ids, const float *logits)
{
    size_t at = 0, vocab = (size_t)gens[0]->seq->model->geometry.vocab;
    for (size_t i = 0; i < n; i++) {
        mtplx_gen *g = gens[i];
        uint64_t t0 = mx_now_ns();
        uint64_t base = g->seq->n_tokens + (mode == MTPLX_VERIFY ? 1 : 0);
        size_t keep =
            accept_rows(g, base, ids ? ids + at : NULL, logits ? logits + at * vocab : NULL);
        uint64_t t1 = mx_now_ns();
        if (mode == MTPLX_VERIFY)
            mx_seq_commit(g->seq, keep, NULL); /* keep is in range, so it cannot fail */
        g->stats.sample_ns += t1 - t0;
        g->stats.commit_ns += mx_now_ns() - t1;
        g->stats.cycles++;
        at += (size_t)g->drafted + 1;
    }
}

/* What the cycle of one generation teaches. */
static void learn(mtplx_gen *g, uint64_t ns)
{
    int of_mtp = g->tested < g->made ? g->tested : g->made;
    int good = g->accepted < g->made ? g->accepted : g->made;
    struct mx_depth_cycle c = {.planned = g->made,
                               .copied = g->drafted - g->made,
                               .tested = of_mtp,
                               .accepted = good,
                               .probe = g->plan.probe,
                               .ns = (double)ns};
    g->stats.depths[g->drafted]++;
    g->stats.probes += g->plan.probe;
    g->stats.copy_cycles += c.copied > 0;
    if (g->plan.ns > 1000) { /* less is no time but the scale before anything was measured */
        g->stats.predicted_ns += (uint64_t)g->plan.ns;
        g->stats.measured_ns += ns;
    }
    struct mx_depth_model *learned = g->seq->model->depth;
    bool keep = learned && learned->changed;
    mx_depth_feed(&g->policy, &c);
    if (g->opt.ignore_stop && learned)
        learned->changed = keep; /* a benchmark's text is not worth keeping */
    mx_copy_feed(&g->copying, g->match, g->tested - of_mtp, g->accepted - good, g->seq->n_tokens);
}

/* Draft, verify, accept, commit for up to MAX_GROUP generations of one model. */
static mtplx_status run_cycle(mtplx_gen *const *gens, size_t n, mtplx_error *err)
{
    mtplx_row rows[MAX_GROUP * MX_MAX_PENDING];
    int32_t ids[MAX_GROUP * MX_MAX_PENDING];
    mtplx_forward_result r;
    mtplx_model *m = gens[0]->seq->model;
    uint64_t t0 = m->clock();
    mtplx_status st = draft(gens, n, err);
    if (st != MTPLX_OK)
        return st;
    uint64_t t1 = m->clock();
    size_t k = fill_verify(gens, n, rows);
    mtplx_forward_mode mode = k == n ? MTPLX_COMMIT : MTPLX_VERIFY;
    struct mx_want want = {.argmax = all_argmax(gens, n), .ids = ids};
    st = mx_forward(m, rows, k, mode, &want, &r, err);
    if (st != MTPLX_OK)
        return st;
    uint64_t t2 = m->clock();
    for (size_t i = 0; i < n; i++) {
        gens[i]->stats.draft_ns += t1 - t0;
        gens[i]->stats.verify_ns += t2 - t1;
    }
    accept_all(gens, n, mode, want.argmax ? ids : NULL, r.logits);
    uint64_t t3 = m->clock();
    feed_cost(m, MX_COST_VERIFY, k, gens[0]->ask.context, t3 - t1);
    for (size_t i = 0; i < n; i++)
        learn(gens[i], t3 - t0);
    return MTPLX_OK;
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

/* The first failure of a step is what the step reports; the others of the batch go on. */
struct outcome {
    mtplx_status status;
    mtplx_error *err;
};

static mtplx_error *error_of(const struct outcome *o)
{
    return o->status == MTPLX_OK ? o->err : NULL;
}

static void note(struct outcome *o, mtplx_status st)
{
    if (o->status == MTPLX_OK)
        o->status = st;
}

static void cancel(mtplx_gen *g, struct outcome *o)
{
    g->finish = MTPLX_FINISH_CANCELLED;
    note(o, mx_error(error_of(o), MTPLX_ERR_CANCELLED, "the generation was cancelled"));
}

static void cycle(mtplx_gen *const *gens, size_t n, struct outcome *o)
{
    mtplx_status st = run_cycle(gens, n, error_of(o));
    for (size_t i = 0; i < n && st != MTPLX_OK; i++)
        gens[i]->finish = MTPLX_FINISH_ERROR;
    note(o, st);
}

static void prefill(mtplx_gen *g, struct outcome *o)
{
    mtplx_status st = prefill_chunk(g, error_of(o));
    if (st != MTPLX_OK)
        g->finish = MTPLX_FINISH_ERROR;
    note(o, st);
}

static void step_all(mtplx_gen *const *gens, size_t n, struct outcome *o)
{
    mtplx_gen *ready[MAX_GROUP];
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        mtplx_gen *g = gens[i];
        if (g->finish != MTPLX_FINISH_NONE)
            continue;
        if (g->opt.cancel && *g->opt.cancel) {
            cancel(g, o);
        } else if (g->done_prompt < g->n_prompt) {
            prefill(g, o);
        } else {
            ready[k++] = g;
            if (k == MAX_GROUP) {
                cycle(ready, k, o);
                k = 0;
            }
        }
    }
    if (k)
        cycle(ready, k, o);
}

mtplx_status mtplx_gen_step_many(mtplx_gen *const *gens, size_t n, mtplx_error *err)
{
    if (n == 0)
        return MTPLX_OK;
    mtplx_status st = check_gens(gens, n, err);
    if (st != MTPLX_OK)
        return st;
    struct outcome o = {MTPLX_OK, err};
    mtplx_model *m = gens[0]->seq->model;
    mtplx_model_lock(m);
    step_all(gens, n, &o);
    mtplx_model_unlock(m);
    return o.status;
}

mtplx_status mtplx_gen_step(mtplx_gen *g, mtplx_error *err)
{
    return mtplx_gen_step_many(&g, 1, err);
}

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
