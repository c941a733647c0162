/* The bounded store of responses: a hash table by client and id, and a list by use.
 *
 *   1. An entry is in the table and in the list, or in neither. The store holds one reference to
 *      each of its entries, every reader one more: an evicted record lives until it was read.
 *   2. bytes is the sum of the entries' sizes, at most max_bytes, and there are at most max_entries
 *      of them, whenever the lock is free. */
#include "serve/response_store.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    struct mx_response_record r; /* first: readers hold a pointer to it */
    atomic_int refs;
    struct entry *chain;         /* of its bucket */
    struct entry *newer, *older; /* by use */
    size_t bytes;
    uint64_t job; /* under the store's lock */
    char text[];  /* the record's strings */
};

struct mx_response_store {
    pthread_mutex_t lock;
    size_t max_entries, max_bytes, n, bytes;
    struct entry *newest, *oldest;
    size_t mask; /* buckets - 1, a power of two less one */
    struct entry **buckets;
};

/* ---- Entries ------------------------------------------------------------------------------ */

static const char *copy_string(char **at, const char *s)
{
    size_t n = strlen(s) + 1;
    char *to = *at;
    memcpy(to, s, n);
    *at += n;
    return to;
}

static struct entry *new_entry(const struct mx_response_record *r)
{
    size_t n = strlen(r->id) + strlen(r->client) + strlen(r->response) + strlen(r->input) +
               strlen(r->context) + 5;
    struct entry *e = calloc(1, sizeof *e + n);
    if (!e)
        return NULL;
    char *at = e->text;
    e->r.id = copy_string(&at, r->id);
    e->r.client = copy_string(&at, r->client);
    e->r.response = copy_string(&at, r->response);
    e->r.input = copy_string(&at, r->input);
    e->r.context = copy_string(&at, r->context);
    e->r.pending = r->pending;
    e->bytes = sizeof *e + n;
    atomic_init(&e->refs, 1);
    return e;
}

static void unref(struct entry *e)
{
    if (atomic_fetch_sub(&e->refs, 1) == 1)
        free(e);
}

void mx_response_record_unref(const struct mx_response_record *r)
{
    if (r)
        unref((struct entry *)(uintptr_t)r);
}

/* ---- Table and list (with the lock held) -------------------------------------------------- */

static size_t bucket_of(const struct mx_response_store *s, const char *client, const char *id)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (const char *p = client; *p; p++)
        h = (h ^ (unsigned char)*p) * 1099511628211u;
    for (const char *p = id; *p; p++)
        h = (h ^ (unsigned char)*p) * 1099511628211u;
    return (size_t)(h ^ (h >> 32)) & s->mask;
}

/* Where the entry hangs in its bucket's chain; *place is NULL when there is none. */
static struct entry **find(struct mx_response_store *s, const char *client, const char *id)
{
    struct entry **place = &s->buckets[bucket_of(s, client, id)];
    while (*place && (strcmp((*place)->r.id, id) != 0 || strcmp((*place)->r.client, client) != 0))
        place = &(*place)->chain;
    return place;
}

static void list_remove(struct mx_response_store *s, struct entry *e)
{
    *(e->newer ? &e->newer->older : &s->newest) = e->older;
    *(e->older ? &e->older->newer : &s->oldest) = e->newer;
}

static void list_add(struct mx_response_store *s, struct entry *e)
{
    e->newer = NULL;
    e->older = s->newest;
    *(s->newest ? &s->newest->newer : &s->oldest) = e;
    s->newest = e;
}

static void drop(struct mx_response_store *s, struct entry **place)
{
    struct entry *e = *place;
    *place = e->chain;
    list_remove(s, e);
    s->n--;
    s->bytes -= e->bytes;
    unref(e);
}

