/* Sampler: one row of logits to a distribution over the tokens that the settings keep.
 *
 * Every filter keeps a prefix of the same ranking (penalised logit descending, then id ascending):
 * top-p the shortest prefix that reaches the mass, top-k the first k, min-p those with a weight of
 * at least min_p, the largest being 1. So the law is "the shortest of three prefixes,
 * renormalised", and there is no need to sort a vocabulary: candidates are produced in rank order,
 * a segment at a time, and a walk takes them until the first filter says stop.
 *
 *   top-k up to HEAP_MAX     one segment: the k best, kept in a heap during one scan of the row
 *   another filter           segments of logits within 4, 5, 6.25, ... temperatures of the largest
 *   none                     no candidates at all: a wide distribution (wide.h) where there is
 * room, else one segment: everything
 *
 * The row is read once, for the largest logit of every block of MX_WEIGHTS_BLOCK; blocks that
 * cannot hold a candidate are not read again.
 *
 * Top-p is measured on the full distribution and so needs the sum Z of all weights, but only to
 * compare: a token stays while the mass before it is < top_p Z. Z is first known as an interval,
 * from a look at the heavy blocks; when a mass falls inside it, from a single-precision pass; when
 * it still does, the double-precision sum is taken. The decision, and so the distribution, is that
 * of the double-precision sum in every case.
 *
 * Invariants
 *  1. The kept tokens depend on the row and the settings only, never on the path that found them.
 *  2. The first candidate, the argmax, is always kept: the mass before it is 0, its weight is 1.
 *  3. Keys order like ranks: a smaller key is a better rank. Ids are unique, so keys are too.
 *  4. At most min(vocab, d->cap) entries are written. */
#include "runtime/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/counts.h"
#include "runtime/weights.h"

enum {
    HEAP_MAX = 256,  /* largest top-k selected with a heap */
    SMALL_SORT = 32, /* below this an insertion sort beats the radix passes' fixed cost */
    DIGIT_BITS = 11,
    DIGITS = 3, /* DIGITS * DIGIT_BITS covers the 32 bits of a logit */
    BUCKETS = 1 << DIGIT_BITS,
};

/* Temperatures below the largest logit, of the first segment and how each next one reaches further.
 * A wide step sorts many tokens that are not needed, a narrow one reads the row more often. */
static const double FIRST_REACH = 4, REACH_GROWTH = 1.25;

struct mx_sampler {
    int vocab;
    float *row;      /* [vocab] the row after penalties, when it differs from the caller's */
    float *logits;   /* [vocab] logits of a sorted segment */
    uint64_t *keys;  /* [vocab + 1] a segment; the last place takes a branch-free write */
    uint64_t *spare; /* [vocab] the other half of the radix passes */
    uint32_t (*count)[BUCKETS]; /* [DIGITS] */
    float *block_max;           /* [blocks of vocab] largest logit of each block of the row */
};

/* A distribution being built, and what its filters need to know. */
struct walk {
    struct mx_sampler *s;
    const float *row;
    int vocab;          /* places in the row */
    const int32_t *ids; /* token of each place; NULL: the place itself */
    float max;          /* largest logit, finite */
    double inv_t;
    double top_p;         /* 1: off */
    double min_weight;    /* 0: off */
    int limit;            /* most entries: top-k, vocabulary, room in d */
    double z_low, z_high; /* interval that holds Z; equal once Z is exact */
    int z_steps;          /* how far it has been narrowed */
    double mass;          /* weights kept so far, added in rank order */
    struct mx_dist *d;    /* d->p holds weights until finish() */
};

/* ---- Settings ----------------------------------------------------------------------------- */

/* False for NaN too. */
static bool within(double x, double low, double high)
{
    return x >= low && x <= high;
}

const char *mx_sampling_check(const mtplx_sampling *s)
{
    if (!within(s->temperature, 0, 100))
        return "temperature must be between 0 (greedy) and 100";
    if (!within(s->top_p, 0, 1) || s->top_p == 0)
        return "top_p must be above 0 and at most 1 (off)";
    if (s->top_k < 0)
        return "top_k must be 0 (off) or positive";
    if (!within(s->min_p, 0, 1))
        return "min_p must be between 0 (off) and 1";
    if (!within(s->presence_penalty, -2, 2))
        return "presence_penalty must be between -2 and 2";
    if (!within(s->frequency_penalty, -2, 2))
        return "frequency_penalty must be between -2 and 2";
    if (!within(s->repetition_penalty, 0, 10) || s->repetition_penalty == 0)
        return "repetition_penalty must be above 0 and at most 10 (1 is off)";
    return NULL;
}

