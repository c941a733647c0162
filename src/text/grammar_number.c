/* Numbers within bounds, as machines over digits.
 *
 * A bounded number is a sign and a digit string without leading zeros. The machine reads the digits
 * from the left and knows whether the prefix still equals that of a bound of the same length; once
 * it differs from both, the remaining digits are free. Lengths are tried separately. For multiples
 * the remainder is part of the state.
 *
 * Decimals count in millionths: the digits of the bound are those of an integer, with the point
 * six digits from the right, and trailing digits may be left out as if they were zeros. The bounds
 * are rounded inwards and checked by reading them back, so that no text reads as a number outside.
 */
#include "text/grammar_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLACES = 6, MULTIPLE_MAX = 1000, DIGITS = 15 };
#define MILLION INT64_C(1000000)
#define DECIMAL_MAX 999999999.0 /* with six places a number has 15 digits, which a double holds */

/* ---- Integers ---- */

struct digits {
    struct mx_gbuild *b;
    struct mx_gauto *a;
    const char *lo, *hi; /* of equal length */
    int len, multiple;
    int *ids; /* state of (position, tight, remainder); -1: not made */
    int used;
};

static int state_of(struct digits *d, int at, int tight, int rem)
{
    int *id = &d->ids[(at * 4 + tight) * d->multiple + rem];
    if (*id < 0)
        *id = d->used++;
    return *id;
}

/* Edges of all states at position `at`; a state exists when something leads to it. */
static void digit_edges(struct digits *d, int at)
{
    for (int tight = 0; tight < 4; tight++)
        for (int rem = 0; rem < d->multiple; rem++) {
            int from = d->ids[(at * 4 + tight) * d->multiple + rem];
            int lo = tight & 1 ? d->lo[at] - '0' : 0, hi = tight & 2 ? d->hi[at] - '0' : 9;
            for (int c = lo; from >= 0 && c <= hi; c++) {
                int next = (tight & 1 && c == lo ? 1 : 0) | (tight & 2 && c == hi ? 2 : 0);
                int to = state_of(d, at + 1, next, (rem * 10 + c) % d->multiple);
                mx_gauto_edge(d->b, d->a, from, to, (uint32_t)('0' + c), (uint32_t)('0' + c));
            }
        }
}

/* Digit strings lo..hi of one length. */
static struct mx_gexpr *same_length(struct mx_gbuild *b, const char *lo, const char *hi,
                                    int multiple)
{
    struct digits d = {.b = b, .lo = lo, .hi = hi, .len = (int)strlen(lo), .multiple = multiple};
    size_t cells = ((size_t)d.len + 1) * 4 * (size_t)multiple;
    d.ids = mx_galloc(b, cells * sizeof *d.ids);
    d.a = mx_gauto_new(b, (int)cells);
    if (!d.ids || !d.a)
        return NULL;
    for (size_t i = 0; i < cells; i++)
        d.ids[i] = -1;
    state_of(&d, 0, 3, 0);
    for (int at = 0; at < d.len; at++)
        digit_edges(&d, at);
    for (int tight = 0; tight < 4; tight++) {
        int id = d.ids[(d.len * 4 + tight) * multiple];
        if (id >= 0)
            d.a->accept[id] = true;
    }
    d.a->n_states = d.used;
    return mx_gx_auto(b, d.a);
}

/* Integers lo..hi, both at least 0, without sign. */
static struct mx_gexpr *unsigned_range(struct mx_gbuild *b, int64_t lo, int64_t hi, int multiple)
{
    struct mx_gxlist alts = {0};
    char from[24], upto[24];
    int64_t first = 0, last = 9; /* numbers of one length */
    for (int len = 1; len <= DIGITS; len++) {
        int64_t x = lo > first ? lo : first, y = hi < last ? hi : last;
        if (x <= y) {
            snprintf(from, sizeof from, "%" PRId64, x);
            snprintf(upto, sizeof upto, "%" PRId64, y);
            mx_gxlist_put(b, &alts, same_length(b, from, upto, multiple));
        }
        if (hi <= last)
            break; /* the next length may not fit */
        first = last + 1;
        last = last * 10 + 9;
    }
    return mx_gx_alt(b, alts.n, alts.v);
}

struct mx_gexpr *mx_gnum_integers(struct mx_gbuild *b, int64_t lo, int64_t hi, int64_t multiple)
{
    if (multiple < 1 || multiple > MULTIPLE_MAX)
        return mx_gfail(b, MTPLX_ERR_UNSUPPORTED, "multiples of %" PRId64 " are not supported",
                        multiple);
    /* Every remainder is a state at every digit: the larger the multiple, the fewer digits. */
    int64_t most = multiple <= 10 ? MX_GNUM_MAX : multiple <= 100 ? INT64_C(99999999999) : 999999;
    lo = lo < -most ? -most : lo;
    hi = hi > most ? most : hi;
    struct mx_gexpr *minus = mx_gx_fail(b), *plus = mx_gx_fail(b);
    if (lo < 0)
        minus = MX_GX_SEQ(b, mx_gx_str(b, "-"),
                          unsigned_range(b, hi < 0 ? -hi : 1, -lo, (int)multiple));
    if (hi >= 0)
        plus = unsigned_range(b, lo > 0 ? lo : 0, hi, (int)multiple);
    return MX_GX_ALT(b, minus, plus);
}

/* ---- Decimals ---- */

