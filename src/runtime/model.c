/* Loading a model: config, checkpoint, device, family, tokenizer, chat template, defaults. */
#include "runtime/model.h"

#include "base/clock.h"
#include "base/file.h"
#include "runtime/generate.h"
#include "runtime/kv_option.h"
#include "runtime/sampler.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_ROWS 256
#define MIN_ROWS 32
#define MAX_ROWS 4096

mtplx_status mx_devbuf_need(struct mtplx_model *m, struct mx_devbuf *b, size_t bytes,
                            mtplx_error *err)
{
    if (bytes <= b->cap)
        return MTPLX_OK;
    void *p = m->device->ops->alloc(m->device, bytes);
    if (!p)
        return mx_error_nomem(err, "activations", bytes);
    if (b->data)
        m->device->ops->free(m->device, b->data);
    b->data = p;
    b->cap = bytes;
    return MTPLX_OK;
}

mtplx_status mx_hostbuf_need(struct mx_hostbuf *b, size_t bytes, mtplx_error *err)
{
    if (bytes <= b->cap)
        return MTPLX_OK;
    void *p = malloc(bytes);
    if (!p)
        return mx_error_nomem(err, "results", bytes);
    free(b->data);
    b->data = p;
    b->cap = bytes;
    return MTPLX_OK;
}

/* ---- Defaults of the checkpoint ----------------------------------------------------------- */

static void add_stop(mtplx_model *m, json_int_t id)
{
    if (id < 0 || id >= m->geometry.vocab || m->n_stops == MX_MAX_STOPS)
        return;
    if (!mtplx_model_is_stop_token(m, (int32_t)id))
        m->stops[m->n_stops++] = (int32_t)id;
}

static void add_stops(mtplx_model *m, const json_t *v)
{
    if (json_is_integer(v))
        add_stop(m, json_integer_value(v));
    for (size_t i = 0; i < json_array_size(v); i++)
        if (json_is_integer(json_array_get(v, i)))
            add_stop(m, json_integer_value(json_array_get(v, i)));
}

static void read_sampling(mtplx_model *m, const json_t *gen)
{
    mtplx_sampling s = m->sampling;
    const json_t *t = json_object_get(gen, "temperature"), *p = json_object_get(gen, "top_p");
    const json_t *k = json_object_get(gen, "top_k"), *mp = json_object_get(gen, "min_p");
    const json_t *r = json_object_get(gen, "repetition_penalty");
    if (json_is_number(t))
        s.temperature = json_number_value(t);
    if (json_is_number(p))
        s.top_p = json_number_value(p);
    if (json_is_integer(k) && json_integer_value(k) >= 0 && json_integer_value(k) < INT32_MAX)
        s.top_k = (int)json_integer_value(k);
    if (json_is_number(mp))
        s.min_p = json_number_value(mp);
    if (json_is_number(r))
        s.repetition_penalty = json_number_value(r);
    if (json_is_false(json_object_get(gen, "do_sample")))
        s.temperature = 0;
    if (!mx_sampling_check(&s)) /* values out of range are as good as absent */
        m->sampling = s;
}

/* The tokenizer's own idea of an end: tokenizer_config.json's eos_token (a string or {content}),
 * and the end-of-turn token where the template writes turns with it. Checkpoints without a
 * generation_config.json often name only the end of text in config.json. */
static mtplx_status tokenizer_stops(mtplx_model *m, mtplx_error *err)
{
    char *path = mx_path_join(m->path, "tokenizer_config.json");
    if (!path)
        return mx_error_nomem(err, "a path", strlen(m->path));
    if (mx_file_exists(path)) {
        json_t *cfg = mx_json_file(path, 64 << 20, err);
        if (!cfg) {
            free(path);
            return MTPLX_ERR_FORMAT;
        }
        const json_t *eos = json_object_get(cfg, "eos_token");
        const char *name =
            json_string_value(json_is_object(eos) ? json_object_get(eos, "content") : eos);
        if (name)
            add_stop(m, mx_tokenizer_find(m->tokenizer, name));
        json_decref(cfg);
    }
    free(path);
    if (m->chat && mx_chat_mentions(m->chat, "<|im_end|>"))
        add_stop(m, mx_tokenizer_find(m->tokenizer, "<|im_end|>"));
    if (m->n_stops == 0)
        add_stop(m, mx_tokenizer_find(m->tokenizer, "<|endoftext|>"));
    return MTPLX_OK;
}

