/* Keeps text of messages from being read as special tokens. */
#include "serve/plain_text.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>

enum { NONCE_LEN = 19, WORD_LEN = NONCE_LEN + 5, DEPTH_MAX = 64 };

void mx_plain_init(struct mx_plain *g, const struct mx_tokenizer *t)
{
    memset(g, 0, sizeof *g);
    g->t = t;
}

void mx_plain_free(struct mx_plain *g)
{
    json_decref(g->texts);
    g->texts = NULL;
}

/* ---- Replacing ---------------------------------------------------------------------------- */

/* 64 random bits: no text of a request can know the word. Letters and digits, so that templates
 * leave it as it is. */
static bool choose_word(struct mx_plain *g)
{
    unsigned char bits[8];
    if (g->word[0])
        return true;
    randombytes_buf(bits, sizeof bits);
    size_t n = (size_t)snprintf(g->word, sizeof g->word, "mxp");
    for (size_t i = 0; i < sizeof bits; i++)
        n += (size_t)snprintf(g->word + n, sizeof g->word - n, "%02x", bits[i]);
    g->texts = json_array();
    return g->texts != NULL;
}

/* Number of a text, which is added when it is new; -1 when it cannot be. */
static int number_of(struct mx_plain *g, const char *s, size_t n)
{
    for (int i = 0; i < g->n; i++) {
        const json_t *t = json_array_get(g->texts, (size_t)i);
        if (json_string_length(t) == n && memcmp(json_string_value(t), s, n) == 0)
            return i;
    }
    g->too_many = g->n == MX_PLAIN_MAX;
    if (g->too_many)
        return -1;
    g->failed = json_array_append_new(g->texts, json_stringn(s, n)) != 0;
    return g->failed ? -1 : g->n++;
}

/* The string with its special tokens replaced; NULL when it has none, or on an error. */
static json_t *guarded_string(struct mx_plain *g, const json_t *v)
{
    const char *s = json_string_value(v);
    size_t n = json_string_length(v), at = 0, start, end;
    struct mx_strbuf b;
    if (!mx_tokenizer_next_special(g->t, s, n, 0, &start, &end))
        return NULL;
    mx_strbuf_init(&b, 0);
    g->failed |= !choose_word(g);
    while (!g->failed && !g->too_many && mx_tokenizer_next_special(g->t, s, n, at, &start, &end)) {
        mx_strbuf_append(&b, s + at, start - at);
        mx_strbuf_printf(&b, "%s%04dx", g->word, number_of(g, s + start, end - start));
        at = end;
    }
    mx_strbuf_append(&b, s + at, n - at);
    json_t *out = b.failed || g->failed || g->too_many ? NULL : json_stringn(b.data, b.len);
    g->failed |= !out && !g->too_many;
    mx_strbuf_free(&b);
    return out;
}

/* A value with its strings guarded; NULL when nothing changes, or on an error. Containers that
 * change are copied, since the request may share them. */
static json_t *guarded(struct mx_plain *g, const json_t *v, int depth)
{
    const char *key;
    size_t i;
    json_t *e, *copy = NULL, *shared = (json_t *)(uintptr_t)v;
    if (json_is_string(v))
        return guarded_string(g, v);
    if (depth == 0 || (!json_is_object(v) && !json_is_array(v)))
        return NULL;
    json_array_foreach(v, i, e)
    {
        json_t *changed = guarded(g, e, depth - 1);
        if (changed && !copy)
            copy = json_copy(shared);
        if (changed && json_array_set_new(copy, i, changed) != 0)
            g->failed = true;
    }
    json_object_foreach(shared, key, e)
    {
        json_t *changed = guarded(g, e, depth - 1);
        if (changed && !copy)
            copy = json_copy(shared);
        if (changed && json_object_set_new(copy, key, changed) != 0)
            g->failed = true;
    }
    return copy;
}

bool mx_plain_messages(struct mx_plain *g, json_t *messages)
{
    for (size_t i = 0; g->t && i < json_array_size(messages); i++) {
        json_t *changed = guarded(g, json_array_get(messages, i), DEPTH_MAX);
        if (changed && json_array_set_new(messages, i, changed) != 0)
            g->failed = true;
    }
    return !g->failed && !g->too_many;
}

/* ---- Taking back -------------------------------------------------------------------------- */

/* The next word in s[0..n): where it starts, and the text it stands for. */
static const json_t *next_word(const struct mx_plain *g, const char *s, size_t n, size_t *at)
{
    const char *hit = s, *end = s + n;
    while (g->n > 0 && (hit = memmem(hit, (size_t)(end - hit), g->word, NONCE_LEN))) {
        unsigned number = 0;
        size_t digits = 0;
        for (; digits < 4 && (size_t)(end - hit) >= WORD_LEN; digits++) {
            char c = hit[NONCE_LEN + digits];
            if (c < '0' || c > '9')
                break;
            number = number * 10 + (unsigned)(c - '0');
        }
        if (digits == 4 && hit[WORD_LEN - 1] == 'x' && number < (unsigned)g->n) {
            *at = (size_t)(hit - s);
            return json_array_get(g->texts, number);
        }
        hit++;
    }
    return NULL;
}

mtplx_status mx_plain_encode(const struct mx_plain *g, const char *text, size_t len,
                             struct mx_ids *out, mtplx_error *err)
{
    size_t at = 0;
    const json_t *word;
    while ((word = next_word(g, text, len, &at))) {
        mtplx_status st = mx_tokenizer_encode(g->t, text, at, false, out, err);
        if (!st)
            st = mx_tokenizer_encode(g->t, json_string_value(word), json_string_length(word), true,
                                     out, err);
        if (st)
            return st;
        text += at + WORD_LEN;
        len -= at + WORD_LEN;
    }
    return mx_tokenizer_encode(g->t, text, len, false, out, err);
}
