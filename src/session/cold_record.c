/* The record codec: docs/SSD-FORMAT.md has the layout. All integers are little-endian. */
#include "session/cold_record.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>

#define CHUNK ((size_t)1 << 18)    /* read and hashed at a time, while it is in the cache */
#define PACKED ((size_t)1 << 17)   /* compressed bytes at a time */
#define SAMPLE ((size_t)1 << 14)   /* of a part that is tried; from four places */
#define TRY_BYTES ((size_t)1 << 7) /* shorter parts are stored as they are */
#define LEVEL 1
#define WINDOW_LOG 23 /* most that a reader allocates for a frame is 8 MiB */
#define BIG ((size_t)1 << 16)

static const uint8_t magic[8] = {0x89, 'M', 'T', 'P', 'X', '\r', '\n', 0x1a};

/* Offsets in the fixed part of the header. */
enum {
    AT_MAGIC = 0,
    AT_VERSION = 8,
    AT_HEADER = 12, /* bytes of the header */
    AT_KIND = 16,
    AT_PARTS = 17,
    AT_POINT = 18,
    AT_LABEL = 19, /* bytes of the label */
    AT_FLAGS = 20, /* zero */
    AT_TOKENS = 24,
    AT_IDENTITY = 32,
    AT_KEY = 80,
    AT_PARENT = 96,
    AT_SCOPE = 112,
    AT_CREATED = 128,
    AT_BYTES = 136,
    AT_TABLE = 144, /* MX_COLD_MAX_PARTS times ENTRY bytes */
    AT_SPARE = 400, /* zero */
    AT_SUM = 504,   /* of all header bytes but these */
    ENTRY = 32
};

static void put32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

static void put64(uint8_t *p, uint64_t v)
{
    put32(p, (uint32_t)v);
    put32(p + 4, (uint32_t)(v >> 32));
}

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t get64(const uint8_t *p)
{
    return get32(p) | (uint64_t)get32(p + 4) << 32;
}

static uint64_t align_up(uint64_t v, uint64_t to)
{
    return (v + to - 1) / to * to;
}

/* Big parts start on a page, so that the kernel copies whole pages. */
static uint64_t part_offset(uint64_t at, uint64_t raw)
{
    return raw ? align_up(at, raw >= BIG ? 4096 : 64) : at;
}

static size_t tokens_at(size_t label)
{
    return MX_RECORD_FIXED + align_up(label, 4);
}

static size_t header_bytes(size_t label, size_t n_tokens)
{
    return (size_t)align_up(tokens_at(label) + n_tokens * 4, 64);
}

static uint64_t header_sum(const uint8_t *h, size_t n)
{
    uint8_t fixed[MX_RECORD_FIXED];
    memcpy(fixed, h, sizeof fixed);
    memset(fixed + AT_SUM, 0, 8);
    return XXH3_64bits_withSeed(h + MX_RECORD_FIXED, n - MX_RECORD_FIXED,
                                XXH3_64bits(fixed, sizeof fixed));
}

/* ---- Files -------------------------------------------------------------------------------- */

static mtplx_status read_error(int cause, mtplx_error *err)
{
    if (!cause)
        return mx_error(err, MTPLX_ERR_FORMAT, "the file ends inside the record");
    return mx_error(err, MTPLX_ERR_IO, "reading failed: %s", strerror(cause));
}

