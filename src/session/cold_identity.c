/* What states depend on besides their tokens, as three hashes: see cold_state.h.
 *
 * Two models with equal hashes must compute equal bits; the reverse is only worth having (a state
 * that could have been used is computed anew). So whatever may change a bit goes in, and nothing
 * that cannot: no path, no number of threads, no draft vocabulary (drafts are tested against the
 * target, and the MTP head's cache holds committed tokens only).
 *
 * Weights are gigabytes and identities are made at every start, so their contents are sampled: the
 * end of every tensor, and pieces at even distances before it in proportion to its size.
 * Fine-tuning, merging and re-quantising change nearly all rows of the matrices they touch; a
 * checkpoint that differs in a few rows of one matrix only would have to miss every sample. */
#include "session/cold_state.h"

#include "runtime/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

/* To be raised with every change, to a kernel or to the order of operations, after which the same
 * model gets states of other bits or another meaning: between releases nothing else tells. */
#define STATE_VERSION 1

#define PIECE_BYTES 1024u
#define PIECES 512u /* in all, besides one of every tensor */

/* ---- Hashing ------------------------------------------------------------------------------ */

/* A hash over pieces, each with its length, so that no two lists of pieces look alike. Needs no
 * memory that may be missing. */
struct digest {
    XXH128_canonical_t sum; /* of what was folded in so far */
    size_t n;
    uint8_t waiting[8192];
};

static void fold(struct digest *h, const void *data, size_t n)
{
    struct {
        XXH128_canonical_t before, piece;
    } link = {.before = h->sum};
    XXH128_canonicalFromHash(&link.piece, XXH3_128bits(data, n));
    XXH128_canonicalFromHash(&h->sum, XXH3_128bits(&link, sizeof link));
}

static void flush(struct digest *h)
{
    fold(h, h->waiting, h->n);
    h->n = 0;
}

static void add(struct digest *h, const void *data, size_t n)
{
    uint64_t length = n;
    bool fits = n <= sizeof h->waiting - sizeof length;
    if (h->n + sizeof length + (fits ? n : 0) > sizeof h->waiting)
        flush(h);
    memcpy(h->waiting + h->n, &length, sizeof length);
    h->n += sizeof length;
    if (fits && n) {
        memcpy(h->waiting + h->n, data, n);
        h->n += n;
    } else if (n) {
        flush(h);
        fold(h, data, n);
    }
}

static void add_number(struct digest *h, uint64_t v)
{
    uint8_t b[8];
    for (int i = 0; i < 8; i++)
        b[i] = (uint8_t)(v >> (8 * i));
    add(h, b, sizeof b);
}

static void add_string(struct digest *h, const char *s)
{
    size_t n = s ? strlen(s) : 0;
    add_number(h, s ? (uint64_t)n + 1 : 0);
    if (n)
        add(h, s, n);
}

static void add_float(struct digest *h, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    add_number(h, bits);
}

static void finish(struct digest *h, uint8_t out[16])
{
    flush(h);
    memcpy(out, h->sum.digest, sizeof h->sum.digest);
}

/* ---- Model -------------------------------------------------------------------------------- */

static uint64_t checkpoint_bytes(const struct mx_checkpoint *ck)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < mx_checkpoint_count(ck); i++)
        sum += mx_checkpoint_at(ck, i)->bytes;
    return sum;
}

/* Gives back the pages that sampling has mapped, where nothing else reads the file any more: the
 * system maps the neighbours of a page with it, which would add up to much of the file. */
static void forget(const struct mx_tensor *t)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = ((uintptr_t)t->data + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)t->data + t->bytes) / page * page;
    if (end > first)
        madvise((void *)first, end - first, MADV_DONTNEED);
}

static void add_tensor(struct digest *h, const struct mx_tensor *t, uint64_t total)
{
    add_string(h, t->name);
    add_number(h, (uint64_t)t->dtype);
    add_number(h, (uint64_t)t->gguf_type);
    add_number(h, (uint64_t)t->ndim);
    for (int i = 0; i < t->ndim; i++)
        add_number(h, (uint64_t)t->shape[i]);
    add_number(h, t->bytes);
    if (t->bytes <= PIECE_BYTES) {
        add(h, t->data, (size_t)t->bytes);
        return;
    }
    uint64_t n = 1 + (uint64_t)((double)t->bytes / (double)total * PIECES);
    for (uint64_t i = 1; i <= n; i++) {
        uint64_t at = (uint64_t)((double)(t->bytes - PIECE_BYTES) * ((double)i / (double)n));
        add(h, (const uint8_t *)t->data + at, PIECE_BYTES);
    }
}

static void add_checkpoint(struct digest *h, const struct mx_checkpoint *ck, bool copied)
{
    add_number(h, ck ? mx_checkpoint_count(ck) + 1 : 0);
    if (!ck)
        return;
    uint64_t total = checkpoint_bytes(ck);
    for (size_t i = 0; i < mx_checkpoint_count(ck); i++) {
        const struct mx_tensor *t = mx_checkpoint_at(ck, i);
        add_tensor(h, t, total);
        if (copied)
            forget(t);
    }
}

/* The config without what only says where it came from. Rotary base, norm epsilon, layer types and
 * the like stand nowhere else. */
