/* Decoding: the decoder's byte mapping, and turning streams of token bytes into valid UTF-8.
 *
 * Every supported decoder maps token by token, so the mapping is done once at load. What is left at
 * run time is to concatenate bytes and to replace what is not UTF-8. One difference to the
 * reference is deliberate: its ByteFallback replaces every byte of a run of byte tokens when any of
 * the run is bad, which no stream can know; here only the bad parts are replaced.
 *
 * Invariants:
 *   1. struct mx_detok holds back at most three bytes: a proper prefix of one code point.
 *   2. mx_tokenizer_decode() is a detokeniser run to its end, so the two cannot differ. */
#include "text/detok.h"

#include "base/utf8.h"
#include "text/tokenizer.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_MAX 16
#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* ---- The decoder ---- */

struct replace {
    const char *pattern, *content; /* borrowed from the JSON */
    size_t pattern_len, content_len;
};

struct decoder {
    struct replace replaces[STEPS_MAX];
    size_t n_replaces;
    bool byte_level, byte_fallback, fused;
    struct mx_byte_map bytes;
};

static mtplx_status load_replace(struct decoder *d, const json_t *spec, const char *where,
                                 mtplx_error *err)
{
    if (d->byte_level || d->byte_fallback || d->fused || d->n_replaces == STEPS_MAX)
        return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                        "%s: Replace after another decoder step is not supported", where);
    struct replace *r = &d->replaces[d->n_replaces++];
    const json_t *text = json_object_get(json_object_get(spec, "pattern"), "String");
    r->pattern = json_string_value(text);
    r->pattern_len = json_string_length(text);
    if (!r->pattern || r->pattern_len == 0)
        return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                        "%s.pattern is not {\"String\": text}, the only supported kind", where);
    return mx_tok_string(spec, where, "content", true, &r->content, &r->content_len, err);
}

static mtplx_status load_step(struct decoder *d, const json_t *spec, const char *where,
                              mtplx_error *err)
{
    const char *type;
    mtplx_status status = mx_tok_type(spec, where, &type, err);
    if (status)
        return status;
    if (strcmp(type, "Replace") == 0)
        return load_replace(d, spec, where, err);
    if (strcmp(type, "Fuse") == 0) {
        d->fused = true;
        return MTPLX_OK;
    }
    bool *kind = strcmp(type, "ByteLevel") == 0      ? &d->byte_level
                 : strcmp(type, "ByteFallback") == 0 ? &d->byte_fallback
                                                     : NULL;
    if (!kind)
        return mx_error(err, MTPLX_ERR_UNSUPPORTED, "%s.type \"%.32s\" is not supported", where,
                        type);
    if (d->byte_level || d->byte_fallback || d->fused)
        return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                        "%s: %s after another byte step or Fuse is not supported", where, type);
    *kind = true;
    return MTPLX_OK;
}

static mtplx_status load_decoder(struct decoder *d, const json_t *spec, mtplx_error *err)
{
    if (!spec || json_is_null(spec))
        return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                        "decoder is missing; the file must say how tokens become text");
    const char *type;
    mtplx_status status = mx_tok_type(spec, "decoder", &type, err);
    if (status)
        return status;
    if (strcmp(type, "Sequence") != 0)
        return load_step(d, spec, "decoder", err);
    json_t *list;
    status = mx_tok_array(spec, "decoder", "decoders", &list, err);
    for (size_t i = 0; !status && i < json_array_size(list); i++) {
        char where[48];
        snprintf(where, sizeof where, "decoder.decoders[%zu]", i);
        status = load_step(d, json_array_get(list, i), where, err);
    }
    return status;
}