/* generation_config.json is optional. */
static mtplx_status read_defaults(mtplx_model *m, mtplx_error *err)
{
    char *path = mx_path_join(m->path, "generation_config.json");
    m->sampling =
        (mtplx_sampling){.temperature = 0.6, .top_p = 0.95, .top_k = 20, .repetition_penalty = 1};
    if (!path)
        return mx_error_nomem(err, "a path", strlen(m->path));
    if (mx_checkpoint_gguf(m->checkpoint))
        read_sampling(m, json_object_get(m->config.root, "generation_config"));
    if (mx_file_exists(path)) {
        json_t *gen = mx_json_file(path, 1 << 20, err);
        if (!gen) {
            free(path);
            return MTPLX_ERR_FORMAT;
        }
        read_sampling(m, gen);
        add_stops(m, json_object_get(gen, "eos_token_id"));
        json_decref(gen);
    }
    free(path);
    add_stops(m, json_object_get(m->config.root, "eos_token_id"));
    add_stops(m, json_object_get(m->config.text, "eos_token_id"));
    return m->tokenizer ? tokenizer_stops(m, err) : MTPLX_OK;
}

/* ---- Parts -------------------------------------------------------------------------------- */

static mtplx_status open_family(mtplx_model *m, mtplx_error *err)
{
    m->family = mx_family_find(&m->config);
    if (m->family)
        return MTPLX_OK;
    char known[200] = "";
    size_t n = 0;
    for (const struct mx_family *const *f = mx_families(); *f && n + 40 < sizeof known; f++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", (*f)->name);
    return mx_error(err, MTPLX_ERR_UNSUPPORTED,
                    "%s: model_type '%s' is not supported; this build runs %s", m->config.path,
                    mx_config_model_type(&m->config), known);
}

/* What the metadata of a GGUF file holds; `local` receives the error. */
static mtplx_status open_gguf_text(mtplx_model *m, mtplx_error *local)
{
    const struct mx_gguf *g = mx_checkpoint_gguf(m->checkpoint);
    if (!g)
        return MTPLX_OK;
    m->tokenizer = mx_tokenizer_open_gguf(g, local);
    if (m->tokenizer && local->status == MTPLX_OK)
        m->chat = mx_chat_open_gguf(g, local);
    return local->status;
}

static mtplx_status open_text(mtplx_model *m, mtplx_error *err)
{
    char *path = mx_path_join(m->path, "tokenizer.json");
    mtplx_error local = {0};
    if (!path)
        return mx_error_nomem(err, "a path", strlen(m->path));
    bool have = mx_file_exists(path);
    free(path);
    if (open_gguf_text(m, &local) != MTPLX_OK) {
        if (err)
            *err = local;
        return local.status;
    }
    if (m->chat)
        return MTPLX_OK;
    if (have && !m->tokenizer && !(m->tokenizer = mx_tokenizer_open(m->path, err)))
        return err ? err->status : MTPLX_ERR_FORMAT;
    m->chat = mx_chat_open(m->path, &local);
    if (!m->chat && local.status != MTPLX_OK) {
        if (err)
            *err = local;
        return local.status;
    }
    return MTPLX_OK;
}

/* The type that most bytes of a GGUF file's matrices have. */
static void describe_gguf(mtplx_model *m)
{
    uint64_t bytes[MX_GGUF_BF16 + 1] = {0}; /* by type; every readable one is below */
    const struct mx_checkpoint *ck = m->checkpoint;
    int kinds = 0, most = MX_GGUF_F32;
    for (size_t i = 0; i < mx_checkpoint_count(ck); i++) {
        const struct mx_tensor *t = mx_checkpoint_at(ck, i);
        int type = t->dtype == MX_F16    ? MX_GGUF_F16
                   : t->dtype == MX_BF16 ? MX_GGUF_BF16
                                         : t->gguf_type;
        if (t->ndim != 2 || type < 0 || type > MX_GGUF_BF16)
            continue;
        kinds += bytes[type] == 0;
        bytes[type] += t->bytes;
        most = bytes[type] > bytes[most] ? type : most;
    }
    snprintf(m->quantization, sizeof m->quantization, "gguf %s%s", mx_gguf_type_name(most),
             kinds > 1 ? " (mixed)" : "");
}

static void describe_quantization(mtplx_model *m)
{
    if (mx_checkpoint_gguf(m->checkpoint)) {
        describe_gguf(m);
        return;
    }
    struct mx_quant_spec q = {0};
    bool mixed = false;
    mx_config_quant(&m->config, "", &q, NULL);
    if (!q.bits) {
        const char *dtype = json_string_value(mx_config_get(&m->config, "dtype"));
        if (!dtype)
            dtype = json_string_value(mx_config_get(&m->config, "torch_dtype"));
        snprintf(m->quantization, sizeof m->quantization, "%s", dtype ? dtype : "unquantised");
        return;
    }
    const json_t *obj = mx_config_get(&m->config, "quantization");
    if (!obj)
        obj = mx_config_get(&m->config, "quantization_config");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)obj, key, value)
    {
        const json_t *bits = json_object_get(value, "bits");
        mixed |= json_is_integer(bits) && json_integer_value(bits) != q.bits;
    }
    snprintf(m->quantization, sizeof m->quantization, "mlx affine %d-bit g%d%s", q.bits,
             q.group_size, mixed ? " (mixed)" : "");
}