/* 0, an errno, or -1 for an end of file. */
static int read_at(int fd, void *out, size_t n, uint64_t at)
{
    uint8_t *p = out;
    while (n) {
        ssize_t got = pread(fd, p, n, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? errno : -1;
        p += got;
        n -= (size_t)got;
        at += (uint64_t)got;
    }
    return 0;
}

static bool write_at(int fd, const void *data, size_t n, uint64_t at)
{
    const uint8_t *p = data;
    while (n) {
        ssize_t put = pwrite(fd, p, n, (off_t)at);
        if (put < 0 && errno == EINTR)
            continue;
        if (put == 0)
            errno = ENOSPC;
        if (put <= 0)
            return false;
        p += put;
        n -= (size_t)put;
        at += (uint64_t)put;
    }
    return true;
}

static mtplx_status write_error(mtplx_error *err)
{
    int cause = errno;
    mx_error(err, MTPLX_ERR_IO, "writing failed: %s", strerror(cause));
    errno = cause;
    return MTPLX_ERR_IO;
}

/* ---- Writing ------------------------------------------------------------------------------ */

uint64_t mx_record_bound(const struct mx_record *r, const struct mx_cold_part *parts, int n_parts)
{
    uint64_t n = header_bytes(strnlen(r->session, MX_RECORD_LABEL - 1), r->n_tokens);
    for (int i = 0; i < n_parts; i++)
        n = part_offset(n, parts[i].bytes) + parts[i].bytes;
    return n;
}

/* Compressing must save a quarter. Numbers that save less unpack at a few hundred MB/s, more slowly
 * than a disk gives them raw; what saves more is mostly zeros and unpacks fast. */
static bool pays(uint64_t raw, uint64_t stored)
{
    return stored <= raw - raw / 4 && stored < raw;
}

/* Whether compressing may pay, from four samples. */
static bool worth_trying(ZSTD_CCtx *z, const struct mx_cold_part *p)
{
    static const size_t places = 4;
    if (p->bytes < TRY_BYTES)
        return false;
    if (p->bytes <= places * SAMPLE)
        return true;
    uint8_t *out = malloc(ZSTD_compressBound(SAMPLE));
    size_t total = 0;
    for (size_t i = 0; out && i < places; i++) {
        size_t at = (p->bytes - SAMPLE) / (places - 1) * i;
        size_t n = ZSTD_compressCCtx(z, out, ZSTD_compressBound(SAMPLE),
                                     (const uint8_t *)p->data + at, SAMPLE, LEVEL);
        total += ZSTD_isError(n) ? SAMPLE : n;
    }
    bool yes = out && pays(places * SAMPLE, total);
    free(out);
    return yes;
}

/* Writes a part as a zstd frame. False with p->stored == p->raw: it did not pay. */
static bool write_packed(int fd, uint64_t at, ZSTD_CCtx *z, XXH3_state_t *x,
                         const struct mx_cold_part *in, struct mx_record_part *p)
{
    uint8_t *out = malloc(PACKED);
    ZSTD_inBuffer src = {in->data, in->bytes, 0};
    ZSTD_CCtx_reset(z, ZSTD_reset_session_only);
    ZSTD_CCtx_setParameter(z, ZSTD_c_compressionLevel, LEVEL);
    ZSTD_CCtx_setPledgedSrcSize(z, in->bytes);
    XXH3_64bits_reset(x);
    uint64_t stored = 0;
    size_t left = 1;
    bool ok = out != NULL;
    while (ok && left) {
        ZSTD_outBuffer dst = {out, PACKED, 0};
        left = ZSTD_compressStream2(z, &dst, &src, ZSTD_e_end);
        if (ZSTD_isError(left) || !pays(in->bytes, stored + dst.pos)) {
            free(out);
            p->stored = p->raw;
            return false;
        }
        XXH3_64bits_update(x, out, dst.pos);
        ok = write_at(fd, out, dst.pos, at + stored);
        stored += dst.pos;
    }
    free(out);
    p->stored = ok ? stored : 0;
    p->sum = XXH3_64bits_digest(x);
    return ok;
}

static bool write_part(int fd, uint64_t at, ZSTD_CCtx *z, XXH3_state_t *x,
                       const struct mx_cold_part *in, struct mx_record_part *p)
{
    p->raw = p->stored = in->bytes;
    if (worth_trying(z, in)) {
        if (write_packed(fd, at, z, x, in, p))
            return true;
        if (p->stored != p->raw)
            return false;
    }
    p->sum = XXH3_64bits(in->data, in->bytes);
    return write_at(fd, in->data, in->bytes, at);
}

static void encode_header(uint8_t *h, size_t n, const struct mx_record *r, size_t label)
{
    memcpy(h + AT_MAGIC, magic, sizeof magic);
    put32(h + AT_VERSION, MX_RECORD_VERSION);
    put32(h + AT_HEADER, (uint32_t)n);
    h[AT_KIND] = (uint8_t)r->kind;
    h[AT_PARTS] = (uint8_t)r->n_parts;
    h[AT_POINT] = (uint8_t)r->point;
    h[AT_LABEL] = (uint8_t)label;
    put64(h + AT_TOKENS, r->n_tokens);
    memcpy(h + AT_IDENTITY, &r->identity, sizeof r->identity);
    memcpy(h + AT_KEY, r->key.b, 16);
    memcpy(h + AT_PARENT, r->parent.b, 16);
    memcpy(h + AT_SCOPE, r->scope.b, 16);
    put64(h + AT_CREATED, r->created);
    put64(h + AT_BYTES, r->bytes);
    for (int i = 0; i < r->n_parts; i++) {
        uint8_t *e = h + AT_TABLE + (size_t)i * ENTRY;
        put64(e, r->parts[i].offset);
        put64(e + 8, r->parts[i].stored);
        put64(e + 16, r->parts[i].raw);
        put64(e + 24, r->parts[i].sum);
    }
    memcpy(h + MX_RECORD_FIXED, r->session, label);
    for (size_t i = 0; i < r->n_tokens; i++)
        put32(h + tokens_at(label) + i * 4, (uint32_t)r->tokens[i]);
    put64(h + AT_SUM, header_sum(h, n));
}

static mtplx_status write_parts(int fd, uint64_t at, uint64_t from, struct mx_record *r,
                                const struct mx_cold_part *parts, mtplx_error *err)
{
    ZSTD_CCtx *z = ZSTD_createCCtx();
    XXH3_state_t *x = XXH3_createState();
    mtplx_status s = z && x ? MTPLX_OK : mx_error_nomem(err, "a compressor", 1 << 20);
    uint64_t end = from;
    for (int i = 0; !s && i < r->n_parts; i++) {
        r->parts[i].offset = part_offset(end, parts[i].bytes);
        if (!write_part(fd, at + r->parts[i].offset, z, x, &parts[i], &r->parts[i]))
            s = write_error(err);
        end = r->parts[i].offset + r->parts[i].stored;
    }
    r->bytes = end;
    int cause = errno;
    ZSTD_freeCCtx(z);
    XXH3_freeState(x);
    errno = cause;
    return s;
}

mtplx_status mx_record_write(int fd, uint64_t at, struct mx_record *r,
                             const struct mx_cold_part *parts, int n_parts, mtplx_error *err)
{
    if (n_parts < 0 || n_parts > MX_COLD_MAX_PARTS || r->n_tokens > MX_RECORD_TOKENS)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "a record takes at most %d parts and %zu tokens",
                        MX_COLD_MAX_PARTS, MX_RECORD_TOKENS);
    size_t label = strnlen(r->session, MX_RECORD_LABEL - 1);
    size_t n = header_bytes(label, r->n_tokens);
    uint8_t *h = calloc(1, n);
    if (!h)
        return mx_error_nomem(err, "a record's header", n);
    memset(r->parts, 0, sizeof r->parts);
    r->n_parts = n_parts;
    mtplx_status s = write_parts(fd, at, n, r, parts, err);
    if (!s) {
        encode_header(h, n, r, label);
        if (!write_at(fd, h, n, at))
            s = write_error(err);
    }
    int cause = errno;
    free(h);
    errno = cause;
    return s;
}