/* `buf` becomes its content with every occurrence of the pattern replaced. */
static void apply_replace(const struct replace *r, struct mx_strbuf *buf, struct mx_strbuf *tmp)
{
    const char *s = buf->data, *end = s + buf->len, *hit;
    mx_strbuf_clear(tmp);
    while ((hit = memmem(s, (size_t)(end - s), r->pattern, r->pattern_len))) {
        mx_strbuf_append(tmp, s, (size_t)(hit - s));
        mx_strbuf_append(tmp, r->content, r->content_len);
        s = hit + r->pattern_len;
    }
    mx_strbuf_append(tmp, s, (size_t)(end - s));
    struct mx_strbuf swap = *buf;
    *buf = *tmp;
    *tmp = swap;
}

/* Characters of the byte-level alphabet become bytes; a token with any other stays as it is. */
static void apply_byte_level(const struct mx_byte_map *map, struct mx_strbuf *buf)
{
    size_t n = 0;
    for (size_t i = 0; i < buf->len;) {
        uint32_t cp = 0;
        int used = mx_utf8_decode(buf->data + i, buf->len - i, &cp);
        if (used <= 0 || cp >= MX_BYTE_CHARS || map->byte[cp] < 0)
            return;
        i += (size_t)used;
    }
    for (size_t i = 0; i < buf->len;) {
        uint32_t cp = 0;
        i += (size_t)mx_utf8_decode(buf->data + i, buf->len - i, &cp);
        buf->data[n++] = (char)map->byte[cp];
    }
    buf->len = n;
}

/* "<0x0A>" becomes the byte 10. */
static void apply_byte_fallback(struct mx_strbuf *buf)
{
    const char *s = buf->data;
    if (buf->len != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>' ||
        !isxdigit((unsigned char)s[3]) || !isxdigit((unsigned char)s[4]))
        return;
    const char hex[3] = {s[3], s[4], '\0'};
    buf->data[0] = (char)strtoul(hex, NULL, 16);
    buf->len = 1;
}

static mtplx_status map_token(const struct decoder *d, struct mx_vocab *v, int32_t id,
                              struct mx_strbuf *buf, struct mx_strbuf *tmp, mtplx_error *err)
{
    struct mx_token *token = &v->tokens[id];
    size_t len;
    const char *text = mx_vocab_text(v, id, &len);
    mx_strbuf_clear(buf);
    mx_strbuf_append(buf, text, len);
    for (size_t i = 0; i < d->n_replaces && buf->len > 0; i++)
        apply_replace(&d->replaces[i], buf, tmp);
    if (d->byte_level && buf->len > 0)
        apply_byte_level(&d->bytes, buf);
    if (d->byte_fallback && buf->len > 0)
        apply_byte_fallback(buf);
    if (buf->failed || tmp->failed)
        return mx_error(err, MTPLX_ERR_LIMIT, "decoder: token %d decodes to more than %d bytes", id,
                        MX_TOKEN_LEN_MAX);
    token->bytes_len = (uint16_t)buf->len;
    if (buf->len == len && memcmp(buf->data ? buf->data : "", text, len) == 0)
        return MTPLX_OK; /* shares the string */
    token->bytes = (uint32_t)v->pool.len;
    if (buf->len > 0 && !mx_strbuf_append(&v->pool, buf->data, buf->len))
        return mx_error_nomem(err, "the token table", buf->len);
    return MTPLX_OK;
}

mtplx_status mx_decoder_apply(const json_t *spec, struct mx_vocab *v, mtplx_error *err)
{
    struct decoder d = {0};
    mx_byte_map_init(&d.bytes);
    mtplx_status status = load_decoder(&d, spec, err);
    struct mx_strbuf buf, tmp;
    mx_strbuf_init(&buf, MX_TOKEN_LEN_MAX);
    mx_strbuf_init(&tmp, MX_TOKEN_LEN_MAX);
    for (int32_t id = 0; !status && id < v->size; id++)
        if (v->flags[id])
            status = map_token(&d, v, id, &buf, &tmp, err);
    mx_strbuf_free(&buf);
    mx_strbuf_free(&tmp);
    return status;
}