bool mx_sampling_greedy(const mtplx_sampling *s)
{
    return s->temperature <= 0;
}

/* ---- Distributions ------------------------------------------------------------------------ */

mtplx_status mx_dist_reserve(struct mx_dist *d, int cap, mtplx_error *err)
{
    if (cap < 0)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "a distribution cannot hold %d tokens", cap);
    if (cap <= d->cap)
        return MTPLX_OK;
    size_t n = (size_t)cap, entry = sizeof *d->ids + sizeof *d->p + sizeof *d->where;
    if (n > SIZE_MAX / entry)
        return mx_error_nomem(err, "distribution", SIZE_MAX);
    int32_t *ids = realloc(d->ids, n * sizeof *ids);
    d->ids = ids ? ids : d->ids;
    double *p = ids ? realloc(d->p, n * sizeof *p) : NULL;
    d->p = p ? p : d->p;
    int32_t *where = p ? calloc(n, sizeof *where) : NULL;
    if (!where)
        return mx_error_nomem(err, "distribution", n * entry);
    free(d->where);
    d->where = where;
    d->cap = cap;
    return MTPLX_OK;
}

void mx_dist_free(struct mx_dist *d)
{
    if (!d)
        return;
    free(d->ids);
    free(d->p);
    free(d->where);
    mx_wide_free(&d->wide);
    *d = (struct mx_dist){0};
}

/* True when the settings keep every token of n. */
static bool unfiltered(const mtplx_sampling *cfg, int n)
{
    return cfg->temperature >= MX_WEIGHTS_MIN_TEMPERATURE && cfg->top_p >= 1 && cfg->min_p <= 0 &&
           (cfg->top_k <= 0 || cfg->top_k >= n);
}

/* Entries of the list form. */
static int list_room(const mtplx_sampling *cfg, int vocab)
{
    if (unfiltered(cfg, vocab) || mx_sampling_greedy(cfg))
        return 1;
    return cfg->top_k > 0 && cfg->top_k < vocab ? cfg->top_k : vocab;
}

mtplx_status mx_dist_reserve_for(struct mx_dist *d, const mtplx_sampling *cfg, int vocab,
                                 mtplx_error *err)
{
    bool wide = unfiltered(cfg, vocab);
    mtplx_status st = wide ? mx_wide_reserve(&d->wide, vocab, err) : MTPLX_OK;
    return st == MTPLX_OK ? mx_dist_reserve(d, list_room(cfg, vocab), err) : st;
}

uint64_t mx_dist_bytes_for(const mtplx_sampling *cfg, int vocab)
{
    const struct mx_dist *d = NULL;
    size_t entry = sizeof *d->ids + sizeof *d->p + sizeof *d->where;
    return (uint64_t)list_room(cfg, vocab) * entry +
           (unfiltered(cfg, vocab) ? mx_wide_bytes(vocab) : 0);
}

double mx_dist_prob(const struct mx_dist *d, int32_t id)
{
    if (mx_dist_wide(d))
        return mx_wide_at(&d->wide, mx_wide_place(&d->wide, id));
    /* Drafted tokens rank high in p as well as in q, so the walk is short when it finds something;
     * when it does not it costs one pass over the ids, far below the pass that made them. */
    for (int i = 0; i < d->n; i++)
        if (d->ids[i] == id)
            return d->p[i];
    return 0;
}

int32_t mx_dist_draw(const struct mx_dist *d, double u)
{
    if (mx_dist_wide(d))
        return mx_wide_draw(&d->wide, u);
    if (d->n <= 0)
        return 0;
    double mass = 0;
    for (int i = 0; i < d->n - 1; i++) {
        mass += d->p[i];
        if (u < mass)
            return d->ids[i];
    }
    return d->ids[d->n - 1]; /* also where rounding left the sum a little below u */
}

void mx_dist_point(struct mx_dist *d, int32_t id)
{
    d->wide.n = 0;
    d->n = d->cap > 0;
    if (d->n) {
        d->ids[0] = id;
        d->p[0] = 1;
    }
}

/* ---- Scratch ------------------------------------------------------------------------------ */