/* The digits behind the point, `at` of them read, still equal to those of the bounds where these
 * are given; none need follow once what is missing may be zeros. */
static struct mx_gexpr *places(struct mx_gbuild *b, const char *lo, const char *hi, int at)
{
    if (at == PLACES)
        return mx_gx_empty(b);
    if (!lo && !hi)
        return mx_gx_rep(b, mx_gx_range(b, '0', '9'), 0, PLACES - at);
    struct mx_gxlist alts = {0};
    if (!lo || strspn(lo + at, "0") == strlen(lo + at))
        mx_gxlist_put(b, &alts, mx_gx_empty(b));
    int first = lo ? lo[at] - '0' : 0, last = hi ? hi[at] - '0' : 9;
    for (int c = first; c <= last; c++) {
        const char *l = lo && c == first ? lo : NULL, *h = hi && c == last ? hi : NULL;
        uint32_t digit = (uint32_t)('0' + c);
        mx_gxlist_put(b, &alts,
                      MX_GX_SEQ(b, mx_gx_range(b, digit, digit), places(b, l, h, at + 1)));
    }
    return mx_gx_alt(b, alts.n, alts.v);
}

/* A fraction (with its point, or nothing) between the millionths lo and hi (-1: no bound). */
static struct mx_gexpr *fraction(struct mx_gbuild *b, int64_t lo, int64_t hi)
{
    char from[24], upto[24];
    snprintf(from, sizeof from, "%06" PRId64, lo < 0 ? 0 : lo);
    snprintf(upto, sizeof upto, "%06" PRId64, hi < 0 ? MILLION - 1 : hi);
    const char *l = lo > 0 ? from : NULL, *h = hi >= 0 && hi < MILLION - 1 ? upto : NULL;
    struct mx_gxlist alts = {0};
    if (lo <= 0)
        mx_gxlist_put(b, &alts, mx_gx_empty(b));
    /* A point needs a digit behind it, the first: written out for that. */
    for (int c = l ? l[0] - '0' : 0; c <= (h ? h[0] - '0' : 9); c++) {
        uint32_t digit = (uint32_t)('0' + c);
        mx_gxlist_put(b, &alts,
                      MX_GX_SEQ(b, mx_gx_str(b, "."), mx_gx_range(b, digit, digit),
                                places(b, l && c == l[0] - '0' ? l : NULL,
                                       h && c == h[0] - '0' ? h : NULL, 1)));
    }
    return mx_gx_alt(b, alts.n, alts.v);
}

/* Numbers of lo..hi millionths, both at least 0. */
static struct mx_gexpr *unsigned_decimals(struct mx_gbuild *b, int64_t lo, int64_t hi)
{
    int64_t a = lo / MILLION, z = hi / MILLION;
    if (a == z)
        return MX_GX_SEQ(b, unsigned_range(b, a, a, 1), fraction(b, lo % MILLION, hi % MILLION));
    struct mx_gexpr *inner =
        z - a > 1 ? MX_GX_SEQ(b, unsigned_range(b, a + 1, z - 1, 1), fraction(b, -1, -1))
                  : mx_gx_fail(b);
    return MX_GX_ALT(b, MX_GX_SEQ(b, unsigned_range(b, a, a, 1), fraction(b, lo % MILLION, -1)),
                     inner,
                     MX_GX_SEQ(b, unsigned_range(b, z, z, 1), fraction(b, -1, hi % MILLION)));
}

/* The number that n millionths are read as. */
static double read_back(int64_t n)
{
    char text[40];
    snprintf(text, sizeof text, "%s%" PRId64 ".%06" PRId64, n < 0 ? "-" : "",
             (n < 0 ? -n : n) / MILLION, (n < 0 ? -n : n) % MILLION);
    return strtod(text, NULL);
}

/* Millionths on the inner side of a bound; `up`: it is a lower one. */
static int64_t inwards(double bound, bool open, bool up)
{
    int64_t n = (int64_t)floor(bound * 1e6), step = up ? 1 : -1;
    n -= 2 * step;
    for (int i = 0; i < 8; i++) {
        double x = read_back(n);
        if (up ? (open ? x > bound : x >= bound) : (open ? x < bound : x <= bound))
            break;
        n += step;
    }
    return n;
}

struct mx_gexpr *mx_gnum_decimals(struct mx_gbuild *b, double lo, bool open_lo, double hi,
                                  bool open_hi)
{
    if (lo > DECIMAL_MAX || hi < -DECIMAL_MAX)
        return mx_gfail(b, MTPLX_ERR_UNSUPPORTED,
                        "numbers with bounds beyond 999,999,999 are not supported");
    int64_t from = lo < -DECIMAL_MAX ? (int64_t)-DECIMAL_MAX * MILLION : inwards(lo, open_lo, true);
    int64_t upto = hi > DECIMAL_MAX ? (int64_t)DECIMAL_MAX * MILLION : inwards(hi, open_hi, false);
    if (from > upto)
        return mx_gx_fail(b);
    struct mx_gexpr *minus = mx_gx_fail(b), *plus = mx_gx_fail(b);
    if (from < 0)
        minus = MX_GX_SEQ(b, mx_gx_str(b, "-"), unsigned_decimals(b, upto < 0 ? -upto : 1, -from));
    if (upto >= 0)
        plus = unsigned_decimals(b, from > 0 ? from : 0, upto);
    return MX_GX_ALT(b, minus, plus);
}
