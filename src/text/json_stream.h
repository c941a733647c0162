/* Checks one JSON value byte by byte while it streams, and copies it.
 *
 * What is accepted is RFC 8259 with two limits (nesting, no half of a surrogate pair) and one
 * leniency: control characters inside strings, which models write, are copied as escapes. So what
 * was copied of an accepted value is JSON. Bytes above 127 are taken as they are. */
#ifndef MX_TEXT_JSON_STREAM_H
#define MX_TEXT_JSON_STREAM_H

#include "base/strbuf.h"

#include <stdint.h>

enum { MX_JSON_STREAM_DEPTH = 128 };

enum mx_json_kind {
    MX_JSON_NONE = 0, /* nothing but blanks so far */
    MX_JSON_OBJECT,
    MX_JSON_ARRAY,
    MX_JSON_STRING,
    MX_JSON_NUMBER,
    MX_JSON_BOOLEAN,
    MX_JSON_NULL,
};

enum mx_json_step {
    MX_JSON_MORE,
    MX_JSON_DONE, /* the byte was the value's last */
    MX_JSON_OVER, /* the value, a number, ended before this byte, which was not taken */
    MX_JSON_BAD,
};

/* All zero: before a value. */
struct mx_json_stream {
    enum mx_json_kind kind; /* of the whole value */
    int state, depth;
    uint64_t objects[MX_JSON_STREAM_DEPTH / 64]; /* which open containers are objects */
    const char *literal;                         /* what is left of true, false or null */
    unsigned hex;                                /* of the \u escape being read */
    int digits;                                  /* of it */
    bool high;                                   /* the first half of a surrogate pair was read */
    bool key;                                    /* the string being read is a key */
};

/* Takes a byte; blanks before the value are skipped, everything else is appended to `out` (which
 * may be NULL). */
enum mx_json_step mx_json_stream_step(struct mx_json_stream *j, char c, struct mx_strbuf *out);
/* Whether the value is complete if nothing follows (numbers know only then). */
bool mx_json_stream_may_end(const struct mx_json_stream *j);
/* The kind of s[0..n) when it is one JSON value and blanks, which is then appended to `out`; or
 * MX_JSON_NONE, with `out` as it was. */
enum mx_json_kind mx_json_scan(const char *s, size_t n, struct mx_strbuf *out);

/* Appends a byte of a string's text, escaped where JSON demands it. */
void mx_json_put_escaped(struct mx_strbuf *out, char c);
/* Appends s[0..n) as a JSON string. */
void mx_json_quote(struct mx_strbuf *out, const char *s, size_t n);

#endif
