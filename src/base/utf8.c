/* Strict UTF-8 (Unicode 15, table 3-7: well-formed byte sequences). */
#include "base/utf8.h"

#include <string.h>

/* What a lead byte promises: total length and the range of the second byte. The narrowed ranges
 * exclude overlong forms (E0, F0), surrogates (ED) and values past U+10FFFF (F4). */
struct lead {
    int len; /* 0: not a lead byte */
    uint8_t lo, hi;
};

static struct lead classify(uint8_t b)
{
    if (b < 0x80)
        return (struct lead){1, 0, 0};
    if (b < 0xc2)
        return (struct lead){0, 0, 0};
    if (b < 0xe0)
        return (struct lead){2, 0x80, 0xbf};
    if (b < 0xf0)
        return (struct lead){3, b == 0xe0 ? 0xa0 : 0x80, b == 0xed ? 0x9f : 0xbf};
    if (b < 0xf5)
        return (struct lead){4, b == 0xf0 ? 0x90 : 0x80, b == 0xf4 ? 0x8f : 0xbf};
    return (struct lead){0, 0, 0};
}

int mx_utf8_decode(const char *s, size_t n, uint32_t *cp)
{
    if (n == 0)
        return -1;
    const uint8_t *p = (const uint8_t *)s;
    struct lead l = classify(p[0]);
    if (l.len == 0)
        return 0;
    if (l.len == 1) {
        *cp = p[0];
        return 1;
    }
    uint32_t v = p[0] & (0xffu >> (l.len + 1));
    for (int i = 1; i < l.len; i++) {
        if ((size_t)i >= n)
            return -1;
        uint8_t lo = i == 1 ? l.lo : 0x80, hi = i == 1 ? l.hi : 0xbf;
        if (p[i] < lo || p[i] > hi)
            return 0;
        v = v << 6 | (p[i] & 0x3fu);
    }
    *cp = v;
    return l.len;
}

int mx_utf8_encode(uint32_t cp, char out[4])
{
    if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000))
        cp = 0xfffd;
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    int len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (int i = len - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (cp & 0x3f));
        cp >>= 6;
    }
    static const uint8_t mark[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    out[0] = (char)(mark[len] | cp);
    return len;
}

/* True when the next eight bytes are ASCII. */
static bool ascii8(const char *s)
{
    uint64_t v;
    memcpy(&v, s, sizeof v);
    return (v & 0x8080808080808080u) == 0;
}

bool mx_utf8_valid(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        if (n - i >= 8 && ascii8(s + i)) {
            i += 8;
            continue;
        }
        uint32_t cp;
        int used = mx_utf8_decode(s + i, n - i, &cp);
        if (used <= 0)
            return false;
        i += (size_t)used;
    }
    return true;
}

size_t mx_utf8_count(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((uint8_t)s[i] & 0xc0) != 0x80; /* every byte but continuation bytes starts one */
    return count;
}

size_t mx_utf8_complete_prefix(const char *s, size_t n)
{
    size_t back = n < 3 ? n : 3; /* an incomplete sequence is at most three bytes */
    for (size_t k = 1; k <= back; k++) {
        uint32_t cp;
        if (((uint8_t)s[n - k] & 0xc0) == 0x80)
            continue;
        return mx_utf8_decode(s + n - k, k, &cp) == -1 ? n - k : n;
    }
    return n;
}