static const char *norm_name(const struct mx_loader *l)
{
    return l->trunk_norms == MX_NORM_RAW ? "raw" : "baked";
}

static void fill_info(mtplx_model *m, const struct mx_loader *l)
{
    const struct mx_gdn_layout *gdn = &m->geometry.gdn;
    describe_quantization(m);
    m->info = (mtplx_model_info){
        .path = m->path,
        .architecture = m->family->name,
        .model_type = mx_config_model_type(&m->config),
        .device = m->device->name,
        .profile = m->device->fast ? "fast" : "exact",
        .device_note = m->device->note,
        .quantization = m->quantization,
        .norm_encoding = norm_name(l),
        .mtp_norm_encoding = !m->geometry.has_mtp          ? NULL
                             : l->mtp_norms == MX_NORM_RAW ? "raw"
                                                           : "baked",
        .norms_ambiguous = l->norms_ambiguous,
        .mtp_source = l->mtp_source,
        .layers = m->geometry.layers,
        .hidden_size = m->geometry.hidden,
        .vocab_size = m->geometry.vocab,
        .context_length = m->geometry.context,
        .has_mtp = m->geometry.has_mtp,
        .has_tokenizer = m->tokenizer != NULL,
        .has_chat_template = m->chat != NULL,
        .parameters = m->weights.parameters,
        .mtp_parameters = m->weights.mtp_parameters,
        .weight_bytes = m->weights.bytes,
        .threads = m->device->threads,
        .kv_format = mx_kv_format_name(m->geometry.kv.format),
        .kv_token_bytes = mx_kv_token_bytes(&m->geometry.kv),
        .recurrent_bytes =
            (uint64_t)gdn->layers * (uint64_t)mx_gdn_layer_floats(gdn) * sizeof(float),
    };
    if (m->geometry.has_mtp)
        m->info.kv_token_bytes += mx_kv_token_bytes(&m->geometry.mtp_kv);
}

void mx_model_limit_context(mtplx_model *m, int tokens)
{
    if (tokens < m->geometry.context)
        m->geometry.context = m->info.context_length = tokens;
}

/* ---- Geometry, scratch -------------------------------------------------------------------- */

static mtplx_status preset_geometry(mtplx_model *m, mtplx_kv_quant quant, mtplx_error *err)
{
    struct mx_geometry *g = &m->geometry;
    mtplx_status st = mx_kv_choose(quant, m->device->kv_format, &g->kv.format, err);
    g->mtp_kv.format = g->kv.format;
    g->kv.block_tokens = g->mtp_kv.block_tokens = MX_KV_BLOCK;
    g->gdn.tape_rows = MX_MAX_PENDING;
    return st;
}

static mtplx_status open_exec(mtplx_model *m, int max_rows, mtplx_error *err)
{
    struct mx_device *d = m->device;
    int rows = max_rows ? max_rows : DEFAULT_ROWS;
    if (rows < MIN_ROWS || rows > MAX_ROWS)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "max_rows %d is outside %d..%d", rows, MIN_ROWS,
                        MAX_ROWS);
    m->exec.device = d;
    m->exec.max_rows = rows;
    m->kv_pool = mx_kv_pool_new(d, &m->geometry.kv);
    if (m->geometry.has_mtp)
        m->mtp_pool = mx_kv_pool_new(d, &m->geometry.mtp_kv);
    if (!m->kv_pool || (m->geometry.has_mtp && !m->mtp_pool))
        return mx_error_nomem(err, "the KV block pools", 2 * sizeof(void *));
    for (int i = 0; i < MX_MAX_SCRATCH && m->geometry.scratch[i]; i++) {
        size_t bytes = (size_t)rows * (size_t)m->geometry.scratch[i] * sizeof(float);
        m->exec.scratch[i] = d->ops->alloc(d, bytes);
        if (!m->exec.scratch[i])
            return mx_error_nomem(err, "activations", bytes);
    }
    return d->ops->reserve(d, rows, (int64_t)m->geometry.context + MX_MAX_LAG, err);
}

