/* A checkpoint directory: every tensor of its safetensors files under one name space.
 *
 * Files read: those named by model.safetensors.index.json, else model.safetensors, else every
 * *.safetensors file at the top; then the MTP side files in this order: config key
 * mlx_lm_extra_tensors.mtp_file, mtp.safetensors, mtp/weights.safetensors,
 * model-mtp.safetensors. Index entries must stay inside the directory. A file is read once, so a
 * side file named by the index is simply a shard. A tensor in two main files is an error. Of side
 * files the earlier wins. A side file replaces whole modules of the main files (all tensors whose
 * names agree up to the last dot, so that a bf16 head does not pick up the scales of a quantised
 * shard), but only those of the MTP head: other repeated modules in it are ignored.
 *
 * A path that means a GGUF file (mx_gguf_resolve()) opens as a checkpoint too: its tensors under
 * Hugging Face names, see gguf_model.h.
 *
 * Thread-safe for reading once open. */
#ifndef MX_FORMAT_CHECKPOINT_H
#define MX_FORMAT_CHECKPOINT_H

#include "format/gguf_model.h"
#include "format/safetensors.h"

#include <jansson.h>

struct mx_checkpoint;

/* `config` is the parsed config.json (may be NULL) and is only read for mlx_lm_extra_tensors.
 * NULL on failure: IO (missing file), FORMAT, UNSUPPORTED, MEMORY. */
struct mx_checkpoint *mx_checkpoint_open(const char *dir, const json_t *config, mtplx_error *err);
/* One safetensors file <dir>/<file> as a checkpoint of its own (adapters). */
struct mx_checkpoint *mx_checkpoint_open_file(const char *dir, const char *file, mtplx_error *err);
void mx_checkpoint_close(struct mx_checkpoint *ck);

/* Lookup in O(log n); NULL when there is none. Tensors live as long as the checkpoint. */
const struct mx_tensor *mx_checkpoint_find(const struct mx_checkpoint *ck, const char *name);
size_t mx_checkpoint_count(const struct mx_checkpoint *ck);
/* Tensor i in order of names. */
const struct mx_tensor *mx_checkpoint_at(const struct mx_checkpoint *ck, size_t i);
const char *mx_checkpoint_dir(const struct mx_checkpoint *ck);
/* The GGUF file with the metadata (the first part of a split one), or NULL for safetensors. */
const struct mx_gguf *mx_checkpoint_gguf(const struct mx_checkpoint *ck);

/* What the exporter changed in the numbers, where the format itself says so. All false: not known.
 */
struct mx_export {
    bool baked_norms; /* RMSNorm weights are stored as w, never as w - 1 */
    bool neg_exp_a;   /* A_log holds -exp(A_log) */
    bool tiled_heads; /* value head h of Gated DeltaNet uses key head h % key_heads */
};
struct mx_export mx_checkpoint_export(const struct mx_checkpoint *ck);

/* True when the tensor came from an MTP side file. */
bool mx_checkpoint_is_side(const struct mx_checkpoint *ck, const struct mx_tensor *t);

#endif
