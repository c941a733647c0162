/* mtplx: local language models that draft with their own multi-token-prediction (MTP) head.
 *
 * Two nouns and a verb:
 *
 *   mtplx_model  immutable once loaded: weights, tokenizer, chat template, MTP head.
 *   mtplx_seq    one mutable timeline: token ids, KV cache, recurrent state, MTP cache.
 *   forward      rows (sequence, token, position) go in, hidden states and logits come out.
 *
 * On top of them stands mtplx_gen, which decodes: it drafts up to `depth` tokens with the MTP head,
 * verifies them in one forward pass and commits the accepted prefix, so that the emitted tokens
 * follow exactly the law of the target model under the given sampler. Greedy output is
 * byte-identical with and without drafting, in any batch and on any number of threads.
 *
 * Conventions. Functions that can fail take a trailing `mtplx_error *err` (may be NULL) and return
 * mtplx_status or a pointer that is NULL on failure. The message is one sentence that names the
 * file or field and what to do. Strings are UTF-8. Memory returned as `char *` or `int32_t *` is
 * freed with mtplx_free(). Pointers to results (count, len) are required. Nothing prints, exits or
 * installs signal handlers.
 *
 * Threads. A model may be shared by any number of threads; calls that run it are serialised by a
 * lock inside the model. A sequence or generation belongs to one thread at a time. Results of
 * mtplx_forward and mtplx_draft live in buffers of the model: where several threads call them, hold
 * mtplx_model_lock() over the call and the reading of its result. */
#ifndef MTPLX_H
#define MTPLX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MTPLX_API __attribute__((visibility("default")))
#else
#define MTPLX_API
#endif

#define MTPLX_VERSION "0.1.0"

/* Largest draft depth, and so at most MTPLX_MAX_DEPTH + 1 uncommitted rows per sequence. */
#define MTPLX_MAX_DEPTH 8

/* ---- Errors ------------------------------------------------------------------------------- */

typedef enum mtplx_status {
    MTPLX_OK = 0,
    MTPLX_ERR_ARGUMENT,    /* the caller passed something out of range */
    MTPLX_ERR_IO,          /* a file could not be opened or read */
    MTPLX_ERR_FORMAT,      /* a file or text is malformed */
    MTPLX_ERR_UNSUPPORTED, /* well-formed, but not something this build runs */
    MTPLX_ERR_MEMORY,      /* an allocation failed */
    MTPLX_ERR_LIMIT,       /* a stated limit was reached (context window, output size, steps) */
    MTPLX_ERR_CANCELLED,   /* the caller's cancel flag was seen */
} mtplx_status;

typedef struct mtplx_error {
    mtplx_status status;
    char message[500];
} mtplx_error;

/* Static name of a status ("argument", "io", ...). */
MTPLX_API const char *mtplx_status_name(mtplx_status status);

/* Library version, MTPLX_VERSION of the build. */
MTPLX_API const char *mtplx_version(void);

/* Frees what this library returned as `char *` or `int32_t *`. NULL is allowed. */
MTPLX_API void mtplx_free(void *p);

/* ---- Model -------------------------------------------------------------------------------- */

typedef struct mtplx_model mtplx_model;

typedef enum mtplx_proj_quant {
    MTPLX_PROJ_KEEP = 0, /* use the stored weights */
    MTPLX_PROJ_Q4,       /* re-quantise to 4 bits, group 64 (or 32 where 64 does not divide) */
    MTPLX_PROJ_Q8,
} mtplx_proj_quant;

/* How products are computed. A row's result never depends on its company in either. */
typedef enum mtplx_profile {
    MTPLX_PROFILE_AUTO = 0, /* $MTPLX_PROFILE ("fast" or "exact") when set, else fast */
    MTPLX_PROFILE_FAST,     /* where weights are quantised, activations are rounded to int8 with one
                               scale for every 32 or 64 of a row */
    MTPLX_PROFILE_EXACT,    /* float32 activations; weights stay memory-mapped as they are */
} mtplx_profile;

/* How entries of the KV caches (trunk and MTP head) are stored. Quantised entries have a scale for
 * every group of 32 values; attention reads them as they are. Fewer bits, less memory, and other
 * (slightly worse) logits: outputs are exact and reproducible within one setting. */
