/* Inside of a model: what mtplx_model holds. See include/mtplx.h for the public view.
 *
 * Everything but `exec` and the buffers behind it is immutable after loading. Those are the mutable
 * side of running the model and are used under `lock` only. */
#ifndef MX_RUNTIME_MODEL_H
#define MX_RUNTIME_MODEL_H

#include "families/family.h"
#include "families/loader.h"
#include "runtime/depth.h"
#include "runtime/draft_vocab.h"
#include "runtime/kv_pool.h"
#include "runtime/misses.h"
#include "runtime/state.h"
#include "text/chat.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

#include <pthread.h>

#define MX_MAX_PENDING (MTPLX_MAX_DEPTH + 1)
/* Capacity of a sequence's lag: a full verify block behind a full one. */
#define MX_MAX_LAG (2 * MX_MAX_PENDING)
#define MX_KV_BLOCK 64 /* positions in a KV block */
#define MX_MAX_STOPS 64

/* Host memory that grows and is reused. */
struct mx_hostbuf {
    void *data;
    size_t cap;
};

/* Device memory that grows and is reused. */
struct mx_devbuf {
    float *data;
    size_t cap; /* bytes */
};

struct mtplx_model {
    char *path;
    struct mx_config config;
    struct mx_checkpoint *checkpoint, *adapter;
    double adapter_scale;
    struct mx_device *device;
    struct mx_weights weights;
    const struct mx_family *family;
    const void *arch;
    struct mx_geometry geometry;
    struct mx_tokenizer *tokenizer; /* NULL: none in the directory */
    struct mx_chat *chat;           /* NULL: no template */
    /* Of grammars; NULL before the first. A lock of its own: who compiles a grammar waits for no
     * pass of the model, and no pass for the table. */
    pthread_mutex_t table_lock;
    struct mx_token_table *token_table;
    mtplx_sampling sampling;
    int32_t stops[MX_MAX_STOPS];
    int n_stops;
    struct mx_draft_vocab draft;
    struct mx_misses *misses;              /* NULL: not recorded; used under `lock` */
    struct mx_kv_pool *kv_pool, *mtp_pool; /* blocks of the two caches; mtp_pool NULL: no head */
    mtplx_model_info info;
    char quantization[64];

    pthread_mutex_t lock;
    struct mx_exec exec;
    struct mx_devbuf hidden; /* [rows][hidden] of the last forward */
    struct mx_devbuf logits; /* [rows][vocab] */
    struct mx_devbuf pairs;  /* [rows][hidden] MTP inputs */
    struct mx_devbuf drafts; /* [rows][hidden] MTP outputs */
    struct mx_hostbuf out_logits, out_hidden;
    struct mx_hostbuf batch, mtp_batch; /* tokens, positions and segments of a call */
    struct mx_hostbuf prompt_rows;      /* rows of a prefill pass */

    /* Learned facts; under `lock`. */
    struct mx_state *state;       /* of earlier runs, or NULL */
    struct mx_depth_model *depth; /* times and acceptance; NULL before the first use */
    uint64_t (*clock)(void);      /* mx_now_ns(), or what a test puts here */
};

/* The model's times and acceptance, read from the state on the first call; NULL without memory. */
struct mx_depth_model *mx_model_depth(mtplx_model *m);

/* Makes the context window shorter, before the first sequence; a longer one is left alone. */
void mx_model_limit_context(mtplx_model *m, int tokens);

/* Grows a buffer to at least `bytes`. Contents are lost. */
mtplx_status mx_devbuf_need(struct mtplx_model *m, struct mx_devbuf *b, size_t bytes,
                            mtplx_error *err);
mtplx_status mx_hostbuf_need(struct mx_hostbuf *b, size_t bytes, mtplx_error *err);

#endif
