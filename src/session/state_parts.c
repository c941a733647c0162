/* Snapshots as bytes: see state_parts.h. */
#include "session/state_parts.h"

#include <stdlib.h>
#include <string.h>

/* Head: u32 magic, u32 n_lag, u64 n, u64 mtp_len, u32 next_pos, u32 zero, zeros up to HEAD_NUMBERS;
 * then the lag. */
#define HEAD_MAGIC 0x3154534du /* "MST1" */
#define HEAD_NUMBERS 64
#define MAX_POSITION (1 << 28)

/* ---- Numbers ------------------------------------------------------------------------------ */

static void put_number(uint8_t *p, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static uint64_t get_number(const uint8_t *p, int bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

/* ---- Shape -------------------------------------------------------------------------------- */

static void add_part(struct mx_state_shape *sh, size_t bytes)
{
    sh->bytes[sh->parts++] = bytes;
}

struct mx_state_shape mx_state_shape_of(const mtplx_model *m, size_t n)
{
    const struct mx_geometry *g = &m->geometry;
    struct mx_state_shape sh = {.n = n};
    sh.kv_bytes = g->kv.layers > 0 ? mx_kv_block_bytes(&g->kv) : 0;
    sh.mtp_bytes = g->has_mtp && g->mtp_kv.layers > 0 ? mx_kv_block_bytes(&g->mtp_kv) : 0;
    sh.slab_bytes = mx_seq_slab_floats(m) * sizeof(float);
    sh.head_bytes = HEAD_NUMBERS;
    if (g->has_mtp)
        sh.head_bytes += MX_MAX_LAG * (size_t)g->hidden * sizeof(float);
    sh.whole = n / MX_KV_BLOCK;
    sh.tail = sh.kv_bytes > 0 && n % MX_KV_BLOCK != 0;
    if (sh.mtp_bytes) {
        sh.mtp_from = sh.whole > 0 ? sh.whole - 1 : 0;
        sh.mtp_to = (n - 1 + MX_KV_BLOCK - 1) / MX_KV_BLOCK;
    }
    add_part(&sh, sh.head_bytes);
    if (sh.tail)
        add_part(&sh, sh.kv_bytes);
    for (size_t i = sh.mtp_from; i < sh.mtp_to; i++)
        add_part(&sh, sh.mtp_bytes);
    if (sh.slab_bytes)
        add_part(&sh, sh.slab_bytes);
    return sh;
}

/* ---- View --------------------------------------------------------------------------------- */

/* Where bytes of a view that need host memory of their own are put. */
struct store {
    struct mx_device *d;
    uint8_t *next; /* NULL: only count */
    size_t used;
};

static void *take(struct store *st, size_t bytes)
{
    uint8_t *p = st->next ? st->next + st->used : NULL;
    st->used += (bytes + 63) / 64 * 64;
    return p;
}

static const void *in_host(struct store *st, const void *device, size_t bytes)
{
    if (st->d->host_memory)
        return device;
    void *p = take(st, bytes);
    if (p)
        st->d->ops->download(st->d, p, device, bytes);
    return p;
}

/* A block of which the first n positions count, with zeros behind them: what is there may be of
 * another conversation, whose bytes are nobody's business. */
static const void *counted(struct store *st, const void *device, const struct mx_kv_layout *l,
                           size_t n)
{
    size_t bytes = mx_kv_block_bytes(l), entry = mx_kv_entry_bytes(l);
    size_t most = (size_t)l->block_tokens;
    if (n >= most)
        return in_host(st, device, bytes);
    uint8_t *p = take(st, bytes);
    if (!p)
        return NULL;
    st->d->ops->download(st->d, p, device, bytes);
    for (size_t at = 0; at < bytes; at += most * entry)
        memset(p + at + n * entry, 0, (most - n) * entry);
    return p;
}

/* Entries of MTP block i that count. */
static size_t mtp_entries(const mtplx_snapshot *s, size_t i)
{
    size_t before = i * MX_KV_BLOCK, all = (size_t)s->mtp_len;
    return all > before ? all - before : 0;
}

static void write_head(uint8_t *head, const mtplx_snapshot *s, struct mx_device *d)
{
    put_number(head, HEAD_MAGIC, 4);
    put_number(head + 4, (uint64_t)s->n_lag, 4);
    put_number(head + 8, s->n, 8);
    put_number(head + 16, (uint64_t)s->mtp_len, 8);
    put_number(head + 24, (uint64_t)s->next_pos, 4);
    if (s->n_lag > 0)
        d->ops->download(d, head + HEAD_NUMBERS, s->lag,
                         (size_t)s->n_lag * (size_t)s->model->geometry.hidden * sizeof(float));
}

/* Run twice: to count the memory (st->next NULL), then to fill it, zeroed before. */
static void lay_out(struct mx_state_view *v, const mtplx_snapshot *s, struct store *st)
{
    const struct mx_state_shape *sh = &v->shape;
    const struct mx_geometry *g = &s->model->geometry;
    int part = 0;
    v->kv = take(st, (sh->whole + 1) * sizeof *v->kv);
    v->mtp = take(st, (sh->whole + 1) * sizeof *v->mtp);
    uint8_t *head = take(st, sh->head_bytes);
    if (head)
        write_head(head, s, st->d);
    v->parts[part++] = head;
    if (sh->tail)
        v->parts[part++] =
            counted(st, s->kv[sh->whole]->data, &g->kv, s->n - sh->whole * MX_KV_BLOCK);
    for (size_t i = sh->mtp_from; i < sh->mtp_to; i++)
        v->parts[part++] = i < s->n_mtp
                               ? counted(st, s->mtp[i]->data, &g->mtp_kv, mtp_entries(s, i))
                               : take(st, sh->mtp_bytes);
    if (sh->slab_bytes)
        v->parts[part++] = in_host(st, s->rec, sh->slab_bytes);
    for (size_t i = 0; i < sh->whole && sh->kv_bytes; i++) {
        const void *kv = in_host(st, s->kv[i]->data, sh->kv_bytes), *mtp = NULL;
        if (mx_state_pairs(sh, i))
            mtp = in_host(st, s->mtp[i - 1]->data, sh->mtp_bytes);
        if (st->next) {
            v->kv[i] = kv;
            v->mtp[i] = mtp;
        }
    }
}

/* Whether the snapshot has every block that its shape says. */
static bool whole_state(const mtplx_snapshot *s, const struct mx_state_shape *sh)
{
    bool has_mtp = s->model->geometry.has_mtp;
    if (has_mtp ? s->n_lag < 1 || s->n_lag > MX_MAX_LAG || s->mtp_len + s->n_lag != (int64_t)s->n
                : s->n_lag != 0)
        return false;
    if (sh->kv_bytes && s->n_kv < sh->whole + (sh->tail ? 1 : 0))
        return false;
    return !sh->mtp_bytes || s->n_mtp >= sh->mtp_from;
}

mtplx_status mx_state_view_open(struct mx_state_view *v, const mtplx_snapshot *s, mtplx_error *err)
{
    *v = (struct mx_state_view){.shape = mx_state_shape_of(s->model, s->n)};
    if (!whole_state(s, &v->shape))
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "the snapshot of %zu tokens was cut from a longer one and stands in memory "
                        "only; take one at the end of a sequence",
                        s->n);
    struct store st = {.d = s->model->device};
    lay_out(v, s, &st);
    v->memory = calloc(1, st.used);
    if (!v->memory)
        return mx_error_nomem(err, "a snapshot's bytes", st.used);
    st = (struct store){.d = s->model->device, .next = v->memory};
    lay_out(v, s, &st);
    return MTPLX_OK;
}

void mx_state_view_close(struct mx_state_view *v)
{
    free(v->memory);
    *v = (struct mx_state_view){0};
}

/* ---- Building ----------------------------------------------------------------------------- */

/* How many block objects of `tokens` a snapshot in RAM holds. */
static size_t shared_objects(const mtplx_snapshot *have, const mtplx_snapshot *s,
                             const struct mx_state_shape *sh)
{
    size_t most = have->n < s->n ? have->n : s->n, same = 0;
    while (same < most && have->tokens[same] == s->tokens[same])
        same++;
    size_t whole = same / MX_KV_BLOCK;
    if (whole > have->n_kv)
        whole = have->n_kv;
    /* Object i needs the MTP entries of all tokens up to the first one of block i. */
    while (sh->mtp_bytes && whole > 1 &&
           (have->mtp_len < (int64_t)(whole - 1) * MX_KV_BLOCK || have->n_mtp < whole - 1))
        whole--;
    return whole;
}

static void share(struct mx_state_builder *b, const mtplx_snapshot *have)
{
    mtplx_snapshot *s = b->s;
    b->shared = shared_objects(have, s, &b->shape);
    for (size_t i = 0; i < b->shared; i++) {
        s->kv[i] = mx_kv_block_ref(have->kv[i]);
        if (mx_state_pairs(&b->shape, i))
            s->mtp[i - 1] = mx_kv_block_ref(have->mtp[i - 1]);
    }
}

static mtplx_status allocate(struct mx_state_builder *b, mtplx_model *m, const int32_t *tokens,
                             mtplx_error *err)
{
    const struct mx_state_shape *sh = &b->shape;
    size_t n_kv = sh->kv_bytes ? sh->whole + (sh->tail ? 1 : 0) : 0;
    mtplx_snapshot *s = b->s = calloc(1, sizeof *s);
    if (!s)
        return mx_error_nomem(err, "a snapshot", sizeof *s);
    atomic_init(&s->refs, 1);
    s->model = m;
    s->n = sh->n;
    s->tokens = malloc(sh->n * sizeof *s->tokens);
    s->kv = (struct mx_kv_block **)calloc(n_kv + 1, sizeof *s->kv);
    s->mtp = (struct mx_kv_block **)calloc(sh->mtp_to + 1, sizeof *s->mtp);
    b->head = calloc(1, sh->head_bytes);
    if (!s->tokens || !s->kv || !s->mtp || !b->head)
        return mx_error_nomem(err, "a snapshot's tables", sh->n * sizeof *s->tokens);
    memcpy(s->tokens, tokens, sh->n * sizeof *s->tokens);
    s->n_kv = n_kv;
    s->n_mtp = sh->mtp_to;
    return MTPLX_OK;
}

mtplx_status mx_state_begin(struct mx_state_builder *b, mtplx_model *m, const int32_t *tokens,
                            size_t n, const mtplx_snapshot *have, mtplx_error *err)
{
    *b = (struct mx_state_builder){0};
    if (n == 0 || n > (size_t)m->geometry.context)
        return mx_error(err, MTPLX_ERR_LIMIT,
                        "a state of %zu tokens does not fit the context window of %d", n,
                        m->geometry.context);
    b->shape = mx_state_shape_of(m, n);
    mtplx_status st = allocate(b, m, tokens, err);
    if (st != MTPLX_OK) {
        mx_state_abandon(b);
        return st;
    }
    if (have && have->model == m && b->shape.kv_bytes)
        share(b, have);
    return MTPLX_OK;
}

static void upload_bounced(struct mx_state_builder *b)
{
    struct mx_device *d = b->s->model->device;
    for (int i = 0; i < b->n_bounce; i++) {
        d->ops->upload(d, b->bounce[i].device, b->bounce[i].host, b->bounce[i].bytes);
        free(b->bounce[i].host);
    }
    b->n_bounce = 0;
}

/* Host memory for `bytes` that shall come to stand at `device`. */
static mtplx_status host_for(struct mx_state_builder *b, void *device, size_t bytes, void **to,
                             mtplx_error *err)
{
    *to = device;
    if (b->s->model->device->host_memory)
        return MTPLX_OK;
    if (!(*to = malloc(bytes)))
        return mx_error_nomem(err, "a snapshot's bytes", bytes);
    b->bounce[b->n_bounce].host = *to;
    b->bounce[b->n_bounce].device = device;
    b->bounce[b->n_bounce++].bytes = bytes;
    return MTPLX_OK;
}

static mtplx_status new_block(struct mx_state_builder *b, bool mtp, size_t i, void **to,
                              mtplx_error *err)
{
    mtplx_model *m = b->s->model;
    size_t bytes = mtp ? b->shape.mtp_bytes : b->shape.kv_bytes;
    struct mx_kv_block *block = mx_kv_block_new(mtp ? m->mtp_pool : m->kv_pool);
    if (!block)
        return mx_error_nomem(err, "a KV cache block", bytes);
    *(mtp ? &b->s->mtp[i] : &b->s->kv[i]) = block;
    return host_for(b, block->data, bytes, to, err);
}

mtplx_status mx_state_parts_to(struct mx_state_builder *b, void *to[MX_STATE_PARTS],
                               mtplx_error *err)
{
    const struct mx_state_shape *sh = &b->shape;
    struct mx_device *d = b->s->model->device;
    mtplx_status st = MTPLX_OK;
    int part = 0;
    upload_bounced(b);
    to[part++] = b->head;
    if (sh->tail)
        st = new_block(b, false, sh->whole, &to[part++], err);
    for (size_t i = sh->mtp_from; i < sh->mtp_to && st == MTPLX_OK; i++)
        st = new_block(b, true, i, &to[part++], err);
    if (sh->slab_bytes && st == MTPLX_OK) {
        if (!(b->s->rec = d->ops->alloc(d, sh->slab_bytes)))
            return mx_error_nomem(err, "a recurrent state", sh->slab_bytes);
        st = host_for(b, b->s->rec, sh->slab_bytes, &to[part++], err);
    }
    return st;
}

mtplx_status mx_state_block_to(struct mx_state_builder *b, size_t i, void *to[2], mtplx_error *err)
{
    upload_bounced(b);
    to[0] = to[1] = NULL;
    mtplx_status st = new_block(b, false, i, &to[0], err);
    if (st == MTPLX_OK && mx_state_pairs(&b->shape, i))
        st = new_block(b, true, i - 1, &to[1], err);
    return st;
}

/* ---- The head ----------------------------------------------------------------------------- */

mtplx_status mx_state_check(const struct mx_state_builder *b, mtplx_error *err)
{
    const uint8_t *h = b->head;
    uint64_t n_lag = get_number(h + 4, 4), n = get_number(h + 8, 8);
    uint64_t mtp_len = get_number(h + 16, 8), next_pos = get_number(h + 24, 4);
    bool has_mtp = b->s->model->geometry.has_mtp;
    const char *wrong = NULL;
    if (get_number(h, 4) != HEAD_MAGIC)
        wrong = "magic number";
    else if (n != b->shape.n)
        wrong = "number of tokens";
    else if (has_mtp ? n_lag < 1 || n_lag > MX_MAX_LAG || n_lag > n : n_lag != 0)
        wrong = "number of unpaired hidden states";
    else if (mtp_len != (has_mtp ? n - n_lag : 0))
        wrong = "length of the MTP head's cache";
    else if (next_pos > MAX_POSITION + 1)
        wrong = "next position";
    for (int i = 28; i < HEAD_NUMBERS && !wrong; i++)
        if (h[i])
            wrong = "reserved field";
    return wrong ? mx_error(err, MTPLX_ERR_FORMAT, "the state's %s is wrong", wrong) : MTPLX_OK;
}

bool mx_state_text_only(const struct mx_state_builder *b)
{
    return get_number(b->head + 24, 4) == b->shape.n;
}

static mtplx_status read_head(struct mx_state_builder *b, mtplx_error *err)
{
    mtplx_snapshot *s = b->s;
    struct mx_device *d = s->model->device;
    size_t row = (size_t)s->model->geometry.hidden * sizeof(float);
    s->n_lag = (int)get_number(b->head + 4, 4);
    s->mtp_len = (int64_t)get_number(b->head + 16, 8);
    s->next_pos = (int32_t)get_number(b->head + 24, 4);
    if (s->n_lag == 0)
        return MTPLX_OK;
    if (!(s->lag = d->ops->alloc(d, (size_t)s->n_lag * row)))
        return mx_error_nomem(err, "hidden states", (size_t)s->n_lag * row);
    d->ops->upload(d, s->lag, b->head + HEAD_NUMBERS, (size_t)s->n_lag * row);
    return MTPLX_OK;
}

/* MTP blocks behind the last entry. */
static void drop_empty(mtplx_snapshot *s)
{
    size_t keep = ((size_t)s->mtp_len + MX_KV_BLOCK - 1) / MX_KV_BLOCK;
    while (s->n_mtp > keep)
        mx_kv_block_unref(s->mtp[--s->n_mtp]);
}

mtplx_snapshot *mx_state_end(struct mx_state_builder *b, mtplx_error *err)
{
    upload_bounced(b);
    mtplx_status st = read_head(b, err);
    if (st != MTPLX_OK) {
        mx_state_abandon(b);
        return NULL;
    }
    mtplx_snapshot *s = b->s;
    drop_empty(s);
    b->s = NULL;
    mx_state_abandon(b);
    return s;
}

void mx_state_abandon(struct mx_state_builder *b)
{
    for (int i = 0; i < b->n_bounce; i++)
        free(b->bounce[i].host);
    free(b->head);
    mx_snapshot_unref(b->s);
    *b = (struct mx_state_builder){0};
}
