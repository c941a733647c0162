/* The record of tokens that could not be drafted. See misses.h.
 *
 * Saved form: {"tokens": [id, ...], "counts": [count, ...]}, of equal length.
 *
 * Invariants
 *  1. Entries are sorted by id, without repetition, counts positive.
 *  2. `n` is at most MX_MISSES_MAX, whatever a file says. */
#include "runtime/misses.h"

#include <stdlib.h>
#include <string.h>

struct entry {
    int32_t id;
    uint32_t count;
};

struct mx_misses {
    int vocab, n;
    bool grown;
    const int32_t *known; /* the draft vocabulary, or NULL */
    int n_known;
    struct entry entries[MX_MISSES_MAX];
    struct entry scratch[MX_MISSES_MAX];
    int32_t ranked[MX_MISSES_MAX];
};

static int compare_counts(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->count != y->count)
        return x->count > y->count ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Index of the first entry whose id is not below `id`. */
static int lower(const struct mx_misses *m, int32_t id)
{
    int low = 0, high = m->n;
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (m->entries[mid].id < id)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static bool drafted(const struct mx_misses *m, int32_t id)
{
    int low = 0, high = m->n_known;
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (m->known[mid] < id)
            low = mid + 1;
        else
            high = mid;
    }
    return low < m->n_known && m->known[low] == id;
}

/* Lets old counts fade, so that what is answered now can take their places. */
static void age(struct mx_misses *m)
{
    int kept = 0;
    for (int i = 0; i < m->n; i++) {
        m->entries[kept] = m->entries[i];
        m->entries[kept].count /= 2;
        kept += m->entries[kept].count > 0;
    }
    m->n = kept;
}

static void add(struct mx_misses *m, int32_t id, uint32_t count)
{
    int at = lower(m, id);
    if (at < m->n && m->entries[at].id == id) {
        struct entry *e = &m->entries[at];
        e->count = count < UINT32_MAX - e->count ? e->count + count : UINT32_MAX;
        return;
    }
    if (m->n == MX_MISSES_MAX) {
        age(m);
        at = lower(m, id);
    }
    if (m->n == MX_MISSES_MAX)
        return; /* every count was above 1: the next ages make room */
    memmove(m->entries + at + 1, m->entries + at, (size_t)(m->n - at) * sizeof *m->entries);
    m->entries[at] = (struct entry){id, count};
    m->n++;
}

struct mx_misses *mx_misses_new(const json_t *saved, int vocab)
{
    struct mx_misses *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->vocab = vocab;
    const json_t *tokens = json_object_get(saved, "tokens"),
                 *counts = json_object_get(saved, "counts");
    for (size_t i = 0; i < json_array_size(tokens) && m->n < MX_MISSES_MAX; i++) {
        const json_t *t = json_array_get(tokens, i), *c = json_array_get(counts, i);
        json_int_t id = json_integer_value(t), count = json_integer_value(c);
        if (json_is_integer(t) && id >= 0 && id < vocab && count > 0 && count <= UINT32_MAX)
            add(m, (int32_t)id, (uint32_t)count);
    }
    return m;
}

void mx_misses_free(struct mx_misses *m)
{
    free(m);
}

const int32_t *mx_misses_ranked(struct mx_misses *m, size_t *n)
{
    *n = m ? (size_t)m->n : 0;
    if (!m)
        return NULL;
    memcpy(m->scratch, m->entries, *n * sizeof *m->entries);
    qsort(m->scratch, *n, sizeof *m->scratch, compare_counts);
    for (size_t i = 0; i < *n; i++)
        m->ranked[i] = m->scratch[i].id;
    return m->ranked;
}

void mx_misses_watch(struct mx_misses *m, const int32_t *ids, int n)
{
    if (!m)
        return;
    m->known = ids;
    m->n_known = n;
}

void mx_misses_note(struct mx_misses *m, int32_t token)
{
    if (!m || !m->known || token < 0 || token >= m->vocab || drafted(m, token))
        return;
    add(m, token, 1);
    m->grown = true;
}

bool mx_misses_grown(const struct mx_misses *m)
{
    return m && m->grown;
}

json_t *mx_misses_json(const struct mx_misses *m)
{
    json_t *tokens = json_array(), *counts = json_array();
    for (int i = 0; m && i < m->n; i++) {
        json_array_append_new(tokens, json_integer(m->entries[i].id));
        json_array_append_new(counts, json_integer(m->entries[i].count));
    }
    return json_pack("{s:o, s:o}", "tokens", tokens, "counts", counts);
}
