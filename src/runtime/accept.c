/* Speculative acceptance: why the emitted tokens follow the target law exactly.
 *
 * One position. Let p and q be the target and draft laws given the same prefix, both made by
 * mx_sample_dist() and therefore already filtered (penalties, temperature, top-p, top-k, min-p) and
 * normalised. Draw x ~ q, accept it with probability a(x) = min(1, p(x)/q(x)); otherwise draw y
 * from r(y) = (p(y) - q(y))+ / R with R the sum of (p - q)+ over all tokens. Then
 *
 *   P(emit z) = q(z) a(z) + P(reject) r(z)
 *             = min(p(z), q(z)) + P(reject) (p(z) - q(z))+ / R.
 *
 * P(reject) = 1 - sum min(p, q) = sum (p - min(p, q)) = sum (p - q)+ = R, because p sums to 1; so
 * the second term is (p(z) - q(z))+ and P(emit z) = min(p, q) + (p - q)+ = p(z).
 *
 * Truncated supports need no special case. The proof never divides by q outside of q's support, and
 * x ~ q never leaves it. A drafted token that the target filtered out has p(x) = 0 and is always
 * rejected. A token that only the target keeps has q = 0 and gets its whole mass from the residual,
 * so (p - q)+ lives on p's support and only that has to be walked. All that is asked of q is that
 * it is the law that x was really drawn from: a different temperature, a smaller draft vocabulary,
 * a one-hot q of a copied token are all exact. Were p's filter applied to p after acceptance, or q
 * taken before its own filter, the first line would be wrong.
 *
 * A cycle. Position t owns four uniforms (base/rng.h): V_t = (DRAFT, ACCEPT, RESIDUAL, TARGET),
 * pure functions of (seed, t), independent across t and purposes. A cycle drafts t, t+1, ..., tests
 * them in order and stops at the first rejection j, where the residual is emitted. The drafts after
 * j are discarded, and the next cycle starts at j+1 with the same V_{j+1} that the discarded draft
 * was drawn with. Is that still exact?
 *
 * Call F_j what is decided by V_0..V_j: the tokens up to j, and where in its cycle position j+1
 * stands. The token at j is a function of p and q at j (of the tokens before j) and of V_j: of
 * DRAFT, ACCEPT and RESIDUAL where j was drafted, of TARGET where it was not; whether it was
 * accepted, likewise. Nothing at or before j, not even the choice to stop there, reads a draw of a
 * position after j: d_{j+1} was computed from V_{j+1} early, but its value went into nothing that
 * survived, and the coin ACCEPT of j+1 was not looked at. So V_{j+1} is independent of F_j; given
 * F_j it is still four fresh uniforms, and the argument for one position applies to j+1 however
 * often V_{j+1} has been evaluated before. By induction the whole sequence follows the target law.
 * After a full acceptance the bonus token uses TARGET of a position that no draft of the cycle
 * used.
 *
 * The induction has one condition, which binds whoever chooses draft depths:
 *
 *   Whether position s is drafted or drawn plainly may depend on anything decided by positions
 *   before s, never on the draws of s or later ones, discarded drafts of an earlier cycle included.
 *
 * Counting tested positions (accepted, rejected) is fine; stopping a draft before s because of the
 * logits q at s, or of tokens drafted before s in this cycle, is fine. Letting a discarded draft's
 * token or confidence steer the next cycle's depth is not, and neither is dropping a token that was
 * already drawn: it would be kept only when its uniform came out one way.
 *
 * In floating point the identities hold to rounding: 1e-15 per token, far below the 2^-53 grain of
 * the uniforms times the support. That p and q may come from single-precision weights (wide.h) does
 * not touch them: whatever made p, it is p that is emitted. */
#include "runtime/sampler.h"

/* Pairs up to which plain searches beat building the index. */
enum { SEARCH_PAIRS = 2048 };

bool mx_spec_accept(const struct mx_dist *p, const struct mx_dist *q, int32_t x, double u)
{
    double px = mx_dist_prob(p, x), qx = mx_dist_prob(q, x);
    if (!(qx > 0))
        return px > 0;
    /* u < p/q without the division. Strict, so that u = 0 does not accept a token with p = 0; and
     * always true for p >= q because u < 1. */
    return u * qx < px;
}

/* Index of q by token id: where[id] = i for ids[i] = id. Nothing is cleared before or after; an
 * entry counts only when the slot it names holds the id (Briggs and Torczon, "An efficient
 * representation for sparse sets", 1993). */
static void index_by_id(const struct mx_dist *q)
{
    for (int i = 0; i < q->n; i++)
        if (q->ids[i] >= 0 && q->ids[i] < q->cap)
            q->where[q->ids[i]] = i;
}

static double indexed_prob(const struct mx_dist *q, int32_t id)
{
    if (id < 0 || id >= q->cap)
        return mx_dist_prob(q, id);
    int32_t i = q->where[id];
    return i >= 0 && i < q->n && q->ids[i] == id ? q->p[i] : 0;
}

/* (p - q)+ of p's i-th token. */
static inline double excess(const struct mx_dist *p, const struct mx_dist *q, int i, bool indexed)
{
    double d = p->p[i] - (indexed ? indexed_prob(q, p->ids[i]) : mx_dist_prob(q, p->ids[i]));
    return d > 0 ? d : 0;
}

int32_t mx_spec_residual(const struct mx_dist *p, const struct mx_dist *q, double u)
{
    int32_t token;
    if (mx_dist_wide(p))
        return mx_wide_residual(&p->wide, q, u, &token) ? token : mx_dist_draw(p, u);
    bool indexed = (int64_t)p->n * q->n > SEARCH_PAIRS; /* looking up in a wide q is cheap */
    if (indexed)
        index_by_id(q);
    double total = 0;
    for (int i = 0; i < p->n; i++)
        total += excess(p, q, i, indexed);
    if (!(total > 0))
        return mx_dist_draw(p, u);
    /* Walks the same sums, so that `target < total` is met by the last token with an excess, save
     * for rounding of u * total; `last` covers that. */
    double target = u * total, mass = 0;
    int32_t last = p->ids[0];
    for (int i = 0; i < p->n; i++) {
        double d = excess(p, q, i, indexed);
        if (d <= 0)
            continue;
        mass += d;
        last = p->ids[i];
        if (target < mass)
            break;
    }
    return last;
}
