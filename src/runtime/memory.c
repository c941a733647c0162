/* What sequences and generations take, for a scheduler that has to know before it starts one.
 *
 * The figures are those of the allocations that seq.c, forward.c and generate.c make, without what
 * the allocator adds. Estimates are the most that a run of that length reserves. */
#include "runtime/gen_int.h"

static uint64_t kv_bytes(const struct mx_kv_layout *l, uint64_t blocks, uint64_t table)
{
    return l->layers ? blocks * mx_kv_block_bytes(l) + table * 2 * sizeof(void *) : 0;
}

/* A cache of `entries` positions, its table as large as growing may have made it, and the copy of a
 * block that a snapshot goes on holding. */
static uint64_t kv_bytes_for(const struct mx_kv_layout *l, uint64_t entries)
{
    uint64_t blocks = (entries + MX_KV_BLOCK - 1) / MX_KV_BLOCK;
    return kv_bytes(l, blocks + 1, blocks + blocks / 2 + 8);
}

/* Everything of a sequence that does not grow: without what only a verify pass needs when it has
 * not had one. */
static uint64_t fixed_bytes(const mtplx_model *m, bool tape, bool pending)
{
    size_t hidden = (size_t)m->geometry.hidden, floats = mx_seq_slab_floats(m);
    if (m->geometry.has_mtp)
        floats += (MX_MAX_LAG + 1) * hidden;
    if (tape)
        floats += mx_seq_tape_floats(m);
    if (pending)
        floats += MX_MAX_PENDING * hidden;
    return sizeof(mtplx_seq) + (uint64_t)floats * sizeof(float);
}

uint64_t mx_seq_bytes_for(const mtplx_model *m, size_t tokens)
{
    const struct mx_geometry *g = &m->geometry;
    uint64_t n = tokens, bytes = fixed_bytes(m, mx_seq_slab_floats(m) > 0, true);
    bytes += kv_bytes_for(&g->kv, n) + (n + n / 2 + 64) * sizeof(int32_t);
    if (g->has_mtp)
        bytes += kv_bytes_for(&g->mtp_kv, n + MX_MAX_PENDING);
    return bytes;
}

uint64_t mx_seq_bytes(const mtplx_seq *s)
{
    const struct mx_geometry *g = &s->model->geometry;
    return fixed_bytes(s->model, s->tape, s->pending_hidden) +
           kv_bytes(&g->kv, s->kv.n_blocks, s->kv.cap_blocks) +
           kv_bytes(&g->mtp_kv, s->mtp.n_blocks, s->mtp.cap_blocks) +
           s->cap_tokens * sizeof(int32_t);
}

/* Distributions, sampler and penalties. */
static uint64_t law_bytes(const mtplx_model *m, const mtplx_gen_options *o, size_t tokens)
{
    mtplx_sampling s = o->sampling;
    int vocab = m->geometry.vocab;
    uint64_t bytes = 0;
    s.top_p = s.top_p == 0 ? 1 : s.top_p;
    s.repetition_penalty = s.repetition_penalty == 0 ? 1 : s.repetition_penalty;
    if (mx_gen_has_penalties(&s))
        bytes += mx_counts_bytes(tokens < (size_t)vocab ? tokens : (size_t)vocab);
    if (!mx_sampling_greedy(&s))
        bytes += mx_sampler_bytes(vocab) + (uint64_t)(o->depth + 1) * mx_dist_bytes_for(&s, vocab);
    return bytes;
}

uint64_t mx_gen_bytes_for(const mtplx_model *m, const mtplx_gen_options *o, size_t prompt,
                          size_t max_tokens)
{
    size_t context = (size_t)m->geometry.context, room = prompt < context ? context - prompt : 0;
    size_t most = max_tokens && max_tokens < room ? max_tokens : room;
    uint64_t tokens = (uint64_t)prompt + most;
    uint64_t bytes = sizeof(mtplx_gen) + (tokens + MX_MAX_PENDING) * sizeof(int32_t);
    int width = o->logprobs > 1 ? o->logprobs - 1 : 0;
    if (o->logprobs)
        bytes += mx_logprobs_bytes(most, width);
    if (o->prompt_logprobs)
        bytes += mx_logprobs_bytes(prompt, width);
    if (o->n_logit_bias || o->grammar)
        bytes += mx_bias_bytes(o->n_logit_bias) + (uint64_t)m->geometry.vocab * sizeof(float);
    if (o->context_copy)
        bytes += mx_copy_bytes(tokens);
    return bytes + law_bytes(m, o, tokens + MX_MAX_PENDING);
}