typedef enum mtplx_kv_quant {
    MTPLX_KV_AUTO = 0, /* $MTPLX_PAGED_KV_QUANT (off, q8, q6, q4) when set, else off */
    MTPLX_KV_OFF,      /* the device's own type: float16, or float32 on "ref" */
    MTPLX_KV_Q8,
    MTPLX_KV_Q6,
    MTPLX_KV_Q4,
} mtplx_kv_quant;

/* Zero-initialise, then set what you need: every zero is the default. */
typedef struct mtplx_load_options {
    const char *device;      /* NULL or "auto": the fastest; "cpu"; "ref": plain float32 oracle */
    int threads;             /* 0: one per usable CPU */
    bool no_mtp;             /* do not load the MTP head */
    const char *mtp_adapter; /* LoRA safetensors for the MTP head (PEFT names), or NULL */
    bool merge_mtp_adapter;  /* fold the adapter into the MTP weights instead of keeping it apart */
    mtplx_proj_quant mtp_proj_quant; /* re-quantise the MTP head's projections at load */
    mtplx_proj_quant mlp_proj_quant; /* re-quantise the trunk's MLP projections at load */
    int max_rows;                    /* rows of one prefill chunk; 0: 256 */
    mtplx_profile profile;
    /* Tokens that may be drafted: 0 the likeliest 32,768 (all of a smaller vocabulary), tokens of
     * earlier answers on this machine before others; -1 all; or their number, the same tokens
     * every time; stop tokens, added tokens and single bytes are always among them. Fewer make
     * drafting faster and, much later, acceptance lower; they never change the law of the output.
     */
    int draft_vocab;
    mtplx_proj_quant draft_head_quant; /* re-quantise the copy of the output head that drafts */
    mtplx_kv_quant kv_quant;
} mtplx_load_options;

/* Loads a checkpoint directory in Hugging Face or MLX layout, a .gguf file, or a directory that
 * holds one instead of a config.json. The fast profile copies matrices once, in the layout of this
 * processor's kernels and at their stored width; the exact one leaves them memory-mapped. Errors:
 * ARGUMENT (several GGUF files to choose from), IO, FORMAT (the sentence names tensor and file),
 * UNSUPPORTED, MEMORY. */
MTPLX_API mtplx_model *mtplx_model_load(const char *path, const mtplx_load_options *options,
                                        mtplx_error *err);

/* Frees a model. Every sequence of it must be gone. NULL is allowed. */
MTPLX_API void mtplx_model_free(mtplx_model *model);

/* The checkpoint that ships with mtplx: $MTPLX_HOME/models/nano, the build tree or the installed
 * prefix. Returns a path to mtplx_free(), or NULL when none is found. */
MTPLX_API char *mtplx_embedded_model_path(mtplx_error *err);

/* The model's lock, recursive: every call that runs the model takes it. */
MTPLX_API void mtplx_model_lock(mtplx_model *model);
MTPLX_API void mtplx_model_unlock(mtplx_model *model);

/* What was loaded. Pointers live as long as the model. */
typedef struct mtplx_model_info {
    const char *path;
    const char *architecture;  /* family name, e.g. "qwen3_5" */
    const char *model_type;    /* as in config.json */
    const char *device;        /* "ref", or "cpu/avx2" and the like */
    const char *profile;       /* "fast" or "exact" */
    const char *device_note;   /* NULL, or what the device had to do without (failed self-check) */
    const char *quantization;  /* e.g. "bf16", "mlx affine 4-bit g64 (mixed)" */
    const char *norm_encoding; /* "raw" (weight - 1 stored) or "baked", as detected for the trunk */
    const char *mtp_norm_encoding; /* the same for the MTP head, or NULL */
    bool norms_ambiguous;          /* the evidence for either was contradictory or weak */
    const char *mtp_source;        /* file the MTP head came from, or NULL */
    int layers, hidden_size, vocab_size, context_length;
    bool has_mtp; /* an MTP head is loaded and usable */
    bool has_tokenizer, has_chat_template;
    uint64_t parameters; /* trunk and embeddings, logical count */
    uint64_t mtp_parameters;
    uint64_t weight_bytes; /* bytes of the mapped tensors in use */
    int threads;
    int draft_vocab;           /* tokens that may be drafted; 0 without an MTP head */
    uint64_t draft_head_bytes; /* of the output head's copy that drafts; 0: the head itself does */
    const char *kv_format;     /* "f16", "f32", "q8", "q6" or "q4" */
    uint64_t kv_token_bytes;   /* KV cache of one token, trunk and MTP head */
    uint64_t recurrent_bytes;  /* recurrent state of one sequence; 0 without recurrent layers */
} mtplx_model_info;

