/* Loader: turns named tensors into bound, validated weights.
 *
 * A family asks for "this matrix, so many outputs and inputs"; the loader finds it under the
 * checkpoint's prefix, checks dtype and shape against the config, follows MLX quantisation, applies
 * load options (re-quantisation, LoRA) and binds it to the device. Every error names tensor and
 * file. */
#ifndef MX_FAMILIES_LOADER_H
#define MX_FAMILIES_LOADER_H

#include "base/arena.h"
#include "device/device.h"
#include "format/checkpoint.h"
#include "format/config.h"

#define MX_NAME_MAX 256

/* A low-rank addition s * B (A x), kept apart from the matrix it adapts. */
struct mx_lora {
    struct mx_weight a, b; /* [rank][in], [out][rank], float32 */
    float scale;
    int rank;
};

struct mx_linear {
    struct mx_weight w;
    const struct mx_lora *lora; /* NULL: none */
};

enum mx_norm_encoding {
    MX_NORM_UNKNOWN = 0,
    MX_NORM_RAW,   /* w - 1 is stored */
    MX_NORM_BAKED, /* w is stored */
};

/* Everything allocated for a model's weights, so that one call frees it. */
struct mx_weights {
    struct mx_arena arena;
    struct mx_device *device;
    struct mx_weight **bound; /* weights to unbind */
    size_t n_bound, cap_bound;
    void **device_mem; /* device buffers (norm vectors, ...) */
    size_t n_device, cap_device;
    void **host_mem; /* re-quantised or merged matrices */
    size_t n_host, cap_host;
    uint64_t bytes, parameters, mtp_parameters;
};

struct mx_loader {
    const struct mx_config *cfg;
    const struct mx_checkpoint *ck;
    struct mx_device *device;
    const mtplx_load_options *options;
    struct mx_weights *weights;
    const struct mx_checkpoint *adapter; /* opened mtp_adapter, or NULL */
    double adapter_scale;
    size_t adapter_used; /* adapter tensors consumed */

    /* Set by the family while it binds. */
    bool in_mtp;              /* account to the MTP head, apply the adapter */
    bool lookup_only;         /* the matrix bound next is an embedding table only */
    mtplx_proj_quant requant; /* re-quantise the matrices bound next */

    /* Found facts, reported by inspect. */
    enum mx_norm_encoding trunk_norms, mtp_norms;
    bool norms_ambiguous;   /* layout and values disagree */
    const char *mtp_source; /* file of the MTP head */
};

void mx_weights_init(struct mx_weights *w, struct mx_device *device);
void mx_weights_free(struct mx_weights *w);

/* Refuses checkpoints in a quantisation other than MLX's, naming it. */
mtplx_status mx_load_check_quant(const struct mx_loader *l, mtplx_error *err);

/* Tensor "<prefix><name>" or NULL. */
const struct mx_tensor *mx_load_find(const struct mx_loader *l, const char *prefix,
                                     const char *name);

/* Binds "<prefix><module>.weight" (dense or MLX quantised) as [out][in]. */
mtplx_status mx_load_linear(struct mx_loader *l, const char *prefix, const char *module,
                            int64_t out, int64_t in, struct mx_linear *lin, mtplx_error *err);

/* A float vector of `dim` elements as float32 in device memory. `add`: added to every element. */
mtplx_status mx_load_vector(struct mx_loader *l, const char *prefix, const char *name, int64_t dim,
                            float add, float **out, mtplx_error *err);

/* Like mx_load_vector for a tensor whose shape is checked by the caller: `count` elements,
 * transposed from [count / columns][columns] unless `columns` is 0. `map`,
 * when not NULL, changes the host copy first. */
mtplx_status mx_load_floats(struct mx_loader *l, const struct mx_tensor *t, int64_t count,
                            int64_t columns, float add, void (*map)(float *v, int64_t n),
                            float **out, mtplx_error *err);

/* Copies host floats into device memory owned by the weights. */
float *mx_load_const(struct mx_loader *l, const void *host, size_t bytes, mtplx_error *err);

/* Mean of a float tensor; 0 when t is NULL. */
double mx_tensor_mean(const struct mx_tensor *t);

/* Opens options->mtp_adapter (a safetensors file or a PEFT / mlx-lm adapter directory). */
struct mx_checkpoint *mx_adapter_open(const char *path, double *scale, mtplx_error *err);

/* lin->lora from the adapter, or merged into the matrix; does nothing when the adapter has no
 * tensors for the module. `module` is the name inside the MTP head ("layers.0.mlp.up_proj"). */
mtplx_status mx_load_adapter(struct mx_loader *l, const char *module, struct mx_linear *lin,
                             mtplx_error *err);

/* A matrix as float32 rows, whatever its kind. */
void mx_weight_row(const struct mx_weight *w, int64_t row, float *out);

/* Replaces w by a re-quantised copy owned by the weights (no-op when it is as small already). */
mtplx_status mx_load_requant(struct mx_loader *l, struct mx_weight *w, mtplx_proj_quant q,
                             const char *name, mtplx_error *err);

/* Bytes of `rows` rows of a weight of any kind, scales and biases included. */
uint64_t mx_weight_bytes(const struct mx_weight *w, int64_t rows);

/* *to becomes the rows ids[0 .. n) of `from` (each below from->out), in that order and in their
 * stored form, copied to memory owned by the weights. Not bound. Errors: MEMORY. */
mtplx_status mx_load_rows(struct mx_loader *l, const struct mx_weight *from, const int32_t *ids,
                          int n, struct mx_weight *to, mtplx_error *err);

/* Frees what mx_load_rows() copied for `w`, before it is bound. */
void mx_load_drop(struct mx_loader *l, const struct mx_weight *w);

/* Binds a weight to the device; it is unbound when the weights are freed. */
mtplx_status mx_load_bind(struct mx_loader *l, struct mx_weight *w, mtplx_error *err);

/* Host memory owned by the weights. */
void *mx_load_host(struct mx_loader *l, size_t bytes, const char *what, mtplx_error *err);

#endif