/* What learned facts hold for: these weights, run this way on this machine. */
static struct mx_state *open_state(const mtplx_model *m, const mtplx_load_options *o)
{
    char text[2 * PATH_MAX + 512];
    char *real = realpath(m->path, NULL);
    const mtplx_model_info *i = &m->info;
    const char *source = i->mtp_source ? i->mtp_source : "none", *slash = strrchr(source, '/');
    int n = snprintf(text, sizeof text,
                     "%s; %s %s, %llu + %llu parameters, %llu bytes, mtp %s %d, mlp %d, "
                     "adapter %s, drafts %d %d; %s %s, %d threads, kv %s",
                     real ? real : m->path, i->model_type, i->quantization,
                     (unsigned long long)i->parameters, (unsigned long long)i->mtp_parameters,
                     (unsigned long long)i->weight_bytes, slash ? slash + 1 : source,
                     (int)o->mtp_proj_quant, (int)o->mlp_proj_quant,
                     o->mtp_adapter && !o->no_mtp ? o->mtp_adapter : "none", o->draft_vocab,
                     (int)o->draft_head_quant, i->device, i->profile, i->threads, i->kv_format);
    free(real);
    if (n < 0 || (size_t)n >= sizeof text)
        return NULL;
    mx_state_machine(text, sizeof text);
    return mx_state_new(text);
}

/* After the tokenizer and the stop tokens, which the choice goes by, and before scratch is made for
 * the largest weight. Tokens of earlier answers count only where no number of tokens was asked for:
 * who asks gets the same drafts, and so the same sampled answers, in every run. */
static mtplx_status open_draft(mtplx_model *m, struct mx_loader *l, mtplx_error *err)
{
    const struct mx_weight *head = NULL;
    bool learns = l->options->draft_vocab == 0 && m->geometry.vocab > MX_DRAFT_VOCAB;
    struct mx_draft_tokens from = {.vocab = m->geometry.vocab,
                                   .tokenizer = m->tokenizer,
                                   .stops = m->stops,
                                   .n_stops = m->n_stops};
    if (m->geometry.has_mtp && m->family->output_head)
        head = m->family->output_head(m->arch);
    if (head && learns)
        m->misses = mx_misses_new(mx_state_get(m->state, MX_MISSES), m->geometry.vocab);
    from.observed = mx_misses_ranked(m->misses, &from.n_observed);
    mtplx_status st = mx_draft_vocab_load(&m->draft, l, head, &from, err);
    mx_misses_watch(m->misses, m->draft.ids, m->draft.n);
    m->info.draft_vocab = m->geometry.has_mtp ? m->draft.n : 0;
    m->info.draft_head_bytes = m->draft.head.data ? mx_weight_bytes(&m->draft.head, m->draft.n) : 0;
    return st;
}

struct mx_depth_model *mx_model_depth(mtplx_model *m)
{
    if (m->depth || !(m->depth = malloc(sizeof *m->depth)))
        return m->depth;
    mx_depth_model_init(m->depth);
    mx_depth_model_read(m->depth, mx_state_get(m->state, "depth"));
    return m->depth;
}

static void put_state(mtplx_model *m)
{
    if (m->depth && m->depth->changed) {
        mx_state_put(m->state, "depth", mx_depth_model_write(m->depth));
        m->depth->changed = false;
    }
    if (mx_misses_grown(m->misses))
        mx_state_put(m->state, MX_MISSES, mx_misses_json(m->misses));
}

void mx_model_save_state(mtplx_model *m)
{
    mtplx_model_lock(m);
    put_state(m);
    mx_state_save(m->state);
    mtplx_model_unlock(m);
}

static void close_state(mtplx_model *m)
{
    put_state(m);
    mx_misses_free(m->misses);
    mx_state_free(m->state);
    free(m->depth);
}

