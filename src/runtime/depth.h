/* How deep to draft: policies over measured times and acceptance.
 *
 * One cycle with k drafts emits E(k) = 1 + p1 + p1 p2 + ... + p1 .. pk tokens on average, p_i being
 * the acceptance of position i given that the earlier ones passed, and takes the time of k draft
 * steps and of a verify pass of k + 1 rows. The default policy (auto) plans the k, 0 included, that
 * maximises E(k) / time(k). Both sides are learned while running:
 *
 *   times       struct mx_costs, one for each model: every pass that runs is a sample
 *   acceptance  struct mx_accept, one for each generation, started from the model's long record
 *
 * The other policies are the reference program's, for comparison (depth_rules.c).
 *
 * Nothing in here reads a clock or draws a number: measurements come in, decisions go out, so that
 * tests can play any machine. Everything is plain data without allocations.
 *
 * What keeps sampled output exact (the condition at the end of accept.c's argument):
 *   P1  A plan is a function of times, of positions that were tested (accepted or rejected) in
 *       earlier cycles, and of committed tokens. The shape of a block that draws random numbers is
 *       fixed before its first draw; no draft that was discarded is ever looked at.
 *   P2  Times are filed under the shape of the pass, which P1 keeps free of discarded drafts. That
 *       a pass takes the same time whatever the tokens in it are is taken for granted.
 *   P3  Generations learn from one another, so requests that are to be independent need different
 *       seeds, as they do anyhow. */
#ifndef MX_RUNTIME_DEPTH_H
#define MX_RUNTIME_DEPTH_H

#include "mtplx.h"

#include <jansson.h>

/* ---- Times -------------------------------------------------------------------------------- */

enum mx_cost_kind {
    MX_COST_VERIFY, /* a pass of n rows with all that follows it; n = 1 is plain decoding */
    MX_COST_FIRST,  /* the first draft step of a cycle for n sequences, pending history included */
    MX_COST_NEXT,   /* a later draft step for n sequences */
    MX_COST_KINDS,
};

enum {
    MX_COST_NODES = 20,   /* values of n that have an estimate of their own */
    MX_COST_CONTEXTS = 5, /* below 1024, 4096, 16384, 65536 tokens, and above */
};

/* The present run of clipped residuals of one sign. */
struct mx_surprise {
    int length; /* capped */
    double least;
};

/* Running estimate at one n: the logarithm of the time relative to the common level. */
struct mx_cost_node {
    double at;
    double first[3]; /* the first samples, while there are at most three */
    int samples;     /* capped; 0: nothing is known */
    struct mx_surprise surprise;
};

/* log time(kind, n, context) = level + node. The level follows what changes all passes alike
 * (context, clock frequency, other programs) within a few samples; nodes keep their relations.
 * Where nothing was measured yet the shape stands in, fitted to the measured neighbours: a guess at
 * first, what an earlier run measured once a state was read. */
struct mx_costs {
    double shape[MX_COST_CONTEXTS][MX_COST_KINDS][MX_COST_NODES];
    bool shaped;  /* by an earlier run */
    double level; /* log ns */
    double spread;
    int samples;
    struct mx_surprise surprise;
    struct mx_cost_node nodes[MX_COST_CONTEXTS][MX_COST_KINDS][MX_COST_NODES];
};

void mx_costs_init(struct mx_costs *c);

/* One measured pass. n >= 1; times that are not positive are ignored. */
void mx_cost_feed(struct mx_costs *c, enum mx_cost_kind kind, int n, size_t context, double ns);

/* Expected time in ns: measured, between measured neighbours, or by the priors' shape. Does not
 * decrease with n. */
double mx_cost(const struct mx_costs *c, enum mx_cost_kind kind, int n, size_t context);

/* Takes the present figures for the shape and forgets the samples behind them. */
void mx_costs_reshape(struct mx_costs *c);

/* Log time of node i relative to a one-row pass without much context; for storing. */
double mx_cost_log(const struct mx_costs *c, enum mx_cost_kind kind, int i, int context);

/* The n that node i stands for. */
int mx_cost_node_at(int i);

/* Samples that stand behind exactly this n (of any context). */
int mx_cost_samples(const struct mx_costs *c, enum mx_cost_kind kind, int n);

/* ---- Acceptance --------------------------------------------------------------------------- */

/* Long record of a model: discounted counts of tested and accepted positions. */
struct mx_accept_record {
    double tested[MTPLX_MAX_DEPTH], accepted[MTPLX_MAX_DEPTH];
};

enum { MX_ACCEPT_HORIZONS = 6 };

/* logit p_i = base_i + theta: base is what the positions are like (slow), theta what the text is
 * like now, shared by all positions, so that shallow cycles also tell about deep ones. theta is
 * followed at several rates at once, and two more stand by for text that is much harder or easier;
 * the predictions are mixed by how well each did of late. */