MTPLX_API const mtplx_model_info *mtplx_model_get_info(const mtplx_model *model);

/* Sampling defaults of the checkpoint (generation_config.json), see mtplx_sampling below. */
struct mtplx_sampling;
MTPLX_API void mtplx_model_default_sampling(const mtplx_model *model, struct mtplx_sampling *out);

/* True when `token` ends an answer: eos ids of generation_config.json and config.json, the
 * tokenizer's eos_token, and <|im_end|> where the chat template writes it. */
MTPLX_API bool mtplx_model_is_stop_token(const mtplx_model *model, int32_t token);

/* ---- Text --------------------------------------------------------------------------------- */

/* Encodes `len` bytes. Special tokens in the text are recognised unless `plain` is set. Returns a
 * malloc'ed array of *count ids. Errors: FORMAT (invalid UTF-8 is replaced, not refused), MEMORY.
 */
MTPLX_API int32_t *mtplx_encode(const mtplx_model *model, const char *text, size_t len, bool plain,
                                size_t *count, mtplx_error *err);

/* Decodes ids to text; special tokens are dropped when `skip_special` is set. Bytes that do not
 * form UTF-8 become U+FFFD. Returns a NUL-terminated string of *len bytes. */
MTPLX_API char *mtplx_decode(const mtplx_model *model, const int32_t *ids, size_t count,
                             bool skip_special, size_t *len, mtplx_error *err);

/* Incremental detokeniser: push tokens, read complete UTF-8. May not outlive the model. NULL when
 * the model has no tokenizer or memory is out. */
typedef struct mtplx_detok mtplx_detok;
MTPLX_API mtplx_detok *mtplx_detok_new(const mtplx_model *model, bool skip_special);
MTPLX_API void mtplx_detok_free(mtplx_detok *d);
/* Feeds one token; returns text that became complete (valid until the next call, maybe empty) and
 * its length. Never ends inside a code point. NULL only when out of memory. */
MTPLX_API const char *mtplx_detok_push(mtplx_detok *d, int32_t token, size_t *len);
/* End of stream: what was held back, incomplete bytes as U+FFFD. */
MTPLX_API const char *mtplx_detok_flush(mtplx_detok *d, size_t *len);

/* Renders a conversation with the checkpoint's chat template.
 *   messages_json   JSON array of OpenAI-style messages
 *   tools_json      JSON array of tools, or NULL
 *   kwargs_json     JSON object of extra template variables (enable_thinking, ...), or NULL
 *   add_generation_prompt  open an assistant turn at the end
 * Returns the prompt text of *len bytes. Errors: ARGUMENT (messages of the wrong shape, or the
 * template's own raise_exception), FORMAT (bad JSON, or the template's error with its line),
 * UNSUPPORTED (no template), LIMIT, MEMORY. */
MTPLX_API char *mtplx_chat_render(const mtplx_model *model, const char *messages_json,
                                  const char *tools_json, const char *kwargs_json,
                                  bool add_generation_prompt, size_t *len, mtplx_error *err);

/* ---- Sequences and the forward pass ------------------------------------------------------- */

typedef struct mtplx_seq mtplx_seq;

/* An empty timeline. Memory grows with its length (KV blocks), not with the context window. */
MTPLX_API mtplx_seq *mtplx_seq_new(mtplx_model *model, mtplx_error *err);
MTPLX_API void mtplx_seq_free(mtplx_seq *seq);

/* Committed tokens. The array moves when the sequence grows; NULL before the first token. */
MTPLX_API size_t mtplx_seq_length(const mtplx_seq *seq);
MTPLX_API const int32_t *mtplx_seq_tokens(const mtplx_seq *seq);

/* Rows forwarded but not committed yet. */
MTPLX_API size_t mtplx_seq_pending(const mtplx_seq *seq);

