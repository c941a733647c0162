/* From the flags of `mtplx serve` to the options of model, engine and server. */
#include "cli/serve_flags.h"

#include "base/memory.h"
#include "cli/model_arg.h"
#include "cli/size.h"
#include "serve/auth.h"
#include "serve/guard.h"
#include "serve/turn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    const struct mx_cli_args *args;
    struct mx_serve_config *c;
    mtplx_error *err;
};

static const struct mx_cli_value *value(const struct reader *r, int flag)
{
    return &r->args->values[flag];
}

static bool given(const struct reader *r, int flag)
{
    return value(r, flag)->source != MX_CLI_DEFAULT;
}

/* What a user wrote: the flag or its variable. */
static const char *label(const struct reader *r, int flag, char buf[64])
{
    const struct mx_cli_flag *f = &mx_serve_flags[flag];
    if (value(r, flag)->source == MX_CLI_ENVIRONMENT)
        return f->env;
    snprintf(buf, 64, "--%s", f->name);
    return buf;
}

/* ---- Values ------------------------------------------------------------------------------- */

static mtplx_status read_size_or(const struct reader *r, int flag, const char *others,
                                 uint64_t *out)
{
    char buf[64];
    if (!given(r, flag))
        return MTPLX_OK;
    *out = mx_cli_size(value(r, flag)->text);
    if (*out > 0)
        return MTPLX_OK;
    return mx_error(r->err, MTPLX_ERR_ARGUMENT,
                    "%s takes a size such as 512M or 8G%s, not \"%.40s\"", label(r, flag, buf),
                    others, value(r, flag)->text);
}

static mtplx_status read_size(const struct reader *r, int flag, uint64_t *out)
{
    return read_size_or(r, flag, "", out);
}

static uint64_t seconds(const struct reader *r, int flag, double fallback)
{
    return (uint64_t)((given(r, flag) ? value(r, flag)->real : fallback) * 1e9);
}

/* Splits a list at its commas, in a copy that the configuration keeps. */
static int split(char *copy, const char **out, int n, int max)
{
    for (char *at = copy; at && n < max;) {
        char *end = strchr(at, ',');
        if (end)
            *end = '\0';
        at += strspn(at, " ");
        for (size_t k = strlen(at); k > 0 && at[k - 1] == ' '; k--)
            at[k - 1] = '\0';
        if (*at)
            out[n++] = at;
        at = end ? end + 1 : NULL;
    }
    return n;
}

/* The values of a flag that repeats, joined with commas, or of its variable. NULL: none. */
static char *joined(const struct reader *r, int flag)
{
    struct mx_strbuf b;
    mx_strbuf_init(&b, 0);
    if (value(r, flag)->source == MX_CLI_ENVIRONMENT)
        mx_strbuf_puts(&b, value(r, flag)->text);
    for (int i = 0; i < r->args->n_repeated; i++)
        if (r->args->repeated[i].flag == flag)
            mx_strbuf_printf(&b, "%s,", r->args->repeated[i].text);
    return b.len > 0 ? mx_strbuf_steal(&b, NULL) : NULL;
}

/* ---- Parts -------------------------------------------------------------------------------- */

static mtplx_status read_load(const struct reader *r)
{
    mtplx_load_options *o = &r->c->load;
    char buf[64];
    *o = (mtplx_load_options){
        .device = value(r, SERVE_DEVICE)->text,
        .threads = (int)value(r, SERVE_THREADS)->integer,
        .no_mtp = given(r, SERVE_MTP) && !value(r, SERVE_MTP)->on,
        .mtp_adapter = value(r, SERVE_MTP_ADAPTER)->text,
        .max_rows = (int)value(r, SERVE_PREFILL_CHUNK)->integer,
        .profile = mx_profile_arg(value(r, SERVE_PROFILE)->text),
    };
    mtplx_status st = mx_kv_quant_arg(r->args, SERVE_KV_QUANT, &o->kv_quant, r->err);
    if (st != MTPLX_OK || !given(r, SERVE_DRAFT_VOCAB))
        return st;
    o->draft_vocab = mx_draft_vocab_arg(value(r, SERVE_DRAFT_VOCAB)->text);
    if (o->draft_vocab != 0)
        return MTPLX_OK;
    return mx_error(r->err, MTPLX_ERR_ARGUMENT,
                    "%s takes full or an integer from 1 to %d, not \"%.40s\"",
                    label(r, SERVE_DRAFT_VOCAB, buf), 1 << 24, value(r, SERVE_DRAFT_VOCAB)->text);
}