/* ---- Load and free ------------------------------------------------------------------------ */

static mtplx_status bind(mtplx_model *m, const mtplx_load_options *o, struct mx_loader *l,
                         mtplx_error *err)
{
    mtplx_status st;
    *l = (struct mx_loader){.cfg = &m->config,
                            .ck = m->checkpoint,
                            .device = m->device,
                            .options = o,
                            .weights = &m->weights};
    if (o->mtp_adapter && !o->no_mtp) {
        m->adapter = mx_adapter_open(o->mtp_adapter, &l->adapter_scale, err);
        if (!m->adapter)
            return err ? err->status : MTPLX_ERR_IO;
        l->adapter = m->adapter;
        m->adapter_scale = l->adapter_scale;
    }
    if ((st = preset_geometry(m, o->kv_quant, err)) != MTPLX_OK)
        return st;
    m->arch = m->family->load(l, &m->geometry, err);
    if (!m->arch)
        return err ? err->status : MTPLX_ERR_FORMAT;
    if ((st = mx_kv_check(&m->geometry.kv, err)) != MTPLX_OK ||
        (st = mx_kv_check(&m->geometry.mtp_kv, err)) != MTPLX_OK)
        return st;
    if (m->adapter && l->adapter_used != mx_checkpoint_count(m->adapter))
        return mx_error(err, MTPLX_ERR_FORMAT,
                        "%s: %zu of %zu tensors of this adapter name no matrix of the MTP head%s",
                        o->mtp_adapter, mx_checkpoint_count(m->adapter) - l->adapter_used,
                        mx_checkpoint_count(m->adapter),
                        m->geometry.has_mtp ? "" : ", and the model has none");
    st = open_text(m, err);
    if (st == MTPLX_OK)
        st = read_defaults(m, err);
    if (st != MTPLX_OK)
        return st;
    fill_info(m, l);
    m->state = open_state(m, o);
    st = open_draft(m, l, err);
    return st == MTPLX_OK ? open_exec(m, o->max_rows, err) : st;
}

static mtplx_status choose_profile(struct mx_device *d, mtplx_profile p, mtplx_error *err)
{
    const char *env = getenv("MTPLX_PROFILE");
    if (p < MTPLX_PROFILE_AUTO || p > MTPLX_PROFILE_EXACT)
        return mx_error(err, MTPLX_ERR_ARGUMENT, "profile is none of auto, fast and exact");
    if (p == MTPLX_PROFILE_AUTO && env && *env) {
        if (strcmp(env, "fast") != 0 && strcmp(env, "exact") != 0)
            return mx_error(err, MTPLX_ERR_ARGUMENT,
                            "MTPLX_PROFILE is \"%.32s\"; it must be \"fast\" or \"exact\"", env);
        p = strcmp(env, "fast") == 0 ? MTPLX_PROFILE_FAST : MTPLX_PROFILE_EXACT;
    }
    d->fast = p != MTPLX_PROFILE_EXACT && d->int8;
    return MTPLX_OK;
}

static bool known_quant(mtplx_proj_quant q)
{
    return q == MTPLX_PROJ_KEEP || q == MTPLX_PROJ_Q4 || q == MTPLX_PROJ_Q8;
}

static mtplx_status load(mtplx_model *m, const char *path, const mtplx_load_options *o,
                         mtplx_error *err)
{
    struct mx_loader l;
    mtplx_status st;
    m->path = strdup(path);
    if (!m->path)
        return mx_error_nomem(err, "a path", strlen(path));
    if (!known_quant(o->mtp_proj_quant) || !known_quant(o->mlp_proj_quant) ||
        !known_quant(o->draft_head_quant))
        return mx_error(err, MTPLX_ERR_ARGUMENT, "proj_quant is none of keep, q4 and q8");
    if (o->draft_vocab < -1)
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "draft_vocab %d must be a number of tokens, 0 (the default) or -1 (all)",
                        o->draft_vocab);
    if ((st = mx_config_open(&m->config, path, err)) != MTPLX_OK ||
        (st = open_family(m, err)) != MTPLX_OK)
        return st;
    m->checkpoint = mx_checkpoint_open(path, m->config.root, err);
    if (!m->checkpoint)
        return err ? err->status : MTPLX_ERR_FORMAT;
    m->device = mx_device_open(o->device, o->threads, err);
    if (!m->device)
        return err ? err->status : MTPLX_ERR_UNSUPPORTED;
    mx_weights_init(&m->weights, m->device);
    if ((st = choose_profile(m->device, o->profile, err)) != MTPLX_OK)
        return st;
    return bind(m, o, &l, err);
}