/* Back to the empty timeline; memory is kept for reuse. */
MTPLX_API void mtplx_seq_reset(mtplx_seq *seq);

/* An independent copy of the committed state: KV blocks are shared until one of the two writes to
 * them. Errors: ARGUMENT (rows pending), MEMORY. */
MTPLX_API mtplx_seq *mtplx_seq_fork(const mtplx_seq *seq, mtplx_error *err);

/* ---- Snapshots ---------------------------------------------------------------------------- */

/* The state of a sequence at one point, immutable: what has been read need not be read again. A
 * sequence restored from it goes on exactly as the original would have, with and without drafting.
 * Snapshots share KV blocks with each other and with sequences. May not outlive its model; may be
 * used and freed by any thread. */
typedef struct mtplx_snapshot mtplx_snapshot;

/* The state after all committed tokens. Errors: ARGUMENT (no tokens, or rows pending), MEMORY. */
MTPLX_API mtplx_snapshot *mtplx_seq_snapshot(mtplx_seq *seq, mtplx_error *err);
/* A new sequence in that state. Errors: MEMORY. */
MTPLX_API mtplx_seq *mtplx_seq_restore(const mtplx_snapshot *snapshot, mtplx_error *err);
MTPLX_API void mtplx_snapshot_free(mtplx_snapshot *snapshot); /* NULL is allowed */
/* Its tokens; valid as long as the snapshot. */
MTPLX_API const int32_t *mtplx_snapshot_tokens(const mtplx_snapshot *snapshot, size_t *count);
/* Bytes it holds, shared KV blocks included. */
MTPLX_API uint64_t mtplx_snapshot_bytes(const mtplx_snapshot *snapshot);

/* Writes a snapshot to one file (0600, replaced as a whole) and reads it back. A file is checked
 * (sizes, checksums) and belongs to one model run in one way: weights, tokenizer, KV quantisation,
 * MTP head, device. Errors: IO, ARGUMENT (a NULL); for load FORMAT (damaged), ARGUMENT (of another
 * model or setting, the sentence says which), MEMORY. */
MTPLX_API mtplx_status mtplx_snapshot_save(const mtplx_snapshot *snapshot, const char *path,
                                           mtplx_error *err);
MTPLX_API mtplx_snapshot *mtplx_snapshot_load(mtplx_model *model, const char *path,
                                              mtplx_error *err);

/* ---- Session bank ------------------------------------------------------------------------- */

/* Keeps the states of earlier prompts and answers, finds the longest one that a new prompt starts
 * with, and drops the least useful ones to stay within its budget. Any thread. */
typedef struct mtplx_bank mtplx_bank;

typedef struct mtplx_bank_options {
    uint64_t max_bytes;     /* 0: half of what RAM (or the cgroup) leaves beside the weights */
    double ttl_s;           /* unused states are dropped after that many seconds; 0: 3600 */
    const char *ssd_dir;    /* also keep states on disk; NULL: no; "": the default directory */
    uint64_t ssd_max_bytes; /* 0: 16 GiB */
} mtplx_bank_options;

/* Options NULL: all defaults. Errors: ARGUMENT, IO (the directory), MEMORY. */
MTPLX_API mtplx_bank *mtplx_bank_new(mtplx_model *model, const mtplx_bank_options *options,
                                     mtplx_error *err);
/* Sequences restored from it stay valid. NULL is allowed. */
MTPLX_API void mtplx_bank_free(mtplx_bank *bank);
/* A sequence that holds the longest known prefix of the prompt, at most count - 1 tokens; an empty
 * one when nothing is known. Forward or generate from prompt + mtplx_seq_length(). Errors: MEMORY.
 * A recurrent model can only go back to states that were kept: after a keep at the end of an answer
 * the identical prompt, which is shorter, finds nothing. So call mtplx_bank_keep() at every point
 * to return to, such as before the last token of a prompt and at the end of its answer. */
MTPLX_API mtplx_seq *mtplx_bank_restore(mtplx_bank *bank, const int32_t *prompt, size_t count,
                                        mtplx_error *err);
/* Keeps the sequence's present state. Errors: ARGUMENT (no tokens, or rows pending), MEMORY. */
MTPLX_API mtplx_status mtplx_bank_keep(mtplx_bank *bank, mtplx_seq *seq, mtplx_error *err);

