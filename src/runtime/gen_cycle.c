/* One cycle of the speculative loop: plan, draft, verify, accept, commit, learn. What a cycle is
 * and what it keeps is told in generate.c. */
#include "base/clock.h"
#include "runtime/gen_int.h"

#include <string.h>

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
    int found =
        mx_copy_find(g->index, g->seq->tokens, g->seq->n_tokens, g->rows, n, out, most, &g->match);
    return mx_gen_cut(g, out, found);
}

/* Acceptance expected of a token along the one way on: it may be cut differently. */
#define FORCED_P 0.95

/* Offers the one way in which a grammar lets the text go on, in the shape of a copy; not to plain
 * decoding. Policies that do not weigh it take it where it is as long as their own drafts may be.
 */
static bool offer_forced(mtplx_gen *g, int32_t *out)
{
    bool drafts = g->opt.depth > 0 || g->index;
    int n = drafts && g->matcher ? mx_gen_forced(g, out, most_drafts(g, MTPLX_MAX_DEPTH)) : 0;
    g->ask.copy = n;
    g->ask.copy_p = FORCED_P;
    g->ask.sure = n >= g->opt.depth;
    return n > 0;
}

/* Chooses the shape of the cycle: MTP drafts to make, or a block to copy (rows 1 .. drafted). */
static void plan(mtplx_gen *g, size_t peers)
{
    int32_t copy[MTPLX_MAX_DEPTH];
    g->rows[0] = g->out[g->n_out - 1];
    g->drafted = g->made = g->tested = g->accepted = 0;
    g->ask = (struct mx_depth_ask){
        .most = most_drafts(g, g->opt.depth), .peers = (int)peers, .context = g->seq->n_tokens};
    if (g->index)
        mx_copy_update(g->index, g->seq->tokens, g->seq->n_tokens);
    g->forced = offer_forced(g, copy);
    if (g->index && !g->forced) {
        g->ask.copy = find_copy(g, 1, most_drafts(g, MTPLX_MAX_DEPTH), copy);
        g->ask.copy_p = mx_copy_p(&g->copying, g->match);
        g->ask.sure = g->match >= MX_COPY_LONG;
    }
    g->plan = mx_depth_next(&g->policy, &g->ask);
    g->depth = g->plan.depth;
    memcpy(g->rows + 1, copy, (size_t)g->plan.copy * sizeof *copy);
    if (g->ask.copy > 0 && g->plan.copy == 0 && !g->forced)
        mx_copy_refused(&g->copying);
}

/* ---- Draft -------------------------------------------------------------------------------- */

/* Generations of one pass that all take plain argmaxes need no logits on the host. */
static bool drafts_argmax(mtplx_gen *const *gens, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!gens[i]->greedy || gens[i]->counting || gens[i]->row)
            return false;
    return true;
}

static bool verifies_argmax(mtplx_gen *const *gens, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (gens[i]->logprobs)
            return false;
    return drafts_argmax(gens, n);
}

static void feed_cost(mtplx_model *m, enum mx_cost_kind kind, size_t n, size_t context, uint64_t ns)
{
    if (m->depth)
        mx_cost_feed(&m->depth->costs, kind, (int)n, context, (double)ns);
}

