/* The handlers of the routes, one file per dialect. See exchange.h for the contract of a handler.
 */
#ifndef MX_SERVE_API_H
#define MX_SERVE_API_H

#include "serve/exchange.h"

mx_handler mx_api_chat_completions; /* POST /v1/chat/completions: openai_chat.c */
mx_handler mx_api_completions;      /* POST /v1/completions: openai_completions.c */
mx_handler mx_api_embeddings;       /* POST /v1/embeddings: openai_embeddings.c */
mx_handler mx_api_responses;        /* POST /v1/responses: openai_responses.c */
mx_handler mx_api_response_get;     /* GET /v1/responses/{id} */
mx_handler mx_api_response_delete;  /* DELETE /v1/responses/{id} */
mx_handler mx_api_response_cancel;  /* POST /v1/responses/{id}/cancel */
mx_handler mx_api_response_items;   /* GET /v1/responses/{id}/input_items */
mx_handler mx_api_messages;         /* POST /v1/messages: anthropic.c */
mx_handler mx_api_count_tokens;     /* POST /v1/messages/count_tokens */

mx_handler mx_api_models;     /* GET /v1/models: info.c */
mx_handler mx_api_model;      /* GET /v1/models/{id} */
mx_handler mx_api_health;     /* GET /health */
mx_handler mx_api_landing;    /* GET / and /v1 */
mx_handler mx_api_tokenize;   /* POST /tokenize: tokens.c */
mx_handler mx_api_detokenize; /* POST /detokenize */

mx_handler mx_api_metrics;         /* GET /metrics: metrics.c */
mx_handler mx_api_metrics_stream;  /* GET /v1/mtplx/metrics/stream */
mx_handler mx_api_snapshot;        /* GET /v1/mtplx/snapshot: control.c */
mx_handler mx_api_settings_get;    /* GET /v1/mtplx/settings */
mx_handler mx_api_settings_set;    /* POST /v1/mtplx/settings */
mx_handler mx_api_cancel;          /* POST /v1/mtplx/cancel/{id} */
mx_handler mx_api_prefill_history; /* GET /v1/mtplx/prefill_history */
mx_handler mx_api_capabilities;    /* GET /v1/mtplx/app/capabilities */
mx_handler mx_api_sessions;        /* GET /admin/sessions: sessions.c */
mx_handler mx_api_session_clear;   /* DELETE /admin/sessions/{id}, POST .../clear */
mx_handler mx_api_session_pin;     /* POST /admin/sessions/{id}/pin */
mx_handler mx_api_session_unpin;   /* POST /admin/sessions/{id}/unpin */
mx_handler mx_api_cache_clear;     /* DELETE /admin/sessions, POST /admin/cache/clear */
mx_handler mx_api_cache;           /* GET /admin/cache */

/* The bounded store behind previous_response_id: responses.c. NULL on failure. */
struct mx_response_store;
struct mx_response_store *mx_response_store_new(size_t max_entries, size_t max_bytes);
void mx_response_store_free(struct mx_response_store *s);

#endif