/* ---- Headers ------------------------------------------------------------------------------ */

/* The length of the header of which the fixed part is here; 0 with the reason. */
static size_t checked_length(const uint8_t *h, uint64_t limit, mtplx_error *err)
{
    if (memcmp(h, magic, sizeof magic) != 0) {
        mx_error(err, MTPLX_ERR_FORMAT, "this is no record of the cold tier");
        return 0;
    }
    if (get32(h + AT_VERSION) != MX_RECORD_VERSION) {
        mx_error(err, MTPLX_ERR_UNSUPPORTED, "the record has version %u, this build reads %d",
                 (unsigned)get32(h + AT_VERSION), MX_RECORD_VERSION);
        return 0;
    }
    uint64_t tokens = get64(h + AT_TOKENS);
    size_t label = h[AT_LABEL];
    size_t n = get32(h + AT_HEADER);
    if (tokens > MX_RECORD_TOKENS || label >= MX_RECORD_LABEL ||
        n != header_bytes(label, (size_t)tokens) || n > limit) {
        mx_error(err, MTPLX_ERR_FORMAT, "the record's header has an impossible length");
        return 0;
    }
    return n;
}

static bool decode_table(struct mx_record *r, const uint8_t *h, size_t n, uint64_t limit)
{
    uint64_t end = n;
    for (int i = 0; i < r->n_parts; i++) {
        const uint8_t *e = h + AT_TABLE + (size_t)i * ENTRY;
        struct mx_record_part *p = &r->parts[i];
        p->offset = get64(e);
        p->stored = get64(e + 8);
        p->raw = get64(e + 16);
        p->sum = get64(e + 24);
        if (p->offset < end || p->offset > limit || p->stored > limit - p->offset ||
            p->raw > MX_RECORD_RAW || p->stored > p->raw || (p->raw && !p->stored))
            return false;
        end = p->offset + p->stored;
    }
    return r->bytes == end && end <= limit;
}

