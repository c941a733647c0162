/* Model families: what a checkpoint's architecture contributes to the runtime.
 *
 * A family binds weights once into its own named table, states the geometry of the per-sequence
 * state, and runs the trunk and the MTP head over a ragged batch. It knows no sampler, no server
 * and no device internals; the runtime knows no layer.
 *
 * Invariants
 *   F1  After load() returns, no tensor is looked up by name again.
 *   F2  forward functions allocate nothing and cannot fail.
 *   F3  A row's result depends on its own sequence only (device.h, D3). */
#ifndef MX_FAMILIES_FAMILY_H
#define MX_FAMILIES_FAMILY_H

#include "device/device.h"
#include "format/config.h"

struct mx_loader;

#define MX_MAX_SCRATCH 16

/* What the runtime must know to allocate sequences and scratch. The runtime fills in kv.format,
 * kv.block_tokens (both caches) and gdn.tape_rows before load(), the family everything else. */
struct mx_geometry {
    int layers, hidden, vocab, context;
    struct mx_kv_layout kv;     /* trunk attention layers; layers may be 0 */
    struct mx_kv_layout mtp_kv; /* the MTP head's own cache */
    struct mx_gdn_layout gdn;   /* recurrent layers; layers may be 0 */
    bool has_mtp;
    /* Scratch buffers of the forward pass, floats per row; 0 ends the list. */
    int64_t scratch[MX_MAX_SCRATCH];
};

/* Called after every layer with the residual stream [n][hidden], in device memory (tests, qa). */
typedef void mx_trace_fn(void *arg, int layer, const float *residual, int n);

/* The mutable side of a running model: one per model, used under its lock. */
struct mx_exec {
    struct mx_device *device;
    float *scratch[MX_MAX_SCRATCH]; /* [max_rows][geometry.scratch[i]] */
    int max_rows;
    mx_trace_fn *trace; /* NULL normally */
    void *trace_arg;
};

struct mx_family {
    const char *name;
    const char *const *model_types; /* NULL-terminated, as in config.json */

    /* Binds weights; fills the geometry. The result lives in the loader's arena. */
    void *(*load)(struct mx_loader *l, struct mx_geometry *g, mtplx_error *err);

    /* Trunk: rows of the batch -> hidden [n][hidden] after the final norm. Stores KV and recurrent
     * state through the batch's segments. */
    void (*forward)(const void *arch, struct mx_exec *x, const struct mx_batch *b, float *hidden);

    /* MTP head: row i pairs the token b->tokens[i] with the hidden state hidden_in[i] of the token
     * before it. hidden_out [n][hidden] is the head's recursion state (after its own norm), what
     * logits() takes; NULL when the rows only extend the MTP cache. hidden_in and hidden_out may
     * be the same buffer. */
    void (*mtp_forward)(const void *arch, struct mx_exec *x, const struct mx_batch *b,
                        const float *hidden_in, float *hidden_out);

    /* logits [n][vocab] of hidden [n][hidden]. */
    void (*logits)(const void *arch, struct mx_exec *x, const float *hidden, int n, float *logits);

    /* The matrix [vocab][hidden] whose product with hidden is all that logits() does, so that the
     * runtime may compute some of its rows only; NULL (or no such function) when it is more. */
    const struct mx_weight *(*output_head)(const void *arch);
};

/* The family for a config's model_type, or NULL. */
const struct mx_family *mx_family_find(const struct mx_config *cfg);

/* NULL-terminated list of all families. */
const struct mx_family *const *mx_families(void);

/* model_type of a config: text_config's when the root's is unknown. Never NULL ("" when absent). */
const char *mx_config_model_type(const struct mx_config *cfg);

#endif
