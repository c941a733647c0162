/* Counts of KV blocks by address: a hash table with linear probing. See held.h. */
#include "session/held.h"

#include <stdlib.h>
#include <string.h>

static size_t home(const struct mx_held *h, const struct mx_kv_block *b)
{
    uint64_t x = (uint64_t)(uintptr_t)b * 0x9e3779b97f4a7c15u;
    return (size_t)(x >> 20) & (h->cap - 1);
}

/* The block's slot, or the free one where it would go. */
static struct mx_held_slot *slot_of(const struct mx_held *h, const struct mx_kv_block *b)
{
    size_t i = home(h, b);
    while (h->slots[i].block && h->slots[i].block != b)
        i = (i + 1) & (h->cap - 1);
    return &h->slots[i];
}

bool mx_held_reserve(struct mx_held *h, size_t more)
{
    size_t cap = h->cap ? h->cap : 256;
    while ((h->n + more) * 2 > cap)
        cap *= 2;
    if (cap == h->cap)
        return true;
    struct mx_held grown = {.slots = calloc(cap, sizeof *h->slots), .cap = cap};
    if (!grown.slots)
        return false;
    for (size_t i = 0; i < h->cap; i++)
        if (h->slots[i].block)
            *slot_of(&grown, h->slots[i].block) = h->slots[i];
    free(h->slots);
    h->slots = grown.slots;
    h->cap = cap;
    return true;
}

bool mx_held_add(struct mx_held *h, const struct mx_kv_block *b, void *owner)
{
    struct mx_held_slot *s = slot_of(h, b);
    bool is_new = !s->block;
    if (is_new) {
        *s = (struct mx_held_slot){.block = b, .owner = owner};
        h->n++;
    }
    s->count++;
    return is_new;
}

/* Frees slot i, moving up those behind it that had to make way for it. */
static void vacate(struct mx_held *h, size_t i)
{
    size_t mask = h->cap - 1;
    for (size_t j = (i + 1) & mask; h->slots[j].block; j = (j + 1) & mask) {
        size_t k = home(h, h->slots[j].block);
        if (((j - k) & mask) >= ((j - i) & mask)) {
            h->slots[i] = h->slots[j];
            i = j;
        }
    }
    memset(&h->slots[i], 0, sizeof h->slots[i]);
}

void *mx_held_drop(struct mx_held *h, const struct mx_kv_block *b)
{
    struct mx_held_slot *s = h->cap ? slot_of(h, b) : NULL;
    if (!s || !s->block || --s->count > 0)
        return NULL;
    void *owner = s->owner;
    h->n--;
    vacate(h, (size_t)(s - h->slots));
    return owner;
}

bool mx_held_has(const struct mx_held *h, const struct mx_kv_block *b)
{
    return h->n && slot_of(h, b)->block;
}

void mx_held_close(struct mx_held *h)
{
    free(h->slots);
    memset(h, 0, sizeof *h);
}