/* One row of the ragged forward pass. Rows of a sequence are contiguous and in order. */
typedef struct mtplx_row {
    mtplx_seq *seq;
    int32_t token;
    bool want_logits;
    /* NULL: the next text position on all axes; else {t, h, w} (mRoPE), each in 0..2^28. */
    const int32_t *position;
} mtplx_row;

/* Results of the last forward on this model; valid until the next call that runs the model. */
typedef struct mtplx_forward_result {
    const float *logits; /* [rows that wanted logits][vocab_size], in row order */
    size_t logits_rows;
    const float *hidden; /* [n][hidden_size] final-norm hidden states, when asked for */
} mtplx_forward_result;

typedef enum mtplx_forward_mode {
    MTPLX_COMMIT = 0, /* prefill and plain decode: rows are committed at once, any number */
    MTPLX_VERIFY, /* at most MTPLX_MAX_DEPTH + 1 rows a sequence, pending until mtplx_seq_commit */
} mtplx_forward_mode;

/* Runs `n` rows of one or several sequences in one pass over the weights. A row's result depends
 * only on its own sequence: not on n, the other sequences, the mode or the thread count.
 * The MTP caches of the sequences are advanced too (committed history) in MTPLX_COMMIT mode, and by
 * mtplx_seq_commit otherwise. On error no sequence has changed.
 * Errors: ARGUMENT, LIMIT (context window), MEMORY. */
MTPLX_API mtplx_status mtplx_forward(mtplx_model *model, const mtplx_row *rows, size_t n,
                                     mtplx_forward_mode mode, bool want_hidden,
                                     mtplx_forward_result *result, mtplx_error *err);

/* Keeps the first `keep` pending rows of a MTPLX_VERIFY pass and forgets the others, as if only the
 * kept ones had ever been forwarded. Ends drafting. Errors: ARGUMENT (more than are pending). */
MTPLX_API mtplx_status mtplx_seq_commit(mtplx_seq *seq, size_t keep, mtplx_error *err);

/* One draft step of the MTP head for `n` sequences in one pass: feeds tokens[i] as the token after
 * the last committed one (first step since a commit) or after the previous draft, and returns the
 * logits [n][vocab_size] of the token after it, over the full vocabulary whatever draft_vocab says:
 * only mtplx_gen drafts with fewer. At most MTPLX_MAX_DEPTH steps between commits; a
 * commit or a committing forward ends the drafting. Committed state does not change.
 * Errors: ARGUMENT (no MTP head, nothing committed, rows pending, too many steps), MEMORY. */
MTPLX_API mtplx_status mtplx_draft(mtplx_model *model, mtplx_seq *const *seqs,
                                   const int32_t *tokens, size_t n, mtplx_forward_result *result,
                                   mtplx_error *err);

/* ---- Sampling and generation -------------------------------------------------------------- */

/* Sampler settings, applied to target and draft alike, in this order: repetition, presence and
 * frequency penalties, then bias and grammar of the generation's options, temperature, top-p (on
 * the full distribution), top-k, min-p, renormalise. */
typedef struct mtplx_sampling {
    double temperature;       /* 0: greedy */
    double top_p;             /* in (0, 1]; 1: off */
    int top_k;                /* 0: off */
    double min_p;             /* drop tokens below min_p * max p; 0: off */
    double presence_penalty;  /* subtracted from logits of tokens seen in the completion, [-2, 2] */
    double frequency_penalty; /* same, times the count, [-2, 2] */
    double repetition_penalty; /* divides positive, multiplies negative logits of seen tokens; 1:
                                  off */
    uint64_t seed;
} mtplx_sampling;

/* How the draft depth of a cycle is chosen, between 0 and the depth of the options. Greedy output
 * does not depend on it; sampled output keeps its law, but the tokens of a seed depend on the
 * depths (and so, but for FIXED, STREAK and POSITION_EMA, on measured times). */
typedef enum mtplx_depth_policy {
    MTPLX_DEPTH_FIXED = 0, /* always the depth of the options */
    MTPLX_DEPTH_AUTO,      /* the most tokens per measured time; plain decoding where it wins */
    MTPLX_DEPTH_STREAK,    /* deeper after accepted cycles, shallower after early rejections */
    MTPLX_DEPTH_EXPECTED_VALUE, /* while the next draft is worth its time */
    MTPLX_DEPTH_COST,           /* by measured cycle times of each depth */
    MTPLX_DEPTH_POSITION_EMA,   /* by acceptance of each position at a fixed overhead */
} mtplx_depth_policy;

