/* Fuzz target: the safetensors reader on arbitrary bytes. What it accepts must satisfy the reader's
 * invariants; every byte of every tensor is read, so that ASan sees a range that lies. */
#include "format/safetensors.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

static void check_tensor(const struct mx_safetensors *st, size_t i)
{
    const struct mx_tensor *t = &st->tensors[i];
    uint64_t bytes = (uint64_t)mx_dtype_bytes(t->dtype);
    require(bytes > 0 && t->ndim >= 0 && t->ndim <= MX_MAX_DIMS);
    for (int d = 0; d < t->ndim; d++) {
        require(t->shape[d] >= 0);
        bytes *= (uint64_t)t->shape[d];
    }
    require(bytes == t->bytes);
    require(mx_utf8_valid(t->name, strlen(t->name)));
    require(mx_safetensors_find(st, t->name) == t);
    uint8_t sum = 0;
    for (uint64_t k = 0; k < t->bytes; k++)
        sum ^= ((const uint8_t *)t->data)[k];
    volatile uint8_t sink = sum;
    (void)sink;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mx_safetensors st;
    mtplx_error err = {0};
    mtplx_status status = mx_safetensors_parse(&st, data, size, "fuzz.safetensors", &err);
    if (status != MTPLX_OK) {
        require(err.status == status && strstr(err.message, "fuzz.safetensors"));
        require(mx_utf8_valid(err.message, strlen(err.message)));
        return 0;
    }
    uint64_t total = 0;
    for (size_t i = 0; i < st.count; i++) {
        check_tensor(&st, i);
        total += st.tensors[i].bytes;
    }
    require(total <= size);
    mx_safetensors_close(&st);
    return 0;
}