static mtplx_status draft_step(mtplx_gen *const *gens, size_t n, int step, mtplx_error *err)
{
    mtplx_gen *active[MX_GEN_GROUP];
    mtplx_seq *seqs[MX_GEN_GROUP];
    int32_t tokens[MX_GEN_GROUP], ids[MX_GEN_GROUP];
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
    struct mx_want want = {.argmax = drafts_argmax(active, k), .ids = ids};
    mtplx_forward_result r;
    uint64_t t0 = m->clock();
    mtplx_status st = mx_draft(m, seqs, tokens, k, &want, &r, err);
    for (size_t i = 0; i < k && st == MTPLX_OK; i++) {
        mtplx_gen *g = active[i];
        const float *logits = r.logits ? r.logits + i * (size_t)m->draft.n : NULL;
        int32_t d = logits ? mx_gen_draft(g, logits, step) : ids[i];
        g->rows[step + 1] = d;
        g->drafted = step + 1;
        mx_gen_count(g, d); /* G2; taken back after drafting */
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
        if (!g->greedy)
            mx_dist_point(&g->q[i], token);
        mx_gen_count(g, token); /* G2 */
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
    for (size_t i = 0; i < n; i++) {
        mx_gen_untry(gens[i], 0);
        for (int j = gens[i]->drafted; gens[i]->counting && j > 0; j--)
            mx_counts_remove(gens[i]->counts, gens[i]->rows[j]);
    }
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
        target = logits ? mx_gen_argmax(g, logits) : argmax;
        *accepted = target == draft;
        return target;
    }
    mx_gen_target(g, logits, &g->p);
    *accepted = mx_spec_accept(&g->p, &g->q[i], draft, mx_gen_uniform(g, position, MX_RNG_ACCEPT));
    if (*accepted)
        return draft;
    return mx_spec_residual(&g->p, &g->q[i], mx_gen_uniform(g, position, MX_RNG_RESIDUAL));
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
        mx_gen_count(g, token);
        bool more = mx_gen_emit(g, token, row);
        /* After a final accepted token the next position stood drafted too. */
        if (accepted && !more && i + 1 < g->made)
            g->stats.drafted[i + 1]++;
        if (!accepted || !more)
            return (size_t)i + 1;
    }
    int k = g->drafted;
    const float *row = logits ? logits + (size_t)k * vocab : NULL;
    int32_t token = row ? mx_gen_draw(g, row, base + (uint64_t)k) : ids[k];
    mx_gen_count(g, token);
    g->stats.bonus += k > 0;
    mx_gen_emit(g, token, row);
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
    if (!g->forced)
        mx_copy_feed(&g->copying, g->match, g->tested - of_mtp, g->accepted - good,
                     g->seq->n_tokens);
}

/* What the answers need to grow by a cycle, so that nothing fails after its pass (G5). */
static mtplx_status reserve(mtplx_gen *const *gens, size_t n, mtplx_error *err)
{
    mtplx_status st = MTPLX_OK;
    for (size_t i = 0; i < n && st == MTPLX_OK; i++)
        if (gens[i]->logprobs)
            st = mx_logprobs_reserve(gens[i]->logprobs, gens[i]->n_out + MX_MAX_PENDING, err);
    return st;
}

/* Draft, verify, accept, commit for up to MX_GEN_GROUP generations of one model. */
static mtplx_status run_cycle(mtplx_gen *const *gens, size_t n, mtplx_error *err)
{
    mtplx_row rows[MX_GEN_GROUP * MX_MAX_PENDING];
    int32_t ids[MX_GEN_GROUP * MX_MAX_PENDING];
    mtplx_forward_result r;
    mtplx_model *m = gens[0]->seq->model;
    uint64_t t0 = m->clock();
    mtplx_status st = reserve(gens, n, err);
    if (st == MTPLX_OK)
        st = draft(gens, n, err);
    if (st != MTPLX_OK)
        return st;
    uint64_t t1 = m->clock();
    size_t k = fill_verify(gens, n, rows);
    mtplx_forward_mode mode = k == n ? MTPLX_COMMIT : MTPLX_VERIFY;
    struct mx_want want = {.argmax = verifies_argmax(gens, n), .ids = ids};
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

void mx_gen_cycle(mtplx_gen *const *gens, size_t n, struct mx_outcome *o)
{
    mtplx_status st = run_cycle(gens, n, n > 1 ? NULL : mx_outcome_error(o));
    if (st == MTPLX_OK) {
        mx_outcome_note_grammars(o, gens, n);
        return;
    }
    for (size_t i = 0; i < n && n > 1; i++)
        mx_gen_cycle(gens + i, 1, o);
    if (n > 1)
        return;
    gens[0]->finish = MTPLX_FINISH_ERROR;
    mx_outcome_note(o, st);
}