struct mx_sampler *mx_sampler_new(int vocab, mtplx_error *err)
{
    if (vocab <= 0) {
        mx_error(err, MTPLX_ERR_ARGUMENT, "vocabulary size %d must be positive", vocab);
        return NULL;
    }
    struct mx_sampler *s = calloc(1, sizeof *s);
    size_t n = (size_t)vocab;
    if (s) {
        s->vocab = vocab;
        s->row = calloc(n, sizeof *s->row);
        s->logits = calloc(n, sizeof *s->logits);
        s->keys = calloc(n + 1, sizeof *s->keys);
        s->spare = calloc(n, sizeof *s->spare);
        s->count = calloc(DIGITS, sizeof *s->count);
        s->block_max = calloc(mx_weights_blocks(n), sizeof *s->block_max);
    }
    if (!s || !s->row || !s->logits || !s->keys || !s->spare || !s->count || !s->block_max) {
        mx_sampler_free(s);
        mx_error_nomem(err, "sampler scratch", n * (2 * sizeof(float) + 2 * sizeof(uint64_t)));
        return NULL;
    }
    return s;
}

uint64_t mx_sampler_bytes(int vocab)
{
    const struct mx_sampler *s = NULL;
    size_t n = (size_t)vocab;
    return sizeof *s + DIGITS * sizeof *s->count + mx_weights_blocks(n) * sizeof *s->block_max +
           n * (sizeof *s->row + sizeof *s->logits + sizeof *s->spare) + (n + 1) * sizeof *s->keys;
}

void mx_sampler_free(struct mx_sampler *s)
{
    if (!s)
        return;
    free(s->row);
    free(s->logits);
    free(s->keys);
    free(s->spare);
    free(s->count);
    free(s->block_max);
    free(s);
}

/* ---- Ranking ------------------------------------------------------------------------------ */

/* High word: the bits of the logit, mapped so that unsigned order is descending order of floats,
 * with -0 made +0 so that they tie. Low word: the id. */
static inline uint64_t make_key(float x, int id)
{
    float y = x + 0.0f;
    uint32_t b;
    memcpy(&b, &y, sizeof b);
    b = b & 0x80000000u ? b : ~b & 0x7fffffffu;
    return (uint64_t)b << 32 | (uint32_t)id;
}

static inline float key_logit(uint64_t key)
{
    uint32_t b = (uint32_t)(key >> 32);
    b = b & 0x80000000u ? b : ~b & 0x7fffffffu;
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
}

static void insertion_sort(uint64_t *keys, int n)
{
    for (int i = 1; i < n; i++) {
        uint64_t k = keys[i];
        int j = i;
        for (; j > 0 && keys[j - 1] > k; j--)
            keys[j] = keys[j - 1];
        keys[j] = k;
    }
}

static inline size_t digit(uint64_t key, int d)
{
    return (size_t)(key >> (32 + d * DIGIT_BITS)) & (BUCKETS - 1);
}

/* One stable pass by digit `d`; returns false, having moved nothing, when all share the digit. */
static bool radix_pass(uint32_t *count, int d, const uint64_t *from, uint64_t *to, int n)
{
    if (count[digit(from[0], d)] == (uint32_t)n)
        return false;
    uint32_t at = 0;
    for (int b = 0; b < BUCKETS; b++) {
        uint32_t here = count[b];
        count[b] = at;
        at += here;
    }
    for (int i = 0; i < n; i++)
        to[count[digit(from[i], d)]++] = from[i];
    return true;
}

/* Sorts s->keys[0..n), whose ids ascend, by rank. Stable passes over the logit's digits are enough:
 * equal logits stay in id order. Returns where the result lies, keys or spare. */
static const uint64_t *sort_segment(struct mx_sampler *s, int n)
{
    if (n < SMALL_SORT) {
        insertion_sort(s->keys, n);
        return s->keys;
    }
    memset(s->count, 0, DIGITS * sizeof *s->count);
    for (int i = 0; i < n; i++)
        for (int d = 0; d < DIGITS; d++)
            s->count[d][digit(s->keys[i], d)]++;
    uint64_t *from = s->keys, *to = s->spare;
    for (int d = 0; d < DIGITS; d++) {
        if (!radix_pass(s->count[d], d, from, to, n))
            continue;
        uint64_t *swap = from;
        from = to;
        to = swap;
    }
    return from;
}

