/* The flags of `mtplx serve`, and what they come to. */
#ifndef MX_CLI_SERVE_FLAGS_H
#define MX_CLI_SERVE_FLAGS_H

#include "cli/args.h"
#include "serve/app.h"
#include "serve/server.h"

enum {
    SERVE_MODEL,
    SERVE_HOST,
    SERVE_PORT,
    SERVE_API_KEY,
    SERVE_API_KEY_FILE,
    SERVE_NO_AUTH,
    SERVE_RATE_LIMIT,
    SERVE_MODEL_ID,
    SERVE_CORS_ORIGIN,
    SERVE_ALLOWED_HOST,
    SERVE_TLS_CERT,
    SERVE_TLS_KEY,
    SERVE_REQUEST_LOG,
    SERVE_MAX_BODY,
    SERVE_MAX_CONNECTIONS,
    SERVE_SCHEDULER_MODE,
    SERVE_BATCHING_PRESET,
    SERVE_MAX_ACTIVE,
    SERVE_DECODE_BATCH,
    SERVE_MAX_QUEUE,
    SERVE_PREFILL_CHUNK,
    SERVE_CONTEXT_WINDOW,
    SERVE_MEMORY_BUDGET,
    SERVE_BANK,
    SERVE_BANK_SIZE,
    SERVE_BANK_CAP,
    SERVE_BANK_TTL,
    SERVE_BANK_PIN,
    SERVE_BANK_INTERVAL,
    SERVE_BANK_POINTS,
    SERVE_ALIGNMENT,
    SERVE_SSD,
    SERVE_SSD_DIR,
    SERVE_SSD_MAX_SIZE,
    SERVE_SSD_MIN_TOKENS,
    SERVE_SSD_BUDGET,
    SERVE_SSD_FLOOR,
    SERVE_SSD_BACKLOG,
    SERVE_DEPTH,
    SERVE_DEPTH_POLICY,
    SERVE_COPY,
    SERVE_MTP,
    SERVE_GENERATION_MODE,
    SERVE_TEMPERATURE,
    SERVE_TOP_P,
    SERVE_TOP_K,
    SERVE_MIN_P,
    SERVE_PRESENCE,
    SERVE_FREQUENCY,
    SERVE_REPETITION,
    SERVE_SEED,
    SERVE_MAX_TOKENS,
    SERVE_MAX_RESPONSE_TOKENS,
    SERVE_REASONING,
    SERVE_REASONING_PARSER,
    SERVE_PRESERVE_THINKING,
    SERVE_TOOL_PARSER,
    SERVE_WARMUP_TOKENS,
    SERVE_STALL_DEADLINE,
    SERVE_REQUEST_TIMEOUT,
    SERVE_DRAIN_SECONDS,
    SERVE_CLIENT_CONTROLS,
    SERVE_STATS,
    SERVE_DEVICE,
    SERVE_THREADS,
    SERVE_PROFILE,
    SERVE_KV_QUANT,
    SERVE_PAGED_KV, /* follows its short name */
    SERVE_DRAFT_VOCAB,
    SERVE_MTP_ADAPTER,
    SERVE_QUIET,
    SERVE_FLAGS,
};

extern const struct mx_cli_flag mx_serve_flags[SERVE_FLAGS];

/* The command line read: options of every part. Texts are borrowed from it, but for the key of a
 * key file and split lists, which mx_serve_config_free() frees. */
struct mx_serve_config {
    mtplx_load_options load;
    struct mx_engine_options engine;
    struct mx_server_options server;
    struct mx_cold_options cold; /* but for its identity */
    bool turn_alignment;
    struct mx_app_settings settings;  /* without what depends on the model */
    int reasoning_style, tool_syntax; /* enums, or -1: as the chat template says */
    char *keys[2], *lists[3];
    const char *origins[2 * MX_CLI_MAX_REPEATED], *hosts[2 * MX_CLI_MAX_REPEATED];
};

/* Errors: ARGUMENT naming the flag; IO, of a key file. */
mtplx_status mx_serve_configure(const struct mx_cli_args *args, struct mx_serve_config *c,
                                mtplx_error *err);
void mx_serve_config_free(struct mx_serve_config *c);
/* Sampling, depth and the like, once the model is known. */
void mx_serve_settings(const struct mx_cli_args *args, const mtplx_model *model,
                       struct mx_app_settings *s);

#endif
