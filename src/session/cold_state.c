/* Snapshots as objects of the cold tier: see cold_state.h.
 *
 * The chain of a scope names everything: block object i has the key after its tokens, the snapshot
 * the key after its last piece. A prompt is walked block by block for as long as the tier knows
 * them; where snapshots end behind a border on the way, it is asked for those. */
#include "session/cold_state.h"

#include "session/state_parts.h"

#include <stdlib.h>
#include <string.h>

#define AHEAD 4 /* objects that the disk is asked for before their turn */

/* The key of the n tokens behind `border`, which is the key of what stands before them. */
static struct mx_cold_key key_behind(struct mx_cold_key border, const int32_t *tokens, size_t n)
{
    return n ? mx_cold_chain(border, tokens, n) : border;
}

/* ---- Writing ------------------------------------------------------------------------------ */

struct put_job {
    mtplx_snapshot *s;
    struct mx_state_view view;
    struct mx_cold_write *objects;
};

static void free_job(void *arg)
{
    struct put_job *job = arg;
    mx_state_view_close(&job->view);
    mx_snapshot_unref(job->s);
    free(job->objects);
    free(job);
}

/* Objects in the order in which they are to be written: blocks, then the snapshot. */
static void fill_objects(struct put_job *job, int point, const char *scope, const char *session)
{
    const struct mx_state_view *v = &job->view;
    const mtplx_snapshot *s = job->s;
    struct mx_cold_key key = mx_cold_chain_start(scope), parent = {0};
    for (size_t i = 0; i < v->shape.whole; i++) {
        const int32_t *tokens = s->tokens + i * MX_KV_BLOCK;
        key = mx_cold_chain(key, tokens, MX_KV_BLOCK);
        job->objects[i] = (struct mx_cold_write){
            .kind = MX_COLD_BLOCK,
            .key = key,
            .parent = parent,
            .tokens = tokens,
            .n_tokens = MX_KV_BLOCK,
            .parts = {{v->kv[i], v->shape.kv_bytes}, {v->mtp[i], v->shape.mtp_bytes}},
            .n_parts = mx_state_pairs(&v->shape, i) ? 2 : 1,
            .session = session,
            .scope = scope};
        parent = key;
    }
    size_t done = v->shape.whole * MX_KV_BLOCK;
    struct mx_cold_write *o = &job->objects[v->shape.whole];
    *o = (struct mx_cold_write){.kind = MX_COLD_SNAPSHOT,
                                .key = key_behind(key, s->tokens + done, s->n - done),
                                .parent = parent,
                                .tokens = s->tokens,
                                .n_tokens = s->n,
                                .n_parts = v->shape.parts,
                                .point = point,
                                .session = session,
                                .scope = scope};
    for (int i = 0; i < v->shape.parts; i++)
        o->parts[i] = (struct mx_cold_part){v->parts[i], v->shape.bytes[i]};
}

/* Whether a snapshot is of the kind that its tokens say all about, and worth a file: rows at
 * positions of their own give other states, and what is shorter than a block has no border from
 * which it could be found. */
static bool fit_for_disk(const mtplx_snapshot *s)
{
    return s->n >= MX_KV_BLOCK && s->next_pos == (int64_t)s->n && s->model->geometry.kv.layers > 0;
}

bool mx_cold_put_snapshot(struct mx_cold *c, mtplx_snapshot *s, int point, const char *scope,
                          const char *session)
{
    if (!fit_for_disk(s))
        return false;
    struct put_job *job = calloc(1, sizeof *job);
    if (!job)
        return false;
    job->s = mx_snapshot_ref(s);
    size_t n = s->n / MX_KV_BLOCK + 1;
    job->objects = calloc(n, sizeof *job->objects);
    if (!job->objects || mx_state_view_open(&job->view, s, NULL) != MTPLX_OK) {
        free_job(job);
        return false;
    }
    fill_objects(job, point, scope, session);
    return mx_cold_put(c, job->objects, n, free_job, job);
}

/* ---- Finding ------------------------------------------------------------------------------ */

/* The longest snapshot that ends less than a block behind a border at `at` tokens and at or before
 * `last`; 0: none. */
static size_t find_behind(struct mx_cold *c, struct mx_cold_key border, const int32_t *tokens,
                          size_t at, size_t last)
{
    uint64_t ends = mx_cold_ends(c, border);
    for (int r = MX_KV_BLOCK - 1; r >= 0 && ends; r--) {
        if (!(ends >> r & 1) || at + (size_t)r > last)
            continue;
        struct mx_cold_key key = key_behind(border, tokens + at, (size_t)r);
        if (mx_cold_has(c, MX_COLD_SNAPSHOT, key))
            return at + (size_t)r;
    }
    return 0;
}

size_t mx_cold_find(struct mx_cold *c, const char *scope, const int32_t *tokens, size_t n,
                    size_t above)
{
    struct mx_cold_key key = mx_cold_chain_start(scope);
    size_t best = 0;
    for (size_t at = MX_KV_BLOCK; at < n; at += MX_KV_BLOCK) {
        key = mx_cold_chain(key, tokens + at - MX_KV_BLOCK, MX_KV_BLOCK);
        if (!mx_cold_has(c, MX_COLD_BLOCK, key))
            break;
        size_t found = find_behind(c, key, tokens, at, n - 1);
        if (found > above)
            best = found;
    }
    return best;
}