/* A run of few logits of the row, at or after *i, that may hold one >= low: sets *i to its start
 * and returns its end, or the row's length when nothing is left. Passes over a whole block where
 * its largest logit says so. */
static int next_run(const struct walk *w, int *i, float low)
{
    for (int b = *i / MX_WEIGHTS_BLOCK; *i < w->vocab; b++) {
        int end = w->vocab - b * MX_WEIGHTS_BLOCK < MX_WEIGHTS_BLOCK ? w->vocab
                                                                     : (b + 1) * MX_WEIGHTS_BLOCK;
        if (w->s->block_max[b] >= low) {
            *i = (int)mx_logits_skip(w->row, (size_t)*i, (size_t)end, low);
            if (*i < end)
                return end - *i < MX_LOGITS_BLOCK ? end : *i + MX_LOGITS_BLOCK;
        }
        *i = end;
    }
    return w->vocab;
}

/* Writes the keys of the logits in [low, high) to s->keys in id order; returns how many. */
static int gather(const struct walk *w, float low, float high)
{
    uint64_t *keys = w->s->keys;
    int n = 0, i = 0;
    while (i < w->vocab) {
        int end = next_run(w, &i, low);
        for (; i < end; i++) {
            float x = w->row[i];
            keys[n] = make_key(x, i);
            n += (x >= low) & (x < high);
        }
    }
    return n;
}

/* Restores the heap order (parent not better than its children: the root is the worst kept) below
 * place i. */
static void sift_down(uint64_t *heap, int n, int i)
{
    uint64_t k = heap[i];
    for (int child = 2 * i + 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && heap[child + 1] > heap[child])
            child++;
        if (heap[child] <= k)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = k;
}

/* Makes n keys a heap. */
static void heapify(uint64_t *heap, int n)
{
    for (int j = n / 2 - 1; j >= 0; j--)
        sift_down(heap, n, j);
}

/* Takes a key into the heap of at most k best; returns how many there are. The first k are in no
 * order until they are complete. */
static int offer(uint64_t *heap, int n, int k, uint64_t key)
{
    if (n < k) {
        heap[n++] = key;
        if (n == k)
            heapify(heap, n);
    } else if (key < heap[0]) {
        heap[0] = key;
        sift_down(heap, n, 0);
    }
    return n;
}

/* The k-th largest of the blocks' largest logits, which the k-th largest logit cannot be below; or
 * `low` when that is higher or there are fewer blocks. */
static float lowest_of_best(const struct walk *w, int k, float low)
{
    uint64_t *heap = w->s->keys;
    int blocks = (int)mx_weights_blocks((size_t)w->vocab), n = 0;
    if (blocks < k)
        return low;
    for (int b = 0; b < blocks; b++)
        n = offer(heap, n, k, make_key(w->s->block_max[b], b));
    float worst = key_logit(heap[0]);
    return worst > low ? worst : low;
}

/* The heap of the k best logits >= low in s->keys; returns how many there are. */
static int select_heap(const struct walk *w, int k, float low)
{
    uint64_t *heap = w->s->keys;
    int n = 0, i = 0;
    low = lowest_of_best(w, k, low);
    while (i < w->vocab) {
        int end = next_run(w, &i, low);
        for (; i < end; i++) {
            if (!(w->row[i] >= low))
                continue;
            n = offer(heap, n, k, make_key(w->row[i], i));
            if (n == k)
                low = key_logit(heap[0]);
        }
    }
    if (n < k)
        heapify(heap, n);
    return n;
}

/* The k best, sorted by rank. */
static const uint64_t *select_top(const struct walk *w, int k, float low, int *n)
{
    uint64_t *heap = w->s->keys;
    *n = select_heap(w, k, low);
    for (int end = *n - 1; end > 0; end--) {
        uint64_t worst = heap[0];
        heap[0] = heap[end];
        heap[end] = worst;
        sift_down(heap, end, 0);
    }
    return heap;
}

/* ---- Filters ------------------------------------------------------------------------------ */

/* Narrows the interval of Z: to what a look at the heavy blocks tells, to the single-precision sum,
 * to the double-precision sum. Only close decisions come that far. */
