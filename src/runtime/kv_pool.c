/* The block pool: see kv_pool.h for what holds.
 *
 * A block that comes back is kept while few are: the next sequence takes it without new pages being
 * mapped and cleared. The list is last in, first out, so what is reused is what caches still hold.
 */
#include "runtime/kv_pool.h"

#include <pthread.h>
#include <stdlib.h>

/* Free blocks that are kept: so many bytes, but at least so many blocks. */
#define KEEP_BYTES ((uint64_t)32 << 20)
#define KEEP_BLOCKS 8

struct mx_kv_pool {
    struct mx_device *device;
    size_t bytes; /* of a block */
    uint64_t most_idle;
    pthread_mutex_t lock; /* of all below */
    struct mx_kv_block *idle;
    uint64_t n_idle, n_used;
};

struct mx_kv_pool *mx_kv_pool_new(struct mx_device *d, const struct mx_kv_layout *l)
{
    struct mx_kv_pool *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->device = d;
    p->bytes = mx_kv_block_bytes(l);
    p->most_idle = p->bytes ? KEEP_BYTES / p->bytes : 0;
    if (p->most_idle < KEEP_BLOCKS)
        p->most_idle = KEEP_BLOCKS;
    pthread_mutex_init(&p->lock, NULL);
    return p;
}

/* Frees a list of blocks that nobody else sees. */
static void release(struct mx_kv_pool *p, struct mx_kv_block *list)
{
    while (list) {
        struct mx_kv_block *next = list->next;
        p->device->ops->free(p->device, list->data);
        free(list);
        list = next;
    }
}

void mx_kv_pool_free(struct mx_kv_pool *p)
{
    if (!p)
        return;
    release(p, p->idle);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

static struct mx_kv_block *take_idle(struct mx_kv_pool *p)
{
    pthread_mutex_lock(&p->lock);
    struct mx_kv_block *b = p->idle;
    if (b) {
        p->idle = b->next;
        p->n_idle--;
        p->n_used++;
    }
    pthread_mutex_unlock(&p->lock);
    return b;
}

static struct mx_kv_block *make(struct mx_kv_pool *p)
{
    struct mx_kv_block *b = malloc(sizeof *b);
    void *data = b ? p->device->ops->alloc(p->device, p->bytes) : NULL;
    if (!data) {
        free(b);
        return NULL;
    }
    b->data = data;
    b->pool = p;
    pthread_mutex_lock(&p->lock);
    p->n_used++;
    pthread_mutex_unlock(&p->lock);
    return b;
}

struct mx_kv_block *mx_kv_block_new(struct mx_kv_pool *p)
{
    struct mx_kv_block *b = take_idle(p);
    if (!b && !(b = make(p)))
        return NULL;
    atomic_init(&b->refs, 1);
    b->next = NULL;
    return b;
}

struct mx_kv_block *mx_kv_block_copy(const struct mx_kv_block *from)
{
    struct mx_kv_pool *p = from->pool;
    struct mx_kv_block *b = mx_kv_block_new(p);
    if (b)
        p->device->ops->copy(p->device, b->data, from->data, p->bytes);
    return b;
}

struct mx_kv_block *mx_kv_block_ref(struct mx_kv_block *b)
{
    atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
    return b;
}

void mx_kv_block_unref(struct mx_kv_block *b)
{
    if (!b || atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) > 1)
        return;
    struct mx_kv_pool *p = b->pool;
    pthread_mutex_lock(&p->lock);
    bool keep = p->n_idle < p->most_idle;
    b->next = keep ? p->idle : NULL;
    p->n_used--;
    if (keep) {
        p->idle = b;
        p->n_idle++;
    }
    pthread_mutex_unlock(&p->lock);
    if (!keep)
        release(p, b);
}

size_t mx_kv_pool_block_bytes(const struct mx_kv_pool *p)
{
    return p->bytes;
}

void mx_kv_pool_bytes(struct mx_kv_pool *p, uint64_t *used, uint64_t *idle)
{
    pthread_mutex_lock(&p->lock);
    *used = p->n_used * p->bytes;
    *idle = p->n_idle * p->bytes;
    pthread_mutex_unlock(&p->lock);
}

void mx_kv_pool_trim(struct mx_kv_pool *p, uint64_t keep)
{
    struct mx_kv_block *gone = NULL;
    pthread_mutex_lock(&p->lock);
    while (p->idle && p->n_idle * p->bytes > keep) {
        struct mx_kv_block *b = p->idle;
        p->idle = b->next;
        p->n_idle--;
        b->next = gone;
        gone = b;
    }
    pthread_mutex_unlock(&p->lock);
    release(p, gone);
}
