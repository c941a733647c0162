/* Log-probabilities: one pass for the largest logit, one for the sum, one for the alternatives. */
#include "runtime/logprobs.h"

#include <math.h>
#include <stdlib.h>

#include "runtime/weights.h"

enum { BLOCK_RECORDS = 64 };

struct record {
    float own;
    int n; /* alternatives; -1: not set */
};

struct mx_logprobs {
    size_t most, n_blocks; /* n_blocks: those that exist */
    int width;
    struct {
        struct record *records;   /* [BLOCK_RECORDS] */
        mtplx_token_logprob *top; /* [BLOCK_RECORDS][width] */
    } blocks[];
};

/* ---- Memory ------------------------------------------------------------------------------- */

static size_t blocks_for(size_t n)
{
    return (n + BLOCK_RECORDS - 1) / BLOCK_RECORDS;
}

struct mx_logprobs *mx_logprobs_new(size_t most, int width, mtplx_error *err)
{
    size_t bytes = sizeof(struct mx_logprobs);
    bytes += blocks_for(most) * sizeof((struct mx_logprobs *)0)->blocks[0];
    struct mx_logprobs *l = calloc(1, bytes);
    if (!l) {
        mx_error_nomem(err, "log-probabilities", bytes);
        return NULL;
    }
    l->most = most;
    l->width = width;
    return l;
}

void mx_logprobs_free(struct mx_logprobs *l)
{
    for (size_t i = 0; l && i < l->n_blocks; i++) {
        free(l->blocks[i].records);
        free(l->blocks[i].top);
    }
    free(l);
}

uint64_t mx_logprobs_bytes(size_t most, int width)
{
    uint64_t top = (uint64_t)(width > 0 ? width : 1) * sizeof(mtplx_token_logprob);
    uint64_t block = BLOCK_RECORDS * (sizeof(struct record) + top);
    block += sizeof((struct mx_logprobs *)0)->blocks[0];
    return sizeof(struct mx_logprobs) + blocks_for(most) * block;
}

static mtplx_status add_block(struct mx_logprobs *l, mtplx_error *err)
{
    size_t width = l->width > 0 ? (size_t)l->width : 1;
    struct record *r = malloc(BLOCK_RECORDS * sizeof *r);
    mtplx_token_logprob *top = calloc(BLOCK_RECORDS * width, sizeof *top);
    if (!r || !top) {
        free(r);
        free(top);
        return mx_error_nomem(err, "log-probabilities", BLOCK_RECORDS * width * sizeof *top);
    }
    for (int i = 0; i < BLOCK_RECORDS; i++)
        r[i] = (struct record){.n = -1};
    l->blocks[l->n_blocks].records = r;
    l->blocks[l->n_blocks++].top = top;
    return MTPLX_OK;
}

mtplx_status mx_logprobs_reserve(struct mx_logprobs *l, size_t n, mtplx_error *err)
{
    mtplx_status st = MTPLX_OK;
    n = n < l->most ? n : l->most;
    while (st == MTPLX_OK && l->n_blocks < blocks_for(n))
        st = add_block(l, err);
    return st;
}

/* ---- Figures ------------------------------------------------------------------------------ */

static float logprob(float logit, double log_sum)
{
    double p = (double)mx_logit_clamp(logit) - log_sum;
    return p > (double)MX_LOGPROB_LEAST ? (float)p : MX_LOGPROB_LEAST; /* NaN too */
}

/* log sum exp. Logits of +inf count as the largest float, beside which nothing else does. */
static double log_sum(const float *logits, size_t n)
{
    float max = mx_logits_max(logits, n);
    if (!(max >= -FLT_MAX) || max > FLT_MAX)
        return (double)mx_logit_clamp(max);
    return (double)max + log(mx_weights_sum(logits, n, max, 1));
}

/* Takes a token into the list of at most `width` likeliest, whose logprobs are logits yet; returns
 * how many there are. Tokens come in ascending order, so equals stand behind. */
static int offer(mtplx_token_logprob *top, int n, int width, int32_t token, float logit)
{
    int i = n < width ? n++ : width - 1;
    for (; i > 0 && top[i - 1].logprob < logit; i--)
        top[i] = top[i - 1];
    top[i] = (mtplx_token_logprob){token, logit};
    return n;
}

static int likeliest(const float *x, int vocab, int width, mtplx_token_logprob *top)
{
    float low = -FLT_MAX;
    int n = 0;
    for (int i = 0; i < vocab && width > 0;) {
        i = (int)mx_logits_skip(x, (size_t)i, (size_t)vocab, low);
        int end = vocab - i < MX_LOGITS_BLOCK ? vocab : i + MX_LOGITS_BLOCK;
        for (; i < end; i++) {
            float logit = mx_logit_clamp(x[i]);
            if (!(logit >= low) || (n == width && logit <= low))
                continue;
            n = offer(top, n, width, i, logit);
            low = n == width ? top[n - 1].logprob : low;
        }
    }
    return n;
}

void mx_logprobs_set(struct mx_logprobs *l, size_t index, const float *logits, int vocab,
                     int32_t token)
{
    if (index >= l->n_blocks * BLOCK_RECORDS)
        return;
    struct record *r = &l->blocks[index / BLOCK_RECORDS].records[index % BLOCK_RECORDS];
    size_t place = index % BLOCK_RECORDS * (size_t)l->width;
    mtplx_token_logprob *top = l->blocks[index / BLOCK_RECORDS].top + place;
    double sum = log_sum(logits, (size_t)vocab);
    r->own = logprob(logits[token], sum);
    r->n = likeliest(logits, vocab, l->width, top);
    for (int i = 0; i < r->n; i++)
        top[i].logprob = logprob(top[i].logprob, sum);
}

int mx_logprobs_get(const struct mx_logprobs *l, size_t index, float *own,
                    const mtplx_token_logprob **top)
{
    if (!l || index >= l->n_blocks * BLOCK_RECORDS)
        return -1;
    const struct record *r = &l->blocks[index / BLOCK_RECORDS].records[index % BLOCK_RECORDS];
    *own = r->own;
    *top = l->blocks[index / BLOCK_RECORDS].top + index % BLOCK_RECORDS * (size_t)l->width;
    return r->n;
}