/* ---- Reading ------------------------------------------------------------------------------ */

static mtplx_status cancelled(const atomic_bool *cancel, mtplx_error *err)
{
    if (cancel && atomic_load_explicit(cancel, memory_order_relaxed))
        return mx_error(err, MTPLX_ERR_CANCELLED, "reading a snapshot from disk was cancelled");
    return MTPLX_OK;
}

static mtplx_status read_snapshot(struct mx_cold *c, struct mx_state_builder *b,
                                  struct mx_cold_key key, mtplx_error *err)
{
    const struct mx_state_shape *sh = &b->shape;
    struct mx_cold_part parts[MX_STATE_PARTS];
    void *to[MX_STATE_PARTS];
    mtplx_status st = mx_state_parts_to(b, to, err);
    if (st != MTPLX_OK)
        return st;
    for (int i = 0; i < sh->parts; i++)
        parts[i] = (struct mx_cold_part){to[i], sh->bytes[i]};
    st = mx_cold_read(c, MX_COLD_SNAPSHOT, key, b->s->tokens, sh->n, parts, sh->parts, err);
    if (st != MTPLX_OK)
        return st;
    st = mx_state_check(b, err);
    /* Of the cold tier's states, tokens are all there is to know. */
    if (st == MTPLX_OK && !mx_state_text_only(b))
        st = mx_error(err, MTPLX_ERR_FORMAT, "the state has positions of its own");
    if (st != MTPLX_OK)
        mx_cold_reject(c, MX_COLD_SNAPSHOT, key, err ? err->message : "its numbers are wrong");
    return st;
}

static mtplx_status read_block(struct mx_cold *c, struct mx_state_builder *b, size_t i,
                               struct mx_cold_key key, mtplx_error *err)
{
    void *to[2];
    mtplx_status st = mx_state_block_to(b, i, to, err);
    if (st != MTPLX_OK)
        return st;
    struct mx_cold_part parts[2] = {{to[0], b->shape.kv_bytes}, {to[1], b->shape.mtp_bytes}};
    return mx_cold_read(c, MX_COLD_BLOCK, key, b->s->tokens + i * MX_KV_BLOCK, MX_KV_BLOCK, parts,
                        to[1] ? 2 : 1, err);
}

/* The snapshot object first: it is what may be missing, and what says whether the rest is of use.
 * While one object is checked and unpacked, the disk works on the next ones. */
static mtplx_status read_all(struct mx_cold *c, struct mx_state_builder *b,
                             const struct mx_cold_key *keys, const atomic_bool *cancel,
                             mtplx_error *err)
{
    size_t whole = b->shape.whole, asked = mx_cold_wants_prefetch(c) ? b->shared : whole;
    mtplx_status st = cancelled(cancel, err);
    for (; asked < whole && asked < b->shared + AHEAD && st == MTPLX_OK; asked++)
        mx_cold_prefetch(c, MX_COLD_BLOCK, keys[asked]);
    if (st == MTPLX_OK)
        st = read_snapshot(c, b, keys[whole], err);
    for (size_t i = b->shared; i < whole && st == MTPLX_OK; i++) {
        if (asked < whole)
            mx_cold_prefetch(c, MX_COLD_BLOCK, keys[asked++]);
        if ((st = cancelled(cancel, err)) == MTPLX_OK)
            st = read_block(c, b, i, keys[i], err);
    }
    return st;
}

mtplx_snapshot *mx_cold_load(struct mx_cold *c, mtplx_model *m, const char *scope,
                             const int32_t *tokens, size_t n, const mtplx_snapshot *have,
                             const atomic_bool *cancel, mtplx_error *err)
{
    struct mx_state_builder b;
    if (mx_state_begin(&b, m, tokens, n, have, err) != MTPLX_OK)
        return NULL;
    size_t whole = b.shape.whole;
    struct mx_cold_key *keys = malloc((whole + 1) * sizeof *keys);
    mtplx_status st =
        keys ? MTPLX_OK : mx_error_nomem(err, "the keys of a snapshot", (whole + 1) * sizeof *keys);
    if (st == MTPLX_OK) {
        struct mx_cold_key key = mx_cold_chain_start(scope);
        for (size_t i = 0; i < whole; i++)
            keys[i] = key = mx_cold_chain(key, tokens + i * MX_KV_BLOCK, MX_KV_BLOCK);
        size_t done = whole * MX_KV_BLOCK;
        keys[whole] = key_behind(key, tokens + done, n - done);
        st = read_all(c, &b, keys, cancel, err);
        if (st == MTPLX_OK)
            mx_cold_touch(c, keys[whole]);
    }
    free(keys);
    if (st != MTPLX_OK) {
        mx_state_abandon(&b);
        return NULL;
    }
    return mx_state_end(&b, err);
}