static void narrow_z(struct walk *w)
{
    size_t n = (size_t)w->vocab;
    bool estimates = w->inv_t <= 1 / MX_WEIGHTS_MIN_TEMPERATURE;
    if (estimates && w->z_steps == 0) {
        mx_weights_bounds(w->row, w->s->block_max, n, w->max, w->inv_t, &w->z_low, &w->z_high);
    } else if (estimates && w->z_steps == 1) {
        double z = mx_weights_estimate(w->row, n, w->max, w->inv_t);
        w->z_low = z * (1 - MX_WEIGHTS_SLACK);
        w->z_high = z * (1 + MX_WEIGHTS_SLACK);
    } else {
        w->z_low = w->z_high = mx_weights_sum(w->row, n, w->max, w->inv_t);
    }
    w->z_steps++;
}

/* Whether the mass so far leaves room for one more token under top-p. */
static bool below_top_p(struct walk *w)
{
    while (w->top_p < 1) {
        if (w->mass < w->top_p * w->z_low)
            return true;
        if (w->mass >= w->top_p * w->z_high)
            return false;
        narrow_z(w);
    }
    return true;
}

/* Takes candidates in rank order. False when a filter ended the walk. */
static bool take_ranked(struct walk *w, const uint64_t *keys, int n)
{
    struct mx_dist *d = w->d;
    int room = w->limit - d->n, take = n < room ? n : room;
    for (int i = 0; i < take; i++)
        w->s->logits[i] = key_logit(keys[i]);
    mx_weights(w->s->logits, (size_t)take, w->max, w->inv_t, d->p + d->n);
    for (int i = 0; i < take; i++) {
        double weight = d->p[d->n];
        if (weight <= 0 || weight < w->min_weight || !below_top_p(w))
            return false;
        int32_t place = (int32_t)(uint32_t)keys[i];
        d->ids[d->n++] = w->ids ? w->ids[place] : place;
        w->mass += weight;
    }
    return d->n < w->limit;
}

/* A logit below which nothing can be `reach` temperatures from the largest, or closer. */
static float reach_floor(const struct walk *w, double reach)
{
    double x = (double)w->max - reach / w->inv_t;
    return x <= -(double)FLT_MAX ? -FLT_MAX : nextafterf((float)x, -FLT_MAX);
}

static void walk_segments(struct walk *w, double reach, float floor)
{
    float high = INFINITY, low;
    do {
        low = reach_floor(w, reach);
        low = low > floor ? low : floor;
        int n = gather(w, low, high);
        if (!take_ranked(w, sort_segment(w->s, n), n) || !below_top_p(w))
            return;
        high = low;
        reach *= REACH_GROWTH;
    } while (low > floor);
}

/* Every token that a filter may keep has a logit of at least this. The margin covers the rounding
 * of log and of the weights that are compared with min_p in the end. */
static float lowest_candidate(const struct walk *w)
{
    const double margin = 1e-9;
    double reach = MX_WEIGHTS_REACH;
    if (w->min_weight > 0 && -log(w->min_weight) < reach)
        reach = -log(w->min_weight);
    return reach_floor(w, reach + margin);
}

static void walk_row(struct walk *w)
{
    float floor = lowest_candidate(w);
    if (w->top_p < 1)
        narrow_z(w);
    if (w->limit <= HEAP_MAX) {
        int n;
        const uint64_t *keys = select_top(w, w->limit, floor, &n);
        take_ranked(w, keys, n);
        return;
    }
    bool cut = w->top_p < 1 || w->limit < w->vocab;
    walk_segments(w, cut ? FIRST_REACH : MX_WEIGHTS_REACH, floor);
}

static void normalise(struct walk *w)
{
    for (int i = 0; i < w->d->n; i++)
        w->d->p[i] /= w->mass;
}

/* ---- Rows --------------------------------------------------------------------------------- */

/* The row the filters see: the caller's, or a copy with penalties applied and +inf replaced. */
static const float *effective_row(struct mx_sampler *s, const mtplx_sampling *cfg,
                                  const struct mx_counts *counts, const float *logits,
                                  const int32_t *ids, int vocab, float *max)
{
    const float *row = logits;
    if (mx_counts_active(counts, cfg)) {
        memcpy(s->row, logits, (size_t)vocab * sizeof *logits);
        mx_counts_apply(counts, cfg, s->row, ids, vocab);
        row = s->row;
    }
    *max = mx_logits_block_max(row, (size_t)vocab, s->block_max);
    if (*max <= FLT_MAX)
        return row;
    for (int i = 0; i < vocab; i++)
        s->row[i] = mx_logit_clamp(row[i]);
    *max = mx_logits_block_max(s->row, (size_t)vocab, s->block_max);
    return s->row;
}

