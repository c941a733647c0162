/* The routes of mtplx. */
#include "serve/api.h"
#include "serve/router.h"

enum { BODY = MX_ROUTE_BODY, QUICK = MX_ROUTE_QUICK, EXACT = MX_ROUTE_EXACT };

#define OPENAI MX_DIALECT_OPENAI
#define ANTHROPIC MX_DIALECT_ANTHROPIC

const struct mx_route mx_routes[] = {
    {"POST", "/v1/chat/completions", mx_api_chat_completions, OPENAI, BODY},
    {"POST", "/v1/completions", mx_api_completions, OPENAI, BODY},
    {"POST", "/v1/embeddings", mx_api_embeddings, OPENAI, BODY},
    {"POST", "/v1/responses", mx_api_responses, OPENAI, BODY},
    {"GET", "/v1/responses/{id}/input_items", mx_api_response_items, OPENAI, QUICK},
    {"POST", "/v1/responses/{id}/cancel", mx_api_response_cancel, OPENAI, QUICK},
    {"GET", "/v1/responses/{id}", mx_api_response_get, OPENAI, QUICK},
    {"DELETE", "/v1/responses/{id}", mx_api_response_delete, OPENAI, QUICK},
    {"POST", "/v1/messages", mx_api_messages, ANTHROPIC, BODY},
    {"POST", "/v1/messages/count_tokens", mx_api_count_tokens, ANTHROPIC, BODY},
    {"POST", "/tokenize", mx_api_tokenize, OPENAI, BODY},
    {"POST", "/detokenize", mx_api_detokenize, OPENAI, BODY},

    {"GET", "/health", mx_api_health, OPENAI, QUICK | MX_ROUTE_OPEN},
    {"GET", "/", mx_api_landing, OPENAI, QUICK},
    {"GET", "/v1", mx_api_landing, OPENAI, QUICK},
    {"GET", "/v1/models", mx_api_models, OPENAI, QUICK},
    {"GET", "/v1/models/{id}", mx_api_model, OPENAI, QUICK},
    {"GET", "/metrics", mx_api_metrics, OPENAI, QUICK},

    {"GET", "/v1/mtplx/metrics/stream", mx_api_metrics_stream, OPENAI, QUICK},
    {"GET", "/v1/mtplx/snapshot", mx_api_snapshot, OPENAI, QUICK},
    {"GET", "/v1/mtplx/settings", mx_api_settings_get, OPENAI, QUICK},
    {"POST", "/v1/mtplx/settings", mx_api_settings_set, OPENAI, BODY | QUICK},
    {"POST", "/v1/mtplx/cancel/{id}", mx_api_cancel, OPENAI, QUICK},
    {"GET", "/v1/mtplx/prefill_history", mx_api_prefill_history, OPENAI, QUICK},
    {"GET", "/v1/mtplx/app/capabilities", mx_api_capabilities, OPENAI, QUICK},
    {"GET", "/admin/sessions", mx_api_sessions, OPENAI, QUICK},
    {"DELETE", "/admin/sessions", mx_api_cache_clear, OPENAI, QUICK | EXACT},
    {"POST", "/admin/sessions/{id}/clear", mx_api_session_clear, OPENAI, QUICK},
    {"POST", "/admin/sessions/{id}/pin", mx_api_session_pin, OPENAI, QUICK},
    {"POST", "/admin/sessions/{id}/unpin", mx_api_session_unpin, OPENAI, QUICK},
    {"DELETE", "/admin/sessions/{id}", mx_api_session_clear, OPENAI, QUICK},
    {"POST", "/admin/cache/clear", mx_api_cache_clear, OPENAI, QUICK},
    {"GET", "/admin/cache", mx_api_cache, OPENAI, QUICK},
};
const size_t mx_routes_count = sizeof mx_routes / sizeof *mx_routes;
