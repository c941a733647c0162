/* Forge quantize: an MLX affine copy of a checkpoint.
 *
 * Tensor names and the norm convention stay those of the input; a quantised "<path>.weight" becomes
 * U32 codes with "<path>.scales" and "<path>.biases" beside it. config.json gains `quantization`
 * and `quantization_config` with an entry for every path that differs from the default.
 *
 * The output is a function of input and options alone: neither the thread count nor the time shows
 * in its bytes. Tensors are worked on one after another; memory holds one output file at most. */
#ifndef MX_TOOLS_FORGE_QUANTIZE_H
#define MX_TOOLS_FORGE_QUANTIZE_H

#include "base/error.h"
#include "format/dtype.h"

#include <stdbool.h>

#define MX_FORGE_FILE_BYTES ((uint64_t)1 << 30)

enum { MX_FORGE_KEEP_BITS = 16 }; /* "bits" that mean: leave it as it is stored */

struct mx_forge_options {
    const char *in, *out;
    int bits, group;
    int embed_bits;      /* embeddings and output head; 0: as bits */
    int mtp_bits;        /* the MTP head; 0: as bits */
    enum mx_dtype dtype; /* MX_BF16 or MX_F16 for scales, biases and kept 16-bit tensors; NONE: as
                            stored, BF16 for scales of F32 matrices */
    bool force;          /* replace an existing OUT */
    int threads;         /* 0: one per usable CPU */
    uint64_t file_bytes; /* largest output file; 0: MX_FORGE_FILE_BYTES */
    const volatile int *cancel;
    void (*progress)(void *arg, uint64_t done, uint64_t total); /* bytes of input; or NULL */
    void *progress_arg;
};

enum mx_forge_part {
    MX_FORGE_EMBEDDING, /* and output head */
    MX_FORGE_ATTENTION,
    MX_FORGE_RECURRENT,
    MX_FORGE_MLP,
    MX_FORGE_MTP,
    MX_FORGE_OTHER,
    MX_FORGE_PARTS,
};

/* Quantised matrices of one part of the model. */
struct mx_forge_part_report {
    uint64_t matrices, weights, bytes;
    double squared_error, squared_weight; /* sums: their ratio is the relative error */
};

struct mx_forge_report {
    uint64_t bytes_in, bytes_out; /* of tensors */
    uint64_t weights;             /* elements of all tensors */
    uint64_t kept_tensors, kept_bytes;
    int files;
    int skipped_files; /* large files that are neither weights nor small enough to copy */
    struct mx_forge_part_report parts[MX_FORGE_PARTS];
};

const char *mx_forge_part_name(enum mx_forge_part part);

/* Errors: ARGUMENT (options, OUT), IO, FORMAT (damaged input, a weight that is not finite),
 * UNSUPPORTED (quantised already), MEMORY, CANCELLED. On error OUT is as it was. */
mtplx_status mx_forge_quantize(const struct mx_forge_options *o, struct mx_forge_report *r,
                               mtplx_error *err);

#endif