static int max_active(const struct reader *r)
{
    static const char *const presets[] = {"solo", "latency", "agent", "throughput"};
    int n = 8;
    for (int i = 0; given(r, SERVE_BATCHING_PRESET) && i < 4; i++)
        if (strcmp(value(r, SERVE_BATCHING_PRESET)->text, presets[i]) == 0)
            n = 1 << i;
    if (given(r, SERVE_MAX_ACTIVE))
        n = (int)value(r, SERVE_MAX_ACTIVE)->integer;
    if (given(r, SERVE_DECODE_BATCH) && value(r, SERVE_DECODE_BATCH)->integer < n)
        n = (int)value(r, SERVE_DECODE_BATCH)->integer;
    return n;
}

static mtplx_status read_engine(const struct reader *r)
{
    struct mx_engine_options *o = &r->c->engine;
    *o = (struct mx_engine_options){
        .mode = MX_ENGINE_MTP_BATCH,
        .max_active = max_active(r),
        .max_queue = (int)value(r, SERVE_MAX_QUEUE)->integer,
        .prefill_chunk = (int)value(r, SERVE_PREFILL_CHUNK)->integer,
    };
    if (given(r, SERVE_SCHEDULER_MODE)) {
        int mode = mx_engine_mode_named(value(r, SERVE_SCHEDULER_MODE)->text);
        o->mode = mode < 0 ? MX_ENGINE_MTP_BATCH : (enum mx_engine_mode)mode;
    }
    return read_size(r, SERVE_MEMORY_BUDGET, &o->memory_limit);
}

/* ---- The session bank --------------------------------------------------------------------- */

static bool says(const struct reader *r, int flag, const char *word)
{
    return given(r, flag) && strcmp(value(r, flag)->text, word) == 0;
}

/* A size, or a share of this machine's memory as "25%". */
static mtplx_status read_share(const struct reader *r, int flag, uint64_t *out)
{
    const char *text = value(r, flag)->text;
    char buf[64], *end;
    if (!given(r, flag) || !strchr(text, '%'))
        return read_size(r, flag, out);
    double share = strtod(text, &end);
    if (end == text || strcmp(end, "%") != 0 || !(share > 0 && share <= 100))
        return mx_error(r->err, MTPLX_ERR_ARGUMENT,
                        "%s takes a size such as 8G or a share such as 25%%, not \"%.40s\"",
                        label(r, flag, buf), text);
    *out = (uint64_t)((double)mx_memory_usable() * share / 100);
    return MTPLX_OK;
}

/* 0 seconds is for ever. */
static uint64_t seconds_or_ever(const struct reader *r, int flag)
{
    if (!given(r, flag))
        return 0;
    uint64_t ns = seconds(r, flag, 0);
    return ns > 0 ? ns : UINT64_MAX;
}

static mtplx_status read_bank(const struct reader *r)
{
    struct mx_engine_options *o = &r->c->engine;
    struct mx_bank_options *b = &o->bank;
    o->no_bank = says(r, SERVE_BANK, "off");
    b->ttl_ns = seconds_or_ever(r, SERVE_BANK_TTL);
    b->pin_ns = seconds(r, SERVE_BANK_PIN, 0);
    b->spacing = (size_t)value(r, SERVE_BANK_INTERVAL)->integer;
    b->max_points = (int)value(r, SERVE_BANK_POINTS)->integer;
    r->c->turn_alignment = !o->no_bank && !says(r, SERVE_ALIGNMENT, "off");
    mtplx_status st = read_share(r, SERVE_BANK_SIZE, &b->budget);
    return st == MTPLX_OK ? read_size(r, SERVE_BANK_CAP, &b->session_cap) : st;
}

static mtplx_status read_cold(const struct reader *r)
{
    struct mx_cold_options *o = &r->c->cold;
    o->mode = MX_COLD_ON;
    if (r->c->engine.no_bank || says(r, SERVE_SSD, "off"))
        o->mode = MX_COLD_OFF;
    else if (says(r, SERVE_SSD, "write-only"))
        o->mode = MX_COLD_WRITE_ONLY;
    o->dir = value(r, SERVE_SSD_DIR)->text;
    o->min_tokens = (size_t)value(r, SERVE_SSD_MIN_TOKENS)->integer;
    mtplx_status st = read_size(r, SERVE_SSD_MAX_SIZE, &o->max_bytes);
    if (st == MTPLX_OK && says(r, SERVE_SSD_BUDGET, "off"))
        o->hourly_bytes = UINT64_MAX;
    else if (st == MTPLX_OK)
        st = read_size_or(r, SERVE_SSD_BUDGET, ", or off", &o->hourly_bytes);
    if (st == MTPLX_OK && (says(r, SERVE_SSD_FLOOR, "off") || says(r, SERVE_SSD_FLOOR, "0")))
        o->floor_bytes = 1; /* 0 is the default */
    else if (st == MTPLX_OK)
        st = read_size_or(r, SERVE_SSD_FLOOR, ", or off", &o->floor_bytes);
    return st == MTPLX_OK ? read_size(r, SERVE_SSD_BACKLOG, &o->queue_bytes) : st;
}

