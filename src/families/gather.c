/* Gathering rows of a weight: a smaller matrix out of some of a matrix's outputs.
 *
 * Every kind stores a row's elements or codes together, and MLX's scales and biases likewise, so a
 * gather is a copy of bytes: the rows keep their stored form, and their products keep their bits.
 */
#include "device/common.h"
#include "families/loader.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of one row's scales, and as many of its biases; 0 for kinds that keep none apart. */
static size_t side_bytes(const struct mx_weight *w)
{
    if (!w->scales)
        return 0;
    return (size_t)(w->in / w->group) * (size_t)mx_dtype_bytes(w->sdtype);
}

uint64_t mx_weight_bytes(const struct mx_weight *w, int64_t rows)
{
    return (uint64_t)rows * (mx_weight_row_bytes(w) + 2 * side_bytes(w));
}

static const void *gather(struct mx_loader *l, const void *from, size_t row, const int32_t *ids,
                          int n, mtplx_error *err)
{
    uint8_t *to = mx_load_host(l, (size_t)n * row, "rows of the output head", err);
    for (int i = 0; to && i < n; i++)
        memcpy(to + (size_t)i * row, (const uint8_t *)from + (size_t)ids[i] * row, row);
    return to;
}

mtplx_status mx_load_rows(struct mx_loader *l, const struct mx_weight *from, const int32_t *ids,
                          int n, struct mx_weight *to, mtplx_error *err)
{
    size_t side = side_bytes(from);
    *to = *from;
    to->out = n;
    to->bound = NULL;
    to->mapped = false;
    if (!(to->data = gather(l, from->data, mx_weight_row_bytes(from), ids, n, err)))
        return MTPLX_ERR_MEMORY;
    if (side > 0 && (!(to->scales = gather(l, from->scales, side, ids, n, err)) ||
                     !(to->biases = gather(l, from->biases, side, ids, n, err))))
        return MTPLX_ERR_MEMORY;
    return MTPLX_OK;
}

static void drop(struct mx_weights *ws, const void *p)
{
    for (size_t i = ws->n_host; p && i-- > 0;)
        if (ws->host_mem[i] == p) {
            free(ws->host_mem[i]);
            ws->host_mem[i] = ws->host_mem[--ws->n_host];
            return;
        }
}

void mx_load_drop(struct mx_loader *l, const struct mx_weight *w)
{
    drop(l->weights, w->data);
    drop(l->weights, w->scales);
    drop(l->weights, w->biases);
}