static void add_config(struct digest *h, const struct mx_config *cfg)
{
    json_t *o = json_copy(cfg->root);
    json_object_del(o, "_name_or_path");
    json_object_del(o, "transformers_version");
    char *text = json_dumps(o, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(o);
    add_string(h, text);
    free(text);
}

static void add_kv_layout(struct digest *h, const struct mx_kv_layout *l)
{
    add_number(h, (uint64_t)l->block_tokens);
    add_number(h, (uint64_t)l->layers);
    add_number(h, (uint64_t)l->kv_heads);
    add_number(h, (uint64_t)l->head_dim);
}

static void model_identity(const mtplx_model *m, uint8_t out[16])
{
    const struct mx_geometry *g = &m->geometry;
    const struct mx_gdn_layout *r = &g->gdn;
    struct digest h = {0};
    add_string(&h, m->family->name);
    add_config(&h, &m->config);
    add_checkpoint(&h, m->checkpoint, m->device->fast);
    const int numbers[] = {g->layers,      g->hidden, g->vocab, r->layers, r->key_heads,
                           r->value_heads, r->dk,     r->dv,    r->kernel, r->tiled_heads};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        add_number(&h, (uint64_t)numbers[i]);
    add_kv_layout(&h, &g->kv);
    finish(&h, out);
}

/* ---- Text --------------------------------------------------------------------------------- */

/* From memory: what was read is what counts, wherever it came from. Patterns of the pre-tokenizer
 * are left out: they decide which tokens a text becomes, and tokens are compared themselves. */
static void add_tokenizer(struct digest *h, const struct mx_tokenizer *t)
{
    int n = t ? mx_tokenizer_size(t) : 0;
    uint32_t *ranks = n > 0 ? malloc((size_t)n * sizeof *ranks) : NULL;
    add_number(h, (uint64_t)n);
    for (int32_t id = 0; id < n; id++) {
        size_t len = 0;
        const char *bytes = mx_tokenizer_bytes(t, id, &len);
        uint64_t kind =
            (mx_tokenizer_is_special(t, id) ? 1u : 0u) | (mx_tokenizer_is_added(t, id) ? 2u : 0u);
        add_number(h, (uint64_t)len << 2 | kind);
        if (len)
            add(h, bytes, len);
    }
    if (ranks) {
        mx_tokenizer_ranks(t, ranks, (size_t)n);
        add(h, ranks, (size_t)n * sizeof *ranks);
    }
    free(ranks);
}

static void text_identity(const mtplx_model *m, uint8_t out[16])
{
    struct digest h = {0};
    add_tokenizer(&h, m->tokenizer);
    add_string(&h, m->chat ? mx_chat_template_text(m->chat, false) : NULL);
    add_string(&h, m->chat ? mx_chat_template_text(m->chat, true) : NULL);
    finish(&h, out);
}

/* ---- Policy ------------------------------------------------------------------------------- */

/* How weights are held: re-quantised at load, merged with an adapter, left apart. Their contents
 * follow from the checkpoint, which the model's part has. */
static void add_bound(struct digest *h, const mtplx_model *m)
{
    const struct mx_weights *w = &m->weights;
    for (size_t i = 0; i < w->n_bound; i++) {
        const struct mx_weight *b = w->bound[i];
        if (b == &m->draft.head)
            continue;
        const uint64_t numbers[] = {(uint64_t)b->kind,     (uint64_t)b->out,  (uint64_t)b->in,
                                    (uint64_t)b->sdtype,   (uint64_t)b->bits, (uint64_t)b->group,
                                    (uint64_t)b->gguf_type};
        for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
            add_number(h, numbers[k]);
    }
}

/* The functions of the C library that kernels call, by what they return: versions of it round the
 * last bit differently, and so do the variants that it has for different processors. */
static void add_libm(struct digest *h)
{
    float (*const functions[])(float) = {expf, log1pf, sinf, cosf};
    float y[512];
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
        for (int i = 0; i < 512; i++)
            y[i] = functions[f]((float)(i + 1) * (f == 0 ? -0.0717f : 0.7717f));
        add(h, y, sizeof y);
    }
}

static void policy_identity(const mtplx_model *m, uint8_t out[16])
{
    const struct mx_device *d = m->device;
    struct digest h = {0};
    add_number(&h, STATE_VERSION);
    add_string(&h, MTPLX_VERSION);
    add_string(&h, __VERSION__); /* of the compiler */
    add_libm(&h);
    add_string(&h, d->name);
    add_number(&h, d->fast);
    add_string(&h, d->fast ? d->int8 : NULL);
    add_string(&h, d->note); /* kernels that failed their check run otherwise */
    add_string(&h, m->info.kv_format);
    add_number(&h, mx_kv_block_bytes(&m->geometry.kv));
    add_number(&h, m->geometry.has_mtp);
    if (m->geometry.has_mtp) {
        add_string(&h, m->info.mtp_norm_encoding);
        add_kv_layout(&h, &m->geometry.mtp_kv);
        add_number(&h, mx_kv_block_bytes(&m->geometry.mtp_kv));
        add_checkpoint(&h, m->adapter, false);
        add_float(&h, m->adapter_scale);
    }
    add_string(&h, m->info.norm_encoding);
    add_bound(&h, m);
    finish(&h, out);
}

void mx_cold_identify(const mtplx_model *m, struct mx_cold_identity *id)
{
    model_identity(m, id->model);
    text_identity(m, id->text);
    policy_identity(m, id->policy);
}