static mtplx_status decode_header(struct mx_record *r, const uint8_t *h, size_t n, uint64_t limit,
                                  mtplx_error *err)
{
    *r = (struct mx_record){.kind = (enum mx_cold_kind)h[AT_KIND],
                            .point = h[AT_POINT],
                            .n_parts = h[AT_PARTS],
                            .n_tokens = (size_t)get64(h + AT_TOKENS),
                            .created = get64(h + AT_CREATED),
                            .bytes = get64(h + AT_BYTES)};
    if (header_sum(h, n) != get64(h + AT_SUM))
        return mx_error(err, MTPLX_ERR_FORMAT, "the record's header fails its checksum");
    if (h[AT_KIND] < MX_COLD_BLOCK || h[AT_KIND] > MX_COLD_SNAPSHOT ||
        r->n_parts > MX_COLD_MAX_PARTS || get32(h + AT_FLAGS) || !decode_table(r, h, n, limit))
        return mx_error(err, MTPLX_ERR_FORMAT, "the record's header contradicts itself");
    memcpy(&r->identity, h + AT_IDENTITY, sizeof r->identity);
    memcpy(r->key.b, h + AT_KEY, 16);
    memcpy(r->parent.b, h + AT_PARENT, 16);
    memcpy(r->scope.b, h + AT_SCOPE, 16);
    memcpy(r->session, h + MX_RECORD_FIXED, h[AT_LABEL]);
    int32_t *tokens = malloc((r->n_tokens + 1) * sizeof *tokens);
    if (!tokens)
        return mx_error_nomem(err, "a record's tokens", r->n_tokens * sizeof *tokens);
    for (size_t i = 0; i < r->n_tokens; i++)
        tokens[i] = (int32_t)get32(h + tokens_at(h[AT_LABEL]) + i * 4);
    r->memory = tokens;
    r->tokens = tokens;
    return MTPLX_OK;
}