/* Recursive, so that a caller can hold it over a call and the reading of its result. */
static void init_lock(pthread_mutex_t *lock)
{
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(lock, &attr);
    pthread_mutexattr_destroy(&attr);
}

void mtplx_model_lock(mtplx_model *m)
{
    pthread_mutex_lock(&m->lock);
}

void mtplx_model_unlock(mtplx_model *m)
{
    pthread_mutex_unlock(&m->lock);
}

mtplx_model *mtplx_model_load(const char *path, const mtplx_load_options *options, mtplx_error *err)
{
    mtplx_load_options defaults = {0};
    mtplx_error local = {0};
    mtplx_model *m = calloc(1, sizeof *m);
    if (!m) {
        mx_error_nomem(err, "a model", sizeof *m);
        return NULL;
    }
    init_lock(&m->lock);
    pthread_mutex_init(&m->table_lock, NULL);
    m->clock = mx_now_ns;
    if (load(m, path, options ? options : &defaults, &local) != MTPLX_OK) {
        if (err)
            *err = local;
        mtplx_model_free(m);
        return NULL;
    }
    return m;
}

static void free_device_side(mtplx_model *m)
{
    struct mx_device *d = m->device;
    struct mx_devbuf *bufs[] = {&m->hidden, &m->logits, &m->pairs, &m->drafts};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++)
        if (bufs[i]->data)
            d->ops->free(d, bufs[i]->data);
    for (int i = 0; i < MX_MAX_SCRATCH; i++)
        if (m->exec.scratch[i])
            d->ops->free(d, m->exec.scratch[i]);
    mx_kv_pool_free(m->kv_pool);
    mx_kv_pool_free(m->mtp_pool);
    mx_weights_free(&m->weights);
    mx_device_close(d);
}

void mtplx_model_free(mtplx_model *m)
{
    if (!m)
        return;
    close_state(m);
    if (m->device)
        free_device_side(m);
    mx_chat_free(m->chat);
    mx_token_table_free(m->token_table);
    mx_tokenizer_free(m->tokenizer);
    mx_checkpoint_close(m->checkpoint);
    mx_checkpoint_close(m->adapter);
    mx_config_close(&m->config);
    free(m->out_logits.data);
    free(m->out_hidden.data);
    free(m->batch.data);
    free(m->mtp_batch.data);
    free(m->prompt_rows.data);
    pthread_mutex_destroy(&m->table_lock);
    pthread_mutex_destroy(&m->lock);
    free(m->path);
    free(m);
}

const mtplx_model_info *mtplx_model_get_info(const mtplx_model *m)
{
    return &m->info;
}

void mtplx_model_default_sampling(const mtplx_model *m, mtplx_sampling *out)
{
    *out = m->sampling;
}

bool mtplx_model_is_stop_token(const mtplx_model *m, int32_t token)
{
    for (int i = 0; i < m->n_stops; i++)
        if (m->stops[i] == token)
            return true;
    return false;
}

/* ---- Embedded model ----------------------------------------------------------------------- */

static char *try_model(const char *base, const char *rest)
{
    char *dir = base ? mx_path_join(base, rest) : NULL;
    char *config = dir ? mx_path_join(dir, "config.json") : NULL;
    bool ok = config && mx_file_exists(config);
    free(config);
    if (ok)
        return dir;
    free(dir);
    return NULL;
}

char *mtplx_embedded_model_path(mtplx_error *err)
{
    char *exe = mx_exe_dir();
    char *found = try_model(getenv("MTPLX_HOME"), "models/nano");
    if (!found)
        found = try_model(exe, "../models/nano"); /* build tree */
    if (!found)
        found = try_model(exe, "../../models/nano"); /* build/tests, build/asan */
    if (!found)
        found = try_model(exe, "../share/mtplx/models/nano");
    if (!found)
        found = try_model(MX_DATADIR, "models/nano");
    free(exe);
    if (!found)
        mx_error(err, MTPLX_ERR_IO,
                 "the embedded model was not found beside the program or under %s/models/nano; set "
                 "MTPLX_HOME or name a model",
                 MX_DATADIR);
    return found;
}