/* The wide law of an unfiltered row; false when it has none. The first try spares rows without
 * penalties and +inf, which is nearly all of them, the pass of effective_row(). */
static bool sample_wide(struct mx_sampler *s, const mtplx_sampling *cfg,
                        const struct mx_counts *counts, const float *logits, const int32_t *ids,
                        int n, struct mx_dist *d)
{
    double inv_t = 1 / cfg->temperature;
    float max;
    d->n = 0;
    if (!mx_counts_active(counts, cfg) && mx_wide_fill(&d->wide, logits, ids, n, inv_t))
        return true;
    const float *row = effective_row(s, cfg, counts, logits, ids, n, &max);
    return mx_wide_fill(&d->wide, row, ids, n, inv_t);
}

void mx_sample_dist_of(struct mx_sampler *s, const mtplx_sampling *cfg,
                       const struct mx_counts *counts, const float *logits, const int32_t *ids,
                       int n, struct mx_dist *d)
{
    int vocab = n < s->vocab ? n : s->vocab;
    d->wide.n = 0;
    if (d->wide.cap >= vocab && unfiltered(cfg, vocab) &&
        sample_wide(s, cfg, counts, logits, ids, vocab, d))
        return;
    if (mx_sampling_greedy(cfg)) {
        mx_dist_point(d, mx_sample_argmax_of(cfg, counts, logits, ids, vocab));
        return;
    }
    struct walk w = {
        .s = s, .vocab = vocab, .ids = ids, .top_p = cfg->top_p, .min_weight = cfg->min_p, .d = d};
    w.row = effective_row(s, cfg, counts, logits, ids, vocab, &w.max);
    if (!(w.max >= -FLT_MAX) || d->cap <= 0) {
        mx_dist_point(d, ids && vocab > 0 ? ids[0] : 0);
        return;
    }
    double inv_t = 1 / cfg->temperature;
    w.inv_t = inv_t < DBL_MAX ? inv_t : DBL_MAX; /* 0 times it must stay 0 */
    w.limit = cfg->top_k > 0 && cfg->top_k < vocab ? cfg->top_k : vocab;
    w.limit = w.limit < d->cap ? w.limit : d->cap;
    d->n = 0;
    walk_row(&w);
    normalise(&w);
}

void mx_sample_dist(struct mx_sampler *s, const mtplx_sampling *cfg, const struct mx_counts *counts,
                    const float *logits, int vocab, struct mx_dist *d)
{
    mx_sample_dist_of(s, cfg, counts, logits, NULL, vocab, d);
}

/* The place of the highest logit. Under penalties: the best of the seen tokens against the best of
 * the others. Membership is only looked up for a token that would win: each seen one at most once,
 * and each record of the scan. */
static int argmax_place(const mtplx_sampling *cfg, const struct mx_counts *counts,
                        const float *logits, const int32_t *ids, int n)
{
    if (!mx_counts_active(counts, cfg))
        return (int)mx_logits_argmax(logits, (size_t)n);
    float best;
    int at = mx_counts_best(counts, cfg, logits, ids, n, &best);
    for (int i = 0; i < n;) {
        i = (int)mx_logits_skip(logits, (size_t)i, (size_t)n, best);
        int end = n - i < MX_LOGITS_BLOCK ? n : i + MX_LOGITS_BLOCK;
        for (; i < end; i++) {
            float x = mx_logit_clamp(logits[i]);
            bool wins = x > best || (x == best && x >= -FLT_MAX && i < at);
            if (wins && !mx_counts_seen(counts, ids ? ids[i] : i)) {
                best = x;
                at = i;
            }
        }
    }
    return at;
}

int32_t mx_sample_argmax_of(const mtplx_sampling *cfg, const struct mx_counts *counts,
                            const float *logits, const int32_t *ids, int n)
{
    if (n <= 0)
        return 0;
    int at = argmax_place(cfg, counts, logits, ids, n);
    return ids ? ids[at] : at;
}

int32_t mx_sample_argmax(const mtplx_sampling *cfg, const struct mx_counts *counts,
                         const float *logits, int vocab)
{
    return mx_sample_argmax_of(cfg, counts, logits, NULL, vocab);
}