struct mx_accept {
    double base[MTPLX_MAX_DEPTH], seen[MTPLX_MAX_DEPTH];
    double theta[MX_ACCEPT_HORIZONS], weight[MX_ACCEPT_HORIZONS];
};

void mx_accept_init(struct mx_accept *a, const struct mx_accept_record *record);

/* Acceptance of position i (from 0) given that the earlier ones are accepted. */
double mx_accept_p(const struct mx_accept *a, int i);

/* A tested position. */
void mx_accept_feed(struct mx_accept *a, int i, bool accepted);
void mx_accept_note(struct mx_accept_record *r, int i, bool accepted);

/* ---- Shared by the generations of a model ------------------------------------------------- */

/* Classes of copied blocks by the length of the match they continue. */
enum { MX_COPY_CLASSES = 3 };

struct mx_copy_record {
    double tested[MX_COPY_CLASSES], accepted[MX_COPY_CLASSES];
};

struct mx_depth_model {
    struct mx_costs costs;
    struct mx_accept_record record;
    struct mx_copy_record copies;
    uint64_t cycles;         /* of this process, for the warm-up */
    uint64_t plain, shallow; /* cycles of depth 0 and 1 among them */
    bool changed;            /* since the state was read */
};

void mx_depth_model_init(struct mx_depth_model *m);

/* To and from the section "depth" of the learned state. Values out of range are left out; what is
 * read counts as few samples, so that wrong or stale figures are soon corrected. */
void mx_depth_model_read(struct mx_depth_model *m, const json_t *section);
json_t *mx_depth_model_write(const struct mx_depth_model *m);

/* ---- Policies ----------------------------------------------------------------------------- */

/* State of the reference program's policies: each uses its part. */
struct mx_depth_rules {
    int depth, streak;               /* streak */
    double ema[MTPLX_MAX_DEPTH];     /* acceptance: all but streak */
    double ms[MTPLX_MAX_DEPTH + 1];  /* cost: cycle time by depth, 0 when never run */
    int probing, probe_depth;        /* cost: cycles left of a probe */
    uint64_t cycles, probed, serial; /* serial: cycles at depth 0 in a row */
};

/* What is to be decided about the next cycle. */
struct mx_depth_ask {
    int most;       /* at most so many drafts in this cycle */
    int peers;      /* generations that share the pass, this one included */
    size_t context; /* tokens before it */
    int copy;       /* tokens that could be copied instead of drafted */
    double copy_p;  /* acceptance expected of each */
    bool sure;      /* they follow a long match */
};

/* A generation's policy. */
struct mx_depth {
    mtplx_depth_policy policy;
    int most; /* the deepest allowed */
    struct mx_depth_model *model;
    struct mx_accept accept;
    struct mx_depth_rules rules;

    /* auto */
    int last; /* depth in use */
    uint64_t cycles;
    uint64_t plain_run;      /* plain cycles since the last draft */
    uint64_t interval;       /* of probes at depth 0 */
    uint64_t looked;         /* cycle of the last look at a neighbouring depth */
    int look;                /* which neighbour comes next */
    uint64_t turn;           /* of looks at far depths */
    struct mx_depth_ask ask; /* the last one */
};

struct mx_depth_plan {
    int depth;   /* MTP drafts */
    int copy;    /* copied drafts, when depth is 0 */
    bool probe;  /* not what looks best, but to learn */
    double ns;   /* expected time of the cycle; 0 when the policy has no idea */
    double rate; /* expected tokens per ns, likewise */
};

/* What came of it. */
struct mx_depth_cycle {
    int planned; /* MTP drafts */
    int copied;  /* copied drafts, alone or behind them */
    int tested;  /* of the MTP drafts, those looked at: accepted ones and the first that failed */
    int accepted;
    bool probe;
    double ns; /* of the whole cycle */
};

/* `model` may be NULL for policies FIXED and STREAK. */
void mx_depth_init(struct mx_depth *d, mtplx_depth_policy policy, int most,
                   struct mx_depth_model *model);
struct mx_depth_plan mx_depth_next(struct mx_depth *d, const struct mx_depth_ask *ask);
void mx_depth_feed(struct mx_depth *d, const struct mx_depth_cycle *cycle);

/* Time of a cycle of k MTP drafts by this generation and each of its peers. */
double mx_depth_time(const struct mx_depth_model *m, int k, int peers, size_t context);

/* Extra copied rows worth verifying behind `drafted` MTP drafts, of at most `most`, each accepted
 * with probability p: while a row is expected to bring more than the time it takes is worth. */
int mx_depth_extend(const struct mx_depth *d, const struct mx_depth_ask *ask, double rate,
                    int drafted, int most, double p);

/* depth_rules.c */
void mx_rules_init(struct mx_depth *d);
int mx_rules_next(struct mx_depth *d, const struct mx_depth_ask *ask);
void mx_rules_feed(struct mx_depth *d, const struct mx_depth_cycle *cycle);

#endif