/* ---- The server --------------------------------------------------------------------------- */

/* The flag before the file before the variables, as the words of the flags say. */
static mtplx_status read_keys(const struct reader *r)
{
    struct mx_server_options *o = &r->c->server;
    const struct mx_cli_value *key = value(r, SERVE_API_KEY), *file = value(r, SERVE_API_KEY_FILE);
    o->api_keys = (const char *const *)r->c->keys;
    if (value(r, SERVE_NO_AUTH)->on) {
        if (key->source != MX_CLI_EXPLICIT && file->source != MX_CLI_EXPLICIT)
            return MTPLX_OK;
        return mx_error(r->err, MTPLX_ERR_ARGUMENT,
                        "--no-auth and an API key exclude each other: drop one of them");
    }
    bool from_file = file->source != MX_CLI_DEFAULT &&
                     (key->source != MX_CLI_EXPLICIT || file->source == MX_CLI_EXPLICIT);
    bool from_flag = key->source == MX_CLI_EXPLICIT || (given(r, SERVE_API_KEY) && !from_file);
    if (from_flag && !(r->c->keys[o->n_api_keys++] = strdup(key->text)))
        return mx_error_nomem(r->err, "the API key", strlen(key->text));
    if (from_file && !(r->c->keys[o->n_api_keys++] = mx_key_file(file->text, r->err)))
        return r->err->status;
    return MTPLX_OK;
}

static mtplx_status read_server(const struct reader *r)
{
    struct mx_serve_config *c = r->c;
    struct mx_server_options *o = &c->server;
    uint64_t max_body = 0;
    const int most = 2 * MX_CLI_MAX_REPEATED;
    c->lists[0] = joined(r, SERVE_CORS_ORIGIN);
    c->lists[1] = joined(r, SERVE_ALLOWED_HOST);
    *o = (struct mx_server_options){
        .host = given(r, SERVE_HOST) ? value(r, SERVE_HOST)->text : "127.0.0.1",
        .port = given(r, SERVE_PORT) ? (int)value(r, SERVE_PORT)->integer : 8000,
        .origins = c->origins,
        .n_origins = split(c->lists[0], c->origins, 0, most),
        .hosts = c->hosts,
        .n_hosts = split(c->lists[1], c->hosts, 0, most),
        .tls_cert = value(r, SERVE_TLS_CERT)->text,
        .tls_key = value(r, SERVE_TLS_KEY)->text,
        .rate_limit = (int)value(r, SERVE_RATE_LIMIT)->integer,
        .max_connections = (int)value(r, SERVE_MAX_CONNECTIONS)->integer,
        .log_path = value(r, SERVE_REQUEST_LOG)->text,
        .stall_ns = seconds(r, SERVE_STALL_DEADLINE, 300),
    };
    mtplx_status st = read_size(r, SERVE_MAX_BODY, &max_body);
    o->max_body = (size_t)max_body;
    if (st == MTPLX_OK)
        st = read_keys(r);
    /* The server checks these too; here they cost no load. */
    if (st == MTPLX_OK && !o->tls_cert != !o->tls_key)
        st = mx_error(r->err, MTPLX_ERR_ARGUMENT, "TLS needs both --tls-cert and --tls-key");
    if (st == MTPLX_OK && o->n_api_keys == 0 && !mx_host_is_loopback(o->host))
        st = mx_error(r->err, MTPLX_ERR_ARGUMENT,
                      "--host %.100s would let anyone on the network in: set --api-key-file FILE, "
                      "--api-key or MTPLX_API_KEY, or listen on 127.0.0.1",
                      o->host);
    return st;
}

/* The place of a word in a list, which is that of its enum. */
static int place(const char *word, const char *const *list, int n)
{
    for (int i = 0; i < n; i++)
        if (word && strcmp(word, list[i]) == 0)
            return i;
    return -1;
}

static void read_parsers(const struct reader *r)
{
    const char *style = value(r, SERVE_REASONING_PARSER)->text;
    const char *syntax = value(r, SERVE_TOOL_PARSER)->text;
    r->c->tool_syntax = -1;
    for (int i = MX_TOOLS_NONE; syntax && i <= MX_TOOLS_MINIMAX; i++)
        if (strcmp(mx_tool_syntax_name((enum mx_tool_syntax)i), syntax) == 0)
            r->c->tool_syntax = i;
    r->c->reasoning_style =
        style && strcmp(style, "auto") != 0 ? mx_reasoning_style_named(style) : -1;
}