#define MTPLX_MAX_LOGIT_BIAS 1024
#define MTPLX_MAX_LOGPROBS 20

typedef struct mtplx_logit_bias {
    int32_t token;
    float bias; /* [-100, 100] */
} mtplx_logit_bias;

/* What the text of an answer must obey. Immutable, shared by threads and generations. */
typedef struct mtplx_grammar mtplx_grammar;

typedef enum mtplx_grammar_kind {
    MTPLX_GRAMMAR_JSON = 0, /* any JSON object; text is ignored */
    MTPLX_GRAMMAR_SCHEMA,   /* JSON Schema */
    MTPLX_GRAMMAR_REGEX,
    MTPLX_GRAMMAR_GBNF,
} mtplx_grammar_kind;

/* Compiles a grammar. `after`: free text up to and including this string comes first (the end of
 * reasoning, "</think>"); NULL: the grammar holds from the first token. Errors: ARGUMENT (the
 * sentence names the place), UNSUPPORTED, LIMIT, MEMORY. */
MTPLX_API mtplx_grammar *mtplx_grammar_new(mtplx_model *model, mtplx_grammar_kind kind,
                                           const char *text, size_t len, const char *after,
                                           mtplx_error *err);
/* Drops the caller's reference. NULL is allowed. */
MTPLX_API void mtplx_grammar_free(mtplx_grammar *grammar);

typedef struct mtplx_token_logprob {
    int32_t token;
    float logprob; /* natural logarithm, of the model's own law: before penalties, bias, grammar,
                      temperature and filters; -9999 when that is 0 */
} mtplx_token_logprob;

typedef struct mtplx_gen_options {
    mtplx_sampling sampling;
    int depth;                 /* draft depth 0..MTPLX_MAX_DEPTH; 0 decodes plainly */
    mtplx_depth_policy policy; /* `depth` is the largest one for all but FIXED */
    bool context_copy; /* also draft by copying what followed earlier occurrences of the last tokens
                          in the sequence, at any depth and without an MTP head too; AUTO weighs it
                          against drafting, the other policies copy behind long matches */
    int max_tokens;    /* at most this many new tokens; 0: until the context window is full */
    bool ignore_stop;  /* do not end at stop tokens (benchmarks); a grammar's end ends anyhow */
    /* Added to the logits of p and q after penalties and before the temperature; -100 and less
     * bans a token, 100 and more makes it certain. Copied. */
    const struct mtplx_logit_bias *logit_bias;
    size_t n_logit_bias; /* 0..MTPLX_MAX_LOGIT_BIAS */
    /* 0: none; else the log-probability of every answer token is kept, with the likeliest
     * logprobs - 1 (at most MTPLX_MAX_LOGPROBS) alternatives. See mtplx_gen_logprobs(). */
    int logprobs;
    bool prompt_logprobs; /* also of the prompt tokens of this generation; slower prefill */
    /* Tokens that the answer may consist of, held against p and q alike; NULL: all. It stops only
     * where the text may end, goes before any bias, and where it lets the text go on in one way
     * only, that is drafted without the MTP head (unless depth is 0 without context_copy). Shared:
     * the generation keeps a reference. */
    struct mtplx_grammar *grammar;
    const volatile int *cancel; /* polled between chunks and cycles; non-zero ends with CANCELLED */
} mtplx_gen_options;

typedef enum mtplx_finish {
    MTPLX_FINISH_NONE = 0,  /* still running */
    MTPLX_FINISH_STOP,      /* a stop token */
    MTPLX_FINISH_LENGTH,    /* max_tokens or the context window */
    MTPLX_FINISH_CANCELLED, /* the cancel flag was seen */
    MTPLX_FINISH_ERROR,     /* a pass failed; the step that ran it reported why */
} mtplx_finish;

