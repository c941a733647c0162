/* Records of the cold tier: any bytes are a record or an error. The header's checksum is made right
 * in every second input, or the fuzzer would never get past it; what is accepted is read in full,
 * with the sizes that the header states. */
#include "session/cold_record.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* As docs/SSD-FORMAT.md has it. */
static void mend(uint8_t *b, size_t size)
{
    uint32_t n;
    memcpy(&n, b + 12, sizeof n);
    if (n < MX_RECORD_FIXED || n > size)
        return;
    memset(b + 504, 0, 8);
    uint64_t sum = XXH3_64bits_withSeed(b + MX_RECORD_FIXED, n - MX_RECORD_FIXED,
                                        XXH3_64bits(b, MX_RECORD_FIXED));
    memcpy(b + 504, &sum, sizeof sum);
}

static void read_all(int fd, const struct mx_record *r)
{
    struct mx_cold_part parts[MX_COLD_MAX_PARTS];
    uint64_t total = 0;
    for (int i = 0; i < r->n_parts; i++)
        total += r->parts[i].raw;
    mx_record_check(fd, 0, r, NULL);
    if (total > 1 << 20) /* the caller knows what it has room for */
        return;
    for (int i = 0; i < r->n_parts; i++)
        parts[i] =
            (struct mx_cold_part){malloc((size_t)r->parts[i].raw + 1), (size_t)r->parts[i].raw};
    mx_record_read(fd, 0, r, parts, 0, r->n_parts, NULL);
    for (int i = 0; i < r->n_parts; i++)
        free((void *)(uintptr_t)parts[i].data);
}

static void read_record(const uint8_t *data, size_t size)
{
    struct mx_record r;
    struct mx_record same;
    int fd = memfd_create("record", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    mtplx_status a = mx_record_open(fd, 0, size, &r, NULL);
    mtplx_status b = mx_record_parse(data, size, size, &same, NULL);
    if (a != b || (!a && (r.n_tokens != same.n_tokens || r.bytes != same.bytes)))
        abort();
    if (!a) {
        read_all(fd, &r);
        mx_record_free(&r);
        mx_record_free(&same);
    }
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size + 1);
    if (!copy)
        return 0;
    memcpy(copy, data, size);
    read_record(copy, size);
    if (size >= MX_RECORD_FIXED) {
        mend(copy, size);
        read_record(copy, size);
    }
    free(copy);
    return 0;
}