mtplx_status mx_record_parse(const void *bytes, size_t n, uint64_t limit, struct mx_record *r,
                             mtplx_error *err)
{
    mtplx_error own = {0};
    *r = (struct mx_record){0};
    err = err ? err : &own;
    if (n < MX_RECORD_FIXED)
        return read_error(0, err);
    size_t length = checked_length(bytes, limit, err);
    if (!length)
        return err->status;
    return n < length ? read_error(0, err) : decode_header(r, bytes, length, limit, err);
}

mtplx_status mx_record_open(int fd, uint64_t at, uint64_t limit, struct mx_record *r,
                            mtplx_error *err)
{
    uint8_t first[4096];
    mtplx_error own = {0};
    *r = (struct mx_record){0};
    err = err ? err : &own;
    size_t n = limit < sizeof first ? (size_t)limit : sizeof first;
    int cause = read_at(fd, first, n, at);
    if (cause || n < MX_RECORD_FIXED)
        return read_error(cause > 0 ? cause : 0, err);
    size_t length = checked_length(first, limit, err);
    if (!length)
        return err->status;
    if (length <= n)
        return decode_header(r, first, length, limit, err);
    uint8_t *h = malloc(length);
    if (!h)
        return mx_error_nomem(err, "a record's header", length);
    cause = read_at(fd, h, length, at);
    mtplx_status s =
        cause ? read_error(cause > 0 ? cause : 0, err) : decode_header(r, h, length, limit, err);
    free(h);
    return s;
}

void mx_record_free(struct mx_record *r)
{
    if (!r)
        return;
    free(r->memory);
    r->memory = NULL;
    r->tokens = NULL;
}

/* ---- Parts -------------------------------------------------------------------------------- */

/* Where a record lies: in a file, or in memory. */
struct source {
    int fd;
    uint64_t at; /* of the record in the file */
    const uint8_t *data;
    uint64_t bytes;
};

/* As read_at(); `at` counts from the start of the record. */
static int source_read(const struct source *from, void *out, size_t n, uint64_t at)
{
    if (!from->data)
        return read_at(from->fd, out, n, from->at + at);
    if (at > from->bytes || n > from->bytes - at)
        return -1;
    memcpy(out, from->data + at, n);
    return 0;
}

/* Reads stored bytes into `out` (NULL: nowhere) and hashes them as they come. */
static mtplx_status read_raw(const struct source *from, const struct mx_record_part *p,
                             uint8_t *out, mtplx_error *err)
{
    XXH3_state_t *x = XXH3_createState();
    uint8_t *scratch = out ? NULL : malloc(CHUNK);
    mtplx_status s = x && (out || scratch) ? MTPLX_OK : mx_error_nomem(err, "a read buffer", CHUNK);
    if (x)
        XXH3_64bits_reset(x);
    for (uint64_t done = 0; !s && done < p->stored;) {
        size_t n = p->stored - done < CHUNK ? (size_t)(p->stored - done) : CHUNK;
        uint8_t *to = out ? out + done : scratch;
        int cause = source_read(from, to, n, p->offset + done);
        if (cause)
            s = read_error(cause > 0 ? cause : 0, err);
        else
            XXH3_64bits_update(x, to, n);
        done += n;
    }
    if (!s && XXH3_64bits_digest(x) != p->sum)
        s = mx_error(err, MTPLX_ERR_FORMAT, "the stored bytes fail their checksum");
    XXH3_freeState(x);
    free(scratch);
    return s;
}

/* Unpacks one piece of a frame; *more is false after its end. */
static mtplx_status unpack(ZSTD_DCtx *z, ZSTD_inBuffer *src, ZSTD_outBuffer *dst, bool *more,
                           mtplx_error *err)
{
    while (*more && src->pos < src->size) {
        size_t in = src->pos;
        size_t out = dst->pos;
        size_t left = ZSTD_decompressStream(z, dst, src);
        if (ZSTD_isError(left) || (src->pos == in && dst->pos == out))
            return mx_error(err, MTPLX_ERR_FORMAT, "a part is no zstd frame of the stated size");
        *more = left > 0;
    }
    if (src->pos < src->size)
        return mx_error(err, MTPLX_ERR_FORMAT, "bytes follow the zstd frame of a part");
    return MTPLX_OK;
}

