/* UTF-8: strict decoding (no surrogates, no overlong forms, at most U+10FFFF). */
#ifndef MX_BASE_UTF8_H
#define MX_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes one code point from s[0..n). Returns the bytes used (1..4) and stores the code point;
 * returns 0 for an invalid sequence and -1 for a valid but incomplete prefix. */
int mx_utf8_decode(const char *s, size_t n, uint32_t *cp);

/* Writes 1..4 bytes; returns how many. Invalid code points become U+FFFD. */
int mx_utf8_encode(uint32_t cp, char out[4]);

bool mx_utf8_valid(const char *s, size_t n);

/* Code points in a valid string. */
size_t mx_utf8_count(const char *s, size_t n);

/* Length of the longest prefix of s[0..n) that does not end inside a code point: what a stream may
 * emit now. Invalid bytes count as complete (they will be replaced, not waited for). */
size_t mx_utf8_complete_prefix(const char *s, size_t n);

#endif