typedef struct mtplx_gen_stats {
    uint64_t prompt_tokens, generated_tokens;
    uint64_t cycles; /* verify passes (plain decode steps count too) */
    uint64_t bonus, corrections;
    /* Per draft position: a position counts as drafted in a cycle when every earlier position of
     * that cycle was accepted. */
    uint64_t drafted[MTPLX_MAX_DEPTH], accepted[MTPLX_MAX_DEPTH];
    /* In a batch, draft and verify times are those of the shared passes. */
    uint64_t prefill_ns, draft_ns, verify_ns, sample_ns, commit_ns;
    uint64_t first_token_ns; /* from the start of prefill to the first token */
    uint64_t decode_ns;      /* from the first token to now */
    /* Cycles by number of drafts, copied ones included. */
    uint64_t depths[MTPLX_MAX_DEPTH + 1];
    uint64_t probes; /* cycles whose depth was chosen to learn */
    /* Copied drafts, and those along the one way that a grammar left: cycles that had some, tokens
     * tested and accepted. Not in drafted, accepted. */
    uint64_t copy_cycles, copy_tested, copy_accepted;
    /* Cycles that the policy had predicted the time of: predicted and measured, summed. */
    uint64_t predicted_ns, measured_ns;
} mtplx_gen_stats;

/* One answer being decoded on a sequence. */
typedef struct mtplx_gen mtplx_gen;

/* Starts decoding after `prompt` (count >= 1 tokens appended to the sequence first). The sequence
 * stays the caller's and must outlive the generation. No model work happens yet. `options` NULL is
 * greedy plain decoding; a zero top_p or repetition_penalty means off. When the answer has ended,
 * the sequence holds prompt and answer without the answer's last token, whatever the depth. Errors:
 * ARGUMENT, LIMIT (the prompt does not fit the context window), MEMORY. */
MTPLX_API mtplx_gen *mtplx_gen_new(mtplx_seq *seq, const int32_t *prompt, size_t count,
                                   const mtplx_gen_options *options, mtplx_error *err);
MTPLX_API void mtplx_gen_free(mtplx_gen *gen);

/* Advances one step: a prefill chunk, or one draft-verify-commit cycle. New tokens, stop token
 * included, are appended to mtplx_gen_tokens(). A finished generation is left alone. After an error
 * the generation is finished and its sequence stands at the last commit.
 * Errors: CANCELLED, MEMORY, LIMIT or ARGUMENT (the sequence was used otherwise meanwhile). */
MTPLX_API mtplx_status mtplx_gen_step(mtplx_gen *gen, mtplx_error *err);

/* The same for several generations of one model: decode cycles share their passes; prompts share
 * one pass, in order, until it has max_rows rows, and the later ones wait for the next step;
 * finished ones are skipped. Each gets the tokens it would have got alone (sampled under an
 * adaptive policy: other tokens of the same law, since depths differ). Returns the first failure;
 * the generations that failed are finished, the others go on as if they had been alone. A list that
 * cannot be stepped together (two models, a sequence twice) is refused as a whole with ARGUMENT,
 * and its generations stay as they were. */
MTPLX_API mtplx_status mtplx_gen_step_many(mtplx_gen *const *gens, size_t n, mtplx_error *err);

/* Tokens of the answer so far; valid until the generation is freed. */
MTPLX_API const int32_t *mtplx_gen_tokens(const mtplx_gen *gen, size_t *count);
MTPLX_API mtplx_finish mtplx_gen_finish(const mtplx_gen *gen);

/* Log-probabilities of answer token `index`, when asked for: *own of the token itself, and up to
 * `logprobs` - 1 alternatives, likeliest first, in *top (valid until the generation is freed).
 * Returns how many alternatives, or -1 when there are none to tell. */
MTPLX_API int mtplx_gen_logprobs(const mtplx_gen *gen, size_t index, float *own,
                                 const mtplx_token_logprob **top);
/* The same for prompt token `index` of this generation, given the tokens before it; -1 for token 0,
 * whose predecessor (if the sequence held one) was forwarded earlier, and for tokens not forwarded
 * yet. */
MTPLX_API int mtplx_gen_prompt_logprobs(const mtplx_gen *gen, size_t index, float *own,
                                        const mtplx_token_logprob **top);
MTPLX_API const mtplx_gen_stats *mtplx_gen_get_stats(const mtplx_gen *gen);

#ifdef __cplusplus
}
#endif

#endif