/* Makes room for `e` and puts it in as the newest. */
static void insert(struct mx_response_store *s, struct entry *e)
{
    while (s->oldest && (s->n + 1 > s->max_entries || s->bytes + e->bytes > s->max_bytes))
        drop(s, find(s, s->oldest->r.client, s->oldest->r.id));
    struct entry **place = find(s, e->r.client, e->r.id);
    *place = e;
    list_add(s, e);
    s->n++;
    s->bytes += e->bytes;
}

/* ---- The store ---------------------------------------------------------------------------- */

struct mx_response_store *mx_response_store_new(size_t max_entries, size_t max_bytes)
{
    struct mx_response_store *s = calloc(1, sizeof *s);
    size_t buckets = 16;
    if (!s)
        return NULL;
    while (buckets < max_entries && buckets < 65536)
        buckets *= 2;
    s->buckets = calloc(buckets, sizeof(struct entry *));
    if (!s->buckets) {
        free(s);
        return NULL;
    }
    s->mask = buckets - 1;
    s->max_entries = max_entries;
    s->max_bytes = max_bytes;
    pthread_mutex_init(&s->lock, NULL);
    return s;
}

void mx_response_store_free(struct mx_response_store *s)
{
    if (!s)
        return;
    while (s->oldest)
        drop(s, find(s, s->oldest->r.client, s->oldest->r.id));
    pthread_mutex_destroy(&s->lock);
    free(s->buckets);
    free(s);
}

static bool put(struct mx_response_store *s, const struct mx_response_record *r, bool replace_only)
{
    struct entry *e = new_entry(r);
    if (!e)
        return false;
    pthread_mutex_lock(&s->lock);
    struct entry **place = find(s, r->client, r->id);
    bool ok = (*place || !replace_only) && s->max_entries > 0 && e->bytes <= s->max_bytes;
    if (*place)
        drop(s, place);
    if (ok)
        insert(s, e);
    pthread_mutex_unlock(&s->lock);
    if (!ok)
        unref(e);
    return ok;
}

bool mx_response_store_add(struct mx_response_store *s, const struct mx_response_record *r)
{
    return put(s, r, false);
}

const struct mx_response_record *mx_response_store_get(struct mx_response_store *s,
                                                       const char *client, const char *id)
{
    pthread_mutex_lock(&s->lock);
    struct entry *e = *find(s, client, id);
    if (e) {
        atomic_fetch_add(&e->refs, 1);
        list_remove(s, e);
        list_add(s, e);
    }
    pthread_mutex_unlock(&s->lock);
    return e ? &e->r : NULL;
}

bool mx_response_store_complete(struct mx_response_store *s, const char *client, const char *id,
                                const char *response)
{
    const struct mx_response_record *pending = mx_response_store_get(s, client, id);
    if (!pending)
        return false;
    struct mx_response_record r = *pending;
    r.response = response;
    r.pending = false;
    bool ok = put(s, &r, true);
    mx_response_record_unref(pending);
    return ok;
}

bool mx_response_store_remove(struct mx_response_store *s, const char *client, const char *id)
{
    pthread_mutex_lock(&s->lock);
    struct entry **place = find(s, client, id);
    bool found = *place != NULL;
    if (found)
        drop(s, place);
    pthread_mutex_unlock(&s->lock);
    return found;
}

void mx_response_store_set_job(struct mx_response_store *s, const char *client, const char *id,
                               uint64_t job)
{
    pthread_mutex_lock(&s->lock);
    struct entry *e = *find(s, client, id);
    if (e && e->r.pending)
        e->job = job;
    pthread_mutex_unlock(&s->lock);
}

uint64_t mx_response_store_job(struct mx_response_store *s, const char *client, const char *id)
{
    pthread_mutex_lock(&s->lock);
    const struct entry *e = *find(s, client, id);
    uint64_t job = e && e->r.pending ? e->job : 0;
    pthread_mutex_unlock(&s->lock);
    return job;
}

void mx_response_store_size(struct mx_response_store *s, size_t *entries, size_t *bytes)
{
    pthread_mutex_lock(&s->lock);
    *entries = s->n;
    *bytes = s->bytes;
    pthread_mutex_unlock(&s->lock);
}