static mtplx_status read_packed(const struct source *from, const struct mx_record_part *p,
                                uint8_t *out, mtplx_error *err)
{
    XXH3_state_t *x = XXH3_createState();
    ZSTD_DCtx *z = ZSTD_createDCtx();
    uint8_t *in = malloc(PACKED);
    mtplx_status s = x && z && in ? MTPLX_OK : mx_error_nomem(err, "a decompressor", PACKED);
    if (!s) {
        XXH3_64bits_reset(x);
        ZSTD_DCtx_setParameter(z, ZSTD_d_windowLogMax, WINDOW_LOG);
    }
    ZSTD_outBuffer dst = {out, (size_t)p->raw, 0};
    bool more = true;
    for (uint64_t done = 0; !s && done < p->stored;) {
        size_t n = p->stored - done < PACKED ? (size_t)(p->stored - done) : PACKED;
        int cause = source_read(from, in, n, p->offset + done);
        if (cause) {
            s = read_error(cause > 0 ? cause : 0, err);
            break;
        }
        XXH3_64bits_update(x, in, n);
        ZSTD_inBuffer src = {in, n, 0};
        s = unpack(z, &src, &dst, &more, err);
        done += n;
    }
    if (!s && (more || dst.pos != p->raw || XXH3_64bits_digest(x) != p->sum))
        s = mx_error(err, MTPLX_ERR_FORMAT, "the stored bytes fail their checksum");
    XXH3_freeState(x);
    ZSTD_freeDCtx(z);
    free(in);
    return s;
}

static mtplx_status read_parts(const struct source *from, const struct mx_record *r,
                               struct mx_cold_part *parts, int first, int n, mtplx_error *err)
{
    if (first < 0 || n < 0 || first > r->n_parts - n)
        return mx_error(err, MTPLX_ERR_FORMAT, "the record has %d parts, not %d", r->n_parts,
                        first + n);
    for (int i = 0; i < n; i++)
        if (parts[i].bytes != r->parts[first + i].raw)
            return mx_error(err, MTPLX_ERR_FORMAT, "part %d has %llu bytes, not %zu", first + i,
                            (unsigned long long)r->parts[first + i].raw, parts[i].bytes);
    mtplx_status s = MTPLX_OK;
    for (int i = 0; !s && i < n; i++) {
        const struct mx_record_part *p = &r->parts[first + i];
        /* The caller's memory: filled here, only read when writing. */
        uint8_t *out = (uint8_t *)(uintptr_t)parts[i].data;
        if (p->stored)
            s = p->stored == p->raw ? read_raw(from, p, out, err) : read_packed(from, p, out, err);
    }
    return s;
}

mtplx_status mx_record_read(int fd, uint64_t at, const struct mx_record *r,
                            struct mx_cold_part *parts, int first, int n, mtplx_error *err)
{
    return read_parts(&(struct source){.fd = fd, .at = at}, r, parts, first, n, err);
}

mtplx_status mx_record_unpack(const void *from, uint64_t bytes, const struct mx_record *r,
                              struct mx_cold_part *parts, int first, int n, mtplx_error *err)
{
    struct source s = {.fd = -1, .data = from, .bytes = bytes};
    return read_parts(&s, r, parts, first, n, err);
}

mtplx_status mx_record_check(int fd, uint64_t at, const struct mx_record *r, mtplx_error *err)
{
    struct source from = {.fd = fd, .at = at};
    mtplx_status s = MTPLX_OK;
    for (int i = 0; !s && i < r->n_parts; i++)
        if (r->parts[i].stored)
            s = read_raw(&from, &r->parts[i], NULL, err);
    return s;
}
