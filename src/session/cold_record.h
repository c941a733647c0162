/* Records: how an object of the cold tier lies in a file (docs/SSD-FORMAT.md).
 *
 * A record is a header (what it is, whose state, its tokens, where its parts are, a checksum over
 * all of that) and up to MX_COLD_MAX_PARTS parts, each stored raw or as a zstd frame, each with a
 * checksum of the stored bytes. It may start anywhere in a file; offsets inside it count from its
 * start. A raw part is read straight into the memory it is for.
 *
 * Invariants
 *   R1  Readers take hostile bytes: no field is used before it was checked against the bytes there
 *       are, and memory is bounded by them or by what the caller asked for.
 *   R2  The same input makes the same record, except for `created`.
 *
 * Threads: no state; safe from any thread, on one descriptor too (pread, pwrite). */
#ifndef MX_SESSION_COLD_RECORD_H
#define MX_SESSION_COLD_RECORD_H

#include "session/cold.h"

#define MX_RECORD_VERSION 1
#define MX_RECORD_FIXED 512                /* bytes before the label and the tokens */
#define MX_RECORD_LABEL 128                /* of a session label with its NUL */
#define MX_RECORD_RAW ((uint64_t)1 << 40)  /* most bytes of a part */
#define MX_RECORD_TOKENS ((size_t)1 << 24) /* most in a record */

struct mx_record_part {
    uint64_t offset, stored, raw; /* bytes; stored == raw: as it is, less: one zstd frame */
    uint64_t sum;                 /* XXH3-64 of the stored bytes */
};

struct mx_record {
    enum mx_cold_kind kind;
    int point; /* SNAPSHOT: enum mx_point */
    struct mx_cold_identity identity;
    struct mx_cold_key key, parent; /* parent: the block before, all zero: none */
    struct mx_cold_key scope;       /* mx_cold_chain_start() of the scope */
    uint64_t created;               /* milliseconds since 1970 */
    char session[MX_RECORD_LABEL];
    const int32_t *tokens; /* after reading: belongs to the record, mx_record_free() */
    size_t n_tokens;
    struct mx_record_part parts[MX_COLD_MAX_PARTS];
    int n_parts;
    uint64_t bytes; /* of the whole record */
    void *memory;   /* holds tokens after reading; NULL else */
};

/* Bytes that a record takes at most. */
uint64_t mx_record_bound(const struct mx_record *r, const struct mx_cold_part *parts, int n_parts);

/* Writes a record at `at`. In: everything of r up to n_tokens; out: parts, n_parts, bytes. What of
 * the file lies behind the record is left as it is, except that up to mx_record_bound() bytes may
 * be overwritten: truncate, or write the next one after it. ARGUMENT, IO (errno has the cause),
 * MEMORY. */
mtplx_status mx_record_write(int fd, uint64_t at, struct mx_record *r,
                             const struct mx_cold_part *parts, int n_parts, mtplx_error *err);

/* Reads and checks the header of the record at `at`, of which at most `limit` bytes are there
 * (the rest of the file). On success r is to be freed. IO, FORMAT, UNSUPPORTED (another version),
 * MEMORY. */
mtplx_status mx_record_open(int fd, uint64_t at, uint64_t limit, struct mx_record *r,
                            mtplx_error *err);
/* The same from memory: `n` bytes of a record of at most `limit`. */
mtplx_status mx_record_parse(const void *bytes, size_t n, uint64_t limit, struct mx_record *r,
                             mtplx_error *err);
void mx_record_free(struct mx_record *r);

/* Reads the parts first..first+n of an open record into parts[0..n), which must have exactly their
 * sizes, and checks them. FORMAT, IO, MEMORY; the memory is undefined then. */
mtplx_status mx_record_read(int fd, uint64_t at, const struct mx_record *r,
                            struct mx_cold_part *parts, int first, int n, mtplx_error *err);
/* The same from memory: the first `bytes` of the record are at `from`. */
mtplx_status mx_record_unpack(const void *from, uint64_t bytes, const struct mx_record *r,
                              struct mx_cold_part *parts, int first, int n, mtplx_error *err);
/* Checks the stored bytes of all parts without unpacking them. */
mtplx_status mx_record_check(int fd, uint64_t at, const struct mx_record *r, mtplx_error *err);

#endif
