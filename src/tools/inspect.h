/* Inspect: what a checkpoint directory or GGUF file holds and whether this build runs it.
 *
 * The verdict comes from the very loader that a run uses, on the reference device, so that inspect
 * and a run can not disagree. Weights stay mapped and are not read, except for norm vectors. An
 * unsupported architecture is reported from config.json and the file headers alone. */
#ifndef MX_TOOLS_INSPECT_H
#define MX_TOOLS_INSPECT_H

#include "base/arena.h"
#include "base/error.h"
#include "device/kv_format.h"
#include "format/dtype.h"

enum mx_verdict {
    MX_VERIFIED = 0,    /* supported, every tensor bound, MTP head complete, nothing odd */
    MX_NO_MTP = 2,      /* runs, but there is no MTP head to draft with */
    MX_UNVERIFIED = 3,  /* loads, with something that could not be proved right: see reasons */
    MX_UNSUPPORTED = 4, /* not an architecture, or a variant of one, that this build runs */
};

enum {
    MX_INSPECT_REASONS = 8,
    MX_INSPECT_QUANTS = 8,
    MX_INSPECT_DTYPES = MX_DTYPE_COUNT + 64, /* element types, then GGUF block types */
};

/* Quantised matrices of one kind: MLX bits and group, or a GGUF block type. */
struct mx_inspect_quant {
    const char *type; /* "Q4_K", or NULL */
    int bits, group, matrices;
};

struct mx_inspect_dtype {
    uint64_t tensors, bytes;
};

/* Numbers are 0 and strings NULL where the checkpoint does not tell. */
struct mx_inspect {
    struct mx_arena arena; /* owns the strings */
    const char *path;
    const char *architecture; /* family of this build, NULL when unsupported */
    const char *class_name;   /* architectures[0] of config.json */
    const char *model_type;
    int64_t layers, attention_layers, recurrent_layers;
    /* What a sequence takes: KV cache of one token by enum mx_kv_format (0: the format does not fit
     * the heads), MTP head included, and recurrent state. */
    uint64_t kv_token_bytes[MX_KV_Q4 + 1], recurrent_bytes;
    int64_t hidden, intermediate, heads, kv_heads, head_dim, vocab, context;

    bool weights_read; /* the weight files could be opened; else the sizes below are 0 */
    uint64_t tensors, bytes, parameters;
    struct mx_inspect_dtype dtypes[MX_INSPECT_DTYPES];
    struct mx_inspect_quant quants[MX_INSPECT_QUANTS];
    int n_quants;

    bool has_mtp;
    const char *mtp_source; /* file name within the directory */
    uint64_t mtp_parameters;
    int draft_vocab;           /* tokens that a run drafts by default */
    uint64_t draft_head_bytes; /* of the copy of the output head made for that; 0: none is made */
    const char *trunk_norms;   /* "raw" (weight - 1 is stored), "baked", or NULL */
    const char *mtp_norms;

    bool has_tokenizer, has_chat_template, template_thinks;
    int tokenizer_size;

    /* What runs it here: device, int8 kernels (NULL: none), formats of theirs that failed the
     * self-check, and a sentence when something is wrong, or NULL. */
    const char *device, *int8_kernels, *device_note;
    int formats_checked, formats_broken;

    enum mx_verdict verdict;
    const char *reasons[MX_INSPECT_REASONS]; /* why it is not MX_VERIFIED */
    int n_reasons;
};

/* Fills *r; mx_inspect_free() it in any case. Errors: IO, FORMAT (config.json or a weight file is
 * missing or damaged, a tensor is missing), MEMORY. */
mtplx_status mx_inspect(struct mx_inspect *r, const char *dir, mtplx_error *err);
void mx_inspect_free(struct mx_inspect *r);

/* Name of entry i of dtypes: "BF16", "Q4_K". */
const char *mx_inspect_dtype_name(int i);

/* "verified", "no MTP", "unverified" or "unsupported". */
const char *mx_verdict_name(enum mx_verdict v);

#endif