/* ---- Streams ---- */

/* Length of the maximal part of s[0..n) that starts like a code point but is none: at least 1. */
static size_t bad_part(const char *s, size_t n)
{
    uint32_t cp;
    size_t len = 1;
    while (len < n && len < 4 && mx_utf8_decode(s, len + 1, &cp) == -1)
        len++;
    return len;
}

/* Appends s[0..n) with bad parts replaced; returns how much of it was used: all but an incomplete
 * code point at the end. */
static size_t append_lossy(struct mx_strbuf *out, const char *s, size_t n)
{
    size_t done = 0, i = 0;
    while (i < n) {
        uint32_t cp;
        int used = mx_utf8_decode(s + i, n - i, &cp);
        if (used > 0) {
            i += (size_t)used;
            continue;
        }
        if (used < 0)
            break;
        mx_strbuf_append(out, s + done, i - done);
        mx_strbuf_puts(out, REPLACEMENT);
        i += bad_part(s + i, n - i);
        done = i;
    }
    mx_strbuf_append(out, s + done, i - done);
    return i;
}

/* Feeds bytes: completes what is held back one byte at a time, then takes the rest in one go. */
static void feed(struct mx_detok *d, struct mx_strbuf *out, const char *s, size_t n)
{
    while (n > 0 && d->n_held > 0) {
        d->held[d->n_held++] = *s++;
        n--;
        size_t used = append_lossy(out, d->held, d->n_held);
        d->n_held -= used;
        memmove(d->held, d->held + used, d->n_held);
    }
    size_t used = append_lossy(out, s, n);
    if (used < n) {
        memcpy(d->held, s + used, n - used);
        d->n_held = n - used;
    }
}

static void feed_token(struct mx_detok *d, struct mx_strbuf *out, int32_t id)
{
    if (d->skip_special && mx_tokenizer_is_special(d->t, id))
        return;
    size_t len;
    const char *bytes = mx_tokenizer_bytes(d->t, id, &len);
    feed(d, out, bytes, len);
}

static void finish(struct mx_detok *d, struct mx_strbuf *out)
{
    if (d->n_held > 0)
        mx_strbuf_puts(out, REPLACEMENT);
    d->n_held = 0;
}

void mx_detok_init(struct mx_detok *d, const struct mx_tokenizer *t, bool skip_special)
{
    *d = (struct mx_detok){.t = t, .skip_special = skip_special};
    mx_strbuf_init(&d->out, 0);
}

void mx_detok_free(struct mx_detok *d)
{
    mx_strbuf_free(&d->out);
    d->n_held = 0;
}

static const char *take_out(struct mx_detok *d, size_t *len)
{
    *len = d->out.failed ? 0 : d->out.len;
    if (d->out.failed)
        return NULL;
    return d->out.data ? d->out.data : "";
}

const char *mx_detok_push(struct mx_detok *d, int32_t id, size_t *len)
{
    mx_strbuf_clear(&d->out);
    feed_token(d, &d->out, id);
    return take_out(d, len);
}

const char *mx_detok_flush(struct mx_detok *d, size_t *len)
{
    mx_strbuf_clear(&d->out);
    finish(d, &d->out);
    return take_out(d, len);
}

mtplx_status mx_tokenizer_decode(const struct mx_tokenizer *t, const int32_t *ids, size_t n,
                                 bool skip_special, struct mx_strbuf *out, mtplx_error *err)
{
    struct mx_detok d = {.t = t, .skip_special = skip_special};
    for (size_t i = 0; i < n && !out->failed; i++)
        feed_token(&d, out, ids[i]);
    finish(&d, out);
    if (!out->failed)
        return MTPLX_OK;
    if (out->max > 0)
        return mx_error(err, MTPLX_ERR_LIMIT, "the text of %zu tokens is longer than %zu bytes", n,
                        out->max);
    return mx_error_nomem(err, "decoded text", out->len);
}
