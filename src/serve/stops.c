/* Stop strings: one Knuth-Morris-Pratt automaton each (SIAM J. Comput. 6 (1977)), stepped together
 * over the bytes. What is held back is the longest beginning of a stop string that ends the text;
 * it starts where a stop string starts, so never inside a code point. */
#include "serve/stops.h"

#include <stdlib.h>
#include <string.h>

/* ---- The strings -------------------------------------------------------------------------- */

static void fill_table(const char *s, size_t n, uint16_t *fail)
{
    uint16_t k = 0;
    fail[0] = 0;
    for (size_t i = 1; i < n; i++) {
        while (k > 0 && s[k] != s[i])
            k = fail[k - 1];
        k += s[k] == s[i];
        fail[i] = k;
    }
}

bool mx_stop_set_init(struct mx_stop_set *s, const char *const *strings, int n)
{
    memset(s, 0, sizeof *s);
    for (int k = 0; k < n && k < MX_MAX_STOPS_REQUEST; k++) {
        size_t len = strnlen(strings[k], MX_STOP_LEN_MAX);
        s->n = k + 1;
        if (len == 0)
            continue;
        s->text[k] = strndup(strings[k], len);
        s->fail[k] = malloc(len * sizeof *s->fail[k]);
        if (!s->text[k] || !s->fail[k])
            return false;
        s->len[k] = len;
        fill_table(s->text[k], len, s->fail[k]);
    }
    return true;
}

void mx_stop_set_free(struct mx_stop_set *s)
{
    for (int k = 0; k < s->n; k++) {
        free(s->text[k]);
        free(s->fail[k]);
    }
    memset(s, 0, sizeof *s);
}

/* ---- The search --------------------------------------------------------------------------- */

void mx_stop_match_init(struct mx_stop_match *m, const struct mx_stop_set *set)
{
    *m = (struct mx_stop_match){.set = set, .found = -1};
    mx_strbuf_init(&m->held, 0);
}

void mx_stop_match_free(struct mx_stop_match *m)
{
    mx_strbuf_free(&m->held);
}

/* Steps all automata over a byte; index of the longest string that is complete now, or -1. */
static int step(struct mx_stop_match *m, char c)
{
    const struct mx_stop_set *s = m->set;
    int best = -1;
    for (int k = 0; k < s->n; k++) {
        uint16_t q = m->state[k];
        if (s->len[k] == 0)
            continue;
        while (q > 0 && s->text[k][q] != c)
            q = s->fail[k][q - 1];
        q += s->text[k][q] == c;
        m->state[k] = q;
        if (q == s->len[k] && (best < 0 || s->len[k] > s->len[best]))
            best = k;
    }
    return best;
}

static size_t longest_partial(const struct mx_stop_match *m)
{
    size_t n = 0;
    for (int k = 0; k < m->set->n; k++)
        n = m->state[k] > n ? m->state[k] : n;
    return n;
}

/* Emits the first n bytes of what is held. */
static void emit_held(struct mx_stop_match *m, size_t n, mx_stop_emit *emit, void *arg)
{
    if (n == 0)
        return;
    emit(arg, m->held.data, n);
    m->held.len -= n;
    memmove(m->held.data, m->held.data + n, m->held.len);
}

bool mx_stop_push(struct mx_stop_match *m, const char *text, size_t n, bool include,
                  mx_stop_emit *emit, void *arg)
{
    if (m->found >= 0 || n == 0)
        return true;
    if (m->set->n == 0) {
        emit(arg, text, n);
        return true;
    }
    size_t used = 0;
    while (used < n && m->found < 0)
        m->found = step(m, text[used++]);
    if (!mx_strbuf_append(&m->held, text, used))
        return false;
    if (m->found < 0) {
        emit_held(m, m->held.len - longest_partial(m), emit, arg);
        return true;
    }
    emit_held(m, m->held.len - (include ? 0 : m->set->len[m->found]), emit, arg);
    m->held.len = 0;
    return true;
}

void mx_stop_release(struct mx_stop_match *m, mx_stop_emit *emit, void *arg)
{
    emit_held(m, m->held.len, emit, arg);
    memset(m->state, 0, sizeof m->state);
}
