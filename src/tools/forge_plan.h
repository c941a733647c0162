/* What forge quantize does with every tensor: decided up front, from names, shapes and types.
 *
 * Quantised are float matrices [out][in] named "<path>.weight" whose input dimension the group size
 * divides, if need be after halving the group. Kept as stored are norms, convolutions, gates and
 * routers, the small decay projections of Gated DeltaNet, vision towers, everything that is not a
 * matrix, and matrices that no group divides: they are small or sensitive. */
#ifndef MX_TOOLS_FORGE_PLAN_H
#define MX_TOOLS_FORGE_PLAN_H

#include "format/checkpoint.h"
#include "format/config.h"
#include "tools/forge_quantize.h"

struct mx_forge_item {
    const struct mx_tensor *t;
    enum mx_forge_part part;
    bool side;           /* from an MTP side file; goes to mtp.safetensors */
    int bits, group;     /* 0: kept */
    enum mx_dtype dtype; /* of scales and biases, or of the kept tensor */
    uint64_t bytes;      /* in the output */
    int file;            /* index of its output file */
};

struct mx_forge_plan {
    struct mx_forge_item *items; /* sorted by name */
    size_t count;
    int files; /* model files; a side file, if any, comes after them */
    bool has_side;
    uint64_t bytes; /* of all outputs */
};

/* Errors: UNSUPPORTED (already quantised, or a type that cannot be quantised), MEMORY. */
mtplx_status mx_forge_plan_make(struct mx_forge_plan *p, const struct mx_checkpoint *ck,
                                const struct mx_config *c, const struct mx_forge_options *o,
                                mtplx_error *err);
void mx_forge_plan_free(struct mx_forge_plan *p);

/* Length of the module path of "<path>.weight", which is what config overrides are keyed by. */
size_t mx_forge_path_length(const struct mx_tensor *t);

#endif