mtplx_status mx_serve_configure(const struct mx_cli_args *args, struct mx_serve_config *c,
                                mtplx_error *err)
{
    struct reader r = {args, c, err};
    *c = (struct mx_serve_config){0};
    mtplx_status st = read_load(&r);
    if (st == MTPLX_OK)
        st = read_engine(&r);
    if (st == MTPLX_OK)
        st = read_bank(&r);
    if (st == MTPLX_OK)
        st = read_cold(&r);
    if (st == MTPLX_OK)
        st = read_server(&r);
    read_parsers(&r);
    return st;
}

void mx_serve_config_free(struct mx_serve_config *c)
{
    for (size_t i = 0; i < sizeof c->keys / sizeof *c->keys; i++)
        mx_key_free(c->keys[i]);
    for (size_t i = 0; i < sizeof c->lists / sizeof *c->lists; i++)
        free(c->lists[i]);
}

/* ---- Settings ----------------------------------------------------------------------------- */

static void override(const struct reader *r, int flag, double *target)
{
    if (given(r, flag))
        *target = value(r, flag)->real;
}

static void read_sampling(const struct reader *r, const mtplx_model *model,
                          struct mx_app_settings *s)
{
    mtplx_model_default_sampling(model, &s->sampling);
    override(r, SERVE_TEMPERATURE, &s->sampling.temperature);
    override(r, SERVE_TOP_P, &s->sampling.top_p);
    override(r, SERVE_MIN_P, &s->sampling.min_p);
    override(r, SERVE_PRESENCE, &s->sampling.presence_penalty);
    override(r, SERVE_FREQUENCY, &s->sampling.frequency_penalty);
    override(r, SERVE_REPETITION, &s->sampling.repetition_penalty);
    if (given(r, SERVE_TOP_K))
        s->sampling.top_k = (int)value(r, SERVE_TOP_K)->integer;
    s->sampling.seed = value(r, SERVE_SEED)->natural;
    s->sampling_seeded = given(r, SERVE_SEED);
}

static void read_depth(const struct reader *r, const mtplx_model *model, struct mx_app_settings *s)
{
    const struct mx_cli_value *depth = value(r, SERVE_DEPTH);
    bool number = given(r, SERVE_DEPTH) && strcmp(depth->text, "auto") != 0;
    const char *mode = value(r, SERVE_GENERATION_MODE)->text;
    s->depth = number ? (int)depth->integer : MTPLX_MAX_DEPTH;
    s->policy = number ? MTPLX_DEPTH_FIXED : MTPLX_DEPTH_AUTO;
    if (given(r, SERVE_DEPTH_POLICY))
        s->policy = mx_depth_policy_arg(value(r, SERVE_DEPTH_POLICY)->text);
    s->context_copy = given(r, SERVE_COPY) ? strcmp(value(r, SERVE_COPY)->text, "on") == 0
                                           : !(number && s->depth == 0);
    s->mtp = mtplx_model_get_info(model)->has_mtp && !(mode && strcmp(mode, "ar") == 0);
}

static int smaller(int64_t a, int64_t b)
{
    return (int)(a == 0 || (b > 0 && b < a) ? b : a);
}

void mx_serve_settings(const struct mx_cli_args *args, const mtplx_model *model,
                       struct mx_app_settings *s)
{
    static const char *const thinking[] = {"auto", "on", "off"};
    static const char *const preserve[] = {"auto", "on", "off", "scoped"};
    struct reader r = {args, NULL, NULL};
    *s = (struct mx_app_settings){0};
    read_sampling(&r, model, s);
    read_depth(&r, model, s);
    s->max_tokens = smaller(value(&r, SERVE_MAX_TOKENS)->integer,
                            value(&r, SERVE_MAX_RESPONSE_TOKENS)->integer);
    int t = place(value(&r, SERVE_REASONING)->text, thinking, 3);
    int p = place(value(&r, SERVE_PRESERVE_THINKING)->text, preserve, 4);
    s->thinking = t == 1 ? MX_ON : t == 2 ? MX_OFF : MX_UNSET;
    s->preserve_thinking = p > 0 ? p : 0;
    s->stats_footer = value(&r, SERVE_STATS)->on;
    s->client_controls = !given(&r, SERVE_CLIENT_CONTROLS) || value(&r, SERVE_CLIENT_CONTROLS)->on;
}
